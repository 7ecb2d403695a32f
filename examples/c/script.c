// SPDX-License-Identifier: Apache-2.0
//
// One script, told in C, Rust and Go with the same output: two prompts with a common prefix, a
// fork, a window group beside a full one, attention over memory of our own, a shortage and a
// preemption.

#include <stdio.h>
#include <stdlib.h>

#include "kvfolio/kvfolio.h"

enum { kGroups = 2, kBlockSize = 4, kHeads = 2, kHeadDim = 4, kWindow = 6, kMostTokens = 32 };
static const int32_t kNumBlocks[kGroups] = {10, 8};

static kvfolio_error error = KVFOLIO_ERROR_INIT;

static void must(int32_t code) {
  if (code == KVFOLIO_OK) return;
  fprintf(stderr, "%s: %s\n", kvfolio_code_name(code), error.message);
  exit(1);
}

// Keys, values and queries that every language computes alike.
static float number(int32_t token, int32_t head, int32_t i, int32_t what) {
  return (float)((token * 7 + head * 3 + i * 5 + what * 11) % 13 - 6) / 8.0f;
}
static void fill(float* rows, const int32_t* tokens, int32_t n, int32_t what) {
  for (int32_t t = 0; t < n; ++t) {
    for (int32_t h = 0; h < kHeads; ++h) {
      for (int32_t i = 0; i < kHeadDim; ++i) *rows++ = number(tokens[t], h, i, what);
    }
  }
}

static void print_array(const char* name, kvfolio_i32s array) {
  printf("    %s", name);
  for (int64_t i = 0; i < array.size; ++i) printf(" %d", array.data[i]);
  printf("\n");
}

typedef struct {
  kvfolio_manager* manager;
  kvfolio_view* views[kGroups];
  kvfolio_group_spec groups[kGroups];
} Engine;

static Engine make_engine(float* memory[kGroups][2]) {
  Engine e = {0};
  kvfolio_borrowed_group lent[kGroups] = {{0}};
  for (int g = 0; g < kGroups; ++g) {
    e.groups[g].struct_size = sizeof e.groups[g];
    e.groups[g].num_kv_heads = kHeads;
    e.groups[g].head_dim_k = e.groups[g].head_dim_v = kHeadDim;
    e.groups[g].block_size = kBlockSize;
    e.groups[g].num_blocks = kNumBlocks[g];
    e.groups[g].kind = g == 0 ? KVFOLIO_FULL : KVFOLIO_SLIDING_WINDOW;
    e.groups[g].window = g == 0 ? 0 : kWindow;

    // [num_blocks, heads, block_size, head_dim] of f32, K and V apart.
    const int64_t floats = (int64_t)kNumBlocks[g] * kHeads * kBlockSize * kHeadDim;
    lent[g].struct_size = sizeof lent[g];
    lent[g].k = memory[g][0] = calloc((size_t)floats, sizeof(float));
    lent[g].v = memory[g][1] = calloc((size_t)floats, sizeof(float));
    if (lent[g].k == NULL || lent[g].v == NULL) exit(1);
    lent[g].k_bytes = lent[g].v_bytes = floats * 4;
    lent[g].k_strides.token = kHeadDim * 4;
    lent[g].k_strides.head = kBlockSize * lent[g].k_strides.token;
    lent[g].k_strides.block = kHeads * lent[g].k_strides.head;
    lent[g].v_strides = lent[g].k_strides;
  }
  kvfolio_storage* storage = NULL;
  must(kvfolio_storage_borrow(e.groups, kGroups, lent, NULL, &storage, &error));
  kvfolio_manager_options options = {.struct_size = sizeof options, .max_sequences = 8};
  must(kvfolio_manager_create_with_storage(&storage, &options, &e.manager, &error));
  for (int g = 0; g < kGroups; ++g) {
    must(kvfolio_view_create(kvfolio_manager_storage(e.manager), g, -1, &e.views[g], &error));
  }
  return e;
}

// Runs the open step: copies, K and V, attention. `tokens`: those of all sequences, in order.
static void run(const Engine* e, kvfolio_ticket ticket, const int32_t* tokens) {
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  kvfolio_group_plan groups[kGroups] = {{.struct_size = sizeof groups[0]},
                                        {.struct_size = sizeof groups[0]}};
  must(kvfolio_plan(e->manager, NULL, &plan, groups, kGroups, &error));
  must(kvfolio_run_copies(e->manager, &error));
  static float k[kMostTokens * kHeads * kHeadDim], v[kMostTokens * kHeads * kHeadDim];
  static float q[kMostTokens * kHeads * kHeadDim], out[kMostTokens * kHeads * kHeadDim];
  fill(k, tokens, plan.num_tokens, 0);
  fill(v, tokens, plan.num_tokens, 1);
  fill(q, tokens, plan.num_tokens, 2);
  const kvfolio_rows rows = {.struct_size = sizeof rows,
                             .num_tokens = plan.num_tokens,
                             .num_heads = kHeads,
                             .head_dim = kHeadDim};
  for (int g = 0; g < kGroups; ++g) {
    printf("  group %d\n", g);
    print_array("slots", groups[g].slot_mapping);
    print_array("table", groups[g].block_table);
    if (groups[g].copy_src.size > 0) {
      print_array("copy from", groups[g].copy_src);
      print_array("copy to", groups[g].copy_dst);
    }
    must(kvfolio_append_rows(e->views[g], 0, k, &rows, v, &rows, groups[g].slot_mapping.data,
                             groups[g].slot_mapping.size, &error));
    kvfolio_attention_options options = {.struct_size = sizeof options};
    must(kvfolio_attention_options_of(&e->groups[g], &options, &error));
    options.target = KVFOLIO_TARGET_REFERENCE;  // the same bits on every machine
    int64_t bytes = 0;
    must(kvfolio_attention_workspace_bytes(e->views[g], kHeads, kMostTokens, options.target, 1,
                                           &bytes, &error));
    void* workspace = malloc((size_t)bytes);
    must(kvfolio_attend(e->views[g], &options, (int32_t)plan.num_sequences, plan.query_start.data,
                        plan.kv_lens.data, groups[g].block_table.data, groups[g].block_table_stride,
                        plan.trim_sinks.data, plan.trim_first_kept.data, q, &rows, out, &rows, NULL,
                        NULL, workspace, bytes, NULL, &error));
    free(workspace);
    for (int64_t s = 0; s < plan.num_sequences; ++s) {
      const float* last = out + (plan.query_start.data[s + 1] - 1) * kHeads * kHeadDim;
      printf("    out of its last token %.4f %.4f %.4f %.4f\n", last[0], last[1], last[2], last[3]);
    }
  }
  must(kvfolio_finish(e->manager, ticket, &error));
}

static kvfolio_sequence open_named(const Engine* e, char name, const int32_t* tokens, int64_t n) {
  const kvfolio_open_options options = {
      .struct_size = sizeof options, .has_caller_id = 1, .caller_id = (uint64_t)name};
  kvfolio_sequence sequence = 0;
  kvfolio_found found = {.struct_size = sizeof found};
  must(kvfolio_open(e->manager, NULL, tokens, n, NULL, 0, &options, &sequence, &found, &error));
  printf("open %c: %d of %d tokens found\n", name, found.cached_tokens, (int)n);
  return sequence;
}

// Opens a prompt and computes what was not found.
static kvfolio_sequence prefill(const Engine* e, char name, const int32_t* tokens, int64_t n) {
  const kvfolio_sequence sequence = open_named(e, name, tokens, n);
  kvfolio_sequence_info info = {.struct_size = sizeof info};
  must(kvfolio_info(e->manager, sequence, &info, &error));
  kvfolio_ticket ticket = 0;
  must(kvfolio_begin_step(e->manager, 0, &ticket, &error));
  must(kvfolio_append(e->manager, sequence, tokens + info.length, n - info.length, 0, &error));
  run(e, ticket, tokens + info.length);
  return sequence;
}

static void print_usage(const Engine* e) {
  for (int g = 0; g < kGroups; ++g) {
    kvfolio_group_usage usage = {.struct_size = sizeof usage};
    must(kvfolio_usage(e->manager, g, &usage, &error));
    printf("  group %d: %d held, %d cached, %d free\n", g, usage.held, usage.cached, usage.free);
  }
}

int main(void) {
  float* memory[kGroups][2];
  Engine e = make_engine(memory);
  int32_t first[kMostTokens], second[kMostTokens], third[kMostTokens];
  for (int32_t i = 0; i < kMostTokens; ++i) {
    first[i] = 100 + i;
    second[i] = i < 9 ? first[i] : 200 + i;
    third[i] = 300 + i;
  }
  prefill(&e, 'a', first, 10);
  const kvfolio_sequence b = prefill(&e, 'b', second, 13);

  const kvfolio_fork_options named = {
      .struct_size = sizeof named, .has_caller_id = 1, .caller_id = 'c'};
  kvfolio_sequence c = 0;
  must(kvfolio_fork(e.manager, b, &named, &c, &error));
  printf("fork b: c\n");
  for (int32_t round = 0; round < 2; ++round) {
    const kvfolio_sequence both[2] = {b, c};
    const int32_t tokens[2] = {400 + round, 500 + round};
    kvfolio_ticket ticket = 0;
    must(kvfolio_begin_step(e.manager, 0, &ticket, &error));
    int64_t appended = 0;
    must(kvfolio_append_each(e.manager, both, tokens, 2, &appended, &error));
    printf("append one token to each of %d\n", (int)appended);
    run(&e, ticket, tokens);
  }
  print_usage(&e);

  const kvfolio_sequence d = open_named(&e, 'd', third, 20);
  kvfolio_ticket ticket = 0;
  must(kvfolio_begin_step(e.manager, 0, &ticket, &error));
  while (kvfolio_append(e.manager, d, third, 20, 0, &error) == KVFOLIO_ERR_NO_BLOCKS) {
    printf("%s\n", error.message);
    printf("  group %d needs %d, has %d free and %d evictable\n", error.shortage.group,
           error.shortage.needed, error.shortage.free, error.shortage.evictable);
    kvfolio_sequence_info info = {.struct_size = sizeof info};
    const kvfolio_sequence victim = kvfolio_select_victim(e.manager, KVFOLIO_LRU);
    must(kvfolio_info(e.manager, victim, &info, &error));
    must(kvfolio_preempt(e.manager, victim, &error));
    printf("preempt %c\n", (char)info.caller_id);
  }
  run(&e, ticket, third);
  print_usage(&e);
  must(kvfolio_check_invariants(e.manager, &error));

  kvfolio_counters counters = {.struct_size = sizeof counters};
  must(kvfolio_get_counters(e.manager, &counters, &error));
  printf("%d tokens committed, %d reused, %d blocks copied, %d evicted\n",
         (int)counters.tokens_committed, (int)counters.tokens_reused, (int)counters.block_copies,
         (int)counters.blocks_evicted);
  for (int g = 0; g < kGroups; ++g) kvfolio_view_destroy(e.views[g]);
  kvfolio_manager_destroy(e.manager);
  for (int g = 0; g < kGroups; ++g) {
    free(memory[g][0]);
    free(memory[g][1]);
  }
  return 0;
}
