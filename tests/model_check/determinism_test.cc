// SPDX-License-Identifier: Apache-2.0
// The same calls give the same ids and the same plans; calls that promise to change nothing do not
// even change what comes later.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "model_check/runs.h"

namespace kvfolio::model_check {
namespace {

// The operation log of `steps` engine steps. `noise` bytes shift what the allocator gives.
std::string write_log(Family family, std::uint64_t seed, std::uint64_t steps, bool questions,
                      std::size_t noise, bool copies = true) {
  const std::vector<char> shift(noise);
  Config config = make_config(family, seed);
  config.fails = false;
  config.copies = copies;
  RandomRun harness(config);
  if (!questions) harness.skip_questions();
  std::string log;
  for (std::uint64_t op = 0; harness.coverage().steps < steps; ++op) {
    harness.run(Rng(seed * 1000003 + op).next());
    if (!harness.read_only()) log += harness.log() + "\n";
  }
  return log;
}

std::string through_file(const std::string& log, const char* name) {
  const std::string path = testing::TempDir() + name + std::to_string(::getpid());
  std::ofstream(path, std::ios::binary) << log;
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  std::filesystem::remove(path);
  return bytes.str();
}

TEST(Determinism, LogOf1000StepsWrittenTwiceIsEqualByteForByte) {
  const std::string first =
      through_file(write_log(Family::kFullAndWindow, 42, 1000, true, 1), "kvfolio_log_1");
  const std::string second =
      through_file(write_log(Family::kFullAndWindow, 42, 1000, true, 123457), "kvfolio_log_2");
  EXPECT_GT(first.size(), 100000u);
  EXPECT_TRUE(first == second);
}

TEST(Determinism, UnorderedStepsToo) {
  EXPECT_TRUE(write_log(Family::kUnordered, 7, 300, true, 1) ==
              write_log(Family::kUnordered, 7, 300, true, 99999));
}

TEST(Determinism, ProbesAndOtherQuestionsChangeNothingThatComesLater) {
  for (const Family family : {Family::kFullAndWindow, Family::kTinyPools}) {
    const std::string with = write_log(family, 11, 400, true, 1);
    const std::string without = write_log(family, 11, 400, false, 1);
    EXPECT_GT(with.size(), 10000u);
    EXPECT_TRUE(with == without);
  }
}

TEST(Determinism, ACopyGoesOnAsTheOriginalWouldHave) {
  for (const Family family : {Family::kFullAndWindow, Family::kUnordered, Family::kTinyPools}) {
    for (const std::uint64_t seed : {3u, 4u, 5u, 6u}) {  // with and without storage
      const std::string with = write_log(family, seed, 200, true, 1);
      EXPECT_GT(with.size(), 10000u);
      EXPECT_TRUE(with == write_log(family, seed, 200, true, 1, false)) << to_string(family);
    }
  }
}

}  // namespace
}  // namespace kvfolio::model_check
