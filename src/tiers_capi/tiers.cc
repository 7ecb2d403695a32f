// SPDX-License-Identifier: Apache-2.0
//
// Tiers: those of the caller, and the one in memory.

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "kvfolio/manager.h"
#include "kvfolio/record.h"
#include "kvfolio/storage.h"
#include "tiers_capi/tiers_capi.h"

namespace kvfolio::capi {

// Items cross as they are.
static_assert(sizeof(TierItem) == sizeof(kvfolio_tier_item) &&
              offsetof(TierItem, data) == offsetof(kvfolio_tier_item, data) &&
              offsetof(TierItem, bytes) == offsetof(kvfolio_tier_item, bytes) &&
              offsetof(TierItem, tag) == offsetof(kvfolio_tier_item, tag));
static_assert(static_cast<int>(TierOp::kErase) == KVFOLIO_TIER_ERASE);
static_assert(static_cast<int>(TierResult::kClosed) == KVFOLIO_TIER_CLOSED &&
              kNumTierResults == KVFOLIO_NUM_TIER_RESULTS);

namespace {

constexpr std::int32_t kAlignmentMax = 4096;

TierResult result_of(std::int32_t result) noexcept {
  const bool known = result >= 0 && result < KVFOLIO_NUM_TIER_RESULTS;
  return known ? static_cast<TierResult>(result) : TierResult::kIoError;
}

// Calls the functions of a kvfolio_tier_functions, and believes no count.
class CallerTier final : public Tier {
 public:
  CallerTier(const kvfolio_tier_functions& functions, std::string_view name, TierLimits limits)
      : functions_(functions), name_(name), limits_(limits) {}
  ~CallerTier() override {
    if (functions_.destroy != nullptr) functions_.destroy(functions_.context);
  }

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] TierLimits limits() const noexcept override { return limits_; }

  std::size_t submit(TierOp op, std::span<const TierItem> items,
                     Deadline deadline) noexcept override {
    const auto n = static_cast<std::int64_t>(items.size());
    const std::int64_t accepted = functions_.submit(
        functions_.context, static_cast<std::int32_t>(op),
        reinterpret_cast<const kvfolio_tier_item*>(items.data()), n, deadline.at_us);
    return static_cast<std::size_t>(std::clamp(accepted, std::int64_t{0}, n));
  }

  std::size_t poll(std::uint64_t now_us, std::span<TierDone> done) noexcept override {
    std::array<kvfolio_tier_done, 64> some;
    std::size_t total = 0;
    while (total < done.size()) {
      const auto room =
          static_cast<std::int64_t>(std::min<std::size_t>(some.size(), done.size() - total));
      const std::int64_t said = functions_.poll(functions_.context, now_us, some.data(), room);
      const std::int64_t n = std::clamp(said, std::int64_t{0}, room);
      for (std::int64_t i = 0; i < n; ++i) {
        const kvfolio_tier_done& one = some[static_cast<std::size_t>(i)];
        done[total++] = {.tag = one.tag, .result = result_of(one.result)};
      }
      if (n < room) break;
    }
    return total;
  }

  [[nodiscard]] int event_fd() const noexcept override {
    return functions_.event_fd == nullptr ? -1 : functions_.event_fd(functions_.context);
  }

  [[nodiscard]] TierHealth health() const noexcept override {
    kvfolio_tier_health health{};
    health.struct_size = sizeof health;
    if (functions_.health != nullptr) functions_.health(functions_.context, &health);
    return {.usable = health.unusable == 0,
            .stores_ok = health.stores_ok,
            .loads_ok = health.loads_ok,
            .failures = health.failures,
            .corrupt_unasked = health.corrupt_unasked,
            .of_another_key = health.of_another_key};
  }

  Status close(Deadline deadline) noexcept override {
    if (functions_.close == nullptr) return {};
    return status_of(functions_.close(functions_.context, deadline.at_us), "close()");
  }

 private:
  kvfolio_tier_functions functions_;
  std::string name_;
  TierLimits limits_;
};

Status read_functions(std::string_view call, const kvfolio_tier_functions* theirs,
                      kvfolio_tier_functions& out) {
  if (theirs == nullptr) return null_argument(call, "functions");
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "functions", theirs, out));
  if (out.submit == nullptr) return null_argument(call, "functions->submit");
  if (out.poll == nullptr) return null_argument(call, "functions->poll");
  if (out.data_alignment == 0) out.data_alignment = 64;
  const bool fits = out.data_alignment > 0 && out.data_alignment <= kAlignmentMax;
  if (!fits || !std::has_single_bit(static_cast<std::uint32_t>(out.data_alignment))) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": functions->data_alignment is ", out.data_alignment,
                   ", allowed: powers of two to ", kAlignmentMax)};
  }
  if (out.record_bytes_max < 0) {
    return {ErrorCode::kInvalidArgument, concat(call, ": functions->record_bytes_max is ",
                                                out.record_bytes_max, ", allowed: 0 or more")};
  }
  return {};
}

// The caller of submit() keeps to the limits of the tier.
Status check_items(std::string_view call, const Tier& tier, TierOp op,
                   std::span<const TierItem> items) {
  if (op != TierOp::kLoad && op != TierOp::kStore) return {};
  const TierLimits limits = tier.limits();
  const std::int64_t most = limits.record_bytes_max == 0 ? std::numeric_limits<std::int64_t>::max()
                                                         : limits.record_bytes_max;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::int64_t bytes = items[i].bytes;
    if (bytes < 0 || bytes > most) {
      return {ErrorCode::kInvalidArgument,
              concat(call, ": items[", i, "].bytes is ", bytes, ", allowed: 0 to ", most)};
    }
    if (items[i].data == nullptr && bytes > 0) {
      return null_argument(call, concat("items[", i, "].data"));
    }
    const auto at = reinterpret_cast<std::uintptr_t>(items[i].data);
    if (at % static_cast<std::uintptr_t>(limits.data_alignment) != 0) {
      return {ErrorCode::kInvalidArgument, concat(call, ": items[", i, "].data is not aligned to ",
                                                  limits.data_alignment, " bytes")};
    }
  }
  return {};
}

static_assert(static_cast<int>(DiskEngine::kThreads) == KVFOLIO_DISK_THREADS);

Status read_disk_options(std::string_view call, const kvfolio_disk_options* theirs,
                         DiskTierOptions& out) {
  kvfolio_disk_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", theirs, options));
  KVFOLIO_RETURN_IF_ERROR(
      read_enum(call, "engine", options.engine, KVFOLIO_DISK_THREADS, out.engine));
  out.bytes = options.bytes;
  out.segment_bytes = options.segment_bytes;
  if (options.num_threads != 0) out.num_threads = options.num_threads;
  if (options.queue_depth != 0) out.queue_depth = options.queue_depth;
  out.direct = options.no_direct == 0;
  if (options.queued_bytes_max != 0) out.queued_bytes_max = options.queued_bytes_max;
  out.scrub_bytes_per_s = options.scrub_bytes_per_s;
  if (options.items_max != 0) out.items_max = options.items_max;
  out.open_files_max = options.open_files_max;
  out.keys = {.key = secret_of(options.record_key),
              .accepted_key = secret_of(options.accepted_record_key)};
  return {};
}

kvfolio_disk_stats disk_stats_of(const DiskTierStats& stats) noexcept {
  return {.struct_size = 0,
          .reserved = 0,
          .bytes = stats.bytes,
          .records = stats.records,
          .segments = stats.segments,
          .recovered = stats.recovered,
          .recovered_by_footer = stats.recovered_by_footer,
          .stored = stats.stored,
          .stored_bytes = stats.stored_bytes,
          .loaded = stats.loaded,
          .loaded_bytes = stats.loaded_bytes,
          .corrupt = stats.corrupt,
          .io_errors = stats.io_errors,
          .no_space = stats.no_space,
          .dropped = stats.dropped,
          .evicted = stats.evicted,
          .reinserted = stats.reinserted,
          .scrubbed_bytes = stats.scrubbed_bytes,
          .of_another_key = stats.of_another_key};
}

Status give_memory_tier(std::string_view call, ArenaTier tier,
                        std::shared_ptr<CallerMemory> resource, kvfolio_tier** out) {
  std::unique_ptr<kvfolio_tier> handle(new (std::nothrow) kvfolio_tier);
  if (!handle) return no_memory(call);
  auto memory = std::make_unique<ArenaTier>(std::move(tier));
  handle->resource = std::move(resource);
  handle->memory = memory.get();
  handle->tier = std::move(memory);
  handle->name = handle->tier->name();
  *out = handle.release();
  return {};
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

const char* kvfolio_tier_result_name(int32_t result) {
  if (result < 0 || result >= KVFOLIO_NUM_TIER_RESULTS) return "invalid";
  return to_string(static_cast<TierResult>(result));
}

int32_t kvfolio_tier_create(const kvfolio_tier_functions* functions, kvfolio_tier** out,
                            kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(out);
  kvfolio_tier_functions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_functions(__func__, functions, ours));
  std::unique_ptr<kvfolio_tier> handle(new (std::nothrow) kvfolio_tier);
  if (!handle) return answer(error, no_memory(__func__));
  handle->name = ours.name == nullptr ? "caller" : ours.name;
  handle->tier = std::make_unique<CallerTier>(
      ours, handle->name,
      TierLimits{.record_bytes_max = ours.record_bytes_max, .data_alignment = ours.data_alignment});
  *out = handle.release();
  return KVFOLIO_OK;
}

int32_t kvfolio_tier_create_memory(kvfolio_manager* manager, int64_t bytes,
                                   const kvfolio_memory_resource* resource, kvfolio_tier** out,
                                   kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  const KVStorage* const storage = manager_of(*manager).storage();
  if (storage == nullptr) {
    return answer(error, {ErrorCode::kFailedPrecondition,
                          concat(__func__, ": the manager has no storage, so no size of records")});
  }
  std::unique_ptr<CallerMemory> memory;
  KVFOLIO_C_RETURN_IF_ERROR(read_resource(__func__, resource, memory));
  std::vector<std::int64_t> sizes;
  sizes.reserve(static_cast<std::size_t>(storage->num_groups()));
  for (std::int32_t g = 0; g < storage->num_groups(); ++g) {
    sizes.push_back(kRecordHeaderBytes + storage->block_image_bytes(GroupId(g)));
  }
  Result<ArenaTier> tier =
      ArenaTier::create({.bytes = bytes, .record_bytes = sizes, .resource = memory.get()});
  if (!tier) return answer(error, tier.error());
  return answer(error, give_memory_tier(__func__, *std::move(tier), std::move(memory), out));
}

int32_t kvfolio_tier_open_disk(const char* directory, const kvfolio_disk_options* options,
                               kvfolio_tier** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(directory);
  KVFOLIO_C_NEEDS(out);
  DiskTierOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_disk_options(__func__, options, ours));
  ours.directory = directory;
  std::unique_ptr<kvfolio_tier> handle(new (std::nothrow) kvfolio_tier);
  if (!handle) return answer(error, no_memory(__func__));
  Result<std::unique_ptr<DiskTier>> disk = DiskTier::open(ours);
  if (!disk) return answer(error, disk.error());
  handle->disk = disk->get();
  handle->tier = *std::move(disk);
  handle->name = handle->tier->name();
  *out = handle.release();
  return KVFOLIO_OK;
}

int32_t kvfolio_tier_disk_stats(const kvfolio_tier* tier, kvfolio_disk_stats* out,
                                kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tier);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  if (tier->disk == nullptr) {
    return answer(error, {ErrorCode::kUnsupported,
                          concat(__func__, ": the tier ", tier->name, " is not on a disk")});
  }
  write_struct(out, disk_stats_of(tier->disk->stats()));
  return KVFOLIO_OK;
}

int32_t kvfolio_tier_share(const kvfolio_tier* memory, kvfolio_tier** out, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(memory);
  KVFOLIO_C_NEEDS(out);
  if (memory->memory == nullptr) {
    return answer(error, {ErrorCode::kUnsupported,
                          concat(__func__, ": the tier ", memory->name, " is not one in memory")});
  }
  return answer(error,
                give_memory_tier(__func__, memory->memory->another(), memory->resource, out));
}

void kvfolio_tier_destroy(kvfolio_tier* tier) { delete tier; }

const char* kvfolio_tier_name(const kvfolio_tier* tier) {
  return tier == nullptr ? nullptr : tier->name.c_str();
}

int32_t kvfolio_tier_limits(const kvfolio_tier* tier, int64_t* record_bytes_max,
                            int64_t* data_alignment, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tier);
  const TierLimits limits = tier->tier->limits();
  if (record_bytes_max != nullptr) *record_bytes_max = limits.record_bytes_max;
  if (data_alignment != nullptr) *data_alignment = limits.data_alignment;
  return KVFOLIO_OK;
}

int32_t kvfolio_tier_submit(kvfolio_tier* tier, int32_t op, const kvfolio_tier_item* items,
                            int64_t num_items, uint64_t deadline_us, int64_t* accepted,
                            kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tier);
  KVFOLIO_C_NEEDS(accepted);
  TierOp ours{};
  KVFOLIO_C_RETURN_IF_ERROR(read_enum(__func__, "op", op, KVFOLIO_TIER_ERASE, ours));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "items", items, num_items));
  const auto* const first = reinterpret_cast<const TierItem*>(items);
  KVFOLIO_C_RETURN_IF_ERROR(check_items(__func__, *tier->tier, ours, span_of(first, num_items)));
  *accepted = static_cast<std::int64_t>(
      tier->tier->submit(ours, span_of(first, num_items), {.at_us = deadline_us}));
  return KVFOLIO_OK;
}

int64_t kvfolio_tier_poll(kvfolio_tier* tier, uint64_t now_us, kvfolio_tier_done* done,
                          int64_t capacity) {
  const NothingThrown nothing;
  if (tier == nullptr || !check_array(__func__, "done", done, capacity).ok()) return 0;
  std::array<TierDone, 64> some;
  std::int64_t total = 0;
  while (total < capacity) {
    const auto room = static_cast<std::size_t>(
        std::min(capacity - total, static_cast<std::int64_t>(some.size())));
    const std::size_t n = tier->tier->poll(now_us, std::span(some).first(room));
    for (std::size_t i = 0; i < n; ++i) {
      done[total++] = {
          .tag = some[i].tag, .result = static_cast<std::int32_t>(some[i].result), .reserved = 0};
    }
    if (n < room) break;
  }
  return total;
}

int32_t kvfolio_tier_event_fd(const kvfolio_tier* tier) {
  return tier == nullptr ? -1 : tier->tier->event_fd();
}

int32_t kvfolio_tier_get_health(const kvfolio_tier* tier, kvfolio_tier_health* out,
                                kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tier);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const TierHealth health = tier->tier->health();
  write_struct(out, {.struct_size = 0,
                     .unusable = health.usable ? 0 : 1,
                     .stores_ok = health.stores_ok,
                     .loads_ok = health.loads_ok,
                     .failures = health.failures,
                     .corrupt_unasked = health.corrupt_unasked,
                     .of_another_key = health.of_another_key});
  return KVFOLIO_OK;
}

int32_t kvfolio_tier_close(kvfolio_tier* tier, uint64_t deadline_us, kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tier);
  return answer(error, tier->tier->close({.at_us = deadline_us}));
}

}  // extern "C"
