// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/row_nest.h"
#include "kernels/check.h"
#include "kernels/convert.h"
#include "kernels/move.h"
#include "kvfolio/kernels.h"

namespace kvfolio {

Status copy_blocks(const KVView& cache, std::span<const std::int32_t> src,
                   std::span<const std::int32_t> dst) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_view(cache));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_copies(cache, src, dst));
  const BlockRuns runs = block_runs(cache);
  for (std::int32_t layer = 0; layer < cache.num_layers; ++layer) {
    for (std::size_t i = 0; i < src.size(); ++i) {
      if (src[i] == dst[i]) continue;
      for (int p = 0; p < runs.num_parts; ++p) {
        const BlockRuns::Part& part = runs.parts[static_cast<std::size_t>(p)];
        std::byte* base = part.base + layer * part.strides.layer;
        const std::byte* from = base + src[i] * part.strides.block;
        std::byte* to = base + dst[i] * part.strides.block;
        for_each_run(part.runs, [&](std::int64_t offset) {
          std::memcpy(to + offset, from + offset, static_cast<std::size_t>(part.runs.row_bytes));
        });
      }
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
