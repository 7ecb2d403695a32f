// SPDX-License-Identifier: Apache-2.0
//
// decode SEQUENCES TOKENS STEPS: decode steps over many sequences, in C. Prints the processor time
// of a step for each sequence, in nanoseconds, and the sum of all slots. The same program is
// bindings/rust/kvfolio/examples/decode.rs and bindings/go/examples/decode; `run` compares them.

#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kvfolio/kvfolio.h"

enum { kBlockSize = 16 };
static kvfolio_error error = KVFOLIO_ERROR_INIT;

static void must(int32_t code) {
  if (code == KVFOLIO_OK) return;
  fprintf(stderr, "%s\n", error.message);
  exit(1);
}

static double processor_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int64_t step(kvfolio_manager* cache, const kvfolio_sequence* sequences,
                    const int32_t* tokens, int64_t n) {
  kvfolio_ticket ticket = 0;
  must(kvfolio_begin_step(cache, 0, &ticket, &error));
  must(kvfolio_append_each(cache, sequences, tokens, n, NULL, &error));
  const kvfolio_plan_options options = {
      .struct_size = sizeof options, .no_block_tables = 1, .changed_entries = 1};
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  kvfolio_group_plan group = {.struct_size = sizeof group};
  must(kvfolio_plan(cache, &options, &plan, &group, 1, &error));
  int64_t sum = 0;
  for (int64_t i = 0; i < group.slot_mapping.size; ++i) sum += group.slot_mapping.data[i];
  must(kvfolio_finish(cache, ticket, &error));
  return sum;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int32_t n = atoi(argv[1]), length = atoi(argv[2]), steps = atoi(argv[3]);
  const kvfolio_group_spec group = {.struct_size = sizeof group,
                                    .head_dim_k = 1,
                                    .block_size = kBlockSize,
                                    .num_blocks = n * ((length + 2 * steps) / kBlockSize + 2)};
  const kvfolio_manager_options options = {.struct_size = sizeof options, .max_sequences = n};
  kvfolio_manager* cache = NULL;
  must(kvfolio_manager_create(&group, 1, &options, &cache, &error));
  kvfolio_sequence* sequences = calloc((size_t)n, sizeof *sequences);
  int32_t* tokens = calloc((size_t)n, sizeof *tokens);
  int32_t* prompt = calloc((size_t)length, sizeof *prompt);
  if (sequences == NULL || tokens == NULL || prompt == NULL) return 1;
  for (int32_t i = 0; i < n; ++i) {
    // Lengths differ so that a sixteenth of the sequences fills a block in each step.
    const int32_t own = length - i % kBlockSize;
    for (int32_t at = 0; at < own; ++at) prompt[at] = (i * 31 + at) % 50000;
    must(kvfolio_open(cache, NULL, NULL, 0, NULL, 0, NULL, &sequences[i], NULL, &error));
    kvfolio_ticket ticket = 0;
    must(kvfolio_begin_step(cache, 0, &ticket, &error));
    must(kvfolio_append(cache, sequences[i], prompt, own, 0, &error));
    must(kvfolio_finish(cache, ticket, &error));
    tokens[i] = 7;
  }
  int64_t sum = 0;
  for (int32_t i = 0; i < steps; ++i) sum += step(cache, sequences, tokens, n);  // warm
  const double begin = processor_seconds();
  for (int32_t i = 0; i < steps; ++i) sum += step(cache, sequences, tokens, n);
  const double seconds = processor_seconds() - begin;
  printf("{\"nanoseconds\": %.3f, \"sum\": %lld}\n", 1e9 * seconds / ((double)n * steps),
         (long long)sum);
  free(sequences);
  free(tokens);
  free(prompt);
  kvfolio_manager_destroy(cache);
  return 0;
}
