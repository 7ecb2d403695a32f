// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <numeric>

namespace kvfolio::bench {

void require(bool condition, const std::string& what) {
  if (!condition) throw WrongResult(what);
}

std::int64_t Stopwatch::now() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::vector<std::int32_t> shuffled(std::int32_t count, std::uint64_t seed) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  Random random(seed);
  for (std::int32_t i = count - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(random.below(i + 1))]);
  }
  return order;
}

Buffer::Buffer(std::int64_t bytes) : bytes_(bytes) {
  data_ = take(memory_.allocate(bytes), "memory for a benchmark");
}

double percentile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (at - std::floor(at));
}

Samples Session::alternate(const std::function<double()>& ours,
                           const std::function<double()>& other) const {
  Samples samples;
  for (int round = 0; round < options_.rounds; ++round) {
    const bool ours_first = round % 2 == 0;
    if (ours_first) samples.ours.push_back(ours());
    if (other) samples.other.push_back(other());
    if (!ours_first) samples.ours.push_back(ours());
  }
  return samples;
}

void Session::report(const Figure& figure, const Samples& samples) const {
  if (!wants(figure.name)) return;
  Row row;
  row.name = figure.name;
  row.facts = figure.facts;
  row.unit = figure.unit;
  row.lower_is_better = figure.lower_is_better;
  row.promise = figure.promise;
  row.promise_is_ratio = figure.promise_is_ratio;
  row.note = figure.note;
  row.rounds = static_cast<int>(samples.ours.size());
  row.value = percentile(samples.ours, 0.5);
  std::vector<double> ratios;
  if (!samples.other.empty()) {
    for (std::size_t i = 0; i < samples.ours.size(); ++i) {
      ratios.push_back(figure.lower_is_better ? samples.other[i] / samples.ours[i]
                                              : samples.ours[i] / samples.other[i]);
    }
    row.ceiling = percentile(samples.other, 0.5);
    row.ratio = percentile(ratios, 0.5);
  }
  const std::vector<double>& judged = figure.promise_is_ratio ? ratios : samples.ours;
  row.low = percentile(judged, 0.1);
  row.high = percentile(judged, 0.9);
  emit_(row);
}

}  // namespace kvfolio::bench
