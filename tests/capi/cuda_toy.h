// SPDX-License-Identifier: Apache-2.0
#pragma once

// A device of the driver that is none (tests/fake_cuda), and a small cache on it beside one on the
// host.

#include <string.h>

#include "capi_test.h"
#include "fake_cuda/fake_cuda.h"
#include "kvfolio/kvfolio_cuda.h"

enum { kBlocks = 6, kBlockSize = 4, kHeads = 2, kDim = 16, kRowFloats = kHeads * kDim };

typedef struct {
  kvfolio_cuda_device* device;
  kvfolio_cuda_stream* stream;
  kvfolio_cuda_kernels* kernels;
  kvfolio_cuda_memory* memory;
} ToyDevice;
ToyDevice toy_device(void);
void toy_end(ToyDevice* toy);

kvfolio_group_spec toy_group(void);
// One layer of K and V; resource null: on the host.
kvfolio_storage* toy_storage(const kvfolio_memory_resource* resource);
kvfolio_memory_resource toy_resource(const ToyDevice* toy);
// Rows without gaps.
kvfolio_rows toy_rows(int32_t num_tokens);

// Device memory with these bytes.
void* toy_upload(const ToyDevice* toy, const void* bytes, int64_t num_bytes);
// Waits for the stream, and brings bytes back.
void toy_download(const ToyDevice* toy, void* to, const void* from, int64_t num_bytes);
void toy_free(const ToyDevice* toy, void* piece, int64_t num_bytes);
// All blocks of both have the same bytes.
void toy_must_be_equal(const kvfolio_storage* a, const kvfolio_storage* b);

// ---- a plan on the device ----

enum { kPlanRows = 4, kColumns = 8 };
typedef struct {
  kvfolio_manager* manager;
  kvfolio_cuda_plan* plan;
  kvfolio_ticket ticket;  // of the open step
  kvfolio_step_plan step;
  kvfolio_group_plan group;
} ToyPlan;
ToyPlan toy_plan(const ToyDevice* toy);
// Appends a token to each sequence in a step, which stays open, and plans it.
void toy_plan_step(ToyPlan* toy, const kvfolio_sequence* sequences, int32_t n, int block_tables);
void toy_plan_end(ToyPlan* toy);
