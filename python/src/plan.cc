// SPDX-License-Identifier: Apache-2.0

#include "plan.h"

#include <cstring>
#include <functional>

#include "arrays.h"
#include "bridge.h"
#include "manager_state.h"

namespace kvfolio::python {
namespace {

// Calls f(span) for each array of a plan, those of eight bytes first.
template <typename F>
void for_each_array(StepPlan& plan, std::vector<GroupPlan>& groups, F&& f) {
  f(plan.sequences);
  f(plan.caller_ids);
  for (GroupPlan& group : groups) f(group.slot_mapping_64);
  f(plan.rows);
  f(plan.query_start);
  f(plan.positions);
  f(plan.kv_lens);
  f(plan.trim_sinks);
  f(plan.trim_first_kept);
  f(plan.rewinds);
  for (GroupPlan& group : groups) {
    f(group.slot_mapping);
    f(group.block_table);
    f(group.kv_indptr);
    f(group.kv_indices);
    f(group.kv_last_page_len);
    f(group.kv_first_live);
    f(group.copy_src);
    f(group.copy_dst);
    f(group.shared_prefixes);
    f(group.changed_rows);
    f(group.changed_columns);
    f(group.changed_blocks);
  }
}

static_assert(sizeof(SharedPrefix) == 3 * sizeof(std::int32_t));
static_assert(sizeof(SequenceId) == sizeof(std::uint64_t));

}  // namespace

PlanData::PlanData(std::shared_ptr<ManagerState> state, const StepPlan& plan,
                   std::shared_ptr<Lease> lease, std::optional<Array> callers)
    : state_(std::move(state)),
      lease_(std::move(lease)),
      callers_(std::move(callers)),
      plan_(plan),
      groups_(plan.groups.begin(), plan.groups.end()),
      group_arrays_(plan.groups.size()) {
  plan_.groups = groups_;
  for (const GroupSpec& group : state_->manager.spec().groups) {
    params_.push_back(attention_params(group, 0.0));
  }
  if (lease_ != nullptr) return;
  state_.reset();  // copies need no state
  std::size_t bytes = 0;
  for_each_array(plan_, groups_, [&](const auto& span) {
    bytes += is_the_callers(span.data()) ? 0 : span.size_bytes();
  });
  auto* memory = new std::uint64_t[bytes / 8 + 1];
  memory_ = nb::capsule(memory, [](void* p) noexcept { delete[] static_cast<std::uint64_t*>(p); });
  auto* at = reinterpret_cast<std::byte*>(memory);
  for_each_array(plan_, groups_, [&]<typename T>(std::span<const T>& span) {
    if (is_the_callers(span.data())) return;
    if (!span.empty()) std::memcpy(at, span.data(), span.size_bytes());
    span = {reinterpret_cast<const T*>(at), span.size()};
    at += span.size_bytes();
  });
}

bool PlanData::is_the_callers(const void* array) const {
  const auto* at = static_cast<const std::byte*>(array);
  return callers_ && std::less_equal<>()(callers_->data, at) &&
         std::less<>()(at, callers_->data + callers_->array.nbytes());
}

nb::object PlanData::owner_of(const void* array) const {
  return is_the_callers(array) ? nb::cast(callers_->array) : nb::object(memory_);
}

void PlanData::check_live(const char* name) const {
  if (lease_ == nullptr || lease_->live) return;
  raise(Status(ErrorCode::kFailedPrecondition,
               std::string(name) + ": the arrays of this plan lie in the buffers of its step, "
                                   "which has ended or was planned again"));
}

nb::object PlanData::make(std::span<const std::int32_t> numbers, std::vector<std::size_t> shape) {
  if (lease_ != nullptr) {
    return nb::cast(PlanArray(state_, lease_, numbers.data(), std::move(shape)));
  }
  return nb::cast(
      nb::ndarray<nb::numpy, std::int32_t>(const_cast<std::int32_t*>(numbers.data()), shape.size(),
                                           shape.data(), owner_of(numbers.data())),
      nb::rv_policy::reference);
}

nb::object PlanData::array(StepField field) {
  check_live("plan");
  nb::object& made = step_arrays_[field];
  if (made.is_valid()) return made;
  if (field == kSequences || field == kCallerIds) {
    const auto* ids = reinterpret_cast<const std::uint64_t*>(plan_.sequences.data());
    const std::span<const std::uint64_t> numbers =
        field == kCallerIds ? plan_.caller_ids : std::span(ids, plan_.sequences.size());
    made = lease_ != nullptr ? numpy_copy(numbers)
                             : numpy_array(numbers.data(), {numbers.size()}, memory_);
    return made;
  }
  const std::span<const std::int32_t> arrays[] = {{},
                                                  plan_.rows,
                                                  plan_.query_start,
                                                  plan_.positions,
                                                  plan_.kv_lens,
                                                  plan_.trim_sinks,
                                                  plan_.trim_first_kept,
                                                  plan_.rewinds};
  made = make(arrays[field], {arrays[field].size()});
  return made;
}

nb::object PlanData::array(std::size_t index, GroupField field) {
  check_live("plan");
  nb::object& made = group_arrays_[index][field];
  if (made.is_valid()) return made;
  const GroupPlan& group = groups_[index];
  if (field == kBlockTable) {
    const auto stride = static_cast<std::size_t>(group.block_table_stride);
    const std::size_t rows = group.block_table.empty() ? 0 : plan_.rows.size();
    made = make(group.block_table, {rows, stride});
    return made;
  }
  if (field == kSlotMapping64) {
    const std::span<const std::int64_t> slots = group.slot_mapping_64;
    made = lease_ != nullptr ? numpy_copy(slots)
                             : numpy_array(slots.data(), {slots.size()}, owner_of(slots.data()));
    return made;
  }
  if (field == kSharedPrefixes) {
    const auto* numbers = reinterpret_cast<const std::int32_t*>(group.shared_prefixes.data());
    const std::size_t count = group.shared_prefixes.size();
    made = make({numbers, 3 * count}, {count, 3});
    return made;
  }
  const std::span<const std::int32_t> arrays[] = {group.slot_mapping,
                                                  {},
                                                  {},
                                                  group.kv_indptr,
                                                  group.kv_indices,
                                                  group.kv_last_page_len,
                                                  group.kv_first_live,
                                                  group.copy_src,
                                                  group.copy_dst,
                                                  {},
                                                  group.changed_rows,
                                                  group.changed_columns,
                                                  group.changed_blocks};
  made = make(arrays[field], {arrays[field].size()});
  return made;
}

AttentionBatch PlanGroup::batch() const {
  const StepPlan& plan = data->plan();
  const GroupPlan& arrays = data->group(group);
  return {.query_start = plan.query_start,
          .kv_lens = plan.kv_lens,
          .block_table = arrays.block_table,
          .block_table_stride = arrays.block_table_stride,
          .trim_sinks = plan.trim_sinks,
          .trim_first_kept = plan.trim_first_kept};
}

namespace {

// A property whose stub says what kind of array it is.
template <StepField kField>
void add_array(nb::class_<Plan>& c, const char* name, const char* signature, const char* doc) {
  c.def_prop_ro(
      name, [](const Plan& plan) { return plan.data->array(kField); }, nb::sig(signature), doc);
}
template <GroupField kField>
void add_array(nb::class_<PlanGroup>& c, const char* name, const char* signature, const char* doc) {
  c.def_prop_ro(
      name, [](const PlanGroup& plan) { return plan.data->array(plan.group, kField); },
      nb::sig(signature), doc);
}

#define KVFOLIO_ARRAY(c, field, name, doc) \
  add_array<field>(c, name, "def " name "(self) -> kvfolio._types.Int32Array", doc)

void add_group(nb::module_& m) {
  nb::class_<PlanGroup> c(m, "GroupPlan", "The arrays of one group of layers.");
  KVFOLIO_ARRAY(c, kSlotMapping, "slot_mapping",
                "[num_tokens] block * block_size + offset; -1: K and V are there already.");
  add_array<kSlotMapping64>(c, "slot_mapping_64",
                            "def slot_mapping_64(self) -> numpy.typing.NDArray[numpy.int64]",
                            "The same with int64_slots, else empty. Of plan(copy=False) a copy.");
  KVFOLIO_ARRAY(c, kBlockTable, "block_table",
                "[num_sequences, widest] physical block of each logical block, then pad.");
  KVFOLIO_ARRAY(c, kKvIndptr, "kv_indptr",
                "FlashInfer: [num_sequences + 1]. The four arrays are empty unless asked for.");
  KVFOLIO_ARRAY(c, kKvIndices, "kv_indices", "FlashInfer: the live blocks, in order.");
  KVFOLIO_ARRAY(c, kKvLastPageLen, "kv_last_page_len",
                "FlashInfer: [num_sequences], 1 .. block_size.");
  KVFOLIO_ARRAY(c, kKvFirstLive, "kv_first_live",
                "FlashInfer: [num_sequences] the first position behind the gap in the list of "
                "pages; 0: no gap.");
  KVFOLIO_ARRAY(c, kCopySrc, "copy_src", "Whole blocks to copy before this step writes.");
  KVFOLIO_ARRAY(c, kCopyDst, "copy_dst", "Where they go.");
  KVFOLIO_ARRAY(c, kSharedPrefixes, "shared_prefixes",
                "[n, 3] first sequence, number of sequences, number of blocks; if asked for.");
  KVFOLIO_ARRAY(c, kChangedRows, "changed_rows",
                "table[changed_rows, changed_columns] = changed_blocks keeps a table on a device; "
                "if asked for.");
  KVFOLIO_ARRAY(c, kChangedColumns, "changed_columns", "See changed_rows.");
  KVFOLIO_ARRAY(c, kChangedBlocks, "changed_blocks", "See changed_rows.");
  c.def("__repr__", [](const PlanGroup& self) {
    return "<kvfolio.GroupPlan: group " + std::to_string(self.group) + " of step " +
           std::to_string(self.data->plan().ticket.value()) + ">";
  });
}

#undef KVFOLIO_ARRAY
#define KVFOLIO_ARRAY(c, field, name, doc) \
  add_array<field>(c, name, "def " name "(self) -> kvfolio._types.Int32Array", doc)

}  // namespace

void add_plan(nb::module_& m) {
  add_plan_array(m);
  add_group(m);
  nb::class_<Plan> c(m, "Plan",
                     "What a step needs on a device: int32 arrays. Those of plan(copy=False) lie "
                     "in the buffers of the step and are PlanArrays. With padded_sequences "
                     "num_sequences is that number, but in sequences and caller_ids.");
  c.def("__repr__", [](const Plan& plan) {
    const StepPlan& of = plan.data->plan();
    return "<kvfolio.Plan of step " + std::to_string(of.ticket.value()) + ": " +
           counted(static_cast<std::int64_t>(of.sequences.size()), "sequence") + ", " +
           counted(of.num_tokens, "token") + ", " +
           counted(static_cast<std::int64_t>(plan.data->num_groups()), "group") + ">";
  });
  c.def_prop_ro("ticket", [](const Plan& plan) { return plan.data->plan().ticket.value(); });
  c.def_prop_ro("num_tokens", [](const Plan& plan) { return plan.data->plan().num_tokens; });
  add_array<kSequences>(c, "sequences", "def sequences(self) -> numpy.typing.NDArray[numpy.uint64]",
                        "[num_sequences] ids in the order of their appends; always a copy.");
  KVFOLIO_ARRAY(c, kRows, "rows", "[num_sequences] below Manager.num_rows.");
  KVFOLIO_ARRAY(c, kQueryStart, "query_start", "[num_sequences + 1] tokens before each sequence.");
  KVFOLIO_ARRAY(c, kPositions, "positions", "[num_tokens] if asked for, else empty.");
  KVFOLIO_ARRAY(c, kKvLens, "kv_lens", "[num_sequences] length with this step's tokens.");
  KVFOLIO_ARRAY(
      c, kTrimSinks, "trim_sinks",
      "[num_sequences] position p is visible iff p < trim_sinks or p >= trim_first_kept.");
  KVFOLIO_ARRAY(c, kTrimFirstKept, "trim_first_kept", "See trim_sinks.");
  KVFOLIO_ARRAY(c, kRewinds, "rewinds",
                "[num_sequences] SequenceInfo.rewinds of each: tells old results from new ones.");
  add_array<kCallerIds>(c, "caller_ids",
                        "def caller_ids(self) -> numpy.typing.NDArray[numpy.uint64]",
                        "[num_sequences] if asked for, else empty; 0: it has none. Always a copy.");
  c.def("_bridge", [](const Plan& plan) {
    plan.data->check_live("plan");
    return make_plan_bridge(plan.data->plan(), plan.data, plan.data->reading());
  });
  c.def(
      "table_of",
      [](const Plan& plan, Int group, Int i) {
        const auto at = static_cast<std::size_t>(group.value);
        if (group.value < 0 || at >= plan.data->num_groups()) {
          raise_invalid("table_of: group " + std::to_string(group.value) + ", allowed: 0 to " +
                        std::to_string(plan.data->num_groups() - 1));
        }
        return plan.data->array(at, kBlockTable)[nb::int_(i.value)];
      },
      "group"_a, "i"_a,
      nb::sig("def table_of(self, group: int, i: int) -> kvfolio._types.Int32Array"),
      "The block table of the i-th sequence in a group.");
  c.def_prop_ro(
      "groups",
      [](Plan& plan) {
        if (plan.groups.is_valid()) return plan.groups;
        nb::list groups;
        for (std::size_t i = 0; i < plan.data->num_groups(); ++i) {
          groups.append(nb::cast(PlanGroup{plan.data, i}));
        }
        plan.groups = nb::tuple(groups);
        return plan.groups;
      },
      nb::sig("def groups(self) -> tuple[GroupPlan, ...]"));
}

}  // namespace kvfolio::python
