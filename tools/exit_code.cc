// SPDX-License-Identifier: Apache-2.0
#include "exit_code.h"

#include <iostream>

#include "printable_text.h"

namespace kvfolio::tools {

int exit_code(std::string_view verb, const Result<int>& code) {
  if (code) return *code;
  std::cout.flush();
  std::cerr << "kvfolio " << verb << ": " << printable_text(code.error().message()) << "\n";
  return 2;
}

}  // namespace kvfolio::tools
