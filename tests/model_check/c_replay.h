// SPDX-License-Identifier: Apache-2.0
#pragma once

// The calls of an operation log, made through the C interface and in C++ beside it: each answers
// alike, with its code, its sentence, its shortage and all numbers, and so do questions asked
// between them. Storages have the same bytes after each run_copies(). So a million random calls of
// the model check go through src/capi.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "kvfolio/byte_sink.h"

namespace kvfolio::model_check {

struct CReplay {
  std::uint64_t calls = 0;
  std::uint64_t questions = 0;
  std::uint64_t errors = 0;
  std::uint64_t prompts = 0;  // that questions were about
  std::uint64_t found = 0;    // of them, with a prefix in the cache
  std::uint64_t soon = 0;     // of them, with a prefix that was announced
  std::uint64_t copies = 0;   // of the manager, which went on with the copy
  // How often each call of a log was made, and each question was asked, by its name in C.
  std::map<std::string_view, std::uint64_t> made;
  std::map<std::string_view, std::uint64_t> asked;
};
// Throws CheckFailed where C answers otherwise. `seed`: of the questions. `record`, if not null,
// gets a line for each call that Rust repeats (bindings/rust/kvfolio/tests/model_check.rs):
//
//   append 17 3 5 6 7 0 = 0 ;                    the sequence, 3 tokens, no draft: ok
//   trim 17 -1 4 = 1 ; trim: num_sinks is -1 ... an error: its code and its sentence
//
// Arguments and results are integers; an array is its size and its elements.
CReplay replay_in_c(ByteSource& log, std::uint64_t seed, std::string* record = nullptr);

}  // namespace kvfolio::model_check
