// SPDX-License-Identifier: Apache-2.0
#pragma once

// A cache whose bytes follow from its tokens, and a tier of the caller's own. For the tests in C.

#include <string.h>

#include "capi_test.h"
#include "kvfolio/kvfolio_tiers.h"

enum { kDim = 8, kBlock = 4, kRecordsMax = 64, kPendingMax = 256 };

static const kvfolio_model_identity kToy = {.struct_size = sizeof kToy,
                                            .model = {"toy", -1},
                                            .weights = {"1", -1},
                                            .tokenizer = {"ids", -1},
                                            .model_dtype = {"f32", -1},
                                            .positions = {"none", -1},
                                            .engine = {"test", -1}};

kvfolio_manager* toy_manager(int32_t num_blocks);
// Appends the tokens behind the first `from` ones in a step of its own and writes their K and V.
void toy_compute(kvfolio_manager* manager, kvfolio_sequence sequence, const int32_t* tokens,
                 int32_t from, int32_t num_tokens);
// A prompt that was opened, computed and closed.
void toy_say(kvfolio_manager* manager, const int32_t* tokens, int32_t num_tokens);
// Of K and V of the first num_tokens tokens of an open sequence.
uint64_t toy_hash(kvfolio_manager* manager, kvfolio_sequence sequence, int32_t num_tokens);
uint64_t toy_hash_bytes(uint64_t before, const void* data, size_t bytes);
kvfolio_offload* toy_offload(kvfolio_manager* manager, kvfolio_tier* tier);
// Until nothing moves any more.
void toy_settle(kvfolio_offload* offload);
// Opens the prompt and polls until it is ready.
kvfolio_sequence_ready toy_open(kvfolio_offload* offload, const int32_t* tokens,
                                int32_t num_tokens);

// A tier as an engine author writes one: a table of records, and a queue.
typedef struct {
  kvfolio_tier_key keys[kRecordsMax];
  char* records[kRecordsMax];
  int64_t bytes[kRecordsMax];
  int num_records;
  kvfolio_tier_item pending[kPendingMax];
  int32_t ops[kPendingMax];
  int num_pending;
  int closed;
  int destroyed;
} ToyTier;
kvfolio_tier_functions toy_functions(ToyTier* tier);
void toy_free_records(ToyTier* tier);

// A snapshot in memory.
typedef struct {
  char* bytes;
  int64_t size;
} ToyFile;
int32_t toy_write(void* context, const void* bytes, int64_t num_bytes);
int32_t toy_read_at(void* context, int64_t offset, void* out, int64_t num_bytes);
