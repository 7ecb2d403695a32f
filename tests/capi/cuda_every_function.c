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
