// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests: the text of kernels as what FakeDriver::kernel runs, on the CPU. Two sources, since
// the moves and attention are read after two headers that stand for CUDA's words.

#include <functional>
#include <utility>

#include "cuda/fake_driver.h"

namespace kvfolio::cuda {

// FakeDriver::kernel: what a launch does, or an empty function where the name is not known.
using KernelsOnHost = std::function<std::function<void()>(const FakeDriver::Start&)>;

// All kernels that move.h starts.
KernelsOnHost moves_on_host();
// The kernels of attention that take any element type and head dim.
KernelsOnHost general_attention_on_host();
// The kernels of tiles of caches of bf16 and int8 and head_dim 64, as sm_90 has them.
KernelsOnHost tile_attention_on_host();
// All of general_attention_on_host(), and those of tiles of bf16 and head_dim 64: of
// kernel_names_test.cc, for the program that it is part of.
KernelsOnHost model_kernels();

inline KernelsOnHost either(KernelsOnHost one, KernelsOnHost other) {
  return [one = std::move(one), other = std::move(other)](const FakeDriver::Start& start) {
    std::function<void()> work = one(start);
    return work ? work : other(start);
  };
}

}  // namespace kvfolio::cuda
