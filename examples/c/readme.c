// SPDX-License-Identifier: Apache-2.0
//
// The lines of "In C" of docs/languages.md, in a program that runs as a test.

#include <stdio.h>

#include "kvfolio/kvfolio.h"

static int32_t prefill(kvfolio_manager* cache, const int32_t* prompt, int64_t n) {
  // shown: c
  kvfolio_error error = KVFOLIO_ERROR_INIT;  // a struct of the caller, which has the sentence
  kvfolio_sequence sequence = 0;
  kvfolio_ticket step = 0;
  kvfolio_found found = {.struct_size = sizeof found};
  int32_t code = kvfolio_open(cache, NULL, prompt, n, NULL, 0, NULL, &sequence, &found, &error);
  if (code == 0) code = kvfolio_begin_step(cache, 0, &step, &error);
  if (code == 0) code = kvfolio_append_prompt(cache, sequence, prompt, n, n, NULL, &error);
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  kvfolio_group_plan group = {.struct_size = sizeof group};
  if (code == 0) code = kvfolio_plan(cache, NULL, &plan, &group, 1, &error);
  // Yours: run the copies, write K and V to group.slot_mapping, attend over group.block_table.
  if (code == 0) code = kvfolio_finish(cache, step, &error);
  if (code == 0) {
    printf("%d of %d tokens found\n", (int)found.cached_tokens, (int)n);
    return kvfolio_close(cache, sequence, &error);  // its blocks stay findable
  }
  fprintf(stderr, "%s\n", error.message);
  if (step != 0) kvfolio_drop(cache, step, &error);  // as if it had not been
  if (sequence != 0) kvfolio_close(cache, sequence, &error);
  // shown end
  return code;
}

int main(void) {
  const kvfolio_group_spec layers = {.struct_size = sizeof layers,
                                     .num_layers = 32,
                                     .num_kv_heads = 8,
                                     .head_dim_k = 128,
                                     .head_dim_v = 128,
                                     .num_blocks = 1024};
  kvfolio_error error = KVFOLIO_ERROR_INIT;
  kvfolio_manager* cache = NULL;
  if (kvfolio_manager_create(&layers, 1, NULL, &cache, &error)) return 1;
  int32_t prompt[528];
  for (int32_t i = 0; i < 528; ++i) prompt[i] = i < 500 ? 7 : 100 + i;
  if (prefill(cache, prompt, 528)) return 1;
  for (int32_t i = 500; i < 528; ++i) prompt[i] += 1000;
  if (prefill(cache, prompt, 528)) return 1;
  kvfolio_manager_destroy(cache);
  return 0;
}
