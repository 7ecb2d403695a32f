// SPDX-License-Identifier: Apache-2.0

// Random calls against a naive model: a vector of rows of doubles, each rounded or quantized by the
// scalar rules of dtype.h. A failure prints its seed.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvfolio/token_store.h"

namespace kvfolio {
namespace {

using Row = std::vector<double>;

// What a float becomes in `dtype`; not of int8.
double rounded(double value, DType dtype) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::kF16:
      return static_cast<double>(f32_from_f16(f16_from_f32(single)));
    case DType::kBF16:
      return static_cast<double>(f32_from_bf16(bf16_from_f32(single)));
    default:
      return value;  // a float is exact in f32 and f64
  }
}

// A row of num_heads heads as a store keeps it.
Row kept(const Row& row, std::int32_t num_heads, DType dtype) {
  Row result = row;
  if (!has_scales(dtype)) {
    for (double& value : result) value = rounded(value, dtype);
    return result;
  }
  const float most = dtype == DType::kE4M3 ? kE4M3Most : kInt8Most;
  const std::size_t head_dim = row.size() / static_cast<std::size_t>(num_heads);
  for (std::size_t begin = 0; begin < row.size(); begin += head_dim) {
    float amax = 0;
    for (std::size_t d = begin; d < begin + head_dim; ++d) {
      amax = std::fmax(amax, std::fabs(static_cast<float>(row[d])));
    }
    for (std::size_t d = begin; d < begin + head_dim; ++d) {
      const auto x = static_cast<float>(row[d]);
      const float inverse = quantize_inverse(amax, most);
      const float scale = quantize_scale(amax, most);
      result[d] = static_cast<double>(dtype == DType::kE4M3
                                          ? dequantize_e4m3(quantize_e4m3(x, inverse), scale)
                                          : dequantize(quantize(x, inverse), scale));
    }
  }
  return result;
}

// A store and what it should hold.
class Pair {
 public:
  Pair(const TokenStoreOptions& options, unsigned seed)
      : options_(options), store_(*TokenStore::create(options)), random_(seed) {}

  void append() {
    const int num_tokens = below(4) == 0 ? below(40) : 1;
    const std::vector<Row> k = rows(num_tokens, options_.head_dim_k);
    const std::vector<Row> v = rows(num_tokens, options_.head_dim_v);
    Status status;
    const std::vector<double> flat_k = flat<double>(k);
    const std::vector<double> flat_v = flat<double>(v);
    const std::vector<float> float_k = flat<float>(k);
    const std::vector<float> float_v = flat<float>(v);
    switch (below(3)) {
      case 0:
        status = store_.append(flat_k, flat_v);
        break;
      case 1:
        status = store_.append(float_k, float_v);
        break;
      default:
        status = store_.append(view_of(flat_k, num_tokens, options_.head_dim_k),
                               view_of(flat_v, num_tokens, options_.head_dim_v));
    }
    const std::size_t room = static_cast<std::size_t>(options_.max_tokens) - k_.size();
    if (static_cast<std::size_t>(num_tokens) > room) {
      ASSERT_EQ(status.code(), ErrorCode::kResourceExhausted);
      return;
    }
    ASSERT_TRUE(status.ok()) << status.message();
    for (const Row& row : k) k_.push_back(kept(row, options_.num_kv_heads, options_.dtype));
    for (const Row& row : v) v_.push_back(kept(row, options_.num_kv_heads, options_.dtype));
  }

  // Reads a random range in three ways.
  void read() {
    const int size = static_cast<int>(k_.size());
    const int begin = below(size + 1);
    const int count = below(size - begin + 1);
    std::vector<double> k(elements(count, options_.head_dim_k), -1);
    std::vector<double> v(elements(count, options_.head_dim_v), -1);
    const Status status = store_.gather(begin, k, v);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(k, flat<double>(slice(k_, begin, count)));
    ASSERT_EQ(v, flat<double>(slice(v_, begin, count)));
    if (begin == size) return;
    std::vector<float> one_k(elements(1, options_.head_dim_k), -1);
    std::vector<float> one_v(elements(1, options_.head_dim_v), -1);
    ASSERT_TRUE(store_.read(begin, one_k, one_v).ok());
    ASSERT_EQ(one_k, flat<float>(slice(k_, begin, 1)));
    ASSERT_EQ(one_v, flat<float>(slice(v_, begin, 1)));
    if (options_.dtype == DType::kF64) {
      const std::span<const double> row = *store_.at<double>(begin);
      ASSERT_EQ(Row(row.begin(), row.end()), k_[static_cast<std::size_t>(begin)]);
    }
  }

  // Goes on with a copy, and writes over the original to show that they share nothing.
  void copy() {
    TokenStore copy = *store_.copy();
    const Row k(elements(1, options_.head_dim_k), 77);
    const Row v(elements(1, options_.head_dim_v), 77);
    store_.clear();
    while (store_.append(k, v)) continue;
    store_ = std::move(copy);
  }

  void clear() {
    store_.clear();
    k_.clear();
    v_.clear();
  }

  void check_sizes() const {
    ASSERT_EQ(static_cast<std::size_t>(store_.size()), k_.size());
    ASSERT_EQ(store_.empty(), k_.empty());
    const std::int32_t block = options_.block_size;
    ASSERT_EQ(store_.num_blocks_used(), (store_.size() + block - 1) / block);
  }

  int below(int bound) { return std::uniform_int_distribution<int>(0, bound - 1)(random_); }

 private:
  [[nodiscard]] std::size_t elements(int tokens, std::int32_t head_dim) const {
    return static_cast<std::size_t>(tokens) * static_cast<std::size_t>(options_.num_kv_heads) *
           static_cast<std::size_t>(head_dim);
  }
  // Floats, so that no value is rounded twice.
  std::vector<Row> rows(int count, std::int32_t head_dim) {
    std::vector<Row> result(head_dim == 0 ? 0 : static_cast<std::size_t>(count));
    std::normal_distribution<float> normal(0, 3);
    for (Row& row : result) {
      row.resize(elements(1, head_dim));
      for (double& value : row) value = static_cast<double>(normal(random_));
    }
    return result;
  }
  template <typename T>
  static std::vector<T> flat(const std::vector<Row>& rows) {
    std::vector<T> result;
    for (const Row& row : rows) {
      for (const double value : row) result.push_back(static_cast<T>(value));
    }
    return result;
  }
  static std::vector<Row> slice(const std::vector<Row>& rows, int begin, int count) {
    if (rows.empty()) return {};  // the store has no V
    return {rows.begin() + begin, rows.begin() + begin + count};
  }
  [[nodiscard]] ConstRowsView view_of(const std::vector<double>& rows, int tokens,
                                      std::int32_t head_dim) const {
    if (head_dim == 0) return {};
    return {reinterpret_cast<const std::byte*>(rows.data()),
            8LL * options_.num_kv_heads * head_dim,
            8LL * head_dim,
            tokens,
            options_.num_kv_heads,
            head_dim,
            DType::kF64};
  }

  TokenStoreOptions options_;
  TokenStore store_;
  std::mt19937 random_;
  std::vector<Row> k_;
  std::vector<Row> v_;
};

// `calls` random calls on one store.
void compare(const TokenStoreOptions& options, unsigned seed, int calls) {
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + to_string(options.dtype) + ", block size " +
               std::to_string(options.block_size));
  Pair pair(options, seed);
  for (int call = 0; call < calls; ++call) {
    const int draw = pair.below(40);
    if (draw == 0) {
      pair.clear();
    } else if (draw == 1) {
      pair.copy();
    } else if (draw < 20) {
      pair.append();
    } else {
      pair.read();
    }
    pair.check_sizes();
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(TokenStoreModel, RandomCallsGiveWhatAVectorOfRowsGives) {
  unsigned seed = 1;
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kE4M3}) {
    for (const std::int32_t block_size : {1, 5, 16}) {
      for (const std::int32_t head_dim_v : {0, 3}) {
        compare({.head_dim_k = 7,
                 .head_dim_v = head_dim_v,
                 .num_kv_heads = head_dim_v == 0 ? 1 : 2,
                 .dtype = dtype,
                 .block_size = block_size,
                 .max_tokens = 83},
                seed++, 400);
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio
