// SPDX-License-Identifier: Apache-2.0

// append, gather, block copy and the first fill against memcpy of the same bytes.
//
// Every iteration runs the kernel and then memcpy, so that both meet the same noise of the machine;
// `over_plain` is the median of the ratios of their times (1 is memcpy's speed; first_fill compares
// with memset). Each result is checked before anything is timed. The time column is the kernel's.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "kvfolio/kernels.h"
#include "storage_fixture.h"

namespace {

using namespace kvfolio;
using kvfolio::bench::require;
using Fixture = kvfolio::bench::StorageFixture;

template <typename Call>
double seconds_of(Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  benchmark::ClobberMemory();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Runs both in turn until the benchmark has enough; `bytes` is what each of them writes.
template <typename Kernel, typename Plain>
void compare(benchmark::State& state, std::int64_t bytes, Kernel&& kernel, Plain&& plain) {
  // Once unseen: the first touch of memory that the machine itself has to find belongs to neither
  // side.
  plain();
  kernel();
  std::vector<double> ratios;
  double kernel_seconds = 0;
  double plain_seconds = 0;
  for (auto _ : state) {
    const double ours = seconds_of(kernel);
    const double theirs = seconds_of(plain);
    ratios.push_back(theirs / ours);
    kernel_seconds += ours;
    plain_seconds += theirs;
    state.SetIterationTime(ours);
  }
  std::sort(ratios.begin(), ratios.end());
  const double total = static_cast<double>(bytes) * static_cast<double>(ratios.size()) * 1e-9;
  state.counters["over_plain"] = ratios[ratios.size() / 2];
  state.counters["GB/s"] = total / kernel_seconds;
  state.counters["plain_GB/s"] = total / plain_seconds;
}

void bench_append(benchmark::State& state, Format format, DType dtype, std::int32_t block_size) {
  Fixture fixture(format, dtype, static_cast<std::int32_t>(state.range(0)), block_size);
  fixture.check();
  // memcpy writes where append does: the cache without padding is as large as the rows. One of int8
  // is not: memcpy takes the same rows elsewhere.
  std::byte* const to = dtype == DType::kInt8 ? fixture.back.data() : fixture.cache.k;
  compare(
      state, 2 * fixture.plane_bytes, [&] { fixture.run_append(); },
      [&] { std::memcpy(to, fixture.rows.data(), fixture.rows.size()); });
}

void bench_gather(benchmark::State& state, Format format, DType dtype, std::int32_t block_size) {
  Fixture fixture(format, dtype, static_cast<std::int32_t>(state.range(0)), block_size);
  fixture.check();
  const std::byte* const from = dtype == DType::kInt8 ? fixture.rows.data() : fixture.cache.k;
  compare(
      state, 2 * fixture.plane_bytes, [&] { fixture.run_gather(); },
      [&] { std::memcpy(fixture.back.data(), from, fixture.back.size()); });
}

void bench_copy_blocks(benchmark::State& state, Format format) {
  constexpr std::int32_t kBlockSize = 16;
  Fixture fixture(format, DType::kF32, static_cast<std::int32_t>(state.range(0)), kBlockSize);
  fixture.check();
  // The first half of the blocks to the second half, both in random order.
  const std::size_t half = fixture.table.size() / 2;
  const std::span<const std::int32_t> src(fixture.table.data(), half);
  const std::span<const std::int32_t> dst(fixture.table.data() + half, half);
  const auto copy = [&] { require(copy_blocks(fixture.cache, src, dst), "copy"); };
  copy();
  fixture.run_gather();
  for (const int plane : {0, 1}) {
    const std::byte* data = fixture.view_of(fixture.back, plane).data;
    const auto bytes = static_cast<std::size_t>(fixture.plane_bytes / 2);
    require(std::memcmp(data, data + bytes, bytes) == 0, "the copy differs");
  }
  std::byte* const cache = fixture.cache.k;
  const auto bytes = static_cast<std::size_t>(fixture.plane_bytes);
  compare(state, fixture.plane_bytes, copy, [&] { std::memcpy(cache + bytes, cache, bytes); });
}

// A cache is created, filled for the first time and given back; against a plain fill (memset) of a
// fresh mapping on huge pages. Blocks are taken in order, as a new pool gives them.
void bench_first_fill(benchmark::State& state, Format format) {
  constexpr std::int32_t kBlockSize = 16;
  Fixture fixture(format, DType::kF32, static_cast<std::int32_t>(state.range(0)), kBlockSize, true);
  fixture.check();
  compare(
      state, 2 * fixture.plane_bytes, [&] { fixture.first_fill(); },
      [&] { fixture.plain_first_fill(); });
}

template <typename Bench, typename... Args>
void add(const std::string& name, Bench bench, std::int64_t tokens, Args... args) {
  benchmark::RegisterBenchmark(name.c_str(), bench, args...)
      ->Arg(tokens)
      ->ArgName("tokens")
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace

int main(int argc, char** argv) {
  // 8 KiB of K and of V per token in f32: 256 tokens lie in the second-level cache and the third,
  // 16384 tokens (128 MiB) in memory only.
  for (const std::int64_t tokens : {std::int64_t{256}, std::int64_t{16384}}) {
    for (const Format format : {Format::kNhd, Format::kHnd}) {
      const std::string tail = std::string("/") + to_string(format);
      for (const std::int32_t block_size : {16, 32}) {
        const std::string end = tail + "/f32/block" + std::to_string(block_size);
        add("append" + end, bench_append, tokens, format, DType::kF32, block_size);
        add("gather" + end, bench_gather, tokens, format, DType::kF32, block_size);
      }
      add("append" + tail + "/bf16/block16", bench_append, tokens, format, DType::kBF16, 16);
      add("gather" + tail + "/bf16/block16", bench_gather, tokens, format, DType::kBF16, 16);
      add("append" + tail + "/int8/block16", bench_append, tokens, format, DType::kInt8, 16);
      add("gather" + tail + "/int8/block16", bench_gather, tokens, format, DType::kInt8, 16);
      add("copy_blocks" + tail + "/f32/block16", bench_copy_blocks, tokens, format);
      add("first_fill" + tail, bench_first_fill, tokens, format);
    }
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
      const std::string tail = std::string("/granule/") + to_string(dtype) + "/block16";
      add("append" + tail, bench_append, tokens, Format::kGranule, dtype, 16);
      add("gather" + tail, bench_gather, tokens, Format::kGranule, dtype, 16);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
