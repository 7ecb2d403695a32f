// SPDX-License-Identifier: Apache-2.0
#pragma once

// What RLIMIT_FSIZE does to a write of this thread. Thread safety: any thread.

#include <pthread.h>

#include <csignal>
#include <ctime>

namespace kvfolio {

// While it lives, a write beyond RLIMIT_FSIZE is EFBIG in this thread and ends nothing. A signal
// that was blocked or pending before stays so.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() noexcept {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGXFSZ) == 1;
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~NoFileSizeSignal() {
    const timespec at_once{};
    if (!was_pending_) {
      while (::sigtimedwait(&signal_, nullptr, &at_once) == SIGXFSZ) {
      }
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t signal_{}, before_{};
  bool was_pending_ = false;
};

}  // namespace kvfolio
