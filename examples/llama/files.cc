// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace kvfolio::llama {
namespace {

Status system_error(const std::string& path, const std::string& what) {
  return Status(ErrorCode::kInvalidArgument,
                path + ": " + what + ": " + std::generic_category().message(errno));
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer must return, to be refused below.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_error(path, "cannot open");
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) {
    Status error = system_error(path, "cannot stat");
    ::close(descriptor);
    return error;
  }
  InputFile file(path, descriptor, info.st_size);
  if (!S_ISREG(info.st_mode)) {
    return Status(ErrorCode::kInvalidArgument,
                  path + ": is not a regular file, but " + kind_of(info.st_mode));
  }
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status InputFile::read(std::int64_t offset, void* out, std::size_t bytes) const {
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(path_, "cannot read at byte " + std::to_string(offset));
    if (got == 0) {
      return Status(ErrorCode::kInvalidArgument, path_ + ": ends at byte " +
                                                     std::to_string(offset) + ", " +
                                                     std::to_string(bytes) + " bytes too early");
    }
    to += got;
    offset += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return Status();
}

Result<std::string> InputFile::read_all(std::int64_t max_bytes) const {
  std::string text;
  std::array<char, 65536> piece{};
  while (true) {
    const ssize_t got =
        ::pread(descriptor_, piece.data(), piece.size(), static_cast<off_t>(text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return system_error(path_, "cannot read at byte " + std::to_string(text.size()));
    }
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (std::ssize(text) > max_bytes) {
      return Status(
          ErrorCode::kInvalidArgument,
          path_ + ": has more than the " + std::to_string(max_bytes) + " bytes that are allowed");
    }
  }
}

Result<std::string> read_text_file(const std::string& path, std::int64_t max_bytes) {
  Result<InputFile> file = InputFile::open(path);
  if (!file) return std::move(file).error();
  if (file->bytes() > max_bytes) {
    return Status(ErrorCode::kInvalidArgument, path + ": has " + std::to_string(file->bytes()) +
                                                   " bytes, at most " + std::to_string(max_bytes) +
                                                   " are allowed");
  }
  if (file->bytes() == 0) return file->read_all(max_bytes);
  std::string text(static_cast<std::size_t>(file->bytes()), '\0');
  KVFOLIO_RETURN_IF_ERROR(file->read(0, text.data(), text.size()));
  return text;
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace kvfolio::llama
