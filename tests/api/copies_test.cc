// SPDX-License-Identifier: Apache-2.0
// The copies of a step, with bytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "engine.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"
#include "storage/failing_memory.h"

namespace kvfolio::testing_engine {
namespace {

using testing::HasSubstr;

// Every element of K and V of one token of a cache of [8 elements, one head, one layer] in f32.
using Row = std::array<float, 8>;

void write(const KVView& cache, std::int32_t slot, float value) {
  Row row;
  row.fill(value);
  const ConstRowsView rows(reinterpret_cast<const std::byte*>(row.data()), sizeof row, sizeof row,
                           1, 1, 8, DType::kF32);
  must(write_token(cache, {.slot = slot}, rows, rows));
}

float read(const KVView& cache, std::int32_t slot) {
  Row k{};
  Row v{};
  RowsView rows{.token_stride = sizeof k,
                .head_stride = sizeof k,
                .num_tokens = 1,
                .num_heads = 1,
                .head_dim = 8,
                .dtype = DType::kF32};
  RowsView k_rows = rows;
  RowsView v_rows = rows;
  k_rows.data = reinterpret_cast<std::byte*>(k.data());
  v_rows.data = reinterpret_cast<std::byte*>(v.data());
  must(read_token(cache, {.slot = slot}, k_rows, v_rows));
  EXPECT_EQ(k[0], v[7]);
  return k[0];
}

TEST(Copies, RunBeforeTheTokensOfTheirStepAreWritten) {
  GroupSpec group = full_group(4, 8);
  group.dtype = DType::kF32;
  KVCacheManager manager =
      must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{group}}))));
  const KVView cache = must(manager.storage()->view(GroupId(0)));
  const auto slots = [&] { return must(manager.plan())->groups[0].slot_mapping; };

  const SequenceId parent = must(manager.open(tokens(1, 6))).sequence;
  const Ticket first = must(manager.begin_step());
  must(manager.append(parent, tokens(1, 6)));
  for (std::int32_t i = 0; const std::int32_t slot : slots()) {
    write(cache, slot, static_cast<float>(++i));
  }
  must(manager.finish(first));

  const SequenceId child = must(manager.fork(parent));
  const Ticket second = must(manager.begin_step());
  must(manager.append(child, Tokens{99}));
  const std::int32_t written = slots()[0];
  must(manager.run_copies());
  write(cache, written, 99.0F);
  must(manager.finish(second));

  Tokens of_child(7);
  must(manager.slot_mapping(child, GroupId(0), 0, of_child));
  for (std::size_t i = 0; i < 6; ++i)
    EXPECT_EQ(read(cache, of_child[i]), static_cast<float>(i + 1));
  EXPECT_EQ(of_child[6], written);
  EXPECT_EQ(read(cache, written), 99.0F);
}

// An engine with one tensor of K and one of V for each layer, lent to the library.
struct LayerTensors {
  explicit LayerTensors(const GroupSpec& group) {
    const std::int64_t bytes =
        std::int64_t{group.num_blocks} * group.block_size * group.head_dim_k * 4;
    // The last layer comes first in memory: no stride reaches all layers.
    for (std::int32_t l = 0; l < 2 * group.num_layers; ++l) {
      tensors.emplace_back(static_cast<std::size_t>(bytes / 4));
    }
    for (std::int32_t l = group.num_layers; l-- > 0;) {
      const std::size_t at = 2 * static_cast<std::size_t>(l);
      layers.push_back({.k = reinterpret_cast<std::byte*>(tensors[at].data()),
                        .v = reinterpret_cast<std::byte*>(tensors[at + 1].data())});
    }
    lent.k_bytes = lent.v_bytes = bytes;
    lent.k_strides.token = group.head_dim_k * 4;
    lent.k_strides.block = group.block_size * lent.k_strides.token;
    lent.v_strides = lent.k_strides;
    lent.layers = layers;
  }
  std::vector<std::vector<float>> tensors;
  std::vector<BorrowedLayer> layers;
  BorrowedGroup lent;
};

TEST(Copies, ReachEachLayerOfMemoryThatIsLentLayerByLayer) {
  GroupSpec group = full_group(4, 8);
  group.num_layers = 3;
  LayerTensors tensors(group);
  LayerTensors others(group);
  const auto managed = [&](LayerTensors& memory) {
    return must(
        KVCacheManager::create(must(KVStorage::borrow(CacheSpec{{group}}, {{memory.lent}}))));
  };
  KVCacheManager manager = managed(tensors);
  const auto layer_view = [](KVCacheManager& of, std::int32_t layer) {
    return must(of.storage()->view(GroupId(0), layer));
  };

  const SequenceId parent = must(manager.open(tokens(1, 6))).sequence;
  const Ticket first = must(manager.begin_step());
  must(manager.append(parent, tokens(1, 6)));
  for (std::int32_t i = 0; const std::int32_t slot : must(manager.plan())->groups[0].slot_mapping) {
    ++i;
    for (std::int32_t l = 0; l < 3; ++l) {
      write(layer_view(manager, l), slot, static_cast<float>(100 * l + i));
    }
  }
  must(manager.finish(first));

  // The fork writes to the shared tail: a copy in every layer.
  const SequenceId child = must(manager.fork(parent));
  const Ticket second = must(manager.begin_step());
  must(manager.append(child, Tokens{99}));
  ASSERT_EQ(must(manager.plan())->groups[0].copy_src.size(), 1U);
  const std::int32_t written = must(manager.plan())->groups[0].slot_mapping[0];
  must(manager.run_copies());
  for (std::int32_t l = 0; l < 3; ++l) write(layer_view(manager, l), written, -1.0F);
  must(manager.finish(second));

  KVCacheManager copy = managed(others);
  must(manager.copy_to(copy));
  Tokens of_parent(6);
  Tokens of_child(7);
  for (KVCacheManager* each : {&manager, &copy}) {
    must(each->slot_mapping(parent, GroupId(0), 0, of_parent));
    must(each->slot_mapping(child, GroupId(0), 0, of_child));
    EXPECT_NE(of_parent[5], of_child[5]);
    for (std::int32_t l = 0; l < 3; ++l) {
      const KVView view = layer_view(*each, l);
      for (std::size_t i = 0; i < 6; ++i) {
        const float want = static_cast<float>(100 * l + static_cast<std::int32_t>(i) + 1);
        EXPECT_EQ(read(view, of_parent[i]), want);
        EXPECT_EQ(read(view, of_child[i]), want);
      }
      EXPECT_EQ(read(view, of_child[6]), -1.0F);
    }
  }
}

TEST(Copies, RunOnceAndThenTheStepTakesNoMoreAppends) {
  KVCacheManager manager =
      must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{full_group(4, 8)}}))));
  EXPECT_EQ(manager.run_copies().code(), ErrorCode::kFailedPrecondition);  // no step
  const SequenceId a = must(manager.open(tokens(1, 6))).sequence;
  const SequenceId b = must(manager.open(tokens(50, 6))).sequence;
  const Ticket ticket = must(manager.begin_step());
  must(manager.append(a, tokens(1, 6)));
  must(manager.run_copies());
  EXPECT_EQ(manager.run_copies().code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(manager.append(b, tokens(50, 6)).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(must(manager.info(b)).length, 0);
  must(manager.finish(ticket));
  const Ticket next = must(manager.begin_step());
  must(manager.append(b, tokens(50, 6)));
  must(manager.run_copies());
  must(manager.finish(next));
}

// Two forks of one tail are two copies of three layers. Each run fails once: then the step stands
// as before, its tails have the bytes of their source once the copies ran again, and after drop()
// too nothing is lost.
TEST(Copies, ThatFailAreSaidAndTheStepMayRunThemAgainOrBeDropped) {
  GroupSpec group = full_group(4, 8);
  group.num_layers = 3;
  for (const bool drops : {false, true}) {
    bool fails = true;
    for (std::int64_t at = 1; fails; ++at) {
      test::FailingMemory memory;
      KVCacheManager manager =
          must(KVCacheManager::create(must(KVStorage::create(CacheSpec{{group}}, &memory))));
      const SequenceId parent = must(manager.open(tokens(1, 6))).sequence;
      const Ticket first = must(manager.begin_step());
      must(manager.append(parent, tokens(1, 6)));
      must(manager.plan());
      must(manager.finish(first));
      const std::int32_t source = must(manager.block_table(parent, GroupId(0)))[1];
      std::vector<std::byte> image(std::size_t(manager.storage()->block_image_bytes(GroupId(0))));
      for (std::size_t i = 0; i < image.size(); ++i) image[i] = std::byte(i * 7);
      must(manager.storage()->write_blocks(GroupId(0), {&source, 1}, image));
      const SequenceId forks[] = {must(manager.fork(parent)), must(manager.fork(parent))};
      Ticket ticket = must(manager.begin_step());
      for (const SequenceId fork : forks) must(manager.append(fork, Tokens{99}));
      must(manager.plan());
      memory.fail_run(at);
      const Status copied = manager.run_copies();
      memory.fail_run(0);
      fails = !copied.ok();
      EXPECT_TRUE(fails || at > 6) << "2 copies of 3 layers";
      if (fails) {
        EXPECT_EQ(copied.code(), ErrorCode::kUnavailable);
        EXPECT_THAT(copied.message(), HasSubstr("the cable was cut"));
        EXPECT_EQ(manager.commit(ticket).code(), ErrorCode::kFailedPrecondition);
        must(manager.check_invariants());
        if (drops) {
          must(manager.drop(ticket));
          ticket = must(manager.begin_step());
          for (const SequenceId fork : forks) must(manager.append(fork, Tokens{98}));
          must(manager.plan());
        }
        must(manager.run_copies());
      }
      must(manager.finish(ticket));
      must(manager.check_invariants());
      for (const SequenceId each : {parent, forks[0], forks[1]}) {
        const std::int32_t tail = must(manager.block_table(each, GroupId(0)))[1];
        std::vector<std::byte> got(image.size());
        must(manager.storage()->read_blocks(GroupId(0), {&tail, 1}, got));
        EXPECT_EQ(got, image);
      }
    }
  }
}

}  // namespace
}  // namespace kvfolio::testing_engine
