// SPDX-License-Identifier: Apache-2.0

// Two engines on two machines share what they have computed:
//
//   example_shared_prefix HOST:PORT[,...] fill   computes a long prompt, whose blocks go to Redis
//   example_shared_prefix HOST:PORT[,...] hit    finds it there and computes one token
//
// An engine does the same, with its step beside poll(): see engine.cc. KVFOLIO_REDIS_PASSWORD is
// the password of the servers, if they have one.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "kvfolio/kvfolio.hpp"
#include "kvfolio/tiers.hpp"

using namespace kvfolio;

namespace {

constexpr std::int32_t kHeads = 2, kDim = 32, kPromptTokens = 1025;

std::uint64_t now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}
void check(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <typename T>
T check(Result<T> result) {
  if (!result) check(result.error());
  return *std::move(result);
}

// The same in every process, as a model's rows are.
std::vector<float> rows_of(std::span<const std::int32_t> tokens, float what) {
  std::vector<float> rows;
  for (const std::int32_t token : tokens) {
    for (std::int32_t i = 0; i < kHeads * kDim; ++i) {
      rows.push_back(std::sin(static_cast<float>(token + 1) * what + static_cast<float>(i)));
    }
  }
  return rows;
}

// Writes K and V of the tokens that the cache does not have.
void compute(KVCacheManager& cache, SequenceId sequence, std::span<const std::int32_t> rest) {
  const Ticket ticket = check(cache.begin_step());
  check(cache.append(sequence, rest));
  const StepPlan& plan = *check(cache.plan());
  check(cache.run_copies());
  std::vector<float> k = rows_of(rest, 0.3F), v = rows_of(rest, 0.7F);
  const auto tokens = static_cast<std::int32_t>(rest.size());
  check(append(check(cache.storage()->view(GroupId(0))), 0,
               contiguous_rows(k.data(), tokens, kHeads, kDim),
               contiguous_rows(v.data(), tokens, kHeads, kDim), plan.groups[0].slot_mapping));
  check(cache.finish(ticket));
}

// Whether the cache has the rows that were computed, wherever they come from.
bool is_right(KVCacheManager& cache, SequenceId sequence, std::span<const std::int32_t> prompt) {
  const auto tokens = static_cast<std::int32_t>(prompt.size());
  std::vector<float> k(prompt.size() * kHeads * kDim), v(k.size());
  check(gather({.cache = check(cache.storage()->view(GroupId(0))),
                .block_table = check(cache.block_table(sequence, GroupId(0))),
                .length = tokens,
                .count = tokens,
                .k = contiguous_rows(k.data(), tokens, kHeads, kDim),
                .v = contiguous_rows(v.data(), tokens, kHeads, kDim)}));
  return k == rows_of(prompt, 0.3F) && v == rows_of(prompt, 0.7F);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || (std::strcmp(argv[2], "fill") != 0 && std::strcmp(argv[2], "hit") != 0)) {
    std::fprintf(stderr, "usage: %s HOST:PORT[,HOST:PORT] fill|hit\n", argv[0]);
    return 2;
  }
  const char* password = std::getenv("KVFOLIO_REDIS_PASSWORD");
  auto redis = check(
      RedisTier::create({.servers = argv[1], .password = password == nullptr ? "" : password}));
  check(redis->wait_until_ready(now_us(), 2'000'000));

  GroupSpec layers{.num_layers = 1, .num_kv_heads = kHeads, .head_dim_k = kDim};
  layers.head_dim_v = kDim;
  layers.num_blocks = 128;
  KVCacheManager cache =
      check(KVCacheManager::create(check(KVStorage::create({{layers}})), {.list_findable = true}));
  // What decides the bytes; another model, weights or engine is another namespace. `kWriteThrough`
  // stores everything; where engines share system prompts, kSecondUse stores what is used again.
  const OffloadTier tier{.tier = redis.get(), .policy = WritePolicy::kWriteThrough};
  auto offload = check(Offload::create(cache, {.model = {.model = "example",
                                                         .weights = "sha256 of them",
                                                         .tokenizer = "1",
                                                         .model_dtype = "f32",
                                                         .positions = "none",
                                                         .engine = "example"},
                                               .arena_bytes = std::int64_t{64} << 20,
                                               .tiers = {&tier, 1},
                                               .timeout_us = 2'000'000}));  // nothing else waits

  std::vector<std::int32_t> prompt(kPromptTokens);
  for (std::int32_t i = 0; i < kPromptTokens; ++i) prompt[static_cast<std::size_t>(i)] = i % 97;
  OffloadOpened opened = check(offload->open(prompt, {.root = {.tenant_salt = "tenant 1"}}));
  while (opened.pending) {
    for (const SequenceReady& ready : offload->poll(now_us())) {
      opened.cached_tokens = ready.cached_tokens;
      opened.pending = false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  const auto rest = std::span(prompt).subspan(static_cast<std::size_t>(opened.cached_tokens));
  compute(cache, opened.sequence, rest);
  const bool right = is_right(cache, opened.sequence, prompt);
  std::printf("%d of %d tokens came from Redis, %zu were computed; all rows are %s\n",
              opened.cached_tokens, kPromptTokens, rest.size(), right ? "right" : "WRONG");

  const std::uint64_t deadline_us = now_us() + 5'000'000;
  while (offload->drain(now_us()).any() && now_us() < deadline_us) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::printf("%llu records were stored\n",
              static_cast<unsigned long long>(offload->counters().tier_stores));
  return right ? 0 : 1;
}
