// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/token_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <numeric>
#include <sstream>
#include <utility>
#include <vector>

#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_cache::TestCache;
using testing_cache::TestRows;

TokenStore make(const TokenStoreOptions& options) {
  Result<TokenStore> store = TokenStore::create(options);
  EXPECT_TRUE(store) << store.error().message();
  return std::move(*store);
}

// One f64 vector of 3 per token, at most 4 tokens.
TokenStore vectors() { return make({.head_dim_k = 3, .dtype = DType::kF64, .max_tokens = 4}); }

std::vector<double> numbers(double first, std::size_t count) {
  std::vector<double> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

std::vector<double> all_of(const TokenStore& store) {
  std::vector<double> rows(static_cast<std::size_t>(store.size() * store.options().head_dim_k *
                                                    store.options().num_kv_heads));
  EXPECT_TRUE(store.gather(0, rows).ok());
  return rows;
}

// The call failed with this code, and its sentence contains all of `parts`.
void expect_error(const Status& status, ErrorCode code, std::initializer_list<const char*> parts) {
  EXPECT_EQ(status.code(), code);
  for (const char* const part : parts) EXPECT_THAT(status.message(), HasSubstr(part));
}

TEST(TokenStore, FullSaysSo) {
  TokenStore store = vectors();
  ASSERT_TRUE(store.append(numbers(0, 12)).ok());
  expect_error(store.append(numbers(50, 3)), ErrorCode::kResourceExhausted,
               {"full: 4 of 4 tokens"});
  EXPECT_EQ(store.append(numbers(50, 3)).message(), "append of 1 tokens: full: 4 of 4 tokens");
  EXPECT_EQ(all_of(store), numbers(0, 12));
}

// Fault J5: the slots behind the cap are not used.
TEST(TokenStore, TheCapIsExactWhateverTheBlockSizeIs) {
  for (const std::int32_t block_size : {1, 3, 16, 1024}) {
    TokenStore store = make({.head_dim_k = 1, .block_size = block_size, .max_tokens = 5});
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(store.append(std::vector<float>{1}).ok());
    EXPECT_EQ(store.append(std::vector<float>{1}).code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(store.size(), 5);
  }
}

TEST(TokenStore, ABatchIsAppendedWholeOrNotAtAll) {
  TokenStore store = vectors();
  ASSERT_TRUE(store.append(numbers(0, 9)).ok());
  EXPECT_EQ(store.append(numbers(50, 6)).message(), "append of 2 tokens: full: 3 of 4 tokens");
  EXPECT_EQ(all_of(store), numbers(0, 9));
  EXPECT_TRUE(store.append(std::span<const double>{}).ok());
  EXPECT_EQ(store.size(), 3);
}

TEST(TokenStore, RowsOfItsOwnTypeAreKeptBitForBit) {
  TokenStore doubles = make({.head_dim_k = 2, .dtype = DType::kF64, .max_tokens = 2});
  const double signal = std::numeric_limits<double>::signaling_NaN();
  const std::vector<double> row = {signal, -0.0};
  ASSERT_TRUE(doubles.append(row).ok());
  EXPECT_THAT(*doubles.at(0), testing::ElementsAreArray(std::as_bytes(std::span(row))));
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    TokenStore halves = make({.head_dim_k = 3, .dtype = dtype, .max_tokens = 2});
    const std::vector<std::uint16_t> bits = {0x7c01, 0xffff, 0x8000};  // NaNs of either type, -0
    ASSERT_TRUE(halves.append(bits).ok());
    EXPECT_THAT(*halves.at<std::uint16_t>(0), ElementsAre(0x7c01, 0xffff, 0x8000));
    std::vector<std::uint16_t> out(3);
    ASSERT_TRUE(halves.read(0, out).ok());
    EXPECT_EQ(out, bits);
    ASSERT_TRUE(halves.gather(0, out).ok());
    EXPECT_EQ(out, bits);
  }
}

// Every byte: elements, and the scales of int8; by rows with gaps, one at a time and many.
TEST(TokenStore, BytesAreThoseOfTheKernelAppend) {
  constexpr int kTokens = 21;
  for (const DType dtype : testing_cache::kCacheDTypes) {
    for (const DType from : testing_cache::kDTypes) {
      const TokenStoreOptions options{.head_dim_k = 12,
                                      .head_dim_v = 5,
                                      .num_kv_heads = 2,
                                      .dtype = dtype,
                                      .block_size = 8,
                                      .max_tokens = 30};
      TestCache cache({.num_kv_heads = 2,
                       .head_dim_k = 12,
                       .head_dim_v = 5,
                       .block_size = 8,
                       .dtype = dtype,
                       .num_blocks = 4});
      TestRows k(kTokens, 2, 12, from, 3);
      TestRows v(kTokens, 2, 5, from, 3);
      k.fill(1);
      v.fill(2);
      std::vector<std::int32_t> slots(kTokens);
      std::iota(slots.begin(), slots.end(), 0);
      ASSERT_TRUE(append(cache.view, 0, k.rows, v.rows, slots).ok());
      for (const int at_once : {1, 4, kTokens}) {
        TokenStore store = make(options);
        for (int t = 0; t < kTokens; t += at_once) {
          RowsView some_k = k.rows;
          RowsView some_v = v.rows;
          some_k.data = k.rows.at(t, 0);
          some_v.data = v.rows.at(t, 0);
          some_k.num_tokens = some_v.num_tokens = std::min(at_once, kTokens - t);
          ASSERT_TRUE(store.append(some_k, some_v).ok());
        }
        const KVView& view = store.view();
        for (int t = 0; t < kTokens; ++t) {
          for (int h = 0; h < 2; ++h) {
            const auto same = [&](const std::byte* mine, const std::byte* theirs, int bytes) {
              EXPECT_EQ(std::memcmp(mine, theirs, static_cast<std::size_t>(bytes)), 0)
                  << to_string(from) << " to " << to_string(dtype) << ", token " << t;
            };
            const int element = dtype_bytes(dtype);
            same(view.k_at(0, t / 8, h, t % 8), cache.at(false, 0, h, t, 0), 12 * element);
            same(view.v_at(0, t / 8, h, t % 8), cache.at(true, 0, h, t, 0), 5 * element);
            if (!has_scales(dtype)) continue;
            same(view.k_scale_at(0, t / 8, h, t % 8), cache.scale_at(false, 0, h, t), 4);
            same(view.v_scale_at(0, t / 8, h, t % 8), cache.scale_at(true, 0, h, t), 4);
          }
        }
      }
    }
  }
}

TEST(TokenStore, GatherFillsStridedRowsOfAnyType) {
  for (const DType dtype : testing_cache::kCacheDTypes) {
    TokenStore store = make(
        {.head_dim_k = 6, .head_dim_v = 4, .num_kv_heads = 2, .dtype = dtype, .max_tokens = 40});
    TestRows k(40, 2, 6, DType::kF32);
    TestRows v(40, 2, 4, DType::kF32);
    k.fill(3);
    v.fill(4);
    ASSERT_TRUE(store.append(k.rows, v.rows).ok());
    for (const DType to : testing_cache::kDTypes) {
      TestRows out_k(20, 2, 6, to, 2);
      TestRows out_v(20, 2, 4, to, 2);
      ASSERT_TRUE(store.gather(9, out_k.rows, out_v.rows).ok());
      for (int t = 0; t < 20; ++t) {
        for (int h = 0; h < 2; ++h) {
          using testing_cache::appended;
          using testing_cache::gathered;
          for (int d = 0; d < 6; ++d) {
            EXPECT_EQ(out_k.value(t, h, d), gathered(appended(k, t + 9, h, d, dtype), dtype, to));
          }
          for (int d = 0; d < 4; ++d) {
            EXPECT_EQ(out_v.value(t, h, d), gathered(appended(v, t + 9, h, d, dtype), dtype, to));
          }
        }
      }
    }
    TestRows only_v(40, 2, 4, DType::kF32);
    ASSERT_TRUE(store.gather(0, RowsView{}, only_v.rows).ok());
    EXPECT_EQ(
        only_v.value(39, 1, 3),
        testing_cache::gathered(testing_cache::appended(v, 39, 1, 3, dtype), dtype, DType::kF32));
  }
}

// Fault J2: a token is read without a copy.
TEST(TokenStore, ARowStaysWhereItIs) {
  TokenStore store =
      make({.head_dim_k = 2, .head_dim_v = 1, .dtype = DType::kF64, .max_tokens = 100});
  ASSERT_TRUE(store.append(numbers(1, 2), numbers(8, 1)).ok());
  const std::span<const double> k = *store.at<double>(0);
  const std::span<const double> v = *store.v_at<double>(0);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(store.append(k, v).ok());  // a row of its own, too
  TokenStore moved = std::move(store);
  EXPECT_THAT(k, ElementsAre(1, 2));
  EXPECT_THAT(v, ElementsAre(8));
  EXPECT_EQ(moved.at<double>(0)->data(), k.data());
  EXPECT_THAT(*moved.at<double>(50), ElementsAre(1, 2));
  EXPECT_THAT(*moved.v_at<double>(50), ElementsAre(8));
}

TEST(TokenStore, AMovedFromStoreHoldsNothingAndTakesNothing) {
  TokenStore first = vectors();
  ASSERT_TRUE(first.append(numbers(0, 6)).ok());
  TokenStore second = std::move(first);
  TokenStore target = vectors();
  ASSERT_TRUE(target.append(numbers(50, 3)).ok());
  target = std::move(second);
  EXPECT_EQ(all_of(target), numbers(0, 6));
  // NOLINTNEXTLINE(bugprone-use-after-move): the header says what they are.
  for (TokenStore* const store : {&first, &second}) {
    EXPECT_EQ(store->size(), 0);
    EXPECT_EQ(store->num_blocks(), 0);
    EXPECT_EQ(store->append(numbers(0, 3)).message(), "append of 1 tokens: full: 0 of 0 tokens");
    EXPECT_FALSE(store->at(0).has_value());
  }
}

TEST(TokenStore, ClearKeepsTheMemory) {
  TokenStore store = vectors();
  ASSERT_TRUE(store.append(numbers(0, 12)).ok());
  const std::byte* const row = store.at(0)->data();
  store.clear();
  EXPECT_EQ(store.size(), 0);
  EXPECT_EQ(store.bytes_used(), 0);
  EXPECT_FALSE(store.at(0).has_value());
  ASSERT_TRUE(store.append(numbers(30, 12)).ok());
  EXPECT_EQ(store.at(0)->data(), row);
  EXPECT_EQ(all_of(store), numbers(30, 12));
}

// Memory of the process; counts, refuses above a limit, and fills what it gives with 0xff.
class TestMemory final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override { return memory_kind; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    if (bytes > limit) return Status(ErrorCode::kOutOfMemory, "the arena is empty");
    void* memory = std::aligned_alloc(64, static_cast<std::size_t>((bytes + 63) / 64 * 64));
    std::memset(memory, 0xff, static_cast<std::size_t>(bytes));
    ++given;
    return static_cast<std::byte*>(memory);
  }
  void deallocate(std::byte* memory, std::int64_t) noexcept override {
    --given;
    std::free(memory);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    copied_bytes += bytes;
    std::memcpy(dst, src, static_cast<std::size_t>(bytes));
    return {};
  }

  MemoryKind memory_kind = MemoryKind::kHost;
  std::int64_t limit = 1 << 20;
  std::int64_t copied_bytes = 0;
  int given = 0;
};

// Fault J1
TEST(TokenStore, ACopyIsDeepAndCopiesOnlyBlocksInUse) {
  TestMemory memory;
  {
    Result<TokenStore> store = TokenStore::create(
        {.head_dim_k = 8, .dtype = DType::kF64, .block_size = 2, .max_tokens = 1000}, &memory);
    ASSERT_TRUE(store) << store.error().message();
    ASSERT_TRUE(store->append(numbers(0, 8 * 601)).ok());  // more blocks than are named at once
    Result<TokenStore> copy = store->copy();
    ASSERT_TRUE(copy) << copy.error().message();
    EXPECT_EQ(memory.copied_bytes, 301 * 2 * 64);
    EXPECT_EQ(memory.given, 2);
    ASSERT_TRUE(store->append(numbers(-8, 8)).ok());
    ASSERT_TRUE(copy->append(numbers(-80, 8)).ok());
    store->clear();
    ASSERT_TRUE(store->append(numbers(-800, 8)).ok());
    EXPECT_EQ(copy->size(), 602);
    std::vector<double> rows(8 * 601);
    ASSERT_TRUE(copy->gather(0, rows).ok());
    EXPECT_EQ(rows, numbers(0, 8 * 601));
    EXPECT_THAT(copy->at<double>(601)->front(), -80);
    EXPECT_EQ(copy->options(), store->options());
    memory.limit = 10;
    expect_error(store->copy().error(), ErrorCode::kOutOfMemory,
                 {"token store of 1000 tokens", "64000 bytes", "the arena is empty"});
  }
  EXPECT_EQ(memory.given, 0);
}

// Faults J3, J4: a capacity that no machine has, vectors without elements.
TEST(TokenStore, OptionsOutOfRangeAreErrorsWithTheNumbers) {
  const auto refuse = [](TokenStoreOptions options, std::initializer_list<const char*> parts) {
    const Result<TokenStore> store = TokenStore::create(options);
    ASSERT_FALSE(store.has_value());
    expect_error(store.error(), ErrorCode::kInvalidArgument, parts);
  };
  refuse({.head_dim_k = 8}, {"max_tokens is 0", "allowed: 1 to 1073741824"});
  refuse({.head_dim_k = 8, .max_tokens = -5}, {"max_tokens is -5"});
  refuse({.head_dim_k = 8, .max_tokens = (1 << 30) + 1}, {"max_tokens is 1073741825"});
  refuse({.max_tokens = 4}, {"head_dim_k is 0", "allowed: 1 to 1048576"});
  refuse({.head_dim_k = (1 << 20) + 1, .max_tokens = 4}, {"head_dim_k is 1048577"});
  refuse({.head_dim_k = 8, .head_dim_v = -1, .max_tokens = 4}, {"head_dim_v is -1"});
  refuse({.head_dim_k = 8, .num_kv_heads = 0, .max_tokens = 4}, {"num_kv_heads is 0"});
  refuse({.head_dim_k = 8, .block_size = 0, .max_tokens = 4}, {"block_size is 0", "1 to 1024"});
  refuse({.head_dim_k = 8, .block_size = 1025, .max_tokens = 4}, {"block_size is 1025"});
  refuse({.head_dim_k = 8, .dtype = static_cast<DType>(9), .max_tokens = 4}, {"dtype is 9"});
  refuse({.head_dim_k = 8, .dtype = DType::kOpaque, .max_tokens = 4}, {"dtype is opaque"});
  refuse({.head_dim_k = 1 << 20,
          .head_dim_v = 1 << 20,
          .num_kv_heads = 1 << 20,
          .dtype = DType::kF64,
          .max_tokens = 1 << 30},
         {"1048576 + 1048576", "overflows 63 bits"});
  expect_error(
      TokenStore::create({.head_dim_k = 1 << 20, .dtype = DType::kF64, .max_tokens = 1 << 30})
          .error(),
      ErrorCode::kOutOfMemory, {"token store of 1073741824 tokens", "9007199254740992 bytes"});
}

TEST(TokenStore, MemoryThatTheCpuMayNotTouchIsUnsupported) {
  TestMemory memory;
  memory.memory_kind = MemoryKind::kDevice;
  const Result<TokenStore> store = TokenStore::create({.head_dim_k = 8, .max_tokens = 4}, &memory);
  ASSERT_FALSE(store.has_value());
  expect_error(store.error(), ErrorCode::kUnsupported, {"device memory", "allowed: host"});
  EXPECT_EQ(memory.given, 0);
}

TEST(TokenStore, BadRowsAreErrorsAndChangeNothing) {
  TokenStore store = vectors();
  ASSERT_TRUE(store.append(numbers(0, 3)).ok());
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  const double* const null = nullptr;
  expect_error(store.append(std::span(null, 3)), kInvalid, {"k is null, for 3 elements"});
  expect_error(store.append(std::span(null, 6)), kInvalid, {"k is null, for 6 elements"});
  expect_error(store.append(numbers(0, 4)), kInvalid,
               {"k has 4 elements", "multiples of a row, 3"});
  expect_error(store.append(std::vector<float>(2)), kInvalid, {"k has 2 elements"});
  expect_error(store.append(numbers(0, 3), numbers(0, 3)), kInvalid,
               {"v is given, but the store has no V"});
  expect_error(store.append(std::vector<std::uint16_t>(3)), kInvalid,
               {"k has elements of 16 bits", "this store is f64"});
  TestRows wide(1, 1, 4, DType::kF64);
  expect_error(store.append(wide.rows), kInvalid, {"head_dim 4", "allowed: [1, 1, 3]"});
  TestRows fits(1, 1, 3, DType::kF64);
  expect_error(store.append(fits.rows, fits.rows), kInvalid, {"v is given"});
  RowsView bad = fits.rows;
  bad.data = nullptr;
  expect_error(store.append(bad), kInvalid, {"k.data is null"});
  bad = fits.rows;
  bad.num_tokens = -1;
  expect_error(store.append(bad), kInvalid, {"k has -1 tokens"});
  bad = fits.rows;
  bad.dtype = DType::kInt8;
  expect_error(store.append(bad), kInvalid, {"int8"});
  EXPECT_EQ(all_of(store), numbers(0, 3));
}

TEST(TokenStore, KAndVComeTogether) {
  TokenStore store =
      make({.head_dim_k = 3, .head_dim_v = 2, .dtype = DType::kF64, .max_tokens = 4});
  ASSERT_TRUE(store.append(numbers(0, 3), numbers(70, 2)).ok());
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  expect_error(store.append(numbers(0, 3)), kInvalid,
               {"v is missing: the store has V, rows of 2 elements"});
  expect_error(store.append(numbers(0, 3), numbers(0, 4)), kInvalid, {"2 rows of v for 1 of k"});
  expect_error(store.append(numbers(0, 3), numbers(0, 3)), kInvalid, {"v has 3 elements", "2"});
  expect_error(store.append(std::span<const double>{}, numbers(0, 2)), kInvalid,
               {"1 rows of v for 0 of k"});
  expect_error(store.append(numbers(0, 3), std::span(static_cast<const double*>(nullptr), 2)),
               kInvalid, {"v is null"});
  TestRows k(2, 1, 3, DType::kF64);
  TestRows v(1, 1, 2, DType::kF64);
  expect_error(store.append(k.rows), kInvalid, {"v is missing"});
  expect_error(store.append(k.rows, v.rows), kInvalid, {"v is [1 tokens", "allowed: [2, 1, 2]"});
  EXPECT_EQ(all_of(store), numbers(0, 3));
  EXPECT_THAT(*store.v_at<double>(0), ElementsAre(70, 71));
  std::vector<double> v_only(2);
  ASSERT_TRUE(store.read(0, std::span<double>{}, v_only).ok());
  EXPECT_EQ(v_only, numbers(70, 2));
}

TEST(TokenStore, AtKnowsOnlyTokensAndTypesThatAreThere) {
  TokenStore store = vectors();
  ASSERT_TRUE(store.append(numbers(0, 12)).ok());
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  expect_error(store.at<double>(4).error(), kInvalid, {"token 4 of a store of 4 tokens"});
  expect_error(store.at<double>(-1).error(), kInvalid, {"token -1 of a store of 4 tokens"});
  expect_error(store.at(std::int64_t{1} << 32).error(), kInvalid, {"token 4294967296"});
  expect_error(store.at<float>(0).error(), kInvalid, {"4 bytes", "f64, 8 bytes"});
  expect_error(store.at<std::uint16_t>(0).error(), kInvalid, {"2 bytes"});
  expect_error(store.v_at(0).error(), kInvalid, {"the store has no V"});
  EXPECT_EQ(store.at(3)->size(), 24u);
}

TEST(TokenStore, ReadsThatDoNotFitAreErrorsAndWriteNothing) {
  TokenStore store = vectors();
  ASSERT_TRUE(store.append(numbers(0, 12)).ok());
  constexpr auto kInvalid = ErrorCode::kInvalidArgument;
  std::vector<double> out(12, -1);
  const std::span<double> row = std::span(out).first(3);
  expect_error(store.read(4, row), kInvalid, {"token 4 of a store of 4 tokens"});
  expect_error(store.read(-1, row), kInvalid, {"token -1"});
  expect_error(store.read(0, out), kInvalid, {"k has 12 elements", "0 or a row, 3"});
  expect_error(store.read(0, row, row), kInvalid, {"v has 3 elements", "0 or a row, 0"});
  expect_error(store.read(0, std::span(static_cast<double*>(nullptr), 3)), kInvalid,
               {"k is null, for 3 elements"});
  expect_error(store.gather(1, out), kInvalid, {"4 tokens from 1 on: the store has 4"});
  expect_error(store.gather(-1, row), kInvalid, {"1 tokens from -1 on"});
  expect_error(store.gather(5, std::span<double>{}), kInvalid, {"0 tokens from 5 on"});
  expect_error(store.gather(std::numeric_limits<std::int64_t>::max(), row), kInvalid,
               {"9223372036854775807"});
  expect_error(store.gather(0, std::span(out).first(4)), kInvalid, {"4 elements", "a row, 3"});
  expect_error(store.gather(0, row, row), kInvalid, {"v is given, but the store has no V"});
  std::vector<std::uint16_t> halves(3);
  expect_error(store.gather(0, halves), kInvalid, {"16 bits", "f64"});
  TestRows wide(2, 1, 4, DType::kF64);
  expect_error(store.gather(0, wide.rows), kInvalid, {"head_dim 4", "allowed: [2, 1, 3]"});
  TestRows fits(2, 1, 3, DType::kF64);
  expect_error(store.gather(3, fits.rows), kInvalid, {"2 tokens from 3 on"});
  RowsView over = fits.rows;
  over.token_stride = 8;
  expect_error(store.gather(0, over), kInvalid, {"rows of k overlap"});
  EXPECT_EQ(out, std::vector<double>(12, -1));
  EXPECT_TRUE(store.gather(4, std::span<double>{}).ok());
  TokenStore pair = make({.head_dim_k = 1, .head_dim_v = 1, .dtype = DType::kF64, .max_tokens = 4});
  ASSERT_TRUE(pair.append(numbers(0, 4), numbers(0, 4)).ok());
  expect_error(pair.gather(0, row, std::span(out).subspan(3, 2)), kInvalid,
               {"2 rows of v for 3 of k"});
}

TEST(TokenStore, E4M3IsReadByCopyOnly) {
  TokenStore store = make({.head_dim_k = 3, .dtype = DType::kE4M3, .max_tokens = 4});
  ASSERT_TRUE(store.append(std::vector<double>{448, -448, 1.0625}).ok());
  expect_error(store.at(0).error(), ErrorCode::kUnsupported, {"e4m3", "read and gather"});
  expect_error(store.at<double>(0).error(), ErrorCode::kUnsupported, {"e4m3"});
  std::vector<double> row(3);
  ASSERT_TRUE(store.read(0, row).ok());
  EXPECT_THAT(row, ElementsAre(448, -448, 1));
}

TEST(TokenStore, Int8IsReadByCopyOnly) {
  TokenStore store = make({.head_dim_k = 3, .dtype = DType::kInt8, .max_tokens = 4});
  ASSERT_TRUE(store.append(std::vector<double>{127, -127, 1}).ok());
  ASSERT_TRUE(store.append(std::vector<float>{12.7f, 0, 0}).ok());
  expect_error(store.at(0).error(), ErrorCode::kUnsupported, {"int8", "read and gather"});
  expect_error(store.at<double>(0).error(), ErrorCode::kUnsupported, {"int8"});
  expect_error(store.at(2).error(), ErrorCode::kInvalidArgument, {"token 2 of a store of 2"});
  std::vector<double> row(3);
  ASSERT_TRUE(store.read(0, row).ok());
  EXPECT_THAT(row, ElementsAre(127, -127, 1));
}

TEST(TokenStore, PrintsWhatItHolds) {
  TokenStore store = vectors();
  ASSERT_TRUE(store.append(numbers(0, 6)).ok());
  std::ostringstream out;
  out << store;
  EXPECT_EQ(out.str(),
            "token store: 2 of 4 tokens of f64, K 1 x 3, no V; 1 of 1 blocks of 16 tokens in use, "
            "384 of 384 bytes");
  const TokenStore pair =
      make({.head_dim_k = 8, .head_dim_v = 4, .num_kv_heads = 2, .max_tokens = 33});
  EXPECT_EQ(to_string(pair),
            "token store: 0 of 33 tokens of f32, K 2 x 8, V 2 x 4; 0 of 3 blocks of 16 tokens in "
            "use, 0 of 4608 bytes");
}

// Over the view with the table 0, 1, 2, ...: a store is a cache that kernels take as it is.
TEST(TokenStore, KernelsAttendOverItsView) {
  TokenStore store = make({.head_dim_k = 8, .head_dim_v = 8, .block_size = 4, .max_tokens = 10});
  TestCache cache({.head_dim_k = 8, .head_dim_v = 8, .block_size = 4, .num_blocks = 3});
  TestRows k(10, 1, 8, DType::kF32);
  TestRows v(10, 1, 8, DType::kF32);
  TestRows q(1, 1, 8, DType::kF32);
  k.fill(5);
  v.fill(6);
  q.fill(7);
  ASSERT_TRUE(store.append(k.rows, v.rows).ok());
  std::vector<std::int32_t> slots(10);
  std::iota(slots.begin(), slots.end(), 0);
  ASSERT_TRUE(append(cache.view, 0, k.rows, v.rows, slots).ok());
  const std::int32_t table[] = {0, 1, 2};
  const std::int32_t query_start[] = {0, 1};
  const std::int32_t kv_lens[] = {10};
  std::vector<std::vector<std::byte>> results;
  for (const KVView& view : {store.view(), cache.view}) {
    TestRows out(1, 1, 8, DType::kF32);
    std::vector<std::byte> workspace(1 << 20);
    AttentionArgs args{.cache = view, .params = {.scale = 1.0}, .workspace = workspace};
    args.batch = {query_start, kv_lens, table, 3};
    args.q = q.rows;
    args.out = out.rows;
    const Status status = attend(args);
    ASSERT_TRUE(status.ok()) << status.message();
    results.emplace_back(out.rows.data, out.rows.data + 8 * 4);
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace kvfolio
