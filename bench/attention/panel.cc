// SPDX-License-Identifier: Apache-2.0
#include "panel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace kvfolio::bench {

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::size_t Panel::add(std::function<void()> work, int repeats) {
  pieces_.push_back({.work = std::move(work), .repeats = repeats, .seconds = {}});
  return pieces_.size() - 1;
}

std::size_t Panel::add_short(std::function<void()> work, double at_least) {
  work();
  const double once = std::max(seconds_of(work), 1e-8);
  const double repeats = std::clamp(std::ceil(at_least / once), 1.0, 1e6);
  return add(std::move(work), static_cast<int>(repeats));
}

void Panel::time(Piece& piece) {
  const double taken = seconds_of([&] {
    for (int i = 0; i < piece.repeats; ++i) piece.work();
  });
  piece.seconds.push_back(taken / piece.repeats);
}

void Panel::run(int rounds) {
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) {
      for (Piece& piece : pieces_) time(piece);
    } else {
      std::for_each(pieces_.rbegin(), pieces_.rend(), time);
    }
  }
}

std::vector<double> Panel::giga_rate(std::size_t piece, double work) const {
  std::vector<double> rates;
  for (const double taken : seconds(piece)) rates.push_back(work / taken * 1e-9);
  return rates;
}

double median(const std::vector<double>& values) { return percentile(values, 0.5); }

std::vector<double> quotients(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] / b[i]);
  return result;
}

}  // namespace kvfolio::bench
