// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA's words for a CPU, so that the text of a kernel runs in a test without a GPU: g++ compiles
// the .cuh files after this header, and launch() runs them. A thread of a kernel is a fiber;
// barriers and shuffles are where fibers meet. Blocks, and the fibers of a block, run in an order
// that a seed draws, so that a kernel that counts on an order fails for some seed.
//
// Every access goes to the test's own memory: a sanitizer or a guard page sees one that is out of
// bounds. It cannot show races between fibers that run one after the other, nor speed.
// Thread safety: none; one launch at a time.

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "kvfolio/status.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

// NOLINTBEGIN(bugprone-reserved-identifier): the names of CUDA, which a compiler of the host has
// not
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct int2 {
  int x, y;
};

namespace kvfolio::cuda::on_host {

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};

inline constexpr unsigned kLanes = 32;
inline constexpr unsigned kMaxThreads = 1024;

// Fibers that wait for each other.
struct Barrier {
  unsigned count = 0;
  unsigned generation = 0;
};

struct Fiber {
  static constexpr std::size_t kStackBytes = 64 << 10;
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack;
  bool done = true;
};

struct Machine {
  Dim thread, block, block_size, grid;
  unsigned self = 0;     // the fiber that runs
  unsigned threads = 0;  // of the block that runs
  std::array<Fiber, kMaxThreads> fibers;
  std::array<Barrier, kMaxThreads / kLanes> warps;
  std::array<std::array<std::uint32_t, kLanes>, kMaxThreads / kLanes> exchange;
  Barrier all;
  ucontext_t scheduler;
  const std::function<void()>* body = nullptr;
  std::mt19937 order;
  bool fibers_used = false;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
};

inline Machine& machine() {
  static Machine the_machine;
  return the_machine;
}

// Away from the fiber that runs, back to who chooses the next one.
inline void yield_fiber([[maybe_unused]] bool last) {
  Machine& m = machine();
  Fiber& fiber = m.fibers[m.self];
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(last ? nullptr : &fake, m.scheduler_stack,
                                 m.scheduler_stack_bytes);
  swapcontext(&fiber.context, &m.scheduler);
  __sanitizer_finish_switch_fiber(fake, &m.scheduler_stack, &m.scheduler_stack_bytes);
#else
  swapcontext(&fiber.context, &m.scheduler);
#endif
}

inline void fiber_main() {
  Machine& m = machine();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &m.scheduler_stack, &m.scheduler_stack_bytes);
#endif
  (*m.body)();
  m.fibers[m.self].done = true;
  yield_fiber(true);
}

inline void resume(unsigned t) {
  Machine& m = machine();
  m.self = t;
  m.thread.x = t;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&m.scheduler_fake_stack, m.fibers[t].stack.get(),
                                 Fiber::kStackBytes);
#endif
  swapcontext(&m.scheduler, &m.fibers[t].context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(m.scheduler_fake_stack, nullptr, nullptr);
#endif
}

inline void wait_at(Barrier& barrier, unsigned parties) {
  KVFOLIO_CHECK(machine().fibers_used);
  if (++barrier.count == parties) {
    barrier.count = 0;
    ++barrier.generation;
    return;
  }
  const unsigned generation = barrier.generation;
  while (barrier.generation == generation) yield_fiber(false);
}

inline void run_block_of_fibers(unsigned threads, const std::function<void()>& body) {
  Machine& m = machine();
  m.body = &body;
  m.threads = threads;
  m.fibers_used = true;
  std::vector<unsigned> order(threads);
  for (unsigned t = 0; t < threads; ++t) {
    order[t] = t;
    Fiber& fiber = m.fibers[t];
    if (!fiber.stack) fiber.stack = std::make_unique<std::byte[]>(Fiber::kStackBytes);
    fiber.done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = Fiber::kStackBytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
  }
  std::shuffle(order.begin(), order.end(), m.order);
  for (unsigned left = threads; left > 0;) {
    left = 0;
    for (const unsigned t : order) {
      if (m.fibers[t].done) continue;
      resume(t);
      if (!m.fibers[t].done) ++left;
    }
  }
}

// `meets`: the kernel has barriers or shuffles. Else its threads run as plain calls.
inline void launch(const Dim& grid, unsigned threads, bool meets, unsigned seed,
                   const std::function<void()>& body) {
  Machine& m = machine();
  KVFOLIO_CHECK(threads % kLanes == 0 && threads <= kMaxThreads);
  m.order.seed(seed);
  m.grid = grid;
  m.block_size = {threads, 1, 1};
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  std::vector<std::uint32_t> order(blocks);
  for (std::uint32_t i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), m.order);
  for (const std::uint32_t i : order) {
    m.block = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    m.fibers_used = false;
    if (meets) {
      run_block_of_fibers(threads, body);
      continue;
    }
    const bool backwards = (m.order() & 1u) != 0;
    for (unsigned t = 0; t < threads; ++t) {
      m.thread.x = backwards ? threads - 1 - t : t;
      body();
    }
  }
}

}  // namespace kvfolio::cuda::on_host

#define threadIdx (::kvfolio::cuda::on_host::machine().thread)
#define blockIdx (::kvfolio::cuda::on_host::machine().block)
#define blockDim (::kvfolio::cuda::on_host::machine().block_size)
#define gridDim (::kvfolio::cuda::on_host::machine().grid)

inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
// Compiled with -ffp-contract=off, so a product and a sum are rounded one by one. A device makes
// one NaN of its own, whatever went in.
namespace kvfolio::cuda::on_host {
inline float device_nan(float value) {
  return value != value ? std::bit_cast<float>(0x7fffffffu) : value;
}
}  // namespace kvfolio::cuda::on_host
inline float __fmul_rn(float a, float b) { return kvfolio::cuda::on_host::device_nan(a * b); }
inline float __fadd_rn(float a, float b) { return kvfolio::cuda::on_host::device_nan(a + b); }
inline float __fdiv_rn(float a, float b) { return kvfolio::cuda::on_host::device_nan(a / b); }
inline std::uint32_t __byte_perm(std::uint32_t x, std::uint32_t y, std::uint32_t selector) {
  const std::uint64_t bytes = std::uint64_t{y} << 32 | x;
  std::uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = selector >> (4 * i) & 7u;
    result |= static_cast<std::uint32_t>(bytes >> (8 * from) & 0xffu) << (8 * i);
  }
  return result;
}
inline std::uint32_t __umulhi(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}

inline void __syncthreads() {
  auto& m = kvfolio::cuda::on_host::machine();
  kvfolio::cuda::on_host::wait_at(m.all, m.threads);
}
inline void __syncwarp() {
  using namespace kvfolio::cuda::on_host;
  Machine& m = machine();
  wait_at(m.warps[m.thread.x / kLanes], kLanes);
}
inline std::uint32_t __shfl_xor_sync(unsigned mask, std::uint32_t value, unsigned turn) {
  using namespace kvfolio::cuda::on_host;
  KVFOLIO_CHECK(mask == 0xffffffffu && turn < kLanes);
  Machine& m = machine();
  auto& slots = m.exchange[m.thread.x / kLanes];
  slots[m.thread.x % kLanes] = value;
  __syncwarp();
  const std::uint32_t result = slots[(m.thread.x % kLanes) ^ turn];
  __syncwarp();  // before the next exchange overwrites it
  return result;
}
inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  const unsigned long long old = *at;
  *at = std::min(old, value);
  return old;
}

// NOLINTEND(bugprone-reserved-identifier)
