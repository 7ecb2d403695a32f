// SPDX-License-Identifier: Apache-2.0

// Making room: choosing a victim among cached blocks, evicting it, and preempting sequences.

#include <algorithm>
#include <optional>

#include "cache.h"
#include "family.h"
#include "instructions.h"
#include "plain.h"

namespace kvfolio::bench {
namespace {

// A pool that is full of cached blocks, three tenths of the prompts pinned, let go in an order that
// has nothing to do with memory.
class FullPool {
 public:
  FullPool(std::int32_t num_blocks, std::int32_t prompt_blocks)
      : prompts_(num_blocks / prompt_blocks),
        prompt_blocks_(prompt_blocks),
        cache_(num_blocks, 1024, prompts_),
        tokens_(static_cast<std::size_t>(prompt_blocks) * kBlockSize) {
    cache_.shuffle_free_blocks();
    fill();
    // Again in another order: ranks follow that one.
    for (const std::int32_t p : shuffled(prompts_, 31)) {
      write_prompt(p, tokens_);
      cache_.cache(tokens_);
    }
    pin();
  }

  Cache& cache() { return cache_; }
  [[nodiscard]] std::int32_t evictable() const { return cache_.usage().evictable; }

  void evict(std::int32_t count) {
    for (std::int32_t i = 0; i < count; ++i) {
      if (*cache_->evict(GroupId(0), 1) != 1) require(false, "a victim");
    }
  }

  // What is evicted is the least recently used that no pin holds: those opened first.
  void check() {
    const std::int32_t count = std::min(4 * prompt_blocks_, evictable());
    evict(count);
    std::int32_t gone = 0;
    std::int32_t pinned = 0;
    for (const std::int32_t p : shuffled(prompts_, 31)) {
      if (gone == count) break;
      write_prompt(p, tokens_);
      const std::int32_t left =
          (take(cache_->probe(tokens_), "probe") + kBlockSize - 1) / kBlockSize;
      if (p % 10 < 3) {
        require(left == prompt_blocks_, "what is pinned stays");
        ++pinned;
        continue;
      }
      gone += prompt_blocks_ - left;
      require(left == 0 || gone == count, "the coldest prompt goes first, whole");
    }
    require(gone == count, "as many blocks are gone as were evicted");
    cache_.check();
    refill();
  }
  // Puts back what was evicted.
  void refill() {
    for (const std::int32_t p : shuffled(prompts_, 32)) {
      write_prompt(p, tokens_);
      cache_.cache(tokens_);
    }
  }

 private:
  void fill() {
    for (std::int32_t p = 0; p < prompts_; ++p) {
      write_prompt(p, tokens_);
      cache_.cache(tokens_);
    }
  }
  void pin() {
    for (std::int32_t p = 0; p < prompts_; ++p) {
      if (p % 10 >= 3) continue;
      write_prompt(p, tokens_);
      const Pinned pinned = take(cache_->pin(tokens_), "pin");
      require(pinned.pinned_tokens == static_cast<std::int32_t>(tokens_.size()), "pinned whole");
    }
  }

  std::int32_t prompts_;
  std::int32_t prompt_blocks_;
  Cache cache_;
  std::vector<std::int32_t> tokens_;
};

void victims(Session& session) {
  const bool counts = session.wants("evict.instructions");
  if (!session.wants("evict.time") && !counts) return;
  bool allowed = false;
  for (const std::int32_t prompt_blocks : {8, 1}) {
    const std::int32_t few = 1'000;
    // Single steps cost microseconds each, tens of them on some virtual machines.
    const std::int32_t counted = session.size(100, 4);
    const std::int32_t many = session.size(1'000'000, 4'000);
    std::optional<Instructions> at_few;
    if (counts) {
      FullPool pool(few, prompt_blocks);
      pool.check();
      at_few = instructions_of([&] { pool.evict(counted); });
    }
    FullPool pool(many, prompt_blocks);
    pool.check();
    std::optional<Instructions> at_many;
    if (counts) at_many = instructions_of([&] { pool.evict(counted); });
    allowed = at_few && at_many;
    if (allowed) {
      session.report({.name = "evict.instructions",
                      .facts = {{"cached", std::int64_t{many}},
                                {"over_cached", std::int64_t{few}},
                                {"prompt_blocks", std::int64_t{prompt_blocks}},
                                {"pinned", "30 %"},
                                {"counted_by", at_many->counted_by}},
                      .unit = "ratio",
                      .promise = Promise{1.5, 1.3},
                      .note = "instructions to choose and evict one block; " +
                              std::to_string(static_cast<int>(at_few->count / counted)) + " at " +
                              std::to_string(few)},
                     {{at_many->count / at_few->count}, {}});
    }
    const std::int32_t share = pool.evictable() / (session.rounds() + 1);
    OrderedSet plain(pool.evictable());
    session.measure(
        {.name = "evict.time",
         .facts = {{"cached", std::int64_t{many}},
                   {"prompt_blocks", std::int64_t{prompt_blocks}},
                   {"pinned", "30 %"}},
         .promise = Promise{0.15, 0.5},
         .promise_is_ratio = true,
         .note = "choose and evict one block, random order. Ceiling, which is less work: the "
                 "lowest of a std::set of as many ranks leaves it and comes back as the highest"},
        [&] { return nanoseconds_of([&] { pool.evict(share); }) / share; },
        [&] { return plain.turn(share) / share; });
  }
  if (counts && !allowed) session.leave_out("evict.instructions", kUncounted);
}

// Sequences of 10 blocks that fill the pool but for spare ones, used in an order that has nothing
// to do with their ids.
class Running {
 public:
  static constexpr std::int32_t kBlocks = 10;

  explicit Running(std::int32_t count, std::int32_t spare_blocks = 0)
      : cache_(count * (kBlocks + spare_blocks), count), count_(count) {
    cache_.shuffle_free_blocks();
  }
  Cache& cache() { return cache_; }

  // Opens all; cached blocks of the last round make room.
  void open_all() {
    std::vector<std::int32_t> tokens(std::size_t{kBlocks} * kBlockSize);
    for (const SequenceId sequence : sequences_) cache_.close(sequence);
    require(cache_->evict(GroupId(0), 1 << 29).has_value(), "evict");
    sequences_.clear();
    for (std::int32_t i = 0; i < count_; ++i) {
      write_prompt(i, tokens);
      sequences_.push_back(cache_.open({}));
      cache_.append(sequences_.back(), std::span(tokens).first(tokens.size() - 1));
    }
    used_ = shuffled(count_, ++seed_);
    for (const std::int32_t i : used_) cache_.append(at(i), std::span(tokens).last(1));
    require(cache_.usage().held == count_ * kBlocks, "every block is held");
  }
  // The order of last use is that of the appends.
  void check(std::span<const EndedSequence> preempted) const {
    require(static_cast<std::int32_t>(preempted.size()) == count_ / 2, "half of them go");
    for (std::size_t i = 0; i < preempted.size(); ++i) {
      require(preempted[i].sequence == at(used_[i]), "the least recently used go first, in order");
    }
  }
  // Those that were preempted are gone.
  void forget(std::span<const EndedSequence> preempted) {
    const auto gone = static_cast<std::ptrdiff_t>(preempted.size());
    std::vector<SequenceId> left;
    for (auto i = used_.begin() + gone; i != used_.end(); ++i) left.push_back(at(*i));
    sequences_ = left;
  }
  // Lengths, numbers of uses and priorities differ from here on. Up to 14 tokens each.
  void vary() {
    Random random(72);
    const auto append = [&](SequenceId sequence) {
      const Ticket ticket = take(cache_->begin_step(), "begin_step");
      const auto count = static_cast<std::int32_t>(1 + random.below(2));
      require(cache_->append_unnamed(sequence, count), "append");
      require(cache_->finish(ticket), "finish");
    };
    for (const SequenceId sequence : sequences_) {
      const auto priority = static_cast<std::int32_t>(random.below(1'000));
      require(cache_->set_priority(sequence, priority), "set_priority");
      for (std::int64_t i = random.below(8); i > 0; --i) append(sequence);
    }
  }
  // The first by this policy when each is asked; ties go to the lower id.
  [[nodiscard]] SequenceId first_by(VictimPolicy policy) {
    const auto rank = [&](SequenceId sequence) {
      const SequenceInfo info = take(cache_->info(sequence), "info");
      const std::int64_t ranks[] = {static_cast<std::int64_t>(info.last_use),
                                    static_cast<std::int64_t>(info.use_count), -info.length,
                                    info.priority};
      return std::pair(ranks[static_cast<std::size_t>(policy)], sequence.value());
    };
    return *std::ranges::min_element(sequences_, {}, rank);
  }
  // A decode step: each takes one token, in the order of their last use. Requires: two spare blocks
  // for each.
  void decode_all() {
    const Ticket ticket = take(cache_->begin_step(), "begin_step");
    for (const std::int32_t i : used_) require(cache_->append_unnamed(at(i), 1), "append");
    require(cache_->finish(ticket), "finish");
    if (++steps_ % kBlockSize != 0) return;
    for (const std::int32_t i : used_) {
      const SequenceInfo info = take(cache_->info(at(i)), "info");
      require(cache_->truncate(at(i), info.length - kBlockSize), "truncate");
    }
  }
  [[nodiscard]] SequenceId at(std::int32_t i) const {
    return sequences_[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] SequenceId least_recent() const { return at(used_[0]); }
  [[nodiscard]] std::int32_t count() const { return count_; }

 private:
  Cache cache_;
  std::int32_t count_;
  std::uint64_t seed_ = 60;
  int steps_ = 0;
  std::vector<SequenceId> sequences_;
  std::vector<std::int32_t> used_;
};

void preemption(Session& session) {
  if (!session.wants("preempt_to.half")) return;
  Running running(session.size(10'000, 100));
  const auto round = [&] {
    running.open_all();
    std::span<const EndedSequence> preempted;
    const double time =
        nanoseconds_of([&] { preempted = take(running.cache()->preempt_to(0.5), "preempt_to"); });
    running.check(preempted);
    running.forget(preempted);
    return time / 1e6;
  };
  round();
  RankedArray plain(running.count(), Running::kBlocks);
  session.measure(
      {.name = "preempt_to.half",
       .facts = {{"sequences", std::int64_t{running.count()}},
                 {"sequence_blocks", std::int64_t{Running::kBlocks}}},
       .unit = "ms",
       .promise = Promise{0.07, 0.2},
       .promise_is_ratio = true,
       .note =
           "least recently used first; their blocks are published and cached. Ceiling: an array "
           "is sorted by last use, and the blocks of half of it are marked and listed"},
      round, [&] { return plain.give_up_half() / 1e6; });
  running.cache().check();
}

// An engine asks after a step, and its step used every sequence. Beside it what the question costs
// when next to nothing has changed since the last one.
void selection(Session& session) {
  if (!session.wants("select_victim.after_step") && !session.wants("select_victim.again")) return;
  struct Case {
    std::int32_t sequences;
    VictimPolicy policy;
    const char* name;
  };
  const Case cases[] = {{1'000, VictimPolicy::kLru, "lru"},
                        {10'000, VictimPolicy::kLru, "lru"},
                        {100'000, VictimPolicy::kLru, "lru"},
                        {10'000, VictimPolicy::kLfu, "lfu"},
                        {10'000, VictimPolicy::kLongest, "longest"},
                        {10'000, VictimPolicy::kLowestPriority, "lowest priority"}};
  for (const Case& at : cases) {
    Running running(session.size(at.sequences, at.sequences / 100), 2);
    const int steps = session.quick() ? 1 : std::max(3, 200'000 / at.sequences);
    RankedArray plain(running.count(), Running::kBlocks);
    running.open_all();
    running.vary();
    const auto after_step = [&] {
      Stopwatch watch;
      for (int i = 0; i < steps; ++i) {
        running.decode_all();
        watch.start();
        const auto victim = running.cache()->select_victim(at.policy);
        watch.stop();
        require(victim == running.first_by(at.policy), "the first by this policy");
      }
      return watch.nanoseconds() / steps;
    };
    const bool is_promised = at.policy == VictimPolicy::kLru && at.sequences <= 10'000;
    session.measure(
        {.name = "select_victim.after_step",
         .facts = {{"sequences", std::int64_t{running.count()}}, {"policy", at.name}},
         .promise = is_promised ? std::optional(Promise{1.0, 2.0}) : std::nullopt,
         .promise_is_ratio = is_promised,
         .note = "asked once after each decode step of all sequences: a look at each, and "
                 "whether its end would free a block; ties go to the lower id. Ceiling: a scan of "
                 "an array of as many ranks of 8 bytes"},
        after_step, [&] { return plain.scan(steps) / steps; });

    if (at.policy != VictimPolicy::kLru) continue;
    const int calls = session.quick() ? 4 : 20'000;
    Random random(71);
    bool any = true;
    for (int i = 0; i < 3; ++i) {
      any &= running.cache()->select_victim(VictimPolicy::kLru) == running.least_recent();
    }
    session.measure({.name = "select_victim.again",
                     .facts = {{"sequences", std::int64_t{running.count()}}},
                     .note = "the best case: one sequence changed its priority since the last "
                             "question"},
                    [&] {
                      Stopwatch watch;
                      watch.start();
                      for (int i = 0; i < calls; ++i) {
                        const auto which = static_cast<std::int32_t>(random.below(running.count()));
                        any &= running.cache()->set_priority(running.at(which), i).ok();
                        any &= running.cache()->select_victim(VictimPolicy::kLru).has_value();
                      }
                      watch.stop();
                      return watch.nanoseconds() / calls;
                    });
    require(any, "there is a victim");
    require(running.cache()->select_victim(VictimPolicy::kLru) == running.least_recent(),
            "priorities are none of its business");
  }
}

void measure_room(Session& session) {
  victims(session);
  preemption(session);
  selection(session);
}

}  // namespace

Family room_family() {
  return {{"evict.instructions", "evict.time", "preempt_to.half", "select_victim.after_step",
           "select_victim.again"},
          measure_room};
}

}  // namespace kvfolio::bench
