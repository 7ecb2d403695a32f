// SPDX-License-Identifier: Apache-2.0
#pragma once

// Drives one KVCacheManager with random calls, good and bad, and compares every answer and the
// whole observable state with the naive model of model.h. A fake device runs the plans on its own
// thread, late, phase by phase, at times and in an order drawn from the seed within what the
// tickets allow, and looks at everything that attention would read (fake_device/fake_device.h).
//
// Below the manager stands a tier (ops_tier.cc): what becomes findable is held, copied out of the
// device's memory, and loaded again by a tier that is late, partial, wrong, silent, or says it
// twice.
//
// Operation i of a run draws from its own generator, seeded by (seed, i): any subset of a run can
// be replayed, so a failing run shrinks to the calls that matter.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fake_device/fake_device.h"
#include "kvfolio/manager.h"
#include "kvfolio/op_log.h"
#include "model_check/model.h"
#include "model_check/runs.h"

namespace kvfolio::model_check {

class Harness {
 public:
  explicit Harness(const Config& config);
  ~Harness();
  Harness(const Harness&) = delete;
  Harness& operator=(const Harness&) = delete;

  // One operation and all checks. Throws CheckFailed.
  void run(std::uint64_t op_seed);
  // Closes everything and looks for what leaked.
  void drain();
  // The log of the first manager, before the first operation (op_log.h); null: no more.
  void record(OpLog* log) { manager_->record(log); }
  [[nodiscard]] Result<std::uint64_t> state_hash() const { return manager_->state_hash(); }

  // The last call and its answer, with ids, plan arrays and tables: equal for equal calls.
  [[nodiscard]] const std::string& log() const { return log_; }
  // The digest of all calls so far: ids, plans, error codes, the integers of each Shortage,
  // counters. No sentence of an error counts, and no printed form.
  [[nodiscard]] std::uint64_t digest() const { return digest_; }
  // Whether the last operation could not have changed anything whatever it answered.
  [[nodiscard]] bool read_only() const { return read_only_; }
  [[nodiscard]] const Coverage& coverage() const { return coverage_; }
  // Leaves out every call that promises to change nothing.
  void skip_questions() { skip_questions_ = true; }

 private:
  using SeqPtr = std::shared_ptr<Seq>;
  using Codes = std::set<ErrorCode>;
  struct SeqState {
    SequenceInfo info;
    Tables tables;
  };
  struct GroupState {
    GroupUsage usage;
    std::vector<std::int32_t> refs;
    std::vector<char> findable;
  };
  struct Snapshot {
    std::vector<std::pair<SeqPtr, SeqState>> seqs;
    std::vector<GroupState> groups;
    Counters counters;
  };
  struct Member {
    SeqPtr seq;
    Seq model_before;
    SeqState state_before;
    std::vector<std::int32_t> displaced;  // as in StepWork::Row
  };
  struct Pin {
    PinId id;
    Prompt prompt;
    int pinned = 0;
    std::vector<std::vector<std::int32_t>> blocks;  // [group] that it holds
  };
  // The other side of the last copy_to(): nothing touches it, so nothing of it changes.
  struct Aside {
    KVCacheManager manager;
    std::unique_ptr<fake_device::FakeDevice> device;  // of its storage, if it has one
    bool quiet;                                       // no step is open or in flight
    std::vector<Prompt> prompts;                      // that facts_of() asked for
    std::vector<std::uint64_t> facts;
    std::vector<Ticket> plans;  // of steps in flight: the device may still read their arrays
  };
  // What the tier brings of a block, and how.
  enum class Luck { kGood, kMiss, kRubbish, kOther, kHalf, kSilent };
  struct Arrival {
    Luck luck = Luck::kGood;
    bool has_come = false;
    bool good = false;  // every byte of it that counts is its token's
  };
  struct OpenLoad {
    LoadId id;
    SeqPtr seq;  // null: it is gone, or shorter
    int begin = 0;
    int end = 0;
    Seq content;                                 // what the sequence would be
    std::vector<std::vector<LoadBlock>> blocks;  // [group] to write
    std::vector<int> found;                      // [group] references to what the cache had
    bool forgotten = false;
    bool failed = false;      // a step has failed since it began
    bool from_tier = false;   // then:
    std::vector<int> prompt;  // nodes of the whole prompt, which goes on behind `end`
    std::vector<std::vector<Arrival>> arrivals{};  // [group], for each of `blocks`
  };
  struct OpenHold {
    HoldId id;
    int group = 0;
    std::vector<std::int32_t> blocks;
    std::vector<std::vector<int>> nodes;  // [block] of the leading offsets, as it was held
    int stored = kPoison;                 // a store of one whole block, whose last node this is
    Prompt path;                          // then: the tokens up to that
  };
  struct BlockModel {
    std::vector<int> published;  // nodes of the leading offsets that may be findable
    int offered = 0;  // by this operation: how many of them are published whole or in part
    int certain = 0;  // how many of them are findable for sure
    int valid = 0;    // tokens that it holds, as the last step that wrote it left it
    std::uint64_t released_at = 0;  // newest committed ticket when the last reference went
    // The same, perhaps: a load may have taken the block and its windows passed it within one call,
    // which the counts before and after the call do not show.
    std::uint64_t maybe_released_at = 0;
    std::uint64_t taken_at = 0;  // ticket of the open step that allocated it
    bool poisoned = true;        // free, and the device knows it
  };

  // When a block was let go (harness_order.cc).
  struct Rank {
    std::uint64_t parked = 0;  // operation that made it cached
    std::uint64_t let_go = 0;  // operation that let go of it: earlier, if it retired
    std::vector<int> who;      // who let go then
    int depth = 0;             // logical block
    bool known = true;
  };
  // What the order of eviction depends on, of one block.
  struct BlockOrder {
    std::optional<Rank> rank;  // it has an entry and was cached since it has it
    std::optional<Rank> next;  // it was let go, and is not cached yet
    bool touched = false;      // a sequence that was appended to, or a pin, let go of it since
    bool maybe_touched = false;
    bool wanted = false;  // a prompt's hit ended inside
    bool maybe_wanted = false;
    bool read = false;  // by an end (harness_ends.cc)
    bool maybe_read = false;
    std::uint64_t hung_at = 0;  // operation since which its entry is as long as it is
    // The manager may have lost count of the borders that the block belongs to.
    bool lost_count = false;
    int least = 0;                      // tokens that its entry has at least
    std::uint64_t waits_for = 0;        // it retires until this step is complete
    std::uint64_t maybe_waits_for = 0;  // the same, perhaps
    // As last seen.
    std::vector<int> published;
    int certain = 0;
    int by_steps = 0;  // references
  };
  // A full block that the windows of a sequence have passed and that a hit at its border reads.
  struct BorderBlock {
    int group = 0;
    int logical = 0;
    int last_node = kPoison;
    std::uint64_t since = 0;  // operation
    bool sure = true;
  };
  // Blocks that lose their entries, [group][block].
  enum class Fate : char { kStays, kMayGo, kGoes };
  using Fates = std::vector<std::vector<Fate>>;
  struct Forecast {
    std::vector<Fates> outcomes;
    bool complete = true;  // there is no other outcome
    int budget = 400;      // choices that may still be made
  };

  // Operations (ops_*.cc).
  void open(Rng& rng);
  void open_prompt(const Prompt& prompt, Rng& rng);
  void open_unnamed(Rng& rng);
  void probe(Rng& rng);
  void begin(Rng& rng);
  void append(Rng& rng, bool named);
  void append_to(const SeqPtr& seq, int count, int draft, bool named, Rng& rng);
  void append_tokens(const SeqPtr& seq, const std::vector<std::int32_t>& tokens, int draft,
                     bool named, Rng& rng);
  [[nodiscard]] static bool is_prompt_again(const Seq& seq,
                                            const std::vector<std::int32_t>& tokens);
  void commit_behind_plan(Rng& rng);
  [[nodiscard]] std::size_t copies_to_run() const;
  void run_copies_first(Rng& rng, bool finishes);
  // What the checks behind an operation ask of it, and of it alone.
  void begin_operation();
  [[nodiscard]] bool waits_for_accept(const Seq& seq) const;
  [[nodiscard]] bool is_held_back(const Seq& seq) const;
  [[nodiscard]] Codes append_errors(const Seq& seq, int count, bool named, Codes& tolerated) const;
  // `usage`: of the shortage's group, when the call was made.
  void check_shortage(const Shortage& shortage, const Seq& seq, int count,
                      const GroupUsage& usage) const;
  [[nodiscard]] const GroupUsage& usage_before(const Shortage& shortage) const;
  void check_full(const Status& status, const Seq& seq);
  // The plan is to be captured afterwards.
  void join_step(const SeqPtr& seq, const SeqState& before, const std::vector<std::int32_t>& tokens,
                 bool named, int draft = 0);
  void give_names(const SeqPtr& seq, int count);
  // What a call that names many sequences needs (ops_each.cc).
  struct OneOf {
    SeqPtr seq;  // null: the id names nothing
    SequenceId id;
    Codes id_errors;
    std::int32_t token = 0;
  };
  [[nodiscard]] OneOf nobody(Rng& rng) const;
  [[nodiscard]] std::vector<OneOf> any_batch(Rng& rng, bool repeats);
  void append_each(Rng& rng, bool named);
  void check_batch_end(const Status& status, const std::vector<OneOf>& batch, std::size_t at);
  void set_tokens_each(Rng& rng);
  void set_tokens(Rng& rng);
  void undo(Rng& rng);
  void plan(Rng& rng);
  void commit(Rng& rng);
  void complete(Rng& rng);
  void finish(Rng& rng);
  void drop(Rng& rng);
  void fail(Rng& rng);
  void fork(Rng& rng);
  void adopt(Rng& rng);
  void truncate(Rng& rng);
  void clear(Rng& rng);
  void cut(const SeqPtr& seq, int n, bool by_clear);
  // The length that truncate() never refuses to go back to.
  [[nodiscard]] int rewind_from(const Seq& seq) const;
  void trim(Rng& rng);
  void close(Rng& rng, bool preempt);
  void retire_passed(const Seq& seq);
  [[nodiscard]] Tables take_border_back(const SeqPtr& seq) const;
  void end(const SeqPtr& seq, Rng& rng);
  void accept(Rng& rng);
  void pin(Rng& rng);
  void unpin(Rng& rng);
  void evict(Rng& rng);
  void admit_together(Rng& rng);
  void reserve(Rng& rng);
  [[nodiscard]] bool has_promises() const {
    const auto has = [](const Seq& seq) { return seq.has_promise(); };
    return std::any_of(seqs_.begin(), seqs_.end(), [&](const SeqPtr& s) { return has(*s); }) ||
           std::any_of(members_.begin(), members_.end(),
                       [&](const Member& m) { return has(m.model_before); });  // undo() restores it
  }
  void forget(Rng& rng);
  [[nodiscard]] bool runs_on(const Seq& seq, const Prompt& path) const;
  void forget_content(const Prompt& path);
  [[nodiscard]] bool reads_back(int size) const;
  int settle_forgotten_pins(const Prompt& path, bool resets);
  void begin_load(Rng& rng);
  // The load, or null. `prompt` goes on from the sequence's tokens, or nearly.
  OpenLoad* start_load(const SeqPtr& seq, const std::vector<std::int32_t>& prompt, int end);
  void arrive(Rng& rng);
  void finish_load(Rng& rng);
  void end_load(std::size_t i, int n, Rng& rng);
  void hold(Rng& rng);
  OpenHold& keep_hold(HoldId id, int g, const std::vector<std::int32_t>& blocks);
  void release(Rng& rng);
  // The tier (ops_tier.cc).
  void store(Rng& rng);
  void begin_store(const FindableBlock& found);
  void end_store(const OpenHold& hold, Rng& rng);
  void evict_all();
  void open_from_tier(Rng& rng);
  void load_from_tier(Rng& rng);
  void draw_luck(OpenLoad& load, Rng& rng);
  void bring(OpenLoad& load, int g, std::size_t i, Rng& rng);
  void arrive_from_tier(OpenLoad& load, Rng& rng);
  [[nodiscard]] int good_tokens(const OpenLoad& load) const;
  [[nodiscard]] const std::vector<fake_device::Digest>* record_of(const OpenLoad& load, int g,
                                                                  int logical) const;
  [[nodiscard]] Codes load_errors(const Seq& seq, int end, int prompt_size, Codes& tolerated) const;
  void note_load_references();
  void grow_by(const SeqPtr& seq, const Seq& whole, int end, const Tables& tables);
  void write_load(const OpenLoad& load, bool good, Rng& rng);
  void break_load(const OpenLoad& load, int good_end);
  void leave_load(const Seq& seq);
  [[nodiscard]] bool waits_for_load(const Seq& seq) const;
  void check_transfers(const Snapshot& now) const;
  void check_held(const OpenHold& hold, std::size_t i) const;
  void set_priority(Rng& rng);
  void select_victim(Rng& rng);
  void preempt_to(Rng& rng);
  void copy(Rng& rng);
  void bad_sequence_id(Rng& rng);
  void bad_ticket(Rng& rng);
  void bad_argument(Rng& rng);

  // Names, limits and priorities (ops_names.cc).
  [[nodiscard]] int most_stretches() const {
    return std::max(8, (config_.options.max_steps_in_flight + 2) / 2);
  }
  [[nodiscard]] OpenOptions open_options(const Prompt& prompt, Rng& rng) const;
  [[nodiscard]] bool is_taken(const std::optional<std::uint64_t>& caller_id) const;
  void check_refused_by_name(const Status& status, std::uint64_t caller_id);
  void use(Seq& seq);
  void add_slot_errors(Codes& errors, Codes& tolerated);

  // Announcements (ops_announce.cc).
  [[nodiscard]] int findable_of(int length) const;
  [[nodiscard]] int announced_from(const Seq& seq) const;
  void begin_announcement(const SeqPtr& seq, bool has_root, bool skipped);
  static void follow_announcement(Seq& seq, int begin, bool named, int guesses);
  void settle_announcements(const Snapshot& now);
  void check_soon(const Prompt& prompt, const Soon& answer);
  void ask_soon(const Prompt& prompt);
  void ask_twins_of_all();

  // Adoption (ops_adopt.cc).
  [[nodiscard]] Tables tables_to_adopt(const Seq& source, int num_tokens, Rng& rng) const;
  [[nodiscard]] Codes adopt_errors(const Seq& seq, const Tables& tables, int num_tokens) const;
  [[nodiscard]] std::optional<std::vector<int>> nodes_in(const Tables& tables, int root,
                                                         int num_tokens);

  // Room with and without the cache (harness_twin.cc).
  void make_twins();
  void keep_cold_twin();
  void check_chunks(const Prompt& prompt, const OpenOptions& options);
  void ask_twins(const Prompt& prompt, const Seq& seq);
  void check_held_entries(const Snapshot& now) const;

  // Victims (ops_victims.cc).
  using Refs = std::vector<std::vector<std::int32_t>>;  // [group][block]
  [[nodiscard]] static bool frees_a_block(const Seq& seq, const Refs& refs);
  [[nodiscard]] static SeqPtr scan_for_victim(VictimPolicy policy, const std::vector<SeqPtr>& seqs,
                                              const Refs& refs);
  [[nodiscard]] double utilization_of(const Refs& refs) const;
  [[nodiscard]] Refs refs_now() const;

  // Copies of the manager (ops_copy.cc).
  [[nodiscard]] Aside make_target();
  void settle_pins(bool may_end, Rng& rng);
  void use_target(Rng& rng, Aside& target);
  [[nodiscard]] std::vector<std::uint64_t> facts_of(KVCacheManager& manager,
                                                    const fake_device::FakeDevice* device,
                                                    const std::vector<Prompt>& prompts) const;
  void check_aside();

  // The rules of the model (harness_rules.cc).
  void apply_commit();
  void apply_complete(std::uint64_t ticket);
  void apply_drop();
  void forget_overwritten(const SeqPtr& seq);
  void forget_member(std::size_t index, bool restore);
  void publish(const Seq& seq, const Tables& tables, bool tail, bool certain = true);
  [[nodiscard]] int published_before(const Seq& seq) const;
  // Another block of the group has the tokens that this operation offered of `b`.
  [[nodiscard]] bool is_published_twice(int g, int b) const;
  void publish_whoever_waited();
  [[nodiscard]] int publishable(const Seq& seq) const;
  void check_hit(const Prompt& prompt, int hit);
  [[nodiscard]] int must_hit(const Prompt& prompt, const std::vector<int>& nodes) const;
  [[nodiscard]] int best_hit(const Prompt& prompt, const std::vector<int>& nodes) const;

  // The order of eviction (harness_order.cc).
  void note_order(const Snapshot& now);
  [[nodiscard]] bool is_hung(const Snapshot& now, int g, int b, int tokens) const;
  void note_losses(const Snapshot& now);
  void doubt_twins(const Snapshot& now);
  void note_let_go(const Snapshot& now);
  void note_borders(const Snapshot& now);
  void want_last_blocks(const Seq& seq);
  void read_what_was_found(const Seq& seq);
  void note_ends(const Snapshot& now);
  void note_ends_of(const Seq& seq, const SeqState& before, const SeqState& state,
                    const Snapshot& now);
  void note_ends_of_closed(const Seq& seq, int published, bool closes, const Snapshot& now);
  void note_where_paths_part(const Snapshot& now);
  void see_on_tree(int node);
  void mark_read(const Seq& seq, int position, int limit, bool sure, const Snapshot& now);
  [[nodiscard]] bool surely_parts(const Seq& seq, int q, const Snapshot& now) const;
  [[nodiscard]] bool maybe_parts(const Seq& seq, int q) const;
  [[nodiscard]] std::vector<BorderBlock> border_of(const Seq& seq, const SeqState& state) const;
  enum class Answer { kNo, kMaybe, kYes };
  [[nodiscard]] bool waits_for_step(std::uint64_t ticket) const;
  [[nodiscard]] static bool surely_colder(const Rank& a, const Rank& b);
  [[nodiscard]] Answer is_cached(int g, int b) const;
  [[nodiscard]] Answer is_at(const BorderBlock& place, int b) const;
  [[nodiscard]] Answer is_border(int g, int b) const;
  [[nodiscard]] Answer is_below(int g, int b, int of_group, int of_block) const;
  [[nodiscard]] std::pair<int, int> turns_of(int g, int b, const Fates& fates) const;
  void forecast(int g, int count, const Fates& fates, Forecast& result) const;
  [[nodiscard]] Forecast forecast_evictions(int g, int count) const;
  void check_evictions(int g, int evicted, const Forecast& expected);
  [[nodiscard]] std::string describe_order(int g) const;
  BlockOrder& order(int g, int b) {
    return orders_[static_cast<std::size_t>(g)][static_cast<std::size_t>(b)];
  }
  [[nodiscard]] const BlockOrder& order(int g, int b) const {
    return orders_[static_cast<std::size_t>(g)][static_cast<std::size_t>(b)];
  }

  // Blocks below this one are never given out.
  [[nodiscard]] int first_block() const { return config_.options.null_block ? 1 : 0; }

  // Plans (harness_plan.cc).
  const StepPlan* capture(PlanOptions options);
  void compare_shapes(const PlanOptions& plain);  // harness_shapes.cc
  void check_plan(const StepPlan& plan, const PlanOptions& options);
  void keep_tables(const StepPlan& plan);
  [[nodiscard]] bool trim_cuts_a_block() const;

  // The device (harness_device.cc).
  void launch(Rng& rng);
  void let_device_run();
  void move_device(Ticket ticket, fake_device::Phase phase, bool early);
  void finish_on_device(std::uint64_t ticket);
  void run_copies_on_host();
  KVStorage lent_storage(fake_device::FakeDevice& device) const;
  void meet_device();
  void poison(int g, int b);
  [[nodiscard]] bool stream_reaches(std::uint64_t ticket) const;
  [[nodiscard]] bool device_agrees(int g, int slot) const;

  // The state after each operation (harness_state.cc).
  [[nodiscard]] Snapshot look() const;
  void verify();
  void check_unchanged(const Snapshot& now) const;
  void check_sequences(const Snapshot& now);
  void check_names() const;
  [[nodiscard]] std::vector<std::int32_t> step_references(int g) const;
  [[nodiscard]] std::vector<std::int32_t> references(const Snapshot& at, int g) const;
  void check_blocks(const Snapshot& now);
  void check_usage(const Snapshot& now);
  void check_content(const Snapshot& now);
  void check_findable_content(const Snapshot& now);
  void check_pins();
  void check_counters(const Snapshot& now) const;
  [[nodiscard]] SeqState state_of(const Seq& seq) const;

  // True when the call succeeded. Fails unless it answered with one of `errors`, or ok when that is
  // empty; `tolerated` is allowed too.
  bool expect(const Status& status, const Codes& errors, const Codes& tolerated = {});
  void note(const std::string& text) {
    log_ += text;
    digest(text);
  }
  void digest(std::string_view text) {
    for (const char c : text) digest_ = (digest_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  void digest(std::span<const std::int32_t> values) {
    for (const std::int32_t value : values) digest(static_cast<std::uint64_t>(value));
    digest(values.size());
  }
  void digest(std::uint64_t value) {
    digest_ = (digest_ ^ value) * 0x9e3779b97f4a7c15u;
    digest_ ^= digest_ >> 29;
  }
  void digest_counters(const Counters& counters);

  [[nodiscard]] SeqPtr any_seq(Rng& rng) const;
  [[nodiscard]] Prompt any_prompt(Rng& rng);
  // Opened by a full hit and not appended to.
  [[nodiscard]] static bool waits_for_last_token(const Seq& seq);
  [[nodiscard]] int common_multiple() const;
  [[nodiscard]] int unit() const;
  [[nodiscard]] int num_groups() const { return isize(config_.spec.groups); }
  [[nodiscard]] const GroupSpec& group(int g) const {
    return config_.spec.groups[static_cast<std::size_t>(g)];
  }
  [[nodiscard]] bool incomplete(std::uint64_t ticket) const;
  [[nodiscard]] std::uint64_t waits_for(const Seq& seq) const;
  [[nodiscard]] std::uint64_t settles_with(const Seq& seq, int position) const;
  [[nodiscard]] bool settles_later(const Seq& seq) const;
  [[nodiscard]] bool in_order() const { return config_.options.order == Order::kInOrder; }
  Cell& cell(std::vector<std::vector<Cell>>& memory, int g, int slot) {
    return memory[static_cast<std::size_t>(g)][static_cast<std::size_t>(slot)];
  }
  [[nodiscard]] const Cell& cell(const std::vector<std::vector<Cell>>& memory, int g,
                                 int slot) const {
    return memory[static_cast<std::size_t>(g)][static_cast<std::size_t>(slot)];
  }
  BlockModel& block(int g, int b) {
    return blocks_[static_cast<std::size_t>(g)][static_cast<std::size_t>(b)];
  }
  [[nodiscard]] const BlockModel& block(int g, int b) const {
    return blocks_[static_cast<std::size_t>(g)][static_cast<std::size_t>(b)];
  }

  Config config_;
  std::optional<KVCacheManager> manager_;
  std::optional<KVCacheManager> foreign_;  // another manager, another tag
  std::optional<KVCacheManager> cold_;     // copies of the manager, from before an open()
  std::optional<KVCacheManager> hot_;      // and from behind it
  SequenceId foreign_sequence_;
  PinId foreign_pin_;
  Trie trie_;

  std::vector<SeqPtr> seqs_;
  std::vector<SeqPtr> waiting_;  // closed, with tokens in a step that is not complete
  std::vector<SeqPtr> gone_;     // closed or aborted; their rows may wait for a step
  std::vector<SequenceId> stale_;
  std::vector<SequenceId> aborted_;
  std::vector<PinId> stale_pins_;
  std::vector<Pin> pins_;
  std::vector<OpenLoad> loads_;
  std::vector<OpenHold> holds_;
  SeqPtr asks_tier_;  // opened for what the tier has
  struct Record {
    Prompt path;  // that the block ends
    std::vector<fake_device::Digest> bytes;
  };
  std::map<std::pair<int, int>, Record> tier_;  // by group and the node of a block's last token
  std::vector<Prompt> said_;                    // what prompts are made of

  std::uint64_t last_ticket_ = 0;
  std::uint64_t last_committed_ = 0;
  std::optional<StepWork> open_step_;
  std::vector<Member> members_;       // of the open step
  std::deque<StepWork> flight_;       // committed, not complete
  std::vector<StepWork> overtakers_;  // complete, an earlier one is in flight

  std::vector<std::vector<Cell>> logical_;  // as committed, [group][slot]
  // The block tables of an engine that hears of changes only, [group] (row, logical block).
  std::vector<std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t>> kept_tables_;
  std::optional<Aside> aside_;
  // After the managers, whose plans it reads: it stops first.
  std::unique_ptr<fake_device::FakeDevice> device_;
  std::vector<std::vector<BlockModel>> blocks_;
  std::vector<std::vector<BlockOrder>> orders_;
  std::map<SeqPtr, std::vector<BorderBlock>> borders_;
  std::uint64_t num_looks_ = 0;  // operations, as the order of eviction counts them
  int num_strangers_ = 0;        // that let go and are no sequences
  // The tree as it ever was: nodes, one that followed each, and those behind which paths parted.
  std::vector<char> on_tree_;
  std::map<int, int> followed_by_;
  std::set<int> parted_behind_;
  std::vector<SeqPtr> waited_;  // closed before, and not published whole then
  Snapshot before_;
  Counters expected_;  // those that the model knows
  std::uint64_t num_uses_ = 0;
  std::uint64_t reads_elsewhere_ = 0;  // by devices that are not device_

  std::optional<Result<Admission>> prospect_;  // of the prompt that is opened

  std::uint64_t digest_ = 0xcbf29ce484222325u;

  // The operation at hand.
  std::string log_;
  bool read_only_ = false;
  bool changed_ = false;    // something may have changed
  bool allocates_ = false;  // fresh blocks may be taken
  bool revives_ = false;    // cached blocks may be held again
  SeqPtr took_back_;        // cut back to where its windows had let go of what is read, perhaps
  bool finishes_ = false;   // sequences that closed before may be published
  Rng device_rng_{0};
  Rng shape_rng_{0};
  std::set<std::pair<int, int>> fresh_;       // (group, block) that a load took
  std::set<std::pair<int, int>> held_again_;  // that a hold took
  std::vector<SeqPtr> moved_;                 // whose windows have been moved
  SeqPtr trimmed_;                            // was not used before it let go of blocks
  std::vector<std::pair<int, int>> wanted_;   // (group, block) in which a prompt's hit ended
  std::vector<std::pair<int, int>> read_;  // (group, block) that the end of a prompt or pin reads
  bool skip_questions_ = false;
  bool failed_once_ = false;  // fail() has been called: certain hits are not certain any more
  int next_number_ = 0;
  Coverage coverage_;
};

}  // namespace kvfolio::model_check
