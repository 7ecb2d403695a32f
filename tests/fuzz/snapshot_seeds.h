// SPDX-License-Identifier: Apache-2.0
#pragma once

// Small caches for fuzz_snapshot, what save() makes of them, and a check of what restore() makes of
// a file. Each byte of K and V of a token is a hash of all tokens up to it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kvfolio/byte_stream.h"
#include "kvfolio/identity.h"
#include "kvfolio/manager.h"
#include "kvfolio/snapshot.h"
#include "kvfolio/status.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::fuzz {

class MemoryFile final : public ByteSink, public ByteSource {
 public:
  std::vector<std::byte> bytes;

  Status write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes.size());
  }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    KVFOLIO_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(out.size()) <= size());
    if (!out.empty()) std::memcpy(out.data(), bytes.data() + offset, out.size());
    return {};
  }
};

// A full group of two units to a block, and a window group.
inline CacheSpec spec() {
  GroupSpec full{
      .num_kv_heads = 1, .head_dim_k = 2, .head_dim_v = 2, .block_size = 8, .num_blocks = 24};
  GroupSpec window = full;
  window.block_size = 4;
  window.kind = AttentionKind::kSlidingWindow;
  window.window = 6;
  return {.groups = {full, window}};
}

inline KVCacheManager make_manager() {
  KVCacheManager manager =
      *KVCacheManager::create(*KVStorage::create(spec()), {.max_sequences = 8});
  KVFOLIO_CHECK(manager.storage()->fill(std::byte{0xee}).ok());
  return manager;
}

inline Identity make_identity() {
  return *Identity::create({.model = "m",
                            .weights = "1",
                            .tokenizer = "1",
                            .model_dtype = "f32",
                            .positions = "1",
                            .engine = "1",
                            .layers = "0;1"},
                           spec());
}

// visit(row, bytes, seed) for each row of the tokens from `from` on that is in the tables.
template <typename Visit>
void for_each_row(KVCacheManager& manager, SequenceId id, std::span<const std::int32_t> tokens,
                  std::size_t from, Visit&& visit) {
  for (std::int32_t g = 0; g < 2; ++g) {
    const auto table = *manager.block_table(id, GroupId(g));
    const KVView view = *manager.storage()->view(GroupId(g));
    std::uint32_t seed = 17 + static_cast<std::uint32_t>(g);
    for (std::size_t p = 0; p < tokens.size(); ++p) {
      seed = (seed ^ static_cast<std::uint32_t>(tokens[p])) * 16777619u;
      if (p < from) continue;
      const auto size = static_cast<std::size_t>(view.block_size);
      const std::int32_t block = table[p / size];
      if (block < 0) continue;
      const auto at = static_cast<std::int32_t>(p % size);
      visit(view.k_at(0, block, 0, at), 8, seed);
      visit(view.v_at(0, block, 0, at), 8, seed + 1);
    }
  }
}

inline std::byte value(std::uint32_t seed, std::size_t i) {
  return static_cast<std::byte>((seed * 2654435761u + i * 40503u) >> 13);
}

inline SequenceId start(KVCacheManager& manager, std::span<const std::int32_t> tokens,
                        const OpenOptions& options) {
  const Opened opened = *manager.open(tokens, options);
  const auto from = static_cast<std::size_t>(opened.cached_tokens);
  const Ticket ticket = *manager.begin_step();
  KVFOLIO_CHECK(manager.append(opened.sequence, tokens.subspan(from)).ok());
  KVFOLIO_CHECK(manager.plan().has_value() && manager.run_copies().ok());
  for_each_row(manager, opened.sequence, tokens, from,
               [](std::byte* row, std::size_t bytes, std::uint32_t seed) {
                 for (std::size_t i = 0; i < bytes; ++i) row[i] = value(seed, i);
               });
  KVFOLIO_CHECK(manager.finish(ticket).ok());
  return opened.sequence;
}

enum class Kind { kEmpty, kPrefix, kTenants, kMedia, kSequences, kMixed };

inline std::vector<std::int32_t> prompt(int number, std::int32_t length) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(length));
  for (std::int32_t i = 0; i < length; ++i) tokens.push_back(i < 10 ? i : i * 7 + number);
  return tokens;
}

inline std::vector<std::byte> snapshot_of(Kind kind) {
  KVCacheManager manager = make_manager();
  const Identity identity = make_identity();
  const auto has = [&](Kind one) { return kind == one || kind == Kind::kMixed; };
  const auto compute = [&](std::span<const std::int32_t> tokens, const OpenOptions& options) {
    KVFOLIO_CHECK(manager.close(start(manager, tokens, options)).ok());
  };
  if (has(Kind::kPrefix)) {
    compute(prompt(1, 21), {});
    compute(prompt(2, 18), {});
  }
  if (has(Kind::kTenants)) compute(prompt(1, 13), {.root = {.adapter = "a", .tenant_salt = "s"}});
  const MediaSpan span{.begin = 3, .end = 9, .content_id = {std::byte{1}}};
  if (has(Kind::kMedia)) compute(prompt(3, 15), {.media = std::span(&span, 1)});
  const std::vector<std::int32_t> a = prompt(4, 14);
  const std::vector<std::int32_t> b = prompt(5, 5);
  std::vector<SnapshotSequence> sequences;
  if (has(Kind::kSequences)) {
    sequences.push_back({.sequence = start(manager, a, {.caller_id = 4}), .tokens = a});
    sequences.push_back({.sequence = start(manager, b, {.max_tokens = 50}), .tokens = b});
  }
  MemoryFile file;
  KVFOLIO_CHECK(save(manager, identity, file, {.sequences = sequences}).has_value());
  return file.bytes;
}

inline void check_bytes(KVCacheManager& manager, SequenceId id,
                        std::span<const std::int32_t> tokens) {
  for_each_row(manager, id, tokens, 0, [](std::byte* row, std::size_t bytes, std::uint32_t seed) {
    for (std::size_t i = 0; i < bytes; ++i) KVFOLIO_CHECK(row[i] == value(seed, i));
  });
}

inline void restore_and_check(MemoryFile& file) {
  KVCacheManager manager = make_manager();
  const Identity identity = make_identity();
  const auto stats = restore(manager, identity, file);
  KVFOLIO_CHECK(manager.check_invariants().ok());
  if (!stats) {
    KVFOLIO_CHECK(!stats.error().message().empty() && manager.num_sequences() == 0);
    return;
  }
  for (const RestoredSequence& one : stats->sequences) {
    check_bytes(manager, one.sequence,
                std::span(one.tokens).first(static_cast<std::size_t>(one.length)));
    KVFOLIO_CHECK(manager.close(one.sequence).ok());
  }
  for (const int number : {1, 2, 3, 4, 5}) {
    const std::vector<std::int32_t> tokens = prompt(number, 30);
    const Opened opened = *manager.open(tokens);
    check_bytes(manager, opened.sequence,
                std::span(tokens).first(static_cast<std::size_t>(opened.cached_tokens)));
    KVFOLIO_CHECK(manager.close(opened.sequence).ok());
  }
}

}  // namespace kvfolio::fuzz
