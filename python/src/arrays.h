// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arrays of Python as spans and views of the library, and back. An input is anything with
// __dlpack__ or the buffer protocol on the CPU, of exactly the type that is asked for: no array is
// converted, so that nothing is ever written to a hidden copy. Token ids and the like may also be a
// list or tuple of ints.

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bindings.h"
#include "kvfolio/dtype.h"
#include "plan_array.h"

namespace kvfolio::python {

// An input of T, one-dimensional and contiguous. It keeps alive what its span points into.
template <typename T>
class Input {
 public:
  // TypeError: another type. InvalidArgument: another shape, a device, a number that does not fit.
  Input(nb::handle object, const char* name);

  [[nodiscard]] std::span<const T> span() const { return span_; }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(span_.size()); }

 private:
  nb::ndarray<nb::ro> array_;
  std::vector<T> numbers_;
  Reading reading_;  // of a plan array
  std::span<const T> span_;
};

// Any array on the CPU, read or written.
struct Array {
  nb::ndarray<nb::ro> array;
  std::byte* data = nullptr;

  [[nodiscard]] std::int64_t size(std::size_t axis) const {
    return static_cast<std::int64_t>(array.shape(axis));
  }
  [[nodiscard]] bool empty() const;
  // In bytes; 0 along an axis of one entry.
  [[nodiscard]] std::int64_t stride(std::size_t axis) const;
  [[nodiscard]] std::int64_t item_bytes() const { return array.dtype().bits / 8; }
};
enum class Access { kRead, kWrite };
// TypeError: not an array, or read-only although it is written. Unsupported: not on the CPU.
Array array_of(nb::handle object, const char* name, Access access);
// "float32 array of shape (3, 4)", for messages.
std::string describe(const nb::ndarray<nb::ro>& array);

// The element type of an array: float64, float32, float16, bfloat16, uint16 (the bits of bf16),
// uint8 (opaque, which may be the bits of e4m3), of caches int8. TypeError otherwise.
DType dtype_of(const Array& array, const char* name, bool allow_scaled = false);

// A NumPy array over memory that `owner` keeps alive.
template <typename T>
nb::object numpy_array(const T* data, std::initializer_list<std::size_t> shape, nb::handle owner) {
  return nb::cast(nb::ndarray<nb::numpy, T>(const_cast<T*>(data), shape, owner),
                  nb::rv_policy::reference);
}
// A NumPy array with a copy of the numbers.
template <typename T>
nb::object numpy_copy(std::span<const T> numbers) {
  auto* copy = new std::vector<T>(numbers.begin(), numbers.end());
  const nb::capsule owner(copy, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return numpy_array(copy->data(), {copy->size()}, owner);
}

}  // namespace kvfolio::python
