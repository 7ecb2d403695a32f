// SPDX-License-Identifier: Apache-2.0
// The copies of a step, with bytes.

#include <gtest/gtest.h>

#include <array>

#include "engine.h"
#include "kvfolio/kernels.h"

namespace kvfolio::testing_engine {
namespace {

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

}  // namespace
}  // namespace kvfolio::testing_engine
