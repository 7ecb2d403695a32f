// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kvfolio/view.h"
#include "ops.h"
#include "weights.h"

namespace kvfolio::llama {
namespace {

// Calls body(row) for every row; a few rows are not worth a second thread.
template <typename Body>
void for_rows(ThreadPool& pool, std::int64_t num_rows, const Body& body) {
  constexpr std::int64_t kPartRows = 8;
  const auto num_parts = static_cast<std::int32_t>((num_rows + kPartRows - 1) / kPartRows);
  pool.parallel_for(num_parts, [&](std::int32_t part) {
    const std::int64_t end = std::min(num_rows, (part + 1) * kPartRows);
    for (std::int64_t row = part * kPartRows; row < end; ++row) body(row);
  });
}

ConstRowsView view_of(const float* data, std::int64_t row_stride, std::int32_t num_tokens,
                      std::int32_t num_heads, std::int32_t head_dim) {
  constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
  return {reinterpret_cast<const std::byte*>(data),
          row_stride * kFloat,
          head_dim * kFloat,
          num_tokens,
          num_heads,
          head_dim,
          DType::kF32};
}

Status out_of_range(const char* what, std::size_t index, std::int32_t value, std::int32_t end) {
  return Status(ErrorCode::kInvalidArgument, std::string(what) + "[" + std::to_string(index) +
                                                 "] is " + std::to_string(value) +
                                                 ", must be in [0, " + std::to_string(end) + ")");
}

Status check_batch(const ModelConfig& config, const Batch& batch, std::size_t num_logits) {
  const auto check_all = [](const char* what, std::span<const std::int32_t> values,
                            std::int32_t end) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 0 || values[i] >= end) return out_of_range(what, i, values[i], end);
    }
    return Status();
  };
  if (batch.tokens.size() != batch.positions.size()) {
    return Status(ErrorCode::kInvalidArgument,
                  "a batch of " + std::to_string(batch.tokens.size()) + " tokens has " +
                      std::to_string(batch.positions.size()) + " positions");
  }
  const std::size_t expected = batch.logit_rows.size() * static_cast<std::size_t>(config.vocab);
  if (num_logits != expected) {
    return Status(ErrorCode::kInvalidArgument, "room for " + std::to_string(num_logits) +
                                                   " logits, must be " + std::to_string(expected));
  }
  KVFOLIO_RETURN_IF_ERROR(check_all("tokens", batch.tokens, config.vocab));
  KVFOLIO_RETURN_IF_ERROR(check_all("positions", batch.positions, config.max_positions));
  return check_all("logit_rows", batch.logit_rows, static_cast<std::int32_t>(batch.tokens.size()));
}

}  // namespace

Model::Model(std::unique_ptr<ModelWeights> weights)
    : weights_(std::move(weights)),
      inverse_frequencies_(rope_inverse_frequencies(weights_->config)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const ModelConfig& Model::config() const noexcept { return weights_->config; }
MatmulTarget Model::target() const noexcept { return weights_->target; }

Result<Model> Model::load(const std::string& path, const LoadOptions& options) {
  if (!is_available(options.target)) {
    return Status(ErrorCode::kUnsupported, std::string("this processor or build cannot run the ") +
                                               to_string(options.target) + " products");
  }
  Result<std::unique_ptr<ModelWeights>> weights = load_weights(path, options.target);
  if (!weights) return std::move(weights).error();
  return Model(std::move(*weights));
}

void Workspace::reserve(const ModelConfig& c, std::size_t num_rows) {
  const auto grow = [num_rows](std::vector<float>& array, std::int32_t width) {
    const std::size_t size = num_rows * static_cast<std::size_t>(width);
    if (array.size() < size) array.resize(size);
  };
  const std::int32_t q_width = c.num_q_heads * c.head_dim;
  grow(residual_, c.hidden);
  grow(normed_, c.hidden);
  grow(projected_, c.hidden);
  grow(qkv_, q_width + 2 * c.num_kv_heads * c.head_dim);
  grow(attended_, q_width);
  grow(gate_up_, 2 * c.intermediate);
  grow(activated_, c.intermediate);
  grow(rotation_, c.head_dim);
}

Status Model::forward(const Batch& batch, Attention& attention, Workspace& w,
                      std::span<float> logits) const {
  const ModelConfig& c = weights_->config;
  KVFOLIO_RETURN_IF_ERROR(check_batch(c, batch, logits.size()));
  ThreadPool& pool = *w.pool_;
  const auto num_tokens = static_cast<std::int32_t>(batch.tokens.size());
  const auto num_wanted = static_cast<std::int32_t>(batch.logit_rows.size());
  w.reserve(c, std::max(batch.tokens.size(), batch.logit_rows.size()));
  const std::int64_t hidden = c.hidden;
  const std::int64_t half = c.head_dim / 2;
  const std::int64_t q_width = std::int64_t{c.num_q_heads} * c.head_dim;
  const std::int64_t k_width = std::int64_t{c.num_kv_heads} * c.head_dim;
  const std::int64_t qkv_width = q_width + 2 * k_width;

  for_rows(pool, num_tokens, [&](std::int64_t row) {
    const auto i = static_cast<std::size_t>(row);
    const float* const embedded = weights_->embedding.data() + batch.tokens[i] * hidden;
    std::copy_n(embedded, hidden, w.residual_.data() + row * hidden);
    float* const cosines = w.rotation_.data() + row * 2 * half;
    rope_table(batch.positions[i], inverse_frequencies_, cosines, cosines + half);
  });

  std::int32_t num_rows = num_tokens;
  for (std::int32_t index = 0; index < c.num_layers; ++index) {
    const LayerWeights& layer = weights_->layers[static_cast<std::size_t>(index)];
    const auto normalise = [&](const std::vector<float>& weight) {
      for_rows(pool, num_rows, [&](std::int64_t row) {
        rms_norm(w.residual_.data() + row * hidden, weight.data(), c.hidden, c.rms_norm_eps,
                 w.normed_.data() + row * hidden);
      });
    };
    const auto add_projected = [&] {
      for_rows(pool, num_rows, [&](std::int64_t row) {
        add_row(w.residual_.data() + row * hidden, w.projected_.data() + row * hidden, c.hidden);
      });
    };

    normalise(layer.attention_norm);
    layer.qkv.multiply(w.normed_.data(), hidden, num_rows, w.qkv_.data(), qkv_width, pool);
    for_rows(pool, num_rows, [&](std::int64_t row) {
      const float* const cosines = w.rotation_.data() + row * 2 * half;
      rope_rotate(w.qkv_.data() + row * qkv_width, c.num_q_heads + c.num_kv_heads, c.head_dim,
                  cosines, cosines + half);
    });
    const ConstRowsView q =
        view_of(w.qkv_.data(), qkv_width, num_tokens, c.num_q_heads, c.head_dim);
    const ConstRowsView k =
        view_of(w.qkv_.data() + q_width, qkv_width, num_tokens, c.num_kv_heads, c.head_dim);
    const ConstRowsView v = view_of(w.qkv_.data() + q_width + k_width, qkv_width, num_tokens,
                                    c.num_kv_heads, c.head_dim);
    const RowsView out{.data = reinterpret_cast<std::byte*>(w.attended_.data()),
                       .token_stride = q_width * static_cast<std::int64_t>(sizeof(float)),
                       .head_stride = q.head_stride,
                       .num_tokens = num_tokens,
                       .num_heads = c.num_q_heads,
                       .head_dim = c.head_dim,
                       .dtype = DType::kF32};
    KVFOLIO_RETURN_IF_ERROR(attention.layer(index, q, k, v, out));

    if (index + 1 == c.num_layers) {
      // From here on only rows whose logits are wanted matter. q, k, v and normed are free now.
      for (std::int64_t row = 0; row < num_wanted; ++row) {
        const std::int64_t from = batch.logit_rows[static_cast<std::size_t>(row)];
        std::copy_n(w.residual_.data() + from * hidden, hidden, w.normed_.data() + row * hidden);
        std::copy_n(w.attended_.data() + from * q_width, q_width, w.qkv_.data() + row * q_width);
      }
      std::swap(w.residual_, w.normed_);
      num_rows = num_wanted;
    }
    const float* const attended = index + 1 == c.num_layers ? w.qkv_.data() : w.attended_.data();
    layer.output.multiply(attended, q_width, num_rows, w.projected_.data(), hidden, pool);
    add_projected();

    normalise(layer.mlp_norm);
    const std::int64_t width = c.intermediate;
    layer.gate_up.multiply(w.normed_.data(), hidden, num_rows, w.gate_up_.data(), 2 * width, pool);
    for_rows(pool, num_rows, [&](std::int64_t row) {
      const float* const gate = w.gate_up_.data() + row * 2 * width;
      swiglu(gate, gate + width, c.intermediate, w.activated_.data() + row * width);
    });
    layer.down.multiply(w.activated_.data(), width, num_rows, w.projected_.data(), hidden, pool);
    add_projected();
  }

  for_rows(pool, num_rows, [&](std::int64_t row) {
    rms_norm(w.residual_.data() + row * hidden, weights_->final_norm.data(), c.hidden,
             c.rms_norm_eps, w.normed_.data() + row * hidden);
  });
  weights_->logits.multiply(w.normed_.data(), hidden, num_rows, logits.data(), c.vocab, pool);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      const auto vocab = static_cast<std::size_t>(c.vocab);
      return Status(ErrorCode::kInvalidArgument, "logit " + std::to_string(i % vocab) + " of row " +
                                                     std::to_string(i / vocab) +
                                                     " is not finite: the weights overflow f32");
    }
  }
  return Status();
}

}  // namespace kvfolio::llama
