// SPDX-License-Identifier: Apache-2.0

// Plans that are padded to a capacity, for captured graphs: what they are padded to, and a kernel
// that makes them of lengths which lie on the device.

#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "attend.h"

namespace kvfolio::python {

std::array<std::int64_t, 4> length_entries(const PlanState& state) {
  const CudaBatch& batch = state.batch;
  if (!state.capacity) {
    const auto count = [](const std::vector<std::int32_t>& lengths) {
      return static_cast<std::int64_t>(lengths.size());
    };
    return {count(batch.query_start), count(batch.kv_lens), count(batch.trim_sinks),
            count(batch.trim_first_kept)};
  }
  const std::int64_t most = state.capacity->max_sequences;
  const std::int64_t trims = batch.has_trims ? most : 0;
  return {most + 1, most, trims, trims};
}

std::int64_t length_bytes(const PlanState& state) {
  std::int64_t entries = 0;
  for (const std::int64_t each : length_entries(state)) entries += each;
  const auto bytes = entries * std::int64_t{sizeof(std::int32_t)};
  return state.capacity ? (bytes + 7) / 8 * 8 + 8 : bytes;
}

const std::int32_t* length_there(const Lent& tensor, std::size_t which,
                                 const cuda::AttendCapacity& capacity) {
  const char* const name = kLengthNames[which];
  const std::int64_t needed = std::int64_t{capacity.max_sequences} + (which == 0 ? 1 : 0);
  if (tensor.dtype.code != dl::kInt || tensor.dtype.bits != 32) {
    raise_type(std::string(name) + ": " + tensor.text() +
               ", wanted: int32 (no array is converted)");
  }
  if (tensor.ndim() != 1 || tensor.shape[0] < needed ||
      (tensor.shape[0] > 1 && tensor.strides[0] != 1)) {
    raise_invalid(std::string(name) + ": " + tensor.text() + ", wanted: a contiguous one of " +
                  std::to_string(needed) + " entries or more, by the capacity's max_sequences");
  }
  return static_cast<const std::int32_t*>(static_cast<const void*>(tensor.data));
}

void check_has_memory(const PlanState& state) {
  if (state.memory != nullptr) return;
  raise(Status(ErrorCode::kFailedPrecondition,
               "another plan has the memory of this one (plan_attend(reuse=...))"));
}

nb::tuple shape_tuple(const cuda::AttendShape& s) {
  return nb::make_tuple(s.num_sequences, s.num_rows, s.items, s.groups, s.prefill_items, s.segments,
                        s.segments_per_block, s.states, s.many_nodes, s.merges);
}

namespace {

void check_padded(const PlanState& state) {
  if (state.capacity) return;
  raise(Status(ErrorCode::kFailedPrecondition,
               "the plan is not padded: plan_attend(capacity=...) makes one that is"));
}

struct GivenLengths {
  nb::handle query_start, kv_lens, trim_sinks, trim_first_kept, counts;
};

// Their number, of the device.
const std::int32_t* counts_of(const Lent& counts) {
  if (counts.dtype.code != dl::kInt || counts.dtype.bits != 32 || counts.ndim() != 1 ||
      counts.shape[0] < 1) {
    raise_type("counts: " + counts.text() +
               ", wanted: int32 [1 or more], the number of sequences first");
  }
  return static_cast<const std::int32_t*>(static_cast<const void*>(counts.data));
}

void plan_there(PlanState& state, const GivenLengths& given, nb::handle stream, bool keep) {
  check_has_memory(state);
  check_padded(state);
  const bool has_trims = !given.trim_sinks.is_none() || !given.trim_first_kept.is_none();
  if (has_trims != state.batch.has_trims) {
    raise_invalid(std::string("trim_sinks and trim_first_kept: ") +
                  (has_trims ? "given, but the plan was made without"
                             : "None, but the plan was made with them"));
  }
  const std::shared_ptr<DeviceState>& device = state.memory->device();
  void* const number = stream_of(stream);
  const Consumer consumer = device->consumer(number);
  Owners owners;
  const auto lent = [&](nb::handle object, const char* name) {
    if (object.is_none()) {
      raise_type(std::string(name) + " is None, wanted: a tensor of the device");
    }
    return lent_of(object, name, consumer, Use::kRead);
  };
  cuda::DeviceAttention call = state.looks;
  const std::int32_t** const fields[] = {&call.query_start, &call.kv_lens, &call.trim_sinks,
                                         &call.trim_first_kept};
  const nb::handle objects[] = {given.query_start, given.kv_lens, given.trim_sinks,
                                given.trim_first_kept};
  std::vector<nb::object> there;
  for (std::size_t i = 0; i < (has_trims ? 4 : 2); ++i) {
    Lent tensor = lent(objects[i], kLengthNames[i]);
    *fields[i] = length_there(tensor, i, *state.capacity);
    owners.push_back(std::move(tensor.owner));
    there.push_back(nb::borrow(objects[i]));
  }
  const std::int32_t* counts = nullptr;
  if (!given.counts.is_none()) {
    Lent tensor = lent(given.counts, "counts");
    counts = counts_of(tensor);
    owners.push_back(std::move(tensor.owner));
  }
  std::vector<LastWork*> lasts;
  if (keep) lasts.push_back(&state.memory->last);
  device->enqueue(lasts, std::move(owners), number, [&]() -> Status {
    const PlanMemory& memory = *state.memory;
    if (keep) KVFOLIO_RETURN_IF_ERROR(DeviceState::hold_back(memory.last, number));
    return cuda::plan_on_device(device->kernels(), call, *state.plan, memory.work(),
                                memory.work() + state.image_bytes, number, counts, fault_of(state));
  });
  state.there = std::move(there);
}

// Nothing is on its way. Requires: no GIL.
Status read_fault(const PlanState& state) {
  cuda::DeviceMemory& memory = state.memory->device()->memory();
  unsigned long long word = cuda::kNoEntry;
  auto* const here = static_cast<std::byte*>(static_cast<void*>(&word));
  auto* const there = static_cast<std::byte*>(static_cast<void*>(fault_of(state)));
  const CopyRun out{here, there, sizeof(word)};
  KVFOLIO_RETURN_IF_ERROR(memory.copy_out({&out, 1}));
  Status said = cuda::plan_fault(*state.plan, word);
  if (said.ok()) return said;
  word = cuda::kNoEntry;
  const CopyRun in{there, here, sizeof(word)};
  KVFOLIO_RETURN_IF_ERROR(memory.copy_in({&in, 1}));
  return said;
}

void check_fault(PlanState& state) {
  check_has_memory(state);
  check_padded(state);
  state.memory->device()->synchronize();
  Status status;
  {
    const ReleasedGil release;
    status = read_fault(state);
  }
  check(status);
}

void add_capacity(nb::module_& m) {
  using cuda::AttendCapacity;
  nb::class_<AttendCapacity>(
      m, "AttendCapacity",
      "The largest batch that a captured graph is to serve, for plan_attend(). "
      "max_sequence_tokens: "
      "of K and V of one sequence; max_tokens: of all together, 0: max_sequences x "
      "max_sequence_tokens; max_queries: rows of q of one sequence, 1 for a decode.")
      .def(
          "__init__",
          [](AttendCapacity* self, Int max_sequences, Int max_sequence_tokens, Int max_tokens,
             Int max_queries) {
            const auto number = [](Int value, const char* name, std::int64_t least,
                                   std::int64_t most) {
              return static_cast<std::int32_t>(within(value, name, least, most));
            };
            AttendCapacity capacity;
            capacity.max_sequences = number(max_sequences, "max_sequences", 1, 1 << 20);
            capacity.max_sequence_tokens =
                number(max_sequence_tokens, "max_sequence_tokens", 1, kMaxSequenceTokens);
            capacity.max_queries = number(max_queries, "max_queries", 1, 1 << 16);
            const std::int64_t all =
                std::int64_t{capacity.max_sequences} * capacity.max_sequence_tokens;
            capacity.max_tokens = within(max_tokens, "max_tokens", 0, all);
            if (capacity.max_tokens == 0) capacity.max_tokens = all;
            new (self) AttendCapacity(capacity);
          },
          nb::kw_only(), "max_sequences"_a, "max_sequence_tokens"_a, "max_tokens"_a = Int{0},
          "max_queries"_a = Int{1},
          nb::sig("def __init__(self, *, max_sequences: int, max_sequence_tokens: int, "
                  "max_tokens: int = 0, max_queries: int = 1) -> None"))
      .def_ro("max_sequences", &AttendCapacity::max_sequences)
      .def_ro("max_sequence_tokens", &AttendCapacity::max_sequence_tokens)
      .def_ro("max_tokens", &AttendCapacity::max_tokens)
      .def_ro("max_queries", &AttendCapacity::max_queries)
      .def(
          "__eq__",
          [](const AttendCapacity& self, nb::handle other) {
            return nb::isinstance<AttendCapacity>(other) &&
                   self == nb::cast<const AttendCapacity&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__",
           [](const AttendCapacity& self) {
             return nb::hash(nb::make_tuple(self.max_sequences, self.max_sequence_tokens,
                                            self.max_tokens, self.max_queries));
           })
      .def("__repr__", [](const AttendCapacity& self) {
        return "AttendCapacity(max_sequences=" + std::to_string(self.max_sequences) +
               ", max_sequence_tokens=" + std::to_string(self.max_sequence_tokens) +
               ", max_tokens=" + std::to_string(self.max_tokens) +
               ", max_queries=" + std::to_string(self.max_queries) + ")";
      });
}

}  // namespace

void add_padded(nb::module_& m, nb::class_<CudaAttendPlan>& plan) {
  add_capacity(m);
  plan.def_prop_ro(
          "capacity", [](const CudaAttendPlan& self) { return self.state->capacity; },
          nb::sig("def capacity(self) -> AttendCapacity | None"),
          "What it is padded to; None: it is not.")
      .def(
          "check",
          [](const CudaAttendPlan& self, nb::handle batch) {
            const auto& given = object_of<CudaBatch>(batch, "batch", "a kvfolio.cuda.Batch");
            check_padded(*self.state);
            check(self.state->plan->check(host_batch(given)));
          },
          "batch"_a, nb::sig("def check(self, batch: Batch) -> None"),
          "Whether a graph that captured attend() with this padded plan serves the batch, for a "
          "replay whose plan is made on the device: only its lengths are looked at. Raises "
          "InvalidArgument with both numbers for more than the capacity, FailedPrecondition if the "
          "plan is not padded.")
      .def(
          "plan_on_device",
          [](const CudaAttendPlan& self, nb::handle query_start, nb::handle kv_lens,
             nb::handle trim_sinks, nb::handle trim_first_kept, nb::handle counts,
             nb::handle stream, bool keep) {
            plan_there(*self.state, {query_start, kv_lens, trim_sinks, trim_first_kept, counts},
                       stream, keep);
          },
          "query_start"_a.none(), "kv_lens"_a.none(), nb::kw_only(), "trim_sinks"_a = nb::none(),
          "trim_first_kept"_a = nb::none(), "counts"_a = nb::none(), "stream"_a = nb::none(),
          "keep"_a = true,
          nb::sig("def plan_on_device(self, query_start: kvfolio._types.SupportsDLPack, kv_lens: "
                  "kvfolio._types.SupportsDLPack, *, trim_sinks: kvfolio._types.SupportsDLPack | "
                  "None = None, trim_first_kept: kvfolio._types.SupportsDLPack | None = None, "
                  "counts: kvfolio._types.SupportsDLPack | None = None, stream: typing.Any = None, "
                  "keep: bool = True) -> None"),
          "Makes a padded plan anew by one kernel, of lengths that lie on the device: int32, "
          "with room for the capacity, as those of a DevicePlan, whose `counts` has the number "
          "of sequences (None: max_sequences, the last ones without rows, where query_start "
          "goes on flat). attend() reads them from then on. In a graph in front of attend() a "
          "replay needs no plan of the host. A batch over the capacity makes an empty plan, "
          "whose rows are not written: check_fault(), in front of attend() if none of its "
          "sequences may be within. Raises FailedPrecondition if the plan is not padded.")
      .def(
          "check_fault", [](const CudaAttendPlan& self) { check_fault(*self.state); },
          "Waits for the device, and raises InvalidArgument for the first batch over the capacity "
          "that plan_on_device() saw since the last check, with the sequence.");
}

}  // namespace kvfolio::python
