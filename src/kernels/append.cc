// SPDX-License-Identifier: Apache-2.0

// append(): the rows of new tokens go to their slots. Every argument is checked before the first
// byte is written. Then tokens that follow each other in one block are written as one box, K and V
// in turn. rows.h writes a box, whatever the format and the element type are.

#include <algorithm>

#include "kernels/check.h"
#include "kernels/copy_rows.h"
#include "kernels/plain_args.h"
#include "kernels/rows.h"
#include "kernels/stream.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using kernels::RowWriter;
using kernels::Stores;

Status check_slots(const KVView& cache, std::span<const std::int32_t> slots) {
  const std::int32_t end = kernels::num_slots(cache);
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < -1 || slots[t] >= end) return kernels::bad_slot(cache, t, slots[t]);
  }
  return {};
}

// Rows of the engine and what takes them to their plane.
struct Stream {
  RowWriter writer;
  ConstRowsView rows;
};

// Tokens that follow each other in one block move together, K and V in turn, since they lie close.
void write_rows(const KVView& cache, std::span<const Stream> streams,
                std::span<const std::int32_t> slots) {
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
    const std::int32_t* const next = slots.data() + t;
    std::int32_t run = 1;
    while (run < most && next[run] == slot + run) ++run;
    for (const Stream& stream : streams) {
      stream.writer.write({.block = block,
                           .head = 0,
                           .offset = offset,
                           .num_tokens = run,
                           .num_heads = cache.num_kv_heads},
                          stream.rows.at(t, 0),
                          {stream.rows.token_stride, stream.rows.head_stride});
    }
    t += run;
  }
}

Status append_any(const KVView& cache, std::int32_t layer, const ConstRowsView& k,
                  const ConstRowsView& v, std::span<const std::int32_t> slots) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_append(cache, layer, k, v, slots.size()));
  const bool writes_v = kernels::stores_v(cache);
  KVFOLIO_RETURN_IF_ERROR(check_slots(cache, slots));

  const double row = static_cast<double>(cache.head_dim_k) + (writes_v ? cache.head_dim_v : 0);
  const double bytes =
      row * static_cast<double>(slots.size()) * cache.num_kv_heads * dtype_bytes(cache.dtype);
  const Stores stores = kernels::stores_for(bytes, kernels::kAppendPastCaches);
  const Stream k_stream{RowWriter(kernels::k_plane(cache, layer), k.dtype, stores), k};
  if (writes_v) {
    const Stream streams[] = {k_stream,
                              {RowWriter(kernels::v_plane(cache, layer), v.dtype, stores), v}};
    write_rows(cache, streams, slots);
  } else {
    write_rows(cache, std::span(&k_stream, 1), slots);
  }
  if (stores == Stores::kPastCaches) kernels::stream_fence();
  return {};
}

}  // namespace

Status append(const KVView& cache, std::int32_t layer, const ConstRowsView& k,
              const ConstRowsView& v, std::span<const std::int32_t> slots) {
  // What a decode appends, in as few steps as there are: one token whose rows go in as they are.
  if (slots.size() != 1 || !kernels::is_plain_token(cache, layer, k, v)) {
    return append_any(cache, layer, k, v, slots);
  }
  KVFOLIO_DCHECK(kernels::check_append(cache, layer, k, v, 1).ok());
  const std::int32_t slot = slots[0];
  if (slot < 0 || slot >= kernels::num_slots(cache)) return append_any(cache, layer, k, v, slots);

  const std::int32_t block = slot / cache.block_size;
  const std::int32_t offset = slot - block * cache.block_size;
  const std::int64_t element = dtype_bytes(cache.dtype);
  const kernels::CopyRowsFn copy = kernels::copy_rows_fn();
  copy(k.data, cache.k_at(layer, block, 0, offset), cache.head_dim_k * element, cache.num_kv_heads,
       k.head_stride, cache.k_strides.head);
  if (!kernels::stores_v(cache)) return {};
  copy(v.data, cache.v_at(layer, block, 0, offset), cache.head_dim_v * element, cache.num_kv_heads,
       v.head_stride, cache.v_strides.head);
  return {};
}

}  // namespace kvfolio
