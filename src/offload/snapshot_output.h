// SPDX-License-Identifier: Apache-2.0
#pragma once

// SnapshotOutput hands sections to a sink in pieces of about 1 MiB that begin at multiples of 4 KiB
// of the file, which a file system takes fastest. Headers and short bodies are gathered here; the
// long pieces of blocks are written from where they lie, while the second cache level has them.
// Thread safety: none.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kvfolio/byte_stream.h"
#include "kvfolio/status.h"

namespace kvfolio {

class SnapshotOutput {
 public:
  explicit SnapshotOutput(ByteSink& sink) : sink_(sink), buffer_(kAtOnce) {}

  // Memory for the next `bytes` bytes, any content; valid until the next call.
  Result<std::span<std::byte>> next(std::size_t bytes) {
    if (gathered_ >= kAtOnce || used_ + bytes > buffer_.size()) {
      KVFOLIO_RETURN_IF_ERROR(write(gathered_ - (written_ + gathered_) % kPage));
    }
    if (used_ + bytes > buffer_.size()) grow(used_ + bytes);
    const auto memory = std::span(buffer_).subspan(used_, bytes);
    used_ += bytes;
    add(memory);
    return memory;
  }
  // Memory of others that comes next; it stays as it is until the next call of next() or flush().
  void add(std::span<const std::byte> piece) {
    if (piece.empty()) return;
    const bool joins = !pieces_.empty() && &pieces_.back().back() + 1 == piece.data();
    if (joins) {
      pieces_.back() = {pieces_.back().data(), pieces_.back().size() + piece.size()};
    } else {
      pieces_.push_back(piece);
    }
    gathered_ += piece.size();
  }
  // Writes everything so far.
  Status flush() { return write(gathered_); }
  // Where the next byte will stand.
  [[nodiscard]] std::int64_t place() const noexcept {
    return static_cast<std::int64_t>(written_ + gathered_);
  }

 private:
  static constexpr std::size_t kAtOnce = 1 << 20;
  static constexpr std::size_t kPage = 4096;
  static_assert(kAtOnce % kPage == 0);

  // Writes so many of the bytes that were gathered; the others move to the front of the buffer.
  Status write(std::size_t bytes);
  void grow(std::size_t bytes);

  ByteSink& sink_;
  std::vector<std::byte> buffer_;
  std::size_t used_ = 0;
  std::vector<std::span<const std::byte>> pieces_;  // in the buffer, or memory of others
  std::size_t gathered_ = 0;                        // bytes of pieces_
  std::size_t written_ = 0;
  std::vector<std::byte> rest_;
};

inline Status SnapshotOutput::write(std::size_t bytes) {
  KVFOLIO_CHECK(bytes <= gathered_);
  std::size_t kept = gathered_ - bytes;
  rest_.resize(kept);
  while (kept > 0) {
    std::span<const std::byte>& last = pieces_.back();
    const std::size_t from_last = std::min(kept, last.size());
    kept -= from_last;
    std::memcpy(rest_.data() + kept, last.last(from_last).data(), from_last);
    last = last.first(last.size() - from_last);
    if (last.empty()) pieces_.pop_back();
  }
  if (!pieces_.empty()) KVFOLIO_RETURN_IF_ERROR(sink_.write_pieces(pieces_));
  written_ += bytes;
  gathered_ = used_ = 0;
  pieces_.clear();
  if (rest_.empty()) return {};
  if (rest_.size() > buffer_.size()) buffer_.resize(rest_.size());
  std::memcpy(buffer_.data(), rest_.data(), rest_.size());
  used_ = rest_.size();
  add(std::span(buffer_).first(used_));
  return {};
}

// Requires: what was gathered is in the buffer, from its beginning on.
inline void SnapshotOutput::grow(std::size_t bytes) {
  KVFOLIO_CHECK(gathered_ == used_ && bytes > buffer_.size());
  buffer_.resize(bytes);
  pieces_.clear();
  gathered_ = 0;
  add(std::span(buffer_).first(used_));
}

}  // namespace kvfolio
