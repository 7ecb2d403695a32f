// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.h"
#include "kernels/check.h"
#include "kernels/move.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using kernels::Mover;
using kernels::Plane;
using text::concat;

Status check_slots(const KVView& cache, std::span<const std::int32_t> slots) {
  const std::int32_t end = kernels::num_slots(cache);
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < -1 || slots[t] >= end) {
      return {ErrorCode::kInvalidArgument,
              concat("slots[", t, "] is ", slots[t], ", allowed: -1 (skip) or 0 to ", end - 1)};
    }
  }
  return {};
}

// Tokens that follow each other in one block move together.
void write_rows(const KVView& cache, const Plane& plane, const ConstRowsView& rows,
                std::span<const std::int32_t> slots) {
  const Mover mover(rows.dtype, cache.dtype);
  const auto num_tokens = static_cast<std::int32_t>(slots.size());
  for (std::int32_t t = 0; t < num_tokens;) {
    const std::int32_t slot = slots[static_cast<std::size_t>(t)];
    if (slot < 0) {
      ++t;
      continue;
    }
    const std::int32_t block = slot / cache.block_size;
    const std::int32_t offset = slot - block * cache.block_size;
    const std::int32_t most = std::min(cache.block_size - offset, num_tokens - t);
    std::int32_t run = 1;
    while (run < most && slots[static_cast<std::size_t>(t + run)] == slot + run) ++run;
    kernels::move_box(mover, {run, cache.num_kv_heads, plane.head_dim}, rows.at(t, 0),
                      {rows.token_stride, rows.head_stride}, plane.at(block, 0, offset),
                      {plane.strides.token, plane.strides.head});
    t += run;
  }
}

}  // namespace

Status append(const KVView& cache, std::int32_t layer, const ConstRowsView& k,
              const ConstRowsView& v, std::span<const std::int32_t> slots) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_layer(cache, layer));
  if (slots.size() != static_cast<std::size_t>(k.num_tokens)) {
    return {ErrorCode::kInvalidArgument,
            concat(slots.size(), " slots for ", k.num_tokens, " tokens of k")};
  }
  KVFOLIO_RETURN_IF_ERROR(
      kernels::check_rows("k", k, {k.num_tokens, cache.num_kv_heads, cache.head_dim_k}));
  const bool writes_v = kernels::stores_v(cache);
  if (writes_v) {
    KVFOLIO_RETURN_IF_ERROR(
        kernels::check_rows("v", v, {k.num_tokens, cache.num_kv_heads, cache.head_dim_v}));
  } else if (v.data != nullptr) {
    return {ErrorCode::kInvalidArgument, "v is given, but the cache stores no V of its own"};
  }
  KVFOLIO_RETURN_IF_ERROR(check_slots(cache, slots));

  write_rows(cache, kernels::k_plane(cache, layer), k, slots);
  if (writes_v) write_rows(cache, kernels::v_plane(cache, layer), v, slots);
  return {};
}

}  // namespace kvfolio
