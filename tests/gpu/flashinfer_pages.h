// SPDX-License-Identifier: Apache-2.0
#pragma once

// The block table of a problem as FlashInfer wants it: pages of all sequences, one after the other.

#include <exception>
#include <vector>

#include "flashinfer.h"

namespace kvfolio::cuda {

struct Pages {
  std::vector<std::int32_t> query_start, page_start, kv_lens;  // on the host
  std::int32_t* device_query_start = nullptr;
  std::int32_t* device_page_start = nullptr;
  std::int32_t* device_pages = nullptr;
  std::int32_t* device_last = nullptr;  // tokens of each sequence's last page
  std::int32_t rows = 0, sequences = 0, q_heads = 0;
  bool hnd = true;
  std::int64_t strides[4] =
      {};  // of K and of V, in elements: page, then as the layout orders them, 1
};

inline Pages pages_of(Arena& arena, const Problem& problem) {
  const AttentionCall& call = problem.call;
  const Spec& spec = problem.spec;
  Pages p;
  p.sequences = static_cast<std::int32_t>(problem.lens.size());
  p.rows = problem.rows;
  p.q_heads = spec.heads * spec.group_size;
  p.hnd = !spec.nhd;
  p.query_start.assign(problem.start.begin(), problem.start.end());
  p.kv_lens.assign(problem.lens.begin(), problem.lens.end());
  const Strides& k = call.cache.k_strides;
  p.strides[0] = k.block / 2;
  p.strides[1] = (p.hnd ? k.head : k.token) / 2;
  p.strides[2] = (p.hnd ? k.token : k.head) / 2;
  p.strides[3] = 1;
  std::vector<std::int32_t> table(static_cast<std::size_t>(p.sequences) *
                                  static_cast<std::size_t>(call.block_table_stride));
  CHECK_CUDA(cudaMemcpy(table.data(), call.block_table, table.size() * 4, cudaMemcpyDeviceToHost));
  std::vector<std::int32_t> pages, last;
  p.page_start.assign(1, 0);
  for (std::int32_t i = 0; i < p.sequences; ++i) {
    const std::int32_t len = p.kv_lens[static_cast<std::size_t>(i)];
    const std::int32_t count = (len + spec.block_size - 1) / spec.block_size;
    const auto row = table.begin() + i * call.block_table_stride;
    pages.insert(pages.end(), row, row + count);
    last.push_back(len - (count - 1) * spec.block_size);
    p.page_start.push_back(static_cast<std::int32_t>(pages.size()));
  }
  p.device_query_start = arena.put(p.query_start);
  p.device_page_start = arena.put(p.page_start);
  p.device_pages = arena.put(pages);
  p.device_last = arena.put(last);
  return p;
}

inline void* peer_out(Arena& arena, const Problem& problem) {
  const auto bytes = static_cast<std::size_t>(problem.rows) *
                     static_cast<std::size_t>(problem.call.out_token_stride);
  return arena.bytes(bytes, 0xff);
}

// What plan() answers, or nothing after an error of FlashInfer's, which is printed.
template <typename Plan>
bool planned(const char* what, Plan&& plan) {
  try {
    if (const cudaError_t error = plan(); error != cudaSuccess) {
      std::printf("%s: %s\n", what, cudaGetErrorString(error));
      return false;
    }
    CHECK_CUDA(cudaDeviceSynchronize());  // the pinned integers are free again
    return true;
  } catch (const std::exception& error) {
    std::printf("%s: %s\n", what, error.what());
    return false;
  }
}

}  // namespace kvfolio::cuda
