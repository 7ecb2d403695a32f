// SPDX-License-Identifier: Apache-2.0

// Copies without new tokens. copy_blocks() copies blocks within a cache, byte for byte, in as few
// runs as the strides allow (row_nest.h). convert_blocks() goes to a cache of another format or
// element type: rows pass through the stack (rows.h). convert() is for rows outside of a cache
// (move.h).

#include <algorithm>
#include <cstring>

#include "base/row_nest.h"
#include "kernels/check.h"
#include "kernels/convert.h"
#include "kernels/move.h"
#include "kernels/rows.h"
#include "kvfolio/kernels.h"

namespace kvfolio {

Status copy_blocks(const KVView& cache, std::span<const std::int32_t> src,
                   std::span<const std::int32_t> dst) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_copies(cache, src, dst));
  for_each_block_copy(cache, src, dst,
                      [](std::byte* to, const std::byte* from, std::int64_t bytes) {
                        std::memcpy(to, from, static_cast<std::size_t>(bytes));
                      });
  return {};
}

namespace {

using kernels::kStageElements;

// K or V of one block of one layer.
void convert_plane(kernels::Plane from, kernels::Plane to, const KVView& shape,
                   std::int32_t src_block, std::int32_t dst_block) {
  const bool raw = from.is_scaled() && from.dtype == to.dtype;
  const std::uint8_t turn = raw ? from.flip() ^ to.flip() : 0;
  from.raw = to.raw = raw;
  const DType staged = from.is_scaled() ? DType::kF32 : from.dtype;
  const kernels::RowReader reader(from, staged);
  const kernels::RowWriter writer(to, staged);
  alignas(64) std::byte stage[static_cast<std::size_t>(kStageElements) * sizeof(double)];
  const std::int64_t row_bytes = std::int64_t{from.head_dim} * dtype_bytes(staged);
  const std::int32_t most = std::min(kGranuleTokens, kStageElements / from.head_dim);
  kernels::RowBox box;
  for (box.head = 0; box.head < shape.num_kv_heads; ++box.head) {
    for (box.offset = 0; box.offset < shape.block_size; box.offset += box.num_tokens) {
      box.num_tokens = std::min(most, shape.block_size - box.offset);
      box.block = src_block;
      reader.read(box, stage, {row_bytes, 0});
      for (std::int64_t i = 0; turn != 0 && i < box.num_tokens * row_bytes; ++i) {
        stage[i] ^= std::byte{turn};
      }
      box.block = dst_block;
      writer.write(box, stage, {row_bytes, 0});
      for (std::int32_t t = 0; raw && t < box.num_tokens; ++t) {
        std::memcpy(to.scale_at(dst_block, box.head, box.offset + t),
                    from.scale_at(src_block, box.head, box.offset + t), sizeof(float));
      }
    }
  }
}

}  // namespace

Status convert_blocks(const KVView& from, const KVView& to, std::span<const std::int32_t> src,
                      std::span<const std::int32_t> dst) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_conversion(from, to, src, dst));
  for (std::int32_t layer = 0; layer < to.num_layers; ++layer) {
    for (std::size_t i = 0; i < src.size(); ++i) {
      convert_plane(kernels::k_plane(from, layer), kernels::k_plane(to, layer), to, src[i], dst[i]);
      if (!kernels::stores_v(to)) continue;
      convert_plane(kernels::v_plane(from, layer), kernels::v_plane(to, layer), to, src[i], dst[i]);
    }
  }
  return {};
}

Status convert(const ConstRowsView& src, const RowsView& dst) {
  const kernels::RowsShape shape{src.num_tokens, src.num_heads, src.head_dim};
  if (shape.num_tokens < 0 || shape.num_heads < 0 || shape.head_dim < 0) {
    return kernels::check_rows("src", src, {0, 0, 0});
  }
  KVFOLIO_RETURN_IF_ERROR(kernels::check_rows("src", src, shape));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_written_rows("dst", dst, shape));
  if (shape.num_tokens == 0 || shape.num_heads == 0 || shape.head_dim == 0) return {};
  kernels::move_box(kernels::Mover(src.dtype, dst.dtype),
                    {shape.num_tokens, shape.num_heads, shape.head_dim}, src.data,
                    {src.token_stride, src.head_stride}, dst.data,
                    {dst.token_stride, dst.head_stride}, kernels::Follow::kDestination);
  return {};
}

}  // namespace kvfolio
