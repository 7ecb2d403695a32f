// SPDX-License-Identifier: Apache-2.0

// library_device PART [--quick] [--small]: what the public headers of libkvfolio_cuda promise, on a
// device, against the CPU's functions.
//   library  append, gather, copies, attention; what is refused
//   death    a kernel ends the context, and every later call says so; run it in its own process
//   plan     DevicePlan: uploads, times, a captured graph over many steps of a manager
//   later    an Offload beside attention: what it takes from it
// Lines that begin with J| are rows for scripts/gpu. Exit: 0 if nothing failed, else 1; 3: there is
// no device. Limits of time are judged by scripts/gpu, which knows the card. --small is for a
// driver that is none (tests/fake_cuda).

#include <dlfcn.h>

#include <string_view>

#include "device_part.h"

namespace kvfolio::cuda::parts {

Driver::Driver(const Device& device) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return;
  find(library, make_current_, "cuCtxSetCurrent");
  find(library, event_create_, "cuEventCreate");
  find(library, event_record_, "cuEventRecord");
  find(library, event_synchronize_, "cuEventSynchronize");
  find(library, event_elapsed_, "cuEventElapsedTime");
  find(library, set_, "cuMemsetD8Async");
  find(library, copy_, "cuMemcpyDtoDAsync_v2");
  find(library, begin_capture_, "cuStreamBeginCapture_v2");
  find(library, end_capture_, "cuStreamEndCapture");
  find(library, instantiate_, "cuGraphInstantiateWithFlags");
  find(library, launch_, "cuGraphLaunch");
  check(make_current_(device.context()), "cuCtxSetCurrent");
}

template <typename Call>
void Driver::find(void* library, Call& call, const char* name) {
  call = reinterpret_cast<Call>(dlsym(library, name));
  if (call == nullptr) throw Stop{std::string("the driver has no ") + name};
}

void Driver::check(int result, const char* what) {
  if (result != 0) throw Stop{std::string(what) + " says " + std::to_string(result)};
}

void* Driver::event() {
  void* made = nullptr;
  check(event_create_(&made, 0), "cuEventCreate");
  return made;
}
void Driver::record(void* event, void* stream) {
  check(event_record_(event, stream), "cuEventRecord");
}
double Driver::us_between(void* before, void* after) {
  check(event_synchronize_(after), "cuEventSynchronize");
  float ms = 0;
  check(event_elapsed_(&ms, before, after), "cuEventElapsedTime");
  return static_cast<double>(ms) * 1e3;
}
void Driver::set(std::byte* memory, unsigned char value, std::size_t bytes, void* stream) {
  check(set_(reinterpret_cast<Address>(memory), value, bytes, stream), "cuMemsetD8Async");
}
void Driver::copy(std::byte* to, const std::byte* from, std::size_t bytes, void* stream) {
  check(copy_(reinterpret_cast<Address>(to), reinterpret_cast<Address>(from), bytes, stream),
        "cuMemcpyDtoDAsync");
}
void Driver::begin_capture(void* stream) {
  constexpr int kThreadLocal = 1;
  check(begin_capture_(stream, kThreadLocal), "cuStreamBeginCapture");
}
void* Driver::end_capture(void* stream) {
  void *graph = nullptr, *made = nullptr;
  check(end_capture_(stream, &graph), "cuStreamEndCapture");
  check(instantiate_(&made, graph, 0), "cuGraphInstantiate");
  return made;
}
void Driver::launch(void* graph, void* stream) { check(launch_(graph, stream), "cuGraphLaunch"); }

}  // namespace kvfolio::cuda::parts

int main(int argc, char** argv) {
  using namespace kvfolio::cuda::parts;
  Options options;
  std::string_view part;
  for (const char* const argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    const std::string_view word = argument;
    if (word == "--quick") {
      options.quick = true;
    } else if (word == "--small") {
      options.small = true;
    } else {
      part = word;
    }
  }
  if (const kvfolio::Status none = kvfolio::cuda::available(); !none.ok()) {
    std::printf("no device: %s\n", none.message().c_str());
    return 3;
  }
  Report report;
  try {
    if (part == "death") return run_death();
    if (part == "library") {
      run_library(report, options);
    } else if (part == "plan") {
      run_plan(report, options);
    } else if (part == "padded") {
      run_padded(report, options);
    } else if (part == "later") {
      run_later(report, options);
    } else {
      std::printf("library_device: parts are library, death, plan, padded, later\n");
      return 2;
    }
  } catch (const Stop& stop) {
    report.fail(stop.why);
  }
  std::printf("%d failures\n", report.failures);
  return report.failures == 0 ? 0 : 1;
}
