// SPDX-License-Identifier: Apache-2.0
#pragma once

// The header of a safetensors file: names, types, shapes and places of its tensors. Pure text work.
// A header is right or refused whole: types of the format, shapes without overflow, offsets that
// follow each other without gap or overlap up to the end of the file.
//
// Thread safety: pure functions.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::llama {

struct TensorInfo {
  std::int32_t file = 0;            // index of its file
  std::string dtype;                // as the header spells it: "F32", "BF16", ...
  std::vector<std::int64_t> shape;  // outermost first
  std::int64_t begin = 0;           // byte offset in the file
  std::int64_t bytes = 0;
};

inline constexpr std::int64_t kLengthBytes = 8;  // the length of the header, where a file begins

// The header of one safetensors file: the JSON text behind its length. Offsets in
// the result count from the start of the file; `file_bytes` is the size of the whole file.
Result<std::vector<std::pair<std::string, TensorInfo>>> parse_safetensors_header(
    std::string_view header, std::int64_t file_bytes);

// "[3, 4]"
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace kvfolio::llama
