// SPDX-License-Identifier: Apache-2.0
#pragma once

// Json: a strict reader (RFC 8259) for what strangers write: checkpoint headers, configs, requests.
// Its bounds are checked while reading, before memory is spent: depth, number of values. A key that
// occurs twice in an object is an error, since two readers would disagree on its value.
//
// Thread safety: values.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::llama {

class Json {
 public:
  struct Number {
    double value = 0.0;
    // The exact value when the text is a whole number without fraction or exponent in int64.
    std::int64_t integer = 0;
    bool is_integer = false;
  };
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in the order of the text

  Json() noexcept = default;  // null
  explicit Json(bool value) noexcept : value_(value) {}
  explicit Json(Number value) noexcept : value_(value) {}
  explicit Json(std::string value) noexcept : value_(std::move(value)) {}
  explicit Json(Array value) noexcept : value_(std::move(value)) {}
  explicit Json(Object value) noexcept : value_(std::move(value)) {}

  [[nodiscard]] bool is_null() const noexcept { return value_.index() == 0; }
  // Null when the value is of another kind.
  [[nodiscard]] const bool* as_bool() const noexcept { return std::get_if<bool>(&value_); }
  [[nodiscard]] const Number* as_number() const noexcept { return std::get_if<Number>(&value_); }
  [[nodiscard]] const std::int64_t* as_integer() const noexcept {
    const Number* number = as_number();
    return number != nullptr && number->is_integer ? &number->integer : nullptr;
  }
  [[nodiscard]] const std::string* as_string() const noexcept {
    return std::get_if<std::string>(&value_);
  }
  [[nodiscard]] const Array* as_array() const noexcept { return std::get_if<Array>(&value_); }
  [[nodiscard]] const Object* as_object() const noexcept { return std::get_if<Object>(&value_); }

  // The member `key` of an object, or null: no such member, or not an object. O(members).
  [[nodiscard]] const Json* find(std::string_view key) const noexcept;

  // For messages: numbers, strings and words as they were, "an array", "an object".
  [[nodiscard]] std::string describe() const;

 private:
  std::variant<std::monostate, bool, Number, std::string, Array, Object> value_;
};

struct JsonLimits {
  std::int32_t max_depth = 32;
  std::int32_t max_values = 400'000;
};

// The error says line and column (bytes, from 1), what was there and what is allowed.
Result<Json> parse_json(std::string_view text, const JsonLimits& limits = {});

// `text` in double quotes for a message: printable ASCII only, cut after 60 characters.
[[nodiscard]] std::string in_quotes(std::string_view text);

}  // namespace kvfolio::llama
