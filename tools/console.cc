// SPDX-License-Identifier: Apache-2.0

// The handler of a signal does all that an early end needs, and leaves by _exit(): a verb need not
// ask between its steps whether it is to stop, and a step may take minutes. So it calls only what a
// handler may call, and reads only lock-free atomics. It never waits for a reader: what it says
// goes out if there is room, and SIGALRM ends what takes longer than a second after all.

#include "console.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <initializer_list>
#include <string>
#include <system_error>
#include <utility>

#include "kvfolio/status.h"
#include "printable_text.h"

namespace kvfolio::tools {
namespace {

// What ends a program and is no fault of it. SIGALRM is ours.
constexpr std::initializer_list<int> kSignals = {SIGINT,  SIGTERM, SIGHUP,    SIGQUIT, SIGXCPU,
                                                 SIGUSR1, SIGUSR2, SIGVTALRM, SIGPROF, SIGIO};
constexpr unsigned kPatienceS = 1;

std::atomic<bool> has_terminal = false;  // standard error is one
std::atomic<bool> shows_progress = false;
std::atomic<bool> has_failed = false;
std::atomic<bool> outlives_the_reader = false;
std::atomic<bool> has_no_reader = false;
std::atomic<bool> inside_a_line = false;  // of standard output
std::atomic<bool> signals_wait = false;
pthread_t main_thread = {};         // before the first signal
std::atomic<int> first_signal = 0;  // that came
std::array<std::atomic<const char*>, 4> unfinished_files = {};
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

constexpr std::string_view kEraseLine = "\r\x1b[K";

// All of it, or the errno of what failed. A descriptor that does not block is waited for.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(file, text.data(), text.size());
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    if (written >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    pollfd room = {.fd = file, .events = POLLOUT, .revents = 0};
    ::poll(&room, 1, -1);
  }
  return 0;
}

// At the end: nothing where there is no room for a while, as a reader that is slow may need.
void write_if_there_is_room(int file, std::string_view text) {
  constexpr int kWhileMs = 250;  // three of these are less than the patience of the alarm
  pollfd room = {.fd = file, .events = POLLOUT, .revents = 0};
  if (::poll(&room, 1, kWhileMs) != 1) return;
  [[maybe_unused]] const auto written = ::write(file, text.data(), text.size());
}

[[noreturn]] void end_early(int exit_code) {
  for (const std::atomic<const char*>& path : unfinished_files) {
    if (path != nullptr) ::unlink(path);
  }
  ::_exit(exit_code);
}

[[noreturn]] void end_by_signal(int signal) {
  if (inside_a_line) write_if_there_is_room(STDOUT_FILENO, "\n");
  // The "^C" of a terminal too.
  if (has_terminal) write_if_there_is_room(STDERR_FILENO, kEraseLine);
  std::string_view said = "kvfolio: ended by a signal\n";
  if (signal == SIGINT) said = "kvfolio: interrupted\n";
  if (signal == SIGTERM) said = "kvfolio: terminated\n";
  if (signal == SIGHUP) said = "kvfolio: its terminal is gone\n";
  if (signal == SIGXCPU) said = "kvfolio: its processor time is used up (ulimit -t)\n";
  write_if_there_is_room(STDERR_FILENO, said);
  end_early(128 + signal);
}

// The main thread alone acts on signals: beside one that ends the program here, it would go on.
bool goes_to_main_thread(int signal) {
  if (::pthread_equal(::pthread_self(), main_thread) != 0) return false;
  ::pthread_kill(main_thread, signal);
  return true;
}

extern "C" void kvfolio_on_signal(int signal) {
  if (goes_to_main_thread(signal)) return;
  int none = 0;
  const bool is_first = first_signal.compare_exchange_strong(none, signal);
  ::alarm(kPatienceS);
  if (is_first && signals_wait) return;  // ~SignalsWait ends it, or the alarm
  end_by_signal(is_first ? signal : none);
}

extern "C" void kvfolio_on_alarm(int signal) {
  if (goes_to_main_thread(signal)) return;
  const int first = first_signal;
  if (first == 0) end_by_signal(signal);  // it is of another
  end_early(128 + first);
}

}  // namespace

void open_standard_descriptors() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest number that is free is this one.
    if (::fcntl(file, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDWR);
  }
}

void handle_signals() {
  has_terminal = ::isatty(STDERR_FILENO) != 0;
  main_thread = ::pthread_self();
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : kSignals) ::sigaddset(&signals, signal);
  struct sigaction action = {};
  action.sa_handler = kvfolio_on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : kSignals) {
    struct sigaction inherited = {};
    ::sigaction(signal, nullptr, &inherited);
    if (signal == SIGHUP && inherited.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
  }
  action.sa_handler = kvfolio_on_alarm;
  action.sa_mask = signals;
  ::sigaction(SIGALRM, &action, nullptr);
  ::sigaddset(&signals, SIGALRM);
  ::sigprocmask(SIG_UNBLOCK, &signals, nullptr);  // a parent may have blocked them
  std::signal(SIGPIPE, SIG_IGN);                  // print() sees the error of the write
  std::signal(SIGXFSZ, SIG_IGN);                  // so does who writes the file
}

SignalsWait::SignalsWait() noexcept { signals_wait = true; }
SignalsWait::~SignalsWait() {
  signals_wait = false;
  if (first_signal != 0) end_by_signal(first_signal);
}

void print(std::string_view text) {
  if (text.empty() || has_no_reader) return;
  show_progress("");
  const std::string shown = printable_text(text);
  int error = 0;
  {
    // Ctrl-C in a pipeline goes to the reader too. When that is gone, the signal has waited here,
    // and its exit code comes first.
    const SignalsWait whole_lines;
    inside_a_line = true;
    error = write_all(STDOUT_FILENO, shown);
    if (error == 0) inside_a_line = shown.back() != '\n';
  }
  if (error == 0) return;
  if (error == EPIPE && outlives_the_reader) {
    has_no_reader = true;
    inside_a_line = false;
    return;
  }
  if (error != EPIPE) {
    report("kvfolio: standard output cannot be written: " +
           std::error_code(error, std::generic_category()).message());
  }
  end_early(error != EPIPE ? 2 : has_failed ? 1 : 0);
}

void outlive_the_reader() { outlives_the_reader = true; }

void note_failure() { has_failed = true; }

// Nothing can be done here about a write that fails.
void report(std::string_view message) {
  show_progress("");
  write_all(STDERR_FILENO, printable_text(message) + "\n");
}

void show_progress(std::string_view text) {
  if (!has_terminal || (text.empty() && !shows_progress)) return;
  shows_progress = !text.empty();
  write_all(STDERR_FILENO, std::string(kEraseLine) + printable_text(text));
}

Unfinished::Unfinished(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  const bool kept = std::any_of(unfinished_files.begin(), unfinished_files.end(), [&](auto& place) {
    const char* none = nullptr;
    return place.compare_exchange_strong(none, path_.c_str());
  });
  KVFOLIO_CHECK(kept);
}

Unfinished::~Unfinished() {
  for (std::atomic<const char*>& place : unfinished_files) {
    const char* expected = path_.c_str();
    if (place.compare_exchange_strong(expected, nullptr)) return;
  }
}

}  // namespace kvfolio::tools
