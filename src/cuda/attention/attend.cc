// SPDX-License-Identifier: Apache-2.0

// The host side of attention on a GPU: checks each argument that it can see, chooses kernels, cuts
// the work, fills in what a kernel is told. Nothing behind it checks again.

#include "cuda/attention/attend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/attention/check.h"
#include "cuda/attention/padded.h"
#include "kernels/check.h"
#include "kvfolio/ids.h"
#include "kvfolio/spec.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

constexpr int kMostHeadDim = 576;
constexpr int kMostBlockSize = 256;
constexpr std::int64_t kMostLayerBytes = std::int64_t{1} << 36;
constexpr double kLog2OfE = 1.4426950408889634;

Status check_pointer(std::string_view name, const void* pointer, std::int64_t alignment) {
  if (pointer == nullptr) return invalid(concat(name, " is null"));
  if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(alignment) != 0) {
    return invalid(concat(name, " is not aligned to ", alignment, " bytes"));
  }
  return {};
}

Status check_count(std::string_view name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return {};
  return invalid(concat(name, " is ", value, ", allowed: ", low, " to ", high));
}

// K, V or scales of one layer: aligned, and no place beyond what a kernel can name.
Status check_plane(const CacheArgs& cache, std::string_view name, const void* data,
                   const Strides& strides, std::int64_t row_bytes, std::int64_t alignment) {
  const std::int64_t most_bytes = alignment == 4 ? kMostLayerBytes / 4 : kMostLayerBytes;
  KVFOLIO_RETURN_IF_ERROR(check_pointer(concat("cache.", name), data, alignment));
  const std::pair<std::int64_t, std::int64_t> axes[] = {{cache.num_blocks, strides.block},
                                                        {cache.num_heads, strides.head},
                                                        {cache.block_size, strides.token}};
  std::int64_t last = 0;
  for (const auto& [extent, stride] : axes) {
    if (extent == 1) continue;
    if (stride < 0 || stride % alignment != 0) {
      return invalid(concat("cache.", name, " has a stride of ", stride,
                            " bytes, allowed: multiples of ", alignment, ", not negative"));
    }
    if (stride > most_bytes / extent) {
      return invalid(concat("cache.", name, " has a stride of ", stride, " bytes over ", extent,
                            ", allowed: ", most_bytes, " bytes for a layer"));
    }
    last += (extent - 1) * stride;
  }
  if (last + row_bytes > kMostLayerBytes) {
    return invalid(concat("cache.", name, " reaches over ", last + row_bytes,
                          " bytes, allowed: ", most_bytes, " for a layer"));
  }
  return {};
}

bool is_element(Element element) { return element_bytes(element) != 0; }
bool is_row_element(Element element) { return is_element(element) && !has_scales(element); }

Status check_dim(std::string_view name, std::int32_t dim) {
  if (dim >= 1 && dim <= kMostHeadDim && dim % 8 == 0) return {};
  if (dim < 1) return invalid(concat("cache.", name, " is ", dim, ", allowed: at least 8"));
  return {ErrorCode::kUnsupported,
          concat("cache.", name, " is ", dim, ", the kernels take multiples of 8 up to ",
                 kMostHeadDim)};
}

std::int64_t row_alignment(std::int64_t row_bytes) { return row_bytes % 16 == 0 ? 16 : 8; }

Status check_cache(const CacheArgs& cache) {
  if (!is_element(cache.element)) {
    return invalid(concat("cache.element is ", static_cast<std::int32_t>(cache.element),
                          ", allowed: f32, f16, bf16, int8, e4m3"));
  }
  KVFOLIO_RETURN_IF_ERROR(check_dim("dim_k", cache.dim_k));
  KVFOLIO_RETURN_IF_ERROR(check_dim("dim_v", cache.dim_v));
  if (cache.block_size > kMostBlockSize) {
    return {ErrorCode::kUnsupported, concat("cache.block_size is ", cache.block_size,
                                            ", the kernels take up to ", kMostBlockSize)};
  }
  KVFOLIO_RETURN_IF_ERROR(check_count("cache.block_size", cache.block_size, 1, kMostBlockSize));
  KVFOLIO_RETURN_IF_ERROR(check_count("cache.num_blocks", cache.num_blocks, 1,
                                      std::numeric_limits<std::int32_t>::max()));
  KVFOLIO_RETURN_IF_ERROR(check_count("cache.num_heads", cache.num_heads, 1, 65535));
  const std::int64_t k_row = std::int64_t{cache.dim_k} * element_bytes(cache.element);
  const std::int64_t v_row = std::int64_t{cache.dim_v} * element_bytes(cache.element);
  KVFOLIO_RETURN_IF_ERROR(
      check_plane(cache, "k", cache.k, cache.k_strides, k_row, row_alignment(k_row)));
  KVFOLIO_RETURN_IF_ERROR(
      check_plane(cache, "v", cache.v, cache.v_strides, v_row, row_alignment(v_row)));
  if (!has_scales(cache.element)) {
    if (cache.k_scales == nullptr && cache.v_scales == nullptr) return {};
    return invalid(concat("cache.k_scales or v_scales is given for ", to_string(cache.element),
                          ", allowed: null, scales are of int8 and e4m3 only"));
  }
  KVFOLIO_RETURN_IF_ERROR(
      check_plane(cache, "k_scales", cache.k_scales, cache.k_scale_strides, 4, 4));
  return check_plane(cache, "v_scales", cache.v_scales, cache.v_scale_strides, 4, 4);
}

Status check_params(const AttentionCall& call) {
  if (!std::isfinite(call.scale) || call.scale <= 0.0) {
    return invalid("scale is 0, negative or not finite, allowed: finite and > 0");
  }
  KVFOLIO_RETURN_IF_ERROR(kernels::check_soft_cap(call.soft_cap));
  const Mask& mask = call.mask;
  if (mask.rule != Rule::kFull && mask.rule != Rule::kSlidingWindow &&
      mask.rule != Rule::kChunked) {
    return invalid(concat("mask.rule is ", static_cast<std::int32_t>(mask.rule),
                          ", allowed: full, sliding window, chunked"));
  }
  if (mask.rule != Rule::kFull && mask.window < 1) {
    return invalid(concat("mask.window is ", mask.window, ", allowed: at least 1"));
  }
  if (mask.num_sinks < 0) {
    return invalid(concat("mask.num_sinks is ", mask.num_sinks, ", allowed: at least 0"));
  }
  return check_count("group_size", call.group_size, 1, 1024);
}

Status check_lengths(const AttentionCall& call) {
  const BatchLengths& lengths = call.lengths;
  const bool positions_matter = call.mask.causal != 0 || call.mask.rule != Rule::kFull;
  KVFOLIO_RETURN_IF_ERROR(kernels::check_lengths(lengths, call.block_table_stride,
                                                 call.cache.block_size, positions_matter));
  const std::int32_t num_queries = lengths.query_start[lengths.kv_lens.size()];
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  if (std::int64_t{num_queries} * call.group_size > kMostRows) {
    return invalid(concat(num_queries, " queries x group_size ", call.group_size,
                          ", allowed: ", kMostRows, " rows"));
  }
  return {};
}

Status check_rows(std::string_view name, const void* rows, Element element, std::int64_t token,
                  std::int64_t head, std::int32_t dim) {
  if (!is_row_element(element)) {
    return invalid(concat(name, "_element is ", static_cast<std::int32_t>(element),
                          ", allowed: f32, f16, bf16"));
  }
  const std::int64_t alignment = row_alignment(std::int64_t{dim} * element_bytes(element));
  KVFOLIO_RETURN_IF_ERROR(check_pointer(name, rows, alignment));
  for (const std::int64_t stride : {token, head}) {
    if (stride % alignment != 0) {
      return invalid(
          concat(name, " has a stride of ", stride, " bytes, allowed: multiples of ", alignment));
    }
  }
  return {};
}

Status check_device_arrays(const AttentionCall& call) {
  if (call.block_table_stride < 0) {
    return invalid(
        concat("block_table_stride is ", call.block_table_stride, ", allowed: at least 0"));
  }
  KVFOLIO_RETURN_IF_ERROR(check_pointer("device_query_start", call.device_query_start, 4));
  KVFOLIO_RETURN_IF_ERROR(check_pointer("device_kv_lens", call.device_kv_lens, 4));
  if (call.block_table_stride > 0) {
    KVFOLIO_RETURN_IF_ERROR(check_pointer("block_table", call.block_table, 4));
  }
  if (call.lengths.trim_sinks.empty()) return {};
  KVFOLIO_RETURN_IF_ERROR(check_pointer("device_trim_sinks", call.device_trim_sinks, 4));
  return check_pointer("device_trim_first_kept", call.device_trim_first_kept, 4);
}

Status check_q_and_out(const AttentionCall& call) {
  KVFOLIO_RETURN_IF_ERROR(check_rows("q", call.q, call.q_element, call.q_token_stride,
                                     call.q_head_stride, call.cache.dim_k));
  return check_rows("out", call.out, call.out_element, call.out_token_stride, call.out_head_stride,
                    call.cache.dim_v);
}
Status check_query_rows(const AttentionCall& call) {
  return call.lengths.query_start.back() == 0 ? Status() : check_q_and_out(call);
}

Status check(const AttentionCall& call) {
  KVFOLIO_RETURN_IF_ERROR(check_cache(call.cache));
  KVFOLIO_RETURN_IF_ERROR(check_params(call));
  KVFOLIO_RETURN_IF_ERROR(check_device_arrays(call));
  KVFOLIO_RETURN_IF_ERROR(check_lengths(call));
  return check_query_rows(call);
}

Family family_of(const AttentionCall& call) {
  const CacheArgs& cache = call.cache;
  if (cache.dim_k != cache.dim_v) return Family::kGeneral;
  Family family = Family::kGeneral;
  if (cache.dim_k == 64) family = Family::kTiles64;
  if (cache.dim_k == 128) family = Family::kTiles128;
  if (cache.dim_k == 256) family = Family::kTiles256;
  const bool queries_fit = has_scales(cache.element)
                               ? call.q_element != Element::kF32
                               : cache.element == call.q_element && cache.element != Element::kF32;
  return queries_fit ? family : Family::kGeneral;
}

// Whether the family has prefill kernels, and items of 16 rows.
bool has_prefill(Family family) {
  return family == Family::kTiles64 || family == Family::kTiles128;
}

KernelName prefill_kernel(const AttentionCall& call, Family family, const KernelChoice& choice) {
  if (choice.wgmma) {
    if (family == Family::kTiles128 && !has_scales(call.cache.element)) return KernelName::kWgmma;
    if (choice.wgmma_tiles && has_prefill(family)) return KernelName::kWgmmaTiles;
  }
  return choice.narrow ? KernelName::kNarrow : KernelName::kPrefill;
}

// Whether stream_kernel computes these shapes: it wants 16-bit elements, equal strides of K and V.
bool stream_takes(const AttentionCall& call, Family family) {
  return (family == Family::kTiles64 || family == Family::kTiles128) &&
         !has_scales(call.cache.element) && call.group_size <= 8 &&
         call.cache.k_strides == call.cache.v_strides;
}

// What the choice of the stream looks at: leaves of a KV head.
struct StreamSize {
  std::int64_t leaves = 0;
  std::int64_t longest = 0;
  std::int64_t tokens = 0;
};
StreamSize stream_size(const BatchLengths& lengths) {
  StreamSize size;
  for (const std::int32_t kv_len : lengths.kv_lens) {
    const std::int64_t mine = (std::int64_t{kv_len} + kLeafTokens - 1) / kLeafTokens;
    size.leaves += mine;
    size.longest = std::max(size.longest, mine);
    size.tokens += kv_len;
  }
  return size;
}
StreamSize stream_size(const AttendCapacity& capacity) {
  const std::int64_t longest =
      (std::int64_t{capacity.max_sequence_tokens} + kLeafTokens - 1) / kLeafTokens;
  return {std::min(longest * capacity.max_sequences,
                   capacity.max_tokens / kLeafTokens + capacity.max_sequences),
          longest, capacity.max_tokens};
}

// How many blocks the stream has, or 0 where nodes are faster. Measured on an H200: it wins where
// there is less than a leaf for each of its blocks and few states to merge, and where there are
// many bytes and no sequence has a large share of them (docs/cuda-attention.md).
std::int32_t stream_blocks(const AttentionCall& call, const StreamSize& size,
                           const KernelChoice& choice) {
  const std::int32_t num_sms = choice.num_sms;
  constexpr std::int64_t kManyBytes = 900'000'000;
  // A capacity may have 2^50. So many are many bytes of any cache, and their product is in range.
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 36;
  const std::int64_t leaves = size.leaves * call.cache.num_heads;
  const std::int64_t bytes = std::min(size.tokens, kMostTokens) * call.cache.num_heads *
                             (call.cache.dim_k + call.cache.dim_v) *
                             element_bytes(call.cache.element);
  const bool small = leaves <= 2 * num_sms && size.longest <= 16;
  const bool large = bytes >= kManyBytes && call.group_size >= 4 && call.cache.dim_k == 128 &&
                     size.longest * call.cache.num_heads * num_sms <= 8 * leaves;
  return small || large ? choice.stream_blocks_of_sm * num_sms : 0;
}

template <typename T>
void append_to(std::vector<std::byte>& image, const std::vector<T>& values) {
  const std::size_t before = image.size();
  image.resize(before + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(image.data() + before, values.data(), values.size() * sizeof(T));
}

// Requires: checked strides; check_plane() keeps every place within 32 bits.
Steps steps_of(const Strides& strides, std::int64_t unit) {
  return {static_cast<std::uint32_t>(strides.block / unit),
          static_cast<std::uint32_t>(strides.head / unit),
          static_cast<std::uint32_t>(strides.token / unit)};
}

Mask resolved(Mask mask) {
  if (mask.rule == Rule::kFull) mask.num_sinks = 0;
  return mask;
}

PlanCounts counts_of(const WorkPlan& work) {
  const auto count = [](const auto& list) { return static_cast<std::int32_t>(list.size()); };
  return {.items = count(work.items),
          .groups = count(work.groups),
          .prefill_items = count(work.prefill_items),
          .segments = count(work.segments),
          .segments_per_block = work.segments_per_block,
          .stream_blocks = work.stream_blocks,
          .stream_groups = work.stream_groups,
          .states = count(work.state_flags),
          .merges = work.merges};
}
PlanCounts counts_of(const PaddedRoom& room) {
  return {.items = room.items,
          .groups = room.groups,
          .segments = room.stream_blocks * room.segments_per_block,
          .segments_per_block = room.segments_per_block,
          .stream_blocks = room.stream_blocks,
          .stream_groups = room.stream_groups,
          .states = room.states,
          .merges = room.merges};
}

// What does not depend on how the work is cut, but for the stream.
PlanOptions options_of(const AttentionCall& call, AttentionPlan& plan, const KernelChoice& choice) {
  plan.family = family_of(call);
  if (plan.family == Family::kTiles256 && !choice.wide_tiles) plan.family = Family::kGeneral;
  plan.prefill = prefill_kernel(call, plan.family, choice);
  PlanOptions options{.group_size = call.group_size, .num_heads = call.cache.num_heads};
  if (has_prefill(plan.family) && call.group_size > 8) options.group_rows = 16;
  plan.group_rows = options.group_rows;
  return options;
}

// A captured graph keeps the table and its stride, so a row has room for the longest sequence.
Status check_table_row(const AttentionCall& call, const AttendCapacity& capacity) {
  const std::int64_t size = call.cache.block_size;
  const std::int64_t needed = (capacity.max_sequence_tokens + size - 1) / size;
  if (call.block_table_stride >= needed) return {};
  return invalid(concat("block_table_stride is ", call.block_table_stride, ", needed: ", needed,
                        ", for capacity.max_sequence_tokens ", capacity.max_sequence_tokens,
                        " in blocks of ", size, " tokens"));
}

// Whether a padded plan has trims. A batch of no sequences has none, but for what it points to.
bool has_trims(const AttentionCall& call) {
  if (!call.lengths.kv_lens.empty()) return !call.lengths.trim_sinks.empty();
  return call.device_trim_sinks != nullptr && call.device_trim_first_kept != nullptr;
}

// arguments_of(), as the plan has trims where the batch has no sequences.
AttendArgs arguments_of(const AttentionCall& call, const AttentionPlan& plan) {
  AttendArgs args = arguments_of(call);
  if (plan.capacity && call.lengths.kv_lens.empty() && plan.trims) {
    args.trim_sinks = call.device_trim_sinks;
    args.trim_first_kept = call.device_trim_first_kept;
  }
  return args;
}

// Which instance of a kernel there is, and how much memory it wants, of the plan's counts.
void finish(const AttentionCall& call, const KernelChoice& choice, AttentionPlan& plan) {
  const PlanCounts& counts = plan.counts;
  // Measured on an H200: 512 and 760 blocks want the deep rings, 1,024 want company.
  plan.many_nodes =
      std::int64_t{counts.items} * call.cache.num_heads >= std::int64_t{6} * choice.num_sms;
  const std::int64_t state_bytes = std::int64_t{plan.group_rows} * (call.cache.dim_v + 2) *
                                   static_cast<std::int64_t>(sizeof(float));
  if (counts.stream_blocks > 0) {
    plan.zeroed_bytes = (std::int64_t{counts.stream_groups} * 4 + 15) / 16 * 16;
    plan.workspace_bytes = plan.zeroed_bytes + std::int64_t{counts.states} * state_bytes;
  } else if (counts.merges || plan.capacity) {  // empty items leave states
    plan.workspace_bytes = std::int64_t{counts.items} * call.cache.num_heads * state_bytes;
  }
}

}  // namespace

Status check_memory_of(const AttentionCall& call) {
  KVFOLIO_RETURN_IF_ERROR(check_cache(call.cache));
  KVFOLIO_RETURN_IF_ERROR(check_params(call));
  KVFOLIO_RETURN_IF_ERROR(check_device_arrays(call));
  return check_query_rows(call);
}

AttendArgs arguments_of(const AttentionCall& call) {
  AttendArgs args;
  args.cache = call.cache;
  args.k_steps = steps_of(call.cache.k_strides, 16);
  args.v_steps = steps_of(call.cache.v_strides, 16);
  args.k_scale_steps = steps_of(call.cache.k_scale_strides, 4);
  args.v_scale_steps = steps_of(call.cache.v_scale_strides, 4);
  const auto block_size = static_cast<std::uint32_t>(call.cache.block_size);
  if (std::has_single_bit(block_size)) args.block_shift = std::countr_zero(block_size);
  args.table = call.block_table;
  args.table_stride = call.block_table_stride;
  args.kv_lens = call.device_kv_lens;
  args.query_start = call.device_query_start;
  if (!call.lengths.trim_sinks.empty()) {
    args.trim_sinks = call.device_trim_sinks;
    args.trim_first_kept = call.device_trim_first_kept;
  }
  args.q = static_cast<const char*>(call.q);
  args.q_token = call.q_token_stride;
  args.q_head = call.q_head_stride;
  args.out = static_cast<char*>(call.out);
  args.out_token = call.out_token_stride;
  args.out_head = call.out_head_stride;
  args.lse = call.lse;
  args.q_element = call.q_element;
  args.out_element = call.out_element;
  args.group_size = call.group_size;
  args.mask = resolved(call.mask);
  args.scale_log2 = static_cast<float>(call.scale * kLog2OfE);
  if (call.soft_cap > 0.0) {
    args.cap_log2 = static_cast<float>(call.soft_cap * kLog2OfE);
    args.cap_inverse = static_cast<float>(1.0 / (call.soft_cap * kLog2OfE));
  }
  args.slopes = call.alibi_slopes;
  args.sink_logits = call.sink_logits;
  return args;
}

Result<AttentionPlan> plan_attention(const AttentionCall& call, const KernelChoice& choice) {
  KVFOLIO_RETURN_IF_ERROR(check(call));
  AttentionPlan plan;
  PlanOptions options = options_of(call, plan, choice);
  if (has_prefill(plan.family)) {
    options.prefill_rows = !choice.prefill ? 0 : plan.prefill == KernelName::kNarrow ? 64 : 128;
    options.prefill_from = 4 * options.group_rows;
  }
  if (choice.stream && stream_takes(call, plan.family)) {
    options.stream_blocks = choice.stream_blocks > 0
                                ? choice.stream_blocks
                                : stream_blocks(call, stream_size(call.lengths), choice);
  }
  plan.work = plan_work(call.lengths, resolved(call.mask), options);
  plan.counts = counts_of(plan.work);
  append_to(plan.image, plan.work.items);
  append_to(plan.image, plan.work.groups);
  append_to(plan.image, plan.work.prefill_items);
  append_to(plan.image, plan.work.segments);
  append_to(plan.image, plan.work.state_flags);
  finish(call, choice, plan);
  return plan;
}

Result<AttentionPlan> plan_attention(const AttentionCall& call, const KernelChoice& choice,
                                     const AttendCapacity& capacity) {
  KVFOLIO_RETURN_IF_ERROR(check(call));
  Result<AttendCapacity> checked = checked_capacity(capacity);
  if (!checked) return checked.error();
  KVFOLIO_RETURN_IF_ERROR(check_table_row(call, *checked));
  KVFOLIO_RETURN_IF_ERROR(check_fits_capacity(call.lengths, *checked));
  AttentionPlan plan;
  plan.capacity = *checked;
  plan.trims = has_trims(call);
  const Mask mask = resolved(call.mask);
  PlanOptions options = options_of(call, plan, choice);
  if (choice.stream && stream_takes(call, plan.family) && checked->max_queries == 1 &&
      mask.num_sinks == 0 && !plan.trims) {
    options.stream_blocks = choice.stream_blocks > 0
                                ? choice.stream_blocks
                                : stream_blocks(call, stream_size(*checked), choice);
    options.stream_of_any_decode = true;
  }
  Result<PaddedRoom> room = padded_room(*checked, mask, options);
  if (!room) return room.error();
  plan.room = *room;
  plan.counts = counts_of(plan.room);
  plan.work = plan_work(call.lengths, mask, options);
  plan.image = padded_image(plan.work, call.lengths, call.group_size, plan.room);
  finish(call, choice, plan);
  return plan;
}

PaddedArgs plan_args_of(const AttentionCall& call, const AttentionPlan& plan,
                        const std::int32_t* num_sequences, void* image, void* workspace,
                        unsigned long long* fault) {
  const AttendArgs args = arguments_of(call, plan);
  const AttendCapacity& capacity = *plan.capacity;
  return {.query_start = args.query_start,
          .kv_lens = args.kv_lens,
          .trim_sinks = args.trim_sinks,
          .trim_first_kept = args.trim_first_kept,
          .num_sequences = num_sequences,
          .max_sequences = capacity.max_sequences,
          .max_sequence_tokens = capacity.max_sequence_tokens,
          .max_tokens = capacity.max_tokens,
          .max_queries = capacity.max_queries,
          .group_size = call.group_size,
          .num_heads = call.cache.num_heads,
          .group_rows = plan.group_rows,
          .mask = args.mask,
          .room = plan.room,
          .image = static_cast<char*>(image),
          .arrivals = static_cast<std::int32_t*>(workspace),
          .num_arrivals = static_cast<std::int32_t>(plan.zeroed_bytes / 4),
          .fault = fault};
}

Status attend(const AttentionCall& call, const AttentionPlan& plan, const void* image,
              void* workspace, const Launcher& launcher) {
  if (!plan.image.empty()) KVFOLIO_RETURN_IF_ERROR(check_pointer("image", image, 16));
  if (plan.workspace_bytes > 0) {
    KVFOLIO_RETURN_IF_ERROR(check_pointer("workspace", workspace, 16));
  }
  // Read by empty items, and kept by a captured graph, whether this batch has rows or not.
  if (plan.capacity) KVFOLIO_RETURN_IF_ERROR(check_q_and_out(call));
  const CacheArgs& cache = call.cache;
  const PlanCounts& counts = plan.counts;
  KernelLaunch launch;
  launch.element = cache.element;
  launch.head_dim = cache.dim_k;
  launch.group_rows = plan.group_rows;
  launch.many_nodes = plan.many_nodes;
  AttendArgs& args = launch.args;
  args = arguments_of(call, plan);
  args.num_items = counts.items;
  args.num_groups = counts.groups;
  args.num_prefill_items = counts.prefill_items;
  args.items = static_cast<const Item*>(image);
  args.groups = reinterpret_cast<const Group*>(args.items + args.num_items);
  args.prefill_items = reinterpret_cast<const Item*>(args.groups + args.num_groups);
  args.segments = reinterpret_cast<const Segment*>(args.prefill_items + args.num_prefill_items);
  args.state_flags = reinterpret_cast<const std::int32_t*>(args.segments + counts.segments);
  args.segments_per_block = counts.segments_per_block;
  args.num_stream_blocks = counts.stream_blocks;
  args.arrivals = static_cast<std::int32_t*>(workspace);
  args.state_sums = reinterpret_cast<float*>(static_cast<char*>(workspace) + plan.zeroed_bytes);
  const std::int64_t states =
      counts.stream_blocks > 0 ? std::int64_t{counts.states} * plan.group_rows
                               : std::int64_t{args.num_items} * cache.num_heads * plan.group_rows;
  if (plan.workspace_bytes > 0) args.state_totals = args.state_sums + states * cache.dim_v;

  if (counts.stream_blocks > 0) {
    launch.kernel = KernelName::kStream;
    launch.overlaps_previous = true;
    launch.grid = counts.stream_blocks;
    return launcher.launch(launcher.state, launch);
  }
  if (args.num_prefill_items > 0) {
    launch.kernel = plan.prefill;
    launch.grid = args.num_prefill_items * cache.num_heads;
    KVFOLIO_RETURN_IF_ERROR(launcher.launch(launcher.state, launch));
  }
  if (args.num_items > 0) {
    launch.kernel = plan.family == Family::kGeneral ? KernelName::kGeneral : KernelName::kNode;
    launch.grid = args.num_items * cache.num_heads;
    launch.overlaps_previous = launch.kernel == KernelName::kNode;
    KVFOLIO_RETURN_IF_ERROR(launcher.launch(launcher.state, launch));
  }
  if (counts.merges) {
    launch.kernel = KernelName::kMerge;
    launch.grid = args.num_groups * cache.num_heads * plan.group_rows;
    launch.overlaps_previous = true;
    KVFOLIO_RETURN_IF_ERROR(launcher.launch(launcher.state, launch));
  }
  return {};
}

std::vector<KernelName> kernels_of(const AttentionPlan& plan) {
  const PlanCounts& counts = plan.counts;
  if (counts.stream_blocks > 0) return {KernelName::kStream};
  std::vector<KernelName> kernels;
  if (counts.prefill_items > 0) kernels.push_back(plan.prefill);
  if (counts.items > 0) {
    kernels.push_back(plan.family == Family::kGeneral ? KernelName::kGeneral : KernelName::kNode);
  }
  if (counts.merges) kernels.push_back(KernelName::kMerge);
  return kernels;
}

}  // namespace kvfolio::cuda
