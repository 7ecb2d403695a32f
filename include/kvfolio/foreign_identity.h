// SPDX-License-Identifier: Apache-2.0
#pragma once

// ForeignIdentity makes the names of blocks that an engine has hashed by itself (TierKey), so that
// a tier can keep what the engine gives it, of any size: vLLM's and SGLang's block hashes are such.
//
//   ForeignModel model{.engine = "vllm 0.33 flash-attn", .model = "llama-3-8b", ...};
//   model.hash = "sha256_cbor";
//   model.hash_seed = seed_in_hex;
//   model.layout = "bf16 HND 16x8x128 tp2";
//   const Result<ForeignIdentity> names = ForeignIdentity::create(model);
//   const TierKey key = names->key(GroupId(0), tenant_salt, block_hash);
//
// Two blocks have the same name only if all fields below are equal, and the salt and the engine's
// hash. An engine with another algorithm or another seed is in another namespace: it misses, and
// finds no block of a stranger. The caller must put everything that decides the bytes (types, axes,
// ranks) into `layout`: if something is left out, blocks of another layout may be found.
//
//   model namespace   SHA-256("kvfolio/ext-model/1" | fields: model, weights, ..., hash, hash_seed)
//   layout namespace  SHA-256("kvfolio/ext-layout/1" | model namespace | fields of one group)
//   hash              SHA-256("kvfolio/ext/1", model namespace, salt, engine hash), each of these
//                     four with its length in front (8, little-endian)
//   key               group, shard, layout namespace and hash, as those of Identity (tier.h)
//
// Thread safety: const calls may run at the same time.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/identity.h"
#include "kvfolio/ids.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

// Read during the call only; any bytes, at most 64 KiB together. All texts but `scales` are
// required.
struct ForeignModel {
  std::string_view engine{};       // name, revision and instruction set or device
  std::string_view model{};        // such as a name and size
  std::string_view weights{};      // a digest or a revision
  std::string_view model_dtype{};  // the type that the model computes with
  std::string_view hash{};         // the algorithm of the engine's hashes
  std::string_view hash_seed{};    // what its root hash begins with; "none" if there is nothing
  std::string_view layout{};       // element type, heads, block size, axes, ranks: all of a payload
  std::string_view scales{};       // revision of quantization scales, if the model brings its own
  std::int32_t num_groups = 1;     // 1 to 65535
  std::int32_t shard = 0;          // which share of a block this process has, and of how many
  std::int32_t num_shards = 1;
};

class ForeignIdentity {
 public:
  // kInvalidArgument: a required field that is empty, or a number out of range, by name.
  // kUnavailable: libcrypto has no SHA-256.
  KVFOLIO_API static Result<ForeignIdentity> create(const ForeignModel& model);

  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(layouts_.size());
  }
  [[nodiscard]] const Digest& model_namespace() const noexcept { return model_; }
  // Requires: 0 <= group < num_groups().
  [[nodiscard]] const Digest& layout_namespace(GroupId group) const noexcept {
    return layouts_[static_cast<std::size_t>(group.value())];
  }
  // Every field that went into the namespaces, in order.
  [[nodiscard]] std::span<const IdentityField> fields() const noexcept { return fields_; }
  // `salt` keeps tenants apart: it comes from the server's knowledge of them, and may be empty.
  // Requires: 0 <= group < num_groups().
  [[nodiscard]] KVFOLIO_API TierKey key(GroupId group, std::string_view salt,
                                        std::span<const std::byte> engine_hash) const noexcept;

 private:
  ForeignIdentity() noexcept = default;
  Digest model_{};
  std::vector<Digest> layouts_;
  std::vector<IdentityField> fields_;
  std::uint16_t shard_ = 0, num_shards_ = 1;
};

}  // namespace kvfolio
