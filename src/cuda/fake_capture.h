// SPDX-License-Identifier: Apache-2.0
#pragma once

// What FakeDriver knows of captures of streams, by the thread that calls or by another one.

#include <set>
#include <string>
#include <utility>

#include "cuda/driver.h"

namespace kvfolio::cuda {

struct FakeCapture {
  static constexpr int kGlobal = 0;
  static constexpr DriverResult kUnsupported = 900;

  // Another thread captures in global mode: who is in that mode is refused what it forbids.
  bool others = false;
  std::set<void*> streams;  // captured; one that waits for an event of theirs is one of them
  int broken = 0;           // how often

  static int& mode() {
    static thread_local int mode = kGlobal;
    return mode;
  }
  // 0, or what a call answers while others capture.
  DriverResult enter(const char* symbol) {
    static const std::set<std::string> forbidden = {
        "cuEventQuery",     "cuStreamQuery",   "cuStreamSynchronize", "cuEventSynchronize",
        "cuCtxSynchronize", "cuMemAlloc",      "cuMemFree",           "cuMemHostAlloc",
        "cuMemFreeHost",    "cuStreamDestroy", "cuEventDestroy"};
    if (!others || mode() != kGlobal || forbidden.count(symbol) == 0) return 0;
    ++broken;
    return kUnsupported;
  }
  // 0, or what a captured stream answers to a question or a wait.
  DriverResult ask(void* stream) {
    if (streams.count(stream) == 0) return 0;
    ++broken;
    return kUnsupported;
  }
};

}  // namespace kvfolio::cuda
