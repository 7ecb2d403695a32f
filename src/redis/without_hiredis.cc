// SPDX-License-Identifier: Apache-2.0
//
// RedisTier where the library was built without hiredis: it cannot be made.

#include "kvfolio/redis_tier.h"

namespace kvfolio {

class RedisTier::Impl {};

Result<std::unique_ptr<RedisTier>> RedisTier::create(const RedisOptions& /*options*/) {
  return Status(ErrorCode::kUnsupported,
                "this libkvfolio_tiers was built without hiredis (Debian: libhiredis-dev)");
}

RedisTier::RedisTier(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
RedisTier::~RedisTier() = default;
Status RedisTier::wait_until_ready(std::uint64_t, std::uint64_t) { return {}; }
std::string_view RedisTier::name() const noexcept { return "redis"; }
TierLimits RedisTier::limits() const noexcept { return {}; }
std::size_t RedisTier::submit(TierOp, std::span<const TierItem>, Deadline) noexcept { return 0; }
std::size_t RedisTier::poll(std::uint64_t, std::span<TierDone>) noexcept { return 0; }
int RedisTier::event_fd() const noexcept { return -1; }
TierHealth RedisTier::health() const noexcept { return {.usable = false}; }
Status RedisTier::close(Deadline) noexcept { return {}; }
const RedisCounters& RedisTier::counters() const noexcept {
  static const RedisCounters none;
  return none;
}
std::vector<RedisNode> RedisTier::nodes() const { return {}; }
std::string RedisTier::describe() const { return {}; }
Status RedisTier::check_invariants() const { return {}; }

}  // namespace kvfolio
