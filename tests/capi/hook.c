// SPDX-License-Identifier: Apache-2.0
//
// A host that defines kvfolio_check_failed() in C hears of a broken check inside the shared
// library.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvfolio/kvfolio.h"

void kvfolio_check_failed(const char* file, int line, const char* expression);
void kvfolio_check_failed(const char* file, int line, const char* expression) {
  printf("the host hears at %s:%d: %s\n", file == NULL ? "-" : file, line, expression);
  exit(strstr(expression, "error was taken") != NULL ? 0 : 1);
}

// No call of C breaks a check: this is detail::no_error() in status.h, what a C++ program calls
// that takes the error of a Result that has a value.
void no_error(void) __asm__("_ZN7kvfolio6detail8no_errorEv");

int main(void) {
  puts(kvfolio_version());
  no_error();
  return 1;
}
