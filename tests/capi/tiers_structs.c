// SPDX-License-Identifier: Apache-2.0
//
// The structs of kvfolio_tiers.h: cases for tests/capi/struct_checks.c.

#include "struct_cases.h"

#include "tiers_toy.h"

static const int32_t kTokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
static kvfolio_group_spec group;
static kvfolio_manager* manager;
static kvfolio_sequence sequence;
static kvfolio_offload* offload;
static kvfolio_manager* other_manager;
static kvfolio_offload* with_tier;
static kvfolio_tier* used_tier;
static kvfolio_identity* names;
static kvfolio_tier* tier;
static kvfolio_restored* restored;
static ToyFile file;
static ToyTier toy;
// Cases with addresses that only run time knows.
static kvfolio_tier_functions functions;
static kvfolio_offload_tier one_tier;
static kvfolio_byte_sink one_sink;
static kvfolio_byte_source one_source;
static ToyFile written;

void make_subjects(void) {
  CHECK(system("rm -rf kvfolio_tiers_capi_structs") == 0);
  group = small_group();
  manager = toy_manager(16);
  offload = toy_offload(manager, NULL);
  names = kvfolio_offload_identity(offload);
  const kvfolio_open_options options = {
      .struct_size = sizeof options, .has_caller_id = 1, .caller_id = 9};
  MUST(kvfolio_open(manager, NULL, kTokens, 8, NULL, 0, &options, &sequence, NULL, &g_error));
  toy_compute(manager, sequence, kTokens, 0, 8);
  toy_settle(offload);
  MUST(kvfolio_tier_create_memory(manager, 1 << 16, NULL, &tier, &g_error));
  // Its counters are not all 0.
  other_manager = toy_manager(16);
  MUST(kvfolio_tier_share(tier, &used_tier, &g_error));
  with_tier = toy_offload(other_manager, used_tier);
  toy_say(other_manager, kTokens, 8);
  toy_settle(with_tier);
  const kvfolio_byte_sink sink = {.struct_size = sizeof sink, .context = &file, .write = toy_write};
  kvfolio_save_list* list = NULL;
  MUST(kvfolio_save_list_create(&list, &g_error));
  MUST(kvfolio_save_list_add(list, sequence, NULL, kTokens, 8, NULL, 0, &g_error));
  MUST(kvfolio_save(manager, names, &sink, list, NULL, NULL, &g_error));
  kvfolio_save_list_destroy(list);
  const kvfolio_byte_source source = {
      .struct_size = sizeof source, .context = &file, .size = file.size, .read_at = toy_read_at};
  kvfolio_manager* const target = toy_manager(16);
  MUST(kvfolio_restore(target, names, &source, &restored, &g_error));
  kvfolio_manager_destroy(target);

  functions = toy_functions(&toy);
  one_tier = (kvfolio_offload_tier){.struct_size = sizeof one_tier,
                                    .policy = KVFOLIO_WRITE_SECOND_USE,
                                    .tier = tier,
                                    .store_bytes_max = 1,
                                    .load_bytes_max = 2};
  one_source = source;
  one_sink = sink;
  one_sink.context = &written;
}

void destroy_subjects(void) {
  MUST(kvfolio_offload_check_invariants(offload, &g_error));
  kvfolio_restored_destroy(restored);
  kvfolio_offload_destroy(with_tier);
  kvfolio_tier_destroy(used_tier);
  kvfolio_manager_destroy(other_manager);
  kvfolio_tier_destroy(tier);
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
  toy_free_records(&toy);
  free(file.bytes);
  CHECK(system("rm -rf kvfolio_tiers_capi_structs") == 0);
}

// ---- inputs ----

static const kvfolio_model_identity kModel = {.struct_size = sizeof kModel,
                                              .shard = 1,
                                              .num_shards = 2,
                                              .pipeline_rank = 2,
                                              .num_pipeline_ranks = 3,
                                              .context_rank = 3,
                                              .num_context_ranks = 4,
                                              .model = {"a", 1},
                                              .weights = {"b", -1},
                                              .tokenizer = {"c\0d", 3},
                                              .model_dtype = {"e", -1},
                                              .positions = {"f", -1},
                                              .engine = {"g", -1},
                                              .layers = {"7", -1},
                                              .scales = {"i", -1}};
static void run_model(void* given, char* text) {
  kvfolio_identity* made = NULL;
  const int32_t code = kvfolio_identity_create(given, &group, 1, &made, &g_error);
  kvfolio_digest layout = {{0}};
  if (code == 0) MUST(kvfolio_identity_namespace(made, 0, &layout, &g_error));
  say(text, code, "%llx", (unsigned long long)toy_hash_bytes(1, &layout, sizeof layout));
  kvfolio_identity_destroy(made);
}

static void run_functions(void* given, char* text) {
  memset(&toy, 0, sizeof toy);
  kvfolio_tier* made = NULL;
  const int32_t code = kvfolio_tier_create(given, &made, &g_error);
  int64_t most = 0;
  int64_t alignment = 0;
  kvfolio_tier_health health = {.struct_size = sizeof health};
  if (code == 0) {
    MUST(kvfolio_tier_limits(made, &most, &alignment, &g_error));
    toy.num_records = 3;
    MUST(kvfolio_tier_get_health(made, &health, &g_error));
    toy.num_records = 0;
    MUST(kvfolio_tier_close(made, 0, &g_error));
  }
  const int fd = kvfolio_tier_event_fd(made);
  char name[16] = "";
  if (made != NULL) snprintf(name, sizeof name, "%s", kvfolio_tier_name(made));
  kvfolio_tier_destroy(made);
  say(text, code, "%s %d %d %d %d %d %d", name, (int)most, (int)alignment, (int)health.stores_ok,
      fd, toy.closed, toy.destroyed);
}

static void run_offload_tier(void* given, char* text) {
  const kvfolio_offload_options options = {.struct_size = sizeof options, .arena_bytes = 1 << 16};
  kvfolio_manager* const other = toy_manager(16);
  kvfolio_offload* made = NULL;
  const int32_t code =
      kvfolio_offload_create(other, &kToy, &options, given, 1, NULL, &made, &g_error);
  kvfolio_offload_counters counters = {.struct_size = sizeof counters};
  if (code == 0) {
    // Through, on the second use, and how much in flight: seen from what is stored.
    toy_say(other, kTokens, 8);
    kvfolio_sequence_ready ready[1];
    for (uint64_t i = 0; i < 20; ++i) kvfolio_offload_poll(made, 1000 + i, ready, 1);
    MUST(kvfolio_offload_get_counters(made, &counters, &g_error));
  }
  say(text, code, "%d %d", (int)counters.tier_stores, (int)counters.tier_stores_dropped);
  kvfolio_offload_destroy(made);
  kvfolio_manager_destroy(other);
}

static const kvfolio_root_epoch kForgotten = {.root = {{1, 2, 3}}, .epoch = 77};
static const kvfolio_offload_options kOffload = {.struct_size = sizeof kOffload,
                                                 .arena_bytes = 1 << 15,
                                                 .bytes_per_poll = 600,
                                                 .timeout_us = 5,
                                                 .copy_timeout_us = 6,
                                                 .load_bytes_per_s = 1,
                                                 .prefill_tokens_per_s = 1,
                                                 .epoch = 12,
                                                 .root_epochs = &kForgotten,
                                                 .num_root_epochs = 1};
static void run_offload(void* given, char* text) {
  kvfolio_manager* const other = toy_manager(16);
  kvfolio_offload* made = NULL;
  const int32_t code = kvfolio_offload_create(other, &kToy, given, NULL, 0, NULL, &made, &g_error);
  kvfolio_arena_stats stats = {.struct_size = sizeof stats};
  kvfolio_arena_stats full = {.struct_size = sizeof full};
  if (code == 0) {
    toy_say(other, kTokens, 8);
    kvfolio_sequence_ready ready[1];
    kvfolio_offload_poll(made, 1000, ready, 1);
    MUST(kvfolio_offload_arena(made, &stats, &g_error));
    for (uint64_t i = 0; i < 20; ++i) kvfolio_offload_poll(made, 1000 + i, ready, 1);
    MUST(kvfolio_offload_arena(made, &full, &g_error));
  }
  say(text, code, "%d %d %d %d", (int)stats.bytes, (int)stats.records, (int)full.records,
      (int)kvfolio_offload_epoch(made));
  kvfolio_offload_destroy(made);
  kvfolio_manager_destroy(other);
}

// Takes what was written away, and returns how much it was.
static int64_t take_written(void) {
  const int64_t size = written.size;
  free(written.bytes);
  written = (ToyFile){NULL, 0};
  return size;
}

static void run_sink(void* given, char* text) {
  const int32_t code = kvfolio_save(manager, names, given, NULL, NULL, NULL, &g_error);
  say(text, code, "%d", (int)take_written());
}

static void run_source(void* given, char* text) {
  kvfolio_manager* const target = toy_manager(16);
  kvfolio_restored* made = NULL;
  const int32_t code = kvfolio_restore(target, names, given, &made, &g_error);
  say(text, code, "%d", kvfolio_restored_num_sequences(made));
  kvfolio_restored_destroy(made);
  kvfolio_manager_destroy(target);
}

static const uint8_t kSecret[KVFOLIO_RECORD_KEY_BYTES] = {1};
static const uint8_t kAccepted[KVFOLIO_RECORD_KEY_BYTES] = {2};
static const kvfolio_disk_options kDisk = {.struct_size = sizeof kDisk,
                                           .engine = KVFOLIO_DISK_THREADS,
                                           .bytes = 1 << 22,
                                           .segment_bytes = 1 << 18,
                                           .num_threads = 1,
                                           .queue_depth = 4,
                                           .no_direct = 1,
                                           .queued_bytes_max = 1 << 20,
                                           .scrub_bytes_per_s = 1,
                                           .items_max = 100,
                                           .open_files_max = 9,
                                           .record_key = kSecret,
                                           .accepted_record_key = kAccepted};
static void run_disk(void* given, char* text) {
  kvfolio_tier* made = NULL;
  const int32_t code = kvfolio_tier_open_disk("kvfolio_tiers_capi_structs", given, &made, &g_error);
  say(text, code, "%s", kvfolio_tier_name(made) ? kvfolio_tier_name(made) : "");
  kvfolio_tier_destroy(made);
}

// No server is asked: it is seen from the limits, and from errors, that fields were read.
static const kvfolio_redis_tier_options kRedis = {.struct_size = sizeof kRedis,
                                                  .items_max = 3,
                                                  .servers = "127.0.0.1:1",
                                                  .user = "u",
                                                  .password = "p",
                                                  .key_prefix = "k:",
                                                  .tls_server_name = "s",
                                                  .ttl_ms = 1,
                                                  .record_bytes_max = 1000,
                                                  .bytes_in_flight_max = 2,
                                                  .bytes_per_poll = 3,
                                                  .connect_timeout_us = 4,
                                                  .stall_timeout_us = 5,
                                                  .breaker_us_min = 6,
                                                  .breaker_us_max = 7,
                                                  .record_key = kSecret,
                                                  .accepted_record_key = kAccepted};
static void run_redis(void* given, char* text) {
  kvfolio_tier* made = NULL;
  const int32_t code = kvfolio_tier_create_redis(given, &made, &g_error);
  if (code == KVFOLIO_ERR_UNSUPPORTED) {
    say(text, 0, "built without hiredis");
    return;
  }
  int64_t most = 0;
  int64_t accepted = 0;
  if (code == 0) {
    MUST(kvfolio_tier_limits(made, &most, NULL, &g_error));
    const kvfolio_tier_item items[4] = {{.tag = 0}, {.tag = 1}, {.tag = 2}, {.tag = 3}};
    MUST(kvfolio_tier_submit(made, KVFOLIO_TIER_EXISTS, items, 4, 1, &accepted, &g_error));
  }
  say(text, code, "%d %d", (int)most, (int)accepted);
  kvfolio_tier_destroy(made);
}

static const kvfolio_save_options kSave = {
    .struct_size = sizeof kSave, .no_prefix_cache = 1, .record_key = kSecret};
static void run_save(void* given, char* text) {
  kvfolio_save_stats stats = {.struct_size = sizeof stats};
  const int32_t code = kvfolio_save(manager, names, &one_sink, NULL, given, &stats, &g_error);
  say(text, code, "%d %d", (int)stats.records, (int)take_written());
}

static const kvfolio_restore_options kRestore = {
    .struct_size = sizeof kRestore, .record_key = kSecret, .accepted_record_key = kAccepted};
static void run_restore(void* given, char* text) {
  kvfolio_manager* const target = toy_manager(16);
  kvfolio_restored* made = NULL;
  const int32_t code = kvfolio_restore_with(target, names, &one_source, given, &made, &g_error);
  kvfolio_restore_stats stats = {.struct_size = sizeof stats};
  if (code == 0) MUST(kvfolio_restored_stats(made, &stats, &g_error));
  say(text, code, "%d %d", (int)stats.records_loaded, (int)stats.records_refused);
  kvfolio_restored_destroy(made);
  kvfolio_manager_destroy(target);
}

static const kvfolio_foreign_model kForeign = {.struct_size = sizeof kForeign,
                                               .num_groups = 2,
                                               .shard = 1,
                                               .num_shards = 2,
                                               .engine = {"e", 1},
                                               .model = {"m", 1},
                                               .weights = {"w", 1},
                                               .model_dtype = {"d", 1},
                                               .hash = {"h", 1},
                                               .hash_seed = {"s", 1},
                                               .layout = {"l", 1},
                                               .scales = {"c", 1}};
static void run_foreign(void* given, char* text) {
  kvfolio_foreign_identity* made = NULL;
  kvfolio_tier_key key = {{0}};
  const int32_t code = kvfolio_foreign_identity_create(given, &made, &g_error);
  if (code == 0) MUST(kvfolio_foreign_identity_key(made, 0, NULL, NULL, 0, &key, &g_error));
  say(text, code, "%02x%02x %02x", key.bytes[8], key.bytes[9], key.bytes[24]);
  kvfolio_foreign_identity_destroy(made);
}

static const kvfolio_record_info kInfo = {.struct_size = sizeof kInfo,
                                          .key = {{1, 2}},
                                          .layout = {{3}},
                                          .payload_bytes = 5,
                                          .begin = 6,
                                          .end = 7,
                                          .epoch = 8,
                                          .writer = 9,
                                          .owner = 10};
static void run_seal(void* given, char* text) {
  uint8_t header[KVFOLIO_RECORD_HEADER_BYTES] = {0};
  const int32_t code = kvfolio_record_seal(NULL, given, "bytes", header, &g_error);
  say(text, code, "%02x%02x%02x%02x", header[188], header[189], header[190], header[191]);
}

// ---- outputs ----

static void run_health(void* given, char* text) {
  say(text, kvfolio_tier_get_health(tier, given, &g_error), "");
}
static void run_disk_stats(void* given, char* text) {
  kvfolio_tier* made = NULL;
  MUST(kvfolio_tier_open_disk("kvfolio_tiers_capi_structs", &kDisk, &made, &g_error));
  say(text, kvfolio_tier_disk_stats(made, given, &g_error), "");
  kvfolio_tier_destroy(made);
}
#ifndef KVFOLIO_WITHOUT_HIREDIS
static void run_redis_counters(void* given, char* text) {
  kvfolio_tier* made = NULL;
  MUST(kvfolio_tier_create_redis(&kRedis, &made, &g_error));
  say(text, kvfolio_tier_redis_counters(made, given, &g_error), "");
  kvfolio_tier_destroy(made);
}
static const kvfolio_redis_tier_counters kRedisCounters = {.struct_size = sizeof kRedisCounters};
#endif
static void run_left(void* given, char* text) {
  say(text, kvfolio_offload_drain(offload, 1, given, &g_error), "");
}
static void run_counters(void* given, char* text) {
  say(text, kvfolio_offload_get_counters(offload, given, &g_error), "");
}
static void run_tier_counters(void* given, char* text) {
  say(text, kvfolio_offload_get_tier_counters(with_tier, 0, given, &g_error), "");
}
static void run_arena(void* given, char* text) {
  say(text, kvfolio_offload_arena(offload, given, &g_error), "");
}
static void run_save_stats(void* given, char* text) {
  say(text, kvfolio_save(manager, names, &one_sink, NULL, NULL, given, &g_error), "");
  take_written();
}
static void run_restore_stats(void* given, char* text) {
  say(text, kvfolio_restored_stats(restored, given, &g_error), "");
}
static void run_restored_sequence(void* given, char* text) {
  say(text, kvfolio_restored_get(restored, 0, given, &g_error), "");
}

static void run_read(void* given, char* text) {
  uint8_t header[KVFOLIO_RECORD_HEADER_BYTES] = {0};
  MUST(kvfolio_record_seal(NULL, &kInfo, "bytes", header, &g_error));
  say(text, kvfolio_record_read(header, given, &g_error), "");
}

static const kvfolio_record_info kSeen = {.struct_size = sizeof kSeen};
static const kvfolio_tier_health kHealth = {.struct_size = sizeof kHealth};
static const kvfolio_disk_stats kDiskStats = {.struct_size = sizeof kDiskStats};
static const kvfolio_offload_left kLeft = {.struct_size = sizeof kLeft};
static const kvfolio_offload_counters kCounters = {.struct_size = sizeof kCounters};
static const kvfolio_offload_tier_counters kTierCounters = {.struct_size = sizeof kTierCounters};
static const kvfolio_arena_stats kArena = {.struct_size = sizeof kArena};
static const kvfolio_save_stats kSaveStats = {.struct_size = sizeof kSaveStats};
static const kvfolio_restore_stats kRestoreStats = {.struct_size = sizeof kRestoreStats};
static const kvfolio_restored_sequence kRestored = {.struct_size = sizeof kRestored};

const StructCase kStructCases[] = {
    {"kvfolio_model_identity", "create", &kModel, sizeof kModel, kPointersInput, run_model},
    {"kvfolio_tier_functions", "create", &functions, sizeof functions, kPointersInput,
     run_functions},
    {"kvfolio_offload_tier", "create", &one_tier, sizeof one_tier, kPointersInput,
     run_offload_tier},
    {"kvfolio_offload_options", "create", &kOffload, sizeof kOffload, kInput, run_offload},
    {"kvfolio_byte_sink", "save", &one_sink, sizeof one_sink, kPointersInput, run_sink},
    {"kvfolio_byte_source", "restore", &one_source, sizeof one_source, kPointersInput, run_source},
    {"kvfolio_save_options", "save", &kSave, sizeof kSave, kPointersInput, run_save},
    {"kvfolio_restore_options", "restore", &kRestore, sizeof kRestore, kPointersInput, run_restore},
    {"kvfolio_foreign_model", "create", &kForeign, sizeof kForeign, kPointersInput, run_foreign},
    {"kvfolio_record_info", "seal", &kInfo, sizeof kInfo, kInput, run_seal},
    {"kvfolio_record_info", "read", &kSeen, sizeof kSeen, kOutput, run_read},
    {"kvfolio_tier_health", "health", &kHealth, sizeof kHealth, kOutput, run_health},
    {"kvfolio_disk_options", "open_disk", &kDisk, sizeof kDisk, kPointersInput, run_disk},
    {"kvfolio_disk_stats", "disk_stats", &kDiskStats, sizeof kDiskStats, kOutput, run_disk_stats},
    {"kvfolio_redis_tier_options", "create_redis", &kRedis, sizeof kRedis, kPointersInput,
     run_redis},
#ifndef KVFOLIO_WITHOUT_HIREDIS
    {"kvfolio_redis_tier_counters", "redis_counters", &kRedisCounters, sizeof kRedisCounters,
     kOutput, run_redis_counters},
#endif
    {"kvfolio_offload_left", "drain", &kLeft, sizeof kLeft, kOutput, run_left},
    {"kvfolio_offload_counters", "counters", &kCounters, sizeof kCounters, kOutput, run_counters},
    {"kvfolio_offload_tier_counters", "tier_counters", &kTierCounters, sizeof kTierCounters,
     kOutput, run_tier_counters},
    {"kvfolio_arena_stats", "arena", &kArena, sizeof kArena, kOutput, run_arena},
    {"kvfolio_save_stats", "save", &kSaveStats, sizeof kSaveStats, kOutput, run_save_stats},
    {"kvfolio_restore_stats", "stats", &kRestoreStats, sizeof kRestoreStats, kOutput,
     run_restore_stats},
    {"kvfolio_restored_sequence", "get", &kRestored, sizeof kRestored, kOutput,
     run_restored_sequence},
};
const int kNumStructCases = sizeof kStructCases / sizeof kStructCases[0];

// Without hiredis no tier has these counters.
static int has_no_case(const char* name) {
#ifdef KVFOLIO_WITHOUT_HIREDIS
  return strcmp(name, "kvfolio_redis_tier_counters") == 0;
#else
  (void)name;
  return 0;
#endif
}

int main(void) { return check_struct_cases(has_no_case); }
