// SPDX-License-Identifier: Apache-2.0
#pragma once

// WholeFile is a file that appears when it is complete. Until finish() it has another name (its own
// and ".part"), so a run that fails or is interrupted leaves nothing behind, and what stood under
// the name stays. What is no regular file (/dev/null, a pipe) is written as it is.

#include <memory>
#include <ostream>
#include <string>

#include "kvfolio/status.h"

namespace kvfolio::tools {

class WholeFile {
 public:
  // kInvalidArgument: it cannot be written.
  static Result<WholeFile> create(const std::string& path);

  WholeFile(WholeFile&&) noexcept;
  WholeFile& operator=(WholeFile&&) noexcept;
  ~WholeFile();

  [[nodiscard]] std::ostream& stream();
  // After the last byte. kInvalidArgument: a write failed.
  Status finish();

 private:
  struct State;
  explicit WholeFile(std::unique_ptr<State> state) noexcept;

  std::unique_ptr<State> state_;
};

}  // namespace kvfolio::tools
