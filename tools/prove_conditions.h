// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rows of `kvfolio prove`: under which conditions the same samples are computed again, and what
// must have happened for a row to be what it says.
//
// Thread safety: values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine.h"
#include "prove_prompts.h"

namespace kvfolio::tools {

enum class Prefix {
  kCold,        // no prefix cache
  kHit,         // every prompt was computed before
  kInside,      // a part of it, which ends inside a block
  kAtABorder,   // a part of it, which ends with a block
  kEachOthers,  // the cache was empty; prompts find what those before them left
};

// Where what the prefix says comes from, instead of the pool that computed it.
enum class Restored {
  kFromMemory,  // evicted, and brought back from host memory
  kFromAFile,   // saved, and loaded into a pool of another size, whose blocks have other numbers
  kFromDisk,    // another engine, with nothing of its own, finds it in the disk tier
  kFromRedis,   // the same, in Redis
};

// What is not said has a default and is not in the name. A row is named by what it says, so the
// name cannot promise another condition than the one that runs.
struct Condition {
  bool contiguous = false;
  std::optional<Prefix> prefix = {};            // kCold
  std::optional<Restored> restored = {};        // not at all
  bool forked = false;                          // the samples of a prompt fork
  std::optional<std::int32_t> at_once = {};     // sequences; all of them
  std::optional<std::int32_t> block_size = {};  // 16
  std::optional<std::int32_t> chunk = {};       // tokens of a prompt in a step; 0: all
  bool preempting = false;                      // the pool is too small
  std::optional<std::int32_t> threads = {};     // those of the machine
  bool overlapping = false;                     // a step is complete when the next is committed
  bool unordered = false;                       // Order::kUnordered
  bool twins = false;                           // requests wait for what an older one computes
  bool with_long = false;                       // one more prompt

  [[nodiscard]] std::string name() const;
  // Twins have each other to find something of.
  [[nodiscard]] Prefix prefix_or_cold() const {
    return prefix.value_or(twins ? Prefix::kEachOthers : Prefix::kCold);
  }
  [[nodiscard]] std::int32_t sequences() const { return at_once.value_or(num_samples()); }
  [[nodiscard]] std::int32_t num_samples() const { return kNumSamples + (with_long ? 1 : 0); }
  [[nodiscard]] std::int32_t block() const { return block_size.value_or(16); }
  [[nodiscard]] std::int32_t chunk_or_all() const { return chunk.value_or(0); }
};

[[nodiscard]] inline bool is_from_a_tier(const Condition& condition) {
  return condition.restored == Restored::kFromDisk || condition.restored == Restored::kFromRedis;
}

// The first is the contiguous twin, the reference. With a disk there are rows from it, and with
// Redis from Redis.
[[nodiscard]] std::vector<Condition> conditions(bool with_disk, bool with_redis);

// What a row says of itself, and what it should be.
struct Happened {
  llama::RunStats stats;                  // of the samples; block_copies and the like too
  std::vector<std::string> kernels = {};  // that attended, warming included
  std::int32_t chunk_tokens = 0;          // the most of one sequence in a step, warming included
  std::int32_t threads = 0;               // of the pool that computed
  std::int32_t threads_that_worked = 0;
  std::int64_t blocks_final = -1;  // expected at the peak; -1: not known
  std::int64_t loads = 0;          // blocks that came from host memory or a file
  std::int64_t block_copies = 0;
  std::int64_t forks = 0;
  std::int64_t tokens_reused_expected = -1;  // -1: any number above 0
  std::int64_t tokens_reused_least = 1;      // where the number is not known
  std::int64_t block_copies_expected = -1;   // -1: any number
  std::int64_t held_back_expected = 0;       // requests that waited for an older one
  std::int64_t tokens_asked = 0;             // of all prompts, each as often as it was asked
  bool forks_parted = false;  // two samples wrote different tokens behind a tail they shared
  std::int32_t longest_prompt = 0;
};

// A sentence about the first thing that the name says and that did not happen; or nothing.
[[nodiscard]] std::string what_is_missing(const Condition& condition, const Happened& happened);

}  // namespace kvfolio::tools
