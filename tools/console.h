// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the command writes to its user, and how it ends before its work is done.
//
// Ctrl-C (SIGINT) and SIGTERM end it with 130 and 143. Before that the files that are not complete
// are removed, a begun line of standard output is ended, and the progress line is taken away. A
// signal that comes during print() waits for its end, so standard output holds whole lines.
//
// A reader of standard output that goes away (`| head -n 1`) ends it without a word: it has what it
// wanted, so the exit code is 0, or 1 if a check has failed by then.
//
// Thread safety: one thread calls these; the others take no signals (ThreadPool blocks them).

#include <csignal>
#include <string_view>

namespace kvfolio::tools {

// From here on signals end the command as said above. Call it first.
void handle_signals();

// To standard output, at once. If that fails the command ends here: as said above, or with exit
// code 2 and a message.
void print(std::string_view text);

// A check has failed: see above.
void note_failure();

// A message to standard error, with its line end.
void report(std::string_view message);

// The line at the bottom of a terminal; nothing elsewhere. The next call of any of these functions
// replaces it. Empty: takes it away.
void show_progress(std::string_view text);

// SIGINT and SIGTERM wait as long as this lives.
class SignalsWait {
 public:
  SignalsWait();
  ~SignalsWait();
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_;
};

// A file that an early end removes. `path` stays as it is until forget_unfinished(path). At most 4.
void remember_unfinished(const char* path);
void forget_unfinished(const char* path);

}  // namespace kvfolio::tools
