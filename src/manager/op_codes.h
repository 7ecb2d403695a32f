// SPDX-License-Identifier: Apache-2.0
#pragma once

// The calls of a manager as logs name them. A number means the same call in every version.

#include <array>
#include <cstdint>
#include <string_view>

namespace kvfolio {

enum class Op : std::uint8_t {
  kEnd = 0,
  kOpen = 1,
  kFork = 2,
  kAdopt = 3,
  kTruncate = 4,
  kClear = 5,
  kTrim = 6,
  kClose = 7,
  kPreempt = 8,
  kSetPriority = 9,
  kBeginStep = 10,
  kAppend = 11,
  kAppendUnnamed = 12,
  kAppendEach = 13,
  kAppendUnnamedEach = 14,
  kOpenUnnamed = 15,
  kSetTokens = 16,
  kSetTokensEach = 17,
  kUndo = 18,
  kPlan = 19,
  kRunCopies = 20,
  kCommit = 21,
  kComplete = 22,
  kFinish = 23,
  kDrop = 24,
  kFail = 25,
  kAccept = 26,
  kAdmit = 27,
  kAdmitOne = 28,
  kReserve = 29,
  kEvict = 30,
  kReset = 31,
  kForgetRoot = 32,
  kForget = 33,
  kPin = 34,
  kUnpin = 35,
  kSelectVictim = 36,
  kPreemptTo = 37,
  kBeginLoad = 38,
  kFinishLoad = 39,
  kHoldBlocks = 40,
  kReleaseHold = 41,
  kTakeFindable = 42,
  kTouch = 43,
  kAppendPrompt = 44,
  kCancel = 45,
};
inline constexpr std::size_t kNumOps = 46;

// What the first number of an answer is.
enum class First : std::uint8_t { kNothing, kCount, kSequence, kTicket, kPin, kLoad, kHold };

struct OpName {
  std::string_view name;
  First first = First::kNothing;
};
inline constexpr std::array<OpName, kNumOps> kOps = {{
    {"end"},
    {"open", First::kSequence},
    {"fork", First::kSequence},
    {"adopt"},
    {"truncate"},
    {"clear"},
    {"trim", First::kCount},
    {"close"},
    {"preempt"},
    {"set_priority"},
    {"begin_step", First::kTicket},
    {"append"},
    {"append_unnamed"},
    {"append_each", First::kCount},
    {"append_unnamed_each", First::kCount},
    {"open_unnamed", First::kSequence},
    {"set_tokens"},
    {"set_tokens_each", First::kCount},
    {"undo"},
    {"plan", First::kCount},
    {"run_copies"},
    {"commit"},
    {"complete"},
    {"finish"},
    {"drop"},
    {"fail", First::kCount},
    {"accept"},
    {"admit"},
    {"admit"},
    {"reserve"},
    {"evict", First::kCount},
    {"reset", First::kCount},
    {"forget", First::kCount},
    {"forget", First::kCount},
    {"pin", First::kPin},
    {"unpin"},
    {"select_victim", First::kSequence},
    {"preempt_to", First::kCount},
    {"begin_load", First::kLoad},
    {"finish_load", First::kCount},
    {"hold_blocks", First::kHold},
    {"release_hold"},
    {"take_findable", First::kCount},
    {"touch"},
    {"append_prompt", First::kCount},
    {"cancel"},
}};
[[nodiscard]] constexpr const OpName& name_of(Op op) noexcept {
  return kOps[static_cast<std::size_t>(op)];
}

// The format. Behind the magic: format and bytes of the body as 32 bits, the body, and 32 bits of
// the hash of all before them. Calls stand in pieces (op_piece.h). Older formats are read and not
// written, but for tests. Format 3 lacks the fixed shapes of PlanOptions, and null_block. Format 2
// knows of no announcements, and lacks GroupSpec::rewind and PlanOptions::caller_ids. In format 1
// the calls follow bare, the hash is that of the body, and the options lack copies_by_host, too.
// When it was written, commit() and append() refused no mistake of a host, and so it is replayed.
inline constexpr std::string_view kOpLogMagic = "KVFOPLOG";
inline constexpr std::uint32_t kOpLogFormat = 4;
inline constexpr std::uint32_t kOpLogFormatBare = 1;
inline constexpr std::uint32_t kMostHeaderBytes = 8192;

}  // namespace kvfolio
