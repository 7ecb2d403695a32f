// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a directory has, found out before anything is served from it. A sealed segment says it in
// its footer; of any other the headers are read one behind the other, up to the first that is not
// the next of this segment. A segment whose own header is damaged has its epoch from its footer, or
// from its first record. Thread safety: none. Waits for the disk.

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "disk/directory.h"
#include "disk/format.h"

namespace kvfolio::disk {

struct FoundSegment {
  std::uint64_t name = 0;    // the number in its name
  std::uint64_t number = 0;  // its own: of its header, else that of its name
  std::uint64_t epoch = 0;
  int file = -1;
  bool direct = false;
  bool has_header = false;      // its own header is right
  std::uint16_t version = 0;    // of it
  bool sealed = false;          // it has a footer, which is right
  bool is_empty = false;        // it was never written further than its header
  std::int64_t read_error = 0;  // -errno: a part could not be read, so entries may not be all
  std::int64_t bytes = 0;       // of the file
  std::int64_t used = 0;        // behind the last record
  std::int64_t tombstones = 0;  // that were passed; a footer names none
  std::vector<FooterEntry> entries{};
};

struct FindOptions {
  bool direct = true;
  bool writes = true;  // opens the files to be written
  // The process has no descriptor more: false if none of the files that were kept can be closed.
  std::function<bool()> make_room{};
};

// Takes what was found, one after the other in the order of their names, and may keep its file: one
// that is left there is closed. Files are opened one at a time.
using TakeSegment = std::function<Status(FoundSegment&)>;
// A file of our names that is none of ours. It is left alone.
using TakeForeign = std::function<void(std::string_view name, std::string_view what)>;

// What take() returned first that is not ok. A file that could not be read is taken as it is.
// kFailedPrecondition: one is of a newer version. kUnavailable: one cannot be opened.
Status find_segments(DiskCalls& calls, const Directory& directory, const FindOptions& options,
                     const TakeSegment& take, const TakeForeign& take_foreign);

}  // namespace kvfolio::disk
