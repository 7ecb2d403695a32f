// SPDX-License-Identifier: Apache-2.0
#pragma once

// Process remembers which process made an object. In a child of fork() the object is a copy that
// has none of the threads, and whose rings, sockets and locks are its parent's: there it may close
// descriptors and free memory, and no more. Thread safety: any thread.

#include <unistd.h>

#include "base/mutants.h"

namespace kvfolio {

class Process {
 public:
  // True in the process that made it; it costs a call of the system that does not wait.
  [[nodiscard]] bool is_this() const noexcept {
    return id_ == ::getpid() || mutant(Mutant::kChildSpeaksToTiers);
  }

 private:
  ::pid_t id_ = ::getpid();
};

}  // namespace kvfolio
