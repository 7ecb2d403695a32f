// SPDX-License-Identifier: Apache-2.0
//
// Each function of the families around bytes: storage, views, kernels, token stores.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "capi_test.h"
#include "every_function.h"

enum { kDim = 8 };

static void fill(float* rows, int64_t n, float first) {
  for (int64_t i = 0; i < n; ++i) rows[i] = first + (float)i;
}
static kvfolio_rows rows_of(int32_t num_tokens, int32_t head_dim) {
  kvfolio_rows rows = {
      .struct_size = sizeof rows, .num_tokens = num_tokens, .num_heads = 1, .head_dim = head_dim};
  return rows;
}
static kvfolio_storage* make_storage(void) {
  const kvfolio_group_spec group = small_group();
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_create(&group, 1, NULL, &storage, &g_error));
  return storage;
}
static kvfolio_view* view_of(const kvfolio_storage* storage) {
  kvfolio_view* view = NULL;
  MUST(kvfolio_view_create(storage, 0, -1, &view, &g_error));
  return view;
}

static void borrow(void) {
  const kvfolio_group_spec group = small_group();
  const int64_t bytes = 16 * 4 * kDim * sizeof(float);
  float* const memory = need(calloc(2, (size_t)bytes));
  const kvfolio_strides strides = {.block = 4 * kDim * 4, .head = 4 * kDim * 4, .token = kDim * 4};
  const kvfolio_borrowed_group lent = {.struct_size = sizeof lent,
                                       .k = memory,
                                       .k_bytes = bytes,
                                       .k_strides = strides,
                                       .v = (char*)memory + bytes,
                                       .v_bytes = bytes,
                                       .v_strides = strides};
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_borrow(&group, 1, &lent, NULL, &storage, &g_error));
  CHECK(kvfolio_storage_owns_memory(storage) == 0 && kvfolio_storage_memory_bytes(storage) == 0);
  kvfolio_view* const view = view_of(storage);
  CHECK(kvfolio_view_k(view, 0, 0, 0, 1) == (void*)(memory + kDim));
  CHECK(kvfolio_view_v(view, 0, 0, 0, 0) == (void*)((char*)memory + bytes));
  CHECK(kvfolio_view_k_scale(view, 0, 0, 0, 1) == NULL);
  CHECK(kvfolio_view_v_scale(view, 0, 0, 0, 1) == NULL);
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
  free(memory);
}

static void copy_images(kvfolio_storage* storage) {
  const int64_t bytes = kvfolio_storage_block_image_bytes(storage, 0);
  CHECK(bytes == 4 * 2 * kDim * 4);
  char image[4 * 2 * kDim * 4];
  const int32_t from = 1;
  const int32_t to = 3;
  MUST(kvfolio_storage_read_blocks(storage, 0, &from, 1, image, bytes, &g_error));
  CHECK(image[0] == 0x11);
  image[0] = 0x22;
  MUST(kvfolio_storage_write_blocks(storage, 0, &to, 1, image, bytes, &g_error));
}

void call_specs_and_storage(void) {
  kvfolio_group_spec group = small_group();
  kvfolio_group_layout layout = {.struct_size = sizeof layout};
  MUST(kvfolio_plan_layouts(&group, 1, &layout, &g_error));
  CHECK(layout.bytes_per_block == 4 * 2 * kDim * 4);
  group.num_blocks = 0;
  MUST(kvfolio_fit(&group, 1, 1 << 20, &g_error));
  CHECK(group.num_blocks == (1 << 20) / (4 * 2 * kDim * 4));

  kvfolio_storage* storage = make_storage();
  kvfolio_storage* const other = make_storage();
  CHECK(kvfolio_storage_num_groups(storage) == 1);
  CHECK(kvfolio_storage_memory_kind(storage) == KVFOLIO_HOST);
  CHECK(kvfolio_storage_owns_memory(storage) == 1 && kvfolio_storage_memory_bytes(storage) > 0);
  MUST(kvfolio_storage_fill(storage, 0x11, &g_error));
  const int32_t src = 1;
  const int32_t dst = 2;
  MUST(kvfolio_storage_copy_blocks(storage, 0, &src, &dst, 1, &g_error));
  MUST(kvfolio_storage_copy_blocks_from(other, storage, 0, &src, 1, &g_error));
  copy_images(storage);
  kvfolio_storage_destroy(other);
  borrow();

  kvfolio_manager* manager = NULL;
  MUST(kvfolio_manager_create_with_storage(&storage, NULL, &manager, &g_error));
  CHECK(storage == NULL);
  CHECK(kvfolio_manager_storage(manager) != NULL);
  CHECK(kvfolio_run_copies(manager, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);  // no step
  kvfolio_manager_destroy(manager);
}

void call_kernels(void) {
  kvfolio_storage* const storage = make_storage();
  kvfolio_view* const view = view_of(storage);
  float k[2 * kDim];
  float v[2 * kDim];
  float got[2 * kDim] = {0};
  fill(k, 2 * kDim, 1);
  fill(v, 2 * kDim, 100);
  const kvfolio_rows rows = rows_of(2, kDim);
  const int32_t slots[2] = {5, 6};
  MUST(kvfolio_append_rows(view, 0, k, &rows, v, &rows, slots, 2, &g_error));
  const int32_t table[2] = {1, 0};
  const kvfolio_gather_options options = {
      .struct_size = sizeof options, .length = 4, .first = 1, .count = 2};
  MUST(kvfolio_gather(view, table, 1, &options, got, &rows, NULL, NULL, &g_error));
  CHECK(memcmp(got, k, sizeof k) == 0);

  MUST(kvfolio_write_token(view, 0, 0, 9, KVFOLIO_F32, v, k, &g_error));
  MUST(kvfolio_read_token(view, 0, 0, 9, KVFOLIO_F32, got, NULL, &g_error));
  CHECK(memcmp(got, v, kDim * 4) == 0);
  const int32_t src = 1;
  const int32_t dst = 7;
  MUST(kvfolio_copy_blocks(view, &src, &dst, 1, &g_error));
  MUST(kvfolio_read_token(view, 0, 0, 4 * 7 + 1, KVFOLIO_F32, got, NULL, &g_error));
  CHECK(memcmp(got, k, kDim * 4) == 0);
  kvfolio_storage* const other = make_storage();
  kvfolio_view* const to = view_of(other);
  MUST(kvfolio_convert_blocks(view, to, &src, &dst, 1, &g_error));
  MUST(kvfolio_read_token(to, 0, 0, 4 * 7 + 1, KVFOLIO_F32, got, NULL, &g_error));
  CHECK(memcmp(got, k, kDim * 4) == 0);
  double wide[2 * kDim];
  kvfolio_rows wide_rows = rows;
  wide_rows.dtype = KVFOLIO_F64;
  MUST(kvfolio_convert(k, &rows, wide, &wide_rows, &g_error));
  CHECK(wide[3] == 4.0);
  kvfolio_view_destroy(to);
  kvfolio_storage_destroy(other);
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
}

// What only some targets compute.
static void choose_for_options(const kvfolio_view* view) {
  int32_t target = -1;
  kvfolio_attention_options options = {.struct_size = sizeof options, .soft_cap = 30};
  if (getenv("KVFOLIO_KERNEL") == NULL) {
    MUST(kvfolio_choose_attention_target(view, &options, &target, &g_error));
    CHECK(target > KVFOLIO_TARGET_AUTO && target <= KVFOLIO_TARGET_NEON);
  }
  options.target = KVFOLIO_TARGET_REFERENCE;
  MUST(kvfolio_choose_attention_target(view, &options, &target, &g_error));
  CHECK(target == KVFOLIO_TARGET_REFERENCE);
}

static void choose_target(const kvfolio_view* view) {
  int32_t target = -1;
  int32_t all[8];
  CHECK(kvfolio_targets(all, 8) >= 2 && all[0] == KVFOLIO_TARGET_REFERENCE);
  CHECK(strcmp(kvfolio_target_name(KVFOLIO_TARGET_PORTABLE), "portable") == 0);
  MUST(kvfolio_parse_target("portable", &target, &g_error));
  CHECK(target == KVFOLIO_TARGET_PORTABLE);
  MUST(kvfolio_choose_target(view, KVFOLIO_TARGET_AUTO, &target, &g_error));
  CHECK(target > KVFOLIO_TARGET_AUTO && target <= KVFOLIO_TARGET_NEON);
}

// Two tokens at once; and each apart on two threads, merged.
void call_attention(void) {
  kvfolio_storage* const storage = make_storage();
  kvfolio_view* const view = view_of(storage);
  choose_target(view);
  choose_for_options(view);
  const kvfolio_group_spec group = small_group();
  kvfolio_attention_options options = {.struct_size = sizeof options};
  MUST(kvfolio_attention_options_of(&group, &options, &g_error));
  CHECK(options.window == 0 && options.not_causal == 0);
  float k[2 * kDim];
  float v[2 * kDim];
  fill(k, 2 * kDim, -1);
  fill(v, 2 * kDim, 3);
  const kvfolio_rows two = rows_of(2, kDim);
  const int32_t slots[2] = {0, 4};  // block 0 and block 1
  MUST(kvfolio_append_rows(view, 0, k, &two, v, &two, slots, 2, &g_error));

  kvfolio_thread_pool* pool = NULL;
  kvfolio_executor executor = {.struct_size = sizeof executor};
  MUST(kvfolio_thread_pool_create(2, &pool, &g_error));
  CHECK(kvfolio_thread_pool_num_threads(pool) == 2);
  MUST(kvfolio_thread_pool_executor(pool, &executor, &g_error));
  int64_t bytes = 0;
  MUST(kvfolio_attention_workspace_bytes(view, 1, 4, 0, 2, &bytes, &g_error));
  CHECK(bytes > 0);
  void* const workspace = need(malloc((size_t)bytes));
  const kvfolio_rows one = rows_of(1, kDim);
  const kvfolio_rows lse_rows = rows_of(1, 1);
  const int32_t query_start[2] = {0, 1};
  const int32_t length = 1;
  float out[2][kDim];
  float lse[2];
  for (int32_t i = 0; i < 2; ++i) {
    MUST(kvfolio_attend(view, &options, 1, query_start, &length, &i, 1, NULL, NULL, k, &one, out[i],
                        &one, &lse[i], &lse_rows, workspace, bytes, &executor, &g_error));
    CHECK(memcmp(out[i], v + i * kDim, sizeof out[i]) == 0);  // the only value there is
  }
  float merged[kDim];
  float merged_lse = 0;
  MUST(kvfolio_merge_states(out[0], &one, &lse[0], &lse_rows, out[1], &one, &lse[1], &lse_rows,
                            merged, &one, &merged_lse, &lse_rows, &g_error));
  CHECK(merged_lse >= lse[0] && merged_lse >= lse[1]);
  const double weight = 1 / (1 + exp((double)lse[1] - lse[0]));
  CHECK(fabs(merged[0] - (weight * out[0][0] + (1 - weight) * out[1][0])) < 1e-4);
  free(workspace);
  kvfolio_thread_pool_destroy(pool);
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
}

void call_token_store(void) {
  const kvfolio_token_store_options options = {
      .struct_size = sizeof options, .head_dim_k = kDim, .head_dim_v = kDim, .max_tokens = 6};
  kvfolio_token_store* store = NULL;
  MUST(kvfolio_token_store_create(&options, NULL, &store, &g_error));
  float k[2 * kDim];
  float v[2 * kDim];
  float got[2 * kDim];
  fill(k, 2 * kDim, 1);
  fill(v, 2 * kDim, 100);
  MUST(kvfolio_token_store_append(store, k, v, 2, 0, &g_error));
  CHECK(kvfolio_token_store_size(store) == 2 && kvfolio_token_store_max_tokens(store) == 6);
  CHECK(kvfolio_token_store_memory_bytes(store) >= kvfolio_token_store_bytes_used(store));
  kvfolio_token_store* copy = NULL;
  MUST(kvfolio_token_store_copy(store, &copy, &g_error));
  kvfolio_token_store_clear(store);
  CHECK(kvfolio_token_store_size(store) == 0);
  kvfolio_token_store_destroy(store);
  MUST(kvfolio_token_store_gather(copy, 0, 2, 0, got, NULL, &g_error));
  CHECK(memcmp(got, k, sizeof k) == 0);
  const void* row = NULL;
  MUST(kvfolio_token_store_at(copy, 1, &row, &g_error));
  CHECK(memcmp(row, k + kDim, kDim * 4) == 0);
  MUST(kvfolio_token_store_v_at(copy, 1, &row, &g_error));
  CHECK(memcmp(row, v + kDim, kDim * 4) == 0);
  kvfolio_view* view = NULL;
  MUST(kvfolio_token_store_view(copy, &view, &g_error));
  CHECK(kvfolio_view_k(view, 0, 0, 0, 1) != NULL);
  kvfolio_view_destroy(view);
  char text[128];
  const int64_t length = kvfolio_token_store_describe(copy, text, sizeof text);
  CHECK(length == (int64_t)strlen(text) && strncmp(text, "token store: 2 of 6 tokens", 26) == 0);
  CHECK(kvfolio_token_store_describe(copy, text, 6) == length && strcmp(text, "token") == 0);
  kvfolio_token_store_destroy(copy);
}

void call_gather_sequence(void) {
  kvfolio_storage* storage = make_storage();
  kvfolio_manager* m = NULL;
  MUST(kvfolio_manager_create_with_storage(&storage, NULL, &m, &g_error));
  const int32_t tokens[6] = {1, 2, 3, 4, 5, 6};
  kvfolio_sequence sequence = 0;
  kvfolio_ticket step = 0;
  MUST(kvfolio_open(m, NULL, tokens, 6, NULL, 0, NULL, &sequence, NULL, &g_error));
  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  MUST(kvfolio_append(m, sequence, tokens, 6, 0, &g_error));
  int32_t slots[6];
  MUST(kvfolio_slot_mapping(m, sequence, 0, 0, slots, 6, &g_error));
  float k[6 * kDim];
  float v[6 * kDim];
  fill(k, 6 * kDim, 1);
  fill(v, 6 * kDim, 100);
  kvfolio_view* const view = view_of(kvfolio_manager_storage(m));
  const kvfolio_rows rows = rows_of(6, kDim);
  MUST(kvfolio_append_rows(view, 0, k, &rows, v, &rows, slots, 6, &g_error));
  kvfolio_view_destroy(view);
  float got_k[6 * kDim];
  float got_v[6 * kDim];
  MUST(kvfolio_gather_sequence(m, sequence, 0, 0, 0, got_k, &rows, got_v, &rows, &g_error));
  CHECK(memcmp(got_k, k, sizeof k) == 0 && memcmp(got_v, v, sizeof v) == 0);
  MUST(kvfolio_finish(m, step, &g_error));
  const kvfolio_rows two = rows_of(2, kDim);
  MUST(kvfolio_gather_sequence(m, sequence, 0, 0, 3, NULL, NULL, got_v, &two, &g_error));
  CHECK(memcmp(got_v, v + 3 * kDim, 2 * kDim * sizeof(float)) == 0);
  kvfolio_manager_destroy(m);
  const kvfolio_group_spec group = small_group();
  MUST(kvfolio_manager_create(&group, 1, NULL, &m, &g_error));  // ids only
  MUST(kvfolio_open(m, NULL, NULL, 0, NULL, 0, NULL, &sequence, NULL, &g_error));
  CHECK(kvfolio_gather_sequence(m, sequence, 0, 0, 0, got_k, &two, NULL, NULL, &g_error) ==
        KVFOLIO_ERR_UNSUPPORTED);
  kvfolio_manager_destroy(m);
}

void call_block_store(void) {
  kvfolio_group_spec group = small_group();
  group.num_blocks = 3;
  kvfolio_block_store* store = NULL;
  MUST(kvfolio_block_store_create(&group, NULL, &store, &g_error));
  int32_t table[2] = {-1, -1};
  MUST(kvfolio_block_store_allocate(store, table, 2, &g_error));
  CHECK(kvfolio_block_store_num_blocks(store) == 3 && kvfolio_block_store_num_free(store) == 1);
  kvfolio_view* view = NULL;
  MUST(kvfolio_block_store_view(store, &view, &g_error));
  float k[kDim];
  fill(k, kDim, 1);
  const kvfolio_rows row = rows_of(1, kDim);
  const int32_t slot = table[1] * 4 + 2;
  MUST(kvfolio_append_rows(view, 0, k, &row, k, &row, &slot, 1, &g_error));

  // Another table with the same blocks writes: the first one keeps what it had.
  MUST(kvfolio_block_store_hold(store, table, 2, &g_error));
  int32_t own = -1;
  MUST(kvfolio_block_store_make_writable(store, table[1], &own, &g_error));
  CHECK(own != table[1] && kvfolio_block_store_num_free(store) == 0);
  CHECK(memcmp(kvfolio_view_k(view, 0, own, 0, 2), k, sizeof k) == 0);
  int32_t refs = -1;
  MUST(kvfolio_block_store_ref_count(store, table[0], &refs, &g_error));
  CHECK(refs == 2);
  const int64_t bytes = kvfolio_block_store_block_image_bytes(store);
  CHECK(bytes > 0 && kvfolio_block_store_memory_bytes(store) >= 3 * bytes);
  char* const image = need(calloc(1, (size_t)bytes));
  MUST(kvfolio_block_store_write(store, &own, 1, image, bytes, &g_error));
  CHECK(memcmp(kvfolio_view_k(view, 0, table[1], 0, 2), k, sizeof k) == 0);
  MUST(kvfolio_block_store_read(store, &own, 1, image, bytes, &g_error));
  CHECK(kvfolio_block_store_write(store, table, 1, image, bytes, &g_error) ==
        KVFOLIO_ERR_FAILED_PRECONDITION);
  free(image);
  MUST(kvfolio_block_store_release(store, table, 2, &g_error));
  MUST(kvfolio_block_store_release(store, &own, 1, &g_error));
  MUST(kvfolio_block_store_release(store, table, 1, &g_error));
  CHECK(kvfolio_block_store_num_free(store) == 3);
  char text[200];
  CHECK(kvfolio_block_store_describe(store, text, sizeof text) == (int64_t)strlen(text));
  CHECK(strncmp(text, "block store: 0 of 3 blocks", 26) == 0);
  kvfolio_view_destroy(view);
  kvfolio_block_store_destroy(store);
}
