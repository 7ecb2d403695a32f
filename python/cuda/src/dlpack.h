// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tensors of a device through DLPack: what others hand over, and what is handed to them. nanobind's
// arrays know no stream, so this is the protocol itself: __dlpack_device__() is asked first,
// __dlpack__(stream=, max_version=) then; capsules with a version and without one; a deleter runs
// once.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bindings.h"
#include "kvfolio/view.h"

namespace kvfolio::python {

// dlpack.h of DLPack 1.1.
namespace dl {

inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;
enum Code : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6, kE4M3FN = 10 };
inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr std::uint64_t kCopied = 2;
inline constexpr std::uint32_t kMajor = 1;
inline constexpr std::uint32_t kMinor = 1;

struct Device {
  std::int32_t type = 0;
  std::int32_t id = 0;
};
struct Type {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
};
struct Tensor {
  void* data = nullptr;
  Device device = {};
  std::int32_t ndim = 0;
  Type dtype = {};
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;  // in elements; null: compact, in row-major order
  std::uint64_t byte_offset = 0;
};
struct Managed {
  static constexpr const char* kName = "dltensor";
  static constexpr const char* kUsed = "used_dltensor";
  Tensor tensor;
  void* context = nullptr;
  void (*deleter)(Managed*) = nullptr;
};
struct Version {
  std::uint32_t major = kMajor;
  std::uint32_t minor = kMinor;
};
struct VersionedManaged {
  static constexpr const char* kName = "dltensor_versioned";
  static constexpr const char* kUsed = "used_dltensor_versioned";
  Version version;
  void* context = nullptr;
  void (*deleter)(VersionedManaged*) = nullptr;
  std::uint64_t flags = 0;
  Tensor tensor;
};

}  // namespace dl

// What a capsule held: ends it once. Made and destroyed under the GIL.
using Owner = std::shared_ptr<void>;

// A tensor on a device, and what keeps it alive.
struct Lent {
  Owner owner;
  std::byte* data = nullptr;
  dl::Type dtype = {};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements

  [[nodiscard]] std::size_t ndim() const { return shape.size(); }
  [[nodiscard]] std::int64_t item_bytes() const { return dtype.bits / 8; }
  [[nodiscard]] bool empty() const;
  // In bytes; 0 along an axis of one entry.
  [[nodiscard]] std::int64_t stride(std::size_t axis) const {
    return shape[axis] > 1 ? strides[axis] * item_bytes() : 0;
  }
  // "float32 tensor of shape (3, 4)", for messages.
  [[nodiscard]] std::string text() const;
};

enum class Use { kRead, kWrite };

// Whose memory is wanted: that of device `ordinal`, and on which stream it is used, so that the
// producer makes it wait for what still writes the tensor.
struct Consumer {
  std::int32_t ordinal = 0;
  std::string device;  // its name, for messages
  void* stream = nullptr;
};

// TypeError: no tensor, or read-only although it is written. InvalidArgument: another device, or
// the host; a capsule that was taken; a version of DLPack that is not read.
Lent lent_of(nb::handle object, const char* name, const Consumer& consumer, Use use);
// Raises InvalidArgument for an object that says it is on a device: this argument the host reads.
void check_on_host(nb::handle object, const char* name);

// Its element type. uint16 is the bits of bf16; uint8 and float8_e4m3fn those of e4m3 in caches,
// where int8 is allowed, too. TypeError: another one.
DType dtype_of(const Lent& lent, const char* name, bool cache);
// [tokens, heads, head_dim]. InvalidArgument: other axes, elements of a row apart.
RowsView rows_of(const Lent& lent, const char* name);
// One-dimensional, int32, contiguous.
std::span<const std::int32_t> numbers_of(const Lent& lent, const char* name);

// What a stream is called in Python: None and 0 are the legacy default stream, 1, too; 2 the one of
// each thread; others are handles; objects with cuda_stream (torch) or __cuda_stream__().
void* stream_of(nb::handle object);

// A capsule over memory of a device. `keep` lives until the consumer's deleter has run, which may
// be on any thread, with the GIL or without.
struct Exported {
  std::byte* data = nullptr;
  std::int32_t ordinal = 0;
  dl::Type dtype = {};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements
  std::shared_ptr<void> keep;
};
nb::object export_capsule(const Exported& exported, bool versioned);

}  // namespace kvfolio::python
