// SPDX-License-Identifier: Apache-2.0
//
// The structs of kvfolio_cuda.h: cases for tests/capi/struct_checks.c.

#include "cuda_toy.h"
#include "struct_cases.h"

static ToyDevice toy;
static kvfolio_storage* storage;
static kvfolio_view* view;
static char* lent;
static const int32_t kQueryStart[2] = {0, 1};
static const int32_t kKvLens[1] = {3};
static const int32_t kZero[1] = {0};
// Cases with addresses that only run time knows.
static kvfolio_cuda_memory_options memory_options;
static kvfolio_cuda_attention attention;

static void make_plan(void);
static void make_batch(void);
static kvfolio_cuda_batch_attention* batch;
static void* view_k0(void) { return kvfolio_view_k(view, 0, 0, 0, 0); }
static void end_plan(void);

void make_subjects(void) {
  static float zeros[1024];
  toy = toy_device();
  const kvfolio_memory_resource resource = toy_resource(&toy);
  storage = toy_storage(&resource);
  MUST(kvfolio_view_create(storage, 0, -1, &view, &g_error));
  lent = toy_upload(&toy, zeros, sizeof zeros);
  memory_options = (kvfolio_cuda_memory_options){.struct_size = sizeof memory_options,
                                                 .source = KVFOLIO_CUDA_LENT,
                                                 .staging_bytes = 256,
                                                 .lent = lent,
                                                 .lent_bytes = 1024};
  attention = (kvfolio_cuda_attention){.struct_size = sizeof attention,
                                       .block_table_stride = 1,
                                       .block_table = (const int32_t*)lent,
                                       .query_start = (const int32_t*)(lent + 64),
                                       .kv_lens = (const int32_t*)(lent + 128),
                                       .trim_sinks = (const int32_t*)(lent + 192),
                                       .trim_first_kept = (const int32_t*)(lent + 256),
                                       .q = lent + 512,
                                       .out = lent + 1024,
                                       .lse = (float*)(lent + 2048)};
  make_plan();
  make_batch();
}

void destroy_subjects(void) {
  kvfolio_cuda_batch_attention_destroy(batch);
  end_plan();
  toy_free(&toy, lent, 1024 * sizeof(float));
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
  toy_end(&toy);
}

static const kvfolio_cuda_kernel_options kKernels = {.struct_size = sizeof kKernels,
                                                     .no_pointer_checks = 1};
// With checks an address of the host is refused.
static void run_kernels(void* given, char* text) {
  kvfolio_cuda_kernels* made = NULL;
  const int32_t code = kvfolio_cuda_kernels_load(toy.device, given, &made, &g_error);
  say(text, code, "");
  int32_t checked = 0;
  if (code == 0) {
    static float row[kRowFloats];
    static const int32_t slot[1] = {0};
    const kvfolio_rows rows = toy_rows(1);
    kvfolio_error error = KVFOLIO_ERROR_INIT;
    checked =
        kvfolio_cuda_append(made, view, 0, row, &rows, row, &rows, slot, 1, NULL, NULL, &error);
    MUST(kvfolio_cuda_device_synchronize(toy.device, &g_error));
  }
  say(text, code, "%d", checked);
  kvfolio_cuda_kernels_destroy(made);
}

static void run_memory(void* given, char* text) {
  kvfolio_cuda_memory* made = NULL;
  const int32_t code = kvfolio_cuda_memory_create(toy.device, NULL, given, &made, &g_error);
  void* piece = NULL;
  if (code == 0) MUST(kvfolio_cuda_memory_allocate(made, 64, &piece, &g_error));
  say(text, code, "%d", (char*)piece == lent);
  kvfolio_cuda_memory_deallocate(made, piece, 64);
  kvfolio_cuda_memory_destroy(made);
}

static void run_attention(void* given, char* text) {
  kvfolio_cuda_attend_plan* plan = NULL;
  const kvfolio_rows rows = toy_rows(1);
  const int32_t code =
      kvfolio_cuda_plan_attend(toy.kernels, view, NULL, given, 1, kQueryStart, kKvLens, kZero,
                               kZero, &rows, &rows, &plan, &g_error);
  say(text, code, "%d", (int)kvfolio_cuda_attend_plan_workspace_bytes(plan));
  kvfolio_cuda_attend_plan_destroy(plan);
}

static ToyPlan planned;
static kvfolio_step_plan step;
static kvfolio_group_plan group;
static const kvfolio_cuda_plan_options kPlan = {.struct_size = sizeof kPlan,
                                                .max_sequences = 3,
                                                .max_tokens = 64,
                                                .num_rows = 5,
                                                .steps_in_flight = 3,
                                                .pad_with_zero = 1,
                                                .positions = 1,
                                                .int64_slots = 1,
                                                .no_batch_tables = 1,
                                                .flashinfer = 1,
                                                .max_changed_entries = 17};
static void run_plan(void* given, char* text) {
  static const int32_t four[1] = {4};
  kvfolio_cuda_plan* made = NULL;
  const int32_t code = kvfolio_cuda_plan_create(toy.kernels, given, four, four, 1, &made, &g_error);
  say(text, code, "%d %d", (int)kvfolio_cuda_plan_device_bytes(made),
      (int)kvfolio_cuda_plan_pinned_bytes(made));
  kvfolio_cuda_plan_destroy(made);
}
static void run_step(void* given, char* text) {
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_cuda_plan_wait(planned.plan, &g_error));
  say(text, kvfolio_cuda_plan_upload(planned.plan, given, &group, 1, stream, &g_error), "");
}
static void run_group(void* given, char* text) {
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_cuda_plan_wait(planned.plan, &g_error));
  say(text, kvfolio_cuda_plan_upload(planned.plan, &step, given, 1, stream, &g_error), "");
}
static void run_arrays(void* given, char* text) {
  say(text, kvfolio_cuda_plan_get_arrays(planned.plan, given, &g_error), "");
}
static void run_plan_group(void* given, char* text) {
  say(text, kvfolio_cuda_plan_get_group(planned.plan, 0, given, &g_error), "");
}
static void run_last(void* given, char* text) {
  say(text, kvfolio_cuda_plan_last_upload(planned.plan, given, &g_error), "");
}
static const kvfolio_cuda_plan_arrays kArrays = {.struct_size = sizeof kArrays};
static const kvfolio_cuda_plan_group kPlanGroup = {.struct_size = sizeof kPlanGroup};
static const kvfolio_cuda_upload_info kLast = {.struct_size = sizeof kLast};

static void make_plan(void) {
  planned = toy_plan(&toy);
  kvfolio_sequence sequence = 0;
  MUST(kvfolio_open(planned.manager, NULL, NULL, 0, NULL, 0, NULL, &sequence, NULL, &g_error));
  toy_plan_step(&planned, &sequence, 1, 1);
  step = planned.step;
  group = planned.group;
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_cuda_plan_upload(planned.plan, &step, &group, 1, stream, &g_error));
}

static void end_plan(void) { toy_plan_end(&planned); }

static const kvfolio_cuda_batch_attention_options kBatch = {.struct_size = sizeof kBatch,
                                                            .max_sequences = 1,
                                                            .max_pages_of_sequence = 3,
                                                            .max_image_bytes = 512,
                                                            .workspace_bytes = 16 << 10};
static const kvfolio_cuda_batch_attention_options kPaddedBatch = {
    .struct_size = sizeof kPaddedBatch,
    .max_sequences = 2,
    .max_pages_of_sequence = 3,
    .max_image_bytes = 512,
    .workspace_bytes = 16 << 10,
    .padded = 1,
    .max_queries = 3,
    .max_tokens = 2};
static int is_whole(const void* given, const void* full, size_t size) {
  uint32_t said = 0;
  memcpy(&said, given, sizeof said);
  return said == size && memcmp(given, full, size) == 0;
}
// The shape of a step says whether plans are padded, and to how many queries; whether the step is
// refused, to how many tokens.
static void run_batch(void* given, char* text) {
  kvfolio_cuda_batch_attention* made = NULL;
  const int32_t code = kvfolio_cuda_batch_attention_create(toy.kernels, given, &made, &g_error);
  int32_t planned = -1;
  kvfolio_cuda_attend_shape shape = {.struct_size = sizeof shape};
  for (int32_t tokens = 2; code == 0 && tokens <= 3; ++tokens) {
    static const int32_t indptr[2] = {0, 1};
    const kvfolio_cuda_batch_attention_params params = {.struct_size = sizeof params,
                                                        .num_qo_heads = kHeads,
                                                        .q_data_type = KVFOLIO_F32,
                                                        .o_data_type = KVFOLIO_F32};
    void* const stream = kvfolio_cuda_stream_handle(toy.stream);
    kvfolio_error error = KVFOLIO_ERROR_INIT;
    planned = kvfolio_cuda_batch_attention_plan(made, &params, 1, indptr, indptr, kZero, 1, &tokens,
                                                view, stream, &error);
    MUST(kvfolio_cuda_batch_attention_get_shape(made, &shape, &g_error));
  }
  say(text, code, "%d %d %d %d", (int)kvfolio_cuda_batch_attention_device_bytes(made),
      shape.num_sequences, shape.num_rows, planned);
  if (is_whole(given, &kPaddedBatch, sizeof kPaddedBatch)) {
    CHECK(shape.num_sequences == 2 && shape.num_rows == 6 && planned != 0);
  }
  kvfolio_cuda_batch_attention_destroy(made);
}

// ---- a capacity ----

static const kvfolio_cuda_attend_capacity kCapacity = {.struct_size = sizeof kCapacity,
                                                       .max_sequences = 2,
                                                       .max_sequence_tokens = 4,
                                                       .max_queries = 3,
                                                       .max_tokens = 7};
static int32_t plan_padded(const kvfolio_cuda_attend_capacity* capacity,
                           kvfolio_cuda_attend_plan** out) {
  const kvfolio_rows rows = toy_rows(1);
  return kvfolio_cuda_plan_attend_padded(toy.kernels, view, NULL, &attention, 1, kQueryStart,
                                         kKvLens, kZero, kZero, &rows, &rows, capacity, out,
                                         &g_error);
}
static void run_capacity(void* given, char* text) {
  kvfolio_cuda_attend_plan* plan = NULL;
  const int32_t code = plan_padded(given, &plan);
  kvfolio_cuda_attend_capacity is = {.struct_size = sizeof is};
  if (code == 0) MUST(kvfolio_cuda_attend_plan_get_capacity(plan, &is, &g_error));
  say(text, code, "%d %d %d %d", is.max_sequences, is.max_sequence_tokens, is.max_queries,
      (int)is.max_tokens);
  if (is_whole(given, &kCapacity, sizeof kCapacity)) {
    CHECK(strstr(text, "2 4 3 7") != NULL);
  }
  kvfolio_cuda_attend_plan_destroy(plan);
}
static void run_get_capacity(void* given, char* text) {
  kvfolio_cuda_attend_plan* plan = NULL;
  MUST(plan_padded(&kCapacity, &plan));
  say(text, kvfolio_cuda_attend_plan_get_capacity(plan, given, &g_error), "");
  kvfolio_cuda_attend_plan_destroy(plan);
}

static const kvfolio_cuda_batch_attention_params kBatchParams = {.struct_size = sizeof kBatchParams,
                                                                 .num_qo_heads = kHeads,
                                                                 .causal = 1,
                                                                 .window = 1,
                                                                 .sm_scale = 0.25,
                                                                 .logits_soft_cap = 2,
                                                                 .q_data_type = KVFOLIO_F32,
                                                                 .o_data_type = KVFOLIO_F32};
// What the rows are says what of the struct was read: one sequence of three tokens and two queries.
static void run_params(void* given, char* text) {
  static const int32_t qo_indptr[2] = {0, 2};
  static const int32_t kv_indptr[2] = {0, 1};
  static const int32_t three[1] = {3};
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  int32_t code = kvfolio_cuda_batch_attention_plan(batch, given, 1, qo_indptr, kv_indptr, kZero, 1,
                                                   three, view, stream, &g_error);
  float sum = 0;
  if (code == 0) {
    const kvfolio_rows rows = toy_rows(2);
    float got[2 * kRowFloats] = {0};
    code = kvfolio_cuda_batch_attention_run(batch, lent, &rows, view, 0, lent + 1024, &rows, NULL,
                                            stream, &g_error);
    toy_download(&toy, got, lent + 1024, sizeof got);
    for (int i = 0; i < 2 * kRowFloats; ++i) sum += got[i] * (float)(i + 1);
  }
  say(text, code, "%.4f", (double)sum);
}
static kvfolio_cuda_paged_kv paged;
static void run_paged(void* given, char* text) {
  kvfolio_view* made = NULL;
  const int32_t code = kvfolio_cuda_paged_kv_view(given, &made, &g_error);
  if (code != 0) {
    say(text, code, "");
    return;
  }
  say(text, code, "%d %d", (int)((char*)kvfolio_view_k(made, 0, 1, 1, 1) - (char*)view_k0()),
      (int)((char*)kvfolio_view_v(made, 0, 0, 0, 0) - (char*)view_k0()));
  kvfolio_view_destroy(made);
}
static const kvfolio_cuda_attend_shape kShape = {.struct_size = sizeof kShape};
static void run_shape(void* given, char* text) {
  say(text, kvfolio_cuda_batch_attention_get_shape(batch, given, &g_error), "");
}

static void make_batch(void) {
  void* const stream = kvfolio_cuda_stream_handle(toy.stream);
  MUST(kvfolio_cuda_fill(toy.kernels, view, 0x3c, stream, &g_error));
  MUST(kvfolio_cuda_batch_attention_create(toy.kernels, &kBatch, &batch, &g_error));
  paged = (kvfolio_cuda_paged_kv){.struct_size = sizeof paged,
                                  .layout = KVFOLIO_NHD,
                                  .k = view_k0(),
                                  .v = kvfolio_view_v(view, 0, 0, 0, 0),
                                  .num_pages = kBlocks,
                                  .page_size = kBlockSize,
                                  .num_kv_heads = kHeads,
                                  .head_dim = kDim,
                                  .dtype = KVFOLIO_F32};
}

static const kvfolio_cuda_device_info kInfo = {.struct_size = sizeof kInfo};
static void run_info(void* given, char* text) {
  say(text, kvfolio_cuda_device_get_info(toy.device, given, &g_error), "");
}

const StructCase kStructCases[] = {
    {"kvfolio_cuda_kernel_options", "kernels_load", &kKernels, sizeof kKernels, kInput,
     run_kernels},
    {"kvfolio_cuda_memory_options", "memory_create", &memory_options, sizeof memory_options,
     kPointersInput, run_memory},
    {"kvfolio_cuda_attention", "plan_attend", &attention, sizeof attention, kPointersInput,
     run_attention},
    {"kvfolio_cuda_plan_options", "plan_create", &kPlan, sizeof kPlan, kInput, run_plan},
    {"kvfolio_step_plan", "plan_upload", &step, sizeof step, kPointersInput, run_step},
    {"kvfolio_group_plan", "plan_upload", &group, sizeof group, kPointersInput, run_group},
    {"kvfolio_cuda_plan_arrays", "plan_get_arrays", &kArrays, sizeof kArrays, kOutput, run_arrays},
    {"kvfolio_cuda_plan_group", "plan_get_group", &kPlanGroup, sizeof kPlanGroup, kOutput,
     run_plan_group},
    {"kvfolio_cuda_upload_info", "plan_last_upload", &kLast, sizeof kLast, kOutput, run_last},
    {"kvfolio_cuda_batch_attention_options", "batch_attention_create", &kPaddedBatch,
     sizeof kPaddedBatch, kInput, run_batch},
    {"kvfolio_cuda_attend_capacity", "plan_attend_padded", &kCapacity, sizeof kCapacity, kInput,
     run_capacity},
    {"kvfolio_cuda_attend_capacity", "attend_plan_get_capacity", &kCapacity, sizeof kCapacity,
     kOutput, run_get_capacity},
    {"kvfolio_cuda_batch_attention_params", "batch_attention_plan", &kBatchParams,
     sizeof kBatchParams, kInput, run_params},
    {"kvfolio_cuda_paged_kv", "paged_kv_view", &paged, sizeof paged, kPointersInput, run_paged},
    {"kvfolio_cuda_attend_shape", "batch_attention_get_shape", &kShape, sizeof kShape, kOutput,
     run_shape},
    {"kvfolio_cuda_device_info", "device_get_info", &kInfo, sizeof kInfo, kOutput, run_info},
};
const int kNumStructCases = sizeof kStructCases / sizeof kStructCases[0];

static int has_no_case(const char* name) {
  (void)name;
  return 0;
}

int main(void) { return check_struct_cases(has_no_case); }
