// SPDX-License-Identifier: Apache-2.0

// attend() against a computation of another kind: keys and values in contiguous double arrays, the
// mask as a rule about (query, position), softmax over a whole row.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using testing_cache::hashed;
using testing_cache::kCacheDTypes;
using testing_cache::kDTypes;
using testing_cache::kFormats;
using testing_cache::kInfinity;
using testing_cache::kMax;
using testing_cache::kMin;
using testing_cache::rounded;
using testing_cache::TestCache;
using testing_cache::TestRows;
using testing_cache::u;

struct Sequence {
  int kv_len = 0;
  int queries = 0;
  int trim_sinks = 0;
  int first_kept = 0;
  int key = 0;  // what its tokens are; the first `Problem::shared_blocks` blocks are those of key 0
};

struct Problem {
  std::vector<Sequence> sequences = {};
  int block_size = 4;
  int num_kv_heads = 2;
  int q_per_kv = 2;  // query heads per KV head
  int head_dim_k = 5;
  int head_dim_v = 3;
  bool prefix = false;
  DType dtype = DType::kF32;
  Format format = Format::kHnd;
  DType q_dtype = DType::kF64;
  DType out_dtype = DType::kF64;
  AttentionParams params{.scale = 0.7};
  std::vector<float> slopes = {};  // of ALiBi, by query head
  std::vector<float> logits = {};  // of learned sinks
  int layer = 1;
  unsigned seed = 1;
  int shared_blocks = 0;
  std::int32_t pad = -1;
  int gap = 0;
};

// What a position of a sequence holds: the same whatever cache it lies in.
double k_value(const Problem& s, const Sequence& seq, int position, int head, int d) {
  const int key = position < s.shared_blocks * s.block_size ? 0 : seq.key;
  return rounded(hashed(u(key), u(position), u(head), u(d)), s.dtype);
}
double v_value(const Problem& s, const Sequence& seq, int position, int head, int d) {
  if (s.prefix) return k_value(s, seq, position, head, d);
  const int key = position < s.shared_blocks * s.block_size ? 0 : seq.key;
  return rounded(hashed(u(key) + 7000, u(position), u(head), u(d)), s.dtype);
}
double q_value(const Problem& s, const Sequence& seq, int position, int head, int d) {
  return rounded(hashed(u(seq.key) + 90000, u(position), u(head), u(d)), s.q_dtype);
}

bool is_visible(const Problem& s, const Sequence& seq, int query, int position) {
  if (s.params.causal && position > query) return false;
  const GroupRule& rule = s.params.rule;
  const bool is_sink = position < rule.num_sinks();
  if (rule.kind() == AttentionKind::kSlidingWindow && position <= query - rule.window() &&
      !is_sink) {
    return false;
  }
  if (rule.kind() == AttentionKind::kChunked && position / rule.window() < query / rule.window() &&
      !is_sink) {
    return false;
  }
  return position < seq.trim_sinks || position >= seq.first_kept;
}

int num_rows(const Problem& s) {
  int rows = 0;
  for (const Sequence& seq : s.sequences) rows += seq.queries;
  return rows;
}

// A cache that holds what the rows may see and poison everywhere else, also in slots of dropped or
// masked positions and past the end of each sequence.
struct Prepared {
  explicit Prepared(const Problem& s)
      : cache(spec(s)),
        q(num_rows(s), s.num_kv_heads * s.q_per_kv, s.head_dim_k, s.q_dtype, s.gap),
        out(num_rows(s), s.num_kv_heads * s.q_per_kv, s.head_dim_v, s.out_dtype, s.gap),
        lse(num_rows(s), s.num_kv_heads * s.q_per_kv, 1, DType::kF64, s.gap) {
    const std::vector<std::int32_t> order =
        testing_cache::permutation(cache.view.num_blocks, s.seed);
    std::size_t next = static_cast<std::size_t>(s.shared_blocks);
    stride = 1;
    for (const Sequence& seq : s.sequences) {
      stride = std::max(stride, (seq.kv_len + s.block_size - 1) / s.block_size + 1);
    }
    int row = 0;
    query_start.push_back(0);
    for (const Sequence& seq : s.sequences) {
      const int first_query = seq.kv_len - seq.queries;
      for (int b = 0; b < stride; ++b) {
        bool needed = false;
        for (int p = b * s.block_size; p < std::min((b + 1) * s.block_size, seq.kv_len); ++p) {
          bool seen = false;
          for (int query = first_query; query < seq.kv_len && !seen; ++query) {
            seen = is_visible(s, seq, query, p);
          }
          if (!seen) continue;
          if (!needed) {
            table.push_back(order[b < s.shared_blocks ? static_cast<std::size_t>(b) : next++]);
            needed = true;
          }
          const int slot = table.back() * s.block_size + p % s.block_size;
          for (int h = 0; h < s.num_kv_heads; ++h) {
            for (int d = 0; d < s.head_dim_k; ++d) {
              cache.set(false, s.layer, h, slot, d, k_value(s, seq, p, h, d));
            }
            for (int d = 0; d < s.head_dim_v && !s.prefix; ++d) {
              cache.set(true, s.layer, h, slot, d, v_value(s, seq, p, h, d));
            }
          }
        }
        if (!needed) table.push_back(s.pad);
      }
      for (int query = first_query; query < seq.kv_len; ++query, ++row) {
        for (int h = 0; h < s.num_kv_heads * s.q_per_kv; ++h) {
          for (int d = 0; d < s.head_dim_k; ++d) q.set(row, h, d, q_value(s, seq, query, h, d));
        }
      }
      query_start.push_back(row);
      kv_lens.push_back(seq.kv_len);
      trim_sinks.push_back(seq.trim_sinks);
      first_kept.push_back(seq.first_kept);
      max_kv_len = std::max(max_kv_len, seq.kv_len);
    }
    workspace.resize(static_cast<std::size_t>(*attention_workspace_bytes(
        cache.view, q.rows.num_heads, max_kv_len, KernelTarget::kReference)));
    args = {.cache = cache.view,
            .layer = s.layer,
            .batch = {.query_start = query_start,
                      .kv_lens = kv_lens,
                      .block_table = table,
                      .block_table_stride = stride,
                      .trim_sinks = trim_sinks,
                      .trim_first_kept = first_kept},
            .params = s.params,
            .q = q.rows,
            .out = out.rows,
            .lse = lse.rows,
            .workspace = workspace,
            .target = KernelTarget::kReference};
    args.params.alibi_slopes = s.slopes;
    args.params.sink_logits = s.logits;
  }

  static GroupSpec spec(const Problem& s) {
    int blocks = 2 + s.shared_blocks;
    for (const Sequence& seq : s.sequences) blocks += seq.kv_len / s.block_size + 1;
    return {.num_layers = s.layer + 1,
            .num_kv_heads = s.num_kv_heads,
            .head_dim_k = s.head_dim_k,
            .head_dim_v = s.head_dim_v,
            .v_is_prefix_of_k = s.prefix,
            .block_size = s.block_size,
            .dtype = s.dtype,
            .format = s.format,
            .num_blocks = blocks};
  }

  TestCache cache;
  TestRows q;
  TestRows out;
  TestRows lse;
  std::vector<std::int32_t> query_start, kv_lens, table, trim_sinks, first_kept;
  std::int32_t stride = 0;
  std::int32_t max_kv_len = 0;
  std::vector<std::byte> workspace;
  AttentionArgs args;
};

// The output of all rows, one entry per (row, head, element), and lse per (row, head).
struct Outcome {
  std::vector<double> out;
  std::vector<double> lse;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome read(const Problem& s, const Prepared& p) {
  Outcome result;
  for (int row = 0; row < num_rows(s); ++row) {
    for (int h = 0; h < s.num_kv_heads * s.q_per_kv; ++h) {
      for (int d = 0; d < s.head_dim_v; ++d) result.out.push_back(p.out.value(row, h, d));
      result.lse.push_back(p.lse.value(row, h, 0));
    }
  }
  return result;
}

Outcome attended(const Problem& s) {
  Prepared p(s);
  const Status status = attend(p.args);
  EXPECT_TRUE(status.ok()) << status.message();
  return read(s, p);
}

Outcome naive(const Problem& s) {
  Outcome result;
  for (const Sequence& seq : s.sequences) {
    for (int query = seq.kv_len - seq.queries; query < seq.kv_len; ++query) {
      for (int h = 0; h < s.num_kv_heads * s.q_per_kv; ++h) {
        const int kv_head = h / s.q_per_kv;
        std::vector<double> score(static_cast<std::size_t>(seq.kv_len), -kInfinity);
        double most = -kInfinity;
        for (int p = 0; p < seq.kv_len; ++p) {
          if (!is_visible(s, seq, query, p)) continue;
          double product = 0;
          for (int d = s.head_dim_k; d-- > 0;) {
            product += q_value(s, seq, query, h, d) * k_value(s, seq, p, kv_head, d);
          }
          double& bent = score[static_cast<std::size_t>(p)];
          bent = product * s.params.scale;
          if (s.params.soft_cap > 0) bent = s.params.soft_cap * std::tanh(bent / s.params.soft_cap);
          if (!s.slopes.empty()) bent += double{s.slopes[u(h)]} * (p - query);
          most = std::max(most, bent);
        }
        const double logit = s.logits.empty() ? -kInfinity : double{s.logits[u(h)]};
        most = std::max(most, logit);
        double total = logit == -kInfinity ? 0 : std::exp(logit - most);
        std::vector<double> sum(static_cast<std::size_t>(s.head_dim_v), 0.0);
        for (int p = seq.kv_len; p-- > 0;) {
          if (score[static_cast<std::size_t>(p)] == -kInfinity) continue;
          const double weight = std::exp(score[static_cast<std::size_t>(p)] - most);
          total += weight;
          for (int d = 0; d < s.head_dim_v; ++d) {
            sum[static_cast<std::size_t>(d)] += weight * v_value(s, seq, p, kv_head, d);
          }
        }
        for (const double x : sum) result.out.push_back(total == 0 ? 0 : x / total);
        result.lse.push_back(total == 0 ? -kInfinity : most + std::log(total));
      }
    }
  }
  return result;
}

// How far a value of `dtype` may be from the real number it stands for.
double tolerance(DType dtype, double value) {
  const double size = std::fabs(value);
  switch (dtype) {
    case DType::kF64:
      return 1e-12 * (1 + size);
    case DType::kF32:
      return 1e-7 * (1 + size);
    case DType::kF16:
      return 0x1p-11 * size + 0x1p-24;
    case DType::kBF16:
      return 0x1p-8 * size;
    case DType::kInt8:
    case DType::kE4M3:
    case DType::kOpaque:
      break;  // no type of rows
  }
  return 0;
}

void expect_near(const Problem& s, const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.out.size(), want.out.size());
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    // 1e-12: what two orders of summation may differ by before the last rounding.
    ASSERT_LE(std::fabs(got.out[i] - want.out[i]), tolerance(s.out_dtype, want.out[i]) + 1e-12)
        << i;
  }
  for (std::size_t i = 0; i < want.lse.size(); ++i) {
    if (want.lse[i] == -kInfinity) {
      ASSERT_EQ(got.lse[i], -kInfinity);
    } else {
      ASSERT_NEAR(got.lse[i], want.lse[i], 1e-12 * (1 + std::fabs(want.lse[i])));
    }
  }
}

void expect_agrees(const Problem& s) { expect_near(s, attended(s), naive(s)); }

// ---- against the naive computation -------------------------------------------------------------

TEST(Attention, AgreesWithTheNaiveComputationForEveryFormatElementTypeAndBlockSize) {
  unsigned seed = 0;
  for (const int block_size : {1, 2, 3, 8, 16, 32, 48, 1024}) {
    for (const Format format : kFormats) {
      for (const DType dtype : kCacheDTypes) {
        const bool granule = format == Format::kGranule;
        if (granule && (!fits_granule(dtype) || block_size % 16 != 0)) continue;
        ++seed;
        SCOPED_TRACE(seed);
        // Decode, a chunk, a whole prompt, and an empty sequence in one batch.
        expect_agrees({.sequences = {{.kv_len = 37, .queries = 1, .key = 1},
                                     {.kv_len = 20, .queries = 7, .key = 2},
                                     {.kv_len = 9, .queries = 9, .key = 3},
                                     {.kv_len = 5, .queries = 0, .key = 4},
                                     {.kv_len = 0, .queries = 0, .key = 5}},
                       .block_size = block_size,
                       .head_dim_k = granule ? 16 : 5,
                       .head_dim_v = granule ? 8 : 3,
                       .dtype = dtype,
                       .format = format,
                       .q_dtype = kDTypes[seed % 4],
                       .out_dtype = kDTypes[seed / 4 % 4],
                       .seed = seed,
                       .gap = static_cast<int>(seed % 3)});
      }
    }
  }
}

TEST(Attention, AgreesWithTheNaiveComputationForRandomShapesAndMasks) {
  std::mt19937 random(42);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const auto pick_rule = [&] {
    const int sinks = pick(0, 1) * pick(0, 9);
    switch (pick(0, 2)) {
      case 0:
        return GroupRule::of_window(pick(1, 20), sinks);
      case 1:
        return GroupRule::of_chunk(pick(1, 20), sinks);
      default:
        return GroupRule(AttentionKind::kFull, 0, sinks);  // of no effect
    }
  };
  constexpr int kBlockSizes[] = {1, 2, 3, 5, 8, 16, 32};
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    Problem s{
        .block_size = kBlockSizes[pick(0, 6)],
        .num_kv_heads = pick(1, 3),
        .q_per_kv = pick(1, 5),
        .head_dim_k = pick(1, 9),
        .dtype = kDTypes[pick(0, 3)],
        .format = pick(0, 1) == 0 ? Format::kHnd : Format::kNhd,
        .q_dtype = kDTypes[pick(0, 3)],
        .out_dtype = kDTypes[pick(0, 3)],
        .params = {.scale = 0.1 * pick(1, 20), .causal = pick(0, 3) != 0, .rule = pick_rule()},
        .layer = pick(0, 2),
        .seed = static_cast<unsigned>(round),
        .pad = -pick(0, 1),
        .gap = pick(0, 2)};
    s.prefix = pick(0, 3) == 0;
    s.head_dim_v = s.prefix ? pick(1, s.head_dim_k) : pick(1, 9);
    if (pick(0, 2) == 0) s.params.soft_cap = 0.1 * pick(1, 30);
    for (int h = 0; h < s.num_kv_heads * s.q_per_kv; ++h) {
      if (round % 3 == 1) s.slopes.push_back(0.01f * static_cast<float>(pick(-20, 60)));
      if (round % 4 == 1) {
        s.logits.push_back(pick(0, 5) == 0 ? -HUGE_VALF : static_cast<float>(pick(-4, 4)));
      }
    }
    const int n = pick(0, 4);
    for (int i = 0; i < n; ++i) {
      Sequence seq{.kv_len = pick(0, 40), .key = i + 1};
      const bool positions_matter = s.params.causal || s.params.rule.kind() != AttentionKind::kFull;
      seq.queries = pick(0, seq.kv_len + (positions_matter ? 0 : 9));
      if (pick(0, 2) == 0) {
        seq.trim_sinks = pick(0, 12);
        seq.first_kept = pick(0, seq.kv_len);
      }
      s.sequences.push_back(seq);
    }
    expect_agrees(s);
    if (HasFatalFailure()) return;
  }
}

TEST(Attention, EveryLengthModuloTheBlockSizeAgrees) {
  for (const int block_size : {1, 3, 8, 16}) {
    Problem s{.block_size = block_size};
    for (int length = 1; length <= 2 * block_size + 1; ++length) {
      s.sequences.push_back({.kv_len = length, .queries = 1, .key = length});
    }
    expect_agrees(s);
  }
}

TEST(Attention, EveryWindowSinksAndTrimOfAShortSequenceAgrees) {
  for (int window = 0; window <= 10; ++window) {
    for (int sinks = 0; sinks <= 10; sinks += 3) {
      for (int trim_sinks = 0; trim_sinks <= 9; trim_sinks += 3) {
        Problem s{.block_size = 2, .num_kv_heads = 1, .q_per_kv = 1};
        if (window > 0) s.params.rule = GroupRule::of_window(window, sinks);
        for (int first_kept = 0; first_kept <= 9; ++first_kept) {
          s.sequences.push_back({.kv_len = 9,
                                 .queries = 1 + first_kept % 9,
                                 .trim_sinks = trim_sinks,
                                 .first_kept = first_kept,
                                 .key = first_kept});
        }
        SCOPED_TRACE(window * 100 + sinks * 10 + trim_sinks);
        for (const bool chunked : {false, true}) {
          if (chunked && window > 0) s.params.rule = GroupRule::of_chunk(window, sinks);
          for (const bool causal : {true, false}) {
            s.params.causal = causal;
            expect_agrees(s);
          }
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Attention, AWindowOfWReadsExactlyWTokens) {
  // With equal scores the log-sum-exp is the logarithm of how many positions are visible.
  for (const int window : {1, 2, 5, 16, 99}) {
    Problem s{.sequences = {{.kv_len = 24, .queries = 24}}, .q_per_kv = 1};
    s.params.rule = GroupRule::of_window(window);
    Prepared p(s);
    for (auto& byte : p.q.memory) byte = std::byte{0};
    ASSERT_TRUE(attend(p.args).ok());
    for (int row = 0; row < 24; ++row) {
      EXPECT_NEAR(p.lse.value(row, 0, 0), std::log(std::min(row + 1, window)), 1e-12);
    }
  }
}

TEST(Attention, AFullyMaskedRowIsZeroAndItsLseMinusInfinity) {
  // Trimmed to nothing; a query inside the dropped range with a window of itself only.
  for (const DType out : kDTypes) {
    Problem s{.sequences = {{.kv_len = 6, .queries = 2, .first_kept = 6},
                            {.kv_len = 6, .queries = 3, .trim_sinks = 1, .first_kept = 5}},
              .out_dtype = out};
    s.params.rule = GroupRule::of_window(1);
    Prepared p(s);
    ASSERT_TRUE(attend(p.args).ok());
    for (const int row : {0, 1, 2, 3}) {
      for (int h = 0; h < 4; ++h) {
        for (int d = 0; d < 3; ++d) EXPECT_EQ(p.out.value(row, h, d), 0.0);
        EXPECT_EQ(p.lse.value(row, h, 0), -kInfinity);
      }
    }
    EXPECT_NE(p.lse.value(4, 0, 0), -kInfinity);
    expect_near(s, read(s, p), naive(s));
  }
}

// As the queries of a cascade are to the prefix that their sequences share.
TEST(Attention, QueriesThatReadEverythingMayBeMoreThanTheTokens) {
  for (const KernelTarget target : kernel_targets()) {
    const int dim = target == KernelTarget::kReference ? 5 : 16;
    Problem s{.sequences = {{.kv_len = 3, .queries = 7}, {.kv_len = 0, .queries = 2}},
              .head_dim_k = dim,
              .head_dim_v = dim,
              .q_dtype = DType::kF32,
              .out_dtype = DType::kF32};
    s.params.causal = false;
    Prepared p(s);
    p.args.target = target;
    p.workspace.resize(static_cast<std::size_t>(
        *attention_workspace_bytes(p.cache.view, p.q.rows.num_heads, p.max_kv_len, target)));
    p.args.workspace = p.workspace;
    ASSERT_TRUE(attend(p.args).ok()) << to_string(target);
    const Outcome want = naive(s);
    const Outcome got = read(s, p);
    for (std::size_t i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out[i], want.out[i], 1e-5);
    EXPECT_EQ(p.lse.value(7, 0, 0), -kInfinity);
    EXPECT_EQ(p.out.value(8, 3, dim - 1), 0.0);

    p.args.params.rule = GroupRule::of_window(2);
    EXPECT_THAT(attend(p.args).message(), HasSubstr("kv_lens[0] is 3, allowed: its 7 queries to"));
    p.args.params.rule = {};
    p.args.params.causal = true;
    EXPECT_THAT(attend(p.args).message(), HasSubstr("kv_lens[0] is 3, allowed: its 7 queries to"));
    p.args.params.causal = false;
    p.kv_lens[0] = -1;
    EXPECT_THAT(attend(p.args).message(), HasSubstr("kv_lens[0] is -1, allowed: 0 to"));
  }
}

TEST(Attention, ARowThatSeesOneTokenIsExactlyItsValue) {
  for (const DType dtype : kDTypes) {
    Problem s{.sequences = {{.kv_len = 1, .queries = 1, .key = 3}}, .dtype = dtype};
    const Outcome got = attended(s);
    std::size_t i = 0;
    for (int h = 0; h < 4; ++h) {
      for (int d = 0; d < 3; ++d) {
        EXPECT_EQ(got.out[i++], v_value(s, s.sequences[0], 0, h / 2, d));
      }
    }
  }
}

TEST(Attention, HugeScoresStayExact) {
  for (const double scale : {1e-30, 1e3, 1e30, 1e300}) {
    Problem s{.sequences = {{.kv_len = 13, .queries = 13}}, .head_dim_k = 1};
    s.params.scale = scale;
    const Outcome got = attended(s);
    const Outcome want = naive(s);
    for (std::size_t i = 0; i < got.out.size(); ++i) {
      ASSERT_NEAR(got.out[i], want.out[i], 1e-12);
    }
    for (std::size_t i = 0; i < got.lse.size(); ++i) {
      ASSERT_NEAR(got.lse[i], want.lse[i], 1e-12 * (1 + std::fabs(want.lse[i])));
    }
  }
}

TEST(Attention, NaNOfAVisibleTokenIsSeen) {
  Problem s{.sequences = {{.kv_len = 5, .queries = 1}}};
  for (const bool in_v : {false, true}) {
    Prepared p(s);
    const int slot = p.table[0] * s.block_size + 2;
    p.cache.set(in_v, 1, 0, slot, 0, std::numeric_limits<double>::quiet_NaN());
    ASSERT_TRUE(attend(p.args).ok());
    EXPECT_TRUE(std::isnan(p.out.value(0, 0, 0)));
    EXPECT_FALSE(std::isnan(p.out.value(0, 2, 0)));  // KV head 1 is sound
  }
}

TEST(Attention, OnlyNaNScoresGiveNaNAndOnlyMinusInfinityAMaskedRow) {
  for (const double key : {std::nan(""), -kInfinity}) {
    Problem s{.sequences = {{.kv_len = 3, .queries = 1}}, .head_dim_k = 1};
    Prepared p(s);
    for (int head = 0; head < 2; ++head) {
      for (int position = 0; position < 3; ++position) {
        p.cache.set(false, 1, head, p.table[0] * s.block_size + position, 0, key);
      }
    }
    for (int h = 0; h < 4; ++h) p.q.set(0, h, 0, 1.0);
    ASSERT_TRUE(attend(p.args).ok());
    for (int h = 0; h < 4; ++h) {
      if (std::isnan(key)) {
        EXPECT_TRUE(std::isnan(p.out.value(0, h, 0)));
        EXPECT_TRUE(std::isnan(p.lse.value(0, h, 0)));
      } else {
        EXPECT_EQ(p.out.value(0, h, 0), 0.0);
        EXPECT_EQ(p.lse.value(0, h, 0), -kInfinity);
      }
    }
  }
}

// What the scale multiplies must not be rounded to bf16 with the query: the scores of bf16 queries
// over a bf16 cache are as exact as sums in f32.
TEST(Attention, AQueryOfTheTypeOfTheCacheIsNotRoundedByAnyTarget) {
  for (const double scale : {0.125, 0.088388, 0.3, 3.0, 1e-30, 1e-38, 1e-46, 1e-300}) {
    const Problem s{.sequences = {{.kv_len = 150, .queries = 3, .key = 1}},
                    .block_size = 16,
                    .head_dim_k = 64,
                    .head_dim_v = 64,
                    .dtype = DType::kBF16,
                    .q_dtype = DType::kBF16,
                    .out_dtype = DType::kF32,
                    .params = {.scale = scale}};
    const Outcome want = naive(s);
    for (const KernelTarget target : kernel_targets()) {
      SCOPED_TRACE(std::string(to_string(target)) + ", scale " + std::to_string(scale));
      Prepared p(s);
      p.args.target = target;
      p.workspace.resize(static_cast<std::size_t>(
          *attention_workspace_bytes(p.cache.view, p.q.rows.num_heads, p.max_kv_len, target)));
      p.args.workspace = p.workspace;
      const Status status = attend(p.args);
      ASSERT_TRUE(status.ok()) << status.message();
      const Outcome got = read(s, p);
      for (std::size_t i = 0; i < want.lse.size(); ++i) {
        ASSERT_NEAR(got.lse[i], want.lse[i], 1e-5 * (1 + scale)) << i;
      }
    }
  }
}

TEST(Attention, LseMayBeSingleOrAbsent) {
  Problem s{.sequences = {{.kv_len = 11, .queries = 3}}};
  Prepared wide(s);
  ASSERT_TRUE(attend(wide.args).ok());
  Prepared narrow(s);
  TestRows single(3, 4, 1, DType::kF32);
  narrow.args.lse = single.rows;
  ASSERT_TRUE(attend(narrow.args).ok());
  for (int row = 0; row < 3; ++row) {
    for (int h = 0; h < 4; ++h) {
      EXPECT_EQ(single.value(row, h, 0), rounded(wide.lse.value(row, h, 0), DType::kF32));
    }
  }
  Prepared without(s);
  without.args.lse = {};
  const std::vector<std::byte> before = without.lse.memory;
  ASSERT_TRUE(attend(without.args).ok());
  EXPECT_EQ(read(s, without).out, read(s, wide).out);
  EXPECT_EQ(without.lse.memory, before);
}

TEST(Attention, PartsThatMergeAreTheWholeIfOneOfThemHasTheLearnedSinks) {
  Problem s{.sequences = {{.kv_len = 40, .queries = 9, .key = 1}}};
  s.params.soft_cap = 2.0;
  s.params.rule = GroupRule::of_chunk(30, 3);
  s.slopes = {0.1f, 0.02f, -0.05f, 0.3f};
  s.logits = {1.0f, -2.0f, -HUGE_VALF, 0.5f};
  const Outcome want = attended(s);
  for (const int border : {1, 17, 30, 36}) {
    Problem front = s;
    front.logits.clear();
    front.sequences[0].trim_sinks = border;
    front.sequences[0].first_kept = 40;
    Problem back = s;
    back.sequences[0].first_kept = border;
    const Prepared a(front);
    const Prepared b(back);
    ASSERT_TRUE(attend(a.args).ok() && attend(b.args).ok());
    ASSERT_TRUE(
        merge_states({a.out.rows, a.lse.rows}, {b.out.rows, b.lse.rows}, b.out.rows, b.lse.rows)
            .ok());
    expect_near(s, read(s, b), want);
  }
}

TEST(Attention, ALearnedSinkOfMinusInfinityIsNoneAndAHugeOneLeavesNothing) {
  Problem s{.sequences = {{.kv_len = 20, .queries = 3, .key = 1}},
            .head_dim_k = 8,
            .head_dim_v = 8,
            .out_dtype = DType::kF32};
  for (const KernelTarget target : kernel_targets()) {
    const auto with = [&](std::vector<float> logits) {
      Prepared p(s);
      p.args.params.sink_logits = logits;
      p.args.target = target;
      p.workspace.resize(static_cast<std::size_t>(
          *attention_workspace_bytes(p.cache.view, p.q.rows.num_heads, p.max_kv_len, target)));
      p.args.workspace = p.workspace;
      const Status status = attend(p.args);
      EXPECT_TRUE(status.ok()) << status.message();
      return read(s, p);
    };
    const Outcome none = with({});
    EXPECT_EQ(with(std::vector<float>(4, -HUGE_VALF)), none);
    const Outcome huge = with({3e38f, 3e38f, 3e38f, 3e38f});
    for (const double x : huge.out) EXPECT_NEAR(x, 0.0, 1e-30);
    for (const double x : huge.lse) EXPECT_EQ(x, double{3e38f});
  }
}

// ---- the same bits -----------------------------------------------------------------------------

TEST(AttentionBits, DoNotDependOnBlockSizeFormatOrBlockIds) {
  for (const DType dtype : kCacheDTypes) {
    Problem s{.sequences = {{.kv_len = 45, .queries = 12, .key = 1},
                            {.kv_len = 33, .queries = 1, .key = 2}},
              .head_dim_k = 16,
              .head_dim_v = 8,
              .dtype = dtype};
    s.params.rule = GroupRule::of_window(20, 3);
    s.params.soft_cap = 1.5;
    s.slopes = {0.1f, 0.02f, -0.05f, 0.3f};
    s.logits = {1.0f, -2.0f, -HUGE_VALF, 0.5f};
    const Outcome want = attended(s);
    for (const int block_size : {1, 2, 3, 8, 16, 32, 48, 1024}) {
      for (const Format format : kFormats) {
        if (format == Format::kGranule && (!fits_granule(dtype) || block_size % 16 != 0)) continue;
        Problem other = s;
        other.block_size = block_size;
        other.format = format;
        other.seed = static_cast<unsigned>(block_size);
        EXPECT_EQ(attended(other), want) << block_size;
      }
    }
  }
}

TEST(AttentionBits, ADecodeRowEqualsTheSameRowInsideAnyChunkAndAnyBatch) {
  Problem s;
  s.params.rule = GroupRule::of_window(13, 2);
  constexpr int kTokens = 30;
  s.sequences = {{.kv_len = kTokens, .queries = kTokens, .key = 1}};
  const Outcome whole = attended(s);
  const std::size_t outs = whole.out.size() / kTokens;
  const std::size_t lses = whole.lse.size() / kTokens;
  for (const int chunk : {1, 2, 7, 16}) {
    for (int begin = 0; begin < kTokens; begin += chunk) {
      const int end = std::min(begin + chunk, kTokens);
      // The chunk stands between two other sequences.
      s.sequences = {{.kv_len = 19, .queries = 3, .key = 2},
                     {.kv_len = end, .queries = end - begin, .key = 1},
                     {.kv_len = 8, .queries = 8, .key = 3}};
      const Outcome got = attended(s);
      for (int row = begin; row < end; ++row) {
        const auto from = static_cast<std::size_t>(3 + row - begin);
        const auto to = static_cast<std::size_t>(row);
        for (std::size_t i = 0; i < outs; ++i) {
          ASSERT_EQ(got.out[from * outs + i], whole.out[to * outs + i]);
        }
        for (std::size_t i = 0; i < lses; ++i) {
          ASSERT_EQ(got.lse[from * lses + i], whole.lse[to * lses + i]);
        }
      }
    }
  }
}

// Exactly the slices are written, the rest is still poison; together they are the whole.
void expect_slices_add_up(const Problem& s, KernelTarget target) {
  const auto prepared = [&] {
    auto p = std::make_unique<Prepared>(s);
    p->args.target = target;
    p->workspace.resize(static_cast<std::size_t>(
        *attention_workspace_bytes(p->cache.view, p->q.rows.num_heads, p->max_kv_len, target)));
    p->args.workspace = p->workspace;
    return p;
  };
  const auto whole = prepared();
  ASSERT_TRUE(attend(whole->args).ok());
  const Outcome want = read(s, *whole);
  for (const int rows : {1, 2, 5, 7, 16}) {
    for (const int heads : {1, 2, 3}) {
      const auto p = prepared();
      int written = 0;
      for (int row = 0; row < 16; row += rows) {
        for (int head = 0; head < 3; head += heads) {
          p->args.slice = {.first_row = row,
                           .num_rows = std::min(rows, 16 - row),
                           .first_kv_head = head,
                           .num_kv_heads = std::min(heads, 3 - head)};
          ASSERT_TRUE(attend(p->args).ok());
          written += p->args.slice.num_rows * p->args.slice.num_kv_heads * s.q_per_kv;
          int seen = 0;
          for (int r = 0; r < 16; ++r) {
            for (int h = 0; h < 6; ++h) seen += std::isnan(p->out.value(r, h, 0)) ? 0 : 1;
          }
          ASSERT_EQ(seen, written);
        }
      }
      EXPECT_EQ(read(s, *p), want);
    }
  }
}

TEST(AttentionBits, SlicesOfRowsAndHeadsAddUpToTheWhole) {
  Problem s{.sequences = {{.kv_len = 23, .queries = 9, .key = 1},
                          {.kv_len = 14, .queries = 1, .key = 2},
                          {.kv_len = 6, .queries = 6, .key = 3}},
            .num_kv_heads = 3,
            .head_dim_k = 8,
            .head_dim_v = 8};
  s.logits = {0.5f, 1.5f, -1.0f, 0.25f, -HUGE_VALF, 2.0f};
  Problem bent = s;
  bent.slopes = {0.1f, 0.02f, -0.05f, 0.3f, 0.5f, -0.2f};
  bent.params.soft_cap = 2.0;
  for (const KernelTarget target : kernel_targets()) {
    SCOPED_TRACE(to_string(target));
    expect_slices_add_up(s, target);
    const Prepared p(bent);
    if (choose_kernel_target(p.cache.view, p.args.params, target)) {
      expect_slices_add_up(bent, target);
    }
  }
}

TEST(AttentionBits, SharedBlocksReadLikeCopies) {
  Problem s{.sequences = {{.kv_len = 16, .queries = 2, .key = 0},
                          {.kv_len = 21, .queries = 9, .key = 1},
                          {.kv_len = 12, .queries = 1, .key = 2}},
            .shared_blocks = 3};
  Prepared shared(s);
  EXPECT_EQ(shared.table[0], shared.table[static_cast<std::size_t>(shared.stride)]);
  ASSERT_TRUE(attend(shared.args).ok());
  const Outcome want = naive(s);
  expect_near(s, read(s, shared), want);
  // The same tokens in blocks of their own.
  for (std::size_t i = 0; i < s.sequences.size(); ++i) {
    Problem alone = s;
    alone.sequences = {s.sequences[i]};
    const Outcome got = attended(alone);
    const auto offset = static_cast<std::size_t>(shared.query_start[i]) * 4;
    for (std::size_t j = 0; j < got.lse.size(); ++j) {
      EXPECT_EQ(got.lse[j], read(s, shared).lse[offset + j]);
    }
  }
}

TEST(AttentionBits, WhatTheWorkspaceAndTheOutputHeldDoesNotMatter) {
  const Problem s{.sequences = {{.kv_len = 17, .queries = 4}}};
  const Outcome want = attended(s);
  for (const int value : {0x00, 0x7f, 0xff}) {
    Prepared p(s);
    std::ranges::fill(p.workspace, std::byte(static_cast<unsigned char>(value)));
    std::ranges::fill(p.out.memory, std::byte(static_cast<unsigned char>(value)));
    ASSERT_TRUE(attend(p.args).ok());
    EXPECT_EQ(read(s, p), want);
  }
  // A workspace at any address, to the byte.
  for (std::size_t shift = 0; shift < 8; ++shift) {
    Prepared p(s);
    std::vector<std::byte> other(p.workspace.size() + shift);
    p.args.workspace = std::span(other).subspan(shift);
    ASSERT_TRUE(attend(p.args).ok());
    EXPECT_EQ(read(s, p), want);
  }
}

// ---- wrong arguments ---------------------------------------------------------------------------

struct GoodCall {
  GoodCall()
      : setup{.sequences = {{.kv_len = 9, .queries = 2, .key = 1},
                            {.kv_len = 6, .queries = 6, .key = 2}}},
        p(setup) {}
  Problem setup;
  Prepared p;
};

constexpr float kFour[] = {0, 1, 2, 3};

TEST(Attention, EachWrongArgumentIsRefusedAndNothingIsWritten) {
  struct Case {
    const char* says;
    std::function<void(GoodCall&)> spoil;
  };
  const auto with = [](void (*spoil)(Prepared&)) {
    return [spoil](GoodCall& call) { spoil(call.p); };
  };
  using P = Prepared;
  const Case cases[] = {
      {"layer is 2", with([](P& p) { p.args.layer = 2; })},
      {"layer is -1", with([](P& p) { p.args.layer = -1; })},
      {"cache.k is null", with([](P& p) { p.args.cache.k = nullptr; })},
      {"cache.num_kv_heads is 0", with([](P& p) { p.args.cache.num_kv_heads = 0; })},
      {"head_dim_v is 0", with([](P& p) { p.args.cache.head_dim_v = 0; })},
      {"target is 7", with([](P& p) { p.args.target = static_cast<KernelTarget>(7); })},
      {"executor.parallel_for is null", with([](P& p) {
         static constexpr Executor kNone;
         p.args.executor = &kNone;
       })},
      {"scale is 0, negative", with([](P& p) { p.args.params.scale = 0; })},
      {"scale is 0, negative", with([](P& p) { p.args.params.scale = -1; })},
      {"scale is 0, negative", with([](P& p) { p.args.params.scale = kInfinity; })},
      {"scale is 0, negative", with([](P& p) { p.args.params.scale = std::nan(""); })},
      {"window is -1 of kind sliding window, allowed: at least 1",
       with([](P& p) { p.args.params.rule = GroupRule::of_window(-1); })},
      {"window is 0 of kind chunked, allowed: at least 1",
       with([](P& p) { p.args.params.rule = GroupRule::of_chunk(0); })},
      {"num_sinks is -2147483648",
       with([](P& p) { p.args.params.rule = GroupRule::of_window(1, kMin); })},
      {"the kind of attention is 3, allowed: full, sliding window, chunked", with([](P& p) {
         p.args.params.rule = {static_cast<AttentionKind>(3), 1, 0};
       })},
      {"soft_cap is negative", with([](P& p) { p.args.params.soft_cap = -1; })},
      {"soft_cap is negative", with([](P& p) { p.args.params.soft_cap = 1e-31; })},
      {"soft_cap is negative", with([](P& p) { p.args.params.soft_cap = kInfinity; })},
      {"soft_cap is negative", with([](P& p) { p.args.params.soft_cap = std::nan(""); })},
      {"alibi_slopes has 3 entries, allowed: 4, one for each query head, or 0",
       with([](P& p) { p.args.params.alibi_slopes = std::span(kFour).first(3); })},
      {"alibi_slopes[2] is NaN, allowed: finite", with([](P& p) {
         static constexpr float kBad[] = {0, 1, std::numeric_limits<float>::quiet_NaN(), 3};
         p.args.params.alibi_slopes = kBad;
       })},
      {"alibi_slopes[1] is infinite", with([](P& p) {
         static constexpr float kBad[] = {0, -HUGE_VALF, 2, 3};
         p.args.params.alibi_slopes = kBad;
       })},
      {"sink_logits has 1 entries, allowed: 4",
       with([](P& p) { p.args.params.sink_logits = std::span(kFour).first(1); })},
      {"sink_logits[3] is infinite, allowed: finite, or -inf (none)", with([](P& p) {
         static constexpr float kBad[] = {0, -HUGE_VALF, 2, HUGE_VALF};
         p.args.params.sink_logits = kBad;
       })},
      {"0 query heads", with([](P& p) { p.args.q.num_heads = 0; })},
      {"3 query heads, allowed: multiples of the cache's 2",
       with([](P& p) { p.args.q.num_heads = 3; })},
      {"q is [8 tokens, 4 heads, head_dim 4]", with([](P& p) { p.args.q.head_dim = 4; })},
      {"q is [7 tokens", with([](P& p) { p.args.q.num_tokens = 7; })},
      {"q.data is null", with([](P& p) { p.args.q.data = nullptr; })},
      {"q.dtype", with([](P& p) { p.args.q.dtype = static_cast<DType>(17); })},
      {"out is [9 tokens", with([](P& p) { p.args.out.num_tokens = 9; })},
      {"out is [8 tokens, 2 heads", with([](P& p) { p.args.out.num_heads = 2; })},
      {"head_dim 5], allowed: [8, 4, 3]", with([](P& p) { p.args.out.head_dim = 5; })},
      {"out.data is null", with([](P& p) { p.args.out.data = nullptr; })},
      {"rows of out overlap", with([](P& p) { p.args.out.token_stride = 8; })},
      {"lse.dtype is f16", with([](P& p) { p.args.lse.dtype = DType::kF16; })},
      {"lse is [8 tokens, 4 heads, head_dim 2]", with([](P& p) { p.args.lse.head_dim = 2; })},
      {"rows of lse overlap", with([](P& p) { p.args.lse.head_stride = 0; })},
      {"query_start has 2 entries for 2 sequences",
       with([](P& p) { p.args.batch.query_start = p.args.batch.query_start.first(2); })},
      {"query_start has 0 entries", with([](P& p) { p.args.batch.query_start = {}; })},
      {"query_start[0] is 1", with([](P& p) { p.query_start[0] = 1; })},
      {"query_start falls from 9 to 8", with([](P& p) { p.query_start[1] = 9; })},
      {"query_start falls", with([](P& p) { p.query_start[2] = kMin; })},
      {"kv_lens[0] is 1, allowed: its 2 queries", with([](P& p) { p.kv_lens[0] = 1; })},
      {"kv_lens[1] is -3", with([](P& p) { p.kv_lens[1] = -3; })},
      {"kv_lens[1] is 2147483647", with([](P& p) { p.kv_lens[1] = kMax; })},
      {"kv_lens[0] is 17, its table row holds 4 blocks of 4",
       with([](P& p) { p.kv_lens[0] = 17; })},
      {"query_start has 3 entries for 1 sequences",
       with([](P& p) { p.args.batch.kv_lens = p.args.batch.kv_lens.first(1); })},
      {"block_table has 7 entries for 2 sequences",
       with([](P& p) { p.args.batch.block_table = p.args.batch.block_table.first(7); })},
      {"block_table_stride is -4", with([](P& p) { p.args.batch.block_table_stride = -4; })},
      {"block_table_stride 2147483647", with([](P& p) { p.args.batch.block_table_stride = kMax; })},
      {"block_table[0, 1] is -1 and holds visible positions, the cache has blocks 0 to 6; a window "
       "dropped it: does the call lack the window?",
       with([](P& p) { p.table[1] = -1; })},
      {"the window, or the trims?", with([](P& p) {
         p.table[1] = -1;
         p.args.batch.trim_sinks = p.args.batch.trim_first_kept = {};
       })},
      {"does the call read more than the window of the group?", with([](P& p) {
         p.table[1] = -1;
         p.args.params.rule = GroupRule::of_window(100);
       })},
      {"block_table[1, 0] is 7", with([](P& p) { p.table[4] = p.args.cache.num_blocks; })},
      {"block_table[1, 1] is 2147483647", with([](P& p) { p.table[5] = kMax; })},
      {"block_table[0, 2] is -2147483648", with([](P& p) { p.table[2] = kMin; })},
      {"trim_sinks has 1 entries and trim_first_kept 2",
       with([](P& p) { p.args.batch.trim_sinks = p.args.batch.trim_sinks.first(1); })},
      {"trim_sinks has 0 entries", with([](P& p) { p.args.batch.trim_sinks = {}; })},
      {"trim_sinks[1] is -1", with([](P& p) { p.trim_sinks[1] = -1; })},
      {"trim_first_kept[0] is -1", with([](P& p) { p.first_kept[0] = -1; })},
      {"trim_first_kept[0] is 10, allowed: 0 to 9", with([](P& p) { p.first_kept[0] = 10; })},
      {"slice of 9 rows from 0", with([](P& p) { p.args.slice.num_rows = 9; })},
      {"slice of -2 rows", with([](P& p) { p.args.slice.num_rows = -2; })},
      {"rows from -1 on", with([](P& p) { p.args.slice.first_row = -1; })},
      {"rows from -2147483648 on", with([](P& p) { p.args.slice.first_row = kMin; })},
      {"rows from 9 on", with([](P& p) { p.args.slice.first_row = 9; })},
      {"KV heads from 3 on", with([](P& p) { p.args.slice.first_kv_head = 3; })},
      {"slice of 3 KV heads", with([](P& p) { p.args.slice.num_kv_heads = 3; })},
      {"workspace has 0 bytes", with([](P& p) { p.args.workspace = {}; })},
      {"bytes, needed: ",
       with([](P& p) { p.args.workspace = std::span(p.workspace).first(p.workspace.size() - 1); })},
  };
  for (const Case& c : cases) {
    GoodCall call;
    const auto state = [&] {
      return std::tuple(call.p.cache.memory, call.p.out.memory, call.p.lse.memory);
    };
    c.spoil(call);
    const auto before = state();
    const Status status = attend(call.p.args);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << c.says;
    EXPECT_THAT(status.message(), HasSubstr(c.says));
    EXPECT_TRUE(state() == before) << c.says;
  }
  GoodCall call;
  EXPECT_TRUE(attend(call.p.args).ok());
}

TEST(Attention, EntriesOfTheTableThatNobodyNeedsMayBeAnything) {
  Problem s{.sequences = {{.kv_len = 20, .queries = 1, .trim_sinks = 4, .first_kept = 12}}};
  s.params.rule = GroupRule::of_window(6, 2);
  const Outcome want = attended(s);
  Prepared p(s);
  for (const std::int32_t entry : {-1, 0, kMax, kMin}) {
    for (std::size_t b : {1u, 2u, 5u}) p.table[b] = entry;
    ASSERT_TRUE(attend(p.args).ok());
    EXPECT_EQ(read(s, p), want);
  }
}

TEST(Attention, EntriesThatOnlyTheFirstRowOfAChunkNeedsAreChecked) {
  // The window of the chunk's last row begins blocks later than that of its first row.
  Problem s{.sequences = {{.kv_len = 24, .queries = 12}}};
  s.params.rule = GroupRule::of_window(3);
  for (std::size_t b = 2; b < 6; ++b) {  // the first row reads positions 10 to 12
    Prepared p(s);
    ASSERT_TRUE(attend(p.args).ok());
    p.table[b] = kMax;
    const Status status = attend(p.args);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("block_table[0, " + std::to_string(b) + "]"));
  }
}

TEST(Attention, ASliceNeedsTheTableOfItsOwnRowsOnly) {
  const Problem s{
      .sequences = {{.kv_len = 9, .queries = 2, .key = 1}, {.kv_len = 6, .queries = 6, .key = 2}}};
  Prepared p(s);
  p.table[0] = -1;  // of sequence 0
  p.args.slice = {.first_row = 2, .num_rows = 6};
  EXPECT_TRUE(attend(p.args).ok());
  p.args.slice = {.first_row = 1, .num_rows = 7};
  EXPECT_FALSE(attend(p.args).ok());
  p.args.slice = {.first_row = 1, .num_rows = 0};
  EXPECT_TRUE(attend(p.args).ok());
}

TEST(Attention, ASliceOfNoRowsOrNoHeadsIsNothingOnAnyTarget) {
  const Problem s{.sequences = {{.kv_len = 40, .queries = 9, .key = 1}},  // 2 KV heads
                  .head_dim_k = 16,
                  .head_dim_v = 16,
                  .q_dtype = DType::kF32,
                  .out_dtype = DType::kF32};
  std::vector<std::byte> workspace(std::size_t{1} << 22);
  for (const KernelTarget target : kernel_targets()) {
    Prepared p(s);
    p.args.target = target;
    p.args.workspace = workspace;
    for (const AttentionSlice& slice :
         {AttentionSlice{.num_kv_heads = 0}, AttentionSlice{.first_kv_head = 2},
          AttentionSlice{.first_row = 9}, AttentionSlice{.num_rows = 0}}) {
      p.args.slice = slice;
      EXPECT_TRUE(attend(p.args).ok()) << to_string(target);
    }
  }
}

// 2^28 queries of eight heads for one KV head: the slice begins at row 2^31 of the sequence. What
// is not touched of the 64 GiB of `out` takes no memory.
TEST(Attention, AllRowsOfASequenceMayBeMoreThanAnInt32Counts) {
  constexpr std::int32_t kRows = (1 << 28) + 1;
  constexpr std::int64_t kRowBytes = 8 * 8 * 4;
  TestCache cache(
      {.num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8, .block_size = 1024, .num_blocks = 1});
  const int slot = (kRows - 1) % 1024;
  for (int d = 0; d < 8; ++d) {
    cache.set(false, 0, 0, slot, d, 0.5);
    cache.set(true, 0, 0, slot, d, 1.0 + d);
  }
  constexpr std::size_t kOutBytes = std::size_t{kRowBytes} * kRows;
  void* const out = mmap(nullptr, kOutBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (out == MAP_FAILED) GTEST_SKIP() << "64 GiB of addresses";
  const std::vector<float> query(64, 0.25f);  // each token's
  const std::vector<std::int32_t> table((kRows + 1023) / 1024, 0);
  const std::vector<std::int32_t> query_start = {0, kRows};
  const std::vector<std::int32_t> kv_lens = {kRows};
  std::vector<std::byte> workspace(std::size_t{1} << 22);
  AttentionArgs args;
  args.cache = cache.view;
  args.batch = {.query_start = query_start,
                .kv_lens = kv_lens,
                .block_table = table,
                .block_table_stride = static_cast<std::int32_t>(table.size())};
  args.params = {.scale = 1.0, .rule = GroupRule::of_window(1)};
  args.q = {reinterpret_cast<const std::byte*>(query.data()), 0, 32, kRows, 8, 8, DType::kF32};
  args.out = {static_cast<std::byte*>(out), kRowBytes, 32, kRows, 8, 8, DType::kF32};
  args.slice = {.first_row = kRows - 2};
  args.workspace = workspace;
  const auto* const last = reinterpret_cast<const float*>(static_cast<std::byte*>(out) +
                                                          kRowBytes * std::int64_t{kRows - 1});
  for (const KernelTarget target : kernel_targets()) {
    if (target == KernelTarget::kReference) continue;  // its workspace has a score a position
    args.target = target;
    const Status status = attend(args);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < 64; ++i) ASSERT_EQ(last[i], 1.0f + static_cast<float>(i % 8)) << i;
    std::memset(static_cast<std::byte*>(out) + kRowBytes * std::int64_t{kRows - 2}, 0,
                2 * kRowBytes);
  }
  munmap(out, kOutBytes);
}

TEST(Attention, LimitsAtTheEndOfInt32DoNotOverflow) {
  for (const int window : {1, 4, kMax}) {
    Problem s{.sequences = {{.kv_len = 9, .queries = 9, .trim_sinks = kMax, .first_kept = 9}}};
    for (const int sinks : {kMax, 0}) {
      s.params.rule = GroupRule::of_window(window, sinks);
      expect_agrees(s);
      s.params.rule = GroupRule::of_chunk(window, sinks);
      expect_agrees(s);
    }
  }
}

TEST(Attention, AnEmptyBatchIsNothing) {
  Prepared p(Problem{});
  p.args.q.data = nullptr;
  p.args.out.data = nullptr;
  p.args.lse.data = nullptr;
  EXPECT_TRUE(attend(p.args).ok());
}

TEST(AttentionWorkspace, ImpossibleShapesAreErrors) {
  TestCache cache({.num_kv_heads = 2, .head_dim_k = 4, .head_dim_v = 4, .num_blocks = 2});
  EXPECT_GT(*attention_workspace_bytes(cache.view, 4, 1000), 2 * 1000 * 8);
  EXPECT_FALSE(attention_workspace_bytes(cache.view, 3, 1000));
  EXPECT_FALSE(attention_workspace_bytes(cache.view, 0, 1000));
  EXPECT_FALSE(attention_workspace_bytes(cache.view, -2, 1000));
  EXPECT_FALSE(attention_workspace_bytes(cache.view, 2, -1));
  EXPECT_FALSE(attention_workspace_bytes(cache.view, 2, kMax));
  EXPECT_FALSE(attention_workspace_bytes(cache.view, 2, 1, static_cast<KernelTarget>(9)));
  for (const std::int32_t threads : {0, -1, kMin, kMax}) {
    EXPECT_FALSE(attention_workspace_bytes(cache.view, 2, 1, KernelTarget::kReference, threads));
  }
  EXPECT_FALSE(attention_workspace_bytes({}, 2, 1));
  // 2^29 heads x 2^30 tokens x 8 bytes.
  EXPECT_EQ(attention_workspace_bytes(cache.view, 1 << 30, 1 << 30).has_value(), true);
  KVView wide = cache.view;
  wide.num_kv_heads = 1;
  wide.head_dim_k = kMax;
  wide.head_dim_v = kMax;
  EXPECT_EQ(attention_workspace_bytes(wide, kMax, 1 << 30).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST(KernelTarget, NamesGoBothWaysAndUnknownNamesAreErrors) {
  for (const KernelTarget target :
       {KernelTarget::kAuto, KernelTarget::kReference, KernelTarget::kPortable, KernelTarget::kAvx2,
        KernelTarget::kAvx512, KernelTarget::kAvx512Bf16, KernelTarget::kNeon}) {
    EXPECT_EQ(*parse_kernel_target(to_string(target)), target);
  }
  EXPECT_STREQ(to_string(KernelTarget::kAvx512Bf16), "avx512-bf16");
  EXPECT_STREQ(to_string(static_cast<KernelTarget>(7)), "invalid");
  for (const char* name : {"", "Reference", "avx", "reference ", "invalid"}) {
    const Result<KernelTarget> target = parse_kernel_target(name);
    ASSERT_FALSE(target);
    EXPECT_THAT(target.error().message(), HasSubstr("allowed: auto, reference, portable"));
  }
}

TEST(KernelTarget, TheMachineHasTheReferenceFirstAndAFastTargetLast) {
  const std::span<const KernelTarget> targets = kernel_targets();
  ASSERT_GE(targets.size(), 2u);
  EXPECT_EQ(targets.front(), KernelTarget::kReference);
  if (std::getenv("KVFOLIO_KERNEL") != nullptr) return;
  TestCache cache({.head_dim_k = 64, .head_dim_v = 72, .num_blocks = 1});
  EXPECT_EQ(*choose_kernel_target(cache.view), targets.back());
  for (const KernelTarget target : targets) {
    EXPECT_EQ(*choose_kernel_target(cache.view, target), target);
  }
}

TEST(KernelTarget, WhatAFastTargetDoesNotTakeIsTheReferencesUnlessItIsForced) {
  const KernelTarget fast = kernel_targets().back();
  for (const auto& [dtype, k, v] : {std::tuple{DType::kF64, 64, 64},
                                    {DType::kF32, 20, 24},
                                    {DType::kF32, 264, 8},
                                    {DType::kF32, 8, 4}}) {
    TestCache cache({.head_dim_k = k, .head_dim_v = v, .dtype = dtype, .num_blocks = 1});
    if (std::getenv("KVFOLIO_KERNEL") == nullptr) {
      EXPECT_EQ(*choose_kernel_target(cache.view), KernelTarget::kReference);
    }
    EXPECT_EQ(*choose_kernel_target(cache.view, KernelTarget::kReference),
              KernelTarget::kReference);
    const Result<KernelTarget> forced = choose_kernel_target(cache.view, fast);
    ASSERT_FALSE(forced);
    EXPECT_EQ(forced.error().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(forced.error().message(), HasSubstr("multiples of 8 to 256"));
  }
}

TEST(KernelTarget, ASoftCapOrAlibiIsComputedByTheFastestTargetThatCan) {
  const TestCache cache({.head_dim_k = 64, .head_dim_v = 64, .num_blocks = 1});
  constexpr KernelTarget kBends =
#if defined(__aarch64__)
      KernelTarget::kNeon;
#else
      KernelTarget::kPortable;
#endif
  struct Case {
    AttentionParams params;
    const char* says;
  };
  for (const Case& c : {Case{{.scale = 1.0, .soft_cap = 30.0}, "a soft cap (soft_cap)"},
                        Case{{.scale = 1.0, .alibi_slopes = kFour}, "ALiBi (alibi_slopes)"}}) {
    for (const KernelTarget target : kernel_targets()) {
      const Result<KernelTarget> named = choose_kernel_target(cache.view, c.params, target);
      if (target == KernelTarget::kReference || target == kBends) {
        EXPECT_EQ(*named, target);
        continue;
      }
      ASSERT_FALSE(named);
      EXPECT_EQ(named.error().code(), ErrorCode::kUnsupported);
      EXPECT_EQ(named.error().message(),
                std::string("kernel target ") + to_string(target) + " does not compute " + c.says +
                    ", allowed on this machine: reference, " + to_string(kBends));
    }
    if (std::getenv("KVFOLIO_KERNEL") != nullptr) continue;
    EXPECT_EQ(*choose_kernel_target(cache.view, c.params), kBends);
  }
  if (std::getenv("KVFOLIO_KERNEL") != nullptr) return;
  // Every target computes these.
  const AttentionParams others{
      .scale = 1.0, .rule = GroupRule::of_chunk(4, 1), .sink_logits = kFour};
  EXPECT_EQ(*choose_kernel_target(cache.view, others), kernel_targets().back());
}

TEST(KernelTarget, OneThatTheMachineDoesNotRunIsRefusedByName) {
  TestCache cache({.head_dim_k = 64, .head_dim_v = 64, .num_blocks = 1});
#if defined(__x86_64__)
  const KernelTarget foreign = KernelTarget::kNeon;
#else
  const KernelTarget foreign = KernelTarget::kAvx2;
#endif
  const Result<KernelTarget> target = choose_kernel_target(cache.view, foreign);
  ASSERT_FALSE(target);
  EXPECT_EQ(target.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(target.error().message(), HasSubstr(to_string(foreign)));
  EXPECT_THAT(target.error().message(), HasSubstr("allowed on this machine: reference, "));
}

// ---- e4m3 --------------------------------------------------------------------------------------

// One token that a query reads: its weight is 1, so the row of V comes out as it was decoded.
class OneTokenOfE4M3 {
 public:
  OneTokenOfE4M3() {
    for (int d = 0; d < 256; ++d) {
      // 0x7f and 0xff, the NaNs, are 0 here.
      const int byte = (d & 0x7f) == 0x7f ? 0 : d;
      *cache_.at(true, 0, 0, 5, d) = static_cast<std::byte>(byte);
      *cache_.at(false, 0, 0, 5, d) = std::byte{0};
      want_.push_back(f32_from_e4m3(static_cast<std::uint8_t>(byte)) * 0.75f);
    }
    set_scales(1.0, 0.75);
    query_.fill(1);
  }
  void set_scales(double k, double v) const {
    testing_cache::store(cache_.scale_at(false, 0, 0, 5), DType::kF32, k);
    testing_cache::store(cache_.scale_at(true, 0, 0, 5), DType::kF32, v);
  }
  [[nodiscard]] std::vector<float> read(KernelTarget target) const {
    const std::int32_t query_start[] = {0, 1};
    const std::int32_t kv_lens[] = {6};
    const std::int32_t table[] = {0};
    const std::int32_t sinks[] = {0};
    const std::int32_t first_kept[] = {5};
    std::vector<std::byte> workspace(1 << 20);
    TestRows out(1, 1, 256, DType::kF32);
    AttentionArgs args{.cache = cache_.view, .params = {.scale = 1.0}, .workspace = workspace};
    args.batch = {query_start, kv_lens, table, 1, sinks, first_kept};
    args.q = query_.rows;
    args.out = out.rows;
    args.target = target;
    const Status status = attend(args);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> result(256);
    std::memcpy(result.data(), out.rows.data, 256 * sizeof(float));
    return result;
  }
  [[nodiscard]] const std::vector<float>& want() const { return want_; }

 private:
  TestCache cache_{{.head_dim_k = 256, .head_dim_v = 256, .dtype = DType::kE4M3, .num_blocks = 1}};
  TestRows query_{1, 1, 256, DType::kF32};
  std::vector<float> want_;
};

TEST(AttentionOfE4M3, EveryTargetDecodesEveryElementExactlyAlsoWhereSubnormalsAreFlushed) {
  const OneTokenOfE4M3 one;
  for (const KernelTarget target : kernel_targets()) {
    EXPECT_EQ(one.read(target), one.want()) << to_string(target);
#if defined(__SSE__)
    const testing_cache::FlushesSubnormals flushes;
    EXPECT_EQ(one.read(target), one.want()) << to_string(target) << ", flushed";
#endif
  }
}

TEST(AttentionOfE4M3, AScaleThatIsNaNReachesWhoReadsItsRow) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const OneTokenOfE4M3 one;
  for (const KernelTarget target : kernel_targets()) {
    for (const auto& [k, v] : {std::pair{kNaN, 1.0}, std::pair{1.0, kNaN}}) {
      one.set_scales(k, v);
      for (const float x : one.read(target)) ASSERT_TRUE(std::isnan(x)) << to_string(target);
    }
  }
}

// ---- faults of earlier systems -----------------------------------------------------------------

// Fault A1.
TEST(Attention, QueryHeadsReadTheirOwnKvHead) {
  // 6 query heads over 3 KV heads, each KV head with one constant value.
  Problem s{.sequences = {{.kv_len = 7, .queries = 1}}, .num_kv_heads = 3};
  Prepared p(s);
  for (int head = 0; head < 3; ++head) {
    for (int position = 0; position < 7; ++position) {
      const int slot = p.table[static_cast<std::size_t>(position / 4)] * 4 + position % 4;
      for (int d = 0; d < 3; ++d) p.cache.set(true, 1, head, slot, d, 10.0 * head + d);
    }
  }
  ASSERT_TRUE(attend(p.args).ok());
  for (int h = 0; h < 6; ++h) {
    const int kv_head = h / 2;
    for (int d = 0; d < 3; ++d) EXPECT_NEAR(p.out.value(0, h, d), 10.0 * kv_head + d, 1e-12);
  }
}

// Fault A1.
TEST(Attention, IdsOfTheTableAreNotTrusted) {
  Problem s{.sequences = {{.kv_len = 7, .queries = 1}}};
  for (const std::int32_t block : {-1, 1 << 20, kMax, kMin}) {
    Prepared p(s);
    p.table[1] = block;
    const Status status = attend(p.args);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("block_table[0, 1] is " + std::to_string(block)));
  }
}

// Fault A1.
TEST(Attention, PrefillIsCausalUnlessAskedOtherwise) {
  EXPECT_TRUE(AttentionParams{}.causal);
  // Changing a later token changes no earlier row.
  Problem s{.sequences = {{.kv_len = 8, .queries = 8}}};
  Prepared p(s);
  ASSERT_TRUE(attend(p.args).ok());
  const Outcome before = read(s, p);
  const int slot = p.table[1] * 4 + 3;  // position 7
  p.cache.set(false, 1, 0, slot, 0, 100.0);
  p.cache.set(true, 1, 1, slot, 0, 100.0);
  ASSERT_TRUE(attend(p.args).ok());
  const Outcome after = read(s, p);
  const std::size_t outs = after.out.size() / 8;
  for (std::size_t i = 0; i < 7 * outs; ++i) EXPECT_EQ(after.out[i], before.out[i]);
  EXPECT_NE(after.out, before.out);
}

// Fault A1.
TEST(Attention, OnlyBlocksOfTheTableAreRead) {
  // Everything else in the pool is poison, also in the layers beside: Prepared writes only what is
  // visible. One poisoned read would show.
  const Outcome got = attended({.sequences = {{.kv_len = 50, .queries = 3}}, .block_size = 16});
  for (const double x : got.out) EXPECT_FALSE(std::isnan(x));
}

// Fault A1: no byte of a block that no table names may be touched, nor copied with the rest of the
// pool.
TEST(Attention, BlocksThatNoTableNamesAreNotTouched) {
  constexpr std::int32_t kBlocks = 8;
  constexpr std::size_t kBlockBytes = 2 * 4096;  // 16 tokens x 64 dims of f32, in K and in V
  for (const Format format : {Format::kHnd, Format::kNhd, Format::kGranule}) {
    const GroupSpec group{
        .head_dim_k = 64, .head_dim_v = 64, .format = format, .num_blocks = kBlocks};
    const GroupLayout layout = plan_layouts({.groups = {group}})->at(0);
    ASSERT_EQ(layout.block_stride, std::int64_t{kBlockBytes});
    void* const mapped = mmap(nullptr, kBlocks * kBlockBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    auto* const memory = static_cast<std::byte*>(mapped);
    const KVView cache = make_view(group, layout, memory);
    const std::vector<std::int32_t> table = {6, 2, 4};
    std::fill_n(reinterpret_cast<float*>(memory), kBlocks * kBlockBytes / sizeof(float), 1.0F);
    for (std::int32_t block = 0; block < kBlocks; ++block) {
      if (std::find(table.begin(), table.end(), block) != table.end()) continue;
      ASSERT_EQ(
          mprotect(memory + static_cast<std::size_t>(block) * kBlockBytes, kBlockBytes, PROT_NONE),
          0);
    }
    for (const KernelTarget target : kernel_targets()) {
      const std::vector<float> q(3 * 64, 0.5F);
      std::vector<float> out(3 * 64);
      const std::int32_t query_start[] = {0, 3};
      const std::int32_t kv_lens[] = {41};
      std::vector<std::byte> workspace(
          static_cast<std::size_t>(*attention_workspace_bytes(cache, 1, kv_lens[0], target)));
      AttentionArgs args{.cache = cache, .workspace = workspace, .target = target};
      args.batch = {.query_start = query_start, .kv_lens = kv_lens, .block_table = table};
      args.batch.block_table_stride = 3;
      args.params.scale = 0.125;
      args.q = {reinterpret_cast<const std::byte*>(q.data()), 256, 256, 3, 1, 64, DType::kF32};
      args.out = {reinterpret_cast<std::byte*>(out.data()), 256, 256, 3, 1, 64, DType::kF32};
      ASSERT_TRUE(attend(args).ok());
      for (const float x : out) ASSERT_NEAR(x, 1.0F, 1e-5F) << to_string(target);
    }
    munmap(mapped, kBlocks * kBlockBytes);
  }
}

}  // namespace
}  // namespace kvfolio
