// SPDX-License-Identifier: Apache-2.0
//
// Requests by itself: no manager, no tier, and an arena only for what is held.

#include "offload/requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>
#include <vector>

#include "offload/offload_test_cache.h"
#include "offload/test_arena.h"

namespace kvfolio {
namespace {

using State = Request::State;
using test::prompt_of;

struct Waiting {
  CacheSpec spec;
  Identity identity;
  Epochs epochs{identity, 0, {}};
  Requests requests{identity, epochs, spec.groups};
  HostArena arena;
  std::uint64_t most = 0;
  Steps steps{most};
  std::uint64_t last_tag = 0;

  explicit Waiting(CacheSpec of = test::full(40), std::int64_t num_records = 64)
      : spec(std::move(of)),
        identity(*Identity::create(test::toy_of(spec), spec)),
        arena(test::arena_of(num_records)) {}
  ~Waiting() { requests.clear(); }  // pins end before their arena does

  Request& open(int number, std::int32_t num_tokens = 64) {
    const SequenceId sequence(std::uint64_t(number) + 1);
    return requests.add(requests.make(sequence, prompt_of(number, num_tokens), {}, 0));
  }
  // The way there without records.
  void go_to(Request& request, State state) {
    steps.begin_call();
    constexpr State kWay[] = {State::kListing, State::kAsking, State::kChoosing, State::kHolding,
                              State::kLoading, State::kReady,  State::kWriting};
    for (const State next : kWay) {
      if (next <= request.state || next > state) continue;
      if (next == State::kListing) {
        ASSERT_TRUE(requests.hash_part(request, steps));
      }
      if (next == State::kChoosing) {
        requests.begin_round(request, 5);
      } else {
        requests.enter(request, next);
      }
      ASSERT_TRUE(check().ok()) << check();
    }
  }
  Requests::Arriving record_of(const Request& request, std::int32_t logical) {
    Requests::Arriving arriving{.tag = ++last_tag,
                                .piece = requests.piece_of(request, GroupId(0), logical)};
    return arriving;
  }
  void hold(Request& request, std::int32_t logical) {
    const Request::Piece piece = requests.piece_of(request, GroupId(0), logical);
    if (!arena.contains(piece.key)) test::put_record(arena, piece.key);
    requests.hold(request, requests.end_of(piece), arena.hold(piece.key));
  }
  [[nodiscard]] Status check() const { return requests.check(); }
};

// ---- what a prompt consists of ----

TEST(Requests, APartIsHashedAndWalkedInAsManyCallsAsItTakes) {
  for (const CacheSpec& spec : {test::full(40), test::mixed(40, 40)}) {
    constexpr std::int32_t kTokens = 100'000;
    Waiting waiting(spec);
    Request& request = waiting.open(1, kTokens);
    int calls = 1;
    while (!waiting.requests.hash_part(request, waiting.steps)) {
      waiting.steps.begin_call();
      ++calls;
    }
    EXPECT_EQ(request.num_hashed,
              request.is_last_part() ? kTokens / waiting.identity.unit() : request.horizon / 8);
    std::vector<std::int32_t> ends;
    const auto visit = [&](GroupId group, std::int32_t logical) {
      ends.push_back((logical + 1) * waiting.requests.block_size(group));
    };
    waiting.steps.keep_for_stores();
    waiting.steps.begin_call();
    for (waiting.steps.took(Steps::kOfCall - Steps::kOfStores - 100);
         !waiting.requests.walk(request, request.horizon, waiting.steps, visit); ++calls) {
      waiting.steps.begin_call();
    }
    EXPECT_GT(calls, 1);
    EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end())) << "the beginning of the prompt first";
    std::size_t blocks = 0;
    for (const GroupSpec& group : spec.groups) {
      blocks += std::size_t((request.horizon + group.block_size - 1) / group.block_size);
    }
    EXPECT_EQ(ends.size(), blocks) << "each once";
  }
}

TEST(Requests, TheNextPartBeginsWhereTheOneBeforeEnded) {
  Waiting waiting;
  Request& request = waiting.open(1, 100'000);
  const std::uint64_t id = request.id;
  std::int32_t parts = 1;
  for (; !request.is_last_part(); ++parts) {
    const std::int32_t end = request.horizon;
    waiting.go_to(request, State::kLoading);
    waiting.hold(request, 1);
    waiting.requests.enter(request, State::kReady);
    if (parts % 2 == 0) waiting.requests.enter(request, State::kWriting);
    waiting.requests.begin_next_part(request, end);
    EXPECT_EQ(request.id, id);
    EXPECT_EQ(request.part_begin, end);
    EXPECT_EQ(request.state, State::kNew);
    EXPECT_TRUE(request.held.empty()) << "the next one has its own turn";
    EXPECT_EQ(waiting.requests.writer(), nullptr);
    ASSERT_TRUE(waiting.check().ok()) << waiting.check();
  }
  EXPECT_EQ(parts, (100'000 - 1) / (4096 * 8) + 1);
  EXPECT_EQ(request.horizon, request.last_token());
}

// O9. 4,096 times the least common multiple of their sizes is more than 2^31, and more than any
// prompt.
TEST(Requests, BlocksWhoseEndsHardlyMeetAreBroughtInOnePart) {
  CacheSpec spec;
  for (const std::int32_t size : {1, 1023, 1024}) {
    spec.groups.push_back(test::group_of(40));
    spec.groups.back().block_size = size;
  }
  constexpr std::int32_t kTokens = 3000;
  Waiting waiting(spec);
  Request& request = waiting.open(1, kTokens);
  EXPECT_EQ(request.horizon, kTokens - 1);
  waiting.requests.clear_has(request, request.horizon);
  waiting.requests.clear_verdicts(request);
  const std::size_t counts[] = {kTokens - 1, 3, 3};
  for (std::size_t g = 0; g < std::size(counts); ++g) {
    EXPECT_EQ(request.has[g].size(), counts[g]);
    EXPECT_EQ(request.verdicts[g].size(), counts[g]);
  }
  waiting.go_to(request, State::kLoading);
}

// ---- who waits for what ----

TEST(Requests, ARecordArrivesForAllThatWaitForIt) {
  Waiting waiting;
  Requests& requests = waiting.requests;
  std::array<Request*, 3> all{};
  for (Request*& one : all) {
    one = &waiting.open(1);
    waiting.go_to(*one, State::kLoading);
  }
  const TierKey key = waiting.record_of(*all[0], 2).piece.key;
  requests.begin_arriving(*all[0], waiting.record_of(*all[0], 2));
  requests.wait_for(*all[1], key);
  requests.wait_for(*all[2], key);
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
  EXPECT_FALSE(requests.stop_waiting(*all[1], key)) << "others wait for it yet";
  EXPECT_FALSE(requests.waits_for(*all[1], key));
  const auto arrived = requests.take_arrived(key);
  EXPECT_EQ(arrived.waiters, (std::vector<Requests::Id>{all[0]->id, all[2]->id}));
  for (const Request* one : all) EXPECT_EQ(one->waiting, 0);
  EXPECT_EQ(requests.arriving(key), nullptr);
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
}

TEST(Requests, ThoseThatWaitForWhatIsLateWaitForWhatAnotherTierBrings) {
  Waiting waiting;
  Requests& requests = waiting.requests;
  Request& first = waiting.open(1);
  Request& second = waiting.open(1);
  for (Request* one : {&first, &second}) waiting.go_to(*one, State::kLoading);
  const TierKey key = waiting.record_of(first, 0).piece.key;
  requests.begin_arriving(first, waiting.record_of(first, 0));
  Requests::Arriving late = requests.take_late(key);
  Requests::Arriving again = waiting.record_of(first, 0);
  again.waiters = std::move(late.waiters);
  requests.begin_arriving(second, std::move(again));
  EXPECT_EQ(first.waiting, 1);
  EXPECT_EQ(second.waiting, 1);
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
  EXPECT_FALSE(requests.stop_waiting(first, key));
  EXPECT_TRUE(requests.stop_waiting(second, key)) << "none is left";
  EXPECT_TRUE(requests.take_arrived(key).waiters.empty());
}

TEST(Requests, ATierThatHasSaidAllItHasIsAnAnswer) {
  Waiting waiting;
  Request& request = waiting.open(1);
  waiting.go_to(request, State::kAsking);
  request.pieces.push_back(waiting.requests.piece_of(request, GroupId(0), 0));
  request.asked[1] = 1;
  request.unanswered[1] = request.waiting = 1;
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
  request.promised.add(1);
  EXPECT_FALSE(request.has_an_answer(2)) << "it has not said all";
  request.was_answered(1);
  EXPECT_TRUE(request.has_an_answer(2));
  EXPECT_FALSE(request.has_an_answer(1));
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
}

// ---- turns ----

TEST(Requests, AnOlderRequestTakesTheEndOfTheYoungestPrefix) {
  Waiting waiting;
  Requests& requests = waiting.requests;
  std::array<Request*, 3> all{};
  for (int i = 0; i < 3; ++i) {
    all[std::size_t(i)] = &waiting.open(i);
    waiting.go_to(*all[std::size_t(i)], State::kLoading);
  }
  for (const std::int32_t logical : {1, 0}) waiting.hold(*all[2], logical);
  waiting.hold(*all[1], 3);
  EXPECT_FALSE(requests.take_from_younger(*all[2])) << "none is younger";
  EXPECT_TRUE(requests.take_from_younger(*all[0]));
  EXPECT_TRUE(all[2]->displaced);
  EXPECT_FALSE(all[2]->held.empty()) << "the end of its prefix only";
  EXPECT_TRUE(requests.take_from_younger(*all[0]));
  EXPECT_TRUE(all[2]->held.empty());
  EXPECT_FALSE(all[1]->displaced);
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
  // What is ready is not taken from.
  requests.enter(*all[1], State::kReady);
  EXPECT_FALSE(requests.take_from_younger(*all[0]));
  EXPECT_TRUE(requests.others_hold(*all[0])) << "it goes when it was written";
  requests.remove(*all[1]);
  EXPECT_FALSE(requests.others_hold(*all[0]));
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
}

TEST(Requests, OneIsWrittenAtATime) {
  Waiting waiting;
  Request& first = waiting.open(1);
  Request& second = waiting.open(2);
  for (Request* one : {&first, &second}) waiting.go_to(*one, State::kReady);
  waiting.requests.enter(second, State::kWriting);
  EXPECT_EQ(waiting.requests.writer(), &second);
  EXPECT_DEATH(waiting.requests.enter(first, State::kWriting), "writer_ == 0");
  waiting.requests.remove(second);
  EXPECT_EQ(waiting.requests.writer(), nullptr);
  waiting.requests.enter(first, State::kWriting);
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
}

TEST(Requests, AStateFollowsOnlyFromThoseBeforeIt) {
  Waiting waiting;
  Request& request = waiting.open(1);
  EXPECT_DEATH(waiting.requests.enter(request, State::kReady), "may_follow");
  waiting.go_to(request, State::kLoading);
  EXPECT_DEATH(waiting.requests.enter(request, State::kWriting), "may_follow");
  waiting.requests.begin_arriving(request, waiting.record_of(request, 0));
  EXPECT_DEATH(waiting.requests.enter(request, State::kReady), "waiting == 0");
  EXPECT_DEATH(waiting.requests.remove(request), "waiting == 0");
}

TEST(Requests, TheCheckSeesWhatDoesNotAgree) {
  Waiting waiting;
  Request& request = waiting.open(1);
  waiting.go_to(request, State::kLoading);
  request.waiting = 1;
  EXPECT_FALSE(waiting.check().ok()) << "it waits for nothing that arrives";
  request.waiting = 0;
  waiting.hold(request, 0);
  request.held.clear();
  EXPECT_FALSE(waiting.check().ok()) << "it is listed, and holds nothing";
  waiting.requests.release_all(request);
  EXPECT_TRUE(waiting.check().ok()) << waiting.check();
  request.state = State::kWriting;
  EXPECT_FALSE(waiting.check().ok()) << "it writes out of turn";
}

// ---- all of it ----

TEST(Requests, RandomCallsBreakNoRule) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Waiting waiting(test::full(40), 1000);
    Requests& requests = waiting.requests;
    for (int step = 0; step < 1500; ++step) {
      const std::vector<Requests::Id> ids = requests.ids();
      if (ids.empty() || (ids.size() < 8 && random() % 8 == 0)) {
        waiting.open(int(random() % 4));
        continue;
      }
      Request& request = *requests.find(ids[random() % ids.size()]);
      const auto logical = std::int32_t(random() % 7);
      const bool loads = request.state == State::kLoading;
      switch (random() % 8) {
        case 0:
          if (request.waiting > 0) break;
          requests.remove(request);
          break;
        case 1:
          if (!loads) break;
          if (const auto next = waiting.record_of(request, logical);
              requests.arriving(next.piece.key) == nullptr) {
            requests.begin_arriving(request, next);
          } else if (!requests.waits_for(request, next.piece.key)) {
            requests.wait_for(request, next.piece.key);
          }
          break;
        case 2:
          if (loads || request.state == State::kHolding) waiting.hold(request, logical);
          break;
        case 3: {
          if (requests.arrivals().empty()) break;
          const TierKey key = requests.arrivals().begin()->first;
          const auto arrived = requests.take_arrived(key);
          if (!waiting.arena.contains(key)) test::put_record(waiting.arena, key);
          for (const Requests::Id id : arrived.waiters) {
            requests.hold(*requests.find(id), arrived.piece.logical * 8 + 8,
                          waiting.arena.hold(key));
          }
          break;
        }
        case 4: {
          if (!loads) break;
          const TierKey key = waiting.record_of(request, logical).piece.key;
          if (!requests.waits_for(request, key)) break;
          if (requests.stop_waiting(request, key)) requests.take_arrived(key);
          break;
        }
        case 5:
          requests.take_from_younger(request);
          break;
        default: {
          if (request.waiting > 0) break;
          if (request.state == State::kWriting) break;
          if (request.state == State::kReady && requests.writer() != nullptr) break;
          if (loads && request.displaced) {
            requests.begin_round(request, 7);
            requests.release_behind(request, logical * 8);
            break;
          }
          waiting.go_to(request, State(int(request.state) + 1));
        }
      }
      ASSERT_TRUE(waiting.check().ok()) << waiting.check() << " at step " << step;
    }
    EXPECT_TRUE(waiting.arena.check_invariants().ok());
  }
}

}  // namespace
}  // namespace kvfolio
