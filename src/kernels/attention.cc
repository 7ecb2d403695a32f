// SPDX-License-Identifier: Apache-2.0

// attend() up to the choice of a target: checks every argument, resolves the slice, and calls the
// reference or the fast path. Nothing behind it checks again. It checks only those
// entries of the block table that the slice reads, since all others may be anything.
//
// Read reference.cc next for what is computed, and cpu/driver.cc for how it is computed fast.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "kernels/check.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/driver.h"
#include "kernels/lengths.h"
#include "kernels/reference.h"
#include "kernels/visible.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using kernels::Range;
using kernels::Visible;
using text::concat;

Status check_heads(const KVView& cache, std::int32_t num_q_heads) {
  if (num_q_heads >= 1 && num_q_heads % cache.num_kv_heads == 0) return {};
  return invalid(concat(num_q_heads, " query heads, allowed: multiples of the cache's ",
                        cache.num_kv_heads, " KV heads"));
}

Status check_threads(std::string_view name, std::int32_t num_threads) {
  constexpr std::int32_t kMost = 1 << 16;
  if (num_threads >= 1 && num_threads <= kMost) return {};
  return invalid(concat(name, " is ", num_threads, ", allowed: 1 to ", kMost));
}

Status check_has_v(const KVView& cache) {
  if (cache.head_dim_v > 0) return {};
  return invalid("attention needs values, and the cache has none: head_dim_v is 0");
}

Status check_params(const AttentionParams& params) {
  if (!std::isfinite(params.scale) || params.scale <= 0.0) {
    return invalid("scale is 0, negative or not finite, allowed: finite and > 0");
  }
  const GroupRule& rule = params.rule;
  if (rule.kind() != AttentionKind::kFull && rule.kind() != AttentionKind::kSlidingWindow &&
      rule.kind() != AttentionKind::kChunked) {
    return invalid(concat("the kind of attention is ", static_cast<std::int32_t>(rule.kind()),
                          ", allowed: full, sliding window, chunked"));
  }
  if (rule.kind() != AttentionKind::kFull && rule.window() < 1) {
    return invalid(concat("window is ", rule.window(), " of kind ",
                          std::string_view(to_string(rule.kind())), ", allowed: at least 1"));
  }
  if (rule.num_sinks() < 0) {
    return invalid(concat("num_sinks is ", rule.num_sinks(), ", allowed: at least 0"));
  }
  return kernels::check_soft_cap(params.soft_cap);
}

// A number for each query head, or none.
Status check_per_head(std::string_view name, std::span<const float> values,
                      std::int32_t num_q_heads, bool minus_infinity) {
  if (values.empty()) return {};
  if (!std::cmp_equal(values.size(), num_q_heads)) {
    return invalid(concat(name, " has ", values.size(), " entries, allowed: ", num_q_heads,
                          ", one for each query head, or 0"));
  }
  for (std::size_t h = 0; h < values.size(); ++h) {
    if (std::isfinite(values[h]) || (minus_infinity && values[h] == -HUGE_VALF)) continue;
    return invalid(concat(name, "[", h, "] is ", std::isnan(values[h]) ? "NaN" : "infinite",
                          ", allowed: ", minus_infinity ? "finite, or -inf (none)" : "finite"));
  }
  return {};
}

// The arrays of the batch, all but the entries of the table.
Status check_batch(const KVView& cache, const AttentionParams& params,
                   const AttentionBatch& batch) {
  const std::size_t n = batch.kv_lens.size();
  if (batch.block_table_stride < 0) {
    return invalid(
        concat("block_table_stride is ", batch.block_table_stride, ", allowed: at least 0"));
  }
  KVFOLIO_RETURN_IF_ERROR(kernels::check_lengths(
      {batch.query_start, batch.kv_lens, batch.trim_sinks, batch.trim_first_kept},
      batch.block_table_stride, cache.block_size, kernels::positions_matter(params)));
  if (batch.block_table.size() != n * static_cast<std::size_t>(batch.block_table_stride)) {
    return invalid(concat("block_table has ", batch.block_table.size(), " entries for ", n,
                          " sequences x block_table_stride ", batch.block_table_stride));
  }
  return {};
}

// One axis of a slice; a count of -1 becomes the rest.
Status resolve(std::string_view axis, std::int32_t first, std::int32_t size, std::int32_t& count) {
  if (first >= 0 && first <= size) {
    if (count == -1) count = size - first;
    if (count >= 0 && count <= size - first) return {};
  }
  return invalid(concat("slice of ", count, " ", axis, " from ", first, " on, there are ", size));
}

// What may have been forgotten if the block of a visible position was dropped.
std::string_view dropped_hint(const AttentionArgs& args) {
  if (args.params.rule.kind() == AttentionKind::kFull) {
    return args.batch.trim_sinks.empty()
               ? "; a window or a trim dropped it: does the call lack the window, or the trims?"
               : "; a window dropped it: does the call lack the window?";
  }
  return "; does the call read more than the window of the group?";
}

// Every table entry that the slice will follow names a block.
Status check_table(const AttentionArgs& args, const AttentionSlice& slice) {
  const KVView& cache = args.cache;
  const AttentionBatch& batch = args.batch;
  for (std::size_t i = 0; i < batch.kv_lens.size(); ++i) {
    const std::int32_t begin = std::max(batch.query_start[i], slice.first_row);
    const std::int32_t end = std::min(batch.query_start[i + 1], slice.first_row + slice.num_rows);
    if (begin >= end) continue;
    const std::int32_t kv_len = batch.kv_lens[i];
    const std::int32_t behind = kv_len - batch.query_start[i + 1];  // row + behind is its position
    const Visible seen = kernels::visible(begin + behind, end - 1 + behind, kv_len, args.params,
                                          kernels::trim_of(batch, i));
    const std::size_t row = i * static_cast<std::size_t>(batch.block_table_stride);
    for (int r = 0; r < seen.num_ranges; ++r) {
      const Range& range = seen.ranges[static_cast<std::size_t>(r)];
      const std::int32_t last = (range.end - 1) / cache.block_size;
      for (std::int32_t b = range.begin / cache.block_size; b <= last; ++b) {
        const std::int32_t block = batch.block_table[row + static_cast<std::size_t>(b)];
        if (block < 0 || block >= cache.num_blocks) {
          return invalid(concat("block_table[", i, ", ", b, "] is ", block,
                                " and holds visible positions, the cache has blocks 0 to ",
                                cache.num_blocks - 1, block == -1 ? dropped_hint(args) : ""));
        }
      }
    }
  }
  return {};
}

Status check_executor(const Executor* executor) {
  if (executor == nullptr) return {};
  if (executor->parallel_for == nullptr) return invalid("executor.parallel_for is null");
  return check_threads("executor.num_threads", executor->num_threads);
}

Status check_workspace(const AttentionArgs& args, KernelTarget target) {
  std::int32_t max_kv_len = 0;
  for (const std::int32_t kv_len : args.batch.kv_lens) max_kv_len = std::max(max_kv_len, kv_len);
  const std::int32_t num_threads = args.executor == nullptr ? 1 : args.executor->num_threads;
  const Result<std::int64_t> bytes =
      attention_workspace_bytes(args.cache, args.q.num_heads, max_kv_len, target, num_threads);
  if (!bytes) return bytes.error();
  if (std::cmp_greater_equal(args.workspace.size(), *bytes)) return {};
  return invalid(concat("workspace has ", args.workspace.size(), " bytes, needed: ", *bytes,
                        " for sequences of up to ", max_kv_len, " tokens, ", args.q.num_heads,
                        " query heads, target ", std::string_view(to_string(target)), " and ",
                        num_threads, " threads"));
}

}  // namespace

Result<std::int64_t> attention_workspace_bytes(const KVView& cache, std::int32_t num_q_heads,
                                               std::int32_t max_kv_len, KernelTarget target,
                                               std::int32_t num_threads) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(cache));
  const Result<KernelTarget> chosen = choose_kernel_target(cache, target);
  if (!chosen) return chosen.error();
  KVFOLIO_RETURN_IF_ERROR(check_heads(cache, num_q_heads));
  KVFOLIO_RETURN_IF_ERROR(check_threads("num_threads", num_threads));
  if (max_kv_len < 0 || max_kv_len > kMaxSequenceTokens) {
    return invalid(concat("max_kv_len is ", max_kv_len, ", allowed: 0 to ", kMaxSequenceTokens));
  }
  const Checked bytes =
      *chosen == KernelTarget::kReference
          ? kernels::reference_workspace_bytes(cache, num_q_heads, max_kv_len, num_threads)
          : kernels::cpu_workspace_bytes(cache, max_kv_len, num_threads);
  if (!bytes.ok()) {
    return invalid(concat("the workspace of ", num_q_heads, " query heads and ", max_kv_len,
                          " tokens overflows 63 bits"));
  }
  return bytes.value();
}

Status attend(const AttentionArgs& args) {
  const KVView& cache = args.cache;
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_layer(cache, args.layer));
  KVFOLIO_RETURN_IF_ERROR(check_has_v(cache));
  const Result<KernelTarget> target = choose_kernel_target(cache, args.params, args.target);
  if (!target) return target.error();
  KVFOLIO_RETURN_IF_ERROR(check_executor(args.executor));
  KVFOLIO_RETURN_IF_ERROR(check_heads(cache, args.q.num_heads));
  KVFOLIO_RETURN_IF_ERROR(check_params(args.params));
  KVFOLIO_RETURN_IF_ERROR(
      check_per_head("alibi_slopes", args.params.alibi_slopes, args.q.num_heads, false));
  KVFOLIO_RETURN_IF_ERROR(
      check_per_head("sink_logits", args.params.sink_logits, args.q.num_heads, true));
  KVFOLIO_RETURN_IF_ERROR(check_batch(cache, args.params, args.batch));
  const std::int32_t num_rows = args.batch.query_start.back();
  KVFOLIO_RETURN_IF_ERROR(
      kernels::check_rows("q", args.q, {num_rows, args.q.num_heads, cache.head_dim_k}));
  KVFOLIO_RETURN_IF_ERROR(
      kernels::check_written_rows("out", args.out, {num_rows, args.q.num_heads, cache.head_dim_v}));
  if (args.lse.data != nullptr) {
    if (args.lse.dtype != DType::kF32 && args.lse.dtype != DType::kF64) {
      return invalid(concat("lse.dtype is ", std::string_view(to_string(args.lse.dtype)),
                            ", allowed: f32, f64"));
    }
    KVFOLIO_RETURN_IF_ERROR(
        kernels::check_written_rows("lse", args.lse, {num_rows, args.q.num_heads, 1}));
  }
  AttentionArgs resolved = args;
  AttentionSlice& slice = resolved.slice;
  KVFOLIO_RETURN_IF_ERROR(resolve("rows", slice.first_row, num_rows, slice.num_rows));
  KVFOLIO_RETURN_IF_ERROR(
      resolve("KV heads", slice.first_kv_head, cache.num_kv_heads, slice.num_kv_heads));
  if (slice.num_rows == 0 || slice.num_kv_heads == 0) return {};
  KVFOLIO_RETURN_IF_ERROR(check_table(args, slice));
  KVFOLIO_RETURN_IF_ERROR(check_workspace(args, *target));

  if (*target == KernelTarget::kReference) {
    kernels::reference_attend(resolved);
  } else {
    kernels::cpu_attend(resolved, kernels::kernels_of(*target));
  }
  return {};
}

}  // namespace kvfolio
