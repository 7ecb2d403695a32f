// SPDX-License-Identifier: Apache-2.0

// The seam of kvfolio_cuda (python/cuda/src/driver.h) over a driver that is none, and what tests in
// Python ask of it. Its device is memory of the host: that of the driver, and what a test adopts,
// so a NumPy array can play a tensor of a device. Kernels are the text of the real ones on the CPU,
// late, as in library_moves_test.cc.

#include "driver.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>

#include "bindings.h"
#include "cuda/fake_driver.h"
#include "cuda/library/host_kernels.h"
#include "cuda/library/loaded.h"

namespace kvfolio::cuda {
namespace {

constexpr int kImage = 0;
constexpr KernelImage kImages[] = {{"moves", &kImage, 4}, {"attend", &kImage, 4}};

// One thread at a time is in the driver, from a context's push to its pop: the driver that is none
// knows no threads, and several devices have one stack of contexts.
std::recursive_mutex& turn() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

struct Adopted {
  std::size_t bytes = 0;
  int device = 0;
  int times = 0;
};

// What a test sees of the calls.
struct Twin {
  FakeDriver fake{7};
  DriverCalls calls = FakeDriver::calls();
  std::map<DeviceAddress, Adopted> adopted;
  std::map<std::pair<int, std::uintptr_t>, void*> special;  // legacy and per-thread, by device
  std::vector<std::pair<std::string, std::uintptr_t>> log;  // calls with the stream they were given
  bool held = false;                                        // no event passes
  bool absent = false;                                      // there is no driver
  bool eager = false;                                       // a kernel ends before its call does

  Twin() {
    fake.touchable = true;
    fake.minor = 0;  // what attention is compiled for
    fake.kernel = either(moves_on_host(), general_attention_on_host());
  }
};
Twin& twin() {
  static auto* it = new Twin;
  return *it;
}

template <auto Member>
struct Locked;
template <typename... A, DriverResult (*DriverCalls::*Member)(A...)>
struct Locked<Member> {
  static DriverResult call(A... arguments) {
    const std::lock_guard lock(turn());
    return (twin().calls.*Member)(arguments...);
  }
};

// The streams that have no handle are streams of their own here: the legacy one, and one of each
// thread.
void* real_stream(const char* call, void* stream) {
  const auto number = reinterpret_cast<std::uintptr_t>(stream);
  twin().log.emplace_back(call, number);
  if (number > 2) return stream;
  static std::uintptr_t threads = 0;  // under turn()
  thread_local const std::uintptr_t thread = ++threads;
  void*& made = twin().special[{FakeCalls::current_device(), number == 2 ? 1 + thread : 1}];
  if (made == nullptr) KVFOLIO_CHECK(FakeCalls::stream_create(&made, 1) == 0);
  return made;
}

DriverResult push(void* context) {
  turn().lock();
  const DriverResult result = twin().calls.context_push(context);
  if (result != 0) turn().unlock();
  return result;
}
DriverResult pop(void** context) {
  const DriverResult result = twin().calls.context_pop(context);
  turn().unlock();
  return result;
}
const Adopted* adopted_at(DeviceAddress pointer) {
  auto next = twin().adopted.upper_bound(pointer);
  if (next == twin().adopted.begin()) return nullptr;
  const auto& [base, memory] = *--next;
  return pointer - base < memory.bytes ? &memory : nullptr;
}
DriverResult pointer_attribute(void* value, int attribute, DeviceAddress pointer) {
  if (const Adopted* const memory = adopted_at(pointer); memory != nullptr) {
    *static_cast<int*>(value) = attribute == 2 ? 2 : memory->device;
    return 0;
  }
  return twin().calls.pointer_attribute(value, attribute, pointer);
}
DriverResult event_record(void* event, void* stream) {
  return twin().calls.event_record(event, real_stream("record", stream));
}
DriverResult event_query(void* event) {
  return twin().held ? kNotReady : twin().calls.event_query(event);
}
DriverResult event_synchronize(void* event) {
  twin().log.emplace_back("synchronize event", 0);
  return twin().calls.event_synchronize(event);
}
DriverResult context_synchronize() {
  twin().log.emplace_back("synchronize", 0);
  return twin().calls.context_synchronize();
}
DriverResult stream_wait_event(void* stream, void* event, unsigned flags) {
  return twin().calls.stream_wait_event(real_stream("wait", stream), event, flags);
}
// A copy to the device that a test stops in its call, without a lock that other calls want here.
struct Pause {
  std::mutex mutex;
  std::condition_variable changed;
  bool wanted = false, stands = false;
};
Pause& pause() {
  static auto* it = new Pause;
  return *it;
}
DriverResult copy_in(DeviceAddress to, const void* from, std::size_t bytes, void* stream) {
  {
    std::unique_lock lock(pause().mutex);
    pause().stands = pause().wanted;
    pause().changed.notify_all();
    pause().changed.wait(lock, [] { return !pause().wanted; });
    pause().stands = false;
  }
  return twin().calls.copy_in(to, from, bytes, real_stream("copy", stream));
}
// The fake knows no adopted memory: such a copy ends at once, behind its stream.
DriverResult copy_within(DeviceAddress to, DeviceAddress from, std::size_t bytes, void* stream) {
  void* const real = real_stream("copy", stream);
  if (adopted_at(to) == nullptr && adopted_at(from) == nullptr) {
    return twin().calls.copy_within(to, from, bytes, real);
  }
  const DriverResult error = twin().calls.stream_synchronize(real);
  const auto at = [](DeviceAddress address) {
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  };
  if (error == 0) std::memcpy(at(to), at(from), bytes);
  return error;
}
DriverResult copy_out(void* to, DeviceAddress from, std::size_t bytes, void* stream) {
  return twin().calls.copy_out(to, from, bytes, real_stream("copy", stream));
}
DriverResult stream_synchronize(void* stream) {
  return twin().calls.stream_synchronize(real_stream("synchronize stream", stream));
}
DriverResult memory_set(DeviceAddress to, unsigned char value, std::size_t bytes, void* stream) {
  return twin().calls.memory_set(to, value, bytes, real_stream("set", stream));
}
DriverResult launch(void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                    unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void* stream,
                    void** parameters, void** extra) {
  const DriverResult result =
      twin().calls.launch(function, x, y, z, threads_x, threads_y, threads_z, shared_bytes,
                          real_stream("launch", stream), parameters, extra);
  if (twin().eager) FakeCalls::finish_all();
  return result;
}

DriverResult launch_with(const LaunchConfig* config, void* function, void** parameters,
                         void** extra) {
  LaunchConfig real = *config;
  real.stream = real_stream("launch", config->stream);
  const DriverResult result = twin().calls.launch_with(&real, function, parameters, extra);
  if (twin().eager) FakeCalls::finish_all();
  return result;
}

DriverCalls calls_of_twin() {
  DriverCalls calls;
#define KVFOLIO_TWIN_CALL(member, symbol, arguments) \
  calls.member = Locked<&DriverCalls::member>::call;
  KVFOLIO_DRIVER_CALLS(KVFOLIO_TWIN_CALL)
#undef KVFOLIO_TWIN_CALL
  calls.context_push = push;
  calls.context_pop = pop;
  calls.pointer_attribute = pointer_attribute;
  calls.event_record = event_record;
  calls.event_query = event_query;
  calls.event_synchronize = event_synchronize;
  calls.context_synchronize = context_synchronize;
  calls.stream_wait_event = stream_wait_event;
  calls.copy_in = copy_in;
  calls.copy_within = copy_within;
  calls.copy_out = copy_out;
  calls.stream_synchronize = stream_synchronize;
  calls.memory_set = memory_set;
  calls.launch = launch;
  calls.launch_with = launch_with;
  return calls;
}

// In the context of a device, as the driver wants it.
template <typename F>
DriverResult within(int device, F&& call) {
  const std::lock_guard lock(turn());
  KVFOLIO_CHECK(FakeCalls::context_push(FakeCalls::context_of(device)) == 0);
  const DriverResult result = call();
  void* popped = nullptr;
  static_cast<void>(FakeCalls::context_pop(&popped));
  return result;
}
std::uintptr_t make_stream(int device) {
  void* stream = nullptr;
  KVFOLIO_CHECK(within(device, [&] { return FakeCalls::stream_create(&stream, 1); }) == 0);
  return reinterpret_cast<std::uintptr_t>(stream);
}
void* handle_of(std::uintptr_t stream) {
  return reinterpret_cast<void*>(stream);  // NOLINT(performance-no-int-to-ptr)
}
void capture(std::uintptr_t stream) {
  const auto begin = [&] { return FakeCalls::stream_begin_capture(handle_of(stream), 1); };
  KVFOLIO_CHECK(within(0, begin) == 0);
}
bool end_capture(std::uintptr_t stream) {
  void* graph = nullptr;
  return within(0, [&] { return FakeCalls::stream_end_capture(handle_of(stream), &graph); }) == 0;
}
// What was captured, to be started again.
std::uintptr_t end_graph(std::uintptr_t stream) {
  void* graph = nullptr;
  KVFOLIO_CHECK(
      within(0, [&] { return FakeCalls::stream_end_capture(handle_of(stream), &graph); }) == 0);
  return reinterpret_cast<std::uintptr_t>(graph);
}
void replay(std::uintptr_t graph, std::uintptr_t stream) {
  KVFOLIO_CHECK(
      within(0, [&] { return FakeCalls::graph_launch(handle_of(graph), handle_of(stream)); }) == 0);
}
// As torch's Stream.wait_stream().
void wait_stream(std::uintptr_t stream, std::uintptr_t other) {
  KVFOLIO_CHECK(within(0, [&] {
                  void* event = nullptr;
                  KVFOLIO_CHECK(FakeCalls::event_create(&event, 0) == 0);
                  KVFOLIO_CHECK(FakeCalls::event_record(event, handle_of(other)) == 0);
                  KVFOLIO_CHECK(FakeCalls::stream_wait_event(handle_of(stream), event, 0) == 0);
                  return FakeCalls::event_destroy(event);
                }) == 0);
}
// Work of the stream runs when it is waited for, and not before.
void stand(std::uintptr_t stream) {
  const std::lock_guard lock(turn());
  twin().fake.standing.insert(handle_of(stream));
}
void finish_stream(std::uintptr_t stream) {
  KVFOLIO_CHECK(within(0, [&] { return FakeCalls::stream_synchronize(handle_of(stream)); }) == 0);
}

}  // namespace
}  // namespace kvfolio::cuda

namespace kvfolio::python::driver {

using cuda::twin;

bool has_kernels() { return true; }
Status available() {
  if (twin().absent) return {ErrorCode::kUnavailable, "there is no driver in this test"};
  return {};
}
Result<std::int32_t> num_devices() {
  const Status status = available();
  if (!status.ok()) return status;
  return twin().fake.devices;
}
Result<std::shared_ptr<cuda::Device>> open(std::int32_t ordinal) {
  const Status status = available();
  if (!status.ok()) return status;
  return cuda::Device::open(cuda::calls_of_twin(), ordinal);
}
Result<std::shared_ptr<cuda::Kernels>> load(const std::shared_ptr<cuda::Device>& device) {
  return cuda::load_kernels(device, {}, cuda::kImages);
}

}  // namespace kvfolio::python::driver

void add_twin(nb::module_& m) {
  namespace cuda = kvfolio::cuda;
  using cuda::turn;
  using cuda::twin;
  nb::module_ t = m.def_submodule("twin", "A driver that is none.");
  t.def("adopt", [](std::uintptr_t address, std::size_t bytes, int device) {
    const std::lock_guard lock(turn());
    cuda::Adopted& memory = twin().adopted[address];
    memory = {std::max(bytes, memory.bytes), device, memory.times + 1};
  });
  t.def("disown", [](std::uintptr_t address) {
    const std::lock_guard lock(turn());
    const auto memory = twin().adopted.find(address);
    if (--memory->second.times == 0) twin().adopted.erase(memory);
  });
  t.def("stream", &cuda::make_stream);
  t.def("capture", &cuda::capture, "Until end_capture(), which says whether a graph came of it.");
  t.def("end_capture", &cuda::end_capture);
  t.def("end_graph", &cuda::end_graph, "As end_capture(): the graph, for replay().");
  t.def("replay", &cuda::replay);
  t.def("wait_stream", &cuda::wait_stream);
  t.def("stand", &cuda::stand);
  t.def("finish_stream", &cuda::finish_stream);
  t.def("hold", [](bool held) {
    const std::lock_guard lock(turn());
    twin().held = held;
  });
  t.def("pause_copies", [](bool wanted) {
    const std::lock_guard lock(cuda::pause().mutex);
    cuda::pause().wanted = wanted;
    cuda::pause().changed.notify_all();
  });
  t.def("wait_for_pause", [] {
    const nb::gil_scoped_release release;
    std::unique_lock lock(cuda::pause().mutex);
    cuda::pause().changed.wait(lock, [] { return cuda::pause().stands; });
  });
  t.def("eager", [](bool eager) { twin().eager = eager; });
  t.def("absent", [](bool absent) { twin().absent = absent; });
  t.def("finish", [] {
    const std::lock_guard lock(turn());
    cuda::FakeCalls::finish_all();
  });
  t.def("fail_at", [](int number, int error) {
    const std::lock_guard lock(turn());
    twin().fake.count = 0;
    twin().fake.fail_at = number;
    twin().fake.fail_with = error;
  });
  t.def("take_log", [] {
    const std::lock_guard lock(turn());
    nb::list list;
    for (const auto& [call, stream] : twin().log) list.append(nb::make_tuple(call, stream));
    twin().log.clear();
    return list;
  });
  t.def("device_bytes", [] {
    const std::lock_guard lock(turn());
    return twin().fake.device_bytes();
  });
}
