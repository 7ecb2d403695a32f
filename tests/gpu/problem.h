// SPDX-License-Identifier: Apache-2.0
#pragma once

// Problems for a GPU: caches whose data depend on a sequence's id, position and head alone, so that
// the same rows can be computed in other batches, layouts, chunks and kernels, and compared. A part
// of the program that meets a CUDA error stops with it: each part is a process of its own.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/attention/attend.h"

#define CHECK_CUDA(call)                                                                     \
  do {                                                                                       \
    if (const cudaError_t error_ = (call); error_ != cudaSuccess) {                          \
      std::printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      std::fflush(stdout);                                                                   \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (false)

namespace kvfolio::cuda {

// Device memory that lives as long as this.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Filled with `poison`, or not at all where it is negative.
  void* bytes(std::size_t n, int poison = -1);
  template <typename T>
  T* put(const std::vector<T>& values) {
    T* p = static_cast<T*>(bytes(values.size() * sizeof(T)));
    CHECK_CUDA(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
  }

 private:
  std::vector<void*> all_;
};

struct Sequence {
  std::uint32_t id = 0;  // decides its data
  std::int32_t kv_len = 0;
  std::int32_t queries = 1;
  std::int32_t share = -1;  // reads the blocks of this earlier sequence of the problem
  std::int32_t trim_sinks = 0;
  std::int32_t first_kept = 0;
};

struct Spec {
  Element element = Element::kBF16;
  Element q_element = Element::kBF16;
  int dim_k = 128, dim_v = 128;
  int heads = 8;
  int group_size = 8;
  int block_size = 16;
  bool nhd = false;
  bool k_beside_v = false;  // other strides of K than of V
  bool drop = false;        // blocks that no row sees are not there, and their table entries are -1
  std::uint32_t seed = 1;   // of the order of blocks
  Mask mask = {};
  double soft_cap = 0.0;
  bool alibi = false;
  bool sinks = false;
  Element out_element = Element::kF32;
  std::vector<Sequence> sequences;
  // V there holds a NaN (odd ids) or an infinity, in dim 5: {index of the sequence, position}.
  std::vector<std::pair<int, int>> wrong;
};

struct Problem {
  Spec spec;
  AttentionCall call;  // its spans point to the vectors below
  std::vector<std::int32_t> lens, start, trim_sinks, first_kept;
  int rows = 0;
  double kv_bytes = 0;  // K, V and scales of all positions, once
};

void build(Arena& arena, const Spec& spec, Problem& problem);

// Forces a choice between kernels of equal bits.
struct Way {
  const char* name;
  KernelChoice choice;
};

struct Planned {
  AttentionPlan plan;
  void* image = nullptr;
  void* workspace = nullptr;
};
Planned plan_on_device(Arena& arena, const Problem& problem, const KernelChoice& choice);

struct Output {
  std::vector<float> out, lse;
};
// Poisons, computes, copies back. out_element is f32.
Output run(const Problem& problem, const KernelChoice& choice);
// The same in f64, by another kernel.
void exact(const Problem& problem, std::vector<double>& out, std::vector<double>& lse);

// The parts. quick: a tenth of the work.
void run_bits(bool quick);
void run_right(bool quick);
void run_nan(bool quick);
void run_tiny(bool quick);
void run_decode(bool quick);
void run_prefill(bool quick);

}  // namespace kvfolio::cuda
