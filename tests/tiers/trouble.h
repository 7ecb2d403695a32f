// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a tier says of a server with which it does not become ready. How long until the server has
// said anything depends on the machine.

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
    std::string message(ready.message());
    const bool said = !expected.empty() && message.find(expected) != std::string::npos &&
                      message.find("no answer yet") == std::string::npos;
    if (said || now_us() > end) return message;
  }
}

}  // namespace kvfolio::test
