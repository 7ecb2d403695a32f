// SPDX-License-Identifier: Apache-2.0
//
// Loads, holds, and what became findable.

#include "capi/capi.h"

namespace kvfolio::capi {

static_assert(sizeof(FindableBlock) == sizeof(kvfolio_findable_block) &&
              offsetof(FindableBlock, block) == offsetof(kvfolio_findable_block, block) &&
              offsetof(FindableBlock, end) == offsetof(kvfolio_findable_block, end) &&
              offsetof(FindableBlock, serial) == offsetof(kvfolio_findable_block, serial));

namespace {

// Spans of one array, by group.
using Bytes = std::array<std::span<std::uint8_t>, kMaxGroups>;

Status read_bytes(std::string_view call, std::uint8_t* has, const std::int64_t* sizes,
                  std::int32_t num_groups, Bytes& out) {
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "sizes", sizes, num_groups));
  if (num_groups > kMaxGroups) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", num_groups, " groups, allowed: 0 to ", kMaxGroups)};
  }
  for (std::int32_t g = 0; g < num_groups; ++g) {
    KVFOLIO_RETURN_IF_ERROR(check_array(call, "has", has, sizes[g]));
    out[static_cast<std::size_t>(g)] = span_of(has, sizes[g]);
    has += sizes[g];
  }
  return {};
}

// A root of its own, equal to the key.
Status give_root(std::string_view call, const RootKey& key, kvfolio_root** out) {
  if (out == nullptr) return {};
  std::unique_ptr<kvfolio_root> root(new (std::nothrow) kvfolio_root);
  if (!root) return no_memory(call);
  root->bytes = {std::string(key.model), std::string(key.adapter), std::string(key.adapter_version),
                 std::string(key.tenant_salt)};
  root->key = {root->bytes[0], root->bytes[1], root->bytes[2], root->bytes[3], key.epoch};
  *out = root.release();
  return {};
}

void give_media(std::span<const MediaSpan> from, kvfolio_media_span* out) noexcept {
  for (std::size_t i = 0; i < from.size(); ++i) {
    kvfolio_media_span span{};
    span.begin = from[i].begin;
    span.end = from[i].end;
    span.attends_to_itself = from[i].attends_to_itself ? 1 : 0;
    std::memcpy(span.content_id, from[i].content_id.data(), sizeof span.content_id);
    write_struct(element(out, static_cast<std::int64_t>(i)), span);
  }
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_begin_load(kvfolio_manager* manager, kvfolio_sequence sequence,
                           const int32_t* prompt, int64_t num_tokens, int32_t end,
                           kvfolio_load* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "prompt", prompt, num_tokens));
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const Result<Load> load =
      manager->manager.begin_load(SequenceId(sequence), span_of(prompt, num_tokens), end);
  if (!load) return answer(error, load.error());
  write_struct(out, {.struct_size = 0,
                     .reserved = 0,
                     .id = load->id.value(),
                     .begin = load->begin,
                     .end = load->end});
  return KVFOLIO_OK;
}

int32_t kvfolio_blocks_to_load(const kvfolio_manager* manager, kvfolio_load_id load, int32_t group,
                               int32_t* logical, int32_t* blocks, int64_t capacity, int32_t* count,
                               kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "logical", logical, capacity));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, capacity));
  std::array<LoadBlock, 64> piece;
  std::int32_t first = 0;
  for (;;) {
    const auto room = static_cast<std::size_t>(
        std::min<std::int64_t>(static_cast<std::int64_t>(piece.size()), capacity - first));
    const Result<std::int32_t> total = manager->manager.blocks_to_load(
        LoadId(load), GroupId(group), std::span(piece).first(room), first);
    if (!total) return answer(error, total.error());
    const auto written =
        std::clamp<std::int64_t>(*total - first, 0, static_cast<std::int64_t>(room));
    for (std::int64_t i = 0; i < written; ++i) {
      logical[first + i] = piece[static_cast<std::size_t>(i)].logical;
      blocks[first + i] = piece[static_cast<std::size_t>(i)].block.value();
    }
    first += static_cast<std::int32_t>(written);
    if (written > 0 && first < std::min<std::int64_t>(*total, capacity)) continue;
    if (count != nullptr) *count = *total;
    return KVFOLIO_OK;
  }
}

int32_t kvfolio_finish_load(kvfolio_manager* manager, kvfolio_load_id load, int32_t num_tokens,
                            int32_t* stand, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  const Result<std::int32_t> stands = manager->manager.finish_load(LoadId(load), num_tokens);
  if (!stands) return answer(error, stands.error());
  if (stand != nullptr) *stand = *stands;
  return KVFOLIO_OK;
}

int32_t kvfolio_loadable(const kvfolio_manager* manager, kvfolio_sequence sequence,
                         const int32_t* prompt, int64_t num_tokens, int32_t limit, uint8_t* has,
                         const int64_t* sizes, int32_t num_groups, int32_t* begin, int32_t* end,
                         int64_t* blocks, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "prompt", prompt, num_tokens));
  Bytes bytes;
  KVFOLIO_C_RETURN_IF_ERROR(read_bytes(__func__, has, sizes, num_groups, bytes));
  const Result<Loadable> loadable = manager->manager.loadable(
      SequenceId(sequence), span_of(prompt, num_tokens), limit,
      std::span(std::as_const(bytes)).first(static_cast<std::size_t>(num_groups)));
  if (!loadable) return answer(error, loadable.error());
  if (begin != nullptr) *begin = loadable->begin;
  if (end != nullptr) *end = loadable->end;
  if (blocks != nullptr) *blocks = loadable->blocks;
  return KVFOLIO_OK;
}

int32_t kvfolio_hold_blocks(kvfolio_manager* manager, int32_t group, const int32_t* blocks,
                            int64_t num_blocks, kvfolio_hold_id* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  const Result<HoldId> hold =
      manager->manager.hold_blocks(GroupId(group), span_of(blocks, num_blocks));
  if (!hold) return answer(error, hold.error());
  *out = hold->value();
  return KVFOLIO_OK;
}

int32_t kvfolio_release_hold(kvfolio_manager* manager, kvfolio_hold_id hold, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.release_hold(HoldId(hold)));
}

int32_t kvfolio_take_findable(kvfolio_manager* manager, kvfolio_findable_block* out,
                              int64_t capacity) {
  if (manager == nullptr || !check_array(__func__, "out", out, capacity).ok()) return 0;
  const std::int32_t count = manager->manager.take_findable(
      {reinterpret_cast<FindableBlock*>(out), static_cast<std::size_t>(capacity)});
  for (std::int32_t i = 0; i < count; ++i) out[i].reserved = 0;
  return count;
}

int32_t kvfolio_entry_serial(const kvfolio_manager* manager, int32_t group, int32_t block,
                             uint64_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  const Result<std::uint64_t> serial =
      manager->manager.entry_serial(GroupId(group), BlockId(block));
  if (!serial) return answer(error, serial.error());
  *out = *serial;
  return KVFOLIO_OK;
}

int32_t kvfolio_prefix_of(const kvfolio_manager* manager, int32_t group, int32_t block,
                          int32_t begin, int32_t* tokens, int64_t num_tokens,
                          kvfolio_media_span* media, int64_t num_media, int32_t* path_tokens,
                          int32_t* path_media, kvfolio_root** root, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "tokens", tokens, num_tokens));
  KVFOLIO_C_RETURN_IF_ERROR(check_elements(__func__, "media", media, num_media));
  std::vector<MediaSpan> spans(static_cast<std::size_t>(num_media));
  const Result<BlockPrefix> prefix = manager->manager.prefix_of(
      GroupId(group), BlockId(block), begin, span_of(tokens, num_tokens), spans);
  if (!prefix) return answer(error, prefix.error());
  KVFOLIO_C_RETURN_IF_ERROR(give_root(__func__, prefix->root, root));
  give_media(
      std::span(spans).first(std::min(spans.size(), static_cast<std::size_t>(prefix->num_media))),
      media);
  if (path_tokens != nullptr) *path_tokens = prefix->num_tokens;
  if (path_media != nullptr) *path_media = prefix->num_media;
  return KVFOLIO_OK;
}

int32_t kvfolio_block_at(const kvfolio_manager* manager, int32_t group, int32_t block, int32_t of,
                         int32_t end, int32_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  const Result<BlockId> at =
      manager->manager.block_at(GroupId(group), BlockId(block), GroupId(of), end);
  if (!at) return answer(error, at.error());
  *out = at->value();
  return KVFOLIO_OK;
}

}  // extern "C"
