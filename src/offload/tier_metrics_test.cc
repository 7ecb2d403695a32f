// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/tier_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvfolio/memory.h"
#include "offload/test_offload.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

// Memory of the host that a test can damage.
class DamagedMemory final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kHost; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    auto memory = host_.allocate(bytes);
    if (memory) all_ = {*memory, static_cast<std::size_t>(bytes)};
    return memory;
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    host_.deallocate(memory, bytes);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return host_.copy(dst, src, bytes);
  }
  void damage() {
    for (std::size_t i = 0; i < all_.size(); i += 64) all_[i] ^= std::byte{1};
  }

 private:
  HostMemory host_;
  std::span<std::byte> all_;
};

std::string text_of(const Offload& offload) {
  std::string text;
  write_metrics(text, offload);
  return text;
}

TEST(TierMetrics, EachDamagedRecordIsInOneMetricWhoeverFoundIt) {
  test::MemoryTier tier;
  tier.records = test::left_by_a_first_process(test::prompt_of(1, 64));
  auto record = tier.records.begin();
  record->second[500] ^= std::byte{1};  // comes, and does not verify
  (++record)->second.resize(100);       // the tier sees that it is cut
  const OffloadTier tiers[] = {{.tier = &tier}};
  DamagedMemory memory;
  test::Cache cache(test::full(40));
  const auto offload = test::offload_of(cache, tiers, 1 << 20, {.resource = &memory});
  test::opened(*offload, cache, test::prompt_of(1, 64));
  EXPECT_THAT(text_of(*offload), HasSubstr("kvfolio_corrupt_records_total{tier=\"memory\"} 2\n"));
  EXPECT_THAT(
      text_of(*offload),
      HasSubstr("kvfolio_tier_missed_records_total{tier=\"memory\",reason=\"corrupt\"} 2\n"));
  EXPECT_EQ(offload->counters().tier_corrupt, 2u);

  tier.corrupt_unasked = 3;  // it reads its records again when there is nothing else to do
  EXPECT_THAT(text_of(*offload), HasSubstr("kvfolio_corrupt_records_total{tier=\"memory\"} 5\n"));
  EXPECT_THAT(text_of(*offload), HasSubstr("kvfolio_corrupt_records_total{tier=\"host\"} 0\n"));

  cache.compute(test::prompt_of(2, 32));
  test::run_to_the_end(*offload);
  test::evict_all(cache);
  memory.damage();
  const SequenceReady ready = test::opened(*offload, cache, test::prompt_of(2, 32), {}, 2'000'000);
  EXPECT_EQ(ready.cached_tokens, 0);
  EXPECT_THAT(text_of(*offload), HasSubstr("kvfolio_corrupt_records_total{tier=\"host\"} 1\n"));
}

TEST(TierMetrics, ARecordOfAnotherKeyIsNotADamagedOne) {
  test::MemoryTier tier;
  tier.of_another_key = 3;
  const OffloadTier tiers[] = {{.tier = &tier}};
  test::Cache cache(test::full(40));
  const auto offload = test::offload_of(cache, tiers);
  EXPECT_THAT(text_of(*offload),
              HasSubstr("kvfolio_tier_other_key_records_total{tier=\"memory\"} 3\n"));
  EXPECT_THAT(text_of(*offload), HasSubstr("kvfolio_corrupt_records_total{tier=\"memory\"} 0\n"));
}

TEST(TierMetrics, WhatATierWasNeverGivenIsCountedForThatTier) {
  test::MemoryTier off;
  test::MemoryTier failing(1, {.io_error = 1000});
  off.usable = false;
  const OffloadTier tiers[] = {{.tier = &off}, {.tier = &failing}};
  test::Cache cache(test::full(40));
  const auto offload = test::offload_of(cache, tiers);
  cache.compute(test::prompt_of(1, 64));
  test::run_to_the_end(*offload);
  EXPECT_EQ(offload->tier_counters(0).stores_dropped, 8u);
  EXPECT_EQ(offload->tier_counters(0).stores_failed, 0u);
  EXPECT_EQ(offload->tier_counters(1).stores_dropped, 0u);
  EXPECT_EQ(offload->tier_counters(1).stores_failed, 8u);
  EXPECT_EQ(offload->counters().tier_stores_dropped, 16u);
  const std::string text = text_of(*offload);
  EXPECT_THAT(text, HasSubstr("kvfolio_tier_dropped_stores_total{tier=\"memory\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_tier_dropped_stores_total{tier=\"memory 1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_tier_failed_stores_total{tier=\"memory 1\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_tier_up{tier=\"memory\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_tier_up{tier=\"memory 1\"} 0\n"));
}

// The label of the arena is not taken by a tier of that name.
class Namesake final : public Tier {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "host"; }
  [[nodiscard]] TierLimits limits() const noexcept override { return {}; }
  std::size_t submit(TierOp, std::span<const TierItem>, Deadline) noexcept override { return 0; }
  std::size_t poll(std::uint64_t, std::span<TierDone>) noexcept override { return 0; }
  [[nodiscard]] int event_fd() const noexcept override { return -1; }
  [[nodiscard]] TierHealth health() const noexcept override { return {}; }
  Status close(Deadline) noexcept override { return {}; }
};

TEST(TierMetrics, ATierNamedAsHostMemoryHasANumberBehindItsName) {
  Namesake tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  test::Cache cache(test::full(4));
  const auto offload = test::offload_of(cache, tiers);
  EXPECT_THAT(text_of(*offload), HasSubstr("kvfolio_tier_up{tier=\"host 0\"} 1\n"));
}

}  // namespace
}  // namespace kvfolio
