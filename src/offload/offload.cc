// SPDX-License-Identifier: Apache-2.0

#include "kvfolio/offload.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "offload/offload_impl.h"

namespace kvfolio {
namespace {

using text::concat;

// A tier that takes no record would be silent for ever, and so would all of them if a group's
// blocks have no place: a prefix is loaded of all groups together.
Status check_limits(KVCacheManager& manager, std::span<const OffloadTier> tiers) {
  const auto takes = [&](const OffloadTier& tier, std::int32_t group) {
    const std::int64_t most = tier.tier->limits().record_bytes_max;
    return most == 0 || record_bytes_of(manager, GroupId(group)) <= most;
  };
  const auto refused = [&](const OffloadTier& tier, std::int32_t group) {
    return invalid(concat(
        "offload: a record of group ", group, " has ", record_bytes_of(manager, GroupId(group)),
        " bytes, tier ", tier.tier->name(), " takes at most ", tier.tier->limits().record_bytes_max,
        "; raise its limit or its budget, or make blocks smaller"));
  };
  const auto num_groups = static_cast<std::int32_t>(manager.spec().groups.size());
  for (const OffloadTier& tier : tiers) {
    std::int32_t group = 0;
    while (group < num_groups && !takes(tier, group)) ++group;
    if (group == num_groups) return refused(tier, 0);
  }
  for (std::int32_t group = 0; group < num_groups && !tiers.empty(); ++group) {
    const auto takes_it = [&](const OffloadTier& tier) { return takes(tier, group); };
    if (std::none_of(tiers.begin(), tiers.end(), takes_it)) return refused(tiers.front(), group);
  }
  return {};
}

Status check_tiers(std::span<const OffloadTier> tiers) {
  static_assert(Request::kTiersMax == 8);
  if (tiers.size() > 8) return invalid(concat("offload: ", tiers.size(), " tiers, allowed: 8"));
  for (const OffloadTier& tier : tiers) {
    if (tier.tier == nullptr) return invalid("offload: a tier is null");
    const TierLimits limits = tier.tier->limits();
    const std::int64_t alignment = limits.data_alignment;
    if (alignment < 1 || alignment > 4096 || (alignment & (alignment - 1)) != 0) {
      return invalid(concat("offload: tier ", tier.tier->name(), " wants data aligned to ",
                            alignment, " bytes, allowed: powers of two from 1 to 4096"));
    }
    if (std::any_of(tiers.data(), &tier, [&](const auto& one) { return one.tier == tier.tier; })) {
      return invalid(concat("offload: tier ", tier.tier->name(), " is given twice"));
    }
    if (limits.record_bytes_max < 0 || tier.store_bytes_max < 0 || tier.load_bytes_max < 0) {
      return invalid(concat("offload: tier ", tier.tier->name(), " has a limit below 0"));
    }
  }
  return {};
}

std::int64_t alignment_of(std::span<const OffloadTier> tiers) {
  std::int64_t alignment = 64;
  for (const OffloadTier& tier : tiers) {
    alignment = std::max(alignment, tier.tier->limits().data_alignment);
  }
  return alignment;
}

// Behind the last number comes 0, under which things were stored that are forgotten.
Status check_epochs(const OffloadOptions& options) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 63;
  std::uint64_t newest = options.epoch;
  for (const RootEpoch& root : options.root_epochs) newest = std::max(newest, root.epoch);
  if (newest <= kMost) return {};
  return invalid(concat("offload: an epoch of ", newest, ", allowed: at most ", kMost,
                        "; give what epochs() said"));
}

Status check_options(KVCacheManager& manager, const OffloadOptions& options) {
  const auto missing = [](const char* what) {
    return Status(ErrorCode::kFailedPrecondition, concat("offload: the manager ", what));
  };
  if (manager.storage() == nullptr) return missing("has no storage");
  if (!manager.options().list_findable) {
    return missing("does not list what becomes findable; set its option list_findable");
  }
  if (manager.options().max_transfers < 1) {
    return missing("allows no loads; set its option max_transfers to 1 or more");
  }
  if (options.bytes_per_poll < 1) {
    return invalid(
        concat("offload: bytes_per_poll is ", options.bytes_per_poll, ", allowed: 1 or more"));
  }
  if (!(options.load_bytes_per_s >= 0.0) || !(options.prefill_tokens_per_s >= 0.0)) {
    return invalid("offload: load_bytes_per_s and prefill_tokens_per_s, allowed: 0 or more");
  }
  if (options.root_epochs.size() > Offload::kRootEpochsMax) {
    return invalid(concat("offload: ", options.root_epochs.size(),
                          " root_epochs, allowed: ", Offload::kRootEpochsMax));
  }
  KVFOLIO_RETURN_IF_ERROR(check_epochs(options));
  KVFOLIO_RETURN_IF_ERROR(check_tiers(options.tiers));
  return check_limits(manager, options.tiers);
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
    : alias_(manager),
      options_(options),
      identity_(std::move(identity)),
      arena_(std::make_unique<HostArena>(std::move(arena))),
      names_(
          manager_, identity_, [this](const RootKey& root) { return epochs_.root(root); },
          [this](const Digest& hash) { return epochs_.prefix(hash); }),
      epochs_(identity_, options.epoch, options.root_epochs),
      requests_(identity_, epochs_, manager_.spec().groups) {
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    largest_record_ = std::max(largest_record_, record_bytes(GroupId(g)));
  }
  KVFOLIO_CHECK(largest_record_ > kRecordHeaderBytes);
  const auto num_tiers = static_cast<std::int64_t>(options.tiers.size());
  for (const OffloadTier& tier : options.tiers) {
    ports_.emplace_back(tier, options.arena_bytes / (num_tiers + 1), largest_record_,
                        alignment_of(options.tiers));
  }
  if (options.hold_stores) held_ = HeldStores(manager_.spec().groups);
  forgets_seen_ = manager_.forget_count();
}

// Answers to questions touch no memory, so they are not waited for.
Offload::Impl::~Impl() {
  std::optional<std::pair<TierKey, std::int64_t>> touched = leave_copies();
  requests_.clear();
  if (!process_.is_this()) leave_to_parent();
  constexpr int kPolls = 100;
  for (int i = 0; i < kPolls && ops_.touch_memory(); ++i) {
    budget_ = options_.bytes_per_poll;
    collect();
  }
  // An arena with a slot that is quarantined keeps its memory, also when it ends. A store that goes
  // on needs that too: one of those slots stands for all of them.
  give_up_all();
  for (TierPort& port : ports_) port.drop_all();
  ops_.for_each([&touched](std::uint64_t, Op& op) {
    if (op.kind == TierOp::kStore) touched = {op.key, op.bytes};
    op.pin.release();
  });
  if (!touched) return;
  const auto slot = arena_->reserve(touched->first, touched->second);
  KVFOLIO_CHECK(slot.has_value());  // nothing is pinned any more
  static_cast<void>(arena_->fill(*slot));
  arena_->quarantine(*slot);
}

// ---- opening ----

// The hashes of what the cache has, as far as it has them under a name.
void Offload::Impl::skip_known(Request& request) {
  const std::int32_t unit = identity_.unit();
  const auto table = manager_.block_table(request.sequence, names_.group());
  if (!table) return;
  const std::int32_t end = request.length / unit * unit;
  const Digest* known = names_.known(*table, end);
  if (known == nullptr) return;
  request.before = *known;
  request.first_hash = request.num_hashed = end / unit;
}

Result<OffloadOpened> Offload::Impl::open(std::span<const std::int32_t> tokens,
                                          const OpenOptions& options) {
  notice_forgetting();
  const auto opened = manager_.open(tokens, options);
  if (!opened) return opened.error();
  OffloadOpened result{.sequence = opened->sequence, .cached_tokens = opened->cached_tokens};
  const std::int32_t unit = identity_.unit();
  const auto length = static_cast<std::int32_t>(tokens.size());
  const bool looks = options.prefix_cache && options.look_up;
  if (!looks || length < std::max(unit, 2) || opened->cached_tokens >= length - 1) return result;
  Request request = requests_.make(opened->sequence, tokens, options, opened->cached_tokens);
  skip_known(request);
  steps_.begin_call();
  if (ports_.empty() && requests_.hash_part(request, steps_) &&
      look_for_blocks(request, false, request.horizon)) {
    const auto can = reach(request, request.horizon);
    if (!can || can->end <= opened->cached_tokens) return result;
  }
  ++counters_.requests;
  requests_.add(std::move(request));
  result.pending = true;
  return result;
}

// ---- ends ----

void Offload::Impl::drop_request(Request& request) {
  stop_waiting(request, false);
  requests_.remove(request);
}

void Offload::Impl::finish(Request& request, std::int32_t cached_tokens, LoadEnd why) {
  KVFOLIO_CHECK(cached_tokens >= 0 && cached_tokens <= request.last_token());
  if (why == LoadEnd::kTimeout) ++counters_.requests_timed_out;
  if (why == LoadEnd::kNothing && request.has_a_part) why = LoadEnd::kLoaded;
  ready_next_.push_back({request.sequence, cached_tokens, why});
  drop_request(request);
}

Result<std::int32_t> Offload::Impl::cancel(SequenceId sequence) {
  notice_forgetting();
  if (Request* request = requests_.find(requests_.of(sequence)); request != nullptr) {
    request->failed |= !request->is_last_part();  // no part follows
    if (!end_copies(*request)) {
      request->stops = true;
      return Status(ErrorCode::kFailedPrecondition,
                    "cancel: blocks of the sequence's load are being copied; poll() says when it "
                    "is ready");
    }
    ++counters_.requests_canceled;
    if (request->state == Request::State::kWriting) {
      end_writing(*request);
    } else {
      drop_request(*request);
    }
  }
  std::erase_if(ready_next_, [&](const SequenceReady& one) { return one.sequence == sequence; });
  const auto info = manager_.info(sequence);
  if (!info) return info.error();
  return info->length;
}

// ---- turns ----

void Offload::Impl::take_turn(std::uint64_t now_us, bool draining) {
  now_us_ = std::max(now_us_, now_us);
  budget_ = options_.bytes_per_poll;
  steps_.begin_call();
  requests_.begin_turns();
  notice_forgetting();
  look_at_tiers();
  collect();
  end_stores();
  watch_stores();
  probe_tiers();
  steps_.keep_for_stores();
  for (const Requests::Id id : requests_.ids()) {
    if (Request* request = requests_.find(id); request != nullptr) go_on(*request);
  }
  steps_.give_to_stores();
  store_backlog();
  store_findable(draining);
  erase_forgotten();
  published_seen_ = manager_.counters().blocks_published;
  for (TierPort& port : ports_) port.count();
}

std::span<const SequenceReady> Offload::Impl::poll(std::uint64_t now_us) {
  take_turn(now_us, false);
  ready_.clear();
  std::swap(ready_, ready_next_);
  // Those that forget() ended may have gone on since.
  std::erase_if(ready_, [this](const SequenceReady& one) {
    const auto info = manager_.info(one.sequence);
    return !info || info->in_open_step || info->length != one.cached_tokens;
  });
  return ready_;
}

OffloadLeft Offload::Impl::drain(std::uint64_t now_us) {
  for (const Requests::Id id : requests_.ids()) {
    if (Request* request = requests_.find(id); request != nullptr) {
      static_cast<void>(cancel(request->sequence));
    }
  }
  ready_next_.clear();
  take_turn(now_us, true);
  return left();
}

OffloadLeft Offload::Impl::left() const noexcept {
  OffloadLeft left = ops_.in_flight();
  left.blocks = more_findable_ || manager_.num_steps() > 0 ||
                manager_.counters().blocks_published != published_seen_;
  for (const TierPort& port : ports_) left.stores += port.num_waiting();
  left.blocks |= !storing_.empty();
  left.loads += requests_.num_copying();
  return left;
}

Status Offload::Impl::check_ports() const {
  std::array<TierPort::InFlight, Request::kTiersMax> seen{};
  ops_.for_each([&](std::uint64_t, const Op& op) {
    seen[static_cast<std::size_t>(op.tier)].add(op.kind, ports_[0].slot(op.bytes),
                                                op.given_up || op.overdue);
  });
  for (std::size_t t = 0; t < ports_.size(); ++t) {
    KVFOLIO_RETURN_IF_ERROR(ports_[t].check(seen[t]));
  }
  return {};
}

Status Offload::Impl::check_invariants() const {
  std::int64_t loads_wanted = 0;
  Status status;
  ops_.for_each([&](std::uint64_t tag, const Op& op) {
    if (op.kind != TierOp::kLoad || op.given_up) return;
    ++loads_wanted;
    const Arriving* const arriving = requests_.arriving(op.key);
    if (arriving != nullptr && arriving->tag == tag) return;
    status = {ErrorCode::kAborted, concat("offload: load ", tag, " arrives nowhere")};
  });
  KVFOLIO_RETURN_IF_ERROR(status);
  KVFOLIO_RETURN_IF_ERROR(ops_.check());
  KVFOLIO_RETURN_IF_ERROR(check_ports());
  KVFOLIO_RETURN_IF_ERROR(epochs_.check());
  KVFOLIO_RETURN_IF_ERROR(forgotten_.check());
  KVFOLIO_RETURN_IF_ERROR(names_.check());
  KVFOLIO_RETURN_IF_ERROR(requests_.check());
  KVFOLIO_RETURN_IF_ERROR(check_stores());
  if (loads_wanted == std::ssize(requests_.arrivals())) return arena_->check_invariants();
  return {ErrorCode::kAborted, concat("offload: ", loads_wanted, " loads are waited for, ",
                                      requests_.arrivals().size(), " arrive")};
}

// ---- the public face ----

Result<std::unique_ptr<Offload>> Offload::create(KVCacheManager& manager,
                                                 const OffloadOptions& options) {
  // Also if it was moved from.
  if (const auto usage = manager.usage(GroupId(0)); !usage) return usage.error();
  KVFOLIO_RETURN_IF_ERROR(check_options(manager, options));
  auto identity = Identity::create(options.model, manager.spec());
  if (!identity) return std::move(identity).error();
  std::vector<std::int64_t> sizes;
  sizes.reserve(static_cast<std::size_t>(identity->num_groups()));
  for (std::int32_t g = 0; g < identity->num_groups(); ++g) {
    sizes.push_back(record_bytes_of(manager, GroupId(g)));
  }
  auto arena = HostArena::create({.bytes = options.arena_bytes,
                                  .record_bytes = sizes,
                                  .resource = options.resource,
                                  .alignment = alignment_of(options.tiers)});
  if (!arena) return std::move(arena).error();
  auto impl = std::make_unique<Impl>(manager, options, *std::move(identity), *std::move(arena));
  return std::unique_ptr<Offload>(new Offload(std::move(impl)));
}

Offload::Offload(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Offload::~Offload() = default;

Offload::Impl& Offload::asked(const char* call) const noexcept {
  const Status there = impl_->check_there(call);
  if (!there.ok()) kvfolio_check_failed(nullptr, 0, there.message().c_str());
  return *impl_;
}

Result<OffloadOpened> Offload::open(std::span<const std::int32_t> tokens,
                                    const OpenOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(impl_->check_there("open"));
  return impl_->open(tokens, options);
}
std::span<const SequenceReady> Offload::poll(std::uint64_t now_us) {
  return asked("poll").poll(now_us);
}
Result<std::int32_t> Offload::cancel(SequenceId sequence) {
  KVFOLIO_RETURN_IF_ERROR(impl_->check_there("cancel"));
  return impl_->cancel(sequence);
}
bool Offload::idle() const noexcept { return asked("idle").idle(); }
std::size_t Offload::num_pending() const noexcept { return impl_->num_pending(); }
OffloadLeft Offload::drain(std::uint64_t now_us) { return asked("drain").drain(now_us); }
void Offload::release_stores() { asked("release_stores").release_stores(); }
Forgotten Offload::forget(const RootKey& root) { return asked("forget").forget(root); }
Result<Forgotten> Offload::forget(std::span<const std::int32_t> tokens,
                                  const OpenOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(impl_->check_there("forget"));
  return impl_->forget(tokens, options);
}
Forgotten Offload::reset() { return asked("reset").reset(); }
std::uint64_t Offload::epoch() const noexcept { return asked("epoch").epoch(); }
NameEpochs Offload::epochs() const { return asked("epochs").epochs(); }
const OffloadCounters& Offload::counters() const noexcept { return impl_->counters(); }
std::size_t Offload::num_tiers() const noexcept { return impl_->num_tiers(); }
const OffloadTierCounters& Offload::tier_counters(std::size_t tier) const noexcept {
  return impl_->tier_counters(tier);
}
const Tier& Offload::tier(std::size_t tier) const noexcept { return impl_->tier(tier); }
ArenaStats Offload::arena() const noexcept { return impl_->arena().stats(); }
const Identity& Offload::identity() const noexcept { return impl_->identity(); }
Status Offload::check_invariants() const {
  KVFOLIO_RETURN_IF_ERROR(impl_->check_there("check_invariants"));
  return impl_->check_invariants();
}

}  // namespace kvfolio
