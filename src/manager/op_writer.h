// SPDX-License-Identifier: Apache-2.0
#pragma once

// OpWriter is the archive that writes calls into an OpLog: integers as varints, the signed ones in
// zigzag, and ids of 64 bits too. recorded() is what each public call that is not const comes to
// while a log is on.

#include <bit>
#include <utility>

#include "kvfolio/op_log.h"
#include "manager/impl.h"
#include "manager/op_answer.h"
#include "manager/op_archive.h"
#include "manager/op_codes.h"

namespace kvfolio {

class OpWriter : public OpArchive<OpWriter> {
 public:
  explicit OpWriter(OpLog& log) noexcept : log_(log) {}

  void write_format(std::uint32_t format) noexcept { log_.format_ = format; }
  [[nodiscard]] std::uint32_t format() const noexcept {
    return log_.format_ == 0 ? kOpLogFormat : log_.format_;
  }

  // `has_storage`: of the manager whose calls follow.
  void begin(const CacheSpec& spec, const ManagerOptions& options, bool has_storage) noexcept;
  void end(std::optional<std::uint64_t> state_hash) noexcept;
  // Between these two the call is made.
  template <typename... Arguments>
  void asked(Op op, const Arguments&... arguments) noexcept {
    byte(static_cast<std::uint8_t>(op));
    byte(static_cast<std::uint8_t>(++log_.num_calls_ & 0xff));
    (put(arguments), ...);
    if (log_.options_.flush_each_call) static_cast<void>(log_.flush());
  }
  void answered(const Answer& answer) noexcept {
    number(answer.code);
    number(answer.first);
    word(answer.hash, 4);
    if (log_.options_.flush_each_call) static_cast<void>(log_.flush());
  }
  void stop(Status why) noexcept { log_.stop(std::move(why)); }
  // False: the log has calls already.
  [[nodiscard]] bool is_new() const noexcept { return !log_.begun_; }

  // ---- the archive ----

  template <typename T>
  void put(const T& value) noexcept {
    T copy = value;
    visit(std::string_view(), copy);
  }
  void flag(std::string_view, bool value) noexcept { byte(value ? 1 : 0); }
  template <std::integral T>
  void integer(std::string_view, T value) noexcept {
    if constexpr (std::is_signed_v<T>) {
      const auto wide = static_cast<std::int64_t>(value);
      number(static_cast<std::uint64_t>(wide) << 1 ^ static_cast<std::uint64_t>(wide >> 63));
    } else {
      number(value);
    }
  }
  void real(std::string_view, double value) noexcept {
    word(std::bit_cast<std::uint64_t>(value), 8);
  }
  void bytes(std::string_view, std::string_view value) noexcept {
    number(value.size());
    log_.write(reinterpret_cast<const std::byte*>(value.data()), value.size());
  }
  void content(std::string_view, const std::array<std::byte, 32>& value) noexcept {
    log_.write(value.data(), value.size());
  }
  // How much the caller gave, and how it is aligned. What is written there is in the answer.
  void memory(std::string_view, std::span<std::byte> value) noexcept {
    number(value.size());
    byte(static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(value.data()) % 8));
  }
  template <typename Id>
  void id(std::string_view name, Id value) noexcept {
    integer(name, value.value());
  }
  template <typename T>
  void list(std::string_view, std::span<const T> values) noexcept {
    if constexpr (kIsList<T>) values = values.first(std::min(values.size(), kMostTables));
    number(values.size());
    for (const T& value : values) put(value);
  }
  void out(const OutCount& out) noexcept { byte(out.count != nullptr ? 1 : 0); }
  void out(const OutBlocks& out) noexcept { number(out.blocks.size()); }
  void out(const OutFindable& out) noexcept { number(out.blocks.size()); }

 private:
  void byte(std::uint8_t value) noexcept {
    const auto one = static_cast<std::byte>(value);
    log_.write(&one, 1);
  }
  void word(std::uint64_t value, std::size_t size) noexcept {
    for (std::size_t i = 0; i < size; ++i) byte(static_cast<std::uint8_t>(value >> (8 * i) & 0xff));
  }
  void number(std::uint64_t value) noexcept {
    for (; value >= 0x80; value >>= 7) byte(static_cast<std::uint8_t>((value & 0x7f) | 0x80));
    byte(static_cast<std::uint8_t>(value));
  }

  OpLog& log_;
};

// While a call runs the log is off: calls that it makes itself are not the owner's. Takes
// everything by value, so that who has no log never needs an address of its arguments.
template <typename Call, typename... Arguments>
[[gnu::cold, gnu::noinline]] auto KVCacheManager::Impl::recorded(Op op, Call call,
                                                                 Arguments... arguments) {
  OpLog* const log = std::exchange(log_, nullptr);
  OpWriter writer(*log);
  writer.asked(op, arguments...);
  auto answer = call();
  AnswerNote note;
  note.note(answer);
  (note.out(arguments), ...);
  writer.answered(note.answer());
  log_ = log;
  return answer;
}

// The first line of each public call that is not const: KVFOLIO_RECORDED(kClose, close(id), id).
// scripts/layers checks that it is there.
#define KVFOLIO_RECORDED(op, call, ...)                                                      \
  do {                                                                                       \
    if (impl_ == nullptr) [[unlikely]] {                                                     \
      return moved_from_as<decltype(call)>(name_of(Op::op).name);                            \
    }                                                                                        \
    if (impl_->log_ != nullptr) [[unlikely]] {                                               \
      return impl_->recorded(Op::op, [=, this] { return call; } __VA_OPT__(, ) __VA_ARGS__); \
    }                                                                                        \
  } while (false)

}  // namespace kvfolio
