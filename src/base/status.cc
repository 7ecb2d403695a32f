// SPDX-License-Identifier: Apache-2.0

// The texts of errors, and how a broken invariant ends the program. A shortage of blocks is kept as
// numbers and becomes a text only in message(), because a full pool is a normal answer and must not
// allocate. kvfolio_check_failed() is a weak symbol, so that a host can define its own.

#include "kvfolio/status.h"

#include <unistd.h>

#include <cstdlib>
#include <limits>

#include "base/text.h"

namespace kvfolio {

using text::concat;

namespace {

// Who may hold the pinned blocks: "3 sequences, 1 pin, 1 load and 2 holds". The sequences always
// stand there: with none of them there is nothing to preempt.
std::string open_ones(const Shortage& shortage) {
  struct Holder {
    std::int32_t count;
    const char* name;
  };
  const Holder holders[] = {
      {shortage.pins, " pin"}, {shortage.loads, " load"}, {shortage.holds, " hold"}};
  std::string text =
      concat(shortage.sequences, shortage.sequences == 1 ? " sequence" : " sequences");
  std::string last;
  for (const auto& [count, name] : holders) {
    if (count == 0) continue;
    if (!last.empty()) text += concat(", ", last);
    last = concat(count, name, count == 1 ? "" : "s");
  }
  return last.empty() ? text : concat(text, " and ", last);
}

std::string never(const Shortage& shortage) {
  if (!shortage.never()) return {};
  std::string has = concat("; never: the group has ", shortage.num_blocks,
                           shortage.num_blocks == 1 ? " block" : " blocks");
  if (shortage.kept == 0) return has;
  return concat(has, " and ", shortage.kept, shortage.kept == 1 ? " is kept" : " are kept");
}

}  // namespace

std::string to_string(const Shortage& shortage) {
  return concat(
      "group ", shortage.group, ": need ", shortage.needed,
      shortage.needed == 1 ? " block, " : " blocks, ", shortage.free, " free, ", shortage.evictable,
      " evictable (", shortage.pinned, " pinned",
      shortage.reserved > 0 ? concat(", ", shortage.reserved, " of them reserved") : std::string(),
      ", ", shortage.retiring, " retiring; open: ", open_ones(shortage), ")", never(shortage));
}

const char* to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kFailedPrecondition:
      return "failed precondition";
    case ErrorCode::kNoBlocks:
      return "no blocks";
    case ErrorCode::kResourceExhausted:
      return "resource exhausted";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kTimedOut:
      return "timed out";
    case ErrorCode::kCorrupt:
      return "corrupt";
  }
  return "unknown error";
}

std::string Status::message() const {
  if (message_) return *message_;
  if (code_ == ErrorCode::kNoBlocks) return to_string(shortage_);
  return std::string(to_string(code_));
}

std::vector<std::int64_t> Status::numbers() const {
  const std::string text = ok() ? std::string() : message();
  const auto is_digit = [&](std::size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_digit(i)) continue;
    const bool negative = i > 0 && text[i - 1] == '-' && (i < 2 || text[i - 2] == ' ');
    std::int64_t value = 0;
    for (; is_digit(i); ++i) {
      const std::int64_t digit = text[i] - '0';
      const bool fits = value <= (std::numeric_limits<std::int64_t>::max() - digit) / 10;
      value = fits ? value * 10 + digit : std::numeric_limits<std::int64_t>::max();
    }
    numbers.push_back(negative ? -value : value);
  }
  return numbers;
}

std::string to_string(const Status& status) {
  if (status.ok()) return to_string(status.code());
  return concat(std::string_view(to_string(status.code())), ": ", status.message());
}

void detail::no_error() noexcept {
  kvfolio_check_failed(nullptr, 0, "the error was taken of a Result that has a value");
}

void detail::no_value(const Status& error) noexcept {
  const std::string report =
      concat("the value was taken of a Result that is an error, ", to_string(error));
  kvfolio_check_failed(nullptr, 0, report.c_str());
}

}  // namespace kvfolio

extern "C" [[gnu::weak]] void kvfolio_check_failed(const char* file, int line,
                                                   const char* expression) {
  using kvfolio::text::concat;
  const std::string where =
      file == nullptr ? ""
                      : concat("broken invariant at ", std::string_view(file), ":", line, ": ");
  const std::string report = concat("kvfolio: ", where, std::string_view(expression), "\n");
  // Nothing can be done about a failing write here.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, report.data(), report.size());
  std::abort();
}
