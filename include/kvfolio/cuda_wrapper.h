// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention in the call shape of FlashInfer's paged wrappers, for an engine that has their arrays
// and wants to try cuda::attend() in place of them: plan() once for a step, run() for each layer.
//
//   auto attention = cuda::BatchAttention::create(kernels, {.max_sequences = 256,
//                                                           .max_pages_of_sequence = 512});
//   auto cache = cuda::paged_kv_view({.k = k, .v = v, .num_pages = pages, .page_size = 16, ...});
//   (*attention)->plan({.kv_indptr = indptr, .kv_indices = indices, .kv_last_page_len = last,
//                       .num_qo_heads = 32, .paged_kv = *cache}, stream);
//   (*attention)->run(q, *cache, out, lse, stream);  // once for each layer
//
// Arrays are of host memory and in FlashInfer's form; a page is a block. Where the two differ:
// - `paged_kv` says page_size, num_kv_heads, head_dim, the element type and the strides, which a
//   plan is cut for. Each layer's own view has the same ones, at another address.
// - lse has natural logarithms, there base 2: divide ours by ln 2.
// - Refused by name: positions that a kernel turns into RoPE or ALiBi (rotate q and k before; for
//   slopes, sinks and trims call attend() itself), a mask of one's own, caches with one scale for a
//   tensor (fold that of K into sm_scale), and what plan_attend() refuses.
//
// Its memory, on the device and pinned, is taken by create() and keeps its addresses. A step is
// written to one of two pieces of pinned memory and goes up in two copies; plan() waits only if
// both pieces are still on their way. What lies on the device is that of the last plan(), so plan()
// and the run()s behind it go in one stream, or the caller orders them. plan() allocates on the
// heap, run() does not.
//
// Captured graphs: run() may be captured, plan() not. A replay computes the last plan as long as
// shape() is the one that was captured (AttendShape): capture again when it changes, or keep a
// graph for each shape. In a batch of decodes it changes when a sequence enters another 1,024
// tokens; where decodes go as a stream (few tokens in all, or 900 MB of them), another 256. With
// BatchAttentionOptions::padded it never changes: one graph serves every step within the options.
// Thread safety: one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvfolio/cuda_kernels.h"
#include "kvfolio/dtype.h"
#include "kvfolio/export.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda {

// An engine's tensors of one layer, in device memory.
struct PagedKV {
  std::byte* k =
      nullptr;  // kNhd: [num_pages, page_size, num_kv_heads, head_dim]; kHnd: [num_pages,
  std::byte* v = nullptr;  // num_kv_heads, page_size, head_dim]. Null: one tensor [num_pages, 2,
                           // ...] at k, of which index 0 is K and 1 is V
  Format layout = Format::kNhd;  // or kHnd
  std::int32_t num_pages = 0;
  std::int32_t page_size = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  DType dtype = DType::kBF16;  // f32, f16 or bf16
};
// The view of tensors without gaps. Any other strides: fill in a KVView.
// kInvalidArgument: a null k, a count below 1, a layout that is neither. kUnsupported: an element
// type with scales, which are of each token and head here: KVStorage::borrow() has a place for
// them; f64 and opaque bytes.
KVFOLIO_API Result<KVView> paged_kv_view(const PagedKV& tensors);

struct BatchAttentionOptions {
  std::int32_t max_sequences = 0;          // of a step: 1 to 2^20
  std::int32_t max_pages_of_sequence = 0;  // columns of the block table: 1 to 2^24
  // Device memory, and as much pinned twice, for how a step's work is cut: 16 bytes for each 1,024
  // tokens of 8 rows, 80 for each segment of a stream. 16 to 2^32.
  std::int64_t max_image_bytes = std::int64_t{4} << 20;
  // Device memory for parts of rows that are merged, as FlashInfer's float workspace. 16 to 2^40.
  std::int64_t workspace_bytes = std::int64_t{128} << 20;
  // Plans are padded to max_sequences sequences of max_pages_of_sequence pages (AttendCapacity), so
  // that shape() is one for all steps of the same paged_kv and heads. A step that is larger is
  // refused with the numbers, and so is one of another causal (where max_queries is above 1),
  // sm_scale, window_left or logits_soft_cap than the first one: a captured run() keeps them.
  bool padded = false;
  std::int64_t max_tokens = 0;  // of K and V of a padded step; 0: what all pages have room for
  // Rows of one sequence of a padded step: 1, a decode, to 2^16. Above 1 each step has a qo_indptr.
  std::int32_t max_queries = 1;
};

// What plan() is told, by FlashInfer's names and with its defaults.
struct BatchAttentionPlan {
  // [n + 1]: rows of q of each sequence, its last tokens. Empty: a decode, one row for each.
  std::span<const std::int32_t> qo_indptr = {};
  std::span<const std::int32_t> kv_indptr = {};         // [n + 1]: from 0 on, not falling
  std::span<const std::int32_t> kv_indices = {};        // [at least kv_indptr[n]]: pages
  std::span<const std::int32_t> kv_last_page_len = {};  // [n]: 1 to page_size; any without pages
  std::int32_t num_qo_heads = 0;
  KVView paged_kv = {};  // of any layer
  bool causal = false;   // a decode has no other way
  double sm_scale = 0;   // 0: 1 / sqrt(head_dim)
  // A row sees the window_left tokens before its own, and its own; -1: all.
  std::int32_t window_left = -1;
  double logits_soft_cap = 0;  // 0: none
  DType q_data_type = DType::kBF16;
  DType o_data_type = DType::kBF16;
  // What is refused, but for these values.
  std::string_view pos_encoding_mode = "NONE";
  std::span<const std::byte> custom_mask = {};
};

class KVFOLIO_API BatchAttention {
 public:
  // kInvalidArgument: the options, null kernels. kOutOfMemory, kUnavailable: as every call on the
  // device.
  static Result<std::unique_ptr<BatchAttention>> create(const std::shared_ptr<Kernels>& kernels,
                                                        const BatchAttentionOptions& options);
  BatchAttention(const BatchAttention&) = delete;
  BatchAttention& operator=(const BatchAttention&) = delete;
  // Waits for copies that are under way. Kernels of run() have ended before.
  ~BatchAttention();

  // Reads all arrays before it returns. kInvalidArgument, kUnsupported, nothing was started and the
  // plan before stays: the arrays, by name and number; more sequences, pages of a sequence, bytes
  // of the image or of the workspace than there is room for (both numbers); what a padded step has
  // other than the first one; what plan_attend() says. kFailedPrecondition, the same: the stream is
  // being captured. An error of the driver leaves no plan.
  Status plan(const BatchAttentionPlan& step, void* stream);
  // One layer of what was planned. q: [rows, num_qo_heads, head_dim], out the same, in any strides
  // that are aligned; lse: [rows, num_qo_heads] or null. kFailedPrecondition: there is no plan.
  // kInvalidArgument: another shape, stride or element type than that of the plan.
  Status run(const ConstRowsView& q, const KVView& paged_kv, const RowsView& out, float* lse,
             void* stream, std::int32_t layer = 0);

  // That of the last plan, by which a captured run() is known. All 0 without a plan.
  [[nodiscard]] AttendShape shape() const noexcept;
  // "cuda-sm90-tiles": AttendPlan::target() of the last plan; empty without one.
  [[nodiscard]] std::string_view target() const noexcept;
  [[nodiscard]] std::int64_t device_bytes() const noexcept;
  [[nodiscard]] std::int64_t pinned_bytes() const noexcept;

  // For the sources of this library.
  struct Impl;
  explicit BatchAttention(std::unique_ptr<Impl> impl) noexcept;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio::cuda
