// SPDX-License-Identifier: Apache-2.0
//
// The structs of kvfolio_cuda.h: cases for tests/capi/struct_checks.c.

#include <stdarg.h>

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

static void say(char* text, int32_t code, const char* format, ...) {
  const int n = snprintf(text, kTextBytes, "%d %s ", code, code ? g_error.message : "");
  if (code != 0) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + n, (size_t)(kTextBytes - n), format, arguments);
  va_end(arguments);
}

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
}

void destroy_subjects(void) {
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
    {"kvfolio_cuda_device_info", "device_get_info", &kInfo, sizeof kInfo, kOutput, run_info},
};
const int kNumStructCases = sizeof kStructCases / sizeof kStructCases[0];

static int has_no_case(const char* name) {
  (void)name;
  return 0;
}

int main(void) { return check_struct_cases(has_no_case); }
