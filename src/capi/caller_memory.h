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
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override;
  Status copy_batch(std::span<const CopyRun> runs) noexcept override;
  Status copy_in(std::span<const CopyRun> runs) noexcept override;
  Status copy_out(std::span<const CopyRun> runs) noexcept override;

 private:
  // What a function of the caller says of `num_runs` copies.
  static Status said(std::string_view function, std::size_t num_runs, std::int32_t code);

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

inline Status CallerMemory::said(std::string_view function, std::size_t num_runs,
                                 std::int32_t code) {
  if (code == KVFOLIO_OK) return {};
  const bool is_known = code > KVFOLIO_OK && code <= KVFOLIO_ERR_CORRUPT;
  return {is_known ? static_cast<ErrorCode>(code) : ErrorCode::kUnavailable,
          concat("the caller's ", function, "() of ", num_runs, " copies returned ", code)};
}

inline Status CallerMemory::copy(std::byte* dst, const std::byte* src,
                                 std::int64_t bytes) noexcept {
  return said("copy", 1, resource_.copy(resource_.context, dst, src, bytes));
}

static_assert(sizeof(CopyRun) == sizeof(kvfolio_copy_run) &&
              offsetof(CopyRun, src) == offsetof(kvfolio_copy_run, src) &&
              offsetof(CopyRun, bytes) == offsetof(kvfolio_copy_run, bytes));

inline const kvfolio_copy_run* runs_of(std::span<const CopyRun> runs) noexcept {
  return reinterpret_cast<const kvfolio_copy_run*>(runs.data());
}

inline Status CallerMemory::copy_batch(std::span<const CopyRun> runs) noexcept {
  if (resource_.copy_batch == nullptr) return MemoryResource::copy_batch(runs);
  const auto count = static_cast<std::int64_t>(runs.size());
  return said("copy_batch", runs.size(),
              resource_.copy_batch(resource_.context, runs_of(runs), count));
}

inline Status CallerMemory::copy_in(std::span<const CopyRun> runs) noexcept {
  if (resource_.copy_in == nullptr) return MemoryResource::copy_in(runs);
  const auto count = static_cast<std::int64_t>(runs.size());
  return said("copy_in", runs.size(), resource_.copy_in(resource_.context, runs_of(runs), count));
}

inline Status CallerMemory::copy_out(std::span<const CopyRun> runs) noexcept {
  if (resource_.copy_out == nullptr) return MemoryResource::copy_out(runs);
  const auto count = static_cast<std::int64_t>(runs.size());
  return said("copy_out", runs.size(), resource_.copy_out(resource_.context, runs_of(runs), count));
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
