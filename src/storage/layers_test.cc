// SPDX-License-Identifier: Apache-2.0

// One layer of a storage, and memory that an engine lends layer by layer: a tensor for each.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "storage/test_rows.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using testing_rows::Engine;
using testing_rows::for_each_row;
using testing_rows::pattern;
using testing_rows::Row;
using testing_rows::shapes;

constexpr GroupId kGroup{0};

// Calls visit(row, layer, block, head, row of the head, kind) for every row, layer by layer.
template <typename Visit>
void for_each_row_of(const KVStorage& storage, Visit&& visit) {
  for (std::int32_t layer = 0; layer < storage.spec().groups[0].num_layers; ++layer) {
    const KVView view = *storage.view(kGroup, layer);
    ASSERT_EQ(view.num_layers, 1);
    for_each_row(view, [&](Row row, int, int b, int h, int t, int kind) {
      visit(row, layer, b, h, t, kind);
    });
  }
}

void write_pattern(const KVStorage& storage) {
  for_each_row_of(storage, [](Row row, int l, int b, int h, int t, int kind) {
    std::memset(row.data, std::to_integer<int>(pattern(l, b, h, t, kind)),
                static_cast<std::size_t>(row.bytes));
  });
}

// Rows that do not hold the pattern of the block that source[block] names.
int wrong_rows(const KVStorage& storage, const std::vector<int>& source) {
  int wrong = 0;
  for_each_row_of(storage, [&](Row row, int l, int b, int h, int t, int kind) {
    const std::byte want = pattern(l, source[static_cast<std::size_t>(b)], h, t, kind);
    wrong +=
        std::any_of(row.data, row.data + row.bytes, [&](std::byte got) { return got != want; });
  });
  return wrong;
}

// An engine with an allocation for each layer, in an order of its own; the layout of one layer is
// that of plan_layouts(). K and V share the allocation.
struct LayerEngine {
  explicit LayerEngine(const GroupSpec& group, unsigned seed = 1) : spec{.groups = {group}} {
    GroupSpec one = group;
    one.num_layers = 1;
    const GroupLayout layout = plan_layouts({.groups = {one}})->at(0);
    std::vector<std::size_t> order(static_cast<std::size_t>(group.num_layers));
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    memory.resize(order.size());
    for (const std::size_t layer : order) {
      // Allocations of unequal sizes: no two distances are equal by chance.
      const auto more = static_cast<std::int64_t>(layer * layer) * 128;
      memory[layer] = std::make_unique<Engine>(layout.total_bytes + more);
    }
    for (const std::unique_ptr<Engine>& each : memory) {
      const KVView view = make_view(one, layout, each->data());
      const bool own_v = group.head_dim_v > 0 && !group.v_is_prefix_of_k;
      layers.push_back(
          {view.k, own_v ? view.v : nullptr, view.k_scale, own_v ? view.v_scale : nullptr});
      const auto left = [&](const std::byte* from) {
        return from == nullptr ? 0 : layout.total_bytes - (from - each->data());
      };
      lent = {nullptr, left(view.k),       view.k_strides,
              nullptr, left(view.v),       view.v_strides,
              nullptr, left(view.k_scale), view.k_scale_strides,
              nullptr, left(view.v_scale), view.v_scale_strides,
              layers};
    }
  }
  LayerEngine(const LayerEngine&) = delete;
  LayerEngine& operator=(const LayerEngine&) = delete;

  Result<KVStorage> borrow() const { return KVStorage::borrow(spec, {{lent}}); }

  CacheSpec spec;
  std::vector<std::unique_ptr<Engine>> memory;  // by layer
  std::vector<BorrowedLayer> layers;
  BorrowedGroup lent;
};

TEST(LayerView, IsTheRowsOfTheLayerForEveryStorage) {
  for (const GroupSpec& group : shapes()) {
    const CacheSpec spec{.groups = {group}};
    Result<KVStorage> storage = KVStorage::create(spec);
    ASSERT_TRUE(storage);
    const KVView all = *storage->view(kGroup);
    std::vector<std::byte*> want;
    std::vector<std::byte*> got;
    for (std::int32_t layer = 0; layer < group.num_layers; ++layer) {
      for_each_row(all, [&](Row row, int l, int, int, int, int) {
        if (l == layer) want.push_back(row.data);
      });
    }
    for_each_row_of(*storage, [&](Row row, int, int, int, int, int) { got.push_back(row.data); });
    EXPECT_EQ(got, want);
    EXPECT_EQ(storage->view(kGroup, 1)->v == nullptr, group.head_dim_v == 0);
    if (group.v_is_prefix_of_k) {
      EXPECT_EQ(storage->view(kGroup, 1)->v, storage->view(kGroup, 1)->k);
    }
  }
}

TEST(LayerView, LayersAndGroupsThatDoNotExistAreErrorsWithTheNumbers) {
  Result<KVStorage> storage = KVStorage::create({.groups = {shapes()[0]}});
  ASSERT_TRUE(storage);
  for (const std::int32_t layer : {-1, 3, 1 << 30}) {
    const Result<KVView> view = storage->view(kGroup, layer);
    ASSERT_FALSE(view);
    EXPECT_EQ(view.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(view.error().message(),
                HasSubstr("layer " + std::to_string(layer) + ": group 0 has layers 0 to 2"));
  }
  const Result<KVView> view = storage->view(GroupId(1), 0);
  ASSERT_FALSE(view);
  EXPECT_EQ(view.error().code(), ErrorCode::kInvalidArgument);
}

TEST(LentLayers, EveryCallOfStorageReachesEachLayerWhereItLies) {
  for (const GroupSpec& group : shapes()) {
    const LayerEngine engine(group);
    Result<KVStorage> storage = engine.borrow();
    ASSERT_TRUE(storage) << storage.error().message();
    EXPECT_FALSE(storage->owns_memory());
    EXPECT_EQ(storage->memory_bytes(), 0);
    EXPECT_EQ(storage->view(kGroup).error().code(), ErrorCode::kUnsupported);
    for (std::int32_t layer = 0; layer < group.num_layers; ++layer) {
      EXPECT_EQ(storage->view(kGroup, layer)->k, engine.layers[static_cast<std::size_t>(layer)].k);
    }
    write_pattern(*storage);
    EXPECT_EQ(wrong_rows(*storage, {0, 1, 2, 3, 4}), 0);
    const std::int32_t src[] = {0, 3, 2, 4};
    const std::int32_t dst[] = {3, 1, 2, 0};
    ASSERT_TRUE(storage->copy_blocks(kGroup, src, dst).ok());
    EXPECT_EQ(wrong_rows(*storage, {4, 0, 2, 0, 4}), 0);

    // Fill touches rows and nothing between or behind them.
    ASSERT_TRUE(storage->fill(std::byte{0x11}).ok());
    std::int64_t rows = 0;
    for_each_row_of(*storage, [&](Row row, int, int, int, int, int) {
      rows += std::count(row.data, row.data + row.bytes, std::byte{0x11});
    });
    std::int64_t filled = 0;
    for (const auto& each : engine.memory) {
      filled += std::ranges::count(each->memory, std::byte{0x11});
    }
    const std::int64_t per_token = plan_layouts(engine.spec)->at(0).payload_bytes_per_token;
    EXPECT_EQ(rows, per_token * group.num_blocks * group.block_size);
    EXPECT_EQ(filled, rows);
  }
}

TEST(LentLayers, BlocksGoToAndFromAnyOtherStorage) {
  const std::int32_t all[] = {0, 1, 2, 3, 4};
  for (const GroupSpec& group : shapes()) {
    const LayerEngine one(group, 1);
    const LayerEngine other(group, 2);
    Result<KVStorage> from = KVStorage::create(one.spec);
    Result<KVStorage> a = one.borrow();
    Result<KVStorage> b = other.borrow();
    Result<KVStorage> to = KVStorage::create(one.spec);
    ASSERT_TRUE(from && a && b && to);
    write_pattern(*from);
    ASSERT_TRUE(a->copy_blocks_from(*from, kGroup, all).ok());
    EXPECT_EQ(wrong_rows(*a, {0, 1, 2, 3, 4}), 0);
    ASSERT_TRUE(b->copy_blocks_from(*a, kGroup, all).ok());
    EXPECT_EQ(wrong_rows(*b, {0, 1, 2, 3, 4}), 0);
    ASSERT_TRUE(to->copy_blocks_from(*b, kGroup, all).ok());
    EXPECT_EQ(wrong_rows(*to, {0, 1, 2, 3, 4}), 0);
  }
}

// f32 [3 blocks][2 tokens][4] of K, then of V, in one buffer; the test says where each layer is.
struct OneBuffer {
  static constexpr std::int64_t kPlane = 3 * 2 * 16;
  explicit OneBuffer(const std::vector<std::pair<std::int64_t, std::int64_t>>& places)
      : engine(4096) {
    spec.groups.resize(1);
    spec.groups[0] = {.num_layers = static_cast<std::int32_t>(places.size()),
                      .head_dim_k = 4,
                      .head_dim_v = 4,
                      .block_size = 2,
                      .num_blocks = 3};
    for (const auto& [k, v] : places) {
      layers.push_back({engine.data() + k, engine.data() + v, nullptr, nullptr});
    }
    lent.k_bytes = lent.v_bytes = kPlane;
    lent.k_strides = lent.v_strides = {.layer = -7, .block = 32, .token = 16};
    lent.layers = layers;
  }
  [[nodiscard]] Result<KVStorage> borrow() const { return KVStorage::borrow(spec, {{lent}}); }
  Engine engine;
  CacheSpec spec;
  std::vector<BorrowedLayer> layers;
  BorrowedGroup lent;
};

// Where malloc() puts the layers of an engine must not decide what works: at one stride or not.
TEST(LentLayers, OfWhichThereAreSeveralHaveNoCommonViewWhereverTheyLie) {
  using Places = std::vector<std::pair<std::int64_t, std::int64_t>>;
  for (const Places& places : {Places{{0, 1024}, {96, 1216}, {192, 1408}},     // at one stride each
                               Places{{0, 1024}, {96, 1120}, {208, 1216}},     // K is uneven
                               Places{{0, 1024}, {96, 1120}, {192, 1232}},     // V is uneven
                               Places{{192, 1024}, {96, 1120}, {0, 1216}}}) {  // K goes backwards
    const OneBuffer lent(places);
    Result<KVStorage> storage = lent.borrow();
    ASSERT_TRUE(storage) << storage.error().message();
    const Result<KVView> view = storage->view(kGroup);
    ASSERT_FALSE(view);
    EXPECT_EQ(view.error().code(), ErrorCode::kUnsupported);
    EXPECT_THAT(view.error().message(), HasSubstr("group 0: its 3 layers were lent apart"));
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      EXPECT_EQ(storage->view(kGroup, layer)->k, lent.layers[static_cast<std::size_t>(layer)].k);
      EXPECT_EQ(storage->view(kGroup, layer)->v, lent.layers[static_cast<std::size_t>(layer)].v);
    }
  }
  // One layer always has one view.
  EXPECT_TRUE(OneBuffer({{96, 0}}).borrow()->view(kGroup));
}

TEST(LentLayers, EachHostileFieldIsAnErrorThatNamesTheLayer) {
  struct Case {
    const char* says;
    std::function<void(OneBuffer&)> spoil;
  };
  using B = OneBuffer;
  const Case cases[] = {
      {"group 0, layer 1: k is null", [](B& b) { b.layers[1].k = nullptr; }},
      {"group 0, layer 2: v is null", [](B& b) { b.layers[2].v = nullptr; }},
      {"group 0, layer 2: k is at an address", [](B& b) { b.layers[2].k += 2; }},
      {"group 0, layer 0: k_scale is given, but the element type is f32",
       [](B& b) { b.layers[0].k_scale = b.layers[0].k; }},
      {"group 0: layers has 2 entries for 3 layers, allowed: 3 or none",
       [](B& b) { b.lent.layers = std::span(b.layers).first(2); }},
      {"group 0: layers has 3 entries for 4 layers", [](B& b) { b.spec.groups[0].num_layers = 4; }},
      {"group 0: k is given, but layers gives a base", [](B& b) { b.lent.k = b.layers[0].k; }},
      {"group 0: v_scale is given, but layers", [](B& b) { b.lent.v_scale = b.layers[0].k; }},
      {"group 0, layer 0: k ends 96 bytes behind its start, k_bytes is 95",
       [](B& b) { b.lent.k_bytes = 95; }},
      {"group 0, layer 0: v_bytes is -1", [](B& b) { b.lent.v_bytes = -1; }},
      {"group 0, layer 0: k_strides.token is 18", [](B& b) { b.lent.k_strides.token = 18; }},
      {"group 0, layer 0: rows of v overlap", [](B& b) { b.lent.v_strides.block = 16; }},
      {"group 0, layer 2: rows of k overlap rows of k of group 0, layer 1: they begin 80 bytes "
       "apart and reach 96 and 96 bytes",
       [](B& b) { b.layers[2].k = b.layers[1].k + 80; }},
      {"group 0, layer 1: rows of k overlap rows of k of group 0, layer 0: they begin 0 bytes",
       [](B& b) { b.layers[1].k = b.layers[0].k; }},
      {"group 0, layer 0: rows of v overlap rows of k",
       [](B& b) { b.layers[0].v = b.layers[0].k + 16; }},
      {"group 0, layer 2: rows of k overlap rows of v of group 0, layer 0",
       [](B& b) { b.layers[2].k = b.layers[0].v + 64; }},
      {"group 0, layer 0: v is given, but head_dim_v is 0",
       [](B& b) { b.spec.groups[0].head_dim_v = 0; }},
  };
  for (const Case& c : cases) {
    OneBuffer buffer({{0, 1024}, {112, 1216}, {256, 1408}});
    ASSERT_TRUE(buffer.borrow()) << buffer.borrow().error().message();
    c.spoil(buffer);
    const Result<KVStorage> storage = buffer.borrow();
    ASSERT_FALSE(storage) << c.says;
    EXPECT_EQ(storage.error().code(), ErrorCode::kInvalidArgument) << c.says;
    EXPECT_THAT(storage.error().message(), HasSubstr(c.says));
  }
}

// A hybrid model: one buffer [6 layers][3 blocks][2 tokens][4], where every third layer is of the
// full group and the others are of the window group.
TEST(LentLayers, OfTwoGroupsMayAlternateInOneBuffer) {
  GroupSpec full{.num_layers = 2, .head_dim_k = 4, .block_size = 2, .num_blocks = 3};
  GroupSpec window = full;
  window.num_layers = 4;
  const CacheSpec spec{.groups = {full, window}};
  Engine engine(6 * 96);
  BorrowedGroup lent[2];
  std::vector<BorrowedLayer> layers[2];
  for (std::int64_t layer = 0; layer < 6; ++layer) {
    layers[layer % 3 == 2 ? 0 : 1].push_back({.k = engine.data() + layer * 96});
  }
  for (int g = 0; g < 2; ++g) {
    lent[g].k_bytes = 96;
    lent[g].k_strides = {.block = 32, .token = 16};
    lent[g].layers = layers[g];
  }
  Result<KVStorage> storage = KVStorage::borrow(spec, lent);
  ASSERT_TRUE(storage) << storage.error().message();
  EXPECT_FALSE(storage->view(GroupId(0)));
  EXPECT_FALSE(storage->view(GroupId(1)));
  // The full group lent at a stride: the same rows.
  BorrowedGroup at_stride[2] = {lent[0], lent[1]};
  at_stride[0].layers = {};
  at_stride[0].k = engine.data() + 2 * 96;
  at_stride[0].k_bytes = 4 * 96;
  at_stride[0].k_strides.layer = 3 * 96;
  storage = KVStorage::borrow(spec, at_stride);
  ASSERT_TRUE(storage) << storage.error().message();
  EXPECT_TRUE(storage->view(GroupId(0)));

  layers[1][2].k += 80;
  const Result<KVStorage> bad = KVStorage::borrow(spec, lent);
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().message(), HasSubstr("group 1, layer 3: rows of k overlap rows of k of "
                                               "group 1, layer 2: they begin 16 bytes apart"));
  layers[1][2].k += 32;
  layers[1][3].k -= 96;
  const Result<KVStorage> across = KVStorage::borrow(spec, lent);
  ASSERT_FALSE(across);
  EXPECT_THAT(across.error().message(), HasSubstr("group 1, layer 2: rows of k overlap"));
}

TEST(LentLayers, OfADeviceAreOfADevice) {
  class Device final : public MemoryResource {
   public:
    [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kDevice; }
    Result<std::byte*> allocate(std::int64_t) override { return nullptr; }
    void deallocate(std::byte*, std::int64_t) noexcept override {}
    Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
      ++num_copies;
      std::memcpy(dst, src, static_cast<std::size_t>(bytes));
      return {};
    }
    int num_copies = 0;
  };
  Device device;
  const OneBuffer buffer({{0, 1024}, {112, 1216}, {256, 1408}});
  Result<KVStorage> storage = KVStorage::borrow(buffer.spec, {{buffer.lent}}, &device);
  ASSERT_TRUE(storage);
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(storage->view(kGroup, layer)->memory_kind, MemoryKind::kDevice);
  }
  EXPECT_EQ(storage->fill(std::byte{0}).code(), ErrorCode::kUnsupported);
  const std::int32_t src[] = {0};
  const std::int32_t dst[] = {1};
  ASSERT_TRUE(storage->copy_blocks(kGroup, src, dst).ok());
  EXPECT_EQ(device.num_copies, 3 * 2);
}

TEST(LentLayers, WhatIsAcceptedNeverOverlapsForRandomBasesAndStrides) {
  constexpr unsigned kSeed = 20261123;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto pick = [&](int low, int high) {
    return static_cast<std::int32_t>(
        low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
  };
  constexpr std::int64_t kBytes = 320;
  Engine engine(kBytes);
  std::byte* const base = engine.data();
  int accepted = 0;
  for (int round = 0; round < 200000; ++round) {
    const GroupSpec spec{.num_layers = pick(1, 3),
                         .num_kv_heads = pick(1, 2),
                         .head_dim_k = pick(1, 2),
                         .head_dim_v = pick(0, 2),
                         .block_size = pick(1, 2),
                         .dtype = DType::kF16,
                         .num_blocks = pick(1, 2)};
    const auto stride = [&] { return std::int64_t{2} * pick(0, 12); };
    std::vector<BorrowedLayer> layers;
    for (std::int32_t l = 0; l < spec.num_layers; ++l) {
      std::byte* const k = base + 2 * pick(0, 120);
      layers.push_back({.k = k, .v = spec.head_dim_v > 0 ? base + 2 * pick(0, 120) : nullptr});
    }
    BorrowedGroup lent{.k_bytes = 80, .v_bytes = 80, .layers = layers};
    lent.k_strides = {stride(), stride(), stride(), stride()};
    lent.v_strides = {stride(), stride(), stride(), stride()};
    Result<KVStorage> storage = KVStorage::borrow({.groups = {spec}}, {{lent}});
    if (!storage) continue;
    ++accepted;
    std::vector<int> owner(kBytes, 0);
    const auto claim = [&](Row row) {
      ASSERT_GE(row.data, base);
      ASSERT_LE(row.data + row.bytes, base + kBytes);
      for (std::int64_t i = 0; i < row.bytes; ++i) {
        ASSERT_EQ(owner[static_cast<std::size_t>(row.data - base + i)]++, 0) << "round " << round;
      }
    };
    for_each_row_of(*storage, [&](Row row, int, int, int, int, int) { claim(row); });
    EXPECT_EQ(storage->view(kGroup).has_value(), spec.num_layers == 1);
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace kvfolio
