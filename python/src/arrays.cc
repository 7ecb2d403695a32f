// SPDX-License-Identifier: Apache-2.0

#include "arrays.h"

#include <type_traits>

namespace kvfolio::python {
namespace {

const char* dtype_name(nb::dlpack::dtype dtype) {
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  switch (code) {
    case nb::dlpack::dtype_code::Int:
      return "int";
    case nb::dlpack::dtype_code::UInt:
      return "uint";
    case nb::dlpack::dtype_code::Float:
      return "float";
    case nb::dlpack::dtype_code::Bfloat:
      return "bfloat";
    case nb::dlpack::dtype_code::Complex:
      return "complex";
    case nb::dlpack::dtype_code::Bool:
      return "bool";
    default:
      return "type";
  }
}

std::string text_of(const nb::ndarray<nb::ro>& array) {
  std::string text = dtype_name(array.dtype());
  if (array.dtype().code != static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bool)) {
    text += std::to_string(array.dtype().bits);
  }
  text += " array of shape (";
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    if (axis > 0) text += ", ";
    text += std::to_string(array.shape(axis));
  }
  return text + (array.ndim() == 1 ? ",)" : ")");
}

void check_device(const nb::ndarray<nb::ro>& array, const char* name) {
  if (array.device_type() == nb::device::cpu::value) return;
  raise(Status(ErrorCode::kUnsupported,
               std::string(name) + " lies on device type " + std::to_string(array.device_type()) +
                   " (DLPack's number), and the kernels run on the CPU (type 1)"));
}

[[noreturn]] void raise_no_array(nb::handle object, const char* name, const char* wanted) {
  raise_type(std::string(name) + ": " + nb::inst_name(object).c_str() +
             " is no array that can be read, wanted: " + wanted +
             " (a torch tensor that needs gradients: detach() it)");
}

bool is_numbers(nb::handle object) {
  return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || PyRange_Check(object.ptr());
}

template <typename T>
constexpr const char* wanted_text() {
  if constexpr (std::is_same_v<T, std::int32_t>) return "a 1-D int32 array or a list of ints";
  return "a 1-D uint64 array or a list of ints";
}

// What makes the right array of other integers.
template <typename T>
std::string conversion_text(const nb::ndarray<nb::ro>& array) {
  const auto code = static_cast<nb::dlpack::dtype_code>(array.dtype().code);
  if (code != nb::dlpack::dtype_code::Int && code != nb::dlpack::dtype_code::UInt) return "";
  const std::string wanted = std::is_same_v<T, std::int32_t> ? "int32" : "uint64";
  return ": NumPy's astype(np." + wanted + ") or torch's to(torch." + wanted + ") makes one";
}

// One number of a list.
std::int32_t element(nb::handle item, const char* name, std::size_t index, std::int32_t) {
  nb::detail::make_caster<Int> caster;
  if (!caster.from_python(item, 0, nullptr)) {
    raise_type(std::string(name) + "[" + std::to_string(index) + "] is no int");
  }
  return i32(caster.operator Int&(),
             (std::string(name) + "[" + std::to_string(index) + "]").c_str());
}
std::uint64_t element(nb::handle item, const char* name, std::size_t index, std::uint64_t) {
  nb::detail::make_caster<Id> caster;
  if (!caster.from_python(item, 0, nullptr)) {
    raise_type(std::string(name) + "[" + std::to_string(index) + "] is no int");
  }
  return caster.operator Id&().value;
}

}  // namespace

std::string describe(const nb::ndarray<nb::ro>& array) { return text_of(array); }

template <typename T>
Input<T>::Input(nb::handle object, const char* name) {
  if (is_numbers(object)) {
    const auto count = static_cast<std::size_t>(nb::len(object));
    numbers_.reserve(count);
    for (const nb::handle item : nb::borrow<nb::object>(object)) {
      if constexpr (std::is_same_v<T, std::int32_t>) {  // a prompt has many, and nearly all are so
        int overflow = 0;
        const long number = PyLong_CheckExact(item.ptr())
                                ? PyLong_AsLongAndOverflow(item.ptr(), &overflow)
                                : INT64_MAX;
        if (overflow == 0 && number >= INT32_MIN && number <= INT32_MAX) {
          numbers_.push_back(static_cast<std::int32_t>(number));
          continue;
        }
      }
      numbers_.push_back(element(item, name, numbers_.size(), T{}));
    }
    span_ = numbers_;
    return;
  }
  if constexpr (std::is_same_v<T, std::int32_t>) {
    if (nb::isinstance<PlanArray>(object)) {
      const auto& array = object_of<PlanArray>(object, name, wanted_text<T>());
      span_ = array.numbers(name, 1);
      reading_ = array.reading();
      return;
    }
  }
  if (!nb::try_cast(object, array_, false)) raise_no_array(object, name, wanted_text<T>());
  constexpr auto wanted = nb::dtype<T>();
  if (array_.dtype() != wanted) {
    raise_type(std::string(name) + ": " + text_of(array_) + ", wanted: " + wanted_text<T>() +
               " (no array is converted" + conversion_text<T>(array_) + ")");
  }
  check_device(array_, name);
  if (array_.ndim() != 1) {
    raise_invalid(std::string(name) + ": " + text_of(array_) + ", wanted: " + wanted_text<T>());
  }
  const std::size_t count = array_.shape(0);
  if (count > 1 && array_.stride(0) != 1) {
    raise_invalid(std::string(name) + ": an array with stride " + std::to_string(array_.stride(0)) +
                  ", wanted: a contiguous one");
  }
  const auto* data = static_cast<const T*>(static_cast<const void*>(
      static_cast<const std::byte*>(array_.data_handle()) + array_.byte_offset()));
  span_ = {data, count};
}

template class Input<std::int32_t>;
template class Input<std::uint64_t>;

bool Array::empty() const {
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    if (array.shape(axis) == 0) return true;
  }
  return false;
}

std::int64_t Array::stride(std::size_t axis) const {
  return array.shape(axis) > 1 ? array.stride(axis) * item_bytes() : 0;
}

Array array_of(nb::handle object, const char* name, Access access) {
  Array result;
  if (access == Access::kWrite) {
    nb::ndarray<> writable;
    if (nb::try_cast(object, writable, false)) {
      result.array = nb::ndarray<nb::ro>(writable);
    } else if (nb::try_cast(object, result.array, false)) {
      raise_type(std::string(name) + ": the array is read-only, and it is written");
    }
  } else {
    (void)nb::try_cast(object, result.array, false);
  }
  if (!result.array.is_valid()) raise_no_array(object, name, "anything with __dlpack__");
  check_device(result.array, name);
  if (result.array.dtype().lanes != 1 || result.array.dtype().bits % 8 != 0) {
    raise_type(std::string(name) + ": " + text_of(result.array) +
               " has no elements of whole bytes");
  }
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): writable if access says so
  result.data = static_cast<std::byte*>(
                    const_cast<void*>(static_cast<const void*>(result.array.data_handle()))) +
                result.array.byte_offset();
  return result;
}

DType dtype_of(const Array& array, const char* name, bool allow_scaled) {
  const nb::dlpack::dtype dtype = array.array.dtype();
  const auto code = static_cast<nb::dlpack::dtype_code>(dtype.code);
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 64) return DType::kF64;
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 32) return DType::kF32;
  if (code == nb::dlpack::dtype_code::Float && dtype.bits == 16) return DType::kF16;
  if (code == nb::dlpack::dtype_code::Bfloat && dtype.bits == 16) return DType::kBF16;
  if (code == nb::dlpack::dtype_code::UInt && dtype.bits == 16) return DType::kBF16;
  if (allow_scaled && code == nb::dlpack::dtype_code::Int && dtype.bits == 8) return DType::kInt8;
  if (code == nb::dlpack::dtype_code::UInt && dtype.bits == 8) return DType::kOpaque;
  raise_type(
      std::string(name) + ": " + text_of(array.array) +
      ", wanted: float64, float32, float16, bfloat16, uint16 (the bits of bfloat16) or uint8 "
      "(opaque" +
      (allow_scaled ? ", the bits of e4m3) or int8" : ")"));
}

}  // namespace kvfolio::python
