// SPDX-License-Identifier: Apache-2.0
#include "manager/pin_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace kvfolio {
namespace {

constexpr std::uint16_t kTag = 0xabcd;

PinSet pins_for(std::int32_t max_pins, std::int32_t num_groups = 1) {
  PinSet pins;
  EXPECT_TRUE(pins.allocate(max_pins, num_groups, kTag));
  return pins;
}

std::vector<std::int32_t> open_ones(const PinSet& pins) {
  std::vector<std::int32_t> open;
  pins.for_each_open([&](std::int32_t pin) { open.push_back(pin); });
  return open;
}

TEST(PinSet, PinsAreTakenFromTheFirstOnUntilAllAreOpen) {
  PinSet pins = pins_for(2);
  EXPECT_EQ(pins.next_free(), 0);
  const PinId first = pins.take();
  const PinId second = pins.take();
  EXPECT_EQ(pins.next_free(), PinSet::kNone);
  EXPECT_EQ(pins.find(first), 0);
  EXPECT_EQ(pins.find(second), 1);
  EXPECT_EQ(pins.num_open(), 2);
}

TEST(PinSet, ASetOfNoPinsHasNoneToGive) {
  const PinSet pins = pins_for(0);
  EXPECT_EQ(pins.next_free(), PinSet::kNone);
  EXPECT_EQ(pins.find(PinId(PackedId{kTag, 1, 0}.bits())), PinSet::kNone);
  EXPECT_TRUE(pins.check().ok());
}

TEST(PinSet, AnIdOfAPinThatWasGivenBackNamesNothing) {
  PinSet pins = pins_for(1);
  const PinId old = pins.take();
  pins.give_back(0);
  EXPECT_EQ(pins.find(old), PinSet::kNone);
  const PinId now = pins.take();
  EXPECT_NE(now, old);
  EXPECT_EQ(pins.find(old), PinSet::kNone);
  EXPECT_EQ(pins.find(now), 0);
}

TEST(PinSet, IdsOfOtherTagsGenerationsAndRowsNameNothing) {
  PinSet pins = pins_for(4);
  static_cast<void>(pins.take());
  const auto id = [](std::uint16_t tag, std::uint32_t generation, std::int32_t row) {
    return PinId(PackedId{tag, generation, row}.bits());
  };
  EXPECT_EQ(pins.find(id(kTag, 1, 0)), 0);
  EXPECT_EQ(pins.find(id(kTag + 1, 1, 0)), PinSet::kNone);
  EXPECT_EQ(pins.find(id(kTag, 2, 0)), PinSet::kNone);
  EXPECT_EQ(pins.find(id(kTag, 0, 0)), PinSet::kNone);
  EXPECT_EQ(pins.find(id(kTag, 1, 1)), PinSet::kNone);
  EXPECT_EQ(pins.find(id(kTag, 1, PackedId::kMaxRows - 1)), PinSet::kNone);
  EXPECT_EQ(pins.find(PinId(0)), PinSet::kNone);
  EXPECT_EQ(pins.find(PinId(std::numeric_limits<std::uint64_t>::max())), PinSet::kNone);
}

TEST(PinSet, TheOpenOnesAreVisitedInOrderAndMayBeGivenBackMeanwhile) {
  PinSet pins = pins_for(5);
  for (int i = 0; i < 4; ++i) static_cast<void>(pins.take());
  pins.give_back(1);
  EXPECT_EQ(open_ones(pins), (std::vector<std::int32_t>{0, 2, 3}));
  pins.for_each_open([&](std::int32_t pin) {
    if (pin != 2) pins.give_back(pin);
  });
  EXPECT_EQ(open_ones(pins), (std::vector<std::int32_t>{2}));
  EXPECT_TRUE(pins.check().ok()) << pins.check().message();
}

TEST(PinSet, TheCheckFindsATableThatAFreePinKept) {
  Result<SpanArena> arena = SpanArena::create(64);
  ASSERT_TRUE(arena);
  PinSet pins = pins_for(2, 2);
  static_cast<void>(pins.take());
  ASSERT_TRUE(pins.table(0, 1).reserve(*arena, 3));
  EXPECT_TRUE(pins.check().ok()) << pins.check().message();
  pins.give_back(0);
  EXPECT_FALSE(pins.check().ok());
  pins.table(0, 1).release(*arena);
  EXPECT_TRUE(pins.check().ok()) << pins.check().message();
}

TEST(PinSet, EveryIdIsGivenOutOnceWhateverIsTakenAndGivenBack) {
  std::mt19937_64 random(1);
  PinSet pins = pins_for(6);
  std::map<std::int32_t, PinId> open;
  std::set<std::uint64_t> given;
  for (int op = 0; op < 5000; ++op) {
    const auto pin = static_cast<std::int32_t>(random() % 6);
    if (random() % 2 == 0 && pins.next_free() != PinSet::kNone) {
      const std::int32_t taken = pins.next_free();
      open.insert_or_assign(taken, pins.take());
      EXPECT_TRUE(given.insert(open.at(taken).value()).second);
    } else if (open.count(pin) != 0) {
      pins.give_back(pin);
      open.erase(pin);
    }
    ASSERT_EQ(open_ones(pins).size(), open.size());
    for (const auto& [row, id] : open) ASSERT_EQ(pins.find(id), row);
    ASSERT_TRUE(pins.check().ok()) << pins.check().message();
  }
}

TEST(PinSet, ACopyHasTheSamePinsAndIsIndependent) {
  PinSet pins = pins_for(3);
  const PinId id = pins.take();
  PinSet copy = pins_for(3);
  copy.copy_from(pins);
  pins.give_back(0);
  EXPECT_EQ(copy.find(id), 0);
  EXPECT_EQ(copy.num_open(), 1);
  EXPECT_EQ(copy.next_free(), 1);
  EXPECT_TRUE(copy.check().ok());
}

TEST(PackedId, TakesApartWhatItPutTogether) {
  const PackedId id{0xffff, 0xffffff, PackedId::kMaxRows - 1};
  EXPECT_EQ(id.bits(), std::numeric_limits<std::uint64_t>::max());
  const PackedId other = PackedId::of(PackedId{1, 2, 3}.bits());
  EXPECT_EQ(other.tag, 1);
  EXPECT_EQ(other.generation, 2u);
  EXPECT_EQ(other.row, 3);
}

TEST(PackedId, GenerationsGoRoundWithoutZero) {
  EXPECT_EQ(next_generation(1), 2u);
  EXPECT_EQ(next_generation(0xffffff), 1u);
  EXPECT_EQ(previous_generation(2), 1u);
  EXPECT_EQ(previous_generation(1), 0xffffffu);
}

}  // namespace
}  // namespace kvfolio
