// SPDX-License-Identifier: Apache-2.0
#pragma once

// OpLog writes down every call of a manager that is not const, with what it was asked and what it
// answered. replay_log() (op_replay.h, in libkvfolio_tiers) makes the calls again, with a manager
// made as the first one was, and stops at the first that answers otherwise. So a failure in
// production becomes a file that reproduces it.
//
//   OpLog log(sink);           // any ByteSink, such as FileLog of op_replay.h
//   manager.record(&log);      // before its first call
//   ...
//   manager.record(nullptr);   // notes the number of calls and state_hash()
//   if (!log.status().ok()) ...
//
// The format, version 4, little-endian: a header (the version of the library, spec, options,
// whether there is storage); then for each call an opcode, the low byte of its number, the
// arguments as varints, and of the answer its code, one number of it (an id, a count) and a 32-bit
// hash of all of it. The header has a checksum, and so has each piece of calls that the sink was
// given: damage is reported with its place, and no call of a damaged piece is used. Logs of
// versions 1 to 3 are read too, and replayed by the rules of then; those of 1 have no checksums of
// calls. The two runs of a program that makes the same calls write equal files. The file has the
// tokens: anyone who may read it may read the prompts. Bytes of K and V are not, and a replay needs
// none.
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
#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio {

class KVCacheManager;  // manager.h

struct OpLogOptions {
  // True: the sink has the arguments of a call before the call is made, so also those of the one in
  // which the program dies. Costs a write() of the sink, or two, for each call.
  bool flush_each_call = false;
};

// Has no memory but its buffer, 16 KiB inside the object; longer arguments go to the sink in
// several pieces. An error of the sink ends the log: it is kept, and no answer of the manager
// changes. Thread safety: that of the manager. Outlives the recording, and the sink outlives it.
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
  // What is in the buffer, from `begin` on.
  void give(std::size_t begin) noexcept;

  ByteSink& sink_;
  OpLogOptions options_;
  Status status_;
  bool begun_ = false;
  std::uint32_t format_ = 0;  // 0: the newest
  std::uint64_t num_calls_ = 0;
  std::uint64_t given_ = 0;  // bytes, to the sink
  // Bytes of the piece in the buffer, without the header for which there is room at the front.
  std::size_t size_ = 0;
  std::array<std::byte, 16384> buffer_;
};

// For replay_log(), which stands in another library.
namespace detail {
// What KVCacheManager::create() makes of the options.
KVFOLIO_API Result<ManagerOptions> options_for_replay(const CacheSpec& spec,
                                                      const ManagerOptions& options);
// From now on run_copies() answers as if there were storage, and copies nothing.
KVFOLIO_API void imagine_storage(KVCacheManager& manager) noexcept;
// From now on calls answer by the rules of the libraries that wrote this format, so that a log has
// what they answered then. Below 4: an append behind undecided drafts is refused, commit() takes a
// step of whose plan a sequence left, and what a promise was spent on stays spent. 1: commit() and
// append() refuse no mistake of the host. Requires: the manager is new.
KVFOLIO_API void answer_as_in(KVCacheManager& manager, std::uint32_t format) noexcept;
// For tests: what the log records next is written in this format, 2 or 3. Requires: nothing was
// recorded.
KVFOLIO_API void write_format(OpLog& log, std::uint32_t format) noexcept;
}  // namespace detail

}  // namespace kvfolio
