// SPDX-License-Identifier: Apache-2.0
// One sequence, one vector per token: what cjc's PagedKvCache offers.

#include "parity_vectors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::parity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ParityVectors, OneVectorPerTokenOfAnyLength) {
  for (const std::int32_t num_elements : {1, 3, 8, 1000}) {
    KVCacheManager cache = vector_cache(num_elements, 3);
    const SequenceId sequence = must(cache.open({})).sequence;
    for (int token = 0; token < 40; ++token) {
      must(append_rows(cache, sequence, numbers(token * num_elements, num_elements)));
    }
    EXPECT_EQ(must(rows_of(cache, sequence, 0, 40)), numbers(0, 40 * num_elements));
    EXPECT_EQ(must(cache.usage(GroupId(0))).held, 3);
  }
}

// Fault J5: a limit of 4 reserved 16 slots, 12 of which could not be used.
TEST(ParityVectors, MaxTokensIsExactWhateverTheBlockSize) {
  KVCacheManager cache = vector_cache(2, 1);
  const SequenceId sequence = must(cache.open({}, {.max_tokens = 4})).sequence;
  must(append_rows(cache, sequence, numbers(0, 4 * 2)));
  const Status full = append_rows(cache, sequence, numbers(0, 1 * 2));
  // full.message() is "append_unnamed of 1 tokens to sequence 0.1: full: 4 of 4 tokens"
  EXPECT_EQ(full.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("full: 4 of 4 tokens"));
  EXPECT_EQ(must(cache.info(sequence)).length, 4);
  EXPECT_EQ(cache.admit(sequence, 1).code(), ErrorCode::kResourceExhausted);
  const SequenceId child = must(cache.fork(sequence));
  EXPECT_FALSE(append_rows(cache, child, numbers(0, 2)).ok());
}

// Fault J5: what a limit leaves of its last block is up to the block size, and blocks come with
// tokens: a limit takes none.
TEST(ParityVectors, ALimitReservesNothingAndNeedWasteNothing) {
  KVCacheManager cache = vector_cache(2, 2, /*block_size=*/2);
  const SequenceId first = must(cache.open({}, {.max_tokens = 4})).sequence;
  const SequenceId second = must(cache.open({}, {.max_tokens = 1000000})).sequence;
  EXPECT_EQ(must(cache.usage(GroupId(0))).free, 2);
  must(append_rows(cache, first, numbers(0, 4 * 2)));  // all four slots of the pool
  EXPECT_EQ(append_rows(cache, second, numbers(0, 2)).code(), ErrorCode::kNoBlocks);
  must(cache.close(first));
  must(append_rows(cache, second, numbers(0, 4 * 2)));
}

TEST(ParityVectors, ABatchIsAppendedWholeOrNotAtAll) {
  KVCacheManager cache = vector_cache(2, 1);
  const SequenceId sequence = must(cache.open({}, {.max_tokens = 5})).sequence;
  must(append_rows(cache, sequence, numbers(0, 3 * 2)));
  const Status status = append_rows(cache, sequence, numbers(100, 3 * 2));
  // Nothing was appended.
  EXPECT_EQ(status.message(), "append_unnamed of 3 tokens to sequence 0.1: full: 3 of 5 tokens");
  EXPECT_EQ(must(rows_of(cache, sequence, 0, 3)), numbers(0, 3 * 2));
  EXPECT_EQ(must(cache.info(sequence)).length, 3);
}

// Faults J4, L6: vectors of another length were taken, or dropped in silence.
TEST(ParityVectors, NumbersThatAreNoWholeRowsAreRefused) {
  KVCacheManager cache = vector_cache(3, 2);
  const SequenceId sequence = must(cache.open({})).sequence;
  const Status status = append_rows(cache, sequence, numbers(0, 7));
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("7 numbers are no rows of 3"));
  EXPECT_EQ(must(cache.info(sequence)).length, 0);
}

TEST(ParityVectors, APromptBeyondMaxTokensIsRefused) {
  KVCacheManager cache = vector_cache(2, 1);
  const auto opened = cache.open(std::vector<std::int32_t>{1, 2, 3}, {.max_tokens = 2});
  ASSERT_FALSE(opened.has_value());
  EXPECT_THAT(opened.error().message(),
              HasSubstr("a prompt of 3 tokens, allowed: at most max_tokens, 2"));
  EXPECT_FALSE(cache.open({}, {.max_tokens = -1}).has_value());
}

TEST(ParityVectors, AppendOfNothingIsNothing) {
  KVCacheManager cache = vector_cache(2, 1);
  const SequenceId sequence = must(cache.open({})).sequence;
  must(append_rows(cache, sequence, {}));  // takes no block and is no use of the sequence
  EXPECT_EQ(must(cache.info(sequence)).length, 0);
  EXPECT_EQ(must(cache.info(sequence)).use_count, 1u);  // the open
  EXPECT_EQ(must(cache.usage(GroupId(0))).held, 0);
}

TEST(ParityVectors, ReadsOneTokenARangeAndAnEmptyCache) {
  KVCacheManager cache = vector_cache(2, 2);
  const SequenceId sequence = must(cache.open({})).sequence;
  EXPECT_THAT(must(rows_of(cache, sequence, 0, 0)), IsEmpty());  // [0, dim]
  must(append_rows(cache, sequence, numbers(0, 20 * 2)));
  const std::vector<double> one = must(rows_of(cache, sequence, 17, 1));
  const std::vector<double> range = must(rows_of(cache, sequence, 15, 3));
  const std::vector<double> none = must(rows_of(cache, sequence, 20, 0));  // as of an empty cache
  EXPECT_THAT(one, ElementsAre(34, 35));
  EXPECT_EQ(range, numbers(30, 3 * 2));
  EXPECT_THAT(none, IsEmpty());
  EXPECT_EQ(rows_of(cache, sequence, 0, -1).error().code(), ErrorCode::kInvalidArgument);
  const auto beyond = rows_of(cache, sequence, 20, 1);
  ASSERT_FALSE(beyond.has_value());
  EXPECT_THAT(beyond.error().message(), testing::AllOf(HasSubstr("20"), HasSubstr("1")));
}

// Fault J2: get_token copied. A view is a pointer.
TEST(ParityVectors, ATokenIsReadWithoutACopy) {
  KVCacheManager cache = vector_cache(2, 2);
  const SequenceId sequence = must(cache.open({})).sequence;
  must(append_rows(cache, sequence, numbers(0, 20 * 2)));
  const KVView view = must(cache.storage()->view(GroupId(0)));
  const std::span<const std::int32_t> table = must(cache.block_table(sequence, GroupId(0)));
  const std::int32_t block = table[17 / 16];
  const auto* token_17 = reinterpret_cast<const double*>(
      view.k_at(/*layer=*/0, block, /*head=*/0, /*offset=*/17 % 16));
  EXPECT_EQ(token_17[0], 34.0);
  EXPECT_EQ(token_17[1], 35.0);
}

TEST(ParityVectors, ClearKeepsTheMemoryAndTheSequence) {
  KVCacheManager cache = vector_cache(2, 2);
  const SequenceId sequence = must(cache.open({}, {.max_tokens = 20})).sequence;
  must(append_rows(cache, sequence, numbers(0, 20 * 2)));
  const std::byte* memory = must(cache.storage()->view(GroupId(0))).k;
  must(cache.clear(sequence));
  EXPECT_EQ(must(cache.info(sequence)).length, 0);
  EXPECT_EQ(must(cache.usage(GroupId(0))).held, 0);
  EXPECT_EQ(must(cache.storage()->view(GroupId(0))).k, memory);
  must(append_rows(cache, sequence, numbers(500, 20 * 2)));
  EXPECT_EQ(must(rows_of(cache, sequence, 0, 20)), numbers(500, 20 * 2));
}

// Fault J1: a clone copied every reserved block.
TEST(ParityVectors, CopyToAnotherManagerIsDeep) {
  KVCacheManager cache = vector_cache(2, 64);
  const SequenceId sequence = must(cache.open({})).sequence;
  must(append_rows(cache, sequence, numbers(0, 20 * 2)));
  KVCacheManager copy = vector_cache(2, 64);
  must(cache.copy_to(copy));  // two blocks of bytes, not 64; ids stay the same
  must(append_rows(cache, sequence, numbers(100, 2)));
  must(append_rows(copy, sequence, numbers(200, 2)));
  EXPECT_EQ(must(rows_of(copy, sequence, 0, 20)), numbers(0, 20 * 2));
  EXPECT_THAT(must(rows_of(copy, sequence, 20, 1)), ElementsAre(200, 201));
  EXPECT_THAT(must(rows_of(cache, sequence, 20, 1)), ElementsAre(100, 101));
  must(copy.check_invariants());
  must(cache.close(sequence));
  EXPECT_EQ(must(copy.info(sequence)).length, 21);
}

TEST(ParityVectors, AForkSharesUntilItWrites) {
  KVCacheManager cache = vector_cache(2, 4);
  const SequenceId parent = must(cache.open({})).sequence;
  must(append_rows(cache, parent, numbers(0, 20 * 2)));
  const SequenceId child = must(cache.fork(parent));  // shares every block until one of them writes
  EXPECT_EQ(must(cache.usage(GroupId(0))).held, 2);
  must(append_rows(cache, child, numbers(100, 2)));
  must(append_rows(cache, parent, numbers(200, 2)));
  EXPECT_EQ(cache.counters().block_copies, 1u);
  EXPECT_EQ(must(rows_of(cache, child, 0, 20)), numbers(0, 20 * 2));
  EXPECT_THAT(must(rows_of(cache, child, 20, 1)), ElementsAre(100, 101));
  EXPECT_THAT(must(rows_of(cache, parent, 20, 1)), ElementsAre(200, 201));
}

}  // namespace
}  // namespace kvfolio::parity
