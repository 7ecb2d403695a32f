// SPDX-License-Identifier: Apache-2.0
#pragma once

// Engine runs requests over a model and a cache: schedule, compute, advance, until nothing is left.
//
//   Result<std::unique_ptr<Engine>> engine = Engine::create(model, spec, options, pool);
//   Result<RunStats> stats = (*engine)->run(requests, {.on_finished = print});
//
// Thread safety: none; computes with the threads of its pool.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend.h"
#include "block_map.h"
#include "cache_compute.h"
#include "kvfolio/snapshot.h"
#include "kvfolio/tier_metrics.h"
#include "model.h"
#include "scheduler.h"

namespace kvfolio {
class OpLog;
}

namespace kvfolio::llama {

class PagedBackend;

struct EngineOptions {
  std::int32_t max_batch_tokens = 512;
  std::int32_t max_chunk_tokens = 0;  // of one sequence in a step; 0: no limit of its own
  std::int32_t max_seqs = 16;
  std::int32_t max_tokens = 0;  // of the longest sequence
  // Tokens to spare for each running sequence when another is admitted. -1: a block of each.
  std::int32_t admission_margin = -1;
  bool hold_back = true;  // requests wait for what an older one computes
  bool stop_at_eos = true;
  bool prefix_cache = true;
  bool contiguous = false;  // the twin; spec's pools are not used then
  Order order = Order::kInOrder;
  std::int32_t steps_in_flight = 1;  // 2 with kInOrder only: PagedOptions
  LogitRows keep_logits = LogitRows::kNone;
  // As PagedOptions; the views of the identity outlive the engine.
  ModelIdentity identity = {};
  std::int64_t host_tier_bytes = 0;
  std::span<const OffloadTier> tiers = {};
  OpLog* log = nullptr;           // where the calls of the cache are recorded; outlives the engine
  BlockMap* block_map = nullptr;  // looks at every step when there is one; not of the twin
};

// What one tier below host memory did since the engine was made, and how it is now.
struct TierStats {
  std::string name;
  OffloadTierCounters counters;
  TierHealth health;
};

struct RunStats {
  SchedulerStats scheduler;
  Counters cache;  // since the cache was made, earlier runs included
  // As the cache says; of the twin, without blocks, what they are here.
  std::int32_t block_size = 0;  // of the first group
  Order order = Order::kInOrder;
  std::int64_t blocks_total = 0;
  std::int64_t blocks_peak = 0;      // held by sequences, all groups together
  std::int64_t bytes_peak = 0;       // of those blocks; of the twin: of its arrays
  OffloadCounters tiers;             // of host memory and all tiers, since the engine was made
  std::vector<TierStats> each_tier;  // cheapest first
  ArenaStats host_memory;
  std::int64_t steps_overlapped = 0;  // with the one before, also since the cache was made
  double seconds = 0.0;
};

struct Perplexity {
  std::int64_t scored_tokens = 0;
  double bits_per_token = 0.0;
  double perplexity = 0.0;
};

// The logits at some positions of a text, the first of which is tokens[first], by two engines:
// [rows, vocab].
using TwinRows = std::function<void(std::size_t first, std::span<const float> rows,
                                    std::span<const float> twin_rows)>;

class Engine {
 public:
  // `compute` has the cache, `pool` computes the rest of the model. They and `model` outlive the
  // engine; several engines that run in turn may share them.
  static Result<std::unique_ptr<Engine>> create(const Model& model, const CacheSpec& spec,
                                                const EngineOptions& options, CacheCompute& compute,
                                                ThreadPool& pool);

  // May be called again: the cache still holds what earlier runs and perplexity() left findable.
  // When it returns, the tiers have what they are to keep.
  Result<RunStats> run(std::span<const Request> requests, Listener listener);

  // The prefix cache to a file and back, between runs. kUnsupported: the twin has none.
  Result<SaveStats> save(ByteSink& sink, const RecordKeyOptions& keys = {});
  Result<RestoreStats> restore(ByteSource& source, const RecordKeyOptions& keys = {});
  // What /metrics of a server would say. Empty: the twin.
  [[nodiscard]] std::string metrics(MetricLabels labels) const;
  // What RunStats says of host memory and tiers, also during a run.
  void look_at_tiers(RunStats& stats) const;
  // Ends the log: what comes later is not in it.
  void end_log();
  // Evicts what the cache holds, once the host tier has it.
  Status evict_cached();

  // The perplexity of `tokens` in consecutive windows of max_positions, the first token of each
  // unscored.
  Result<Perplexity> perplexity(std::span<const std::int32_t> tokens);
  // The same, while `twin`, another engine of the same model and batch limit, takes the same steps;
  // `on_rows` sees what each step gave.
  Result<Perplexity> perplexity(std::span<const std::int32_t> tokens, Engine& twin,
                                const TwinRows& on_rows);

 private:
  Engine(const Model& model, const CacheSpec& spec, const EngineOptions& options, ThreadPool& pool);
  Status step(Scheduler& scheduler, StepBatch& batch, RunStats& stats);
  Result<Perplexity> score(std::span<const std::int32_t> tokens, Engine* twin,
                           const TwinRows& on_rows);
  Result<SequenceId> open_window(std::span<const std::int32_t> inputs);
  Status forward_window(SequenceId window, std::span<const std::int32_t> inputs, std::size_t first);
  Status score_rows(std::span<const std::int32_t> next, std::size_t first, double& bits);
  Status forward(const StepBatch& batch);

  const Model& model_;
  const EngineOptions options_;
  const CacheSpec spec_;
  Workspace workspace_;
  std::unique_ptr<Backend> backend_;
  PagedBackend* paged_ = nullptr;  // backend_, unless it is the twin
  std::int64_t bytes_per_token_ = 0;
  std::vector<float> logits_;  // [rows of the step, vocab]
};

}  // namespace kvfolio::llama
