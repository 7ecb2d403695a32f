// SPDX-License-Identifier: Apache-2.0

// The text of every kernel, run on the model of a GPU (host_model.h), without a GPU and without
// nvcc: right numbers against sums in f64, and rows whose bits do not depend on batch, chunk, cut,
// block size, strides, order of blocks, what is dropped, or the order in which warps run.
//
// Data of a cache depend on the sequence, position and head alone; slots that no row may see hold
// NaN, and so do table entries that no row may follow.

#define KVFOLIO_CUDA_HOST_MODEL
#include "cuda/attention/host_model.h"
//
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "cuda/attention/attend.h"
#include "cuda/attention/cpu_call.h"
#include "cuda/attention/kernels.cuh"

namespace kvfolio::cuda {
namespace {

constexpr std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- launches
// ------------------------------------------------------------------------------------

Status host_launch(void* state, const KernelLaunch& launch) {
  const KernelSet set = *static_cast<const KernelSet*>(state);
  auto start = [&](auto kernel, int threads, int shared_bytes) {
    model::launch(launch.grid, threads, shared_bytes, launch.overlaps_previous,
                  [&] { kernel(launch.args); });
  };
  bool known = start_others(launch, start);
  auto tiles = [&]<Element E>() {
    if (launch.element != E) return;
    auto dim = [&]<int D>() {
      if (launch.head_dim != D) return;
      known |= set == KernelSet::kSm80 ? start_tiles<E, D, KernelSet::kSm80>(launch, start)
                                       : start_tiles<E, D, KernelSet::kSm90a>(launch, start);
    };
    dim.template operator()<64>();
    dim.template operator()<256>();
    if constexpr (E != Element::kF16) dim.template operator()<128>();
  };
  if (!known) {
    tiles.template operator()<Element::kF16>();
    tiles.template operator()<Element::kBF16>();
    tiles.template operator()<Element::kInt8>();
    tiles.template operator()<Element::kE4M3>();
  }
  if (!known) return {ErrorCode::kUnsupported, "no such kernel in this test"};
  return {};
}

// ---- elements
// ------------------------------------------------------------------------------------

uint32_t hashed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}
// Nearly normal.
float drawn(uint32_t seed) {
  const uint32_t h = hashed(seed);
  return (static_cast<float>(h & 255u) + static_cast<float>(h >> 8 & 255u) +
          static_cast<float>(h >> 16 & 255u) + static_cast<float>(h >> 24) - 510.0f) /
         147.8f;
}
void store(char* to, Element element, float x) {
  switch (element) {
    case Element::kF32:
      std::memcpy(to, &x, 4);
      return;
    case Element::kF16:
    case Element::kBF16: {
      const uint16_t bits = element == Element::kF16 ? f16_from_f32(x) : bf16_from_f32(x);
      std::memcpy(to, &bits, 2);
      return;
    }
    case Element::kInt8:
      *to = static_cast<char>(std::clamp(std::nearbyint(40.0f * x), -127.0f, 127.0f));
      return;
    case Element::kE4M3: {  // the nearest of all
      static const auto values = [] {
        std::array<float, 256> all{};
        for (uint32_t b = 0; b < 256; ++b) all[b] = float_of_e4m3(b);
        return all;
      }();
      std::size_t best = 0;
      for (std::size_t b = 0; b < 256; ++b)
        if (std::fabs(values[b] - 40.0f * x) < std::fabs(values[best] - 40.0f * x)) best = b;
      *to = static_cast<char>(best);
      return;
    }
  }
}
double load(const char* from, Element element) {
  uint16_t bits = 0;
  switch (element) {
    case Element::kF32: {
      float x;
      std::memcpy(&x, from, 4);
      return static_cast<double>(x);
    }
    case Element::kF16:
      std::memcpy(&bits, from, 2);
      return static_cast<double>(f32_from_f16(bits));
    case Element::kBF16:
      std::memcpy(&bits, from, 2);
      return static_cast<double>(f32_from_bf16(bits));
    case Element::kInt8:
      return static_cast<double>(static_cast<signed char>(*from));
    case Element::kE4M3:
      return static_cast<double>(float_of_e4m3(static_cast<unsigned char>(*from)));
  }
  return 0.0;
}

// ---- cases
// ---------------------------------------------------------------------------------------

struct Sequence {
  uint32_t id = 0;  // decides its data
  int kv_len = 0;
  int queries = 1;
  int trim_sinks = 0;
  int first_kept = 0;
};
struct Case {
  Element element = Element::kBF16;
  Element q_element = Element::kBF16;
  int dim_k = 64;
  int dim_v = 64;
  int heads = 2;
  int group_size = 4;
  int block_size = 16;
  bool nhd = false;
  bool k_beside_v = false;  // other strides of K than of V
  bool v_is_prefix = false;
  int table_tokens = 0;  // that a row of the block table has room for, at least
  uint32_t seed = 1;     // of the order of blocks
  Mask mask = {};
  float soft_cap = 0.0f;
  bool alibi = false;
  bool sinks = false;
  float query_size = 2.0f;
  std::vector<Sequence> sequences;
  // (sequence, position, head): V there is this instead.
  struct Wrong {
    int sequence, position;
    float value;
  };
  std::vector<Wrong> wrong = {};
};

struct Output {
  std::vector<float> out;  // [rows, q heads, dim_v]
  std::vector<float> lse;
};

class Problem {
 public:
  explicit Problem(const Case& c) : c_(c) {
    const int n = static_cast<int>(c.sequences.size());
    int blocks = 3;
    stride_ = std::max(1, (c.table_tokens + c.block_size - 1) / c.block_size);
    for (const Sequence& s : c.sequences) {
      stride_ = std::max(stride_, (s.kv_len + c.block_size - 1) / c.block_size);
      blocks += (s.kv_len + c.block_size - 1) / c.block_size;
    }
    lay_out(blocks);
    std::vector<int> ids(index(blocks));
    std::iota(ids.begin(), ids.end(), 0);
    std::mt19937 random(c.seed);
    std::shuffle(ids.begin(), ids.end(), random);
    table_.assign(index(n * stride_), -1);
    start_.assign(1, 0);
    for (int i = 0; i < n; ++i) {
      const Sequence& s = c.sequences[index(i)];
      lens_.push_back(s.kv_len);
      start_.push_back(start_.back() + s.queries);
      trim_sinks_.push_back(s.trim_sinks);
      first_kept_.push_back(s.first_kept);
      fill(i, ids);
    }
    const int q_heads = c.heads * c.group_size;
    q_.resize(index(start_.back() * q_heads * c.dim_k * element_bytes(c.q_element)));
    for (int i = 0; i < n; ++i)
      for (int t = 0; t < c.sequences[index(i)].queries; ++t)
        for (int h = 0; h < q_heads; ++h)
          for (int d = 0; d < c.dim_k; ++d) {
            const Sequence& s = c.sequences[index(i)];
            const auto position = static_cast<uint32_t>(s.kv_len - s.queries + t);
            store(q_at(start_[index(i)] + t, h) + d * element_bytes(c.q_element), c.q_element,
                  c.query_size * drawn(hashed(s.id * 977u + position) ^
                                       hashed(static_cast<uint32_t>(h * 1024 + d) + 77u)));
          }
    for (int h = 0; h < q_heads; ++h) {
      slopes_.push_back(std::exp2(-static_cast<float>(h + 1)));
      logits_.push_back(h % 3 == 2 ? -std::numeric_limits<float>::infinity()
                                   : 0.5f * static_cast<float>(h) - 1.0f);
    }
  }

  [[nodiscard]] AttentionCall call(Output& output) const {
    const int q_heads = c_.heads * c_.group_size;
    const std::size_t rows = index(start_.back() * q_heads);
    output.out.assign(rows * index(c_.dim_v), kNan);
    output.lse.assign(rows, kNan);
    AttentionCall call;
    call.cache = cache_;
    call.block_table = table_.data();
    call.block_table_stride = stride_;
    call.device_query_start = start_.data();
    call.device_kv_lens = lens_.data();
    call.device_trim_sinks = trim_sinks_.data();
    call.device_trim_first_kept = first_kept_.data();
    call.q = q_.data();
    call.q_head_stride = c_.dim_k * element_bytes(c_.q_element);
    call.q_token_stride = call.q_head_stride * q_heads;
    call.q_element = c_.q_element;
    call.out = output.out.data();
    call.out_head_stride = c_.dim_v * 4;
    call.out_token_stride = call.out_head_stride * q_heads;
    call.out_element = Element::kF32;
    call.lse = output.lse.data();
    if (c_.alibi) call.alibi_slopes = slopes_.data();
    if (c_.sinks) call.sink_logits = logits_.data();
    call.lengths = {start_, lens_, trim_sinks_, first_kept_};
    call.group_size = c_.group_size;
    call.scale = scale();
    call.soft_cap = static_cast<double>(c_.soft_cap);
    call.mask = c_.mask;
    return call;
  }

  // Who makes a padded plan.
  enum class Planner { kHost, kDevice };
  [[nodiscard]] Output run(const KernelChoice& choice = {},
                           KernelSet set = KernelSet::kSm90a) const {
    Output output;
    run(call(output), choice, nullptr, Planner::kHost, set);
    return output;
  }
  // With a plan that is padded to the capacity; a stream where `is_stream`.
  [[nodiscard]] Output run_padded(const KernelChoice& choice, const AttendCapacity& capacity,
                                  Planner planner, bool is_stream) const {
    Output output;
    AttentionCall attention = call(output);
    const auto is_zero = [](int32_t x) { return x == 0; };
    if (std::all_of(first_kept_.begin(), first_kept_.end(), is_zero)) {
      attention.lengths.trim_sinks = attention.lengths.trim_first_kept = {};
    }
    const AttentionPlan plan = run(attention, choice, &capacity, planner);
    EXPECT_EQ(plan.counts.stream_blocks > 0, is_stream);
    return output;
  }
  static AttentionPlan run(const AttentionCall& attention, const KernelChoice& choice,
                           const AttendCapacity* capacity, Planner planner,
                           KernelSet set = KernelSet::kSm90a) {
    const Result<AttentionPlan> plan = capacity == nullptr
                                           ? plan_attention(attention, choice)
                                           : plan_attention(attention, choice, *capacity);
    EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message());
    if (!plan) return {};
    std::vector<std::byte> image(plan->image.size() + 16);
    std::byte* const at =
        image.data() + (16 - reinterpret_cast<std::uintptr_t>(image.data()) % 16) % 16;
    std::vector<float4> workspace(index(plan->workspace_bytes / 16 + 1),
                                  float4{kNan, kNan, kNan, kNan});
    if (planner == Planner::kDevice) {
      const auto n = static_cast<std::int32_t>(attention.lengths.kv_lens.size());
      const PaddedArgs args = plan_args_of(attention, *plan, &n, at, workspace.data(), nullptr);
      start_plan([&](auto kernel, int threads, int shared_bytes) {
        model::launch(1, threads, shared_bytes, false, [&] { kernel(args); });
      });
    } else {
      if (!plan->image.empty()) std::memcpy(at, plan->image.data(), plan->image.size());
      std::memset(workspace.data(), 0, index(plan->zeroed_bytes));
    }
    const Status status = attend(attention, *plan, at, workspace.data(), {host_launch, &set});
    EXPECT_TRUE(status.ok()) << status.message();
    return *plan;
  }

  // What the reference of the CPU makes of the same memory and arguments.
  [[nodiscard]] Output run_on_cpu() const {
    Output output;
    const Status status = attend_on_cpu(call(output));
    EXPECT_TRUE(status.ok()) << status.message();
    return output;
  }

  // Largest relative L2 error of the output against sums in f64, and of the log-sum-exp.
  struct Error {
    double out = 0.0;
    double lse = 0.0;
  };
  [[nodiscard]] Error error_of(const Output& output) const {
    double num = 0, den = 0, worst = 0;
    for (int i = 0; i < static_cast<int>(lens_.size()); ++i)
      for (int t = 0; t < c_.sequences[index(i)].queries; ++t)
        for (int h = 0; h < c_.heads * c_.group_size; ++h) {
          const std::vector<double> want = exact(i, t, h);
          const auto row = index((start_[index(i)] + t) * c_.heads * c_.group_size + h);
          for (int d = 0; d < c_.dim_v; ++d) {
            const double x = static_cast<double>(output.out[row * index(c_.dim_v) + index(d)]);
            const double y = want[index(d)];
            if (std::isfinite(y)) {
              num += (x - y) * (x - y);
              den += y * y;
            } else if (std::isnan(x) != std::isnan(y) || (!std::isnan(y) && x != y)) {
              num = std::numeric_limits<double>::infinity();
            }
          }
          const auto lse = static_cast<double>(output.lse[row]);
          if (std::isinf(want.back())) {
            if (lse != want.back()) worst = std::numeric_limits<double>::infinity();
          } else {
            worst = std::fmax(std::isnan(lse) ? 1e9 : worst,
                              std::fabs(lse - want.back()) / std::max(1.0, std::fabs(want.back())));
          }
        }
    return {den == 0 ? std::sqrt(num) : std::sqrt(num / den), worst};
  }

 private:
  [[nodiscard]] double scale() const { return 1.0 / std::sqrt(static_cast<double>(c_.dim_k)); }
  char* q_at(int row, int head) {
    return q_.data() + static_cast<std::ptrdiff_t>(row * c_.heads * c_.group_size + head) *
                           c_.dim_k * element_bytes(c_.q_element);
  }

  void lay_out(int blocks) {
    const Case& c = c_;
    CacheArgs& cache = cache_;
    cache.element = c.element;
    cache.block_size = c.block_size;
    cache.num_blocks = blocks;
    cache.num_heads = c.heads;
    cache.dim_k = c.dim_k;
    cache.dim_v = c.dim_v;
    auto strides = [&](std::int64_t row, std::int64_t more) {
      Strides s;
      s.token = c.nhd ? row * c.heads : row;
      s.head = c.nhd ? row : row * c.block_size;
      s.block = row * c.heads * c.block_size + more;
      return s;
    };
    const std::int64_t element = element_bytes(c.element);
    cache.k_strides = strides(c.dim_k * element, c.k_beside_v ? 64 : 0);
    cache.v_strides = strides(c.dim_v * element, 0);
    k_.assign(index(cache.k_strides.block * blocks + 16), static_cast<char>(-1));
    v_.assign(index(cache.v_strides.block * blocks + 16), static_cast<char>(-1));
    auto aligned = [](std::vector<char>& bytes) {
      return bytes.data() + (16 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 16) % 16;
    };
    cache.k = aligned(k_);
    cache.v = aligned(v_);
    if (c.v_is_prefix) {
      cache.v = cache.k;
      cache.v_strides = cache.k_strides;
    }
    if (has_scales(c.element)) {
      cache.k_scale_strides =
          cache.v_scale_strides = {4 * c.heads * c.block_size, 4 * c.block_size, 4};
      k_scales_.assign(index(blocks * c.heads * c.block_size), kNan);
      v_scales_ = k_scales_;
      cache.k_scales = reinterpret_cast<const char*>(k_scales_.data());
      cache.v_scales = reinterpret_cast<const char*>(v_scales_.data());
    }
  }
  // A position that a later row of the sequence could see.
  [[nodiscard]] bool kept(const Sequence& s, int p) const {
    return sight_of_any(c_.mask, s.kv_len - s.queries, s.kv_len - 1, s.kv_len, s.trim_sinks,
                        s.first_kept)
        .sees(p);
  }
  void fill(int i, std::vector<int>& ids) {
    const Sequence& s = c_.sequences[index(i)];
    for (int p = 0; p < s.kv_len; ++p) {
      int32_t& block = table_[index(i * stride_ + p / c_.block_size)];
      if (!kept(s, p)) continue;  // its slot holds NaN, or its block is dropped
      if (block < 0) {
        block = ids.back();
        ids.pop_back();
      }
      for (int h = 0; h < c_.heads; ++h)
        for (int is_v = 0; is_v < (c_.v_is_prefix ? 1 : 2); ++is_v) write(s, i, p, h, is_v, block);
    }
  }
  void write(const Sequence& s, int i, int p, int h, int is_v, int block) {
    const Strides& strides = is_v ? cache_.v_strides : cache_.k_strides;
    char* to = const_cast<char*>(is_v ? cache_.v : cache_.k) + block * strides.block +
               h * strides.head + p % c_.block_size * strides.token;
    const uint32_t place = hashed(s.id * 7919u + static_cast<uint32_t>(p)) ^
                           hashed(static_cast<uint32_t>(2 * h + is_v) + 31u);
    for (int d = 0; d < (is_v ? c_.dim_v : c_.dim_k); ++d)
      store(to + d * element_bytes(c_.element), c_.element,
            drawn(place + static_cast<uint32_t>(d) * 0x9e3779b9u));
    float scale = 0.02f + 0.01f * std::fabs(drawn(place + 3u));
    for (const Case::Wrong& wrong : c_.wrong) {
      if (wrong.sequence != i || wrong.position != p || is_v == 0) continue;
      if (has_scales(c_.element))
        scale = wrong.value;
      else
        store(to + 5 * element_bytes(c_.element), c_.element, wrong.value);
    }
    if (has_scales(c_.element)) {
      auto& scales = is_v ? v_scales_ : k_scales_;
      scales[index((block * c_.heads + h) * c_.block_size + p % c_.block_size)] = scale;
    }
  }
  [[nodiscard]] double value(int i, int p, int h, int d, bool is_v) const {
    const int block = table_[index(i * stride_ + p / c_.block_size)];
    const Strides& strides = is_v ? cache_.v_strides : cache_.k_strides;
    const char* from = (is_v ? cache_.v : cache_.k) + block * strides.block + h * strides.head +
                       p % c_.block_size * strides.token + d * element_bytes(c_.element);
    double x = load(from, c_.element);
    if (has_scales(c_.element)) {
      x *= static_cast<double>(
          (is_v ? v_scales_
                : k_scales_)[index((block * c_.heads + h) * c_.block_size + p % c_.block_size)]);
    }
    return x;
  }
  // The row in f64, and behind it its log-sum-exp.
  [[nodiscard]] std::vector<double> exact(int i, int t, int q_head) const {
    const Sequence& s = c_.sequences[index(i)];
    const int h = q_head / c_.group_size, position = s.kv_len - s.queries + t;
    const Sight sight = sight_of(c_.mask, position, s.kv_len, s.trim_sinks, s.first_kept);
    std::vector<double> scores, out(index(c_.dim_v) + 1);
    std::vector<int> seen;
    double most = -std::numeric_limits<double>::infinity();
    for (int p = 0; p < s.kv_len; ++p) {
      if (!sight.sees(p)) continue;
      double x = 0;
      for (int d = 0; d < c_.dim_k; ++d)
        x += load(q_.data() + (static_cast<std::ptrdiff_t>(
                                   (start_[index(i)] + t) * c_.heads * c_.group_size + q_head) *
                                   c_.dim_k +
                               d) *
                                  element_bytes(c_.q_element),
                  c_.q_element) *
             value(i, p, h, d, false);
      x *= scale();
      const auto cap = static_cast<double>(c_.soft_cap);
      if (cap > 0) x = cap * std::tanh(x / cap);
      if (c_.alibi) x += static_cast<double>(slopes_[index(q_head)]) * (p - position);
      scores.push_back(x);
      seen.push_back(p);
      most = std::max(most, x);
    }
    double total = 0;
    const auto logit = static_cast<double>(logits_[index(q_head)]);
    if (c_.sinks) most = std::max(most, logit);
    if (c_.sinks && std::isfinite(logit)) total += std::exp(logit - most);
    for (std::size_t j = 0; j < seen.size(); ++j) {
      const double weight = std::exp(scores[j] - most);
      total += weight;
      for (int d = 0; d < c_.dim_v; ++d) out[index(d)] += weight * value(i, seen[j], h, d, true);
    }
    for (int d = 0; d < c_.dim_v; ++d)
      if (total != 0) out[index(d)] /= total;
    out.back() = total == 0 ? -std::numeric_limits<double>::infinity() : most + std::log(total);
    return out;
  }

  const Case c_;
  CacheArgs cache_;
  std::vector<char> k_, v_, q_;
  std::vector<float> k_scales_, v_scales_, slopes_, logits_;
  std::vector<int32_t> table_, start_, lens_, trim_sinks_, first_kept_;
  int stride_ = 1;
};

// Rows of two outputs that have different bits; a NaN equals a NaN.
int different(const Case& c, const Output& a, int a_row, const Output& b, int b_row, int rows) {
  auto same = [](float x, float y) {
    return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) ||
           (std::isnan(x) && std::isnan(y));
  };
  const int q_heads = c.heads * c.group_size;
  int count = 0;
  for (int r = 0; r < rows * q_heads; ++r) {
    const auto at = index(a_row * q_heads + r);
    const auto bt = index(b_row * q_heads + r);
    bool equal = same(a.lse[at], b.lse[bt]);
    const auto dims = index(c.dim_v);
    for (std::size_t d = 0; d < dims; ++d)
      equal &= same(a.out[at * dims + d], b.out[bt * dims + d]);
    count += equal ? 0 : 1;
  }
  return count;
}
int rows_of(const Case& c) {
  int rows = 0;
  for (const Sequence& s : c.sequences) rows += s.queries;
  return rows;
}

double bound(Element element) {
  switch (element) {
    case Element::kF32:
      return 2e-6;
    case Element::kF16:
      return 6e-4;
    default:
      return 6e-3;
  }
}
void expect_right(const Case& c, const Output& output, const Problem& problem) {
  const Problem::Error error = problem.error_of(output);
  EXPECT_LE(error.out, bound(c.element));
  EXPECT_LE(error.lse, 2 * bound(c.element));
}

// The case's rows, right, and again: in other memory, alone, and in chunks of other sizes.
void check(Case c) {
  const Problem problem(c);
  const Output whole = problem.run();
  expect_right(c, whole, problem);
  Case other = c;
  other.block_size = c.block_size == 16 ? 24 : 16;
  other.nhd = !c.nhd;
  other.k_beside_v = !c.k_beside_v && !c.v_is_prefix;
  other.seed = c.seed + 1;
  EXPECT_EQ(
      different(c, whole, 0, Problem(other).run({.num_sms = 1, .wgmma = false, .stream = false}), 0,
                rows_of(c)),
      0)
      << "moved";
  // As a card has it that is not sm_90, and has little shared memory or more: in the same memory.
  // There the general kernel takes 256 dims.
  if (c.dim_k != 256) {
    EXPECT_EQ(different(c, whole, 0,
                        problem.run({.num_sms = 1, .wgmma = false, .narrow = true, .stream = false},
                                    KernelSet::kSm80),
                        0, rows_of(c)),
              0)
        << "narrow";
    EXPECT_EQ(
        different(c, whole, 0, problem.run({.wgmma = false}, KernelSet::kSm80), 0, rows_of(c)), 0)
        << "sm_80";
  }
  int row = 0;
  for (std::size_t i = 0; i < c.sequences.size(); ++i) {
    const Sequence& s = c.sequences[i];
    // The last queries as a decode would have them, and one from the middle.
    for (const int back : {0, s.queries / 2}) {
      if (back >= s.queries || c.mask.causal == 0) continue;
      Case alone = c;
      alone.wrong.clear();
      for (Case::Wrong w : c.wrong)
        if (w.sequence == static_cast<int>(i)) alone.wrong.push_back({0, w.position, w.value});
      alone.sequences = {s};
      alone.sequences[0].kv_len -= back;
      alone.sequences[0].first_kept = std::min(s.first_kept, alone.sequences[0].kv_len);
      alone.sequences[0].queries = 1;
      EXPECT_EQ(different(c, whole, row + s.queries - 1 - back, Problem(alone).run(), 0, 1), 0)
          << "sequence " << i << ", " << back << " rows from its end, alone";
    }
    row += s.queries;
  }
}

std::vector<Sequence> some_sequences() {
  return {{1, 1, 1}, {2, 70, 1}, {3, 300, 3}, {4, 1090, 1}, {5, 40, 20}};
}

TEST(CudaKernels, EveryElementTypeIsRightAndEqualInEveryLayoutAndBatch) {
  for (const Element element :
       {Element::kBF16, Element::kF16, Element::kInt8, Element::kE4M3, Element::kF32}) {
    Case c;
    c.element = element;
    if (element == Element::kF16 || element == Element::kF32) c.q_element = element;
    c.sequences = some_sequences();
    SCOPED_TRACE(std::string(to_string(element)));
    check(c);
  }
}

// The order and rounding of each operation, fixed: a change of any bit of the model fails here.
// The model's instructions are IEEE operations in a fixed order, so these hold on every machine; a
// GPU's bits differ from them (docs/cuda-attention.md).
TEST(CudaKernels, TheBitsOfTheModelAreThese) {
  const std::pair<Element, std::uint64_t> digests[] = {{Element::kBF16, 12730588473636334170u},
                                                       {Element::kF16, 7790655864263971815u},
                                                       {Element::kInt8, 489467085111323730u},
                                                       {Element::kE4M3, 3362656320123682954u},
                                                       {Element::kF32, 17715741549278849829u}};
  for (const auto& [element, want] : digests) {
    Case c;
    c.element = element;
    if (element == Element::kF16 || element == Element::kF32) c.q_element = element;
    c.heads = 1;
    c.sequences = {{1, 300, 1}, {2, 1100, 2}, {3, 70, 20}};
    const Output output = Problem(c).run();
    std::uint64_t digest = 14695981039346656037u;
    for (const float x : output.out) {
      digest = (digest ^ std::bit_cast<uint32_t>(x)) * 1099511628211u;
    }
    EXPECT_EQ(digest, want) << to_string(element);
  }
}

TEST(CudaKernels, HeadDim128RunsOnWgmmaAndHasTheBitsOfDecode) {
  Case c;
  c.dim_k = c.dim_v = 128;
  c.heads = 1;
  c.sequences = {{1, 150, 33}, {2, 1100, 1}, {3, 300, 40}};
  check(c);
}

// By nodes alone: a chunk of many rows as well, and 16 query heads in groups of 8.
TEST(CudaKernels, HeadDim256RunsOnNodesInAllFourTypes) {
  for (const Element element : {Element::kBF16, Element::kF16, Element::kInt8, Element::kE4M3}) {
    Case c;
    c.element = element;
    if (element == Element::kF16) c.q_element = element;
    c.dim_k = c.dim_v = 256;
    c.heads = 1;
    c.group_size = element == Element::kBF16 ? 16 : 2;
    c.sequences = {{1, 90, 9}, {2, 1100, 1}, {3, 0, 0}};
    SCOPED_TRACE(to_string(element));
    Output output;
    EXPECT_EQ(plan_attention(Problem(c).call(output))->family, Family::kTiles256);
    check(c);
  }
}

TEST(CudaKernels, HeadDim256KnowsMasksCapsSlopesAndSinks) {
  Case c;
  c.dim_k = c.dim_v = 256;
  c.heads = 1;
  c.mask = {Rule::kSlidingWindow, 70, 3, 1};
  c.soft_cap = 3.0f;
  c.alibi = c.sinks = true;
  c.sequences = {{1, 1100, 2}, {2, 100, 40}, {3, 80, 1, 5, 60}};
  c.wrong = {{0, 1099, kNan}, {1, 99, std::numeric_limits<float>::infinity()}};
  check(c);
}

TEST(CudaKernels, WindowsChunksSinksAndTrimsSeeWhatTheRuleSays) {
  for (const Rule rule : {Rule::kFull, Rule::kSlidingWindow, Rule::kChunked})
    for (const bool trimmed : {false, true}) {
      Case c;
      c.heads = 1;
      c.mask = {rule, 100, 3, 1};
      c.sequences = {{1, 1500, 1}, {2, 400, 20}, {3, 90, 90}, {4, 700, 2}};
      if (trimmed) {
        c.sequences[0].trim_sinks = 5;
        c.sequences[0].first_kept = 1450;
        c.sequences[1].first_kept = 130;
      }
      SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule)) + (trimmed ? " trimmed" : ""));
      check(c);
    }
}

TEST(CudaKernels, SoftCapSlopesAndLearnedSinksAreApplied) {
  for (const Element element : {Element::kBF16, Element::kInt8, Element::kF32}) {
    Case c;
    c.element = element;
    if (element == Element::kF32) c.q_element = Element::kF32;
    c.heads = 1;
    c.soft_cap = 3.0f;
    c.alibi = true;
    c.sinks = true;
    c.sequences = {{1, 1100, 1}, {2, 40, 33}, {3, 0, 0}};
    check(c);
  }
  Case c;
  c.dim_k = c.dim_v = 128;
  c.heads = 1;
  c.soft_cap = 3.0f;
  c.alibi = c.sinks = true;
  c.sequences = {{1, 100, 40}};
  check(c);
}

// One meaning of the parameters: rule, soft cap, ALiBi and learned sinks, in this order.
TEST(CudaKernels, AndTheReferenceOfTheCpuComputeTheSame) {
  for (const Rule rule : {Rule::kFull, Rule::kSlidingWindow, Rule::kChunked})
    for (const Element element : {Element::kBF16, Element::kInt8, Element::kF32})
      for (const int causal : {1, 0}) {
        Case c;
        c.element = element;
        if (element == Element::kF32) c.q_element = Element::kF32;
        c.heads = 1;
        c.mask = {rule, 50, 3, causal};
        c.soft_cap = 3.0f;
        c.alibi = c.sinks = true;
        c.sequences = {{1, 1100, 1}, {2, 140, 33}, {3, 0, 0}, {4, 90, 2, 5, 80}, {5, 60, 2, 0, 60}};
        SCOPED_TRACE(std::string(to_string(element)) + ", rule " +
                     std::to_string(static_cast<int>(rule)) + (causal != 0 ? ", causal" : ""));
        const Problem problem(c);
        const Output want = problem.run_on_cpu();
        const Output got = problem.run();
        ASSERT_LE(problem.error_of(want).out, 2e-7);
        double error = 0, size = 0;
        for (std::size_t i = 0; i < want.out.size(); ++i) {
          const double x = static_cast<double>(want.out[i]);
          error += (static_cast<double>(got.out[i]) - x) * (static_cast<double>(got.out[i]) - x);
          size += x * x;
        }
        EXPECT_LE(std::sqrt(error / size), bound(element));
        for (std::size_t i = 0; i < want.lse.size(); ++i) {
          if (got.lse[i] == want.lse[i]) continue;  // -inf
          const float most = std::max(1.0f, std::fabs(want.lse[i]));
          EXPECT_NEAR(got.lse[i], want.lse[i], 2 * bound(element) * static_cast<double>(most)) << i;
        }
      }
}

TEST(CudaKernels, NanAndInfinityBehindARowReachNothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Element element : {Element::kBF16, Element::kInt8, Element::kF32})
    for (const int dim : {64, 128}) {
      if (dim == 128 && element != Element::kBF16) continue;
      for (const int queries : {3, 40}) {
        Case c;
        c.element = element;
        if (element == Element::kF32) c.q_element = Element::kF32;
        c.dim_k = c.dim_v = dim;
        c.heads = 1;
        c.group_size = 2;
        c.mask = {Rule::kSlidingWindow, 30, 0, 1};
        c.sequences = {{1, 100, queries}, {2, 300, queries}};
        c.wrong = {{0, 98, kNan}, {0, 75, infinity}, {1, 299, kNan}, {1, 272, -infinity}};
        SCOPED_TRACE(std::string(to_string(element)) + ", " + std::to_string(queries));
        check(c);
      }
    }
}

TEST(CudaKernels, TheGeneralKernelTakesEveryHeadDimAndVAsAPrefixOfK) {
  struct Dims {
    int k, v;
    bool prefix;
  };
  for (const Dims dims :
       {Dims{8, 8, false}, Dims{80, 80, false}, Dims{192, 128, false}, Dims{576, 512, true}})
    for (const Element element : {Element::kBF16, Element::kE4M3}) {
      if (dims.prefix && element != Element::kBF16) continue;
      Case c;
      c.element = element;
      c.dim_k = dims.k;
      c.dim_v = dims.v;
      c.v_is_prefix = dims.prefix;
      c.heads = 1;
      c.group_size = dims.prefix ? 16 : 3;
      c.sequences = {{1, 1, 1}, {2, 330, 2}};
      SCOPED_TRACE(dims.k);
      check(c);
    }
}

TEST(CudaKernels, GroupsOfAnySizeShareKeysAndValues) {
  for (const int group_size : {1, 3, 8, 12, 16}) {
    Case c;
    c.heads = 1;
    c.group_size = group_size;
    c.sequences = {{1, 200, 1}, {2, 65, 2}, {3, 70, 5}};
    SCOPED_TRACE(group_size);
    check(c);
  }
}

TEST(CudaKernels, QueriesOfAnyMagnitudeOver8BitCaches) {
  for (const float size : {1e5f, 1e6f}) {
    Case c;
    c.element = Element::kInt8;
    c.query_size = size;
    c.heads = 1;
    c.sequences = {{1, 70, 1}};
    const Output output = Problem(c).run();
    for (const float x : output.out) ASSERT_TRUE(std::isfinite(x));
    expect_right(c, output, Problem(c));
  }
}

// Scores so far apart that some row's maximum moves in each tile of a leaf, of 64 and of 128 dims.
TEST(CudaKernels, MaximaThatMoveInAnyTileOfALeaf) {
  for (const int dim : {64, 128}) {
    Case c;
    c.dim_k = c.dim_v = dim;
    c.query_size = 40.0f;
    c.heads = 1;
    c.sequences = {{1, 1400, 40}, {2, 600, 1}};
    SCOPED_TRACE(dim);
    check(c);
  }
}

TEST(CudaKernels, NoRowChangesWithTheOrderInWhichWarpsRun) {
  for (const int dim : {64, 128}) {
    Case c;
    c.dim_k = c.dim_v = dim;
    c.heads = 1;
    c.sequences = {{1, 700, 1}, {2, 200, 40}};
    const Problem problem(c);
    const Output want = problem.run();
    for (unsigned seed = 1; seed <= 3; ++seed) {
      model::set_order(seed);
      EXPECT_EQ(different(c, want, 0, problem.run(), 0, rows_of(c)), 0);
      EXPECT_EQ(
          different(c, want, 0, problem.run({.wgmma = false, .narrow = true}, KernelSet::kSm80), 0,
                    rows_of(c)),
          0);
    }
    model::set_order(0);
  }
}

TEST(CudaKernels, AStreamOfAnyNumberOfBlocksHasTheBitsOfNodes) {
  for (const Rule rule : {Rule::kFull, Rule::kSlidingWindow})
    for (const int blocks : {1, 2, 5, 30}) {
      Case c;
      c.heads = 1;
      c.mask = {rule, 600, 0, 1};
      c.alibi = c.sinks = rule == Rule::kSlidingWindow;
      c.sequences = {{1, 1, 1}, {2, 2500, 1}, {3, 1024, 1}, {4, 70, 1}, {5, 1300, 1}};
      const Problem problem(c);
      const Output nodes = problem.run({.stream = false});
      EXPECT_EQ(different(c, nodes, 0, problem.run({.num_sms = 1, .stream = false}), 0, rows_of(c)),
                0);
      expect_right(c, nodes, problem);
      SCOPED_TRACE(blocks);
      EXPECT_EQ(different(c, nodes, 0, problem.run({.stream_blocks = blocks}), 0, rows_of(c)), 0);
    }
}

// Batches within a capacity that they do not fill, and one that they do: no empty item changes a
// row, and neither does who planned.
TEST(CudaKernels, PaddedPlansOfHostAndDeviceHaveTheBitsOfOthers) {
  struct Try {
    Case c = {};
    AttendCapacity capacity;
    KernelChoice choice = {};
    bool is_stream = false;
  };
  std::vector<Try> tries;
  const std::vector<Sequence> decodes = {{1, 1, 1}, {2, 2500, 1}, {3, 1024, 1}, {4, 70, 1}};
  const AttendCapacity wide = {.max_sequences = 6, .max_sequence_tokens = 3000};
  const AttendCapacity full = {
      .max_sequences = 4, .max_sequence_tokens = 2500, .max_tokens = 1 + 2500 + 1024 + 70};
  for (const AttendCapacity& capacity : {wide, full}) {
    for (const Element element : {Element::kBF16, Element::kInt8, Element::kF32}) {
      Try one{.capacity = capacity, .choice = {.stream = false}};
      one.c.element = element;
      one.c.q_element = element == Element::kF32 ? Element::kF32 : Element::kBF16;
      one.c.heads = 1;
      one.c.sequences = decodes;
      tries.push_back(one);
      one.choice = {.num_sms = 1, .stream = false};  // deep rings or many blocks
      one.c.mask = {Rule::kSlidingWindow, 600, 9, 1};
      one.c.sequences[1].trim_sinks = 3;
      one.c.sequences[1].first_kept = 1300;
      tries.push_back(one);
    }
    for (const int blocks : {1, 3, 40}) {
      for (const Rule rule : {Rule::kFull, Rule::kSlidingWindow}) {
        Try one{.capacity = capacity, .choice = {.stream_blocks = blocks}, .is_stream = true};
        one.c.heads = 2;
        one.c.mask = {rule, 600, 0, 1};
        one.c.sequences = decodes;
        tries.push_back(one);
      }
    }
  }
  {  // Chunks and verified drafts, some without queries; a group of 16 rows.
    Try one{.capacity = {.max_sequences = 5, .max_sequence_tokens = 1500, .max_queries = 20}};
    one.c.heads = 1;
    one.c.group_size = 12;
    one.c.sequences = {{1, 9, 0}, {2, 1400, 20}, {3, 600, 3}};
    tries.push_back(one);
  }
  for (const Element element : {Element::kBF16, Element::kInt8}) {  // the same in nodes of 8 rows
    Try one{.capacity = {.max_sequences = 4, .max_sequence_tokens = 1500, .max_queries = 20}};
    one.c.element = element;
    one.c.dim_k = one.c.dim_v = 256;
    one.c.heads = 1;
    one.c.group_size = 12;
    one.c.sequences = {{1, 9, 0}, {2, 1400, 7}, {3, 30, 3}};
    tries.push_back(one);
  }
  {  // Sequences that have no tokens, or no query.
    Try one{.capacity = wide, .choice = {.stream_blocks = 7}, .is_stream = true};
    one.c.heads = 1;
    one.c.mask.causal = 0;
    one.c.sequences = {{1, 0, 1}, {2, 700, 1}, {3, 5, 0}, {4, 0, 1}};
    tries.push_back(one);
  }
  for (const Try& one : tries) {
    SCOPED_TRACE(testing::Message() << to_string(one.c.element) << ", head_dim " << one.c.dim_k
                                    << ", " << one.choice.stream_blocks << " blocks of a stream, "
                                    << one.capacity.max_sequences << " sequences");
    Case c = one.c;
    c.table_tokens = one.capacity.max_sequence_tokens;
    const Problem problem(c);
    const Output want = problem.run({.stream = false});
    for (const Problem::Planner planner : {Problem::Planner::kHost, Problem::Planner::kDevice}) {
      const Output got = problem.run_padded(one.choice, one.capacity, planner, one.is_stream);
      EXPECT_EQ(different(one.c, want, 0, got, 0, rows_of(one.c)), 0);
    }
  }
}

TEST(CudaKernels, QueriesThatAreNotCausalReadEverything) {
  Case c;
  c.heads = 1;
  c.mask.causal = 0;
  c.sequences = {{1, 5, 9}, {2, 130, 40}, {3, 0, 2}};
  check(c);
}

// ---- cuda-wgmma-tiles
// --------------------------------------------------------------------------------

constexpr KernelChoice kWgmmaTiles = {.wgmma_tiles = true, .stream = false};

struct TilesShape {
  Element element;
  Element q_element;
  int dim;
};
constexpr TilesShape kTilesShapes[] = {
    {Element::kInt8, Element::kBF16, 128}, {Element::kE4M3, Element::kBF16, 128},
    {Element::kInt8, Element::kF16, 64},   {Element::kE4M3, Element::kBF16, 64},
    {Element::kBF16, Element::kBF16, 64},  {Element::kF16, Element::kF16, 64}};
Case case_of(const TilesShape& shape) {
  Case c;
  c.element = shape.element;
  c.q_element = shape.q_element;
  c.dim_k = c.dim_v = shape.dim;
  c.heads = 1;
  return c;
}
std::string name_of(const Case& c) {
  return std::string(to_string(c.element)) + " D" + std::to_string(c.dim_k) + " G" +
         std::to_string(c.group_size) + " block " + std::to_string(c.block_size);
}

// Chunks run on cuda-wgmma-tiles and have the bits of cuda-prefill, in other memory as well.
void check_tiles(const Case& c) {
  SCOPED_TRACE(name_of(c));
  const Problem problem(c);
  Output unused;
  const Result<AttentionPlan> plan = plan_attention(problem.call(unused), kWgmmaTiles);
  ASSERT_TRUE(plan.has_value());
  ASSERT_EQ(plan->prefill, KernelName::kWgmmaTiles);
  ASSERT_FALSE(plan->work.prefill_items.empty());
  const Output tiles = problem.run(kWgmmaTiles);
  Case other = c;
  other.block_size = c.block_size == 16 ? 24 : 16;
  other.nhd = !c.nhd;
  other.k_beside_v = !c.k_beside_v;
  other.seed = c.seed + 1;
  const Output prefill = Problem(other).run({.wgmma = false, .stream = false});
  EXPECT_EQ(different(c, prefill, 0, tiles, 0, rows_of(c)), 0);
}

TEST(CudaWgmmaTiles, HasTheBitsOfPrefillForEveryTypeDimGroupAndBlockSize) {
  int block_size = 1;
  for (const TilesShape& shape : kTilesShapes)
    for (const int group_size : {1, 3, 8, 16}) {
      Case c = case_of(shape);
      c.group_size = group_size;
      c.block_size = block_size;
      block_size = block_size == 1 ? 16 : block_size == 16 ? 24 : block_size == 24 ? 64 : 1;
      c.sequences = {{1, 200, 150 / group_size}, {3, 70, 1}};
      if (group_size == 8) c.sequences.push_back({2, 1300, 5});
      check_tiles(c);
    }
}

TEST(CudaWgmmaTiles, IsRightInEveryChunkAndAlone) {
  for (const TilesShape& shape : kTilesShapes) {
    Case c = case_of(shape);
    c.heads = 2;
    c.sequences = {{1, 300, 40}, {5, 40, 33}};
    SCOPED_TRACE(name_of(c));
    const Problem problem(c);
    const Output whole = problem.run(kWgmmaTiles);
    expect_right(c, whole, problem);
    int row = 0;
    for (const Sequence& s : c.sequences) {
      for (const int queries : {1, 17}) {
        Case chunk = c;
        chunk.sequences = {s};
        chunk.sequences[0].queries = queries;
        EXPECT_EQ(different(c, whole, row + s.queries - queries, Problem(chunk).run(kWgmmaTiles), 0,
                            queries),
                  0)
            << "the last " << queries << " of sequence " << s.id;
      }
      row += s.queries;
    }
  }
}

TEST(CudaWgmmaTiles, SeesWhatTheRuleSays) {
  for (const TilesShape& shape : kTilesShapes)
    for (const Rule rule : {Rule::kSlidingWindow, Rule::kChunked})
      for (const bool more : {false, true}) {
        Case c = case_of(shape);
        c.mask = {rule, 100, 3, 1};
        c.sequences = {{1, 400, 20}, {3, 1500, 9}};
        if (more) {
          c.sequences[0].trim_sinks = 5;
          c.sequences[0].first_kept = 330;
          c.alibi = c.sinks = true;
          c.soft_cap = 3.0f;
        }
        SCOPED_TRACE("rule " + std::to_string(static_cast<int>(rule)) + (more ? " trimmed" : ""));
        check_tiles(c);
      }
}

TEST(CudaWgmmaTiles, NotCausalQueriesReadEverything) {
  for (const TilesShape& shape : kTilesShapes) {
    Case c = case_of(shape);
    c.mask.causal = 0;
    c.sequences = {{1, 5, 9}, {2, 130, 40}, {3, 0, 8}};
    check_tiles(c);
  }
}

TEST(CudaWgmmaTiles, NanAndInfinityBehindARowReachNothing) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const TilesShape& shape : kTilesShapes) {
    Case c = case_of(shape);
    c.group_size = 2;
    c.mask = {Rule::kSlidingWindow, 30, 0, 1};
    c.sequences = {{1, 100, 40}, {2, 300, 40}};
    c.wrong = {{0, 98, kNan}, {0, 75, infinity}, {1, 299, kNan}, {1, 272, -infinity}};
    check_tiles(c);
  }
}

TEST(CudaWgmmaTiles, QueriesOfAnyMagnitudeAndMaximaThatMove) {
  for (const TilesShape& shape : kTilesShapes)
    for (const float size : {40.0f, 1e6f}) {
      if (size > 1e3f && (!has_scales(shape.element) || shape.q_element == Element::kF16)) continue;
      Case c = case_of(shape);
      c.query_size = size;
      c.sequences = {{1, size > 1e3f ? 70 : 600, 10}};
      check_tiles(c);
    }
}

TEST(CudaWgmmaTiles, NoRowChangesWithTheOrderInWhichWarpsRun) {
  for (const TilesShape& shape : kTilesShapes) {
    Case c = case_of(shape);
    c.mask = {Rule::kSlidingWindow, 700, 0, 1};  // tiles in part at both ends
    c.sequences = {{1, 900, 20}};
    const Problem problem(c);
    const Output want = problem.run({.wgmma = false, .stream = false});
    for (unsigned seed = 1; seed <= 4; ++seed) {
      model::set_order(seed);
      EXPECT_EQ(different(c, want, 0, problem.run(kWgmmaTiles), 0, rows_of(c)), 0) << name_of(c);
    }
    model::set_order(0);
  }
}

}  // namespace
}  // namespace kvfolio::cuda
