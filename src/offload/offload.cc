// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/offload.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "offload/offload_impl.h"

namespace kvfolio {
namespace {

using text::concat;

constexpr std::size_t kTiersMax = 8;

Status invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }

Status check(KVCacheManager& manager, const OffloadOptions& options) {
  const auto missing = [](const char* what) {
    return Status(ErrorCode::kFailedPrecondition, concat("offload: the manager ", what));
  };
  if (manager.storage() == nullptr) return missing("has no storage");
  if (!manager.options().list_findable) {
    return missing("does not list what becomes findable; set ManagerOptions::list_findable");
  }
  if (manager.options().max_transfers < 1) {
    return missing("allows no loads; set ManagerOptions::max_transfers to 1 or more");
  }
  if (options.bytes_per_poll < 1) {
    return invalid(
        concat("offload: bytes_per_poll is ", options.bytes_per_poll, ", allowed: 1 or more"));
  }
  if (!(options.load_bytes_per_s >= 0.0) || !(options.prefill_tokens_per_s >= 0.0)) {
    return invalid("offload: load_bytes_per_s and prefill_tokens_per_s, allowed: 0 or more");
  }
  if (options.tiers.size() > kTiersMax) {
    return invalid(concat("offload: ", options.tiers.size(), " tiers, allowed: ", kTiersMax));
  }
  for (const OffloadTier& tier : options.tiers) {
    if (tier.tier == nullptr) return invalid("offload: a tier is null");
  }
  return {};
}

}  // namespace

const char* to_string(LoadEnd end) noexcept {
  constexpr const char* kNames[] = {"loaded",  "part",      "nothing",  "recompute",
                                    "timeout", "no blocks", "forgotten"};
  const auto index = static_cast<std::size_t>(end);
  return index < std::size(kNames) ? kNames[index] : "invalid";
}

Offload::Impl::Impl(KVCacheManager& manager, const OffloadOptions& options, Identity identity,
                    HostArena arena)
    : manager_(manager),
      options_(options),
      identity_(std::move(identity)),
      arena_(std::make_unique<HostArena>(std::move(arena))),
      names_(manager, identity_, [this](const RootKey& root) { return epoch_of(root); }),
      epoch_(options.epoch),
      base_epoch_(options.epoch),
      has_(static_cast<std::size_t>(identity_.num_groups())) {
  for (const OffloadTier& tier : options.tiers) tiers_.push_back({.options = tier});
}

// A tier that is closed finishes what it has begun, so a few polls are enough. One that does not
// keeps the arena: its memory may still be read or written.
Offload::Impl::~Impl() {
  for (auto& [id, request] : requests_) {
    if (request.state == Request::State::kWriting) {
      static_cast<void>(manager_.finish_load(request.load.id, 0));
    }
  }
  requests_.clear();
  for (TierState& tier : tiers_) static_cast<void>(tier.options.tier->close({now_us_}));
  constexpr int kPolls = 100;
  for (int i = 0; i < kPolls && !ops_.empty(); ++i) collect();
  if (!ops_.empty()) static_cast<void>(arena_.release());
}

// ---- opening ----

std::uint64_t Offload::Impl::epoch_of(const RootKey& root) const {
  if (epochs_.empty()) return base_epoch_;
  const auto found = epochs_.find(identity_.root(root, 0));
  return found == epochs_.end() ? base_epoch_ : found->second;
}

void Offload::Impl::hash_prompt(Request& request, const OpenOptions& options, std::int32_t cached) {
  const std::int32_t unit = identity_.unit();
  request.root = identity_.root(options.root, epoch_of(options.root));
  request.hashes.resize(request.tokens.size() / static_cast<std::size_t>(unit));
  Digest before = request.root;
  const auto table = manager_.block_table(request.sequence, names_.group());
  std::int32_t from = 0;
  if (table) {
    const std::int32_t end = cached / unit * unit;
    const Digest* known = names_.known(*table, end);
    if (known != nullptr) {
      before = *known;
      from = end / unit;
    }
  }
  request.first_hash = from;
  for (auto i = static_cast<std::size_t>(from); i < request.hashes.size(); ++i) {
    const auto begin = static_cast<std::int32_t>(i) * unit;
    before = identity_.next(
        before, begin,
        std::span<const std::int32_t>(request.tokens)
            .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(unit)),
        options.media);
    request.hashes[i] = before;
  }
}

Result<OffloadOpened> Offload::Impl::open(std::span<const std::int32_t> tokens,
                                          const OpenOptions& options) {
  const auto opened = manager_.open(tokens, options);
  if (!opened) return opened.error();
  OffloadOpened result{.sequence = opened->sequence, .cached_tokens = opened->cached_tokens};
  const std::int32_t unit = identity_.unit();
  const auto length = static_cast<std::int32_t>(tokens.size());
  const bool looks = options.prefix_cache && options.look_up;
  if (!looks || length < std::max(unit, 2) || opened->cached_tokens >= length - 1) return result;
  Request request{.sequence = opened->sequence, .tokens = {tokens.begin(), tokens.end()}};
  request.length = opened->cached_tokens;
  hash_prompt(request, options, opened->cached_tokens);
  if (tiers_.empty()) {
    const auto can = reach(request, false);
    if (!can || can->end <= opened->cached_tokens) return result;
  }
  ++counters_.requests;
  requests_.emplace(++last_request_, std::move(request));
  result.pending = true;
  return result;
}

// ---- ends ----

void Offload::Impl::drop_request(std::uint64_t id) {
  for (auto& [key, arriving] : arriving_) give_up(arriving, id);
  requests_.erase(id);
}

void Offload::Impl::finish(std::uint64_t id, std::int32_t cached_tokens, LoadEnd why) {
  if (why == LoadEnd::kTimeout) ++counters_.requests_timed_out;
  ready_next_.push_back({requests_.at(id).sequence, cached_tokens, why});
  drop_request(id);
}

Result<std::int32_t> Offload::Impl::cancel(SequenceId sequence) {
  const auto wanted = [&](const auto& one) { return one.second.sequence == sequence; };
  const auto found = std::find_if(requests_.begin(), requests_.end(), wanted);
  if (found != requests_.end()) {
    const std::uint64_t id = found->first;
    ++counters_.requests_canceled;
    if (found->second.state == Request::State::kWriting) {
      end_writing(id);
    } else {
      drop_request(id);
    }
  }
  std::erase_if(ready_next_, [&](const SequenceReady& one) { return one.sequence == sequence; });
  const auto info = manager_.info(sequence);
  if (!info) return info.error();
  return info->length;
}

bool Offload::Impl::idle() const noexcept {
  return requests_.empty() && ops_.empty() && !more_findable_ && ready_next_.empty();
}

std::span<const SequenceReady> Offload::Impl::poll(std::uint64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  budget_ = options_.bytes_per_poll;
  collect();
  std::vector<std::uint64_t> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, request] : requests_) ids.push_back(id);
  for (const std::uint64_t id : ids) go_on(id);
  store_findable();
  ready_.clear();
  std::swap(ready_, ready_next_);
  // Those that forget() ended may have gone on since.
  std::erase_if(ready_, [this](const SequenceReady& one) {
    const auto info = manager_.info(one.sequence);
    return !info || info->in_open_step || info->length != one.cached_tokens;
  });
  return ready_;
}

// ---- forgetting ----

// `root`: whose; null: all. Their names change, so what arrives has to be dropped.
void Offload::Impl::forget_in_flight(const Digest* root) {
  names_.clear();
  std::vector<std::uint64_t> ids;
  for (const auto& [id, request] : requests_) {
    if (root == nullptr || request.root == *root) ids.push_back(id);
  }
  for (const std::uint64_t id : ids) {
    const Request& request = requests_.at(id);
    std::int32_t length = request.length;
    if (request.state == Request::State::kWriting) {
      length = request.load.begin;  // begin_load() may have found more
      static_cast<void>(manager_.finish_load(request.load.id, 0));
    }
    finish(id, length, LoadEnd::kForgotten);
  }
  for (auto& [key, arriving] : arriving_) {
    if (arriving.abandoned) continue;
    if (root != nullptr && arriving.expected.owner != root_owner(*root)) continue;
    arriving.abandoned = true;
    arena_->quarantine(arriving.slot);
  }
}

Forgotten Offload::Impl::forget(const RootKey& root) {
  const Digest before = identity_.root(root, epoch_of(root));
  epochs_[identity_.root(root, 0)] = ++epoch_;
  forget_in_flight(&before);
  arena_->erase_if([&](std::span<const std::byte> record) {
    RecordInfo info;
    return read_record_header(record, info) != RecordFault::kNone ||
           info.owner == root_owner(before);
  });
  return manager_.forget(root);
}

Forgotten Offload::Impl::reset() {
  base_epoch_ = ++epoch_;
  epochs_.clear();
  forget_in_flight(nullptr);
  arena_->clear();
  return manager_.reset();
}

// ---- the public face ----

Result<std::unique_ptr<Offload>> Offload::create(KVCacheManager& manager,
                                                 const OffloadOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check(manager, options));
  auto identity = Identity::create(options.model, manager.spec());
  if (!identity) return std::move(identity).error();
  std::vector<std::int64_t> sizes;
  sizes.reserve(static_cast<std::size_t>(identity->num_groups()));
  for (std::int32_t g = 0; g < identity->num_groups(); ++g) {
    sizes.push_back(kRecordHeaderBytes + manager.storage()->block_image_bytes(GroupId(g)));
  }
  auto arena = HostArena::create(
      {.bytes = options.arena_bytes, .record_bytes = sizes, .resource = options.resource});
  if (!arena) return std::move(arena).error();
  auto impl = std::make_unique<Impl>(manager, options, *std::move(identity), *std::move(arena));
  return std::unique_ptr<Offload>(new Offload(std::move(impl)));
}

Offload::Offload(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Offload::~Offload() = default;

Result<OffloadOpened> Offload::open(std::span<const std::int32_t> tokens,
                                    const OpenOptions& options) {
  return impl_->open(tokens, options);
}
std::span<const SequenceReady> Offload::poll(std::uint64_t now_us) { return impl_->poll(now_us); }
Result<std::int32_t> Offload::cancel(SequenceId sequence) { return impl_->cancel(sequence); }
bool Offload::idle() const noexcept { return impl_->idle(); }
Forgotten Offload::forget(const RootKey& root) { return impl_->forget(root); }
Forgotten Offload::reset() { return impl_->reset(); }
std::uint64_t Offload::epoch() const noexcept { return impl_->epoch(); }
const OffloadCounters& Offload::counters() const noexcept { return impl_->counters(); }
ArenaStats Offload::arena() const noexcept { return impl_->arena().stats(); }
const Identity& Offload::identity() const noexcept { return impl_->identity(); }
Status Offload::check_invariants() const { return impl_->arena().check_invariants(); }

}  // namespace kvfolio
