// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a directory has, found out before anything is served from it. A sealed segment says it in
// its footer; of any other the headers are read one behind the other, up to the first that is not
// the next of this segment. A segment whose own header is damaged has its epoch from its footer, or
// from its first record. Thread safety: none. Waits for the disk.

#include <cstdint>
#include <string>
#include <vector>

#include "disk/directory.h"
#include "disk/format.h"

namespace kvfolio::disk {

struct FoundSegment {
  std::uint64_t number = 0;
  std::uint64_t epoch = 0;
  int file = -1;
  bool direct = false;
  bool has_header = false;      // its own header is right
  bool sealed = false;          // it has a footer, which is right
  std::int64_t read_error = 0;  // -errno: a part could not be read, so entries may not be all
  std::int64_t bytes = 0;       // of the file
  std::int64_t used = 0;        // behind the last record
  std::int64_t tombstones = 0;  // that were passed; a footer names none
  std::vector<FooterEntry> entries{};
};

struct FindOptions {
  bool direct = true;
  bool writes = true;         // opens the files to be written
  bool remove_empty = false;  // removes files that were never written further than their header
};

// The segments, oldest first; whoever takes them closes their files. A file of which nothing is
// ours is left alone, and one that could not be read is never removed here. kFailedPrecondition:
// one is of a newer version. kUnavailable: one cannot be opened or removed.
Result<std::vector<FoundSegment>> find_segments(DiskCalls& calls, const Directory& directory,
                                                const FindOptions& options);

}  // namespace kvfolio::disk
