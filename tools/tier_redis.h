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

struct RedisUnread {
  std::string address;
  std::string what;  // happened
};

struct RedisCheck {
  std::int32_t nodes = 0;           // primaries
  std::vector<RedisUnread> unread;  // of these it is not known how all of their records are
  std::int64_t records = 0;         // that are right
  std::int64_t bytes = 0;           // of these
  std::int64_t damaged = 0;         // of ours, but not right
  std::int64_t of_another_key = 0;  // sealed with a key that is not given, or with none
  std::int64_t others = 0;          // keys of another form: not ours, and never erased
  std::int64_t erased = 0;          // of these, with `erase`
  std::vector<RedisFault> faults;   // the first hundred
};

// Reads all keys of ours from all primaries and compares each record with its key and its
// checksums; a primary that cannot be read is named, and the others are read. `servers` are asked
// in turn for the primaries. `progress` gets the number of records so far. One command at a time,
// over connections that wait: for people, not for engines. kUnavailable: no server says who the
// primaries are, or none of them could be read. With KVFOLIO_REDIS_CA over TLS, as open_redis().
[[nodiscard]] Result<RedisCheck> check_redis(const std::string& servers, bool erase,
                                             const std::function<void(std::int64_t)>& progress);

}  // namespace kvfolio::tools
