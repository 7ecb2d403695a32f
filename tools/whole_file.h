// SPDX-License-Identifier: Apache-2.0
#pragma once

// What an option of the command writes: a regular file appears when it is complete, as a FileSink
// does (kvfolio/byte_stream.h), so a run that fails or is interrupted leaves what stood under the
// name, and two runs on one name do not mix. What is no regular file (/dev/null, a pipe) is written
// as it is; a pipe is waited for until it has a reader. Thread safety: none.

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
