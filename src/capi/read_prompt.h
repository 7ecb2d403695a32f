// SPDX-License-Identifier: Apache-2.0
#pragma once

// Groups and prompts as C says them. Inline: both libraries use them. Thread safety: free
// functions.

#include <vector>

#include "capi/c_structs.h"
#include "kvfolio/c_handles.h"
#include "kvfolio/manager_types.h"

namespace kvfolio::capi {

// 0 is the default type; others are one more than in C++.
inline Status read_dtype(std::string_view call, std::string_view name, std::int32_t value,
                         DType default_type, DType& out) {
  if (value < KVFOLIO_DTYPE_DEFAULT || value > KVFOLIO_OPAQUE) {
    return {ErrorCode::kInvalidArgument, concat(call, ": ", name, " is ", value, ", allowed: 0 to ",
                                                static_cast<int>(KVFOLIO_OPAQUE))};
  }
  out = value == KVFOLIO_DTYPE_DEFAULT ? default_type : static_cast<DType>(value - 1);
  return {};
}

inline Status read_group(std::string_view call, const kvfolio_group_spec* theirs, GroupSpec& out) {
  kvfolio_group_spec group;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "groups", theirs, group));
  const GroupSpec defaults;
  out.num_layers = group.num_layers == 0 ? defaults.num_layers : group.num_layers;
  out.num_kv_heads = group.num_kv_heads == 0 ? defaults.num_kv_heads : group.num_kv_heads;
  out.head_dim_k = group.head_dim_k;
  out.head_dim_v = group.head_dim_v;
  out.v_is_prefix_of_k = group.v_is_prefix_of_k != 0;
  out.block_size = group.block_size == 0 ? defaults.block_size : group.block_size;
  KVFOLIO_RETURN_IF_ERROR(read_dtype(call, "dtype", group.dtype, defaults.dtype, out.dtype));
  KVFOLIO_RETURN_IF_ERROR(read_enum(call, "format", group.format, KVFOLIO_GRANULE, out.format));
  KVFOLIO_RETURN_IF_ERROR(read_enum(call, "kind", group.kind, KVFOLIO_SLIDING_WINDOW, out.kind));
  out.window = group.window;
  out.num_sinks = group.num_sinks;
  out.num_blocks = group.num_blocks;
  out.rewind = group.rewind;
  return {};
}

inline Status read_groups(std::string_view call, const kvfolio_group_spec* groups,
                          std::int32_t num_groups, CacheSpec& out) {
  if (num_groups < 1 || num_groups > kMaxGroups) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", num_groups, " groups, allowed: 1 to ", kMaxGroups)};
  }
  KVFOLIO_RETURN_IF_ERROR(check_elements(call, "groups", groups, num_groups));
  for (std::int32_t g = 0; g < num_groups; ++g) {
    KVFOLIO_RETURN_IF_ERROR(read_group(call, element(groups, g), out.groups.emplace_back()));
  }
  return {};
}

// What the calls about a prompt take. The media spans live as long as this.
struct Prompt {
  std::span<const std::int32_t> tokens;
  OpenOptions options;
  std::vector<MediaSpan> media;
};
inline Status read_media(std::string_view call, const kvfolio_media_span* media,
                         std::int64_t num_media, std::vector<MediaSpan>& out) {
  KVFOLIO_RETURN_IF_ERROR(check_elements(call, "media", media, num_media));
  for (std::int64_t i = 0; i < num_media; ++i) {
    kvfolio_media_span span;
    KVFOLIO_RETURN_IF_ERROR(read_struct(call, "media", element(media, i), span));
    MediaSpan& to = out.emplace_back();
    to.begin = span.begin;
    to.end = span.end;
    to.attends_to_itself = span.attends_to_itself != 0;
    std::memcpy(to.content_id.data(), span.content_id, sizeof(span.content_id));
  }
  return {};
}

inline Status read_prompt(std::string_view call, const kvfolio_root* root,
                          const std::int32_t* tokens, std::int64_t num_tokens,
                          const kvfolio_media_span* media, std::int64_t num_media,
                          const kvfolio_open_options* options, Prompt& out) {
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "tokens", tokens, num_tokens));
  out.tokens = span_of(tokens, num_tokens);
  kvfolio_open_options ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", options, ours));
  KVFOLIO_RETURN_IF_ERROR(read_media(call, media, num_media, out.media));
  OpenOptions& to = out.options;
  if (root != nullptr) to.root = root_key_of(*root);
  to.media = out.media;
  to.prefix_cache = ours.no_prefix_cache == 0;
  to.look_up = ours.no_look_up == 0;
  KVFOLIO_RETURN_IF_ERROR(
      read_enum(call, "publish", ours.publish, KVFOLIO_PUBLISH_NOTHING, to.publish));
  if (ours.has_caller_id != 0) to.caller_id = ours.caller_id;
  to.max_tokens = ours.max_tokens;
  to.priority = ours.priority;
  to.late_names = ours.late_names != 0;
  to.announce = ours.announce != 0;
  return {};
}

}  // namespace kvfolio::capi
