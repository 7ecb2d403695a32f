// SPDX-License-Identifier: Apache-2.0
#include "model_check/harness.h"
#include "kvfolio/storage.h"

#include <algorithm>

namespace kvfolio::model_check {
namespace {

GroupSpec full(int block_size, int num_blocks) {
  GroupSpec group;
  group.head_dim_k = 1;  // a token is one digest
  group.dtype = DType::kF64;
  group.block_size = block_size;
  group.num_blocks = num_blocks;
  return group;
}

GroupSpec window(int block_size, int num_blocks, int width, int sinks = 0) {
  GroupSpec group = full(block_size, num_blocks);
  group.kind = AttentionKind::kSlidingWindow;
  group.window = width;
  group.num_sinks = sinks;
  return group;
}

// Windows of one token let even the last block go.
int width(Rng& rng, int most) { return rng.chance(25) ? 1 : rng.between(1, most); }

struct WindowBounds {
  int fewest_blocks;
  int widest;
  int percent_with_sinks;
  int fewest_sinks;
  int most_sinks;
};

// One draw after the other: the arguments of a call are evaluated in any order.
GroupSpec any_window(Rng& rng, int size, const WindowBounds& bounds) {
  const bool has_sinks = bounds.percent_with_sinks == 100 || rng.chance(bounds.percent_with_sinks);
  const int sinks = has_sinks ? rng.between(bounds.fewest_sinks, bounds.most_sinks) : 0;
  const int tokens = width(rng, bounds.widest);
  const int blocks = rng.between(bounds.fewest_blocks, 40);
  return window(size, blocks, tokens, sinks);
}

constexpr std::uint16_t kTag = 7;

}  // namespace

const char* to_string(Family family) {
  switch (family) {
    case Family::kFullAndWindow:
      return "full-and-window";
    case Family::kUnordered:
      return "unordered";
    case Family::kOneGroup:
      return "one-group";
    case Family::kEqualBlocks:
      return "equal-blocks";
    case Family::kTinyPools:
      return "tiny-pools";
    case Family::kTinyIndex:
      return "tiny-index";
    case Family::kNoCache:
      return "no-cache";
    case Family::kAnything:
      return "anything";
    case Family::kTransfers:
      return "transfers";
  }
  return "invalid";
}

Config make_config(Family family, std::uint64_t seed) {
  Rng rng(seed ^ 0xc0f1a9ull);
  Config config;
  config.alphabet = rng.between(2, 3);
  config.options.max_sequences = rng.between(3, 9);
  config.options.max_pins = rng.between(1, 3);
  config.options.max_steps_in_flight = rng.between(1, 3);
  config.options.id_tag = kTag;
  std::vector<GroupSpec>& groups = config.spec.groups;
  switch (family) {
    case Family::kUnordered:
      config.options.order = Order::kUnordered;
      [[fallthrough]];
    case Family::kFullAndWindow:
    case Family::kTinyIndex:
    case Family::kNoCache:
      groups = {full(4, rng.between(12, 40)), window(2, rng.between(12, 40), 6)};
      break;
    case Family::kOneGroup: {
      const int size = rng.pick(std::vector<int>{1, 2, 4, 8});
      groups = {rng.chance(50) ? full(size, rng.between(8, 40))
                               : any_window(rng, size, {8, 9, 50, 0, 4})};
      break;
    }
    case Family::kEqualBlocks: {
      const int size = rng.pick(std::vector<int>{1, 2, 4});
      groups = {full(size, rng.between(12, 40)), any_window(rng, size, {12, 9, 100, 1, 6})};
      break;
    }
    case Family::kTinyPools:
      groups = {full(4, rng.between(4, 8)), window(2, rng.between(5, 10), 6)};
      config.max_length = 20;
      break;
    case Family::kTransfers:
      config.transfers = true;
      [[fallthrough]];
    case Family::kAnything: {
      const int unit = rng.between(1, 3);
      for (int g = rng.between(1, 3); g > 0; --g) {
        const int size = unit * rng.pick(std::vector<int>{1, 2, 4, 3});
        groups.push_back(rng.chance(50) ? full(size, rng.between(4, 40))
                                        : any_window(rng, size, {4, 12, 40, 0, 7}));
      }
      groups.back().block_size = unit;
      break;
    }
  }
  if (family == Family::kAnything || family == Family::kTinyPools || family == Family::kOneGroup ||
      family == Family::kEqualBlocks || family == Family::kTransfers) {
    config.options.order = rng.chance(40) ? Order::kUnordered : Order::kInOrder;
  }
  if (family == Family::kTinyIndex) {
    config.options.max_index_tokens = rng.between(8, 60);
    if (rng.chance(50)) config.options.max_root_keys = rng.between(1, 3);
    if (rng.chance(50)) {
      config.options.max_root_keys = rng.between(1, 3);
      config.options.max_runs = config.options.max_root_keys + rng.between(1, 12);
    }
    if (rng.chance(50)) config.options.max_media_extents = rng.between(1, 6);
    if (rng.chance(30)) {
      config.options.max_table_entries = rng.between(40, 200);
    }
    config.tight_tables = true;
  }
  if (family == Family::kNoCache) config.options.prefix_cache = false;
  config.media = rng.chance(60);
  config.trims = rng.chance(50);
  config.drafts = rng.chance(50);
  config.unnamed = rng.chance(60);
  config.fails = rng.chance(40);
  config.focus = rng.pick(std::vector<int>{0, 0, 50, 80});
  config.ahead = config.unnamed && rng.chance(50);
  config.failures = rng.pick(std::vector<int>{0, 0, 10});
  config.host_copies = rng.chance(40);
  config.options.copies_by_host = true;  // by the device, in stream order, but for finish()
  config.options.high_watermark = rng.below(101) / 100.0;
  // So few that all rows are in use at times.
  if (config.options.order == Order::kUnordered && rng.chance(25)) {
    config.options.max_sequences = rng.between(1, 2);
  }
  config.evicts = rng.chance(60);
  if (config.transfers) {
    config.copies = false;  // refused most of the time
    config.host_copies = true;
  }
  return config;
}

namespace {

void add_rewinds(Config& config, std::uint64_t seed) {
  Rng rng(seed ^ 0x4e317dull);
  if (!rng.chance(50)) return;
  for (GroupSpec& group : config.spec.groups) {
    if (group.kind != AttentionKind::kFull) group.rewind = rng.between(1, 9);
  }
}

}  // namespace

void draw_more(Config& config, std::uint64_t seed) {
  Rng rng(seed ^ 0x7e1e25ull);
  config.batches = config.mistakes = config.chunks = config.drafts_ahead = true;
  add_rewinds(config, seed);
  config.options.copies_by_host = seed % 3 == 0;
  Rng of_announcements(seed ^ 0xa220cull);
  config.announces = of_announcements.chance(75);
  Rng of_shapes(seed ^ 0x5a9e5ull);
  config.shapes = of_shapes.chance(60);
  config.options.null_block = of_shapes.chance(40);
  if (of_announcements.chance(40)) {
    config.options.max_announced_tokens = of_announcements.between(4, 40);
  }
  if (seed % 2 != 0 && !config.transfers) return;
  config.transfers = config.tier = true;
  config.copies = false;
  config.host_copies = true;
  config.options.list_findable = true;
  if (rng.chance(30)) config.options.max_transfers = rng.between(1, 3);
}

std::string to_string(const Config& config) {
  std::string text = std::to_string(config.spec.groups.size()) + " groups:";
  for (const GroupSpec& group : config.spec.groups) {
    text += group.kind == AttentionKind::kFull
                ? " full"
                : " window " + std::to_string(group.window) + " sinks " +
                      std::to_string(group.num_sinks) + " rewind " + std::to_string(group.rewind);
    text += " block " + std::to_string(group.block_size) + " x " +
            std::to_string(group.num_blocks) + ";";
  }
  const ManagerOptions& o = config.options;
  text += o.order == Order::kInOrder ? " in order" : " unordered";
  text += ", " + std::to_string(o.max_steps_in_flight) + " in flight, " +
          std::to_string(o.max_sequences) + " sequences, " + std::to_string(o.max_pins) + " pins";
  if (!o.prefix_cache) text += ", no prefix cache";
  if (config.announces) text += ", announces " + std::to_string(o.max_announced_tokens);
  if (o.null_block) text += ", a null block";
  if (config.tier) text += ", a tier, " + std::to_string(o.max_transfers) + " transfers";
  if (config.tight_tables) {
    text += ", index of " + std::to_string(o.max_index_tokens) + " tokens, " +
            std::to_string(o.max_runs) + " runs, " + std::to_string(o.max_root_keys) +
            " root keys, " + std::to_string(o.max_media_extents) + " media extents, " +
            std::to_string(o.max_table_entries) + " table entries";
  }
  return text + ", alphabet " + std::to_string(config.alphabet);
}

void Coverage::add(const Coverage& other) {
  operations += other.operations;
  errors += other.errors;
  shortages += other.shortages;
  hits += other.hits;
  hits_inside_block += other.hits_inside_block;
  hits_below_best += other.hits_below_best;
  tails_found += other.tails_found;
  tails_lost += other.tails_lost;
  tokens_reused += other.tokens_reused;
  slots_kept += other.slots_kept;
  copies += other.copies;
  evictions += other.evictions;
  reads_checked += other.reads_checked;
  phases_early += other.phases_early;
  phases_late += other.phases_late;
  blocks_poisoned += other.blocks_poisoned;
  retiring_seen += other.retiring_seen;
  steps += other.steps;
  publications_skipped += other.publications_skipped;
  adoptions += other.adoptions;
  adoptions_refused += other.adoptions_refused;
  duplicates_refused += other.duplicates_refused;
  full_refused += other.full_refused;
  rows_refused += other.rows_refused;
  victims += other.victims;
  victims_preempted += other.victims_preempted;
  manager_copies += other.manager_copies;
  pins_outlive_fail += other.pins_outlive_fail;
  twins_asked += other.twins_asked;
  twins_without_room += other.twins_without_room;
  twins_that_reuse += other.twins_that_reuse;
  orders_checked += other.orders_checked;
  orders_chosen += other.orders_chosen;
  orders_skipped += other.orders_skipped;
  forgotten += other.forgotten;
  promises += other.promises;
  promises_kept += other.promises_kept;
  shapes_compared += other.shapes_compared;
  chunks_admitted += other.chunks_admitted;
  behind_drafts += other.behind_drafts;
  void_rows += other.void_rows;
  promised_again += other.promised_again;
  taken_back += other.taken_back;
  prompts_admitted += other.prompts_admitted;
  loads += other.loads;
  loads_that_stand += other.loads_that_stand;
  holds += other.holds;
  stores += other.stores;
  stores_alone += other.stores_alone;
  tier_loads += other.tier_loads;
  for (std::size_t i = 0; i < 3; ++i) bad_blocks[i] += other.bad_blocks[i];
  arrivals_orphaned += other.arrivals_orphaned;
  arrivals_after_fail += other.arrivals_after_fail;
  arrivals_twice += other.arrivals_twice;
  blocks_silent += other.blocks_silent;
  loads_forgotten += other.loads_forgotten;
  batches += other.batches;
  batches_cut += other.batches_cut;
  without_copies += other.without_copies;
  behind_plan += other.behind_plan;
  prompts_again += other.prompts_again;
  announcements += other.announcements;
  announcements_left_out += other.announcements_left_out;
  soon_told += other.soon_told;
}

std::string to_string(const Coverage& c) {
  return std::to_string(c.operations) + " operations (" + std::to_string(c.errors) +
         " answered with an error), " + std::to_string(c.steps) + " steps, " +
         std::to_string(c.phases_early) + " of " + std::to_string(c.phases_early + c.phases_late) +
         " device phases before they had to, " + std::to_string(c.reads_checked) +
         " reads checked, " + std::to_string(c.blocks_poisoned) + " blocks poisoned, " +
         std::to_string(c.hits) + " hits (" + std::to_string(c.hits_inside_block) +
         " inside a unit, " + std::to_string(c.hits_below_best) + " below the best), " +
         std::to_string(c.tails_lost) + " of " + std::to_string(c.tails_found + c.tails_lost) +
         " tails lost, " + std::to_string(c.tokens_reused) + " tokens reused, " +
         std::to_string(c.slots_kept) + " slots kept, " + std::to_string(c.copies) + " copies, " +
         std::to_string(c.evictions) + " evictions, " + std::to_string(c.shortages) +
         " shortages, " + std::to_string(c.retiring_seen) + " retiring seen, " +
         std::to_string(c.publications_skipped) + " publications skipped, " +
         std::to_string(c.adoptions) + " adoptions (" + std::to_string(c.adoptions_refused) +
         " refused), " + std::to_string(c.duplicates_refused) + " ids taken already, " +
         std::to_string(c.full_refused) + " sequences full, " + std::to_string(c.rows_refused) +
         " times no row, " + std::to_string(c.victims) + " victims named, " +
         std::to_string(c.victims_preempted) + " preempted, " + std::to_string(c.manager_copies) +
         " managers copied, " + std::to_string(c.pins_outlive_fail) +
         " pins that outlived a fail(), " + std::to_string(c.twins_asked) + " twins asked (" +
         std::to_string(c.twins_without_room) + " without room, " +
         std::to_string(c.twins_that_reuse) + " reuse a block), " +
         std::to_string(c.orders_checked) + " orders of eviction checked (" +
         std::to_string(c.orders_chosen) + " with others to choose from), " +
         std::to_string(c.orders_skipped) + " skipped, " + std::to_string(c.forgotten) +
         " blocks forgotten, " + std::to_string(c.promises) + " promises (" +
         std::to_string(c.promises_kept) + " appends within one), " +
         std::to_string(c.chunks_admitted) + " admissions by chunks, " +
         std::to_string(c.shapes_compared) + " plans of fixed shapes, " +
         std::to_string(c.behind_drafts) + " appends behind drafts (" +
         std::to_string(c.void_rows) + " of them void), " + std::to_string(c.promised_again) +
         " drafts promised again, " + std::to_string(c.taken_back) + " blocks taken back, " +
         std::to_string(c.prompts_admitted) + " prompts admitted, " + std::to_string(c.loads) +
         " loads (" + std::to_string(c.loads_that_stand) + " stand, " +
         std::to_string(c.loads_forgotten) + " forgotten), " + std::to_string(c.holds) +
         " holds, " + std::to_string(c.stores) + " stores (" + std::to_string(c.stores_alone) +
         " of what nobody else had), " + std::to_string(c.tier_loads) + " loads of a tier (" +
         std::to_string(c.bad_blocks[0]) + ", " + std::to_string(c.bad_blocks[1]) + ", " +
         std::to_string(c.bad_blocks[2]) + " bad at the first, a middle, the last block, " +
         std::to_string(c.blocks_silent) + " blocks silent, " +
         std::to_string(c.arrivals_orphaned) + " came behind the end of their sequence, " +
         std::to_string(c.arrivals_after_fail) + " behind a fail(), " +
         std::to_string(c.arrivals_twice) + " twice), " + std::to_string(c.batches) + " batches (" +
         std::to_string(c.batches_cut) + " cut short), " + std::to_string(c.without_copies) +
         " commits refused for copies, " + std::to_string(c.behind_plan) +
         " for what the plan lacks, " + std::to_string(c.prompts_again) +
         " prompts appended again, " + std::to_string(c.announcements) + " announcements (" +
         std::to_string(c.announcements_left_out) + " more left out), " +
         std::to_string(c.soon_told) + " times soon";
}

// For a manager over the device's memory.
KVStorage Harness::lent_storage(fake_device::FakeDevice& device) const {
  std::vector<BorrowedGroup> groups;
  for (int g = 0; g < num_groups(); ++g) {
    const std::span<std::byte> bytes = std::as_writable_bytes(device.memory(g));
    constexpr auto kToken = static_cast<std::int64_t>(sizeof(fake_device::Digest));
    groups.push_back({.k = bytes.data(),
                      .k_bytes = static_cast<std::int64_t>(bytes.size()),
                      .k_strides = {.layer = 0,
                                    .block = kToken * group(g).block_size,
                                    .head = 0,
                                    .token = kToken},
                      .v = nullptr,
                      .v_bytes = 0,
                      .v_strides = {}});
  }
  Result<KVStorage> storage = KVStorage::borrow(config_.spec, groups);
  KVFOLIO_REQUIRE(storage.has_value(), "borrow the memory of the device: " +
                                           (storage.has_value() ? "" : storage.error().message()));
  return std::move(*storage);
}

Harness::Harness(const Config& config) : config_(config) {
  device_ = std::make_unique<fake_device::FakeDevice>(config.spec.groups, config.options.order);
  Result<KVCacheManager> manager =
      config.host_copies ? KVCacheManager::create(lent_storage(*device_), config.options)
                         : KVCacheManager::create(config.spec, config.options);
  KVFOLIO_REQUIRE(manager.has_value(),
                  "create: " + (manager.has_value() ? std::string() : manager.error().message()));
  manager_.emplace(std::move(*manager));
  ManagerOptions other = config.options;
  other.id_tag = kTag + 1;
  other.prefix_cache = true;
  other.max_table_entries = 0;
  Result<KVCacheManager> foreign = KVCacheManager::create(config.spec, other);
  KVFOLIO_REQUIRE(foreign.has_value(), "create a second manager");
  foreign_.emplace(std::move(*foreign));
  const std::vector<std::int32_t> tokens = {0, 1};
  foreign_sequence_ = foreign_->open(tokens)->sequence;
  foreign_pin_ = foreign_->pin(tokens)->pin;
  for (const GroupSpec& group : config.spec.groups) {
    const auto blocks = static_cast<std::size_t>(group.num_blocks);
    const auto slots = blocks * static_cast<std::size_t>(group.block_size);
    logical_.emplace_back(slots);
    blocks_.emplace_back(blocks);
    orders_.emplace_back(blocks);
  }
  make_twins();
  before_ = look();
}

Harness::~Harness() = default;

void Harness::drain() {
  const auto step = [&](const std::string& what, const Status& status) {
    note(what);
    expect(status, {});
    changed_ = true;
  };
  const auto reset = [&] {
    log_.clear();
    read_only_ = changed_ = allocates_ = revives_ = finishes_ = false;
    took_back_.reset();
    moved_.clear();
    trimmed_.reset();
    wanted_.clear();
    read_.clear();
    fresh_.clear();
    held_again_.clear();
  };
  check_aside();
  Rng ends(1);
  while (!loads_.empty()) {
    reset();
    end_load(loads_.size() - 1, 0, ends);
    verify();
  }
  while (!holds_.empty()) {
    reset();
    release(ends);
    verify();
  }
  if (open_step_) {
    reset();
    step("drain: drop", manager_->drop(Ticket(last_ticket_)));
    apply_drop();
    verify();
  }
  while (!flight_.empty()) {
    reset();
    const std::uint64_t ticket = flight_.front().ticket;
    finish_on_device(ticket);
    step("drain: complete", manager_->complete(Ticket(ticket)));
    apply_complete(ticket);
    verify();
  }
  Rng rng(0);
  while (!seqs_.empty()) {
    reset();
    close(rng, false);
    verify();
  }
  while (!pins_.empty()) {
    reset();
    unpin(rng);
    verify();
  }
  for (int g = 0; g < num_groups(); ++g) {
    reset();
    const GroupUsage usage = *manager_->usage(GroupId(g));
    KVFOLIO_REQUIRE(usage.held == 0 && usage.retiring == 0,
                    "nothing is held when everything is closed");
    const Result<std::int32_t> evicted = manager_->evict(GroupId(g), usage.num_blocks);
    step("drain: evict", evicted.has_value() ? Status() : evicted.error());
    verify();
    KVFOLIO_REQUIRE(manager_->usage(GroupId(g))->free == usage.num_blocks,
                    "all blocks are free when everything is closed and evicted");
  }
}

}  // namespace kvfolio::model_check
