// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention over one item, as a template over the vectors of a target (T) and the element types of
// K and V (elements.h). Online softmax in base 2, tile by tile of 64 positions, and for each tile
// three phases: the scores of up to eight rows, then their weights 2^(score - max), then the
// weighted sums of V.
//
// The one idea: rows that see the same of a tile are done together, others apart, with the same
// sums in the same order, so the rows beside a row do not change its bits. Slots that a row does
// not see are masked in the scores and zeroed in V, since they hold anything.
//
// Start at run(). The arithmetic is in attend_passes.h, the addresses in attend_address.h;
// driver.cc makes the items.
//
// Included by targets only; everything is local to the target's source.

#include "kernels/cpu/attend_address.h"
#include "kernels/cpu/attend_passes.h"
#include "kernels/cpu/item.h"

namespace kvfolio::kernels {
namespace {

// E is the element type; its Tail reads the last 8 dims of a row of V where a vector has more.
// kBends: with a soft cap or ALiBi, an instance of its own.
template <class T, class E, class Tail, class Pack, bool kBends>
class Attend {
 public:
  Attend(const Item& item, const Scratch& scratch)
      : item_(item),
        s_(scratch),
        all_rows_(item.num_heads * item.num_rows),
        k_lines_(item.k.head_dim / E::kDims),
        sums_stride_(padded(item.v.head_dim)),
        addresses_(item, scratch) {}

  void run() {
    reset_total();
    prepare_queries();
    const std::int64_t first = position_of(0);
    const std::int64_t last = position_of(item_.num_rows - 1);
    Walk walk(visible(first, last, item_.kv_len, item_.params, item_.trim), item_.first_position,
              item_.end_position);
    std::int32_t tile = 0;
    if (!walk.next(tile)) return;
    std::int32_t range = -1;
    bool more = true;
    for (std::int32_t next = 0; more; tile = next) {
      more = walk.next(next);
      if (tile / (kRange / kTile) != range) {
        if (range >= 0) close_range();
        range = tile / (kRange / kTile);
        open_range();
      }
      take_tile(tile, more ? next : -1, first, last);
    }
    close_range();
  }

 private:
  using F = typename T::F;
  static constexpr int kVectors = kTile / T::kLanes;
  static constexpr bool kPlain = E::kDims == 1;  // a line of K is a vector of floats

  // The tiles that hold what the rows read, in order.
  class Walk {
   public:
    Walk(const Visible& seen, std::int32_t first, std::int32_t end)
        : seen_(seen), first_(first), end_(end) {}
    bool next(std::int32_t& tile) {
      while (range_ < seen_.num_ranges) {
        const Range& range = seen_.ranges[static_cast<std::size_t>(range_)];
        const std::int32_t begin = range.begin > first_ ? range.begin : first_;
        const std::int32_t end = range.end < end_ ? range.end : end_;
        if (begin < end) {
          const std::int32_t at = begin / kTile > tile_ + 1 ? begin / kTile : tile_ + 1;
          if (at <= (end - 1) / kTile) {
            tile_ = tile = at;
            return true;
          }
        }
        ++range_;
      }
      return false;
    }

   private:
    Visible seen_;
    std::int32_t first_;
    std::int32_t end_;
    std::int32_t tile_ = -1;
    int range_ = 0;
  };

  void reset_total() {
    for (int r = 0; r < all_rows_; ++r) {
      s_.total.totals[r] = 0.0f;
      s_.total.maxima[r] = kNothing;
    }
  }

  void prepare_queries() {
    constexpr double kLargest = __FLT_MAX__;
    const double factor = item_.params.scale * 1.4426950408889634074;  // log2(e)
    auto scale = static_cast<float>(factor < kLargest ? factor : kLargest);
    if constexpr (E::kRoundsQueries) {
      // A query that is of the cache's type stays as it is but for a power of two; the rest of the
      // factor meets the scores.
      const float power = scale < __FLT_MIN__ ? __FLT_MIN__ : power_of_two(scale);
      const float rest = scale / power;
      score_factor_ = rest < __FLT_MIN__ ? __FLT_MIN__ : rest;  // not 0: it meets -inf too
      scale = power;
    }
    for (int r = 0; r < all_rows_; ++r) {
      const std::int64_t row = std::int64_t{item_.first_row} + r % item_.num_rows;
      const std::int64_t head = r / item_.num_rows * item_.q_per_kv + row % item_.q_per_kv;
      item_.load_q(
          item_.q + row / item_.q_per_kv * item_.q_token_stride + head * item_.q_head_stride,
          reinterpret_cast<std::byte*>(s_.row), item_.k.head_dim);
      for (int d = 0; d < item_.k.head_dim; ++d) s_.row[d] *= scale;
      std::uint32_t* words = s_.queries + r * kQueryWords;
      if constexpr (E::kScaled) {
        s_.query_scales[r] = E::store_query(s_.row, item_.k.head_dim, words, s_.query_sums + r);
      } else {
        E::store_query(s_.row, item_.k.head_dim, words);
      }
    }
  }

  void open_range() {
    for (int r = 0; r < all_rows_; ++r) {
      for (std::int64_t d = 0; d < sums_stride_; ++d) s_.sums[r * sums_stride_ + d] = 0.0f;
      for (int i = 0; i < 16; ++i) s_.lanes[r * 16 + i] = 0.0f;
      s_.maxima[r] = kNothing;
    }
  }

  void close_range() {
    for (int r = 0; r < all_rows_; ++r) {
      float total = 0.0f;
      for (int i = 0; i < 16; ++i) total += s_.lanes[r * 16 + i];
      float* sums = s_.sums + r * sums_stride_;
      const State into{s_.total.sums + r * s_.total.sums_stride, s_.total.totals + r,
                       s_.total.maxima + r, s_.total.sums_stride};
      merge_row<T>(into, {sums, &total, s_.maxima + r, sums_stride_}, item_.v.head_dim);
    }
  }

  // Bit t: the query at `position` reads position tile * kTile + t.
  [[nodiscard]] std::uint64_t mask_of(std::int64_t position, std::int32_t tile) const {
    const Visible seen = visible(position, position, item_.kv_len, item_.params, item_.trim);
    const std::int32_t base = tile * kTile;
    std::uint64_t mask = 0;
    for (int i = 0; i < seen.num_ranges; ++i) {
      const Range& range = seen.ranges[static_cast<std::size_t>(i)];
      std::int32_t begin = range.begin - base;
      std::int32_t end = range.end - base;
      begin = begin < 0 ? 0 : begin;
      end = end > kTile ? kTile : end;
      if (begin >= end) continue;
      const std::uint64_t low = ~std::uint64_t{0} << begin;
      const std::uint64_t high = end == kTile ? ~std::uint64_t{0} : (std::uint64_t{1} << end) - 1;
      mask |= low & high;
    }
    return mask;
  }

  static constexpr std::uint64_t kWhole = ~std::uint64_t{0};

  void take_tile(std::int32_t tile, std::int32_t next, std::int64_t first, std::int64_t last) {
    if constexpr (kBends) tile_ = tile;
    const std::uint64_t first_mask = mask_of(first, tile);
    const std::uint64_t last_mask = first == last ? first_mask : mask_of(last, tile);
    if (first_mask == kWhole && last_mask == kWhole) {  // then those between see it whole too
      for (std::int32_t head = 0; head < item_.num_heads; ++head) {
        TileRows rows = {};
        addresses_.point_at(tile, head, kWhole, next, rows);
        take_rows(head, 0, item_.num_rows, rows, kWhole);
      }
      return;
    }
    std::uint64_t masks[kItemRows];
    std::uint64_t any = 0;
    for (std::int32_t r = 0; r < item_.num_rows; ++r) {
      const bool same = r > 0 && position_of(r) == position_of(r - 1);
      masks[r] = same ? masks[r - 1] : mask_of(position_of(r), tile);
      any |= masks[r];
    }
    if (any == 0) return;
    for (std::int32_t head = 0; head < item_.num_heads; ++head) {
      TileRows rows = {};
      addresses_.point_at(tile, head, any, next, rows);
      // Neighbours that see the same go together.
      for (std::int32_t r = 0; r < item_.num_rows;) {
        std::int32_t end = r + 1;
        while (end < item_.num_rows && masks[end] == masks[r]) ++end;
        if (masks[r] != 0) take_rows(head, r, end, rows, masks[r]);
        r = end;
      }
    }
  }

  [[nodiscard]] std::int64_t position_of(std::int32_t row) const {
    return item_.query_position + (std::int64_t{item_.first_row} + row) / item_.q_per_kv;
  }

  // ---- the three phases of a tile ---------------------------------------------------------------

  // Rows begin .. end of one head, which all see the positions of `mask`.
  void take_rows(std::int32_t head, std::int32_t begin, std::int32_t end, const TileRows& rows,
                 std::uint64_t mask) {
    TileRows seen = rows;
    if (begin > 0) {  // once for each tile
      for (int s = 0; s < kSubtiles; ++s) seen.k_ahead[s] = seen.v_ahead[s] = 0;
    }
    if (mask != kWhole) mask_values(mask, seen);
    // Blocks of nearly equal size: 12 rows are 6 and 6.
    const std::int32_t most = end - begin > kBlockRows ? T::many_rows(kPlain) : kBlockRows;
    const std::int32_t blocks = (end - begin + most - 1) / most;
    std::int32_t row = head * item_.num_rows + begin;
    const std::int32_t last = head * item_.num_rows + end;
    for (std::int32_t b = 0; b < blocks; ++b) {
      const std::int32_t count = (last - row + blocks - b - 1) / (blocks - b);
      switch (count) {
        case 1:
          take_block<1>(row, seen, mask);
          break;
        case 2:
          take_block<2>(row, seen, mask);
          break;
        case 3:
          take_block<3>(row, seen, mask);
          break;
        case 4:
          take_block<4>(row, seen, mask);
          break;
        case 5:
          take_block<5>(row, seen, mask);
          break;
        case 6:
          take_block<6>(row, seen, mask);
          break;
        case 7:
          take_block<7>(row, seen, mask);
          break;
        default:
          take_block<8>(row, seen, mask);
          break;
      }
      row += count;
      for (int s = 0; s < kSubtiles; ++s) seen.k_ahead[s] = seen.v_ahead[s] = 0;
    }
  }

  // Subtiles of which only a part is seen get a copy of V with zeros for the rest.
  void mask_values(std::uint64_t mask, TileRows& rows) {
    for (int s = 0; s < kSubtiles; ++s) {
      const auto bits = static_cast<std::uint32_t>(mask >> (16 * s)) & 0xffffu;
      if (bits == 0xffffu) continue;
      if (bits == 0) {
        rows.k[s] = nullptr;
        continue;
      }
      std::byte* to = s_.masked_v + s * kSubtileBytes;
      constexpr int kBytes = E::kLaneBytes / E::kTokens;  // of an element
      const std::int64_t row_bytes = std::int64_t{item_.v.head_dim} * E::kLaneBytes;
      for (int i = 0; i < kGranuleTokens / E::kTokens; ++i) {
        std::uint32_t keep = 0;
        for (int t = 0; t < E::kTokens; ++t) {
          if ((bits >> (i * E::kTokens + t) & 1u) == 0) continue;
          keep |= (kBytes == 4 ? ~0u : ((1u << (8 * kBytes % 32)) - 1u)) << (8 * kBytes * t % 32);
        }
        if (E::kLaneBytes == 2) keep |= keep << 16;
        const std::byte* from = rows.v[s] + i * rows.v_stride[s];
        std::byte* row = to + i * row_bytes;
        for (std::int64_t b = 0; b < row_bytes; b += 4) {
          std::uint32_t word;
          __builtin_memcpy(&word, from + b, 4);
          word &= keep;
          __builtin_memcpy(row + b, &word, 4);
        }
      }
      rows.v_ahead[s] = 0;  // it led from the rows that the copy stands for
      rows.v[s] = to;
      rows.v_stride[s] = row_bytes;
      if constexpr (E::kScaled) {
        float* scales = s_.scales + 2 * kTile + s * kGranuleTokens;
        for (int t = 0; t < kGranuleTokens; ++t) {
          scales[t] = (bits >> t & 1u) != 0 ? rows.v_scales[s][t] : 0.0f;
        }
        rows.v_scales[s] = scales;
      }
    }
  }

  template <int R>
  void take_block(std::int32_t row, const TileRows& rows, std::uint64_t mask) {
    if (mask == kWhole) {
      scores<R, 0>(row, rows);
      if constexpr (kBends) bend<R>(row, 0, kSubtiles);
    } else {
      for (int s = 0; s < kSubtiles; ++s) {
        const auto bits = static_cast<std::uint32_t>(mask >> (16 * s)) & 0xffffu;
        if (bits == 0) {
          for (int r = 0; r < R; ++r) {
            for (int t = 0; t < kGranuleTokens; ++t) {
              s_.scores[r * kTile + s * kGranuleTokens + t] = kNothing;
            }
          }
          continue;
        }
        score_subtiles<R, 0, 1>(row, s, rows);
        if constexpr (kBends) bend<R>(row, s, 1);
        for (int r = 0; r < R && bits != 0xffffu; ++r) {
          float* at = s_.scores + r * kTile + s * kGranuleTokens;
          for (int p = 0; p < kGranuleTokens; p += T::kLanes) {
            T::store(at + p, T::select(bits >> p, T::load(at + p), T::broadcast(kNothing)));
          }
        }
      }
    }
    weigh<R>(row, rows);
    add_values<R>(row, rows, mask);
  }

  // Soft cap and ALiBi on `count` subtiles of scores from s on. What a row does not see is bent,
  // too, and masked behind it.
  template <int R>
  void bend(std::int32_t row, int s, int count) {
    static_assert(!E::kRoundsQueries);  // else a factor is still to come
    constexpr float kLog2E = 1.44269504f;
    const auto cap = static_cast<float>(item_.params.soft_cap * 1.4426950408889634074);
    for (int r = 0; r < R; ++r) {
      const std::int32_t of_head = (row + r) % item_.num_rows;
      float slope = 0.0f;
      if (item_.slopes != nullptr) {
        const std::int32_t head = (row + r) / item_.num_rows;
        slope = item_.slopes[head * item_.q_per_kv +
                             (std::int64_t{item_.first_row} + of_head) % item_.q_per_kv] *
                kLog2E;
      }
      const std::int64_t first = std::int64_t{tile_} * kTile - position_of(of_head);
      const int end = (s + count) * kGranuleTokens;
      for (int t = s * kGranuleTokens; t < end; t += T::kLanes) {
        float* at = s_.scores + r * kTile + t;
        F score = T::load(at);
        if (cap > 0.0f)
          score = T::mul(T::broadcast(cap), tanh_poly<T>(T::mul(score, T::broadcast(1.0f / cap))));
        if (item_.slopes != nullptr) {
          float distances[T::kLanes];
          for (int i = 0; i < T::kLanes; ++i) distances[i] = static_cast<float>(first + t + i);
          score = T::fma(T::load(distances), T::broadcast(slope), score);
        }
        T::store(at, score);
      }
    }
  }

  // All four subtiles, as many rows and subtiles at a time as registers allow.
  template <int R, int kFirst>
  void scores(std::int32_t row, const TileRows& rows) {
    constexpr int kLeft = R - kFirst;
    constexpr int kNow = kLeft < T::kScoreRows ? kLeft : T::kScoreRows;
    constexpr int kAtOnce = T::score_subtiles(kNow, kPlain);
    for (int s = 0; s < kSubtiles; s += kAtOnce) score_rows<kNow, kFirst, kAtOnce>(row, s, rows);
    if constexpr (kLeft > kNow) scores<R, kFirst + kNow>(row, rows);
  }

  template <int R, int kFirst, int S>
  void score_subtiles(std::int32_t row, int s, const TileRows& rows) {
    constexpr int kLeft = R - kFirst;
    constexpr int kNow = kLeft < T::kScoreRows ? kLeft : T::kScoreRows;
    score_rows<kNow, kFirst, S>(row, s, rows);
    if constexpr (kLeft > kNow) score_subtiles<R, kFirst + kNow, S>(row, s, rows);
  }

  template <int N, int kFirst, int S>
  void score_rows(std::int32_t row, int s, const TileRows& rows) {
    score_pass<T, E, N, S>(s_.queries + (row + kFirst) * kQueryWords,
                           s_.query_scales + row + kFirst, s_.query_sums + row + kFirst, rows.k + s,
                           rows.k_scales + s, rows.k_ahead + s, k_lines_,
                           s_.scores + kFirst * kTile + s * kGranuleTokens);
  }

  // Scores become weights; totals and maxima follow.
  template <int R>
  void weigh(std::int32_t row, const TileRows& rows) {
    // A NaN among the scales of V reaches every row that sees it, whatever the weight.
    bool value_is_nan = false;
    if constexpr (E::kScaled) {
      for (int s = 0; s < kSubtiles; ++s) {
        if (rows.k[s] == nullptr) continue;
        for (int p = 0; p < kGranuleTokens; p += T::kLanes) {
          value_is_nan |= T::any_nan(T::load(rows.v_scales[s] + p));
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      const float* at = s_.scores + r * kTile;
      F x[kVectors];
      for (int i = 0; i < kVectors; ++i) {
        x[i] = T::load(at + i * T::kLanes);
        if constexpr (E::kRoundsQueries) x[i] = T::mul(x[i], T::broadcast(score_factor_));
      }
      F most = x[0];
      for (int i = 1; i < kVectors; ++i) most = T::max(most, x[i]);
      float& maximum = s_.maxima[row + r];
      // The maximum follows only where it grows by more than 2^8: what it is for is overflow.
      if (T::any_greater(most, T::broadcast(maximum + 8.0f))) raise(row + r, T::largest(most));
      const F base = T::broadcast(maximum == kNothing ? 0.0f : maximum);
      F w[kVectors];
      for (int i = 0; i < kVectors; ++i) w[i] = exp2_poly<T, E::kExpDegree>(T::sub(x[i], base));
      constexpr int kPer = kGranuleTokens / T::kLanes;
      float* lanes = s_.lanes + (row + r) * kGranuleTokens;
      for (int p = 0; p < kPer; ++p) {
        F total = T::load(lanes + p * T::kLanes);
        for (int i = p; i < kVectors; i += kPer) total = T::add(total, w[i]);
        T::store(lanes + p * T::kLanes, total);
      }
      std::uint32_t* to = s_.weights + r * kTile;
      if constexpr (E::kScaled) {
        s_.weight_scales[r] = scale_weights(rows, w);
        if (value_is_nan) s_.weight_scales[r] = __builtin_nanf("");
      }
      for (int i = 0; i < kVectors; ++i) E::store_weights(to, i * T::kLanes, w[i]);
    }
  }

  void raise(std::int32_t row, float maximum) {
    const float before = s_.maxima[row];
    s_.maxima[row] = maximum;
    if (before == kNothing) return;  // its sums are 0
    const F factor = exp2_poly<T, 5>(T::broadcast(before - maximum));
    float* sums = s_.sums + row * sums_stride_;
    for (std::int64_t d = 0; d < sums_stride_; d += T::kLanes) {
      T::store(sums + d, T::mul(T::load(sums + d), factor));
    }
    float* lanes = s_.lanes + row * kGranuleTokens;
    for (int p = 0; p < kGranuleTokens; p += T::kLanes) {
      T::store(lanes + p, T::mul(T::load(lanes + p), factor));
    }
  }

  // Folds the scales of V into the weights of a row, which become 0 .. 255; answers their scale.
  float scale_weights(const TileRows& rows, F* w) {
    constexpr int kPer = kGranuleTokens / T::kLanes;
    F most = T::zero();
    for (int i = 0; i < kVectors; ++i) {
      const int s = i / kPer;
      if (rows.k[s] == nullptr) {
        w[i] = T::zero();
        continue;
      }
      w[i] = T::mul(w[i], T::load(rows.v_scales[s] + i % kPer * T::kLanes));
      most = T::max(w[i], most);
    }
    const float largest = T::largest(most);
    if (!(largest > 1e-30f && largest < 1e30f)) {
      for (int i = 0; i < kVectors; ++i) w[i] = T::zero();
      return largest > 1e30f || largest != largest ? __builtin_nanf("") : 0.0f;
    }
    const F inverse = T::broadcast(255.0f / largest);
    for (int i = 0; i < kVectors; ++i) w[i] = T::mul(w[i], inverse);
    return largest / 255.0f;
  }

  template <int R>
  void add_values(std::int32_t row, const TileRows& rows, std::uint64_t mask) {
    SumRows some;
    some.packed_stride = std::int64_t{item_.v.head_dim} * E::kLaneBytes;
    for (int s = 0; s < kSubtiles; ++s) {
      if ((mask >> (16 * s) & 0xffffu) == 0) continue;
      some.v[some.count] = rows.v[s];
      some.stride[some.count] = rows.v_stride[s];
      some.ahead[some.count] = rows.v_ahead[s];
      some.subtile[some.count] = s;
      ++some.count;
    }
    sum_rows<R, 0>(row, some);
  }

  template <int R, int kFirst>
  void sum_rows(std::int32_t row, const SumRows& some) {
    constexpr int kLeft = R - kFirst;
    constexpr int kNow = kLeft < T::kSumRows ? kLeft : T::kSumRows;
    constexpr int kWide = T::sum_vectors(kNow, kPlain);
    const int dims = item_.v.head_dim;
    int dim = 0;
    const std::uint32_t* weights = s_.weights + kFirst * kTile;
    const float* scales = s_.weight_scales + kFirst;
    float* sums = s_.sums + (row + kFirst) * sums_stride_;
    for (; dim + kWide * T::kLanes <= dims; dim += kWide * T::kLanes) {
      sum_pass<T, E, kNow, kWide>(weights, scales, some, dim, sums, sums_stride_);
    }
    for (; dim + T::kLanes <= dims; dim += T::kLanes) {
      sum_pass<T, E, kNow, 1>(weights, scales, some, dim, sums, sums_stride_);
    }
    if (dim < dims) sum_tail<kNow>(weights, scales, some, dim, sums);
    if constexpr (kLeft > kNow) sum_rows<R, kFirst + kNow>(row, some);
  }

  // The last 8 dims of a head_dim that is no multiple of the vector.
  template <int R>
  void sum_tail(const std::uint32_t* weights, const float* scales, const SumRows& some, int dim,
                float* sums) {
    if constexpr (T::kLanes > 8) {
      sum_pass<T, Tail, R, 1>(weights, scales, some, dim, sums, sums_stride_);
    }
  }

  const Item& item_;
  const Scratch& s_;
  std::int32_t all_rows_;
  int k_lines_;
  std::int64_t sums_stride_;
  TileAddresses<E, Pack> addresses_;
  float score_factor_ = 1.0f;
  std::int32_t tile_ = 0;  // at hand, if kBends
};

template <class T, class E, class Tail, class Pack>
void attend_item(const Item& item, const Scratch& scratch) noexcept {
  Attend<T, E, Tail, Pack, false>(item, scratch).run();
}

template <class T, class E, class Tail, class Pack>
void attend_bent_item(const Item& item, const Scratch& scratch) noexcept {
  Attend<T, E, Tail, Pack, true>(item, scratch).run();
}

template <class T>
void merge_states_of(const State& into, const State& part, std::int32_t rows,
                     std::int32_t head_dim) noexcept {
  for (std::int32_t r = 0; r < rows; ++r) {
    merge_row<T>({into.sums + r * into.sums_stride, into.totals + r, into.maxima + r, 0},
                 {part.sums + r * part.sums_stride, part.totals + r, part.maxima + r, 0}, head_dim);
  }
}

template <class T>
void finish_row(const float* sums, float total, float* dst, std::int32_t head_dim) noexcept {
  const typename T::F by = T::broadcast(total);
  for (std::int64_t d = 0; d < padded(head_dim); d += T::kLanes) {
    T::store(dst + d, total == 0.0f ? T::zero() : T::div(T::load(sums + d), by));
  }
}

}  // namespace
}  // namespace kvfolio::kernels
