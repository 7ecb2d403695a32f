// SPDX-License-Identifier: Apache-2.0

#include "refused.h"

static kvfolio_error error = KVFOLIO_ERROR_INIT;
static uint64_t state_before;
static int num_hostile = 0;
static int num_wrong = 0;

// What result_of() gives, and what it was then.
static uint32_t result[1024];
static uint32_t result_before[1024];

kvfolio_error* refusal(void) { return &error; }

void* result_of(size_t size) {
  CHECK(size <= sizeof result);
  memset(result, 0x5a, sizeof result);
  if (size != 0) result[0] = (uint32_t)size;
  memcpy(result_before, result, sizeof result);
  return result;
}

void begin_hostile_calls(void) {
  state_before = state_of_the_world();
  CHECK(state_before == state_of_the_world());
}

int nothing_has_changed(void) { return state_of_the_world() == state_before; }

int end_hostile_calls(int least) {
  CHECK(num_hostile >= least);
  printf("%d hostile calls\n", num_hostile);
  return num_wrong != 0;
}

void must_be_refused(int32_t code, const char* call, const char* file, int line) {
  ++num_hostile;
  const char* wrong = NULL;
  if (code <= KVFOLIO_OK || code > KVFOLIO_ERR_CORRUPT) wrong = "is not refused";
  if (wrong == NULL && code != error.code) wrong = "says another code in its error";
  if (wrong == NULL && strlen(error.message) < 12) wrong = "says no sentence";
  if (wrong == NULL && state_of_the_world() != state_before) wrong = "changes something";
  if (wrong == NULL && memcmp(result, result_before, sizeof result) != 0) wrong = "writes a result";
  if (wrong == NULL) return;
  fprintf(stderr, "%s:%d: %s %s (%d, \"%s\")\n", file, line, call, wrong, code, error.message);
  ++num_wrong;
  state_before = state_of_the_world();
  memcpy(result_before, result, sizeof result);
}
