// SPDX-License-Identifier: Apache-2.0

// Steps: a Step is one ticket of a manager. It is dropped if it is still open when the block of its
// `with` ends by an exception, or when nothing refers to it any more.

#include "arrays.h"
#include "manager_state.h"
#include "plan.h"

namespace kvfolio::python {

Status ManagerState::refuse_if_read(Ticket first, Ticket last) const {
  for (const auto& [ticket, lease] : leases) {
    if (ticket < first || ticket > last || lease->num_readers == 0) continue;
    return Status(ErrorCode::kFailedPrecondition,
                  "a kernel reads the plan of " + to_string(ticket) + " in another thread");
  }
  return {};
}

void ManagerState::end_plans(Ticket first, Ticket last) {
  std::erase_if(leases, [&](const auto& entry) {
    const bool ends = entry.first >= first && entry.first <= last;
    if (ends) entry.second->live = false;
    return ends;
  });
}

namespace {

class Step {
 public:
  Step(std::shared_ptr<ManagerState> state, Ticket ticket)
      : state_(std::move(state)), ticket_(ticket) {}
  Step(Step&& other) noexcept = default;
  Step& operator=(Step&&) = delete;
  ~Step() {
    if (state_ != nullptr && is_open()) static_cast<void>(end(&KVCacheManager::drop));
  }

  [[nodiscard]] Ticket ticket() const { return ticket_; }
  [[nodiscard]] ManagerState& state() const { return *state_; }
  [[nodiscard]] const std::shared_ptr<ManagerState>& shared_state() const { return state_; }
  [[nodiscard]] bool is_open() const { return state_->open == ticket_; }

  // The manager has one open step, and calls of a Step mean this one.
  [[nodiscard]] Status require_open(const char* call) const {
    if (is_open()) return {};
    std::string text = std::string(call) + ": " + to_string(ticket_) + " is not open";
    if (state_->open.valid()) text += "; open is " + to_string(state_->open);
    return Status(ErrorCode::kFailedPrecondition, text);
  }
  template <typename F>
  auto call(const char* name, F&& f) const {
    using Answer = decltype(f(state_->manager));
    return state_->call([&](KVCacheManager& m) -> Answer {
      KVFOLIO_RETURN_IF_ERROR(require_open(name));
      return f(m);
    });
  }

  void commit() {
    check(call("commit", [&](KVCacheManager& m) -> Status {
      KVFOLIO_RETURN_IF_ERROR(m.commit(ticket_));
      state_->open = Ticket();
      return {};
    }));
  }
  // finish() or drop().
  Status end(Status (KVCacheManager::*how)(Ticket)) {
    return call(how == &KVCacheManager::drop ? "drop" : "finish", [&](KVCacheManager& m) -> Status {
      KVFOLIO_RETURN_IF_ERROR(state_->refuse_if_read(ticket_, ticket_));
      KVFOLIO_RETURN_IF_ERROR((m.*how)(ticket_));
      state_->open = Ticket();
      state_->end_plans(ticket_, ticket_);
      return {};
    });
  }

 private:
  std::shared_ptr<ManagerState> state_;
  Ticket ticket_;
};

}  // namespace

void complete(ManagerState& state, Ticket ticket) {
  check(state.call([&](KVCacheManager& m) -> Status {
    const Ticket first = m.options().order == Order::kInOrder ? Ticket(1) : ticket;
    KVFOLIO_RETURN_IF_ERROR(state.refuse_if_read(first, ticket));
    KVFOLIO_RETURN_IF_ERROR(m.complete(ticket));
    state.end_plans(first, ticket);
    return {};
  }));
}

nb::list fail(ManagerState& state, Ticket ticket) {
  std::vector<EndedSequence> closed;
  check(state.call([&](KVCacheManager& m) -> Status {
    const Ticket last(UINT64_MAX);
    KVFOLIO_RETURN_IF_ERROR(state.refuse_if_read(ticket, last));
    const auto result = m.fail(ticket);
    if (!result) return result.error();
    closed.assign(result->begin(), result->end());
    state.open = Ticket();  // the open step is the youngest
    state.end_plans(ticket, last);
    return {};
  }));
  return ended_list(closed);
}

namespace {

// What fixes the shapes of a plan.
struct Shapes {
  Input<std::int32_t> table_stride;
  Int padded_sequences, padded_tokens;
  bool int64_slots;

  void set(PlanOptions& options) const {
    options.table_stride = table_stride.span();
    options.padded_sequences = i32(padded_sequences, "padded_sequences");
    options.padded_tokens = i32(padded_tokens, "padded_tokens");
    options.int64_slots = int64_slots;
  }
};

// Memory of the caller: one piece that may be written.
std::optional<Array> memory_of(nb::handle object, bool copy) {
  if (object.is_none()) return std::nullopt;
  if (!copy) raise_invalid("memory and copy=False: what lies in memory is the caller's already");
  Array memory = array_of(object, "memory", Access::kWrite);
  if (memory.array.ndim() != 1 || (!memory.empty() && memory.stride(0) != memory.item_bytes())) {
    raise_invalid("memory: " + describe(memory.array) + ", wanted: one dimension, contiguous");
  }
  return memory;
}

Plan plan(const Step& step, Int pad, bool block_tables, bool changed_entries, bool flashinfer,
          bool shared_prefixes, bool positions, bool caller_ids, nb::handle table_stride,
          Int padded_sequences, Int padded_tokens, bool int64_slots, nb::handle memory, bool copy) {
  PlanOptions options;
  const Shapes shapes{Input<std::int32_t>(table_stride, "table_stride"), padded_sequences,
                      padded_tokens, int64_slots};
  shapes.set(options);
  std::optional<Array> callers = memory_of(memory, copy);
  if (callers) options.memory = {callers->data, callers->array.nbytes()};
  options.pad = i32(pad, "pad");
  options.block_tables = block_tables;
  options.changed_entries = changed_entries;
  options.flashinfer = flashinfer;
  options.shared_prefixes = shared_prefixes;
  options.positions = positions;
  options.caller_ids = caller_ids;
  const Ticket ticket = step.ticket();
  ManagerState& state = step.state();
  const StepPlan* made = take(step.call("plan", [&](KVCacheManager& m) -> Result<const StepPlan*> {
    KVFOLIO_RETURN_IF_ERROR(state.refuse_if_read(ticket, ticket));
    Result<const StepPlan*> result = m.plan(options);
    if (result) state.end_plans(ticket, ticket);
    return result;
  }));
  std::shared_ptr<Lease> lease;
  if (!copy) {
    lease = std::make_shared<Lease>();
    state.leases.emplace_back(ticket, lease);
  }
  return {
      std::make_shared<PlanData>(step.shared_state(), *made, std::move(lease), std::move(callers)),
      {}};
}

std::span<const SequenceId> ids_of(const Input<std::uint64_t>& numbers) {
  static_assert(sizeof(SequenceId) == sizeof(std::uint64_t));
  return {reinterpret_cast<const SequenceId*>(numbers.span().data()), numbers.span().size()};
}

void append_each(const Step& step, nb::handle sequences, nb::handle tokens) {
  const Input<std::uint64_t> ids(sequences, "sequences");
  const Input<std::int32_t> numbers(tokens, "tokens");
  std::int32_t done = 0;
  const Status status = step.call("append_each", [&](KVCacheManager& m) {
    return m.append_each(ids_of(ids), numbers.span(), &done);
  });
  if (!status) raise(status, done);
}

void append_unnamed_each(const Step& step, nb::handle sequences) {
  const Input<std::uint64_t> ids(sequences, "sequences");
  std::int32_t done = 0;
  const Status status = step.call("append_unnamed_each", [&](KVCacheManager& m) {
    return m.append_unnamed_each(ids_of(ids), &done);
  });
  if (!status) raise(status, done);
}

void set_tokens_each(const Manager& manager, nb::handle sequences, nb::handle tokens) {
  const Input<std::uint64_t> ids(sequences, "sequences");
  const Input<std::int32_t> numbers(tokens, "tokens");
  std::int32_t done = 0;
  const Status status = manager.call(
      [&](KVCacheManager& m) { return m.set_tokens_each(ids_of(ids), numbers.span(), &done); });
  if (!status) raise(status, done);
}

void add_appends(nb::class_<Step>& c) {
  c.def(
       "append",
       [](const Step& step, Id sequence, nb::handle tokens, Int draft) {
         const Input<std::int32_t> numbers(tokens, "tokens");
         const AppendOptions options{.draft = i32(draft, "draft")};
         check(step.call("append", [&](KVCacheManager& m) {
           return m.append(sequence, numbers.span(), options);
         }));
       },
       "sequence"_a, "tokens"_a, nb::kw_only(), "draft"_a = Int{0},
       nb::sig("def append(self, sequence: int, tokens: kvfolio._types.Int32Input, *, "
               "draft: int = 0) -> None"),
       "Reserves slots for tokens whose K and V this step writes. The last `draft` ones are "
       "guesses, see Manager.accept(); an append behind undecided ones assumes that they stand. A "
       "sequence appends once per step. OutOfBlocks: nothing has changed. InvalidArgument: the "
       "whole prompt behind what open() found of it; append "
       "only the tokens behind cached_tokens.")
      .def(
          "append_prompt",
          [](const Step& step, Id sequence, nb::handle prompt, Int at_most) {
            const Input<std::int32_t> numbers(prompt, "prompt");
            return take(step.call("append_prompt", [&](KVCacheManager& m) {
              return m.append_prompt(sequence, numbers.span(), at_most.value);
            }));
          },
          "sequence"_a, "prompt"_a, "at_most"_a,
          nb::sig("def append_prompt(self, sequence: int, prompt: kvfolio._types.Int32Input, "
                  "at_most: int) -> int"),
          "Appends the next tokens of the prompt that the sequence lacks, at most at_most; returns "
          "how many, 0: it has them all.")
      .def(
          "append_unnamed",
          [](const Step& step, Id sequence, Int num_tokens, Int draft) {
            const AppendOptions options{.draft = i32(draft, "draft")};
            check(step.call("append_unnamed", [&](KVCacheManager& m) {
              return m.append_unnamed(sequence, num_tokens.value, options);
            }));
          },
          "sequence"_a, "num_tokens"_a, nb::kw_only(), "draft"_a = Int{0},
          nb::sig("def append_unnamed(self, sequence: int, num_tokens: int, *, draft: int = 0) "
                  "-> None"),
          "append() for tokens that Manager.set_tokens() names later.")
      .def("append_each", &append_each, "sequences"_a, "tokens"_a,
           nb::sig("def append_each(self, sequences: kvfolio._types.Uint64Input, "
                   "tokens: kvfolio._types.Int32Input) -> None"),
           "Appends tokens[i] to sequences[i], in order. Ends at the first that fails: the first "
           "num_done of the exception are in the step then, the others are not.")
      .def("append_unnamed_each", &append_unnamed_each, "sequences"_a,
           nb::sig("def append_unnamed_each(self, sequences: kvfolio._types.Uint64Input) -> None"),
           "Appends one unnamed token to each sequence, as append_each() does.")
      .def(
          "undo",
          [](const Step& step, Id sequence) {
            check(step.call("undo", [&](KVCacheManager& m) { return m.undo(sequence); }));
          },
          "sequence"_a, nb::sig("def undo(self, sequence: int) -> None"),
          "Takes a sequence out of the step, as if it had not been appended to.");
}

void add_ends(nb::class_<Step>& c) {
  c.def("commit", &Step::commit,
        "The work is enqueued: lengths advance and the next step may begin. "
        "FailedPrecondition, and the step stays open: since the last plan() a sequence was "
        "appended, which it lacks, or taken out (undo, preempt, cancel), whose slots may be "
        "another's by now; or a manager with a Storage has copies that run_copies() has not run.")
      .def(
          "complete", [](const Step& step) { complete(step.state(), step.ticket()); },
          "The device has finished the step (in_order: and all earlier ones).")
      .def(
          "finish", [](Step& step) { check(step.end(&KVCacheManager::finish)); },
          "commit() and complete(). Refused as commit() is.")
      .def(
          "drop", [](Step& step) { check(step.end(&KVCacheManager::drop)); },
          "Ends the open step and undoes all of its appends.")
      .def(
          "fail", [](const Step& step) { return fail(step.state(), step.ticket()); },
          nb::sig("def fail(self) -> list[kvfolio._types.EndedSequence]"),
          "The device has failed and is idle: ends every step from this one on, forgets what "
          "they wrote, and closes the sequences that read it. Returns those. One that found its "
          "whole prompt and appended only its last token wrote nothing and stays open: close it "
          "too, "
          "and open its text again.");
}

void add_context(nb::class_<Step>& c) {
  c.def(
       "__enter__", [](nb::handle step) { return nb::borrow(step); },
       nb::sig("def __enter__(self) -> Step"))
      .def(
          "__exit__",
          [](Step& step, nb::handle type, nb::handle, nb::handle) {
            if (!step.is_open()) return;
            const Status ended =
                step.end(type.is_none() ? &KVCacheManager::finish : &KVCacheManager::drop);
            // What cannot be finished as it is goes: no line behind the block could mend it.
            if (!ended && step.is_open()) static_cast<void>(step.end(&KVCacheManager::drop));
            check(ended);
          },
          "exception_type"_a.none(), "exception"_a.none(), "traceback"_a.none(),
          nb::sig("def __exit__(self, exception_type: type[BaseException] | None, exception: "
                  "BaseException | None, traceback: types.TracebackType | None) -> None"),
          "Finishes the step if it is open, or drops it after an exception. A step that finish() "
          "refuses is dropped, and the exception is raised. A step that was committed stays in "
          "flight: its caller completes or fails it.")
      .def("__repr__", [](const Step& step) {
        return "<kvfolio.Step " + std::to_string(step.ticket().value()) +
               (step.is_open() ? ", open>" : ">");
      });
}

}  // namespace

void add_step(nb::module_& m) {
  nb::class_<Step> c(m, "Step",
                     "One step of an engine: append, plan, commit, complete. As a context manager "
                     "it finishes at the end, or is dropped after an exception.");
  c.def_prop_ro("ticket", [](const Step& step) {
     return step.ticket().value();
   }).def_prop_ro("is_open", &Step::is_open);
  add_appends(c);
  c.def("plan", &plan, nb::kw_only(), "pad"_a = Int{-1}, "block_tables"_a = true,
        "changed_entries"_a = false, "flashinfer"_a = false, "shared_prefixes"_a = false,
        "positions"_a = false, "caller_ids"_a = false, "table_stride"_a = nb::tuple(),
        "padded_sequences"_a = Int{0}, "padded_tokens"_a = Int{0}, "int64_slots"_a = false,
        "memory"_a = nb::none(), "copy"_a = true,
        nb::sig("def plan(self, *, pad: int = -1, block_tables: bool = True, "
                "changed_entries: bool = False, flashinfer: bool = False, "
                "shared_prefixes: bool = False, positions: bool = False, "
                "caller_ids: bool = False, table_stride: kvfolio._types.Int32Input = (), "
                "padded_sequences: int = 0, padded_tokens: int = 0, int64_slots: bool = False, "
                "memory: kvfolio._types.SupportsDLPack | None = None, copy: bool = True) -> Plan"),
        "The arrays of the open step. copy=False: they lie in the buffers of the step and every "
        "access raises once the step has ended or was planned again. table_stride (by group), "
        "padded_sequences and padded_tokens fix shapes, as a captured graph wants them; 0: those "
        "of the step. A step that does not fit raises InvalidArgument, and so does a stride beyond "
        "what a table of the group can ever have; Manager.widest() is allowed always. Without "
        "memory a step keeps a buffer up to one and a half times as large as its largest plan. "
        "memory: an array of one dimension, pinned memory, say; the arrays "
        "of numbers are written there, each a multiple of 16 bytes behind its begin, with equal "
        "options at the same place, and are views of it. Manager.plan_bytes() says its size.")
      .def(
          "run_copies",
          [](const Step& step) {
            check(step.state().call_without_gil([&](KVCacheManager& m) -> Status {
              KVFOLIO_RETURN_IF_ERROR(step.require_open("run_copies"));
              return m.run_copies();
            }));
          },
          "Runs the copies of the plan on the manager's own storage, without the GIL.");
  add_ends(c);
  add_context(c);
}

namespace {

void add_plan_bytes(nb::class_<Manager>& c) {
  c.def(
      "plan_bytes",
      [](const Manager& manager, bool block_tables, bool changed_entries, bool flashinfer,
         bool positions, nb::handle table_stride, Int padded_sequences, Int padded_tokens,
         bool int64_slots) {
        PlanOptions options;
        const Shapes shapes{Input<std::int32_t>(table_stride, "table_stride"), padded_sequences,
                            padded_tokens, int64_slots};
        shapes.set(options);
        options.block_tables = block_tables;
        options.changed_entries = changed_entries;
        options.flashinfer = flashinfer;
        options.positions = positions;
        return take(manager.call([&](KVCacheManager& m) { return m.plan_bytes(options); }));
      },
      nb::kw_only(), "block_tables"_a = true, "changed_entries"_a = false, "flashinfer"_a = false,
      "positions"_a = false, "table_stride"_a = nb::tuple(), "padded_sequences"_a = Int{0},
      "padded_tokens"_a = Int{0}, "int64_slots"_a = false,
      nb::sig("def plan_bytes(self, *, block_tables: bool = True, changed_entries: bool = False, "
              "flashinfer: bool = False, positions: bool = False, "
              "table_stride: kvfolio._types.Int32Input = (), padded_sequences: int = 0, "
              "padded_tokens: int = 0, int64_slots: bool = False) -> int"),
      "Bytes of memory that every Step.plan() with these options fits into. InvalidArgument: they "
      "leave a size open, or one is out of range.");
}

}  // namespace

void add_steps_of_manager(nb::class_<Manager>& c) {
  add_plan_bytes(c);
  c.def(
       "step",
       [](const Manager& manager, Int now_us) {
         const StepOptions options{
             .now_us = static_cast<std::uint64_t>(within(now_us, "now_us", 0, INT64_MAX))};
         ManagerState& state = *manager.state();
         const Ticket ticket = take(state.call([&](KVCacheManager& m) {
           Result<Ticket> begun = m.begin_step(options);
           if (begun) state.open = *begun;
           return begun;
         }));
         return Step(manager.state(), ticket);
       },
       nb::kw_only(), "now_us"_a = Int{0}, nb::sig("def step(self, *, now_us: int = 0) -> Step"),
       "Begins a step. One is open at a time.")
      .def(
          "complete", [](const Manager& manager, Id ticket) { complete(*manager.state(), ticket); },
          "ticket"_a, nb::sig("def complete(self, ticket: int) -> None"), "Step.complete()")
      .def(
          "fail", [](const Manager& manager, Id ticket) { return fail(*manager.state(), ticket); },
          "ticket"_a, nb::sig("def fail(self, ticket: int) -> list[kvfolio._types.EndedSequence]"),
          "Step.fail()")
      .def(
          "set_tokens",
          [](const Manager& manager, Id sequence, nb::handle tokens) {
            const Input<std::int32_t> numbers(tokens, "tokens");
            check(manager.call(
                [&](KVCacheManager& m) { return m.set_tokens(sequence, numbers.span()); }));
          },
          "sequence"_a, "tokens"_a,
          nb::sig("def set_tokens(self, sequence: int, tokens: kvfolio._types.Int32Input) -> None"),
          "Names the oldest unnamed tokens of a sequence, in order: before their step is "
          "complete, or with late_names as long as the sequence is open.")
      .def("set_tokens_each", &set_tokens_each, "sequences"_a, "tokens"_a,
           nb::sig("def set_tokens_each(self, sequences: kvfolio._types.Uint64Input, "
                   "tokens: kvfolio._types.Int32Input) -> None"),
           "Names one token of each sequence. Ends at the first that fails: num_done of the "
           "exception says how many have their names.");
}

}  // namespace kvfolio::python
