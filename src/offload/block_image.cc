// SPDX-License-Identifier: Apache-2.0
//
// The order of an image is that of storage.h, and of spec.h within a tile of format granule.

#include "offload/block_image.h"

#include <algorithm>
#include <cstring>

#include "kvfolio/checked_copy.h"
#include "kvfolio/dtype.h"

namespace kvfolio {
namespace {

constexpr std::int64_t kShortPiece = 4096;  // bytes

// Walks over an image and zeroes what stands behind the first `tokens` tokens of each part.
class TailEraser {
 public:
  TailEraser(const GroupSpec& group, std::int32_t tokens, std::byte* at) noexcept
      : group_(group), tokens_(tokens), at_(at) {}

  // `size` bytes for each token, one behind the other.
  void rows(std::int64_t size) noexcept {
    erase(size * tokens_, size * (group_.block_size - tokens_));
    at_ += size * group_.block_size;
  }
  // Tiles of [head_dim / g][16 tokens][g].
  void tiles_of_k(std::int64_t head_dim, std::int64_t element, std::int32_t g) noexcept {
    const std::int64_t granule = element * g;
    for (std::int32_t first = 0; first < group_.block_size; first += kGranuleTokens) {
      const std::int32_t kept = kept_of_tile(first);
      for (std::int64_t column = 0; column < head_dim / g; ++column) {
        erase(granule * kept, granule * (kGranuleTokens - kept));
        at_ += granule * kGranuleTokens;
      }
    }
  }
  // Tiles of [16 / g][head_dim][g tokens].
  void tiles_of_v(std::int64_t head_dim, std::int64_t element, std::int32_t g) noexcept {
    for (std::int32_t first = 0; first < group_.block_size; first += g) {
      const std::int32_t kept = std::clamp(tokens_ - first, 0, g);
      for (std::int64_t dim = 0; dim < head_dim; ++dim) {
        erase(element * kept, element * (g - kept));
        at_ += element * g;
      }
    }
  }

  [[nodiscard]] const std::byte* at() const noexcept { return at_; }

 private:
  [[nodiscard]] std::int32_t kept_of_tile(std::int32_t first) const noexcept {
    return std::clamp(tokens_ - first, 0, kGranuleTokens);
  }
  void erase(std::int64_t offset, std::int64_t bytes) noexcept {
    KVFOLIO_DCHECK(offset >= 0 && bytes >= 0);
    std::memset(at_ + offset, 0, static_cast<std::size_t>(bytes));
  }

  const GroupSpec& group_;
  std::int32_t tokens_;
  std::byte* at_;
};

std::int32_t elements_of_granule(DType dtype) noexcept {
  if (dtype == DType::kBF16) return 2;
  return dtype == DType::kInt8 ? 4 : 1;
}

}  // namespace

void zero_behind(const GroupSpec& group, std::int32_t tokens, std::span<std::byte> image) noexcept {
  const bool has_v = group.head_dim_v > 0 && !group.v_is_prefix_of_k;
  const std::int64_t element = dtype_bytes(group.dtype);
  const std::int64_t scale = has_scales(group.dtype) ? 4 : 0;
  // In NHD a token has its heads together; else each head has its own rows.
  const bool nhd = group.format == Format::kNhd;
  const std::int64_t together = nhd ? group.num_kv_heads : 1;
  const std::int64_t parts = std::int64_t{group.num_layers} * (nhd ? 1 : group.num_kv_heads);
  const std::int32_t g = elements_of_granule(group.dtype);
  KVFOLIO_DCHECK(tokens >= 0 && tokens <= group.block_size);
  TailEraser eraser(group, tokens, image.data());
  for (std::int64_t i = 0; i < parts; ++i) {
    if (group.format == Format::kGranule) {
      eraser.tiles_of_k(group.head_dim_k, element, g);
      if (has_v) eraser.tiles_of_v(group.head_dim_v, element, g);
    } else {
      eraser.rows(together * group.head_dim_k * element);
      if (has_v) eraser.rows(together * group.head_dim_v * element);
    }
    eraser.rows(together * scale);
    if (has_v) eraser.rows(together * scale);
  }
  KVFOLIO_CHECK(eraser.at() == image.data() + image.size());
}

std::span<const BlockImages::Piece> BlockImages::pieces(GroupId group, BlockId block) {
  auto count = storage_.image_runs(group, block.value(), 0, runs_);
  if (count && static_cast<std::size_t>(*count) > runs_.size()) {
    runs_.resize(static_cast<std::size_t>(*count));
    count = storage_.image_runs(group, block.value(), 0, runs_);
  }
  pieces_.clear();
  reads_.clear();
  if (!count || storage_.block_image_bytes(group) / *count < kShortPiece) return {};
  for (const KVStorage::ImageRun& run : std::span(runs_).first(static_cast<std::size_t>(*count))) {
    pieces_.emplace_back(run.memory, static_cast<std::size_t>(run.bytes));
    reads_.push_back({nullptr, run.memory, run.bytes});
  }
  return pieces_;
}

}  // namespace kvfolio
