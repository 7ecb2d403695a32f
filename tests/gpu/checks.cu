// SPDX-License-Identifier: Apache-2.0

// Right numbers, and equal bits. Lines that begin with "J|" are results, as JSON.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>

#include "cuda/attention/launch.h"
#include "problem.h"

namespace kvfolio::cuda {
namespace {

constexpr KernelChoice kNodesOnly = {.wgmma = false, .prefill = false, .stream = false};
constexpr KernelChoice kManyNodes = {
    .num_sms = 1, .wgmma = false, .prefill = false, .stream = false};
constexpr KernelChoice kNoWgmma = {.wgmma = false, .stream = false};
constexpr KernelChoice kNarrowPrefill = {.wgmma = false, .narrow = true, .stream = false};
constexpr KernelChoice kNoStream = {.stream = false};
constexpr KernelChoice kAll = {};
const Way kWays[] = {
    {"default", kAll},         {"no stream", kNoStream},   {"stream of 37", {.stream_blocks = 37}},
    {"no wgmma", kNoWgmma},    {"nodes only", kNodesOnly}, {"many nodes", kManyNodes},
    {"narrow", kNarrowPrefill}};
// The last one is of cards other than sm_90.
std::span<const Way> ways() {
  return std::span(kWays).first(std::size(kWays) - (launched_set() == KernelSet::kSm80 ? 0 : 1));
}

// Ways for chunks: on sm_90 with wgmma also where no device has shown it yet, which is not the
// default.
constexpr Way kWgmmaTiles = {"wgmma tiles", {.wgmma_tiles = true, .stream = false}};
std::vector<Way> ways_for_chunks(Element element, int dim_k, int dim_v) {
  std::vector<Way> all(ways().begin(), ways().end());
  if (launched_set() == KernelSet::kSm90a && dim_k == dim_v && element != Element::kF32 &&
      (dim_k == 64 || (dim_k == 128 && has_scales(element))))
    all.push_back(kWgmmaTiles);
  return all;
}

struct Count {
  long long rows = 0, different = 0;
};
long long g_failures = 0;

bool same(const float* a, const float* b, std::size_t n) {
  if (std::memcmp(a, b, n * 4) == 0) return true;
  for (std::size_t i = 0; i < n; ++i)
    if (std::memcmp(a + i, b + i, 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}
void compare(const Spec& spec, const Output& a, int a_row, const Output& b, int b_row, int rows,
             Count& count) {
  const int q_heads = spec.heads * spec.group_size;
  const auto dims = static_cast<std::size_t>(spec.dim_v);
  for (int r = 0; r < rows * q_heads; ++r) {
    const auto x = static_cast<std::size_t>(a_row * q_heads + r);
    const auto y = static_cast<std::size_t>(b_row * q_heads + r);
    ++count.rows;
    count.different +=
        !same(&a.out[x * dims], &b.out[y * dims], dims) || !same(&a.lse[x], &b.lse[y], 1);
  }
}

struct Kind {
  const char* name = "";
  Mask mask = {};
  double soft_cap = 0.0;
  bool alibi = false;
  bool sinks = false;
};
const Kind kKinds[] = {
    {"full", {}},
    {"window 300, 4 sinks", {Rule::kSlidingWindow, 300, 4, 1}},
    {"chunks of 700", {Rule::kChunked, 700, 0, 1}},
    {"window 1,500, cap, ALiBi, learned sinks",
     {Rule::kSlidingWindow, 1500, 0, 1},
     20.0,
     true,
     true},
};
struct Shape {
  Element element;
  Element q_element;
  int dim_k, dim_v, group_size;
};
std::string name_of(const Shape& shape) {
  return std::string(to_string(shape.element)) + " D" + std::to_string(shape.dim_k) +
         (shape.dim_v == shape.dim_k ? "" : "/" + std::to_string(shape.dim_v)) + " G" +
         std::to_string(shape.group_size);
}
Spec spec_of(const Shape& shape, const Kind& kind) {
  Spec spec;
  spec.element = shape.element;
  spec.q_element = shape.q_element;
  spec.dim_k = shape.dim_k;
  spec.dim_v = shape.dim_v;
  spec.heads = 2;
  spec.group_size = shape.group_size;
  spec.mask = kind.mask;
  spec.soft_cap = kind.soft_cap;
  spec.alibi = kind.alibi;
  spec.sinks = kind.sinks;
  return spec;
}
const std::vector<int> kLens = {1, 63, 64, 65, 255, 256, 257, 1000, 1024, 1025, 3000, 5000};

// Alone, one call each: the bits that all else must have.
std::vector<Output> alone(const Spec& base, Count& count, bool quick) {
  std::vector<Output> outputs;
  for (std::size_t i = 0; i < kLens.size(); ++i) {
    Arena arena;
    Spec spec = base;
    spec.seed = 5 + static_cast<std::uint32_t>(i);
    spec.sequences = {{static_cast<std::uint32_t>(900 + i), kLens[i], 1}};
    Problem problem;
    build(arena, spec, problem);
    outputs.push_back(run(problem, kNodesOnly));
    for (const Way& way : ways())
      if (!quick) compare(base, outputs.back(), 0, run(problem, way.choice), 0, 1, count);
  }
  return outputs;
}

// In a batch of 64 with other lengths; other block sizes, strides and block ids; dropped blocks.
void batches(const Spec& base, const std::vector<Output>& want, Count& count, bool quick) {
  struct Layout {
    int block_size;
    bool nhd, k_beside_v, drop;
  };
  for (const Layout& l : {Layout{16, false, false, true}, Layout{1, false, false, false},
                          Layout{24, true, true, true}, Layout{64, true, false, false},
                          Layout{256, false, true, true}}) {
    Arena arena;
    Spec spec = base;
    spec.block_size = l.block_size;
    spec.nhd = l.nhd;
    spec.k_beside_v = l.k_beside_v;
    spec.drop = l.drop;
    spec.seed = 77 + static_cast<std::uint32_t>(l.block_size);
    std::mt19937 random(spec.seed);
    for (int i = 0; i < 64; ++i)
      spec.sequences.push_back(
          {static_cast<std::uint32_t>(5000 + i), static_cast<int>(1 + random() % 3000), 1});
    std::vector<int> where;
    for (std::size_t i = 0; i < kLens.size(); ++i) {
      where.push_back(static_cast<int>((i * 5 + random() % 5) % 64));
      spec.sequences[static_cast<std::size_t>(where.back())] = {static_cast<std::uint32_t>(900 + i),
                                                                kLens[i], 1};
    }
    Problem problem;
    build(arena, spec, problem);
    for (const Way& way : ways()) {
      if (quick && &way != &kWays[0]) break;
      const Output output = run(problem, way.choice);
      for (std::size_t i = 0; i < kLens.size(); ++i)
        compare(base, want[i], 0, output, where[i], 1, count);
    }
  }
}

// A chunk of new rows behind a prefix against each of its rows decoded with its own length.
void chunks(const Spec& base, Count& count, bool quick) {
  for (const int n : {1, 7, 64, 512})
    for (const int len : {512, 1300, 2600}) {
      if (quick && (n == 512 || len == 1300)) continue;
      Arena arena;
      Spec spec = base;
      spec.seed = 31;
      spec.drop = true;
      spec.sequences = {{4242, len, n}};
      Problem chunk;
      build(arena, spec, chunk);
      spec.seed = 32;
      spec.drop = false;
      spec.block_size = 32;
      spec.sequences.clear();
      for (int i = 0; i < n; ++i) spec.sequences.push_back({4242, len - i, 1, i == 0 ? -1 : 0});
      Problem decode;
      build(arena, spec, decode);
      const Output want = run(decode, kAll);
      for (const Way& way : ways_for_chunks(base.element, base.dim_k, base.dim_v)) {
        const Output output = run(chunk, way.choice);
        for (int i = 0; i < n; ++i) compare(base, want, i, output, n - 1 - i, 1, count);
      }
    }
}

void repeats(const Spec& base, const std::vector<Output>& want, Count& count) {
  Arena arena;
  Spec spec = base;
  spec.seed = 3;
  for (std::size_t i = 0; i < kLens.size(); ++i)
    spec.sequences.push_back({static_cast<std::uint32_t>(900 + i), kLens[i], 1});
  Problem problem;
  build(arena, spec, problem);
  for (int k = 0; k < 20; ++k) {
    const Output output = run(problem, kWays[k % 3].choice);
    for (std::size_t i = 0; i < kLens.size(); ++i)
      compare(base, want[i], 0, output, static_cast<int>(i), 1, count);
  }
}

struct Error {
  double out = 0, row = 0, lse = 0;
  long long not_finite = 0;
};
Error error_of(const Problem& problem, const Output& output) {
  std::vector<double> out, lse;
  exact(problem, out, lse);
  Error error;
  double num = 0, den = 0;
  const auto dims = static_cast<std::size_t>(problem.spec.dim_v);
  for (std::size_t row = 0; row < lse.size(); ++row) {
    double n = 0, d = 0;
    for (std::size_t i = row * dims; i < (row + 1) * dims; ++i) {
      const auto x = static_cast<double>(output.out[i]);
      if (!std::isfinite(x)) {
        ++error.not_finite;
        continue;
      }
      n += (x - out[i]) * (x - out[i]);
      d += out[i] * out[i];
    }
    num += n;
    den += d;
    if (d > 0) error.row = std::max(error.row, std::sqrt(n / d));
    if (std::isinf(lse[row])) {
      error.not_finite += !(std::isinf(output.lse[row]) && output.lse[row] < 0);
    } else if (!std::isfinite(output.lse[row])) {
      ++error.not_finite;
    } else {
      error.lse = std::max(error.lse, std::fabs(static_cast<double>(output.lse[row]) - lse[row]));
    }
  }
  error.out = den > 0 ? std::sqrt(num / den) : std::sqrt(num);
  return error;
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

}  // namespace

void run_bits(bool quick) {
  using enum Element;
  const std::vector<Shape> shapes = {
      {kBF16, kBF16, 128, 128, 8}, {kBF16, kBF16, 128, 128, 4},  {kBF16, kBF16, 128, 128, 1},
      {kBF16, kBF16, 64, 64, 8},   {kBF16, kBF16, 128, 128, 16}, {kF16, kF16, 128, 128, 8},
      {kF16, kF16, 64, 64, 3},     {kInt8, kBF16, 128, 128, 8},  {kInt8, kF16, 64, 64, 4},
      {kE4M3, kBF16, 128, 128, 8}, {kE4M3, kBF16, 64, 64, 1},    {kF32, kF32, 128, 128, 2},
      {kBF16, kBF16, 256, 256, 8}, {kInt8, kBF16, 256, 256, 2},  {kBF16, kF32, 80, 80, 3},
      {kE4M3, kBF16, 192, 128, 4}};
  Count all;
  for (const Shape& shape : shapes)
    for (const Kind& kind : kKinds) {
      const bool general = shape.element == kF32 || shape.dim_k == 192 || shape.dim_k == 80;
      if (quick && &kind != &kKinds[0] && &kind != &kKinds[3]) continue;
      const Spec base = spec_of(shape, kind);
      Count count;
      const std::vector<Output> want = alone(base, count, quick);
      batches(base, want, count, quick || general);
      if (!general || !quick) chunks(base, count, quick || general);
      repeats(base, want, count);
      std::printf(
          "J|{\"part\": \"bits\", \"shape\": \"%s\", \"kind\": \"%s\", \"rows\": %lld, "
          "\"different\": %lld}\n",
          name_of(shape).c_str(), kind.name, count.rows, count.different);
      std::fflush(stdout);
      all.rows += count.rows;
      all.different += count.different;
    }
  std::printf("BITS %lld rows compared, %lld different\n", all.rows, all.different);
  g_failures += all.different;
  if (g_failures != 0) std::exit(1);
}

void run_right(bool quick) {
  using enum Element;
  std::vector<Shape> shapes = {{kF32, kF32, 128, 128, 4},  {kBF16, kF32, 576, 512, 16},
                               {kInt8, kBF16, 80, 80, 3},  {kF16, kF16, 8, 16, 2},
                               {kE4M3, kF16, 192, 128, 8}, {kBF16, kF32, 256, 256, 4}};
  for (const Element e : {kBF16, kF16, kInt8, kE4M3})
    for (const int dim : {256, 128, 64})
      for (const int group : {1, 4, 8, 16}) {
        if (quick && group != 8) continue;
        shapes.push_back({e, e == kF16 ? kF16 : kBF16, dim, dim, group});
      }
  bool failed = false;
  for (const Shape& shape : shapes)
    for (const Kind& kind : kKinds) {
      Arena arena;
      Spec spec = spec_of(shape, kind);
      spec.block_size = shape.group_size == 1 ? 1 : shape.group_size == 4 ? 32 : 16;
      spec.nhd = shape.group_size == 4;
      for (std::size_t i = 0; i < kLens.size(); ++i)
        spec.sequences.push_back({static_cast<std::uint32_t>(100 + i), kLens[i],
                                  std::min(kLens[i], i % 3 == 2 ? 40 : 1)});
      Problem problem;
      build(arena, spec, problem);
      Error worst;
      for (const Way& way : ways_for_chunks(shape.element, shape.dim_k, shape.dim_v)) {
        const Error error = error_of(problem, run(problem, way.choice));
        worst.out = std::max(worst.out, error.out);
        worst.row = std::max(worst.row, error.row);
        worst.lse = std::max(worst.lse, error.lse);
        worst.not_finite += error.not_finite;
      }
      const bool wrong = !(worst.out <= bound(shape.element)) || worst.not_finite != 0;
      failed |= wrong;
      std::printf(
          "J|{\"part\": \"right\", \"shape\": \"%s\", \"kind\": \"%s\", \"error\": %.2e, "
          "\"worst_row\": %.2e, \"lse\": %.1e, \"not_finite\": %lld%s}\n",
          name_of(shape).c_str(), kind.name, worst.out, worst.row, worst.lse, worst.not_finite,
          wrong ? ", \"wrong\": true" : "");
      std::fflush(stdout);
    }
  if (failed) std::exit(1);
}

// V holds a NaN or an infinity where only some rows see it: the others do not change, and the same
// rows have the same bits in every kernel (a NaN equals a NaN).
void run_nan(bool quick) {
  using enum Element;
  Count all, untouched;
  for (const Shape& shape : {Shape{kBF16, kBF16, 128, 128, 8}, Shape{kBF16, kBF16, 128, 128, 2},
                             Shape{kF16, kF16, 64, 64, 1}, Shape{kInt8, kBF16, 128, 128, 4},
                             Shape{kE4M3, kBF16, 64, 64, 8}, Shape{kBF16, kBF16, 256, 256, 4},
                             Shape{kF32, kF32, 64, 64, 2}})
    for (const Kind& kind : kKinds) {
      if (quick && &kind != &kKinds[1]) continue;
      const int len = 1300, n = 200;
      Arena arena;
      Spec spec = spec_of(shape, kind);
      spec.sequences = {{77, len, n}};
      Problem clean;
      build(arena, spec, clean);
      spec.wrong = {{0, 1201}, {0, 1240}, {0, 1299}, {0, 830}};
      Problem spoiled;
      build(arena, spec, spoiled);
      spec.sequences.clear();
      for (int i = 0; i < n; ++i) spec.sequences.push_back({77, len - i, 1, i == 0 ? -1 : 0});
      Problem decode;
      build(arena, spec, decode);
      const Output want = run(decode, kAll), pure = run(clean, kAll);
      for (const Way& way : ways_for_chunks(shape.element, shape.dim_k, shape.dim_v)) {
        const Output output = run(spoiled, way.choice);
        for (int i = 0; i < n; ++i) {
          const int row = n - 1 - i, at = len - 1 - i;
          compare(spec, want, i, output, row, 1, all);
          const Sight sight = sight_of(spec.mask, at, len, 0, 0);
          if (!sight.sees(1201) && !sight.sees(1240) && !sight.sees(1299) && !sight.sees(830))
            compare(spec, pure, row, output, row, 1, untouched);
        }
      }
    }
  std::printf(
      "J|{\"part\": \"nan\", \"rows\": %lld, \"different\": %lld, \"untouched\": %lld, "
      "\"changed\": %lld}\n",
      all.rows, all.different, untouched.rows, untouched.different);
  if (all.different + untouched.different != 0) std::exit(1);
}

// For compute-sanitizer: every kernel, small.
void run_tiny(bool) {
  using enum Element;
  for (const Shape& shape : {Shape{kBF16, kBF16, 128, 128, 8}, Shape{kInt8, kBF16, 64, 64, 8},
                             Shape{kE4M3, kBF16, 128, 128, 16}, Shape{kF16, kF16, 256, 256, 2},
                             Shape{kF32, kF32, 80, 80, 2}}) {
    Arena arena;
    Spec spec = spec_of(shape, kKinds[3]);
    spec.heads = 1;
    spec.sequences = {{1, 1, 1}, {2, 300, 3}, {3, 1500, 1}, {4, 140, 20}};
    spec.drop = true;
    spec.wrong = {{3, 130}, {3, 135}};
    Problem problem;
    build(arena, spec, problem);
    for (const Way& way : ways()) run(problem, way.choice);
    Problem decode;  // what a stream takes
    spec.wrong.clear();
    spec.sequences = {{1, 1, 1}, {2, 300, 1}, {3, 2500, 1}, {4, 700, 1}};
    build(arena, spec, decode);
    for (const Way& way : ways()) run(decode, way.choice);
  }
  for (const Shape& shape : {Shape{kBF16, kBF16, 64, 64, 8}, Shape{kInt8, kBF16, 64, 64, 8},
                             Shape{kE4M3, kBF16, 128, 128, 16}}) {
    if (launched_set() != KernelSet::kSm90a) break;
    Arena arena;
    Spec spec = spec_of(shape, kKinds[3]);
    spec.heads = 1;
    spec.sequences = {{2, 1300, 5}, {4, 140, 20}};
    spec.drop = true;
    spec.wrong = {{1, 130}, {1, 135}};
    Problem problem;
    build(arena, spec, problem);
    run(problem, kWgmmaTiles.choice);
  }
  std::printf("TINY done\n");
}

}  // namespace kvfolio::cuda
