// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading 16 tokens of K and V of one head, every byte of them, and asking for other 16 at the same
// time. Plain data alone, since the sources of read_tile are compiled for different processors.

#include <cstdint>

namespace kvfolio::bench {

struct TilePlane {
  const unsigned char* data = nullptr;
  std::int64_t row_stride = 0;
};

struct Tile {
  TilePlane planes[4];  // K, V and, of int8, the scales of both
};

// What all tiles of a cache have in common, by plane. Bytes of a row are whatever they are: a rest
// of less than 64 is read too.
struct TileShape {
  std::int32_t rows[4] = {};
  std::int32_t row_bytes[4] = {};
};

// What is asked for while a tile is read: nothing, or another tile, into a level of the caches.
// Which level is better depends on the machine: on Zen 4 int8 is read with 9.5 GB/s by way of the
// first, with 13 by way of the second.
struct Ahead {
  const Tile* tile = nullptr;
  std::int32_t level = 2;  // 1 or 2
};

// Adds up what it reads and answers it, so that nothing is left out.
using ReadTile = std::uint64_t (*)(const TileShape& shape, const Tile& tile, const Ahead& ahead);

// What this CPU reads fastest with.
ReadTile widest_read_tile();

std::uint64_t read_tile_plain(const TileShape& shape, const Tile& tile, const Ahead& ahead);
std::uint64_t read_tile_avx2(const TileShape& shape, const Tile& tile, const Ahead& ahead);
std::uint64_t read_tile_avx512(const TileShape& shape, const Tile& tile, const Ahead& ahead);

}  // namespace kvfolio::bench
