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
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/text.h"
#include "kvfolio/offload.h"
#include "kvfolio/record.h"
#include "offload/block_names.h"
#include "offload/epochs.h"
#include "offload/forgotten_roots.h"
#include "offload/held_records.h"
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
  OffloadLeft drain(std::uint64_t now_us);
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
  // Where a walk over the blocks of a part stands: the next one, by group. It goes by their ends,
  // the beginning of the prompt first, and may take several polls. Empty: it begins.
  using Walk = std::vector<std::int32_t>;
  // A prompt that waits for records. Its life: kNew, its tokens are hashed -> kListing, what is
  // not in the arena -> kAsking, the tiers -> kChoosing, what is at hand -> kHolding, what of that
  // the arena has -> kLoading, the rest -> kReady -> kWriting. If a tier fails to bring a record
  // that another one has, it chooses and loads once more.
  struct Request {
    enum class State : std::uint8_t {
      kNew,
      kListing,
      kAsking,
      kChoosing,
      kHolding,
      kLoading,
      kReady,
      kWriting
    };
    State state = State::kNew;
    SequenceId sequence{};
    std::vector<std::int32_t> tokens{};
    Digest root{};
    std::vector<MediaSpan> media{};
    std::vector<Digest> hashes{};  // at the end of each unit: [first_hash, num_hashed) are set
    std::int32_t first_hash = 0;   // units that the cache had at open()
    std::int32_t num_hashed = 0;
    Digest before{};                // at the end of num_hashed
    std::int32_t length = 0;        // of the sequence at open(), or behind the last part
    std::int32_t part_begin = 0;    // blocks before this are in the sequence; 0: some may not be
    std::int32_t horizon = 0;       // where the part that is brought now ends
    bool has_a_part = false;        // one came whole
    std::uint64_t deadline_us = 0;  // of the tiers, then of the copy; from kAsking on
    std::uint64_t since_us = 0;     // it asks, or it loads
    Walk walk{};
    std::size_t turned = 0;       // pieces that were looked at, for other tiers
    std::size_t turn_end = 0;     // how many had begun when that began; 0: it has not
    int rounds = 0;               // of loading
    std::vector<Piece> pieces{};  // to ask for, or to load
    // By group and from the beginning of the prompt, whether a block is at hand: in the arena, or
    // in a tier that said so. From kHolding on, whether a load waits for it.
    std::vector<std::vector<std::uint8_t>> has{};
    // By group and from the part's first block on.
    std::vector<std::vector<Verdict>> verdicts{};
    std::int32_t limit = 0;  // kChoosing and kHolding: of what is brought at once
    Loadable can{};          // kHolding
    std::int64_t bytes = 0;  // kHolding: that the arena lacks
    std::array<std::size_t, kTiersMax> asked{};  // how many of them, by tier
    std::array<std::int32_t, kTiersMax> unanswered{};
    std::size_t begun = 0;      // how many of them came or are on their way
    std::int32_t waiting = 0;   // answers, or records on their way
    std::uint8_t promised = 0;  // tiers that said that they have a record: a bit for each
    bool silence = false;       // another one did not say what it has
    bool failed = false;        // a record that was promised did not come
    bool retry = false;         // and a tier may have it yet
    bool displaced = false;     // an older request took what it held
    LoadEnd why = LoadEnd::kNothing;
    HeldRecords held{};  // from kHolding on
    // kWriting
    Load load{};
    std::int32_t group = 0;         // that is written
    std::vector<LoadBlock> todo{};  // its blocks
    std::size_t done = 0;           // how many of them
    std::int32_t good = 0;          // the blocks are right up to here
  };
  // A record on its way from a tier to the arena, and who waits for it.
  struct Arriving {
    std::uint64_t tag = 0;  // of its op
    Piece piece{};
    RecordInfo expected{};
    std::vector<std::uint64_t> waiters{};  // requests
  };
  // What a tier was asked to do. A load whose record is not in arriving_ any more is given up: its
  // slot is quarantined until the tier says that it does not touch it. A store that is overdue
  // keeps its pin as long.
  struct Op {
    TierOp kind = TierOp::kExists;
    std::int32_t tier = 0;
    TierKey key{};
    std::uint64_t request = 0;    // kExists
    Piece piece{};                // kExists
    std::int32_t part_begin = 0;  // kExists: of the request
    std::int64_t bytes = 0;       // kLoad, kStore
    ArenaSlot slot{};             // kLoad
    bool given_up = false;        // kLoad
    bool overdue = false;         // kStore
    bool is_probe = false;        // it is not waited for
    std::uint64_t since_us = 0;
    std::uint64_t deadline_us = 0;
    ArenaPin pin{};                   // kStore
    int tries = 0;                    // kStore, as TierPort::Waiting
    std::uint64_t stores_before = 0;  // kStore: that the tier had done when it began
  };
  enum class Begun : std::uint8_t { kYes, kLater, kNo };

  // ---- offload.cc ----
  void begin_hashing(Request& request, const OpenOptions& options, std::int32_t cached);
  void set_horizon(Request& request) const;
  // False: it takes more steps than this call has; it goes on in the next one.
  bool hash_part(Request& request);
  void next_part(std::uint64_t id, Request& request, std::int32_t length);
  void take_turn(std::uint64_t now_us, bool draining);
  void finish(std::uint64_t id, std::int32_t cached_tokens, LoadEnd why);
  void drop_request(std::uint64_t id);
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
  bool store_unnamed();
  bool store_block(const FindableBlock& block, const BlockNames::Name& name);
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
  void go_on(std::uint64_t id);
  void set_deadline(Request& request) const;
  [[nodiscard]] bool has_gone_on(const Request& request) const;
  // Half of the time from since_us to the deadline has passed.
  [[nodiscard]] bool is_half_over(const Request& request) const noexcept {
    return now_us_ - request.since_us >= (request.deadline_us - request.since_us) / 2;
  }
  // Has to be computed, so nothing is loaded beyond it.
  [[nodiscard]] static std::int32_t last_token(const Request& request) noexcept {
    return static_cast<std::int32_t>(request.tokens.size()) - 1;
  }
  [[nodiscard]] static bool is_last_part(const Request& request) noexcept {
    return request.horizon == last_token(request);
  }
  // Visits the blocks of the part up to `limit` that the walk has not seen. This and what is made
  // of it return false where the steps of the call end before: it goes on in the next one.
  template <typename Visit>
  bool walk_blocks(Request& request, std::int32_t limit, const Visit& visit);
  bool look_for_blocks(Request& request, bool with_tiers, std::int32_t limit);
  // How far what was looked for reaches.
  Result<Loadable> reach(Request& request, std::int32_t limit);
  bool list_questions(Request& request);
  [[nodiscard]] Verdict& verdict(Request& request, const Piece& piece) const;
  static void enter(Request& request, Request::State state);
  bool ask(std::uint64_t id, Request& request);
  bool hold_or_list(std::uint64_t id, Request& request);
  void begin_choosing(Request& request);
  bool choose(std::uint64_t id, Request& request);
  bool bring(std::uint64_t id, Request& request);
  void stop_waiting(std::uint64_t id, Request& request, bool is_late);
  [[nodiscard]] bool waits_for(std::uint64_t id, const TierKey& key) const;
  [[nodiscard]] bool loads_once_more(const Request& request) const;
  void turn_to_others(std::uint64_t id, Request& request);
  [[nodiscard]] bool has_an_answer(const Request& request) const;
  void note_silent_tiers(const Request& request);
  [[nodiscard]] bool has_hash(const Request& request, GroupId group, std::int32_t logical) const;
  // Requires: has_hash().
  [[nodiscard]] Piece piece_of(const Request& request, GroupId group, std::int32_t logical) const;
  [[nodiscard]] std::int32_t end_of(const Piece& piece) const {
    return (piece.logical + 1) * block_size(piece.group);
  }
  [[nodiscard]] bool worth_loading(std::int64_t bytes, std::int32_t tokens) const;

  void hold(std::uint64_t id, Request& request, std::int32_t end, const TierKey& key);
  void release_held(std::uint64_t id, Request& request) noexcept;
  bool take_from_younger(std::uint64_t id);

  // ---- offload_write.cc ----
  void write_in_turn(std::uint64_t id, Request& request);
  void begin_writing(std::uint64_t id);
  [[nodiscard]] bool has_block_to_write(Request& request);
  void write(std::uint64_t id, Request& request);
  void write_next(std::uint64_t id, Request& request);
  void end_writing(std::uint64_t id);
  Result<std::span<const KVStorage::ImageRun>> runs_of(GroupId group, BlockId block);
  bool write_block(const Piece& piece, BlockId block, const ArenaPin& pin);

  // ---- what one call may do ----
  static constexpr std::int64_t kStepsPerPoll = std::int64_t{1} << 15;
  // Kept for stores, whatever prompts there are to look at.
  static constexpr std::int64_t kStepsOfStores = kStepsPerPoll / 4;
  // Blocks of a prompt that are brought at a time, so that no call looks at all of a long one.
  static constexpr std::int32_t kPartBlocks = 4096;
  static constexpr std::int64_t kAnswersPerPoll = 4096;            // of each tier
  static constexpr std::size_t kLoadedMax = std::size_t{1} << 16;  // then some are stored again
  void took(std::int64_t steps) noexcept {
    steps_ += steps;
    counters_.steps_max = std::max(counters_.steps_max, static_cast<std::uint64_t>(steps_));
  }
  [[nodiscard]] bool has_steps() const noexcept { return steps_ < steps_most_; }

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
  Begun start_load(std::uint64_t id, Request& request, const Piece& piece, std::int32_t tier);
  [[nodiscard]] bool has_failed(Request& request, const Arriving& arriving) const;
  std::vector<std::uint64_t> take_waiters(const Piece& piece);
  [[nodiscard]] std::uint64_t store_deadline() const noexcept;
  // A moment of the clock, or its end.
  [[nodiscard]] static std::uint64_t later(std::uint64_t at_us, std::uint64_t by_us) noexcept {
    return at_us + std::min(by_us, ~at_us);
  }
  // `is_late`: the tier had its time.
  void give_up(const TierKey& key, std::uint64_t request, bool is_late);
  void give_up(std::unordered_map<TierKey, Arriving, TierKeyHash>::iterator place, bool is_late);

  [[nodiscard]] TierPort& port(std::int32_t tier) { return ports_[static_cast<std::size_t>(tier)]; }
  [[nodiscard]] std::int64_t record_bytes(GroupId group) const {
    return record_bytes_of(manager_, group);
  }
  [[nodiscard]] std::int32_t block_size(GroupId group) const {
    return manager_.spec().groups[static_cast<std::size_t>(group.value())].block_size;
  }

  Process process_;
  detail::ManagerAlias alias_;
  KVCacheManager& manager_ = alias_.manager();
  const OffloadOptions options_;  // its views are not used any more
  Identity identity_;
  std::int64_t largest_record_ = 0;
  std::int32_t part_tokens_ = 0;  // 0: prompts are brought in one part
  std::unique_ptr<HostArena> arena_;
  std::deque<TierPort> ports_;  // they do not move
  std::size_t first_tier_ = 0;  // to collect from in this poll
  BlockNames names_;
  std::map<std::uint64_t, Request> requests_;  // in the order of open()
  std::uint64_t last_request_ = 0;
  // Requests that hold records: those that load, and those that wait for their turn.
  std::set<std::uint64_t> loading_, ready_to_write_;
  std::uint64_t writer_ = 0;                   // the request in kWriting; 0: none
  std::unordered_map<std::uint64_t, Op> ops_;  // by tag
  std::uint64_t last_tag_ = 0;
  std::deque<std::uint64_t> stores_;  // tags, by their deadlines; some have ended
  OffloadLeft in_flight_;             // of ops_
  std::unordered_map<TierKey, Arriving, TierKeyHash> arriving_;
  Epochs epochs_;
  ForgottenRoots forgotten_;
  std::uint64_t forgets_seen_ = 0;    // of the manager
  std::uint64_t published_seen_ = 0;  // blocks of the manager, when the last poll ended
  std::vector<SequenceReady> ready_, ready_next_;
  OffloadCounters counters_;
  bool more_findable_ = true;
  std::deque<FindableBlock> unnamed_;  // taken from the list, not stored yet
  // What was loaded, until the manager lists it as findable: tiers have it.
  std::unordered_set<TierKey, TierKeyHash> loaded_;
  // of one poll
  std::uint64_t now_us_ = 0;
  std::int64_t budget_ = 0;
  std::int64_t steps_ = 0;                   // looks at a block, a question or an answer
  std::int64_t steps_most_ = kStepsPerPoll;  // that what is done now may take
  std::uint64_t short_of_room_ = 0;  // the oldest request that the arena had none for; 0: none
  // scratch
  std::vector<std::span<std::uint8_t>> has_views_;
  std::vector<TierItem> items_;  // of the next submit(); each has its op
  std::vector<KVStorage::ImageRun> runs_;
  std::vector<CopyRun> copies_;
};

}  // namespace kvfolio
