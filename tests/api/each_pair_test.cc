// SPDX-License-Identifier: Apache-2.0
//
// append_each() and its kin against the single calls: two managers get the same random calls, but
// that one takes batches and the other one token after token. They answer alike, with the same
// plans and the same sentences, and become the same. Batches are also larger than what is asked for
// together (32 sequences, src/manager/each.cc).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "engine.h"

namespace kvfolio::testing_engine {
namespace {

struct Shape {
  int most_batch;
};

class Pair {
 public:
  Pair(const std::vector<GroupSpec>& groups, const ManagerOptions& options, Shape shape,
       std::uint32_t seed)
      : num_groups_(static_cast<int>(groups.size())),
        shape_(shape),
        each_(groups, options),
        single_(groups, options),
        random_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      step();
      if (i % 16 == 0) same_future();
    }
    EXPECT_GT(appended_, operations / 8);
    EXPECT_GT(failed_, operations / 100);
    EXPECT_GT(named_, operations / 200);
    EXPECT_GT(accepted_, operations / 500);
    EXPECT_GT(reserved_, operations / 500);
    EXPECT_GT(largest_, shape_.most_batch * 3 / 4);
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
    EXPECT_EQ(one.message(), other.message());
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
    if (what < 8 || (what < 20 && open_.size() < static_cast<std::size_t>(shape_.most_batch))) {
      Tokens prompt(static_cast<std::size_t>(pick(0, 9)));
      for (std::int32_t& token : prompt) token = pick(0, 1);
      const OpenOptions options{.max_tokens = pick(0, 3) == 0 ? pick(10, 14) : 0,
                                .late_names = pick(0, 2) == 0};
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
    } else if (what < 63) {
      name_each();
    } else if (what < 66 && !open_.empty()) {
      reserve();
    } else if (what < 74 && !open_.empty()) {
      draft_or_accept();
    } else {
      if (!open_step_.valid() && pick(0, 9) != 0) begin();
      append_each(what < 88);
    }
    agree();
  }

  void begin() {
    const auto ticket = both([](KVCacheManager& m) { return m.begin_step(); });
    if (ticket) open_step_ = *ticket;
  }

  void reserve() {
    const SequenceId sequence = any();
    const std::int64_t count = pick(0, 9);
    const std::int64_t most = pick(0, 2);
    const Status status = both(
        [&](KVCacheManager& m) { return m.reserve(sequence, count, {.most_per_step = most}); });
    reserved_ += status.ok() ? 1 : 0;
  }
  // Draft tokens of a sequence are decided on, or one that has none gets some.
  void draft_or_accept() {
    SequenceId sequence = any();
    for (const SequenceId id : open_) {
      const SequenceInfo info = each_.info(id);
      if (info.length > info.accepted_length && !info.in_open_step) sequence = id;
    }
    const SequenceInfo info = each_.info(sequence);
    const std::int32_t draft = info.length - info.accepted_length;
    if (draft > 0) {
      const std::int32_t count = pick(0, draft);
      const Status status = both([&](KVCacheManager& m) { return m.accept(sequence, count); });
      accepted_ += status.ok() ? 1 : 0;
    } else {
      const Tokens guesses(static_cast<std::size_t>(pick(1, 3)), 1);
      const auto count = static_cast<std::int32_t>(guesses.size());
      static_cast<void>(
          both([&](KVCacheManager& m) { return m.append(sequence, guesses, {.draft = count}); }));
    }
  }

  SequenceId any() {
    return open_[static_cast<std::size_t>(pick(0, static_cast<int>(open_.size()) - 1))];
  }

  std::vector<SequenceId> some() {
    std::vector<SequenceId> batch = open_;
    std::shuffle(batch.begin(), batch.end(), random_);
    batch.resize(
        std::min<std::size_t>(batch.size(), static_cast<std::size_t>(pick(0, shape_.most_batch))));
    if (!batch.empty() && pick(0, 9) == 0) batch.push_back(batch.front());
    if (pick(0, 19) == 0) {
      const int at = pick(0, static_cast<int>(batch.size()));
      batch.insert(batch.begin() + at, SequenceId(static_cast<std::uint64_t>(pick(1, 1 << 30))));
    }
    largest_ = std::max(largest_, static_cast<int>(batch.size()));
    return batch;
  }
  Tokens some_tokens(std::size_t count) {
    Tokens tokens(count);
    for (std::int32_t& token : tokens)
      token = pick(0, 12 * shape_.most_batch) == 0 ? -1 : pick(0, 1);
    return tokens;
  }
  // What the call for many says where the single one says `single` of batch[at].
  static std::string as_each(const std::string& name, const std::string& single,
                             const std::vector<SequenceId>& batch, const Tokens& tokens,
                             std::size_t at, ErrorCode code) {
    for (std::size_t i = 0; i < at && code == ErrorCode::kFailedPrecondition; ++i) {
      if (batch[i] != batch[at]) continue;
      return name + "_each names " + to_string(batch[at]) + " twice, at " + std::to_string(i) +
             " and at " + std::to_string(at);
    }
    if (code == ErrorCode::kInvalidArgument && !tokens.empty() && tokens[at] < 0) {
      return name + "_each: token " + std::to_string(at) + " is " + std::to_string(tokens[at]) +
             ", allowed: 0 and above";
    }
    if (code == ErrorCode::kNotFound || code == ErrorCode::kAborted) {
      return name + "_each: at " + std::to_string(at) + ": " + single;
    }
    const std::string names = "set_tokens names ";
    if (code == ErrorCode::kInvalidArgument && single.rfind(names, 0) == 0) {
      return name + "_each: at " + std::to_string(at) + ", " + to_string(batch[at]) +
             ", it names " + single.substr(names.size());
    }
    if (single.rfind(name + ":", 0) != 0 && single.rfind(name + " ", 0) != 0) return single;
    return name + "_each" + single.substr(name.size());
  }
  static void compare_each(const std::string& name, const Status& each, const Status& single,
                           const std::vector<SequenceId>& batch, const Tokens& tokens,
                           std::size_t at) {
    ASSERT_EQ(each.code(), single.code()) << each.message() << " / " << single.message();
    if (each.ok()) return;
    EXPECT_EQ(each.message(), as_each(name, single.message(), batch, tokens, at, each.code()));
    ASSERT_EQ(each.shortage() == nullptr, single.shortage() == nullptr);
    if (each.shortage() != nullptr) {
      EXPECT_EQ(*each.shortage(), *single.shortage());
    }
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
    compare_each(named ? "append" : "append_unnamed", each, single, batch,
                 named ? tokens : Tokens(), at);
    appended_ += done;
    failed_ += each.ok() ? 0 : 1;
  }
  // Mostly of sequences that have tokens without names.
  void name_each() {
    std::vector<SequenceId> batch = some();
    if (pick(0, 3) != 0) {
      std::erase_if(batch, [&](SequenceId id) {
        const auto info = each_.manager.info(id);
        return !info.has_value() || info->num_unnamed == 0;
      });
    }
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
    compare_each("set_tokens", each, single, batch, tokens, at);
    named_ += done;
  }

  // Both managers look alike from outside.
  void agree() {
    for (const SequenceId id : open_) {
      const SequenceInfo one = each_.info(id);
      const SequenceInfo other = single_.info(id);
      EXPECT_EQ(one.length, other.length);
      EXPECT_EQ(one.published_length, other.published_length);
      for (std::int32_t g = 0; g < num_groups_; ++g) {
        EXPECT_EQ(each_.table(id, g), single_.table(id, g));
      }
      EXPECT_EQ(one.num_unnamed, other.num_unnamed);
      EXPECT_EQ(one.reserved_tokens, other.reserved_tokens);
      EXPECT_EQ(one.accepted_length, other.accepted_length);
      EXPECT_EQ(one.use_count, other.use_count);
    }
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      EXPECT_EQ(each_.usage(g).free, single_.usage(g).free);
      EXPECT_EQ(each_.usage(g).cached, single_.usage(g).cached);
      EXPECT_EQ(each_.usage(g).retiring, single_.usage(g).retiring);
    }
    EXPECT_EQ(each_.manager.counters().blocks_evicted, single_.manager.counters().blocks_evicted);
    EXPECT_EQ(each_.manager.counters().blocks_published,
              single_.manager.counters().blocks_published);
    if (!open_step_.valid()) return;
    same_plans();
  }

  void same_plans() {
    const PlanOptions options{.flashinfer = true, .shared_prefixes = true, .positions = true};
    const StepPlan& one = *must(each_.manager.plan(options));
    const StepPlan& other = *must(single_.manager.plan(options));
    EXPECT_TRUE(std::ranges::equal(one.sequences, other.sequences));
    EXPECT_TRUE(std::ranges::equal(one.query_start, other.query_start));
    EXPECT_TRUE(std::ranges::equal(one.kv_lens, other.kv_lens));
    EXPECT_TRUE(std::ranges::equal(one.positions, other.positions));
    for (std::size_t g = 0; g < static_cast<std::size_t>(num_groups_); ++g) {
      const GroupPlan& a = one.groups[g];
      const GroupPlan& b = other.groups[g];
      EXPECT_TRUE(std::ranges::equal(a.slot_mapping, b.slot_mapping));
      EXPECT_TRUE(std::ranges::equal(a.block_table, b.block_table));
      EXPECT_TRUE(std::ranges::equal(a.kv_indices, b.kv_indices));
      EXPECT_TRUE(std::ranges::equal(a.kv_last_page_len, b.kv_last_page_len));
      EXPECT_TRUE(std::ranges::equal(a.copy_src, b.copy_src));
      EXPECT_TRUE(std::ranges::equal(a.copy_dst, b.copy_dst));
      EXPECT_EQ(a.shared_prefixes.size(), b.shared_prefixes.size());
    }
  }

  void same_future() {
    EXPECT_EQ(must(each_.manager.state_hash()), must(single_.manager.state_hash()));
    must(each_.manager.check_invariants());
  }

  int num_groups_;
  Shape shape_;
  Engine each_;
  Engine single_;
  std::mt19937 random_;
  std::vector<SequenceId> open_;
  std::vector<Ticket> flight_;
  Ticket open_step_;
  int appended_ = 0;
  int failed_ = 0;
  int named_ = 0;
  int accepted_ = 0;
  int reserved_ = 0;
  int largest_ = 0;
};

// KVFOLIO_OPS: operations of all seeds together.
int operations_of_a_seed(int seeds) {
  const char* wanted = std::getenv("KVFOLIO_OPS");
  return (wanted != nullptr ? std::atoi(wanted) : 100000) / seeds;
}

TEST(Each, DoesWhatTheSingleCallsDo) {
  constexpr int kSeeds = 20;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Pair pair({full_group(4, 14), window_group(2, 24, 5)},
              {.max_sequences = 8,
               .max_steps_in_flight = 3,
               .order = seed % 2 == 0 ? Order::kUnordered : Order::kInOrder},
              {.most_batch = 6}, seed);
    pair.run(operations_of_a_seed(kSeeds));
    if (::testing::Test::HasFailure()) return;
  }
}

// A call of these appends up to 100 tokens, so there are fewer of them.
TEST(Each, DoesWhatTheSingleCallsDoWithManySequences) {
  constexpr int kSeeds = 8;
  for (std::uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Pair pair({full_group(4, 170)},
              {.max_sequences = 128,
               .max_steps_in_flight = 3,
               .order = seed % 2 == 0 ? Order::kUnordered : Order::kInOrder},
              {.most_batch = 100}, seed);
    pair.run(operations_of_a_seed(kSeeds) / 10);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
