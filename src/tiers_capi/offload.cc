// SPDX-License-Identifier: Apache-2.0
//
// Offload.

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "kvfolio/manager.h"
#include "tiers_capi/tiers_capi.h"

namespace kvfolio::capi {

static_assert(static_cast<int>(LoadEnd::kForgotten) == KVFOLIO_LOAD_FORGOTTEN);

namespace {

constexpr std::int32_t kTiersMax = 8;  // of an Offload

Status read_policy(std::string_view call, std::int32_t policy, WritePolicy& out) {
  constexpr WritePolicy kPolicies[] = {WritePolicy::kWriteThrough, WritePolicy::kSecondUse,
                                       WritePolicy::kOff};
  if (policy < 0 || policy > KVFOLIO_WRITE_OFF) {
    return {ErrorCode::kInvalidArgument, concat(call, ": policy is ", policy, ", allowed: 0 to ",
                                                static_cast<int>(KVFOLIO_WRITE_OFF))};
  }
  out = kPolicies[policy];
  return {};
}

Status read_budget(std::string_view call, std::string_view name, std::int64_t bytes,
                   std::int64_t& out) {
  if (bytes < 0) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", name, " is ", bytes, ", allowed: 0 or more")};
  }
  if (bytes > 0) out = bytes;
  return {};
}

Status read_tiers(std::string_view call, const kvfolio_offload_tier* tiers, std::int32_t num_tiers,
                  std::vector<OffloadTier>& out) {
  if (num_tiers > kTiersMax) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": ", num_tiers, " tiers, allowed: 0 to ", kTiersMax)};
  }
  KVFOLIO_RETURN_IF_ERROR(check_elements(call, "tiers", tiers, num_tiers));
  for (std::int32_t i = 0; i < num_tiers; ++i) {
    kvfolio_offload_tier tier;
    KVFOLIO_RETURN_IF_ERROR(read_struct(call, "tiers", element(tiers, i), tier));
    if (tier.tier == nullptr) return null_argument(call, concat("tiers[", i, "].tier"));
    OffloadTier& to = out.emplace_back();
    to.tier = tier.tier->tier.get();
    KVFOLIO_RETURN_IF_ERROR(read_policy(call, tier.policy, to.policy));
    KVFOLIO_RETURN_IF_ERROR(
        read_budget(call, "store_bytes_max", tier.store_bytes_max, to.store_bytes_max));
    KVFOLIO_RETURN_IF_ERROR(
        read_budget(call, "load_bytes_max", tier.load_bytes_max, to.load_bytes_max));
    for (std::int32_t before = 0; before < i; ++before) {
      if (out[static_cast<std::size_t>(before)].tier != to.tier) continue;
      return {ErrorCode::kInvalidArgument,
              concat(call, ": tiers[", before, "] and tiers[", i, "] are one tier")};
    }
  }
  return {};
}

Status read_options(std::string_view call, const kvfolio_offload_options* theirs,
                    OffloadOptions& out, std::vector<RootEpoch>& root_epochs) {
  kvfolio_offload_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", theirs, options));
  out.arena_bytes = options.arena_bytes;
  if (options.bytes_per_poll != 0) out.bytes_per_poll = options.bytes_per_poll;
  if (options.timeout_us != 0) out.timeout_us = options.timeout_us;
  if (options.copy_timeout_us != 0) out.copy_timeout_us = options.copy_timeout_us;
  out.load_bytes_per_s = options.load_bytes_per_s;
  out.prefill_tokens_per_s = options.prefill_tokens_per_s;
  out.epoch = options.epoch;
  KVFOLIO_RETURN_IF_ERROR(
      check_array(call, "root_epochs", options.root_epochs, options.num_root_epochs));
  for (const kvfolio_root_epoch& one : span_of(options.root_epochs, options.num_root_epochs)) {
    RootEpoch& to = root_epochs.emplace_back();
    std::memcpy(to.root.data(), one.root.bytes, sizeof(one.root.bytes));
    to.epoch = one.epoch;
  }
  out.root_epochs = root_epochs;
  return {};
}

bool is_there(const kvfolio_offload& offload) noexcept { return !offload.lifetime.expired(); }

Status check_manager(std::string_view call, const kvfolio_offload& offload) {
  if (is_there(offload)) return {};
  return {ErrorCode::kFailedPrecondition,
          concat(call, ": the manager of this Offload was destroyed before it")};
}

#define KVFOLIO_C_NEEDS_OFFLOAD(offload) \
  KVFOLIO_C_NEEDS(offload);              \
  KVFOLIO_C_RETURN_IF_ERROR(check_manager(__func__, *(offload)))

void give_forgotten(const Forgotten& forgotten, std::int64_t* blocks, std::int32_t* pins) noexcept {
  if (blocks != nullptr) *blocks = forgotten.blocks;
  if (pins != nullptr) *pins = forgotten.pins;
}

// The header names the bounds.
static_assert(OffloadTierCounters::kLatencyUs ==
              std::array<std::uint64_t, KVFOLIO_NUM_LATENCIES - 1>{
                  100, 300, 1'000, 3'000, 10'000, 30'000, 100'000, 300'000, 1'000'000});

// Both have as many elements, or this does not compile.
template <std::size_t kSize>
void give_array(const std::array<std::uint64_t, kSize>& from, std::uint64_t (&to)[kSize]) noexcept {
  std::copy(from.begin(), from.end(), to);
}

kvfolio_offload_tier_counters tier_counters_of(const OffloadTierCounters& from) noexcept {
  kvfolio_offload_tier_counters to{};
  to.stores = from.stores;
  to.stores_failed = from.stores_failed;
  to.loads = from.loads;
  to.loads_corrupt = from.loads_corrupt;
  give_array(from.loads_failed, to.loads_failed);
  to.bytes_stored = from.bytes_stored;
  to.bytes_loaded = from.bytes_loaded;
  give_array(from.store_latency, to.store_latency);
  give_array(from.load_latency, to.load_latency);
  to.store_us = from.store_us;
  to.load_us = from.load_us;
  to.stores_failed_in_a_row = from.stores_failed_in_a_row;
  to.stores_dropped = from.stores_dropped;
  to.stores_again = from.stores_again;
  to.pauses = from.pauses;
  to.bytes_held = from.bytes_held;
  to.passed_over = from.passed_over ? 1 : 0;
  return to;
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_offload_create(kvfolio_manager* manager, const kvfolio_model_identity* model,
                               const kvfolio_offload_options* options,
                               const kvfolio_offload_tier* tiers, int32_t num_tiers,
                               const kvfolio_memory_resource* resource, kvfolio_offload** out,
                               kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  OffloadOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_model(__func__, model, ours.model));
  std::vector<RootEpoch> root_epochs;
  KVFOLIO_C_RETURN_IF_ERROR(read_options(__func__, options, ours, root_epochs));
  std::vector<OffloadTier> all;
  KVFOLIO_C_RETURN_IF_ERROR(read_tiers(__func__, tiers, num_tiers, all));
  ours.tiers = all;
  auto handle = std::make_unique<kvfolio_offload>();
  KVFOLIO_C_RETURN_IF_ERROR(read_resource(__func__, resource, handle->resource));
  ours.resource = handle->resource.get();
  handle->manager = &manager_of(*manager);
  handle->lifetime = lifetime_of(*manager);
  Result<std::unique_ptr<Offload>> offload = Offload::create(*handle->manager, ours);
  if (!offload) return answer(error, offload.error());
  handle->offload = *std::move(offload);
  handle->identity.identity = &handle->offload->identity();
  *out = handle.release();
  return KVFOLIO_OK;
}

// Its manager gone, an Offload may not end: it would speak to it. So it is left where it is.
void kvfolio_offload_destroy(kvfolio_offload* offload) {
  const NothingThrown nothing;
  if (offload != nullptr && is_there(*offload)) delete offload;
}

int32_t kvfolio_offload_is_of(const kvfolio_offload* offload, const kvfolio_manager* manager) {
  if (offload == nullptr || manager == nullptr) return 0;
  const std::shared_ptr<const void> lifetime = offload->lifetime.lock();
  return lifetime != nullptr && lifetime == lifetime_of(*manager).lock() ? 1 : 0;
}

int32_t kvfolio_offload_open(kvfolio_offload* offload, const kvfolio_root* root,
                             const int32_t* tokens, int64_t num_tokens,
                             const kvfolio_media_span* media, int64_t num_media,
                             const kvfolio_open_options* options, kvfolio_sequence* out,
                             int32_t* cached_tokens, int32_t* pending, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS_OFFLOAD(offload);
  KVFOLIO_C_NEEDS(out);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, options, prompt));
  const Result<OffloadOpened> opened = offload->offload->open(prompt.tokens, prompt.options);
  if (!opened) return answer(error, opened.error());
  *out = opened->sequence.value();
  if (cached_tokens != nullptr) *cached_tokens = opened->cached_tokens;
  if (pending != nullptr) *pending = opened->pending ? 1 : 0;
  return KVFOLIO_OK;
}

const char* kvfolio_load_end_name(int32_t why) {
  if (why < 0 || why > KVFOLIO_LOAD_FORGOTTEN) return "invalid";
  return to_string(static_cast<LoadEnd>(why));
}

int64_t kvfolio_offload_poll(kvfolio_offload* offload, uint64_t now_us,
                             kvfolio_sequence_ready* ready, int64_t capacity) {
  const NothingThrown nothing;
  if (offload == nullptr || !is_there(*offload) ||
      !check_array(__func__, "ready", ready, capacity).ok()) {
    return 0;
  }
  std::vector<SequenceReady>& waiting = offload->ready;
  // As Offload does: who has gone on since need not be told.
  std::erase_if(waiting, [&](const SequenceReady& one) {
    const Result<SequenceInfo> info = offload->manager->info(one.sequence);
    return !info || info->in_open_step || info->length != one.cached_tokens;
  });
  const std::span<const SequenceReady> more = offload->offload->poll(now_us);
  waiting.insert(waiting.end(), more.begin(), more.end());
  const auto n = std::min(capacity, static_cast<std::int64_t>(waiting.size()));
  for (std::int64_t i = 0; i < n; ++i) {
    const SequenceReady& one = waiting[static_cast<std::size_t>(i)];
    ready[i] = {.sequence = one.sequence.value(),
                .cached_tokens = one.cached_tokens,
                .why = static_cast<std::int32_t>(one.why)};
  }
  waiting.erase(waiting.begin(), waiting.begin() + n);
  return n;
}

int32_t kvfolio_offload_cancel(kvfolio_offload* offload, kvfolio_sequence sequence, int32_t* length,
                               kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS_OFFLOAD(offload);
  std::erase_if(offload->ready,
                [&](const SequenceReady& one) { return one.sequence == SequenceId(sequence); });
  const Result<std::int32_t> now = offload->offload->cancel(SequenceId(sequence));
  if (!now) return answer(error, now.error());
  if (length != nullptr) *length = *now;
  return KVFOLIO_OK;
}

int32_t kvfolio_offload_idle(const kvfolio_offload* offload) {
  if (offload == nullptr || !is_there(*offload)) return 0;
  return offload->offload->idle() && offload->ready.empty() ? 1 : 0;
}

int32_t kvfolio_offload_drain(kvfolio_offload* offload, uint64_t now_us, kvfolio_offload_left* out,
                              kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS_OFFLOAD(offload);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const OffloadLeft left = offload->offload->drain(now_us);
  offload->ready.clear();
  write_struct(out, {.struct_size = 0,
                     .blocks = left.blocks ? 1 : 0,
                     .stores = left.stores,
                     .loads = left.loads,
                     .questions = left.questions});
  return KVFOLIO_OK;
}

int32_t kvfolio_offload_forget_root(kvfolio_offload* offload, const kvfolio_root* root,
                                    int64_t* blocks, int32_t* pins, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS_OFFLOAD(offload);
  give_forgotten(offload->offload->forget(key_of(root)), blocks, pins);
  return KVFOLIO_OK;
}

int32_t kvfolio_offload_forget(kvfolio_offload* offload, const kvfolio_root* root,
                               const int32_t* tokens, int64_t num_tokens,
                               const kvfolio_media_span* media, int64_t num_media, int64_t* blocks,
                               int32_t* pins, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS_OFFLOAD(offload);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, nullptr, prompt));
  const Result<Forgotten> forgotten = offload->offload->forget(prompt.tokens, prompt.options);
  if (!forgotten) return answer(error, forgotten.error());
  give_forgotten(*forgotten, blocks, pins);
  return KVFOLIO_OK;
}

int32_t kvfolio_offload_reset(kvfolio_offload* offload, int64_t* blocks, int32_t* pins,
                              kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS_OFFLOAD(offload);
  give_forgotten(offload->offload->reset(), blocks, pins);
  return KVFOLIO_OK;
}

uint64_t kvfolio_offload_epoch(const kvfolio_offload* offload) {
  const NothingThrown nothing;
  return offload == nullptr || !is_there(*offload) ? 0 : offload->offload->epoch();
}

int64_t kvfolio_offload_epochs(const kvfolio_offload* offload, uint64_t* epoch,
                               kvfolio_root_epoch* roots, int64_t capacity) {
  const NothingThrown nothing;
  if (offload == nullptr || !is_there(*offload)) return -1;
  const NameEpochs epochs = offload->offload->epochs();
  if (epoch != nullptr) *epoch = epochs.epoch;
  const std::int64_t num = std::ssize(epochs.roots);
  const std::int64_t some = roots == nullptr ? 0 : std::clamp<std::int64_t>(capacity, 0, num);
  for (std::int64_t i = 0; i < some; ++i) {
    const RootEpoch& from = epochs.roots[static_cast<std::size_t>(i)];
    std::memcpy(roots[i].root.bytes, from.root.data(), sizeof(roots[i].root.bytes));
    roots[i].epoch = from.epoch;
  }
  return num;
}

int32_t kvfolio_offload_get_counters(const kvfolio_offload* offload, kvfolio_offload_counters* out,
                                     kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(offload);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const OffloadCounters& from = offload->offload->counters();
  kvfolio_offload_counters to{};
  to.stores = from.stores;
  to.stores_dropped = from.stores_dropped;
  to.loads = from.loads;
  to.tokens_loaded = from.tokens_loaded;
  to.arena_corrupt = from.arena_corrupt;
  to.tier_stores = from.tier_stores;
  to.tier_stores_dropped = from.tier_stores_dropped;
  to.tier_loads = from.tier_loads;
  static_assert(std::size(decltype(from.tier_misses){}) == std::size(decltype(to.tier_misses){}));
  std::copy(from.tier_misses.begin(), from.tier_misses.end(), to.tier_misses);
  to.tier_corrupt = from.tier_corrupt;
  to.requests = from.requests;
  to.requests_canceled = from.requests_canceled;
  to.requests_timed_out = from.requests_timed_out;
  to.unknown_completions = from.unknown_completions;
  to.manager_forgets = from.manager_forgets;
  to.steps_max = from.steps_max;
  to.copies_failed = from.copies_failed;
  write_struct(out, to);
  return KVFOLIO_OK;
}

int32_t kvfolio_offload_num_tiers(const kvfolio_offload* offload) {
  return offload == nullptr ? 0 : static_cast<std::int32_t>(offload->offload->num_tiers());
}

int32_t kvfolio_offload_get_tier_counters(const kvfolio_offload* offload, int32_t tier,
                                          kvfolio_offload_tier_counters* out,
                                          kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(offload);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const std::int32_t tiers = kvfolio_offload_num_tiers(offload);
  if (tier < 0 || tier >= tiers) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": tier is ", tier, ", of ", tiers, " tiers")});
  }
  write_struct(out, tier_counters_of(offload->offload->tier_counters(static_cast<size_t>(tier))));
  return KVFOLIO_OK;
}

int32_t kvfolio_offload_arena(const kvfolio_offload* offload, kvfolio_arena_stats* out,
                              kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(offload);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const ArenaStats stats = offload->offload->arena();
  write_struct(out, {.struct_size = 0,
                     .reserved = 0,
                     .bytes = stats.bytes,
                     .bytes_published = stats.bytes_published,
                     .records = stats.records,
                     .pins = stats.pins,
                     .writing = stats.writing,
                     .quarantined = stats.quarantined,
                     .evictions = stats.evictions,
                     .refusals = stats.refusals});
  return KVFOLIO_OK;
}

kvfolio_identity* kvfolio_offload_identity(kvfolio_offload* offload) {
  return offload == nullptr ? nullptr : &offload->identity;
}

int32_t kvfolio_offload_check_invariants(const kvfolio_offload* offload, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS_OFFLOAD(offload);
  return answer(error, offload->offload->check_invariants());
}

}  // extern "C"
