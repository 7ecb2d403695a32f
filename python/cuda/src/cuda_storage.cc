// SPDX-License-Identifier: Apache-2.0

#include "cuda_storage.h"

#include "arrays.h"
#include "attend.h"

namespace kvfolio::python {

StorageState::StorageState(std::shared_ptr<DeviceState> device_in, KVStorage storage_in,
                           Owners lent_in)
    : device(std::move(device_in)), lent(std::move(lent_in)), storage(std::move(storage_in)) {}

StorageState::~StorageState() {
  const auto end = [this] {
    static_cast<void>(device->wait(last));
    plans.reset();
    storage.reset();
    if (faults != nullptr) {
      const auto bytes = static_cast<std::int64_t>(num_words * sizeof(*faults));
      device->memory().deallocate(reinterpret_cast<std::byte*>(faults), bytes);
    }
  };
  if (Py_IsInitialized() == 0) {
    end();
    // No deleter may run any more.
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): the process ends, one way or the other
    static_cast<void>(new Owners(std::move(lent)));
    return;
  }
  with_gil([&] {
    {
      const ReleasedGil release;
      end();
    }
    lent.clear();
  });
}

Status StorageState::make_faults() {
  num_words = 2 * static_cast<std::size_t>(storage->num_groups());
  const auto bytes = static_cast<std::int64_t>(num_words * sizeof(*faults));
  Result<std::byte*> memory = device->memory().allocate(bytes);
  if (!memory) return memory.error();
  faults = reinterpret_cast<cuda::Fault>(*memory);
  return clear_faults();
}

Status StorageState::clear_faults() {
  const std::vector<unsigned long long> none(num_words, cuda::kNoEntry);
  const CopyRun run{reinterpret_cast<std::byte*>(faults),
                    reinterpret_cast<const std::byte*>(none.data()),
                    static_cast<std::int64_t>(num_words * sizeof(*faults))};
  return device->memory().copy_in({&run, 1});
}

Status StorageState::read_faults() {
  std::vector<unsigned long long> words(num_words, cuda::kNoEntry);
  const CopyRun run{reinterpret_cast<std::byte*>(words.data()),
                    reinterpret_cast<const std::byte*>(faults),
                    static_cast<std::int64_t>(num_words * sizeof(*faults))};
  Status status = device->memory().copy_out({&run, 1});
  if (!status.ok()) return status;
  for (std::size_t i = 0; i < num_words && status.ok(); ++i) {
    if (words[i] == cuda::kNoEntry) continue;
    const Result<KVView> view = storage->view(GroupId(static_cast<std::int32_t>(i / 2)), 0);
    if (!view) return view.error();
    status = i % 2 == 0 ? cuda::slot_fault(*view, words[i]) : cuda::table_fault(*view, words[i]);
  }
  const Status cleared = status.ok() ? Status() : clear_faults();
  return cleared.ok() ? status : cleared;
}

namespace {

// What kernels of a device do not take is said here, and not at the first append.
void check_spec(const CacheSpec& spec) {
  check(validate(spec));
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    const GroupSpec& group = spec.groups[i];
    const std::string name = "groups[" + std::to_string(i) + "]";
    if (group.format == Format::kGranule) {
      raise(Status(ErrorCode::kUnsupported,
                   name + ".format is granule, allowed on a device: hnd, nhd"));
    }
    if (group.dtype == DType::kF64 || group.dtype == DType::kOpaque) {
      raise(
          Status(ErrorCode::kUnsupported, name + ".dtype is " + to_string(group.dtype) +
                                              ", allowed on a device: f32, f16, bf16, int8, e4m3"));
    }
  }
}

// A storage that is ready. Under the GIL.
template <typename Make>
std::shared_ptr<StorageState> make_state(const std::shared_ptr<DeviceState>& device, Owners lent,
                                         Make&& make) {
  std::shared_ptr<StorageState> state;
  Status status;
  {
    const ReleasedGil release;
    status = device->load();
    if (status.ok()) {
      Result<KVStorage> storage = make(device->memory());
      if (storage) {
        state = std::make_shared<StorageState>(device, *std::move(storage), Owners());
        status = state->make_faults();
      } else {
        status = storage.error();
      }
    }
  }
  check(status);
  state->lent = std::move(lent);
  return state;
}

CudaStorage create(nb::handle groups, nb::handle device) {
  const CacheSpec spec = spec_of(groups);
  check_spec(spec);
  return CudaStorage(make_state(device_of(device), {}, [&](cuda::DeviceMemory& memory) {
    return KVStorage::create(spec, &memory);
  }));
}

// ---- lent tensors ----

struct LentLayer {
  std::optional<Lent> k, v, k_scale, v_scale;
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + ")";
}

// One tensor of a group: [num_layers if `layers`, num_blocks, num_kv_heads, block_size, head_dim],
// the last axis for rows only.
struct Plane {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  KVStrides strides = {};
};
Plane plane_of(const Lent& lent, const char* name, const GroupSpec& group, bool layers,
               std::int32_t head_dim) {
  std::vector<std::int64_t> wanted{group.num_blocks, group.num_kv_heads, group.block_size};
  if (layers) wanted.insert(wanted.begin(), group.num_layers);
  if (head_dim > 0) wanted.push_back(head_dim);
  if (lent.shape != wanted) {
    raise_invalid(std::string(name) + ": " + lent.text() + ", wanted: shape " + shape_text(wanted));
  }
  const DType dtype = dtype_of(lent, name, true);
  const DType needed = head_dim > 0 ? group.dtype : DType::kF32;
  if (dtype != needed) {
    raise_type(std::string(name) + ": " + lent.text() + ", wanted: elements of " +
               to_string(needed));
  }
  Plane plane{.data = lent.data, .bytes = lent.item_bytes()};
  for (std::size_t axis = 0; axis < wanted.size(); ++axis) {
    if (lent.stride(axis) < 0) {
      raise_invalid(std::string(name) + ": axis " + std::to_string(axis) + " has stride " +
                    std::to_string(lent.stride(axis)) + ", wanted: not negative");
    }
    plane.bytes += (wanted[axis] - 1) * lent.stride(axis);
  }
  if (head_dim > 1 && lent.strides.back() != 1) {
    raise_invalid(std::string(name) + ": elements of a row lie " +
                  std::to_string(lent.strides.back()) + " apart, wanted: 1 (contiguous)");
  }
  const std::size_t first = layers ? 1 : 0;
  plane.strides = {.layer = layers ? lent.stride(0) : 0,
                   .block = lent.stride(first),
                   .head = lent.stride(first + 1),
                   .token = lent.stride(first + 2)};
  return plane;
}

LentLayer lent_layer(nb::handle tensors, const Consumer& consumer) {
  if (!PyTuple_Check(tensors.ptr()) && !PyList_Check(tensors.ptr())) {
    raise_type("arrays: those of a layer are a tuple (k, v) or (k, v, k_scale, v_scale)");
  }
  const std::vector<nb::object> items =
      items_of(tensors, "arrays", "a list with a tuple of tensors for each group");
  if (items.size() != 1 && items.size() != 2 && items.size() != 4) {
    raise_invalid("the arrays of a layer are (k,), (k, v) or (k, v, k_scale, v_scale), not " +
                  std::to_string(items.size()));
  }
  const auto at = [&](std::size_t i, const char* name) -> std::optional<Lent> {
    if (i >= items.size() || items[i].is_none()) return std::nullopt;
    return lent_of(items[i], name, consumer, Use::kWrite);
  };
  if (items[0].is_none()) raise_type("k is missing");
  return {at(0, "k"), at(1, "v"), at(2, "k_scale"), at(3, "v_scale")};
}

BorrowedGroup borrowed(const LentLayer& lent, const GroupSpec& group, bool layers) {
  BorrowedGroup result;
  const auto set = [&](const std::optional<Lent>& from, const char* name, std::int32_t head_dim,
                       std::byte*& data, std::int64_t& bytes, KVStrides& strides) {
    if (!from) return;
    const Plane plane = plane_of(*from, name, group, layers, head_dim);
    data = plane.data;
    bytes = plane.bytes;
    strides = plane.strides;
  };
  set(lent.k, "k", group.head_dim_k, result.k, result.k_bytes, result.k_strides);
  set(lent.v, "v", group.head_dim_v, result.v, result.v_bytes, result.v_strides);
  set(lent.k_scale, "k_scale", 0, result.k_scale, result.k_scale_bytes, result.k_scale_strides);
  set(lent.v_scale, "v_scale", 0, result.v_scale, result.v_scale_bytes, result.v_scale_strides);
  return result;
}

void keep(LentLayer& lent, Owners& owners) {
  for (std::optional<Lent>* each : {&lent.k, &lent.v, &lent.k_scale, &lent.v_scale}) {
    if (*each) owners.push_back(std::move((*each)->owner));
  }
}

bool same_strides(const BorrowedGroup& a, const BorrowedGroup& b) {
  const auto equal = [](const KVStrides& x, const KVStrides& y) {
    return x.block == y.block && x.head == y.head && x.token == y.token;
  };
  return equal(a.k_strides, b.k_strides) && equal(a.v_strides, b.v_strides) &&
         equal(a.k_scale_strides, b.k_scale_strides) && equal(a.v_scale_strides, b.v_scale_strides);
}

// A list of layers that were lent one by one.
BorrowedGroup borrow_layers(nb::handle layers, const GroupSpec& group, const Consumer& consumer,
                            std::vector<BorrowedLayer>& bases, Owners& owners) {
  const auto count = static_cast<std::int64_t>(nb::len(layers));
  if (count != group.num_layers) {
    raise_invalid(std::to_string(count) + " layers are lent, the spec has " +
                  std::to_string(group.num_layers));
  }
  std::optional<BorrowedGroup> result;
  for (const nb::handle layer : nb::borrow<nb::object>(layers)) {
    LentLayer lent = lent_layer(layer, consumer);
    const BorrowedGroup one = borrowed(lent, group, false);
    if (!result) result = one;
    if (!same_strides(one, *result)) {
      raise_invalid("layer " + std::to_string(bases.size()) +
                    " has other strides than layer 0, wanted: the same");
    }
    bases.push_back({one.k, one.v, one.k_scale, one.v_scale});
    keep(lent, owners);
  }
  result->k = result->v = result->k_scale = result->v_scale = nullptr;
  result->layers = bases;
  return *result;
}

CudaStorage borrow(nb::handle groups, nb::handle arrays, nb::handle device, nb::handle stream) {
  const CacheSpec spec = spec_of(groups);
  check_spec(spec);
  const std::shared_ptr<DeviceState> state = device_of(device);
  const Consumer consumer = state->consumer(stream_of(stream));
  const std::vector<nb::object> items =
      items_of(arrays, "arrays", "a list with a tuple of tensors for each group");
  if (items.size() != spec.groups.size()) {
    raise_invalid("arrays of " + std::to_string(items.size()) + " groups are lent, the spec has " +
                  std::to_string(spec.groups.size()));
  }
  std::vector<BorrowedGroup> lent;
  std::vector<std::vector<BorrowedLayer>> bases(items.size());
  Owners owners;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const GroupSpec& group = spec.groups[i];
    if (PyList_Check(items[i].ptr())) {
      lent.push_back(borrow_layers(items[i], group, consumer, bases[i], owners));
      continue;
    }
    LentLayer all = lent_layer(items[i], consumer);
    lent.push_back(borrowed(all, group, true));
    keep(all, owners);
  }
  return CudaStorage(make_state(state, std::move(owners), [&](cuda::DeviceMemory& memory) {
    return KVStorage::borrow(spec, lent, &memory);
  }));
}

// ---- tensors ----

dl::Type element_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
      return {dl::kFloat, static_cast<std::uint8_t>(8 * dtype_bytes(dtype)), 1};
    case DType::kBF16:
      return {dl::kBfloat, 16, 1};
    case DType::kInt8:
      return {dl::kInt, 8, 1};
    case DType::kE4M3:
    case DType::kOpaque:
      break;  // bytes
  }
  return {dl::kUInt, 8, 1};
}

nb::object tensor_at(const CudaView& self, std::byte* data, const KVStrides& strides, DType dtype,
                     std::int32_t head_dim) {
  if (data == nullptr) return nb::none();
  const KVView& view = self.view;
  const std::int64_t item = dtype_bytes(dtype);
  Exported exported{.data = data,
                    .ordinal = self.state->device->device().ordinal(),
                    .dtype = element_of(dtype),
                    .shape = {view.num_layers, view.num_blocks, view.num_kv_heads, view.block_size},
                    .strides = {strides.layer / item, strides.block / item, strides.head / item,
                                strides.token / item},
                    .keep = self.state};
  if (head_dim > 0) {
    exported.shape.push_back(head_dim);
    exported.strides.push_back(1);
  }
  return nb::cast(CudaTensor{self.state->device, &self.state->last, std::move(exported)});
}

// The device and copy of __dlpack__(): only a view of where it lies can be had.
void check_wishes(const CudaTensor& tensor, nb::handle dl_device, nb::handle copy) {
  if (!copy.is_none() && nb::cast<bool>(copy)) {
    raise(Status(ErrorCode::kUnsupported, "copy=True: a tensor of a cache is a view of it"));
  }
  if (dl_device.is_none()) return;
  const nb::object own = nb::make_tuple(dl::kCuda, tensor.exported.ordinal);
  if (nb::tuple(nb::borrow<nb::object>(dl_device)).equal(own)) return;
  raise(Status(ErrorCode::kUnsupported,
               "dl_device is another one, and a tensor of a cache is a view of device " +
                   std::to_string(tensor.exported.ordinal)));
}

nb::object tensor_dlpack(const CudaTensor& self, nb::handle stream, nb::handle max_version,
                         nb::handle dl_device, nb::handle copy) {
  check_wishes(self, dl_device, copy);
  bool versioned = false;
  if (!max_version.is_none()) {
    Int major;
    if (!PyTuple_Check(max_version.ptr()) || nb::len(max_version) != 2 ||
        !nb::try_cast(nb::object(max_version[nb::int_(0)]), major)) {
      raise_wanted(max_version, "max_version", "None or a tuple (major, minor)");
    }
    versioned = major.value >= 1;
  }
  void* consumer = stream.is_none() ? stream_of(stream) : nullptr;
  if (!stream.is_none()) {
    Int number;
    if (!nb::try_cast(stream, number)) raise_wanted(stream, "stream", "None or an int");
    if (number.value < -1 || number.value == 0) {
      raise_invalid("stream is " + std::to_string(number.value) +
                    ", allowed by DLPack for CUDA: 1 (the legacy default stream), 2 (the one of "
                    "each thread), a handle, -1 (no order is wanted)");
    }
    if (number.value > 0) consumer = stream_of(stream);
  }
  if (consumer != nullptr) {
    Status status;
    {
      const ReleasedGil release;
      status = self.device->order(*self.last, consumer);
    }
    check(status);
  }
  return export_capsule(self.exported, versioned);
}

void add_tensor(nb::module_& m) {
  const auto tuple = [](const std::vector<std::int64_t>& numbers) {
    nb::list list;
    for (const std::int64_t number : numbers) list.append(number);
    return nb::tuple(list);
  };
  nb::class_<CudaTensor>(
      m, "Tensor",
      "Keys, values or scales of a view, or an array of a DevicePlan, in device memory: "
      "torch.from_dlpack() makes a tensor of it without a copy. It keeps its storage or plan "
      "alive, "
      "and so does what was made of it.")
      .def("__dlpack__", &tensor_dlpack, nb::kw_only(), "stream"_a = nb::none(),
           "max_version"_a = nb::none(), "dl_device"_a = nb::none(), "copy"_a = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, "
                   "max_version: tuple[int, int] | None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> "
                   "typing.Any"),
           "As DLPack says: the stream waits for what this package has enqueued on its memory. "
           "None is the legacy default stream, -1 orders nothing.")
      .def(
          "__dlpack_device__",
          [](const CudaTensor& self) { return nb::make_tuple(dl::kCuda, self.exported.ordinal); },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def_prop_ro(
          "shape", [tuple](const CudaTensor& self) { return tuple(self.exported.shape); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "strides", [tuple](const CudaTensor& self) { return tuple(self.exported.strides); },
          nb::sig("def strides(self) -> tuple[int, ...]"), "In elements.")
      .def_prop_ro("data_ptr", [](const CudaTensor& self) {
        return reinterpret_cast<std::uintptr_t>(self.exported.data);
      });
}

void add_view(nb::module_& m) {
  nb::class_<CudaView> c(m, "View",
                         "Keys and values of the layers of one group, in device memory. A view "
                         "keeps its storage alive.");
  const auto number = [&](const char* name, auto field) {
    c.def_prop_ro(name, [field](const CudaView& self) { return self.view.*field; });
  };
  number("num_layers", &KVView::num_layers);
  number("num_blocks", &KVView::num_blocks);
  number("block_size", &KVView::block_size);
  number("num_kv_heads", &KVView::num_kv_heads);
  number("head_dim", &KVView::head_dim_k);
  number("head_dim_v", &KVView::head_dim_v);
  number("v_is_prefix_of_k", &KVView::v_is_prefix_of_k);
  c.def_prop_ro(
       "dtype", [](const CudaView& self) { return to_string(self.view.dtype); },
       nb::sig("def dtype(self) -> kvfolio._types.DType"))
      .def_prop_ro(
          "k",
          [](const CudaView& self) {
            return tensor_at(self, self.view.k, self.view.k_strides, self.view.dtype,
                             self.view.head_dim_k);
          },
          nb::sig("def k(self) -> Tensor"),
          "[num_layers, num_blocks, num_kv_heads, block_size, head_dim] where it lies. bf16 is "
          "bfloat16, e4m3 its bits in uint8.")
      .def_prop_ro(
          "v",
          [](const CudaView& self) {
            return tensor_at(self, self.view.v, self.view.v_strides, self.view.dtype,
                             self.view.head_dim_v);
          },
          nb::sig("def v(self) -> Tensor | None"), "As k.")
      .def_prop_ro(
          "k_scale",
          [](const CudaView& self) {
            return tensor_at(self, self.view.k_scale, self.view.k_scale_strides, DType::kF32, 0);
          },
          nb::sig("def k_scale(self) -> Tensor | None"),
          "int8 and e4m3: float32 [num_layers, num_blocks, num_kv_heads, block_size].")
      .def_prop_ro(
          "v_scale",
          [](const CudaView& self) {
            return tensor_at(self, self.view.v_scale, self.view.v_scale_strides, DType::kF32, 0);
          },
          nb::sig("def v_scale(self) -> Tensor | None"), "As k_scale.");
}

CudaView view_at(const CudaStorage& self, Int group, nb::handle layer) {
  const std::shared_ptr<StorageState>& state = self.state();
  const GroupId id = group_id(group);
  if (layer.is_none()) return {state, id, take(state->storage->view(id))};
  Int number;
  if (!nb::try_cast(layer, number)) raise_wanted(layer, "layer", "an int or None");
  return {state, id, take(state->storage->view(id, i32(number, "layer")))};
}

void check_faults(const CudaStorage& self) {
  const std::shared_ptr<StorageState>& state = self.state();
  state->device->synchronize();
  Status status;
  {
    const ReleasedGil release;
    status = state->read_faults();
  }
  check(status);
}

void add_storage_class(nb::module_& m) {
  nb::class_<CudaStorage>(
      m, "Storage",
      "The keys and values of every group, in device memory of its own or in tensors that are "
      "lent. Fresh memory may hold anything. Its end waits for the streams that it was used on.")
      .def(
          "__init__",
          [](CudaStorage* self, nb::handle groups, nb::handle device) {
            new (self) CudaStorage(create(groups, device));
          },
          "groups"_a, nb::kw_only(), "device"_a = 0,
          nb::sig(
              "def __init__(self, groups: "
              "collections.abc.Sequence[kvfolio._types.GroupSpec], *, device: int | Device = 0) "
              "-> None"))
      .def_static(
          "borrow", &borrow, "groups"_a, "arrays"_a, nb::kw_only(), "device"_a = 0,
          "stream"_a = nb::none(),
          nb::sig("def borrow(groups: collections.abc.Sequence[kvfolio._types.GroupSpec], "
                  "arrays: collections.abc.Sequence[typing.Any], *, device: int | Device = 0, "
                  "stream: typing.Any = None) -> Storage"),
          "Over tensors of torch or anything on the device with __dlpack__, which stay alive as "
          "long as the storage. For each group a tuple (k, v) or (k, v, k_scale, v_scale) of "
          "tensors of all layers, or a list of such tuples, one for each layer: [num_blocks, "
          "num_kv_heads, block_size, head_dim] in any strides that nest (a tensor that is NHD is "
          "transposed), scales without the last axis. `stream` is where they are used first.")
      .def("view", &view_at, "group"_a = Int{0}, "layer"_a = nb::none(),
           nb::sig("def view(self, group: int = 0, layer: int | None = None) -> View"),
           "All layers of a group, or one, which is then layer 0 of the view. Layers that were "
           "lent one by one have no view of all.")
      .def("check", &check_faults,
           "Waits for the device, and raises InvalidArgument for the first slot of an append(), or "
           "the first entry of a block table of a gather(), that named no place since the last "
           "check: a kernel leaves such a row alone, and its call cannot say so.")
      .def("_storage_bridge", &bridge_of)
      .def_prop_ro(
          "groups",
          [](const CudaStorage& self) { return groups_of(self.state()->storage->spec()); },
          nb::sig("def groups(self) -> list[kvfolio._types.GroupSpec]"))
      .def_prop_ro(
          "ordinal",
          [](const CudaStorage& self) { return self.state()->device->device().ordinal(); },
          "Of its device.")
      .def_prop_ro("owns_memory",
                   [](const CudaStorage& self) { return self.state()->storage->owns_memory(); })
      .def_prop_ro("memory_bytes",
                   [](const CudaStorage& self) { return self.state()->storage->memory_bytes(); });
}

}  // namespace

void add_cuda_storage(nb::module_& m) {
  add_tensor(m);
  add_view(m);
  add_storage_class(m);
}

}  // namespace kvfolio::python
