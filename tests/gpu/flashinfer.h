// SPDX-License-Identifier: Apache-2.0
#pragma once

// FlashInfer's kernels over a problem of ours, for times beside ours. Its headers are in no folder
// of ours: scripts/gpu pack --flashinfer names one, and without it beside.cu has none of these.
// Only bf16, without a mask other than causal. A plan is made once, outside of what is timed, for
// exactly these lengths; FlashInfer itself would plan more loosely for a captured graph.

#include <functional>
#include <optional>

#include "problem.h"

namespace kvfolio::cuda {

// One for all, since one runs after the other.
struct PeerMemory {
  void* floats = nullptr;  // partial results
  std::size_t float_bytes = 0;
  void* pinned = nullptr;  // as large as a peer's own integers
};
constexpr std::size_t kPeerIntegers = 4 << 20;

struct Peer {
  std::function<cudaError_t(cudaStream_t)> launch;
  void* out = nullptr;  // [rows, num_heads * group_size, dim], bf16
};

// Nothing where FlashInfer, or the pack, has no kernel for the problem; its reason is printed if it
// is an error.
std::optional<Peer> flashinfer_decode(Arena& arena, const PeerMemory& memory,
                                      const Problem& problem);  // of one query a sequence
std::optional<Peer> flashinfer_fa2(Arena& arena, const PeerMemory& memory, const Problem& problem);
std::optional<Peer> flashinfer_fa3(Arena& arena, const PeerMemory& memory, const Problem& problem);

}  // namespace kvfolio::cuda
