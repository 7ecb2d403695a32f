// SPDX-License-Identifier: Apache-2.0
//
// Recording: the buffer, and what a log says before the first call and behind the last.

#include "kvfolio/op_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvfolio/version.h"
#include "manager/impl.h"
#include "manager/op_piece.h"
#include "manager/op_writer.h"
#include "manager/options.h"

namespace kvfolio {

using text::concat;

OpLog::~OpLog() { static_cast<void>(flush()); }

void OpLog::give(std::size_t begin) noexcept {
  const std::size_t end = op_piece::kHeaderBytes + size_;
  if (status_.ok()) status_ = sink_.write(std::span(buffer_).subspan(begin, end - begin));
  given_ += end - begin;
  size_ = 0;
}

Status OpLog::flush() noexcept {
  if (size_ == 0) return status_;
  const auto body = std::span(buffer_).subspan(op_piece::kHeaderBytes, size_);
  const auto header = op_piece::header_of(body, given_);
  std::memcpy(buffer_.data(), header.data(), header.size());
  give(0);
  return status_;
}

void OpLog::write(const std::byte* bytes, std::size_t size) noexcept {
  static_assert(op_piece::kHeaderBytes + op_piece::kMostBytes == sizeof buffer_);
  while (size > 0 && status_.ok()) {
    const std::size_t part = std::min(size, op_piece::kMostBytes - size_);
    std::memcpy(buffer_.data() + op_piece::kHeaderBytes + size_, bytes, part);
    size_ += part;
    bytes += part;
    size -= part;
    if (size_ == op_piece::kMostBytes) static_cast<void>(flush());
  }
}

// What came before is whole calls, which a reader may have.
void OpLog::stop(Status why) noexcept {
  if (!status_.ok()) return;
  static_cast<void>(flush());
  if (status_.ok()) status_ = std::move(why);
}

void OpWriter::begin(const CacheSpec& spec, const ManagerOptions& options,
                     bool has_storage) noexcept {
  log_.begun_ = true;
  log_.write(reinterpret_cast<const std::byte*>(kOpLogMagic.data()), kOpLogMagic.size());
  word(format(), 4);
  const std::size_t size_at = log_.size_;  // the buffer was empty and has room for a header
  word(0, 4);
  const std::size_t begin = log_.size_;
  bytes({}, version());
  put(has_storage);
  number(spec.groups.size());
  for (const GroupSpec& group : spec.groups) put(group);
  put(options);
  const std::size_t size = log_.size_ - begin;
  KVFOLIO_CHECK(size <= kMostHeaderBytes);
  log_.size_ = size_at;
  word(size, 4);
  log_.size_ = begin + size;
  word(op_piece::hash_of(std::span(log_.buffer_).subspan(op_piece::kHeaderBytes, log_.size_)), 4);
  log_.give(op_piece::kHeaderBytes);  // the header is no piece
}

void OpWriter::end(std::optional<std::uint64_t> state_hash) noexcept {
  byte(static_cast<std::uint8_t>(Op::kEnd));
  number(log_.num_calls_);
  byte(state_hash ? 1 : 0);
  word(state_hash.value_or(0), 8);
  static_cast<void>(log_.flush());
}

// ---- the manager ----

// What it was asked until now can be seen later: it is not as it was made.
bool KVCacheManager::Impl::was_used() const noexcept {
  return !rows_.is_new() || !pins_.is_new() || !transfers_.is_new() || steps_.last_ticket() != 0;
}

void KVCacheManager::Impl::stop_log(std::string_view why) noexcept {
  if (log_ == nullptr) return;
  OpWriter(*std::exchange(log_, nullptr))
      .stop({ErrorCode::kFailedPrecondition, concat("record: ", why)});
}

void KVCacheManager::record(OpLog* log) noexcept {
  KVFOLIO_STOP_IF_MOVED("record");
  Impl& m = *impl_;
  if (m.log_ != nullptr) {
    const Result<std::uint64_t> hash = state_hash();
    OpWriter(*std::exchange(m.log_, nullptr))
        .end(hash ? std::optional<std::uint64_t>(*hash) : std::nullopt);
  }
  if (log == nullptr) return;
  m.log_ = log;
  OpWriter writer(*log);
  if (!writer.is_new()) {
    m.stop_log("the log has the calls of another manager, or those before a pause");
  } else if (m.was_used()) {
    m.stop_log("the manager was used before; a log begins with a new manager");
  } else {
    writer.begin(m.spec_, m.options_, m.storage_.has_value());
  }
}

Result<ManagerOptions> detail::options_for_replay(const CacheSpec& spec,
                                                  const ManagerOptions& options) {
  return derive_options(spec, options);
}

void detail::imagine_storage(KVCacheManager& manager) noexcept {
  ManagerInside::of(manager).imagines_storage_ = true;
}

void detail::write_format(OpLog& log, std::uint32_t format) noexcept {
  OpWriter(log).write_format(format);
}

void detail::answer_as_in(KVCacheManager& manager, std::uint32_t format) noexcept {
  auto& m = ManagerInside::of(manager);
  m.rules_of_ = format;
  if (format < kOpLogFormatDrafts) m.promises_.forget_spent();
}

}  // namespace kvfolio
