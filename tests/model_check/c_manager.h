// SPDX-License-Identifier: Apache-2.0
#pragma once

// KVCacheManager's calls, translated to C and back: the model check runs on it as it does on the
// manager (KVFOLIO_MODEL_CHECK_C), and the digests of its answers are the same. What an engine in
// C++ would never write; it exists to send a million random calls through src/capi.

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capi/capi.h"
#include "kvfolio/manager.h"
#include "model_check/record.h"

namespace kvfolio::model_check {

class CManager {
 public:
  // The next manager that is created writes its calls there.
  static void record_next(std::string* calls) { next_record = calls; }

  static Result<CManager> create(const CacheSpec& spec, const ManagerOptions& options = {});
  static Result<CManager> create(KVStorage storage, const ManagerOptions& options = {});

  Result<Opened> open(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  [[nodiscard]] Result<std::int32_t> probe(std::span<const std::int32_t> tokens,
                                           const OpenOptions& options = {}) const;
  Result<SequenceId> fork(SequenceId parent, const ForkOptions& options = {});
  Status adopt(SequenceId sequence, std::span<const std::span<const std::int32_t>> tables,
               std::int32_t num_tokens);
  Status truncate(SequenceId sequence, std::int32_t n);
  Status clear(SequenceId sequence);
  Result<std::int32_t> trim(SequenceId sequence, const TrimOptions& options);
  Status close(SequenceId sequence);
  Status preempt(SequenceId sequence);
  Status set_priority(SequenceId sequence, std::int32_t priority);

  Result<Ticket> begin_step(const StepOptions& options = {});
  Status append(SequenceId sequence, std::span<const std::int32_t> tokens,
                const AppendOptions& options = {});
  Status append_unnamed(SequenceId sequence, std::int64_t num_tokens,
                        const AppendOptions& options = {});
  Status append_each(std::span<const SequenceId> sequences, std::span<const std::int32_t> tokens,
                     std::int32_t* num_appended);
  Status append_unnamed_each(std::span<const SequenceId> sequences, std::int32_t* num_appended);
  Status set_tokens_each(std::span<const SequenceId> sequences,
                         std::span<const std::int32_t> tokens, std::int32_t* num_named);
  Result<SequenceId> open_unnamed(std::int64_t num_tokens, const OpenOptions& options = {});
  Status set_tokens(SequenceId sequence, std::span<const std::int32_t> tokens);
  Status undo(SequenceId sequence);
  Result<const StepPlan*> plan(const PlanOptions& options = {});
  Result<std::int64_t> plan_bytes(const PlanOptions& options) const;
  Status run_copies();
  Status commit(Ticket ticket);
  Status complete(Ticket ticket);
  Status finish(Ticket ticket);
  Status drop(Ticket ticket);
  Result<std::span<const EndedSequence>> fail(Ticket ticket);
  Status accept(SequenceId sequence, std::int32_t num_accepted);

  Status admit(std::span<const AppendDemand> demands);
  Status admit(SequenceId sequence, std::int64_t num_tokens);
  [[nodiscard]] Result<Admission> admit(std::span<const std::int32_t> tokens,
                                        const OpenOptions& options, std::int64_t num_more,
                                        const ReserveOptions& chunks = {}) const;
  [[nodiscard]] Result<Admission> admit(SequenceId sequence, std::int64_t num_tokens,
                                        const ReserveOptions& chunks) const;
  Status reserve(SequenceId sequence, std::int64_t num_tokens, const ReserveOptions& options = {});
  Result<std::int32_t> evict(GroupId group, std::int32_t num_blocks,
                             std::span<std::int32_t> evicted = {});
  Forgotten reset();
  Forgotten forget(const RootKey& root);
  Result<Forgotten> forget(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  Result<Pinned> pin(std::span<const std::int32_t> tokens, const OpenOptions& options = {});
  Status unpin(PinId pin);
  Result<Load> begin_load(SequenceId sequence, std::span<const std::int32_t> prompt,
                          std::int32_t end);
  [[nodiscard]] Result<std::int32_t> blocks_to_load(LoadId load, GroupId group,
                                                    std::span<LoadBlock> out) const;
  Result<std::int32_t> finish_load(LoadId load, std::int32_t num_tokens);
  Result<HoldId> hold_blocks(GroupId group, std::span<const std::int32_t> blocks);
  Status release_hold(HoldId hold);
  [[nodiscard]] double utilization() const;
  [[nodiscard]] bool needs_eviction() const;
  [[nodiscard]] std::optional<SequenceId> select_victim(
      std::optional<VictimPolicy> policy = std::nullopt);
  Result<std::span<const EndedSequence>> preempt_to(
      double target, std::optional<VictimPolicy> policy = std::nullopt);

  [[nodiscard]] Result<SequenceInfo> info(SequenceId sequence) const;
  [[nodiscard]] Result<std::span<const std::int32_t>> block_table(SequenceId sequence,
                                                                  GroupId group) const;
  Status slot_mapping(SequenceId sequence, GroupId group, std::int32_t begin,
                      std::span<std::int32_t> out) const;
  [[nodiscard]] Result<SequenceId> find(std::uint64_t caller_id) const;
  [[nodiscard]] std::int32_t num_sequences() const;
  std::int32_t sequences(std::span<SequenceId> out) const;
  [[nodiscard]] Result<GroupUsage> usage(GroupId group) const;
  [[nodiscard]] Result<std::int32_t> ref_count(GroupId group, BlockId block) const;
  [[nodiscard]] Result<bool> is_findable(GroupId group, BlockId block) const;
  [[nodiscard]] Result<BlockState> block_state(GroupId group, BlockId block) const;
  [[nodiscard]] std::int32_t num_rows() const;
  [[nodiscard]] const Counters& counters() const;
  [[nodiscard]] std::string describe() const;
  Status copy_to(CManager& target) const;
  [[nodiscard]] Status check_invariants() const;

 private:
  struct Destroy {
    void operator()(kvfolio_manager* manager) const { kvfolio_manager_destroy(manager); }
  };
  // A plan of a step, as C++ shows it.
  struct Plan {
    std::uint64_t ticket = 0;
    std::vector<GroupPlan> groups;
    StepPlan plan;
  };

  explicit CManager(kvfolio_manager* manager, std::string* calls = nullptr)
      : manager_(manager), record_(calls) {}
  [[nodiscard]] kvfolio_manager* get() const { return manager_.get(); }
  [[nodiscard]] std::span<const EndedSequence> ended(const kvfolio_ended* list, std::int64_t size);

  std::unique_ptr<kvfolio_manager, Destroy> manager_;
  std::deque<Plan> plans_;  // the newest last
  std::vector<EndedSequence> ended_;
  mutable Counters counters_;
  mutable Record record_;
  static inline std::string* next_record = nullptr;
};

}  // namespace kvfolio::model_check
