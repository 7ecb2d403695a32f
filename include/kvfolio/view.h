// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plain views of memory that the caller owns: what kernels take, and all that they know. No pool,
// no manager, no allocation. Trivially copyable, so they may be passed to a device.
// A view checks nothing, not even the arguments of k_at() and at(), and the memory must outlive the
// view. Kernels check shapes; KVStorage makes views whose rows lie within its memory.
// Thread safety: values.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kvfolio/dtype.h"
#include "kvfolio/memory_kind.h"
#include "kvfolio/spec.h"
#include "kvfolio/strides.h"

namespace kvfolio {

// The keys and values of one group.
struct KVView {
  std::byte* k = nullptr;  // [num_layers, num_blocks, num_kv_heads, block_size, head_dim_k]
  std::byte* v = nullptr;  // the same with head_dim_v; null if head_dim_v is 0; may point into k
  KVStrides k_strides = {};
  KVStrides v_strides = {};
  std::int32_t num_layers = 0;
  std::int32_t num_blocks = 0;
  std::int32_t block_size = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim_k = 0;
  std::int32_t head_dim_v = 0;
  DType dtype = DType::kF32;
  // V is the first head_dim_v elements of K: appends write K only.
  bool v_is_prefix_of_k = false;
  // True: rows lie in tiles of 16 tokens, see Format::kGranule. False: elements of a row are
  // contiguous.
  bool granule = false;
  // Where the bytes are. Kernels of the CPU refuse all but kHost (kUnsupported). KVStorage sets it;
  // a view that is made by hand is of host memory unless it says otherwise.
  MemoryKind memory_kind = MemoryKind::kHost;
  // Types with scales (has_scales()) only, else null, so also for opaque bytes: f32 [num_layers,
  // num_blocks, num_kv_heads, block_size], a scale for each row, in every format; finite and >= 0,
  // or NaN, as append() writes them. v_scale is null if head_dim_v is 0, and equals k_scale if V is
  // a prefix of K.
  std::byte* k_scale = nullptr;
  std::byte* v_scale = nullptr;
  KVStrides k_scale_strides = {};
  KVStrides v_scale_strides = {};

  // The row of a token; in format granule, the tile that it lies in.
  [[nodiscard]] std::byte* k_at(std::int32_t layer, std::int32_t block, std::int32_t head,
                                std::int32_t offset) const noexcept {
    return k + layer * k_strides.layer + block * k_strides.block + head * k_strides.head +
           in_block(offset) * k_strides.token;
  }
  [[nodiscard]] std::byte* v_at(std::int32_t layer, std::int32_t block, std::int32_t head,
                                std::int32_t offset) const noexcept {
    return v + layer * v_strides.layer + block * v_strides.block + head * v_strides.head +
           in_block(offset) * v_strides.token;
  }
  // Types with scales (has_scales()): the scale of a token's row.
  [[nodiscard]] std::byte* k_scale_at(std::int32_t layer, std::int32_t block, std::int32_t head,
                                      std::int32_t offset) const noexcept {
    return k_scale + layer * k_scale_strides.layer + block * k_scale_strides.block +
           head * k_scale_strides.head + offset * k_scale_strides.token;
  }
  [[nodiscard]] std::byte* v_scale_at(std::int32_t layer, std::int32_t block, std::int32_t head,
                                      std::int32_t offset) const noexcept {
    return v_scale + layer * v_scale_strides.layer + block * v_scale_strides.block +
           head * v_scale_strides.head + offset * v_scale_strides.token;
  }

  [[nodiscard]] std::int32_t in_block(std::int32_t offset) const noexcept {
    return granule ? offset / kGranuleTokens : offset;
  }
};

// Rows of an engine: [num_tokens, num_heads, head_dim], elements contiguous, any strides in bytes:
// negative ones too, and 0 if rows are only read.
struct RowsView {
  std::byte* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;
  DType dtype = DType::kF32;

  [[nodiscard]] std::byte* at(std::int32_t token, std::int32_t head) const noexcept {
    return data + token * token_stride + head * head_stride;
  }
};

struct ConstRowsView {
  const std::byte* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int32_t num_tokens = 0;
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;
  DType dtype = DType::kF32;

  ConstRowsView() = default;
  ConstRowsView(const std::byte* data_in, std::int64_t token_stride_in, std::int64_t head_stride_in,
                std::int32_t num_tokens_in, std::int32_t num_heads_in, std::int32_t head_dim_in,
                DType dtype_in) noexcept
      : data(data_in),
        token_stride(token_stride_in),
        head_stride(head_stride_in),
        num_tokens(num_tokens_in),
        num_heads(num_heads_in),
        head_dim(head_dim_in),
        dtype(dtype_in) {}
  ConstRowsView(const RowsView& rows) noexcept
      : ConstRowsView(rows.data, rows.token_stride, rows.head_stride, rows.num_tokens,
                      rows.num_heads, rows.head_dim, rows.dtype) {}

  [[nodiscard]] const std::byte* at(std::int32_t token, std::int32_t head) const noexcept {
    return data + token * token_stride + head * head_stride;
  }
};

// Rows [num_tokens, num_heads, head_dim] that follow each other without a gap. The pointer says the
// element type if it can: double is f64, float is f32. A 16-bit or untyped pointer needs a DType.
// There is none for types with scales (has_scales()): rows have no scales, so no kernel takes rows
// of them. Rows of opaque bytes are DType::kOpaque, and go into an opaque cache or out of one only.
//   attend({.q = contiguous_rows(q.data(), num_tokens, num_q_heads, head_dim), ...});
[[nodiscard]] inline RowsView contiguous_rows(std::byte* data, std::int32_t num_tokens,
                                              std::int32_t num_heads, std::int32_t head_dim,
                                              DType dtype) noexcept {
  const std::int64_t row = std::int64_t{head_dim} * dtype_bytes(dtype);
  return {data, row * num_heads, row, num_tokens, num_heads, head_dim, dtype};
}
[[nodiscard]] inline ConstRowsView contiguous_rows(const std::byte* data, std::int32_t num_tokens,
                                                   std::int32_t num_heads, std::int32_t head_dim,
                                                   DType dtype) noexcept {
  const std::int64_t row = std::int64_t{head_dim} * dtype_bytes(dtype);
  return {data, row * num_heads, row, num_tokens, num_heads, head_dim, dtype};
}
// Bits of f16 or bf16. Requires: dtype is one of the two.
[[nodiscard]] inline RowsView contiguous_rows(std::uint16_t* data, std::int32_t num_tokens,
                                              std::int32_t num_heads, std::int32_t head_dim,
                                              DType dtype) noexcept {
  KVFOLIO_DCHECK(dtype_bytes(dtype) == 2);
  return contiguous_rows(reinterpret_cast<std::byte*>(data), num_tokens, num_heads, head_dim,
                         dtype);
}
[[nodiscard]] inline ConstRowsView contiguous_rows(const std::uint16_t* data,
                                                   std::int32_t num_tokens, std::int32_t num_heads,
                                                   std::int32_t head_dim, DType dtype) noexcept {
  KVFOLIO_DCHECK(dtype_bytes(dtype) == 2);
  return contiguous_rows(reinterpret_cast<const std::byte*>(data), num_tokens, num_heads, head_dim,
                         dtype);
}
[[nodiscard]] inline RowsView contiguous_rows(double* data, std::int32_t num_tokens,
                                              std::int32_t num_heads,
                                              std::int32_t head_dim) noexcept {
  return contiguous_rows(reinterpret_cast<std::byte*>(data), num_tokens, num_heads, head_dim,
                         DType::kF64);
}
[[nodiscard]] inline ConstRowsView contiguous_rows(const double* data, std::int32_t num_tokens,
                                                   std::int32_t num_heads,
                                                   std::int32_t head_dim) noexcept {
  return contiguous_rows(reinterpret_cast<const std::byte*>(data), num_tokens, num_heads, head_dim,
                         DType::kF64);
}
[[nodiscard]] inline RowsView contiguous_rows(float* data, std::int32_t num_tokens,
                                              std::int32_t num_heads,
                                              std::int32_t head_dim) noexcept {
  return contiguous_rows(reinterpret_cast<std::byte*>(data), num_tokens, num_heads, head_dim,
                         DType::kF32);
}
[[nodiscard]] inline ConstRowsView contiguous_rows(const float* data, std::int32_t num_tokens,
                                                   std::int32_t num_heads,
                                                   std::int32_t head_dim) noexcept {
  return contiguous_rows(reinterpret_cast<const std::byte*>(data), num_tokens, num_heads, head_dim,
                         DType::kF32);
}

static_assert(std::is_trivially_copyable_v<KVView> && std::is_trivially_copyable_v<RowsView> &&
              std::is_trivially_copyable_v<ConstRowsView>);

// The view of a whole group laid out by plan_layouts at `base`, in host memory.
[[nodiscard]] KVFOLIO_API KVView make_view(const GroupSpec& spec, const GroupLayout& layout,
                                           std::byte* base) noexcept;

}  // namespace kvfolio
