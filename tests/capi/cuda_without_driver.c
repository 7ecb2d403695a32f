// SPDX-License-Identifier: Apache-2.0
//
// A program that links libkvfolio_cuda starts where there is no driver, and is told so.

#include <string.h>

#include "capi_test.h"
#include "kvfolio/kvfolio_cuda.h"

int main(void) {
  if (kvfolio_cuda_available(&g_error) == KVFOLIO_OK) {
    puts("there is a driver and a device here");
    return 77;
  }
  CHECK(g_error.code == KVFOLIO_ERR_UNAVAILABLE);
  CHECK(strlen(g_error.message) > 20);
  char said[sizeof g_error.message];
  memcpy(said, g_error.message, sizeof said);
  int32_t count = -5;
  CHECK(kvfolio_cuda_num_devices(&count, &g_error) == KVFOLIO_ERR_UNAVAILABLE);
  CHECK(strcmp(g_error.message, said) == 0 && count == -5);
  kvfolio_cuda_device* device = NULL;
  CHECK(kvfolio_cuda_device_open(0, &device, &g_error) == KVFOLIO_ERR_UNAVAILABLE);
  CHECK(strcmp(g_error.message, said) == 0 && device == NULL);
  CHECK(kvfolio_cuda_device_open(0, &device, NULL) == KVFOLIO_ERR_UNAVAILABLE);
  puts(said);
  return 0;
}
