// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the C tests share. A test ends at the first thing that is not so, and says where.

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvfolio/kvfolio.h"

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: this is not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

// For calls whose last argument is &g_error.
#define MUST(call)                                                                    \
  do {                                                                                \
    if ((call) != KVFOLIO_OK) {                                                       \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, g_error.message); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

// One for each source; not all use it.
static __attribute__((unused)) kvfolio_error g_error = KVFOLIO_ERROR_INIT;

static inline void* need(void* memory) {
  CHECK(memory != NULL);
  return memory;
}

static inline kvfolio_group_spec small_group(void) {
  kvfolio_group_spec group = {.struct_size = sizeof group,
                              .head_dim_k = 8,
                              .head_dim_v = 8,
                              .block_size = 4,
                              .num_blocks = 16};
  return group;
}

// Memory from malloc() that counts what is out.
typedef struct {
  int64_t bytes_out;
  int copies;
} TestMemory;
static inline void* test_allocate(void* context, int64_t bytes) {
  char* const memory = malloc((size_t)bytes + 128);
  if (memory == NULL) return NULL;
  char* const aligned = memory + 128 - (uintptr_t)memory % 64;
  aligned[-1] = (char)(aligned - memory - 1);
  ((TestMemory*)context)->bytes_out += bytes;
  return aligned;
}
static inline void test_deallocate(void* context, void* memory, int64_t bytes) {
  ((TestMemory*)context)->bytes_out -= bytes;
  const char* const aligned = memory;
  free((char*)memory - aligned[-1] - 1);
}
static inline int32_t test_copy(void* context, void* dst, const void* src, int64_t bytes) {
  ((TestMemory*)context)->copies += 1;
  for (int64_t i = 0; i < bytes; ++i) ((char*)dst)[i] = ((const char*)src)[i];
  return 0;
}
static inline kvfolio_memory_resource test_resource(TestMemory* memory) {
  kvfolio_memory_resource resource = {.struct_size = sizeof resource,
                                      .context = memory,
                                      .allocate = test_allocate,
                                      .deallocate = test_deallocate,
                                      .copy = test_copy};
  return resource;
}
