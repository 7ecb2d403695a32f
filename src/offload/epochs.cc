// SPDX-License-Identifier: Apache-2.0

#include "offload/epochs.h"

#include <algorithm>

namespace kvfolio {

Epochs::Epochs(const Identity& identity, std::uint64_t base, std::span<const RootEpoch> entries)
    : identity_(identity), base_(base), newest_(base) {
  for (const auto& [digest, epoch] : entries) {
    if (epoch <= base_) continue;
    std::uint64_t& kept = entries_[digest];
    kept = std::max(kept, epoch);  // never back to an older name, whatever the host kept
    newest_ = std::max(newest_, epoch);
  }
}

Digest Epochs::root(const RootKey& root) const {
  if (entries_.empty()) return identity_.root(root, base_);
  const auto found = entries_.find(identity_.root(root, 0));
  return identity_.root(root, found == entries_.end() ? base_ : found->second);
}

Digest Epochs::prefix(const Digest& hash) const {
  if (entries_.empty()) return hash;
  const auto found = entries_.find(hash);
  return found == entries_.end() ? hash : identity_.again(hash, found->second);
}

NameEpochs Epochs::list() const {
  NameEpochs list{.epoch = base_, .roots = {}};
  list.roots.reserve(entries_.size());
  for (const auto& [digest, epoch] : entries_) list.roots.push_back({digest, epoch});
  const auto before = [](const RootEpoch& a, const RootEpoch& b) { return a.root < b.root; };
  std::sort(list.roots.begin(), list.roots.end(), before);
  return list;
}

bool Epochs::forget_root(const RootKey& root) { return forget(identity_.root(root, 0)); }
bool Epochs::forget_prefix(const Digest& hash) { return forget(hash); }

bool Epochs::forget(const Digest& digest) {
  if (entries_.size() >= Offload::kRootEpochsMax && !entries_.contains(digest)) {
    forget_all();
    return false;
  }
  KVFOLIO_CHECK(newest_ + 1 > newest_);  // else what was forgotten would have its names again
  entries_[digest] = ++newest_;
  return true;
}

void Epochs::forget_all() noexcept {
  KVFOLIO_CHECK(newest_ + 1 > newest_);
  base_ = ++newest_;
  entries_.clear();
}

Status Epochs::check() const {
  const auto wrong = [this](const auto& one) {
    return one.second <= base_ || one.second > newest_;
  };
  if (entries_.size() <= Offload::kRootEpochsMax &&
      std::none_of(entries_.begin(), entries_.end(), wrong)) {
    return {};
  }
  return {ErrorCode::kAborted, "offload: an epoch is not between the base and the newest"};
}

}  // namespace kvfolio
