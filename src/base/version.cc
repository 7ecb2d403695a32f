// SPDX-License-Identifier: Apache-2.0

// The version as text, made of the macros.

#include "kvfolio/version.h"

#define KVFOLIO_TEXT_OF(x) #x
#define KVFOLIO_TEXT(x) KVFOLIO_TEXT_OF(x)

namespace kvfolio {

const char* version() noexcept {
  return KVFOLIO_TEXT(KVFOLIO_VERSION_MAJOR) "." KVFOLIO_TEXT(
      KVFOLIO_VERSION_MINOR) "." KVFOLIO_TEXT(KVFOLIO_VERSION_PATCH);
}

}  // namespace kvfolio
