// SPDX-License-Identifier: Apache-2.0
#pragma once

// The operation log of a manager, in a file.

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "kvfolio/byte_sink.h"
#include "kvfolio/op_log.h"
#include "kvfolio/status.h"

namespace kvfolio::python {

// A file that grows from its beginning, mode 0600, as FileLog of op_log_file.h, which is in another
// library.
class OpLogFile final : public ByteSink {
 public:
  // Replaces what was there with the first write(). kUnavailable, with the path and why.
  static Result<std::unique_ptr<OpLogFile>> create(const std::string& path, bool flush_each_call);
  OpLogFile(const OpLogFile&) = delete;
  OpLogFile& operator=(const OpLogFile&) = delete;
  ~OpLogFile() override;

  // kUnavailable in a child of fork(), too: the file is the parent's.
  Status write(std::span<const std::byte> bytes) override;
  [[nodiscard]] OpLog& log() { return log_; }

 private:
  OpLogFile(int file, std::string path, bool flush_each_call)
      : file_(file), path_(std::move(path)), log_(*this, {.flush_each_call = flush_each_call}) {}

  int file_;
  std::string path_;
  pid_t process_ = ::getpid();
  bool replaced_ = false;
  OpLog log_;  // ends first: it writes what it has
};

}  // namespace kvfolio::python
