// SPDX-License-Identifier: Apache-2.0
//
// A program that links libkvfolio_cuda starts where there is no driver, and is told so; over the
// driver that is none it has a cache on its device.

#include <string.h>

#include "capi_test.h"
#include "kvfolio/kvfolio_cuda.h"

// What docs/cuda.md shows.
static int32_t have_a_cache(const kvfolio_group_spec* group, kvfolio_error* error) {
  kvfolio_cuda_device* device = NULL;
  kvfolio_cuda_kernels* kernels = NULL;
  kvfolio_cuda_memory* memory = NULL;
  kvfolio_storage* storage = NULL;
  kvfolio_view* view = NULL;
  kvfolio_memory_resource resource = {.struct_size = sizeof resource};
  int32_t code = kvfolio_cuda_device_open(0, &device, error);
  if (code == 0) code = kvfolio_cuda_kernels_load(device, NULL, &kernels, error);
  if (code == 0) code = kvfolio_cuda_memory_create(device, kernels, NULL, &memory, error);
  if (code == 0) code = kvfolio_cuda_memory_resource(memory, &resource, error);
  if (code == 0) code = kvfolio_storage_create(group, 1, &resource, &storage, error);
  if (code == 0) code = kvfolio_view_create(storage, 0, -1, &view, error);
  if (code == 0) code = kvfolio_cuda_fill(kernels, view, 0, NULL, error);  // the legacy stream
  if (code == 0) code = kvfolio_cuda_device_synchronize(device, error);
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);  // before its memory
  kvfolio_cuda_memory_destroy(memory);
  kvfolio_cuda_kernels_destroy(kernels);
  kvfolio_cuda_device_destroy(device);
  return code;
}

int main(int argc, char** argv) {
  (void)argv;
  const int is_fake = argc > 1;
  const kvfolio_group_spec group = {
      .struct_size = sizeof group, .head_dim_k = 64, .head_dim_v = 64, .num_blocks = 4};
  const int32_t code = kvfolio_cuda_available(&g_error);
  if (code == KVFOLIO_OK && !is_fake) {
    puts("there is a driver and a device here");
    return 77;
  }
  if (is_fake) {
    MUST(have_a_cache(&group, &g_error));
    return 0;
  }
  CHECK(g_error.code == KVFOLIO_ERR_UNAVAILABLE);
  CHECK(strlen(g_error.message) > 20);
  char said[sizeof g_error.message];
  memcpy(said, g_error.message, sizeof said);
  int32_t count = -5;
  CHECK(kvfolio_cuda_num_devices(&count, &g_error) == KVFOLIO_ERR_UNAVAILABLE);
  CHECK(strcmp(g_error.message, said) == 0 && count == -5);
  CHECK(have_a_cache(&group, &g_error) == KVFOLIO_ERR_UNAVAILABLE);
  CHECK(strcmp(g_error.message, said) == 0);
  CHECK(have_a_cache(&group, NULL) == KVFOLIO_ERR_UNAVAILABLE);
  puts(said);
  return 0;
}
