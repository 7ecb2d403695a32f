// SPDX-License-Identifier: Apache-2.0
//
// The cases of structs.c.

#include "struct_cases.h"

#include <string.h>

#include "capi_test.h"

enum { kDim = 8 };
static const int32_t kTokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};

// A manager with an open step, storage with a view, and threads: what the calls are about.
static kvfolio_group_spec group;
static kvfolio_manager* manager;
static kvfolio_sequence sequence;
static kvfolio_storage* storage;
static kvfolio_view* view;
static kvfolio_thread_pool* pool;
static void* workspace;
static int64_t workspace_bytes;
static float rows_in[4 * kDim];
static TestMemory memory;

void make_subjects(void) {
  group = small_group();
  const kvfolio_manager_options options = {
      .struct_size = sizeof options, .max_sequences = 4, .max_sequence_tokens = 64};
  MUST(kvfolio_manager_create(&group, 1, &options, &manager, &g_error));
  MUST(kvfolio_open(manager, NULL, kTokens, 8, NULL, 0, NULL, &sequence, NULL, &g_error));
  kvfolio_ticket step = 0;
  MUST(kvfolio_begin_step(manager, 0, &step, &g_error));
  MUST(kvfolio_append(manager, sequence, kTokens, 8, 0, &g_error));
  MUST(kvfolio_finish(manager, step, &g_error));
  MUST(kvfolio_begin_step(manager, 0, &step, &g_error));
  MUST(kvfolio_append(manager, sequence, kTokens, 3, 0, &g_error));
  MUST(kvfolio_storage_create(&group, 1, NULL, &storage, &g_error));
  MUST(kvfolio_view_create(storage, 0, -1, &view, &g_error));
  MUST(kvfolio_storage_fill(storage, 0, &g_error));
  MUST(kvfolio_thread_pool_create(1, &pool, &g_error));
  MUST(kvfolio_attention_workspace_bytes(view, 1, 8, 0, 4, &workspace_bytes, &g_error));
  workspace = need(malloc((size_t)workspace_bytes));
  for (int i = 0; i < 4 * kDim; ++i) rows_in[i] = (float)i;
}

void destroy_subjects(void) {
  MUST(kvfolio_check_invariants(manager, &g_error));
  kvfolio_manager_destroy(manager);
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
  kvfolio_thread_pool_destroy(pool);
  free(workspace);
  CHECK(memory.bytes_out == 0);
}

// ---- inputs ----

static const kvfolio_group_spec kGroup = {.struct_size = sizeof kGroup,
                                          .num_layers = 2,
                                          .num_kv_heads = 3,
                                          .head_dim_k = 16,
                                          .head_dim_v = 8,
                                          .v_is_prefix_of_k = 1,
                                          .block_size = 4,
                                          .dtype = KVFOLIO_F16,
                                          .format = KVFOLIO_NHD,
                                          .kind = KVFOLIO_SLIDING_WINDOW,
                                          .window = 5,
                                          .num_sinks = 2,
                                          .num_blocks = 40,
                                          .rewind = 3};
static void run_group(void* given, char* text) {
  kvfolio_manager* made = NULL;
  const int32_t code = kvfolio_manager_create(given, 1, NULL, &made, &g_error);
  char description[1024] = "";
  kvfolio_describe(made, description, sizeof description);
  say(text, code, "%lld %s", (long long)kvfolio_bytes_total(made), description);
  kvfolio_manager_destroy(made);
}
static void run_layouts(void* given, char* text) {
  kvfolio_group_layout layout = {.struct_size = sizeof layout};
  const int32_t code = kvfolio_plan_layouts(given, 1, &layout, &g_error);
  say(text, code, "%lld %lld", (long long)layout.total_bytes, (long long)layout.v_token_stride);
}

static const kvfolio_manager_options kOptions = {.struct_size = sizeof kOptions,
                                                 .max_sequences = 7,
                                                 .max_pins = 6,
                                                 .max_steps_in_flight = 3,
                                                 .order = KVFOLIO_UNORDERED,
                                                 .max_sequence_tokens = 64,
                                                 .max_runs = 5000,
                                                 .max_index_tokens = 300,
                                                 .max_root_key_bytes = 400,
                                                 .max_table_entries = 900,
                                                 .hash_seed = 11,
                                                 .high_watermark = 0.5,
                                                 .max_root_keys = 9,
                                                 .max_media_extents = 10,
                                                 .victim_policy = KVFOLIO_LFU,
                                                 .id_tag = 12,
                                                 .max_transfers = 13,
                                                 .list_findable = 1,
                                                 .copies_by_host = 1,
                                                 .null_block = 1,
                                                 .max_announced_tokens = 14};
static void run_options(void* given, char* text) {
  kvfolio_manager* made = NULL;
  const int32_t code = kvfolio_manager_create(&group, 1, given, &made, &g_error);
  kvfolio_manager_options got = {.struct_size = sizeof got};
  if (code == 0) MUST(kvfolio_get_options(made, &got, &g_error));
  say(text, code, "%d %d %d %d %d %d %d %lld %lld %lld %d %g %d %d %d %d %d %d %d %d %lld",
      got.max_sequences, got.max_pins, got.max_steps_in_flight, got.order, got.no_prefix_cache,
      got.max_sequence_tokens, got.max_runs, (long long)got.max_index_tokens,
      (long long)got.max_root_key_bytes, (long long)got.max_table_entries, (int)got.hash_seed,
      got.high_watermark, got.max_root_keys, got.max_media_extents, got.victim_policy, got.id_tag,
      got.max_transfers, got.list_findable, got.copies_by_host, got.null_block,
      (long long)got.max_announced_tokens);
  kvfolio_manager_destroy(made);
}

static int32_t copy_batch(void* context, const kvfolio_copy_run* runs, int64_t num_runs) {
  ((TestMemory*)context)->copies += 1000;
  for (int64_t i = 0; i < num_runs; ++i) memcpy(runs[i].dst, runs[i].src, (size_t)runs[i].bytes);
  return 0;
}
static int32_t copy_in(void* context, const kvfolio_copy_run* runs, int64_t num_runs) {
  copy_batch(context, runs, num_runs);
  ((TestMemory*)context)->copies += 100000;
  return 0;
}
static const kvfolio_memory_resource kResource = {.struct_size = sizeof kResource,
                                                  .kind = KVFOLIO_DEVICE,
                                                  .context = &memory,
                                                  .allocate = test_allocate,
                                                  .deallocate = test_deallocate,
                                                  .copy = test_copy,
                                                  .copy_batch = copy_batch,
                                                  .copy_in = copy_in,
                                                  .copy_out = copy_in};
static void run_resource(void* given, char* text) {
  memory.copies = 0;
  kvfolio_storage* made = NULL;
  const int32_t code = kvfolio_storage_create(&group, 1, given, &made, &g_error);
  const int32_t block = 1;
  const int32_t to = 2;
  char image[4 * 2 * kDim * 4] = {0};
  int32_t wrote = -1;
  if (code == 0) {
    MUST(kvfolio_storage_copy_blocks(made, 0, &block, &to, 1, &g_error));
    wrote = kvfolio_storage_write_blocks(made, 0, &to, 1, image, sizeof image, &g_error);
  }
  say(text, code, "%d %d %d", memory.copies, wrote, kvfolio_storage_memory_kind(made));
  kvfolio_storage_destroy(made);
}

static int32_t count_bytes(void* context, const void* bytes, int64_t num_bytes) {
  (void)bytes;
  *(int64_t*)context += num_bytes;
  return 0;
}
static int64_t bytes_of_log;
static const kvfolio_byte_sink kSink = {
    .struct_size = sizeof kSink, .context = &bytes_of_log, .write = count_bytes};
static void run_sink(void* given, char* text) {
  bytes_of_log = 0;
  kvfolio_op_log* log = NULL;
  kvfolio_manager* m = NULL;
  const int32_t code = kvfolio_op_log_create(given, 0, &log, &g_error);
  MUST(kvfolio_manager_create(&group, 1, NULL, &m, &g_error));
  if (code == 0) {
    MUST(kvfolio_record(m, log, &g_error));
    MUST(kvfolio_record(m, NULL, &g_error));
  }
  say(text, code, "%d", (int)bytes_of_log);
  kvfolio_op_log_destroy(log);
  kvfolio_manager_destroy(m);
}

static float lent_k[16 * 4 * kDim];
static float lent_v[16 * 4 * kDim];
static const kvfolio_borrowed_group kLent = {
    .struct_size = sizeof kLent,
    .k = lent_k,
    .k_bytes = sizeof lent_k,
    .k_strides = {0, 4 * kDim * 4, 4 * kDim * 4, kDim * 4},
    .v = lent_v,
    .v_bytes = sizeof lent_v,
    .v_strides = {0, 4 * kDim * 4, 4 * kDim * 4, kDim * 4}};
static void run_borrowed(void* given, char* text) {
  kvfolio_storage* made = NULL;
  const int32_t code = kvfolio_storage_borrow(&group, 1, given, NULL, &made, &g_error);
  say(text, code, "%d", kvfolio_storage_num_groups(made));
  kvfolio_storage_destroy(made);
}

static const kvfolio_media_span kMedia = {.struct_size = sizeof kMedia,
                                          .begin = 1,
                                          .end = 4,
                                          .attends_to_itself = 1,
                                          .content_id = {1, 2, 3}};
static void run_media(void* given, char* text) {
  int32_t cached = -1;
  const int32_t code = kvfolio_probe(manager, NULL, kTokens, 8, given, 1, NULL, &cached, &g_error);
  say(text, code, "%d", cached);
}

static const kvfolio_open_options kOpen = {.struct_size = sizeof kOpen,
                                           .no_look_up = 1,
                                           .publish = KVFOLIO_PUBLISH_FULL_BLOCKS,
                                           .has_caller_id = 1,
                                           .max_tokens = 20,
                                           .caller_id = 77,
                                           .priority = 5,
                                           .late_names = 1,
                                           .announce = 1};
static void run_open(void* given, char* text) {
  kvfolio_sequence opened = 0;
  kvfolio_found found = {.struct_size = sizeof found};
  const int32_t code =
      kvfolio_open(manager, NULL, kTokens, 8, NULL, 0, given, &opened, &found, &g_error);
  kvfolio_sequence_info info = {.struct_size = sizeof info};
  if (code == 0) {
    MUST(kvfolio_info(manager, opened, &info, &g_error));
    MUST(kvfolio_close(manager, opened, &g_error));
  }
  say(text, code, "%d %d %d %d %d", found.cached_tokens, info.has_caller_id, (int)info.caller_id,
      info.max_tokens, info.priority);
}

static const kvfolio_fork_options kFork = {
    .struct_size = sizeof kFork, .has_caller_id = 1, .caller_id = 78, .priority = 6};
static void run_fork(void* given, char* text) {
  kvfolio_manager* made = NULL;
  kvfolio_sequence parent = 0;
  kvfolio_sequence child = 0;
  MUST(kvfolio_manager_create(&group, 1, NULL, &made, &g_error));
  MUST(kvfolio_open(made, NULL, NULL, 0, NULL, 0, NULL, &parent, NULL, &g_error));
  const int32_t code = kvfolio_fork(made, parent, given, &child, &g_error);
  kvfolio_sequence_info info = {.struct_size = sizeof info};
  if (code == 0) MUST(kvfolio_info(made, child, &info, &g_error));
  say(text, code, "%d %d %d", info.has_caller_id, (int)info.caller_id, info.priority);
  kvfolio_manager_destroy(made);
}

static const int32_t kStride = 5;
static int64_t plan_memory[256];
static const kvfolio_plan_options kPlan = {.struct_size = sizeof kPlan,
                                           .pad_with_zero = 1,
                                           .changed_entries = 1,
                                           .flashinfer = 1,
                                           .shared_prefixes = 1,
                                           .positions = 1,
                                           .caller_ids = 1,
                                           .table_stride = {&kStride, 1},
                                           .padded_sequences = 3,
                                           .padded_tokens = 9,
                                           .memory = plan_memory,
                                           .memory_bytes = sizeof plan_memory,
                                           .int64_slots = 1};
static void run_plan(void* given, char* text) {
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  kvfolio_group_plan of = {.struct_size = sizeof of};
  const int32_t code = kvfolio_plan(manager, given, &plan, &of, 1, &g_error);
  int64_t bytes = -1;
  kvfolio_plan_bytes(manager, given, &bytes, &g_error);
  say(text, code, "%d %d %d %d %d %d %d %d %lld", (int)plan.positions.size, (int)of.kv_indptr.size,
      (int)of.block_table.size, of.block_table_stride, plan.caller_ids != NULL,
      (int)of.slot_mapping.size, (int)of.slot_mapping_64.size,
      plan.query_start.data == (const int32_t*)plan_memory, (long long)bytes);
}

static const kvfolio_rows kRows = {.struct_size = sizeof kRows,
                                   .dtype = KVFOLIO_F32,
                                   .num_tokens = 1,
                                   .num_heads = 1,
                                   .head_dim = kDim,
                                   .token_stride = kDim * 4,
                                   .head_stride = kDim * 4};
static void run_rows(void* given, char* text) {
  const int32_t slot = 3;
  float got[kDim] = {0};
  const int32_t code =
      kvfolio_append_rows(view, 0, rows_in, given, rows_in, given, &slot, 1, &g_error);
  MUST(kvfolio_read_token(view, 0, 0, slot, 0, got, NULL, &g_error));
  say(text, code, "%g %g", got[1], got[kDim - 1]);
}

static const kvfolio_gather_options kGather = {.struct_size = sizeof kGather,
                                               .length = 2,
                                               .first = 1,
                                               .count = 1,
                                               .num_layers = 1,
                                               .k_layer_stride = kDim * 4,
                                               .v_layer_stride = kDim * 4};
static void run_gather(void* given, char* text) {
  const int32_t block = 0;
  float got[kDim] = {0};
  const int32_t code = kvfolio_gather(view, &block, 1, given, got, &kRows, NULL, NULL, &g_error);
  say(text, code, "%g", got[0]);
}

// Attention of one token over one block, with what may be given to it.
static void attend(const kvfolio_attention_options* options, const kvfolio_executor* executor,
                   char* text) {
  const int32_t query_start[2] = {0, 1};
  const int32_t length = 4;
  const int32_t block = 0;
  float out[kDim] = {0};
  const int32_t code =
      kvfolio_attend(view, options, 1, query_start, &length, &block, 1, NULL, NULL, rows_in, &kRows,
                     out, &kRows, NULL, NULL, workspace, workspace_bytes, executor, &g_error);
  say(text, code, "%.9g %.9g", out[0], out[kDim - 1]);
}
static const float kSlopes[1] = {0.5f};
static const float kLogits[1] = {-0.5f};
static const kvfolio_attention_options kAttention = {.struct_size = sizeof kAttention,
                                                     .scale = 0.25,
                                                     .not_causal = 0,
                                                     .window = 3,
                                                     .num_sinks = 1,
                                                     .target = KVFOLIO_TARGET_PORTABLE,
                                                     .slice = 1,
                                                     .num_rows = 1,
                                                     .num_kv_heads = 1,
                                                     .soft_cap = 2,
                                                     .alibi_slopes = kSlopes,
                                                     .sink_logits = kLogits,
                                                     .num_alibi_slopes = 1,
                                                     .num_sink_logits = 1};
static void run_attention(void* given, char* text) { attend(given, NULL, text); }

static void parallel_for(void* context, int32_t n, void (*task)(void* arg, int32_t index),
                         void* arg) {
  (void)context;
  for (int32_t i = 0; i < n; ++i) task(arg, i);
}
static const kvfolio_executor kExecutor = {
    .struct_size = sizeof kExecutor, .num_threads = 2, .parallel_for = parallel_for};
static void run_executor(void* given, char* text) { attend(NULL, given, text); }

static const kvfolio_token_store_options kStore = {.struct_size = sizeof kStore,
                                                   .head_dim_k = 4,
                                                   .head_dim_v = 2,
                                                   .num_kv_heads = 3,
                                                   .dtype = KVFOLIO_F16,
                                                   .block_size = 8,
                                                   .max_tokens = 40};
static void run_store(void* given, char* text) {
  kvfolio_token_store* made = NULL;
  const int32_t code = kvfolio_token_store_create(given, NULL, &made, &g_error);
  say(text, code, "%d %lld", kvfolio_token_store_max_tokens(made),
      (long long)kvfolio_token_store_memory_bytes(made));
  kvfolio_token_store_destroy(made);
}

// ---- outputs ----

static void give_layout(void* out, char* text) {
  say(text, kvfolio_plan_layouts(&kGroup, 1, out, &g_error), "");
}
static void give_group(void* out, char* text) {
  say(text, kvfolio_get_group(manager, 0, out, &g_error), "");
}
static void give_options(void* out, char* text) {
  say(text, kvfolio_get_options(manager, out, &g_error), "");
}
static void give_group_plan(void* out, char* text) {
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  say(text, kvfolio_plan(manager, &kPlan, &plan, out, 1, &g_error), "");
}
static void give_plan(void* out, char* text) {
  const int32_t code = kvfolio_plan(manager, &kPlan, out, NULL, 0, &g_error);
  say(text, code, "");
  // Each call makes another plan.
  const uint32_t size = *(const uint32_t*)out;
  const size_t at = offsetof(kvfolio_step_plan, number);
  if (code == 0 && size > at) {
    memset((char*)out + at, 0, size - at < 8 ? size - at : 8);
  }
}
static void give_info(void* out, char* text) {
  say(text, kvfolio_info(manager, sequence, out, &g_error), "");
}
static void give_usage(void* out, char* text) {
  say(text, kvfolio_usage(manager, 0, out, &g_error), "");
}
static void give_counters(void* out, char* text) {
  say(text, kvfolio_get_counters(manager, out, &g_error), "");
}
static void give_attention(void* out, char* text) {
  say(text, kvfolio_attention_options_of(&kGroup, out, &g_error), "");
}
static void give_executor(void* out, char* text) {
  say(text, kvfolio_thread_pool_executor(pool, out, &g_error), "");
}
// A load in a manager of its own, so that each one has the same id.
static void give_load(void* out, char* text) {
  kvfolio_manager* made = NULL;
  kvfolio_sequence opened = 0;
  MUST(kvfolio_manager_create(&group, 1, NULL, &made, &g_error));
  MUST(kvfolio_open(made, NULL, kTokens, 8, NULL, 0, NULL, &opened, NULL, &g_error));
  say(text, kvfolio_begin_load(made, opened, kTokens, 8, 8, out, &g_error), "");
  kvfolio_manager_destroy(made);
}
// Twins: what the first one announces.
static void give_found(void* out, char* text) {
  kvfolio_manager* made = NULL;
  kvfolio_sequence opened = 0;
  const kvfolio_open_options announces = {.struct_size = sizeof announces, .announce = 1};
  MUST(kvfolio_manager_create(&group, 1, NULL, &made, &g_error));
  MUST(kvfolio_open(made, NULL, kTokens, 8, NULL, 0, &announces, &opened, NULL, &g_error));
  say(text, kvfolio_open(made, NULL, kTokens, 8, NULL, 0, NULL, &opened, out, &g_error), "");
  kvfolio_manager_destroy(made);
}
static void give_media(void* out, char* text) {
  kvfolio_manager* made = NULL;
  kvfolio_sequence opened = 0;
  kvfolio_ticket step = 0;
  MUST(kvfolio_manager_create(&group, 1, NULL, &made, &g_error));
  MUST(kvfolio_open(made, NULL, kTokens, 8, &kMedia, 1, NULL, &opened, NULL, &g_error));
  MUST(kvfolio_begin_step(made, 0, &step, &g_error));
  MUST(kvfolio_append(made, opened, kTokens, 8, 0, &g_error));
  MUST(kvfolio_finish(made, step, &g_error));
  kvfolio_i32s table = {NULL, 0};
  MUST(kvfolio_block_table(made, opened, 0, &table, &g_error));
  say(text,
      kvfolio_prefix_of(made, 0, table.data[1], 0, NULL, 0, out, 1, NULL, NULL, NULL, &g_error),
      "");
  kvfolio_manager_destroy(made);
}

#define CASE(type, call, full, output, run) \
  { #type, #call, full, sizeof(type), output, run }
// An output begins with nothing but its size, so any struct of that size will do.
static const union {
  uint32_t struct_size;
  unsigned char bytes[512];
} kNothing;

const StructCase kStructCases[] = {
    CASE(kvfolio_group_spec, kvfolio_manager_create, &kGroup, kInput, run_group),
    CASE(kvfolio_group_spec, kvfolio_plan_layouts, &kGroup, kInput, run_layouts),
    CASE(kvfolio_manager_options, kvfolio_manager_create, &kOptions, kInput, run_options),
    CASE(kvfolio_memory_resource, kvfolio_storage_create, &kResource, kPointersInput, run_resource),
    CASE(kvfolio_byte_sink, kvfolio_op_log_create, &kSink, kPointersInput, run_sink),
    CASE(kvfolio_borrowed_group, kvfolio_storage_borrow, &kLent, kPointersInput, run_borrowed),
    CASE(kvfolio_media_span, kvfolio_probe, &kMedia, kInput, run_media),
    CASE(kvfolio_open_options, kvfolio_open, &kOpen, kInput, run_open),
    CASE(kvfolio_fork_options, kvfolio_fork, &kFork, kInput, run_fork),
    CASE(kvfolio_plan_options, kvfolio_plan, &kPlan, kInput, run_plan),
    CASE(kvfolio_rows, kvfolio_append_rows, &kRows, kInput, run_rows),
    CASE(kvfolio_gather_options, kvfolio_gather, &kGather, kInput, run_gather),
    CASE(kvfolio_attention_options, kvfolio_attend, &kAttention, kPointersInput, run_attention),
    CASE(kvfolio_executor, kvfolio_attend, &kExecutor, kPointersInput, run_executor),
    CASE(kvfolio_token_store_options, kvfolio_token_store_create, &kStore, kInput, run_store),
    CASE(kvfolio_group_layout, kvfolio_plan_layouts, &kNothing, kOutput, give_layout),
    CASE(kvfolio_group_spec, kvfolio_get_group, &kNothing, kOutput, give_group),
    CASE(kvfolio_manager_options, kvfolio_get_options, &kNothing, kOutput, give_options),
    CASE(kvfolio_group_plan, kvfolio_plan, &kNothing, kOutput, give_group_plan),
    CASE(kvfolio_step_plan, kvfolio_plan, &kNothing, kOutput, give_plan),
    CASE(kvfolio_found, kvfolio_open, &kNothing, kOutput, give_found),
    CASE(kvfolio_load, kvfolio_begin_load, &kNothing, kOutput, give_load),
    CASE(kvfolio_media_span, kvfolio_prefix_of, &kNothing, kOutput, give_media),
    CASE(kvfolio_sequence_info, kvfolio_info, &kNothing, kOutput, give_info),
    CASE(kvfolio_group_usage, kvfolio_usage, &kNothing, kOutput, give_usage),
    CASE(kvfolio_counters, kvfolio_get_counters, &kNothing, kOutput, give_counters),
    CASE(kvfolio_attention_options, kvfolio_attention_options_of, &kNothing, kOutput,
         give_attention),
    CASE(kvfolio_executor, kvfolio_thread_pool_executor, &kNothing, kOutput, give_executor),
};
const int kNumStructCases = sizeof kStructCases / sizeof kStructCases[0];
