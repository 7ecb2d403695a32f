// SPDX-License-Identifier: Apache-2.0
//
// Programs and libraries of different versions: each struct cut at every field, and with 64 bytes
// of garbage behind its end. A struct that is cut says what one with zeros in place of the rest
// says. What lies behind the size is neither read nor written. Compiled a second time against a
// header with two more fields in each struct. For the structs of each C header, with its cases.

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

int check_struct_cases(int (*has_no_case)(const char* name)) {
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
  for (int s = 0; s < kNumStructs; ++s) {
    if (tried[s] || has_no_case(kStructs[s])) continue;
    fprintf(stderr, "%s has no case\n", kStructs[s]);
    return 1;
  }
  printf("%d structs through %d calls\n", kNumStructs, kNumStructCases);
  return 0;
}
