// SPDX-License-Identifier: Apache-2.0
//
// The string of a key, handed out in pieces: the views of the caller are read where they are.

#include "prefix/root_keys.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/hash.h"
#include "base/text.h"

namespace kvfolio {
namespace {

template <typename Piece>
void for_each_piece(const RootKey& key, const Piece& piece) {
  const std::string_view fields[] = {key.model, key.adapter, key.adapter_version, key.tenant_salt};
  char tag = 1;
  for (const std::string_view field : fields) {
    const auto size = static_cast<std::uint32_t>(field.size());
    piece(&tag, sizeof tag);
    piece(&size, sizeof size);
    piece(field.data(), field.size());
    ++tag;
  }
  piece(&tag, sizeof tag);
  piece(&key.epoch, sizeof key.epoch);
}

}  // namespace

Status RootKeys::allocate(std::int32_t max_keys, std::int64_t max_bytes) {
  max_keys_ = max_keys;
  max_bytes_ = max_bytes;
  // Spans are powers of two.
  const std::int64_t words = 2 * (max_bytes / 4) + std::int64_t{max_keys} * SpanArena::kGranule;
  Result<SpanArena> made = SpanArena::create(std::min(words, SpanArena::kMaxWords));
  if (!made) return std::move(made).error();
  arena_ = std::make_unique<SpanArena>(std::move(*made));
  return {};
}

std::int64_t RootKeys::bytes_of(const RootKey& key) const noexcept {
  const auto most = static_cast<std::size_t>(std::min(kMaxFieldBytes, max_bytes_));
  std::size_t total = 0;
  for (const std::string_view field :
       {key.model, key.adapter, key.adapter_version, key.tenant_salt}) {
    if (field.size() > most || (total += field.size()) > most) return 0;
  }
  std::int64_t bytes = 0;
  for_each_piece(key, [&](const void*, std::size_t n) { bytes += static_cast<std::int64_t>(n); });
  return bytes;
}

// Of up to 1 KiB at a time: one hash of the whole string where that is no longer.
std::uint32_t RootKeys::hash_of(const RootKey& key, std::uint64_t seed) noexcept {
  std::array<char, 1024> part;
  std::size_t used = 0;
  std::uint64_t hash = seed;
  for_each_piece(key, [&](const void* data, std::size_t size) {
    const auto* from = static_cast<const char*>(data);
    while (size > 0) {
      if (used == part.size()) {
        hash = hash_bytes(part.data(), used, hash);
        used = 0;
      }
      const std::size_t n = std::min(size, part.size() - used);
      std::memcpy(part.data() + used, from, n);
      used += n;
      from += n;
      size -= n;
    }
  });
  return static_cast<std::uint32_t>(hash_bytes(part.data(), used, hash));
}

bool RootKeys::keep(const RootKey& key, std::int64_t bytes, ArenaSpan& span) noexcept {
  KVFOLIO_DCHECK(bytes != 0 && bytes == bytes_of(key));
  if (!has_room(bytes) || !arena_->reserve(span, (bytes + 3) / 4, 0)) return false;
  auto* to = reinterpret_cast<char*>(arena_->at(span));
  for_each_piece(key, [&](const void* data, std::size_t size) {
    if (size != 0) std::memcpy(to, data, size);
    to += size;
  });
  ++num_keys_;
  num_bytes_ += bytes;
  return true;
}

void RootKeys::drop(ArenaSpan& span, std::int64_t bytes) noexcept {
  KVFOLIO_DCHECK(num_keys_ > 0 && num_bytes_ >= bytes);
  arena_->release(span);
  --num_keys_;
  num_bytes_ -= bytes;
}

bool RootKeys::is(ArenaSpan span, std::int64_t bytes, const RootKey& key) const noexcept {
  if (bytes != bytes_of(key)) return false;
  const auto* kept = reinterpret_cast<const char*>(arena_->at(span));
  bool same = true;
  for_each_piece(key, [&](const void* data, std::size_t size) {
    same = same && (size == 0 || std::memcmp(kept, data, size) == 0);
    kept += size;
  });
  return same;
}

// A member that is not named here does not compile.
void RootKeys::copy_from(const RootKeys& other) noexcept {
  const auto& [arena, max_keys, max_bytes, num_keys, num_bytes] = other;
  KVFOLIO_CHECK(max_keys_ == max_keys && max_bytes_ == max_bytes);
  arena_->copy_from(*arena);
  num_keys_ = num_keys;
  num_bytes_ = num_bytes;
}

Status RootKeys::check(std::int32_t keys, std::int64_t bytes) const {
  if (keys == num_keys_ && bytes == num_bytes_ && keys <= max_keys_ && bytes <= max_bytes_) {
    return {};
  }
  return {ErrorCode::kFailedPrecondition,
          text::concat("prefix tree, root keys: counted ", keys, " of ", bytes, " bytes, kept ",
                       num_keys_, " of ", num_bytes_)};
}

}  // namespace kvfolio
