// SPDX-License-Identifier: Apache-2.0
#pragma once

// PlainAttention: the meaning of llama::Attention for one sequence, in f64 over two growing arrays
// per layer. Slow and obvious. It lets the model be tested without any cache of kvfolio.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kvfolio/view.h"
#include "model.h"

namespace kvfolio::llama {

class PlainAttention : public Attention {
 public:
  explicit PlainAttention(const ModelConfig& config)
      : config_(config), layers_(static_cast<std::size_t>(config.num_layers)) {}

  Status layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
               const ConstRowsView& v, const RowsView& out) override {
    Layer& cache = layers_[static_cast<std::size_t>(layer)];
    for (std::int32_t row = 0; row < k.num_tokens; ++row) {
      append(k, row, cache.k);
      append(v, row, cache.v);
      ++cache.num_tokens;
      for (std::int32_t head = 0; head < q.num_heads; ++head) attend(cache, q, row, head, out);
    }
    return Status();
  }

 private:
  struct Layer {
    std::vector<double> k, v;  // [num_tokens, num_kv_heads, head_dim]
    std::int32_t num_tokens = 0;
  };

  static const float* floats(const ConstRowsView& rows, std::int32_t row, std::int32_t head) {
    return reinterpret_cast<const float*>(rows.at(row, head));
  }

  static void append(const ConstRowsView& rows, std::int32_t row, std::vector<double>& to) {
    for (std::int32_t head = 0; head < rows.num_heads; ++head) {
      const float* values = floats(rows, row, head);
      to.insert(to.end(), values, values + rows.head_dim);
    }
  }

  void attend(const Layer& cache, const ConstRowsView& q, std::int32_t row, std::int32_t head,
              const RowsView& out) const {
    const std::int32_t dim = q.head_dim;
    const float* query = floats(q, row, head);
    const auto offset = [&](std::int32_t token) {
      return (token * config_.num_kv_heads + head / config_.q_heads_per_kv_head()) * dim;
    };
    const std::int32_t window = config_.sliding_window > 0 ? config_.sliding_window : 1 << 30;
    const std::int32_t first = std::max(0, cache.num_tokens - window);
    std::vector<double> scores;
    for (std::int32_t token = first; token < cache.num_tokens; ++token) {
      const double* key = cache.k.data() + offset(token);
      double dot = 0.0;
      for (std::int32_t i = 0; i < dim; ++i) dot += query[i] * key[i];
      scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (double& score : scores) sum += score = std::exp(score - highest);
    std::vector<double> mixed(static_cast<std::size_t>(dim));
    for (std::int32_t token = first; token < cache.num_tokens; ++token) {
      const double weight = scores[static_cast<std::size_t>(token - first)] / sum;
      const double* value = cache.v.data() + offset(token);
      for (std::int32_t i = 0; i < dim; ++i)
        mixed[static_cast<std::size_t>(i)] += weight * value[i];
    }
    float* to = reinterpret_cast<float*>(out.at(row, head));
    for (std::int32_t i = 0; i < dim; ++i) {
      to[i] = static_cast<float>(mixed[static_cast<std::size_t>(i)]);
    }
  }

  ModelConfig config_;
  std::vector<Layer> layers_;
};

}  // namespace kvfolio::llama
