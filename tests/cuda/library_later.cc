// SPDX-License-Identifier: Apache-2.0

// An Offload beside an engine that attends: blocks go to an arena in pinned memory and come back
// while steps run on the engine's stream. The steps may take 3 % longer, and as long as the bytes
// that came and went take the card's memory, twice.

#include <cmath>
#include <numeric>

#include "device_part.h"
#include "kvfolio/manager.h"
#include "kvfolio/offload.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda::parts {
namespace {

constexpr std::int32_t kBlockSize = 16, kHeads = 8, kDim = 128, kQueryHeads = 64;

struct Sizes {
  std::int32_t layers, blocks, sequences, tokens, steps, prompt;
};

// Attention of a decode step over all blocks, layer after layer.
class Steps {
 public:
  Steps(Card& card, const KVView& cache, const Sizes& sizes) : card_(card), sizes_(sizes) {
    const std::int32_t n = sizes.sequences, columns = sizes.tokens / kBlockSize;
    start_.resize(static_cast<std::size_t>(n) + 1);
    std::iota(start_.begin(), start_.end(), 0);
    lens_.assign(static_cast<std::size_t>(n), sizes.tokens);
    std::vector<std::int32_t> table(static_cast<std::size_t>(n * columns));
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<std::int32_t>(i * 7) % sizes.blocks;
    call_.cache = cache;
    call_.batch = {.query_start = start_, .kv_lens = lens_, .block_table_stride = columns};
    call_.batch.block_table = {card.copied(table), table.size()};
    call_.query_start = card.copied(start_);
    call_.kv_lens = card.copied(lens_);
    call_.params = {.scale = 1 / std::sqrt(static_cast<double>(kDim))};
    const std::vector<std::byte> q(static_cast<std::size_t>(n * kQueryHeads * kDim) * 2);
    call_.q =
        contiguous_rows(static_cast<const std::byte*>(card.copied(std::span<const std::byte>(q))),
                        n, kQueryHeads, kDim, DType::kBF16);
    call_.out = contiguous_rows(card.copied(std::span<const std::byte>(q)), n, kQueryHeads, kDim,
                                DType::kBF16);
    plan_.emplace(must(plan_attend(*card.kernels, call_), "plan_attend"));
    const auto bytes = static_cast<std::int64_t>(plan_->image().size());
    pinned_ = must(PinnedMemory::allocate(card.device, bytes), "pinned");
    image_ = must(card.memory->allocate(bytes), "memory");
    space_ = must(card.memory->allocate(plan_->workspace_bytes() + 16), "memory");
    must(upload(*card.kernels, *plan_, {pinned_.data(), plan_->image().size()}, image_, space_,
                card.stream.handle()),
         "upload");
  }
  void step() {
    for (std::int32_t layer = 0; layer < sizes_.layers; ++layer) {
      call_.layer = layer;
      must(attend(*card_.kernels, call_, *plan_, image_, space_, card_.stream.handle()), "attend");
    }
  }

 private:
  Card& card_;
  Sizes sizes_;
  std::vector<std::int32_t> start_, lens_;
  DeviceAttention call_;
  std::optional<AttendPlan> plan_;
  PinnedMemory pinned_;
  std::byte *image_ = nullptr, *space_ = nullptr;
};

// Prompts that are computed, stored, evicted and loaded again, one after the other.
class Swaps {
 public:
  Swaps(KVCacheManager& manager, Offload& offload, std::int32_t prompt)
      : manager_(manager), offload_(offload), prompt_(prompt) {}

  // A poll, and another prompt where nothing is on its way.
  void go() {
    now_us_ += 1000;
    for (const SequenceReady& ready : offload_.poll(now_us_)) {
      must(manager_.close(ready.sequence), "close");
      pending_ = false;
    }
    if (pending_ || !offload_.idle()) return;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(prompt_));
    std::iota(tokens.begin(), tokens.end(), 1 + 100'000 * (number_ / 2));
    if (number_++ % 2 == 0) {
      compute(tokens);
    } else {
      must(manager_.evict(GroupId(0), 1 << 20), "evict");
      const OffloadOpened opened = must(offload_.open(tokens), "open");
      pending_ = opened.pending;
      if (!pending_) must(manager_.close(opened.sequence), "close");
    }
  }
  [[nodiscard]] double blocks() const {
    return static_cast<double>(offload_.counters().stores + offload_.counters().loads);
  }

 private:
  void compute(const std::vector<std::int32_t>& tokens) {
    const Opened opened = must(manager_.open(tokens), "open");
    const Ticket ticket = must(manager_.begin_step(), "begin_step");
    must(manager_.append(opened.sequence,
                         std::span(tokens).subspan(static_cast<std::size_t>(opened.cached_tokens))),
         "append");
    must(manager_.commit(ticket), "commit");
    must(manager_.complete(ticket), "complete");
    must(manager_.close(opened.sequence), "close");
  }

  KVCacheManager& manager_;
  Offload& offload_;
  std::int32_t prompt_, number_ = 0;
  std::uint64_t now_us_ = 1000;
  bool pending_ = false;
};

// Bytes a microsecond that the card's memory reads and writes.
double roof_of(Card& card, Driver& driver, const std::byte* memory, std::size_t bytes) {
  std::byte* const to = must(card.memory->allocate(static_cast<std::int64_t>(bytes)), "memory");
  void *const before = driver.event(), *const after = driver.event();
  std::vector<double> us;
  for (int round = -1; round < 7; ++round) {
    driver.record(before, card.stream.handle());
    driver.copy(to, memory, bytes, card.stream.handle());
    driver.record(after, card.stream.handle());
    const double took = driver.us_between(before, after);
    if (round >= 0) us.push_back(took);
  }
  card.memory->deallocate(to, static_cast<std::int64_t>(bytes));
  return 2 * static_cast<double>(bytes) / median_of(us);
}

struct Run {
  double us = 0, blocks = 0;
};

// Two steps are on the stream at a time, as an engine has them; swaps go on while they run.
Run run_steps(Card& card, Steps& steps, Swaps* swaps, int count) {
  Event passed[2] = {must(Event::create(card.device), "an event"),
                     must(Event::create(card.device), "an event")};
  must(card.stream.synchronize(), "steps");
  const double before = swaps == nullptr ? 0 : swaps->blocks();
  const auto start = Clock::now();
  for (int n = 0; n < count; ++n) {
    Event& own = passed[n % 2];
    while (!must(own.passed(), "an event")) {
      if (swaps != nullptr) swaps->go();
    }
    steps.step();
    must(own.record(card.stream.handle()), "an event");
    if (swaps != nullptr) swaps->go();
  }
  must(card.stream.synchronize(), "steps");
  return {us_since(start), swaps == nullptr ? 0 : swaps->blocks() - before};
}

}  // namespace

void run_later(Report& report, const Options& options) {
  const Sizes sizes = options.small   ? Sizes{2, 64, 2, 64, 4, 64}
                      : options.quick ? Sizes{32, 1536, 16, 1024, 100, 1024}
                                      : Sizes{32, 1536, 16, 1024, 400, 1024};
  Card card;
  Driver driver(*card.device);
  const DType dtype = options.small ? DType::kF32 : DType::kBF16;
  const CacheSpec spec{{{.num_layers = sizes.layers,
                         .num_kv_heads = kHeads,
                         .head_dim_k = kDim,
                         .head_dim_v = kDim,
                         .block_size = kBlockSize,
                         .dtype = dtype,
                         .num_blocks = sizes.blocks}}};
  KVStorage storage = must(KVStorage::create(spec, card.memory.get()), "a storage");
  const KVView cache = must(storage.view(GroupId(0)), "view");
  must(fill(*card.kernels, cache, std::byte{0}, card.stream.handle()), "fill");
  const auto of_block = static_cast<double>(storage.block_image_bytes(GroupId(0)));
  Steps steps(card, cache, sizes);
  KVCacheManager manager = must(
      KVCacheManager::create(std::move(storage),
                             {.max_sequences = 16, .max_transfers = 128, .list_findable = true}),
      "a manager");
  const auto pinned = must(PinnedHostMemory::create(card.device), "pinned memory");
  OffloadOptions offload_options;
  offload_options.model = {.model = "later",
                           .weights = "none",
                           .tokenizer = "none",
                           .model_dtype = "bf16",
                           .positions = "none",
                           .engine = "library_device"};
  offload_options.arena_bytes = static_cast<std::int64_t>(of_block) * sizes.prompt / kBlockSize * 5;
  offload_options.resource = pinned.get();
  offload_options.stream = card.stream.handle();
  const auto offload = must(Offload::create(manager, offload_options), "an Offload");
  Swaps swaps(manager, *offload, sizes.prompt);
  run_steps(card, steps, &swaps, sizes.steps / 4 + 1);  // warm
  // In turn, so that clocks are the same; medians, where there is something to time.
  std::vector<double> alone, beside, blocks;
  const int rounds = options.small ? 1 : 5;
  for (int round = 0; round < rounds; ++round) {
    alone.push_back(run_steps(card, steps, nullptr, sizes.steps).us);
    const Run with = run_steps(card, steps, &swaps, sizes.steps);
    beside.push_back(with.us);
    blocks.push_back(with.blocks);
  }
  const Status failed = card.memory->take_error();
  report.expect(failed.ok(), failed.message());
  const double moved = median_of(blocks) * of_block;
  report.row(
      "{\"steps\": %d, \"alone_us\": %.1f, \"beside_us\": %.1f, \"swapped_mb\": %.1f, "
      "\"loads\": %llu, \"stores\": %llu, \"failed\": %llu}",
      sizes.steps, median_of(alone), median_of(beside), moved / 1e6,
      static_cast<unsigned long long>(offload->counters().loads),
      static_cast<unsigned long long>(offload->counters().stores),
      static_cast<unsigned long long>(offload->counters().copies_failed));
  report.expect(offload->counters().copies_failed == 0, "copies failed");
  report.expect(offload->counters().stores > 0, "nothing was stored");
  if (!options.small) report.expect(offload->counters().loads > 0, "nothing was loaded");
  if (!driver.is_there()) return;
  const auto bytes = static_cast<std::size_t>(of_block) * 512;
  std::byte* const from = must(card.memory->allocate(static_cast<std::int64_t>(bytes)), "memory");
  const double roof = roof_of(card, driver, from, bytes);
  card.memory->deallocate(from, static_cast<std::int64_t>(bytes));
  report.time("steps beside an Offload", median_of(beside),
              median_of(alone) * 1.03 + 2 * moved / roof);
}

}  // namespace kvfolio::cuda::parts
