// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the parts of library_device share: lines that scripts/gpu reads, a device with its kernels,
// and those calls of the driver that libkvfolio_cuda does not make: times and captured graphs.

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvfolio/cuda.hpp"

namespace kvfolio::cuda::parts {

struct Options {
  bool quick = false;
  bool small = false;  // for a driver that is none, whose kernels the CPU runs: nothing is timed
};

// Ends the part: what follows would tell nothing.
struct Stop {
  std::string why;
};

inline void must(const Status& status, const char* what) {
  if (!status.ok()) throw Stop{std::string(what) + ": " + status.message()};
}
template <typename T>
T must(Result<T> result, const char* what) {
  if (!result) throw Stop{std::string(what) + ": " + result.error().message()};
  return *std::move(result);
}

class Report {
 public:
  // A row of the part, JSON: {"shape": ..., ...}.
  [[gnu::format(printf, 2, 3)]] void row(const char* format, ...) const {
    va_list list;
    va_start(list, format);
    std::printf("J|");
    std::vprintf(format, list);
    std::printf("\n");
    std::fflush(stdout);
    va_end(list);
  }
  // What was timed, and the most that it may take on an H200, which scripts/gpu judges.
  void time(const std::string& shape, double us, double most_us) const {
    row("{\"shape\": \"%s\", \"us\": %.2f, \"most_us\": %.2f}", shape.c_str(), us, most_us);
  }
  void fail(const std::string& text) {
    ++failures;
    std::printf("FAILED %s\n", text.c_str());
    std::fflush(stdout);
  }
  void expect(bool holds, const std::string& text) {
    if (!holds) fail(text);
  }
  int failures = 0;
};

// A device, its kernels, memory and a stream.
struct Card {
  std::shared_ptr<Device> device = must(Device::open(0), "a device");
  std::shared_ptr<Kernels> kernels = must(Kernels::load(device), "its kernels");
  std::unique_ptr<DeviceMemory> memory =
      must(DeviceMemory::create(device, {.kernels = kernels}), "its memory");
  Stream stream = must(Stream::create(device), "a stream");

  // A copy of host memory in device memory, which stays as long as the process.
  template <typename T>
  T* copied(const std::vector<T>& values) {
    return reinterpret_cast<T*>(copied(std::as_bytes(std::span(values))));
  }
  std::byte* copied(std::span<const std::byte> bytes) {
    const auto count = static_cast<std::int64_t>(bytes.size());
    std::byte* const there = must(memory->allocate(std::max<std::int64_t>(count, 16)), "memory");
    const CopyRun run{there, bytes.data(), count};
    if (count > 0) must(memory->copy_in({&run, 1}), "to the device");
    return there;
  }
  std::vector<std::byte> back(const std::byte* from, std::size_t bytes) {
    std::vector<std::byte> result(bytes);
    const CopyRun run{result.data(), from, static_cast<std::int64_t>(bytes)};
    must(memory->copy_out({&run, 1}), "from the device");
    return result;
  }
};

// libcuda.so.1 itself. Without it (a driver that is none) no call may be made.
class Driver {
 public:
  explicit Driver(const Device& device);
  [[nodiscard]] bool is_there() const { return event_create_ != nullptr; }

  void* event();
  void record(void* event, void* stream);
  // Waits for `after`.
  double us_between(void* before, void* after);
  void set(std::byte* memory, unsigned char value, std::size_t bytes, void* stream);
  void copy(std::byte* to, const std::byte* from, std::size_t bytes, void* stream);
  // What `stream` is given until end_capture(), as a graph.
  void begin_capture(void* stream);
  void* end_capture(void* stream);
  void launch(void* graph, void* stream);

 private:
  using Address = unsigned long long;
  static void check(int result, const char* what);
  template <typename Call>
  void find(void* library, Call& call, const char* name);

  int (*make_current_)(void*) = nullptr;
  int (*event_create_)(void**, unsigned) = nullptr;
  int (*event_record_)(void*, void*) = nullptr;
  int (*event_synchronize_)(void*) = nullptr;
  int (*event_elapsed_)(float*, void*, void*) = nullptr;
  int (*set_)(Address, unsigned char, std::size_t, void*) = nullptr;
  int (*copy_)(Address, Address, std::size_t, void*) = nullptr;
  int (*begin_capture_)(void*, int) = nullptr;
  int (*end_capture_)(void*, void**) = nullptr;
  int (*instantiate_)(void**, void*, unsigned long long) = nullptr;
  int (*launch_)(void*, void*) = nullptr;
};

using Clock = std::chrono::steady_clock;
inline double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}
inline double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void run_library(Report& report, const Options& options);
int run_death();  // in a process of its own
void run_plan(Report& report, const Options& options);
void run_padded(Report& report, const Options& options);
void run_later(Report& report, const Options& options);

}  // namespace kvfolio::cuda::parts
