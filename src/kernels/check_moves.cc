// SPDX-License-Identifier: Apache-2.0

// The arguments of append(), gather() and convert_blocks(), which the kernels of a device take too:
// all but what slots and block tables say.

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/invalid.h"
#include "base/row_nest.h"
#include "base/text.h"
#include "kernels/check.h"

namespace kvfolio::kernels {
namespace {

using text::concat;

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
      check_written_rows(name, rows, {args.count, rows.num_heads, head_dim, cache.dtype}));
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
  return {};
}

// What two caches must have in common.
Status check_alike(const KVView& from, const KVView& to) {
  struct Field {
    std::string_view name;
    std::int32_t from;
    std::int32_t to;
  };
  for (const Field& f : {Field{"num_layers", from.num_layers, to.num_layers},
                         Field{"num_kv_heads", from.num_kv_heads, to.num_kv_heads},
                         Field{"head_dim_k", from.head_dim_k, to.head_dim_k},
                         Field{"head_dim_v", from.head_dim_v, to.head_dim_v},
                         Field{"block_size", from.block_size, to.block_size}}) {
    if (f.from != f.to) {
      return invalid(concat("block conversion: ", f.name, " is ", f.from, " and ", f.to,
                            ", allowed: equal ones"));
    }
  }
  if ((from.dtype == DType::kOpaque) != (to.dtype == DType::kOpaque)) {
    return invalid(concat("block conversion: dtype is ", std::string_view(to_string(from.dtype)),
                          " and ", std::string_view(to_string(to.dtype)),
                          ", and opaque bytes are not converted"));
  }
  if (to.v_is_prefix_of_k && !from.v_is_prefix_of_k) {
    return invalid("block conversion: V is a prefix of K in the target, but not in the source");
  }
  for (const std::int32_t dim : {from.head_dim_k, from.head_dim_v}) {
    if (dim > kStageElements) {
      return invalid(concat("block conversion: a row has ", dim, " elements, allowed: at most ",
                            kStageElements));
    }
  }
  return {};
}

Status check_blocks(const KVView& cache, std::string_view name,
                    std::span<const std::int32_t> blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] >= 0 && blocks[i] < cache.num_blocks) continue;
    return invalid(concat("block conversion: ", name, "[", i, "] is ", blocks[i],
                          ", its cache has blocks 0 to ", cache.num_blocks - 1));
  }
  return {};
}

}  // namespace

Status check_append(const KVView& cache, std::int32_t layer, const ConstRowsView& k,
                    const ConstRowsView& v, std::size_t num_slots) {
  KVFOLIO_RETURN_IF_ERROR(check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(check_layer(cache, layer));
  if (num_slots != static_cast<std::size_t>(k.num_tokens)) {
    return invalid(concat(num_slots, " slots for ", k.num_tokens, " tokens of k"));
  }
  KVFOLIO_RETURN_IF_ERROR(
      check_rows("k", k, {k.num_tokens, cache.num_kv_heads, cache.head_dim_k, cache.dtype}));
  if (stores_v(cache)) {
    return check_rows("v", v, {k.num_tokens, cache.num_kv_heads, cache.head_dim_v, cache.dtype});
  }
  if (v.data == nullptr) return {};
  return invalid("v is given, but the cache stores no V of its own");
}

Status check_gather(const GatherArgs& args) {
  const KVView& cache = args.cache;
  KVFOLIO_RETURN_IF_ERROR(check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(check_range(args));
  if (args.k.data != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(check_output("k", args.k, args, cache.head_dim_k, args.k_layer_stride));
  }
  if (args.v.data == nullptr) return {};
  if (cache.head_dim_v == 0) return invalid("v is wanted, but the cache has no V");
  return check_output("v", args.v, args, cache.head_dim_v, args.v_layer_stride);
}

Status check_conversion(const KVView& from, const KVView& to, std::span<const std::int32_t> src,
                        std::span<const std::int32_t> dst) {
  KVFOLIO_RETURN_IF_ERROR(check_view(from));
  KVFOLIO_RETURN_IF_ERROR(check_view(to));
  KVFOLIO_RETURN_IF_ERROR(check_alike(from, to));
  if (src.size() != dst.size()) {
    return invalid(
        concat("block conversion: ", src.size(), " sources, ", dst.size(), " destinations"));
  }
  KVFOLIO_RETURN_IF_ERROR(check_blocks(from, "src", src));
  return check_blocks(to, "dst", dst);
}

Status bad_slot(const KVView& cache, std::size_t index, std::int32_t slot) {
  return invalid(concat("slots[", index, "] is ", slot, ", allowed: -1 (skip) or 0 to ",
                        num_slots(cache) - 1));
}

Status bad_entry(const KVView& cache, std::size_t index, std::int32_t block) {
  return invalid(concat("block_table[", index, "] is ", block, ", the cache has blocks 0 to ",
                        cache.num_blocks - 1));
}

}  // namespace kvfolio::kernels
