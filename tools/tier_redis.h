// SPDX-License-Identifier: Apache-2.0
#pragma once

// `kvfolio tier check redis:HOST:PORT`: every record that a server or a cluster has.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::tools {

struct RedisFault {
  std::string key;
  std::string what;
};

struct RedisCheck {
  std::int32_t nodes = 0;          // primaries
  std::int64_t records = 0;        // that are right
  std::int64_t bytes = 0;          // of these
  std::int64_t damaged = 0;        // of ours, but not right
  std::int64_t others = 0;         // keys of another form: of somebody else, and never erased
  std::int64_t erased = 0;         // of these, with `erase`
  std::vector<RedisFault> faults;  // the first hundred
};

// Reads all keys of ours from all primaries and compares each record with its key and its
// checksums. `progress` gets the number of records so far. One command at a time, over connections
// that wait: for people, not for engines. kUnavailable: a server that does not answer, or says no.
[[nodiscard]] Result<RedisCheck> check_redis(const std::string& servers, bool erase,
                                             const std::function<void(std::int64_t)>& progress);

}  // namespace kvfolio::tools
