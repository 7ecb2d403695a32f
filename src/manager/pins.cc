// SPDX-License-Identifier: Apache-2.0
//
// Pins: prefixes that are held without a sequence.

#include <numeric>

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

// A block that is not full may give way to a longer one, which the pin would not hold. So a pin
// ends where blocks of all groups do. Each match ends in front of where the one before was cut.
PrefixMatch KVCacheManager::Impl::match_whole_blocks(
    std::int32_t root, std::span<const std::int32_t> tokens,
    std::span<const MediaSpan> media) const noexcept {
  std::int64_t unit = 1;
  for (const Group& group : groups_) {
    unit = std::lcm(unit, std::int64_t{group.spec.block_size});
    if (unit > kMaxSequenceTokens) return {};
  }
  const auto cut = [unit](std::int64_t n) { return static_cast<std::int32_t>(n / unit * unit); };
  PrefixMatch match;
  std::int32_t limit = cut(static_cast<std::int64_t>(tokens.size()));
  while (root >= 0 && limit > 0) {
    match = tree_->match(root, tokens, media, limit, false);
    if (match.tokens == limit) return match;
    limit = cut(match.tokens);
  }
  return {};
}

Result<Pinned> KVCacheManager::pin(std::span<const std::int32_t> tokens,
                                   const OpenOptions& options) {
  KVFOLIO_RECORDED(kPin, pin(tokens, options), tokens, options);
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(check_open("pin", tokens, options, m.arena()));
  const std::int32_t pin = m.pins_.next_free();
  if (pin == PinSet::kNone) {
    return Status(
        ErrorCode::kResourceExhausted,
        concat("pin: all ", m.options_.max_pins, " pins are taken; unpin one or raise max_pins"));
  }
  const bool wants = m.options_.prefix_cache && options.prefix_cache && options.look_up;
  const PrefixMatch match =
      m.match_whole_blocks(wants ? m.tree_->find_root(options.root) : -1, tokens, options.media);
  bool room = true;
  for (std::int32_t g = 0; g < m.num_groups() && room; ++g) {
    room = m.pins_.table(pin, g).reserve(m.arena(), m.blocks_for(g, match.tokens));
  }
  if (!room) {
    for (std::int32_t g = 0; g < m.num_groups(); ++g) m.pins_.table(pin, g).release(m.arena());
    return m.spans_.full("pin", m.spans_.table_words(match.tokens));
  }
  for (std::int32_t g = 0; g < m.num_groups() && match.tokens > 0; ++g) {
    BlockTable& blocks = m.pins_.table(pin, g);
    blocks.grow(m.arena(), m.blocks_for(g, match.tokens));
    m.tree_->fill_table(match, GroupId(g), blocks.blocks(m.arena()), true);
  }
  std::array<std::span<const std::int32_t>, kMaxGroups> tables;
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    tables[static_cast<std::size_t>(g)] =
        std::as_const(m.pins_.table(pin, g)).blocks(std::as_const(m.arena()));
  }
  if (Status status = m.check_sharing(tables); !status.ok()) {
    for (std::int32_t g = 0; g < m.num_groups(); ++g) m.pins_.table(pin, g).release(m.arena());
    return status;
  }
  m.pins_.place(pin) = match.tokens > 0 ? m.tree_->enter(match.run, match.tokens) : Place();
  m.promises_.share([&](const auto& visit) {
    for (std::int32_t g = 0; g < m.num_groups(); ++g) visit(g, tables[static_cast<std::size_t>(g)]);
  });
  for (std::int32_t g = 0; g < m.num_groups(); ++g) {
    m.borders_.note_pinned(g, tables[static_cast<std::size_t>(g)]);
  }
  const PinId id = m.pins_.take();
  m.blocks_.note_peak();
  return Pinned{id, match.tokens};
}

void KVCacheManager::Impl::release_pin(std::int32_t pin) noexcept {
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    BlockTable& blocks = pins_.table(pin, g);
    for (std::int32_t logical = blocks.size() - 1; logical >= 0; --logical) {
      const BlockId block = blocks.at(arena(), logical);
      if (block.valid()) blocks_.let_go(g, block, true);
    }
    blocks.release(arena());
  }
  tree_->leave(pins_.place(pin));
  pins_.give_back(pin);
}

Status KVCacheManager::unpin(PinId id) {
  KVFOLIO_RECORDED(kUnpin, unpin(id), id);
  Impl& m = *impl_;
  const std::int32_t pin = m.pins_.find(id);
  if (pin == PinSet::kNone) {
    if (!id.valid()) return {ErrorCode::kNotFound, "the id names no pin"};
    return {ErrorCode::kNotFound,
            concat(to_string(id), " is unpinned, of another manager, or was never given out")};
  }
  m.release_pin(pin);
  return {};
}

}  // namespace kvfolio
