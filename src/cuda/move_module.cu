// SPDX-License-Identifier: Apache-2.0

// The module of move_module.h: every kernel under its name.

#include "cuda/move_kernels.cuh"

#define KVFOLIO_KERNEL(name, ...)                                       \
  extern "C" __global__ void __launch_bounds__(kvfolio::cuda::kThreads) \
      name(const __grid_constant__ __VA_ARGS__::Args args) {            \
    __VA_ARGS__::run(args);                                             \
  }

// DO(name and element of what is read, name and element of what is written)
#define KVFOLIO_TO_ROWS(DO, f, F) DO(f, F, f32, kF32) DO(f, F, f16, kF16) DO(f, F, bf16, kBF16)
#define KVFOLIO_TO_SCALED(DO, f, F) DO(f, F, int8, kInt8) DO(f, F, e4m3, kE4M3)
#define KVFOLIO_TO_ALL(DO, f, F) KVFOLIO_TO_ROWS(DO, f, F) KVFOLIO_TO_SCALED(DO, f, F)
#define KVFOLIO_FROM_ROWS(TO, DO) TO(DO, f32, kF32) TO(DO, f16, kF16) TO(DO, bf16, kBF16)
#define KVFOLIO_FROM_ALL(TO, DO) KVFOLIO_FROM_ROWS(TO, DO) TO(DO, int8, kInt8) TO(DO, e4m3, kE4M3)

namespace kvfolio::cuda {

#define KVFOLIO_APPEND(f, F, t, T)                                  \
  KVFOLIO_KERNEL(kvfolio_append_##f##_##t##_wide,                   \
                 AppendPlain<Element::F, Element::T, kBatch, true>) \
  KVFOLIO_KERNEL(kvfolio_append_##f##_##t##_narrow,                 \
                 AppendPlain<Element::F, Element::T, kBatch, false>)
KVFOLIO_FROM_ROWS(KVFOLIO_TO_ROWS, KVFOLIO_APPEND)

#define KVFOLIO_APPEND_SCALED(f, F, t, T)                                    \
  KVFOLIO_KERNEL(kvfolio_append_##f##_##t##_wide_short,                      \
                 AppendQuantized<Element::F, Element::T, kShortUnits, true>) \
  KVFOLIO_KERNEL(kvfolio_append_##f##_##t##_wide_long,                       \
                 AppendQuantized<Element::F, Element::T, kLongUnits, true>)  \
  KVFOLIO_KERNEL(kvfolio_append_##f##_##t##_narrow_long,                     \
                 AppendQuantized<Element::F, Element::T, kLongUnits, false>)
KVFOLIO_FROM_ROWS(KVFOLIO_TO_SCALED, KVFOLIO_APPEND_SCALED)

#define KVFOLIO_GATHER(f, F, t, T)                                                              \
  KVFOLIO_KERNEL(kvfolio_gather_##f##_##t##_wide, Gather<Element::F, Element::T, kBatch, true>) \
  KVFOLIO_KERNEL(kvfolio_gather_##f##_##t##_narrow, Gather<Element::F, Element::T, kBatch, false>)
KVFOLIO_FROM_ALL(KVFOLIO_TO_ROWS, KVFOLIO_GATHER)

#define KVFOLIO_CONVERT(f, F, t, T)                                                       \
  KVFOLIO_KERNEL(kvfolio_convert_##f##_##t##_wide, Convert<Element::F, Element::T, true>) \
  KVFOLIO_KERNEL(kvfolio_convert_##f##_##t##_narrow, Convert<Element::F, Element::T, false>)
KVFOLIO_FROM_ALL(KVFOLIO_TO_ALL, KVFOLIO_CONVERT)

#define KVFOLIO_BLOCKS(name, OP)                                    \
  KVFOLIO_KERNEL(kvfolio_##name##_wide, Blocks<BlocksOp::OP, true>) \
  KVFOLIO_KERNEL(kvfolio_##name##_narrow, Blocks<BlocksOp::OP, false>)
KVFOLIO_BLOCKS(copy, kCopy)
KVFOLIO_BLOCKS(fill, kFill)
KVFOLIO_BLOCKS(pack, kPack)
KVFOLIO_BLOCKS(unpack, kUnpack)

KVFOLIO_KERNEL(kvfolio_scatter, Scatter)
KVFOLIO_KERNEL(kvfolio_runs_in, Runs<true>)
KVFOLIO_KERNEL(kvfolio_runs_out, Runs<false>)
KVFOLIO_KERNEL(kvfolio_plan_entries, PlanEntries)
KVFOLIO_KERNEL(kvfolio_plan_rows, PlanRows)

}  // namespace kvfolio::cuda
