// SPDX-License-Identifier: Apache-2.0
#pragma once

// What all families of the C interfaces, kvfolio.h, kvfolio_tiers.h and kvfolio_cuda.h, share: the
// caller's error, arrays, and structs that carry their size. All functions are inline, since three
// libraries use them. Thread safety: free functions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/text.h"
#include "kvfolio/ids.h"
#include "kvfolio/kvfolio.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio::capi {

using text::concat;

// What functions of the caller return: 0, or a code.
inline Status status_of(std::int32_t code, std::string_view what) {
  if (code == KVFOLIO_OK) return {};
  const bool known = code > 0 && code <= KVFOLIO_ERR_CORRUPT && code != KVFOLIO_ERR_NO_BLOCKS;
  return {known ? static_cast<ErrorCode>(code) : ErrorCode::kUnavailable,
          concat("the caller's ", what, " returned ", code)};
}

inline Status null_argument(std::string_view call, std::string_view name) {
  return {ErrorCode::kInvalidArgument, concat(call, ": ", name, " is null")};
}

inline Status no_memory(std::string_view call) {
  return {ErrorCode::kOutOfMemory, concat(call, ": no memory for the handle")};
}

// ---- arrays ------------------------------------------------------------------------------------

// A count that comes from outside is checked before a span is made of it.
inline Status check_array(std::string_view call, std::string_view name, const void* data,
                          std::int64_t size) {
  if (size < 0 || size > kMaxSequenceTokens) {
    return {ErrorCode::kInvalidArgument, concat(call, ": ", name, " has ", size,
                                                " entries, allowed: 0 to ", kMaxSequenceTokens)};
  }
  if (data == nullptr && size > 0) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, " is null, and has ", size, " entries")};
  }
  return {};
}

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

inline Status check_struct_size(std::string_view call, std::string_view name, std::uint32_t size,
                                std::size_t size_here) {
  if (size >= sizeof(size) && size <= kMostStructBytes) return {};
  return {ErrorCode::kInvalidArgument,
          concat(call, ": ", name, "->struct_size is ", size, ", allowed: 4 to ", kMostStructBytes,
                 "; set it to sizeof the struct, which is ", size_here, " here")};
}

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

// ---- errors ------------------------------------------------------------------------------------

inline kvfolio_shortage shortage_of(const Status& status) noexcept {
  kvfolio_shortage out{};
  const Shortage* s = status.shortage();
  if (s == nullptr) return out;
  out.group = s->group;
  out.needed = s->needed;
  out.free = s->free;
  out.evictable = s->evictable;
  out.pinned = s->pinned;
  out.retiring = s->retiring;
  out.sequences = s->sequences;
  out.pins = s->pins;
  out.reserved = s->reserved;
  out.loads = s->loads;
  out.holds = s->holds;
  out.num_blocks = s->num_blocks;
  out.kept = s->kept;
  out.never = s->never() ? 1 : 0;
  return out;
}

// Writes the error, if there is one, and returns its code.
// The shortage is the last field, so that it can grow; a caller that left its size at 0 has what
// the struct has room for, but no more than the library knows.
inline std::int32_t answer(kvfolio_error* error, const Status& status) {
  const auto code = static_cast<std::int32_t>(status.code());
  if (status.ok() || error == nullptr) return code;
  constexpr std::size_t kShortageAt = offsetof(kvfolio_error, shortage);
  const std::uint32_t size = error->struct_size;
  // Nothing is known of a struct that was not initialised: it receives nothing.
  if (size > kMostStructBytes) return code;
  if (size >= offsetof(kvfolio_error, message)) error->code = code;
  if (size < kShortageAt) return code;
  const std::string message = status.message();
  constexpr std::size_t kMost = sizeof(error->message) - 1;
  const std::size_t length = std::min(message.size(), kMost);
  std::memset(error->message, 0, sizeof(error->message));
  std::memcpy(error->message, message.data(), length);
  if (message.size() > kMost) std::memcpy(error->message + kMost - 3, "...", 3);

  const std::size_t room = size - kShortageAt;
  if (room < sizeof(std::uint32_t)) return code;
  std::uint32_t said = error->shortage.struct_size;
  if (said < sizeof(said) || said > room) {
    said = static_cast<std::uint32_t>(std::min(room, sizeof(kvfolio_shortage)));
  }
  error->shortage.struct_size = said;
  write_struct(&error->shortage, shortage_of(status));
  return code;
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

// Where 0 is the default and -1 stands for 0.
template <typename T>
T or_default(T value, T default_value) noexcept {
  return value == T{0} ? default_value : value == T{-1} ? T{0} : value;
}

}  // namespace kvfolio::capi
