// SPDX-License-Identifier: Apache-2.0
#pragma once

// One sequence of vectors: a cache of `num_elements` doubles for each token and nothing else.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "engine.h"
#include "kvfolio/kernels.h"
#include "kvfolio/manager.h"
#include "kvfolio/storage.h"

namespace kvfolio::parity {

using testing_engine::must;

inline std::byte* bytes(double* data) { return reinterpret_cast<std::byte*>(data); }
inline const std::byte* bytes(const double* data) {
  return reinterpret_cast<const std::byte*>(data);
}

// A cache of one f64 vector per token: one layer, one head, no V.
inline KVCacheManager vector_cache(std::int32_t num_elements, std::int32_t num_blocks,
                                   std::int32_t block_size = 16) {
  GroupSpec group{.head_dim_k = num_elements, .head_dim_v = 0, .block_size = block_size};
  group.dtype = DType::kF64;
  group.num_blocks = num_blocks;
  return must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{group}}))));
}

// Appends rows of num_elements doubles, all or none of them; a rest is an error.
inline Status append_rows(KVCacheManager& cache, SequenceId sequence,
                          std::span<const double> rows) {
  const std::int32_t num_elements = cache.spec().groups[0].head_dim_k;
  const std::int32_t row_bytes = num_elements * 8;
  const std::int64_t count = std::ssize(rows) / num_elements;
  if (rows.size() % static_cast<std::size_t>(num_elements) != 0) {
    return {ErrorCode::kInvalidArgument, std::to_string(rows.size()) + " numbers are no rows of " +
                                             std::to_string(num_elements)};
  }
  const Ticket step = must(cache.begin_step());
  if (Status status = cache.append_unnamed(sequence, count); !status.ok()) {
    must(cache.drop(step));
    return status;
  }
  const StepPlan& plan = *must(cache.plan({.block_tables = false}));
  must(cache.run_copies());  // copy-on-write, when the last block is shared
  const ConstRowsView k(bytes(rows.data()), row_bytes, row_bytes, static_cast<std::int32_t>(count),
                        1, num_elements, DType::kF64);
  must(append(must(cache.storage()->view(GroupId(0))), 0, k, {}, plan.groups[0].slot_mapping));
  return cache.finish(step);
}

// Rows [first, first + count) of a sequence, contiguous: [count, num_elements].
inline Result<std::vector<double>> rows_of(KVCacheManager& cache, SequenceId sequence,
                                           std::int32_t first, std::int32_t count) {
  const std::int32_t num_elements = cache.spec().groups[0].head_dim_k;
  std::vector<double> rows(static_cast<std::size_t>(std::max(count, 0)) *
                           static_cast<std::size_t>(num_elements));
  GatherArgs args{.cache = must(cache.storage()->view(GroupId(0)))};
  args.block_table = must(cache.block_table(sequence, GroupId(0)));
  args.length = must(cache.info(sequence)).length;
  args.first = first;
  args.count = count;
  args.k = {bytes(rows.data()), num_elements * 8, num_elements * 8, count, 1,
            num_elements,       DType::kF64};
  KVFOLIO_RETURN_IF_ERROR(gather(args));
  return rows;
}

inline std::vector<double> numbers(double first, int count) {
  std::vector<double> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)] = first + i;
  return all;
}

}  // namespace kvfolio::parity
