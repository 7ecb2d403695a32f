// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

namespace kvfolio::llama {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As transformers 4.57 writes it, with `more` put in front of the closing brace.
std::string llama4(std::string_view more) {
  return R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
    "bos_token_id":1,"hidden_act":"silu","hidden_size":64,"initializer_range":0.02,
    "intermediate_size":128,"mlp_bias":false,"model_type":"llama","num_attention_heads":4,
    "num_hidden_layers":2,"pretraining_tp":1,"torch_dtype":"float32",
    "transformers_version":"4.57.6","use_cache":true,"vocab_size":256)" +
         std::string(more.empty() ? "" : ",") + std::string(more) + "}";
}

std::string mistral(std::string_view more) {
  return R"({"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,
    "dtype":"float32","head_dim":null,"hidden_act":"silu","hidden_size":64,
    "intermediate_size":128,"model_type":"mistral","num_attention_heads":8,"num_hidden_layers":2,
    "pad_token_id":null,"vocab_size":256)" +
         std::string(more.empty() ? "" : ",") + std::string(more) + "}";
}

ModelConfig config_of(const std::string& text) {
  Result<ModelConfig> config = parse_config(text, "config.json");
  EXPECT_TRUE(config) << (config ? "" : config.error().message());
  return config ? *config : ModelConfig{};
}

std::string config_error(const std::string& text) {
  Result<ModelConfig> config = parse_config(text, "config.json");
  return config ? "no error" : config.error().message();
}

TEST(Config, ReadsTheFormOfTransformers4) {
  const ModelConfig config = config_of(llama4(R"("num_key_value_heads":2,"head_dim":16,
    "rms_norm_eps":1e-05,"rope_theta":500000.0,"max_position_embeddings":512,"eos_token_id":2,
    "tie_word_embeddings":true,"rope_scaling":{"factor":8.0,"high_freq_factor":4.0,
    "low_freq_factor":1.0,"original_max_position_embeddings":64,"rope_type":"llama3"})"));
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.num_q_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.intermediate, 128);
  EXPECT_EQ(config.vocab, 256);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_TRUE(config.tied_output);
  EXPECT_THAT(config.eos_ids, ElementsAre(2));
  EXPECT_EQ(config.rope.type, RopeType::kLlama3);
  EXPECT_EQ(config.rope.theta, 500000.0);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.original_max_positions, 64.0);
}

TEST(Config, ReadsTheFormOfTransformers5) {
  const ModelConfig config = config_of(mistral(R"("num_key_value_heads":2,"sliding_window":8,
    "eos_token_id":[1,2],"rope_parameters":{"rope_type":"linear","factor":2.0,
    "rope_theta":20000.0})"));
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.sliding_window, 8);
  EXPECT_THAT(config.eos_ids, ElementsAre(1, 2));
  EXPECT_EQ(config.rope.type, RopeType::kLinear);
  EXPECT_EQ(config.rope.theta, 20000.0);
  EXPECT_EQ(config.rope.factor, 2.0);
}

TEST(Config, AbsentFieldsHaveTheDefaultsOfTransformers) {
  const ModelConfig llama = config_of(llama4(""));
  EXPECT_EQ(llama.num_kv_heads, 4);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_EQ(llama.rms_norm_eps, 1e-6f);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_FALSE(llama.tied_output);
  EXPECT_THAT(llama.eos_ids, IsEmpty());
  const ModelConfig config = config_of(mistral(""));
  EXPECT_EQ(config.num_kv_heads, 8);
  EXPECT_EQ(config.sliding_window, 4096);
  EXPECT_EQ(config_of(mistral(R"("sliding_window":null)")).sliding_window, 0);
}

TEST(Config, OldRopeTypeFieldAndNullsAreUnderstood) {
  EXPECT_EQ(config_of(llama4(R"("rope_scaling":{"type":"linear","factor":4})")).rope.factor, 4.0);
  EXPECT_EQ(
      config_of(llama4(R"("rope_scaling":null,"head_dim":null,"eos_token_id":null)")).head_dim, 16);
  EXPECT_EQ(config_of(llama4(R"("rope_theta":7.0,
    "rope_parameters":{"rope_type":"default","rope_theta":7.0})"))
                .rope.theta,
            7.0);
}

TEST(Config, UnsupportedFieldsAreRefusedByNameAndValue) {
  struct Case {
    const char* more;
    const char* message;
  };
  const Case cases[] = {
      {R"("rope_scaling":{"rope_type":"yarn","factor":4.0})", "rope_scaling.rope_type is \"yarn\""},
      {R"("rope_scaling":{"type":"dynamic","factor":4.0})", "rope_scaling.type is \"dynamic\""},
      {R"("rope_scaling":{"rope_type":"linear"})", "rope_scaling.factor is missing"},
      {R"("rope_scaling":{"rope_type":"linear","factor":0})", "rope_scaling.factor is 0"},
      {R"("rope_scaling":{"rope_type":"default","mscale":1})", "rope_scaling.mscale is 1"},
      {R"("rope_scaling":"linear")", "rope_scaling is \"linear\""},
      {R"("rope_parameters":{"full_attention":{}})", "rope_parameters.full_attention is an object"},
      {R"("rope_parameters":{"rope_type":"default","partial_rotary_factor":0.5})",
       "rope_parameters.partial_rotary_factor is 0.5"},
      {R"("rope_parameters":{},"rope_scaling":{})", "rope_scaling is an object"},
      {R"("rope_theta":5.0,"rope_parameters":{"rope_theta":6.0})", "rope_theta is 5"},
      {R"("rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,
        "high_freq_factor":4,"original_max_position_embeddings":64})",
       "rope_scaling.high_freq_factor is 4"},
      {R"("quantization_config":{})", "quantization_config is an object"},
      {R"("sliding_window":4096)", "sliding_window is 4096, LlamaForCausalLM has none"},
      {R"("layer_types":["full_attention","sliding_attention"])", "layer_types is an array"},
      {R"("final_logit_softcapping":30.0)", "final_logit_softcapping is 30"},
      {R"("num_key_value_heads":3)", "num_key_value_heads is 3, must divide num_attention_heads"},
      {R"("head_dim":15)", "head_dim is 15, must be even"},
      {R"("head_dim":2048)", "head_dim is 2048"},
      {R"("eos_token_id":256)", "eos_token_id is 256"},
      {R"("eos_token_id":[1,-1])", "eos_token_id is an array, holding -1"},
      {R"("eos_token_id":"</s>")", "eos_token_id is \"</s>\""},
      {R"("max_position_embeddings":0)", "max_position_embeddings is 0"},
      {R"("rms_norm_eps":-1)", "rms_norm_eps is -1"},
      {R"("rope_theta":0)", "rope_theta is 0"},
      {R"("tie_word_embeddings":1)", "tie_word_embeddings is 1, must be true or false"},
  };
  for (const Case& c : cases) EXPECT_THAT(config_error(llama4(c.more)), HasSubstr(c.message));
}

// `llama4` with the value of one of its own fields replaced.
std::string with(const std::string& field, const std::string& value) {
  std::string text = llama4("");
  const std::size_t begin = text.find("\"" + field + "\":") + field.size() + 3;
  const std::size_t end = text.find_first_of(",]}", begin);
  return text.replace(begin, end - begin + (text[end] == ']' ? 1 : 0), value);
}

TEST(Config, SizesAreWholeNumbersInRange) {
  for (const char* field : {"hidden_size", "intermediate_size", "num_attention_heads",
                            "num_hidden_layers", "vocab_size"}) {
    for (const char* value : {"0", "-1", "1.5", "\"8\"", "[]", "true", "9223372036854775808",
                              "4294967297", "1e3", "null"}) {
      EXPECT_THAT(config_error(with(field, value)), HasSubstr(std::string(field) + " is "))
          << value;
    }
  }
  EXPECT_THAT(config_error(with("num_attention_heads", "5")),
              HasSubstr("num_attention_heads is 5, must divide hidden_size, 64"));
}

TEST(Config, OtherModelsAreRefusedByName) {
  EXPECT_THAT(config_error(with("attention_bias", "true")), HasSubstr("attention_bias is true"));
  EXPECT_THAT(config_error(with("mlp_bias", "true")), HasSubstr("mlp_bias is true"));
  EXPECT_THAT(config_error(with("hidden_act", "\"gelu\"")), HasSubstr("hidden_act is \"gelu\""));
  EXPECT_THAT(config_error(with("pretraining_tp", "2")), HasSubstr("pretraining_tp is 2"));
  EXPECT_THAT(config_error(with("model_type", "\"qwen2\"")), HasSubstr("model_type is \"qwen2\""));
  EXPECT_THAT(config_error(with("architectures", "[\"GemmaForCausalLM\"]")),
              HasSubstr("architectures is an array, of \"GemmaForCausalLM\""));
  EXPECT_THAT(config_error(with("architectures", "\"LlamaForCausalLM\"")),
              HasSubstr("architectures"));
  EXPECT_THAT(config_error("{}"), HasSubstr("architectures is missing"));
  EXPECT_THAT(config_error("[]"), HasSubstr("must be an object"));
  EXPECT_EQ(
      config_error("{"),
      "config.json: line 1, column 2: syntax error while parsing object key - unexpected end of "
      "input; expected string literal");
}

TEST(Rope, FrequenciesFollowTheType) {
  ModelConfig config;
  config.head_dim = 8;
  config.rope.theta = 10000.0;
  const auto plain = rope_inverse_frequencies(config);
  EXPECT_THAT(plain, ElementsAre(1.0, ::testing::DoubleEq(0.1), ::testing::DoubleEq(0.01),
                                 ::testing::DoubleEq(0.001)));
  config.rope.type = RopeType::kLinear;
  config.rope.factor = 4.0;
  EXPECT_DOUBLE_EQ(rope_inverse_frequencies(config)[1], 0.025);

  // Original context 200: pair 0 turns 31.8 times (kept), 1 turns 3.18 times (between), 2 and 3
  // less than once (stretched).
  config.rope.type = RopeType::kLlama3;
  config.rope.original_max_positions = 200.0;
  const auto scaled = rope_inverse_frequencies(config);
  EXPECT_DOUBLE_EQ(scaled[0], 1.0);
  const double kept = (200.0 * 0.1 / (2.0 * std::numbers::pi) - 1.0) / 3.0;
  EXPECT_DOUBLE_EQ(scaled[1], kept * 0.1 + (1.0 - kept) * 0.025);
  EXPECT_DOUBLE_EQ(scaled[2], 0.0025);
  EXPECT_DOUBLE_EQ(scaled[3], 0.00025);
}

}  // namespace
}  // namespace kvfolio::llama
