// SPDX-License-Identifier: Apache-2.0
#pragma once

// What nobody else's text may do: steer a terminal.

#include <string>
#include <string_view>

namespace kvfolio::tools {

// `text` with '?' for control characters but line ends and tabs. Bytes past ASCII stay as they are.
[[nodiscard]] std::string without_controls(std::string text);
// The same of `bytes` as UTF-8: U+FFFD for each run of bytes that fits nowhere.
[[nodiscard]] std::string printable_text(std::string_view bytes);

}  // namespace kvfolio::tools
