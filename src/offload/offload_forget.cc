// SPDX-License-Identifier: Apache-2.0
//
// Forgetting: what is forgotten gets other names from now on, so no tier answers with it whatever
// it keeps. What is on its way under the old names is given up.

#include "base/mutants.h"
#include "offload/offload_impl.h"

namespace kvfolio {

std::uint64_t Offload::Impl::epoch_of(const RootKey& root) const {
  if (epochs_.empty()) return base_epoch_;
  const auto found = epochs_.find(identity_.root(root, 0));
  return found == epochs_.end() ? base_epoch_ : found->second;
}

// Also of a forgetting that nobody told us of yet.
std::uint64_t Offload::Impl::epoch() const noexcept {
  return manager_.forget_count() == forgets_seen_ ? epoch_ : epoch_ + 1;
}

NameEpochs Offload::Impl::epochs() const {
  if (manager_.forget_count() != forgets_seen_) return {.epoch = epoch(), .roots = {}};
  NameEpochs epochs{.epoch = base_epoch_, .roots = {}};
  epochs.roots.reserve(epochs_.size());
  for (const auto& [root, epoch] : epochs_) epochs.roots.push_back({root, epoch});
  const auto before = [](const RootEpoch& a, const RootEpoch& b) { return a.root < b.root; };
  std::sort(epochs.roots.begin(), epochs.roots.end(), before);
  return epochs;
}

// Never back to an older name, whatever the host kept.
void Offload::Impl::take_epochs(std::span<const RootEpoch> roots) {
  for (const auto& [root, epoch] : roots) {
    if (epoch <= base_epoch_) continue;
    std::uint64_t& newest = epochs_[root];
    newest = std::max(newest, epoch);
    epoch_ = std::max(epoch_, epoch);
  }
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
  base_epoch_ = ++epoch_;
  epochs_.clear();
  forget_in_flight(nullptr);
  arena_->clear();
  for (TierPort& port : ports_) port.drop_all();
}

void Offload::Impl::forget_names(const RootKey& root) {
  if (epochs_.size() >= kRootEpochsMax) return forget_all_names();
  const Digest before = identity_.root(root, epoch_of(root));
  epochs_[identity_.root(root, 0)] = ++epoch_;
  forget_in_flight(&before);
  if (mutant(Mutant::kStoredAfterForget)) return;
  arena_->erase_if([&](std::span<const std::byte> record) {
    RecordInfo info;
    return read_record_header(record, info) != RecordFault::kNone ||
           info.owner == root_owner(before);
  });
  for (TierPort& port : ports_) port.drop_gone(*arena_);
}

// `root`: whose; null: all.
void Offload::Impl::forget_in_flight(const Digest* root) {
  names_.clear();
  std::vector<std::uint64_t> ids;
  for (const auto& [id, request] : requests_) {
    if (root == nullptr || request.root == *root) ids.push_back(id);
  }
  for (const std::uint64_t id : ids) {
    const Request& request = requests_.at(id);
    std::int32_t length = request.length;
    if (writer_ == id) {
      length = request.load.begin;  // begin_load() may have found more
      static_cast<void>(manager_.finish_load(request.load.id, 0));
    }
    finish(id, length, LoadEnd::kForgotten);
  }
  for (auto place = arriving_.begin(); place != arriving_.end();) {
    const auto next = std::next(place);
    const bool is_its = root == nullptr || place->second.expected.owner == root_owner(*root);
    if (is_its) give_up(place, false);
    place = next;
  }
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
  forget_names(options.root);
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
