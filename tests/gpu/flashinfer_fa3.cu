// SPDX-License-Identifier: Apache-2.0

// FlashInfer's FA3 prefill for Hopper, head_dim 128.

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/cutlass_utils.cuh>

#include "flashinfer_pages.h"

namespace kvfolio::cuda {

std::optional<Peer> flashinfer_fa3(Arena& arena, const PeerMemory& memory, const Problem& problem) {
  namespace fi = flashinfer;
  using Element16 = fi::cutlass_dtype_t<nv_bfloat16>;
  using Params = fi::BatchPrefillPagedParams<Element16, Element16, Element16, std::int32_t>;
  constexpr int kDim = 128;
  const Spec& spec = problem.spec;
  if (spec.dim_k != kDim) return {};
  Pages pages = pages_of(arena, problem);
  if (pages.rows == pages.sequences) return {};  // a decode: a tile for each query head
  void* integers = arena.bytes(kPeerIntegers);
  fi::PrefillPlanSM90Info info;
  const bool ok = planned("FlashInfer's FA3", [&] {
    return fi::PrefillSM90Plan<std::int32_t>(
        memory.floats, memory.float_bytes, integers, memory.pinned, kPeerIntegers, info,
        pages.query_start.data(), pages.page_start.data(), pages.kv_lens.data(),
        static_cast<uint32_t>(pages.rows), static_cast<uint32_t>(pages.sequences),
        static_cast<uint32_t>(pages.q_heads), static_cast<uint32_t>(spec.heads), kDim, kDim,
        static_cast<uint32_t>(spec.block_size), /*causal=*/true, /*enable_cuda_graph=*/false,
        /*sizeof_dtype_o=*/2, /*stream=*/nullptr);
  });
  if (!ok) return {};
  Peer peer;
  peer.out = peer_out(arena, problem);
  const AttentionCall& call = problem.call;
  Params params = {};
  params.q_ptr = static_cast<Element16*>(const_cast<void*>(call.q));
  params.k_ptr = reinterpret_cast<Element16*>(const_cast<char*>(call.cache.k));
  params.v_ptr = reinterpret_cast<Element16*>(const_cast<char*>(call.cache.v));
  params.o_ptr = static_cast<Element16*>(peer.out);
  params.additional_params.sm_scale = static_cast<float>(call.scale);
  params.q_stride_n = call.q_token_stride / 2;
  params.q_stride_h = call.q_head_stride / 2;
  params.o_stride_n = call.out_token_stride / 2;
  params.o_stride_h = call.out_head_stride / 2;
  params.k_stride_n = params.v_stride_n = call.cache.k_strides.token / 2;
  params.k_stride_h = params.v_stride_h = call.cache.k_strides.head / 2;
  params.k_page_stride = params.v_page_stride = call.cache.k_strides.block / 2;
  params.nnz_qo = pages.rows;
  params.num_qo_heads = pages.q_heads;
  params.num_kv_heads = spec.heads;
  params.group_size = spec.group_size;
  params.page_size = spec.block_size;
  params.window_left = -1;
  params.causal = true;
  auto at = [&](std::int64_t offset) {
    return fi::GetPtrFromBaseOffset<std::int32_t>(integers, offset);
  };
  params.qo_tile_indices = at(info.qo_tile_indices_offset);
  params.qo_indptr = at(info.qo_indptr_offset);
  params.kv_indptr = at(info.kv_indptr_offset);
  params.qo_lens = at(info.qo_len_offset);
  params.kv_lens = at(info.kv_len_offset);
  params.head_indices = at(info.head_indices_offset);
  params.work_indptr = at(info.work_indptr_offset);
  params.batch_indices = at(info.batch_indices_offset);
  params.kv_indices = pages.device_pages;
  if (info.same_schedule_for_all_heads) {  // more than 4,096 tiles a head: no problem here has so
                                           // many
    std::printf("FlashInfer's FA3: the pack has no instance with one schedule for all heads\n");
    return {};
  }
  peer.launch = [params](cudaStream_t stream) mutable {
    return fi::BatchPrefillWithPagedKVCacheDispatched<kDim, kDim, fi::MaskMode::kCausal,
                                                      /*LEFT_SLIDING_WINDOW=*/false,
                                                      /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false,
                                                      fi::StandardAttention, Params>(
        params, /*enable_pdl=*/true, stream);
  };
  return peer;
}

}  // namespace kvfolio::cuda
