// SPDX-License-Identifier: Apache-2.0
#pragma once

// ErrorBudget decides when a disk is left alone. After some errors in a row, or when all that it
// was given only becomes late, nothing is given to it for a while; then it gets one more chance,
// and each that fails doubles the pause. What goes well ends the row. An end that lasts is only
// that of the process's memory.
//
// Two rows are counted: all errors, which anything that goes well ends, and failures to write,
// which only a written record ends: files that are open can be read for ever, and say nothing of
// stores. Thread safety: none.

#include <cstdint>
#include <string>

#include "disk/calls.h"
#include "tiers/growing_pause.h"

namespace kvfolio::disk {

class ErrorBudget {
 public:
  static constexpr int kInRowMax = 8;
  static constexpr GrowingPause::Limits kPauses{.shortest_us = 500'000, .longest_us = 30'000'000};
  // Late items count only if nothing has ended for so long: a disk that is slow is not one that
  // hangs.
  static constexpr std::uint64_t kHangsUs = 1'000'000;

  enum class Task : std::uint8_t { kRead, kWrite };

  void went_well(Task task) noexcept;
  // A call of the system ended, however: it does not hang. `now_us` of the poll.
  void ended(std::uint64_t now_us) noexcept;
  // Each returns true if a pause begins.
  [[nodiscard]] bool failed(Task task, std::int64_t error, std::uint64_t now_us) noexcept;
  // `under_way_since_us`: when the disk was given what it still has.
  [[nodiscard]] bool was_late(std::uint64_t under_way_since_us, std::uint64_t now_us) noexcept;
  void end_for_good(std::string reason) noexcept;

  [[nodiscard]] bool is_off(std::uint64_t now_us) const noexcept {
    return for_good_ || pause_.is_on(now_us);
  }
  [[nodiscard]] bool is_off_for_good() const noexcept { return for_good_; }
  // "" or why it is off: "Input/output error".
  [[nodiscard]] std::string reason() const;
  [[nodiscard]] bool check() const noexcept;

 private:
  [[nodiscard]] bool begin_pause(std::uint64_t now_us) noexcept;

  int errors_ = 0;        // without anything that went well between them
  int write_errors_ = 0;  // without a written record between them
  int late_ = 0;          // without an end between them
  std::uint64_t ended_us_ = 0;
  GrowingPause pause_;
  std::int64_t error_ = 0;  // the last; 0: it was late
  bool for_good_ = false;
  std::string for_good_reason_;
};

}  // namespace kvfolio::disk
