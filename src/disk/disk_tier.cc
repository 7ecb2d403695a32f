// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/disk_tier.h"

#include <utility>

#include "disk/open.h"

namespace kvfolio {

class DiskTier::Impl {
 public:
  explicit Impl(std::unique_ptr<disk::SegmentStore> opened) : store(std::move(opened)) {}
  std::unique_ptr<disk::SegmentStore> store;
};

Result<std::unique_ptr<DiskTier>> DiskTier::open(const DiskTierOptions& options) {
  Result<std::unique_ptr<disk::SegmentStore>> store =
      disk::open_store(disk::system_calls(), options);
  if (!store) return std::move(store).error();
  return std::unique_ptr<DiskTier>(new DiskTier(std::make_unique<Impl>(*std::move(store))));
}

DiskTier::DiskTier(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
DiskTier::~DiskTier() = default;

std::string DiskTier::describe() const { return impl_->store->describe(); }
DiskTierStats DiskTier::stats() const noexcept { return impl_->store->stats(); }
bool DiskTier::idle() const noexcept { return impl_->store->idle(); }
std::string_view DiskTier::name() const noexcept { return "disk"; }
TierLimits DiskTier::limits() const noexcept {
  return {.record_bytes_max = impl_->store->data_bytes_max(),
          .data_alignment = disk::kPiece,
          .verifies = true};
}
std::size_t DiskTier::submit(TierOp op, std::span<const TierItem> items,
                             Deadline deadline) noexcept {
  return impl_->store->submit(op, items, deadline);
}
std::size_t DiskTier::poll(std::uint64_t now_us, std::span<TierDone> done) noexcept {
  return impl_->store->poll(now_us, done);
}
int DiskTier::event_fd() const noexcept { return impl_->store->event_fd(); }
TierHealth DiskTier::health() const noexcept { return impl_->store->health(); }
Status DiskTier::close(Deadline deadline) noexcept {
  impl_->store->close(deadline);
  return {};
}

}  // namespace kvfolio
