// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loop of read_tile, over vectors of 64-bit integers. Each source that includes it has its own
// copy, compiled with that source's flags.

#include <cstring>

#include "read_tile.h"

namespace kvfolio::bench {

template <int kLevel>
static inline void ask(const unsigned char* line) {
  __builtin_prefetch(line, 0, kLevel == 1 ? 3 : 2);
}

// kLevel: what is asked for goes there; 0 if nothing is.
template <typename Vector, int kLevel>
static std::uint64_t read_tile_asking(const TileShape& shape, const Tile& tile, const Tile* ahead) {
  constexpr int kBytes = sizeof(Vector);
  Vector sum = {};
  std::uint64_t rest = 0;
  for (int plane = 0; plane < 4; ++plane) {
    const std::int32_t bytes = shape.row_bytes[plane];
    for (std::int32_t r = 0; r < shape.rows[plane]; ++r) {
      const unsigned char* row = tile.planes[plane].data + r * tile.planes[plane].row_stride;
      [[maybe_unused]] const unsigned char* next =
          kLevel == 0 ? nullptr : ahead->planes[plane].data + r * ahead->planes[plane].row_stride;
      std::int32_t at = 0;
      for (; at + 64 <= bytes; at += 64) {
        if constexpr (kLevel != 0) ask<kLevel>(next + at);
        for (int part = 0; part < 64; part += kBytes) {
          Vector value;
          std::memcpy(&value, row + at + part, kBytes);
          sum += value;
        }
      }
      if constexpr (kLevel != 0) {
        if (at < bytes) ask<kLevel>(next + at);
      }
      for (; at < bytes; ++at) rest += row[at];
    }
  }
  for (int i = 0; i < kBytes / 8; ++i) rest += sum[i];
  return rest;
}

template <typename Vector>
static std::uint64_t read_tile(const TileShape& shape, const Tile& tile, const Ahead& ahead) {
  if (ahead.tile == nullptr) return read_tile_asking<Vector, 0>(shape, tile, nullptr);
  return ahead.level == 1 ? read_tile_asking<Vector, 1>(shape, tile, ahead.tile)
                          : read_tile_asking<Vector, 2>(shape, tile, ahead.tile);
}

}  // namespace kvfolio::bench
