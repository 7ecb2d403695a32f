// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels that move bytes and know no element: copies of blocks within a cache, fills, images of
// blocks in a staging buffer (one memcpy then carries what would be thousands of runs), and the
// entries of a block table that changed. See BlocksArgs: a thread takes kUnitsOfThread units of at
// most 16 bytes, wherever strides put them.

#include "cuda/move.cuh"

namespace kvfolio::cuda {

constexpr int kUnitsOfThread = 4;  // unless a template argument says another number

enum class BlocksOp { kCopy, kFill, kPack, kUnpack };

// `width` bytes in the low end.
template <bool kWide>
__device__ __forceinline__ uint4 load_width(const char* at, std::uint32_t width) {
  if (kWide || width == 16) return load16(at);
  uint4 v = make_uint4(0, 0, 0, 0);
  if (width == 8) {
    const uint2 x = load8(at);
    v.x = x.x;
    v.y = x.y;
  } else if (width == 4) {
    v.x = *reinterpret_cast<const std::uint32_t*>(at);
  } else if (width == 2) {
    v.x = *reinterpret_cast<const std::uint16_t*>(at);
  } else {
    v.x = *reinterpret_cast<const std::uint8_t*>(at);
  }
  return v;
}
template <bool kWide>
__device__ __forceinline__ void store_width(char* at, const uint4& v, std::uint32_t width) {
  if (kWide || width == 16) {
    store16(at, v);
  } else if (width == 8) {
    store8(at, make_uint2(v.x, v.y));
  } else if (width == 4) {
    *reinterpret_cast<std::uint32_t*>(at) = v.x;
  } else if (width == 2) {
    *reinterpret_cast<std::uint16_t*>(at) = static_cast<std::uint16_t>(v.x);
  } else {
    *reinterpret_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(v.x);
  }
}

// Where a unit of a block and layer lies, without the block.
struct PlacedUnit {
  char* at = nullptr;
  long long block = 0;  // stride
  long long image = 0;
  std::uint32_t width = 16;
};
__device__ __forceinline__ PlacedUnit place_unit(const BlocksArgs& a, std::uint32_t unit,
                                                 std::uint32_t layer) {
  std::uint32_t p = 0;
  while (p + 1 < a.num_parts && unit >= a.parts[p].units) unit -= a.parts[p++].units;
  const PartArgs& part = a.parts[p];
  const std::uint32_t row = quotient(unit, part.per_row),
                      in_row = unit - row * part.per_row.divisor;
  const std::uint32_t outer = quotient(row, part.inner_rows),
                      inner = row - outer * part.inner_rows.divisor;
  const long long byte = static_cast<long long>(in_row) * part.width;
  PlacedUnit placed;
  placed.at = part.data + layer * part.layer + outer * part.outer + inner * part.inner + byte;
  placed.block = part.block;
  placed.image = part.image + outer * part.image_outer + inner * part.image_inner + byte;
  placed.width = part.width;
  return placed;
}

// blockIdx.y is the layer, blockIdx.z the pair, or the block of a fill.
template <BlocksOp kOp, bool kWide, int kUnits = kUnitsOfThread>
__device__ __forceinline__ void move_blocks(const BlocksArgs& a) {
  const std::uint32_t first = blockIdx.x * kThreads * kUnits + threadIdx.x;
  Pair pair;
  if constexpr (kOp != BlocksOp::kFill) pair = a.pairs[blockIdx.z];
  const long long layer = blockIdx.y;
  char* const image = a.images + pair.dst * a.image_block + layer * a.image_layer;
  uint4 x[kUnits];
  char* to[kUnits];
  std::uint32_t width[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    const std::uint32_t unit = first + static_cast<std::uint32_t>(j) * kThreads;
    to[j] = nullptr;
    if (unit >= a.units) continue;
    const PlacedUnit u = place_unit(a, unit, blockIdx.y);
    width[j] = u.width;
    if constexpr (kOp == BlocksOp::kFill) {
      to[j] = u.at + static_cast<long long>(a.first_block + blockIdx.z) * u.block;
      x[j] = make_uint4(a.value, a.value, a.value, a.value);
    } else {
      const char* const from =
          kOp == BlocksOp::kUnpack ? image + u.image : u.at + pair.src * u.block;
      to[j] = kOp == BlocksOp::kCopy   ? u.at + pair.dst * u.block
              : kOp == BlocksOp::kPack ? image + u.image
                                       : u.at + pair.src * u.block;
      x[j] = load_width<kWide>(from, u.width);
    }
  }
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    if (to[j] != nullptr) store_width<kWide>(to[j], x[j], width[j]);
  }
}

// blockIdx.y is the run. kIn: from the stage to memory.
template <bool kIn>
__device__ __forceinline__ void move_runs(const RunsArgs& a) {
  const StagedRun run = a.runs[blockIdx.y];
  const auto odd = static_cast<std::uint32_t>(run.memory) | run.bytes;
  const std::uint32_t width = odd % 16 == 0  ? 16
                              : odd % 8 == 0 ? 8
                              : odd % 4 == 0 ? 4
                              : odd % 2 == 0 ? 2
                                             : 1;
  const std::uint32_t units = run.bytes / width;
  char* const memory = reinterpret_cast<char*>(run.memory);
  char* const stage = reinterpret_cast<char*>(a.stage + run.at);
  for (std::uint32_t first = blockIdx.x * kThreads * kUnitsOfThread + threadIdx.x; first < units;
       first += gridDim.x * kThreads * kUnitsOfThread) {
    uint4 x[kUnitsOfThread];
#pragma unroll
    for (int j = 0; j < kUnitsOfThread; ++j) {
      const std::uint32_t unit = first + static_cast<std::uint32_t>(j) * kThreads;
      if (unit < units) {
        x[j] =
            load_width<false>((kIn ? stage : memory) + static_cast<long long>(unit) * width, width);
      }
    }
#pragma unroll
    for (int j = 0; j < kUnitsOfThread; ++j) {
      const std::uint32_t unit = first + static_cast<std::uint32_t>(j) * kThreads;
      if (unit < units) {
        store_width<false>((kIn ? memory : stage) + static_cast<long long>(unit) * width, x[j],
                           width);
      }
    }
  }
}

__device__ __forceinline__ void scatter_entries(const ScatterArgs& a) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= a.count) return;
  const std::int32_t row = a.rows[i], column = a.columns[i];
  if (row < 0 || row >= a.num_rows) return report(a.fault, i, row);
  if (column < 0 || column >= a.num_columns) return report(a.fault, i, column);
  a.table[row * a.row_stride + column] = a.blocks[i];
}

// ---- the plan of a step --------------------------------------------------------------------------

// The grid is the same at each step, the count is not.
__device__ __forceinline__ void set_plan_entries(const PlanArgs& a) {
  const std::uint32_t count = static_cast<std::uint32_t>(*a.num_entries);
  for (std::uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    const ChangedEntry entry = a.entries[i];
    const PlanGroupArgs& group = a.groups[entry.group];
    group.table[static_cast<long long>(entry.row) * group.stride + entry.column] = entry.block;
  }
}

// blockIdx.x is the sequence, blockIdx.y the group: its row in the order of the plan, and its pages.
// Pages behind the gap are one run of columns. Those in front of it need not be: where a window has
// gone into the sinks of a trim they begin anywhere, and the table's entries of dropped blocks name
// what others have by now. So these pages came with the plan.
__device__ __forceinline__ void make_plan_rows(const PlanArgs& a) {
  const PlanGroupArgs& group = a.groups[blockIdx.y];
  const std::int32_t row = a.rows[blockIdx.x], length = a.kv_lens[blockIdx.x];
  const std::int32_t stride = group.stride;
  const std::int32_t last = row < 0 || length == 0 ? -1 : (length - 1) / group.block_size;
  const std::int32_t* const from = group.table + static_cast<long long>(row < 0 ? 0 : row) * stride;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  if (group.batch != nullptr) {
    std::int32_t* const to = group.batch + static_cast<long long>(blockIdx.x) * stride;
    for (std::int32_t c = thread; c < stride; c += static_cast<std::int32_t>(kThreads)) {
      to[c] = c <= last ? from[c] : a.pad;
    }
  }
  if (group.indices == nullptr) return;
  const std::int32_t begin = group.indptr[blockIdx.x];
  const std::int32_t pages = group.indptr[blockIdx.x + 1] - begin;
  const std::int32_t first_live = group.first_live[blockIdx.x] / group.block_size;
  const std::int32_t num_front = pages - (last - first_live + 1);
  const std::int32_t* const front =
      reinterpret_cast<const std::int32_t*>(a.entries + *a.num_entries) +
      group.front_at[blockIdx.x];
  for (std::int32_t j = thread; j < pages; j += static_cast<std::int32_t>(kThreads)) {
    group.indices[begin + j] = j < num_front ? front[j] : from[first_live + j - num_front];
  }
}

}  // namespace kvfolio::cuda
