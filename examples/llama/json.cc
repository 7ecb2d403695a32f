// SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace kvfolio::llama {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void append_utf8(std::string& out, std::uint32_t point) {
  const auto byte = [&out](std::uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (point < 0x80) {
    byte(point);
  } else if (point < 0x800) {
    byte(0xc0 | (point >> 6));
    byte(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    byte(0xe0 | (point >> 12));
    byte(0x80 | ((point >> 6) & 0x3f));
    byte(0x80 | (point & 0x3f));
  } else {
    byte(0xf0 | (point >> 18));
    byte(0x80 | ((point >> 12) & 0x3f));
    byte(0x80 | ((point >> 6) & 0x3f));
    byte(0x80 | (point & 0x3f));
  }
}

// Recursive descent. Each function reads one thing at pos_ and returns false after the first
// error, which is in error_.
class Parser {
 public:
  Parser(std::string_view text, const JsonLimits& limits) : text_(text), limits_(limits) {}

  Result<Json> parse() {
    Json value;
    if (!read_value(value, 1)) return std::move(error_);
    skip_space();
    if (pos_ < text_.size()) {
      fail("there is more text after the value");
      return std::move(error_);
    }
    return value;
  }

 private:
  bool fail(const std::string& what) {
    const std::string_view before = text_.substr(0, pos_);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = newline == std::string_view::npos ? pos_ + 1 : pos_ - newline;
    error_ = Status(ErrorCode::kInvalidArgument, "line " + std::to_string(line) + ", column " +
                                                     std::to_string(column) + ": " + what);
    return false;
  }

  bool expected(const std::string& what) {
    const bool at_end = pos_ >= text_.size();
    return fail("expected " + what + ", found " +
                (at_end ? "the end of the text" : quoted(text_.substr(pos_, 1))));
  }

  void skip_space() {
    while (pos_ < text_.size() && (text_[pos_] == ' ' || text_[pos_] == '\n' ||
                                   text_[pos_] == '\t' || text_[pos_] == '\r')) {
      ++pos_;
    }
  }

  bool take(char c) {
    if (pos_ >= text_.size() || text_[pos_] != c) return false;
    ++pos_;
    return true;
  }

  bool read_value(Json& out, std::int32_t depth) {
    skip_space();
    if (depth > limits_.max_depth) {
      return fail("values are nested more than " + std::to_string(limits_.max_depth) + " deep");
    }
    if (++num_values_ > limits_.max_values) {
      return fail("there are more than " + std::to_string(limits_.max_values) + " values");
    }
    if (take('{')) return read_object(out, depth);
    if (take('[')) return read_array(out, depth);
    if (take('"')) {
      std::string text;
      if (!read_string(text)) return false;
      out = Json(std::move(text));
      return true;
    }
    if (pos_ < text_.size() && (text_[pos_] == '-' || is_digit(text_[pos_]))) {
      return read_number(out);
    }
    if (read_word("null")) return true;
    if (read_word("true")) {
      out = Json(true);
      return true;
    }
    if (read_word("false")) {
      out = Json(false);
      return true;
    }
    return expected("a value");
  }

  bool read_word(std::string_view word) {
    if (text_.substr(pos_, word.size()) != word) return false;
    pos_ += word.size();
    return true;
  }

  bool read_object(Json& out, std::int32_t depth) {
    Json::Object members;
    skip_space();
    if (!take('}')) {
      do {
        skip_space();
        if (!take('"')) return expected("a key in double quotes");
        Json::Member& member = members.emplace_back();
        if (!read_string(member.first)) return false;
        skip_space();
        if (!take(':')) return expected("':' after key " + quoted(member.first));
        if (!read_value(member.second, depth + 1)) return false;
        skip_space();
      } while (take(','));
      if (!take('}')) return expected("',' or '}' in an object");
    }
    if (!keys_differ(members)) return false;
    out = Json(std::move(members));
    return true;
  }

  bool keys_differ(const Json::Object& members) {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const Json::Member& member : members) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    return twice == keys.end() || fail("the object before has key " + quoted(*twice) + " twice");
  }

  bool read_array(Json& out, std::int32_t depth) {
    Json::Array values;
    skip_space();
    if (!take(']')) {
      do {
        if (!read_value(values.emplace_back(), depth + 1)) return false;
        skip_space();
      } while (take(','));
      if (!take(']')) return expected("',' or ']' in an array");
    }
    out = Json(std::move(values));
    return true;
  }

  // After the opening quote. The closing one is found first, so that the string is allocated once.
  bool read_string(std::string& out) {
    std::size_t end = pos_;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) {
      pos_ = text_.size();
      return fail("a string has no closing quote");
    }
    out.reserve(end - pos_);
    while (pos_ < end) {
      const char c = text_[pos_];
      if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
      ++pos_;
      if (c != '\\') {
        out.push_back(c);
      } else if (!read_escape(out)) {
        return false;
      }
    }
    ++pos_;
    return true;
  }

  bool read_escape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const char name = text_[pos_];
    if (const std::size_t index = kNames.find(name); index != std::string_view::npos) {
      out.push_back(kValues[index]);
      ++pos_;
      return true;
    }
    if (name != 'u') return fail("an unknown escape in a string");
    ++pos_;
    std::uint32_t point = 0;
    if (!read_hex4(point)) return false;
    if (point >= 0xdc00 && point < 0xe000) return fail("a low surrogate without a high one before");
    if (point >= 0xd800 && point < 0xdc00) {
      std::uint32_t low = 0;
      if (!read_word("\\u")) return fail("a high surrogate without a low one after");
      if (!read_hex4(low)) return false;
      if (low < 0xdc00 || low >= 0xe000) return fail("a high surrogate without a low one after");
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(out, point);
    return true;
  }

  bool read_hex4(std::uint32_t& out) {
    const std::string_view digits = text_.substr(pos_, 4);
    const char* const end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, out, 16);
    if (digits.size() != 4 || error != std::errc() || stop != end) {
      return expected("four hexadecimal digits after \\u");
    }
    pos_ += 4;
    return true;
  }

  bool read_number(Json& out) {
    const std::size_t begin = pos_;
    Json::Number number{.value = 0.0, .integer = 0, .is_integer = true};
    take('-');
    if (!take('0') && !read_digits()) return expected("a digit");
    if (take('.')) {
      number.is_integer = false;
      if (!read_digits()) return expected("a digit after '.'");
    }
    if (take('e') || take('E')) {
      number.is_integer = false;
      if (!take('+')) take('-');
      if (!read_digits()) return expected("a digit in the exponent");
    }
    const char* const first = text_.data() + begin;
    const char* const last = text_.data() + pos_;
    if (std::from_chars(first, last, number.value).ec != std::errc()) {
      return fail("the number before is out of the range of a double");
    }
    if (number.is_integer && std::from_chars(first, last, number.integer).ec != std::errc()) {
      number.is_integer = false;  // beyond int64: whoever asks for an integer refuses it
    }
    out = Json(number);
    return true;
  }

  bool read_digits() {
    const std::size_t begin = pos_;
    while (pos_ < text_.size() && is_digit(text_[pos_])) ++pos_;
    return pos_ > begin;
  }

  std::string_view text_;
  JsonLimits limits_;
  std::size_t pos_ = 0;
  std::int32_t num_values_ = 0;
  Status error_;
};

}  // namespace

const Json* Json::find(std::string_view key) const noexcept {
  const Object* members = as_object();
  if (members == nullptr) return nullptr;
  for (const Member& member : *members) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

std::string Json::describe() const {
  if (const bool* value = as_bool()) return *value ? "true" : "false";
  if (const Number* number = as_number()) {
    return number->is_integer ? std::to_string(number->integer) : number_text(number->value);
  }
  if (const std::string* text = as_string()) return quoted(*text);
  if (as_array() != nullptr) return "an array";
  if (as_object() != nullptr) return "an object";
  return "null";
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  return Parser(text, limits).parse();
}

std::string quoted(std::string_view text) {
  static constexpr std::size_t kLongest = 60;
  std::string out = "\"";
  for (const char c : text.substr(0, kLongest)) {
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
      out.push_back(c);
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(c));
      out += escape;
    }
  }
  out += text.size() > kLongest ? "...\"" : "\"";
  return out;
}

}  // namespace kvfolio::llama
