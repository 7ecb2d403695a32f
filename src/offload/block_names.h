// SPDX-License-Identifier: Apache-2.0
#pragma once

// BlockNames knows the hash of the prefix that each findable block ends: what makes its key. It
// remembers one hash for each block of one group, under the serial of the block's entry, so a block
// that was named before its successor costs that one a single hash. Thread safety: none.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kvfolio/identity.h"
#include "kvfolio/manager.h"

namespace kvfolio {

class BlockNames {
 public:
  // A unit of tokens on the way to a block, or the part of one that ends a path.
  struct Step {
    const Digest& before;
    const Digest& after;
    const RootKey& root;
    std::int32_t begin;
    std::span<const std::int32_t> tokens;
    std::span<const MediaSpan> media;  // of the whole path
  };
  using Visit = std::function<void(const Step&)>;
  // The hash of no tokens under a root; and what stands for the hash of a prefix of whole units.
  using RootHash = std::function<Digest(const RootKey&)>;
  using PrefixHash = std::function<Digest(const Digest&)>;

  struct Name {
    Digest tokens{};  // at the end of the block
    Digest root{};
    std::int32_t end = 0;
  };

  // `manager` and `identity` outlive this. Without `prefix_hash`, nothing else stands for a hash.
  BlockNames(const KVCacheManager& manager, const Identity& identity, RootHash root_hash,
             PrefixHash prefix_hash = {});

  // kNotFound: the block is not findable. `visit` sees the units that this call hashes, in order.
  Result<Name> name(GroupId group, BlockId block, const Visit& visit = {});
  // The hash of the first `end` tokens of a sequence's table, if a block that ends there is
  // findable and was named before. Requires: a multiple of the unit.
  [[nodiscard]] const Digest* known(std::span<const std::int32_t> table, std::int32_t end) const;
  // The group whose blocks keep hashes: of the unit's size, and full if there is such a one.
  [[nodiscard]] GroupId group() const noexcept { return group_; }
  // Forgets all hashes: after an epoch has changed.
  void clear() noexcept;

 private:
  struct Memo {
    std::uint64_t serial = 0;
    Digest tokens{};
    Digest root{};
  };
  [[nodiscard]] const Memo* memo_of(BlockId block) const;
  Name hash_forward(GroupId group, BlockId block, const BlockPrefix& path, std::int32_t from,
                    const Memo* start, const Visit& visit);

  const KVCacheManager& manager_;
  const Identity& identity_;
  RootHash root_hash_;
  PrefixHash prefix_hash_;
  GroupId group_;
  std::vector<Memo> memos_;  // by block of group_; serial 0: none
  std::vector<std::int32_t> tokens_;
  std::vector<MediaSpan> media_;
};

}  // namespace kvfolio
