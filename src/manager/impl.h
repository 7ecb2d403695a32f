// SPDX-License-Identifier: Apache-2.0
#pragma once

// The insides of KVCacheManager: nouns with state of their own (the headers named in brackets), and
// verbs over them. A public call is defined where its verb lives; what several verbs share is a
// function of Impl.
//   manager.cc    creation (options.h)
//   sequences.cc  open, probe, fork, close, preempt (rows.h, sequence.h, prompts.h)
//   adopt.cc      adopt
//   truncate.cc   truncate, clear, trim (tables.h)
//   pins.cc       pin, unpin (pin_set.h)
//   questions.cc  info, block tables, slots, the list of sequences
//   steps.cc      begin, undo, commit, complete, drop, fail, names, drafts (step_log.h,
//                 unnamed_tokens.h, drafts.h, publisher.h)
//   append.cc     append (append_rules.h, sequence_spans.h, table_blocks.h)
//   admit.cc      whether appends would succeed
//   reserve.cc    appends that are never short of blocks (promises.h)
//   each.cc       one token for each of many sequences
//   announce.cc   what will be published soon (announcements.h)
//   loads.cc      loads: appends whose bytes come from elsewhere (transfers.h, load_blocks.h)
//   holds.cc      blocks that a host copies from
//   findable.cc   what became findable, and what stands in front of it (blocks.h)
//   room_calls.cc what the caller sees of the room, and why there is none (blocks.h, room.h)
//   preempt.cc    which sequence makes room: priorities, preempt_to (victims.h, ranked_rows.h)
//   names.cc      the callers' own ids (caller_ids.h)
//   forget.cc     reset, forget
//   plan.cc       the arrays of a step (plan_writer.h, plan_layout.h)
//   describe.cc   the printed form
//   copy.cc       copy_to
//   state.cc      state_hash (base/state_writer.h)
//   to_string.cc  records for people
//   op_*          the operation log: recording; src/oplog reads and replays it
//   check.cc      check_invariants

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/block_size.h"
#include "base/mutants.h"
#include "base/packed_id.h"
#include "base/text.h"
#include "kvfolio/block_table.h"
#include "kvfolio/fixed_array.h"
#include "kvfolio/group_rule.h"
#include "kvfolio/manager.h"
#include "kvfolio/prefix_tree.h"
#include "kvfolio/span_arena.h"
#include "kvfolio/storage.h"
#include "manager/announcements.h"
#include "manager/append_rules.h"
#include "manager/arguments.h"
#include "manager/blocks.h"
#include "manager/borders.h"
#include "manager/caller_ids.h"
#include "manager/drafts.h"
#include "manager/ended_list.h"
#include "manager/group.h"
#include "manager/load_blocks.h"
#include "manager/moved_from.h"
#include "manager/op_codes.h"
#include "manager/pin_set.h"
#include "manager/promises.h"
#include "manager/prompts.h"
#include "manager/publisher.h"
#include "manager/ranked_rows.h"
#include "manager/room.h"
#include "manager/rows.h"
#include "manager/sequence.h"
#include "manager/sequence_spans.h"
#include "manager/step_log.h"
#include "manager/table_blocks.h"
#include "manager/tables.h"
#include "manager/transfers.h"
#include "manager/unnamed_tokens.h"
#include "manager/victims.h"

namespace kvfolio {

class PlanWriter;
class StateWriter;

class OpLog;

class KVCacheManager::Impl {
 public:
  static Result<std::unique_ptr<Impl>> create(const CacheSpec& spec, const ManagerOptions& options);

  // sequences.cc
  Result<Opened> open(std::span<const std::int32_t> tokens, const OpenOptions& options,
                      std::string_view what);
  // truncate.cc
  Status truncate(SequenceId id, std::int32_t n, std::string_view what);
  // append.cc
  Status append(SequenceId id, const std::int32_t* tokens, std::int64_t count,
                const AppendOptions& options);
  // room_calls.cc
  Status check_group(std::string_view what, GroupId group) const;
  Status check_block(std::string_view what, GroupId group, BlockId block) const;
  double utilization() const noexcept;
  // describe.cc
  std::int64_t bytes_total() const noexcept;
  std::int64_t bytes_used() const noexcept;
  // copy.cc
  Status copy_to(Impl& target, bool& lost_bytes) const;
  Status copy_bytes_to(KVStorage& target) const;
  static void close_all(KVCacheManager& manager);
  // op_writer.h
  template <typename Call, typename... Arguments>
  auto recorded(Op op, Call call, Arguments... arguments);
  // op_log.cc
  [[nodiscard]] bool was_used() const noexcept;
  void stop_log(std::string_view why) noexcept;
  // check.cc
  class Checker;
  // state.cc
  // `open`: the rows of the open sequences, in the order in which they are named. Costs a walk over
  // everything. Requires: no load or hold is open. kOutOfMemory: the tables of names.
  [[nodiscard]] Status put_state(std::span<const std::int32_t> open, StateWriter& out) const;

  CacheSpec spec_;
  ManagerOptions options_;
  std::optional<KVStorage> storage_;
  // For replays: run_copies() answers as if there were storage; and calls answer by the rules of
  // the libraries that wrote logs of this format (detail::answer_as_in()).
  bool imagines_storage_ = false;
  std::uint32_t rules_of_ = kOpLogFormat;
  Counters counters_;
  OpLog* log_ = nullptr;                  // where calls are recorded
  std::shared_ptr<const void> lifetime_;  // a ManagerAlias sees it end
  Rows rows_;

  std::vector<Group> groups_;
  std::optional<PrefixTree> tree_;
  // Reads the members around it.
  Blocks blocks_{tree_, groups_, steps_, rows_, counters_, options_.order};

  static constexpr std::int32_t kNever = Sequence::kNever;
  static constexpr std::int32_t kUnnamed = -1;

  using Life = Sequence::Life;

  Impl(CacheSpec spec, const ManagerOptions& options) : spec_(std::move(spec)), options_(options) {}

  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  Group& group(std::int32_t g) noexcept { return groups_[static_cast<std::size_t>(g)]; }
  const Group& group(std::int32_t g) const noexcept { return groups_[static_cast<std::size_t>(g)]; }
  [[nodiscard]] std::int32_t block_size(std::int32_t g) const noexcept {
    return group(g).spec.block_size;
  }
  [[nodiscard]] bool windowed(std::int32_t g) const noexcept { return group(g).windowed(); }
  [[nodiscard]] std::int32_t block_of(std::int32_t g, std::int32_t position) const noexcept {
    return group(g).block_of(position);
  }
  [[nodiscard]] std::int32_t blocks_for(std::int32_t g, std::int32_t tokens) const noexcept {
    return group(g).blocks_for(tokens);
  }
  BlockTable& table(std::int32_t row, std::int32_t g) noexcept { return tables_.of(row, g); }
  const BlockTable& table(std::int32_t row, std::int32_t g) const noexcept {
    return tables_.of(row, g);
  }
  SequenceDetails& details(std::int32_t row) noexcept { return rows_.details(row); }
  const SequenceDetails& details(std::int32_t row) const noexcept { return rows_.details(row); }

  // manager.cc
  // The parts of create(): pools and orders, the tree, and what there is for each sequence.
  [[nodiscard]] Status make_groups();
  [[nodiscard]] Status make_tree();
  [[nodiscard]] Status make_rows();
  [[nodiscard]] Status clear_null_blocks();
  // The row of an open sequence, or -1; not_found() says why there is none.
  [[nodiscard]] std::int32_t lookup(SequenceId id) const noexcept { return rows_.find(id); }
  [[nodiscard]] Status find(SequenceId id, std::int32_t& row) const {
    row = lookup(id);
    return row >= 0 ? Status() : not_found(id);
  }
  [[nodiscard]] Status not_found(SequenceId id) const;
  // For an error's sentence: "sequence 0.1".
  [[nodiscard]] std::string name_of(std::int32_t row) const {
    return to_string(rows_.id_of(rows_[row]));
  }
  // Not in the open step.
  [[nodiscard]] Status check_resting(std::int32_t row, std::string_view what) const;
  [[nodiscard]] Status find_resting(SequenceId id, std::string_view what, std::int32_t& row) const;
  // sequences.cc
  [[nodiscard]] std::int32_t take_row() noexcept;
  // Why there is none.
  [[nodiscard]] Status no_row(std::string_view what, std::string_view advice) const;
  // A step that is not complete reads a table in this row: no other sequence may write there.
  [[nodiscard]] bool row_is_used(std::int32_t row) const noexcept {
    return options_.order == Order::kUnordered && !steps_.is_complete(rows_[row].row_ticket());
  }
  void give_row(std::int32_t row, bool aborted) noexcept;
  void untake_row(std::int32_t row) noexcept;
  [[nodiscard]] Status check_growth(const Sequence& s, std::string_view what,
                                    std::int64_t count) const {
    return kvfolio::check_growth(what, count, s.length,
                                 s.has_limit ? rows_.details(rows_.row_of(s)).max_tokens : 0,
                                 rows_.id_of(s));
  }
  void end_sequence(std::int32_t row) noexcept;
  void forget_sequence(std::int32_t row, bool aborted) noexcept;
  // announce.cc
  struct Announcers;
  void announce(std::int32_t row, const Announcements::Prompt& prompt) noexcept;
  void end_announcement(std::int32_t row) noexcept { publisher_.end_announcement(row); }
  void follow_announcement(std::int32_t row, std::int32_t at, const std::int32_t* tokens,
                           std::int32_t count, std::int32_t draft) noexcept;
  [[nodiscard]] Soon find_soon(const Announcements::Prompt& prompt) const noexcept;
  // adopt.cc
  [[nodiscard]] Status check_adopted(std::int32_t g, std::span<const std::int32_t> blocks,
                                     std::int32_t num_tokens);
  // truncate.cc
  // truncate() to this length or more is never refused (SequenceInfo).
  [[nodiscard]] std::int32_t rewind_from(std::int32_t row) const noexcept;
  template <typename Visit>
  void for_each_missing(std::int32_t row, std::int32_t n, const Visit& visit) const;
  [[nodiscard]] BlockId block_on_path(const Sequence& s, std::int32_t g,
                                      std::int32_t logical) const noexcept;
  [[nodiscard]] Status check_truncate(std::int32_t row, std::int32_t n) const;
  void take_back(std::int32_t row, std::int32_t n) noexcept;
  void drop_pending_beyond(Sequence& s) noexcept;
  void truncate_to(std::int32_t row, std::int32_t n) noexcept;
  // pins.cc
  [[nodiscard]] PrefixMatch match_whole_blocks(std::int32_t root,
                                               std::span<const std::int32_t> tokens,
                                               std::span<const MediaSpan> media) const noexcept;
  void release_pin(std::int32_t pin) noexcept;
  // steps.cc
  [[nodiscard]] Status check_done(const Step& step) const;
  void undo_entry(Step& step, std::int32_t entry) noexcept;
  void end_step(Step& step, bool failed) noexcept;
  void abort_writers() noexcept;
  void close_ranks(Step& step) noexcept {
    step.close_ranks([this](std::int32_t row, std::int32_t at) { rows_[row].step_entry = at; });
  }
  void end_waiting() noexcept;
  // admit.cc
  [[nodiscard]] Status check_demands(std::span<const AppendDemand> demands);
  [[nodiscard]] std::int64_t total_demand(std::span<const AppendDemand> demands, std::int32_t g,
                                          std::int32_t* reused) noexcept;
  [[nodiscard]] Shortage shortage_of(const Room::Plan& plan,
                                     std::span<const AppendDemand> demands) const noexcept;
  struct Prospect;
  [[nodiscard]] Status check_prospect(std::span<const std::int32_t> tokens,
                                      const OpenOptions& options, std::int64_t num_more) const;
  [[nodiscard]] Result<Prospect> prospect_of(std::span<const std::int32_t> tokens,
                                             const OpenOptions& options) const;
  [[nodiscard]] bool would_hold(Prospect& s) const noexcept;
  [[nodiscard]] bool would_fit(const Prospect& s, std::int32_t end) const noexcept;
  [[nodiscard]] Revived revived_by(const PrefixMatch& match, std::int32_t g) const noexcept;
  [[nodiscard]] Demand demand_behind(const Prospect& s, std::int32_t g, const Revived& held,
                                     std::int32_t end, std::int64_t most) const noexcept;
  [[nodiscard]] std::int32_t least_blocks(std::int32_t g, std::int32_t size, std::int32_t end,
                                          std::int64_t most) const noexcept;
  // Why there is no room for a plan once these blocks are held.
  [[nodiscard]] Shortage shortage_behind(const Room::Plan& plan, const Revived& held,
                                         std::int32_t least) const noexcept;
  [[nodiscard]] bool would_fit(std::int32_t row, std::int32_t end) const noexcept;
  // append.cc
  [[nodiscard]] Status check_append(std::int32_t row, std::string_view what,
                                    const std::int32_t* tokens, std::int64_t count,
                                    const AppendOptions& options) const;
  [[nodiscard]] Status check_own_prompt(std::int32_t row,
                                        std::span<const std::int32_t> prompt) const;
  [[nodiscard]] Status append_to(std::int32_t row, std::string_view what,
                                 const std::int32_t* tokens, std::int64_t count,
                                 const AppendOptions& options);
  // accept() has decided on all of its tokens.
  [[nodiscard]] Status check_decided(std::int32_t row, std::string_view what) const;
  // It may grow: it is in no step, no load is open, and drafts before do not forbid it.
  [[nodiscard]] Status check_growing(std::int32_t row, std::string_view what) const;
  [[nodiscard]] Status check_ready(std::int32_t row, std::string_view what) const;
  // The open step, if there is one, takes appends.
  [[nodiscard]] Status check_step(std::string_view what) const;
  [[nodiscard]] bool grow_spans(std::int32_t row, std::int32_t end) noexcept;
  void join(Step& step, std::int32_t row, const std::int32_t* tokens, std::int32_t count,
            std::int32_t write_begin, std::int32_t draft, bool overwrites) noexcept;
  [[nodiscard]] bool may_append_inside(const std::int32_t* tokens,
                                       std::size_t count) const noexcept;
  [[nodiscard]] bool append_inside(Step& step, std::int32_t row,
                                   const std::int32_t* token) noexcept;
  // loads.cc
  [[nodiscard]] Status check_no_promise(std::int32_t row, std::string_view what) const;
  [[nodiscard]] Status check_load(std::int32_t row, std::string_view what,
                                  std::span<const std::int32_t> prompt, std::int64_t end) const;
  [[nodiscard]] bool runs_with(std::int32_t row,
                               std::span<const std::int32_t> prompt) const noexcept;
  [[nodiscard]] PrefixMatch hit_behind(std::int32_t row,
                                       std::span<const std::int32_t> prompt) const noexcept;
  [[nodiscard]] Status check_room(const LoadPlan& plan) const;
  void grow_without_step(std::int32_t row, std::int32_t end, const std::int32_t* tokens,
                         const Transfers::Prompt& prompt) noexcept;
  void take_hit(std::int32_t row, std::span<const std::int32_t> prompt, LoadPlan& plan) noexcept;
  Result<Load> begin_load(std::int32_t row, std::span<const std::int32_t> whole, std::int32_t end);
  [[nodiscard]] Status find_load(LoadId id, std::int32_t& load) const;
  [[nodiscard]] Status check_no_load(std::int32_t row, std::string_view what) const;
  void leave_load(std::int32_t row) noexcept;
  void hand_over(std::int32_t number, std::int32_t end) noexcept;
  [[nodiscard]] Status check_has(std::int32_t limit,
                                 std::span<const std::span<std::uint8_t>> has) const;
  // holds.cc
  [[nodiscard]] Status check_hold(GroupId group, std::span<const std::int32_t> blocks) const;
  // findable.cc
  [[nodiscard]] Status check_findable(std::string_view what, GroupId group, BlockId block) const;
  // each.cc
  void prefetch_each(std::span<const SequenceId> ids, std::size_t at) const noexcept;
  // Adds to `num_done` for each sequence that has joined the step. Unnamed without tokens.
  [[nodiscard]] Status append_each(std::string_view what, std::span<const SequenceId> ids,
                                   const std::int32_t* tokens, std::int32_t& num_done);
  [[nodiscard]] bool replays(const Sequence& s, const std::int32_t* tokens,
                             std::int64_t count) const noexcept {
    return s.replay && count > 0 && tokens != nullptr &&
           tokens[0] == rows_.details(rows_.row_of(s)).replay_token;
  }
  // room_calls.cc
  // Why there is no room for a plan; of the blocks that it needs, `spared` may be done without
  // another time (Shortage).
  [[nodiscard]] Shortage shortage(const Room::Plan& plan, std::int32_t kept,
                                  std::int64_t spared) const noexcept;
  // The same where no call keeps anything and another time may ask for nothing.
  [[nodiscard]] Shortage shortage(const Room::Plan& plan) const noexcept {
    return shortage(plan, 0, plan.needs.blocks[static_cast<std::size_t>(plan.short_of)]);
  }
  // Blocks of the row's table, and those that lie ready for it.
  [[nodiscard]] std::int32_t num_kept(std::int32_t row, std::int32_t g) const noexcept;
  // reserve.cc
  [[nodiscard]] static Status check_chunks(std::string_view what, const ReserveOptions& chunks);
  [[nodiscard]] Result<Promises::Offer> offer(std::int32_t row, std::string_view what,
                                              std::int64_t num_tokens,
                                              const ReserveOptions& chunks) const;
  // Room for what it costs that the blocks of these tables, by group, get another holder.
  [[nodiscard]] Status check_sharing(std::span<const std::span<const std::int32_t>> tables) const;
  [[nodiscard]] Status check_sharing(std::int32_t row) const;
  [[nodiscard]] bool fits_promises(const PrefixMatch& match, std::int32_t size) const noexcept;
  // preempt.cc
  [[nodiscard]] RankedRows ranked_by(VictimPolicy policy) const noexcept;
  void prefetch_victims(std::int32_t row) const noexcept;
  void note_ended(std::int32_t row) noexcept;
  // names.cc
  void keep_caller_id(std::int32_t row, const std::optional<std::uint64_t>& id) noexcept;
  void forget_caller_id(std::int32_t row) noexcept;
  // forget.cc
  // What begins with these tokens.
  struct Path {
    std::int32_t root;
    std::span<const std::int32_t> tokens;
    std::span<const MediaSpan> media;
  };
  // `more`: tokens that stand behind those of the sequence.
  [[nodiscard]] bool runs_on(std::int32_t row, const Path& path,
                             std::span<const std::int32_t> more = {}) const noexcept;
  [[nodiscard]] bool loads_on(std::int32_t row, const Path& path) const noexcept;
  [[nodiscard]] bool is_pinned_on(std::int32_t pin, const Path& path) const noexcept;
  Forgotten forget(const Path& path) noexcept;
  // plan.cc
  [[nodiscard]] Result<const StepPlan*> plan_open_step(const PlanOptions& options);
  [[nodiscard]] Result<const StepPlan*> plan_shaped(const PlanOptions& options, PlanWriter& writer);
  [[nodiscard]] Status copy_tails(const Step& step);

  // copy.cc
  void copy_from(const Impl& other) noexcept;

  SpanArena& arena() noexcept { return tables_.arena(); }
  const SpanArena& arena() const noexcept { return tables_.arena(); }

  Tables tables_;
  SequenceSpans spans_{rows_, tables_, groups_, tree_};
  Promises promises_{rows_, tables_, groups_, steps_, blocks_, options_.order};
  Prompts prompts_{rows_, tables_, tree_};
  AppendRules append_rules_{rows_, tables_, groups_, tree_, steps_, blocks_, promises_};
  Borders borders_{rows_, tables_, groups_, tree_, blocks_};
  Announcements announcements_;
  Publisher publisher_{rows_,    tables_, groups_,  tree_,     steps_,   blocks_,
                       borders_, spans_,  prompts_, counters_, options_, announcements_};
  TableBlocks table_blocks_{rows_,   tables_,   groups_,  steps_,
                            blocks_, promises_, borders_, options_.order};
  CallerIds caller_ids_;  // of open sequences
  PinSet pins_;
  Transfers transfers_;
  LoadBlocks load_blocks_{rows_, tables_, groups_, tree_, transfers_, blocks_, promises_};
  // [2][sequence]. commit(): who publishes. admit(): tails that were claimed for a try; marks.
  FixedArray<std::int32_t> scratch_;
  Victims victims_;
  EndedList ended_;  // by the last fail() or preempt_to()
  StepLog steps_;
  UnnamedTokens unnamed_;
  Drafts drafts_;
  std::uint64_t forget_count_ = 0;
};

// The way in for functions that are no members.
struct ManagerInside {
  static auto& of(KVCacheManager& manager) noexcept { return *manager.impl_; }
  static const auto& of(const KVCacheManager& manager) noexcept { return *manager.impl_; }
};

}  // namespace kvfolio
