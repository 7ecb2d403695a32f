// SPDX-License-Identifier: Apache-2.0
#include "engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "contiguous_backend.h"
#include "paged_backend.h"
#include "sampler.h"

namespace kvfolio::llama {

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, const CacheSpec& spec,
                                               const EngineOptions& options, CacheCompute& compute,
                                               ThreadPool& pool) {
  const Result<std::vector<GroupLayout>> layouts = plan_layouts(spec);
  if (!layouts) return layouts.error();
  std::unique_ptr<Engine> engine(new Engine(model, spec, options, pool));
  for (const GroupLayout& layout : *layouts) {
    engine->bytes_per_token_ += layout.payload_bytes_per_token;
  }
  if (options.contiguous) {
    engine->backend_ =
        std::make_unique<ContiguousBackend>(model.config(), shape_of(spec).dtype, compute);
    return engine;
  }
  Result<std::unique_ptr<PagedBackend>> paged =
      PagedBackend::create(model.config(), spec,
                           {.max_sequences = options.max_seqs + 1,
                            .max_tokens = options.max_tokens,
                            .prefix_cache = options.prefix_cache,
                            .order = options.order,
                            .steps_in_flight = options.steps_in_flight,
                            .identity = options.identity,
                            .host_tier_bytes = options.host_tier_bytes,
                            .tiers = options.tiers,
                            .log = options.log},
                           compute);
  if (!paged) return std::move(paged).error();
  engine->paged_ = paged->get();
  engine->backend_ = *std::move(paged);
  return engine;
}

void Engine::end_log() {
  if (paged_ != nullptr) paged_->end_log();
}

Engine::Engine(const Model& model, const CacheSpec& spec, const EngineOptions& options,
               ThreadPool& pool)
    : model_(model), options_(options), spec_(spec), workspace_(pool) {}

Result<RunStats> Engine::run(std::span<const Request> requests, Listener listener) {
  SchedulerLimits limits;
  limits.max_batch_tokens = options_.max_batch_tokens;
  limits.max_chunk_tokens = options_.max_chunk_tokens;
  limits.max_seqs = options_.max_seqs;
  limits.max_positions = model_.config().max_positions;
  limits.bytes_per_token = bytes_per_token_;
  limits.admission_margin =
      options_.admission_margin < 0 ? unit_of(spec_) : options_.admission_margin;
  limits.hold_back = options_.hold_back;
  if (options_.stop_at_eos) limits.eos_ids = model_.config().eos_ids;
  Scheduler scheduler(*backend_, std::move(limits), options_.keep_logits, std::move(listener));
  RunStats stats;
  const auto start = std::chrono::steady_clock::now();
  for (const Request& request : requests) scheduler.add(request);
  StepBatch batch;
  int idle_steps = 0;
  while (!scheduler.done()) {
    KVFOLIO_RETURN_IF_ERROR(step(scheduler, batch, stats));
    // One step may find nothing to do: its only job gave its blocks up. It comes back in the next.
    idle_steps = batch.tokens.empty() ? idle_steps + 1 : 0;
    if (idle_steps > 1 && !scheduler.is_loading()) {
      return Status(ErrorCode::kFailedPrecondition, "no request can go on");
    }
    if (batch.tokens.empty() && paged_ != nullptr) paged_->wait_for_tiers();
  }
  stats.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // Not part of what a run takes: an engine that goes on does not wait for this.
  if (paged_ != nullptr && !options_.tiers.empty()) {
    KVFOLIO_RETURN_IF_ERROR(paged_->finish_stores());
  }
  stats.scheduler = scheduler.stats();
  stats.cache = backend_->counters();
  if (paged_ != nullptr) {
    for (const GroupSpec& group : spec_.groups) stats.blocks_total += group.num_blocks;
    stats.steps_overlapped = paged_->steps_overlapped();
    stats.block_size = paged_->manager().spec().groups[0].block_size;
    stats.order = paged_->manager().options().order;
  }
  look_at_tiers(stats);
  return stats;
}

void Engine::look_at_tiers(RunStats& stats) const {
  const Offload* const offload = paged_ == nullptr ? nullptr : paged_->offload();
  if (offload == nullptr) return;
  stats.tiers = offload->counters();
  stats.host_memory = offload->arena();
  stats.each_tier.clear();
  for (std::size_t t = 0; t < offload->num_tiers(); ++t) {
    const Tier& tier = offload->tier(t);
    stats.each_tier.push_back({std::string(tier.name()), offload->tier_counters(t), tier.health()});
  }
}

namespace {
Status no_blocks() { return {ErrorCode::kUnsupported, "contiguous caches keep no blocks"}; }
}  // namespace

Result<SaveStats> Engine::save(ByteSink& sink, const RecordKeyOptions& keys) {
  if (paged_ == nullptr) return no_blocks();
  return paged_->save(sink, keys);
}

Result<RestoreStats> Engine::restore(ByteSource& source, const RecordKeyOptions& keys) {
  if (paged_ == nullptr) return no_blocks();
  return paged_->restore(source, keys);
}

std::string Engine::metrics(MetricLabels labels) const {
  return paged_ == nullptr ? "" : paged_->metrics(labels);
}

Status Engine::evict_cached() { return paged_ == nullptr ? no_blocks() : paged_->evict_cached(); }

Status Engine::step(Scheduler& scheduler, StepBatch& batch, RunStats& stats) {
  KVFOLIO_RETURN_IF_ERROR(scheduler.schedule(batch));
  if (batch.tokens.empty()) return backend_->drop_step();
  const CacheUsage usage = backend_->usage();
  stats.blocks_peak = std::max(stats.blocks_peak, usage.blocks);
  stats.bytes_peak = std::max(stats.bytes_peak, usage.bytes);
  KVFOLIO_RETURN_IF_ERROR(forward(batch));
  if (paged_ != nullptr && options_.block_map != nullptr) {
    options_.block_map->look(paged_->manager(), scheduler);
  }
  return scheduler.advance(logits_, static_cast<std::size_t>(model_.config().vocab));
}

// Computes the open step and ends it.
Status Engine::forward(const StepBatch& batch) {
  KVFOLIO_RETURN_IF_ERROR(backend_->prepare());
  logits_.resize(batch.logit_rows.size() * static_cast<std::size_t>(model_.config().vocab));
  KVFOLIO_RETURN_IF_ERROR(model_.forward(
      {.tokens = batch.tokens, .positions = batch.positions, .logit_rows = batch.logit_rows},
      *backend_, workspace_, logits_));
  return backend_->finish_step();
}

Result<Perplexity> Engine::perplexity(std::span<const std::int32_t> tokens) {
  return score(tokens, nullptr, {});
}

Result<Perplexity> Engine::perplexity(std::span<const std::int32_t> tokens, Engine& twin,
                                      const TwinRows& on_rows) {
  return score(tokens, &twin, on_rows);
}

Result<Perplexity> Engine::score(std::span<const std::int32_t> tokens, Engine* twin,
                                 const TwinRows& on_rows) {
  const auto window = static_cast<std::size_t>(model_.config().max_positions);
  const auto most = static_cast<std::size_t>(options_.max_batch_tokens);
  double bits = 0.0;
  Perplexity result;
  for (std::size_t begin = 0; begin + 1 < tokens.size(); begin += window) {
    const auto part = tokens.subspan(begin, std::min(window, tokens.size() - begin));
    const auto inputs = part.first(part.size() - 1);  // the last token is only scored
    if (inputs.empty()) break;
    const Result<SequenceId> sequence = open_window(inputs);
    if (!sequence) return sequence.error();
    SequenceId twin_sequence;
    if (twin != nullptr) {
      const Result<SequenceId> opened = twin->open_window(inputs);
      if (!opened) return opened.error();
      twin_sequence = *opened;
    }
    for (std::size_t first = 0; first < inputs.size(); first += most) {
      const std::size_t count = std::min(most, inputs.size() - first);
      KVFOLIO_RETURN_IF_ERROR(forward_window(*sequence, inputs.subspan(first, count), first));
      KVFOLIO_RETURN_IF_ERROR(score_rows(part.subspan(first + 1, count), begin + first, bits));
      if (twin == nullptr) continue;
      KVFOLIO_RETURN_IF_ERROR(
          twin->forward_window(twin_sequence, inputs.subspan(first, count), first));
      on_rows(begin + first, logits_, twin->logits_);
    }
    KVFOLIO_RETURN_IF_ERROR(backend_->close(*sequence));
    if (twin != nullptr) KVFOLIO_RETURN_IF_ERROR(twin->backend_->close(twin_sequence));
    result.scored_tokens += static_cast<std::int64_t>(inputs.size());
  }
  if (result.scored_tokens == 0) {
    return Status(ErrorCode::kInvalidArgument, std::to_string(tokens.size()) +
                                                   " tokens leave nothing to score, allowed: at "
                                                   "least 2");
  }
  result.bits_per_token = bits / static_cast<double>(result.scored_tokens);
  result.perplexity = std::exp2(result.bits_per_token);
  return result;
}

Result<SequenceId> Engine::open_window(std::span<const std::int32_t> inputs) {
  const Result<OffloadOpened> opened = backend_->open(
      inputs, {.max_tokens = static_cast<std::int32_t>(inputs.size()), .prefix_cache = false});
  if (!opened) return opened.error();
  return opened->sequence;
}

// A step of `inputs` at positions `first` of the window and on; their rows are logits_ then.
Status Engine::forward_window(SequenceId window, std::span<const std::int32_t> inputs,
                              std::size_t first) {
  StepBatch batch;
  batch.tokens.assign(inputs.begin(), inputs.end());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    batch.positions.push_back(static_cast<std::int32_t>(first + i));
    batch.logit_rows.push_back(static_cast<std::int32_t>(i));
  }
  KVFOLIO_RETURN_IF_ERROR(backend_->begin_step());
  KVFOLIO_RETURN_IF_ERROR(backend_->append(window, batch.tokens));
  return forward(batch);
}

// Adds -log2 of the probability of each token of `next` by its row of logits_; `first`: the
// position that the first row is of. One by one, so that the sum does not depend on how steps are
// cut.
Status Engine::score_rows(std::span<const std::int32_t> next, std::size_t first, double& bits) {
  const auto vocab = static_cast<std::size_t>(model_.config().vocab);
  for (std::size_t i = 0; i < next.size(); ++i) {
    const auto row = std::span<const float>(logits_).subspan(i * vocab, vocab);
    if (!is_distribution(row)) {
      return Status(ErrorCode::kInvalidArgument,
                    "the model's logits at position " + std::to_string(first + i) +
                        " are not numbers (NaN or infinite); allowed: finite ones");
    }
    bits += (log_sum_exp(row) - static_cast<double>(row[static_cast<std::size_t>(next[i])])) /
            std::log(2.0);
  }
  return {};
}

}  // namespace kvfolio::llama
