// SPDX-License-Identifier: Apache-2.0
#pragma once

// ModelConfig: what config.json of a Hugging Face checkpoint says about a Llama or Mistral model.
// Both forms are read: transformers 4.x (rope_theta, rope_scaling, torch_dtype) and 5.x
// (rope_parameters, dtype). A field that asks for something this engine does not do is refused by
// its name and value; a field that cannot change the result is ignored.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::llama {

enum class RopeType : std::int32_t { kDefault = 0, kLinear = 1, kLlama3 = 2 };

// Rotary position embedding: the angle of pair i at position p is p * inverse_frequency[i].
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1.0;                     // kLinear, kLlama3
  double low_freq_factor = 1.0;            // kLlama3
  double high_freq_factor = 4.0;           // kLlama3
  double original_max_positions = 8192.0;  // kLlama3
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM" or "MistralForCausalLM"
  std::int32_t num_layers = 0;
  std::int32_t hidden = 0;
  std::int32_t num_q_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;  // even
  std::int32_t intermediate = 0;
  std::int32_t vocab = 0;
  std::int32_t max_positions = 0;   // positions 0 .. max_positions-1 exist
  std::int32_t sliding_window = 0;  // tokens a query reads, itself included; 0: all of them
  float rms_norm_eps = 1e-6f;
  RopeConfig rope;
  bool tied_output = false;  // the output projection is the embedding
  // End-of-sequence ids, each in [0, vocab); empty when the checkpoint names none.
  std::vector<std::int32_t> eos_ids;

  // Every query head of a group reads the same KV head.
  [[nodiscard]] std::int32_t q_heads_per_kv_head() const noexcept {
    return num_q_heads / num_kv_heads;
  }
};

// `text` is the content of config.json, `name` what messages call it.
Result<ModelConfig> parse_config(std::string_view text, std::string_view name);
// Reads and parses the file at `path`.
Result<ModelConfig> read_config(const std::string& path);

// head_dim/2 inverse frequencies in radians per position, in f64.
[[nodiscard]] std::vector<double> rope_inverse_frequencies(const ModelConfig& config);

}  // namespace kvfolio::llama
