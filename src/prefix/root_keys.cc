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

constexpr int kNumFields = 4;

std::array<std::string_view, kNumFields> fields_of(const RootKey& key) noexcept {
  return {key.model, key.adapter, key.adapter_version, key.tenant_salt};
}

template <typename Piece>
void for_each_piece(const RootKey& key, const Piece& piece) {
  char tag = 1;
  for (const std::string_view field : fields_of(key)) {
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
  constexpr std::int64_t kFraming = kNumFields * (1 + 4) + 1 + 8;
  const auto most = static_cast<std::size_t>(std::min(kMaxFieldBytes, max_bytes_));
  std::size_t total = 0;
  for (const std::string_view field : fields_of(key)) {
    if (field.size() > most || (total += field.size()) > most) return 0;
  }
  return static_cast<std::int64_t>(total) + kFraming;
}

// Most keys have few fields or none: an empty one costs nothing.
std::uint32_t RootKeys::hash_of(const RootKey& key, std::uint64_t seed) noexcept {
  std::uint64_t hash = seed ^ key.epoch;
  std::uint64_t tag = 1;
  for (const std::string_view field : fields_of(key)) {
    if (!field.empty()) hash = hash_bytes(field.data(), field.size(), hash + tag);
    ++tag;
  }
  return static_cast<std::uint32_t>(hash_bytes(&hash, sizeof hash, seed));
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

// The way back from for_each_piece().
RootKey RootKeys::key_of(ArenaSpan span) const noexcept {
  const auto* kept = reinterpret_cast<const char*>(arena_->at(span));
  RootKey key;
  for (std::string_view* field :
       {&key.model, &key.adapter, &key.adapter_version, &key.tenant_salt}) {
    std::uint32_t size = 0;
    std::memcpy(&size, kept + 1, sizeof size);
    kept += 1 + sizeof size;
    *field = {kept, size};
    kept += size;
  }
  std::memcpy(&key.epoch, kept + 1, sizeof key.epoch);
  return key;
}

// No string of a key is the beginning of another, so this never reads beyond the kept one.
bool RootKeys::is(ArenaSpan span, const RootKey& key) const noexcept {
  const auto* kept = reinterpret_cast<const char*>(arena_->at(span));
  bool same = true;
  for_each_piece(key, [&](const void* data, std::size_t size) {
    if (!same) return;
    same = size == 0 || std::memcmp(kept, data, size) == 0;
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
