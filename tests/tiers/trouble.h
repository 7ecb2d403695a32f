// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a tier says of a server with which it does not become ready. How long until it knows depends
// on the machine.

#include <string>
#include <string_view>

#include "kvfolio/redis_tier.h"
#include "tiers/now.h"

namespace kvfolio::test {

// The message, once `expected` is in it; "" once the tier is ready; the last message after ten
// seconds.
inline std::string trouble(RedisTier& tier, std::string_view expected) {
  const std::uint64_t end = now_us() + 10'000'000;
  for (;;) {
    const Status ready = tier.wait_until_ready(now_us(), 200'000);
    if (ready.ok()) return "";
    const bool said = !expected.empty() && ready.message().find(expected) != std::string_view::npos;
    if (said || now_us() > end) return std::string(ready.message());
  }
}

}  // namespace kvfolio::test
