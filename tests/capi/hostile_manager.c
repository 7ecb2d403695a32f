// SPDX-License-Identifier: Apache-2.0
//
// Hostile calls around a manager.

#include "hostile.h"

#define M w.manager
#define OUT_MANAGER &w.out.manager, E

static void bad_groups(void) {
  const kvfolio_manager_options* const no_options = NULL;
  BAD(kvfolio_manager_create(NULL, 1, no_options, OUT_MANAGER));
  BAD(kvfolio_manager_create(w.groups, 0, no_options, OUT_MANAGER));
  BAD(kvfolio_manager_create(w.groups, INT_MAX, no_options, OUT_MANAGER));
  BAD(kvfolio_manager_create(w.groups, INT_MIN, no_options, OUT_MANAGER));
  BAD(kvfolio_manager_create(w.groups, 2, no_options, NULL, E));
  kvfolio_group_spec g[2] = {w.groups[0], w.groups[1]};
  g[1].struct_size = 48;
  BAD(kvfolio_manager_create(g, 2, no_options, OUT_MANAGER));
  g[0].struct_size = 3;
  BAD(kvfolio_manager_create(g, 1, no_options, OUT_MANAGER));
  g[0].struct_size = 4097;
  BAD(kvfolio_manager_create(g, 1, no_options, OUT_MANAGER));
#define BAD_FIELD(field, value)                                 \
  do {                                                          \
    g[0] = w.groups[0];                                         \
    g[0].field = value;                                         \
    BAD(kvfolio_manager_create(g, 1, no_options, OUT_MANAGER)); \
    BAD(kvfolio_plan_layouts(g, 1, &w.out.layout, E));          \
  } while (0)
  BAD_FIELD(head_dim_k, 0);
  BAD_FIELD(head_dim_k, INT_MAX);
  BAD_FIELD(head_dim_v, -1);
  BAD_FIELD(num_layers, -1);
  BAD_FIELD(num_kv_heads, INT_MIN);
  BAD_FIELD(block_size, INT_MAX);
  BAD_FIELD(dtype, 17);
  BAD_FIELD(dtype, -1);
  BAD_FIELD(format, 3);
  BAD_FIELD(kind, 2);
  BAD_FIELD(window, -1);
  BAD_FIELD(num_blocks, -1);
#undef BAD_FIELD
}

static void bad_options(void) {
  kvfolio_manager_options o;
#define BAD_FIELD(field, value)                                \
  do {                                                         \
    memset(&o, 0, sizeof o);                                   \
    o.struct_size = sizeof o;                                  \
    o.field = value;                                           \
    BAD(kvfolio_manager_create(w.groups, 2, &o, OUT_MANAGER)); \
  } while (0)
  BAD_FIELD(struct_size, 0);
  BAD_FIELD(struct_size, 5000);
  BAD_FIELD(max_sequences, -1);
  BAD_FIELD(max_pins, -2);
  BAD_FIELD(max_steps_in_flight, 65);
  BAD_FIELD(order, 2);
  BAD_FIELD(max_runs, 1);
  BAD_FIELD(max_index_tokens, INT64_MIN);
  BAD_FIELD(max_root_key_bytes, -2);
  BAD_FIELD(max_table_entries, INT64_MAX);
  BAD_FIELD(high_watermark, NAN);
  BAD_FIELD(high_watermark, -0.5);
  BAD_FIELD(high_watermark, INFINITY);
  BAD_FIELD(victim_policy, 4);
  BAD_FIELD(victim_policy, -1);
  BAD_FIELD(id_tag, 65536);
  BAD_FIELD(max_transfers, INT_MIN);
#undef BAD_FIELD
}

void hostile_creation(void) {
  bad_groups();
  bad_options();
  kvfolio_storage* none = NULL;
  BAD(kvfolio_manager_create_with_storage(NULL, NULL, OUT_MANAGER));
  BAD(kvfolio_manager_create_with_storage(&none, NULL, OUT_MANAGER));
  BAD(kvfolio_manager_create_with_storage(&w.storage, NULL, OUT_MANAGER));  // has a manager
  kvfolio_group_spec g = w.groups[0];
  BAD(kvfolio_fit(NULL, 1, 1 << 20, E));
  BAD(kvfolio_fit(&g, 1, INT64_MIN, E));
  BAD(kvfolio_fit(&g, 1, 0, E));
  g.struct_size = offsetof(kvfolio_group_spec, num_blocks);
  BAD(kvfolio_fit(&g, 1, 1 << 20, E));
  BAD(kvfolio_plan_layouts(w.groups, 2, NULL, E));
  BAD(kvfolio_plan_layouts(NULL, 2, &w.out.layout, E));

  kvfolio_root** const root = &w.out.root;
  BAD(kvfolio_root_create(NULL, 5, NULL, 0, NULL, 0, NULL, 0, 0, root, E));
  BAD(kvfolio_root_create("x", -1, NULL, 0, NULL, 0, NULL, 0, 0, root, E));
  BAD(kvfolio_root_create("x", INT64_MAX, NULL, 0, NULL, 0, NULL, 0, 0, root, E));
  BAD(kvfolio_root_create("x", 1, NULL, 0, NULL, 0, NULL, 7, 0, root, E));
  BAD(kvfolio_root_create("x", 1, NULL, 0, NULL, 0, NULL, 0, 0, NULL, E));
  static char many[65537];
  BAD(kvfolio_root_create(many, sizeof many, NULL, 0, NULL, 0, NULL, 0, 0, root, E));
  BAD(kvfolio_root_create("x", 1, NULL, 1, NULL, 0, NULL, 0, 0, root, E));
}

static void bad_prompts(void) {
  kvfolio_sequence* const out = &w.out.id;
  kvfolio_found* const found = &w.out.found;
  int32_t* const cached = &w.out.i32;
  BAD(kvfolio_open(M, NULL, w.tokens, -1, NULL, 0, NULL, out, found, E));
  BAD(kvfolio_open(M, NULL, w.tokens, INT64_MAX, NULL, 0, NULL, out, found, E));
  BAD(kvfolio_open(M, NULL, NULL, 5, NULL, 0, NULL, out, found, E));
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, 0, NULL, NULL, found, E));
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, 1, NULL, out, found, E));
  kvfolio_found bad_size = {.struct_size = 3};
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, 0, NULL, out, &bad_size, E));
  BAD(kvfolio_admit_prompt(M, NULL, w.tokens, 5, NULL, 0, NULL, 1, 0, &bad_size, NULL, 0, E));
  bad_size.struct_size = UINT32_MAX;
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, 0, NULL, out, &bad_size, E));
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, INT64_MIN, NULL, out, found, E));
  kvfolio_open_options o = {.struct_size = sizeof o, .publish = 3};
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, 0, &o, out, found, E));
  o.publish = 0;
  o.max_tokens = -1;
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, 0, &o, out, found, E));
  o.max_tokens = 4;
  BAD(kvfolio_open(M, NULL, w.tokens, 5, NULL, 0, &o, out, found, E));
  o.struct_size = 2;
  BAD(kvfolio_probe(M, NULL, w.tokens, 5, NULL, 0, &o, cached, E));
  kvfolio_media_span media[2] = {{.struct_size = sizeof media[0], .begin = -1, .end = INT_MAX},
                                 {.struct_size = sizeof media[0], .begin = 3, .end = 2}};
  BAD(kvfolio_open(M, NULL, w.tokens, 5, media, 1, NULL, out, found, E));
  BAD(kvfolio_open(M, NULL, w.tokens, 5, media + 1, 1, NULL, out, found, E));
  media[1].end = 4;  // all it lacks is a content_id
  BAD(kvfolio_open(M, NULL, w.tokens, 5, media + 1, 1, NULL, out, found, E));
  media[0].struct_size = 0;
  BAD(kvfolio_open(M, NULL, w.tokens, 5, media, 2, NULL, out, found, E));
  BAD(kvfolio_probe(M, NULL, w.tokens, 5, NULL, 0, NULL, NULL, E));
  BAD(kvfolio_probe(M, NULL, w.tokens, -5, NULL, 0, NULL, cached, E));
  BAD(kvfolio_soon(M, NULL, w.tokens, 5, NULL, 0, NULL, NULL, out, E));
  BAD(kvfolio_soon(M, NULL, w.tokens, -5, NULL, 0, NULL, cached, out, E));
  BAD(kvfolio_soon(M, NULL, w.tokens, 5, NULL, 0, &o, cached, NULL, E));
  BAD(kvfolio_open_unnamed(M, NULL, -1, NULL, 0, NULL, out, E));
  BAD(kvfolio_open_unnamed(M, NULL, INT64_MAX, NULL, 0, NULL, out, E));
  BAD(kvfolio_pin(M, NULL, w.tokens, INT64_MIN, NULL, 0, NULL, &w.out.id, cached, E));
  BAD(kvfolio_pin(M, NULL, w.tokens, 5, NULL, 0, NULL, NULL, cached, E));
  BAD(kvfolio_forget(M, NULL, NULL, 5, NULL, 0, &w.out.i64, &w.out.i32, E));
}

// What bad_calls.h has in place of options, and for arrays.
static const void* options_of_size(uint32_t size) {
  static uint32_t options[64];
  options[0] = size;
  return options;
}
static const int64_t kOnes[3] = {1, 1, 1};
static uint8_t kHas[3] = {1, 1, 1};
#include "bad_calls.h"

// An id that is none, in an array.
static void bad_ids(void) {
  const kvfolio_sequence ids[] = {0, UINT64_MAX, w.closed, w.foreign, w.idle ^ (1u << 30)};
  for (size_t i = 0; i < sizeof ids / sizeof ids[0]; ++i) {
    const int64_t one = 1;
    BAD(kvfolio_admit(M, &ids[i], &one, 1, E));
    BAD(kvfolio_append_each(M, &ids[i], w.tokens, 1, NULL, E));
    BAD(kvfolio_append_unnamed_each(M, &ids[i], 1, NULL, E));
    BAD(kvfolio_set_tokens_each(M, &ids[i], w.tokens, 1, NULL, E));
  }
}

void hostile_sequences(void) {
  call_badly();
  bad_prompts();
  bad_ids();
  BAD(kvfolio_truncate(M, w.idle, 21, E));
  kvfolio_fork_options o = {.struct_size = UINT32_MAX};
  BAD(kvfolio_fork(M, w.idle, &o, &w.out.id, E));
  const int64_t sizes[2] = {2, 2};
  const int32_t tables[4] = {0, 1, 0, 1};
  BAD(kvfolio_adopt(M, w.idle, tables, sizes, 2, 8, E));  // it has tokens
  BAD(kvfolio_adopt(M, w.idle, NULL, sizes, 2, 8, E));
  BAD(kvfolio_adopt(M, w.idle, tables, NULL, 2, 8, E));
  BAD(kvfolio_adopt(M, w.idle, tables, sizes, -1, 8, E));
  BAD(kvfolio_adopt(M, w.idle, tables, sizes, INT_MAX, 8, E));
  const int64_t negative[2] = {-1, INT64_MAX};
  BAD(kvfolio_adopt(M, w.idle, tables, negative, 2, 8, E));
}

void hostile_steps(void) {
  BAD(kvfolio_begin_step(M, 0, &w.out.id, E));  // one is open
  BAD(kvfolio_append(M, w.idle, w.tokens, 20, 21, E));
  BAD(kvfolio_append_prompt(M, w.idle, w.tokens, 20, 0, &w.out.i32, E));
  BAD(kvfolio_append_prompt(M, w.idle, w.tokens, 20, -1, &w.out.i32, E));
  BAD(kvfolio_append_prompt(M, w.idle, NULL, 20, 4, &w.out.i32, E));
  BAD(kvfolio_append(M, w.idle, w.tokens, 20, -1, E));
  BAD(kvfolio_append(M, w.idle, w.tokens, -20, 0, E));
  BAD(kvfolio_append(M, w.idle, NULL, 1, 0, E));
  BAD(kvfolio_append(M, w.open, w.tokens, 1, 0, E));  // is in the step already
  BAD(kvfolio_append_unnamed(M, w.idle, INT64_MAX, 0, E));
  BAD(kvfolio_append_unnamed(M, w.idle, 1 << 20, 0, E));
  BAD(kvfolio_append_each(M, NULL, NULL, 3, NULL, E));
  BAD(kvfolio_append_each(M, &w.idle, w.tokens, -1, NULL, E));
  BAD(kvfolio_append_each(M, &w.idle, w.tokens, INT64_MAX, NULL, E));
  BAD(kvfolio_append_unnamed_each(M, NULL, 1, NULL, E));
  BAD(kvfolio_set_tokens(M, w.idle, w.tokens, 1, E));  // none is unnamed
  BAD(kvfolio_set_tokens(M, w.idle, NULL, 1, E));
  BAD(kvfolio_set_tokens_each(M, &w.idle, w.tokens, INT64_MIN, NULL, E));
  BAD(kvfolio_plan(M, NULL, &w.out.plan, w.out.group_plans, 3, E));
  BAD(kvfolio_plan(M, NULL, &w.out.plan, w.out.group_plans, -1, E));
  BAD(kvfolio_plan(M, NULL, &w.out.plan, NULL, 2, E));
  BAD(kvfolio_plan(M, NULL, NULL, w.out.group_plans, 2, E));
  kvfolio_group_plan uneven[2] = {{.struct_size = sizeof uneven[0]}, {.struct_size = 4}};
  BAD(kvfolio_plan(M, NULL, &w.out.plan, uneven, 2, E));
  const int32_t stride = 4;
  const kvfolio_plan_options shapes[] = {
      {.struct_size = sizeof shapes[0], .padded_sequences = -1},
      {.struct_size = sizeof shapes[0], .padded_tokens = INT32_MIN},
      {.struct_size = sizeof shapes[0], .table_stride = {&stride, 1}},
      {.struct_size = sizeof shapes[0], .table_stride = {NULL, 2}},
      {.struct_size = sizeof shapes[0], .table_stride = {&stride, INT64_MAX}},
      {.struct_size = sizeof shapes[0], .table_stride = {&stride, -1}},
      {.struct_size = sizeof shapes[0], .memory_bytes = 4096},
      {.struct_size = sizeof shapes[0], .memory = &w, .memory_bytes = -8},
      {.struct_size = sizeof shapes[0], .memory = &w, .memory_bytes = 4}};
  int64_t bytes = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; ++i) {
    BAD(kvfolio_plan(M, &shapes[i], &w.out.plan, NULL, 0, E));
    BAD(kvfolio_plan_bytes(M, &shapes[i], &bytes, E));
  }
  BAD(kvfolio_plan_bytes(M, NULL, &bytes, E));  // leaves sizes open
  BAD(kvfolio_plan_bytes(M, &shapes[0], NULL, E));
  BAD(kvfolio_complete(M, w.step, E));  // is open
  BAD(kvfolio_accept(M, w.idle, 1, E));
  BAD(kvfolio_accept(M, w.idle, -1, E));
  BAD(kvfolio_undo(M, w.idle, E));
}

void hostile_room(void) {
  const int64_t much = INT64_MAX;
  const int64_t negative = INT64_MIN;
  const kvfolio_sequence twice[2] = {w.idle, w.idle};
  const int64_t ones[2] = {1, 1};
  BAD(kvfolio_admit(M, &w.idle, &much, 1, E));
  BAD(kvfolio_admit(M, &w.idle, &negative, 1, E));
  BAD(kvfolio_admit(M, &w.idle, ones, 99999, E));
  BAD(kvfolio_admit(M, twice, ones, 2, E));
  BAD(kvfolio_admit(M, NULL, ones, 2, E));
  BAD(kvfolio_admit_prompt(M, NULL, w.tokens, 20, NULL, 0, NULL, much, 0, &w.out.found, NULL, 0,
                           E));
  BAD(kvfolio_admit_prompt(M, NULL, w.tokens, 20, NULL, 0, NULL, -1, 0, &w.out.found, NULL, 0, E));
  BAD(kvfolio_admit_prompt(M, NULL, w.tokens, 20, NULL, 0, NULL, 1, -1, &w.out.found, NULL, 0, E));
  BAD(kvfolio_admit_prompt(M, NULL, w.tokens, 20, NULL, 0, NULL, 1, 0, NULL, w.out.i32s, 3, E));
  BAD(kvfolio_admit_prompt(M, NULL, w.tokens, 20, NULL, 0, NULL, 1, 0, NULL, w.out.i32s, -1, E));
  BAD(kvfolio_admit_sequence(M, w.idle, much, 1, w.out.i32s, 1, E));
  BAD(kvfolio_admit_sequence(M, w.idle, -1, 1, w.out.i32s, 1, E));
  BAD(kvfolio_admit_sequence(M, w.idle, 1, -1, w.out.i32s, 1, E));
  BAD(kvfolio_admit_sequence(M, w.idle, 1, 1, w.out.i32s, 3, E));
  BAD(kvfolio_admit_sequence(M, w.idle, 1, 1, NULL, 1, E));
  BAD(kvfolio_reserve(M, w.idle, -1, 0, E));
  BAD(kvfolio_reserve(M, w.idle, INT64_MAX, 0, E));
  BAD(kvfolio_reserve(M, w.idle, 8, -1, E));
  BAD(kvfolio_reserve(M, w.idle, 1000, 1, E));
  BAD(kvfolio_evict(M, 0, -1, NULL, 0, &w.out.i32, E));
  BAD(kvfolio_evict(M, 5, 1, NULL, 0, &w.out.i32, E));
  BAD(kvfolio_evict(M, 0, 1, NULL, 4, &w.out.i32, E));
  BAD(kvfolio_evict(M, 0, 1, w.out.i32s, -4, &w.out.i32, E));
  BAD(kvfolio_preempt_to(M, 0.5, -2, &w.out.ended, &w.out.i64, E));
  BAD(kvfolio_preempt_to(M, 0.5, 4, &w.out.ended, &w.out.i64, E));

  uint8_t has[10] = {0};
  const int64_t sizes[2] = {5, 5};
  const int64_t bad_sizes[2] = {-1, INT64_MAX};
  BAD(kvfolio_begin_load(M, w.idle, w.tokens, 20, 21, &w.out.load, E));
  BAD(kvfolio_begin_load(M, w.idle, NULL, 20, 20, &w.out.load, E));
  BAD(kvfolio_blocks_to_load(M, 0, 0, NULL, NULL, 0, &w.out.i32, E));
  BAD(kvfolio_blocks_to_load(M, UINT64_MAX, 0, NULL, NULL, 0, &w.out.i32, E));
  BAD(kvfolio_loadable(M, w.idle, w.tokens, 20, 20, has, sizes, 1, &w.out.i32, NULL, NULL, E));
  BAD(kvfolio_loadable(M, w.idle, w.tokens, 20, 20, has, bad_sizes, 2, NULL, NULL, NULL, E));
  BAD(kvfolio_loadable(M, w.idle, w.tokens, 20, 21, has, sizes, 2, NULL, NULL, NULL, E));
  BAD(kvfolio_hold_blocks(M, 0, w.tokens, -1, &w.out.id, E));
  BAD(kvfolio_hold_blocks(M, 9, w.tokens, 1, &w.out.id, E));
  BAD(kvfolio_hold_blocks(M, 0, w.tokens + 60, 1, &w.out.id, E));
  CHECK(kvfolio_select_victim(M, 42) == 0 && kvfolio_select_victim(NULL, 0) == 0);
}

void hostile_questions(void) {
  BAD(kvfolio_find(M, 1, &w.out.id, E));
  BAD(kvfolio_slot_mapping(M, w.idle, 0, -1, w.out.i32s, 1, E));
  BAD(kvfolio_slot_mapping(M, w.idle, 0, INT_MAX, w.out.i32s, 1, E));
  BAD(kvfolio_slot_mapping(M, w.idle, 0, 19, w.out.i32s, 2, E));
  BAD(kvfolio_slot_mapping(M, w.idle, 0, 0, NULL, 2, E));
  BAD(kvfolio_copy_to(M, NULL, E));
  kvfolio_op_log* log = NULL;
  BAD(kvfolio_op_log_create(NULL, 0, &log, E));
  const kvfolio_byte_sink no_sink = {sizeof no_sink, 0, NULL, NULL};
  BAD(kvfolio_op_log_create(&no_sink, 0, &log, E));
  BAD(kvfolio_op_log_create(&no_sink, 0, NULL, E));
  BAD(kvfolio_op_log_create_fd(-1, 0, &log, E));
  BAD(kvfolio_op_log_create_fd(INT_MAX, 0, &log, E));
  BAD(kvfolio_op_log_create_fd(1, 0, NULL, E));
  CHECK(kvfolio_op_log_num_calls(NULL) == 0 && log == NULL);
  kvfolio_op_log_destroy(NULL);
  char text[4] = "abc";
  CHECK(kvfolio_describe(M, text, 4) > 4 && text[3] == 0);
  CHECK(kvfolio_describe(M, NULL, 100) > 4 && kvfolio_describe(M, text, -1) > 4);
  CHECK(kvfolio_describe(NULL, text, 4) == 0);
  CHECK(kvfolio_sequences(M, NULL, 5) == 0 && kvfolio_sequences(M, &w.out.id, -5) == 0);
  CHECK(kvfolio_take_findable(M, NULL, INT64_MAX) == 0);
}
