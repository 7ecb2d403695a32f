// SPDX-License-Identifier: Apache-2.0
#include "disk/calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <new>
#include <system_error>

namespace kvfolio::disk {
namespace {

template <typename Integer>
Integer or_errno(Integer result) noexcept {
  return result < 0 ? static_cast<Integer>(-errno) : result;
}

class SystemCalls final : public DiskCalls {
 public:
  int make_directory(const std::string& path) noexcept override {
    return or_errno(::mkdir(path.c_str(), 0700));
  }
  int open_directory(const std::string& path) noexcept override {
    return or_errno(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  int open(int directory, const std::string& name, int flags) noexcept override {
    return or_errno(::openat(directory, name.c_str(), flags | O_CLOEXEC, 0600));
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
  int sync_directory(int directory) noexcept override { return or_errno(::fsync(directory)); }
  int allocate(int file, std::int64_t bytes) noexcept override {
    return or_errno(::fallocate(file, 0, 0, bytes));
  }
  int punch_hole(int file, std::int64_t offset, std::int64_t bytes) noexcept override {
    return or_errno(::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes));
  }
  int truncate(int file, std::int64_t bytes) noexcept override {
    return or_errno(::ftruncate(file, bytes));
  }
  std::int64_t size(int file) noexcept override {
    struct stat about {};
    if (::fstat(file, &about) < 0) return -errno;
    return S_ISREG(about.st_mode) ? about.st_size : -EINVAL;
  }
  int unlink(int directory, const std::string& name) noexcept override {
    return or_errno(::unlinkat(directory, name.c_str(), 0));
  }
  int rename(int directory, const std::string& from, const std::string& to) noexcept override {
    constexpr unsigned kNoReplace = 1;  // RENAME_NOREPLACE, which old headers lack
    const long result =
        ::syscall(SYS_renameat2, directory, from.c_str(), directory, to.c_str(), kNoReplace);
    // Some file systems do not know it. What came since the directory was looked at would go.
    if (result == 0 || (errno != EINVAL && errno != ENOSYS))
      return or_errno(static_cast<int>(result));
    return or_errno(::renameat(directory, from.c_str(), directory, to.c_str()));
  }
  int owner(int directory, std::uint32_t& user, std::uint32_t& mode) noexcept override {
    struct stat about {};
    if (::fstat(directory, &about) < 0) return -errno;
    user = about.st_uid;
    mode = about.st_mode & 07777u;
    return 0;
  }
  int list(int directory, std::vector<std::string>& names) noexcept override {
    // A file of its own: a copy of `directory` would go on where the last list ended.
    const int file = open(directory, ".", O_RDONLY | O_DIRECTORY);
    if (file < 0) return file;
    DIR* entries = ::fdopendir(file);
    if (entries == nullptr) {
      const int error = -errno;
      ::close(file);
      return error;
    }
    while (const dirent* entry = ::readdir(entries)) names.emplace_back(entry->d_name);
    ::closedir(entries);
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
  // Threads may outlive static objects: it is never destroyed.
  alignas(SystemCalls) static std::byte memory[sizeof(SystemCalls)];
  static DiskCalls* const calls = ::new (memory) SystemCalls;
  return *calls;
}

std::uint64_t random_number(std::uint64_t otherwise) noexcept {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, GRND_NONBLOCK) == sizeof number) return number;
  return (otherwise + 1) * 0x9e3779b97f4a7c15u;
}

std::string error_text(std::int64_t result) {
  return std::generic_category().message(static_cast<int>(-result));
}

}  // namespace kvfolio::disk
