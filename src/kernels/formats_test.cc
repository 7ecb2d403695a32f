// SPDX-License-Identifier: Apache-2.0

// Every format and element type of a cache: what append leaves in memory byte by byte, what gather
// makes of it, and that copies and hostile views of them are what they should be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/rows.h"
#include "kernels/stream.h"
#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using testing_cache::gathered;
using testing_cache::kCacheDTypes;
using testing_cache::kDTypes;
using testing_cache::kFormats;
using testing_cache::quantized;
using testing_cache::store;
using testing_cache::TestCache;
using testing_cache::TestRows;

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}
  int pick(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }
  template <typename T, std::size_t kCount>
  T one_of(const T (&values)[kCount]) {
    return values[static_cast<std::size_t>(pick(0, static_cast<int>(kCount) - 1))];
  }

 private:
  std::mt19937 random_;
};

constexpr int kBlockSizes[] = {1, 3, 8, 16, 32, 48, 64, 1024};
constexpr int kTileBlockSizes[] = {16, 32, 48, 64, 1024};
constexpr int kHeadDims[] = {8, 64, 80, 128, 256, 264, 520};

// Some shape of a format and a type.
GroupSpec random_spec(Random& random, DType dtype, Format format) {
  const bool granule = format == Format::kGranule;
  GroupSpec spec{
      .num_layers = random.pick(1, 2),
      .num_kv_heads = random.pick(1, 3),
      .head_dim_k = random.one_of(kHeadDims),
      .block_size = granule ? random.one_of(kTileBlockSizes) : random.one_of(kBlockSizes),
      .dtype = dtype,
      .format = format};
  if (spec.block_size == 1024) spec.num_layers = spec.num_kv_heads = 1;
  spec.head_dim_v = random.pick(0, 4) == 0 ? 0 : random.one_of(kHeadDims);
  spec.v_is_prefix_of_k = !granule && spec.head_dim_v > 0 && random.pick(0, 4) == 0;
  if (spec.v_is_prefix_of_k) spec.head_dim_v = random.pick(1, spec.head_dim_k);
  if (!granule && random.pick(0, 3) == 0) spec.head_dim_k += random.pick(0, 7);
  spec.num_blocks = 2 + 80 / spec.block_size;
  return spec;
}

bool stores_v(const GroupSpec& spec) { return spec.head_dim_v > 0 && !spec.v_is_prefix_of_k; }

// Runs of tokens, single ones, skipped ones and some slots twice.
std::vector<std::int32_t> random_slots(Random& random, const GroupSpec& spec) {
  const int end = spec.num_blocks * spec.block_size;
  std::vector<std::int32_t> slots;
  const int runs = random.pick(1, 5);
  for (int r = 0; r < runs; ++r) {
    int slot = random.pick(0, end - 1);
    if (random.pick(0, 1) == 0) slot = slot / 16 * 16;
    const int most = random.pick(0, 2) == 0 ? 1 : random.pick(1, 36);
    for (int i = 0; i < most && slot + i < end; ++i) slots.push_back(slot + i);
    if (random.pick(0, 2) == 0) slots.push_back(-1);
  }
  return slots;
}

// Writes one row where spec.h says it belongs.
void put(const TestCache& cache, bool is_v, int layer, int head, int slot, const TestRows& rows,
         int token) {
  const DType dtype = cache.view.dtype;
  if (!has_scales(dtype)) {
    for (int d = 0; d < rows.rows.head_dim; ++d) {
      store(cache.at(is_v, layer, head, slot, d), dtype, rows.value(token, head, d));
    }
    return;
  }
  const testing_cache::QuantizedRow row = quantized(rows, token, head, dtype);
  const std::byte turned = cache.view.granule && !is_v ? std::byte{0x80} : std::byte{0};
  for (int d = 0; d < rows.rows.head_dim; ++d) {
    *cache.at(is_v, layer, head, slot, d) = row.elements[static_cast<std::size_t>(d)] ^ turned;
  }
  std::memcpy(cache.scale_at(is_v, layer, head, slot), &row.scale, sizeof row.scale);
}

std::size_t bytes_of(const GroupSpec& spec) {
  return static_cast<std::size_t>(plan_layouts({.groups = {spec}})->at(0).total_bytes);
}

void for_each_type_and_format(const std::function<void(DType, Format)>& check) {
  for (const DType dtype : kCacheDTypes) {
    for (const Format format : kFormats) {
      if (format == Format::kGranule && !fits_granule(dtype)) continue;
      check(dtype, format);
    }
  }
}

TEST(EveryFormat, AppendWritesTheBytesThatTheFormatSaysAndNoOthers) {
  Random random(11);
  for_each_type_and_format([&](DType dtype, Format format) {
    for (int round = 0; round < 24; ++round) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(format) + " round " +
                   std::to_string(round));
      const GroupSpec spec = random_spec(random, dtype, format);
      const std::vector<std::int32_t> slots = random_slots(random, spec);
      const int num_tokens = static_cast<int>(slots.size());
      const int gap = random.pick(0, 2);
      TestRows k(num_tokens, spec.num_kv_heads, spec.head_dim_k, random.one_of(kDTypes), gap);
      TestRows v(num_tokens, spec.num_kv_heads, std::max(1, spec.head_dim_v),
                 random.one_of(kDTypes), gap);
      k.fill(static_cast<std::uint64_t>(round));
      v.fill(static_cast<std::uint64_t>(round) + 500);
      TestCache cache(spec);
      TestCache want(spec);
      const int layer = spec.num_layers - 1;
      ASSERT_TRUE(append(cache.view, layer, k.rows,
                         stores_v(spec) ? ConstRowsView(v.rows) : ConstRowsView(), slots)
                      .ok());
      for (int t = 0; t < num_tokens; ++t) {
        const std::int32_t slot = slots[static_cast<std::size_t>(t)];
        for (int h = 0; h < spec.num_kv_heads && slot >= 0; ++h) {
          put(want, false, layer, h, slot, k, t);
          if (stores_v(spec)) put(want, true, layer, h, slot, v, t);
        }
      }
      ASSERT_EQ(std::memcmp(cache.view.k, want.view.k, bytes_of(spec)), 0);
    }
  });
}

TEST(EveryFormat, GatherGivesTheValuesBackInAnyTypeFromAnyPosition) {
  Random random(12);
  for_each_type_and_format([&](DType dtype, Format format) {
    for (int round = 0; round < 16; ++round) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " " + to_string(format) + " round " +
                   std::to_string(round));
      const GroupSpec spec = random_spec(random, dtype, format);
      const int num_slots = spec.num_blocks * spec.block_size;
      TestCache cache(spec);
      const int length = random.pick(1, std::min(80, num_slots));
      const std::vector<std::int32_t> table =
          testing_cache::permutation(spec.num_blocks, static_cast<unsigned>(round));
      std::vector<std::int32_t> slots;
      slots.reserve(static_cast<std::size_t>(length));
      for (int p = 0; p < length; ++p) {
        slots.push_back(table[static_cast<std::size_t>(p / spec.block_size)] * spec.block_size +
                        p % spec.block_size);
      }
      TestRows k(length, spec.num_kv_heads, spec.head_dim_k, DType::kF32);
      TestRows v(length, spec.num_kv_heads, std::max(1, spec.head_dim_v), DType::kF32);
      k.fill(1);
      v.fill(2);
      ASSERT_TRUE(append(cache.view, 0, k.rows,
                         stores_v(spec) ? ConstRowsView(v.rows) : ConstRowsView(), slots)
                      .ok());
      const int first = random.pick(0, length - 1);
      const int count = random.pick(1, length - first);
      const DType out = random.one_of(kDTypes);
      const int gap = random.pick(0, 2);
      TestRows k_out(count, spec.num_kv_heads, spec.head_dim_k, out, gap);
      TestRows v_out(count, spec.num_kv_heads, std::max(1, spec.head_dim_v), out, gap);
      const Status status = gather({.cache = cache.view,
                                    .block_table = table,
                                    .length = length,
                                    .first = first,
                                    .count = count,
                                    .k = k_out.rows,
                                    .v = spec.head_dim_v > 0 ? v_out.rows : RowsView()});
      ASSERT_TRUE(status.ok()) << status.message();
      for (int t = 0; t < count; ++t) {
        const int position = first + t;
        const std::int32_t slot = slots[static_cast<std::size_t>(position)];
        for (int h = 0; h < spec.num_kv_heads; ++h) {
          for (int d = 0; d < spec.head_dim_k; ++d) {
            ASSERT_EQ(k_out.value(t, h, d),
                      gathered(cache.value(false, 0, h, slot, d), dtype, out));
          }
          for (int d = 0; d < spec.head_dim_v; ++d) {
            ASSERT_EQ(v_out.value(t, h, d), gathered(cache.value(true, 0, h, slot, d), dtype, out));
          }
        }
      }
    }
  });
}

TEST(EveryFormat, GatheredValuesOfOneTypeDoNotDependOnTheFormat) {
  for (const DType dtype : kCacheDTypes) {
    std::vector<std::byte> first;
    for (const Format format : kFormats) {
      if (format == Format::kGranule && !fits_granule(dtype)) continue;
      GroupSpec spec{.num_kv_heads = 2,
                     .head_dim_k = 64,
                     .head_dim_v = 80,
                     .block_size = 32,
                     .dtype = dtype,
                     .format = format,
                     .num_blocks = 2};
      TestCache cache(spec);
      TestRows k(40, 2, 64, DType::kF32);
      TestRows v(40, 2, 80, DType::kF32);
      k.fill(1);
      v.fill(2);
      std::vector<std::int32_t> slots(40);
      std::iota(slots.begin(), slots.end(), 5);
      ASSERT_TRUE(append(cache.view, 0, k.rows, v.rows, slots).ok());
      TestRows out(45, 2, 80, DType::kF32);
      const std::int32_t table[] = {0, 1};
      ASSERT_TRUE(gather({.cache = cache.view,
                          .block_table = table,
                          .length = 45,
                          .first = 5,
                          .count = 40,
                          .v =
                              [&] {
                                RowsView rows = out.rows;
                                rows.num_tokens = 40;
                                return rows;
                              }()})
                      .ok());
      const std::vector<std::byte> values(out.rows.data, out.rows.at(40, 0));
      if (first.empty()) first = values;
      EXPECT_EQ(values, first) << to_string(dtype) << " " << to_string(format);
    }
  }
}

TEST(EveryFormat, ARowThatHoldsNoNumberIsZerosOfScaleNaN) {
  for_each_type_and_format([](DType dtype, Format format) {
    if (!has_scales(dtype)) return;
    const GroupSpec spec{
        .head_dim_k = 16, .head_dim_v = 16, .dtype = dtype, .format = format, .num_blocks = 1};
    for (const double bad :
         {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN(), 1e300}) {
      TestCache cache(spec);
      TestRows k(2, 1, 16, DType::kF64);
      k.fill(3);
      k.set(0, 0, 9, bad);
      const std::int32_t slots[] = {4, 5};
      ASSERT_TRUE(append(cache.view, 0, k.rows, k.rows, slots).ok());
      TestRows out(1, 1, 16, DType::kF32);
      for (const bool is_v : {false, true}) {
        float scale = 0;
        std::memcpy(&scale, cache.scale_at(is_v, 0, 0, 4), sizeof scale);
        EXPECT_TRUE(std::isnan(scale));
        const int zero = format == Format::kGranule && !is_v ? 128 : 0;
        for (int d = 0; d < 16; ++d) {
          EXPECT_EQ(std::to_integer<int>(*cache.at(is_v, 0, 0, 4, d)), zero);
          EXPECT_FALSE(std::isnan(cache.value(is_v, 0, 0, 5, d)));
        }
        ASSERT_TRUE(read_token(cache.view, {.slot = 4}, is_v ? RowsView() : out.rows,
                               is_v ? out.rows : RowsView())
                        .ok());
        for (int d = 0; d < 16; ++d) EXPECT_TRUE(std::isnan(out.value(0, 0, d)));
      }
    }
  });
}

TEST(EveryFormat, ValuesOfInt8AreWithinHalfAStepOfTheRow) {
  const GroupSpec spec{.head_dim_k = 64, .head_dim_v = 0, .dtype = DType::kInt8, .num_blocks = 1};
  TestCache cache(spec);
  TestRows k(16, 1, 64, DType::kF32);
  k.fill(5);
  std::vector<std::int32_t> slots(16);
  std::iota(slots.begin(), slots.end(), 0);
  ASSERT_TRUE(append(cache.view, 0, k.rows, {}, slots).ok());
  for (int t = 0; t < 16; ++t) {
    double amax = 0;
    for (int d = 0; d < 64; ++d) amax = std::max(amax, std::fabs(k.value(t, 0, d)));
    for (int d = 0; d < 64; ++d) {
      EXPECT_LE(std::fabs(cache.value(false, 0, 0, t, d) - k.value(t, 0, d)),
                amax / 127 * (0.5 + 1e-4));
    }
  }
}

TEST(EveryFormat, ValuesOfE4M3AreWithinHalfAStepOfThemselvesOrOfTheLeastOfTheRow) {
  const GroupSpec spec{.head_dim_k = 64, .head_dim_v = 0, .dtype = DType::kE4M3, .num_blocks = 1};
  TestCache cache(spec);
  TestRows k(16, 1, 64, DType::kF32);
  k.fill(5);
  std::vector<std::int32_t> slots(16);
  std::iota(slots.begin(), slots.end(), 0);
  ASSERT_TRUE(append(cache.view, 0, k.rows, {}, slots).ok());
  for (int t = 0; t < 16; ++t) {
    double amax = 0;
    for (int d = 0; d < 64; ++d) amax = std::max(amax, std::fabs(k.value(t, 0, d)));
    for (int d = 0; d < 64; ++d) {
      const double value = k.value(t, 0, d);
      const double step = std::max(std::fabs(value) / 8, amax / 448 * 0x1p-9);
      EXPECT_LE(std::fabs(cache.value(false, 0, 0, t, d) - value), step * (0.5 + 1e-4));
    }
  }
}

TEST(EveryFormat, StridesOfAnEngineDoNotMatter) {
  // Heads outermost, blocks in reverse order of size, room between everything.
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kE4M3}) {
    for (const bool granule : {false, true}) {
      if (granule && !fits_granule(dtype)) continue;
      const GroupSpec spec{.num_layers = 2,
                           .num_kv_heads = 3,
                           .head_dim_k = 24,
                           .head_dim_v = 16,
                           .block_size = 32,
                           .dtype = dtype,
                           .format = granule ? Format::kGranule : Format::kHnd,
                           .num_blocks = 3};
      TestCache want(spec);
      TestCache got(spec);
      const std::int64_t row = 24 * dtype_bytes(dtype) * (granule ? 16 : 1) + 64;
      const std::int64_t rows = granule ? 2 : 32;
      std::vector<std::byte> memory(
          static_cast<std::size_t>(2 * 18 * rows * row + 2 * 18 * 192 + 64), std::byte{0xff});
      std::byte* const base =
          memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
      got.view.k = base;
      got.view.v = base + 18 * rows * row;
      got.view.k_strides = {rows * row, 2 * rows * row, 6 * rows * row, row};
      got.view.v_strides = got.view.k_strides;
      if (has_scales(dtype)) {
        got.view.k_scale = base + 2 * 18 * rows * row;
        got.view.v_scale = got.view.k_scale + 18 * 192;
        got.view.k_scale_strides = {192, 384, 1152, 4};
        got.view.v_scale_strides = got.view.k_scale_strides;
      }
      TestRows k(50, 3, 24, DType::kF32);
      TestRows v(50, 3, 16, DType::kF32);
      k.fill(1);
      v.fill(2);
      std::vector<std::int32_t> slots(50);
      std::iota(slots.begin(), slots.end(), 21);
      for (const TestCache* cache : {&want, &got}) {
        ASSERT_TRUE(append(cache->view, 1, k.rows, v.rows, slots).ok());
        const std::int32_t src[] = {1};
        const std::int32_t dst[] = {0};
        ASSERT_TRUE(copy_blocks(cache->view, src, dst).ok());
      }
      for (int layer = 0; layer < 2; ++layer) {
        for (int slot = 0; slot < 96; ++slot) {
          for (int head = 0; head < 3; ++head) {
            for (int d = 0; d < 24; ++d) {
              const double a = got.value(false, layer, head, slot, d);
              const double b = want.value(false, layer, head, slot, d);
              ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b)));
            }
            for (int d = 0; d < 16; ++d) {
              const double a = got.value(true, layer, head, slot, d);
              const double b = want.value(true, layer, head, slot, d);
              ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b)));
            }
          }
        }
      }
    }
  }
}

TEST(EveryFormat, StreamedTilesHoldTheBytesOfTilesThatAreNot) {
  using kernels::RowWriter;
  Random random(13);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const int head_dim : {8, 40, 128, 256, 264}) {
      const GroupSpec spec{.num_kv_heads = 2,
                           .head_dim_k = head_dim,
                           .head_dim_v = head_dim,
                           .block_size = 64,
                           .dtype = dtype,
                           .format = Format::kGranule,
                           .num_blocks = 1};
      TestCache want(spec);
      TestCache got(spec);
      TestRows rows(45, 2, head_dim, random.one_of(kDTypes));
      rows.fill(7);
      const kernels::RowBox box{
          .block = 0, .head = 0, .offset = 11, .num_tokens = 45, .num_heads = 2};
      const kernels::BoxStrides strides{rows.rows.token_stride, rows.rows.head_stride};
      for (const bool is_v : {false, true}) {
        const auto write = [&](const TestCache& cache, kernels::Stores stores) {
          RowWriter(is_v ? kernels::v_plane(cache.view, 0) : kernels::k_plane(cache.view, 0),
                    rows.rows.dtype, stores)
              .write(box, rows.rows.data, strides);
        };
        write(want, kernels::Stores::kCached);
        write(got, kernels::Stores::kPastCaches);
      }
      kernels::stream_fence();
      EXPECT_EQ(std::memcmp(got.view.k, want.view.k, bytes_of(spec)), 0);
    }
  }
}

TEST(EveryFormat, StreamedRowsHoldTheBytesOfRowsThatAreNot) {
  using kernels::Stores;
  for (const DType dtype : kCacheDTypes) {
    for (const Format format : kFormats) {
      for (const int head_dim : {1, 5, 8, 40, 128, 264}) {
        const bool granule = format == Format::kGranule;
        if (granule && (!fits_granule(dtype) || head_dim % 8 != 0)) continue;
        for (const int gap : {0, 3}) {
          const GroupSpec spec{.num_kv_heads = 3,
                               .head_dim_k = head_dim,
                               .head_dim_v = head_dim,
                               .block_size = 64,
                               .dtype = dtype,
                               .format = format,
                               .num_blocks = 1};
          const DType type = has_scales(dtype) ? DType::kF32 : dtype;
          TestRows rows(45, 3, head_dim, type, gap);
          rows.fill(7);
          const kernels::RowBox box{
              .block = 0, .head = 0, .offset = 11, .num_tokens = 45, .num_heads = 3};
          const kernels::BoxStrides strides{rows.rows.token_stride, rows.rows.head_stride};
          const auto written_and_read = [&](Stores stores) {
            const TestCache cache(spec);
            std::vector<std::byte> all;
            for (const bool is_v : {false, true}) {
              const TestRows back(45, 3, head_dim, type, gap);
              const kernels::Plane plane =
                  is_v ? kernels::v_plane(cache.view, 0) : kernels::k_plane(cache.view, 0);
              kernels::RowWriter(plane, type, stores).write(box, rows.rows.data, strides);
              kernels::RowReader(plane, type, stores).read(box, back.rows.data, strides);
              kernels::stream_fence();
              const std::byte* const read = back.rows.data;
              all.insert(all.end(), read, read + 45 * back.rows.token_stride);
            }
            all.insert(all.end(), cache.view.k, cache.view.k + bytes_of(spec));
            return all;
          };
          ASSERT_EQ(written_and_read(Stores::kPastCaches), written_and_read(Stores::kCached))
              << to_string(dtype) << " " << to_string(format) << " " << head_dim << " gap " << gap;
        }
      }
    }
  }
}

// From 32 MiB on append streams, from 64 on gather.
TEST(EveryFormat, ALargeAppendComesBackFromALargeGather) {
  for (const Format format : kFormats) {
    const GroupSpec spec{.num_kv_heads = 2,
                         .head_dim_k = 520,
                         .head_dim_v = 520,
                         .dtype = DType::kF32,
                         .format = format,
                         .num_blocks = 600};
    const TestCache cache(spec);
    constexpr int kTokens = 9000;  // 71 MiB
    const TestRows k(kTokens, 2, 520, DType::kF32);
    const TestRows v(kTokens, 2, 520, DType::kF32);
    k.fill(1);
    v.fill(2);
    std::vector<std::int32_t> table(563);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(599 - i);
    std::vector<std::int32_t> slots;
    slots.reserve(kTokens);
    for (int t = 0; t < kTokens; ++t) {
      slots.push_back(table[static_cast<std::size_t>(t / 16)] * 16 + t % 16);
    }
    // The last one of equal slots wins here too: a whole tile and a token come a second time.
    std::vector<std::int32_t> repeated(slots.end() - 33, slots.end() - 17);
    repeated.push_back(slots[7]);
    std::vector<std::int32_t> twice = repeated;
    twice.insert(twice.end(), slots.begin(), slots.end());
    const TestRows k_twice(static_cast<int>(twice.size()), 2, 520, DType::kF32);
    const TestRows v_twice(static_cast<int>(twice.size()), 2, 520, DType::kF32);
    k_twice.fill(3);
    v_twice.fill(4);
    for (std::size_t t = repeated.size(); t < twice.size(); ++t) {
      const auto from = static_cast<int>(t - repeated.size());
      const auto bytes = static_cast<std::size_t>(k.rows.token_stride);
      std::memcpy(k_twice.rows.at(static_cast<int>(t), 0), k.rows.at(from, 0), bytes);
      std::memcpy(v_twice.rows.at(static_cast<int>(t), 0), v.rows.at(from, 0), bytes);
    }
    ASSERT_TRUE(append(cache.view, 0, k_twice.rows, v_twice.rows, twice).ok());
    const TestRows k_back(kTokens, 2, 520, DType::kF32);
    const TestRows v_back(kTokens, 2, 520, DType::kF32);
    GatherArgs args{.cache = cache.view, .block_table = table, .length = kTokens};
    args.count = kTokens;
    args.k = k_back.rows;
    args.v = v_back.rows;
    ASSERT_TRUE(gather(args).ok());
    const auto bytes = static_cast<std::size_t>(kTokens * k.rows.token_stride);
    EXPECT_EQ(std::memcmp(k_back.rows.data, k.rows.data, bytes), 0);
    EXPECT_EQ(std::memcmp(v_back.rows.data, v.rows.data, bytes), 0);
  }
}

TEST(ConvertBlocks, EveryFormatAndTypeReachesEveryOtherAsGatherAndAppendWould) {
  Random random(14);
  for_each_type_and_format([&](DType from_dtype, Format from_format) {
    for_each_type_and_format([&](DType to_dtype, Format to_format) {
      SCOPED_TRACE(std::string(to_string(from_dtype)) + " " + to_string(from_format) + " to " +
                   to_string(to_dtype) + " " + to_string(to_format));
      GroupSpec from_spec{.num_layers = 2,
                          .num_kv_heads = 2,
                          .head_dim_k = random.one_of({8, 40, 264, 520}),
                          .head_dim_v = random.one_of({0, 8, 128}),
                          .block_size = random.one_of({16, 48}),
                          .dtype = from_dtype,
                          .format = from_format,
                          .num_blocks = 3};
      GroupSpec to_spec = from_spec;
      to_spec.dtype = to_dtype;
      to_spec.format = to_format;
      to_spec.num_blocks = 4;
      TestCache from(from_spec);
      TestCache to(to_spec);
      TestCache want(to_spec);
      const int tokens = from_spec.block_size;
      const bool has_v = from_spec.head_dim_v > 0;
      const std::int32_t src[] = {2, 0};
      const std::int32_t dst[] = {1, 3};
      for (int layer = 0; layer < 2; ++layer) {
        for (int i = 0; i < 2; ++i) {
          // Some slots of a block hold nothing yet: whether that is copied makes no difference.
          TestRows k(tokens, 2, from_spec.head_dim_k, DType::kF32);
          TestRows v(tokens, 2, std::max(1, from_spec.head_dim_v), DType::kF32);
          const int seed = layer * 2 + i;
          k.fill(static_cast<std::uint64_t>(seed));
          v.fill(static_cast<std::uint64_t>(seed) + 100);
          std::vector<std::int32_t> slots(static_cast<std::size_t>(tokens));
          std::iota(slots.begin(), slots.end(), src[i] * tokens);
          ASSERT_TRUE(append(from.view, layer, k.rows,
                             has_v ? ConstRowsView(v.rows) : ConstRowsView(), slots)
                          .ok());
          // What is expected: read in the source's type (f32 for int8), and appended.
          const DType between = has_scales(from_dtype) ? DType::kF32 : from_dtype;
          TestRows k_back(tokens, 2, from_spec.head_dim_k, between);
          TestRows v_back(tokens, 2, std::max(1, from_spec.head_dim_v), between);
          ASSERT_TRUE(gather({.cache = from.view,
                              .block_table = std::span(src + i, 1),
                              .length = tokens,
                              .count = tokens,
                              .first_layer = layer,
                              .k = k_back.rows,
                              .v = has_v ? v_back.rows : RowsView()})
                          .ok());
          std::iota(slots.begin(), slots.end(), dst[i] * tokens);
          // int8 to int8 keeps its scales, so that the rows themselves say what is expected.
          const bool raw = has_scales(from_dtype) && from_dtype == to_dtype;
          const TestRows& k_want = raw ? k : k_back;
          const TestRows& v_want = raw ? v : v_back;
          ASSERT_TRUE(append(want.view, layer, k_want.rows,
                             has_v ? ConstRowsView(v_want.rows) : ConstRowsView(), slots)
                          .ok());
        }
      }
      const Status status = convert_blocks(from.view, to.view, src, dst);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(std::memcmp(to.view.k, want.view.k, bytes_of(to_spec)), 0);
    });
  });
}

TEST(ConvertBlocks, AVThatIsAPrefixOfKBecomesAVOfItsOwn) {
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    GroupSpec spec{.head_dim_k = 16,
                   .head_dim_v = 8,
                   .v_is_prefix_of_k = true,
                   .dtype = dtype,
                   .num_blocks = 1};
    TestCache latent(spec);
    spec.v_is_prefix_of_k = false;
    spec.format = Format::kGranule;
    TestCache tiles(spec);
    TestRows k(16, 1, 16, DType::kF32);
    k.fill(1);
    std::vector<std::int32_t> slots(16);
    std::iota(slots.begin(), slots.end(), 0);
    ASSERT_TRUE(append(latent.view, 0, k.rows, {}, slots).ok());
    const std::int32_t block[] = {0};
    ASSERT_TRUE(convert_blocks(latent.view, tiles.view, block, block).ok());
    for (int slot = 0; slot < 16; ++slot) {
      for (int d = 0; d < 16; ++d) {
        EXPECT_EQ(tiles.value(false, 0, 0, slot, d), latent.value(false, 0, 0, slot, d));
      }
      for (int d = 0; d < 8; ++d) {
        EXPECT_EQ(tiles.value(true, 0, 0, slot, d), latent.value(false, 0, 0, slot, d));
      }
    }
    const Status back = convert_blocks(tiles.view, latent.view, block, block);
    EXPECT_THAT(back.message(), HasSubstr("V is a prefix of K in the target"));
  }
}

TEST(ConvertBlocks, EachWrongArgumentIsRefusedAndNothingMoves) {
  const GroupSpec spec{.num_layers = 2, .head_dim_k = 8, .head_dim_v = 8, .num_blocks = 3};
  TestCache from(spec);
  TestCache to(spec);
  const std::vector<std::byte> before = to.memory;
  const std::int32_t good[] = {0, 2};
  const auto refused = [&](const KVView& a, const KVView& b, std::span<const std::int32_t> src,
                           std::span<const std::int32_t> dst, const char* says) {
    const Status status = convert_blocks(a, b, src, dst);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << says;
    EXPECT_THAT(status.message(), HasSubstr(says));
    EXPECT_EQ(to.memory, before);
  };
  for (const std::int32_t bad : {-1, 3, std::numeric_limits<std::int32_t>::max()}) {
    const std::int32_t blocks[] = {1, bad};
    refused(from.view, to.view, blocks, good, "src[1] is");
    refused(from.view, to.view, good, blocks, "dst[1] is");
  }
  refused(from.view, to.view, good, std::span(good, 1), "2 sources, 1 destinations");
  const auto spoiled = [&](auto&& spoil) {
    KVView view = from.view;
    spoil(view);
    return view;
  };
  refused(spoiled([](KVView& v) { v.num_layers = 1; }), to.view, good, good,
          "num_layers is 1 and 2");
  refused(spoiled([](KVView& v) { v.block_size = 8; }), to.view, good, good,
          "block_size is 8 and 16");
  refused(spoiled([](KVView& v) { v.head_dim_v = 4; }), to.view, good, good,
          "head_dim_v is 4 and 8");
  refused(spoiled([](KVView& v) { v.k = nullptr; }), to.view, good, good, "cache.k is null");
  const GroupSpec wide{.head_dim_k = 4097, .head_dim_v = 0, .num_blocks = 1};
  TestCache wide_from(wide);
  const std::int32_t first[] = {0};
  refused(wide_from.view, wide_from.view, first, first, "a row has 4097 elements");
}

TEST(EveryFormat, EachHostileViewOfTilesAndScalesIsRefused) {
  const GroupSpec spec{.num_layers = 2,
                       .num_kv_heads = 2,
                       .head_dim_k = 8,
                       .head_dim_v = 8,
                       .block_size = 32,
                       .dtype = DType::kInt8,
                       .format = Format::kGranule,
                       .num_blocks = 2};
  TestCache cache(spec);
  TestRows rows(1, 2, 8, DType::kF32);
  rows.fill(1);
  const std::int32_t slots[] = {0};
  ASSERT_TRUE(append(cache.view, 0, rows.rows, rows.rows, slots).ok());
  struct Case {
    const char* says;
    std::function<void(KVView&)> spoil;
  };
  const Case cases[] = {
      {"cache.k is not aligned to a line, 64 bytes", [](KVView& v) { v.k += 16; }},
      {"cache.v is not aligned to a line", [](KVView& v) { v.v += 32; }},
      {"cache.k_scale is not aligned to a line", [](KVView& v) { v.k_scale += 4; }},
      {"cache.k_scale is null", [](KVView& v) { v.k_scale = nullptr; }},
      {"cache.v_scale is null", [](KVView& v) { v.v_scale = nullptr; }},
      {"cache.k_strides has 96", [](KVView& v) { v.k_strides.token = 96; }},
      {"cache.v_strides has 32", [](KVView& v) { v.v_strides.head = 32; }},
      {"cache.v_strides has -128", [](KVView& v) { v.v_strides.token = -128; }},
      {"cache.k_scale_strides.token is 8, allowed in format granule: 4",
       [](KVView& v) { v.k_scale_strides.token = 8; }},
      {"cache.v_scale_strides has 4", [](KVView& v) { v.v_scale_strides.head = 4; }},
      {"the extent of cache.k overflows",
       [](KVView& v) { v.k_strides.layer = std::numeric_limits<std::int64_t>::max() - 63; }},
      {"the extent of cache.v_scale overflows",
       [](KVView& v) { v.v_scale_strides.layer = std::numeric_limits<std::int64_t>::max() - 63; }},
      {"cache.block_size is 24, allowed in format granule: multiples of 16",
       [](KVView& v) { v.block_size = 24; }},
      {"cache.head_dim_k is 12", [](KVView& v) { v.head_dim_k = 12; }},
      {"cache.head_dim_v is 4", [](KVView& v) { v.head_dim_v = 4; }},
      {"cache.v_is_prefix_of_k", [](KVView& v) { v.v_is_prefix_of_k = true; }},
      {"cache.dtype is f64", [](KVView& v) { v.dtype = DType::kF64; }},
      {"cache.dtype is e4m3", [](KVView& v) { v.dtype = DType::kE4M3; }},
      {"cache.k_scale is given for bf16", [](KVView& v) { v.dtype = DType::kBF16; }},
      {"cache.k_scale_strides has 6",
       [](KVView& v) {
         v.granule = false;
         v.k_scale_strides.token = 6;
       }},
      {"cache.k_scale is not aligned to its element, 4 bytes",
       [](KVView& v) {
         v.granule = false;
         v.k_scale += 2;
       }},
  };
  const std::vector<std::byte> before = cache.memory;
  for (const Case& c : cases) {
    KVView view = cache.view;
    c.spoil(view);
    const Status status = append(view, 0, rows.rows, rows.rows, slots);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << c.says;
    EXPECT_THAT(status.message(), HasSubstr(c.says));
    EXPECT_FALSE(attention_workspace_bytes(view, 2, 1)) << c.says;
    EXPECT_FALSE(copy_blocks(view, slots, slots).ok()) << c.says;
  }
  EXPECT_EQ(cache.memory, before);
}

// ---- opaque ------------------------------------------------------------------------------------

RowsView bytes_of_rows(std::vector<std::byte>& bytes, int tokens, int heads, int dim) {
  return {bytes.data(), heads * dim, dim, tokens, heads, dim, DType::kOpaque};
}

TEST(OpaqueCache, RowsGoInAndOutAsTheyAreAndBlocksMoveBetweenFormats) {
  constexpr int kTokens = 21, kHeads = 3, kDimK = 13, kDimV = 5;
  std::mt19937 random(9);
  const auto drawn = [&](int dim) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(kTokens * kHeads * dim));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xffu);
    return bytes;
  };
  std::vector<std::byte> k = drawn(kDimK), v = drawn(kDimV);
  for (const Format format : {Format::kHnd, Format::kNhd}) {
    GroupSpec spec{.num_layers = 2,
                   .num_kv_heads = kHeads,
                   .head_dim_k = kDimK,
                   .head_dim_v = kDimV,
                   .dtype = DType::kOpaque,
                   .format = format,
                   .num_blocks = 3};
    const TestCache cache(spec);
    spec.format = format == Format::kHnd ? Format::kNhd : Format::kHnd;
    const TestCache other(spec);
    std::vector<std::int32_t> slots(kTokens);
    std::iota(slots.begin(), slots.end(), 16);
    ASSERT_TRUE(append(cache.view, 1, bytes_of_rows(k, kTokens, kHeads, kDimK),
                       bytes_of_rows(v, kTokens, kHeads, kDimV), slots)
                    .ok());
    const std::int32_t blocks[] = {0, 1, 2};
    ASSERT_TRUE(convert_blocks(cache.view, other.view, blocks, blocks).ok());
    const std::int32_t table[] = {1, 2};
    for (const TestCache* from : {&cache, &other}) {
      std::vector<std::byte> k_out(k.size()), v_out(v.size());
      const Status status = gather({.cache = from->view,
                                    .block_table = table,
                                    .length = kTokens,
                                    .count = kTokens,
                                    .first_layer = 1,
                                    .k = bytes_of_rows(k_out, kTokens, kHeads, kDimK),
                                    .v = bytes_of_rows(v_out, kTokens, kHeads, kDimV)});
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(k_out, k);
      EXPECT_EQ(v_out, v);
    }
  }
}

TEST(OpaqueCache, AttentionConversionAndRowsOfOtherTypesAreRefusedByName) {
  const TestCache cache(
      {.head_dim_k = 8, .head_dim_v = 8, .dtype = DType::kOpaque, .num_blocks = 1});
  const TestCache floats({.head_dim_k = 8, .head_dim_v = 8, .num_blocks = 1});
  std::vector<std::byte> bytes(8);
  const RowsView opaque = bytes_of_rows(bytes, 1, 1, 8);
  TestRows rows(1, 1, 8, DType::kF32);
  const std::int32_t slots[] = {0};
  const auto refused = [](const Status& status, ErrorCode code, const char* says) {
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(status.message(), HasSubstr(says));
  };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  refused(append(cache.view, 0, rows.rows, opaque, slots), kInvalid,
          "k.dtype is f32, allowed: opaque, as the cache");
  refused(append(floats.view, 0, rows.rows, opaque, slots), kInvalid, "v.dtype is opaque");
  refused(write_token(cache.view, {}, opaque, rows.rows), kInvalid, "v.dtype is f32");
  refused(read_token(floats.view, {}, opaque, {}), kInvalid, "k.dtype is opaque");
  refused(convert(opaque, rows.rows), kInvalid, "src.dtype is opaque");
  refused(convert(rows.rows, opaque), kInvalid, "dst.dtype is opaque");
  refused(convert_blocks(cache.view, floats.view, slots, slots), kInvalid,
          "dtype is opaque and f32, and opaque bytes are not converted");
  refused(convert_blocks(floats.view, cache.view, slots, slots), kInvalid, "f32 and opaque");
  for (const KernelTarget target : {KernelTarget::kAuto, KernelTarget::kReference}) {
    refused(choose_kernel_target(cache.view, target).error(), ErrorCode::kUnsupported,
            "the cache is opaque");
    refused(attention_workspace_bytes(cache.view, 1, 1, target).error(), ErrorCode::kUnsupported,
            "the cache is opaque");
  }
}

TEST(EveryFormat, RowsOfTypesWithScalesAreRefusedWhereverRowsAreTaken) {
  TestCache cache({.head_dim_k = 8, .head_dim_v = 8, .num_blocks = 1});
  std::byte bytes[64] = {};
  TestRows good(1, 1, 8, DType::kF32);
  const std::int32_t slots[] = {0};
  for (const DType dtype : {DType::kInt8, DType::kE4M3}) {
    const RowsView rows{bytes, 8, 8, 1, 1, 8, dtype};
    for (const Status& status :
         {append(cache.view, 0, rows, good.rows, slots),
          append(cache.view, 0, good.rows, rows, slots),
          gather({.cache = cache.view, .block_table = slots, .length = 1, .count = 1, .k = rows}),
          write_token(cache.view, {}, rows, {}), read_token(cache.view, {}, {}, rows),
          convert(rows, good.rows), convert(good.rows, rows)}) {
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(status.message(),
                  HasSubstr(std::string(to_string(dtype)) + " is a type of caches"));
    }
  }
}

}  // namespace
}  // namespace kvfolio
