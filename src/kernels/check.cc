// SPDX-License-Identifier: Apache-2.0

// The checks that kernels share. A view is checked for what its numbers say: sizes, alignment,
// extents that fit 63 bits. What memory is behind it cannot be known here (KVStorage knows). Rows
// that are written must not overlap, which row_nest.h proves from their strides; rows that are only
// read may.

#include "kernels/check.h"

#include <array>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/invalid.h"
#include "base/row_nest.h"
#include "base/text.h"
#include "kernels/plain_args.h"

namespace kvfolio::kernels {
namespace {

using text::concat;

// Rows may run backwards; this keeps the absolute value of a stride within 63 bits.
constexpr std::int64_t kMaxStride = std::int64_t{1} << 62;

std::array<Axis, 2> axes_of(const ConstRowsView& rows) {
  return {Axis{rows.num_tokens, rows.token_stride}, Axis{rows.num_heads, rows.head_stride}};
}

// Without a division: a decode appends a token to each layer, and each call checks some twenty
// numbers. Requires: `of` is a power of two, as the bytes of every element and of a line are.
bool is_multiple(std::int64_t value, std::int64_t of) {
  KVFOLIO_DCHECK(of > 0 && (of & (of - 1)) == 0);
  return (value & (of - 1)) == 0;
}

bool aligned(const void* pointer, std::int64_t element) {
  return is_multiple(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer)), element);
}

// The first of the sizes that is too small.
Status check_sizes(const KVView& cache) {
  struct Size {
    std::string_view field;
    std::int32_t value;
    std::int32_t low;
  };
  const Size sizes[] = {
      {"num_layers", cache.num_layers, 1}, {"num_blocks", cache.num_blocks, 1},
      {"block_size", cache.block_size, 1}, {"num_kv_heads", cache.num_kv_heads, 1},
      {"head_dim_k", cache.head_dim_k, 1}, {"head_dim_v", cache.head_dim_v, 0}};
  for (const auto& [field, value, low] : sizes) {
    if (value >= low) continue;
    return invalid(concat("cache.", field, " is ", value, ", allowed: at least ", low));
  }
  return {};
}

// What a plane is made of.
struct PlaneShape {
  std::int64_t row_bytes = 0;
  std::int32_t num_rows = 0;       // of a block and head
  std::int64_t alignment = 1;      // bytes that its address and strides are multiples of
  std::int64_t row_alignment = 1;  // so is its token stride
};

// What format granule aligns to.
constexpr std::int64_t kLine = 64;

std::string alignment_text(std::int64_t alignment) {
  return concat(alignment == kLine ? "a line, " : "the element, ", alignment, " bytes");
}

Status check_plane(const KVView& cache, std::string_view name, const std::byte* data,
                   const KVStrides& strides, const PlaneShape& shape) {
  if (data == nullptr) return invalid(concat("cache.", name, " is null"));
  if (!aligned(data, shape.alignment)) {
    return invalid(
        shape.alignment == kLine
            ? concat("cache.", name, " is not aligned to ", alignment_text(shape.alignment))
            : concat("cache.", name, " is not aligned to its element, ", shape.alignment,
                     " bytes"));
  }
  Checked span(shape.row_bytes);
  struct Aligned {
    Axis axis;
    std::int64_t alignment;
  };
  const Aligned axes[] = {{{cache.num_layers, strides.layer}, shape.alignment},
                          {{cache.num_blocks, strides.block}, shape.alignment},
                          {{cache.num_kv_heads, strides.head}, shape.alignment},
                          {{shape.num_rows, strides.token}, shape.row_alignment}};
  for (const auto& [axis, alignment] : axes) {
    if (axis.extent == 1) continue;
    if (axis.stride < 0 || !is_multiple(axis.stride, alignment)) {
      return invalid(concat("cache.", name, "_strides has ", axis.stride,
                            ", allowed: multiples of ", alignment_text(alignment),
                            ", not negative"));
    }
    span = span + Checked(axis.extent - 1) * axis.stride;
  }
  if (!span.ok()) {
    return invalid(concat("the extent of cache.", name, " overflows 63 bits"));
  }
  return {};
}

// Rows of K or V, and their scales.
Status check_rows_of(const KVView& cache, std::string_view name, const std::byte* data,
                     const KVStrides& strides, std::int32_t head_dim) {
  const std::int64_t element = dtype_bytes(cache.dtype);
  const std::int32_t tokens = cache.granule ? kGranuleTokens : 1;
  const std::int64_t alignment = cache.granule ? kLine : element;
  return check_plane(
      cache, name, data, strides,
      {head_dim * element * tokens, cache.block_size / tokens, alignment, alignment});
}

Status check_scales(const KVView& cache, std::string_view name, const std::byte* data,
                    const KVStrides& strides) {
  constexpr std::int64_t kScaleBytes = 4;
  if (!has_scales(cache.dtype)) {
    if (data == nullptr) return {};
    return invalid(concat("cache.", name, " is given for ",
                          std::string_view(to_string(cache.dtype)),
                          ", allowed: null, scales are of int8 and e4m3 only"));
  }
  if (cache.granule && strides.token != kScaleBytes) {
    return invalid(concat("cache.", name, "_strides.token is ", strides.token,
                          ", allowed in format granule: ", kScaleBytes));
  }
  return check_plane(
      cache, name, data, strides,
      {kScaleBytes, cache.block_size, cache.granule ? kLine : kScaleBytes, kScaleBytes});
}

// What format granule can be made of.
Status check_granule(const KVView& cache) {
  if (!fits_granule(cache.dtype)) {
    return invalid(concat("cache.dtype is ", std::string_view(to_string(cache.dtype)),
                          ", allowed in format granule: f32, f16, bf16, int8"));
  }
  struct Multiple {
    std::string_view field;
    std::int32_t value;
    std::int32_t of;
  };
  for (const Multiple& m :
       {Multiple{"block_size", cache.block_size, kGranuleTokens},
        Multiple{"head_dim_k", cache.head_dim_k, 8}, Multiple{"head_dim_v", cache.head_dim_v, 8}}) {
    if (m.value % m.of == 0) continue;
    return invalid(concat("cache.", m.field, " is ", m.value,
                          ", allowed in format granule: ", "multiples of ", m.of));
  }
  if (cache.v_is_prefix_of_k) {
    return invalid("cache.v_is_prefix_of_k is set, which format granule does not have");
  }
  return {};
}

}  // namespace

Status check_memory(const KVView& cache) {
  if (cache.memory_kind == MemoryKind::kHost) return {};
  return {ErrorCode::kUnsupported,
          concat("the cache is in ", std::string_view(to_string(cache.memory_kind)),
                 " memory (cache.memory_kind is ", static_cast<std::int32_t>(cache.memory_kind),
                 "), which kernels of the CPU do not touch; allowed: host (0)")};
}

Status check_view_closely(const KVView& cache) {
  KVFOLIO_RETURN_IF_ERROR(check_memory(cache));
  KVFOLIO_RETURN_IF_ERROR(check_sizes(cache));
  if (dtype_bytes(cache.dtype) == 0) {
    return invalid(concat("cache.dtype is ", static_cast<std::int32_t>(cache.dtype),
                          ", allowed: f64, f32, f16, bf16, int8, e4m3, opaque"));
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
  if (cache.granule) KVFOLIO_RETURN_IF_ERROR(check_granule(cache));
  KVFOLIO_RETURN_IF_ERROR(check_rows_of(cache, "k", cache.k, cache.k_strides, cache.head_dim_k));
  KVFOLIO_RETURN_IF_ERROR(check_scales(cache, "k_scale", cache.k_scale, cache.k_scale_strides));
  if (cache.head_dim_v == 0) return {};
  KVFOLIO_RETURN_IF_ERROR(check_rows_of(cache, "v", cache.v, cache.v_strides, cache.head_dim_v));
  return check_scales(cache, "v_scale", cache.v_scale, cache.v_scale_strides);
}

Status check_rows_closely(std::string_view name, const ConstRowsView& rows,
                          const RowsShape& shape) {
  const std::int64_t element = dtype_bytes(rows.dtype);
  if (element == 0) {
    return invalid(concat(name, ".dtype is ", static_cast<std::int32_t>(rows.dtype),
                          ", allowed: f64, f32, f16, bf16"));
  }
  if (has_scales(rows.dtype)) {
    const std::string_view type = to_string(rows.dtype);
    return invalid(concat(name, ".dtype is ", type, ", allowed: f64, f32, f16, bf16 (", type,
                          " is a type of caches, which have its scales)"));
  }
  if ((rows.dtype == DType::kOpaque) != (shape.cache == DType::kOpaque)) {
    return invalid(concat(name, ".dtype is ", std::string_view(to_string(rows.dtype)),
                          shape.cache == DType::kOpaque
                              ? ", allowed: opaque, as the cache"
                              : ", allowed: f64, f32, f16, bf16 (opaque bytes go into an opaque "
                                "cache and out of one, and are not converted)"));
  }
  if (rows.num_tokens != shape.num_tokens || rows.num_heads != shape.num_heads ||
      rows.head_dim != shape.head_dim) {
    return invalid(concat(name, " is [", rows.num_tokens, " tokens, ", rows.num_heads,
                          " heads, head_dim ", rows.head_dim, "], allowed: [", shape.num_tokens,
                          ", ", shape.num_heads, ", ", shape.head_dim, "]"));
  }
  if (shape.empty()) return {};  // strides of nothing may be anything
  if (rows.data == nullptr) return invalid(concat(name, ".data is null"));
  if (!aligned(rows.data, element)) {
    return invalid(concat(name, ".data is not aligned to its element, ", element, " bytes"));
  }
  Checked extent(shape.head_dim * element);
  for (const Axis& axis : axes_of(rows)) {
    if (axis.extent == 1) continue;
    if (!is_multiple(axis.stride, element) || axis.stride < -kMaxStride) {
      return invalid(concat(name, " has a stride of ", axis.stride,
                            " bytes, allowed: multiples of the element, ", element, " bytes"));
    }
    extent = extent + Checked(std::abs(axis.stride)) * (axis.extent - 1);
  }
  if (!extent.ok()) return invalid(concat("the extent of ", name, " overflows 63 bits"));
  return {};
}

Status check_view(const KVView& cache) {
  if (is_plain(cache)) [[likely]] {
    KVFOLIO_DCHECK(check_view_closely(cache).ok());
    return {};
  }
  return check_view_closely(cache);
}

Status check_layer(const KVView& cache, std::int32_t layer) {
  if (layer >= 0 && layer < cache.num_layers) return {};
  return invalid(concat("layer is ", layer, ", the cache has layers 0 to ", cache.num_layers - 1));
}

Status check_rows(std::string_view name, const ConstRowsView& rows, const RowsShape& shape) {
  if (is_plain(rows, shape)) [[likely]] {
    KVFOLIO_DCHECK(check_rows_closely(name, rows, shape).ok());
    return {};
  }
  return check_rows_closely(name, rows, shape);
}

Status check_written_rows(std::string_view name, const RowsView& rows, const RowsShape& shape) {
  KVFOLIO_RETURN_IF_ERROR(check_rows(name, rows, shape));
  if (shape.empty()) return {};
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

Status check_soft_cap(double soft_cap) {
  if (soft_cap == 0.0 || (soft_cap >= 1e-30 && soft_cap <= 1e30)) return {};
  return invalid("soft_cap is negative, NaN or out of range, allowed: 0 (none), or 1e-30 to 1e30");
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
