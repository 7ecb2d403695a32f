// SPDX-License-Identifier: Apache-2.0
// Random operations of the model check, through C: 10^5 of all families together (KVFOLIO_OPS);
// KVFOLIO_SEED: the first seed.
//
// Tried with these breaks of src/capi, each of which fails: probe, soon or admit_prompt that
// ignores root, media, no_prefix_cache or no_look_up; open that drops announce; touch or cancel
// without effect; append that drops draft, append_prompt that drops at_most; plan_bytes one too
// many; run_copies that moves no bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include "manager/op_codes.h"
#include "model_check/c_replay.h"
#include "model_check/recorded.h"
#include "operations.h"

namespace kvfolio::model_check {
namespace {

std::uint64_t env(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtoull(value, nullptr, 0) : fallback;
}

CReplay run(Family family, std::uint64_t seed, int operations) {
  Config config = make_config(family, seed);
  config.drafts_ahead = true;
  if (seed % 2 == 0) draw_more(config, seed);
  LogBytes log;
  record(config, seed, operations, log);
  return replay_in_c(log, seed);
}

class ThroughC : public testing::TestWithParam<int> {};

TEST_P(ThroughC, AnswersAreThoseOfCpp) {
  constexpr int kOpsPerRun = 600;
  const auto family = static_cast<Family>(GetParam());
  const auto operations =
      static_cast<std::int64_t>(env("KVFOLIO_OPS", test::operations_by_default(100000))) /
      kNumFamilies;
  std::uint64_t seed = env("KVFOLIO_SEED", 1);
  CReplay all;
  for (std::int64_t left = operations; left > 0; left -= kOpsPerRun, ++seed) {
    const CReplay done =
        run(family, seed, static_cast<int>(std::min<std::int64_t>(left, kOpsPerRun)));
    all.calls += done.calls;
    all.questions += done.questions;
    all.errors += done.errors;
    all.prompts += done.prompts;
    all.found += done.found;
    all.soon += done.soon;
    all.copies += done.copies;
    for (const auto& [name, times] : done.made) all.made[name] += times;
    for (const auto& [name, times] : done.asked) all.asked[name] += times;
  }
  std::cout << "[c] " << to_string(family) << ": " << all.calls << " calls, " << all.questions
            << " questions, " << all.errors << " errors, " << all.copies << " copies; "
            << all.prompts << " prompts, " << all.found << " found, " << all.soon << " announced\n";
  for (const auto* const counts : {&all.made, &all.asked}) {  // --gtest_output=json shows them
    for (const auto& [name, times] : *counts) {
      RecordProperty(std::string(name), static_cast<int>(times));
    }
  }
  EXPECT_GT(all.calls, static_cast<std::uint64_t>(operations / 4));
  EXPECT_GT(all.questions, all.calls / 2);
  EXPECT_GT(all.errors, all.calls / 50);
#define CALL(name, types, is_const)
#define QUESTION(name, ...) EXPECT_GT(all.asked[#name], all.calls / 20) << #name;
#include "manager_calls.inc"
#undef CALL
#undef QUESTION
  for (const char* const of_its_own : {"probe", "soon", "admit_prompt"}) {
    EXPECT_GT(all.asked[of_its_own], all.calls / 10) << of_its_own;
  }
  if (family == Family::kNoCache) return;
  EXPECT_GE(all.found, all.prompts / 20);
  EXPECT_GE(all.soon, all.prompts / 100);
}

TEST(CReplay, EveryCallOfALogGoesThroughC) {
  std::map<std::string_view, std::uint64_t> met;
  for (int i = 0; i < 4 * kNumFamilies; ++i) {
    met.merge(
        run(static_cast<Family>(i % kNumFamilies), 100 + static_cast<std::uint64_t>(i), 600).made);
  }
  for (const OpName& op : kOps) {
    EXPECT_TRUE(op.name == "end" || met.contains(op.name)) << op.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ThroughC, testing::Range(0, kNumFamilies),
                         [](const testing::TestParamInfo<int>& info) {
                           std::string name = to_string(static_cast<Family>(info.param));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace kvfolio::model_check
