// SPDX-License-Identifier: Apache-2.0
#pragma once

// Traffic over an Offload beside an oracle of bytes: sequences of several tenants are opened,
// waited for, appended to, forked, cut, preempted and forgotten in any order, beside steps in
// flight. The clock stands, runs, jumps ahead and steps back.
//
// The oracle: a row of K or V is a hash of the type of its elements, of the root key, of how often
// its tenant, or what begins as it does, had been forgotten when the sequence was opened, of all
// tokens up to it, and of its place. So bytes of another tenant, of other tokens, from before a
// forget(), of a step that is not complete or of a late load show in the sequence that has them.
// Besides: who is pending becomes ready exactly once. For tests. Thread safety: none.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "kvfolio/offload.h"
#include "kvfolio/storage.h"
#include "offload/offload_test_cache.h"
#include "offload/test_token_rows.h"

namespace kvfolio::test {

inline std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtoull(value, nullptr, 0) : otherwise;
}

inline constexpr std::size_t kTrafficRoots = 4, kTrafficPrompts = 3;

// How often each root key was forgotten, what begins with the first token of each of its prompts,
// and what begins with the first unit. What is computed from then on is other than before.
struct TrafficVersions {
  std::array<std::uint32_t, kTrafficRoots> roots{};
  std::array<std::array<std::uint32_t, kTrafficPrompts>, kTrafficRoots> tokens{}, units{};
};

class Traffic {
 public:
  static constexpr std::size_t kRoots = kTrafficRoots, kPrompts = kTrafficPrompts;
  static constexpr std::size_t kUnit = 8;  // the smallest block of the specs of test_cache.h

  // `memory`: of the cache, and filled; null: of the process.
  Traffic(std::uint32_t seed, const CacheSpec& spec, const TrafficVersions& versions = {},
          MemoryResource* memory = nullptr)
      : random_(seed), spec_(spec), manager_(make_manager(memory)), versions_(versions) {
    for (std::size_t i = 0; i < kPrompts; ++i) {
      units_[i] = prompt_of(static_cast<int>(i), std::int32_t{kUnit});
    }
    EXPECT_TRUE(memory != nullptr || manager_.storage()->fill(std::byte{0xff}).ok());
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

 protected:
  struct Open {
    SequenceId id;
    std::size_t root = 0;
    std::uint32_t version = 0, unit_version = 0;
    std::vector<std::int32_t> tokens{};  // what it says, and what it means to say
    std::int32_t there = 0;              // tokens whose rows are written
    bool pending = false;
    bool unseen = false;
    bool in_step = false;
    std::int32_t end = 0;  // in_step
  };

  // Each takes a place in the same lot: this is what an engine does all day.
  void any_operation() {
    switch (random_() % 26) {
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
        return evict();
      default:
        return poll();
    }
  }

  [[nodiscard]] std::int32_t between(std::int32_t low, std::int32_t high) {
    return low + static_cast<std::int32_t>(random_() % static_cast<unsigned>(high - low + 1));
  }
  [[nodiscard]] bool chance(unsigned percent) { return random_() % 100 < percent; }
  [[nodiscard]] static const RootKey& root_key(std::size_t root) {
    static const std::array<RootKey, kRoots> keys = {
        RootKey{},
        {.tenant_salt = "a"},
        {.adapter = "a"},
        {.adapter = "a", .adapter_version = "2"},
    };
    return keys[root];
  }
  [[nodiscard]] std::ptrdiff_t num_pending() const {
    return std::count_if(open_.begin(), open_.end(), [](const Open& one) { return one.pending; });
  }

  // ---- sequences ----

  void open() {
    if (open_.size() > 7) return;
    Open one;
    one.root = chance(60) ? 0 : random_() % kRoots;
    const int prompt = between(0, kPrompts - 1);
    one.tokens = prompt_of(prompt, between(1, 90));
    if (chance(20)) {  // a path of its own behind a common beginning
      for (std::size_t i = 1 + random_() % 64; i < one.tokens.size(); ++i)
        one.tokens[i] = between(0, 2);
    }
    set_version(one);
    OpenOptions options{.root = root_key(one.root)};
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
    if (!length) return expect_copied(one, length.error());
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
  void close_all() {
    while (!open_.empty()) close();
  }
  void evict() {
    for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
      static_cast<void>(manager_.evict(GroupId(static_cast<std::int32_t>(g)), between(1, 60)));
    }
  }

  // Memory that copies later is at it: the sequence waits until that has ended.
  void expect_copied(const Open& one, const Status& why) {
    EXPECT_TRUE(one.pending && manager_.storage()->copies_later() &&
                why.code() == ErrorCode::kFailedPrecondition)
        << why;
  }

  // ---- steps: rows are written when the step ends, long after it was committed ----

  void begin_step() {
    if (flying_ || open_.empty()) return;
    const Ticket ticket = *manager_.begin_step();
    for (int i = between(1, 4); i > 0; --i) {
      Open& one = any_open();
      if (one.in_step) continue;
      if (one.pending && chance(50)) {
        if (const auto length = offload_->cancel(one.id)) {
          one.there = *length;
          one.pending = false;
        } else {
          expect_copied(one, length.error());
        }
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
    if (chance(jumps_percent_)) now_us_ += random_() % 2'000'000;
    if (chance(jumps_percent_) && chance(10)) now_us_ += 3'000'000'000;
    now_us_ += random_() % 400;
    if (flying_) ++polls_in_flight_;
    poll_at(now_us_ > 500 && chance(5) ? now_us_ - 500 : now_us_);
  }
  void poll_at(std::uint64_t now_us) {
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
  // The manager is told at times, which the Offload notices at its next call: then all goes.
  void forget() {
    ++forgotten_;
    const bool at_manager = chance(told_percent_);
    if (chance(15)) {
      static_cast<void>(at_manager ? manager_.reset() : offload_->reset());
      for (std::uint32_t& version : versions_.roots) ++version;
      return;
    }
    const std::size_t root = random_() % kRoots, prompt = random_() % kPrompts;
    const OpenOptions options{.root = root_key(root)};
    if (chance(40)) {
      const auto path = std::span<const std::int32_t>(units_[prompt]).first(1);
      EXPECT_TRUE(at_manager ? manager_.forget(path, options) : offload_->forget(path, options));
      ++versions_.tokens[root][prompt];
      // Who has no token yet, not even one that its prompt was found with, does not begin so, and
      // publishes what it computes from now on.
      for (Open& one : open_) {
        if (manager_.block_table(one.id, GroupId(0))->empty()) set_version(one);
      }
      return;
    }
    if (chance(40) && !flying_) {
      close_all();  // or some do not begin so yet
      const std::span<const std::int32_t> path = units_[prompt];
      EXPECT_TRUE(at_manager ? manager_.forget(path, options) : offload_->forget(path, options));
      ++versions_.units[root][prompt];
      return;
    }
    static_cast<void>(at_manager ? manager_.forget(options.root) : offload_->forget(options.root));
    ++versions_.roots[root];
  }

  // ---- the oracle ----

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
  // Requires: nothing is open, and all tiers have ended.
  void check_nothing_is_left() {
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
  }

  std::mt19937 random_;
  CacheSpec spec_;
  KVCacheManager manager_;
  std::unique_ptr<Offload> offload_;  // made by who derives from this
  std::deque<Open> open_;
  std::optional<Ticket> flying_;
  TrafficVersions versions_;
  std::uint64_t now_us_ = 1;
  unsigned jumps_percent_ = 10;  // of the polls find that the clock has jumped ahead
  unsigned told_percent_ = 30;   // of the times that something is forgotten it is the manager's
  std::uint64_t ready_ = 0, forgotten_ = 0, polls_in_flight_ = 0;

 private:
  [[nodiscard]] Open& any_open() { return open_[random_() % open_.size()]; }
  KVCacheManager make_manager(MemoryResource* memory) {
    ManagerOptions options{.max_sequences = 16};
    options.list_findable = true;
    if (chance(30)) options.max_transfers = 1;
    return *KVCacheManager::create(*KVStorage::create(spec_, memory), options);
  }
  // As of now.
  void set_version(Open& one) const {
    one.version = versions_.roots[one.root];
    one.unit_version = 0;
    if (one.tokens.empty()) return;
    for (std::size_t i = 0; i < kPrompts; ++i) {
      if (units_[i][0] != one.tokens[0]) continue;
      one.version += versions_.tokens[one.root][i];
      one.unit_version = versions_.units[one.root][i];
    }
  }
  [[nodiscard]] bool begins_with_a_unit(const Open& one) const {
    return one.tokens.size() >= kUnit && std::any_of(units_.begin(), units_.end(), [&](auto& unit) {
             return std::equal(unit.begin(), unit.end(), one.tokens.begin());
           });
  }
  static std::byte value(std::uint64_t hash, std::size_t i) {
    return static_cast<std::byte>((hash * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u) >> 29 &
                                  0x3f);
  }
  // visit(row, bytes, hash) for the rows of the tokens at [begin, end) that are in the tables.
  template <typename Visit>
  void for_each_row(const Open& one, std::int32_t begin, std::int32_t end, const Visit& visit) {
    constexpr std::uint64_t kPrime = 0x100000001b3u;
    const bool has_unit = begins_with_a_unit(one);
    for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
      const GroupId group(static_cast<std::int32_t>(g));
      const GroupSpec& spec = spec_.groups[g];
      const std::size_t row_bytes = static_cast<std::size_t>(spec.head_dim_k) *
                                    static_cast<std::size_t>(dtype_bytes(spec.dtype));
      const auto table = *manager_.block_table(one.id, group);
      std::uint64_t hash = 17 + g + 31 * one.root + 1009 * std::uint64_t{one.version} +
                           1'000'003 * static_cast<std::uint64_t>(spec.dtype);
      for (std::int32_t p = 0; p < end; ++p) {
        const auto token = static_cast<std::uint64_t>(one.tokens[static_cast<std::size_t>(p)]);
        hash = (hash ^ token) * kPrime;
        // What is shared with those that part before the end of the unit stays as it was.
        if (has_unit && p == std::int32_t{kUnit} - 1) hash = (hash ^ one.unit_version) * kPrime;
        if (p < begin) continue;
        const std::int32_t block = table[static_cast<std::size_t>(p / spec.block_size)];
        if (block < 0) continue;
        const std::int32_t at = p % spec.block_size;
        for (std::int32_t layer = 0; layer < spec.num_layers; ++layer) {
          const std::uint64_t part = hash + 2 * static_cast<std::uint64_t>(layer);
          const TokenRows rows = token_rows(*manager_.storage(), group, layer, block, at);
          visit(rows.k, row_bytes, part);
          visit(rows.v, row_bytes, part + 1);
        }
      }
    }
  }

  std::array<std::vector<std::int32_t>, kPrompts> units_;
  std::vector<std::pair<std::span<std::byte>, std::uint64_t>> unwritten_;  // of that step
};

}  // namespace kvfolio::test
