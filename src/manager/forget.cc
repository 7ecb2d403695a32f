// SPDX-License-Identifier: Apache-2.0
//
// Forgetting on purpose: reset and forget. Three things happen, in this order. Sequences that run
// on a forgotten path stop publishing, so that nothing of them comes back. Pins on it end. Then
// the entries go, and with them the cached blocks.

#include <algorithm>

#include "manager/impl.h"
#include "manager/media_spans.h"
#include "manager/op_writer.h"

namespace kvfolio {

// The sequence may publish and has all of these tokens, or may turn out to have them.
bool KVCacheManager::Impl::runs_on(std::int32_t row, const Path& path,
                                   std::span<const std::int32_t> more) const noexcept {
  const Sequence& s = rows_[row];
  if (s.life == Life::kUnused || !s.publishes) return false;
  const auto size = static_cast<std::int32_t>(path.tokens.size());
  const std::int32_t on_tree = std::min(s.place.position, size);
  if (!tree_->begins_with(s.place, path.root, path.tokens.first(static_cast<std::size_t>(on_tree)),
                          path.media)) {
    return false;
  }
  const std::int32_t end = s.pending_end();
  if (end + static_cast<std::int64_t>(more.size()) < size) return false;
  const std::int32_t* pending = arena().at(s.pending);
  for (std::int32_t i = on_tree; i < size; ++i) {
    const std::int32_t token =
        i < end ? pending[i - on_tree] : more[static_cast<std::size_t>(i - end)];
    if (token != kUnnamed && token != path.tokens[static_cast<std::size_t>(i)]) return false;
  }
  return same_media(spans_.media_of(s), path.media, on_tree, size) == size;
}

// The same of the sequence and the load that it waits for.
bool KVCacheManager::Impl::loads_on(std::int32_t row, const Path& path) const noexcept {
  if (!rows_[row].has_load) return false;
  const Transfers::Load& load = transfers_.load(details(row).load);
  const auto count = static_cast<std::size_t>(load.end - load.begin);
  return SpanArena::capacity(load.tokens) > 0 &&
         runs_on(row, path, {arena().at(load.tokens), count});
}

// The pinned prefix begins with these tokens.
bool KVCacheManager::Impl::is_pinned_on(std::int32_t pin, const Path& path) const noexcept {
  const Place& place = pins_.place(pin);
  return place.valid() && place.position >= static_cast<std::int32_t>(path.tokens.size()) &&
         tree_->begins_with(place, path.root, path.tokens, path.media);
}

Forgotten KVCacheManager::Impl::forget(const Path& path) noexcept {
  Forgotten forgotten;
  Place root = tree_->enter(path.root, 0);  // it would go with its last sequence
  for (std::int32_t row = 0; row < rows_.size(); ++row) {
    if (mutant(Mutant::kPublishesAfterForget)) break;
    // Whose prompt was found whole holds its last token already.
    const std::span<const std::int32_t> found(&details(row).replay_token,
                                              rows_[row].replay ? 1 : 0);
    if (runs_on(row, path, found)) {
      publisher_.stop(row);
    } else if (loads_on(row, path)) {
      transfers_.load(details(row).load).unfindable = true;
    }
  }
  pins_.for_each_open([&](std::int32_t pin) {
    if (!is_pinned_on(pin, path)) return;
    release_pin(pin);
    ++forgotten.pins;
  });
  tree_->forget(path.root, path.tokens, path.media);
  forgotten.blocks = blocks_.follow_tree();
  tree_->leave(root);
  return forgotten;
}

Forgotten KVCacheManager::reset() {
  KVFOLIO_RECORDED(kReset, reset());
  Impl& m = *impl_;
  Forgotten sum;
  for (std::int32_t root = m.tree_->next_root(-1); root >= 0; root = m.tree_->next_root(root)) {
    const Forgotten forgotten = m.forget({root, {}, {}});
    sum.blocks += forgotten.blocks;
    sum.pins += forgotten.pins;
  }
  // Those that hold nothing are left.
  m.pins_.for_each_open([&](std::int32_t pin) {
    m.release_pin(pin);
    ++sum.pins;
  });
  ++m.forget_count_;
  return sum;
}

Result<Forgotten> KVCacheManager::forget(std::span<const std::int32_t> tokens,
                                         const OpenOptions& options) {
  KVFOLIO_RECORDED(kForget, forget(tokens, options), tokens, options);
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(
      check_open("forget", tokens, {.root = options.root, .media = options.media}, m.arena()));
  ++m.forget_count_;
  const std::int32_t root = m.tree_->find_root(options.root);
  if (root < 0) return Forgotten{};
  return m.forget({root, tokens, options.media});
}

Forgotten KVCacheManager::forget(const RootKey& key) {
  KVFOLIO_RECORDED(kForgetRoot, forget(key), key);
  Impl& m = *impl_;
  ++m.forget_count_;
  const std::int32_t root = m.tree_->find_root(key);
  return root < 0 ? Forgotten{} : m.forget({root, {}, {}});
}

std::uint64_t KVCacheManager::forget_count() const noexcept {
  KVFOLIO_STOP_IF_MOVED("forget_count");
  return impl_->forget_count_;
}

}  // namespace kvfolio
