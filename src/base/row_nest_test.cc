// SPDX-License-Identifier: Apache-2.0
#include "base/row_nest.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "kvfolio/spec.h"

namespace kvfolio {
namespace {

// How often each byte is covered, by walking all rows.
std::map<std::int64_t, int> bytes_of(const RowNest& nest) {
  std::vector<std::int64_t> starts = {nest.base};
  for (int a = 0; a < nest.num_axes; ++a) {
    const Axis axis = nest.axes[static_cast<std::size_t>(a)];
    std::vector<std::int64_t> more;
    for (const std::int64_t at : starts) {
      for (std::int64_t i = 0; i < axis.extent; ++i) more.push_back(at + i * axis.stride);
    }
    starts = std::move(more);
  }
  std::map<std::int64_t, int> covered;
  for (const std::int64_t at : starts) {
    for (std::int64_t b = 0; b < nest.row_bytes; ++b) ++covered[at + b];
  }
  return covered;
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : random_(seed) {}
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  RowNest nest() {
    RowNest nest;
    nest.base = pick(0, 40);
    nest.row_bytes = pick(1, 4);
    for (int a = pick(0, 3); a > 0; --a) nest.add({pick(1, 3), pick(0, 3) * pick(1, 12)});
    return nest;
  }

 private:
  std::mt19937 random_;
};

TEST(RowNest, NestedRowsNeverOverlapAndEndWithTheSpan) {
  Random random(1);
  int nested = 0;
  for (int i = 0; i < 20000; ++i) {
    const RowNest nest = random.nest();
    const auto bytes = bytes_of(nest);
    ASSERT_EQ(bytes.begin()->first, nest.base);
    ASSERT_EQ(bytes.rbegin()->first + 1 - nest.base, nest.span().value());
    if (!nest.nested()) continue;
    ++nested;
    for (const auto& [at, times] : bytes) ASSERT_EQ(times, 1);
  }
  EXPECT_GT(nested, 1000);
}

TEST(RowNest, NestsCalledDisjointShareNoByte) {
  Random random(2);
  int disjoint_ones = 0;
  for (int i = 0; i < 40000; ++i) {
    RowNest a = random.nest();
    RowNest b = random.nest();
    if (random.pick(0, 1) == 0) {  // the same axes, shifted
      b.axes = a.axes;
      b.num_axes = a.num_axes;
    }
    if (!a.nested() || !b.nested()) continue;
    const bool answer = disjoint(a, b);
    ASSERT_EQ(answer, disjoint(b, a));
    if (!answer) continue;
    ++disjoint_ones;
    const auto bytes = bytes_of(a);
    for (const auto& [at, times] : bytes_of(b)) ASSERT_EQ(bytes.count(at), 0u);
  }
  EXPECT_GT(disjoint_ones, 1000);
}

TEST(RowNest, InterleavedRowsOfOnePeriodAreDisjoint) {
  RowNest k;
  k.row_bytes = 4;
  k.add({5, 8});
  RowNest v = k;
  v.base = 4;
  EXPECT_TRUE(disjoint(k, v));
  v.base = 3;
  EXPECT_FALSE(disjoint(k, v));
}

TEST(RowNest, JoiningKeepsTheBytes) {
  Random random(3);
  int joined = 0;
  for (int i = 0; i < 20000; ++i) {
    RowNest nest = random.nest();
    const auto before = bytes_of(nest);
    const int axes = nest.num_axes;
    if (!nest.nested()) continue;
    nest.join();
    joined += axes - nest.num_axes;
    ASSERT_EQ(bytes_of(nest), before);
    if (nest.num_axes > 0) {
      ASSERT_NE(nest.axes[0].stride, nest.row_bytes);
    }
  }
  EXPECT_GT(joined, 100);
}

TEST(RowNest, SpansBeyond63BitsAreNotNested) {
  RowNest nest;
  nest.row_bytes = 1;
  nest.add({std::int64_t{1} << 32, std::int64_t{1} << 31});
  EXPECT_TRUE(nest.nested());
  nest.add({std::int64_t{1} << 32, std::int64_t{1} << 62});
  EXPECT_FALSE(nest.nested());
  EXPECT_FALSE(nest.span().ok());
}

TEST(BlockRuns, CoverTheRowsOfABlockOnceInFewRuns) {
  for (const Format format : {Format::kHnd, Format::kNhd}) {
    for (const std::int32_t v : {0, 2, 5, -2}) {  // -2: a prefix of K
      GroupSpec g{.num_layers = 2,
                  .num_kv_heads = 3,
                  .head_dim_k = 5,
                  .head_dim_v = v < 0 ? -v : v,
                  .v_is_prefix_of_k = v < 0,
                  .block_size = 4,
                  .format = format,
                  .num_blocks = 3};
      const auto layouts = plan_layouts({.groups = {g}});
      ASSERT_TRUE(layouts);
      std::vector<std::byte> memory(static_cast<std::size_t>((*layouts)[0].total_bytes));
      const KVView view = make_view(g, (*layouts)[0], memory.data());
      std::map<std::int64_t, int> rows;
      for (std::int32_t h = 0; h < g.num_kv_heads; ++h) {
        for (std::int32_t t = 0; t < g.block_size; ++t) {
          for (int b = 0; b < g.head_dim_k * 4; ++b) ++rows[view.k_at(1, 2, h, t) - view.k + b];
          if (v <= 0) continue;
          for (int b = 0; b < g.head_dim_v * 4; ++b) ++rows[view.v_at(1, 2, h, t) - view.k + b];
        }
      }
      const BlockRuns runs = block_runs(view);
      // Our own layouts have no gap inside a block: one run.
      ASSERT_EQ(runs.num_parts, 1);
      EXPECT_EQ(runs.parts[0].runs.num_axes, 0);
      std::map<std::int64_t, int> covered;
      const BlockRuns::Part& part = runs.parts[0];
      for_each_run(part.runs, [&](std::int64_t offset) {
        const std::int64_t at =
            part.base - view.k + part.strides.layer + 2 * part.strides.block + offset;
        for (std::int64_t b = 0; b < part.runs.row_bytes; ++b) ++covered[at + b];
      });
      EXPECT_EQ(covered, rows);
    }
  }
}

TEST(BlockRuns, ABlockOfTilesAndScalesIsOneRun) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const Format format : {Format::kHnd, Format::kNhd, Format::kGranule}) {
      for (const std::int32_t v : {0, 8, 16}) {
        const GroupSpec g{.num_layers = 2,
                          .num_kv_heads = 3,
                          .head_dim_k = 8,
                          .head_dim_v = v,
                          .block_size = 32,
                          .dtype = dtype,
                          .format = format,
                          .num_blocks = 3};
        const GroupLayout layout = plan_layouts({.groups = {g}})->at(0);
        std::vector<std::byte> memory(static_cast<std::size_t>(layout.total_bytes));
        const BlockRuns runs = block_runs(make_view(g, layout, memory.data()));
        ASSERT_EQ(runs.num_parts, 1);
        EXPECT_EQ(runs.parts[0].runs.num_axes, 0);
        EXPECT_EQ(runs.parts[0].runs.row_bytes * g.num_layers, layout.bytes_per_block);
      }
    }
  }
}

TEST(BlockRuns, AGapBeforeTheScalesIsNoPartOfARun) {
  // Rows of 5 bytes, 3 of them: one byte of a head belongs to no row.
  const GroupSpec g{.num_kv_heads = 2,
                    .head_dim_k = 5,
                    .head_dim_v = 0,
                    .block_size = 3,
                    .dtype = DType::kInt8,
                    .num_blocks = 3};
  const GroupLayout layout = plan_layouts({.groups = {g}})->at(0);
  std::vector<std::byte> memory(static_cast<std::size_t>(layout.total_bytes));
  const BlockRuns runs = block_runs(make_view(g, layout, memory.data()));
  ASSERT_EQ(runs.num_parts, 2);
  EXPECT_EQ(runs.parts[0].runs.row_bytes, 15);
  EXPECT_EQ(runs.parts[1].runs.row_bytes, 12);
  EXPECT_EQ(runs.parts[1].base - runs.parts[0].base, 16);
  for (const auto& part : {runs.parts[0], runs.parts[1]}) {
    EXPECT_EQ(part.runs.num_axes, 1);
    EXPECT_EQ(part.runs.axes[0], (Axis{2, 28}));
  }
}

TEST(BlockRuns, KeepKAndVApartWhereTheyLieApart) {
  std::vector<std::byte> k(2 * 64);
  std::vector<std::byte> v(2 * 64);
  KVView view;
  view.k = k.data();
  view.v = v.data();
  view.k_strides = view.v_strides = {128, 64, 8, 24};  // a gap after the heads of each token
  view.num_layers = 1;
  view.num_blocks = 2;
  view.block_size = 2;
  view.num_kv_heads = 2;
  view.head_dim_k = view.head_dim_v = 2;
  const BlockRuns runs = block_runs(view);
  ASSERT_EQ(runs.num_parts, 2);
  for (const auto& part : {runs.parts[0], runs.parts[1]}) {
    EXPECT_EQ(part.runs.row_bytes, 16);
    std::vector<std::int64_t> offsets;
    for_each_run(part.runs, [&](std::int64_t offset) { offsets.push_back(offset); });
    EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 24}));
  }
}

}  // namespace
}  // namespace kvfolio
