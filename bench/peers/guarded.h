// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the functions of a peer's library do with exceptions: Python gets -1 and a text. Each
// library includes this in one source. Thread safety: none.

#include <cstdint>
#include <cstdio>
#include <exception>

namespace kvfolio::bench {
namespace {

char last_error[1024];  // of the last call; empty if it did not fail

template <typename Call>
std::int32_t guarded(Call&& call) noexcept {
  try {
    last_error[0] = '\0';
    call();
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(last_error, sizeof last_error, "%s", error.what());
  }
  return -1;
}

}  // namespace
}  // namespace kvfolio::bench
