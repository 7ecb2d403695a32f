// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the calls of a manager say after it was moved from. Calls that return a Status or a Result
// return an error; the others end the program, since there is nothing that they could return. Calls
// that are not const check this in KVFOLIO_RECORDED, const calls with the macros below;
// scripts/layers sees to it that each call checks.

#include <string_view>
#include <type_traits>

#include "kvfolio/status.h"

namespace kvfolio {

[[nodiscard, gnu::cold, gnu::noinline]] Status moved_from(std::string_view call);
[[noreturn, gnu::cold, gnu::noinline]] void stop_moved_from(std::string_view call) noexcept;

// An error if the type can hold one; otherwise the program ends.
template <typename Answer>
[[nodiscard]] Answer moved_from_as(std::string_view call) {
  if constexpr (std::is_same_v<Answer, Status> || requires(Answer a) { a.error(); }) {
    return moved_from(call);
  } else {
    stop_moved_from(call);
  }
}

#define KVFOLIO_RETURN_IF_MOVED(call)  \
  do {                                 \
    if (impl_ == nullptr) [[unlikely]] \
      return moved_from(call);         \
  } while (false)
#define KVFOLIO_STOP_IF_MOVED(call)    \
  do {                                 \
    if (impl_ == nullptr) [[unlikely]] \
      stop_moved_from(call);           \
  } while (false)

}  // namespace kvfolio
