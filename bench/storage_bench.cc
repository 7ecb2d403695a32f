// SPDX-License-Identifier: Apache-2.0

// append, gather, block copy and the first fill against memcpy of the same bytes.
//
// Every iteration runs the kernel and then memcpy, so that both meet the same noise of the machine;
// `over_plain` is the median of the ratios of their times (1 is memcpy's speed; first_fill compares
// with memset). Each result is checked before anything is timed. The time column is the kernel's.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kvfolio/kernels.h"
#include "kvfolio/memory.h"
#include "kvfolio/storage.h"

namespace {

using namespace kvfolio;

constexpr std::int32_t kHeads = 8;
constexpr std::int32_t kDim = 128;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "storage_bench: %s\n", what);
  std::abort();
}

// Memory on huge pages, freed at the end.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : bytes_(bytes) {
    Result<std::byte*> got = memory_.allocate(bytes);
    require(got.has_value(), "no memory");
    data_ = *got;
  }
  ~Buffer() { memory_.deallocate(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(bytes_); }

 private:
  HostMemory memory_;
  std::int64_t bytes_;
  std::byte* data_ = nullptr;
};

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
  // Once unseen: the first touch of memory that the machine itself has to find is nobody's merit.
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

// Tokens of K and V in rows of an engine, and a cache whose blocks they reach in random order.
struct Fixture {
  Fixture(Format format, DType dtype, std::int32_t num_tokens, std::int32_t block_size,
          bool in_order = false)
      : tokens(num_tokens),
        plane_bytes(std::int64_t{num_tokens} * kHeads * kDim * dtype_bytes(dtype)),
        rows(2 * plane_bytes),
        back(2 * plane_bytes) {
    const std::int32_t num_blocks = num_tokens / block_size;
    const GroupSpec group{.num_kv_heads = kHeads,
                          .head_dim_k = kDim,
                          .head_dim_v = kDim,
                          .block_size = block_size,
                          .dtype = dtype,
                          .format = format,
                          .num_blocks = num_blocks};
    Result<KVStorage> created = KVStorage::create({.groups = {group}});
    require(created.has_value(), "no storage");
    storage.push_back(*std::move(created));
    cache = *storage[0].view(GroupId(0));
    require(storage[0].fill(std::byte{0}).ok(), "fill");

    table.resize(static_cast<std::size_t>(num_blocks));
    std::iota(table.begin(), table.end(), 0);
    if (!in_order) std::shuffle(table.begin(), table.end(), std::mt19937(1));
    for (std::int32_t t = 0; t < tokens; ++t) {
      slots.push_back(table[static_cast<std::size_t>(t / block_size)] * block_size +
                      t % block_size);
    }
    std::mt19937_64 random(2);
    for (std::size_t i = 0; i < rows.size(); i += 8) {
      // Small numbers in every element type, no NaN.
      const std::uint64_t bits = random() & 0x3f7f3f7f3f7f3f7fu;
      std::memcpy(rows.data() + i, &bits, 8);
    }
    std::memset(back.data(), 0, back.size());
  }
  [[nodiscard]] RowsView view_of(const Buffer& buffer, int plane) const {
    const std::int64_t row = kDim * dtype_bytes(cache.dtype);
    return {
        buffer.data() + plane * plane_bytes, kHeads * row, row, tokens, kHeads, kDim, cache.dtype};
  }
  void run_append() {
    require(append(cache, 0, view_of(rows, 0), view_of(rows, 1), slots).ok(), "append");
  }
  void run_gather() {
    require(gather({.cache = cache,
                    .block_table = table,
                    .length = tokens,
                    .count = tokens,
                    .k = view_of(back, 0),
                    .v = view_of(back, 1)})
                .ok(),
            "gather");
  }
  // What append wrote, gather reads back.
  void check() {
    run_append();
    run_gather();
    require(std::memcmp(rows.data(), back.data(), rows.size()) == 0, "the round trip lost bytes");
  }

  std::int32_t tokens;
  std::int64_t plane_bytes;
  Buffer rows;
  Buffer back;
  std::vector<KVStorage> storage;
  KVView cache;
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> slots;
};

void bench_append(benchmark::State& state, Format format, DType dtype, std::int32_t block_size) {
  Fixture fixture(format, dtype, static_cast<std::int32_t>(state.range(0)), block_size);
  fixture.check();
  // memcpy writes where append does: the cache without padding is as large as the rows.
  std::byte* const cache = fixture.cache.k;
  compare(
      state, 2 * fixture.plane_bytes, [&] { fixture.run_append(); },
      [&] { std::memcpy(cache, fixture.rows.data(), fixture.rows.size()); });
}

void bench_gather(benchmark::State& state, Format format, DType dtype, std::int32_t block_size) {
  Fixture fixture(format, dtype, static_cast<std::int32_t>(state.range(0)), block_size);
  fixture.check();
  std::byte* const cache = fixture.cache.k;
  compare(
      state, 2 * fixture.plane_bytes, [&] { fixture.run_gather(); },
      [&] { std::memcpy(fixture.back.data(), cache, fixture.back.size()); });
}

void bench_copy_blocks(benchmark::State& state, Format format) {
  constexpr std::int32_t kBlockSize = 16;
  Fixture fixture(format, DType::kF32, static_cast<std::int32_t>(state.range(0)), kBlockSize);
  fixture.check();
  // The first half of the blocks to the second half, both in random order.
  const std::size_t half = fixture.table.size() / 2;
  const std::span<const std::int32_t> src(fixture.table.data(), half);
  const std::span<const std::int32_t> dst(fixture.table.data() + half, half);
  const auto copy = [&] { require(copy_blocks(fixture.cache, src, dst).ok(), "copy"); };
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
  const CacheSpec spec = fixture.storage[0].spec();
  const auto bytes = static_cast<std::size_t>(2 * fixture.plane_bytes);
  compare(
      state, 2 * fixture.plane_bytes,
      [&] {
        Result<KVStorage> storage = KVStorage::create(spec);
        require(storage.has_value(), "no storage");
        require(append(*storage->view(GroupId(0)), 0, fixture.view_of(fixture.rows, 0),
                       fixture.view_of(fixture.rows, 1), fixture.slots)
                    .ok(),
                "append");
      },
      [&] {
        constexpr std::size_t kHuge = std::size_t{2} << 20;
        void* mapped = ::mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(mapped != MAP_FAILED, "mmap");
        ::madvise(mapped, bytes + kHuge, MADV_HUGEPAGE);
        void* aligned = mapped;
        std::size_t room = bytes + kHuge;
        require(std::align(kHuge, bytes, aligned, room) != nullptr, "align");
        std::memset(aligned, 1, bytes);
        ::munmap(mapped, bytes + kHuge);
      });
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
  // 16384 tokens (256 MiB) in memory only.
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
      add("copy_blocks" + tail + "/f32/block16", bench_copy_blocks, tokens, format);
      add("first_fill" + tail, bench_first_fill, tokens, format);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
