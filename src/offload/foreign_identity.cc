// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/foreign_identity.h"

#include <array>
#include <utility>

#include "base/invalid.h"
#include "base/little_endian.h"
#include "base/text.h"
#include "offload/canonical_fields.h"
#include "offload/sha256.h"

namespace kvfolio {
namespace {

constexpr std::size_t kForeignTextMax = 64 << 10;
constexpr std::string_view kForeignModel = "kvfolio/ext-model/1";
constexpr std::string_view kForeignLayout = "kvfolio/ext-layout/1";
constexpr std::string_view kForeignBlock = "kvfolio/ext/1";

void add_with_length(Sha256& hash, std::span<const std::byte> bytes) noexcept {
  std::array<std::byte, 8> length{};
  LittleEndianWriter(length).put(static_cast<std::uint64_t>(bytes.size()));
  hash.add(length.data(), length.size()).add(bytes.data(), bytes.size());
}

Status check_foreign(const ForeignModel& model) {
  const std::pair<std::string_view, std::string_view> texts[] = {
      {"engine", model.engine}, {"model", model.model},         {"weights", model.weights},
      {"hash", model.hash},     {"hash_seed", model.hash_seed}, {"model_dtype", model.model_dtype},
      {"layout", model.layout}};
  std::size_t total = model.scales.size();
  for (const auto& [name, value] : texts) {
    if (value.empty()) {
      return invalid(text::concat("foreign identity: ", name, " is empty, and required"));
    }
    total += value.size();
  }
  if (total > kForeignTextMax) {
    return invalid(
        text::concat("foreign identity: ", total, " bytes of text, allowed: ", kForeignTextMax));
  }
  constexpr std::int32_t kCountMax = 65535;
  if (model.num_groups < 1 || model.num_groups > kCountMax) {
    return invalid(text::concat("foreign identity: num_groups is ", model.num_groups,
                                ", allowed: 1 to ", kCountMax));
  }
  if (model.num_shards < 1 || model.num_shards > kCountMax || model.shard < 0 ||
      model.shard >= model.num_shards) {
    return invalid(text::concat("foreign identity: shard is ", model.shard, " of ",
                                model.num_shards,
                                ", allowed: 0 to one below the count, and counts of 1 to 65535"));
  }
  return {};
}

}  // namespace

Result<ForeignIdentity> ForeignIdentity::create(const ForeignModel& model) {
  KVFOLIO_RETURN_IF_ERROR(check_foreign(model));
  Sha256 hash;
  if (!hash.create()) {
    return Status(ErrorCode::kUnavailable, "foreign identity: libcrypto has no SHA-256");
  }
  ForeignIdentity identity;
  identity.shard_ = static_cast<std::uint16_t>(model.shard);
  identity.num_shards_ = static_cast<std::uint16_t>(model.num_shards);
  CanonicalFields fields;
  fields.number("format_version", 1);
  fields.text("model", model.model);
  fields.text("weights", model.weights);
  fields.text("model_dtype", model.model_dtype);
  fields.text("hash", model.hash);
  fields.text("hash_seed", model.hash_seed);
  identity.model_ = hash.begin().add(kForeignModel).add(fields.bytes()).end();
  identity.fields_ = fields.list();
  for (std::int32_t group = 0; group < model.num_groups; ++group) {
    CanonicalFields layout;
    layout.text("engine", model.engine);
    layout.text("layout", model.layout);
    layout.text("scales", model.scales);
    layout.number("group", group);
    layout.number("num_groups", model.num_groups);
    layout.number("shard", model.shard);
    layout.number("num_shards", model.num_shards);
    identity.layouts_.push_back(
        hash.begin().add(kForeignLayout).add(identity.model_).add(layout.bytes()).end());
    if (group > 0) continue;  // of the others only the number differs
    identity.fields_.insert(identity.fields_.end(), layout.list().begin(), layout.list().end());
  }
  return identity;
}

TierKey ForeignIdentity::key(GroupId group, std::string_view salt,
                             std::span<const std::byte> engine_hash) const noexcept {
  Sha256 hash;  // of this call, since several threads may make it
  KVFOLIO_CHECK(hash.create());
  for (const std::span<const std::byte> part :
       {std::as_bytes(std::span(kForeignBlock)), std::span<const std::byte>(model_),
        std::as_bytes(std::span(salt)), engine_hash}) {
    add_with_length(hash, part);
  }
  return tier_key_of(group, shard_, num_shards_, layout_namespace(group), hash.end());
}

}  // namespace kvfolio
