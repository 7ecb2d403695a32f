// SPDX-License-Identifier: Apache-2.0
#pragma once

// Text of others must not steer a terminal: not by control characters of ASCII, nor by those from
// U+0080 to U+009F, which terminals obey as they obey ESC.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kvfolio::tools {

// `bytes` as UTF-8: '?' for control characters but line ends and tabs, U+FFFD for each run of bytes
// that fits nowhere.
[[nodiscard]] std::string printable_text(std::string_view bytes);
// The same of what has come so far: the beginning of a character stays in `bytes` for the next
// call.
[[nodiscard]] std::string take_printable(std::string& bytes);
// In one line, with control characters as \u009b, so that it reads back as it was. U+FFFD for what
// is not UTF-8.
[[nodiscard]] std::string json_text(const nlohmann::ordered_json& json);
// "1 block", "2 blocks".
[[nodiscard]] std::string plural(std::int64_t count, const std::string& noun);

}  // namespace kvfolio::tools
