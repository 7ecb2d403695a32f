// SPDX-License-Identifier: Apache-2.0
//
// A prompt that has left the cache comes back from host memory, and in another cache from a file.
// The lines of docs/tiers.md, in a program that runs as a test.

#include <stdio.h>
#include <stdlib.h>

#include "kvfolio/kvfolio_tiers.h"

enum { kTokens = 100, kBlocks = 64 };

static kvfolio_error error = KVFOLIO_ERROR_INIT;

static void must(int32_t code) {
  if (code == KVFOLIO_OK) return;
  fprintf(stderr, "%s\n", error.message);
  exit(1);
}

// Each with a tag of its own, so that none takes an id of another for its own.
static kvfolio_manager* new_cache(int32_t id_tag) {
  const kvfolio_group_spec layers = {
      .struct_size = sizeof layers, .head_dim_k = 8, .head_dim_v = 8, .num_blocks = kBlocks};
  const kvfolio_manager_options options = {
      .struct_size = sizeof options, .id_tag = id_tag, .list_findable = 1};
  kvfolio_storage* storage = NULL;
  kvfolio_manager* cache = NULL;
  must(kvfolio_storage_create(&layers, 1, NULL, &storage, &error));
  must(kvfolio_manager_create_with_storage(&storage, &options, &cache, &error));
  return cache;
}

static int32_t prefill(kvfolio_manager* cache, kvfolio_offload* offload, const int32_t* prompt,
                       int64_t n, uint64_t* now_us) {
  // shown: c
  kvfolio_sequence_ready ready = {0};
  kvfolio_sequence sequence;
  int32_t pending;
  must(kvfolio_offload_open(offload, NULL, prompt, n, NULL, 0, NULL, &sequence,
                            &ready.cached_tokens, &pending, &error));
  while (pending) {  // or serve others meanwhile
    if (kvfolio_offload_poll(offload, *now_us += 100, &ready, 1) == 1) pending = 0;
  }
  kvfolio_ticket step;  // go on as ever: what came back has not changed a bit
  must(kvfolio_begin_step(cache, 0, &step, &error));
  must(kvfolio_append_prompt(cache, sequence, prompt, n, n, NULL, &error));
  must(kvfolio_run_copies(cache, &error));
  must(kvfolio_finish(cache, step, &error));
  // shown end
  must(kvfolio_close(cache, sequence, &error));
  return ready.cached_tokens;
}

int main(void) {
  kvfolio_manager* const cache = new_cache(1);
  const kvfolio_model_identity model = {.struct_size = sizeof model,
                                        .model = {"toy", -1},
                                        .weights = {"rev 1", -1},
                                        .tokenizer = {"rev 1", -1},
                                        .model_dtype = {"f32", -1},
                                        .positions = {"none", -1},
                                        .engine = {"tiers.c 1", -1}};
  const kvfolio_offload_options options = {.struct_size = sizeof options, .arena_bytes = 1 << 20};
  kvfolio_offload* offload = NULL;
  must(kvfolio_offload_create(cache, &model, &options, NULL, 0, NULL, &offload, &error));
  int32_t prompt[kTokens];
  for (int32_t i = 0; i < kTokens; ++i) prompt[i] = i;
  uint64_t now_us = 0;
  printf("%d of %d tokens found\n", (int)prefill(cache, offload, prompt, kTokens, &now_us),
         kTokens);
  while (!kvfolio_offload_idle(offload)) kvfolio_offload_poll(offload, now_us += 100, NULL, 0);
  must(kvfolio_evict(cache, 0, kBlocks, NULL, 0, NULL, &error));
  printf("%d from host memory\n", (int)prefill(cache, offload, prompt, kTokens, &now_us));

  const char* const path = "kvfolio_example_tiers.kv";
  kvfolio_identity* const names = kvfolio_offload_identity(offload);
  must(kvfolio_save_file(cache, names, path, NULL, NULL, NULL, &error));
  kvfolio_manager* const other = new_cache(2);
  kvfolio_restored* restored = NULL;
  must(kvfolio_restore_file(other, names, path, &restored, &error));
  remove(path);
  int32_t found = 0;
  must(kvfolio_probe(other, NULL, prompt, kTokens, NULL, 0, NULL, &found, &error));
  printf("%d from a file\n", (int)found);
  kvfolio_restored_destroy(restored);
  kvfolio_manager_destroy(other);
  kvfolio_offload_destroy(offload);  // before its manager
  kvfolio_manager_destroy(cache);
  return 0;
}
