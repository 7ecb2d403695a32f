// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "kvfolio/manager.h"
#include "kvfolio/spec.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

KVCacheManager two_groups() {
  CacheSpec spec{
      .groups = {{.block_size = 4, .num_blocks = 8}, {.block_size = 8, .num_blocks = 6}}};
  for (GroupSpec& group : spec.groups) group.head_dim_k = group.head_dim_v = 8;
  return *KVCacheManager::create(spec);
}

std::string text_of(MetricLabels labels) {
  Metrics metrics;
  metrics.counter("a_total", "", labels, 1);
  return metrics.text();
}

TEST(Metrics, SayWhatTheManagerCounts) {
  KVCacheManager manager = two_groups();
  const std::vector<std::int32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto first = *manager.open(tokens);
  const Ticket ticket = *manager.begin_step();
  ASSERT_TRUE(manager.append(first.sequence, tokens).ok());
  ASSERT_TRUE(manager.finish(ticket).ok());
  ASSERT_TRUE(manager.open(tokens));
  std::string text;
  const MetricLabel label{"model_name", "toy"};
  write_metrics(text, manager, {&label, 1}, MetricNames::kAll);
  EXPECT_THAT(text, HasSubstr("kvfolio_prefix_looked_up_tokens_total{model_name=\"toy\"} 18\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_prefix_hit_tokens_total{model_name=\"toy\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_blocks{model_name=\"toy\",group=\"0\",state=\"held\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_capacity_blocks{model_name=\"toy\",group=\"1\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("kvfolio_sequences{model_name=\"toy\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prefix_cache_hits_total{model_name=\"toy\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("sglang:num_used_tokens{model_name=\"toy\"} 28\n"));
}

TEST(Metrics, OthersNamesOnlyOnRequest) {
  std::string text;
  write_metrics(text, two_groups());
  EXPECT_THAT(text, Not(HasSubstr("vllm")));
  EXPECT_THAT(text, Not(HasSubstr("sglang")));
  EXPECT_THAT(text, Not(HasSubstr(":")));
}

TEST(Metrics, ANameHasOneHelpAndTypeHoweverManyAreAdded) {
  const KVCacheManager one = two_groups();
  const KVCacheManager other = two_groups();
  Metrics metrics;
  const MetricLabel first{"engine", "0"};
  const MetricLabel second{"engine", "1"};
  metrics.add(one, {&first, 1});
  metrics.add(other, {&second, 1});
  const std::string text = metrics.text();
  std::istringstream lines(text);
  std::map<std::string, int> seen;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) ++seen[line];
  }
  EXPECT_GT(seen.size(), 20u);
  for (const auto& [line, count] : seen) EXPECT_EQ(count, 1) << line;
  EXPECT_THAT(text, HasSubstr("kvfolio_forks_total{engine=\"0\"} 0\n"
                              "kvfolio_forks_total{engine=\"1\"} 0\n"));
}

TEST(Metrics, ValuesOfLabelsAreEscaped) {
  const MetricLabel quotes{"name", "say \"hi\"\\\nbye"};
  EXPECT_EQ(text_of({&quotes, 1}),
            "# TYPE a_total counter\na_total{name=\"say \\\"hi\\\"\\\\\\nbye\"} 1\n");
  const MetricLabel broken{"name", "\xff\xc3(\xed\xa0\x80\xe2\x82\xac"};
  EXPECT_EQ(
      text_of({&broken, 1}),
      "# TYPE a_total counter\na_total{name=\"\xef\xbf\xbd\xef\xbf\xbd(\xef\xbf\xbd\xef\xbf\xbd"
      "\xef\xbf\xbd\xe2\x82\xac\"} 1\n");
}

TEST(Metrics, NamesOfLabelsAreMadeAllowedAndUnique) {
  const MetricLabel labels[] = {
      {"1 bad-name", "a"}, {"__own", "b"}, {"", "c"}, {"x", "1"}, {"x", "2"}};
  EXPECT_THAT(text_of(labels), HasSubstr("{label__bad_name=\"a\""));
  EXPECT_THAT(text_of(labels), HasSubstr("label__own=\"b\""));
  EXPECT_THAT(text_of(labels), HasSubstr("x=\"2\""));
  EXPECT_THAT(text_of(labels), Not(HasSubstr("x=\"1\"")));
}

TEST(Metrics, AHistogramAddsUp) {
  Metrics metrics;
  const double bounds[] = {0.001, 0.25};
  const std::uint64_t counts[] = {3, 0, 2};
  metrics.histogram("wait_seconds", "How long.", {}, bounds, counts, 4.5);
  EXPECT_EQ(metrics.text(),
            "# HELP wait_seconds How long.\n"
            "# TYPE wait_seconds histogram\n"
            "wait_seconds_bucket{le=\"0.001\"} 3\n"
            "wait_seconds_bucket{le=\"0.25\"} 3\n"
            "wait_seconds_bucket{le=\"+Inf\"} 5\n"
            "wait_seconds_sum 4.5\n"
            "wait_seconds_count 5\n");
}

TEST(Metrics, NumbersThatAreNoneAreWrittenAsTheFormatSays) {
  Metrics metrics;
  metrics.gauge("g", "", {}, std::numeric_limits<double>::quiet_NaN());
  metrics.gauge("g", "", {}, std::numeric_limits<double>::infinity());
  metrics.gauge("g", "", {}, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(metrics.text(), "# TYPE g gauge\ng NaN\ng +Inf\ng -Inf\n");
}

std::vector<std::pair<std::string, std::string>> hostile_labels() {
  std::mt19937 random(7);
  std::vector<std::pair<std::string, std::string>> labels;
  for (int i = 0; i < 200; ++i) {
    std::string name(random() % 12, ' ');
    std::string value(random() % 40, ' ');
    for (char& c : name) c = static_cast<char>(random());
    for (char& c : value) c = static_cast<char>(random());
    labels.emplace_back(std::move(name), std::move(value));
  }
  return labels;
}

TEST(Metrics, NoLabelBreaksALine) {
  for (const auto& [name, value] : hostile_labels()) {
    const MetricLabel label{name, value};
    const std::string text = text_of({&label, 1});
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
    EXPECT_TRUE(text.ends_with("\"} 1\n")) << text;
  }
}

TEST(Metrics, PromtoolTakesTwoHundredHostileLabels) {
  const bool is_on_the_path = std::system("command -v promtool >/dev/null") == 0;
  const std::string promtool = is_on_the_path ? "promtool" : "build/promtool/promtool";
  if (std::system((promtool + " --version >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "no promtool: scripts/promtool-here";
  }
  Metrics metrics;
  int number = 0;
  for (const auto& [name, value] : hostile_labels()) {
    const std::string place = std::to_string(number++);  // no two lines have the same labels
    const MetricLabel labels[] = {{name, value}, {"place", place}};
    metrics.counter("hostile_total", "A help\nof two lines.", labels, 1);
  }
  const std::string file =
      ::testing::TempDir() + "kvfolio-hostile-labels-" + std::to_string(::getpid());
  std::ofstream(file) << metrics.text();
  // 1: it cannot be read. 3: it can, and the checker finds names of labels ugly.
  const int result =
      std::system((promtool + " check metrics <" + file + " >/dev/null 2>&1").c_str());
  EXPECT_TRUE(WIFEXITED(result) && (WEXITSTATUS(result) == 0 || WEXITSTATUS(result) == 3))
      << result;
  std::ofstream(file) << "hostile_total{a=\"\n\"} 1\n";  // what a label that is not escaped does
  const int broken =
      std::system((promtool + " check metrics <" + file + " >/dev/null 2>&1").c_str());
  EXPECT_EQ(WEXITSTATUS(broken), 1);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace kvfolio
