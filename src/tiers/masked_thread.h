// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads of the library take no signals: whatever the host's handlers do belongs to the host's
// threads, and SIGXFSZ or SIGPIPE of a call of ours would end the process. Thread safety: any
// thread.

#include <pthread.h>

#include <csignal>

namespace kvfolio {

// As pthread_create(), for a thread in which every signal is blocked.
inline int create_masked_thread(pthread_t& thread, void* (*main)(void*), void* argument) noexcept {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = ::pthread_create(&thread, nullptr, main, argument);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

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
