// SPDX-License-Identifier: Apache-2.0
#pragma once

// The element types of a cache as a kernel over vectors T sees them. A policy says what one line of
// K (16 tokens) or one row of V becomes in registers, and how a word of the query or of the weights
// multiplies it:
//
//   kDims, kTokens     dims of one line of K, tokens of one row of V
//   kLaneBytes         bytes of a token in a line of K, of a dim in a row of V
//   kQueryWords        words that a line of K meets in a prepared query
//   kWeightWords       words that a row of V meets in the weights
//
// Sums run over dims, and then over tokens, in increasing order, one product after the other
// (a dot product of pairs or quads counts as one step), whatever the number of rows is.
// Included by targets only; everything is local to the target's source.

#include <cstddef>
#include <cstdint>

#include "kvfolio/dtype.h"

namespace kvfolio::kernels {
namespace {

// Nearest even for |x| < 2^22, without an instruction that not every CPU has.
inline float nearest(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23
  return (x + magic) - magic;
}

inline float float_at(const std::uint32_t* p) {
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

template <class T>
struct F32Element {
  using F = typename T::F;
  using Sum = F;
  using Line = F;
  using Factor = F;
  static constexpr int kDims = 1;
  static constexpr int kTokens = 1;
  static constexpr int kLaneBytes = 4;
  static constexpr int kQueryWords = 1;
  static constexpr int kWeightWords = 1;
  static constexpr int kExpDegree = 5;
  static constexpr bool kScaled = false;
  static constexpr bool kRoundsQueries = false;  // to the type of the cache

  static Sum zero() { return T::zero(); }
  static Line load_k(const std::byte* p) { return T::load(p); }
  static Line load_v(const std::byte* p) { return T::load(p); }
  static Factor load_query(const std::uint32_t* p) { return T::broadcast(float_at(p)); }
  static Factor load_weight(const std::uint32_t* p) { return load_query(p); }
  static Sum dot_k(Sum sum, Line line, Factor q) { return T::fma(q, line, sum); }
  static Sum dot_v(Sum sum, Line line, Factor w) { return T::fma(w, line, sum); }

  static void store_query(const float* q, int dims, std::uint32_t* words) {
    __builtin_memcpy(words, q, static_cast<std::size_t>(dims) * 4);
  }
  // Weights of the tokens [token, token + kLanes) of the tile.
  static void store_weights(std::uint32_t* row, int token, F w) { T::store(row + token, w); }
};

template <class T>
struct F16Element : F32Element<T> {
  using F = typename T::F;
  static constexpr int kLaneBytes = 2;
  static F load_k(const std::byte* p) { return T::from_f16(p); }
  static F load_v(const std::byte* p) { return T::from_f16(p); }
};

// bf16 where there is no dot product of it: both halves of a word become f32.
template <class T>
struct Bf16Element : F32Element<T> {
  using F = typename T::F;
  using Sum = F;
  struct Line {
    F even;
    F odd;
  };
  using Factor = Line;
  static constexpr int kDims = 2;
  static constexpr int kTokens = 2;
  static constexpr int kQueryWords = 2;
  static constexpr int kWeightWords = 2;

  static Line load_k(const std::byte* p) {
    const typename T::I words = T::load_words(p);
    return {T::low_bf16(words), T::high_bf16(words)};
  }
  static Line load_v(const std::byte* p) { return load_k(p); }
  static Factor load_query(const std::uint32_t* p) {
    return {T::broadcast(float_at(p)), T::broadcast(float_at(p + 1))};
  }
  static Factor load_weight(const std::uint32_t* p) { return load_query(p); }
  static Sum dot_k(Sum sum, const Line& line, const Factor& q) {
    return T::fma(q.odd, line.odd, T::fma(q.even, line.even, sum));
  }
  static Sum dot_v(Sum sum, const Line& line, const Factor& w) { return dot_k(sum, line, w); }
};

// What all kinds of int8 share: a query is -127 .. 127 times a scale, K is stored with 128 added,
// weights are 0 .. 255 times a scale of the row and tile. Sums of products are exact.
template <class T>
struct Int8Base {
  using F = typename T::F;
  static constexpr int kDims = 4;
  static constexpr int kTokens = 4;
  static constexpr int kLaneBytes = 4;
  static constexpr int kExpDegree = 4;
  static constexpr bool kScaled = true;
  static constexpr bool kRoundsQueries = false;  // to 8 bits, but by a scale that takes any factor
  static constexpr std::int32_t kOffset = 128;

  // Fills bytes[dims]; answers the scale, and the sum of the bytes.
  static float quantize_query(const float* q, int dims, std::int8_t* bytes, std::int32_t* sum) {
    float largest = 0.0f;
    bool finite = true;
    for (int d = 0; d < dims; ++d) {
      const float size = q[d] < 0.0f ? -q[d] : q[d];
      finite = finite && size <= 3.4028234663852886e38f;  // false for NaN and infinity
      largest = size > largest ? size : largest;
    }
    *sum = 0;
    // Below, 127 / largest is no number; such scores are 0.
    const bool zero = !finite || largest < 1e-30f;
    const float inverse = zero ? 0.0f : 127.0f / largest;
    for (int d = 0; d < dims; ++d) {
      const float x = zero ? 0.0f : nearest(q[d] * inverse);
      bytes[d] = static_cast<std::int8_t>(x);
      *sum += bytes[d];
    }
    if (!finite) return __builtin_nanf("");
    return zero ? 0.0f : largest / 127.0f;
  }
  static void store_weights(std::uint32_t* row, int token, F w) {
    T::store_unsigned_bytes(reinterpret_cast<std::byte*>(row) + token, w);
  }
};

// int8 with sums in whole numbers.
template <class T>
struct Int8Words : Int8Base<T> {
  using F = typename T::F;
  using Sum = typename T::I;

  static Sum zero() { return T::zero_words(); }
  static F to_float(Sum sum) { return T::to_float(sum); }
  static F minus(Sum sum, std::int32_t offset) {
    return T::to_float(T::sub_words(sum, T::broadcast_word(static_cast<std::uint32_t>(offset))));
  }
};

// int8 by products of 16-bit pairs.
template <class T>
struct Int8Element : Int8Words<T> {
  using I = typename T::I;
  using Sum = I;
  struct Line {
    I even;
    I odd;
  };
  using Factor = Line;
  static constexpr int kQueryWords = 2;
  static constexpr int kWeightWords = 1;

  static Line load_k(const std::byte* p) {
    const I words = T::load_words(p);
    return {T::even_unsigned(words), T::odd_unsigned(words)};
  }
  static Line load_v(const std::byte* p) {
    const I words = T::load_words(p);
    return {T::even_signed(words), T::odd_signed(words)};
  }
  static Factor load_query(const std::uint32_t* p) {
    return {T::broadcast_word(p[0]), T::broadcast_word(p[1])};
  }
  static Factor load_weight(const std::uint32_t* p) {
    const I words = T::broadcast_word(*p);
    return {T::even_unsigned(words), T::odd_unsigned(words)};
  }
  static Sum dot_k(Sum sum, const Line& line, const Factor& q) {
    return T::dot_pairs(T::dot_pairs(sum, line.even, q.even), line.odd, q.odd);
  }
  static Sum dot_v(Sum sum, const Line& line, const Factor& w) { return dot_k(sum, line, w); }

  static float store_query(const float* q, int dims, std::uint32_t* words, std::int32_t* sum) {
    std::int8_t bytes[256];
    const float scale = Int8Base<T>::quantize_query(q, dims, bytes, sum);
    const auto pair = [](std::int8_t low, std::int8_t high) {
      return static_cast<std::uint32_t>(static_cast<std::uint16_t>(low)) |
             static_cast<std::uint32_t>(static_cast<std::uint16_t>(high)) << 16;
    };
    for (int i = 0; i < dims / 4; ++i) {
      words[2 * i] = pair(bytes[4 * i], bytes[4 * i + 2]);
      words[2 * i + 1] = pair(bytes[4 * i + 1], bytes[4 * i + 3]);
    }
    return scale;
  }
};

// int8 in f32: the products and their sums are whole numbers below 2^24, so every step is exact.
template <class T>
struct Int8FloatElement : Int8Base<T> {
  using F = typename T::F;
  using Sum = F;
  struct Line {
    F x[4];
  };
  using Factor = Line;
  static constexpr int kQueryWords = 4;
  static constexpr int kWeightWords = 1;

  static Sum zero() { return T::zero(); }
  static Line load_k(const std::byte* p) {
    Line line;
    T::unsigned_bytes(p, line.x);
    return line;
  }
  static Line load_v(const std::byte* p) {
    Line line;
    T::signed_bytes(p, line.x);
    return line;
  }
  static Factor load_query(const std::uint32_t* p) {
    return {{T::broadcast(float_at(p)), T::broadcast(float_at(p + 1)),
             T::broadcast(float_at(p + 2)), T::broadcast(float_at(p + 3))}};
  }
  static Factor load_weight(const std::uint32_t* p) {
    const auto* w = reinterpret_cast<const std::uint8_t*>(p);
    return {{T::broadcast(w[0]), T::broadcast(w[1]), T::broadcast(w[2]), T::broadcast(w[3])}};
  }
  static Sum dot_k(Sum sum, const Line& line, const Factor& q) {
    for (int i = 0; i < 4; ++i) sum = T::fma(q.x[i], line.x[i], sum);
    return sum;
  }
  static Sum dot_v(Sum sum, const Line& line, const Factor& w) { return dot_k(sum, line, w); }
  static F minus(Sum sum, std::int32_t offset) {
    return T::sub(sum, T::broadcast(static_cast<float>(offset)));
  }
  static F to_float(Sum sum) { return sum; }

  static float store_query(const float* q, int dims, std::uint32_t* words, std::int32_t* sum) {
    std::int8_t bytes[256];
    const float scale = Int8Base<T>::quantize_query(q, dims, bytes, sum);
    for (int d = 0; d < dims; ++d) {
      const auto x = static_cast<float>(bytes[d]);
      __builtin_memcpy(words + d, &x, sizeof x);
    }
    return scale;
  }
};

}  // namespace
}  // namespace kvfolio::kernels
