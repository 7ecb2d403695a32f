// SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <istream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <streambuf>

namespace kvfolio::llama {
namespace {

std::string number_text(double value) {
  std::array<char, 32> room{};
  const auto [end, error] = std::to_chars(room.data(), room.data() + room.size(), value);
  std::string text(room.data(), end);
  // It was written as a number with a fraction: 1.0 is not 1.
  const bool looks_whole = text.find_first_not_of("-0123456789") == std::string::npos;
  return looks_whole && std::abs(value) < 0x1p63 ? text + ".0" : text;
}

// Reads `text` and knows how far: the callbacks of nlohmann's parser do not say where they are.
class TextBuffer : public std::streambuf {
 public:
  explicit TextBuffer(std::string_view text) {
    char* const begin = const_cast<char*>(text.data());  // never written: there is no put area
    setg(begin, begin, begin + text.size());
  }
  [[nodiscard]] std::size_t num_read() const { return static_cast<std::size_t>(gptr() - eback()); }
};

// Builds a Json from the callbacks of nlohmann's parser. After the first one that returns false
// nothing more is read; the error is in error().
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view text, const JsonLimits& limits)
      : text_(text), limits_(limits), buffer_(text) {}

  bool run() {
    // nlohmann takes a zero byte for the end of the text and steps over a byte order mark.
    if (text_.starts_with("\xef\xbb\xbf")) return fail(0, "the text begins with a byte order mark");
    if (const std::size_t zero = text_.find('\0'); zero != std::string_view::npos) {
      return fail(zero, "a zero byte");
    }
    std::istream stream(&buffer_);
    return nlohmann::json::sax_parse(stream, this);
  }
  Json& root() { return root_; }
  Status& error() { return error_; }

  bool null() override { return count() && add(Json()); }
  bool boolean(bool value) override { return count() && add(Json(value)); }
  bool number_integer(std::int64_t value) override {
    return count() && add(Json(Json::Number{static_cast<double>(value), value, true}));
  }
  bool number_unsigned(std::uint64_t value) override {
    if (value <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return number_integer(static_cast<std::int64_t>(value));
    }
    return number_float(static_cast<double>(value), {});
  }
  // Also whole numbers beyond int64: a caller that wants an integer refuses them.
  bool number_float(double value, const std::string& /*text*/) override {
    return count() && add(Json(Json::Number{.value = value}));
  }
  bool string(std::string& value) override { return count() && add(Json(std::string(value))); }
  bool binary(binary_t& /*value*/) override { return false; }  // not in text

  bool start_array(std::size_t /*size*/) override { return open(false); }
  bool end_array() override {
    Json::Array values = std::move(open_.back().values);
    open_.pop_back();
    return add(Json(std::move(values)));
  }
  bool start_object(std::size_t /*size*/) override { return open(true); }
  bool key(std::string& key) override {
    open_.back().members.emplace_back(key, Json());
    return true;
  }
  bool end_object() override {
    Json::Object members = std::move(open_.back().members);
    open_.pop_back();
    return keys_differ(members) && add(Json(std::move(members)));
  }

  // `position` counts from 1. The text of `error` is "[id] parse error at line L, column C: what",
  // with "; last read: 'token'" after it where the bytes themselves are wrong.
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    const std::size_t offset = std::max<std::size_t>(position, 1) - 1;
    if (error.id == 406) return fail(offset, "a number is out of the range of a double");
    const std::string_view text = error.what();
    const std::size_t token = text.find("; last read: ");
    std::string what(text.substr(0, token));
    if (const std::size_t place = what.find(": "); place != std::string::npos) {
      what.erase(0, place + 2);
    }
    if (token != std::string_view::npos && offset < text_.size()) {
      what += ", found " + in_quotes(text_.substr(offset, 1));
    }
    return fail(offset, what);
  }

 private:
  struct Open {  // an array or object whose end is not read yet
    bool is_object = false;
    Json::Array values;
    Json::Object members;  // the last one waits for its value
  };

  bool fail(std::size_t offset, const std::string& what) {
    const std::string_view before = text_.substr(0, offset);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const std::size_t newline = before.rfind('\n');
    const std::size_t column = newline == std::string_view::npos ? offset + 1 : offset - newline;
    error_ = Status(ErrorCode::kInvalidArgument, "line " + std::to_string(line) + ", column " +
                                                     std::to_string(column) + ": " + what);
    return false;
  }
  bool fail_here(const std::string& what) {
    return fail(std::max<std::size_t>(buffer_.num_read(), 1) - 1, what);
  }

  // Before each value.
  bool count() {
    if (std::ssize(open_) >= limits_.max_depth) {
      return fail_here("values are nested more than " + std::to_string(limits_.max_depth) +
                       " deep");
    }
    return ++num_values_ <= limits_.max_values ||
           fail_here("there are more than " + std::to_string(limits_.max_values) + " values");
  }

  bool open(bool is_object) {
    if (!count()) return false;
    open_.emplace_back().is_object = is_object;
    return true;
  }

  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object) {
      open_.back().members.back().second = std::move(value);
    } else {
      open_.back().values.push_back(std::move(value));
    }
    return true;
  }

  bool keys_differ(const Json::Object& members) {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const Json::Member& member : members) keys.push_back(member.first);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    return twice == keys.end() ||
           fail_here("the object before has key " + in_quotes(*twice) + " twice");
  }

  std::string_view text_;
  JsonLimits limits_;
  TextBuffer buffer_;
  std::vector<Open> open_;  // outermost first
  std::int32_t num_values_ = 0;
  Json root_;
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
  if (const std::string* text = as_string()) return llama::in_quotes(*text);  // not std's
  if (as_array() != nullptr) return "an array";
  if (as_object() != nullptr) return "an object";
  return "null";
}

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  try {
    Builder builder(text, limits);
    if (!builder.run()) return std::move(builder.error());
    return std::move(builder.root());
  } catch (const std::bad_alloc&) {
    return Status(ErrorCode::kOutOfMemory,
                  "no memory for " + std::to_string(text.size()) + " bytes of JSON");
  }
}

std::string in_quotes(std::string_view text) {
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
