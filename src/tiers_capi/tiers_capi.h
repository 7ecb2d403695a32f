// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the families of the C interface of libkvfolio_tiers share: the handles, and how arguments
// are read. Translation only. A handle owns the C++ object behind it. Thread safety: that of the
// object.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capi/c_structs.h"
#include "capi/caller_memory.h"
#include "capi/nothing_thrown.h"
#include "capi/read_prompt.h"
#include "kvfolio/arena_tier.h"
#include "kvfolio/c_handles.h"
#include "kvfolio/disk_tier.h"
#include "kvfolio/foreign_identity.h"
#include "kvfolio/identity.h"
#include "kvfolio/kvfolio_tiers.h"
#include "kvfolio/offload.h"
#include "kvfolio/record.h"
#include "kvfolio/redis_tier.h"
#include "kvfolio/snapshot.h"

// ---- handles -----------------------------------------------------------------------------------

struct kvfolio_identity {
  std::optional<kvfolio::Identity> own;  // none: it belongs to an Offload
  const kvfolio::Identity* identity = nullptr;
};

struct kvfolio_foreign_identity {
  kvfolio::ForeignIdentity identity;
};

struct kvfolio_record_keys {
  kvfolio::RecordKeys keys;
};

struct kvfolio_tier {
  std::shared_ptr<kvfolio::capi::CallerMemory> resource;  // of the arena, which tiers share
  std::unique_ptr<kvfolio::Tier> tier;
  kvfolio::ArenaTier* memory = nullptr;  // the tier, if it is one in memory
  kvfolio::DiskTier* disk = nullptr;     // the same
  kvfolio::RedisTier* redis = nullptr;   // the same
  std::string name;
};

struct kvfolio_offload {
  std::unique_ptr<kvfolio::capi::CallerMemory> resource;  // of the arena
  std::unique_ptr<kvfolio::Offload> offload;
  kvfolio::KVCacheManager* manager = nullptr;
  std::weak_ptr<const void> lifetime;  // of the manager's handle
  kvfolio_identity identity;
  std::vector<kvfolio::SequenceReady> ready;  // that the caller had no room for
};

struct kvfolio_save_list {
  struct Item {
    kvfolio::SequenceId sequence;
    std::vector<std::int32_t> tokens;
    std::string root[4];
    std::uint64_t epoch = 0;
    std::vector<kvfolio::MediaSpan> media;
  };
  std::vector<std::unique_ptr<Item>> items;
};

struct kvfolio_restored {
  kvfolio::RestoreStats stats;
};

namespace kvfolio::capi {

// The views last as long as the caller's bytes.
Status read_text(std::string_view call, std::string_view name, const kvfolio_text& text,
                 std::string_view& out);
// Null: none.
inline std::span<const std::byte> secret_of(const std::uint8_t* key) noexcept {
  if (key == nullptr) return {};
  return std::as_bytes(std::span(key, kRecordKeyBytes));
}
Status read_model(std::string_view call, const kvfolio_model_identity* theirs, ModelIdentity& out);

inline Digest digest_of(const kvfolio_digest& digest) noexcept {
  Digest out;
  std::memcpy(out.data(), digest.bytes, sizeof digest.bytes);
  return out;
}
inline void give_digest(const Digest& digest, kvfolio_digest* out) noexcept {
  std::memcpy(out->bytes, digest.data(), sizeof out->bytes);
}

inline RootKey key_of(const kvfolio_root* root) noexcept {
  return root == nullptr ? RootKey() : root_key_of(*root);
}

}  // namespace kvfolio::capi
