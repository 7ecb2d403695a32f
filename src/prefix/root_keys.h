// SPDX-License-Identifier: Apache-2.0
#pragma once

// RootKeys keeps the keys of the roots of a tree, each as one string of bytes, and counts them and
// their bytes. It knows neither runs nor tokens: a root has the span of its key.
//
// In that string each field stands as tag, length and bytes, so no two keys give the same one. It
// is never put together for a question: keys are hashed and compared piece by piece. Invariants:
// num_keys() and num_bytes() are the sums over all keys that are kept. Thread safety: none; const
// calls write nothing. Nothing allocates after allocate().

#include <cstdint>
#include <memory>

#include "kvfolio/root_key.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/status.h"

namespace kvfolio {

class RootKeys {
 public:
  static constexpr std::int64_t kMaxFieldBytes = 65536;  // of all fields of a key together

  // kOutOfMemory. Requires: max_keys >= 1, 0 <= max_bytes <= 2^34.
  [[nodiscard]] Status allocate(std::int32_t max_keys, std::int64_t max_bytes);

  // The length of the string of a key, framing included; 0: too long for any root.
  [[nodiscard]] std::int64_t bytes_of(const RootKey& key) const noexcept;
  // Requires: bytes_of(key) != 0.
  [[nodiscard]] static std::uint32_t hash_of(const RootKey& key, std::uint64_t seed) noexcept;

  // The limits allow another key of this length.
  [[nodiscard]] bool has_room(std::int64_t bytes) const noexcept {
    return num_keys_ < max_keys_ && num_bytes_ + bytes <= max_bytes_;
  }
  // The same, and keep() finds a span.
  [[nodiscard]] bool can_keep(std::int64_t bytes) const noexcept {
    std::int64_t capacity = 0;
    return has_room(bytes) && SpanTrial(*arena_).reserve(capacity, (bytes + 3) / 4);
  }
  // Keeps a key in an empty span. False: there is no room, and nothing changed.
  // Requires: bytes == bytes_of(key).
  [[nodiscard]] bool keep(const RootKey& key, std::int64_t bytes, ArenaSpan& span) noexcept;
  // Requires: `span` and `bytes` are those of a key that is kept.
  void drop(ArenaSpan& span, std::int64_t bytes) noexcept;
  // The key that a span has. Its strings are valid until it is dropped.
  [[nodiscard]] RootKey key_of(ArenaSpan span) const noexcept;
  // Returns true if the span has this key.
  [[nodiscard]] bool is(ArenaSpan span, const RootKey& key) const noexcept;

  [[nodiscard]] std::int32_t num_keys() const noexcept { return num_keys_; }
  [[nodiscard]] std::int64_t num_bytes() const noexcept { return num_bytes_; }

  // Becomes an equal of `other`. Requires: allocated with equal limits.
  void copy_from(const RootKeys& other) noexcept;
  // ok, or which rule is broken, when `keys` keys of `bytes` bytes together are in use.
  [[nodiscard]] Status check(std::int32_t keys, std::int64_t bytes) const;

  [[nodiscard]] MemoryUse memory() const noexcept { return arena_->memory(); }

 private:
  std::unique_ptr<SpanArena> arena_;
  std::int32_t max_keys_ = 0;
  std::int64_t max_bytes_ = 0;
  std::int32_t num_keys_ = 0;
  std::int64_t num_bytes_ = 0;
};

}  // namespace kvfolio
