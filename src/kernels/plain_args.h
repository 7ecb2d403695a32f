// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arguments that need no close look. A decode appends one token a call in each layer, so its checks
// cost as much as its copy unless they are few. Most arguments are plain: host memory, rows without
// tiles or scales, strides far from any overflow. A few comparisons show that of a view or of rows,
// and then no check of check.h can fail. What is not plain may still be right: check.h decides, and
// it alone says what is wrong. Values only.

#include <cstdint>
#include <limits>

#include "kernels/check.h"
#include "kvfolio/view.h"

namespace kvfolio::kernels {

// Below these, extents times strides add up to less than 63 bits.
inline constexpr int kPlainFew = 1 << 15;  // layers and heads, with strides
inline constexpr int kPlainFarBits = 44;   // of so many bits
inline constexpr int kPlainNearBits = 28;  // strides of what int32 counts: blocks and tokens

[[nodiscard, gnu::always_inline]] inline bool is_plain_plane(const std::byte* data,
                                                             const KVStrides& strides,
                                                             std::int64_t element) noexcept {
  const auto far = static_cast<std::uint64_t>(strides.layer | strides.head);
  const auto near = static_cast<std::uint64_t>(strides.block | strides.token);
  const auto all = far | near | reinterpret_cast<std::uintptr_t>(data);
  return data != nullptr && (all & static_cast<std::uint64_t>(element - 1)) == 0 &&
         (far >> kPlainFarBits) == 0 && (near >> kPlainNearBits) == 0;
}

// If true, check_view(cache).ok().
[[nodiscard, gnu::always_inline]] inline bool is_plain(const KVView& cache) noexcept {
  const std::int64_t element = dtype_bytes(cache.dtype);
  if (cache.memory_kind != MemoryKind::kHost || element == 0 || has_scales(cache.dtype) ||
      cache.granule || cache.k_scale != nullptr || cache.v_scale != nullptr) {
    return false;
  }
  if (cache.num_layers < 1 || cache.num_layers > kPlainFew || cache.num_kv_heads < 1 ||
      cache.num_kv_heads > kPlainFew || cache.num_blocks < 1 || cache.block_size < 1 ||
      std::int64_t{cache.num_blocks} * cache.block_size >
          std::numeric_limits<std::int32_t>::max() ||
      cache.head_dim_k < 1 || !is_plain_plane(cache.k, cache.k_strides, element)) {
    return false;
  }
  if (cache.head_dim_v < 1) return cache.head_dim_v == 0 && !cache.v_is_prefix_of_k;
  return (!cache.v_is_prefix_of_k || cache.head_dim_v <= cache.head_dim_k) &&
         is_plain_plane(cache.v, cache.v_strides, element);
}

// If true, check_rows(name, rows, shape).ok(). Rows that run backwards are not plain.
[[nodiscard, gnu::always_inline]] inline bool is_plain(const ConstRowsView& rows,
                                                       const RowsShape& shape) noexcept {
  const std::int64_t element = dtype_bytes(rows.dtype);
  if (element == 0 || has_scales(rows.dtype) ||
      (rows.dtype == DType::kOpaque) != (shape.cache == DType::kOpaque)) {
    return false;
  }
  const auto strides = static_cast<std::uint64_t>(rows.token_stride | rows.head_stride);
  const auto all = strides | reinterpret_cast<std::uintptr_t>(rows.data);
  return rows.num_tokens == shape.num_tokens && rows.num_heads == shape.num_heads &&
         rows.head_dim == shape.head_dim && rows.num_tokens >= 0 && rows.num_heads >= 0 &&
         rows.head_dim >= 0 && rows.data != nullptr &&
         (all & static_cast<std::uint64_t>(element - 1)) == 0 && (strides >> kPlainNearBits) == 0;
}

// If true, rows of one token and of the cache's own type, for which check_rows() is ok.
[[nodiscard, gnu::always_inline]] inline bool is_plain_token(const KVView& cache,
                                                             const ConstRowsView& rows,
                                                             std::int32_t head_dim) noexcept {
  const auto stride = static_cast<std::uint64_t>(rows.head_stride);
  const auto all = stride | reinterpret_cast<std::uintptr_t>(rows.data);
  const auto element = static_cast<std::uint64_t>(dtype_bytes(cache.dtype));
  return rows.dtype == cache.dtype && rows.num_tokens == 1 &&
         rows.num_heads == cache.num_kv_heads && rows.head_dim == head_dim &&
         rows.data != nullptr && (all & (element - 1)) == 0 && (stride >> kPlainNearBits) == 0;
}

// If true, check_append(cache, layer, k, v, 1).ok(), and the rows go into the cache as they are.
[[nodiscard, gnu::always_inline]] inline bool is_plain_token(const KVView& cache,
                                                             std::int32_t layer,
                                                             const ConstRowsView& k,
                                                             const ConstRowsView& v) noexcept {
  if (!is_plain(cache) || layer < 0 || layer >= cache.num_layers ||
      !is_plain_token(cache, k, cache.head_dim_k)) {
    return false;
  }
  return stores_v(cache) ? is_plain_token(cache, v, cache.head_dim_v) : v.data == nullptr;
}

}  // namespace kvfolio::kernels
