// SPDX-License-Identifier: Apache-2.0
#pragma once

// Moves a box of rows [tokens, heads, head_dim] between two strided places, converting on the way:
// what append and gather do for every run of tokens that one block holds as plain rows.

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/convert.h"
#include "kernels/copy_rows.h"
#include "kernels/stream.h"
#include "kvfolio/dtype.h"

namespace kvfolio::kernels {

// How elements get from one place to the other.
struct Mover {
  Mover(DType from, DType to) noexcept
      : src_bytes(dtype_bytes(from)),
        dst_bytes(dtype_bytes(to)),
        convert(from == to ? nullptr : convert_fn(from, to)),
        copy(copy_rows_fn()) {}

  void move(const std::byte* src, std::byte* dst, std::int64_t elements) const noexcept {
    if (convert == nullptr) {
      std::memcpy(dst, src, static_cast<std::size_t>(elements * src_bytes));
    } else {
      convert(src, dst, elements);
    }
  }

  std::int64_t src_bytes;
  std::int64_t dst_bytes;
  ConvertFn convert;  // null: equal types
  CopyRowsFn copy;    // of equal types
};

struct BoxShape {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};

struct BoxStrides {
  std::int64_t token = 0;
  std::int64_t head = 0;
};

// Which side of a move keeps to its own order where rows stay single. It is the engine's: its rows
// of a token lie side by side, while the other side then advances along as many streams as there
// are heads. (The other way round each row of the engine is a jump of a whole token, often 4 KiB,
// which neither caches nor prefetchers like: half the speed on rows of 512 bytes.)
enum class Follow { kSource, kDestination };

// As few and as long moves as the strides allow. kPastCaches: rows of equal types are streamed, and
// the caller ends with a stream_fence().
inline void move_box(const Mover& mover, const BoxShape& shape, const std::byte* src,
                     const BoxStrides& from, std::byte* dst, const BoxStrides& to, Follow follow,
                     Stores stores = Stores::kCached) noexcept {
  // Axes in the order of the loops; elements is what one move takes.
  struct Loop {
    std::int64_t extent, src_stride, dst_stride;
  };
  Loop inner{shape.heads, from.head, to.head};
  Loop outer{shape.tokens, from.token, to.token};
  const bool tokens_closer =
      follow == Follow::kSource ? from.token < from.head : to.token < to.head;
  if (inner.extent == 1 || (outer.extent > 1 && tokens_closer)) std::swap(inner, outer);
  std::int64_t elements = shape.head_dim;
  for (int i = 0; i < 2; ++i) {
    const bool joined = inner.extent == 1 || (inner.src_stride == elements * mover.src_bytes &&
                                              inner.dst_stride == elements * mover.dst_bytes);
    if (!joined) break;
    elements *= inner.extent;
    inner = outer;
    outer = {1, 0, 0};
  }
  // Too few of shorter rows are whole lines.
  constexpr std::int64_t kShortest = 128;
  const bool streams = stores == Stores::kPastCaches && mover.convert == nullptr &&
                       elements * mover.src_bytes >= kShortest;
  const bool copies = mover.convert == nullptr && !streams;
  // Meanwhile the same row of the next outer step is fetched, or what follows a long one: 0.56 and
  // 0.47 of memcpy became 0.9 on rows of 512 bytes, of which a third is this (Xeon, 128 MiB).
  constexpr std::int64_t kAhead = 2048;
  const std::int64_t ahead = outer.extent == 1 ? kAhead : outer.src_stride;
  for (std::int64_t i = 0; i < outer.extent; ++i) {
    const std::byte* s = src + i * outer.src_stride;
    std::byte* d = dst + i * outer.dst_stride;
    if (copies) {
      mover.copy(s, d, elements * mover.src_bytes, inner.extent, inner.src_stride,
                 inner.dst_stride);
      continue;
    }
    for (std::int64_t j = 0; j < inner.extent; ++j) {
      const std::byte* const row = s + j * inner.src_stride;
      std::byte* const to_row = d + j * inner.dst_stride;
      if (streams) {
        stream_bytes(row, to_row, elements * mover.src_bytes, ahead);
      } else {
        mover.convert(row, to_row, elements);
      }
    }
  }
}

}  // namespace kvfolio::kernels
