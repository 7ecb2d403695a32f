// SPDX-License-Identifier: Apache-2.0

// What a manager can be asked. Nothing here changes it.

#include "arrays.h"
#include "kvfolio/gather_sequence.h"
#include "manager_state.h"
#include "rows.h"
#include "storage.h"

namespace kvfolio::python {
namespace {

nb::object block_table(const Manager& manager, Id sequence, Int group) {
  const GroupId id = group_id(group);
  std::vector<std::int32_t> table;
  check(manager.call([&](KVCacheManager& m) -> Status {
    const auto result = m.block_table(sequence, id);
    if (!result) return result.error();
    table.assign(result->begin(), result->end());
    return {};
  }));
  return numpy_copy(std::span<const std::int32_t>(table));
}

nb::object slot_mapping(const Manager& manager, Id sequence, Int begin, Int end, Int group) {
  const GroupId id = group_id(group);
  const std::int32_t first = i32(begin, "begin");
  const std::int64_t count = std::int64_t{i32(end, "end")} - first;
  if (count < 0 || count > kMaxSequenceTokens) {
    raise_invalid("positions " + std::to_string(first) + " to " + std::to_string(end.value) +
                  " are no range");
  }
  // Asked for one position first, so that a range beyond the sequence takes no memory.
  std::vector<std::int32_t> slots;
  check(manager.call([&](KVCacheManager& m) -> Status {
    const auto info = m.info(sequence);
    if (!info) return info.error();
    if (std::int64_t{first} + count > info->length) {
      return Status(ErrorCode::kInvalidArgument,
                    "positions " + std::to_string(first) + " to " + std::to_string(first + count) +
                        " are not within " + to_string(SequenceId(sequence)) + " of " +
                        std::to_string(info->length) + " tokens");
    }
    slots.resize(static_cast<std::size_t>(count));
    return m.slot_mapping(sequence, id, first, slots);
  }));
  return numpy_copy(std::span<const std::int32_t>(slots));
}

// The state of each block, as BlockState has it.
nb::object block_states(const Manager& manager, Int group) {
  const GroupId id = group_id(group);
  std::vector<std::uint8_t> states;
  check(manager.call([&](KVCacheManager& m) -> Status {
    const auto usage = m.usage(id);
    if (!usage) return usage.error();
    states.resize(static_cast<std::size_t>(usage->num_blocks));
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto state = m.block_state(id, BlockId(static_cast<std::int32_t>(i)));
      if (!state) return state.error();
      states[i] = static_cast<std::uint8_t>(*state);
    }
    return {};
  }));
  return numpy_copy(std::span<const std::uint8_t>(states));
}

nb::object ref_counts(const Manager& manager, Int group) {
  const GroupId id = group_id(group);
  std::vector<std::int32_t> counts;
  check(manager.call([&](KVCacheManager& m) -> Status {
    const auto usage = m.usage(id);
    if (!usage) return usage.error();
    counts.resize(static_cast<std::size_t>(usage->num_blocks));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto count = m.ref_count(id, BlockId(static_cast<std::int32_t>(i)));
      if (!count) return count.error();
      counts[i] = *count;
    }
    return {};
  }));
  return numpy_copy(std::span<const std::int32_t>(counts));
}

nb::object sequences(const Manager& manager) {
  std::vector<std::uint64_t> ids;
  manager.call([&](KVCacheManager& m) {
    ids.resize(static_cast<std::size_t>(m.num_sequences()));
    return m.sequences({reinterpret_cast<SequenceId*>(ids.data()), ids.size()});
  });
  return numpy_copy(std::span<const std::uint64_t>(ids));
}

template <typename Field>
void number(nb::class_<Manager>& c, const char* name, Field field, const char* doc) {
  c.def_prop_ro(
      name, [field](const Manager& manager) { return manager.call(field); }, doc);
}

void add_numbers(nb::class_<Manager>& c) {
  number(
      c, "num_sequences", [](KVCacheManager& m) { return m.num_sequences(); }, "Open sequences.");
  number(
      c, "num_rows", [](KVCacheManager& m) { return m.num_rows(); },
      "Every row of a plan is below it: rows of a block table on a device.");
  number(
      c, "bytes_total", [](KVCacheManager& m) { return m.bytes_total(); },
      "Of all blocks, padding included.");
  number(
      c, "bytes_used", [](KVCacheManager& m) { return m.bytes_used(); }, "Of the held blocks.");
  number(
      c, "utilization", [](KVCacheManager& m) { return m.utilization(); },
      "Held blocks divided by all blocks, in the fullest group.");
  number(
      c, "needs_eviction", [](KVCacheManager& m) { return m.needs_eviction(); },
      "utilization >= high_watermark: time for preempt_to().");
  c.def_prop_ro(
       "counters", [](const Manager& manager) { return manager.state()->manager.counters(); },
       "Counts since the creation; a copy.")
      .def_prop_ro(
          "spec", [](const Manager& manager) { return groups_of(manager.state()->manager.spec()); },
          nb::sig("def spec(self) -> list[kvfolio._types.GroupSpec]"))
      .def_prop_ro(
          "storage",
          [](const Manager& manager) -> nb::object {
            const ManagerState& state = *manager.state();
            if (state.manager.storage() == nullptr || state.device_storage != nullptr) {
              return nb::none();
            }
            return nb::cast(Storage(manager.state()));
          },
          nb::sig("def storage(self) -> Storage | None"), "Of the host.")
      .def_prop_ro(
          "device_storage",
          [](const Manager& manager) -> nb::object {
            const std::shared_ptr<PyObject>& storage = manager.state()->device_storage;
            return storage == nullptr ? nb::none() : nb::borrow(storage.get());
          },
          nb::sig("def device_storage(self) -> typing.Any"),
          "The kvfolio.cuda.Storage that the manager was made over, or None.")
      .def_prop_ro(
          "metadata_bytes",
          [](const Manager& manager) {
            return manager.call([](KVCacheManager& m) { return m.metadata().used; });
          },
          "Memory that the manager keeps beside the blocks, in use.");
}

}  // namespace

namespace {

// The rows hold their arrays, and the call the manager, until the copy is done.
void gather_sequence(const Manager& manager, Id sequence, nb::handle k, nb::handle v, Int group,
                     Int layer, Int first) {
  const Rows k_rows = rows_of(k, "k", Access::kWrite);
  const Rows v_rows = rows_of(v, "v", Access::kWrite);
  const GatherFrom from{
      .group = group_id(group), .layer = i32(layer, "layer"), .first = i32(first, "first")};
  check(manager.state()->call_without_gil([&](KVCacheManager& m) {
    return kvfolio::gather(m, sequence, from, k_rows.view, v_rows.view);
  }));
}

}  // namespace

void add_questions(nb::class_<Manager>& c) {
  c.def(
       "info",
       [](const Manager& manager, Id sequence) {
         return take(manager.call([&](KVCacheManager& m) { return m.info(sequence); }));
       },
       "sequence"_a, nb::sig("def info(self, sequence: int) -> SequenceInfo"))
      .def("block_table", &block_table, "sequence"_a, "group"_a = Int{0},
           nb::sig("def block_table(self, sequence: int, group: int = 0) -> "
                   "kvfolio._types.Int32Array"),
           "Physical block of each logical block, -1 if it was dropped; a copy.")
      .def("slot_mapping", &slot_mapping, "sequence"_a, "begin"_a, "end"_a, "group"_a = Int{0},
           nb::sig("def slot_mapping(self, sequence: int, begin: int, end: int, group: int = 0) "
                   "-> kvfolio._types.Int32Array"),
           "Slots of positions [begin, end), -1 if their block was dropped.")
      .def(
          "gather", &gather_sequence, "sequence"_a, nb::kw_only(), "k"_a = nb::none(),
          "v"_a = nb::none(), "group"_a = Int{0}, "layer"_a = Int{0}, "first"_a = Int{0},
          nb::sig("def gather(self, sequence: int, *, k: kvfolio._types.Array | None = None, "
                  "v: kvfolio._types.Array | None = None, group: int = 0, layer: int = 0, "
                  "first: int = 0) -> None"),
          "Copies positions first, first + 1, ... of a layer to k and v, [count, heads, head_dim], "
          "as many as they hold, out of the storage of the manager, without the GIL. What the "
          "open step appends counts, once its K and V are written.")
      .def(
          "find",
          [](const Manager& manager, Id caller_id) {
            return take(manager.call([&](KVCacheManager& m) { return m.find(caller_id.value); }))
                .value();
          },
          "caller_id"_a, nb::sig("def find(self, caller_id: int) -> int"),
          "The open sequence with this name of its caller.")
      .def("sequences", &sequences,
           nb::sig("def sequences(self) -> numpy.typing.NDArray[numpy.uint64]"),
           "The open sequences, in no promised order.")
      .def(
          "usage",
          [](const Manager& manager, Int group) {
            const GroupId id = group_id(group);
            return take(manager.call([&](KVCacheManager& m) { return m.usage(id); }));
          },
          "group"_a = Int{0}, nb::sig("def usage(self, group: int = 0) -> GroupUsage"))
      .def(
          "widest",
          [](const Manager& manager, Int group) {
            const GroupId id = group_id(group);
            return take(manager.call([&](KVCacheManager& m) { return m.widest(id); }));
          },
          "group"_a = Int{0}, nb::sig("def widest(self, group: int = 0) -> int"),
          "Entries of a table of max_sequence_tokens tokens.")
      .def("block_states", &block_states, "group"_a = Int{0},
           nb::sig("def block_states(self, group: int = 0) -> numpy.typing.NDArray[numpy.uint8]"),
           "Of each block: 0 free, 1 held, 2 cached, 3 retiring.")
      .def("ref_counts", &ref_counts, "group"_a = Int{0},
           nb::sig("def ref_counts(self, group: int = 0) -> kvfolio._types.Int32Array"),
           "Of each block: table entries, pins and steps that refer to it.")
      .def(
          "describe",
          [](const Manager& manager) {
            return manager.call([](KVCacheManager& m) { return m.describe(); });
          },
          nb::sig("def describe(self) -> str"), "Text for people, one fact per line.")
      .def(
          "check_invariants",
          [](const Manager& manager) {
            check(manager.state()->call_without_gil(
                [](KVCacheManager& m) { return m.check_invariants(); }));
          },
          "Recounts everything, without the GIL; raises what is broken and where.");
  add_numbers(c);
}

}  // namespace kvfolio::python
