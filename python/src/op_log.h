// SPDX-License-Identifier: Apache-2.0
#pragma once

// The operation log of a manager, in a file.

#include <memory>
#include <string>

#include "kvfolio/byte_sink.h"
#include "kvfolio/op_log.h"
#include "kvfolio/status.h"

namespace kvfolio::python {

// A file that grows from its beginning, mode 0600, as FileLog of op_replay.h, which is in another
// library.
class OpLogFile final : public ByteSink {
 public:
  // Replaces what was there. kUnavailable, with the path and why.
  static Result<std::unique_ptr<OpLogFile>> create(const std::string& path, bool flush_each_call);
  OpLogFile(const OpLogFile&) = delete;
  OpLogFile& operator=(const OpLogFile&) = delete;
  ~OpLogFile() override;

  Status write(std::span<const std::byte> bytes) override;
  [[nodiscard]] OpLog& log() { return log_; }

 private:
  OpLogFile(int file, std::string path, bool flush_each_call)
      : file_(file), path_(std::move(path)), log_(*this, {.flush_each_call = flush_each_call}) {}

  int file_;
  std::string path_;
  OpLog log_;  // ends first: it writes what it has
};

}  // namespace kvfolio::python
