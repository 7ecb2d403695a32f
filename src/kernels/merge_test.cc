// SPDX-License-Identifier: Apache-2.0

// merge_states() against the softmax over the union, computed here in double.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using testing_cache::hashed;
using testing_cache::kDTypes;
using testing_cache::kInfinity;
using testing_cache::TestCache;
using testing_cache::TestRows;
using testing_cache::u;

struct Shape {
  int tokens = 3;
  int heads = 2;
  int dim = 5;
};

// out and lse of attention over the keys [begin, end) of made-up scores and values.
struct State {
  State(const Shape& shape, DType dtype, DType lse_dtype, int gap = 0)
      : out(shape.tokens, shape.heads, shape.dim, dtype, gap),
        lse(shape.tokens, shape.heads, 1, lse_dtype, gap) {}
  [[nodiscard]] AttentionState view() const { return {.out = out.rows, .lse = lse.rows}; }

  TestRows out;
  TestRows lse;
};

double score(int row, int key) { return 3.0 * hashed(11, u(row), u(key)); }

void attend_keys(const Shape& shape, int begin, int end, const State& state) {
  for (int t = 0; t < shape.tokens; ++t) {
    for (int h = 0; h < shape.heads; ++h) {
      const int row = t * shape.heads + h;
      double most = -kInfinity;
      for (int key = begin; key < end; ++key) most = std::max(most, score(row, key));
      double total = 0;
      std::vector<double> sums(static_cast<std::size_t>(shape.dim));
      for (int key = begin; key < end; ++key) {
        const double weight = std::exp(score(row, key) - most);
        total += weight;
        for (int d = 0; d < shape.dim; ++d) {
          sums[static_cast<std::size_t>(d)] += weight * hashed(12, u(key), u(h), u(d));
        }
      }
      // An empty part leaves the poison in out.
      state.lse.set(t, h, 0, begin == end ? -kInfinity : most + std::log(total));
      for (int d = 0; d < shape.dim && begin < end; ++d) {
        state.out.set(t, h, d, sums[static_cast<std::size_t>(d)] / total);
      }
    }
  }
}

void expect_states_near(const Shape& shape, const State& got, const State& wanted,
                        double tolerance) {
  for (int t = 0; t < shape.tokens; ++t) {
    for (int h = 0; h < shape.heads; ++h) {
      EXPECT_NEAR(got.lse.value(t, h, 0), wanted.lse.value(t, h, 0), tolerance);
      for (int d = 0; d < shape.dim; ++d) {
        EXPECT_NEAR(got.out.value(t, h, d), wanted.out.value(t, h, d), tolerance);
      }
    }
  }
}

bool same_bits(const TestRows& x, const TestRows& y) {
  const auto bytes = static_cast<std::size_t>(x.rows.head_dim) *
                     static_cast<std::size_t>(dtype_bytes(x.rows.dtype));
  for (int t = 0; t < x.rows.num_tokens; ++t) {
    for (int h = 0; h < x.rows.num_heads; ++h) {
      if (std::memcmp(x.rows.at(t, h), y.rows.at(t, h), bytes) != 0) return false;
    }
  }
  return true;
}
bool same_bits(const State& x, const State& y) {
  return same_bits(x.out, y.out) && same_bits(x.lse, y.lse);
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 2e-3;
    case DType::kBF16:
      return 1.6e-2;
    case DType::kF32:
      return 1e-6;
    default:
      return 1e-13;
  }
}

TEST(MergeStates, GivesAttentionOverTheUnion) {
  for (const int dim : {1, 5, 128, 256, 257, 700}) {
    const Shape shape{.dim = dim};
    State whole(shape, DType::kF64, DType::kF64);
    attend_keys(shape, 0, 40, whole);
    for (const int border : {1, 17, 39}) {
      State a(shape, DType::kF64, DType::kF64, 3);
      State b(shape, DType::kF64, DType::kF64);
      State merged(shape, DType::kF64, DType::kF64, 1);
      attend_keys(shape, 0, border, a);
      attend_keys(shape, border, 40, b);
      ASSERT_TRUE(merge_states(a.view(), b.view(), merged.out.rows, merged.lse.rows).ok());
      expect_states_near(shape, merged, whole, 1e-13);
    }
  }
}

TEST(MergeStates, TakesEveryElementTypeOnEverySide) {
  const Shape shape{.dim = 9};
  State whole(shape, DType::kF64, DType::kF64);
  attend_keys(shape, 0, 20, whole);
  for (const DType type_a : kDTypes) {
    for (const DType type_b : kDTypes) {
      for (const DType type_out : kDTypes) {
        State a(shape, type_a, DType::kF32);
        State b(shape, type_b, DType::kF64);
        State merged(shape, type_out, DType::kF32);
        attend_keys(shape, 0, 8, a);
        attend_keys(shape, 8, 20, b);
        ASSERT_TRUE(merge_states(a.view(), b.view(), merged.out.rows, merged.lse.rows).ok());
        const double error = std::max({tolerance_of(type_a), tolerance_of(type_b),
                                       tolerance_of(type_out), tolerance_of(DType::kF32)});
        expect_states_near(shape, merged, whole, error);
      }
    }
  }
}

TEST(MergeStates, AnEmptyStateChangesNothing) {
  const Shape shape;
  for (const DType dtype : kDTypes) {
    State full(shape, dtype, DType::kF64);
    State empty(shape, dtype, DType::kF64);  // out is NaN
    attend_keys(shape, 0, 20, full);
    attend_keys(shape, 20, 20, empty);
    for (const bool first : {true, false}) {
      State merged(shape, dtype, DType::kF64);
      const AttentionState a = first ? empty.view() : full.view();
      const AttentionState b = first ? full.view() : empty.view();
      ASSERT_TRUE(merge_states(a, b, merged.out.rows, merged.lse.rows).ok());
      EXPECT_TRUE(same_bits(merged, full));
    }
  }
}

TEST(MergeStates, TwoEmptyStatesGiveZeroAndMinusInfinity) {
  const Shape shape;
  for (const DType dtype : kDTypes) {
    State a(shape, dtype, DType::kF64);
    State b(shape, DType::kF32, DType::kF32);
    State merged(shape, dtype, DType::kF32);
    attend_keys(shape, 3, 3, a);
    attend_keys(shape, 3, 3, b);
    ASSERT_TRUE(merge_states(a.view(), b.view(), merged.out.rows, merged.lse.rows).ok());
    for (int t = 0; t < shape.tokens; ++t) {
      for (int h = 0; h < shape.heads; ++h) {
        EXPECT_EQ(merged.lse.value(t, h, 0), -kInfinity);
        for (int d = 0; d < shape.dim; ++d) EXPECT_EQ(merged.out.value(t, h, d), 0.0);
      }
    }
  }
}

TEST(MergeStates, InPlaceGivesTheSameBits) {
  const Shape shape{.dim = 300};
  for (const DType dtype : kDTypes) {
    for (const int border : {0, 7, 20}) {
      State merged(shape, dtype, DType::kF64);
      {
        State a(shape, dtype, DType::kF64);
        State b(shape, dtype, DType::kF64);
        attend_keys(shape, 0, border, a);
        attend_keys(shape, border, 20, b);
        ASSERT_TRUE(merge_states(a.view(), b.view(), merged.out.rows, merged.lse.rows).ok());
      }
      for (const bool into_a : {true, false}) {
        State a(shape, dtype, DType::kF64);
        State b(shape, dtype, DType::kF64);
        attend_keys(shape, 0, border, a);
        attend_keys(shape, border, 20, b);
        const State& into = into_a ? a : b;
        ASSERT_TRUE(merge_states(a.view(), b.view(), into.out.rows, into.lse.rows).ok());
        EXPECT_TRUE(same_bits(into, merged));
      }
    }
  }
}

TEST(MergeStates, TheOrderOfTheTwoChangesNoBit) {
  const Shape shape{.dim = 64};
  State a(shape, DType::kF64, DType::kF64);
  State b(shape, DType::kF64, DType::kF64);
  attend_keys(shape, 0, 7, a);
  attend_keys(shape, 7, 20, b);
  State ab(shape, DType::kF64, DType::kF64);
  State ba(shape, DType::kF64, DType::kF64);
  ASSERT_TRUE(merge_states(a.view(), b.view(), ab.out.rows, ab.lse.rows).ok());
  ASSERT_TRUE(merge_states(b.view(), a.view(), ba.out.rows, ba.lse.rows).ok());
  EXPECT_TRUE(same_bits(ab, ba));
}

TEST(MergeStates, TheOrderOfSeveralChangesTheRoundingOnly) {
  const Shape shape{.dim = 64};
  constexpr int kParts = 100;  // of 3 keys each
  State whole(shape, DType::kF64, DType::kF64);
  attend_keys(shape, 0, 3 * kParts, whole);
  State forward(shape, DType::kF64, DType::kF64);
  State backward(shape, DType::kF64, DType::kF64);
  attend_keys(shape, 0, 3, forward);
  attend_keys(shape, 3 * kParts - 3, 3 * kParts, backward);
  for (int part = 1; part < kParts; ++part) {
    State next(shape, DType::kF64, DType::kF64);
    attend_keys(shape, 3 * part, 3 * part + 3, next);
    ASSERT_TRUE(merge_states(forward.view(), next.view(), forward.out.rows, forward.lse.rows).ok());
    const int last = kParts - 1 - part;
    attend_keys(shape, 3 * last, 3 * last + 3, next);
    ASSERT_TRUE(
        merge_states(next.view(), backward.view(), backward.out.rows, backward.lse.rows).ok());
  }
  expect_states_near(shape, forward, whole, 1e-12);
  expect_states_near(shape, backward, whole, 1e-12);
}

TEST(MergeStates, DistantScoresNeitherOverflowNorVanish) {
  const Shape shape{.tokens = 1, .heads = 1, .dim = 1};
  struct Case {
    double lse_a, lse_b, out, lse;
  };
  const Case cases[] = {{1000, 1000, 2, 1000 + std::log(2.0)},
                        {-1000, -1000, 2, -1000 + std::log(2.0)},
                        {1e30, -1e30, 1, 1e30},
                        {-700, 800, 3, 800}};
  for (const Case& c : cases) {
    State a(shape, DType::kF64, DType::kF64);
    State b(shape, DType::kF64, DType::kF64);
    State merged(shape, DType::kF64, DType::kF64);
    a.out.set(0, 0, 0, 1);
    b.out.set(0, 0, 0, 3);
    std::memcpy(a.lse.rows.data, &c.lse_a, 8);
    std::memcpy(b.lse.rows.data, &c.lse_b, 8);
    ASSERT_TRUE(merge_states(a.view(), b.view(), merged.out.rows, merged.lse.rows).ok());
    EXPECT_DOUBLE_EQ(merged.out.value(0, 0, 0), c.out);
    EXPECT_DOUBLE_EQ(merged.lse.value(0, 0, 0), c.lse);
  }
}

TEST(MergeStates, AnLseThatIsNoNumberGivesNaN) {
  const Shape shape{.tokens = 1, .heads = 1, .dim = 2};
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity}) {
    for (const bool first : {true, false}) {
      State a(shape, DType::kF64, DType::kF64);
      State b(shape, DType::kF64, DType::kF64);
      State merged(shape, DType::kF64, DType::kF64);
      attend_keys(shape, 0, 3, a);
      attend_keys(shape, 3, 6, b);
      std::memcpy((first ? a : b).lse.rows.data, &bad, 8);
      ASSERT_TRUE(merge_states(a.view(), b.view(), merged.out.rows, merged.lse.rows).ok());
      EXPECT_TRUE(std::isnan(merged.out.value(0, 0, 1)));
      EXPECT_TRUE(std::isnan(merged.lse.value(0, 0, 0)));
    }
  }
}

TEST(MergeStates, TheSumNeedNotBeWanted) {
  const Shape shape;
  State a(shape, DType::kF32, DType::kF32);
  State b(shape, DType::kF32, DType::kF32);
  State whole(shape, DType::kF32, DType::kF32);
  attend_keys(shape, 0, 4, a);
  attend_keys(shape, 4, 9, b);
  attend_keys(shape, 0, 9, whole);
  State merged(shape, DType::kF32, DType::kF32);
  ASSERT_TRUE(merge_states(a.view(), b.view(), merged.out.rows).ok());
  for (int d = 0; d < shape.dim; ++d) {
    EXPECT_NEAR(merged.out.value(2, 1, d), whole.out.value(2, 1, d), 1e-6);
  }
  EXPECT_TRUE(std::isnan(merged.lse.value(0, 0, 0)));  // untouched
}

TEST(MergeStates, NoRowsIsNothing) {
  const Shape shape{.tokens = 0};
  State a(shape, DType::kF32, DType::kF32);
  EXPECT_TRUE(merge_states(a.view(), a.view(), a.out.rows, a.lse.rows).ok());
}

// A prefix of two blocks that three sequences share, one query each: attended once for all of them.
TEST(MergeStates, ASharedPrefixIsAttendedOnce) {
  constexpr int kSequences = 3;
  constexpr int kBlock = 4;
  constexpr int kHeads = 2;
  constexpr int kDim = 6;
  TestCache cache({.num_kv_heads = kHeads,
                   .head_dim_k = kDim,
                   .head_dim_v = kDim,
                   .block_size = kBlock,
                   .num_blocks = 2 + 2 * kSequences});
  for (int slot = 0; slot < 8 + 8 * kSequences; ++slot) {
    for (int h = 0; h < kHeads; ++h) {
      for (int d = 0; d < kDim; ++d) {
        cache.set(false, 0, h, slot, d, hashed(1, u(slot), u(h), u(d)));
        cache.set(true, 0, h, slot, d, hashed(2, u(slot), u(h), u(d)));
      }
    }
  }
  const Shape shape{.tokens = kSequences, .heads = 2 * kHeads, .dim = kDim};
  TestRows q(shape.tokens, shape.heads, kDim, DType::kF64);
  q.fill(3);
  std::vector<std::byte> workspace(1 << 16);
  AttentionArgs args{.cache = cache.view, .params = {.scale = 0.5}, .workspace = workspace};
  args.q = q.rows;
  const std::int32_t each[] = {0, 1, 2, 3};

  State whole(shape, DType::kF64, DType::kF64);
  const std::int32_t lengths[] = {8 + 1, 8 + 8, 8 + 5};
  const std::int32_t tables[] = {0, 1, 2, 3, 0, 1, 4, 5, 0, 1, 6, 7};
  args.batch = {each, lengths, tables, 4};
  args.out = whole.out.rows;
  args.lse = whole.lse.rows;
  ASSERT_TRUE(attend(args).ok());

  State prefix(shape, DType::kF64, DType::kF64);
  const std::int32_t all[] = {0, kSequences};
  const std::int32_t prefix_length[] = {8};
  const std::int32_t prefix_table[] = {0, 1};
  args.batch = {all, prefix_length, prefix_table, 2};
  args.params.causal = false;
  args.out = prefix.out.rows;
  args.lse = prefix.lse.rows;
  ASSERT_TRUE(attend(args).ok());

  State own(shape, DType::kF64, DType::kF64);
  const std::int32_t own_lengths[] = {1, 8, 5};
  const std::int32_t own_tables[] = {2, 3, 4, 5, 6, 7};
  args.batch = {each, own_lengths, own_tables, 2};
  args.params.causal = true;
  args.out = own.out.rows;
  args.lse = own.lse.rows;
  ASSERT_TRUE(attend(args).ok());

  ASSERT_TRUE(merge_states(prefix.view(), own.view(), own.out.rows, own.lse.rows).ok());
  expect_states_near(shape, own, whole, 1e-13);
}

// Each case changes one thing of a call that is fine; the sentence names it.
TEST(MergeStates, BadArgumentsAreRefusedByNameAndWriteNothing) {
  const Shape shape;
  State a(shape, DType::kF32, DType::kF32);
  State b(shape, DType::kF32, DType::kF32);
  attend_keys(shape, 0, 4, a);
  attend_keys(shape, 4, 9, b);
  State merged(shape, DType::kF32, DType::kF32);
  const std::vector<std::byte> before = merged.out.memory;
  struct Call {
    AttentionState a, b;
    RowsView out, lse;
  };
  const auto expect_refused = [&](const std::string& says, auto&& change) {
    Call call{a.view(), b.view(), merged.out.rows, merged.lse.rows};
    change(call);
    const Status status = merge_states(call.a, call.b, call.out, call.lse);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << says;
    EXPECT_THAT(status.message(), HasSubstr(says));
  };
  expect_refused("out is [-1 tokens", [](Call& call) { call.out.num_tokens = -1; });
  expect_refused("out is [3 tokens, 0 heads", [](Call& call) { call.out.num_heads = 0; });
  expect_refused("head_dim 0]", [](Call& call) { call.out.head_dim = 0; });
  expect_refused("out.data is null", [](Call& call) { call.out.data = nullptr; });
  expect_refused("rows of out overlap", [](Call& call) { call.out.token_stride = 4; });
  expect_refused("a.out is [2 tokens", [](Call& call) { call.a.out.num_tokens = 2; });
  expect_refused("a.out.dtype", [](Call& call) { call.a.out.dtype = static_cast<DType>(77); });
  expect_refused("a.lse is [3 tokens, 1 heads", [](Call& call) { call.a.lse.num_heads = 1; });
  expect_refused("a.lse.dtype is bf16", [](Call& call) { call.a.lse.dtype = DType::kBF16; });
  expect_refused("b.out is [3 tokens, 2 heads, head_dim 4]",
                 [](Call& call) { call.b.out.head_dim = 4; });
  expect_refused("b.lse.data is null", [](Call& call) { call.b.lse.data = nullptr; });
  expect_refused("b.lse.data is not aligned", [](Call& call) { call.b.lse.data += 2; });
  expect_refused("lse.dtype is f16", [](Call& call) { call.lse.dtype = DType::kF16; });
  expect_refused("rows of lse overlap", [](Call& call) { call.lse.head_stride = 0; });
  expect_refused("lse is [3 tokens, 2 heads, head_dim 2]",
                 [](Call& call) { call.lse.head_dim = 2; });
  EXPECT_TRUE(merged.out.memory == before);
}

}  // namespace
}  // namespace kvfolio
