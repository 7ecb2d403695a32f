// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every call of the system that the disk tier makes to reach a disk, except those that io_uring
// makes. Tests put a simulated disk here. Each returns what the system returns, with -errno instead
// of -1. Thread safety: any thread, at the same time.
//
// A directory is opened once, and its files are named within it. So a user who deletes it and
// makes another one at the same path has taken it from us, and we do not write to that one.

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvfolio::disk {

// Every member is pure except the destructor.
class DiskCalls {
 public:
  virtual ~DiskCalls() = default;

  virtual int make_directory(const std::string& path) noexcept = 0;  // mode 0700
  // A file of it; -ENOTDIR if the path leads to something else.
  virtual int open_directory(const std::string& path) noexcept = 0;
  // `flags` as openat(2); O_CLOEXEC is added. Files have mode 0600.
  virtual int open(int directory, const std::string& name, int flags) noexcept = 0;
  virtual int close(int file) noexcept = 0;
  virtual std::int64_t readv(int file, const iovec* parts, int count,
                             std::int64_t offset) noexcept = 0;
  virtual std::int64_t writev(int file, const iovec* parts, int count,
                              std::int64_t offset) noexcept = 0;
  // All that was written to the file is on the medium.
  virtual int sync(int file) noexcept = 0;
  // The names in the directory are.
  virtual int sync_directory(int directory) noexcept = 0;
  virtual int allocate(int file, std::int64_t bytes) noexcept = 0;
  // The file keeps its size, and a part of it takes no room any more. -EOPNOTSUPP where the file
  // system makes no holes.
  virtual int punch_hole(int file, std::int64_t offset, std::int64_t bytes) noexcept = 0;
  virtual int truncate(int file, std::int64_t bytes) noexcept = 0;
  // -EINVAL for what is no file, such as a pipe.
  virtual std::int64_t size(int file) noexcept = 0;
  virtual int unlink(int directory, const std::string& name) noexcept = 0;
  // -EEXIST if there is a `to`.
  virtual int rename(int directory, const std::string& from, const std::string& to) noexcept = 0;
  // Who owns the directory, and its permission bits.
  virtual int owner(int directory, std::uint32_t& user, std::uint32_t& mode) noexcept = 0;
  virtual int list(int directory, std::vector<std::string>& names) noexcept = 0;
  // An exclusive lock of the file or directory, which ends when it is closed; -EWOULDBLOCK if
  // another has it.
  virtual int lock(int file) noexcept = 0;
  // From now on the file's I/O goes through the page cache.
  virtual int make_buffered(int file) noexcept = 0;
  // The page cache may forget this part of the file.
  virtual int drop_cached(int file, std::int64_t offset, std::int64_t bytes) noexcept = 0;
};

// The system's. Never destroyed.
[[nodiscard]] DiskCalls& system_calls() noexcept;

// From the system's source of chance; where that is empty a number that follows from `otherwise`.
[[nodiscard]] std::uint64_t random_number(std::uint64_t otherwise) noexcept;

// "Input/output error" for -EIO.
[[nodiscard]] std::string error_text(std::int64_t result);

}  // namespace kvfolio::disk
