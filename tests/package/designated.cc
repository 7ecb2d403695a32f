// SPDX-License-Identifier: Apache-2.0

// One designated field of each public struct: every other field has a default, so no compiler warns
// of a missing initializer. The script check compiles this and looks that no struct is left out.

#include "kvfolio/cuda.hpp"
#include "kvfolio/kvfolio.hpp"
#include "kvfolio/tiers.hpp"

namespace kvfolio {

template <typename... Values>
void take(const Values&... /*values*/) {}

void use_every_struct();

void use_every_struct() {
  take(Executor{.num_threads = 1}, MemoryUse{.used = 1}, Place{.run = 1});
  take(GatherArgs{.length = 1}, GatherFrom{.layer = 1}, TokenPlace{.slot = 1},
       AttentionBatch{.block_table_stride = 1}, AttentionParams{.scale = 1.0},
       AttentionSlice{.num_rows = 1}, AttentionArgs{.layer = 1}, AttentionState{.lse = {}});
  take(ManagerOptions{.max_sequences = 1}, OpenOptions{.priority = 1}, ForkOptions{.priority = 1},
       Opened{.cached_tokens = 1}, Pinned{.pinned_tokens = 1}, StepOptions{.now_us = 1},
       AppendOptions{.draft = 1}, AppendDemand{.num_tokens = 1}, TrimOptions{.window = 1},
       SequenceInfo{.length = 1}, GroupUsage{.held = 1}, Counters{.forks = 1});
  take(Admission{.cached_tokens = 1}, Soon{.tokens = 1}, ReserveOptions{.most_per_step = 1},
       Forgotten{.pins = 1}, EndedSequence{.caller_id = 1}, TokenStoreOptions{.max_tokens = 1});
  take(TreeGroup{.num_blocks = 1}, PrefixTreeOptions{.max_runs = 2}, TreeChange{.block = {}},
       PrefixMatch{.tokens = 1}, PublishOffer{.tail = true}, Published{.has_gap = true});
  take(RootKey{.adapter = "a"}, MediaSpan{.end = 1}, ArenaSpan{.order = 1});
  take(GroupSpec{.head_dim_k = 1}, CacheSpec{.groups = {}}, GroupLayout{.v_offset = 1},
       Shortage{.needed = 1});
  take(SharedPrefix{.num_blocks = 1}, GroupPlan{.block_table_stride = 1}, StepPlan{.num_tokens = 1},
       PlanOptions{.pad = 0});
  take(BorrowedLayer{.v = nullptr}, BorrowedGroup{.k_bytes = 1}, KVStrides{.block = 1},
       KVView{.num_layers = 1}, RowsView{.head_dim = 1});
  take(Load{.end = 1}, LoadBlock{.logical = 1}, Loadable{.end = 1}, FindableBlock{.end = 1},
       BlockPrefix{.num_tokens = 1}, CopyRun{.bytes = 1}, CopyTicket{.number = 1});
  take(TierKey{.bytes = {}}, TierItem{.bytes = 1}, TierDone{.tag = 1}, Deadline{.at_us = 1},
       TierHealth{.failures = 1}, TierLimits{.data_alignment = 1}, HostArenaOptions{.bytes = 1},
       ArenaSlot{.index = 1}, ArenaStats{.pins = 1});
  take(RecordKeyOptions{.key = {}}, ModelIdentity{.model = "a"}, IdentityField{.value = "a"},
       RecordInfo{.end = 1}, SnapshotSequence{.tokens = {}}, SaveOptions{.prefix_cache = false},
       SaveStats{.bytes = 1}, RestoreOptions{.keys = {}}, RestoredSequence{.length = 1},
       RestoreStats{.paths = 1}, ForeignModel{.hash = "a"});
  take(OffloadTier{.tier = nullptr}, OffloadOptions{.arena_bytes = 1}, RootEpoch{.epoch = 1},
       NameEpochs{.epoch = 1}, OffloadOpened{.pending = true}, SequenceReady{.cached_tokens = 1},
       OffloadCounters{.loads = 1}, OffloadLeft{.loads = 1}, OffloadTierCounters{.loads = 1});
  take(DiskTierOptions{.bytes = 1}, DiskTierStats{.records = 1}, DiskFault{.offset = 1},
       DiskCheck{.damaged = 1}, DiskCheckOptions{.erase = true});
  take(RedisTls{.enabled = true}, RedisOptions{.ttl_ms = 1}, RedisCounters{.retries = 1},
       RedisNode{.slots = 1});
  take(cuda::KernelOptions{.check_pointers = false}, cuda::DeviceMemoryOptions{.lent = nullptr},
       cuda::DeviceAttention{.layer = 1}, cuda::DevicePlanGroup{.block_size = 16},
       cuda::DevicePlanOptions{.max_sequences = 1}, cuda::DeviceGroupPlan{.table_stride = 1},
       cuda::DevicePlanArrays{.query_start = nullptr}, cuda::UploadInfo{.bytes = 1});
  take(MetricLabel{.name = "a"}, SnapshotSection{.place = 1}, SnapshotList{.sections = {}});
  take(OpLogOptions{.flush_each_call = true}, OpLogHeader{.format = 1}, LoggedCall{.number = 1},
       OpLogEnd{.num_calls = 1}, ReplayOptions{.max_memory_bytes = 1}, ReplayDifference{.call = 1},
       Replay{.manager = *KVCacheManager::create(CacheSpec{})});
  take(cuda::AttendShape{.num_rows = 1}, cuda::AttendCapacity{.max_sequences = 1});
  take(cuda::PagedKV{.num_pages = 1}, cuda::BatchAttentionOptions{.max_sequences = 1},
       cuda::BatchAttentionPlan{.causal = true});
}

// The example at the top of disk_tier.h.
bool use_a_disk_tier(KVCacheManager& manager, const ModelIdentity& model);

bool use_a_disk_tier(KVCacheManager& manager, const ModelIdentity& model) {
  const DiskTierOptions options{.directory = "/var/cache/kvfolio", .bytes = 64ll << 30};
  const std::unique_ptr<DiskTier> disk = *DiskTier::open(options);
  const OffloadTier below{.tier = disk.get()};
  auto offload = Offload::create(manager, {.model = model, .tiers = {&below, 1}});
  return offload.has_value();
}

// The example at the top of manager.h.
void run_model(const StepPlan& plan);
Status use_a_manager(const CacheSpec& spec, const std::vector<std::int32_t>& prompt);

Status use_a_manager(const CacheSpec& spec, const std::vector<std::int32_t>& prompt) {
  KVCacheManager manager = *KVCacheManager::create(spec, {.max_sequences = 256});
  const Opened opened = *manager.open(prompt);  // finds and holds in one call
  const Ticket step = *manager.begin_step();
  const auto rest = manager.append_prompt(opened.sequence, prompt, std::ssize(prompt));
  if (!rest) return rest.error();  // a Shortage: close or preempt another one, append again
  const StepPlan& plan = **manager.plan();  // slots, tables, copies
  run_model(plan);              // yours: run the copies, write K and V to the slots, attend
  return manager.finish(step);  // commit and complete; then another step, or close()
}

// That of storage.h.
void attend_over(const KVView& view, const KVView& layer);
Status use_a_storage(const CacheSpec& spec);

Status use_a_storage(const CacheSpec& spec) {
  Result<KVStorage> storage = KVStorage::create(spec);
  if (!storage) return storage.error();
  const KVView view = *storage->view(GroupId(0));      // all layers of a group,
  const KVView layer = *storage->view(GroupId(0), 3);  // or one; its only layer is number 0
  attend_over(view, layer);                            // kernels.h takes views
  return {};
}

// That of offload.h.
std::uint64_t now_us();
Status use_an_offload(KVCacheManager& manager, const ModelIdentity& model,
                      const std::vector<std::int32_t>& prompt);

Status use_an_offload(KVCacheManager& manager, const ModelIdentity& model,
                      const std::vector<std::int32_t>& prompt) {
  const OffloadOptions options{.model = model, .arena_bytes = 1 << 30};
  const std::unique_ptr<Offload> offload = *Offload::create(manager, options);
  OffloadOpened opened = *offload->open(prompt);  // what the cache has, at once
  while (opened.pending) {                        // or serve others, and poll in each step
    for (const SequenceReady& ready : offload->poll(now_us())) {
      if (ready.sequence == opened.sequence) opened.pending = false;
    }
  }
  const Ticket step = *manager.begin_step();  // go on as ever, behind what came back
  const auto rest = manager.append_prompt(opened.sequence, prompt, std::ssize(prompt));
  if (!rest) return rest.error();
  return manager.drop(step);
}

}  // namespace kvfolio
