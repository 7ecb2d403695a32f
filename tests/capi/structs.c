// SPDX-License-Identifier: Apache-2.0
//
// Programs and libraries of different versions: each struct cut at every field, and with 64 bytes
// of garbage behind its end. A struct that is cut says what one with zeros in place of the rest
// says. What lies behind the size is neither read nor written. Compiled a second time against a
// header with two more fields in each struct.

#include "structs.h"

#include <string.h>

#include "capi_test.h"
#include "struct_cases.h"

enum { kPad = 64 };

static void set_size(void* at, size_t size) {
  const uint32_t number = (uint32_t)size;
  memcpy(at, &number, sizeof number);
}

// A block of exactly `size` bytes, so that the address sanitizer sees a byte too much.
static void* cut_of(const void* full, size_t size) {
  void* const cut = need(malloc(size));
  memcpy(cut, full, size);
  set_size(cut, size);
  return cut;
}

static void same_text(const StructCase* c, size_t size, const char* is, const char* should) {
  if (strcmp(is, should) == 0) return;
  fprintf(stderr, "%s with a %s of %zu bytes: %s\n  not: %s\n", c->call, c->name, size, is, should);
  exit(1);
}

// Sizes from 4 on, each 4 bytes: at every field and in the middle of long ones.
static void check_cut_input(const StructCase* c) {
  for (size_t size = 4; size <= c->size; size += 4) {
    if (c->kind == kPointersInput && size > 8 && size % 8 != 0) continue;
    char* const zeros = cut_of(c->full, c->size);
    memset(zeros + size, 0, c->size - size);
    set_size(zeros, c->size);
    char should[kTextBytes] = "";
    c->run(zeros, should);
    free(zeros);

    char is[kTextBytes] = "";
    void* const cut = cut_of(c->full, size);
    c->run(cut, is);
    free(cut);
    same_text(c, size, is, should);
  }
}

static void check_padded_input(const StructCase* c) {
  char should[kTextBytes] = "";
  void* const full = cut_of(c->full, c->size);
  c->run(full, should);
  free(full);
  CHECK(strncmp(should, "0 ", 2) == 0);  // else the cuts would say little

  char* const padded = need(malloc(c->size + kPad));
  memcpy(padded, c->full, c->size);
  memset(padded + c->size, 0xff, kPad);
  set_size(padded, c->size + kPad);
  char is[kTextBytes] = "";
  c->run(padded, is);
  free(padded);
  same_text(c, c->size + kPad, is, should);
}

static int all_are(const unsigned char* bytes, size_t n, unsigned char value) {
  for (size_t i = 0; i < n; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}

static void check_output(const StructCase* c) {
  char should[kTextBytes] = "";
  char* const full = need(calloc(1, c->size));
  set_size(full, c->size);
  c->run(full, should);
  CHECK(strncmp(should, "0 ", 2) == 0);
  for (size_t size = 4; size <= c->size + kPad; size += 4) {
    unsigned char* const canvas = need(malloc(c->size + 2 * kPad));
    memset(canvas, 0xa5, c->size + 2 * kPad);
    set_size(canvas, size);
    char is[kTextBytes] = "";
    c->run(canvas, is);
    same_text(c, size, is, should);
    const size_t known = size < c->size ? size : c->size;
    CHECK(memcmp(canvas + 4, full + 4, known - 4) == 0);
    CHECK(all_are(canvas + known, size - known, 0));  // what this library does not have
    CHECK(all_are(canvas + size, c->size + 2 * kPad - size, 0xa5));
    free(canvas);
  }
  free(full);
}

// Sizes that no struct has are refused, and nothing is written.
static void check_wrong_sizes(const StructCase* c) {
  const uint32_t sizes[] = {0, 1, 3, 4097, 0x7fffffff, 0xffffffff};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    unsigned char* const given = need(malloc(c->size));
    unsigned char* const before = need(malloc(c->size));
    memcpy(given, c->full, c->size);
    memcpy(given, &sizes[i], 4);
    memcpy(before, given, c->size);
    char text[kTextBytes] = "";
    c->run(given, text);
    if (strncmp(text, "1 ", 2) != 0 || strstr(text, "struct_size") == NULL) {
      fprintf(stderr, "%s with a %s of size %u: %s\n", c->call, c->name, sizes[i], text);
      exit(1);
    }
    CHECK(memcmp(before, given, c->size) == 0);
    free(before);
    free(given);
  }
}

// ---- kvfolio_error, which every call fills ----

// A call that fails for a shortage, whose message is a whole sentence.
static int32_t fail(kvfolio_error* error) {
  const kvfolio_group_spec group = small_group();
  kvfolio_manager* manager = NULL;
  MUST(kvfolio_manager_create(&group, 1, NULL, &manager, &g_error));
  int32_t cached = 0;
  static int32_t tokens[100];
  const int32_t code =
      kvfolio_admit_prompt(manager, NULL, tokens, 100, NULL, 0, NULL, 0, &cached, NULL, 0, error);
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
    const size_t most = shortage_at + offsetof(kvfolio_shortage, holds) + 4;
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

int main(void) {
  make_subjects();
  int tried[kNumStructs] = {0};
  for (int i = 0; i < kNumStructCases; ++i) {
    const StructCase* const c = &kStructCases[i];
    for (int s = 0; s < kNumStructs; ++s) tried[s] |= strcmp(c->name, kStructs[s]) == 0;
    check_wrong_sizes(c);
    if (c->kind == kOutput) {
      check_output(c);
    } else {
      check_cut_input(c);
      check_padded_input(c);
    }
  }
  destroy_subjects();
  check_error();
  for (int s = 0; s < kNumStructs; ++s) {
    const int is_error =
        strcmp(kStructs[s], "kvfolio_error") == 0 || strcmp(kStructs[s], "kvfolio_shortage") == 0;
    if (tried[s] || is_error) continue;
    fprintf(stderr, "%s has no case in struct_cases.c\n", kStructs[s]);
    return 1;
  }
  printf("%d structs through %d calls\n", kNumStructs, kNumStructCases);
  return 0;
}
