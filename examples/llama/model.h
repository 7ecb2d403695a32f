// SPDX-License-Identifier: Apache-2.0
#pragma once

// Model is the arithmetic of a Llama or Mistral decoder: embedding, RMSNorm, projections, RoPE,
// SwiGLU, output. It knows no cache: attention over earlier tokens is behind the interface
// Attention, which an engine implements once over kvfolio and once over whatever it compares with.
//
// Row invariance: the logits of a token, and the q, k and v rows handed to Attention, are functions
// of that token's own inputs alone, bit for bit: not of the other rows of the batch, their number
// or order, nor of the number of threads. (Per MatmulTarget.)
//
//   Result<Model> model = Model::load("models/kjv-bytes");
//   std::unique_ptr<ThreadPool> pool = *ThreadPool::create(2);
//   Workspace workspace(*pool);
//   model->forward({.tokens = ids, .positions = positions, .logit_rows = rows}, attention,
//                  workspace, logits);
//
// Thread safety: a loaded Model is immutable; concurrent forward() calls need their own Workspace,
// ThreadPool and Attention.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config.h"
#include "kvfolio/executor.h"
#include "kvfolio/status.h"
#include "matmul.h"

namespace kvfolio {
struct ConstRowsView;  // view.h
struct RowsView;
}  // namespace kvfolio

namespace kvfolio::llama {

struct ModelWeights;

// What a decoder layer asks of a cache.
class Attention {
 public:
  virtual ~Attention() = default;
  // Called once per layer and forward(), layers in order. Row i belongs to token i of the batch.
  // Writes this step's k and v rows to the cache of `layer`, then attends: out[i] is the attention
  // of q[i] over the tokens of its own sequence up to and including token i. k and q are rotated
  // (RoPE) already; the scale is 1/sqrt(head_dim). A Status other than ok ends forward().
  //   q, out: [num_tokens, num_q_heads, head_dim] f32
  //   k, v:   [num_tokens, num_kv_heads, head_dim] f32
  virtual Status layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
                       const ConstRowsView& v, const RowsView& out) = 0;
};

// The tokens of one step, of any number of sequences, in any order.
struct Batch {
  std::span<const std::int32_t> tokens;      // [num_tokens], each in [0, vocab)
  std::span<const std::int32_t> positions;   // [num_tokens], each in [0, max_positions)
  std::span<const std::int32_t> logit_rows;  // rows of the batch whose logits are wanted
};

// Scratch memory of forward(): grows to the largest batch seen, then allocates nothing.
class Workspace {
 public:
  // `pool` outlives the workspace.
  explicit Workspace(ThreadPool& pool) : pool_(&pool) {}

 private:
  friend class Model;
  void reserve(const ModelConfig& config, std::size_t num_rows);

  ThreadPool* pool_;
  std::vector<float> residual_;   // [num_tokens, hidden]
  std::vector<float> normed_;     // [num_tokens, hidden]
  std::vector<float> qkv_;        // [num_tokens, q heads + 2 * kv heads, head_dim]
  std::vector<float> attended_;   // [num_tokens, q heads, head_dim]
  std::vector<float> gate_up_;    // [num_tokens, 2 * intermediate]
  std::vector<float> activated_;  // [num_tokens, intermediate]
  std::vector<float> projected_;  // [num_tokens, hidden]
  std::vector<float> rotation_;   // [num_tokens, 2, head_dim / 2]: cosines, sines
};

struct LoadOptions {
  MatmulTarget target = MatmulTarget::kAuto;
};

class Model {
 public:
  // Reads config.json and the weights of the folder `path`. The error names file and field.
  static Result<Model> load(const std::string& path, const LoadOptions& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  [[nodiscard]] const ModelConfig& config() const noexcept;
  // What kAuto became.
  [[nodiscard]] MatmulTarget target() const noexcept;

  // logits: [logit_rows.size(), vocab] f32, in the order of logit_rows. kInvalidArgument when an
  // id, a position or a row is out of range or the spans do not fit together; nothing was called
  // then.
  Status forward(const Batch& batch, Attention& attention, Workspace& workspace,
                 std::span<float> logits) const;

 private:
  explicit Model(std::unique_ptr<ModelWeights> weights);

  std::unique_ptr<ModelWeights> weights_;
  std::vector<double> inverse_frequencies_;  // [head_dim / 2]
};

}  // namespace kvfolio::llama
