// SPDX-License-Identifier: Apache-2.0
#pragma once

// concat("block ", 7, " of ", 4): error sentences without iostreams, locale or printf formats.
//
// Cold: the compiler moves what leads to an error sentence out of the way of calls that succeed.

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace kvfolio::text {

inline void append(std::string& out, std::string_view piece) { out += piece; }

template <std::integral T>
void append(std::string& out, T number) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
}

template <typename... Pieces>
[[nodiscard, gnu::cold, gnu::noinline]] std::string concat(const Pieces&... pieces) {
  std::string out;
  (append(out, pieces), ...);
  return out;
}

}  // namespace kvfolio::text
