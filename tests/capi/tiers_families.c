// SPDX-License-Identifier: Apache-2.0
//
// Each function, with what it must answer.

#include "tiers_families.h"

#include "calls.h"

static const int32_t kTokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};

static int same_digest(kvfolio_digest a, kvfolio_digest b) { return memcmp(&a, &b, sizeof a) == 0; }

static void name_blocks(kvfolio_identity* names) {
  kvfolio_root* salted = NULL;
  MUST(kvfolio_root_create(NULL, 0, NULL, 0, NULL, 0, "salt", 4, 0, &salted, &g_error));
  kvfolio_digest root, other, hash, with_media;
  MUST(kvfolio_identity_root(names, NULL, 0, &root, &g_error));
  MUST(kvfolio_identity_root(names, salted, 0, &other, &g_error));
  CHECK(!same_digest(root, other));
  MUST(kvfolio_identity_root(names, NULL, 1, &other, &g_error));
  CHECK(!same_digest(root, other));
  kvfolio_root_destroy(salted);

  const kvfolio_media_span image = {
      .struct_size = sizeof image, .begin = 1, .end = 3, .content_id = {1}};
  MUST(kvfolio_identity_next(names, &root, 0, kTokens, 4, NULL, 0, &hash, &g_error));
  MUST(kvfolio_identity_next(names, &root, 0, kTokens, 4, &image, 1, &with_media, &g_error));
  CHECK(!same_digest(hash, with_media));
  kvfolio_tier_key key, again;
  MUST(kvfolio_identity_key(names, 0, &hash, &key, &g_error));
  MUST(kvfolio_identity_key(names, 0, &with_media, &again, &g_error));
  CHECK(memcmp(key.bytes, again.bytes, 24) == 0 && memcmp(&key, &again, sizeof key) != 0);
  CHECK(memcmp(key.bytes + 24, hash.bytes, 32) == 0);  // as tier.h says
}

void call_identity(void) {
  CHECK(kvfolio_tiers_abi_version() == KVFOLIO_TIERS_ABI_VERSION);
  kvfolio_group_spec group = small_group();
  kvfolio_identity* names = NULL;
  MUST(kvfolio_identity_create(&kToy, &group, 1, &names, &g_error));
  CHECK(kvfolio_identity_unit(names) == 4 && kvfolio_identity_num_groups(names) == 1);
  kvfolio_digest model, layout;
  MUST(kvfolio_identity_namespace(names, -1, &model, &g_error));
  MUST(kvfolio_identity_namespace(names, 0, &layout, &g_error));
  CHECK(!same_digest(model, layout));
  kvfolio_text name, value;
  MUST(kvfolio_identity_field(names, 1, &name, &value, &g_error));
  CHECK(name.size == 5 && memcmp(name.data, "model", 5) == 0);
  CHECK(value.size == 3 && memcmp(value.data, "toy", 3) == 0);
  CHECK(kvfolio_identity_num_fields(names) > 20);
  group.num_blocks = 999;
  MUST(kvfolio_identity_check_groups(names, &group, 1, &g_error));
  group.dtype = KVFOLIO_BF16;
  CHECK(kvfolio_identity_check_groups(names, &group, 1, &g_error) == KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "dtype") != NULL);
  name_blocks(names);
  kvfolio_identity_destroy(names);

  // A required field that is empty, by its name; with a size instead of a 0 at its end.
  kvfolio_model_identity poor = kToy;
  poor.tokenizer.size = 0;
  CHECK(kvfolio_identity_create(&poor, &group, 1, &names, &g_error) ==
        KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "tokenizer is empty") != NULL);
}

static kvfolio_tier_done one_item(kvfolio_tier* tier, int32_t op, kvfolio_tier_key key, void* data,
                                  int64_t bytes) {
  const kvfolio_tier_item item = {key, data, bytes, 99};
  int64_t accepted = -1;
  kvfolio_tier_done done = {0, -1, -1};
  MUST(kvfolio_tier_submit(tier, op, &item, 1, 1000, &accepted, &g_error));
  CHECK(accepted == 1);
  CHECK(kvfolio_tier_poll(tier, 1, &done, 1) == 1);
  CHECK(done.tag == 99);
  return done;
}

static void use_tier(kvfolio_tier* tier, int64_t bytes) {
  char* const memory = need(malloc((size_t)bytes + 64));
  char* const data = memory + 64 - (uintptr_t)memory % 64;
  memset(data, 42, (size_t)bytes);
  kvfolio_tier_key key;
  memset(&key, 7, sizeof key);
  CHECK(one_item(tier, KVFOLIO_TIER_EXISTS, key, NULL, 0).result == KVFOLIO_TIER_MISS);
  CHECK(one_item(tier, KVFOLIO_TIER_STORE, key, data, bytes).result == KVFOLIO_TIER_OK);
  memset(data, 0, (size_t)bytes);
  CHECK(one_item(tier, KVFOLIO_TIER_LOAD, key, data, bytes).result == KVFOLIO_TIER_OK);
  CHECK(data[0] == 42 && data[bytes - 1] == 42);
  kvfolio_tier_health health = {.struct_size = sizeof health};
  MUST(kvfolio_tier_get_health(tier, &health, &g_error));
  CHECK(health.unusable == 0 && health.stores_ok == 1);
  free(memory);
}

// As toy_open(), by a clock that waits for a real disk.
static kvfolio_sequence_ready open_from_disk(kvfolio_offload* offload) {
  kvfolio_sequence_ready ready = {0, 0, -1};
  int32_t pending = 0;
  MUST(kvfolio_offload_open(offload, NULL, kTokens, 8, NULL, 0, NULL, &ready.sequence,
                            &ready.cached_tokens, &pending, &g_error));
  while (pending) {
    if (kvfolio_offload_poll(offload, 100000, &ready, 1) == 1) pending = 0;
  }
  return ready;
}

static uint64_t sum_of(const uint64_t* latency) {
  uint64_t sum = 0;
  for (int i = 0; i < KVFOLIO_NUM_LATENCIES; ++i) sum += latency[i];
  return sum;
}

// For use_disk(): the first run stores two records, the second one loads them.
static void check_tier_counters(kvfolio_offload* offload, int run) {
  CHECK(kvfolio_offload_num_tiers(offload) == 1);
  kvfolio_offload_tier_counters c = {.struct_size = sizeof c};
  MUST(kvfolio_offload_get_tier_counters(offload, 0, &c, &g_error));
  CHECK(c.stores == (run == 0 ? 2u : 0u) && sum_of(c.store_latency) == c.stores);
  CHECK(c.loads == (run == 0 ? 0u : 2u) && sum_of(c.load_latency) == c.loads);
  CHECK((c.bytes_stored > 0) == (run == 0) && (c.bytes_loaded > 0) == (run == 1));
  CHECK(c.stores_failed == 0 && c.loads_corrupt == 0 && c.stores_failed_in_a_row == 0);
}

// The records of a disk outlive their tier.
static void use_disk(void) {
  CHECK(system("rm -rf kvfolio_tiers_capi_disk") == 0);
  const char* const directory = "kvfolio_tiers_capi_disk";
  const kvfolio_disk_options options = {.struct_size = sizeof options,
                                        .engine = KVFOLIO_DISK_THREADS,
                                        .bytes = 1 << 20,
                                        .segment_bytes = 1 << 16};
  for (int run = 0; run < 2; ++run) {
    kvfolio_tier* tier = NULL;
    MUST(kvfolio_tier_open_disk(directory, &options, &tier, &g_error));
    kvfolio_manager* const manager = toy_manager(16);
    kvfolio_offload* const offload = toy_offload(manager, tier);
    const kvfolio_sequence_ready ready = open_from_disk(offload);
    CHECK(run == 0 || ready.cached_tokens == 7);
    toy_compute(manager, ready.sequence, kTokens, ready.cached_tokens, 8);
    kvfolio_offload_left left = {.struct_size = sizeof left, .stores = 1};
    while (left.blocks || left.stores || left.loads || left.questions) {
      MUST(kvfolio_offload_drain(offload, 100000, &left, &g_error));
    }
    kvfolio_disk_stats stats = {.struct_size = sizeof stats};
    MUST(kvfolio_tier_disk_stats(tier, &stats, &g_error));
    CHECK(stats.records == 2 && stats.stored == (run == 0 ? 2u : 0u));
    CHECK(stats.recovered == (run == 0 ? 0u : 2u));
    check_tier_counters(offload, run);
    char text[256];
    CHECK(kvfolio_tier_describe(tier, text, sizeof text) > 0 && strstr(text, directory) != NULL);
    kvfolio_offload_destroy(offload);
    kvfolio_manager_destroy(manager);
    kvfolio_tier_destroy(tier);
  }
  CHECK(system("rm -rf kvfolio_tiers_capi_disk") == 0);
}

// No server is there: the tier is made, says so, and goes on trying.
static void use_redis(void) {
  const kvfolio_redis_tier_options options = {
      .struct_size = sizeof options, .servers = "127.0.0.1:1", .password = "secret"};
  kvfolio_tier* tier = NULL;
  const int32_t code = kvfolio_tier_create_redis(&options, &tier, &g_error);
  if (code == KVFOLIO_ERR_UNSUPPORTED) {
    CHECK(tier == NULL && strstr(g_error.message, "built without hiredis") != NULL);
    return;
  }
  MUST(code);
  CHECK(strcmp(kvfolio_tier_name(tier), "redis") == 0 && kvfolio_tier_event_fd(tier) >= 0);
  int64_t most = 0;
  MUST(kvfolio_tier_limits(tier, &most, NULL, &g_error));
  CHECK(most == 64 << 20);
  CHECK(kvfolio_tier_wait_until_ready(tier, 1, 20000, &g_error) == KVFOLIO_ERR_TIMED_OUT);
  CHECK(strstr(g_error.message, "did not answer within 20 ms") != NULL);
  CHECK(strstr(g_error.message, "127.0.0.1:1") != NULL);
  char text[512];
  const int64_t bytes = kvfolio_tier_describe(tier, text, sizeof text);
  CHECK(bytes > 0 && bytes == (int64_t)strlen(text) && strstr(text, "127.0.0.1:1") != NULL);
  CHECK(strstr(text, "secret") == NULL);
  kvfolio_redis_tier_counters counters = {.struct_size = sizeof counters, .bytes_sent = 5};
  MUST(kvfolio_tier_redis_counters(tier, &counters, &g_error));
  CHECK(counters.connections == 0 && counters.bytes_sent == 0);
  kvfolio_tier_destroy(tier);
}

static void describe_tier(kvfolio_tier* tier, const char* should) {
  char text[8] = "1234567";
  CHECK(kvfolio_tier_describe(tier, NULL, 0) == (int64_t)strlen(should));
  CHECK(kvfolio_tier_describe(tier, text, 4) == (int64_t)strlen(should));
  CHECK(strncmp(text, should, 3) == 0 && text[3] == 0 && strcmp(text + 4, "567") == 0);
}

void call_tiers(void) {
  CHECK(strcmp(kvfolio_tier_result_name(KVFOLIO_TIER_MISS), "miss") == 0);
  CHECK(strcmp(kvfolio_tier_result_name(8), "invalid") == 0);
  static ToyTier toy;
  const kvfolio_tier_functions functions = toy_functions(&toy);
  kvfolio_tier* tier = NULL;
  MUST(kvfolio_tier_create(&functions, &tier, &g_error));
  CHECK(strcmp(kvfolio_tier_name(tier), "toy") == 0 && kvfolio_tier_event_fd(tier) == 77);
  int64_t most = 0;
  int64_t alignment = 0;
  MUST(kvfolio_tier_limits(tier, &most, &alignment, &g_error));
  CHECK(most == 1 << 20 && alignment == 64);
  describe_tier(tier, "toy");
  use_tier(tier, 100);
  MUST(kvfolio_tier_close(tier, 0, &g_error));
  kvfolio_tier* other = NULL;
  CHECK(kvfolio_tier_share(tier, &other, &g_error) == KVFOLIO_ERR_UNSUPPORTED);
  kvfolio_tier_destroy(tier);
  CHECK(toy.destroyed == 1);
  toy_free_records(&toy);

  // In memory: two tiers over the same records.
  kvfolio_manager* manager = toy_manager(16);
  MUST(kvfolio_tier_create_memory(manager, 1 << 16, NULL, &tier, &g_error));
  kvfolio_manager_destroy(manager);
  CHECK(strcmp(kvfolio_tier_name(tier), "memory") == 0 && kvfolio_tier_event_fd(tier) == -1);
  MUST(kvfolio_tier_limits(tier, &most, NULL, &g_error));
  describe_tier(tier, "memory");
  MUST(kvfolio_tier_wait_until_ready(tier, 1, 0, &g_error));
  kvfolio_redis_tier_counters redis = {.struct_size = sizeof redis};
  CHECK(kvfolio_tier_redis_counters(tier, &redis, &g_error) == KVFOLIO_ERR_UNSUPPORTED);
  use_tier(tier, most);
  MUST(kvfolio_tier_share(tier, &other, &g_error));
  kvfolio_tier_destroy(tier);
  kvfolio_tier_key key;
  memset(&key, 7, sizeof key);
  CHECK(one_item(other, KVFOLIO_TIER_EXISTS, key, NULL, 0).result == KVFOLIO_TIER_OK);
  kvfolio_tier_destroy(other);
  use_disk();
  use_redis();
}

void call_offload(void) {
  kvfolio_manager* const manager = toy_manager(16);
  const kvfolio_offload_options options = {.struct_size = sizeof options, .arena_bytes = 1 << 16};
  kvfolio_offload* offload = NULL;
  MUST(kvfolio_offload_create(manager, &kToy, &options, NULL, 0, NULL, &offload, &g_error));
  toy_say(manager, kTokens, 8);
  CHECK(kvfolio_offload_idle(offload) == 0);
  CHECK(kvfolio_offload_poll(offload, 1, NULL, 0) == 0);
  toy_settle(offload);
  MUST(kvfolio_evict(manager, 0, 100, NULL, 0, NULL, &g_error));
  CHECK(kvfolio_offload_is_of(offload, manager) == 1);
  kvfolio_manager* const other = toy_manager(16);
  CHECK(kvfolio_offload_is_of(offload, other) == 0);
  kvfolio_manager_destroy(other);
  kvfolio_arena_stats stats = {.struct_size = sizeof stats};
  MUST(kvfolio_offload_arena(offload, &stats, &g_error));
  CHECK(stats.bytes == 1 << 16 && stats.records == 2 && stats.pins == 0);
  CHECK(kvfolio_offload_num_tiers(offload) == 0);
  int32_t unit = kvfolio_identity_unit(kvfolio_offload_identity(offload));
  CHECK(unit == 4);
  kvfolio_identity_destroy(kvfolio_offload_identity(offload));  // does nothing
  CHECK(kvfolio_identity_unit(kvfolio_offload_identity(offload)) == unit);

  kvfolio_sequence sequence = 0;
  int32_t pending = 0;
  int32_t length = -1;
  MUST(kvfolio_offload_open(offload, NULL, kTokens, 8, NULL, 0, NULL, &sequence, NULL, &pending,
                            &g_error));
  CHECK(pending == 1);
  MUST(kvfolio_offload_cancel(offload, sequence, &length, &g_error));
  CHECK(length == 0);
  MUST(kvfolio_close(manager, sequence, &g_error));
  int64_t blocks = -1;
  int32_t pins = -1;
  toy_say(manager, kTokens, 8);
  kvfolio_offload_left left = {.struct_size = sizeof left};
  MUST(kvfolio_offload_drain(offload, 50000, &left, &g_error));
  CHECK(left.blocks == 0 && left.stores == 0 && left.loads == 0 && left.questions == 0);
  MUST(kvfolio_offload_forget(offload, NULL, kTokens, 4, NULL, 0, &blocks, &pins, &g_error));
  CHECK(blocks == 2 && pins == 0 && kvfolio_offload_epoch(offload) == 1);
  kvfolio_root_epoch forgotten = {{{0}}, 0};
  uint64_t epoch = 9;
  CHECK(kvfolio_offload_epochs(offload, &epoch, NULL, 0) == 1 && epoch == 0);
  CHECK(kvfolio_offload_epochs(offload, NULL, &forgotten, 1) == 1 && forgotten.epoch == 1);
  kvfolio_digest root;
  MUST(kvfolio_identity_root(kvfolio_offload_identity(offload), NULL, 0, &root, &g_error));
  MUST(kvfolio_identity_next(kvfolio_offload_identity(offload), &root, 0, kTokens, 4, NULL, 0,
                             &root, &g_error));
  CHECK(memcmp(root.bytes, forgotten.root.bytes, sizeof root.bytes) == 0);
  MUST(kvfolio_offload_reset(offload, &blocks, &pins, &g_error));
  CHECK(blocks == 0 && pins == 0 && kvfolio_offload_epoch(offload) == 2);
  MUST(kvfolio_offload_arena(offload, &stats, &g_error));
  CHECK(stats.records == 0);
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
}

void call_files(void) {
  const char* const path = "kvfolio_tiers_capi_test.kv";
  kvfolio_manager* manager = toy_manager(16);
  kvfolio_offload* const offload = toy_offload(manager, NULL);
  kvfolio_identity* const names = kvfolio_offload_identity(offload);
  toy_say(manager, kTokens, 8);
  kvfolio_save_stats saved = {.struct_size = sizeof saved};
  MUST(kvfolio_save_file(manager, names, path, NULL, NULL, &saved, &g_error));
  CHECK(saved.records == 2 && saved.sequences == 0);
  kvfolio_manager* const target = toy_manager(16);
  kvfolio_restored* restored = NULL;
  MUST(kvfolio_restore_file(target, names, path, &restored, &g_error));
  CHECK(remove(path) == 0);
  CHECK(kvfolio_restored_num_sequences(restored) == 0);
  kvfolio_restored_destroy(restored);
  int32_t found = 0;
  MUST(kvfolio_probe(target, NULL, kTokens, 8, NULL, 0, NULL, &found, &g_error));
  CHECK(found == 7);
  kvfolio_manager_destroy(target);
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
}

// ---- records and keys ----

static const uint8_t kSecret[KVFOLIO_RECORD_KEY_BYTES] = {1, 2, 3};
static const uint8_t kOther[KVFOLIO_RECORD_KEY_BYTES] = {4, 5, 6};

static void name_foreign_blocks(void) {
  const kvfolio_foreign_model model = {.struct_size = sizeof model,
                                       .engine = {"vllm 0.33 cuda sm90", -1},
                                       .model = {"llama-3-8b", -1},
                                       .weights = {"sha256:1234", -1},
                                       .model_dtype = {"bf16", -1},
                                       .hash = {"sha256_cbor", -1},
                                       .hash_seed = {"none", -1},
                                       .layout = {"bf16 HND 16x8x128 tp2 pp1", -1}};
  kvfolio_foreign_identity* names = NULL;
  MUST(kvfolio_foreign_identity_create(&model, &names, &g_error));
  kvfolio_digest space, layout;
  MUST(kvfolio_foreign_identity_namespace(names, -1, &space, &g_error));
  MUST(kvfolio_foreign_identity_namespace(names, 0, &layout, &g_error));
  const uint8_t begin[4] = {0x13, 0x5e, 0x62, 0x40};  // as foreign_identity_test.cc has it
  CHECK(memcmp(space.bytes, begin, 4) == 0 && !same_digest(space, layout));
  uint8_t hash[32];
  for (int i = 0; i < 32; ++i) hash[i] = (uint8_t)i;
  kvfolio_tier_key key, salted;
  MUST(kvfolio_foreign_identity_key(names, 0, NULL, hash, 32, &key, &g_error));
  const uint8_t golden[4] = {0xa5, 0x73, 0x14, 0x5c};
  CHECK(memcmp(key.bytes + 24, golden, 4) == 0 && memcmp(key.bytes + 8, layout.bytes, 16) == 0);
  const kvfolio_text salt = {"alice", -1};
  MUST(kvfolio_foreign_identity_key(names, 0, &salt, hash, 32, &salted, &g_error));
  CHECK(memcmp(&key, &salted, sizeof key) != 0);
  kvfolio_foreign_identity_destroy(names);
  kvfolio_foreign_model poor = model;
  poor.hash_seed.size = 0;
  CHECK(kvfolio_foreign_identity_create(&poor, &names, &g_error) == KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "hash_seed is empty") != NULL);
}

static void seal_records(void) {
  kvfolio_record_keys *keys = NULL, *others = NULL, *both = NULL;
  MUST(kvfolio_record_keys_create(kSecret, NULL, &keys, &g_error));
  MUST(kvfolio_record_keys_create(kOther, NULL, &others, &g_error));
  MUST(kvfolio_record_keys_create(kOther, kSecret, &both, &g_error));
  kvfolio_record_info info = {.struct_size = sizeof info, .payload_bytes = 9, .epoch = 5};
  info.key.bytes[30] = 7;
  char header[KVFOLIO_RECORD_HEADER_BYTES];
  char bytes[] = "any bytes";
  for (int keyed = 0; keyed < 2; ++keyed) {
    const kvfolio_record_keys* const with = keyed ? keys : NULL;
    MUST(kvfolio_record_seal(with, &info, bytes, header, &g_error));
    MUST(kvfolio_record_verify(with, &info, header, bytes, &g_error));
    kvfolio_record_info seen = {.struct_size = sizeof seen};
    MUST(kvfolio_record_read(header, &seen, &g_error));
    CHECK(seen.payload_bytes == 9 && seen.epoch == 5 && (seen.key_id != 0) == keyed);
    CHECK(memcmp(&seen.key, &info.key, sizeof seen.key) == 0);
    // Other bytes, another name, an older epoch, another key.
    bytes[3] ^= 1;
    CHECK(kvfolio_record_verify(with, &info, header, bytes, &g_error) == KVFOLIO_ERR_CORRUPT);
    CHECK(strstr(g_error.message, "wrong payload") != NULL);
    bytes[3] ^= 1;
    kvfolio_record_info asked = info;
    asked.key.bytes[30] = 8;
    CHECK(kvfolio_record_verify(with, &asked, header, bytes, &g_error) == KVFOLIO_ERR_CORRUPT);
    CHECK(strstr(g_error.message, "wrong key") != NULL);
    asked = info;
    asked.epoch = 6;
    CHECK(kvfolio_record_verify(with, &asked, header, bytes, &g_error) == KVFOLIO_ERR_CORRUPT);
    CHECK(kvfolio_record_verify(others, &info, header, bytes, &g_error) == KVFOLIO_ERR_CORRUPT);
    CHECK(strstr(g_error.message, "wrong sealer") != NULL);
    CHECK((kvfolio_record_verify(both, &info, header, bytes, &g_error) == 0) == keyed);
    header[9] ^= 1;
    CHECK(kvfolio_record_read(header, &seen, &g_error) == KVFOLIO_ERR_CORRUPT);
  }
  kvfolio_record_keys_destroy(keys);
  kvfolio_record_keys_destroy(others);
  kvfolio_record_keys_destroy(both);
}

// What was stored with a key is found with it, and for another key it is a miss that is counted.
static void use_keyed_disk(void) {
  const char* const directory = "kvfolio_tiers_capi_keyed";
  CHECK(system("rm -rf kvfolio_tiers_capi_keyed") == 0);
  kvfolio_tier_key key = {{1}};
  char* const memory = need(malloc(8192));
  char* const data = memory + 4096 - (uintptr_t)memory % 4096;
  for (int run = 0; run < 3; ++run) {
    const kvfolio_disk_options options = {.struct_size = sizeof options,
                                          .engine = KVFOLIO_DISK_THREADS,
                                          .bytes = 1 << 20,
                                          .segment_bytes = 1 << 16,
                                          .record_key = run == 2 ? kOther : kSecret,
                                          .accepted_record_key = run == 1 ? kOther : NULL};
    kvfolio_tier* tier = NULL;
    MUST(kvfolio_tier_open_disk(directory, &options, &tier, &g_error));
    memset(data, run == 0 ? 'x' : 0, 4096);
    const kvfolio_tier_item item = {key, data, 4096, 1};
    const int32_t op = run == 0 ? KVFOLIO_TIER_STORE : KVFOLIO_TIER_LOAD;
    int64_t accepted = 0;
    MUST(kvfolio_tier_submit(tier, op, &item, 1, UINT64_MAX / 2, &accepted, &g_error));
    kvfolio_tier_done done = {0, -1, 0};
    for (uint64_t now = 1; accepted == 1 && kvfolio_tier_poll(tier, now, &done, 1) == 0; ++now) {
    }
    CHECK(done.result == (run == 2 ? KVFOLIO_TIER_MISS : KVFOLIO_TIER_OK));
    kvfolio_tier_health health = {.struct_size = sizeof health};
    MUST(kvfolio_tier_get_health(tier, &health, &g_error));
    CHECK(health.of_another_key == (run == 2 ? 1 : 0));
    CHECK(run == 2 || data[4095] == 'x');
    kvfolio_tier_destroy(tier);
  }
  free(memory);
  CHECK(system("rm -rf kvfolio_tiers_capi_keyed") == 0);
}

static void use_keyed_file(void) {
  const char* const path = "kvfolio_tiers_capi_keyed_file";
  kvfolio_manager* const manager = toy_manager(16);
  kvfolio_offload* const offload = toy_offload(manager, NULL);
  kvfolio_identity* const names = kvfolio_offload_identity(offload);
  toy_say(manager, kTokens, 8);
  const kvfolio_save_options save = {.struct_size = sizeof save, .record_key = kSecret};
  MUST(kvfolio_save_file(manager, names, path, NULL, &save, NULL, &g_error));
  for (int right = 0; right < 2; ++right) {
    kvfolio_manager* const target = toy_manager(16);
    const kvfolio_restore_options options = {.struct_size = sizeof options,
                                             .record_key = kOther,
                                             .accepted_record_key = right ? kSecret : NULL};
    kvfolio_restored* restored = NULL;
    MUST(kvfolio_restore_file_with(target, names, path, &options, &restored, &g_error));
    kvfolio_restored_destroy(restored);
    int32_t found = 0;
    MUST(kvfolio_probe(target, NULL, kTokens, 8, NULL, 0, NULL, &found, &g_error));
    CHECK(found == (right ? 7 : 0));
    kvfolio_manager_destroy(target);
  }
  CHECK(remove(path) == 0);
  kvfolio_offload_destroy(offload);
  kvfolio_manager_destroy(manager);
}

void call_records(void) {
  name_foreign_blocks();
  seal_records();
  use_keyed_disk();
  use_keyed_file();
}
