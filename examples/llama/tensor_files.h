// SPDX-License-Identifier: Apache-2.0
#pragma once

// TensorFiles: the tensors of a checkpoint folder, in model.safetensors or in the shards that
// model.safetensors.index.json names. It knows files, names, types and shapes; no model.
//
// The folder is not trusted. Headers are read and checked whole before any tensor is. Nothing is
// allocated in proportion to a number in a header; weights are read with pread in pieces, so a file
// that shrinks meanwhile is an error and not a signal.
//
// Thread safety: const calls may run concurrently.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvfolio/status.h"
#include "safetensors.h"

namespace kvfolio::llama {

class TensorFiles {
 public:
  static Result<TensorFiles> open(const std::string& folder);

  [[nodiscard]] const std::unordered_map<std::string, TensorInfo>& tensors() const noexcept {
    return tensors_;
  }
  // What messages call the place of a tensor that should be there.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

  // Refuses, by tensor name, a missing tensor, another shape, and a type that read() cannot
  // convert. Callers check all they will read before they allocate for it.
  Status check(const std::string& tensor, std::span<const std::int64_t> shape) const;
  // Reads a matrix (or a vector, as one row) of F32, F16 or BF16 and calls row(r, values) for each
  // of its rows in order, converted to f32. Refuses what check() does, and a value that is not
  // finite.
  Status read(const std::string& tensor, std::span<const std::int64_t> shape,
              const std::function<void(std::int32_t, const float*)>& row) const;

 private:
  [[nodiscard]] std::string place_of(const std::string& tensor, const TensorInfo& info) const;
  Status add_file(const std::string& path);
  Status add_shards(const std::string& folder, const std::string& index_path);

  std::string name_;
  std::vector<std::string> paths_;
  std::unordered_map<std::string, TensorInfo> tensors_;
};

}  // namespace kvfolio::llama
