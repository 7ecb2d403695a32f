// SPDX-License-Identifier: Apache-2.0
#pragma once

// A model of a GPU's block for a CPU: the same names as instructions.cuh and
// group_instructions.cuh, so that the text of a kernel runs, unchanged, where there is no GPU.
// Threads of a block are fibers that take turns; a collective instruction exchanges registers
// between them with the fragment layouts of the PTX manual; asynchronous copies leave NaN in shared
// memory until they were waited for; shared memory has the size that the launch asked for and red
// bytes behind it.
//
// What it shows: indices, layouts, masks, the order of sums, waits that are missing in one thread's
// own text, places outside of shared memory. What it cannot show: races between warps beyond the
// orders that it draws (set_order), the order of sums inside an instruction, speed. Sums inside a
// multiply are taken in f32 from left to right, so bits are those of the model, not of a GPU.
//
// Include it before any kernel, with KVFOLIO_CUDA_HOST_MODEL defined, in one source: it has state.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cuda/attention/fibers.h"
#include "kvfolio/dtype.h"

// The names are those of CUDA, which a compiler of the host has not.
// NOLINTBEGIN(bugprone-reserved-identifier)
#define __device__
#define __global__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

namespace kvfolio::cuda {

// ---- vectors

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(8) int2 {
  int32_t x, y;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;

// ---- a block

namespace model {

struct Index {
  unsigned x = 0;
};

// A barrier of `count` arrivals; generations tell its uses apart.
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
};
struct Copy {
  uint32_t to = 0;
  const void* from = nullptr;
  int bytes = 0;
  int size = 0;
};
struct Thread {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
  std::deque<std::pair<std::vector<Copy>, uint32_t>> arrivals;  // copies, and whom they tell
  bool fenced = true;  // nothing was waited for since the last fence for wgmma
  unsigned exchanges = 0;
};
struct Warp {
  Barrier barrier;
  uint32_t words[2][32][8];  // of the exchange at hand and the one before
};
struct Phase {  // an mbarrier
  int count = 0;
  int arrived = 0;
  unsigned phase = 0;
};

inline constexpr int kMostThreads = 384;
inline constexpr int kMostShared = 232448;
inline constexpr int kRed = 4096;

struct Block {
  Fibers fibers{kMostThreads};
  Thread threads[kMostThreads];
  Warp warps[kMostThreads / 32];
  Barrier barrier;
  Barrier named[16];
  std::vector<std::pair<uint32_t, Phase>> phases;
  int num_threads = 0;
  int begun = 0;  // threads that waited for the launch before theirs
  int shared_bytes = 0;
  std::mt19937 order{1};
  bool shuffled = false;
  int64_t progress = 0;  // barriers passed, phases ended, threads done
  alignas(1024) char shared[kMostShared + kRed];
};
inline std::unique_ptr<Block> block = std::make_unique<Block>();
inline int self = 0;

[[noreturn]] inline void stop(const char* what) {
  std::fprintf(stderr, "host model, thread %d: %s\n", self, what);
  std::abort();
}
inline Thread& thread() { return block->threads[self]; }
inline Warp& warp() { return block->warps[self / 32]; }
inline int lane() { return self % 32; }
inline void yield() { block->fibers.yield(); }
inline Phase& phase_at(uint32_t barrier) {
  for (auto& [address, phase] : block->phases)
    if (address == barrier) return phase;
  stop("a barrier that was not made");
}
inline void arrive_at(uint32_t barrier) {
  Phase& phase = phase_at(barrier);
  if (++phase.arrived == phase.count) {
    phase.arrived = 0;
    ++phase.phase;
    ++block->progress;
  }
}

inline void wait(Barrier& barrier, int threads) {
  const unsigned mine = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
    ++block->progress;
    return;
  }
  while (barrier.generation == mine) yield();
}
// The registers of all lanes: one barrier is enough, since uses take turns with two buffers.
inline uint32_t (&exchange(const uint32_t* mine, int n))[32][8] {
  Warp& w = warp();
  auto& words = w.words[thread().exchanges++ & 1];
  for (int i = 0; i < n; ++i) words[lane()][i] = mine[i];
  wait(w.barrier, 32);
  return words;
}
inline char* at(uint32_t address, int bytes) {
  if (static_cast<int>(address) + bytes > block->shared_bytes) stop("outside of shared memory");
  return block->shared + address;
}

}  // namespace model

inline struct {
  struct {
    operator int() const { return model::self; }
  } x;
} threadIdx;
inline model::Index blockIdx;

inline void __syncthreads() { model::wait(model::block->barrier, model::block->num_threads); }
inline void __syncwarp() { model::wait(model::warp().barrier, 32); }
inline void __threadfence() {}
template <typename T>
inline T __ldcg(const T* p) {
  return *p;
}
template <typename T>
inline void __stcg(T* p, T value) {
  *p = value;
}

// ---- shared memory

inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(static_cast<const char*>(p) - model::block->shared);
}
inline void copy_async(uint32_t to, const void* from, int bytes, int size) {
  if (to % static_cast<uint32_t>(size) != 0)
    model::stop("a copy to an address that is not aligned");
  if (bytes != 0 && reinterpret_cast<std::uintptr_t>(from) % static_cast<std::uintptr_t>(size) != 0)
    model::stop("a copy from an address that is not aligned");
  std::memset(model::at(to, size), 0xff, static_cast<std::size_t>(size));
  model::thread().open.push_back({to, from, bytes, size});
}
inline void copy_async16(uint32_t to, const void* from, int bytes) {
  copy_async(to, from, bytes, 16);
}
inline void copy_async16(uint32_t to, const void* from) { copy_async(to, from, 16, 16); }
inline void copy_async4(uint32_t to, const void* from, int bytes) {
  copy_async(to, from, bytes, 4);
}
inline void commit_copies() {
  auto& t = model::thread();
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}
namespace model {
inline void carry_out(const std::vector<Copy>& copies) {
  for (const Copy& c : copies) {
    char* to = at(c.to, c.size);
    std::memset(to, 0, static_cast<std::size_t>(c.size));
    std::memcpy(to, c.from, static_cast<std::size_t>(c.bytes));
  }
}
// The oldest copies of a thread that a barrier waits for arrive.
inline void arrive_first(Thread& t) {
  carry_out(t.arrivals.front().first);
  arrive_at(t.arrivals.front().second);
  t.arrivals.pop_front();
}
}  // namespace model
template <int kOpen>
inline void wait_copies() {
  model::Thread& t = model::thread();
  while (!t.arrivals.empty()) model::arrive_first(t);  // they are older than any group
  while (static_cast<int>(t.groups.size()) > kOpen) {
    model::carry_out(t.groups.front());
    t.groups.pop_front();
  }
}

inline uint32_t shared16(uint32_t address) {
  uint16_t value;
  std::memcpy(&value, model::at(address, 2), 2);
  return value;
}
inline void load_four(uint32_t (&r)[4], uint32_t from, bool transposed) {
  if (from % 16 != 0) model::stop("a matrix row that is not aligned");
  const auto& rows = model::exchange(&from, 1);
  const int row = model::lane() / 4, c = 2 * (model::lane() % 4);
  for (int m = 0; m < 4; ++m) {
    const uint32_t r0 = transposed ? rows[8 * m + c][0] + static_cast<uint32_t>(2 * row)
                                   : rows[8 * m + row][0] + static_cast<uint32_t>(2 * c);
    const uint32_t r1 =
        transposed ? rows[8 * m + c + 1][0] + static_cast<uint32_t>(2 * row) : r0 + 2;
    r[m] = shared16(r0) | shared16(r1) << 16;
  }
}
inline void load_matrices(uint32_t (&r)[4], uint32_t from) { load_four(r, from, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t from) { load_four(r, from, true); }
inline void load_chunk(uint32_t (&r)[4], uint32_t from) { std::memcpy(r, model::at(from, 16), 16); }
inline uint32_t transpose_matrix(uint32_t a) {
  const auto& rows = model::exchange(&a, 1);
  const int row = model::lane() / 4, c = 2 * (model::lane() % 4);
  auto in = [&](int i, int j) { return (rows[4 * i + j / 2][0] >> (16 * (j % 2))) & 0xffffu; };
  return in(c, row) | in(c + 1, row) << 16;
}

// ---- arithmetic

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }  // compiled with -ffp-contract=off
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
// By IEEE operations alone, so that the model's bits are the same on every machine.
inline float exp2_approx(float x) {
  if (!(x > -150.0f)) return std::isnan(x) ? x : 0.0f;
  if (x >= 128.0f) return std::numeric_limits<float>::infinity();
  const float n = std::nearbyint(x), f = (x - n) * 0.693147180559945f;
  float y = 1.0f / 5040.0f;
  for (const float factor :
       {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f}) {
    y = std::fma(y, f, factor);
  }
  return std::ldexp(y, static_cast<int>(n));
}
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float log2_of(float x) { return std::log2(x); }
inline uint32_t __float_as_uint(float f) { return std::bit_cast<uint32_t>(f); }
inline float __uint_as_float(uint32_t u) { return std::bit_cast<float>(u); }
inline float __uint_as_float(int u) { return std::bit_cast<float>(u); }
inline float float_of_f16(uint32_t bits) { return f32_from_f16(static_cast<uint16_t>(bits)); }
inline float float_of_bf16(uint32_t bits) { return f32_from_bf16(static_cast<uint16_t>(bits)); }
template <bool kF16>
inline float float_of(uint32_t bits) {
  return kF16 ? float_of_f16(bits & 0xffffu) : float_of_bf16(bits & 0xffffu);
}
template <bool kF16>
inline uint32_t pack2(float low, float high) {
  const uint32_t a = kF16 ? f16_from_f32(low) : bf16_from_f32(low);
  const uint32_t b = kF16 ? f16_from_f32(high) : bf16_from_f32(high);
  return a | b << 16;
}
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t select) {
  uint8_t bytes[8];
  std::memcpy(bytes, &x, 4);
  std::memcpy(bytes + 4, &y, 4);
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= uint32_t{bytes[(select >> (4 * i)) & 7u]} << (8 * i);
  return r;
}
inline uint32_t int8_to_bf16x2(uint32_t x, uint32_t select) {
  const uint32_t t = __byte_perm(x, 0x43434343u, select), a = t & 0xff7fff7fu, b = t & 0xff80ff80u;
  return pack2<false>(float_of<false>(a) - float_of<false>(b),
                      float_of<false>(a >> 16) - float_of<false>(b >> 16));
}
inline uint32_t int8_to_f16x2(uint32_t flipped, uint32_t select) {
  const uint32_t t = __byte_perm(flipped, 0x64646464u, select);
  return pack2<true>(float_of<true>(t) - 1152.0f, float_of<true>(t >> 16) - 1152.0f);
}
inline float float_of_e4m3(uint32_t byte) {
  const int exponent = static_cast<int>(byte >> 3) & 15, mantissa = static_cast<int>(byte) & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (byte & 0x80u) != 0 ? -magnitude : magnitude;
}
inline uint32_t e4m3_to_f16x2(uint32_t x) {
  return pack2<true>(float_of_e4m3(x & 255u), float_of_e4m3((x >> 8) & 255u));
}
inline uint32_t e4m3_to_bf16x2(uint32_t x, uint32_t select) {
  const uint32_t t = __byte_perm(x, 0u, select);
  const uint32_t u = (t & 0x80008000u) | ((t >> 4) & 0x07f007f0u);
  return pack2<false>(float_of<false>(u) * 0x1p120f, float_of<false>(u >> 16) * 0x1p120f);
}

template <bool kF16>
inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto& x = model::exchange(mine, 6);
  float left[2][16], right[2][16];
  const int m = model::lane() / 4, n = 2 * (model::lane() % 4);
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) {
      const int shift = 16 * (k % 2);
      left[half][k] = float_of<kF16>(x[4 * m + (k % 8) / 2][half + 2 * (k / 8)] >> shift);
      right[half][k] = float_of<kF16>(x[4 * (n + half) + (k % 8) / 2][4 + k / 8] >> shift);
    }
  for (int e = 0; e < 4; ++e) {
    float sum = 0.0f;
    for (int k = 0; k < 16; ++k) sum += left[e / 2][k] * right[e % 2][k];
    d[e] += sum;
  }
}

inline uint32_t shuffle(uint32_t value, int from) { return model::exchange(&value, 1)[from][0]; }
inline uint32_t __shfl_sync(unsigned, uint32_t value, int from) {
  return shuffle(value, from & 31);
}
inline int __shfl_sync(unsigned, int value, int from) {
  return static_cast<int>(shuffle(static_cast<uint32_t>(value), from & 31));
}
inline uint32_t __shfl_xor_sync(unsigned, uint32_t value, int mask) {
  return shuffle(value, model::lane() ^ mask);
}
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  return std::bit_cast<float>(shuffle(std::bit_cast<uint32_t>(value), model::lane() ^ mask));
}
inline bool __any_sync(unsigned, bool mine) {
  const uint32_t word = mine ? 1 : 0;
  const auto& x = model::exchange(&word, 1);
  return std::any_of(std::begin(x), std::end(x), [](const auto& y) { return y[0] != 0; });
}
inline bool __all_sync(unsigned mask, bool mine) { return !__any_sync(mask, !mine); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }

inline void begin_overlapped_launch() {
  const model::Thread& thread = model::block->threads[model::self];
  if (thread.exchanges != 0 || !thread.open.empty())
    model::stop("a kernel that waits for the launch before it after it began");
  ++model::block->begun;
}
inline int arrive(int* counter) { return (*counter)++; }

// ---- warpgroups

// An operand's place of element (row, column), each row 64 elements: the 128-byte swizzle XORs
// address bits 4-6 with bits 7-9.
struct Operand {
  uint32_t start, lead, groups;
  bool same;  // 8 x 8 elements for all: see same_operand_of
  explicit Operand(uint64_t bits)
      : start(static_cast<uint32_t>(bits & 0x3fffu) << 4),
        lead(static_cast<uint32_t>((bits >> 16) & 0x3fffu) << 4),
        groups(static_cast<uint32_t>((bits >> 32) & 0x3fffu) << 4),
        same(bits >> 62 == 0) {
    if (!model::thread().fenced) model::stop("a product without a fence behind a wait");
  }
  template <bool kF16>
  [[nodiscard]] float at(uint32_t address) const {
    return float_of<kF16>(shared16(address ^ ((address >> 7 & 7u) << 4)));
  }
};
inline uint64_t operand_of(uint32_t address, uint32_t lead) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         (static_cast<uint64_t>(lead >> 4) << 16) | (static_cast<uint64_t>(1024 >> 4) << 32) |
         (1ull << 62);
}
inline uint64_t same_operand_of(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4);
}
// The rows of a 64-row product that a thread holds: row and row + 8 of its warp.
inline int group_row() { return 16 * ((model::self / 32) % 4) + model::lane() / 4; }

template <bool kF16>
inline void group_scores(float (&d)[32], uint64_t a, uint64_t b, int add) {
  const Operand left(a), right(b);
  const int column = 2 * (model::lane() % 4);
  for (int half = 0; half < 2; ++half) {
    float x[16];
    const auto row = static_cast<uint32_t>(group_row() + 8 * half);
    for (uint32_t k = 0; k < 16; ++k)
      x[k] = left.at<kF16>(left.start + row / 8 * left.groups + row % 8 * 128 + 2 * k);
    for (int j = 0; j < 8; ++j)
      for (int e = 0; e < 2; ++e) {
        const auto n = static_cast<uint32_t>(8 * j + column + e);
        float sum = 0.0f;
        for (uint32_t k = 0; k < 16; ++k)
          sum += x[k] * right.at<kF16>(right.start + n / 8 * right.groups + n % 8 * 128 + 2 * k);
        float& to = d[4 * j + 2 * half + e];
        to = (add != 0 ? to : 0.0f) + sum;
      }
  }
}
// A's two rows of this thread, from the registers of its four lanes.
template <bool kF16>
inline void group_rows_of(float (&left)[2][16], const uint32_t* a) {
  const auto& x = model::exchange(a, 4);
  const int quad = model::lane() / 4 * 4;
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k)
      left[half][k] = float_of<kF16>(x[quad + (k % 8) / 2][half + 2 * (k / 8)] >> (16 * (k % 2)));
}
// Over 64 or 128 dims, four sums of a thread for each 8.
template <bool kF16, int N>
inline void group_sums(float (&d)[N], const uint32_t* a, uint64_t b) {
  const Operand right(b);
  float left[2][16];
  group_rows_of<kF16>(left, a);
  const int column = 2 * (model::lane() % 4);
  for (int j = 0; j < N / 4; ++j)
    for (int e = 0; e < 2; ++e) {
      const auto n = static_cast<uint32_t>(8 * j + column + e);
      float v[16];
      for (uint32_t k = 0; k < 16; ++k)
        v[k] = right.same ? float_of<kF16>(shared16(right.start + k % 8 * 16 + n % 8 * 2))
                          : right.at<kF16>(right.start + n / 64 * right.lead +
                                           k / 8 * right.groups + k % 8 * 128 + n % 64 * 2);
      for (int half = 0; half < 2; ++half) {
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) sum += left[half][k] * v[k];
        d[4 * j + 2 * half + e] += sum;
      }
    }
}
template <bool kF16>
inline void group_totals(float (&d)[4], const uint32_t* a, uint64_t b) {
  float left[2][16];
  group_rows_of<kF16>(left, a);
  const Operand right(b);
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t row =
        right.start + 16 * (2 * (static_cast<uint32_t>(model::lane()) % 4) + i % 2);
    float sum = 0.0f;
    for (uint32_t k = 0; k < 16; ++k)
      sum += left[i / 2][k] * float_of<kF16>(shared16(row + k % 8 * 2));
    d[i] += sum;
  }
}
inline void group_fence() {}
inline void group_commit() {}
template <int kOpen>
inline void group_wait() {}
template <int N>
inline void keep(float (&)[N]) {}
inline void fence_shared_for_groups() { model::thread().fenced = true; }
inline void fence_barrier_init() {}
template <int N>
inline void give_registers() {}
template <int N>
inline void take_registers() {}

inline void barrier_init(uint32_t barrier, int count) {
  (void)model::at(barrier, 8);
  model::block->phases.push_back({barrier, {count, 0, 0}});
}
inline void barrier_arrive(uint32_t barrier) { model::arrive_at(barrier); }
// The copies arrive when other warps have run: they are not seen before the barrier says so.
inline void barrier_arrive_after_copies(uint32_t barrier) {
  model::Thread& t = model::thread();
  commit_copies();
  t.arrivals.emplace_back(std::vector<model::Copy>(), barrier);
  for (auto& group : t.groups)
    for (const model::Copy& copy : group) t.arrivals.back().first.push_back(copy);
  t.groups.clear();
}
inline void barrier_wait(uint32_t barrier, int parity) {
  while ((model::phase_at(barrier).phase & 1u) == static_cast<unsigned>(parity)) model::yield();
  model::thread().fenced = false;
}
inline void named_sync(int id, int threads) { model::wait(model::block->named[id], threads); }
inline void named_arrive(int id, int threads) {
  model::Barrier& barrier = model::block->named[id];
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
    ++model::block->progress;
  }
}

#define KVFOLIO_CUDA_SHARED_MEMORY(name) char* const name = ::kvfolio::cuda::model::block->shared

// ---- a launch

namespace model {

// Warps run in an order that is drawn anew at each round; 0: always the same.
inline void set_order(unsigned seed) {
  block->shuffled = seed != 0;
  block->order.seed(seed);
}

template <typename Kernel>
void run_block(int threads, int shared_bytes, const Kernel& kernel) {
  Block& b = *block;
  if (threads > kMostThreads || shared_bytes > kMostShared) stop("a launch that no GPU takes");
  b.num_threads = threads;
  b.begun = 0;
  b.shared_bytes = shared_bytes;
  b.phases.clear();
  b.barrier = {};
  for (Barrier& named : b.named) named = {};
  std::memset(b.shared, 0xff,
              static_cast<std::size_t>(shared_bytes) + static_cast<std::size_t>(kRed));
  for (int t = 0; t < threads; ++t) {
    b.threads[t].open.clear();
    b.threads[t].groups.clear();
    b.threads[t].arrivals.clear();
    b.threads[t].fenced = true;
    b.threads[t].exchanges = 0;
    b.fibers.start(t, [&kernel] { kernel(); });
  }
  for (Warp& w : b.warps) w.barrier = {};
  std::vector<int> warps(static_cast<std::size_t>(threads + 31) / 32);
  for (std::size_t w = 0; w < warps.size(); ++w) warps[w] = static_cast<int>(w);
  for (int left = threads; left > 0;) {
    const int64_t before = b.progress;
    for (Thread& t : b.threads)  // a copy that a barrier waits for arrives a round later
      if (!t.arrivals.empty()) arrive_first(t);
    if (b.shuffled) std::shuffle(warps.begin(), warps.end(), b.order);
    for (const int w : warps) {
      for (int64_t seen = -1; seen != b.progress;) {  // on, while its lanes get anywhere
        seen = b.progress;
        for (int t = 32 * w; t < std::min(threads, 32 * w + 32); ++t) {
          if (b.fibers.done(t)) continue;
          self = t;
          b.fibers.resume(t);
          if (b.fibers.done(t)) {
            --left;
            ++b.progress;
          }
        }
      }
    }
    if (b.progress == before && left > 0) stop("threads wait for each other");
  }
  for (int i = shared_bytes; i < shared_bytes + kRed; ++i)
    if (b.shared[i] != static_cast<char>(0xff)) stop("a store outside of shared memory");
}

template <typename Kernel>
void launch(int grid, int threads, int shared_bytes, bool overlaps_previous, const Kernel& kernel) {
  for (int i = 0; i < grid; ++i) {
    blockIdx.x = static_cast<unsigned>(i);
    run_block(threads, shared_bytes, kernel);
    if (overlaps_previous && block->begun != threads)
      stop("threads that do not wait for the launch before theirs, which may still run");
  }
}

}  // namespace model
}  // namespace kvfolio::cuda

// NOLINTEND(bugprone-reserved-identifier)
