// SPDX-License-Identifier: Apache-2.0
#pragma once

// One case for each struct that carries its size and each call that takes or fills it.

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "capi_test.h"

enum { kTextBytes = 2048 };

typedef enum {
  kInput,          // numbers only
  kPointersInput,  // cut between fields only: half a pointer leads anywhere
  kOutput
} CaseKind;

// run() calls the library with `given`, a struct whose first field is its size, and writes to
// `text` all that can be seen of the answer: the code, the message, and what the call did. Undoes
// what it did. For outputs: what the call filled is in `given`.
typedef struct {
  const char* name;  // of the struct
  const char* call;
  const void* full;  // a struct with a value in every field that may have one
  size_t size;
  CaseKind kind;
  void (*run)(void* given, char* text);
} StructCase;

// What a call answered, with &g_error, and what it did if that is ok.
static inline void say(char* text, int32_t code, const char* format, ...) {
  const int n = snprintf(text, kTextBytes, "%d %s ", code, code ? g_error.message : "");
  if (code != 0) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + n, (size_t)(kTextBytes - n), format, arguments);
  va_end(arguments);
}

extern const StructCase kStructCases[];
extern const int kNumStructCases;

// Runs all cases; returns 1 if a struct of the header has none, which has_no_case() may allow.
int check_struct_cases(int (*has_no_case)(const char* name));

void make_subjects(void);
void destroy_subjects(void);
