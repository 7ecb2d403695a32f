// SPDX-License-Identifier: Apache-2.0
//
// A prompt that leaves the cache comes back: from host memory, from a tier of the caller's own, and
// from a snapshot in another pool. Prints what tiers_story.cc prints with the C++ interface.
// Besides, each function of the header is called (families.c); one that was not fails the test.

#include "tiers_families.h"

#include "calls.h"

enum { kTokens = 10 };
static int32_t prompt[kTokens];

static void print_ready(kvfolio_manager* manager, const char* from, kvfolio_sequence_ready ready) {
  printf("%s: %d of %d tokens, %s, %016llx\n", from, ready.cached_tokens, kTokens,
         kvfolio_load_end_name(ready.why),
         (unsigned long long)toy_hash(manager, ready.sequence, ready.cached_tokens));
}

static void come_back(kvfolio_manager* manager, kvfolio_offload* offload, const char* from) {
  const kvfolio_sequence_ready ready = toy_open(offload, prompt, kTokens);
  print_ready(manager, from, ready);
  toy_compute(manager, ready.sequence, prompt, ready.cached_tokens, kTokens);
  MUST(kvfolio_close(manager, ready.sequence, &g_error));
  MUST(kvfolio_offload_check_invariants(offload, &g_error));
  MUST(kvfolio_check_invariants(manager, &g_error));
}

// Through the arena, and with another manager through the tier.
static void offload(ToyTier* toy) {
  const kvfolio_tier_functions functions = toy_functions(toy);
  kvfolio_tier* tier = NULL;
  MUST(kvfolio_tier_create(&functions, &tier, &g_error));
  kvfolio_manager* manager = toy_manager(16);
  kvfolio_offload* offload = toy_offload(manager, tier);
  toy_say(manager, prompt, kTokens);
  toy_settle(offload);
  kvfolio_offload_counters counters = {.struct_size = sizeof counters};
  MUST(kvfolio_offload_get_counters(offload, &counters, &g_error));
  printf("stored %d in the arena, %d in the tier of %d\n", (int)counters.stores,
         (int)counters.tier_stores, toy->num_records);
  int32_t gone = 0;
  MUST(kvfolio_evict(manager, 0, 100, NULL, 0, &gone, &g_error));
  printf("%d blocks evicted\n", gone);
  come_back(manager, offload, "from the arena");

  int64_t blocks = 0;
  MUST(kvfolio_offload_forget_root(offload, NULL, &blocks, NULL, &g_error));
  const kvfolio_sequence_ready none = toy_open(offload, prompt, kTokens);
  printf("forgotten: %d blocks, %d tokens, epoch %d\n", (int)blocks, none.cached_tokens,
         (int)kvfolio_offload_epoch(offload));
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
  kvfolio_tier_destroy(tier);

  // Another process would make all of this anew, over the same records.
  toy->closed = 0;
  MUST(kvfolio_tier_create(&functions, &tier, &g_error));
  manager = toy_manager(9);
  offload = toy_offload(manager, tier);
  come_back(manager, offload, "from the tier");
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
  kvfolio_tier_destroy(tier);
}

static kvfolio_sequence open_named(kvfolio_manager* manager, uint64_t caller_id) {
  const kvfolio_open_options options = {
      .struct_size = sizeof options, .has_caller_id = 1, .caller_id = caller_id};
  kvfolio_sequence sequence = 0;
  kvfolio_found found = {.struct_size = sizeof found};
  MUST(
      kvfolio_open(manager, NULL, prompt, kTokens, NULL, 0, &options, &sequence, &found, &g_error));
  toy_compute(manager, sequence, prompt, found.cached_tokens, kTokens);
  return sequence;
}

static void save_and_restore(void) {
  const kvfolio_group_spec group = small_group();
  kvfolio_identity* identity = NULL;
  MUST(kvfolio_identity_create(&kToy, &group, 1, &identity, &g_error));
  kvfolio_manager* manager = toy_manager(16);
  const kvfolio_sequence sequence = open_named(manager, 7);
  ToyFile file = {NULL, 0};
  const kvfolio_byte_sink sink = {.struct_size = sizeof sink, .context = &file, .write = toy_write};
  kvfolio_save_list* list = NULL;
  kvfolio_save_stats saved = {.struct_size = sizeof saved};
  MUST(kvfolio_save_list_create(&list, &g_error));
  MUST(kvfolio_save_list_add(list, sequence, NULL, prompt, kTokens, NULL, 0, &g_error));
  MUST(kvfolio_save(manager, identity, &sink, list, NULL, &saved, &g_error));
  kvfolio_save_list_destroy(list);
  kvfolio_manager_destroy(manager);
  printf("saved %d records, %d tokens, %d sequences: %016llx\n", (int)saved.records,
         (int)saved.tokens, (int)saved.sequences,
         (unsigned long long)toy_hash_bytes(1, file.bytes, (size_t)file.size));

  manager = toy_manager(5);
  const kvfolio_byte_source source = {
      .struct_size = sizeof source, .context = &file, .size = file.size, .read_at = toy_read_at};
  kvfolio_restored* restored = NULL;
  kvfolio_restore_stats stats = {.struct_size = sizeof stats};
  kvfolio_restored_sequence back = {.struct_size = sizeof back};
  MUST(kvfolio_restore(manager, identity, &source, &restored, &g_error));
  MUST(kvfolio_restored_stats(restored, &stats, &g_error));
  MUST(kvfolio_restored_get(restored, 0, &back, &g_error));
  CHECK(back.tokens.size == kTokens && memcmp(back.tokens.data, prompt, sizeof prompt) == 0);
  printf("restored %d of %d records: sequence %d with %d tokens, %016llx\n",
         (int)stats.records_loaded, (int)stats.records, (int)back.caller_id, back.length,
         (unsigned long long)toy_hash(manager, back.sequence, back.length));
  kvfolio_restored_destroy(restored);
  MUST(kvfolio_check_invariants(manager, &g_error));
  kvfolio_manager_destroy(manager);

  // With a key nothing is believed that was saved without one.
  manager = toy_manager(5);
  const uint8_t secret[32] = {1};
  const kvfolio_restore_options keyed = {.struct_size = sizeof keyed, .record_key = secret};
  MUST(kvfolio_restore_with(manager, identity, &source, &keyed, &restored, &g_error));
  MUST(kvfolio_restored_stats(restored, &stats, &g_error));
  CHECK(stats.records_loaded == 0);
  kvfolio_restored_destroy(restored);
  kvfolio_manager_destroy(manager);
  kvfolio_identity_destroy(identity);
  free(file.bytes);
}

int main(void) {
  for (int32_t i = 0; i < kTokens; ++i) prompt[i] = 100 + i;
  static ToyTier tier;
  offload(&tier);
  CHECK(tier.destroyed == 2);
  toy_free_records(&tier);
  save_and_restore();

  call_identity();
  call_tiers();
  call_offload();
  call_files();
  call_records();
  int missing = 0;
  for (int i = 0; i < kNumFunctions; ++i) {
    if (g_called[i]) continue;
    fprintf(stderr, "%s() is called nowhere in this test\n", kFunctions[i]);
    missing = 1;
  }
  return missing;
}
