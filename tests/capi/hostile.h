// SPDX-License-Identifier: Apache-2.0
#pragma once

// Calls that no host should make. Each one must give a code and a sentence, and leave everything as
// it was: the manager, the bytes of the storage, and all that the call might write to.

#include <float.h>
#include <limits.h>
#include <math.h>

#include "refused.h"

enum { kDim = 8, kFloats = 1024 };

// What the calls get, and what they would write to.
typedef struct {
  kvfolio_group_spec groups[2];  // full, window
  kvfolio_manager* manager;
  kvfolio_storage* storage;       // of the manager
  kvfolio_storage* no_v_storage;  // K only
  kvfolio_view* view;
  kvfolio_view* no_v_view;
  kvfolio_token_store* store;   // f16, K only, 6 tokens at most, 2 there
  kvfolio_block_store* blocks;  // 4; block 0 has 2 references, block 1 one
  kvfolio_sequence open;        // 20 tokens, in the open step
  kvfolio_sequence idle;        // a fork of it
  kvfolio_sequence closed;
  kvfolio_sequence foreign;  // of a manager with another id_tag
  kvfolio_ticket step;       // open
  kvfolio_ticket old_step;
  int32_t tokens[64];
  float k[kFloats];

  // Where results would go.
  struct {
    kvfolio_manager* manager;
    kvfolio_storage* storage;
    kvfolio_view* view;
    kvfolio_root* root;
    kvfolio_token_store* store;
    kvfolio_block_store* blocks;
    kvfolio_thread_pool* pool;
    const kvfolio_ended* ended;
    const void* row;
    kvfolio_i32s array;
    kvfolio_step_plan plan;
    kvfolio_group_plan group_plans[2];
    kvfolio_found found;
    kvfolio_load load;
    kvfolio_sequence_info info;
    kvfolio_group_usage usage;
    kvfolio_counters counters;
    kvfolio_group_spec group;
    kvfolio_group_layout layout;
    uint64_t id;
    int64_t i64;
    int32_t i32;
    int32_t i32s[64];
    float floats[kFloats];
  } out;
} World;

extern World w;

void hostile_creation(void);
void hostile_sequences(void);
void hostile_steps(void);
void hostile_room(void);
void hostile_questions(void);
void hostile_storage(void);
void hostile_kernels(void);
void hostile_attention(void);
void hostile_token_store(void);
void hostile_block_store(void);
void hostile_gather_sequence(void);
