// SPDX-License-Identifier: Apache-2.0
//
// Sentences of the header that are about C alone: sizes that differ between the structs of an
// array, who owns what after a call that failed, counts after a call that failed, layers lent
// apart.

#include <string.h>

#include "capi_test.h"

enum { kDim = 8, kPad = 64 };

// Groups of a caller whose struct is longer, or has no field behind num_blocks, or not even that.
static void fit_takes_groups_of_any_size(void) {
  const kvfolio_group_spec whole = small_group();
  const size_t with_num_blocks = offsetof(kvfolio_group_spec, num_blocks) + 4;
  const size_t sizes[] = {with_num_blocks, sizeof whole, sizeof whole + kPad, 77};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    const size_t size = sizes[i];
    const size_t known = size < sizeof whole ? size : sizeof whole;
    unsigned char* const groups = need(malloc(2 * size + kPad));
    memset(groups, 0xff, 2 * size + kPad);
    for (int g = 0; g < 2; ++g) {
      kvfolio_group_spec group = whole;
      group.struct_size = (uint32_t)size;
      group.num_blocks = 0;
      memcpy(groups + (size_t)g * size, &group, known);
    }
    MUST(kvfolio_fit((kvfolio_group_spec*)(void*)groups, 2, 1 << 20, &g_error));
    for (int g = 0; g < 2; ++g) {
      int32_t num_blocks = -1;
      memcpy(&num_blocks, groups + (size_t)g * size + offsetof(kvfolio_group_spec, num_blocks), 4);
      CHECK(num_blocks == (1 << 20) / 2 / (4 * 2 * kDim * 4));
      if (size > known) CHECK(groups[(size_t)g * size + known] == 0xff);
    }
    CHECK(groups[2 * size] == 0xff);
    free(groups);
  }
  kvfolio_group_spec short_one = whole;
  short_one.struct_size = (uint32_t)offsetof(kvfolio_group_spec, num_blocks);
  CHECK(kvfolio_fit(&short_one, 1, 1 << 20, &g_error) == KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "num_blocks") != NULL && short_one.num_blocks == 16);
}

// The usual clean-up in C: destroy all that was made, whatever failed.
static void storage_stays_the_callers_when_no_manager_is_made(void) {
  TestMemory memory = {0, 0};
  const kvfolio_group_spec group = small_group();
  const kvfolio_memory_resource resource = test_resource(&memory);
  kvfolio_storage* storage = NULL;
  kvfolio_manager* manager = NULL;
  MUST(kvfolio_storage_create(&group, 1, &resource, &storage, &g_error));
  const kvfolio_storage* const before = storage;
  const kvfolio_manager_options bad = {.struct_size = sizeof bad, .max_sequences = -1};
  CHECK(kvfolio_manager_create_with_storage(&storage, &bad, &manager, &g_error) ==
        KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(storage == before && manager == NULL && memory.bytes_out > 0);
  CHECK(kvfolio_manager_create_with_storage(&storage, NULL, NULL, &g_error) ==
        KVFOLIO_ERR_INVALID_ARGUMENT);
  MUST(kvfolio_storage_fill(storage, 3, &g_error));
  kvfolio_manager_destroy(manager);
  kvfolio_storage_destroy(storage);
  CHECK(memory.bytes_out == 0);
}

static void storage_of_a_manager_outlives_a_destroy(void) {
  TestMemory memory = {0, 0};
  const kvfolio_group_spec group = small_group();
  const kvfolio_memory_resource resource = test_resource(&memory);
  kvfolio_storage* storage = NULL;
  kvfolio_manager* manager = NULL;
  MUST(kvfolio_storage_create(&group, 1, &resource, &storage, &g_error));
  MUST(kvfolio_manager_create_with_storage(&storage, NULL, &manager, &g_error));
  CHECK(storage == NULL);
  kvfolio_storage_destroy(storage);
  kvfolio_storage* of_manager = kvfolio_manager_storage(manager);
  kvfolio_storage_destroy(of_manager);
  MUST(kvfolio_storage_fill(of_manager, 3, &g_error));
  kvfolio_manager* second = NULL;
  CHECK(kvfolio_manager_create_with_storage(&of_manager, NULL, &second, &g_error) ==
        KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(second == NULL && memory.bytes_out > 0);
  kvfolio_manager_destroy(manager);
  CHECK(memory.bytes_out == 0);
}

static void a_copied_token_store_survives_the_first(void) {
  TestMemory memory = {0, 0};
  const kvfolio_memory_resource resource = test_resource(&memory);
  const kvfolio_token_store_options options = {
      .struct_size = sizeof options, .head_dim_k = 4, .max_tokens = 4};
  const float row[4] = {1, 2, 3, 4};
  float got[4] = {0};
  for (int copy_goes_first = 0; copy_goes_first < 2; ++copy_goes_first) {
    kvfolio_token_store* first = NULL;
    kvfolio_token_store* copy = NULL;
    MUST(kvfolio_token_store_create(&options, &resource, &first, &g_error));
    MUST(kvfolio_token_store_append(first, row, NULL, 1, 0, &g_error));
    MUST(kvfolio_token_store_copy(first, &copy, &g_error));
    kvfolio_token_store_destroy(copy_goes_first ? copy : first);
    kvfolio_token_store* const left = copy_goes_first ? first : copy;
    MUST(kvfolio_token_store_append(left, row, NULL, 1, 0, &g_error));
    MUST(kvfolio_token_store_gather(left, 1, 1, 0, got, NULL, &g_error));
    CHECK(memcmp(got, row, sizeof row) == 0 && memory.bytes_out > 0);
    kvfolio_token_store_destroy(left);
    CHECK(memory.bytes_out == 0);
  }
}

// Copies that were never run, a plan that lacks a sequence, the whole prompt behind a hit.
static void mistakes_of_a_host_are_refused(void) {
  for (int32_t by_host = 0; by_host < 2; ++by_host) {
    const kvfolio_group_spec group = small_group();
    const kvfolio_manager_options options = {.struct_size = sizeof options,
                                             .copies_by_host = by_host};
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    kvfolio_storage* storage = NULL;
    kvfolio_manager* m = NULL;
    kvfolio_sequence parent, child, late;
    kvfolio_ticket step = 0;
    MUST(kvfolio_storage_create(&group, 1, NULL, &storage, &g_error));
    MUST(kvfolio_manager_create_with_storage(&storage, &options, &m, &g_error));
    MUST(kvfolio_open(m, NULL, tokens, 6, NULL, 0, NULL, &parent, NULL, &g_error));
    MUST(kvfolio_begin_step(m, 0, &step, &g_error));
    MUST(kvfolio_append(m, parent, tokens, 5, 0, &g_error));
    MUST(kvfolio_finish(m, step, &g_error));
    MUST(kvfolio_fork(m, parent, NULL, &child, &g_error));
    MUST(kvfolio_begin_step(m, 0, &step, &g_error));
    MUST(kvfolio_append(m, child, tokens, 1, 0, &g_error));
    const int32_t code = kvfolio_finish(m, step, &g_error);
    if (by_host == 0) {
      CHECK(code == KVFOLIO_ERR_FAILED_PRECONDITION);
      CHECK(strstr(g_error.message, "1 copy that has not run") != NULL);
      MUST(kvfolio_run_copies(m, &g_error));
      MUST(kvfolio_finish(m, step, &g_error));
    } else {
      CHECK(code == KVFOLIO_OK);
    }

    kvfolio_step_plan plan = {.struct_size = sizeof plan};
    MUST(kvfolio_open(m, NULL, NULL, 0, NULL, 0, NULL, &late, NULL, &g_error));
    MUST(kvfolio_begin_step(m, 0, &step, &g_error));
    MUST(kvfolio_append(m, parent, tokens, 1, 0, &g_error));
    MUST(kvfolio_plan(m, NULL, &plan, NULL, 0, &g_error));
    MUST(kvfolio_append(m, late, tokens, 1, 0, &g_error));
    CHECK(kvfolio_commit(m, step, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
    CHECK(strstr(g_error.message, "1 of the 2 sequences") != NULL);
    MUST(kvfolio_plan(m, NULL, &plan, NULL, 0, &g_error));
    MUST(kvfolio_undo(m, late, &g_error));
    CHECK(kvfolio_commit(m, step, &g_error) == KVFOLIO_ERR_FAILED_PRECONDITION);
    CHECK(strstr(g_error.message, "1 sequence that was taken out since") != NULL);
    MUST(kvfolio_drop(m, step, &g_error));

    MUST(kvfolio_close(m, parent, &g_error));
    kvfolio_found found = {.struct_size = sizeof found};
    MUST(kvfolio_open(m, NULL, tokens, 6, NULL, 0, NULL, &parent, &found, &g_error));
    CHECK(found.cached_tokens == 5);
    MUST(kvfolio_begin_step(m, 0, &step, &g_error));
    CHECK(kvfolio_append(m, parent, tokens, 6, 0, &g_error) == KVFOLIO_ERR_INVALID_ARGUMENT);
    CHECK(strstr(g_error.message, "the 5 that it has of its prompt of 6") != NULL);
    MUST(kvfolio_drop(m, step, &g_error));

    // The rest of a prompt that repeats itself, and three drafts, are its tokens again.
    const int32_t same[4] = {7, 7, 7, 7};
    MUST(kvfolio_begin_step(m, 0, &step, &g_error));
    MUST(kvfolio_open(m, NULL, NULL, 0, NULL, 0, NULL, &late, NULL, &g_error));
    MUST(kvfolio_append(m, late, same, 4, 0, &g_error));
    MUST(kvfolio_finish(m, step, &g_error));
    MUST(kvfolio_open(m, NULL, same, 4, NULL, 0, NULL, &late, &found, &g_error));
    CHECK(found.cached_tokens == 3);
    MUST(kvfolio_begin_step(m, 0, &step, &g_error));
    MUST(kvfolio_append(m, late, same, 4, 3, &g_error));
    kvfolio_manager_destroy(m);
  }
}

static void check_counts(kvfolio_manager* m, const kvfolio_sequence* both, int64_t n) {
  const int32_t tokens[2] = {1, 2};
  int64_t count = -7;
  CHECK(kvfolio_append_each(m, both, tokens, n, &count, &g_error) != 0 && count == 0);
  count = -7;
  CHECK(kvfolio_append_unnamed_each(m, both, n, &count, &g_error) != 0 && count == 0);
  count = -7;
  CHECK(kvfolio_set_tokens_each(m, both, tokens, n, &count, &g_error) != 0 && count == 0);
}

static void counts_are_zero_when_an_argument_is_wrong(void) {
  const kvfolio_group_spec group = small_group();
  kvfolio_manager* m = NULL;
  kvfolio_ticket step = 0;
  kvfolio_sequence both[2] = {0, 0};
  MUST(kvfolio_manager_create(&group, 1, NULL, &m, &g_error));
  for (int i = 0; i < 2; ++i) {
    MUST(kvfolio_open(m, NULL, NULL, 0, NULL, 0, NULL, &both[i], NULL, &g_error));
  }
  MUST(kvfolio_begin_step(m, 0, &step, &g_error));
  check_counts(NULL, both, 2);
  check_counts(m, NULL, 2);
  check_counts(m, both, -1);
  check_counts(m, both, INT64_MAX);

  // And otherwise the calls name themselves and the place.
  const kvfolio_sequence with_stranger[2] = {both[0], 12345};
  const int32_t tokens[2] = {1, 2};
  int64_t count = -7;
  MUST(kvfolio_append_unnamed_each(m, both, 2, &count, &g_error));
  CHECK(count == 2);
  MUST(kvfolio_commit(m, step, &g_error));
  CHECK(kvfolio_set_tokens_each(m, with_stranger, tokens, 2, &count, &g_error) ==
        KVFOLIO_ERR_NOT_FOUND);
  CHECK(count == 1 && strstr(g_error.message, "12345") != NULL);
  const int32_t bad[2] = {1, -9};
  const kvfolio_sequence second[2] = {both[1], both[1]};
  CHECK(kvfolio_set_tokens_each(m, second, bad + 1, 1, &count, &g_error) ==
        KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(count == 0 && strstr(g_error.message, "set_tokens_each: token 0 is -9") != NULL);
  CHECK(kvfolio_set_tokens_each(m, second, tokens, 2, &count, &g_error) != 0);
  CHECK(count == 1 && strstr(g_error.message, "set_tokens_each: at 1, ") != NULL);
  MUST(kvfolio_complete(m, step, &g_error));
  kvfolio_manager_destroy(m);
}

// ---- layers lent apart ----

enum { kLayers = 3, kHeads = 2, kBlocks = 4, kTokens = 4 };

static kvfolio_storage* lend_layers(const kvfolio_group_spec* group, char* memory,
                                    const int order[kLayers]) {
  const kvfolio_strides strides = {.block = 32, .head = 16, .token = 4};
  kvfolio_borrowed_layer layers[kLayers];
  for (int i = 0; i < kLayers; ++i) {
    char* const at = memory + order[i] * 1024;
    layers[i] = (kvfolio_borrowed_layer){at, at + 128, at + 256, at + 512};
  }
  const kvfolio_borrowed_group lent = {.struct_size = sizeof lent,
                                       .num_layers = kLayers,
                                       .k_bytes = 128,
                                       .k_strides = strides,
                                       .v_bytes = 128,
                                       .v_strides = strides,
                                       .k_scale_bytes = 128,
                                       .k_scale_strides = strides,
                                       .v_scale_bytes = 128,
                                       .v_scale_strides = strides,
                                       .layers = layers};
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_borrow(group, 1, &lent, NULL, &storage, &g_error));
  return storage;
}

static void layers_lent_apart_hold_what_own_memory_holds(void) {
  kvfolio_group_spec group = small_group();
  group.num_layers = kLayers;
  group.num_kv_heads = kHeads;
  group.head_dim_k = group.head_dim_v = 4;
  group.num_blocks = kBlocks;
  group.dtype = KVFOLIO_INT8;
  char* const memory = need(calloc(kLayers, 1024));
  kvfolio_storage* own = NULL;
  MUST(kvfolio_storage_create(&group, 1, NULL, &own, &g_error));
  kvfolio_view* view = NULL;
  // At one stride, too: where malloc() puts layers does not decide what works.
  kvfolio_storage* const even = lend_layers(&group, memory, (const int[kLayers]){0, 1, 2});
  CHECK(kvfolio_view_create(even, 0, -1, &view, &g_error) == KVFOLIO_ERR_UNSUPPORTED);
  kvfolio_storage_destroy(even);
  kvfolio_storage* const lent = lend_layers(&group, memory, (const int[kLayers]){2, 0, 1});
  CHECK(kvfolio_view_create(lent, 0, -1, &view, &g_error) == KVFOLIO_ERR_UNSUPPORTED);
  MUST(kvfolio_view_create(own, 0, -1, &view, &g_error));
  float k[4];
  float v[4];
  for (int32_t l = 0; l < kLayers; ++l) {
    for (int32_t slot = 0; slot < kHeads * kBlocks * kTokens; ++slot) {
      for (int i = 0; i < 4; ++i) v[i] = -(k[i] = (float)(l * 100 + slot + i));
      MUST(kvfolio_write_token(view, l, slot % kHeads, slot / kHeads, 0, k, v, &g_error));
    }
  }
  const int32_t all[kBlocks] = {0, 1, 2, 3};
  MUST(kvfolio_storage_copy_blocks_from(lent, own, 0, all, kBlocks, &g_error));
  const int32_t src[2] = {0, 3};
  const int32_t dst[2] = {3, 1};  // in order: block 1 gets what block 0 was
  MUST(kvfolio_storage_copy_blocks(lent, 0, src, dst, 2, &g_error));
  MUST(kvfolio_storage_copy_blocks(own, 0, src, dst, 2, &g_error));
  float lent_k[4];
  float lent_v[4];
  for (int32_t l = 0; l < kLayers; ++l) {
    kvfolio_view* one = NULL;
    MUST(kvfolio_view_create(lent, 0, l, &one, &g_error));
    CHECK(kvfolio_view_k_scale(one, 0, 0, 0, 0) != NULL);
    for (int32_t slot = 0; slot < kHeads * kBlocks * kTokens; ++slot) {
      MUST(kvfolio_read_token(view, l, slot % kHeads, slot / kHeads, 0, k, v, &g_error));
      MUST(kvfolio_read_token(one, 0, slot % kHeads, slot / kHeads, 0, lent_k, lent_v, &g_error));
      CHECK(memcmp(k, lent_k, sizeof k) == 0 && memcmp(v, lent_v, sizeof v) == 0);
    }
    kvfolio_view_destroy(one);
  }
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(lent);
  kvfolio_storage_destroy(own);
  free(memory);
}

// An element of e4m3 is 448 at most; what lies in a block is a byte of it and the scale of the row.
static void rows_of_e4m3_have_scales(void) {
  kvfolio_group_spec group = small_group();  // of blocks of 4
  group.dtype = KVFOLIO_E4M3;
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_create(&group, 1, NULL, &storage, &g_error));
  kvfolio_view* view = NULL;
  MUST(kvfolio_view_create(storage, 0, -1, &view, &g_error));
  const float k[8] = {896.0f, -896.0f, 2.0f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  const float v[8] = {0.0f};
  MUST(kvfolio_write_token(view, 0, 0, 5, 0, k, v, &g_error));
  const unsigned char bytes[4] = {0x7e, 0xfe, 0x38, 0x30};
  CHECK(memcmp(kvfolio_view_k(view, 0, 1, 0, 1), bytes, sizeof bytes) == 0);
  float scale = 0.0f;
  memcpy(&scale, kvfolio_view_k_scale(view, 0, 1, 0, 1), sizeof scale);
  CHECK(scale == 2.0f);
  float back[8];
  MUST(kvfolio_read_token(view, 0, 0, 5, 0, back, NULL, &g_error));
  CHECK(memcmp(back, k, sizeof k) == 0);
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
  group.format = KVFOLIO_GRANULE;
  CHECK(kvfolio_storage_create(&group, 1, NULL, &storage, &g_error) ==
        KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "dtype is e4m3") != NULL);
}

typedef struct FailingMemory {
  TestMemory memory;
  int32_t code;  // that copies return
} FailingMemory;
static int32_t failing_copy(void* context, void* dst, const void* src, int64_t bytes) {
  const FailingMemory* const failing = context;
  return failing->code != 0 ? failing->code : test_copy(context, dst, src, bytes);
}
static int32_t failing_out(void* context, const kvfolio_copy_run* runs, int64_t num_runs) {
  const FailingMemory* const failing = context;
  for (int64_t i = 0; failing->code == 0 && i < num_runs; ++i) {
    memcpy(runs[i].dst, runs[i].src, (size_t)runs[i].bytes);
  }
  return failing->code;
}

// Whatever a resource returns, but that it cannot: the memory is unavailable.
static void copies_of_a_resource_that_fail_are_said(void) {
  FailingMemory failing = {.code = 0};
  kvfolio_memory_resource resource = test_resource(&failing.memory);
  resource.kind = KVFOLIO_DEVICE;
  resource.copy = failing_copy;
  resource.copy_out = failing_out;
  kvfolio_group_spec group = small_group();
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_create(&group, 1, &resource, &storage, &g_error));
  const int64_t bytes = kvfolio_storage_block_image_bytes(storage, 0);
  char* const image = malloc((size_t)bytes);
  const int32_t from = 1;
  const int32_t to = 2;
  const int32_t codes[] = {KVFOLIO_OK, KVFOLIO_ERR_UNAVAILABLE, KVFOLIO_ERR_FAILED_PRECONDITION, -7,
                           1000,       KVFOLIO_ERR_UNSUPPORTED};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; ++i) {
    failing.code = codes[i];
    const int32_t want = codes[i] == KVFOLIO_OK || codes[i] == KVFOLIO_ERR_UNSUPPORTED
                             ? codes[i]
                             : KVFOLIO_ERR_UNAVAILABLE;
    CHECK(kvfolio_storage_copy_blocks(storage, 0, &from, &to, 1, &g_error) == want);
    CHECK(kvfolio_storage_read_blocks(storage, 0, &to, 1, image, bytes, &g_error) == want);
    // There is no copy_in().
    CHECK(kvfolio_storage_write_blocks(storage, 0, &to, 1, image, bytes, &g_error) ==
          KVFOLIO_ERR_UNSUPPORTED);
  }
  free(image);
  kvfolio_storage_destroy(storage);
  CHECK(failing.memory.bytes_out == 0);
}

// Bytes that only the engine knows come back as they were; nothing makes numbers of them.
static void opaque_rows_are_copied(void) {
  kvfolio_group_spec group = small_group();
  group.dtype = KVFOLIO_OPAQUE;
  kvfolio_storage* storage = NULL;
  MUST(kvfolio_storage_create(&group, 1, NULL, &storage, &g_error));
  kvfolio_view* view = NULL;
  MUST(kvfolio_view_create(storage, 0, -1, &view, &g_error));
  const unsigned char k[8] = {1, 255, 127, 128, 0, 2, 3, 4};
  unsigned char back[8];
  MUST(kvfolio_write_token(view, 0, 0, 5, KVFOLIO_OPAQUE, k, k, &g_error));
  MUST(kvfolio_read_token(view, 0, 0, 5, KVFOLIO_OPAQUE, back, NULL, &g_error));
  CHECK(memcmp(back, k, sizeof k) == 0);
  const float floats[8] = {0.0f};
  CHECK(kvfolio_write_token(view, 0, 0, 5, 0, floats, NULL, &g_error) ==
        KVFOLIO_ERR_INVALID_ARGUMENT);
  CHECK(strstr(g_error.message, "k.dtype is f32, allowed: opaque") != NULL);
  kvfolio_view_destroy(view);
  kvfolio_storage_destroy(storage);
}

int main(void) {
  copies_of_a_resource_that_fail_are_said();
  fit_takes_groups_of_any_size();
  opaque_rows_are_copied();
  rows_of_e4m3_have_scales();
  storage_stays_the_callers_when_no_manager_is_made();
  storage_of_a_manager_outlives_a_destroy();
  a_copied_token_store_survives_the_first();
  counts_are_zero_when_an_argument_is_wrong();
  mistakes_of_a_host_are_refused();
  layers_lent_apart_hold_what_own_memory_holds();
  return 0;
}
