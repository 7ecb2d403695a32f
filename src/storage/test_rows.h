// SPDX-License-Identifier: Apache-2.0
#pragma once

// For the tests of storage: every row of a view, a pattern of bytes that differs from row to row,
// and the memory of an engine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kvfolio/spec.h"
#include "kvfolio/view.h"

namespace kvfolio::testing_rows {

// One row of K or V of a view, a tile of them in format granule, or one scale.
struct Row {
  std::byte* data;
  std::int64_t bytes;
};

// Calls visit(row, layer, block, head, row of the head, kind) for every row that the view stores.
// Kind 0 is K, 1 is V, 2 are scales of K, 3 of V.
template <typename Visit>
void for_each_row(const KVView& view, Visit&& visit) {
  const std::int32_t tokens = view.granule ? 16 : 1;
  const std::int64_t element = dtype_bytes(view.dtype) * std::int64_t{tokens};
  for (int kind = 0; kind < 4; ++kind) {
    const bool is_v = kind % 2 == 1;
    if (is_v && (view.head_dim_v == 0 || view.v_is_prefix_of_k)) continue;
    if (kind >= 2 && !has_scales(view.dtype)) return;
    const std::int32_t rows = kind >= 2 ? view.block_size : view.block_size / tokens;
    for (std::int32_t l = 0; l < view.num_layers; ++l) {
      for (std::int32_t b = 0; b < view.num_blocks; ++b) {
        for (std::int32_t h = 0; h < view.num_kv_heads; ++h) {
          for (std::int32_t t = 0; t < rows; ++t) {
            Row row{is_v ? view.v_at(l, b, h, t * tokens) : view.k_at(l, b, h, t * tokens),
                    (is_v ? view.head_dim_v : view.head_dim_k) * element};
            if (kind == 2) row = {view.k_scale_at(l, b, h, t), 4};
            if (kind == 3) row = {view.v_scale_at(l, b, h, t), 4};
            visit(row, l, b, h, t, kind);
          }
        }
      }
    }
  }
}

// A byte that differs between neighbours in every direction.
inline std::byte pattern(int l, int b, int h, int t, int kind) {
  return std::byte(static_cast<unsigned char>(1 + l * 101 + b * 37 + h * 11 + t * 5 + kind * 59));
}

inline void write_pattern(const KVView& view) {
  for_each_row(view, [](Row row, int l, int b, int h, int t, int kind) {
    std::memset(row.data, std::to_integer<int>(pattern(l, b, h, t, kind)),
                static_cast<std::size_t>(row.bytes));
  });
}

// Every row holds the pattern of the block that source[block] names.
inline void expect_pattern(const KVView& view, const std::vector<int>& source) {
  int wrong = 0;
  for_each_row(view, [&](Row row, int l, int b, int h, int t, int kind) {
    const std::byte want = pattern(l, source[static_cast<std::size_t>(b)], h, t, kind);
    wrong +=
        std::any_of(row.data, row.data + row.bytes, [&](std::byte got) { return got != want; });
  });
  EXPECT_EQ(wrong, 0) << "rows with other bytes than their source";
}

inline std::vector<GroupSpec> shapes() {
  std::vector<GroupSpec> result;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kInt8,
                            DType::kE4M3, DType::kOpaque}) {
    for (const Format format : {Format::kHnd, Format::kNhd, Format::kGranule}) {
      for (const std::int32_t block_size : {1, 3, 16, 48}) {
        if (block_size == 48 && format != Format::kGranule) continue;
        for (const std::pair<int, bool>& v :
             {std::pair{5, false}, {8, false}, {0, false}, {5, true}}) {
          if (format == Format::kGranule &&
              (!fits_granule(dtype) || block_size % 16 != 0 || v.first % 8 != 0)) {
            continue;
          }
          result.push_back({.num_layers = 3,
                            .num_kv_heads = 2,
                            .head_dim_k = 8,
                            .head_dim_v = v.first,
                            .v_is_prefix_of_k = v.second,
                            .block_size = block_size,
                            .dtype = dtype,
                            .format = format,
                            .num_blocks = 5});
        }
      }
    }
  }
  return result;
}

// Memory of an engine with guard bytes that may not be touched.
struct Engine {
  explicit Engine(std::int64_t bytes)
      : memory(static_cast<std::size_t>(bytes) + 64, std::byte{0xee}) {}
  std::byte* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return memory.data() + (64 - address % 64) % 64;
  }
  std::vector<std::byte> memory;
};

}  // namespace kvfolio::testing_rows
