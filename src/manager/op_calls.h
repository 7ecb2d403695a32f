// SPDX-License-Identifier: Apache-2.0
#pragma once

// Each call of a log as a function of a manager and of its recorded arguments, in their order. From
// the types of these functions the arguments are read and printed.

#include "manager/op_archive.h"
#include "manager/op_codes.h"

namespace kvfolio {

namespace calls {

using M = KVCacheManager;
using Tokens = std::span<const std::int32_t>;
using Ids = std::span<const SequenceId>;
using Int = std::int32_t;
using Long = std::int64_t;
using Policy = std::optional<VictimPolicy>;

// with() is called with the function of the call, if `op` is one of these.
template <typename With>
void sequence_call(Op op, const With& with) {
  switch (op) {
    case Op::kOpen:
      return with([](M& m, Tokens tokens, OpenOptions o) { return m.open(tokens, o); });
    case Op::kFork:
      return with([](M& m, SequenceId id, ForkOptions o) { return m.fork(id, o); });
    case Op::kAdopt:
      return with(
          [](M& m, SequenceId id, std::span<const Tokens> t, Int n) { return m.adopt(id, t, n); });
    case Op::kTruncate:
      return with([](M& m, SequenceId id, Int n) { return m.truncate(id, n); });
    case Op::kClear:
      return with([](M& m, SequenceId id) { return m.clear(id); });
    case Op::kTrim:
      return with([](M& m, SequenceId id, TrimOptions o) { return m.trim(id, o); });
    case Op::kClose:
      return with([](M& m, SequenceId id) { return m.close(id); });
    case Op::kPreempt:
      return with([](M& m, SequenceId id) { return m.preempt(id); });
    case Op::kSetPriority:
      return with([](M& m, SequenceId id, Int priority) { return m.set_priority(id, priority); });
    case Op::kCancel:
      return with([](M& m, SequenceId id) { return m.cancel(id); });
    case Op::kTouch:
      return with([](M& m, SequenceId id) { return m.touch(id); });
    case Op::kOpenUnnamed:
      return with([](M& m, Long n, OpenOptions o) { return m.open_unnamed(n, o); });
    case Op::kSetTokens:
      return with([](M& m, SequenceId id, Tokens tokens) { return m.set_tokens(id, tokens); });
    case Op::kSetTokensEach:
      return with([](M& m, Ids ids, Tokens tokens, OutCount done) {
        return m.set_tokens_each(ids, tokens, done.count);
      });
    case Op::kAccept:
      return with([](M& m, SequenceId id, Int n) { return m.accept(id, n); });
    case Op::kBeginLoad:
      return with([](M& m, SequenceId id, Tokens prompt, Int end) {
        return m.begin_load(id, prompt, end);
      });
    case Op::kFinishLoad:
      return with([](M& m, LoadId id, Int n) { return m.finish_load(id, n); });
    case Op::kHoldBlocks:
      return with([](M& m, GroupId group, Tokens blocks) { return m.hold_blocks(group, blocks); });
    case Op::kReleaseHold:
      return with([](M& m, HoldId id) { return m.release_hold(id); });
    case Op::kTakeFindable:
      return with([](M& m, OutFindable out) { return m.take_findable(out.blocks); });
    default:
      return;
  }
}

template <typename With>
void step_call(Op op, const With& with) {
  switch (op) {
    case Op::kBeginStep:
      return with([](M& m, StepOptions o) { return m.begin_step(o); });
    case Op::kAppend:
      return with([](M& m, SequenceId id, Tokens tokens, AppendOptions o) {
        return m.append(id, tokens, o);
      });
    case Op::kAppendPrompt:
      return with([](M& m, SequenceId id, Tokens prompt, Long n) {
        return m.append_prompt(id, prompt, n);
      });
    case Op::kAppendUnnamed:
      return with(
          [](M& m, SequenceId id, Long n, AppendOptions o) { return m.append_unnamed(id, n, o); });
    case Op::kAppendEach:
      return with([](M& m, Ids ids, Tokens tokens, OutCount done) {
        return m.append_each(ids, tokens, done.count);
      });
    case Op::kAppendUnnamedEach:
      return with(
          [](M& m, Ids ids, OutCount done) { return m.append_unnamed_each(ids, done.count); });
    case Op::kUndo:
      return with([](M& m, SequenceId id) { return m.undo(id); });
    case Op::kPlan:
      return with([](M& m, PlanOptions o) { return m.plan(o); });
    case Op::kRunCopies:
      return with([](M& m) { return m.run_copies(); });
    case Op::kCommit:
      return with([](M& m, Ticket ticket) { return m.commit(ticket); });
    case Op::kComplete:
      return with([](M& m, Ticket ticket) { return m.complete(ticket); });
    case Op::kFinish:
      return with([](M& m, Ticket ticket) { return m.finish(ticket); });
    case Op::kDrop:
      return with([](M& m, Ticket ticket) { return m.drop(ticket); });
    case Op::kFail:
      return with([](M& m, Ticket ticket) { return m.fail(ticket); });
    default:
      return;
  }
}

template <typename With>
void room_call(Op op, const With& with) {
  switch (op) {
    case Op::kAdmit:
      return with([](M& m, std::span<const AppendDemand> demands) { return m.admit(demands); });
    case Op::kAdmitOne:
      return with([](M& m, SequenceId id, Long n) { return m.admit(id, n); });
    case Op::kReserve:
      return with(
          [](M& m, SequenceId id, Long n, ReserveOptions o) { return m.reserve(id, n, o); });
    case Op::kEvict:
      return with(
          [](M& m, GroupId group, Int n, OutBlocks out) { return m.evict(group, n, out.blocks); });
    case Op::kReset:
      return with([](M& m) { return m.reset(); });
    case Op::kForgetRoot:
      return with([](M& m, RootKey root) { return m.forget(root); });
    case Op::kForget:
      return with([](M& m, Tokens tokens, OpenOptions o) { return m.forget(tokens, o); });
    case Op::kPin:
      return with([](M& m, Tokens tokens, OpenOptions o) { return m.pin(tokens, o); });
    case Op::kUnpin:
      return with([](M& m, PinId id) { return m.unpin(id); });
    case Op::kSelectVictim:
      return with([](M& m, Policy policy) { return m.select_victim(policy); });
    case Op::kPreemptTo:
      return with([](M& m, double target, Policy policy) { return m.preempt_to(target, policy); });
    default:
      return;
  }
}

}  // namespace calls

template <typename With>
void with_call(Op op, const With& with) {
  calls::sequence_call(op, with);
  calls::step_call(op, with);
  calls::room_call(op, with);
}

}  // namespace kvfolio
