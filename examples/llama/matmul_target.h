// SPDX-License-Identifier: Apache-2.0
#pragma once

// Between matmul.cc and the targets' source files. Nothing here may have code of its own: each
// target is compiled with other processor flags.

#include <cstdint>

namespace kvfolio::llama {

// A range of panels for all rows. See PackedMatrix for the layout.
struct MatmulPart {
  const float* panels;  // the whole matrix
  std::int32_t first_panel;
  std::int32_t last_panel;  // behind the last one
  std::int32_t num_in;
  std::int32_t num_out;
  const float* rows;
  std::int64_t row_stride;
  std::int32_t num_rows;
  float* out;
  std::int64_t out_stride;
};

struct MatmulTargetCode {
  std::int32_t panel_width;  // output columns
  std::int32_t tile_rows;
  void (*multiply)(const MatmulPart& part);
};

extern const MatmulTargetCode kMatmulBaseline;
extern const MatmulTargetCode kMatmulAvx2;
extern const MatmulTargetCode kMatmulAvx512;

}  // namespace kvfolio::llama
