// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inside of Offload: what connects requests (requests.h) with the manager, the arena and the
// tiers. offload.cc opens, polls and ends; offload_forget.cc forgets; offload_store.cc copies what
// became findable; offload_request.cc follows a request from its question to the arena,
// offload_write.cc from there to the blocks; offload_tiers.cc speaks with the tiers. Thread safety:
// as Offload.

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/text.h"
#include "kvfolio/offload.h"
#include "kvfolio/record.h"
#include "kvfolio/storage.h"
#include "offload/block_names.h"
#include "offload/epochs.h"
#include "offload/forgotten_roots.h"
#include "offload/held_stores.h"
#include "offload/loaded_keys.h"
#include "offload/ops.h"
#include "offload/requests.h"
#include "offload/steps.h"
#include "offload/tier_port.h"
#include "tiers/process.h"

namespace kvfolio {

// A record of a block of the group.
inline std::int64_t record_bytes_of(KVCacheManager& manager, GroupId group) {
  return kRecordHeaderBytes + manager.storage()->block_image_bytes(group);
}

inline void count_latency(OffloadTierCounters::Latencies& counts, std::uint64_t us) {
  const auto& ends = OffloadTierCounters::kLatencyUs;
  ++counts[static_cast<std::size_t>(std::lower_bound(ends.begin(), ends.end(), us) - ends.begin())];
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
    return requests_.empty() && ready_next_.empty() && forgotten_.empty() && !left().any();
  }
  [[nodiscard]] std::size_t num_pending() const noexcept {
    return requests_.size() + ready_next_.size();
  }
  OffloadLeft drain(std::uint64_t now_us);
  void release_stores();
  Forgotten forget(const RootKey& root);
  Result<Forgotten> forget(std::span<const std::int32_t> tokens, const OpenOptions& options);
  Forgotten reset();
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  [[nodiscard]] NameEpochs epochs() const;
  [[nodiscard]] const OffloadCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] std::size_t num_tiers() const noexcept { return ports_.size(); }
  [[nodiscard]] const OffloadTierCounters& tier_counters(std::size_t tier) const noexcept {
    KVFOLIO_CHECK(tier < ports_.size());
    return ports_[tier].counters();
  }
  [[nodiscard]] const Tier& tier(std::size_t tier) const noexcept {
    KVFOLIO_CHECK(tier < ports_.size());
    return ports_[tier].tier();
  }
  [[nodiscard]] const HostArena& arena() const noexcept { return *arena_; }
  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }
  [[nodiscard]] Status check_invariants() const;

 private:
  using Piece = Request::Piece;
  using Verdict = Request::Verdict;
  using Arriving = Requests::Arriving;
  using Op = TierAsked;
  enum class Begun : std::uint8_t { kYes, kLater, kNo };
  enum class Written : std::uint8_t { kYes, kLater, kNotNow, kDamaged, kFailed };
  // A block on its way to the arena, in memory that copies later. The hold keeps it as it is.
  struct Storing {
    CopyTicket ticket{};
    HoldId hold{};
    ArenaSlot slot{};
    std::span<std::byte> record{};
    RecordInfo info{};
    bool is_forgotten = false;
  };

  // ---- offload.cc ----
  void skip_known(Request& request);
  void take_turn(std::uint64_t now_us, bool draining);
  void finish(Request& request, std::int32_t cached_tokens, LoadEnd why);
  void drop_request(Request& request);
  [[nodiscard]] Status check_ports() const;

  // ---- offload_forget.cc ----
  void notice_forgetting();
  void forget_names(const RootKey& root);
  void forget_names(std::span<const std::int32_t> tokens, const OpenOptions& options);
  void forget_all_names();
  void forgot_all();
  void end_requests(const Digest* root, std::span<const std::int32_t> prefix);
  void give_up_arriving(const Digest* root);
  void erase_forgotten();

  // ---- offload_store.cc ----
  void store_findable(bool draining);
  [[nodiscard]] bool has_room_to_drain() const;
  bool store_unnamed(bool draining);
  [[nodiscard]] Status check_stores() const;
  Begun store_block(const FindableBlock& block, const BlockNames::Name& name);
  bool read_block(const FindableBlock& block, RecordInfo info, std::span<std::byte> record);
  void arrived_otherwise(const TierKey& key);
  void store_to_tiers(const TierKey& key, std::int64_t bytes, bool second_use);
  void store_backlog();
  void store_backlog(std::int32_t tier);
  void count_dropped(TierPort& port) noexcept;
  Begun store_to(std::int32_t tier, const TierPort::Waiting& one);
  void watch_stores();
  void on_stored(std::uint64_t tag, Op op, TierResult result);
  bool goes_again(TierPort& port, Op& op, TierResult result);
  [[nodiscard]] RecordInfo record_of(GroupId group, std::int32_t end, const TierKey& key) const;

  // ---- offload_request.cc ----
  // These return false where the steps of the call end before: they go on in the next one.
  void go_on(Request& request);
  [[nodiscard]] std::uint64_t time_of(std::int64_t bytes) const noexcept;
  void give_load_time(Request& request) const;
  void earn_time(Request& request, std::int64_t bytes) const;
  [[nodiscard]] bool has_gone_on(const Request& request) const;
  bool look_for_blocks(Request& request, bool with_tiers, std::int32_t limit);
  // How far what was looked for reaches.
  Result<Loadable> reach(Request& request, std::int32_t limit);
  bool list_questions(Request& request);
  bool ask(Request& request);
  bool hold_or_list(Request& request);
  bool choose(Request& request);
  bool bring(Request& request);
  void stop_waiting(Request& request, bool is_late);
  void turn_to_others(Request& request);
  void note_silent_tiers(const Request& request);
  [[nodiscard]] bool worth_loading(std::int64_t bytes, std::int32_t tokens) const;
  bool take_from_younger(const Request& request);

  // ---- offload_write.cc ----
  void write_in_turn(Request& request);
  void begin_writing(Request& request);
  [[nodiscard]] bool has_block_to_write(Request& request);
  void write(Request& request);
  bool write_next(Request& request);
  void end_writing(Request& request);
  void note_loaded(const TierKey& key);
  void note_damaged(Request& request, const Piece& piece);
  Result<std::span<const KVStorage::ImageRun>> runs_of(GroupId group, BlockId block);
  Written write_block(Request& request, const Piece& piece, BlockId block, ArenaPin& pin);

  // ---- offload_later.cc ----
  Begun begin_store(const FindableBlock& block, const RecordInfo& info, ArenaSlot slot);
  void end_stores();
  void end_store(const Storing& one, bool arrived);
  void forget_stores(const Digest* root);
  void forget_store(const TierKey& key);
  [[nodiscard]] bool has_room_to_store() const;
  // Asks what is copied for the request whether it has ended. True: nothing is on its way.
  bool end_copies(Request& request);
  [[nodiscard]] static bool is_right(std::span<const std::byte> record, const TierKey& key);
  std::optional<std::pair<TierKey, std::int64_t>> leave_copies();
  [[nodiscard]] Result<bool> is_over(CopyTicket ticket) const;

  // ---- what one call may do ----
  static constexpr std::int64_t kAnswersPerPoll = 4096;  // of each tier

  // ---- offload_tiers.cc ----
  void look_at_tiers();
  void leave_to_parent();
  void collect();
  void probe_tiers();
  void probe(std::int32_t tier, TierOp kind);
  void on_probed(std::uint64_t tag, const Op& op, TierResult result);
  void on_done(std::int32_t tier_index, const TierDone& done);
  void on_exists(const Op& op, TierResult result);
  void on_loaded(std::uint64_t tag, const Op& op, TierResult result);
  std::size_t submit(std::int32_t tier, TierOp kind, std::uint64_t deadline_us);
  void add_item(Op op, std::byte* data);
  Begun start_load(Request& request, const Piece& piece, std::int32_t tier);
  [[nodiscard]] bool has_failed(Request& request, const Arriving& arriving) const;
  std::vector<Requests::Id> take_waiters(const Piece& piece);
  void deliver(const Arriving& arriving, TierResult result, bool right, std::int32_t tier);
  [[nodiscard]] std::uint64_t store_deadline() const noexcept;
  // A moment of the clock, or its end.
  [[nodiscard]] static std::uint64_t later(std::uint64_t at_us, std::uint64_t by_us) noexcept {
    return at_us + std::min(by_us, ~at_us);
  }
  // `is_late`: the tier had its time.
  void give_up(Request& request, const TierKey& key, bool is_late);
  void give_up(const Arriving& gone, bool is_late);
  void give_up_all();

  [[nodiscard]] TierPort& port(std::int32_t tier) { return ports_[static_cast<std::size_t>(tier)]; }
  [[nodiscard]] std::int64_t record_bytes(GroupId group) const {
    return record_bytes_of(manager_, group);
  }
  [[nodiscard]] std::int32_t block_size(GroupId group) const { return requests_.block_size(group); }
  [[nodiscard]] std::int32_t num_ports() const noexcept {
    return static_cast<std::int32_t>(ports_.size());
  }

  Process process_;
  detail::ManagerAlias alias_;
  KVCacheManager& manager_ = alias_.manager();
  const OffloadOptions options_;  // its views are not used any more
  Identity identity_;
  std::int64_t largest_record_ = 0;
  std::unique_ptr<HostArena> arena_;
  std::deque<TierPort> ports_;  // they do not move
  std::size_t first_tier_ = 0;  // to collect from in this poll
  BlockNames names_;
  Ops ops_;
  Epochs epochs_;
  Requests requests_;
  ForgottenRoots forgotten_;
  std::uint64_t forgets_seen_ = 0;    // of the manager
  std::uint64_t published_seen_ = 0;  // blocks of the manager, when the last poll ended
  std::vector<SequenceReady> ready_, ready_next_;
  OffloadCounters counters_;
  bool more_findable_ = true;
  std::deque<FindableBlock> unnamed_;  // taken from the list, not stored yet
  HeldStores held_;                    // the same, until release_stores()
  std::vector<Storing> storing_;
  LoadedKeys loaded_;
  // of one poll
  std::uint64_t now_us_ = 0;
  std::int64_t budget_ = 0;
  Steps steps_{counters_.steps_max};
  // scratch
  std::vector<std::span<std::uint8_t>> has_views_;
  std::vector<TierItem> items_;  // of the next submit(); each has its op
  std::vector<KVStorage::ImageRun> runs_;
  std::vector<CopyRun> copies_;
};

}  // namespace kvfolio
