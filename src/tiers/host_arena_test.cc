// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/host_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tiers/key_spread.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;

TierKey key_of(std::uint64_t number, std::uint16_t group = 0) {
  TierKey key;
  std::memcpy(key.bytes.data() + 2, &group, sizeof group);
  const std::uint64_t spread = number * 0x9e3779b97f4a7c15u;
  std::memcpy(key.bytes.data() + 24, &spread, sizeof spread);
  std::memcpy(key.bytes.data() + 32, &number, sizeof number);
  return key;
}

HostArena arena_of(std::int64_t bytes, std::vector<std::int64_t> sizes) {
  auto arena = HostArena::create({.bytes = bytes, .record_bytes = sizes});
  EXPECT_TRUE(arena) << arena.error();
  return *std::move(arena);
}

// Stores a record whose bytes follow from its number; false: no room or there already.
bool put(HostArena& arena, std::uint64_t number, std::int64_t bytes, std::uint16_t group = 0) {
  const auto slot = arena.reserve(key_of(number, group), bytes);
  if (!slot) return false;
  const std::span<std::byte> memory = arena.fill(*slot);
  EXPECT_EQ(memory.size(), static_cast<std::size_t>(bytes));
  std::memset(memory.data(), static_cast<int>(number % 251), memory.size());
  arena.seal(*slot);
  return arena.publish(*slot);
}

// The record is there and has its own bytes.
bool has(HostArena& arena, std::uint64_t number, std::uint16_t group = 0) {
  const ArenaPin pin = arena.find(key_of(number, group));
  if (!pin) return false;
  for (const std::byte byte : pin.record()) {
    EXPECT_EQ(byte, static_cast<std::byte>(number % 251));
    if (byte != static_cast<std::byte>(number % 251)) break;
  }
  return true;
}

TEST(HostArena, AnswersOnlyWithWhatWasPublished) {
  HostArena arena = arena_of(1024, {256});
  const auto slot = arena.reserve(key_of(1), 256);
  ASSERT_TRUE(slot);
  EXPECT_FALSE(arena.contains(key_of(1)));
  arena.fill(*slot);
  EXPECT_FALSE(arena.contains(key_of(1)));
  arena.seal(*slot);
  EXPECT_FALSE(arena.find(key_of(1)));
  EXPECT_EQ(arena.stats().writing, 1);
  EXPECT_TRUE(arena.publish(*slot));
  EXPECT_TRUE(arena.find(key_of(1)));
  EXPECT_FALSE(arena.contains(key_of(1, 1)));  // the group belongs to the key
  EXPECT_EQ(arena.stats().writing, 0);
  EXPECT_TRUE(arena.check_invariants().ok());
}

TEST(HostArena, TheSecondRecordOfAKeyIsDropped) {
  HostArena arena = arena_of(1024, {256});
  EXPECT_TRUE(put(arena, 1, 256));
  EXPECT_FALSE(put(arena, 1, 256));
  EXPECT_EQ(arena.stats().records, 1);
  EXPECT_TRUE(has(arena, 1));
  EXPECT_TRUE(arena.check_invariants().ok());
}

TEST(HostArena, EvictsWhatWasNotUsedForLongest) {
  HostArena arena = arena_of(1024, {256});
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(put(arena, i, 256));
  EXPECT_TRUE(has(arena, 0));
  EXPECT_TRUE(arena.touch(key_of(1)));
  EXPECT_TRUE(put(arena, 4, 256));
  EXPECT_FALSE(arena.contains(key_of(2)));
  EXPECT_TRUE(put(arena, 5, 256));
  EXPECT_FALSE(arena.contains(key_of(3)));
  EXPECT_TRUE(arena.contains(key_of(0)));
  EXPECT_TRUE(arena.contains(key_of(1)));
  EXPECT_EQ(arena.stats().evictions, 2u);
}

TEST(HostArena, APinnedRecordStaysAndAFullArenaSaysNo) {
  HostArena arena = arena_of(512, {256});
  EXPECT_TRUE(put(arena, 0, 256));
  EXPECT_TRUE(put(arena, 1, 256));
  {
    const ArenaPin first = arena.find(key_of(0));
    ArenaPin second = arena.find(key_of(1));
    EXPECT_FALSE(arena.reserve(key_of(2), 256));
    EXPECT_EQ(arena.stats().refusals, 1u);
    EXPECT_EQ(arena.stats().pins, 2);
    second.release();
    EXPECT_TRUE(put(arena, 2, 256));
    EXPECT_TRUE(arena.contains(key_of(0)));
    EXPECT_FALSE(arena.contains(key_of(1)));
  }
  EXPECT_EQ(arena.stats().pins, 0);
  EXPECT_TRUE(arena.check_invariants().ok());
}

TEST(HostArena, AnErasedRecordStaysInMemoryWhileItIsPinned) {
  HostArena arena = arena_of(256, {256});
  EXPECT_TRUE(put(arena, 7, 256));
  ArenaPin pin = arena.find(key_of(7));
  EXPECT_TRUE(arena.erase(key_of(7)));
  EXPECT_FALSE(arena.erase(key_of(7)));
  EXPECT_FALSE(arena.find(key_of(7)));
  EXPECT_FALSE(arena.reserve(key_of(8), 256));
  EXPECT_EQ(pin.record()[255], std::byte{7});
  const ArenaPin moved = std::move(pin);
  EXPECT_FALSE(pin);  // NOLINT(bugprone-use-after-move): that it is empty then is the claim
  EXPECT_EQ(moved.record()[0], std::byte{7});
  EXPECT_TRUE(arena.check_invariants().ok());
}

TEST(HostArena, AQuarantinedSlotIsNotUsedBeforeItIsQuiesced) {
  HostArena arena = arena_of(256, {256});
  const auto slot = arena.reserve(key_of(1), 256);
  const std::byte* memory = arena.fill(*slot).data();
  arena.quarantine(*slot);
  EXPECT_EQ(arena.stats().quarantined, 1);
  EXPECT_FALSE(arena.reserve(key_of(2), 256));
  EXPECT_TRUE(arena.check_invariants().ok());
  arena.quiesced(*slot);
  const auto next = arena.reserve(key_of(2), 256);
  ASSERT_TRUE(next);
  EXPECT_EQ(arena.fill(*next).data(), memory);
  EXPECT_NE(next->generation, slot->generation);
  arena.abandon(*next);
  EXPECT_TRUE(arena.check_invariants().ok());
}

TEST(HostArena, RefusesABudgetThatHoldsNoRecordOfEachSize) {
  const std::int64_t sizes[] = {256, 1000};
  auto arena = HostArena::create({.bytes = 2047, .record_bytes = sizes});
  ASSERT_FALSE(arena);
  EXPECT_EQ(arena.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(arena.error().message(), HasSubstr("a budget of 2047 bytes, needed: at least 2048"));
  arena = HostArena::create({.bytes = std::int64_t{1} << 62, .record_bytes = sizes});
  EXPECT_THAT(arena.error().message(), HasSubstr("bytes, allowed: at most 1125899906842624"));
  EXPECT_TRUE(HostArena::create({.bytes = 2048, .record_bytes = sizes}));
  EXPECT_FALSE(HostArena::create({.bytes = 2048}));
  const std::int64_t tiny[] = {0};
  EXPECT_FALSE(HostArena::create({.bytes = 2048, .record_bytes = tiny}));
}

TEST(HostArena, ASizeThatIsShortTakesTheColdestSlabOfAnother) {
  HostArena arena = arena_of(64 << 10, {256, 1024});
  for (std::uint64_t i = 0; i < 256; ++i) EXPECT_TRUE(put(arena, i, 256, 0));
  EXPECT_EQ(arena.stats().records, 256);
  for (std::uint64_t i = 0; i < 64; ++i) EXPECT_TRUE(put(arena, i, 1024, 1));
  EXPECT_EQ(arena.stats().records, 64);  // each of them took memory of colder ones
  EXPECT_TRUE(arena.check_invariants().ok());
  for (std::uint64_t i = 0; i < 64; ++i) EXPECT_TRUE(has(arena, i, 1)) << i;
}

// Pieces of any size, over slots of two sizes, some of them pinned.
TEST(HostArena, ErasingInPiecesTakesOutWhatErasingAtOnceWould) {
  constexpr std::uint64_t kRecords = 60;
  for (const std::int64_t piece : {1, 7, 64, 1 << 20}) {
    HostArena arena = arena_of(64 << 10, {256, 1024});
    for (std::uint64_t i = 0; i < kRecords; ++i) put(arena, i, i % 3 == 0 ? 1024 : 256, 0);
    const ArenaPin pin = arena.find(key_of(3));
    const auto is_odd = [](std::span<const std::byte> record) {
      return (std::to_integer<int>(record[0]) & 1) != 0;
    };
    std::int64_t erased = 0;
    for (std::int64_t seen = 0; seen < arena.num_slots(); seen += piece) {
      erased += arena.erase_some_if(piece, is_odd);
      ASSERT_TRUE(arena.check_invariants().ok());
    }
    EXPECT_EQ(erased, std::int64_t{kRecords / 2});
    EXPECT_EQ(arena.erase_if(is_odd), 0);
    for (std::uint64_t i = 0; i < kRecords; ++i) EXPECT_EQ(arena.contains(key_of(i)), i % 2 == 0);
    EXPECT_EQ(pin.record()[0], std::byte{3});
  }
}

// Random calls against a map of what was put there: what the arena has is right, it never has more
// than its budget, and what it lost was evicted.
TEST(HostArena, RandomCallsAgreeWithAMap) {
  constexpr std::int64_t kBytes = 32 << 10;
  const std::vector<std::int64_t> kSizes = {192, 512, 1024};
  for (std::uint32_t seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto num_sizes = static_cast<std::ptrdiff_t>(1 + seed % 3);
    HostArena arena = arena_of(kBytes, {kSizes.begin(), kSizes.begin() + num_sizes});
    std::vector<ArenaSlot> quarantine;
    std::deque<ArenaPin> pins;
    for (int step = 0; step < 20'000; ++step) {
      const std::uint64_t number = random() % 300;
      const auto group = static_cast<std::uint16_t>(random() % static_cast<unsigned>(num_sizes));
      switch (random() % 8) {
        case 0:
        case 1:
        case 2:
          put(arena, number, kSizes[group], group);
          break;
        case 3:
          has(arena, number, group);
          break;
        case 4:
          if (ArenaPin pin = arena.find(key_of(number, group))) pins.push_back(std::move(pin));
          if (pins.size() > 12) pins.pop_front();
          break;
        case 5: {
          const bool there = arena.contains(key_of(number, group));
          EXPECT_EQ(arena.erase(key_of(number, group)), there);
          break;
        }
        case 6:
          if (const auto slot = arena.reserve(key_of(number, group), kSizes[group])) {
            arena.fill(*slot);
            arena.quarantine(*slot);
            quarantine.push_back(*slot);
          }
          break;
        default:
          if (!quarantine.empty()) {
            arena.quiesced(quarantine.back());
            quarantine.pop_back();
          }
          if (random() % 500 == 0) arena.clear();
      }
      if (quarantine.size() > 6) {
        arena.quiesced(quarantine.front());
        quarantine.erase(quarantine.begin());
      }
      ASSERT_LE(arena.stats().bytes_published, kBytes);
      if (step % 64 == 0) {
        const Status status = arena.check_invariants();
        ASSERT_TRUE(status.ok()) << status << " at step " << step;
      }
    }
    for (const ArenaSlot& slot : quarantine) arena.quiesced(slot);
    pins.clear();
    EXPECT_TRUE(arena.check_invariants().ok());
    EXPECT_EQ(arena.stats().writing, 0);
  }
}

TEST(HostArena, EachRecordLiesAsItsAlignmentSays) {
  for (const std::int64_t alignment : {64, 512, 4096}) {
    const std::vector<std::int64_t> sizes = {200, 5000};
    auto arena =
        HostArena::create({.bytes = 300'000, .record_bytes = sizes, .alignment = alignment});
    ASSERT_TRUE(arena) << arena.error();
    for (std::uint64_t i = 0; i < 200; ++i) {
      EXPECT_TRUE(put(*arena, i, sizes[i % 2]));
      const ArenaPin pin = arena->hold(key_of(i));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pin.record().data()) % std::uintptr_t(alignment),
                0u);
      EXPECT_EQ(pin.record().size(), std::size_t(sizes[i % 2]));
    }
    EXPECT_TRUE(arena->check_invariants().ok());
  }
  const std::vector<std::int64_t> sizes = {200};
  for (const std::int64_t bad : {0, 32, 96, 8192}) {
    EXPECT_THAT(
        to_string(
            HostArena::create({.bytes = 300'000, .record_bytes = sizes, .alignment = bad}).error()),
        HasSubstr("powers of two from 64 to 4096"));
  }
}

// One who chooses prompts tries until bits of their digests are as wanted. With 20,000 that
// shared a place, an insert took half a millisecond.
TEST(KeySpread, KeysThatAreChosenToCollideDoNot) {
  for (int shift = 0; shift < 64; ++shift) {
    std::set<std::size_t> places;
    const std::uint64_t num = std::min<std::uint64_t>(20'000, ~std::uint64_t{0} >> shift);
    for (std::uint64_t i = 0; i < num; ++i) {
      TierKey key;
      const std::uint64_t tokens = i << shift;
      std::memcpy(key.bytes.data() + 24, &tokens, sizeof tokens);
      places.insert(TierKeyHash()(key) & 0xffff);
    }
    EXPECT_GE(places.size(), num / 16) << shift;  // of 65,536, by any factor
  }
}

}  // namespace
}  // namespace kvfolio
