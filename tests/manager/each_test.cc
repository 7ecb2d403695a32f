// SPDX-License-Identifier: Apache-2.0
//
// A decode step in one call: what append_each() and its kin do is what the single calls do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

using ::testing::HasSubstr;

TEST(Each, AppendsOneTokenToEachSequence) {
  Engine e({full_group(4, 16)});
  const std::vector<SequenceId> all = {e.say(tokens(1, 3)), e.say(tokens(50, 4))};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  must(e.manager.append_each(all, Tokens{7, 8}, &done));
  EXPECT_EQ(done, 2);
  EXPECT_EQ(e.plan().slots.size(), 2u);
  must(e.manager.finish(step));
  EXPECT_EQ(e.info(all[0]).length, 4);
  EXPECT_EQ(e.probe(Tokens{50, 51, 52, 53, 8, 9}), 4);
  must(e.manager.close(all[1]));
  EXPECT_EQ(e.probe(Tokens{50, 51, 52, 53, 8, 9}), 5);
}

TEST(Each, EndsAtTheFirstThatFailsAndGoesOnFromThere) {
  Engine e({full_group(4, 3)});
  const std::vector<SequenceId> all = {e.say(tokens(1, 4)), e.say(tokens(50, 4)),
                                       e.say(tokens(90, 3))};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  const Status status = e.manager.append_each(all, Tokens{5, 6, 7}, &done);
  EXPECT_EQ(status.code(), ErrorCode::kNoBlocks) << status.message();
  EXPECT_EQ(done, 0);
  must(e.manager.preempt(all[1]));
  must(e.manager.evict(GroupId(0), 1));
  const std::vector<SequenceId> rest = {all[0], all[2]};
  must(e.manager.append_each(rest, Tokens{5, 7}, &done));
  EXPECT_EQ(done, 2);
  must(e.manager.finish(step));
  must(e.manager.check_invariants());
}

TEST(Each, ASequenceThatIsNamedTwiceFailsAtTheSecondPlace) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 3));
  const SequenceId b = e.say(tokens(50, 3));
  const std::vector<SequenceId> all = {a, b, a};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  const Status status = e.manager.append_each(all, Tokens{1, 2, 3}, &done);
  EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("twice, at 0 and at 2"));
  EXPECT_EQ(done, 2);
  EXPECT_EQ(e.plan().slots.size(), 2u);
  must(e.manager.finish(step));
  EXPECT_EQ(e.info(a).length, 4);
}

TEST(Each, BadInputSaysWhereItIs) {
  Engine e({full_group(4, 16)});
  const SequenceId a = e.say(tokens(1, 3));
  const SequenceId b = e.say(tokens(50, 3));
  std::vector<SequenceId> all = {a, b};
  std::int32_t done = -1;
  EXPECT_THAT(e.manager.append_each(all, Tokens{1, 2}, &done).message(),
              HasSubstr("no step is open"));
  EXPECT_EQ(done, 0);
  const Ticket step = must(e.manager.begin_step());
  const Status sizes = e.manager.append_each(all, Tokens{1}, &done);
  EXPECT_EQ(sizes.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(sizes.message(), "append_each of 1 tokens to 2 sequences, allowed: one for each");
  EXPECT_EQ(done, 0);
  EXPECT_EQ(e.manager.append_each(all, Tokens{1, -7}, &done).message(),
            "append_each: token 1 is -7, allowed: 0 and above");
  EXPECT_EQ(done, 1);
  all = {b, SequenceId(12345678901234u)};
  EXPECT_EQ(e.manager.append_each(all, Tokens{1, 2}, nullptr).code(), ErrorCode::kNotFound);
  EXPECT_EQ(e.info(b).length, 4);
  must(e.manager.append_each({}, {}, &done));
  EXPECT_EQ(done, 0);
  must(e.manager.finish(step));
}

TEST(Each, TokensThatAreNotKnownYetAreNamedInOneCall) {
  Engine e({full_group(4, 16)});
  const std::vector<SequenceId> all = {e.say(tokens(1, 3)), e.say(tokens(50, 3))};
  const Ticket step = must(e.manager.begin_step());
  std::int32_t done = -1;
  must(e.manager.append_unnamed_each(all, &done));
  EXPECT_EQ(done, 2);
  must(e.manager.commit(step));
  const Status twice =
      e.manager.set_tokens_each(std::vector<SequenceId>{all[0], all[0]}, Tokens{4, 5}, &done);
  EXPECT_EQ(twice.code(), ErrorCode::kInvalidArgument) << twice.message();
  EXPECT_EQ(done, 1);
  must(e.manager.set_tokens_each(std::vector<SequenceId>{all[1]}, Tokens{53}, &done));
  must(e.manager.complete(step));
  EXPECT_EQ(e.probe(tokens(1, 5)), 4);
  EXPECT_EQ(e.probe(tokens(50, 5)), 4);
}

// ---- against the single calls ----

// Two managers get the same calls, but that one takes batches and the other one token after token.
class Pair {
 public:
  Pair(const std::vector<GroupSpec>& groups, const ManagerOptions& options, std::uint32_t seed)
      : each_(groups, options), single_(groups, options), random_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      step();
    }
    EXPECT_GT(appended_, operations / 8);
    EXPECT_GT(failed_, operations / 100);
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // The same call on both, which answer alike.
  template <typename Call>
  auto both(const Call& call) {
    auto one = call(each_.manager);
    auto other = call(single_.manager);
    compare(one, other);
    return one;
  }
  static void compare(const Status& one, const Status& other) {
    EXPECT_EQ(one.code(), other.code()) << one.message() << " / " << other.message();
    if (one.shortage() != nullptr && other.shortage() != nullptr) {
      EXPECT_EQ(*one.shortage(), *other.shortage());
    }
  }
  static void compare(const Result<Opened>& one, const Result<Opened>& other) {
    ASSERT_EQ(one.has_value(), other.has_value());
    if (one) {
      EXPECT_EQ(one->sequence, other->sequence);
    }
  }
  static void compare(const Result<SequenceId>& one, const Result<SequenceId>& other) {
    ASSERT_EQ(one.has_value(), other.has_value());
    if (one) {
      EXPECT_EQ(*one, *other);
    }
  }
  static void compare(const Result<Ticket>& one, const Result<Ticket>& other) {
    ASSERT_EQ(one.has_value(), other.has_value());
  }

  void step() {
    const int what = pick(0, 99);
    if (what < 8) {
      Tokens prompt(static_cast<std::size_t>(pick(0, 9)));
      for (std::int32_t& token : prompt) token = pick(0, 1);
      const OpenOptions options{.max_tokens = pick(0, 3) == 0 ? pick(10, 14) : 0};
      const auto opened = both([&](KVCacheManager& m) { return m.open(prompt, options); });
      if (opened) open_.push_back(opened->sequence);
    } else if (what < 11 && !open_.empty()) {
      const SequenceId parent = any();
      const auto child = both([&](KVCacheManager& m) { return m.fork(parent); });
      if (child) open_.push_back(*child);
    } else if (what < 16 && !open_.empty()) {
      const SequenceId sequence = any();
      const bool closed = both([&](KVCacheManager& m) {
                            return what < 14 ? m.close(sequence) : m.preempt(sequence);
                          }).ok();
      if (closed) std::erase(open_, sequence);
    } else if (what < 18 && !open_.empty()) {
      const SequenceId sequence = any();
      const std::int32_t length = pick(0, 12);
      static_cast<void>(both([&](KVCacheManager& m) { return m.truncate(sequence, length); }));
    } else if (what < 28) {
      begin();
    } else if (what < 44) {
      if (!open_step_.valid()) return;
      const Ticket ticket = open_step_;
      const bool drops = pick(0, 9) == 0;
      open_step_ = Ticket();
      static_cast<void>(
          both([&](KVCacheManager& m) { return drops ? m.drop(ticket) : m.commit(ticket); }));
      if (!drops) flight_.push_back(ticket);
    } else if (what < 58) {
      if (flight_.empty()) return;
      const Ticket ticket =
          flight_[static_cast<std::size_t>(pick(0, static_cast<int>(flight_.size()) - 1))];
      const bool fails = pick(0, 30) == 0;
      static_cast<void>(both([&](KVCacheManager& m) {
        if (!fails) return m.complete(ticket);
        const auto failed = m.fail(ticket);
        return failed.has_value() ? Status() : failed.error();
      }));
      const bool in_order = each_.manager.options().order == Order::kInOrder;
      std::erase_if(flight_, [&](Ticket each) {
        return each == ticket || (fails ? ticket < each : in_order && each < ticket);
      });
      if (fails) {
        open_step_ = Ticket();
        std::erase_if(open_, [&](SequenceId id) { return !each_.manager.info(id).has_value(); });
      }
    } else if (what < 64) {
      name_each();
    } else {
      if (!open_step_.valid() && pick(0, 9) != 0) begin();
      append_each(what < 84);
    }
    agree();
  }

  void begin() {
    const auto ticket = both([](KVCacheManager& m) { return m.begin_step(); });
    if (ticket) open_step_ = *ticket;
  }

  SequenceId any() {
    return open_[static_cast<std::size_t>(pick(0, static_cast<int>(open_.size()) - 1))];
  }

  std::vector<SequenceId> some() {
    std::vector<SequenceId> batch = open_;
    std::shuffle(batch.begin(), batch.end(), random_);
    batch.resize(std::min<std::size_t>(batch.size(), static_cast<std::size_t>(pick(0, 6))));
    if (!batch.empty() && pick(0, 9) == 0) batch.push_back(batch.front());
    if (pick(0, 19) == 0) batch.push_back(SequenceId(static_cast<std::uint64_t>(pick(1, 1 << 30))));
    return batch;
  }
  Tokens some_tokens(std::size_t count) {
    Tokens tokens(count);
    for (std::int32_t& token : tokens) token = pick(0, 40) == 0 ? -1 : pick(0, 1);
    return tokens;
  }
  void append_each(bool named) {
    const std::vector<SequenceId> batch = some();
    const Tokens tokens = some_tokens(batch.size());
    std::int32_t done = -1;
    const Status each = named ? each_.manager.append_each(batch, tokens, &done)
                              : each_.manager.append_unnamed_each(batch, &done);
    std::size_t at = 0;
    Status single;
    for (; at < batch.size(); ++at) {
      single = named ? single_.manager.append(batch[at], std::span(tokens).subspan(at, 1))
                     : single_.manager.append_unnamed(batch[at], 1);
      if (!single.ok()) break;
    }
    EXPECT_EQ(done, static_cast<std::int32_t>(at));
    compare(each, single);
    appended_ += done;
    failed_ += each.ok() ? 0 : 1;
  }
  void name_each() {
    const std::vector<SequenceId> batch = some();
    const Tokens tokens = some_tokens(batch.size());
    std::int32_t done = -1;
    const Status each = each_.manager.set_tokens_each(batch, tokens, &done);
    std::size_t at = 0;
    Status single;
    for (; at < batch.size(); ++at) {
      single = single_.manager.set_tokens(batch[at], std::span(tokens).subspan(at, 1));
      if (!single.ok()) break;
    }
    EXPECT_EQ(done, static_cast<std::int32_t>(at));
    compare(each, single);
  }

  // Both managers look alike from outside.
  void agree() {
    for (const SequenceId id : open_) {
      const SequenceInfo one = each_.info(id);
      const SequenceInfo other = single_.info(id);
      EXPECT_EQ(one.length, other.length);
      EXPECT_EQ(one.published_length, other.published_length);
      for (std::int32_t g = 0; g < 2; ++g) EXPECT_EQ(each_.table(id, g), single_.table(id, g));
    }
    for (std::int32_t g = 0; g < 2; ++g) {
      EXPECT_EQ(each_.usage(g).free, single_.usage(g).free);
      EXPECT_EQ(each_.usage(g).cached, single_.usage(g).cached);
      EXPECT_EQ(each_.usage(g).retiring, single_.usage(g).retiring);
    }
    EXPECT_EQ(each_.manager.counters().blocks_evicted, single_.manager.counters().blocks_evicted);
    EXPECT_EQ(each_.manager.counters().blocks_published,
              single_.manager.counters().blocks_published);
    if (!open_step_.valid()) return;
    for (std::size_t g = 0; g < 2; ++g) {
      const Planned one = each_.plan(g);
      const Planned other = single_.plan(g);
      EXPECT_EQ(one.slots, other.slots);
      EXPECT_EQ(one.copy_src, other.copy_src);
      EXPECT_EQ(one.copy_dst, other.copy_dst);
    }
  }

  Engine each_;
  Engine single_;
  std::mt19937 random_;
  std::vector<SequenceId> open_;
  std::vector<Ticket> flight_;
  Ticket open_step_;
  int appended_ = 0;
  int failed_ = 0;
};

// KVFOLIO_OPS: operations of each seed.
TEST(Each, DoesWhatTheSingleCallsDo) {
  const char* wanted = std::getenv("KVFOLIO_OPS");
  const int operations = wanted != nullptr ? std::atoi(wanted) : 5000;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const bool unordered = seed % 2 == 0;
    Pair pair({full_group(4, 14), window_group(2, 24, 5)},
              {.max_sequences = 8,
               .max_steps_in_flight = 3,
               .order = unordered ? Order::kUnordered : Order::kInOrder},
              seed);
    pair.run(operations);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
