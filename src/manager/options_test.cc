// SPDX-License-Identifier: Apache-2.0
#include "manager/options.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvfolio {
namespace {

GroupSpec full(std::int32_t block_size, std::int32_t num_blocks) {
  return {.head_dim_k = 8, .block_size = block_size, .num_blocks = num_blocks};
}

GroupSpec window(std::int32_t block_size, std::int32_t num_blocks) {
  GroupSpec group = full(block_size, num_blocks);
  group.kind = AttentionKind::kSlidingWindow;
  group.window = 8;
  return group;
}

TEST(DeriveOptions, CapacitiesFollowFromTheSpecAndWhatIsGiven) {
  struct Row {
    const char* what;
    std::vector<GroupSpec> groups;
    ManagerOptions given;
    std::int32_t max_sequence_tokens;
    std::int64_t max_index_tokens;
    std::int32_t max_runs;
    std::int32_t max_root_keys;
    std::int64_t max_table_entries;
  };
  const std::vector<Row> rows = {
      {"a full group", {full(16, 100)}, {}, 1600, 20896, 2212, 1024, 240672},
      {"full and window",
       {full(16, 100), window(4, 50)},
       {.max_sequences = 8},
       1600,
       13168,
       1246,
       1024,
       17840},
      {"windows alone", {window(16, 100)}, {.max_sequences = 8}, 32768, 537056, 1196, 1024, 77600},
      {"windows of short sequences",
       {window(16, 100)},
       {.max_sequences = 8, .max_sequence_tokens = 64},
       64,
       13792,
       1196,
       1024,
       12192},
      {"no cache",
       {full(16, 100)},
       {.max_sequences = 8, .prefix_cache = false},
       1600,
       1,
       2,
       1,
       13088},
      {"a tree that is given",
       {full(16, 100)},
       {.max_sequences = 8, .max_index_tokens = 99, .max_runs = 7},
       1600,
       99,
       7,
       6,
       13088},
      {"as many tokens as a sequence may have",
       {full(1024, 1 << 20)},
       {.max_sequences = 1},
       1 << 30,
       2155880968,
       1049665,
       1024,
       4305457248},
  };
  for (const Row& row : rows) {
    const Result<ManagerOptions> derived = derive_options({row.groups}, row.given);
    ASSERT_TRUE(derived) << row.what;
    EXPECT_EQ(derived->max_sequence_tokens, row.max_sequence_tokens) << row.what;
    EXPECT_EQ(derived->max_index_tokens, row.max_index_tokens) << row.what;
    EXPECT_EQ(derived->max_runs, row.max_runs) << row.what;
    EXPECT_EQ(derived->max_root_keys, row.max_root_keys) << row.what;
    EXPECT_EQ(derived->max_table_entries, row.max_table_entries) << row.what;
  }
}

TEST(DeriveOptions, DerivedOptionsAreDerivedFromThemselves) {
  const CacheSpec spec{{full(16, 100), window(4, 50)}};
  const ManagerOptions once = *derive_options(spec, {.max_sequences = 8});
  const ManagerOptions twice = *derive_options(spec, once);
  EXPECT_EQ(twice.max_sequence_tokens, once.max_sequence_tokens);
  EXPECT_EQ(twice.max_index_tokens, once.max_index_tokens);
  EXPECT_EQ(twice.max_runs, once.max_runs);
  EXPECT_EQ(twice.max_root_keys, once.max_root_keys);
  EXPECT_EQ(twice.max_table_entries, once.max_table_entries);
}

TEST(DeriveOptions, AnErrorNamesTheOptionItsValueAndWhatIsAllowed) {
  const CacheSpec spec{{full(16, 100)}};
  EXPECT_EQ(derive_options(spec, {.max_sequences = 0}).error().message(),
            "option max_sequences is 0, allowed: 1 to 8388608");
  EXPECT_EQ(derive_options(spec, {.max_runs = 1}).error().message(),
            "option max_runs is 1, allowed: 0, and 2 to 536870912");
  EXPECT_FALSE(derive_options({}, {}));
}

}  // namespace
}  // namespace kvfolio
