// SPDX-License-Identifier: Apache-2.0
// Runs the random check and reports. Also a program:
//
//   model_check_test                                  all families
//   model_check_test --replay FAMILY SEED [--until N] one run with every operation printed
//   model_check_test --shrink FAMILY SEED             the fewest operations that still fail
//
// KVFOLIO_SEED: the first seed (default 1). KVFOLIO_OPS: operations of the first two families, full
// and window in either order, together (default 100,000, a third under a sanitizer); each of the
// others makes as many as one of them. KVFOLIO_SECONDS: goes on until this time is over as well
// (default 0).
//
// Ends with 1 at the first violation, after a sentence that says which, the operations before it
// and the command that repeats them.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>

#include "model_check/runs.h"
#include "operations.h"

namespace kvfolio::model_check {
namespace {

constexpr int kOpsPerRun = 600;
constexpr std::size_t kRemembered = 30;
std::uint64_t operations_before = 0;  // of all runs that ended
std::uint64_t promised_again = 0;     // of all families

std::uint64_t env(const char* name, std::uint64_t fallback) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? std::strtoull(value, nullptr, 0) : fallback;
}

std::uint64_t op_seed(Family family, std::uint64_t seed, int op) {
  const std::uint64_t run = seed * 0x100000001b3ull + static_cast<std::uint64_t>(family);
  return Rng(Rng(run).next() + static_cast<std::uint64_t>(op)).next();
}

// What to print should the process die inside the manager.
struct Now {
  Family family = Family::kFullAndWindow;
  std::uint64_t seed = 0;
  int op = 0;
  const RandomRun* harness = nullptr;
  std::deque<std::string> last;

  void print(const char* why) const {
    const auto operations =
        operations_before + (harness != nullptr ? harness->coverage().operations : 0);
    std::fprintf(stderr, "[model] after %llu operations, family %s seed %llu operation %d: %s\n",
                 static_cast<unsigned long long>(operations), to_string(family),
                 static_cast<unsigned long long>(seed), op, why);
    for (const std::string& line : last) std::fprintf(stderr, "  %s\n", line.c_str());
    if (harness != nullptr) std::fprintf(stderr, "> %s\n", harness->log().c_str());
    std::fprintf(stderr, "[model] model_check_test --replay %s %llu --until %d\n",
                 to_string(family), static_cast<unsigned long long>(seed), op);
  }
};
Now now;

// False when a check failed; `why` says which. Runs those operations whose `keep` is true.
bool run(Family family, std::uint64_t seed, const std::vector<char>& keep, bool print,
         std::string* why, Coverage* coverage) {
  now = Now{};
  now.family = family;
  now.seed = seed;
  Config config = make_config(family, seed);
  draw_more(config, seed);
  if (print) std::printf("%s\n", to_string(config).c_str());
  std::optional<RandomRun> made;
  try {
    made.emplace(config);
  } catch (const CheckFailed& failed) {
    if (why != nullptr) *why = to_string(config) + "\n" + failed.what();
    now.print(failed.what());
    return false;
  }
  RandomRun& harness = *made;
  now.harness = &harness;
  bool ok = true;
  try {
    for (int op = 0; op < static_cast<int>(keep.size()); ++op) {
      if (keep[static_cast<std::size_t>(op)] == 0) continue;
      now.op = op;
      harness.run(op_seed(family, seed, op));
      if (harness.log().empty()) continue;
      const std::string line = std::to_string(op) + ": " + harness.log();
      if (print) {
        std::printf("%s\n", line.c_str());
        std::fflush(stdout);
      }
      now.last.push_back(line);
      if (now.last.size() > kRemembered) now.last.pop_front();
    }
    harness.drain();
  } catch (const CheckFailed& failed) {
    ok = false;
    if (why != nullptr) *why = to_string(config) + "\n" + failed.what();
    now.print(failed.what());
  }
  if (coverage != nullptr) coverage->add(harness.coverage());
  operations_before += harness.coverage().operations;
  now.harness = nullptr;
  return ok;
}

class ModelCheck : public testing::TestWithParam<int> {};

TEST_P(ModelCheck, ManagerAnswersAsTheNaiveModel) {
  const auto family = static_cast<Family>(GetParam());
  const std::uint64_t first = env("KVFOLIO_SEED", 1);
  const auto operations =
      static_cast<std::int64_t>(env("KVFOLIO_OPS", test::operations_by_default(100000)) / 2);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(env("KVFOLIO_SECONDS", 0)) / kNumFamilies;
  std::printf("[model] family %s from seed %llu\n", to_string(family),
              static_cast<unsigned long long>(first));
  std::fflush(stdout);
  Coverage coverage;
  std::uint64_t seed = first;
  for (std::int64_t left = operations; left > 0 || std::chrono::steady_clock::now() < end; ++seed) {
    std::string why;
    const std::int64_t now_running =
        left > 0 ? std::min<std::int64_t>(left, kOpsPerRun) : kOpsPerRun;
    left -= now_running;
    const std::vector<char> keep(static_cast<std::size_t>(now_running), 1);
    if (!run(family, seed, keep, false, &why, &coverage)) {
      FAIL() << "family " << to_string(family) << " seed " << seed << " operation " << now.op
             << ": " << why << "\n(the last operations stand above)";
    }
  }
  std::printf("[model] family %s seeds %llu to %llu: %s\n", to_string(family),
              static_cast<unsigned long long>(first), static_cast<unsigned long long>(seed - 1),
              to_string(coverage).c_str());
  promised_again += coverage.promised_again;
  // Every second run has loads and stores, and all of them batches.
  if (coverage.operations >= 50000 && family != Family::kNoCache) {
    EXPECT_GT(coverage.tier_loads, 0u);
    EXPECT_GT(coverage.arrivals_orphaned, 0u);
    EXPECT_GT(coverage.stores_alone, 0u);
    EXPECT_GT(coverage.batches_cut, 0u);
    EXPECT_GT(coverage.without_copies, 0u);
    EXPECT_GT(coverage.behind_plan, 0u);
    EXPECT_GT(coverage.prompts_again, 0u);
    const bool goes_ahead = family != Family::kUnordered;  // there an append waits for accept()
    EXPECT_EQ(coverage.behind_drafts > 0, goes_ahead);
    EXPECT_EQ(coverage.void_rows > 0, goes_ahead);
    EXPECT_GT(coverage.shapes_compared, 0u);
  }
  EXPECT_LE(coverage.tails_lost, 2 + coverage.tails_found / 100) << "hits are lost";
  EXPECT_LE(coverage.orders_skipped, 20 + coverage.orders_checked / 2)
      << "the model knows too few orders of eviction";
}

// A few times in 50,000 operations of a family, so all of them count together.
class DrawnByAllFamilies : public testing::Environment {
 public:
  void TearDown() override {
    if (operations_before < 400000) return;
    EXPECT_GT(promised_again, 0u) << "no draft within a promise was rejected";
  }
};

INSTANTIATE_TEST_SUITE_P(Families, ModelCheck, testing::Range(0, kNumFamilies),
                         [](const testing::TestParamInfo<int>& info) {
                           std::string name = to_string(static_cast<Family>(info.param));
                           std::erase(name, '-');
                           return name;
                         });

// Runs in which the two disagreed once, and the model was wrong: a mark that comes with the place
// of an entry (7039), reset() while a sequence holds adopted blocks that is cleared and appends
// again (40064).
TEST(ModelCheckSeeds, OnceDisagreedAndAgreeNow) {
  for (const std::uint64_t seed : {7039u, 40064u}) {
    std::string why;
    Coverage coverage;
    const std::vector<char> keep(kOpsPerRun, 1);
    EXPECT_TRUE(run(Family::kFullAndWindow, seed, keep, false, &why, &coverage))
        << "seed " << seed << " operation " << now.op << ": " << why;
  }
}

// 0: the run is fine. Else a number that tells one failure from another. Runs in a child, which may
// die of a signal.
int goes_wrong(Family family, std::uint64_t seed, const std::vector<char>& keep) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(2);
    alarm(20);
    std::string why;
    if (run(family, seed, keep, false, &why, nullptr)) _exit(0);
    std::erase_if(why, [](char c) { return c >= '0' && c <= '9'; });
    _exit(1 + static_cast<int>(std::hash<std::string>{}(why) % 200));
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// Delta debugging: takes halves, quarters, ... out as long as the run goes wrong without them.
std::vector<char> shrink(Family family, std::uint64_t seed, std::vector<char> keep, int failure) {
  for (std::size_t chunk = keep.size() / 2; chunk >= 1; chunk /= 2) {
    for (bool again = true; again;) {
      again = false;
      for (std::size_t begin = 0; begin < keep.size(); begin += chunk) {
        std::vector<char> less = keep;
        for (std::size_t i = begin; i < std::min(begin + chunk, keep.size()); ++i) less[i] = 0;
        if (less == keep || goes_wrong(family, seed, less) != failure) continue;
        keep = less;
        again = chunk == 1;
      }
    }
  }
  return keep;
}

int main_of_replay(int argc, char** argv) {
  Family family = Family::kAnything;
  for (int f = 0; f < kNumFamilies; ++f) {
    if (std::strcmp(argv[2], to_string(static_cast<Family>(f))) == 0) {
      family = static_cast<Family>(f);
    }
  }
  const std::uint64_t seed = std::strtoull(argv[3], nullptr, 0);
  int until = kOpsPerRun - 1;
  if (argc >= 6 && std::strcmp(argv[4], "--until") == 0) until = std::atoi(argv[5]);
  std::vector<char> keep(static_cast<std::size_t>(until + 1), 1);
  if (std::strcmp(argv[1], "--shrink") == 0) {
    const int failure = goes_wrong(family, seed, keep);
    if (failure == 0) {
      std::printf("nothing goes wrong\n");
      return 0;
    }
    keep = shrink(family, seed, keep, failure);
  }
  const bool ok = run(family, seed, keep, true, nullptr, nullptr);
  return ok ? 0 : 1;
}

}  // namespace

void look_at_all_families() { testing::AddGlobalTestEnvironment(new DrawnByAllFamilies); }

}  // namespace kvfolio::model_check

// The end of a broken invariant inside the library: say which calls led there.
extern "C" void kvfolio_check_failed(const char* file, int line, const char* expression) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, expression);
  kvfolio::model_check::now.print("the library stopped");
  std::abort();
}

int main(int argc, char** argv) {
  if (argc >= 4 &&
      (std::strcmp(argv[1], "--replay") == 0 || std::strcmp(argv[1], "--shrink") == 0)) {
    return kvfolio::model_check::main_of_replay(argc, argv);
  }
  testing::GTEST_FLAG(fail_fast) = true;
  testing::InitGoogleTest(&argc, argv);
  kvfolio::model_check::look_at_all_families();
  const int answer = RUN_ALL_TESTS();
  if (kvfolio::model_check::operations_before > 0) {
    std::printf("[model] %llu operations together, from seed %llu\n",
                static_cast<unsigned long long>(kvfolio::model_check::operations_before),
                static_cast<unsigned long long>(kvfolio::model_check::env("KVFOLIO_SEED", 1)));
  }
  return answer;
}
