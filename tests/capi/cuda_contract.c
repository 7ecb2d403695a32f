// SPDX-License-Identifier: Apache-2.0
//
// Sentences of kvfolio_cuda.h that are about C alone: null handles, arguments that are refused by
// name, ends in any order, and a context that dies.

#include <limits.h>

#include "cuda_toy.h"

static ToyDevice toy;
static kvfolio_storage* storage;
static kvfolio_view* view;
static int num_refused;

// The call is refused with `code`, and its sentence has `words`.
static void refused(int32_t is, int32_t code, const char* words, int line) {
  ++num_refused;
  if (is == code && strstr(g_error.message, words) != NULL) return;
  fprintf(stderr, "line %d: %d %s\n  not: %d ... %s\n", line, is, g_error.message, code, words);
  exit(1);
}
#define BAD(call, words) refused((call), KVFOLIO_ERR_INVALID_ARGUMENT, words, __LINE__)

static void null_handles_are_nothing(void) {
  kvfolio_cuda_device_destroy(NULL);
  kvfolio_cuda_stream_destroy(NULL);
  kvfolio_cuda_event_destroy(NULL);
  kvfolio_cuda_kernels_destroy(NULL);
  kvfolio_cuda_pinned_destroy(NULL);
  kvfolio_cuda_memory_destroy(NULL);
  kvfolio_cuda_memory_deallocate(NULL, &toy, 8);
  kvfolio_cuda_memory_deallocate(toy.memory, NULL, 8);
  kvfolio_cuda_attend_plan_destroy(NULL);
  kvfolio_cuda_plan_destroy(NULL);
  kvfolio_cuda_plan_resend(NULL);
  kvfolio_cuda_plan_applied(NULL);
  kvfolio_cuda_batch_attention_destroy(NULL);
  kvfolio_cuda_graph_destroy(NULL);
  kvfolio_cuda_graph_drop_capture(NULL, NULL);
  CHECK(kvfolio_cuda_graph_handle(NULL) == NULL);
  CHECK(kvfolio_cuda_batch_attention_target(NULL) == NULL);
  CHECK(kvfolio_cuda_batch_attention_device_bytes(NULL) == 0);
  CHECK(kvfolio_cuda_batch_attention_pinned_bytes(NULL) == 0);
  CHECK(kvfolio_cuda_plan_device_bytes(NULL) == 0 && kvfolio_cuda_plan_pinned_bytes(NULL) == 0);
  CHECK(kvfolio_cuda_device_name(NULL) == NULL && kvfolio_cuda_device_target(NULL) == NULL);
  CHECK(kvfolio_cuda_stream_handle(NULL) == NULL && kvfolio_cuda_event_handle(NULL) == NULL);
  CHECK(kvfolio_cuda_pinned_data(NULL) == NULL && kvfolio_cuda_pinned_bytes(NULL) == 0);
  int64_t bytes = 9;
  CHECK(kvfolio_cuda_attend_plan_image(NULL, &bytes) == NULL && bytes == 0);
  CHECK(kvfolio_cuda_attend_plan_image(NULL, NULL) == NULL);
  CHECK(kvfolio_cuda_attend_plan_workspace_bytes(NULL) == 0);
  CHECK(kvfolio_cuda_attend_plan_zeroed_bytes(NULL) == 0);
  CHECK(kvfolio_cuda_attend_plan_target(NULL) == NULL);
  CHECK(kvfolio_cuda_attend_plan_explain(NULL) == NULL);
}

static void devices_streams_and_events_are_asked_for_by_name(void) {
  kvfolio_cuda_device* device = NULL;
  kvfolio_cuda_stream* stream = NULL;
  kvfolio_cuda_event* event = NULL;
  int32_t number = 0;
  kvfolio_cuda_device_info info = {.struct_size = sizeof info};
  BAD(kvfolio_cuda_num_devices(NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_device_open(0, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_device_open(2, &device, &g_error), "2");
  BAD(kvfolio_cuda_device_open(-1, &device, &g_error), "-1");
  BAD(kvfolio_cuda_device_get_info(NULL, &info, &g_error), "device is null");
  BAD(kvfolio_cuda_device_get_info(toy.device, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_device_status(NULL, &g_error), "device is null");
  BAD(kvfolio_cuda_device_synchronize(NULL, &g_error), "device is null");
  BAD(kvfolio_cuda_stream_create(NULL, &stream, &g_error), "device is null");
  BAD(kvfolio_cuda_stream_create(toy.device, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_stream_done(NULL, &number, &g_error), "stream is null");
  BAD(kvfolio_cuda_stream_done(toy.stream, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_stream_synchronize(NULL, &g_error), "stream is null");
  BAD(kvfolio_cuda_event_create(NULL, &event, &g_error), "device is null");
  BAD(kvfolio_cuda_event_create(toy.device, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_event_record(NULL, NULL, &g_error), "event is null");
  BAD(kvfolio_cuda_event_passed(NULL, &number, &g_error), "event is null");
  BAD(kvfolio_cuda_event_synchronize(NULL, &g_error), "event is null");
  BAD(kvfolio_cuda_event_hold_back(NULL, NULL, &g_error), "event is null");
  MUST(kvfolio_cuda_event_create(toy.device, &event, &g_error));
  BAD(kvfolio_cuda_event_passed(event, NULL, &g_error), "out is null");
  kvfolio_cuda_event_destroy(event);
  CHECK(device == NULL && stream == NULL && number == 0);
}

static void memory_is_asked_for_by_name(void) {
  kvfolio_cuda_memory* memory = NULL;
  kvfolio_cuda_pinned* pinned = NULL;
  kvfolio_cuda_kernels* kernels = NULL;
  void* piece = NULL;
  char byte = 0;
  BAD(kvfolio_cuda_kernels_load(NULL, NULL, &kernels, &g_error), "device is null");
  BAD(kvfolio_cuda_kernels_load(toy.device, NULL, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_pinned_allocate(NULL, 8, &pinned, &g_error), "device is null");
  BAD(kvfolio_cuda_pinned_allocate(toy.device, 0, &pinned, &g_error), "0");
  BAD(kvfolio_cuda_pinned_allocate(toy.device, 8, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_memory_create(NULL, NULL, NULL, &memory, &g_error), "device is null");
  BAD(kvfolio_cuda_memory_create(toy.device, NULL, NULL, NULL, &g_error), "out is null");
  kvfolio_cuda_memory_options options = {.struct_size = sizeof options, .source = 3};
  BAD(kvfolio_cuda_memory_create(toy.device, NULL, &options, &memory, &g_error),
      "options->source is 3, allowed: 0 to 2");
  options.source = KVFOLIO_CUDA_LENT;
  BAD(kvfolio_cuda_memory_create(toy.device, NULL, &options, &memory, &g_error), "lent is null");
  options.source = KVFOLIO_CUDA_PLAIN;
  options.staging_bytes = 127;
  BAD(kvfolio_cuda_memory_create(toy.device, NULL, &options, &memory, &g_error),
      "staging_bytes is 127");
  kvfolio_cuda_device* second = NULL;
  MUST(kvfolio_cuda_device_open(1, &second, &g_error));
  BAD(kvfolio_cuda_memory_create(second, toy.kernels, NULL, &memory, &g_error),
      "kernels are those of device 0");
  kvfolio_cuda_device_destroy(second);
  kvfolio_memory_resource resource = {.struct_size = sizeof resource};
  BAD(kvfolio_cuda_memory_resource(NULL, &resource, &g_error), "memory is null");
  BAD(kvfolio_cuda_memory_resource(toy.memory, NULL, &g_error), "out is null");
  resource.struct_size = 3;
  BAD(kvfolio_cuda_memory_resource(toy.memory, &resource, &g_error), "struct_size is 3");
  BAD(kvfolio_cuda_memory_take_error(NULL, &g_error), "memory is null");
  BAD(kvfolio_cuda_memory_allocate(NULL, 8, &piece, &g_error), "memory is null");
  BAD(kvfolio_cuda_memory_allocate(toy.memory, 8, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_memory_allocate(toy.memory, 0, &piece, &g_error), "bytes is 0");
  BAD(kvfolio_cuda_memory_copy_in(NULL, &byte, &byte, 1, &g_error), "memory is null");
  BAD(kvfolio_cuda_memory_copy_in(toy.memory, NULL, &byte, 1, &g_error), "dst is null");
  BAD(kvfolio_cuda_memory_copy_out(NULL, &byte, &byte, 1, &g_error), "memory is null");
  BAD(kvfolio_cuda_memory_copy_out(toy.memory, &byte, NULL, 1, &g_error), "src is null");
  BAD(kvfolio_cuda_memory_copy(NULL, &byte, &byte, 1, &g_error), "memory is null");
  BAD(kvfolio_cuda_memory_copy(toy.memory, &byte, &byte, -1, &g_error), "bytes is -1");
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, NULL, NULL, 0, &g_error));
  MUST(kvfolio_cuda_memory_copy_out(toy.memory, NULL, NULL, 0, &g_error));
  MUST(kvfolio_cuda_memory_copy(toy.memory, NULL, NULL, 0, &g_error));
  CHECK(memory == NULL && pinned == NULL && kernels == NULL && piece == NULL);
}

static void moves_are_refused_by_name(void) {
  static float floats[kRowFloats];
  const int32_t block[1] = {0};
  const kvfolio_rows rows = toy_rows(1);
  const kvfolio_gather_options options = {.struct_size = sizeof options, .length = 1, .count = 1};
  const kvfolio_cuda_kernels* const kernels = toy.kernels;
  void* const k = toy_upload(&toy, floats, sizeof floats);
  BAD(kvfolio_cuda_slot_fault(NULL, 0, &g_error), "cache is null");
  BAD(kvfolio_cuda_table_fault(NULL, 0, &g_error), "cache is null");
  BAD(kvfolio_cuda_append(NULL, view, 0, k, &rows, k, &rows, k, 1, NULL, NULL, &g_error),
      "kernels is null");
  BAD(kvfolio_cuda_append(kernels, NULL, 0, k, &rows, k, &rows, k, 1, NULL, NULL, &g_error),
      "cache is null");
  BAD(kvfolio_cuda_append(kernels, view, 0, k, NULL, k, &rows, k, 1, NULL, NULL, &g_error),
      "k is given without k_rows");
  BAD(kvfolio_cuda_append(kernels, view, 0, k, &rows, k, &rows, NULL, 1, NULL, NULL, &g_error),
      "slots is null");
  BAD(kvfolio_cuda_append(kernels, view, 0, floats, &rows, k, &rows, k, 1, NULL, NULL, &g_error),
      "k is memory of the host, needed: memory of device 0 (Fake 0)");
  BAD(kvfolio_cuda_append(kernels, view, 1, k, &rows, k, &rows, k, 1, NULL, NULL, &g_error),
      "layer");
  BAD(kvfolio_cuda_gather(NULL, view, k, 1, &options, k, &rows, NULL, NULL, NULL, NULL, &g_error),
      "kernels is null");
  BAD(kvfolio_cuda_gather(kernels, NULL, k, 1, &options, k, &rows, NULL, NULL, NULL, NULL,
                          &g_error),
      "cache is null");
  BAD(kvfolio_cuda_gather(kernels, view, k, -1, &options, k, &rows, NULL, NULL, NULL, NULL,
                          &g_error),
      "block_table has -1 entries");
  BAD(kvfolio_cuda_copy_blocks(NULL, view, block, block, 1, NULL, &g_error), "kernels is null");
  BAD(kvfolio_cuda_copy_blocks(kernels, NULL, block, block, 1, NULL, &g_error), "cache is null");
  BAD(kvfolio_cuda_copy_blocks(kernels, view, k, block, 1, NULL, &g_error),
      "src is memory of device 0, needed: memory of the host");
  BAD(kvfolio_cuda_copy_blocks(kernels, view, NULL, block, 1, NULL, &g_error), "src is null");
  BAD(kvfolio_cuda_convert_blocks(NULL, view, view, block, block, 1, NULL, &g_error),
      "kernels is null");
  BAD(kvfolio_cuda_convert_blocks(kernels, NULL, view, block, block, 1, NULL, &g_error),
      "from is null");
  BAD(kvfolio_cuda_convert_blocks(kernels, view, NULL, block, block, 1, NULL, &g_error),
      "to is null");
  BAD(kvfolio_cuda_convert_blocks(kernels, view, view, block, NULL, 1, NULL, &g_error),
      "dst is null");
  BAD(kvfolio_cuda_fill(NULL, view, 0, NULL, &g_error), "kernels is null");
  BAD(kvfolio_cuda_fill(kernels, NULL, 0, NULL, &g_error), "cache is null");
  // A view of host memory is the CPU's.
  kvfolio_storage* const on_host = toy_storage(NULL);
  kvfolio_view* host = NULL;
  MUST(kvfolio_view_create(on_host, 0, -1, &host, &g_error));
  kvfolio_cuda_kernels* unchecked = NULL;
  const kvfolio_cuda_kernel_options no_checks = {.struct_size = sizeof no_checks,
                                                 .no_pointer_checks = 1};
  MUST(kvfolio_cuda_kernels_load(toy.device, &no_checks, &unchecked, &g_error));
  refused(kvfolio_cuda_fill(unchecked, host, 0, NULL, &g_error), KVFOLIO_ERR_UNSUPPORTED, "host",
          __LINE__);
  kvfolio_cuda_kernels_destroy(unchecked);
  kvfolio_view_destroy(host);
  kvfolio_storage_destroy(on_host);
  toy_free(&toy, k, sizeof floats);
}

static void attention_is_refused_by_name(void) {
  const int32_t query_start[2] = {0, 1};
  const int32_t kv_lens[1] = {1};
  static const float floats[kRowFloats];
  void* const piece = toy_upload(&toy, floats, sizeof floats);
  const kvfolio_rows rows = toy_rows(1);
  kvfolio_cuda_attention there = {.struct_size = sizeof there,
                                  .block_table_stride = 1,
                                  .block_table = piece,
                                  .query_start = piece,
                                  .kv_lens = piece,
                                  .q = piece,
                                  .out = piece};
  kvfolio_attention_options options = {.struct_size = sizeof options};
  kvfolio_cuda_attend_plan* plan = NULL;
  int64_t bytes = 0;
#define PLAN(kernels, cache, n, starts, lens, out)                                               \
  kvfolio_cuda_plan_attend(kernels, cache, &options, &there, n, starts, lens, NULL, NULL, &rows, \
                           &rows, out, &g_error)
  BAD(PLAN(NULL, view, 1, query_start, kv_lens, &plan), "kernels is null");
  BAD(PLAN(toy.kernels, NULL, 1, query_start, kv_lens, &plan), "cache is null");
  BAD(PLAN(toy.kernels, view, 1, NULL, kv_lens, &plan), "query_start is null");
  BAD(PLAN(toy.kernels, view, 1, query_start, NULL, &plan), "kv_lens is null");
  BAD(PLAN(toy.kernels, view, -1, query_start, kv_lens, &plan), "kv_lens has -1 entries");
  BAD(PLAN(toy.kernels, view, 1, query_start, kv_lens, NULL), "out is null");
  options.target = 2;
  BAD(PLAN(toy.kernels, view, 1, query_start, kv_lens, &plan),
      "options->target is 2, allowed on a device: 0");
  options.target = 0;
  options.slice = 1;
  BAD(PLAN(toy.kernels, view, 1, query_start, kv_lens, &plan), "options->slice is 1");
  options.slice = 0;
  there.block_table_stride = INT_MIN;
  BAD(PLAN(toy.kernels, view, 1, query_start, kv_lens, &plan), "block_table is given, its stride");
  there.block_table_stride = 1;
  BAD(kvfolio_cuda_plan_attend(toy.kernels, view, NULL, NULL, 1, query_start, kv_lens, NULL, NULL,
                               &rows, &rows, &plan, &g_error),
      "on_device is null");
  BAD(kvfolio_cuda_plan_attend(toy.kernels, view, NULL, &there, 1, query_start, kv_lens, NULL, NULL,
                               NULL, &rows, &plan, &g_error),
      "q is given without q_rows");
  CHECK(plan == NULL);
  MUST(PLAN(toy.kernels, view, 1, query_start, kv_lens, &plan));
  kvfolio_cuda_attend_plan_image(plan, &bytes);
  kvfolio_cuda_pinned* pinned = NULL;
  MUST(kvfolio_cuda_pinned_allocate(toy.device, bytes, &pinned, &g_error));
  void* const data = kvfolio_cuda_pinned_data(pinned);
#define UPLOAD(kernels, plan, pinned, bytes, image, workspace) \
  kvfolio_cuda_upload(kernels, plan, pinned, bytes, image, workspace, NULL, &g_error)
  BAD(UPLOAD(NULL, plan, data, bytes, piece, piece), "kernels is null");
  BAD(UPLOAD(toy.kernels, NULL, data, bytes, piece, piece), "plan is null");
  BAD(UPLOAD(toy.kernels, plan, NULL, bytes, piece, piece), "pinned is null");
  BAD(UPLOAD(toy.kernels, plan, data, -1, piece, piece), "pinned_bytes is -1");
  BAD(UPLOAD(toy.kernels, plan, data, bytes - 1, piece, piece), "pinned");
  BAD(UPLOAD(toy.kernels, plan, data, bytes, NULL, piece), "image is null");
  BAD(UPLOAD(toy.kernels, plan, data, bytes, piece, NULL), "workspace is null");
#define ATTEND(kernels, cache, there, plan, image, workspace)                                  \
  kvfolio_cuda_attend(kernels, cache, NULL, there, 1, query_start, kv_lens, NULL, NULL, &rows, \
                      &rows, plan, image, workspace, NULL, &g_error)
  BAD(ATTEND(NULL, view, &there, plan, piece, piece), "kernels is null");
  BAD(ATTEND(toy.kernels, NULL, &there, plan, piece, piece), "cache is null");
  BAD(ATTEND(toy.kernels, view, NULL, plan, piece, piece), "on_device is null");
  BAD(ATTEND(toy.kernels, view, &there, NULL, piece, piece), "plan is null");
  BAD(ATTEND(toy.kernels, view, &there, plan, NULL, piece), "image is null");
  BAD(ATTEND(toy.kernels, view, &there, plan, piece, NULL), "workspace is null");
  const kvfolio_attention_options capped = {.struct_size = sizeof capped, .soft_cap = 2};
  BAD(kvfolio_cuda_attend(toy.kernels, view, &capped, &there, 1, query_start, kv_lens, NULL, NULL,
                          &rows, &rows, plan, piece, piece, NULL, &g_error),
      "soft_cap");
  kvfolio_cuda_pinned_destroy(pinned);
  kvfolio_cuda_attend_plan_destroy(plan);
  toy_free(&toy, piece, sizeof floats);
}

static void padded_plans_are_refused_by_name(void) {
  const int32_t query_start[3] = {0, 1, 2};
  const int32_t kv_lens[2] = {1, 4};
  static const float floats[2 * kRowFloats];
  void* const piece = toy_upload(&toy, floats, sizeof floats);
  const kvfolio_rows rows = toy_rows(1);
  const kvfolio_cuda_attention there = {.struct_size = sizeof there,
                                        .block_table_stride = 1,
                                        .block_table = piece,
                                        .query_start = piece,
                                        .kv_lens = piece,
                                        .q = piece,
                                        .out = piece};
  kvfolio_cuda_attend_capacity capacity = {
      .struct_size = sizeof capacity, .max_sequences = 1, .max_sequence_tokens = 4};
  kvfolio_cuda_attend_plan* plan = NULL;
#define PADDED(kernels, cache, there, starts, lens, capacity, out)                                 \
  kvfolio_cuda_plan_attend_padded(kernels, cache, NULL, there, 1, starts, lens, NULL, NULL, &rows, \
                                  &rows, capacity, out, &g_error)
  BAD(PADDED(NULL, view, &there, query_start, kv_lens, &capacity, &plan), "kernels is null");
  BAD(PADDED(toy.kernels, NULL, &there, query_start, kv_lens, &capacity, &plan), "cache is null");
  BAD(PADDED(toy.kernels, view, NULL, query_start, kv_lens, &capacity, &plan), "on_device is null");
  BAD(PADDED(toy.kernels, view, &there, NULL, kv_lens, &capacity, &plan), "query_start is null");
  BAD(PADDED(toy.kernels, view, &there, query_start, NULL, &capacity, &plan), "kv_lens is null");
  BAD(PADDED(toy.kernels, view, &there, query_start, kv_lens, NULL, &plan), "capacity is null");
  BAD(PADDED(toy.kernels, view, &there, query_start, kv_lens, &capacity, NULL), "out is null");
  capacity.max_sequences = 0;
  BAD(PADDED(toy.kernels, view, &there, query_start, kv_lens, &capacity, &plan),
      "capacity.max_sequences is 0, allowed: 1 to 1048576");
  capacity.max_sequences = 1;
  capacity.max_queries = -1;
  BAD(PADDED(toy.kernels, view, &there, query_start, kv_lens, &capacity, &plan),
      "capacity.max_queries is -1, allowed: 1 to 65536");
  capacity.max_queries = 0;
  capacity.max_tokens = 5;
  BAD(PADDED(toy.kernels, view, &there, query_start, kv_lens, &capacity, &plan),
      "capacity.max_tokens is 5, allowed: 0 to 4");
  capacity.max_tokens = 0;
  MUST(PADDED(toy.kernels, view, &there, query_start, kv_lens, &capacity, &plan));
#define CHECKED(plan, n, starts, lens) \
  kvfolio_cuda_attend_plan_check(plan, n, starts, lens, NULL, NULL, &g_error)
  BAD(CHECKED(NULL, 1, query_start, kv_lens), "plan is null");
  MUST(CHECKED(plan, 1, query_start, kv_lens));
  BAD(CHECKED(plan, 1, NULL, kv_lens), "query_start is null");
  BAD(CHECKED(plan, 1, query_start, NULL), "kv_lens is null");
  BAD(CHECKED(plan, -1, query_start, kv_lens), "kv_lens has -1 entries");
  BAD(CHECKED(plan, 2, query_start, kv_lens),
      "the batch has 2 sequences, the capacity is 1: max_sequences");
#define ON_DEVICE(kernels, cache, there, plan, image, workspace)                                \
  kvfolio_cuda_plan_on_device(kernels, cache, NULL, there, 1, query_start, kv_lens, NULL, NULL, \
                              &rows, &rows, plan, image, workspace, NULL, NULL, NULL, &g_error)
  BAD(ON_DEVICE(NULL, view, &there, plan, piece, piece), "kernels is null");
  BAD(ON_DEVICE(toy.kernels, NULL, &there, plan, piece, piece), "cache is null");
  BAD(ON_DEVICE(toy.kernels, view, NULL, plan, piece, piece), "on_device is null");
  BAD(ON_DEVICE(toy.kernels, view, &there, NULL, piece, piece), "plan is null");
  BAD(ON_DEVICE(toy.kernels, view, &there, plan, NULL, piece), "image is null");
  BAD(ON_DEVICE(toy.kernels, view, &there, plan, piece, NULL), "workspace is null");
  BAD(ON_DEVICE(toy.kernels, view, &there, plan, (char*)piece + 8, piece),
      "image is not aligned to 16 bytes");
  kvfolio_cuda_attend_capacity is = {.struct_size = sizeof is};
  BAD(kvfolio_cuda_attend_plan_get_capacity(NULL, &is, &g_error), "plan is null");
  BAD(kvfolio_cuda_attend_plan_get_capacity(plan, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_plan_fault(NULL, 0, &g_error), "plan is null");
  MUST(kvfolio_cuda_plan_fault(plan, KVFOLIO_CUDA_NO_ENTRY, &g_error));
  BAD(kvfolio_cuda_plan_fault(plan, 0, &g_error),
      "sequence 0 of the batch on the device has more than 4 tokens of K and V or 1 queries");
  BAD(kvfolio_cuda_plan_fault(plan, 1, &g_error), "more than 1 sequences or 4 tokens");
  kvfolio_cuda_attend_plan_destroy(plan);
  // A plan that is not padded.
  MUST(kvfolio_cuda_plan_attend(toy.kernels, view, NULL, &there, 1, query_start, kv_lens, NULL,
                                NULL, &rows, &rows, &plan, &g_error));
  refused(CHECKED(plan, 1, query_start, kv_lens), KVFOLIO_ERR_FAILED_PRECONDITION, "not padded",
          __LINE__);
  refused(ON_DEVICE(toy.kernels, view, &there, plan, piece, piece), KVFOLIO_ERR_FAILED_PRECONDITION,
          "not padded", __LINE__);
  MUST(kvfolio_cuda_attend_plan_get_capacity(plan, &is, &g_error));
  CHECK(is.max_sequences == 0 && is.max_sequence_tokens == 0 && is.max_tokens == 0 &&
        is.max_queries == 1);
  kvfolio_cuda_attend_plan_destroy(plan);
  toy_free(&toy, piece, sizeof floats);
}

static void batch_attention_is_refused_by_name(void) {
  static const float floats[2 * kRowFloats];
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  void* const piece = toy_upload(&toy, floats, sizeof floats);
  kvfolio_cuda_paged_kv tensors = {.struct_size = sizeof tensors,
                                   .layout = KVFOLIO_NHD,
                                   .k = piece,
                                   .num_pages = 1,
                                   .page_size = 1,
                                   .num_kv_heads = kHeads,
                                   .head_dim = kDim,
                                   .dtype = KVFOLIO_F32};
  kvfolio_view* pages = NULL;
  BAD(kvfolio_cuda_paged_kv_view(NULL, &pages, &g_error), "tensors is null");
  BAD(kvfolio_cuda_paged_kv_view(&tensors, NULL, &g_error), "out is null");
  tensors.layout = KVFOLIO_GRANULE;
  BAD(kvfolio_cuda_paged_kv_view(&tensors, &pages, &g_error), "layout is 2");
  tensors.layout = KVFOLIO_NHD;
  tensors.num_pages = 0;
  BAD(kvfolio_cuda_paged_kv_view(&tensors, &pages, &g_error), "num_pages is 0");
  tensors.num_pages = 1;
  tensors.dtype = 99;
  BAD(kvfolio_cuda_paged_kv_view(&tensors, &pages, &g_error), "dtype is 99");
  tensors.dtype = KVFOLIO_INT8;
  refused(kvfolio_cuda_paged_kv_view(&tensors, &pages, &g_error), KVFOLIO_ERR_UNSUPPORTED, "int8",
          __LINE__);
  tensors.dtype = KVFOLIO_F32;
  MUST(kvfolio_cuda_paged_kv_view(&tensors, &pages, &g_error));

  kvfolio_cuda_batch_attention* attention = NULL;
  kvfolio_cuda_batch_attention_options options = {.struct_size = sizeof options,
                                                  .max_pages_of_sequence = 2,
                                                  .max_image_bytes = 4096,
                                                  .workspace_bytes = 4096};
#define CREATE(kernels, out) kvfolio_cuda_batch_attention_create(kernels, &options, out, &g_error)
  BAD(CREATE(NULL, &attention), "kernels is null");
  BAD(CREATE(toy.kernels, NULL), "out is null");
  BAD(CREATE(toy.kernels, &attention), "max_sequences is 0, allowed: 1 to");
  options.max_sequences = 1;
  options.workspace_bytes = 15;
  BAD(CREATE(toy.kernels, &attention), "workspace_bytes is 15");
  options.workspace_bytes = 4096;
  MUST(CREATE(toy.kernels, &attention));
  const kvfolio_rows rows = toy_rows(1);
#define RUN(attention, q_rows, cache, layer)                                                   \
  kvfolio_cuda_batch_attention_run(attention, piece, q_rows, cache, layer, piece, &rows, NULL, \
                                   stream, &g_error)
  refused(RUN(attention, &rows, pages, 0), KVFOLIO_ERR_FAILED_PRECONDITION, "there is no plan",
          __LINE__);
  const int32_t indptr[2] = {0, 1};
  int32_t indices[1] = {0};
  const int32_t last[1] = {1};
  kvfolio_cuda_batch_attention_params params = {.struct_size = sizeof params,
                                                .num_qo_heads = kHeads,
                                                .q_data_type = KVFOLIO_F32,
                                                .o_data_type = KVFOLIO_F32};
#define PLAN_PAGES(attention, n, starts, pages_of, num_pages, ends, cache)                    \
  kvfolio_cuda_batch_attention_plan(attention, &params, n, NULL, starts, pages_of, num_pages, \
                                    ends, cache, stream, &g_error)
  BAD(PLAN_PAGES(NULL, 1, indptr, indices, 1, last, pages), "attention is null");
  BAD(PLAN_PAGES(attention, 1, indptr, indices, 1, last, NULL), "paged_kv is null");
  BAD(PLAN_PAGES(attention, 1, NULL, indices, 1, last, pages), "kv_indptr is null");
  BAD(PLAN_PAGES(attention, -1, indptr, indices, 1, last, pages), "kv_last_page_len has -1");
  BAD(PLAN_PAGES(attention, 1, indptr, NULL, 1, last, pages), "kv_indices is null");
  BAD(PLAN_PAGES(attention, 1, indptr, indices, 0, last, pages), "kv_indices has 0 entries");
  indices[0] = 1;
  BAD(PLAN_PAGES(attention, 1, indptr, indices, 1, last, pages), "kv_indices[0] is 1, allowed");
  indices[0] = 0;
  params.window = -1;
  BAD(PLAN_PAGES(attention, 1, indptr, indices, 1, last, pages), "params->window is -1");
  params.window = 0;
  params.q_data_type = -1;
  BAD(PLAN_PAGES(attention, 1, indptr, indices, 1, last, pages), "params->q_data_type is -1");
  params.q_data_type = KVFOLIO_F32;
  MUST(PLAN_PAGES(attention, 1, indptr, indices, 1, last, pages));
  MUST(kvfolio_cuda_graph_begin_capture(toy.device, stream, &g_error));
  refused(PLAN_PAGES(attention, 1, indptr, indices, 1, last, pages),
          KVFOLIO_ERR_FAILED_PRECONDITION, "being captured", __LINE__);
  kvfolio_cuda_graph_drop_capture(toy.device, stream);
  BAD(RUN(NULL, &rows, pages, 0), "attention is null");
  BAD(RUN(attention, &rows, NULL, 0), "paged_kv is null");
  BAD(RUN(attention, NULL, pages, 0), "q is given without q_rows");
  BAD(RUN(attention, &rows, pages, 1), "layer");
  const kvfolio_rows two = toy_rows(2);
  BAD(RUN(attention, &two, pages, 0), "q");
  MUST(RUN(attention, &rows, pages, 0));
  MUST(kvfolio_cuda_stream_synchronize(toy.stream, &g_error));
  kvfolio_cuda_attend_shape shape = {.struct_size = sizeof shape};
  BAD(kvfolio_cuda_batch_attention_get_shape(NULL, &shape, &g_error), "attention is null");
  BAD(kvfolio_cuda_batch_attention_get_shape(attention, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_attend_plan_get_shape(NULL, &shape, &g_error), "plan is null");
  kvfolio_cuda_batch_attention_destroy(attention);
  kvfolio_view_destroy(pages);
  toy_free(&toy, piece, sizeof floats);
}

// Beside what batch_attention_is_refused_by_name() tries: what a padded one refuses.
static void a_padded_batch_attention_refuses_what_its_graph_cannot_serve(void) {
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  kvfolio_cuda_batch_attention* attention = NULL;
  kvfolio_cuda_batch_attention_options options = {.struct_size = sizeof options,
                                                  .max_sequences = 2,
                                                  .max_pages_of_sequence = 2,
                                                  .max_image_bytes = 4096,
                                                  .workspace_bytes = 1 << 16,
                                                  .padded = 1,
                                                  .max_queries = -1};
  BAD(CREATE(toy.kernels, &attention), "max_queries is -1, allowed: 1 to 65536");
  options.max_queries = 2;
  options.max_tokens = -1;
  BAD(CREATE(toy.kernels, &attention), "max_tokens is -1, allowed: 0 to");
  options.max_tokens = 9;
  MUST(CREATE(toy.kernels, &attention));
  kvfolio_cuda_batch_attention_params params = {.struct_size = sizeof params,
                                                .num_qo_heads = kHeads,
                                                .sm_scale = 0.5,
                                                .q_data_type = KVFOLIO_F32,
                                                .o_data_type = KVFOLIO_F32};
  const int32_t indptr[3] = {0, 1, 2};
  const int32_t pages_of[3] = {0, 2, 4};
  const int32_t pages[4] = {0, 1, 2, 3};
  const int32_t last[2] = {3, 3};
#define PLAN_PADDED(n, rows_of, starts)                                                           \
  kvfolio_cuda_batch_attention_plan(attention, &params, n, rows_of, starts, pages, 4, last, view, \
                                    stream, &g_error)
  BAD(PLAN_PADDED(1, NULL, indptr), "qo_indptr is empty, needed: 2 entries");
  BAD(PLAN_PADDED(2, indptr, pages_of),
      "the batch has 14 tokens of K and V, the capacity is 9: max_tokens");
  MUST(PLAN_PADDED(2, indptr, indptr));
  kvfolio_cuda_attend_shape first = {.struct_size = sizeof first};
  kvfolio_cuda_attend_shape then = {.struct_size = sizeof then};
  MUST(kvfolio_cuda_batch_attention_get_shape(attention, &first, &g_error));
  CHECK(first.num_sequences == 2 && first.num_rows == 4);
  params.sm_scale = 0.25;
  BAD(PLAN_PADDED(2, indptr, indptr), "sm_scale is 0.25, that of the first padded plan is 0.5");
  params.sm_scale = 0.5;
  MUST(PLAN_PADDED(1, indptr, indptr));
  MUST(kvfolio_cuda_batch_attention_get_shape(attention, &then, &g_error));
  CHECK(memcmp(&first, &then, sizeof first) == 0);
  MUST(kvfolio_cuda_stream_synchronize(toy.stream, &g_error));
  kvfolio_cuda_batch_attention_destroy(attention);
}

static void graphs_are_refused_by_name(void) {
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  kvfolio_cuda_graph* graph = NULL;
  BAD(kvfolio_cuda_graph_begin_capture(NULL, stream, &g_error), "device is null");
  BAD(kvfolio_cuda_graph_begin_capture(toy.device, NULL, &g_error),
      "the legacy stream cannot be captured");
  BAD(kvfolio_cuda_graph_end_capture(NULL, stream, &graph, &g_error), "device is null");
  BAD(kvfolio_cuda_graph_end_capture(toy.device, stream, NULL, &g_error), "out is null");
  refused(kvfolio_cuda_graph_end_capture(toy.device, stream, &graph, &g_error),
          KVFOLIO_ERR_UNAVAILABLE, "to end a capture", __LINE__);  // none was begun
  BAD(kvfolio_cuda_graph_launch(NULL, stream, &g_error), "graph is null");
  MUST(kvfolio_cuda_graph_begin_capture(toy.device, stream, &g_error));
  refused(kvfolio_cuda_stream_synchronize(toy.stream, &g_error), KVFOLIO_ERR_UNAVAILABLE, "900",
          __LINE__);
  refused(kvfolio_cuda_graph_end_capture(toy.device, stream, &graph, &g_error),
          KVFOLIO_ERR_UNAVAILABLE, "901", __LINE__);
  CHECK(graph == NULL);
  MUST(kvfolio_cuda_stream_synchronize(toy.stream, &g_error));
}

static void plans_are_refused_by_name(void) {
  ToyPlan p = toy_plan(&toy);
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  kvfolio_sequence sequence = 0;
  MUST(kvfolio_open(p.manager, NULL, NULL, 0, NULL, 0, NULL, &sequence, NULL, &g_error));
  toy_plan_step(&p, &sequence, 1, 0);
  kvfolio_cuda_plan_options sizes = {
      .struct_size = sizeof sizes, .max_sequences = 1, .max_tokens = 1, .num_rows = 1};
  const int32_t four[1] = {4};
  kvfolio_cuda_plan* made = NULL;
  int32_t needs = 0;
  BAD(kvfolio_cuda_plan_create(NULL, &sizes, four, four, 1, &made, &g_error), "kernels is null");
  BAD(kvfolio_cuda_plan_create(toy.kernels, &sizes, four, four, 1, NULL, &g_error), "out is null");
  BAD(kvfolio_cuda_plan_create(toy.kernels, &sizes, NULL, four, 1, &made, &g_error),
      "block_sizes is null");
  BAD(kvfolio_cuda_plan_create(toy.kernels, &sizes, four, NULL, 1, &made, &g_error),
      "table_strides is null");
  BAD(kvfolio_cuda_plan_create(toy.kernels, &sizes, four, four, 0, &made, &g_error), "groups is 0");
  BAD(kvfolio_cuda_plan_create(toy.kernels, &sizes, four, four, -1, &made, &g_error), "-1");
  BAD(kvfolio_cuda_plan_create(toy.kernels, &sizes, four, four, INT_MAX, &made, &g_error),
      "allowed");
  BAD(kvfolio_cuda_plan_create(toy.kernels, NULL, four, four, 1, &made, &g_error),
      "max_sequences is 0");
  CHECK(made == NULL);
  kvfolio_cuda_plan_arrays arrays = {.struct_size = sizeof arrays};
  kvfolio_cuda_plan_group group = {.struct_size = sizeof group};
  kvfolio_cuda_upload_info info = {.struct_size = sizeof info};
  BAD(kvfolio_cuda_plan_get_arrays(NULL, &arrays, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_get_group(NULL, 0, &group, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_get_group(p.plan, 1, &group, &g_error), "group is 1, allowed: 0 to 0");
  BAD(kvfolio_cuda_plan_get_group(p.plan, -1, &group, &g_error), "group is -1");
  BAD(kvfolio_cuda_plan_last_upload(NULL, &info, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_wait(NULL, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_apply(NULL, NULL, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_upload(NULL, &p.step, &p.group, 1, stream, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_upload(p.plan, NULL, &p.group, 1, stream, &g_error), "step is null");
  BAD(kvfolio_cuda_plan_upload(p.plan, &p.step, NULL, 1, stream, &g_error), "groups is null");
  BAD(kvfolio_cuda_plan_upload(p.plan, &p.step, &p.group, 0, stream, &g_error),
      "the step has 0 groups, the plan 1");
  BAD(kvfolio_cuda_plan_send(NULL, &p.step, &p.group, 1, stream, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_verify(NULL, &p.step, &p.group, 1, stream, &g_error), "plan is null");
  BAD(kvfolio_cuda_plan_needs_block_tables(NULL, &p.step, &p.group, 1, &needs, &g_error),
      "plan is null");
  BAD(kvfolio_cuda_plan_needs_block_tables(p.plan, &p.step, &p.group, 1, NULL, &g_error),
      "out is null");
  kvfolio_step_plan wrong = p.step;
  wrong.kv_lens.size = -1;
  BAD(kvfolio_cuda_plan_upload(p.plan, &wrong, &p.group, 1, stream, &g_error),
      "kv_lens has -1 entries");
  wrong.kv_lens.size = 0;
  BAD(kvfolio_cuda_plan_upload(p.plan, &wrong, &p.group, 1, stream, &g_error), "kv_lens");
  kvfolio_group_plan no_slots = p.group;
  no_slots.slot_mapping.size = 0;
  BAD(kvfolio_cuda_plan_upload(p.plan, &p.step, &no_slots, 1, stream, &g_error), "slots");
  // A caller whose struct ends before the number of a plan.
  wrong = p.step;
  wrong.struct_size = offsetof(kvfolio_step_plan, number);
  BAD(kvfolio_cuda_plan_upload(p.plan, &wrong, &p.group, 1, stream, &g_error), "number 0");
  MUST(kvfolio_cuda_plan_send(p.plan, &p.step, &p.group, 1, stream, &g_error));
  refused(kvfolio_cuda_plan_send(p.plan, &p.step, &p.group, 1, stream, &g_error),
          KVFOLIO_ERR_FAILED_PRECONDITION, "was sent and not applied; call apply()", __LINE__);
  MUST(kvfolio_cuda_plan_apply(p.plan, stream, &g_error));
  MUST(kvfolio_cuda_plan_upload(p.plan, &p.step, &p.group, 1, stream, &g_error));
  MUST(kvfolio_finish(p.manager, p.ticket, &g_error));
  // A step that it was never told of: tables are needed, and a plan that has them is taken.
  toy_plan_step(&p, &sequence, 1, 0);
  MUST(kvfolio_finish(p.manager, p.ticket, &g_error));
  toy_plan_step(&p, &sequence, 1, 0);
  MUST(kvfolio_cuda_plan_needs_block_tables(p.plan, &p.step, &p.group, 1, &needs, &g_error));
  CHECK(needs == 1);
  refused(kvfolio_cuda_plan_upload(p.plan, &p.step, &p.group, 1, stream, &g_error),
          KVFOLIO_ERR_FAILED_PRECONDITION, "block", __LINE__);
  MUST(kvfolio_drop(p.manager, p.ticket, &g_error));
  toy_plan_step(&p, &sequence, 1, 1);
  MUST(kvfolio_cuda_plan_upload(p.plan, &p.step, &p.group, 1, stream, &g_error));
  MUST(kvfolio_cuda_plan_verify(p.plan, &p.step, &p.group, 1, stream, &g_error));
  toy_plan_end(&p);
}

// A kernel leaves alone what a wrong entry names, and its word says which one it was.
static void a_wrong_entry_is_reported_by_its_word(void) {
  static const float floats[kRowFloats];
  const int32_t wrong[1] = {kBlocks * kBlockSize};
  uint64_t word = KVFOLIO_CUDA_NO_ENTRY;
  const kvfolio_rows rows = toy_rows(1);
  void* const k = toy_upload(&toy, floats, sizeof floats);
  void* const slot = toy_upload(&toy, wrong, sizeof wrong);
  void* const fault = toy_upload(&toy, &word, sizeof word);
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_cuda_append(toy.kernels, view, 0, k, &rows, k, &rows, slot, 1, stream, fault,
                           &g_error));
  toy_download(&toy, &word, fault, sizeof word);
  CHECK(word != KVFOLIO_CUDA_NO_ENTRY);
  BAD(kvfolio_cuda_slot_fault(view, word, &g_error), "slots[0] is 24");
  word = KVFOLIO_CUDA_NO_ENTRY;
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, fault, &word, sizeof word, &g_error));
  const kvfolio_gather_options options = {.struct_size = sizeof options, .length = 1, .count = 1};
  MUST(kvfolio_cuda_gather(toy.kernels, view, slot, 1, &options, k, &rows, NULL, NULL, stream,
                           fault, &g_error));
  toy_download(&toy, &word, fault, sizeof word);
  BAD(kvfolio_cuda_table_fault(view, word, &g_error), "block_table[0] is 24");
  toy_free(&toy, k, sizeof floats);
  toy_free(&toy, slot, sizeof wrong);
  toy_free(&toy, fault, sizeof word);
}

// Whatever goes first, what is left has all that it needs.
static void handles_end_in_any_order(void) {
  ToyDevice mine = {NULL, NULL, NULL, NULL};
  kvfolio_cuda_event* event = NULL;
  kvfolio_cuda_pinned* pinned = NULL;
  const int64_t before = kvfolio_fake_cuda_open();
  MUST(kvfolio_cuda_device_open(1, &mine.device, &g_error));
  MUST(kvfolio_cuda_stream_create(mine.device, &mine.stream, &g_error));
  MUST(kvfolio_cuda_event_create(mine.device, &event, &g_error));
  MUST(kvfolio_cuda_pinned_allocate(mine.device, 64, &pinned, &g_error));
  MUST(kvfolio_cuda_kernels_load(mine.device, NULL, &mine.kernels, &g_error));
  kvfolio_cuda_batch_attention* attention = NULL;
  kvfolio_cuda_graph* graph = NULL;
  const kvfolio_cuda_batch_attention_options small = {.struct_size = sizeof small,
                                                      .max_sequences = 1,
                                                      .max_pages_of_sequence = 1,
                                                      .max_image_bytes = 16,
                                                      .workspace_bytes = 16};
  MUST(kvfolio_cuda_batch_attention_create(mine.kernels, &small, &attention, &g_error));
  void* const captured = kvfolio_cuda_stream_handle(mine.stream);
  MUST(kvfolio_cuda_graph_begin_capture(mine.device, captured, &g_error));
  MUST(kvfolio_cuda_graph_end_capture(mine.device, captured, &graph, &g_error));
  const int64_t without = kvfolio_fake_cuda_open();
  MUST(kvfolio_cuda_memory_create(mine.device, mine.kernels, NULL, &mine.memory, &g_error));
  // Pinned and device staging, a stream and two events: nothing for copies that C cannot submit.
  CHECK(kvfolio_fake_cuda_open() == without + 5);
  kvfolio_cuda_device_destroy(mine.device);
  kvfolio_cuda_kernels* const kernels = mine.kernels;
  const kvfolio_memory_resource resource = toy_resource(&mine);
  kvfolio_storage* const there = toy_storage(&resource);
  kvfolio_view* cache = NULL;
  MUST(kvfolio_view_create(there, 0, -1, &cache, &g_error));
  MUST(kvfolio_cuda_fill(kernels, cache, 1, kvfolio_cuda_stream_handle(mine.stream), &g_error));
  MUST(kvfolio_cuda_event_record(event, kvfolio_cuda_stream_handle(mine.stream), &g_error));
  MUST(kvfolio_cuda_event_synchronize(event, &g_error));
  kvfolio_cuda_kernels_destroy(kernels);
  MUST(kvfolio_cuda_graph_launch(graph, captured, &g_error));
  // The memory's own kernels go on: seven runs are one copy and one kernel.
  toy_must_be_equal(there, there);
  kvfolio_cuda_stream_destroy(mine.stream);
  kvfolio_view_destroy(cache);
  kvfolio_storage_destroy(there);
  MUST(kvfolio_cuda_memory_take_error(mine.memory, &g_error));
  kvfolio_cuda_memory_destroy(mine.memory);
  kvfolio_cuda_pinned_destroy(pinned);
  kvfolio_cuda_event_destroy(event);
  kvfolio_cuda_batch_attention_destroy(attention);
  kvfolio_cuda_graph_destroy(graph);
  CHECK(kvfolio_fake_cuda_open() == before);
}

// Functions of a resource return codes; its memory keeps the sentence.
static void a_failed_copy_has_its_sentence_in_the_memory(void) {
  const int32_t block[1] = {0};
  const int64_t bytes = kvfolio_storage_block_image_bytes(storage, 0);
  char* const image = need(calloc(1, (size_t)bytes));
  kvfolio_fake_cuda_fail(1, 999);
  refused(kvfolio_storage_write_blocks(storage, 0, block, 1, image, bytes, &g_error),
          KVFOLIO_ERR_UNAVAILABLE, "the caller's", __LINE__);
  refused(kvfolio_cuda_memory_take_error(toy.memory, &g_error), KVFOLIO_ERR_UNAVAILABLE, "999",
          __LINE__);
  MUST(kvfolio_cuda_memory_take_error(toy.memory, &g_error));
  MUST(kvfolio_storage_write_blocks(storage, 0, block, 1, image, bytes, &g_error));
  free(image);
  kvfolio_fake_cuda_fail(1, 2);
  void* piece = NULL;
  refused(kvfolio_cuda_memory_allocate(toy.memory, 8, &piece, &g_error), KVFOLIO_ERR_OUT_OF_MEMORY,
          "8 bytes", __LINE__);
  CHECK(piece == NULL);
}

// The last test: the first device has no context behind it.
static void a_context_that_died_says_so_ever_after(void) {
  ToyDevice mine = toy_device();
  kvfolio_fake_cuda_fail(1, 700);
  refused(kvfolio_cuda_stream_synchronize(mine.stream, &g_error), KVFOLIO_ERR_UNAVAILABLE,
          "CUDA_ERROR_ILLEGAL_ADDRESS", __LINE__);
  char said[sizeof g_error.message];
  memcpy(said, g_error.message, sizeof said);
  void* piece = NULL;
  refused(kvfolio_cuda_device_status(mine.device, &g_error), KVFOLIO_ERR_UNAVAILABLE, said,
          __LINE__);
  refused(kvfolio_cuda_device_synchronize(mine.device, &g_error), KVFOLIO_ERR_UNAVAILABLE, said,
          __LINE__);
  refused(kvfolio_cuda_memory_allocate(mine.memory, 8, &piece, &g_error), KVFOLIO_ERR_UNAVAILABLE,
          said, __LINE__);
  kvfolio_cuda_stream_destroy(mine.stream);
  kvfolio_cuda_memory_destroy(mine.memory);
  kvfolio_cuda_kernels_destroy(mine.kernels);
  kvfolio_cuda_device_destroy(mine.device);
}

int main(void) {
  toy = toy_device();
  const kvfolio_memory_resource resource = toy_resource(&toy);
  storage = toy_storage(&resource);
  MUST(kvfolio_view_create(storage, 0, -1, &view, &g_error));
  null_handles_are_nothing();
  devices_streams_and_events_are_asked_for_by_name();
  memory_is_asked_for_by_name();
  moves_are_refused_by_name();
  attention_is_refused_by_name();
  padded_plans_are_refused_by_name();
  batch_attention_is_refused_by_name();
  a_padded_batch_attention_refuses_what_its_graph_cannot_serve();
  graphs_are_refused_by_name();
  plans_are_refused_by_name();
  a_wrong_entry_is_reported_by_its_word();
  handles_end_in_any_order();
  a_failed_copy_has_its_sentence_in_the_memory();
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
  toy_end(&toy);
  a_context_that_died_says_so_ever_after();
  printf("%d calls were refused\n", num_refused);
  return 0;
}
