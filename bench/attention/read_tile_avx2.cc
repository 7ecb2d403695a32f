// SPDX-License-Identifier: Apache-2.0
#include "read_tile_body.h"

namespace kvfolio::bench {

std::uint64_t read_tile_avx2(const TileShape& shape, const Tile& tile, const Tile* ahead) {
  return read_tile<32>(shape, tile, ahead);
}

}  // namespace kvfolio::bench
