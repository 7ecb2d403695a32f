// SPDX-License-Identifier: Apache-2.0

// The handler of a signal does all that an early end needs, and leaves by _exit(): a verb need not
// ask between its steps whether somebody wants it to stop, and a step may take minutes. So it calls
// only what a handler may call, and reads only lock-free atomics.

#include "console.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <initializer_list>
#include <string>
#include <system_error>

#include "kvfolio/status.h"

namespace kvfolio::tools {
namespace {

constexpr std::initializer_list<int> kSignals = {SIGINT, SIGTERM};

std::atomic<bool> has_terminal = false;  // standard error is one
std::atomic<bool> shows_progress = false;
std::atomic<bool> has_failed = false;
std::atomic<bool> inside_a_line = false;  // of standard output
std::array<std::atomic<const char*>, 4> unfinished_files = {};
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

constexpr std::string_view kEraseLine = "\r\x1b[K";

void write_unbuffered(int file, std::string_view text) {
  // Nothing can be done here about a write that fails.
  [[maybe_unused]] const auto written = ::write(file, text.data(), text.size());
}

[[noreturn]] void end_early(int exit_code) {
  for (const std::atomic<const char*>& path : unfinished_files) {
    if (path != nullptr) ::unlink(path);
  }
  ::_exit(exit_code);
}

extern "C" void kvfolio_on_signal(int signal) {
  if (inside_a_line) write_unbuffered(STDOUT_FILENO, "\n");
  if (has_terminal) write_unbuffered(STDERR_FILENO, kEraseLine);  // the "^C" of a terminal too
  write_unbuffered(STDERR_FILENO,
                   signal == SIGINT ? "kvfolio: interrupted\n" : "kvfolio: terminated\n");
  end_early(128 + signal);
}

// The errno of what failed, or 0.
int write_all(std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

sigset_t handled() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : kSignals) ::sigaddset(&signals, signal);
  return signals;
}

}  // namespace

void handle_signals() {
  has_terminal = ::isatty(STDERR_FILENO) != 0;
  struct sigaction action = {};
  action.sa_handler = kvfolio_on_signal;
  action.sa_mask = handled();
  action.sa_flags = SA_RESTART;
  for (const int signal : kSignals) ::sigaction(signal, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // print() sees the error of the write
}

void print(std::string_view text) {
  if (text.empty()) return;
  show_progress("");
  int error = 0;
  {
    // Ctrl-C in a pipeline goes to the reader too. When that is gone, the signal waits here, and
    // its exit code comes first.
    const SignalsWait wait;
    inside_a_line = text.back() != '\n';
    error = write_all(text);
  }
  if (error == 0) return;
  if (error != EPIPE) {
    report("kvfolio: standard output cannot be written: " +
           std::error_code(error, std::generic_category()).message());
  }
  end_early(error != EPIPE ? 2 : has_failed ? 1 : 0);
}

void note_failure() { has_failed = true; }

void report(std::string_view message) {
  show_progress("");
  write_unbuffered(STDERR_FILENO, std::string(message) + "\n");
}

void show_progress(std::string_view text) {
  if (!has_terminal || (text.empty() && !shows_progress)) return;
  shows_progress = !text.empty();
  write_unbuffered(STDERR_FILENO, std::string(kEraseLine) + std::string(text));
}

SignalsWait::SignalsWait() {
  const sigset_t signals = handled();
  ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
}

SignalsWait::~SignalsWait() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void remember_unfinished(const char* path) {
  const auto takes = [&](std::atomic<const char*>& place) {
    const char* none = nullptr;
    return place.compare_exchange_strong(none, path);
  };
  const bool kept = std::any_of(unfinished_files.begin(), unfinished_files.end(), takes);
  KVFOLIO_CHECK(kept);
}

void forget_unfinished(const char* path) {
  for (std::atomic<const char*>& place : unfinished_files) {
    const char* expected = path;
    if (place.compare_exchange_strong(expected, nullptr)) return;
  }
}

}  // namespace kvfolio::tools
