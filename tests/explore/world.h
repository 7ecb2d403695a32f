// SPDX-License-Identifier: Apache-2.0
#pragma once

// One state of the exploration: a manager, and beside it what a device and a naive observer know.
// The device writes at commit, copies first; a token's bytes are the whole prefix that ends with
// it, and a block that is free holds nothing. Copied with the manager, never replayed.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/manager.h"

namespace kvfolio::explore {

inline constexpr std::int32_t kBlocks = 4;
inline constexpr std::int32_t kBlockSize = 2;
inline constexpr std::int32_t kMaxTokens = kBlocks * kBlockSize;
inline constexpr std::int32_t kSequences = 2;
inline constexpr std::int32_t kNever = 99;

// Up to 8 tokens of one bit each behind a leading 1: 1 is the empty string, 0b101 the tokens 0, 1.
using Prefix = std::uint16_t;
inline constexpr Prefix kEmpty = 1;
inline constexpr Prefix kInexact = 0x8000;  // a token that was computed across a trim's gap

std::int32_t length_of(Prefix prefix);
Prefix first_of(Prefix prefix, std::int32_t n);
std::int32_t token_of(Prefix prefix, std::int32_t position);
std::vector<std::int32_t> tokens_of(Prefix prefix);

enum class Kind : std::uint8_t {
  kOpen,
  kAppend,
  kAppendUnnamed,
  kSetTokens,
  kFork,
  kTruncate,
  kClear,
  kTrim,
  kPreempt,
  kClose,
  kBegin,
  kCommit,
  kComplete,
  kFinish,
  kDrop,
  kUndo,
  kEvict,
  kPin,
  kUnpin,
  kFail,
  kAccept,
  kAdopt,
  // Several in one, so that what takes many calls is met early: begin, append and commit; and
  // complete.
  kLaunch,
  kFeed,
  kReserve,
  kForget,
  kReset,
};

struct Operation {
  Kind kind;
  std::int32_t who;  // sequence, or step in flight
  std::int32_t a;    // a Prefix, a length, sinks
  std::int32_t b;    // a window, a draft, late names, kAnnounces
};
inline constexpr std::int32_t kAnnounces = 2;
// Every operation that is tried in every state.
const std::vector<Operation>& operations();
std::string_view name(Kind kind);
std::string show(const Operation& operation);

struct ShadowSequence {
  SequenceId id;
  Prefix tokens = kEmpty;     // those of the open step included
  std::int32_t accepted = 0;  // those behind are not decided, or in the open step
  // Appends that accept() has yet to decide on: where each ends, and how many of its last tokens
  // are guesses.
  struct Undecided {
    std::int32_t end = 0;
    std::int32_t draft = 0;
  };
  std::array<Undecided, 2> drafts{};
  std::int32_t num_drafts = 0;
  std::int32_t inexact_from = kNever;  // tokens from here on were computed after a trim
  std::array<std::uint64_t, kMaxTokens> unnamed{};  // per position the ticket, or 0

  std::int32_t lost_from = kNever;  // the first token that never gets a name
  bool late_names = false;
  bool adopted = false;       // nothing of it is findable
  bool forgotten = false;     // its path was: it publishes no more
  std::int32_t promised = 0;  // tokens of reserve()
  // Positions of the tokens that used some of it up.
  std::int32_t spent_begin = 0;
  std::int32_t spent_end = 0;
  bool certain = false;       // and nothing has happened that may need more blocks than that
  Prefix announced = kEmpty;  // of the prompt; empty: nothing
  std::int32_t opened = 0;    // counts those that were opened

  // In the open step.
  bool in_step = false;
  std::int32_t promised_before = 0;
  std::int32_t spent_end_before = 0;
  Prefix before = kEmpty;
  std::int32_t draft = 0;
};

struct ShadowStep {
  std::uint64_t ticket = 0;
  std::uint32_t touched = 0;  // blocks, by bit
  std::uint32_t written = 0;  // slots, by bit
};

struct Shadow {
  std::array<ShadowSequence, kSequences> sequences;
  std::array<std::array<Prefix, kBlockSize>, kBlocks> bytes{};  // 0: nothing
  std::array<ShadowStep, 2> in_flight;                          // the oldest first
  std::int32_t num_in_flight = 0;
  std::uint64_t open_ticket = 0;
  PinId pin;
  Prefix pinned = kEmpty;
  std::int32_t num_opened = 0;
};

enum class Outcome : std::uint8_t {
  kDone,
  kRefused,  // by the manager, which must not have changed
  kSkipped,  // makes no sense here and was not tried
};

class World {
 public:
  explicit World(Order order);

  void copy_from(const World& other);
  // `broken` says which rule the operation broke, if any.
  Outcome apply(const Operation& operation, std::string& broken);
  // All rules, in O(state).
  void check(std::string& broken) const;
  // 128 bits of all that decides the future.
  std::array<std::uint64_t, 2> hash() const;

 private:
  Outcome open(const Operation& operation, std::string& broken);
  Outcome adopt(ShadowSequence& sequence, const ShadowSequence& other);
  Outcome append(const Operation& operation, std::string& broken);
  Outcome step(const Operation& operation, std::string& broken);
  Outcome commit(std::string& broken);
  Outcome complete(std::int32_t which);
  Outcome fail(std::int32_t which);
  Outcome reserve(ShadowSequence& sequence, std::int32_t tokens);
  Outcome forget(const Operation& operation, std::string& broken);
  void accept(ShadowSequence& sequence, std::int32_t count);
  void settle_pin();
  [[nodiscard]] bool has_promises() const;
  void end_entry(ShadowSequence& sequence);
  void cut(ShadowSequence& sequence, std::int32_t n);
  void poison_free_blocks();
  void check_sequence(const ShadowSequence& sequence, std::string& broken) const;
  void check_findable(std::string& broken) const;
  void check_soon(std::string& broken) const;
  [[nodiscard]] bool fits(SequenceId sequence, std::int32_t count) const;
  void check_alone(std::string& broken) const;

  KVCacheManager manager_;
  Shadow shadow_;
  Order order_;
  mutable std::vector<std::int32_t> words_;
};

}  // namespace kvfolio::explore
