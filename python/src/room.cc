// SPDX-License-Identifier: Apache-2.0

// Room: admission, reservations, eviction, pins, what must not be found any more.

#include "arrays.h"
#include "manager_state.h"
#include "open_options.h"

namespace kvfolio::python {

nb::object soon_record(const Soon& soon) {
  if (soon.tokens == 0) return nb::none();
  return make_record("Soon", nb::make_tuple(soon.tokens, soon.by.value()));
}

namespace {

#define KVFOLIO_LOOKUP_ARGUMENTS                                                               \
  nb::kw_only(), "root"_a = nb::none(), "media"_a = nb::make_tuple(), "prefix_cache"_a = true, \
                 "look_up"_a = true, "max_tokens"_a = Int {                                    \
    0                                                                                          \
  }
#define KVFOLIO_LOOKUP_SIGNATURE                                     \
  "*, root: kvfolio._types.RootKey | None = None, "                  \
  "media: collections.abc.Sequence[kvfolio._types.MediaSpan] = (), " \
  "prefix_cache: bool = True, look_up: bool = True, max_tokens: int = 0"

std::int32_t probe(const Manager& manager, nb::handle tokens, nb::handle root, nb::handle media,
                   bool prefix_cache, bool look_up, Int max_tokens) {
  const Input<std::int32_t> numbers(tokens, "tokens");
  const HeldOptions held(root, media, prefix_cache, look_up, max_tokens);
  return take(
      manager.call([&](KVCacheManager& m) { return m.probe(numbers.span(), held.options); }));
}

nb::object soon(const Manager& manager, nb::handle tokens, nb::handle root, nb::handle media,
                bool prefix_cache, bool look_up, Int max_tokens) {
  const Input<std::int32_t> numbers(tokens, "tokens");
  const HeldOptions held(root, media, prefix_cache, look_up, max_tokens);
  const Soon soon =
      take(manager.call([&](KVCacheManager& m) { return m.soon(numbers.span(), held.options); }));
  return soon_record(soon);
}

nb::object pin(const Manager& manager, nb::handle tokens, nb::handle root, nb::handle media,
               bool prefix_cache, bool look_up, Int max_tokens) {
  const Input<std::int32_t> numbers(tokens, "tokens");
  const HeldOptions held(root, media, prefix_cache, look_up, max_tokens);
  const Pinned pinned =
      take(manager.call([&](KVCacheManager& m) { return m.pin(numbers.span(), held.options); }));
  return make_record("Pinned", nb::make_tuple(pinned.pin.value(), pinned.pinned_tokens));
}

nb::object admission_record(const Manager& manager, const Admission& admission) {
  nb::list blocks;
  for (std::size_t i = 0; i < manager.state()->manager.spec().groups.size(); ++i) {
    blocks.append(admission.blocks[i]);
  }
  return make_record("Admission", nb::make_tuple(admission.cached_tokens, nb::tuple(blocks),
                                                 soon_record(admission.soon)));
}

nb::object admit_prompt(const Manager& manager, nb::handle tokens, Int num_more, Int most_per_step,
                        nb::handle root, nb::handle media, bool prefix_cache, bool look_up,
                        Int max_tokens) {
  const Input<std::int32_t> numbers(tokens, "tokens");
  const HeldOptions held(root, media, prefix_cache, look_up, max_tokens);
  const ReserveOptions chunks{.most_per_step = most_per_step.value};
  return admission_record(manager, take(manager.call([&](KVCacheManager& m) {
                            return m.admit(numbers.span(), held.options, num_more.value, chunks);
                          })));
}

void admit_each(const Manager& manager, nb::handle sequences, nb::handle num_tokens) {
  const Input<std::uint64_t> ids(sequences, "sequences");
  const Input<std::int32_t> counts(num_tokens, "num_tokens");
  if (ids.size() != counts.size()) {
    raise_invalid("admit_each: " + std::to_string(counts.size()) + " counts for " +
                  std::to_string(ids.size()) + " sequences");
  }
  std::vector<AppendDemand> demands;
  for (std::size_t i = 0; i < ids.span().size(); ++i) {
    demands.push_back({SequenceId(ids.span()[i]), counts.span()[i]});
  }
  check(manager.call([&](KVCacheManager& m) { return m.admit(demands); }));
}

nb::object forgotten(const Forgotten& record) {
  return make_record("Forgotten", nb::make_tuple(record.blocks, record.pins));
}

nb::object forget(const Manager& manager, nb::handle tokens, nb::handle root, nb::handle media) {
  const HeldOptions held(root, media, true, true, Int{0});
  if (tokens.is_none()) {
    return forgotten(manager.call([&](KVCacheManager& m) { return m.forget(held.options.root); }));
  }
  const Input<std::int32_t> numbers(tokens, "tokens");
  return forgotten(take(
      manager.call([&](KVCacheManager& m) { return m.forget(numbers.span(), held.options); })));
}

nb::list preempt_to(const Manager& manager, double target, nb::handle policy) {
  const std::optional<VictimPolicy> chosen = parse_policy("policy", policy);
  std::vector<EndedSequence> ended;
  check(manager.call([&](KVCacheManager& m) -> Status {
    const auto result = m.preempt_to(target, chosen);
    if (!result) return result.error();
    ended.assign(result->begin(), result->end());
    return {};
  }));
  return ended_list(ended);
}

nb::object evict(const Manager& manager, Int group, Int num_blocks) {
  const GroupId id = group_id(group);
  const std::int32_t most = i32(num_blocks, "num_blocks");
  const auto& groups = manager.state()->manager.spec().groups;
  const bool known = id.value() >= 0 && static_cast<std::size_t>(id.value()) < groups.size();
  std::vector<std::int32_t> blocks(
      known ? static_cast<std::size_t>(
                  std::clamp(most, 0, groups[static_cast<std::size_t>(id.value())].num_blocks))
            : 0);
  const std::int32_t count =
      take(manager.call([&](KVCacheManager& m) { return m.evict(id, most, blocks); }));
  return numpy_copy(std::span<const std::int32_t>(blocks).first(static_cast<std::size_t>(count)));
}

void add_admission(nb::class_<Manager>& c) {
  c.def(
       "admit",
       [](const Manager& manager, Id sequence, Int num_tokens) {
         check(
             manager.call([&](KVCacheManager& m) { return m.admit(sequence, num_tokens.value); }));
       },
       "sequence"_a, "num_tokens"_a,
       nb::sig("def admit(self, sequence: int, num_tokens: int) -> None"),
       "Raises what an append of num_tokens would raise now, or nothing: the answer is exact.")
      .def("admit_each", &admit_each, "sequences"_a, "num_tokens"_a,
           nb::sig("def admit_each(self, sequences: kvfolio._types.Uint64Input, "
                   "num_tokens: kvfolio._types.Int32Input) -> None"),
           "The same for appends that are to succeed together in one step.")
      .def("admit_prompt", &admit_prompt, "tokens"_a, "num_more"_a = Int{0},
           "most_per_step"_a = Int{0}, KVFOLIO_LOOKUP_ARGUMENTS,
           nb::sig("def admit_prompt(self, tokens: kvfolio._types.Int32Input, num_more: int = "
                   "0, most_per_step: int = 0, " KVFOLIO_LOOKUP_SIGNATURE
                   ") -> kvfolio._types.Admission"),
           "Would open() and an append of what it does not find and of num_more tokens succeed "
           "now? With most_per_step, in chunks of at most so many: what open() and then reserve() "
           "would say. Changes nothing.")
      .def(
          "admit_in_chunks",
          [](const Manager& manager, Id sequence, Int num_tokens, Int most_per_step) {
            const ReserveOptions chunks{.most_per_step = most_per_step.value};
            return admission_record(manager, take(manager.call([&](KVCacheManager& m) {
                                      return m.admit(SequenceId(sequence), num_tokens.value,
                                                     chunks);
                                    })));
          },
          "sequence"_a, "num_tokens"_a, "most_per_step"_a,
          nb::sig("def admit_in_chunks(self, sequence: int, num_tokens: int, most_per_step: int) "
                  "-> kvfolio._types.Admission"),
          "The same for a sequence that is open. Keeps no table entries.")
      .def(
          "reserve",
          [](const Manager& manager, Id sequence, Int num_tokens, Int most_per_step) {
            const ReserveOptions options{.most_per_step = most_per_step.value};
            check(manager.call(
                [&](KVCacheManager& m) { return m.reserve(sequence, num_tokens.value, options); }));
          },
          "sequence"_a, "num_tokens"_a, nb::kw_only(), "most_per_step"_a = Int{0},
          nb::sig("def reserve(self, sequence: int, num_tokens: int, *, most_per_step: int = 0) "
                  "-> None"),
          "Keeps blocks, so that appends of num_tokens tokens in all are never short of them. 0 "
          "ends the promise.");
}

void add_eviction(nb::class_<Manager>& c) {
  c.def("evict", &evict, "group"_a, "num_blocks"_a,
        nb::sig("def evict(self, group: int, num_blocks: int) -> kvfolio._types.Int32Array"),
        "Evicts up to num_blocks cached blocks of a group; returns them in their order.")
      .def(
          "select_victim",
          [](const Manager& manager, nb::handle policy) -> nb::object {
            const std::optional<VictimPolicy> chosen = parse_policy("policy", policy);
            const auto victim =
                manager.call([&](KVCacheManager& m) { return m.select_victim(chosen); });
            return victim ? nb::cast(victim->value()) : nb::none();
          },
          "policy"_a = nb::none(),
          nb::sig("def select_victim(self, policy: kvfolio._types.VictimPolicy | None = None) -> "
                  "int | None"),
          "The sequence that the policy would preempt now: one whose end frees a block by itself, "
          "and that is not in the open step. None also where sequences share all of their blocks: "
          "preempt the youngest then, until an append fits, or unpin.")
      .def("preempt_to", &preempt_to, "target"_a, "policy"_a = nb::none(),
           nb::sig("def preempt_to(self, target: float, policy: kvfolio._types.VictimPolicy | "
                   "None = None) -> list[kvfolio._types.EndedSequence]"),
           "Preempts victims while utilization is above `target`.")
      .def(
          "reset",
          [](const Manager& manager) {
            return forgotten(manager.call([](KVCacheManager& m) { return m.reset(); }));
          },
          nb::sig("def reset(self) -> kvfolio._types.Forgotten"),
          "Nothing that is there is findable any more; open sequences go on; all pins end.")
      .def("forget", &forget, "tokens"_a = nb::none(), nb::kw_only(), "root"_a = nb::none(),
           "media"_a = nb::make_tuple(),
           nb::sig("def forget(self, tokens: kvfolio._types.Int32Input | None = None, *, "
                   "root: kvfolio._types.RootKey | None = None, media: "
                   "collections.abc.Sequence[kvfolio._types.MediaSpan] = ()) -> "
                   "kvfolio._types.Forgotten"),
           "The same for one root key, or of it for all that begins with these tokens.");
}

}  // namespace

void add_room(nb::class_<Manager>& c) {
  c.def("probe", &probe, "tokens"_a, KVFOLIO_LOOKUP_ARGUMENTS,
        nb::sig("def probe(self, tokens: kvfolio._types.Int32Input, " KVFOLIO_LOOKUP_SIGNATURE
                ") -> int"),
        "How many tokens open() would find. Changes nothing.")
      .def("soon", &soon, "tokens"_a, KVFOLIO_LOOKUP_ARGUMENTS,
           nb::sig("def soon(self, tokens: kvfolio._types.Int32Input, " KVFOLIO_LOOKUP_SIGNATURE
                   ") -> kvfolio._types.Soon | None"),
           "How far a hit will reach once a sequence that announces the same tokens has appended "
           "and published them. None: nothing is to come. Changes nothing.")
      .def("pin", &pin, "tokens"_a, KVFOLIO_LOOKUP_ARGUMENTS,
           nb::sig("def pin(self, tokens: kvfolio._types.Int32Input, " KVFOLIO_LOOKUP_SIGNATURE
                   ") -> kvfolio._types.Pinned"),
           "Holds whole blocks of what is found of these tokens, and keeps them findable, until "
           "unpin(). pinned_tokens says how many tokens that are.")
      .def(
          "unpin",
          [](const Manager& manager, Id pin) {
            check(manager.call([&](KVCacheManager& m) { return m.unpin(pin); }));
          },
          "pin"_a, nb::sig("def unpin(self, pin: int) -> None"));
  add_admission(c);
  add_eviction(c);
}

}  // namespace kvfolio::python
