// SPDX-License-Identifier: Apache-2.0
#pragma once

// One life of the chaos run: a process that serves traffic from a cache over a disk, a Redis and a
// slow tier, until it is killed or ends in order. Thread safety: none; a process of its own.

#include <cstdint>
#include <string>

#include "kvfolio/disk_tier.h"
#include "tiers/said.h"

namespace kvfolio::test {

struct LifePlan {
  std::uint32_t seed = 0;
  std::uint64_t operations = 0;
  CacheSpec spec{};
  std::string directory{}, server{};
  DiskEngine engine = DiskEngine::kAuto;
  std::vector<std::byte> key{};  // of records; empty: none
  bool claims = false;           // the budget of the disk is large, and its writes do not fail
  bool forks = true;
};

// How it ended.
enum LifeEnd : int {
  kLifeEnded = 0,
  kLifeFailed = 3,         // an expectation did not hold, which was printed
  kDirectoryRefused = 4,   // DiskTier::open() said why
  kEngineUnsupported = 5,  // there is no io_uring
};

// Requires: a process that may end. Never returns.
[[noreturn]] void live(const LifePlan& plan, Said& said);

}  // namespace kvfolio::test
