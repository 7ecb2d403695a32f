// SPDX-License-Identifier: Apache-2.0
#pragma once

// Errors of open() that a closed file of our own may end, and that count for nothing against a
// disk.

#include <cerrno>
#include <cstdint>

namespace kvfolio::disk {

// The process or the system has no descriptor more. It says nothing of the disk.
[[nodiscard]] inline bool is_no_descriptor(std::int64_t error) {
  return error == -EMFILE || error == -ENFILE;
}

}  // namespace kvfolio::disk
