// SPDX-License-Identifier: Apache-2.0
//
// Room, asked and kept. reserve(): what it takes, who may use it, what ends it, and that within a
// promise no append is ever short of blocks, whatever else happens. admit() of a prompt: that it
// says what open() and append() would answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <random>

#include "engine.h"
#include "kvfolio/manager.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;

TEST(Reserve, TakesItsBlocksAtOnceAndAppendsUseThemFirst) {
  Engine e({full_group(4, 10)});
  const SequenceId s = e.say(tokens(1, 6));
  must(e.manager.reserve(s, 9));  // positions 6 to 14: blocks 2 and 3
  EXPECT_EQ(e.usage().reserved, 2);
  EXPECT_EQ(e.usage().held, 4);
  EXPECT_EQ(e.info(s).reserved_tokens, 9);
  e.feed(s, tokens(7, 3));
  EXPECT_EQ(e.usage().reserved, 1);
  EXPECT_EQ(e.usage().held, 4);
  EXPECT_EQ(e.info(s).reserved_tokens, 6);
  e.feed(s, tokens(10, 6));
  EXPECT_EQ(e.info(s).reserved_tokens, 0);
  EXPECT_EQ(e.usage().reserved, 0);
  EXPECT_EQ(e.usage().held, 4);
  must(e.manager.check_invariants());
}

TEST(Reserve, NobodyElseGetsTheBlocks) {
  Engine e({full_group(4, 4)});
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 8));
  const SequenceId other = e.open({}).sequence;
  const Ticket step = must(e.manager.begin_step());
  const Status refused = e.manager.append(other, tokens(1, 12));
  ASSERT_NE(refused.shortage(), nullptr);
  EXPECT_EQ(refused.shortage()->reserved, 2);
  EXPECT_EQ(refused.message(),
            "group 0: need 3 blocks, 2 free, 0 evictable (2 pinned, 2 of them reserved, 0 "
            "retiring; open: 2 sequences)");
  must(e.manager.append(other, tokens(1, 8)));
  must(e.manager.append(s, tokens(1, 8)));
  must(e.manager.finish(step));
}

TEST(Reserve, EvictsWhatIsCachedAndIsAllOrNothing) {
  Engine e({full_group(4, 4)});
  e.cache(tokens(1, 12));
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 4));
  const Status refused = e.manager.reserve(s, 20);
  ASSERT_NE(refused.shortage(), nullptr);
  EXPECT_EQ(refused.shortage()->needed, 4);
  EXPECT_EQ(e.info(s).reserved_tokens, 4);  // as it was
  EXPECT_EQ(e.usage().reserved, 1);
  EXPECT_EQ(e.usage().cached, 3);
  must(e.manager.reserve(s, 16));
  EXPECT_EQ(e.usage().reserved, 4);
  EXPECT_EQ(e.counters().blocks_evicted, 3u);
  must(e.manager.reserve(s, 5));  // a smaller total gives back the rest
  EXPECT_EQ(e.usage().reserved, 2);
  EXPECT_EQ(e.usage().free, 2);
  must(e.manager.check_invariants());
}

TEST(Reserve, OfAWindowGroupTakesTheWindowAndOneStep) {
  Engine e({window_group(4, 8, 8)});
  const SequenceId s = e.open({}).sequence;
  // Window 8 and steps of 4: 11 tokens lie in 4 blocks at most.
  must(e.manager.reserve(s, 1000, {.most_per_step = 4}));
  EXPECT_EQ(e.usage().reserved, 4);
  const SequenceId greedy = e.say(tokens(1, 16), {.prefix_cache = false});
  for (int i = 0; i < 250; ++i) e.feed(s, tokens(4 * i, 4));
  EXPECT_EQ(e.info(s).length, 1000);
  EXPECT_EQ(e.info(s).reserved_tokens, 0);
  must(e.manager.close(greedy));
  must(e.manager.check_invariants());
}

TEST(Reserve, OfAWindowGroupHoldsWithStepsInFlight) {
  Engine e({window_group(4, 4, 8)}, {.max_steps_in_flight = 3});
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 400, {.most_per_step = 4}));
  EXPECT_EQ(e.usage().free, 0);
  std::vector<Ticket> flight;
  for (int i = 0; i < 100; ++i) {
    if (flight.size() == 3) {
      must(e.manager.complete(flight.front()));
      flight.erase(flight.begin());
    }
    flight.push_back(e.launch(s, tokens(4 * i, 4)));
    must(e.manager.check_invariants());
  }
}

TEST(Reserve, UndoAndDropGiveBackWhatTheStepUsed) {
  Engine e({full_group(4, 6)});
  const SequenceId s = e.say(tokens(1, 4));
  must(e.manager.reserve(s, 12));
  for (const bool drops : {false, true}) {
    const Ticket step = must(e.manager.begin_step());
    must(e.manager.append(s, tokens(5, 8)));
    EXPECT_EQ(e.usage().reserved, 1);
    EXPECT_EQ(e.info(s).reserved_tokens, 4);
    if (!drops) must(e.manager.undo(s));
    must(e.manager.drop(step));
    EXPECT_EQ(e.usage().reserved, 3);
    EXPECT_EQ(e.info(s).reserved_tokens, 12);
    must(e.manager.check_invariants());
  }
}

TEST(Reserve, ACopyOfASharedTailIsIncluded) {
  Engine e({full_group(4, 6)});
  const SequenceId parent = e.say(tokens(1, 6));
  const SequenceId child = must(e.manager.fork(parent));
  must(e.manager.reserve(child, 2));  // no new block, but a copy
  EXPECT_EQ(e.usage().reserved, 1);
  static_cast<void>(e.say(tokens(100, 12), {.prefix_cache = false}));
  EXPECT_EQ(e.usage().free, 0);
  e.feed(child, tokens(50, 2));
  EXPECT_EQ(e.counters().block_copies, 1u);
}

TEST(Reserve, AForkIsRefusedIfThePoolLacksTheCopyItMakesNecessary) {
  Engine e({full_group(4, 3)});
  const SequenceId s = e.say(tokens(1, 6));
  must(e.manager.reserve(s, 6));
  EXPECT_EQ(e.usage().free, 0);
  const Result<SequenceId> child = e.manager.fork(s);
  ASSERT_FALSE(child.has_value());
  EXPECT_EQ(child.error().code(), ErrorCode::kNoBlocks);
  EXPECT_EQ(e.manager.num_sequences(), 1);
  must(e.manager.check_invariants());

  Engine roomy({full_group(4, 4)});
  const SequenceId parent = roomy.say(tokens(1, 6));
  must(roomy.manager.reserve(parent, 6));
  const SequenceId fork = must(roomy.manager.fork(parent));
  EXPECT_EQ(roomy.info(fork).reserved_tokens, 0);
  EXPECT_EQ(roomy.usage().reserved, 2);
  must(roomy.manager.check_invariants());
}

TEST(Reserve, TheBlockOfARejectedDraftStaysWithThePromise) {
  Engine e({full_group(4, 4)}, {.max_steps_in_flight = 4});
  const SequenceId s = e.say(tokens(1, 4));
  must(e.manager.reserve(s, 2));
  static_cast<void>(e.say(tokens(100, 8), {.prefix_cache = false}));
  EXPECT_EQ(e.usage().free, 0);
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(5, 1), {.draft = 1}));
  must(e.manager.commit(step));
  EXPECT_EQ(e.usage().reserved, 0);
  must(e.manager.accept(s, 0));  // the step is in flight, and no other sequence gets its block
  EXPECT_EQ(e.info(s).reserved_tokens, 2);
  EXPECT_EQ(e.usage().reserved, 1);
  EXPECT_EQ(e.usage().retiring, 0);
  must(e.manager.complete(e.launch(s, tokens(5, 1))));
  must(e.manager.check_invariants());
}

// A step in flight, begun while a fork held the tail, may read behind the place where the draft was
// cut off: the next append copies the tail.
TEST(Reserve, ATailThatIsCutBackInFlightHasABlockForItsCopy) {
  for (const bool truncates : {false, true}) {
    Engine e({full_group(4, 6)}, {.max_steps_in_flight = 4, .order = Order::kUnordered});
    const SequenceId s = e.say(tokens(1, 6));
    const SequenceId other = must(e.manager.fork(s));
    const Ticket slow = e.launch(other, tokens(50, 1));
    must(e.manager.close(other));
    must(e.manager.reserve(s, 8));
    const Ticket step = must(e.manager.begin_step());
    must(e.manager.append(s, tokens(7, 2), {.draft = 2}));
    must(e.manager.commit(step));
    must(e.manager.complete(step));
    must(e.manager.accept(s, truncates ? 2 : 1));
    if (truncates) must(e.manager.truncate(s, 7));
    must(e.manager.check_invariants());
    while (e.info(s).reserved_tokens > 0) {
      must(e.manager.complete(e.launch(s, tokens(6, 1))));
      must(e.manager.check_invariants());
    }
    must(e.manager.complete(slow));
    must(e.manager.check_invariants());
  }
}

TEST(Reserve, CloseAndPreemptAndFailAndZeroEndIt) {
  for (const int how : {0, 1, 2, 3}) {
    Engine e({full_group(4, 6)});
    const SequenceId s = e.open({}).sequence;
    must(e.manager.reserve(s, 16));
    EXPECT_EQ(e.usage().reserved, 4);
    if (how == 0) must(e.manager.close(s));
    if (how == 1) must(e.manager.preempt(s));
    if (how == 2) {
      const Ticket step = e.launch(s, tokens(1, 1));
      ASSERT_TRUE(e.manager.fail(step).has_value());
    }
    if (how == 3) must(e.manager.reserve(s, 0));
    EXPECT_EQ(e.usage().reserved, 0) << how;
    EXPECT_EQ(e.usage().free, 6) << how;
    must(e.manager.check_invariants());
  }
}

TEST(Reserve, TrimAndTruncateKeepThePromise) {
  Engine e({full_group(4, 8)});
  const SequenceId s = e.say(tokens(1, 12));
  must(e.manager.reserve(s, 10));
  must(e.manager.truncate(s, 5));
  EXPECT_EQ(e.info(s).reserved_tokens, 10);
  must(e.manager.trim(s, {.num_sinks = 0, .window = 1}));
  EXPECT_EQ(e.info(s).reserved_tokens, 10);
  static_cast<void>(e.say(tokens(100, 4 * e.usage().free), {.prefix_cache = false}));
  e.feed(s, tokens(50, 10));
  must(e.manager.check_invariants());
}

TEST(Reserve, AHitOnBlocksThatAWindowWouldBringBackTakesOthersForThem) {
  Engine e({window_group(4, 9, 8)});
  const SequenceId s = e.say(tokens(1, 8));
  must(e.manager.reserve(s, 100, {.most_per_step = 1}));
  const std::int32_t reserved = e.usage().reserved;
  const Opened hit = e.open(tokens(1, 9));
  EXPECT_EQ(hit.cached_tokens, 8);
  EXPECT_EQ(e.usage().reserved, reserved + 2);
  must(e.manager.check_invariants());
  // The other one keeps them, and the promise holds.
  static_cast<void>(e.say(tokens(100, 4 * e.usage().free), {.prefix_cache = false}));
  for (int i = 0; i < 100; ++i) e.feed(s, {i});
}

TEST(Reserve, BadArgumentsAreNamedAndChangeNothing) {
  Engine e({full_group(4, 6)});
  const SequenceId s = e.open({}, {.max_tokens = 20}).sequence;
  must(e.manager.reserve(s, 4));
  EXPECT_EQ(e.manager.reserve(s, -1).message(),
            "reserve of -1 tokens to sequence 0.1 behind 0, allowed: 0 to 1073741824");
  EXPECT_THAT(e.manager.reserve(s, 21).message(), HasSubstr("full: 0 of 20 tokens"));
  EXPECT_EQ(e.manager.reserve(s, 8, {.most_per_step = -1}).message(),
            "reserve: most_per_step is -1, allowed: 0, which is all tokens, and above");
  const Ticket step = must(e.manager.begin_step());
  must(e.manager.append(s, tokens(1, 1)));
  EXPECT_EQ(e.manager.reserve(s, 8).code(), ErrorCode::kFailedPrecondition);
  must(e.manager.finish(step));
  EXPECT_EQ(e.info(s).reserved_tokens, 3);
  must(e.manager.close(s));
  EXPECT_EQ(e.manager.reserve(s, 8).code(), ErrorCode::kNotFound);
}

// Random calls on a small pool. Each sequence with a promise tries it: an append that keeps to it
// is never short.
class Promises {
 public:
  Promises(std::uint64_t seed, Order order)
      : random_(seed),
        order_(order),
        engine_(groups(random_()), {.max_sequences = 6,
                                    .max_steps_in_flight = 3,
                                    .order = order,
                                    .prefix_cache = random_() % 8 != 0}) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operation(pick(0, 99));
      const Status status = engine_.manager.check_invariants();
      ASSERT_TRUE(status.ok()) << "operation " << i << ": " << status.message();
    }
  }
  [[nodiscard]] int kept() const { return kept_; }

  // Asks for prompts between the calls, and opens them in a copy.
  void run_asking(int operations) {
    for (int i = 0; i < operations; ++i) {
      operation(pick(0, 99));
      ask();
      if (testing::Test::HasFatalFailure()) FAIL() << "operation " << i;
    }
  }
  [[nodiscard]] int admitted() const { return admitted_; }
  [[nodiscard]] int short_of_blocks() const { return short_of_blocks_; }

 private:
  struct One {
    SequenceId id;
    std::int64_t left = 0;
    std::int64_t most = 0;
    bool certain = false;  // not cut back into what others hold
    std::uint64_t last_step = 0;
  };

  static std::vector<GroupSpec> groups(std::uint64_t draw) {
    std::vector<GroupSpec> all;
    if (draw % 3 != 0) all.push_back(full_group(4, 30));
    if (draw % 3 != 1) {
      all.push_back(window_group(draw % 2 == 0 ? 2 : 4, 24, 1 + static_cast<int>(draw / 8 % 9),
                                 static_cast<int>(draw / 128 % 4)));
    }
    return all;
  }
  int pick(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  Tokens some_tokens(int n) {
    Tokens all;
    for (int i = 0; i < n; ++i) all.push_back(pick(0, 1));
    return all;
  }
  One* any() {
    return open_.empty()
               ? nullptr
               : &open_[static_cast<std::size_t>(pick(0, static_cast<int>(open_.size()) - 1))];
  }
  void drop_closed() {
    std::erase_if(open_, [&](const One& one) { return !engine_.manager.info(one.id).has_value(); });
  }
  bool may_append(const One& one) {
    const SequenceInfo info = engine_.info(one.id);
    if (!step_ || info.in_open_step || info.length > info.accepted_length) return false;
    if (order_ == Order::kInOrder) return true;
    return std::find(flight_.begin(), flight_.end(), Ticket(one.last_step)) == flight_.end();
  }
  void append(One& one) {
    const int count = pick(1, 5);
    const bool is_ready = may_append(one);
    const int draft = pick(0, 3) == 0 ? pick(0, count) : 0;
    const Status status = engine_.manager.append(one.id, some_tokens(count), {.draft = draft});
    if (is_ready && one.certain && count <= one.left && count <= one.most) {
      ASSERT_NE(status.code(), ErrorCode::kNoBlocks) << status.message();
      ++kept_;
    }
    if (!status.ok()) return;
    one.last_step = step_->value();
    used_.push_back({one.id, std::min<std::int64_t>(one.left, count)});
    one.left -= used_.back().second;
    if (count > one.most) one.certain = false;
  }
  void take_back(SequenceId id) {
    for (auto& [used, tokens] : used_) {
      if (used != id) continue;
      for (One& one : open_) {
        if (one.id == id) one.left += tokens;
      }
      tokens = 0;
    }
  }
  void ask() {
    const KVCacheManager& asked = engine_.manager;
    const Tokens prompt = some_tokens(pick(0, 24));
    const std::int64_t more = pick(0, 6);
    OpenOptions options;
    options.look_up = pick(0, 9) != 0;
    options.publish = pick(0, 9) == 0 ? Publish::kNothing : Publish::kAll;
    options.prefix_cache = pick(0, 9) != 0;
    if (pick(0, 9) == 0) options.max_tokens = static_cast<std::int32_t>(prompt.size()) + 2;
    const Result<Admission> answer = asked.admit(prompt, options, more);

    KVCacheManager twin = must(KVCacheManager::create(asked.spec(), asked.options()));
    must(asked.copy_to(twin));
    if (!step_ && !twin.begin_step().has_value()) return;  // as many are in flight as may be
    const Result<Opened> opened = twin.open(prompt, options);
    Status status = opened.has_value() ? Status() : opened.error();
    const std::uint64_t allocated = twin.counters().blocks_allocated;
    if (opened.has_value()) {
      Tokens rest(prompt.begin() + opened->cached_tokens, prompt.end());
      rest.insert(rest.end(), static_cast<std::size_t>(more), 1);
      if (!rest.empty()) status = twin.append(opened->sequence, rest);
    }
    const Status said = answer.has_value() ? Status() : answer.error();
    ASSERT_EQ(said.code(), status.code()) << said.message() << " / " << status.message();
    if (status.shortage() != nullptr) {
      ++short_of_blocks_;
      Shortage open = *said.shortage();
      open.sequences += opened.has_value() ? 1 : 0;  // itself, which was not open then
      EXPECT_TRUE(!open.never() || status.shortage()->never());
      open.kept = status.shortage()->kept;  // a prompt may find more another time
      open.spared = status.shortage()->spared;
      EXPECT_EQ(open, *status.shortage()) << said.message() << " / " << status.message();
    }
    if (!status.ok()) return;
    ++admitted_;
    EXPECT_EQ(answer->cached_tokens, opened->cached_tokens);
    std::uint64_t blocks = 0;
    for (const std::int32_t of_group : answer->blocks)
      blocks += static_cast<std::uint64_t>(of_group);
    EXPECT_EQ(blocks, twin.counters().blocks_allocated - allocated);
  }
  void operation(int what) {
    KVCacheManager& m = engine_.manager;
    One* one = any();
    if (what < 12) {
      if (const auto opened = m.open(some_tokens(pick(0, 20))); opened.has_value()) {
        open_.push_back({opened->sequence});
      }
    } else if (what < 24) {
      if (!step_ && flight_.size() < 3) step_ = must(m.begin_step());
    } else if (what < 50) {
      if (one != nullptr) append(*one);
    } else if (what < 60) {
      if (!step_) return;
      if (pick(0, 5) == 0) {
        for (const auto& each : std::vector(used_)) take_back(each.first);
        must(m.drop(*step_));
      } else {
        must(m.commit(*step_));
        flight_.push_back(*step_);
      }
      used_.clear();
      step_.reset();
    } else if (what < 70) {
      if (flight_.empty()) return;
      const std::size_t at = order_ == Order::kInOrder ? 0 : random_() % flight_.size();
      if (pick(0, 40) == 0) {
        for (const auto& each : std::vector(used_)) take_back(each.first);
        ASSERT_TRUE(m.fail(flight_[at]).has_value());
        flight_.resize(at);
        step_.reset();
        used_.clear();
        drop_closed();
        return;
      }
      must(m.complete(flight_[at]));
      flight_.erase(flight_.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (one == nullptr) {
      return;
    } else if (what < 80) {
      const std::int64_t tokens = pick(0, 30);
      const std::int64_t most =
          tokens == 0 ? 0 : pick(0, static_cast<int>(std::min<std::int64_t>(tokens, 5)));
      if (m.reserve(one->id, tokens, {.most_per_step = most}).ok()) {
        one->left = tokens;
        one->most = most == 0 ? tokens : most;
        one->certain = true;
      }
    } else if (what < 83) {
      if (const auto child = m.fork(one->id); child.has_value()) {
        One fork{*child};
        fork.last_step = one->last_step;
        open_.push_back(fork);
      }
    } else if (what < 87) {
      const SequenceInfo info = engine_.info(one->id);
      if (info.length > info.accepted_length && !info.in_open_step) {
        static_cast<void>(m.accept(one->id, pick(0, info.length - info.accepted_length)));
      }
    } else if (what < 89) {
      const SequenceInfo info = engine_.info(one->id);
      if (m.truncate(one->id, pick(0, info.length)).ok()) one->certain = false;
    } else if (what < 91) {
      static_cast<void>(m.trim(one->id, {.num_sinks = pick(0, 4), .window = pick(0, 6)}));
    } else if (what < 93) {
      take_back(one->id);
      if (!m.undo(one->id).ok()) {
        // It was not in the step, so nothing was taken back either.
        return;
      }
    } else if (what < 95) {
      if (pins_.size() < 3) {
        if (const auto pinned = m.pin(some_tokens(pick(0, 12))); pinned.has_value()) {
          pins_.push_back(pinned->pin);
        }
      } else {
        static_cast<void>(m.unpin(pins_.back()));
        pins_.pop_back();
      }
    } else {
      static_cast<void>(pick(0, 1) == 0 ? m.close(one->id) : m.preempt(one->id));
      drop_closed();
    }
  }

  std::mt19937_64 random_;
  Order order_;
  Engine engine_;
  std::vector<One> open_;
  std::vector<std::pair<SequenceId, std::int64_t>> used_;  // in the open step
  std::optional<Ticket> step_;
  std::vector<Ticket> flight_;
  std::vector<PinId> pins_;
  int kept_ = 0;
  int admitted_ = 0;
  int short_of_blocks_ = 0;
};

TEST(Reserve, WhatACutSequenceDoesNotNeedIsForOthers) {
  Engine e({full_group(4, 2)});
  const SequenceId s = e.open({}).sequence;
  e.feed(s, {1, 2});
  must(e.manager.reserve(s, 3));  // up to 5 tokens: a second block
  EXPECT_EQ(e.usage().reserved, 1);
  must(e.manager.truncate(s, 1));  // up to 4
  EXPECT_EQ(e.usage().reserved, 0);
  EXPECT_EQ(e.info(s).reserved_tokens, 3);
  const SequenceId other = e.open({}).sequence;
  e.feed(other, {9});
  for (const std::int32_t token : {5, 6, 7}) e.feed(s, {token});
  must(e.manager.check_invariants());
}

TEST(Reserve, ARejectedDraftUsesNothingUp) {
  Engine e({full_group(4, 4)});
  const SequenceId s = e.open({}).sequence;
  e.feed(s, {1, 2});
  must(e.manager.reserve(s, 7));  // up to 9 tokens: two blocks more
  EXPECT_EQ(e.usage().reserved, 2);
  e.feed(s, {3, 4, 5}, 3);  // 4 promised tokens are left, behind 5
  EXPECT_EQ(e.usage().reserved, 1);
  must(e.manager.accept(s, 0));  // 7 again, behind 2
  EXPECT_EQ(e.info(s).reserved_tokens, 7);
  EXPECT_EQ(e.usage().reserved, 2);
  const SequenceId other = e.open({}).sequence;
  e.feed(other, {9});
  e.feed(s, {3, 4, 5, 6});
  e.feed(s, {7, 8, 9});
  must(e.manager.check_invariants());
}

TEST(Reserve, NoTokensEndThePromiseWhateverTheStepsMayBe) {
  Engine e({full_group(4, 4)});
  const SequenceId s = e.open({}).sequence;
  must(e.manager.reserve(s, 8, {.most_per_step = 2}));
  EXPECT_EQ(e.usage().reserved, 2);
  must(e.manager.reserve(s, 0, {.most_per_step = 2}));
  EXPECT_EQ(e.usage().reserved, 0);
  EXPECT_EQ(e.info(s).reserved_tokens, 0);
  EXPECT_EQ(e.manager.reserve(s, 0, {.most_per_step = -1}).code(), ErrorCode::kInvalidArgument);
}

TEST(Reserve, WithinAPromiseNoAppendIsEverShort) {
  const char* given = std::getenv("KVFOLIO_OPS");
  const int rounds = given != nullptr ? std::atoi(given) / 300 + 1 : 150;
  int kept = 0;
  for (int seed = 1; seed <= rounds; ++seed) {
    for (const Order order : {Order::kInOrder, Order::kUnordered}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " order " << static_cast<int>(order));
      Promises promises(static_cast<std::uint64_t>(seed), order);
      promises.run(300);
      kept += promises.kept();
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(kept, rounds * 10);
}

TEST(Admission, OfAPromptSaysWhatOpenAndAppendAnswer) {
  int admitted = 0;
  int short_of_blocks = 0;
  for (int seed = 1; seed <= 60; ++seed) {
    for (const Order order : {Order::kInOrder, Order::kUnordered}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " order " << static_cast<int>(order));
      Promises promises(static_cast<std::uint64_t>(seed), order);
      promises.run_asking(120);
      admitted += promises.admitted();
      short_of_blocks += promises.short_of_blocks();
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(admitted, 1000);
  EXPECT_GT(short_of_blocks, 100);
}

TEST(Admission, OfAPromptCountsTheSequencesThatAreOpen) {
  Engine e({full_group(4, 4)});
  const SequenceId open = e.say(tokens(1, 6));
  const Result<Admission> prompt = e.manager.admit(tokens(50, 12), {}, 0);
  ASSERT_FALSE(prompt.has_value());
  EXPECT_EQ(prompt.error().shortage()->sequences, e.manager.num_sequences());
  EXPECT_EQ(prompt.error().message(),
            "group 0: need 3 blocks, 2 free, 0 evictable (2 pinned, 0 retiring; open: 1 sequence)");
  must(e.manager.close(open));
}

TEST(Admission, OfAPromptCountsNothingAndKeepsNothing) {
  Engine e({full_group(4, 8)});
  e.cache(tokens(1, 8));
  const Counters before = e.counters();
  const Admission answer = must(e.manager.admit(tokens(1, 10), {}, 4));
  EXPECT_EQ(answer.cached_tokens, 8);
  EXPECT_EQ(answer.blocks[0], 2);
  EXPECT_EQ(e.counters().tokens_looked_up, before.tokens_looked_up);
  EXPECT_EQ(e.usage().cached, 2);
  EXPECT_EQ(e.manager.num_sequences(), 0);
  const Result<Admission> too_long = e.manager.admit(tokens(1, 10), {}, 40);
  ASSERT_FALSE(too_long.has_value());
  EXPECT_EQ(
      too_long.error().message(),
      "group 0: need 11 blocks, 6 free, 0 evictable (2 pinned, 0 retiring; open: 0 sequences); "
      "never: the group has 8 blocks and 2 are kept");
  EXPECT_EQ(e.manager.admit(tokens(1, 10), {}, -1).error().message(),
            "admit of -1 tokens behind a prompt, allowed: 0 to 1073741824");
}

}  // namespace
}  // namespace kvfolio::testing_engine
