// SPDX-License-Identifier: Apache-2.0
// The random operations of the model check, recorded and made again: the replay answers alike and
// ends in the same state. KVFOLIO_OPS: operations of all families together (default 100,000, a
// third under a sanitizer); KVFOLIO_SEED: the first seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>

#include "api/op_log_pieces.h"
#include "kvfolio/op_replay.h"
#include "model_check/recorded.h"
#include "operations.h"

namespace kvfolio::model_check {
namespace {

constexpr int kOpsPerRun = 600;

std::uint64_t env(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtoull(value, nullptr, 0) : fallback;
}

std::uint64_t record_family(Family family, std::uint64_t seed, int operations, LogBytes& log) {
  Config config = make_config(family, seed);
  config.drafts_ahead = true;
  return record(config, seed, operations, log);
}

class OpLogReplay : public testing::TestWithParam<int> {};

TEST_P(OpLogReplay, AnswersAlikeAndEndsInTheSameState) {
  const auto family = static_cast<Family>(GetParam());
  const auto operations =
      static_cast<std::int64_t>(env("KVFOLIO_OPS", test::operations_by_default(100000))) /
      kNumFamilies;
  std::uint64_t seed = env("KVFOLIO_SEED", 1);
  std::uint64_t calls = 0;
  std::size_t bytes = 0;
  double replaying = 0;
  for (std::int64_t left = operations; left > 0; left -= kOpsPerRun, ++seed) {
    LogBytes log;
    const int now = static_cast<int>(std::min<std::int64_t>(left, kOpsPerRun));
    const std::uint64_t live = record_family(family, seed, now, log);
    const auto start = std::chrono::steady_clock::now();
    Result<Replay> replay = replay_log(log);
    ASSERT_TRUE(replay) << replay.error().message();
    replaying += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ASSERT_TRUE(replay->broken.ok()) << "seed " << seed << ": " << replay->broken.message();
    ASSERT_FALSE(replay->difference)
        << "family " << to_string(family) << " seed " << seed << " call "
        << replay->difference->call << " " << replay->difference->name << "("
        << replay->difference->arguments << "): recorded " << replay->difference->recorded
        << ", now " << replay->difference->replayed;
    ASSERT_TRUE(replay->log.ended);
    EXPECT_EQ(replay->log.state_hash, live) << "seed " << seed;
    const Result<std::uint64_t> again = replay->manager.state_hash();
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, live) << "seed " << seed;
    EXPECT_TRUE(replay->manager.check_invariants().ok());
    calls += replay->log.num_calls;
    bytes += log.bytes.size();
  }
  std::cout << "[log] " << to_string(family) << ": " << operations << " operations, " << calls
            << " calls, " << bytes << " bytes, replayed in " << replaying << " s\n";
  EXPECT_GT(calls, static_cast<std::uint64_t>(operations / 4));
}

INSTANTIATE_TEST_SUITE_P(Families, OpLogReplay, testing::Range(0, kNumFamilies),
                         [](const testing::TestParamInfo<int>& info) {
                           std::string name = to_string(static_cast<Family>(info.param));
                           std::erase(name, '-');
                           return name;
                         });

// Where each call begins among `calls`, by reading longer and longer beginnings of them.
std::vector<std::size_t> begins_of_calls(const LogBytes& log, std::span<const std::byte> calls) {
  std::vector<std::size_t> begins = {0};
  for (std::size_t size = 1; size <= calls.size(); ++size) {
    LogBytes head;
    head.bytes = op_log_pieces::log_of(log.bytes, calls.first(size));
    Result<OpLogReader> reader = OpLogReader::open(head);
    KVFOLIO_REQUIRE(reader.has_value(), reader ? "" : reader.error().message());
    for (Result<std::optional<LoggedCall>> call = reader->next(); call && *call;) {
      call = reader->next();
    }
    if (reader->end().num_calls >= begins.size()) begins.push_back(size);
  }
  return begins;
}

TEST(OpLogReplay, ALogWithOneCallDeletedNamesIt) {
  LogBytes log;
  record_family(Family::kFullAndWindow, 5, 60, log);
  const op_log_pieces::Bytes calls = op_log_pieces::calls_of(log.bytes);
  const std::vector<std::size_t> begins = begins_of_calls(log, calls);
  ASSERT_GT(begins.size(), 20U);
  for (std::size_t call = 1; call < begins.size(); ++call) {
    op_log_pieces::Bytes others = calls;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(begins[call - 1]),
                 others.begin() + static_cast<std::ptrdiff_t>(begins[call]));
    LogBytes less;
    less.bytes = op_log_pieces::log_of(log.bytes, others);
    const Result<Replay> replay = replay_log(less);
    ASSERT_TRUE(replay) << replay.error().message();
    EXPECT_FALSE(replay->difference);
    EXPECT_EQ(replay->log.num_calls, call - 1);
    ASSERT_FALSE(replay->broken.ok()) << call;
    const std::string what = replay->broken.message();
    const std::string wanted = call + 1 == begins.size()
                                   ? "it ends after " + std::to_string(call - 1) + " calls"
                                   : "call " + std::to_string(call) + " is missing";
    EXPECT_NE(what.find(wanted), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace kvfolio::model_check
