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

}  // namespace kvfolio::tools
