// SPDX-License-Identifier: Apache-2.0
#pragma once

// How many instructions of this program a piece of work takes: a number that no neighbour on the
// machine changes.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace kvfolio::bench {

struct Instructions {
  double count = 0;
  std::string counted_by;  // "the processor" or "single steps"
};

// Asks the processor's counter; where the system does not let us (virtual machines, containers),
// lets the kernel step through the work in a copy of this process, at some microseconds an
// instruction. `work` may run in that copy: what it changes is not to be relied on afterwards.
// Nothing when neither is allowed.
[[nodiscard]] std::optional<Instructions> instructions_of(const std::function<void()>& work);
inline constexpr const char* kUncounted = "neither perf events nor ptrace are allowed here";

}  // namespace kvfolio::bench
