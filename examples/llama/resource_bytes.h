// SPDX-License-Identifier: Apache-2.0
#pragma once

// ResourceBytes is an array of bytes in the memory of a resource, given back at its end.
//
// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kvfolio/memory.h"
#include "kvfolio/status.h"

namespace kvfolio::llama {

class ResourceBytes {
 public:
  ResourceBytes() = default;
  // Its contents are not set. `resource` outlives it; no bytes need no memory.
  static Result<ResourceBytes> create(MemoryResource& resource, std::int64_t bytes) {
    ResourceBytes made;
    if (bytes == 0) return made;
    const Result<std::byte*> memory = resource.allocate(bytes);
    if (!memory) return memory.error();
    made.resource_ = &resource;
    made.data_ = *memory;
    made.size_ = bytes;
    return made;
  }
  ResourceBytes(ResourceBytes&& other) noexcept { swap(other); }
  ResourceBytes& operator=(ResourceBytes&& other) noexcept {
    ResourceBytes old(std::move(other));
    swap(old);
    return *this;
  }
  ResourceBytes(const ResourceBytes&) = delete;
  ResourceBytes& operator=(const ResourceBytes&) = delete;
  ~ResourceBytes() {
    if (data_ != nullptr) resource_->deallocate(data_, size_);
  }

  // Another array of the same bytes.
  [[nodiscard]] Result<ResourceBytes> copy() const {
    if (data_ == nullptr) return ResourceBytes();
    Result<ResourceBytes> made = create(*resource_, size_);
    if (!made) return made;
    KVFOLIO_RETURN_IF_ERROR(resource_->copy(made->data_, data_, size_));
    return made;
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }

 private:
  void swap(ResourceBytes& other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  MemoryResource* resource_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace kvfolio::llama
