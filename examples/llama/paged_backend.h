// SPDX-License-Identifier: Apache-2.0
#pragma once

// PagedBackend is an engine's use of kvfolio, whole: KVCacheManager decides which block holds which
// tokens, the plan's arrays go to append() and attend(), and nothing else knows of blocks.
//
// Thread safety: none.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend.h"
#include "cache_compute.h"
#include "kvfolio/manager.h"
#include "kvfolio/offload.h"
#include "kvfolio/snapshot.h"
#include "kvfolio/tier_metrics.h"
#include "kvfolio/view.h"
#include "pool_size.h"

namespace kvfolio::llama {

struct PagedOptions {
  std::int32_t max_sequences = 16;
  std::int32_t max_tokens = 0;  // of one sequence
  bool prefix_cache = true;
  Order order = Order::kInOrder;
  // 2: a step is complete for the manager only when the next one is committed, as with a device
  // that is one step behind. With kInOrder only, where a sequence may be in both.
  std::int32_t steps_in_flight = 1;
  // What names the blocks of this model wherever they lie; read by create() only. Its scales, ranks
  // and layers are as this engine has them.
  ModelIdentity identity = {};
  std::int64_t host_tier_bytes = 0;  // > 0: cold blocks are kept in that much host memory
  // Below it, cheapest first; they outlive the backend. Needs host memory. They are given the real
  // time: a request waits for them as long as load_timeout_us, while others run.
  std::span<const OffloadTier> tiers = {};
  std::uint64_t load_timeout_us = 2'000'000;
  OpLog* log = nullptr;  // outlives the backend
};

class PagedBackend final : public Backend {
 public:
  // `spec` says the pools too; see cache_spec(). `compute` outlives the backend.
  static Result<std::unique_ptr<PagedBackend>> create(const ModelConfig& config,
                                                      const CacheSpec& spec,
                                                      const PagedOptions& options,
                                                      CacheCompute& compute);

  Result<OffloadOpened> open(std::span<const std::int32_t> tokens,
                             const OpenLimits& limits) override;
  Result<SequenceId> worth_waiting_for(std::span<const std::int32_t> tokens,
                                       const OpenLimits& limits) override;
  std::span<const SequenceReady> poll() override;
  Result<SequenceId> fork(SequenceId parent) override { return manager_->fork(parent); }
  Status close(SequenceId sequence) override;
  Status preempt(SequenceId sequence) override { return manager_->preempt(sequence); }

  Status begin_step() override;
  Status append(SequenceId sequence, std::span<const std::int32_t> tokens) override {
    return manager_->append(sequence, tokens);
  }
  Status prepare() override;
  Status finish_step() override;
  Status drop_step() override;

  Status admit(SequenceId sequence, std::int64_t num_tokens, std::int64_t most_per_step) override;
  [[nodiscard]] std::int64_t tokens_too_many(const Shortage& shortage) const override;
  Status can_ever_hold(std::int32_t num_shared, std::int32_t num_tokens,
                       std::int32_t num_branches) const override;

  Status layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
               const ConstRowsView& v, const RowsView& out) override;

  [[nodiscard]] CacheUsage usage() const override;
  [[nodiscard]] const Counters& counters() const override { return manager_->counters(); }
  void end_log() { manager_->record(nullptr); }
  [[nodiscard]] const KVCacheManager& manager() const { return *manager_; }
  // Null without a host tier.
  [[nodiscard]] const Offload* offload() const { return offload_.get(); }
  // The prefix cache to a file, and back. Not during a step.
  Result<SaveStats> save(ByteSink& sink, const RecordKeyOptions& keys = {});
  Result<RestoreStats> restore(ByteSource& source, const RecordKeyOptions& keys = {});
  // Sleeps until a tier has something to say, at most a millisecond.
  void wait_for_tiers() const;
  // The metrics of the cache and its tiers, in the text format of Prometheus.
  [[nodiscard]] std::string metrics(MetricLabels labels) const;
  // Waits until the tiers have what they are to keep.
  Status finish_stores();
  // Evicts what no sequence holds, once the tiers have it.
  Status evict_cached();
  // Steps that were committed while the one before was not complete, since the start.
  [[nodiscard]] std::int64_t steps_overlapped() const { return steps_overlapped_; }

 private:
  // Where a layer of the model lies in the cache.
  struct Place {
    std::size_t group = 0;
    std::int32_t layer = 0;  // within the group
  };

  PagedBackend(std::unique_ptr<KVCacheManager> manager, const ModelConfig& config,
               const PagedOptions& options, CacheCompute& compute);
  Status complete_in_flight();
  [[nodiscard]] Result<Identity> identity() const;
  // The clock of the offload. Without tiers that take time of their own it counts polls, so the
  // same run polls at the same times.
  std::uint64_t tick();

  std::unique_ptr<KVCacheManager> manager_;  // does not move: the offload knows it
  ModelIdentity identity_;
  std::unique_ptr<Offload> offload_;
  std::vector<int> tier_events_;  // descriptors to wait for
  bool has_tiers_ = false;
  std::uint64_t polls_ = 0;  // a tick for each: runs are alike
  std::int32_t steps_in_flight_;
  std::int64_t steps_overlapped_ = 0;
  std::optional<Ticket> in_flight_;  // committed, not complete
  double scale_;
  CacheCompute& compute_;
  std::vector<Place> places_;              // by layer of the model
  std::vector<KVView> views_;              // by group
  std::vector<std::int64_t> block_bytes_;  // by group
  Ticket ticket_;                          // of the open step
  const StepPlan* plan_ = nullptr;         // the same
};

}  // namespace kvfolio::llama
