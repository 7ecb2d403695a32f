// SPDX-License-Identifier: Apache-2.0
#pragma once

// JsonWriter builds one JSON object, fields in the order of the calls. Strings may hold any bytes:
// what is not UTF-8 becomes U+FFFD, one for each byte that fits nowhere.
//
//   std::string line = JsonWriter().field("id", "r0").field("sample", 0).text();

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvfolio::tools {

// `bytes` as UTF-8, wrong bytes replaced by U+FFFD.
[[nodiscard]] std::string valid_utf8(std::string_view bytes);
// The same, and '?' for control characters but line ends and tabs: nobody else's text steers a
// terminal.
[[nodiscard]] std::string printable_text(std::string_view bytes);
// In quotes, escaped.
[[nodiscard]] std::string json_string(std::string_view bytes);

class JsonWriter {
 public:
  JsonWriter& field(std::string_view key, std::string_view value) {
    return raw(key, json_string(value));
  }
  JsonWriter& field(std::string_view key, const char* value) {
    return field(key, std::string_view(value));
  }
  JsonWriter& field(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
  template <std::integral T>
  JsonWriter& field(std::string_view key, T value) {
    return raw(key, std::to_string(value));
  }
  // Enough digits to read the same number back; null for what is not finite.
  JsonWriter& field(std::string_view key, double value);
  JsonWriter& field(std::string_view key, std::span<const std::int32_t> values);
  // `json` is JSON already.
  JsonWriter& raw(std::string_view key, std::string_view json);

  [[nodiscard]] std::string text() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

}  // namespace kvfolio::tools
