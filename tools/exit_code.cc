// SPDX-License-Identifier: Apache-2.0
#include "exit_code.h"

#include <string>

#include "console.h"
#include "printable_text.h"

namespace kvfolio::tools {

int exit_code(std::string_view verb, const Result<int>& code) {
  if (code) return *code;
  report("kvfolio " + std::string(verb) + ": " + printable_text(code.error().message()));
  return 2;
}

Result<int> exit_without_device(std::string_view verb, const Status& error) {
  if (error.code() != ErrorCode::kUnavailable) return error;
  static_cast<void>(exit_code(verb, error));
  return 3;
}

}  // namespace kvfolio::tools
