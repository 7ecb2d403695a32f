// SPDX-License-Identifier: Apache-2.0
//
// What became findable, for who copies it elsewhere (findable_list.h), and what stands in front of
// a findable block.

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

std::int32_t KVCacheManager::take_findable(std::span<FindableBlock> out) noexcept {
  KVFOLIO_RECORDED(kTakeFindable, take_findable(out), OutFindable{out});
  Impl& m = *impl_;
  FindableList& list = m.blocks_.findable();
  std::int32_t taken = 0;
  for (std::int32_t left = list.size(); left > 0; --left) {
    if (static_cast<std::size_t>(taken) == out.size()) break;
    const FindableList::Member member = list.take();
    const auto [g, b] = member;
    const std::uint64_t serial = list.serial(g, b);
    if (serial == 0) continue;
    const BlockId block(b);
    if (m.blocks_.is_being_written(g, block)) {
      list.put_back(member);
      continue;
    }
    out[static_cast<std::size_t>(taken++)] = {GroupId(g), block,
                                              m.tree_->findable_end(GroupId(g), block), serial};
  }
  return taken;
}

Result<std::uint64_t> KVCacheManager::entry_serial(GroupId group, BlockId block) const {
  KVFOLIO_RETURN_IF_MOVED("entry_serial");
  KVFOLIO_RETURN_IF_ERROR(impl_->check_block("entry_serial", group, block));
  return impl_->blocks_.findable().serial(group.value(), block.value());
}

Status KVCacheManager::Impl::check_findable(std::string_view what, GroupId group,
                                            BlockId block) const {
  KVFOLIO_RETURN_IF_ERROR(check_block(what, group, block));
  if (tree_->is_findable(group, block)) return {};
  return {ErrorCode::kNotFound,
          concat(what, ": block ", block.value(), " of group ", group.value(), " is not findable")};
}

Result<BlockPrefix> KVCacheManager::prefix_of(GroupId group, BlockId block, std::int32_t begin,
                                              std::span<std::int32_t> tokens,
                                              std::span<MediaSpan> media) const {
  KVFOLIO_RETURN_IF_MOVED("prefix_of");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_findable("prefix_of", group, block));
  BlockPrefix prefix;
  prefix.num_tokens = m.tree_->findable_end(group, block);
  if (begin < 0 || begin > prefix.num_tokens ||
      tokens.size() > static_cast<std::size_t>(prefix.num_tokens - begin)) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("prefix_of: ", tokens.size(), " tokens from position ", begin,
                         ", but the block's path has ", prefix.num_tokens));
  }
  m.tree_->copy_tokens(group, block, begin, tokens);
  prefix.num_media = m.tree_->copy_media(group, block, media);
  prefix.root = m.tree_->key_of(group, block);
  return prefix;
}

Result<BlockId> KVCacheManager::block_at(GroupId group, BlockId block, GroupId of,
                                         std::int32_t end) const {
  KVFOLIO_RETURN_IF_MOVED("block_at");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_findable("block_at", group, block));
  KVFOLIO_RETURN_IF_ERROR(m.check_group("block_at", of));
  const std::int32_t size = m.block_size(of.value());
  const std::int32_t most = m.tree_->findable_end(group, block);
  if (end < 1 || end > most || end % size != 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("block_at: end is ", end, ", allowed: multiples of ", size, " from ", size,
                         " to ", most));
  }
  return m.tree_->block_at(group, block, of, end);
}

}  // namespace kvfolio
