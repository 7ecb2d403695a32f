// SPDX-License-Identifier: Apache-2.0
#pragma once

// Mutants: rules of the library that a test build can switch off, one at a time and at run time,
// to show that some test notices. scripts/mutants runs them all.
//
// Only with -DKVFOLIO_MUTANTS=ON, a build that cannot be installed. There the environment decides,
// read once: KVFOLIO_MUTANT=<name> switches one rule off ("list" prints the names and exits), and
// KVFOLIO_CONSTANT_HASH=1 makes every hash the same. (Batches of blocks are short there
// too, so that small tables take several: manager/block_batch.h.) In every other build both
// functions are constants: no code, no symbol, no cost.

#include <cstdint>

namespace kvfolio {

// Named after what goes wrong. The names for KVFOLIO_MUTANT are in mutants.cc, in this order.
enum class Mutant : std::uint8_t {
  kNone,
  kFindableAtBegin,
  kReuseBeforeComplete,
  kNoCopyOnSharedWrite,
  kCopyAfterWrite,
  kAdmissionIgnoresRetiring,
  kHitReferencedLate,
  kAppendAfterTruncateOverwritesFindable,
  kWindowReleasedBeforeCommit,
  kReleaseTwice,
  kPartialTailSharedInPlace,
  kSplitMovesEntryToWrongSide,
  kChildComparedByFirstUnitOnly,
  kExtrasNotCompared,
  kTokensAfterTrimPublished,
  kRowGivenAwayInFlight,
  kHeadsBeforeTails,
  kTailsLikeFullBlocks,
  kPassedLikeOthers,
  kHitTakesRoom,
  kCachedTwinKeepsEntry,
  kHungBehindAGap,
  kUndoBringsBackTheReplay,
  kReservedIsRoom,
  kCloseKeepsReservation,
  kPublishesAfterForget,
  kLoadFindableAtBegin,
  kCloseDropsLoad,
  kHoldDoesNotKeep,
  kLoadsWindowsShort,
  kTakeBackKeepsWindow,
  kRewindsNotCounted,
  kRewindNotReserved,
  kAcceptedOverDrafts,
  kVoidRowPublished,
  kVoidRowsNotCounted,
  kRejectedStaySpent,
  kSoonKeptAfterClose,
  kAnnouncedBeyondFullBlocks,
  kAnnouncedWhenPublished,
  kAnnouncesWhatIsNotAppended,
  kCopyFailureIgnored,
  kCopiesRanThoughTheyFailed,
  // of libkvfolio_cuda
  kLaterCopyIgnoresStream,
  kLaterStagingReusedEarly,
  kContextStaysCurrent,
  kDevicePlanLeavesAnEntryOut,
  kDevicePlanReusesPinnedEarly,
  kDevicePlanTrustsAnyList,
  kPlanCapacityNotChecked,
  kPlanEmptyItemIsNot,
  kPlanLeafTwice,
  // of libkvfolio_tiers
  kKeyWithoutDtype,
  kKeyWithoutAdapter,
  kKeyWithoutEpoch,
  kChecksumUnread,
  kFailedReadSealed,
  kFailedWriteFindable,
  kTicketNotWaitedFor,
  kStagingReusedEarly,
  kVerdictKept,
  kArenaSlotReusedBeforeDone,
  kStoredAfterForget,
  kAcknowledgedBeforeWritten,
  kErasedWithoutTombstone,
  kChildSpeaksToTiers,
};

#ifdef KVFOLIO_MUTANTS
[[nodiscard]] bool mutant(Mutant rule) noexcept;
[[nodiscard]] bool constant_hash() noexcept;
#else
[[nodiscard]] constexpr bool mutant(Mutant) noexcept { return false; }
[[nodiscard]] constexpr bool constant_hash() noexcept { return false; }
#endif

}  // namespace kvfolio
