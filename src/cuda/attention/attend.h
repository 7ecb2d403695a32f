// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention over a paged cache in a GPU's memory: what attend() of kernels.h computes, by kernels
// whose rows do not depend on batch, chunk, block size, strides, order of blocks, or the way the
// work is cut. docs/cuda-attention.md says how, and what a device has shown.
//
//   Result<AttentionPlan> plan = plan_attention(call);      // host: checks, cuts
//   copy plan->image to `image` on the device, and have plan->workspace_bytes there
//   Status status = attend(call, *plan, image, workspace, launcher);
//
// Internal: library/attend_call.cc has the public calls. Nothing here needs CUDA: a Launcher
// starts kernels (launch.cu on a GPU, host_launch.h on a CPU, for tests). Pointers are to the
// memory of the launcher's device; what they point to cannot be checked here, and neither can
// entries of the block table. Thread safety: no state.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cuda/attention/args.h"
#include "cuda/attention/padded_args.h"
#include "cuda/attention/plan.h"
#include "kvfolio/cuda_capacity.h"
#include "kvfolio/status.h"

namespace kvfolio::cuda {

// Which kernel computes a cache and its queries: by element types and head dims alone, so that a
// row's bits depend on nothing else.
enum class Family : std::int32_t {
  kGeneral = 0,  // f32 products, any head dims: correct, not fast
  kTiles64 = 1,  // mma, head_dim 64
  kTiles128 = 2,
  kTiles256 = 3,  // by nodes alone: no prefill kernel, no stream
};

struct AttentionCall {
  CacheArgs cache = {};
  // In device memory.
  const std::int32_t* block_table = nullptr;  // [sequences, block_table_stride]
  std::int64_t block_table_stride = 0;
  const std::int32_t* device_query_start = nullptr;  // the same numbers as `lengths`
  const std::int32_t* device_kv_lens = nullptr;
  const std::int32_t* device_trim_sinks = nullptr;  // null where lengths has none
  const std::int32_t* device_trim_first_kept = nullptr;
  const void* q = nullptr;          // [rows, num_heads * group_size, dim_k]; elements are adjacent
  std::int64_t q_token_stride = 0;  // bytes
  std::int64_t q_head_stride = 0;
  Element q_element = Element::kBF16;
  void* out = nullptr;  // [rows, num_heads * group_size, dim_v]
  std::int64_t out_token_stride = 0;
  std::int64_t out_head_stride = 0;
  Element out_element = Element::kBF16;
  float* lse = nullptr;  // [rows, num_heads * group_size], natural logarithm; may be null
  const float* alibi_slopes = nullptr;  // [num_heads * group_size]; null: none
  // [num_heads * group_size]: a logit that each row's softmax has beside its scores; null: none.
  // Where a row is computed in parts and merged, only one part may have it.
  const float* sink_logits = nullptr;

  // On the host.
  BatchLengths lengths = {};
  std::int32_t group_size = 1;
  double scale = 0.0;     // finite and > 0
  double soft_cap = 0.0;  // scores become cap * tanh(score / cap); 0: none; or 1e-30 to 1e30
  Mask mask = {};
};

// What chooses between kernels of equal bits: the card, and tests that want a certain one.
struct KernelChoice {
  std::int32_t num_sms = 132;
  bool wgmma = true;  // sm_90 has it
  // wgmma for 8-bit caches and head_dim 64 as well. Not by itself: no device has shown that kernel.
  bool wgmma_tiles = false;
  bool wide_tiles = true;  // head_dim 256 on tensor cores; not in the set for other cards
  bool prefill = true;
  bool narrow = false;  // prefill by narrow_kernel, of half the rows: for less shared memory
  bool stream = true;
  std::int32_t stream_blocks_of_sm = 3;  // that have room beside each other
  std::int32_t stream_blocks = 0;        // > 0: a stream of so many blocks wherever it is possible
};

// How much of what a plan's image and workspace have.
struct PlanCounts {
  std::int32_t items = 0;
  std::int32_t groups = 0;
  std::int32_t prefill_items = 0;
  std::int32_t segments = 0;
  std::int32_t segments_per_block = 0;
  std::int32_t stream_blocks = 0;
  std::int32_t stream_groups = 0;
  std::int32_t states = 0;
  bool merges = false;
};

// The choice that prefers a kernel for chunks, by the name that to_string() gives it: cuda-node,
// cuda-prefill (cuda-narrow where there is no room for it), cuda-wgmma or cuda-wgmma-tiles, each
// where the card has it and it takes the shapes, and what is chosen without it elsewhere.
// kInvalidArgument with the names for any other.
[[nodiscard]] Result<KernelChoice> choice_named(std::string_view name, KernelChoice choice);

enum class KernelName : std::int32_t {
  kNode,
  kGeneral,
  kMerge,
  kPrefill,
  kWgmma,
  kStream,
  kNarrow,
  kWgmmaTiles
};
inline constexpr std::size_t kKernelNames = 8;

struct AttentionPlan {
  Family family = Family::kGeneral;
  KernelName prefill = KernelName::kPrefill;  // what computes prefill items
  bool many_nodes = false;                    // more than the card computes in a few rounds
  std::int32_t group_rows = 8;
  WorkPlan work;
  PlanCounts counts;                       // of work, or of the room of a padded plan
  std::optional<AttendCapacity> capacity;  // of a padded plan
  PaddedRoom room;                         // the same
  bool trims = false;                      // the same: sequences may have trims
  std::vector<std::byte> image;            // items, groups, prefill items, one behind the other
  std::int64_t workspace_bytes = 0;
  // The first bytes of the workspace must be zero before the first call; each call leaves them so.
  std::int64_t zeroed_bytes = 0;
};

// kInvalidArgument with the numbers: what kernels.h says of attend(), and rows that are not aligned
// to 16 bytes (8-byte rows: to 8), a place beyond 64 GiB of one layer. kUnsupported: head dims that
// are no multiple of 8 or above 576, blocks of more than 256 tokens.
[[nodiscard]] Result<AttentionPlan> plan_attention(const AttentionCall& call,
                                                   const KernelChoice& choice = {});
// The same, padded to a capacity (cuda_kernels.h): without prefill kernels, and whether it is a
// stream is decided by the capacity. Trims and sinks that lie apart from a window are of nodes
// only.
[[nodiscard]] Result<AttentionPlan> plan_attention(const AttentionCall& call,
                                                   const KernelChoice& choice,
                                                   const AttendCapacity& capacity);
// What plan_kernel() is told to make this padded plan's image of the call's arrays on the device.
// Lengths of the call are not read.
[[nodiscard]] PaddedArgs plan_args_of(const AttentionCall& call, const AttentionPlan& plan,
                                      const std::int32_t* num_sequences, void* image,
                                      void* workspace, unsigned long long* fault);

// A kernel with its arguments, as a launcher gets it.
struct KernelLaunch {
  KernelName kernel = KernelName::kGeneral;
  Element element = Element::kBF16;
  std::int32_t head_dim = 0;    // of a Family with one
  std::int32_t group_rows = 8;  // rows of an item, or of a state that is merged
  std::int32_t grid = 0;
  bool many_nodes = false;
  // May begin before the launch in front of it is complete; the kernel waits itself.
  bool overlaps_previous = false;
  AttendArgs args = {};
};
struct Launcher {
  Status (*launch)(void* state, const KernelLaunch& launch) = nullptr;
  void* state = nullptr;
};

// What a kernel is told of a call, without a plan.
[[nodiscard]] AttendArgs arguments_of(const AttentionCall& call);

// Starts the kernels of a plan. image: plan.image on the device, 16-byte aligned; workspace: at
// least plan.workspace_bytes, 16-byte aligned, of which the first plan.zeroed_bytes are zero and
// all others anything. Either may be null where it has no bytes; a null one that is needed is
// kInvalidArgument by name. Answers the launcher's error. Requires: `call` is one that
// plan_attention() takes, and of the plan's shapes, parameters and lengths (library/attend_call.cc
// checks that).
[[nodiscard]] Status attend(const AttentionCall& call, const AttentionPlan& plan, const void* image,
                            void* workspace, const Launcher& launcher);

// The kernels that attend() starts for a plan, in order.
[[nodiscard]] std::vector<KernelName> kernels_of(const AttentionPlan& plan);
// "cuda-node", "cuda-general", ...: what explain() and results print.
[[nodiscard]] std::string_view to_string(KernelName kernel) noexcept;
[[nodiscard]] std::string_view to_string(Element element) noexcept;

}  // namespace kvfolio::cuda
