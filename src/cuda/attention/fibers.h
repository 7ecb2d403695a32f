// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fibers: functions with stacks of their own that one thread runs in turn. host_model.h makes the
// threads of a block of them. A switch is a dozen instructions on x86-64; elsewhere ucontext does
// it.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace kvfolio::cuda {

class Fibers {
 public:
  explicit Fibers(int most);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // Fiber i will run `body` from its first resume() on. Requires: done(i).
  void start(int i, std::function<void()> body);
  // Runs fiber i until it yields or ends. Requires: !done(i); not called by a fiber.
  void resume(int i);
  // Back to where resume() was called. Called by the fiber that runs.
  void yield();
  [[nodiscard]] bool done(int i) const noexcept;

 private:
  struct Fiber;
  static void enter();  // the first call on the stack of a fiber
  void run();
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* running_ = nullptr;
#if defined(__x86_64__)
  void* caller_ = nullptr;
#else
  ucontext_t caller_;
#endif
};

}  // namespace kvfolio::cuda
