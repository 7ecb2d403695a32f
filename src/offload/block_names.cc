// SPDX-License-Identifier: Apache-2.0

#include "offload/block_names.h"

#include <algorithm>
#include <utility>

#include "kvfolio/group_rule.h"

namespace kvfolio {

BlockNames::BlockNames(const KVCacheManager& manager, const Identity& identity, RootHash root_hash,
                       PrefixHash prefix_hash)
    : manager_(manager),
      identity_(identity),
      root_hash_(std::move(root_hash)),
      prefix_hash_(std::move(prefix_hash)) {
  const std::vector<GroupSpec>& groups = manager.spec().groups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].block_size != identity.unit()) continue;
    const bool better = !group_.valid() || GroupRule(groups[g]).keeps_all();
    if (better) group_ = GroupId(static_cast<std::int32_t>(g));
    if (GroupRule(groups[g]).keeps_all()) break;
  }
  memos_.resize(
      static_cast<std::size_t>(groups[static_cast<std::size_t>(group_.value())].num_blocks));
}

void BlockNames::clear() noexcept { std::fill(memos_.begin(), memos_.end(), Memo{}); }

// A serial that changed means another entry: other tokens, perhaps.
const BlockNames::Memo* BlockNames::memo_of(BlockId block) const {
  const Memo& memo = memos_[static_cast<std::size_t>(block.value())];
  if (memo.serial == 0) return nullptr;
  const auto serial = manager_.entry_serial(group_, block);
  return serial && *serial == memo.serial ? &memo : nullptr;
}

const Digest* BlockNames::known(std::span<const std::int32_t> table, std::int32_t end) const {
  const auto logical = static_cast<std::size_t>(end / identity_.unit());
  if (logical == 0 || logical > table.size() || table[logical - 1] < 0) return nullptr;
  const Memo* memo = memo_of(BlockId(table[logical - 1]));
  return memo == nullptr ? nullptr : &memo->tokens;
}

Result<BlockNames::Name> BlockNames::name(GroupId group, BlockId block, const Visit& visit) {
  const auto path = manager_.prefix_of(group, block, 0, {});
  if (!path) return path.error();
  const std::int32_t unit = identity_.unit();
  const Memo* start = nullptr;
  std::int32_t from = path->num_tokens / unit * unit;
  for (; from > 0; from -= unit) {
    const auto there = manager_.block_at(group, block, group_, from);
    if (!there) return there.error();
    if (there->valid()) start = memo_of(*there);
    if (start != nullptr) break;
  }
  return hash_forward(group, block, *path, from, start, visit);
}

BlockNames::Name BlockNames::hash_forward(GroupId group, BlockId block, const BlockPrefix& path,
                                          std::int32_t from, const Memo* start,
                                          const Visit& visit) {
  Name name{.root = start != nullptr ? start->root : root_hash_(path.root), .end = path.num_tokens};
  name.tokens = start != nullptr ? start->tokens : name.root;
  tokens_.resize(static_cast<std::size_t>(path.num_tokens - from));
  media_.resize(static_cast<std::size_t>(path.num_media));
  const auto filled = manager_.prefix_of(group, block, from, tokens_, media_);
  KVFOLIO_CHECK(filled.has_value());
  const std::int32_t unit = identity_.unit();
  for (std::int32_t begin = from; begin < path.num_tokens; begin += unit) {
    const std::int32_t size = std::min(unit, path.num_tokens - begin);
    const auto tokens = std::span<const std::int32_t>(tokens_).subspan(
        static_cast<std::size_t>(begin - from), static_cast<std::size_t>(size));
    const Digest before = name.tokens;
    name.tokens = identity_.next(before, begin, tokens, media_);
    if (size == unit && prefix_hash_) name.tokens = prefix_hash_(name.tokens);
    if (visit) visit({before, name.tokens, path.root, begin, tokens, media_});
    if (size < unit) break;
    const auto there = manager_.block_at(group, block, group_, begin + unit);
    if (!there || !there->valid()) continue;
    const auto serial = manager_.entry_serial(group_, *there);
    memos_[static_cast<std::size_t>(there->value())] = {serial ? *serial : 0, name.tokens,
                                                        name.root};
  }
  return name;
}

}  // namespace kvfolio
