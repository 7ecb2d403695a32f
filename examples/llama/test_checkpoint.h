// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests: folders that vanish, safetensors files from parts that may be wrong, a tiny model.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvfolio::llama {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvfolio-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  void write(const std::string& file, std::string_view content) const {
    std::ofstream(path_ + "/" + file, std::ios::binary) << content;
  }

 private:
  std::string path_;
};

// 8 bytes of length, the header, the data. `length` may lie.
inline std::string safetensors_file(std::string_view header, std::string_view data,
                                    std::uint64_t length) {
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data);
}
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  return safetensors_file(header, data, header.size());
}

inline std::string bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// A file of f32 tensors: name, shape as JSON, values.
struct TestTensor {
  std::string name;
  std::string shape;
  std::vector<float> values;
};
inline std::string safetensors_file(std::span<const TestTensor> tensors) {
  std::string header = "{";
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const std::string begin = std::to_string(data.size());
    data += bytes_of(tensor.values);
    header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + R"(":{"dtype":"F32","shape":)" +
              tensor.shape + R"(,"data_offsets":[)" + begin + "," + std::to_string(data.size()) +
              "]}";
  }
  return safetensors_file(header + "}", data);
}

// Two layers; hidden 8, 2 query heads and 1 KV head of 4, intermediate 12, vocabulary 10.
inline constexpr std::string_view kTinyConfig = R"({
  "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
  "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 10,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";

// `hidden`: as many are two heads, or `queries` are all of them, over `keys` of one KV head.
inline std::vector<TestTensor> tiny_tensors(std::size_t hidden = 8, std::size_t queries = 0,
                                            std::size_t keys = 0) {
  if (queries == 0) queries = hidden;
  if (keys == 0) keys = hidden / 2;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-0.7f, 0.7f);
  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, std::size_t rows, std::size_t columns) {
    TestTensor& tensor = tensors.emplace_back();
    tensor.name = name;
    tensor.shape = columns == 0 ? "[" + std::to_string(rows) + "]"
                                : "[" + std::to_string(rows) + "," + std::to_string(columns) + "]";
    tensor.values.resize(rows * (columns == 0 ? 1 : columns));
    for (float& value : tensor.values) value = columns == 0 ? 1.0f : uniform(random);
  };
  add("model.embed_tokens.weight", 10, hidden);
  add("model.norm.weight", hidden, 0);
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", hidden, 0);
    add(layer + "self_attn.q_proj.weight", queries, hidden);
    add(layer + "self_attn.k_proj.weight", keys, hidden);
    add(layer + "self_attn.v_proj.weight", keys, hidden);
    add(layer + "self_attn.o_proj.weight", hidden, queries);
    add(layer + "post_attention_layernorm.weight", hidden, 0);
    add(layer + "mlp.gate_proj.weight", 12, hidden);
    add(layer + "mlp.up_proj.weight", 12, hidden);
    add(layer + "mlp.down_proj.weight", hidden, 12);
  }
  return tensors;
}

}  // namespace kvfolio::llama
