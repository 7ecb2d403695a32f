// SPDX-License-Identifier: Apache-2.0
#pragma once

// OpDecoder is the archive that reads calls from a log that may come from anywhere: every count is
// compared with the bytes that are left before memory is taken for it, and the first thing that is
// wrong ends the reading. What it reads into spans stays until the next call.

#include <array>
#include <bit>
#include <cstddef>
#include <deque>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/text.h"
#include "kvfolio/op_log.h"
#include "kvfolio/op_log_file.h"
#include "manager/op_answer.h"
#include "manager/op_archive.h"
#include "manager/op_calls.h"

namespace kvfolio {

// The arguments of a call, for people.
class OpPrinter : public OpArchive<OpPrinter> {
 public:
  template <typename... Arguments>
  static std::string print(std::tuple<Arguments...> arguments) {
    OpPrinter printer;
    std::apply([&](auto&... each) { (printer.visit(std::string_view(), each), ...); }, arguments);
    return std::move(printer.text_);
  }
  static std::string print(Op op, const Answer& answer, bool with_hash);

  void flag(std::string_view name, bool value);
  template <std::integral T>
  void integer(std::string_view name, T value) {
    if (name.empty() || value != 0) item(name, std::to_string(value));
  }
  void real(std::string_view name, double value) { item(name, std::to_string(value)); }
  void bytes(std::string_view name, std::string_view value);
  void content(std::string_view name, const std::array<std::byte, 32>& value);
  template <typename Id>
  void id(std::string_view name, Id value) {
    item(name, to_string(value));
  }
  void memory(std::string_view name, std::span<std::byte> value) {
    if (!value.empty()) item(name, text::concat(value.size(), " bytes"));
  }
  template <typename T>
  void list(std::string_view name, std::span<const T> values) {
    constexpr std::size_t kMost = 24;
    if (!name.empty() && values.empty()) return;
    item(name, "[");
    bare_ = true;
    for (T value : values.first(std::min(values.size(), kMost))) visit(std::string_view(), value);
    bare_ = true;
    if (values.size() > kMost) item({}, text::concat("... ", values.size(), " in all"));
    text_ += "]";
    bare_ = false;
  }
  void out(const OutCount&) {}
  void out(const OutBlocks&) {}
  void out(const OutFindable&) {}

 private:
  void item(std::string_view name, const std::string& value);
  std::string text_;
  bool bare_ = true;  // the next item needs no comma
};

class OpDecoder : public OpArchive<OpDecoder> {
 public:
  explicit OpDecoder(ByteSource& source) : source_(source), size_(source.size()) {}

  // kCorrupt, kUnsupported or what the source says.
  Status read_header(OpLogHeader& header);
  // Room for the blocks that calls hand out; without it they hand out none.
  void set_most_blocks(std::int64_t most) noexcept {
    KVFOLIO_CHECK(most >= 0);
    most_blocks_ = most;
  }

  // visit(op, function, arguments, answer) for the next call; `answer` is null if the log ends with
  // its arguments. False: there is none; status() says whether all is well, and end() how it ended.
  template <typename Visit>
  bool next(const Visit& visit) {
    Op op = Op::kEnd;
    if (!begin_call(op)) return false;
    bool visited = false;
    with_call(op, [&](auto function) { visited = read_call(op, +function, visit); });
    return visited;
  }
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  [[nodiscard]] const OpLogEnd& end() const noexcept { return end_; }

  // ---- the archive ----

  void flag(std::string_view, bool& value) { value = byte() != 0; }
  template <std::integral T>
  void integer(std::string_view, T& value) {
    const std::uint64_t bits = number();
    if constexpr (std::is_signed_v<T>) {
      const auto wide = static_cast<std::int64_t>(bits >> 1) ^ -static_cast<std::int64_t>(bits & 1);
      value = static_cast<T>(wide);
      if (value != wide) corrupt("a number is out of range");
    } else {
      value = static_cast<T>(bits);
      if (value != bits) corrupt("a number is out of range");
    }
  }
  [[nodiscard]] std::uint32_t format() const noexcept { return format_; }
  void real(std::string_view, double& value) { value = std::bit_cast<double>(word(8)); }
  void bytes(std::string_view, std::string_view& value);
  void content(std::string_view, std::array<std::byte, 32>& value) {
    for (std::byte& each : value) each = std::byte{byte()};
  }
  template <typename Id>
  void id(std::string_view name, Id& value) {
    auto bits = value.value();
    integer(name, bits);
    value = Id(bits);
  }
  // Says how much there was and how it was aligned; it is not memory. Who makes the call again
  // gives memory in its place.
  void memory(std::string_view, std::span<std::byte>& value) {
    const std::uint64_t size = number();
    value = {no_memory_.data() + byte() % no_memory_.size(), static_cast<std::size_t>(size)};
  }
  template <typename T>
  void list(std::string_view, std::span<const T>& values) {
    read_list(std::get<std::vector<T>>(lists_), values);
  }
  void list(std::string_view, std::span<const std::span<const std::int32_t>>& values);
  void out(OutCount& out) { out.count = byte() != 0 ? &count_ : nullptr; }
  void out(OutBlocks& out) {
    blocks_.resize(room_for(number()));
    out.blocks = blocks_;
  }
  void out(OutFindable& out) {
    findable_.resize(room_for(number()));
    out.blocks = findable_;
  }

 private:
  [[nodiscard]] std::int64_t left() const noexcept {
    return size_ - position_ + static_cast<std::int64_t>(filled_ - at_);
  }
  [[nodiscard]] bool fill();
  [[nodiscard]] bool take(std::int64_t bytes);
  [[nodiscard]] bool fill_piece();
  std::uint8_t byte() {
    if (at_ == filled_ && !fill()) return 0;
    KVFOLIO_DCHECK(at_ < filled_ && filled_ <= buffer_.size());
    return std::to_integer<std::uint8_t>(buffer_[at_++]);
  }
  std::uint64_t word(std::size_t size);
  std::uint64_t number();
  // A count of elements that take a byte or more each.
  std::size_t count();
  [[nodiscard]] std::size_t room_for(std::uint64_t asked) const noexcept {
    return static_cast<std::size_t>(std::min(asked, static_cast<std::uint64_t>(most_blocks_)));
  }
  // Nothing that was read counts from here on.
  void corrupt(std::string_view what) { corrupt_at(size_ - left(), what); }
  void corrupt_at(std::int64_t place, std::string_view what);
  void corrupt_piece(std::int64_t place, std::string_view what);
  [[nodiscard]] bool stopped() const noexcept { return cut_ || !status_.ok(); }

  bool begin_call(Op& op);
  void read_end();
  template <typename T>
  void read_list(std::vector<T>& storage, std::span<const T>& values) {
    const std::size_t size = count();
    storage.clear();
    for (std::size_t i = 0; i < size && !stopped(); ++i) {
      T value{};
      visit(std::string_view(), value);
      storage.push_back(value);
    }
    values = storage;
  }
  template <typename R, typename... Arguments, typename Visit>
  bool read_call(Op op, R (*function)(KVCacheManager&, Arguments...), const Visit& visit_call) {
    std::tuple<Arguments...> arguments;
    std::apply([&](auto&... each) { (visit(std::string_view(), each), ...); }, arguments);
    if (stopped()) return false;
    Answer answer;
    answer.code = static_cast<std::uint32_t>(number());
    answer.first = number();
    answer.hash = static_cast<std::uint32_t>(word(4));
    if (!status_.ok()) return false;
    if (!cut_) ++end_.num_calls;
    visit_call(op, function, arguments, cut_ ? nullptr : &answer);
    return true;
  }

  ByteSource& source_;
  std::int64_t size_;
  std::int64_t position_ = 0;  // of the source, behind what is in the buffer
  std::vector<std::byte> buffer_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::uint32_t format_ = kOpLogFormat;
  bool in_pieces_ = false;  // what follows the header
  bool cut_ = false;        // the log ended inside something
  Status status_;
  OpLogEnd end_;
  std::int64_t most_blocks_ = 0;

  // What the spans of the call at hand point to.
  std::tuple<std::vector<std::int32_t>, std::vector<SequenceId>, std::vector<MediaSpan>,
             std::vector<AppendDemand>>
      lists_;
  std::vector<std::vector<std::int32_t>> tables_;
  std::vector<std::span<const std::int32_t>> table_spans_;
  std::deque<std::string> texts_;
  std::int32_t count_ = 0;
  std::vector<std::int32_t> blocks_;
  std::vector<FindableBlock> findable_;
  alignas(8) std::array<std::byte, 8> no_memory_{};
};

}  // namespace kvfolio
