// SPDX-License-Identifier: Apache-2.0

// A tile of K is the transpose of 16 rows, an element being a granule: 4 bytes, of f16 2. A tile of
// V joins the rows of g tokens element by element, and is plain rows where g is 1.

#include "kernels/granule.h"

#include <algorithm>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kvfolio/spec.h"
#include "kvfolio/status.h"

namespace kvfolio::kernels {
namespace {

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// A square of kSide x kSide elements: to[c][r] = from[r][c].
template <typename T>
struct Square;

#if defined(__SSE2__)
__m128i load_line(const std::byte* from) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}
void store_line(std::byte* to, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value);
}

template <>
struct Square<std::uint32_t> {
  static constexpr std::int64_t kSide = 4;
  static void transpose(const std::byte* from, std::int64_t from_stride, std::byte* to,
                        std::int64_t to_stride) {
    const __m128i a = load_line(from);
    const __m128i b = load_line(from + from_stride);
    const __m128i c = load_line(from + 2 * from_stride);
    const __m128i d = load_line(from + 3 * from_stride);
    const __m128i ab_low = _mm_unpacklo_epi32(a, b);
    const __m128i cd_low = _mm_unpacklo_epi32(c, d);
    const __m128i ab_high = _mm_unpackhi_epi32(a, b);
    const __m128i cd_high = _mm_unpackhi_epi32(c, d);
    store_line(to, _mm_unpacklo_epi64(ab_low, cd_low));
    store_line(to + to_stride, _mm_unpackhi_epi64(ab_low, cd_low));
    store_line(to + 2 * to_stride, _mm_unpacklo_epi64(ab_high, cd_high));
    store_line(to + 3 * to_stride, _mm_unpackhi_epi64(ab_high, cd_high));
  }
};

template <>
struct Square<std::uint16_t> {
  static constexpr std::int64_t kSide = 8;
  static void transpose(const std::byte* from, std::int64_t from_stride, std::byte* to,
                        std::int64_t to_stride) {
    __m128i rows[8];
    __m128i pairs[8];
    for (int i = 0; i < 8; ++i) rows[i] = load_line(from + i * from_stride);
    for (int i = 0; i < 4; ++i) {
      pairs[i] = _mm_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);      // columns 0 .. 3
      pairs[i + 4] = _mm_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);  // columns 4 .. 7
    }
    for (int half = 0; half < 2; ++half) {
      const __m128i* const p = pairs + 4 * half;
      std::byte* const out = to + 4 * half * to_stride;
      const __m128i low01 = _mm_unpacklo_epi32(p[0], p[1]);
      const __m128i low23 = _mm_unpacklo_epi32(p[2], p[3]);
      const __m128i high01 = _mm_unpackhi_epi32(p[0], p[1]);
      const __m128i high23 = _mm_unpackhi_epi32(p[2], p[3]);
      store_line(out, _mm_unpacklo_epi64(low01, low23));
      store_line(out + to_stride, _mm_unpackhi_epi64(low01, low23));
      store_line(out + 2 * to_stride, _mm_unpacklo_epi64(high01, high23));
      store_line(out + 3 * to_stride, _mm_unpackhi_epi64(high01, high23));
    }
  }
};
#else
template <typename T>
struct Square {
  static constexpr std::int64_t kSide = 4;
  static void transpose(const std::byte* from, std::int64_t from_stride, std::byte* to,
                        std::int64_t to_stride) {
    for (std::int64_t r = 0; r < kSide; ++r) {
      for (std::int64_t c = 0; c < kSide; ++c) {
        store(to + c * to_stride + r * std::int64_t{sizeof(T)},
              load<T>(from + r * from_stride + c * std::int64_t{sizeof(T)}));
      }
    }
  }
};
#endif

// One side of a transpose.
struct Side {
  std::int64_t count = 0;
  std::int64_t stride = 0;  // bytes from one row of this side to the next
};

// to[t][g] = from[g][t] or the reverse, where rows of tokens are far apart (often a multiple of
// 4 KiB, so that 16 of them do not stay in a cache of 8 ways): strips of 64 bytes of few tokens at
// a time.
template <typename T, bool kPack>
void transpose(const std::byte* from, std::byte* to, const Side& tokens, const Side& granules) {
  constexpr std::int64_t kBytes = sizeof(T);
  constexpr std::int64_t kSide = Square<T>::kSide;
  constexpr std::int64_t kStrip = 64 / kBytes;
  // The address of granule g of token t, in rows and in the tile.
  const auto source = [&](std::int64_t t, std::int64_t g) {
    return kPack ? from + t * tokens.stride + g * kBytes : from + g * granules.stride + t * kBytes;
  };
  const auto target = [&](std::int64_t t, std::int64_t g) {
    return kPack ? to + g * granules.stride + t * kBytes : to + t * tokens.stride + g * kBytes;
  };
  const std::int64_t source_stride = kPack ? tokens.stride : granules.stride;
  const std::int64_t target_stride = kPack ? granules.stride : tokens.stride;
  const std::int64_t square_tokens = tokens.count / kSide * kSide;
  const std::int64_t square_granules = granules.count / kSide * kSide;
  for (std::int64_t strip = 0; strip < square_granules; strip += kStrip) {
    const std::int64_t end = std::min(strip + kStrip, square_granules);
    for (std::int64_t t = 0; t < square_tokens; t += kSide) {
      for (std::int64_t g = strip; g < end; g += kSide) {
        Square<T>::transpose(source(t, g), source_stride, target(t, g), target_stride);
      }
    }
  }
  const auto one_by_one = [&](std::int64_t first_token, std::int64_t first_granule,
                              std::int64_t end_granule) {
    for (std::int64_t t = first_token; t < tokens.count; ++t) {
      for (std::int64_t g = first_granule; g < end_granule; ++g) {
        store(target(t, g), load<T>(source(t, g)));
      }
    }
  };
  one_by_one(square_tokens, 0, square_granules);
  one_by_one(0, square_granules, granules.count);
}

template <bool kPack>
void move_k(const TilePart& part, const std::byte* from, std::byte* to, std::int64_t row_stride) {
  const Side tokens{part.count, row_stride};
  const std::int64_t granules = part.dims / granule_elements(part.dtype);
  if (part.dtype == DType::kF16) {
    transpose<std::uint16_t, kPack>(from, to, tokens, {granules, 2 * kGranuleTokens});
  } else {
    transpose<std::uint32_t, kPack>(from, to, tokens, {granules, 4 * kGranuleTokens});
  }
}

// Each of the four functions begins with it.
void check_part(const TilePart& part) {
  KVFOLIO_DCHECK(part.dim % 8 == 0 && part.dims % 8 == 0);
  static_cast<void>(part);
}

std::int64_t offset_in_k(const TilePart& part) {
  const std::int64_t granule_bytes = part.dtype == DType::kF16 ? 2 : 4;
  return (part.dim / granule_elements(part.dtype) * kGranuleTokens + part.first) * granule_bytes;
}

// Joins or parts kGroup rows whose elements alternate. Pointers of one array each, so that the
// compiler sees loops without dependences.
void join(const std::uint16_t* const* rows, std::uint16_t* __restrict out, std::int64_t n) {
  const std::uint16_t* __restrict a = rows[0];
  const std::uint16_t* __restrict b = rows[1];
  for (std::int64_t d = 0; d < n; ++d) {
    out[2 * d] = a[d];
    out[2 * d + 1] = b[d];
  }
}

void join(const std::uint8_t* const* rows, std::uint8_t* __restrict out, std::int64_t n) {
  const std::uint8_t* __restrict a = rows[0];
  const std::uint8_t* __restrict b = rows[1];
  const std::uint8_t* __restrict c = rows[2];
  const std::uint8_t* __restrict d = rows[3];
  for (std::int64_t i = 0; i < n; ++i) {
    out[4 * i] = a[i];
    out[4 * i + 1] = b[i];
    out[4 * i + 2] = c[i];
    out[4 * i + 3] = d[i];
  }
}

void divide(const std::uint16_t* __restrict in, std::uint16_t* const* rows, std::int64_t n) {
  std::uint16_t* __restrict a = rows[0];
  std::uint16_t* __restrict b = rows[1];
  for (std::int64_t d = 0; d < n; ++d) {
    a[d] = in[2 * d];
    b[d] = in[2 * d + 1];
  }
}

void divide(const std::uint8_t* __restrict in, std::uint8_t* const* rows, std::int64_t n) {
  std::uint8_t* __restrict a = rows[0];
  std::uint8_t* __restrict b = rows[1];
  std::uint8_t* __restrict c = rows[2];
  std::uint8_t* __restrict d = rows[3];
  for (std::int64_t i = 0; i < n; ++i) {
    a[i] = in[4 * i];
    b[i] = in[4 * i + 1];
    c[i] = in[4 * i + 2];
    d[i] = in[4 * i + 3];
  }
}

// Calls whole(i, at) for rows i .. i + kGroup - 1 that fill a group of the tile, one(i, at) for row
// i of a group that is not filled; `at` is the first element in the tile.
template <typename T, std::int32_t kGroup, typename Whole, typename One>
void for_each_group(const TilePart& part, Whole&& whole, One&& one) {
  for (std::int32_t i = 0; i < part.count;) {
    const std::int32_t token = part.first + i;
    const std::int64_t at = (token / kGroup * part.head_dim + part.dim) * kGroup;
    if (token % kGroup == 0 && part.count - i >= kGroup) {
      whole(i, at);
      i += kGroup;
    } else {
      one(i, at + token % kGroup);
      ++i;
    }
  }
}

template <typename T, std::int32_t kGroup>
void join_rows(const TilePart& part, const std::byte* rows, std::int64_t row_stride,
               std::byte* tile) {
  T* const out = reinterpret_cast<T*>(tile);
  const auto row = [&](std::int32_t i) {
    return reinterpret_cast<const T*>(rows + i * row_stride);
  };
  for_each_group<T, kGroup>(
      part,
      [&](std::int32_t i, std::int64_t at) {
        const T* group[kGroup];
        for (std::int32_t j = 0; j < kGroup; ++j) group[j] = row(i + j);
        join(group, out + at, part.dims);
      },
      [&](std::int32_t i, std::int64_t at) {
        const T* __restrict from = row(i);
        for (std::int64_t d = 0; d < part.dims; ++d) out[at + d * kGroup] = from[d];
      });
}

template <typename T, std::int32_t kGroup>
void divide_rows(const TilePart& part, const std::byte* tile, std::byte* rows,
                 std::int64_t row_stride) {
  const T* const in = reinterpret_cast<const T*>(tile);
  const auto row = [&](std::int32_t i) { return reinterpret_cast<T*>(rows + i * row_stride); };
  for_each_group<T, kGroup>(
      part,
      [&](std::int32_t i, std::int64_t at) {
        T* group[kGroup];
        for (std::int32_t j = 0; j < kGroup; ++j) group[j] = row(i + j);
        divide(in + at, group, part.dims);
      },
      [&](std::int32_t i, std::int64_t at) {
        T* __restrict to = row(i);
        for (std::int64_t d = 0; d < part.dims; ++d) to[d] = in[at + d * kGroup];
      });
}

}  // namespace

void pack_k(const TilePart& part, const std::byte* rows, std::int64_t row_stride,
            std::byte* tile) noexcept {
  check_part(part);
  move_k<true>(part, rows, tile + offset_in_k(part), row_stride);
}

void unpack_k(const TilePart& part, const std::byte* tile, std::byte* rows,
              std::int64_t row_stride) noexcept {
  check_part(part);
  move_k<false>(part, tile + offset_in_k(part), rows, row_stride);
}

void pack_v(const TilePart& part, const std::byte* rows, std::int64_t row_stride,
            std::byte* tile) noexcept {
  check_part(part);
  if (part.dtype == DType::kBF16) return join_rows<std::uint16_t, 2>(part, rows, row_stride, tile);
  if (part.dtype == DType::kInt8) return join_rows<std::uint8_t, 4>(part, rows, row_stride, tile);
  const std::int64_t element = dtype_bytes(part.dtype);
  for (std::int32_t i = 0; i < part.count; ++i) {
    std::memcpy(tile + ((part.first + i) * part.head_dim + part.dim) * element,
                rows + i * row_stride, static_cast<std::size_t>(part.dims * element));
  }
}

void unpack_v(const TilePart& part, const std::byte* tile, std::byte* rows,
              std::int64_t row_stride) noexcept {
  check_part(part);
  if (part.dtype == DType::kBF16) {
    return divide_rows<std::uint16_t, 2>(part, tile, rows, row_stride);
  }
  if (part.dtype == DType::kInt8) return divide_rows<std::uint8_t, 4>(part, tile, rows, row_stride);
  const std::int64_t element = dtype_bytes(part.dtype);
  for (std::int32_t i = 0; i < part.count; ++i) {
    std::memcpy(rows + i * row_stride,
                tile + ((part.first + i) * part.head_dim + part.dim) * element,
                static_cast<std::size_t>(part.dims * element));
  }
}

}  // namespace kvfolio::kernels
