// SPDX-License-Identifier: Apache-2.0

// attend() through its public header, over a driver that is none: its kernels are the text of the
// real ones on the model of a GPU (kernel_names_test.cc). Rows are near those of the CPU, and a
// plan serves every layer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include "base/text.h"
#include "cuda/fake_driver.h"
#include "cuda/library/host_kernels.h"
#include "cuda/library/loaded.h"
#include "kvfolio/cuda.hpp"
#include "kvfolio/storage.h"

namespace kvfolio::cuda {
namespace {

using testing::HasSubstr;

constexpr int kBytes[5] = {};
constexpr KernelImage kImages[] = {{"moves", &kBytes[0], 4},
                                   {"attend", &kBytes[1], 4},
                                   {"attend_bf16_64", &kBytes[2], 4},
                                   {"attend_sm80", &kBytes[3], 4},
                                   {"attend_sm80_bf16_64", &kBytes[4], 4}};

// The same cache and batch on the host and on the device.
class Twins {
 public:
  // extend: query tokens of the second sequence.
  Twins(FakeDriver& fake, DType dtype, std::int32_t head_dim, DType rows, std::int32_t extend = 5) {
    if (fake.minor == 5) fake.play(9, 0);
    fake.touchable = true;
    fake.kernel = model_kernels();
    device = open_device();
    kernels = *load_kernels(device, {}, kImages);
    memory = *cuda::DeviceMemory::create(device);
    stream = *Stream::create(device);
    const GroupSpec group{.num_layers = 2,
                          .num_kv_heads = 2,
                          .head_dim_k = head_dim,
                          .head_dim_v = head_dim,
                          .block_size = 16,
                          .dtype = dtype,
                          .num_blocks = 100};
    const CacheSpec spec{.groups = {group}};
    host_cache_.emplace(*KVStorage::create(spec));
    device_cache_.emplace(*KVStorage::create(spec, memory.get()));
    fill_cache();
    const std::int32_t q_heads = 4;
    query_start_ = {0, 1, 1 + extend};
    kv_lens_ = {1200, 37};
    stride_ = 75;
    table_.assign(150, -1);
    for (std::int32_t i = 0; i < 75; ++i) table_[static_cast<std::size_t>(i)] = 99 - i;
    for (std::size_t i = 0; i < 3; ++i) table_[75 + i] = static_cast<std::int32_t>(i) + 4;
    const auto elements =
        static_cast<std::size_t>((1 + extend) * q_heads) * static_cast<std::size_t>(head_dim);
    q_.resize(elements * static_cast<std::size_t>(dtype_bytes(rows)));
    for (std::size_t i = 0; i < elements; ++i) {
      store(q_.data(), i, std::sin(static_cast<float>(i) * 0.7f), rows);
    }
    const auto at = [&](std::byte* data, DType type) {
      return contiguous_rows(data, 1 + extend, q_heads, head_dim, type);
    };
    out_.resize(elements * 4);
    host.cache = *host_cache_->view(GroupId(0));
    host.batch = {.query_start = query_start_,
                  .kv_lens = kv_lens_,
                  .block_table = table_,
                  .block_table_stride = stride_};
    host.params = {.scale = 1.0 / std::sqrt(static_cast<double>(head_dim))};
    host.q = at(q_.data(), rows);
    host.out = at(out_.data(), DType::kF32);
    host.target = KernelTarget::kReference;
    call.cache = *device_cache_->view(GroupId(0));
    call.batch = host.batch;
    call.batch.block_table = {on_device(table_), table_.size()};
    call.query_start = on_device(query_start_);
    call.kv_lens = on_device(kv_lens_);
    call.params = host.params;
    call.q = at(on_device(q_), rows);
    call.out = at(*memory->allocate(static_cast<std::int64_t>(out_.size())), DType::kF32);
  }

  // Largest relative error of the device's rows of a layer.
  double error_of_layer(std::int32_t layer, const AttendPlan& plan) {
    host.layer = call.layer = layer;
    std::vector<std::byte> workspace(static_cast<std::size_t>(
        *attention_workspace_bytes(host.cache, 4, 1200, KernelTarget::kReference)));
    host.workspace = workspace;
    KVFOLIO_CHECK(kvfolio::attend(host).ok());
    auto pinned = *PinnedMemory::allocate(device, 1 << 16);
    std::byte* const image = *memory->allocate(1 << 16);
    std::byte* const space = *memory->allocate(plan.workspace_bytes() + 16);
    EXPECT_EQ(
        upload(*kernels, plan, {pinned.data(), 1 << 16}, image, space, stream.handle()).message(),
        "ok");
    EXPECT_EQ(attend(*kernels, call, plan, image, space, stream.handle()).message(), "ok");
    EXPECT_TRUE(stream.synchronize().ok());
    got.resize(out_.size() / 4);
    std::vector<float> want(got.size());
    const CopyRun run{reinterpret_cast<std::byte*>(got.data()), call.out.data,
                      static_cast<std::int64_t>(out_.size())};
    KVFOLIO_CHECK(memory->copy_out({&run, 1}));
    std::memcpy(want.data(), out_.data(), out_.size());
    double num = 0, den = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      num += std::pow(static_cast<double>(got[i] - want[i]), 2);
      den += std::pow(static_cast<double>(want[i]), 2);
    }
    return std::sqrt(num / den);
  }

  std::shared_ptr<Device> device;
  std::shared_ptr<Kernels> kernels;
  std::unique_ptr<cuda::DeviceMemory> memory;
  Stream stream;
  AttentionArgs host;
  DeviceAttention call;
  std::vector<float> got;  // by error_of_layer()
  template <typename T>
  T* on_device(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    std::byte* const at = *memory->allocate(bytes);
    const CopyRun run{at, reinterpret_cast<const std::byte*>(values.data()), bytes};
    KVFOLIO_CHECK(memory->copy_in({&run, 1}));
    return reinterpret_cast<T*>(at);
  }

 private:
  static void store(std::byte* data, std::size_t i, float value, DType dtype) {
    const std::uint16_t half = bf16_from_f32(value);
    if (dtype == DType::kF32) std::memcpy(data + i * 4, &value, 4);
    if (dtype == DType::kBF16) std::memcpy(data + i * 2, &half, 2);
  }
  void fill_cache() {
    std::vector<std::int32_t> blocks(100);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<std::byte> images(
        static_cast<std::size_t>(host_cache_->block_image_bytes(GroupId(0)) * 100));
    const DType dtype = host_cache_->view(GroupId(0))->dtype;
    const std::size_t count = images.size() / static_cast<std::size_t>(dtype_bytes(dtype));
    for (std::size_t i = 0; i < count; ++i) {
      store(images.data(), i, std::cos(static_cast<float>(i % 100003) * 1.3f), dtype);
    }
    KVFOLIO_CHECK(host_cache_->write_blocks(GroupId(0), blocks, images).ok());
    KVFOLIO_CHECK(device_cache_->write_blocks(GroupId(0), blocks, images).ok());
  }
  std::optional<KVStorage> host_cache_, device_cache_;
  std::vector<std::int32_t> query_start_, kv_lens_, table_;
  std::int32_t stride_ = 0;
  std::vector<std::byte> q_, out_;
};

TEST(CudaAttend, RowsAreNearThoseOfTheCpuInEveryLayerOfAPlan) {
  for (const bool tiles : {false, true}) {
    FakeDriver fake;
    Twins twins(fake, tiles ? DType::kBF16 : DType::kF32, tiles ? 64 : 24,
                tiles ? DType::kBF16 : DType::kF32);
    const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->target(), tiles ? "cuda-sm90-tiles" : "cuda-sm90-general");
    for (const std::int32_t layer : {0, 1}) {
      EXPECT_LT(twins.error_of_layer(layer, *plan), tiles ? 4e-3 : 1e-5) << layer;
    }
  }
}

// Bits of rows by a plan of their own, and by one captured graph in which a kernel makes the plan.
TEST(CudaAttend, AGraphPlansOnTheDeviceAndServesEveryBatchWithinItsCapacity) {
  for (const bool tiles : {false, true}) {
    FakeDriver fake;
    Twins twins(fake, tiles ? DType::kBF16 : DType::kF32, tiles ? 64 : 24,
                tiles ? DType::kBF16 : DType::kF32);
    DeviceAttention& call = twins.call;
    const AttendCapacity capacity = {.max_sequences = 2, .max_sequence_tokens = 1200};
    const auto put = [&](const std::int32_t* to, const std::vector<std::int32_t>& values) {
      const CopyRun run{reinterpret_cast<std::byte*>(const_cast<std::int32_t*>(to)),
                        reinterpret_cast<const std::byte*>(values.data()),
                        static_cast<std::int64_t>(4 * values.size())};
      KVFOLIO_CHECK(twins.memory->copy_in({&run, 1}));
    };
    const auto rows = [&] {
      KVFOLIO_CHECK(twins.stream.synchronize().ok());
      std::vector<std::byte> got(static_cast<std::size_t>(call.q.num_tokens * 4) *
                                 static_cast<std::size_t>(4 * call.out.head_dim));
      const CopyRun run{got.data(), call.out.data, static_cast<std::int64_t>(got.size())};
      KVFOLIO_CHECK(twins.memory->copy_out({&run, 1}));
      return got;
    };
    std::byte* const memory = *twins.memory->allocate(1 << 21);
    auto* const fault = reinterpret_cast<Fault>(*twins.memory->allocate(16));
    auto* const count = reinterpret_cast<std::int32_t*>(*twins.memory->allocate(16));
    std::byte *const image = memory, *const workspace = memory + (1 << 20);
    auto pinned = *PinnedMemory::allocate(twins.device, 1 << 20);
    std::optional<AttendPlan> padded;
    Graph graph;
    struct Step {
      std::vector<std::int32_t> start, lens;
    };
    const Step steps[] = {{{0, 1, 2}, {1200, 37}},
                          {{0, 1, 2}, {1025, 48}},
                          {{0, 1}, {3}},
                          {{0, 0, 1}, {900, 20}},
                          {{0, 1, 2}, {1024, 1}}};
    for (const Step& step : steps) {
      const auto n = static_cast<std::int32_t>(step.lens.size());
      call.batch.query_start = step.start;
      call.batch.kv_lens = step.lens;
      call.q.num_tokens = call.out.num_tokens = step.start.back();
      put(call.query_start, step.start);
      put(call.kv_lens, step.lens);
      put(count, {n});
      const Result<AttendPlan> own = plan_attend(*twins.kernels, call);
      ASSERT_TRUE(own) << own.error().message();
      ASSERT_TRUE(upload(*twins.kernels, *own, {pinned.data(), 1 << 20}, image, workspace,
                         twins.stream.handle())
                      .ok());
      ASSERT_TRUE(attend(*twins.kernels, call, *own, image, workspace, twins.stream.handle()).ok());
      const std::vector<std::byte> want = rows();

      Result<AttendPlan> host = plan_attend(*twins.kernels, call, capacity);
      ASSERT_TRUE(host) << host.error().message();
      ASSERT_LT(host->image().size(), 1u << 20);
      ASSERT_LT(host->workspace_bytes(), 1 << 20);
      if (!padded) {
        padded = *plan_attend(*twins.kernels, call, capacity);
        Result<Graph> made =
            Graph::capture(twins.device, twins.stream.handle(), padded->shape(), [&]() -> Status {
              KVFOLIO_RETURN_IF_ERROR(plan_on_device(*twins.kernels, call, *padded, image,
                                                     workspace, twins.stream.handle(), count,
                                                     fault));
              return attend(*twins.kernels, call, *padded, image, workspace, twins.stream.handle());
            });
        ASSERT_TRUE(made) << made.error().message();
        graph = *std::move(made);
      }
      EXPECT_TRUE(padded->check(call.batch).ok());
      EXPECT_EQ(host->shape(), padded->shape());
      EXPECT_EQ(host->capacity().max_tokens, 2400);
      *fault = kNoEntry;
      std::memset(call.out.data, 0xee, want.size());
      ASSERT_TRUE(graph.launch(twins.stream.handle(), host->shape()).ok());
      EXPECT_EQ(rows(), want) << n << " sequences";
      EXPECT_EQ(*fault, kNoEntry);
      EXPECT_TRUE(plan_fault(*padded, *fault).ok());
      EXPECT_EQ(std::memcmp(image, host->image().data(), host->image().size()), 0);
    }
    // What is larger than what was captured: the host refuses, and the device reports.
    const std::vector<std::int32_t> long_lens{37, 1201}, start{0, 1, 2};
    AttentionBatch larger = call.batch;
    larger.query_start = start;
    larger.kv_lens = long_lens;
    larger.block_table_stride = 76;
    EXPECT_EQ(padded->check(larger).message(),
              "kv_lens[1] is 1201, its table row holds 75 blocks of 16 tokens")
        << "of the stride that was planned with";
    put(call.query_start, start);
    put(call.kv_lens, long_lens);
    put(count, {2});
    ASSERT_TRUE(graph.launch(twins.stream.handle(), padded->shape()).ok());
    static_cast<void>(rows());
    EXPECT_EQ(*fault, 1u);
    EXPECT_EQ(plan_fault(*padded, *fault).message(),
              "sequence 1 of the batch on the device has more than 1200 tokens of K and V or 1 "
              "queries, the capacity: max_sequence_tokens, max_queries");
    EXPECT_THAT(plan_fault(*padded, 2).message(), HasSubstr("more than 2 sequences or 2400"));
    // Wrong arguments.
    const Result<AttendPlan> own = plan_attend(*twins.kernels, call);
    ASSERT_TRUE(own);
    EXPECT_EQ(own->capacity(), AttendCapacity{});
    EXPECT_EQ(own->check(call.batch).code(), ErrorCode::kFailedPrecondition);
    const auto planned = [&](const AttendPlan& plan, std::byte* to) {
      return plan_on_device(*twins.kernels, call, plan, to, workspace, twins.stream.handle());
    };
    EXPECT_EQ(planned(*own, image).code(), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(planned(*padded, nullptr).message(), "image is null");
    EXPECT_EQ(planned(*padded, image + 8).message(), "image is not aligned to 16 bytes");
    EXPECT_EQ(planned(*padded, pinned.data()).message(),
              "image is memory of the host, needed: memory of device 0 (Fake 0)");
    const AttendCapacity narrow = {.max_sequences = 1, .max_sequence_tokens = 1200};
    const Result<AttendPlan> refused = plan_attend(*twins.kernels, call, narrow);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message(),
              "the batch has 2 sequences, the capacity is 1: max_sequences");
    static const std::vector<std::int32_t> three{0, 1, 2, 3}, ones{1, 1, 1};
    call.batch.query_start = three;
    call.batch.kv_lens = ones;
    call.batch.block_table = {call.batch.block_table.data(), 225};
    call.q.num_tokens = call.out.num_tokens = 3;
    EXPECT_EQ(
        attend(*twins.kernels, call, *padded, image, workspace, twins.stream.handle()).message(),
        "the batch has 3 sequences and 3 rows, the plan's capacity is 2 and 2");
    EXPECT_EQ(planned(*padded, image).message(),
              "the batch has 3 sequences and 3 rows, the plan's capacity is 2 and 2");
  }
}

// Those that a plan has made, and those that it did not load.
TEST(CudaAttend, ThePlanningKernelOfOtherKernelsIsSaidToBeMissing) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32, 1);
  const Result<AttendPlan> plan =
      plan_attend(*twins.kernels, twins.call, {.max_sequences = 2, .max_sequence_tokens = 1200});
  ASSERT_TRUE(plan) << plan.error().message();
  const std::shared_ptr<Kernels> others = *load_kernels(twins.device, {}, kImages);
  std::byte* const memory = *twins.memory->allocate(1 << 20);
  const auto planned = [&](Kernels& kernels) {
    return plan_on_device(kernels, twins.call, *plan, memory, memory, twins.stream.handle());
  };
  EXPECT_EQ(planned(*others).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(planned(*others).message(),
            "no kernel cuda-plan is loaded on device 0 (Fake 0): make a plan with these kernels "
            "first");
  EXPECT_EQ(planned(*twins.kernels).message(), "ok");
}

TEST(CudaAttend, APlanIsNotUploadedWithinACapture) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32, 1);
  const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
  ASSERT_TRUE(plan);
  auto pinned = *PinnedMemory::allocate(twins.device, 1 << 16);
  std::byte* const memory = *twins.memory->allocate(1 << 20);
  const auto upload_it = [&] {
    return upload(*twins.kernels, *plan, {pinned.data(), 1 << 16}, memory, memory + (1 << 16),
                  twins.stream.handle());
  };
  const Result<Graph> graph = Graph::capture(twins.device, twins.stream.handle(), upload_it);
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(graph.error().message(), HasSubstr("a plan is uploaded in front of a graph"));
  EXPECT_TRUE(upload_it().ok());
}

// An idle engine: a step of no sequences has no trims, and misses none.
TEST(CudaAttend, AStepOfNoSequencesIsServedByAPlanWithTrimsAndMakesOne) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32, 1);
  DeviceAttention& call = twins.call;
  const AttendCapacity capacity = {.max_sequences = 2, .max_sequence_tokens = 1200};
  const std::vector<std::int32_t> sinks{4, 0}, kept{900, 0}, none{0, 0};
  DeviceAttention full = call, idle = call;
  full.batch.trim_sinks = sinks;
  full.batch.trim_first_kept = kept;
  full.trim_sinks = twins.on_device(sinks);
  full.trim_first_kept = twins.on_device(kept);
  idle.batch.query_start = {none.data(), 1};
  idle.batch.kv_lens = {};
  idle.q.num_tokens = idle.out.num_tokens = 0;
  DeviceAttention idle_with = idle;
  idle_with.trim_sinks = full.trim_sinks;
  idle_with.trim_first_kept = full.trim_first_kept;

  std::byte* const memory = *twins.memory->allocate(1 << 20);
  std::byte* const workspace = memory + (1 << 16);
  auto* const count = twins.on_device(std::vector<std::int32_t>{2});
  void* const stream = twins.stream.handle();
  const auto rows = [&] {
    KVFOLIO_CHECK(twins.stream.synchronize().ok());
    std::vector<std::byte> got(2 * 4 * 24 * 4);
    const CopyRun run{got.data(), call.out.data, static_cast<std::int64_t>(got.size())};
    KVFOLIO_CHECK(twins.memory->copy_out({&run, 1}));
    return got;
  };
  const Result<AttendPlan> of_full = plan_attend(*twins.kernels, full, capacity);
  const Result<AttendPlan> of_idle = plan_attend(*twins.kernels, idle_with, capacity);
  const Result<AttendPlan> without = plan_attend(*twins.kernels, idle, capacity);
  ASSERT_TRUE(of_full && of_idle && without);
  const auto step = [&](const DeviceAttention& with, const AttendPlan& plan) -> Status {
    KVFOLIO_RETURN_IF_ERROR(
        plan_on_device(*twins.kernels, with, plan, memory, workspace, stream, count));
    return attend(*twins.kernels, with, plan, memory, workspace, stream);
  };
  std::memset(call.out.data, 0xee, 2 * 4 * 24 * 4);
  ASSERT_EQ(step(full, *of_full).message(), "ok");
  const std::vector<std::byte> want = rows();
  // Captured with the idle step, replayed for the full one, whose trims lie where they lay.
  for (const AttendPlan* const plan : {&*of_full, &*of_idle}) {
    EXPECT_TRUE(plan->check(full.batch).ok());
    EXPECT_TRUE(plan->check(idle.batch).ok());
    Result<Graph> graph =
        Graph::capture(twins.device, stream, plan->shape(), [&] { return step(idle_with, *plan); });
    ASSERT_TRUE(graph) << graph.error().message();
    std::memset(call.out.data, 0xee, want.size());
    ASSERT_TRUE(graph->launch(stream, plan->shape()).ok());
    EXPECT_EQ(rows(), want);
    EXPECT_EQ(step(idle, *plan).message(), "ok") << "nothing is replayed";
    const Result<Graph> refused =
        Graph::capture(twins.device, stream, plan->shape(), [&] { return step(idle, *plan); });
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("trim_sinks or trim_first_kept is null"));
  }
  EXPECT_THAT(step(full, *without).message(), HasSubstr("but the plan was made without"));
  EXPECT_EQ(step(idle_with, *without).message(), "ok");
}

// A kernel that no device has shown is asked for by name.
TEST(CudaAttend, TheKernelForChunksIsTheOneThatTheEnvironmentPrefers) {
  FakeDriver fake;
  Twins twins(fake, DType::kBF16, 64, DType::kBF16);
  const auto prefill_with = [&](const char* name) {
    ::setenv("KVFOLIO_CUDA_KERNEL", name, 1);
    const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
    ::unsetenv("KVFOLIO_CUDA_KERNEL");
    return plan ? std::string(to_string(plan->impl().plan.prefill)) : plan.error().message();
  };
  EXPECT_EQ(prefill_with(""), "cuda-prefill");
  EXPECT_EQ(prefill_with("cuda-wgmma"), "cuda-prefill");
  EXPECT_EQ(prefill_with("cuda-wgmma-tiles"), "cuda-wgmma-tiles");
  EXPECT_EQ(prefill_with("wgmma"),
            "KVFOLIO_CUDA_KERNEL: the kernel for chunks is wgmma, allowed: cuda-node, "
            "cuda-prefill, cuda-wgmma, cuda-wgmma-tiles");
}

TEST(CudaAttend, AWindowIsThatOfTheCpu) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32);
  twins.host.params.rule = twins.call.params.rule = GroupRule::of_window(100, 3);
  const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_LT(twins.error_of_layer(1, *plan), 1e-5);
}

TEST(CudaAttend, LengthsGoUpThroughPinnedMemory) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32);
  auto pinned = *PinnedMemory::allocate(twins.device, 64);
  std::byte* const to = *twins.memory->allocate(64);
  std::memset(pinned.data(), 5, 64);
  const auto said = [&](std::span<const std::byte> from, std::byte* where) {
    return upload(*twins.kernels, from, where, twins.stream.handle()).message();
  };
  EXPECT_EQ(said({pinned.data(), 64}, to), "ok");
  EXPECT_EQ(said({}, nullptr), "ok");
  ASSERT_TRUE(twins.stream.synchronize().ok());
  EXPECT_EQ(std::memcmp(to, pinned.data(), 64), 0);
  EXPECT_EQ(said({pinned.data(), 64}, nullptr), "to is null");
  EXPECT_EQ(said({pinned.data(), 64}, pinned.data()),
            "to is memory of the host, needed: memory of device 0 (Fake 0)");
  EXPECT_THAT(said({to, 64}, to), HasSubstr("pinned is memory of device 0"));
}

TEST(CudaAttend, APlanIsForCallsOfItsShapesOnly) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32);
  const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
  ASSERT_TRUE(plan);
  std::byte* const memory = *twins.memory->allocate(plan->workspace_bytes() + (1 << 16));
  auto pinned = *PinnedMemory::allocate(twins.device, 1 << 16);
  ASSERT_TRUE(upload(*twins.kernels, *plan, {pinned.data(), 1 << 16}, memory, memory + (1 << 16),
                     twins.stream.handle())
                  .ok());
  const auto said = [&](auto&& change) {
    DeviceAttention call = twins.call;
    change(call);
    return attend(*twins.kernels, call, *plan, memory, memory + (1 << 16), twins.stream.handle())
        .message();
  };
  EXPECT_EQ(said([](DeviceAttention&) {}), "ok");
  EXPECT_THAT(said([](DeviceAttention& call) { call.layer = 2; }), HasSubstr("layer"));
  EXPECT_EQ(said([](DeviceAttention& call) { call.params.rule = GroupRule::of_window(5); }),
            "window, num_sinks or chunk is another than that of the plan");
  EXPECT_THAT(said([](DeviceAttention& call) { call.cache.k_strides.block += 16; }),
              HasSubstr("other strides"));
  EXPECT_THAT(said([](DeviceAttention& call) { call.cache.num_blocks = 50; }),
              HasSubstr("another shape"));
  static const std::vector<std::int32_t> start{0, 1, 7};
  EXPECT_THAT(said([](DeviceAttention& call) { call.batch.query_start = start; }),
              HasSubstr("q is [6 tokens, 4 heads, head_dim 24], allowed: [7, 4, 24]"));
  EXPECT_THAT(said([](DeviceAttention& call) { call.params.scale = 0; }), HasSubstr("scale"));
}

// Its work is cut for what its rows see, and kernels are told of the call: the two agree.
TEST(CudaAttend, APlanIsForCallsOfItsParametersOnly) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32);
  std::byte* const memory = *twins.memory->allocate(1 << 20);
  const std::span<const float> floats(reinterpret_cast<const float*>(memory + (1 << 19)), 4);
  static const std::vector<std::int32_t> sinks{2, 0}, kept{300, 0};
  const auto trims = [&](DeviceAttention& call) {
    call.batch.trim_sinks = sinks;
    call.batch.trim_first_kept = kept;
    call.trim_sinks = call.trim_first_kept = call.kv_lens;
  };
  using Change = std::function<void(DeviceAttention&)>;
  const std::pair<Change, std::string> changes[] = {
      {[](DeviceAttention& call) { call.params.scale *= 2; },
       "scale is another than that of the plan"},
      {[](DeviceAttention& call) { call.params.soft_cap = 30; },
       "soft_cap is another than that of the plan"},
      {[](DeviceAttention& call) { call.params.causal = false; },
       "causal is false, that of the plan is true"},
      {[](DeviceAttention& call) { call.params.rule = GroupRule::of_chunk(64); },
       "window, num_sinks or chunk is another than that of the plan"},
      {[&](DeviceAttention& call) { call.params.alibi_slopes = floats; },
       "alibi_slopes: given, but the plan was made without"},
      {[&](DeviceAttention& call) { call.params.sink_logits = floats; },
       "sink_logits: given, but the plan was made without"},
      {trims, "batch.trim_sinks and trim_first_kept: given, but the plan was made without"}};
  const auto said = [&](const DeviceAttention& call, const AttendPlan& plan) {
    return attend(*twins.kernels, call, plan, memory, memory + (1 << 18), twins.stream.handle())
        .message();
  };
  auto pinned = *PinnedMemory::allocate(twins.device, 1 << 16);
  const auto run = [&](const AttendPlan& plan) {
    KVFOLIO_CHECK(upload(*twins.kernels, plan, {pinned.data(), 1 << 16}, memory, memory + (1 << 18),
                         twins.stream.handle())
                      .ok());
    const std::string answer(said(twins.call, plan));
    return twins.stream.synchronize().ok() ? answer : "the stream failed";
  };
  const Result<AttendPlan> plain = plan_attend(*twins.kernels, twins.call);
  ASSERT_TRUE(plain);
  EXPECT_EQ(run(*plain), "ok");
  for (const auto& [change, sentence] : changes) {
    DeviceAttention other = twins.call;
    change(other);
    EXPECT_EQ(said(other, *plain), sentence);
    const Result<AttendPlan> plan = plan_attend(*twins.kernels, other);
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_THAT(said(twins.call, *plan), HasSubstr("plan")) << "and the reverse of: " << sentence;
  }
  // Others of each layer's own.
  twins.call.params.sink_logits = floats;
  const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
  ASSERT_TRUE(plan);
  twins.call.params.sink_logits = {floats.data() + 4, 4};
  EXPECT_EQ(run(*plan), "ok");
}

// Each call of the driver fails once: it is said, no context stays current, the next try is right.
TEST(CudaAttend, EveryCallOfTheDriverMayFail) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32);
  auto pinned = *PinnedMemory::allocate(twins.device, 1 << 16);
  std::byte* const memory = *twins.memory->allocate(1 << 20);
  const auto try_all = [&]() -> Status {
    const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
    if (!plan) return plan.error();
    KVFOLIO_CHECK(plan->workspace_bytes() < (1 << 19));
    std::byte* const workspace = memory + (1 << 16);
    KVFOLIO_RETURN_IF_ERROR(upload(*twins.kernels, *plan, {pinned.data(), 1 << 16}, memory,
                                   workspace, twins.stream.handle()));
    return attend(*twins.kernels, twins.call, *plan, memory, workspace, twins.stream.handle());
  };
  int failed = 0;
  for (int at = 1;; ++at) {
    fake.count = 0;
    fake.fail_at = at;
    fake.fail_with = 2;
    const Status status = try_all();
    fake.fail_at = 0;
    ASSERT_TRUE(fake.current.empty()) << at;
    if (status.ok()) break;
    EXPECT_EQ(status.code(), ErrorCode::kOutOfMemory) << at << status.message();
    EXPECT_THAT(status.message(), HasSubstr("device 0 (Fake 0) failed to ")) << at;
    ++failed;
  }
  EXPECT_GE(failed, 40);
  EXPECT_TRUE(try_all().ok());
  EXPECT_TRUE(twins.stream.synchronize().ok());
}

TEST(CudaAttend, WrongArgumentsAreNamed) {
  FakeDriver fake;
  Twins twins(fake, DType::kF32, 24, DType::kF32);
  const auto said = [&](auto&& change) {
    DeviceAttention call = twins.call;
    change(call);
    const Result<AttendPlan> plan = plan_attend(*twins.kernels, call);
    return plan ? std::string("ok") : plan.error().message();
  };
  const std::vector<std::int32_t> on_host{0, 1, 6};
  EXPECT_EQ(said([&](DeviceAttention& call) { call.query_start = on_host.data(); }),
            "query_start is memory of the host, needed: memory of device 0 (Fake 0)");
  EXPECT_EQ(said([&](DeviceAttention& call) {
              call.batch.kv_lens = {call.kv_lens, 2};
            }),
            "batch.kv_lens is memory of device 0, needed: memory of the host");
  EXPECT_THAT(said([&](DeviceAttention& call) { call.cache.memory_kind = MemoryKind::kHost; }),
              HasSubstr("host memory"));
  EXPECT_THAT(said([&](DeviceAttention& call) { call.q.data += 4; }),
              HasSubstr("q is not aligned to 16 bytes"));
  EXPECT_THAT(said([&](DeviceAttention& call) { call.q.num_heads = 3; }),
              HasSubstr("multiples of the 2 KV heads"));
  EXPECT_THAT(said([&](DeviceAttention& call) { call.lse = nullptr; }), "ok");
  // Null where memory of the device is due.
  using Change = std::function<void(DeviceAttention&)>;
  static const std::vector<std::int32_t> trims{0, 0};
  const std::pair<Change, std::string> nulls[] = {
      {[](DeviceAttention& call) { call.query_start = nullptr; }, "query_start is null, needed"},
      {[](DeviceAttention& call) { call.kv_lens = nullptr; }, "kv_lens is null, needed"},
      {[](DeviceAttention& call) {
         call.batch.trim_sinks = call.batch.trim_first_kept = trims;
         call.trim_first_kept = call.kv_lens;
       },
       "trim_sinks is null, needed"},
      {[](DeviceAttention& call) { call.cache.k = nullptr; }, "cache.k is null"},
      {[](DeviceAttention& call) { call.q.data = nullptr; }, "q.data is null"},
      {[](DeviceAttention& call) { call.out.data = nullptr; }, "out.data is null"},
      {[](DeviceAttention& call) {
         call.batch.block_table = {static_cast<const std::int32_t*>(nullptr), 150};
       },
       "block_table is null"}};
  for (const auto& [change, sentence] : nulls) {
    EXPECT_TRUE(said(change).starts_with(sentence)) << said(change);
  }
  // The bounds and the sentence of the CPU.
  for (const double cap : {1e-30, 1e30, 1e-31, 1e31, -1.0, std::nan("")}) {
    const bool allowed = cap == 1e-30 || cap == 1e30;
    twins.host.params.soft_cap = cap;
    const std::string cpu(kvfolio::attend(twins.host).message());
    EXPECT_EQ(cpu.find("soft_cap") == std::string::npos, allowed) << cap;
    EXPECT_EQ(said([&](DeviceAttention& call) { call.params.soft_cap = cap; }),
              allowed ? "ok" : cpu);
  }
  // A type that this build has no kernels for.
  Twins half(fake, DType::kF16, 64, DType::kF16);
  const Result<AttendPlan> none = plan_attend(*half.kernels, half.call);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(none.error().message(), "this build has no kernels attend_f16_64");
}

// ---- cards ----

struct PlayedCard {
  int major, minor;
  const char* explains;  // of bf16, head_dim 64, with a decode and an extend
};

TEST(CudaAttendCards, EachTakesItsImagesAndTheKernelsThatItHasRoomFor) {
  const PlayedCard cards[] = {
      {8, 0, "cuda-sm80-tiles: cuda-prefill, cuda-node, cuda-merge"},
      {8, 6,
       "cuda-sm86-tiles: cuda-narrow, cuda-node, cuda-merge; left out: cuda-prefill of bf16, "
       "head_dim 64, takes 109056 bytes of shared memory for a block, device 0 (Fake 0) has "
       "101376"},
      {8, 9,
       "cuda-sm89-tiles: cuda-narrow, cuda-node, cuda-merge; left out: cuda-prefill of bf16, "
       "head_dim 64, takes 109056 bytes of shared memory for a block, device 0 (Fake 0) has "
       "101376"},
      {9, 0, "cuda-sm90-tiles: cuda-prefill, cuda-node, cuda-merge"},
      {10, 0, "cuda-sm100-tiles: cuda-prefill, cuda-node, cuda-merge"},
      {12, 0,
       "cuda-sm120-tiles: cuda-narrow, cuda-node, cuda-merge; left out: cuda-prefill of bf16, "
       "head_dim 64, takes 109056 bytes of shared memory for a block, device 0 (Fake 0) has "
       "101376"}};
  std::vector<float> rows;
  for (const PlayedCard& card : cards) {
    SCOPED_TRACE(card.explains);
    FakeDriver fake;
    fake.play(card.major, card.minor);
    Twins twins(fake, DType::kBF16, 64, DType::kBF16, 36);
    const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->explain(), card.explains);
    EXPECT_LT(twins.error_of_layer(0, *plan), 4e-3);
    const bool hopper = card.major == 9;
    EXPECT_EQ(fake.images, hopper ? std::vector<const void*>({&kBytes[0], &kBytes[1], &kBytes[2]})
                                  : std::vector<const void*>({&kBytes[0], &kBytes[3], &kBytes[4]}));
    // The text of the others does not wait for the launch in front.
    EXPECT_EQ(fake.overlapping_launches, hopper ? 2 : 0);
    for (const auto& [name, bytes] : fake.shared_bytes) EXPECT_LE(bytes, fake.shared_of_block);
    // The model has one arithmetic, so whatever is left out, no bit changes.
    if (rows.empty()) rows = twins.got;
    EXPECT_EQ(rows, twins.got);
  }
}

// Asks choose_kernels() alone: the images of this test have head_dim 64.
TEST(CudaAttendCards, HeadDim256IsSaidToBeLeftOutWhereCudaGeneralTakesIt) {
  AttentionCall call;
  call.cache.element = call.q_element = Element::kBF16;
  call.cache.dim_k = call.cache.dim_v = 256;
  const SharedMemory shared = {.of_block = 101376, .of_sm = 102400, .kept_of_block = 1024};
  const auto left_out = [&](KernelSet set) {
    return choose_kernels(call, set, shared, 132, "a card").left_out;
  };
  const std::vector<std::string> said = {
      "cuda-node of bf16, head_dim 256, is compiled for compute capability 9.0 alone"};
  EXPECT_EQ(left_out(KernelSet::kSm80), said);
  call.q_element = Element::kF32;  // cuda-general's on every card
  EXPECT_TRUE(left_out(KernelSet::kSm80).empty());
  call.cache.element = Element::kInt8;
  EXPECT_TRUE(left_out(KernelSet::kSm80).empty());
  call.q_element = Element::kF16;
  EXPECT_EQ(left_out(KernelSet::kSm80).size(), 1u);
  call.cache.dim_v = 128;
  EXPECT_TRUE(left_out(KernelSet::kSm80).empty());
}

TEST(CudaAttendCards, TheKernelThatIsAskedForStartsWhereTheCardHasItAndIsNamed) {
  const PlayedCard cards[] = {
      {8, 0, "cuda-sm80-tiles: cuda-prefill, cuda-node, cuda-merge"},
      {8, 6,
       "cuda-sm86-tiles: cuda-narrow, cuda-node, cuda-merge; left out: cuda-prefill of bf16, "
       "head_dim 64, takes 109056 bytes of shared memory for a block, device 0 (Fake 0) has "
       "101376"},
      {9, 0, "cuda-sm90-tiles: cuda-wgmma-tiles, cuda-node, cuda-merge"}};
  std::vector<float> rows;
  for (const PlayedCard& card : cards) {
    SCOPED_TRACE(card.explains);
    FakeDriver fake;
    fake.play(card.major, card.minor);
    Twins twins(fake, DType::kBF16, 64, DType::kBF16, 36);
    ::setenv("KVFOLIO_CUDA_KERNEL", "cuda-wgmma-tiles", 1);
    const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
    ::unsetenv("KVFOLIO_CUDA_KERNEL");
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->explain(), card.explains);
    EXPECT_LT(twins.error_of_layer(0, *plan), 4e-3);
    if (rows.empty()) rows = twins.got;
    EXPECT_EQ(rows, twins.got);
  }
}

TEST(CudaAttendCards, AStreamHasAsManyBlocksAsFitBesideEachOther) {
  const std::pair<std::pair<int, int>, std::int32_t> cards[] = {
      {{8, 0}, 2 * 108}, {{8, 6}, 72}, {{9, 0}, 3 * 132}, {{12, 0}, 170}};
  for (const auto& [card, blocks] : cards) {
    FakeDriver fake;
    fake.play(card.first, card.second);
    const auto device = open_device();
    AttendModules modules(device, kImages);
    AttentionCall call;
    call.cache.element = Element::kBF16;
    call.cache.dim_k = 64;
    const Result<CardChoice> chosen = modules.choose(call);
    ASSERT_TRUE(chosen);
    EXPECT_EQ(chosen->choice.num_sms * chosen->choice.stream_blocks_of_sm, blocks);
  }
}

// What every type and head dim has on each card: nothing but prefill is ever left out.
TEST(CudaAttendCards, NodesAndStreamsFitEveryCard) {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 6}, {8, 9}, {9, 0}, {10, 0}, {12, 0}}) {
    FakeDriver fake;
    fake.play(major, minor);
    const auto device = open_device();
    AttendModules modules(device, kImages);
    const KernelSet set = set_of(major, minor);
    for (const Element element : {Element::kF16, Element::kBF16, Element::kInt8, Element::kE4M3})
      for (const std::int32_t head_dim : {64, 128}) {
        AttentionCall call;
        call.cache.element = element;
        call.cache.dim_k = head_dim;
        const Result<CardChoice> chosen = modules.choose(call);
        ASSERT_TRUE(chosen);
        EXPECT_TRUE(chosen->choice.prefill);
        EXPECT_EQ(chosen->choice.wgmma, set == KernelSet::kSm90a);
        EXPECT_EQ(chosen->choice.stream, !has_scales(element));
        for (const KernelLaunch& launch : launches_of_tiles(element, head_dim, set)) {
          if (launch.kernel == KernelName::kPrefill) continue;
          EXPECT_LE(kernel_of(launch, set).shared_bytes, fake.shared_of_block)
              << to_string(launch.kernel);
        }
        const bool wide =
            fake.shared_of_block >=
            kernel_of({.kernel = KernelName::kPrefill, .element = element, .head_dim = head_dim},
                      set)
                .shared_bytes;
        EXPECT_EQ(chosen->choice.narrow, !wide);
        EXPECT_EQ(chosen->left_out.size(), wide ? 0u : 1u);
      }
  }
}

TEST(CudaAttendCards, AKernelWithoutRoomIsRefusedByNameAndNumbers) {
  FakeDriver fake;
  fake.play(8, 6);
  fake.shared_of_block = 48 << 10;  // no card has so little
  Twins twins(fake, DType::kBF16, 64, DType::kBF16);
  const Result<AttendPlan> plan = plan_attend(*twins.kernels, twins.call);
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(
      plan.error().message(),
      "cuda-node of bf16, head_dim 64, takes 73728 bytes of shared memory for a block, device 0 "
      "(Fake 0) has 49152");
  // The kernel for any shape has room.
  Twins general(fake, DType::kF32, 24, DType::kF32);
  EXPECT_TRUE(plan_attend(*general.kernels, general.call));
}

TEST(CudaAttendCards, ABuildForOthersIsRefusedWithBoth) {
  const std::pair<std::span<const KernelImage>, const char*> builds[] = {
      {std::span(kImages).first(3),
       "attention is compiled for compute capability 9.0, device 0 "
       "(Fake 0) has 8.0"},
      {std::span(kImages).first(1), "this build has no kernels attend_sm80"}};
  for (const auto& [images, sentence] : builds) {
    FakeDriver fake;
    fake.play(8, 0);
    Twins twins(fake, DType::kBF16, 64, DType::kBF16);
    const auto kernels = *load_kernels(twins.device, {}, images);
    const Result<AttendPlan> plan = plan_attend(*kernels, twins.call);
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code(), ErrorCode::kUnsupported);
    EXPECT_EQ(plan.error().message(), sentence);
  }
  FakeDriver fake;
  Twins twins(fake, DType::kBF16, 64, DType::kBF16);
  const KernelImage others[] = {kImages[0], kImages[3], kImages[4]};
  const auto kernels = *load_kernels(twins.device, {}, others);
  const Result<AttendPlan> plan = plan_attend(*kernels, twins.call);
  ASSERT_FALSE(plan);
  EXPECT_EQ(
      plan.error().message(),
      "attention is compiled for compute capability 8.0 and later but for 9.0, device 0 (Fake "
      "0) has 9.0");
}

}  // namespace
}  // namespace kvfolio::cuda
