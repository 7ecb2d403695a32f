// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inside of Offload. offload.cc opens, polls and ends; offload_forget.cc forgets;
// offload_store.cc copies what became findable; offload_request.cc follows a request from its
// question to the arena, offload_write.cc from there to the blocks; offload_tiers.cc speaks with
// the tiers. Thread safety: as Offload.

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "kvfolio/offload.h"
#include "kvfolio/record.h"
#include "offload/block_names.h"
#include "offload/digest_hash.h"

namespace kvfolio {

// A record of a block of the group.
inline std::int64_t record_bytes_of(KVCacheManager& manager, GroupId group) {
  return kRecordHeaderBytes + manager.storage()->block_image_bytes(group);
}

class Offload::Impl {
 public:
  Impl(KVCacheManager& manager, const OffloadOptions& options, Identity identity, HostArena arena);
  ~Impl();

  // ok, or why `call` cannot be answered.
  [[nodiscard]] Status check_there(const char* call) const {
    if (!alias_.has_ended()) return {};
    return {ErrorCode::kFailedPrecondition,
            text::concat("Offload::", call, ": the manager has ended")};
  }
  Result<OffloadOpened> open(std::span<const std::int32_t> tokens, const OpenOptions& options);
  std::span<const SequenceReady> poll(std::uint64_t now_us);
  Result<std::int32_t> cancel(SequenceId sequence);
  [[nodiscard]] OffloadLeft left() const noexcept;
  [[nodiscard]] bool idle() const noexcept {
    return requests_.empty() && ready_next_.empty() && !left().any();
  }
  OffloadLeft drain(std::uint64_t now_us);
  Forgotten forget(const RootKey& root);
  Result<Forgotten> forget(std::span<const std::int32_t> tokens, const OpenOptions& options);
  Forgotten reset();
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  [[nodiscard]] NameEpochs epochs() const;
  [[nodiscard]] const OffloadCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::size_t num_tiers() const noexcept { return tiers_.size(); }
  [[nodiscard]] const OffloadTierCounters& tier_counters(std::size_t tier) const noexcept {
    KVFOLIO_CHECK(tier < tiers_.size());
    return tiers_[tier].counters;
  }
  [[nodiscard]] const Tier& tier(std::size_t tier) const noexcept {
    KVFOLIO_CHECK(tier < tiers_.size());
    return *tiers_[tier].options.tier;
  }
  [[nodiscard]] const HostArena& arena() const noexcept { return *arena_; }
  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }
  [[nodiscard]] Status check_invariants() const;

 private:
  static constexpr std::size_t kTiersMax = 8;
  // A block of a prompt: which group, and where it stands in the prompt.
  struct Piece {
    GroupId group;
    std::int32_t logical = 0;
    TierKey key;
  };
  // Which tiers say that they have a record, and which ones failed to bring it: a bit for each.
  struct Verdict {
    std::uint8_t has = 0, failed = 0;
    [[nodiscard]] unsigned good() const noexcept { return has & ~unsigned{failed}; }
  };
  // A prompt that waits for records. Its life: kNew -> kAsking -> kLoading -> kReady -> kWriting.
  // If a tier fails to bring a record that another one has, it loads once more.
  struct Request {
    enum class State : std::uint8_t { kNew, kAsking, kLoading, kReady, kWriting };
    State state = State::kNew;
    SequenceId sequence{};
    std::vector<std::int32_t> tokens{};
    Digest root{};
    std::vector<Digest> hashes{};  // at the end of each unit; those before first_hash are not set
    std::int32_t first_hash = 0;   // units that the cache had at open()
    std::int32_t length = 0;       // of the sequence at open()
    bool polled = false;
    std::uint64_t deadline_us = 0;  // of the tiers, then of the copy; set at the first poll
    int rounds = 0;                 // of loading
    std::vector<Piece> pieces{};    // to ask for, or to load
    std::array<std::size_t, kTiersMax> asked{};  // how many of them, by tier
    std::size_t begun = 0;                       // how many of them came or are on their way
    std::int32_t waiting = 0;                    // answers, or records on their way
    bool failed = false;                         // a record that was promised did not come
    bool retry = false;                          // and a tier may have it yet
    LoadEnd why = LoadEnd::kNothing;
    std::unordered_map<TierKey, Verdict, TierKeyHash> where{};
    // kWriting
    Load load{};
    std::vector<std::pair<Piece, BlockId>> todo{};
    std::vector<ArenaPin> pins{};
    std::size_t done = 0;
    std::int32_t good = 0;  // the blocks are right up to here
  };
  // A record on its way from a tier to the arena, and who waits for it.
  struct Arriving {
    std::uint64_t tag = 0;  // of its op
    RecordInfo expected{};
    std::vector<std::uint64_t> waiters{};  // requests
  };
  // What a tier was asked to do. A load whose record is not in arriving_ any more is given up: its
  // slot is quarantined until the tier says that it does not touch it.
  struct Op {
    TierOp kind = TierOp::kExists;
    std::int32_t tier = 0;
    TierKey key{};
    std::uint64_t request = 0;  // kExists
    std::int64_t bytes = 0;     // kLoad, kStore
    ArenaSlot slot{};           // kLoad
    bool given_up = false;      // kLoad
    std::uint64_t since_us = 0;
    ArenaPin pin{};  // kStore
  };
  struct TierState {
    OffloadTier options;
    std::int64_t record_bytes_max = 0;
    bool usable = true;                            // since the poll began
    std::int64_t store_bytes = 0, load_bytes = 0;  // in flight
    std::int64_t num_in_flight = 0;                // of any kind
    std::deque<TierKey> backlog{};                 // to store when there is room
    OffloadTierCounters counters{};
  };
  enum class Begun : std::uint8_t { kYes, kLater, kNo };

  // ---- offload.cc ----
  void hash_prompt(Request& request, const OpenOptions& options, std::int32_t cached);
  void take_turn(std::uint64_t now_us, bool draining);
  void finish(std::uint64_t id, std::int32_t cached_tokens, LoadEnd why);
  void drop_request(std::uint64_t id);

  // ---- offload_forget.cc ----
  [[nodiscard]] std::uint64_t epoch_of(const RootKey& root) const;
  void take_epochs(std::span<const RootEpoch> roots);
  void notice_forgetting();
  void forget_names(const RootKey& root);
  void forget_all_names();
  void forget_in_flight(const Digest* root);

  // ---- offload_store.cc ----
  void store_findable(bool draining);
  [[nodiscard]] bool has_room_to_drain() const;
  bool store_block(const FindableBlock& block);
  bool read_block(const FindableBlock& block, RecordInfo info, std::span<std::byte> record);
  void arrived_otherwise(const TierKey& key);
  void store_to_tiers(const TierKey& key, std::int64_t bytes, bool second_use);
  void store_backlog();
  void count_dropped(TierState& tier) noexcept;
  Begun store_to(std::int32_t tier, const TierKey& key);
  [[nodiscard]] RecordInfo record_of(GroupId group, std::int32_t end, const TierKey& key) const;

  // ---- offload_request.cc ----
  void go_on(std::uint64_t id);
  void set_deadline(Request& request) const;
  [[nodiscard]] bool has_gone_on(const Request& request) const;
  // Has to be computed, so nothing is loaded beyond it.
  [[nodiscard]] static std::int32_t last_token(const Request& request) noexcept {
    return static_cast<std::int32_t>(request.tokens.size()) - 1;
  }
  // By group, whether each block of the prompt is at hand: in the arena, or in a tier that said so.
  void fill_has(const Request& request, bool with_tiers, std::int32_t limit);
  Result<Loadable> reach(const Request& request, bool with_tiers, std::int32_t limit);
  Result<Loadable> reach(const Request& request, bool with_tiers) {
    return reach(request, with_tiers, last_token(request));
  }
  void list_questions(Request& request);
  bool ask(std::uint64_t id, Request& request);
  [[nodiscard]] std::int64_t list_missing(Request& request);
  void choose(Request& request, bool late);
  bool bring(std::uint64_t id, Request& request);
  void stop_waiting(std::uint64_t id, Request& request);
  [[nodiscard]] bool has_hash(const Request& request, GroupId group, std::int32_t logical) const;
  // Requires: has_hash().
  [[nodiscard]] Piece piece_of(const Request& request, GroupId group, std::int32_t logical) const;
  [[nodiscard]] bool worth_loading(std::int64_t bytes, std::int32_t tokens) const;

  // ---- offload_write.cc ----
  void write_in_turn(std::uint64_t id, Request& request);
  void begin_writing(std::uint64_t id);
  void list_blocks(Request& request);
  void write(Request& request);
  void end_writing(std::uint64_t id);
  Result<std::span<const KVStorage::ImageRun>> runs_of(GroupId group, BlockId block);
  bool write_block(const Piece& piece, BlockId block, const ArenaPin& pin);

  // ---- offload_tiers.cc ----
  void look_at_tiers();
  void collect();
  void on_done(std::int32_t tier_index, const TierDone& done);
  void on_exists(const Op& op, TierResult result);
  void on_loaded(std::uint64_t tag, const Op& op, TierResult result);
  std::size_t submit(std::int32_t tier, TierOp kind, std::uint64_t deadline_us);
  void add_item(Op op, std::byte* data);
  Begun start_load(std::uint64_t id, Request& request, const Piece& piece, std::int32_t tier);
  [[nodiscard]] std::uint64_t store_deadline() const noexcept;
  // A moment of the clock, or its end.
  [[nodiscard]] static std::uint64_t later(std::uint64_t at_us, std::uint64_t by_us) noexcept {
    return at_us + std::min(by_us, ~at_us);
  }
  void give_up(const TierKey& key, std::uint64_t request);
  void give_up(std::unordered_map<TierKey, Arriving, TierKeyHash>::iterator place);
  [[nodiscard]] bool takes(const TierState& tier, std::int64_t bytes) const {
    return tier.usable && !exceeds_limit(tier, bytes);
  }
  [[nodiscard]] static bool exceeds_limit(const TierState& tier, std::int64_t bytes) noexcept {
    return tier.record_bytes_max > 0 && bytes > tier.record_bytes_max;
  }

  [[nodiscard]] TierState& tier_at(std::int32_t tier) {
    return tiers_[static_cast<std::size_t>(tier)];
  }
  [[nodiscard]] std::int64_t record_bytes(GroupId group) const {
    return record_bytes_of(manager_, group);
  }
  [[nodiscard]] std::int32_t block_size(GroupId group) const {
    return manager_.spec().groups[static_cast<std::size_t>(group.value())].block_size;
  }

  detail::ManagerAlias alias_;
  KVCacheManager& manager_ = alias_.manager();
  const OffloadOptions options_;  // its views are not used any more
  Identity identity_;
  std::int64_t largest_record_ = 0;
  std::unique_ptr<HostArena> arena_;
  std::vector<TierState> tiers_;
  std::size_t first_tier_ = 0;  // to collect from in this poll
  BlockNames names_;
  std::map<std::uint64_t, Request> requests_;  // in the order of open()
  std::uint64_t last_request_ = 0;
  std::uint64_t writer_ = 0;                   // the request in kWriting; 0: none
  std::unordered_map<std::uint64_t, Op> ops_;  // by tag
  std::uint64_t last_tag_ = 0;
  OffloadLeft in_flight_;  // of ops_
  std::unordered_map<TierKey, Arriving, TierKeyHash> arriving_;
  std::uint64_t epoch_ = 0;                                       // the newest
  std::uint64_t base_epoch_ = 0;                                  // of roots not in the map
  std::unordered_map<Digest, std::uint64_t, DigestHash> epochs_;  // by the hash under epoch 0
  std::uint64_t forgets_seen_ = 0;                                // of the manager
  std::uint64_t published_seen_ = 0;  // blocks of the manager, when the last poll ended
  std::vector<SequenceReady> ready_, ready_next_;
  OffloadCounters counters_;
  bool more_findable_ = true;
  // of one poll
  std::uint64_t now_us_ = 0;
  std::int64_t budget_ = 0;
  // scratch
  std::vector<std::vector<std::uint8_t>> has_;
  std::vector<std::span<std::uint8_t>> has_views_;
  std::vector<TierItem> items_;  // of the next submit(); each has its op
  std::vector<LoadBlock> blocks_;
  std::vector<KVStorage::ImageRun> runs_;
  std::vector<CopyRun> copies_;
};

}  // namespace kvfolio
