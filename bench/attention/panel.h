// SPDX-License-Identifier: Apache-2.0
#pragma once

// Panel: many pieces of work that alternate within each round, so that all of them meet the same
// noise of a shared machine. Times are those of the wall: several threads work.

#include <cstddef>
#include <functional>
#include <vector>

#include "harness.h"

namespace kvfolio::bench {

// Seconds of one call.
[[nodiscard]] double seconds_of(const std::function<void()>& work);

class Panel {
 public:
  // Answers the number of the piece. It is called `repeats` times for one time.
  std::size_t add(std::function<void()> work, int repeats = 1);
  // As often as a time needs to take `at_least` seconds, one at least; calls it to see.
  std::size_t add_short(std::function<void()> work, double at_least);

  // Each piece once per round; every second round goes backwards.
  void run(int rounds);

  // Seconds of one call, by round.
  [[nodiscard]] const std::vector<double>& seconds(std::size_t piece) const {
    return pieces_[piece].seconds;
  }
  // work / seconds, by round: 1e9 units of work are one.
  [[nodiscard]] std::vector<double> giga_rate(std::size_t piece, double work) const;

 private:
  struct Piece {
    std::function<void()> work;
    int repeats = 1;
    std::vector<double> seconds;
  };
  static void time(Piece& piece);

  std::vector<Piece> pieces_;
};

[[nodiscard]] double median(const std::vector<double>& values);
// a[i] / b[i].
[[nodiscard]] std::vector<double> quotients(const std::vector<double>& a,
                                            const std::vector<double>& b);

}  // namespace kvfolio::bench
