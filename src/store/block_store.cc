// SPDX-License-Identifier: Apache-2.0

// BlockStore: a BlockPool says who uses a block, a KVStorage of one group has the bytes. Neither
// knows the other; this file checks what a caller asks of both.

#include "kvfolio/block_store.h"
#include "kvfolio/view.h"

#include <string_view>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"

namespace kvfolio {

using text::concat;

BlockStore::BlockStore(BlockPool pool, KVStorage storage, const GroupSpec& spec)
    : pool_(std::move(pool)),
      storage_(std::move(storage)),
      spec_(spec),
      view_(*storage_.view(GroupId(0))),
      num_blocks_(spec.num_blocks) {}

BlockStore::BlockStore(BlockStore&& other) noexcept
    : pool_(std::move(other.pool_)),
      storage_(std::move(other.storage_)),
      spec_(other.spec_),
      view_(std::exchange(other.view_, {})),
      num_blocks_(std::exchange(other.num_blocks_, 0)) {}

BlockStore& BlockStore::operator=(BlockStore&& other) noexcept {
  if (this == &other) return *this;
  pool_ = std::move(other.pool_);
  storage_ = std::move(other.storage_);
  spec_ = other.spec_;
  view_ = std::exchange(other.view_, {});
  num_blocks_ = std::exchange(other.num_blocks_, 0);
  return *this;
}

Result<BlockStore> BlockStore::create(const GroupSpec& group, MemoryResource* resource) {
  Result<KVStorage> storage = KVStorage::create({.groups = {group}}, resource);
  if (!storage) {
    return Status(storage.error().code(), concat("block store: ", storage.error().message()));
  }
  Result<BlockPool> pool = BlockPool::create(group.num_blocks);
  if (!pool) return std::move(pool).error();
  return BlockStore(std::move(*pool), std::move(*storage), group);
}

// ---- who uses a block --------------------------------------------------------------------------

Status BlockStore::check(const char* call, std::span<const std::int32_t> blocks) const {
  for (const std::int32_t block : blocks) {
    if (block < 0 || block >= num_blocks_) {
      return invalid(concat(std::string_view(call), ": block ", block, ", the store has ",
                            num_blocks_, " blocks"));
    }
    if (pool_.refs(BlockId(block)) > 0) continue;
    return {ErrorCode::kFailedPrecondition,
            concat(std::string_view(call), ": block ", block, " is free")};
  }
  return {};
}

Status BlockStore::allocate(std::span<std::int32_t> out) {
  if (out.size() > static_cast<std::size_t>(num_free())) {
    return {ErrorCode::kResourceExhausted, concat("allocate of ", out.size(), " blocks: ",
                                                  num_free(), " of ", num_blocks_, " are free")};
  }
  for (std::int32_t& block : out) block = pool_.acquire().value();
  return {};
}

Result<BlockId> BlockStore::allocate() {
  std::int32_t block = -1;
  KVFOLIO_RETURN_IF_ERROR(allocate({&block, 1}));
  return BlockId(block);
}

Status BlockStore::hold(std::span<const std::int32_t> blocks) {
  KVFOLIO_RETURN_IF_ERROR(check("hold", blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockId block(blocks[i]);
    if (pool_.refs(block) < INT32_MAX) {
      pool_.hold(block);
      continue;
    }
    // None is the last one: each block had a reference before this call.
    while (i > 0) KVFOLIO_CHECK(!pool_.release(BlockId(blocks[--i])));
    return {ErrorCode::kResourceExhausted,
            concat("hold: block ", block.value(), " has ", INT32_MAX, " references")};
  }
  return {};
}

// A block that lost its last reference becomes free when all are known to be right: until then it
// can be held again.
Status BlockStore::release(std::span<const std::int32_t> blocks) {
  KVFOLIO_RETURN_IF_ERROR(check("release", blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockId block(blocks[i]);
    if (pool_.refs(block) > 0) {
      static_cast<void>(pool_.release(block));
      continue;
    }
    while (i > 0) pool_.hold(BlockId(blocks[--i]));
    return {ErrorCode::kFailedPrecondition,
            concat("release: block ", block.value(),
                   " is named more often than it has references, ", pool_.refs(block))};
  }
  for (const std::int32_t block : blocks) {
    if (pool_.state(BlockId(block)) == BlockState::kHeld && pool_.refs(BlockId(block)) == 0) {
      pool_.make_free(BlockId(block));
    }
  }
  return {};
}

Result<BlockId> BlockStore::make_writable(BlockId block) {
  const std::int32_t from = block.value();
  KVFOLIO_RETURN_IF_ERROR(check("make_writable", {&from, 1}));
  if (pool_.refs(block) == 1) return block;
  const BlockId copy = pool_.acquire();
  if (!copy.valid()) {
    return Status(ErrorCode::kResourceExhausted,
                  concat("make_writable: block ", from, " has ", pool_.refs(block),
                         " references, and for a copy 0 of ", num_blocks_, " blocks are free"));
  }
  const std::int32_t to = copy.value();
  // Both are blocks of the group: what can fail here is the memory.
  if (Status copied = storage_.copy_blocks(GroupId(0), {&from, 1}, {&to, 1}); !copied.ok()) {
    KVFOLIO_CHECK(pool_.release(copy));
    pool_.make_free(copy);
    return copied;
  }
  KVFOLIO_CHECK(!pool_.release(block));
  return copy;
}

Result<std::int32_t> BlockStore::ref_count(BlockId block) const {
  if (block.value() < 0 || block.value() >= num_blocks_) {
    return invalid(
        concat("ref_count: block ", block.value(), ", the store has ", num_blocks_, " blocks"));
  }
  return pool_.refs(block);
}

// ---- bytes -------------------------------------------------------------------------------------

Status BlockStore::read(std::span<const std::int32_t> blocks, std::span<std::byte> images) const {
  KVFOLIO_RETURN_IF_ERROR(check("read", blocks));
  if (num_blocks_ == 0 && images.empty()) return {};
  return storage_.read_blocks(GroupId(0), blocks, images);
}

Status BlockStore::write(std::span<const std::int32_t> blocks, std::span<const std::byte> images) {
  KVFOLIO_RETURN_IF_ERROR(check("write", blocks));
  if (num_blocks_ == 0 && images.empty()) return {};
  for (const std::int32_t block : blocks) {
    const std::int32_t refs = pool_.refs(BlockId(block));
    if (refs == 1) continue;
    return {ErrorCode::kFailedPrecondition,
            concat("write: block ", block, " has ", refs,
                   " references, whose holders would all read it; make_writable() gives a copy")};
  }
  return storage_.write_blocks(GroupId(0), blocks, images);
}

std::string to_string(const BlockStore& store) {
  const GroupSpec& spec = store.spec();
  const std::string v = spec.v_is_prefix_of_k ? concat("V the first ", spec.head_dim_v, " of K")
                        : spec.head_dim_v == 0
                            ? std::string("no V")
                            : concat("V ", spec.num_kv_heads, " x ", spec.head_dim_v);
  return concat("block store: ", store.num_blocks() - store.num_free(), " of ", store.num_blocks(),
                " blocks of ", spec.block_size, " tokens in use, ",
                std::string_view(to_string(spec.dtype)), ", ", spec.num_layers,
                spec.num_layers == 1 ? " layer" : " layers", ", K ", spec.num_kv_heads, " x ",
                spec.head_dim_k, ", ", v, "; ", store.memory_bytes(), " bytes");
}

}  // namespace kvfolio
