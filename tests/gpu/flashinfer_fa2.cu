// SPDX-License-Identifier: Apache-2.0

// FlashInfer's FA2 kernels with tensor cores, for prefill and decode. An instance takes minutes to
// compile: scripts/gpu defines KVFOLIO_FA2_TILE, _DIM and _CAUSAL for one in each object.

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "flashinfer_pages.h"

namespace kvfolio::cuda {

using Fa2Params =
    flashinfer::BatchPrefillPagedParams<nv_bfloat16, nv_bfloat16, nv_bfloat16, std::int32_t>;
template <int kTile, int kDim, bool kCausal>
cudaError_t launch_fa2(const Fa2Params& params, nv_bfloat16* parts, float* sums,
                       cudaStream_t stream);

#ifdef KVFOLIO_FA2_TILE

template <>
cudaError_t launch_fa2<KVFOLIO_FA2_TILE, KVFOLIO_FA2_DIM, KVFOLIO_FA2_CAUSAL>(
    const Fa2Params& params, nv_bfloat16* parts, float* sums, cudaStream_t stream) {
  namespace fi = flashinfer;
  return fi::BatchPrefillWithPagedKVCacheDispatched <
             /*SAME_KV_STRIDES=*/true,
         KVFOLIO_FA2_TILE, KVFOLIO_FA2_DIM, KVFOLIO_FA2_DIM, fi::PosEncodingMode::kNone,
         /*USE_FP16_QK_REDUCTION=*/false,
         KVFOLIO_FA2_CAUSAL ? fi::MaskMode::kCausal : fi::MaskMode::kNone,
         fi::DefaultAttention<false, false, false, false>,
         Fa2Params > (params, parts, sums,
                      /*enable_pdl=*/true, stream);
}

#else

template <>
cudaError_t launch_fa2<16, 128, false>(const Fa2Params&, nv_bfloat16*, float*, cudaStream_t);
template <>
cudaError_t launch_fa2<16, 64, false>(const Fa2Params&, nv_bfloat16*, float*, cudaStream_t);
template <>
cudaError_t launch_fa2<128, 128, true>(const Fa2Params&, nv_bfloat16*, float*, cudaStream_t);
template <>
cudaError_t launch_fa2<128, 64, true>(const Fa2Params&, nv_bfloat16*, float*, cudaStream_t);

std::optional<Peer> flashinfer_fa2(Arena& arena, const PeerMemory& memory, const Problem& problem) {
  namespace fi = flashinfer;
  const Spec& spec = problem.spec;
  Pages pages = pages_of(arena, problem);
  const bool causal = pages.rows > pages.sequences;
  void* integers = arena.bytes(kPeerIntegers);
  const auto heads = static_cast<uint32_t>(spec.heads), dim = static_cast<uint32_t>(spec.dim_k);
  fi::PrefillPlanInfo info;
  const bool ok = planned("FlashInfer's FA2", [&] {
    return fi::PrefillPlan<std::int32_t>(
        memory.floats, memory.float_bytes, integers, memory.pinned, kPeerIntegers, info,
        pages.query_start.data(), pages.page_start.data(), static_cast<uint32_t>(pages.rows),
        static_cast<uint32_t>(pages.sequences), static_cast<uint32_t>(pages.q_heads), heads, dim,
        dim, static_cast<uint32_t>(spec.block_size), /*enable_cuda_graph=*/false,
        /*sizeof_dtype_o=*/2, /*window_left=*/-1, /*fixed_split_size=*/-1,
        /*disable_split_kv=*/false, /*num_colocated_ctas=*/0, /*uniform_q_len=*/0,
        /*stream=*/nullptr, /*kv_dtype_bytes=*/2);
  });
  if (!ok) return {};
  auto* launch = info.cta_tile_q == 16 && !causal && dim == 128   ? launch_fa2<16, 128, false>
                 : info.cta_tile_q == 16 && !causal && dim == 64  ? launch_fa2<16, 64, false>
                 : info.cta_tile_q == 128 && causal && dim == 128 ? launch_fa2<128, 128, true>
                 : info.cta_tile_q == 128 && causal && dim == 64  ? launch_fa2<128, 64, true>
                                                                  : nullptr;
  if (launch == nullptr) {
    std::printf("FlashInfer's FA2: the pack has no instance for tiles of %d rows, head_dim %u\n",
                static_cast<int>(info.cta_tile_q), dim);
    return {};
  }
  Peer peer;
  peer.out = peer_out(arena, problem);
  Fa2Params params;
  params.q = static_cast<nv_bfloat16*>(const_cast<void*>(problem.call.q));
  params.paged_kv = fi::paged_kv_t<nv_bfloat16, std::int32_t>(
      heads, static_cast<uint32_t>(spec.block_size), dim, static_cast<uint32_t>(pages.sequences),
      pages.hnd ? fi::QKVLayout::kHND : fi::QKVLayout::kNHD,
      reinterpret_cast<nv_bfloat16*>(const_cast<char*>(problem.call.cache.k)),
      reinterpret_cast<nv_bfloat16*>(const_cast<char*>(problem.call.cache.v)), pages.strides,
      pages.strides, pages.device_pages, pages.device_page_start, pages.device_last);
  params.q_indptr = pages.device_query_start;
  params.o = static_cast<nv_bfloat16*>(peer.out);
  params.num_qo_heads = static_cast<uint32_t>(pages.q_heads);
  params.group_size = fi::uint_fastdiv(static_cast<uint32_t>(spec.group_size));
  params.q_stride_n = static_cast<std::int32_t>(problem.call.q_token_stride / 2);
  params.q_stride_h = static_cast<std::int32_t>(problem.call.q_head_stride / 2);
  params.window_left = -1;
  params.sm_scale = static_cast<float>(problem.call.scale);
  auto at = [&](std::int64_t offset) {
    return fi::GetPtrFromBaseOffset<std::int32_t>(integers, offset);
  };
  params.request_indices = at(info.request_indices_offset);
  params.qo_tile_indices = at(info.qo_tile_indices_offset);
  params.kv_tile_indices = at(info.kv_tile_indices_offset);
  params.o_indptr = at(info.o_indptr_offset);
  params.kv_chunk_size_ptr = at(info.kv_chunk_size_ptr_offset);
  params.padded_batch_size = static_cast<uint32_t>(info.padded_batch_size);
  params.max_total_num_rows = static_cast<uint32_t>(info.total_num_rows);
  nv_bfloat16* parts = nullptr;
  float* sums = nullptr;
  if (info.split_kv) {
    params.merge_indptr = at(info.merge_indptr_offset);
    parts = fi::GetPtrFromBaseOffset<nv_bfloat16>(memory.floats, info.v_offset);
    sums = fi::GetPtrFromBaseOffset<float>(memory.floats, info.s_offset);
  }
  peer.launch = [launch, params, parts, sums](cudaStream_t stream) {
    return launch(params, parts, sums, stream);
  };
  return peer;
}

#endif

}  // namespace kvfolio::cuda
