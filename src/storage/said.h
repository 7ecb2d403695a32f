// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a MemoryResource says of a copy, as callers of KVStorage hear it.

#include <string_view>

#include "base/mutants.h"
#include "base/text.h"
#include "kvfolio/status.h"

namespace kvfolio::storage {

// `what`: the call. A resource may fail with any code. Callers tell only kUnsupported, after which
// nothing was copied, from the others: so none takes a failure of memory for an answer about its
// own state. Requires: !copied.ok().
[[nodiscard]] inline Status failed(std::string_view what, const Status& copied) {
  if (copied.code() == ErrorCode::kUnsupported) {
    return {ErrorCode::kUnsupported, text::concat(what, ": ", copied.message())};
  }
  return {ErrorCode::kUnavailable,
          text::concat(what, ": the memory resource failed (",
                       std::string_view(to_string(copied.code())), "): ", copied.message())};
}

// Of MemoryResource::submit(), which may be called again where it is kFailedPrecondition.
[[nodiscard]] inline Status not_begun(std::string_view what, const Status& refused) {
  if (refused.code() != ErrorCode::kFailedPrecondition) return failed(what, refused);
  return {ErrorCode::kFailedPrecondition, text::concat(what, ": ", refused.message())};
}

[[nodiscard]] inline Status said(std::string_view what, const Status& copied) {
  return copied.ok() || mutant(Mutant::kCopyFailureIgnored) ? Status() : failed(what, copied);
}

}  // namespace kvfolio::storage
