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
#include "kvfolio/status.h"
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
      KVFOLIO_DCHECK(axis.stride >= 0);
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
  KVFOLIO_DCHECK(a.nested() && (a.span() + a.base).ok());
  KVFOLIO_DCHECK(b.nested() && (b.span() + b.base).ok());
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

// What one block holds of one kind: rows of K or V (in format granule tiles) or scales. Row i of
// head h of a block of a layer is at base + layer, block, h and i times their strides.
struct ViewPart {
  std::byte* base = nullptr;
  KVStrides strides;
  std::int64_t row_bytes = 0;
  std::int32_t num_rows = 0;  // of a block and head

  [[nodiscard]] std::byte* at(std::int32_t layer, std::int32_t block, std::int32_t head,
                              std::int32_t row) const noexcept {
    return base + layer * strides.layer + block * strides.block + head * strides.head +
           row * strides.token;
  }
};

struct ViewParts {
  std::array<ViewPart, 4> parts;
  int num_parts = 0;

  void add(std::byte* base, const KVStrides& strides, std::int64_t row_bytes,
           std::int32_t num_rows) noexcept {
    parts[static_cast<std::size_t>(num_parts++)] = {base, strides, row_bytes, num_rows};
  }
  [[nodiscard]] std::span<const ViewPart> all() const noexcept {
    return std::span(parts).first(static_cast<std::size_t>(num_parts));
  }
};

// All bytes of a view: K, V, scales of K, scales of V, those of them that it stores.
[[nodiscard]] inline ViewParts parts_of(const KVView& view) noexcept {
  const std::int32_t tokens = view.granule ? kGranuleTokens : 1;  // of a row
  const std::int64_t bytes = std::int64_t{dtype_bytes(view.dtype)} * tokens;
  const std::int32_t num_rows = view.block_size / tokens;
  const bool own_v = view.head_dim_v > 0 && !view.v_is_prefix_of_k;
  constexpr std::int64_t kScaleBytes = 4;
  ViewParts result;
  result.add(view.k, view.k_strides, view.head_dim_k * bytes, num_rows);
  if (own_v) result.add(view.v, view.v_strides, view.head_dim_v * bytes, num_rows);
  if (!has_scales(view.dtype)) return result;
  result.add(view.k_scale, view.k_scale_strides, kScaleBytes, view.block_size);
  if (own_v) result.add(view.v_scale, view.v_scale_strides, kScaleBytes, view.block_size);
  return result;
}

// A block of one layer as few runs of bytes: part p starts at
// base + layer*strides.layer + block*strides.block and repeats along runs.axes.
struct BlockRuns {
  struct Part {
    std::byte* base = nullptr;
    KVStrides strides;
    RowNest runs;
  };
  std::array<Part, 4> parts;
  int num_parts = 0;
};

// What a block holds where it lies; what continues the part before it joins that. A block that is
// contiguous becomes one run. Requires: a view whose rows nest.
[[nodiscard]] inline BlockRuns block_runs(const KVView& view) noexcept {
  BlockRuns result;
  const ViewParts rows = parts_of(view);
  for (const ViewPart& part : rows.all()) {
    BlockRuns::Part next{part.base, part.strides, {}};
    next.runs.row_bytes = part.row_bytes;
    next.runs.add({view.num_kv_heads, part.strides.head});
    next.runs.add({part.num_rows, part.strides.token});
    next.runs.join();
    if (result.num_parts > 0) {
      BlockRuns::Part& last = result.parts[static_cast<std::size_t>(result.num_parts - 1)];
      const bool same_outer = (view.num_layers == 1 || last.strides.layer == next.strides.layer) &&
                              (view.num_blocks == 1 || last.strides.block == next.strides.block);
      if (same_outer && last.runs.num_axes == next.runs.num_axes &&
          std::equal(last.runs.axes.begin(), last.runs.axes.begin() + last.runs.num_axes,
                     next.runs.axes.begin()) &&
          last.base + last.runs.row_bytes == next.base) {
        last.runs.row_bytes += next.runs.row_bytes;
        continue;
      }
    }
    result.parts[static_cast<std::size_t>(result.num_parts++)] = next;
  }
  for (int p = 0; p < result.num_parts; ++p) {
    result.parts[static_cast<std::size_t>(p)].runs.join();
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
  KVFOLIO_DCHECK(src.size() == dst.size());
  const BlockRuns runs = block_runs(cache);
  for (std::int32_t layer = 0; layer < cache.num_layers; ++layer) {
    for (std::size_t i = 0; i < src.size(); ++i) {
      KVFOLIO_DCHECK(0 <= src[i] && src[i] < cache.num_blocks);
      KVFOLIO_DCHECK(0 <= dst[i] && dst[i] < cache.num_blocks);
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
