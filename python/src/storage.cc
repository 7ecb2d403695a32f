// SPDX-License-Identifier: Apache-2.0

#include "storage.h"

#include "arrays.h"
#include "cache_view.h"
#include "manager_state.h"

namespace kvfolio::python {

KVStorage* Storage::find() {
  if (own_.has_value()) return &*own_;
  return manager_ == nullptr ? nullptr : manager_->manager.storage();
}

KVStorage& Storage::get() {
  if (KVStorage* const found = find(); found != nullptr) return *found;
  raise(Status(ErrorCode::kFailedPrecondition,
               "this storage went with a manager that could not be made"));
}

std::shared_ptr<ManagerState> Storage::give(const ManagerOptions& options, IdTag tag) {
  if (!own_.has_value()) {
    raise(Status(ErrorCode::kFailedPrecondition, "another manager has taken this storage"));
  }
  // A create() that fails destroys the storage. Spec and options fail without it in the same way.
  static_cast<void>(take(KVCacheManager::create(own_->spec(), options)));
  KVStorage storage = *std::move(own_);
  own_.reset();
  auto state = std::make_shared<ManagerState>(
      take(KVCacheManager::create(std::move(storage), options)), std::move(tag));
  state->lent = std::move(lent_);
  manager_ = state;
  return state;
}

namespace {

// ---- lent arrays ----

// What is lent: K, V and scales of one layer (4 axes each) or of all layers (5 axes).
struct Lent {
  std::optional<Array> k, v, k_scale, v_scale;
};

// What keeps the memory of lent arrays.
using Keeper = std::vector<nb::ndarray<nb::ro>>;

std::optional<Array> optional_array(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  return array_of(object, name, Access::kWrite);
}

[[noreturn]] void raise_shape(const Array& array, const char* name, const std::string& wanted) {
  raise_invalid(std::string(name) + ": " + describe(array.array) + ", wanted: " + wanted);
}

// Checks the axes of an array and returns its strides in bytes. `inner`: axes behind the heads.
KVStrides strides_of(const Array& array, const char* name, bool layers, std::size_t inner,
                     const char* wanted) {
  const std::size_t first = layers ? 1 : 0;
  const std::size_t ndim = first + 2 + inner;
  if (array.array.ndim() != ndim) {
    raise_shape(array, name, (layers ? "[num_layers, " : "[") + std::string(wanted));
  }
  if (inner == 2 && array.size(ndim - 1) > 1 && array.array.stride(ndim - 1) != 1) {
    raise_invalid(std::string(name) + ": elements of a row lie " +
                  std::to_string(array.array.stride(ndim - 1)) + " apart, wanted: 1 (contiguous)");
  }
  return {.layer = layers ? array.stride(0) : 0,
          .block = array.stride(first),
          .head = array.stride(first + 1),
          .token = array.stride(first + 2)};
}

std::int64_t extent_of(const Array& array, const char* name) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < array.array.ndim(); ++axis) {
    if (array.stride(axis) < 0) {
      raise_invalid(std::string(name) + ": axis " + std::to_string(axis) + " has stride " +
                    std::to_string(array.stride(axis)) + ", wanted: not negative");
    }
    last += (array.size(axis) - 1) * array.stride(axis);
  }
  return array.empty() ? 0 : last + array.item_bytes();
}

std::int32_t extent32(const Array& array, std::size_t axis, const char* name) {
  return i32(Int{array.size(axis)}, name);
}

constexpr const char* kRowsWanted = "num_blocks, num_kv_heads, block_size, head_dim]";
constexpr const char* kTilesWanted =
    "num_blocks, num_kv_heads, block_size / 16, 16 * head_dim] (format granule)";
constexpr const char* kScalesWanted = "num_blocks, num_kv_heads, block_size] of scales";

// The arrays of one layer or of all of them, as BorrowedGroup takes them.
BorrowedGroup borrowed(const Lent& lent, bool layers, bool granule) {
  const char* wanted = granule ? kTilesWanted : kRowsWanted;
  BorrowedGroup group;
  group.k = lent.k->data;
  group.k_bytes = extent_of(*lent.k, "k");
  group.k_strides = strides_of(*lent.k, "k", layers, 2, wanted);
  if (lent.v) {
    group.v = lent.v->data;
    group.v_bytes = extent_of(*lent.v, "v");
    group.v_strides = strides_of(*lent.v, "v", layers, 2, wanted);
  }
  if (lent.k_scale) {
    group.k_scale = lent.k_scale->data;
    group.k_scale_bytes = extent_of(*lent.k_scale, "k_scale");
    group.k_scale_strides = strides_of(*lent.k_scale, "k_scale", layers, 1, kScalesWanted);
  }
  if (lent.v_scale) {
    group.v_scale = lent.v_scale->data;
    group.v_scale_bytes = extent_of(*lent.v_scale, "v_scale");
    group.v_scale_strides = strides_of(*lent.v_scale, "v_scale", layers, 1, kScalesWanted);
  }
  return group;
}

// An array has the axes of the spec, else the library would write beyond it.
void check_axes(const Array& array, const char* name, bool layers, const GroupSpec& group,
                std::int32_t head_dim, std::size_t inner) {
  const bool granule = group.format == Format::kGranule && inner == 2;
  const std::size_t first = layers ? 1 : 0;
  const std::int64_t wanted[] = {group.num_blocks, group.num_kv_heads,
                                 granule ? group.block_size / kGranuleTokens : group.block_size,
                                 granule ? std::int64_t{kGranuleTokens} * head_dim : head_dim};
  const std::size_t axes = 2 + inner;
  bool same = array.array.ndim() == first + axes && (!layers || array.size(0) == group.num_layers);
  for (std::size_t axis = 0; same && axis < axes; ++axis) {
    same = array.size(first + axis) == wanted[axis];
  }
  if (same) return;
  std::string text = "(";
  if (layers) text += std::to_string(group.num_layers) + ", ";
  for (std::size_t axis = 0; axis < axes; ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(wanted[axis]);
  }
  raise_shape(array, name, "shape " + text + ")");
}

void check_arrays(const Lent& lent, bool layers, const GroupSpec& group) {
  const auto check_rows = [&](const std::optional<Array>& rows, const char* name,
                              std::int32_t head_dim) {
    if (!rows) return;
    check_axes(*rows, name, layers, group, head_dim, 2);
    const DType dtype = dtype_of(*rows, name, true);
    if (dtype == group.dtype) return;
    if (dtype == DType::kOpaque && group.dtype == DType::kE4M3) return;  // its bits
    raise_type(std::string(name) + ": " + describe(rows->array) + ", wanted: elements of " +
               to_string(group.dtype));
  };
  const auto check_scale = [&](const std::optional<Array>& scale, const char* name) {
    if (!scale) return;
    check_axes(*scale, name, layers, group, 0, 1);
    if (dtype_of(*scale, name) == DType::kF32) return;
    raise_type(std::string(name) + ": " + describe(scale->array) + ", wanted: float32");
  };
  if (!lent.k) raise_type("k is missing");
  check_rows(lent.k, "k", group.head_dim_k);
  check_rows(lent.v, "v", group.head_dim_v);
  check_scale(lent.k_scale, "k_scale");
  check_scale(lent.v_scale, "v_scale");
}

Lent lent_of(nb::handle arrays) {
  if (!PyTuple_Check(arrays.ptr()) && !PyList_Check(arrays.ptr())) {
    raise_type("arrays: those of a layer are a tuple (k, v) or (k, v, k_scale, v_scale)");
  }
  const auto items = items_of(arrays, "arrays", "a list with a tuple of arrays for each group");
  const auto count = items.size();
  if (count != 1 && count != 2 && count != 4) {
    raise_invalid("the arrays of a layer are (k,), (k, v) or (k, v, k_scale, v_scale), not " +
                  std::to_string(count));
  }
  const auto at = [&](std::size_t i, const char* name) -> std::optional<Array> {
    if (i >= count) return std::nullopt;
    return optional_array(nb::object(arrays[i]), name);
  };
  return {at(0, "k"), at(1, "v"), at(2, "k_scale"), at(3, "v_scale")};
}

void keep(const Lent& lent, Keeper& keeper) {
  for (const std::optional<Array>* each : {&lent.k, &lent.v, &lent.k_scale, &lent.v_scale}) {
    if (*each) keeper.push_back((*each)->array);
  }
}

// The group of a list of layers.
BorrowedGroup borrow_layers(nb::handle layers, const GroupSpec& group,
                            std::vector<BorrowedLayer>& bases, Keeper& keeper) {
  std::optional<BorrowedGroup> result;
  const auto count = nb::len(layers);
  if (static_cast<std::int64_t>(count) != group.num_layers) {
    raise_invalid(std::to_string(count) + " layers are lent, the spec has " +
                  std::to_string(group.num_layers));
  }
  for (const nb::handle layer : nb::borrow<nb::object>(layers)) {
    const Lent lent = lent_of(layer);
    check_arrays(lent, false, group);
    const BorrowedGroup one = borrowed(lent, false, group.format == Format::kGranule);
    const auto equal = [](const KVStrides& a, const KVStrides& b) {
      return a.block == b.block && a.head == b.head && a.token == b.token;
    };
    if (!result) {
      result = one;
    } else if (!equal(one.k_strides, result->k_strides) ||
               !equal(one.v_strides, result->v_strides) ||
               !equal(one.k_scale_strides, result->k_scale_strides) ||
               !equal(one.v_scale_strides, result->v_scale_strides)) {
      raise_invalid("layer " + std::to_string(bases.size()) +
                    " has other strides than layer 0, wanted: the same");
    }
    bases.push_back({one.k, one.v, one.k_scale, one.v_scale});
    keep(lent, keeper);
  }
  result->k = result->v = result->k_scale = result->v_scale = nullptr;
  result->layers = bases;
  return *result;
}

Storage borrow(nb::handle groups, nb::handle arrays) {
  const CacheSpec spec = spec_of(groups);
  check(validate(spec));
  const auto items = items_of(arrays, "arrays", "a list with a tuple of arrays for each group");
  const auto count = items.size();
  if (count != spec.groups.size()) {
    raise_invalid("arrays of " + std::to_string(count) + " groups are lent, the spec has " +
                  std::to_string(spec.groups.size()));
  }
  std::vector<BorrowedGroup> lent_groups;
  std::vector<std::vector<BorrowedLayer>> bases(count);
  Keeper keeper;
  for (std::size_t i = 0; i < count; ++i) {
    const nb::object& group_arrays = items[i];
    const GroupSpec& group = spec.groups[i];
    if (PyList_Check(group_arrays.ptr())) {
      lent_groups.push_back(borrow_layers(group_arrays, group, bases[i], keeper));
      continue;
    }
    const Lent lent = lent_of(group_arrays);
    check_arrays(lent, true, group);
    lent_groups.push_back(borrowed(lent, true, group.format == Format::kGranule));
    keep(lent, keeper);
  }
  return {take(KVStorage::borrow(spec, lent_groups)), std::move(keeper)};
}

// The spec that arrays have: of one layer (4 axes) or of all (5 axes).
GroupSpec spec_of_arrays(const Lent& lent, Format format, bool v_is_prefix_of_k,
                         std::int32_t head_dim_v) {
  const Array& k = *lent.k;
  const bool granule = format == Format::kGranule;
  if (k.array.ndim() != 4 && k.array.ndim() != 5) {
    raise_shape(k, "k", "[" + std::string(granule ? kTilesWanted : kRowsWanted));
  }
  const std::size_t first = k.array.ndim() - 4;
  GroupSpec group;
  group.num_layers = first == 0 ? 1 : extent32(k, 0, "num_layers");
  group.num_blocks = extent32(k, first, "num_blocks");
  group.num_kv_heads = extent32(k, first + 1, "num_kv_heads");
  const std::int64_t tokens = granule ? kGranuleTokens : 1;
  group.block_size = i32(Int{k.size(first + 2) * tokens}, "block_size");
  group.head_dim_k = i32(Int{k.size(first + 3) / tokens}, "head_dim");
  group.dtype = dtype_of(k, "k", true);
  if (group.dtype == DType::kOpaque && lent.k_scale) group.dtype = DType::kE4M3;
  group.format = format;
  group.v_is_prefix_of_k = v_is_prefix_of_k;
  group.head_dim_v = head_dim_v;
  if (lent.v) {
    const std::size_t last = lent.v->array.ndim() - 1;
    group.head_dim_v = i32(Int{lent.v->size(last) / tokens}, "head_dim_v");
  }
  return group;
}

View borrow_view(nb::handle k, nb::handle v, nb::handle k_scale, nb::handle v_scale,
                 const char* format, bool v_is_prefix_of_k, Int head_dim_v) {
  const Lent lent{optional_array(k, "k"), optional_array(v, "v"),
                  optional_array(k_scale, "k_scale"), optional_array(v_scale, "v_scale")};
  if (!lent.k) raise_type("k is missing");
  if (lent.v && (v_is_prefix_of_k || head_dim_v.value != 0)) {
    raise_invalid("head_dim_v and v_is_prefix_of_k are for a cache without an array of V");
  }
  const GroupSpec group =
      spec_of_arrays(lent, parse_format(format), v_is_prefix_of_k, i32(head_dim_v, "head_dim_v"));
  const CacheSpec spec{{group}};
  check(validate(spec));
  const bool layers = lent.k->array.ndim() == 5;
  check_arrays(lent, layers, group);
  const BorrowedGroup arrays = borrowed(lent, layers, group.format == Format::kGranule);
  const KVStorage storage = take(KVStorage::borrow(spec, {&arrays, 1}));
  auto* keeper = new Keeper;
  const nb::capsule owner(keeper, [](void* p) noexcept { delete static_cast<Keeper*>(p); });
  keep(lent, *keeper);
  return {take(storage.view(GroupId(0))), owner};
}

// ---- arrays of a view ----

nb::dlpack::dtype element_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return nb::dtype<double>();
    case DType::kF32:
      return nb::dtype<float>();
    case DType::kF16:
      return {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    case DType::kBF16:
      return nb::dtype<std::uint16_t>();
    case DType::kInt8:
      return nb::dtype<std::int8_t>();
    case DType::kE4M3:
    case DType::kOpaque:
      break;  // bytes
  }
  return nb::dtype<std::uint8_t>();
}

// [num_layers, num_blocks, num_kv_heads, ...] where it lies, for NumPy.
nb::object array_at(const View& self, std::byte* data, const KVStrides& strides, DType dtype,
                    std::size_t inner, std::int32_t head_dim) {
  if (data == nullptr) return nb::none();
  const KVView& view = self.view;
  const std::int64_t item = dtype_bytes(dtype);
  const std::int32_t tile = view.granule && inner == 2 ? kGranuleTokens : 1;
  const std::size_t shape[] = {
      static_cast<std::size_t>(view.num_layers), static_cast<std::size_t>(view.num_blocks),
      static_cast<std::size_t>(view.num_kv_heads), static_cast<std::size_t>(view.block_size / tile),
      static_cast<std::size_t>(head_dim) * static_cast<std::size_t>(tile)};
  const std::int64_t steps[] = {strides.layer / item, strides.block / item, strides.head / item,
                                strides.token / item, 1};
  return nb::cast(nb::ndarray<nb::numpy>(data, 3 + inner, shape, self.keeper, steps,
                                         element_of(dtype), nb::device::cpu::value),
                  nb::rv_policy::reference);
}

void add_view(nb::module_& m) {
  nb::class_<View> c(m, "View",
                     "Keys and values of the layers of one group, where they lie. A view keeps "
                     "its memory alive.");
  c.def_static(
      "borrow", &borrow_view, "k"_a, "v"_a = nb::none(), nb::kw_only(), "k_scale"_a = nb::none(),
      "v_scale"_a = nb::none(), "format"_a = "hnd", "v_is_prefix_of_k"_a = false,
      "head_dim_v"_a = Int{0},
      nb::sig("def borrow(k: kvfolio._types.Array, v: kvfolio._types.Array | None = None, *, "
              "k_scale: kvfolio._types.Array | None = None, "
              "v_scale: kvfolio._types.Array | None = None, "
              "format: kvfolio._types.Format = 'hnd', v_is_prefix_of_k: bool = False, "
              "head_dim_v: int = 0) -> View"),
      "A view of arrays of one layer, [num_blocks, num_kv_heads, block_size, head_dim], or of all "
      "layers, with an axis in front; any strides that nest, rows contiguous. format granule: "
      "[num_blocks, num_kv_heads, block_size / 16, 16 * head_dim], tiles contiguous and at "
      "multiples of 64 bytes. int8 and e4m3 also take float32 scales [num_blocks, num_kv_heads, "
      "block_size]. uint16 is the bits of bfloat16, uint8 those of e4m3, or opaque without scales. "
      "\"hnd\" stands for every "
      "layout but granule: "
      "the strides say it.");
  const auto number = [&](const char* name, auto field) {
    c.def_prop_ro(name, [field](const View& self) { return self.view.*field; });
  };
  number("num_layers", &KVView::num_layers);
  number("num_blocks", &KVView::num_blocks);
  number("block_size", &KVView::block_size);
  number("num_kv_heads", &KVView::num_kv_heads);
  number("head_dim", &KVView::head_dim_k);
  number("head_dim_v", &KVView::head_dim_v);
  number("v_is_prefix_of_k", &KVView::v_is_prefix_of_k);
  number("granule", &KVView::granule);
  c.def_prop_ro(
      "dtype", [](const View& self) { return to_string(self.view.dtype); },
      nb::sig("def dtype(self) -> kvfolio._types.DType"));
  c.def_prop_ro(
       "k",
       [](const View& self) {
         return array_at(self, self.view.k, self.view.k_strides, self.view.dtype, 2,
                         self.view.head_dim_k);
       },
       nb::sig("def k(self) -> numpy.typing.NDArray[typing.Any]"),
       "[num_layers, num_blocks, num_kv_heads, block_size, head_dim] where it lies; in format "
       "granule [..., block_size / 16, 16 * head_dim]. bf16 is uint16.")
      .def_prop_ro(
          "v",
          [](const View& self) {
            return array_at(self, self.view.v, self.view.v_strides, self.view.dtype, 2,
                            self.view.head_dim_v);
          },
          nb::sig("def v(self) -> numpy.typing.NDArray[typing.Any] | None"), "As k.")
      .def_prop_ro(
          "k_scale",
          [](const View& self) {
            return array_at(self, self.view.k_scale, self.view.k_scale_strides, DType::kF32, 1, 1);
          },
          nb::sig("def k_scale(self) -> numpy.typing.NDArray[numpy.float32] | None"),
          "int8 and e4m3: [num_layers, num_blocks, num_kv_heads, block_size].")
      .def_prop_ro(
          "v_scale",
          [](const View& self) {
            return array_at(self, self.view.v_scale, self.view.v_scale_strides, DType::kF32, 1, 1);
          },
          nb::sig("def v_scale(self) -> numpy.typing.NDArray[numpy.float32] | None"), "As k_scale.")
      .def("__repr__", [](const View& self) {
        const KVView& view = self.view;
        const auto rows = [&](std::int32_t head_dim) {
          return std::to_string(view.num_kv_heads) + " x " + std::to_string(head_dim);
        };
        return "<kvfolio.View: " + counted(view.num_layers, "layer") + ", " +
               counted(view.num_blocks, "block") + " of " + std::to_string(view.block_size) +
               " tokens, " + to_string(view.dtype) + (view.granule ? " granule" : "") + ", K " +
               rows(view.head_dim_k) +
               (view.head_dim_v == 0 ? ", no V" : ", V " + rows(view.head_dim_v)) + ">";
      });
}

std::string storage_in_words(Storage& storage) {
  const KVStorage* const found = storage.find();
  if (found == nullptr) return "<kvfolio.Storage, gone with a manager that could not be made>";
  return "<kvfolio.Storage: " +
         counted(static_cast<std::int64_t>(found->spec().groups.size()), "group") + ", " +
         std::to_string(found->memory_bytes()) + " bytes, " +
         (found->owns_memory() ? "its own" : "lent") +
         (storage.manager() != nullptr ? ", of a manager>" : ">");
}

}  // namespace

void add_storage(nb::module_& m) {
  add_view(m);
  nb::class_<Storage> c(m, "Storage",
                        "The keys and values of every group, in memory of its own or in arrays "
                        "that are lent. Fresh memory may hold anything.");
  c.def(
       "__init__",
       [](Storage* self, nb::handle groups) {
         new (self) Storage(take(KVStorage::create(spec_of(groups))), {});
       },
       "groups"_a,
       nb::sig("def __init__(self, groups: "
               "collections.abc.Sequence[kvfolio._types.GroupSpec]) -> None"))
      .def_static("borrow", &borrow, "groups"_a, "arrays"_a,
                  nb::sig("def borrow(groups: collections.abc.Sequence[kvfolio._types.GroupSpec], "
                          "arrays: collections.abc.Sequence[typing.Any]) -> Storage"),
                  "Over arrays of NumPy, torch or anything with __dlpack__, which stay alive as "
                  "long as the storage. For each group a tuple (k, v) or (k, v, k_scale, v_scale) "
                  "of arrays of all layers, or a list of such tuples, one for each layer. See "
                  "View.borrow() for the axes.")
      .def(
          "view",
          [](nb::handle_t<Storage> self, Int group, nb::handle layer) {
            auto& storage = object_of<Storage>(self, "self", "a Storage");
            if (layer.is_none()) {
              return View{take(storage.get().view(group_id(group))), nb::borrow(self)};
            }
            Int number;
            if (!nb::try_cast(layer, number)) raise_wanted(layer, "layer", "an int or None");
            return View{take(storage.get().view(group_id(group), i32(number, "layer"))),
                        nb::borrow(self)};
          },
          "group"_a = Int{0}, "layer"_a = nb::none(),
          nb::sig("def view(self, group: int = 0, layer: int | None = None) -> View"),
          "All layers of a group, or one, which is then layer 0 of the view. Layers that were "
          "lent one by one have no view of all.")
      .def(
          "copy_blocks",
          [](Storage& storage, Int group, nb::handle src, nb::handle dst) {
            const Input<std::int32_t> from(src, "src");
            const Input<std::int32_t> to(dst, "dst");
            const GroupId id = group_id(group);
            const auto copy = [&] { return storage.get().copy_blocks(id, from.span(), to.span()); };
            check(storage.manager() == nullptr ? copy()
                                               : storage.manager()->call_without_gil(
                                                     [&](KVCacheManager&) { return copy(); }));
          },
          "group"_a, "src"_a, "dst"_a,
          nb::sig("def copy_blocks(self, group: int, src: kvfolio._types.Int32Input, "
                  "dst: kvfolio._types.Int32Input) -> None"),
          "Copies block src[i] to block dst[i], in order: the copies of a plan.")
      .def(
          "fill",
          [](Storage& storage, Int value) {
            const std::int64_t byte = within(value, "value", 0, 255);
            check(storage.get().fill(static_cast<std::byte>(byte)));
          },
          "value"_a, nb::sig("def fill(self, value: int) -> None"),
          "Sets every byte of every row and scale.")
      .def_prop_ro(
          "groups", [](Storage& storage) { return groups_of(storage.get().spec()); },
          nb::sig("def groups(self) -> list[kvfolio._types.GroupSpec]"))
      .def("__repr__", &storage_in_words)
      .def_prop_ro("owns_memory", [](Storage& storage) { return storage.get().owns_memory(); })
      .def_prop_ro("memory_bytes", [](Storage& storage) { return storage.get().memory_bytes(); });
}

}  // namespace kvfolio::python
