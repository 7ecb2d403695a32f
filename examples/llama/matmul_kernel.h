// SPDX-License-Identifier: Apache-2.0
#pragma once

// The product kernel, once, over a vector type. Each target's source file includes this with its
// own vector type and its own compiler flags; everything here has internal linkage, so that no
// code built for one processor can be picked by the linker for another.
//
// A tile is R rows by one panel of C vectors. Its R * C sums stay in registers while k runs over
// the panel, which is read once, front to back. Each sum is one chain of multiply-adds in
// increasing k; R and C only say how many chains run side by side. Hence the bits of an output do
// not depend on R: whole tiles of R rows, then one row at a time for the rest.
//
// A row alone has few chains and would wait for each multiply-add to finish, so for a single row
// two panels run side by side.

#include <cstdint>

#include "matmul_target.h"

namespace kvfolio::llama {
namespace {

// Writes the first `width` of the C vectors at `sums`.
template <typename V, int C>
void store_sums(const typename V::Vector* sums, float* out, std::int32_t width) {
  if (width == C * V::kLanes) {
    for (int c = 0; c < C; ++c) V::store(out + c * V::kLanes, sums[c]);
    return;
  }
  float last[C * V::kLanes];  // the zeros that fill up the last panel are dropped here
  for (int c = 0; c < C; ++c) V::store(last + c * V::kLanes, sums[c]);
  for (std::int32_t i = 0; i < width; ++i) out[i] = last[i];
}

// P panels that lie `panel_floats` apart; `width` is that of the last one.
template <typename V, int R, int C, int P>
void multiply_tile(const float* rows, std::int64_t row_stride, const float* panel,
                   std::int64_t panel_floats, std::int32_t num_in, float* out,
                   std::int64_t out_stride, std::int32_t width) {
  typename V::Vector sums[R][P * C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < P * C; ++c) sums[r][c] = V::zero();
  }
  for (std::int32_t k = 0; k < num_in; ++k) {
    typename V::Vector weights[P * C];
    for (int p = 0; p < P; ++p) {
      for (int c = 0; c < C; ++c) {
        weights[p * C + c] = V::load(panel + p * panel_floats + c * V::kLanes);
      }
    }
    panel += C * V::kLanes;
    for (int r = 0; r < R; ++r) {
      const typename V::Vector value = V::broadcast(rows[r * row_stride + k]);
      for (int c = 0; c < P * C; ++c) {
        sums[r][c] = V::multiply_add(value, weights[c], sums[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      store_sums<V, C>(&sums[r][p * C], out + r * out_stride + p * C * V::kLanes,
                       p + 1 < P ? C * V::kLanes : width);
    }
  }
}

template <typename V, int R, int C>
void multiply_part(const MatmulPart& part) {
  constexpr std::int32_t kWidth = C * V::kLanes;
  const std::int64_t panel_floats = std::int64_t{kWidth} * part.num_in;
  const std::int32_t tiled_rows = part.num_rows - part.num_rows % R;
  for (std::int32_t panel = part.first_panel; panel < part.last_panel; ++panel) {
    const std::int32_t column = panel * kWidth;
    const std::int32_t rest = part.num_out - column;
    for (std::int32_t r = 0; r < tiled_rows; r += R) {
      multiply_tile<V, R, C, 1>(part.rows + r * part.row_stride, part.row_stride,
                                part.panels + panel * panel_floats, panel_floats, part.num_in,
                                part.out + r * part.out_stride + column, part.out_stride,
                                rest < kWidth ? rest : kWidth);
    }
  }
  for (std::int32_t r = tiled_rows; r < part.num_rows; ++r) {
    const float* const row = part.rows + r * part.row_stride;
    float* const out = part.out + r * part.out_stride;
    for (std::int32_t panel = part.first_panel; panel < part.last_panel;) {
      const float* const weights = part.panels + panel * panel_floats;
      const std::int32_t column = panel * kWidth;
      const bool pair = panel + 2 <= part.last_panel;
      const std::int32_t rest = part.num_out - column - (pair ? kWidth : 0);
      const std::int32_t width = rest < kWidth ? rest : kWidth;
      if (pair) {
        multiply_tile<V, 1, C, 2>(row, 0, weights, panel_floats, part.num_in, out + column, 0,
                                  width);
      } else {
        multiply_tile<V, 1, C, 1>(row, 0, weights, panel_floats, part.num_in, out + column, 0,
                                  width);
      }
      panel += pair ? 2 : 1;
    }
  }
}

}  // namespace
}  // namespace kvfolio::llama
