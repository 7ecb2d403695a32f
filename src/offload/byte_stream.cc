// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace kvfolio {
namespace {

using text::concat;

Status failed(const std::string& path, const char* what) {
  char text[128] = "";
  const int error = errno;
  // The form of glibc, which may return a text of its own.
  const char* said = strerror_r(error, text, sizeof text);
  return {ErrorCode::kUnavailable, concat(path, ": ", what, ": ", said)};
}

}  // namespace

FileSink::FileSink(int file, std::string path, std::string temporary) noexcept
    : file_(file), path_(std::move(path)), temporary_(std::move(temporary)) {}

FileSink::FileSink(FileSink&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)) {}

FileSink::~FileSink() {
  if (file_ < 0) return;
  ::close(file_);
  ::unlink(temporary_.c_str());
}

Result<FileSink> FileSink::create(const std::string& path) {
  struct stat there {};
  if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) {
    return Status(ErrorCode::kUnavailable, concat(path, ": not a regular file"));
  }
  std::string temporary = path + ".XXXXXX";
  const int file = ::mkostemp(temporary.data(), O_CLOEXEC);  // mode 0600
  if (file < 0) return failed(path, "cannot create a file beside it");
  return FileSink(file, path, std::move(temporary));
}

Status FileSink::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(path_, "cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

Status FileSink::commit() {
  if (::fsync(file_) != 0) return failed(path_, "cannot write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed(path_, "cannot rename to");
  ::close(std::exchange(file_, -1));
  return {};
}

FileSource::FileSource(int file, std::int64_t size, std::string path) noexcept
    : file_(file), size_(size), path_(std::move(path)) {}

FileSource::FileSource(FileSource&& other) noexcept
    : file_(std::exchange(other.file_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

FileSource::~FileSource() {
  if (file_ >= 0) ::close(file_);
}

Result<FileSource> FileSource::open(const std::string& path) {
  // A pipe without a writer does not keep us waiting.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return failed(path, "cannot open");
  struct stat there {};
  if (::fstat(file, &there) != 0 || !S_ISREG(there.st_mode)) {
    ::close(file);
    return Status(ErrorCode::kUnavailable, concat(path, ": not a regular file"));
  }
  return FileSource(file, there.st_size, path);
}

std::int64_t FileSource::size() const { return size_; }

Status FileSource::read_at(std::int64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::pread(file_, out.data(), out.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path_, "cannot read");
    if (n == 0) return {ErrorCode::kUnavailable, concat(path_, ": it became shorter")};
    out = out.subspan(static_cast<std::size_t>(n));
    offset += n;
  }
  return {};
}

}  // namespace kvfolio
