// SPDX-License-Identifier: Apache-2.0
#pragma once

// What to do with an operation log (op_log.h): keep it in a file, print its calls, make them again.
//
//   FileLog file = *FileLog::create("calls.oplog");
//   OpLog log(file);
//   manager.record(&log);
//   ... later, anywhere:
//   auto source = FileSource::open("calls.oplog");
//   Result<Replay> replay = replay_log(*source);   // replay->difference: the first other answer
//
// A file is not trusted: its numbers are bounded before memory is taken. Thread safety: none.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kvfolio/byte_sink.h"
#include "kvfolio/export.h"
#include "kvfolio/manager.h"
#include "kvfolio/op_log.h"
#include "kvfolio/op_log_file.h"
#include "kvfolio/status.h"

namespace kvfolio {

struct ReplayOptions {
  // The manager and the arrays of all its plans. A log that would need more, by a rough bound, is
  // refused, at its header or at the plan that would go beyond it (Replay::broken): it may come
  // from anywhere.
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
  // A call whose arguments the log has, but not its answer: the replay made it, and got this
  // answer.
  std::optional<LoggedCall> unanswered{};
  // Why the log could not be read to its end, such as a call that is missing.
  Status broken{};
};

// The manager has no storage; run_copies() answers as if it had, if the recorded one had. An error:
// as OpLogReader::open(); kResourceExhausted: max_memory_bytes; or what create() says.
KVFOLIO_API Result<Replay> replay_log(ByteSource& source, const ReplayOptions& options = {});

}  // namespace kvfolio
