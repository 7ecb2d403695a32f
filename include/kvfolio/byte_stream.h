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

// A file that appears whole or not at all: it is written beside its place, under a name of its own
// and with mode 0600, and moved there by commit().
class FileSink final : public ByteSink {
 public:
  // kUnavailable, with the path and what the system says: no such folder, read-only, a directory.
  KVFOLIO_API static Result<FileSink> create(const std::string& path);
  KVFOLIO_API FileSink(FileSink&& other) noexcept;
  FileSink& operator=(FileSink&&) = delete;
  // Without commit() nothing is left.
  KVFOLIO_API ~FileSink() override;

  // kUnavailable: such as no space left.
  KVFOLIO_API Status write(std::span<const std::byte> bytes) override;
  // Everything is on the medium, under its name, replacing what was there.
  KVFOLIO_API Status commit();

 private:
  FileSink(int file, std::string path, std::string temporary) noexcept;
  int file_ = -1;
  std::string path_, temporary_;
};

class FileSource final : public ByteSource {
 public:
  // kUnavailable: it cannot be opened, or is no regular file.
  KVFOLIO_API static Result<FileSource> open(const std::string& path);
  KVFOLIO_API FileSource(FileSource&& other) noexcept;
  FileSource& operator=(FileSource&&) = delete;
  KVFOLIO_API ~FileSource() override;

  [[nodiscard]] KVFOLIO_API std::int64_t size() const override;
  // kUnavailable: also if the file has become shorter.
  KVFOLIO_API Status read_at(std::int64_t offset, std::span<std::byte> out) override;

 private:
  FileSource(int file, std::int64_t size, std::string path) noexcept;
  int file_ = -1;
  std::int64_t size_ = 0;
  std::string path_;
};

}  // namespace kvfolio
