// SPDX-License-Identifier: Apache-2.0
//
// The worked example of docs/design.md through the C interface: prints what
// tests/command/worked_step.cc prints. Besides, each function of the header is called; one that was
// not fails the test.

#include "every_function.h"

#include "calls.h"
#include "capi_test.h"

static void print(const char* name, const int32_t* values, int64_t size) {
  printf("%-13s", name);
  for (int64_t i = 0; i < size; ++i) printf(" %2d", values[i]);
  printf("\n");
}
static void print_array(const char* name, kvfolio_i32s array) {
  print(name, array.data, array.size);
}

static void print_references(const kvfolio_manager* manager, const char* name) {
  int32_t references[6];
  int32_t findable[6];
  int64_t num_findable = 0;
  for (int32_t block = 0; block < 6; ++block) {
    int32_t is_findable = 0;
    MUST(kvfolio_ref_count(manager, 0, block, &references[block], &g_error));
    MUST(kvfolio_is_findable(manager, 0, block, &is_findable, &g_error));
    if (is_findable) findable[num_findable++] = block;
  }
  print(name, references, 6);
  print("  findable", findable, num_findable);
}

static void print_plan(kvfolio_manager* manager) {
  const kvfolio_plan_options options = {
      .struct_size = sizeof options, .flashinfer = 1, .shared_prefixes = 1};
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  kvfolio_group_plan group = {.struct_size = sizeof group};
  MUST(kvfolio_plan(manager, &options, &plan, &group, 1, &g_error));
  print_array("query_start", plan.query_start);
  print_array("kv_lens", plan.kv_lens);
  print_array("slot_mapping", group.slot_mapping);
  print_array("block_table", group.block_table);
  print_array("copy_src", group.copy_src);
  print_array("copy_dst", group.copy_dst);
  print_array("kv_indptr", group.kv_indptr);
  print_array("kv_indices", group.kv_indices);
  print_array("kv_last_page", group.kv_last_page_len);
  for (int64_t i = 0; i < group.num_shared_prefixes; ++i) {
    const kvfolio_shared_prefix shared = group.shared_prefixes[i];
    printf("sequences %d to %d begin with the same %d block(s)\n", shared.first_sequence,
           shared.first_sequence + shared.num_sequences - 1, shared.num_blocks);
  }
}

static void worked_step(void) {
  const kvfolio_group_spec group = small_group();
  kvfolio_manager* manager = NULL;
  MUST(kvfolio_manager_create(&group, 1, NULL, &manager, &g_error));
  int32_t prompt[10];
  for (int32_t i = 0; i < 10; ++i) prompt[i] = 100 + i;
  kvfolio_sequence a = 0;
  kvfolio_sequence b = 0;
  kvfolio_sequence c = 0;
  kvfolio_ticket step = 0;
  MUST(kvfolio_open(manager, NULL, prompt, 10, NULL, 0, NULL, &a, NULL, &g_error));
  MUST(kvfolio_begin_step(manager, 0, &step, &g_error));
  MUST(kvfolio_append(manager, a, prompt, 10, 0, &g_error));
  MUST(kvfolio_finish(manager, step, &g_error));
  MUST(kvfolio_fork(manager, a, NULL, &b, &g_error));
  const int32_t other[11] = {100, 101, 102, 103, 104, 105, 206, 207, 208, 209, 210};
  kvfolio_found found = {.struct_size = sizeof found};
  MUST(kvfolio_open(manager, NULL, other, 11, NULL, 0, NULL, &c, &found, &g_error));
  printf("C finds %d of 11 tokens\n", found.cached_tokens);

  const int32_t next[2] = {300, 301};
  MUST(kvfolio_begin_step(manager, 0, &step, &g_error));
  MUST(kvfolio_append(manager, a, &next[0], 1, 0, &g_error));
  MUST(kvfolio_append(manager, b, &next[1], 1, 0, &g_error));
  MUST(kvfolio_append(manager, c, other + found.cached_tokens, 11 - found.cached_tokens, 0,
                      &g_error));
  print_plan(manager);
  print_references(manager, "open");
  MUST(kvfolio_commit(manager, step, &g_error));
  print_references(manager, "committed");
  MUST(kvfolio_complete(manager, step, &g_error));
  print_references(manager, "complete");
  MUST(kvfolio_check_invariants(manager, &g_error));
  kvfolio_manager_destroy(manager);
}

int main(void) {
  worked_step();
  call_each_plainly();
  call_versions();
  call_specs_and_storage();
  call_sequences();
  call_steps();
  call_room();
  call_transfers();
  call_questions();
  call_op_log();
  call_kernels();
  call_attention();
  call_token_store();
  call_block_store();
  call_gather_sequence();
  int missing = 0;
  for (int i = 0; i < kNumFunctions; ++i) {
    if (g_called[i]) continue;
    fprintf(stderr, "%s() is called nowhere in this test\n", kFunctions[i]);
    missing = 1;
  }
  return missing;
}
