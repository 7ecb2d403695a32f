// SPDX-License-Identifier: Apache-2.0
#include "printable_text.h"

#include <nlohmann/json.hpp>

namespace kvfolio::tools {

std::string without_controls(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

// To JSON and back: the writer replaces what is not UTF-8.
std::string printable_text(std::string_view bytes) {
  using Json = nlohmann::json;
  const std::string json = Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace);
  return without_controls(Json::parse(json).get<std::string>());
}

}  // namespace kvfolio::tools
