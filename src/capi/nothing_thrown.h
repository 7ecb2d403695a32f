// SPDX-License-Identifier: Apache-2.0
#pragma once

// What keeps C++ exceptions from C, in libraries whose functions of C are compiled with exceptions
// (-fexceptions). Thread safety: one object for each call.

#include <exception>

namespace kvfolio::capi {

// Stands at the head of each function of C that may take heap memory, if only for the sentence of
// an error: an exception (there is no memory) ends the program here and does not go on into C.
class NothingThrown {
 public:
  NothingThrown() noexcept : before_(std::uncaught_exceptions()) {}
  NothingThrown(const NothingThrown&) = delete;
  NothingThrown& operator=(const NothingThrown&) = delete;
  ~NothingThrown() {
    if (std::uncaught_exceptions() > before_) std::terminate();
  }

 private:
  int before_;
};

}  // namespace kvfolio::capi
