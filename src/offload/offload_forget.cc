// SPDX-License-Identifier: Apache-2.0
//
// Forgetting: what is forgotten gets other names from now on, so no tier answers with it whatever
// it keeps. What is on its way under the old names is given up.

#include <algorithm>

#include "base/mutants.h"
#include "offload/offload_impl.h"

namespace kvfolio {

// Counts a forgetting, too, that we were not told of yet.
std::uint64_t Offload::Impl::epoch() const noexcept {
  return manager_.forget_count() == forgets_seen_ ? epochs_.newest() : epochs_.newest() + 1;
}

NameEpochs Offload::Impl::epochs() const {
  if (manager_.forget_count() != forgets_seen_) return {.epoch = epoch(), .roots = {}};
  return epochs_.list();
}

// The first thing that every call does: the manager does not say what it was told to forget, so it
// may be anything.
void Offload::Impl::notice_forgetting() {
  if (manager_.forget_count() == forgets_seen_) return;
  forgets_seen_ = manager_.forget_count();
  ++counters_.manager_forgets;
  forget_all_names();
}

void Offload::Impl::forget_all_names() {
  epochs_.forget_all();
  forgot_all();
}

void Offload::Impl::forgot_all() {
  names_.clear();
  end_requests(nullptr, {});
  give_up_arriving(nullptr);
  forget_stores(nullptr);
  arena_->clear();
  loaded_.clear();
  forgotten_.clear();
  for (TierPort& port : ports_) port.drop_all();
}

void Offload::Impl::forget_names(const RootKey& root) {
  const Digest before = epochs_.root(root);
  if (!epochs_.forget_root(root)) return forgot_all();
  end_requests(&before, {});
  give_up_arriving(&before);
  if (mutant(Mutant::kStoredAfterForget)) return;
  forget_stores(&before);
  forgotten_.add(before, *arena_);
  steps_.begin_call();
  erase_forgotten();
}

// At least a few, whatever else the call did. Stores that wait with what is gone find that out when
// their turn comes.
void Offload::Impl::erase_forgotten() {
  constexpr std::int64_t kSlotsMin = 1024;
  steps_.took(forgotten_.erase_some(*arena_, std::max(steps_.left(), kSlotsMin)));
}

// The prefix ends, for names, with its last whole unit. Records behind that do not say that they
// begin with it: in the arena they stay until they are evicted, under names that nothing asks for.
void Offload::Impl::forget_names(std::span<const std::int32_t> tokens, const OpenOptions& options) {
  const auto unit = static_cast<std::size_t>(identity_.unit());
  const auto prefix = tokens.first(tokens.size() / unit * unit);
  if (prefix.empty()) return forget_names(options.root);
  const Digest root = epochs_.root(options.root);
  Digest hash{}, name = root;
  for (std::size_t begin = 0; begin < prefix.size(); begin += unit) {
    hash = identity_.next(name, static_cast<std::int32_t>(begin), prefix.subspan(begin, unit),
                          options.media);
    name = epochs_.prefix(hash);
  }
  if (!epochs_.forget_prefix(hash)) return forgot_all();
  names_.clear();
  end_requests(&root, prefix);
  if (mutant(Mutant::kStoredAfterForget)) return;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const TierKey key = identity_.key(GroupId(g), name);
    forget_store(key);
    arena_->erase(key);
  }
}

// `root`: whose; null: all. Only those that begin with `prefix`.
void Offload::Impl::end_requests(const Digest* root, std::span<const std::int32_t> prefix) {
  std::vector<Request*> ended;
  for (auto& [id, request] : requests_.all()) {
    const bool is_its = root == nullptr || request.root == *root;
    const bool begins = request.tokens.size() >= prefix.size() &&
                        std::equal(prefix.begin(), prefix.end(), request.tokens.begin());
    if (is_its && begins) ended.push_back(&request);
  }
  for (Request* const request : ended) {
    std::int32_t length = request->length;
    if (!end_copies(*request)) {  // it ends when nothing is copied any more
      request->stops = true;
      request->good = 0;
      request->why = LoadEnd::kForgotten;
      continue;
    }
    if (request->state == Request::State::kWriting) {
      length = request->load.begin;  // begin_load() may have found more
      static_cast<void>(manager_.finish_load(request->load.id, 0));
    }
    finish(*request, length, LoadEnd::kForgotten);
  }
}

void Offload::Impl::give_up_arriving(const Digest* root) {
  std::vector<TierKey> gone;
  for (const auto& [key, arriving] : requests_.arrivals()) {
    if (root == nullptr || arriving.expected.owner == root_owner(*root)) gone.push_back(key);
  }
  for (const TierKey& key : gone) give_up(requests_.take_arrived(key), false);
}

Forgotten Offload::Impl::forget(const RootKey& root) {
  notice_forgetting();
  forget_names(root);
  const Forgotten forgotten = manager_.forget(root);
  forgets_seen_ = manager_.forget_count();
  return forgotten;
}

Result<Forgotten> Offload::Impl::forget(std::span<const std::int32_t> tokens,
                                        const OpenOptions& options) {
  notice_forgetting();
  const auto forgotten = manager_.forget(tokens, options);
  if (!forgotten) return forgotten.error();
  forget_names(tokens, options);
  forgets_seen_ = manager_.forget_count();  // last: if memory was short, the next call forgets all
  return *forgotten;
}

Forgotten Offload::Impl::reset() {
  notice_forgetting();
  forget_all_names();
  const Forgotten forgotten = manager_.reset();
  forgets_seen_ = manager_.forget_count();
  return forgotten;
}

}  // namespace kvfolio
