// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/span_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kvfolio/fixed_array.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

SpanArena arena_of(std::int64_t words) {
  Result<SpanArena> arena = SpanArena::create(words);
  EXPECT_TRUE(arena) << arena.error().message();
  return std::move(*arena);
}

TEST(SpanArena, HasAtLeastTheWordsAskedFor) {
  for (const std::int64_t words : {0, 1, 7, 8, 9, 1000, 4096, 100003}) {
    const SpanArena arena = arena_of(words);
    EXPECT_GE(arena.num_words(), words);
    EXPECT_LT(arena.num_words(), words + SpanArena::kGranule);
    EXPECT_EQ(arena.free_words(), arena.num_words());
  }
}

TEST(SpanArena, SizesOutOfRangeAreRefusedWithTheNumber) {
  for (const std::int64_t words :
       {std::int64_t{-1}, (std::int64_t{1} << 33) + 1, std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min()}) {
    const Result<SpanArena> arena = SpanArena::create(words);
    ASSERT_FALSE(arena);
    EXPECT_EQ(arena.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(arena.error().message(), HasSubstr(std::to_string(words)));
  }
}

TEST(SpanArena, NoSpanHasNoCapacity) {
  EXPECT_EQ(SpanArena::capacity({}), 0);
  SpanArena arena = arena_of(64);
  ArenaSpan span;
  EXPECT_TRUE(arena.reserve(span, 0, 0));
  EXPECT_EQ(SpanArena::capacity(span), 0);
  arena.release(span);
  EXPECT_EQ(arena.free_words(), 64);
}

TEST(SpanArena, AppendingMovesTheContentsOnlyWhenCapacityDoubles) {
  SpanArena arena = arena_of(1 << 14);
  ArenaSpan span;
  int moves = 0;
  for (std::int32_t n = 0; n < 4096; ++n) {
    const std::int64_t before = SpanArena::capacity(span);
    ASSERT_TRUE(arena.reserve(span, n + 1, n));
    if (SpanArena::capacity(span) != before) ++moves;
    arena.at(span)[n] = n;
  }
  EXPECT_LE(moves, 10);
  for (std::int32_t n = 0; n < 4096; ++n) ASSERT_EQ(arena.at(span)[n], n);
}

TEST(SpanArena, ShrinkingLeavesTheSpanWhereItIsAndGivesTheRestBack) {
  SpanArena arena = arena_of(1024);
  ArenaSpan span;
  ASSERT_TRUE(arena.reserve(span, 1024, 0));
  EXPECT_EQ(arena.free_words(), 0);
  for (std::int32_t i = 0; i < 1024; ++i) arena.at(span)[i] = i;
  const std::int32_t* place = arena.at(span);
  arena.shrink(span, 100);
  EXPECT_EQ(arena.at(span), place);
  EXPECT_EQ(SpanArena::capacity(span), 128);
  EXPECT_EQ(arena.free_words(), 1024 - 128);
  for (std::int32_t i = 0; i < 100; ++i) ASSERT_EQ(arena.at(span)[i], i);
  arena.shrink(span, 128);
  EXPECT_EQ(SpanArena::capacity(span), 128);
  arena.shrink(span, 0);
  EXPECT_EQ(SpanArena::capacity(span), 0);
  EXPECT_EQ(arena.free_words(), 1024);
}

TEST(SpanArena, WhenThereIsNoSuchPieceNothingChanges) {
  SpanArena arena = arena_of(256);
  ArenaSpan a;
  ArenaSpan b;
  ASSERT_TRUE(arena.reserve(a, 128, 0));
  ASSERT_TRUE(arena.reserve(b, 64, 0));
  arena.at(a)[0] = 11;
  arena.at(a)[127] = 12;
  const std::int64_t free = arena.free_words();
  const ArenaSpan before = a;
  for (const std::int64_t words : {std::int64_t{129}, std::int64_t{1} << 33, std::int64_t{1} << 40,
                                   std::numeric_limits<std::int64_t>::max() - 8}) {
    EXPECT_FALSE(arena.reserve(a, words, 128)) << words;
    EXPECT_EQ(a.offset, before.offset);
    EXPECT_EQ(a.order, before.order);
    EXPECT_EQ(arena.free_words(), free);
    EXPECT_EQ(arena.at(a)[0], 11);
    EXPECT_EQ(arena.at(a)[127], 12);
  }
  arena.release(a);
  arena.release(b);
  EXPECT_EQ(arena.free_words(), 256);
}

TEST(SpanArena, FreedPiecesMergeSoThatTheWholeCanBeTakenAgain) {
  SpanArena arena = arena_of(4096);
  std::vector<ArenaSpan> spans(4096 / SpanArena::kGranule);
  for (ArenaSpan& span : spans) ASSERT_TRUE(arena.reserve(span, 1, 0));
  EXPECT_EQ(arena.free_words(), 0);
  ArenaSpan none;
  EXPECT_FALSE(arena.reserve(none, 1, 0));
  std::shuffle(spans.begin(), spans.end(), std::mt19937(3));
  for (ArenaSpan& span : spans) arena.release(span);
  ArenaSpan whole;
  EXPECT_TRUE(arena.reserve(whole, 4096, 0));
  EXPECT_EQ(SpanArena::capacity(whole), 4096);
}

// Some aligned piece of that many words, rounded up to a power of two, is free.
bool has_piece(const std::vector<bool>& taken, std::int64_t words) {
  auto piece = static_cast<std::size_t>(SpanArena::kGranule);
  while (static_cast<std::int64_t>(piece) < words) piece *= 2;
  for (std::size_t at = 0; at + piece <= taken.size(); at += piece) {
    const auto first = taken.begin() + static_cast<std::ptrdiff_t>(at);
    if (std::none_of(first, first + static_cast<std::ptrdiff_t>(piece), [](bool t) { return t; })) {
      return true;
    }
  }
  return false;
}

TEST(SpanArena, MemoryBehindTheFurthestSpanIsNotTouched) {
  constexpr std::int64_t kWords = std::int64_t{64} << 20;  // 256 MiB
  SpanArena arena = arena_of(kWords);
  std::vector<ArenaSpan> spans(1000);
  for (int round = 0; round < 3; ++round) {
    for (ArenaSpan& span : spans) ASSERT_TRUE(arena.reserve(span, 100, 0));
    for (ArenaSpan& span : spans) {
      EXPECT_LE(span.offset + 16, 16 * 1000);  // back to back, from the front
      arena.release(span);
    }
  }
}

// Owners of random spans against a plain map from word to owner.
TEST(SpanArena, RandomSpansNeverOverlapKeepTheirContentsAndAllReturn) {
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    SpanArena arena = arena_of(pick(100, 3000));
    struct Owner {
      ArenaSpan span;
      std::vector<std::int32_t> words;
    };
    std::vector<Owner> owners(20);
    std::int32_t stamp = 0;
    int refused = 0;
    std::vector<bool> taken(static_cast<std::size_t>(arena.num_words()));
    for (int i = 0; i < 1000; ++i) {
      Owner& owner = owners[static_cast<std::size_t>(pick(0, 19))];
      const auto used = static_cast<std::int64_t>(owner.words.size());
      if (pick(0, 2) != 0) {
        const std::int64_t wanted = used + pick(1, 1 << pick(0, 10));
        const ArenaSpan before = owner.span;
        const std::int64_t free = arena.free_words();
        if (arena.reserve(owner.span, wanted, used)) {
          ASSERT_GE(SpanArena::capacity(owner.span), wanted);
          while (static_cast<std::int64_t>(owner.words.size()) < wanted) {
            arena.at(owner.span)[owner.words.size()] = ++stamp;
            owner.words.push_back(stamp);
          }
        } else {
          ++refused;
          ASSERT_EQ(owner.span.offset, before.offset);
          ASSERT_EQ(owner.span.order, before.order);
          ASSERT_EQ(arena.free_words(), free);
          ASSERT_FALSE(has_piece(taken, wanted)) << wanted << " words would fit";
        }
      } else {
        const std::int64_t kept = pick(0, 2) == 0 ? 0 : used * pick(0, 100) / 100;
        arena.shrink(owner.span, kept);
        owner.words.resize(static_cast<std::size_t>(kept));
      }
      taken.assign(taken.size(), false);
      std::int64_t capacity = 0;
      for (const Owner& o : owners) {
        const std::int64_t own = SpanArena::capacity(o.span);
        capacity += own;
        for (std::int64_t c = 0; c < own; ++c) {
          const std::int64_t word = std::int64_t{o.span.offset} * SpanArena::kGranule + c;
          ASSERT_LT(word, arena.num_words());
          ASSERT_FALSE(taken[static_cast<std::size_t>(word)]);
          taken[static_cast<std::size_t>(word)] = true;
        }
        ASSERT_TRUE(std::equal(o.words.begin(), o.words.end(), arena.at(o.span)));
      }
      ASSERT_EQ(arena.free_words(), arena.num_words() - capacity);
    }
    EXPECT_GT(refused, 10);
    for (Owner& owner : owners) arena.release(owner.span);
    EXPECT_EQ(arena.free_words(), arena.num_words());
    // Merged to the largest pieces that the size allows.
    std::vector<ArenaSpan> pieces;
    for (std::int64_t left = arena.num_words(); left > 0;) {
      std::int64_t piece = SpanArena::kGranule;
      while (piece * 2 <= left) piece *= 2;
      pieces.emplace_back();
      ASSERT_TRUE(arena.reserve(pieces.back(), piece, 0));
      left -= piece;
    }
    EXPECT_EQ(arena.free_words(), 0);
  }
}

TEST(SpanArena, ACopyHasTheSameWordsAndTheSameFutureAndNothingInCommon) {
  std::mt19937 random(9);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  for (const std::int64_t words : {8, 64, 1000, 4096}) {
    SpanArena source = arena_of(words);
    SpanArena target = arena_of(words);
    std::vector<ArenaSpan> spans(12);
    std::int32_t stamp = 0;
    const auto churn = [&](SpanArena& arena, std::vector<ArenaSpan>& owned, std::uint32_t seed) {
      std::mt19937 local(seed);
      std::vector<std::int64_t> answers;
      for (int i = 0; i < 40; ++i) {
        ArenaSpan& span = owned[local() % owned.size()];
        const auto wanted = static_cast<std::int64_t>(local() % 60);
        if (local() % 3 == 0) {
          arena.shrink(span, wanted / 2);
        } else {
          answers.push_back(arena.reserve(span, wanted, 0) ? span.offset : -1);
        }
        const std::int64_t capacity = SpanArena::capacity(span);
        std::fill(arena.at(span), arena.at(span) + capacity, ++stamp);
      }
      return answers;
    };
    for (int round = 0; round < 50; ++round) {
      std::vector<ArenaSpan> unused = spans;
      churn(source, spans, static_cast<std::uint32_t>(random()));
      // A copy overwrites whatever was there.
      churn(target, unused, static_cast<std::uint32_t>(random()));
      target.copy_from(source);
      ASSERT_EQ(target.free_words(), source.free_words());
      const auto equal = [&] {
        return std::all_of(spans.begin(), spans.end(), [&](const ArenaSpan& span) {
          return std::equal(source.at(span), source.at(span) + SpanArena::capacity(span),
                            target.at(span));
        });
      };
      ASSERT_TRUE(equal());
      std::vector<ArenaSpan> copies = spans;
      const auto seed = static_cast<std::uint32_t>(random());
      const std::int32_t before = stamp;
      const std::vector<std::int32_t> untouched(source.at({0, 0}), source.at({0, 0}) + 8);
      const std::vector<std::int64_t> answers = churn(target, copies, seed);
      ASSERT_TRUE(std::equal(untouched.begin(), untouched.end(), source.at({0, 0})));
      stamp = before;
      ASSERT_EQ(churn(source, spans, seed), answers);
      ASSERT_TRUE(equal());
      if (pick(0, 9) == 0) {
        for (ArenaSpan& span : spans) source.release(span);
      }
    }
  }
}

// ---- FixedArray ----

TEST(FixedArray, ACopyTakesOverTheFirstElementsOrAll) {
  FixedArray<std::int32_t> source;
  FixedArray<std::int32_t> target;
  target.copy_from(source);  // both empty
  ASSERT_TRUE(source.allocate_zeroed(4) && target.allocate_zeroed(4));
  for (int i = 0; i < 4; ++i) source[i] = i + 1;
  target.copy_from(source, 2);
  EXPECT_THAT(std::vector<std::int32_t>(target.data(), target.data() + 4),
              ::testing::ElementsAre(1, 2, 0, 0));
  target.copy_from(source);
  source[0] = 9;
  EXPECT_THAT(std::vector<std::int32_t>(target.data(), target.data() + 4),
              ::testing::ElementsAre(1, 2, 3, 4));
}

TEST(FixedArray, BeginsALineOfTheCacheAndIsZero) {
  for (const std::int64_t size : {0, 1, 7, 1000, 100'000, 3'000'000}) {
    FixedArray<std::int32_t> array;
    ASSERT_TRUE(array.allocate_zeroed(size));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(array.data()) % 64, 0u) << size;
    for (std::int64_t i = 0; i < size; ++i) ASSERT_EQ(array[i], 0) << i;
    if (size > 0) array[size - 1] = 1;  // the sanitizer says whether it is within
  }
}

TEST(FixedArrayDeathTest, ACopyOfAnotherSizeStopsTheProgram) {
  FixedArray<std::int32_t> source;
  FixedArray<std::int32_t> target;
  ASSERT_TRUE(source.allocate_zeroed(4) && target.allocate_zeroed(3));
  EXPECT_DEATH(target.copy_from(source), "broken invariant");
  EXPECT_DEATH(target.copy_from(source, 4), "broken invariant");
}

TEST(FixedArray, IsEmptyUntilAllocated) {
  FixedArray<std::int32_t> array;
  EXPECT_EQ(array.size(), 0u);
  EXPECT_EQ(array.data(), nullptr);
  EXPECT_TRUE(array.allocate_zeroed(0));
  EXPECT_EQ(array.size(), 0u);
}

TEST(FixedArray, AllBytesAreZeroAlsoWhenAllocatedAgain) {
  FixedArray<std::int64_t> array;
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(array.allocate_zeroed(100));
    ASSERT_EQ(array.size(), 100u);
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(array[i], 0);
      array[i] = -1;
    }
  }
}

TEST(FixedArray, SizesThatCannotBeAreRefusedAndLeaveItEmpty) {
  for (const std::int64_t size :
       {std::int64_t{-1}, std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::max()}) {
    FixedArray<std::int64_t> array;
    ASSERT_TRUE(array.allocate_zeroed(4));
    EXPECT_FALSE(array.allocate_zeroed(size));
    EXPECT_EQ(array.size(), 0u);
  }
}

// The line of flags that the kernel keeps for the mapping at this address.
std::string mapping_flags(std::uintptr_t address) {
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream head(line);
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    char dash = 0;
    if (head >> std::hex >> from >> dash >> to && dash == '-') {
      here = from <= address && address < to;
    }
    if (here && line.rfind("VmFlags:", 0) == 0) return line + ' ';
  }
  return {};
}

TEST(FixedArray, LargeOnesAskForHugePages) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    GTEST_SKIP() << "this kernel has no transparent huge pages";
  }
  FixedArray<std::int64_t> array;
  ASSERT_TRUE(array.allocate_zeroed(std::int64_t{1} << 20));  // 8 MiB
  const auto middle = reinterpret_cast<std::uintptr_t>(array.data()) + (4 << 20);
  if (mapping_flags(middle).empty()) GTEST_SKIP() << "this kernel does not tell the flags";
  EXPECT_THAT(mapping_flags(middle), HasSubstr(" hg "));
}

TEST(FixedArray, PagesThatNobodyTouchedAreNotThere) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the calloc of the thread sanitizer writes to every page";
#endif
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  FixedArray<std::int64_t> array;
  ASSERT_TRUE(array.allocate_zeroed(std::int64_t{8} << 20));  // 64 MiB
  array[0] = 1;
  // Behind the page, huge or not, of the one element that was written.
  std::byte* begin = reinterpret_cast<std::byte*>(array.data()) + kHuge;
  begin -= reinterpret_cast<std::uintptr_t>(begin) % kPage;
  std::vector<unsigned char> there((std::size_t{60} << 20) / kPage);
  ASSERT_EQ(::mincore(begin, there.size() * kPage, there.data()), 0);
  EXPECT_THAT(there, ::testing::Each(0));
}

TEST(SpanArena, CountsThatNoArenaHasAreRefusedOrNothing) {
  SpanArena arena = *SpanArena::create(64);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  ArenaSpan span;
  EXPECT_FALSE(arena.reserve(span, kMost, 0));
  ASSERT_TRUE(arena.reserve(span, 8, 0));
  EXPECT_FALSE(arena.reserve(span, kMost, 8));
  arena.shrink(span, kMost);
  EXPECT_EQ(SpanArena::capacity(span), 8);
}

// One after the other, until one of them fails: the spans are taken then, and given back.
TEST(SpanTrial, SaysWhatTheArenaWouldSay) {
  std::mt19937_64 random(7);
  const auto pick = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  for (int round = 0; round < 2000; ++round) {
    SpanArena arena = *SpanArena::create(8 * (1 + pick(200)));
    std::vector<ArenaSpan> held(static_cast<std::size_t>(pick(12)));
    for (ArenaSpan& span : held) static_cast<void>(arena.reserve(span, 1 + pick(300), 0));
    for (ArenaSpan& span : held) {
      if (pick(1) == 0) arena.shrink(span, pick(100));
    }
    SpanTrial trial(arena);
    for (int i = 0; i < 8; ++i) {
      ArenaSpan span;
      std::int64_t capacity = 0;
      if (!held.empty() && pick(2) == 0) {
        capacity = SpanArena::capacity(
            held[static_cast<std::size_t>(pick(static_cast<std::int64_t>(held.size()) - 1))]);
      }
      const std::int64_t words = pick(1) == 0 ? pick(60) : pick(2000);
      const bool fits = words <= capacity;  // the old span of the trial is taken already
      const bool taken = fits || arena.reserve(span, words, 0);
      ASSERT_EQ(trial.reserve(capacity, words), taken) << "round " << round << " words " << words;
      if (taken && !fits) {
        ASSERT_EQ(capacity, SpanArena::capacity(span));
      }
    }
  }
}

TEST(SpanTrial, OfMoreWordsThanAnyArenaHasFails) {
  const SpanArena arena = *SpanArena::create(64);
  std::int64_t capacity = 0;
  EXPECT_FALSE(SpanTrial(arena).reserve(capacity, std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(capacity, 0);
}

}  // namespace
}  // namespace kvfolio
