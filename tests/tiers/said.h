// SPDX-License-Identifier: Apache-2.0
#pragma once

// What one life of the chaos run tells the next one and the test, in memory that they share: so it
// is there whenever the process is killed. Thread safety: one writer at a time, and the test reads
// beside it what is atomic.

#include <array>
#include <atomic>
#include <cstdint>

#include "kvfolio/offload.h"
#include "tiers/traffic.h"

namespace kvfolio::test {

// A name under which something was given to the disk.
struct NamedRecord {
  // What the disk said last of it.
  enum class State : std::uint8_t {
    kUnclaimed,  // nothing that binds it: it may be found or not
    kKept,       // a store was kOk: it is found, with these bytes
    kErased,     // an erase was kOk, and nothing was stored since: it is not found
  };
  TierKey key{};
  std::int64_t bytes = 0;
  std::uint64_t digest = 0;  // of the bytes behind the record's header: the same for ever
  std::atomic<State> state = State::kUnclaimed;
  std::atomic<bool> storing = false;     // given, and not answered
  std::atomic<bool> failed = false;      // the answer was an error: what lies there is unknown
  std::atomic<std::uint64_t> order = 0;  // of the last store: places on the disk are in this order
  bool damaged = false;                  // by the test, between two lives
  bool excused = false;                  // docs/tiers.md says that it may be lost
};

// What a host keeps beside its tiers: OffloadOptions::epoch and root_epochs, and what the oracle
// knows of them.
struct Kept {
  static constexpr std::size_t kRootsMax = 64;
  TrafficVersions versions{};
  std::uint64_t epoch = 0;
  std::size_t num_roots = 0;
  std::array<RootEpoch, kRootsMax> roots{};
};

// What one life did, as far as it came.
struct LifeCounters {
  std::uint64_t requests = 0, ready = 0, timed_out = 0, forgets = 0, forks = 0;
  std::uint64_t blocks_loaded = 0, disk_loads = 0, redis_loads = 0, slow_loads = 0;
  std::uint64_t disk_stores = 0, corrupt = 0, erases = 0, io_errors = 0, hangs = 0;
  std::uint64_t kept_found = 0, erased_gone = 0;
  std::uint64_t offload_steps_max = 0, disk_steps_max = 0, polls_max = 0;
};

struct Said {
  static constexpr std::size_t kRecordsMax = 4096;

  std::atomic<std::uint64_t> operations = 0;  // that this life has done
  std::atomic<bool> failed = false;           // an expectation did not hold
  std::array<char, 512> refused{};            // what DiskTier::open() said, for people
  std::atomic<bool> wants_peace = false;      // the server is to answer well from now on
  std::atomic<std::uint32_t> current = 0;     // of `kept`
  std::array<Kept, 2> kept{};
  LifeCounters counters{};
  std::atomic<std::uint64_t> orders = 0;  // of stores
  std::atomic<std::uint32_t> num_records = 0;
  std::array<NamedRecord, kRecordsMax> records{};
};

}  // namespace kvfolio::test
