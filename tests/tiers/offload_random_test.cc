// SPDX-License-Identifier: Apache-2.0
//
// Offload as a whole against what tokens are. Sequences of several tenants are opened, waited for,
// appended to, forked, cut, preempted and forgotten in any order, beside steps in flight, over one
// to three tiers with faults of their own, a small pool and an arena of few records whose memory is
// damaged at times. The clock stands, runs, jumps ahead and steps back.
//
// The oracle: a row of K or V is a hash of the root key, of how often its tenant had been forgotten
// when the sequence was opened, of all tokens up to it, and of its place. So bytes of another
// tenant, of other tokens, from before a forget(), of a step that is not complete or of a late load
// show in the sequence that has them. Besides: who is pending becomes ready exactly once, and in
// the end nothing is pinned, quarantined, loading or held.
//
// KVFOLIO_SEED: the first seed (default 1). KVFOLIO_OPS: operations of all runs together (default
// 600,000). A failure names its seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kvfolio/offload.h"
#include "offload/test_cache.h"
#include "tiers/memory_tier.h"

namespace kvfolio {
namespace {

using test::MemoryTier;
using test::MemoryTierFaults;

std::uint64_t env(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtoull(value, nullptr, 0) : otherwise;
}

// Memory of an arena that can be damaged.
class FrailMemory final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kHost; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    auto memory = own_.allocate(bytes);
    if (memory) memory_ = {*memory, static_cast<std::size_t>(bytes)};
    return memory;
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    memory_ = {};
    own_.deallocate(memory, bytes);
  }
  void copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    own_.copy(dst, src, bytes);
  }
  void damage(std::uint64_t at) { memory_[at % memory_.size()] ^= std::byte{0x10}; }

 private:
  HostMemory own_;
  std::span<std::byte> memory_{};
};

constexpr std::int32_t kRoots = 4;
const RootKey kRootKeys[kRoots] = {
    {}, {.tenant_salt = "a"}, {.adapter = "a"}, {.adapter = "a", .adapter_version = "2"}};

struct Totals {
  OffloadCounters counters;
  std::uint64_t ready = 0, forgotten = 0, restarts = 0, in_flight = 0, damaged = 0;

  void add(const OffloadCounters& more) {
    counters.stores += more.stores;
    counters.loads += more.loads;
    counters.arena_corrupt += more.arena_corrupt;
    counters.tier_stores += more.tier_stores;
    counters.tier_loads += more.tier_loads;
    counters.tier_corrupt += more.tier_corrupt;
    counters.requests += more.requests;
    counters.requests_canceled += more.requests_canceled;
    counters.requests_timed_out += more.requests_timed_out;
    counters.unknown_completions += more.unknown_completions;
  }
};

class Storm {
 public:
  Storm(std::uint32_t seed, const CacheSpec& spec)
      : random_(seed), spec_(spec), manager_(make_manager()) {
    EXPECT_TRUE(manager_.storage()->fill(std::byte{0xff}).ok());
    for (std::size_t t = 1 + random_() % 3; t > 0; --t) {
      tiers_.push_back(
          std::make_unique<MemoryTier>(seed + 7 * static_cast<std::uint32_t>(t), any_faults()));
    }
    options_.model = test::toy_of(spec_);
    options_.arena_bytes = 1024 * between(4, 60);
    options_.bytes_per_poll = std::vector<std::int64_t>{1, 1500, 5000, 1 << 20}[random_() % 4];
    options_.timeout_us = std::vector<std::uint64_t>{1000, 10'000, 50'000}[random_() % 3];
    if (chance(30)) options_.load_bytes_per_s = 1e6;
    if (chance(60)) options_.prefill_tokens_per_s = 1e4;
    options_.resource = &memory_;
    create();
  }
  Storm(const Storm&) = delete;
  Storm& operator=(const Storm&) = delete;

  void step() {
    if (chance(2)) check_all();
    switch (random_() % 30) {
      case 0:
      case 1:
      case 2:
      case 3:
        return open();
      case 4:
      case 5:
      case 6:
        return begin_step();
      case 7:
      case 8:
      case 9:
        return end_step();
      case 10:
        return cancel();
      case 11:
      case 12:
        return close();
      case 13:
        return chance(50) ? fork() : truncate();
      case 14:
        if (chance(5)) return forget();
        if (chance(2)) return restart();
        return;
      case 15:
        evict();
        return;
      case 16:
        if (!chance(20)) return;
        memory_.damage(random_());
        ++damaged_;
        return;
      default:
        return poll();
    }
  }

  // What is pending becomes ready, then everything ends, and nothing is left.
  void end(Totals& totals) {
    end_step();
    check_all();
    for (int i = 0; i < 3000 && num_pending() > 0; ++i) poll();
    EXPECT_EQ(num_pending(), 0) << "never ready";
    while (!open_.empty()) close();
    for (int i = 0; i < 300 && offload_->drain(now_us_).any(); ++i) now_us_ += 100;
    for (const auto& tier : tiers_) static_cast<void>(tier->close({now_us_}));
    for (int i = 0; i < 3000 && !offload_->idle(); ++i) poll();
    EXPECT_TRUE(offload_->idle());
    const ArenaStats arena = offload_->arena();
    EXPECT_EQ(arena.pins, 0);
    EXPECT_EQ(arena.writing, 0);
    EXPECT_EQ(arena.quarantined, 0);
    for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
      const GroupUsage usage = *manager_.usage(GroupId(static_cast<std::int32_t>(g)));
      EXPECT_EQ(usage.held + usage.loading + usage.on_hold + usage.retiring, 0);
    }
    check_rules();
    totals.add(offload_->counters());
    offload_.reset();
    for (const auto& tier : tiers_) EXPECT_EQ(tier->in_flight(), 0u);
    totals.ready += ready_;
    totals.forgotten += forgotten_;
    totals.restarts += restarts_;
    totals.in_flight += polls_in_flight_;
    totals.damaged += damaged_;
    totals.add(before_restarts_);
  }

 private:
  struct Open {
    SequenceId id;
    std::int32_t root = 0;
    std::uint32_t version = 0;
    std::vector<std::int32_t> tokens{};  // what it says, and what it means to say
    std::int32_t there = 0;              // tokens whose rows are written
    bool pending = false;
    bool unseen = false;
    bool in_step = false;
    std::int32_t end = 0;  // in_step
  };

  [[nodiscard]] std::int32_t between(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<unsigned>(high - low + 1));
  }
  [[nodiscard]] bool chance(unsigned percent) { return random_() % 100 < percent; }
  [[nodiscard]] Open& any_open() { return open_[random_() % open_.size()]; }
  [[nodiscard]] std::ptrdiff_t num_pending() const {
    return std::count_if(open_.begin(), open_.end(), [](const Open& one) { return one.pending; });
  }

  KVCacheManager make_manager() {
    ManagerOptions options{.max_sequences = 16};
    options.list_findable = true;
    if (chance(30)) options.max_transfers = 1;
    return *KVCacheManager::create(*KVStorage::create(spec_), options);
  }
  // Each tier has a few kinds of faults, or none.
  MemoryTierFaults any_faults() {
    MemoryTierFaults faults;
    unsigned* const all[] = {&faults.late,   &faults.partial, &faults.corrupt,  &faults.other,
                             &faults.lie,    &faults.miss,    &faults.io_error, &faults.twice,
                             &faults.silent, &faults.busy};
    for (unsigned* each : all) *each = chance(25) ? static_cast<unsigned>(random_() % 120) : 0;
    faults.silent /= 40;
    if (chance(30)) faults.late = 900;
    return faults;
  }
  void create() {
    std::vector<OffloadTier> tiers;
    for (const auto& tier : tiers_) {
      OffloadTier& one = tiers.emplace_back();
      one.tier = tier.get();
      one.policy = static_cast<WritePolicy>(chance(10) ? 0 : between(1, 2));
      if (chance(20)) one.store_bytes_max = 2000;
      if (chance(20)) one.load_bytes_max = 3000;
    }
    options_.tiers = tiers;
    auto made = Offload::create(manager_, options_);
    ASSERT_TRUE(made) << made.error();
    offload_ = *std::move(made);
  }

  // ---- sequences ----

  void open() {
    if (open_.size() > 7) return;
    Open one;
    one.root = chance(60) ? 0 : between(0, kRoots - 1);
    one.tokens = test::prompt_of(between(0, 2), between(1, 90));
    if (chance(20)) {  // a path of its own behind a common beginning
      for (std::size_t i = 1 + random_() % 64; i < one.tokens.size(); ++i)
        one.tokens[i] = between(0, 2);
    }
    one.version = version_of(one.root, one.tokens[0]);
    OpenOptions options{.root = kRootKeys[one.root]};
    if (chance(5)) options.look_up = false;
    if (chance(5)) options.publish = Publish::kFullBlocks;
    const auto opened = offload_->open(one.tokens, options);
    ASSERT_TRUE(opened) << opened.error();
    one.id = opened->sequence;
    one.pending = opened->pending;
    one.there = opened->cached_tokens;
    open_.push_back(std::move(one));
    if (!flying_) check(open_.back());
  }
  void fork() {
    if (open_.empty() || open_.size() > 9) return;
    const Open& parent = any_open();
    if (parent.in_step || parent.pending) return;
    const auto child = manager_.fork(parent.id);
    if (!child) return;
    Open one = parent;
    one.id = *child;
    one.tokens.resize(static_cast<std::size_t>(one.there));
    for (std::int32_t i = between(0, 20); i > 0; --i) one.tokens.push_back(between(0, 2));
    open_.push_back(std::move(one));
  }
  void truncate() {
    if (open_.empty()) return;
    Open& one = any_open();
    if (one.in_step || one.pending || one.there == 0) return;
    if (one.unseen) one.there = *offload_->cancel(one.id);  // as before, so it would wait again
    one.unseen = false;
    const std::int32_t length = between(1, one.there);
    if (!manager_.truncate(one.id, length).ok()) return;
    one.there = length;
    if (chance(50)) one.tokens.resize(static_cast<std::size_t>(length));
    for (std::int32_t i = between(0, 9); i > 0; --i) one.tokens.push_back(between(0, 50'000));
  }
  void cancel() {
    if (open_.empty()) return;
    Open& one = any_open();
    const auto length = offload_->cancel(one.id);
    ASSERT_TRUE(length) << length.error();
    if (one.pending) one.there = *length;
    one.pending = false;
    if (!flying_) check(one);
  }
  void close() {
    if (open_.empty()) return;
    const std::size_t i = random_() % open_.size();
    if (open_[i].in_step) return;
    EXPECT_TRUE((chance(70) ? manager_.close(open_[i].id) : manager_.preempt(open_[i].id)).ok());
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void evict() {
    for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
      static_cast<void>(manager_.evict(GroupId(static_cast<std::int32_t>(g)), between(1, 60)));
    }
  }

  // ---- steps: rows are written when the step ends, long after it was committed ----

  void begin_step() {
    if (flying_ || open_.empty()) return;
    const Ticket ticket = *manager_.begin_step();
    for (int i = between(1, 4); i > 0; --i) {
      Open& one = any_open();
      if (one.in_step) continue;
      if (one.pending && chance(50)) {
        one.there = *offload_->cancel(one.id);
        one.pending = false;
      }
      if (one.pending) one.there = manager_.info(one.id)->length;
      const std::int32_t more =
          std::min(between(1, 40), static_cast<std::int32_t>(one.tokens.size()) - one.there);
      if (more <= 0) continue;
      const auto begin = one.tokens.begin() + one.there;
      const Status status =
          manager_.append(one.id, std::span<const std::int32_t>(begin, begin + more));
      if (!status.ok()) {
        EXPECT_TRUE(status.code() == ErrorCode::kNoBlocks ||
                    (one.pending && status.code() == ErrorCode::kFailedPrecondition))
            << status;
        continue;
      }
      one.in_step = true;
      one.end = one.there + more;
    }
    ASSERT_TRUE(manager_.plan());
    ASSERT_TRUE(manager_.run_copies().ok());
    if (chance(5)) {
      ASSERT_TRUE(manager_.drop(ticket).ok());
      for (Open& one : open_) one.in_step = false;
      return;
    }
    // Now: a window that moves at the commit lets go of blocks that the step still writes.
    unwritten_.clear();
    for (Open& one : open_) {
      if (!one.in_step) continue;
      one.unseen = one.pending;  // it went on, which poll() will see
      one.pending = false;
      for_each_row(one, one.there, one.end,
                   [&](std::byte* row, std::size_t bytes, std::uint64_t h) {
                     unwritten_.push_back({{row, bytes}, h});
                   });
    }
    ASSERT_TRUE(manager_.commit(ticket).ok());
    flying_ = ticket;
  }
  void end_step() {
    if (!flying_) return;
    for (const auto& [row, hash] : unwritten_) {
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = value(hash, i);
    }
    for (Open& one : open_) {
      if (one.in_step) one.there = one.end;
      one.in_step = false;
    }
    ASSERT_TRUE(manager_.complete(*flying_).ok());
    flying_.reset();
  }

  // ---- the rest ----

  void poll() {
    if (chance(10)) now_us_ += random_() % 2'000'000;
    if (chance(1)) now_us_ += 3'000'000'000;
    now_us_ += random_() % 400;
    if (flying_) ++polls_in_flight_;
    const std::uint64_t now_us = now_us_ > 500 && chance(5) ? now_us_ - 500 : now_us_;
    const auto all_ready = offload_->poll(now_us);
    for (Open& one : open_) one.unseen = false;
    for (const SequenceReady& ready : all_ready) {
      const auto found = std::find_if(open_.begin(), open_.end(),
                                      [&](const Open& one) { return one.id == ready.sequence; });
      ASSERT_NE(found, open_.end()) << "ready and closed";
      EXPECT_TRUE(found->pending) << "ready, and not pending";
      EXPECT_EQ(manager_.info(found->id)->length, ready.cached_tokens);
      found->pending = false;
      found->there = ready.cached_tokens;
      ++ready_;
      if (!flying_) check(*found);
    }
  }
  // What is computed from now on is other than before.
  void forget() {
    ++forgotten_;
    const bool at_manager = chance(30);  // which Offload notices at its next call
    if (chance(15)) {
      static_cast<void>(at_manager ? manager_.reset() : offload_->reset());
      for (std::uint32_t& version : versions_) ++version;
      return;
    }
    const std::int32_t root = between(0, kRoots - 1);
    const OpenOptions options{.root = kRootKeys[root]};
    if (chance(40)) {
      const std::int32_t first = test::prompt_of(between(0, 2), 1)[0];
      const std::span<const std::int32_t> path(&first, 1);
      EXPECT_TRUE(at_manager ? manager_.forget(path, options) : offload_->forget(path, options));
      ++versions_below_[{root, first}];
      // Who has no token yet, not even one that its prompt was found with, does not begin so, and
      // publishes what it computes from now on.
      for (Open& one : open_) {
        const bool has_none = manager_.block_table(one.id, GroupId(0))->empty();
        if (has_none && !one.tokens.empty()) one.version = version_of(one.root, one.tokens[0]);
      }
      return;
    }
    static_cast<void>(at_manager ? manager_.forget(options.root) : offload_->forget(options.root));
    ++versions_[root];
  }
  // How often what begins so was forgotten.
  [[nodiscard]] std::uint32_t version_of(std::int32_t root, std::int32_t first) const {
    const auto below = versions_below_.find({root, first});
    return versions_[root] + (below == versions_below_.end() ? 0 : below->second);
  }
  // Another process goes on with what the tiers have. Its cache is this one.
  void restart() {
    ++restarts_;
    options_.epoch = offload_->epoch();
    Totals sum;
    sum.add(before_restarts_);
    sum.add(offload_->counters());
    before_restarts_ = sum.counters;
    for (const auto& tier : tiers_) static_cast<void>(tier->close({now_us_}));
    for (int i = 0; i < 100; ++i) poll();
    offload_.reset();
    for (Open& one : open_) {
      if (one.pending) one.there = manager_.info(one.id)->length;
      one.pending = false;
    }
    for (auto& tier : tiers_) {
      EXPECT_EQ(tier->in_flight(), 0u);
      auto next = std::make_unique<MemoryTier>(static_cast<std::uint32_t>(random_()), any_faults());
      next->records = std::move(tier->records);
      tier = std::move(next);
    }
    create();
  }

  // ---- the oracle ----

  static std::byte value(std::uint64_t hash, std::size_t i) {
    return static_cast<std::byte>((hash * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u) >> 29 &
                                  0x3f);
  }
  // visit(row, bytes, hash) for the rows of the tokens at [begin, end) that are in the tables.
  template <typename Visit>
  void for_each_row(const Open& one, std::int32_t begin, std::int32_t end, const Visit& visit) {
    for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
      const GroupId group(static_cast<std::int32_t>(g));
      const std::int32_t size = spec_.groups[g].block_size;
      const auto table = *manager_.block_table(one.id, group);
      const KVView view = *manager_.storage()->view(group);
      std::uint64_t hash = 17 + g + 31 * static_cast<std::uint64_t>(one.root) +
                           1009 * static_cast<std::uint64_t>(one.version);
      for (std::int32_t p = 0; p < end; ++p) {
        const auto token = static_cast<std::uint64_t>(one.tokens[static_cast<std::size_t>(p)]);
        hash = (hash ^ token) * 0x100000001b3u;
        if (p < begin) continue;
        const std::int32_t block = table[static_cast<std::size_t>(p / size)];
        if (block < 0) continue;
        for (std::int32_t layer = 0; layer < spec_.groups[g].num_layers; ++layer) {
          const std::uint64_t at = 2 * static_cast<std::uint64_t>(layer);
          visit(view.k_at(layer, block, 0, p % size), std::size_t{16}, hash + at);
          visit(view.v_at(layer, block, 0, p % size), std::size_t{16}, hash + at + 1);
        }
      }
    }
  }
  // Requires: no step is in flight.
  void check(const Open& one) {
    std::uint64_t wrong = 0;
    for_each_row(one, 0, one.there, [&](const std::byte* row, std::size_t bytes, std::uint64_t h) {
      for (std::size_t i = 0; i < bytes; ++i) wrong += row[i] == value(h, i) ? 0 : 1;
    });
    EXPECT_EQ(wrong, 0u) << "bytes of " << to_string(one.id) << ", root " << one.root
                         << ", version " << one.version << ", " << one.there << " tokens";
  }
  void check_all() {
    check_rules();
    if (flying_) return;
    for (const Open& one : open_) {
      if (!one.pending) {
        EXPECT_EQ(manager_.info(one.id)->length, one.there);
      }
      check(one);
    }
  }
  void check_rules() {
    const Status manager = manager_.check_invariants();
    EXPECT_TRUE(manager.ok()) << manager;
    const Status offload = offload_->check_invariants();
    EXPECT_TRUE(offload.ok()) << offload;
  }

  std::mt19937 random_;
  CacheSpec spec_;
  FrailMemory memory_;
  KVCacheManager manager_;
  std::vector<std::unique_ptr<MemoryTier>> tiers_;
  OffloadOptions options_;
  std::unique_ptr<Offload> offload_;
  std::deque<Open> open_;
  std::optional<Ticket> flying_;
  std::vector<std::pair<std::span<std::byte>, std::uint64_t>> unwritten_;  // of that step
  std::uint32_t versions_[kRoots] = {};
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint32_t> versions_below_;  // by first token
  std::uint64_t now_us_ = 1;
  OffloadCounters before_restarts_;
  std::uint64_t ready_ = 0, forgotten_ = 0, restarts_ = 0, polls_in_flight_ = 0, damaged_ = 0;
};

TEST(OffloadRandom, EveryRowIsItsTokensWhateverTiersDo) {
  const auto first = static_cast<std::uint32_t>(env("KVFOLIO_SEED", 1));
  const std::uint64_t operations = env("KVFOLIO_OPS", 600'000);
  constexpr std::uint64_t kOpsPerRun = 3000;
  const CacheSpec specs[] = {test::full(24), test::window(40), test::mixed(14, 40)};
  Totals totals;
  std::uint32_t seed = first;
  for (std::uint64_t left = operations; left > 0; ++seed) {
    SCOPED_TRACE(testing::Message() << "KVFOLIO_SEED=" << seed << " KVFOLIO_OPS=" << kOpsPerRun);
    Storm run(seed, specs[seed % 3]);
    for (std::uint64_t op = 0; op < kOpsPerRun && !HasFailure(); ++op) run.step();
    if (HasFailure()) return;
    run.end(totals);
    if (HasFailure()) return;
    left -= std::min(left, kOpsPerRun);
  }
  const OffloadCounters& c = totals.counters;
  std::printf(
      "[offload] seeds %u to %u: %llu requests, %llu ready, %llu loads, %llu from tiers, "
      "%llu records damaged there and %llu in the arena, %llu late, %llu cancelled, "
      "%llu stores, %llu to tiers, %llu forgets, %llu restarts, %llu polls in a step\n",
      first, seed - 1, static_cast<unsigned long long>(c.requests),
      static_cast<unsigned long long>(totals.ready), static_cast<unsigned long long>(c.loads),
      static_cast<unsigned long long>(c.tier_loads),
      static_cast<unsigned long long>(c.tier_corrupt),
      static_cast<unsigned long long>(c.arena_corrupt),
      static_cast<unsigned long long>(c.requests_timed_out),
      static_cast<unsigned long long>(c.requests_canceled),
      static_cast<unsigned long long>(c.stores), static_cast<unsigned long long>(c.tier_stores),
      static_cast<unsigned long long>(totals.forgotten),
      static_cast<unsigned long long>(totals.restarts),
      static_cast<unsigned long long>(totals.in_flight));
  if (operations < 600'000) return;
  EXPECT_GT(c.loads, 300u);
  EXPECT_GT(c.tier_loads, 100u);
  EXPECT_GT(c.tier_corrupt, 10u);
  EXPECT_GT(c.arena_corrupt, 0u);
  EXPECT_GT(c.requests_timed_out, 10u);
  EXPECT_GT(totals.forgotten, 30u);
  EXPECT_GT(totals.restarts, 3u);
}

}  // namespace
}  // namespace kvfolio
