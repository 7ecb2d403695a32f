// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the command writes to its user, and how it ends before its work is done.
//
// Ctrl-C (SIGINT) ends it with 130, SIGTERM with 143, and the other signals that would end a
// program (SIGHUP, SIGQUIT, SIGXCPU, ...) with 128 and their number; SIGHUP does nothing under
// nohup. Before that the files that are not complete are removed, a begun line of standard output
// is ended, and the progress line is taken away. A signal that comes during print() or inside a
// SignalsWait waits for its end, so standard output holds whole lines; but no longer than a second,
// since the reader may not read. A second signal does not wait.
//
// A reader of standard output that goes away (`| head -n 1`) ends it without a word: it has what it
// wanted, so the exit code is 0, or 1 if a check has failed by then. Where files are asked for too,
// the work goes on without printing. A file that may not grow
// (ulimit -f) is an error of the write.
//
// No control character but line ends and tabs gets through print(), report() and show_progress().
//
// Thread safety: one thread calls these; signals may come to any.

#include <csignal>
#include <string>
#include <string_view>

namespace kvfolio::tools {

// Descriptors 0 to 2 that are closed become /dev/null: otherwise the next file that is opened gets
// the number, and messages go into it. Call it first.
void open_standard_descriptors();
// From here on signals end the command as said above. Call it next.
void handle_signals();

// To standard output, at once. If that fails the command ends here: as said above, or with exit
// code 2 and a message.
void print(std::string_view text);

// Files are asked for: see above.
void outlive_the_reader();

// A check has failed: see above.
void note_failure();

// A message to standard error, with its line end.
void report(std::string_view message);

// The line at the bottom of a terminal; nothing elsewhere. The next call of any of these functions
// replaces it. Empty: takes it away.
void show_progress(std::string_view text);

// While one lives a signal waits, as said above: around what would leave something half done. At
// most one.
class SignalsWait {
 public:
  SignalsWait() noexcept;
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;
  ~SignalsWait();  // does not return if a signal came
};

// A file that an early end removes, if it is there; "": none. At most 4 live at a time.
class Unfinished {
 public:
  explicit Unfinished(std::string path);
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished();

 private:
  const std::string path_;
};

}  // namespace kvfolio::tools
