// SPDX-License-Identifier: Apache-2.0
#pragma once

// concat("block ", 7, " of ", 4): error sentences without iostreams, locale or printf formats.
//
// Cold: the compiler moves what leads to an error sentence out of the way of calls that succeed.

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>
#include <utility>

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

// "length 12, accepted 10": the fields of a record by name, for people.
class Fields {
 public:
  template <std::integral T>
  Fields& add(std::string_view name, T value) {
    begin(name);
    if constexpr (std::same_as<T, bool>) {
      text_ += value ? "true" : "false";
    } else {
      append(text_, value);
    }
    return *this;
  }
  Fields& add(std::string_view name, std::string_view value) {
    begin(name);
    text_ += value;
    return *this;
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void begin(std::string_view name) {
    if (!text_.empty()) text_ += ", ";
    text_ += name;
    text_ += ' ';
  }

  std::string text_;
};

}  // namespace kvfolio::text
