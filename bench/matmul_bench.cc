// SPDX-License-Identifier: Apache-2.0

// Our dense products against OpenBLAS, one thread each, at the shapes of the shipped model.
//
//   matmul_bench [rounds]
//
// Rounds alternate between the two, so that both meet the same noise; a line says the median
// of the rounds' ratios and, in brackets, their quartiles. Our weights are packed beforehand, as an
// engine does at load; OpenBLAS packs in each call, its interface knows nothing else. Without
// OpenBLAS at configure time only our speed is printed.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kvfolio/executor.h"
#include "matmul.h"

#ifdef KVFOLIO_HAVE_OPENBLAS
#include <cblas.h>
extern "C" void openblas_set_num_threads(int num_threads);
#endif

namespace {

using kvfolio::ThreadPool;
using kvfolio::llama::MatmulTarget;
using kvfolio::llama::PackedMatrix;

struct Shape {
  const char* name;
  std::int32_t num_out;
  std::int32_t num_in;
};

// hidden 192, 6 query and 2 KV heads of 32, intermediate 512, vocabulary 256.
constexpr Shape kShapes[] = {{"qkv", 320, 192},  {"o", 192, 192},      {"gate+up", 1024, 192},
                             {"down", 192, 512}, {"output", 256, 192}, {"kv only", 64, 192}};
constexpr std::int32_t kRows[] = {1, 4, 16, 64, 256};

std::vector<float> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

// Seconds per call, of enough calls for some hundred microseconds.
template <typename Call>
double seconds_of(std::int64_t repeats, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < repeats; ++i) call();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(repeats);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Every output against f64: a fast wrong product is worth nothing.
void check(const std::vector<float>& rows, const std::vector<float>& weights,
           const std::vector<float>& out, const Shape& shape) {
  const auto num_in = static_cast<std::size_t>(shape.num_in);
  const auto num_out = static_cast<std::size_t>(shape.num_out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    double sum = 0.0;
    for (std::size_t k = 0; k < num_in; ++k) {
      sum += double{rows[i / num_out * num_in + k]} * double{weights[i % num_out * num_in + k]};
    }
    if (!(std::abs(out[i] - sum) < 1e-4)) {
      std::fprintf(stderr, "%s: output %zu is %g, must be %g\n", shape.name, i, double{out[i]},
                   sum);
      std::exit(1);
    }
  }
}

void run(MatmulTarget target, const Shape& shape, std::int32_t num_rows, int rounds) {
  const auto num_out = static_cast<std::size_t>(shape.num_out);
  const auto num_in = static_cast<std::size_t>(shape.num_in);
  const auto count = static_cast<std::size_t>(num_rows);
  const std::vector<float> weights = random_values(num_out * num_in, 1);
  const std::vector<float> rows = random_values(count * num_in, 2);
  std::vector<float> out(count * num_out);
  PackedMatrix matrix(shape.num_out, shape.num_in, target);
  for (std::int32_t o = 0; o < shape.num_out; ++o) {
    matrix.set_row(o, weights.data() + static_cast<std::size_t>(o) * num_in);
  }
  const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(1);
  const double work = 2.0 * num_rows * shape.num_out * shape.num_in;
  const auto repeats = std::max<std::int64_t>(1, static_cast<std::int64_t>(2e7 / work));
  const auto ours = [&] {
    matrix.multiply(rows.data(), shape.num_in, num_rows, out.data(), shape.num_out, *pool);
  };
  std::vector<double> our_seconds;
  seconds_of(repeats, ours);
  check(rows, weights, out, shape);
#ifdef KVFOLIO_HAVE_OPENBLAS
  const auto theirs = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, num_rows, shape.num_out, shape.num_in,
                1.0f, rows.data(), shape.num_in, weights.data(), shape.num_in, 0.0f, out.data(),
                shape.num_out);
  };
  std::vector<double> their_seconds;
  std::vector<double> ratios;
  seconds_of(repeats, theirs);
#endif
  our_seconds.reserve(static_cast<std::size_t>(rounds));
  for (int round = 0; round < rounds; ++round) {
    our_seconds.push_back(seconds_of(repeats, ours));
#ifdef KVFOLIO_HAVE_OPENBLAS
    their_seconds.push_back(seconds_of(repeats, theirs));
    ratios.push_back(their_seconds.back() / our_seconds.back());
#endif
  }
  std::printf("%-9s %-8s %5d x %4d x %3d  %7.1f Gflop/s", to_string(target), shape.name, num_rows,
              shape.num_out, shape.num_in, work / median(our_seconds) / 1e9);
#ifdef KVFOLIO_HAVE_OPENBLAS
  std::sort(ratios.begin(), ratios.end());
  std::printf("  OpenBLAS %7.1f  ratio %.2f (%.2f to %.2f)", work / median(their_seconds) / 1e9,
              median(ratios), ratios[ratios.size() / 4], ratios[ratios.size() * 3 / 4]);
#endif
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds =
      argc > 1 ? std::max(1, static_cast<int>(std::strtol(argv[1], nullptr, 10))) : 21;
  std::printf("One thread; median of %d rounds.\n", rounds);
#ifdef KVFOLIO_HAVE_OPENBLAS
  openblas_set_num_threads(1);
#endif
  for (const MatmulTarget target :
       {MatmulTarget::kAvx512, MatmulTarget::kAvx2, MatmulTarget::kBaseline}) {
    if (!is_available(target)) continue;
    for (const Shape& shape : kShapes) {
      for (const std::int32_t num_rows : kRows) run(target, shape, num_rows, rounds);
    }
  }
  return 0;
}
