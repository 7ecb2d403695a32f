// SPDX-License-Identifier: Apache-2.0
//
// No C++ exception comes out of a function of C: not from functions of the caller that throw, not
// for want of memory. The program ends instead. Each case runs in a process of its own, which
// catches all that comes out.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kvfolio/kvfolio_tiers.h"

namespace {

int allocations_left = -1;  // -1: no end

}  // namespace

// Fails when it is told to.
void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace {

constexpr int kCaught = 42;

// What the process ends with: 0, -SIGABRT, or kCaught if an exception came out.
template <typename Case>
int run(Case&& one) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(3);
    try {
      one();
    } catch (...) {
      _exit(kCaught);
    }
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) std::abort();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int num_wrong = 0;
void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what);
  ++num_wrong;
}

std::int64_t throwing_submit(void*, std::int32_t, const kvfolio_tier_item*, std::int64_t,
                             std::uint64_t) {
  throw std::runtime_error("submit");
}
std::int64_t throwing_poll(void*, std::uint64_t, kvfolio_tier_done*, std::int64_t) {
  throw std::runtime_error("poll");
}
std::int32_t throwing_close(void*, std::uint64_t) { throw std::runtime_error("close"); }
std::int32_t throwing_write(void*, const void*, std::int64_t) { throw std::runtime_error("write"); }
std::int32_t throwing_read(void*, std::int64_t, void*, std::int64_t) {
  throw std::runtime_error("read");
}

struct World {
  kvfolio_manager* manager = nullptr;
  kvfolio_identity* names = nullptr;
  kvfolio_tier* tier = nullptr;
};

kvfolio_text text_of(const char* text) { return {text, -1}; }

kvfolio_model_identity model() {
  kvfolio_model_identity out{};
  out.struct_size = sizeof out;
  out.model = out.weights = out.tokenizer = text_of("toy");
  out.model_dtype = out.positions = out.engine = text_of("toy");
  return out;
}

World make_world() {
  World w;
  kvfolio_group_spec group{};
  group.struct_size = sizeof group;
  group.head_dim_k = 8;
  group.block_size = 4;
  group.num_blocks = 16;
  kvfolio_storage* storage = nullptr;
  kvfolio_manager_options options{};
  options.struct_size = sizeof options;
  options.list_findable = 1;
  const kvfolio_model_identity toy = model();
  kvfolio_tier_functions functions{};
  functions.struct_size = sizeof functions;
  functions.submit = throwing_submit;
  functions.poll = throwing_poll;
  functions.close = throwing_close;
  if (kvfolio_storage_create(&group, 1, nullptr, &storage, nullptr) != 0 ||
      kvfolio_manager_create_with_storage(&storage, &options, &w.manager, nullptr) != 0 ||
      kvfolio_identity_create(&toy, &group, 1, &w.names, nullptr) != 0 ||
      kvfolio_tier_create(&functions, &w.tier, nullptr) != 0) {
    std::abort();
  }
  return w;
}

void functions_that_throw(const World& w) {
  std::int64_t accepted = 0;
  kvfolio_tier_item item{};
  kvfolio_tier_done done{};
  kvfolio_byte_sink sink{};
  sink.struct_size = sizeof sink;
  sink.write = throwing_write;
  kvfolio_byte_source source{};
  source.struct_size = sizeof source;
  source.size = 1000;
  source.read_at = throwing_read;
  kvfolio_restored* restored = nullptr;
  const auto ends = [](auto&& one) { return run(one) == -SIGABRT; };
  expect(ends([&] { kvfolio_tier_submit(w.tier, 0, &item, 1, 0, &accepted, nullptr); }), "submit");
  expect(ends([&] { kvfolio_tier_poll(w.tier, 0, &done, 1); }), "poll");
  expect(ends([&] { kvfolio_tier_close(w.tier, 0, nullptr); }), "close");
  expect(ends([&] { kvfolio_save(w.manager, w.names, &sink, nullptr, nullptr, nullptr, nullptr); }),
         "write");
  expect(ends([&] { kvfolio_restore(w.manager, w.names, &source, &restored, nullptr); }), "read");
  expect(run([] { throw 1; }) == kCaught, "this test would see an exception");
}

// The whole life of an Offload, with memory for so many allocations.
void live(const World& w, int allocations) {
  const kvfolio_model_identity toy = model();
  kvfolio_offload_options options{};
  options.struct_size = sizeof options;
  options.arena_bytes = 1 << 16;
  kvfolio_tier* memory = nullptr;
  kvfolio_offload* offload = nullptr;
  const std::int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  kvfolio_sequence sequence = 0;
  kvfolio_sequence_ready ready[1];
  kvfolio_save_list* list = nullptr;
  allocations_left = allocations;
  kvfolio_tier_create_memory(w.manager, 1 << 16, nullptr, &memory, nullptr);
  kvfolio_offload_tier tier{};
  tier.struct_size = sizeof tier;
  tier.tier = memory;
  if (memory == nullptr) _exit(0);
  kvfolio_offload_create(w.manager, &toy, &options, &tier, 1, nullptr, &offload, nullptr);
  kvfolio_offload_open(offload, nullptr, tokens, 8, nullptr, 0, nullptr, &sequence, nullptr,
                       nullptr, nullptr);
  for (unsigned i = 0; i < 10; ++i) kvfolio_offload_poll(offload, i, ready, 1);
  kvfolio_offload_cancel(offload, sequence, nullptr, nullptr);
  kvfolio_save_list_create(&list, nullptr);
  kvfolio_save_list_add(list, sequence, nullptr, tokens, 8, nullptr, 0, nullptr);
  kvfolio_save_file(w.manager, w.names, "/no/such/folder", list, nullptr, nullptr, nullptr);
  kvfolio_offload_reset(offload, nullptr, nullptr, nullptr);
  kvfolio_offload_destroy(offload);
  kvfolio_tier_destroy(memory);
}

void no_memory(const World& w) {
  int ended = 0;
  int n = 0;
  for (;; ++n) {
    const int end = run([&] { live(w, n); });
    if (end != 0 && end != -SIGABRT) std::printf("after %d allocations: %d\n", n, end);
    expect(end == 0 || end == -SIGABRT, "an exception for want of memory came out, or worse");
    ended += end == -SIGABRT ? 1 : 0;
    if (run([&] {
          live(w, n);
          _exit(allocations_left > 0 ? 0 : 1);
        }) == 0) {
      break;  // it had enough
    }
  }
  expect(n > 50 && ended > 10, "memory was short often enough to say something");
  std::printf("%d allocations, %d ends\n", n, ended);
}

}  // namespace

int main() {
  const World w = make_world();
  functions_that_throw(w);
  no_memory(w);
  return num_wrong != 0 ? 1 : 0;
}
