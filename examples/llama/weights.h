// SPDX-License-Identifier: Apache-2.0
#pragma once

// ModelWeights: the tensors of a checkpoint as forward() reads them. Matrices that multiply the
// same rows are one packed matrix, so that a layer has four products and not seven.

#include <memory>
#include <string>
#include <vector>

#include "config.h"
#include "kvfolio/status.h"
#include "matmul.h"

namespace kvfolio::llama {

struct LayerWeights {
  std::vector<float> attention_norm;
  PackedMatrix qkv;  // outputs: all q heads, all k heads, all v heads
  PackedMatrix output;
  std::vector<float> mlp_norm;
  PackedMatrix gate_up;  // outputs: gate, up
  PackedMatrix down;
};

struct ModelWeights {
  ModelConfig config;
  MatmulTarget target = MatmulTarget::kBaseline;  // never kAuto
  std::vector<float> embedding;                   // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  PackedMatrix logits;
};

// Reads config.json and the tensors of the folder `path`. Requires: is_available(target).
Result<std::unique_ptr<ModelWeights>> load_weights(const std::string& path, MatmulTarget target);

}  // namespace kvfolio::llama
