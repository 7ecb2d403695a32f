// SPDX-License-Identifier: Apache-2.0
//
// Creation: derive_options() says what the options are (options.cc), and the nouns get their
// memory, all at once. Then what many calls ask first: which sequence an id names, or why it names
// none. Read impl.h next; it says where each call is.

#include "kvfolio/manager.h"

#include <algorithm>

#include "manager/impl.h"
#include "manager/options.h"

namespace kvfolio {

using text::concat;

Status KVCacheManager::Impl::make_groups() {
  const Result<std::vector<GroupLayout>> layouts = plan_layouts(spec_);
  if (!layouts) return layouts.error();
  KVFOLIO_RETURN_IF_ERROR(blocks_.allocate(spec_.groups, options_.null_block));
  for (const GroupSpec& spec : spec_.groups) {
    groups_.push_back({spec, GroupRule(spec), (*layouts)[groups_.size()].bytes_per_block,
                       BlockSize(spec.block_size)});
  }
  borders_.begin();
  publisher_.begin();
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
      tables_.allocate(rows, num_groups(), options_.max_table_entries, borders_.any()));
  bool ok =
      rows_.allocate(static_cast<std::int32_t>(rows), options_.max_sequences, options_.id_tag) &&
      caller_ids_.allocate(rows, options_.hash_seed) && victims_.allocate(rows) &&
      ended_.allocate(rows) && scratch_.allocate_zeroed(2 * rows) &&
      unnamed_.allocate(rows, options_.max_steps_in_flight) &&
      drafts_.allocate(rows, options_.max_steps_in_flight) &&
      announcements_.allocate(rows, options_.max_announced_tokens / tree_->unit(), tree_->unit(),
                              options_.hash_seed) &&
      promises_.allocate(rows, spec_.groups) &&
      pins_.allocate(options_.max_pins, num_groups(), options_.id_tag) &&
      transfers_.allocate(options_.max_transfers, num_groups(), options_.id_tag) &&
      (!options_.list_findable || blocks_.findable().allocate(spec_.groups)) &&
      steps_.allocate(options_.max_steps_in_flight, num_groups(), rows,
                      options_.max_table_entries + 16 * rows);
  std::int64_t blocks = 0;
  for (const Group& group : groups_) blocks += group.spec.num_blocks;
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

// A kernel may read the null block and multiply by 0 what it read: that must be a number. What the
// CPU cannot write is the engine's affair.
Status KVCacheManager::Impl::clear_null_blocks() {
  if (!options_.null_block) return {};
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const std::vector<std::byte> zeros(
        static_cast<std::size_t>(storage_->block_image_bytes(GroupId(g))));
    const std::int32_t null_block = 0;
    Status written = storage_->write_blocks(GroupId(g), {&null_block, 1}, zeros);
    if (!written.ok() && written.code() != ErrorCode::kUnsupported) return written;
  }
  return {};
}

// Requires: lookup(id) < 0.
Status KVCacheManager::Impl::not_found(SequenceId id) const {
  if (!id.valid()) return {ErrorCode::kNotFound, "the id names no sequence"};
  const auto [tag, generation, row] = PackedId::of(id.value());
  if (tag != options_.id_tag) {
    return {ErrorCode::kNotFound, concat(to_string(id), " is of another manager: its tag is ", tag,
                                         ", ours is ", options_.id_tag)};
  }
  if (generation == 0 || row >= rows_.size()) {
    return {ErrorCode::kNotFound, concat(to_string(id), " was never given out")};
  }
  if (rows_.was_aborted(id)) {
    return {ErrorCode::kAborted, concat(to_string(id), " was closed by fail()")};
  }
  return {ErrorCode::kNotFound, concat(to_string(id), " is closed or was never given out")};
}

Status KVCacheManager::Impl::find_resting(SequenceId id, std::string_view what,
                                          std::int32_t& row) const {
  KVFOLIO_RETURN_IF_ERROR(find(id, row));
  return check_resting(row, what);
}

Status KVCacheManager::Impl::check_resting(std::int32_t row, std::string_view what) const {
  if (rows_[row].step_entry < 0) return {};
  return {ErrorCode::kFailedPrecondition,
          concat(what, ": ", name_of(row), " is in the open step ", steps_.last_ticket(),
                 "; commit, drop or undo it first")};
}

// ---- the public face ----

Status moved_from(std::string_view call) {
  return {ErrorCode::kFailedPrecondition, concat(call, ": the manager was moved from")};
}

void stop_moved_from(std::string_view call) noexcept {
  kvfolio_check_failed(nullptr, 0, concat(call, ": the manager was moved from").c_str());
}

detail::ManagerAlias::ManagerAlias(KVCacheManager& manager)
    : lifetime_([&] {
        std::shared_ptr<const void>& lifetime = manager.impl_->lifetime_;
        if (lifetime == nullptr) lifetime = std::make_shared<char>();
        return lifetime;
      }()),
      manager_(std::unique_ptr<KVCacheManager::Impl>(manager.impl_.get())) {}
detail::ManagerAlias::~ManagerAlias() { static_cast<void>(manager_.impl_.release()); }

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

Result<KVCacheManager> KVCacheManager::create(KVStorage&& storage, const ManagerOptions& options) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(storage.spec(), options);
  if (!impl) return std::move(impl).error();
  (*impl)->storage_.emplace(std::move(storage));
  KVFOLIO_RETURN_IF_ERROR((*impl)->clear_null_blocks());
  return KVCacheManager(std::move(*impl));
}

const Counters& KVCacheManager::counters() const noexcept {
  KVFOLIO_STOP_IF_MOVED("counters");
  return impl_->counters_;
}
const CacheSpec& KVCacheManager::spec() const noexcept {
  KVFOLIO_STOP_IF_MOVED("spec");
  return impl_->spec_;
}
const ManagerOptions& KVCacheManager::options() const noexcept {
  KVFOLIO_STOP_IF_MOVED("options");
  return impl_->options_;
}
KVStorage* KVCacheManager::storage() noexcept {
  KVFOLIO_STOP_IF_MOVED("storage");
  return impl_->storage_ ? &*impl_->storage_ : nullptr;
}
const KVStorage* KVCacheManager::storage() const noexcept {
  KVFOLIO_STOP_IF_MOVED("storage");
  return impl_->storage_ ? &*impl_->storage_ : nullptr;
}

}  // namespace kvfolio
