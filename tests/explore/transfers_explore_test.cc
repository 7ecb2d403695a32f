// SPDX-License-Identifier: Apache-2.0
//
// Loads and holds, exhaustively: every string of these operations up to a length, from several
// beginnings, on a manager of 6 blocks of 2 tokens and 2 sequences. A load writes rubbish to
// the blocks that it waits for until it is finished, whatever became of the sequence, so a
// block that is given away too early shows. A manager with an open load is not to be copied: each
// string is run from its beginning, and one that does nothing new ends there.
//
// KVFOLIO_EXPLORE_DEPTH: operations of a string behind its beginning (default 3).

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "api/engine.h"

namespace kvfolio::explore {
namespace {

using Tokens = std::vector<std::int32_t>;
constexpr std::int32_t kSize = 2;
constexpr std::int32_t kBlocks = 6;
constexpr std::int64_t kRubbish = -9;
const GroupId kGroup(0);
const std::array<Tokens, 2> kPrompts = {Tokens{0, 0, 0, 1, 1, 0}, Tokens{0, 0, 1}};

enum Op : int {
  kOpen0,
  kOpen1,
  kFeed0,
  kFeed1,
  kLaunch0,
  kComplete,
  kFail,
  kLoad0,
  kLoad1,
  kFinishAll,
  kFinishPart,
  kFinishNone,
  kClose0,
  kPreempt0,
  kTruncate0,
  kFork0,
  kForget,
  kReset,
  kHold0,
  kRelease,
  kEvict,
  kNumOps
};
constexpr std::array<const char*, kNumOps> kNames = {
    "open 0",     "open 1", "feed 0",     "feed 1",      "launch 0",    "complete", "fail",
    "load 0",     "load 1", "finish all", "finish part", "finish none", "close 0",  "preempt 0",
    "truncate 0", "fork 0", "forget",     "reset",       "hold 0",      "release",  "evict"};

class World {
 public:
  explicit World(Order order) : manager_(make(order)), bytes_(kBlocks * kSize, 0) {}

  // False: the operation is none here.
  bool apply(int op) {
    for (const Open& load : loads_) scribble(load);
    switch (op) {
      case kOpen0:
      case kOpen1:
        return open(op - kOpen0);
      case kFeed0:
      case kFeed1:
        return !flying_ && launch(op - kFeed0, 2) && complete();
      case kLaunch0:
        return !flying_ && launch(0, 1);
      case kComplete:
        return flying_ && complete();
      case kFail:
        return fail();
      case kLoad0:
      case kLoad1:
        return load(op - kLoad0);
      case kFinishAll:
      case kFinishPart:
      case kFinishNone:
        return finish(op);
      case kClose0:
      case kPreempt0:
        return end(op == kPreempt0);
      case kTruncate0:
        return truncate();
      case kFork0:
        return fork();
      case kForget:
        return forget();
      case kReset:
        static_cast<void>(manager_.reset());
        return true;
      case kHold0:
        return hold();
      case kRelease:
        return release();
      default:
        return *manager_.evict(kGroup, 1) > 0;
    }
  }

  // Empty, or the rule that is broken.
  [[nodiscard]] std::string check() const {
    const Status status = manager_.check_invariants();
    if (!status.ok()) return status.message();
    for (std::size_t i = 0; i < 2; ++i) {
      if (!ids_[i]) continue;
      const Tokens& tokens = tokens_[i];
      if (manager_.info(*ids_[i])->length != isize(tokens)) return "a length";
      const auto table = *manager_.block_table(*ids_[i], kGroup);
      for (std::int32_t p = 0; p < isize(tokens); ++p) {
        const std::int32_t slot = table[std::size_t(p / kSize)] * kSize + p % kSize;
        if (bytes_[std::size_t(slot)] != digest(tokens, p)) {
          return "sequence " + std::to_string(i) + " position " + std::to_string(p);
        }
      }
    }
    for (std::int32_t b = 0; b < kBlocks; ++b) {
      if (!*manager_.is_findable(kGroup, BlockId(b))) continue;
      const auto end = manager_.prefix_of(kGroup, BlockId(b), 0, {})->num_tokens;
      Tokens path(static_cast<std::size_t>(end));
      if (!manager_.prefix_of(kGroup, BlockId(b), 0, path)) return "prefix_of";
      for (std::int32_t p = (end - 1) / kSize * kSize; p < end; ++p) {
        if (at(b * kSize + p % kSize) != digest(path, p)) {
          return "block " + std::to_string(b) + " is findable and holds something else";
        }
      }
    }
    std::int32_t loading = 0;
    for (const Open& load : loads_) {
      for (const LoadBlock& each : load.blocks) {
        ++loading;
        if (*manager_.is_findable(kGroup, each.block) ||
            *manager_.ref_count(kGroup, each.block) != 1) {
          return "block " + std::to_string(each.block.value()) + " is not its load's alone";
        }
      }
    }
    if (manager_.usage(kGroup)->loading != loading) return "usage().loading";
    for (const Held& held : holds_) {
      for (std::size_t i = 0; i < held.slots.size(); ++i) {
        if (bytes_[std::size_t(held.slots[i])] != held.bytes[i]) return "a held block changed";
      }
    }
    return {};
  }

  // Ends everything. Empty, or what is left.
  std::string drain() {
    while (!loads_.empty()) finish(kFinishNone);
    while (!holds_.empty()) release();
    if (flying_) complete();
    for (std::optional<SequenceId>& id : ids_) {
      if (id && !manager_.close(*id).ok()) return "close";
      id.reset();
    }
    if (std::string broken = check(); !broken.empty()) return broken;
    static_cast<void>(manager_.evict(kGroup, kBlocks));
    return manager_.usage(kGroup)->free == kBlocks ? "" : "a block is lost";
  }

 private:
  struct Open {
    LoadId id;
    int who = -1;  // -1: its sequence is gone, or shorter
    std::int32_t begin = 0, end = 0;
    Tokens prompt{};
    std::vector<LoadBlock> blocks{};
  };
  struct Held {
    HoldId id;
    std::vector<std::int32_t> slots{};
    std::vector<std::int64_t> bytes{};
  };

  static KVCacheManager make(Order order) {
    ManagerOptions options;
    options.order = order;
    options.max_sequences = 2;
    options.max_steps_in_flight = 1;
    options.max_transfers = 2;
    options.max_index_tokens = 256;
    options.max_runs = 24;
    options.max_root_keys = 1;
    options.max_root_key_bytes = 256;
    options.max_media_extents = 1;
    options.max_table_entries = 256;
    return testing_engine::must(
        KVCacheManager::create(CacheSpec{{testing_engine::full_group(kSize, kBlocks)}}, options));
  }
  template <typename T>
  static std::int32_t isize(const T& list) {
    return static_cast<std::int32_t>(list.size());
  }
  [[nodiscard]] std::int64_t& at(std::int32_t slot) {
    return bytes_[static_cast<std::size_t>(slot)];
  }
  [[nodiscard]] std::int64_t at(std::int32_t slot) const {
    return bytes_[static_cast<std::size_t>(slot)];
  }
  // What a model would write at position p.
  static std::int64_t digest(const Tokens& tokens, std::int32_t p) {
    std::int64_t prefix = 1;
    for (std::int32_t i = 0; i <= p; ++i) prefix = prefix * 3 + tokens[std::size_t(i)] + 1;
    return prefix;
  }
  void scribble(const Open& load) {
    for (const LoadBlock& each : load.blocks) {
      for (std::int32_t i = 0; i < kSize; ++i) {
        at(each.block.value() * kSize + i) = kRubbish;
      }
    }
  }
  void leave_load(int who) {
    for (Open& load : loads_) load.who = load.who == who ? -1 : load.who;
  }

  bool open(int who) {
    const auto i = static_cast<std::size_t>(who);
    if (ids_[i]) return false;
    const auto opened = manager_.open(kPrompts[i]);
    if (!opened) return false;
    ids_[i] = opened->sequence;
    tokens_[i] = Tokens(kPrompts[i].begin(), kPrompts[i].begin() + opened->cached_tokens);
    prompts_[i] = kPrompts[i];
    return true;
  }
  bool launch(int who, std::int32_t most) {
    const auto i = static_cast<std::size_t>(who);
    const std::int32_t more = ids_[i] ? std::min(most, isize(prompts_[i]) - isize(tokens_[i])) : 0;
    if (more <= 0) return false;
    const Ticket ticket = *manager_.begin_step();
    const auto from = prompts_[i].begin() + isize(tokens_[i]);
    const Tokens appended(from, from + more);
    if (!manager_.append(*ids_[i], appended).ok()) {
      static_cast<void>(manager_.drop(ticket));
      return false;
    }
    const GroupPlan& plan = (*manager_.plan())->groups[0];
    written_.clear();
    for (std::size_t c = 0; c < plan.copy_src.size(); ++c) {
      for (std::int32_t off = 0; off < kSize; ++off) {
        const std::int32_t to = plan.copy_dst[c] * kSize + off;
        at(to) = at(plan.copy_src[c] * kSize + off);
        written_.push_back(to);
      }
    }
    for (std::int32_t k = 0; k < more; ++k) {
      tokens_[i].push_back(appended[std::size_t(k)]);
      const std::int32_t slot = plan.slot_mapping[std::size_t(k)];
      if (slot < 0) continue;
      bytes_[std::size_t(slot)] = digest(tokens_[i], isize(tokens_[i]) - 1);
      written_.push_back(slot);
    }
    EXPECT_TRUE(manager_.commit(ticket).ok());
    flying_ = ticket;
    return true;
  }
  bool complete() {
    EXPECT_TRUE(manager_.complete(*flying_).ok());
    flying_.reset();
    return true;
  }
  bool fail() {
    if (!flying_ || !manager_.fail(*flying_)) return false;
    flying_.reset();
    for (const std::int32_t slot : written_) bytes_[std::size_t(slot)] = kRubbish;
    for (int who = 0; who < 2; ++who) {
      const auto i = static_cast<std::size_t>(who);
      if (!ids_[i] || manager_.info(*ids_[i])) continue;
      ids_[i].reset();
      leave_load(who);
    }
    for (Held& held : holds_) held.slots.clear();  // what they hold may have been of the step
    return true;
  }
  bool load(int who) {
    const auto i = static_cast<std::size_t>(who);
    if (!ids_[i]) return false;
    const std::int32_t end = isize(prompts_[i]) - 1;
    if (end <= isize(tokens_[i])) return false;
    const auto begun = manager_.begin_load(*ids_[i], prompts_[i], end);
    if (!begun) return false;
    for (std::int32_t p = isize(tokens_[i]); p < begun->begin; ++p) {
      tokens_[i].push_back(prompts_[i][std::size_t(p)]);
    }
    if (!begun->id.valid()) return true;
    Open load{begun->id, who, begun->begin, begun->end, prompts_[i], {}};
    load.blocks.resize(kBlocks);
    load.blocks.resize(
        static_cast<std::size_t>(*manager_.blocks_to_load(begun->id, kGroup, load.blocks)));
    scribble(load);
    loads_.push_back(std::move(load));
    return true;
  }
  bool finish(int op) {
    if (loads_.empty()) return false;
    const Open load = loads_.front();
    const std::int32_t part = (load.begin / kSize + 1) * kSize - load.begin;
    const std::int32_t most = load.end - load.begin;
    if (op == kFinishPart && part >= most) return false;
    const std::int32_t n = op == kFinishAll ? most : op == kFinishPart ? part : 0;
    for (const auto& [logical, block] : load.blocks) {
      for (std::int32_t p = logical * kSize; p < (logical + 1) * kSize; ++p) {
        if (p >= load.begin + n) continue;
        at(block.value() * kSize + p % kSize) = digest(load.prompt, p);
      }
    }
    loads_.erase(loads_.begin());
    const std::int32_t stands = *manager_.finish_load(load.id, n);
    EXPECT_TRUE(stands <= n && (stands == 0 || load.who >= 0));
    for (std::int32_t p = load.begin; p < load.begin + stands; ++p) {
      tokens_[static_cast<std::size_t>(load.who)].push_back(load.prompt[std::size_t(p)]);
    }
    return true;
  }
  bool end(bool preempt) {
    if (!ids_[0]) return false;
    EXPECT_TRUE((preempt ? manager_.preempt(*ids_[0]) : manager_.close(*ids_[0])).ok());
    ids_[0].reset();
    leave_load(0);
    return true;
  }
  bool truncate() {
    if (!ids_[0] || isize(tokens_[0]) < 2 || !manager_.truncate(*ids_[0], 1).ok()) return false;
    tokens_[0].resize(1);
    leave_load(0);
    return true;
  }
  bool fork() {
    if (!ids_[0] || ids_[1]) return false;
    const auto child = manager_.fork(*ids_[0]);
    if (!child) return false;
    ids_[1] = *child;
    tokens_[1] = tokens_[0];
    prompts_[1] = prompts_[0];
    return true;
  }
  bool forget() {
    const Tokens path = {0, 0};
    EXPECT_TRUE(manager_.forget(path));
    EXPECT_LT(*manager_.probe(Tokens{0, 0, 0, 0}), 2);
    return true;
  }
  bool hold() {
    if (!ids_[0]) return false;
    const auto table = *manager_.block_table(*ids_[0], kGroup);
    const std::vector<std::int32_t> blocks(table.begin(), table.end());
    const auto id = manager_.hold_blocks(kGroup, blocks);
    if (blocks.empty() || !id) {
      if (id) static_cast<void>(manager_.release_hold(*id));
      return false;
    }
    Held held{*id, {}, {}};
    for (std::int32_t p = 0; p < isize(tokens_[0]); ++p) {
      held.slots.push_back(blocks[std::size_t(p / kSize)] * kSize + p % kSize);
      held.bytes.push_back(bytes_[std::size_t(held.slots.back())]);
    }
    holds_.push_back(std::move(held));
    return true;
  }
  bool release() {
    if (holds_.empty()) return false;
    EXPECT_TRUE(manager_.release_hold(holds_.front().id).ok());
    holds_.erase(holds_.begin());
    return true;
  }

  KVCacheManager manager_;
  std::vector<std::int64_t> bytes_;  // by slot
  std::array<std::optional<SequenceId>, 2> ids_;
  std::array<Tokens, 2> tokens_;  // that they have
  std::array<Tokens, 2> prompts_;
  std::vector<Open> loads_;  // the oldest first
  std::vector<Held> holds_;
  std::optional<Ticket> flying_;
  std::vector<std::int32_t> written_;  // slots of that step
};

class Transfers : public testing::TestWithParam<Order> {
 protected:
  // Runs the string; false: its last operation is none there.
  bool runs(const std::vector<int>& string) {
    World world(GetParam());
    for (const int op : string) {
      if (!world.apply(op)) return false;
    }
    std::string broken = world.check();
    if (broken.empty()) broken = world.drain();
    if (broken.empty() && !HasFailure()) return true;
    std::string text;
    for (const int op : string) text += std::string(", ") + kNames[std::size_t(op)];
    ADD_FAILURE() << broken << " after" << text.substr(std::min<std::size_t>(1, text.size()));
    return false;
  }
  void extend(std::vector<int>& string, int more) {
    if (more == 0) return;
    for (int op = 0; op < kNumOps && !HasFailure(); ++op) {
      string.push_back(op);
      if (runs(string)) {
        ++strings_;
        extend(string, more - 1);
      }
      string.pop_back();
    }
  }
  std::int64_t strings_ = 0;
};

TEST_P(Transfers, EveryStringOfOperationsKeepsEveryRule) {
  const char* depth = std::getenv("KVFOLIO_EXPLORE_DEPTH");
  const int more = depth == nullptr ? 3 : std::atoi(depth);
  const std::vector<std::vector<int>> beginnings = {
      {kOpen0},
      {kOpen0, kLoad0},
      {kOpen0, kFeed0, kLoad0},
      {kOpen0, kFeed0, kFeed0, kClose0, kOpen0},
      {kOpen0, kLoad0, kOpen1, kLoad1},
      {kOpen0, kFeed0, kFeed0, kHold0, kClose0},
  };
  for (std::vector<int> string : beginnings) extend(string, more);
  EXPECT_GT(strings_, 1000);
  RecordProperty("strings", std::to_string(strings_));
  std::printf("[transfers] %lld strings\n", static_cast<long long>(strings_));
}

INSTANTIATE_TEST_SUITE_P(BothOrders, Transfers, testing::Values(Order::kInOrder, Order::kUnordered),
                         [](const auto& order) {
                           return order.param == Order::kInOrder ? "InOrder" : "Unordered";
                         });

}  // namespace
}  // namespace kvfolio::explore
