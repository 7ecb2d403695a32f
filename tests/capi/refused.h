// SPDX-License-Identifier: Apache-2.0
#pragma once

// Calls that no host should make. Each one must give a code and a sentence, and leave everything as
// it was.

#include <string.h>

#include "capi_test.h"

// The digest of what no such call may change, which the program says.
uint64_t state_of_the_world(void);
// As the world is now, the calls leave it; it does not change by itself.
void begin_hostile_calls(void);
int nothing_has_changed(void);
// 1 if a call was wrong, or fewer were made than `least`.
int end_hostile_calls(int least);

void must_be_refused(int32_t code, const char* call, const char* file, int line);
kvfolio_error* refusal(void);
#define E refusal()
// A place for a result, or a struct that says this size: it stays as it is.
void* result_of(size_t size);
// A call that is refused and changes nothing.
#define BAD(call)                                       \
  do {                                                  \
    memset(refusal()->message, 0, 256);                 \
    must_be_refused((call), #call, __FILE__, __LINE__); \
  } while (0)
