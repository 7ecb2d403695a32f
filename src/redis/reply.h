// SPDX-License-Identifier: Apache-2.0
#pragma once

// The words of Redis's protocol; replies are read by hiredis. A value that was asked for goes
// straight from the reader's buffer to where it belongs, and one that is stored is sent from where
// it lies; all other replies become a small tree. A server
// that says too much is cut off: the reader never holds more than it was told to expect.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct redisReader;

namespace kvfolio::redis {

struct Reply {
  enum class Kind : std::uint8_t { kStatus, kError, kString, kInteger, kNil, kArray };
  Kind kind = Kind::kNil;
  std::int64_t integer = 0;
  std::string text{};      // of kStatus, kError and kString: its first kTextMax bytes
  std::size_t bytes = 0;   // of kString: all of them
  bool delivered = false;  // kString: it had the size that was asked for; text is its header
  std::vector<Reply> elements{};

  static constexpr std::size_t kTextMax = 256;
  // Nodes of a whole reply. CLUSTER SLOTS of a thousand nodes has about a tenth of it. Nothing else
  // that is asked has an answer of several parts.
  static constexpr std::size_t kNodesMax = std::size_t{1} << 17;
};

class ReplyReader {
 public:
  enum class Next : std::uint8_t { kReply, kMore, kTooLong, kBroken };

  ReplyReader();
  ~ReplyReader();
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  // Forgets everything: for a new connection.
  void reset();
  // False: no memory, or the stream was broken before.
  bool feed(std::span<const char> bytes);
  // Bytes that wait here for the rest of their reply.
  [[nodiscard]] std::size_t waiting() const noexcept;
  // Looks for a whole reply. A string of exactly header_bytes + target.size() bytes that is the
  // reply itself is delivered: what stands behind its header is copied to `target`. header_bytes is
  // at most kTextMax. A reply of more than `nodes_max` parts is none. The reply is valid until the
  // next call, which frees it.
  Next next(std::span<std::byte> target, const Reply*& reply, std::size_t nodes_max = 1,
            std::size_t header_bytes = 0);

  // For the functions that hiredis calls. Null: the reply has too many parts.
  Reply* make(Reply* parent);
  [[nodiscard]] std::span<std::byte> target() const noexcept { return target_; }
  [[nodiscard]] std::size_t header_bytes() const noexcept { return header_bytes_; }

 private:
  struct Deleter {
    void operator()(redisReader* reader) const noexcept;
  };
  [[nodiscard]] bool waits_for_a_line() const noexcept;

  std::unique_ptr<redisReader, Deleter> reader_;
  Reply root_;
  std::size_t num_nodes_ = 0;  // of root_
  std::size_t nodes_max_ = 1;
  bool is_whole_ = false;  // root_ was given out
  std::span<std::byte> target_;
  std::size_t header_bytes_ = 0;
};

// A command in its wire form. A long value is not copied: its memory is read until it is sent, or
// until keep().
class Command {
 public:
  explicit Command(std::span<const std::string_view> words);
  // SET key VALUE and `more`; the value is a header and `data` behind it.
  static Command set(std::string_view key, std::span<const std::byte> header,
                     std::span<const std::byte> data, std::span<const std::string_view> more);

  [[nodiscard]] std::size_t size() const noexcept {
    return head_.size() + data_.size() + tail_.size();
  }
  // What follows the first `sent` bytes, as far as it lies together. Requires: sent < size().
  [[nodiscard]] std::span<const char> rest(std::size_t sent) const noexcept;
  // Copies what is still to be sent of the value's memory, which is not read any more.
  void keep();

 private:
  Command() = default;
  std::string head_;
  std::span<const char> data_;
  std::string tail_;
  std::string kept_;  // data_, from keep() on
};

}  // namespace kvfolio::redis
