// SPDX-License-Identifier: Apache-2.0

// A row of a head is a few lines of 64 bytes. They are copied in place, by the widest loads that
// there are: a call of memcpy for each row takes longer, and few wide stores leave room in the
// queue of stores, so that the checks of the next call run while memory takes these rows. Rows that
// lie side by side on both sides are one long row, which memcpy does best: where it writes by a
// string instruction, it need not read what it overwrites. docs/kernels.md
// has the figures of both.

#include "kernels/copy_rows.h"

#include <cstring>

namespace kvfolio::kernels {
namespace {

constexpr std::int64_t kCopyLine = 64;
constexpr std::int64_t kLongRow = 1024;  // longer ones are memcpy's

[[gnu::noinline]] void copy_other_rows(const std::byte* src, std::byte* dst, std::int64_t bytes,
                                       std::int64_t count, std::int64_t src_stride,
                                       std::int64_t dst_stride) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(dst + i * dst_stride, src + i * src_stride, static_cast<std::size_t>(bytes));
  }
}

// kWidth bytes in a register. They come and go by memcpy, since they may lie at any address: of an
// alias template clang forgets the attribute that says so.
template <std::int64_t kWidth>
using Piece [[gnu::vector_size(kWidth)]] = char;

template <std::int64_t kWidth>
[[gnu::always_inline]] inline void copy_loop(const std::byte* src, std::byte* dst,
                                             std::int64_t bytes, std::int64_t count,
                                             std::int64_t src_stride, std::int64_t dst_stride) {
  if (bytes == src_stride && bytes == dst_stride) {
    bytes *= count;
    count = 1;
  }
  if (bytes > kLongRow || bytes % kCopyLine != 0) {
    return copy_other_rows(src, dst, bytes, count, src_stride, dst_stride);
  }
  // Rows that lie apart where they are read, or come alone, as those of one head of NHD, are in no
  // cache: their loads begin together. Else a load and a store in turn are faster.
  constexpr std::int64_t kAtOnce = 8;
  const bool apart = src_stride != bytes || count == 1;
  const std::int64_t together = apart ? bytes - bytes % (kAtOnce * kWidth) : 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t line = 0;
    for (; line < together; line += kAtOnce * kWidth) {
      Piece<kWidth> pieces[kAtOnce];
#pragma GCC unroll 8
      for (std::int64_t k = 0; k < kAtOnce; ++k) {
        std::memcpy(&pieces[k], src + line + k * kWidth, kWidth);
      }
#pragma GCC unroll 8
      for (std::int64_t k = 0; k < kAtOnce; ++k) {
        std::memcpy(dst + line + k * kWidth, &pieces[k], kWidth);
      }
    }
    for (; line < bytes; line += kCopyLine) {
      for (std::int64_t at = line; at < line + kCopyLine; at += kWidth) {
        Piece<kWidth> piece;
        std::memcpy(&piece, src + at, kWidth);
        std::memcpy(dst + at, &piece, kWidth);
      }
    }
    src += src_stride;
    dst += dst_stride;
  }
}

void copy_baseline(const std::byte* src, std::byte* dst, std::int64_t bytes, std::int64_t count,
                   std::int64_t src_stride, std::int64_t dst_stride) {
  copy_loop<16>(src, dst, bytes, count, src_stride, dst_stride);
}
KVFOLIO_AVX2 void copy_avx2(const std::byte* src, std::byte* dst, std::int64_t bytes,
                            std::int64_t count, std::int64_t src_stride, std::int64_t dst_stride) {
  copy_loop<32>(src, dst, bytes, count, src_stride, dst_stride);
}
KVFOLIO_AVX512 void copy_avx512(const std::byte* src, std::byte* dst, std::int64_t bytes,
                                std::int64_t count, std::int64_t src_stride,
                                std::int64_t dst_stride) {
  copy_loop<64>(src, dst, bytes, count, src_stride, dst_stride);
}

}  // namespace

CopyRowsFn copy_rows_fn(Isa isa) noexcept {
  if (isa == Isa::kAvx512) return copy_avx512;
  return isa == Isa::kAvx2 ? copy_avx2 : copy_baseline;
}

}  // namespace kvfolio::kernels
