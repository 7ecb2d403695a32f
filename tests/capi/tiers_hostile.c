// SPDX-License-Identifier: Apache-2.0
//
// Calls that no host should make. Each one must give a code and a sentence, and leave everything as
// it was: the manager, the arena, the counters, and all that the call might write to.

#include <limits.h>
#include <math.h>

#include "refused.h"
#include "tiers_toy.h"

#include "null_handles.h"

static const int32_t kTokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};

// What the calls get, and what they would write to.
static struct {
  kvfolio_group_spec group;
  kvfolio_manager* manager;
  kvfolio_manager* without_storage;
  kvfolio_manager* without_list;
  kvfolio_manager* without_transfers;
  kvfolio_offload* offload;
  kvfolio_identity* names;
  kvfolio_identity* other_names;  // of another spec
  kvfolio_tier* tier;
  kvfolio_restored* restored;
  kvfolio_save_list* list;
  kvfolio_sequence open;
  kvfolio_sequence closed;
  kvfolio_digest root;
  ToyFile* file;
  struct {
    kvfolio_identity* identity;
    kvfolio_tier* tier;
    kvfolio_offload* offload;
    kvfolio_restored* restored;
    kvfolio_digest digest;
    kvfolio_tier_key key;
    kvfolio_text text;
    kvfolio_tier_health health;
    kvfolio_disk_stats disk;
    kvfolio_redis_tier_counters redis;
    kvfolio_offload_counters counters;
    kvfolio_offload_tier_counters tier_counters;
    kvfolio_arena_stats arena;
    kvfolio_save_stats saved;
    kvfolio_restore_stats stats;
    kvfolio_restored_sequence sequence;
    uint64_t id;
    int64_t i64;
    int32_t i32;
  } out;
} w;
static ToyTier toy;

uint64_t state_of_the_world(void) {
  uint64_t h = toy_hash_bytes(0xcbf29ce484222325u, &w, sizeof w);
  static char text[16384];
  const int64_t bytes = kvfolio_describe(w.manager, text, sizeof text);
  CHECK(bytes > 0 && bytes < (int64_t)sizeof text);
  h = toy_hash_bytes(h, text, (size_t)bytes);
  kvfolio_counters counters = {.struct_size = sizeof counters};
  MUST(kvfolio_get_counters(w.manager, &counters, &g_error));
  h = toy_hash_bytes(h, &counters, sizeof counters);
  kvfolio_offload_counters of_offload = {.struct_size = sizeof of_offload};
  MUST(kvfolio_offload_get_counters(w.offload, &of_offload, &g_error));
  h = toy_hash_bytes(h, &of_offload, sizeof of_offload);
  kvfolio_arena_stats arena = {.struct_size = sizeof arena};
  MUST(kvfolio_offload_arena(w.offload, &arena, &g_error));
  h = toy_hash_bytes(h, &arena, sizeof arena);
  const uint64_t epoch = kvfolio_offload_epoch(w.offload);
  h = toy_hash_bytes(h, &epoch, sizeof epoch);
  h = toy_hash_bytes(h, &toy, sizeof toy);
  h = toy_hash_bytes(h, w.file, sizeof *w.file);
  return h ^ toy_hash(w.manager, w.open, 8);
}

// ---- identity ----

static void bad_models(void) {
  kvfolio_model_identity m;
#define BAD_FIELD(field, value)                                                         \
  do {                                                                                  \
    m = kToy;                                                                           \
    m.field = value;                                                                    \
    BAD(kvfolio_identity_create(&m, &w.group, 1, &w.out.identity, E));                  \
    BAD(kvfolio_offload_create(w.manager, &m, NULL, NULL, 0, NULL, &w.out.offload, E)); \
  } while (0)
  BAD_FIELD(struct_size, 0);
  BAD_FIELD(struct_size, 4);
  BAD_FIELD(struct_size, 5000);
  BAD_FIELD(shard, -1);
  BAD_FIELD(shard, 1);
  BAD_FIELD(num_shards, -1);
  BAD_FIELD(num_shards, INT_MAX);
  BAD_FIELD(pipeline_rank, INT_MIN);
  BAD_FIELD(num_pipeline_ranks, 70000);
  BAD_FIELD(context_rank, 1);
  BAD_FIELD(num_context_ranks, INT_MIN);
  BAD_FIELD(model.data, NULL);
  BAD_FIELD(model.data, "");
  BAD_FIELD(weights.size, 0);
  BAD_FIELD(tokenizer.size, -2);
  BAD_FIELD(model_dtype.size, INT64_MIN);
  BAD_FIELD(positions.size, INT64_MAX);
  BAD_FIELD(engine.size, (1 << 16) + 1);
  BAD_FIELD(layers.size, 3);  // of null
  BAD_FIELD(scales.size, -1);
#undef BAD_FIELD
}

static void hostile_identity(void) {
  bad_models();
  BAD(kvfolio_identity_create(NULL, &w.group, 1, &w.out.identity, E));
  BAD(kvfolio_identity_create(&kToy, NULL, 1, &w.out.identity, E));
  BAD(kvfolio_identity_create(&kToy, &w.group, 0, &w.out.identity, E));
  BAD(kvfolio_identity_create(&kToy, &w.group, INT_MAX, &w.out.identity, E));
  BAD(kvfolio_identity_create(&kToy, &w.group, 1, NULL, E));
  BAD(kvfolio_identity_check_groups(w.names, NULL, 1, E));
  BAD(kvfolio_identity_check_groups(w.other_names, &w.group, 1, E));
  BAD(kvfolio_identity_namespace(w.names, 0, NULL, E));
  BAD(kvfolio_identity_namespace(w.names, 1, &w.out.digest, E));
  BAD(kvfolio_identity_namespace(w.names, -2, &w.out.digest, E));
  BAD(kvfolio_identity_field(w.names, -1, &w.out.text, NULL, E));
  BAD(kvfolio_identity_field(w.names, 1000, &w.out.text, NULL, E));
  BAD(kvfolio_identity_root(w.names, NULL, 0, NULL, E));
  kvfolio_digest* const out = &w.out.digest;
  BAD(kvfolio_identity_next(w.names, NULL, 0, kTokens, 4, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, 1, kTokens, 4, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, -4, kTokens, 4, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, INT_MAX - 3, kTokens, 4, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, 0, NULL, 4, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 0, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 5, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, INT64_MIN, NULL, 0, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 4, NULL, 1, out, E));
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 4, NULL, 0, NULL, E));
  kvfolio_media_span span = {.struct_size = sizeof span, .begin = INT_MIN, .end = INT_MAX};
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 4, &span, 1, out, E));
  span.begin = 0;  // all it lacks is a content_id
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 4, &span, 1, out, E));
  span.content_id[0] = 1;
  span.begin = span.end;
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 4, &span, 1, out, E));
  span.struct_size = 3;
  BAD(kvfolio_identity_next(w.names, &w.root, 0, kTokens, 4, &span, 1, out, E));
  BAD(kvfolio_identity_key(w.names, -1, &w.root, &w.out.key, E));
  BAD(kvfolio_identity_key(w.names, 1, &w.root, &w.out.key, E));
  BAD(kvfolio_identity_key(w.names, 0, NULL, &w.out.key, E));
  BAD(kvfolio_identity_key(w.names, 0, &w.root, NULL, E));
}

// ---- tiers ----

static void bad_functions(void) {
  kvfolio_tier_functions f;
#define BAD_FIELD(field, value)                   \
  do {                                            \
    f = toy_functions(&toy);                      \
    f.field = value;                              \
    BAD(kvfolio_tier_create(&f, &w.out.tier, E)); \
  } while (0)
  BAD_FIELD(struct_size, 0);
  BAD_FIELD(struct_size, 4);
  BAD_FIELD(struct_size, 4097);
  BAD_FIELD(submit, NULL);
  BAD_FIELD(poll, NULL);
  BAD_FIELD(data_alignment, -64);
  BAD_FIELD(data_alignment, 3);
  BAD_FIELD(data_alignment, 8192);
  BAD_FIELD(data_alignment, INT_MIN);
  BAD_FIELD(record_bytes_max, -1);
  BAD_FIELD(record_bytes_max, INT64_MIN);
#undef BAD_FIELD
  f = toy_functions(&toy);
  BAD(kvfolio_tier_create(NULL, &w.out.tier, E));
  BAD(kvfolio_tier_create(&f, NULL, E));
}

static void bad_disks(void) {
  kvfolio_disk_options o;
#define BAD_FIELD(field, value)                                                \
  do {                                                                         \
    o = (kvfolio_disk_options){.struct_size = sizeof o, .bytes = 1 << 20};     \
    o.field = value;                                                           \
    BAD(kvfolio_tier_open_disk("kvfolio_tiers_capi_bad", &o, &w.out.tier, E)); \
  } while (0)
  BAD_FIELD(struct_size, 3);
  BAD_FIELD(engine, 3);
  BAD_FIELD(engine, -1);
  BAD_FIELD(bytes, 0);
  BAD_FIELD(bytes, INT64_MIN);
  BAD_FIELD(segment_bytes, -4096);
  BAD_FIELD(segment_bytes, 4097);
  BAD_FIELD(num_threads, -1);
  BAD_FIELD(num_threads, INT_MAX);
  BAD_FIELD(queue_depth, INT_MIN);
  BAD_FIELD(queued_bytes_max, -1);
  BAD_FIELD(scrub_bytes_per_s, INT64_MIN);
  BAD_FIELD(items_max, -1);
  BAD_FIELD(open_files_max, -1);
#undef BAD_FIELD
  o = (kvfolio_disk_options){.struct_size = sizeof o, .bytes = 1 << 20};
  BAD(kvfolio_tier_open_disk(NULL, &o, &w.out.tier, E));
  BAD(kvfolio_tier_open_disk("", &o, &w.out.tier, E));
  BAD(kvfolio_tier_open_disk("/no/such/folder/d", &o, &w.out.tier, E));
  BAD(kvfolio_tier_open_disk("/dev/null", &o, &w.out.tier, E));
  BAD(kvfolio_tier_open_disk("kvfolio_tiers_capi_bad", NULL, &w.out.tier, E));
  BAD(kvfolio_tier_open_disk("kvfolio_tiers_capi_bad", &o, NULL, E));
  BAD(kvfolio_tier_disk_stats(w.tier, NULL, E));
  BAD(kvfolio_tier_disk_stats(w.tier, &w.out.disk, E));  // of another kind
}

static void bad_redis(void) {
  kvfolio_redis_tier_options o;
#define BAD_FIELD(field, value)                                                          \
  do {                                                                                   \
    o = (kvfolio_redis_tier_options){.struct_size = sizeof o, .servers = "127.0.0.1:1"}; \
    o.field = value;                                                                     \
    BAD(kvfolio_tier_create_redis(&o, &w.out.tier, E));                                  \
  } while (0)
  static const uint8_t key[KVFOLIO_RECORD_KEY_BYTES] = {1};
  BAD_FIELD(struct_size, 0);
  BAD_FIELD(struct_size, 4097);
  BAD_FIELD(accepted_record_key, key);  // without a key
  BAD_FIELD(items_max, -1);
  BAD_FIELD(items_max, INT_MAX);
  BAD_FIELD(servers, NULL);
  BAD_FIELD(servers, "");
  BAD_FIELD(servers, ",");
  BAD_FIELD(servers, "127.0.0.1");
  BAD_FIELD(servers, "127.0.0.1:0");
  BAD_FIELD(servers, "127.0.0.1:65536");
  BAD_FIELD(servers, "127.0.0.1:1,:2");
  BAD_FIELD(user, "someone");  // without a password
  BAD_FIELD(key_prefix, "{slot}");
  BAD_FIELD(key_prefix, "12345678901234567890123456789012345678901234567890123456789012345");
  BAD_FIELD(record_bytes_max, -1);
  BAD_FIELD(record_bytes_max, INT64_MAX);
  BAD_FIELD(bytes_in_flight_max, INT64_MIN);
  BAD_FIELD(bytes_per_poll, -1);
  BAD_FIELD(connect_timeout_us, UINT64_MAX);
  BAD_FIELD(stall_timeout_us, UINT64_MAX);
  BAD_FIELD(breaker_us_min, 5000001);  // above the largest
  BAD_FIELD(breaker_us_max, 1);        // below the smallest
  BAD_FIELD(breaker_us_max, UINT64_MAX);
#undef BAD_FIELD
  o = (kvfolio_redis_tier_options){
      .struct_size = sizeof o, .servers = "127.0.0.1:1", .tls = 1, .tls_ca_file = "/no/such/file"};
  BAD(kvfolio_tier_create_redis(&o, &w.out.tier, E));
  o.tls_ca_file = NULL;
  o.tls_cert_file = "/dev/null";  // without a key
  BAD(kvfolio_tier_create_redis(&o, &w.out.tier, E));
  o.tls_key_file = "/dev/null";
  BAD(kvfolio_tier_create_redis(&o, &w.out.tier, E));
  BAD(kvfolio_tier_create_redis(NULL, &w.out.tier, E));
  BAD(kvfolio_tier_create_redis(&o, NULL, E));
  BAD(kvfolio_tier_redis_counters(w.tier, NULL, E));
  BAD(kvfolio_tier_redis_counters(w.tier, &w.out.redis, E));  // of another kind
}

static void hostile_tiers(void) {
  bad_functions();
  BAD(kvfolio_tier_create_memory(w.manager, 1 << 16, NULL, NULL, E));
  BAD(kvfolio_tier_create_memory(w.manager, 0, NULL, &w.out.tier, E));
  BAD(kvfolio_tier_create_memory(w.manager, 100, NULL, &w.out.tier, E));
  BAD(kvfolio_tier_create_memory(w.manager, INT64_MIN, NULL, &w.out.tier, E));
  BAD(kvfolio_tier_create_memory(w.manager, INT64_MAX, NULL, &w.out.tier, E));
  BAD(kvfolio_tier_create_memory(w.without_storage, 1 << 16, NULL, &w.out.tier, E));
  TestMemory memory = {0, 0};
  kvfolio_memory_resource resource = test_resource(&memory);
  resource.kind = KVFOLIO_DEVICE;
  BAD(kvfolio_tier_create_memory(w.manager, 1 << 16, &resource, &w.out.tier, E));
  resource.allocate = NULL;
  BAD(kvfolio_tier_create_memory(w.manager, 1 << 16, &resource, &w.out.tier, E));
  CHECK(memory.bytes_out == 0);
  bad_disks();
  bad_redis();
  BAD(kvfolio_tier_share(w.tier, &w.out.tier, E));
  BAD(kvfolio_tier_share(w.tier, NULL, E));
  kvfolio_tier_item item = {.data = &w, .bytes = 8, .tag = 3};
  int64_t* const accepted = &w.out.i64;
  BAD(kvfolio_tier_submit(w.tier, -1, &item, 1, 1, accepted, E));
  BAD(kvfolio_tier_submit(w.tier, 4, &item, 1, 1, accepted, E));
  BAD(kvfolio_tier_submit(w.tier, 0, NULL, 1, 1, accepted, E));
  BAD(kvfolio_tier_submit(w.tier, 0, &item, -1, 1, accepted, E));
  BAD(kvfolio_tier_submit(w.tier, 0, &item, INT64_MAX, 1, accepted, E));
  BAD(kvfolio_tier_submit(w.tier, 0, &item, 1, 1, NULL, E));
  item.bytes = -1;
  BAD(kvfolio_tier_submit(w.tier, KVFOLIO_TIER_STORE, &item, 1, 1, accepted, E));
  item.bytes = 8;
  item.data = NULL;
  BAD(kvfolio_tier_submit(w.tier, KVFOLIO_TIER_LOAD, &item, 1, 1, accepted, E));
  item.data = (char*)&w + 1;  // aligned to less than it says
  BAD(kvfolio_tier_submit(w.tier, KVFOLIO_TIER_LOAD, &item, 1, 1, accepted, E));
  item.data = NULL;
  item.bytes = (1 << 20) + 1;  // larger than its limit
  BAD(kvfolio_tier_submit(w.tier, KVFOLIO_TIER_STORE, &item, 1, 1, accepted, E));
  BAD(kvfolio_tier_get_health(w.tier, NULL, E));
}

// ---- offload ----

static void bad_options(void) {
  kvfolio_offload_options o;
#define BAD_FIELD(field, value)                                                          \
  do {                                                                                   \
    o = (kvfolio_offload_options){.struct_size = sizeof o, .arena_bytes = 1 << 16};      \
    o.field = value;                                                                     \
    BAD(kvfolio_offload_create(w.manager, &kToy, &o, NULL, 0, NULL, &w.out.offload, E)); \
  } while (0)
  BAD_FIELD(struct_size, 2);
  BAD_FIELD(struct_size, 8000);
  BAD_FIELD(arena_bytes, 0);
  BAD_FIELD(arena_bytes, 100);
  BAD_FIELD(arena_bytes, INT64_MIN);
  BAD_FIELD(arena_bytes, INT64_MAX);
  BAD_FIELD(bytes_per_poll, -1);
  BAD_FIELD(bytes_per_poll, INT64_MIN);
  BAD_FIELD(num_root_epochs, 1);  // and none are there
  BAD_FIELD(num_root_epochs, -1);
  BAD_FIELD(num_root_epochs, INT64_MAX);
  BAD_FIELD(load_bytes_per_s, NAN);
  BAD_FIELD(load_bytes_per_s, -1);
  BAD_FIELD(prefill_tokens_per_s, -INFINITY);
#undef BAD_FIELD
}

static void bad_tiers(void) {
  const kvfolio_offload_options o = {.struct_size = sizeof o, .arena_bytes = 1 << 16};
  kvfolio_offload_tier t[9];
#define BAD_TIERS(num) \
  BAD(kvfolio_offload_create(w.manager, &kToy, &o, t, num, NULL, &w.out.offload, E))
#define BAD_FIELD(field, value)                                                  \
  do {                                                                           \
    for (int i = 0; i < 9; ++i) {                                                \
      t[i] = (kvfolio_offload_tier){.struct_size = sizeof t[i], .tier = w.tier}; \
    }                                                                            \
    t[0].field = value;                                                          \
    BAD_TIERS(1);                                                                \
  } while (0)
  BAD_FIELD(struct_size, 0);
  BAD_FIELD(policy, -1);
  BAD_FIELD(policy, 3);
  BAD_FIELD(tier, NULL);
  BAD_FIELD(store_bytes_max, -1);
  BAD_FIELD(load_bytes_max, INT64_MIN);
  t[0] = t[1];
  BAD_TIERS(2);  // twice the same
  BAD_TIERS(9);
  BAD_TIERS(-1);
  BAD_TIERS(INT_MAX);
  t[1].struct_size = 8;
  BAD_TIERS(2);
  BAD(kvfolio_offload_create(w.manager, &kToy, &o, NULL, 1, NULL, &w.out.offload, E));
#undef BAD_FIELD
#undef BAD_TIERS
}

static void hostile_offload(void) {
  bad_options();
  bad_tiers();
  const kvfolio_offload_options o = {.struct_size = sizeof o, .arena_bytes = 1 << 16};
  kvfolio_offload** const out = &w.out.offload;
  BAD(kvfolio_offload_create(w.manager, NULL, &o, NULL, 0, NULL, out, E));
  BAD(kvfolio_offload_create(w.manager, &kToy, NULL, NULL, 0, NULL, out, E));
  BAD(kvfolio_offload_create(w.manager, &kToy, &o, NULL, 0, NULL, NULL, E));
  BAD(kvfolio_offload_create(w.without_storage, &kToy, &o, NULL, 0, NULL, out, E));
  BAD(kvfolio_offload_create(w.without_list, &kToy, &o, NULL, 0, NULL, out, E));
  BAD(kvfolio_offload_create(w.without_transfers, &kToy, &o, NULL, 0, NULL, out, E));
  kvfolio_sequence* const id = &w.out.id;
  BAD(kvfolio_offload_open(w.offload, NULL, NULL, 8, NULL, 0, NULL, id, NULL, NULL, E));
  BAD(kvfolio_offload_open(w.offload, NULL, kTokens, -1, NULL, 0, NULL, id, NULL, NULL, E));
  BAD(kvfolio_offload_open(w.offload, NULL, kTokens, INT64_MAX, NULL, 0, NULL, id, NULL, NULL, E));
  BAD(kvfolio_offload_open(w.offload, NULL, kTokens, 8, NULL, 1, NULL, id, NULL, NULL, E));
  BAD(kvfolio_offload_open(w.offload, NULL, kTokens, 8, NULL, 0, NULL, NULL, NULL, NULL, E));
  const int32_t negative[2] = {1, -7};
  BAD(kvfolio_offload_open(w.offload, NULL, negative, 2, NULL, 0, NULL, id, NULL, NULL, E));
  kvfolio_open_options open = {.struct_size = sizeof open, .publish = 9};
  BAD(kvfolio_offload_open(w.offload, NULL, kTokens, 8, NULL, 0, &open, id, NULL, NULL, E));
  open = (kvfolio_open_options){.struct_size = sizeof open, .has_caller_id = 1, .caller_id = 9};
  BAD(kvfolio_offload_open(w.offload, NULL, kTokens, 8, NULL, 0, &open, id, NULL, NULL, E));
  BAD(kvfolio_offload_cancel(w.offload, 0, &w.out.i32, E));
  BAD(kvfolio_offload_cancel(w.offload, w.closed, &w.out.i32, E));
  BAD(kvfolio_offload_cancel(w.offload, UINT64_MAX, &w.out.i32, E));
  BAD(kvfolio_offload_forget(w.offload, NULL, NULL, 4, NULL, 0, NULL, NULL, E));
  BAD(kvfolio_offload_forget(w.offload, NULL, kTokens, INT64_MIN, NULL, 0, NULL, NULL, E));
  BAD(kvfolio_offload_forget(w.offload, NULL, negative, 2, NULL, 0, &w.out.i64, NULL, E));
  BAD(kvfolio_offload_drain(w.offload, 1, NULL, E));
  BAD(kvfolio_offload_get_counters(w.offload, NULL, E));
  kvfolio_offload_tier_counters* const of_tier = &w.out.tier_counters;
  BAD(kvfolio_offload_get_tier_counters(w.offload, 0, of_tier, E));  // it has none
  BAD(kvfolio_offload_get_tier_counters(w.offload, -1, of_tier, E));
  BAD(kvfolio_offload_get_tier_counters(w.offload, INT_MAX, of_tier, E));
  BAD(kvfolio_offload_get_tier_counters(w.offload, 0, NULL, E));
  BAD(kvfolio_offload_arena(w.offload, NULL, E));
}

// ---- save and restore ----

static void hostile_save(void) {
  ToyFile file = {NULL, 0};
  kvfolio_byte_sink sink = {.struct_size = sizeof sink, .context = &file, .write = toy_write};
  kvfolio_save_stats* const out = &w.out.saved;
  BAD(kvfolio_save_list_create(NULL, E));
  BAD(kvfolio_save_list_add(w.list, w.open, NULL, NULL, 8, NULL, 0, E));
  BAD(kvfolio_save_list_add(w.list, w.open, NULL, kTokens, -1, NULL, 0, E));
  BAD(kvfolio_save_list_add(w.list, w.open, NULL, kTokens, 8, NULL, 2, E));
  BAD(kvfolio_save(w.manager, NULL, &sink, NULL, NULL, out, E));
  BAD(kvfolio_save(w.manager, w.names, NULL, NULL, NULL, out, E));
  BAD(kvfolio_save(w.manager, w.other_names, &sink, NULL, NULL, out, E));
  BAD(kvfolio_save(w.without_storage, w.names, &sink, NULL, NULL, out, E));
  kvfolio_save_options options = {.struct_size = 3};
  BAD(kvfolio_save(w.manager, w.names, &sink, NULL, &options, out, E));
  kvfolio_save_stats bad = {.struct_size = 1};
  BAD(kvfolio_save(w.manager, w.names, &sink, NULL, NULL, &bad, E));
  sink.write = NULL;
  BAD(kvfolio_save(w.manager, w.names, &sink, NULL, NULL, out, E));
  sink.struct_size = 0;
  BAD(kvfolio_save(w.manager, w.names, &sink, NULL, NULL, out, E));
  BAD(kvfolio_save_file(w.manager, w.names, NULL, NULL, NULL, out, E));
  BAD(kvfolio_save_file(w.manager, w.names, "", NULL, NULL, out, E));
  BAD(kvfolio_save_file(w.manager, w.names, "/", NULL, NULL, out, E));
  BAD(kvfolio_save_file(w.manager, w.names, "/no/such/folder/f", NULL, NULL, out, E));
  BAD(kvfolio_save_file(w.manager, NULL, "f", NULL, NULL, out, E));
  // A sequence that was closed, and tokens that are not its own.
  kvfolio_save_list* list = NULL;
  sink = (kvfolio_byte_sink){.struct_size = sizeof sink, .context = &file, .write = toy_write};
  MUST(kvfolio_save_list_create(&list, &g_error));
  MUST(kvfolio_save_list_add(list, w.closed, NULL, kTokens, 8, NULL, 0, &g_error));
  BAD(kvfolio_save(w.manager, w.names, &sink, list, NULL, out, E));
  kvfolio_save_list_destroy(list);
  MUST(kvfolio_save_list_create(&list, &g_error));
  MUST(kvfolio_save_list_add(list, w.open, NULL, kTokens, 7, NULL, 0, &g_error));
  BAD(kvfolio_save(w.manager, w.names, &sink, list, NULL, out, E));
  kvfolio_save_list_destroy(list);
  free(file.bytes);
}

static void bad_records(void) {
  static const uint8_t key[KVFOLIO_RECORD_KEY_BYTES] = {1};
  kvfolio_record_keys* keys = NULL;
  BAD(kvfolio_record_keys_create(NULL, NULL, &keys, E));
  BAD(kvfolio_record_keys_create(key, NULL, NULL, E));
  BAD(kvfolio_record_keys_create(key, key, &keys, E));
  char header[KVFOLIO_RECORD_HEADER_BYTES] = {0};
  kvfolio_record_info info = {.struct_size = sizeof info, .payload_bytes = 1};
  BAD(kvfolio_record_verify(NULL, &info, header, "x", E));  // zeros are no header
  BAD(kvfolio_record_read(header, &info, E));
  BAD(kvfolio_record_read(NULL, &info, E));
  BAD(kvfolio_record_read(header, NULL, E));
  info.payload_bytes = -1;
  info.payload_bytes = INT64_MAX;
  info.struct_size = 3;
  BAD(kvfolio_record_read(header, &info, E));
  kvfolio_record_keys_destroy(NULL);
}

static void bad_foreign_names(void) {
  const kvfolio_text x = {"x", 1};
  const kvfolio_foreign_model good = {.struct_size = sizeof good,
                                      .engine = x,
                                      .model = x,
                                      .weights = x,
                                      .model_dtype = x,
                                      .hash = x,
                                      .hash_seed = x,
                                      .layout = x};
  kvfolio_foreign_identity* names = NULL;
  kvfolio_foreign_model m;
#define BAD_FIELD(field, value)                          \
  do {                                                   \
    m = good;                                            \
    m.field = value;                                     \
    BAD(kvfolio_foreign_identity_create(&m, &names, E)); \
  } while (0)
  BAD_FIELD(struct_size, 3);
  BAD_FIELD(num_groups, -1);
  BAD_FIELD(num_groups, 65536);
  BAD_FIELD(shard, 1);
  BAD_FIELD(shard, -1);
  BAD_FIELD(num_shards, INT_MIN);
  BAD_FIELD(engine.size, 0);
  BAD_FIELD(layout.size, -2);
  BAD_FIELD(hash.data, NULL);
  BAD_FIELD(hash_seed.size, INT64_MAX);
#undef BAD_FIELD
  BAD(kvfolio_foreign_identity_create(NULL, &names, E));
  BAD(kvfolio_foreign_identity_create(&good, NULL, E));
  MUST(kvfolio_foreign_identity_create(&good, &names, &g_error));
  kvfolio_digest space;
  kvfolio_tier_key key;
  BAD(kvfolio_foreign_identity_namespace(names, 1, &space, E));
  BAD(kvfolio_foreign_identity_namespace(names, -2, &space, E));
  BAD(kvfolio_foreign_identity_namespace(names, 0, NULL, E));
  BAD(kvfolio_foreign_identity_key(names, 1, NULL, NULL, 0, &key, E));
  BAD(kvfolio_foreign_identity_key(names, -1, NULL, NULL, 0, &key, E));
  BAD(kvfolio_foreign_identity_key(names, 0, NULL, NULL, 1, &key, E));
  BAD(kvfolio_foreign_identity_key(names, 0, NULL, NULL, -1, &key, E));
  BAD(kvfolio_foreign_identity_key(names, 0, NULL, NULL, 0, NULL, E));
  const kvfolio_text wrong = {NULL, 1};
  BAD(kvfolio_foreign_identity_key(names, 0, &wrong, NULL, 0, &key, E));
  kvfolio_foreign_identity_destroy(names);
  kvfolio_foreign_identity_destroy(NULL);
}

static void hostile_restore(void) {
  kvfolio_restored** const out = &w.out.restored;
  kvfolio_byte_source s;
#define BAD_FIELD(field, value)                                                                    \
  do {                                                                                             \
    s = (kvfolio_byte_source){                                                                     \
        .struct_size = sizeof s, .context = w.file, .size = w.file->size, .read_at = toy_read_at}; \
    s.field = value;                                                                               \
    BAD(kvfolio_restore(w.manager, w.names, &s, out, E));                                          \
  } while (0)
  BAD_FIELD(struct_size, 0);
  BAD_FIELD(read_at, NULL);
  BAD_FIELD(size, -1);
  BAD_FIELD(size, 0);
  BAD_FIELD(size, 63);
  BAD_FIELD(reserved, 0);  // the caller id of its sequence is open here
#undef BAD_FIELD
  s.size = INT64_MAX;  // more than there is
  BAD(kvfolio_restore(w.manager, w.names, &s, out, E));
  s.size = w.file->size;
  BAD(kvfolio_restore(w.manager, NULL, &s, out, E));
  BAD(kvfolio_restore(w.manager, w.names, NULL, out, E));
  BAD(kvfolio_restore(w.manager, w.names, &s, NULL, E));
  BAD(kvfolio_restore(w.manager, w.other_names, &s, out, E));
  BAD(kvfolio_restore(w.without_storage, w.names, &s, out, E));
  kvfolio_restore_options o = {.struct_size = 3};
  BAD(kvfolio_restore_with(w.manager, w.names, &s, &o, out, E));
  static const uint8_t key[KVFOLIO_RECORD_KEY_BYTES] = {1};
  o = (kvfolio_restore_options){.struct_size = sizeof o, .accepted_record_key = key};
  BAD(kvfolio_restore_with(w.manager, w.names, &s, &o, out, E));
  BAD(kvfolio_restore_file_with(w.manager, w.names, "/dev/null", &o, out, E));
  BAD(kvfolio_restore_file(w.manager, w.names, NULL, out, E));
  BAD(kvfolio_restore_file(w.manager, w.names, "/", out, E));
  BAD(kvfolio_restore_file(w.manager, w.names, "/no/such/file", out, E));
  BAD(kvfolio_restore_file(w.manager, w.names, "/dev/zero", out, E));
  BAD(kvfolio_restore_file(w.manager, w.names, "/dev/null", NULL, E));
  BAD(kvfolio_restored_stats(w.restored, NULL, E));
  BAD(kvfolio_restored_get(w.restored, -1, &w.out.sequence, E));
  BAD(kvfolio_restored_get(w.restored, 1, &w.out.sequence, E));
  BAD(kvfolio_restored_get(w.restored, 0, NULL, E));
}

// Functions without a code.
static void null_handles_are_nothing(void) {
  kvfolio_identity_destroy(NULL);
  kvfolio_tier_destroy(NULL);
  kvfolio_offload_destroy(NULL);
  kvfolio_save_list_destroy(NULL);
  kvfolio_restored_destroy(NULL);
  CHECK(kvfolio_identity_unit(NULL) == 0 && kvfolio_identity_num_groups(NULL) == 0);
  CHECK(kvfolio_identity_num_fields(NULL) == 0 && kvfolio_restored_num_sequences(NULL) == 0);
  CHECK(kvfolio_tier_name(NULL) == NULL && kvfolio_tier_event_fd(NULL) == -1);
  char text[4] = "abc";
  CHECK(kvfolio_tier_describe(NULL, text, 4) == 0 && strcmp(text, "abc") == 0);
  CHECK(kvfolio_tier_describe(w.tier, text, INT64_MIN) == 3 && strcmp(text, "abc") == 0);
  CHECK(kvfolio_offload_num_tiers(NULL) == 0);
  kvfolio_tier_done done = {1, 2, 3};
  CHECK(kvfolio_tier_poll(NULL, 0, &done, 1) == 0 && kvfolio_tier_poll(w.tier, 0, NULL, 1) == 0);
  CHECK(kvfolio_tier_poll(w.tier, 0, &done, -1) == 0 && done.tag == 1);
  kvfolio_sequence_ready ready = {1, 2, 3};
  CHECK(kvfolio_offload_poll(NULL, 0, &ready, 1) == 0 && ready.sequence == 1);
  CHECK(kvfolio_offload_poll(w.offload, 0, NULL, 1) == 0);
  CHECK(kvfolio_offload_poll(w.offload, 0, &ready, INT64_MIN) == 0 && ready.sequence == 1);
  CHECK(kvfolio_offload_idle(NULL) == 0 && kvfolio_offload_epoch(NULL) == 0);
  kvfolio_root_epoch root = {{{0}}, 8};
  uint64_t epoch = 9;
  CHECK(kvfolio_offload_epochs(NULL, &epoch, &root, 1) == -1 && epoch == 9);
  CHECK(kvfolio_offload_epochs(w.offload, NULL, &root, INT64_MIN) >= 0 && root.epoch == 8);
  CHECK(kvfolio_offload_identity(NULL) == NULL && kvfolio_offload_is_of(NULL, w.manager) == 0);
  CHECK(kvfolio_offload_is_of(w.offload, NULL) == 0);
  CHECK(strcmp(kvfolio_load_end_name(INT_MIN), "invalid") == 0);
  CHECK(strcmp(kvfolio_tier_result_name(INT_MAX), "invalid") == 0);
  CHECK(nothing_has_changed());
}

static kvfolio_manager* manager_of(kvfolio_manager_options options, int with_storage) {
  options.struct_size = sizeof options;
  options.max_sequences = 4;
  kvfolio_manager* manager = NULL;
  if (!with_storage) {
    MUST(kvfolio_manager_create(&w.group, 1, &options, &manager, &g_error));
    return manager;
  }
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_create(&w.group, 1, NULL, &storage, &g_error));
  MUST(kvfolio_manager_create_with_storage(&storage, &options, &manager, &g_error));
  return manager;
}

static void make_world(ToyFile* file) {
  memset(&w, 0, sizeof w);
  w.file = file;
  w.out.disk.struct_size = sizeof w.out.disk;
  w.out.redis.struct_size = sizeof w.out.redis;
  w.out.tier_counters.struct_size = sizeof w.out.tier_counters;
  w.group = small_group();
  kvfolio_manager_options options = {.list_findable = 1};
  w.without_storage = manager_of(options, 0);
  options.max_transfers = -1;
  w.without_transfers = manager_of(options, 1);
  w.without_list = manager_of((kvfolio_manager_options){.max_transfers = 0}, 1);
  w.manager = toy_manager(16);
  const kvfolio_tier_functions functions = toy_functions(&toy);
  MUST(kvfolio_tier_create(&functions, &w.tier, &g_error));
  w.offload = toy_offload(w.manager, NULL);
  w.names = kvfolio_offload_identity(w.offload);
  kvfolio_group_spec other = w.group;
  other.dtype = KVFOLIO_F16;
  MUST(kvfolio_identity_create(&kToy, &other, 1, &w.other_names, &g_error));
  MUST(kvfolio_identity_root(w.names, NULL, 0, &w.root, &g_error));
  const kvfolio_open_options named = {
      .struct_size = sizeof named, .has_caller_id = 1, .caller_id = 9};
  MUST(kvfolio_open(w.manager, NULL, kTokens, 8, NULL, 0, &named, &w.open, NULL, &g_error));
  toy_compute(w.manager, w.open, kTokens, 0, 8);
  MUST(kvfolio_open(w.manager, NULL, NULL, 0, NULL, 0, NULL, &w.closed, NULL, &g_error));
  MUST(kvfolio_close(w.manager, w.closed, &g_error));
  toy_settle(w.offload);

  const kvfolio_byte_sink sink = {.struct_size = sizeof sink, .context = file, .write = toy_write};
  MUST(kvfolio_save_list_create(&w.list, &g_error));
  MUST(kvfolio_save_list_add(w.list, w.open, NULL, kTokens, 8, NULL, 0, &g_error));
  MUST(kvfolio_save(w.manager, w.names, &sink, w.list, NULL, NULL, &g_error));
  const kvfolio_byte_source source = {
      .struct_size = sizeof source, .context = file, .size = file->size, .read_at = toy_read_at};
  kvfolio_manager* const target = toy_manager(16);
  MUST(kvfolio_restore(target, w.names, &source, &w.restored, &g_error));
  kvfolio_manager_destroy(target);
}

int main(void) {
  ToyFile file = {NULL, 0};
  make_world(&file);
  begin_hostile_calls();
  call_without_handles();
  hostile_identity();
  hostile_tiers();
  hostile_offload();
  hostile_save();
  bad_records();
  bad_foreign_names();
  hostile_restore();
  null_handles_are_nothing();
  // And the world works still.
  MUST(kvfolio_offload_check_invariants(w.offload, &g_error));
  MUST(kvfolio_check_invariants(w.manager, &g_error));
  kvfolio_restored_destroy(w.restored);
  kvfolio_save_list_destroy(w.list);
  kvfolio_offload_destroy(w.offload);
  kvfolio_identity_destroy(w.other_names);
  kvfolio_tier_destroy(w.tier);
  kvfolio_manager_destroy(w.manager);
  kvfolio_manager_destroy(w.without_storage);
  kvfolio_manager_destroy(w.without_list);
  kvfolio_manager_destroy(w.without_transfers);
  free(file.bytes);
  return end_hostile_calls(100);
}
