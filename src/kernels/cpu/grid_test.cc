// SPDX-License-Identifier: Apache-2.0

// Every CPU target over a grid of shapes against sums in f64. The grid is pairwise: cases are drawn
// so that soon every value of a parameter has met every value of every other one. The memory is
// laid out and filled here, by the definitions of spec.h, and shares no code with append().
//
// In kParts tests, so that they run beside each other; each draws all cases and checks its own.
//
// A smaller grid is computed by the targets of AVX-512 over a plain model of their instructions
// (model/immintrin.h): on a machine that lacks them nothing else computes their code.
//
//   KVFOLIO_GRID_CASES=N   how many cases (default 200; 150 without optimisation or sanitized)
//   KVFOLIO_SEED=S         of the first case (default 1); printed where a case fails

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/driver.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
#if defined(KVFOLIO_MODELLED)
namespace kernels {
TargetKernels modelled_avx512_kernels() noexcept;
TargetKernels modelled_avx512_bf16_kernels() noexcept;
}  // namespace kernels
#endif
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
#define KVFOLIO_SLOW_BUILD
#endif
#if defined(KVFOLIO_SLOW_BUILD)
constexpr std::int64_t kDefaultCases = 150;
#else
constexpr std::int64_t kDefaultCases = 200;
#endif
constexpr int kParts = 4;

using Random = std::mt19937_64;

std::int64_t environment(const char* name, std::int64_t fallback) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? fallback : std::strtoll(text, nullptr, 10);
}

int draw(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// Products of small counts, which int holds.
constexpr std::size_t index(int i) { return static_cast<std::size_t>(i); }

// ---- cases -------------------------------------------------------------------------------------

enum Parameter {
  kType,
  kForm,
  kBlock,
  kHeads,
  kQPerKv,
  kDimK,
  kDimV,
  kQuery,
  kMask,
  kBend,
  kLengths,
  kBatch,
  kThreads,
  kSharing,
  kNumParameters
};
constexpr std::array<int, kNumParameters> kNumValues = {5, 3, 9, 3, 14, 7, 7, 3, 9, 5, 7, 4, 3, 3};
using Choice = std::array<int, kNumParameters>;
constexpr int kNotCausal = 1;  // a value of kMask
// Values of kBend.
constexpr int kOnlySinks = 1;
constexpr int kOnlyCap = 2;
constexpr int kOnlyAlibi = 3;
constexpr int kAllBends = 4;

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kE4M3};
constexpr Format kForms[] = {Format::kGranule, Format::kHnd, Format::kNhd};
constexpr int kBlocks[] = {1, 5, 8, 16, 32, 48, 64, 128, 1024};
constexpr int kHeadCounts[] = {1, 2, 4};
constexpr int kQPerKvChoices[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 32, 72};
constexpr int kDims[] = {8, 64, 80, 96, 112, 128, 256};
constexpr DType kQueries[] = {DType::kF32, DType::kBF16, DType::kF16};

// Chooses of some random cases the one that has the most pairs that were not seen yet.
class Pairwise {
 public:
  Choice next(Random& random) {
    Choice best{};
    std::size_t most = 0;
    for (int attempt = 0; attempt < 24; ++attempt) {
      Choice choice;
      for (std::size_t p = 0; p < kNumParameters; ++p) {
        choice[p] = draw(random, 0, kNumValues[p] - 1);
      }
      const std::size_t fresh = pairs(choice, false);
      if (attempt == 0 || fresh > most) {
        best = choice;
        most = fresh;
      }
    }
    pairs(best, true);
    return best;
  }
  [[nodiscard]] std::size_t seen() const { return seen_.size(); }

 private:
  std::size_t pairs(const Choice& choice, bool take) {
    std::size_t fresh = 0;
    for (int a = 0; a < kNumParameters; ++a) {
      for (int b = a + 1; b < kNumParameters; ++b) {
        const int key = ((a * 16 + b) * 16 + choice[static_cast<std::size_t>(a)]) * 16 +
                        choice[static_cast<std::size_t>(b)];
        if (seen_.count(key) != 0) continue;
        ++fresh;
        if (take) seen_.insert(key);
      }
    }
    return fresh;
  }
  std::set<int> seen_;
};

struct Sequence {
  int kv_len = 0;
  int queries = 0;
  int trim_sinks = 0;
  int trim_first_kept = 0;
};

struct Case {
  DType type = DType::kF32;
  Format form = Format::kGranule;
  int block_size = 16;
  int heads = 1;
  int q_per_kv = 1;
  int dim_k = 64;
  int dim_v = 64;
  DType query = DType::kF32;
  AttentionParams params;      // but what the next two say
  std::vector<float> slopes;   // of ALiBi, by query head
  std::vector<float> logits;   // of learned sinks
  double largest_score = 0.0;  // that ALiBi makes where rows see nothing beside it
  std::vector<Sequence> sequences;
  int threads = 1;
  int sharing = 0;  // 1: leading blocks of all sequences are one; 2: the table has garbage behind
  std::uint64_t seed = 0;

  [[nodiscard]] int num_queries() const {
    int n = 0;
    for (const Sequence& s : sequences) n += s.queries;
    return n;
  }
  [[nodiscard]] int longest() const {
    int n = 0;
    for (const Sequence& s : sequences) n = std::max(n, s.kv_len);
    return n;
  }
};

std::string name(const Case& c) {
  std::string text = std::string(to_string(c.type)) + " " + to_string(c.form) + " block " +
                     std::to_string(c.block_size) + " heads " + std::to_string(c.heads) + " G " +
                     std::to_string(c.q_per_kv) + " dims " + std::to_string(c.dim_k) + "/" +
                     std::to_string(c.dim_v) + " q " + to_string(c.query) + " causal " +
                     std::to_string(c.params.causal) + " rule " + to_string(c.params.rule.kind()) +
                     " " + std::to_string(c.params.rule.window()) + " sinks " +
                     std::to_string(c.params.rule.num_sinks()) + " cap " +
                     std::to_string(c.params.soft_cap) + (c.slopes.empty() ? "" : " ALiBi") +
                     (c.logits.empty() ? "" : " learned sinks") + " threads " +
                     std::to_string(c.threads) + " seed " + std::to_string(c.seed) + " sequences";
  for (const Sequence& s : c.sequences) {
    text += " " + std::to_string(s.kv_len) + ":" + std::to_string(s.queries);
    if (s.trim_first_kept > 0) {
      text += "(" + std::to_string(s.trim_sinks) + "," + std::to_string(s.trim_first_kept) + ")";
    }
  }
  return text;
}

// Soft caps, slopes and sinks, in any mixture.
void bend_case(Case& c, int bend, Random& random) {
  const int q_heads = c.heads * c.q_per_kv;
  std::uniform_real_distribution<float> one(-1.0f, 1.0f);
  if (bend == kOnlyCap || bend == kAllBends) {
    constexpr double kCaps[] = {0.3, 1, 5, 30, 50, 1e9};
    c.params.soft_cap = kCaps[draw(random, 0, 5)];
  }
  if (bend == kOnlyAlibi || bend == kAllBends) {
    bool trimmed = false;
    for (const Sequence& s : c.sequences) trimmed |= s.trim_first_kept > 0;
    // A row that sees the tokens beside it has small scores among those that count. Others have
    // what their slopes make, and f32 rounds that.
    const bool steep = c.params.causal && !trimmed && draw(random, 0, 1) == 0;
    constexpr float kMost = 16.0f;
    if (!steep) c.largest_score = double{kMost};
    for (int h = 0; h < q_heads; ++h) {
      c.slopes.push_back(
          steep ? std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(q_heads))
                : one(random) * kMost / static_cast<float>(c.longest() + 200));
    }
  }
  if (bend == kOnlySinks || bend == kAllBends) {
    for (int h = 0; h < q_heads; ++h) {
      c.logits.push_back(draw(random, 0, 5) == 0 ? -std::numeric_limits<float>::infinity()
                                                 : 4.0f * one(random));
    }
  }
}

Case make_case(const Choice& choice, std::uint64_t seed) {
  Random random(seed);
  Case c;
  c.seed = seed;
  const auto at = [&](Parameter p) { return static_cast<std::size_t>(choice[p]); };
  c.type = kTypes[at(kType)];
  c.form = kForms[at(kForm)];
  if (c.form == Format::kGranule && !fits_granule(c.type)) c.form = Format::kHnd;
  c.block_size = kBlocks[at(kBlock)];
  if (c.form == Format::kGranule) c.block_size = (c.block_size + 15) / 16 * 16;
  c.heads = kHeadCounts[at(kHeads)];
  c.q_per_kv = kQPerKvChoices[at(kQPerKv)];
  c.dim_k = kDims[at(kDimK)];
  c.dim_v = kDims[at(kDimV)];
  c.query = kQueries[at(kQuery)];
  c.params.scale = 1.0 / std::sqrt(c.dim_k);
  constexpr int kLengthLimits[] = {3, 64, 70, 300, 1100, 2100, 5000};
  const int limit = kLengthLimits[at(kLengths)];
  constexpr int kBatches[] = {1, 2, 3, 7};
  // What one case may cost, so that the grid ends in minutes.
  std::int64_t left = std::int64_t{12} << 20;
  const std::int64_t per_pair = std::int64_t{c.heads} * c.q_per_kv * (c.dim_k + c.dim_v) / 16 + 1;
  std::int64_t tokens = (std::int64_t{8} << 20) / (std::int64_t{c.heads} * (c.dim_k + c.dim_v) * 8);
  for (int i = 0; i < kBatches[at(kBatch)]; ++i) {
    Sequence s;
    s.kv_len = draw(random, 0, 3) == 0 ? draw(random, 0, limit) : draw(random, limit / 2, limit);
    s.kv_len = static_cast<int>(std::min<std::int64_t>(s.kv_len, tokens));
    tokens -= s.kv_len;
    constexpr int kMostQueries[] = {1, 1, 5, 40, 200};
    s.queries = draw(random, 0, kMostQueries[draw(random, 0, 4)]);
    // Where all read everything there may be more of them than tokens.
    if (choice[kMask] != kNotCausal) s.queries = std::min(s.queries, s.kv_len);
    const std::int64_t affordable = left / (per_pair * std::max(s.kv_len, 1));
    s.queries = static_cast<int>(std::min<std::int64_t>(s.queries, affordable));
    left -= per_pair * s.kv_len * s.queries;
    c.sequences.push_back(s);
  }
  switch (choice[kMask]) {
    case kNotCausal:
      c.params.causal = false;
      break;
    case 2:
      c.params.rule = GroupRule::of_window(draw(random, 1, 200));
      break;
    case 3: {
      const int window = draw(random, 1, 700);
      c.params.rule = GroupRule::of_window(window, draw(random, 0, 130));
      break;
    }
    case 4:  // trimmed, StreamingLLM
      for (Sequence& s : c.sequences) {
        s.trim_sinks = draw(random, 0, 80);
        s.trim_first_kept = draw(random, 0, s.kv_len);
      }
      break;
    case 6:
      c.params.rule = GroupRule::of_chunk(draw(random, 1, 1500));
      break;
    case 5:
    case 7: {
      const int window = draw(random, 1, 90);
      const int sinks = draw(random, 0, 40);
      c.params.rule = choice[kMask] == 5 ? GroupRule::of_window(window, sinks)
                                         : GroupRule::of_chunk(3 * window, sinks);
      for (Sequence& s : c.sequences) {
        s.trim_sinks = draw(random, 0, 50);
        s.trim_first_kept = draw(random, 0, s.kv_len);
      }
      break;
    }
    default:
      break;
  }
  bend_case(c, choice[kBend], random);
  constexpr int kThreadCounts[] = {1, 2, 5};
  c.threads = kThreadCounts[at(kThreads)];
  c.sharing = choice[kSharing];
  return c;
}

// ---- memory ------------------------------------------------------------------------------------

// Values of K or V of one token and head: a function of the position alone where it is shared.
void fill_values(std::uint64_t seed, bool is_v, int sequence, int position, int head,
                 std::span<float> values) {
  std::uint64_t row = seed * 0x9e3779b97f4a7c15u + (is_v ? 77 : 0);
  for (const int part : {sequence, position, head}) {
    row = (row ^ (row >> 31)) * 0xbf58476d1ce4e5b9u + static_cast<std::uint64_t>(part + 1);
  }
  for (float& value : values) {
    row += 0x9e3779b97f4a7c15u;
    std::uint64_t x = (row ^ (row >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    // Nearly normal: the sum of four uniform numbers.
    const std::uint64_t sum = (x & 0xffffu) + (x >> 16 & 0xffffu) + (x >> 32 & 0xffffu) + (x >> 48);
    value = (static_cast<float>(static_cast<std::int32_t>(sum)) * 0x1p-16f - 2.0f) * 1.7f;
  }
}

float amax(std::span<const float> values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

std::int8_t quantized(float x, float inverse) {
  return static_cast<std::int8_t>(std::clamp(std::nearbyint(x * inverse), -127.0f, 127.0f));
}

// The largest magnitude of an element of a type with scales.
float most_of(DType type) { return type == DType::kE4M3 ? 448.0f : 127.0f; }

class Memory {
 public:
  Memory(const Case& c, Format form, int block_size, std::uint64_t order_seed)
      : case_(c), form_(form), block_size_(block_size) {
    blocks_per_sequence_ = (c.longest() + block_size - 1) / block_size;
    const int n = static_cast<int>(c.sequences.size());
    num_blocks_ = std::max(1, blocks_per_sequence_ * n) + 2;
    element_ = dtype_bytes(c.type);
    const std::int64_t k_row = c.dim_k * element_;
    const std::int64_t v_row = c.dim_v * element_;
    const std::int64_t heads = c.heads;
    KVView& view = view_;
    view.num_layers = 1;
    view.num_blocks = num_blocks_;
    view.block_size = block_size;
    view.num_kv_heads = c.heads;
    view.head_dim_k = c.dim_k;
    view.head_dim_v = c.dim_v;
    view.dtype = c.type;
    view.granule = form == Format::kGranule;
    const std::int64_t scale_bytes = has_scales(c.type) ? 4 : 0;
    const std::int64_t bs = block_size;
    std::int64_t block = 0;
    std::int64_t v_at = 0;
    std::int64_t ks_at = 0;
    std::int64_t vs_at = 0;
    if (form == Format::kNhd) {
      view.k_strides = {0, 0, k_row, k_row * heads};
      view.v_strides = {0, 0, v_row, v_row * heads};
      view.k_scale_strides = view.v_scale_strides = {0, 0, scale_bytes, scale_bytes * heads};
      v_at = bs * heads * k_row;
      ks_at = v_at + bs * heads * v_row;
      vs_at = ks_at + bs * heads * scale_bytes;
      block = vs_at + bs * heads * scale_bytes;
    } else {
      const std::int64_t tile = form == Format::kGranule ? kGranuleTokens : 1;
      v_at = bs * k_row;
      ks_at = v_at + bs * v_row;
      vs_at = ks_at + bs * scale_bytes;
      const std::int64_t head = vs_at + bs * scale_bytes;
      view.k_strides = {0, 0, head, k_row * tile};
      view.v_strides = {0, 0, head, v_row * tile};
      view.k_scale_strides = view.v_scale_strides = {0, 0, head, scale_bytes};
      block = head * heads;
    }
    block = (block + 63) / 64 * 64;
    for (KVStrides* s :
         {&view.k_strides, &view.v_strides, &view.k_scale_strides, &view.v_scale_strides}) {
      s->block = block;
      s->layer = block * num_blocks_;
    }
    // Not a byte more than the blocks take, so that a sanitizer sees reads behind them.
    bytes_.reset(static_cast<std::byte*>(
        std::aligned_alloc(64, static_cast<std::size_t>(block * num_blocks_))));
    std::memset(bytes_.get(), 0xff, static_cast<std::size_t>(block * num_blocks_));
    view.k = bytes_.get();
    view.v = bytes_.get() + v_at;
    if (scale_bytes != 0) {
      view.k_scale = bytes_.get() + ks_at;
      view.v_scale = bytes_.get() + vs_at;
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(num_blocks_));
    std::iota(ids.begin(), ids.end(), 0);
    Random random(order_seed);
    std::shuffle(ids.begin(), ids.end(), random);
    std::size_t next = 0;
    stride_ = blocks_per_sequence_ + (c.sharing == 2 ? 3 : 0);
    table_.assign(index(stride_ * n), c.sharing == 2 ? 1 << 30 : -1);
    const int shared = c.sharing == 1 ? shared_tokens() / block_size : 0;
    for (int i = 0; i < n; ++i) {
      const int blocks =
          (c.sequences[static_cast<std::size_t>(i)].kv_len + bs_int() - 1) / bs_int();
      for (int b = 0; b < blocks; ++b) {
        if (i > 0 && b < shared) {
          table_[index(i * stride_ + b)] = table_[static_cast<std::size_t>(b)];
        } else {
          table_[index(i * stride_ + b)] = ids[next++];
        }
      }
    }
    fill();
    // Entries of blocks that no query reads may be anything.
    for (int i = 0; i < n; ++i) {
      const Sequence& s = c.sequences[static_cast<std::size_t>(i)];
      for (int b = 0; b < blocks_per_sequence_; ++b) {
        if (b * bs_int() >= s.trim_sinks && (b + 1) * bs_int() <= s.trim_first_kept) {
          table_[index(i * stride_ + b)] = -1;
        }
      }
    }
  }

  // Leading tokens that all sequences have in common, when they share blocks.
  [[nodiscard]] int shared_tokens() const {
    if (case_.sharing != 1) return 0;
    int least = std::numeric_limits<int>::max();
    for (const Sequence& s : case_.sequences) least = std::min(least, s.kv_len);
    return least / 1024 * 1024 > 0 ? least / 1024 * 1024 : least / 48 * 48;
  }

  // The values that the cache holds for one row, in f64.
  void stored(bool is_v, int sequence, int position, int head, double* row) const {
    const int owner = position < shared_tokens() ? 0 : sequence;
    const std::span<const float> values = values_of(is_v, owner, position, head);
    const float most = has_scales(case_.type) ? amax(values) : 0;
    const float scale = most / most_of(case_.type);
    const float inverse = most_of(case_.type) / most;
    for (std::size_t d = 0; d < values.size(); ++d) {
      const float x = values[d];
      switch (case_.type) {
        case DType::kF16:
          row[d] = static_cast<double>(f32_from_f16(f16_from_f32(x)));
          break;
        case DType::kBF16:
          row[d] = static_cast<double>(f32_from_bf16(bf16_from_f32(x)));
          break;
        case DType::kInt8:
          row[d] = static_cast<double>(scale) * quantized(x, inverse);
          break;
        case DType::kE4M3:
          row[d] = static_cast<double>(scale) *
                   static_cast<double>(f32_from_e4m3(e4m3_from_f32(x * inverse)));
          break;
        default:
          row[d] = static_cast<double>(x);
      }
    }
  }

  [[nodiscard]] const KVView& view() const { return view_; }
  [[nodiscard]] const std::vector<std::int32_t>& table() const { return table_; }
  [[nodiscard]] int stride() const { return stride_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  [[nodiscard]] int bs_int() const { return block_size_; }

  // Valid until the next call.
  std::span<const float> values_of(bool is_v, int owner, int position, int head) const {
    row_.resize(index(is_v ? case_.dim_v : case_.dim_k));
    fill_values(case_.seed, is_v, owner, position, head, row_);
    return row_;
  }

  void fill() {
    for (int i = 0; i < static_cast<int>(case_.sequences.size()); ++i) {
      for (int p = 0; p < case_.sequences[static_cast<std::size_t>(i)].kv_len; ++p) {
        const int owner = p < shared_tokens() ? 0 : i;
        const int block = table_[index(i * stride_ + p / block_size_)];
        for (int h = 0; h < case_.heads; ++h) {
          for (const bool is_v : {false, true}) fill_row(is_v, owner, p, h, block);
        }
      }
    }
  }

  void fill_row(bool is_v, int owner, int position, int head, int block) {
    const int offset = position % block_size_;
    const KVView& view = view_;
    const int dims = is_v ? case_.dim_v : case_.dim_k;
    const std::span<const float> values = values_of(is_v, owner, position, head);
    float inverse = 0;
    if (has_scales(case_.type)) {
      const float most = amax(values);
      const float scale = most / most_of(case_.type);
      inverse = most_of(case_.type) / most;
      std::memcpy(
          is_v ? view.v_scale_at(0, block, head, offset) : view.k_scale_at(0, block, head, offset),
          &scale, 4);
    }
    std::byte* base = is_v ? view.v_at(0, block, head, offset) : view.k_at(0, block, head, offset);
    const int g = case_.type == DType::kF16 ? 1 : 4 / static_cast<int>(element_);
    const int t = offset % kGranuleTokens;
    for (int d = 0; d < dims; ++d) {
      std::int64_t index = d;
      if (form_ == Format::kGranule) {
        index = is_v ? ((t / g) * dims + d) * g + t % g : ((d / g) * 16 + t) * g + d % g;
      }
      const float x = values[static_cast<std::size_t>(d)];
      std::byte* to = base + index * element_;
      switch (case_.type) {
        case DType::kF16: {
          const std::uint16_t bits = f16_from_f32(x);
          std::memcpy(to, &bits, 2);
          break;
        }
        case DType::kBF16: {
          const std::uint16_t bits = bf16_from_f32(x);
          std::memcpy(to, &bits, 2);
          break;
        }
        case DType::kInt8: {
          auto bits = static_cast<std::uint8_t>(quantized(x, inverse));
          if (form_ == Format::kGranule && !is_v) bits = static_cast<std::uint8_t>(bits + 128);
          std::memcpy(to, &bits, 1);
          break;
        }
        case DType::kE4M3:
          *to = std::byte{e4m3_from_f32(x * inverse)};
          break;
        default:
          std::memcpy(to, &x, 4);
      }
    }
  }

  const Case& case_;
  Format form_;
  int block_size_;
  int blocks_per_sequence_ = 0;
  int num_blocks_ = 0;
  int stride_ = 0;
  std::int64_t element_ = 4;
  KVView view_;
  std::vector<std::int32_t> table_;
  mutable std::vector<float> row_;
  std::unique_ptr<std::byte, Free> bytes_;
};

// ---- runs --------------------------------------------------------------------------------------

struct Output {
  std::vector<float> out;  // [queries, heads * q_per_kv, dim_v]
  std::vector<double> lse;
};

// What computes a case: a target of this machine, or the code of one over a model.
struct Computer {
  KernelTarget target = KernelTarget::kReference;
  std::optional<kernels::TargetKernels> modelled = {};

  [[nodiscard]] std::string name() const {
    return std::string(modelled ? "modelled " : "") + to_string(target);
  }
};

std::vector<Computer> computers_here() {
  std::vector<Computer> all;
  for (const KernelTarget target : kernel_targets()) {
    if (target != KernelTarget::kReference) all.push_back({target});
  }
  return all;
}

// Queries as the rows of a case hold them, rounded to their type.
std::vector<float> queries_of(const Case& c) {
  const int q_heads = c.heads * c.q_per_kv;
  std::vector<float> q(static_cast<std::size_t>(c.num_queries() * q_heads * c.dim_k));
  Random random(c.seed + 5);
  std::normal_distribution<float> normal;
  for (float& x : q) {
    x = normal(random);
    if (c.query == DType::kBF16) x = f32_from_bf16(bf16_from_f32(x));
    if (c.query == DType::kF16) x = f32_from_f16(f16_from_f32(x));
  }
  return q;
}

// Runs some sequences of a case: `batch` says which, and which of their queries.
struct Part {
  int sequence = 0;
  int first_query = 0;
  int queries = 0;
};

Status run(const Case& c, const Memory& memory, const std::vector<float>& all_queries,
           const std::vector<Part>& parts, const Computer& by, const Executor* executor,
           Output& output) {
  const int q_heads = c.heads * c.q_per_kv;
  const auto row = index(q_heads * c.dim_k);
  std::vector<std::int32_t> query_start{0};
  std::vector<std::int32_t> kv_lens;
  std::vector<std::int32_t> table;
  std::vector<std::int32_t> sinks;
  std::vector<std::int32_t> kept;
  std::vector<float> q;
  std::vector<int> first_of(c.sequences.size());
  int count = 0;
  for (std::size_t i = 0; i < c.sequences.size(); ++i) {
    first_of[i] = count;
    count += c.sequences[i].queries;
  }
  for (const Part& part : parts) {
    const auto i = static_cast<std::size_t>(part.sequence);
    const Sequence& s = c.sequences[i];
    query_start.push_back(query_start.back() + part.queries);
    // A causal row does not know of tokens behind it, so the sequence may as well end there.
    const int behind = s.queries - part.first_query - part.queries;
    kv_lens.push_back(s.kv_len - (c.params.causal ? behind : 0));
    const auto begin = memory.table().begin() + std::ptrdiff_t{part.sequence} * memory.stride();
    table.insert(table.end(), begin, begin + memory.stride());
    sinks.push_back(s.trim_sinks);
    kept.push_back(std::min(s.trim_first_kept, kv_lens.back()));
    const auto from =
        all_queries.begin() +
        static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(first_of[i] + part.first_query));
    q.insert(q.end(), from,
             from + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(part.queries)));
  }
  const int num_queries = query_start.back();
  std::vector<std::byte> typed(q.size() * static_cast<std::size_t>(dtype_bytes(c.query)));
  for (std::size_t i = 0; i < q.size(); ++i) {
    const std::uint16_t half = c.query == DType::kBF16 ? bf16_from_f32(q[i]) : f16_from_f32(q[i]);
    if (c.query == DType::kF32) {
      std::memcpy(&typed[i * 4], &q[i], 4);
    } else {
      std::memcpy(&typed[i * 2], &half, 2);
    }
  }
  const auto forget = [&] {
    output.out.assign(index(num_queries * q_heads * c.dim_v), 12345.0f);
    output.lse.assign(index(num_queries * q_heads), 12345.0);
  };
  forget();
  AttentionArgs args;
  args.cache = memory.view();
  args.batch = {.query_start = query_start,
                .kv_lens = kv_lens,
                .block_table = table,
                .block_table_stride = memory.stride(),
                .trim_sinks = sinks,
                .trim_first_kept = kept};
  args.params = c.params;
  args.params.alibi_slopes = c.slopes;
  args.params.sink_logits = c.logits;
  const std::int64_t element = dtype_bytes(c.query);
  args.q = {
      typed.data(), q_heads * c.dim_k * element, c.dim_k * element, num_queries, q_heads, c.dim_k,
      c.query};
  args.out = {reinterpret_cast<std::byte*>(output.out.data()),
              std::int64_t{q_heads} * c.dim_v * 4,
              std::int64_t{c.dim_v} * 4,
              num_queries,
              q_heads,
              c.dim_v,
              DType::kF32};
  args.lse = {reinterpret_cast<std::byte*>(output.lse.data()),
              std::int64_t{q_heads} * 8,
              8,
              num_queries,
              q_heads,
              1,
              DType::kF64};
  // attend() checks the arguments that the model then gets.
  args.target = by.modelled ? kernel_targets()[1] : by.target;
  args.executor = executor;
  const Result<std::int64_t> bytes =
      attention_workspace_bytes(args.cache, q_heads, c.longest(), args.target,
                                executor == nullptr ? 1 : executor->num_threads);
  if (!bytes) return bytes.error();
  std::vector<std::byte> workspace(static_cast<std::size_t>(*bytes), std::byte{0xff});
  args.workspace = workspace;
  Status done = attend(args);
  if (!done.ok() || !by.modelled || num_queries == 0) return done;
  forget();
  args.slice = {.first_row = 0, .num_rows = num_queries, .num_kv_heads = c.heads};
  kernels::cpu_attend(args, *by.modelled);
  return done;
}

std::vector<Part> whole(const Case& c) {
  std::vector<Part> parts;
  parts.reserve(c.sequences.size());
  for (int i = 0; i < static_cast<int>(c.sequences.size()); ++i) {
    parts.push_back({i, 0, c.sequences[static_cast<std::size_t>(i)].queries});
  }
  return parts;
}

// Eight sums side by side: one chain of additions would wait for each.
double dot(const double* a, const double* b, int n) {
  using Sums = double __attribute__((vector_size(64)));
  Sums sums = {};
  int d = 0;
  for (; d + 8 <= n; d += 8) {
    for (int i = 0; i < 8; ++i) sums[i] += a[d + i] * b[d + i];
  }
  double sum = 0;
  for (int i = 0; i < 8; ++i) sum += sums[i];
  for (; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

// Sums in f64 of what the cache holds.
struct Exact {
  std::vector<double> out;
  std::vector<double> lse;
};

Exact exact(const Case& c, const Memory& memory, const std::vector<float>& queries) {
  Exact result;
  const int q_heads = c.heads * c.q_per_kv;
  std::vector<double> k(index(c.longest() * c.dim_k));
  std::vector<double> v(index(c.longest() * c.dim_v));
  std::vector<std::pair<int, double>> scores;
  const auto rows = index(c.num_queries() * q_heads);
  result.out.assign(rows * static_cast<std::size_t>(c.dim_v), 0.0);
  result.lse.assign(rows, -std::numeric_limits<double>::infinity());
  int first = 0;
  for (std::size_t i = 0; i < c.sequences.size(); first += c.sequences[i].queries, ++i) {
    const Sequence& s = c.sequences[i];
    if (s.queries == 0) continue;
    for (int h = 0; h < c.heads; ++h) {
      for (int p = 0; p < s.kv_len; ++p) {
        const int sequence = static_cast<int>(i);
        memory.stored(false, sequence, p, h, &k[index(p * c.dim_k)]);
        memory.stored(true, sequence, p, h, &v[index(p * c.dim_v)]);
      }
      for (int r = 0; r < s.queries; ++r) {
        const int position = s.kv_len - s.queries + r;
        for (int g = 0; g < c.q_per_kv; ++g) {
          const std::size_t q_head = index(h * c.q_per_kv + g);
          const auto row = index((first + r) * q_heads) + q_head;
          const float* const query = &queries[row * static_cast<std::size_t>(c.dim_k)];
          const std::vector<double> q(query, query + c.dim_k);
          scores.clear();
          double most = -std::numeric_limits<double>::infinity();
          for (int p = 0; p < s.kv_len; ++p) {
            if (c.params.causal && p > position) continue;
            const GroupRule& rule = c.params.rule;
            const bool behind =
                (rule.kind() == AttentionKind::kSlidingWindow && p <= position - rule.window()) ||
                (rule.kind() == AttentionKind::kChunked &&
                 p < position / rule.window() * rule.window());
            if (behind && p >= rule.num_sinks()) continue;
            if (p >= s.trim_sinks && p < s.trim_first_kept) continue;
            double score = c.params.scale * dot(q.data(), &k[index(p * c.dim_k)], c.dim_k);
            if (c.params.soft_cap > 0) {
              score = c.params.soft_cap * std::tanh(score / c.params.soft_cap);
            }
            if (!c.slopes.empty()) score += double{c.slopes[q_head]} * (p - position);
            most = std::max(most, score);
            scores.emplace_back(p, score);
          }
          const double logit = c.logits.empty() ? -std::numeric_limits<double>::infinity()
                                                : double{c.logits[q_head]};
          most = std::max(most, logit);
          if (std::isinf(most)) continue;
          double total = std::exp(logit - most);
          double* out = &result.out[row * static_cast<std::size_t>(c.dim_v)];
          for (const auto& [p, score] : scores) {
            const double weight = std::exp(score - most);
            total += weight;
            for (int d = 0; d < c.dim_v; ++d) {
              out[d] += weight * v[index(p * c.dim_v + d)];
            }
          }
          for (int d = 0; d < c.dim_v; ++d) out[d] /= total;
          result.lse[row] = most + std::log(total);
        }
      }
    }
  }
  return result;
}

// Relative L2 errors that kernels.md allows, against what the cache holds.
double bound(const Case& c, KernelTarget target) {
  // Scores in base 2 that ALiBi moves are known to half a unit of their last place.
  const double large = c.largest_score * 1.4427 * 0x1p-23;
  switch (c.type) {
    case DType::kBF16:
      return target == KernelTarget::kAvx512Bf16 ? 5e-3 : 2e-6 + large;
    case DType::kInt8:  // a row of 8 elements has little to average its error over
      return std::min(c.dim_k, c.dim_v) == 8 ? 3e-2 : 1.5e-2;
    default:
      return 2e-6 + large;
  }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

class Pools {
 public:
  const Executor* of(int threads) {
    if (threads == 1) return nullptr;
    auto& slot = slots_[static_cast<std::size_t>(threads)];
    if (slot.pool == nullptr) {
      slot.pool = *ThreadPool::create(threads);
      slot.executor = slot.pool->executor();
    }
    return &slot.executor;
  }

 private:
  struct Slot {
    std::unique_ptr<ThreadPool> pool;
    Executor executor;
  };
  std::array<Slot, 16> slots_;
};

class Worst {
 public:
  void note(DType type, const Computer& by, double error) {
    double& worst = worst_[{type, by.name()}];
    worst = std::max(worst, error);
  }
  ~Worst() {
    for (const auto& [of, error] : worst_) {
      std::printf("worst relative error, %s, %s: %.1e\n", to_string(of.first), of.second.c_str(),
                  error);
    }
  }

 private:
  std::map<std::pair<DType, std::string>, double> worst_;
};

// Answers in `all` what each computed.
void check(const Case& c, const std::vector<Computer>& computers, Pools& pools, Worst& worst,
           std::vector<Output>& all) {
  const Memory memory(c, c.form, c.block_size, c.seed + 1);
  const std::vector<float> queries = queries_of(c);
  const Exact want = exact(c, memory, queries);
  Random random(c.seed + 9);
  for (const Computer& by : computers) {
    SCOPED_TRACE(name(c) + ", target " + by.name());
    AttentionParams params = c.params;
    params.alibi_slopes = c.slopes;
    // What a model computes, every target has. The machine lacks it, so choose_kernel_target() says
    // no to all of it.
    if (!by.modelled && !choose_kernel_target(memory.view(), params, by.target)) {
      Output none;
      const Status refused = run(c, memory, queries, whole(c), by, nullptr, none);
      ASSERT_EQ(refused.code(), ErrorCode::kUnsupported);
      continue;
    }
    Output& got = all.emplace_back();
    const Status status = run(c, memory, queries, whole(c), by, pools.of(c.threads), got);
    ASSERT_TRUE(status.ok()) << status.message();
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < want.out.size(); ++i) {
      const double difference = static_cast<double>(got.out[i]) - want.out[i];
      error += difference * difference;
      size += want.out[i] * want.out[i];
    }
    const double relative = size == 0 ? std::sqrt(error) : std::sqrt(error / size);
    worst.note(c.type, by, relative);
    ASSERT_LE(relative, bound(c, by.target));  // NaN too
    for (std::size_t i = 0; i < want.lse.size(); ++i) {
      if (std::isinf(want.lse[i])) {
        ASSERT_EQ(got.lse[i], want.lse[i]) << "row " << i;
      } else {
        ASSERT_NEAR(got.lse[i], want.lse[i], 20 * bound(c, by.target)) << "row " << i;
      }
    }
    // The same rows in another format, block size and order of blocks, on other threads.
    Output other;
    const Format form = kForms[draw(random, fits_granule(c.type) ? 0 : 1, 2)];
    int block_size = kBlocks[draw(random, 0, 8)];
    if (form == Format::kGranule) block_size = (block_size + 15) / 16 * 16;
    const Memory moved(c, form, block_size, c.seed + 2);
    ASSERT_TRUE(run(c, moved, queries, whole(c), by, pools.of(draw(random, 1, 4)), other).ok());
    ASSERT_TRUE(same_bits(got.out, other.out))
        << "differs in " << to_string(form) << ", block " << block_size;
    ASSERT_TRUE(same_bits(got.lse, other.lse)) << to_string(form) << ", block " << block_size;
    // Some rows alone, as a decode has them; in a sequence that ends there when causal. No case has
    // a window without being causal, so the others' positions say nothing.
    int first = 0;
    for (int i = 0; i < static_cast<int>(c.sequences.size()); ++i) {
      const int n = c.sequences[static_cast<std::size_t>(i)].queries;
      // ALiBi asks for positions of those that are not causal, too.
      const bool alone_differs = !c.params.causal && !c.slopes.empty();
      for (int some = 0; some < std::min(alone_differs ? 0 : n, 2); ++some) {
        const int begin = draw(random, 0, n - 1);
        const int count = draw(random, 1, std::min(n - begin, 9));
        Output alone;
        ASSERT_TRUE(run(c, memory, queries, {{i, begin, count}}, by, nullptr, alone).ok());
        const auto row = index(c.heads * c.q_per_kv * c.dim_v);
        ASSERT_EQ(
            std::memcmp(alone.out.data(), &got.out[row * static_cast<std::size_t>(first + begin)],
                        row * static_cast<std::size_t>(count) * sizeof(float)),
            0)
            << "queries " << begin << " + " << count << " of sequence " << i << " alone";
      }
      first += n;
    }
  }
}

class AttentionGrid : public testing::TestWithParam<int> {};

TEST_P(AttentionGrid, EveryTargetIsWithinItsBoundAndEqualInEveryFormatBatchAndThreadCount) {
  const std::int64_t cases = environment("KVFOLIO_GRID_CASES", kDefaultCases);
  const auto seed = static_cast<std::uint64_t>(environment("KVFOLIO_SEED", 1));
  const std::vector<Computer> computers = computers_here();
  Pairwise pairwise;
  Pools pools;
  Worst worst;
  for (std::int64_t i = 0; i < cases; ++i) {
    Random random(seed * 1000003 + static_cast<std::uint64_t>(i));
    const Choice choice = pairwise.next(random);
    if (i % kParts != GetParam()) continue;
    std::vector<Output> all;
    check(make_case(choice, seed * 1000003 + static_cast<std::uint64_t>(i)), computers, pools,
          worst, all);
    if (HasFatalFailure()) return;
  }
  std::printf("%lld cases in %d parts, %zu pairs of values\n", static_cast<long long>(cases),
              kParts, pairwise.seen());
}
INSTANTIATE_TEST_SUITE_P(Part, AttentionGrid, testing::Range(0, kParts));

#if defined(KVFOLIO_MODELLED)
// Modelled, not run: on a machine that lacks AVX-512. All that fuse a product and a sum give the
// same bits, modelled or run, but for bf16 by dot products: the model's are its own (equal to those
// of an Emerald Rapids, which says nothing of another core).
TEST(ModelledTargets, AreWithinTheirBoundsAndHaveTheBitsOfTheTargetsThatRun) {
  const std::int64_t cases = environment("KVFOLIO_GRID_CASES", kDefaultCases) / 64 + 1;
  std::vector<Computer> computers;
  for (const Computer& by : computers_here()) {
    if (by.target != KernelTarget::kPortable) computers.push_back(by);
  }
  computers.push_back({KernelTarget::kAvx512, kernels::modelled_avx512_kernels()});
  computers.push_back({KernelTarget::kAvx512Bf16, kernels::modelled_avx512_bf16_kernels()});
  Pairwise pairwise;
  Pools pools;
  Worst worst;
  for (std::int64_t i = 0; i < cases; ++i) {
    Random random(static_cast<std::uint64_t>(i) + 77);
    Choice choice = pairwise.next(random);
    choice[kBend] = std::min(choice[kBend], kOnlySinks);  // what all of them compute
    const Case c = make_case(choice, static_cast<std::uint64_t>(i) + 77);
    std::vector<Output> all;
    check(c, computers, pools, worst, all);
    if (HasFatalFailure()) return;
    for (std::size_t by = 1; by < computers.size(); ++by) {
      if (c.type == DType::kBF16 && computers[by].target == KernelTarget::kAvx512Bf16) continue;
      SCOPED_TRACE(name(c) + ", " + computers[by].name() + " and " + computers[0].name());
      ASSERT_TRUE(same_bits(all[by].out, all[0].out));
      ASSERT_TRUE(same_bits(all[by].lse, all[0].lse));
    }
  }
  for (const Computer& by : computers) std::printf("%s\n", by.name().c_str());
}
#endif

}  // namespace
}  // namespace kvfolio
