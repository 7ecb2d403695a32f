// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows of K or V on their way into a cache and out of it, whatever its format and element type.

#include <cstdint>

#include "kernels/convert.h"
#include "kernels/move.h"
#include "kernels/quantize.h"
#include "kvfolio/view.h"

namespace kvfolio::kernels {

// The K rows or the V rows of one layer of a cache.
struct Plane {
  std::byte* base = nullptr;
  KVStrides strides;
  std::byte* scales = nullptr;  // of int8 and e4m3
  KVStrides scale_strides;
  std::int32_t head_dim = 0;
  DType dtype = DType::kF32;
  bool granule = false;
  bool is_v = false;
  // Elements that have scales as the bytes that are stored, without these: rows are of the type
  // too.
  bool raw = false;

  // The row of a token; in format granule its tile.
  [[nodiscard]] std::byte* at(std::int32_t block, std::int32_t head,
                              std::int32_t offset) const noexcept {
    const std::int32_t row = granule ? offset / kGranuleTokens : offset;
    return base + block * strides.block + head * strides.head + row * strides.token;
  }
  [[nodiscard]] std::byte* scale_at(std::int32_t block, std::int32_t head,
                                    std::int32_t offset) const noexcept {
    return scales + block * scale_strides.block + head * scale_strides.head +
           offset * scale_strides.token;
  }
  // Rows are quantized on their way in, and back on their way out.
  [[nodiscard]] bool is_scaled() const noexcept { return has_scales(dtype) && !raw; }
  // What turns a stored byte of int8 into a signed element.
  [[nodiscard]] std::uint8_t flip() const noexcept { return granule && !is_v ? kGranuleFlip : 0; }
};

[[nodiscard]] Plane k_plane(const KVView& cache, std::int32_t layer) noexcept;
// Requires: head_dim_v > 0.
[[nodiscard]] Plane v_plane(const KVView& cache, std::int32_t layer) noexcept;

// Some tokens that follow each other in one block, some heads of them.
struct RowBox {
  std::int32_t block = 0;
  std::int32_t head = 0;
  std::int32_t offset = 0;
  std::int32_t num_tokens = 1;
  std::int32_t num_heads = 1;
};

class RowWriter {
 public:
  // `from`: the type of the rows that are written. kPastCaches: rows of the cache's own type and
  // whole tiles are streamed, see stream.h; the caller ends with a stream_fence().
  RowWriter(const Plane& plane, DType from, Stores stores = Stores::kCached) noexcept;

  // Row of token i and head j: src + i * strides.token + j * strides.head.
  void write(const RowBox& box, const std::byte* src, const BoxStrides& strides) const noexcept;

 private:
  void quantize_rows(const RowBox& box, const std::byte* src,
                     const BoxStrides& strides) const noexcept;
  void write_tile(const RowBox& box, const std::byte* src,
                  const BoxStrides& strides) const noexcept;
  // Writes the scale of a row and answers what its elements are multiplied by.
  float scale_row(const std::byte* row, std::int32_t block, std::int32_t head,
                  std::int32_t offset) const noexcept;

  Plane plane_;
  Mover mover_;          // where nothing has a scale
  QuantizeLoops loops_;  // else
  bool plain_tiles_;     // tiles of plain rows: V of f32 and f16
  Stores stores_;
  bool streams_;  // tiles
};

class RowReader {
 public:
  // `to`: the type of the rows that are read. What has a scale becomes element * scale in f32, then
  // that type.
  // kPastCaches: plain rows of the cache's own type are streamed, too.
  RowReader(const Plane& plane, DType to, Stores stores = Stores::kCached) noexcept;

  // Row of token i and head j: dst + i * strides.token + j * strides.head.
  void read(const RowBox& box, std::byte* dst, const BoxStrides& strides) const noexcept;

 private:
  void dequantize_rows(const RowBox& box, std::byte* dst, const BoxStrides& strides) const noexcept;
  void read_tile(const RowBox& box, std::byte* dst, const BoxStrides& strides) const noexcept;

  Plane plane_;
  Mover mover_;          // where nothing has a scale
  QuantizeLoops loops_;  // else
  bool plain_tiles_;
  Stores stores_;
};

// The values of a cache as doubles, without rounding.
class ValueReader {
 public:
  explicit ValueReader(const Plane& plane) noexcept;

  // Requires: room for head_dim values.
  void read(std::int32_t block, std::int32_t head, std::int32_t offset,
            double* values) const noexcept;

 private:
  Plane plane_;
  ConvertFn widen_;  // where nothing has a scale
};

}  // namespace kvfolio::kernels
