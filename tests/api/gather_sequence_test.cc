// SPDX-License-Identifier: Apache-2.0
//
// gather(manager, sequence, ...): K and V of a sequence without its table.

#include "kvfolio/gather_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "engine.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"

namespace kvfolio::testing_engine {
namespace {

using Floats = std::vector<float>;

// A full group and one with a window, of two layers, whose K is 100 * layer + token in both of its
// elements, and whose V is that and a half.
class GatherSequence : public ::testing::Test {
 protected:
  static GroupSpec small(GroupSpec group) {
    group.num_layers = 2;
    group.head_dim_k = group.head_dim_v = 2;
    return group;
  }

  GatherSequence()
      : manager(must(KVCacheManager::create(must(
            KVStorage::create({{small(full_group(4, 16)), small(window_group(4, 16, 5))}}))))) {}

  static float k_of(std::int32_t layer, std::int32_t token) {
    return static_cast<float>(100 * layer + token);
  }
  void write_step(const Tokens& said) {
    const StepPlan& plan = *must(manager.plan());
    must(manager.run_copies());
    for (std::int32_t g = 0; g < 2; ++g) {
      const KVView view = must(manager.storage()->view(GroupId(g)));
      for (std::int32_t layer = 0; layer < 2; ++layer) {
        for (std::size_t i = 0; i < said.size(); ++i) {
          const float value = k_of(layer, said[i]);
          const std::array<float, 2> k = {value, value};
          const std::array<float, 2> v = {value + 0.5F, value + 0.5F};
          const std::int32_t slot = plan.groups[static_cast<std::size_t>(g)].slot_mapping[i];
          must(append(view, layer, contiguous_rows(k.data(), 1, 1, 2),
                      contiguous_rows(v.data(), 1, 1, 2), {&slot, 1}));
        }
      }
    }
  }
  void say(SequenceId sequence, const Tokens& said) {
    const Ticket ticket = must(manager.begin_step());
    must(manager.append(sequence, said));
    write_step(said);
    must(manager.finish(ticket));
  }
  SequenceId open(const Tokens& prompt) {
    const Opened opened = must(manager.open(prompt));
    say(opened.sequence, Tokens(prompt.begin() + opened.cached_tokens, prompt.end()));
    return opened.sequence;
  }
  // The first elements of the rows of K and V.
  Floats k_and_v(SequenceId sequence, const GatherFrom& from, std::int32_t n) {
    Floats k(static_cast<std::size_t>(2 * n));
    Floats v(static_cast<std::size_t>(2 * n));
    must(gather(manager, sequence, from, contiguous_rows(k.data(), n, 1, 2),
                contiguous_rows(v.data(), n, 1, 2)));
    Floats all;
    for (std::size_t i = 0; i < k.size(); i += 2) all.push_back(k[i]);
    for (std::size_t i = 0; i < v.size(); i += 2) all.push_back(v[i]);
    return all;
  }
  Status refusal(SequenceId sequence, const GatherFrom& from, std::int32_t n) {
    Floats k(static_cast<std::size_t>(2 * n), -1);
    const Floats before = k;
    Status status = gather(manager, sequence, from, contiguous_rows(k.data(), n, 1, 2));
    EXPECT_EQ(k, before);
    return status;
  }

  KVCacheManager manager;
};

TEST_F(GatherSequence, GivesTheRowsOfALayerInTheirOrder) {
  open(tokens(40, 3));  // so that blocks do not begin with 0
  const SequenceId sequence = open(tokens(1, 6));
  EXPECT_EQ(k_and_v(sequence, {}, 6), (Floats{1, 2, 3, 4, 5, 6, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5}));
  EXPECT_EQ(k_and_v(sequence, {.layer = 1, .first = 3}, 2), (Floats{104, 105, 104.5, 105.5}));
  EXPECT_EQ(k_and_v(sequence, {.group = GroupId(1), .layer = 1, .first = 4}, 2),
            (Floats{105, 106, 105.5, 106.5}));
}

TEST_F(GatherSequence, AForkThatWentItsOwnWayHasItsOwnRows) {
  const SequenceId parent = open(tokens(1, 6));
  const SequenceId child = must(manager.fork(parent));
  say(child, {70});
  say(parent, {80});
  EXPECT_EQ(k_and_v(child, {.first = 5}, 2), (Floats{6, 70, 6.5, 70.5}));
  EXPECT_EQ(k_and_v(parent, {.first = 5}, 2), (Floats{6, 80, 6.5, 80.5}));
}

TEST_F(GatherSequence, WhatTheOpenStepHasWrittenCounts) {
  const SequenceId sequence = open(tokens(1, 2));
  const Ticket ticket = must(manager.begin_step());
  must(manager.append(sequence, Tokens{3}));
  write_step({3});
  EXPECT_EQ(k_and_v(sequence, {}, 3), (Floats{1, 2, 3, 1.5, 2.5, 3.5}));
  must(manager.finish(ticket));
}

TEST_F(GatherSequence, NothingIsWrittenWhereNothingIsWanted) {
  const SequenceId sequence = open(tokens(1, 6));
  EXPECT_TRUE(gather(manager, sequence, {}, {}, {}).ok());
  EXPECT_TRUE(refusal(sequence, {.first = 6}, 0).ok());
  EXPECT_TRUE(refusal(sequence, {.first = 2}, 0).ok());
  const SequenceId empty = must(manager.open({})).sequence;
  EXPECT_TRUE(refusal(empty, {}, 0).ok());
}

TEST_F(GatherSequence, WhatIsNotThereIsNamed) {
  const SequenceId sequence = open(tokens(1, 20));
  const auto says = [&](const Status& status, ErrorCode code, const std::string& text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), text);
  };
  says(refusal(sequence, {.first = 15}, 6), kInvalid,
       "gather of 6 positions from 15 on: sequence 0.1 has 20 tokens");
  says(refusal(sequence, {.first = -1}, 1), kInvalid,
       "gather of 1 positions from -1 on: sequence 0.1 has 20 tokens");
  says(refusal(sequence, {.group = GroupId(1)}, 20), kMoment,
       "gather of positions 0 to 19: the window has dropped 0");
  EXPECT_EQ(refusal(sequence, {.group = GroupId(2)}, 1).code(), kInvalid);
  EXPECT_EQ(refusal(sequence, {.layer = 2}, 1).code(), kInvalid);
  must(manager.trim(sequence, {.num_sinks = 2, .window = 10}));
  says(refusal(sequence, {}, 20), kMoment, "gather of positions 0 to 19: a trim has dropped 2");
  says(refusal(sequence, {.first = 9}, 11), kMoment,
       "gather of positions 9 to 19: a trim has dropped 9");
  EXPECT_TRUE(refusal(sequence, {.first = 10}, 0).ok());
  EXPECT_EQ(k_and_v(sequence, {}, 2), (Floats{1, 2, 1.5, 2.5}));
  EXPECT_EQ(k_and_v(sequence, {.first = 18}, 2), (Floats{19, 20, 19.5, 20.5}));
  must(manager.close(sequence));
  EXPECT_EQ(refusal(sequence, {}, 1).code(), ErrorCode::kNotFound);
}

TEST_F(GatherSequence, RowsThatDoNotFitAreRefused) {
  const SequenceId sequence = open(tokens(1, 6));
  Floats room(100, -1);
  const auto rows = [&](std::int32_t n, std::int32_t dim) {
    return contiguous_rows(room.data(), n, 1, dim);
  };
  EXPECT_EQ(gather(manager, sequence, {}, rows(6, 3)).code(), kInvalid);
  EXPECT_EQ(gather(manager, sequence, {}, rows(6, 2), rows(5, 2)).message(),
            "gather: 5 rows of v for 6 of k");
  EXPECT_EQ(gather(manager, sequence, {}, rows(-1, 2)).code(), kInvalid);
  EXPECT_EQ(gather(manager, sequence, {}, rows(6, 2), rows(0, 2)).code(), kInvalid);
  EXPECT_EQ(gather(manager, sequence, {}, contiguous_rows(static_cast<float*>(nullptr), 0, 1, 2),
                   rows(6, 2))
                .message(),
            "gather: 6 rows of v for 0 of k");
  EXPECT_EQ(room, Floats(100, -1));
}

TEST(Gather, AManagerWithoutStorageSaysSo) {
  Engine e({full_group(4, 8)});
  const SequenceId sequence = e.say(tokens(1, 4));
  Floats k(8);
  const Status status = gather(e.manager, sequence, {}, contiguous_rows(k.data(), 1, 1, 8));
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("the manager has no storage"));
}

}  // namespace
}  // namespace kvfolio::testing_engine
