// SPDX-License-Identifier: Apache-2.0
#include "read_tile_body.h"

namespace kvfolio::bench {

using Vector = std::uint64_t __attribute__((vector_size(32)));

std::uint64_t read_tile_avx2(const TileShape& shape, const Tile& tile, const Ahead& ahead) {
  return read_tile<Vector>(shape, tile, ahead);
}

}  // namespace kvfolio::bench
