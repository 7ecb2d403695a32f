// SPDX-License-Identifier: Apache-2.0
// Links what libkvfolio_tiers needs: OpenSSL, and hiredis and liburing where it was built with
// them.

#include <cstdio>

#include "kvfolio/tiers.hpp"

int main() {
  using namespace kvfolio;
  const auto redis = RedisTier::create({.servers = "nowhere"});
  const auto disk = DiskTier::open({.directory = "nowhere", .bytes = 1});
  if (redis || disk) return 1;
  std::printf("%s\n%s\n", redis.error().message().c_str(), disk.error().message().c_str());
  return redis.error().code() == ErrorCode::kUnsupported ||
                 redis.error().code() == ErrorCode::kInvalidArgument
             ? 0
             : 1;
}
