// SPDX-License-Identifier: Apache-2.0
//
// Announcing: what a sequence says that it will append, and who may count on it. An announcement
// follows its sequence: publish() shortens it, and it ends with anything after which its tokens may
// never be published.

#include <algorithm>

#include "manager/impl.h"

namespace kvfolio {

// What announcements ask of the sequences.
struct KVCacheManager::Impl::Announcers {
  const Impl& m;

  [[nodiscard]] bool begins_with(std::int32_t row, std::span<const std::int32_t> tokens,
                                 std::span<const MediaSpan> media) const noexcept {
    if (tokens.empty()) return true;
    const Place& place = m.rows_[row].place;
    return m.tree_->begins_with(place, m.tree_->root_of(place), tokens, media);
  }
  [[nodiscard]] std::span<const MediaSpan> media_of(std::int32_t row) const noexcept {
    return m.spans_.media_of(m.rows_[row]);
  }
};

// Requires: the sequence stands where open() left it, and publishes.
void KVCacheManager::Impl::announce(std::int32_t row,
                                    const Announcements::Prompt& prompt) noexcept {
  Sequence& s = rows_[row];
  const std::int32_t begin = publisher_.findable_of(s.place.position);
  const std::int32_t end = publisher_.findable_of(static_cast<std::int32_t>(prompt.tokens.size()));
  if (begin == end) return;
  s.announces = announcements_.open(row, prompt, begin, end);
  if (!s.announces) ++counters_.announcements_skipped;
}

// The sequence has got these tokens at position `at`, the last `draft` of them as guesses; unnamed
// where there are none. Others count on those that it announced and on no others.
void KVCacheManager::Impl::follow_announcement(std::int32_t row, std::int32_t at,
                                               const std::int32_t* tokens, std::int32_t count,
                                               std::int32_t draft) noexcept {
  const std::int32_t end = announcements_.end(row);
  if (at >= end || mutant(Mutant::kAnnouncesWhatIsNotAppended)) return;
  const bool guessed = std::min(end, at + count) > at + count - draft;
  if (guessed || tokens == nullptr ||
      !announcements_.goes_on_with(row, at, {tokens, static_cast<std::size_t>(count)})) {
    end_announcement(row);
  }
}

Soon KVCacheManager::Impl::find_soon(const Announcements::Prompt& prompt) const noexcept {
  const Announcements::Found found = announcements_.find(prompt, Announcers{*this});
  if (found.row == Announcements::kNone) return {};
  // A hit leaves the last token, and none ends inside a span that attends to itself.
  const auto last = static_cast<std::int32_t>(prompt.tokens.size()) - 1;
  std::int32_t end = std::min(found.tokens, last);
  end = std::min(end, SequenceSpans::cut_span(prompt.media, end));
  if (end <= announcements_.begin(found.row)) return {};
  return {end, rows_.id_of(rows_[found.row])};
}

Result<Soon> KVCacheManager::soon(std::span<const std::int32_t> tokens,
                                  const OpenOptions& options) const {
  KVFOLIO_RETURN_IF_MOVED("soon");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(check_open("soon", tokens, options, m.arena()));
  if (!m.announcements_.any() || !options.prefix_cache || !options.look_up) return Soon{};
  const std::int32_t root = m.tree_->find_root(options.root);
  return root < 0 ? Soon{} : m.find_soon({root, tokens, options.media});
}

}  // namespace kvfolio
