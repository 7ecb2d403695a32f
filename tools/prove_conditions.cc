// SPDX-License-Identifier: Apache-2.0
#include "prove_conditions.h"

#include <algorithm>

namespace kvfolio::tools {
namespace {

const char* prefix_name(Prefix prefix) {
  switch (prefix) {
    case Prefix::kCold:
      return "cold";
    case Prefix::kHit:
      return "hit";
    case Prefix::kInside:
      return "partly hit";
    case Prefix::kAtABorder:
      return "partly hit at borders";
    case Prefix::kEachOthers:
      return "each other's prefixes";
  }
  return "";
}

std::string number(std::int64_t value) { return std::to_string(value); }

// "" when equal.
std::string expect(const std::string& what, std::int64_t value, std::int64_t expected) {
  if (value == expected) return {};
  return what + ": " + number(value) + ", expected " + number(expected);
}

std::string missing_reuse(const Condition& condition, const Happened& happened) {
  const std::int64_t reused = happened.stats.scheduler.tokens_reused;
  if (condition.prefix_or_cold() == Prefix::kCold) return expect("tokens reused", reused, 0);
  if (reused == 0) return "no token of a prompt was reused";
  if (reused < happened.tokens_reused_least) {
    return "tokens reused: " + number(reused) + ", expected at least " +
           number(happened.tokens_reused_least);
  }
  if (happened.tokens_reused_expected < 0) return {};
  return expect("tokens reused", reused, happened.tokens_reused_expected);
}

std::string missing_loads(const Condition& condition, const Happened& happened) {
  if (condition.restored.has_value() == (happened.loads > 0)) return {};
  return "blocks loaded: " + number(happened.loads);
}

std::string missing_forks(const Condition& condition, const Happened& happened) {
  if (!condition.forked) return {};
  if (happened.forks == 0) return "nothing forked";
  if (happened.block_copies == 0) return "no fork copied a block";
  if (!happened.forks_parted) return "no two samples wrote different tokens behind a shared tail";
  if (happened.block_copies_expected < 0) return {};
  return expect("blocks copied", happened.block_copies, happened.block_copies_expected);
}

std::string missing_batch(const Condition& condition, const Happened& happened) {
  if (!condition.at_once) return {};
  const std::int32_t in_a_step = happened.stats.scheduler.step_sequences_peak;
  return expect("sequences in one step, at most", in_a_step, *condition.at_once);
}

std::string missing_order(const Condition& condition, const Happened& happened) {
  if (condition.unordered == (happened.stats.order == Order::kUnordered)) return {};
  return condition.unordered ? "steps were in order" : "steps were unordered";
}

std::string missing_blocks(const Condition& condition, const Happened& happened) {
  if (!condition.contiguous && happened.stats.block_size != condition.block()) {
    return expect("tokens of a block", happened.stats.block_size, condition.block());
  }
  if (!condition.block_size || happened.blocks_final < 0) return {};
  return expect("blocks of " + number(condition.block()) + " tokens held at the peak",
                happened.stats.blocks_peak, happened.blocks_final);
}

std::string missing_chunks(const Condition& condition, const Happened& happened) {
  if (!condition.chunk) return {};
  const std::int32_t chunk = *condition.chunk == 0 ? happened.longest_prompt : *condition.chunk;
  return expect("tokens of one prompt in one step, at most", happened.chunk_tokens, chunk);
}

std::string missing_threads(const Condition& condition, const Happened& happened) {
  if (!condition.threads) return {};
  if (happened.threads != *condition.threads) {
    return expect("threads", happened.threads, *condition.threads);
  }
  if (*condition.threads > 1 && happened.threads_that_worked < 2) return "one thread computed all";
  return {};
}

std::string missing_overlap(const Condition& condition, const Happened& happened) {
  if (condition.overlapping == (happened.stats.steps_overlapped > 0)) return {};
  return number(happened.stats.steps_overlapped) + " steps overlapped with the one before";
}

std::string missing_waits(const Condition& /*condition*/, const Happened& happened) {
  return expect("requests held back", happened.stats.scheduler.held_back,
                happened.held_back_expected);
}

}  // namespace

std::string Condition::name() const {
  std::vector<std::string> parts;
  if (contiguous) parts.emplace_back("contiguous twin");
  if (prefix) parts.emplace_back(prefix_name(*prefix));
  if (restored == Restored::kFromMemory) parts.emplace_back("restored from memory");
  if (restored == Restored::kFromAFile) parts.emplace_back("saved and loaded");
  if (restored == Restored::kFromDisk) parts.emplace_back("restored from disk");
  if (restored == Restored::kFromRedis) parts.emplace_back("restored from Redis");
  if (forked) parts.emplace_back("forked");
  if (at_once) {
    parts.push_back(*at_once == 1 ? "alone" : "among " + number(*at_once - 1) + " others");
  }
  if (block_size) parts.push_back("block " + number(*block_size));
  if (chunk) parts.push_back("chunk " + (*chunk == 0 ? "all" : number(*chunk)));
  if (preempting) parts.emplace_back("preempting");
  if (threads) parts.push_back(number(*threads) + (*threads == 1 ? " thread" : " threads"));
  if (overlapping) parts.emplace_back("2 steps in flight");
  if (unordered) parts.emplace_back("unordered");
  if (twins) parts.emplace_back("twins in one burst");
  if (with_long && !contiguous) parts.emplace_back("long prompt");
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : ", ") + part;
  return name;
}

std::vector<Condition> conditions(bool with_disk, bool with_redis) {
  std::vector<Condition> all = {
      {.contiguous = true, .with_long = true},
      {.prefix = Prefix::kCold, .block_size = 16, .chunk = 0, .with_long = true},
      {.prefix = Prefix::kHit},
      {.prefix = Prefix::kInside},
      {.prefix = Prefix::kInside, .block_size = 32, .with_long = true},
      {.prefix = Prefix::kAtABorder},
      {.forked = true},
      {.at_once = 1},
      {.at_once = 16},
      {.block_size = 1, .threads = 1},
      {.block_size = 8, .threads = 2},
      {.block_size = 32, .threads = 3},
      {.chunk = 1},
      {.chunk = 7},
      {.chunk = 64, .threads = 4, .with_long = true},
      {.preempting = true},
      {.twins = true},
      {.forked = true, .chunk = 64, .overlapping = true},
      {.prefix = Prefix::kHit, .forked = true, .unordered = true},
      {.prefix = Prefix::kHit, .restored = Restored::kFromMemory},
      {.prefix = Prefix::kInside, .restored = Restored::kFromMemory, .block_size = 32},
      {.prefix = Prefix::kHit, .restored = Restored::kFromAFile, .forked = true},
      {.prefix = Prefix::kHit, .restored = Restored::kFromMemory, .preempting = true},
      // Together.
      {.prefix = Prefix::kEachOthers, .at_once = 4},
      {.prefix = Prefix::kHit, .block_size = 1, .chunk = 64, .threads = 3},
      {.prefix = Prefix::kHit, .at_once = 1, .block_size = 32, .chunk = 7, .threads = 1},
      {.prefix = Prefix::kInside, .chunk = 7, .preempting = true, .threads = 3},
      {.prefix = Prefix::kAtABorder, .block_size = 32, .chunk = 7},
      {.prefix = Prefix::kHit, .forked = true, .block_size = 32, .threads = 2},
      {.forked = true, .block_size = 8, .chunk = 7, .threads = 4},
      {.forked = true, .block_size = 8, .preempting = true, .threads = 2},
      {.prefix = Prefix::kEachOthers, .block_size = 1, .preempting = true},
  };
  for (const Restored from : {Restored::kFromDisk, Restored::kFromRedis}) {
    if (from == Restored::kFromDisk ? !with_disk : !with_redis) continue;
    all.push_back({.prefix = Prefix::kHit, .restored = from});
    all.push_back({.prefix = Prefix::kInside, .restored = from, .block_size = 32});
    all.push_back({.prefix = Prefix::kHit, .restored = from, .preempting = true});
  }
  return all;
}

std::string what_is_missing(const Condition& condition, const Happened& happened) {
  const llama::SchedulerStats& work = happened.stats.scheduler;
  if (condition.contiguous && happened.stats.blocks_total != 0) return "the twin had blocks";
  if (work.prompt_tokens != happened.tokens_asked) {
    return expect("prompt tokens asked", work.prompt_tokens, happened.tokens_asked);
  }
  if (condition.preempting && work.preemptions == 0) return "no sequence was preempted";
  if (!condition.preempting && work.preemptions != 0) {
    return expect("preemptions", work.preemptions, 0);
  }
  for (const auto& check :
       {missing_reuse, missing_loads, missing_forks, missing_batch, missing_order, missing_blocks,
        missing_chunks, missing_threads, missing_overlap, missing_waits}) {
    std::string missing = check(condition, happened);
    if (!missing.empty()) return missing;
  }
  return {};
}

}  // namespace kvfolio::tools
