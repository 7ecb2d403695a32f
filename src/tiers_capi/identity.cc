// SPDX-License-Identifier: Apache-2.0
//
// Names of blocks that last.

#include "base/media.h"
#include "tiers_capi/tiers_capi.h"

namespace kvfolio::capi {
namespace {

constexpr std::int64_t kTextMax = 1 << 16;  // of all fields of a ModelIdentity

std::int32_t one_or(std::int32_t count) noexcept { return count == 0 ? 1 : count; }

kvfolio_text text_of(const std::string& text) noexcept {
  return {.data = text.data(), .size = static_cast<std::int64_t>(text.size())};
}

Status check_group(std::string_view call, const Identity& identity, std::int32_t group,
                   std::int32_t lowest) {
  if (group >= lowest && group < identity.num_groups()) return {};
  return {ErrorCode::kInvalidArgument, concat(call, ": group is ", group, ", allowed: ", lowest,
                                              " to ", identity.num_groups() - 1)};
}

Status check_next(std::string_view call, const Identity& identity, std::int32_t begin,
                  std::int64_t num_tokens, std::span<const MediaSpan> media) {
  const std::int32_t unit = identity.unit();
  if (begin < 0 || begin > kMaxSequenceTokens || begin % unit != 0) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": begin is ", begin, ", allowed: multiples of ", unit, " from 0 to ",
                   kMaxSequenceTokens)};
  }
  if (num_tokens < 1 || num_tokens > unit) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", num_tokens, " tokens, allowed: 1 to ", unit)};
  }
  return check_media(call, media);
}

}  // namespace

Status read_text(std::string_view call, std::string_view name, const kvfolio_text& text,
                 std::string_view& out) {
  if (text.size < -1 || text.size > kTextMax) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, ".size is ", text.size, ", allowed: 0 to ", kTextMax,
                   ", or -1 for bytes that end with 0")};
  }
  if (text.data == nullptr && text.size != 0) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, ".data is null, and its size is ", text.size)};
  }
  if (text.size == 0) {
    out = {};
  } else {
    out = text.size == -1 ? std::string_view(text.data)
                          : std::string_view(text.data, static_cast<std::size_t>(text.size));
  }
  return {};
}

Status read_model(std::string_view call, const kvfolio_model_identity* theirs, ModelIdentity& out) {
  if (theirs == nullptr) return null_argument(call, "model");
  kvfolio_model_identity model;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "model", theirs, model));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "model", model.model, out.model));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "weights", model.weights, out.weights));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "tokenizer", model.tokenizer, out.tokenizer));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "model_dtype", model.model_dtype, out.model_dtype));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "positions", model.positions, out.positions));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "engine", model.engine, out.engine));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "layers", model.layers, out.layers));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "scales", model.scales, out.scales));
  out.shard = model.shard;
  out.num_shards = one_or(model.num_shards);
  out.pipeline_rank = model.pipeline_rank;
  out.num_pipeline_ranks = one_or(model.num_pipeline_ranks);
  out.context_rank = model.context_rank;
  out.num_context_ranks = one_or(model.num_context_ranks);
  return {};
}

}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

uint32_t kvfolio_tiers_abi_version(void) { return KVFOLIO_TIERS_ABI_VERSION; }

int32_t kvfolio_identity_create(const kvfolio_model_identity* model,
                                const kvfolio_group_spec* groups, int32_t num_groups,
                                kvfolio_identity** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(out);
  ModelIdentity ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_model(__func__, model, ours));
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, groups, num_groups, spec));
  Result<Identity> identity = Identity::create(ours, spec);
  if (!identity) return answer(error, identity.error());
  std::unique_ptr<kvfolio_identity> handle(new (std::nothrow) kvfolio_identity);
  if (!handle) return answer(error, no_memory(__func__));
  handle->own.emplace(*std::move(identity));
  handle->identity = &*handle->own;
  *out = handle.release();
  return KVFOLIO_OK;
}

void kvfolio_identity_destroy(kvfolio_identity* identity) {
  if (identity != nullptr && identity->own) delete identity;
}

int32_t kvfolio_identity_check_groups(const kvfolio_identity* identity,
                                      const kvfolio_group_spec* groups, int32_t num_groups,
                                      kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, groups, num_groups, spec));
  return answer(error, identity->identity->check_spec(spec));
}

int32_t kvfolio_identity_unit(const kvfolio_identity* identity) {
  return identity == nullptr ? 0 : identity->identity->unit();
}

int32_t kvfolio_identity_num_groups(const kvfolio_identity* identity) {
  return identity == nullptr ? 0 : identity->identity->num_groups();
}

int32_t kvfolio_identity_namespace(const kvfolio_identity* identity, int32_t group,
                                   kvfolio_digest* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(out);
  const Identity& names = *identity->identity;
  KVFOLIO_C_RETURN_IF_ERROR(check_group(__func__, names, group, -1));
  give_digest(group == -1 ? names.model_namespace() : names.layout_namespace(GroupId(group)), out);
  return KVFOLIO_OK;
}

int32_t kvfolio_identity_num_fields(const kvfolio_identity* identity) {
  return identity == nullptr ? 0 : static_cast<std::int32_t>(identity->identity->fields().size());
}

int32_t kvfolio_identity_field(const kvfolio_identity* identity, int32_t index, kvfolio_text* name,
                               kvfolio_text* value, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  const std::span<const IdentityField> fields = identity->identity->fields();
  if (index < 0 || static_cast<std::size_t>(index) >= fields.size()) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": index is ", index, ", allowed: 0 to ",
                                 static_cast<std::int64_t>(fields.size()) - 1)});
  }
  const IdentityField& field = fields[static_cast<std::size_t>(index)];
  if (name != nullptr) *name = text_of(field.name);
  if (value != nullptr) *value = text_of(field.value);
  return KVFOLIO_OK;
}

int32_t kvfolio_identity_root(kvfolio_identity* identity, const kvfolio_root* root, uint64_t epoch,
                              kvfolio_digest* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(out);
  give_digest(identity->identity->root(key_of(root), epoch), out);
  return KVFOLIO_OK;
}

int32_t kvfolio_identity_next(kvfolio_identity* identity, const kvfolio_digest* before,
                              int32_t begin, const int32_t* tokens, int64_t num_tokens,
                              const kvfolio_media_span* media, int64_t num_media,
                              kvfolio_digest* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(before);
  KVFOLIO_C_NEEDS(out);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "tokens", tokens, num_tokens));
  std::vector<MediaSpan> spans;
  KVFOLIO_C_RETURN_IF_ERROR(read_media(__func__, media, num_media, spans));
  const Identity& names = *identity->identity;
  KVFOLIO_C_RETURN_IF_ERROR(check_next(__func__, names, begin, num_tokens, spans));
  give_digest(names.next(digest_of(*before), begin, span_of(tokens, num_tokens), spans), out);
  return KVFOLIO_OK;
}

int32_t kvfolio_identity_key(kvfolio_identity* identity, int32_t group,
                             const kvfolio_digest* tokens, kvfolio_tier_key* out,
                             kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(tokens);
  KVFOLIO_C_NEEDS(out);
  const Identity& names = *identity->identity;
  KVFOLIO_C_RETURN_IF_ERROR(check_group(__func__, names, group, 0));
  const TierKey key = names.key(GroupId(group), digest_of(*tokens));
  std::memcpy(out->bytes, key.bytes.data(), sizeof out->bytes);
  return KVFOLIO_OK;
}

}  // extern "C"
