// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/tier.h"

namespace kvfolio {

const char* to_string(TierResult result) noexcept {
  switch (result) {
    case TierResult::kOk:
      return "ok";
    case TierResult::kMiss:
      return "miss";
    case TierResult::kCorrupt:
      return "corrupt";
    case TierResult::kBusy:
      return "busy";
    case TierResult::kTimeout:
      return "timeout";
    case TierResult::kIoError:
      return "io_error";
    case TierResult::kUnavailable:
      return "unavailable";
    case TierResult::kClosed:
      return "closed";
  }
  return "invalid";
}

}  // namespace kvfolio
