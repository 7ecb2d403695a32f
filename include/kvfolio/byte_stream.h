// SPDX-License-Identifier: Apache-2.0
#pragma once

// Files that a snapshot is written to and read from (byte_sink.h). No format is known here. Thread
// safety: none.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvfolio/byte_sink.h"
#include "kvfolio/export.h"
#include "kvfolio/status.h"

namespace kvfolio {

// A file that appears whole or not at all. It is written without a name (or, where the file system
// cannot do that or others may read it, under a hidden name in the same folder), with its mode from
// its first byte on, and takes its place in commit(). A program that is killed before leaves what
// was there, and at most a file with a hidden name (.kvfolio. and 16 digits). The next FileSink in
// the folder removes it: at once if it was left since this machine started, and after a day if it
// may be of another host that shares the folder and whose locks are not seen here.
class FileSink final : public ByteSink {
 public:
  // kUnavailable, with the path and what the system says: no such folder, a folder that is
  // read-only, or a path at which something lies that is not a regular file. A symbolic link is
  // refused, too: the file that it names would keep its old content. `mode` is the file's, without
  // what the process masks (umask); by default no other user may read it.
  KVFOLIO_API static Result<FileSink> create(const std::string& path, unsigned mode = 0600);
  KVFOLIO_API FileSink(FileSink&& other) noexcept;
  FileSink& operator=(FileSink&&) = delete;
  // Without commit() nothing is left.
  KVFOLIO_API ~FileSink() override;

  // kUnavailable: such as no space left. Then commit() is refused.
  KVFOLIO_API Status write(std::span<const std::byte> bytes) override;
  KVFOLIO_API Status write_pieces(std::span<const std::span<const std::byte>> pieces) override;
  // The file and its name are on the medium, in the place of what was there. kUnavailable: what was
  // there is still there, unless the message says that the new file is in place.
  // kFailedPrecondition: a write failed, or it was committed before.
  KVFOLIO_API Status commit();
  // Where it lies until commit(), for a program that a signal ends to remove it; "": it has no
  // name.
  [[nodiscard]] KVFOLIO_API std::string hidden_path() const;

 private:
  FileSink(int folder, std::string path) noexcept;
  Status take_name();

  int folder_ = -1;  // stays the same if the process changes its working directory
  int file_ = -1;
  std::string path_;
  std::string hidden_;  // the name in the folder that the file has; empty: it has none
  bool failed_ = false;
};

class FileSource final : public ByteSource {
 public:
  // kUnavailable: it cannot be opened, or is no regular file. A symbolic link is followed; pipes
  // and devices are not opened.
  KVFOLIO_API static Result<FileSource> open(const std::string& path);
  KVFOLIO_API FileSource(FileSource&& other) noexcept;
  FileSource& operator=(FileSource&&) = delete;
  KVFOLIO_API ~FileSource() override;

  [[nodiscard]] KVFOLIO_API std::int64_t size() const override;
  // kUnavailable: also if the file has become shorter.
  KVFOLIO_API Status read_at(std::int64_t offset, std::span<std::byte> out) override;
  KVFOLIO_API Status read_pieces_at(std::int64_t offset,
                                    std::span<const std::span<std::byte>> pieces) override;

 private:
  FileSource(int file, std::int64_t size, std::string path) noexcept;
  int file_ = -1;
  std::int64_t size_ = 0;
  std::string path_;
};

}  // namespace kvfolio
