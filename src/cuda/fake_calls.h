// SPDX-License-Identifier: Apache-2.0
#pragma once

// The calls of fake_driver.h, one for each of driver.h's table: that header includes this one.

#include "cuda/fake_driver.h"

namespace kvfolio::cuda {

struct FakeCalls {
  static FakeDriver& fake() { return *FakeDriver::the(); }
  static DriverResult init(unsigned) { return fake().enter("cuInit"); }
  static DriverResult driver_version(int* version) {
    *version = fake().version;
    return fake().enter("cuDriverGetVersion");
  }
  static DriverResult error_name(DriverResult error, const char** name) {
    *name = error == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                           : nullptr;
    return 0;
  }
  static DriverResult device_count(int* count) {
    *count = fake().devices;
    return fake().enter("cuDeviceGetCount");
  }
  static DriverResult device_get(int* device, int ordinal) {
    *device = ordinal;
    return fake().enter("cuDeviceGet");
  }
  static DriverResult device_name(char* name, int bytes, int device) {
    std::strncpy(name, device == 0 ? "Fake 0" : "Fake 1", static_cast<std::size_t>(bytes));
    return fake().enter("cuDeviceGetName");
  }
  static DriverResult device_attribute(int* value, int attribute, int) {
    const std::map<int, int> values = {{16, fake().multiprocessors}, {75, fake().major},
                                       {76, fake().minor},           {81, fake().shared_of_sm},
                                       {97, fake().shared_of_block}, {111, 1024}};
    const auto found = values.find(attribute);
    KVFOLIO_CHECK(found != values.end());
    *value = found->second;
    return fake().enter("cuDeviceGetAttribute");
  }
  static void* context_of(int device) {
    static int contexts[8];
    return &contexts[device];
  }
  static DriverResult context_retain(void** context, int device) {
    if (const DriverResult error = fake().enter("cuDevicePrimaryCtxRetain"); error != 0)
      return error;
    *context = context_of(device);
    ++fake().retained[device];
    return 0;
  }
  static DriverResult context_release(int device) {
    --fake().retained[device];
    return 0;
  }
  static DriverResult context_push(void* context) {
    std::unique_lock lock(fake().mutex_);
    if (const DriverResult error = fake().enter("cuCtxPushCurrent"); error != 0) return error;
    fake().current.push_back(context);
    lock.release();  // until the pop
    return 0;
  }
  static DriverResult context_pop(void** context) {
    *context = fake().current.back();
    fake().current.pop_back();
    fake().mutex_.unlock();
    return 0;
  }
  // What a call that wants a context begins with.
  static DriverResult enter(const char* symbol) {
    KVFOLIO_CHECK(!fake().current.empty());
    return fake().enter(symbol);
  }
  static DriverResult memory_allocate(DeviceAddress* address, std::size_t bytes) {
    if (const DriverResult error = enter_outside("cuMemAlloc"); error != 0) return error;
    return take(address, bytes);
  }
  static DriverResult take(DeviceAddress* address, std::size_t bytes) {
    FakeDriver::Memory memory;
    memory.bytes = bytes;
    memory.device = current_device();
    memory.owner = std::make_unique<std::byte[]>(bytes + 512);
    void* data = memory.owner.get();
    std::size_t room = bytes + 512;
    memory.data = static_cast<std::byte*>(std::align(256, bytes, data, room));
    std::memset(memory.data, 0xa5, bytes);
    *address = fake().touchable ? reinterpret_cast<std::uintptr_t>(memory.data) : fake().next_;
    fake().next_ += (bytes + 511) / 256 * 256;
    fake().memory_[*address] = std::move(memory);
    return 0;
  }
  static int current_device() {
    for (int device = 0; device < 8; ++device) {
      if (fake().current.back() == context_of(device)) return device;
    }
    return -1;
  }
  static DriverResult memory_allocate_in_stream(DeviceAddress* address, std::size_t bytes,
                                                void* stream) {
    if (const DriverResult error = enter("cuMemAllocAsync"); error != 0) return error;
    static_cast<void>(stream);
    return take(address, bytes);
  }
  // What a call that waits begins with.
  static DriverResult enter_to_wait(const char* symbol) {
    ++fake().waits;
    return enter_outside(symbol);
  }
  // What a call that cannot be captured begins with.
  static DriverResult enter_outside(const char* symbol) {
    if (const DriverResult error = enter(symbol); error != 0) return error;
    return fake().refuse_in_capture();
  }
  static DriverResult memory_free_in_stream(DeviceAddress address, void* stream) {
    if (const DriverResult error = enter("cuMemFreeAsync"); error != 0) return error;
    auto* const s = static_cast<FakeDriver::Stream*>(stream);
    fake().finish(*s, s->started);
    KVFOLIO_CHECK(fake().memory_.erase(address) == 1);
    return 0;
  }
  static DriverResult memory_set(DeviceAddress to, unsigned char value, std::size_t bytes,
                                 void* stream) {
    if (const DriverResult error = enter("cuMemsetD8Async"); error != 0) return error;
    std::byte* const at = fake().bytes_at(to, bytes);
    return fake().start(stream, [=] { std::memset(at, value, bytes); });
  }
  static DriverResult pointer_attribute(void* value, int attribute, DeviceAddress pointer) {
    if (const DriverResult error = enter("cuPointerGetAttribute"); error != 0) return error;
    const FakeDriver::Memory* const memory = fake().find(pointer);
    const bool pinned = fake().is_pinned(pointer);
    if (memory == nullptr && !pinned) return kInvalidValue;
    *static_cast<int*>(value) = attribute != 2 ? (pinned ? 0 : memory->device) : pinned ? 1 : 2;
    return 0;
  }
  static DriverResult context_synchronize() {
    if (const DriverResult error = enter_to_wait("cuCtxSynchronize"); error != 0) return error;
    finish_all();
    return ended();
  }
  static void finish_all() {
    for (auto& stream : fake().streams_) fake().finish(*stream, stream->started);
  }
  static DriverResult ended() { return fake().has_ended ? FakeDriver::kIllegalAddress : 0; }
  static DriverResult memory_free(DeviceAddress address) {
    if (const DriverResult error = enter_to_wait("cuMemFree"); error != 0) return error;
    finish_all();  // as the real one does
    KVFOLIO_CHECK(fake().memory_.erase(address) == 1);
    return 0;
  }
  static DriverResult host_allocate(void** memory, std::size_t bytes, unsigned) {
    if (const DriverResult error = enter_to_wait("cuMemHostAlloc"); error != 0) return error;
    auto owner = std::make_unique_for_overwrite<std::byte[]>(bytes + kMemoryAlignment);
    *memory = owner.get();
    std::size_t room = bytes + kMemoryAlignment;
    std::align(kMemoryAlignment, bytes, *memory, room);
    fake().pinned_[*memory] = {std::move(owner), bytes};
    return 0;
  }
  static DriverResult host_free(void* memory) {
    if (const DriverResult error = enter_to_wait("cuMemFreeHost"); error != 0) return error;
    finish_all();
    KVFOLIO_CHECK(fake().pinned_.erase(memory) == 1);
    return 0;
  }
  static DriverResult copy_in(DeviceAddress to, const void* from, std::size_t bytes, void* stream) {
    if (const DriverResult error = enter("cuMemcpyHtoDAsync"); error != 0) return error;
    fake().copied_from_host = from;
    wait_for_pageable(from, bytes, stream);
    return fake().start_copy(stream, fake().bytes_at(to, bytes),
                             static_cast<const std::byte*>(from), bytes);
  }
  static DriverResult copy_out(void* to, DeviceAddress from, std::size_t bytes, void* stream) {
    if (const DriverResult error = enter("cuMemcpyDtoHAsync"); error != 0) return error;
    fake().copied_to_host = to;
    std::memset(to, FakeDriver::kGarbage, bytes);
    static_cast<void>(fake().start_copy(stream, static_cast<std::byte*>(to),
                                        fake().bytes_at(from, bytes), bytes));
    wait_for_pageable(to, bytes, stream);
    return 0;
  }
  // As the real ones do for such memory, or may.
  static void wait_for_pageable(const void* memory, std::size_t bytes, void* stream) {
    const auto first = reinterpret_cast<std::uintptr_t>(memory);
    if (fake().is_pinned(first) && fake().is_pinned(first + bytes - 1)) return;
    ++fake().waits;
    auto* const s = static_cast<FakeDriver::Stream*>(stream);
    if (s != nullptr) fake().finish(*s, s->started);
  }
  static DriverResult copy_within(DeviceAddress to, DeviceAddress from, std::size_t bytes,
                                  void* stream) {
    if (const DriverResult error = enter("cuMemcpyDtoDAsync"); error != 0) return error;
    std::byte* const dst = fake().bytes_at(to, bytes);
    const std::byte* const src = fake().bytes_at(from, bytes);
    return fake().start_copy(stream, dst, src, bytes);
  }
  static DriverResult stream_create(void** stream, unsigned) {
    if (const DriverResult error = enter("cuStreamCreate"); error != 0) return error;
    auto made = std::make_shared<FakeDriver::Stream>();
    made->context = fake().current.back();
    *stream = fake().streams_.emplace_back(std::move(made)).get();
    return 0;
  }
  static DriverResult stream_query(void* stream) {
    if (const DriverResult error = enter_outside("cuStreamQuery"); error != 0) return error;
    if (static_cast<FakeDriver::Stream*>(stream)->refuses()) return FakeCapture::kUnsupported;
    if (const DriverResult error = fake().capture.ask(stream); error != 0) return error;
    return static_cast<FakeDriver::Stream*>(stream)->work.empty() ? 0 : kNotReady;
  }
  static DriverResult stream_wait_event(void* stream, void* event, unsigned) {
    if (const DriverResult error = enter_outside("cuStreamWaitEvent"); error != 0) return error;
    const FakeDriver::Event& after = *static_cast<FakeDriver::Event*>(event);
    if (after.is_captured) {
      fake().capture.streams.insert(stream);
      return 0;
    }
    return fake().start_behind(after, stream, [] {});
  }
  static DriverResult stream_is_capturing(void* stream, int* status) {
    if (const DriverResult error = enter("cuStreamIsCapturing"); error != 0) return error;
    *status = 0;
    for (const auto& each : fake().streams_) {
      if (each.get() == stream && each->captures) *status = 1;
    }
    if (fake().capture.streams.count(stream) > 0) *status = 1;
    return 0;
  }
  // It needs no context, and fails for its argument alone.
  static DriverResult exchange_capture_mode(int* mode) {
    std::swap(*mode, FakeCapture::mode());
    return 0;
  }
  static DriverResult stream_context(void* stream, void** context) {
    if (const DriverResult error = enter("cuStreamGetCtx"); error != 0) return error;
    *context = static_cast<FakeDriver::Stream*>(stream)->context;
    return 0;
  }
  static DriverResult stream_destroy(void* stream) {
    if (const DriverResult error = enter("cuStreamDestroy"); error != 0) return error;
    auto* const s = static_cast<FakeDriver::Stream*>(stream);
    fake().finish(*s, s->started);  // later, in truth
    fake().standing.erase(stream);
    FakeDriver::erase(fake().streams_, s);
    return 0;
  }
  static DriverResult stream_synchronize(void* stream) {
    if (const DriverResult error = enter_to_wait("cuStreamSynchronize"); error != 0) return error;
    if (const DriverResult error = fake().capture.ask(stream); error != 0) return error;
    auto* const s = static_cast<FakeDriver::Stream*>(stream);
    if (s->refuses()) return FakeCapture::kUnsupported;
    fake().finish(*s, s->started);
    return ended();
  }
  static DriverResult stream_begin_capture(void* stream, int mode) {
    if (const DriverResult error = enter("cuStreamBeginCapture"); error != 0) return error;
    auto* const s = static_cast<FakeDriver::Stream*>(stream);
    if (mode != 1 || s->captures) return kInvalidValue;
    s->captures = true;
    s->by = std::this_thread::get_id();
    s->spoiled = false;
    return 0;
  }
  static DriverResult stream_end_capture(void* stream, void** graph) {
    const DriverResult error = enter("cuStreamEndCapture");
    auto* const s = static_cast<FakeDriver::Stream*>(stream);
    if (!s->captures) return kInvalidValue;
    auto work = std::exchange(s->captured, {});
    s->captures = false;
    if (error != 0) return error;
    if (s->spoiled) return 901;
    *graph = add_graph(std::move(work));
    return 0;
  }
  static void* add_graph(std::vector<std::function<void()>> work) {
    auto made = std::make_unique<FakeDriver::Graph>();
    made->work = std::move(work);
    return fake().graphs_.emplace_back(std::move(made)).get();
  }
  static DriverResult graph_instantiate(void** executable, void* graph, unsigned long long flags) {
    if (const DriverResult error = enter("cuGraphInstantiateWithFlags"); error != 0) return error;
    if (flags != 0) return kInvalidValue;
    *executable = add_graph(static_cast<FakeDriver::Graph*>(graph)->work);
    return 0;
  }
  static DriverResult graph_launch(void* executable, void* stream) {
    if (const DriverResult error = enter("cuGraphLaunch"); error != 0) return error;
    ++fake().graph_launches;
    for (const auto& run : static_cast<FakeDriver::Graph*>(executable)->work) {
      static_cast<void>(fake().start(stream, run));
    }
    return 0;
  }
  static DriverResult graph_destroy(void* graph) {
    if (const DriverResult error = enter("cuGraphDestroy"); error != 0) return error;
    FakeDriver::erase(fake().graphs_, static_cast<FakeDriver::Graph*>(graph));
    return 0;
  }
  static DriverResult graph_exec_destroy(void* executable) {
    if (const DriverResult error = enter("cuGraphExecDestroy"); error != 0) return error;
    FakeDriver::erase(fake().graphs_, static_cast<FakeDriver::Graph*>(executable));
    return 0;
  }
  static DriverResult event_create(void** event, unsigned) {
    if (const DriverResult error = enter("cuEventCreate"); error != 0) return error;
    *event = fake().events_.emplace_back(std::make_unique<FakeDriver::Event>()).get();
    return 0;
  }
  static DriverResult event_destroy(void* event) {
    if (const DriverResult error = enter("cuEventDestroy"); error != 0) return error;
    FakeDriver::erase(fake().events_, static_cast<FakeDriver::Event*>(event));
    return 0;
  }
  static DriverResult event_record(void* event, void* stream) {
    // What the legacy stream was given has ended, see start_behind(). It never fails, so that what
    // a test makes fail is a record behind a copy.
    if (stream == nullptr) {
      ++fake().legacy_records;
      *static_cast<FakeDriver::Event*>(event) = {};
      return 0;
    }
    if (const DriverResult error = enter_outside("cuEventRecord"); error != 0) return error;
    for (const auto& each : fake().streams_) {
      if (each.get() != stream) continue;
      *static_cast<FakeDriver::Event*>(event) = {
          each, each->started, each->captures || fake().capture.streams.count(stream) > 0};
    }
    return 0;
  }
  static DriverResult module_load(void** module, const void* image) {
    if (const DriverResult error = enter_outside("cuModuleLoadData"); error != 0) return error;
    *module = const_cast<void*>(image);
    ++fake().modules_;
    fake().images.push_back(image);
    return 0;
  }
  static DriverResult module_unload(void*) {
    if (const DriverResult error = enter("cuModuleUnload"); error != 0) return error;
    --fake().modules_;
    return 0;
  }
  static DriverResult module_function(void** function, void*, const char* name) {
    if (const DriverResult error = enter("cuModuleGetFunction"); error != 0) return error;
    if (fake().missing.count(name) > 0) return 500;
    *function = const_cast<std::string*>(&*fake().functions_.insert(name).first);
    return 0;
  }
  static DriverResult function_attribute(void* function, int attribute, int value) {
    if (const DriverResult error = enter("cuFuncSetAttribute"); error != 0) return error;
    KVFOLIO_CHECK(attribute == 8);
    if (value > fake().shared_of_block) return kInvalidValue;
    fake().shared_bytes[*static_cast<std::string*>(function)] = value;
    return 0;
  }
  static DriverResult launch_with(const LaunchConfig* config, void* function, void** parameters,
                                  void** extra) {
    // Only kernels of 9.0 on know how to wait for the launch in front.
    if (config->num_attributes > 0 && fake().major < 9) return kInvalidValue;
    fake().overlapping_launches += static_cast<int>(config->num_attributes);
    return launch(function, config->grid_x, config->grid_y, config->grid_z, config->block_x,
                  config->block_y, config->block_z, config->shared_bytes, config->stream,
                  parameters, extra);
  }
  static DriverResult launch(void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x,
                             unsigned, unsigned, unsigned shared_bytes, void* stream,
                             void** parameters, void**) {
    if (const DriverResult error = enter("cuLaunchKernel"); error != 0) return error;
    const std::string& name = *static_cast<std::string*>(function);
    if (fake().kernel) {
      auto work = fake().kernel({name, x, y, z, threads_x, shared_bytes, parameters[0]});
      if (!work) return 500;
      fake().start(stream, std::move(work));
    } else if (name == "kvfolio_runs_in" || name == "kvfolio_runs_out") {
      start_runs(name, y, *static_cast<const RunsArgs*>(parameters[0]), stream);
    }
    const auto* const args = static_cast<const std::byte*>(parameters[0]);
    fake().launches.push_back(
        {name, x, y, z, threads_x, stream, std::vector<std::byte>(args, args + fake().args_bytes)});
    return 0;
  }
  static void start_runs(const std::string& name, unsigned count, const RunsArgs& runs,
                         void* stream) {
    const bool in = name == "kvfolio_runs_in";
    for (unsigned i = 0; i < count; ++i) {
      const StagedRun& run = runs.runs[i];
      std::byte* const memory = fake().bytes_at(run.memory, run.bytes);
      std::byte* const stage = fake().bytes_at(runs.stage + run.at, run.bytes);
      // The units in which the kernel moves them.
      const auto odd = run.memory | run.bytes | 16;
      KVFOLIO_CHECK((runs.stage + run.at) % (odd & -odd) == 0);
      static_cast<void>(
          fake().start_copy(stream, in ? memory : stage, in ? stage : memory, run.bytes));
    }
  }
  static DriverResult event_query(void* event) {
    if (const DriverResult error = enter_outside("cuEventQuery"); error != 0) return error;
    if (static_cast<FakeDriver::Event*>(event)->is_captured) return FakeCapture::kUnsupported;
    return static_cast<FakeDriver::Event*>(event)->has_passed() ? 0 : kNotReady;
  }
  static DriverResult event_synchronize(void* event) {
    if (const DriverResult error = enter_to_wait("cuEventSynchronize"); error != 0) return error;
    const FakeDriver::Event waited = *static_cast<FakeDriver::Event*>(event);
    if (waited.stream != nullptr) fake().finish(*waited.stream, waited.behind);
    return ended();
  }
};

inline DriverCalls FakeDriver::calls() {
  DriverCalls calls;
#define KVFOLIO_FAKE_CALL(member, symbol, arguments) calls.member = FakeCalls::member;
  KVFOLIO_DRIVER_CALLS(KVFOLIO_FAKE_CALL)
#undef KVFOLIO_FAKE_CALL
  return calls;
}

// A device of the fake that is alive.
inline std::shared_ptr<Device> open_device(int ordinal = 0) {
  Result<std::shared_ptr<Device>> device = Device::open(FakeDriver::calls(), ordinal);
  KVFOLIO_CHECK(device.has_value());
  return *device;
}

}  // namespace kvfolio::cuda
