// SPDX-License-Identifier: Apache-2.0
#pragma once

// NpyWriter writes a float32 matrix, row by row, in NumPy's format 1.0, also into a pipe. The file
// appears when it is finished.

#include <cstdint>
#include <span>
#include <string>

#include "kvfolio/status.h"
#include "whole_file.h"

namespace kvfolio::tools {

class NpyWriter {
 public:
  static Result<NpyWriter> create(const std::string& path, std::int32_t num_columns);

  // Before the first row.
  void begin(std::int64_t num_rows);
  // Requires: one value for each column, and no more rows than there are to be.
  void row(std::span<const float> values);
  // After the last row.
  Status finish();

 private:
  NpyWriter(WholeFile file, std::int32_t num_columns);

  WholeFile file_;
  std::int32_t num_columns_;
  std::int64_t rows_left_ = 0;
};

}  // namespace kvfolio::tools
