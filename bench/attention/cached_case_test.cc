// SPDX-License-Identifier: Apache-2.0

// What is not right is not timed.

#include "cached_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace kvfolio::bench {
namespace {

using ::testing::HasSubstr;

struct Bench {
  Bench() : session(options.common, emit), context(options, session) {}

  AttentionOptions options{.common = {.rounds = 1, .quick = true, .filter = {}}};
  std::function<void(const Row&)> emit = [this](const Row& row) { rows.push_back(row); };
  std::vector<Row> rows;
  Session session;
  Context context;
};

std::string complaint(const std::function<void()>& check) {
  try {
    check();
  } catch (const WrongResult& error) {
    return error.what();
  }
  return "";
}

TEST(BenchAttention, AWrongTokenIsFound) {
  const Bench bench;
  for (const DType dtype : bench.context.dtypes()) {
    const CaseShape shape{.dtype = dtype, .format = Format::kHnd, .lengths = {100, 33}};
    const CachedCase cache(shape);
    AttentionCall call(bench.context, cache, 4, 1);
    Expected expected(bench.context, cache, 1, 2);
    EXPECT_EQ(complaint([&] { expected.check(call, bench.context, shape); }), "");
    // V of one token of the second sequence, in the head that its row is checked for.
    const std::int32_t slot = cache.slot(1, 20);
    std::byte* row = cache.view().v_at(0, slot / 16, 1, slot % 16);
    std::memset(row, 0x3c, row_bytes(dtype));
    EXPECT_THAT(complaint([&] { expected.check(call, bench.context, shape); }),
                HasSubstr("row 1, query head 0 of KV head 1 differs from the reference by"));
  }
}

TEST(BenchAttention, OtherBitsThanOverAnotherFormatAreFound) {
  const Bench bench;
  const CaseShape shape{.format = Format::kHnd, .lengths = {100, 33}};
  const CachedCase cache(shape);
  AttentionCall call(bench.context, cache, 8, 1);
  Expected expected(bench.context, cache, 1, 1);
  expected.check(call, bench.context, shape);
  // One bit in the first sequence, whose row is not compared with the reference.
  const std::int32_t slot = cache.slot(0, 20);
  std::byte* row = cache.view().v_at(0, slot / 16, 2, slot % 16);
  row[2] ^= std::byte{0x40};
  EXPECT_THAT(complaint([&] { expected.check(call, bench.context, shape); }),
              HasSubstr("other bits"));
}

TEST(BenchAttention, AReadPassesAsManyBytesAsThereAre) {
  const Bench bench;
  for (const DType dtype : bench.context.dtypes()) {
    for (const Format format : bench.context.formats()) {
      const CachedCase cache({.dtype = dtype, .format = format, .lengths = {1088, 48}});
      EXPECT_EQ(cache.bytes(),
                1136.0 * kKvHeads *
                    (2 * kHeadDim * dtype_bytes(dtype) + (dtype == DType::kInt8 ? 8 : 0)));
      EXPECT_EQ(cache.bytes_read(ReadOrder::kByHead), cache.bytes());
      EXPECT_EQ(cache.bytes_read(ReadOrder::kByToken), cache.bytes());
    }
  }
}

TEST(BenchAttention, SeveralThreadsAreJudgedOnlyWhereTheyGotTheirShare) {
  for (const double scaling : {1.79, 1.81}) {
    Figure figure{.name = "decode.bytes", .promise = Promise{0.5, 0.6}};
    Context::judge(figure, 2, scaling);
    EXPECT_EQ(figure.promise.has_value(), scaling > 1.8);
    EXPECT_EQ(figure.note.empty(), scaling > 1.8);
    Context::judge(figure, 1, 0.1);
    EXPECT_EQ(figure.promise.has_value(), scaling > 1.8);
  }
}

}  // namespace
}  // namespace kvfolio::bench
