// SPDX-License-Identifier: Apache-2.0

// Reads of a cache as rows. gather() copies some positions of a sequence out of their blocks, one
// box of rows for each block; write_token() and read_token() are for one vector of one token. All
// check their arguments before the first byte moves. rows.h does the rest.

#include <algorithm>
#include <string_view>

#include "base/checked.h"
#include "base/row_nest.h"
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

Status invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

// Rows that gather() writes for several layers.
Status check_output(std::string_view name, const RowsView& rows, const GatherArgs& args,
                    std::int32_t head_dim, std::int64_t layer_stride) {
  const KVView& cache = args.cache;
  if (rows.num_heads < 1 || args.first_head < 0 || args.first_head >= cache.num_kv_heads ||
      rows.num_heads > cache.num_kv_heads - args.first_head) {
    return invalid(concat(name, " wants ", rows.num_heads, " heads from head ", args.first_head,
                          " on, the cache has heads 0 to ", cache.num_kv_heads - 1));
  }
  KVFOLIO_RETURN_IF_ERROR(
      kernels::check_written_rows(name, rows, {args.count, rows.num_heads, head_dim}));
  if (args.num_layers == 1 || args.count == 0) return {};
  const std::int64_t element = dtype_bytes(rows.dtype);
  RowNest nest;
  nest.row_bytes = head_dim * element;
  if (args.count > 1) nest.add({args.count, std::abs(rows.token_stride)});
  if (rows.num_heads > 1) nest.add({rows.num_heads, std::abs(rows.head_stride)});
  // Layers run forward: what negative layer strides would buy is not worth their checks.
  if (layer_stride > 0 && layer_stride % element == 0) {
    nest.add({args.num_layers, layer_stride});
    if (nest.nested()) return {};
  }
  return invalid(concat(name, "_layer_stride is ", layer_stride, " for ", args.num_layers,
                        " layers of ", args.count, " tokens, ", rows.num_heads,
                        " heads and head_dim ", head_dim,
                        ": it must be a multiple of the element and step over a layer's rows"));
}

Status check_range(const GatherArgs& args) {
  const KVView& cache = args.cache;
  if (args.first_layer < 0 || args.num_layers < 1 || args.first_layer >= cache.num_layers ||
      args.num_layers > cache.num_layers - args.first_layer) {
    return invalid(concat(args.num_layers, " layers from layer ", args.first_layer,
                          " on, the cache has layers 0 to ", cache.num_layers - 1));
  }
  if (args.length < 0 || args.first < 0 || args.count < 0 || args.first > args.length ||
      args.count > args.length - args.first) {
    return invalid(
        concat(args.count, " positions from ", args.first, " on of a sequence of ", args.length));
  }
  if (args.count == 0) return {};
  const std::int32_t last_block = (args.first + (args.count - 1)) / cache.block_size;
  if (static_cast<std::size_t>(last_block) >= args.block_table.size()) {
    return invalid(concat("position ", args.first + (args.count - 1), " is in block ", last_block,
                          " of a table of ", args.block_table.size()));
  }
  for (std::int32_t i = args.first / cache.block_size; i <= last_block; ++i) {
    const std::int32_t block = args.block_table[static_cast<std::size_t>(i)];
    if (block < 0 || block >= cache.num_blocks) {
      return invalid(concat("block_table[", i, "] is ", block, ", the cache has blocks 0 to ",
                            cache.num_blocks - 1));
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
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(check_range(args));
  if (args.k.data != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(check_output("k", args.k, args, cache.head_dim_k, args.k_layer_stride));
  }
  if (args.v.data != nullptr) {
    if (cache.head_dim_v == 0) return invalid("v is wanted, but the cache has no V");
    KVFOLIO_RETURN_IF_ERROR(check_output("v", args.v, args, cache.head_dim_v, args.v_layer_stride));
  }
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
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("k", k, {1, 1, cache.head_dim_k}));
  }
  if (v.data != nullptr) {
    if (!kernels::stores_v(cache)) {
      return invalid("v is given, but the cache stores no V of its own");
    }
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("v", v, {1, 1, cache.head_dim_v}));
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
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("k", k, {1, 1, cache.head_dim_k}));
  }
  if (v.data != nullptr) {
    if (cache.head_dim_v == 0) return invalid("v is wanted, but the cache has no V");
    KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("v", v, {1, 1, cache.head_dim_v}));
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
