// SPDX-License-Identifier: Apache-2.0

// The example engine over a device that is none: a driver of the tests, whose kernels are the text
// of the real ones, run on the CPU. Tokens are those of the CPU; a row has the same bits over the
// blocks of a cache, whatever its size and what it found, and over the twin's plain arrays. Heads
// of 64 go through the text of the tile kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/library/host_kernels.h"
#include "cuda/library/loaded.h"
#include "device_compute.h"
#include "engine.h"
#include "host_compute.h"
#include "pool_size.h"
#include "test_checkpoint.h"

namespace kvfolio::llama {
namespace {

using cuda::FakeDriver;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;

constexpr int kImage = 0;
constexpr cuda::KernelImage kImages[] = {{"moves", &kImage, 4},
                                         {"attend", &kImage, 4},
                                         {"attend_bf16_64", &kImage, 4},
                                         {"attend_int8_64", &kImage, 4}};

// What an engine gave: of each sample its tokens and the logits that chose them.
struct Answers {
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<float>> logits;
  std::int64_t reused = 0;
};

class DeviceComputeTest : public testing::Test {
 protected:
  void SetUp() override {
    // Heads of 8, which is the least that kernels take.
    std::string config(kTinyConfig);
    config.replace(config.find("\"hidden_size\": 8"), 16, "\"hidden_size\": 16");
    folder_.write("config.json", config);
    folder_.write("model.safetensors", safetensors_file(tiny_tensors(16)));
    load();
    fake_.minor = 0;
    fake_.multiprocessors = 2;
    fake_.touchable = true;
    fake_.kernel = cuda::either(
        cuda::moves_on_host(),
        cuda::either(cuda::general_attention_on_host(), cuda::tile_attention_on_host()));
    device_ = *cuda::Device::open(FakeDriver::calls(), 0);
    kernels_ = *cuda::load_kernels(device_, {}, kImages);
  }

  void load() {
    Result<Model> model = Model::load(folder_.path());
    ASSERT_TRUE(model.has_value()) << model.error().message();
    model_.emplace(*std::move(model));
  }
  // Four query heads of 64 over one KV head: a shape of tile kernels.
  void load_heads_of_64() {
    std::string config(kTinyConfig);
    const std::string heads = R"("num_attention_heads": 2)";
    config.replace(config.find(heads), heads.size(), R"("num_attention_heads": 4, "head_dim": 64)");
    folder_.write("config.json", config);
    folder_.write("model.safetensors", safetensors_file(tiny_tensors(8, 256, 64)));
    load();
  }

  std::unique_ptr<DeviceCompute> compute(DType dtype = DType::kF32) {
    Result<std::unique_ptr<DeviceCompute>> made =
        DeviceCompute::create(device_, kernels_, model_->config(), dtype);
    KVFOLIO_CHECK(made.has_value());
    return *std::move(made);
  }

  Answers run(CacheCompute& compute, std::int32_t block_size, bool contiguous = false,
              DType dtype = DType::kF32) {
    CacheSpec spec = cache_spec(model_->config(), {.block_size = block_size, .dtype = dtype});
    for (GroupSpec& group : spec.groups) group.num_blocks = 200 / block_size + 1;
    Result<std::unique_ptr<Engine>> engine = Engine::create(*model_, spec,
                                                            {.max_batch_tokens = 16,
                                                             .max_seqs = 3,
                                                             .max_tokens = 64,
                                                             .contiguous = contiguous,
                                                             .keep_logits = LogitRows::kChosen},
                                                            compute, *pool_);
    EXPECT_TRUE(engine.has_value()) << engine.error().message();
    std::vector<Request> requests(4);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].id = std::to_string(i);
      // The last two begin as the first two do.
      for (std::int32_t t = 0; t < 19; ++t) {
        requests[i].prompt.push_back((t * t + static_cast<std::int32_t>(i % 2)) % 10);
      }
      requests[i].prompt.push_back(static_cast<std::int32_t>(i));
      requests[i].max_new_tokens = 6;
    }
    requests[0].samples = 2;
    requests[0].temperature = 1.0;
    std::map<std::string, Answers> found;
    Listener listener;
    listener.on_finished = [&](FinishedSample&& sample) {
      Answers& one = found[sample.request.id + "." + std::to_string(sample.sample)];
      one.tokens.push_back(sample.token_ids);
      for (auto step = sample.logits; step != nullptr; step = step->before) {
        one.logits.push_back(step->row);
      }
    };
    const Result<RunStats> stats = (*engine)->run(requests, std::move(listener));
    EXPECT_TRUE(stats.has_value()) << stats.error().message();
    Answers all;
    if (!stats) return all;
    for (auto& [name, one] : found) {
      all.tokens.insert(all.tokens.end(), one.tokens.begin(), one.tokens.end());
      all.logits.insert(all.logits.end(), one.logits.begin(), one.logits.end());
    }
    all.reused = stats->scheduler.tokens_reused;
    return all;
  }

  static bool same_bits(const Answers& a, const Answers& b) {
    if (a.tokens != b.tokens || a.logits.size() != b.logits.size()) return false;
    for (std::size_t i = 0; i < a.logits.size(); ++i) {
      if (a.logits[i].size() != b.logits[i].size()) return false;
      const std::size_t bytes = a.logits[i].size() * sizeof(float);
      if (std::memcmp(a.logits[i].data(), b.logits[i].data(), bytes) != 0) return false;
    }
    return !a.logits.empty();
  }

  TempFolder folder_;
  std::optional<Model> model_;
  std::unique_ptr<ThreadPool> pool_ = *ThreadPool::create(1);
  FakeDriver fake_;
  std::shared_ptr<cuda::Device> device_;
  std::shared_ptr<cuda::Kernels> kernels_;
};

TEST_F(DeviceComputeTest, TokensAreThoseOfTheCpu) {
  HostCompute host(*pool_, KernelTarget::kReference);
  const Answers cpu = run(host, 4);
  const std::unique_ptr<DeviceCompute> device = compute();
  const Answers here = run(*device, 4);
  EXPECT_EQ(here.tokens, cpu.tokens);
  EXPECT_EQ(here.tokens.size(), 5u);
  EXPECT_GT(here.reused, 0);
}

TEST_F(DeviceComputeTest, RowsHaveTheSameBitsInBlocksOfAnySizeAndInTheTwin) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kInt8, DType::kE4M3}) {
    const std::unique_ptr<DeviceCompute> device = compute(dtype);
    const Answers twin = run(*device, 16, true, dtype);
    EXPECT_EQ(twin.reused, 0);
    for (const std::int32_t block_size : {1, 4, 16}) {
      const Answers paged = run(*device, block_size, false, dtype);
      EXPECT_TRUE(same_bits(paged, twin)) << to_string(dtype) << ", blocks of " << block_size;
      EXPECT_GT(paged.reused, 0);
    }
  }
}

// On a card of two multiprocessors, so that few sequences are too many for a stream at times.
TEST_F(DeviceComputeTest, TileKernelsGiveRowsTheSameBitsInBlocksOfAnySizeAfterHitsAndInTheTwin) {
  load_heads_of_64();
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    const std::unique_ptr<DeviceCompute> device = compute(dtype);
    const Answers twin = run(*device, 16, true, dtype);
    EXPECT_THAT(device->take_kernels(), Contains("cuda-prefill"));
    for (const std::int32_t block_size : {1, 4, 16}) {
      const Answers paged = run(*device, block_size, false, dtype);
      EXPECT_TRUE(same_bits(paged, twin)) << to_string(dtype) << ", blocks of " << block_size;
      EXPECT_GT(paged.reused, 0);
      const std::vector<std::string> kernels = device->take_kernels();
      EXPECT_THAT(kernels, IsSupersetOf({"cuda-node", "cuda-prefill"}));
      EXPECT_THAT(kernels, Not(Contains("cuda-general")));
      EXPECT_EQ(std::count(kernels.begin(), kernels.end(), "cuda-stream"),
                dtype == DType::kBF16 ? 1 : 0);
    }
    EXPECT_THAT(device->take_kernels(), IsEmpty());
  }
}

TEST_F(DeviceComputeTest, QueriesAreRoundedWhereTileKernelsTakeThem) {
  for (const std::int32_t head_dim : {64, 128, 256}) {
    EXPECT_EQ(query_dtype(head_dim, DType::kF16), DType::kF16);
    EXPECT_EQ(query_dtype(head_dim, DType::kBF16), DType::kBF16);
    EXPECT_EQ(query_dtype(head_dim, DType::kInt8), DType::kBF16);
    EXPECT_EQ(query_dtype(head_dim, DType::kE4M3), DType::kBF16);
    EXPECT_EQ(query_dtype(head_dim, DType::kF32), DType::kF32);
  }
  EXPECT_EQ(query_dtype(32, DType::kBF16), DType::kF32);
  EXPECT_EQ(query_dtype(80, DType::kInt8), DType::kF32);
}

TEST_F(DeviceComputeTest, ACacheOfF32GoesThroughTheGeneralKernelAtAnyHeadDim) {
  load_heads_of_64();
  const std::unique_ptr<DeviceCompute> device = compute();
  run(*device, 16);
  EXPECT_THAT(device->take_kernels(), ElementsAre("cuda-general"));
  EXPECT_THAT(device->name(), EndsWith("-r" + std::to_string(cuda::kKernelRevision)));
  EXPECT_THAT(compute(DType::kInt8)->name(), EndsWith("-qbf16"));
  EXPECT_THAT(compute(DType::kF16)->name(), EndsWith("-qf16"));
}

TEST_F(DeviceComputeTest, GivesBackWhatItTook) {
  run(*compute(), 4);  // what the kernels load at their first use stays theirs
  const std::size_t before = fake_.open();
  {
    const std::unique_ptr<DeviceCompute> device = compute();
    run(*device, 4);
    EXPECT_GT(fake_.open(), before);
  }
  EXPECT_EQ(fake_.open(), before);
}

TEST_F(DeviceComputeTest, ItsNameIsTheArchitectureAndTheRevisionOfTheKernels) {
  EXPECT_EQ(compute()->name(), device_->target() + "-r" + std::to_string(cuda::kKernelRevision));
  EXPECT_THAT(compute()->name(), HasSubstr("cuda-sm"));
}

TEST_F(DeviceComputeTest, WhatNoKernelTakesIsRefusedByName) {
  ModelConfig config = model_->config();
  EXPECT_THAT(DeviceCompute::create(device_, kernels_, config, DType::kF64).error().message(),
              HasSubstr("f64"));
  config.head_dim = 20;
  EXPECT_EQ(DeviceCompute::create(device_, kernels_, config, DType::kF32).error().message(),
            "head_dim 20, allowed on a device: multiples of 8 up to 576");
}

// Each call of the driver fails in turn, those of the ends, too: an error is said, and all memory
// comes back. A call that gives memory back tells no caller; what it was to give back is lost.
TEST_F(DeviceComputeTest, EveryFailureOfTheDriverIsAnError) {
  constexpr std::size_t kMostLost = 4;  // a DeviceMemory has its staging, two events and a stream
  int answered = 0;                     // calls until the answer was there
  const auto run_once = [&]() -> Status {
    Result<std::unique_ptr<DeviceCompute>> made =
        DeviceCompute::create(device_, kernels_, model_->config(), DType::kF32);
    Status status = made ? Status() : Status(made.error());
    CacheSpec spec = cache_spec(model_->config(), {.block_size = 4, .dtype = DType::kF32});
    for (GroupSpec& group : spec.groups) group.num_blocks = 8;
    std::unique_ptr<Engine> engine;
    if (made) {
      Result<std::unique_ptr<Engine>> there =
          Engine::create(*model_, spec, {.max_seqs = 1, .max_tokens = 16}, **made, *pool_);
      if (there) {
        engine = *std::move(there);
      } else {
        status = there.error();
      }
    }
    if (engine != nullptr) {
      Request request;
      request.id = "one";
      request.prompt = {1, 2, 3, 4, 5};
      request.max_new_tokens = 2;
      const Result<RunStats> stats = engine->run({&request, 1}, {});
      if (!stats) status = stats.error();
    }
    answered = fake_.count;
    return status;
  };
  run(*compute(), 4);
  std::size_t before = fake_.open();
  int at = 0, given_back = 0;
  Status status;
  do {
    fake_.count = 0;
    fake_.fail_at = ++at;
    status = run_once();
    fake_.fail_at = 0;
    if (fake_.count < at) break;
    const bool gives_back = at > answered;
    EXPECT_TRUE(!status.ok() || gives_back) << "call " << at << ", " << fake_.failed;
    EXPECT_LE(fake_.open(), before + (gives_back ? kMostLost : 0)) << at << ", " << fake_.failed;
    before = fake_.open();
    if (gives_back) ++given_back;
  } while (at < 1 << 14);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GT(at, 400);
  EXPECT_GT(given_back, 10);
}

}  // namespace
}  // namespace kvfolio::llama
