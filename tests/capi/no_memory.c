// SPDX-License-Identifier: Apache-2.0
//
// No memory for what a handle owns is a code. The operators new of this program take the place of
// the library's: the one that may not throw fails when it is told to.

#include <string.h>

#include "capi_test.h"

static int g_left = -1;   // calls until one fails; -1: none does
static int g_is_on = 0;   // a call under test runs
static int g_failed = 0;  // how many failed

// operator new(size_t, const std::nothrow_t&)
void* _ZnwmRKSt9nothrow_t(size_t bytes, const void* nothrow);
void* _ZnwmRKSt9nothrow_t(size_t bytes, const void* nothrow) {
  (void)nothrow;
  if (g_is_on && g_left == 0) {
    ++g_failed;
    return NULL;
  }
  if (g_is_on && g_left > 0) --g_left;
  return malloc(bytes == 0 ? 1 : bytes);
}

// operator new(size_t): for texts and short lists, which the library takes as it needs them.
void* _Znwm(size_t bytes);
void* _Znwm(size_t bytes) { return need(malloc(bytes == 0 ? 1 : bytes)); }

void _ZdlPv(void* memory);
void _ZdlPv(void* memory) { free(memory); }
void _ZdlPvm(void* memory, size_t bytes);
void _ZdlPvm(void* memory, size_t bytes) {
  (void)bytes;
  free(memory);
}

static int32_t create(int fail_at, TestMemory* memory, kvfolio_token_store** out) {
  const kvfolio_memory_resource resource = test_resource(memory);
  const kvfolio_token_store_options options = {
      .struct_size = sizeof options, .head_dim_k = 4, .max_tokens = 32};
  g_left = fail_at;
  g_failed = 0;
  g_is_on = 1;
  const int32_t code = kvfolio_token_store_create(&options, &resource, out, &g_error);
  g_is_on = 0;
  return code;
}

static int32_t create_blocks(int fail_at, TestMemory* memory, kvfolio_block_store** out) {
  const kvfolio_memory_resource resource = test_resource(memory);
  const kvfolio_group_spec group = small_group();
  g_left = fail_at;
  g_failed = 0;
  g_is_on = 1;
  const int32_t code = kvfolio_block_store_create(&group, &resource, out, &g_error);
  g_is_on = 0;
  return code;
}

static int places_of_a_block_store(void) {
  TestMemory memory = {0, 0};
  kvfolio_block_store* store = NULL;
  int fail_at = 0;
  for (; create_blocks(fail_at, &memory, &store) != KVFOLIO_OK; ++fail_at) {
    CHECK(g_error.code == KVFOLIO_ERR_OUT_OF_MEMORY && g_error.message[0] != 0);
    CHECK(store == NULL && memory.bytes_out == 0);
  }
  CHECK(fail_at >= 2 && g_failed == 0 && store != NULL);  // the resource and the handle
  CHECK(memory.bytes_out > 0);
  kvfolio_block_store_destroy(store);
  CHECK(memory.bytes_out == 0);
  return fail_at;
}

int main(void) {
  TestMemory memory = {0, 0};
  kvfolio_token_store* store = NULL;
  int fail_at = 0;
  for (; create(fail_at, &memory, &store) != KVFOLIO_OK; ++fail_at) {
    CHECK(g_error.code == KVFOLIO_ERR_OUT_OF_MEMORY && g_error.message[0] != 0);
    CHECK(store == NULL && memory.bytes_out == 0);
  }
  // The resource, its count and the handle at least.
  CHECK(fail_at >= 3 && g_failed == 0 && store != NULL);
  kvfolio_token_store* copy = NULL;
  MUST(kvfolio_token_store_copy(store, &copy, &g_error));
  kvfolio_token_store_destroy(store);
  CHECK(memory.bytes_out > 0);
  kvfolio_token_store_destroy(copy);
  CHECK(memory.bytes_out == 0);
  printf("%d places without memory\n", fail_at + places_of_a_block_store());
  return 0;
}
