// SPDX-License-Identifier: Apache-2.0
#pragma once

// A Request is a prompt that waits for records of tiers: what it asked for, what it was told, what
// it holds and waits for. Its states are those of requests.h. Thread safety: values.

#include <array>
#include <cstdint>
#include <vector>

#include "kvfolio/host_arena.h"
#include "kvfolio/identity.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/memory.h"
#include "kvfolio/offload.h"
#include "offload/held_records.h"

namespace kvfolio {

struct Request {
  static constexpr std::int32_t kTiersMax = 8;

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
  // A block of a prompt: which group, and where it stands in the prompt.
  struct Piece {
    GroupId group;
    std::int32_t logical = 0;
    TierKey key;
  };
  // Tiers, a bit for each.
  class Tiers {
   public:
    void add(std::int32_t tier) noexcept { bits_ |= bit_of(tier); }
    [[nodiscard]] bool has(std::int32_t tier) const noexcept { return (bits_ & bit_of(tier)) != 0; }
    [[nodiscard]] bool empty() const noexcept { return bits_ == 0; }
    // Requires: !empty().
    [[nodiscard]] std::int32_t first() const noexcept;
    [[nodiscard]] Tiers without(Tiers others) const noexcept {
      Tiers left;
      left.bits_ = static_cast<std::uint8_t>(bits_ & ~unsigned{others.bits_});
      return left;
    }

   private:
    static std::uint8_t bit_of(std::int32_t tier) noexcept {
      KVFOLIO_DCHECK(tier >= 0 && tier < kTiersMax);
      return static_cast<std::uint8_t>(1u << tier);
    }
    std::uint8_t bits_ = 0;
  };
  static_assert(sizeof(Tiers) * 8 >= kTiersMax);
  // Which tiers say that they have a record, and which ones failed to bring it.
  struct Verdict {
    Tiers has, failed;
    [[nodiscard]] Tiers good() const noexcept { return has.without(failed); }
  };
  // Where a walk over the blocks of a part stands: the next one, by group. It goes by their ends,
  // the beginning of the prompt first, and may take several polls. Empty: it begins.
  using Walk = std::vector<std::int32_t>;

  std::uint64_t id = 0;  // in the order of open(); 0: it is not of Requests yet
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
  std::uint64_t deadline_us = 0;  // of the tiers, then of the copy; from kListing on
  std::uint64_t since_us = 0;     // it asks, or it loads
  bool has_load_time = false;     // the deadline has the time of what is loaded
  std::uint64_t owed_us = 0;      // but for this, which the deadline has when more has come
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
  std::int32_t limit = 0;                      // kChoosing and kHolding: of what is brought at once
  Loadable can{};                              // kHolding
  std::int64_t bytes = 0;                      // kHolding: that the arena lacks
  std::array<std::size_t, kTiersMax> asked{};  // how many of the pieces, by tier
  std::array<std::int32_t, kTiersMax> unanswered{};  // of these
  std::size_t begun = 0;     // how many of the pieces came or are on their way
  std::int32_t waiting = 0;  // kAsking: answers, kLoading: records on their way
  Tiers promised{};          // that said that they have a record
  bool silence = false;      // a tier did not say what it has
  bool failed = false;       // less comes than was promised
  bool retry = false;        // and a tier may have it yet
  bool displaced = false;    // an older request took what it held
  LoadEnd why = LoadEnd::kNothing;
  HeldRecords held{};  // from kHolding on
  // kWriting
  Load load{};
  std::int32_t group = 0;         // that is written
  std::vector<LoadBlock> todo{};  // its blocks
  std::size_t done = 0;           // how many of them
  std::int32_t good = 0;          // the blocks are right up to here
  // A record on its way to its block, in memory that copies later. The pin keeps it as it is.
  struct Copying {
    CopyTicket ticket{};
    Piece piece{};
    ArenaPin pin{};
  };
  std::vector<Copying> copying{};
  bool stops = false;  // no more is written: it ends when nothing is copied any more

  // Has to be computed, so nothing is loaded beyond it.
  [[nodiscard]] std::int32_t last_token() const noexcept {
    return static_cast<std::int32_t>(tokens.size()) - 1;
  }
  [[nodiscard]] bool is_last_part() const noexcept { return horizon == last_token(); }
  [[nodiscard]] bool is_late(std::uint64_t now_us) const noexcept { return now_us >= deadline_us; }
  // Half of the time from since_us to the deadline has passed. Requires: it is not late.
  [[nodiscard]] bool is_half_over(std::uint64_t now_us) const noexcept {
    KVFOLIO_DCHECK(since_us <= deadline_us);
    return now_us - since_us >= (deadline_us - since_us) / 2;
  }
  // Requires: kAsking.
  void was_answered(std::int32_t tier) noexcept;
  // A tier has said all that it has, and that is something.
  [[nodiscard]] bool has_an_answer(std::int32_t num_tiers) const noexcept;
  // kLoading, and all came or failed: it chooses anew.
  [[nodiscard]] bool loads_once_more(std::int32_t num_tiers) const noexcept;
};

}  // namespace kvfolio
