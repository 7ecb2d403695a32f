// SPDX-License-Identifier: Apache-2.0
#include "instructions.h"

#ifdef __linux__
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#endif

namespace kvfolio::bench {

#ifdef __linux__
namespace {

std::optional<double> by_processor(const std::function<void()>& work) {
  perf_event_attr attributes{};
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  attributes.disabled = 1;
  const auto counter = static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
  if (counter < 0) return std::nullopt;
  ::ioctl(counter, PERF_EVENT_IOC_ENABLE, 0);
  work();
  ::ioctl(counter, PERF_EVENT_IOC_DISABLE, 0);
  std::uint64_t count = 0;
  const bool read = ::read(counter, &count, sizeof count) == sizeof count;
  ::close(counter);
  if (!read || count == 0) return std::nullopt;
  return static_cast<double>(count);
}

// True when the child stopped by `signal`.
bool stops(pid_t child, int signal) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == signal;
}

// The child stops itself before the work and after it. Two stops in a row take instructions too:
// `empty` measures them.
std::optional<double> by_steps(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child < 0) return std::nullopt;
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(1);
    ::raise(SIGSTOP);
    work();
    ::raise(SIGUSR1);
    ::_exit(0);
  }
  double steps = 0;
  bool ok = stops(child, SIGSTOP);
  while (ok) {
    int status = 0;
    ok = ::ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) == 0 &&
         ::waitpid(child, &status, 0) == child && WIFSTOPPED(status);
    if (!ok || WSTOPSIG(status) == SIGUSR1) break;
    ok = WSTOPSIG(status) == SIGTRAP;
    ++steps;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (!ok) return std::nullopt;
  return steps;
}

}  // namespace

std::optional<Instructions> instructions_of(const std::function<void()>& work) {
  if (const auto count = by_processor(work)) return Instructions{*count, "the processor"};
  const auto steps = by_steps(work);
  const auto empty = by_steps([] {});
  if (!steps || !empty) return std::nullopt;
  return Instructions{*steps - *empty, "single steps"};
}
#else
std::optional<Instructions> instructions_of(const std::function<void()>&) { return std::nullopt; }
#endif

}  // namespace kvfolio::bench
