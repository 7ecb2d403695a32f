// SPDX-License-Identifier: Apache-2.0

#include "dlpack.h"

#include <utility>

namespace kvfolio::python {
namespace {

const char* code_name(std::uint8_t code) {
  switch (code) {
    case dl::kInt:
      return "int";
    case dl::kUInt:
      return "uint";
    case dl::kFloat:
      return "float";
    case dl::kBfloat:
      return "bfloat";
    case dl::kBool:
      return "bool";
    case dl::kE4M3FN:
      return "e4m3fn float";
    default:
      return "type";
  }
}

bool is(dl::Type type, std::uint8_t code, std::uint8_t bits) {
  return type.code == code && type.bits == bits && type.lanes == 1;
}

// Runs the deleter of what a capsule held.
template <typename Managed>
Owner owner_of(Managed* managed) {
  return {static_cast<void*>(managed), [](void* p) {
            auto* const held = static_cast<Managed*>(p);
            if (held->deleter != nullptr) held->deleter(held);
          }};
}

// The tensor of a capsule that is ours from now on.
template <typename Managed>
Lent taken(const nb::object& capsule, const Managed** held) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), Managed::kName));
  if (managed == nullptr) throw nb::python_error();
  Lent lent;
  // A capsule of this name is left alone by its own destructor.
  if (PyCapsule_SetName(capsule.ptr(), Managed::kUsed) != 0) throw nb::python_error();
  lent.owner = owner_of(managed);
  *held = managed;
  return lent;
}

void read_tensor(Lent& lent, const dl::Tensor& tensor) {
  lent.dtype = tensor.dtype;
  const auto ndim = static_cast<std::size_t>(tensor.ndim);
  lent.shape.assign(tensor.shape, tensor.shape + ndim);
  lent.strides.resize(ndim);
  std::int64_t compact = 1;
  for (std::size_t axis = ndim; axis-- > 0;) {
    lent.strides[axis] = tensor.strides != nullptr ? tensor.strides[axis] : compact;
    compact *= lent.shape[axis];
  }
  if (tensor.data != nullptr) lent.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
}

dl::Device said_device(nb::handle object, const char* name) {
  const nb::object pair = object.attr("__dlpack_device__")();
  Int type, id;
  if (!PyTuple_Check(pair.ptr()) || nb::len(pair) != 2 ||
      !nb::try_cast(nb::object(pair[0]), type) || !nb::try_cast(nb::object(pair[1]), id)) {
    raise_type(std::string(name) + ": its __dlpack_device__() is no pair of ints");
  }
  return {i32(type, "device type"), i32(id, "device id")};
}

std::string place_of(dl::Device device) {
  if (device.type == dl::kCpu) return "memory of the host";
  if (device.type == dl::kCuda) return "memory of device " + std::to_string(device.id);
  return "on device type " + std::to_string(device.type) + " (DLPack's number)";
}

void check_place(dl::Device device, const char* name, const Consumer& consumer) {
  if (device.type == dl::kCuda && device.id == consumer.ordinal) return;
  raise_invalid(std::string(name) + " is " + place_of(device) + ", needed: memory of device " +
                std::to_string(consumer.ordinal) + " (" + consumer.device + ")");
}

// Producers of before DLPack 1.0 know no max_version.
nb::object capsule_of(nb::handle object, const Consumer& consumer) {
  const nb::object dlpack = object.attr("__dlpack__");
  const auto number = reinterpret_cast<std::uintptr_t>(consumer.stream);
  const nb::int_ stream(number == 0 ? std::uintptr_t{1} : number);
  try {
    return dlpack("stream"_a = stream, "max_version"_a = nb::make_tuple(dl::kMajor, dl::kMinor));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return dlpack("stream"_a = stream);
}

[[noreturn]] void raise_shape(const Lent& lent, const char* name, const std::string& wanted) {
  raise_invalid(std::string(name) + ": " + lent.text() + ", wanted: " + wanted);
}

}  // namespace

bool Lent::empty() const {
  for (const std::int64_t extent : shape) {
    if (extent == 0) return true;
  }
  return false;
}

std::string Lent::text() const {
  std::string text = code_name(dtype.code);
  if (dtype.code != dl::kBool) text += std::to_string(dtype.bits);
  text += " tensor of shape (";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(shape[axis]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

Lent lent_of(nb::handle object, const char* name, const Consumer& consumer, Use use) {
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__")) {
    raise_wanted(object, name,
                 "a tensor of device " + std::to_string(consumer.ordinal) +
                     " with __dlpack__ and __dlpack_device__");
  }
  check_place(said_device(object, name), name, consumer);
  const nb::object capsule = capsule_of(object, consumer);
  Lent lent;
  const dl::Tensor* tensor = nullptr;
  std::uint64_t flags = 0;
  if (PyCapsule_IsValid(capsule.ptr(), dl::VersionedManaged::kName) != 0) {
    const dl::VersionedManaged* managed = nullptr;
    lent = taken<dl::VersionedManaged>(capsule, &managed);
    if (managed->version.major != dl::kMajor) {
      raise_invalid(std::string(name) + ": a capsule of DLPack " +
                    std::to_string(managed->version.major) + "." +
                    std::to_string(managed->version.minor) + ", wanted: 1.x");
    }
    flags = managed->flags;
    tensor = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), dl::Managed::kName) != 0) {
    const dl::Managed* managed = nullptr;
    lent = taken<dl::Managed>(capsule, &managed);
    tensor = &managed->tensor;
  } else {
    raise_type(std::string(name) +
               ": its __dlpack__() gives no capsule of a tensor, or one that "
               "was taken");
  }
  check_place(tensor->device, name, consumer);
  read_tensor(lent, *tensor);
  if (lent.dtype.lanes != 1 || lent.dtype.bits % 8 != 0) {
    raise_type(std::string(name) + ": " + lent.text() + " has no elements of whole bytes");
  }
  if (use == Use::kWrite && (flags & dl::kReadOnly) != 0) {
    raise_type(std::string(name) + ": the tensor is read-only, and it is written");
  }
  if (use == Use::kWrite && (flags & dl::kCopied) != 0) {
    raise_type(std::string(name) + ": __dlpack__() gives a copy, and the tensor is written");
  }
  return lent;
}

void check_on_host(nb::handle object, const char* name) {
  if (!nb::hasattr(object, "__dlpack_device__")) return;
  const dl::Device device = said_device(object, name);
  if (device.type == dl::kCpu) return;
  raise_invalid(std::string(name) + " is " + place_of(device) + ", needed: memory of the host");
}

DType dtype_of(const Lent& lent, const char* name, bool cache) {
  const dl::Type type = lent.dtype;
  if (is(type, dl::kFloat, 64)) return DType::kF64;
  if (is(type, dl::kFloat, 32)) return DType::kF32;
  if (is(type, dl::kFloat, 16)) return DType::kF16;
  if (is(type, dl::kBfloat, 16) || is(type, dl::kUInt, 16)) return DType::kBF16;
  if (cache && is(type, dl::kInt, 8)) return DType::kInt8;
  if (cache && (is(type, dl::kUInt, 8) || is(type, dl::kE4M3FN, 8))) return DType::kE4M3;
  raise_type(std::string(name) + ": " + lent.text() +
             ", wanted: float32, float16, bfloat16 or uint16 (the bits of bfloat16)" +
             (cache ? ", int8, uint8 or float8_e4m3fn (e4m3)" : ""));
}

RowsView rows_of(const Lent& lent, const char* name) {
  if (lent.ndim() != 3) raise_shape(lent, name, "[tokens, heads, head_dim]");
  for (const std::int64_t extent : lent.shape) {
    if (extent > INT32_MAX)
      raise_invalid(std::string(name) + ": " + lent.text() + ", at most 2147483647");
  }
  if (lent.shape[2] > 1 && lent.strides[2] != 1 && !lent.empty()) {
    raise_invalid(std::string(name) + ": elements of a row lie " + std::to_string(lent.strides[2]) +
                  " apart, wanted: 1 (contiguous)");
  }
  RowsView rows;
  rows.data = lent.data;
  rows.token_stride = lent.stride(0);
  rows.head_stride = lent.stride(1);
  rows.num_tokens = static_cast<std::int32_t>(lent.shape[0]);
  rows.num_heads = static_cast<std::int32_t>(lent.shape[1]);
  rows.head_dim = static_cast<std::int32_t>(lent.shape[2]);
  rows.dtype = dtype_of(lent, name, false);
  return rows;
}

std::span<const std::int32_t> numbers_of(const Lent& lent, const char* name) {
  if (!is(lent.dtype, dl::kInt, 32)) {
    raise_type(std::string(name) + ": " + lent.text() +
               ", wanted: a 1-D int32 tensor (nothing is converted: torch's to(torch.int32) makes "
               "one)");
  }
  if (lent.ndim() != 1) raise_shape(lent, name, "a 1-D int32 tensor");
  if (lent.shape[0] > 1 && lent.strides[0] != 1) {
    raise_invalid(std::string(name) + ": a tensor with stride " + std::to_string(lent.strides[0]) +
                  ", wanted: a contiguous one");
  }
  return {static_cast<const std::int32_t*>(static_cast<const void*>(lent.data)),
          static_cast<std::size_t>(lent.shape[0])};
}

void* stream_of(nb::handle object) {
  constexpr std::uintptr_t kLegacy = 1;
  if (object.is_none())
    return reinterpret_cast<void*>(kLegacy);  // NOLINT(performance-no-int-to-ptr)
  nb::object number = nb::borrow(object);
  if (nb::hasattr(object, "__cuda_stream__")) {  // (version of the protocol, handle)
    number = nb::object(object.attr("__cuda_stream__")()[nb::int_(1)]);
  } else if (nb::hasattr(object, "cuda_stream")) {
    number = object.attr("cuda_stream");
  }
  Int handle;
  if (PyBool_Check(number.ptr()) || !nb::try_cast(number, handle)) {
    raise_wanted(object, "stream", "None, the handle of a stream or an object with cuda_stream");
  }
  const std::int64_t value = within(handle, "stream", 0, INT64_MAX - 1);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a handle
  return reinterpret_cast<void*>(value == 0 ? kLegacy : static_cast<std::uintptr_t>(value));
}

// ---- the other way ----

namespace {

struct Context {
  std::vector<std::int64_t> shape, strides;
  std::shared_ptr<void> keep;
};

template <typename Managed>
nb::object capsule_over(const Exported& exported) {
  auto context = std::make_unique<Context>();
  context->shape = exported.shape;
  context->strides = exported.strides;
  context->keep = exported.keep;
  auto managed = std::make_unique<Managed>();
  managed->tensor = {.data = exported.data,
                     .device = {dl::kCuda, exported.ordinal},
                     .ndim = static_cast<std::int32_t>(exported.shape.size()),
                     .dtype = exported.dtype,
                     .shape = context->shape.data(),
                     .strides = context->strides.data(),
                     .byte_offset = 0};
  managed->context = context.get();
  managed->deleter = [](Managed* self) {
    delete static_cast<Context*>(self->context);
    delete self;
  };
  // One that was not taken ends here; a taken one has another name, and its consumer ends it.
  PyObject* const capsule = PyCapsule_New(managed.get(), Managed::kName, [](PyObject* object) {
    if (PyCapsule_IsValid(object, Managed::kName) == 0) return;
    auto* const self = static_cast<Managed*>(PyCapsule_GetPointer(object, Managed::kName));
    self->deleter(self);
  });
  if (capsule == nullptr) throw nb::python_error();
  static_cast<void>(context.release());
  static_cast<void>(managed.release());
  return nb::steal(capsule);
}

}  // namespace

nb::object export_capsule(const Exported& exported, bool versioned) {
  return versioned ? capsule_over<dl::VersionedManaged>(exported)
                   : capsule_over<dl::Managed>(exported);
}

}  // namespace kvfolio::python
