// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels that move rows: append (rows to slots), gather (a range of a sequence to rows), convert
// (blocks of one cache to blocks of another). One body for each way a row is made: as it is or
// element by element ("plain": a thread takes units of 8 elements and knows no neighbour), or
// quantized (a group of lanes holds a row, since its scale depends on all of it).
//
// What bounds them is memory, so a thread asks for all it will move before it stores the first
// byte: kBatch units of K and of V. A place that device memory names and that does not exist is
// left alone and reported.

#include "cuda/elements.cuh"

namespace kvfolio::cuda {

constexpr unsigned kThreads = 256;

// The entry with the lowest index wins, so the report does not depend on the order of threads.
__device__ __forceinline__ void report(unsigned long long* fault, std::uint32_t index,
                                       std::int32_t value) {
  if (fault == nullptr) return;
  atomicMin(fault,
            static_cast<unsigned long long>(index) << 32 | static_cast<std::uint32_t>(value));
}

__device__ __forceinline__ char* row_at(const PlaneArgs& plane, std::uint32_t block,
                                        std::uint32_t head, std::uint32_t offset) {
  return plane.data + block * plane.block + head * plane.head + offset * plane.token;
}
__device__ __forceinline__ float* scale_at(const PlaneArgs& plane, std::uint32_t block,
                                           std::uint32_t head, std::uint32_t offset) {
  return reinterpret_cast<float*>(plane.scales + block * plane.scale_block +
                                  head * plane.scale_head + offset * plane.scale_token);
}
__device__ __forceinline__ const char* row_at(const RowsArgs& rows, std::uint32_t token,
                                              std::uint32_t head) {
  return rows.data + token * rows.token + head * rows.head;
}

template <Element kFrom, Element kTo>
__device__ __forceinline__ UnitOf<kTo> converted(const UnitOf<kFrom>& u, float scale) {
  if constexpr (kFrom == kTo) {
    return u;
  } else {
    float x[kUnit];
    values_of<kFrom>(u, scale, x);
    return unit_of<kTo>(x);
  }
}

// ---- a row over a group of lanes ----------------------------------------------------------------

// Unit j of a lane is unit lane + j * lanes of the row.
template <Element kFrom, Element kTo, int kUnits, bool kAligned>
struct QuantizedRow {
  UnitOf<kFrom> unit[kUnits];

  __device__ __forceinline__ void load(const char* row, std::uint32_t lane, std::uint32_t lanes,
                                       std::uint32_t units) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const std::uint32_t c = lane + static_cast<std::uint32_t>(j) * lanes;
      unit[j] = UnitOf<kFrom>{};
      if (c < units) unit[j] = load_unit<kFrom, kAligned>(row + c * kUnitBytes<kFrom>);
    }
  }

  // Every lane of the warp is here, whatever it stores. row_scale: of a row that is quantized
  // itself.
  __device__ __forceinline__ void store(char* row, float* scale, bool stores, std::uint32_t lane,
                                        std::uint32_t lanes, std::uint32_t units,
                                        float row_scale) const {
    std::uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const std::uint32_t m = most_of<kFrom>(unit[j], row_scale);
      most = m > most ? m : most;
    }
    for (std::uint32_t turn = lanes / 2; turn >= 1; turn /= 2) {
      const std::uint32_t m = __shfl_xor_sync(0xffffffffu, most, turn);
      most = m > most ? m : most;
    }
    const Quantizer q = quantizer_of<kTo>(most);
    if (!stores) return;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const std::uint32_t c = lane + static_cast<std::uint32_t>(j) * lanes;
      if (c >= units) continue;
      float x[kUnit];
      values_of<kFrom>(unit[j], row_scale, x);
      store_unit<kTo, kAligned>(row + c * kUnitBytes<kTo>, quantized<kTo>(x, q));
    }
    if (lane == 0) *scale = q.scale;
  }
};

// ---- append -------------------------------------------------------------------------------------

// What slots[token] says: -1 if the token is skipped.
__device__ __forceinline__ std::int32_t checked_slot(const AppendArgs& a, std::uint32_t token,
                                                     std::int32_t slot) {
  if (slot >= -1 && slot < a.num_slots) return slot;
  report(a.fault, token, slot);
  return -1;
}

template <Element kFrom, Element kTo, int kBatch, bool kAligned>
__device__ __forceinline__ void append_plain(const AppendArgs& a) {
  UnitOf<kFrom> k[kBatch], v[kBatch];
  std::int32_t slot[kBatch];
  std::uint32_t token[kBatch], head[kBatch], unit[kBatch];
  // Rows are asked for before the slots are known, and no slot is looked at before all is asked
  // for.
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const std::uint32_t i =
        (blockIdx.x * kBatch + static_cast<std::uint32_t>(j)) * kThreads + threadIdx.x;
    const std::uint32_t row = quotient(i, a.per_row);
    const std::uint32_t t = quotient(row, a.heads);
    token[j] = a.first_token + t;
    unit[j] = i - row * a.per_row.divisor;
    head[j] = row - t * a.heads.divisor;
    slot[j] = -1;
    if (row < a.num_rows) {
      slot[j] = a.slots[token[j]];
      if (unit[j] < a.k.units) {
        k[j] = load_unit<kFrom, kAligned>(row_at(a.k_rows, token[j], head[j]) +
                                          unit[j] * kUnitBytes<kFrom>);
      }
      if (unit[j] < a.v.units) {
        v[j] = load_unit<kFrom, kAligned>(row_at(a.v_rows, token[j], head[j]) +
                                          unit[j] * kUnitBytes<kFrom>);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const std::int32_t checked = checked_slot(a, token[j], slot[j]);
    if (checked < 0) continue;
    const auto s = static_cast<std::uint32_t>(checked);
    const std::uint32_t block = quotient(s, a.block_size);
    const std::uint32_t offset = s - block * a.block_size.divisor;
    if (unit[j] < a.k.units) {
      store_unit<kTo, kAligned>(row_at(a.k, block, head[j], offset) + unit[j] * kUnitBytes<kTo>,
                                converted<kFrom, kTo>(k[j], 1.0f));
    }
    if (unit[j] < a.v.units) {
      store_unit<kTo, kAligned>(row_at(a.v, block, head[j], offset) + unit[j] * kUnitBytes<kTo>,
                                converted<kFrom, kTo>(v[j], 1.0f));
    }
  }
}

template <Element kFrom, Element kTo, int kUnits, bool kAligned>
__device__ __forceinline__ void append_quantized(const AppendArgs& a) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const std::uint32_t lane = i & (a.lanes - 1);
  const std::uint32_t row = i / a.lanes;
  const bool in = row < a.num_rows;
  const std::uint32_t t = in ? quotient(row, a.heads) : 0;
  const std::uint32_t head = in ? row - t * a.heads.divisor : 0, token = a.first_token + t;
  QuantizedRow<kFrom, kTo, kUnits, kAligned> k, v;
  k.load(row_at(a.k_rows, token, head), lane, a.lanes, in ? a.k.units : 0);
  v.load(row_at(a.v_rows, token, head), lane, a.lanes, in ? a.v.units : 0);
  const std::int32_t slot = in ? checked_slot(a, token, a.slots[token]) : -1;
  const bool stores = slot >= 0;
  const std::uint32_t s = stores ? static_cast<std::uint32_t>(slot) : 0;
  const std::uint32_t block = quotient(s, a.block_size), offset = s - block * a.block_size.divisor;
  // What is left out, is left out by all lanes.
  if (a.k.units != 0) {
    k.store(row_at(a.k, block, head, offset), scale_at(a.k, block, head, offset), stores, lane,
            a.lanes, a.k.units, 1.0f);
  }
  if (a.v.units == 0) return;
  v.store(row_at(a.v, block, head, offset), scale_at(a.v, block, head, offset), stores, lane,
          a.lanes, a.v.units, 1.0f);
}

// ---- gather -------------------------------------------------------------------------------------

// blockIdx.y is the layer.
template <Element kFrom, Element kTo, int kBatch, bool kAligned>
__device__ __forceinline__ void gather_plain(const GatherArgs& a) {
  UnitOf<kFrom> k[kBatch], v[kBatch];
  float k_scale[kBatch], v_scale[kBatch];
  std::int32_t block[kBatch];
  std::uint32_t logical[kBatch], offset[kBatch], token[kBatch], head[kBatch], unit[kBatch];
  bool found[kBatch];
  const long long layer = blockIdx.y;
  // All entries of the table are asked for, then all rows, before one is looked at.
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    const std::uint32_t i =
        (blockIdx.x * kBatch + static_cast<std::uint32_t>(j)) * kThreads + threadIdx.x;
    const std::uint32_t row = quotient(i, a.per_row);
    const std::uint32_t t = quotient(row, a.heads);
    token[j] = a.first_token + t;
    unit[j] = i - row * a.per_row.divisor;
    head[j] = row - t * a.heads.divisor;
    const std::uint32_t position = a.first + token[j];
    logical[j] = quotient(position, a.block_size);
    offset[j] = position - logical[j] * a.block_size.divisor;
    found[j] = row < a.num_rows;
    block[j] = 0;
    if (found[j]) block[j] = a.table[logical[j]];
  }
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    k_scale[j] = v_scale[j] = 1.0f;
    const bool there = block[j] >= 0 && block[j] < a.num_blocks;
    if (!there) report(a.fault, logical[j], block[j]);
    found[j] = found[j] && there;
    if (!found[j]) continue;
    const auto b = static_cast<std::uint32_t>(block[j]);
    if (unit[j] < a.k.units) {
      k[j] = load_unit<kFrom, kAligned>(row_at(a.k, b, head[j], offset[j]) + layer * a.k.layer +
                                        unit[j] * kUnitBytes<kFrom>);
      if constexpr (kHasScales<kFrom>) {
        k_scale[j] = scale_at(a.k, b, head[j], offset[j])[layer * a.k.scale_layer / 4];
      }
    }
    if (unit[j] < a.v.units) {
      v[j] = load_unit<kFrom, kAligned>(row_at(a.v, b, head[j], offset[j]) + layer * a.v.layer +
                                        unit[j] * kUnitBytes<kFrom>);
      if constexpr (kHasScales<kFrom>) {
        v_scale[j] = scale_at(a.v, b, head[j], offset[j])[layer * a.v.scale_layer / 4];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kBatch; ++j) {
    if (!found[j]) continue;
    if (unit[j] < a.k.units) {
      char* const to = a.k_rows.data + layer * a.k_rows.layer + token[j] * a.k_rows.token +
                       head[j] * a.k_rows.head;
      store_unit<kTo, kAligned>(to + unit[j] * kUnitBytes<kTo>,
                                converted<kFrom, kTo>(k[j], k_scale[j]));
    }
    if (unit[j] < a.v.units) {
      char* const to = a.v_rows.data + layer * a.v_rows.layer + token[j] * a.v_rows.token +
                       head[j] * a.v_rows.head;
      store_unit<kTo, kAligned>(to + unit[j] * kUnitBytes<kTo>,
                                converted<kFrom, kTo>(v[j], v_scale[j]));
    }
  }
}

// ---- convert ------------------------------------------------------------------------------------

// blockIdx.y is the layer, blockIdx.z the pair. Rows of a block: heads within tokens.
template <Element kFrom, Element kTo, bool kAligned>
__device__ __forceinline__ void convert_unit(const PlaneArgs& from, const PlaneArgs& to,
                                             const Pair& pair, std::uint32_t head,
                                             std::uint32_t offset, std::uint32_t unit) {
  if (unit >= to.units) return;
  const long long layer = blockIdx.y;
  float scale = 1.0f;
  if constexpr (kHasScales<kFrom>) {
    scale = scale_at(from, static_cast<std::uint32_t>(pair.src), head,
                     offset)[layer * from.scale_layer / 4];
    if (kFrom == kTo && unit == 0)
      scale_at(to, static_cast<std::uint32_t>(pair.dst), head, offset)[layer * to.scale_layer / 4] =
          scale;
  }
  const auto u =
      load_unit<kFrom, kAligned>(row_at(from, static_cast<std::uint32_t>(pair.src), head, offset) +
                                 layer * from.layer + unit * kUnitBytes<kFrom>);
  store_unit<kTo, kAligned>(row_at(to, static_cast<std::uint32_t>(pair.dst), head, offset) +
                                layer * to.layer + unit * kUnitBytes<kTo>,
                            converted<kFrom, kTo>(u, scale));
}

template <Element kFrom, Element kTo, bool kAligned>
__device__ __forceinline__ void convert_plain(const ConvertArgs& a) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const std::uint32_t row = quotient(i, a.per_row);
  if (row >= a.num_rows) return;
  const std::uint32_t unit = i - row * a.per_row.divisor;
  const std::uint32_t offset = quotient(row, a.heads), head = row - offset * a.heads.divisor;
  const Pair pair = a.pairs[blockIdx.z];
  convert_unit<kFrom, kTo, kAligned>(a.k_from, a.k_to, pair, head, offset, unit);
  convert_unit<kFrom, kTo, kAligned>(a.v_from, a.v_to, pair, head, offset, unit);
}

template <Element kFrom, Element kTo, bool kAligned>
__device__ __forceinline__ void convert_row(const PlaneArgs& from, const PlaneArgs& to,
                                            const Pair& pair, bool in, std::uint32_t head,
                                            std::uint32_t offset, std::uint32_t lane,
                                            std::uint32_t lanes) {
  const long long layer = blockIdx.y;
  float scale = 1.0f;
  if constexpr (kHasScales<kFrom>) {
    if (in)
      scale = scale_at(from, static_cast<std::uint32_t>(pair.src), head,
                       offset)[layer * from.scale_layer / 4];
  }
  QuantizedRow<kFrom, kTo, 4, kAligned> row;
  row.load(row_at(from, static_cast<std::uint32_t>(pair.src), head, offset) + layer * from.layer,
           lane, lanes, in ? to.units : 0);
  row.store(
      row_at(to, static_cast<std::uint32_t>(pair.dst), head, offset) + layer * to.layer,
      scale_at(to, static_cast<std::uint32_t>(pair.dst), head, offset) + layer * to.scale_layer / 4,
      in, lane, lanes, to.units, scale);
}

template <Element kFrom, Element kTo, bool kAligned>
__device__ __forceinline__ void convert_quantized(const ConvertArgs& a) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  const std::uint32_t lane = i & (a.lanes - 1), row = i / a.lanes;
  const bool in = row < a.num_rows;
  const std::uint32_t offset = in ? quotient(row, a.heads) : 0;
  const std::uint32_t head = in ? row - offset * a.heads.divisor : 0;
  const Pair pair = a.pairs[blockIdx.z];
  convert_row<kFrom, kTo, kAligned>(a.k_from, a.k_to, pair, in, head, offset, lane, a.lanes);
  if (a.v_to.units == 0) return;
  convert_row<kFrom, kTo, kAligned>(a.v_from, a.v_to, pair, in, head, offset, lane, a.lanes);
}

}  // namespace kvfolio::cuda
