// SPDX-License-Identifier: Apache-2.0
#pragma once

// BlockStore is a pool of blocks and their bytes in one object: K and V of one group, and who uses
// which block. It is for programs that keep their own block tables and want neither sequences nor
// prefixes: no steps, no eviction, nothing is found again. It knows ids and bytes, but no tokens.
//
//   BlockStore store = *BlockStore::create({.head_dim_k = 64, .head_dim_v = 64, .num_blocks = 99});
//   std::array<std::int32_t, 2> table;
//   Status status = store.allocate(table);       // kResourceExhausted: fewer are free
//   append(store.view(), layer, k, v, slots);    // kernels.h; slot = block * block_size + offset
//   status = store.hold(table);                  // a second table has the same blocks
//   BlockId own = *store.make_writable(BlockId(table[1]));  // in its place, to be written
//   status = store.release(table);               // a block is free once nothing holds it
//
// A block is free, or has references: one from allocate(), one more from each hold(). It is free
// again when release() took the last one. Invariant: the blocks that are free and those that have
// references are num_blocks().
// Two holders read a block; who writes it must be alone. make_writable() sees to that, and write()
// refuses a block with several references. Kernels write to view() unasked.
//
// The bytes of a block that was allocated are unspecified: a slot holds a token after an append.
// Memory for all blocks is taken at creation. HostMemory backs a page when it is first written.
//
// Every argument is checked before anything changes: a call that fails changes nothing. Nothing
// takes heap memory after create() but to_string() and the text of an error. A moved-from store
// holds 0 blocks.
//
// Thread safety: several threads may run const calls at the same time while no other call runs, and
// kernels may write to slots that no other thread reads. If the store was given a resource, read(),
// write() and make_writable() call it, under the rules of memory.h.

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>

#include "kvfolio/block_pool.h"
#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/memory.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio {

class BlockStore {
 public:
  // `resource` must outlive the store; null: HostMemory of the store's own. The window of a group,
  // its sinks and rewind mean nothing here; attention_params() of kernels.h takes them from spec().
  // kInvalidArgument: the group, see validate(); a resource whose memory is not aligned as asked.
  // kOutOfMemory: the bytes that were asked, and the resource's error.
  KVFOLIO_API static Result<BlockStore> create(const GroupSpec& group,
                                               MemoryResource* resource = nullptr);

  KVFOLIO_API BlockStore(BlockStore&& other) noexcept;
  KVFOLIO_API BlockStore& operator=(BlockStore&& other) noexcept;
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;
  ~BlockStore() = default;

  // Takes a free block for each entry of `out`, all or none; each has one reference then.
  // kResourceExhausted: "allocate of 3 blocks: 2 of 64 are free".
  KVFOLIO_API Status allocate(std::span<std::int32_t> out);
  KVFOLIO_API Result<BlockId> allocate();
  // Adds a reference to each of these blocks, all or none; one that is named twice gets two.
  // kInvalidArgument: no such block. kFailedPrecondition: the block is free. kResourceExhausted:
  // 2^31 - 1 references.
  KVFOLIO_API Status hold(std::span<const std::int32_t> blocks);
  // Takes a reference from each, all or none. A block without any is free.
  // kInvalidArgument: no such block. kFailedPrecondition: the block is free, or is named more often
  // than it has references.
  KVFOLIO_API Status release(std::span<const std::int32_t> blocks);
  // The block to write in place of this one (copy-on-write). If the caller's reference is the only
  // one: the block itself. Otherwise a free block with a copy of its bytes, all layers; the
  // caller's reference moves to that. Errors: as release(); kResourceExhausted: none is free.
  // kUnavailable: the memory failed. The block is as it was, and the call may be made again.
  [[nodiscard]] KVFOLIO_API Result<BlockId> make_writable(BlockId block);

  // Copies images of blocks (storage.h says what lies where) out, one behind the other, or in.
  // kInvalidArgument: no such block, or images.size() is not the number of blocks times
  // block_image_bytes(). kFailedPrecondition: a block is free; write() also if it has several
  // references, since all its holders would read the new bytes. kUnsupported: the memory is a
  // device's, and its resource does not copy to the CPU. kUnavailable: the memory failed; what was
  // to be written, `images` or the blocks, may have any bytes.
  KVFOLIO_API Status read(std::span<const std::int32_t> blocks, std::span<std::byte> images) const;
  KVFOLIO_API Status write(std::span<const std::int32_t> blocks, std::span<const std::byte> images);

  // References to a block; 0: it is free. kInvalidArgument: no such block.
  [[nodiscard]] KVFOLIO_API Result<std::int32_t> ref_count(BlockId block) const;
  [[nodiscard]] std::int32_t num_blocks() const noexcept { return num_blocks_; }
  [[nodiscard]] std::int32_t num_free() const noexcept {
    return num_blocks_ == 0 ? 0 : pool_.num_free();
  }
  // Bytes of the image of a block, which has no padding.
  [[nodiscard]] std::int64_t block_image_bytes() const noexcept {
    return storage_.block_image_bytes(GroupId(0));
  }
  // Bytes of all blocks, padding included: what was taken from the resource.
  [[nodiscard]] std::int64_t memory_bytes() const noexcept { return storage_.memory_bytes(); }
  // As given to create(), also in a store that was moved from.
  [[nodiscard]] const GroupSpec& spec() const noexcept { return spec_; }
  // For the kernels: all layers. Valid as long as the memory, which a move passes on.
  [[nodiscard]] const KVView& view() const noexcept { return view_; }

 private:
  BlockStore(BlockPool pool, KVStorage storage, const GroupSpec& spec);

  // Whether these blocks are there and have references.
  [[nodiscard]] Status check(const char* call, std::span<const std::int32_t> blocks) const;

  BlockPool pool_;
  KVStorage storage_;
  GroupSpec spec_;
  KVView view_;
  std::int32_t num_blocks_ = 0;  // 0: it was moved from
};

// "block store: 5 of 64 blocks of 16 tokens in use, bf16, 32 layers, K 8 x 128, V 8 x 128; 8388608
// bytes".
[[nodiscard]] KVFOLIO_API std::string to_string(const BlockStore& store);

template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const BlockStore& store) {
  return out << to_string(store);
}

}  // namespace kvfolio
