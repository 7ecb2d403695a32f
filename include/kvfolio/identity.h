// SPDX-License-Identifier: Apache-2.0
#pragma once

// Identity gives blocks names that last: beyond a process, and on every machine. Two blocks have
// the same name only if the same model computed them from the same tokens, and their bytes lie in
// the same order. Everything that decides this is hashed with SHA-256, each field typed, named and
// length-framed, so no value can pose as part of another:
//
//   model namespace   SHA-256("kvfolio/model/1" | fields: model, weights, tokenizer, ...)
//   layout namespace  SHA-256("kvfolio/layout/1" | model namespace | fields of one group)
//   root              SHA-256("kvfolio/root/1" | model namespace | fields of the RootKey | epoch)
//   tokens            SHA-256("kvfolio/block/1" | hash before | count | tokens | media), for each
//                     unit (the smallest block size) of tokens, so each hash stands for a prefix
//   tokens, again     SHA-256("kvfolio/again/1" | hash | epoch), for a prefix that was forgotten
//   key of a block    group, shard, layout namespace and the hash at its end (tier.h)
//
// No name depends on a seed of the process or on a hash function of a language. Keys hold no text
// of a user, but they are no secret either: anyone who knows a prompt and its root can compute its
// keys. Salts keep tenants apart.
//
// A required field that is empty is refused by its name: a name that says too little would find
// bytes of another model. Thread safety: none, not even for const calls (they share a digest).

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/root_key.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

// What a spec does not say about a model. The views are read during the call only; any bytes, at
// most 64 KiB together.
struct ModelIdentity {
  std::string_view model{};        // required; such as a name and size
  std::string_view weights{};      // required; a digest or a revision
  std::string_view tokenizer{};    // required; a revision
  std::string_view model_dtype{};  // required; the type that the model computes with
  std::string_view positions{};    // required; parameters of rope and the like
  // Required; name, revision and instruction set of what computes K and V: machines share only what
  // has the same, and kernels for another instruction set round in another way.
  std::string_view engine{};
  // Which layers of the model each group has, such as "0-30/2;1-31/2": numbers and ranges with
  // commas between them, as many layers as the group's num_layers, and a semicolon between groups.
  // Required if there are several groups; empty means all of them, in order.
  std::string_view layers{};
  std::string_view scales{};  // revision of quantization scales, if the model brings its own
  std::int32_t shard = 0;     // which share of the KV heads this process has, and of how many
  std::int32_t num_shards = 1;
  std::int32_t pipeline_rank = 0, num_pipeline_ranks = 1;
  std::int32_t context_rank = 0, num_context_ranks = 1;
};

// One field of an identity, for messages and snapshots.
struct IdentityField {
  std::string name{};
  std::string value{};  // text; numbers in decimal

  friend bool operator==(const IdentityField&, const IdentityField&) = default;
};

class Identity {
 public:
  // kInvalidArgument: the spec; a required field that is empty, or a number out of range, by name.
  // kUnavailable: libcrypto has no SHA-256.
  KVFOLIO_API static Result<Identity> create(const ModelIdentity& model, const CacheSpec& spec);

  KVFOLIO_API Identity(Identity&&) noexcept;
  KVFOLIO_API Identity& operator=(Identity&&) noexcept;
  KVFOLIO_API ~Identity();

  // kInvalidArgument, naming the first group and field that differ, if the names are of another
  // spec. The number of blocks may differ.
  KVFOLIO_API Status check_spec(const CacheSpec& spec) const;

  // kInvalidArgument, naming the span, unless next() takes these media, which are those that open()
  // takes: ascending, disjoint, none empty, each with a content_id.
  KVFOLIO_API static Status check_media(std::span<const MediaSpan> media);

  [[nodiscard]] std::int32_t unit() const noexcept { return unit_; }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(layouts_.size());
  }
  [[nodiscard]] const Digest& model_namespace() const noexcept { return model_; }
  // Requires: the spec has the group.
  [[nodiscard]] const Digest& layout_namespace(GroupId group) const noexcept {
    return layouts_[static_cast<std::size_t>(group.value())];
  }
  // Every field that went into the namespaces, in order.
  [[nodiscard]] std::span<const IdentityField> fields() const noexcept { return fields_; }

  // The hash of no tokens. `epoch` counts what was forgotten since (Offload); the epoch of the
  // weights is one of the root key's own fields.
  [[nodiscard]] KVFOLIO_API Digest root(const RootKey& root, std::uint64_t epoch) const noexcept;
  // The hash of the tokens at [begin, begin + tokens.size()) behind those of `before`. Requires:
  // begin is a multiple of the unit; 1 to unit() tokens; `media` is ascending and disjoint. It may
  // hold spans that lie elsewhere, which cost nothing: those that lie here are found by bisection.
  [[nodiscard]] KVFOLIO_API Digest next(const Digest& before, std::int32_t begin,
                                        std::span<const std::int32_t> tokens,
                                        std::span<const MediaSpan> media = {}) const noexcept;
  // The hash that takes the place of `tokens` after Offload::forget() of that prefix.
  [[nodiscard]] KVFOLIO_API Digest again(const Digest& tokens, std::uint64_t epoch) const noexcept;
  // The key of a block of a group whose tokens end where `tokens` ends.
  [[nodiscard]] KVFOLIO_API TierKey key(GroupId group, const Digest& tokens) const noexcept;

 private:
  class Hash;  // SHA-256 of libcrypto
  Identity() noexcept;
  std::unique_ptr<Hash> hash_;
  std::int32_t unit_ = 0;
  std::uint16_t shard_ = 0, num_shards_ = 1;
  Digest model_{};
  std::vector<Digest> layouts_;
  std::vector<GroupSpec> groups_;
  std::vector<IdentityField> fields_;
};

}  // namespace kvfolio
