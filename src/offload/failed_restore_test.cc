// SPDX-License-Identifier: Apache-2.0
//
// A restore that fails half-way leaves nothing behind.

#include <gtest/gtest.h>

#include "kvfolio/snapshot.h"
#include "offload/offload_test_cache.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::MemoryFile;
using test::prompt_of;

TEST(FailedRestore, LeavesNoSequenceOpenAndHoldsNoBlock) {
  for (const CacheSpec& spec : {test::full(40), test::mixed(40, 40)}) {
    Cache before(spec);
    std::vector<std::vector<std::int32_t>> prompts;
    for (const int number : {1, 2, 3}) prompts.push_back(prompt_of(number, 50 + number));
    std::vector<SnapshotSequence> sequences;
    sequences.reserve(prompts.size());
    for (const auto& prompt : prompts) {
      sequences.push_back({.sequence = before.start(prompt), .tokens = prompt});
    }
    const auto identity = Identity::create(test::toy_of(spec), spec);
    ASSERT_TRUE(identity);
    MemoryFile file;
    ASSERT_TRUE(save(before.manager, *identity, file, {.sequences = sequences}));
    Cache after(spec, {.max_sequences = 2});  // the third has no place
    const auto stats = restore(after.manager, *identity, file);
    ASSERT_FALSE(stats);
    EXPECT_EQ(stats.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(after.manager.num_sequences(), 0);
    for (std::size_t g = 0; g < spec.groups.size(); ++g) {
      const GroupUsage usage = *after.manager.usage(GroupId(std::int32_t(g)));
      EXPECT_EQ(usage.held, 0);
      EXPECT_EQ(usage.loading, 0);
    }
    EXPECT_TRUE(after.manager.check_invariants().ok());
  }
}

}  // namespace
}  // namespace kvfolio
