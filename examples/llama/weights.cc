// SPDX-License-Identifier: Apache-2.0
#include "weights.h"

#include <algorithm>
#include <new>
#include <unordered_set>
#include <utility>

#include "json.h"
#include "tensor_files.h"

namespace kvfolio::llama {
namespace {

using Shape = std::vector<std::int64_t>;

struct TensorUse {
  std::string name;
  Shape shape;
};

// Where the rows of a tensor go: a packed matrix from row `first` on, or a plain array.
class Loader {
 public:
  explicit Loader(const TensorFiles& files) : files_(&files) {}

  Status into(const TensorUse& tensor, PackedMatrix& matrix, std::int32_t first) const {
    return files_->read(tensor.name, tensor.shape, [&](std::int32_t row, const float* values) {
      matrix.set_row(first + row, values);
    });
  }

  Status into(const TensorUse& tensor, std::vector<float>& array) const {
    const std::int64_t width = tensor.shape.back();
    const std::int64_t num_rows = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
    array.resize(static_cast<std::size_t>(num_rows * width));
    return files_->read(tensor.name, tensor.shape, [&](std::int32_t row, const float* values) {
      std::copy_n(values, width, array.begin() + row * width);
    });
  }

 private:
  const TensorFiles* files_;
};

// Names and shapes of a checkpoint, as both model families of transformers write them.
struct LayerTensors {
  TensorUse attention_norm, q, k, v, output, mlp_norm, gate, up, down;

  LayerTensors(const ModelConfig& c, std::int32_t layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::int64_t q_width = std::int64_t{c.num_q_heads} * c.head_dim;
    const std::int64_t kv_width = std::int64_t{c.num_kv_heads} * c.head_dim;
    attention_norm = {prefix + "input_layernorm.weight", {c.hidden}};
    q = {prefix + "self_attn.q_proj.weight", {q_width, c.hidden}};
    k = {prefix + "self_attn.k_proj.weight", {kv_width, c.hidden}};
    v = {prefix + "self_attn.v_proj.weight", {kv_width, c.hidden}};
    output = {prefix + "self_attn.o_proj.weight", {c.hidden, q_width}};
    mlp_norm = {prefix + "post_attention_layernorm.weight", {c.hidden}};
    gate = {prefix + "mlp.gate_proj.weight", {c.intermediate, c.hidden}};
    up = {prefix + "mlp.up_proj.weight", {c.intermediate, c.hidden}};
    down = {prefix + "mlp.down_proj.weight", {c.hidden, c.intermediate}};
  }
  [[nodiscard]] std::vector<const TensorUse*> all() const {
    return {&attention_norm, &q, &k, &v, &output, &mlp_norm, &gate, &up, &down};
  }
};

struct OuterTensors {
  TensorUse embedding, final_norm, output;

  explicit OuterTensors(const ModelConfig& c)
      : embedding{"model.embed_tokens.weight", {c.vocab, c.hidden}},
        final_norm{"model.norm.weight", {c.hidden}},
        output{"lm_head.weight", {c.vocab, c.hidden}} {}
};

// Every tensor that the config asks for is there with its shape, and nothing else: a bias or an
// adapter that were ignored would make another model. Before anything is allocated.
Status check_tensors(const ModelConfig& config, const TensorFiles& files) {
  std::unordered_set<std::string> known;
  const auto check = [&](const TensorUse& tensor) {
    known.insert(tensor.name);
    return files.check(tensor.name, tensor.shape);
  };
  const OuterTensors outer(config);
  KVFOLIO_RETURN_IF_ERROR(check(outer.embedding));
  KVFOLIO_RETURN_IF_ERROR(check(outer.final_norm));
  if (config.tied_output) {
    known.insert(outer.output.name);  // a copy that some files carry
  } else {
    KVFOLIO_RETURN_IF_ERROR(check(outer.output));
  }
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerTensors tensors(config, layer);
    for (const TensorUse* tensor : tensors.all()) KVFOLIO_RETURN_IF_ERROR(check(*tensor));
  }
  for (const auto& [name, info] : files.tensors()) {
    // Old files carry the table of RoPE's frequencies; the config says the same.
    if (known.contains(name) || name.ends_with(".rotary_emb.inv_freq")) continue;
    return Status(ErrorCode::kUnsupported, files.name() + ": tensor " + in_quotes(name) +
                                               " is not part of a " + config.architecture +
                                               " of this config");
  }
  return Status();
}

Status load_layer(const ModelConfig& c, std::int32_t index, MatmulTarget target, const Loader& load,
                  LayerWeights& layer) {
  const LayerTensors tensors(c, index);
  const std::int32_t q_width = c.num_q_heads * c.head_dim;
  const std::int32_t kv_width = c.num_kv_heads * c.head_dim;
  layer.qkv = PackedMatrix(q_width + 2 * kv_width, c.hidden, target);
  layer.output = PackedMatrix(c.hidden, q_width, target);
  layer.gate_up = PackedMatrix(2 * c.intermediate, c.hidden, target);
  layer.down = PackedMatrix(c.hidden, c.intermediate, target);
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.attention_norm, layer.attention_norm));
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.q, layer.qkv, 0));
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.k, layer.qkv, q_width));
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.v, layer.qkv, q_width + kv_width));
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.output, layer.output, 0));
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.mlp_norm, layer.mlp_norm));
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.gate, layer.gate_up, 0));
  KVFOLIO_RETURN_IF_ERROR(load.into(tensors.up, layer.gate_up, c.intermediate));
  return load.into(tensors.down, layer.down, 0);
}

Status load_all(const TensorFiles& files, ModelWeights& weights) {
  const ModelConfig& config = weights.config;
  const Loader load(files);
  const OuterTensors outer(config);
  KVFOLIO_RETURN_IF_ERROR(load.into(outer.embedding, weights.embedding));
  KVFOLIO_RETURN_IF_ERROR(load.into(outer.final_norm, weights.final_norm));
  weights.logits = PackedMatrix(config.vocab, config.hidden, weights.target);
  KVFOLIO_RETURN_IF_ERROR(
      load.into(config.tied_output ? outer.embedding : outer.output, weights.logits, 0));
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    KVFOLIO_RETURN_IF_ERROR(
        load_layer(config, layer, weights.target, load, weights.layers.emplace_back()));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<ModelWeights>> load_weights(const std::string& path, MatmulTarget target) {
  Result<ModelConfig> config = read_config(path + "/config.json");
  if (!config) return std::move(config).error();
  Result<TensorFiles> files = TensorFiles::open(path);
  if (!files) return std::move(files).error();
  KVFOLIO_RETURN_IF_ERROR(check_tensors(*config, *files));
  try {
    auto weights = std::make_unique<ModelWeights>();
    weights->config = std::move(*config);
    weights->target = resolve(target);
    KVFOLIO_RETURN_IF_ERROR(load_all(*files, *weights));
    return weights;
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::kOutOfMemory, path + ": no memory for the weights");
  }
}

}  // namespace kvfolio::llama
