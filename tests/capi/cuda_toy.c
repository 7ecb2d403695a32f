// SPDX-License-Identifier: Apache-2.0
#include "cuda_toy.h"

ToyDevice toy_device(void) {
  ToyDevice toy = {NULL, NULL, NULL, NULL};
  MUST(kvfolio_cuda_device_open(0, &toy.device, &g_error));
  MUST(kvfolio_cuda_stream_create(toy.device, &toy.stream, &g_error));
  MUST(kvfolio_cuda_kernels_load(toy.device, NULL, &toy.kernels, &g_error));
  const kvfolio_cuda_memory_options options = {.struct_size = sizeof options,
                                               .staging_bytes = 4096};
  MUST(kvfolio_cuda_memory_create(toy.device, toy.kernels, &options, &toy.memory, &g_error));
  return toy;
}

void toy_end(ToyDevice* toy) {
  MUST(kvfolio_cuda_memory_take_error(toy->memory, &g_error));
  kvfolio_cuda_stream_destroy(toy->stream);
  kvfolio_cuda_memory_destroy(toy->memory);
  kvfolio_cuda_kernels_destroy(toy->kernels);
  kvfolio_cuda_device_destroy(toy->device);
  CHECK(kvfolio_fake_cuda_open() == 0);
}

kvfolio_group_spec toy_group(void) {
  kvfolio_group_spec group = {.struct_size = sizeof group,
                              .num_kv_heads = kHeads,
                              .head_dim_k = kDim,
                              .head_dim_v = kDim,
                              .block_size = kBlockSize,
                              .num_blocks = kBlocks};
  return group;
}

kvfolio_storage* toy_storage(const kvfolio_memory_resource* resource) {
  const kvfolio_group_spec group = toy_group();
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_create(&group, 1, resource, &storage, &g_error));
  int32_t blocks[kBlocks];
  for (int32_t i = 0; i < kBlocks; ++i) blocks[i] = i;
  const int64_t bytes = kvfolio_storage_block_image_bytes(storage, 0) * kBlocks;
  char* const zeros = need(calloc(1, (size_t)bytes));
  MUST(kvfolio_storage_write_blocks(storage, 0, blocks, kBlocks, zeros, bytes, &g_error));
  free(zeros);
  return storage;
}

kvfolio_memory_resource toy_resource(const ToyDevice* toy) {
  kvfolio_memory_resource resource = {.struct_size = sizeof resource};
  MUST(kvfolio_cuda_memory_resource(toy->memory, &resource, &g_error));
  return resource;
}

kvfolio_rows toy_rows(int32_t num_tokens) {
  const kvfolio_rows rows = {
      .struct_size = sizeof rows, .num_tokens = num_tokens, .num_heads = kHeads, .head_dim = kDim};
  return rows;
}

void* toy_upload(const ToyDevice* toy, const void* bytes, int64_t num_bytes) {
  void* piece = NULL;
  MUST(kvfolio_cuda_memory_allocate(toy->memory, num_bytes, &piece, &g_error));
  MUST(kvfolio_cuda_memory_copy_in(toy->memory, piece, bytes, num_bytes, &g_error));
  return piece;
}

void toy_download(const ToyDevice* toy, void* to, const void* from, int64_t num_bytes) {
  MUST(kvfolio_cuda_stream_synchronize(toy->stream, &g_error));
  MUST(kvfolio_cuda_memory_copy_out(toy->memory, to, from, num_bytes, &g_error));
}

void toy_free(const ToyDevice* toy, void* piece, int64_t num_bytes) {
  kvfolio_cuda_memory_deallocate(toy->memory, piece, num_bytes);
}

void toy_must_be_equal(const kvfolio_storage* a, const kvfolio_storage* b) {
  int32_t blocks[kBlocks];
  for (int32_t i = 0; i < kBlocks; ++i) blocks[i] = i;
  const int64_t bytes = kvfolio_storage_block_image_bytes(a, 0) * kBlocks;
  CHECK(bytes > 0 && kvfolio_storage_block_image_bytes(b, 0) * kBlocks == bytes);
  char* const one = need(malloc((size_t)bytes));
  char* const other = need(malloc((size_t)bytes));
  MUST(kvfolio_storage_read_blocks(a, 0, blocks, kBlocks, one, bytes, &g_error));
  MUST(kvfolio_storage_read_blocks(b, 0, blocks, kBlocks, other, bytes, &g_error));
  CHECK(memcmp(one, other, (size_t)bytes) == 0);
  free(one);
  free(other);
}

ToyPlan toy_plan(const ToyDevice* device) {
  ToyPlan toy = {.step = {.struct_size = sizeof toy.step},
                 .group = {.struct_size = sizeof toy.group}};
  const kvfolio_group_spec group = small_group();
  const kvfolio_manager_options options = {.struct_size = sizeof options,
                                           .max_sequences = kPlanRows};
  MUST(kvfolio_manager_create(&group, 1, &options, &toy.manager, &g_error));
  const int32_t columns = kColumns;
  const kvfolio_cuda_plan_options sizes = {.struct_size = sizeof sizes,
                                           .max_sequences = kPlanRows,
                                           .max_tokens = 16,
                                           .num_rows = kvfolio_num_rows(toy.manager)};
  MUST(kvfolio_cuda_plan_create(device->kernels, &sizes, &group.block_size, &columns, 1, &toy.plan,
                                &g_error));
  return toy;
}

void toy_plan_step(ToyPlan* toy, const kvfolio_sequence* sequences, int32_t n, int block_tables) {
  static const int32_t token = 7;
  const kvfolio_plan_options options = {
      .struct_size = sizeof options, .changed_entries = 1, .no_block_tables = !block_tables};
  MUST(kvfolio_begin_step(toy->manager, 0, &toy->ticket, &g_error));
  for (int32_t i = 0; i < n; ++i) {
    MUST(kvfolio_append(toy->manager, sequences[i], &token, 1, 0, &g_error));
  }
  MUST(kvfolio_plan(toy->manager, &options, &toy->step, &toy->group, 1, &g_error));
}

void toy_plan_end(ToyPlan* toy) {
  kvfolio_cuda_plan_destroy(toy->plan);
  kvfolio_manager_destroy(toy->manager);
}
