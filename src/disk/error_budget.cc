// SPDX-License-Identifier: Apache-2.0
#include "disk/error_budget.h"

#include <algorithm>
#include <utility>

#include "kvfolio/status.h"

namespace kvfolio::disk {

void ErrorBudget::went_well(Task task) noexcept {
  errors_ = 0;
  if (task == Task::kWrite) write_errors_ = 0;
  if (write_errors_ == 0) pause_.shrink();
}

void ErrorBudget::ended(std::uint64_t now_us) noexcept {
  ended_us_ = std::max(ended_us_, now_us);
  if (std::exchange(late_, 0) < kInRowMax) return;
  // It hung, and does so no more: there is nothing to wait for.
  if (std::max(errors_, write_errors_) < kInRowMax) pause_.end();
}

bool ErrorBudget::failed(Task task, std::int64_t error, std::uint64_t now_us) noexcept {
  KVFOLIO_DCHECK(error < 0);
  error_ = error;
  ++errors_;
  write_errors_ += task == Task::kWrite ? 1 : 0;
  return std::max(errors_, write_errors_) >= kInRowMax && begin_pause(now_us);
}

bool ErrorBudget::was_late(std::uint64_t under_way_since_us, std::uint64_t now_us) noexcept {
  const std::uint64_t since = std::max(ended_us_, under_way_since_us);
  if (now_us < since + kHangsUs) return false;
  error_ = 0;
  return ++late_ >= kInRowMax && begin_pause(now_us);
}

// False: it has begun already.
bool ErrorBudget::begin_pause(std::uint64_t now_us) noexcept {
  if (is_off(now_us)) return false;
  pause_.begin(now_us, kPauses);
  return true;
}

void ErrorBudget::end_for_good(std::string reason) noexcept {
  for_good_ = true;
  for_good_reason_ = std::move(reason);
}

std::string ErrorBudget::reason() const {
  if (for_good_) return for_good_reason_;
  if (!pause_.has_grown()) return {};
  return error_ < 0 ? error_text(error_) : std::string("it does not answer");
}

bool ErrorBudget::check() const noexcept {
  if (errors_ < 0 || write_errors_ < 0 || late_ < 0) return false;
  return pause_.check(kPauses);
}

}  // namespace kvfolio::disk
