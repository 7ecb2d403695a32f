// SPDX-License-Identifier: Apache-2.0
#include "paged_backend.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "kvfolio/group_rule.h"
#include "kvfolio/plan_attention.h"
#include "kvfolio/storage.h"
#include "layer_call.h"

namespace kvfolio::llama {
namespace {

// Room for the tables and the unpublished tokens of all sequences at their longest. Four times
// that, since a table that grows moves to a place of twice its size.
std::int64_t table_entries(const CacheSpec& spec, const PagedOptions& options) {
  constexpr std::int64_t kSmallest = 1024;  // words of a sequence
  std::int64_t words = options.max_tokens;
  for (const GroupSpec& group : spec.groups) words += options.max_tokens / group.block_size + 1;
  return options.max_sequences * (4 * words + kSmallest);
}

}  // namespace

Result<std::unique_ptr<PagedBackend>> PagedBackend::create(const ModelConfig& config,
                                                           const CacheSpec& spec,
                                                           const PagedOptions& options,
                                                           CacheCompute& compute) {
  Result<std::vector<GroupLayout>> layouts = plan_layouts(spec);
  if (!layouts) return std::move(layouts).error();
  Result<KVStorage> storage = KVStorage::create(spec, &compute.memory());
  if (!storage) return std::move(storage).error();
  Result<KVCacheManager> manager = KVCacheManager::create(
      *std::move(storage), {.max_sequences = options.max_sequences,
                            .max_steps_in_flight = options.steps_in_flight,
                            .order = options.order,
                            .prefix_cache = options.prefix_cache,
                            .max_table_entries = table_entries(spec, options),
                            .list_findable = options.host_tier_bytes > 0});
  if (!manager) return std::move(manager).error();
  std::unique_ptr<PagedBackend> backend(new PagedBackend(
      std::make_unique<KVCacheManager>(*std::move(manager)), config, options, compute));
  backend->manager_->record(options.log);
  if (options.host_tier_bytes > 0) {
    Result<std::unique_ptr<Offload>> offload =
        Offload::create(*backend->manager_, {.model = options.identity,
                                             .arena_bytes = options.host_tier_bytes,
                                             .tiers = options.tiers,
                                             .timeout_us = options.load_timeout_us});
    if (!offload) return std::move(offload).error();
    backend->offload_ = *std::move(offload);
    backend->has_tiers_ = !options.tiers.empty();
    for (const OffloadTier& tier : options.tiers) {
      if (tier.tier->event_fd() >= 0) backend->tier_events_.push_back(tier.tier->event_fd());
    }
  }
  for (std::size_t group = 0; group < spec.groups.size(); ++group) {
    const GroupId id(static_cast<std::int32_t>(group));
    const Result<KVView> view = backend->manager_->storage()->view(id);
    if (!view) return view.error();
    backend->views_.push_back(*view);
    backend->block_bytes_.push_back((*layouts)[group].bytes_per_block);
    for (std::int32_t layer = 0; layer < spec.groups[group].num_layers; ++layer) {
      backend->places_.push_back({.group = group, .layer = layer});
    }
  }
  return backend;
}

PagedBackend::PagedBackend(std::unique_ptr<KVCacheManager> manager, const ModelConfig& config,
                           const PagedOptions& options, CacheCompute& compute)
    : manager_(std::move(manager)),
      identity_(options.identity),
      steps_in_flight_(options.steps_in_flight),
      scale_(1.0 / std::sqrt(static_cast<double>(config.head_dim))),
      compute_(compute) {}

namespace {

// Each sequence says what it is going to compute, so that others need not compute it as well.
OpenOptions open_options(const OpenLimits& limits) {
  OpenOptions options;
  options.prefix_cache = limits.prefix_cache;
  options.look_up = limits.look_up;
  options.announce = true;
  return options;
}

}  // namespace

Result<OffloadOpened> PagedBackend::open(std::span<const std::int32_t> tokens,
                                         const OpenLimits& limits) {
  const OpenOptions options = open_options(limits);
  if (offload_ != nullptr) return offload_->open(tokens, options);
  const Result<Opened> opened = manager_->open(tokens, options);
  if (!opened) return opened.error();
  return OffloadOpened{.sequence = opened->sequence, .cached_tokens = opened->cached_tokens};
}

Result<SequenceId> PagedBackend::worth_waiting_for(std::span<const std::int32_t> tokens,
                                                   const OpenLimits& limits) {
  const OpenOptions options = open_options(limits);
  const Result<Soon> soon = manager_->soon(tokens, options);
  if (!soon) return soon.error();
  if (soon->tokens == 0) return SequenceId();
  const Result<std::int32_t> now = manager_->probe(tokens, options);
  if (!now) return now.error();
  return soon->tokens - *now >= unit_of(manager_->spec()) ? soon->by : SequenceId();
}

std::span<const SequenceReady> PagedBackend::poll() {
  if (offload_ == nullptr) return {};
  return offload_->poll(tick());
}

// A sequence that is closed while its load is written gives the blocks back now, not at the next
// poll.
Status PagedBackend::close(SequenceId sequence) {
  if (offload_ != nullptr) static_cast<void>(offload_->cancel(sequence));
  return manager_->close(sequence);
}

std::uint64_t PagedBackend::tick() {
  if (!has_tiers_) return ++polls_;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

void PagedBackend::wait_for_tiers() const {
  if (!has_tiers_) return;
  std::array<pollfd, 8> events{};
  const std::size_t n = std::min(events.size(), tier_events_.size());
  for (std::size_t i = 0; i < n; ++i) events[i] = {tier_events_[i], POLLIN, 0};
  ::poll(events.data(), n, 1);
}

Status PagedBackend::finish_stores() {
  KVFOLIO_RETURN_IF_ERROR(complete_in_flight());
  if (offload_ == nullptr) return {};
  while (offload_->drain(tick()).any()) wait_for_tiers();
  return {};
}

Result<Identity> PagedBackend::identity() const {
  return Identity::create(identity_, manager_->spec());
}

std::string PagedBackend::metrics(MetricLabels labels) const {
  Metrics metrics;
  metrics.add(*manager_, labels, MetricNames::kAll);
  if (offload_ != nullptr) add_metrics(metrics, *offload_, labels);
  return metrics.text();
}

Result<SaveStats> PagedBackend::save(ByteSink& sink, const RecordKeyOptions& keys) {
  KVFOLIO_RETURN_IF_ERROR(complete_in_flight());
  const Result<Identity> names = identity();
  if (!names) return names.error();
  return kvfolio::save(*manager_, *names, sink, {.keys = keys});
}

Result<RestoreStats> PagedBackend::restore(ByteSource& source, const RecordKeyOptions& keys) {
  const Result<Identity> names = identity();
  if (!names) return names.error();
  return kvfolio::restore(*manager_, *names, source, {.keys = keys});
}

Status PagedBackend::evict_cached() {
  KVFOLIO_RETURN_IF_ERROR(finish_stores());
  for (std::size_t group = 0; group < views_.size(); ++group) {
    const GroupId id(static_cast<std::int32_t>(group));
    const Result<std::int32_t> evicted = manager_->evict(id, views_[group].num_blocks);
    if (!evicted) return evicted.error();
  }
  return {};
}

Status PagedBackend::begin_step() {
  const Result<Ticket> ticket = manager_->begin_step();
  if (!ticket) return ticket.error();
  ticket_ = *ticket;
  return {};
}

Status PagedBackend::prepare() {
  const Result<const StepPlan*> plan = manager_->plan();
  if (!plan) return plan.error();
  plan_ = *plan;
  for (const GroupPlan& group : plan_->groups) {
    // The host runs the copies: what they read has to be there.
    if (!group.copy_src.empty()) KVFOLIO_RETURN_IF_ERROR(complete_in_flight());
  }
  return manager_->run_copies();
}

Status PagedBackend::finish_step() {
  if (steps_in_flight_ == 1) return manager_->finish(ticket_);
  steps_overlapped_ += in_flight_ ? 1 : 0;
  KVFOLIO_RETURN_IF_ERROR(manager_->commit(ticket_));
  KVFOLIO_RETURN_IF_ERROR(complete_in_flight());
  in_flight_ = ticket_;
  return {};
}

Status PagedBackend::drop_step() {
  KVFOLIO_RETURN_IF_ERROR(manager_->drop(ticket_));
  return complete_in_flight();  // what it waits for may be what no sequence found room for
}

Status PagedBackend::complete_in_flight() {
  if (!in_flight_) return {};
  const Ticket ticket = *in_flight_;
  in_flight_.reset();
  return manager_->complete(ticket);
}

Status PagedBackend::layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
                           const ConstRowsView& v, const RowsView& out) {
  const Place place = places_[static_cast<std::size_t>(layer)];
  return compute_.layer(
      {.cache = views_[place.group],
       .layer = place.layer,
       .k = k,
       .v = v,
       .slots = plan_->groups[place.group].slot_mapping,
       .batch = attention_batch(*plan_, GroupId(static_cast<std::int32_t>(place.group))),
       .params = attention_params(manager_->spec().groups[place.group], scale_),
       .q = q,
       .out = out});
}

// The first question is about all of the tokens, the second one about table entries, which only the
// call that is not const keeps. Under kUnordered a window gives blocks back when steps are complete
// and not while they are made: there a prompt longer than the pool can be asked for a step of it.
Status PagedBackend::admit(SequenceId sequence, std::int64_t num_tokens,
                           std::int64_t most_per_step) {
  const std::int64_t first = std::min(num_tokens, most_per_step);
  const std::vector<GroupSpec>& groups = manager_->spec().groups;
  const bool by_chunks = manager_->options().order == Order::kInOrder ||
                         std::all_of(groups.begin(), groups.end(), [](const GroupSpec& group) {
                           return GroupRule(group).keeps_all();
                         });
  const Result<Admission> admission = std::as_const(*manager_).admit(
      sequence, by_chunks ? num_tokens : first, {.most_per_step = most_per_step});
  if (!admission) return admission.error();
  return manager_->admit(sequence, first);
}

std::int64_t PagedBackend::tokens_too_many(const Shortage& shortage) const {
  const GroupSpec& group = manager_->spec().groups[static_cast<std::size_t>(shortage.group)];
  if (GroupRule(group).keeps_all()) return 0;
  return (std::int64_t{shortage.needed} - shortage.free - shortage.evictable) * group.block_size;
}

Status PagedBackend::can_ever_hold(std::int32_t num_shared, std::int32_t num_tokens,
                                   std::int32_t num_branches) const {
  for (const GroupSpec& group : manager_->spec().groups) {
    const std::int64_t needed = blocks_needed(
        group, {.num_shared = num_shared, .num_tokens = num_tokens, .num_branches = num_branches});
    if (needed > group.num_blocks) {
      return Status(ErrorCode::kInvalidArgument, "needs " + std::to_string(needed) + " blocks of " +
                                                     std::to_string(group.block_size) +
                                                     " tokens at once, the pool has " +
                                                     std::to_string(group.num_blocks));
    }
  }
  return {};
}

CacheUsage PagedBackend::usage() const {
  CacheUsage all;
  for (std::size_t group = 0; group < block_bytes_.size(); ++group) {
    const Result<GroupUsage> usage = manager_->usage(GroupId(static_cast<std::int32_t>(group)));
    if (!usage) continue;
    const std::int64_t blocks = std::int64_t{usage->held} + usage->retiring;
    all.blocks += blocks;
    all.bytes += blocks * block_bytes_[group];
  }
  return all;
}

}  // namespace kvfolio::llama
