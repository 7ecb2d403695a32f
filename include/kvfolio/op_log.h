// SPDX-License-Identifier: Apache-2.0
#pragma once

// OpLog writes down every call of a manager that is not const, with what it was asked and what it
// answered. replay_log() makes the calls again, with a manager made as the first one was, and stops
// at the first that answers otherwise. So a failure in production becomes a file that reproduces
// it.
//
//   FileLog file = *FileLog::create("calls.oplog");
//   OpLog log(file);
//   manager.record(&log);      // before its first call
//   ...
//   manager.record(nullptr);   // notes the number of calls and state_hash()
//   if (!log.status().ok()) ...
//
// The format, version 1, little-endian: a header (the version of the library, spec, options,
// whether there is storage); then for each call an opcode, the low byte of its number, the
// arguments as varints, and of the answer its code, one number of it (an id, a count) and a 32-bit
// hash of all of it. The two runs of a program that makes the same calls write equal files. Tokens
// are in the file: who may read it may read the prompts. Bytes of K and V are not, and a replay
// needs none.
//
// Numbers of calls begin with 1.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kvfolio/byte_sink.h"
#include "kvfolio/export.h"
#include "kvfolio/manager.h"
#include "kvfolio/status.h"

namespace kvfolio {

// A file that grows from its beginning, mode 0600. What was written is there if the program dies.
class FileLog final : public ByteSink {
 public:
  // Replaces what was there. kUnavailable, with the path and what the system says.
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

struct OpLogOptions {
  // True: the sink has the arguments of a call before the call is made, so also those of the one in
  // which the program dies. Costs a write() of the sink, or two, for each call.
  bool flush_each_call = false;
};

// Has no memory but its buffer, 16 KiB inside the object; longer arguments go to the sink in
// pieces. An error of the sink ends the log: it is kept, and no answer of the manager changes.
// Thread safety: that of the manager. Outlives the recording, and the sink outlives it.
class KVFOLIO_API OpLog {
 public:
  explicit OpLog(ByteSink& sink, const OpLogOptions& options = {}) noexcept
      : sink_(sink), options_(options) {}
  OpLog(const OpLog&) = delete;
  OpLog& operator=(const OpLog&) = delete;
  // As flush().
  ~OpLog();

  // Gives the sink all that was recorded.
  Status flush() noexcept;
  // The first error of the sink, or why the log ended before the calls did. kFailedPrecondition:
  // the manager had been used before record(), copy_to() gave it another state, or the log has
  // calls of another manager.
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] std::uint64_t num_calls() const noexcept { return num_calls_; }

 private:
  friend class OpWriter;
  void write(const std::byte* bytes, std::size_t size) noexcept;
  void stop(Status why) noexcept;

  ByteSink& sink_;
  OpLogOptions options_;
  Status status_;
  bool begun_ = false;
  std::uint64_t num_calls_ = 0;
  std::size_t size_ = 0;
  std::array<std::byte, 16384> buffer_;
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
};

// Reads the calls of a log, one after the other. Takes no more memory than the longest call has in
// the file, times a small number.
class OpLogReader {
 public:
  // kCorrupt: not a log, or its header is damaged; kUnsupported: another version of the format.
  KVFOLIO_API static Result<OpLogReader> open(ByteSource& source);
  KVFOLIO_API OpLogReader(OpLogReader&&) noexcept;
  OpLogReader& operator=(OpLogReader&&) = delete;
  KVFOLIO_API ~OpLogReader();
  [[nodiscard]] KVFOLIO_API const OpLogHeader& header() const noexcept;
  // The next call; nullopt at the end. kCorrupt: what stands there is no call, or one is missing
  // before it (says which and where).
  KVFOLIO_API Result<std::optional<LoggedCall>> next();
  // Of the calls so far.
  [[nodiscard]] KVFOLIO_API const OpLogEnd& end() const noexcept;

 private:
  class Impl;
  explicit OpLogReader(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

struct ReplayOptions {
  // A log that would need more, by a rough bound, is refused: it may come from anywhere.
  std::int64_t max_memory_bytes = std::int64_t{8} << 30;
};

// The first call that answers otherwise.
struct ReplayDifference {
  std::uint64_t call = 0;
  std::string name{};
  std::string arguments{};
  std::string recorded{};
  std::string replayed{};
};

struct Replay {
  KVCacheManager manager;  // as the log leaves it; at a difference, behind that call
  OpLogEnd log{};          // as far as it was read
  std::optional<ReplayDifference> difference{};
  // A call of which the log has the arguments and no answer: it was made, and this is what it said.
  std::optional<LoggedCall> unanswered{};
  // Why the log could not be read to its end, such as a call that is missing.
  Status broken{};
};

// The manager has no storage; run_copies() answers as if it had, if the recorded one had. An error:
// as OpLogReader::open(); kResourceExhausted: max_memory_bytes; or what create() says.
KVFOLIO_API Result<Replay> replay_log(ByteSource& source, const ReplayOptions& options = {});

}  // namespace kvfolio
