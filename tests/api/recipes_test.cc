// SPDX-License-Identifier: Apache-2.0
// What docs/recipes.md shows: the code that stands between a scheduler and the cache. A model here
// is a function from a text to its next token.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <iterator>
#include <list>
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
    must(cache_.commit(ticket));    // the work is enqueued
    must(cache_.complete(ticket));  // the device is done: now its samples are there
    for (const SequenceId id : computed) {
      Request& r = request_of(id);
      const bool whole = must(cache_.info(id)).length == static_cast<std::int32_t>(r.text.size());
      if (whole) r.text.push_back(next_token(r.text));  // the input of the next step
      if (r.text.size() < r.wanted) continue;
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

// Eight prompts with one prefix come at once.
TEST(Recipes, ABurstOfTwinsIsComputedOnce) {
  Engine e({full_group(4, 200)});
  KVCacheManager& cache = e.manager;
  constexpr std::int32_t kUnit = 4;
  struct Running {
    SequenceId id;
    Tokens prompt;
  };
  std::vector<Running> running;
  std::deque<Tokens> waiting;
  for (int i = 0; i < 8; ++i) waiting.push_back(joined(tokens(1, 40), tokens(100 * (i + 1), 5)));
  std::int32_t computed = 0;
  while (!waiting.empty() || !running.empty()) {
    std::deque<Tokens> later;
    // shown: twins
    for (const Tokens& prompt : waiting) {  // none of them has a sequence yet
      const Admission fits = must(cache.admit(prompt, {}, 0, {.most_per_step = 16}));
      const bool by_runs = std::ranges::count(running, fits.soon.by, &Running::id) > 0;
      if (by_runs && fits.soon.tokens - fits.cached_tokens >= kUnit) {
        later.push_back(prompt);  // its prefix is computed now: ask again in the next round
        continue;
      }
      const Opened opened = must(cache.open(prompt, {.announce = true}));
      running.push_back({opened.sequence, prompt});
    }
    waiting = later;
    // shown end
    const Ticket ticket = must(cache.begin_step());
    for (const Running& r : running) computed += must(cache.append_prompt(r.id, r.prompt, 16));
    must(cache.plan());
    must(cache.finish(ticket));
    std::erase_if(running, [&](const Running& r) {
      const bool whole = e.info(r.id).length == std::ssize(r.prompt);
      if (whole) must(cache.close(r.id));
      return whole;
    });
  }
  EXPECT_EQ(computed, 40 + 8 * 5);
}

// An engine whose pool is too small for all that wait, without promises.
struct Pressed {
  struct Running {
    SequenceId id;
    Request request;
  };
  KVCacheManager& cache;
  std::list<Running> running{};  // the oldest first
  std::deque<Request> waiting{};
  std::deque<PinId> paused{};  // of sessions that wait for their users
  std::vector<Tokens> ended{};

  void step() {
    // shown: no room to begin
    while (!waiting.empty()) {
      const Result<Admission> fits = cache.admit(waiting.front().text, {}, 1);
      if (fits) {
        running.push_back({must(cache.open(waiting.front().text)).sequence, waiting.front()});
        waiting.pop_front();
        continue;
      }
      if (!running.empty()) break;             // others will end
      if (paused.empty()) must(fits.error());  // it has all that there is: tell its user
      must(cache.unpin(paused.front()));       // or a session gives way, the oldest first
      paused.pop_front();
    }
    // shown end
    const Ticket ticket = must(cache.begin_step());
    // shown: no room
    for (auto it = running.begin(); it != running.end();) {  // the oldest first
      const Result<std::int32_t> n = cache.append_prompt(it->id, it->request.text, 8);
      if (n) {
        ++it;
        continue;
      }
      const Status& error = n.error();
      if (error.shortage() == nullptr || error.shortage()->never()) must(error);  // tell its user
      std::optional<SequenceId> victim = cache.select_victim(VictimPolicy::kLongest);
      if (!victim && it != running.begin()) break;  // older ones are in the step: this one waits
      if (!victim) victim = running.back().id;  // no end alone frees a block: the youngest go first
      must(cache.preempt(*victim));  // what it has computed stays cached as long as there is room
      const auto gone = std::ranges::find(running, *victim, &Running::id);
      waiting.push_front(gone->request);  // opened again, it computes what was not found
      const bool itself = gone == it;
      const auto next = running.erase(gone);
      if (itself) it = next;
    }
    // shown end
    const StepPlan& plan = *must(cache.plan());
    const std::vector<SequenceId> computed(plan.sequences.begin(), plan.sequences.end());
    must(cache.finish(ticket));
    for (const SequenceId id : computed) {
      const auto it = std::ranges::find(running, id, &Running::id);
      Request& r = it->request;
      if (must(cache.info(id)).length < std::ssize(r.text)) continue;
      r.text.push_back(next_token(r.text));
      if (r.text.size() < r.wanted) continue;
      ended.push_back(r.text);
      must(cache.close(id));
      running.erase(it);
    }
  }
  void run() {
    for (int steps = 0; !running.empty() || !waiting.empty(); ++steps) {
      if (steps == 1000) throw std::runtime_error("no end after 1000 steps");
      step();
    }
  }
};

// The pool has half of what all need together.
TEST(Recipes, WhoIsPreemptedComesBackWithTheSameText) {
  Engine e({full_group(4, 12)});
  Pressed engine{e.manager};
  std::vector<Tokens> expected;
  for (int i = 0; i < 4; ++i) {
    engine.waiting.push_back({tokens(100 * i, 10), 22});
    expected.push_back(completed(tokens(100 * i, 10), 22));
  }
  engine.run();
  EXPECT_THAT(engine.ended, ::testing::UnorderedElementsAreArray(expected));
  EXPECT_GT(e.counters().sequences_preempted, 0u);
}

// Five blocks, all of them every sequence's: no end alone frees one, and the first that appends
// needs a copy.
TEST(Recipes, ForksThatShareAllOfAFullPoolComeToAnEnd) {
  Engine e({full_group(4, 5)});
  Pressed engine{e.manager};
  const Request request{completed(tokens(1, 18), 18), 20};
  const Tokens computed(request.text.begin(), request.text.end() - 1);
  const SequenceId parent = e.say(computed);
  for (int i = 0; i < 3; ++i) engine.running.push_back({must(e.manager.fork(parent)), request});
  engine.running.push_front({parent, request});
  ASSERT_EQ(e.usage().held, 5);
  EXPECT_EQ(e.manager.select_victim(), std::nullopt);
  EXPECT_TRUE(must(e.manager.preempt_to(0.5)).empty());
  engine.run();
  EXPECT_EQ(engine.ended, std::vector<Tokens>(4, completed(tokens(1, 18), 20)));
  must(e.manager.check_invariants());
}

// Blocks that a pin holds come back by unpin() alone.
TEST(Recipes, ASessionThatWaitsForItsUserGivesWay) {
  Engine e({full_group(4, 6)});
  Pressed engine{e.manager};
  e.cache(tokens(500, 16));
  engine.paused.push_back(must(e.manager.pin(tokens(500, 16))).pin);
  engine.waiting.push_back({tokens(1, 6), 13});
  engine.run();
  EXPECT_EQ(engine.ended, std::vector<Tokens>{completed(tokens(1, 6), 13)});
  EXPECT_TRUE(engine.paused.empty());
}

// Requests that decode with as many steps in flight as the manager allows.
struct InFlight {
  struct Row {
    SequenceId sequence;
    std::int32_t rewinds;
    std::int32_t kv_len;
  };
  KVCacheManager& cache;
  std::map<SequenceId, Tokens> texts;  // what is known of each
  std::deque<std::pair<Ticket, std::vector<Row>>> flight{};
  int void_rows = 0;

  // What the device says of a row: what follows the tokens that it has read.
  std::int32_t sampled(const Row& row) const {
    const Tokens& text = texts.at(row.sequence);
    return next_token(Tokens(text.begin(), text.begin() + row.kv_len));
  }
  void launch() {
    // shown: two steps
    const Ticket ticket = must(cache.begin_step());
    for (const auto& [sequence, text] : texts) {
      // What a step samples is the input of the next one. If it is not known yet, the next step
      // takes a token without a name.
      if (must(cache.info(sequence)).length < std::ssize(text)) {
        must(cache.append_prompt(sequence, text, 16));
      } else {
        must(cache.append_unnamed(sequence, 1));
      }
    }
    const StepPlan& plan = *must(cache.plan());
    std::vector<Row> rows;
    for (std::size_t i = 0; i < plan.sequences.size(); ++i) {
      rows.push_back({plan.sequences[i], plan.rewinds[i], plan.kv_lens[i]});
    }
    must(cache.commit(ticket));  // enqueued behind the step before
    flight.emplace_back(ticket, rows);
    // shown end
  }
  void retire() {
    // shown: two steps results
    const auto [ticket, rows] = flight.front();  // the device is done with the oldest step
    flight.pop_front();
    must(cache.complete(ticket));
    for (const Row& row : rows) {
      const Result<SequenceInfo> info = cache.info(row.sequence);
      if (!info || info->rewinds != row.rewinds) {
        ++void_rows;  // it is gone, or was cut back meanwhile
        continue;
      }
      Tokens& text = texts.at(row.sequence);
      if (row.kv_len < std::ssize(text)) continue;  // a chunk in front of the prompt's end
      text.push_back(sampled(row));
      if (info->num_unnamed > 0)  // the step in flight behind it has this token as its input
        must(cache.set_tokens(row.sequence, {&text.back(), 1}));
    }
    // shown end
  }
};

// A stop string of three tokens that ends anywhere, seen while later steps are in flight.
TEST(Recipes, AStopStringGoesBackAndOn) {
  constexpr int kFlight = 2;
  GroupSpec window = window_group(4, 32, 9);
  // shown: stop strings
  // Tokens of the longest stop string less one, and one for each step that may be in flight behind.
  window.rewind = (3 - 1) + (kFlight - 1);
  auto cache =
      must(KVCacheManager::create({{full_group(4, 32), window}}, {.max_steps_in_flight = kFlight}));
  // shown end
  for (std::size_t length = 30; length < 50; ++length) {
    Engine e({full_group(4, 32), window}, {.max_steps_in_flight = kFlight});
    OpenOptions silent;
    silent.publish = Publish::kNothing;  // so the cache has nothing to take back
    const SequenceId s = e.open(tokens(1, 10), silent).sequence;
    InFlight engine{e.manager, {{s, tokens(1, 10)}}};
    engine.launch();
    while (engine.texts[s].size() < length) {
      engine.launch();
      engine.retire();
    }
    Tokens& text = engine.texts[s];
    const std::size_t stop =
        3;  // its last tokens are a stop string, which the answer does not have
    EXPECT_EQ(e.info(s).rewind_from, std::ssize(text) - 3);  // not one token to spare
    // shown: stop strings cut
    text.resize(text.size() - stop);
    must(e.manager.truncate(s, static_cast<std::int32_t>(text.size())));  // never refused: rewind
    // shown end
    text.push_back(500);  // it goes on with another token; the row in flight is void
    const Tokens other = text;
    engine.launch();
    for (int i = 0; i < kFlight; ++i) engine.retire();
    EXPECT_EQ(text, completed(other, other.size() + 1));
    EXPECT_EQ(engine.void_rows, 1);
  }
  static_cast<void>(cache);
}

// What was found goes back no further than to where the hit ended, once the cache lets the rest go.
TEST(Recipes, ARequestThatWasOpenedAgainGoesBackByAnotherOpen) {
  GroupSpec window = window_group(4, 32, 9);
  window.rewind = 4;
  for (const bool is_there : {false, true}) {
    Engine e({full_group(4, 32), window});
    KVCacheManager& cache = e.manager;
    Tokens text = tokens(1, 40);
    must(cache.preempt(e.say(text)));
    text.push_back(next_token(text));
    SequenceId s = e.open(text).sequence;
    ASSERT_EQ(e.info(s).rewind_from, 40);
    if (!is_there) must(cache.evict(GroupId(1), 32));
    const std::size_t stop = 6;
    // shown: stop strings found
    text.resize(text.size() - stop);
    const Status cut = cache.truncate(s, static_cast<std::int32_t>(text.size()));
    if (!cut) {  // it lies in front of what this request found: rewind_from says so
      must(cache.close(s));
      s = must(cache.open(text)).sequence;  // append_prompt() computes what is not found
    }
    // shown end
    EXPECT_EQ(cut.ok(), is_there) << cut.message();
    text.push_back(7);
    const Ticket ticket = must(cache.begin_step());
    must(cache.append_prompt(s, text, 99));
    must(cache.plan());
    must(cache.finish(ticket));
    EXPECT_EQ(e.info(s).length, 36);
    must(cache.check_invariants());
  }
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

// Two steps in flight from a text that is known, of which the sequence has said what `ahead` is.
void draft_over_two_steps(Engine& e, SequenceId s, Tokens text, Tokens ahead) {
  KVCacheManager& cache = e.manager;
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
    if (row.known < row.input.size()) {  // else no guesses: it would decide on the next row's
      must(cache.accept(s, static_cast<std::int32_t>(right - row.known)));
    }
    if (right < row.input.size()) ahead.resize(row.begin + right);
    // shown end
    ASSERT_EQ(e.info(s).length, static_cast<std::int32_t>(ahead.size()));
  };
  launch();
  while (text.size() < 80 && !testing::Test::HasFatalFailure()) {
    launch();
    retire();
  }
  while (!flight.empty() && !testing::Test::HasFatalFailure()) retire();
  EXPECT_EQ(text, completed(tokens(1, 10), text.size()));
  EXPECT_GT(void_rows, 4);
  EXPECT_EQ(e.info(s).accepted_length, e.info(s).length);
  must(e.manager.check_invariants());
}

TEST(Recipes, DraftsGoOnBehindDraftsInFlight) {
  Engine e({full_group(4, 64), window_group(4, 64, 9)}, {.max_steps_in_flight = 2});
  const Tokens prompt = tokens(1, 10);
  const SequenceId s = e.say(prompt);
  draft_over_two_steps(e, s, completed(prompt, 11), prompt);
}

TEST(Recipes, DraftsGoOnBehindAPromptThatIsNotSaidYet) {
  Engine e({full_group(4, 64), window_group(4, 64, 9)}, {.max_steps_in_flight = 2});
  const Tokens prompt = tokens(1, 10);
  const SequenceId s = e.open(prompt).sequence;
  draft_over_two_steps(e, s, prompt, {});
}

TEST(Recipes, TwoStepsInFlightTellOldResultsFromNewOnes) {
  Engine e({full_group(4, 64)}, {.max_steps_in_flight = 2});
  const SequenceId a = e.open(tokens(1, 24)).sequence;  // two chunks
  const SequenceId b = e.open(tokens(50, 6)).sequence;
  InFlight engine{e.manager, {{a, tokens(1, 24)}, {b, tokens(50, 6)}}};
  engine.launch();
  for (int i = 0; i < 6; ++i) {
    engine.launch();
    engine.retire();
  }
  EXPECT_EQ(engine.texts[a], completed(tokens(1, 24), 29));
  engine.texts[a] = tokens(1, 12);  // what its user has changed
  must(e.manager.truncate(a, 11));  // its row in flight is void
  for (int i = 0; i < 3; ++i) {
    engine.launch();
    engine.retire();
  }
  engine.retire();
  EXPECT_EQ(engine.void_rows, 1);
  EXPECT_EQ(engine.texts[a], completed(tokens(1, 12), 15));
  EXPECT_EQ(engine.texts[b], completed(tokens(50, 6), 16));
  EXPECT_EQ(e.info(a).length, 14);  // the last sample is the input of a step to come
  EXPECT_EQ(e.probe(joined(engine.texts[b], {1})), 12);
  must(e.manager.check_invariants());
}

// One wrote in the failed step, one found its whole prompt and wrote nothing, one wrote before.
TEST(Recipes, WhatAFailedDeviceLostIsComputedAgain) {
  Engine e({full_group(4, 64)}, {.max_steps_in_flight = 2});
  KVCacheManager& cache = e.manager;
  e.cache(tokens(90, 9));
  const SequenceId writes = e.open(tokens(1, 9)).sequence;
  const SequenceId found = e.open(tokens(90, 9)).sequence;
  const SequenceId apart = e.say(tokens(200, 9));
  InFlight engine{cache, {{writes, tokens(1, 9)}, {found, tokens(90, 9)}}};
  std::map<SequenceId, Tokens>& texts = engine.texts;
  auto& flight = engine.flight;
  engine.launch();
  std::vector<Tokens> waiting;
  // shown: failed
  std::vector<SequenceId> lost;
  for (const EndedSequence& gone : must(cache.fail(flight.front().first))) {
    lost.push_back(gone.sequence);  // it wrote in these steps, or has a block that they wrote
  }
  for (const auto& [ticket, rows] : flight) {
    for (const auto& row : rows) {  // those that are open wrote nothing, but have no sample either
      if (cache.close(row.sequence)) lost.push_back(row.sequence);
    }
  }
  flight.clear();
  for (const SequenceId sequence : lost) {  // opened again, they find what was there before
    waiting.push_back(texts.at(sequence));
    texts.erase(sequence);
  }
  // shown end
  EXPECT_THAT(lost, ::testing::ElementsAre(writes, found));
  EXPECT_EQ(e.info(apart).length, 9);
  for (const Tokens& text : waiting) texts[e.open(text).sequence] = text;
  engine.launch();
  engine.retire();
  for (const auto& [sequence, text] : texts)
    EXPECT_EQ(text, completed(Tokens(text.begin(), text.begin() + 9), 10));
  EXPECT_EQ(cache.num_sequences(), 3);
  must(cache.check_invariants());
}

// A device that keeps the token of each slot. What it reads lies where the plan says: `Arrays` is
// what a kernel is called with, or what a graph has captured.
struct Arrays {
  std::size_t rows;
  const std::int32_t* query_start;
  const std::int32_t* kv_lens;
  const std::int32_t* table;
  std::size_t stride;
  const std::int64_t* slots;

  explicit Arrays(const StepPlan& plan)
      : rows(plan.rows.size()),
        query_start(plan.query_start.data()),
        kv_lens(plan.kv_lens.data()),
        table(plan.groups[0].block_table.data()),
        stride(static_cast<std::size_t>(plan.groups[0].block_table_stride)),
        slots(plan.groups[0].slot_mapping_64.data()) {}
};

class TokenDevice {
 public:
  explicit TokenDevice(std::size_t slots) : memory_(slots, -1) {}
  // The next token of each row; `tokens` are those of the step, in its order.
  Tokens run(const Arrays& of, const Tokens& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      memory_.at(static_cast<std::size_t>(of.slots[i])) = tokens[i];
    Tokens next;
    for (std::size_t row = 0; row < of.rows; ++row) {
      if (of.query_start[row + 1] == of.query_start[row]) continue;  // padding
      Tokens text;
      for (std::int32_t p = 0; p < of.kv_lens[row]; ++p) {
        const auto at = row * of.stride + static_cast<std::size_t>(p / 4);
        const auto slot = std::int64_t{of.table[at]} * 4 + p % 4;
        text.push_back(memory_.at(static_cast<std::size_t>(slot)));
      }
      next.push_back(next_token(text));
    }
    return next;
  }

 private:
  Tokens memory_;
};

TEST(Recipes, CapturedGraphsDecodeBesideStepsThatRunAsTheyAre) {
  Engine e({full_group(4, 64)}, {.null_block = true});
  KVCacheManager& cache = e.manager;
  TokenDevice device(64 * 4);
  std::map<SequenceId, Tokens> texts;
  const std::vector<Tokens> prompts = {tokens(1, 5), tokens(40, 9), tokens(70, 2), tokens(90, 7)};
  // shown: graphs
  // One graph for each of a few batches, captured over a step without sequences: all of it is
  // padding. With ManagerOptions::null_block the padding of tables is a block that may be read.
  struct Graph {
    PlanOptions shape;
    std::vector<std::uint64_t> memory;  // pinned memory, in an engine
    std::optional<Arrays> captured;     // the addresses that the graph keeps
  };
  const std::vector<std::int32_t> strides = {10};  // blocks of the longest request
  std::map<std::int32_t, Graph> graphs;
  for (const std::int32_t batch : {1, 2, 4}) {
    Graph& graph = graphs[batch];
    graph.shape = {.table_stride = strides,
                   .padded_sequences = batch,
                   .padded_tokens = batch,
                   .int64_slots = true};
    graph.memory.resize(static_cast<std::size_t>(must(cache.plan_bytes(graph.shape))) / 8);
    graph.shape.memory = std::as_writable_bytes(std::span(graph.memory));
    const Ticket dry = must(cache.begin_step());
    graph.captured.emplace(*must(cache.plan(graph.shape)));
    must(cache.drop(dry));
  }
  // A step of decodes takes the smallest graph that it fits into; all others run as they are.
  const auto run_step = [&](const Tokens& step_tokens, bool decodes, std::int32_t sequences) {
    const auto graph = graphs.lower_bound(sequences);
    if (!decodes || graph == graphs.end()) {
      return device.run(Arrays(*must(cache.plan({.int64_slots = true}))), step_tokens);
    }
    must(cache.plan(graph->second.shape));  // writes where the graph reads
    return device.run(*graph->second.captured, step_tokens);
  };
  // shown end
  for (std::size_t round = 0; round < 12; ++round) {
    const bool prefills = round < prompts.size();
    if (prefills) texts[e.open(prompts[round]).sequence] = prompts[round];
    const Ticket ticket = must(cache.begin_step());
    Tokens step_tokens;
    std::vector<SequenceId> in_step;
    for (auto& [id, text] : texts) {
      const auto length = static_cast<std::size_t>(e.info(id).length);
      must(cache.append(id, std::span(text).subspan(length)));
      step_tokens.insert(step_tokens.end(), text.begin() + static_cast<std::ptrdiff_t>(length),
                         text.end());
      in_step.push_back(id);
    }
    const Tokens next = run_step(step_tokens, !prefills, static_cast<std::int32_t>(in_step.size()));
    ASSERT_EQ(next.size(), in_step.size());
    must(cache.finish(ticket));
    for (std::size_t i = 0; i < next.size(); ++i) texts[in_step[i]].push_back(next[i]);
    if (round == 8) {  // three are left: they take the graph of four
      must(cache.close(in_step[0]));
      texts.erase(in_step[0]);
    }
  }
  ASSERT_EQ(texts.size(), 3u);
  for (const auto& [id, text] : texts) {
    const auto prompt =
        std::find_if(prompts.begin(), prompts.end(),
                     [first = text[0]](const Tokens& each) { return each[0] == first; });
    EXPECT_EQ(text, completed(*prompt, text.size()));
  }
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

std::array<std::byte, 32> sha256_of(int content) {
  std::array<std::byte, 32> digest{};
  digest[0] = std::byte(content);
  return digest;
}

TEST(Recipes, AnImageATenantAndAnAdapterMakeAnotherPromptOfTheSameTokens) {
  Engine e({full_group(4, 64)});
  KVCacheManager& cache = e.manager;
  const Tokens prompt = tokens(1, 30);
  const auto ask = [&](int image, const char* tenant, const char* adapter) {
    // shown: media
    // Tokens 8 to 23 stand for an image. The server sets the salt, never the client.
    const MediaSpan span{.begin = 8, .end = 24, .content_id = sha256_of(image)};
    const RootKey root{.adapter = adapter, .adapter_version = "2", .tenant_salt = tenant};
    const Opened opened = must(cache.open(prompt, {.root = root, .media = {&span, 1}}));
    // shown end
    const Ticket ticket = must(cache.begin_step());
    must(cache.append_prompt(opened.sequence, prompt, std::ssize(prompt)));
    must(cache.plan());
    must(cache.finish(ticket));
    must(cache.close(opened.sequence));
    return opened.cached_tokens;
  };
  EXPECT_EQ(ask(1, "alice", "poems"), 0);
  EXPECT_EQ(ask(1, "alice", "poems"), 29);
  EXPECT_EQ(ask(2, "alice", "poems"), 8);  // the tokens in front of the other image
  EXPECT_EQ(ask(1, "bob", "poems"), 0);
  EXPECT_EQ(ask(1, "alice", "laws"), 0);
}

}  // namespace
}  // namespace kvfolio::testing_engine
