// SPDX-License-Identifier: Apache-2.0
// Caches per layer that are written by slot mapping: what boostr offers; and plans for engines that
// keep their block table on the device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <random>

#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "parity_vectors.h"

namespace kvfolio::parity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_engine::Engine;
using testing_engine::full_group;
using testing_engine::Tokens;
using testing_engine::tokens;
using testing_engine::window_group;

TEST(ParityLayers, AWholeLayerIsAPointerAndStrides) {
  GroupSpec group{.num_layers = 3, .num_kv_heads = 2, .head_dim_k = 4, .head_dim_v = 4};
  group.format = Format::kNhd;
  group.num_blocks = 5;
  KVStorage storage = must(KVStorage::create(CacheSpec{{group}}));
  must(storage.fill(std::byte{0}));
  const KVView view = must(storage.view(GroupId(0)));
  const std::byte* k_of_layer_2 = view.k_at(/*layer=*/2, /*block=*/0, /*head=*/0, /*offset=*/0);
  // k_of_layer_2 + block * view.k_strides.block + offset * view.k_strides.token
  //              + head * view.k_strides.head
  // Written through a slot, found through the strides.
  float written[4] = {1, 2, 3, 4};
  const RowsView row{reinterpret_cast<std::byte*>(written), 16, 16, 1, 1, 4, DType::kF32};
  must(write_token(view, {.layer = 2, .head = 1, .slot = 4 * 16 + 15}, row, row));
  float found[4] = {};
  std::memcpy(
      found,
      k_of_layer_2 + 4 * view.k_strides.block + 15 * view.k_strides.token + 1 * view.k_strides.head,
      sizeof found);
  EXPECT_THAT(found, ElementsAre(1, 2, 3, 4));
}

TEST(ParityLayers, SlotMappingOfAnyRange) {
  Engine e({full_group(16, 8)});
  const SequenceId sequence = e.say(tokens(1, 40));
  std::vector<std::int32_t> slots(5);
  must(e.manager.slot_mapping(sequence, GroupId(0), /*begin=*/14, slots));
  const Tokens table = e.table(sequence);
  EXPECT_THAT(slots, ElementsAre(table[0] * 16 + 14, table[0] * 16 + 15, table[1] * 16,
                                 table[1] * 16 + 1, table[1] * 16 + 2));
  // Fault B7: slots past the length were handed out.
  slots.resize(10);
  const Status status = e.manager.slot_mapping(sequence, GroupId(0), 35, slots);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("10 tokens"), HasSubstr("position 35"),
                                               HasSubstr("has 40")));
}

// Fault B2: setting the blocks of a table lost those it had, and the new ones were not counted.
TEST(ParityLayers, AdoptsBlocksThatAreHeld) {
  KVCacheManager cache = vector_cache(2, 8);
  const SequenceId first = must(cache.open({})).sequence;
  must(append_rows(cache, first, numbers(0, 20 * 2)));
  constexpr std::size_t kBlocksOf20Tokens = 2;  // 16 tokens each
  const SequenceId second = must(cache.open({})).sequence;
  const auto blocks = must(cache.block_table(first, GroupId(0))).first(kBlocksOf20Tokens);
  const std::span<const std::int32_t> tables[] = {blocks};  // one for each group
  must(cache.adopt(second, tables, 20));
  EXPECT_EQ(must(cache.ref_count(GroupId(0), BlockId(blocks[0]))), 2);
  EXPECT_EQ(must(rows_of(cache, second, 0, 20)), numbers(0, 20 * 2));
  // Both go on; the one without the right to write the tail copies it.
  must(append_rows(cache, second, numbers(100, 2)));
  must(append_rows(cache, first, numbers(200, 2)));
  EXPECT_THAT(must(rows_of(cache, second, 20, 1)), ElementsAre(100, 101));
  EXPECT_THAT(must(rows_of(cache, first, 20, 1)), ElementsAre(200, 201));
  EXPECT_EQ(must(rows_of(cache, second, 0, 20)), numbers(0, 20 * 2));
  must(cache.check_invariants());
  must(cache.close(first));
  must(cache.close(second));
  EXPECT_EQ(must(cache.usage(GroupId(0))).free, 8);
}

// Fault B2: what adopt() refuses changes nothing.
TEST(ParityLayers, AdoptRefusesWhatItCannotHold) {
  Engine e({full_group(4, 8), window_group(2, 16, 6)});
  const SequenceId first = e.say(tokens(1, 10));
  const SequenceId second = e.open({}).sequence;
  const Tokens full = e.table(first, 0);
  const Tokens window = e.table(first, 1);
  EXPECT_THAT(window, ElementsAre(-1, -1, testing::Ge(0), testing::Ge(0), testing::Ge(0)));
  const auto adopt = [&](Tokens a, Tokens b, std::int32_t n) {
    const std::span<const std::int32_t> tables[] = {a, b};
    return e.manager.adopt(second, tables, n);
  };
  const auto refused = [&](const Status& status, const char* why) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_EQ(e.info(second).length, 0);
    must(e.manager.check_invariants());
  };
  refused(adopt(full, {}, 10), "group 1 gets 0 blocks");
  refused(adopt({full[0], full[1], 7}, window, 10), "held by nobody");
  refused(adopt({full[0], full[1], 99}, window, 10), "allowed: 0 to 7");
  refused(adopt({full[0], -1, full[2]}, window, 10), "logical block 1: -1");
  refused(adopt({full[0], full[1], full[2]}, {window[2], -1, window[2], window[3], -1}, 10),
          "logical block 4: -1");
  refused(adopt(full, window, 11), "holds 2 tokens, wanted: 3");
  refused(adopt({full[0], full[2], full[1]}, window, 10), "holds 2 tokens, wanted: 4");
  refused(adopt(full, window, -1), "-1");
  const Ticket step = must(e.manager.begin_step());
  refused(adopt(full, window, 10), "is open");
  must(e.manager.drop(step));
  EXPECT_FALSE(e.manager.adopt(second, {}, 0).ok());
  must(adopt(full, window, 10));
  EXPECT_EQ(e.info(second).length, 10);
  refused(
      [&] {
        Status status = adopt(full, window, 10);
        must(e.manager.clear(second));
        return status;
      }(),
      "has 10 tokens");
}

TEST(ParityLayers, AdoptedTokensAreNeverFindable) {
  Engine e({full_group(4, 16)});
  const SequenceId first = e.say(tokens(1, 8));
  const SequenceId second = e.open({}).sequence;
  const Tokens blocks = e.table(first);
  const std::span<const std::int32_t> tables[] = {blocks};
  must(e.manager.adopt(second, tables, 8));
  e.feed(second, tokens(100, 8));
  must(e.manager.close(second));
  EXPECT_EQ(e.probe(tokens(1, 8)), 7);  // the first one's
  EXPECT_EQ(e.probe(tokens(100, 8)), 0);
  EXPECT_EQ(e.usage().cached, 0);
  must(e.manager.check_invariants());
}

// An engine that keeps its table sees the same entries as one that gets it whole.
TEST(ParityLayers, ChangedEntriesKeepADeviceTableUpToDate) {
  for (std::uint32_t seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    Engine e({full_group(4, 64), window_group(2, 96, 6, seed % 2 == 0 ? 2 : 0)},
             {.max_sequences = 6, .order = seed % 3 == 0 ? Order::kUnordered : Order::kInOrder});
    constexpr std::size_t kWidest = 64;
    std::array<std::vector<std::int32_t>, 2> device;
    for (auto& table : device) {
      table.assign(static_cast<std::size_t>(e.manager.num_rows()) * kWidest, -7);
    }
    std::vector<SequenceId> open;
    int compared = 0;
    for (int i = 0; i < 400; ++i) {
      const auto what = random() % 10;
      if (what < 2 && open.size() < 6) {
        open.push_back(e.open(tokens(static_cast<int>(random() % 3), 12)).sequence);
      } else if (what == 2 && !open.empty() && open.size() < 6) {
        open.push_back(must(e.manager.fork(open[random() % open.size()])));
      } else if (what == 3 && !open.empty()) {
        const std::size_t at = random() % open.size();
        must(e.manager.close(open[at]));
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
      } else if (what == 4 && !open.empty()) {
        const SequenceId s = open[random() % open.size()];
        const auto cut = static_cast<std::int32_t>(random() % 4);
        static_cast<void>(e.manager.truncate(s, std::max(0, e.info(s).length - cut)));
      } else if (what == 5 && !open.empty()) {
        static_cast<void>(
            e.manager.trim(open[random() % open.size()], {.num_sinks = 2, .window = 5}));
      }
      const Ticket step = must(e.manager.begin_step());
      for (const SequenceId s : open) {
        if (random() % 3 == 0) continue;
        const int count = 1 + static_cast<int>(random() % 5);
        if (e.info(s).length < 100) static_cast<void>(e.manager.append(s, tokens(i, count)));
      }
      const int plans = 1 + static_cast<int>(random() % 2);
      for (int round = 0; round < plans; ++round) {
        if (round == 1 && !open.empty()) static_cast<void>(e.manager.undo(open[0]));
        const StepPlan& plan = *must(e.manager.plan({.changed_entries = true}));
        for (std::size_t g = 0; g < 2; ++g) {
          const GroupPlan& of = plan.groups[g];
          for (std::size_t c = 0; c < of.changed_rows.size(); ++c) {
            const auto row = static_cast<std::size_t>(of.changed_rows[c]);
            ASSERT_LT(of.changed_rows[c], e.manager.num_rows());
            device[g][row * kWidest + static_cast<std::size_t>(of.changed_columns[c])] =
                of.changed_blocks[c];
          }
          const auto stride = static_cast<std::size_t>(of.block_table_stride);
          for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
            for (std::size_t column = 0; column < stride; ++column) {
              const std::int32_t block = of.block_table[s * stride + column];
              if (block < 0) continue;
              const auto row = static_cast<std::size_t>(plan.rows[s]);
              ASSERT_EQ(device[g][row * kWidest + column], block) << "seed " << seed << " at " << i;
              ++compared;
            }
          }
        }
      }
      if (random() % 8 == 0) {
        must(e.manager.drop(step));
      } else {
        must(e.manager.finish(step));
      }
    }
    EXPECT_GT(compared, 1000);
  }
}

TEST(ParityLayers, SteadyDecodeChangesOneEntryABlock) {
  Engine e({full_group(16, 16)});
  const SequenceId sequence = e.open({}).sequence;
  std::size_t changes = 0;
  for (int i = 0; i < 64; ++i) {
    const Ticket step = must(e.manager.begin_step());
    must(e.manager.append(sequence, Tokens{i}));
    const StepPlan& plan = *must(e.manager.plan({.block_tables = false, .changed_entries = true}));
    changes += plan.groups[0].changed_blocks.size();
    must(e.manager.finish(step));
  }
  EXPECT_EQ(changes, 4u);
}

}  // namespace
}  // namespace kvfolio::parity
