// SPDX-License-Identifier: Apache-2.0
// KVFOLIO_API marks what the shared library exports. Everything else is compiled with hidden
// visibility. The static and the shared library are made of the same objects, so the mark is the
// same for both. To link the static library into a shared object of your own without exporting our
// names, use -Wl,--exclude-libs,libkvfolio.a. This is a macro: it knows no declaration and has no
// state. Every public header includes this one, which also refuses a compiler below C++20.
#pragma once

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "kvfolio needs C++20: compile with -std=c++20 or later"
#endif

#if defined(__GNUC__) || defined(__clang__)
#define KVFOLIO_API __attribute__((visibility("default")))
#else
#define KVFOLIO_API
#endif
