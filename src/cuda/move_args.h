// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the kernels that move rows and blocks are told. Plain values, passed to a kernel as they
// are; the host makes them (move.cc) and has checked all that does not lie in device memory. Bytes,
// and 64-bit strides: a layer may be larger than 64 GiB. Knows no CUDA.

#include <bit>
#include <cstdint>

#include "cuda/element.h"
#include "kvfolio/spec.h"

namespace kvfolio::cuda {

// n / divisor by a multiplication, for n < 2^31. With 2^s the first power of two that is not below
// the divisor, magic = ceil(2^(31+s) / divisor) is too large by less than 2^s / 2^(31+s) = 2^-31 of
// the quotient's unit for each unit of n: too little to carry it over the next whole number.
struct Divider {
  std::uint32_t divisor = 1;
  std::uint32_t magic = std::uint32_t{1} << 31;
  std::uint32_t shift = 31;

  Divider() = default;
  // Requires: 1 <= by < 2^31.
  explicit constexpr Divider(std::uint32_t by) noexcept : divisor(by) {
    const std::uint32_t s = static_cast<std::uint32_t>(std::bit_width(by - 1));
    shift = 31 + s;
    magic = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + by - 1) / by);
  }
};

// K rows or V rows of one layer of a cache, or of all of them.
struct PlaneArgs {
  char* data = nullptr;
  long long layer = 0, block = 0, head = 0, token = 0;
  char* scales = nullptr;  // of elements that have them
  long long scale_layer = 0, scale_block = 0, scale_head = 0, scale_token = 0;
  std::uint32_t units = 0;  // of a row, 8 elements each; 0: this plane is left alone
};

// Rows of an engine.
struct RowsArgs {
  char* data = nullptr;
  long long layer = 0, token = 0, head = 0;
};

// The first entry of device memory that named no place, as index * 2^32 + its bits; kNoFault: none.
inline constexpr unsigned long long kNoFault = ~0ull;
// In device memory, kNoFault before the call. Null: nothing is reported.
using Fault = unsigned long long*;

struct AppendArgs {
  PlaneArgs k, v;
  RowsArgs k_rows, v_rows;
  const std::int32_t* slots = nullptr;
  unsigned long long* fault = nullptr;
  std::uint32_t first_token = 0;  // of this launch; rows and slots begin at token 0
  std::uint32_t num_rows = 0;     // tokens x heads of this launch
  std::int32_t num_slots = 0;     // of the cache
  std::uint32_t lanes = 1;        // quantizing kernels: threads of a row, a power of 2
  Divider per_row;                // other kernels: units of a row
  Divider heads;
  Divider block_size;
};

struct GatherArgs {
  PlaneArgs k, v;
  RowsArgs k_rows, v_rows;
  const std::int32_t* table = nullptr;
  unsigned long long* fault = nullptr;
  std::uint32_t first = 0;        // position of row 0
  std::uint32_t first_token = 0;  // of this launch
  std::uint32_t num_rows = 0;
  std::int32_t num_blocks = 0;
  Divider per_row;
  Divider heads;
  Divider block_size;
};

// An address of device memory, as the driver has it.
using DeviceBytes = unsigned long long;

struct Pair {
  std::int32_t src = 0;
  std::int32_t dst = 0;
};
// The arguments of one launch. They travel in the kernel's parameters, so that no buffer must
// outlive the call.
inline constexpr int kMaxPairs = 256;

struct ConvertArgs {
  PlaneArgs k_from, v_from, k_to, v_to;
  std::uint32_t num_rows = 0;  // block_size x heads
  std::uint32_t lanes = 1;
  Divider per_row;
  Divider heads;
  Pair pairs[kMaxPairs];
};

// K, V or scales of a block of one layer: units of `width` bytes, rows of them, rows along two
// axes.
struct PartArgs {
  char* data = nullptr;
  long long layer = 0, block = 0, outer = 0, inner = 0;
  // Images of blocks: where the part begins, and its own strides.
  long long image = 0, image_outer = 0, image_inner = 0;
  std::uint32_t width = 16;
  std::uint32_t units = 0;  // of a block and layer
  Divider per_row;
  Divider inner_rows;
};

struct BlocksArgs {
  PartArgs parts[4];
  std::uint32_t num_parts = 0;
  std::uint32_t units = 0;  // of all parts
  char* images = nullptr;
  long long image_block = 0, image_layer = 0;
  std::uint32_t value = 0;        // of fill: the byte, four times
  std::uint32_t first_block = 0;  // of fill
  Pair pairs[kMaxPairs];          // of a copy: blocks; of images: {block, image}
};

// A run of bytes of device memory and its place in a staging buffer, a multiple of 16.
struct StagedRun {
  DeviceBytes memory = 0;
  std::uint32_t at = 0;
  std::uint32_t bytes = 0;
};
inline constexpr int kMaxRuns = 128;

struct RunsArgs {
  DeviceBytes stage = 0;
  StagedRun runs[kMaxRuns];
};

// table[rows[i]][columns[i]] = blocks[i]
struct ScatterArgs {
  std::int32_t* table = nullptr;
  const std::int32_t* rows = nullptr;
  const std::int32_t* columns = nullptr;
  const std::int32_t* blocks = nullptr;
  unsigned long long* fault = nullptr;
  long long row_stride = 0;  // entries
  std::uint32_t count = 0;
  std::int32_t num_rows = 0;
  std::int32_t num_columns = 0;
};

// An entry of a table that stays on the device, see plan_image.h.
struct alignas(16) ChangedEntry {
  std::int32_t group = 0;
  std::int32_t row = 0;
  std::int32_t column = 0;
  std::int32_t block = 0;
};

// What two kernels make of a plan that lies on the device. Host checks: rows, columns, and that the
// pages of each sequence fit. Each array of a step has an entry for padding, too.
struct PlanGroupArgs {
  std::int32_t* table = nullptr;    // [rows, stride], resident
  std::int32_t* batch = nullptr;    // [num_sequences, stride]; null: not wanted
  std::int32_t* indices = nullptr;  // FlashInfer's; null: not wanted
  const std::int32_t* indptr = nullptr;
  const std::int32_t* first_live = nullptr;
  const std::int32_t* front_at = nullptr;  // where the pages of each sequence's front begin
  std::int32_t stride = 0;
  std::int32_t block_size = 1;
};
struct PlanArgs {
  const ChangedEntry* entries = nullptr;
  const std::int32_t* num_entries = nullptr;  // in device memory: a graph keeps these arguments
  const std::int32_t* rows = nullptr;         // -1: padding
  const std::int32_t* kv_lens = nullptr;
  std::int32_t pad = -1;  // of tables; the pages of fronts lie behind the entries
  PlanGroupArgs groups[kMaxGroups];
};

}  // namespace kvfolio::cuda
