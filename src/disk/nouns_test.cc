// SPDX-License-Identifier: Apache-2.0
//
// The nouns of the store, each by itself and against a model.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "disk/erases.h"
#include "disk/error_budget.h"
#include "disk/eviction.h"
#include "disk/index.h"
#include "disk/scrub.h"
#include "disk/segments.h"
#include "disk/test_store.h"
#include "disk/waiting.h"

namespace kvfolio::disk {
namespace {

// ---- RecordIndex ----

std::uint32_t count_of(const RecordIndex& index, std::uint64_t number) {
  std::uint32_t count = 0;
  index.for_each(key_of(number), [&](std::uint32_t) { ++count; });
  return count;
}

// Against a map, with keys that come and go, and copies that stay until they are dropped.
TEST(RecordIndex, FindsWhatAMapFinds) {
  RecordIndex index;
  std::map<std::uint64_t, std::uint32_t> model;
  std::multimap<std::uint64_t, std::uint32_t> copies;
  std::mt19937_64 random(5);
  for (int round = 0; round < 30'000; ++round) {
    const std::uint64_t number = random() % 500;
    const auto known = model.find(number);
    if (random() % 3 != 0) {
      const std::uint32_t id = index.add({.key = key_of(number)});
      ASSERT_NE(id, RecordIndex::kNone);
      index.publish(id);
      if (known != model.end()) copies.emplace(number, known->second);
      model[number] = id;
    } else if (known != model.end()) {
      index.retire(known->second);
      copies.emplace(number, known->second);
      model.erase(known);
    }
    if (copies.size() > 200) {
      for (const auto& [of, id] : copies) {
        if (id % 2 == 0) index.drop(id);  // first its place, then itself
        index.release(id);
      }
      copies.clear();
    }
    const auto asked = random() % 500;
    const auto expected = model.find(asked);
    EXPECT_EQ(index.find(key_of(asked)),
              expected == model.end() ? RecordIndex::kNone : expected->second);
    EXPECT_EQ(count_of(index, asked), copies.count(asked) + model.count(asked));
    if (round % 1000 == 0) {
      EXPECT_TRUE(index.check());
    }
  }
  EXPECT_TRUE(index.check());
  EXPECT_EQ(index.size(), std::int64_t(model.size()));
}

// Also while a table is doubled.
TEST(RecordIndex, NoCallLooksAtManyPlacesWhateverTheSize) {
  constexpr std::uint32_t kRecords = 1'000'000;
  RecordIndex index;
  std::uint64_t most = 0;
  std::mt19937_64 random(6);
  TierKey key;
  for (std::uint32_t i = 0; i < kRecords; ++i) {
    const std::uint64_t word = random();
    std::memcpy(key.bytes.data() + 24, &word, sizeof word);
    const std::uint64_t before = index.steps();
    const std::uint32_t id = index.add({.key = key});
    index.publish(id);
    if (i % 3 == 0) index.retire(id);
    if (i % 5 == 0) index.release(id);
    most = std::max(most, index.steps() - before);
  }
  EXPECT_LT(most, 1000u);  // 16 places move, and a probe of linear probing at 3/4 is this long
  EXPECT_LT(index.steps() / kRecords, 100u);
}

// ---- WaitingItems ----

TEST(WaitingItems, ServesFirstComeFirstAndFindsTheLateAndTheNamed) {
  std::mt19937_64 random(7);
  WaitingItems waiting(64);
  struct Item {
    std::uint64_t number, due, tag;
  };
  std::vector<Item> model;
  std::uint64_t last_tag = 0;
  for (int round = 0; round < 20'000; ++round) {
    switch (random() % 5) {
      case 0:
      case 1: {
        const std::uint64_t number = random() % 40, due = random() % 1000;
        if (model.size() == 64) break;
        ASSERT_TRUE(waiting.push({.key = key_of(number), .tag = ++last_tag}, {due}));
        model.push_back({number, due, last_tag});
        break;
      }
      case 2: {
        if (model.empty()) break;
        EXPECT_EQ(waiting.take_front().item.tag, model.front().tag);
        model.erase(model.begin());
        break;
      }
      case 3: {
        const std::uint64_t now = random() % 300;
        const auto late = waiting.take_late(now);
        std::uint64_t least = kLater;
        for (const Item& one : model) least = std::min(least, one.due);
        ASSERT_EQ(late.has_value(), least < now);
        if (!late) break;
        EXPECT_EQ(late->deadline.at_us, least);
        std::erase_if(model, [&](const Item& one) { return one.tag == late->item.tag; });
        break;
      }
      default: {
        const std::uint64_t number = random() % 40;
        const auto taken = waiting.take(key_of(number));
        const auto is_it = [&](const Item& one) { return one.number == number; };
        ASSERT_EQ(taken.has_value(), std::any_of(model.begin(), model.end(), is_it));
        if (!taken) break;
        EXPECT_EQ(taken->item.key, key_of(number));
        std::erase_if(model, [&](const Item& one) { return one.tag == taken->item.tag; });
      }
    }
    ASSERT_EQ(waiting.size(), model.size());
    ASSERT_TRUE(waiting.check());
  }
}

TEST(WaitingItems, ARefusalIsOfWhatWaitedThen) {
  WaitingItems waiting(8);
  for (std::uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(waiting.push({.key = key_of(i), .tag = i}, {kLater}));
  }
  waiting.refuse_all(TierResult::kBusy);
  ASSERT_TRUE(waiting.push({.key = key_of(9), .tag = 9}, {kLater}));
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(waiting.take_refused()->item.tag, i);
  EXPECT_FALSE(waiting.refuses());
  EXPECT_EQ(waiting.take_front().item.tag, 9u);
}

// ---- Erases ----

TEST(Erases, EndWithTheLastTargetOrByTheirDeadlineAndSayTheWorstOnce) {
  Erases erases;
  const std::uint64_t first = erases.add(1, {50}), second = erases.add(2, {20});
  erases.add_target(first);
  EXPECT_FALSE(erases.end_target(first)) << "another one is left";
  erases.failed(first, TierResult::kIoError);
  const auto ended = erases.end_target(first);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->tag, 1u);
  EXPECT_EQ(ended->result, TierResult::kIoError);
  EXPECT_FALSE(erases.take_late(20)) << "in time";
  EXPECT_EQ(erases.take_late(21)->tag, 2u);
  EXPECT_FALSE(erases.end_target(second)) << "it is gone: its targets go all the same";
  erases.failed(second, TierResult::kBusy);
  EXPECT_EQ(erases.size(), 0u);
  EXPECT_TRUE(erases.check());
}

TEST(Erases, RandomCallsBreakNoRule) {
  std::mt19937_64 random(8);
  Erases erases;
  struct Erase {
    std::uint64_t number, due;
    int left;
  };
  std::vector<Erase> model;
  for (int round = 0; round < 20'000; ++round) {
    const std::size_t which = model.empty() ? 0 : random() % model.size();
    switch (random() % 4) {
      case 0: {
        const std::uint64_t due = random() % 1000;
        model.push_back({erases.add(random(), {due}), due, 1});
        break;
      }
      case 1:
        if (model.empty()) break;
        erases.add_target(model[which].number);
        ++model[which].left;
        break;
      case 2: {
        if (model.empty()) break;
        const auto ended = erases.end_target(model[which].number);
        ASSERT_EQ(ended.has_value(), --model[which].left == 0);
        if (ended) model.erase(model.begin() + std::ptrdiff_t(which));
        break;
      }
      default: {
        const std::uint64_t now = random() % 300;
        const auto late = erases.take_late(now);
        std::uint64_t least = kLater;
        for (const Erase& one : model) least = std::min(least, one.due);
        ASSERT_EQ(late.has_value(), least < now);
        if (!late) break;
        EXPECT_EQ(late->deadline.at_us, least);
        // The first of these: numbers grow.
        const auto is_it = [&](const Erase& one) { return one.due == least; };
        model.erase(std::find_if(model.begin(), model.end(), is_it));
      }
    }
    ASSERT_EQ(erases.size(), model.size());
    ASSERT_TRUE(erases.check());
  }
}

// ---- Eviction ----

TEST(Eviction, ChoosesUpToItsBytesAndMovesAFewAtATime) {
  Segments segments;
  Segment& segment = segments.add({1, 1}, Segment::State::kCreating, 100);
  segment.state = Segment::State::kEvicting;
  Eviction eviction(100);
  EXPECT_FALSE(eviction.is_under_way());
  eviction.begin(segment);
  EXPECT_TRUE(eviction.is_of(segment));
  for (std::uint32_t record = 0; record < 6; ++record) {
    EXPECT_TRUE(eviction.choose(record, 15));
  }
  EXPECT_FALSE(eviction.choose(6, 15));  // 105 bytes
  for (std::uint32_t record = 0; record < 4; ++record) {
    EXPECT_EQ(eviction.next(), record);
    eviction.move_begun();
  }
  EXPECT_FALSE(eviction.next());
  eviction.move_ended();
  EXPECT_EQ(eviction.next(), 4U);
  EXPECT_FALSE(eviction.has_moved_all());
  EXPECT_TRUE(eviction.check());
}

TEST(Eviction, WhatIsUnderWayOutlivesAnEvictionThatIsStopped) {
  Segments segments;
  Segment& segment = segments.add({1, 1}, Segment::State::kCreating, 100);
  segment.state = Segment::State::kEvicting;
  Eviction eviction(100);
  eviction.begin(segment);
  EXPECT_TRUE(eviction.choose(1, 10));
  EXPECT_TRUE(eviction.choose(2, 10));
  EXPECT_TRUE(eviction.next());
  eviction.move_begun();
  eviction.end();
  EXPECT_FALSE(eviction.is_under_way());
  EXPECT_FALSE(eviction.has_moved_all());
  EXPECT_FALSE(eviction.next());
  EXPECT_TRUE(eviction.check());
  eviction.begin(segment);
  EXPECT_TRUE(eviction.choose(3, 95));  // its bytes begin anew
  EXPECT_EQ(eviction.next(), 3U);
  eviction.move_ended();
  EXPECT_TRUE(eviction.has_moved_all());
}

TEST(Eviction, CheckSeesASegmentThatIsNotGoing) {
  Segments segments;
  Segment& segment = segments.add({1, 1}, Segment::State::kCreating, 100);
  segment.state = Segment::State::kEvicting;
  Eviction eviction(100);
  eviction.begin(segment);
  segment.state = Segment::State::kSealed;
  EXPECT_FALSE(eviction.check());
}

// ---- Scrub ----

TEST(Scrub, GoesThroughTheSealedSegmentsAndBeginsAnew) {
  Segments segments;
  RecordIndex index;
  std::vector<std::uint32_t> ids;
  const auto add_segment = [&](std::uint64_t number, int records) {
    Segment& segment = segments.add({number, number}, Segment::State::kSealed, 100);
    for (int i = 0; i < records; ++i) {
      const std::uint32_t id = index.add({.key = key_of(ids.size()), .segment = segment.slot});
      index.publish(id);
      (segment.last == RecordIndex::kNone ? segment.first : index[segment.last].next) = id;
      segment.last = id;
      ids.push_back(id);
    }
    return &segment;
  };
  Segment* const first = add_segment(1, 2);
  add_segment(2, 0);
  add_segment(3, 3);
  index.retire(ids[3]);
  Scrub scrub(1'000'000, 100);
  const auto read = [&](int looks) {
    std::vector<std::uint32_t> seen;
    for (int i = 0; i < looks; ++i) {
      const std::uint32_t id = scrub.next(segments, index);
      if (id != RecordIndex::kNone) seen.push_back(id);
    }
    return seen;
  };
  using testing::ElementsAre;
  // A look for each record, for the end of each segment and for the end of all.
  EXPECT_THAT(read(9), ElementsAre(ids[0], ids[1], ids[2], ids[4]));
  EXPECT_THAT(read(1), ElementsAre(ids[0]));
  segments.set_state(*first, Segment::State::kEvicting);
  EXPECT_THAT(read(4), ElementsAre(ids[2], ids[4])) << "one that goes is left in the middle";
}

TEST(Scrub, ReadsSoManyBytesASecondHoweverOftenItIsAsked) {
  for (const std::uint64_t step_us : {1u, 7u, 1000u, 300'000u}) {
    Scrub scrub(1'000'000, 4000);
    std::int64_t read = 0;
    for (std::uint64_t now = 0; now < 2'100'000; now += step_us) {
      scrub.earn(step_us);
      while (scrub.may_read()) {
        scrub.spend(4096);
        read += 4096;
      }
      ASSERT_TRUE(scrub.check());
    }
    EXPECT_NEAR(double(read), 2.1e6, 5000.0) << step_us;
  }
  Scrub saves(1000, 100);
  for (int i = 0; i < 10; ++i) saves.earn(5'000'000);
  std::int64_t bytes = 0;
  for (; saves.may_read(); ++bytes) saves.spend(1);
  EXPECT_EQ(bytes, 1000) << "of a second";
  Scrub off(0, 100);
  off.earn(1'000'000);
  EXPECT_FALSE(off.may_read());
}

// ---- ErrorBudget ----

TEST(ErrorBudget, PausesGrowUntilSomethingGoesWell) {
  ErrorBudget budget;
  using Task = ErrorBudget::Task;
  std::uint64_t now = 1;
  for (int i = 1; i < ErrorBudget::kInRowMax; ++i)
    EXPECT_FALSE(budget.failed(Task::kRead, -5, now));
  std::uint64_t pause = ErrorBudget::kPauses.shortest_us;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(budget.is_off(now));
    EXPECT_TRUE(budget.failed(Task::kRead, -5, now));
    EXPECT_TRUE(budget.is_off(now + pause - 1));
    now += pause;
    pause = std::min(2 * pause, ErrorBudget::kPauses.longest_us);
  }
  EXPECT_EQ(budget.reason(), "Input/output error");
  budget.went_well(Task::kRead);
  EXPECT_EQ(budget.reason(), "");
  for (int i = 1; i < ErrorBudget::kInRowMax; ++i)
    EXPECT_FALSE(budget.failed(Task::kRead, -5, now));
  EXPECT_TRUE(budget.failed(Task::kRead, -5, now));
  EXPECT_FALSE(budget.is_off(now + ErrorBudget::kPauses.shortest_us));
}

TEST(ErrorBudget, ReadsThatGoWellSayNothingOfWrites) {
  ErrorBudget budget;
  using Task = ErrorBudget::Task;
  for (int i = 1; i < ErrorBudget::kInRowMax; ++i) {
    EXPECT_FALSE(budget.failed(Task::kWrite, -5, 1));
    budget.went_well(Task::kRead);
  }
  EXPECT_TRUE(budget.failed(Task::kWrite, -5, 1));
}

// A disk that is slow has many late items at once, and something ends now and then.
TEST(ErrorBudget, OnlyADiskThatEndsNothingHangs) {
  ErrorBudget budget;
  std::uint64_t now = 1;
  for (int i = 0; i < 100; ++i) {
    now += ErrorBudget::kHangsUs / 2;
    budget.ended(now);
    for (int late = 0; late < 50; ++late) EXPECT_FALSE(budget.was_late(1, now));
  }
  now += ErrorBudget::kHangsUs;
  int late = 1;
  while (!budget.was_late(1, now)) ++late;
  EXPECT_EQ(late, ErrorBudget::kInRowMax);
  EXPECT_EQ(budget.reason(), "it does not answer");
  EXPECT_TRUE(budget.is_off(now));
  budget.ended(now);
  EXPECT_FALSE(budget.is_off(now));
}

// ---- Segments, OpenFiles ----

TEST(Segments, KnowTheirOldestTheirBytesAndWhoIsInLine) {
  Segments segments;
  std::vector<Segment*> made;
  for (std::uint64_t i = 5; i > 0; --i) {
    made.push_back(&segments.add({i, i}, Segment::State::kSealed, std::int64_t(i) * 100));
  }
  EXPECT_EQ(segments.bytes(), 1500);
  EXPECT_EQ(segments.oldest_sealed(), made[4]);
  segments.set_state(*made[4], Segment::State::kDraining);
  EXPECT_EQ(segments.oldest_sealed(), made[3]);
  EXPECT_EQ(segments.oldest(), made[4]);
  for (Segment* one : {made[4], made[0], made[4]}) segments.touch(*one);
  EXPECT_EQ(segments.num_touched(), 2u);
  segments.remove(*made[0]);
  EXPECT_EQ(segments.take_touched(), made[4]);
  EXPECT_EQ(segments.take_touched(), nullptr);
  EXPECT_EQ(segments.bytes(), 1000);
  EXPECT_TRUE(segments.check());
}

TEST(Segments, AStateFollowsOnlyInTheOrderOfALife) {
  using State = Segment::State;
  Segments segments;
  Segment& one = segments.add({1, 1}, State::kCreating, 100);
  EXPECT_DEATH(segments.set_state(one, State::kActive), "may_become");
  for (const State next : {State::kReady, State::kActive, State::kFull, State::kSealing,
                           State::kSealed, State::kEvicting, State::kSealed, State::kDraining}) {
    segments.set_state(one, next);
    EXPECT_TRUE(segments.check());
  }
  EXPECT_DEATH(segments.set_state(one, State::kSealed), "may_become") << "its records are going";
  segments.set_state(one, State::kRemoving);
  EXPECT_DEATH(segments.remove(one), "kForgetting") << "its file is being removed";
  segments.set_state(one, State::kForgetting);
  segments.remove(one);
  EXPECT_EQ(segments.size(), 0);
}

TEST(OpenFiles, CloseTheOneThatWasUsedLeastLately) {
  Segments segments;
  OpenFiles files(3);
  std::vector<Segment*> made;
  for (std::uint64_t i = 0; i < 4; ++i) {
    made.push_back(&segments.add({i, i}, Segment::State::kSealed, 100));
    if (i == 3) break;
    made.back()->file = int(i);
    files.opened(*made.back());
  }
  EXPECT_TRUE(files.is_full());
  files.used(*made[0]);
  made[1]->reads = 1;
  EXPECT_EQ(files.least_used(), made[2]);
  made[2]->stays_open = true;
  EXPECT_EQ(files.least_used(), made[0]);
  files.shrink();
  EXPECT_EQ(files.most(), 3);
  made[0]->file = -1;
  files.closed(*made[0]);
  files.shrink();
  EXPECT_EQ(files.most(), 2);
  EXPECT_EQ(files.least_used(), nullptr);
  EXPECT_TRUE(files.check(segments));
}

}  // namespace
}  // namespace kvfolio::disk
