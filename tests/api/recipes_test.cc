// SPDX-License-Identifier: Apache-2.0
// What docs/recipes.md shows: the code that stands between a scheduler and the cache. A model here
// is a function from a text to its next token.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

// The model: the next token of a text.
std::int32_t next_token(const Tokens& text) {
  std::uint32_t hash = 17;
  for (const std::int32_t token : text) hash = hash * 31 + static_cast<std::uint32_t>(token);
  return static_cast<std::int32_t>(hash % 1000);
}

Tokens completed(Tokens text, std::size_t size) {
  while (text.size() < size) text.push_back(next_token(text));
  return text;
}

struct Request {
  Tokens text;  // the prompt, then what was sampled
  std::size_t wanted;
  std::size_t prompt = text.size();
};

// shown: chunks
// Requests wait until all of their prompt and answer fits in chunks; each step takes one token of
// every request that decodes, and then chunks of prompts up to the budget.
class Batch {
 public:
  Batch(KVCacheManager& cache, std::int64_t budget) : cache_(cache), budget_(budget) {}

  void add(std::uint64_t id, Request request) {
    requests_.emplace(id, std::move(request));
    waiting_.push_back(id);
  }
  bool done() const { return waiting_.empty() && running_.empty(); }
  const Tokens& text(std::uint64_t id) const { return requests_.at(id).text; }

  void step() {
    while (!waiting_.empty() && start(waiting_.front())) waiting_.pop_front();
    const Ticket ticket = must(cache_.begin_step());
    std::int64_t left = budget_;
    for (const SequenceId id : running_) {  // decodes first: one token each
      Request& r = request_of(id);
      if (r.text.size() == r.prompt) continue;
      left -= must(cache_.append_prompt(id, r.text, 1));
    }
    for (const SequenceId id : running_) {
      Request& r = request_of(id);
      if (r.text.size() == r.prompt && left > 0)
        left -= must(cache_.append_prompt(id, r.text, left));
    }
    const StepPlan& plan = *must(cache_.plan());
    const std::vector<SequenceId> computed(plan.sequences.begin(), plan.sequences.end());
    must(cache_.commit(ticket));  // the work is enqueued
    for (const SequenceId id : computed) {
      Request& r = request_of(id);
      const bool whole = must(cache_.info(id)).length == static_cast<std::int32_t>(r.text.size());
      if (whole) r.text.push_back(next_token(r.text));
    }
    must(cache_.complete(ticket));  // the device is done
    for (const SequenceId id : computed) {
      if (request_of(id).text.size() < request_of(id).wanted) continue;
      must(cache_.close(id));
      std::erase(running_, id);
    }
  }

 private:
  // Not now: others may end. never(): the pool is too small for it, so tell its user.
  bool start(std::uint64_t id) {
    const Request& r = requests_.at(id);
    const auto more = static_cast<std::int64_t>(r.wanted - r.text.size());
    const OpenOptions options{.caller_id = id};
    const auto fits = cache_.admit(r.text, options, more, {.most_per_step = budget_});
    if (!fits) {
      if (fits.error().shortage() == nullptr || fits.error().shortage()->never())
        must(fits.error());
      return false;
    }
    const Opened opened = must(cache_.open(r.text, options));
    const std::int64_t rest = std::ssize(r.text) - opened.cached_tokens + more;
    must(cache_.reserve(opened.sequence, rest, {.most_per_step = budget_}));
    running_.push_back(opened.sequence);
    return true;
  }
  Request& request_of(SequenceId id) { return requests_.at(*must(cache_.info(id)).caller_id); }

  KVCacheManager& cache_;
  std::int64_t budget_;
  std::map<std::uint64_t, Request> requests_;
  std::deque<std::uint64_t> waiting_;
  std::vector<SequenceId> running_;
};
// shown end

TEST(Recipes, ContinuousBatchingWithChunksIsNeverShortOfBlocks) {
  Engine e({full_group(4, 60), window_group(4, 16, 9)});
  Batch batch(e.manager, 7);
  std::map<std::uint64_t, Tokens> expected;
  for (std::uint64_t id = 0; id < 12; ++id) {
    const Tokens prompt = joined(tokens(1, 11), tokens(static_cast<std::int32_t>(100 * (id % 4)),
                                                       static_cast<int>(5 + 3 * id)));
    expected[id] = completed(prompt, prompt.size() + 6);
    batch.add(id, {prompt, prompt.size() + 6});
  }
  for (int steps = 0; !batch.done(); ++steps) {
    ASSERT_LT(steps, 1000);
    batch.step();
  }
  for (const auto& [id, text] : expected) EXPECT_EQ(batch.text(id), text) << id;
  EXPECT_GT(e.counters().tokens_reused, 0u);
  EXPECT_EQ(e.usage().held, 0);
}

TEST(Recipes, AStopStringGoesBackAndOn) {
  GroupSpec window = window_group(4, 16, 9);
  // shown: stop strings
  window.rewind = 8;  // at least the tokens of the longest stop string, less one
  auto cache = must(KVCacheManager::create({{full_group(4, 32), window}}));
  // shown end
  Engine e({full_group(4, 32), window});
  const SequenceId s = e.say(tokens(1, 40));
  Tokens text = tokens(1, 40);
  const std::size_t stop = 3;  // its last tokens are a stop string, which the answer does not have
  // shown: stop strings cut
  text.resize(text.size() - stop);
  must(e.manager.truncate(s, static_cast<std::int32_t>(text.size())));  // never refused: rewind
  // shown end
  EXPECT_EQ(e.info(s).length, 37);
  e.feed(s, {5});
  static_cast<void>(cache);
}

TEST(Recipes, ARequestIsGivenUpAtAnyMoment) {
  Engine e({full_group(4, 32)});
  const SequenceId s = e.open(tokens(1, 20), {.caller_id = 9}).sequence;
  const Ticket ticket = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 20)));
  // shown: cancel
  const Result<SequenceId> gone = e.manager.find(9);  // the client's own number
  if (gone) must(e.manager.cancel(*gone));            // out of the open step, too
  // shown end
  must(e.manager.plan());
  must(e.manager.finish(ticket));
  EXPECT_EQ(e.usage().held, 0);
}

TEST(Recipes, DraftsAreAcceptedAsFarAsTheyAreRight) {
  Engine e({full_group(4, 64), window_group(4, 32, 9)});
  KVCacheManager& cache = e.manager;
  Tokens text = tokens(1, 10);
  const SequenceId s = e.open(text).sequence;
  e.feed(s, text);
  text.push_back(next_token(text));
  std::size_t accepted_tokens = 0;
  while (text.size() < 60) {
    Tokens drafts = completed(text, text.size() + 3);
    drafts.erase(drafts.begin(), drafts.begin() + std::ssize(text));
    if (text.size() % 3 == 0) drafts[1] = 7;  // a draft model errs
    // shown: drafts
    const Ticket ticket = must(cache.begin_step());
    Tokens input = {text.back()};
    input.insert(input.end(), drafts.begin(), drafts.end());
    must(cache.append(s, input, {.draft = static_cast<std::int32_t>(drafts.size())}));
    must(cache.plan());
    must(cache.commit(ticket));
    std::int32_t accepted = 0;  // the device has said what follows each input
    while (accepted < std::ssize(drafts) &&
           next_token(text) == drafts[static_cast<std::size_t>(accepted)]) {
      text.push_back(drafts[static_cast<std::size_t>(accepted++)]);
    }
    text.push_back(next_token(text));
    must(cache.complete(ticket));
    must(cache.accept(s, accepted));  // the others are cut; nothing of them was findable
    // shown end
    accepted_tokens += static_cast<std::size_t>(accepted);
    ASSERT_EQ(e.info(s).length, static_cast<std::int32_t>(text.size()) - 1);
  }
  EXPECT_EQ(text, completed(tokens(1, 10), text.size()));
  EXPECT_GT(accepted_tokens, 20u);
}

TEST(Recipes, DraftsGoOnBehindDraftsInFlight) {
  Engine e({full_group(4, 64), window_group(4, 64, 9)}, {.max_steps_in_flight = 2});
  KVCacheManager& cache = e.manager;
  Tokens text = tokens(1, 10);   // what is known
  Tokens ahead = tokens(1, 10);  // what the sequence has said, guesses among it
  const SequenceId s = e.say(text);
  text.push_back(next_token(text));
  struct Row {
    Ticket ticket;
    std::int32_t rewinds;
    std::size_t begin;
    std::size_t known;
    Tokens input;
  };
  std::deque<Row> flight;
  const auto guess = [](const Tokens& before) {
    return before.size() % 9 == 0 ? 7 : next_token(before);  // a draft model errs
  };
  const auto launch = [&] {
    // shown: drafts ahead
    const Ticket ticket = must(cache.begin_step());
    const std::size_t begin = ahead.size();
    if (text.size() > begin) ahead = text;  // known by now; the rest is guessed
    const std::size_t known = ahead.size() - begin;
    while (ahead.size() < begin + 4) ahead.push_back(guess(ahead));
    const Tokens input(ahead.begin() + static_cast<std::ptrdiff_t>(begin), ahead.end());
    must(cache.append(s, input, {.draft = static_cast<std::int32_t>(input.size() - known)}));
    flight.push_back({ticket, must(cache.plan())->rewinds[0], begin, known, input});
    must(cache.commit(ticket));  // enqueued behind the step before
    // shown end
  };
  int void_rows = 0;
  const auto retire = [&] {
    // shown: drafts ahead results
    const Row row = flight.front();  // the device has said what follows each input
    flight.pop_front();
    must(cache.complete(row.ticket));
    if (must(cache.info(s)).rewinds != row.rewinds) {  // a guess in front of it was wrong
      ++void_rows;
      return;
    }
    std::size_t right = 0;
    while (right < row.input.size() && row.input[right] == text[row.begin + right]) {
      ++right;
      if (text.size() == row.begin + right) text.push_back(next_token(text));
    }
    must(cache.accept(s, static_cast<std::int32_t>(right - row.known)));
    if (right < row.input.size()) ahead.resize(row.begin + right);
    // shown end
    ASSERT_EQ(e.info(s).length, static_cast<std::int32_t>(ahead.size()));
  };
  launch();
  while (text.size() < 80) {
    launch();
    retire();
  }
  while (!flight.empty()) retire();
  EXPECT_EQ(text, completed(tokens(1, 10), text.size()));
  EXPECT_GT(void_rows, 4);
  EXPECT_EQ(e.info(s).accepted_length, e.info(s).length);
  must(e.manager.check_invariants());
}

TEST(Recipes, TwoStepsInFlightTellOldResultsFromNewOnes) {
  Engine e({full_group(4, 64)}, {.max_steps_in_flight = 2});
  KVCacheManager& cache = e.manager;
  const SequenceId a = e.say(tokens(1, 6));
  const SequenceId b = e.say(tokens(50, 6));
  struct Row {
    SequenceId sequence;
    std::int32_t rewinds;
  };
  std::deque<std::pair<Ticket, std::vector<Row>>> flight;
  std::map<std::uint64_t, int> results;
  const auto launch = [&] {
    // shown: two steps
    const Ticket ticket = must(cache.begin_step());
    const SequenceId sequences[] = {a, b};
    std::int32_t n = 0;
    must(cache.append_unnamed_each(sequences, &n));  // their ids are not known yet
    const StepPlan& plan = *must(cache.plan());
    std::vector<Row> rows;
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      rows.push_back({plan.sequences[i], plan.rewinds[i]});
    }
    must(cache.commit(ticket));  // enqueued behind the step before
    flight.emplace_back(ticket, rows);
    // shown end
  };
  const auto retire = [&] {
    // shown: two steps results
    const auto [ticket, rows] = flight.front();  // the device is done with the oldest step
    for (const auto& [sequence, rewinds] : rows) {
      const Result<SequenceInfo> info = cache.info(sequence);
      if (!info || info->rewinds != rewinds) continue;  // it is gone, or was cut back meanwhile
      const Tokens named = {static_cast<std::int32_t>(results[sequence.value()]++)};
      must(cache.set_tokens(sequence, named));
    }
    must(cache.complete(ticket));
    flight.pop_front();
    // shown end
  };
  launch();
  launch();
  retire();
  must(cache.truncate(a, 6));  // a stop string: its row in flight is void
  launch();
  retire();
  retire();
  EXPECT_EQ(results[a.value()], 2);
  EXPECT_EQ(results[b.value()], 3);
  EXPECT_EQ(e.info(a).length, 7);
  EXPECT_EQ(e.info(b).length, 9);
}

TEST(Recipes, BeamsShareWhatTheyHaveInCommon) {
  Engine e({full_group(4, 64)});
  KVCacheManager& cache = e.manager;
  std::vector<SequenceId> beams = {e.say(tokens(1, 18))};
  for (int round = 0; round < 6; ++round) {
    // shown: beams
    // From each beam two candidates; the best ones go on, and a beam may have both of its own.
    std::vector<std::pair<SequenceId, std::int32_t>> chosen;
    for (const SequenceId beam : beams) {
      chosen.emplace_back(beam, round);
      if (chosen.size() < 4) chosen.emplace_back(must(cache.fork(beam)), round + 100);
    }
    for (std::size_t i = 4; i < chosen.size(); ++i) must(cache.close(chosen[i].first));
    chosen.resize(std::min<std::size_t>(chosen.size(), 4));
    const Ticket ticket = must(cache.begin_step());
    beams.clear();
    for (const auto& [beam, token] : chosen) {
      must(cache.append(beam, {&token, 1}));  // a block that others hold is copied first
      beams.push_back(beam);
    }
    must(cache.plan());
    must(cache.finish(ticket));
    // shown end
  }
  EXPECT_EQ(beams.size(), 4u);
  EXPECT_LT(e.usage().held, 4 * 6);  // four texts of 24 tokens share their first blocks
  must(cache.check_invariants());
}

TEST(Recipes, ASessionWithPausesKeepsWhatItSaid) {
  Engine e({full_group(4, 64)});
  KVCacheManager& cache = e.manager;
  Tokens history = tokens(1, 30);
  must(cache.close(e.say(history)));
  // shown: sessions
  // The user reads. Nothing is held, so others may have the room; a pin keeps what must not go.
  const Pinned pinned = must(cache.pin(history));
  // The next turn:
  history.push_back(500);
  const Opened turn = must(cache.open(history));
  must(cache.unpin(pinned.pin));
  // shown end
  EXPECT_GE(turn.cached_tokens, 28);
}

}  // namespace
}  // namespace kvfolio::testing_engine
