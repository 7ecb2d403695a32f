// SPDX-License-Identifier: Apache-2.0

// Boxes of rows into a cache and out of it. Plain rows of HND and NHD move as strides allow
// (move.h). Rows of format granule go tile by tile: they are converted or quantized into a stage on
// the stack, and packed from there into the tile (granule.h). Tiles of V of f32 and f16 are plain
// rows already.
//
// Read RowWriter::write_tile() first; read_tile() is its mirror image.

#include "kernels/rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/granule.h"
#include "kernels/stream.h"
#include "kvfolio/status.h"

namespace kvfolio::kernels {
namespace {

// Rows of 16 tokens pass through the stack in pieces of this many elements, between their
// conversion and their way into or out of a tile. A multiple of 8.
constexpr std::int64_t kPiece = 256;
constexpr std::int64_t kMaxElement = 4;  // bytes, of what a tile holds

struct Stage {
  alignas(64) std::byte bytes[static_cast<std::size_t>(kGranuleTokens * kPiece * kMaxElement)];
};

bool has_plain_tiles(const Plane& plane) {
  return plane.granule && plane.is_v && granule_elements(plane.dtype) == 1;
}

Mover mover_of(const Plane& plane, DType from, DType to) {
  // What has a scale has no Mover; what stands in is not used.
  return plane.is_scaled() ? Mover(DType::kF32, DType::kF32) : Mover(from, to);
}

float load_scale(const std::byte* at) {
  float scale = 0;
  std::memcpy(&scale, at, sizeof scale);
  return scale;
}

// Cuts a box into what lies in one tile each: visit(box, tokens before it).
template <typename Visit>
void for_each_tile(const RowBox& box, Visit&& visit) {
  RowBox part = box;
  for (std::int32_t done = 0; done < box.num_tokens; done += part.num_tokens) {
    part.offset = box.offset + done;
    part.num_tokens =
        std::min(kGranuleTokens - part.offset % kGranuleTokens, box.num_tokens - done);
    visit(part, done);
  }
}

}  // namespace

Plane k_plane(const KVView& cache, std::int32_t layer) noexcept {
  Plane plane{.base = cache.k + layer * cache.k_strides.layer,
              .strides = cache.k_strides,
              .scale_strides = cache.k_scale_strides,
              .head_dim = cache.head_dim_k,
              .dtype = cache.dtype,
              .granule = cache.granule};
  if (plane.is_scaled()) plane.scales = cache.k_scale + layer * cache.k_scale_strides.layer;
  return plane;
}

Plane v_plane(const KVView& cache, std::int32_t layer) noexcept {
  KVFOLIO_DCHECK(cache.head_dim_v > 0);
  Plane plane{.base = cache.v + layer * cache.v_strides.layer,
              .strides = cache.v_strides,
              .scale_strides = cache.v_scale_strides,
              .head_dim = cache.head_dim_v,
              .dtype = cache.dtype,
              .granule = cache.granule,
              .is_v = true};
  if (plane.is_scaled()) plane.scales = cache.v_scale + layer * cache.v_scale_strides.layer;
  return plane;
}

RowWriter::RowWriter(const Plane& plane, DType from, Stores stores) noexcept
    : plane_(plane),
      mover_(mover_of(plane, from, plane.dtype)),
      loops_(plane.is_scaled() ? quantize_loops(from, plane.dtype) : QuantizeLoops()),
      plain_tiles_(has_plain_tiles(plane)),
      stores_(stores),
      // Tiles are put together in one piece before they are streamed.
      streams_(stores == Stores::kPastCaches && plane.granule && plane.head_dim <= kPiece) {
  if (plane.is_scaled()) mover_.src_bytes = dtype_bytes(from);
}

void RowWriter::write(const RowBox& box, const std::byte* src,
                      const BoxStrides& strides) const noexcept {
  if (!plane_.granule && plane_.is_scaled()) return quantize_rows(box, src, strides);
  if (!plane_.granule) {
    return move_box(mover_, {box.num_tokens, box.num_heads, plane_.head_dim}, src, strides,
                    plane_.at(box.block, box.head, box.offset),
                    {plane_.strides.token, plane_.strides.head}, Follow::kSource, stores_);
  }
  for_each_tile(box, [&](const RowBox& part, std::int32_t done) {
    write_tile(part, src + done * strides.token, strides);
  });
}

float RowWriter::scale_row(const std::byte* row, std::int32_t block, std::int32_t head,
                           std::int32_t offset) const noexcept {
  const float amax = loops_.amax(row, plane_.head_dim);
  const float scale = quantize_scale(amax, loops_.most);
  std::memcpy(plane_.scale_at(block, head, offset), &scale, sizeof scale);
  return quantize_inverse(amax, loops_.most);
}

void RowWriter::quantize_rows(const RowBox& box, const std::byte* src,
                              const BoxStrides& strides) const noexcept {
  for (std::int32_t t = 0; t < box.num_tokens; ++t) {
    for (std::int32_t h = 0; h < box.num_heads; ++h) {
      const std::byte* const row = src + t * strides.token + h * strides.head;
      const float inverse = scale_row(row, box.block, box.head + h, box.offset + t);
      loops_.quantize(row, plane_.at(box.block, box.head + h, box.offset + t), plane_.head_dim,
                      inverse, plane_.flip());
    }
  }
}

void RowWriter::write_tile(const RowBox& box, const std::byte* src,
                           const BoxStrides& strides) const noexcept {
  TilePart part{.dtype = plane_.dtype,
                .head_dim = plane_.head_dim,
                .first = box.offset % kGranuleTokens,
                .count = box.num_tokens};
  const bool streams = streams_ && box.num_tokens == kGranuleTokens;
  if (plain_tiles_ && !streams) {
    const std::int64_t row = plane_.head_dim * mover_.dst_bytes;
    return move_box(mover_, {box.num_tokens, box.num_heads, plane_.head_dim}, src, strides,
                    plane_.at(box.block, box.head, box.offset) + part.first * row,
                    {row, plane_.strides.head}, Follow::kSource, stores_);
  }
  const std::int64_t element = dtype_bytes(plane_.dtype);
  const bool as_is = !plane_.is_scaled() && mover_.convert == nullptr;
  const std::int64_t row_bytes = plane_.head_dim * mover_.src_bytes;
  const bool side_by_side = strides.head == row_bytes && strides.token == box.num_heads * row_bytes;
  Stage stage;
  Stage whole;  // a tile that will be streamed
  for (std::int32_t h = 0; h < box.num_heads; ++h) {
    const std::byte* const rows = src + h * strides.head;
    std::byte* const target = plane_.at(box.block, box.head + h, box.offset);
    std::byte* const tile = streams ? whole.bytes : target;
    float inverse[kGranuleTokens];
    for (std::int32_t t = 0; plane_.is_scaled() && t < part.count; ++t) {
      inverse[t] = scale_row(rows + t * strides.token, box.block, box.head + h, box.offset + t);
    }
    for (part.dim = 0; part.dim < plane_.head_dim; part.dim += part.dims) {
      part.dims = std::min(kPiece, plane_.head_dim - part.dim);
      const std::byte* from = rows + part.dim * mover_.src_bytes;
      std::int64_t from_stride = strides.token;
      if (!as_is) {
        const std::int64_t stage_stride = part.dims * element;
        for (std::int32_t t = 0; t < part.count; ++t) {
          std::byte* const staged = stage.bytes + t * stage_stride;
          const std::byte* const row = from + t * strides.token;
          if (plane_.is_scaled()) {
            loops_.quantize(row, staged, part.dims, inverse[t], plane_.flip());
          } else {
            mover_.move(row, staged, part.dims);
          }
        }
        from = stage.bytes;
        from_stride = stage_stride;
      }
      if (plane_.is_v) {
        pack_v(part, from, from_stride, tile);
      } else {
        pack_k(part, from, from_stride, tile);
      }
    }
    if (!streams) continue;
    // Meanwhile this head's share of the rows of the next 16 tokens is fetched, if they follow: to
    // read, to pack and to write one after the other took half as long again.
    const std::byte* const next =
        side_by_side ? src + kGranuleTokens * (strides.token + h * row_bytes) : nullptr;
    stream_lines(tile, target, plane_.head_dim * element * kGranuleTokens,
                 {next, 64 * mover_.src_bytes / element});
  }
}

RowReader::RowReader(const Plane& plane, DType to, Stores stores) noexcept
    : plane_(plane),
      mover_(mover_of(plane, plane.dtype, to)),
      loops_(plane.is_scaled() ? quantize_loops(to, plane.dtype) : QuantizeLoops()),
      plain_tiles_(has_plain_tiles(plane)),
      stores_(stores) {
  if (plane.is_scaled()) mover_.dst_bytes = dtype_bytes(to);
}

void RowReader::read(const RowBox& box, std::byte* dst, const BoxStrides& strides) const noexcept {
  if (!plane_.granule && plane_.is_scaled()) return dequantize_rows(box, dst, strides);
  if (!plane_.granule) {
    return move_box(mover_, {box.num_tokens, box.num_heads, plane_.head_dim},
                    plane_.at(box.block, box.head, box.offset),
                    {plane_.strides.token, plane_.strides.head}, dst, strides, Follow::kDestination,
                    stores_);
  }
  for_each_tile(box, [&](const RowBox& part, std::int32_t done) {
    read_tile(part, dst + done * strides.token, strides);
  });
}

void RowReader::dequantize_rows(const RowBox& box, std::byte* dst,
                                const BoxStrides& strides) const noexcept {
  for (std::int32_t t = 0; t < box.num_tokens; ++t) {
    for (std::int32_t h = 0; h < box.num_heads; ++h) {
      loops_.dequantize(plane_.at(box.block, box.head + h, box.offset + t),
                        dst + t * strides.token + h * strides.head, plane_.head_dim,
                        load_scale(plane_.scale_at(box.block, box.head + h, box.offset + t)),
                        plane_.flip());
    }
  }
}

void RowReader::read_tile(const RowBox& box, std::byte* dst,
                          const BoxStrides& strides) const noexcept {
  TilePart part{.dtype = plane_.dtype,
                .head_dim = plane_.head_dim,
                .first = box.offset % kGranuleTokens,
                .count = box.num_tokens};
  if (plain_tiles_) {
    const std::int64_t row = plane_.head_dim * mover_.src_bytes;
    return move_box(mover_, {box.num_tokens, box.num_heads, plane_.head_dim},
                    plane_.at(box.block, box.head, box.offset) + part.first * row,
                    {row, plane_.strides.head}, dst, strides, Follow::kDestination, stores_);
  }
  const std::int64_t element = dtype_bytes(plane_.dtype);
  const bool as_is = !plane_.is_scaled() && mover_.convert == nullptr;
  const auto unpack = plane_.is_v ? unpack_v : unpack_k;
  Stage stage;
  for (std::int32_t h = 0; h < box.num_heads; ++h) {
    const std::byte* const tile = plane_.at(box.block, box.head + h, box.offset);
    for (part.dim = 0; part.dim < plane_.head_dim; part.dim += part.dims) {
      part.dims = std::min(kPiece, plane_.head_dim - part.dim);
      std::byte* const rows = dst + h * strides.head + part.dim * mover_.dst_bytes;
      if (as_is) {
        unpack(part, tile, rows, strides.token);
        continue;
      }
      const std::int64_t stage_stride = part.dims * element;
      unpack(part, tile, stage.bytes, stage_stride);
      for (std::int32_t t = 0; t < part.count; ++t) {
        const std::byte* const staged = stage.bytes + t * stage_stride;
        std::byte* const row = rows + t * strides.token;
        if (plane_.is_scaled()) {
          const std::byte* const scale = plane_.scale_at(box.block, box.head + h, box.offset + t);
          loops_.dequantize(staged, row, part.dims, load_scale(scale), plane_.flip());
        } else {
          mover_.move(staged, row, part.dims);
        }
      }
    }
  }
}

ValueReader::ValueReader(const Plane& plane) noexcept
    : plane_(plane), widen_(convert_fn(plane.dtype, DType::kF64)) {}

void ValueReader::read(std::int32_t block, std::int32_t head, std::int32_t offset,
                       double* values) const noexcept {
  const auto widen = [&](const std::byte* elements, std::int64_t first, std::int64_t count) {
    if (plane_.is_scaled()) {
      dequantize_exactly(plane_.dtype, elements, values + first, count,
                         load_scale(plane_.scale_at(block, head, offset)), plane_.flip());
    } else {
      widen_(elements, reinterpret_cast<std::byte*>(values + first), count);
    }
  };
  const std::byte* const row = plane_.at(block, head, offset);
  if (!plane_.granule) return widen(row, 0, plane_.head_dim);
  alignas(8) std::byte piece[static_cast<std::size_t>(kPiece * kMaxElement)];
  TilePart part{.dtype = plane_.dtype,
                .head_dim = plane_.head_dim,
                .first = offset % kGranuleTokens,
                .count = 1};
  for (part.dim = 0; part.dim < plane_.head_dim; part.dim += part.dims) {
    part.dims = std::min(kPiece, plane_.head_dim - part.dim);
    (plane_.is_v ? unpack_v : unpack_k)(part, row, piece, 0);
    widen(piece, part.dim, part.dims);
  }
}

}  // namespace kvfolio::kernels
