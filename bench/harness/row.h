// SPDX-License-Identifier: Apache-2.0
#pragma once

// What `kvfolio bench` gives: a row per figure. The benchmarks print nothing and judge nothing; who
// calls them does.
//
// Each benchmark first checks what it is about to time against another computation and throws
// WrongResult if they differ. The figure and its ceiling, or the other side that it is compared
// with, alternate within each round, so that both meet the same noise of a shared machine.

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kvfolio::bench {

class WrongResult : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Fact = std::variant<std::int64_t, std::string>;

struct Promise {
  double floor = 0;
  double goal = 0;
};

struct Row {
  std::string name;
  std::vector<std::pair<std::string, Fact>> facts;  // the case
  double value = 0;                                 // median over the rounds
  std::string unit;
  bool lower_is_better = true;
  // What the machine itself, or the plain code named in the note, needs for the work: same unit,
  // same run.
  std::optional<double> ceiling;
  // How much of the ceiling is reached, 1 is all; median of the rounds' ratios.
  std::optional<double> ratio;
  // What was promised of the ratio if promise_is_ratio, else of the value.
  std::optional<Promise> promise;
  bool promise_is_ratio = false;
  int rounds = 0;
  // 10th and 90th percentile over the rounds, of what the promise is about.
  double low = 0;
  double high = 0;
  std::string note;

  [[nodiscard]] double judged() const { return promise_is_ratio ? ratio.value_or(0) : value; }
  // Requires: promise.
  [[nodiscard]] bool reaches(double bound) const {
    return !promise_is_ratio && lower_is_better ? judged() <= bound : judged() >= bound;
  }
};

// Takes the name of a row that could not be measured, and why.
using LeftOut = std::function<void(std::string_view name, std::string_view why)>;

struct Options {
  int rounds = 9;
  bool quick = false;  // one round of small cases: shows that everything runs and is right
  std::string filter;  // only rows whose name contains it
};

}  // namespace kvfolio::bench
