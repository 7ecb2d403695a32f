// SPDX-License-Identifier: Apache-2.0
//
// The scheduler of an inference engine in C: continuous batching with prefix reuse and preemption.
// Eight requests share a long instruction; the pool is too small for all of them. The "model" is
// one layer of attention, whose output chooses the next token, so every answer depends on every
// token in the cache. The same requests run again one at a time without a prefix cache: the tokens
// must be the same.

#include <stdio.h>
#include <stdlib.h>

#include "kvfolio/kvfolio.h"

enum {
  kRequests = 8,
  kInstruction = 40,
  kPrompt = 52,
  kTokens = 76,
  kHeadDim = 16,
  kMostRows = 512
};

typedef struct {
  int32_t tokens[kTokens];
  int32_t size;
  kvfolio_sequence sequence;  // 0: it waits
} Request;

typedef struct {
  kvfolio_manager* manager;
  kvfolio_view* view;
  void* workspace;
  int64_t workspace_bytes;
  int64_t preemptions;
} Engine;

static kvfolio_error error = KVFOLIO_ERROR_INIT;
static void must(int32_t code) {
  if (code == KVFOLIO_OK) return;
  fprintf(stderr, "%s: %s\n", kvfolio_code_name(code), error.message);
  exit(1);
}

static Engine make_engine(int32_t num_blocks, int32_t no_prefix_cache) {
  const kvfolio_group_spec group = {.struct_size = sizeof group,
                                    .head_dim_k = kHeadDim,
                                    .head_dim_v = kHeadDim,
                                    .num_blocks = num_blocks};
  const kvfolio_manager_options options = {.struct_size = sizeof options,
                                           .max_sequences = kRequests,
                                           .no_prefix_cache = no_prefix_cache};
  Engine e = {0};
  kvfolio_storage* storage = NULL;
  must(kvfolio_storage_create(&group, 1, NULL, &storage, &error));
  must(kvfolio_manager_create_with_storage(&storage, &options, &e.manager, &error));
  must(kvfolio_view_create(kvfolio_manager_storage(e.manager), 0, -1, &e.view, &error));
  must(kvfolio_attention_workspace_bytes(e.view, 1, kTokens, KVFOLIO_TARGET_AUTO, 1,
                                         &e.workspace_bytes, &error));
  e.workspace = malloc((size_t)e.workspace_bytes);
  return e;
}
static void destroy(Engine* e) {
  must(kvfolio_check_invariants(e->manager, &error));
  free(e->workspace);
  kvfolio_view_destroy(e->view);
  kvfolio_manager_destroy(e->manager);
}

static Request* find(Request* requests, kvfolio_sequence sequence) {
  for (int i = 0; i < kRequests; ++i) {
    if (requests[i].sequence == sequence) return &requests[i];
  }
  return NULL;
}

// The victim waits again; what it has computed stays cached as long as there is room.
static void preempt(Engine* e, Request* requests) {
  const kvfolio_sequence victim = kvfolio_select_victim(e->manager, KVFOLIO_LRU);
  // Those in the open step are no victims: then the last one of the step gives way.
  Request* last = find(requests, victim);
  for (int i = 0; victim == 0 && i < kRequests; ++i) {
    if (requests[i].sequence != 0) last = &requests[i];
  }
  must(kvfolio_preempt(e->manager, last->sequence, &error));
  last->sequence = 0;
  ++e->preemptions;
}

// One token for each running request, then the prompts that fit.
static void append_all(Engine* e, Request* requests) {
  for (int i = 0; i < kRequests; ++i) {
    Request* r = &requests[i];
    while (r->sequence != 0) {
      const int32_t code =
          kvfolio_append(e->manager, r->sequence, &r->tokens[r->size - 1], 1, 0, &error);
      if (code == KVFOLIO_OK) break;
      if (code != KVFOLIO_ERR_NO_BLOCKS) must(code);
      preempt(e, requests);
    }
  }
  for (int i = 0; i < kRequests; ++i) {
    Request* r = &requests[i];
    if (r->sequence != 0 || r->size == kTokens) continue;
    // Asks for a block's worth of tokens more than it needs now; nothing is opened or counted.
    kvfolio_found found = {.struct_size = sizeof found};
    if (kvfolio_admit_prompt(e->manager, NULL, r->tokens, r->size, NULL, 0, NULL, 16, 0, NULL, NULL,
                             0, &error)) {
      continue;
    }
    must(kvfolio_open(e->manager, NULL, r->tokens, r->size, NULL, 0, NULL, &r->sequence, &found,
                      &error));
    must(kvfolio_append(e->manager, r->sequence, r->tokens + found.cached_tokens,
                        r->size - found.cached_tokens, 0, &error));
  }
}

static void step(Engine* e, Request* requests) {
  kvfolio_ticket ticket = 0;
  must(kvfolio_begin_step(e->manager, 0, &ticket, &error));
  append_all(e, requests);
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  kvfolio_group_plan group = {.struct_size = sizeof group};
  must(kvfolio_plan(e->manager, NULL, &plan, &group, 1, &error));
  must(kvfolio_run_copies(e->manager, &error));

  // The model: rows of K, V and Q from token ids and positions.
  static float k[kMostRows * kHeadDim], v[kMostRows * kHeadDim], q[kMostRows * kHeadDim];
  static float out[kMostRows * kHeadDim];
  for (int64_t s = 0; s < plan.num_sequences; ++s) {
    const Request* r = find(requests, plan.sequences[s]);
    for (int32_t t = plan.query_start.data[s]; t < plan.query_start.data[s + 1]; ++t) {
      const int32_t at = plan.kv_lens.data[s] - (plan.query_start.data[s + 1] - t);
      for (int32_t i = 0; i < kHeadDim; ++i) {
        const int32_t mixed = r->tokens[at] * 31 + at * 17 + i * 7;
        k[t * kHeadDim + i] = (float)(mixed % 23 - 11) / 8;
        v[t * kHeadDim + i] = (float)(mixed % 29 - 14) / 8;
        q[t * kHeadDim + i] = (float)(mixed % 19 - 9) / 8;
      }
    }
  }
  const kvfolio_rows rows = {.struct_size = sizeof rows,
                             .num_tokens = plan.num_tokens,
                             .num_heads = 1,
                             .head_dim = kHeadDim};
  must(kvfolio_append_rows(e->view, 0, k, &rows, v, &rows, group.slot_mapping.data,
                           group.slot_mapping.size, &error));
  must(kvfolio_attend(e->view, NULL, (int32_t)plan.num_sequences, plan.query_start.data,
                      plan.kv_lens.data, group.block_table.data, group.block_table_stride, NULL,
                      NULL, q, &rows, out, &rows, NULL, NULL, e->workspace, e->workspace_bytes,
                      NULL, &error));
  must(kvfolio_commit(e->manager, ticket, &error));

  for (int64_t s = 0; s < plan.num_sequences; ++s) {
    Request* r = find(requests, plan.sequences[s]);
    const float* last = out + (plan.query_start.data[s + 1] - 1) * kHeadDim;
    uint32_t next = 0;
    for (int32_t i = 0; i < kHeadDim; ++i) next = next * 3 + (uint32_t)(int32_t)(last[i] * 4096);
    r->tokens[r->size++] = (int32_t)(next % 1000);
    if (r->size < kTokens) continue;
    must(kvfolio_close(e->manager, r->sequence, &error));
    r->sequence = 0;
  }
  must(kvfolio_complete(e->manager, ticket, &error));
}

static int is_done(const Request* requests, int from, int to) {
  for (int i = from; i < to; ++i) {
    if (requests[i].size < kTokens) return 0;
  }
  return 1;
}

int main(void) {
  static Request batched[kRequests], alone[kRequests];
  for (int32_t i = 0; i < kRequests; ++i) {
    for (int32_t t = 0; t < kPrompt; ++t) {
      batched[i].tokens[t] = t < kInstruction ? 7 * t : 500 + 13 * t * (i + 1) % 400;
    }
    batched[i].size = kPrompt;
    alone[i] = batched[i];
  }

  Engine e = make_engine(14, 0);
  int steps = 0;
  for (; !is_done(batched, 0, kRequests); ++steps) step(&e, batched);
  kvfolio_counters counters = {.struct_size = sizeof counters};
  must(kvfolio_get_counters(e.manager, &counters, &error));
  printf("%d requests in %d steps, %d preempted; %d of %d tokens were not computed\n", kRequests,
         steps, (int)e.preemptions, (int)counters.tokens_reused,
         (int)(counters.tokens_reused + counters.tokens_committed));
  destroy(&e);

  for (int i = 0; i < kRequests; ++i) {
    Engine one = make_engine(8, 1);
    Request only[kRequests] = {{{0}, kTokens, 0}};
    for (int j = 1; j < kRequests; ++j) only[j].size = kTokens;
    only[0] = alone[i];
    while (!is_done(only, 0, 1)) step(&one, only);
    for (int32_t t = 0; t < kTokens; ++t) {
      if (only[0].tokens[t] == batched[i].tokens[t]) continue;
      printf("request %d: token %d is not what it is alone\n", i, (int)t);
      return 1;
    }
    destroy(&one);
  }
  printf("every token is the one that its request gives alone\n");
  return 0;
}
