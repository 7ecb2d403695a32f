// SPDX-License-Identifier: Apache-2.0

// FlashInfer's decode without tensor cores.

#include <flashinfer/attention/decode.cuh>
#include <flashinfer/attention/default_decode_params.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "flashinfer_pages.h"

namespace kvfolio::cuda {
namespace {

namespace fi = flashinfer;
using Params = fi::BatchDecodeParams<nv_bfloat16, nv_bfloat16, nv_bfloat16, std::int32_t>;
using Variant = fi::DefaultAttention<false, false, false, false>;
constexpr auto kNoPositions = fi::PosEncodingMode::kNone;

template <int kDim, int kGroup>
cudaError_t plan(const PeerMemory& memory, void* integers, Pages& pages, const Spec& spec,
                 fi::DecodePlanInfo& info) {
  auto estimate =
      fi::BatchDecodeWithPagedKVCacheWorkEstimationDispatched<kGroup, kDim, kNoPositions, Variant,
                                                              Params>;
  return fi::DecodePlan<kDim, kNoPositions, Variant, Params>(
      memory.floats, memory.float_bytes, integers, memory.pinned, kPeerIntegers, info,
      pages.page_start.data(), static_cast<uint32_t>(pages.sequences),
      static_cast<uint32_t>(pages.q_heads), static_cast<uint32_t>(spec.block_size),
      /*enable_cuda_graph=*/false, /*stream=*/nullptr, estimate);
}

template <int kDim>
std::optional<Peer> decode_of(Arena& arena, const PeerMemory& memory, const Problem& problem) {
  const Spec& spec = problem.spec;
  Pages pages = pages_of(arena, problem);
  void* integers = arena.bytes(kPeerIntegers);
  fi::DecodePlanInfo info;
  const bool ok = planned("FlashInfer's decode", [&] {
    switch (spec.group_size) {
      case 1:
        return plan<kDim, 1>(memory, integers, pages, spec, info);
      case 4:
        return plan<kDim, 4>(memory, integers, pages, spec, info);
      case 8:
        return plan<kDim, 8>(memory, integers, pages, spec, info);
      default:
        return cudaErrorNotSupported;
    }
  });
  if (!ok) return {};
  Peer peer;
  peer.out = peer_out(arena, problem);
  Params params;
  params.q = static_cast<nv_bfloat16*>(const_cast<void*>(problem.call.q));
  params.paged_kv = fi::paged_kv_t<nv_bfloat16, std::int32_t>(
      static_cast<uint32_t>(spec.heads), static_cast<uint32_t>(spec.block_size), kDim,
      static_cast<uint32_t>(pages.sequences), pages.hnd ? fi::QKVLayout::kHND : fi::QKVLayout::kNHD,
      reinterpret_cast<nv_bfloat16*>(const_cast<char*>(problem.call.cache.k)),
      reinterpret_cast<nv_bfloat16*>(const_cast<char*>(problem.call.cache.v)), pages.strides,
      pages.strides, pages.device_pages, pages.device_page_start, pages.device_last);
  params.o = static_cast<nv_bfloat16*>(peer.out);
  params.num_qo_heads = static_cast<uint32_t>(pages.q_heads);
  params.q_stride_n = static_cast<std::int32_t>(problem.call.q_token_stride / 2);
  params.q_stride_h = static_cast<std::int32_t>(problem.call.q_head_stride / 2);
  params.window_left = -1;
  params.sm_scale = static_cast<float>(problem.call.scale);
  auto at = [&](std::int64_t offset) {
    return fi::GetPtrFromBaseOffset<std::int32_t>(integers, offset);
  };
  params.request_indices = at(info.request_indices_offset);
  params.kv_tile_indices = at(info.kv_tile_indices_offset);
  params.o_indptr = at(info.o_indptr_offset);
  params.kv_chunk_size_ptr = at(info.kv_chunk_size_ptr_offset);
  params.padded_batch_size = static_cast<uint32_t>(info.padded_batch_size);
  nv_bfloat16* parts = nullptr;
  float* sums = nullptr;
  if (info.split_kv) {
    parts = fi::GetPtrFromBaseOffset<nv_bfloat16>(memory.floats, info.v_offset);
    sums = fi::GetPtrFromBaseOffset<float>(memory.floats, info.s_offset);
  }
  peer.launch = [params, parts, sums](cudaStream_t stream) {
    return fi::BatchDecodeWithPagedKVCacheDispatched<kDim, kNoPositions, Variant, Params>(
        params, parts, sums, /*enable_pdl=*/true, stream);
  };
  return peer;
}

}  // namespace

std::optional<Peer> flashinfer_decode(Arena& arena, const PeerMemory& memory,
                                      const Problem& problem) {
  if (problem.spec.group_size == 16) return {};  // FlashInfer says: with tensor cores
  if (problem.spec.dim_k == 128) return decode_of<128>(arena, memory, problem);
  if (problem.spec.dim_k == 64) return decode_of<64>(arena, memory, problem);
  return {};
}

}  // namespace kvfolio::cuda
