// SPDX-License-Identifier: Apache-2.0
#pragma once

// An Executor over the OpenMP run-time of the program that includes this header; the library itself
// does not link one. Requires -fopenmp. It knows no kernel and keeps no thread of its own.
// Thread safety: no state. Inside a parallel region of the caller the tasks run one after the other
// if OpenMP does not nest further.

#ifndef _OPENMP
#error "kvfolio/openmp.h needs OpenMP: compile what includes it with -fopenmp"
#endif

#include <omp.h>

#include <cstdint>

#include "kvfolio/executor.h"

namespace kvfolio {

// num_threads <= 0: as many as omp_get_max_threads() says now.
[[nodiscard]] inline Executor openmp_executor(std::int32_t num_threads = 0) noexcept {
  const std::int32_t threads = num_threads > 0 ? num_threads : omp_get_max_threads();
  Executor executor;
  // The executor needs only the number of threads, so the pointer carries that number.
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  executor.context = reinterpret_cast<void*>(static_cast<std::intptr_t>(threads));
  executor.num_threads = threads;
  executor.parallel_for = [](void* context, std::int32_t n, void (*task)(void*, std::int32_t),
                             void* arg) {
    const auto most = static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(context));
    const std::int32_t team = n < most ? n : most;
    if (team <= 1) {
      for (std::int32_t i = 0; i < n; ++i) task(arg, i);
      return;
    }
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
    for (std::int32_t i = 0; i < n; ++i) task(arg, i);
  };
  return executor;
}

}  // namespace kvfolio
