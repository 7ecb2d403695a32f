// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the benchmarks share: time, rounds, checks, random numbers. Times are those of the thread's
// processor time, so that what a neighbour takes of a shared machine is not counted (its dirt in
// the caches is). Reading that clock costs some hundred nanoseconds: time batches.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvfolio/memory.h"
#include "kvfolio/status.h"
#include "row.h"

namespace kvfolio::bench {

void require(bool condition, const std::string& what);
inline void require(const Status& status, const std::string& what) {
  if (!status.ok()) require(false, what + ": " + status.message());
}
template <typename T>
T take(Result<T> result, const std::string& what) {
  if (!result) require(false, what + ": " + result.error().message());
  return std::move(*result);
}

// The compiler must believe that this memory is read, and may have written to it.
inline void keep(const void* memory) { asm volatile("" : : "g"(memory) : "memory"); }
inline void keep(std::uint64_t value) { asm volatile("" : : "r"(value) : "memory"); }

class Stopwatch {
 public:
  void start() { begin_ = now(); }
  void stop() { nanoseconds_ += now() - begin_; }
  [[nodiscard]] double nanoseconds() const { return static_cast<double>(nanoseconds_); }

 private:
  static std::int64_t now();
  std::int64_t begin_ = 0;
  std::int64_t nanoseconds_ = 0;
};

template <typename Call>
double nanoseconds_of(Call&& call) {
  Stopwatch watch;
  watch.start();
  call();
  watch.stop();
  return watch.nanoseconds();
}

// splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  // Below `bound`, near enough to uniform.
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>((*this)() % static_cast<std::uint64_t>(bound));
  }

 private:
  std::uint64_t state_;
};

[[nodiscard]] std::vector<std::int32_t> shuffled(std::int32_t count, std::uint64_t seed);

// Memory on huge pages.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes);
  ~Buffer() { memory_.deallocate(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(bytes_); }

 private:
  HostMemory memory_;
  std::int64_t bytes_;
  std::byte* data_ = nullptr;
};

// What a row says beside its numbers.
struct Figure {
  std::string name;
  std::vector<std::pair<std::string, Fact>> facts = {};
  std::string unit = "ns";
  bool lower_is_better = true;
  std::optional<Promise> promise = {};
  bool promise_is_ratio = false;
  std::string note = {};
};

// One number per round; `other` is empty or of the same length.
struct Samples {
  std::vector<double> ours;
  std::vector<double> other;
};

class Session {
 public:
  Session(const Options& options, const std::function<void(const Row&)>& emit,
          LeftOut left_out = {})
      : options_(options), emit_(emit), left_out_(std::move(left_out)) {}

  [[nodiscard]] bool quick() const { return options_.quick; }
  [[nodiscard]] int rounds() const { return options_.rounds; }
  // Work for a name that was not asked for can be left out.
  [[nodiscard]] bool wants(std::string_view name) const {
    return name.find(options_.filter) != std::string_view::npos;
  }
  // A row that this machine does not let us measure.
  void leave_out(std::string_view name, std::string_view why) const {
    if (left_out_ && wants(name)) left_out_(name, why);
  }
  [[nodiscard]] std::int32_t size(std::int32_t full, std::int32_t quick) const {
    return options_.quick ? quick : full;
  }

  // Both sides in turn, once per round, in changing order. Each returns its figure in the unit.
  Samples alternate(const std::function<double()>& ours,
                    const std::function<double()>& other) const;
  void report(const Figure& figure, const Samples& samples) const;
  void measure(const Figure& figure, const std::function<double()>& ours,
               const std::function<double()>& other = {}) const {
    report(figure, alternate(ours, other));
  }

 private:
  const Options& options_;
  const std::function<void(const Row&)>& emit_;
  LeftOut left_out_;
};

[[nodiscard]] double percentile(std::vector<double> values, double fraction);

}  // namespace kvfolio::bench
