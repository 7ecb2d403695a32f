// SPDX-License-Identifier: Apache-2.0
#pragma once

// BlockNames knows the hash of the prefix that each findable block ends: what makes its key. It
// remembers one hash for each block, under the serial of the block's entry, so a block that was
// named before its successor costs that one a single hash. It does so for the blocks of one group
// of the unit's size, and, if that group drops blocks, of one that keeps them all: else what is
// left of a long prompt would be hashed from its beginning for each block. Thread safety: none.

#include <cstdint>
#include <functional>
#include <optional>
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
  // They are counted and copied in about the time in which a unit is hashed.
  static constexpr std::int32_t kSpansOfStep = 32;
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
  // Without ManagerOptions::list_findable entries have no serials: then the manager stays as it is
  // as long as this lives.
  BlockNames(const KVCacheManager& manager, const Identity& identity, RootHash root_hash,
             PrefixHash prefix_hash = {});

  // kNotFound: the block is not findable. `visit` sees the units that this call hashes, in order.
  Result<Name> name(GroupId group, BlockId block, const Visit& visit = {});
  // The same in at most about so many steps: looks at a block, and units hashed. Nothing: it takes
  // more, and the next call for the same block goes on. Each call also looks at all media of the
  // block's path, which are lists in the prefix tree: kSpansOfStep of them are a step that comes on
  // top, so that a call gets on whatever it is allowed.
  Result<std::optional<Name>> name_within(std::int64_t most_steps, GroupId group, BlockId block,
                                          const Visit& visit = {});
  // The hash of the first `end` tokens of a sequence's table, if a block that ends there is
  // findable and was named before. Requires: a multiple of the unit.
  [[nodiscard]] const Digest* known(std::span<const std::int32_t> table, std::int32_t end) const;
  // That were taken so far.
  [[nodiscard]] std::int64_t num_steps() const noexcept { return num_steps_; }
  // The group whose blocks known() looks at: of the unit's size, and full if there is such a one.
  [[nodiscard]] GroupId group() const noexcept { return group_; }
  // Forgets all hashes: after an epoch has changed.
  void clear() noexcept;
  // There is a place for each block, and the way that is begun leads over whole units of a path.
  [[nodiscard]] Status check() const;

 private:
  struct Memo {
    std::uint64_t serial = 0;
    Digest tokens{};
    Digest root{};
  };
  // The hashes that the blocks of a group keep.
  struct GroupMemos {
    GroupId group;
    std::int32_t block_size = 0;
    std::vector<Memo> memos{};  // by block; serial 0: none
  };
  [[nodiscard]] const Memo* memo_of(const GroupMemos& of, BlockId block) const;
  // What the block keeps that lies on the path to `block` that ends with `end`; null: there is
  // none.
  [[nodiscard]] Result<const Memo*> memo_at(GroupId group, BlockId block, std::int32_t end) const;
  [[nodiscard]] std::uint64_t serial_of(GroupId group, BlockId block) const;
  void remember(GroupId group, BlockId block, std::int32_t end, const Name& name);
  // The way to a name: back to a hash that is known, and from there forward.
  struct Way {
    GroupId group;
    BlockId block;
    std::uint64_t serial = 0;  // of the block's entry; 0: there is no way
    bool leads_back = true;
    std::int32_t at = 0;  // tokens
    Name name{};          // of these, once it leads forward
  };
  // Each returns false where `left` steps end before.
  Result<bool> go_back(const BlockPrefix& path, std::int64_t& left);
  bool go_forward(const BlockPrefix& path, std::int64_t& left, const Visit& visit);

  const KVCacheManager& manager_;
  const Identity& identity_;
  RootHash root_hash_;
  PrefixHash prefix_hash_;
  GroupId group_;
  std::vector<GroupMemos> memos_;  // of group_ first
  Way way_;
  std::int64_t num_steps_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<MediaSpan> media_;
};

}  // namespace kvfolio
