// SPDX-License-Identifier: Apache-2.0
//
// Memory whose copies fail, one after the other: each failure is said, and nothing else is touched.

#include "storage/failing_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "storage/late_memory.h"
#include "storage/test_rows.h"

namespace kvfolio {
namespace {

using test::FailingMemory;
using testing::HasSubstr;

CacheSpec spec_of_many_runs() {
  return {.groups = {{.num_layers = 3,
                      .num_kv_heads = 2,
                      .head_dim_k = 8,
                      .head_dim_v = 4,
                      .block_size = 16,
                      .num_blocks = 40}}};
}

struct Stores {
  FailingMemory memory;
  KVStorage from = *KVStorage::create(spec_of_many_runs(), &memory);
  KVStorage to = *KVStorage::create(spec_of_many_runs(), &memory);

  Stores() { testing_rows::write_pattern(*from.view(GroupId(0))); }
  std::vector<std::byte> images(KVStorage& of, std::span<const std::int32_t> blocks) {
    std::vector<std::byte> all(blocks.size() *
                               static_cast<std::size_t>(of.block_image_bytes(GroupId(0))));
    EXPECT_TRUE(of.read_blocks(GroupId(0), blocks, all));
    return all;
  }
};

// Calls `copy` with each of its runs failing, until it has none that could. Returns how many.
int fail_each(Stores& s, const std::function<Status()>& copy,
              const std::function<void()>& expect_done) {
  for (int at = 1;; ++at) {
    s.memory.fail_run(at);
    const Status status = copy();
    s.memory.fail_run(0);
    if (status.ok()) {
      expect_done();
      return at - 1;
    }
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(status.message(),
                HasSubstr("the memory resource failed (timed out): the cable was cut"));
    EXPECT_TRUE(copy()) << "made again after " << at;
    expect_done();
  }
}

TEST(FailingMemory, EachCopyOfBlocksThatFailsIsSaidAndMayBeMadeAgain) {
  Stores s;
  const std::int32_t src[] = {3, 7}, dst[] = {30, 31};
  const std::vector<std::byte> want = s.images(s.from, src);
  const int failed = fail_each(
      s, [&] { return s.from.copy_blocks(GroupId(0), src, dst); },
      [&] { EXPECT_EQ(s.images(s.from, dst), want); });
  EXPECT_GE(failed, 6);
  EXPECT_EQ(s.images(s.from, src), want);
}

TEST(FailingMemory, EachCopyBetweenStoragesThatFailsIsSaidAndMayBeMadeAgain) {
  Stores s;
  const std::int32_t blocks[] = {3, 7}, others[] = {2, 4, 8};
  const std::vector<std::byte> want = s.images(s.from, blocks);
  const std::vector<std::byte> before = s.images(s.to, others);
  const int failed = fail_each(
      s, [&] { return s.to.copy_blocks_from(s.from, GroupId(0), blocks); },
      [&] { EXPECT_EQ(s.images(s.to, blocks), want); });
  EXPECT_GE(failed, 6);
  EXPECT_EQ(s.images(s.to, others), before);
}

// 40 blocks of 3 runs are two batches.
TEST(FailingMemory, EachRunOfImagesThatFailsIsSaidAndMayBeMadeAgain) {
  Stores s;
  std::vector<std::int32_t> blocks(40);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>(i);
  const std::vector<std::byte> want = s.images(s.from, blocks);
  std::vector<std::byte> got(want.size());
  const int read = fail_each(
      s, [&] { return s.from.read_blocks(GroupId(0), blocks, got); },
      [&] { EXPECT_EQ(got, want); });
  EXPECT_GT(read, 64);
  const int written = fail_each(
      s, [&] { return s.to.write_blocks(GroupId(0), blocks, want); },
      [&] { EXPECT_EQ(s.images(s.to, blocks), want); });
  EXPECT_EQ(written, read);
}

TEST(FailingMemory, WhatIsSubmittedIsCopiedAtOnceUnlessTheResourceCopiesLater) {
  Stores s;
  const std::int32_t block = 3;
  const std::vector<std::byte> want = s.images(s.from, {&block, 1});
  std::vector<std::byte> image(want.size());
  EXPECT_FALSE(s.from.copies_later());
  const Result<CopyTicket> read = s.from.submit_read(GroupId(0), block, image);
  ASSERT_TRUE(read);
  EXPECT_EQ(image, want);
  EXPECT_TRUE(*s.from.poll_copy(*read));
  const Result<CopyTicket> written = s.to.submit_write(GroupId(0), block, image);
  ASSERT_TRUE(written);
  EXPECT_TRUE(*s.to.poll_copy(*written));
  EXPECT_EQ(s.images(s.to, {&block, 1}), want);
  s.memory.fail_run(1);
  EXPECT_EQ(s.from.submit_read(GroupId(0), block, image).error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(s.from.submit_read(GroupId(0), 40, image).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(s.to.submit_write(GroupId(0), block, {}).error().code(), ErrorCode::kInvalidArgument);
}

// The one error after which the same call may be made again.
TEST(FailingMemory, ACopyThatCannotBeginNowIsNotSaidToHaveFailed) {
  test::LateMemory memory;
  KVStorage storage = *KVStorage::create({.groups = {{.num_layers = 1,
                                                      .num_kv_heads = 1,
                                                      .head_dim_k = 8,
                                                      .head_dim_v = 8,
                                                      .block_size = 16,
                                                      .num_blocks = 2}}},
                                         &memory);
  std::vector<std::byte> image(static_cast<std::size_t>(storage.block_image_bytes(GroupId(0))));
  memory.is_captured = true;
  const Status read = storage.submit_read(GroupId(0), 1, image).error();
  EXPECT_EQ(read.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(read.message(), testing::HasSubstr("submit_read: the stream is being captured"));
  EXPECT_EQ(storage.submit_write(GroupId(0), 1, image).error().code(),
            ErrorCode::kFailedPrecondition);
  memory.is_captured = false;
  memory.fails_permille = 1000;
  EXPECT_EQ(storage.submit_read(GroupId(0), 1, image).error().code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvfolio
