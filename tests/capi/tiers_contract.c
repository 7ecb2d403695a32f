// SPDX-License-Identifier: Apache-2.0
//
// Sentences of kvfolio_tiers.h that are about C alone: who is told what and when, functions of the
// caller that lie or fail, ends in the wrong order.

#include <limits.h>

#include "tiers_toy.h"

static const int32_t kTokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int32_t kOther[8] = {11, 12, 13, 14, 15, 16, 17, 18};

static kvfolio_sequence open_pending(kvfolio_offload* offload, const int32_t* tokens) {
  kvfolio_sequence sequence = 0;
  int32_t pending = 0;
  MUST(kvfolio_offload_open(offload, NULL, tokens, 8, NULL, 0, NULL, &sequence, NULL, &pending,
                            &g_error));
  CHECK(pending == 1);
  return sequence;
}

// Two prompts in the arena and none in the cache.
static kvfolio_offload* offload_of_two(kvfolio_manager* manager) {
  kvfolio_offload* const offload = toy_offload(manager, NULL);
  toy_say(manager, kTokens, 8);
  toy_say(manager, kOther, 8);
  toy_settle(offload);
  MUST(kvfolio_evict(manager, 0, 100, NULL, 0, NULL, &g_error));
  return offload;
}

static void who_is_ready_waits_for_room_in_the_array(void) {
  kvfolio_manager* const manager = toy_manager(16);
  kvfolio_offload* const offload = offload_of_two(manager);
  const kvfolio_sequence a = open_pending(offload, kTokens);
  const kvfolio_sequence b = open_pending(offload, kOther);
  uint64_t now_us = 30000;
  for (int i = 0; i < 20; ++i) CHECK(kvfolio_offload_poll(offload, ++now_us, NULL, 0) == 0);
  CHECK(kvfolio_offload_idle(offload) == 0);
  kvfolio_sequence_ready ready[2] = {{0, 0, 0}, {0, 0, 0}};
  CHECK(kvfolio_offload_poll(offload, ++now_us, ready, 1) == 1);
  CHECK(ready[0].sequence == a && ready[0].cached_tokens == 7 && ready[0].why == KVFOLIO_LOADED);
  CHECK(ready[1].sequence == 0);
  CHECK(kvfolio_offload_poll(offload, ++now_us, ready, 2) == 1);
  CHECK(ready[0].sequence == b);
  CHECK(kvfolio_offload_poll(offload, ++now_us, ready, 2) == 0);
  toy_settle(offload);
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
}

static void who_has_gone_is_not_told(void) {
  kvfolio_manager* const manager = toy_manager(16);
  kvfolio_offload* const offload = offload_of_two(manager);
  const kvfolio_sequence a = open_pending(offload, kTokens);
  const kvfolio_sequence b = open_pending(offload, kOther);
  uint64_t now_us = 30000;
  for (int i = 0; i < 20; ++i) CHECK(kvfolio_offload_poll(offload, ++now_us, NULL, 0) == 0);
  MUST(kvfolio_close(manager, a, &g_error));
  int32_t length = 0;
  MUST(kvfolio_offload_cancel(offload, b, &length, &g_error));
  CHECK(length == 7);  // it was loaded
  kvfolio_sequence_ready ready[2];
  CHECK(kvfolio_offload_poll(offload, ++now_us, ready, 2) == 0);
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
}

// Static, so that the leak checker finds what is left on purpose.
static kvfolio_offload* left;
static void an_offload_outlives_its_manager_without_harm(void) {
  kvfolio_manager* const manager = toy_manager(16);
  left = offload_of_two(manager);
  open_pending(left, kTokens);
  kvfolio_manager_destroy(manager);
  kvfolio_sequence sequence = 5;
  kvfolio_sequence_ready ready[2];
  CHECK(kvfolio_offload_open(left, NULL, kTokens, 8, NULL, 0, NULL, &sequence, NULL, NULL,
                             &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
  CHECK(strstr(g_error.message, "destroyed before it") != NULL && sequence == 5);
  CHECK(kvfolio_offload_poll(left, 1, ready, 2) == 0 && kvfolio_offload_idle(left) == 0);
  CHECK(kvfolio_offload_cancel(left, 1, NULL, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
  CHECK(kvfolio_offload_reset(left, NULL, NULL, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
  CHECK(kvfolio_offload_forget_root(left, NULL, NULL, NULL, &g_error) ==
        KVFOLIO_ERR_FAILED_PRECONDITION);
  CHECK(kvfolio_offload_check_invariants(left, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
  uint64_t epoch = 9;
  CHECK(kvfolio_offload_epoch(left) == 0);
  CHECK(kvfolio_offload_epochs(left, &epoch, NULL, 0) == -1 && epoch == 9);
  kvfolio_manager* const another = toy_manager(16);
  CHECK(kvfolio_offload_is_of(left, another) == 0);
  kvfolio_manager_destroy(another);
  kvfolio_offload_destroy(left);
}

// ---- functions of the caller ----

static void the_arena_lies_in_memory_of_the_caller(void) {
  TestMemory memory = {0, 0};
  const kvfolio_memory_resource resource = test_resource(&memory);
  kvfolio_manager* const manager = toy_manager(16);
  const kvfolio_offload_options options = {.struct_size = sizeof options, .arena_bytes = 1 << 16};
  kvfolio_offload* offload = NULL;
  MUST(kvfolio_offload_create(manager, &kToy, &options, NULL, 0, &resource, &offload, &g_error));
  CHECK(memory.bytes_out >= 1 << 16);
  kvfolio_offload_destroy(offload);
  CHECK(memory.bytes_out == 0);
  kvfolio_tier* tier = NULL;
  kvfolio_tier* other = NULL;
  MUST(kvfolio_tier_create_memory(manager, 1 << 16, &resource, &tier, &g_error));
  MUST(kvfolio_tier_share(tier, &other, &g_error));
  kvfolio_tier_destroy(tier);
  CHECK(memory.bytes_out >= 1 << 16);
  kvfolio_tier_destroy(other);
  CHECK(memory.bytes_out == 0);
  kvfolio_manager_destroy(manager);
}

// A tier that answers with what it likes. `lie` counts up.
typedef struct {
  int lie;
} Liar;
static int64_t lying_submit(void* context, int32_t op, const kvfolio_tier_item* items,
                            int64_t num_items, uint64_t deadline_us) {
  (void)op, (void)items, (void)deadline_us;
  const int64_t answers[] = {INT64_MAX, -1, INT64_MIN, num_items + 1, num_items};
  return answers[((Liar*)context)->lie++ % 5];
}
static int64_t lying_poll(void* context, uint64_t now_us, kvfolio_tier_done* done,
                          int64_t capacity) {
  (void)now_us;
  const int lie = ((Liar*)context)->lie++;
  for (int64_t i = 0; i < capacity; ++i) {
    done[i].tag = (uint64_t)(lie % 40);
    done[i].result = lie % 3 == 0 ? -1 : lie % 3 == 1 ? INT_MAX : KVFOLIO_TIER_OK;
  }
  const int64_t answers[] = {INT64_MAX, -1, INT64_MIN, capacity + 1, 1, 0};
  return answers[lie % 6];
}

static void a_tier_that_lies_is_not_believed(void) {
  Liar liar = {0};
  const kvfolio_tier_functions functions = {.struct_size = sizeof functions,
                                            .context = &liar,
                                            .submit = lying_submit,
                                            .poll = lying_poll};
  kvfolio_tier* tier = NULL;
  MUST(kvfolio_tier_create(&functions, &tier, &g_error));
  CHECK(strcmp(kvfolio_tier_name(tier), "caller") == 0 && kvfolio_tier_event_fd(tier) == -1);
  kvfolio_tier_done done[3];
  for (int i = 0; i < 100; ++i) {
    const int64_t n = kvfolio_tier_poll(tier, 1, done, 3);
    CHECK(n >= 0 && n <= 3);
    for (int64_t k = 0; k < n; ++k) {
      CHECK(done[k].result == KVFOLIO_TIER_OK || done[k].result == KVFOLIO_TIER_IO_ERROR);
    }
    const kvfolio_tier_item item = {.tag = 1};
    int64_t accepted = -1;
    MUST(kvfolio_tier_submit(tier, KVFOLIO_TIER_EXISTS, &item, 1, 1, &accepted, &g_error));
    CHECK(accepted == 0 || accepted == 1);
  }
  kvfolio_manager* const manager = toy_manager(16);
  kvfolio_offload* const offload = toy_offload(manager, tier);
  uint64_t now_us = 1000;
  for (int i = 0; i < 200; ++i) {
    const kvfolio_sequence sequence = open_pending(offload, kTokens);
    kvfolio_sequence_ready ready = {0, 0, 0};
    for (int k = 0; k < 1000 && kvfolio_offload_poll(offload, now_us += 500, &ready, 1) == 0; ++k) {
    }
    CHECK(ready.sequence == sequence && ready.cached_tokens == 0);
    MUST(kvfolio_close(manager, sequence, &g_error));
    MUST(kvfolio_check_invariants(manager, &g_error));
    MUST(kvfolio_offload_check_invariants(offload, &g_error));
  }
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
  kvfolio_tier_destroy(tier);
}

// The first write: a snapshot of less than 1 MiB is one.
static int32_t failing_write(void* context, const void* bytes, int64_t num_bytes) {
  (void)bytes, (void)num_bytes;
  return *(const int32_t*)context;
}
static int32_t failing_read(void* context, int64_t offset, void* out, int64_t num_bytes) {
  (void)offset, (void)out, (void)num_bytes;
  return *(const int32_t*)context;
}

static void errors_of_sinks_and_sources_come_back(void) {
  kvfolio_manager* const manager = toy_manager(16);
  kvfolio_offload* const offload = offload_of_two(manager);
  kvfolio_identity* const names = kvfolio_offload_identity(offload);
  toy_say(manager, kTokens, 8);
  const int32_t codes[][2] = {
      {KVFOLIO_ERR_RESOURCE_EXHAUSTED, KVFOLIO_ERR_RESOURCE_EXHAUSTED},
      {KVFOLIO_ERR_UNAVAILABLE, KVFOLIO_ERR_UNAVAILABLE},
      {KVFOLIO_ERR_NO_BLOCKS, KVFOLIO_ERR_UNAVAILABLE},  // it would need a shortage
      {-1, KVFOLIO_ERR_UNAVAILABLE},
      {12345, KVFOLIO_ERR_UNAVAILABLE}};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; ++i) {
    int32_t code = codes[i][0];
    const kvfolio_byte_sink sink = {
        .struct_size = sizeof sink, .context = &code, .write = failing_write};
    CHECK(kvfolio_save(manager, names, &sink, NULL, NULL, NULL, &g_error) == codes[i][1]);
    CHECK(strstr(g_error.message, "the caller's write() returned") != NULL);
    const kvfolio_byte_source source = {
        .struct_size = sizeof source, .context = &code, .size = 1000, .read_at = failing_read};
    kvfolio_restored* none = NULL;
    CHECK(kvfolio_restore(manager, names, &source, &none, &g_error) != 0 && none == NULL);
  }
  MUST(kvfolio_check_invariants(manager, &g_error));
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
}

// ---- tiers ----

// What one manager computed, another one finds.
static void managers_share_a_tier_in_memory(void) {
  kvfolio_manager* const first = toy_manager(16);
  kvfolio_manager* const second = toy_manager(9);
  kvfolio_tier* of_first = NULL;
  kvfolio_tier* of_second = NULL;
  MUST(kvfolio_tier_create_memory(first, 1 << 16, NULL, &of_first, &g_error));
  MUST(kvfolio_tier_share(of_first, &of_second, &g_error));
  kvfolio_offload* const one = toy_offload(first, of_first);
  kvfolio_offload* const two = toy_offload(second, of_second);
  toy_say(first, kTokens, 8);
  toy_settle(one);
  const kvfolio_sequence_ready ready = toy_open(two, kTokens, 8);
  CHECK(ready.cached_tokens == 7 && ready.why == KVFOLIO_LOADED);
  kvfolio_sequence again = 0;
  MUST(kvfolio_open(first, NULL, kTokens, 8, NULL, 0, NULL, &again, NULL, &g_error));
  CHECK(toy_hash(first, again, 7) == toy_hash(second, ready.sequence, 7));
  kvfolio_offload_destroy(one);
  kvfolio_offload_destroy(two);
  kvfolio_tier_destroy(of_first);
  kvfolio_tier_destroy(of_second);
  kvfolio_manager_destroy(first);
  kvfolio_manager_destroy(second);
}

static void a_tier_that_is_off_gets_nothing(void) {
  const int32_t policies[] = {KVFOLIO_WRITE_THROUGH, KVFOLIO_WRITE_SECOND_USE, KVFOLIO_WRITE_OFF};
  for (int i = 0; i < 3; ++i) {
    ToyTier toy;
    memset(&toy, 0, sizeof toy);
    const kvfolio_tier_functions functions = toy_functions(&toy);
    kvfolio_offload_tier tier = {.struct_size = sizeof tier, .policy = policies[i]};
    MUST(kvfolio_tier_create(&functions, &tier.tier, &g_error));
    kvfolio_manager* const manager = toy_manager(16);
    const kvfolio_offload_options options = {.struct_size = sizeof options, .arena_bytes = 1 << 16};
    kvfolio_offload* offload = NULL;
    MUST(kvfolio_offload_create(manager, &kToy, &options, &tier, 1, NULL, &offload, &g_error));
    toy_say(manager, kTokens, 8);
    toy_settle(offload);
    CHECK(toy.num_records == (policies[i] == KVFOLIO_WRITE_THROUGH ? 2 : 0));
    kvfolio_offload_destroy(offload);
    kvfolio_manager_destroy(manager);
    kvfolio_tier_destroy(tier.tier);
    toy_free_records(&toy);
  }
}

int main(void) {
  who_is_ready_waits_for_room_in_the_array();
  who_has_gone_is_not_told();
  an_offload_outlives_its_manager_without_harm();
  the_arena_lies_in_memory_of_the_caller();
  a_tier_that_lies_is_not_believed();
  errors_of_sinks_and_sources_come_back();
  managers_share_a_tier_in_memory();
  a_tier_that_is_off_gets_nothing();
  return 0;
}
