// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kvfolio/view.h"
#include "test_checkpoint.h"

namespace kvfolio::llama {
namespace {

using ::testing::HasSubstr;

// Stands in for a cache: out is q, so that a token's row depends on nothing but the token, and
// every call is counted. (tests/command/test_forward.py compares with real attention.)
class EchoAttention : public Attention {
 public:
  Status layer(std::int32_t layer, const ConstRowsView& q, const ConstRowsView& k,
               const ConstRowsView& v, const RowsView& out) override {
    layers.push_back(layer);
    EXPECT_EQ(k.num_tokens, q.num_tokens);
    EXPECT_EQ(v.num_heads, 1);
    for (std::int32_t token = 0; token < q.num_tokens; ++token) {
      for (std::int32_t head = 0; head < q.num_heads; ++head) {
        std::memcpy(out.at(token, head), q.at(token, head),
                    static_cast<std::size_t>(q.head_dim) * sizeof(float));
      }
    }
    return layer == failing_layer ? Status(ErrorCode::kAborted, "stop") : Status();
  }
  std::vector<std::int32_t> layers;
  std::int32_t failing_layer = -1;
};

class ModelTest : public ::testing::Test {
 protected:
  void SetUp() override { write(kTinyConfig, tiny_tensors()); }

  void write(std::string_view config, const std::vector<TestTensor>& tensors) {
    folder_.write("config.json", config);
    folder_.write("model.safetensors", safetensors_file(tensors));
  }
  Model load(MatmulTarget target = MatmulTarget::kAuto) {
    Result<Model> model = Model::load(folder_.path(), {.target = target});
    KVFOLIO_CHECK(model.has_value());
    return std::move(*model);
  }
  std::string load_error() {
    Result<Model> model = Model::load(folder_.path());
    return model ? "no error" : model.error().message();
  }
  std::vector<float> logits_of(const Model& model, const std::vector<std::int32_t>& tokens,
                               const std::vector<std::int32_t>& rows, std::int32_t num_threads) {
    std::vector<std::int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(num_threads);
    Workspace workspace(*pool);
    std::vector<float> logits(rows.size() * 10);
    EchoAttention attention;
    const Status status =
        model.forward({.tokens = tokens, .positions = positions, .logit_rows = rows}, attention,
                      workspace, logits);
    EXPECT_TRUE(status.ok()) << status.message();
    return logits;
  }

  TempFolder folder_;
};

TEST_F(ModelTest, ARowsLogitsAreTheSameBitsInAnyBatch) {
  for (const MatmulTarget target :
       {MatmulTarget::kBaseline, MatmulTarget::kAvx2, MatmulTarget::kAvx512}) {
    if (!is_available(target)) continue;
    const Model model = load(target);
    EXPECT_EQ(model.target(), target);
    std::vector<std::int32_t> tokens(33);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<std::int32_t>(i * 7 % 10);
    std::vector<std::int32_t> rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    const std::vector<float> whole = logits_of(model, tokens, rows, 1);
    EXPECT_EQ(whole, logits_of(model, tokens, rows, 3));
    for (const std::int32_t row : {0, 5, 32}) {
      // Alone among the wanted rows, and as the last one of a shorter batch.
      const std::vector<std::int32_t> prefix(tokens.begin(), tokens.begin() + row + 1);
      const std::vector<float> expected(whole.begin() + row * 10, whole.begin() + row * 10 + 10);
      EXPECT_EQ(expected, logits_of(model, tokens, {row}, 1));
      EXPECT_EQ(expected, logits_of(model, prefix, {row}, 2));
    }
  }
}

TEST_F(ModelTest, LogitRowsComeInTheOrderAskedFor) {
  const Model model = load();
  const std::vector<float> whole = logits_of(model, {4, 5, 6}, {0, 1, 2}, 1);
  const std::vector<float> picked = logits_of(model, {4, 5, 6}, {2, 0, 2, 1, 0}, 1);
  const std::size_t order[] = {2, 0, 2, 1, 0};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(std::equal(picked.begin() + static_cast<std::ptrdiff_t>(i) * 10,
                           picked.begin() + static_cast<std::ptrdiff_t>(i) * 10 + 10,
                           whole.begin() + static_cast<std::ptrdiff_t>(order[i]) * 10));
  }
}

TEST_F(ModelTest, AttentionIsCalledOncePerLayerEvenWhenNoLogitsAreWanted) {
  const Model model = load();
  const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(1);
  Workspace workspace(*pool);
  EchoAttention attention;
  const std::int32_t tokens[] = {1, 2};
  const std::int32_t positions[] = {0, 1};
  ASSERT_TRUE(model
                  .forward({.tokens = tokens, .positions = positions, .logit_rows = {}}, attention,
                           workspace, {})
                  .ok());
  EXPECT_THAT(attention.layers, ::testing::ElementsAre(0, 1));
}

TEST_F(ModelTest, WrongBatchesAreRefusedBeforeAttentionIsCalled) {
  const Model model = load();
  const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(1);
  Workspace workspace(*pool);
  EchoAttention attention;
  using Ids = std::vector<std::int32_t>;
  const auto error_of = [&](const Ids& tokens, const Ids& positions, const Ids& rows,
                            std::size_t num_logits) {
    std::vector<float> logits(num_logits);
    return model
        .forward({.tokens = tokens, .positions = positions, .logit_rows = rows}, attention,
                 workspace, logits)
        .message();
  };
  EXPECT_THAT(error_of({10}, {0}, {0}, 10), HasSubstr("tokens[0] is 10, must be in [0, 10)"));
  EXPECT_THAT(error_of({1, -1}, {0, 1}, {0}, 10), HasSubstr("tokens[1] is -1"));
  EXPECT_THAT(error_of({1}, {64}, {0}, 10), HasSubstr("positions[0] is 64, must be in [0, 64)"));
  EXPECT_THAT(error_of({1}, {0}, {1}, 10), HasSubstr("logit_rows[0] is 1, must be in [0, 1)"));
  EXPECT_THAT(error_of({1}, {0, 1}, {0}, 10), HasSubstr("a batch of 1 tokens has 2 positions"));
  EXPECT_THAT(error_of({1}, {0}, {0}, 9), HasSubstr("room for 9 logits, must be 10"));
  EXPECT_TRUE(attention.layers.empty());
  attention.failing_layer = 1;
  EXPECT_EQ(error_of({1}, {0}, {0}, 10), "stop");
}

TEST_F(ModelTest, CheckpointsThatDoNotFitTheirConfigAreRefusedByTensor) {
  for (std::size_t i = 0; i < tiny_tensors().size(); ++i) {
    std::vector<TestTensor> tensors = tiny_tensors();
    const std::string name = tensors[i].name;
    tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(i));
    write(kTinyConfig, tensors);
    EXPECT_THAT(load_error(), HasSubstr("tensor \"" + name + "\" is missing"));

    tensors = tiny_tensors();
    tensors[i].values[0] = std::nanf("");
    write(kTinyConfig, tensors);
    EXPECT_THAT(load_error(), HasSubstr("tensor \"" + name + "\" has a value that is not finite"));

    tensors = tiny_tensors();
    tensors[i].shape = "[" + std::to_string(tensors[i].values.size()) + ",1]";
    write(kTinyConfig, tensors);
    EXPECT_THAT(load_error(), HasSubstr("tensor \"" + name + "\" has shape"));
  }
  std::vector<TestTensor> tensors = tiny_tensors();
  tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "[1]", {0.0f}});
  write(kTinyConfig, tensors);
  EXPECT_THAT(load_error(), HasSubstr("\"model.layers.0.self_attn.q_proj.bias\" is not part of"));
  tensors.back().name = "model.layers.0.self_attn.rotary_emb.inv_freq";
  write(kTinyConfig, tensors);
  EXPECT_EQ(load_error(), "no error");
}

TEST_F(ModelTest, HugeSizesInTheConfigAllocateNothing) {
  std::string config(kTinyConfig);
  config.replace(config.find("\"vocab_size\": 10"), 16, "\"vocab_size\": 16777216");
  write(config, tiny_tensors());
  EXPECT_THAT(load_error(), HasSubstr("the config asks for [16777216, 8]"));
}

TEST_F(ModelTest, WeightsThatOverflowAreAnErrorAndNotNaN) {
  std::vector<TestTensor> tensors = tiny_tensors();
  for (TestTensor& tensor : tensors) {
    for (float& value : tensor.values) value *= 1e30f;
  }
  write(kTinyConfig, tensors);
  const Model model = load();
  const std::unique_ptr<ThreadPool> pool = *ThreadPool::create(1);
  Workspace workspace(*pool);
  EchoAttention attention;
  const std::int32_t zero[] = {0};
  std::vector<float> logits(10);
  EXPECT_THAT(model
                  .forward({.tokens = zero, .positions = zero, .logit_rows = zero}, attention,
                           workspace, logits)
                  .message(),
              HasSubstr("is not finite: the weights overflow f32"));
}

}  // namespace
}  // namespace kvfolio::llama
