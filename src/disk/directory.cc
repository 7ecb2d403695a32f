// SPDX-License-Identifier: Apache-2.0
#include "disk/directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/text.h"
#include "disk/format.h"

namespace kvfolio::disk {
namespace {

constexpr std::string_view kSegmentPrefix = "segment-";
constexpr std::string_view kManifestHead = "kvfolio disk tier\nversion ";

// The beginning of a small file; what cannot be read is nothing.
std::string read_text(DiskCalls& calls, int file) {
  std::array<char, 256> text{};
  const iovec part{text.data(), text.size()};
  const std::int64_t n = calls.readv(file, &part, 1, 0);
  return {text.data(), static_cast<std::size_t>(std::max<std::int64_t>(n, 0))};
}

std::int64_t write_text(DiskCalls& calls, int file, std::string text) {
  const iovec part{text.data(), text.size()};
  const std::int64_t n = calls.writev(file, &part, 1, 0);
  return n < 0 || n == static_cast<std::int64_t>(text.size()) ? n : -EIO;
}

}  // namespace

std::string segment_name(std::uint64_t number) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name(kSegmentPrefix);
  for (int shift = 60; shift >= 0; shift -= 4) name += kDigits[(number >> shift) & 15];
  return name;
}

std::optional<std::uint64_t> segment_number(std::string_view name) {
  if (name.size() != kSegmentPrefix.size() + 16 || !name.starts_with(kSegmentPrefix)) return {};
  std::uint64_t number = 0;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + kSegmentPrefix.size(), end, number, 16);
  // Only the one way in which we write it.
  if (read.ec != std::errc{} || read.ptr != end || segment_name(number) != name) return {};
  return number;
}

Result<Directory> Directory::open(DiskCalls& calls, const std::string& path, bool create) {
  Directory directory(calls, path);
  if (create) {
    const int made = calls.make_directory(path);
    if (made < 0 && made != -EEXIST) return directory.refused("make the directory", "", made);
  }
  KVFOLIO_RETURN_IF_ERROR(directory.check_owner(create));
  KVFOLIO_RETURN_IF_ERROR(directory.lock(create));
  KVFOLIO_RETURN_IF_ERROR(directory.check_manifest(create));
  return directory;
}

Directory::Directory(Directory&& other) noexcept
    : calls_(other.calls_), path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

Directory::~Directory() {
  if (lock_ >= 0) calls_.close(lock_);
}

std::string Directory::path_of(std::string_view name) const {
  std::string path = path_;
  path += '/';
  path += name;
  return path;
}

Status Directory::refused(const char* what, std::string_view name, std::int64_t result) const {
  return Status(ErrorCode::kUnavailable,
                text::concat("disk tier: cannot ", what, " ", name.empty() ? path_ : path_of(name),
                             ": ", error_text(result)));
}

std::string Directory::holder() {
  std::string text = read_text(calls_, lock_);
  text.resize(std::min(text.find_first_not_of("0123456789"), text.size()));
  return text.empty() ? "another process" : "process " + text;
}

// Whoever may write here may put a link where we write, or a record where we read.
Status Directory::check_owner(bool create) {
  std::uint32_t user = 0, mode = 0;
  const int result = calls_.owner(path_, user, mode);
  if (result == -ENOENT && !create) return {};  // lock() says it
  if (result < 0) return refused("look at", "", result);
  if (user != ::geteuid()) {
    return Status(ErrorCode::kFailedPrecondition,
                  text::concat("disk tier: ", path_, " belongs to user ", user,
                               ", this process runs as user ", std::uint32_t{::geteuid()},
                               "; run it as that user, or give it a directory of its own"));
  }
  if ((mode & 022u) != 0) {
    return Status(ErrorCode::kFailedPrecondition,
                  text::concat("disk tier: other users may write to ", path_, "; chmod 700 it"));
  }
  return {};
}

Status Directory::lock(bool create) {
  lock_ = calls_.open(path_of("lock"), O_RDWR | O_NOFOLLOW | (create ? O_CREAT : 0));
  if (lock_ == -ENOENT && !create) {
    return Status(ErrorCode::kNotFound,
                  text::concat("disk tier: there is none in ", path_, ": it has no file lock"));
  }
  if (lock_ < 0) return refused("open", "lock", lock_);
  const int locked = calls_.lock(lock_);
  if (locked == -EWOULDBLOCK) {
    return Status(ErrorCode::kFailedPrecondition,
                  text::concat("disk tier: ", path_, " is in use by ", holder(),
                               "; give each process a directory of its own"));
  }
  if (locked < 0) return refused("lock", "lock", locked);
  calls_.truncate(lock_, 0);
  const std::int64_t written = write_text(calls_, lock_, text::concat(::getpid(), "\n"));
  return written < 0 ? refused("write", "lock", written) : Status();
}

// Foreign files are a sign that this is not the directory that was meant.
Status Directory::check_manifest(bool create) {
  const int file = calls_.open(path_of("manifest"), O_RDONLY | O_NOFOLLOW);
  if (file < 0 && file != -ENOENT) return refused("open", "manifest", file);
  if (file >= 0) {
    const std::string text = read_text(calls_, file);
    calls_.close(file);
    if (text.starts_with(kManifestHead)) {
      unsigned version = 0;
      std::from_chars(text.data() + kManifestHead.size(), text.data() + text.size(), version);
      if (version > kFormatVersion) {
        return Status(ErrorCode::kFailedPrecondition,
                      text::concat("disk tier: ", path_, " is of version ", version,
                                   ", this program knows versions up to ", kFormatVersion,
                                   "; use a newer program or another directory"));
      }
      if (version > 0) return {};
    }
  } else {
    std::vector<std::string> names;
    const int listed = calls_.list(path_, names);
    if (listed < 0) return refused("list", "", listed);
    for (const std::string& name : names) {
      const bool ours = name == "." || name == ".." || name == "lock" || name == "manifest.new" ||
                        name == "probe" || name == "lost+found" || segment_number(name);
      if (ours) continue;
      return Status(ErrorCode::kFailedPrecondition,
                    text::concat("disk tier: ", path_, " has other files, such as ", name,
                                 "; give the tier a directory of its own"));
    }
  }
  return create ? write_manifest() : Status();
}

Status Directory::write_manifest() {
  const std::string temporary = path_of("manifest.new");
  const int file = calls_.open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW);
  if (file < 0) return refused("make", "manifest.new", file);
  std::int64_t result =
      write_text(calls_, file, text::concat(kManifestHead, std::uint32_t{kFormatVersion}, "\n"));
  if (result >= 0) result = calls_.sync(file);
  calls_.close(file);
  if (result >= 0) result = calls_.rename(temporary, path_of("manifest"));
  if (result >= 0) result = calls_.sync_directory(path_);
  return result < 0 ? refused("write", "manifest", result) : Status();
}

Result<std::vector<std::uint64_t>> Directory::segments() const {
  std::vector<std::string> names;
  const int listed = calls_.list(path_, names);
  if (listed < 0) return refused("list", "", listed);
  std::vector<std::uint64_t> numbers;
  for (const std::string& name : names) {
    if (const auto number = segment_number(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace kvfolio::disk
