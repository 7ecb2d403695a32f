// SPDX-License-Identifier: Apache-2.0
#pragma once

// The calls of a manager as logs name them, and how each is made again.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace kvfolio {

// What the first number of an answer is.
enum class First : std::uint8_t { kNothing, kCount, kSequence, kTicket, kPin, kLoad, kHold };

// One line for each call: its number, which means the same call in every version, its code and
// name, what the first number of its answer is, and the call as a function of a manager and of its
// recorded arguments, in their order. From the types of these functions the arguments are read and
// printed; op_calls.h has the short names of the types.
#define KVFOLIO_OPS(X)                                                                             \
  X(1, kOpen, open, kSequence,                                                                     \
    [](M& m, Tokens tokens, OpenOptions o) { return m.open(tokens, o); })                          \
  X(2, kFork, fork, kSequence, [](M& m, SequenceId id, ForkOptions o) { return m.fork(id, o); })   \
  X(3, kAdopt, adopt, kNothing,                                                                    \
    [](M& m, SequenceId id, std::span<const Tokens> t, Int n) { return m.adopt(id, t, n); })       \
  X(4, kTruncate, truncate, kNothing,                                                              \
    [](M& m, SequenceId id, Int n) { return m.truncate(id, n); })                                  \
  X(5, kClear, clear, kNothing, [](M& m, SequenceId id) { return m.clear(id); })                   \
  X(6, kTrim, trim, kCount, [](M& m, SequenceId id, TrimOptions o) { return m.trim(id, o); })      \
  X(7, kClose, close, kNothing, [](M& m, SequenceId id) { return m.close(id); })                   \
  X(8, kPreempt, preempt, kNothing, [](M& m, SequenceId id) { return m.preempt(id); })             \
  X(9, kSetPriority, set_priority, kNothing,                                                       \
    [](M& m, SequenceId id, Int priority) { return m.set_priority(id, priority); })                \
  X(10, kBeginStep, begin_step, kTicket, [](M& m, StepOptions o) { return m.begin_step(o); })      \
  X(11, kAppend, append, kNothing,                                                                 \
    [](M& m, SequenceId id, Tokens tokens, AppendOptions o) { return m.append(id, tokens, o); })   \
  X(12, kAppendUnnamed, append_unnamed, kNothing,                                                  \
    [](M& m, SequenceId id, Long n, AppendOptions o) { return m.append_unnamed(id, n, o); })       \
  X(13, kAppendEach, append_each, kCount, [](M& m, Ids ids, Tokens tokens, OutCount done) {        \
    return m.append_each(ids, tokens, done.count);                                                 \
  })                                                                                               \
  X(14, kAppendUnnamedEach, append_unnamed_each, kCount,                                           \
    [](M& m, Ids ids, OutCount done) { return m.append_unnamed_each(ids, done.count); })           \
  X(15, kOpenUnnamed, open_unnamed, kSequence,                                                     \
    [](M& m, Long n, OpenOptions o) { return m.open_unnamed(n, o); })                              \
  X(16, kSetTokens, set_tokens, kNothing,                                                          \
    [](M& m, SequenceId id, Tokens tokens) { return m.set_tokens(id, tokens); })                   \
  X(17, kSetTokensEach, set_tokens_each, kCount, [](M& m, Ids ids, Tokens tokens, OutCount done) { \
    return m.set_tokens_each(ids, tokens, done.count);                                             \
  })                                                                                               \
  X(18, kUndo, undo, kNothing, [](M& m, SequenceId id) { return m.undo(id); })                     \
  X(19, kPlan, plan, kCount, [](M& m, PlanOptions o) { return m.plan(o); })                        \
  X(20, kRunCopies, run_copies, kNothing, [](M& m) { return m.run_copies(); })                     \
  X(21, kCommit, commit, kNothing, [](M& m, Ticket ticket) { return m.commit(ticket); })           \
  X(22, kComplete, complete, kNothing, [](M& m, Ticket ticket) { return m.complete(ticket); })     \
  X(23, kFinish, finish, kNothing, [](M& m, Ticket ticket) { return m.finish(ticket); })           \
  X(24, kDrop, drop, kNothing, [](M& m, Ticket ticket) { return m.drop(ticket); })                 \
  X(25, kFail, fail, kCount, [](M& m, Ticket ticket) { return m.fail(ticket); })                   \
  X(26, kAccept, accept, kNothing, [](M& m, SequenceId id, Int n) { return m.accept(id, n); })     \
  X(27, kAdmit, admit, kNothing,                                                                   \
    [](M& m, std::span<const AppendDemand> demands) { return m.admit(demands); })                  \
  X(28, kAdmitOne, admit, kNothing, [](M& m, SequenceId id, Long n) { return m.admit(id, n); })    \
  X(29, kReserve, reserve, kNothing,                                                               \
    [](M& m, SequenceId id, Long n, ReserveOptions o) { return m.reserve(id, n, o); })             \
  X(30, kEvict, evict, kCount,                                                                     \
    [](M& m, GroupId group, Int n, OutBlocks out) { return m.evict(group, n, out.blocks); })       \
  X(31, kReset, reset, kCount, [](M& m) { return m.reset(); })                                     \
  X(32, kForgetRoot, forget, kCount, [](M& m, RootKey root) { return m.forget(root); })            \
  X(33, kForget, forget, kCount,                                                                   \
    [](M& m, Tokens tokens, OpenOptions o) { return m.forget(tokens, o); })                        \
  X(34, kPin, pin, kPin, [](M& m, Tokens tokens, OpenOptions o) { return m.pin(tokens, o); })      \
  X(35, kUnpin, unpin, kNothing, [](M& m, PinId id) { return m.unpin(id); })                       \
  X(36, kSelectVictim, select_victim, kSequence,                                                   \
    [](M& m, Policy policy) { return m.select_victim(policy); })                                   \
  X(37, kPreemptTo, preempt_to, kCount,                                                            \
    [](M& m, double target, Policy policy) { return m.preempt_to(target, policy); })               \
  X(38, kBeginLoad, begin_load, kLoad,                                                             \
    [](M& m, SequenceId id, Tokens prompt, Int end) { return m.begin_load(id, prompt, end); })     \
  X(39, kFinishLoad, finish_load, kCount,                                                          \
    [](M& m, LoadId id, Int n) { return m.finish_load(id, n); })                                   \
  X(40, kHoldBlocks, hold_blocks, kHold,                                                           \
    [](M& m, GroupId group, Tokens blocks) { return m.hold_blocks(group, blocks); })               \
  X(41, kReleaseHold, release_hold, kNothing, [](M& m, HoldId id) { return m.release_hold(id); })  \
  X(42, kTakeFindable, take_findable, kCount,                                                      \
    [](M& m, OutFindable out) { return m.take_findable(out.blocks); })                             \
  X(43, kTouch, touch, kNothing, [](M& m, SequenceId id) { return m.touch(id); })                  \
  X(44, kAppendPrompt, append_prompt, kCount,                                                      \
    [](M& m, SequenceId id, Tokens prompt, Long n) { return m.append_prompt(id, prompt, n); })     \
  X(45, kCancel, cancel, kNothing, [](M& m, SequenceId id) { return m.cancel(id); })

enum class Op : std::uint8_t {
  kEnd = 0,
#define KVFOLIO_OP_CODE(number, code, name, first, ...) code = number,
  KVFOLIO_OPS(KVFOLIO_OP_CODE)
#undef KVFOLIO_OP_CODE
};

struct OpName {
  std::string_view name;
  First first = First::kNothing;
};
inline constexpr OpName kOps[] = {{"end"},
#define KVFOLIO_OP_NAME(number, code, name, first, ...) {#name, First::first},
                                  KVFOLIO_OPS(KVFOLIO_OP_NAME)
#undef KVFOLIO_OP_NAME
};
inline constexpr std::size_t kNumOps = std::size(kOps);
#define KVFOLIO_OP_IN_PLACE(number, code, call, first, ...) \
  static_assert(kOps[number].name == std::string_view(#call), "numbers follow each other");
KVFOLIO_OPS(KVFOLIO_OP_IN_PLACE)
#undef KVFOLIO_OP_IN_PLACE
[[nodiscard]] constexpr const OpName& name_of(Op op) noexcept {
  return kOps[static_cast<std::size_t>(op)];
}

// The format. Behind the magic: format and bytes of the body as 32 bits, the body, and 32 bits of
// the hash of all before them. Calls stand in pieces (op_piece.h). Older formats are read and not
// written, but for tests. Format 3 lacks the fixed shapes of PlanOptions, and null_block; drafts
// did otherwise to appends, commits and promises then. Format 2 knows of no announcements, and
// lacks GroupSpec::rewind and PlanOptions::caller_ids; truncate() took nothing back from the cache
// then. In format 1 the calls follow bare, the hash is that of the body, and the options lack
// copies_by_host, too. When it was written, commit() and append() refused no mistake of a host.
// Each is replayed by the rules of then, see detail::answer_as_in().
inline constexpr std::string_view kOpLogMagic = "KVFOPLOG";
inline constexpr std::uint32_t kOpLogFormat = 4;
inline constexpr std::uint32_t kOpLogFormatBare = 1;
inline constexpr std::uint32_t kOpLogFormatTakesBack = 3;  // the first in which truncate() does
inline constexpr std::uint32_t kOpLogFormatDrafts = 4;  // the first with drafts of several appends
inline constexpr std::uint32_t kMostHeaderBytes = 8192;

}  // namespace kvfolio
