// SPDX-License-Identifier: Apache-2.0
#pragma once

// An arena of small records, for tests of what only holds them.

#include <gtest/gtest.h>

#include <array>

#include "kvfolio/host_arena.h"

namespace kvfolio::test {

inline constexpr std::int64_t kSmallRecord = 64;

inline HostArena arena_of(std::int64_t num_records, std::int64_t record_bytes = kSmallRecord) {
  return *HostArena::create(
      {.bytes = num_records * record_bytes, .record_bytes = std::array{record_bytes}});
}

inline TierKey numbered_key(int number) {
  TierKey key;
  key.bytes[31] = std::byte(number);
  return key;
}

// A record without a meaning, which find() answers with from now on.
inline void put_record(HostArena& arena, const TierKey& key) {
  const auto slot = arena.reserve(key, kSmallRecord);
  ASSERT_TRUE(slot);
  static_cast<void>(arena.fill(*slot));
  arena.seal(*slot);
  ASSERT_TRUE(arena.publish(*slot));
}

}  // namespace kvfolio::test
