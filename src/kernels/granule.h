// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tiles of format granule: rows of 16 tokens in the order of spec.h, written and read a part at a
// time. Moves bytes and knows no values: rows have the element type of the cache already, int8 of K
// has its 128 added.

#include <cstddef>
#include <cstdint>

#include "kvfolio/dtype.h"

namespace kvfolio::kernels {

// Elements of a row that lie together.
[[nodiscard]] constexpr std::int32_t granule_elements(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16:
      return 2;
    case DType::kInt8:
      return 4;
    default:
      return 1;
  }
}

// Tokens [first, first + count) of a tile and, of each, elements [dim, dim + dims).
// Requires: dim and dims are multiples of 8.
struct TilePart {
  DType dtype = DType::kF32;
  std::int64_t head_dim = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
  std::int64_t dim = 0;
  std::int64_t dims = 0;
};

// Row i of `rows` (row_stride bytes apart) is token first + i, from element dim on.
void pack_k(const TilePart& part, const std::byte* rows, std::int64_t row_stride,
            std::byte* tile) noexcept;
void pack_v(const TilePart& part, const std::byte* rows, std::int64_t row_stride,
            std::byte* tile) noexcept;
void unpack_k(const TilePart& part, const std::byte* tile, std::byte* rows,
              std::int64_t row_stride) noexcept;
void unpack_v(const TilePart& part, const std::byte* tile, std::byte* rows,
              std::int64_t row_stride) noexcept;

}  // namespace kvfolio::kernels
