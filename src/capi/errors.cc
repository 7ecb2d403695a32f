// SPDX-License-Identifier: Apache-2.0
//
// Codes, the caller's kvfolio_error, versions, and the checks that all families share.

#include "capi/capi.h"
#include "kvfolio/version.h"

namespace kvfolio::capi {

// The numbers of codes are the same in both languages.
static_assert(static_cast<int>(ErrorCode::kInvalidArgument) == KVFOLIO_ERR_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::kNotFound) == KVFOLIO_ERR_NOT_FOUND);
static_assert(static_cast<int>(ErrorCode::kFailedPrecondition) == KVFOLIO_ERR_FAILED_PRECONDITION);
static_assert(static_cast<int>(ErrorCode::kNoBlocks) == KVFOLIO_ERR_NO_BLOCKS);
static_assert(static_cast<int>(ErrorCode::kResourceExhausted) == KVFOLIO_ERR_RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(ErrorCode::kAborted) == KVFOLIO_ERR_ABORTED);
static_assert(static_cast<int>(ErrorCode::kOutOfMemory) == KVFOLIO_ERR_OUT_OF_MEMORY);
static_assert(static_cast<int>(ErrorCode::kUnsupported) == KVFOLIO_ERR_UNSUPPORTED);
static_assert(static_cast<int>(ErrorCode::kUnavailable) == KVFOLIO_ERR_UNAVAILABLE);
static_assert(static_cast<int>(ErrorCode::kTimedOut) == KVFOLIO_ERR_TIMED_OUT);
static_assert(static_cast<int>(ErrorCode::kCorrupt) == KVFOLIO_ERR_CORRUPT);

namespace {

kvfolio_shortage shortage_of(const Status& status) noexcept {
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
  return out;
}

}  // namespace

// The shortage is the last field, so that it can grow; a caller that left its size at 0 has that of
// the whole struct.
std::int32_t answer(kvfolio_error* error, const Status& status) {
  const auto code = static_cast<std::int32_t>(status.code());
  if (status.ok() || error == nullptr) return code;
  constexpr std::size_t kShortageAt = offsetof(kvfolio_error, shortage);
  const std::uint32_t size = std::min(error->struct_size, kMostStructBytes);
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
  if (said < sizeof(said) || said > room) said = static_cast<std::uint32_t>(room);
  error->shortage.struct_size = said;
  write_struct(&error->shortage, shortage_of(status));
  return code;
}

Status check_array(std::string_view call, std::string_view name, const void* data,
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

Status check_struct_size(std::string_view call, std::string_view name, std::uint32_t size,
                         std::size_t size_here) {
  if (size >= sizeof(size) && size <= kMostStructBytes) return {};
  return {ErrorCode::kInvalidArgument,
          concat(call, ": ", name, "->struct_size is ", size, ", allowed: 4 to ", kMostStructBytes,
                 "; set it to sizeof the struct, which is ", size_here, " here")};
}

}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

uint32_t kvfolio_abi_version(void) { return KVFOLIO_ABI_VERSION; }

const char* kvfolio_version(void) { return version(); }

const char* kvfolio_code_name(int32_t code) {
  if (code < 0 || code > KVFOLIO_ERR_CORRUPT) return "invalid";
  return to_string(static_cast<ErrorCode>(code));
}

}  // extern "C"
