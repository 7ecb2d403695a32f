// SPDX-License-Identifier: Apache-2.0
#pragma once

// KVStorage holds the keys and values of every group of a CacheSpec, in memory that it takes from a
// MemoryResource or in memory that an engine lends (pointer and strides). It knows bytes, never
// tokens, sequences or reference counts.
//
//   Result<KVStorage> storage = KVStorage::create(spec);
//   if (!storage) return storage.error();
//   const KVView view = *storage->view(GroupId(0));      // all layers of a group,
//   const KVView layer = *storage->view(GroupId(0), 3);  // or one; its only layer is number 0
//   attend_over(view, layer);                            // kernels.h takes views
//
// KVView is a struct of view.h, which this header does not include.
//
// Invariants: every byte that a view reaches lies in the memory of its group; no two rows overlap,
// not even rows of two groups. A row is the head_dim elements of one token, head and layer; the
// scale of a row, in types with scales (has_scales()), counts as a row of its own. A row of an
// opaque type is head_dim bytes without a scale, which come and go as they are.
// The contents of fresh memory are unspecified: a slot holds a token only after an append.
// Every call that copies answers kUnavailable if its MemoryResource says that bytes did not arrive.
// Then what it was to write, and nothing else, may have any bytes; the call may be made again.
// Over memory of a device no call waits for what is enqueued on a stream (memory.h says who orders
// that); cuda::copy_blocks(..., stream) of cuda_kernels.h copies blocks in the order of one.
// Thread safety: none for copy_blocks, copy_blocks_from, write_blocks and fill against any other
// use of the same blocks; the const members may be called from several threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/ids.h"
#include "kvfolio/memory.h"
#include "kvfolio/memory_kind.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/strides.h"

namespace kvfolio {

struct KVView;  // view.h

// Where the arrays of one layer begin; null as in BorrowedGroup.
struct BorrowedLayer {
  std::byte* k = nullptr;  // [num_blocks, num_kv_heads, block_size, head_dim_k]
  std::byte* v = nullptr;
  std::byte* k_scale = nullptr;
  std::byte* v_scale = nullptr;
};

// Memory of an engine for one group. Strides are in bytes, not negative, and multiples of the
// element; strides along an axis of one entry are not used. The axes may be in any order (K and V
// apart, interleaved by block, by token, ...) if they nest: each stride steps over all that lies
// within it.
// If spec.format is granule, a tile of 16 tokens takes the place of a row: pointers and strides are
// multiples of 64 bytes, and the scales of a block and head follow each other.
//
// An engine that holds a tensor for each layer gives the bases in `layers`. Then k, v, k_scale and
// v_scale below are null, all layers have the same strides, and each byte count holds for each
// base. The strides along the layers are not used.
struct BorrowedGroup {
  std::byte* k = nullptr;    // [num_layers, num_blocks, num_kv_heads, block_size, head_dim_k]
  std::int64_t k_bytes = 0;  // bytes that may be touched from k on
  KVStrides k_strides = {};
  std::byte* v = nullptr;  // the same with head_dim_v; null if the spec stores no V of its own
  std::int64_t v_bytes = 0;
  KVStrides v_strides = {};
  // Types with scales (has_scales()) only, else null, so also for opaque bytes: f32 [num_layers,
  // num_blocks, num_kv_heads, block_size], aligned to 4.
  std::byte* k_scale = nullptr;
  std::int64_t k_scale_bytes = 0;
  KVStrides k_scale_strides = {};
  std::byte* v_scale = nullptr;  // null if the spec stores no V of its own
  std::int64_t v_scale_bytes = 0;
  KVStrides v_scale_strides = {};
  // [num_layers], or empty if k, v and the scales are bases of all layers. Read by borrow() only.
  std::span<const BorrowedLayer> layers = {};
};

class KVStorage {
 public:
  // Takes memory for every group as plan_layouts() lays it out. `resource` must outlive the
  // storage; null is a HostMemory of the storage's own.
  // kInvalidArgument: the spec, see validate(); a resource whose memory is not aligned as asked.
  // kOutOfMemory: names the group, its bytes and the resource's error; all memory is given back.
  KVFOLIO_API static Result<KVStorage> create(const CacheSpec& spec,
                                              MemoryResource* resource = nullptr);
  // Over memory that the caller owns and that outlives the storage, one entry for each group, in
  // order. `resource` says what kind of memory it is and copies within it; null: CPU memory.
  // spec.format matters only if it is granule; otherwise the strides describe the layout.
  // kInvalidArgument, with the group, the layer if each has a base, the field and the numbers: null
  // or misaligned pointers, negative or misaligned strides, an extent that overflows or exceeds the
  // given bytes, another number of layers, rows that overlap.
  KVFOLIO_API static Result<KVStorage> borrow(const CacheSpec& spec,
                                              std::span<const BorrowedGroup> groups,
                                              MemoryResource* resource = nullptr);

  KVFOLIO_API KVStorage(KVStorage&& other) noexcept;
  KVFOLIO_API KVStorage& operator=(KVStorage&& other) noexcept;
  KVStorage(const KVStorage&) = delete;
  KVStorage& operator=(const KVStorage&) = delete;
  KVFOLIO_API ~KVStorage();

  [[nodiscard]] const CacheSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::int32_t num_groups() const noexcept {
    return static_cast<std::int32_t>(groups_.size());
  }
  // All layers of a group. Valid until the storage is destroyed. kInvalidArgument: the spec has no
  // such group. kUnsupported: the engine lent its layers apart, several of them, wherever they lie;
  // view(group, layer) works for every storage.
  [[nodiscard]] KVFOLIO_API Result<KVView> view(GroupId group) const;
  // One layer of a group: num_layers is 1, so kernels take it as layer 0. Valid as long.
  // kInvalidArgument: the spec has no such group or layer.
  [[nodiscard]] KVFOLIO_API Result<KVView> view(GroupId group, std::int32_t layer) const;
  [[nodiscard]] KVFOLIO_API MemoryKind memory_kind() const noexcept;
  [[nodiscard]] bool owns_memory() const noexcept { return !owned_.empty(); }
  // Bytes taken from the resource for all groups, padding included; 0 when borrowed.
  [[nodiscard]] KVFOLIO_API std::int64_t memory_bytes() const noexcept;

  // Copies block src[i] to block dst[i], all layers, K, V and scales, in the order of i. A pair of
  // equal blocks does nothing. All pairs are checked before the first byte moves: kInvalidArgument
  // for unequal counts, a group or a block out of range. Bytes of an engine's memory that belong to
  // no row are not touched. By MemoryResource::copy(), which waits for no stream: with steps in
  // flight on a device use cuda::copy_blocks(kernels, view, src, dst, stream).
  KVFOLIO_API Status copy_blocks(GroupId group, std::span<const std::int32_t> src,
                                 std::span<const std::int32_t> dst);

  // Copies the named blocks of `source` to the same ids here, all layers, K, V and scales; strides
  // may differ. The two storages share no memory. All arguments are checked before the first byte
  // moves: kInvalidArgument for another spec, a group or a block out of range; kUnsupported if the
  // CPU may not touch the memory of one of the two and they do not share their resource.
  KVFOLIO_API Status copy_blocks_from(const KVStorage& source, GroupId group,
                                      std::span<const std::int32_t> blocks);

  // ---- images of blocks: what leaves a cache, and comes back ----
  //
  // The image of a block is all of its bytes in one piece of memory, without padding. It depends on
  // the group's spec, never on strides: own and borrowed memory, in any order of axes, give the
  // same image of the same tokens, and either takes it. Layer by layer, in the order of the format:
  // in HND and granule for each KV head the rows of K, of V if it is stored, and for types with
  // scales (has_scales()) the f32 scales of K, then of V. In NHD first K, then V, then the scales
  // of K and of V, each token by token and within a token head by head. A row is the head_dim
  // elements of a token, in granule a tile of 16 tokens. Numbers lie as in memory, in the byte
  // order of the machine.

  // Bytes of the image of a block; 0: the spec has no such group.
  [[nodiscard]] KVFOLIO_API std::int64_t block_image_bytes(GroupId group) const noexcept;
  // Copies the named blocks to `images`, one behind the other. kInvalidArgument: a group or a block
  // out of range, or images.size() is not the number of blocks times block_image_bytes().
  // kUnsupported: the memory is a device's, and its resource does not copy to the CPU. Nothing is
  // copied then. kUnavailable: the resource failed; `images` may have any bytes.
  KVFOLIO_API Status read_blocks(GroupId group, std::span<const std::int32_t> blocks,
                                 std::span<std::byte> images) const;
  // Copies images to the named blocks; a block is named once. Errors as above; after kUnavailable
  // any of these blocks may have any bytes.
  KVFOLIO_API Status write_blocks(GroupId group, std::span<const std::int32_t> blocks,
                                  std::span<const std::byte> images);
  // read_blocks() and write_blocks() of one block, begun: MemoryResource::submit(). Image and block
  // stay as they are until poll_copy() says that the ticket is over: hold the block, or keep its
  // load open. A storage that ends first waits for copies of its own memory
  // (MemoryResource::deallocate()); memory that was lent its owner keeps until then. An error, as
  // of read_blocks(): nothing was begun. kFailedPrecondition, as of MemoryResource::submit(): not
  // now.
  [[nodiscard]] KVFOLIO_API bool copies_later() const noexcept;
  KVFOLIO_API Result<CopyTicket> submit_read(GroupId group, std::int32_t block,
                                             std::span<std::byte> image,
                                             void* stream = nullptr) const;
  KVFOLIO_API Result<CopyTicket> submit_write(GroupId group, std::int32_t block,
                                              std::span<const std::byte> image,
                                              void* stream = nullptr);
  // MemoryResource::poll(). kUnavailable: it is over, and the bytes did not arrive.
  [[nodiscard]] KVFOLIO_API Result<bool> poll_copy(CopyTicket ticket) const;
  // MemoryResource::leave(), in place of further polls.
  KVFOLIO_API void leave_copy(CopyTicket ticket) const noexcept;
  // Where the pieces of an image lie in the block: `memory` has the bytes [offset, offset + bytes)
  // of the image. For callers that copy and check in one pass, over memory that the CPU may touch.
  struct ImageRun {
    std::int64_t offset = 0;
    std::byte* memory = nullptr;
    std::int64_t bytes = 0;
  };
  // Fills `out` with the pieces from number `first` on, in the order of the image, as far as they
  // fit; returns how many there are in all. Errors as read_blocks().
  [[nodiscard]] KVFOLIO_API Result<std::int64_t> image_runs(GroupId group, std::int32_t block,
                                                            std::int64_t first,
                                                            std::span<ImageRun> out) const;

  // Sets every byte of every row and scale, for tests and to poison memory: 0xff makes every
  // element a NaN, and every scale of types with scales (has_scales()). Opaque bytes are all 0xff
  // then, whatever that means to the engine.
  // kUnsupported on memory that the CPU may not touch.
  KVFOLIO_API Status fill(std::byte value);

 private:
  struct Region {
    std::byte* memory = nullptr;
    std::int64_t bytes = 0;
  };

  KVStorage();
  void release() noexcept;
  [[nodiscard]] Status check_group(GroupId group) const;
  [[nodiscard]] Status check_images(std::string_view what, GroupId group,
                                    std::span<const std::int32_t> blocks,
                                    std::size_t image_bytes) const;
  // Requires: check_group(group).ok().
  [[nodiscard]] const std::vector<KVView>& views_of(GroupId group) const noexcept {
    return groups_[static_cast<std::size_t>(group.value())];
  }

  CacheSpec spec_;
  // By group: one view of all layers, or one for each layer if they were lent apart.
  std::vector<std::vector<KVView>> groups_;
  std::vector<Region> owned_;  // by group; empty when borrowed
  std::unique_ptr<HostMemory> own_resource_;
  MemoryResource* resource_ = nullptr;
};

}  // namespace kvfolio
