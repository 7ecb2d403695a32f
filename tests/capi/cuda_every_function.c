// SPDX-License-Identifier: Apache-2.0
//
// A cache on a device, filled, moved and read by the kernels that a driver which is none runs: each
// step beside the same call of the CPU, whose bytes it has. Besides, each function of the header is
// called; one that was not fails the test.

#include <math.h>

#include "cuda_toy.h"

#include "calls.h"

enum { kTokens = 10 };

static ToyDevice toy;
static float g_k[kTokens * kRowFloats];
static float g_v[kTokens * kRowFloats];
// Position i of the sequence is at offset i % kBlockSize of block kTable[i / kBlockSize].
static const int32_t kTable[3] = {4, 1, 2};

static void devices(void) {
  CHECK(kvfolio_cuda_abi_version() == KVFOLIO_CUDA_ABI_VERSION);
  CHECK(kvfolio_cuda_kernel_revision() >= 1);
  MUST(kvfolio_cuda_available(&g_error));
  int32_t count = 0;
  MUST(kvfolio_cuda_num_devices(&count, &g_error));
  CHECK(count == 2);
  kvfolio_cuda_device* second = NULL;
  MUST(kvfolio_cuda_device_open(1, &second, &g_error));
  CHECK(strcmp(kvfolio_cuda_device_name(second), "Fake 1") == 0);
  CHECK(strcmp(kvfolio_cuda_device_target(second), "cuda-sm90") == 0);
  kvfolio_cuda_device_info info = {.struct_size = sizeof info};
  MUST(kvfolio_cuda_device_get_info(second, &info, &g_error));
  CHECK(info.ordinal == 1 && info.capability_major == 9 && info.capability_minor == 0 &&
        info.num_multiprocessors == 132);
  MUST(kvfolio_cuda_device_status(second, &g_error));
  MUST(kvfolio_cuda_device_synchronize(second, &g_error));
  kvfolio_cuda_device_destroy(second);
}

static void streams_and_events(kvfolio_view* cache) {
  kvfolio_cuda_stream* other = NULL;
  kvfolio_cuda_event* event = NULL;
  MUST(kvfolio_cuda_stream_create(toy.device, &other, &g_error));
  MUST(kvfolio_cuda_event_create(toy.device, &event, &g_error));
  CHECK(kvfolio_cuda_event_handle(event) != NULL);
  void* const first = kvfolio_cuda_stream_handle(other);
  void* const then = kvfolio_cuda_stream_handle(toy.stream);
  int32_t passed = 0;
  MUST(kvfolio_cuda_event_passed(event, &passed, &g_error));
  CHECK(passed == 1);
  MUST(kvfolio_cuda_fill(toy.kernels, cache, 1, first, &g_error));
  MUST(kvfolio_cuda_event_record(event, first, &g_error));
  MUST(kvfolio_cuda_event_hold_back(event, then, &g_error));
  MUST(kvfolio_cuda_fill(toy.kernels, cache, 2, then, &g_error));
  MUST(kvfolio_cuda_stream_synchronize(toy.stream, &g_error));
  MUST(kvfolio_cuda_event_synchronize(event, &g_error));
  MUST(kvfolio_cuda_event_passed(event, &passed, &g_error));
  int32_t done = 0;
  MUST(kvfolio_cuda_stream_done(other, &done, &g_error));
  CHECK(passed == 1 && done == 1);
  char byte = 0;
  toy_download(&toy, &byte, kvfolio_view_k(cache, 0, 0, 0, 0), 1);
  CHECK(byte == 2);
  MUST(kvfolio_cuda_fill(toy.kernels, cache, 0, then, &g_error));
  kvfolio_cuda_event_destroy(event);
  kvfolio_cuda_stream_destroy(other);
}

static void pieces(void) {
  const char bytes[4] = {1, 2, 3, 4};
  char back[4] = {0};
  void* const a = toy_upload(&toy, bytes, 4);
  void* const b = toy_upload(&toy, back, 4);
  MUST(kvfolio_cuda_memory_copy(toy.memory, b, a, 4, &g_error));
  toy_download(&toy, back, b, 4);
  CHECK(memcmp(back, bytes, 4) == 0);
  toy_free(&toy, a, 4);
  kvfolio_cuda_memory_deallocate(toy.memory, b, 4);
  void* piece = NULL;
  MUST(kvfolio_cuda_memory_allocate(toy.memory, 64, &piece, &g_error));
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, piece, bytes, 4, &g_error));
  MUST(kvfolio_cuda_memory_copy_out(toy.memory, back, piece, 4, &g_error));
  // A memory that is cut from the piece of another one.
  kvfolio_cuda_memory* cut = NULL;
  const kvfolio_cuda_memory_options lent = {
      .struct_size = sizeof lent, .source = KVFOLIO_CUDA_LENT, .lent = piece, .lent_bytes = 64};
  MUST(kvfolio_cuda_memory_create(toy.device, NULL, &lent, &cut, &g_error));
  void* same = NULL;
  MUST(kvfolio_cuda_memory_allocate(cut, 64, &same, &g_error));
  CHECK(same == piece);
  kvfolio_cuda_memory_deallocate(cut, same, 64);
  MUST(kvfolio_cuda_memory_take_error(cut, &g_error));
  kvfolio_cuda_memory_destroy(cut);
  kvfolio_cuda_memory_deallocate(toy.memory, piece, 64);
}

static void append_and_gather(kvfolio_view* device, kvfolio_view* host) {
  int32_t slots[kTokens];
  for (int32_t i = 0; i < kTokens; ++i) {
    slots[i] = kTable[i / kBlockSize] * kBlockSize + i % kBlockSize;
  }
  const kvfolio_rows rows = toy_rows(kTokens);
  MUST(kvfolio_append_rows(host, 0, g_k, &rows, g_v, &rows, slots, kTokens, &g_error));
  void* const k = toy_upload(&toy, g_k, sizeof g_k);
  void* const v = toy_upload(&toy, g_v, sizeof g_v);
  void* const places = toy_upload(&toy, slots, sizeof slots);
  uint64_t word = KVFOLIO_CUDA_NO_ENTRY;
  void* const fault = toy_upload(&toy, &word, sizeof word);
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_cuda_append(toy.kernels, device, 0, k, &rows, v, &rows, places, kTokens, stream,
                           fault, &g_error));
  toy_download(&toy, &word, fault, sizeof word);
  MUST(kvfolio_cuda_slot_fault(device, word, &g_error));

  const kvfolio_gather_options options = {
      .struct_size = sizeof options, .length = kTokens, .first = 0, .count = kTokens};
  void* const table = toy_upload(&toy, kTable, sizeof kTable);
  static float back[kTokens * kRowFloats];
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, k, back, sizeof back, &g_error));
  MUST(kvfolio_cuda_gather(toy.kernels, device, table, 3, &options, k, &rows, NULL, NULL, stream,
                           fault, &g_error));
  toy_download(&toy, back, k, sizeof back);
  CHECK(memcmp(back, g_k, sizeof back) == 0);
  toy_download(&toy, &word, fault, sizeof word);
  MUST(kvfolio_cuda_table_fault(device, word, &g_error));
  toy_free(&toy, k, sizeof g_k);
  toy_free(&toy, v, sizeof g_v);
  toy_free(&toy, places, sizeof slots);
  toy_free(&toy, fault, sizeof word);
  toy_free(&toy, table, sizeof kTable);
}

static void move_blocks(kvfolio_view* device, kvfolio_view* host) {
  const int32_t src[2] = {4, 1};
  const int32_t dst[2] = {0, 3};
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_copy_blocks(host, src, dst, 1, &g_error));
  MUST(kvfolio_convert_blocks(host, host, src + 1, dst + 1, 1, &g_error));
  MUST(kvfolio_cuda_copy_blocks(toy.kernels, device, src, dst, 1, stream, &g_error));
  MUST(kvfolio_cuda_convert_blocks(toy.kernels, device, device, src + 1, dst + 1, 1, stream,
                                   &g_error));
  MUST(kvfolio_cuda_stream_synchronize(toy.stream, &g_error));
}

// What the call gave that has the arrays one by one, from FlashInfer's; in a graph, too.
static void batch_attention(kvfolio_view* device, const kvfolio_view* host,
                            const kvfolio_cuda_attention* there, const kvfolio_rows* rows,
                            const float* wanted, int64_t bytes,
                            const kvfolio_cuda_attend_shape* wanted_shape) {
  const int32_t qo_indptr[2] = {0, 2};
  const int32_t kv_indptr[2] = {0, 3};
  const int32_t last[1] = {kTokens - 2 * kBlockSize};
  const kvfolio_cuda_batch_attention_options options = {.struct_size = sizeof options,
                                                        .max_sequences = 2,
                                                        .max_pages_of_sequence = 3,
                                                        .workspace_bytes = 1 << 16};
  const kvfolio_cuda_batch_attention_params params = {.struct_size = sizeof params,
                                                      .num_qo_heads = 2 * kHeads,
                                                      .causal = 1,
                                                      .q_data_type = KVFOLIO_F32,
                                                      .o_data_type = KVFOLIO_F32};
  kvfolio_cuda_batch_attention* attention = NULL;
  MUST(kvfolio_cuda_batch_attention_create(toy.kernels, &options, &attention, &g_error));
  CHECK(kvfolio_cuda_batch_attention_device_bytes(attention) > 1 << 16);
  CHECK(kvfolio_cuda_batch_attention_pinned_bytes(attention) > 0);
  CHECK(strcmp(kvfolio_cuda_batch_attention_target(attention), "") == 0);
  // An engine's own tensors, with the rows of the cache.
  static float k[kBlocks * kHeads * kBlockSize][kDim];
  static float v[kBlocks * kHeads * kBlockSize][kDim];
  for (int32_t i = 0; i < kBlocks * kHeads * kBlockSize; ++i) {
    const int32_t block = i / (kHeads * kBlockSize);
    const int32_t head = i / kBlockSize % kHeads;
    memcpy(k[i], kvfolio_view_k(host, 0, block, head, i % kBlockSize), sizeof k[i]);
    memcpy(v[i], kvfolio_view_v(host, 0, block, head, i % kBlockSize), sizeof v[i]);
  }
  const kvfolio_cuda_paged_kv tensors = {.struct_size = sizeof tensors,
                                         .layout = KVFOLIO_HND,
                                         .k = toy_upload(&toy, k, sizeof k),
                                         .v = toy_upload(&toy, v, sizeof v),
                                         .num_pages = kBlocks,
                                         .page_size = kBlockSize,
                                         .num_kv_heads = kHeads,
                                         .head_dim = kDim,
                                         .dtype = KVFOLIO_F32};
  kvfolio_view* pages = NULL;
  MUST(kvfolio_cuda_paged_kv_view(&tensors, &pages, &g_error));
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  float* const got = need(calloc(1, (size_t)bytes));
  kvfolio_cuda_graph* graph = NULL;
  for (int i = 0; i < 3; ++i) {
    const kvfolio_view* const cache = i == 0 ? device : pages;
    memset(got, 0, (size_t)bytes);
    MUST(kvfolio_cuda_memory_copy_in(toy.memory, there->out, got, bytes, &g_error));
    if (i < 2) {
      MUST(kvfolio_cuda_batch_attention_plan(attention, &params, 1, qo_indptr, kv_indptr, kTable, 3,
                                             last, cache, stream, &g_error));
      CHECK(strcmp(kvfolio_cuda_batch_attention_target(attention), "cuda-sm90-general") == 0);
      MUST(kvfolio_cuda_graph_begin_capture(toy.device, stream, &g_error));
      MUST(kvfolio_cuda_batch_attention_run(attention, there->q, rows, cache, 0, there->out, rows,
                                            NULL, stream, &g_error));
      if (i == 0) {
        kvfolio_cuda_graph_drop_capture(toy.device, stream);
        MUST(kvfolio_cuda_batch_attention_run(attention, there->q, rows, cache, 0, there->out, rows,
                                              NULL, stream, &g_error));
      } else {
        MUST(kvfolio_cuda_graph_end_capture(toy.device, stream, &graph, &g_error));
        CHECK(kvfolio_cuda_graph_handle(graph) != NULL);
        toy_download(&toy, got, there->out, bytes);
        CHECK(got[0] == 0);  // a capture runs nothing
      }
    }
    if (graph != NULL) MUST(kvfolio_cuda_graph_launch(graph, stream, &g_error));
    toy_download(&toy, got, there->out, bytes);
    CHECK(memcmp(got, wanted, (size_t)bytes) == 0);
  }
  kvfolio_cuda_attend_shape shape = {.struct_size = sizeof shape};
  MUST(kvfolio_cuda_batch_attention_get_shape(attention, &shape, &g_error));
  CHECK(memcmp(&shape, wanted_shape, sizeof shape) == 0);
  free(got);
  kvfolio_cuda_graph_destroy(graph);
  kvfolio_view_destroy(pages);
  kvfolio_cuda_batch_attention_destroy(attention);
  toy_free(&toy, tensors.k, sizeof k);
  toy_free(&toy, tensors.v, sizeof v);
}

// One sequence whose last two tokens ask; two query heads for each KV head.
static void attention(kvfolio_view* device, kvfolio_view* host) {
  enum { kRows = 2, kQueryHeads = 2 * kHeads, kFloats = kRows * kQueryHeads * kDim };
  static float q[kFloats];
  static float out[kFloats];
  static float got[kFloats];
  for (int i = 0; i < kFloats; ++i) q[i] = (float)(i % 7) / 4 - 0.5f;
  const int32_t query_start[2] = {0, kRows};
  const int32_t kv_lens[1] = {kTokens};
  const kvfolio_rows rows = {
      .struct_size = sizeof rows, .num_tokens = kRows, .num_heads = kQueryHeads, .head_dim = kDim};
  int64_t bytes = 0;
  MUST(kvfolio_attention_workspace_bytes(host, kQueryHeads, kTokens, 0, 1, &bytes, &g_error));
  void* const scratch = need(malloc((size_t)bytes + 64));
  MUST(kvfolio_attend(host, NULL, 1, query_start, kv_lens, kTable, 3, NULL, NULL, q, &rows, out,
                      &rows, NULL, NULL, (char*)scratch + (64 - (uintptr_t)scratch % 64) % 64,
                      bytes, NULL, &g_error));
  free(scratch);

  kvfolio_cuda_attention there = {.struct_size = sizeof there,
                                  .block_table_stride = 3,
                                  .block_table = toy_upload(&toy, kTable, sizeof kTable),
                                  .query_start = toy_upload(&toy, query_start, sizeof query_start),
                                  .kv_lens = toy_upload(&toy, kv_lens, sizeof kv_lens),
                                  .q = toy_upload(&toy, q, sizeof q),
                                  .out = toy_upload(&toy, got, sizeof got)};
  kvfolio_cuda_attend_plan* plan = NULL;
  MUST(kvfolio_cuda_plan_attend(toy.kernels, device, NULL, &there, 1, query_start, kv_lens, NULL,
                                NULL, &rows, &rows, &plan, &g_error));
  CHECK(strcmp(kvfolio_cuda_attend_plan_target(plan), "cuda-sm90-general") == 0);
  int64_t image_bytes = 0;
  CHECK(kvfolio_cuda_attend_plan_image(plan, &image_bytes) != NULL && image_bytes > 0);
  const int64_t workspace_bytes = kvfolio_cuda_attend_plan_workspace_bytes(plan);
  CHECK(workspace_bytes >= kvfolio_cuda_attend_plan_zeroed_bytes(plan));
  void* image = NULL;
  void* workspace = NULL;
  MUST(kvfolio_cuda_memory_allocate(toy.memory, image_bytes, &image, &g_error));
  MUST(kvfolio_cuda_memory_allocate(toy.memory, workspace_bytes + 1, &workspace, &g_error));
  kvfolio_cuda_pinned* pinned = NULL;
  MUST(kvfolio_cuda_pinned_allocate(toy.device, image_bytes, &pinned, &g_error));
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_cuda_upload(toy.kernels, plan, kvfolio_cuda_pinned_data(pinned),
                           kvfolio_cuda_pinned_bytes(pinned), image, workspace, stream, &g_error));
  MUST(kvfolio_cuda_attend(toy.kernels, device, NULL, &there, 1, query_start, kv_lens, NULL, NULL,
                           &rows, &rows, plan, image, workspace, stream, &g_error));
  toy_download(&toy, got, there.out, sizeof got);
  for (int i = 0; i < kFloats; ++i) CHECK(fabsf(got[i] - out[i]) < 1e-5f);
  CHECK(fabsf(got[0]) > 0);
  kvfolio_cuda_attend_shape shape = {.struct_size = sizeof shape};
  MUST(kvfolio_cuda_attend_plan_get_shape(plan, &shape, &g_error));
  CHECK(shape.num_sequences == 1 && shape.num_rows == kRows && shape.groups + shape.items > 0);
  batch_attention(device, host, &there, &rows, got, sizeof got, &shape);
  kvfolio_cuda_pinned_destroy(pinned);
  kvfolio_cuda_attend_plan_destroy(plan);
  toy_free(&toy, image, image_bytes);
  toy_free(&toy, workspace, workspace_bytes + 1);
  toy_free(&toy, (void*)there.block_table, sizeof kTable);
  toy_free(&toy, (void*)there.query_start, sizeof query_start);
  toy_free(&toy, (void*)there.kv_lens, sizeof kv_lens);
  toy_free(&toy, (void*)there.q, sizeof q);
  toy_free(&toy, there.out, sizeof got);
}

// A batch of which the numbers lie on the device, too.
enum { kSequences = 2, kColumns3 = 3, kQueryHeads = 2 * kHeads, kQueries = 2 };
enum { kPaddedFloats = kSequences * kQueries * kQueryHeads * kDim };
typedef struct {
  int32_t n;
  int32_t query_start[kSequences + 1];
  int32_t kv_lens[kSequences];
} ToyBatch;

static kvfolio_rows padded_rows(const ToyBatch* batch) {
  const kvfolio_rows rows = {.struct_size = sizeof rows,
                             .num_tokens = batch->query_start[batch->n],
                             .num_heads = kQueryHeads,
                             .head_dim = kDim};
  return rows;
}

static void tell_device(const kvfolio_cuda_attention* there, void* counts, const ToyBatch* batch) {
  MUST(kvfolio_cuda_stream_synchronize(toy.stream, &g_error));
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, (void*)there->query_start, batch->query_start,
                                   sizeof batch->query_start, &g_error));
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, (void*)there->kv_lens, batch->kv_lens,
                                   sizeof batch->kv_lens, &g_error));
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, counts, &batch->n, sizeof batch->n, &g_error));
}

// Rows by a plan of its own; `out` is zero before.
static void attend_alone(kvfolio_view* device, const kvfolio_cuda_attention* there,
                         const ToyBatch* batch, float* out) {
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  const kvfolio_rows rows = padded_rows(batch);
  memset(out, 0, kPaddedFloats * sizeof *out);
  if (rows.num_tokens == 0) return;
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, there->out, out, kPaddedFloats * sizeof *out,
                                   &g_error));
  kvfolio_cuda_attend_plan* plan = NULL;
  MUST(kvfolio_cuda_plan_attend(toy.kernels, device, NULL, there, batch->n, batch->query_start,
                                batch->kv_lens, NULL, NULL, &rows, &rows, &plan, &g_error));
  int64_t bytes = 0;
  const void* const from = kvfolio_cuda_attend_plan_image(plan, &bytes);
  const int64_t workspace_bytes = kvfolio_cuda_attend_plan_workspace_bytes(plan) + 1;
  void* const image = toy_upload(&toy, from, bytes);
  char* const zeros = need(calloc(1, (size_t)workspace_bytes));
  void* const workspace = toy_upload(&toy, zeros, workspace_bytes);
  free(zeros);
  MUST(kvfolio_cuda_attend(toy.kernels, device, NULL, there, batch->n, batch->query_start,
                           batch->kv_lens, NULL, NULL, &rows, &rows, plan, image, workspace, stream,
                           &g_error));
  toy_download(&toy, out, there->out, kPaddedFloats * sizeof *out);
  kvfolio_cuda_attend_plan_destroy(plan);
  toy_free(&toy, image, bytes);
  toy_free(&toy, workspace, workspace_bytes);
}

// A graph that plans on the device has, for each batch within the capacity, the bits of a plan of
// its own and the image of the host's padded plan; a larger batch is refused by number on the host,
// and reported by the word of the device.
static void one_graph_serves_every_batch_within_its_capacity(kvfolio_view* device) {
  static const int32_t tables[kSequences * kColumns3] = {4, 1, 2, 0, 3, 5};
  static const ToyBatch batches[4] = {{1, {0, 2, 0}, {10, 0}},  // one, as counts says
                                      {2, {0, 1, 3}, {3, 12}},
                                      {0, {0, 0, 0}, {0, 0}},
                                      {2, {0, 0, 1}, {7, 9}}};
  static const ToyBatch larger = {2, {0, 1, 2}, {3, 13}};
  static float q[kPaddedFloats];
  static float wanted[kPaddedFloats];
  static float got[kPaddedFloats];
  for (int i = 0; i < kPaddedFloats; ++i) q[i] = (float)(i % 11) / 4 - 1;
  const kvfolio_cuda_attention there = {
      .struct_size = sizeof there,
      .block_table_stride = kColumns3,
      .block_table = toy_upload(&toy, tables, sizeof tables),
      .query_start = toy_upload(&toy, larger.query_start, sizeof larger.query_start),
      .kv_lens = toy_upload(&toy, larger.kv_lens, sizeof larger.kv_lens),
      .q = toy_upload(&toy, q, sizeof q),
      .out = toy_upload(&toy, got, sizeof got)};
  void* const counts = toy_upload(&toy, &larger.n, sizeof larger.n);
  uint64_t word = KVFOLIO_CUDA_NO_ENTRY;
  void* const fault = toy_upload(&toy, &word, sizeof word);
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  const kvfolio_cuda_attend_capacity capacity = {.struct_size = sizeof capacity,
                                                 .max_sequences = kSequences,
                                                 .max_sequence_tokens = kColumns3 * kBlockSize,
                                                 .max_queries = kQueries};
  kvfolio_cuda_attend_plan* plan = NULL;
  kvfolio_cuda_graph* graph = NULL;
  void* image = NULL;
  void* workspace = NULL;
  int64_t image_bytes = 0;
  int64_t workspace_bytes = 0;
  for (int i = 0; i < 4; ++i) {
    const ToyBatch* const b = &batches[i];
    const kvfolio_rows rows = padded_rows(b);
    tell_device(&there, counts, b);
    attend_alone(device, &there, b, wanted);
    kvfolio_cuda_attend_plan* host = NULL;
    MUST(kvfolio_cuda_plan_attend_padded(toy.kernels, device, NULL, &there, b->n, b->query_start,
                                         b->kv_lens, NULL, NULL, &rows, &rows, &capacity, &host,
                                         &g_error));
    int64_t bytes = 0;
    const void* const host_image = kvfolio_cuda_attend_plan_image(host, &bytes);
    if (graph == NULL) {
      MUST(kvfolio_cuda_plan_attend_padded(toy.kernels, device, NULL, &there, b->n, b->query_start,
                                           b->kv_lens, NULL, NULL, &rows, &rows, &capacity, &plan,
                                           &g_error));
      CHECK(strstr(kvfolio_cuda_attend_plan_explain(plan), "cuda-sm90-general: cuda-") != NULL);
      image_bytes = bytes;
      workspace_bytes = kvfolio_cuda_attend_plan_workspace_bytes(plan) + 1;
      MUST(kvfolio_cuda_memory_allocate(toy.memory, image_bytes, &image, &g_error));
      MUST(kvfolio_cuda_memory_allocate(toy.memory, workspace_bytes, &workspace, &g_error));
      MUST(kvfolio_cuda_graph_begin_capture(toy.device, stream, &g_error));
      MUST(kvfolio_cuda_plan_on_device(toy.kernels, device, NULL, &there, b->n, b->query_start,
                                       b->kv_lens, NULL, NULL, &rows, &rows, plan, image, workspace,
                                       stream, counts, fault, &g_error));
      MUST(kvfolio_cuda_attend(toy.kernels, device, NULL, &there, b->n, b->query_start, b->kv_lens,
                               NULL, NULL, &rows, &rows, plan, image, workspace, stream, &g_error));
      MUST(kvfolio_cuda_graph_end_capture(toy.device, stream, &graph, &g_error));
    }
    kvfolio_cuda_attend_shape first = {.struct_size = sizeof first};
    kvfolio_cuda_attend_shape then = {.struct_size = sizeof then};
    MUST(kvfolio_cuda_attend_plan_get_shape(plan, &first, &g_error));
    MUST(kvfolio_cuda_attend_plan_get_shape(host, &then, &g_error));
    CHECK(memcmp(&first, &then, sizeof first) == 0);
    MUST(kvfolio_cuda_attend_plan_check(plan, b->n, b->query_start, b->kv_lens, NULL, NULL,
                                        &g_error));
    memset(got, 0, sizeof got);
    MUST(kvfolio_cuda_memory_copy_in(toy.memory, there.out, got, sizeof got, &g_error));
    MUST(kvfolio_cuda_graph_launch(graph, stream, &g_error));
    toy_download(&toy, got, there.out, sizeof got);
    CHECK(memcmp(got, wanted, sizeof got) == 0);
    CHECK(rows.num_tokens == 0 || got[0] != 0);
    char* const image_there = need(malloc((size_t)bytes));
    toy_download(&toy, image_there, image, bytes);
    CHECK(bytes == image_bytes && memcmp(image_there, host_image, (size_t)bytes) == 0);
    free(image_there);
    toy_download(&toy, &word, fault, sizeof word);
    MUST(kvfolio_cuda_plan_fault(plan, word, &g_error));
    kvfolio_cuda_attend_plan_destroy(host);
  }
  kvfolio_cuda_attend_capacity is = {.struct_size = sizeof is};
  MUST(kvfolio_cuda_attend_plan_get_capacity(plan, &is, &g_error));
  CHECK(is.max_sequences == 2 && is.max_sequence_tokens == 12 && is.max_queries == 2 &&
        is.max_tokens == 24);
  CHECK(kvfolio_cuda_attend_plan_check(plan, 2, larger.query_start, larger.kv_lens, NULL, NULL,
                                       &g_error) == KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "kv_lens[1] is 13") != NULL);
  tell_device(&there, counts, &larger);
  memset(wanted, 0, sizeof wanted);
  MUST(kvfolio_cuda_memory_copy_in(toy.memory, there.out, wanted, sizeof wanted, &g_error));
  MUST(kvfolio_cuda_graph_launch(graph, stream, &g_error));
  toy_download(&toy, got, there.out, sizeof got);
  CHECK(memcmp(got, wanted, sizeof got) == 0);  // an empty plan writes no row
  toy_download(&toy, &word, fault, sizeof word);
  CHECK(kvfolio_cuda_plan_fault(plan, word, &g_error) == KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "sequence 1 of the batch on the device has more than 12") != NULL);
  kvfolio_cuda_graph_destroy(graph);
  kvfolio_cuda_attend_plan_destroy(plan);
  toy_free(&toy, image, image_bytes);
  toy_free(&toy, workspace, workspace_bytes);
  toy_free(&toy, counts, sizeof larger.n);
  toy_free(&toy, fault, sizeof word);
  toy_free(&toy, (void*)there.block_table, sizeof tables);
  toy_free(&toy, (void*)there.query_start, sizeof larger.query_start);
  toy_free(&toy, (void*)there.kv_lens, sizeof larger.kv_lens);
  toy_free(&toy, (void*)there.q, sizeof q);
  toy_free(&toy, there.out, sizeof got);
}

static void open_two(kvfolio_manager* manager, kvfolio_sequence* out) {
  for (int i = 0; i < 2; ++i) {
    MUST(kvfolio_open(manager, NULL, NULL, 0, NULL, 0, NULL, &out[i], NULL, &g_error));
  }
}

// Steps whose tables go up whole, then entry by entry, and are there.
static void plans(void) {
  ToyPlan p = toy_plan(&toy);
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  CHECK(kvfolio_cuda_plan_device_bytes(p.plan) > 0 && kvfolio_cuda_plan_pinned_bytes(p.plan) > 0);
  kvfolio_sequence sequences[2];
  open_two(p.manager, sequences);
  kvfolio_cuda_upload_info info = {.struct_size = sizeof info};
  for (int i = 0; i < 6; ++i) {
    toy_plan_step(&p, sequences, 2, 1);
    int32_t needs = 5;
    MUST(kvfolio_cuda_plan_needs_block_tables(p.plan, &p.step, &p.group, 1, &needs, &g_error));
    CHECK(needs == 0);  // it has them
    if (i % 2 == 0) {
      MUST(kvfolio_cuda_plan_upload(p.plan, &p.step, &p.group, 1, stream, &g_error));
    } else {
      MUST(kvfolio_cuda_plan_send(p.plan, &p.step, &p.group, 1, stream, &g_error));
      if (i == 5) {  // in a graph
        kvfolio_cuda_graph* graph = NULL;
        MUST(kvfolio_cuda_graph_begin_capture(toy.device, stream, &g_error));
        MUST(kvfolio_cuda_plan_apply(p.plan, stream, &g_error));
        MUST(kvfolio_cuda_graph_end_capture(toy.device, stream, &graph, &g_error));
        MUST(kvfolio_cuda_graph_launch(graph, stream, &g_error));
        kvfolio_cuda_graph_destroy(graph);
        kvfolio_cuda_plan_applied(p.plan);
      } else {
        MUST(kvfolio_cuda_plan_apply(p.plan, stream, &g_error));
      }
    }
    MUST(kvfolio_cuda_plan_verify(p.plan, &p.step, &p.group, 1, stream, &g_error));
    MUST(kvfolio_cuda_plan_last_upload(p.plan, &info, &g_error));
    CHECK(info.bytes > 0 && info.whole_rows == (i == 4 ? 2 : 0));
    MUST(kvfolio_cuda_plan_wait(p.plan, &g_error));
    MUST(kvfolio_finish(p.manager, p.ticket, &g_error));
    if (i == 3) kvfolio_cuda_plan_resend(p.plan);
  }
  kvfolio_cuda_plan_arrays arrays = {.struct_size = sizeof arrays};
  kvfolio_cuda_plan_group group = {.struct_size = sizeof group};
  MUST(kvfolio_cuda_plan_get_arrays(p.plan, &arrays, &g_error));
  MUST(kvfolio_cuda_plan_get_group(p.plan, 0, &group, &g_error));
  CHECK(arrays.num_groups == 1 && arrays.positions == NULL && group.slot_mapping_64 == NULL);
  CHECK(group.table_stride == kColumns && group.table != NULL && group.batch_table != NULL);
  int32_t numbers[kPlanRows] = {0};
  toy_download(&toy, numbers, arrays.counts, 8);
  CHECK(numbers[0] == 2 && numbers[1] == 2);
  toy_download(&toy, numbers, arrays.kv_lens, sizeof numbers);
  CHECK(numbers[0] == 6 && numbers[1] == 6 && numbers[2] == 0 && numbers[3] == 0);
  kvfolio_cuda_plan_destroy(p.plan);
  kvfolio_manager_destroy(p.manager);
}

int main(void) {
  for (int i = 0; i < kTokens * kRowFloats; ++i) {
    g_k[i] = (float)(i % 23) / 8 - 1;
    g_v[i] = (float)(i % 19) / 8 - 1;
  }
  devices();
  MUST(kvfolio_cuda_device_open(0, &toy.device, &g_error));
  MUST(kvfolio_cuda_kernels_load(toy.device, NULL, &toy.kernels, &g_error));
  const kvfolio_cuda_plan_options sizes = {
      .struct_size = sizeof sizes, .max_sequences = 1, .max_tokens = 1, .num_rows = 1};
  const int32_t one = 1;
  kvfolio_cuda_plan* plan = NULL;
  MUST(kvfolio_cuda_plan_create(toy.kernels, &sizes, &one, &one, 1, &plan, &g_error));
  kvfolio_cuda_plan_destroy(plan);
  kvfolio_cuda_kernels_destroy(toy.kernels);
  kvfolio_cuda_device_destroy(toy.device);
  toy = toy_device();
  kvfolio_memory_resource resource = {.struct_size = sizeof resource};
  MUST(kvfolio_cuda_memory_resource(toy.memory, &resource, &g_error));
  CHECK(resource.kind == KVFOLIO_DEVICE);
  kvfolio_storage* const on_device = toy_storage(&resource);
  kvfolio_storage* const on_host = toy_storage(NULL);
  kvfolio_view* device = NULL;
  kvfolio_view* host = NULL;
  MUST(kvfolio_view_create(on_device, 0, -1, &device, &g_error));
  MUST(kvfolio_view_create(on_host, 0, -1, &host, &g_error));
  pieces();
  streams_and_events(device);
  append_and_gather(device, host);
  toy_must_be_equal(on_device, on_host);
  move_blocks(device, host);
  toy_must_be_equal(on_device, on_host);
  attention(device, host);
  one_graph_serves_every_batch_within_its_capacity(device);
  plans();
  kvfolio_view_destroy(device);
  kvfolio_view_destroy(host);
  kvfolio_storage_destroy(on_device);
  kvfolio_storage_destroy(on_host);
  toy_end(&toy);
  int missing = 0;
  for (int i = 0; i < kNumFunctions; ++i) {
    if (g_called[i]) continue;
    fprintf(stderr, "%s() is called nowhere in this test\n", kFunctions[i]);
    missing = 1;
  }
  return missing;
}
