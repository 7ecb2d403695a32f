// SPDX-License-Identifier: Apache-2.0

// The append of a decode: one token a call, which has a path of its own where arguments are plain
// (plain_args.h). It writes the bytes and says the sentences of any other append.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/copy_rows.h"
#include "kernels/plain_args.h"
#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio::append_token_test {
namespace {

using ::testing::HasSubstr;
using testing_cache::kMax;
using testing_cache::kMin;
using testing_cache::TestCache;

struct Shape {
  DType dtype = DType::kF32;
  Format format = Format::kHnd;
  std::int32_t heads = 2;
  std::int32_t head_dim_k = 16;
  std::int32_t head_dim_v = 16;
  bool prefix = false;
};

GroupSpec token_spec(const Shape& shape) {
  return {.num_layers = 2,
          .num_kv_heads = shape.heads,
          .head_dim_k = shape.head_dim_k,
          .head_dim_v = shape.head_dim_v,
          .v_is_prefix_of_k = shape.prefix,
          .block_size = 4,
          .dtype = shape.dtype,
          .format = shape.format,
          .num_blocks = 3};
}

bool has_own_v(const Shape& shape) { return shape.head_dim_v > 0 && !shape.prefix; }

std::string name_of_shape(const Shape& s) {
  return std::string(to_string(s.dtype)) + " " + to_string(s.format) + " heads " +
         std::to_string(s.heads) + " dims " + std::to_string(s.head_dim_k) + " " +
         std::to_string(s.head_dim_v);
}

// Rows of whose elements are side by side only those of a head: heads are `gap` elements apart.
struct Rows {
  Rows(const Shape& shape, std::int32_t head_dim, int gap, int seed)
      : element(dtype_bytes(shape.dtype)),
        stride((head_dim + gap) * std::int64_t{element}),
        bytes(static_cast<std::size_t>(stride * shape.heads + element)) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>((i * 7 + static_cast<std::size_t>(seed)) % 251);
    }
    // One element behind what the allocator aligned.
    view = {bytes.data() + element, 0, stride, 1, shape.heads, head_dim, shape.dtype};
  }
  int element;
  std::int64_t stride;
  std::vector<std::byte> bytes;
  ConstRowsView view;
};

std::vector<std::byte> bytes_of_cache(const TestCache& cache, const Shape& shape) {
  const auto size =
      static_cast<std::size_t>(plan_layouts({.groups = {token_spec(shape)}})->at(0).total_bytes);
  return {cache.view.k, cache.view.k + size};
}

void for_each_token_shape(const std::function<void(const Shape&)>& check) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kOpaque}) {
    for (const Format format : {Format::kHnd, Format::kNhd}) {
      for (const std::int32_t heads : {1, 3, 8}) {
        // Whole lines, no lines, more than a page.
        for (const std::int32_t dim : {64, 128, 256, 5, 80, 2048}) {
          check({dtype, format, heads, dim, dim, false});
          check({dtype, format, heads, dim, 3, false});
          check({dtype, format, heads, dim, 0, false});
          check({dtype, format, heads, dim, 4, true});
        }
      }
    }
  }
}

TEST(AppendOfAToken, WritesItsRowsAndNoOtherByte) {
  for_each_token_shape([](const Shape& shape) {
    SCOPED_TRACE(name_of_shape(shape));
    for (const int gap : {0, 3}) {
      const Rows k(shape, shape.head_dim_k, gap, 1);
      const Rows v(shape, std::max(1, shape.head_dim_v), gap, 100);
      for (const std::int32_t slot : {0, 6, 11}) {
        TestCache cache(token_spec(shape));
        TestCache want(token_spec(shape));
        const ConstRowsView v_rows = has_own_v(shape) ? v.view : ConstRowsView();
        ASSERT_TRUE(append(cache.view, 1, k.view, v_rows, std::vector{slot}).ok());
        for (std::int32_t h = 0; h < shape.heads; ++h) {
          std::memcpy(
              want.view.k_at(1, slot / 4, h, slot % 4), k.view.at(0, h),
              static_cast<std::size_t>(shape.head_dim_k) * static_cast<std::size_t>(k.element));
          if (!has_own_v(shape)) continue;
          std::memcpy(
              want.view.v_at(1, slot / 4, h, slot % 4), v.view.at(0, h),
              static_cast<std::size_t>(shape.head_dim_v) * static_cast<std::size_t>(v.element));
        }
        ASSERT_EQ(bytes_of_cache(cache, shape), bytes_of_cache(want, shape)) << "slot " << slot;
      }
    }
  });
}

// K and V of one memory are read twice.
TEST(AppendOfAToken, TakesOneRowAsKAndAsV) {
  const Shape shape;
  const Rows row(shape, shape.head_dim_k, 0, 9);
  TestCache cache(token_spec(shape));
  ASSERT_TRUE(append(cache.view, 0, row.view, row.view, std::vector{5}).ok());
  for (std::int32_t h = 0; h < shape.heads; ++h) {
    EXPECT_EQ(std::memcmp(cache.view.k_at(0, 1, h, 1), row.view.at(0, h), 64), 0);
    EXPECT_EQ(std::memcmp(cache.view.v_at(0, 1, h, 1), row.view.at(0, h), 64), 0);
  }
}

TEST(AppendOfAToken, LeavesAllAsItWasWithoutASlot) {
  const Shape shape;
  const Rows k(shape, shape.head_dim_k, 0, 1);
  const Rows v(shape, shape.head_dim_v, 0, 2);
  for (const std::int32_t slot : {-1, -2, 12, 13, kMax, kMin}) {
    TestCache cache(token_spec(shape));
    const std::vector<std::byte> before = bytes_of_cache(cache, shape);
    const Status status = append(cache.view, 0, k.view, v.view, std::vector{slot});
    EXPECT_EQ(bytes_of_cache(cache, shape), before) << slot;
    EXPECT_EQ(status.message(), slot == -1 ? "ok"
                                           : "slots[0] is " + std::to_string(slot) +
                                                 ", allowed: -1 (skip) or 0 to 11");
  }
}

// Faults in the order in which they are looked for: each call has one less than the one before.
TEST(AppendOfAToken, NamesTheFirstFault) {
  const Shape shape;
  const Rows k(shape, shape.head_dim_k, 0, 1);
  const Rows v(shape, shape.head_dim_v, 0, 2);
  TestCache cache(token_spec(shape));
  const std::vector<std::byte> before = bytes_of_cache(cache, shape);
  KVView view = cache.view;
  ConstRowsView k_rows = k.view;
  ConstRowsView v_rows = v.view;
  std::int32_t layer = 2;
  std::vector<std::int32_t> slots{12, 0};
  view.memory_kind = MemoryKind::kDevice;
  view.num_layers = 0;
  view.dtype = static_cast<DType>(99);
  view.k += 1;
  view.v_strides.token = -4;
  k_rows.num_heads = 3;
  v_rows.data += 1;
  const auto expect = [&](const std::string& sentence) {
    EXPECT_THAT(append(view, layer, k_rows, v_rows, slots).message(), HasSubstr(sentence));
    EXPECT_EQ(bytes_of_cache(cache, shape), before);
  };
  expect("cache.memory_kind is");
  view.memory_kind = MemoryKind::kHost;
  expect("cache.num_layers is 0");
  view.num_layers = 2;
  expect("cache.dtype is 99");
  view.dtype = DType::kF32;
  expect("cache.k is not aligned");
  view.k = cache.view.k;
  expect("cache.v_strides has -4");
  view.v_strides = cache.view.v_strides;
  expect("layer is 2, the cache has layers 0 to 1");
  layer = 0;
  expect("2 slots for 1 tokens of k");
  slots.pop_back();
  expect("k is [1 tokens, 3 heads, head_dim 16]");
  k_rows = k.view;
  expect("v.data is not aligned");
  v_rows = {};
  expect("v is [0 tokens, 0 heads, head_dim 0]");
  v_rows = v.view;
  v_rows.dtype = DType::kInt8;
  expect("v.dtype is int8");
  v_rows = v.view;
  expect("slots[0] is 12");
  slots[0] = 0;
  EXPECT_TRUE(append(view, layer, k_rows, v_rows, slots).ok());
  EXPECT_NE(bytes_of_cache(cache, shape), before);
}

TEST(AppendOfAToken, RefusesVThatTheCacheDoesNotStore) {
  for (const Shape& shape : {Shape{.head_dim_v = 0}, Shape{.head_dim_v = 4, .prefix = true}}) {
    const Rows k(shape, shape.head_dim_k, 0, 1);
    TestCache cache(token_spec(shape));
    const std::vector<std::byte> before = bytes_of_cache(cache, shape);
    EXPECT_EQ(append(cache.view, 0, k.view, k.view, std::vector{0}).message(),
              "v is given, but the cache stores no V of its own");
    EXPECT_EQ(bytes_of_cache(cache, shape), before);
  }
}

// ---- plain_args.h ------------------------------------------------------------------------------

constexpr std::int64_t kStrides[] = {0,
                                     1,
                                     2,
                                     64,
                                     -64,
                                     (std::int64_t{1} << 28) - 8,
                                     std::int64_t{1} << 28,
                                     (std::int64_t{1} << 44) - 8,
                                     std::int64_t{1} << 44,
                                     std::int64_t{1} << 62,
                                     std::numeric_limits<std::int64_t>::min(),
                                     std::numeric_limits<std::int64_t>::max()};
constexpr std::int32_t kSizes[] = {kMin, -1, 0, 1, 2, 16, 1 << 15, (1 << 15) + 1, 1 << 30, kMax};
constexpr DType kTypes[] = {DType::kF64,    DType::kF32,           DType::kF16,
                            DType::kBF16,   DType::kInt8,          DType::kE4M3,
                            DType::kOpaque, static_cast<DType>(7), static_cast<DType>(-1)};

template <typename T>
using Mutations = std::vector<std::function<void(T&)>>;

// Every value at every field, and every two of them together.
template <typename T>
void for_each_pair(const T& good, const Mutations<T>& mutations,
                   const std::function<void(const T&)>& check) {
  for (const auto& one : mutations) {
    for (const auto& other : mutations) {
      T changed = good;
      one(changed);
      other(changed);
      check(changed);
    }
  }
}

// As a number: another mutation may have made it null.
template <typename Byte>
Byte* moved_by(Byte* pointer, std::uintptr_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a sum of null and a number is undefined otherwise
  return reinterpret_cast<Byte*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}

Mutations<KVView> mutations_of_views() {
  Mutations<KVView> result;
  for (const std::int64_t stride : kStrides) {
    for (std::int64_t KVStrides::*const axis :
         {&KVStrides::layer, &KVStrides::block, &KVStrides::head, &KVStrides::token}) {
      result.emplace_back([=](KVView& view) { view.k_strides.*axis = stride; });
      result.emplace_back([=](KVView& view) { view.v_strides.*axis = stride; });
    }
  }
  for (const std::int32_t size : kSizes) {
    for (std::int32_t KVView::*const field :
         {&KVView::num_layers, &KVView::num_blocks, &KVView::block_size, &KVView::num_kv_heads,
          &KVView::head_dim_k, &KVView::head_dim_v}) {
      result.emplace_back([=](KVView& view) { view.*field = size; });
    }
  }
  for (const DType dtype : kTypes) {
    result.emplace_back([=](KVView& view) { view.dtype = dtype; });
  }
  for (std::byte* KVView::*const pointer :
       {&KVView::k, &KVView::v, &KVView::k_scale, &KVView::v_scale}) {
    result.emplace_back([=](KVView& view) { view.*pointer = nullptr; });
    result.emplace_back([=](KVView& view) { view.*pointer = moved_by(view.k, 1); });
    result.emplace_back([=](KVView& view) { view.*pointer = moved_by(view.k, 64); });
  }
  result.emplace_back([](KVView& view) { view.v_is_prefix_of_k = true; });
  result.emplace_back([](KVView& view) { view.granule = true; });
  result.emplace_back([](KVView& view) { view.memory_kind = MemoryKind::kDevice; });
  return result;
}

TEST(PlainArguments, AreViewsThatACloseLookTakes) {
  int plain = 0;
  int other = 0;
  for_each_token_shape([&](const Shape& shape) {
    if (shape.head_dim_k != 64 || shape.heads != 3) return;
    const TestCache cache(token_spec(shape));
    ASSERT_TRUE(kernels::is_plain(cache.view)) << name_of_shape(shape);
    for_each_pair<KVView>(cache.view, mutations_of_views(), [&](const KVView& view) {
      const bool is_plain = kernels::is_plain(view);
      ++(is_plain ? plain : other);
      if (!is_plain) return;
      ASSERT_EQ(kernels::check_view_closely(view).message(), "ok") << name_of_shape(shape);
    });
  });
  EXPECT_GT(plain, 10'000);
  EXPECT_GT(other, 10'000);
}

TEST(PlainArguments, AreRowsThatACloseLookTakes) {
  Mutations<ConstRowsView> mutations;
  for (const std::int64_t stride : kStrides) {
    mutations.emplace_back([=](ConstRowsView& rows) { rows.token_stride = stride; });
    mutations.emplace_back([=](ConstRowsView& rows) { rows.head_stride = stride; });
  }
  for (const std::int32_t size : kSizes) {
    for (std::int32_t ConstRowsView::*const field :
         {&ConstRowsView::num_tokens, &ConstRowsView::num_heads, &ConstRowsView::head_dim}) {
      mutations.emplace_back([=](ConstRowsView& rows) { rows.*field = size; });
    }
  }
  for (const DType dtype : kTypes) {
    mutations.emplace_back([=](ConstRowsView& rows) { rows.dtype = dtype; });
  }
  mutations.emplace_back([](ConstRowsView& rows) { rows.data = nullptr; });
  mutations.emplace_back([](ConstRowsView& rows) { rows.data = moved_by(rows.data, 1); });

  int plain = 0;
  int plain_tokens = 0;
  for (const DType cached : kTypes) {
    const Shape shape{.dtype = DType::kF32};
    const Rows good(shape, shape.head_dim_k, 0, 1);
    for_each_pair<ConstRowsView>(good.view, mutations, [&](const ConstRowsView& rows) {
      // What the rows have themselves, so that sizes of every kind are asked for, and good ones.
      for (const auto& wanted :
           {kernels::RowsShape{rows.num_tokens, rows.num_heads, rows.head_dim, cached},
            kernels::RowsShape{1, shape.heads, shape.head_dim_k, cached}}) {
        const bool right = kernels::check_rows_closely("k", rows, wanted).ok();
        if (kernels::is_plain(rows, wanted)) {
          ++plain;
          ASSERT_TRUE(right);
        }
        KVView view;
        view.dtype = cached;
        view.num_kv_heads = wanted.num_heads;
        const bool cache_is_plain = dtype_bytes(cached) > 0 && !has_scales(cached);
        if (cache_is_plain && kernels::is_plain_token(view, rows, wanted.head_dim) &&
            wanted.num_heads > 0 && wanted.head_dim > 0) {
          ++plain_tokens;
          ASSERT_TRUE(right || wanted.num_tokens != 1);
        }
      }
    });
  }
  EXPECT_GT(plain, 1'000);
  EXPECT_GT(plain_tokens, 100);
}

// ---- copy_rows.h -------------------------------------------------------------------------------

TEST(CopyRows, CopiesTheSameBytesForEveryInstructionSet) {
  for (const kernels::Isa isa : testing_cache::isas()) {
    const kernels::CopyRowsFn copy = kernels::copy_rows_fn(isa);
    for (const std::int64_t bytes : {0, 1, 63, 64, 65, 128, 192, 512, 576, 1000, 1024, 1088}) {
      for (const std::int64_t count : {0, 1, 2, 5}) {
        for (const int gap : {0, 1, 64}) {
          const std::int64_t stride = bytes + gap;
          const std::int64_t to_stride = gap == 1 ? stride + 7 : stride;
          std::vector<std::byte> from(static_cast<std::size_t>(count * stride + 16));
          for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251);
          std::vector<std::byte> to(static_cast<std::size_t>(count * to_stride + 16),
                                    std::byte{0xee});
          std::vector<std::byte> want = to;
          for (std::int64_t i = 0; i < count; ++i) {
            std::copy_n(from.data() + 1 + i * stride, bytes, want.data() + 3 + i * to_stride);
          }
          copy(from.data() + 1, to.data() + 3, bytes, count, stride, to_stride);
          ASSERT_EQ(to, want) << bytes << " bytes, " << count << " rows, gap " << gap;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio::append_token_test
