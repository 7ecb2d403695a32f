// SPDX-License-Identifier: Apache-2.0
#pragma once

// What is in a snapshot, section by section, without a manager or an identity: for people who look
// at a file. restore() reads it for a manager. Thread safety: none.

#include <cstdint>
#include <functional>
#include <string>

#include "kvfolio/byte_sink.h"
#include "kvfolio/export.h"
#include "kvfolio/identity.h"
#include "kvfolio/record.h"
#include "kvfolio/status.h"

namespace kvfolio {

struct SnapshotSection {
  std::int64_t place = 0;  // in the file
  std::int64_t bytes = 0;  // of its body
  std::string type{};      // identity, root, tokens, record, sequence, end
  // Its checksum is not that of its bytes, nor its MAC if we have the key.
  bool damaged = false;
  // A record's block, as far as its header is sound.
  TierKey key{};
  std::int32_t group = 0;
  std::int32_t begin = 0;  // of the block's tokens
  std::int32_t end = 0;
  std::uint32_t key_id = 0;  // of the key that sealed it; 0: none
  // It was sealed with a key that is not given, or without one where a key is given: a miss
  // with these keys, and its bytes may be anyone's.
  bool unverified = false;
};

struct SnapshotList {
  std::int64_t sections = 0;
  std::int64_t damaged = 0;  // sections, and gaps between them
  std::int64_t unverified = 0;
  bool whole = false;  // it ends as it should
  // A hash of what the sections say, in order: two files with one hash bring back the same,
  // whatever sealed their records. What is damaged is left out. It proves nothing against those who
  // write the file.
  std::uint64_t state_hash = 0;
};

// Calls visit(section) for each, in order. kCorrupt: not a snapshot. kInvalidArgument:
// keys, as RecordKeys::create().
KVFOLIO_API Result<SnapshotList> list_snapshot(
    ByteSource& source, const std::function<void(const SnapshotSection&)>& visit,
    const RecordKeyOptions& keys = {});

}  // namespace kvfolio
