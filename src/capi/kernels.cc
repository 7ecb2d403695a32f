// SPDX-License-Identifier: Apache-2.0
//
// Kernels over views and rows of the caller, and the threads that it lends.

#include "capi/capi.h"
#include "kvfolio/gather_sequence.h"

struct kvfolio_thread_pool {
  std::unique_ptr<kvfolio::ThreadPool> pool;
};

namespace kvfolio::capi {

Status read_slice(std::string_view call, const kvfolio_attention_options& options,
                  AttentionSlice& out) {
  const auto is_zero = [&] {
    return options.first_row == 0 && options.num_rows == 0 && options.first_kv_head == 0 &&
           options.num_kv_heads == 0;
  };
  if (options.slice == 0) {
    if (is_zero()) return {};
    return {ErrorCode::kInvalidArgument,
            concat(call,
                   ": options->first_row, num_rows, first_kv_head or num_kv_heads is not 0, "
                   "and options->slice is; set it to 1")};
  }
  // In C++ a negative number is "to the last one"; here a share says how many it has.
  if (options.num_rows < 0 || options.num_kv_heads < 0) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": options->num_rows is ", options.num_rows, " and num_kv_heads ",
                   options.num_kv_heads, ", allowed: 0 and above")};
  }
  out = {.first_row = options.first_row,
         .num_rows = options.num_rows,
         .first_kv_head = options.first_kv_head,
         .num_kv_heads = options.num_kv_heads};
  return {};
}

Status read_executor(std::string_view call, const kvfolio_executor* executor, Executor& out) {
  kvfolio_executor ours;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "executor", executor, ours));
  if (ours.parallel_for == nullptr) return null_argument(call, "executor->parallel_for");
  out = {
      .context = ours.context, .num_threads = ours.num_threads, .parallel_for = ours.parallel_for};
  return {};
}

}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_append_rows(kvfolio_view* cache, int32_t layer, const void* k,
                            const kvfolio_rows* k_rows, const void* v, const kvfolio_rows* v_rows,
                            const int32_t* slots, int64_t num_slots, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "slots", slots, num_slots));
  ConstRowsView k_view;
  ConstRowsView v_view;
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "k", k, k_rows, k_view));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "v", v, v_rows, v_view));
  return answer(error, append(cache->view, layer, k_view, v_view, span_of(slots, num_slots)));
}

int32_t kvfolio_gather(const kvfolio_view* cache, const int32_t* block_table, int64_t num_entries,
                       const kvfolio_gather_options* options, void* k, const kvfolio_rows* k_rows,
                       void* v, const kvfolio_rows* v_rows, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  GatherArgs args;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_gather(__func__, cache->view, block_table, num_entries, options, args));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "k", k, k_rows, args.k));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "v", v, v_rows, args.v));
  return answer(error, gather(args));
}

int32_t kvfolio_gather_sequence(const kvfolio_manager* manager, kvfolio_sequence sequence,
                                int32_t group, int32_t layer, int32_t first, void* k,
                                const kvfolio_rows* k_rows, void* v, const kvfolio_rows* v_rows,
                                kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  RowsView k_view;
  RowsView v_view;
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "k", k, k_rows, k_view));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "v", v, v_rows, v_view));
  const GatherFrom from{.group = GroupId(group), .layer = layer, .first = first};
  return answer(error, gather(manager->manager, SequenceId(sequence), from, k_view, v_view));
}

int32_t kvfolio_write_token(kvfolio_view* cache, int32_t layer, int32_t head, int32_t slot,
                            int32_t dtype, const void* k, const void* v, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  DType type{};
  KVFOLIO_C_RETURN_IF_ERROR(read_dtype(__func__, "dtype", dtype, DType::kF32, type));
  const auto row = [&](const void* data, std::int32_t head_dim) {
    return data == nullptr
               ? ConstRowsView()
               : contiguous_rows(static_cast<const std::byte*>(data), 1, 1, head_dim, type);
  };
  return answer(error, write_token(cache->view, {.layer = layer, .head = head, .slot = slot},
                                   row(k, cache->view.head_dim_k), row(v, cache->view.head_dim_v)));
}

int32_t kvfolio_read_token(const kvfolio_view* cache, int32_t layer, int32_t head, int32_t slot,
                           int32_t dtype, void* k, void* v, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  DType type{};
  KVFOLIO_C_RETURN_IF_ERROR(read_dtype(__func__, "dtype", dtype, DType::kF32, type));
  const auto row = [&](void* data, std::int32_t head_dim) {
    return data == nullptr ? RowsView()
                           : contiguous_rows(static_cast<std::byte*>(data), 1, 1, head_dim, type);
  };
  return answer(error, read_token(cache->view, {.layer = layer, .head = head, .slot = slot},
                                  row(k, cache->view.head_dim_k), row(v, cache->view.head_dim_v)));
}

int32_t kvfolio_copy_blocks(kvfolio_view* cache, const int32_t* src, const int32_t* dst,
                            int64_t num_blocks, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "src", src, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "dst", dst, num_blocks));
  return answer(error,
                copy_blocks(cache->view, span_of(src, num_blocks), span_of(dst, num_blocks)));
}

int32_t kvfolio_convert_blocks(const kvfolio_view* from, kvfolio_view* to, const int32_t* src,
                               const int32_t* dst, int64_t num_blocks, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(from);
  KVFOLIO_C_NEEDS(to);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "src", src, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "dst", dst, num_blocks));
  return answer(error, convert_blocks(from->view, to->view, span_of(src, num_blocks),
                                      span_of(dst, num_blocks)));
}

int32_t kvfolio_convert(const void* src, const kvfolio_rows* src_rows, void* dst,
                        const kvfolio_rows* dst_rows, kvfolio_error* error) {
  ConstRowsView from;
  RowsView to;
  KVFOLIO_C_NEEDS(src);
  KVFOLIO_C_NEEDS(dst);
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "src", src, src_rows, from));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "dst", dst, dst_rows, to));
  return answer(error, convert(from, to));
}

int32_t kvfolio_choose_target(const kvfolio_view* cache, int32_t wanted, int32_t* out,
                              kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(out);
  KernelTarget target{};
  KVFOLIO_C_RETURN_IF_ERROR(read_target(__func__, wanted, target));
  const Result<KernelTarget> chosen = choose_kernel_target(cache->view, target);
  if (!chosen) return answer(error, chosen.error());
  *out = target_of(*chosen);
  return KVFOLIO_OK;
}

int32_t kvfolio_choose_attention_target(const kvfolio_view* cache,
                                        const kvfolio_attention_options* options, int32_t* out,
                                        kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(out);
  kvfolio_attention_options ours;
  AttentionParams params;
  KernelTarget wanted{};
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "options", options, ours));
  KVFOLIO_C_RETURN_IF_ERROR(read_params(__func__, cache->view, ours, params));
  KVFOLIO_C_RETURN_IF_ERROR(read_target(__func__, ours.target, wanted));
  const Result<KernelTarget> chosen = choose_kernel_target(cache->view, params, wanted);
  if (!chosen) return answer(error, chosen.error());
  *out = target_of(*chosen);
  return KVFOLIO_OK;
}

int32_t kvfolio_thread_pool_create(int32_t num_threads, kvfolio_thread_pool** out,
                                   kvfolio_error* error) {
  KVFOLIO_C_NEEDS(out);
  Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(num_threads);
  if (!pool) return answer(error, pool.error());
  auto* const handle = new (std::nothrow) kvfolio_thread_pool{std::move(*pool)};
  if (handle == nullptr) return answer(error, no_memory(__func__));
  *out = handle;
  return KVFOLIO_OK;
}

void kvfolio_thread_pool_destroy(kvfolio_thread_pool* pool) { delete pool; }

int32_t kvfolio_thread_pool_num_threads(const kvfolio_thread_pool* pool) {
  return pool == nullptr ? 0 : pool->pool->num_threads();
}

int32_t kvfolio_thread_pool_executor(kvfolio_thread_pool* pool, kvfolio_executor* out,
                                     kvfolio_error* error) {
  KVFOLIO_C_NEEDS(pool);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  const Executor executor = pool->pool->executor();
  write_struct(out, {.struct_size = 0,
                     .num_threads = executor.num_threads,
                     .context = executor.context,
                     .parallel_for = executor.parallel_for});
  return KVFOLIO_OK;
}

int32_t kvfolio_attention_options_of(const kvfolio_group_spec* group,
                                     kvfolio_attention_options* out, kvfolio_error* error) {
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, group, 1, spec));
  const AttentionParams params = attention_params(spec.groups[0], 0);
  kvfolio_attention_options options{};
  options.window = params.rule.window();
  options.num_sinks = params.rule.num_sinks();
  write_struct(out, options);
  return KVFOLIO_OK;
}

int32_t kvfolio_attention_workspace_bytes(const kvfolio_view* cache, int32_t num_q_heads,
                                          int32_t max_kv_len, int32_t target, int32_t num_threads,
                                          int64_t* out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(out);
  KernelTarget wanted{};
  KVFOLIO_C_RETURN_IF_ERROR(read_target(__func__, target, wanted));
  const Result<std::int64_t> bytes =
      attention_workspace_bytes(cache->view, num_q_heads, max_kv_len, wanted, num_threads);
  if (!bytes) return answer(error, bytes.error());
  *out = *bytes;
  return KVFOLIO_OK;
}

int32_t kvfolio_attend(const kvfolio_view* cache, const kvfolio_attention_options* options,
                       int32_t num_sequences, const int32_t* query_start, const int32_t* kv_lens,
                       const int32_t* block_table, int32_t block_table_stride,
                       const int32_t* trim_sinks, const int32_t* trim_first_kept, const void* q,
                       const kvfolio_rows* q_rows, void* out, const kvfolio_rows* out_rows,
                       void* lse, const kvfolio_rows* lse_rows, void* workspace,
                       int64_t workspace_bytes, const kvfolio_executor* executor,
                       kvfolio_error* error) {
  KVFOLIO_C_NEEDS(cache);
  KVFOLIO_C_NEEDS(query_start);
  const std::int64_t n = num_sequences;
  const std::int64_t entries = n * block_table_stride;
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "kv_lens", kv_lens, n));
  if (block_table_stride < 0 || (block_table == nullptr && entries > 0)) {
    return answer(error,
                  {ErrorCode::kInvalidArgument,
                   concat(__func__, ": block_table is ", block_table == nullptr ? "null" : "given",
                          ", its stride ", block_table_stride, ", allowed: 0 and above")});
  }
  KVFOLIO_C_RETURN_IF_ERROR(
      check_array(__func__, "workspace", workspace, workspace_bytes == 0 ? 0 : 1));
  if (workspace_bytes < 0) {
    return answer(error,
                  {ErrorCode::kInvalidArgument, concat(__func__, ": workspace_bytes is ",
                                                       workspace_bytes, ", allowed: 0 and above")});
  }
  kvfolio_attention_options ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "options", options, ours));
  const auto optional_array = [n](const std::int32_t* data) {
    return span_of(data, data == nullptr ? 0 : n);
  };
  AttentionArgs args;
  args.cache = cache->view;
  args.layer = ours.layer;
  args.batch = {.query_start = span_of(query_start, n + 1),
                .kv_lens = span_of(kv_lens, n),
                .block_table = span_of(block_table, entries),
                .block_table_stride = block_table_stride,
                .trim_sinks = optional_array(trim_sinks),
                .trim_first_kept = optional_array(trim_first_kept)};
  KVFOLIO_C_RETURN_IF_ERROR(read_params(__func__, cache->view, ours, args.params));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "q", q, q_rows, args.q));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "out", out, out_rows, args.out));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "lse", lse, lse_rows, args.lse));
  args.workspace = span_of(static_cast<std::byte*>(workspace), workspace_bytes);
  KVFOLIO_C_RETURN_IF_ERROR(read_slice(__func__, ours, args.slice));
  KVFOLIO_C_RETURN_IF_ERROR(read_target(__func__, ours.target, args.target));
  Executor lent;
  if (executor != nullptr) {
    KVFOLIO_C_RETURN_IF_ERROR(read_executor(__func__, executor, lent));
    args.executor = &lent;
  }
  return answer(error, attend(args));
}

int32_t kvfolio_merge_states(const void* a_out, const kvfolio_rows* a_rows, const void* a_lse,
                             const kvfolio_rows* a_lse_rows, const void* b_out,
                             const kvfolio_rows* b_rows, const void* b_lse,
                             const kvfolio_rows* b_lse_rows, void* out,
                             const kvfolio_rows* out_rows, void* lse, const kvfolio_rows* lse_rows,
                             kvfolio_error* error) {
  AttentionState a;
  AttentionState b;
  RowsView to;
  RowsView to_lse;
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "a", a_out, a_rows, a.out));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "a_lse", a_lse, a_lse_rows, a.lse));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "b", b_out, b_rows, b.out));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "b_lse", b_lse, b_lse_rows, b.lse));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "out", out, out_rows, to));
  KVFOLIO_C_RETURN_IF_ERROR(read_rows(__func__, "lse", lse, lse_rows, to_lse));
  return answer(error, merge_states(a, b, to, to_lse));
}

}  // extern "C"
