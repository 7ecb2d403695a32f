// SPDX-License-Identifier: Apache-2.0
//
// Restores into a pool that has no place for all sequences. One that fails half-way leaves nothing
// behind: see offload_memory_test.cc.

#include <gtest/gtest.h>

#include "kvfolio/snapshot.h"
#include "offload/offload_test_cache.h"

namespace kvfolio {
namespace {

using test::Cache;
using test::MemoryFile;
using test::prompt_of;

TEST(FailedRestore, SequencesWithoutAPlaceAreLeftOutAndTheOthersAndTheCacheComeBack) {
  for (const CacheSpec& spec : {test::full(60), test::mixed(60, 60)}) {
    Cache before(spec);
    std::vector<std::vector<std::int32_t>> prompts;
    for (const int number : {1, 2, 3, 4}) prompts.push_back(prompt_of(number, 50 + number));
    std::vector<SnapshotSequence> sequences;
    sequences.reserve(prompts.size());
    for (const auto& prompt : prompts) {
      sequences.push_back({.sequence = before.start(prompt), .tokens = prompt});
    }
    const std::vector<std::int32_t> cached = prompt_of(5, 64);
    before.compute(cached);
    const auto identity = Identity::create(test::toy_of(spec), spec);
    ASSERT_TRUE(identity);
    MemoryFile file;
    ASSERT_TRUE(save(before.manager, *identity, file, {.sequences = sequences}));
    Cache after(spec, {.max_sequences = 3});  // two, and one for what the prefix cache had
    const auto stats = restore(after.manager, *identity, file);
    ASSERT_TRUE(stats) << stats.error();
    ASSERT_EQ(stats->sequences.size(), 2u);
    EXPECT_EQ(after.manager.num_sequences(), 2);
    EXPECT_EQ(stats->paths_no_room, 2);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(stats->sequences[i].tokens, prompts[i]);
      after.check_sequence(stats->sequences[i].sequence, prompts[i]);
    }
    EXPECT_EQ(after.check_hit(cached), 63);
    EXPECT_TRUE(after.manager.check_invariants().ok());
  }
}

}  // namespace
}  // namespace kvfolio
