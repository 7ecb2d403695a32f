// SPDX-License-Identifier: Apache-2.0
//
// Groups, their layouts, element types and targets.

#include "capi/capi.h"

namespace kvfolio::capi {

Status read_target(std::string_view call, std::int32_t value, KernelTarget& out) {
  if (value < KVFOLIO_TARGET_AUTO || value > KVFOLIO_TARGET_NEON) {
    return {ErrorCode::kInvalidArgument, concat(call, ": target is ", value, ", allowed: 0 to ",
                                                static_cast<int>(KVFOLIO_TARGET_NEON))};
  }
  out = static_cast<KernelTarget>(value - 1);
  return {};
}

namespace {

kvfolio_group_layout layout_of(const GroupLayout& layout) noexcept {
  return {.struct_size = 0,
          .reserved = 0,
          .block_stride = layout.block_stride,
          .layer_stride = layout.layer_stride,
          .k_head_stride = layout.k_head_stride,
          .k_token_stride = layout.k_token_stride,
          .v_offset = layout.v_offset,
          .v_head_stride = layout.v_head_stride,
          .v_token_stride = layout.v_token_stride,
          .k_scale_offset = layout.k_scale_offset,
          .v_scale_offset = layout.v_scale_offset,
          .scale_head_stride = layout.scale_head_stride,
          .scale_token_stride = layout.scale_token_stride,
          .payload_bytes_per_token = layout.payload_bytes_per_token,
          .bytes_per_block = layout.bytes_per_block,
          .total_bytes = layout.total_bytes};
}

}  // namespace

kvfolio_group_spec group_of(const GroupSpec& group) noexcept {
  return {.struct_size = 0,
          .num_layers = group.num_layers,
          .num_kv_heads = group.num_kv_heads,
          .head_dim_k = group.head_dim_k,
          .head_dim_v = group.head_dim_v,
          .v_is_prefix_of_k = group.v_is_prefix_of_k ? 1 : 0,
          .block_size = group.block_size,
          .dtype = dtype_of(group.dtype),
          .format = static_cast<std::int32_t>(group.format),
          .kind = static_cast<std::int32_t>(group.kind),
          .window = group.window,
          .num_sinks = group.num_sinks,
          .num_blocks = group.num_blocks,
          .rewind = group.rewind};
}

}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_plan_layouts(const kvfolio_group_spec* groups, int32_t num_groups,
                             kvfolio_group_layout* out, kvfolio_error* error) {
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, groups, num_groups, spec));
  KVFOLIO_C_RETURN_IF_ERROR(check_elements(__func__, "out", out, num_groups));
  const Result<std::vector<GroupLayout>> layouts = plan_layouts(spec);
  if (!layouts) return answer(error, layouts.error());
  for (std::size_t g = 0; g < layouts->size(); ++g) {
    write_struct(element(out, static_cast<std::int64_t>(g)), layout_of((*layouts)[g]));
  }
  return KVFOLIO_OK;
}

int32_t kvfolio_fit(kvfolio_group_spec* groups, int32_t num_groups, int64_t bytes,
                    kvfolio_error* error) {
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, groups, num_groups, spec));
  constexpr std::size_t kNumBlocksEnd =
      offsetof(kvfolio_group_spec, num_blocks) + sizeof(kvfolio_group_spec::num_blocks);
  const Result<CacheSpec> fitted = fit(spec, bytes);
  if (!fitted) return answer(error, fitted.error());
  for (std::int32_t g = 0; g < num_groups; ++g) {
    // read_groups() checked the size, which is that of the first group; a caller's field may lie
    // anywhere, also unaligned.
    std::uint32_t size = 0;
    std::memcpy(&size, element(groups, g), sizeof(size));
    if (size < kNumBlocksEnd) {
      return answer(error, {ErrorCode::kInvalidArgument,
                            concat(__func__, ": the groups have no field num_blocks")});
    }
  }
  for (std::int32_t g = 0; g < num_groups; ++g) {
    const std::int32_t num_blocks = fitted->groups[static_cast<std::size_t>(g)].num_blocks;
    std::memcpy(
        reinterpret_cast<std::byte*>(element(groups, g)) + offsetof(kvfolio_group_spec, num_blocks),
        &num_blocks, sizeof(num_blocks));
  }
  return KVFOLIO_OK;
}

const char* kvfolio_target_name(int32_t target) {
  if (target < KVFOLIO_TARGET_AUTO || target > KVFOLIO_TARGET_NEON) return "invalid";
  return to_string(static_cast<KernelTarget>(target - 1));
}

int32_t kvfolio_parse_target(const char* name, int32_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(name);
  KVFOLIO_C_NEEDS(out);
  const Result<KernelTarget> target = parse_kernel_target(name);
  if (!target) return answer(error, target.error());
  *out = target_of(*target);
  return KVFOLIO_OK;
}

int32_t kvfolio_targets(int32_t* out, int32_t capacity) {
  const std::span<const KernelTarget> targets = kernel_targets();
  for (std::size_t i = 0; i < targets.size() && out != nullptr; ++i) {
    if (static_cast<std::int32_t>(i) < capacity) out[i] = target_of(targets[i]);
  }
  return static_cast<std::int32_t>(targets.size());
}

}  // extern "C"
