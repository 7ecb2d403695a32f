// SPDX-License-Identifier: Apache-2.0
#pragma once

// WholeFile is a file that appears when it is complete. Until finish() it has a name of its own in
// the same folder, ".kvfolio.*.part", so a run that fails or is interrupted leaves nothing behind,
// what stood under the name stays, two runs on one name do not mix, and a link that waits under the
// name of the part is not followed. A part is locked while its run lives; the next WholeFile in the
// folder removes those that a kill left: at once, or after a day if they may be of another host
// that shares the folder and whose locks are not seen here. What is no regular file (/dev/null, a
// pipe) is written as it is; a pipe is waited for until it has a reader. Thread safety: none.

#include <memory>
#include <string>
#include <string_view>

#include "kvfolio/status.h"

namespace kvfolio::tools {

class WholeFile {
 public:
  // A symbolic link is followed, also one that leads to no file yet. kInvalidArgument: it cannot be
  // written, and why.
  static Result<WholeFile> create(const std::string& path);

  WholeFile(WholeFile&&) noexcept;
  WholeFile& operator=(WholeFile&&) noexcept;
  ~WholeFile();

  // Behind what was written before. An error waits for finish().
  void write(std::string_view bytes);
  // After the last byte. kInvalidArgument: a write failed.
  Status finish();

 private:
  struct State;
  explicit WholeFile(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace kvfolio::tools
