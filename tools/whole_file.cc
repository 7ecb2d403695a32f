// SPDX-License-Identifier: Apache-2.0
#include "whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "console.h"
#include "file_name.h"
#include "kvfolio/byte_stream.h"

namespace kvfolio::tools {
namespace {

constexpr std::size_t kBufferBytes = 65536;

Status failed(const std::string& path, const char* what, int error) {
  const std::string said = std::error_code(error, std::generic_category()).message();
  return {ErrorCode::kInvalidArgument, path + ": " + what + ": " + said};
}

// What a FileSink says is of the file that the caller chose, also where it says what stands behind
// a link.
Status as_argument(const std::string& path, const Status& status) {
  if (status.ok()) return {};
  std::string message(status.message());
  if (!message.starts_with(path)) message = path + ": " + message;
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

}  // namespace

struct WholeFile::State {
  std::string path;  // as the caller named it, for messages
  std::optional<Unfinished> part = {};
  std::optional<FileSink> sink = {};  // of a regular file
  int other = -1;                     // what is none
  Status trouble = {};                // the first
  std::string buffer = {};

  ~State() {
    if (other >= 0) ::close(other);
  }

  Status written(std::string_view bytes) {
    if (sink) return as_argument(path, sink->write(std::as_bytes(std::span<const char>(bytes))));
    while (!bytes.empty()) {
      const auto written = ::write(other, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) return failed(path, "writing failed", errno);
      if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
  }
  void flush() {
    if (trouble.ok()) trouble = written(buffer);
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
  const std::string target = behind_links(path);
  struct stat there {};
  const bool exists = ::stat(target.c_str(), &there) == 0;
  if (!exists && errno != ENOENT) return failed(path, "cannot be written", errno);
  if (exists && S_ISDIR(there.st_mode)) return failed(path, "cannot be written", EISDIR);
  if (exists && !S_ISREG(there.st_mode)) {
    state->other = ::open(target.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (state->other < 0) return failed(path, "cannot be written", errno);
    return WholeFile(std::move(state));
  }
  // Whose folder may be written to, but not the file.
  if (exists && ::access(target.c_str(), W_OK) != 0) {
    return failed(path, "cannot be written", errno);
  }
  const SignalsWait until_it_is_remembered;
  Result<FileSink> sink = FileSink::create(target, 0666);
  if (!sink) return as_argument(path, sink.error());
  state->sink.emplace(*std::move(sink));
  state->part.emplace(state->sink->hidden_path());
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
  const SignalsWait no_hidden_file_is_left;
  if (state.trouble.ok() && state.sink) return as_argument(state.path, state.sink->commit());
  const int other = std::exchange(state.other, -1);
  if (other >= 0 && ::close(other) != 0 && state.trouble.ok()) {
    return failed(state.path, "writing failed", errno);
  }
  return std::move(state.trouble);
}

}  // namespace kvfolio::tools
