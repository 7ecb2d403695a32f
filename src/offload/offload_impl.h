// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inside of Offload. offload.cc opens, forgets and polls; offload_store.cc copies what became
// findable; offload_request.cc follows a request from its question to its load; offload_tiers.cc
// speaks with the tiers. Thread safety: as Offload.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kvfolio/offload.h"
#include "kvfolio/record.h"
#include "offload/block_names.h"
#include "offload/tier_key_hash.h"

namespace kvfolio {

class Offload::Impl {
 public:
  Impl(KVCacheManager& manager, const OffloadOptions& options, Identity identity, HostArena arena);
  ~Impl();

  Result<OffloadOpened> open(std::span<const std::int32_t> tokens, const OpenOptions& options);
  std::span<const SequenceReady> poll(std::uint64_t now_us);
  Result<std::int32_t> cancel(SequenceId sequence);
  [[nodiscard]] bool idle() const noexcept;
  Forgotten forget(const RootKey& root);
  Forgotten reset();
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] const OffloadCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] const HostArena& arena() const noexcept { return *arena_; }
  [[nodiscard]] const Identity& identity() const noexcept { return identity_; }

 private:
  // A block of a prompt: which group, and where it stands in the prompt.
  struct Piece {
    GroupId group;
    std::int32_t logical = 0;
    TierKey key;
  };
  // A prompt that waits for records. Its life: kNew -> kAsking -> kLoading -> kWriting; a failure
  // of kLoading leads to kNew once.
  struct Request {
    enum class State : std::uint8_t { kNew, kAsking, kLoading, kWriting };
    State state = State::kNew;
    SequenceId sequence{};
    std::vector<std::int32_t> tokens{};
    Digest root{};
    std::vector<Digest> hashes{};   // at the end of each unit; those before first_hash are not set
    std::int32_t first_hash = 0;    // units that the cache had at open()
    std::int32_t length = 0;        // of the sequence at open()
    std::uint64_t deadline_us = 0;  // 0: not polled yet
    int attempts = 0;
    std::int32_t waiting = 0;  // answers and records
    bool failed = false;       // a record that was promised did not come
    LoadEnd why = LoadEnd::kNothing;
    std::unordered_map<TierKey, std::int32_t, TierKeyHash>
        where{};  // verdicts: the tier that has it
    // kWriting
    Load load{};
    std::vector<std::pair<Piece, BlockId>> todo{};
    std::vector<ArenaPin> pins{};
    std::size_t done = 0;
    std::int32_t good = 0;  // the blocks are right up to here
  };
  // A record on its way from a tier to the arena.
  struct Arriving {
    ArenaSlot slot;
    RecordInfo expected;
    std::int32_t tier = 0;
    bool abandoned = false;                // nobody wants it any more; the slot is quarantined
    std::vector<std::uint64_t> waiters{};  // requests
  };
  // What a tier was asked to do.
  struct Op {
    TierOp kind = TierOp::kExists;
    std::int32_t tier = 0;
    TierKey key{};
    std::uint64_t request = 0;  // kExists
    ArenaPin pin{};             // kStore
    std::int64_t bytes = 0;
  };
  struct TierState {
    OffloadTier options;
    std::int64_t store_bytes = 0, load_bytes = 0;  // in flight
  };

  // ---- offload.cc ----
  void hash_prompt(Request& request, const OpenOptions& options, std::int32_t cached);
  [[nodiscard]] std::uint64_t epoch_of(const RootKey& root) const;
  void finish(std::uint64_t id, std::int32_t cached_tokens, LoadEnd why);
  void drop_request(std::uint64_t id);
  void forget_in_flight(const Digest* root);

  // ---- offload_store.cc ----
  void store_findable();
  bool store_block(const FindableBlock& block);
  [[nodiscard]] RecordInfo record_of(GroupId group, std::int32_t end, const TierKey& key) const;

  // ---- offload_request.cc ----
  void go_on(std::uint64_t id);
  [[nodiscard]] bool has_gone_on(const Request& request) const;
  // By group, whether each block of the prompt is at hand: in the arena, or in a tier that said so.
  void fill_has(const Request& request, bool with_tiers);
  Result<Loadable> reach(const Request& request, bool with_tiers);
  void ask(std::uint64_t id);
  void choose(std::uint64_t id);
  void begin_writing(std::uint64_t id);
  void write(std::uint64_t id);
  void end_writing(std::uint64_t id);
  bool write_block(const Piece& piece, BlockId block, const ArenaPin& pin);
  [[nodiscard]] bool has_hash(const Request& request, GroupId group, std::int32_t logical) const;
  // Requires: has_hash().
  [[nodiscard]] Piece piece_of(const Request& request, GroupId group, std::int32_t logical) const;
  [[nodiscard]] bool worth_loading(std::int64_t bytes, std::int32_t tokens) const;

  // ---- offload_tiers.cc ----
  void collect();
  void on_done(std::int32_t tier_index, const TierDone& done);
  void on_exists(const Op& op, TierResult result);
  void on_loaded(const Op& op, TierResult result);
  bool start_load(std::uint64_t request, const Piece& piece, std::int32_t tier);
  void store_to_tiers(const TierKey& key, bool second_use);
  bool submit(Op op, std::byte* data, std::uint64_t deadline_us);
  void give_up(Arriving& arriving, std::uint64_t request);

  [[nodiscard]] std::int64_t record_bytes(GroupId group) const {
    return kRecordHeaderBytes + manager_.storage()->block_image_bytes(group);
  }
  [[nodiscard]] std::int32_t block_size(GroupId group) const {
    return manager_.spec().groups[static_cast<std::size_t>(group.value())].block_size;
  }

  KVCacheManager& manager_;
  const OffloadOptions options_;  // the views of its model are not used any more
  Identity identity_;
  std::unique_ptr<HostArena> arena_;
  std::vector<TierState> tiers_;
  BlockNames names_;
  std::map<std::uint64_t, Request> requests_;  // in the order of open()
  std::uint64_t last_request_ = 0;
  std::unordered_map<std::uint64_t, Op> ops_;  // by tag
  std::uint64_t last_tag_ = 0;
  std::unordered_map<TierKey, Arriving, TierKeyHash> arriving_;
  std::uint64_t epoch_ = 0;                                       // the newest
  std::uint64_t base_epoch_ = 0;                                  // of roots not in the map
  std::unordered_map<Digest, std::uint64_t, DigestHash> epochs_;  // by the hash under epoch 0
  std::vector<SequenceReady> ready_, ready_next_;
  OffloadCounters counters_;
  bool more_findable_ = true;
  // of one poll
  std::uint64_t now_us_ = 0;
  std::int64_t budget_ = 0;
  // scratch
  std::vector<std::vector<std::uint8_t>> has_;
  std::vector<std::span<std::uint8_t>> has_views_;
  std::vector<LoadBlock> blocks_;
  std::vector<KVStorage::ImageRun> runs_;
  std::vector<CopyRun> copies_;
};

}  // namespace kvfolio
