// SPDX-License-Identifier: Apache-2.0
//
// An operation log in a file (FileLog of op_log_file.h): one writer at a time, and what a log of
// before had there is gone.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "kvfolio/op_log_file.h"

namespace kvfolio {

using text::concat;

namespace {

Status failed(const std::string& path, const char* what) {
  const int error = errno;
  char text[128] = "";
  // The form of glibc, which may return a text of its own.
  const char* const said = strerror_r(error, text, sizeof text);
  return {ErrorCode::kUnavailable, concat(path, ": ", what, ": ", said)};
}

}  // namespace

FileLog::FileLog(int file, std::string path) noexcept : file_(file), path_(std::move(path)) {}

FileLog::FileLog(FileLog&& other) noexcept
    : file_(std::exchange(other.file_, -1)), path_(std::move(other.path_)) {}

FileLog::~FileLog() {
  if (file_ >= 0) ::close(file_);
}

Result<FileLog> FileLog::create(const std::string& path) {
  // A pipe without a reader does not keep us waiting.
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (file < 0) return failed(path, "cannot create");
  FileLog log(file, path);
  struct stat there {};
  if (::fstat(file, &there) != 0) return failed(path, "cannot create");
  if (!S_ISREG(there.st_mode)) {
    return Status(ErrorCode::kUnavailable, concat(path, ": not a regular file"));
  }
  // Two that write it at once would mix their calls.
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Status(ErrorCode::kUnavailable, concat(path, ": another log is being written to it"));
  }
  if (::ftruncate(file, 0) != 0 || ::fchmod(file, 0600) != 0) return failed(path, "cannot replace");
  return log;
}

Status FileLog::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed(path_, "cannot write");
    KVFOLIO_DCHECK(static_cast<std::size_t>(n) <= bytes.size());
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace kvfolio
