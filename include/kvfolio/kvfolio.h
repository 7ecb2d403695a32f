// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C interface of kvfolio, for C99 and C++, and for every language that calls C. It is the C++
// interface in other words: each function names the call behind it, whose header says the rules in
// full (include/kvfolio/*.h). Link libkvfolio; a C program needs no C++ compiler.
//
//   kvfolio_error error = KVFOLIO_ERROR_INIT;
//   kvfolio_manager_options options = {.struct_size = sizeof options, .max_sequences = 256};
//   kvfolio_manager* manager;
//   if (kvfolio_manager_create(groups, 1, &options, &manager, &error)) puts(error.message);
//
// Codes. A function that can fail returns an int32_t: KVFOLIO_OK (0) or a KVFOLIO_ERR_*. A function
// that fails changes nothing and writes nothing but *error, unless it says otherwise. `error` may
// be null. There is no last error: nothing of kvfolio is global or of a thread.
//
// Structs. The first field of each struct is its size in the caller's program: sizeof the struct.
// The library reads and writes no further, so programs and libraries of different versions work
// together: a field that the caller does not have is taken to be 0, and a field that the library
// does not have is not read, and is set to 0 in what it fills. In options 0 is the default of every
// field, also of those to come. Pointers to options may be null: all defaults. A struct_size below
// 4 or above 4096 is an error. Structs without a struct_size never change. Structs hold no pointers
// but those to memory that C owns for longer than the call (borrowed K and V, functions and their
// context). So a Go program may pass its own memory everywhere else.
//
// Handles (kvfolio_manager*, ...) are opaque. Their *_destroy() takes null, which is nothing. A
// handle may move between threads. A handle that was destroyed must not be used: it is not checked.
// A function that returns a value and no code gives 0 or null for a null handle.
// Ids (kvfolio_sequence, ...) are checked: one that was closed, or belongs to another manager with
// another id_tag, is KVFOLIO_ERR_NOT_FOUND.
//
// Arrays are a pointer and a count; the pointer may be null if the count is 0. A null pointer that
// is needed, and a negative count, are KVFOLIO_ERR_INVALID_ARGUMENT. Pointers that calls return
// belong to the library, and each call says how long they are valid.
//
// Thread safety. Functions that take a const handle may run at the same time while no other call on
// that handle runs; the owner serialises all others. Two handles have nothing in common, except
// where a call says so.

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): this is C

#if defined(__GNUC__)
#define KVFOLIO_C_API __attribute__((visibility("default")))
#else
#define KVFOLIO_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- version -----------------------------------------------------------------------------------

// Functions and fields are only added as long as this number stays. It is that of the header; the
// function gives that of the library. It counts from the first release on: before that, functions
// may change under the same number (CHANGELOG.md says which), and a program is compiled with the
// header of the library that it runs with.
#define KVFOLIO_ABI_VERSION 1
KVFOLIO_C_API uint32_t kvfolio_abi_version(void);
// "0.1.0"; a constant.
KVFOLIO_C_API const char* kvfolio_version(void);

// ---- errors ------------------------------------------------------------------------------------

enum {
  KVFOLIO_OK = 0,
  KVFOLIO_ERR_INVALID_ARGUMENT = 1,     // the argument is wrong in every state
  KVFOLIO_ERR_NOT_FOUND = 2,            // the id is unknown, closed or of another manager
  KVFOLIO_ERR_FAILED_PRECONDITION = 3,  // not allowed in this state
  KVFOLIO_ERR_NO_BLOCKS = 4,            // a group lacks blocks: see kvfolio_error.shortage
  KVFOLIO_ERR_RESOURCE_EXHAUSTED = 5,   // a fixed table is full
  KVFOLIO_ERR_ABORTED = 6,              // kvfolio_fail() closed this sequence
  KVFOLIO_ERR_OUT_OF_MEMORY = 7,
  KVFOLIO_ERR_UNSUPPORTED = 8,  // valid, but this build or configuration cannot do it
  KVFOLIO_ERR_UNAVAILABLE = 9,  // a file, device or server cannot be used now
  KVFOLIO_ERR_TIMED_OUT = 10,   // the deadline passed first
  KVFOLIO_ERR_CORRUPT = 11      // the bytes are not what was written
};
// "not found" and so on; "invalid" for a number that is no code. A constant.
KVFOLIO_C_API const char* kvfolio_code_name(int32_t code);

// Why a group lacks blocks: needed > free + evictable. In blocks, but for sequences, pins,
// loads and holds.
typedef struct kvfolio_shortage {
  uint32_t struct_size;
  int32_t group;
  int32_t needed;
  int32_t free;
  int32_t evictable;
  int32_t pinned;     // held by sequences, pins, loads and holds
  int32_t retiring;   // come back when the steps in flight are complete
  int32_t sequences;  // open ones
  int32_t pins;
  int32_t reserved;  // of the pinned ones: kept by kvfolio_reserve()
  int32_t loads;     // open ones, as holds
  int32_t holds;
  int32_t num_blocks;  // of the group
  int32_t kept;   // that the sequences of the call, or the hit of a prompt, hold beside the needed
  int32_t never;  // 1: the same call cannot succeed, whatever the others let go of
} kvfolio_shortage;

// `message` is a sentence of at most 255 bytes and always ends with 0; a longer one ends with
// "...". `shortage` is filled for KVFOLIO_ERR_NO_BLOCKS, else all its numbers are 0. After a call
// that succeeded nothing has changed here. Start with KVFOLIO_ERROR_INIT: a struct whose
// struct_size is 0 (or above 4096) receives nothing, not even the code, so test what the call
// returns.
typedef struct kvfolio_error {
  uint32_t struct_size;
  int32_t code;
  char message[256];
  kvfolio_shortage shortage;
} kvfolio_error;
#define KVFOLIO_ERROR_INIT                                               \
  {                                                                      \
    sizeof(kvfolio_error), 0, "", {                                      \
      sizeof(kvfolio_shortage), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 \
    }                                                                    \
  }

// ---- what a cache holds ------------------------------------------------------------------------

// Element types. 0 is the default of a field: f32.
enum {
  KVFOLIO_DTYPE_DEFAULT = 0,
  KVFOLIO_F64 = 1,
  KVFOLIO_F32 = 2,
  KVFOLIO_F16 = 3,
  KVFOLIO_BF16 = 4,
  KVFOLIO_INT8 = 5,  // of caches only: with an f32 scale for each token and head
  KVFOLIO_E4M3 = 6,  // so too: e4m3fn; not in format granule
  // A byte that only the engine knows: head_dim_k of them for each token and head. Rows of this
  // type go into such a cache and out of it; attention and conversion refuse it. Not in format
  // granule.
  KVFOLIO_OPAQUE = 7
};
enum { KVFOLIO_HND = 0, KVFOLIO_NHD = 1, KVFOLIO_GRANULE = 2 };
enum { KVFOLIO_FULL = 0, KVFOLIO_SLIDING_WINDOW = 1 };

// GroupSpec in spec.h, which says the limits. No pointers.
typedef struct kvfolio_group_spec {
  uint32_t struct_size;
  int32_t num_layers;    // 0: 1
  int32_t num_kv_heads;  // 0: 1
  int32_t head_dim_k;    // elements of a row of K
  int32_t head_dim_v;    // 0: there is no V
  int32_t v_is_prefix_of_k;
  int32_t block_size;  // tokens; 0: 16
  int32_t dtype;       // 0: f32
  int32_t format;      // 0: HND
  int32_t kind;        // 0: full
  int32_t window;      // KVFOLIO_SLIDING_WINDOW: tokens that a query reads, itself included
  int32_t num_sinks;
  int32_t num_blocks;
  // KVFOLIO_SLIDING_WINDOW: tokens kept behind the window, for kvfolio_truncate(). A stop string of
  // n tokens takes n - 1, one more for each step that may be in flight behind it, and the accepted
  // tokens behind it.
  int32_t rewind;
} kvfolio_group_spec;

// plan_layouts(): where the bytes of a group lie, in bytes from its base.
typedef struct kvfolio_group_layout {
  uint32_t struct_size;
  uint32_t reserved;  // 0
  int64_t block_stride;
  int64_t layer_stride;
  int64_t k_head_stride;
  int64_t k_token_stride;
  int64_t v_offset;
  int64_t v_head_stride;
  int64_t v_token_stride;
  int64_t k_scale_offset;
  int64_t v_scale_offset;
  int64_t scale_head_stride;
  int64_t scale_token_stride;
  int64_t payload_bytes_per_token;
  int64_t bytes_per_block;
  int64_t total_bytes;
} kvfolio_group_layout;

// Checks the groups and writes one layout for each; out[i].struct_size is set by the caller.
// `groups` is an array of structs of one size, that of groups[0].struct_size; so is `out`.
KVFOLIO_C_API int32_t kvfolio_plan_layouts(const kvfolio_group_spec* groups, int32_t num_groups,
                                           kvfolio_group_layout* out, kvfolio_error* error);
// fit(): fills in num_blocks of each group so that all take at most `bytes`. What is there before
// are weights; 0 in all groups: room for equally many tokens.
KVFOLIO_C_API int32_t kvfolio_fit(kvfolio_group_spec* groups, int32_t num_groups, int64_t bytes,
                                  kvfolio_error* error);

// ---- memory and storage ------------------------------------------------------------------------

enum { KVFOLIO_HOST = 0, KVFOLIO_DEVICE = 1 };

// `bytes` bytes from src to dst.
typedef struct kvfolio_copy_run {
  void* dst;
  const void* src;
  int64_t bytes;
} kvfolio_copy_run;

// Memory of the caller's own making (MemoryResource in memory.h). allocate() returns null if there
// is none, else `bytes` bytes aligned to 64 or more. copy() is for ranges that do not overlap. The
// first three are needed. copy_batch() does many copies; null: one after the other. None of these
// is told of a stream: the caller has waited for what still writes the sources. copy_in()
// copies from memory of the CPU, copy_out() to it; null: as copy_batch() if the memory is the
// host's, else they cannot. Copies return 0 if the bytes arrived; KVFOLIO_ERR_UNSUPPORTED if they
// cannot, and then nothing was copied; anything else, best a KVFOLIO_ERR, if they failed, which
// callers of a storage see as KVFOLIO_ERR_UNAVAILABLE. They must not call kvfolio.
typedef struct kvfolio_memory_resource {
  uint32_t struct_size;
  int32_t kind;
  void* context;
  void* (*allocate)(void* context, int64_t bytes);
  void (*deallocate)(void* context, void* memory, int64_t bytes);
  int32_t (*copy)(void* context, void* dst, const void* src, int64_t bytes);
  int32_t (*copy_batch)(void* context, const kvfolio_copy_run* runs, int64_t num_runs);
  int32_t (*copy_in)(void* context, const kvfolio_copy_run* runs, int64_t num_runs);
  int32_t (*copy_out)(void* context, const kvfolio_copy_run* runs, int64_t num_runs);
} kvfolio_memory_resource;

// K and V of all groups. Destroyed by kvfolio_storage_destroy(), or by its manager.
typedef struct kvfolio_storage kvfolio_storage;

// `resource` may be null: memory of the process. It is copied; its functions and context are used
// until the storage is destroyed.
KVFOLIO_C_API int32_t kvfolio_storage_create(const kvfolio_group_spec* groups, int32_t num_groups,
                                             const kvfolio_memory_resource* resource,
                                             kvfolio_storage** out, kvfolio_error* error);

// Bytes between neighbours along each axis.
typedef struct kvfolio_strides {
  int64_t layer;
  int64_t block;
  int64_t head;
  int64_t token;
} kvfolio_strides;

// Where the arrays of one layer begin; null as in kvfolio_borrowed_group.
typedef struct kvfolio_borrowed_layer {
  void* k;
  void* v;
  void* k_scale;
  void* v_scale;
} kvfolio_borrowed_layer;

// Memory of the caller for one group, which it owns until the storage is destroyed (BorrowedGroup
// in storage.h). One base for all layers in k, v and the scales; or those null and num_layers bases
// in `layers`, an array of C memory that is read by the call only.
typedef struct kvfolio_borrowed_group {
  uint32_t struct_size;
  int32_t num_layers;  // of `layers`; 0: the pointers here are bases of all layers
  void* k;             // [num_layers, num_blocks, num_kv_heads, block_size, head_dim_k]
  int64_t k_bytes;     // bytes that may be touched from k on
  kvfolio_strides k_strides;
  void* v;  // the same with head_dim_v; null if there is no V of its own
  int64_t v_bytes;
  kvfolio_strides v_strides;
  // Types with scales (int8, e4m3) only: f32 [num_layers, num_blocks, num_kv_heads, block_size].
  // Null for all others, opaque bytes too.
  void* k_scale;
  int64_t k_scale_bytes;
  kvfolio_strides k_scale_strides;
  void* v_scale;
  int64_t v_scale_bytes;
  kvfolio_strides v_scale_strides;
  const kvfolio_borrowed_layer* layers;
} kvfolio_borrowed_group;

// `borrowed` has one struct for each group, all of the size of borrowed[0].struct_size.
KVFOLIO_C_API int32_t kvfolio_storage_borrow(const kvfolio_group_spec* groups, int32_t num_groups,
                                             const kvfolio_borrowed_group* borrowed,
                                             const kvfolio_memory_resource* resource,
                                             kvfolio_storage** out, kvfolio_error* error);
// Does nothing to a storage that belongs to a manager.
KVFOLIO_C_API void kvfolio_storage_destroy(kvfolio_storage* storage);
KVFOLIO_C_API int32_t kvfolio_storage_num_groups(const kvfolio_storage* storage);
KVFOLIO_C_API int32_t kvfolio_storage_memory_kind(const kvfolio_storage* storage);
KVFOLIO_C_API int32_t kvfolio_storage_owns_memory(const kvfolio_storage* storage);
// Bytes taken from the resource; 0 if borrowed.
KVFOLIO_C_API int64_t kvfolio_storage_memory_bytes(const kvfolio_storage* storage);
// Copies block src[i] to block dst[i], in the order of i, all layers.
KVFOLIO_C_API int32_t kvfolio_storage_copy_blocks(kvfolio_storage* storage, int32_t group,
                                                  const int32_t* src, const int32_t* dst,
                                                  int64_t num_blocks, kvfolio_error* error);
// The same ids of another storage of an equal spec.
KVFOLIO_C_API int32_t kvfolio_storage_copy_blocks_from(kvfolio_storage* storage,
                                                       const kvfolio_storage* source, int32_t group,
                                                       const int32_t* blocks, int64_t num_blocks,
                                                       kvfolio_error* error);
// The image of a block: all of its bytes in one piece, in an order that storage.h says.
// 0: no such group.
KVFOLIO_C_API int64_t kvfolio_storage_block_image_bytes(const kvfolio_storage* storage,
                                                        int32_t group);
// Copies blocks to images, and back, one behind the other; image_bytes is that of all.
KVFOLIO_C_API int32_t kvfolio_storage_read_blocks(const kvfolio_storage* storage, int32_t group,
                                                  const int32_t* blocks, int64_t num_blocks,
                                                  void* images, int64_t image_bytes,
                                                  kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_storage_write_blocks(kvfolio_storage* storage, int32_t group,
                                                   const int32_t* blocks, int64_t num_blocks,
                                                   const void* images, int64_t image_bytes,
                                                   kvfolio_error* error);
// Sets every byte of every row and scale: 0xff poisons memory.
KVFOLIO_C_API int32_t kvfolio_storage_fill(kvfolio_storage* storage, uint8_t value,
                                           kvfolio_error* error);

// What kernels take: all layers of a group, or one. Valid as long as its storage; destroy it when
// it is used no more, before or after the storage.
typedef struct kvfolio_view kvfolio_view;
// layer -1: all layers; KVFOLIO_ERR_UNSUPPORTED if several were lent apart, wherever they lie.
// One layer is layer 0 of its view.
KVFOLIO_C_API int32_t kvfolio_view_create(const kvfolio_storage* storage, int32_t group,
                                          int32_t layer, kvfolio_view** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_view_destroy(kvfolio_view* view);
// The row of K or V of a token; in format granule the tile in which it lies. Null if the view has
// no such row. For programs that write K and V by themselves: row (0, 0, 0, 0) is the base that
// the strides of kvfolio_plan_layouts() count from.
KVFOLIO_C_API void* kvfolio_view_k(const kvfolio_view* view, int32_t layer, int32_t block,
                                   int32_t head, int32_t offset);
KVFOLIO_C_API void* kvfolio_view_v(const kvfolio_view* view, int32_t layer, int32_t block,
                                   int32_t head, int32_t offset);
// The f32 scale of that row; int8 and e4m3 only, else null.
KVFOLIO_C_API void* kvfolio_view_k_scale(const kvfolio_view* view, int32_t layer, int32_t block,
                                         int32_t head, int32_t offset);
KVFOLIO_C_API void* kvfolio_view_v_scale(const kvfolio_view* view, int32_t layer, int32_t block,
                                         int32_t head, int32_t offset);

// ---- manager -----------------------------------------------------------------------------------

typedef struct kvfolio_manager kvfolio_manager;
typedef uint64_t kvfolio_sequence;  // 0: none
typedef uint64_t kvfolio_pin_id;    // 0: none
typedef uint64_t kvfolio_load_id;   // 0: none
typedef uint64_t kvfolio_hold_id;   // 0: none
typedef uint64_t kvfolio_ticket;    // 1, 2, 3, ...

enum { KVFOLIO_IN_ORDER = 0, KVFOLIO_UNORDERED = 1 };
enum { KVFOLIO_LRU = 0, KVFOLIO_LFU = 1, KVFOLIO_LONGEST = 2, KVFOLIO_LOWEST_PRIORITY = 3 };
// In place of a policy: that of the manager's options.
#define KVFOLIO_POLICY_OF_OPTIONS (-1)

// ManagerOptions in manager_types.h, which says the limits. Where 0 is a value of its own there, -1
// stands for it here.
typedef struct kvfolio_manager_options {
  uint32_t struct_size;
  int32_t max_sequences;        // 0: 1024
  int32_t max_pins;             // 0: 256; -1: none
  int32_t max_steps_in_flight;  // 0: 2
  int32_t order;
  int32_t no_prefix_cache;      // 1: nothing is ever findable
  int32_t max_sequence_tokens;  // expected; 0: derived
  int32_t max_runs;             // 0: derived
  int64_t max_index_tokens;     // 0: derived
  int64_t max_root_key_bytes;   // 0: 2^20; -1: none
  int64_t max_table_entries;    // 0: derived
  uint64_t hash_seed;
  double high_watermark;      // 0: 0.90; -1: 0
  int32_t max_root_keys;      // 0: 1024
  int32_t max_media_extents;  // 0: 4096; -1: none
  int32_t victim_policy;
  int32_t id_tag;         // 0 to 65535
  int32_t max_transfers;  // 0: 256; -1: none
  int32_t list_findable;  // 1: for kvfolio_take_findable()
  // 1: with storage, the host runs the copies of each plan in stream order (on a device by kernels
  // of its own or cuda::copy_blocks() of C++; kvfolio_storage_copy_blocks() knows no stream), and
  // kvfolio_commit() does not ask for kvfolio_run_copies()
  int32_t copies_by_host;
  int32_t null_block;            // 1: block 0 of each group is never given out, and pads plans
  int64_t max_announced_tokens;  // 0: those of the largest group
} kvfolio_manager_options;

// Ids only: the engine has the bytes and runs the copies of each plan. Two managers in one process
// (a target and a draft model): give each an id_tag of its own, or an id of one names a sequence of
// the other.
KVFOLIO_C_API int32_t kvfolio_manager_create(const kvfolio_group_spec* groups, int32_t num_groups,
                                             const kvfolio_manager_options* options,
                                             kvfolio_manager** out, kvfolio_error* error);
// Takes the storage over and sets *storage to null; if it fails, the storage stays the caller's.
// Views of it stay valid as long as the manager.
KVFOLIO_C_API int32_t kvfolio_manager_create_with_storage(kvfolio_storage** storage,
                                                          const kvfolio_manager_options* options,
                                                          kvfolio_manager** out,
                                                          kvfolio_error* error);
KVFOLIO_C_API void kvfolio_manager_destroy(kvfolio_manager* manager);
// The manager's storage, or null. It belongs to the manager and is valid as long.
KVFOLIO_C_API kvfolio_storage* kvfolio_manager_storage(kvfolio_manager* manager);

// What prefixes are found under (RootKey in root_key.h). Strings are bytes of any content; they are
// copied.
typedef struct kvfolio_root kvfolio_root;
// Null stands for no bytes. A null kvfolio_root* in the calls below is the key without any, which
// all who pass null share: a binding must not pass null for a root that was destroyed.
KVFOLIO_C_API int32_t kvfolio_root_create(const char* model, int64_t model_bytes,
                                          const char* adapter, int64_t adapter_bytes,
                                          const char* adapter_version,
                                          int64_t adapter_version_bytes, const char* tenant_salt,
                                          int64_t tenant_salt_bytes, uint64_t epoch,
                                          kvfolio_root** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_root_destroy(kvfolio_root* root);

// MediaSpan in root_key.h. In arrays all have the size of the first.
typedef struct kvfolio_media_span {
  uint32_t struct_size;
  int32_t begin;
  int32_t end;
  int32_t attends_to_itself;
  uint8_t content_id[32];  // a digest of the content: all zeros are refused
} kvfolio_media_span;

enum { KVFOLIO_PUBLISH_ALL = 0, KVFOLIO_PUBLISH_FULL_BLOCKS = 1, KVFOLIO_PUBLISH_NOTHING = 2 };

typedef struct kvfolio_open_options {
  uint32_t struct_size;
  int32_t no_prefix_cache;  // 1: neither looks for a prefix nor publishes one
  int32_t no_look_up;       // 1: finds nothing, but publishes
  int32_t publish;
  int32_t has_caller_id;
  int32_t max_tokens;  // 0: no limit of its own
  uint64_t caller_id;  // if has_caller_id
  int32_t priority;
  int32_t late_names;
  int32_t announce;  // 1: kvfolio_soon() tells others that the prompt is going to be appended
  int32_t reserved;  // 0
} kvfolio_open_options;

// What a prompt finds: now, and soon (see kvfolio_soon()).
typedef struct kvfolio_found {
  uint32_t struct_size;
  int32_t cached_tokens;     // that need not be computed
  int32_t soon_tokens;       // that it will find once soon_by has published them; 0: none to come
  int32_t reserved;          // 0
  kvfolio_sequence soon_by;  // 0 if soon_tokens is
} kvfolio_found;

// Opens a sequence and holds what the cache has of the prompt. Append the tokens from
// found->cached_tokens on; `found`, which may be null, has its struct_size. `media`: ascending
// spans, copied.
KVFOLIO_C_API int32_t kvfolio_open(kvfolio_manager* manager, const kvfolio_root* root,
                                   const int32_t* tokens, int64_t num_tokens,
                                   const kvfolio_media_span* media, int64_t num_media,
                                   const kvfolio_open_options* options, kvfolio_sequence* out,
                                   kvfolio_found* found, kvfolio_error* error);
// The tokens that kvfolio_open() would find.
KVFOLIO_C_API int32_t kvfolio_probe(const kvfolio_manager* manager, const kvfolio_root* root,
                                    const int32_t* tokens, int64_t num_tokens,
                                    const kvfolio_media_span* media, int64_t num_media,
                                    const kvfolio_open_options* options, int32_t* cached_tokens,
                                    kvfolio_error* error);
// How far a hit of the prompt will reach once *by, a sequence that announces the same tokens, has
// appended and published them. *by, which may be null, is 0 if *soon_tokens is. kvfolio_open() and
// kvfolio_admit_prompt() say it too.
KVFOLIO_C_API int32_t kvfolio_soon(const kvfolio_manager* manager, const kvfolio_root* root,
                                   const int32_t* tokens, int64_t num_tokens,
                                   const kvfolio_media_span* media, int64_t num_media,
                                   const kvfolio_open_options* options, int32_t* soon_tokens,
                                   kvfolio_sequence* by, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_open_unnamed(kvfolio_manager* manager, const kvfolio_root* root,
                                           int64_t num_tokens, const kvfolio_media_span* media,
                                           int64_t num_media, const kvfolio_open_options* options,
                                           kvfolio_sequence* out, kvfolio_error* error);

typedef struct kvfolio_fork_options {
  uint32_t struct_size;
  int32_t has_caller_id;  // of the child, as the other fields
  uint64_t caller_id;
  int32_t priority;
  int32_t reserved;  // 0
} kvfolio_fork_options;
// KVFOLIO_UNORDERED: the child takes no append before the step of the parent's last one is
// complete.
KVFOLIO_C_API int32_t kvfolio_fork(kvfolio_manager* manager, kvfolio_sequence parent,
                                   const kvfolio_fork_options* options, kvfolio_sequence* out,
                                   kvfolio_error* error);
// One table for each group, one behind the other in `tables`; table_sizes[num_groups] entries each.
KVFOLIO_C_API int32_t kvfolio_adopt(kvfolio_manager* manager, kvfolio_sequence sequence,
                                    const int32_t* tables, const int64_t* table_sizes,
                                    int32_t num_tables, int32_t num_tokens, kvfolio_error* error);
// Forgets the tokens from num_tokens on, drafts too; those in front of it stay undecided. Never
// refused from kvfolio_sequence_info.rewind_from on, unless the sequence is in the open step or
// num_tokens is beyond its length. Below, what is read there may not be there any more
// (KVFOLIO_ERR_FAILED_PRECONDITION: close, and open the first num_tokens tokens again), or to take
// it back is a shortage (KVFOLIO_ERR_NO_BLOCKS).
KVFOLIO_C_API int32_t kvfolio_truncate(kvfolio_manager* manager, kvfolio_sequence sequence,
                                       int32_t num_tokens, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_clear(kvfolio_manager* manager, kvfolio_sequence sequence,
                                    kvfolio_error* error);
// Keeps the first num_sinks and the last `window` tokens; *dropped, which may be null, gets how
// many went.
KVFOLIO_C_API int32_t kvfolio_trim(kvfolio_manager* manager, kvfolio_sequence sequence,
                                   int64_t num_sinks, int64_t window, int32_t* dropped,
                                   kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_close(kvfolio_manager* manager, kvfolio_sequence sequence,
                                    kvfolio_error* error);
// Out of the open step, if it is in it, and closed.
KVFOLIO_C_API int32_t kvfolio_cancel(kvfolio_manager* manager, kvfolio_sequence sequence,
                                     kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_preempt(kvfolio_manager* manager, kvfolio_sequence sequence,
                                      kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_set_priority(kvfolio_manager* manager, kvfolio_sequence sequence,
                                           int32_t priority, kvfolio_error* error);
// Counts as a use, for the policies by use.
KVFOLIO_C_API int32_t kvfolio_touch(kvfolio_manager* manager, kvfolio_sequence sequence,
                                    kvfolio_error* error);

// ---- steps -------------------------------------------------------------------------------------

// now_us: the manager's only clock; not read yet.
KVFOLIO_C_API int32_t kvfolio_begin_step(kvfolio_manager* manager, uint64_t now_us,
                                         kvfolio_ticket* out, kvfolio_error* error);
// The last `draft` tokens are guesses: kvfolio_accept() decides. An append behind undecided drafts
// assumes that all of them stand. The whole prompt behind what kvfolio_open() found of it is
// refused.
KVFOLIO_C_API int32_t kvfolio_append(kvfolio_manager* manager, kvfolio_sequence sequence,
                                     const int32_t* tokens, int64_t num_tokens, int32_t draft,
                                     kvfolio_error* error);
// Appends the next tokens of the prompt that the sequence lacks, at most at_most. *num_appended,
// which may be null, is 0 once it has them all.
KVFOLIO_C_API int32_t kvfolio_append_prompt(kvfolio_manager* manager, kvfolio_sequence sequence,
                                            const int32_t* prompt, int64_t num_tokens,
                                            int64_t at_most, int32_t* num_appended,
                                            kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_append_unnamed(kvfolio_manager* manager, kvfolio_sequence sequence,
                                             int64_t num_tokens, int32_t draft,
                                             kvfolio_error* error);
// A decode step in one call: tokens[i] to sequences[i]. Ends at the first that fails, with its
// error: the first *num_appended, which may be null, are in the step then.
KVFOLIO_C_API int32_t kvfolio_append_each(kvfolio_manager* manager,
                                          const kvfolio_sequence* sequences, const int32_t* tokens,
                                          int64_t num_sequences, int64_t* num_appended,
                                          kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_append_unnamed_each(kvfolio_manager* manager,
                                                  const kvfolio_sequence* sequences,
                                                  int64_t num_sequences, int64_t* num_appended,
                                                  kvfolio_error* error);
// Names the oldest unnamed tokens. What a step samples is the input of the next one.
KVFOLIO_C_API int32_t kvfolio_set_tokens(kvfolio_manager* manager, kvfolio_sequence sequence,
                                         const int32_t* tokens, int64_t num_tokens,
                                         kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_set_tokens_each(kvfolio_manager* manager,
                                              const kvfolio_sequence* sequences,
                                              const int32_t* tokens, int64_t num_sequences,
                                              int64_t* num_named, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_undo(kvfolio_manager* manager, kvfolio_sequence sequence,
                                   kvfolio_error* error);

typedef struct kvfolio_i32s {
  const int32_t* data;
  int64_t size;
} kvfolio_i32s;

typedef struct kvfolio_i64s {
  const int64_t* data;
  int64_t size;
} kvfolio_i64s;

// PlanOptions in step_plan.h, which says what fixed shapes are.
typedef struct kvfolio_plan_options {
  uint32_t struct_size;
  int32_t pad_with_zero;  // 0: block tables are padded with -1
  int32_t no_block_tables;
  int32_t changed_entries;
  int32_t flashinfer;
  int32_t shared_prefixes;
  int32_t positions;
  int32_t caller_ids;
  // [num_groups] or empty; an entry of 0: as wide as the longest table of the step. One beyond what
  // a table of the group can ever have, the blocks of 2^30 tokens or max_table_entries, is refused;
  // kvfolio_widest() is allowed always. Without `memory` a step keeps a buffer up to one and a half
  // times as large as its largest plan.
  kvfolio_i32s table_stride;
  int32_t padded_sequences;  // 0: those of the step
  int32_t padded_tokens;     // 0: those of the step
  // Where the arrays of numbers are written, or null: memory of the caller, from a multiple of 8
  // on; each array begins a multiple of 16 bytes behind its begin. It stays until the step has
  // ended or was planned again.
  void* memory;
  int64_t memory_bytes;
  int32_t int64_slots;  // 1: slot_mapping_64 in place of slot_mapping
  int32_t reserved;     // 0
} kvfolio_plan_options;

typedef struct kvfolio_shared_prefix {
  int32_t first_sequence;
  int32_t num_sequences;
  int32_t num_blocks;
} kvfolio_shared_prefix;

// GroupPlan in step_plan.h, which says each array. What was not asked for is empty.
typedef struct kvfolio_group_plan {
  uint32_t struct_size;
  int32_t block_table_stride;
  kvfolio_i32s slot_mapping;  // [num_tokens], -1: K and V are there already
  kvfolio_i32s block_table;   // [num_sequences, block_table_stride]
  kvfolio_i32s kv_indptr;     // FlashInfer
  kvfolio_i32s kv_indices;
  kvfolio_i32s kv_last_page_len;
  kvfolio_i32s copy_src;  // whole blocks to copy before the step writes
  kvfolio_i32s copy_dst;
  kvfolio_i32s changed_rows;
  kvfolio_i32s changed_columns;
  kvfolio_i32s changed_blocks;
  const kvfolio_shared_prefix* shared_prefixes;
  int64_t num_shared_prefixes;
  kvfolio_i32s kv_first_live;  // FlashInfer: the first position behind the gap in the pages
  kvfolio_i64s slot_mapping_64;
} kvfolio_group_plan;

// StepPlan in step_plan.h. With padded_sequences the arrays of numbers have an entry for each row
// of padding, too, and with padded_tokens one for each token; num_sequences and num_tokens count
// those of the step.
typedef struct kvfolio_step_plan {
  uint32_t struct_size;
  int32_t num_tokens;
  kvfolio_ticket ticket;
  const kvfolio_sequence* sequences;  // [num_sequences], in append order
  int64_t num_sequences;
  kvfolio_i32s rows;         // [num_sequences]
  kvfolio_i32s query_start;  // [num_sequences + 1]
  kvfolio_i32s kv_lens;      // [num_sequences]
  kvfolio_i32s trim_sinks;
  kvfolio_i32s trim_first_kept;
  kvfolio_i32s positions;  // [num_tokens]
  // [num_sequences]: the rewinds of each sequence (kvfolio_sequence_info). A row is void if its
  // sequence is gone, or has another count by now.
  kvfolio_i32s rewinds;
  const uint64_t* caller_ids;  // [num_sequences] if asked for, else null; 0: it has none
  // This plan of the manager, from 1 on, and the one that the lists of changed entries come after
  // (UINT64_MAX: without these): kvfolio_cuda_plan_upload() compares them.
  uint64_t number;
  uint64_t follows;
} kvfolio_step_plan;

// Writes *out and groups[num_groups], whose struct_size the caller has set (groups are all of the
// size of groups[0]); `groups` may be null and num_groups 0. The structs are the caller's. What
// their arrays point to is the manager's: it is valid until that step is completed, dropped or
// failed, or planned again.
KVFOLIO_C_API int32_t kvfolio_plan(kvfolio_manager* manager, const kvfolio_plan_options* options,
                                   kvfolio_step_plan* out, kvfolio_group_plan* groups,
                                   int32_t num_groups, kvfolio_error* error);
// Bytes of memory that every plan with these options fits into. KVFOLIO_ERR_INVALID_ARGUMENT: they
// leave a size open (padded_sequences, padded_tokens, a table_stride), or a size is out of range.
KVFOLIO_C_API int32_t kvfolio_plan_bytes(const kvfolio_manager* manager,
                                         const kvfolio_plan_options* options, int64_t* bytes,
                                         kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_run_copies(kvfolio_manager* manager, kvfolio_error* error);
// KVFOLIO_ERR_FAILED_PRECONDITION, and the step stays open: since its last kvfolio_plan() a
// sequence was appended, whose K and V were never written, or taken out (undo, preempt, cancel),
// whose slots may be another's by now; or with storage its copies have not run (and not
// copies_by_host).
KVFOLIO_C_API int32_t kvfolio_commit(kvfolio_manager* manager, kvfolio_ticket ticket,
                                     kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_complete(kvfolio_manager* manager, kvfolio_ticket ticket,
                                       kvfolio_error* error);
// Commits and completes. Errors as kvfolio_commit().
KVFOLIO_C_API int32_t kvfolio_finish(kvfolio_manager* manager, kvfolio_ticket ticket,
                                     kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_drop(kvfolio_manager* manager, kvfolio_ticket ticket,
                                   kvfolio_error* error);

// A sequence that a call ended, and the name that its caller gave it.
typedef struct kvfolio_ended {
  kvfolio_sequence sequence;
  uint64_t caller_id;  // if has_caller_id, else 0
  int32_t has_caller_id;
  int32_t reserved;  // 0
} kvfolio_ended;
// Closes each sequence that wrote in the steps from ticket on, or holds a block that they wrote.
// One that found its whole prompt and appended only its last token wrote nothing: it stays open,
// with its length and rewinds, and what it sampled is lost. Close it too, and open its text again.
// *ended is the manager's; valid until the next kvfolio_fail() or kvfolio_preempt_to(). Both out
// pointers may be null.
KVFOLIO_C_API int32_t kvfolio_fail(kvfolio_manager* manager, kvfolio_ticket ticket,
                                   const kvfolio_ended** ended, int64_t* num_ended,
                                   kvfolio_error* error);
// Decides on the drafts of the oldest append that has some: the first num_accepted of them stand.
// Fewer than all: what was appended behind is cut as well, and kvfolio_sequence_info.rewinds counts
// it: rows of steps in flight are void then. Due once for each append with drafts; for one
// without, such as a chunk of a prompt, it would decide on those of a later one.
KVFOLIO_C_API int32_t kvfolio_accept(kvfolio_manager* manager, kvfolio_sequence sequence,
                                     int32_t num_accepted, kvfolio_error* error);

// ---- room --------------------------------------------------------------------------------------

// Would num_tokens[i] tokens fit each sequence, all in one step?
KVFOLIO_C_API int32_t kvfolio_admit(kvfolio_manager* manager, const kvfolio_sequence* sequences,
                                    const int64_t* num_tokens, int64_t num_sequences,
                                    kvfolio_error* error);
// Would the prompt, and num_more tokens behind it, fit: with a most_per_step of 0 in one step, else
// in chunks of at most so many, as kvfolio_open() and then kvfolio_reserve() would say?
// blocks[num_groups]: what the append would take, or kvfolio_reserve() keep; may be null and 0.
// `found`: as in kvfolio_open().
KVFOLIO_C_API int32_t kvfolio_admit_prompt(const kvfolio_manager* manager, const kvfolio_root* root,
                                           const int32_t* tokens, int64_t num_tokens,
                                           const kvfolio_media_span* media, int64_t num_media,
                                           const kvfolio_open_options* options, int64_t num_more,
                                           int64_t most_per_step, kvfolio_found* found,
                                           int32_t* blocks, int32_t num_groups,
                                           kvfolio_error* error);
// The same for a sequence that is open. Keeps no table entries.
KVFOLIO_C_API int32_t kvfolio_admit_sequence(const kvfolio_manager* manager,
                                             kvfolio_sequence sequence, int64_t num_tokens,
                                             int64_t most_per_step, int32_t* blocks,
                                             int32_t num_groups, kvfolio_error* error);
// Keeps blocks for num_tokens more tokens, at most most_per_step in a step; 0: all in one step.
KVFOLIO_C_API int32_t kvfolio_reserve(kvfolio_manager* manager, kvfolio_sequence sequence,
                                      int64_t num_tokens, int64_t most_per_step,
                                      kvfolio_error* error);
// Evicts up to num_blocks cached blocks of a group. `evicted` gets the first `capacity` of them and
// may be null; *num_evicted, which may be null, how many went.
KVFOLIO_C_API int32_t kvfolio_evict(kvfolio_manager* manager, int32_t group, int32_t num_blocks,
                                    int32_t* evicted, int64_t capacity, int32_t* num_evicted,
                                    kvfolio_error* error);
// Makes everything unfindable; or all of a root key; or all that begins with these tokens. Both out
// pointers may be null.
KVFOLIO_C_API int32_t kvfolio_reset(kvfolio_manager* manager, int64_t* blocks, int32_t* pins,
                                    kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_forget_root(kvfolio_manager* manager, const kvfolio_root* root,
                                          int64_t* blocks, int32_t* pins, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_forget(kvfolio_manager* manager, const kvfolio_root* root,
                                     const int32_t* tokens, int64_t num_tokens,
                                     const kvfolio_media_span* media, int64_t num_media,
                                     int64_t* blocks, int32_t* pins, kvfolio_error* error);
// Holds whole blocks of what is found of these tokens, *pinned_tokens of them, which may be null.
KVFOLIO_C_API int32_t kvfolio_pin(kvfolio_manager* manager, const kvfolio_root* root,
                                  const int32_t* tokens, int64_t num_tokens,
                                  const kvfolio_media_span* media, int64_t num_media,
                                  const kvfolio_open_options* options, kvfolio_pin_id* out,
                                  int32_t* pinned_tokens, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_unpin(kvfolio_manager* manager, kvfolio_pin_id pin,
                                    kvfolio_error* error);
KVFOLIO_C_API double kvfolio_utilization(const kvfolio_manager* manager);
KVFOLIO_C_API int32_t kvfolio_needs_eviction(const kvfolio_manager* manager);
// The sequence whose end frees a block by itself, and that is not in the open step. 0: there is
// none, also where sequences share all of their blocks: complete a step, let a sequence of the open
// step wait, unpin, or preempt by your own choice, the youngest first, until an append fits.
// policy: one of KVFOLIO_LRU (0) ... or KVFOLIO_POLICY_OF_OPTIONS (-1), that of
// kvfolio_manager_options.victim_policy.
KVFOLIO_C_API kvfolio_sequence kvfolio_select_victim(kvfolio_manager* manager, int32_t policy);
// Preempts while kvfolio_utilization() > target. Out pointers as in kvfolio_fail().
KVFOLIO_C_API int32_t kvfolio_preempt_to(kvfolio_manager* manager, double target, int32_t policy,
                                         const kvfolio_ended** ended, int64_t* num_ended,
                                         kvfolio_error* error);

// ---- transfers: blocks whose bytes others copy -------------------------------------------------

typedef struct kvfolio_load {
  uint32_t struct_size;
  int32_t reserved;    // 0
  kvfolio_load_id id;  // 0: the cache has it all; there is nothing to finish
  int32_t begin;       // the length of the sequence
  int32_t end;
} kvfolio_load;
// Lets the sequence grow to `end` tokens of the prompt, whose K and V the caller has: it writes the
// blocks of kvfolio_blocks_to_load() and calls kvfolio_finish_load(). No tokens are appended
// meanwhile.
KVFOLIO_C_API int32_t kvfolio_begin_load(kvfolio_manager* manager, kvfolio_sequence sequence,
                                         const int32_t* prompt, int64_t num_tokens, int32_t end,
                                         kvfolio_load* out, kvfolio_error* error);
// The blocks of a group to write: logical[i] is blocks[i]. Writes at most `capacity` of them, and
// to *count, which may be null, how many there are. All tokens of a block are to be written, also
// those in front of `begin`.
KVFOLIO_C_API int32_t kvfolio_blocks_to_load(const kvfolio_manager* manager, kvfolio_load_id load,
                                             int32_t group, int32_t* logical, int32_t* blocks,
                                             int64_t capacity, int32_t* count,
                                             kvfolio_error* error);
// Nothing writes to the blocks any more, and the first num_tokens tokens of the load are good.
// *stand, which may be null, gets how many of them the sequence has now.
KVFOLIO_C_API int32_t kvfolio_finish_load(kvfolio_manager* manager, kvfolio_load_id load,
                                          int32_t num_tokens, int32_t* stand, kvfolio_error* error);
// How far a load could reach with blocks that a tier has: a byte that is not 0 for each logical
// block of `limit` tokens, the groups one behind the other, sizes[i] bytes for group i. On return 1
// for those that a load to *end would wait for, else 0. The three results may be null: tokens that
// are there without the tier, tokens with it, and blocks to load.
KVFOLIO_C_API int32_t kvfolio_loadable(const kvfolio_manager* manager, kvfolio_sequence sequence,
                                       const int32_t* prompt, int64_t num_tokens, int32_t limit,
                                       uint8_t* has, const int64_t* sizes, int32_t num_groups,
                                       int32_t* begin, int32_t* end, int64_t* blocks,
                                       kvfolio_error* error);
// Keeps the blocks as they are while a host copies from them.
KVFOLIO_C_API int32_t kvfolio_hold_blocks(kvfolio_manager* manager, int32_t group,
                                          const int32_t* blocks, int64_t num_blocks,
                                          kvfolio_hold_id* out, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_release_hold(kvfolio_manager* manager, kvfolio_hold_id hold,
                                           kvfolio_error* error);

typedef struct kvfolio_findable_block {
  int32_t group;
  int32_t block;
  int32_t end;       // one past the last position whose token can be found in it
  int32_t reserved;  // 0
  uint64_t serial;   // kvfolio_entry_serial() now
} kvfolio_findable_block;
// Writes at most `capacity` blocks that became findable and may be read, and returns how many.
// 0 without the option list_findable.
KVFOLIO_C_API int32_t kvfolio_take_findable(kvfolio_manager* manager, kvfolio_findable_block* out,
                                            int64_t capacity);
// Stays as long as the block is found by the same tokens. 0: it is not, or without list_findable.
KVFOLIO_C_API int32_t kvfolio_entry_serial(const kvfolio_manager* manager, int32_t group,
                                           int32_t block, uint64_t* out, kvfolio_error* error);
// The path that a findable block ends: tokens [begin, begin + num_tokens), at most num_media of its
// first media spans, the number of all tokens and of all spans, and the root, which the caller
// destroys. The last three may be null.
KVFOLIO_C_API int32_t kvfolio_prefix_of(const kvfolio_manager* manager, int32_t group,
                                        int32_t block, int32_t begin, int32_t* tokens,
                                        int64_t num_tokens, kvfolio_media_span* media,
                                        int64_t num_media, int32_t* path_tokens,
                                        int32_t* path_media, kvfolio_root** root,
                                        kvfolio_error* error);
// The block of group `of` that holds whole what ends at `end` on that path; -1: there is none.
KVFOLIO_C_API int32_t kvfolio_block_at(const kvfolio_manager* manager, int32_t group, int32_t block,
                                       int32_t of, int32_t end, int32_t* out, kvfolio_error* error);

// ---- questions ---------------------------------------------------------------------------------

typedef struct kvfolio_sequence_info {
  uint32_t struct_size;
  int32_t length;
  int32_t accepted_length;
  int32_t published_length;
  int32_t trim_sinks;
  int32_t trim_first_kept;
  int32_t in_open_step;
  int32_t num_unnamed;
  int64_t reserved_tokens;
  uint64_t caller_id;  // if has_caller_id, else 0
  int32_t has_caller_id;
  int32_t max_tokens;
  uint64_t last_use;
  uint64_t use_count;
  int32_t priority;
  int32_t reserved;      // 0
  kvfolio_load_id load;  // that is open for it; 0: none
  int32_t rewinds;       // how often tokens of committed steps were cut
  int32_t rewind_from;   // kvfolio_truncate() down to it is refused in an open step only
} kvfolio_sequence_info;
KVFOLIO_C_API int32_t kvfolio_info(const kvfolio_manager* manager, kvfolio_sequence sequence,
                                   kvfolio_sequence_info* out, kvfolio_error* error);
// out->data is the manager's; valid until the sequence changes or is admitted. -1: dropped.
KVFOLIO_C_API int32_t kvfolio_block_table(const kvfolio_manager* manager, kvfolio_sequence sequence,
                                          int32_t group, kvfolio_i32s* out, kvfolio_error* error);
// The slots of positions [begin, begin + count); -1: the block was dropped.
KVFOLIO_C_API int32_t kvfolio_slot_mapping(const kvfolio_manager* manager,
                                           kvfolio_sequence sequence, int32_t group, int32_t begin,
                                           int32_t* out, int64_t count, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_find(const kvfolio_manager* manager, uint64_t caller_id,
                                   kvfolio_sequence* out, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_num_sequences(const kvfolio_manager* manager);
// Writes at most `capacity` ids of open sequences and returns how many.
KVFOLIO_C_API int32_t kvfolio_sequences(const kvfolio_manager* manager, kvfolio_sequence* out,
                                        int64_t capacity);

typedef struct kvfolio_group_usage {
  uint32_t struct_size;
  int32_t num_blocks;  // free + held + cached + retiring
  int32_t free;
  int32_t held;
  int32_t cached;
  int32_t retiring;
  int32_t evictable;
  int32_t reserved;  // of the held ones
  int32_t loading;   // of the held ones
  int32_t on_hold;   // references of holds
} kvfolio_group_usage;
KVFOLIO_C_API int32_t kvfolio_usage(const kvfolio_manager* manager, int32_t group,
                                    kvfolio_group_usage* out, kvfolio_error* error);

enum {
  KVFOLIO_BLOCK_FREE = 0,
  KVFOLIO_BLOCK_HELD = 1,
  KVFOLIO_BLOCK_CACHED = 2,
  KVFOLIO_BLOCK_RETIRING = 3
};
KVFOLIO_C_API int32_t kvfolio_block_state(const kvfolio_manager* manager, int32_t group,
                                          int32_t block, int32_t* out, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_ref_count(const kvfolio_manager* manager, int32_t group,
                                        int32_t block, int32_t* out, kvfolio_error* error);
// 0 or 1.
KVFOLIO_C_API int32_t kvfolio_is_findable(const kvfolio_manager* manager, int32_t group,
                                          int32_t block, int32_t* out, kvfolio_error* error);
// One past the last position whose token can be found in the block; 0: none.
KVFOLIO_C_API int32_t kvfolio_findable_end(const kvfolio_manager* manager, int32_t group,
                                           int32_t block, int32_t* out, kvfolio_error* error);
KVFOLIO_C_API int64_t kvfolio_bytes_total(const kvfolio_manager* manager);
KVFOLIO_C_API int64_t kvfolio_bytes_used(const kvfolio_manager* manager);
// Bytes beside the blocks: reserved at creation, and in use. Both may be null.
KVFOLIO_C_API void kvfolio_metadata(const kvfolio_manager* manager, int64_t* reserved,
                                    int64_t* used);
KVFOLIO_C_API int32_t kvfolio_num_rows(const kvfolio_manager* manager);
KVFOLIO_C_API int32_t kvfolio_widest(const kvfolio_manager* manager, int32_t group, int32_t* out,
                                     kvfolio_error* error);
// Writes text for people, at most `capacity` bytes with the 0 at its end, and returns the bytes of
// the whole text without it; so capacity 0 asks for the size.
KVFOLIO_C_API int64_t kvfolio_describe(const kvfolio_manager* manager, char* out, int64_t capacity);

// Counters in manager_types.h.
typedef struct kvfolio_counters {
  uint32_t struct_size;
  uint32_t reserved;  // 0
  uint64_t blocks_allocated;
  uint64_t blocks_freed;
  uint64_t blocks_evicted;
  uint64_t blocks_unhung;
  uint64_t block_copies;
  uint64_t sequences_opened;
  uint64_t sequences_closed;
  uint64_t sequences_preempted;
  uint64_t sequences_aborted;
  uint64_t forks;
  uint64_t tokens_looked_up;
  uint64_t tokens_reused;
  uint64_t tokens_committed;
  uint64_t blocks_published;
  uint64_t publications_skipped;
  uint64_t blocks_used_peak;
  uint64_t tokens_loaded;
  uint64_t announcements_skipped;
} kvfolio_counters;
KVFOLIO_C_API int32_t kvfolio_get_counters(const kvfolio_manager* manager, kvfolio_counters* out,
                                           kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_num_groups(const kvfolio_manager* manager);
KVFOLIO_C_API int32_t kvfolio_get_group(const kvfolio_manager* manager, int32_t group,
                                        kvfolio_group_spec* out, kvfolio_error* error);
// The options with derived values in place of 0.
KVFOLIO_C_API int32_t kvfolio_get_options(const kvfolio_manager* manager,
                                          kvfolio_manager_options* out, kvfolio_error* error);
// Makes `target` a deep equal of the manager. Reads `manager`, changes `target`, whose plans,
// tables and tickets of before are gone.
KVFOLIO_C_API int32_t kvfolio_copy_to(const kvfolio_manager* manager, kvfolio_manager* target,
                                      kvfolio_error* error);
// A hash of all that later answers depend on, but for names: state_hash() in manager.h.
KVFOLIO_C_API int32_t kvfolio_state_hash(const kvfolio_manager* manager, uint64_t* out,
                                         kvfolio_error* error);
// Recounts everything.
KVFOLIO_C_API int32_t kvfolio_check_invariants(const kvfolio_manager* manager,
                                               kvfolio_error* error);

// ---- operation log -----------------------------------------------------------------------------

// Where the calls of a manager are written down, for `kvfolio inspect --replay` (op_log.h). It
// holds the tokens of prompts.
typedef struct kvfolio_op_log kvfolio_op_log;

// `fd`: an open file, which becomes the log's and is closed with it, unless this fails; the library
// itself opens none. Give it mode 0600. With flush_each_call the arguments of a call are written
// before the call is made.
KVFOLIO_C_API int32_t kvfolio_op_log_create_fd(int32_t fd, int32_t flush_each_call,
                                               kvfolio_op_log** out, kvfolio_error* error);
// Takes bytes in order. write() takes all of them and returns 0, or the KVFOLIO_ERR_* that says why
// it cannot (another number: KVFOLIO_ERR_UNAVAILABLE). It calls nothing of the manager.
typedef struct kvfolio_byte_sink {
  uint32_t struct_size;
  int32_t reserved;  // 0
  void* context;
  int32_t (*write)(void* context, const void* bytes, int64_t num_bytes);
} kvfolio_byte_sink;
// The sink is copied; its function and context are used until the log is destroyed.
KVFOLIO_C_API int32_t kvfolio_op_log_create(const kvfolio_byte_sink* sink, int32_t flush_each_call,
                                            kvfolio_op_log** out, kvfolio_error* error);
// From now on each call that changes the manager is written down; call it before the first of them.
// A null log: no more, and the log is whole. An error of the log never changes what a call of the
// manager returns: kvfolio_op_log_status() says it.
KVFOLIO_C_API int32_t kvfolio_record(kvfolio_manager* manager, kvfolio_op_log* log,
                                     kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_op_log_flush(kvfolio_op_log* log, kvfolio_error* error);
// KVFOLIO_OK, or why the log ended before the calls did.
KVFOLIO_C_API int32_t kvfolio_op_log_status(const kvfolio_op_log* log, kvfolio_error* error);
KVFOLIO_C_API int64_t kvfolio_op_log_num_calls(const kvfolio_op_log* log);
// While a manager records into it, the memory lives on until that ends.
KVFOLIO_C_API void kvfolio_op_log_destroy(kvfolio_op_log* log);

// ---- kernels -----------------------------------------------------------------------------------
//
// Functions over views: they need no manager. Rows are in the caller's memory and parameters of the
// call; kvfolio_rows says how they lie. The rules are those of kernels.h.

// [num_tokens, num_heads, head_dim], elements contiguous. Strides are in bytes; both 0: without
// gaps.
typedef struct kvfolio_rows {
  uint32_t struct_size;
  int32_t dtype;  // 0: f32
  int32_t num_tokens;
  int32_t num_heads;
  int32_t head_dim;
  int32_t reserved;  // 0
  int64_t token_stride;
  int64_t head_stride;
} kvfolio_rows;

// Writes token t of k and v to slots[t] of a layer; -1: it is skipped. v and v_rows are null if the
// cache has no V of its own. num_slots is the num_tokens of k_rows. Several threads may write to
// different slots of one view at the same time; that holds for all calls that write to a view.
KVFOLIO_C_API int32_t kvfolio_append_rows(kvfolio_view* cache, int32_t layer, const void* k,
                                          const kvfolio_rows* k_rows, const void* v,
                                          const kvfolio_rows* v_rows, const int32_t* slots,
                                          int64_t num_slots, kvfolio_error* error);

typedef struct kvfolio_gather_options {
  uint32_t struct_size;
  int32_t length;  // tokens of the sequence
  int32_t first;   // positions [first, first + count)
  int32_t count;
  int32_t first_layer;
  int32_t num_layers;  // 0: 1
  int32_t first_head;
  int32_t reserved;        // 0
  int64_t k_layer_stride;  // bytes from one layer's rows to the next one's
  int64_t v_layer_stride;
} kvfolio_gather_options;
// Copies positions of one sequence to rows; k or v may be null and is then not written.
KVFOLIO_C_API int32_t kvfolio_gather(const kvfolio_view* cache, const int32_t* block_table,
                                     int64_t num_entries, const kvfolio_gather_options* options,
                                     void* k, const kvfolio_rows* k_rows, void* v,
                                     const kvfolio_rows* v_rows, kvfolio_error* error);
// Copies positions [first, first + n) of a sequence of a manager with storage to rows, of one
// layer: n is the num_tokens of the rows. k or v may be null and is then not written. What the open
// step appends counts, as in attention: its K and V have been written (gather_sequence.h).
KVFOLIO_C_API int32_t kvfolio_gather_sequence(const kvfolio_manager* manager,
                                              kvfolio_sequence sequence, int32_t group,
                                              int32_t layer, int32_t first, void* k,
                                              const kvfolio_rows* k_rows, void* v,
                                              const kvfolio_rows* v_rows, kvfolio_error* error);
// One token, head and layer; k or v may be null. dtype: of both rows.
KVFOLIO_C_API int32_t kvfolio_write_token(kvfolio_view* cache, int32_t layer, int32_t head,
                                          int32_t slot, int32_t dtype, const void* k, const void* v,
                                          kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_read_token(const kvfolio_view* cache, int32_t layer, int32_t head,
                                         int32_t slot, int32_t dtype, void* k, void* v,
                                         kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_copy_blocks(kvfolio_view* cache, const int32_t* src,
                                          const int32_t* dst, int64_t num_blocks,
                                          kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_convert_blocks(const kvfolio_view* from, kvfolio_view* to,
                                             const int32_t* src, const int32_t* dst,
                                             int64_t num_blocks, kvfolio_error* error);
// dst = src, element by element; equal shapes, any element types.
KVFOLIO_C_API int32_t kvfolio_convert(const void* src, const kvfolio_rows* src_rows, void* dst,
                                      const kvfolio_rows* dst_rows, kvfolio_error* error);

// KernelTarget in kernels.h. 0: the one that KVFOLIO_KERNEL names, else the fastest.
enum {
  KVFOLIO_TARGET_AUTO = 0,
  KVFOLIO_TARGET_REFERENCE = 1,
  KVFOLIO_TARGET_PORTABLE = 2,
  KVFOLIO_TARGET_AVX2 = 3,
  KVFOLIO_TARGET_AVX512 = 4,
  KVFOLIO_TARGET_AVX512_BF16 = 5,
  KVFOLIO_TARGET_NEON = 6
};
// "avx2" and so on; "invalid" for a number that is no target. A constant.
KVFOLIO_C_API const char* kvfolio_target_name(int32_t target);
KVFOLIO_C_API int32_t kvfolio_parse_target(const char* name, int32_t* out, kvfolio_error* error);
// Writes at most `capacity` targets that this CPU runs, slowest first, and returns how many it
// runs.
KVFOLIO_C_API int32_t kvfolio_targets(int32_t* out, int32_t capacity);
KVFOLIO_C_API int32_t kvfolio_choose_target(const kvfolio_view* cache, int32_t wanted, int32_t* out,
                                            kvfolio_error* error);

// Threads that the caller lends (Executor in executor.h): parallel_for() calls task(arg, i) once
// for each i in 0 .. n-1 and returns when all have returned. Read during a call only.
typedef struct kvfolio_executor {
  uint32_t struct_size;
  int32_t num_threads;
  void* context;
  void (*parallel_for)(void* context, int32_t n, void (*task)(void* arg, int32_t index), void* arg);
} kvfolio_executor;

// For a program that has no threads to lend.
typedef struct kvfolio_thread_pool kvfolio_thread_pool;
// num_threads counts the caller: 1 starts none.
KVFOLIO_C_API int32_t kvfolio_thread_pool_create(int32_t num_threads, kvfolio_thread_pool** out,
                                                 kvfolio_error* error);
KVFOLIO_C_API void kvfolio_thread_pool_destroy(kvfolio_thread_pool* pool);
KVFOLIO_C_API int32_t kvfolio_thread_pool_num_threads(const kvfolio_thread_pool* pool);
// Valid as long as the pool. Its parallel_for may be called by several threads at a time.
KVFOLIO_C_API int32_t kvfolio_thread_pool_executor(kvfolio_thread_pool* pool, kvfolio_executor* out,
                                                   kvfolio_error* error);

// AttentionParams, AttentionSlice and the rest of AttentionArgs. A group with a window needs its
// window and sinks here: kvfolio_attention_options_of() fills them in. Without them attend() reads
// what the window has passed, as long as it is there, and gives wrong numbers.
typedef struct kvfolio_attention_options {
  uint32_t struct_size;
  int32_t layer;
  double scale;  // 0: 1 / sqrt(head_dim_k)
  int32_t not_causal;
  int32_t window;  // tokens that a query reads, itself included; 0: no window
  int32_t num_sinks;
  int32_t target;
  // 1: only rows [first_row, first_row + num_rows) and KV heads [first_kv_head, first_kv_head +
  // num_kv_heads); a share without rows or heads writes nothing. 0: all, and the four are 0.
  int32_t slice;
  int32_t first_row;
  int32_t num_rows;
  int32_t first_kv_head;
  int32_t num_kv_heads;
  // Tokens of a chunk: a query reads its own chunk, and the sinks; 0: no chunks. Not with a window.
  int32_t chunk;
  double soft_cap;            // scores become soft_cap * tanh(score / soft_cap); 0: none
  const float* alibi_slopes;  // [num_alibi_slopes], one for each query head; null: none
  const float* sink_logits;   // learned sinks: [num_sink_logits], the same
  int32_t num_alibi_slopes;   // query heads, or 0: none
  int32_t num_sink_logits;
} kvfolio_attention_options;
// The options of a causal group: its window and sinks, and defaults. `out` has its struct_size.
KVFOLIO_C_API int32_t kvfolio_attention_options_of(const kvfolio_group_spec* group,
                                                   kvfolio_attention_options* out,
                                                   kvfolio_error* error);
// The target that computes a call of kvfolio_attend() with these options; options->target is the
// one wanted. KVFOLIO_ERR_UNSUPPORTED names those that do, if that one does not.
KVFOLIO_C_API int32_t kvfolio_choose_attention_target(const kvfolio_view* cache,
                                                      const kvfolio_attention_options* options,
                                                      int32_t* out, kvfolio_error* error);
// Bytes of workspace for sequences of up to max_kv_len tokens on num_threads threads.
KVFOLIO_C_API int32_t kvfolio_attention_workspace_bytes(const kvfolio_view* cache,
                                                        int32_t num_q_heads, int32_t max_kv_len,
                                                        int32_t target, int32_t num_threads,
                                                        int64_t* out, kvfolio_error* error);
// softmax(scale * q k^T + mask) v over a ragged batch. Null options are those of a full group; one
// with a window needs kvfolio_attention_options_of(). The arrays are those of a plan:
//   query_start [num_sequences + 1], kv_lens [num_sequences],
//   block_table [num_sequences, block_table_stride],
//   trim_sinks and trim_first_kept [num_sequences], or both null
//   q, out   rows [query_start[num_sequences], q_heads, head_dim_k or head_dim_v]
//   lse      rows [.., q_heads, 1] of f32 or f64, or null with null lse_rows
//   executor may be null: the calling thread works alone
KVFOLIO_C_API int32_t kvfolio_attend(
    const kvfolio_view* cache, const kvfolio_attention_options* options, int32_t num_sequences,
    const int32_t* query_start, const int32_t* kv_lens, const int32_t* block_table,
    int32_t block_table_stride, const int32_t* trim_sinks, const int32_t* trim_first_kept,
    const void* q, const kvfolio_rows* q_rows, void* out, const kvfolio_rows* out_rows, void* lse,
    const kvfolio_rows* lse_rows, void* workspace, int64_t workspace_bytes,
    const kvfolio_executor* executor, kvfolio_error* error);
// Merges what attend() wrote over two disjoint sets of tokens. All `out`s are of out_rows but for
// their element types (out_rows, a_rows, b_rows); lse too. lse may be null.
KVFOLIO_C_API int32_t kvfolio_merge_states(const void* a_out, const kvfolio_rows* a_rows,
                                           const void* a_lse, const kvfolio_rows* a_lse_rows,
                                           const void* b_out, const kvfolio_rows* b_rows,
                                           const void* b_lse, const kvfolio_rows* b_lse_rows,
                                           void* out, const kvfolio_rows* out_rows, void* lse,
                                           const kvfolio_rows* lse_rows, kvfolio_error* error);

// ---- one sequence without a manager ------------------------------------------------------------

// TokenStore in token_store.h: a row of K, and of V if it has V, for each token.
typedef struct kvfolio_token_store kvfolio_token_store;
typedef struct kvfolio_token_store_options {
  uint32_t struct_size;
  int32_t head_dim_k;
  int32_t head_dim_v;    // 0: there is no V
  int32_t num_kv_heads;  // 0: 1
  int32_t dtype;         // 0: f32
  int32_t block_size;    // 0: 16
  int32_t max_tokens;    // the exact cap
} kvfolio_token_store_options;
KVFOLIO_C_API int32_t kvfolio_token_store_create(const kvfolio_token_store_options* options,
                                                 const kvfolio_memory_resource* resource,
                                                 kvfolio_token_store** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_token_store_destroy(kvfolio_token_store* store);
// A store of its own with the same options and tokens. It takes memory from the same resource,
// which both stores, in any order of their ends, call.
KVFOLIO_C_API int32_t kvfolio_token_store_copy(const kvfolio_token_store* store,
                                               kvfolio_token_store** out, kvfolio_error* error);
// Appends num_tokens rows of elements of `dtype` (0: the store's own, f32 for int8 and e4m3) that
// follow each other. v is null if the store has no V.
KVFOLIO_C_API int32_t kvfolio_token_store_append(kvfolio_token_store* store, const void* k,
                                                 const void* v, int64_t num_tokens, int32_t dtype,
                                                 kvfolio_error* error);
// Copies tokens [begin, begin + num_tokens) to rows of elements of `dtype`; k or v may be null.
KVFOLIO_C_API int32_t kvfolio_token_store_gather(const kvfolio_token_store* store, int64_t begin,
                                                 int64_t num_tokens, int32_t dtype, void* k,
                                                 void* v, kvfolio_error* error);
// The row of token i where it lies, valid until the store is destroyed. KVFOLIO_ERR_UNSUPPORTED for
// int8 and e4m3.
KVFOLIO_C_API int32_t kvfolio_token_store_at(const kvfolio_token_store* store, int64_t i,
                                             const void** out, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_token_store_v_at(const kvfolio_token_store* store, int64_t i,
                                               const void** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_token_store_clear(kvfolio_token_store* store);
KVFOLIO_C_API int32_t kvfolio_token_store_size(const kvfolio_token_store* store);
KVFOLIO_C_API int32_t kvfolio_token_store_max_tokens(const kvfolio_token_store* store);
KVFOLIO_C_API int64_t kvfolio_token_store_memory_bytes(const kvfolio_token_store* store);
KVFOLIO_C_API int64_t kvfolio_token_store_bytes_used(const kvfolio_token_store* store);
// For the kernels; as kvfolio_view_create(). The block table of the sequence is 0, 1, 2, ...
KVFOLIO_C_API int32_t kvfolio_token_store_view(const kvfolio_token_store* store, kvfolio_view** out,
                                               kvfolio_error* error);
// to_string(): "token store: 20 of 64 tokens of f64, ..."; text and answer as kvfolio_describe().
KVFOLIO_C_API int64_t kvfolio_token_store_describe(const kvfolio_token_store* store, char* out,
                                                   int64_t capacity);

// ---- blocks without a manager ------------------------------------------------------------------

// BlockStore in block_store.h: the blocks of one group, who uses them, and their bytes.
typedef struct kvfolio_block_store kvfolio_block_store;
KVFOLIO_C_API int32_t kvfolio_block_store_create(const kvfolio_group_spec* group,
                                                 const kvfolio_memory_resource* resource,
                                                 kvfolio_block_store** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_block_store_destroy(kvfolio_block_store* store);
// Takes num_blocks free blocks, all or none; each has one reference then.
// KVFOLIO_ERR_RESOURCE_EXHAUSTED: fewer are free.
KVFOLIO_C_API int32_t kvfolio_block_store_allocate(kvfolio_block_store* store, int32_t* out,
                                                   int64_t num_blocks, kvfolio_error* error);
// Adds a reference to each block, or takes one away, all or none. A block without any is free.
// KVFOLIO_ERR_FAILED_PRECONDITION: a block is free, or is named more often than it has references.
KVFOLIO_C_API int32_t kvfolio_block_store_hold(kvfolio_block_store* store, const int32_t* blocks,
                                               int64_t num_blocks, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_block_store_release(kvfolio_block_store* store, const int32_t* blocks,
                                                  int64_t num_blocks, kvfolio_error* error);
// The block to write in place of this one: itself, or if others hold it too a copy, to which the
// caller's reference moves. KVFOLIO_ERR_RESOURCE_EXHAUSTED: no block is free for the copy.
// KVFOLIO_ERR_UNAVAILABLE: the memory failed; the block is as it was, and the call may be made
// again.
KVFOLIO_C_API int32_t kvfolio_block_store_make_writable(kvfolio_block_store* store, int32_t block,
                                                        int32_t* out, kvfolio_error* error);
// 0: it is free.
KVFOLIO_C_API int32_t kvfolio_block_store_ref_count(const kvfolio_block_store* store, int32_t block,
                                                    int32_t* out, kvfolio_error* error);
// Images of blocks, as kvfolio_storage_read_blocks(). A block with several references is not
// written. KVFOLIO_ERR_UNAVAILABLE: the memory failed; what was to be written may have any bytes.
KVFOLIO_C_API int32_t kvfolio_block_store_read(const kvfolio_block_store* store,
                                               const int32_t* blocks, int64_t num_blocks,
                                               void* images, int64_t image_bytes,
                                               kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_block_store_write(kvfolio_block_store* store, const int32_t* blocks,
                                                int64_t num_blocks, const void* images,
                                                int64_t image_bytes, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_block_store_num_blocks(const kvfolio_block_store* store);
KVFOLIO_C_API int32_t kvfolio_block_store_num_free(const kvfolio_block_store* store);
KVFOLIO_C_API int64_t kvfolio_block_store_block_image_bytes(const kvfolio_block_store* store);
KVFOLIO_C_API int64_t kvfolio_block_store_memory_bytes(const kvfolio_block_store* store);
// For the kernels, all layers; as kvfolio_view_create().
KVFOLIO_C_API int32_t kvfolio_block_store_view(const kvfolio_block_store* store, kvfolio_view** out,
                                               kvfolio_error* error);
// to_string(): "block store: 5 of 64 blocks ..."; text and answer as kvfolio_describe().
KVFOLIO_C_API int64_t kvfolio_block_store_describe(const kvfolio_block_store* store, char* out,
                                                   int64_t capacity);

#ifdef __cplusplus
}  // extern "C"
#endif

// Not in C, and why:
//  - BlockPool, BlockTable, PrefixTree, LruOrder, SpanArena, BitTree, FixedArray, GroupRule: parts
//    of the manager, for those who build another one, in C++.
//  - Options for each of many appends in one call (AppendDemand has its two arrays).
//  - at<T>(), read() and the *_elements() behind them (append_elements(), gather_elements(),
//    read_elements()) of TokenStore: *_at() gives the row, *_append() and *_gather() take a dtype.
//  - TokenStore::num_blocks(), num_blocks_used(), empty(): size, max_tokens and the block size of
//    the options say them.
//  - to_string() of ids, enums, records and Status, Status::numbers(): numbers, and *error, here.
//    Those of TokenStore and BlockStore are *_describe(). table_of() of a plan: a row of its
//    block_table. ids.h: ids are 64-bit numbers. status.h: a Status is a code and *error; a Result
//    writes to an `out`.
//  - kvfolio_check_failed() of status.h is in the library, but is not to be called: a host that
//    wants to hear of a broken invariant before the program ends defines it, in C or C++, as
//    void kvfolio_check_failed(const char* file, int line, const char* expression).
//  - make_view(), in_block() and the fields of KVView and RowsView (contiguous_rows(), data(),
//    dtype(), num_tokens(), num_heads(), head_dim(), token_stride(), head_stride()): a program with
//    memory of its own borrows a storage; kvfolio_plan_layouts() has the strides, kvfolio_view_k()
//    and its kin the bases, kvfolio_rows is RowsView.
//  - KVStorage::image_runs(): for who copies and checks in one pass; *_read_blocks() and
//    *_write_blocks() copy what it lists.
//  - copies_later(), submit(), poll() and leave() of MemoryResource, and submit_read(),
//    submit_write(), poll_copy() and leave_copy() of KVStorage: memory of a caller in C copies
//    within the call.
//  - validate(): kvfolio_plan_layouts() refuses what it refuses.
//  - unit_of(): the smallest block_size.
//  - attention_batch(): kvfolio_attend() takes the arrays of a plan themselves.
//  - dtype.h (f16_from_f32(), f32_from_f16(), bf16_from_f32(), f32_from_bf16(), e4m3_from_f32(),
//    f32_from_e4m3(), quantize(), quantize_e4m3(), quantize_scale(), quantize_inverse(),
//    dequantize(), dequantize_e4m3(), dtype_bytes(), has_scales(), fits_granule()):
//    kvfolio_convert() converts rows, and kvfolio_append_rows() and kvfolio_gather() do it on the
//    way.
//  - KVFOLIO_VERSION and the other macros of version.h: #if asks KVFOLIO_ABI_VERSION, a program
//    kvfolio_version().
//  - openmp.h: its executor is three lines in a program that uses OpenMP.
//  - prefetch.h: what a C compiler has of its own, for the headers of C++.
//  - ThreadPool::num_threads_that_worked(), forget_work(): for tests.
//  - KVStorage::spec(), TokenStore::options(), BlockStore::spec(): the caller has said them;
//  kvfolio_get_group() of a
//    manager says them again.
//  - forget_count(): for libkvfolio_tiers, which keeps copies of blocks.
//  - num_steps(): the tickets that the caller has not completed yet.
//  - byte_sink.h: a kvfolio_byte_sink.
//  - detail of op_log.h: for replay_log() of libkvfolio_tiers.
//  - metrics.h: text of Prometheus, made of numbers that are here: kvfolio_get_counters(),
//    kvfolio_usage(), kvfolio_bytes_used(). c_handles.h gives a program in C++ the manager.
//  - c_handles.h: from these handles to C++.
//  - The calls of libkvfolio_tiers and of libkvfolio_cuda: kvfolio_tiers.h and kvfolio_cuda.h have
//    them.
//  - export.h and memory_kind.h: macros, and KVFOLIO_HOST.
