// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <optional>
#include <utility>

#include "files.h"
#include "json.h"

namespace kvfolio::llama {
namespace {

constexpr std::int64_t kMaxConfigBytes = 1 << 20;
// Far above any model; they keep every product of sizes within int64 and every size within int32.
constexpr std::int32_t kMaxLayers = 4096;
constexpr std::int32_t kMaxHeads = 4096;
constexpr std::int32_t kMaxHeadDim = 1024;
constexpr std::int32_t kMaxWidth = 1 << 20;
constexpr std::int32_t kMaxVocab = 1 << 24;
constexpr std::int32_t kMaxPositions = 1 << 30;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;

// Reads fields of one object and keeps the first error. A getter after an error gives its fallback.
class Fields {
 public:
  Fields(const Json& object, std::string prefix) : object_(&object), prefix_(std::move(prefix)) {}

  [[nodiscard]] const Status& status() const noexcept { return status_; }

  // Null when the field is missing or null: transformers means the same by both, with the
  // exceptions that has() is for.
  [[nodiscard]] const Json* find(std::string_view field) const noexcept {
    const Json* value = object_->find(field);
    return value != nullptr && !value->is_null() ? value : nullptr;
  }
  [[nodiscard]] bool has(std::string_view field) const noexcept {
    return object_->find(field) != nullptr;
  }

  void refuse(std::string_view field, const std::string& why) {
    const Json* value = object_->find(field);
    if (!status_.ok()) return;
    status_ =
        Status(ErrorCode::kInvalidArgument,
               prefix_ + std::string(field) +
                   (value != nullptr ? " is " + value->describe() : " is missing") + ", " + why);
  }

  // A whole number in [1, max].
  std::int32_t size(std::string_view field, std::int32_t max,
                    std::optional<std::int32_t> fallback = std::nullopt) {
    const Json* value = find(field);
    if (value == nullptr && fallback) return *fallback;
    const std::int64_t* integer = value != nullptr ? value->as_integer() : nullptr;
    if (integer != nullptr && *integer >= 1 && *integer <= max) {
      return static_cast<std::int32_t>(*integer);
    }
    refuse(field, "must be a whole number from 1 to " + std::to_string(max));
    return fallback.value_or(1);
  }

  // A number in [min, max].
  double number(std::string_view field, double min, double max,
                std::optional<double> fallback = std::nullopt) {
    const Json* value = find(field);
    if (value == nullptr && fallback) return *fallback;
    const Json::Number* number = value != nullptr ? value->as_number() : nullptr;
    if (number != nullptr && number->value >= min && number->value <= max) return number->value;
    refuse(field, "must be a number from " + Json(Json::Number{.value = min}).describe() + " to " +
                      Json(Json::Number{.value = max}).describe());
    return fallback.value_or(min);
  }

  bool flag(std::string_view field, bool fallback) {
    const Json* value = find(field);
    if (value == nullptr) return fallback;
    if (const bool* set = value->as_bool()) return *set;
    refuse(field, "must be true or false");
    return fallback;
  }

  std::string text(std::string_view field, const std::string& fallback) {
    const Json* value = find(field);
    if (value == nullptr) return fallback;
    if (const std::string* text = value->as_string()) return *text;
    refuse(field, "must be a string");
    return fallback;
  }

 private:
  const Json* object_;
  std::string prefix_;
  Status status_;
};

// What would change the result and is not done here. A wrong model that talks is worse than none.
void refuse_unsupported(Fields& fields) {
  for (const std::string_view field : {"attention_bias", "mlp_bias", "bias", "use_qk_norm"}) {
    if (fields.flag(field, false)) fields.refuse(field, "only false is supported");
  }
  for (const std::string_view field : {"hidden_act", "hidden_activation"}) {
    if (fields.text(field, "silu") != "silu") fields.refuse(field, "only \"silu\" is supported");
  }
  for (const std::string_view field : {"pretraining_tp", "partial_rotary_factor"}) {
    if (fields.number(field, 0.0, 1e6, 1.0) != 1.0) fields.refuse(field, "only 1 is supported");
  }
  for (const std::string_view field :
       {"quantization_config", "attn_logit_softcapping", "final_logit_softcapping", "num_experts",
        "num_local_experts", "attention_sinks", "attention_chunk_size", "no_rope_layers",
        "query_pre_attn_scalar", "vision_config", "text_config"}) {
    if (fields.find(field) != nullptr) fields.refuse(field, "only null is supported");
  }
}

void read_architecture(const Json& json, Fields& fields, ModelConfig& config) {
  const Json* architectures = json.find("architectures");
  const Json::Array* names = architectures != nullptr ? architectures->as_array() : nullptr;
  const std::string* name =
      names != nullptr && names->size() == 1 ? names->front().as_string() : nullptr;
  constexpr const char* kAllowed = "must be [\"LlamaForCausalLM\"] or [\"MistralForCausalLM\"]";
  if (name == nullptr) return fields.refuse("architectures", kAllowed);
  if (*name != "LlamaForCausalLM" && *name != "MistralForCausalLM") {
    return fields.refuse("architectures", "of " + in_quotes(*name) + ", " + kAllowed);
  }
  config.architecture = *name;
  const std::string family = *name == "LlamaForCausalLM" ? "llama" : "mistral";
  if (fields.text("model_type", family) != family) {
    fields.refuse("model_type", "must be " + in_quotes(family) + " for " + *name);
  }
}

// An absent field has the default of the architecture's config class in transformers.
void read_sizes(Fields& fields, ModelConfig& config) {
  const bool mistral = config.architecture == "MistralForCausalLM";
  config.num_layers = fields.size("num_hidden_layers", kMaxLayers);
  config.hidden = fields.size("hidden_size", kMaxWidth);
  config.intermediate = fields.size("intermediate_size", kMaxWidth);
  config.vocab = fields.size("vocab_size", kMaxVocab);
  config.num_q_heads = fields.size("num_attention_heads", kMaxHeads);
  const bool mistral_default = mistral && !fields.has("num_key_value_heads");
  config.num_kv_heads =
      fields.size("num_key_value_heads", kMaxHeads, mistral_default ? 8 : config.num_q_heads);
  if (config.num_q_heads % config.num_kv_heads != 0) {
    fields.refuse("num_key_value_heads",
                  "must divide num_attention_heads, " + std::to_string(config.num_q_heads));
  }
  const bool divides = config.hidden % config.num_q_heads == 0;
  if (fields.find("head_dim") == nullptr && !divides) {
    fields.refuse("num_attention_heads", "must divide hidden_size, " +
                                             std::to_string(config.hidden) +
                                             ", where head_dim is not given");
  }
  config.head_dim = fields.size("head_dim", kMaxHeadDim, config.hidden / config.num_q_heads);
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim || config.head_dim < 2) {
    fields.refuse("head_dim", "must be even, 2 to " + std::to_string(kMaxHeadDim) + "; it is " +
                                  std::to_string(config.head_dim));
  }
  config.max_positions =
      fields.size("max_position_embeddings", kMaxPositions, mistral ? 131072 : 2048);
  config.rms_norm_eps = static_cast<float>(fields.number("rms_norm_eps", 0.0, 1.0, 1e-6));
  config.tied_output = fields.flag("tie_word_embeddings", false);
  if (mistral) {
    config.sliding_window = fields.has("sliding_window") ? 0 : 4096;
    if (fields.find("sliding_window") != nullptr) {
      config.sliding_window = fields.size("sliding_window", kMaxPositions);
    }
  } else if (fields.find("sliding_window") != nullptr) {
    fields.refuse("sliding_window", "LlamaForCausalLM has none");
  }
}

// transformers 5.x may list the kind of each layer; here all are of one kind.
void check_layer_types(const Json& json, Fields& fields, const ModelConfig& config) {
  if (fields.find("layer_types") == nullptr) return;
  const std::string_view kind = config.sliding_window > 0 ? "sliding_attention" : "full_attention";
  const Json::Array* types = json.find("layer_types")->as_array();
  bool uniform = types != nullptr;
  for (std::size_t i = 0; uniform && i < types->size(); ++i) {
    const std::string* type = (*types)[i].as_string();
    uniform = type != nullptr && *type == kind;
  }
  if (!uniform) {
    fields.refuse("layer_types",
                  "must be a list of " + in_quotes(kind) + " for this sliding_window");
  }
}

void read_eos(const Json& json, Fields& fields, ModelConfig& config) {
  if (fields.find("eos_token_id") == nullptr) return;
  const Json& value = *json.find("eos_token_id");
  const Json::Array single{value};
  const Json::Array* ids = value.as_array() != nullptr ? value.as_array() : &single;
  for (const Json& id : *ids) {
    const std::int64_t* integer = id.as_integer();
    if (integer == nullptr || *integer < 0 || *integer >= config.vocab) {
      return fields.refuse("eos_token_id",
                           "holding " + id.describe() + "; must be null, an id from 0 to " +
                               std::to_string(config.vocab - 1) + " or a list of those");
    }
    config.eos_ids.push_back(static_cast<std::int32_t>(*integer));
  }
}

Status read_rope_type(const Json& object, std::string_view name, RopeConfig& rope) {
  Fields fields(object, std::string(name) + ".");
  for (const Json::Member& member : *object.as_object()) {
    static constexpr std::string_view kKnown[] = {"rope_type",
                                                  "type",
                                                  "rope_theta",
                                                  "factor",
                                                  "low_freq_factor",
                                                  "high_freq_factor",
                                                  "original_max_position_embeddings"};
    bool known = member.second.is_null();
    for (const std::string_view field : kKnown) known |= member.first == field;
    if (member.first == "partial_rotary_factor" &&
        fields.number(member.first, 0.0, 1.0, 1.0) == 1.0) {
      known = true;
    }
    if (!known) fields.refuse(member.first, "this field is not supported");
  }
  // Old files say "type"; where both are given transformers reads "rope_type".
  const std::string_view field = fields.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string type = fields.text(field, "default");
  rope.theta = fields.number("rope_theta", 1.0, kMaxTheta, rope.theta);
  if (type == "linear") {
    rope.type = RopeType::kLinear;
    rope.factor = fields.number("factor", 1.0, kMaxFactor);
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    rope.factor = fields.number("factor", 1.0, kMaxFactor);
    rope.low_freq_factor = fields.number("low_freq_factor", 0.0, kMaxFactor);
    rope.high_freq_factor = fields.number("high_freq_factor", 0.0, kMaxFactor);
    rope.original_max_positions =
        fields.number("original_max_position_embeddings", 1.0, kMaxPositions);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      fields.refuse("high_freq_factor", "must be greater than low_freq_factor");
    }
  } else if (type != "default") {
    fields.refuse(field, "supported are \"default\", \"linear\" and \"llama3\"");
  }
  return fields.status();
}

Status read_rope(Fields& fields, RopeConfig& rope) {
  rope.theta = fields.number("rope_theta", 1.0, kMaxTheta, rope.theta);
  const Json* scaling = fields.find("rope_scaling");
  const Json* parameters = fields.find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr) {
    fields.refuse("rope_scaling", "rope_parameters is given too; only one of them can be meant");
  }
  const std::string_view name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* object = parameters != nullptr ? parameters : scaling;
  if (object == nullptr || !fields.status().ok()) return fields.status();
  if (object->as_object() == nullptr) {
    fields.refuse(name, "must be null or an object");
    return fields.status();
  }
  const double theta = rope.theta;
  KVFOLIO_RETURN_IF_ERROR(read_rope_type(*object, name, rope));
  if (fields.find("rope_theta") != nullptr && rope.theta != theta) {
    fields.refuse("rope_theta", std::string(name) + ".rope_theta says another value");
  }
  return fields.status();
}

Result<ModelConfig> config_from(const Json& json) {
  if (json.as_object() == nullptr) {
    return Status(ErrorCode::kInvalidArgument, "is " + json.describe() + ", must be an object");
  }
  Fields fields(json, "");
  ModelConfig config;
  read_architecture(json, fields, config);
  refuse_unsupported(fields);
  read_sizes(fields, config);
  check_layer_types(json, fields, config);
  read_eos(json, fields, config);
  KVFOLIO_RETURN_IF_ERROR(fields.status());
  KVFOLIO_RETURN_IF_ERROR(read_rope(fields, config.rope));
  return config;
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text, std::string_view name) {
  Result<Json> json = parse_json(text);
  Result<ModelConfig> config = json ? config_from(*json) : std::move(json).error();
  if (config) return config;
  return Status(config.error().code(), std::string(name) + ": " + config.error().message());
}

Result<ModelConfig> read_config(const std::string& path) {
  Result<std::string> text = read_text_file(path, kMaxConfigBytes);
  if (!text) return std::move(text).error();
  return parse_config(*text, path);
}

std::vector<double> rope_inverse_frequencies(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  std::vector<double> frequencies;
  for (std::int32_t i = 0; i < config.head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / config.head_dim);
    if (rope.type == RopeType::kLinear) {
      frequency /= rope.factor;
    } else if (rope.type == RopeType::kLlama3) {
      // Turns within the original context: many are kept, few are stretched by the factor, between
      // the two the frequency moves linearly from one to the other.
      const double turns = rope.original_max_positions * frequency / (2.0 * std::numbers::pi);
      const double kept = std::clamp(
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
          1.0);
      frequency = kept * frequency + (1.0 - kept) * frequency / rope.factor;
    }
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace kvfolio::llama
