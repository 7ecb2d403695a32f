// SPDX-License-Identifier: Apache-2.0
//
// Pins: prefixes that are held without a sequence.

#include "manager/impl.h"

namespace kvfolio {

using text::concat;

Result<Pinned> KVCacheManager::Impl::pin(std::span<const std::int32_t> tokens,
                                         const OpenOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_open("pin", tokens, options));
  const std::int32_t slot = free_pin_;
  if (slot < 0) {
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
    room = pin_table(slot, g).reserve(arena(), blocks_for(g, match.tokens));
  }
  if (!room) {
    for (std::int32_t g = 0; g < num_groups(); ++g) pin_table(slot, g).release(arena());
    std::int64_t wanted = 0;
    for (std::int32_t g = 0; g < num_groups(); ++g) wanted += blocks_for(g, match.tokens);
    return table_entries_full("pin", wanted);
  }
  for (std::int32_t g = 0; g < num_groups() && match.tokens > 0; ++g) {
    BlockTable& blocks = pin_table(slot, g);
    blocks.grow(arena(), blocks_for(g, match.tokens));
    tree_->fill_table(match, GroupId(g), blocks.blocks(arena()), true);
  }
  Pin& pin = pins_[slot];
  const std::int32_t position = match.tokens / tree_->unit() * tree_->unit();
  pin.place = match.tokens > 0 ? tree_->enter(match.run, position) : Place();
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const BlockTable& blocks = pin_table(slot, g);
    hold_table(g, blocks.blocks(std::as_const(arena())));
    if (group(g).size.offset_of(match.tokens) == 0) continue;
    group(g).pool.set_wanted(blocks.at(arena(), blocks.size() - 1), true);
  }
  free_pin_ = pin.next_free;
  pin.open = true;
  ++num_pins_;
  pins_touched_ = std::max(pins_touched_, slot + 1);
  note_peak();
  return Pinned{PinId(pack(pin.generation, slot)), match.tokens};
}

void KVCacheManager::Impl::release_pin(std::int32_t slot) noexcept {
  Pin& pin = pins_[slot];
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = pin_table(slot, g);
    for (std::int32_t logical = blocks.size() - 1; logical >= 0; --logical) {
      const BlockId block = blocks.at(arena(), logical);
      if (block.valid()) let_go(g, block, true);
    }
    blocks.release(arena());
  }
  tree_->leave(pin.place);
  pin.open = false;
  --num_pins_;
  pin.generation = next_generation(pin.generation);
  pin.next_free = free_pin_;
  free_pin_ = slot;
}

Status KVCacheManager::Impl::unpin(PinId id) {
  const std::uint64_t bits = id.value();
  const std::int32_t slot = slot_in(bits);
  const auto generation = static_cast<std::uint32_t>(bits >> 24 & 0xffffffu);
  if (static_cast<std::uint16_t>(bits >> 48) != options_.id_tag || generation == 0 ||
      static_cast<std::size_t>(slot) >= pins_.size() || !pins_[slot].open ||
      pins_[slot].generation != generation) {
    return {ErrorCode::kNotFound,
            concat("pin id ", bits, " is unpinned, of another manager, or was never given out")};
  }
  release_pin(slot);
  return {};
}

}  // namespace kvfolio
