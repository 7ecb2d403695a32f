// SPDX-License-Identifier: Apache-2.0
//
// Codes and versions.

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
