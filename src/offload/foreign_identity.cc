// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/foreign_identity.h"

#include <openssl/evp.h>

#include <array>
#include <memory>
#include <utility>

#include "base/invalid.h"
#include "base/little_endian.h"
#include "base/text.h"
#include "offload/canonical_fields.h"

namespace kvfolio {
namespace {

constexpr std::size_t kForeignTextMax = 64 << 10;
constexpr std::string_view kForeignModel = "kvfolio/ext-model/1";
constexpr std::string_view kForeignLayout = "kvfolio/ext-layout/1";
constexpr std::string_view kForeignBlock = "kvfolio/ext/1";

// SHA-256 of libcrypto, piece by piece. A piece that it cannot take ends the process: create() has
// seen that it can.
class ForeignHash {
 public:
  ForeignHash() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    good_ = context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1;
  }
  [[nodiscard]] bool good() const noexcept { return good_; }
  ForeignHash& add(std::span<const std::byte> bytes) noexcept {
    good_ = good_ && EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1;
    return *this;
  }
  ForeignHash& add(std::string_view text) noexcept { return add(std::as_bytes(std::span(text))); }
  ForeignHash& add_with_length(std::span<const std::byte> bytes) noexcept {
    std::array<std::byte, 8> length{};
    LittleEndianWriter(length).put(static_cast<std::uint64_t>(bytes.size()));
    return add(length).add(bytes);
  }
  Digest end() noexcept {
    Digest digest{};
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the bytes that libcrypto fills
    auto* const out = reinterpret_cast<unsigned char*>(digest.data());
    good_ = good_ && EVP_DigestFinal_ex(context_.get(), out, nullptr) == 1;
    KVFOLIO_CHECK(good_);
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
  bool good_ = false;
};

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
  if (!ForeignHash().good()) {
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
  identity.model_ = ForeignHash().add(kForeignModel).add(fields.bytes()).end();
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
        ForeignHash().add(kForeignLayout).add(identity.model_).add(layout.bytes()).end());
    if (group > 0) continue;  // of the others only the number differs
    identity.fields_.insert(identity.fields_.end(), layout.list().begin(), layout.list().end());
  }
  return identity;
}

TierKey ForeignIdentity::key(GroupId group, std::string_view salt,
                             std::span<const std::byte> engine_hash) const noexcept {
  const Digest hash = ForeignHash()
                          .add_with_length(std::as_bytes(std::span(kForeignBlock)))
                          .add_with_length(model_)
                          .add_with_length(std::as_bytes(std::span(salt)))
                          .add_with_length(engine_hash)
                          .end();
  TierKey key;
  LittleEndianWriter to(key.bytes);
  to.put(std::uint16_t{1});
  to.put(static_cast<std::uint16_t>(group.value()));
  to.put(shard_);
  to.put(num_shards_);
  to.put(std::span<const std::byte>(layout_namespace(group)).first(16));
  to.put(std::span<const std::byte>(hash));
  return key;
}

}  // namespace kvfolio
