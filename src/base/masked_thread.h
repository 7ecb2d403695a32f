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

}  // namespace kvfolio
