// SPDX-License-Identifier: Apache-2.0
#pragma once

// TierPort is what an Offload knows of one tier: what the tier works at, which memory of the arena
// it holds for that, which stores wait for it, and whether it is passed over.
//
// A tier holds at most its share of the arena, whatever it does not answer:
//
//   held = loads in flight, also those that were given up     what the stores leave: half or more
//        + stores in flight + stores that wait to go again    at most half of the share
//        + stores that wait for their first try, pinned       what is left; gives way to loads
//
// A store that waits for its first try and finds no room in the share waits as a name only, as long
// as the arena keeps its record. What is overdue, since the tier did not answer in time, is held
// until it does. Thread safety: none.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "kvfolio/offload.h"
#include "offload/pauses.h"

namespace kvfolio {

class TierPort {
 public:
  // A store that waits. A pin keeps its record in the arena.
  struct Waiting {
    TierKey key{};
    ArenaPin pin{};
    bool is_gone = false;  // its record was, when it was to be pinned
    bool is_again = false;
    int tries = 0;  // that ended while the tier took no other store either
  };
  // One kind of question. Whether the tier answers again is tried by a probe: a question or a load
  // that no user waits for, or a store.
  struct Side {
    Pauses pauses{};
    TierKey probe_key{};
    std::int64_t probe_bytes = 0;
    std::uint64_t probe_tag = 0;  // in flight; 0: none
  };

  // What the tier works at, in slots of the arena. Overdue: it did not end in time, or no request
  // waits for it any more.
  struct InFlight {
    std::int64_t load_bytes = 0, store_bytes = 0;
    std::int64_t overdue_load_bytes = 0, overdue_store_bytes = 0;
    std::int64_t num = 0, num_overdue = 0, num_questions = 0;

    void add(TierOp kind, std::int64_t bytes, bool is_overdue, std::int64_t sign = 1) noexcept;
    void add_overdue(TierOp kind, std::int64_t bytes, std::int64_t sign = 1) noexcept;
    friend bool operator==(const InFlight&, const InFlight&) = default;
  };

  // `share`: bytes of the arena; two of the largest record at least. `alignment`: of records there.
  TierPort(const OffloadTier& options, std::int64_t share, std::int64_t largest_record,
           std::int64_t alignment);

  [[nodiscard]] Tier& tier() const noexcept { return *options_.tier; }
  [[nodiscard]] WritePolicy policy() const noexcept { return options_.policy; }
  [[nodiscard]] const OffloadTierCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] OffloadTierCounters& counters() noexcept { return counters_; }

  // ---- whether it is asked at all ----
  // Once in each poll of the Offload.
  void look() noexcept { usable_ = !left_ && options_.tier->health().usable; }
  // In a child of fork(): the tier is its parent's, and is not spoken to any more. Nothing is in
  // flight and nothing waits.
  void leave() noexcept;
  [[nodiscard]] bool has_left() const noexcept { return left_; }
  // Writes what it holds, and whether it is passed over, to the counters.
  void count() noexcept;
  [[nodiscard]] bool is_usable() const noexcept { return usable_; }
  // What it brings is what was stored.
  [[nodiscard]] bool verifies() const noexcept { return verifies_; }
  [[nodiscard]] bool takes(std::int64_t bytes) const noexcept {
    return usable_ && !exceeds_limit(bytes);
  }
  [[nodiscard]] bool exceeds_limit(std::int64_t bytes) const noexcept {
    return record_bytes_max_ > 0 && bytes > record_bytes_max_;
  }
  // Usable, and answers: a user's question goes there.
  [[nodiscard]] bool is_read() const noexcept {
    return usable_ && !questions_.pauses.passed_over() && !loads_.pauses.passed_over();
  }
  [[nodiscard]] bool is_written() const noexcept {
    return usable_ && !stores_.pauses.passed_over();
  }
  [[nodiscard]] Side& side(TierOp kind) noexcept {
    return kind == TierOp::kStore ? stores_ : kind == TierOp::kLoad ? loads_ : questions_;
  }
  // Something that was begun at `since_us` did not end in time. Says the same of an item once.
  void was_late(TierOp kind, const TierKey& key, std::int64_t bytes, std::uint64_t since_us,
                std::uint64_t now_us) noexcept;
  void answered(TierOp kind) noexcept { side(kind).pauses.answered(); }

  // ---- what it works at ----
  void began(TierOp kind, std::int64_t bytes) noexcept { in_flight_.add(kind, slot(bytes), false); }
  void became_overdue(TierOp kind, std::int64_t bytes) noexcept {
    in_flight_.add_overdue(kind, slot(bytes));
  }
  void ended(TierOp kind, std::int64_t bytes, bool was_overdue) noexcept {
    in_flight_.add(kind, slot(bytes), was_overdue, -1);
  }
  // It has something to end that is not overdue: what it has no room for now it may have later.
  [[nodiscard]] bool works() const noexcept { return in_flight_.num > in_flight_.num_overdue; }
  // What is overdue leaves no room for a record more, and may stay so for ever.
  [[nodiscard]] bool is_stuck() const noexcept;
  [[nodiscard]] bool has_room_for_questions() const noexcept {
    return in_flight_.num_questions < kQuestionsMax;
  }
  [[nodiscard]] std::int64_t load_bytes() const noexcept { return in_flight_.load_bytes; }
  [[nodiscard]] std::int64_t store_bytes() const noexcept { return in_flight_.store_bytes; }
  [[nodiscard]] std::int64_t held_bytes() const noexcept {
    return in_flight_.load_bytes + in_flight_.store_bytes + again_bytes_ + pinned_bytes_;
  }

  // ---- loads ----
  // kNever: not before the tier ends what is overdue, if ever.
  enum class Room : std::uint8_t { kYes, kLater, kNever };
  // Makes waiting stores give way.
  Room room_for_load(std::int64_t bytes) noexcept;

  // ---- stores ----
  // kLater also during a pause, after which one store at a time tries.
  [[nodiscard]] Room room_for_store(const Waiting& one, std::int64_t bytes,
                                    std::uint64_t now_us) const noexcept;
  // The tier took none though it has nothing to do. False: too often in a row.
  bool refused(std::uint64_t now_us) noexcept;
  void accepted() noexcept { refusals_ = 0; }

  [[nodiscard]] std::int64_t num_waiting() const noexcept {
    return std::ssize(first_) + std::ssize(again_);
  }
  // For its first try. False: too many wait.
  bool wait(const TierKey& key, HostArena& arena);
  // After a try that ended; the pin is the one of that try. False: it had all its tries.
  bool wait_again(Waiting one, std::uint64_t now_us);
  // The next one that is due, until pop(); null: none.
  [[nodiscard]] const Waiting* next(std::uint64_t now_us) const noexcept;
  void pop(std::uint64_t now_us) noexcept;
  // Pins those that have room now, at most `most`.
  void pin_waiting(HostArena& arena, int most);
  void drop_all() noexcept;

  // A record's slot in the arena.
  [[nodiscard]] std::int64_t slot(std::int64_t bytes) const noexcept {
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
  }
  // Recounts; `seen` is what the caller counted. Returns ok, or says which rule is broken.
  [[nodiscard]] Status check(const InFlight& seen) const;

 private:
  static constexpr std::size_t kWaitingMax = std::size_t{1} << 16;  // names
  static constexpr std::int64_t kQuestionsMax = std::int64_t{1} << 14;
  static constexpr int kTriesMax = 6;
  static constexpr int kRefusalsMax = 6;
  static constexpr std::uint64_t kAgainUs = 10'000;  // doubled by each fruitless try

  [[nodiscard]] std::int64_t slot(const ArenaPin& pin) const noexcept {
    return pin ? slot(static_cast<std::int64_t>(pin.record().size())) : 0;
  }
  [[nodiscard]] bool again_is_due(std::uint64_t now_us) const noexcept {
    return !again_.empty() && again_.begin()->first <= now_us;
  }
  bool pin(Waiting& one, HostArena& arena);
  // Once all that is not overdue has ended.
  [[nodiscard]] std::int64_t bytes_that_stay() const noexcept {
    return in_flight_.overdue_load_bytes + in_flight_.overdue_store_bytes + again_bytes_;
  }

  OffloadTier options_;
  std::int64_t record_bytes_max_ = 0;
  bool verifies_ = false;
  std::int64_t share_ = 0;
  std::int64_t largest_slot_ = 0;
  std::int64_t alignment_ = 64;
  bool usable_ = true, left_ = false;
  Side questions_, loads_, stores_;

  InFlight in_flight_;
  std::deque<Waiting> first_;  // its front `num_pinned_` are pinned
  std::size_t num_pinned_ = 0;
  std::multimap<std::uint64_t, Waiting> again_;  // by when; each pinned
  std::int64_t pinned_bytes_ = 0, again_bytes_ = 0;
  int refusals_ = 0;  // in a row
  std::uint64_t refused_until_us_ = 0;
  OffloadTierCounters counters_;
};

}  // namespace kvfolio
