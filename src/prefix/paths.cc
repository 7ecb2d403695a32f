// SPDX-License-Identifier: Apache-2.0
//
// What stands in front of a findable block: the tokens of its path, their media, the key of the
// root, and the blocks that hold them. Everything is found on the way up from the block's run.

#include <algorithm>

#include "prefix/tree.h"

namespace kvfolio {

std::int32_t PrefixTree::Impl::root_of(std::int32_t r) const noexcept {
  while (!runs_.is_root(r)) r = run(r).parent;
  return r;
}

std::int32_t PrefixTree::Impl::block_at(const Where& where, std::int32_t of,
                                        std::int32_t end) const noexcept {
  KVFOLIO_CHECK(where.run != 0 && end > 0 && end <= where.end());
  return whole_block_at(where.run - 1, of, end);
}

// Runs are met from the last to the first: so the spans are counted first, and then written from
// the back.
std::int32_t PrefixTree::Impl::copy_media(const Where& where,
                                          std::span<MediaSpan> out) const noexcept {
  KVFOLIO_CHECK(where.run != 0);
  const std::int32_t end = where.end();
  std::int32_t total = 0;
  for (std::int32_t r = where.run - 1; !runs_.is_root(r); r = run(r).parent) {
    total += media_.copy_begins(run(r).extents, end, {});
  }
  std::int32_t at = total;
  for (std::int32_t r = where.run - 1; !runs_.is_root(r) && !out.empty(); r = run(r).parent) {
    at -= media_.copy_begins(run(r).extents, end, {});
    if (static_cast<std::size_t>(at) >= out.size()) continue;
    media_.copy_begins(run(r).extents, end, out.subspan(static_cast<std::size_t>(at)));
  }
  return total;
}

RootKey PrefixTree::Impl::key_of(const Where& where) const noexcept {
  KVFOLIO_CHECK(where.run != 0);
  return keys_.key_of(run(root_of(where.run - 1)).tokens);
}

// ---- the public face ----

std::int32_t PrefixTree::root_of(const Place& place) const noexcept {
  return impl_->root_of(place.run);
}
void PrefixTree::copy_tokens(GroupId group, BlockId block, std::int32_t begin,
                             std::span<std::int32_t> out) const noexcept {
  const Impl::Where& where = impl_->where(group, block);
  KVFOLIO_CHECK(where.run != 0 && begin + static_cast<std::int32_t>(out.size()) <= where.end());
  impl_->runs_.copy_tokens(where.run - 1, begin, out);
}
std::int32_t PrefixTree::copy_media(GroupId group, BlockId block,
                                    std::span<MediaSpan> out) const noexcept {
  return impl_->copy_media(impl_->where(group, block), out);
}
RootKey PrefixTree::key_of(GroupId group, BlockId block) const noexcept {
  return impl_->key_of(impl_->where(group, block));
}
BlockId PrefixTree::block_at(GroupId group, BlockId block, GroupId of,
                             std::int32_t end) const noexcept {
  return BlockId(impl_->block_at(impl_->where(group, block), of.value(), end));
}

}  // namespace kvfolio
