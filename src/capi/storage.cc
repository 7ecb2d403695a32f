// SPDX-License-Identifier: Apache-2.0
//
// Storage and views.

#include "capi/capi.h"

namespace kvfolio::capi {

Status check_bytes(std::string_view call, const void* images, std::int64_t bytes) {
  if (bytes < 0) {
    return {ErrorCode::kInvalidArgument, concat(call, ": image_bytes is ", bytes)};
  }
  return images == nullptr && bytes > 0 ? null_argument(call, "images") : Status();
}

Status give_view(std::string_view call, const Result<KVView>& view, kvfolio_view** out) {
  if (!view) return view.error();
  auto* const handle = new (std::nothrow) kvfolio_view{*view};
  if (handle == nullptr) return no_memory(call);
  *out = handle;
  return {};
}

namespace {

KVStrides strides_of(const kvfolio_strides& strides) noexcept {
  return {strides.layer, strides.block, strides.head, strides.token};
}

// The bases of the layers go to `layers`, which the group points into.
Status read_borrowed(std::string_view call, const kvfolio_borrowed_group* theirs,
                     std::vector<BorrowedLayer>& layers, BorrowedGroup& out) {
  kvfolio_borrowed_group lent;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "borrowed", theirs, lent));
  out = {.k = static_cast<std::byte*>(lent.k),
         .k_bytes = lent.k_bytes,
         .k_strides = strides_of(lent.k_strides),
         .v = static_cast<std::byte*>(lent.v),
         .v_bytes = lent.v_bytes,
         .v_strides = strides_of(lent.v_strides),
         .k_scale = static_cast<std::byte*>(lent.k_scale),
         .k_scale_bytes = lent.k_scale_bytes,
         .k_scale_strides = strides_of(lent.k_scale_strides),
         .v_scale = static_cast<std::byte*>(lent.v_scale),
         .v_scale_bytes = lent.v_scale_bytes,
         .v_scale_strides = strides_of(lent.v_scale_strides)};
  constexpr std::int32_t kMostLayers = 1 << 16;  // GroupSpec::num_layers
  if (lent.num_layers < 0 || lent.num_layers > kMostLayers) {
    return {ErrorCode::kInvalidArgument, concat(call, ": borrowed->num_layers is ", lent.num_layers,
                                                ", allowed: 0 to ", kMostLayers)};
  }
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "borrowed->layers", lent.layers, lent.num_layers));
  if (lent.layers != nullptr && lent.num_layers == 0) {
    return {ErrorCode::kInvalidArgument,
            concat(call, ": borrowed->layers is given, and borrowed->num_layers is 0")};
  }
  for (std::int32_t l = 0; l < lent.num_layers; ++l) {
    const kvfolio_borrowed_layer& layer = lent.layers[l];
    layers.push_back({static_cast<std::byte*>(layer.k), static_cast<std::byte*>(layer.v),
                      static_cast<std::byte*>(layer.k_scale),
                      static_cast<std::byte*>(layer.v_scale)});
  }
  out.layers = layers;
  return {};
}

// The resource outlives the storage also if there is no memory for the handle.
Status give_storage(std::string_view call, Result<KVStorage> storage,
                    std::unique_ptr<CallerMemory>& resource, kvfolio_storage** out) {
  if (!storage) return std::move(storage).error();
  auto* const handle = new (std::nothrow) kvfolio_storage;
  if (handle == nullptr) return no_memory(call);
  handle->resource = std::move(resource);
  handle->own.emplace(std::move(*storage));
  handle->storage = &*handle->own;
  *out = handle;
  return {};
}

bool has_row(const KVView& view, std::int32_t layer, std::int32_t block, std::int32_t head,
             std::int32_t offset) noexcept {
  return layer >= 0 && layer < view.num_layers && block >= 0 && block < view.num_blocks &&
         head >= 0 && head < view.num_kv_heads && offset >= 0 && offset < view.block_size;
}

}  // namespace
}  // namespace kvfolio::capi

const kvfolio::KVView& kvfolio::view_of(const kvfolio_view& handle) noexcept { return handle.view; }
kvfolio_view* kvfolio::new_handle(const KVView& view) noexcept {
  return new (std::nothrow) kvfolio_view{view};
}

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_storage_create(const kvfolio_group_spec* groups, int32_t num_groups,
                               const kvfolio_memory_resource* resource, kvfolio_storage** out,
                               kvfolio_error* error) {
  KVFOLIO_C_NEEDS(out);
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, groups, num_groups, spec));
  std::unique_ptr<CallerMemory> memory;
  KVFOLIO_C_RETURN_IF_ERROR(read_resource(__func__, resource, memory));
  return answer(error, give_storage(__func__, KVStorage::create(spec, memory.get()), memory, out));
}

int32_t kvfolio_storage_borrow(const kvfolio_group_spec* groups, int32_t num_groups,
                               const kvfolio_borrowed_group* borrowed,
                               const kvfolio_memory_resource* resource, kvfolio_storage** out,
                               kvfolio_error* error) {
  KVFOLIO_C_NEEDS(out);
  CacheSpec spec;
  KVFOLIO_C_RETURN_IF_ERROR(read_groups(__func__, groups, num_groups, spec));
  KVFOLIO_C_RETURN_IF_ERROR(check_elements(__func__, "borrowed", borrowed, num_groups));
  std::unique_ptr<CallerMemory> memory;
  KVFOLIO_C_RETURN_IF_ERROR(read_resource(__func__, resource, memory));
  std::vector<std::vector<BorrowedLayer>> layers(static_cast<std::size_t>(num_groups));
  std::vector<BorrowedGroup> lent(static_cast<std::size_t>(num_groups));
  for (std::int32_t g = 0; g < num_groups; ++g) {
    const auto at = static_cast<std::size_t>(g);
    KVFOLIO_C_RETURN_IF_ERROR(read_borrowed(__func__, element(borrowed, g), layers[at], lent[at]));
  }
  return answer(error,
                give_storage(__func__, KVStorage::borrow(spec, lent, memory.get()), memory, out));
}

void kvfolio_storage_destroy(kvfolio_storage* storage) {
  if (storage == nullptr || !storage->own) return;
  storage->own.reset();  // before its resource
  delete storage;
}

int32_t kvfolio_storage_num_groups(const kvfolio_storage* storage) {
  return storage == nullptr ? 0 : storage->storage->num_groups();
}

int32_t kvfolio_storage_memory_kind(const kvfolio_storage* storage) {
  return storage == nullptr ? 0 : static_cast<int32_t>(storage->storage->memory_kind());
}

int32_t kvfolio_storage_owns_memory(const kvfolio_storage* storage) {
  return storage != nullptr && storage->storage->owns_memory() ? 1 : 0;
}

int64_t kvfolio_storage_memory_bytes(const kvfolio_storage* storage) {
  return storage == nullptr ? 0 : storage->storage->memory_bytes();
}

int32_t kvfolio_storage_copy_blocks(kvfolio_storage* storage, int32_t group, const int32_t* src,
                                    const int32_t* dst, int64_t num_blocks, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(storage);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "src", src, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "dst", dst, num_blocks));
  return answer(error, storage->storage->copy_blocks(GroupId(group), span_of(src, num_blocks),
                                                     span_of(dst, num_blocks)));
}

int32_t kvfolio_storage_copy_blocks_from(kvfolio_storage* storage, const kvfolio_storage* source,
                                         int32_t group, const int32_t* blocks, int64_t num_blocks,
                                         kvfolio_error* error) {
  KVFOLIO_C_NEEDS(storage);
  KVFOLIO_C_NEEDS(source);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  return answer(error, storage->storage->copy_blocks_from(*source->storage, GroupId(group),
                                                          span_of(blocks, num_blocks)));
}

int64_t kvfolio_storage_block_image_bytes(const kvfolio_storage* storage, int32_t group) {
  return storage == nullptr ? 0 : storage->storage->block_image_bytes(GroupId(group));
}

int32_t kvfolio_storage_read_blocks(const kvfolio_storage* storage, int32_t group,
                                    const int32_t* blocks, int64_t num_blocks, void* images,
                                    int64_t image_bytes, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(storage);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_bytes(__func__, images, image_bytes));
  return answer(
      error, storage->storage->read_blocks(GroupId(group), span_of(blocks, num_blocks),
                                           span_of(static_cast<std::byte*>(images), image_bytes)));
}

int32_t kvfolio_storage_write_blocks(kvfolio_storage* storage, int32_t group, const int32_t* blocks,
                                     int64_t num_blocks, const void* images, int64_t image_bytes,
                                     kvfolio_error* error) {
  KVFOLIO_C_NEEDS(storage);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "blocks", blocks, num_blocks));
  KVFOLIO_C_RETURN_IF_ERROR(check_bytes(__func__, images, image_bytes));
  return answer(error, storage->storage->write_blocks(
                           GroupId(group), span_of(blocks, num_blocks),
                           span_of(static_cast<const std::byte*>(images), image_bytes)));
}

int32_t kvfolio_storage_fill(kvfolio_storage* storage, uint8_t value, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(storage);
  return answer(error, storage->storage->fill(std::byte{value}));
}

int32_t kvfolio_view_create(const kvfolio_storage* storage, int32_t group, int32_t layer,
                            kvfolio_view** out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(storage);
  KVFOLIO_C_NEEDS(out);
  const Result<KVView> view = layer == -1 ? storage->storage->view(GroupId(group))
                                          : storage->storage->view(GroupId(group), layer);
  return answer(error, give_view(__func__, view, out));
}

void kvfolio_view_destroy(kvfolio_view* view) { delete view; }

void* kvfolio_view_k(const kvfolio_view* view, int32_t layer, int32_t block, int32_t head,
                     int32_t offset) {
  if (view == nullptr || !has_row(view->view, layer, block, head, offset)) return nullptr;
  return view->view.k == nullptr ? nullptr : view->view.k_at(layer, block, head, offset);
}

void* kvfolio_view_v(const kvfolio_view* view, int32_t layer, int32_t block, int32_t head,
                     int32_t offset) {
  if (view == nullptr || !has_row(view->view, layer, block, head, offset)) return nullptr;
  return view->view.v == nullptr ? nullptr : view->view.v_at(layer, block, head, offset);
}

void* kvfolio_view_k_scale(const kvfolio_view* view, int32_t layer, int32_t block, int32_t head,
                           int32_t offset) {
  if (view == nullptr || !has_row(view->view, layer, block, head, offset)) return nullptr;
  return view->view.k_scale == nullptr ? nullptr
                                       : view->view.k_scale_at(layer, block, head, offset);
}

void* kvfolio_view_v_scale(const kvfolio_view* view, int32_t layer, int32_t block, int32_t head,
                           int32_t offset) {
  if (view == nullptr || !has_row(view->view, layer, block, head, offset)) return nullptr;
  return view->view.v_scale == nullptr ? nullptr
                                       : view->view.v_scale_at(layer, block, head, offset);
}

int32_t kvfolio_token_store_view(const kvfolio_token_store* store, kvfolio_view** out,
                                 kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_NEEDS(out);
  return answer(error, give_view(__func__, store->store.view(), out));
}

}  // extern "C"
