// SPDX-License-Identifier: Apache-2.0
#pragma once

// What calls of a manager say that was moved from. Those that return a Status or a Result say so,
// the others end the program: there is nothing that they could return. KVFOLIO_RECORDED asks for
// all that are not const, the macros below for the others; scripts/layers checks that each is
// asked.

#include <string_view>
#include <type_traits>

#include "kvfolio/status.h"

namespace kvfolio {

[[nodiscard, gnu::cold, gnu::noinline]] Status moved_from(std::string_view call);
[[noreturn, gnu::cold, gnu::noinline]] void stop_moved_from(std::string_view call) noexcept;

// Whichever of the two an answer of this type needs.
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
