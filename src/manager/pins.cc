// SPDX-License-Identifier: Apache-2.0
//
// Pins: prefixes that are held without a sequence.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

Result<Pinned> KVCacheManager::Impl::pin(std::span<const std::int32_t> tokens,
                                         const OpenOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_open("pin", tokens, options));
  const std::int32_t pin = pins_.next_free();
  if (pin == PinSet::kNone) {
    return Status(
        ErrorCode::kResourceExhausted,
        concat("pin: all ", options_.max_pins, " pins are taken; unpin one or raise max_pins"));
  }
  PrefixMatch match;
  const bool wants = options_.prefix_cache && options.prefix_cache && options.look_up;
  const std::int32_t root = wants ? tree_->find_root(options.root) : -1;
  if (root >= 0) {
    match =
        tree_->match(root, tokens, options.media, static_cast<std::int32_t>(tokens.size()), false);
  }
  bool room = true;
  for (std::int32_t g = 0; g < num_groups() && room; ++g) {
    room = pins_.table(pin, g).reserve(arena(), blocks_for(g, match.tokens));
  }
  if (!room) {
    for (std::int32_t g = 0; g < num_groups(); ++g) pins_.table(pin, g).release(arena());
    std::int64_t wanted = 0;
    for (std::int32_t g = 0; g < num_groups(); ++g) wanted += blocks_for(g, match.tokens);
    return table_entries_full("pin", wanted);
  }
  for (std::int32_t g = 0; g < num_groups() && match.tokens > 0; ++g) {
    BlockTable& blocks = pins_.table(pin, g);
    blocks.grow(arena(), blocks_for(g, match.tokens));
    tree_->fill_table(match, GroupId(g), blocks.blocks(arena()), true);
  }
  const std::int32_t position = match.tokens / tree_->unit() * tree_->unit();
  pins_.place(pin) = match.tokens > 0 ? tree_->enter(match.run, position) : Place();
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& blocks = pins_.table(pin, g);
    hold_table(g, blocks.blocks(std::as_const(arena())));
    if (group(g).size.offset_of(match.tokens) == 0) continue;
    group(g).pool.set_wanted(blocks.at(arena(), blocks.size() - 1), true);
  }
  const PinId id = pins_.take();
  note_peak();
  return Pinned{id, match.tokens};
}

void KVCacheManager::Impl::release_pin(std::int32_t pin) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = pins_.table(pin, g);
    for (std::int32_t logical = blocks.size() - 1; logical >= 0; --logical) {
      const BlockId block = blocks.at(arena(), logical);
      if (block.valid()) let_go(g, block, true);
    }
    blocks.release(arena());
  }
  tree_->leave(pins_.place(pin));
  pins_.give_back(pin);
}

Status KVCacheManager::Impl::unpin(PinId id) {
  const std::int32_t pin = pins_.find(id);
  if (pin == PinSet::kNone) {
    return {
        ErrorCode::kNotFound,
        concat("pin id ", id.value(), " is unpinned, of another manager, or was never given out")};
  }
  release_pin(pin);
  return {};
}

}  // namespace kvfolio
