// SPDX-License-Identifier: Apache-2.0
//
// The structs of kvfolio.h (struct_checks.c), and kvfolio_error, which every call fills, at each
// size.

#include <string.h>

#include "capi_test.h"
#include "struct_cases.h"

enum { kPad = 64 };

static int all_are(const unsigned char* bytes, size_t n, unsigned char value) {
  for (size_t i = 0; i < n; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}

// A call that fails for a shortage, whose message is a whole sentence.
static int32_t fail(kvfolio_error* error) {
  const kvfolio_group_spec group = small_group();
  kvfolio_manager* manager = NULL;
  MUST(kvfolio_manager_create(&group, 1, NULL, &manager, &g_error));
  kvfolio_found found = {.struct_size = sizeof found};
  static int32_t tokens[100];
  const int32_t code =
      kvfolio_admit_prompt(manager, NULL, tokens, 100, NULL, 0, NULL, 0, 0, &found, NULL, 0, error);
  kvfolio_manager_destroy(manager);
  return code;
}

// shortage_size: what the caller says that its shortage has, if there is room for saying it.
static void check_error_of_size(uint32_t size, uint32_t shortage_size, const kvfolio_error* full) {
  enum { kCanvas = sizeof(kvfolio_error) + 8192 };
  const size_t shortage_at = offsetof(kvfolio_error, shortage);
  unsigned char* const canvas = need(malloc(kCanvas));
  memset(canvas, 0xa5, kCanvas);
  memcpy(canvas, &size, 4);
  const int is_a_size = size >= 4 && size <= 4096;
  if (is_a_size && size >= shortage_at + 4) memcpy(canvas + shortage_at, &shortage_size, 4);
  CHECK(fail((kvfolio_error*)(void*)canvas) == KVFOLIO_ERR_NO_BLOCKS);
  CHECK(memcmp(canvas, &size, 4) == 0);
  const size_t end = is_a_size ? size : 4;
  CHECK(all_are(canvas + end, kCanvas - end, 0xa5));
  if (is_a_size && size >= offsetof(kvfolio_error, message)) {
    CHECK(memcmp(canvas + 4, &full->code, 4) == 0);
  }
  if (is_a_size && size >= shortage_at) {
    CHECK(memcmp(canvas + 8, full->message, sizeof full->message) == 0);
  }
  if (is_a_size && size > shortage_at + 4) {
    const size_t most = shortage_at + offsetof(kvfolio_shortage, never) + 4;
    const size_t known = (size < most ? size : most) - shortage_at - 4;
    CHECK(memcmp(canvas + shortage_at + 4, (const char*)full + shortage_at + 4, known) == 0);
  }
  free(canvas);
}

static void check_error(void) {
  kvfolio_error full = KVFOLIO_ERROR_INIT;
  CHECK(fail(&full) == KVFOLIO_ERR_NO_BLOCKS && full.shortage.needed == 25);
  CHECK(strlen(full.message) > 20 && strlen(full.message) < sizeof full.message);
  CHECK(fail(NULL) == KVFOLIO_ERR_NO_BLOCKS);
  const uint32_t wrong[] = {0, 1, 2, 3, 4097, 5000, 0x7fffffff, 0xa5a5a5a5, 0xffffffff};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
    check_error_of_size(wrong[i], sizeof(kvfolio_shortage), &full);
  }
  for (uint32_t size = 4; size <= sizeof full + kPad; size += 4) {
    check_error_of_size(size, 0, &full);
    check_error_of_size(size, size - (uint32_t)offsetof(kvfolio_error, shortage), &full);
    check_error_of_size(size, 0xffffffff, &full);
  }
  check_error_of_size(4096, 4000, &full);
}

static int is_error(const char* name) {
  return strcmp(name, "kvfolio_error") == 0 || strcmp(name, "kvfolio_shortage") == 0;
}

int main(void) {
  check_error();
  return check_struct_cases(is_error);
}
