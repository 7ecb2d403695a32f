// SPDX-License-Identifier: Apache-2.0

#include "id_tags.h"

#include <array>
#include <mutex>
#include <string>
#include <utility>

#include "bindings.h"

namespace kvfolio::python {
namespace {

std::mutex mutex;
// How many managers have each tag.
std::array<std::uint32_t, UINT16_MAX + 1> holders{};
std::uint16_t last = 0;  // that next() gave

}  // namespace

IdTag IdTag::next() {
  {
    const std::lock_guard lock(mutex);
    for (std::int32_t tried = 0; tried < kMost; ++tried) {
      last = static_cast<std::uint16_t>(last % kMost + 1);
      if (holders[last] > 0) continue;
      ++holders[last];
      return {last, Taken{}};
    }
  }
  raise(Status(ErrorCode::kResourceExhausted,
               "all " + std::to_string(kMost) +
                   " tags of ids belong to managers that live: let some of them go, or give "
                   "id_tag, which may then be that of another manager"));
}

IdTag::IdTag(std::uint16_t value, Taken) noexcept : value_(value) {}

IdTag::IdTag(std::uint16_t value) : value_(value) {
  const std::lock_guard lock(mutex);
  ++holders[value_];
}

IdTag::IdTag(IdTag&& other) noexcept
    : value_(other.value_), holds_(std::exchange(other.holds_, false)) {}

IdTag::~IdTag() {
  if (!holds_) return;
  const std::lock_guard lock(mutex);
  --holders[value_];
}

}  // namespace kvfolio::python
