// SPDX-License-Identifier: Apache-2.0

#include "offload/block_names.h"

#include <algorithm>
#include <limits>
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
  GroupId full;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupId group(static_cast<std::int32_t>(g));
    const bool keeps_all = GroupRule(groups[g]).keeps_all();
    const auto is_better = [&](GroupId than) {
      return !than.valid() ||
             (keeps_all && !GroupRule(groups[static_cast<std::size_t>(than.value())]).keeps_all());
    };
    if (keeps_all && !full.valid()) full = group;
    if (groups[g].block_size == identity.unit() && is_better(group_)) group_ = group;
  }
  const auto add = [&](GroupId group) {
    const GroupSpec& spec = groups[static_cast<std::size_t>(group.value())];
    memos_.push_back(
        {group, spec.block_size, std::vector<Memo>(static_cast<std::size_t>(spec.num_blocks))});
  };
  add(group_);
  if (full.valid() && !GroupRule(groups[static_cast<std::size_t>(group_.value())]).keeps_all()) {
    add(full);
  }
}

void BlockNames::clear() noexcept {
  for (GroupMemos& of : memos_) std::fill(of.memos.begin(), of.memos.end(), Memo{});
  way_ = {};
}

Status BlockNames::check() const {
  const auto broken = [](const char* rule) { return Status(ErrorCode::kAborted, rule); };
  for (const GroupMemos& of : memos_) {
    const GroupSpec& spec = manager_.spec().groups[static_cast<std::size_t>(of.group.value())];
    if (std::ssize(of.memos) != spec.num_blocks || of.block_size != spec.block_size) {
      return broken("offload: the names of a group are not those of its blocks");
    }
    for (std::int32_t b = 0; b < spec.num_blocks; ++b) {
      const Memo* memo = memo_of(of, BlockId(b));
      if (memo == nullptr) continue;
      const auto path = manager_.prefix_of(of.group, BlockId(b), 0, {});
      if (!path || path->num_tokens < of.block_size) {
        return broken("offload: a block has a name, and no whole block of tokens");
      }
    }
  }
  if (way_.serial == 0) return {};
  const bool is_whole = way_.at % identity_.unit() == 0 || way_.at == way_.name.end;
  if (way_.at < 0 || !is_whole || !way_.group.valid() || !way_.block.valid()) {
    return broken("offload: a way to a name ends within a unit");
  }
  return {};
}

// A serial that changed means another entry: other tokens, perhaps.
const BlockNames::Memo* BlockNames::memo_of(const GroupMemos& of, BlockId block) const {
  KVFOLIO_DCHECK(block.value() >= 0 && block.value() < std::ssize(of.memos));
  const Memo& memo = of.memos[static_cast<std::size_t>(block.value())];
  if (memo.serial == 0) return nullptr;
  return serial_of(of.group, block) == memo.serial ? &memo : nullptr;
}

// 0: the block is not findable.
std::uint64_t BlockNames::serial_of(GroupId group, BlockId block) const {
  if (!manager_.options().list_findable) return 1;
  const auto serial = manager_.entry_serial(group, block);
  return serial ? *serial : 0;
}

Result<const BlockNames::Memo*> BlockNames::memo_at(GroupId group, BlockId block,
                                                    std::int32_t end) const {
  for (const GroupMemos& of : memos_) {
    if (end % of.block_size != 0) continue;
    const auto there = manager_.block_at(group, block, of.group, end);
    if (!there) return there.error();
    const Memo* memo = there->valid() ? memo_of(of, *there) : nullptr;
    if (memo != nullptr) return memo;
  }
  return static_cast<const Memo*>(nullptr);
}

void BlockNames::remember(GroupId group, BlockId block, std::int32_t end, const Name& name) {
  for (GroupMemos& of : memos_) {
    if (end % of.block_size != 0) continue;
    const auto there = manager_.block_at(group, block, of.group, end);
    if (!there || !there->valid()) continue;
    of.memos[static_cast<std::size_t>(there->value())] = {serial_of(of.group, *there), name.tokens,
                                                          name.root};
  }
}

const Digest* BlockNames::known(std::span<const std::int32_t> table, std::int32_t end) const {
  KVFOLIO_DCHECK(end >= 0 && end % identity_.unit() == 0);
  const auto logical = static_cast<std::size_t>(end / identity_.unit());
  if (logical == 0 || logical > table.size() || table[logical - 1] < 0) return nullptr;
  const Memo* memo = memo_of(memos_.front(), BlockId(table[logical - 1]));
  return memo == nullptr ? nullptr : &memo->tokens;
}

Result<BlockNames::Name> BlockNames::name(GroupId group, BlockId block, const Visit& visit) {
  const auto name = name_within(std::numeric_limits<std::int64_t>::max(), group, block, visit);
  if (!name) return name.error();
  return **name;
}

Result<std::optional<BlockNames::Name>> BlockNames::name_within(std::int64_t most_steps,
                                                                GroupId group, BlockId block,
                                                                const Visit& visit) {
  const auto path = manager_.prefix_of(group, block, 0, {});
  if (!path) return path.error();
  num_steps_ += path->num_media / kSpansOfStep;
  const std::uint64_t serial = serial_of(group, block);
  const bool goes_on =
      way_.serial != 0 && way_.serial == serial && way_.group == group && way_.block == block;
  if (!goes_on) {
    way_ = {.group = group, .block = block, .serial = serial};
    way_.at = path->num_tokens / identity_.unit() * identity_.unit();
  }
  std::int64_t left = most_steps;
  if (way_.leads_back) {
    const auto found = go_back(*path, left);
    if (!found) return found.error();
    if (!*found) return std::optional<Name>();
  }
  if (!go_forward(*path, left, visit)) return std::optional<Name>();
  return std::optional<Name>(std::exchange(way_, Way{}).name);
}

Result<bool> BlockNames::go_back(const BlockPrefix& path, std::int64_t& left) {
  for (; way_.at > 0; way_.at -= identity_.unit()) {
    if (left-- <= 0) return false;
    ++num_steps_;
    const auto memo = memo_at(way_.group, way_.block, way_.at);
    if (!memo) return memo.error();
    if (*memo == nullptr) continue;
    way_.name = {.tokens = (*memo)->tokens, .root = (*memo)->root};
    break;
  }
  if (way_.at == 0) way_.name.root = way_.name.tokens = root_hash_(path.root);
  way_.leads_back = false;
  return true;
}

bool BlockNames::go_forward(const BlockPrefix& path, std::int64_t& left, const Visit& visit) {
  const std::int32_t unit = identity_.unit();
  const std::int32_t from = way_.at;
  KVFOLIO_CHECK(!way_.leads_back && from <= path.num_tokens);
  const std::int64_t units = std::min<std::int64_t>(left, (path.num_tokens - from) / unit + 1);
  const auto to = static_cast<std::int32_t>(
      std::min<std::int64_t>(from + std::max<std::int64_t>(units, 0) * unit, path.num_tokens));
  tokens_.resize(static_cast<std::size_t>(to - from));
  media_.resize(static_cast<std::size_t>(path.num_media));
  const auto filled = manager_.prefix_of(way_.group, way_.block, from, tokens_, media_);
  KVFOLIO_CHECK(filled.has_value());
  Name& name = way_.name;
  for (std::int32_t begin = from; begin < to; begin += unit) {
    --left;
    ++num_steps_;
    const std::int32_t size = std::min(unit, to - begin);
    const auto tokens = std::span<const std::int32_t>(tokens_).subspan(
        static_cast<std::size_t>(begin - from), static_cast<std::size_t>(size));
    const Digest before = name.tokens;
    name.tokens = identity_.next(before, begin, tokens, media_);
    if (size == unit && prefix_hash_) name.tokens = prefix_hash_(name.tokens);
    if (visit) visit({before, name.tokens, path.root, begin, tokens, media_});
    if (size == unit) remember(way_.group, way_.block, begin + unit, name);
  }
  way_.at = name.end = to;
  return to == path.num_tokens;
}

}  // namespace kvfolio
