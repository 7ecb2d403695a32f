// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of the caller's own making. Inline: both libraries use it. Thread safety: that of the
// caller's functions.

#include <memory>

#include "capi/c_structs.h"
#include "kvfolio/memory.h"

namespace kvfolio::capi {

// Calls the functions of a kvfolio_memory_resource.
class CallerMemory final : public MemoryResource {
 public:
  explicit CallerMemory(const kvfolio_memory_resource& resource) noexcept : resource_(resource) {}
  [[nodiscard]] MemoryKind kind() const noexcept override;
  Result<std::byte*> allocate(std::int64_t bytes) override;
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override;
  void copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override;
  void copy_batch(std::span<const CopyRun> runs) noexcept override;
  [[nodiscard]] bool copy_in(std::span<const CopyRun> runs) noexcept override;
  [[nodiscard]] bool copy_out(std::span<const CopyRun> runs) noexcept override;

 private:
  kvfolio_memory_resource resource_;
};

static_assert(static_cast<int>(MemoryKind::kHost) == KVFOLIO_HOST &&
              static_cast<int>(MemoryKind::kDevice) == KVFOLIO_DEVICE);

inline MemoryKind CallerMemory::kind() const noexcept {
  return static_cast<MemoryKind>(resource_.kind);
}

inline Result<std::byte*> CallerMemory::allocate(std::int64_t bytes) {
  void* const memory = resource_.allocate(resource_.context, bytes);
  if (memory != nullptr) return static_cast<std::byte*>(memory);
  return Status(ErrorCode::kOutOfMemory, concat("the caller's resource has no ", bytes, " bytes"));
}

inline void CallerMemory::deallocate(std::byte* memory, std::int64_t bytes) noexcept {
  resource_.deallocate(resource_.context, memory, bytes);
}

inline void CallerMemory::copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept {
  resource_.copy(resource_.context, dst, src, bytes);
}

static_assert(sizeof(CopyRun) == sizeof(kvfolio_copy_run) &&
              offsetof(CopyRun, src) == offsetof(kvfolio_copy_run, src) &&
              offsetof(CopyRun, bytes) == offsetof(kvfolio_copy_run, bytes));

inline const kvfolio_copy_run* runs_of(std::span<const CopyRun> runs) noexcept {
  return reinterpret_cast<const kvfolio_copy_run*>(runs.data());
}

inline void CallerMemory::copy_batch(std::span<const CopyRun> runs) noexcept {
  if (resource_.copy_batch == nullptr) return MemoryResource::copy_batch(runs);
  resource_.copy_batch(resource_.context, runs_of(runs), static_cast<std::int64_t>(runs.size()));
}

inline bool CallerMemory::copy_in(std::span<const CopyRun> runs) noexcept {
  if (resource_.copy_in == nullptr) return MemoryResource::copy_in(runs);
  const auto count = static_cast<std::int64_t>(runs.size());
  return resource_.copy_in(resource_.context, runs_of(runs), count) == 0;
}

inline bool CallerMemory::copy_out(std::span<const CopyRun> runs) noexcept {
  if (resource_.copy_out == nullptr) return MemoryResource::copy_out(runs);
  const auto count = static_cast<std::int64_t>(runs.size());
  return resource_.copy_out(resource_.context, runs_of(runs), count) == 0;
}

// Null stays null.
inline Status read_resource(std::string_view call, const kvfolio_memory_resource* resource,
                            std::unique_ptr<CallerMemory>& out) {
  if (resource == nullptr) return {};
  kvfolio_memory_resource ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "resource", resource, ours));
  MemoryKind kind{};
  KVFOLIO_RETURN_IF_ERROR(read_enum(call, "resource->kind", ours.kind, KVFOLIO_DEVICE, kind));
  if (ours.allocate == nullptr) return null_argument(call, "resource->allocate");
  if (ours.deallocate == nullptr) return null_argument(call, "resource->deallocate");
  if (ours.copy == nullptr) return null_argument(call, "resource->copy");
  out.reset(new (std::nothrow) CallerMemory(ours));
  return out ? Status() : no_memory(call);
}

}  // namespace kvfolio::capi
