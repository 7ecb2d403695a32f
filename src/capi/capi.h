// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the families of the C interface share: the handles, and how arguments are read. Translation
// only: nothing here decides anything about a cache. A handle owns the C++ object behind it. Thread
// safety: that of the object.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/c_structs.h"
#include "capi/caller_memory.h"
#include "capi/read_prompt.h"
#include "capi/read_rows.h"
#include "capi/shared_resource.h"
#include "kvfolio/block_store.h"
#include "kvfolio/kernels.h"
#include "kvfolio/manager.h"
#include "kvfolio/op_log.h"
#include "kvfolio/storage.h"
#include "kvfolio/token_store.h"

namespace kvfolio::capi {

// An OpLog and what it writes to.
struct RecordedCalls {
  RecordedCalls(std::unique_ptr<ByteSink> to, const OpLogOptions& options)
      : sink(std::move(to)), log(*sink, options) {}
  std::unique_ptr<ByteSink> sink;
  OpLog log;
};

}  // namespace kvfolio::capi

// ---- handles -----------------------------------------------------------------------------------

struct kvfolio_storage {
  std::unique_ptr<kvfolio::capi::CallerMemory> resource;
  std::optional<kvfolio::KVStorage> own;  // none: it belongs to a manager
  kvfolio::KVStorage* storage = nullptr;
};

struct kvfolio_view {
  kvfolio::KVView view;
};

struct kvfolio_manager {
  std::shared_ptr<kvfolio::capi::RecordedCalls> log;      // null: none; outlives the manager
  std::unique_ptr<kvfolio::capi::CallerMemory> resource;  // of the storage
  kvfolio::KVCacheManager manager;
  kvfolio_storage storage;
  // So that no call takes heap memory.
  kvfolio::FixedArray<kvfolio_ended> ended;
  kvfolio::FixedArray<kvfolio::AppendDemand> demands;
  std::shared_ptr<const void> lifetime;  // for lifetime_of()
};

struct kvfolio_op_log {
  std::shared_ptr<kvfolio::capi::RecordedCalls> calls;
};

struct kvfolio_root {
  std::array<std::string, 4> bytes;
  kvfolio::RootKey key;
};

struct kvfolio_block_store {
  std::unique_ptr<kvfolio::capi::CallerMemory> resource;  // outlives the store
  kvfolio::BlockStore store;
};

struct kvfolio_token_store {
  kvfolio::capi::SharedResource resource;  // its copies share it
  kvfolio::TokenStore store;
};

namespace kvfolio::capi {

inline std::int32_t dtype_of(DType dtype) noexcept { return static_cast<std::int32_t>(dtype) + 1; }
Status read_target(std::string_view call, std::int32_t value, KernelTarget& out);
inline std::int32_t target_of(KernelTarget target) noexcept {
  return static_cast<std::int32_t>(target) + 1;
}
kvfolio_group_spec group_of(const GroupSpec& group) noexcept;
Status read_executor(std::string_view call, const kvfolio_executor* executor, Executor& out);

// Images of blocks that a caller gives.
Status check_bytes(std::string_view call, const void* images, std::int64_t bytes);
Status give_view(std::string_view call, const Result<KVView>& view, kvfolio_view** out);
// As much of the text as fits, and a 0 behind it; returns the bytes of all of it.
std::int64_t give_text(std::string_view text, char* out, std::int64_t capacity) noexcept;

// What a prompt finds. `found` may be null.
Status check_found(std::string_view call, const kvfolio_found* found);
void give_found(std::int32_t cached_tokens, const Soon& soon, kvfolio_found* found) noexcept;

// The sequences that a call ended, in the handle's own array.
std::int32_t give_ended(kvfolio_manager& manager, std::span<const EndedSequence> from,
                        const kvfolio_ended** ended, std::int64_t* num_ended) noexcept;

}  // namespace kvfolio::capi
