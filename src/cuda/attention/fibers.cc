// SPDX-License-Identifier: Apache-2.0

#include "cuda/attention/fibers.h"

#include <cstdint>
#include <cstdlib>
#include <utility>

namespace kvfolio::cuda {

namespace {
constexpr std::size_t kStackBytes = 128 << 10;
}

// The thread sanitizer keeps one stack of calls for all fibers of a thread, to which a function
// adds itself when it begins and which it leaves when it returns. So what never returns may not be
// on it: it would grow with each start until the sanitizer gives up, at 65,536 calls.
// clang's no_sanitize_thread leaves out the checks of memory alone, not that addition.
#if defined(__SANITIZE_THREAD__) && defined(__clang__)
#define KVFOLIO_NEVER_RETURNS __attribute__((noinline, disable_sanitizer_instrumentation))
#elif defined(__SANITIZE_THREAD__)
#define KVFOLIO_NEVER_RETURNS __attribute__((noinline, no_sanitize_thread))
#else
#define KVFOLIO_NEVER_RETURNS
#endif

struct Fibers::Fiber {
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  std::function<void()> body;
  bool done = true;
#if defined(__x86_64__)
  void* top = nullptr;  // of its stack, while it does not run
#else
  ucontext_t context;
#endif
};

#if defined(__x86_64__)

// Keeps what a call must keep, puts the stack pointer where `from` says, takes that of `to`.
extern "C" void kvfolio_switch_fiber(void** from, void* to);
asm(R"(
.text
.globl kvfolio_switch_fiber
.hidden kvfolio_switch_fiber
.type kvfolio_switch_fiber, @function
kvfolio_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvfolio_switch_fiber, .-kvfolio_switch_fiber
)");

#endif

Fibers::Fibers(int most) : fibers_(static_cast<std::size_t>(most)) {
  for (auto& fiber : fibers_) fiber = std::make_unique<Fiber>();
}
Fibers::~Fibers() = default;

bool Fibers::done(int i) const noexcept { return fibers_[static_cast<std::size_t>(i)]->done; }

namespace {
thread_local Fibers* entering = nullptr;
}

KVFOLIO_NEVER_RETURNS void Fibers::enter() {
  Fibers* const all = entering;
  all->run();
#if defined(__x86_64__)
  kvfolio_switch_fiber(&all->running_->top, all->caller_);
#else
  setcontext(&all->caller_);
#endif
  std::abort();  // it is not resumed again
}

void Fibers::run() {
  running_->body();
  running_->done = true;
}

void Fibers::start(int i, std::function<void()> body) {
  Fiber& fiber = *fibers_[static_cast<std::size_t>(i)];
  fiber.body = std::move(body);
  fiber.done = false;
#if defined(__x86_64__)
  char* const end = fiber.stack.get() + kStackBytes;
  auto* words = reinterpret_cast<void**>(end - reinterpret_cast<std::uintptr_t>(end) % 16);
  // What the first switch pops: six registers and where to go. The stack is then as after a call.
  *--words = nullptr;
  *--words = reinterpret_cast<void*>(&enter);
  for (int r = 0; r < 6; ++r) *--words = nullptr;
  fiber.top = words;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &enter, 0);
#endif
}

void Fibers::resume(int i) {
  running_ = fibers_[static_cast<std::size_t>(i)].get();
  entering = this;
#if defined(__x86_64__)
  kvfolio_switch_fiber(&caller_, running_->top);
#else
  swapcontext(&caller_, &running_->context);
#endif
}

void Fibers::yield() {
#if defined(__x86_64__)
  kvfolio_switch_fiber(&running_->top, caller_);
#else
  swapcontext(&running_->context, &caller_);
#endif
}

}  // namespace kvfolio::cuda
