// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the families of the C interface share: the handles, errors, and structs that carry their
// size. Translation only: nothing here decides anything about a cache. A handle owns the C++ object
// behind it. Thread safety: that of the object.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "kvfolio/kernels.h"
#include "kvfolio/kvfolio.h"
#include "kvfolio/manager.h"
#include "kvfolio/op_log.h"
#include "kvfolio/storage.h"
#include "kvfolio/token_store.h"

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

// An OpLog and what it writes to.
struct RecordedCalls {
  RecordedCalls(std::unique_ptr<ByteSink> to, const OpLogOptions& options)
      : sink(std::move(to)), log(*sink, options) {}
  std::unique_ptr<ByteSink> sink;
  OpLog log;
};

}  // namespace kvfolio::capi

// ---- handles -----------------------------------------------------------------------------------

struct kvfolio_storage {
  std::unique_ptr<kvfolio::capi::CallerMemory> resource;
  std::optional<kvfolio::KVStorage> own;  // none: it belongs to a manager
  kvfolio::KVStorage* storage = nullptr;
};

struct kvfolio_view {
  kvfolio::KVView view;
};

struct kvfolio_manager {
  std::shared_ptr<kvfolio::capi::RecordedCalls> log;      // null: none; outlives the manager
  std::unique_ptr<kvfolio::capi::CallerMemory> resource;  // of the storage
  kvfolio::KVCacheManager manager;
  kvfolio_storage storage;
  // So that no call takes heap memory.
  kvfolio::FixedArray<kvfolio_ended> ended;
  kvfolio::FixedArray<kvfolio::AppendDemand> demands;
};

struct kvfolio_op_log {
  std::shared_ptr<kvfolio::capi::RecordedCalls> calls;
};

struct kvfolio_root {
  std::array<std::string, 4> bytes;
  kvfolio::RootKey key;
};

struct kvfolio_token_store {
  std::shared_ptr<kvfolio::capi::CallerMemory> resource;  // its copies share it
  kvfolio::TokenStore store;
};

namespace kvfolio::capi {

using text::concat;

// ---- errors ------------------------------------------------------------------------------------

// Writes the error, if there is one, and returns its code.
std::int32_t answer(kvfolio_error* error, const Status& status);

inline Status null_argument(std::string_view call, std::string_view name) {
  return {ErrorCode::kInvalidArgument, concat(call, ": ", name, " is null")};
}

#define KVFOLIO_C_NEEDS(pointer)                                                                 \
  do {                                                                                           \
    if ((pointer) == nullptr) {                                                                  \
      return ::kvfolio::capi::answer(error, ::kvfolio::capi::null_argument(__func__, #pointer)); \
    }                                                                                            \
  } while (false)

#define KVFOLIO_C_RETURN_IF_ERROR(expression)                                      \
  do {                                                                             \
    if (::kvfolio::Status kvfolio_status_ = (expression); !kvfolio_status_.ok()) { \
      return ::kvfolio::capi::answer(error, kvfolio_status_);                      \
    }                                                                              \
  } while (false)

// ---- arrays ------------------------------------------------------------------------------------

// A count that comes from outside is checked before a span is made of it.
Status check_array(std::string_view call, std::string_view name, const void* data,
                   std::int64_t size);

template <typename T>
std::span<T> span_of(T* data, std::int64_t size) noexcept {
  return {data, static_cast<std::size_t>(size)};
}

// Ids are the same 64 bits in both languages.
inline std::span<const SequenceId> ids_of(const kvfolio_sequence* ids, std::int64_t size) noexcept {
  static_assert(sizeof(SequenceId) == sizeof(kvfolio_sequence));
  return {reinterpret_cast<const SequenceId*>(ids), static_cast<std::size_t>(size)};
}

inline kvfolio_i32s array_of(std::span<const std::int32_t> array) noexcept {
  return {array.data(), static_cast<std::int64_t>(array.size())};
}

// ---- structs that carry their size -------------------------------------------------------------

inline constexpr std::uint32_t kMostStructBytes = 4096;

Status check_struct_size(std::string_view call, std::string_view name, std::uint32_t size,
                         std::size_t size_here);

// What the caller has of a T; the rest is 0. Null is all 0.
template <typename T>
Status read_struct(std::string_view call, std::string_view name, const T* theirs, T& ours) {
  std::memset(&ours, 0, sizeof(T));
  if (theirs == nullptr) return {};
  std::uint32_t size = 0;
  std::memcpy(&size, theirs, sizeof(size));
  KVFOLIO_RETURN_IF_ERROR(check_struct_size(call, name, size, sizeof(T)));
  std::memcpy(&ours, theirs, std::min(std::size_t{size}, sizeof(T)));
  return {};
}

// Fills what the caller has room for, and sets what the library does not know to 0. Requires:
// check_struct_size() of theirs->struct_size.
template <typename T>
void write_struct(T* theirs, T ours) noexcept {
  std::uint32_t size = 0;
  std::memcpy(&size, theirs, sizeof(size));
  ours.struct_size = size;
  std::memcpy(theirs, &ours, std::min(std::size_t{size}, sizeof(T)));
  if (size > sizeof(T)) {
    std::memset(reinterpret_cast<std::byte*>(theirs) + sizeof(T), 0, size - sizeof(T));
  }
}
template <typename T>
Status check_out(std::string_view call, std::string_view name, const T* out) {
  if (out == nullptr) return null_argument(call, name);
  std::uint32_t size = 0;
  std::memcpy(&size, out, sizeof(size));
  return check_struct_size(call, name, size, sizeof(T));
}

// Arrays of structs: all have the size of the first.
template <typename T>
T* element(T* first, std::int64_t i) noexcept {
  std::uint32_t size = 0;
  std::memcpy(&size, first, sizeof(size));
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(first) + i * std::int64_t{size});
}
template <typename T>
Status check_elements(std::string_view call, std::string_view name, const T* first,
                      std::int64_t count) {
  KVFOLIO_RETURN_IF_ERROR(check_array(call, name, first, count));
  for (std::int64_t i = 0; i < count; ++i) {
    const T* const at = element(first, i);
    std::uint32_t size = 0;
    std::uint32_t size_of_first = 0;
    std::memcpy(&size_of_first, first, sizeof(size));
    if (i == 0) {
      KVFOLIO_RETURN_IF_ERROR(check_struct_size(call, name, size_of_first, sizeof(T)));
    }
    std::memcpy(&size, at, sizeof(size));
    if (size == size_of_first) continue;
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, "[", i, "].struct_size is ", size, ", that of ", name,
                   "[0] is ", size_of_first, "; all are equal")};
  }
  return {};
}

// ---- numbers that mean something ---------------------------------------------------------------

// An enumerator whose numbers are those of the C header.
template <typename E>
Status read_enum(std::string_view call, std::string_view name, std::int32_t value,
                 std::int32_t last, E& out) {
  if (value < 0 || value > last) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, " is ", value, ", allowed: 0 to ", last)};
  }
  out = static_cast<E>(value);
  return {};
}

// 0 is the default type; others are one more than in C++.
Status read_dtype(std::string_view call, std::string_view name, std::int32_t value,
                  DType default_type, DType& out);
inline std::int32_t dtype_of(DType dtype) noexcept { return static_cast<std::int32_t>(dtype) + 1; }
Status read_target(std::string_view call, std::int32_t value, KernelTarget& out);
inline std::int32_t target_of(KernelTarget target) noexcept {
  return static_cast<std::int32_t>(target) + 1;
}
// Where 0 is the default and -1 stands for 0.
template <typename T>
T or_default(T value, T default_value) noexcept {
  return value == T{0} ? default_value : value == T{-1} ? T{0} : value;
}

Status read_groups(std::string_view call, const kvfolio_group_spec* groups, std::int32_t num_groups,
                   CacheSpec& out);
kvfolio_group_spec group_of(const GroupSpec& group) noexcept;
Status read_resource(std::string_view call, const kvfolio_memory_resource* resource,
                     std::unique_ptr<CallerMemory>& out);
Status read_rows(std::string_view call, std::string_view name, const void* data,
                 const kvfolio_rows* rows, ConstRowsView& out);
Status read_rows(std::string_view call, std::string_view name, void* data, const kvfolio_rows* rows,
                 RowsView& out);
Status read_executor(std::string_view call, const kvfolio_executor* executor, Executor& out);

// What the calls about a prompt take. The media spans live as long as this.
struct Prompt {
  std::span<const std::int32_t> tokens;
  OpenOptions options;
  std::vector<MediaSpan> media;
};
Status read_prompt(std::string_view call, const kvfolio_root* root, const std::int32_t* tokens,
                   std::int64_t num_tokens, const kvfolio_media_span* media, std::int64_t num_media,
                   const kvfolio_open_options* options, Prompt& out);

// The sequences that a call ended, in the handle's own array.
std::int32_t give_ended(kvfolio_manager& manager, std::span<const EndedSequence> from,
                        const kvfolio_ended** ended, std::int64_t* num_ended) noexcept;

inline Status no_memory(std::string_view call) {
  return {ErrorCode::kOutOfMemory, concat(call, ": no memory for the handle")};
}

}  // namespace kvfolio::capi
