// SPDX-License-Identifier: Apache-2.0
#include "safetensors.h"

#include <algorithm>

#include "invalid.h"
#include "json.h"

namespace kvfolio::llama {
namespace {

constexpr std::int64_t kMaxDims = 8;

// Bits per element of every type of the format, so that offsets of tensors that are not asked for
// are checked too. 0: not a type.
std::int64_t bits_of(std::string_view dtype) {
  static constexpr std::pair<std::string_view, std::int64_t> kTypes[] = {
      {"F32", 32},    {"BF16", 16},   {"F16", 16},    {"F64", 64},    {"I64", 64},
      {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
      {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"C64", 64},    {"F8_E5M2", 8},
      {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  for (const auto& [name, bits] : kTypes) {
    if (name == dtype) return bits;
  }
  return 0;
}

// The non-negative whole number that `value` is, else -1.
std::int64_t as_size(const Json& value) {
  const std::int64_t* integer = value.as_integer();
  return integer != nullptr && *integer >= 0 ? *integer : -1;
}

Status read_shape(const Json* value, std::vector<std::int64_t>& shape) {
  const Json::Array* dims = value != nullptr ? value->as_array() : nullptr;
  if (dims == nullptr) return invalid("shape must be an array of sizes");
  if (std::ssize(*dims) > kMaxDims) {
    return invalid("shape has " + std::to_string(dims->size()) + " dimensions, at most " +
                   std::to_string(kMaxDims) + " are allowed");
  }
  for (const Json& dim : *dims) {
    shape.push_back(as_size(dim));
    if (shape.back() < 0) {
      return invalid("shape has the size " + dim.describe() + ", must be a whole number >= 0");
    }
  }
  return Status();
}

// Bytes of a tensor, or an error when they do not fit 63 bits or end inside a byte.
Result<std::int64_t> tensor_bytes(const TensorInfo& tensor, std::int64_t bits) {
  std::int64_t total = bits;
  for (const std::int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(total, dim, &total)) {
      return invalid("shape " + shape_text(tensor.shape) + " of " + tensor.dtype +
                     " overflows 63 bits");
    }
  }
  if (total % 8 != 0) {
    return invalid("shape " + shape_text(tensor.shape) + " of " + tensor.dtype +
                   " does not end at a whole byte");
  }
  return total / 8;
}

// One entry of the header; begin counts from the end of the header here.
Status read_entry(const Json& entry, TensorInfo& tensor) {
  const Json::Object* fields = entry.as_object();
  if (fields == nullptr) return invalid("is " + entry.describe() + ", must be an object");
  for (const Json::Member& field : *fields) {
    if (field.first != "dtype" && field.first != "shape" && field.first != "data_offsets") {
      return invalid("has the unknown field " + in_quotes(field.first));
    }
  }
  const Json* dtype = entry.find("dtype");
  const std::string* dtype_name = dtype != nullptr ? dtype->as_string() : nullptr;
  if (dtype_name == nullptr) return invalid("dtype must be a string");
  const std::int64_t bits = bits_of(*dtype_name);
  if (bits == 0)
    return invalid("dtype is " + in_quotes(*dtype_name) + ", not a type of the format");
  tensor.dtype = *dtype_name;
  KVFOLIO_RETURN_IF_ERROR(read_shape(entry.find("shape"), tensor.shape));

  const Json* range = entry.find("data_offsets");
  const Json::Array* offsets = range != nullptr ? range->as_array() : nullptr;
  if (offsets == nullptr || offsets->size() != 2) {
    return invalid("data_offsets must be an array of two offsets");
  }
  const std::int64_t begin = as_size((*offsets)[0]);
  const std::int64_t end = as_size((*offsets)[1]);
  const auto offsets_text = [&] {
    return "data_offsets [" + (*offsets)[0].describe() + ", " + (*offsets)[1].describe() + "]";
  };
  if (begin < 0 || end < 0) return invalid(offsets_text() + " must be two whole numbers >= 0");
  if (begin > end) return invalid(offsets_text() + " are reversed");
  Result<std::int64_t> bytes = tensor_bytes(tensor, bits);
  if (!bytes) return std::move(bytes).error();
  if (end - begin != *bytes) {
    return invalid(offsets_text() + " span " + std::to_string(end - begin) + " bytes, shape " +
                   shape_text(tensor.shape) + " of " + tensor.dtype + " takes " +
                   std::to_string(*bytes));
  }
  tensor.begin = begin;
  tensor.bytes = *bytes;
  return Status();
}

Status check_metadata(const Json& metadata) {
  const Json::Object* entries = metadata.as_object();
  if (entries == nullptr) return invalid("__metadata__ must be an object of strings");
  for (const auto& [key, value] : *entries) {
    if (value.as_string() == nullptr) {
      return invalid("__metadata__ " + in_quotes(key) + " is " + value.describe() +
                     ", must be a string");
    }
  }
  return Status();
}

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t dim : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

Result<std::vector<std::pair<std::string, TensorInfo>>> parse_safetensors_header(
    std::string_view header, std::int64_t file_bytes) {
  Result<Json> json = parse_json(header);
  if (!json) return invalid("header: " + json.error().message());
  const Json::Object* entries = json->as_object();
  if (entries == nullptr) return invalid("header: is " + json->describe() + ", must be an object");

  std::vector<std::pair<std::string, TensorInfo>> tensors;
  for (const auto& [name, entry] : *entries) {
    if (name == "__metadata__") {
      KVFOLIO_RETURN_IF_ERROR(check_metadata(entry));
      continue;
    }
    TensorInfo tensor;
    if (Status status = read_entry(entry, tensor); !status.ok()) {
      return invalid("tensor " + in_quotes(name) + ": " + status.message());
    }
    tensors.emplace_back(name, std::move(tensor));
  }

  // In the order of their offsets, each tensor begins where the one before ends, and the last one
  // ends with the file. An empty tensor sorts before the one that shares its offset.
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.begin, a.second.bytes) < std::pair(b.second.begin, b.second.bytes);
  });
  const std::int64_t data_begin = kLengthBytes + std::ssize(header);
  const std::int64_t data_bytes = file_bytes - data_begin;
  std::int64_t end = 0;
  for (auto& [name, tensor] : tensors) {
    if (tensor.begin != end) {
      return invalid("tensor " + in_quotes(name) + ": data_offsets begin at " +
                     std::to_string(tensor.begin) + (tensor.begin < end ? ", inside" : ", behind") +
                     " the tensor before, which ends at " + std::to_string(end));
    }
    if (tensor.bytes > data_bytes - end) {
      return invalid("tensor " + in_quotes(name) + ": data_offsets end at " +
                     std::to_string(tensor.begin + tensor.bytes) + ", the file has " +
                     std::to_string(data_bytes) + " bytes of data");
    }
    end += tensor.bytes;
    tensor.begin += data_begin;
  }
  if (end != data_bytes) {
    return invalid("the file has " + std::to_string(data_bytes) +
                   " bytes of data, its tensors end at " + std::to_string(end));
  }
  return tensors;
}

}  // namespace kvfolio::llama
