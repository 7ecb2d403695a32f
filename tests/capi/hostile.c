// SPDX-License-Identifier: Apache-2.0

#include "hostile.h"

#include "null_handles.h"

World w;

static uint64_t hash(uint64_t h, const void* data, size_t bytes) {
  const unsigned char* const at = data;
  for (size_t i = 0; i < bytes; ++i) h = (h ^ at[i]) * 0x100000001b3u;
  return h;
}

static uint64_t hash_view(uint64_t h, const kvfolio_view* view) {
  for (int32_t block = 0; block < 16; ++block) {
    h = hash(h, kvfolio_view_k(view, 0, block, 0, 0), 4 * kDim * 4);
    const void* const v = kvfolio_view_v(view, 0, block, 0, 0);
    if (v != NULL) h = hash(h, v, 4 * kDim * 4);
  }
  return h;
}

static uint64_t hash_sequence(uint64_t h, kvfolio_sequence sequence) {
  kvfolio_sequence_info info = {.struct_size = sizeof info};
  MUST(kvfolio_info(w.manager, sequence, &info, &g_error));
  h = hash(h, &info, sizeof info);
  for (int32_t g = 0; g < 2; ++g) {
    kvfolio_i32s table = {NULL, 0};
    MUST(kvfolio_block_table(w.manager, sequence, g, &table, &g_error));
    h = hash(h, table.data, (size_t)table.size * 4);
  }
  return h;
}

uint64_t state_of_the_world(void) {
  uint64_t h = hash(0xcbf29ce484222325u, &w, sizeof w);
  static char text[16384];
  const int64_t bytes = kvfolio_describe(w.manager, text, sizeof text);
  CHECK(bytes > 0 && bytes < (int64_t)sizeof text);
  h = hash(h, text, (size_t)bytes);
  kvfolio_counters counters = {.struct_size = sizeof counters};
  MUST(kvfolio_get_counters(w.manager, &counters, &g_error));
  h = hash(h, &counters, sizeof counters);
  for (int32_t g = 0; g < 2; ++g) {
    kvfolio_group_usage usage = {.struct_size = sizeof usage};
    MUST(kvfolio_usage(w.manager, g, &usage, &g_error));
    h = hash(h, &usage, sizeof usage);
  }
  h = hash_sequence(hash_sequence(h, w.open), w.idle);
  h = hash_view(hash_view(h, w.view), w.no_v_view);
  const void* row = NULL;
  MUST(kvfolio_token_store_at(w.store, 1, &row, &g_error));
  h = hash(h, row, kDim * 2);
  const int32_t size = kvfolio_token_store_size(w.store);
  h = hash(h, &size, sizeof size);
  for (int32_t block = 0; block < 4; ++block) {
    int32_t refs = -1;
    MUST(kvfolio_block_store_ref_count(w.blocks, block, &refs, &g_error));
    h = hash(h, &refs, sizeof refs);
  }
  return h;
}

static void make_sequences(void) {
  const kvfolio_manager_options options = {
      .struct_size = sizeof options, .max_sequences = 4, .id_tag = 8};
  kvfolio_manager* other = NULL;
  MUST(kvfolio_manager_create(w.groups, 2, &options, &other, &g_error));
  MUST(kvfolio_open(other, NULL, NULL, 0, NULL, 0, NULL, &w.foreign, NULL, &g_error));
  kvfolio_manager_destroy(other);

  MUST(kvfolio_open(w.manager, NULL, w.tokens, 8, NULL, 0, NULL, &w.closed, NULL, &g_error));
  MUST(kvfolio_close(w.manager, w.closed, &g_error));
  MUST(kvfolio_open(w.manager, NULL, w.tokens, 20, NULL, 0, NULL, &w.open, NULL, &g_error));
  MUST(kvfolio_begin_step(w.manager, 0, &w.old_step, &g_error));
  MUST(kvfolio_append(w.manager, w.open, w.tokens, 20, 0, &g_error));
  MUST(kvfolio_finish(w.manager, w.old_step, &g_error));
  MUST(kvfolio_fork(w.manager, w.open, NULL, &w.idle, &g_error));
  MUST(kvfolio_begin_step(w.manager, 0, &w.step, &g_error));
  MUST(kvfolio_append(w.manager, w.open, w.tokens, 1, 0, &g_error));
}

static void make_world(void) {
  memset(&w, 0x5a, sizeof w);
  for (int g = 0; g < 2; ++g) w.groups[g] = small_group();
  w.groups[1].kind = KVFOLIO_SLIDING_WINDOW;
  w.groups[1].window = 6;
  for (int i = 0; i < 64; ++i) w.tokens[i] = i;
  for (int i = 0; i < kFloats; ++i) w.k[i] = (float)(i % 17);
  w.out.plan.struct_size = sizeof w.out.plan;
  for (int g = 0; g < 2; ++g) w.out.group_plans[g].struct_size = sizeof w.out.group_plans[g];
  w.out.found.struct_size = sizeof w.out.found;
  w.out.load.struct_size = sizeof w.out.load;
  w.out.info.struct_size = sizeof w.out.info;
  w.out.usage.struct_size = sizeof w.out.usage;
  w.out.counters.struct_size = sizeof w.out.counters;
  w.out.group.struct_size = sizeof w.out.group;
  w.out.layout.struct_size = sizeof w.out.layout;

  const kvfolio_manager_options options = {
      .struct_size = sizeof options, .max_sequences = 4, .id_tag = 7};
  kvfolio_group_spec no_v = small_group();
  no_v.head_dim_v = 0;
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_create(w.groups, 2, NULL, &storage, &g_error));
  MUST(kvfolio_storage_fill(storage, 0, &g_error));
  MUST(kvfolio_manager_create_with_storage(&storage, &options, &w.manager, &g_error));
  w.storage = kvfolio_manager_storage(w.manager);
  MUST(kvfolio_storage_create(&no_v, 1, NULL, &w.no_v_storage, &g_error));
  MUST(kvfolio_storage_fill(w.no_v_storage, 0, &g_error));
  MUST(kvfolio_view_create(w.storage, 0, -1, &w.view, &g_error));
  MUST(kvfolio_view_create(w.no_v_storage, 0, -1, &w.no_v_view, &g_error));
  const kvfolio_token_store_options store = {
      .struct_size = sizeof store, .head_dim_k = kDim, .dtype = KVFOLIO_F16, .max_tokens = 6};
  MUST(kvfolio_token_store_create(&store, NULL, &w.store, &g_error));
  MUST(kvfolio_token_store_append(w.store, w.k, NULL, 2, KVFOLIO_F32, &g_error));
  kvfolio_group_spec four = small_group();
  four.num_blocks = 4;
  int32_t blocks[2] = {-1, -1};
  MUST(kvfolio_block_store_create(&four, NULL, &w.blocks, &g_error));
  MUST(kvfolio_block_store_allocate(w.blocks, blocks, 2, &g_error));
  CHECK(blocks[0] == 0 && blocks[1] == 1);
  MUST(kvfolio_block_store_hold(w.blocks, blocks, 1, &g_error));
  make_sequences();
}

int main(void) {
  make_world();
  begin_hostile_calls();
  call_without_handles();
  hostile_creation();
  hostile_sequences();
  hostile_steps();
  hostile_room();
  hostile_questions();
  hostile_storage();
  hostile_kernels();
  hostile_attention();
  hostile_token_store();
  hostile_block_store();
  hostile_gather_sequence();
  // And the world works still.
  MUST(kvfolio_check_invariants(w.manager, &g_error));
  MUST(kvfolio_finish(w.manager, w.step, &g_error));
  MUST(kvfolio_close(w.manager, w.open, &g_error));
  MUST(kvfolio_check_invariants(w.manager, &g_error));
  kvfolio_token_store_destroy(w.store);
  kvfolio_block_store_destroy(w.blocks);
  kvfolio_view_destroy(w.no_v_view);
  kvfolio_view_destroy(w.view);
  kvfolio_storage_destroy(w.no_v_storage);
  kvfolio_manager_destroy(w.manager);
  return end_hostile_calls(900);
}
