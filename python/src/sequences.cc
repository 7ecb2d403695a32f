// SPDX-License-Identifier: Apache-2.0

// The life of a sequence: open, fork, cut, close.

#include "arrays.h"
#include "manager_state.h"
#include "open_options.h"

namespace kvfolio::python {
namespace {

nb::object open(const Manager& manager, nb::handle tokens, nb::handle root, nb::handle media,
                bool prefix_cache, bool look_up, const char* publish, nb::handle caller_id,
                Int max_tokens, Int priority, bool late_names, bool announce) {
  const Input<std::int32_t> numbers(tokens, "tokens");
  HeldOptions held(root, media, prefix_cache, look_up, max_tokens);
  held.set_sequence(publish, caller_id, priority, late_names, announce);
  const Opened opened =
      take(manager.call([&](KVCacheManager& m) { return m.open(numbers.span(), held.options); }));
  return make_record("Opened", nb::make_tuple(opened.sequence.value(), opened.cached_tokens,
                                              soon_record(opened.soon)));
}

std::uint64_t open_unnamed(const Manager& manager, Int num_tokens, nb::handle root,
                           nb::handle media, bool prefix_cache, bool look_up, const char* publish,
                           nb::handle caller_id, Int max_tokens, Int priority, bool late_names) {
  HeldOptions held(root, media, prefix_cache, look_up, max_tokens);
  held.set_sequence(publish, caller_id, priority, late_names);
  return take(manager.call([&](KVCacheManager& m) {
           return m.open_unnamed(num_tokens.value, held.options);
         }))
      .value();
}

void adopt(const Manager& manager, Id sequence, nb::handle tables, Int num_tokens) {
  std::vector<std::unique_ptr<Input<std::int32_t>>> inputs;
  std::vector<std::span<const std::int32_t>> spans;
  for (const nb::handle table :
       items_of(tables, "tables", "a list of int32 arrays, one for each group")) {
    inputs.push_back(std::make_unique<Input<std::int32_t>>(table, "tables"));
    spans.push_back(inputs.back()->span());
  }
  const std::int32_t tokens = i32(num_tokens, "num_tokens");
  check(manager.call([&](KVCacheManager& m) { return m.adopt(sequence, spans, tokens); }));
}

#define KVFOLIO_OPEN_ARGUMENTS                                                                 \
  nb::kw_only(), "root"_a = nb::none(), "media"_a = nb::make_tuple(), "prefix_cache"_a = true, \
                 "look_up"_a = true, "publish"_a = "all", "caller_id"_a = nb::none(),          \
                 "max_tokens"_a = Int{0}, "priority"_a = Int{0}, "late_names"_a = false
#define KVFOLIO_OPEN_SIGNATURE                                              \
  "*, root: kvfolio._types.RootKey | None = None, "                         \
  "media: collections.abc.Sequence[kvfolio._types.MediaSpan] = (), "        \
  "prefix_cache: bool = True, look_up: bool = True, "                       \
  "publish: kvfolio._types.Publish = 'all', caller_id: int | None = None, " \
  "max_tokens: int = 0, priority: int = 0, late_names: bool = False"

void add_births(nb::class_<Manager>& c) {
  c.def("open", &open, "tokens"_a, KVFOLIO_OPEN_ARGUMENTS, "announce"_a = false,
        nb::sig("def open(self, tokens: kvfolio._types.Int32Input, " KVFOLIO_OPEN_SIGNATURE
                ", announce: bool = False) -> kvfolio._types.Opened"),
        "Opens a sequence and holds what the cache has of its tokens. Append the others, and only "
        "these. late_names: set_tokens() may come as long as the sequence is open. max_tokens: "
        "appends beyond it are refused. prefix_cache=False: it neither finds nor publishes. "
        "announce: soon() tells others that these tokens are going to be appended.")
      .def("open_unnamed", &open_unnamed, "num_tokens"_a, KVFOLIO_OPEN_ARGUMENTS,
           nb::sig("def open_unnamed(self, num_tokens: int, " KVFOLIO_OPEN_SIGNATURE ") -> int"),
           "open() and append_unnamed() in the open step, both or neither.")
      .def(
          "fork",
          [](const Manager& manager, Id parent, nb::handle caller_id, Int priority) {
            const ForkOptions options{.caller_id = caller_id_of(caller_id),
                                      .priority = i32(priority, "priority")};
            return take(manager.call([&](KVCacheManager& m) { return m.fork(parent, options); }))
                .value();
          },
          "parent"_a, nb::kw_only(), "caller_id"_a = nb::none(), "priority"_a = Int{0},
          nb::sig("def fork(self, parent: int, *, caller_id: int | None = None, "
                  "priority: int = 0) -> int"),
          "A sequence with the same tokens that shares every block. With order unordered it takes "
          "no append before the step of the parent's last one is complete.")
      .def("adopt", &adopt, "sequence"_a, "tables"_a, "num_tokens"_a,
           nb::sig("def adopt(self, sequence: int, tables: "
                   "collections.abc.Sequence[kvfolio._types.Int32Input], num_tokens: int) -> None"),
           "Gives an empty sequence blocks that are held already: a table for each group.");
}

#undef KVFOLIO_OPEN_ARGUMENTS
#undef KVFOLIO_OPEN_SIGNATURE

void add_cuts(nb::class_<Manager>& c) {
  c.def(
       "truncate",
       [](const Manager& manager, Id sequence, Int n) {
         const std::int32_t length = i32(n, "n");
         check(manager.call([&](KVCacheManager& m) { return m.truncate(sequence, length); }));
       },
       "sequence"_a, "n"_a, nb::sig("def truncate(self, sequence: int, n: int) -> None"),
       "Forgets the tokens from position n on, drafts too; those in front of n stay undecided. "
       "Never refused from rewind_from on, unless the sequence is in the open step or n is beyond "
       "its length. Below, what is read there may not be there any more (close, and open the first "
       "n tokens again: FailedPrecondition), or to take it back is OutOfBlocks.")
      .def(
          "clear",
          [](const Manager& manager, Id sequence) {
            check(manager.call([&](KVCacheManager& m) { return m.clear(sequence); }));
          },
          "sequence"_a, nb::sig("def clear(self, sequence: int) -> None"), "truncate() to 0.")
      .def(
          "trim",
          [](const Manager& manager, Id sequence, Int num_sinks, Int window) {
            const TrimOptions options{.num_sinks = num_sinks.value, .window = window.value};
            return take(manager.call([&](KVCacheManager& m) { return m.trim(sequence, options); }));
          },
          "sequence"_a, nb::kw_only(), "num_sinks"_a, "window"_a,
          nb::sig("def trim(self, sequence: int, *, num_sinks: int, window: int) -> int"),
          "Keeps the first num_sinks and the last `window` tokens; returns how many it dropped. "
          "Positions never change.")
      .def(
          "accept",
          [](const Manager& manager, Id sequence, Int num_accepted) {
            const std::int32_t count = i32(num_accepted, "num_accepted");
            check(manager.call([&](KVCacheManager& m) { return m.accept(sequence, count); }));
          },
          "sequence"_a, "num_accepted"_a,
          nb::sig("def accept(self, sequence: int, num_accepted: int) -> None"),
          "Decides on the drafts of the oldest append that has some: the first num_accepted of "
          "them "
          "stand. If that is fewer than all, what was appended behind them is cut as well, and "
          "SequenceInfo.rewinds counts it: its rows in steps in flight are void then. Due once for "
          "each append with drafts; for one without, such as a chunk of a prompt, it would decide "
          "on those of a later one.")
      .def(
          "close",
          [](const Manager& manager, Id sequence) {
            check(manager.call([&](KVCacheManager& m) { return m.close(sequence); }));
          },
          "sequence"_a, nb::sig("def close(self, sequence: int) -> None"),
          "Ends a sequence; what it published stays findable.")
      .def(
          "cancel",
          [](const Manager& manager, Id sequence) {
            check(manager.call([&](KVCacheManager& m) { return m.cancel(sequence); }));
          },
          "sequence"_a, nb::sig("def cancel(self, sequence: int) -> None"),
          "close() of a request that was given up, also out of the open step.")
      .def(
          "touch",
          [](const Manager& manager, Id sequence) {
            check(manager.call([&](KVCacheManager& m) { return m.touch(sequence); }));
          },
          "sequence"_a, nb::sig("def touch(self, sequence: int) -> None"),
          "Counts as a use, for the policies by use.")
      .def(
          "preempt",
          [](const Manager& manager, Id sequence) {
            check(manager.call([&](KVCacheManager& m) { return m.preempt(sequence); }));
          },
          "sequence"_a, nb::sig("def preempt(self, sequence: int) -> None"),
          "close() to make room, also out of the open step. To resume it, open its tokens again.")
      .def(
          "set_priority",
          [](const Manager& manager, Id sequence, Int priority) {
            const std::int32_t value = i32(priority, "priority");
            check(manager.call([&](KVCacheManager& m) { return m.set_priority(sequence, value); }));
          },
          "sequence"_a, "priority"_a,
          nb::sig("def set_priority(self, sequence: int, priority: int) -> None"));
}

}  // namespace

void add_sequences(nb::class_<Manager>& c) {
  add_births(c);
  add_cuts(c);
}

}  // namespace kvfolio::python
