// SPDX-License-Identifier: Apache-2.0
#include "whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "console.h"

namespace kvfolio::tools {

namespace fs = std::filesystem;

namespace {
// Of the last call: ": No space left on device".
std::string reason() {
  return errno == 0 ? "" : ": " + std::error_code(errno, std::generic_category()).message();
}
}  // namespace

struct WholeFile::State {
  std::string path;     // as the caller named it, for messages
  std::string target;   // behind its links
  std::string written;  // target, or target and ".part"
  std::ofstream stream;
  bool unfinished = false;  // console.h removes `written` if the command ends early

  [[nodiscard]] bool is_apart() const { return written != target; }

  ~State() {
    if (!unfinished) return;
    stream.close();
    ::unlink(written.c_str());
    forget_unfinished(written.c_str());
  }
};

WholeFile::WholeFile(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
WholeFile::WholeFile(WholeFile&&) noexcept = default;
WholeFile& WholeFile::operator=(WholeFile&&) noexcept = default;
WholeFile::~WholeFile() = default;

Result<WholeFile> WholeFile::create(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = state->target = path;
  std::error_code error;
  const bool exists = fs::exists(path, error);
  if (const fs::path behind = fs::canonical(path, error); !error) state->target = behind.string();
  const bool regular = !exists || fs::is_regular_file(state->target, error);
  state->written = regular ? state->target + ".part" : state->target;
  errno = 0;
  const bool writable = !exists || ::access(path.c_str(), W_OK) == 0;
  const SignalsWait wait;
  if (writable) state->stream.open(state->written, std::ios::binary | std::ios::trunc);
  if (!writable || !state->stream) {
    return Status(ErrorCode::kInvalidArgument, path + ": cannot be written" + reason());
  }
  if (state->is_apart()) {
    remember_unfinished(state->written.c_str());
    state->unfinished = true;
  }
  return WholeFile(std::move(state));
}

std::ostream& WholeFile::stream() { return state_->stream; }

Status WholeFile::finish() {
  State& state = *state_;
  const SignalsWait wait;
  // A stream does not keep why it failed, and errno may be another call's by now: once more tells.
  if (!state.stream) {
    state.stream.clear();
    errno = 0;
    if (state.stream.put('\n').flush()) errno = 0;
    return Status(ErrorCode::kInvalidArgument, state.path + ": writing failed" + reason());
  }
  errno = 0;
  state.stream.close();
  if (!state.stream) {
    return Status(ErrorCode::kInvalidArgument, state.path + ": writing failed" + reason());
  }
  std::error_code error;
  if (state.is_apart()) fs::rename(state.written, state.target, error);
  if (error) {
    return Status(ErrorCode::kInvalidArgument, state.path + ": writing failed: " + error.message());
  }
  if (state.unfinished) forget_unfinished(state.written.c_str());
  state.unfinished = false;
  return {};
}

}  // namespace kvfolio::tools
