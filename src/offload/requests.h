// SPDX-License-Identifier: Apache-2.0
#pragma once

// Requests are the prompts of an Offload that wait for records: in which state each is, what it
// waits for, which records it holds, and whose turn it is. It knows neither tiers nor the manager,
// and of the arena only pins. The life of a request:
//
//   kNew -> kListing -> kAsking -> kChoosing <-> kHolding -> kLoading -> kReady -> kWriting
//    ^                                 ^---------------------'             |          |
//    '----------------------- the next part of the prompt -----------------'----------'
//
//  - kNew: its tokens are hashed.
//  - kListing: what the arena lacks is listed.
//  - kAsking: tiers are asked for that; it waits for their answers, until half of its time if one
//    of them has said all that it has.
//  - kChoosing: what is at hand is found. kHolding: what of that the arena has is pinned, the rest
//    is listed; back to kChoosing if it is more than the arena holds.
//  - kLoading: it waits for records on their way. If a tier fails to bring one that another tier
//    has, or an older request took what it held, it chooses and loads once more. Without anything
//    to load it comes here from kChoosing or kHolding, and goes on at once.
//  - kReady: it has what it can have, and waits for its turn. kWriting: its blocks are written.
//
// Each of these may end it: when it is late, when its sequence has gone on, or when it is forgotten
// or canceled. A walk over its blocks may take several calls (Steps) and begins anew in each state.
//
// Turns go in the order of open(). One request is kWriting at a time. A request that finds no room
// in the arena takes what a younger one holds that still loads, and none behind it loads in this
// turn.
//
// Invariants: a record that arrives has requests that wait for it, all kLoading, each once;
// Request::waiting counts those of a request. What holds records is in loading_ or, from kReady on,
// in ready_to_write_. Thread safety: none.

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvfolio/record.h"
#include "kvfolio/spec.h"
#include "offload/epochs.h"
#include "offload/request.h"
#include "offload/steps.h"
#include "tiers/key_spread.h"

namespace kvfolio {

class Requests {
 public:
  using Id = std::uint64_t;
  using State = Request::State;
  using Piece = Request::Piece;
  // A record on its way from a tier to the arena, and who waits for it.
  struct Arriving {
    std::uint64_t tag = 0;  // of the tier's work
    Piece piece{};
    RecordInfo expected{};
    std::vector<Id> waiters{};
  };
  using Arrivals = std::unordered_map<TierKey, Arriving, TierKeyHash>;

  // `identity` and `epochs` outlive this.
  Requests(const Identity& identity, const Epochs& epochs, std::span<const GroupSpec> groups);

  // ---- what a prompt consists of ----
  // One that is kNew and not added yet; the cache has `length` tokens of it.
  [[nodiscard]] Request make(SequenceId sequence, std::span<const std::int32_t> tokens,
                             const OpenOptions& options, std::int32_t length) const;
  // Goes on to hash the part. False: the steps of the call end before; it goes on in the next one.
  bool hash_part(Request& request, Steps& steps) const;
  [[nodiscard]] bool has_hash(const Request& request, GroupId group, std::int32_t logical) const;
  // Requires: has_hash().
  [[nodiscard]] Piece piece_of(const Request& request, GroupId group, std::int32_t logical) const;
  [[nodiscard]] std::int32_t end_of(const Piece& piece) const {
    return (piece.logical + 1) * block_size(piece.group);
  }
  [[nodiscard]] Request::Verdict& verdict(Request& request, const Piece& piece) const;
  // Nothing is known of any tier.
  void clear_verdicts(Request& request) const;
  // No block of the first `limit` tokens is at hand: one place for each.
  void clear_has(Request& request, std::int32_t limit) const;
  // Visits the blocks of the part up to `limit` that the walk has not seen. False: the steps of the
  // call end before; it goes on in the next one.
  template <typename Visit>
  bool walk(Request& request, std::int32_t limit, Steps& steps, const Visit& visit) const;

  // ---- the requests ----
  Request& add(Request request);
  // Null: it has ended.
  [[nodiscard]] Request* find(Id id) noexcept;
  // 0: none.
  [[nodiscard]] Id of(SequenceId sequence) const noexcept;
  [[nodiscard]] std::map<Id, Request>& all() noexcept { return requests_; }
  [[nodiscard]] bool empty() const noexcept { return requests_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return requests_.size(); }
  [[nodiscard]] std::vector<Id> ids() const;
  // Requires: it waits for nothing.
  void remove(Request& request);
  // No request is left, and none waits for what arrives.
  void clear() noexcept;
  // Tiers are not spoken to any more: what they said is void. Requires: nothing arrives.
  void leave_tiers() noexcept;

  // ---- from state to state ----
  void enter(Request& request, State state);
  // Into kChoosing, from kAsking or once more from kLoading.
  void begin_round(Request& request, std::uint64_t now_us);
  // The part has come whole up to `length`: the next one has its own questions, deadline and turn.
  void begin_next_part(Request& request, std::int32_t length);
  // The request that is kWriting; null: none.
  [[nodiscard]] Request* writer() noexcept { return find(writer_); }
  // Records on their way to the blocks of that.
  [[nodiscard]] std::int64_t num_copying() const noexcept;

  // ---- what is on its way ----
  [[nodiscard]] Arrivals& arrivals() noexcept { return arrivals_; }
  [[nodiscard]] const Arrivals& arrivals() const noexcept { return arrivals_; }
  // Null: it is not on its way.
  [[nodiscard]] const Arriving* arriving(const TierKey& key) const;
  [[nodiscard]] bool waits_for(const Request& request, const TierKey& key) const;
  // Requires: the record is on its way, and the request does not wait for it.
  void wait_for(Request& request, const TierKey& key);
  // It is on its way now, for the request and for those that waited for what take_late() took.
  void begin_arriving(Request& request, Arriving arriving);
  // Requires: waits_for(). True: none waits for it any more.
  bool stop_waiting(Request& request, const TierKey& key);
  // Requires: it is on its way. It came, or will not: none waits for it any more.
  Arriving take_arrived(const TierKey& key);
  // The same, but its waiters go on to wait: for what begin_arriving() is told next.
  Arriving take_late(const TierKey& key);

  // ---- records that wait for a prompt's turn ----
  // Requires: the request is kHolding or kLoading.
  void hold(Request& request, std::int32_t end, ArenaPin pin);
  void release(Request& request, std::int32_t end, const ArenaPin& pin);
  void release_behind(Request& request, std::int32_t end);
  void release_all(Request& request) noexcept;

  // ---- turns ----
  void begin_turns() noexcept { short_of_room_ = 0; }
  // The arena had no room for an older request in this turn.
  [[nodiscard]] bool is_behind() const noexcept { return short_of_room_ != 0; }
  void ran_short(const Request& request) noexcept { short_of_room_ = request.id; }
  // The youngest that holds records and still loads gives up the end of its prefix, which it loads
  // again if there is time. False: none is younger than this one.
  bool take_from_younger(const Request& request);
  // What others hold goes when they were written.
  [[nodiscard]] bool others_hold(const Request& request) const noexcept;

  [[nodiscard]] std::int32_t block_size(GroupId group) const noexcept {
    KVFOLIO_DCHECK(group.value() >= 0 && group.value() < std::ssize(block_sizes_));
    return block_sizes_[static_cast<std::size_t>(group.value())];
  }
  // Recounts everything. Returns ok, or says which rule is broken.
  [[nodiscard]] Status check() const;

 private:
  // Blocks of a prompt that are brought at a time, so that no call looks at all of a long one.
  static constexpr std::int32_t kPartBlocks = 4096;

  void set_horizon(Request& request) const noexcept;
  [[nodiscard]] Status check(const Request& request, std::int32_t arriving) const;

  const Identity& identity_;
  const Epochs& epochs_;
  std::vector<std::int32_t> block_sizes_;  // by group
  std::int32_t part_tokens_ = 0;           // 0: prompts are brought in one part
  std::map<Id, Request> requests_;         // in the order of open()
  Id last_id_ = 0;
  // Requests that hold records: those that load, and those that wait for their turn.
  std::set<Id> loading_, ready_to_write_;
  Id writer_ = 0;         // in kWriting; 0: none
  Id short_of_room_ = 0;  // the oldest request that the arena had none for; 0: none
  Arrivals arrivals_;
};

template <typename Visit>
bool Requests::walk(Request& request, std::int32_t limit, Steps& steps, const Visit& visit) const {
  const auto num_groups = static_cast<std::int32_t>(block_sizes_.size());
  Request::Walk& next = request.walk;
  if (next.empty()) {
    for (const std::int32_t size : block_sizes_) next.push_back(request.part_begin / size);
  }
  for (;;) {
    GroupId group;
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    for (std::int32_t g = 0; g < num_groups; ++g) {
      const std::int64_t begin =
          std::int64_t{next[static_cast<std::size_t>(g)]} * block_size(GroupId(g));
      const std::int64_t end = begin + block_size(GroupId(g));
      if (begin >= limit || end >= least) continue;
      least = static_cast<std::int32_t>(end);
      group = GroupId(g);
    }
    if (!group.valid()) break;
    if (!steps.has_any()) return false;
    steps.took(1);
    visit(group, next[static_cast<std::size_t>(group.value())]++);
  }
  next.clear();
  return true;
}

}  // namespace kvfolio
