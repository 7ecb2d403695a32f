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
  for_each_block_copy(cache, src, dst,
                      [](std::byte* to, const std::byte* from, std::int64_t bytes) {
                        std::memcpy(to, from, static_cast<std::size_t>(bytes));
                      });
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
