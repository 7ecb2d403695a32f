// SPDX-License-Identifier: Apache-2.0

// BatchAttention over a driver that is none: plans in FlashInfer's form, drawn at random, whose
// rows are near those of the CPU's reference over the same tensors; and what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/library/host_kernels.h"
#include "cuda/library/loaded.h"
#include "heap_calls/heap_calls.h"
#include "kvfolio/cuda.hpp"
#include "kvfolio/kernels.h"

namespace kvfolio::cuda {
namespace {

using testing::HasSubstr;

constexpr int kImage = 0;
constexpr KernelImage kImages[] = {
    {"moves", &kImage, 4}, {"attend", &kImage, 4}, {"attend_bf16_64", &kImage, 4}};
constexpr std::int32_t kPages = 160, kPageSize = 16, kKvHeads = 2, kHeads = 4;

// A batch in FlashInfer's form.
struct Batch {
  std::vector<std::int32_t> qo_indptr, kv_indptr{0}, kv_indices, last;
  std::vector<std::int32_t> rows, kv_lens;  // as the CPU wants them

  // queries < 0: a decode, without qo_indptr.
  void add(std::mt19937& random, std::int32_t queries, std::int32_t tokens) {
    const std::int32_t pages = (tokens + kPageSize - 1) / kPageSize;
    for (std::int32_t i = 0; i < pages; ++i) {
      kv_indices.push_back(static_cast<std::int32_t>(random() % kPages));
    }
    kv_indptr.push_back(static_cast<std::int32_t>(kv_indices.size()));
    last.push_back(tokens == 0 ? 0 : (tokens - 1) % kPageSize + 1);
    if (rows.empty()) rows.push_back(0);
    rows.push_back(rows.back() + std::abs(queries));
    kv_lens.push_back(tokens);
    if (queries >= 0) qo_indptr = rows;
  }
  [[nodiscard]] BatchAttentionPlan plan() const {
    BatchAttentionPlan step;
    step.qo_indptr = qo_indptr;
    step.kv_indptr = kv_indptr;
    step.kv_indices = kv_indices;
    step.kv_last_page_len = last;
    step.num_qo_heads = kHeads;
    return step;
  }
};

Batch decode_of(std::mt19937& random, const std::vector<std::int32_t>& lengths) {
  Batch batch;
  for (const std::int32_t length : lengths) batch.add(random, -1, length);
  return batch;
}

struct WorldOptions {
  DType dtype = DType::kF32;
  std::int32_t head_dim = 24;
  Format layout = Format::kNhd;
  bool in_one = false;  // K and V in one tensor
  BatchAttentionOptions attention = {.max_sequences = 8,
                                     .max_pages_of_sequence = 140,
                                     .max_image_bytes = 1 << 16,
                                     .workspace_bytes = 1 << 20};
};

class World {
 public:
  explicit World(const WorldOptions& options = {}) : options_(options) {
    fake.minor = 0;
    fake.touchable = true;
    fake.args_bytes = sizeof(AttendArgs);
    fake.kernel = model_kernels();
    device = open_device();
    kernels = *load_kernels(device, {}, kImages);
    memory = *DeviceMemory::create(device, {.later_bytes = 0});
    stream = *Stream::create(device);
    const auto elements = std::size_t{kPages} * std::size_t{kPageSize * kKvHeads} *
                          static_cast<std::size_t>(options.head_dim);
    tensors_ = values(2 * elements, 1.3f);
    const std::int64_t v_at = static_cast<std::int64_t>(tensors_.size()) / 2;
    PagedKV tensors{.k = tensors_.data(),
                    .v = options.in_one ? nullptr : tensors_.data() + v_at,
                    .layout = options.layout,
                    .num_pages = kPages,
                    .page_size = kPageSize,
                    .num_kv_heads = kKvHeads,
                    .head_dim = options.head_dim,
                    .dtype = options.dtype};
    host_cache_ = *paged_kv_view(tensors);
    host_cache_.memory_kind = MemoryKind::kHost;
    tensors.k = on_device(tensors_);
    if (!options.in_one) tensors.v = tensors.k + v_at;
    cache = *paged_kv_view(tensors);
    attention = *BatchAttention::create(kernels, options.attention);
    q_ = values(kMostRows * kHeads * static_cast<std::size_t>(options.head_dim), 0.7f);
    q = {on_device(q_), 0, 0, 0, 0, 0, options.dtype};
    out_bytes_ = kMostRows * kHeads * options.head_dim * 4;
    out = {*memory->allocate(out_bytes_), 0, 0, 0, 0, 0, DType::kF32};
    lse = reinterpret_cast<float*>(*memory->allocate(kMostRows * kHeads * 4));
  }
  ~World() {
    attention = nullptr;
    static_cast<void>(stream.synchronize());
    for (const auto& [at, bytes] : taken_) memory->deallocate(at, bytes);
    memory->deallocate(out.data, out_bytes_);
    memory->deallocate(reinterpret_cast<std::byte*>(lse), kMostRows * kHeads * 4);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  BatchAttentionPlan step(const Batch& batch) const {
    BatchAttentionPlan step = batch.plan();
    step.paged_kv = cache;
    step.q_data_type = options_.dtype;
    step.o_data_type = DType::kF32;
    return step;
  }
  // plan() alone.
  Status plan(const Batch& batch, const std::function<void(BatchAttentionPlan&)>& change = {}) {
    BatchAttentionPlan made = step(batch);
    if (change) change(made);
    return attention->plan(made, stream.handle());
  }
  Status run(const Batch& batch) {
    const std::int32_t rows = batch.rows.empty() ? 0 : batch.rows.back();
    return attention->run(shaped(q, rows), cache, shaped(out, rows), lse, stream.handle());
  }
  // The largest difference of rows and of lse from the CPU's, once the stream has passed.
  double error_of(const Batch& batch, const AttentionParams& params) {
    EXPECT_TRUE(stream.synchronize().ok());
    const std::int32_t rows = batch.rows.back();
    const auto count = static_cast<std::size_t>(std::int64_t{rows} * kHeads * options_.head_dim);
    std::vector<float> got(count), want(count);
    std::vector<float> got_lse(static_cast<std::size_t>(rows * kHeads)), want_lse(got_lse.size());
    const CopyRun runs[] = {
        {reinterpret_cast<std::byte*>(got.data()), out.data, static_cast<std::int64_t>(4 * count)},
        {reinterpret_cast<std::byte*>(got_lse.data()), reinterpret_cast<const std::byte*>(lse),
         static_cast<std::int64_t>(4 * got_lse.size())}};
    KVFOLIO_CHECK(memory->copy_out(runs));
    AttentionArgs args{.cache = host_cache_};
    std::vector<std::int32_t> table(batch.kv_lens.size() * 200, -1);
    for (std::size_t i = 0; i < batch.kv_lens.size(); ++i) {
      std::copy(batch.kv_indices.begin() + batch.kv_indptr[i],
                batch.kv_indices.begin() + batch.kv_indptr[i + 1], &table[200 * i]);
    }
    args.batch = {.query_start = batch.rows,
                  .kv_lens = batch.kv_lens,
                  .block_table = table,
                  .block_table_stride = 200};
    args.params = params;
    args.q = shaped(ConstRowsView(q_.data(), 0, 0, 0, 0, 0, options_.dtype), rows);
    args.out = contiguous_rows(want.data(), rows, kHeads, options_.head_dim);
    args.lse = contiguous_rows(want_lse.data(), rows, kHeads, 1);
    args.target = KernelTarget::kReference;
    std::vector<std::byte> workspace(static_cast<std::size_t>(
        *attention_workspace_bytes(host_cache_, kHeads, 4000, KernelTarget::kReference)));
    args.workspace = workspace;
    const Status done = kvfolio::attend(args);
    EXPECT_TRUE(done.ok()) << done.message();
    double most = 0;
    for (std::size_t i = 0; i < count; ++i) {
      most = std::max(most, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
    }
    for (std::size_t i = 0; i < got_lse.size(); ++i) {
      if (got_lse[i] == want_lse[i]) continue;  // two infinities
      most = std::max(most, std::abs(static_cast<double>(got_lse[i] - want_lse[i])));
    }
    return most;
  }
  [[nodiscard]] AttentionParams params(bool causal = true) const {
    return {.scale = 1.0 / std::sqrt(static_cast<double>(options_.head_dim)), .causal = causal};
  }
  template <typename View>
  [[nodiscard]] View shaped(View view, std::int32_t rows) const {
    const std::int64_t row = std::int64_t{options_.head_dim} * dtype_bytes(view.dtype);
    view.head_stride = row;
    view.token_stride = row * kHeads;
    view.num_tokens = rows;
    view.num_heads = kHeads;
    view.head_dim = options_.head_dim;
    return view;
  }

  static constexpr std::int32_t kMostRows = 64;
  FakeDriver fake;
  std::shared_ptr<Device> device;
  std::shared_ptr<Kernels> kernels;
  std::unique_ptr<DeviceMemory> memory;
  Stream stream;
  KVView cache;
  ConstRowsView q;
  RowsView out;
  float* lse = nullptr;
  std::unique_ptr<BatchAttention> attention;
  std::mt19937 random{7};

 private:
  std::vector<std::byte> values(std::size_t count, float step) const {
    const auto bytes = static_cast<std::size_t>(dtype_bytes(options_.dtype));
    std::vector<std::byte> made(count * bytes);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = std::sin(static_cast<float>(i % 100003) * step);
      const std::uint16_t half = bf16_from_f32(value);
      std::memcpy(made.data() + i * bytes, bytes == 4 ? static_cast<const void*>(&value) : &half,
                  bytes);
    }
    return made;
  }
  std::byte* on_device(const std::vector<std::byte>& bytes) {
    const auto size = static_cast<std::int64_t>(bytes.size());
    std::byte* const at = *memory->allocate(size);
    taken_.emplace_back(at, size);
    const CopyRun run{at, bytes.data(), size};
    KVFOLIO_CHECK(memory->copy_in({&run, 1}));
    return at;
  }

  WorldOptions options_;
  std::vector<std::byte> tensors_, q_;
  std::vector<std::pair<std::byte*, std::int64_t>> taken_;
  std::int64_t out_bytes_ = 0;
  KVView host_cache_;
};

// ---- rows ----

TEST(BatchAttention, RowsOfDecodesAndPrefillsAreNearThoseOfTheCpu) {
  for (const bool tiles : {false, true}) {
    for (const Format layout : {Format::kNhd, Format::kHnd}) {
      for (const bool in_one : {false, true}) {
        World world({.dtype = tiles ? DType::kBF16 : DType::kF32,
                     .head_dim = tiles ? 64 : 24,
                     .layout = layout,
                     .in_one = in_one});
        Batch mixed;
        for (const auto& [queries, tokens] : {std::pair{1, 1300}, {7, 40}, {1, 16}, {33, 33}}) {
          mixed.add(world.random, queries, tokens);
        }
        const Batch decode = decode_of(world.random, {1, 16, 17, 2100, 0, 250});
        for (const Batch* const batch : {static_cast<const Batch*>(&mixed), &decode}) {
          Status done = world.plan(*batch, [](BatchAttentionPlan& step) { step.causal = true; });
          ASSERT_TRUE(done.ok()) << done.message();
          done = world.run(*batch);
          ASSERT_TRUE(done.ok()) << done.message();
          const AttentionParams params = world.params(batch == &mixed);
          EXPECT_LT(world.error_of(*batch, params), tiles ? 6e-3 : 1e-5);
        }
        EXPECT_EQ(world.attention->target(), tiles ? "cuda-sm90-tiles" : "cuda-sm90-general");
      }
    }
  }
}

TEST(BatchAttention, WindowCapScaleAndMaskAreThoseOfTheCpu) {
  World world;
  Batch batch;
  for (const auto& [queries, tokens] : {std::pair{3, 300}, {5, 9}, {1, 1100}}) {
    batch.add(world.random, queries, tokens);
  }
  struct Case {
    std::function<void(BatchAttentionPlan&)> change;
    AttentionParams params;
  };
  AttentionParams window = world.params(), cap = world.params(), all = world.params(false);
  AttentionParams own = world.params();
  window.rule = GroupRule::of_window(1);  // its own token alone
  cap.soft_cap = 0.5;
  cap.scale = 0.25;
  own.rule = GroupRule::of_window(101);
  own.soft_cap = 3;
  const Case cases[] = {{[](BatchAttentionPlan& step) { step.window_left = 0; }, window},
                        {[](BatchAttentionPlan& step) {
                           step.logits_soft_cap = 0.5;
                           step.sm_scale = 0.25;
                         },
                         cap},
                        {[](BatchAttentionPlan& step) { step.causal = false; }, all},
                        {[](BatchAttentionPlan& step) {
                           step.window_left = 100;
                           step.logits_soft_cap = 3;
                         },
                         own}};
  for (const Case& one : cases) {
    const Status planned = world.plan(batch, [&](BatchAttentionPlan& step) {
      step.causal = true;
      one.change(step);
    });
    ASSERT_TRUE(planned.ok()) << planned.message();
    ASSERT_TRUE(world.run(batch).ok());
    EXPECT_LT(world.error_of(batch, one.params), 1e-5) << &one - cases;
  }
  // A decode with a window.
  const Batch decode = decode_of(world.random, {700, 50, 3});
  ASSERT_TRUE(world.plan(decode, [](BatchAttentionPlan& step) { step.window_left = 100; }).ok());
  ASSERT_TRUE(world.run(decode).ok());
  AttentionParams params = world.params();
  params.rule = GroupRule::of_window(101);
  EXPECT_LT(world.error_of(decode, params), 1e-5);
}

TEST(BatchAttention, AStepOfNoSequencesRuns) {
  World world;
  const Batch none;
  ASSERT_TRUE(world.plan(none).ok());
  EXPECT_TRUE(world.run(none).ok());
}

// ---- plans in flight ----

// A stream that stands keeps what two plans have sent; the third waits for the first.
TEST(BatchAttention, PlansOverACopyThatIsUnderWay) {
  World world;
  world.fake.standing.insert(world.stream.handle());
  std::vector<Batch> batches;
  batches.reserve(4);
  for (int i = 0; i < 4; ++i) {
    batches.push_back(decode_of(world.random, {17 + 40 * i, 5, 200 - 30 * i}));
  }
  for (int i = 0; i < 4; ++i) {
    const Status planned = world.plan(batches[static_cast<std::size_t>(i)]);
    ASSERT_TRUE(planned.ok()) << planned.message();
    ASSERT_TRUE(world.run(batches[static_cast<std::size_t>(i)]).ok());
  }
  world.fake.standing.clear();
  EXPECT_LT(world.error_of(batches.back(), world.params(false)), 1e-5);
}

// What a plan in front wrote to pinned memory is not written over before it is on the device: the
// rows of each, kept apart.
TEST(BatchAttention, ASecondPlanDoesNotReachIntoTheFirst) {
  World world;
  world.fake.moves_percent = 0;  // a stream moves only when a call waits for it
  std::vector<Batch> batches;
  std::vector<std::byte*> outs;
  const std::int64_t bytes = std::int64_t{3} * kHeads * 24 * 4;
  const RowsView first_out = world.out;
  for (int i = 0; i < 6; ++i) {
    batches.push_back(decode_of(world.random, {17 + 40 * i, 5, 200 - 30 * i}));
    outs.push_back(*world.memory->allocate(bytes));
    ASSERT_TRUE(world.plan(batches.back()).ok());
    world.out.data = outs.back();
    ASSERT_TRUE(world.run(batches.back()).ok());
  }
  const auto sum_of = [&](const std::byte* at) {
    std::vector<float> rows(static_cast<std::size_t>(bytes / 4));
    const CopyRun run{reinterpret_cast<std::byte*>(rows.data()), at, bytes};
    KVFOLIO_CHECK(world.stream.synchronize().ok());
    KVFOLIO_CHECK(world.memory->copy_out({&run, 1}));
    return rows;
  };
  std::vector<std::vector<float>> late;
  late.reserve(outs.size());
  for (const std::byte* at : outs) late.push_back(sum_of(at));
  for (std::size_t i = 0; i < batches.size(); ++i) {
    ASSERT_TRUE(world.plan(batches[i]).ok());
    ASSERT_TRUE(world.run(batches[i]).ok());
    EXPECT_EQ(sum_of(world.out.data), late[i]) << i;
    world.memory->deallocate(outs[i], bytes);
    world.out.data = i + 1 < batches.size() ? outs[i + 1] : first_out.data;
  }
}

// ---- graphs ----

// Equal shapes have equal launches, to the last argument: what a graph captured serves them all.
TEST(BatchAttention, LaunchesOfOneShapeAreTheSameOverAThousandPlans) {
  for (const bool tiles : {false, true}) {
    World world({.dtype = tiles ? DType::kBF16 : DType::kF32, .head_dim = tiles ? 64 : 24});
    world.fake.kernel = [](const FakeDriver::Start&) { return [] {}; };
    const auto launches_of = [&] {
      std::vector<std::pair<std::string, std::vector<std::byte>>> made;
      for (const FakeDriver::Launch& launch : world.fake.launches) {
        made.emplace_back(launch.kernel + " " + std::to_string(launch.x), launch.args);
      }
      return made;
    };
    std::map<AttendShape, decltype(launches_of())> known;
    int again = 0;
    for (int i = 0; i < 1000; ++i) {
      // A decode that goes on, and now and then other lengths.
      const std::int32_t at = i % 2 == 0 ? i : static_cast<std::int32_t>(world.random() % 2200);
      const Batch batch = decode_of(world.random, {at, 1 + i / 3, 2000 + i / 10});
      ASSERT_TRUE(world.plan(batch).ok());
      world.fake.launches.clear();
      ASSERT_TRUE(world.run(batch).ok());
      const auto [place, is_new] = known.emplace(world.attention->shape(), launches_of());
      if (is_new) continue;
      ++again;
      ASSERT_EQ(place->second, launches_of()) << i;
    }
    EXPECT_GT(again, 700);
    EXPECT_GT(known.size(), 2u);
  }
}

TEST(BatchAttention, AGraphComputesTheLastPlanOfItsShape) {
  World world;
  std::map<AttendShape, Graph> graphs;
  int replays = 0;
  for (std::int32_t i = 0; i < 40; ++i) {
    const Batch batch = decode_of(world.random, {1000 + i, 3 + i, 17});
    ASSERT_TRUE(world.plan(batch).ok());
    Graph& graph = graphs[world.attention->shape()];
    if (graph.handle() == nullptr) {
      Result<Graph> made =
          Graph::capture(world.device, world.stream.handle(), [&] { return world.run(batch); });
      ASSERT_TRUE(made) << made.error().message();
      graph = *std::move(made);
    } else {
      ++replays;
    }
    ASSERT_TRUE(graph.launch(world.stream.handle()).ok());
    EXPECT_LT(world.error_of(batch, world.params(false)), 1e-5) << i;
  }
  EXPECT_EQ(graphs.size(), 2u) << "up to 1,024 tokens, and behind";
  EXPECT_EQ(replays, 38);
  EXPECT_EQ(world.fake.graph_launches, 40);
}

// As above with plans that are padded: one graph for sequences that come, go and grow.
TEST(BatchAttention, OneGraphComputesEveryStepWithinAPaddedPlansCapacity) {
  for (const bool tiles : {false, true}) {
    WorldOptions options{.dtype = tiles ? DType::kBF16 : DType::kF32, .head_dim = tiles ? 64 : 24};
    options.attention.workspace_bytes = 4 << 20;
    options.attention.padded = true;
    options.attention.max_tokens = 5000;
    World world(options);
    Graph graph;
    const std::vector<std::int32_t> steps[] = {{1000, 3, 17},
                                               {1024, 4},
                                               {1025, 5, 17, 1},
                                               {2240, 2240, 500, 20},
                                               {},
                                               {0, 7, 0},
                                               {300, 200, 100, 50, 40, 30, 20, 10}};
    for (const std::vector<std::int32_t>& lengths : steps) {
      const Batch batch = decode_of(world.random, lengths);
      const Status planned = world.plan(batch);
      ASSERT_TRUE(planned.ok()) << planned.message();
      const AttendShape shape = world.attention->shape();
      if (graph.handle() == nullptr) {
        Result<Graph> made = Graph::capture(world.device, world.stream.handle(), shape,
                                            [&] { return world.run(batch); });
        ASSERT_TRUE(made) << made.error().message();
        graph = *std::move(made);
      }
      const Status launched = graph.launch(world.stream.handle(), shape);
      ASSERT_TRUE(launched.ok()) << launched.message();
      if (lengths.empty()) {
        ASSERT_TRUE(world.stream.synchronize().ok());
        continue;
      }
      EXPECT_LT(world.error_of(batch, world.params(false)), tiles ? 6e-3 : 1e-5);
    }
    EXPECT_EQ(world.fake.graph_launches, 7);
    // Larger than what was captured.
    const auto said = [&](const std::vector<std::int32_t>& lengths) {
      return world.plan(decode_of(world.random, lengths)).message();
    };
    EXPECT_EQ(said({2000, 2000, 1001}),
              "the batch has 5001 tokens of K and V, the capacity is 5000: max_tokens");
    EXPECT_EQ(said(std::vector<std::int32_t>(9, 1)),
              "the plan has 9 sequences, there is room for 8");
    Batch draft;
    draft.add(world.random, 2, 10);
    EXPECT_EQ(world.plan(draft).message(),
              "sequence 0 has 2 queries, the capacity is 1: max_queries");
    EXPECT_NE(world.attention->shape(), AttendShape{}) << "the plan before stays";
  }
}

// Decodes, chunks and verified drafts by one graph: each row sees what is before it.
TEST(BatchAttention, APaddedGraphOfSeveralQueriesIsCausalInEveryStep) {
  WorldOptions options;
  options.attention.workspace_bytes = 8 << 20;
  options.attention.padded = true;
  options.attention.max_queries = 5;
  World world(options);
  Graph graph;
  const std::vector<std::pair<std::int32_t, std::int32_t>> steps[] = {
      {{1, 300}, {1, 7}}, {{5, 40}, {2, 1030}, {1, 9}}, {{3, 3}}, {{0, 8}, {5, 1400}}};
  const auto causal = [](BatchAttentionPlan& step) { step.causal = true; };
  for (const auto& sequences : steps) {
    Batch batch;
    for (const auto& [queries, tokens] : sequences) batch.add(world.random, queries, tokens);
    const Status planned = world.plan(batch, causal);
    ASSERT_TRUE(planned.ok()) << planned.message();
    if (graph.handle() == nullptr) {
      graph = *Graph::capture(world.device, world.stream.handle(), world.attention->shape(),
                              [&] { return world.run(batch); });
    }
    ASSERT_TRUE(graph.launch(world.stream.handle(), world.attention->shape()).ok());
    EXPECT_LT(world.error_of(batch, world.params(true)), 1e-5);
  }
  EXPECT_EQ(world.plan(decode_of(world.random, {30, 4}), causal).message(),
            "qo_indptr is empty, needed: 3 entries, in a decode 0, 1, 2 ...: a padded plan of "
            "max_queries 5 has one mask for decodes and chunks");
}

TEST(BatchAttention, WhatAPaddedGraphKeepsMayNotChangeFromStepToStep) {
  struct Change {
    std::function<void(BatchAttentionPlan&)> make;
    const char* sentence;
  };
  const Change changes[] = {
      {[](BatchAttentionPlan& step) { step.causal = false; },
       "causal is false, that of the first padded plan is true"},
      {[](BatchAttentionPlan& step) { step.sm_scale = 0.25; },
       "sm_scale is 0.25, that of the first padded plan is 0.5"},
      {[](BatchAttentionPlan& step) { step.window_left = 1999; },
       "window_left is 1999, that of the first padded plan is 2000"},
      {[](BatchAttentionPlan& step) { step.window_left = -1; },
       "window_left is -1, that of the first padded plan is 2000"},
      {[](BatchAttentionPlan& step) { step.logits_soft_cap = 30.5; },
       "logits_soft_cap is 30.5, that of the first padded plan is 0"},
  };
  for (const bool padded : {true, false}) {
    WorldOptions options;
    options.attention.workspace_bytes = 8 << 20;
    options.attention.padded = padded;
    options.attention.max_queries = padded ? 3 : 1;
    World world(options);
    Batch batch;
    batch.add(world.random, 2, 50);
    const auto first = [](BatchAttentionPlan& step) {
      step.causal = true;
      step.sm_scale = 0.5;
      step.window_left = 2000;
    };
    ASSERT_TRUE(world.plan(batch, first).ok());
    for (const Change& change : changes) {
      const auto both = [&](BatchAttentionPlan& step) {
        first(step);
        change.make(step);
      };
      const std::string said(world.plan(batch, both).message());
      if (padded) {
        EXPECT_THAT(said, HasSubstr(change.sentence));
      } else {
        EXPECT_EQ(said, "ok");
      }
    }
    ASSERT_TRUE(world.plan(batch, first).ok());
  }
  // The only row of a decode sees the same either way.
  WorldOptions options;
  options.attention.padded = true;
  World world(options);
  const Batch decode = decode_of(world.random, {30, 4});
  ASSERT_TRUE(world.plan(decode).ok());
  const auto causal = [](BatchAttentionPlan& step) { step.causal = true; };
  EXPECT_TRUE(world.plan(decode, causal).ok());
}

TEST(BatchAttention, APlanIsNotMadeWithinACapture) {
  World world;
  const Batch batch = decode_of(world.random, {100, 3});
  ASSERT_TRUE(world.plan(batch).ok());
  const Result<Graph> graph =
      Graph::capture(world.device, world.stream.handle(), [&] { return world.plan(batch); });
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(graph.error().message(), HasSubstr("a plan is made in front of a graph"));
  ASSERT_TRUE(world.run(batch).ok()) << "the plan before stays";
  EXPECT_LT(world.error_of(batch, world.params(false)), 1e-5);
}

// In global mode, as torch captures: what the driver forbids to other threads then.
TEST(BatchAttention, ACaptureOfAnotherThreadNeitherStopsAPlanNorIsBroken) {
  World world;
  world.fake.capture.others = true;
  {
    const auto other = BatchAttention::create(
        world.kernels,
        {.max_sequences = 2, .max_pages_of_sequence = 4, .workspace_bytes = 1 << 20});
    EXPECT_TRUE(other);
  }
  for (int i = 0; i < 4; ++i) {
    const Batch batch = decode_of(world.random, {100 + i, 3});
    ASSERT_TRUE(world.plan(batch).ok());
    ASSERT_TRUE(world.run(batch).ok());
    EXPECT_LT(world.error_of(batch, world.params(false)), 1e-5);
  }
  EXPECT_EQ(world.fake.capture.broken, 0);
  world.fake.capture.others = false;
}

bool g_quiet = false;
DriverCalls calls_of_a_run_that_do_nothing() {
  DriverCalls calls = FakeDriver::calls();
  calls.context_push = [](void* context) { return g_quiet ? 0 : FakeCalls::context_push(context); };
  calls.context_pop = [](void** context) { return g_quiet ? 0 : FakeCalls::context_pop(context); };
  calls.stream_context = [](void*, void** context) {
    *context = FakeCalls::context_of(0);
    return 0;
  };
  calls.pointer_attribute = [](void* value, int attribute, DeviceAddress pointer) {
    if (!g_quiet) return FakeCalls::pointer_attribute(value, attribute, pointer);
    *static_cast<int*>(value) = attribute == 2 ? 2 : 0;
    return 0;
  };
  calls.launch = [](void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    void*, void**, void**) { return 0; };
  calls.launch_with = [](const LaunchConfig*, void*, void**, void**) { return 0; };
  return calls;
}

TEST(BatchAttention, ARunAllocatesNothing) {
  World world;
  const auto device = *Device::open(calls_of_a_run_that_do_nothing(), 0);
  const auto kernels = *load_kernels(device, {}, kImages);
  const auto attention = *BatchAttention::create(
      kernels, {.max_sequences = 4, .max_pages_of_sequence = 140, .workspace_bytes = 1 << 20});
  const Batch batch = decode_of(world.random, {2000, 30, 1});
  const Status planned = attention->plan(world.step(batch), world.stream.handle());
  ASSERT_TRUE(planned.ok()) << planned.message();
  const ConstRowsView q = world.shaped(world.q, 3);
  const RowsView out = world.shaped(world.out, 3);
  g_quiet = true;
  const std::uint64_t before = testing_heap::num_heap_calls();
  const bool ran = attention->run(q, world.cache, out, world.lse, world.stream.handle()).ok();
  const std::uint64_t after = testing_heap::num_heap_calls();
  g_quiet = false;
  EXPECT_TRUE(ran);
  EXPECT_EQ(after, before);
}

// ---- what is refused ----

TEST(BatchAttention, WrongArraysAreNamedAndTheOldPlanStays) {
  World world;
  Batch good;
  for (const auto& [queries, tokens] : {std::pair{2, 300}, {1, 20}}) {
    good.add(world.random, queries, tokens);
  }
  ASSERT_TRUE(world.plan(good).ok());
  static const std::vector<std::byte> mask(1);
  using Change = std::function<void(BatchAttentionPlan&)>;
  const auto with = [](std::vector<std::int32_t> list, std::size_t i, std::int32_t value) {
    list[i] = value;
    return list;
  };
  const std::vector<std::int32_t> from_one = with(good.kv_indptr, 0, 1);
  const std::vector<std::int32_t> falls = with(good.kv_indptr, 1, 40);
  const std::vector<std::int32_t> far = with(good.kv_indices, 3, kPages);
  const std::vector<std::int32_t> below = with(good.kv_indices, 3, -1);
  const std::vector<std::int32_t> nothing = with(good.last, 0, 0);
  const std::vector<std::int32_t> long_page = with(good.last, 1, 17);
  const std::vector<std::int32_t> rows_fall = with(good.qo_indptr, 1, 9);
  const std::vector<std::int32_t> wide{0, 141, 142}, many(10, 0), many_last(9, 1);
  const std::vector<std::int32_t> pages(142, 0);
  const std::pair<Change, std::string> cases[] = {
      {[&](BatchAttentionPlan& s) { s.kv_indptr = from_one; }, "kv_indptr[0] is 1, allowed: 0"},
      {[&](BatchAttentionPlan& s) { s.kv_indptr = falls; },
       "kv_indptr[2] is 21, below kv_indptr[1], which is 40"},
      {[&](BatchAttentionPlan& s) { s.kv_indptr = {}; },
       "kv_indptr has 0 entries, needed: at least 1"},
      {[&](BatchAttentionPlan& s) { s.qo_indptr = rows_fall; },
       "qo_indptr[2] is 3, below qo_indptr[1], which is 9"},
      {[&](BatchAttentionPlan& s) { s.qo_indptr = good.last; },
       "qo_indptr has 2 entries, needed: 3"},
      {[&](BatchAttentionPlan& s) { s.kv_indices = far; },
       "kv_indices[3] is 160, allowed: 0 to 159"},
      {[&](BatchAttentionPlan& s) { s.kv_indices = below; },
       "kv_indices[3] is -1, allowed: 0 to 159"},
      {[&](BatchAttentionPlan& s) { s.kv_indices = s.kv_indices.first(20); },
       "kv_indices has 20 entries, kv_indptr ends at 21"},
      {[&](BatchAttentionPlan& s) { s.kv_last_page_len = nothing; },
       "kv_last_page_len[0] is 0, allowed: 1 to 16, the page_size"},
      {[&](BatchAttentionPlan& s) { s.kv_last_page_len = long_page; },
       "kv_last_page_len[1] is 17, allowed: 1 to 16, the page_size"},
      {[&](BatchAttentionPlan& s) { s.kv_last_page_len = s.kv_last_page_len.first(1); },
       "kv_last_page_len has 1 entries, needed: 2"},
      {[&](BatchAttentionPlan& s) {
         s.kv_indptr = wide;
         s.kv_indices = pages;
       },
       "sequence 0 has 141 pages, there is room for 140"},
      {[&](BatchAttentionPlan& s) {
         s.qo_indptr = {};
         s.kv_indptr = many;
         s.kv_last_page_len = many_last;
       },
       "the plan has 9 sequences, there is room for 8"},
      {[&](BatchAttentionPlan& s) { s.num_qo_heads = 3; },
       "q has 3 heads, allowed: multiples of the 2 KV heads"},
      {[&](BatchAttentionPlan& s) { s.num_qo_heads = 0; },
       "num_qo_heads is 0, allowed: at least 1"},
      {[&](BatchAttentionPlan& s) { s.paged_kv = {}; },
       "paged_kv has 0 pages of 0 tokens, allowed: at least 1 of each"},
      {[&](BatchAttentionPlan& s) { s.window_left = -2; },
       "window_left is -2, allowed: -1 to 1073741824"},
      {[&](BatchAttentionPlan& s) { s.pos_encoding_mode = "ROPE_LLAMA"; },
       "pos_encoding_mode is ROPE_LLAMA, allowed: NONE: rotate q and k before, and for slopes call "
       "attend()"},
      {[&](BatchAttentionPlan& s) { s.custom_mask = mask; },
       "custom_mask is given, allowed: none: causal and window_left alone"},
      {[&](BatchAttentionPlan& s) { s.q_data_type = DType::kF64; },
       "f64 is not allowed on a device: f32, f16, bf16, int8, e4m3"}};
  for (const auto& [change, sentence] : cases)
    EXPECT_EQ(world.plan(good, change).message(), sentence);
  ASSERT_TRUE(world.run(good).ok());
  EXPECT_LT(world.error_of(good, world.params(false)), 1e-5);
}

TEST(BatchAttention, PlansWithoutRoomSayBothNumbers) {
  WorldOptions options;
  options.attention.max_image_bytes = 64;
  World small(options);
  const Batch batch = decode_of(small.random, {300, 300, 300, 300});
  EXPECT_THAT(std::string(small.plan(batch).message()),
              testing::MatchesRegex(
                  "the plan's image has [0-9]+ bytes, there is room for 64: max_image_bytes"));
  EXPECT_EQ(small.run(batch).message(), "run: there is no plan, call plan() first");
  EXPECT_EQ(small.attention->shape(), AttendShape());
  EXPECT_EQ(small.attention->target(), "");
}

TEST(BatchAttention, AWorkspaceThatIsTooSmallSaysBothNumbers) {
  WorldOptions options;
  options.attention.workspace_bytes = 64;
  World world(options);
  EXPECT_THAT(
      std::string(world.plan(decode_of(world.random, {2000})).message()),
      testing::MatchesRegex(
          "the plan needs [0-9]+ bytes of workspace, there is room for 64: workspace_bytes"));
}

TEST(BatchAttention, OptionsAndTensorsAreChecked) {
  World world;
  const auto said = [&](const BatchAttentionOptions& options) {
    const auto made = BatchAttention::create(world.kernels, options);
    return made ? std::string("ok") : std::string(made.error().message());
  };
  EXPECT_EQ(said({.max_sequences = 0, .max_pages_of_sequence = 1}),
            "max_sequences is 0, allowed: 1 to 1048576");
  EXPECT_EQ(said({.max_sequences = 1}), "max_pages_of_sequence is 0, allowed: 1 to 16777216");
  EXPECT_THAT(said({.max_sequences = 1 << 20, .max_pages_of_sequence = 1 << 24}),
              HasSubstr("the bytes of a block table"));
  EXPECT_THAT(said({.max_sequences = 1, .max_pages_of_sequence = 1, .max_image_bytes = 0}),
              HasSubstr("max_image_bytes is 0"));
  EXPECT_THAT(said({.max_sequences = 1, .max_pages_of_sequence = 1, .workspace_bytes = 0}),
              HasSubstr("workspace_bytes is 0"));
  EXPECT_EQ(BatchAttention::create(nullptr, {.max_sequences = 1, .max_pages_of_sequence = 1})
                .error()
                .message(),
            "kernels is null");
  const auto view = [](auto&& change) {
    std::byte byte{};
    PagedKV tensors{.k = &byte,
                    .num_pages = 1,
                    .page_size = 1,
                    .num_kv_heads = 1,
                    .head_dim = 8,
                    .dtype = DType::kF16};
    change(tensors);
    const auto made = paged_kv_view(tensors);
    return made ? std::string("ok") : std::string(made.error().message());
  };
  EXPECT_EQ(view([](PagedKV&) {}), "ok");
  EXPECT_EQ(view([](PagedKV& t) { t.k = nullptr; }), "k is null");
  EXPECT_EQ(view([](PagedKV& t) { t.page_size = 0; }), "page_size is 0, allowed: at least 1");
  EXPECT_EQ(view([](PagedKV& t) { t.layout = Format::kGranule; }),
            "layout is neither kNhd nor kHnd");
  EXPECT_EQ(view([](PagedKV& t) { t.dtype = DType::kE4M3; }),
            "dtype is e4m3, allowed: f32, f16, bf16");
}

// Each call of the driver fails once: it is said, no plan is left half sent, the next try is right.
TEST(BatchAttention, EveryCallOfTheDriverMayFail) {
  World world;
  const Batch batch = decode_of(world.random, {1200, 20});
  int failed = 0;
  for (int at = 1;; ++at) {
    world.fake.count = 0;
    world.fake.fail_at = at;
    auto made = BatchAttention::create(
        world.kernels,
        {.max_sequences = 2, .max_pages_of_sequence = 80, .workspace_bytes = 1 << 16});
    Status status = made ? Status() : made.error();
    if (made) status = (*made)->plan(world.step(batch), world.stream.handle());
    if (made && status.ok()) {
      status = (*made)->run(world.shaped(world.q, 2), world.cache, world.shaped(world.out, 2),
                            world.lse, world.stream.handle());
    }
    const bool was_hit = world.fake.count >= at;
    world.fake.fail_at = 0;
    ASSERT_TRUE(world.fake.current.empty()) << at;
    if (!was_hit) break;
    if (status.ok()) continue;  // of the check for a pointer's memory, or the like
    ++failed;
    if (!made) continue;
    ASSERT_TRUE((*made)->plan(world.step(batch), world.stream.handle()).ok()) << at;
    ASSERT_TRUE((*made)
                    ->run(world.shaped(world.q, 2), world.cache, world.shaped(world.out, 2),
                          world.lse, world.stream.handle())
                    .ok());
    EXPECT_LT(world.error_of(batch, world.params(false)), 1e-5) << at;
  }
  EXPECT_GE(failed, 20);
}

}  // namespace
}  // namespace kvfolio::cuda
