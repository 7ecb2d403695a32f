// SPDX-License-Identifier: Apache-2.0
#include "disk/directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <utility>

#include "base/text.h"
#include "disk/format.h"

namespace kvfolio::disk {
namespace {

constexpr std::string_view kSegmentPrefix = "segment-";
constexpr std::string_view kManifestHead = "kvfolio disk tier\nversion ";

constexpr std::string_view kTemporaryPrefix = ".kvfolio-";
constexpr std::string_view kAdvice =
    "; give the tier a directory of its own, which is new or empty";

// The beginning of a small file; what cannot be read is nothing.
std::string read_text(DiskCalls& calls, int file) {
  std::array<char, 64> text{};
  const iovec part{text.data(), text.size()};
  const std::int64_t n = calls.readv(file, &part, 1, 0);
  return {text.data(), static_cast<std::size_t>(std::max<std::int64_t>(n, 0))};
}

std::int64_t write_text(DiskCalls& calls, int file, std::string text) {
  const iovec part{text.data(), text.size()};
  const std::int64_t n = calls.writev(file, &part, 1, 0);
  return n < 0 || n == static_cast<std::int64_t>(text.size()) ? n : -EIO;
}

// Whatever a file has, a terminal may show.
std::string as_beginning(std::string_view text) {
  if (text.empty()) return "it is empty";
  std::string said("it begins with \"");
  for (const char c : text.substr(0, 24)) said += c >= ' ' && c <= '~' ? c : '?';
  said += '"';
  return said;
}

std::string name_of(std::string_view prefix, std::uint64_t number) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name(prefix);
  for (int shift = 60; shift >= 0; shift -= 4) name += kDigits[(number >> shift) & 15];
  return name;
}

// Only the one way in which we write it.
std::optional<std::uint64_t> number_of(std::string_view prefix, std::string_view name) {
  if (name.size() != prefix.size() + 16 || !name.starts_with(prefix)) return {};
  std::uint64_t number = 0;
  const char* end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + prefix.size(), end, number, 16);
  if (read.ec != std::errc{} || read.ptr != end || name_of(prefix, number) != name) return {};
  return number;
}

bool is_temporary(std::string_view name) { return number_of(kTemporaryPrefix, name).has_value(); }

// What an empty directory may have.
bool is_nothing(std::string_view name) {
  return name == "." || name == ".." || name == "lost+found" || is_temporary(name);
}

}  // namespace

std::string segment_name(std::uint64_t number) { return name_of(kSegmentPrefix, number); }

std::optional<std::uint64_t> segment_number(std::string_view name) {
  return number_of(kSegmentPrefix, name);
}

std::string temporary_name() {
  return name_of(kTemporaryPrefix, random_number(static_cast<std::uint64_t>(::getpid())));
}

Result<Directory> Directory::open(DiskCalls& calls, const std::string& path, Use use) {
  Directory directory(calls, path);
  KVFOLIO_RETURN_IF_ERROR(directory.open_or_make(use));
  KVFOLIO_RETURN_IF_ERROR(directory.check_user());
  KVFOLIO_RETURN_IF_ERROR(directory.lock_directory());
  std::vector<std::string> names;
  const int listed = calls.list(directory.file_, names);
  if (listed < 0) return directory.refused("list", "", listed);
  bool is_new = false;
  KVFOLIO_RETURN_IF_ERROR(directory.check_manifest(names, use, is_new));
  KVFOLIO_RETURN_IF_ERROR(
      directory.check_others(std::all_of(names.begin(), names.end(), is_nothing)));
  // Where there is nothing, the manifest comes first: whatever lies beside it from now on is ours.
  const bool has_lock = std::find(names.begin(), names.end(), "lock") != names.end();
  if (has_lock) KVFOLIO_RETURN_IF_ERROR(directory.lock_file(true, use));
  if (is_new) KVFOLIO_RETURN_IF_ERROR(directory.write_manifest());
  if (!has_lock) KVFOLIO_RETURN_IF_ERROR(directory.lock_file(false, use));
  return directory;
}

Directory::Directory(Directory&& other) noexcept
    : calls_(other.calls_),
      path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      lock_(std::exchange(other.lock_, -1)) {}

Directory::~Directory() {
  if (lock_ >= 0) calls_.close(lock_);
  if (file_ >= 0) calls_.close(file_);
}

std::string Directory::path_of(std::string_view name) const {
  std::string path = path_;
  path += '/';
  path += name;
  return path;
}

// ---- what is refused ----

Status Directory::refused(const char* what, std::string_view name, std::int64_t result) const {
  return Status(ErrorCode::kUnavailable,
                text::concat("disk tier: cannot ", what, " ", name.empty() ? path_ : path_of(name),
                             ": ", error_text(result)));
}

Status Directory::not_ours(std::string_view name, std::string_view what) const {
  return Status(
      ErrorCode::kFailedPrecondition,
      text::concat("disk tier: ", path_of(name), " is not of a disk tier: ", what, kAdvice));
}

Status Directory::in_use() const {
  std::string holder = "another process";
  const int file = calls_.open(file_, "lock", O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (file >= 0) {
    std::string text = read_text(calls_, file);
    calls_.close(file);
    text.resize(std::min(text.find_first_not_of("0123456789"), text.size()));
    ::pid_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    // A check leaves the number of the last writer there.
    if (number > 0 && (::kill(number, 0) == 0 || errno == EPERM)) holder = "process " + text;
  }
  return Status(ErrorCode::kFailedPrecondition,
                text::concat("disk tier: ", path_, " is in use by ", holder,
                             "; give each process a directory of its own"));
}

// ---- the directory ----

Status Directory::open_or_make(Use use) {
  file_ = calls_.open_directory(path_);
  if (file_ == -ENOENT && use == Use::kServe) {
    const int made = calls_.make_directory(path_);
    if (made < 0 && made != -EEXIST) return refused("make the directory", "", made);
    file_ = calls_.open_directory(path_);
  }
  if (file_ >= 0) return {};
  if (file_ == -ENOTDIR) {
    return Status(ErrorCode::kFailedPrecondition,
                  text::concat("disk tier: ", path_, " is not a directory", kAdvice));
  }
  if (file_ == -ENOENT && use != Use::kServe) {
    return Status(ErrorCode::kNotFound,
                  text::concat("disk tier: there is none in ", path_, ": no such directory"));
  }
  return refused("open", "", file_);
}

Status Directory::check_user() {
  std::uint32_t user = 0, mode = 0;
  const int result = calls_.owner(file_, user, mode);
  if (result < 0) return refused("look at", "", result);
  if (user == ::geteuid()) return {};
  return Status(ErrorCode::kFailedPrecondition,
                text::concat("disk tier: ", path_, " belongs to user ", user,
                             ", this process runs as user ", std::uint32_t{::geteuid()},
                             "; run it as that user, or give it a directory of its own"));
}

// A user who may write here may put a link where we write, or a record where we read. A directory
// that all users share, such as /tmp, stays as it is.
Status Directory::check_others(bool is_empty) {
  constexpr std::uint32_t kSticky = 01000u;
  std::uint32_t user = 0, mode = 0;
  const int result = calls_.owner(file_, user, mode);
  if (result < 0) return refused("look at", "", result);
  if ((mode & 022u) == 0) return {};
  const bool is_shared = is_empty && (mode & kSticky) != 0;
  return Status(ErrorCode::kFailedPrecondition,
                text::concat("disk tier: other users may write to ", path_,
                             is_shared ? kAdvice : std::string_view("; chmod 700 it")));
}

// The file `lock` may be deleted while its process lives; the directory stays locked.
Status Directory::lock_directory() {
  const int locked = calls_.lock(file_);
  // Other answers than this are of file systems that lock no directories.
  return locked == -EWOULDBLOCK ? in_use() : Status();
}

// ---- its files ----

Result<int> Directory::open_text(const std::string& name, int flags, std::string& text) const {
  // Without O_NONBLOCK a pipe of this name would wait for its other end.
  const int file = calls_.open(file_, name, flags | O_NOFOLLOW | O_NONBLOCK);
  if (file == -ELOOP) return not_ours(name, "it is a symbolic link");
  if (file == -EISDIR || file == -ENXIO) return not_ours(name, "it is not a file");
  if (file < 0) return refused("open", name, file);
  if (calls_.size(file) < 0) {
    calls_.close(file);
    return not_ours(name, "it is not a file");
  }
  text = read_text(calls_, file);
  return file;
}

// `is_new`: there is none, and one may be written.
Status Directory::check_manifest(const std::vector<std::string>& names, Use use, bool& is_new) {
  is_new = std::find(names.begin(), names.end(), "manifest") == names.end();
  if (is_new) return check_without_manifest(names, use);
  std::string text;
  const Result<int> file = open_text("manifest", O_RDONLY, text);
  if (!file) return file.error();
  calls_.close(*file);
  unsigned version = 0;
  if (text.starts_with(kManifestHead)) {
    std::from_chars(text.data() + kManifestHead.size(), text.data() + text.size(), version);
  }
  if (version == 0) {
    return not_ours("manifest", as_beginning(text) +
                                    " (if a tier's was damaged, remove this file: "
                                    "it is written again)");
  }
  if (version <= kFormatVersion) return {};
  return Status(ErrorCode::kFailedPrecondition,
                text::concat("disk tier: ", path_, " is of version ", version,
                             ", this program knows versions up to ", kFormatVersion,
                             "; use a newer program or another directory"));
}

// Foreign files are a sign that this is not the directory that was meant. A name is no proof, so
// one segment must begin as ours do.
Status Directory::check_without_manifest(const std::vector<std::string>& names, Use use) {
  if (use != Use::kServe) {
    return Status(ErrorCode::kNotFound,
                  text::concat("disk tier: there is none in ", path_, ": it has no file manifest"));
  }
  bool proven = false, has_lock = false, has_other_segment = false;
  std::string_view found;
  for (const std::string& name : names) {
    if (is_nothing(name)) continue;
    const bool is_segment = segment_number(name).has_value();
    const Beginning beginning = is_segment ? beginning_of(name) : Beginning::kNothing;
    proven = proven || beginning == Beginning::kOurs;
    has_other_segment = has_other_segment || beginning == Beginning::kOther;
    has_lock = has_lock || name == "lock";
    // What we could not have made is named before what we could have.
    if (found.empty() || (!is_segment && name != "lock")) found = name;
    if (!is_segment && name != "lock") break;
  }
  // The lock of a tier that had no segment yet, or one whose header was not written.
  proven = proven || (has_lock && !has_other_segment && is_lock_of_ours());
  const bool may_be_ours = found.empty() || found == "lock" || segment_number(found);
  if (found.empty() || (may_be_ours && proven)) return {};
  return Status(ErrorCode::kFailedPrecondition,
                text::concat("disk tier: ", path_, " has other files, such as ", found, kAdvice));
}

// The number of a process and the end of a line.
bool Directory::is_lock_of_ours() const {
  const int file = calls_.open(file_, "lock", O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return false;
  const std::string text = read_text(calls_, file);
  calls_.close(file);
  const std::size_t digits = text.find_first_not_of("0123456789");
  return text.size() > 1 && digits == text.size() - 1 && text.back() == '\n';
}

Directory::Beginning Directory::beginning_of(const std::string& segment) const {
  const int file = calls_.open(file_, segment, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return Beginning::kOther;
  std::array<std::byte, kRecordFieldsBytes> begin{};
  const iovec part{begin.data(), begin.size()};
  const std::int64_t n = calls_.size(file) < 0 ? -1 : calls_.readv(file, &part, 1, 0);
  calls_.close(file);
  const bool is_zero =
      std::all_of(begin.begin(), begin.end(), [](std::byte byte) { return byte == std::byte{}; });
  if (n >= 0 && is_zero) return Beginning::kNothing;
  SegmentHeader header;
  const FormatFault fault = n == static_cast<std::int64_t>(begin.size())
                                ? decode(std::span<const std::byte>(begin), header)
                                : FormatFault::kMagic;
  const bool is_ours = fault == FormatFault::kNone || fault == FormatFault::kVersion;
  return is_ours ? Beginning::kOurs : Beginning::kOther;
}

// Written beside its place, and moved there whole: one that is there is not ours to write over.
Status Directory::write_manifest() {
  const std::string temporary = temporary_name();
  const int file = calls_.open(file_, temporary, O_WRONLY | O_CREAT | O_EXCL);
  if (file < 0) return refused("make", temporary, file);
  std::int64_t result =
      write_text(calls_, file, text::concat(kManifestHead, std::uint32_t{kFormatVersion}, "\n"));
  if (result >= 0) result = calls_.sync(file);
  calls_.close(file);
  if (result >= 0) result = calls_.rename(file_, temporary, "manifest");
  if (result >= 0) result = calls_.sync_directory(file_);
  if (result >= 0) return {};
  calls_.unlink(file_, temporary);
  return refused("write", "manifest", result);
}

// It says which process writes; who only reads leaves it so.
Status Directory::lock_file(bool is_there, Use use) {
  if (!is_there && use != Use::kServe) return {};
  const int flags = is_there ? O_RDWR : O_RDWR | O_CREAT | O_EXCL;
  std::string text;
  const Result<int> opened = open_text("lock", use == Use::kCheck ? O_RDONLY : flags, text);
  if (!opened) return opened.error();
  lock_ = *opened;
  // A number and the end of a line; zeros, where power failed.
  if (text.find_first_not_of(std::string_view("0123456789\n\0", 12)) != std::string::npos) {
    return not_ours("lock", as_beginning(text));
  }
  const int locked = calls_.lock(lock_);
  if (locked == -EWOULDBLOCK) return in_use();
  if (locked < 0) return refused("lock", "lock", locked);
  if (use == Use::kCheck) return {};
  calls_.truncate(lock_, 0);
  const std::int64_t written = write_text(calls_, lock_, text::concat(::getpid(), "\n"));
  return written < 0 ? refused("write", "lock", written) : Status();
}

Result<std::vector<std::uint64_t>> Directory::segments() const {
  std::vector<std::string> names;
  const int listed = calls_.list(file_, names);
  if (listed < 0) return refused("list", "", listed);
  std::vector<std::uint64_t> numbers;
  for (const std::string& name : names) {
    if (const auto number = segment_number(name)) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<std::vector<std::string>> Directory::others() const {
  std::vector<std::string> names;
  const int listed = calls_.list(file_, names);
  if (listed < 0) return refused("list", "", listed);
  std::erase_if(names, [](const std::string& name) {
    return is_nothing(name) || segment_number(name) || name == "lock" || name == "manifest";
  });
  std::sort(names.begin(), names.end());
  return names;
}

void Directory::remove_temporaries() const noexcept {
  std::vector<std::string> names;
  if (calls_.list(file_, names) < 0) return;
  for (const std::string& name : names) {
    if (is_temporary(name)) calls_.unlink(file_, name);
  }
}

}  // namespace kvfolio::disk
