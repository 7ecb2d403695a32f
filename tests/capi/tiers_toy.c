// SPDX-License-Identifier: Apache-2.0

#include "tiers_toy.h"

kvfolio_manager* toy_manager(int32_t num_blocks) {
  kvfolio_group_spec group = small_group();
  group.num_blocks = num_blocks;
  const kvfolio_manager_options options = {
      .struct_size = sizeof options, .max_sequences = 8, .list_findable = 1};
  kvfolio_storage* storage = NULL;
  kvfolio_manager* manager = NULL;
  MUST(kvfolio_storage_create(&group, 1, NULL, &storage, &g_error));
  MUST(kvfolio_storage_fill(storage, 0xff, &g_error));
  MUST(kvfolio_manager_create_with_storage(&storage, &options, &manager, &g_error));
  return manager;
}

uint64_t toy_hash_bytes(uint64_t before, const void* data, size_t bytes) {
  const unsigned char* const at = data;
  for (size_t i = 0; i < bytes; ++i) before = (before ^ at[i]) * 0x100000001b3u;
  return before;
}

// Calls visit for the rows of K and V of each token.
static void for_each_row(kvfolio_manager* manager, kvfolio_sequence sequence, int32_t from,
                         int32_t num_tokens, void (*visit)(void* context, float* row, int32_t p),
                         void* context) {
  kvfolio_view* view = NULL;
  MUST(kvfolio_view_create(kvfolio_manager_storage(manager), 0, -1, &view, &g_error));
  kvfolio_i32s table = {NULL, 0};
  MUST(kvfolio_block_table(manager, sequence, 0, &table, &g_error));
  for (int32_t p = from; p < num_tokens; ++p) {
    visit(context, kvfolio_view_k(view, 0, table.data[p / kBlock], 0, p % kBlock), p);
    visit(context, kvfolio_view_v(view, 0, table.data[p / kBlock], 0, p % kBlock), p);
  }
  kvfolio_view_destroy(view);
}

static void write_row(void* context, float* row, int32_t p) {
  const int32_t* const tokens = context;
  for (int i = 0; i < kDim; ++i) row[i] = (float)(tokens[p] * 8 + i);
}

void toy_compute(kvfolio_manager* manager, kvfolio_sequence sequence, const int32_t* tokens,
                 int32_t from, int32_t num_tokens) {
  kvfolio_ticket step = 0;
  kvfolio_step_plan plan = {.struct_size = sizeof plan};
  MUST(kvfolio_begin_step(manager, 0, &step, &g_error));
  MUST(kvfolio_append(manager, sequence, tokens + from, num_tokens - from, 0, &g_error));
  MUST(kvfolio_plan(manager, NULL, &plan, NULL, 0, &g_error));
  MUST(kvfolio_run_copies(manager, &g_error));
  int32_t copy[64];
  memcpy(copy, tokens, (size_t)num_tokens * sizeof *tokens);
  for_each_row(manager, sequence, from, num_tokens, write_row, copy);
  MUST(kvfolio_finish(manager, step, &g_error));
}

void toy_say(kvfolio_manager* manager, const int32_t* tokens, int32_t num_tokens) {
  kvfolio_sequence sequence = 0;
  kvfolio_found found = {.struct_size = sizeof found};
  MUST(kvfolio_open(manager, NULL, tokens, num_tokens, NULL, 0, NULL, &sequence, &found, &g_error));
  toy_compute(manager, sequence, tokens, found.cached_tokens, num_tokens);
  MUST(kvfolio_close(manager, sequence, &g_error));
}

static void hash_row(void* context, float* row, int32_t p) {
  (void)p;
  uint64_t* const hash = context;
  *hash = toy_hash_bytes(*hash, row, kDim * sizeof *row);
}

uint64_t toy_hash(kvfolio_manager* manager, kvfolio_sequence sequence, int32_t num_tokens) {
  uint64_t hash = 0xcbf29ce484222325u;
  for_each_row(manager, sequence, 0, num_tokens, hash_row, &hash);
  return hash;
}

kvfolio_offload* toy_offload(kvfolio_manager* manager, kvfolio_tier* tier) {
  const kvfolio_offload_options options = {.struct_size = sizeof options, .arena_bytes = 1 << 16};
  const kvfolio_offload_tier tiers = {.struct_size = sizeof tiers, .tier = tier};
  kvfolio_offload* offload = NULL;
  MUST(kvfolio_offload_create(manager, &kToy, &options, &tiers, tier != NULL, NULL, &offload,
                              &g_error));
  return offload;
}

void toy_settle(kvfolio_offload* offload) {
  kvfolio_sequence_ready ready[4];
  uint64_t now_us = 1000;
  for (int i = 0; i < 1000 && !kvfolio_offload_idle(offload); ++i) {
    CHECK(kvfolio_offload_poll(offload, now_us += 10, ready, 4) == 0);
  }
  CHECK(kvfolio_offload_idle(offload) == 1);
}

kvfolio_sequence_ready toy_open(kvfolio_offload* offload, const int32_t* tokens,
                                int32_t num_tokens) {
  kvfolio_sequence_ready ready = {0, 0, -1};
  kvfolio_sequence sequence = 0;
  int32_t pending = 0;
  MUST(kvfolio_offload_open(offload, NULL, tokens, num_tokens, NULL, 0, NULL, &sequence,
                            &ready.cached_tokens, &pending, &g_error));
  ready.sequence = sequence;
  uint64_t now_us = 20000;
  for (int i = 0; pending; ++i) {
    CHECK(i < 1000);
    if (kvfolio_offload_poll(offload, now_us += 10, &ready, 1) == 1) pending = 0;
  }
  CHECK(ready.sequence == sequence);
  return ready;
}

// ---- the tier ----

static int find_record(const ToyTier* tier, const kvfolio_tier_key* key) {
  for (int i = 0; i < tier->num_records; ++i) {
    if (memcmp(&tier->keys[i], key, sizeof *key) == 0) return i;
  }
  return -1;
}

static int32_t perform(ToyTier* tier, int32_t op, const kvfolio_tier_item* item) {
  const int at = find_record(tier, &item->key);
  if (op == KVFOLIO_TIER_EXISTS) return at >= 0 ? KVFOLIO_TIER_OK : KVFOLIO_TIER_MISS;
  if (op == KVFOLIO_TIER_ERASE) {
    if (at >= 0) memset(&tier->keys[at], 0xff, sizeof tier->keys[at]);
    return KVFOLIO_TIER_OK;
  }
  if (op == KVFOLIO_TIER_LOAD) {
    if (at < 0) return KVFOLIO_TIER_MISS;
    if (tier->bytes[at] != item->bytes) return KVFOLIO_TIER_CORRUPT;
    memcpy(item->data, tier->records[at], (size_t)item->bytes);
    return KVFOLIO_TIER_OK;
  }
  if (at >= 0) return KVFOLIO_TIER_OK;
  if (tier->num_records == kRecordsMax) return KVFOLIO_TIER_BUSY;
  const int i = tier->num_records++;
  tier->keys[i] = item->key;
  tier->bytes[i] = item->bytes;
  tier->records[i] = need(malloc((size_t)item->bytes));
  memcpy(tier->records[i], item->data, (size_t)item->bytes);
  return KVFOLIO_TIER_OK;
}

static int64_t toy_submit(void* context, int32_t op, const kvfolio_tier_item* items,
                          int64_t num_items, uint64_t deadline_us) {
  (void)deadline_us;
  ToyTier* const tier = context;
  if (tier->closed) return 0;
  int64_t n = 0;
  for (; n < num_items && tier->num_pending < kPendingMax; ++n) {
    tier->ops[tier->num_pending] = op;
    tier->pending[tier->num_pending++] = items[n];
  }
  return n;
}

static int64_t toy_poll(void* context, uint64_t now_us, kvfolio_tier_done* done, int64_t capacity) {
  (void)now_us;
  ToyTier* const tier = context;
  int64_t n = 0;
  while (n < capacity && tier->num_pending > 0) {
    const int i = --tier->num_pending;  // the last first: no order is promised
    const int32_t result =
        tier->closed ? KVFOLIO_TIER_CLOSED : perform(tier, tier->ops[i], &tier->pending[i]);
    done[n++] = (kvfolio_tier_done){tier->pending[i].tag, result, 0};
  }
  return n;
}

static int32_t toy_event_fd(void* context) {
  (void)context;
  return 77;
}
static void toy_health(void* context, kvfolio_tier_health* out) {
  const ToyTier* const tier = context;
  out->unusable = tier->closed;
  out->stores_ok = (uint64_t)tier->num_records;
}
static int32_t toy_close(void* context, uint64_t deadline_us) {
  (void)deadline_us;
  ((ToyTier*)context)->closed = 1;
  return 0;
}
static void toy_destroy(void* context) { ((ToyTier*)context)->destroyed += 1; }

kvfolio_tier_functions toy_functions(ToyTier* tier) {
  const kvfolio_tier_functions functions = {.struct_size = sizeof functions,
                                            .data_alignment = 64,
                                            .record_bytes_max = 1 << 20,
                                            .name = "toy",
                                            .context = tier,
                                            .submit = toy_submit,
                                            .poll = toy_poll,
                                            .event_fd = toy_event_fd,
                                            .health = toy_health,
                                            .close = toy_close,
                                            .destroy = toy_destroy};
  return functions;
}

void toy_free_records(ToyTier* tier) {
  for (int i = 0; i < tier->num_records; ++i) free(tier->records[i]);
  tier->num_records = 0;
}

// ---- the file ----

int32_t toy_write(void* context, const void* bytes, int64_t num_bytes) {
  ToyFile* const file = context;
  file->bytes = need(realloc(file->bytes, (size_t)(file->size + num_bytes)));
  memcpy(file->bytes + file->size, bytes, (size_t)num_bytes);
  file->size += num_bytes;
  return 0;
}

int32_t toy_read_at(void* context, int64_t offset, void* out, int64_t num_bytes) {
  const ToyFile* const file = context;
  if (offset < 0 || offset + num_bytes > file->size) return KVFOLIO_ERR_CORRUPT;
  memcpy(out, file->bytes + offset, (size_t)num_bytes);
  return 0;
}
