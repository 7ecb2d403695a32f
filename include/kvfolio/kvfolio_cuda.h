// SPDX-License-Identifier: Apache-2.0
#pragma once

// The C interface of libkvfolio_cuda, for C99 and C++: devices, streams, memory and kernels of
// NVIDIA cards. Link libkvfolio_cuda and libkvfolio. The conventions are those of kvfolio.h: codes,
// errors, structs that carry their size, 0 as the default of every option, handles, arrays.
// cuda_device.h, cuda_memory.h, cuda_kernels.h and cuda_plan.h say the rules in full.
//
//   kvfolio_cuda_device* device;
//   if (kvfolio_cuda_device_open(0, &device, &error)) puts(error.message);  // no driver, say
//   kvfolio_cuda_memory_create(device, NULL, NULL, &memory, &error);
//   kvfolio_memory_resource resource = {.struct_size = sizeof resource};
//   kvfolio_cuda_memory_resource(memory, &resource, &error);
//   kvfolio_storage_create(groups, 1, &resource, &storage, &error);  // K and V on the card
//
// Neither this header nor the library needs CUDA: the driver (libcuda.so.1) is loaded by the first
// call that asks for it. Where there is none, all calls that need one are KVFOLIO_ERR_UNAVAILABLE,
// with a sentence that says what is missing. An error that ends the context of a device (an illegal
// address, a failed launch) makes each later call on it KVFOLIO_ERR_UNAVAILABLE with that sentence.
//
// Streams are `void*`: a CUstream or cudaStream_t of the device. A null one is its legacy default
// stream in every call.
// Pointers are of host memory unless a line says device memory. Structs hold pointers to device
// memory, which C owns.
//
// Ends. A stream, an event, pinned memory, memory, kernels, a plan, a batch attention, a graph:
// each keeps the device that it was made with, and memory, plans and batch attentions keep their
// kernels, so handles may be destroyed in any order, but for two. Memory goes after the storages,
// stores and pieces that were made with it. A stream, an event, kernels, a plan, a batch attention,
// rows, a plan's image or pinned memory stay until the work that uses them has passed, launches of
// a captured graph included.
//
// Thread safety: devices, kernels and memory may be used by several threads at once; calls on one
// memory wait for each other. A stream, an event, a plan, a batch attention and a graph belong to
// one thread at a time.

#include "kvfolio/kvfolio.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- version -----------------------------------------------------------------------------------

// As KVFOLIO_ABI_VERSION, of this header and the library behind it.
#define KVFOLIO_CUDA_ABI_VERSION 1
KVFOLIO_C_API uint32_t kvfolio_cuda_abi_version(void);
// Another number where a kernel may write other bits than before (kKernelRevision in
// cuda_kernels.h): part of the name of what is computed with them.
KVFOLIO_C_API int32_t kvfolio_cuda_kernel_revision(void);

// ---- devices -----------------------------------------------------------------------------------

// KVFOLIO_OK: a driver that is new enough, and at least one device. KVFOLIO_ERR_UNAVAILABLE: what
// is missing.
KVFOLIO_C_API int32_t kvfolio_cuda_available(kvfolio_error* error);
// How many devices the driver has. The errors of kvfolio_cuda_available().
KVFOLIO_C_API int32_t kvfolio_cuda_num_devices(int32_t* out, kvfolio_error* error);

// The primary context of a card, which the run-time of CUDA and torch use too.
typedef struct kvfolio_cuda_device kvfolio_cuda_device;
// KVFOLIO_ERR_UNAVAILABLE: see kvfolio_cuda_available(). KVFOLIO_ERR_INVALID_ARGUMENT: there is no
// device of this number. KVFOLIO_ERR_UNSUPPORTED: a card below compute capability 8.0, by name.
KVFOLIO_C_API int32_t kvfolio_cuda_device_open(int32_t ordinal, kvfolio_cuda_device** out,
                                               kvfolio_error* error);
KVFOLIO_C_API void kvfolio_cuda_device_destroy(kvfolio_cuda_device* device);
// "NVIDIA H100 80GB HBM3"; valid as long as the handle.
KVFOLIO_C_API const char* kvfolio_cuda_device_name(const kvfolio_cuda_device* device);
// "cuda-sm90": the architecture, since others may round otherwise; valid as long as the handle.
KVFOLIO_C_API const char* kvfolio_cuda_device_target(const kvfolio_cuda_device* device);

typedef struct kvfolio_cuda_device_info {
  uint32_t struct_size;
  int32_t ordinal;
  int32_t capability_major;  // compute capability: 9 and 0 of an H100
  int32_t capability_minor;
  int32_t num_multiprocessors;
} kvfolio_cuda_device_info;
KVFOLIO_C_API int32_t kvfolio_cuda_device_get_info(const kvfolio_cuda_device* device,
                                                   kvfolio_cuda_device_info* out,
                                                   kvfolio_error* error);
// KVFOLIO_OK, or KVFOLIO_ERR_UNAVAILABLE with what ended the context. Asks no driver.
KVFOLIO_C_API int32_t kvfolio_cuda_device_status(const kvfolio_cuda_device* device,
                                                 kvfolio_error* error);
// Waits for all that was started on the device. The one call that does.
KVFOLIO_C_API int32_t kvfolio_cuda_device_synchronize(const kvfolio_cuda_device* device,
                                                      kvfolio_error* error);

// ---- streams and events ------------------------------------------------------------------------

// A stream that does not wait for the legacy default one. Streams of an engine serve as well: calls
// take what kvfolio_cuda_stream_handle() gives.
typedef struct kvfolio_cuda_stream kvfolio_cuda_stream;
KVFOLIO_C_API int32_t kvfolio_cuda_stream_create(const kvfolio_cuda_device* device,
                                                 kvfolio_cuda_stream** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_cuda_stream_destroy(kvfolio_cuda_stream* stream);
// CUstream; valid as long as the handle.
KVFOLIO_C_API void* kvfolio_cuda_stream_handle(const kvfolio_cuda_stream* stream);
// 1: all that it was given is done; 0: not yet. Does not wait.
KVFOLIO_C_API int32_t kvfolio_cuda_stream_done(kvfolio_cuda_stream* stream, int32_t* out,
                                               kvfolio_error* error);
// Waits until it is.
KVFOLIO_C_API int32_t kvfolio_cuda_stream_synchronize(kvfolio_cuda_stream* stream,
                                                      kvfolio_error* error);

// A point in a stream.
typedef struct kvfolio_cuda_event kvfolio_cuda_event;
KVFOLIO_C_API int32_t kvfolio_cuda_event_create(const kvfolio_cuda_device* device,
                                                kvfolio_cuda_event** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_cuda_event_destroy(kvfolio_cuda_event* event);
// CUevent; valid as long as the handle.
KVFOLIO_C_API void* kvfolio_cuda_event_handle(const kvfolio_cuda_event* event);
// The point behind all that the stream was given so far. An event is recorded again and again.
KVFOLIO_C_API int32_t kvfolio_cuda_event_record(kvfolio_cuda_event* event, void* stream,
                                                kvfolio_error* error);
// 1: it has passed, or was never recorded; 0: not yet. Does not wait.
KVFOLIO_C_API int32_t kvfolio_cuda_event_passed(kvfolio_cuda_event* event, int32_t* out,
                                                kvfolio_error* error);
// Waits until it has passed.
KVFOLIO_C_API int32_t kvfolio_cuda_event_synchronize(kvfolio_cuda_event* event,
                                                     kvfolio_error* error);
// What `stream` is given from now on begins when the event has passed.
KVFOLIO_C_API int32_t kvfolio_cuda_event_hold_back(kvfolio_cuda_event* event, void* stream,
                                                   kvfolio_error* error);

// ---- kernels, loaded ---------------------------------------------------------------------------

// The kernels of one device.
typedef struct kvfolio_cuda_kernels kvfolio_cuda_kernels;
typedef struct kvfolio_cuda_kernel_options {
  uint32_t struct_size;
  // 0: the driver is asked whose memory each pointer of a call is, and of which device the stream;
  // a wrong one is KVFOLIO_ERR_INVALID_ARGUMENT by name. 1: it is not, which saves some hundred
  // nanoseconds for each pointer, and a wrong one ends the context.
  int32_t no_pointer_checks;
} kvfolio_cuda_kernel_options;
// KVFOLIO_ERR_UNAVAILABLE: this library was built without nvcc and has no kernels, or the driver
// refuses them. KVFOLIO_ERR_OUT_OF_MEMORY.
KVFOLIO_C_API int32_t kvfolio_cuda_kernels_load(const kvfolio_cuda_device* device,
                                                const kvfolio_cuda_kernel_options* options,
                                                kvfolio_cuda_kernels** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_cuda_kernels_destroy(kvfolio_cuda_kernels* kernels);

// ---- memory ------------------------------------------------------------------------------------

// Memory of the host that every device reads and writes while the host goes on.
typedef struct kvfolio_cuda_pinned kvfolio_cuda_pinned;
// KVFOLIO_ERR_INVALID_ARGUMENT: bytes < 1. KVFOLIO_ERR_OUT_OF_MEMORY, KVFOLIO_ERR_UNAVAILABLE.
KVFOLIO_C_API int32_t kvfolio_cuda_pinned_allocate(const kvfolio_cuda_device* device, int64_t bytes,
                                                   kvfolio_cuda_pinned** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_cuda_pinned_destroy(kvfolio_cuda_pinned* pinned);
// Valid as long as the handle.
KVFOLIO_C_API void* kvfolio_cuda_pinned_data(const kvfolio_cuda_pinned* pinned);
KVFOLIO_C_API int64_t kvfolio_cuda_pinned_bytes(const kvfolio_cuda_pinned* pinned);

// Where the memory of a kvfolio_cuda_memory comes from (DeviceSource in cuda_memory.h).
enum {
  KVFOLIO_CUDA_PLAIN = 0,  // cuMemAlloc: freeing it waits for the device
  // The device's pool, in the order of a stream: neither call waits for other streams. What uses
  // the memory has ended before it is given back.
  KVFOLIO_CUDA_POOL = 1,
  KVFOLIO_CUDA_LENT = 2  // a piece that the caller owns, an engine's tensor: cut from its beginning
};

typedef struct kvfolio_cuda_memory_options {
  uint32_t struct_size;
  int32_t source;         // KVFOLIO_CUDA_PLAIN ...
  int64_t staging_bytes;  // pinned, of both pieces together: 128 to 2^32; 0: 16 MiB
  // KVFOLIO_CUDA_LENT: device memory, aligned to 64 bytes, that outlives the handle.
  void* lent;
  int64_t lent_bytes;
} kvfolio_cuda_memory_options;

// Memory of a device (DeviceMemory in cuda_memory.h). Copies from and to the host go through pinned
// memory of its own, so the caller's needs no pinning; they have arrived when a call returns.
typedef struct kvfolio_cuda_memory kvfolio_cuda_memory;
// `kernels`, of the same device handle, may be null: with them many runs are one copy and one
// kernel, and as much device memory is staging too. KVFOLIO_ERR_OUT_OF_MEMORY,
// KVFOLIO_ERR_UNAVAILABLE.
KVFOLIO_C_API int32_t kvfolio_cuda_memory_create(const kvfolio_cuda_device* device,
                                                 const kvfolio_cuda_kernels* kernels,
                                                 const kvfolio_cuda_memory_options* options,
                                                 kvfolio_cuda_memory** out, kvfolio_error* error);
// After what was made with it: see the head of this file.
KVFOLIO_C_API void kvfolio_cuda_memory_destroy(kvfolio_cuda_memory* memory);
// What kvfolio_storage_create() and its kin take, so that they keep K and V on the device. `out`
// has its struct_size. Its functions return codes; kvfolio_cuda_memory_take_error() has the
// sentence.
KVFOLIO_C_API int32_t kvfolio_cuda_memory_resource(kvfolio_cuda_memory* memory,
                                                   kvfolio_memory_resource* out,
                                                   kvfolio_error* error);
// The first failure since the last call, or KVFOLIO_OK: also of freeing, which says nothing itself.
KVFOLIO_C_API int32_t kvfolio_cuda_memory_take_error(kvfolio_cuda_memory* memory,
                                                     kvfolio_error* error);
// `bytes` >= 1 of device memory, aligned to 64 or more, for rows, slots and tables. *out is
// device memory.
KVFOLIO_C_API int32_t kvfolio_cuda_memory_allocate(kvfolio_cuda_memory* memory, int64_t bytes,
                                                   void** out, kvfolio_error* error);
// Takes back what kvfolio_cuda_memory_allocate() gave for as many bytes. Null is nothing.
KVFOLIO_C_API void kvfolio_cuda_memory_deallocate(kvfolio_cuda_memory* memory, void* piece,
                                                  int64_t bytes);
// From any memory of the host to memory of the device, back, and within the device. They wait for
// nothing that was started on other streams: what still writes a source, or reads a destination,
// has passed. After a failure the destinations may have any bytes.
KVFOLIO_C_API int32_t kvfolio_cuda_memory_copy_in(kvfolio_cuda_memory* memory, void* dst,
                                                  const void* src, int64_t bytes,
                                                  kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_cuda_memory_copy_out(kvfolio_cuda_memory* memory, void* dst,
                                                   const void* src, int64_t bytes,
                                                   kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_cuda_memory_copy(kvfolio_cuda_memory* memory, void* dst,
                                               const void* src, int64_t bytes,
                                               kvfolio_error* error);

// ---- moves -------------------------------------------------------------------------------------
//
// The functions of kvfolio.h of these names over views of device memory, on a stream. What they
// write has the bits that those write. They start kernels and return: they wait for nothing.
// Arguments are checked on the host, in the sentences of the CPU; slots and entries of block tables
// cannot be: a kernel leaves alone what an entry out of range names, and reports the first one to
// `fault`. Rows are f32, f16 or bf16; caches those, int8 or e4m3; head dims are multiples of 8 up
// to 1,024. KVFOLIO_ERR_UNSUPPORTED names what is not, and a view of host memory.

// `fault`, a word of device memory, has this value before the call, and keeps it if no entry was
// wrong. Null: nothing is reported.
#define KVFOLIO_CUDA_NO_ENTRY UINT64_MAX
// What that word says, once it is on the host: of kvfolio_cuda_append() and of
// kvfolio_cuda_gather(). KVFOLIO_OK for KVFOLIO_CUDA_NO_ENTRY, else KVFOLIO_ERR_INVALID_ARGUMENT
// with the entry and what it was.
KVFOLIO_C_API int32_t kvfolio_cuda_slot_fault(const kvfolio_view* cache, uint64_t fault,
                                              kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_cuda_table_fault(const kvfolio_view* cache, uint64_t fault,
                                               kvfolio_error* error);

// kvfolio_append_rows(). k, v, slots [num_slots] and fault are device memory. Slots differ, but for
// -1: of equal ones it is not said which token stays.
KVFOLIO_C_API int32_t kvfolio_cuda_append(const kvfolio_cuda_kernels* kernels, kvfolio_view* cache,
                                          int32_t layer, const void* k, const kvfolio_rows* k_rows,
                                          const void* v, const kvfolio_rows* v_rows,
                                          const int32_t* slots, int64_t num_slots, void* stream,
                                          uint64_t* fault, kvfolio_error* error);
// kvfolio_gather(). block_table [num_entries], k, v and fault are device memory.
KVFOLIO_C_API int32_t kvfolio_cuda_gather(
    const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache, const int32_t* block_table,
    int64_t num_entries, const kvfolio_gather_options* options, void* k, const kvfolio_rows* k_rows,
    void* v, const kvfolio_rows* v_rows, void* stream, uint64_t* fault, kvfolio_error* error);
// kvfolio_copy_blocks() and kvfolio_convert_blocks(). src and dst [num_blocks] are read before the
// call returns.
KVFOLIO_C_API int32_t kvfolio_cuda_copy_blocks(const kvfolio_cuda_kernels* kernels,
                                               kvfolio_view* cache, const int32_t* src,
                                               const int32_t* dst, int64_t num_blocks, void* stream,
                                               kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_cuda_convert_blocks(const kvfolio_cuda_kernels* kernels,
                                                  const kvfolio_view* from, kvfolio_view* to,
                                                  const int32_t* src, const int32_t* dst,
                                                  int64_t num_blocks, void* stream,
                                                  kvfolio_error* error);
// Sets every byte of every row and scale.
KVFOLIO_C_API int32_t kvfolio_cuda_fill(const kvfolio_cuda_kernels* kernels, kvfolio_view* cache,
                                        uint8_t value, void* stream, kvfolio_error* error);

// ---- attention ---------------------------------------------------------------------------------

// What kvfolio_attend() has in host memory, of one layer of a batch of n sequences. All pointers
// are device memory. The lengths are the numbers that the call is given on the host.
typedef struct kvfolio_cuda_attention {
  uint32_t struct_size;
  int32_t block_table_stride;
  const int32_t* block_table;  // [n, block_table_stride]; trusted: entries that rows see are blocks
  const int32_t* query_start;  // [n + 1]
  const int32_t* kv_lens;      // [n]
  const int32_t* trim_sinks;   // [n]; null without trims
  const int32_t* trim_first_kept;  // the same
  const void* q;                   // [query_start[n], q_heads, head_dim_k], aligned to 16 bytes
  void* out;                       // [query_start[n], q_heads, head_dim_v], aligned to 16 bytes
  float* lse;                      // [query_start[n], q_heads], natural logarithm; null: not wanted
} kvfolio_cuda_attention;

// How the work of a batch is cut (AttendPlan in cuda_kernels.h). Good for every layer of the same
// shapes and strides.
typedef struct kvfolio_cuda_attend_plan kvfolio_cuda_attend_plan;
// Checks a call and cuts its work; nothing on the device. The first plan of an element type and
// head dim loads its kernels, so make one before graphs are captured. `options` as in
// kvfolio_attend(): their slopes and sink logits are device memory, target and slice are 0. Host
// memory, read during the call: query_start [n + 1], kv_lens [n], trim_sinks and trim_first_kept
// [n] or both null. KVFOLIO_ERR_INVALID_ARGUMENT: what kernels.h says of attend(), rows that are
// not aligned. KVFOLIO_ERR_UNSUPPORTED: head dims that are no multiple of 8 or above 576, blocks of
// more than 256 tokens, rows of f64, a card or an element type that this build has no kernels for.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_attend(
    const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
    const kvfolio_attention_options* options, const kvfolio_cuda_attention* on_device,
    int32_t num_sequences, const int32_t* query_start, const int32_t* kv_lens,
    const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
    const kvfolio_rows* out_rows, kvfolio_cuda_attend_plan** out, kvfolio_error* error);
KVFOLIO_C_API void kvfolio_cuda_attend_plan_destroy(kvfolio_cuda_attend_plan* plan);
// What the kernels read of the plan, in host memory, valid as long as the plan: copied to device
// memory, aligned to 16 bytes, before kvfolio_cuda_attend() runs (kvfolio_cuda_upload() does it).
// `bytes` may be null.
KVFOLIO_C_API const void* kvfolio_cuda_attend_plan_image(const kvfolio_cuda_attend_plan* plan,
                                                         int64_t* bytes);
// Device memory that kvfolio_cuda_attend() writes, aligned to 16 bytes. Its first zeroed_bytes()
// are zero before the first call, and each call leaves them so.
KVFOLIO_C_API int64_t
kvfolio_cuda_attend_plan_workspace_bytes(const kvfolio_cuda_attend_plan* plan);
KVFOLIO_C_API int64_t kvfolio_cuda_attend_plan_zeroed_bytes(const kvfolio_cuda_attend_plan* plan);
// "cuda-sm90-general" or "cuda-sm90-tiles": rows of one name have one set of bits. Valid as long as
// the plan.
KVFOLIO_C_API const char* kvfolio_cuda_attend_plan_target(const kvfolio_cuda_attend_plan* plan);
// What the launches of a plan depend on beside the call (AttendShape in cuda_kernels.h): a graph
// that captured kvfolio_cuda_attend() serves each plan whose shape has the same bytes.
typedef struct kvfolio_cuda_attend_shape {
  uint32_t struct_size;
  int32_t num_sequences;
  int32_t num_rows;
  int32_t items;
  int32_t groups;
  int32_t prefill_items;
  int32_t segments;
  int32_t segments_per_block;
  int32_t states;
  int32_t many_nodes;  // 0 or 1
  int32_t merges;      // 0 or 1
} kvfolio_cuda_attend_shape;
KVFOLIO_C_API int32_t kvfolio_cuda_attend_plan_get_shape(const kvfolio_cuda_attend_plan* plan,
                                                         kvfolio_cuda_attend_shape* out,
                                                         kvfolio_error* error);
// Through `pinned`, pinned memory of at least as many bytes as the image, which is not written
// again before the stream has passed, to `image`; and zeroes the zeroed bytes of `workspace`. Both
// are device memory.
KVFOLIO_C_API int32_t kvfolio_cuda_upload(const kvfolio_cuda_kernels* kernels,
                                          const kvfolio_cuda_attend_plan* plan, void* pinned,
                                          int64_t pinned_bytes, void* image, void* workspace,
                                          void* stream, kvfolio_error* error);
// softmax(scale * q k^T + mask) v of every row. The arguments are those of the plan's call, of
// another layer perhaps. KVFOLIO_ERR_INVALID_ARGUMENT, with what differs: a call of other shapes,
// strides or parameters than the plan's. Lengths are those of the plan: only their number is looked
// at. image and workspace are device memory.
KVFOLIO_C_API int32_t kvfolio_cuda_attend(
    const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
    const kvfolio_attention_options* options, const kvfolio_cuda_attention* on_device,
    int32_t num_sequences, const int32_t* query_start, const int32_t* kv_lens,
    const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
    const kvfolio_rows* out_rows, const kvfolio_cuda_attend_plan* plan, const void* image,
    void* workspace, void* stream, kvfolio_error* error);

// ---- attention for captured graphs -------------------------------------------------------------

// The largest batch that a captured graph is to serve (AttendCapacity in cuda_kernels.h). A plan
// that is padded to it has a shape, an image and a workspace of one size, whatever the lengths.
typedef struct kvfolio_cuda_attend_capacity {
  uint32_t struct_size;
  int32_t max_sequences;        // 1 to 2^20
  int32_t max_sequence_tokens;  // of K and V of one sequence: 1 to 2^30
  int32_t max_queries;          // rows of q of one sequence, to 2^16; 0: 1, a decode
  int64_t max_tokens;           // of all together; 0: max_sequences x max_sequence_tokens
} kvfolio_cuda_attend_capacity;
// kvfolio_cuda_plan_attend(), padded: one captured kvfolio_cuda_attend() serves every batch within
// the capacity whose plan was uploaded to the same place, or made there. Rows have the bits of the
// other plan. Arrays of lengths in device memory, the block table, q and out have room for the
// capacity; where the batch has no rows, the first two entries of query_start are 0.
// KVFOLIO_ERR_INVALID_ARGUMENT, with both numbers: the capacity; a batch that is larger; a row of
// the block table that holds less than max_sequence_tokens; an image above 4 GiB.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_attend_padded(
    const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
    const kvfolio_attention_options* options, const kvfolio_cuda_attention* on_device,
    int32_t num_sequences, const int32_t* query_start, const int32_t* kv_lens,
    const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
    const kvfolio_rows* out_rows, const kvfolio_cuda_attend_capacity* capacity,
    kvfolio_cuda_attend_plan** out, kvfolio_error* error);
// Makes the image of a padded plan by one kernel, from the lengths that lie on the device
// (plan_on_device() in cuda_kernels.h, which says the rules), and zeroes what has to be zero of
// `workspace`. May be captured in front of kvfolio_cuda_attend(), whose arguments it has: a replay
// needs no plan of the host. image, workspace, counts and fault are device memory. counts [1]: how
// many sequences there are (kvfolio_cuda_plan_arrays has it); null: max_sequences, the last ones
// without rows. The host's lengths are not looked at, but for their number. A batch over the
// capacity, which only the device sees, makes an empty plan and is reported to `fault`.
// KVFOLIO_ERR_FAILED_PRECONDITION: the plan is not padded.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_on_device(
    const kvfolio_cuda_kernels* kernels, const kvfolio_view* cache,
    const kvfolio_attention_options* options, const kvfolio_cuda_attention* on_device,
    int32_t num_sequences, const int32_t* query_start, const int32_t* kv_lens,
    const int32_t* trim_sinks, const int32_t* trim_first_kept, const kvfolio_rows* q_rows,
    const kvfolio_rows* out_rows, const kvfolio_cuda_attend_plan* plan, void* image,
    void* workspace, void* stream, const int32_t* counts, uint64_t* fault, kvfolio_error* error);
// What the word behind its `fault` says, once it is on the host. KVFOLIO_OK for
// KVFOLIO_CUDA_NO_ENTRY, else KVFOLIO_ERR_INVALID_ARGUMENT with the sequence and the capacity.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_fault(const kvfolio_cuda_attend_plan* plan, uint64_t fault,
                                              kvfolio_error* error);
// That of the plan, with its own numbers in place of 0; all 0, but for max_queries, where the plan
// is not padded.
KVFOLIO_C_API int32_t kvfolio_cuda_attend_plan_get_capacity(const kvfolio_cuda_attend_plan* plan,
                                                            kvfolio_cuda_attend_capacity* out,
                                                            kvfolio_error* error);
// Whether a graph that captured kvfolio_cuda_attend() with this padded plan serves the batch, for a
// replay whose plan is made on the device. Host memory, read during the call, as for
// kvfolio_cuda_plan_attend(). KVFOLIO_ERR_INVALID_ARGUMENT: more than the capacity, with both
// numbers. KVFOLIO_ERR_FAILED_PRECONDITION: the plan is not padded.
KVFOLIO_C_API int32_t kvfolio_cuda_attend_plan_check(
    const kvfolio_cuda_attend_plan* plan, int32_t num_sequences, const int32_t* query_start,
    const int32_t* kv_lens, const int32_t* trim_sinks, const int32_t* trim_first_kept,
    kvfolio_error* error);
// The target, the kernels that kvfolio_cuda_attend() starts, and those that the card has no room
// for (AttendPlan::explain() in cuda_kernels.h). Valid as long as the plan.
KVFOLIO_C_API const char* kvfolio_cuda_attend_plan_explain(const kvfolio_cuda_attend_plan* plan);

// ---- attention in FlashInfer's call shape ------------------------------------------------------

// An engine's tensors of one layer, in device memory (PagedKV in cuda_wrapper.h).
typedef struct kvfolio_cuda_paged_kv {
  uint32_t struct_size;
  int32_t layout;  // KVFOLIO_NHD: [num_pages, page_size, num_kv_heads, head_dim]; KVFOLIO_HND:
                   // [num_pages, num_kv_heads, page_size, head_dim]
  void* k;
  void* v;  // null: one tensor [num_pages, 2, ...] at k, of which index 0 is K and 1 is V
  int32_t num_pages;
  int32_t page_size;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t dtype;  // 0: KVFOLIO_BF16; KVFOLIO_F32, KVFOLIO_F16
  int32_t reserved;
} kvfolio_cuda_paged_kv;
// The view of tensors without gaps, for kvfolio_view_destroy(); the tensors outlive it. Other
// strides, and scales: kvfolio_storage_borrow(). KVFOLIO_ERR_INVALID_ARGUMENT: a null k, a count
// below 1, another layout. KVFOLIO_ERR_UNSUPPORTED: another element type.
KVFOLIO_C_API int32_t kvfolio_cuda_paged_kv_view(const kvfolio_cuda_paged_kv* tensors,
                                                 kvfolio_view** out, kvfolio_error* error);

// Attention that is planned once for a step from FlashInfer's arrays and run for each layer
// (BatchAttention in cuda_wrapper.h, which says the rules).
typedef struct kvfolio_cuda_batch_attention kvfolio_cuda_batch_attention;
typedef struct kvfolio_cuda_batch_attention_options {
  uint32_t struct_size;
  int32_t max_sequences;          // of a step: 1 to 2^20
  int32_t max_pages_of_sequence;  // 1 to 2^24
  int32_t reserved;               // 0
  int64_t max_image_bytes;        // 16 to 2^32; 0: 4 MiB
  int64_t workspace_bytes;        // 16 to 2^40; 0: 128 MiB
  // 1: plans are padded to these sequences and pages, so that the shape is one for all steps of the
  // same paged_kv and heads, and one captured run serves them. A step that is larger is refused
  // with the numbers, and so is one of another causal (where max_queries is above 1), sm_scale,
  // window or logits_soft_cap than the first one.
  int32_t padded;
  // Rows of one sequence of a padded step, to 2^16; 0: 1, a decode. Above 1 each step has a
  // qo_indptr.
  int32_t max_queries;
  int64_t max_tokens;  // of K and V of a padded step; 0: what all pages have room for
} kvfolio_cuda_batch_attention_options;
// Takes all its memory. KVFOLIO_ERR_INVALID_ARGUMENT: the options. KVFOLIO_ERR_OUT_OF_MEMORY,
// KVFOLIO_ERR_UNAVAILABLE.
KVFOLIO_C_API int32_t kvfolio_cuda_batch_attention_create(
    const kvfolio_cuda_kernels* kernels, const kvfolio_cuda_batch_attention_options* options,
    kvfolio_cuda_batch_attention** out, kvfolio_error* error);
// Waits for copies that are under way. Kernels of runs have ended before.
KVFOLIO_C_API void kvfolio_cuda_batch_attention_destroy(kvfolio_cuda_batch_attention* attention);

typedef struct kvfolio_cuda_batch_attention_params {
  uint32_t struct_size;
  int32_t num_qo_heads;
  int32_t causal;          // 0: every row sees all; a decode has no other way
  int32_t window;          // tokens that a row sees, itself included: window_left + 1; 0: all
  double sm_scale;         // 0: 1 / sqrt(head_dim)
  double logits_soft_cap;  // 0: none
  int32_t q_data_type;     // 0: KVFOLIO_BF16
  int32_t o_data_type;     // 0: KVFOLIO_BF16
} kvfolio_cuda_batch_attention_params;
// Cuts the work of a step and sends it. All arrays are of host memory, and read before it returns:
// qo_indptr [num_sequences + 1], rows of q of each sequence, null for a decode; kv_indptr
// [num_sequences + 1]; kv_indices [num_kv_indices], pages; kv_last_page_len [num_sequences].
// `paged_kv` is a view of any layer. KVFOLIO_ERR_INVALID_ARGUMENT, KVFOLIO_ERR_UNSUPPORTED, the
// plan before stays: the arrays, by name and number; more than there is room for, with both
// numbers; what kvfolio_cuda_plan_attend() says. KVFOLIO_ERR_FAILED_PRECONDITION, the same: the
// stream is being captured. KVFOLIO_ERR_UNAVAILABLE: the driver's; then there is no plan.
KVFOLIO_C_API int32_t kvfolio_cuda_batch_attention_plan(
    kvfolio_cuda_batch_attention* attention, const kvfolio_cuda_batch_attention_params* params,
    int32_t num_sequences, const int32_t* qo_indptr, const int32_t* kv_indptr,
    const int32_t* kv_indices, int64_t num_kv_indices, const int32_t* kv_last_page_len,
    const kvfolio_view* paged_kv, void* stream, kvfolio_error* error);
// One layer of what was planned; may be captured. q and out [rows, num_qo_heads, head_dim] and lse
// [rows, num_qo_heads], natural logarithms, or null, are device memory.
// KVFOLIO_ERR_FAILED_PRECONDITION: there is no plan. KVFOLIO_ERR_INVALID_ARGUMENT: another shape,
// stride or element type than the plan's.
KVFOLIO_C_API int32_t kvfolio_cuda_batch_attention_run(kvfolio_cuda_batch_attention* attention,
                                                       const void* q, const kvfolio_rows* q_rows,
                                                       const kvfolio_view* paged_kv, int32_t layer,
                                                       void* out, const kvfolio_rows* out_rows,
                                                       float* lse, void* stream,
                                                       kvfolio_error* error);
// What the last plan is: the shape by which a captured run is known, all 0 without a plan; and the
// name of its kernels, empty without one, valid until the next plan.
KVFOLIO_C_API int32_t
kvfolio_cuda_batch_attention_get_shape(const kvfolio_cuda_batch_attention* attention,
                                       kvfolio_cuda_attend_shape* out, kvfolio_error* error);
KVFOLIO_C_API const char* kvfolio_cuda_batch_attention_target(
    const kvfolio_cuda_batch_attention* attention);
KVFOLIO_C_API int64_t
kvfolio_cuda_batch_attention_device_bytes(const kvfolio_cuda_batch_attention* attention);
KVFOLIO_C_API int64_t
kvfolio_cuda_batch_attention_pinned_bytes(const kvfolio_cuda_batch_attention* attention);

// ---- graphs ------------------------------------------------------------------------------------

// What a stream is given once, started again as one (Graph in cuda_graph.h, which says what may be
// captured). An engine that has graphs of its own needs none of it.
//
//   kvfolio_cuda_graph_begin_capture(device, stream, &error);
//   int32_t code = start_step(stream);  // none of it runs
//   if (code == 0) code = kvfolio_cuda_graph_end_capture(device, stream, &graph, &error);
//   else kvfolio_cuda_graph_drop_capture(device, stream);
//   kvfolio_cuda_graph_launch(graph, stream, &error);
typedef struct kvfolio_cuda_graph kvfolio_cuda_graph;
// One thread makes the call and, if it is KVFOLIO_OK, one of the next two.
// KVFOLIO_ERR_INVALID_ARGUMENT: a null stream, since the legacy one cannot be captured.
KVFOLIO_C_API int32_t kvfolio_cuda_graph_begin_capture(const kvfolio_cuda_device* device,
                                                       void* stream, kvfolio_error* error);
// KVFOLIO_ERR_UNAVAILABLE: what was given cannot be captured, or the driver fails; the stream is
// usable in either case.
KVFOLIO_C_API int32_t kvfolio_cuda_graph_end_capture(const kvfolio_cuda_device* device,
                                                     void* stream, kvfolio_cuda_graph** out,
                                                     kvfolio_error* error);
// Ends the capture, and keeps nothing of it: where what was to be captured failed.
KVFOLIO_C_API void kvfolio_cuda_graph_drop_capture(const kvfolio_cuda_device* device, void* stream);
// Its launches have ended before.
KVFOLIO_C_API void kvfolio_cuda_graph_destroy(kvfolio_cuda_graph* graph);
// On a stream of the same device, behind what that was given. Waits for nothing.
KVFOLIO_C_API int32_t kvfolio_cuda_graph_launch(kvfolio_cuda_graph* graph, void* stream,
                                                kvfolio_error* error);
// CUgraphExec; valid as long as the handle.
KVFOLIO_C_API void* kvfolio_cuda_graph_handle(const kvfolio_cuda_graph* graph);

// ---- plans on a device -------------------------------------------------------------------------

// The plan of a step in device memory (DevicePlan in cuda_plan.h, which says the rules): arrays
// that keep their addresses, for captured graphs, and block tables that stay there, of which a step
// sends only what changed.
typedef struct kvfolio_cuda_plan kvfolio_cuda_plan;
typedef struct kvfolio_cuda_plan_options {
  uint32_t struct_size;
  int32_t max_sequences;    // of a step, padding included: 1 to 2^20
  int32_t max_tokens;       // of a step, padding included: 1 to 2^30
  int32_t num_rows;         // kvfolio_num_rows(): 1 to 2^24
  int32_t steps_in_flight;  // pieces of pinned memory, 1 to 64; 0: 2
  int32_t pad_with_zero;    // as in kvfolio_plan_options; 1 with a null block
  int32_t positions;        // plans have them, then
  int32_t int64_slots;      // plans have slot_mapping_64, then
  int32_t no_batch_tables;  // 1: no block tables in the order of the plan
  int32_t flashinfer;       // plans have these arrays, then
  // Entries that one upload may set, all groups together, rows that are sent whole included; 0:
  // none is refused. At least the columns of a row of each group, a quarter more with flashinfer:
  // where a plan is refused, undo sequences of the step and send them in the next ones.
  int64_t max_changed_entries;
} kvfolio_cuda_plan_options;
// Groups are those of the manager: block_sizes and table_strides (columns of its tables:
// kvfolio_widest(), or a bound that the host keeps) have num_groups entries each. Waits for the
// device. KVFOLIO_ERR_INVALID_ARGUMENT: the options. KVFOLIO_ERR_OUT_OF_MEMORY,
// KVFOLIO_ERR_UNAVAILABLE.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_create(const kvfolio_cuda_kernels* kernels,
                                               const kvfolio_cuda_plan_options* options,
                                               const int32_t* block_sizes,
                                               const int32_t* table_strides, int32_t num_groups,
                                               kvfolio_cuda_plan** out, kvfolio_error* error);
// Waits for copies that are under way. Kernels that read the arrays have ended before.
KVFOLIO_C_API void kvfolio_cuda_plan_destroy(kvfolio_cuda_plan* plan);

// Addresses of device memory, the same as long as the plan; null: not wanted. What is behind the
// step's own is padding.
typedef struct kvfolio_cuda_plan_arrays {
  uint32_t struct_size;
  int32_t num_groups;
  const int32_t* query_start;      // [max_sequences + 1]
  const int32_t* rows;             // [max_sequences]
  const int32_t* kv_lens;          // [max_sequences]
  const int32_t* trim_sinks;       // [max_sequences]
  const int32_t* trim_first_kept;  // [max_sequences]
  const int32_t* positions;        // [max_tokens]
  const int32_t* counts;           // [2]: sequences and tokens of the step, without padding
} kvfolio_cuda_plan_arrays;
KVFOLIO_C_API int32_t kvfolio_cuda_plan_get_arrays(const kvfolio_cuda_plan* plan,
                                                   kvfolio_cuda_plan_arrays* out,
                                                   kvfolio_error* error);
typedef struct kvfolio_cuda_plan_group {
  uint32_t struct_size;
  int32_t table_stride;
  const int32_t* slot_mapping;      // [max_tokens], or
  const int64_t* slot_mapping_64;   // [max_tokens]
  const int32_t* table;             // [num_rows, table_stride]: row rows[i] is the i-th sequence's
  const int32_t* batch_table;       // [max_sequences, table_stride], in the order of the plan
  const int32_t* kv_indptr;         // FlashInfer: [max_sequences + 1]
  const int32_t* kv_indices;        // [max_sequences * table_stride]
  const int32_t* kv_last_page_len;  // [max_sequences]
  const int32_t* kv_first_live;     // [max_sequences]
} kvfolio_cuda_plan_group;
KVFOLIO_C_API int32_t kvfolio_cuda_plan_get_group(const kvfolio_cuda_plan* plan, int32_t group,
                                                  kvfolio_cuda_plan_group* out,
                                                  kvfolio_error* error);
KVFOLIO_C_API int64_t kvfolio_cuda_plan_device_bytes(const kvfolio_cuda_plan* plan);
KVFOLIO_C_API int64_t kvfolio_cuda_plan_pinned_bytes(const kvfolio_cuda_plan* plan);

// What kvfolio_plan() filled, with changed_entries; without block tables while
// kvfolio_cuda_plan_needs_block_tables() says 0. Read before the call returns, which waits for
// nothing. Nothing was started: KVFOLIO_ERR_INVALID_ARGUMENT: a plan that does not fit, or lacks an
// array that the options want. KVFOLIO_ERR_FAILED_PRECONDITION: it is older than the last one, or
// block tables are needed: plan the step again with these. KVFOLIO_ERR_RESOURCE_EXHAUSTED: all
// pieces of pinned memory are on their way. KVFOLIO_ERR_UNAVAILABLE: the driver's; then rows are
// sent whole next time.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_upload(kvfolio_cuda_plan* plan,
                                               const kvfolio_step_plan* step,
                                               const kvfolio_group_plan* groups, int32_t num_groups,
                                               void* stream, kvfolio_error* error);
// *out is 1 if that call would be refused for want of block tables, else 0.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_needs_block_tables(kvfolio_cuda_plan* plan,
                                                           const kvfolio_step_plan* step,
                                                           const kvfolio_group_plan* groups,
                                                           int32_t num_groups, int32_t* out,
                                                           kvfolio_error* error);
// Waits until a piece of pinned memory is free.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_wait(kvfolio_cuda_plan* plan, kvfolio_error* error);
// The two halves of an upload. A graph may have the second one in it: its kernels have the same
// arguments each time. It runs once behind each send; a plan behind one that was not applied is
// KVFOLIO_ERR_FAILED_PRECONDITION. So is the second half on a null stream while a blocking stream
// is being captured: what was sent stays to be applied.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_send(kvfolio_cuda_plan* plan, const kvfolio_step_plan* step,
                                             const kvfolio_group_plan* groups, int32_t num_groups,
                                             void* stream, kvfolio_error* error);
KVFOLIO_C_API int32_t kvfolio_cuda_plan_apply(kvfolio_cuda_plan* plan, void* stream,
                                              kvfolio_error* error);
// A graph that has the second half in it was launched behind the last send, which this handle does
// not see. Where the launch failed: kvfolio_cuda_plan_resend().
KVFOLIO_C_API void kvfolio_cuda_plan_applied(kvfolio_cuda_plan* plan);
// What the last upload sent (UploadInfo in cuda_plan.h).
typedef struct kvfolio_cuda_upload_info {
  uint32_t struct_size;
  int32_t reserved;         // 0
  int64_t bytes;            // of the one copy
  int64_t changed_entries;  // from the manager's lists
  int64_t whole_rows;       // rows of a group that were sent whole
  int64_t whole_entries;    // the entries of these
} kvfolio_cuda_upload_info;
KVFOLIO_C_API int32_t kvfolio_cuda_plan_last_upload(const kvfolio_cuda_plan* plan,
                                                    kvfolio_cuda_upload_info* out,
                                                    kvfolio_error* error);
// Sends every row whole when a plan has it next: after memory of the device was lost, or before the
// plans of another manager.
KVFOLIO_C_API void kvfolio_cuda_plan_resend(kvfolio_cuda_plan* plan);
// For tests: waits for the stream, reads all back and compares it with the plan that was uploaded
// last, which has block tables. KVFOLIO_ERR_CORRUPT, with the first difference.
KVFOLIO_C_API int32_t kvfolio_cuda_plan_verify(kvfolio_cuda_plan* plan,
                                               const kvfolio_step_plan* step,
                                               const kvfolio_group_plan* groups, int32_t num_groups,
                                               void* stream, kvfolio_error* error);

#ifdef __cplusplus
}  // extern "C"
#endif

// Not in C, and why:
//  - Device::run(), context(), impl(), device() of Kernels: for the sources of the library.
//  - ordinal(), capability_major(), capability_minor(), num_multiprocessors() of Device: fields of
//    kvfolio_cuda_device_info.
//  - kind(), copy_batch() and the rest of a MemoryResource: kvfolio_memory_resource has them.
//  - attention() of DevicePlan: the caller fills its kvfolio_cuda_attention.
//  - arrays(), group() and num_groups() of DevicePlan: kvfolio_cuda_plan_get_arrays() and
//    kvfolio_cuda_plan_get_group().
//  - capture() of Graph: begin_capture() and end_capture().
//  - is_captured() of Device: the driver's cuStreamIsCapturing().
//  - shape() of Graph: the caller compares shapes, which kvfolio_cuda_attend_plan_get_shape() and
//    kvfolio_cuda_batch_attention_get_shape() write.
//  - copy_in() and copy_out() of a DeviceBuffer, and span(): kvfolio_cuda_memory_copy_in() and its
//    kin.
//  - pos_encoding_mode and custom_mask of BatchAttentionPlan: what is refused.
//  - cuda.hpp: all headers in one.
