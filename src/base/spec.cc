// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/spec.h"

#include <algorithm>
#include <string_view>

#include "base/checked.h"
#include "base/slots.h"
#include "base/text.h"
#include "kvfolio/view.h"

namespace kvfolio {
namespace {

using text::concat;

Status bad_field(std::size_t group, std::string_view field, std::int64_t value,
                 std::string_view allowed) {
  return {ErrorCode::kInvalidArgument,
          concat("group ", group, ": ", field, " is ", value, ", allowed: ", allowed)};
}

Status check_range(std::size_t group, std::string_view field, std::int64_t value, std::int64_t low,
                   std::int64_t high) {
  if (value >= low && value <= high) return {};
  return bad_field(group, field, value, concat(low, " to ", high));
}

constexpr std::int32_t kMaxDim = 1 << 20;
constexpr std::int32_t kMaxLayers = 1 << 16;
constexpr std::int64_t kScaleBytes = 4;

// What the dot products of format granule can eat.
Status check_granule(std::size_t index, const GroupSpec& group) {
  if (!fits_granule(group.dtype)) {
    return {ErrorCode::kInvalidArgument,
            concat("group ", index, ": dtype is ", std::string_view(to_string(group.dtype)),
                   ", allowed in format granule: f32, f16, bf16, int8")};
  }
  struct Multiple {
    std::string_view field;
    std::int32_t value;
    std::int32_t of;
  };
  for (const Multiple& m :
       {Multiple{"block_size", group.block_size, kGranuleTokens},
        Multiple{"head_dim_k", group.head_dim_k, 8}, Multiple{"head_dim_v", group.head_dim_v, 8}}) {
    if (m.value % m.of != 0) {
      return bad_field(index, m.field, m.value,
                       concat("multiples of ", m.of, " in format granule"));
    }
  }
  if (group.v_is_prefix_of_k) {
    return {ErrorCode::kInvalidArgument,
            concat("group ", index,
                   ": V is a prefix of K, which format granule does not have; "
                   "allowed: hnd, nhd")};
  }
  return {};
}

Status check_group(std::size_t index, const GroupSpec& group) {
  KVFOLIO_RETURN_IF_ERROR(check_range(index, "num_layers", group.num_layers, 1, kMaxLayers));
  KVFOLIO_RETURN_IF_ERROR(check_range(index, "num_kv_heads", group.num_kv_heads, 1, kMaxDim));
  KVFOLIO_RETURN_IF_ERROR(check_range(index, "head_dim_k", group.head_dim_k, 1, kMaxDim));
  KVFOLIO_RETURN_IF_ERROR(check_range(index, "head_dim_v", group.head_dim_v, 0, kMaxDim));
  KVFOLIO_RETURN_IF_ERROR(check_range(index, "block_size", group.block_size, 1, kMaxBlockSize));
  KVFOLIO_RETURN_IF_ERROR(check_range(index, "num_blocks", group.num_blocks, 1, kMaxSlots));
  if (dtype_bytes(group.dtype) == 0) {
    return bad_field(index, "dtype", static_cast<std::int64_t>(group.dtype),
                     "f64, f32, f16, bf16, int8, e4m3, opaque");
  }
  switch (group.format) {
    case Format::kHnd:
    case Format::kNhd:
      break;
    case Format::kGranule:
      KVFOLIO_RETURN_IF_ERROR(check_granule(index, group));
      break;
    default:
      return bad_field(index, "format", static_cast<std::int64_t>(group.format),
                       "HND, NHD, granule");
  }
  if (group.v_is_prefix_of_k) {
    KVFOLIO_RETURN_IF_ERROR(
        check_range(index, "head_dim_v (a prefix of K)", group.head_dim_v, 1, group.head_dim_k));
  }
  switch (group.kind) {
    case AttentionKind::kFull:
      if (group.window != 0) return bad_field(index, "window", group.window, "0 in a full group");
      if (group.num_sinks != 0) {
        return bad_field(index, "num_sinks", group.num_sinks, "0 in a full group");
      }
      if (group.rewind != 0) return bad_field(index, "rewind", group.rewind, "0 in a full group");
      break;
    case AttentionKind::kSlidingWindow:
      KVFOLIO_RETURN_IF_ERROR(check_range(index, "window", group.window, 1, kMaxSequenceTokens));
      KVFOLIO_RETURN_IF_ERROR(
          check_range(index, "num_sinks", group.num_sinks, 0, kMaxSequenceTokens));
      KVFOLIO_RETURN_IF_ERROR(check_range(index, "rewind", group.rewind, 0, kMaxSequenceTokens));
      break;
    case AttentionKind::kChunked:
      return {ErrorCode::kUnsupported,
              concat("group ", index,
                     ": kind is chunked, which only AttentionParams takes yet; a full group holds "
                     "what its queries read")};
    default:
      return bad_field(index, "kind", static_cast<std::int64_t>(group.kind),
                       "full, sliding window");
  }
  if (std::int64_t{group.num_blocks} * group.block_size > kMaxSlots) {
    return {ErrorCode::kInvalidArgument,
            concat("group ", index, ": num_blocks ", group.num_blocks, " x block_size ",
                   group.block_size, " = ", std::int64_t{group.num_blocks} * group.block_size,
                   " slots, allowed: at most ", kMaxSlots, " (slots are int32)")};
  }
  return {};
}

Result<GroupLayout> layout_of(std::size_t index, const GroupSpec& group) {
  const std::int64_t element = dtype_bytes(group.dtype);
  const std::int64_t heads = group.num_kv_heads;
  const std::int64_t own_v = group.v_is_prefix_of_k ? 0 : group.head_dim_v;
  const bool scaled = has_scales(group.dtype);
  const std::int64_t k_scale = scaled ? kScaleBytes : 0;  // of a row
  const std::int64_t v_scale = own_v > 0 ? k_scale : 0;
  const Checked k_row = Checked(group.head_dim_k) * element;
  const Checked v_row = Checked(own_v) * element;
  const Checked row_pair = k_row + v_row;
  // K, V and scales lie together for each head, or for all heads of a block.
  const std::int64_t together =
      group.format == Format::kNhd ? group.block_size * heads : group.block_size;
  const Checked rows = (row_pair * together).round_up(scaled ? kScaleBytes : 1);
  const Checked unit = rows + Checked(together) * (k_scale + v_scale);
  const Checked per_layer = (group.format == Format::kNhd ? unit : unit * heads).round_up(64);
  const Checked layer_stride = per_layer * group.num_blocks;
  const Checked total = layer_stride * group.num_layers;
  if (!total.ok()) {
    return Status(
        ErrorCode::kInvalidArgument,
        concat("group ", index, ": ", group.num_layers, " layers x ", group.num_blocks,
               " blocks x ", group.block_size, " tokens x ", group.num_kv_heads, " heads x (",
               group.head_dim_k, " + ", own_v, ") x ", element, " bytes overflows 63 bits"));
  }
  GroupLayout layout;
  layout.block_stride = per_layer.value();
  layout.layer_stride = layer_stride.value();
  layout.v_offset = k_row.value() * together;
  if (group.format == Format::kNhd) {
    layout.k_head_stride = k_row.value();
    layout.v_head_stride = v_row.value();
    layout.k_token_stride = k_row.value() * heads;
    layout.v_token_stride = v_row.value() * heads;
  } else {
    const std::int64_t step = group.format == Format::kGranule ? kGranuleTokens : 1;
    layout.k_token_stride = k_row.value() * step;
    layout.v_token_stride = v_row.value() * step;
    layout.k_head_stride = unit.value();
    layout.v_head_stride = unit.value();
  }
  if (scaled) {
    layout.k_scale_offset = rows.value();
    if (own_v > 0) layout.v_scale_offset = rows.value() + k_scale * together;
    layout.scale_head_stride = group.format == Format::kNhd ? kScaleBytes : unit.value();
    layout.scale_token_stride = group.format == Format::kNhd ? kScaleBytes * heads : kScaleBytes;
  }
  if (group.v_is_prefix_of_k) {
    layout.v_offset = 0;
    layout.v_head_stride = layout.k_head_stride;
    layout.v_token_stride = layout.k_token_stride;
    layout.v_scale_offset = layout.k_scale_offset;
  }
  layout.payload_bytes_per_token =
      (row_pair.value() + k_scale + v_scale) * heads * group.num_layers;
  layout.bytes_per_block = per_layer.value() * group.num_layers;
  layout.total_bytes = total.value();
  return layout;
}

}  // namespace

Status validate(const CacheSpec& spec) {
  if (spec.groups.empty() || spec.groups.size() > static_cast<std::size_t>(kMaxGroups)) {
    return {ErrorCode::kInvalidArgument,
            concat("the spec has ", spec.groups.size(), " groups, allowed: 1 to ", kMaxGroups)};
  }
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    KVFOLIO_RETURN_IF_ERROR(check_group(i, spec.groups[i]));
  }
  const std::int32_t unit = unit_of(spec);
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    if (spec.groups[i].block_size % unit != 0) {
      return bad_field(i, "block_size", spec.groups[i].block_size,
                       concat("multiples of the smallest block size of the spec, ", unit));
    }
  }
  return {};
}

Result<std::vector<GroupLayout>> plan_layouts(const CacheSpec& spec) {
  KVFOLIO_RETURN_IF_ERROR(validate(spec));
  std::vector<GroupLayout> layouts;
  Checked all(0);
  for (std::size_t i = 0; i < spec.groups.size(); ++i) {
    Result<GroupLayout> layout = layout_of(i, spec.groups[i]);
    if (!layout) return std::move(layout).error();
    all = all + layout->total_bytes;
    layouts.push_back(*layout);
  }
  if (!all.ok()) {
    return Status(ErrorCode::kInvalidArgument, "the bytes of all groups together overflow 63 bits");
  }
  return layouts;
}

std::int32_t unit_of(const CacheSpec& spec) noexcept {
  std::int32_t unit = spec.groups.front().block_size;
  for (const GroupSpec& group : spec.groups) unit = std::min(unit, group.block_size);
  return unit;
}

const char* to_string(AttentionKind kind) noexcept {
  switch (kind) {
    case AttentionKind::kFull:
      return "full";
    case AttentionKind::kSlidingWindow:
      return "sliding window";
    case AttentionKind::kChunked:
      return "chunked";
  }
  return "invalid";
}

const char* to_string(Format format) noexcept {
  switch (format) {
    case Format::kHnd:
      return "hnd";
    case Format::kNhd:
      return "nhd";
    case Format::kGranule:
      return "granule";
  }
  return "invalid";
}

KVView make_view(const GroupSpec& spec, const GroupLayout& layout, std::byte* base) noexcept {
  KVView view;
  view.k = base;
  view.v = spec.head_dim_v == 0 ? nullptr : base + layout.v_offset;
  view.k_strides = {layout.layer_stride, layout.block_stride, layout.k_head_stride,
                    layout.k_token_stride};
  view.v_strides = {layout.layer_stride, layout.block_stride, layout.v_head_stride,
                    layout.v_token_stride};
  view.num_layers = spec.num_layers;
  view.num_blocks = spec.num_blocks;
  view.block_size = spec.block_size;
  view.num_kv_heads = spec.num_kv_heads;
  view.head_dim_k = spec.head_dim_k;
  view.head_dim_v = spec.head_dim_v;
  view.dtype = spec.dtype;
  view.v_is_prefix_of_k = spec.v_is_prefix_of_k;
  view.granule = spec.format == Format::kGranule;
  if (!has_scales(spec.dtype)) return view;
  const KVStrides scales{layout.layer_stride, layout.block_stride, layout.scale_head_stride,
                         layout.scale_token_stride};
  view.k_scale = base + layout.k_scale_offset;
  view.k_scale_strides = scales;
  if (spec.head_dim_v == 0) return view;
  view.v_scale = base + layout.v_scale_offset;
  view.v_scale_strides = scales;
  return view;
}

std::string to_string(const GroupSpec& group) {
  const auto& [num_layers, num_kv_heads, head_dim_k, head_dim_v, v_is_prefix_of_k, block_size,
               dtype, format, kind, window, num_sinks, num_blocks, rewind] = group;
  return text::Fields()
      .add("num_layers", num_layers)
      .add("num_kv_heads", num_kv_heads)
      .add("head_dim_k", head_dim_k)
      .add("head_dim_v", head_dim_v)
      .add("v_is_prefix_of_k", v_is_prefix_of_k)
      .add("block_size", block_size)
      .add("dtype", std::string_view(to_string(dtype)))
      .add("format", std::string_view(to_string(format)))
      .add("kind", std::string_view(to_string(kind)))
      .add("window", window)
      .add("num_sinks", num_sinks)
      .add("num_blocks", num_blocks)
      .add("rewind", rewind)
      .take();
}

std::string to_string(const CacheSpec& spec) {
  std::string out;
  for (std::size_t g = 0; g < spec.groups.size(); ++g) {
    out += concat(g == 0 ? "group " : "; group ", g, ": ", to_string(spec.groups[g]));
  }
  return out;
}

}  // namespace kvfolio
