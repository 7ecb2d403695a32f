// SPDX-License-Identifier: Apache-2.0
//
// Hostile calls around bytes: storage, kernels, attention, token stores.

#include "hostile.h"

#define OUT_STORAGE &w.out.storage, E

static kvfolio_rows rows_of(int32_t num_tokens, int32_t num_heads, int32_t head_dim) {
  kvfolio_rows rows = {.struct_size = sizeof rows,
                       .num_tokens = num_tokens,
                       .num_heads = num_heads,
                       .head_dim = head_dim};
  return rows;
}

static void bad_resources(void) {
  TestMemory memory = {0, 0};
  kvfolio_memory_resource r = test_resource(&memory);
  r.copy = NULL;
  BAD(kvfolio_storage_create(w.groups, 2, &r, OUT_STORAGE));
  r = test_resource(&memory);
  r.kind = 2;
  BAD(kvfolio_storage_create(w.groups, 2, &r, OUT_STORAGE));
  r.kind = 0;
  r.struct_size = 8;
  BAD(kvfolio_storage_create(w.groups, 2, &r, OUT_STORAGE));
  CHECK(memory.bytes_out == 0);
  BAD(kvfolio_storage_create(w.groups, 2, NULL, NULL, E));
}

// One group of 2 layers, 4 blocks of 4 tokens of 4 floats, lent with something wrong.
static void bad_loans(void) {
  kvfolio_group_spec g = {.struct_size = sizeof g,
                          .num_layers = 2,
                          .head_dim_k = 4,
                          .head_dim_v = 4,
                          .block_size = 4,
                          .num_blocks = 4};
  static float k[128];
  static float v[128];
  const kvfolio_borrowed_group good = {.struct_size = sizeof good,
                                       .k = k,
                                       .k_bytes = sizeof k,
                                       .k_strides = {256, 64, 64, 16},
                                       .v = v,
                                       .v_bytes = sizeof v,
                                       .v_strides = {256, 64, 64, 16}};
  kvfolio_borrowed_group x;
#define BAD_FIELD(field, value)                                \
  do {                                                         \
    x = good;                                                  \
    x.field = value;                                           \
    BAD(kvfolio_storage_borrow(&g, 1, &x, NULL, OUT_STORAGE)); \
  } while (0)
  BAD_FIELD(struct_size, 1);
  BAD_FIELD(k, NULL);
  BAD_FIELD(k_strides.token, -16);
  BAD_FIELD(k_strides.token, 0);
  BAD_FIELD(k_strides.layer, INT64_MAX & ~15);
  BAD_FIELD(k_strides.block, INT64_MIN);
  BAD_FIELD(k_bytes, -1);
  BAD_FIELD(k_bytes, sizeof k - 1);
  BAD_FIELD(v, (char*)k + 2);
  BAD_FIELD(num_layers, 2);  // and no layers
  BAD_FIELD(num_layers, -1);
  BAD_FIELD(num_layers, INT_MAX);
  BAD_FIELD(k_scale, k);
#undef BAD_FIELD
  const kvfolio_borrowed_layer layers[2] = {{k, v, NULL, NULL}, {k + 64, NULL, NULL, NULL}};
  x = good;
  x.layers = layers;
  x.num_layers = 2;
  BAD(kvfolio_storage_borrow(&g, 1, &x, NULL, OUT_STORAGE));  // bases too
  x.k = x.v = NULL;
  x.k_bytes = x.v_bytes = 256;
  BAD(kvfolio_storage_borrow(&g, 1, &x, NULL, OUT_STORAGE));  // a layer without V
  x.num_layers = 1;
  BAD(kvfolio_storage_borrow(&g, 1, &x, NULL, OUT_STORAGE));
  BAD(kvfolio_storage_borrow(&g, 1, NULL, NULL, OUT_STORAGE));
}

void hostile_storage(void) {
  bad_resources();
  bad_loans();
  kvfolio_storage* const s = w.storage;
  const int32_t good[2] = {0, 1};
  const int32_t bad[2] = {-1, 16};
  for (int i = 0; i < 2; ++i) {
    BAD(kvfolio_storage_copy_blocks(s, 0, bad + i, good, 1, E));
    BAD(kvfolio_storage_copy_blocks(s, 0, good, bad + i, 1, E));
    BAD(kvfolio_storage_copy_blocks_from(s, w.no_v_storage, 0, good, 1 + i, E));
    BAD(kvfolio_storage_read_blocks(s, 0, bad + i, 1, w.out.floats, 256, E));
    BAD(kvfolio_storage_write_blocks(s, 0, bad + i, 1, w.k, 256, E));
  }
  BAD(kvfolio_storage_copy_blocks(s, -1, good, good, 1, E));
  BAD(kvfolio_storage_copy_blocks(s, 0, NULL, good, 1, E));
  BAD(kvfolio_storage_copy_blocks(s, 0, good, good, -1, E));
  BAD(kvfolio_storage_read_blocks(s, 0, good, 1, NULL, 256, E));
  BAD(kvfolio_storage_read_blocks(s, 0, good, 2, w.out.floats, 256, E));
  BAD(kvfolio_storage_read_blocks(s, 0, good, 1, w.out.floats, -1, E));
  BAD(kvfolio_storage_write_blocks(s, 2, good, 1, w.k, 256, E));
  BAD(kvfolio_storage_write_blocks(s, 0, good, 1, w.k, INT64_MAX, E));
  BAD(kvfolio_view_create(s, 2, -1, &w.out.view, E));
  BAD(kvfolio_view_create(s, INT_MIN, INT_MIN, &w.out.view, E));
  BAD(kvfolio_view_create(s, 0, -2, &w.out.view, E));
  BAD(kvfolio_view_create(s, 0, 1, &w.out.view, E));
  BAD(kvfolio_view_create(s, 0, 0, NULL, E));
  CHECK(kvfolio_storage_block_image_bytes(s, -1) == 0);
  CHECK(kvfolio_view_k(w.view, 0, 16, 0, 0) == NULL && kvfolio_view_k(NULL, 0, 0, 0, 0) == NULL);
  CHECK(kvfolio_view_k(w.view, 0, 0, 0, 4) == NULL && kvfolio_view_v(w.view, 0, 0, -1, 0) == NULL);
  CHECK(kvfolio_view_v(w.no_v_view, 0, 0, 0, 0) == NULL);
}

static void bad_rows(void) {
  kvfolio_rows r[6];
  for (int i = 0; i < 6; ++i) r[i] = rows_of(2, 1, kDim);
  r[0].num_tokens = -1;
  r[1].num_tokens = r[1].num_heads = r[1].head_dim = INT_MAX;
  r[2].token_stride = INT64_MAX;
  r[2].head_stride = INT64_MIN;
  r[3].token_stride = 3;
  r[4].dtype = 99;
  r[5].struct_size = 0;
  const kvfolio_rows good = rows_of(2, 1, kDim);
  const int32_t slots[2] = {0, 1};
  float* const out = w.out.floats;
  for (int i = 0; i < 6; ++i) {
    BAD(kvfolio_append_rows(w.view, 0, w.k, &r[i], w.k, &good, slots, 2, E));
    BAD(kvfolio_append_rows(w.view, 0, w.k, &good, w.k, &r[i], slots, 2, E));
    BAD(kvfolio_convert(w.k, &r[i], out, &r[i], E));
  }
  BAD(kvfolio_convert(w.k, &good, NULL, &good, E));
  BAD(kvfolio_convert(NULL, &good, out, &good, E));
  BAD(kvfolio_merge_states(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                           E));
  BAD(kvfolio_merge_states(w.k, &good, w.k, &good, w.k, &good, w.k, &good, out, &good, NULL, NULL,
                           E));
}

void hostile_kernels(void) {
  bad_rows();
  const kvfolio_rows r = rows_of(2, 1, kDim);
  const int32_t slots[2] = {0, 1};
  const int32_t bad_slots[2] = {-2, 64};
  float* const out = w.out.floats;
  const kvfolio_view* const v = w.view;
#define APPEND(view, layer, k, v_data, s, n) \
  BAD(kvfolio_append_rows(view, layer, k, &r, v_data, (v_data) != NULL ? &r : NULL, s, n, E))
  APPEND(w.view, 0, w.k, w.k, bad_slots, 2);
  APPEND(w.view, 0, w.k, w.k, bad_slots + 1, 1);
  APPEND(w.view, 0, w.k, w.k, slots, 1);
  APPEND(w.view, 0, w.k, w.k, slots, INT64_MAX);
  APPEND(w.view, 0, w.k, w.k, NULL, 2);
  APPEND(w.view, 0, w.k, (float*)NULL, slots, 2);
  APPEND(w.view, 0, NULL, w.k, slots, 2);
  APPEND(w.view, INT_MAX, w.k, w.k, slots, 2);
  APPEND(w.no_v_view, 0, w.k, w.k, slots, 2);
  APPEND(NULL, 0, w.k, w.k, slots, 2);
#undef APPEND
  BAD(kvfolio_append_rows(w.view, 0, w.k, NULL, w.k, &r, slots, 2, E));
  BAD(kvfolio_write_token(w.no_v_view, 0, 0, 0, 0, w.k, w.k, E));
  BAD(kvfolio_write_token(w.view, 0, 0, 64, 0, w.k, w.k, E));
  BAD(kvfolio_write_token(w.view, -1, 0, 0, 0, w.k, w.k, E));
  BAD(kvfolio_write_token(w.view, 0, 2, 0, 0, w.k, w.k, E));
  BAD(kvfolio_write_token(w.view, 0, 0, 0, 99, w.k, w.k, E));
  BAD(kvfolio_read_token(v, 0, 0, INT_MIN, 0, out, out, E));

  const int32_t table[4] = {0, 1, -1, 99};
  kvfolio_gather_options o;
#define BAD_FIELD(field, value)                                                      \
  do {                                                                               \
    o = (kvfolio_gather_options){.struct_size = sizeof o, .length = 16, .count = 2}; \
    o.field = value;                                                                 \
    BAD(kvfolio_gather(v, table, 4, &o, out, &r, NULL, NULL, E));                    \
  } while (0)
  BAD_FIELD(struct_size, 3);
  BAD_FIELD(length, -1);
  BAD_FIELD(first, 8);   // block -1
  BAD_FIELD(first, 14);  // block 99
  BAD_FIELD(first, INT_MAX);
  BAD_FIELD(count, INT_MAX);
  BAD_FIELD(count, -2);
  BAD_FIELD(num_layers, INT_MAX);
  BAD_FIELD(num_layers, -1);
  BAD_FIELD(first_layer, 1);
  BAD_FIELD(first_head, INT_MAX);
  BAD_FIELD(first_head, 1);
#undef BAD_FIELD
  const int32_t bad_block = 16;
  BAD(kvfolio_copy_blocks(w.view, &bad_block, slots, 1, E));
  BAD(kvfolio_copy_blocks(w.view, slots, &bad_block, 1, E));
  BAD(kvfolio_copy_blocks(w.view, slots, slots, -1, E));
  BAD(kvfolio_convert_blocks(v, w.no_v_view, slots, slots, 1, E));
  BAD(kvfolio_convert_blocks(v, NULL, slots, slots, 1, E));
  BAD(kvfolio_choose_target(v, -1, &w.out.i32, E));
  BAD(kvfolio_choose_target(v, 77, &w.out.i32, E));
  BAD(kvfolio_parse_target("", &w.out.i32, E));
  BAD(kvfolio_parse_target(NULL, &w.out.i32, E));
  CHECK(kvfolio_targets(NULL, INT_MAX) >= 2 && kvfolio_targets(w.out.i32s, -1) >= 2);
  CHECK(strcmp(kvfolio_target_name(INT_MAX), "invalid") == 0);
}

// The arguments of a good call; a test changes one.
typedef struct {
  kvfolio_attention_options options;
  int32_t num_sequences;
  const int32_t* query_start;
  const int32_t* kv_lens;
  const int32_t* table;
  int32_t stride;
  const int32_t* trim_sinks;
  const float* q;
  float* out;
  float* lse;
  const kvfolio_rows* lse_rows;
  char* workspace;
  int64_t workspace_bytes;
  kvfolio_executor* executor;
} Attend;
static const int32_t kQueryStart[2] = {0, 2};
static const int32_t kLength = 2;
static const int32_t kBlock = 0;
static Attend good_attend(void) {
  enum { kWorkspace = 1 << 20 };
  static char workspace[kWorkspace];
  const Attend a = {.options = {.struct_size = sizeof a.options},
                    .num_sequences = 1,
                    .query_start = kQueryStart,
                    .kv_lens = &kLength,
                    .table = &kBlock,
                    .stride = 1,
                    .q = w.k,
                    .out = w.out.floats,
                    .workspace = workspace,
                    .workspace_bytes = kWorkspace};
  return a;
}
static int32_t attend(const Attend* a) {
  const kvfolio_rows r = rows_of(2, 1, kDim);
  return kvfolio_attend(w.view, &a->options, a->num_sequences, a->query_start, a->kv_lens, a->table,
                        a->stride, a->trim_sinks, NULL, a->q, &r, a->out, &r, a->lse, a->lse_rows,
                        a->workspace, a->workspace_bytes, a->executor, E);
}

void hostile_attention(void) {
  static const int32_t huge[2] = {0, INT_MAX};
  static const int32_t falling[2] = {2, 0};
  static const int32_t negative = -1;
  static const int32_t most = INT_MAX;
  static const int32_t bad_block = 16;
  static const int32_t sinks = 1;
  kvfolio_executor no_threads = {.struct_size = sizeof no_threads};
  Attend a;
#define BAD_FIELD(field, value) \
  do {                          \
    a = good_attend();          \
    a.field = value;            \
    BAD(attend(&a));            \
  } while (0)
  BAD_FIELD(options.struct_size, 3);
  BAD_FIELD(options.scale, NAN);
  BAD_FIELD(options.scale, INFINITY);
  BAD_FIELD(options.layer, 1);
  BAD_FIELD(options.layer, INT_MIN);
  BAD_FIELD(options.window, -1);
  BAD_FIELD(options.num_sinks, INT_MIN);
  BAD_FIELD(options.chunk, -1);
  BAD_FIELD(options.soft_cap, NAN);
  BAD_FIELD(options.soft_cap, -1);
  BAD_FIELD(options.num_alibi_slopes, 1);  // and no slopes
  BAD_FIELD(options.num_sink_logits, -1);
  BAD_FIELD(options.target, 77);
  BAD_FIELD(options.num_rows, -5);
  BAD_FIELD(options.first_row, 3);
  BAD_FIELD(options.num_kv_heads, INT_MAX);
  BAD_FIELD(num_sequences, -1);
  BAD_FIELD(query_start, NULL);
  BAD_FIELD(query_start, huge);
  BAD_FIELD(query_start, falling);
  BAD_FIELD(kv_lens, NULL);
  BAD_FIELD(kv_lens, &negative);
  BAD_FIELD(kv_lens, &most);
  BAD_FIELD(table, NULL);
  BAD_FIELD(table, &bad_block);
  BAD_FIELD(table, &negative);
  BAD_FIELD(stride, 0);
  BAD_FIELD(stride, -1);
  BAD_FIELD(trim_sinks, &sinks);  // and no first_kept
  BAD_FIELD(q, NULL);
  BAD_FIELD(out, NULL);
  BAD_FIELD(lse, w.out.floats);  // and no rows
  BAD_FIELD(workspace_bytes, 0);
  BAD_FIELD(workspace_bytes, -1);
  BAD_FIELD(workspace, NULL);
  BAD_FIELD(executor, &no_threads);
#undef BAD_FIELD
  static const float slopes[2] = {0.5f, NAN};
  a = good_attend();
  a.options.window = a.options.chunk = 1;
  BAD(attend(&a));
  for (int n = 1; n <= 2; ++n) {  // the one head has a NaN; two heads are one too many
    a = good_attend();
    a.options.alibi_slopes = slopes + (n == 1);
    a.options.num_alibi_slopes = n;
    BAD(attend(&a));
    a = good_attend();
    a.options.sink_logits = slopes + (n == 1);
    a.options.num_sink_logits = n;
    BAD(attend(&a));
  }
  a = good_attend();
  a.options.soft_cap = 1;
  BAD(kvfolio_choose_attention_target(w.view, &a.options, NULL, E));
  a.options.target = 77;
  BAD(kvfolio_choose_attention_target(w.view, &a.options, &w.out.i32, E));
  kvfolio_thread_pool** const pool = &w.out.pool;
  BAD(kvfolio_thread_pool_create(0, pool, E));
  BAD(kvfolio_thread_pool_create(-1, pool, E));
  BAD(kvfolio_thread_pool_create(INT_MAX, pool, E));
  BAD(kvfolio_thread_pool_create(1, NULL, E));
  BAD(kvfolio_attention_workspace_bytes(w.view, 3, -1, 0, 0, &w.out.i64, E));
  BAD(kvfolio_attention_workspace_bytes(w.view, INT_MAX, INT_MAX, 0, INT_MAX, &w.out.i64, E));
  BAD(kvfolio_attention_workspace_bytes(w.view, 1, 64, 0, 1, NULL, E));
  kvfolio_attention_options o = {.struct_size = 0};
  BAD(kvfolio_attention_options_of(NULL, &o, E));
  BAD(kvfolio_attention_options_of(&w.groups[0], &o, E));
}

void hostile_token_store(void) {
  kvfolio_token_store* const s = w.store;
  float* const out = w.out.floats;
  BAD(kvfolio_token_store_append(s, w.k, w.k, 2, KVFOLIO_F32, E));  // it has no V
  BAD(kvfolio_token_store_append(s, w.k, NULL, 5, 0, E));           // 6 at most
  BAD(kvfolio_token_store_append(s, w.k, NULL, INT64_MAX, 0, E));
  BAD(kvfolio_token_store_append(s, w.k, NULL, -1, 0, E));
  BAD(kvfolio_token_store_append(s, w.k, NULL, 1, 99, E));
  BAD(kvfolio_token_store_append(s, NULL, NULL, 1, 0, E));
  BAD(kvfolio_token_store_gather(s, 0, 3, 0, out, NULL, E));
  BAD(kvfolio_token_store_gather(s, -1, 1, 0, out, NULL, E));
  BAD(kvfolio_token_store_gather(s, INT64_MAX, 1, 0, out, NULL, E));
  BAD(kvfolio_token_store_gather(s, 0, 2, 0, out, out, E));
  BAD(kvfolio_token_store_gather(s, 0, 2, 99, out, NULL, E));
  BAD(kvfolio_token_store_at(s, 2, &w.out.row, E));
  BAD(kvfolio_token_store_at(s, -1, &w.out.row, E));
  BAD(kvfolio_token_store_v_at(s, 0, &w.out.row, E));
  BAD(kvfolio_token_store_at(s, 0, NULL, E));
  BAD(kvfolio_token_store_copy(s, NULL, E));
  BAD(kvfolio_token_store_create(NULL, NULL, &w.out.store, E));
  kvfolio_token_store_options o = {.struct_size = sizeof o, .head_dim_k = 8};
  BAD(kvfolio_token_store_create(&o, NULL, &w.out.store, E));  // max_tokens 0
  o.max_tokens = 1 << 30;
  o.head_dim_k = o.num_kv_heads = 1 << 20;
  BAD(kvfolio_token_store_create(&o, NULL, &w.out.store, E));
}

void hostile_block_store(void) {
  kvfolio_block_store* const s = w.blocks;
  int32_t* const out = w.out.i32s;
  const int32_t own = 1;
  const int32_t shared = 0;
  const int32_t unused = 3;
  const int32_t beyond = 4;
  const int32_t twice[2] = {1, 1};
  const int64_t bytes = kvfolio_block_store_block_image_bytes(s);
  BAD(kvfolio_block_store_allocate(s, out, 3, E));  // 2 are free
  BAD(kvfolio_block_store_allocate(s, out, -1, E));
  BAD(kvfolio_block_store_allocate(s, out, INT64_MAX, E));
  BAD(kvfolio_block_store_allocate(s, NULL, 1, E));
  BAD(kvfolio_block_store_hold(s, &unused, 1, E));
  BAD(kvfolio_block_store_hold(s, &beyond, 1, E));
  BAD(kvfolio_block_store_hold(s, NULL, 1, E));
  BAD(kvfolio_block_store_release(s, &unused, 1, E));
  BAD(kvfolio_block_store_release(s, twice, 2, E));
  BAD(kvfolio_block_store_release(s, &own, -1, E));
  BAD(kvfolio_block_store_make_writable(s, unused, out, E));
  BAD(kvfolio_block_store_make_writable(s, INT32_MIN, out, E));
  BAD(kvfolio_block_store_make_writable(s, shared, NULL, E));
  BAD(kvfolio_block_store_ref_count(s, beyond, out, E));
  BAD(kvfolio_block_store_ref_count(s, -1, out, E));
  BAD(kvfolio_block_store_ref_count(s, own, NULL, E));
  BAD(kvfolio_block_store_read(s, &unused, 1, w.out.floats, bytes, E));
  BAD(kvfolio_block_store_read(s, &own, 1, w.out.floats, bytes - 1, E));
  BAD(kvfolio_block_store_read(s, &own, 1, w.out.floats, -1, E));
  BAD(kvfolio_block_store_read(s, &own, 1, NULL, bytes, E));
  BAD(kvfolio_block_store_write(s, &shared, 1, w.k, bytes, E));
  BAD(kvfolio_block_store_write(s, &unused, 1, w.k, bytes, E));
  BAD(kvfolio_block_store_write(s, &own, 1, w.k, bytes + 1, E));
  BAD(kvfolio_block_store_view(s, NULL, E));
  BAD(kvfolio_block_store_create(NULL, NULL, &w.out.blocks, E));
  kvfolio_group_spec group = small_group();
  BAD(kvfolio_block_store_create(&group, NULL, NULL, E));
  group.num_blocks = 0;
  BAD(kvfolio_block_store_create(&group, NULL, &w.out.blocks, E));
  group.num_blocks = group.head_dim_k = group.num_kv_heads = 1 << 20;
  BAD(kvfolio_block_store_create(&group, NULL, &w.out.blocks, E));
  CHECK(kvfolio_block_store_num_free(NULL) == 0 && kvfolio_block_store_num_blocks(NULL) == 0);
  CHECK(kvfolio_block_store_memory_bytes(NULL) == 0);
  CHECK(kvfolio_block_store_block_image_bytes(NULL) == 0);
  CHECK(kvfolio_block_store_describe(NULL, NULL, 0) == 0);
  CHECK(kvfolio_token_store_describe(NULL, NULL, 0) == 0);
  kvfolio_block_store_destroy(NULL);
}

void hostile_gather_sequence(void) {
  const kvfolio_manager* const m = w.manager;
  float* const out = w.out.floats;
  kvfolio_rows rows = {
      .struct_size = sizeof rows, .num_tokens = 2, .num_heads = 1, .head_dim = kDim};
  kvfolio_rows more = rows;
  more.num_tokens = 3;
#define GATHER(manager, sequence, group, layer, first, k, k_rows, v, v_rows) \
  BAD(kvfolio_gather_sequence(manager, sequence, group, layer, first, k, k_rows, v, v_rows, E))
  GATHER(NULL, w.open, 0, 0, 0, out, &rows, NULL, NULL);
  GATHER(m, w.closed, 0, 0, 0, out, &rows, NULL, NULL);
  GATHER(m, w.foreign, 0, 0, 0, out, &rows, NULL, NULL);
  GATHER(m, 0, 0, 0, 0, out, &rows, NULL, NULL);
  GATHER(m, w.open, 2, 0, 0, out, &rows, NULL, NULL);
  GATHER(m, w.open, -1, 0, 0, out, &rows, NULL, NULL);
  GATHER(m, w.open, 0, 1, 0, out, &rows, NULL, NULL);
  GATHER(m, w.open, 0, -1, 0, out, &rows, NULL, NULL);
  GATHER(m, w.open, 0, 0, -1, out, &rows, NULL, NULL);
  GATHER(m, w.open, 0, 0, 20, out, &rows, NULL, NULL);  // 21 tokens
  GATHER(m, w.open, 0, 0, INT32_MAX, out, &rows, NULL, NULL);
  GATHER(m, w.open, 1, 0, 0, out, &rows, NULL, NULL);  // the window has dropped them
  GATHER(m, w.open, 0, 0, 0, out, NULL, NULL, NULL);
  GATHER(m, w.open, 0, 0, 0, out, &rows, out + 64, &more);
  rows.num_tokens = -1;
  GATHER(m, w.open, 0, 0, 0, out, &rows, NULL, NULL);
  rows.num_tokens = INT32_MAX;
  GATHER(m, w.open, 0, 0, 0, out, &rows, NULL, NULL);
  rows.num_tokens = 2;
  rows.head_dim = kDim - 1;
  GATHER(m, w.open, 0, 0, 0, out, &rows, NULL, NULL);
  rows.head_dim = kDim;
  rows.struct_size = 2;
  GATHER(m, w.open, 0, 0, 0, out, &rows, NULL, NULL);
#undef GATHER
}
