// SPDX-License-Identifier: Apache-2.0
#include "whole_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "console.h"
#include "file_name.h"

namespace kvfolio::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = 65536;
constexpr std::string_view kPartBegin = ".kvfolio.";
constexpr std::string_view kPartEnd = ".part";
constexpr std::string_view kNameDigits = "0123456789abcdef";
constexpr std::size_t kBootDigits = 8;
constexpr std::size_t kRandomDigits = 8;
constexpr std::time_t kSecondsUntilOld = 24 * 3600;

std::string said(int error) { return std::error_code(error, std::generic_category()).message(); }

Status failed(const std::string& path, const char* what, int error) {
  return {ErrorCode::kInvalidArgument, path + ": " + what + ": " + said(error)};
}

// The first digits of a random id that the kernel takes when it starts; zeros if it gives none.
std::string boot_digits() {
  std::string digits(kBootDigits, '0');
  std::ifstream("/proc/sys/kernel/random/boot_id").read(digits.data(), kBootDigits);
  if (digits.find_first_not_of(kNameDigits) != std::string::npos) digits.assign(kBootDigits, '0');
  return digits;
}

std::string name_of_part() {
  std::array<unsigned char, kRandomDigits> random{};
  static_cast<void>(::getentropy(random.data(), random.size()));
  std::string name(kPartBegin);
  name += boot_digits();
  for (const unsigned char byte : random) name += kNameDigits[byte % kNameDigits.size()];
  return name.append(kPartEnd);
}

bool is_name_of_part(const std::string& name) {
  if (name.size() != kPartBegin.size() + kBootDigits + kRandomDigits + kPartEnd.size()) {
    return false;
  }
  return name.starts_with(kPartBegin) && name.ends_with(kPartEnd) &&
         name.find_first_not_of(kNameDigits, kPartBegin.size()) == name.size() - kPartEnd.size();
}

bool is_of_this_boot(const std::string& name) {
  const std::string boot = boot_digits();
  return name.compare(kPartBegin.size(), kBootDigits, boot) == 0 &&
         boot != std::string(kBootDigits, '0');
}

// No process writes the part any more. Processes under one kernel see each other's locks. Another
// host that shares the folder may not, and a name does not say whether its boot goes on: such a
// part must also be old, and a run that goes on keeps it young by writing to it.
bool is_of_the_dead(int file, const std::string& name) {
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
void remove_parts_of_the_dead(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!is_name_of_part(name)) continue;
    const int file =
        ::open(at->path().c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0) continue;
    if (is_of_the_dead(file, name)) ::unlink(at->path().c_str());
    ::close(file);
  }
}

// Errno of a close, or 0: a file system over a network may say only then that a write failed. The
// file stays open and locked, by its other descriptor: until a part has its name, a run that could
// lock it would take it for one of the dead.
int error_of_closing(int file) {
  const int second = ::fcntl(file, F_DUPFD_CLOEXEC, 0);
  return second >= 0 && ::close(second) == 0 ? 0 : errno;
}

}  // namespace

struct WholeFile::State {
  std::string path;    // as the caller named it, for messages
  std::string target;  // behind its links
  std::string part;    // empty: the target is written as it is
  int file = -1;
  int error = 0;  // errno of the first write that failed
  std::string buffer;

  ~State() {
    if (file >= 0) ::close(file);
    if (part.empty()) return;
    ::unlink(part.c_str());
    forget_unfinished(part.c_str());
  }

  // Errno, or 0.
  int create_part() {
    const fs::path folder = folder_of(target);
    remove_parts_of_the_dead(folder);
    constexpr int kMostTries = 100;
    int error = EAGAIN;
    for (int i = 0; i < kMostTries && error == EAGAIN; ++i) error = try_part(folder);
    return error;
  }
  // EAGAIN: another run took it for one of the dead before it was locked, and removes it.
  int try_part(const fs::path& folder) {
    part = (folder / name_of_part()).string();
    remember_unfinished(part.c_str());  // no file of another has this name
    file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    int why = file < 0 ? errno : 0;
    if (why == EEXIST) why = EAGAIN;
    struct stat there {};
    if (file >= 0) {
      const bool is_locked = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
      if (!is_locked && (::fstat(file, &there) != 0 || there.st_nlink > 0)) return 0;
      why = EAGAIN;
      ::unlink(part.c_str());
      ::close(std::exchange(file, -1));
    }
    forget_unfinished(part.c_str());
    part.clear();
    return why;
  }
  void flush() {
    for (std::string_view rest = buffer; !rest.empty() && error == 0;) {
      const auto written = ::write(file, rest.data(), rest.size());
      if (written < 0 && errno != EINTR) error = errno;
      if (written > 0) rest.remove_prefix(static_cast<std::size_t>(written));
    }
    buffer.clear();
  }
};

WholeFile::WholeFile(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
WholeFile::WholeFile(WholeFile&&) noexcept = default;
WholeFile& WholeFile::operator=(WholeFile&&) noexcept = default;
WholeFile::~WholeFile() = default;

Result<WholeFile> WholeFile::create(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->target = behind_links(path);
  struct stat there {};
  const bool exists = ::stat(state->target.c_str(), &there) == 0;
  if (!exists && errno != ENOENT) return failed(path, "cannot be written", errno);
  if (exists && S_ISDIR(there.st_mode)) return failed(path, "cannot be written", EISDIR);
  if (exists && !S_ISREG(there.st_mode)) {
    state->file = ::open(state->target.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (state->file < 0) return failed(path, "cannot be written", errno);
    return WholeFile(std::move(state));
  }
  if (exists && ::access(state->target.c_str(), W_OK) != 0) {
    return failed(path, "cannot be written", errno);
  }
  const int error = state->create_part();
  if (error != 0) return failed(path, "cannot be written", error);
  return WholeFile(std::move(state));
}

void WholeFile::write(std::string_view bytes) {
  if (state_->buffer.size() + bytes.size() > kBufferBytes) state_->flush();
  state_->buffer += bytes;
  if (state_->buffer.size() > kBufferBytes) state_->flush();
}

Status WholeFile::finish() {
  State& state = *state_;
  state.flush();
  if (state.error == 0) state.error = error_of_closing(state.file);
  if (state.error == 0 && !state.part.empty()) {
    if (::rename(state.part.c_str(), state.target.c_str()) != 0) state.error = errno;
  }
  ::close(std::exchange(state.file, -1));
  if (state.error != 0) return failed(state.path, "writing failed", state.error);
  if (!state.part.empty()) forget_unfinished(state.part.c_str());
  state.part.clear();
  return {};
}

}  // namespace kvfolio::tools
