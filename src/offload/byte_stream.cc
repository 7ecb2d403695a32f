// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/byte_stream.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string_view>
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

Status not_regular(const std::string& path, mode_t mode) {
  const char* what = "a device";
  if (S_ISLNK(mode)) what = "a symbolic link; give the path of the file itself";
  if (S_ISDIR(mode)) what = "a directory";
  if (S_ISFIFO(mode)) what = "a pipe";
  if (S_ISSOCK(mode)) what = "a socket";
  return {ErrorCode::kUnavailable, concat(path, ": not a regular file, but ", what)};
}

std::string name_in_folder(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
}

// Hidden names: this, 8 digits of the boot in which the file was made, and 8 random ones.
constexpr std::string_view kHiddenBegin = ".kvfolio.";
constexpr std::string_view kDigits = "0123456789abcdef";
constexpr std::size_t kBootDigits = 8;
constexpr std::size_t kRandomDigits = 8;
constexpr std::size_t kHiddenDigits = kBootDigits + kRandomDigits;
constexpr std::time_t kSecondsUntilOld = 24 * 3600;

// The first digits of a random id that the kernel takes when it starts; zeros if it gives none.
std::string boot_digits() {
  std::array<char, kBootDigits> digits{};
  const int file = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  const bool read = file >= 0 && ::read(file, digits.data(), digits.size()) == kBootDigits;
  if (file >= 0) ::close(file);
  const std::string_view said(digits.data(), digits.size());
  return read && said.find_first_not_of(kDigits) == std::string_view::npos
             ? std::string(said)
             : std::string(kBootDigits, '0');
}

bool is_hidden_name(std::string_view name) {
  return name.size() == kHiddenBegin.size() + kHiddenDigits && name.starts_with(kHiddenBegin) &&
         name.find_first_not_of(kDigits, kHiddenBegin.size()) == std::string_view::npos;
}

// Differs at each call; if the system has no random bytes, it may be taken.
std::string hidden_name() {
  std::array<unsigned char, kRandomDigits> random{};
  static_cast<void>(::getentropy(random.data(), random.size()));
  std::string name(kHiddenBegin);
  name += boot_digits();
  for (const unsigned char byte : random) name += kDigits[byte % kDigits.size()];
  KVFOLIO_DCHECK(is_hidden_name(name));  // else no other process would take it for one of the dead
  return name;
}

bool is_of_this_boot(std::string_view name) {
  const std::string boot = boot_digits();
  return name.substr(kHiddenBegin.size(), kBootDigits) == boot &&
         boot != std::string(kBootDigits, '0');
}

// The process that writes a file with a hidden name holds its lock. False: another process does. In
// a file system without locks each process seems to get it.
bool lock(int file) { return ::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

// No process writes the file any more. Processes under one kernel see each other's locks. Another
// host that shares the folder may not, and a name does not say whether its boot goes on: such a
// file must also be old, and a save that goes on keeps it young by writing to it.
bool is_of_the_dead(int file, std::string_view name) {
  struct stat there {};
  if (::fstat(file, &there) != 0 || !S_ISREG(there.st_mode) || there.st_uid != ::geteuid()) {
    return false;
  }
  const int locked = ::flock(file, LOCK_EX | LOCK_NB);
  if (locked != 0 && errno == EWOULDBLOCK) return false;
  if (locked == 0 && is_of_this_boot(name)) return true;
  return std::time(nullptr) - there.st_mtime > kSecondsUntilOld;
}

// Locks over a network need a file that is open for writing.
void remove_if_dead(int folder, const char* name) {
  const int file = ::openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (file < 0) return;
  if (is_of_the_dead(file, name)) ::unlinkat(folder, name, 0);
  ::close(file);
}

// What programs that were killed left in the folder.
void remove_files_of_the_dead(int folder) {
  const int again = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = again < 0 ? nullptr : ::fdopendir(again);
  if (list == nullptr) {
    if (again >= 0) ::close(again);
    return;
  }
  while (const dirent* const entry = ::readdir(list)) {
    if (is_hidden_name(entry->d_name)) remove_if_dead(folder, entry->d_name);
  }
  ::closedir(list);
}

// A file without a name can be given one only through /proc.
std::string link_of(int file) { return concat("/proc/self/fd/", file); }

// Only where the mode is the owner's alone: some kernels forget there what the process masks.
int open_without_name(int folder, unsigned mode) {
#ifdef O_TMPFILE
  if ((mode & 077) != 0) return -1;
  const int file = ::openat(folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
  if (file < 0) return -1;
  struct stat there {};
  if (::stat(link_of(file).c_str(), &there) == 0) return file;
  ::close(file);
#endif
  return -1;
}

// A new file with a hidden name, which the process has locked; or -1, and errno. Until it is
// locked, another process may take it for one of the dead and remove it: then it is made again.
int create_hidden(int folder, unsigned mode, std::string& name) {
  constexpr int kMostTries = 100;
  for (int i = 0; i < kMostTries; ++i) {
    name = hidden_name();
    const int file =
        ::openat(folder, name.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, mode);
    if (file < 0 && errno != EEXIST) return -1;
    if (file < 0) continue;
    struct stat there {};
    if (lock(file) && (::fstat(file, &there) != 0 || there.st_nlink > 0)) return file;
    ::unlinkat(folder, name.c_str(), 0);
    ::close(file);
  }
  errno = EBUSY;
  return -1;
}

// Errno of a close, or 0: some file systems say only then that a write failed. The file stays open
// and locked, by its other descriptor: until it has its name, another process that could lock it
// would take it for one of the dead.
int error_of_closing(int file) {
  const int second = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
  return second >= 0 && ::close(second) == 0 ? 0 : errno;
}

// As many pieces as the system takes in one call, without those that are done. Moves pieces to and
// from a file: move(vector, count, bytes done before) is readv or writev.
template <typename Piece, typename Move>
bool move_pieces(std::span<const Piece> pieces, Move&& move) {
  constexpr std::size_t kAtOnce = 64;
  std::array<iovec, kAtOnce> vector;
  std::size_t first = 0;   // piece
  std::size_t inside = 0;  // bytes of it that are done
  std::int64_t done = 0;
  for (;;) {
    while (first < pieces.size() && inside >= pieces[first].size()) {  // nothing is left of it
      inside -= pieces[first++].size();
    }
    if (first == pieces.size()) return true;
    const std::size_t count = std::min(kAtOnce, pieces.size() - first);
    for (std::size_t i = 0; i < count; ++i) {
      const auto rest = pieces[first + i].subspan(i == 0 ? inside : 0);
      vector[i] = {const_cast<std::byte*>(rest.data()), rest.size()};
    }
    const ssize_t n = move(vector.data(), static_cast<int>(count), done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n == 0) errno = 0;
      return false;
    }
    done += n;
    inside += static_cast<std::size_t>(n);
  }
}

}  // namespace

// ---- FileSink ----

FileSink::FileSink(int folder, std::string path) noexcept
    : folder_(folder), path_(std::move(path)) {}

FileSink::FileSink(FileSink&& other) noexcept
    : folder_(std::exchange(other.folder_, -1)),
      file_(std::exchange(other.file_, -1)),
      path_(std::move(other.path_)),
      hidden_(std::exchange(other.hidden_, {})),
      failed_(other.failed_) {}

FileSink::~FileSink() {
  if (file_ >= 0) ::close(file_);
  if (!hidden_.empty()) ::unlinkat(folder_, hidden_.c_str(), 0);
  if (folder_ >= 0) ::close(folder_);
}

Result<FileSink> FileSink::create(const std::string& path, unsigned mode) {
  const std::string name = name_in_folder(path);
  std::string folder = path.substr(0, path.size() - name.size());
  if (folder.empty()) folder = ".";
  int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0 && errno == EACCES) {  // files may be made in it all the same
    opened = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  if (opened < 0) return failed(path, "cannot open its folder");
  FileSink sink(opened, path);
  if (name.empty()) return not_regular(path, S_IFDIR);
  struct stat there {};
  if (::fstatat(opened, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) {
    if (!S_ISREG(there.st_mode)) return not_regular(path, there.st_mode);
  } else if (errno != ENOENT) {
    return failed(path, "cannot be looked at");
  }
  remove_files_of_the_dead(opened);
  sink.file_ = open_without_name(opened, mode);
  if (sink.file_ >= 0) return sink;
  std::string hidden;
  sink.file_ = create_hidden(opened, mode, hidden);
  if (sink.file_ < 0) return failed(path, "cannot create a file in its folder");
  sink.hidden_ = std::move(hidden);
  return sink;
}

Status FileSink::write(std::span<const std::byte> bytes) { return write_pieces({&bytes, 1}); }

Status FileSink::write_pieces(std::span<const std::span<const std::byte>> pieces) {
  const bool written = move_pieces(pieces, [this](const iovec* vector, int count, std::int64_t) {
    return ::writev(file_, vector, count);
  });
  if (written) return {};
  failed_ = true;
  return failed(path_, "cannot write");
}

Status FileSink::take_name() {
  KVFOLIO_DCHECK(file_ >= 0 && folder_ >= 0);
  if (!hidden_.empty()) return {};
  std::string hidden = hidden_name();
  lock(file_);  // no other process can have it: it has no name yet
  if (::linkat(AT_FDCWD, link_of(file_).c_str(), folder_, hidden.c_str(), AT_SYMLINK_FOLLOW) != 0) {
    return failed(path_, "cannot give the file a name in its folder");
  }
  hidden_ = std::move(hidden);
  return {};
}

std::string FileSink::hidden_path() const {
  if (hidden_.empty()) return {};
  return path_.substr(0, path_.size() - name_in_folder(path_).size()) + hidden_;
}

Status FileSink::commit() {
  if (file_ < 0 || failed_) {
    return {ErrorCode::kFailedPrecondition,
            concat(path_, failed_ ? ": a write failed, so there is no whole file to commit"
                                  : ": it was committed already")};
  }
  if (::fsync(file_) != 0) {
    failed_ = true;  // the system says it once
    return failed(path_, "cannot write");
  }
  if (const int error = error_of_closing(file_); error != 0) {
    failed_ = true;
    errno = error;
    return failed(path_, "cannot write");
  }
  KVFOLIO_RETURN_IF_ERROR(take_name());
  if (::renameat(folder_, hidden_.c_str(), folder_, name_in_folder(path_).c_str()) != 0) {
    return failed(path_, "cannot rename to");
  }
  hidden_.clear();
  ::close(std::exchange(file_, -1));
  // Not every file system has a folder that can be written out on its own, nor is each opened so.
  if (::fsync(folder_) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EBADF) return {};
  return failed(path_, "it is in place, but its folder cannot be written out");
}

// ---- FileSource ----

FileSource::FileSource(int file, std::int64_t size, std::string path) noexcept
    : file_(file), size_(size), path_(std::move(path)) {}

FileSource::FileSource(FileSource&& other) noexcept
    : file_(std::exchange(other.file_, -1)), size_(other.size_), path_(std::move(other.path_)) {}

FileSource::~FileSource() {
  if (file_ >= 0) ::close(file_);
}

Result<FileSource> FileSource::open(const std::string& path) {
  struct stat there {};
  // Opening a device may do something. If it takes the place of a file now, it is not waited for.
  if (::stat(path.c_str(), &there) != 0) return failed(path, "cannot open");
  if (!S_ISREG(there.st_mode)) return not_regular(path, there.st_mode);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return failed(path, "cannot open");
  if (::fstat(file, &there) != 0 || !S_ISREG(there.st_mode)) {
    ::close(file);
    return not_regular(path, there.st_mode);
  }
  return FileSource(file, there.st_size, path);
}

std::int64_t FileSource::size() const { return size_; }

Status FileSource::read_at(std::int64_t offset, std::span<std::byte> out) {
  return read_pieces_at(offset, {&out, 1});
}

Status FileSource::read_pieces_at(std::int64_t offset,
                                  std::span<const std::span<std::byte>> pieces) {
  const auto read = [&](const iovec* vector, int count, std::int64_t done) {
    return ::preadv(file_, vector, count, offset + done);
  };
  if (move_pieces(pieces, read)) return {};
  if (errno == 0) return {ErrorCode::kUnavailable, concat(path_, ": it became shorter")};
  return failed(path_, "cannot read");
}

}  // namespace kvfolio
