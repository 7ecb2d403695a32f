// SPDX-License-Identifier: Apache-2.0
#pragma once

// The version, in one place: CMakeLists.txt reads these three lines. Before 1.0 a new minor version
// may change the interface. Thread safety: values.

#include "kvfolio/export.h"

#define KVFOLIO_VERSION_MAJOR 0
#define KVFOLIO_VERSION_MINOR 1
#define KVFOLIO_VERSION_PATCH 0

// For #if: KVFOLIO_VERSION >= KVFOLIO_MAKE_VERSION(0, 2, 0). Requires: minor and patch below 1000.
#define KVFOLIO_MAKE_VERSION(major, minor, patch) ((major)*1000000 + (minor)*1000 + (patch))
#define KVFOLIO_VERSION \
  KVFOLIO_MAKE_VERSION(KVFOLIO_VERSION_MAJOR, KVFOLIO_VERSION_MINOR, KVFOLIO_VERSION_PATCH)

namespace kvfolio {

// The version of the library that the program runs with, as "0.1.0". The macros are of the headers
// that it was compiled with; a shared library may be another version.
[[nodiscard]] KVFOLIO_API const char* version() noexcept;

}  // namespace kvfolio
