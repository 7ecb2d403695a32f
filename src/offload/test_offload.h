// SPDX-License-Identifier: Apache-2.0
#pragma once

// Offload over a cache whose bytes follow from its tokens (test_cache.h). For tests.

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kvfolio/offload.h"
#include "offload/offload_test_cache.h"
#include "tiers/memory_tier.h"

namespace kvfolio::test {

// Bytes of a record of full(): 2 layers, K and V of 4 floats, 8 tokens.
inline constexpr std::int64_t kFullRecord = 192 + 512;

class CountedMemory final : public MemoryResource {
 public:
  std::int64_t held = 0;
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kHost; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    held += bytes;
    return inner_.allocate(bytes);
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    held -= bytes;
    inner_.deallocate(memory, bytes);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return inner_.copy(dst, src, bytes);
  }

 private:
  HostMemory inner_;
};

inline std::unique_ptr<Offload> offload_of(Cache& cache, std::span<const OffloadTier> tiers = {},
                                           std::int64_t arena_bytes = 1 << 20,
                                           OffloadOptions options = {}) {
  options.model = toy_of(cache.manager.spec());
  options.arena_bytes = arena_bytes;
  options.tiers = tiers;
  auto offload = Offload::create(cache.manager, options);
  EXPECT_TRUE(offload) << offload.error();
  return offload ? *std::move(offload) : nullptr;
}

// Opens a prompt and polls until it is ready, checks each byte of what came, and leaves it open.
inline SequenceReady opened(Offload& offload, Cache& cache, std::span<const std::int32_t> tokens,
                            const OpenOptions& options = {}, std::uint64_t now_us = 1000) {
  const auto open = offload.open(tokens, options);
  EXPECT_TRUE(open) << open.error();
  SequenceReady ready{.sequence = open->sequence, .cached_tokens = open->cached_tokens};
  for (int i = 0; open->pending; ++i) {
    const auto all = offload.poll(now_us += 100);
    if (!all.empty()) {
      EXPECT_EQ(all.size(), 1u);
      EXPECT_EQ(all[0].sequence, open->sequence);
      ready = all[0];
      break;
    }
    if (i == 10'000) {
      ADD_FAILURE() << "never ready";
      break;
    }
  }
  EXPECT_EQ(cache.manager.info(ready.sequence)->length, ready.cached_tokens);
  cache.check_sequence(ready.sequence, tokens.first(std::size_t(ready.cached_tokens)));
  EXPECT_TRUE(cache.manager.check_invariants().ok());
  EXPECT_TRUE(offload.check_invariants().ok());
  return ready;
}

inline void run_to_the_end(Offload& offload, std::uint64_t now_us = 500'000) {
  for (int i = 0; i < 1000; ++i) offload.poll(now_us += 1000);
}

// Evicts all that no sequence holds.
inline void evict_all(Cache& cache) {
  for (std::size_t g = 0; g < cache.manager.spec().groups.size(); ++g) {
    EXPECT_TRUE(cache.manager.evict(GroupId(std::int32_t(g)), 1 << 20));
  }
}

// What a first process leaves in a tier: it computed the prompt, stored all of it, and ended.
inline MemoryTier::Records left_by_a_first_process(std::span<const std::int32_t> tokens,
                                                   const OpenOptions& options = {}) {
  MemoryTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  Cache cache(full(static_cast<std::int32_t>(tokens.size() / 8) + 2));
  const auto offload = offload_of(cache, tiers);
  cache.compute(tokens, options);
  run_to_the_end(*offload);
  EXPECT_EQ(tier.records.size(), tokens.size() / 8);
  return std::move(tier.records);
}

}  // namespace kvfolio::test
