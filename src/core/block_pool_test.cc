// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <list>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

BlockPool pool_of(std::int32_t num_blocks) {
  Result<BlockPool> pool = BlockPool::create(num_blocks);
  EXPECT_TRUE(pool) << pool.error().message();
  return std::move(*pool);
}

TEST(BlockPool, SizesBelowOneAreRefusedWithTheNumber) {
  for (const std::int32_t n : {0, -1, std::numeric_limits<std::int32_t>::min()}) {
    const Result<BlockPool> pool = BlockPool::create(n);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(pool.error().message(), HasSubstr("num_blocks is " + std::to_string(n)));
  }
}

TEST(BlockPool, ANewBlockHasOneReferenceNothingValidAndNoWriter) {
  BlockPool pool = pool_of(2);
  const BlockId first = pool.acquire();
  pool.set_valid(first, 7);
  pool.set_writer(first, 3);
  pool.set_touched(first, true);
  pool.set_wanted(first, true);
  ASSERT_TRUE(pool.release(first));
  pool.make_free(first);
  const BlockId again = pool.acquire();
  EXPECT_EQ(again, first);  // the last freed is taken first, while it is warm
  EXPECT_EQ(pool.state(again), BlockState::kHeld);
  EXPECT_EQ(pool.refs(again), 1);
  EXPECT_EQ(pool.valid(again), 0);
  EXPECT_EQ(pool.writer(again), BlockPool::kNobody);
  EXPECT_FALSE(pool.touched(again));
  EXPECT_FALSE(pool.wanted(again));
  EXPECT_FALSE(pool.held_by_steps(again));
}

TEST(BlockPool, TheNullBlockIsHeldForEverAndCountedInNumBlocksAlone) {
  BlockPool pool = pool_of(3);
  pool.keep_null_block();
  EXPECT_TRUE(pool.has_null_block());
  EXPECT_EQ(pool.num_blocks(), 3);
  EXPECT_EQ(pool.num_usable(), 2);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.num_held(), 0);
  EXPECT_EQ(pool.state(BlockId(0)), BlockState::kHeld);
  EXPECT_EQ(pool.acquire(), BlockId(1));
  EXPECT_EQ(pool.acquire(), BlockId(2));
  EXPECT_FALSE(pool.acquire().valid());
  EXPECT_EQ(pool.num_held(), 2);
  EXPECT_TRUE(pool.check_invariants().ok());
  BlockPool copy = pool_of(3);
  copy.keep_null_block();
  copy.copy_from(pool);
  EXPECT_EQ(copy.num_held(), 2);
  EXPECT_TRUE(pool.release(BlockId(0)));  // which no caller may
  pool.make_free(BlockId(0));
  EXPECT_THAT(pool.check_invariants().message(), HasSubstr("the null block has 0 references"));
}

TEST(BlockPool, AFullPoolIsANormalAnswer) {
  BlockPool pool = pool_of(3);
  for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(pool.acquire(), BlockId(i));
  EXPECT_EQ(pool.acquire(), BlockId());
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.num_held(), 3);
}

TEST(BlockPool, ManyBlocksAreTakenAsOneByOneOrNotAtAll) {
  BlockPool many = pool_of(10);
  BlockPool one_by_one = pool_of(10);
  // A free list in an order of its own, and metadata of earlier holders.
  for (BlockPool* pool : {&many, &one_by_one}) {
    for (int i = 0; i < 7; ++i) {
      const BlockId block = pool->acquire();
      pool->set_valid(block, 5);
      pool->set_writer(block, i);
    }
    for (const std::int32_t block : {4, 0, 6, 2}) {
      ASSERT_TRUE(pool->release(BlockId(block)));
      pool->make_free(BlockId(block));
    }
  }
  std::vector<BlockId> taken(8, BlockId(77));
  EXPECT_FALSE(many.acquire(taken));  // 7 are free
  EXPECT_EQ(taken, std::vector<BlockId>(8, BlockId(77)));
  EXPECT_EQ(many.num_free(), 7);
  taken.resize(5);
  EXPECT_TRUE(many.acquire(taken));
  for (const BlockId block : taken) {
    EXPECT_EQ(block, one_by_one.acquire());
    EXPECT_EQ(many.refs(block), 1);
    EXPECT_EQ(many.valid(block), 0);
    EXPECT_EQ(many.writer(block), BlockPool::kNobody);
  }
  EXPECT_TRUE(many.acquire(std::span<BlockId>()));
  EXPECT_EQ(many.num_free(), 2);
  EXPECT_EQ(many.num_held(), 8);
  EXPECT_TRUE(many.acquire(std::span(taken).first(2)));
  EXPECT_FALSE(many.acquire(std::span(taken).first(1)));
  EXPECT_TRUE(many.check_invariants().ok());
}

TEST(BlockPool, TheLastReleaseIsTold) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.acquire();
  pool.hold(block);
  EXPECT_FALSE(pool.release(block));
  EXPECT_TRUE(pool.release(block));
  EXPECT_EQ(pool.state(block), BlockState::kHeld);  // until the caller says where it goes
  pool.make_cached(block);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_EQ(pool.num_held(), 0);
}

TEST(BlockPool, AHitRevivesACachedOrRetiringBlock) {
  BlockPool pool = pool_of(2);
  const BlockId a = pool.acquire();
  const BlockId b = pool.acquire();
  ASSERT_TRUE(pool.release(a));
  ASSERT_TRUE(pool.release(b));
  pool.make_cached(a);
  pool.make_retiring(b, 1);
  pool.hold(a);
  pool.hold(b);
  EXPECT_EQ(pool.num_held(), 2);
  EXPECT_EQ(pool.oldest_retiring(100), BlockId());
  EXPECT_TRUE(pool.check_invariants().ok());
}

TEST(BlockPool, RetiringBlocksLeaveInTheOrderOfReleaseWhenTheirStampIsReached) {
  BlockPool pool = pool_of(4);
  for (std::int32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pool.acquire().valid());
  }
  for (const auto& [block, stamp] : {std::pair(2, 5), {0, 5}, {3, 6}, {1, 8}}) {
    ASSERT_TRUE(pool.release(BlockId(block)));
    pool.make_retiring(BlockId(block), static_cast<std::uint64_t>(stamp));
  }
  EXPECT_EQ(pool.num_retiring(), 4);
  EXPECT_EQ(pool.oldest_retiring(5), BlockId());  // stamp 5 is not below 5
  EXPECT_EQ(pool.oldest_retiring(6), BlockId(2));
  pool.make_free(BlockId(2));
  EXPECT_EQ(pool.oldest_retiring(6), BlockId(0));
  pool.make_cached(BlockId(0));
  EXPECT_EQ(pool.oldest_retiring(6), BlockId());
  EXPECT_EQ(pool.oldest_retiring(7), BlockId(3));
  pool.hold(BlockId(3));
  EXPECT_EQ(pool.oldest_retiring(8), BlockId());
  EXPECT_EQ(pool.oldest_retiring(9), BlockId(1));
  EXPECT_TRUE(pool.check_invariants().ok());
}

TEST(BlockPool, StampsBeyond32BitsCompareInTheirOrder) {
  BlockPool pool = pool_of(2);
  const BlockId a = pool.acquire();
  const BlockId b = pool.acquire();
  ASSERT_TRUE(pool.release(a));
  ASSERT_TRUE(pool.release(b));
  constexpr std::uint64_t kWrap = std::uint64_t{1} << 32;
  pool.make_retiring(a, kWrap - 1);
  pool.make_retiring(b, kWrap);
  EXPECT_EQ(pool.oldest_retiring(kWrap - 1), BlockId());
  EXPECT_EQ(pool.oldest_retiring(kWrap), a);
  pool.make_free(a);
  EXPECT_EQ(pool.oldest_retiring(kWrap), BlockId());
  EXPECT_EQ(pool.oldest_retiring(kWrap + 1), b);
}

TEST(BlockPool, ARetiringBlockHasNoWriterAndNeitherHasARevivedOne) {
  BlockPool pool = pool_of(3);
  std::array<BlockId, 3> blocks;
  for (BlockId& block : blocks) {
    block = pool.acquire();
    pool.set_writer(block, 7);
    ASSERT_TRUE(pool.release(block));
    pool.make_retiring(block, 1);
  }
  for (const BlockId block : blocks) EXPECT_EQ(pool.writer(block), BlockPool::kNobody);
  pool.hold(blocks[1]);
  pool.make_cached(blocks[2]);
  for (const BlockId block : blocks) EXPECT_EQ(pool.writer(block), BlockPool::kNobody);
  EXPECT_EQ(pool.oldest_retiring(2), blocks[0]);
  EXPECT_TRUE(pool.check_invariants().ok());
}

TEST(BlockPool, RemembersWhatCopyOnWriteNeeds) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.acquire();
  pool.set_valid(block, 1024);
  pool.set_writer(block, 9);
  pool.set_written_in(block, (std::uint64_t{1} << 32) + 7);
  pool.set_touched(block, true);
  EXPECT_EQ(pool.valid(block), 1024);
  EXPECT_EQ(pool.writer(block), 9);
  EXPECT_EQ(pool.written_in(block), 7u);
  EXPECT_TRUE(pool.touched(block));
  EXPECT_FALSE(pool.wanted(block));
  pool.set_wanted(block, true);
  pool.set_touched(block, false);
  EXPECT_TRUE(pool.wanted(block));
  EXPECT_FALSE(pool.touched(block));
  EXPECT_FALSE(pool.contains(BlockId()));
  EXPECT_FALSE(pool.contains(BlockId(1)));
  EXPECT_TRUE(pool.contains(block));
}

TEST(BlockPool, WasWantedStaysWhileTheBlockIsCached) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.acquire();
  pool.set_wanted(block, true);
  ASSERT_TRUE(pool.release(block));
  pool.make_cached(block);
  EXPECT_TRUE(pool.wanted(block));
  pool.hold(block);
  EXPECT_TRUE(pool.wanted(block));
}

TEST(BlockPool, RemembersWhenItWasReleasedLast) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.acquire();
  pool.hold(block);
  EXPECT_FALSE(pool.release(block));
  pool.set_released_in(block, (std::uint64_t{1} << 32) + 9);
  EXPECT_EQ(pool.released_in(block), 9u);
  ASSERT_TRUE(pool.release(block));
  pool.make_retiring(block, 12);
  EXPECT_EQ(pool.released_in(block), 12u);  // its stamp says the same
  pool.hold(block);
  EXPECT_EQ(pool.released_in(block), 12u);
}

// ---- references of steps ----

TEST(BlockPool, ABlockThatOnlyStepsHoldCountsAsRetiring) {
  BlockPool pool = pool_of(2);
  const BlockId block = pool.acquire();
  EXPECT_FALSE(pool.held_by_steps(block));
  pool.hold(block);
  pool.give_to_step(block);
  EXPECT_FALSE(pool.held_by_steps(block));  // a table has it too
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_EQ(pool.num_retiring(), 0);
  EXPECT_FALSE(pool.release(block));  // the table's
  EXPECT_TRUE(pool.held_by_steps(block));
  EXPECT_EQ(pool.state(block), BlockState::kHeld);
  EXPECT_EQ(pool.num_held(), 0);
  EXPECT_EQ(pool.num_retiring(), 1);
  EXPECT_EQ(pool.num_cached(), 0);
  // It is not on the list: it comes back when its step lets go.
  EXPECT_EQ(pool.oldest_retiring(100), BlockId());
  EXPECT_TRUE(pool.check_invariants().ok());

  pool.hold(block);  // a hit
  EXPECT_FALSE(pool.held_by_steps(block));
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_EQ(pool.num_retiring(), 0);
  EXPECT_FALSE(pool.release(block));
  EXPECT_EQ(pool.num_retiring(), 1);

  pool.take_from_step(block);  // the step lets go
  EXPECT_FALSE(pool.held_by_steps(block));
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_TRUE(pool.release(block));
  pool.make_cached(block);
  EXPECT_EQ(pool.num_retiring(), 0);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_TRUE(pool.check_invariants().ok());
}

TEST(BlockPool, AReferenceThatAStepGivesBackIsATablesAgain) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.acquire();
  pool.give_to_step(block);
  EXPECT_EQ(pool.num_retiring(), 1);
  pool.take_from_step(block);
  EXPECT_EQ(pool.num_held(), 1);
  EXPECT_EQ(pool.num_retiring(), 0);
  EXPECT_EQ(pool.refs(block), 1);
}

TEST(BlockPool, SeveralStepsMayHoldABlock) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.acquire();
  for (int i = 0; i < 3; ++i) pool.hold(block);
  for (int i = 0; i < 3; ++i) pool.give_to_step(block);
  EXPECT_FALSE(pool.held_by_steps(block));
  EXPECT_FALSE(pool.release(block));
  for (int i = 3; i > 0; --i) {
    EXPECT_TRUE(pool.held_by_steps(block));
    EXPECT_EQ(pool.num_retiring(), 1);
    pool.take_from_step(block);
    EXPECT_EQ(pool.release(block), i == 1);
  }
  pool.make_free(block);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.num_retiring(), 0);
}

TEST(BlockPool, ABlockWithManyReferencesOfStepsCountsAsHeldUntilItIsFree) {
  constexpr int kCounted = 4094;  // at once
  for (const int n : {kCounted, kCounted + 1, kCounted + 100}) {
    SCOPED_TRACE(n);
    BlockPool pool = pool_of(1);
    const BlockId block = pool.acquire();
    for (int i = 0; i < n; ++i) {
      pool.hold(block);
      pool.give_to_step(block);
    }
    EXPECT_FALSE(pool.release(block));
    const bool counted = n == kCounted;
    EXPECT_EQ(pool.held_by_steps(block), counted);
    EXPECT_EQ(pool.num_held(), counted ? 0 : 1);
    EXPECT_TRUE(pool.check_invariants().ok());
    for (int i = n; i > 0; --i) {
      ASSERT_EQ(pool.held_by_steps(block), counted);
      pool.take_from_step(block);
      ASSERT_EQ(pool.release(block), i == 1);
    }
    // Cached or held again, the count is still lost.
    pool.make_cached(block);
    EXPECT_EQ(pool.num_retiring(), 0);
    EXPECT_TRUE(pool.check_invariants().ok());
    pool.hold(block);
    pool.give_to_step(block);
    EXPECT_EQ(pool.held_by_steps(block), counted);
    EXPECT_EQ(pool.num_held(), counted ? 0 : 1);
    pool.take_from_step(block);
    ASSERT_TRUE(pool.release(block));
    pool.make_free(block);
    EXPECT_TRUE(pool.check_invariants().ok());
    // A new life counts from nothing.
    ASSERT_EQ(pool.acquire(), block);
    pool.give_to_step(block);
    EXPECT_TRUE(pool.held_by_steps(block));
    EXPECT_EQ(pool.num_retiring(), 1);
  }
}

TEST(BlockPool, RandomOperationsAgreeWithAPlainList) {
  struct Naive {
    BlockState state = BlockState::kFree;
    std::int32_t refs = 0;
    std::uint64_t stamp = 0;
    std::int32_t steps = 0;  // of the references
  };
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const std::int32_t n = pick(1, 30);
    BlockPool pool = pool_of(n);
    std::vector<Naive> naive(static_cast<std::size_t>(n));
    std::vector<std::int32_t> free;
    for (std::int32_t i = n; i-- > 0;) free.push_back(i);
    std::list<std::int32_t> retiring;
    std::uint64_t ticket = (std::uint64_t{1} << 32) - 500;
    for (int i = 0; i < 5000; ++i) {
      ticket += static_cast<std::uint64_t>(pick(0, 3) == 0);
      const std::int32_t b = pick(0, n - 1);
      const BlockId block(b);
      Naive& at = naive[static_cast<std::size_t>(b)];
      const int what = pick(0, 11);
      if (what >= 10) {
        if (at.refs == at.steps || at.state != BlockState::kHeld) continue;
        pool.give_to_step(block);
        ++at.steps;
      } else if (what < 3) {
        const BlockId got = pool.acquire();
        ASSERT_EQ(got.valid(), !free.empty());
        if (got.valid()) {
          ASSERT_EQ(got.value(), free.back());
          naive[static_cast<std::size_t>(free.back())] = {BlockState::kHeld, 1};
          free.pop_back();
        }
      } else if (what < 5) {
        if (at.state == BlockState::kFree) continue;
        if (at.state == BlockState::kRetiring) retiring.remove(b);
        pool.hold(block);
        at.state = BlockState::kHeld;
        ++at.refs;
      } else if (what < 9) {
        if (at.refs == 0) continue;
        const bool undone = at.steps > 0 && pick(0, 3) == 0;
        if (undone || at.steps == at.refs) {
          pool.take_from_step(block);
          --at.steps;
        }
        if (undone) continue;
        --at.refs;
        ASSERT_EQ(pool.release(block), at.refs == 0);
        if (at.refs > 0) continue;
        const int where = pick(0, 2);
        if (where == 0) {
          pool.make_free(block);
          at.state = BlockState::kFree;
          free.push_back(b);
        } else if (where == 1) {
          pool.make_cached(block);
          at.state = BlockState::kCached;
        } else {
          pool.make_retiring(block, ticket);
          at.state = BlockState::kRetiring;
          at.stamp = ticket;
          retiring.push_back(b);
        }
      } else {
        const std::uint64_t bound = ticket + 1 - static_cast<std::uint64_t>(pick(0, 3));
        const BlockId oldest = pool.oldest_retiring(bound);
        const bool expected =
            !retiring.empty() && naive[static_cast<std::size_t>(retiring.front())].stamp < bound;
        ASSERT_EQ(oldest.valid(), expected);
        if (oldest.valid()) {
          ASSERT_EQ(oldest.value(), retiring.front());
          retiring.pop_front();
          Naive& out = naive[static_cast<std::size_t>(oldest.value())];
          if (pick(0, 1) == 0) {
            pool.make_free(oldest);
            out.state = BlockState::kFree;
            free.push_back(oldest.value());
          } else {
            pool.make_cached(oldest);
            out.state = BlockState::kCached;
          }
        }
        if (at.state == BlockState::kCached) {  // evicted
          pool.make_free(block);
          at.state = BlockState::kFree;
          free.push_back(b);
        }
      }
      std::int32_t counts[4] = {};
      for (std::int32_t j = 0; j < n; ++j) {
        const Naive& expected = naive[static_cast<std::size_t>(j)];
        ASSERT_EQ(pool.state(BlockId(j)), expected.state);
        ASSERT_EQ(pool.refs(BlockId(j)), expected.refs);
        const bool by_steps = expected.refs > 0 && expected.refs == expected.steps;
        ASSERT_EQ(pool.held_by_steps(BlockId(j)), by_steps);
        ++counts[static_cast<int>(by_steps ? BlockState::kRetiring : expected.state)];
      }
      ASSERT_EQ(pool.num_free(), counts[0]);
      ASSERT_EQ(pool.num_held(), counts[1]);
      ASSERT_EQ(pool.num_cached(), counts[2]);
      ASSERT_EQ(pool.num_retiring(), counts[3]);
      const Status ok = pool.check_invariants();
      ASSERT_TRUE(ok.ok()) << ok.message();
    }
  }
}

TEST(BlockPool, ACopyIsEqualAndIndependent) {
  BlockPool source = pool_of(6);
  const BlockId held = source.acquire();
  source.set_writer(held, 3);
  source.set_valid(held, 7);
  source.set_written_in(held, 12);
  for (std::uint64_t stamp = 1; stamp <= 3; ++stamp) {
    const BlockId block = source.acquire();
    ASSERT_TRUE(source.release(block));
    source.make_retiring(block, stamp);
  }
  const BlockId cached = source.acquire();
  ASSERT_TRUE(source.release(cached));
  source.make_cached(cached);
  source.set_wanted(cached, true);
  source.give_to_step(held);

  BlockPool target = pool_of(6);
  for (int i = 0; i < 5; ++i) static_cast<void>(target.acquire());
  target.copy_from(source);
  ASSERT_TRUE(target.check_invariants().ok());
  for (std::int32_t b = 0; b < 6; ++b) {
    const BlockId block(b);
    EXPECT_EQ(target.state(block), source.state(block));
    EXPECT_EQ(target.refs(block), source.refs(block));
    EXPECT_EQ(target.wanted(block), source.wanted(block));
    EXPECT_EQ(target.held_by_steps(block), source.held_by_steps(block));
  }
  EXPECT_EQ(target.num_held(), 0);
  EXPECT_EQ(target.num_retiring(), 4);
  EXPECT_EQ(target.writer(held), 3);
  EXPECT_EQ(target.valid(held), 7);
  EXPECT_EQ(target.written_in(held), 12u);

  // The copy goes on as the other would, and the other does not notice.
  for (int i = 0; i < 2; ++i) {
    const BlockId oldest = target.oldest_retiring(4);
    EXPECT_EQ(oldest, BlockId(1 + i));
    target.make_free(oldest);
  }
  EXPECT_EQ(target.num_free(), 3);
  EXPECT_EQ(target.acquire(), BlockId(2));
  EXPECT_TRUE(target.check_invariants().ok());
  EXPECT_EQ(source.num_free(), 1);
  EXPECT_EQ(source.num_retiring(), 4);
  EXPECT_EQ(source.acquire(), BlockId(5));
  EXPECT_TRUE(source.check_invariants().ok());
}

TEST(BlockPoolDeathTest, ACopyOfAnotherSizeStopsTheProgram) {
  const BlockPool source = pool_of(3);
  BlockPool target = pool_of(4);
  EXPECT_DEATH(target.copy_from(source), "broken invariant");
}

// Faults L2, L3 and P8: a free block was referenced, a block freed twice, a block freed that was
// never handed out; all in silence.
TEST(BlockPoolDeathTest, MisuseStopsTheProgram) {
  BlockPool pool = pool_of(3);
  const BlockId held = pool.acquire();
  const BlockId cached = pool.acquire();
  ASSERT_TRUE(pool.release(cached));
  pool.make_cached(cached);
  const BlockId free(2);
  EXPECT_DEATH(static_cast<void>(pool.release(free)), "broken invariant");
  EXPECT_DEATH(static_cast<void>(pool.release(cached)), "broken invariant");
  EXPECT_DEATH(pool.hold(free), "broken invariant");
  EXPECT_DEATH(pool.make_free(held), "broken invariant");
  EXPECT_DEATH(pool.make_free(free), "broken invariant");
  EXPECT_DEATH(pool.make_cached(held), "broken invariant");
  EXPECT_DEATH(pool.make_cached(free), "broken invariant");
  EXPECT_DEATH(pool.make_retiring(held, 1), "broken invariant");
  EXPECT_DEATH(pool.make_retiring(cached, 1), "broken invariant");
  EXPECT_DEATH(pool.give_to_step(free), "broken invariant");
  EXPECT_DEATH(pool.give_to_step(cached), "broken invariant");
  EXPECT_DEATH(pool.take_from_step(held), "broken invariant");
  EXPECT_DEATH(
      {
        pool.give_to_step(held);
        pool.give_to_step(held);  // it has one reference only
      },
      "broken invariant");
}

TEST(BlockPool, AReferenceOfAStepThatWasReleasedAsATablesBreaksTheInvariants) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.acquire();
  pool.hold(block);
  pool.give_to_step(block);
  pool.give_to_step(block);
  EXPECT_FALSE(pool.release(block));
  EXPECT_FALSE(pool.check_invariants().ok());
}

TEST(BlockPool, AReleasedBlockThatWentNowhereBreaksTheInvariants) {
  BlockPool pool = pool_of(2);
  const BlockId block = pool.acquire();
  ASSERT_TRUE(pool.release(block));
  EXPECT_THAT(pool.check_invariants().message(), HasSubstr("block 0 has 0 references"));
}

}  // namespace
}  // namespace kvfolio
