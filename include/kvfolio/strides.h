// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the rows of a cache lie: of a view of it (view.h), and of memory that an engine lends
// (storage.h). Thread safety: values.

#include <cstdint>

#include "kvfolio/export.h"

namespace kvfolio {

// Bytes between neighbours along each axis.
struct KVStrides {
  std::int64_t layer = 0;
  std::int64_t block = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;  // in format granule: from one tile of 16 tokens to the next
};

}  // namespace kvfolio
