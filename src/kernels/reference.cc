// SPDX-License-Identifier: Apache-2.0

// For one row (query token and query head) over the visible positions j in increasing order, all in
// double, every sum from left to right:
//
//   s_j = scale * sum_d q_d k_jd          m = max_j s_j
//   l   = sum_j exp(s_j - m)              o_d = (sum_j exp(s_j - m) v_jd) / l
//   lse = m + log(l)
//
// A soft cap c makes s_j = c tanh(s_j / c); then ALiBi adds slope * (j - position). A learned sink
// is one more score, the last one, which m and l count and o does not.
// An element of int8 is its number times its scale, in double: exact.
// A row's numbers therefore depend on nothing but its query and the K and V of what it sees: not on
// block size, format, batch, chunk or slice. The query heads of one KV head are done together only
// so that a row of K or V is converted once.

#include "kernels/reference.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/convert.h"
#include "kernels/rows.h"
#include "kernels/visible.h"

namespace kvfolio::kernels {
namespace {

constexpr double kMasked = -std::numeric_limits<double>::infinity();
constexpr std::int64_t kScratchAlignment = 64;

// The caller's workspace, cut up.
struct Scratch {
  double* query = nullptr;   // [q_per_kv, head_dim_k]
  double* scores = nullptr;  // [q_per_kv, max_kv_len], by rank among the visible positions
  double* sums = nullptr;    // [q_per_kv, head_dim_v]
  double* totals = nullptr;  // [q_per_kv]: l
  double* vector = nullptr;  // [max(head_dim_k, head_dim_v)]: one row of K or V
};

double dot(const double* a, const double* b, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Scores become weights exp(s - m); answers l and m + log(l), in which `sink` is a score, too. -inf
// everywhere is a masked row.
struct Softmax {
  double total = 0.0;
  double lse = kMasked;
};

Softmax softmax(double* scores, std::int64_t n, double sink) {
  double most = sink;
  for (std::int64_t i = 0; i < n; ++i) {
    if (!(scores[i] <= most)) most = scores[i];  // a NaN passes, here or in the sum
  }
  if (most == kMasked) {
    std::fill_n(scores, n, 0.0);
    return {};
  }
  double total = 0.0;
  for (std::int64_t i = 0; i < n; ++i) {
    scores[i] = std::exp(scores[i] - most);
    total += scores[i];
  }
  if (sink != kMasked) total += std::exp(sink - most);
  return {total, most + std::log(total)};
}

class Reference {
 public:
  explicit Reference(const AttentionArgs& args)
      : args_(args),
        dim_k_(args.cache.head_dim_k),
        dim_v_(args.cache.head_dim_v),
        q_per_kv_(args.q.num_heads / args.cache.num_kv_heads),
        k_(k_plane(args.cache, args.layer)),
        v_(v_plane(args.cache, args.layer)),
        load_query_(convert_fn(args.q.dtype, DType::kF64)),
        store_out_(convert_fn(DType::kF64, args.out.dtype)) {
    if (args.lse.data != nullptr) store_lse_ = convert_fn(DType::kF64, args.lse.dtype);
    for (const std::int32_t kv_len : args.batch.kv_lens) {
      max_kv_len_ = std::max<std::int64_t>(max_kv_len_, kv_len);
    }
    const auto address = reinterpret_cast<std::uintptr_t>(args.workspace.data());
    constexpr auto kAlign = static_cast<std::uintptr_t>(kScratchAlignment);
    std::byte* start = args.workspace.data() + (kAlign - address % kAlign) % kAlign;
    scratch_.query = reinterpret_cast<double*>(start);
    scratch_.scores = scratch_.query + q_per_kv_ * dim_k_;
    scratch_.sums = scratch_.scores + q_per_kv_ * max_kv_len_;
    scratch_.totals = scratch_.sums + q_per_kv_ * dim_v_;
    scratch_.vector = scratch_.totals + q_per_kv_;
  }

  // Takes rows and heads by number until `next` is past the last one.
  void run(std::atomic<std::int64_t>& next) const {
    std::int64_t mine = next.fetch_add(1, std::memory_order_relaxed);
    std::int64_t number = 0;
    const AttentionBatch& batch = args_.batch;
    const AttentionSlice& slice = args_.slice;
    for (std::size_t i = 0; i < batch.kv_lens.size(); ++i) {
      const std::int32_t begin = std::max(batch.query_start[i], slice.first_row);
      const std::int32_t end = std::min(batch.query_start[i + 1], slice.first_row + slice.num_rows);
      const std::int32_t kv_len = batch.kv_lens[i];
      const Trim trim = trim_of(batch, i);
      const std::int32_t* table =
          batch.block_table.data() + static_cast<std::int64_t>(i) * batch.block_table_stride;
      for (std::int32_t row = begin; row < end; ++row) {
        const std::int32_t position = kv_len - (batch.query_start[i + 1] - row);
        const Visible seen = visible(position, position, kv_len, args_.params, trim);
        for (std::int32_t h = 0; h < slice.num_kv_heads; ++h, ++number) {
          if (number < mine) continue;
          attend_head(row, position, slice.first_kv_head + h, seen, table);
          mine = next.fetch_add(1, std::memory_order_relaxed);
        }
      }
    }
  }

 private:
  // All query heads of one row, at `position`, that read KV head `head`.
  void attend_head(std::int32_t row, std::int32_t position, std::int32_t head, const Visible& seen,
                   const std::int32_t* table) const {
    const std::int32_t first_q_head = head * q_per_kv_;
    for (std::int32_t g = 0; g < q_per_kv_; ++g) {
      load_query_(args_.q.at(row, first_q_head + g), bytes(query(g)), dim_k_);
    }

    std::int64_t count = 0;
    for_each_position(seen, table, [&](std::int32_t j, std::int32_t block, std::int32_t offset) {
      k_.read(block, head, offset, scratch_.vector);
      for (std::int32_t g = 0; g < q_per_kv_; ++g) {
        scores(g)[count] = bent(args_.params.scale * dot(query(g), scratch_.vector, dim_k_),
                                first_q_head + g, std::int64_t{j} - position);
      }
      ++count;
    });

    for (std::int32_t g = 0; g < q_per_kv_; ++g) {
      const Softmax result = softmax(scores(g), count, sink(first_q_head + g));
      scratch_.totals[g] = result.total;
      if (store_lse_ != nullptr) {
        store_lse_(bytes(&result.lse), args_.lse.at(row, first_q_head + g), 1);
      }
    }

    std::fill_n(scratch_.sums, q_per_kv_ * dim_v_, 0.0);
    std::int64_t rank = 0;
    for_each_position(seen, table, [&](std::int32_t, std::int32_t block, std::int32_t offset) {
      v_.read(block, head, offset, scratch_.vector);
      for (std::int32_t g = 0; g < q_per_kv_; ++g) {
        const double weight = scores(g)[rank];
        for (std::int64_t d = 0; d < dim_v_; ++d) sums(g)[d] += weight * scratch_.vector[d];
      }
      ++rank;
    });

    for (std::int32_t g = 0; g < q_per_kv_; ++g) {
      const double total = scratch_.totals[g];
      for (std::int64_t d = 0; d < dim_v_; ++d) {
        sums(g)[d] = total == 0.0 ? 0.0 : sums(g)[d] / total;
      }
      store_out_(bytes(sums(g)), args_.out.at(row, first_q_head + g), dim_v_);
    }
  }

  // A score behind the soft cap and ALiBi. distance: from the query to the key.
  [[nodiscard]] double bent(double score, std::int32_t q_head, std::int64_t distance) const {
    const AttentionParams& params = args_.params;
    if (params.soft_cap > 0.0) score = params.soft_cap * std::tanh(score / params.soft_cap);
    if (params.alibi_slopes.empty()) return score;
    const double slope = params.alibi_slopes[static_cast<std::size_t>(q_head)];
    return score + slope * static_cast<double>(distance);
  }

  // The logit of the learned sink of a query head; -inf: none.
  [[nodiscard]] double sink(std::int32_t q_head) const {
    const std::span<const float> logits = args_.params.sink_logits;
    return logits.empty() ? kMasked : logits[static_cast<std::size_t>(q_head)];
  }

  // Calls visit(position, block, offset) for every visible position, in increasing order.
  template <typename Visit>
  void for_each_position(const Visible& seen, const std::int32_t* table, Visit&& visit) const {
    const std::int32_t block_size = args_.cache.block_size;
    for (int r = 0; r < seen.num_ranges; ++r) {
      const Range& range = seen.ranges[static_cast<std::size_t>(r)];
      for (std::int32_t j = range.begin; j < range.end; ++j) {
        const std::int32_t logical = j / block_size;
        visit(j, table[logical], j - logical * block_size);
      }
    }
  }

  [[nodiscard]] double* query(std::int64_t g) const { return scratch_.query + g * dim_k_; }
  [[nodiscard]] double* scores(std::int64_t g) const { return scratch_.scores + g * max_kv_len_; }
  [[nodiscard]] double* sums(std::int64_t g) const { return scratch_.sums + g * dim_v_; }

  static std::byte* bytes(double* doubles) { return reinterpret_cast<std::byte*>(doubles); }
  static const std::byte* bytes(const double* doubles) {
    return reinterpret_cast<const std::byte*>(doubles);
  }

  const AttentionArgs& args_;
  std::int64_t dim_k_;
  std::int64_t dim_v_;
  std::int32_t q_per_kv_;  // query heads per KV head
  ValueReader k_;
  ValueReader v_;
  ConvertFn load_query_;
  ConvertFn store_out_;
  ConvertFn store_lse_ = nullptr;
  std::int64_t max_kv_len_ = 0;
  Scratch scratch_;
};

}  // namespace

Checked reference_workspace_bytes(const KVView& cache, std::int32_t num_q_heads,
                                  std::int32_t max_kv_len, std::int32_t num_threads) noexcept {
  const std::int64_t q_per_kv = num_q_heads / cache.num_kv_heads;
  const Checked per_head = Checked(cache.head_dim_k) + cache.head_dim_v + max_kv_len + 1;
  const Checked doubles = per_head * q_per_kv + std::max(cache.head_dim_k, cache.head_dim_v);
  const Checked bytes = doubles * static_cast<std::int64_t>(sizeof(double)) + kScratchAlignment;
  return bytes.round_up(kScratchAlignment) * num_threads;
}

void reference_attend(const AttentionArgs& args) noexcept {
  KVFOLIO_DCHECK(check_view(args.cache).ok() && check_layer(args.cache, args.layer).ok());
  KVFOLIO_DCHECK(args.slice.num_rows >= 0 && args.slice.num_kv_heads >= 0);
  struct Call {
    const AttentionArgs& args;
    std::size_t each;  // bytes of workspace
    std::atomic<std::int64_t> next{0};

    void work(std::int32_t thread) {
      AttentionArgs mine = args;
      mine.workspace = args.workspace.subspan(static_cast<std::size_t>(thread) * each, each);
      Reference(mine).run(next);
    }
  };
  const std::int32_t num_threads = args.executor == nullptr ? 1 : args.executor->num_threads;
  Call call{args, args.workspace.size() / static_cast<std::size_t>(num_threads)};
  if (num_threads == 1) {
    call.work(0);
  } else {
    parallel_for(*args.executor, num_threads, [&](std::int32_t thread) { call.work(thread); });
  }
}

}  // namespace kvfolio::kernels
