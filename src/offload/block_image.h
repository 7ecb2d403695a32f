// SPDX-License-Identifier: Apache-2.0
#pragma once

// Images of blocks (KVStorage) on their way out of a cache and back into it: what lies behind a
// block's last token stays here, and memory is read once where the CPU may touch it. Thread safety:
// none.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/memory.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/storage.h"

namespace kvfolio {

// Zeroes all bytes of an image that belong to tokens [tokens, block_size): rows and scales that an
// earlier owner of the block may have left there. Requires: the size of an image of the group.
void zero_behind(const GroupSpec& group, std::int32_t tokens, std::span<std::byte> image) noexcept;

class BlockImages {
 public:
  using Piece = std::span<std::byte>;

  explicit BlockImages(KVStorage& storage) noexcept : storage_(storage) {}

  // Where the pieces of a block lie, in the order of its image; empty if the CPU may not touch
  // them, or if they are so short that an image is moved faster as a whole. Valid until the next
  // call.
  std::span<const Piece> pieces(GroupId group, BlockId block);
  // The pieces that were asked for last, for a checksum.
  [[nodiscard]] std::span<const CopyRun> reads() const noexcept { return reads_; }

 private:
  KVStorage& storage_;
  std::vector<KVStorage::ImageRun> runs_;
  std::vector<Piece> pieces_;
  std::vector<CopyRun> reads_;
};

}  // namespace kvfolio
