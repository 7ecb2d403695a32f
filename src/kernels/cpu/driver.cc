// SPDX-License-Identifier: Apache-2.0

// From one call of attend() to items on threads. A call is cut into row batches (up to 64 rows of
// one sequence), a batch into bundles of KV heads. With several threads a batch that is a large
// share of all work is also cut along the positions, at multiples of kRange.
//
// The one idea: no list of items is stored. Every thread walks the same batches in the same order,
// and one atomic counter says which item is next. The thread that finishes the last part of a cut
// batch merges its parts in the order of positions.
//
// Read Call::run() and Walk first. item.h says what an item is; attend_phases.h computes one.

#include "kernels/cpu/driver.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>

#include "kernels/check.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/rows.h"
#include "kvfolio/executor.h"
#include "kvfolio/kernels.h"
#include "kvfolio/view.h"

namespace kvfolio::kernels {
namespace {

constexpr std::int64_t kAlignment = 64;
// With several threads, what takes more than this part of a thread's share is cut along the
// positions, so that no thread waits long for the last one.
constexpr std::int64_t kBatchesPerThread = 4;
// Bytes that parts of cut batches may take; beyond them batches stay whole.
constexpr std::int64_t kMaxPartBytes = std::int64_t{64} << 20;

// Products of a query and a key that are done before other threads have heard of them.
constexpr std::int64_t kAlone = std::int64_t{1} << 18;

constexpr std::int64_t align(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Cuts memory into arrays; without memory it counts.
class Cutter {
 public:
  explicit Cutter(std::byte* base) : base_(base) {}
  template <typename T>
  void cut(T*& array, std::int64_t count) {
    if (base_ != nullptr) array = reinterpret_cast<T*>(base_ + used_);
    used_ += align(count * static_cast<std::int64_t>(sizeof(T)));
  }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

std::int64_t cut_state(Cutter& cutter, State& state, std::int64_t rows, std::int64_t head_dim_v) {
  state.sums_stride = padded(head_dim_v);
  cutter.cut(state.sums, rows * state.sums_stride);
  cutter.cut(state.totals, rows);
  cutter.cut(state.maxima, rows);
  return cutter.used();
}

// The scratch memory of one thread; answers its bytes.
std::int64_t cut_scratch(std::byte* base, std::int64_t head_dim_v, Scratch& scratch) {
  constexpr std::int64_t kPacked = kSubtiles * kSubtileBytes;
  Cutter cutter(base);
  cutter.cut(scratch.queries, std::int64_t{kItemRows} * kQueryWords);
  cutter.cut(scratch.query_scales, kItemRows);
  cutter.cut(scratch.query_sums, kItemRows);
  cutter.cut(scratch.sums, kItemRows * padded(head_dim_v));
  cutter.cut(scratch.lanes, std::int64_t{kItemRows} * kGranuleTokens);
  cutter.cut(scratch.maxima, kItemRows);
  cutter.cut(scratch.scores, std::int64_t{kBlockRows} * kTile);
  cutter.cut(scratch.weights, std::int64_t{kBlockRows} * kTile);
  cutter.cut(scratch.weight_scales, kBlockRows);
  cutter.cut(scratch.packed_k, kPacked);
  cutter.cut(scratch.packed_v, kPacked);
  cutter.cut(scratch.masked_v, kPacked);
  cutter.cut(scratch.scales, std::int64_t{3} * kTile);
  cutter.cut(scratch.row, kMaxHeadDim);
  return cut_state(cutter, scratch.total, kItemRows, head_dim_v);
}

// Rows of one part of a cut batch.
std::int64_t part_bytes(std::int64_t head_dim_v) {
  State state;
  Cutter cutter(nullptr);
  return cut_state(cutter, state, kItemRows, head_dim_v);
}

std::int64_t ranges_of(std::int64_t positions) { return (positions + kRange - 1) / kRange; }

struct Room {
  std::int64_t parts = 0;     // parts of cut batches
  std::int64_t counters = 0;  // cut batches
};

// Each cut batch takes more than a part of all work, so there are not many.
Room room_for(const KVView& cache, std::int64_t max_kv_len, std::int64_t num_threads) {
  if (num_threads == 1 || max_kv_len <= kRange) return {};
  const std::int64_t batches = kBatchesPerThread * num_threads;
  const std::int64_t most = kMaxPartBytes / part_bytes(cache.head_dim_v);
  return {std::min(batches * ranges_of(max_kv_len), most), batches};
}

// The arrays of the shared part of the workspace.
struct Shared {
  std::atomic<std::int32_t>* done = nullptr;  // by cut batch: parts that are ready
  std::byte* parts = nullptr;
};

std::int64_t cut_shared(std::byte* base, const KVView& cache, const Room& room, Shared& shared) {
  Cutter cutter(base);
  cutter.cut(shared.done, room.counters);
  cutter.cut(shared.parts, room.parts * part_bytes(cache.head_dim_v));
  return cutter.used();
}

HeadRows head_rows(const Plane& plane, const std::byte* scales, const KVStrides& scale_strides,
                   std::int32_t layer, std::int32_t head) {
  HeadRows rows;
  rows.rows = plane.base + head * plane.strides.head;
  rows.block_stride = plane.strides.block;
  rows.head_stride = plane.strides.head;
  rows.token_stride = plane.strides.token;
  if (scales != nullptr) {
    rows.scales = scales + layer * scale_strides.layer + head * scale_strides.head;
    rows.scale_block_stride = scale_strides.block;
    rows.scale_head_stride = scale_strides.head;
    rows.scale_token_stride = scale_strides.token;
  }
  rows.head_dim = plane.head_dim;
  return rows;
}

// What a row's sums are divided by, and its logarithm.
struct RowEnd {
  float total = 0.0f;
  double lse = -std::numeric_limits<double>::infinity();
};

// total: sum of 2^(score - maximum).
RowEnd end_of(float total, float maximum) {
  constexpr double kLn2 = 0.6931471805599453094;
  if (total == 0.0f) return {};
  return {total, maximum * kLn2 + std::log(double{total})};
}

// One more term of the total, which has no value. -inf: none.
void add_sink(RowEnd& end, double logit) {
  if (logit == -std::numeric_limits<double>::infinity()) return;
  if (end.total == 0.0f) {  // the row read no token
    end.lse = logit;
    return;
  }
  const double share = std::exp(logit - end.lse);  // over that of all other terms
  constexpr double kMost = std::numeric_limits<float>::max();
  end.total = static_cast<float>(std::min(end.total * (1.0 + share), kMost));
  end.lse = std::max(end.lse, logit) + std::log1p(std::exp(-std::abs(logit - end.lse)));
}

// Up to kItemRows rows of one sequence, for every head of the slice. Its heads are taken
// heads_per_item at a time. Rows are counted from first_query on: those of the whole
// sequence may be more than 2^31.
struct RowBatch {
  std::size_t sequence = 0;
  std::int32_t first_query = 0;     // row of q
  std::int32_t query_position = 0;  // of first_query
  std::int32_t first_row = 0;       // below q_per_kv
  std::int32_t num_rows = 0;
  Visible seen;
  std::int64_t cost = 0;  // rows times positions
  std::int32_t heads_per_item = 1;
  std::int32_t num_bundles = 1;  // of heads
  // Cut along the positions: the ranges of seen, one after the other.
  std::int32_t num_parts = 1;
  std::int64_t first_part = 0;  // in Shared::parts, of the first bundle
  std::int64_t counter = 0;     // in Shared::done, of the first bundle
};

class Call {
 public:
  Call(const AttentionArgs& args, const TargetKernels& kernels)
      : args_(args),
        kernels_(kernels),
        attend_(attend_of(kernels, args.params, args.cache.dtype)),
        q_per_kv_(args.q.num_heads / args.cache.num_kv_heads),
        rows_per_item_(q_per_kv_ <= kItemRows ? kItemRows / q_per_kv_ * q_per_kv_ : kItemRows),
        k_(k_plane(args.cache, args.layer)),
        v_(v_plane(args.cache, args.layer)) {}

  void run() {
    std::int64_t num_threads = args_.executor == nullptr ? 1 : args_.executor->num_threads;
    std::int32_t longest = 0;
    for (const std::int32_t kv_len : args_.batch.kv_lens) longest = std::max(longest, kv_len);
    room_ = room_for(args_.cache, longest, num_threads);

    const auto address = reinterpret_cast<std::uintptr_t>(args_.workspace.data());
    std::byte* base = args_.workspace.data() + (kAlignment - address % kAlignment) % kAlignment;
    base += cut_shared(base, args_.cache, room_, shared_);
    scratches_ = base;
    for (std::int64_t i = 0; i < room_.counters; ++i) {
      new (shared_.done + i) std::atomic<std::int32_t>(0);
    }

    std::int64_t cost = 0;
    std::int64_t items = 0;
    for (Walk walk(*this); walk.valid(); walk.next()) {
      cost += walk.row_batch().cost * args_.slice.num_kv_heads;
      items += args_.slice.num_kv_heads;
    }
    if (items == 0) return;
    cut_above_ = num_threads == 1 ? std::numeric_limits<std::int64_t>::max()
                                  : cost / (kBatchesPerThread * num_threads);
    if (room_.parts == 0) num_threads = std::min(num_threads, items);
    if (cost * (k_.head_dim + v_.head_dim) < kAlone) num_threads = 1;
    if (num_threads == 1) {
      work(0);
    } else {
      args_.executor->parallel_for(
          args_.executor->context, static_cast<std::int32_t>(num_threads),
          [](void* call, std::int32_t thread) { static_cast<Call*>(call)->work(thread); }, this);
    }
  }

 private:
  // The batches of the call in order; every thread walks them alike.
  class Walk {
   public:
    explicit Walk(const Call& call) : call_(call) { settle(); }
    [[nodiscard]] bool valid() const { return valid_; }
    [[nodiscard]] const RowBatch& row_batch() const { return row_batch_; }
    void next() {
      if (row_batch_.num_parts > 1) {
        parts_ += std::int64_t{row_batch_.num_parts} * row_batch_.num_bundles;
        counters_ += row_batch_.num_bundles;
      }
      row_ += row_batch_.num_rows;
      settle();
    }

   private:
    // Makes the batch at row_ of sequence_, or of the next sequence that has one.
    void settle() {
      const AttentionArgs& args = call_.args_;
      const AttentionBatch& batch = args.batch;
      for (; sequence_ < batch.kv_lens.size(); ++sequence_, row_ = -1) {
        const std::int32_t start = batch.query_start[sequence_];
        const std::int32_t first = std::max(start, args.slice.first_row);
        const std::int32_t end =
            std::min(batch.query_start[sequence_ + 1], args.slice.first_row + args.slice.num_rows);
        if (first >= end) continue;
        const std::int32_t q_per_kv = call_.q_per_kv_;
        if (row_ < 0) row_ = std::int64_t{first - start} * q_per_kv;
        const std::int64_t left = std::int64_t{end - start} * q_per_kv - row_;
        if (left <= 0) continue;
        const std::int32_t kv_len = batch.kv_lens[sequence_];
        row_batch_ = {};
        row_batch_.sequence = sequence_;
        const auto first_query = static_cast<std::int32_t>(row_ / q_per_kv);
        row_batch_.first_query = start + first_query;
        row_batch_.query_position =
            kv_len - (batch.query_start[sequence_ + 1] - start) + first_query;
        row_batch_.first_row = static_cast<std::int32_t>(row_ % q_per_kv);
        row_batch_.num_rows =
            static_cast<std::int32_t>(std::min<std::int64_t>(left, call_.rows_per_item_));
        const std::int64_t last_query =
            (std::int64_t{row_batch_.first_row} + row_batch_.num_rows - 1) / q_per_kv;
        row_batch_.seen = visible(row_batch_.query_position, row_batch_.query_position + last_query,
                                  kv_len, args.params, trim_of(batch, sequence_));
        row_batch_.cost = 1;
        std::int64_t parts = 0;
        std::int32_t range = -1;
        for (int i = 0; i < row_batch_.seen.num_ranges; ++i) {
          const Range& seen = row_batch_.seen.ranges[static_cast<std::size_t>(i)];
          const std::int32_t first_range = std::max(seen.begin / kRange, range + 1);
          range = (seen.end - 1) / kRange;
          parts += range - first_range + 1;
          row_batch_.cost += std::int64_t{row_batch_.num_rows} * (seen.end - seen.begin);
        }
        // Few rows: several heads at once, as long as what they take is no large part of all work.
        const std::int32_t heads = args.slice.num_kv_heads;
        std::int64_t together = std::min(heads, kItemRows / row_batch_.num_rows);
        together = std::clamp<std::int64_t>(call_.cut_above_ / row_batch_.cost, 1, together);
        row_batch_.heads_per_item = static_cast<std::int32_t>(together);
        row_batch_.num_bundles =
            (heads + row_batch_.heads_per_item - 1) / row_batch_.heads_per_item;
        if (row_batch_.cost > call_.cut_above_ && parts > 1 &&
            parts_ + parts * row_batch_.num_bundles <= call_.room_.parts &&
            counters_ + row_batch_.num_bundles <= call_.room_.counters) {
          row_batch_.num_parts = static_cast<std::int32_t>(parts);
          row_batch_.first_part = parts_;
          row_batch_.counter = counters_;
        }
        valid_ = true;
        return;
      }
      valid_ = false;
    }

    const Call& call_;
    std::size_t sequence_ = 0;
    std::int64_t row_ = -1;  // within the sequence; -1: its first of the slice
    std::int64_t parts_ = 0;
    std::int64_t counters_ = 0;
    bool valid_ = false;
    RowBatch row_batch_;
  };

  // Takes items until there are none.
  void work(std::int32_t thread) {
    Scratch scratch;
    const std::int64_t bytes = cut_scratch(nullptr, args_.cache.head_dim_v, scratch);
    cut_scratch(scratches_ + thread * bytes, args_.cache.head_dim_v, scratch);
    std::int64_t before = 0;  // items of the batches that were passed
    Walk walk(*this);
    for (;;) {
      const std::int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
      for (; walk.valid(); walk.next()) {
        const std::int64_t items =
            std::int64_t{walk.row_batch().num_bundles} * walk.row_batch().num_parts;
        if (item - before < items) break;
        before += items;
      }
      if (!walk.valid()) return;
      const std::int64_t within = item - before;
      run_item(walk.row_batch(), static_cast<std::int32_t>(within % walk.row_batch().num_bundles),
               static_cast<std::int32_t>(within / walk.row_batch().num_bundles), scratch);
    }
  }

  void run_item(const RowBatch& row_batch, std::int32_t bundle, std::int32_t part,
                const Scratch& scratch) {
    const AttentionBatch& batch = args_.batch;
    const std::int32_t first_head = bundle * row_batch.heads_per_item;
    const std::int32_t kv_head = args_.slice.first_kv_head + first_head;
    Item item;
    item.num_heads = std::min(row_batch.heads_per_item, args_.slice.num_kv_heads - first_head);
    item.k = head_rows(k_, args_.cache.k_scale, args_.cache.k_scale_strides, args_.layer, kv_head);
    item.v = head_rows(v_, args_.cache.v_scale, args_.cache.v_scale_strides, args_.layer, kv_head);
    item.granule = args_.cache.granule;
    item.e4m3 = args_.cache.dtype == DType::kE4M3;
    item.block_size = args_.cache.block_size;
    item.num_blocks = args_.cache.num_blocks;
    item.table = batch.block_table.data() +
                 row_batch.sequence * static_cast<std::size_t>(batch.block_table_stride);
    item.kv_len = batch.kv_lens[row_batch.sequence];
    item.query_position = row_batch.query_position;
    item.q_per_kv = q_per_kv_;
    item.first_row = row_batch.first_row;
    item.num_rows = row_batch.num_rows;
    item.end_position = item.kv_len;
    item.params = args_.params;
    item.trim = trim_of(batch, row_batch.sequence);
    if (!args_.params.alibi_slopes.empty()) {
      item.slopes = args_.params.alibi_slopes.data() + std::int64_t{kv_head} * q_per_kv_;
    }
    item.q = args_.q.at(row_batch.first_query, kv_head * q_per_kv_);
    item.q_token_stride = args_.q.token_stride;
    item.q_head_stride = args_.q.head_stride;
    item.load_q = convert_fn(args_.q.dtype, DType::kF32);
    if (row_batch.num_parts == 1) {
      attend_(item, scratch);
      finish(row_batch, kv_head, item.num_heads, scratch);
      return;
    }
    const std::int32_t range = range_of(row_batch.seen, part);
    item.first_position = range * kRange;
    item.end_position = std::min(item.kv_len, item.first_position + kRange);
    attend_(item, scratch);
    const std::int64_t first_part =
        row_batch.first_part + std::int64_t{bundle} * row_batch.num_parts;
    State mine = state_of(first_part + part);
    mine.sums_stride = scratch.total.sums_stride;
    const std::int32_t num_rows = item.num_heads * item.num_rows;
    const auto rows = static_cast<std::size_t>(num_rows);
    std::copy_n(scratch.total.sums, rows * static_cast<std::size_t>(mine.sums_stride), mine.sums);
    std::copy_n(scratch.total.totals, rows, mine.totals);
    std::copy_n(scratch.total.maxima, rows, mine.maxima);
    // The thread that ends last merges, in the order of positions.
    if (shared_.done[row_batch.counter + bundle].fetch_add(1, std::memory_order_acq_rel) + 1 !=
        row_batch.num_parts) {
      return;
    }
    const State first = state_of(first_part);
    std::copy_n(first.sums, rows * static_cast<std::size_t>(first.sums_stride), scratch.total.sums);
    std::copy_n(first.totals, rows, scratch.total.totals);
    std::copy_n(first.maxima, rows, scratch.total.maxima);
    for (std::int32_t p = 1; p < row_batch.num_parts; ++p) {
      kernels_.merge(scratch.total, state_of(first_part + p), num_rows, v_.head_dim);
    }
    finish(row_batch, kv_head, item.num_heads, scratch);
  }

  [[nodiscard]] State state_of(std::int64_t part) const {
    State state;
    Cutter cutter(shared_.parts + part * part_bytes(v_.head_dim));
    cut_state(cutter, state, kItemRows, v_.head_dim);
    return state;
  }

  // The part-th range that holds something of `seen`.
  static std::int32_t range_of(const Visible& seen, std::int32_t part) {
    std::int32_t range = -1;
    for (int i = 0; i < seen.num_ranges; ++i) {
      const Range& some = seen.ranges[static_cast<std::size_t>(i)];
      const std::int32_t first = std::max(some.begin / kRange, range + 1);
      range = (some.end - 1) / kRange;
      const std::int32_t count = range - first + 1;
      if (part < count) return first + part;
      part -= count;
    }
    return range;
  }

  // Sums become the result.
  void finish(const RowBatch& row_batch, std::int32_t kv_head, std::int32_t num_heads,
              const Scratch& scratch) {
    const ConvertFn store_out = convert_fn(DType::kF32, args_.out.dtype);
    const ConvertFn store_lse =
        args_.lse.data == nullptr ? nullptr : convert_fn(DType::kF64, args_.lse.dtype);
    alignas(64) float row[kMaxHeadDim];
    for (std::int32_t i = 0; i < num_heads * row_batch.num_rows; ++i) {
      const std::int64_t r = std::int64_t{row_batch.first_row} + i % row_batch.num_rows;
      const auto query = static_cast<std::int32_t>(row_batch.first_query + r / q_per_kv_);
      const std::int32_t head =
          (kv_head + i / row_batch.num_rows) * q_per_kv_ + static_cast<std::int32_t>(r % q_per_kv_);
      RowEnd end = end_of(scratch.total.totals[i], scratch.total.maxima[i]);
      if (!args_.params.sink_logits.empty()) {
        add_sink(end, args_.params.sink_logits[static_cast<std::size_t>(head)]);
      }
      kernels_.finish(scratch.total.sums + i * scratch.total.sums_stride, end.total, row,
                      v_.head_dim);
      store_out(reinterpret_cast<const std::byte*>(row), args_.out.at(query, head), v_.head_dim);
      if (store_lse == nullptr) continue;
      store_lse(reinterpret_cast<const std::byte*>(&end.lse), args_.lse.at(query, head), 1);
    }
  }

  const AttentionArgs& args_;
  TargetKernels kernels_;
  AttendFn attend_;
  std::int32_t q_per_kv_;
  std::int32_t rows_per_item_;
  Plane k_;
  Plane v_;
  Room room_;
  Shared shared_;
  std::byte* scratches_ = nullptr;
  std::int64_t cut_above_ = std::numeric_limits<std::int64_t>::max();
  std::atomic<std::int64_t> next_item_{0};
};

}  // namespace

Checked cpu_workspace_bytes(const KVView& cache, std::int32_t max_kv_len,
                            std::int32_t num_threads) noexcept {
  KVFOLIO_DCHECK(check_view(cache).ok() && num_threads >= 1);
  Scratch scratch;
  Shared shared;
  const std::int64_t each = cut_scratch(nullptr, cache.head_dim_v, scratch);
  const Room room = room_for(cache, max_kv_len, num_threads);
  return Checked(each) * num_threads + cut_shared(nullptr, cache, room, shared) + kAlignment;
}

void cpu_attend(const AttentionArgs& args, const TargetKernels& kernels) noexcept {
  KVFOLIO_DCHECK(check_view(args.cache).ok() && check_layer(args.cache, args.layer).ok());
  KVFOLIO_DCHECK(args.slice.num_rows >= 0 && args.slice.num_kv_heads >= 0);
  KVFOLIO_DCHECK(attend_of(kernels, args.params, args.cache.dtype) != nullptr);
  Call(args, kernels).run();
}

}  // namespace kvfolio::kernels
