// SPDX-License-Identifier: Apache-2.0
#include "prefix/run_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace kvfolio {
namespace {

TEST(RunTable, FindsNothingWhenEmpty) {
  RunTable table;
  ASSERT_TRUE(table.allocate(1));
  EXPECT_EQ(table.find(7, [](std::int32_t) { return true; }), RunTable::kNone);
}

TEST(RunTable, RunsOfOtherHashesAreNotLookedAt) {
  RunTable table;
  ASSERT_TRUE(table.allocate(64));
  for (std::int32_t run = 0; run < 64; ++run) {
    table.insert(run, 5 + static_cast<std::uint32_t>(run % 4));
  }
  const auto asked = [](std::int32_t run) {
    EXPECT_EQ(run % 4, 2);
    return false;
  };
  EXPECT_EQ(table.find(7, asked), RunTable::kNone);
}

// Against a plain map; few hashes at both ends of the range, so that runs of cells are long and go
// round the end, up to a full table.
TEST(RunTable, FindsExactlyWhatIsInAfterRandomInsertsAndErasures) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto max_runs = static_cast<std::int32_t>(1 + random() % 40);
    RunTable table;
    ASSERT_TRUE(table.allocate(max_runs));
    std::map<std::int32_t, std::uint32_t> in;
    for (int i = 0; i < 2000; ++i) {
      const auto run = static_cast<std::int32_t>(random() % static_cast<unsigned>(max_runs));
      if (const auto at = in.find(run); at != in.end()) {
        table.erase(run, at->second);
        in.erase(at);
      } else {
        const auto spread = static_cast<std::uint32_t>(random() % 6) * 0x0fffffffu;
        const std::uint32_t hash = random() % 2 == 0 ? spread : 0u - 1u - spread;
        table.insert(run, hash);
        in[run] = hash;
      }
      ASSERT_TRUE(table.check());
      for (std::int32_t other = 0; other < max_runs; ++other) {
        const auto at = in.find(other);
        const std::uint32_t hash =
            at == in.end() ? static_cast<std::uint32_t>(random()) : at->second;
        const std::int32_t found = table.find(hash, [&](std::int32_t r) { return r == other; });
        ASSERT_EQ(found, at == in.end() ? RunTable::kNone : other);
      }
    }
  }
}

TEST(RunTable, ACopyFindsTheSame) {
  RunTable table;
  RunTable copy;
  ASSERT_TRUE(table.allocate(8));
  ASSERT_TRUE(copy.allocate(8));
  copy.insert(3, 1);
  table.insert(5, 99);
  copy.copy_from(table);
  const auto any = [](std::int32_t) { return true; };
  EXPECT_EQ(copy.find(99, any), 5);
  EXPECT_EQ(copy.find(1, any), RunTable::kNone);
}

}  // namespace
}  // namespace kvfolio
