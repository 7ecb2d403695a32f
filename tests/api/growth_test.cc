// SPDX-License-Identifier: Apache-2.0
// Costs that grew with the square of the prompt, or with the pool. Processor time of this thread,
// the least of several runs, against bounds far from both what is and what must not be.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// For `rounds` times open and close of a cached prompt.
double seconds_of_open(Engine& e, const Tokens& prompt, int rounds) {
  double best = 1e9;
  for (int run = 0; run < 7; ++run) {
    const double start = thread_seconds();
    for (int i = 0; i < rounds; ++i) must(e.manager.close(e.open(prompt).sequence));
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

// Fault P6. Eight times the tokens: 8 if linear, 64 if every block looks at the whole prefix.
TEST(Growth, APromptIsFoundInTimeThatGrowsWithItsLength) {
  Engine e({full_group(16, 16384)});
  const Tokens small = tokens(1, 16384);
  const Tokens large = tokens(1, 131072);
  e.cache(large);
  EXPECT_EQ(e.probe(large), 131071);
  EXPECT_LT(seconds_of_open(e, large, 4), 24 * seconds_of_open(e, small, 4));
}

// Fault P6: a touch looked at every cached block. A hundred times the blocks.
TEST(Growth, ATouchDoesNotLookAtTheOtherCachedBlocks) {
  const auto seconds = [](std::int32_t blocks) {
    Engine e({full_group(16, blocks)});
    e.cache(tokens(1, 16 * (blocks - 8)));
    e.cache(tokens(2000000, 32));
    return seconds_of_open(e, tokens(2000000, 33), 500);
  };
  EXPECT_LT(seconds(100000), 20 * seconds(1000));
}

// Fault T18: every question for a victim looked at all sequences. One is used between two
// questions; sixteen times the sequences.
TEST(Growth, AVictimIsFoundWithoutALookAtTheOthers) {
  const auto seconds = [](std::int32_t sequences) {
    Engine e({full_group(16, sequences + 1000)}, {.max_sequences = sequences});
    std::vector<SequenceId> all;
    all.reserve(static_cast<std::size_t>(sequences));
    for (std::int32_t i = 0; i < sequences; ++i) all.push_back(e.say_count(1));
    for (const VictimPolicy policy : {VictimPolicy::kLru, VictimPolicy::kLfu}) {
      EXPECT_EQ(e.manager.select_victim(policy), all[0]);
    }
    double best = 1e9;
    for (int run = 0; run < 7; ++run) {
      const Ticket ticket = must(e.manager.begin_step());
      for (std::size_t i = 1; i < 100; ++i) must(e.manager.append_unnamed(all[i], 1));
      must(e.manager.finish(ticket));
      const double start = thread_seconds();
      // The first one after so many uses looks at all sequences; it is one of two thousand.
      for (std::size_t i = 0; i < 2000; ++i) {
        must(e.manager.set_priority(all[1 + i % 99], run));
        EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLfu), all[0]);
      }
      best = std::min(best, thread_seconds() - start);
    }
    return best;
  };
  EXPECT_LT(seconds(16000), 8 * seconds(1000));
}

// Fault T18: a trim cost what it dropped times the table. Thirty-two times the blocks.
TEST(Growth, ATrimCostsWhatItDrops) {
  const auto seconds = [](std::int32_t blocks) {
    double best = 1e9;
    Engine e({full_group(16, blocks)}, {.prefix_cache = false});
    for (int run = 0; run < 7; ++run) {
      const SequenceId s = e.say_count(std::int64_t{16} * blocks);
      const double start = thread_seconds();
      must(e.manager.trim(s, {.num_sinks = 16, .window = 16}));
      best = std::min(best, thread_seconds() - start);
      must(e.manager.close(s));
    }
    return best;
  };
  EXPECT_LT(seconds(128000), 320 * seconds(4000));
}

// Fault T18: to drop one token more, or to take back the last one, looked at all that lay before.
// Thirty-two times the blocks.
TEST(Growth, ATrimForEachTokenAndATruncateByOneDoNotLookAtTheRest) {
  const auto seconds = [](std::int32_t blocks) {
    Engine e({full_group(1, blocks + 64)}, {.prefix_cache = false});
    const SequenceId trimmed = e.say_count(blocks / 2);
    const SequenceId whole = e.say_count(blocks / 2);
    must(e.manager.trim(trimmed, {.num_sinks = 4, .window = 16}));
    double best = 1e9;
    for (int run = 0; run < 7; ++run) {
      double spent = 0;
      for (int i = 0; i < 100; ++i) {
        e.feed_count(trimmed, 1);
        e.feed_count(whole, 1);
        const double start = thread_seconds();
        EXPECT_EQ(must(e.manager.trim(trimmed, {.num_sinks = 4, .window = 16})), 1);
        must(e.manager.truncate(whole, e.info(whole).length - 1));
        spent += thread_seconds() - start;
      }
      best = std::min(best, spent);
    }
    return best;
  };
  EXPECT_LT(seconds(128000), 8 * seconds(4000));
}

// Fault T18: unused slots are not looked at. A thousand times as many.
TEST(Growth, AVictimAmongFewIsFoundWhateverMaxSequencesIs) {
  const auto seconds = [](std::int32_t max_sequences) {
    Engine e({full_group(16, 1024)}, {.max_sequences = max_sequences});
    std::vector<SequenceId> all;
    all.reserve(8);
    for (int i = 0; i < 8; ++i) all.push_back(e.say_count(1));
    double best = 1e9;
    for (int run = 0; run < 7; ++run) {
      double spent = 0;
      for (int i = 0; i < 20; ++i) {
        for (const SequenceId s : all) e.feed_count(s, 1);
        const double start = thread_seconds();
        EXPECT_EQ(e.manager.select_victim(VictimPolicy::kLru), all[0]);
        spent += thread_seconds() - start;
      }
      best = std::min(best, spent);
    }
    return best;
  };
  EXPECT_LT(seconds(1 << 18), 50 * seconds(1 << 8));
}

// Fault T18: undo, preempt, accept and fork looked at every sequence of a step. Sixteen times the
// sequences, each of which does it once: 16 if linear, 256 if not.
TEST(Growth, ASequenceOfAStepIsFoundWithoutALookAtTheOthers) {
  const auto seconds = [](std::int32_t sequences) {
    double best = 1e9;
    for (int run = 0; run < 3; ++run) {
      Engine e({full_group(16, 8 * sequences)}, {.max_sequences = 2 * sequences});
      std::vector<SequenceId> all;
      all.reserve(static_cast<std::size_t>(sequences));
      for (std::int32_t i = 0; i < sequences; ++i) all.push_back(e.open({}).sequence);
      const auto append_all = [&](std::int32_t draft) {
        const Ticket ticket = must(e.manager.begin_step());
        for (const SequenceId s : all) {
          must(e.manager.append_unnamed(s, 1 + draft, {.draft = draft}));
        }
        return ticket;
      };
      const Ticket first = append_all(2);
      must(e.manager.commit(first));
      double start = thread_seconds();
      for (const SequenceId s : all) must(e.manager.accept(s, 1));
      for (const SequenceId s : all) must(e.manager.close(must(e.manager.fork(s))));
      double spent = thread_seconds() - start;
      must(e.manager.complete(first));
      const Ticket second = append_all(0);
      start = thread_seconds();
      for (const SequenceId s : all) must(e.manager.undo(s));
      spent += thread_seconds() - start;
      must(e.manager.drop(second));
      const Ticket third = append_all(0);
      start = thread_seconds();
      for (const SequenceId s : all) must(e.manager.preempt(s));
      spent += thread_seconds() - start;
      must(e.manager.drop(third));
      best = std::min(best, spent);
    }
    return best;
  };
  EXPECT_LT(seconds(8192), 64 * seconds(512));
}

}  // namespace
}  // namespace kvfolio::testing_engine
