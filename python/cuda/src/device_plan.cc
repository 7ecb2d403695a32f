// SPDX-License-Identifier: Apache-2.0

// Plans of steps in device memory, at addresses that stay (cuda_plan.h).

#include "kvfolio/cuda_plan.h"

#include "bridge.h"
#include "cuda_storage.h"

namespace kvfolio::python {
namespace {

// What exported arrays keep alive. It ends when its uploads have passed, on any thread.
struct DevicePlanState {
  DevicePlanState(std::shared_ptr<DeviceState> device_in, const cuda::DevicePlanOptions& options)
      : device(std::move(device_in)),
        max_sequences(options.max_sequences),
        max_tokens(options.max_tokens),
        num_rows(options.num_rows) {}
  DevicePlanState(const DevicePlanState&) = delete;
  DevicePlanState& operator=(const DevicePlanState&) = delete;
  ~DevicePlanState() {
    end_without_gil([this] {
      static_cast<void>(device->wait(last));
      plan.reset();
    });
  }

  std::shared_ptr<DeviceState> device;
  std::int64_t max_sequences, max_tokens, num_rows;
  LastWork last;  // guarded by the device's mutex
  std::unique_ptr<cuda::DevicePlan> plan;
};

struct CudaDevicePlan {
  std::shared_ptr<DevicePlanState> state;
};
struct CudaDeviceGroup {
  std::shared_ptr<DevicePlanState> state;
  GroupId group;
};

// Pairs (block_size, table_stride).
std::vector<cuda::DevicePlanGroup> plan_groups_of(nb::handle groups) {
  constexpr const char* kWanted = "a sequence of pairs (block_size, table_stride)";
  std::vector<cuda::DevicePlanGroup> result;
  for (const nb::object& pair : items_of(groups, "groups", kWanted)) {
    const std::vector<nb::object> numbers = items_of(pair, "groups", kWanted);
    Int block_size, stride;
    if (numbers.size() != 2 || !nb::try_cast(numbers[0], block_size) ||
        !nb::try_cast(numbers[1], stride)) {
      raise_wanted(pair, "groups", kWanted);
    }
    result.push_back({i32(block_size, "block_size"), i32(stride, "table_stride")});
  }
  return result;
}

std::shared_ptr<DevicePlanState> make_device_plan(nb::handle device,
                                                  const cuda::DevicePlanOptions& options) {
  auto state = std::make_shared<DevicePlanState>(device_of(device), options);
  create_over(state->device, state->plan, [&](const std::shared_ptr<cuda::Kernels>& kernels) {
    return cuda::DevicePlan::create(kernels, options);
  });
  return state;
}

// f(arrays of the plan) on a stream, behind uploads on others.
template <typename F>
void with_plan(DevicePlanState& state, nb::handle plan, nb::handle stream, F&& f) {
  void* const number = stream_of(stream);
  const StepPlan* arrays = nullptr;
  const nb::object capsule = plan_bridge_of(plan, arrays);
  state.device->check_not_captured(number, "a plan is sent in front of a graph");
  state.device->enqueue({&state.last}, {}, number, [&]() -> Status {
    KVFOLIO_RETURN_IF_ERROR(DeviceState::hold_back(state.last, number));
    return f(*arrays, number);
  });
}

template <typename T>
nb::object array_of_plan(const std::shared_ptr<DevicePlanState>& state, const T* data,
                         std::vector<std::int64_t> shape) {
  if (data == nullptr) return nb::none();
  Exported exported{
      .data = const_cast<std::byte*>(static_cast<const std::byte*>(static_cast<const void*>(data))),
      .ordinal = state->device->device().ordinal(),
      .dtype = {dl::kInt, 8 * sizeof(T), 1},
      .shape = std::move(shape),
      .strides = {1},
      .keep = state};
  if (exported.shape.size() == 2)
    exported.strides.insert(exported.strides.begin(), exported.shape[1]);
  return nb::cast(CudaTensor{state->device, &state->last, std::move(exported)});
}

// A property that may be None.
#define KVFOLIO_SIGNATURE(name) "def " name "(self) -> Tensor | None"

void add_group_class(nb::module_& m) {
  nb::class_<CudaDeviceGroup> c(m, "DeviceGroupPlan",
                                "What one group has in device memory, with the names of GroupPlan. "
                                "None: not wanted.");
  const auto array = [&](const char* name, const char* signature, auto field, auto shape,
                         const char* doc) {
    c.def_prop_ro(
        name,
        [field, shape](const CudaDeviceGroup& self) {
          const cuda::DeviceGroupPlan& group = self.state->plan->group(self.group);
          return array_of_plan(self.state, group.*field, shape(*self.state, group));
        },
        nb::sig(signature), doc);
  };
  using State = const DevicePlanState&;
  using Group = const cuda::DeviceGroupPlan&;
  using Shape = std::vector<std::int64_t>;
  const auto tokens = [](State state, Group) { return Shape{state.max_tokens}; };
  const auto sequences = [](State state, Group) { return Shape{state.max_sequences}; };
  array("slot_mapping", KVFOLIO_SIGNATURE("slot_mapping"), &cuda::DeviceGroupPlan::slot_mapping,
        tokens, "[max_tokens], int32.");
  array("slot_mapping_64", KVFOLIO_SIGNATURE("slot_mapping_64"),
        &cuda::DeviceGroupPlan::slot_mapping_64, tokens, "[max_tokens], with int64_slots.");
  array(
      "table", KVFOLIO_SIGNATURE("table"), &cuda::DeviceGroupPlan::table,
      [](State state, Group group) {
        return Shape{state.num_rows, group.table_stride};
      },
      "[num_rows, table_stride]: row rows[i] is that of the i-th sequence.");
  array(
      "batch_table", KVFOLIO_SIGNATURE("batch_table"), &cuda::DeviceGroupPlan::batch_table,
      [](State state, Group group) {
        return Shape{state.max_sequences, group.table_stride};
      },
      "[max_sequences, table_stride], in the order of the plan: the block_table of a Batch.");
  array(
      "kv_indptr", KVFOLIO_SIGNATURE("kv_indptr"), &cuda::DeviceGroupPlan::kv_indptr,
      [](State state, Group) { return Shape{state.max_sequences + 1}; },
      "FlashInfer: [max_sequences + 1].");
  array(
      "kv_indices", KVFOLIO_SIGNATURE("kv_indices"), &cuda::DeviceGroupPlan::kv_indices,
      [](State state, Group group) { return Shape{state.max_sequences * group.table_stride}; },
      "FlashInfer: [max_sequences * table_stride].");
  array("kv_last_page_len", KVFOLIO_SIGNATURE("kv_last_page_len"),
        &cuda::DeviceGroupPlan::kv_last_page_len, sequences, "FlashInfer: [max_sequences].");
  array("kv_first_live", KVFOLIO_SIGNATURE("kv_first_live"), &cuda::DeviceGroupPlan::kv_first_live,
        sequences, "[max_sequences], with flashinfer.");
}

void add_arrays(nb::class_<CudaDevicePlan>& c) {
  const auto array = [&](const char* name, const char* signature, auto field, auto count,
                         const char* doc) {
    c.def_prop_ro(
        name,
        [field, count](const CudaDevicePlan& self) {
          return array_of_plan(self.state, self.state->plan->arrays().*field, {count(*self.state)});
        },
        nb::sig(signature), doc);
  };
  const auto sequences = [](const DevicePlanState& state) { return state.max_sequences; };
  using Arrays = cuda::DevicePlanArrays;
  array(
      "query_start", KVFOLIO_SIGNATURE("query_start"), &Arrays::query_start,
      [](const DevicePlanState& state) { return state.max_sequences + 1; }, "[max_sequences + 1]");
  array("rows", KVFOLIO_SIGNATURE("rows"), &Arrays::rows, sequences, "[max_sequences]");
  array("kv_lens", KVFOLIO_SIGNATURE("kv_lens"), &Arrays::kv_lens, sequences, "[max_sequences]");
  array("trim_sinks", KVFOLIO_SIGNATURE("trim_sinks"), &Arrays::trim_sinks, sequences,
        "[max_sequences]");
  array("trim_first_kept", KVFOLIO_SIGNATURE("trim_first_kept"), &Arrays::trim_first_kept,
        sequences, "[max_sequences]");
  array(
      "positions", KVFOLIO_SIGNATURE("positions"), &Arrays::positions,
      [](const DevicePlanState& state) { return state.max_tokens; },
      "[max_tokens]; None if they are not wanted.");
  array(
      "counts", KVFOLIO_SIGNATURE("counts"), &Arrays::counts,
      [](const DevicePlanState&) { return std::int64_t{2}; },
      "[2]: sequences and tokens of the step, without padding.");
}

#undef KVFOLIO_SIGNATURE

void add_steps(nb::class_<CudaDevicePlan>& c) {
  c.def(
       "upload",
       [](const CudaDevicePlan& self, nb::handle plan, nb::handle stream) {
         with_plan(*self.state, plan, stream, [&](const StepPlan& arrays, void* on) {
           return self.state->plan->upload(arrays, on);
         });
       },
       "plan"_a, nb::kw_only(), "stream"_a = nb::none(),
       nb::sig("def upload(self, plan: kvfolio.Plan, *, stream: typing.Any = None) -> None"),
       "Sends the plan of a step behind what the stream has, reading it before it returns. Raises "
       "InvalidArgument for a plan that does not fit, with both numbers; FailedPrecondition for "
       "one "
       "that is older than the last, or where rows have to be sent whole and it has no block "
       "tables "
       "(needs_block_tables()); ResourceExhausted if steps_in_flight uploads are on their way "
       "(wait()). Nothing was started then.")
      .def(
          "needs_block_tables",
          [](const CudaDevicePlan& self, nb::handle plan) {
            const StepPlan* arrays = nullptr;
            const nb::object capsule = plan_bridge_of(plan, arrays);
            return self.state->plan->needs_block_tables(*arrays);
          },
          "plan"_a, nb::sig("def needs_block_tables(self, plan: kvfolio.Plan) -> bool"),
          "upload() would be refused for want of block tables.")
      .def(
          "wait",
          [](const CudaDevicePlan& self) {
            Status status;
            {
              const ReleasedGil release;
              status = self.state->plan->wait();
            }
            check(status);
          },
          "Waits until one more upload is allowed.")
      .def(
          "resend", [](const CudaDevicePlan& self) { self.state->plan->resend(); },
          "Every row is sent whole when a plan has it next: before the plans of another manager.")
      .def(
          "verify",
          [](const CudaDevicePlan& self, nb::handle plan, nb::handle stream) {
            with_plan(*self.state, plan, stream, [&](const StepPlan& arrays, void* on) {
              return self.state->plan->verify(arrays, on);
            });
          },
          "plan"_a, nb::kw_only(), "stream"_a = nb::none(),
          nb::sig("def verify(self, plan: kvfolio.Plan, *, stream: typing.Any = None) -> None"),
          "For tests: waits for the stream and compares all of it with the plan that was uploaded "
          "last, which has block tables. Raises Corrupt with the first difference.");
}

void add_plan_of_device(nb::module_& m) {
  nb::class_<CudaDevicePlan> c(
      m, "DevicePlan",
      "The plan of a step in device memory: arrays at fixed addresses, for graphs that are "
      "captured "
      "once, and block tables that stay there, of which an upload sends what changed. Its plans "
      "have "
      "changed_entries. Arrays have room for max_sequences and max_tokens, padded as plan() pads. "
      "One thread at a time.");
  c.def(
      "__init__",
      [](CudaDevicePlan* self, Int max_sequences, Int max_tokens, Int num_rows, nb::handle groups,
         nb::handle device, Int steps_in_flight, Int pad, bool positions, bool int64_slots,
         bool batch_tables, bool flashinfer, Int max_changed_entries) {
        const std::vector<cuda::DevicePlanGroup> of_groups = plan_groups_of(groups);
        const cuda::DevicePlanOptions options{
            .max_sequences = i32(max_sequences, "max_sequences"),
            .max_tokens = i32(max_tokens, "max_tokens"),
            .num_rows = i32(num_rows, "num_rows"),
            .groups = of_groups,
            .steps_in_flight = i32(steps_in_flight, "steps_in_flight"),
            .pad = i32(pad, "pad"),
            .positions = positions,
            .int64_slots = int64_slots,
            .batch_tables = batch_tables,
            .flashinfer = flashinfer,
            .max_changed_entries = max_changed_entries.value};
        new (self) CudaDevicePlan{make_device_plan(device, options)};
      },
      nb::kw_only(), "max_sequences"_a, "max_tokens"_a, "num_rows"_a, "groups"_a, "device"_a = 0,
      "steps_in_flight"_a = Int{2}, "pad"_a = Int{-1}, "positions"_a = false,
      "int64_slots"_a = false, "batch_tables"_a = true, "flashinfer"_a = false,
      "max_changed_entries"_a = Int{0},
      nb::sig("def __init__(self, *, max_sequences: int, max_tokens: int, num_rows: int, groups: "
              "collections.abc.Sequence[tuple[int, int]], device: int | Device = 0, "
              "steps_in_flight: int = 2, pad: int = -1, positions: bool = False, "
              "int64_slots: bool = False, batch_tables: bool = True, flashinfer: bool = False, "
              "max_changed_entries: int = 0) -> None"),
      "groups: (block_size, table_stride) of each, table_stride Manager.widest() or a bound that "
      "the host keeps. num_rows: Manager.num_rows.");
  add_arrays(c);
  add_steps(c);
  c.def(
       "group",
       [](const CudaDevicePlan& self, Int group) {
         const std::int64_t most = self.state->plan->num_groups() - 1;
         return CudaDeviceGroup{
             self.state, GroupId(static_cast<std::int32_t>(within(group, "group", 0, most)))};
       },
       "group"_a = Int{0}, nb::sig("def group(self, group: int = 0) -> DeviceGroupPlan"))
      .def_prop_ro("num_groups",
                   [](const CudaDevicePlan& self) { return self.state->plan->num_groups(); })
      .def_prop_ro("device_bytes",
                   [](const CudaDevicePlan& self) { return self.state->plan->device_bytes(); })
      .def_prop_ro("pinned_bytes",
                   [](const CudaDevicePlan& self) { return self.state->plan->pinned_bytes(); })
      .def_prop_ro(
          "last_upload",
          [](const CudaDevicePlan& self) {
            const cuda::UploadInfo& info = self.state->plan->last_upload();
            nb::dict said;
            said["bytes"] = info.bytes;
            said["changed_entries"] = info.changed_entries;
            said["whole_rows"] = info.whole_rows;
            said["whole_entries"] = info.whole_entries;
            return said;
          },
          nb::sig("def last_upload(self) -> dict[str, int]"),
          "bytes of the one copy, changed_entries, whole_rows and whole_entries that it sent.");
}

}  // namespace

void add_device_plan(nb::module_& m) {
  add_group_class(m);
  add_plan_of_device(m);
}

}  // namespace kvfolio::python
