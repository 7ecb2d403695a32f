// SPDX-License-Identifier: Apache-2.0

// Reads of a cache as rows. gather() copies some positions of a sequence out of their blocks, one
// box of rows for each block; write_token() and read_token() are for one vector of one token. All
// check their arguments before the first byte moves. rows.h does the rest.

#include <algorithm>

#include "base/invalid.h"
#include "base/text.h"
#include "kernels/check.h"
#include "kernels/rows.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using kernels::Plane;
using kernels::RowReader;
using kernels::RowWriter;
using kernels::Stores;
using text::concat;

Status check_gathered_table(const GatherArgs& args) {
  if (args.count == 0) return {};
  const std::int32_t last = (args.first + (args.count - 1)) / args.cache.block_size;
  for (std::int32_t i = args.first / args.cache.block_size; i <= last; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const std::int32_t block = args.block_table[index];
    if (block < 0 || block >= args.cache.num_blocks) {
      return kernels::bad_entry(args.cache, index, block);
    }
  }
  return {};
}

void read_rows(const GatherArgs& args, const Plane& plane, const RowsView& rows,
               std::int64_t layer_offset, Stores stores) {
  const std::int32_t block_size = args.cache.block_size;
  const RowReader reader(plane, rows.dtype, stores);
  for (std::int32_t done = 0; done < args.count;) {
    const std::int32_t position = args.first + done;
    const std::int32_t logical = position / block_size;
    const std::int32_t offset = position - logical * block_size;
    const std::int32_t run = std::min(block_size - offset, args.count - done);
    const std::int32_t block = args.block_table[static_cast<std::size_t>(logical)];
    reader.read({.block = block,
                 .head = args.first_head,
                 .offset = offset,
                 .num_tokens = run,
                 .num_heads = rows.num_heads},
                rows.at(done, 0) + layer_offset, {rows.token_stride, rows.head_stride});
    done += run;
  }
}

// The place of one token, and the shapes of its vectors.
Status check_token(const KVView& cache, const TokenPlace& place) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_layer(cache, place.layer));
  if (place.head < 0 || place.head >= cache.num_kv_heads) {
    return invalid(
        concat("head is ", place.head, ", the cache has heads 0 to ", cache.num_kv_heads - 1));
  }
  if (place.slot < 0 || place.slot >= kernels::num_slots(cache)) {
    return invalid(
        concat("slot is ", place.slot, ", allowed: 0 to ", kernels::num_slots(cache) - 1));
  }
  return {};
}

kernels::RowBox box_of(const KVView& cache, const TokenPlace& place) {
  const std::int32_t block = place.slot / cache.block_size;
  return {.block = block, .head = place.head, .offset = place.slot - block * cache.block_size};
}

}  // namespace

Status gather(const GatherArgs& args) {
  const KVView& cache = args.cache;
  KVFOLIO_RETURN_IF_ERROR(kernels::check_gather(args));
  KVFOLIO_RETURN_IF_ERROR(check_gathered_table(args));
  if (args.count == 0) return {};
  const auto bytes_of = [&](const RowsView& rows, std::int32_t head_dim) {
    if (rows.data == nullptr) return 0.0;
    return static_cast<double>(args.num_layers) * args.count * rows.num_heads * head_dim *
           dtype_bytes(rows.dtype);
  };
  const Stores stores =
      kernels::stores_for(bytes_of(args.k, cache.head_dim_k) + bytes_of(args.v, cache.head_dim_v),
                          kernels::kGatherPastCaches);
  for (std::int32_t i = 0; i < args.num_layers; ++i) {
    const std::int32_t layer = args.first_layer + i;
    if (args.k.data != nullptr) {
      read_rows(args, kernels::k_plane(cache, layer), args.k, i * args.k_layer_stride, stores);
    }
    if (args.v.data != nullptr) {
      read_rows(args, kernels::v_plane(cache, layer), args.v, i * args.v_layer_stride, stores);
    }
  }
  if (stores == Stores::kPastCaches) kernels::stream_fence();
  return {};
}

Status write_token(const KVView& cache, const TokenPlace& place, const ConstRowsView& k,
                   const ConstRowsView& v) {
  KVFOLIO_RETURN_IF_ERROR(check_token(cache, place));
  if (k.data != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("k", k, {1, 1, cache.head_dim_k, cache.dtype}));
  }
  if (v.data != nullptr) {
    if (!kernels::stores_v(cache)) {
      return invalid("v is given, but the cache stores no V of its own");
    }
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("v", v, {1, 1, cache.head_dim_v, cache.dtype}));
  }
  if (k.data != nullptr) {
    RowWriter(kernels::k_plane(cache, place.layer), k.dtype)
        .write(box_of(cache, place), k.data, {});
  }
  if (v.data != nullptr) {
    RowWriter(kernels::v_plane(cache, place.layer), v.dtype)
        .write(box_of(cache, place), v.data, {});
  }
  return {};
}

Status read_token(const KVView& cache, const TokenPlace& place, const RowsView& k,
                  const RowsView& v) {
  KVFOLIO_RETURN_IF_ERROR(check_token(cache, place));
  if (k.data != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("k", k, {1, 1, cache.head_dim_k, cache.dtype}));
  }
  if (v.data != nullptr) {
    if (cache.head_dim_v == 0) return invalid("v is wanted, but the cache has no V");
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("v", v, {1, 1, cache.head_dim_v, cache.dtype}));
  }
  if (k.data != nullptr) {
    RowReader(kernels::k_plane(cache, place.layer), k.dtype).read(box_of(cache, place), k.data, {});
  }
  if (v.data != nullptr) {
    RowReader(kernels::v_plane(cache, place.layer), v.dtype).read(box_of(cache, place), v.data, {});
  }
  return {};
}

}  // namespace kvfolio
