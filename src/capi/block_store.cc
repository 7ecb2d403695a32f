// SPDX-License-Identifier: Apache-2.0
//
// Blocks without a manager.

#include "capi/capi.h"

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_block_store_create(const kvfolio_group_spec* group,
                                   const kvfolio_memory_resource* resource,
                                   kvfolio_block_store** out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(group);
  KVFOLIO_C_NEEDS(out);
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, group, 1, spec));
  std::unique_ptr<CallerMemory> memory;
  KVFOLIO_C_RETURN_IF_ERROR(read_resource(__func__, resource, memory));
  Result<BlockStore> store = BlockStore::create(spec.groups[0], memory.get());
  if (!store) return answer(error, store.error());
  auto* const handle = new (std::nothrow)
      kvfolio_block_store{.resource = std::move(memory), .store = std::move(*store)};
  if (handle == nullptr) return answer(error, no_memory(__func__));
  *out = handle;
  return KVFOLIO_OK;
}

void kvfolio_block_store_destroy(kvfolio_block_store* store) { delete store; }

int32_t kvfolio_block_store_allocate(kvfolio_block_store* store, int32_t* out, int64_t num_blocks,
                                     kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "out", out, num_blocks));
  return answer(error, store->store.allocate(span_of(out, num_blocks)));
}

int32_t kvfolio_block_store_hold(kvfolio_block_store* store, const int32_t* blocks,
                                 int64_t num_blocks, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  return answer(error, store->store.hold(span_of(blocks, num_blocks)));
}

int32_t kvfolio_block_store_release(kvfolio_block_store* store, const int32_t* blocks,
                                    int64_t num_blocks, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  return answer(error, store->store.release(span_of(blocks, num_blocks)));
}

int32_t kvfolio_block_store_make_writable(kvfolio_block_store* store, int32_t block, int32_t* out,
                                          kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_NEEDS(out);
  const Result<BlockId> writable = store->store.make_writable(BlockId(block));
  if (!writable) return answer(error, writable.error());
  *out = writable->value();
  return KVFOLIO_OK;
}

int32_t kvfolio_block_store_ref_count(const kvfolio_block_store* store, int32_t block, int32_t* out,
                                      kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_NEEDS(out);
  const Result<std::int32_t> refs = store->store.ref_count(BlockId(block));
  if (!refs) return answer(error, refs.error());
  *out = *refs;
  return KVFOLIO_OK;
}

int32_t kvfolio_block_store_read(const kvfolio_block_store* store, const int32_t* blocks,
                                 int64_t num_blocks, void* images, int64_t image_bytes,
                                 kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_bytes(__func__, images, image_bytes));
  return answer(error, store->store.read(span_of(blocks, num_blocks),
                                         span_of(static_cast<std::byte*>(images), image_bytes)));
}

int32_t kvfolio_block_store_write(kvfolio_block_store* store, const int32_t* blocks,
                                  int64_t num_blocks, const void* images, int64_t image_bytes,
                                  kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_bytes(__func__, images, image_bytes));
  return answer(error,
                store->store.write(span_of(blocks, num_blocks),
                                   span_of(static_cast<const std::byte*>(images), image_bytes)));
}

int32_t kvfolio_block_store_num_blocks(const kvfolio_block_store* store) {
  return store == nullptr ? 0 : store->store.num_blocks();
}

int32_t kvfolio_block_store_num_free(const kvfolio_block_store* store) {
  return store == nullptr ? 0 : store->store.num_free();
}

int64_t kvfolio_block_store_block_image_bytes(const kvfolio_block_store* store) {
  return store == nullptr ? 0 : store->store.block_image_bytes();
}

int64_t kvfolio_block_store_memory_bytes(const kvfolio_block_store* store) {
  return store == nullptr ? 0 : store->store.memory_bytes();
}

int32_t kvfolio_block_store_view(const kvfolio_block_store* store, kvfolio_view** out,
                                 kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_NEEDS(out);
  return answer(error, give_view(__func__, store->store.view(), out));
}

int64_t kvfolio_block_store_describe(const kvfolio_block_store* store, char* out,
                                     int64_t capacity) {
  return store == nullptr ? 0 : give_text(to_string(store->store), out, capacity);
}

}  // extern "C"
