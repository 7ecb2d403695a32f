// SPDX-License-Identifier: Apache-2.0

// append, gather, write_token, read_token and copy_blocks, and the faults of earlier systems that
// they must not have.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using testing_cache::appended;
using testing_cache::gathered;
using testing_cache::kCacheDTypes;
using testing_cache::kDTypes;
using testing_cache::kFormats;
using testing_cache::kMax;
using testing_cache::kMin;
using testing_cache::rounded;
using testing_cache::TestCache;
using testing_cache::TestRows;

GroupSpec spec_of(DType dtype, Format format, int block_size, int head_dim_v = 3,
                  bool prefix = false) {
  return {.num_layers = 2,
          .num_kv_heads = 2,
          .head_dim_k = 5,
          .head_dim_v = head_dim_v,
          .v_is_prefix_of_k = prefix,
          .block_size = block_size,
          .dtype = dtype,
          .format = format,
          .num_blocks = 2 + 24 / block_size};
}

// Runs check(spec) over element types, formats, block sizes and kinds of V.
void for_each_spec(const std::function<void(const GroupSpec&)>& check) {
  for (const DType dtype : kCacheDTypes) {
    for (const Format format : kFormats) {
      for (const int block_size : {1, 2, 3, 8, 16, 32, 48, 1024}) {
        if (format != Format::kGranule) {
          check(spec_of(dtype, format, block_size));
          check(spec_of(dtype, format, block_size, 5));
          check(spec_of(dtype, format, block_size, 0));
          check(spec_of(dtype, format, block_size, 2, true));
          continue;
        }
        if (!fits_granule(dtype) || block_size % 16 != 0) continue;
        for (const int head_dim_v : {0, 8, 24}) {
          GroupSpec spec = spec_of(dtype, format, block_size, head_dim_v);
          spec.head_dim_k = 16;
          check(spec);
        }
      }
    }
  }
}

ConstRowsView none() { return {}; }

TEST(Append, EveryTokenLandsInItsSlotAndNothingElseChanges) {
  unsigned seed = 1;
  for_each_spec([&](const GroupSpec& spec) {
    const DType source = kDTypes[seed % 4];
    TestCache cache(spec);
    const bool own_v = spec.head_dim_v > 0 && !spec.v_is_prefix_of_k;
    const int num_slots = spec.num_blocks * spec.block_size;
    // 20 tokens: runs of neighbours, jumps, and every fifth skipped.
    std::vector<std::int32_t> slots = testing_cache::permutation(num_slots, ++seed);
    slots.resize(20);
    for (std::size_t t = 1; t < slots.size(); ++t) {
      if (t % 4 != 0 && slots[t - 1] >= 0 && slots[t - 1] + 1 < num_slots &&
          std::ranges::count(slots, slots[t - 1] + 1) == 0) {
        slots[t] = slots[t - 1] + 1;
      }
      if (t % 5 == 0) slots[t] = -1;
    }
    const int gap = static_cast<int>(seed % 3);
    TestRows k(20, 2, spec.head_dim_k, source, gap);
    TestRows v(20, 2, own_v ? spec.head_dim_v : 1, source, gap);
    k.fill(seed);
    v.fill(seed + 1000);
    ASSERT_TRUE(append(cache.view, 1, k.rows, own_v ? ConstRowsView(v.rows) : none(), slots).ok());

    std::map<int, int> token_of;
    for (std::size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] >= 0) token_of[slots[t]] = static_cast<int>(t);
    }
    for (int layer = 0; layer < 2; ++layer) {
      for (int slot = 0; slot < num_slots; ++slot) {
        const auto found = layer == 1 ? token_of.find(slot) : token_of.end();
        for (int head = 0; head < 2; ++head) {
          for (int d = 0; d < spec.head_dim_k; ++d) {
            const double got = cache.value(false, layer, head, slot, d);
            if (found == token_of.end()) {
              ASSERT_TRUE(std::isnan(got));
            } else {
              ASSERT_EQ(got, appended(k, found->second, head, d, spec.dtype));
            }
          }
          for (int d = 0; d < spec.head_dim_v; ++d) {
            const double got = cache.value(true, layer, head, slot, d);
            if (found == token_of.end()) {
              ASSERT_TRUE(std::isnan(got));
            } else {
              ASSERT_EQ(got, appended(own_v ? v : k, found->second, head, d, spec.dtype));
            }
          }
        }
      }
    }
  });
}

TEST(Append, SingleAndBatchedAppendsGiveTheSameBytes) {
  for_each_spec([&](const GroupSpec& spec) {
    const bool own_v = spec.head_dim_v > 0 && !spec.v_is_prefix_of_k;
    TestCache batched(spec);
    TestCache single(spec);
    TestRows k(24, 2, spec.head_dim_k, DType::kF32);
    TestRows v(24, 2, own_v ? spec.head_dim_v : 1, DType::kF32);
    k.fill(1);
    v.fill(2);
    std::vector<std::int32_t> slots(24);
    for (int t = 0; t < 24; ++t) slots[static_cast<std::size_t>(t)] = t + 1;
    const auto rows = [](const RowsView& all, int first, int count) {
      RowsView some = all;
      some.data = all.at(first, 0);
      some.num_tokens = count;
      return ConstRowsView(some);
    };
    ASSERT_TRUE(
        append(batched.view, 0, k.rows, own_v ? ConstRowsView(v.rows) : none(), slots).ok());
    for (int t = 0; t < 24; ++t) {
      ASSERT_TRUE(append(single.view, 0, rows(k.rows, t, 1), own_v ? rows(v.rows, t, 1) : none(),
                         std::span(slots).subspan(static_cast<std::size_t>(t), 1))
                      .ok());
    }
    const auto bytes =
        static_cast<std::size_t>(plan_layouts({.groups = {spec}})->at(0).total_bytes);
    EXPECT_EQ(std::memcmp(batched.view.k, single.view.k, bytes), 0);
  });
}

TEST(Append, OfEqualSlotsTheLastTokenWins) {
  TestCache cache(spec_of(DType::kF32, Format::kNhd, 4));
  TestRows k(3, 2, 5, DType::kF32);
  TestRows v(3, 2, 3, DType::kF32);
  k.fill(1);
  v.fill(2);
  const std::int32_t slots[] = {6, 7, 6};
  ASSERT_TRUE(append(cache.view, 0, k.rows, v.rows, slots).ok());
  EXPECT_EQ(cache.value(false, 0, 1, 6, 4), k.value(2, 1, 4));
  EXPECT_EQ(cache.value(true, 0, 1, 6, 2), v.value(2, 1, 2));
  EXPECT_EQ(cache.value(false, 0, 0, 7, 0), k.value(1, 0, 0));
}

TEST(Append, NoTokensAndOnlySkippedTokensWriteNothing) {
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  const std::vector<std::byte> before = cache.memory;
  TestRows empty_k(0, 2, 5, DType::kF32);
  TestRows empty_v(0, 2, 3, DType::kF32);
  EXPECT_TRUE(append(cache.view, 0, empty_k.rows, empty_v.rows, {}).ok());
  TestRows k(3, 2, 5, DType::kF32);
  TestRows v(3, 2, 3, DType::kF32);
  const std::int32_t slots[] = {-1, -1, -1};
  EXPECT_TRUE(append(cache.view, 0, k.rows, v.rows, slots).ok());
  EXPECT_EQ(cache.memory, before);
}

// One good append that the tests below spoil in one place each.
struct GoodAppend {
  explicit GoodAppend(DType dtype = DType::kF32, DType source = DType::kF32)
      : cache(spec_of(dtype, Format::kNhd, 4)), k(3, 2, 5, source), v(3, 2, 3, source) {
    k.fill(1);
    v.fill(2);
    view = cache.view;
    k_rows = k.rows;
    v_rows = v.rows;
  }
  // kInvalidArgument, and the memory is as it was.
  void expect_refused(const std::string& says) {
    const std::vector<std::byte> before = cache.memory;
    const Status status = append(view, layer, k_rows, v_rows, slots);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << says;
    EXPECT_THAT(status.message(), HasSubstr(says));
    EXPECT_EQ(cache.memory, before) << says;
  }

  TestCache cache;
  TestRows k;
  TestRows v;
  KVView view;
  std::int32_t layer = 1;
  ConstRowsView k_rows;
  ConstRowsView v_rows;
  std::vector<std::int32_t> slots = {3, 4, 9};
};

TEST(Append, TheGoodAppendIsAccepted) {
  GoodAppend good;
  EXPECT_TRUE(append(good.view, good.layer, good.k_rows, good.v_rows, good.slots).ok());
}

TEST(Append, EachWrongArgumentIsRefusedAndNothingIsWritten) {
  struct Case {
    const char* says;
    std::function<void(GoodAppend&)> spoil;
  };
  const Case cases[] = {
      {"layer is 2, the cache has layers 0 to 1", [](GoodAppend& a) { a.layer = 2; }},
      {"layer is -1", [](GoodAppend& a) { a.layer = -1; }},
      {"layer is 2147483647", [](GoodAppend& a) { a.layer = kMax; }},
      {"k is [3 tokens, 1 heads, head_dim 5], allowed: [3, 2, 5]",
       [](GoodAppend& a) { a.k_rows.num_heads = 1; }},
      {"k is [3 tokens, 2 heads, head_dim 4]", [](GoodAppend& a) { a.k_rows.head_dim = 4; }},
      {"v is [3 tokens, 3 heads", [](GoodAppend& a) { a.v_rows.num_heads = 3; }},
      {"v is [3 tokens, 2 heads, head_dim 5]", [](GoodAppend& a) { a.v_rows.head_dim = 5; }},
      {"v is [2 tokens", [](GoodAppend& a) { a.v_rows.num_tokens = 2; }},
      {"3 slots for 2 tokens", [](GoodAppend& a) { a.k_rows.num_tokens = 2; }},
      {"3 slots for -1 tokens", [](GoodAppend& a) { a.k_rows.num_tokens = -1; }},
      {"k.data is null", [](GoodAppend& a) { a.k_rows.data = nullptr; }},
      {"v.data is null", [](GoodAppend& a) { a.v_rows.data = nullptr; }},
      {"k.data is not aligned", [](GoodAppend& a) { a.k_rows.data += 1; }},
      {"v has a stride of 13", [](GoodAppend& a) { a.v_rows.head_stride = 13; }},
      {"k.dtype is 17", [](GoodAppend& a) { a.k_rows.dtype = static_cast<DType>(17); }},
      {"k.dtype is int8, allowed: f64, f32, f16, bf16 (int8 is a type of caches",
       [](GoodAppend& a) { a.k_rows.dtype = DType::kInt8; }},
      {"v.dtype is -1", [](GoodAppend& a) { a.v_rows.dtype = static_cast<DType>(-1); }},
      {"slots[2] is 32, allowed: -1 (skip) or 0 to 31", [](GoodAppend& a) { a.slots[2] = 32; }},
      {"slots[0] is -2", [](GoodAppend& a) { a.slots[0] = -2; }},
      {"slots[1] is 2147483647", [](GoodAppend& a) { a.slots[1] = kMax; }},
      {"slots[1] is -2147483648", [](GoodAppend& a) { a.slots[1] = kMin; }},
      {"cache.num_layers is 0", [](GoodAppend& a) { a.view.num_layers = 0; }},
      {"cache.num_blocks is 0", [](GoodAppend& a) { a.view.num_blocks = 0; }},
      {"cache.block_size is 0", [](GoodAppend& a) { a.view.block_size = 0; }},
      {"cache.block_size is -4", [](GoodAppend& a) { a.view.block_size = -4; }},
      {"cache.num_kv_heads is 0", [](GoodAppend& a) { a.view.num_kv_heads = 0; }},
      {"cache.head_dim_k is 0", [](GoodAppend& a) { a.view.head_dim_k = 0; }},
      {"cache.head_dim_v is -1", [](GoodAppend& a) { a.view.head_dim_v = -1; }},
      {"cache.dtype is 7", [](GoodAppend& a) { a.view.dtype = static_cast<DType>(7); }},
      {"cache.k is null", [](GoodAppend& a) { a.view.k = nullptr; }},
      {"cache.v is null", [](GoodAppend& a) { a.view.v = nullptr; }},
      {"cache.k is not aligned", [](GoodAppend& a) { a.view.k += 2; }},
      {"cache.v_strides has 6", [](GoodAppend& a) { a.view.v_strides.token = 6; }},
      {"cache.k_strides has -16", [](GoodAppend& a) { a.view.k_strides.block = -16; }},
      {"overflows 63 bits",
       [](GoodAppend& a) { a.view.k_strides.block = (std::int64_t{1} << 62) + 4; }},
      {"prefix of K",
       [](GoodAppend& a) {
         a.view.v_is_prefix_of_k = true;
         a.view.head_dim_v = 6;
       }},
      {"v is given", [](GoodAppend& a) { a.view.head_dim_v = 0; }},
      {"v is given", [](GoodAppend& a) { a.view.v_is_prefix_of_k = true; }},
  };
  for (const Case& c : cases) {
    GoodAppend args;
    c.spoil(args);
    args.expect_refused(c.says);
  }
}

// ---- faults of earlier systems -----------------------------------------------------------------

// Fault B6.
TEST(Append, SlotsThatOverflowInt32AreRefused) {
  GoodAppend args;
  args.view.num_blocks = 200000001;
  args.view.block_size = 16;
  args.expect_refused("200000001 blocks x 16 = 3200000016 slots");
}

// Fault B9.
TEST(Append, FewerSlotsThanTokensIsAnErrorAndNothingIsWritten) {
  GoodAppend fewer;
  fewer.slots.pop_back();
  fewer.expect_refused("2 slots for 3 tokens");
  GoodAppend more;
  more.slots.push_back(1);
  more.expect_refused("4 slots for 3 tokens");
  GoodAppend no_slots;
  no_slots.slots.clear();
  no_slots.expect_refused("0 slots for 3 tokens");
}

// Fault B10.
TEST(Append, ABadLaterSlotIsFoundBeforeTheFirstTokenIsWritten) {
  for (const std::int32_t bad : {32, -2, kMax, kMin}) {
    GoodAppend args;
    args.slots.back() = bad;
    args.expect_refused("slots[2] is " + std::to_string(bad));
  }
}

// Fault B11.
TEST(Append, KeysOfMoreHeadsThanTheCacheHasAreRefused) {
  TestCache cache({.num_kv_heads = 1, .head_dim_k = 4, .head_dim_v = 4, .num_blocks = 2});
  const std::vector<std::byte> before = cache.memory;
  TestRows k(1, 2, 4, DType::kF32);
  TestRows v(1, 1, 4, DType::kF32);
  k.fill(1);
  v.fill(1);
  const std::int32_t slots[] = {0};
  const Status status = append(cache.view, 0, k.rows, v.rows, slots);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("k is [1 tokens, 2 heads"));
  EXPECT_EQ(cache.memory, before);
}

// Fault B12.
TEST(Append, ValuesOfFewerTokensThanKeysAreRefused) {
  GoodAppend args;
  args.v_rows.num_tokens = 1;
  args.expect_refused("v is [1 tokens");
}

// Fault B13.
TEST(Append, SlotsOfSixtyFourBitsDoNotCompile) {
  using Slots64 = std::span<const std::int64_t>;
  using Slots32 = std::span<const std::int32_t>;
  static_assert(std::is_invocable_v<decltype(append), const KVView&, int, const ConstRowsView&,
                                    const ConstRowsView&, Slots32>);
  static_assert(!std::is_invocable_v<decltype(append), const KVView&, int, const ConstRowsView&,
                                     const ConstRowsView&, Slots64>);
}

// Fault B14.
TEST(Append, SinglesIntoAHalfWidthCacheAreConvertedAndStayInTheirSlots) {
  for (const DType half : {DType::kF16, DType::kBF16}) {
    TestCache cache({.num_kv_heads = 1,
                     .head_dim_k = 8,
                     .head_dim_v = 8,
                     .block_size = 2,
                     .dtype = half,
                     .num_blocks = 1});
    TestRows k(1, 1, 8, DType::kF32);
    TestRows v(1, 1, 8, DType::kF32);
    k.fill(3);
    v.fill(4);
    const std::int32_t slots[] = {0};
    ASSERT_TRUE(append(cache.view, 0, k.rows, v.rows, slots).ok());
    for (int d = 0; d < 8; ++d) {
      EXPECT_EQ(cache.value(false, 0, 0, 0, d), rounded(k.value(0, 0, d), half));
      EXPECT_EQ(cache.value(true, 0, 0, 0, d), rounded(v.value(0, 0, d), half));
      EXPECT_TRUE(std::isnan(cache.value(false, 0, 0, 1, d)));
      EXPECT_TRUE(std::isnan(cache.value(true, 0, 0, 1, d)));
    }
  }
}

// Fault L6.
TEST(Append, KeysOfTheWrongLengthAreAnErrorNotStaleData) {
  GoodAppend args;
  args.k_rows.head_dim = 4;
  args.expect_refused("head_dim 4");
  // The same through the call for one (layer, head).
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  TestRows k(1, 1, 4, DType::kF32);
  EXPECT_EQ(write_token(cache.view, {0, 0, 0}, k.rows, {}).code(), ErrorCode::kInvalidArgument);
}

// Fault L7.
TEST(Append, ToALayerThatDoesNotExistIsAnError) {
  GoodAppend args;
  args.layer = 5;
  args.expect_refused("layer is 5, the cache has layers 0 to 1");
}

// Fault L8.
TEST(Gather, OfALayerThatDoesNotExistIsAnErrorNotZeros) {
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  TestRows k(1, 2, 5, DType::kF32);
  const std::vector<std::byte> before = k.memory;
  const std::int32_t table[] = {0};
  const Status status = gather({.cache = cache.view,
                                .block_table = table,
                                .length = 1,
                                .count = 1,
                                .first_layer = 9,
                                .k = k.rows});
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("layer 9"));
  EXPECT_EQ(k.memory, before);
}

// Fault L9.
TEST(OneToken, AtABadPlaceIsAnErrorInReadAndWrite) {
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  const std::vector<std::byte> before = cache.memory;
  TestRows k(1, 1, 5, DType::kF32);
  const TokenPlace bad[] = {{0, 0, 32}, {0, 0, -1}, {0, 0, kMax}, {2, 0, 0},    {-1, 0, 0},
                            {0, 2, 0},  {0, -1, 0}, {kMin, 0, 0}, {0, kMax, 0}, {0, 0, kMin}};
  for (const TokenPlace& place : bad) {
    EXPECT_EQ(write_token(cache.view, place, k.rows, {}).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(read_token(cache.view, place, k.rows, {}).code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(cache.memory, before);
}

// Fault L10.
TEST(Gather, ThroughABadTableEntryIsAnError) {
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  TestRows k(8, 2, 5, DType::kF32);
  const std::vector<std::byte> before = k.memory;
  for (const std::int32_t block : {-1, 8, kMax, kMin}) {
    const std::int32_t table[] = {0, block};
    const Status status =
        gather({.cache = cache.view, .block_table = table, .length = 8, .count = 8, .k = k.rows});
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("block_table[1] is " + std::to_string(block)));
    EXPECT_EQ(k.memory, before);
  }
}

// Fault L17.
TEST(CopyBlocks, ACopyOfABadBlockIsAnErrorAndNothingMoves) {
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  for (std::size_t i = 0; i < cache.memory.size(); ++i) cache.memory[i] = std::byte(i % 251);
  const std::vector<std::byte> before = cache.memory;
  for (const std::int32_t block : {-1, 8, kMax, kMin}) {
    for (const bool in_src : {true, false}) {
      const std::int32_t src[] = {0, in_src ? block : 3};
      const std::int32_t dst[] = {1, in_src ? 2 : block};
      const Status status = copy_blocks(cache.view, src, dst);
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr(std::to_string(block)));
    }
  }
  const std::int32_t two[] = {0, 1};
  EXPECT_EQ(copy_blocks(cache.view, two, std::span(two, 1)).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(cache.memory, before);
}

// Fault J2.
TEST(Gather, ARangeIsGatheredWithoutTheRestOfTheSequence) {
  // Only the blocks of the range need an entry in the table.
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  TestRows all(4, 2, 5, DType::kF32);
  TestRows v(4, 2, 3, DType::kF32);
  all.fill(1);
  v.fill(2);
  const std::int32_t slots[] = {8, 9, 10, 11};
  ASSERT_TRUE(append(cache.view, 0, all.rows, v.rows, slots).ok());
  const std::int32_t table[] = {-1, 2, -1};
  TestRows some(2, 2, 5, DType::kF32);
  ASSERT_TRUE(gather({.cache = cache.view,
                      .block_table = table,
                      .length = 12,
                      .first = 5,
                      .count = 2,
                      .k = some.rows})
                  .ok());
  EXPECT_EQ(some.value(0, 0, 0), all.value(1, 0, 0));
  EXPECT_EQ(some.value(1, 1, 4), all.value(2, 1, 4));
}

// ---- gather, one token, copy -------------------------------------------------------------------

// A cache whose every value is known: hashed(layer, head, slot, d) for K, + 100 layers for V.
void fill_all(const TestCache& cache) {
  const KVView& view = cache.view;
  for (int layer = 0; layer < view.num_layers; ++layer) {
    for (int head = 0; head < view.num_kv_heads; ++head) {
      for (int slot = 0; slot < view.num_blocks * view.block_size; ++slot) {
        const auto l = static_cast<std::uint64_t>(layer);
        const auto h = static_cast<std::uint64_t>(head);
        const auto s = static_cast<std::uint64_t>(slot);
        for (int d = 0; d < view.head_dim_k; ++d) {
          cache.set(false, layer, head, slot, d,
                    testing_cache::hashed(l, h, s, static_cast<std::uint64_t>(d)));
        }
        if (view.v_is_prefix_of_k) continue;
        for (int d = 0; d < view.head_dim_v; ++d) {
          cache.set(true, layer, head, slot, d,
                    testing_cache::hashed(l + 100, h, s, static_cast<std::uint64_t>(d)));
        }
      }
    }
  }
}

TEST(Gather, AnyRangeLayersHeadsAndElementTypeReadTheTokensOfTheTable) {
  std::mt19937 random(5);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for_each_spec([&](const GroupSpec& spec) {
    TestCache cache(spec);
    fill_all(cache);
    const std::vector<std::int32_t> table =
        testing_cache::permutation(spec.num_blocks, static_cast<unsigned>(random()));
    for (int round = 0; round < 4; ++round) {
      // Round 0: everything; then ranges, one layer, one head.
      const int length = pick(1, std::min(24, spec.num_blocks * spec.block_size));
      const int first = round == 0 ? 0 : pick(0, length);
      const int count = round == 0 ? length : pick(0, length - first);
      const int first_layer = round == 0 ? 0 : pick(0, 1);
      const int num_layers = round == 0 ? 2 : pick(1, 2 - first_layer);
      const int first_head = round == 0 ? 0 : pick(0, 1);
      const int heads = round == 0 ? 2 : pick(1, 2 - first_head);
      const DType out = kDTypes[pick(0, 3)];
      const int gap = pick(0, 1);
      // Layers one behind the other in the same rows: [layers * count] tokens.
      TestRows k(num_layers * count, heads, spec.head_dim_k, out, gap);
      TestRows v(num_layers * count, heads, std::max(1, spec.head_dim_v), out, gap);
      GatherArgs args{.cache = cache.view,
                      .block_table = table,
                      .length = length,
                      .first = first,
                      .count = count,
                      .first_layer = first_layer,
                      .num_layers = num_layers,
                      .first_head = first_head,
                      .k = k.rows,
                      .v = v.rows,
                      .k_layer_stride = k.rows.token_stride * count,
                      .v_layer_stride = v.rows.token_stride * count};
      args.k.num_tokens = count;
      args.v.num_tokens = count;
      if (spec.head_dim_v == 0) args.v = {};
      const Status status = gather(args);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int l = 0; l < num_layers; ++l) {
        for (int t = 0; t < count; ++t) {
          const int position = first + t;
          const int slot =
              table[static_cast<std::size_t>(position / spec.block_size)] * spec.block_size +
              position % spec.block_size;
          for (int h = 0; h < heads; ++h) {
            for (int d = 0; d < spec.head_dim_k; ++d) {
              ASSERT_EQ(k.value(l * count + t, h, d),
                        gathered(cache.value(false, first_layer + l, first_head + h, slot, d),
                                 spec.dtype, out));
            }
            for (int d = 0; d < spec.head_dim_v; ++d) {
              ASSERT_EQ(v.value(l * count + t, h, d),
                        gathered(cache.value(true, first_layer + l, first_head + h, slot, d),
                                 spec.dtype, out));
            }
          }
        }
      }
    }
  });
}

TEST(Gather, HeadMajorOutputIsOnlyAMatterOfStrides) {
  TestCache cache(spec_of(DType::kBF16, Format::kHnd, 8));
  fill_all(cache);
  const std::int32_t table[] = {2, 0, 1};
  TestRows k(2, 20, 5, DType::kBF16);  // [heads][tokens][5]
  RowsView head_major = k.rows;
  head_major.num_tokens = 20;
  head_major.num_heads = 2;
  std::swap(head_major.token_stride, head_major.head_stride);
  ASSERT_TRUE(
      gather(
          {.cache = cache.view, .block_table = table, .length = 20, .count = 20, .k = head_major})
          .ok());
  for (int t = 0; t < 20; ++t) {
    const int slot = table[t / 8] * 8 + t % 8;
    for (int h = 0; h < 2; ++h) {
      for (int d = 0; d < 5; ++d) {
        ASSERT_EQ(k.value(h, t, d), cache.value(false, 0, h, slot, d));
      }
    }
  }
}

TEST(Gather, NothingIsReadWhateverTheStridesAre) {
  TestCache cache(
      {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 4, .head_dim_v = 4, .num_blocks = 2});
  const std::int32_t table[] = {0};
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{3}, kLeast}) {
    std::byte byte{};
    const RowsView nothing{&byte, stride, stride, 0, 2, 4, DType::kF32};
    EXPECT_TRUE(gather({.cache = cache.view,
                        .block_table = table,
                        .length = 3,
                        .num_layers = 2,
                        .k = nothing,
                        .k_layer_stride = std::numeric_limits<std::int64_t>::max()})
                    .ok())
        << stride;
    EXPECT_TRUE(convert(nothing, nothing).ok()) << stride;
    const RowsView no_heads{nullptr, stride, stride, 2, 0, 4, DType::kF32};
    EXPECT_TRUE(convert(no_heads, no_heads).ok()) << stride;
  }
}

TEST(Gather, EachWrongArgumentIsRefusedAndNothingIsWritten) {
  TestCache cache(spec_of(DType::kF32, Format::kHnd, 4));
  TestRows k(12, 2, 5, DType::kF32);
  TestRows v(12, 2, 3, DType::kF32);
  const std::int32_t table[] = {0, 1};
  GatherArgs good{.cache = cache.view,
                  .block_table = table,
                  .length = 8,
                  .first = 1,
                  .count = 6,
                  .num_layers = 2,
                  .k = k.rows,
                  .v = v.rows,
                  .k_layer_stride = k.rows.token_stride * 6,
                  .v_layer_stride = v.rows.token_stride * 6};
  good.k.num_tokens = 6;
  good.v.num_tokens = 6;
  struct Case {
    const char* says;
    std::function<void(GatherArgs&)> spoil;
  };
  const Case cases[] = {
      {"8 positions from 1 on of a sequence of 8", [](GatherArgs& a) { a.count = 8; }},
      {"-1 positions", [](GatherArgs& a) { a.count = -1; }},
      {"from -1 on", [](GatherArgs& a) { a.first = -1; }},
      {"from 2147483647 on", [](GatherArgs& a) { a.first = kMax; }},
      {"2147483647 positions", [](GatherArgs& a) { a.count = kMax; }},
      {"of a sequence of -5", [](GatherArgs& a) { a.length = -5; }},
      {"position 6 is in block 1 of a table of 1",
       [](GatherArgs& a) { a.block_table = a.block_table.first(1); }},
      {"0 layers from layer 0", [](GatherArgs& a) { a.num_layers = 0; }},
      {"3 layers from layer 0", [](GatherArgs& a) { a.num_layers = 3; }},
      {"from layer -1", [](GatherArgs& a) { a.first_layer = -1; }},
      {"from layer 2", [](GatherArgs& a) { a.first_layer = 2; }},
      {"2147483647 layers from layer 1",
       [](GatherArgs& a) {
         a.first_layer = 1;
         a.num_layers = kMax;
       }},
      {"k wants 2 heads from head 1", [](GatherArgs& a) { a.first_head = 1; }},
      {"from head -1", [](GatherArgs& a) { a.first_head = -1; }},
      {"k wants 3 heads", [](GatherArgs& a) { a.k.num_heads = 3; }},
      {"v wants 0 heads", [](GatherArgs& a) { a.v.num_heads = 0; }},
      {"k is [5 tokens", [](GatherArgs& a) { a.k.num_tokens = 5; }},
      {"head_dim 4], allowed: [6, 2, 3]", [](GatherArgs& a) { a.v.head_dim = 4; }},
      {"k.dtype", [](GatherArgs& a) { a.k.dtype = static_cast<DType>(17); }},
      {"k.data is not aligned", [](GatherArgs& a) { a.k.data += 2; }},
      {"rows of k overlap", [](GatherArgs& a) { a.k.token_stride = 0; }},
      {"rows of v overlap", [](GatherArgs& a) { a.v.head_stride = 8; }},
      {"k_layer_stride is 0", [](GatherArgs& a) { a.k_layer_stride = 0; }},
      {"v_layer_stride is 140", [](GatherArgs& a) { a.v_layer_stride = 140; }},
      {"k_layer_stride is 241", [](GatherArgs& a) { a.k_layer_stride += 1; }},
      {"k_layer_stride is -240", [](GatherArgs& a) { a.k_layer_stride = -240; }},
      {"the cache has no V", [](GatherArgs& a) { a.cache.head_dim_v = 0; }},
      {"cache.block_size", [](GatherArgs& a) { a.cache.block_size = 0; }},
  };
  const std::vector<std::byte> k_before = k.memory;
  const std::vector<std::byte> v_before = v.memory;
  for (const Case& c : cases) {
    GatherArgs args = good;
    c.spoil(args);
    const Status status = gather(args);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << c.says;
    EXPECT_THAT(status.message(), HasSubstr(c.says));
    EXPECT_EQ(k.memory, k_before) << c.says;
    EXPECT_EQ(v.memory, v_before) << c.says;
  }
  EXPECT_TRUE(gather(good).ok());
}

TEST(OneToken, WriteThenReadGivesTheVectorBackInEveryCombination) {
  for_each_spec([&](const GroupSpec& spec) {
    if (spec.block_size > 16) return;
    const bool own_v = spec.head_dim_v > 0 && !spec.v_is_prefix_of_k;
    for (const DType source : kDTypes) {
      TestCache cache(spec);
      const TokenPlace place{.layer = 1, .head = 1, .slot = spec.num_blocks * spec.block_size - 1};
      TestRows k(1, 1, spec.head_dim_k, source);
      TestRows v(1, 1, std::max(1, spec.head_dim_v), source);
      k.fill(1);
      v.fill(2);
      ASSERT_TRUE(
          write_token(cache.view, place, k.rows, own_v ? ConstRowsView(v.rows) : none()).ok());
      TestRows k_back(1, 1, spec.head_dim_k, DType::kF64);
      TestRows v_back(1, 1, std::max(1, spec.head_dim_v), DType::kF64);
      const bool has_v = spec.head_dim_v > 0;
      ASSERT_TRUE(
          read_token(cache.view, place, k_back.rows, has_v ? v_back.rows : RowsView()).ok());
      int written = 0;
      for (int d = 0; d < spec.head_dim_k; ++d) {
        ASSERT_EQ(k_back.value(0, 0, d),
                  gathered(appended(k, 0, 0, d, spec.dtype), spec.dtype, DType::kF64));
      }
      for (int d = 0; d < spec.head_dim_v; ++d) {
        ASSERT_EQ(v_back.value(0, 0, d),
                  gathered(appended(own_v ? v : k, 0, 0, d, spec.dtype), spec.dtype, DType::kF64));
      }
      // No other vector changed.
      for (int slot = 0; slot < spec.num_blocks * spec.block_size; ++slot) {
        for (int head = 0; head < 2; ++head) {
          written += std::isnan(cache.value(false, 1, head, slot, 0)) ? 0 : 1;
          written += std::isnan(cache.value(false, 0, head, slot, 0)) ? 0 : 1;
        }
      }
      ASSERT_EQ(written, 1);
    }
  });
}

TEST(OneToken, AVThatIsNotStoredIsNotWritten) {
  TestRows k(1, 1, 5, DType::kF32);
  TestRows v(1, 1, 2, DType::kF32);
  const TokenPlace place;
  TestCache prefix(spec_of(DType::kF32, Format::kHnd, 4, 2, true));
  EXPECT_EQ(write_token(prefix.view, place, k.rows, v.rows).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(std::isnan(prefix.value(false, 0, 0, 0, 0)));
  TestCache no_v(spec_of(DType::kF32, Format::kHnd, 4, 0));
  EXPECT_EQ(write_token(no_v.view, place, k.rows, v.rows).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_token(no_v.view, place, {}, v.rows).code(), ErrorCode::kInvalidArgument);
}

TEST(CopyBlocks, WholeBlocksMoveInOrderOnEveryLayer) {
  for_each_spec([&](const GroupSpec& small) {
    GroupSpec spec = small;
    spec.num_blocks = 6;
    if (spec.block_size > 32) spec.num_kv_heads = 1;
    TestCache cache(spec);
    fill_all(cache);
    TestCache before(spec);
    fill_all(before);
    const std::int32_t src[] = {0, 4, 2};
    const std::int32_t dst[] = {4, 1, 2};
    ASSERT_TRUE(copy_blocks(cache.view, src, dst).ok());
    const int source[] = {0, 0, 2, 3, 0, 5};
    for (int layer = 0; layer < spec.num_layers; ++layer) {
      for (int head = 0; head < spec.num_kv_heads; ++head) {
        for (int slot = 0; slot < spec.num_blocks * spec.block_size; ++slot) {
          const int from =
              source[slot / spec.block_size] * spec.block_size + slot % spec.block_size;
          for (int d = 0; d < spec.head_dim_k; ++d) {
            ASSERT_EQ(cache.value(false, layer, head, slot, d),
                      before.value(false, layer, head, from, d));
          }
          for (int d = 0; d < spec.head_dim_v; ++d) {
            ASSERT_EQ(cache.value(true, layer, head, slot, d),
                      before.value(true, layer, head, from, d));
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace kvfolio
