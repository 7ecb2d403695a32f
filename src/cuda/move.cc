// SPDX-License-Identifier: Apache-2.0

// From the arguments of a call to those of a kernel. The checks are the CPU's (kernels/check.h),
// made on the view as if it lay in host memory; then what the kernels here do not take is refused.
// A kernel reads and writes whole vectors if every address that it may form is a multiple of them,
// which gcds of pointers and strides tell; else it goes element by element.
//
// Work is cut into launches of at most kMaxItems threads' work, since kernels count in 32 bits, and
// every address is formed in 64.

#include "cuda/move.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/text.h"
#include "cuda/element_of.h"
#include "cuda/part_args.h"
#include "kernels/check.h"
#include "kvfolio/export.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kUnit = 8;   // elements
constexpr std::uint32_t kBatch = 2;  // units of a thread
constexpr std::int32_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxItems = std::int64_t{1} << 30;
constexpr std::uint32_t kShortUnits = 2;  // of a lane
constexpr std::uint32_t kLongUnits = 4;

std::uint32_t grid_for(std::int64_t items, std::int64_t per_block) {
  return static_cast<std::uint32_t>((items + per_block - 1) / per_block);
}

std::int64_t address(const void* pointer) {
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(pointer));
}

// What all addresses base + i * stride + ... are multiples of.
class Alignment {
 public:
  void add(std::int64_t value) { gcd_ = std::gcd(gcd_, value); }
  void add(std::int32_t extent, std::int64_t stride) {
    if (extent > 1) add(stride);
  }
  [[nodiscard]] bool is_multiple_of(std::int64_t bytes) const { return gcd_ % bytes == 0; }

 private:
  std::int64_t gcd_ = 0;  // 0: of everything
};

std::int64_t vector_bytes(Element element) {
  return std::min<std::int64_t>(16, std::int64_t{kUnit} * element_bytes(element));
}

Status unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }

// The view as the checks of the CPU take it.
KVView on_host(const DeviceCache& cache) {
  KVView view = cache.view;
  view.memory_kind = MemoryKind::kHost;
  return view;
}

Status check_memory(const DeviceCache& cache) {
  if (cache.view.memory_kind == MemoryKind::kDevice) return {};
  return unsupported(concat("the cache is in ", std::string_view(to_string(cache.view.memory_kind)),
                            " memory (cache.memory_kind is ",
                            static_cast<std::int32_t>(cache.view.memory_kind),
                            "), which kernels of a device do not touch; allowed: device (1)"));
}

// What the kernels of a device leave to the CPU. Requires: check_view(on_host(cache)).ok().
Status check_taken(const DeviceCache& cache) {
  const KVView& view = cache.view;
  if (view.dtype == DType::kF64 || view.dtype == DType::kOpaque) {
    return unsupported(concat("the cache is ", std::string_view(to_string(view.dtype)),
                              ", allowed on a device: f32, f16, bf16, int8, e4m3"));
  }
  if (view.granule) return unsupported("the cache has format granule, allowed on a device: rows");
  for (const std::int32_t dim : {view.head_dim_k, view.head_dim_v}) {
    if (dim % std::int32_t{kUnit} == 0 && dim <= kMaxHeadDim) continue;
    return unsupported(concat("the cache has head_dim ", dim,
                              ", allowed on a device: multiples of 8 up to ", kMaxHeadDim));
  }
  if (view.num_layers > 65535) {
    return unsupported(
        concat("the cache has ", view.num_layers, " layers, allowed on a device: at most 65535"));
  }
  return {};
}

Status check_rows_taken(std::string_view name, DType dtype) {
  if (dtype != DType::kF64) return {};
  return unsupported(concat(name, " is f64, allowed on a device: f32, f16, bf16"));
}

struct Plane {
  PlaneArgs args;
  Alignment alignment;
};

// All layers of K or V.
Plane plane_of(const KVView& view, bool is_v) {
  const KVStrides& strides = is_v ? view.v_strides : view.k_strides;
  const KVStrides& scales = is_v ? view.v_scale_strides : view.k_scale_strides;
  std::byte* const data = is_v ? view.v : view.k;
  std::byte* const scale = is_v ? view.v_scale : view.k_scale;
  Plane plane;
  plane.args = {
      .data = reinterpret_cast<char*>(data),
      .layer = strides.layer,
      .block = strides.block,
      .head = strides.head,
      .token = strides.token,
      .scales = reinterpret_cast<char*>(scale),
      .scale_layer = scales.layer,
      .scale_block = scales.block,
      .scale_head = scales.head,
      .scale_token = scales.token,
      .units = static_cast<std::uint32_t>(is_v ? view.head_dim_v : view.head_dim_k) / kUnit};
  plane.alignment.add(address(data));
  plane.alignment.add(view.num_layers, strides.layer);
  plane.alignment.add(view.num_blocks, strides.block);
  plane.alignment.add(view.num_kv_heads, strides.head);
  plane.alignment.add(view.block_size, strides.token);
  return plane;
}

void to_layer(PlaneArgs& plane, std::int64_t layer) {
  plane.data += layer * plane.layer;
  if (plane.scales != nullptr) plane.scales += layer * plane.scale_layer;
}
void to_head(PlaneArgs& plane, std::int64_t head) {
  plane.data += head * plane.head;
  if (plane.scales != nullptr) plane.scales += head * plane.scale_head;
}

struct Rows {
  RowsArgs args;
  Alignment alignment;
};

Rows rows_of(const ConstRowsView& view) {
  Rows rows;
  rows.args = {.data = const_cast<char*>(reinterpret_cast<const char*>(view.data)),
               .layer = 0,
               .token = view.token_stride,
               .head = view.head_stride};
  rows.alignment.add(address(view.data));
  rows.alignment.add(view.num_tokens, view.token_stride);
  rows.alignment.add(view.num_heads, view.head_stride);
  return rows;
}

// Threads that hold a row of `units`: a power of 2, at most a warp.
std::uint32_t lanes_for(std::uint32_t units, std::uint32_t units_of_lane) {
  return std::bit_ceil((units + units_of_lane - 1) / units_of_lane);
}

// Calls launch(first token, tokens) for pieces of a call of few enough items each.
template <typename Launch>
Status in_pieces(const Queue& queue, std::int64_t tokens, std::int64_t items_of_token,
                 Launch&& launch) {
  const std::int64_t most_items = queue.most_items();
  if (items_of_token > most_items) {
    return unsupported(concat("a token has ", items_of_token,
                              " units of 8 elements, allowed on a device: at most ", most_items));
  }
  const std::int64_t most = most_items / items_of_token;
  for (std::int64_t first = 0; first < tokens; first += most) {
    KVFOLIO_RETURN_IF_ERROR(launch(first, std::min(most, tokens - first)));
  }
  return {};
}

// K and V of a gather that have the same number of heads, or one of them.
Status gather_heads(const DeviceCache& cache, const kvfolio::GatherArgs& args, const RowsView& k,
                    const RowsView& v, Queue& queue, Fault fault) {
  GatherArgs to;
  const RowsView& any = k.data != nullptr ? k : v;
  MoveKernel kernel{MoveFamily::kGather, element_of(cache.view.dtype), element_of(any.dtype), true,
                    false};
  const auto add = [&](const RowsView& rows, bool is_v, std::int64_t layer_stride,
                       PlaneArgs& plane_args, RowsArgs& rows_args) {
    if (rows.data == nullptr) return;
    Plane plane = plane_of(cache.view, is_v);
    Rows out = rows_of(rows);
    if (args.num_layers > 1) {
      out.args.layer = layer_stride;
      out.alignment.add(layer_stride);
    }
    to_layer(plane.args, args.first_layer);
    to_head(plane.args, args.first_head);
    kernel.wide = kernel.wide && plane.alignment.is_multiple_of(vector_bytes(kernel.from)) &&
                  out.alignment.is_multiple_of(vector_bytes(kernel.to));
    plane_args = plane.args;
    rows_args = out.args;
  };
  add(k, false, args.k_layer_stride, to.k, to.k_rows);
  add(v, true, args.v_layer_stride, to.v, to.v_rows);
  to.table = args.block_table.data();
  to.fault = fault;
  to.first = static_cast<std::uint32_t>(args.first);
  to.num_blocks = cache.view.num_blocks;
  to.per_row = Divider(std::max(to.k.units, to.v.units));
  to.heads = Divider(static_cast<std::uint32_t>(any.num_heads));
  to.block_size = Divider(static_cast<std::uint32_t>(cache.view.block_size));
  const std::int64_t of_token = std::int64_t{any.num_heads} * to.per_row.divisor;
  return in_pieces(queue, args.count, of_token, [&](std::int64_t first, std::int64_t count) {
    to.first_token = static_cast<std::uint32_t>(first);
    to.num_rows = static_cast<std::uint32_t>(count * any.num_heads);
    const Grid grid{grid_for(count * of_token, kThreads * kBatch),
                    static_cast<std::uint32_t>(args.num_layers), 1};
    return queue.launch(kernel, grid, &to, sizeof to);
  });
}

}  // namespace

KVFOLIO_API Status slot_fault(const KVView& cache, unsigned long long fault) {
  if (fault == kNoFault) return {};
  return kernels::bad_slot(cache, static_cast<std::size_t>(fault >> 32),
                           static_cast<std::int32_t>(fault & 0xffffffffu));
}

KVFOLIO_API Status table_fault(const KVView& cache, unsigned long long fault) {
  if (fault == kNoFault) return {};
  return kernels::bad_entry(cache, static_cast<std::size_t>(fault >> 32),
                            static_cast<std::int32_t>(fault & 0xffffffffu));
}

namespace {

// K and V of one type of rows, or one of them.
Status append_rows(const DeviceCache& cache, std::int32_t layer, const ConstRowsView& k,
                   const ConstRowsView& v, const std::int32_t* slots, Queue& queue, Fault fault) {
  const KVView& view = cache.view;
  const ConstRowsView& any = k.data != nullptr ? k : v;
  MoveKernel kernel{MoveFamily::kAppendPlain, element_of(any.dtype), element_of(cache.view.dtype),
                    true, false};
  AppendArgs args;
  const auto add = [&](const ConstRowsView& rows, bool is_v, PlaneArgs& plane_args,
                       RowsArgs& rows_args) {
    if (rows.data == nullptr) return;
    Plane plane = plane_of(view, is_v);
    const Rows from = rows_of(rows);
    to_layer(plane.args, layer);
    kernel.wide = kernel.wide && plane.alignment.is_multiple_of(vector_bytes(kernel.to)) &&
                  from.alignment.is_multiple_of(vector_bytes(kernel.from));
    plane_args = plane.args;
    rows_args = from.args;
  };
  add(k, false, args.k, args.k_rows);
  add(v, true, args.v, args.v_rows);
  args.slots = slots;
  args.fault = fault;
  args.num_slots = kernels::num_slots(view);
  args.per_row = Divider(std::max(args.k.units, args.v.units));
  args.heads = Divider(static_cast<std::uint32_t>(view.num_kv_heads));
  args.block_size = Divider(static_cast<std::uint32_t>(view.block_size));
  std::uint32_t of_row = args.per_row.divisor, of_thread = kBatch;
  if (has_scales(kernel.to)) {
    kernel.family = MoveFamily::kAppendQuantized;
    kernel.long_rows = !kernel.wide || of_row > kShortUnits * 32;
    args.lanes = lanes_for(of_row, kernel.long_rows ? kLongUnits : kShortUnits);
    of_row = args.lanes;
    of_thread = 1;
  }
  const std::int64_t of_token = std::int64_t{view.num_kv_heads} * of_row;
  return in_pieces(queue, any.num_tokens, of_token, [&](std::int64_t first, std::int64_t count) {
    args.first_token = static_cast<std::uint32_t>(first);
    args.num_rows = static_cast<std::uint32_t>(count * view.num_kv_heads);
    return queue.launch(kernel, {grid_for(count * of_token, kThreads * of_thread), 1, 1}, &args,
                        sizeof args);
  });
}

}  // namespace

Status append(const DeviceCache& cache, std::int32_t layer, const ConstRowsView& k,
              const ConstRowsView& v, const std::int32_t* slots, std::size_t num_slots,
              Queue& queue, Fault fault) {
  KVFOLIO_RETURN_IF_ERROR(check_memory(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_append(on_host(cache), layer, k, v, num_slots));
  KVFOLIO_RETURN_IF_ERROR(check_taken(cache));
  const bool writes_v = kernels::stores_v(cache.view);
  KVFOLIO_RETURN_IF_ERROR(check_rows_taken("k", k.dtype));
  if (writes_v) KVFOLIO_RETURN_IF_ERROR(check_rows_taken("v", v.dtype));
  if (num_slots == 0) return {};
  if (slots == nullptr) return {ErrorCode::kInvalidArgument, "slots is null"};
  if (!writes_v || v.dtype == k.dtype) {
    return append_rows(cache, layer, k, v, slots, queue, fault);
  }
  KVFOLIO_RETURN_IF_ERROR(append_rows(cache, layer, k, {}, slots, queue, fault));
  return append_rows(cache, layer, {}, v, slots, queue, fault);
}

Status gather(const DeviceCache& cache, const kvfolio::GatherArgs& args, Queue& queue,
              Fault fault) {
  KVFOLIO_RETURN_IF_ERROR(check_memory(cache));
  kvfolio::GatherArgs checked = args;
  checked.cache = on_host(cache);
  KVFOLIO_RETURN_IF_ERROR(kernels::check_gather(checked));
  KVFOLIO_RETURN_IF_ERROR(check_taken(cache));
  if (args.k.data != nullptr) KVFOLIO_RETURN_IF_ERROR(check_rows_taken("k", args.k.dtype));
  if (args.v.data != nullptr) KVFOLIO_RETURN_IF_ERROR(check_rows_taken("v", args.v.dtype));
  if (args.count == 0 || (args.k.data == nullptr && args.v.data == nullptr)) return {};
  if (args.block_table.data() == nullptr) {
    return {ErrorCode::kInvalidArgument, "block_table is null"};
  }
  const bool together = args.k.data == nullptr || args.v.data == nullptr ||
                        (args.k.num_heads == args.v.num_heads && args.k.dtype == args.v.dtype);
  if (together) return gather_heads(cache, args, args.k, args.v, queue, fault);
  KVFOLIO_RETURN_IF_ERROR(gather_heads(cache, args, args.k, {}, queue, fault));
  return gather_heads(cache, args, {}, args.v, queue, fault);
}

namespace {

// Cuts pairs, in their order, into waves of pairs that may run at once: `conflict` says whether a
// pair touches what an earlier one of its wave does.
template <typename Launch>
Status in_waves(std::span<const std::int32_t> src, std::span<const std::int32_t> dst, bool one_pool,
                Pair* pairs, Launch&& launch) {
  std::uint32_t count = 0;
  const auto depends = [&](const Pair& next) {
    for (std::uint32_t i = 0; i < count; ++i) {
      if (pairs[i].dst == next.dst) return true;
      if (one_pool && (pairs[i].dst == next.src || pairs[i].src == next.dst)) return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < src.size(); ++i) {
    const Pair next{src[i], dst[i]};
    if (one_pool && next.src == next.dst) continue;
    if (count == kMaxPairs || depends(next)) {
      KVFOLIO_RETURN_IF_ERROR(launch(count));
      count = 0;
    }
    pairs[count++] = next;
  }
  if (count == 0) return {};
  return launch(count);
}

BlocksArgs blocks_of(const DeviceCache& cache, const Images* images, MoveKernel& kernel) {
  BlocksArgs args;
  const PartsOfBlock parts = parts_of_block(cache.view, images);
  args.num_parts = static_cast<std::uint32_t>(parts.num_parts);
  kernel.wide = true;
  for (std::uint32_t p = 0; p < args.num_parts; ++p) {
    args.parts[p] = parts.parts[p];
    args.units += args.parts[p].units;
    kernel.wide = kernel.wide && args.parts[p].width == 16;
  }
  if (images == nullptr) return args;
  args.image_layer = parts.image_layer_bytes;
  args.image_block = parts.image_layer_bytes * cache.view.num_layers;
  return args;
}

Grid grid_of(const BlocksArgs& args, const KVView& view, std::uint32_t pairs) {
  return {grid_for(args.units, kThreads * 4), static_cast<std::uint32_t>(view.num_layers), pairs};
}

Status check_cache(const DeviceCache& cache) {
  KVFOLIO_RETURN_IF_ERROR(check_memory(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(on_host(cache)));
  KVFOLIO_RETURN_IF_ERROR(check_taken(cache));
  const double units = static_cast<double>(cache.view.block_size) * cache.view.num_kv_heads *
                       (cache.view.head_dim_k + cache.view.head_dim_v + 8.0);
  if (units <= static_cast<double>(kMaxItems)) return {};
  return unsupported("a block of one layer has more than 2^30 elements, too many for a device");
}

}  // namespace

Status copy_blocks(const DeviceCache& cache, std::span<const std::int32_t> src,
                   std::span<const std::int32_t> dst, Queue& queue) {
  KVFOLIO_RETURN_IF_ERROR(check_cache(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_copies(cache.view, src, dst));
  MoveKernel kernel{MoveFamily::kCopyBlocks};
  BlocksArgs args = blocks_of(cache, nullptr, kernel);
  return in_waves(src, dst, true, args.pairs, [&](std::uint32_t count) {
    return queue.launch(kernel, grid_of(args, cache.view, count), &args, sizeof args);
  });
}

Status convert_blocks(const DeviceCache& from, const DeviceCache& to,
                      std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                      Queue& queue) {
  KVFOLIO_RETURN_IF_ERROR(check_memory(from));
  KVFOLIO_RETURN_IF_ERROR(check_memory(to));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_conversion(on_host(from), on_host(to), src, dst));
  KVFOLIO_RETURN_IF_ERROR(check_cache(from));
  KVFOLIO_RETURN_IF_ERROR(check_cache(to));
  MoveKernel kernel{MoveFamily::kConvert, element_of(from.view.dtype), element_of(to.view.dtype),
                    true, false};
  ConvertArgs args;
  const auto add = [&](bool is_v, PlaneArgs& from_args, PlaneArgs& to_args) {
    const Plane source = plane_of(from.view, is_v), target = plane_of(to.view, is_v);
    kernel.wide = kernel.wide && source.alignment.is_multiple_of(vector_bytes(kernel.from)) &&
                  target.alignment.is_multiple_of(vector_bytes(kernel.to));
    from_args = source.args;
    to_args = target.args;
  };
  add(false, args.k_from, args.k_to);
  if (kernels::stores_v(to.view)) add(true, args.v_from, args.v_to);
  args.num_rows = static_cast<std::uint32_t>(to.view.block_size * to.view.num_kv_heads);
  args.per_row = Divider(std::max(args.k_to.units, args.v_to.units));
  args.heads = Divider(static_cast<std::uint32_t>(to.view.num_kv_heads));
  std::uint32_t of_row = args.per_row.divisor;
  if (has_scales(kernel.to) && kernel.from != kernel.to) {
    of_row = args.lanes = lanes_for(of_row, kLongUnits);
  }
  const Grid grid{grid_for(std::int64_t{args.num_rows} * of_row, kThreads),
                  static_cast<std::uint32_t>(to.view.num_layers), 1};
  return in_waves(src, dst, false, args.pairs, [&](std::uint32_t count) {
    return queue.launch(kernel, {grid.x, grid.y, count}, &args, sizeof args);
  });
}

Status fill(const DeviceCache& cache, std::byte value, Queue& queue) {
  KVFOLIO_RETURN_IF_ERROR(check_cache(cache));
  MoveKernel kernel{MoveFamily::kFillBlocks};
  BlocksArgs args = blocks_of(cache, nullptr, kernel);
  args.value = std::to_integer<std::uint32_t>(value) * 0x01010101u;
  constexpr std::int32_t kMost = 65535;  // of a grid's third axis
  for (std::int32_t first = 0; first < cache.view.num_blocks; first += kMost) {
    const std::int32_t count = std::min(kMost, cache.view.num_blocks - first);
    args.first_block = static_cast<std::uint32_t>(first);
    KVFOLIO_RETURN_IF_ERROR(queue.launch(
        kernel, grid_of(args, cache.view, static_cast<std::uint32_t>(count)), &args, sizeof args));
    if (count < kMost) break;
  }
  return {};
}

std::int64_t image_bytes(const DeviceCache& cache) noexcept {
  return parts_of_block(cache.view, nullptr).image_layer_bytes * cache.view.num_layers;
}

namespace {

Status move_images(MoveFamily family, std::string_view what, const DeviceCache& cache,
                   Format format, std::span<const std::int32_t> blocks, const std::byte* images,
                   Queue& queue) {
  KVFOLIO_RETURN_IF_ERROR(check_cache(cache));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i] >= 0 && blocks[i] < cache.view.num_blocks) continue;
    return {ErrorCode::kInvalidArgument,
            concat(what, " of block ", blocks[i], ": blocks are 0 to ", cache.view.num_blocks - 1)};
  }
  if (blocks.empty()) return {};
  if (images == nullptr) return {ErrorCode::kInvalidArgument, concat(what, ": images is null")};
  MoveKernel kernel{family};
  const Images where{format, images};
  BlocksArgs args = blocks_of(cache, &where, kernel);
  for (std::size_t first = 0; first < blocks.size(); first += kMaxPairs) {
    const std::size_t count = std::min<std::size_t>(kMaxPairs, blocks.size() - first);
    args.images = const_cast<char*>(reinterpret_cast<const char*>(images)) +
                  static_cast<std::int64_t>(first) * args.image_block;
    for (std::size_t i = 0; i < count; ++i) {
      args.pairs[i] = {blocks[first + i], static_cast<std::int32_t>(i)};
    }
    KVFOLIO_RETURN_IF_ERROR(queue.launch(
        kernel, grid_of(args, cache.view, static_cast<std::uint32_t>(count)), &args, sizeof args));
  }
  return {};
}

}  // namespace

Status pack_blocks(const DeviceCache& cache, Format format, std::span<const std::int32_t> blocks,
                   std::byte* images, Queue& queue) {
  return move_images(MoveFamily::kPackBlocks, "pack_blocks", cache, format, blocks, images, queue);
}

Status unpack_blocks(const DeviceCache& cache, Format format, std::span<const std::int32_t> blocks,
                     const std::byte* images, Queue& queue) {
  return move_images(MoveFamily::kUnpackBlocks, "unpack_blocks", cache, format, blocks, images,
                     queue);
}

}  // namespace kvfolio::cuda
