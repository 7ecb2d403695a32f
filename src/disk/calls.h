// SPDX-License-Identifier: Apache-2.0
#pragma once

// Every call of the system that the disk tier makes to reach a disk, except those that io_uring
// makes. Tests put a simulated disk here. Each returns what the system returns, with -errno instead
// of -1. Thread safety: any thread, at the same time.

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kvfolio::disk {

// Every member is pure except the destructor.
class DiskCalls {
 public:
  virtual ~DiskCalls() = default;

  // `flags` as open(2); O_CLOEXEC is added. Files have mode 0600.
  virtual int open(const std::string& path, int flags) noexcept = 0;
  virtual int close(int file) noexcept = 0;
  virtual std::int64_t readv(int file, const iovec* parts, int count,
                             std::int64_t offset) noexcept = 0;
  virtual std::int64_t writev(int file, const iovec* parts, int count,
                              std::int64_t offset) noexcept = 0;
  // All that was written to the file is on the medium.
  virtual int sync(int file) noexcept = 0;
  // The names in the directory are.
  virtual int sync_directory(const std::string& path) noexcept = 0;
  virtual int allocate(int file, std::int64_t bytes) noexcept = 0;
  virtual int truncate(int file, std::int64_t bytes) noexcept = 0;
  virtual std::int64_t size(int file) noexcept = 0;
  virtual int unlink(const std::string& path) noexcept = 0;
  virtual int rename(const std::string& from, const std::string& to) noexcept = 0;
  virtual int make_directory(const std::string& path) noexcept = 0;  // mode 0700
  // Who owns the directory, and its permission bits.
  virtual int owner(const std::string& path, std::uint32_t& user, std::uint32_t& mode) noexcept = 0;
  virtual int list(const std::string& path, std::vector<std::string>& names) noexcept = 0;
  // An exclusive lock of the file, which ends when the file is closed; -EWOULDBLOCK if another has
  // it.
  virtual int lock(int file) noexcept = 0;
  // From now on the file's I/O goes through the page cache.
  virtual int make_buffered(int file) noexcept = 0;
  // The page cache may forget this part of the file.
  virtual int drop_cached(int file, std::int64_t offset, std::int64_t bytes) noexcept = 0;
};

// The system's. Never destroyed.
[[nodiscard]] DiskCalls& system_calls() noexcept;

// "Input/output error" for -EIO.
[[nodiscard]] std::string error_text(std::int64_t result);

}  // namespace kvfolio::disk
