// SPDX-License-Identifier: Apache-2.0
#pragma once

// NpyWriter writes a float32 matrix of unknown height, row by row, in NumPy's format 1.0. The
// header is written last, in room kept at the front. The file appears when it is finished.

#include <cstdint>
#include <span>
#include <string>

#include "kvfolio/status.h"
#include "whole_file.h"

namespace kvfolio::tools {

class NpyWriter {
 public:
  static Result<NpyWriter> create(const std::string& path, std::int32_t num_columns);

  void row(std::span<const float> values);
  // After the last row.
  Status finish();

 private:
  NpyWriter(WholeFile file, std::int32_t num_columns);

  WholeFile file_;
  std::int32_t num_columns_;
  std::int64_t num_rows_ = 0;
};

}  // namespace kvfolio::tools
