// SPDX-License-Identifier: Apache-2.0
//
// One sequence without a manager.

#include <atomic>

#include "capi/capi.h"

namespace kvfolio::capi {

struct SharedResource::Counted {
  std::unique_ptr<CallerMemory> memory;
  std::atomic<std::int64_t> users{1};
};

SharedResource::SharedResource(const SharedResource& other) noexcept : counted_(other.counted_) {
  if (counted_ != nullptr) counted_->users.fetch_add(1, std::memory_order_relaxed);
}

// The last one sees what the others did with the resource.
SharedResource::~SharedResource() {
  if (counted_ == nullptr) return;
  if (counted_->users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete counted_;
}

Status SharedResource::take(std::string_view call, std::unique_ptr<CallerMemory>& memory) {
  if (!memory) return {};
  counted_ = new (std::nothrow) Counted;
  if (counted_ == nullptr) return no_memory(call);
  counted_->memory = std::move(memory);
  return {};
}

CallerMemory* SharedResource::get() const noexcept {
  return counted_ == nullptr ? nullptr : counted_->memory.get();
}

namespace {

// The resource outlives the store also if there is no memory for the handle.
Status give_store(std::string_view call, Result<TokenStore> store, const SharedResource& resource,
                  kvfolio_token_store** out) {
  if (!store) return std::move(store).error();
  auto* const handle =
      new (std::nothrow) kvfolio_token_store{.resource = resource, .store = std::move(*store)};
  if (handle == nullptr) return no_memory(call);
  *out = handle;
  return {};
}

// Elements of a row of K, or of V; of the type that the caller has them in.
struct RowsOf {
  std::int32_t num_tokens = 0;
  DType dtype{};

  template <typename View, typename Data>
  [[nodiscard]] View of(Data* data, const TokenStoreOptions& options,
                        std::int32_t head_dim) const noexcept {
    if (data == nullptr) return {};
    return contiguous_rows(data, num_tokens, options.num_kv_heads, head_dim, dtype);
  }
};

Status read_shape(std::string_view call, const TokenStoreOptions& options, std::int64_t num_tokens,
                  std::int32_t dtype, RowsOf& out) {
  if (num_tokens < 0 || num_tokens > kMaxSequenceTokens) {
    return {ErrorCode::kInvalidArgument,
            concat(call, " of ", num_tokens, " tokens, allowed: 0 to ", kMaxSequenceTokens)};
  }
  out.num_tokens = static_cast<std::int32_t>(num_tokens);
  const DType own = has_scales(options.dtype) ? DType::kF32 : options.dtype;
  return read_dtype(call, "dtype", dtype, own, out.dtype);
}

Status give_row(const Result<std::span<const std::byte>>& row, const void** out) {
  if (!row) return row.error();
  *out = row->data();
  return {};
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_token_store_create(const kvfolio_token_store_options* options,
                                   const kvfolio_memory_resource* resource,
                                   kvfolio_token_store** out, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(out);
  kvfolio_token_store_options theirs;
  KVFOLIO_C_RETURN_IF_ERROR(read_struct(__func__, "options", options, theirs));
  TokenStoreOptions ours;
  ours.head_dim_k = theirs.head_dim_k;
  ours.head_dim_v = theirs.head_dim_v;
  if (theirs.num_kv_heads != 0) ours.num_kv_heads = theirs.num_kv_heads;
  KVFOLIO_C_RETURN_IF_ERROR(read_dtype(__func__, "dtype", theirs.dtype, ours.dtype, ours.dtype));
  if (theirs.block_size != 0) ours.block_size = theirs.block_size;
  ours.max_tokens = theirs.max_tokens;
  std::unique_ptr<CallerMemory> memory;
  KVFOLIO_C_RETURN_IF_ERROR(read_resource(__func__, resource, memory));
  SharedResource shared;
  KVFOLIO_C_RETURN_IF_ERROR(shared.take(__func__, memory));
  return answer(error, give_store(__func__, TokenStore::create(ours, shared.get()), shared, out));
}

void kvfolio_token_store_destroy(kvfolio_token_store* store) { delete store; }

int32_t kvfolio_token_store_copy(const kvfolio_token_store* store, kvfolio_token_store** out,
                                 kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_NEEDS(out);
  return answer(error, give_store(__func__, store->store.copy(), store->resource, out));
}

int32_t kvfolio_token_store_append(kvfolio_token_store* store, const void* k, const void* v,
                                   int64_t num_tokens, int32_t dtype, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  const TokenStoreOptions& options = store->store.options();
  RowsOf rows;
  KVFOLIO_C_RETURN_IF_ERROR(read_shape(__func__, options, num_tokens, dtype, rows));
  if (num_tokens == 0) return KVFOLIO_OK;
  KVFOLIO_C_NEEDS(k);
  return answer(
      error,
      store->store.append(
          rows.of<ConstRowsView>(static_cast<const std::byte*>(k), options, options.head_dim_k),
          rows.of<ConstRowsView>(static_cast<const std::byte*>(v), options, options.head_dim_v)));
}

int32_t kvfolio_token_store_gather(const kvfolio_token_store* store, int64_t begin,
                                   int64_t num_tokens, int32_t dtype, void* k, void* v,
                                   kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  const TokenStoreOptions& options = store->store.options();
  RowsOf rows;
  KVFOLIO_C_RETURN_IF_ERROR(read_shape(__func__, options, num_tokens, dtype, rows));
  return answer(
      error, store->store.gather(
                 begin, rows.of<RowsView>(static_cast<std::byte*>(k), options, options.head_dim_k),
                 rows.of<RowsView>(static_cast<std::byte*>(v), options, options.head_dim_v)));
}

int32_t kvfolio_token_store_at(const kvfolio_token_store* store, int64_t i, const void** out,
                               kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_NEEDS(out);
  return answer(error, give_row(store->store.at(i), out));
}

int32_t kvfolio_token_store_v_at(const kvfolio_token_store* store, int64_t i, const void** out,
                                 kvfolio_error* error) {
  KVFOLIO_C_NEEDS(store);
  KVFOLIO_C_NEEDS(out);
  return answer(error, give_row(store->store.v_at(i), out));
}

void kvfolio_token_store_clear(kvfolio_token_store* store) {
  if (store != nullptr) store->store.clear();
}

int32_t kvfolio_token_store_size(const kvfolio_token_store* store) {
  return store == nullptr ? 0 : store->store.size();
}

int32_t kvfolio_token_store_max_tokens(const kvfolio_token_store* store) {
  return store == nullptr ? 0 : store->store.max_tokens();
}

int64_t kvfolio_token_store_memory_bytes(const kvfolio_token_store* store) {
  return store == nullptr ? 0 : store->store.memory_bytes();
}

int64_t kvfolio_token_store_bytes_used(const kvfolio_token_store* store) {
  return store == nullptr ? 0 : store->store.bytes_used();
}

}  // extern "C"
