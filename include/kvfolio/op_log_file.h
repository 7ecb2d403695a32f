// SPDX-License-Identifier: Apache-2.0
#pragma once

// An operation log (op_log.h) in a file, and its calls for people. op_replay.h makes them again.
//
// A file is not trusted: its numbers are bounded before memory is taken. Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvfolio/byte_sink.h"
#include "kvfolio/export.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

// A file that grows from its beginning, mode 0600. What was written is there if the program dies.
class FileLog final : public ByteSink {
 public:
  // Replaces what was there. kUnavailable, with the path and what the system says, or that another
  // FileLog writes the file.
  KVFOLIO_API static Result<FileLog> create(const std::string& path);
  KVFOLIO_API FileLog(FileLog&& other) noexcept;
  FileLog& operator=(FileLog&&) = delete;
  KVFOLIO_API ~FileLog() override;
  // kUnavailable: such as no space left.
  KVFOLIO_API Status write(std::span<const std::byte> bytes) override;

 private:
  FileLog(int file, std::string path) noexcept;
  int file_ = -1;
  std::string path_;
};

// What a log says first.
struct OpLogHeader {
  std::uint32_t format = 0;
  std::string library{};  // its version
  CacheSpec spec{};
  ManagerOptions options{};
  bool has_storage = false;
};

// One call of a log, for people.
struct LoggedCall {
  std::uint64_t number = 0;
  std::string name{};       // "append"
  std::string arguments{};  // "sequence 3.1, [5, 6, 7], draft 0"
  std::string answer{};     // "ok, 4"; empty: the log ends with the arguments of this call
};

// How a log ends.
struct OpLogEnd {
  std::uint64_t num_calls = 0;
  bool ended = false;  // by record(nullptr); false: the program went on, or died
  std::optional<std::uint64_t> state_hash{};
  // The recorded hash is one of this version of the library, so a replay ends with the same one.
  bool hash_is_ours = false;
  // The bytes of a last piece that is not all there: its write was cut. Nothing of it is believed.
  std::int64_t bytes_cut = 0;
};

// Reads the calls of a log, one after the other. Takes no more memory than the longest call has in
// the file, times a small number.
class OpLogReader {
 public:
  // kCorrupt: not a log, or its header is damaged; kUnsupported: a later version of the format.
  KVFOLIO_API static Result<OpLogReader> open(ByteSource& source);
  KVFOLIO_API OpLogReader(OpLogReader&&) noexcept;
  OpLogReader& operator=(OpLogReader&&) = delete;
  KVFOLIO_API ~OpLogReader();
  [[nodiscard]] KVFOLIO_API const OpLogHeader& header() const noexcept;
  // The next call; nullopt at the end. kCorrupt: a piece is damaged, what stands there is no call,
  // or one is missing before it (says which and where).
  KVFOLIO_API Result<std::optional<LoggedCall>> next();
  // What the log says of the calls so far.
  [[nodiscard]] KVFOLIO_API const OpLogEnd& end() const noexcept;

 private:
  class Impl;
  explicit OpLogReader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio
