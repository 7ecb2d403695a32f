// SPDX-License-Identifier: Apache-2.0
#pragma once

// SharedResource counts the stores that use one caller's resource; the last one deletes it. Unlike
// std::shared_ptr it takes its memory without exceptions. Null: memory of the process. Thread
// safety: copies and ends may happen on several threads at a time.

#include <atomic>
#include <memory>
#include <string_view>

#include "kvfolio/status.h"

namespace kvfolio::capi {

class CallerMemory;

class SharedResource {
 public:
  SharedResource() = default;
  SharedResource(const SharedResource& other) noexcept;
  SharedResource& operator=(const SharedResource&) = delete;
  ~SharedResource();

  // Takes the resource over, which may be null. kOutOfMemory: the caller keeps it. Requires: this
  // has none.
  Status take(std::string_view call, std::unique_ptr<CallerMemory>& memory);
  [[nodiscard]] CallerMemory* get() const noexcept;

 private:
  struct Counted;
  Counted* counted_ = nullptr;
};

}  // namespace kvfolio::capi
