// SPDX-License-Identifier: Apache-2.0
//
// What the caller sees of the room: why there is none, eviction by hand, and how full a group is.

#include "manager/impl.h"
#include "manager/op_writer.h"

namespace kvfolio {

using text::concat;

std::int32_t KVCacheManager::Impl::num_kept(std::int32_t row, std::int32_t g) const noexcept {
  const auto blocks = table(row, g).blocks(arena());
  const auto held = std::count_if(blocks.begin(), blocks.end(), [](auto b) { return b >= 0; });
  return static_cast<std::int32_t>(held) + promises_.num_ready(row, g);
}

Shortage KVCacheManager::Impl::shortage(const Room::Plan& plan, std::int32_t kept,
                                        std::int64_t spared) const noexcept {
  const std::int32_t g = plan.short_of;
  Shortage s = blocks_.room().shortage(g, plan.needs.blocks[static_cast<std::size_t>(g)]);
  s.kept = kept;
  s.spared = static_cast<std::int32_t>(std::min<std::int64_t>(spared, INT32_MAX));
  s.sequences = static_cast<std::int32_t>(rows_.open().size());
  s.pins = pins_.num_open();
  s.loads = transfers_.num_loads();
  s.holds = transfers_.num_holds();
  s.reserved = promises_.reservations().total_ready(g);
  return s;
}

Result<std::int32_t> KVCacheManager::evict(GroupId group_id, std::int32_t num_blocks,
                                           std::span<std::int32_t> evicted) {
  KVFOLIO_RECORDED(kEvict, evict(group_id, num_blocks, evicted), group_id, num_blocks,
                   OutBlocks{evicted});
  Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_group("evict", group_id));
  if (num_blocks < 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("evict of ", num_blocks, " blocks, allowed: 0 and above"));
  }
  std::int32_t done = 0;
  for (; done < num_blocks; ++done) {
    const BlockId victim = m.blocks_.victim(group_id.value());
    if (!victim.valid()) break;
    if (static_cast<std::size_t>(done) < evicted.size()) {
      evicted[static_cast<std::size_t>(done)] = victim.value();
    }
    m.blocks_.evict(group_id.value());
  }
  return done;
}

Status KVCacheManager::Impl::check_group(std::string_view what, GroupId group_id) const {
  if (group_id.value() >= 0 && group_id.value() < num_groups()) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": group ", group_id.value(), ", allowed: 0 to ", num_groups() - 1)};
}

Status KVCacheManager::Impl::check_block(std::string_view what, GroupId group_id,
                                         BlockId block) const {
  KVFOLIO_RETURN_IF_ERROR(check_group(what, group_id));
  const BlockPool& pool = blocks_.pool(group_id.value());
  if (pool.contains(block)) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": block ", block.value(), " of group ", group_id.value(),
                 ", allowed: 0 to ", pool.num_blocks() - 1)};
}

Result<GroupUsage> KVCacheManager::usage(GroupId group_id) const {
  KVFOLIO_RETURN_IF_MOVED("usage");
  const Impl& m = *impl_;
  KVFOLIO_RETURN_IF_ERROR(m.check_group("usage", group_id));
  const BlockPool& pool = m.blocks_.pool(group_id.value());
  return GroupUsage{.num_blocks = pool.num_usable(),
                    .free = pool.num_free(),
                    .held = pool.num_held(),
                    .cached = pool.num_cached(),
                    .retiring = pool.num_retiring(),
                    .evictable = pool.num_cached(),
                    .reserved = m.promises_.reservations().total_ready(group_id.value()),
                    .loading = m.transfers_.num_waiting(group_id.value()),
                    .on_hold = m.transfers_.num_held(group_id.value())};
}

double KVCacheManager::Impl::utilization() const noexcept {
  double most = 0.0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const BlockPool& pool = blocks_.pool(g);
    most = std::max(most, static_cast<double>(pool.num_held()) / pool.num_usable());
  }
  return most;
}

double KVCacheManager::utilization() const noexcept {
  KVFOLIO_STOP_IF_MOVED("utilization");
  return impl_->utilization();
}

bool KVCacheManager::needs_eviction() const noexcept {
  KVFOLIO_STOP_IF_MOVED("needs_eviction");
  return impl_->utilization() >= impl_->options_.high_watermark;
}

}  // namespace kvfolio
