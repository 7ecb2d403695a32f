// SPDX-License-Identifier: Apache-2.0
#include "kernels/check.h"

#include <array>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/row_nest.h"
#include "base/text.h"

namespace kvfolio::kernels {
namespace {

using text::concat;

Status invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// Rows may run backwards; this keeps the absolute value of a stride within 63 bits.
constexpr std::int64_t kMaxStride = std::int64_t{1} << 62;

std::array<Axis, 2> axes_of(const ConstRowsView& rows) {
  return {Axis{rows.num_tokens, rows.token_stride}, Axis{rows.num_heads, rows.head_stride}};
}

bool aligned(const void* pointer, std::int64_t element) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(element) == 0;
}

Status check_size(std::string_view field, std::int64_t value, std::int64_t low) {
  if (value >= low) return {};
  return invalid(concat("cache.", field, " is ", value, ", allowed: at least ", low));
}

Status check_plane(const KVView& cache, std::string_view name, const std::byte* data,
                   const KVStrides& strides, std::int32_t head_dim) {
  const std::int64_t element = dtype_bytes(cache.dtype);
  if (data == nullptr) return invalid(concat("cache.", name, " is null"));
  if (!aligned(data, element)) {
    return invalid(concat("cache.", name, " is not aligned to its element, ", element, " bytes"));
  }
  RowNest nest;
  nest.row_bytes = head_dim * element;
  const Axis axes[] = {{cache.num_layers, strides.layer},
                       {cache.num_blocks, strides.block},
                       {cache.num_kv_heads, strides.head},
                       {cache.block_size, strides.token}};
  for (const Axis& axis : axes) {
    if (axis.extent == 1) continue;
    if (axis.stride < 0 || axis.stride % element != 0) {
      return invalid(concat("cache.", name, "_strides has ", axis.stride,
                            ", allowed: multiples of the element, ", element,
                            " bytes, not negative"));
    }
    nest.add(axis);
  }
  if (!nest.span().ok()) {
    return invalid(concat("the extent of cache.", name, " overflows 63 bits"));
  }
  return {};
}

}  // namespace

Status check_view(const KVView& cache) {
  KVFOLIO_RETURN_IF_ERROR(check_size("num_layers", cache.num_layers, 1));
  KVFOLIO_RETURN_IF_ERROR(check_size("num_blocks", cache.num_blocks, 1));
  KVFOLIO_RETURN_IF_ERROR(check_size("block_size", cache.block_size, 1));
  KVFOLIO_RETURN_IF_ERROR(check_size("num_kv_heads", cache.num_kv_heads, 1));
  KVFOLIO_RETURN_IF_ERROR(check_size("head_dim_k", cache.head_dim_k, 1));
  KVFOLIO_RETURN_IF_ERROR(check_size("head_dim_v", cache.head_dim_v, 0));
  if (dtype_bytes(cache.dtype) == 0) {
    return invalid(concat("cache.dtype is ", static_cast<std::int32_t>(cache.dtype),
                          ", allowed: f64, f32, f16, bf16"));
  }
  const std::int64_t slots = std::int64_t{cache.num_blocks} * cache.block_size;
  if (slots > std::numeric_limits<std::int32_t>::max()) {
    return invalid(concat("cache has ", cache.num_blocks, " blocks x ", cache.block_size, " = ",
                          slots, " slots, allowed: at most ",
                          std::numeric_limits<std::int32_t>::max(), " (slots are int32)"));
  }
  if (cache.v_is_prefix_of_k && (cache.head_dim_v < 1 || cache.head_dim_v > cache.head_dim_k)) {
    return invalid(concat("cache.head_dim_v is ", cache.head_dim_v,
                          ", allowed for a prefix of K: 1 to ", cache.head_dim_k));
  }
  KVFOLIO_RETURN_IF_ERROR(check_plane(cache, "k", cache.k, cache.k_strides, cache.head_dim_k));
  if (cache.head_dim_v == 0) return {};
  return check_plane(cache, "v", cache.v, cache.v_strides, cache.head_dim_v);
}

Status check_layer(const KVView& cache, std::int32_t layer) {
  if (layer >= 0 && layer < cache.num_layers) return {};
  return invalid(concat("layer is ", layer, ", the cache has layers 0 to ", cache.num_layers - 1));
}

Status check_rows(std::string_view name, const ConstRowsView& rows, const RowsShape& shape) {
  const std::int64_t element = dtype_bytes(rows.dtype);
  if (element == 0) {
    return invalid(concat(name, ".dtype is ", static_cast<std::int32_t>(rows.dtype),
                          ", allowed: f64, f32, f16, bf16"));
  }
  if (rows.num_tokens != shape.num_tokens || rows.num_heads != shape.num_heads ||
      rows.head_dim != shape.head_dim) {
    return invalid(concat(name, " is [", rows.num_tokens, " tokens, ", rows.num_heads,
                          " heads, head_dim ", rows.head_dim, "], allowed: [", shape.num_tokens,
                          ", ", shape.num_heads, ", ", shape.head_dim, "]"));
  }
  if (shape.num_tokens == 0) return {};
  if (rows.data == nullptr) return invalid(concat(name, ".data is null"));
  if (!aligned(rows.data, element)) {
    return invalid(concat(name, ".data is not aligned to its element, ", element, " bytes"));
  }
  Checked extent(shape.head_dim * element);
  for (const Axis& axis : axes_of(rows)) {
    if (axis.extent == 1) continue;
    if (axis.stride % element != 0 || axis.stride < -kMaxStride) {
      return invalid(concat(name, " has a stride of ", axis.stride,
                            " bytes, allowed: multiples of the element, ", element, " bytes"));
    }
    extent = extent + Checked(std::abs(axis.stride)) * (axis.extent - 1);
  }
  if (!extent.ok()) return invalid(concat("the extent of ", name, " overflows 63 bits"));
  return {};
}

Status check_written_rows(std::string_view name, const RowsView& rows, const RowsShape& shape) {
  KVFOLIO_RETURN_IF_ERROR(check_rows(name, rows, shape));
  RowNest nest;
  nest.row_bytes = shape.head_dim * std::int64_t{dtype_bytes(rows.dtype)};
  for (const Axis& axis : axes_of(rows)) {
    if (axis.extent > 1) nest.add({axis.extent, std::abs(axis.stride)});
  }
  if (nest.nested()) return {};
  return invalid(concat("rows of ", name, " overlap: token_stride is ", rows.token_stride,
                        ", head_stride ", rows.head_stride, ", a row has ", nest.row_bytes,
                        " bytes"));
}

Status check_copies(const KVView& cache, std::span<const std::int32_t> src,
                    std::span<const std::int32_t> dst) {
  if (src.size() != dst.size()) {
    return invalid(concat("block copy: ", src.size(), " sources, ", dst.size(), " destinations"));
  }
  for (std::size_t i = 0; i < src.size(); ++i) {
    for (const std::int32_t block : {src[i], dst[i]}) {
      if (block < 0 || block >= cache.num_blocks) {
        return invalid(concat("block copy ", i, " (", src[i], " to ", dst[i],
                              "): the cache has blocks 0 to ", cache.num_blocks - 1));
      }
    }
  }
  return {};
}

}  // namespace kvfolio::kernels
