// SPDX-License-Identifier: Apache-2.0
//
// Records for a medium of the caller's own, and names of hashes that are not ours.

#include "kvfolio/record.h"

#include "tiers_capi/tiers_capi.h"

namespace kvfolio::capi {
namespace {

static_assert(KVFOLIO_RECORD_HEADER_BYTES == kRecordHeaderBytes);
static_assert(KVFOLIO_RECORD_KEY_BYTES == kRecordKeyBytes);

Status read_info(std::string_view call, std::string_view name, const kvfolio_record_info* theirs,
                 const void* payload, RecordInfo& out) {
  if (theirs == nullptr) return null_argument(call, name);
  kvfolio_record_info info;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, name, theirs, info));
  constexpr std::int64_t kPayloadMax = std::int64_t{1} << 40;
  if (info.payload_bytes < 0 || info.payload_bytes > kPayloadMax) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, "->payload_bytes is ", info.payload_bytes, ", allowed: 0 to ",
                   kPayloadMax)};
  }
  if (payload == nullptr && info.payload_bytes > 0) return null_argument(call, "payload");
  std::memcpy(out.key.bytes.data(), info.key.bytes, sizeof info.key.bytes);
  out.layout = digest_of(info.layout);
  out.payload_bytes = info.payload_bytes;
  out.begin = info.begin;
  out.end = info.end;
  out.epoch = info.epoch;
  out.writer = info.writer;
  out.owner = info.owner;
  return {};
}

std::span<const std::byte> bytes_of(const void* data, std::int64_t bytes) noexcept {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
}

RecordKeys keys_of(const kvfolio_record_keys* keys) {
  return keys == nullptr ? RecordKeys() : keys->keys;
}

Status corrupt(std::string_view call, RecordFault fault) {
  return {ErrorCode::kCorrupt, concat(call, ": wrong ", to_string(fault))};
}

Status read_foreign(std::string_view call, const kvfolio_foreign_model* theirs, ForeignModel& out) {
  if (theirs == nullptr) return null_argument(call, "model");
  kvfolio_foreign_model model;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "model", theirs, model));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "engine", model.engine, out.engine));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "model", model.model, out.model));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "weights", model.weights, out.weights));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "model_dtype", model.model_dtype, out.model_dtype));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "hash", model.hash, out.hash));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "hash_seed", model.hash_seed, out.hash_seed));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "layout", model.layout, out.layout));
  KVFOLIO_RETURN_IF_ERROR(read_text(call, "scales", model.scales, out.scales));
  out.shard = model.shard;
  out.num_shards = model.num_shards == 0 ? 1 : model.num_shards;
  out.num_groups = model.num_groups == 0 ? 1 : model.num_groups;
  return {};
}

Status check_foreign_group(std::string_view call, const ForeignIdentity& identity,
                           std::int32_t group, std::int32_t lowest) {
  if (group >= lowest && group < identity.num_groups()) return {};
  return {ErrorCode::kInvalidArgument, concat(call, ": group is ", group, ", allowed: ", lowest,
                                              " to ", identity.num_groups() - 1)};
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_foreign_identity_create(const kvfolio_foreign_model* model,
                                        kvfolio_foreign_identity** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(out);
  ForeignModel ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_foreign(__func__, model, ours));
  Result<ForeignIdentity> made = ForeignIdentity::create(ours);
  if (!made) return answer(error, made.error());
  auto* const handle = new (std::nothrow) kvfolio_foreign_identity{*std::move(made)};
  if (handle == nullptr) return answer(error, no_memory(__func__));
  *out = handle;
  return KVFOLIO_OK;
}

void kvfolio_foreign_identity_destroy(kvfolio_foreign_identity* identity) { delete identity; }

int32_t kvfolio_foreign_identity_namespace(const kvfolio_foreign_identity* identity, int32_t group,
                                           kvfolio_digest* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(out);
  const ForeignIdentity& names = identity->identity;
  KVFOLIO_C_RETURN_IF_ERROR(check_foreign_group(__func__, names, group, -1));
  give_digest(group == -1 ? names.model_namespace() : names.layout_namespace(GroupId(group)), out);
  return KVFOLIO_OK;
}

int32_t kvfolio_foreign_identity_key(const kvfolio_foreign_identity* identity, int32_t group,
                                     const kvfolio_text* salt, const uint8_t* engine_hash,
                                     int64_t hash_bytes, kvfolio_tier_key* out,
                                     kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(identity);
  KVFOLIO_C_NEEDS(out);
  const ForeignIdentity& names = identity->identity;
  KVFOLIO_C_RETURN_IF_ERROR(check_foreign_group(__func__, names, group, 0));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "engine_hash", engine_hash, hash_bytes));
  std::string_view tenant;
  if (salt != nullptr) KVFOLIO_C_RETURN_IF_ERROR(read_text(__func__, "salt", *salt, tenant));
  const TierKey key = names.key(GroupId(group), tenant, bytes_of(engine_hash, hash_bytes));
  std::memcpy(out->bytes, key.bytes.data(), sizeof out->bytes);
  return KVFOLIO_OK;
}

int32_t kvfolio_record_keys_create(const uint8_t* key, const uint8_t* accepted_key,
                                   kvfolio_record_keys** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(key);
  KVFOLIO_C_NEEDS(out);
  Result<RecordKeys> keys =
      RecordKeys::create({.key = secret_of(key), .accepted_key = secret_of(accepted_key)});
  if (!keys) return answer(error, keys.error());
  auto* const handle = new (std::nothrow) kvfolio_record_keys{*std::move(keys)};
  if (handle == nullptr) return answer(error, no_memory(__func__));
  *out = handle;
  return KVFOLIO_OK;
}

void kvfolio_record_keys_destroy(kvfolio_record_keys* keys) { delete keys; }

int32_t kvfolio_record_seal(const kvfolio_record_keys* keys, const kvfolio_record_info* info,
                            const void* payload, void* header, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(header);
  RecordInfo ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_info(__func__, "info", info, payload, ours));
  const std::span<std::byte, kRecordHeaderBytes> out(static_cast<std::byte*>(header),
                                                     std::size_t{kRecordHeaderBytes});
  if (seal_record(ours, bytes_of(payload, ours.payload_bytes), keys_of(keys), out)) {
    return KVFOLIO_OK;
  }
  return answer(error, no_memory(__func__));
}

int32_t kvfolio_record_verify(const kvfolio_record_keys* keys, const kvfolio_record_info* expected,
                              const void* header, const void* payload, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(header);
  RecordInfo ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_info(__func__, "expected", expected, payload, ours));
  const std::span<const std::byte, kRecordHeaderBytes> in(static_cast<const std::byte*>(header),
                                                          std::size_t{kRecordHeaderBytes});
  const RecordFault fault =
      check_record(in, bytes_of(payload, ours.payload_bytes), ours, keys_of(keys));
  if (fault == RecordFault::kNone) return KVFOLIO_OK;
  return answer(error, corrupt(__func__, fault));
}

int32_t kvfolio_record_read(const void* header, kvfolio_record_info* out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(header);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  RecordInfo info;
  const RecordFault fault = read_record_header(bytes_of(header, kRecordHeaderBytes), info);
  if (fault != RecordFault::kNone) return answer(error, corrupt(__func__, fault));
  kvfolio_record_info seen{};
  seen.key_id = info.key_id;
  std::memcpy(seen.key.bytes, info.key.bytes.data(), sizeof seen.key.bytes);
  give_digest(info.layout, &seen.layout);
  seen.payload_bytes = info.payload_bytes;
  seen.begin = info.begin;
  seen.end = info.end;
  seen.epoch = info.epoch;
  seen.writer = info.writer;
  seen.owner = info.owner;
  write_struct(out, seen);
  return KVFOLIO_OK;
}

}  // extern "C"
