// SPDX-License-Identifier: Apache-2.0
#pragma once

// How rows (contiguous elements) repeat in memory along axes of constant stride, and what follows:
// how far they reach, whether two rows overlap, and which rows join into longer runs of bytes.
// Values only: no byte is touched here.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/checked.h"
#include "kvfolio/view.h"

namespace kvfolio {

struct Axis {
  std::int64_t extent = 1;
  std::int64_t stride = 0;

  friend bool operator==(const Axis&, const Axis&) = default;
};

// Rows of row_bytes at base + sum of i_a * stride_a. Axes of one entry are dropped, the others are
// sorted by stride, smallest first.
struct RowNest {
  std::int64_t base = 0;  // an address, or an offset where only differences matter
  std::int64_t row_bytes = 0;
  std::array<Axis, 4> axes{};
  int num_axes = 0;

  void add(Axis axis) noexcept {
    if (axis.extent <= 1) return;
    int i = num_axes++;
    for (; i > 0 && axes[static_cast<std::size_t>(i - 1)].stride > axis.stride; --i) {
      axes[static_cast<std::size_t>(i)] = axes[static_cast<std::size_t>(i - 1)];
    }
    axes[static_cast<std::size_t>(i)] = axis;
  }

  // Bytes from base to the end of the last row. Requires: strides >= 0.
  [[nodiscard]] Checked span() const noexcept {
    Checked bytes(row_bytes);
    for (int i = 0; i < num_axes; ++i) {
      const Axis& axis = axes[static_cast<std::size_t>(i)];
      bytes = bytes + Checked(axis.extent - 1) * axis.stride;
    }
    return bytes;
  }

  // Each stride steps over all that lies within it, so that no two rows overlap.
  [[nodiscard]] bool nested() const noexcept {
    Checked within(row_bytes);
    for (int i = 0; i < num_axes; ++i) {
      const Axis& axis = axes[static_cast<std::size_t>(i)];
      if (!within.ok() || axis.stride < within.value()) return false;
      within = within + Checked(axis.extent - 1) * axis.stride;
    }
    return within.ok();
  }

  // Joins neighbours: afterwards no axis continues where the row ends.
  void join() noexcept {
    while (num_axes > 0 && axes[0].stride == row_bytes) {
      row_bytes *= axes[0].extent;
      std::move(axes.begin() + 1, axes.begin() + num_axes, axes.begin());
      --num_axes;
    }
  }
};

// Whether no row of `a` overlaps a row of `b`, proved by distance or by a common period: rows that
// repeat with the same stride are compared within one period, shifted both ways. False also when
// neither argument works. Requires: both nested(), their spans fit.
inline bool disjoint(RowNest a, RowNest b) noexcept {
  if (a.base + a.span().value() <= b.base || b.base + b.span().value() <= a.base) return true;
  if (a.num_axes == 0 || b.num_axes == 0) return false;
  const std::int64_t period = a.axes[static_cast<std::size_t>(a.num_axes - 1)].stride;
  if (period != b.axes[static_cast<std::size_t>(b.num_axes - 1)].stride) return false;
  --a.num_axes;
  --b.num_axes;
  std::int64_t distance = (b.base - a.base) % period;
  if (distance < 0) distance += period;
  a.base = 0;
  b.base = distance;
  RowNest before = b;
  before.base = distance - period;
  return disjoint(a, b) && disjoint(a, before);
}

// The rows of one block of one layer.
[[nodiscard]] inline RowNest rows_of_block(std::int64_t row_bytes, const KVStrides& strides,
                                           const KVView& view) noexcept {
  RowNest nest;
  nest.row_bytes = row_bytes;
  nest.add({view.num_kv_heads, strides.head});
  nest.add({view.block_size, strides.token});
  return nest;
}

// A block of one layer as few runs of bytes: part p starts at
// base + layer*strides.layer + block*strides.block and repeats along runs.axes.
struct BlockRuns {
  struct Part {
    std::byte* base = nullptr;
    KVStrides strides;
    RowNest runs;
  };
  std::array<Part, 2> parts;
  int num_parts = 0;
};

// K and V of a block where they lie; one part where V continues K. A block that is contiguous
// becomes one run. Requires: a view whose rows nest.
[[nodiscard]] inline BlockRuns block_runs(const KVView& view) noexcept {
  const std::int64_t element = dtype_bytes(view.dtype);
  BlockRuns result;
  result.parts[0] = {view.k, view.k_strides,
                     rows_of_block(view.head_dim_k * element, view.k_strides, view)};
  result.parts[0].runs.join();
  result.num_parts = 1;
  if (view.head_dim_v == 0 || view.v_is_prefix_of_k) return result;
  result.parts[1] = {view.v, view.v_strides,
                     rows_of_block(view.head_dim_v * element, view.v_strides, view)};
  result.parts[1].runs.join();
  result.num_parts = 2;

  BlockRuns::Part& k = result.parts[0];
  BlockRuns::Part& v = result.parts[1];
  const bool same_outer = (view.num_layers == 1 || k.strides.layer == v.strides.layer) &&
                          (view.num_blocks == 1 || k.strides.block == v.strides.block);
  if (same_outer && k.runs.num_axes == v.runs.num_axes &&
      std::equal(k.runs.axes.begin(), k.runs.axes.begin() + k.runs.num_axes, v.runs.axes.begin()) &&
      k.base + k.runs.row_bytes == v.base) {
    k.runs.row_bytes += v.runs.row_bytes;
    k.runs.join();
    result.num_parts = 1;
  }
  return result;
}

// Calls visit(offset) for the start of every run, offsets in increasing order.
template <typename Visit>
void for_each_run(const RowNest& runs, Visit&& visit) {
  const Axis inner = runs.num_axes > 0 ? runs.axes[0] : Axis{};
  const Axis outer = runs.num_axes > 1 ? runs.axes[1] : Axis{};
  for (std::int64_t i = 0; i < outer.extent; ++i) {
    for (std::int64_t j = 0; j < inner.extent; ++j) visit(i * outer.stride + j * inner.stride);
  }
}

// Block src[i] to block dst[i], all layers, K and V, in the order of i: copy(to, from, bytes) for
// each contiguous run. Equal blocks are skipped. Requires: checked spans of equal size.
template <typename Copy>
void for_each_block_copy(const KVView& cache, std::span<const std::int32_t> src,
                         std::span<const std::int32_t> dst, Copy&& copy) {
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
          copy(to + offset, from + offset, part.runs.row_bytes);
        });
      }
    }
  }
}

}  // namespace kvfolio
