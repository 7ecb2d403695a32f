// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/manager.h"

#include <algorithm>

#include "manager/impl.h"
#include "manager/options.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::Impl::make_groups() {
  const Result<std::vector<GroupLayout>> layouts = plan_layouts(spec_);
  if (!layouts) return layouts.error();
  for (std::size_t g = 0; g < spec_.groups.size(); ++g) {
    // Before a pool of that size is written.
    if (const std::int32_t blocks = spec_.groups[g].num_blocks; blocks > LruOrder::kMaxBlocks) {
      return {ErrorCode::kInvalidArgument,
              concat("group ", g, ": num_blocks is ", blocks, ", allowed with a manager: 1 to ",
                     LruOrder::kMaxBlocks)};
    }
  }
  for (const GroupSpec& spec : spec_.groups) {
    Result<BlockPool> pool = BlockPool::create(spec.num_blocks);
    if (!pool) return std::move(pool).error();
    Result<LruOrder> order = LruOrder::create(spec.num_blocks);
    if (!order) return std::move(order).error();
    groups_.push_back({spec, GroupRule(spec), std::move(*pool), std::move(*order),
                       (*layouts)[groups_.size()].bytes_per_block, BlockSize(spec.block_size),
                       FixedArray<std::int32_t>()});
    has_windows_ |= !GroupRule(spec).keeps_all();
    largest_block_ = std::max(largest_block_, spec.block_size);
  }
  return {};
}

Status KVCacheManager::Impl::make_tree() {
  PrefixTreeOptions options;
  for (const GroupSpec& spec : spec_.groups) {
    options.groups.push_back(
        {spec.block_size, spec.kind, spec.window, spec.num_sinks, spec.num_blocks});
  }
  options.max_index_tokens = options_.max_index_tokens;
  options.max_runs = options_.max_runs;
  options.max_root_keys = options_.max_root_keys;
  options.max_root_key_bytes = options_.max_root_key_bytes;
  options.max_media_extents = options_.max_media_extents;
  options.hash_seed = options_.hash_seed;
  Result<PrefixTree> tree = PrefixTree::create(options);
  if (!tree) return std::move(tree).error();
  tree_.emplace(std::move(*tree));
  return {};
}

Status KVCacheManager::Impl::make_rows() {
  // kUnordered: closed sequences that wait for their step keep a row; as many again for these.
  const bool unordered = options_.order == Order::kUnordered;
  const std::int64_t rows = std::int64_t{options_.max_sequences} * (unordered ? 2 : 1);
  KVFOLIO_RETURN_IF_ERROR(
      tables_.allocate(rows, num_groups(), options_.max_table_entries, has_windows_));
  bool ok =
      rows_.allocate(static_cast<std::int32_t>(rows), options_.max_sequences, options_.id_tag) &&
      caller_ids_.allocate(rows, options_.hash_seed) && victims_.allocate(rows) &&
      scratch_.allocate_zeroed(2 * rows) &&
      pins_.allocate(options_.max_pins, num_groups(), options_.id_tag) &&
      steps_.allocate(options_.max_steps_in_flight, num_groups(), rows,
                      options_.max_table_entries + 16 * rows);
  std::int64_t blocks = 0;
  for (Group& group : groups_) {
    blocks += group.spec.num_blocks;
    ok = ok && (group.rule.keeps_all() || group.border_of.allocate_zeroed(group.spec.num_blocks));
  }
  offers_.resize(groups_.size());
  if (ok) return {};
  return {ErrorCode::kOutOfMemory,
          concat("no memory for a manager of ", rows, " sequences and ", blocks, " blocks")};
}

Result<std::unique_ptr<KVCacheManager::Impl>> KVCacheManager::Impl::create(
    const CacheSpec& spec, const ManagerOptions& options) {
  const Result<ManagerOptions> derived = derive_options(spec, options);
  if (!derived) return derived.error();
  std::unique_ptr<Impl> impl(new Impl(spec, *derived));
  KVFOLIO_RETURN_IF_ERROR(impl->make_groups());
  KVFOLIO_RETURN_IF_ERROR(impl->make_tree());
  KVFOLIO_RETURN_IF_ERROR(impl->make_rows());
  return impl;
}

// Requires: lookup(id) < 0.
Status KVCacheManager::Impl::not_found(SequenceId id) const {
  const std::uint64_t bits = id.value();
  const auto [tag, generation, row] = PackedId::of(bits);
  if (tag != options_.id_tag) {
    return {ErrorCode::kNotFound,
            concat("sequence id ", bits, " is of another manager: its tag is ", tag, ", ours is ",
                   options_.id_tag)};
  }
  if (generation == 0 || row >= num_rows()) {
    return {ErrorCode::kNotFound, concat("sequence id ", bits, " was never given out")};
  }
  if (rows_.was_aborted(id)) {
    return {ErrorCode::kAborted, concat("sequence id ", bits, " was closed by fail()")};
  }
  return {ErrorCode::kNotFound, concat("sequence id ", bits, " is closed or was never given out")};
}

Status KVCacheManager::Impl::find_resting(SequenceId id, std::string_view what,
                                          std::int32_t& row) const {
  KVFOLIO_RETURN_IF_ERROR(find(id, row));
  return check_resting(row, what);
}

Status KVCacheManager::Impl::check_resting(std::int32_t row, std::string_view what) const {
  if (rows_[row].step_entry < 0) return {};
  return {ErrorCode::kFailedPrecondition,
          concat(what, ": the sequence is in the open step ", steps_.last_ticket(),
                 "; commit, drop or undo it first")};
}

// ---- the public face ----

KVCacheManager::KVCacheManager(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
KVCacheManager::KVCacheManager(KVCacheManager&&) noexcept = default;
KVCacheManager& KVCacheManager::operator=(KVCacheManager&&) noexcept = default;
KVCacheManager::~KVCacheManager() = default;

Result<KVCacheManager> KVCacheManager::create(const CacheSpec& spec,
                                              const ManagerOptions& options) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(spec, options);
  if (!impl) return std::move(impl).error();
  return KVCacheManager(std::move(*impl));
}

Result<KVCacheManager> KVCacheManager::create(KVStorage storage, const ManagerOptions& options) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(storage.spec(), options);
  if (!impl) return std::move(impl).error();
  (*impl)->storage_.emplace(std::move(storage));
  return KVCacheManager(std::move(*impl));
}

Result<Opened> KVCacheManager::open(std::span<const std::int32_t> tokens,
                                    const OpenOptions& options) {
  return impl_->open(tokens, options, "open");
}
Result<std::int32_t> KVCacheManager::probe(std::span<const std::int32_t> tokens,
                                           const OpenOptions& options) const {
  return impl_->probe(tokens, options);
}
Result<SequenceId> KVCacheManager::fork(SequenceId parent, const ForkOptions& options) {
  return impl_->fork(parent, options);
}
Status KVCacheManager::adopt(SequenceId sequence,
                             std::span<const std::span<const std::int32_t>> tables,
                             std::int32_t num_tokens) {
  return impl_->adopt(sequence, tables, num_tokens);
}
Status KVCacheManager::clear(SequenceId sequence) { return impl_->truncate(sequence, 0, "clear"); }
Status KVCacheManager::truncate(SequenceId sequence, std::int32_t n) {
  return impl_->truncate(sequence, n, "truncate");
}
Result<std::int32_t> KVCacheManager::trim(SequenceId sequence, const TrimOptions& options) {
  return impl_->trim(sequence, options);
}
Status KVCacheManager::close(SequenceId sequence) { return impl_->close(sequence); }
Status KVCacheManager::preempt(SequenceId sequence) { return impl_->preempt(sequence); }
Status KVCacheManager::set_priority(SequenceId sequence, std::int32_t priority) {
  return impl_->set_priority(sequence, priority);
}

Result<Ticket> KVCacheManager::begin_step(const StepOptions& options) {
  return impl_->begin_step(options);
}
Status KVCacheManager::append(SequenceId sequence, std::span<const std::int32_t> tokens,
                              const AppendOptions& options) {
  static constexpr std::int32_t kNothing = 0;
  return impl_->append(sequence, tokens.empty() ? &kNothing : tokens.data(),
                       static_cast<std::int64_t>(tokens.size()), options);
}
Status KVCacheManager::append_unnamed(SequenceId sequence, std::int64_t num_tokens,
                                      const AppendOptions& options) {
  return impl_->append(sequence, nullptr, num_tokens, options);
}
Result<SequenceId> KVCacheManager::open_unnamed(std::int64_t num_tokens,
                                                const OpenOptions& options) {
  return impl_->open_unnamed(num_tokens, options);
}
Status KVCacheManager::set_tokens(SequenceId sequence, std::span<const std::int32_t> tokens) {
  return impl_->set_tokens(sequence, tokens);
}
Status KVCacheManager::undo(SequenceId sequence) { return impl_->undo(sequence); }
Result<const StepPlan*> KVCacheManager::plan(const PlanOptions& options) {
  return impl_->plan(options);
}
Status KVCacheManager::run_copies() { return impl_->run_copies(); }
Status KVCacheManager::commit(Ticket ticket) { return impl_->commit(ticket); }
Status KVCacheManager::complete(Ticket ticket) { return impl_->complete(ticket); }
Status KVCacheManager::finish(Ticket ticket) {
  KVFOLIO_RETURN_IF_ERROR(impl_->commit(ticket));
  return impl_->complete(ticket);
}
Status KVCacheManager::drop(Ticket ticket) { return impl_->drop(ticket); }
Status KVCacheManager::fail(Ticket ticket) { return impl_->fail(ticket); }
Status KVCacheManager::accept(SequenceId sequence, std::int32_t num_accepted) {
  return impl_->accept(sequence, num_accepted);
}

Status KVCacheManager::admit(std::span<const AppendDemand> demands) {
  return impl_->admit(demands);
}
Status KVCacheManager::admit(SequenceId sequence, std::int64_t num_tokens) {
  const AppendDemand demand{sequence, num_tokens};
  return impl_->admit({&demand, 1});
}
Result<std::int32_t> KVCacheManager::evict(GroupId group, std::int32_t num_blocks) {
  return impl_->evict(group, num_blocks);
}
Result<Pinned> KVCacheManager::pin(std::span<const std::int32_t> tokens,
                                   const OpenOptions& options) {
  return impl_->pin(tokens, options);
}
Status KVCacheManager::unpin(PinId pin) { return impl_->unpin(pin); }
double KVCacheManager::utilization() const noexcept { return impl_->utilization(); }
bool KVCacheManager::needs_eviction() const noexcept {
  return impl_->utilization() >= impl_->options_.high_watermark;
}
std::optional<SequenceId> KVCacheManager::select_victim(VictimPolicy policy) {
  return impl_->select_victim(policy);
}
Result<std::span<const SequenceId>> KVCacheManager::preempt_to(double target, VictimPolicy policy) {
  return impl_->preempt_to(target, policy);
}

Result<SequenceInfo> KVCacheManager::info(SequenceId sequence) const {
  return impl_->info(sequence);
}
Result<std::span<const std::int32_t>> KVCacheManager::block_table(SequenceId sequence,
                                                                  GroupId group) const {
  return impl_->block_table(sequence, group);
}
Status KVCacheManager::slot_mapping(SequenceId sequence, GroupId group, std::int32_t begin,
                                    std::span<std::int32_t> out) const {
  return impl_->slot_mapping(sequence, group, begin, out);
}
Result<SequenceId> KVCacheManager::find(std::uint64_t caller_id) const {
  return impl_->find_caller_id(caller_id);
}
std::int32_t KVCacheManager::num_sequences() const noexcept {
  return static_cast<std::int32_t>(impl_->rows_.open().size());
}
std::int32_t KVCacheManager::sequences(std::span<SequenceId> out) const noexcept {
  return impl_->sequences(out);
}
std::int64_t KVCacheManager::bytes_total() const noexcept { return impl_->bytes_total(); }
std::int64_t KVCacheManager::bytes_used() const noexcept { return impl_->bytes_used(); }
std::int32_t KVCacheManager::num_rows() const noexcept { return impl_->num_rows(); }
std::string KVCacheManager::describe() const { return impl_->describe(); }
Result<GroupUsage> KVCacheManager::usage(GroupId group) const { return impl_->usage(group); }
Result<std::int32_t> KVCacheManager::ref_count(GroupId group, BlockId block) const {
  KVFOLIO_RETURN_IF_ERROR(impl_->check_block("ref_count", group, block));
  return impl_->groups_[static_cast<std::size_t>(group.value())].pool.refs(block);
}
Result<bool> KVCacheManager::is_findable(GroupId group, BlockId block) const {
  KVFOLIO_RETURN_IF_ERROR(impl_->check_block("is_findable", group, block));
  return impl_->tree_->is_findable(group, block);
}
const Counters& KVCacheManager::counters() const noexcept { return impl_->counters_; }
const CacheSpec& KVCacheManager::spec() const noexcept { return impl_->spec_; }
const ManagerOptions& KVCacheManager::options() const noexcept { return impl_->options_; }
KVStorage* KVCacheManager::storage() noexcept {
  return impl_->storage_ ? &*impl_->storage_ : nullptr;
}
Status KVCacheManager::check_invariants() const { return impl_->check_invariants(); }

}  // namespace kvfolio
