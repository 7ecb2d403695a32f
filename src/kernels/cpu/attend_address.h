// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where the tiles of an item lie: for each subtile of 16 positions the addresses of K, V and scales
// that the passes read (TileRows), and what memory to ask for while they read it.
//
// The one idea: rows of HND and NHD are packed into granule tiles in L1, so the passes know one
// format; rows of e4m3 become tiles of f32 there, and the passes do not know it either. And a line
// that a pass reads names the line to prefetch: TileRows carries the distance in bytes to the same
// line of the tile that comes next.
//
// Read attend_phases.h next: it walks the tiles and hands them to the passes of attend_passes.h.
//
// Included by targets only; everything is local to the target's source.

#include "kernels/cpu/attend_passes.h"
#include "kernels/cpu/item.h"
#include "kernels/cpu/pack.h"

namespace kvfolio::kernels {
namespace {

// E is the element type, Pack what makes a granule tile of rows (pack.h).
template <class E, class Pack>
class TileAddresses {
 public:
  TileAddresses(const Item& item, const Scratch& scratch)
      : item_(item), s_(scratch), row_order_(order_of_rows()) {}

  // The subtiles of a tile for one head, as far as `any` has a bit of them; `next` is the tile that
  // follows, or -1.
  void point_at(std::int32_t tile, std::int32_t head, std::uint64_t any, std::int32_t next,
                TileRows& rows) {
    for (int s = 0; s < kSubtiles; ++s) {
      const auto bits = static_cast<std::uint32_t>(any >> (16 * s)) & 0xffffu;
      if (bits == 0) continue;
      const std::int32_t position = tile * kTile + s * kGranuleTokens;
      if (item_.granule) {
        point_at_granule(s, position, head, rows);
      } else {
        pack(s, position, head, bits, rows);
      }
      look_ahead(s, position, next * kTile + s * kGranuleTokens, head, rows);
    }
  }

 private:
  static constexpr int kElementBytes = E::kLaneBytes / E::kTokens;

  // Rows that a kernel of f32 decodes.
  [[nodiscard]] bool is_e4m3() const { return kElementBytes == 4 && item_.e4m3; }
  [[nodiscard]] bool has_scales() const { return E::kScaled || is_e4m3(); }
  [[nodiscard]] std::int64_t row_bytes(const HeadRows& all) const {
    return std::int64_t{all.head_dim} * (is_e4m3() ? 1 : kElementBytes);
  }

  // ---- where a tile lies ------------------------------------------------------------------------

  // A row of K or of V and its scale; in format granule a tile and its 16 scales.
  struct RowAddress {
    const std::byte* rows;
    const std::byte* scales;
  };
  [[nodiscard]] RowAddress address_of(const HeadRows& all, std::int32_t head, std::int64_t block,
                                      std::int64_t offset, std::int64_t step) const {
    RowAddress at{
        all.rows + head * all.head_stride + block * all.block_stride + step * all.token_stride,
        nullptr};
    if (has_scales()) {
      at.scales = all.scales + head * all.scale_head_stride + block * all.scale_block_stride +
                  offset * all.scale_token_stride;
    }
    return at;
  }

  // The token at a position: its block and where it stands in it.
  struct Spot {
    std::int32_t logical;
    std::int32_t offset;
  };
  [[nodiscard]] Spot spot_of(std::int32_t position) const {
    const std::int32_t logical = position / item_.block_size;
    return {logical, position - logical * item_.block_size};
  }
  void step(Spot& spot) const {
    if (++spot.offset < item_.block_size) return;
    spot.offset = 0;
    ++spot.logical;
  }

  void point_at_granule(int s, std::int32_t position, std::int32_t head, TileRows& rows) {
    const Spot spot = spot_of(position);
    const std::int64_t block = item_.table[spot.logical];
    const std::int64_t inner = spot.offset / kGranuleTokens;
    const RowAddress k = address_of(item_.k, head, block, spot.offset, inner);
    const RowAddress v = address_of(item_.v, head, block, spot.offset, inner);
    rows.k[s] = k.rows;
    rows.v[s] = v.rows;
    rows.v_stride[s] = item_.v.head_dim * E::kLaneBytes;
    // Scales of a block lie side by side in this format.
    rows.k_scales[s] = reinterpret_cast<const float*>(k.scales);
    rows.v_scales[s] = reinterpret_cast<const float*>(v.scales);
  }

  // Rows of V are what the kernels read already, where their tile joins no tokens and a subtile
  // lies in one block.
  [[nodiscard]] bool reads_v_in_place() const {
    return E::kTokens == 1 && !item_.granule && !is_e4m3() &&
           item_.block_size % kGranuleTokens == 0;
  }

  // Rows of HND and NHD become a granule tile in L1; tokens that no query sees are not touched.
  void pack(int s, std::int32_t position, std::int32_t head, std::uint32_t bits, TileRows& rows) {
    const std::byte* k[kGranuleTokens];
    const std::byte* v[kGranuleTokens];
    float* k_scales = s_.scales + s * kGranuleTokens;
    float* v_scales = s_.scales + kTile + s * kGranuleTokens;
    const std::byte* some_k = nullptr;
    const std::byte* some_v = nullptr;
    Spot spot = spot_of(position);
    for (int t = 0; t < kGranuleTokens; ++t, step(spot)) {
      k[t] = nullptr;
      if ((bits >> t & 1u) == 0) continue;
      const std::int64_t block = item_.table[spot.logical];
      const RowAddress at_k = address_of(item_.k, head, block, spot.offset, spot.offset);
      const RowAddress at_v = address_of(item_.v, head, block, spot.offset, spot.offset);
      some_k = k[t] = at_k.rows;
      some_v = v[t] = at_v.rows;
      if (has_scales()) {
        __builtin_memcpy(k_scales + t, at_k.scales, 4);
        __builtin_memcpy(v_scales + t, at_v.scales, 4);
      }
    }
    for (int t = 0; t < kGranuleTokens; ++t) {  // any row will do where nothing is seen
      if (k[t] != nullptr) continue;
      k[t] = some_k;
      v[t] = some_v;
      k_scales[t] = v_scales[t] = 0.0f;
    }
    std::byte* packed_k = s_.packed_k + s * kSubtileBytes;
    std::byte* packed_v = s_.packed_v + s * kSubtileBytes;
    if (is_e4m3()) {
      // What a mask leaves of V is made after this: until then its place is free.
      std::byte* const decoded_k = s_.masked_v + s * kSubtileBytes;
      decode_rows(k, k_scales, item_.k.head_dim, decoded_k);
      decode_rows(v, v_scales, item_.v.head_dim, packed_v);
    }
    Pack::k(k, item_.k.head_dim, packed_k);
    rows.k[s] = packed_k;
    rows.k_scales[s] = k_scales;
    rows.v_scales[s] = v_scales;
    if (reads_v_in_place()) {
      const Spot first = spot_of(position);
      rows.v[s] =
          address_of(item_.v, head, item_.table[first.logical], first.offset, first.offset).rows;
      rows.v_stride[s] = item_.v.token_stride;
      return;
    }
    if (!is_e4m3()) Pack::v(v, item_.v.head_dim, packed_v);
    rows.v[s] = packed_v;
    rows.v_stride[s] = item_.v.head_dim * E::kLaneBytes;
  }

  // ---- what to ask for while a tile is worked on ------------------------------------------------

  enum class RowOrder {
    kByHead,   // a head's rows of a subtile are one piece, as long as the packed ones: granule, HND
    kByToken,  // the rows of all heads of a subtile are one piece: NHD
    kNone,     // rows lie apart
  };

  [[nodiscard]] RowOrder order_of_rows() const {
    if (item_.granule) return RowOrder::kByHead;
    if (is_e4m3()) return RowOrder::kNone;  // a packed row is four times as long
    if (item_.block_size % kGranuleTokens != 0) return RowOrder::kNone;
    const auto is = [&](auto&& test) { return test(item_.k) && test(item_.v); };
    if (is([](const HeadRows& r) { return r.token_stride == r.head_dim * kElementBytes; })) {
      return RowOrder::kByHead;
    }
    const bool by_token = is([&](const HeadRows& r) {
      const std::int64_t row = r.head_dim * kElementBytes;
      return r.head_stride == row && r.token_stride == row * item_.num_heads;
    });
    return by_token ? RowOrder::kByToken : RowOrder::kNone;
  }

  // By head: the next head's rows of this tile, after the last head the next tile's. By token: this
  // head's share of the next tile. An entry that no row needs may be anything.
  void look_ahead(int s, std::int32_t position, std::int32_t next_position, std::int32_t head,
                  TileRows& rows) {
    const bool same_tile = row_order_ == RowOrder::kByHead && head + 1 < item_.num_heads;
    const std::int32_t there = same_tile ? position : next_position;
    if (there < 0 || there >= item_.kv_len) return;
    if (row_order_ == RowOrder::kNone) {
      ask_for_rows(there, head);
      return;
    }
    const std::int32_t next_head = same_tile ? head + 1 : 0;
    const Spot spot = spot_of(there);
    const std::int64_t block = item_.table[spot.logical];
    if (block < 0 || block >= item_.num_blocks) return;
    const std::int64_t inner = item_.granule ? spot.offset / kGranuleTokens : spot.offset;
    const std::int64_t share = row_order_ == RowOrder::kByToken ? head * kGranuleTokens : 0;
    const auto ahead = [&](const HeadRows& all, const std::byte* here) {
      const RowAddress next = address_of(all, next_head, block, spot.offset, inner);
      if constexpr (E::kScaled) prefetch(next.scales);
      return reinterpret_cast<std::intptr_t>(next.rows) + share * all.head_dim * kElementBytes -
             reinterpret_cast<std::intptr_t>(here);
    };
    rows.k_ahead[s] = ahead(item_.k, rows.k[s]);
    rows.v_ahead[s] = ahead(item_.v, rows.v[s]);
  }

  void ask_for_rows(std::int32_t position, std::int32_t head) const {
    Spot spot = spot_of(position);
    const std::int32_t left = item_.kv_len - position;
    for (int t = 0; t < (left < kGranuleTokens ? left : kGranuleTokens); ++t, step(spot)) {
      const std::int64_t block = item_.table[spot.logical];
      if (block < 0 || block >= item_.num_blocks) continue;
      for (const HeadRows* all : {&item_.k, &item_.v}) {
        const RowAddress at = address_of(*all, head, block, spot.offset, spot.offset);
        for (std::int64_t b = 0; b < row_bytes(*all); b += 64) prefetch(at.rows + b);
        if (has_scales()) prefetch(at.scales);
      }
    }
  }

  const Item& item_;
  const Scratch& s_;
  RowOrder row_order_;
};

}  // namespace
}  // namespace kvfolio::kernels
