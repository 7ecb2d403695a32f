// SPDX-License-Identifier: Apache-2.0
#include "disk/calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace kvfolio::disk {
namespace {

template <typename Integer>
Integer or_errno(Integer result) noexcept {
  return result < 0 ? static_cast<Integer>(-errno) : result;
}

class SystemCalls final : public DiskCalls {
 public:
  int open(const std::string& path, int flags) noexcept override {
    return or_errno(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  }
  int close(int file) noexcept override { return or_errno(::close(file)); }
  std::int64_t readv(int file, const iovec* parts, int count,
                     std::int64_t offset) noexcept override {
    return or_errno(std::int64_t{::preadv(file, parts, count, offset)});
  }
  std::int64_t writev(int file, const iovec* parts, int count,
                      std::int64_t offset) noexcept override {
    return or_errno(std::int64_t{::pwritev(file, parts, count, offset)});
  }
  int sync(int file) noexcept override { return or_errno(::fdatasync(file)); }
  int sync_directory(const std::string& path) noexcept override {
    const int directory = open(path, O_RDONLY | O_DIRECTORY);
    if (directory < 0) return directory;
    const int result = or_errno(::fsync(directory));
    ::close(directory);
    return result;
  }
  int allocate(int file, std::int64_t bytes) noexcept override {
    return or_errno(::fallocate(file, 0, 0, bytes));
  }
  int truncate(int file, std::int64_t bytes) noexcept override {
    return or_errno(::ftruncate(file, bytes));
  }
  std::int64_t size(int file) noexcept override {
    struct stat about {};
    return ::fstat(file, &about) < 0 ? -errno : about.st_size;
  }
  int unlink(const std::string& path) noexcept override { return or_errno(::unlink(path.c_str())); }
  int rename(const std::string& from, const std::string& to) noexcept override {
    return or_errno(::rename(from.c_str(), to.c_str()));
  }
  int make_directory(const std::string& path) noexcept override {
    return or_errno(::mkdir(path.c_str(), 0700));
  }
  int owner(const std::string& path, std::uint32_t& user, std::uint32_t& mode) noexcept override {
    struct stat about {};
    if (::stat(path.c_str(), &about) < 0) return -errno;
    user = about.st_uid;
    mode = about.st_mode & 07777u;
    return 0;
  }
  int list(const std::string& path, std::vector<std::string>& names) noexcept override {
    DIR* directory = ::opendir(path.c_str());
    if (directory == nullptr) return -errno;
    while (const dirent* entry = ::readdir(directory)) names.emplace_back(entry->d_name);
    ::closedir(directory);
    return 0;
  }
  int lock(int file) noexcept override { return or_errno(::flock(file, LOCK_EX | LOCK_NB)); }
  int make_buffered(int file) noexcept override {
    const int flags = ::fcntl(file, F_GETFL);
    return flags < 0 ? -errno : or_errno(::fcntl(file, F_SETFL, flags & ~O_DIRECT));
  }
  int drop_cached(int file, std::int64_t offset, std::int64_t bytes) noexcept override {
    return -::posix_fadvise(file, offset, bytes, POSIX_FADV_DONTNEED);
  }
};

}  // namespace

DiskCalls& system_calls() noexcept {
  static SystemCalls* calls = new SystemCalls;  // threads may outlive static objects
  return *calls;
}

std::string error_text(std::int64_t result) {
  return std::generic_category().message(static_cast<int>(-result));
}

}  // namespace kvfolio::disk
