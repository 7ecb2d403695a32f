// SPDX-License-Identifier: Apache-2.0
#include "matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace kvfolio::llama {
namespace {

constexpr MatmulTarget kTargets[] = {MatmulTarget::kBaseline, MatmulTarget::kAvx2,
                                     MatmulTarget::kAvx512};

struct Shape {
  std::int32_t num_rows, num_out, num_in;
};

std::vector<float> random_values(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

PackedMatrix pack(const std::vector<float>& weights, const Shape& shape, MatmulTarget target) {
  PackedMatrix matrix(shape.num_out, shape.num_in, target);
  for (std::int32_t o = 0; o < shape.num_out; ++o) {
    matrix.set_row(o, weights.data() + std::int64_t{o} * shape.num_in);
  }
  return matrix;
}

bool same_bits(const float* a, const float* b, std::int32_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

// One chain in increasing k: fused where the target fuses. This defines the bits of an output.
float chain(const float* row, const float* weight, std::int32_t num_in, MatmulTarget target) {
  float sum = 0.0f;
  for (std::int32_t k = 0; k < num_in; ++k) {
    if (target == MatmulTarget::kBaseline) {
      volatile float product = row[k] * weight[k];  // rounded before the sum
      sum += product;
    } else {
      sum = std::fma(row[k], weight[k], sum);
    }
  }
  return sum;
}

class Matmul : public ::testing::TestWithParam<MatmulTarget> {
 protected:
  void SetUp() override {
    if (!is_available(GetParam())) GTEST_SKIP() << to_string(GetParam()) << " cannot run here";
  }
};

TEST_P(Matmul, EveryOutputIsOneChainInIncreasingK) {
  for (const Shape shape : {Shape{1, 1, 1}, Shape{3, 7, 5}, Shape{5, 64, 33}, Shape{4, 65, 192},
                            Shape{9, 130, 17}, Shape{6, 24, 50}, Shape{2, 200, 3}}) {
    const auto rows = random_values(std::int64_t{shape.num_rows} * shape.num_in, 1);
    const auto weights = random_values(std::int64_t{shape.num_out} * shape.num_in, 2);
    const PackedMatrix matrix = pack(weights, shape, GetParam());
    const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(1);
    std::vector<float> out(static_cast<std::size_t>(shape.num_rows * shape.num_out));
    matrix.multiply(rows.data(), shape.num_in, shape.num_rows, out.data(), shape.num_out, *pool);
    for (std::int32_t r = 0; r < shape.num_rows; ++r) {
      for (std::int32_t o = 0; o < shape.num_out; ++o) {
        const float expected = chain(rows.data() + r * shape.num_in,
                                     weights.data() + o * shape.num_in, shape.num_in, GetParam());
        ASSERT_EQ(out[static_cast<std::size_t>(r * shape.num_out + o)], expected)
            << "row " << r << " output " << o;
      }
    }
  }
}

TEST_P(Matmul, ARowHasTheSameBitsInAnyBatchOnAnyNumberOfThreads) {
  const Shape shape{70, 321, 192};
  const auto rows = random_values(std::int64_t{shape.num_rows} * shape.num_in, 3);
  const auto weights = random_values(std::int64_t{shape.num_out} * shape.num_in, 4);
  const PackedMatrix matrix = pack(weights, shape, GetParam());
  const std::unique_ptr<ThreadPool> one = *ThreadPool::create(1);
  std::vector<float> alone(static_cast<std::size_t>(shape.num_rows * shape.num_out));
  for (std::int32_t r = 0; r < shape.num_rows; ++r) {
    matrix.multiply(rows.data() + r * shape.num_in, 0, 1, alone.data() + r * shape.num_out, 0,
                    *one);
  }
  for (const std::int32_t num_threads : {1, 2, 3, 4}) {
    const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(num_threads);
    for (const std::int32_t num_rows : {1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 65, 70}) {
      for (const std::int32_t first : {0, shape.num_rows - num_rows}) {
        std::vector<float> out(static_cast<std::size_t>(num_rows * shape.num_out));
        matrix.multiply(rows.data() + first * shape.num_in, shape.num_in, num_rows, out.data(),
                        shape.num_out, *pool);
        ASSERT_TRUE(
            same_bits(out.data(), alone.data() + first * shape.num_out, num_rows * shape.num_out))
            << num_rows << " rows, " << num_threads << " threads";
      }
    }
  }
}

TEST_P(Matmul, WritesNothingBeyondItsOutputs) {
  const Shape shape{5, 70, 9};
  const std::int64_t out_stride = 75;
  const auto rows = random_values(std::int64_t{shape.num_rows} * 11, 5);
  const auto weights = random_values(std::int64_t{shape.num_out} * shape.num_in, 6);
  const PackedMatrix matrix = pack(weights, shape, GetParam());
  const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(1);
  std::vector<float> out(static_cast<std::size_t>(shape.num_rows * out_stride), -77.0f);
  matrix.multiply(rows.data(), 11, shape.num_rows, out.data(), out_stride, *pool);
  for (std::int32_t r = 0; r < shape.num_rows; ++r) {
    for (std::int64_t o = 0; o < out_stride; ++o) {
      EXPECT_EQ(out[static_cast<std::size_t>(r * out_stride + o)] == -77.0f, o >= shape.num_out);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Matmul, ::testing::ValuesIn(kTargets),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST(MatmulTarget, NamesAreReadBack) {
  for (const MatmulTarget target : kTargets) {
    EXPECT_EQ(parse_matmul_target(to_string(target)), target);
  }
  EXPECT_EQ(parse_matmul_target("auto"), MatmulTarget::kAuto);
  EXPECT_EQ(parse_matmul_target("sse"), std::nullopt);
}

TEST(MatmulTarget, AutoBecomesAnAvailableTarget) {
  EXPECT_TRUE(is_available(MatmulTarget::kBaseline));
  EXPECT_NE(resolve(MatmulTarget::kAuto), MatmulTarget::kAuto);
  EXPECT_TRUE(is_available(resolve(MatmulTarget::kAuto)));
  EXPECT_EQ(resolve(MatmulTarget::kBaseline), MatmulTarget::kBaseline);
}

}  // namespace
}  // namespace kvfolio::llama
