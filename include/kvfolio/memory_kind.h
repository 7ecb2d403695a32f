// SPDX-License-Identifier: Apache-2.0
#pragma once

// Who may touch memory: a MemoryResource says it of its own memory, a KVView of the cache that it
// shows. Knows no memory itself. Thread safety: values.

#include <cstdint>

#include "kvfolio/export.h"

namespace kvfolio {

enum class MemoryKind : std::int32_t {
  kHost = 0,    // the CPU may read and write it
  kDevice = 1,  // only the resource itself may touch it
};

[[nodiscard]] constexpr const char* to_string(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kDevice:
      return "device";
  }
  return "invalid";
}

}  // namespace kvfolio
