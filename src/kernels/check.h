// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks of arguments that several kernels share. Each answers kInvalidArgument with the name of
// the argument, the value seen and what is allowed, except check_memory(). Exported are those that
// libkvfolio_cuda makes, which stands on this library: they are no interface.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kvfolio/export.h"
#include "kvfolio/kernels.h"
#include "kvfolio/status.h"
#include "kvfolio/view.h"

namespace kvfolio::kernels {

// Memory that the CPU may touch; kUnsupported for any other.
Status check_memory(const KVView& cache);
// A view that kernels may follow: host memory, sizes >= 1, slots that fit int32, pointers and
// strides that are there and aligned, extents that fit 63 bits; scales where the type has them;
// what granule wants.
KVFOLIO_API Status check_view(const KVView& cache);
KVFOLIO_API Status check_layer(const KVView& cache, std::int32_t layer);

// What a call expects of rows.
struct RowsShape {
  std::int32_t num_tokens = 0;
  std::int32_t num_heads = 0;
  std::int32_t head_dim = 0;
  DType cache = DType::kF32;  // where they come from or go to: opaque rows are an opaque cache's

  [[nodiscard]] bool empty() const noexcept {
    return num_tokens == 0 || num_heads == 0 || head_dim == 0;
  }
};
KVFOLIO_API Status check_rows(std::string_view name, const ConstRowsView& rows,
                              const RowsShape& shape);
// And that no two rows overlap, since they are written.
KVFOLIO_API Status check_written_rows(std::string_view name, const RowsView& rows,
                                      const RowsShape& shape);

// 0, or a bound whose inverse f32 holds.
KVFOLIO_API Status check_soft_cap(double soft_cap);

// What the two ask of arguments that plain_args.h does not know at once.
Status check_view_closely(const KVView& cache);
Status check_rows_closely(std::string_view name, const ConstRowsView& rows, const RowsShape& shape);

// copies of blocks: equal counts, every block in range.
KVFOLIO_API Status check_copies(const KVView& cache, std::span<const std::int32_t> src,
                                std::span<const std::int32_t> dst);

// All arguments of a call but what its slots or its block table say, which lie in the memory of a
// device for the kernels there (src/cuda).
KVFOLIO_API Status check_append(const KVView& cache, std::int32_t layer, const ConstRowsView& k,
                                const ConstRowsView& v, std::size_t num_slots);
// args.block_table counts as its size.
KVFOLIO_API Status check_gather(const GatherArgs& args);
KVFOLIO_API Status check_conversion(const KVView& from, const KVView& to,
                                    std::span<const std::int32_t> src,
                                    std::span<const std::int32_t> dst);
// What is said of entry `index` of slots, or of a block table, that names no place.
KVFOLIO_API Status bad_slot(const KVView& cache, std::size_t index, std::int32_t slot);
KVFOLIO_API Status bad_entry(const KVView& cache, std::size_t index, std::int32_t block);

// Rows pass through the stack between two caches of unequal format or type: this many elements.
inline constexpr std::int32_t kStageElements = 4096;

// Slots of the cache: num_blocks * block_size. Requires: check_view(cache).ok().
[[nodiscard]] inline std::int32_t num_slots(const KVView& cache) noexcept {
  KVFOLIO_DCHECK(std::int64_t{cache.num_blocks} * cache.block_size <= INT32_MAX);
  return cache.num_blocks * cache.block_size;
}
// Whether appends write V rows of their own.
[[nodiscard]] inline bool stores_v(const KVView& cache) noexcept {
  return cache.head_dim_v > 0 && !cache.v_is_prefix_of_k;
}

}  // namespace kvfolio::kernels
