// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C interface of libkvfolio_tiers, for C99 and C++: names of blocks that last, tiers, Offload,
// save and restore. Link libkvfolio_tiers and libkvfolio. The conventions are those of kvfolio.h:
// codes, errors, structs that carry their size, 0 as the default of every option, handles, arrays.
//
//   kvfolio_model_identity model = {.struct_size = sizeof model, .model = {"llama-3-8b", -1}, ...};
//   kvfolio_offload_options options = {.struct_size = sizeof options, .arena_bytes = 1 << 30};
//   kvfolio_offload* offload;
//   if (kvfolio_offload_create(manager, &model, &options, NULL, 0, NULL, &offload, &error)) ...
//   kvfolio_offload_open(offload, NULL, prompt, n, NULL, 0, NULL, &sequence, &cached, &pending, 0);
//   while (pending) for (i = kvfolio_offload_poll(offload, now_us(), ready, 16); i > 0; --i) ...
//
// Functions that the caller gives (a tier, a sink, a source, memory) must not throw, jump out or
// call the handle that calls them; a C++ exception that leaves one ends the program.
//
// Thread safety: as in kvfolio.h; an Offload and its manager count as one handle there. A tier has
// one owner, also where several are over the same records (kvfolio_tier_share).

#include "kvfolio/kvfolio.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- version -----------------------------------------------------------------------------------

// As KVFOLIO_ABI_VERSION, of this header and the library behind it.
#define KVFOLIO_TIERS_ABI_VERSION 1
KVFOLIO_C_API uint32_t kvfolio_tiers_abi_version(void);

// ---- identity ----------------------------------------------------------------------------------

// Bytes of any content; size -1: up to the 0 at their end.
typedef struct kvfolio_text {
  const char* data;
  int64_t size;
} kvfolio_text;

// What no group says of a model (ModelIdentity in identity.h). The bytes are memory of C, read
// during the call only, at most 64 KiB together. A required field that is empty is refused by name.
typedef struct kvfolio_model_identity {
  uint32_t struct_size;
  int32_t shard;               // which share of the KV heads this process has,
  int32_t num_shards;          // and of how many; 0: 1
  int32_t pipeline_rank;       // the same
  int32_t num_pipeline_ranks;  // 0: 1
  int32_t context_rank;
  int32_t num_context_ranks;  // 0: 1
  int32_t reserved;           // 0
  kvfolio_text model;         // required, as the next five
  kvfolio_text weights;
  kvfolio_text tokenizer;
  kvfolio_text model_dtype;
  kvfolio_text positions;
  kvfolio_text engine;
  kvfolio_text layers;  // "0-30/2;1-31/2"; required if there are several groups
  kvfolio_text scales;
} kvfolio_model_identity;

// SHA-256 of a namespace, or of a prefix.
typedef struct kvfolio_digest {
  uint8_t bytes[32];
} kvfolio_digest;

// The name of a record; tier.h says its bytes.
typedef struct kvfolio_tier_key {
  uint8_t bytes[72];
} kvfolio_tier_key;

// Identity in identity.h: makes the names of blocks.
typedef struct kvfolio_identity kvfolio_identity;
KVFOLIO_C_API int32_t kvfolio_identity_create(const kvfolio_model_identity* model,
                                              const kvfolio_group_spec* groups, int32_t num_groups,
                                              kvfolio_identity** out, kvfolio_error* error);
// Does nothing to an identity that belongs to an Offload.
KVFOLIO_C_API void kvfolio_identity_destroy(kvfolio_identity* identity);
// KVFOLIO_ERR_INVALID_ARGUMENT names the first group and field that differ; num_blocks may.
KVFOLIO_C_API int32_t kvfolio_identity_check_groups(const kvfolio_identity* identity,
                                                    const kvfolio_group_spec* groups,
                                                    int32_t num_groups, kvfolio_error* error);
// The smallest block size: as many tokens have a hash of their own.
KVFOLIO_C_API int32_t kvfolio_identity_unit(const kvfolio_identity* identity);
KVFOLIO_C_API int32_t kvfolio_identity_num_groups(const kvfolio_identity* identity);
// group -1: the namespace of the model.
KVFOLIO_C_API int32_t kvfolio_identity_namespace(const kvfolio_identity* identity, int32_t group,
                                                 kvfolio_digest* out, kvfolio_error* error);
// Every field that went into the namespaces, in order.
KVFOLIO_C_API int32_t kvfolio_identity_num_fields(const kvfolio_identity* identity);
// *name and *value are the identity's, and valid as long; both may be null.
KVFOLIO_C_API int32_t kvfolio_identity_field(const kvfolio_identity* identity, int32_t index,
                                             kvfolio_text* name, kvfolio_text* value,
                                             kvfolio_error* error);
// The hash of no tokens under a root; `epoch` counts what was forgotten (kvfolio_offload_epoch).
KVFOLIO_C_API int32_t kvfolio_identity_root(kvfolio_identity* identity, const kvfolio_root* root,
                                            uint64_t epoch, kvfolio_digest* out,
                                            kvfolio_error* error);
// The hash of tokens [begin, begin + num_tokens) behind those of `before`: begin is a multiple of
// the unit, and there are 1 to unit tokens. `media` may hold spans that lie elsewhere.
KVFOLIO_C_API int32_t kvfolio_identity_next(kvfolio_identity* identity,
                                            const kvfolio_digest* before, int32_t begin,
                                            const int32_t* tokens, int64_t num_tokens,
                                            const kvfolio_media_span* media, int64_t num_media,
                                            kvfolio_digest* out, kvfolio_error* error);
// The key of a block of a group whose tokens end where `tokens` ends.
KVFOLIO_C_API int32_t kvfolio_identity_key(kvfolio_identity* identity, int32_t group,
                                           const kvfolio_digest* tokens, kvfolio_tier_key* out,
                                           kvfolio_error* error);

// ---- names of an engine's own hashes -----------------------------------------------------------

// ForeignModel in foreign_identity.h: what decides the bytes of an engine that hashes its blocks
// itself. All texts but `scales` are required, and are read as those of kvfolio_model_identity.
typedef struct kvfolio_foreign_model {
  uint32_t struct_size;
  int32_t num_groups;  // 0: 1
  int32_t shard;       // which share of a block this process has,
  int32_t num_shards;  // and of how many; 0: 1
  kvfolio_text engine;
  kvfolio_text model;
  kvfolio_text weights;
  kvfolio_text model_dtype;
  kvfolio_text hash;       // the algorithm of the engine's hashes
  kvfolio_text hash_seed;  // what its root hash begins with; "none" if there is nothing
  kvfolio_text layout;     // element type, heads, block size, axes, ranks: all of a payload
  kvfolio_text scales;
} kvfolio_foreign_model;
// ForeignIdentity in foreign_identity.h. Any number of threads may ask one for keys.
typedef struct kvfolio_foreign_identity kvfolio_foreign_identity;
KVFOLIO_C_API int32_t kvfolio_foreign_identity_create(const kvfolio_foreign_model* model,
                                                      kvfolio_foreign_identity** out,
                                                      kvfolio_error* error);
KVFOLIO_C_API void kvfolio_foreign_identity_destroy(kvfolio_foreign_identity* identity);
// group -1: the namespace of the model.
KVFOLIO_C_API int32_t kvfolio_foreign_identity_namespace(const kvfolio_foreign_identity* identity,
                                                         int32_t group, kvfolio_digest* out,
                                                         kvfolio_error* error);
// The name of a block of a group by the engine's hash of it, of any length. `salt` keeps tenants
// apart; it may be empty.
KVFOLIO_C_API int32_t kvfolio_foreign_identity_key(const kvfolio_foreign_identity* identity,
                                                   int32_t group, const kvfolio_text* salt,
                                                   const uint8_t* engine_hash, int64_t hash_bytes,
                                                   kvfolio_tier_key* out, kvfolio_error* error);

// ---- records -----------------------------------------------------------------------------------

// What tiers on a disk and in Redis do by themselves, for a medium of the caller's own: a header of
// KVFOLIO_RECORD_HEADER_BYTES in front of any bytes, which shows whether they are those of the
// name. record.h says its fields.
enum { KVFOLIO_RECORD_HEADER_BYTES = 192, KVFOLIO_RECORD_KEY_BYTES = 32 };
// RecordKeys in record.h, which says the errors. Any number of threads may use one.
typedef struct kvfolio_record_keys kvfolio_record_keys;
// Both are KVFOLIO_RECORD_KEY_BYTES, copied; accepted_key may be null.
KVFOLIO_C_API int32_t kvfolio_record_keys_create(const uint8_t* key, const uint8_t* accepted_key,
                                                 kvfolio_record_keys** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_record_keys_destroy(kvfolio_record_keys* keys);

// What a header says beside its seal. A name and a size are enough; the rest is the caller's.
typedef struct kvfolio_record_info {
  uint32_t struct_size;
  uint32_t key_id;  // of the key that sealed it, 0: none; kvfolio_record_read() fills it
  kvfolio_tier_key key;
  kvfolio_digest layout;
  int64_t payload_bytes;
  int32_t begin;
  int32_t end;
  uint64_t epoch;
  uint64_t writer;
  uint64_t owner;
} kvfolio_record_info;
// Writes the header for `payload`, of info->payload_bytes. `keys` may be null: a checksum.
KVFOLIO_C_API int32_t kvfolio_record_seal(const kvfolio_record_keys* keys,
                                          const kvfolio_record_info* info, const void* payload,
                                          void* header, kvfolio_error* error);
// KVFOLIO_ERR_CORRUPT, with what is wrong: header and payload are not those of `expected`, whose
// writer, owner and key_id are not looked at, or were not sealed with one of `keys` (null: with
// none).
KVFOLIO_C_API int32_t kvfolio_record_verify(const kvfolio_record_keys* keys,
                                            const kvfolio_record_info* expected, const void* header,
                                            const void* payload, kvfolio_error* error);
// Reads a header; its seal is not checked. KVFOLIO_ERR_CORRUPT: it is no header.
KVFOLIO_C_API int32_t kvfolio_record_read(const void* header, kvfolio_record_info* out,
                                          kvfolio_error* error);

// ---- tiers -------------------------------------------------------------------------------------

enum {
  KVFOLIO_TIER_EXISTS = 0,  // data is not used; KVFOLIO_TIER_OK or _MISS
  KVFOLIO_TIER_LOAD = 1,    // fills data; a record of another size is _CORRUPT
  KVFOLIO_TIER_STORE = 2,   // keeps data; a key that is there already is _OK and keeps its bytes
  KVFOLIO_TIER_ERASE = 3    // data is not used; _OK also if there was nothing
};
enum {
  KVFOLIO_TIER_OK = 0,
  KVFOLIO_TIER_MISS = 1,         // there is no such record
  KVFOLIO_TIER_CORRUPT = 2,      // there is one, and it is not what was stored
  KVFOLIO_TIER_BUSY = 3,         // try again later
  KVFOLIO_TIER_TIMEOUT = 4,      // the deadline passed first
  KVFOLIO_TIER_IO_ERROR = 5,     // the medium failed
  KVFOLIO_TIER_UNAVAILABLE = 6,  // the medium cannot be reached now
  KVFOLIO_TIER_CLOSED = 7        // the tier was closed first
};
enum { KVFOLIO_NUM_TIER_RESULTS = 8 };
// "miss" and so on; "invalid" for a number that is no result. A constant.
KVFOLIO_C_API const char* kvfolio_tier_result_name(int32_t result);

// `data` stays the tier's until it says that the item is done.
typedef struct kvfolio_tier_item {
  kvfolio_tier_key key;
  void* data;
  int64_t bytes;
  uint64_t tag;  // the asker's own; kvfolio_tier_done repeats it
} kvfolio_tier_item;

typedef struct kvfolio_tier_done {
  uint64_t tag;
  int32_t result;    // KVFOLIO_TIER_OK ...
  int32_t reserved;  // 0
} kvfolio_tier_done;

typedef struct kvfolio_tier_health {
  uint32_t struct_size;
  int32_t unusable;  // 1: submit accepts nothing now
  uint64_t stores_ok;
  uint64_t loads_ok;
  uint64_t failures;  // results other than OK and MISS
  // Damaged records that it found while no load waited for them: none was answered with CORRUPT.
  uint64_t corrupt_unasked;
  // Loads that met a record which another key sealed, or none, and were answered with MISS.
  uint64_t of_another_key;
} kvfolio_tier_health;

// A tier of the caller's own (Tier in tier.h, which says the rules that each tier keeps): no
// function blocks; each item that was accepted gets exactly one kvfolio_tier_done, also after its
// deadline and after close(); after that nothing touches its memory. What a tier says and brings is
// not trusted: a count out of range is taken for the nearest that is in range, an unknown result
// for KVFOLIO_TIER_IO_ERROR. submit() and poll() are needed, the others may be null.
typedef struct kvfolio_tier_functions {
  uint32_t struct_size;
  int32_t data_alignment;    // of the items' data: a power of two, at most 4096; 0: 64
  int64_t record_bytes_max;  // larger records are not offered; 0: no limit of its own
  const char* name;          // for people; copied; null: "caller"
  void* context;
  // Returns how many of the items it accepted: the first ones. `items` is read during the call.
  int64_t (*submit)(void* context, int32_t op, const kvfolio_tier_item* items, int64_t num_items,
                    uint64_t deadline_us);
  // Writes at most `capacity` items that are done, and returns how many. Time never goes back.
  int64_t (*poll)(void* context, uint64_t now_us, kvfolio_tier_done* done, int64_t capacity);
  // A descriptor that is readable when poll() has something to return; null or -1: there is none.
  int32_t (*event_fd)(void* context);
  void (*health)(void* context, kvfolio_tier_health* out);
  // From now on submit() accepts nothing; poll() still returns all that was accepted. Returns 0 or
  // a KVFOLIO_ERR_*.
  int32_t (*close)(void* context, uint64_t deadline_us);
  // Called once, at kvfolio_tier_destroy().
  void (*destroy)(void* context);
} kvfolio_tier_functions;

typedef struct kvfolio_tier kvfolio_tier;
KVFOLIO_C_API int32_t kvfolio_tier_create(const kvfolio_tier_functions* functions,
                                          kvfolio_tier** out, kvfolio_error* error);
// ArenaTier in arena_tier.h: a tier in host memory. `bytes` is the budget of all records; the
// manager, which has storage, says which sizes these have. `resource`: its memory, or null.
KVFOLIO_C_API int32_t kvfolio_tier_create_memory(kvfolio_manager* manager, int64_t bytes,
                                                 const kvfolio_memory_resource* resource,
                                                 kvfolio_tier** out, kvfolio_error* error);

enum { KVFOLIO_DISK_AUTO = 0, KVFOLIO_DISK_IO_URING = 1, KVFOLIO_DISK_THREADS = 2 };
// DiskTierOptions in disk_tier.h, which says the limits.
typedef struct kvfolio_disk_options {
  uint32_t struct_size;
  int32_t engine;             // 0: io_uring, or threads where that does not work
  int64_t bytes;              // that all files together may take
  int64_t segment_bytes;      // 0: derived
  int32_t num_threads;        // 0: 8
  int32_t queue_depth;        // 0: 32
  int32_t no_direct;          // 1: through the page cache
  int32_t reserved;           // 0
  int64_t queued_bytes_max;   // 0: 512 MiB
  int64_t scrub_bytes_per_s;  // 0: records are not read again
  int32_t items_max;          // accepted and not done; 0: 4,096
  int32_t open_files_max;     // 0: a quarter of RLIMIT_NOFILE, 8 to 256
  // RecordKeyOptions in record.h: 32 bytes each that only the host knows, copied; null: none.
  const uint8_t* record_key;  // with it a record is believed only if it was sealed with it,
  const uint8_t* accepted_record_key;  // or with this one, while one is replaced by another
} kvfolio_disk_options;
// DiskTier in disk_tier.h, which says the errors: a tier in a directory of the local disk, which is
// made if it is not there, and of which it is the only writer. kvfolio_tier_destroy() waits for
// what is in flight and seals what was stored.
KVFOLIO_C_API int32_t kvfolio_tier_open_disk(const char* directory,
                                             const kvfolio_disk_options* options,
                                             kvfolio_tier** out, kvfolio_error* error);
// DiskTierStats in disk_tier.h.
typedef struct kvfolio_disk_stats {
  uint32_t struct_size;
  uint32_t reserved;  // 0
  int64_t bytes;      // that the files take, at most the budget
  int64_t records;
  int64_t segments;
  uint64_t recovered;            // records that were there when it was opened
  uint64_t recovered_by_footer;  // of these, without a look at their headers
  uint64_t stored;
  uint64_t stored_bytes;
  uint64_t loaded;
  uint64_t loaded_bytes;
  uint64_t corrupt;  // records that were not what was stored
  uint64_t io_errors;
  uint64_t no_space;
  uint64_t dropped;     // stores that were accepted and found no room
  uint64_t evicted;     // records that went with their segment
  uint64_t reinserted;  // records that were written again instead
  uint64_t scrubbed_bytes;
  uint64_t of_another_key;  // loads that met a record of another key, or of none: misses
} kvfolio_disk_stats;
// KVFOLIO_ERR_UNSUPPORTED: a tier of another kind.
KVFOLIO_C_API int32_t kvfolio_tier_disk_stats(const kvfolio_tier* tier, kvfolio_disk_stats* out,
                                              kvfolio_error* error);

// RedisOptions and RedisTls in redis_tier.h, which says the limits. All texts are copied; null is
// none, and 0 is the default.
typedef struct kvfolio_redis_tier_options {
  uint32_t struct_size;
  int32_t items_max;            // accepted and not done; 0: 4,096
  const char* servers;          // "HOST:PORT,HOST:PORT": nodes of one cluster, or one server
  const char* user;             // of an ACL; null: the default user
  const char* password;         // null: none
  const char* key_prefix;       // null: "kvfolio:"
  const char* tls_ca_file;      // PEM; null: the system's
  const char* tls_cert_file;    // PEM, of this client; null: none
  const char* tls_key_file;     // the same
  const char* tls_server_name;  // that every certificate must have; null: the host of the node
  int32_t tls;                  // 1: TLS
  int32_t reserved;             // 0
  uint64_t ttl_ms;              // of a record; 0: the server's policy decides
  int64_t record_bytes_max;     // 0: 64 MiB
  int64_t bytes_in_flight_max;  // on a connection; 0: 8 MiB
  int64_t bytes_per_poll;       // 0: 512 KiB
  uint64_t connect_timeout_us;  // until a connection is greeted; 0: 200,000
  uint64_t stall_timeout_us;    // without a byte, while a reply is due; 0: 500,000
  uint64_t breaker_us_min;      // a node that fails is left alone as long; 0: 500,000
  uint64_t breaker_us_max;      // and longer each time, up to this; 0: 5,000,000
  const uint8_t* record_key;    // as those of kvfolio_disk_options, for all who share a key_prefix
  const uint8_t* accepted_record_key;
} kvfolio_redis_tier_options;
// RedisTier in redis_tier.h, which says the errors: a tier in a Redis Cluster, or in one server.
// Resolves the names, which may wait for a name server; connects in polls. KVFOLIO_ERR_UNSUPPORTED:
// the library was built without hiredis.
KVFOLIO_C_API int32_t kvfolio_tier_create_redis(const kvfolio_redis_tier_options* options,
                                                kvfolio_tier** out, kvfolio_error* error);
// RedisCounters in redis_tier.h.
typedef struct kvfolio_redis_tier_counters {
  uint32_t struct_size;
  uint32_t reserved;        // 0
  uint64_t stores_refused;  // by the server: full, read only, or not allowed
  uint64_t redirects;       // MOVED and ASK
  uint64_t retries;         // items that were sent again
  uint64_t connections;     // that were greeted
  uint64_t connections_lost;
  uint64_t replies_refused;  // that did not fit the question
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t of_another_key;  // loads that met a record of another key, or of none: misses
} kvfolio_redis_tier_counters;
// KVFOLIO_ERR_UNSUPPORTED: a tier of another kind.
KVFOLIO_C_API int32_t kvfolio_tier_redis_counters(const kvfolio_tier* tier,
                                                  kvfolio_redis_tier_counters* out,
                                                  kvfolio_error* error);

// A tier of its own over the records of one in memory, for another manager: each finds what the
// others computed. The records last as long as one of these tiers. KVFOLIO_ERR_UNSUPPORTED: a tier
// of another kind.
KVFOLIO_C_API int32_t kvfolio_tier_share(const kvfolio_tier* memory, kvfolio_tier** out,
                                         kvfolio_error* error);
// Destroy first the Offload that uses it; a tier is of one Offload at a time.
KVFOLIO_C_API void kvfolio_tier_destroy(kvfolio_tier* tier);

// The calls of a tier, for those who use or test one without an Offload. A constant of the tier:
KVFOLIO_C_API const char* kvfolio_tier_name(const kvfolio_tier* tier);
// The most bytes of a record, 0: no limit; and the alignment of its data. Both out pointers may be
// null.
KVFOLIO_C_API int32_t kvfolio_tier_limits(const kvfolio_tier* tier, int64_t* record_bytes_max,
                                          int64_t* data_alignment, kvfolio_error* error);
// *accepted: how many of the items, the first ones. The items keep to kvfolio_tier_limits().
KVFOLIO_C_API int32_t kvfolio_tier_submit(kvfolio_tier* tier, int32_t op,
                                          const kvfolio_tier_item* items, int64_t num_items,
                                          uint64_t deadline_us, int64_t* accepted,
                                          kvfolio_error* error);
// Writes at most `capacity` items that are done and returns how many.
KVFOLIO_C_API int64_t kvfolio_tier_poll(kvfolio_tier* tier, uint64_t now_us,
                                        kvfolio_tier_done* done, int64_t capacity);
// -1: there is none.
KVFOLIO_C_API int32_t kvfolio_tier_event_fd(const kvfolio_tier* tier);
KVFOLIO_C_API int32_t kvfolio_tier_get_health(const kvfolio_tier* tier, kvfolio_tier_health* out,
                                              kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_tier_close(kvfolio_tier* tier, uint64_t deadline_us,
                                         kvfolio_error* error);
// At start only, and the one call that waits: until the servers of a tier in Redis have answered.
// KVFOLIO_ERR_TIMED_OUT says what each said or did not say; the tier goes on trying. Tiers of other
// kinds are ready as soon as they are made.
KVFOLIO_C_API int32_t kvfolio_tier_wait_until_ready(kvfolio_tier* tier, uint64_t now_us,
                                                    uint64_t timeout_us, kvfolio_error* error);
// A description for people to read, written as kvfolio_describe() does: the directory and sizes of
// a tier on a disk, a line for each node of a tier in Redis, the name of any other tier.
KVFOLIO_C_API int64_t kvfolio_tier_describe(const kvfolio_tier* tier, char* out, int64_t capacity);

// ---- offload -----------------------------------------------------------------------------------

enum {
  KVFOLIO_WRITE_THROUGH = 0,     // every record that enters the arena by a store
  KVFOLIO_WRITE_SECOND_USE = 1,  // a record when it is used for the second time
  KVFOLIO_WRITE_OFF = 2          // the tier is read only
};
// In arrays all have the size of the first.
typedef struct kvfolio_offload_tier {
  uint32_t struct_size;
  int32_t policy;
  kvfolio_tier* tier;       // destroyed after the Offload
  int64_t store_bytes_max;  // in flight; more waits its turn; 0: 64 MiB
  int64_t load_bytes_max;   // the same; 0: 256 MiB
} kvfolio_offload_tier;

// RootEpoch in offload.h: the names of a root or of a prefix that was forgotten. Holds no text.
typedef struct kvfolio_root_epoch {
  kvfolio_digest root;
  uint64_t epoch;
} kvfolio_root_epoch;

// OffloadOptions in offload.h.
typedef struct kvfolio_offload_options {
  uint32_t struct_size;
  int32_t reserved;  // 0
  int64_t arena_bytes;
  int64_t bytes_per_poll;  // 0: 16 MiB
  // How long the tiers' answers may take, beside the time that bytes take at half of
  // load_bytes_per_s, or at 500 MB/s if that is 0. Up to 2 s of that are given at once, the rest as
  // bytes come. 0: 50,000.
  uint64_t timeout_us;
  uint64_t copy_timeout_us;  // of the copy to the cache once all is at hand; 0: 2,000,000
  double load_bytes_per_s;   // load from tiers only what is slower to compute; 0: always
  double prefill_tokens_per_s;
  // What a host with tiers that outlive it kept of kvfolio_offload_epochs().
  uint64_t epoch;
  const kvfolio_root_epoch* root_epochs;
  int64_t num_root_epochs;
} kvfolio_offload_options;

// Offload in offload.h: keeps blocks that became findable in host memory and in tiers, and brings
// them back. It has no threads: everything moves in kvfolio_offload_poll().
typedef struct kvfolio_offload kvfolio_offload;
// The manager has storage, list_findable and transfers, and is destroyed after the Offload. If it
// went first, calls are KVFOLIO_ERR_FAILED_PRECONDITION, and the Offload's memory is never given
// back. `tiers`: cheapest first, at most 8. `resource`: of the arena, or null.
KVFOLIO_C_API int32_t kvfolio_offload_create(kvfolio_manager* manager,
                                             const kvfolio_model_identity* model,
                                             const kvfolio_offload_options* options,
                                             const kvfolio_offload_tier* tiers, int32_t num_tiers,
                                             const kvfolio_memory_resource* resource,
                                             kvfolio_offload** out, kvfolio_error* error);
// Closes no sequence and no tier. If a tier has not ended a load or a store by now and does not in
// a few polls, the arena is never given back: so kvfolio_offload_drain() first, or close the tiers.
KVFOLIO_C_API void kvfolio_offload_destroy(kvfolio_offload* offload);
// 1 if this is the manager that it was created with, and that is there still.
KVFOLIO_C_API int32_t kvfolio_offload_is_of(const kvfolio_offload* offload,
                                            const kvfolio_manager* manager);

// kvfolio_open(), and a request for what the cache does not have. *pending (may be null, as
// *cached_tokens): 1 if kvfolio_offload_poll() will say how it ends.
KVFOLIO_C_API int32_t kvfolio_offload_open(kvfolio_offload* offload, const kvfolio_root* root,
                                           const int32_t* tokens, int64_t num_tokens,
                                           const kvfolio_media_span* media, int64_t num_media,
                                           const kvfolio_open_options* options,
                                           kvfolio_sequence* out, int32_t* cached_tokens,
                                           int32_t* pending, kvfolio_error* error);

enum {
  KVFOLIO_LOADED = 0,          // all that the tiers said they have
  KVFOLIO_LOAD_PART = 1,       // less: records were gone, damaged, or there was no room for them
  KVFOLIO_LOAD_NOTHING = 2,    // no tier has more
  KVFOLIO_LOAD_RECOMPUTE = 3,  // computing is faster
  KVFOLIO_LOAD_TIMEOUT = 4,    // cached_tokens may be more than at open still
  KVFOLIO_LOAD_NO_BLOCKS = 5,  // the pool has no room for it
  KVFOLIO_LOAD_FORGOTTEN = 6
};
// "loaded" and so on; "invalid" for a number that is no end. A constant.
KVFOLIO_C_API const char* kvfolio_load_end_name(int32_t why);
typedef struct kvfolio_sequence_ready {
  kvfolio_sequence sequence;
  int32_t cached_tokens;  // the sequence's length: append the tokens behind it
  int32_t why;            // KVFOLIO_LOADED ...
} kvfolio_sequence_ready;
// Moves what is to be moved, at most bytes_per_poll. Writes at most `capacity` of those who are
// ready, each pending sequence once, and returns how many. Those that did not fit come first at the
// next call. Without capacity it moves and keeps them. 0 for an Offload whose manager is gone.
KVFOLIO_C_API int64_t kvfolio_offload_poll(kvfolio_offload* offload, uint64_t now_us,
                                           kvfolio_sequence_ready* ready, int64_t capacity);
// The sequence goes on now: ends its request. *length, which may be null: its length.
KVFOLIO_C_API int32_t kvfolio_offload_cancel(kvfolio_offload* offload, kvfolio_sequence sequence,
                                             int32_t* length, kvfolio_error* error);
// 1: nothing is pending or ready, nothing waits to be stored, no step that may bring something is
// in flight, and no tier works for it.
KVFOLIO_C_API int32_t kvfolio_offload_idle(const kvfolio_offload* offload);

// OffloadLeft in offload.h.
typedef struct kvfolio_offload_left {
  uint32_t struct_size;
  int32_t blocks;     // 1: some that became findable, or may become so, are not in the arena yet
  int64_t stores;     // that tiers have not ended, or wait to be given
  int64_t loads;      // that tiers have not ended
  int64_t questions;  // the same
} kvfolio_offload_left;
// Before shutdown: a poll that cancels every request, offers each block to the tiers that want it,
// and drops none because a tier is behind, unless that one does not answer. It does not wait: call
// it until all of *out is 0, or until your deadline. No sequence is ready after it.
KVFOLIO_C_API int32_t kvfolio_offload_drain(kvfolio_offload* offload, uint64_t now_us,
                                            kvfolio_offload_left* out, kvfolio_error* error);

// kvfolio_forget_root(), kvfolio_forget() and kvfolio_reset(), also of what the arena and the tiers
// have: no tier answers with it again. Below the cache, tokens end with their last whole block of
// the smallest size; shorter ones take all that has their root. Both out pointers may be null.
KVFOLIO_C_API int32_t kvfolio_offload_forget_root(kvfolio_offload* offload,
                                                  const kvfolio_root* root, int64_t* blocks,
                                                  int32_t* pins, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_offload_forget(kvfolio_offload* offload, const kvfolio_root* root,
                                             const int32_t* tokens, int64_t num_tokens,
                                             const kvfolio_media_span* media, int64_t num_media,
                                             int64_t* blocks, int32_t* pins, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_offload_reset(kvfolio_offload* offload, int64_t* blocks,
                                            int32_t* pins, kvfolio_error* error);
// The newest epoch. An offload created later with it in its options finds nothing that was ever
// stored under another; with kvfolio_offload_epochs() it misses only what was forgotten. 0 also if
// the manager has ended.
KVFOLIO_C_API uint64_t kvfolio_offload_epoch(const kvfolio_offload* offload);
// Offload::epochs(), to be kept after each forgetting. *epoch, which may be null: that of every
// root which is not listed. Writes at most `capacity` roots and returns how many there are; -1, and
// writes nothing, if the manager has ended before the offload: what it forgot is not known.
KVFOLIO_C_API int64_t kvfolio_offload_epochs(const kvfolio_offload* offload, uint64_t* epoch,
                                             kvfolio_root_epoch* roots, int64_t capacity);

// OffloadCounters in offload.h.
typedef struct kvfolio_offload_counters {
  uint32_t struct_size;
  uint32_t reserved;        // 0
  uint64_t stores;          // records that entered the arena from the cache
  uint64_t stores_dropped;  // no room in the arena, or the block could not be read
  uint64_t loads;           // blocks that were written to the cache
  uint64_t tokens_loaded;
  uint64_t arena_corrupt;        // records of the arena that did not verify
  uint64_t tier_stores;          // that tiers said are done
  uint64_t tier_stores_dropped;  // all stores_failed and stores_dropped of the tiers
  uint64_t tier_loads;           // records that came from tiers and verified
  uint64_t tier_misses[8];       // loads that failed, by KVFOLIO_TIER_OK ...
  // Loads that met damage: those that came and did not verify, and
  // tier_misses[KVFOLIO_TIER_CORRUPT].
  uint64_t tier_corrupt;
  uint64_t requests;  // that were pending
  uint64_t requests_canceled;
  uint64_t requests_timed_out;
  uint64_t unknown_completions;  // a faulty tier: it says that something is done that was not asked
  uint64_t manager_forgets;      // the manager was told to forget, and everything went here
  uint64_t steps_max;      // the most looks at a block, a question or an answer that one poll took
  uint64_t copies_failed;  // blocks that the cache's memory failed to give or to take
} kvfolio_offload_counters;
KVFOLIO_C_API int32_t kvfolio_offload_get_counters(const kvfolio_offload* offload,
                                                   kvfolio_offload_counters* out,
                                                   kvfolio_error* error);

// For the tiers that it was created with, in that order.
KVFOLIO_C_API int32_t kvfolio_offload_num_tiers(const kvfolio_offload* offload);
// Latencies are counted in so many intervals. Their upper ends are 100, 300, 1,000, 3,000, 10,000,
// 30,000, 100,000, 300,000 and 1,000,000 us; the last one has none. From submit to the poll that
// said how it ended.
enum { KVFOLIO_NUM_LATENCIES = 10 };
// OffloadTierCounters in offload.h: of one tier, since the Offload was created. All damaged records
// of a tier are loads_corrupt, loads_failed[KVFOLIO_TIER_CORRUPT] and the corrupt_unasked of its
// health; those of host memory are arena_corrupt above.
typedef struct kvfolio_offload_tier_counters {
  uint32_t struct_size;
  uint32_t reserved;         // 0
  uint64_t stores;           // that the tier said are done
  uint64_t stores_failed;    // that it did not keep, for good
  uint64_t loads;            // that came and verified
  uint64_t loads_corrupt;    // that came and did not
  uint64_t loads_failed[8];  // that did not come, by KVFOLIO_TIER_OK ...
  uint64_t bytes_stored;
  uint64_t bytes_loaded;            // of loads
  uint64_t store_latency[10];       // stores by how long they took: KVFOLIO_NUM_LATENCIES
  uint64_t load_latency[10];        // the same
  uint64_t store_us;                // of all together
  uint64_t load_us;                 // the same
  uint64_t stores_failed_in_a_row;  // a tier may be silent about its trouble: watch this
  // That it was never given: it was not usable, or host memory lost them before it had room.
  uint64_t stores_dropped;
  uint64_t stores_again;  // tries of stores that ended late or busy, and were made again
  uint64_t pauses;        // that began, since its answers only timed out
  // When the last poll ended: of host memory; and 1 if it is not asked or not given stores, by a
  // pause or since what it does not answer fills its share.
  int64_t bytes_held;
  uint64_t passed_over;
} kvfolio_offload_tier_counters;
// `tier`: 0 to kvfolio_offload_num_tiers() - 1.
KVFOLIO_C_API int32_t kvfolio_offload_get_tier_counters(const kvfolio_offload* offload,
                                                        int32_t tier,
                                                        kvfolio_offload_tier_counters* out,
                                                        kvfolio_error* error);

// ArenaStats in host_arena.h.
typedef struct kvfolio_arena_stats {
  uint32_t struct_size;
  uint32_t reserved;        // 0
  int64_t bytes;            // the budget
  int64_t bytes_published;  // of the records that are there
  int64_t records;
  int64_t pins;     // records that are read now
  int64_t writing;  // records that are written now
  int64_t quarantined;
  uint64_t evictions;
  uint64_t refusals;  // no room: all is read or written
} kvfolio_arena_stats;
KVFOLIO_C_API int32_t kvfolio_offload_arena(const kvfolio_offload* offload,
                                            kvfolio_arena_stats* out, kvfolio_error* error);
// The names that it uses; they belong to it and are valid as long.
KVFOLIO_C_API kvfolio_identity* kvfolio_offload_identity(kvfolio_offload* offload);
// Recounts everything.
KVFOLIO_C_API int32_t kvfolio_offload_check_invariants(const kvfolio_offload* offload,
                                                       kvfolio_error* error);

// ---- save and restore --------------------------------------------------------------------------

// A snapshot is written to a kvfolio_byte_sink, whose error is that of the call, and read from
// this. It has `size` bytes. read_at() fills all of `out` from this place, within the size, and
// returns as write() of a sink.
typedef struct kvfolio_byte_source {
  uint32_t struct_size;
  int32_t reserved;  // 0
  void* context;
  int64_t size;
  int32_t (*read_at)(void* context, int64_t offset, void* out, int64_t num_bytes);
} kvfolio_byte_source;

// Sequences to save, with what the manager does not keep of them. Destroy it after the call.
typedef struct kvfolio_save_list kvfolio_save_list;
KVFOLIO_C_API int32_t kvfolio_save_list_create(kvfolio_save_list** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_save_list_destroy(kvfolio_save_list* list);
// Copies its arguments. The tokens are exactly those of the sequence.
KVFOLIO_C_API int32_t kvfolio_save_list_add(kvfolio_save_list* list, kvfolio_sequence sequence,
                                            const kvfolio_root* root, const int32_t* tokens,
                                            int64_t num_tokens, const kvfolio_media_span* media,
                                            int64_t num_media, kvfolio_error* error);

typedef struct kvfolio_save_options {
  uint32_t struct_size;
  int32_t no_prefix_cache;    // 1: only the sequences of the list
  const uint8_t* record_key;  // 32 bytes, with which the records are sealed; null: none
} kvfolio_save_options;
// SaveStats in snapshot.h.
typedef struct kvfolio_save_stats {
  uint32_t struct_size;
  uint32_t reserved;  // 0
  int64_t records;
  int64_t tokens;  // of all paths together; what paths share counts once
  int64_t sequences;
  int64_t bytes;
} kvfolio_save_stats;
// save() in snapshot.h, which says the errors. `list`, `options` and `stats` may be null. Keep a
// snapshot as you keep the prompts of those whose blocks it has.
KVFOLIO_C_API int32_t kvfolio_save(kvfolio_manager* manager, kvfolio_identity* identity,
                                   const kvfolio_byte_sink* sink, const kvfolio_save_list* list,
                                   const kvfolio_save_options* options, kvfolio_save_stats* stats,
                                   kvfolio_error* error);
// To a file of mode 0600, which appears whole or not at all, in place of one of that name.
KVFOLIO_C_API int32_t kvfolio_save_file(kvfolio_manager* manager, kvfolio_identity* identity,
                                        const char* path, const kvfolio_save_list* list,
                                        const kvfolio_save_options* options,
                                        kvfolio_save_stats* stats, kvfolio_error* error);

// What came back.
typedef struct kvfolio_restored kvfolio_restored;
// restore() in snapshot.h, which says the errors. The new sequences stay open.
KVFOLIO_C_API int32_t kvfolio_restore(kvfolio_manager* manager, kvfolio_identity* identity,
                                      const kvfolio_byte_source* source, kvfolio_restored** out,
                                      kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_restore_file(kvfolio_manager* manager, kvfolio_identity* identity,
                                           const char* path, kvfolio_restored** out,
                                           kvfolio_error* error);
typedef struct kvfolio_restore_options {
  uint32_t struct_size;
  int32_t reserved;           // 0
  const uint8_t* record_key;  // as those of kvfolio_disk_options
  const uint8_t* accepted_record_key;
} kvfolio_restore_options;
// The same with options, which may be null.
KVFOLIO_C_API int32_t kvfolio_restore_with(kvfolio_manager* manager, kvfolio_identity* identity,
                                           const kvfolio_byte_source* source,
                                           const kvfolio_restore_options* options,
                                           kvfolio_restored** out, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_restore_file_with(kvfolio_manager* manager,
                                                kvfolio_identity* identity, const char* path,
                                                const kvfolio_restore_options* options,
                                                kvfolio_restored** out, kvfolio_error* error);
// Closes no sequence.
KVFOLIO_C_API void kvfolio_restored_destroy(kvfolio_restored* restored);
// RestoreStats in snapshot.h.
typedef struct kvfolio_restore_stats {
  uint32_t struct_size;
  uint32_t reserved;        // 0
  int64_t records;          // whole records in the file
  int64_t records_loaded;   // blocks that were written
  int64_t records_refused;  // that did not verify when they were read
  int64_t sections_damaged;
  int64_t paths;          // ends of prompts in the file
  int64_t paths_no_room;  // and sequences: cut short, or left out, by the size of the pool
  int64_t tokens;         // of all loads
} kvfolio_restore_stats;
KVFOLIO_C_API int32_t kvfolio_restored_stats(const kvfolio_restored* restored,
                                             kvfolio_restore_stats* out, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_restored_num_sequences(const kvfolio_restored* restored);
typedef struct kvfolio_restored_sequence {
  uint32_t struct_size;
  int32_t length;  // tokens that came back; compute the others again
  kvfolio_sequence sequence;
  uint64_t caller_id;  // if has_caller_id, else 0
  int32_t has_caller_id;
  int32_t reserved;     // 0
  kvfolio_i32s tokens;  // as they were saved; valid as long as `restored`
} kvfolio_restored_sequence;
KVFOLIO_C_API int32_t kvfolio_restored_get(const kvfolio_restored* restored, int32_t index,
                                           kvfolio_restored_sequence* out, kvfolio_error* error);

#ifdef __cplusplus
}  // extern "C"
#endif

// Not in C, and why:
//  - checked_copy.h, and what record.h has beside kvfolio_record_seal(), kvfolio_record_verify(),
//    kvfolio_record_read() and the keys: parts of Offload and of snapshots, for those who build
//    another one, in C++.
//  - ForeignIdentity::fields(): the caller has what it gave.
//  - HostArena (create(), reserve(), fill(), filling(), seal(), publish(), abandon(), quarantine(),
//    quiesced(), release(), find(), hold(), contains(), touch(), erase(), erase_if(),
//    erase_some_if(), num_slots(), clear(), table_bytes(), record(), uses()): the inside of Offload
//    and of the tier in memory; kvfolio_offload_arena() has its stats().
//  - byte_stream.h: kvfolio_save_file() and kvfolio_restore_file() have its FileSink and
//    FileSource; other sinks and sources are functions of the caller.
//  - DiskTier::idle(): kvfolio_offload_drain(); check_disk_directory(): the command
//    `kvfolio tier check` is this.
//  - Offload::num_pending(): kvfolio_offload_poll() and kvfolio_offload_cancel() say how each ends,
//    and the caller knows which ones it appended to or closed before.
//  - Offload::release_stores() and OffloadOptions::hold_stores: for kvfolio.hf, which checks the
//    weights of a model that it did not load.
//  - Offload::tier(): the caller has the handles that it gave to kvfolio_offload_create().
//  - RedisTier::nodes(): kvfolio_tier_describe() has a line for each; check_invariants(): for
//    tests.
//  - snapshot_list.h: the command `kvfolio inspect` lists a snapshot.
//  - tier_metrics.h (add_metrics(), write_metrics(), corrupt_records(), is_up()): text of
//    Prometheus, made of numbers that are here: kvfolio_offload_get_counters(),
//    kvfolio_offload_get_tier_counters(), kvfolio_tier_get_health(), kvfolio_offload_arena().
//    c_handles.h gives a program in C++ the manager to add.
//  - OffloadLeft::any(): the four numbers of kvfolio_offload_left say it.
//  - op_log_file.h, op_replay.h: `kvfolio inspect` reads a log and makes its calls again;
//    kvfolio.h writes one.
//  - tiers.hpp: it includes all headers of C++.
