// SPDX-License-Identifier: Apache-2.0
#include "json_writer.h"

#include <charconv>
#include <cmath>

namespace kvfolio::tools {
namespace {

// Bytes of the well-formed UTF-8 sequence that `bytes` begins with, or 0 (Unicode, table 3-7).
std::size_t sequence_length(std::string_view bytes) {
  const auto at = [&](std::size_t i) -> unsigned {
    return i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0u;
  };
  const auto continues = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xbf) {
    return at(i) >= low && at(i) <= high;
  };
  const unsigned lead = at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return continues(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const unsigned low = lead == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : 0xbf;
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const unsigned low = lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xf4 ? 0x8f : 0xbf;
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string valid_utf8(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t length = sequence_length(bytes);
    if (length == 0) {
      out += "\xef\xbf\xbd";
      bytes.remove_prefix(1);
    } else {
      out += bytes.substr(0, length);
      bytes.remove_prefix(length);
    }
  }
  return out;
}

std::string printable_text(std::string_view bytes) {
  std::string out = valid_utf8(bytes);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return out;
}

std::string json_string(std::string_view bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : valid_utf8(bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00";
      out += {kHex[byte >> 4], kHex[byte & 15]};
    } else {
      out += c;
    }
  }
  return out + "\"";
}

JsonWriter& JsonWriter::field(std::string_view key, double value) {
  if (!std::isfinite(value)) return raw(key, "null");
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return raw(key, {digits, static_cast<std::size_t>(end - digits)});
}

JsonWriter& JsonWriter::field(std::string_view key, std::span<const std::int32_t> values) {
  std::string array = "[";
  for (const std::int32_t value : values) {
    if (array.size() > 1) array += ",";
    array += std::to_string(value);
  }
  return raw(key, array + "]");
}

JsonWriter& JsonWriter::raw(std::string_view key, std::string_view json) {
  if (!members_.empty()) members_ += ",";
  members_ += json_string(key);
  members_ += ":";
  members_ += json;
  return *this;
}

}  // namespace kvfolio::tools
