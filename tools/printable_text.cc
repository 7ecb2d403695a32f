// SPDX-License-Identifier: Apache-2.0
#include "printable_text.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace kvfolio::tools {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// What stands at the front of a text that is not empty.
struct Front {
  enum class Kind { kCharacter, kBroken, kCut } kind = Kind::kCharacter;
  std::size_t bytes = 1;
  std::uint32_t code = 0;
};

// By table 3-7 of Unicode: no surrogates, no longer forms, nothing above U+10FFFF.
Front front_of(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {.code = first};
  if (first < 0xc2 || first > 0xf4) return {.kind = Front::Kind::kBroken};
  const std::size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  std::uint32_t code = first & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if (i == text.size()) return {.kind = Front::Kind::kCut, .bytes = i};
    std::uint32_t low = 0x80;
    std::uint32_t high = 0xbf;
    if (i == 1 && first == 0xe0) low = 0xa0;
    if (i == 1 && first == 0xed) high = 0x9f;
    if (i == 1 && first == 0xf0) low = 0x90;
    if (i == 1 && first == 0xf4) high = 0x8f;
    if (byte(i) < low || byte(i) > high) return {.kind = Front::Kind::kBroken, .bytes = i};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  return {.bytes = size, .code = code};
}

bool is_control(std::uint32_t code) { return code < 0x20 || (code >= 0x7f && code < 0xa0); }

// Takes from the front of `bytes` what can be told.
std::string take_character(std::string_view& bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Front front = front_of(bytes);
    if (front.kind == Front::Kind::kCut) break;
    if (front.kind == Front::Kind::kBroken) {
      text += kReplacement;
    } else if (is_control(front.code) && front.code != '\n' && front.code != '\t') {
      text += '?';
    } else {
      text += bytes.substr(0, front.bytes);
    }
    bytes.remove_prefix(front.bytes);
  }
  return text;
}

}  // namespace

std::string printable_text(std::string_view bytes) {
  std::string text = take_character(bytes);
  if (!bytes.empty()) text += kReplacement;
  return text;
}

std::string take_printable(std::string& bytes) {
  std::string_view rest = bytes;
  std::string text = take_character(rest);
  bytes.erase(0, bytes.size() - rest.size());
  return text;
}

std::string json_text(const nlohmann::ordered_json& json) {
  const std::string dumped =
      json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string text;
  text.reserve(dumped.size());
  for (std::string_view rest = dumped; !rest.empty();) {
    const Front front = front_of(rest);
    if (is_control(front.code)) {  // the writer escaped those below a blank
      std::array<char, 8> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\u%04x", front.code);
      text += escaped.data();
    } else {
      text += rest.substr(0, front.bytes);
    }
    rest.remove_prefix(front.bytes);
  }
  return text;
}

std::string plural(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

}  // namespace kvfolio::tools
