// SPDX-License-Identifier: Apache-2.0
#pragma once

// A driver for tests, which fills the table of driver.h. Its device memory has addresses that no
// CPU may touch, unless a test wants kernels to run: then memory is touchable, and `kernel` makes
// of a launch what its stream does. A stream does nothing until a call has to wait for it, or at
// random moments before: so a copy reads and writes host memory as late as a real one may, and
// streams overtake each other. A stream that waits for an event stands until that has passed; a
// test can make one stand. What a copy writes is garbage from its start until it has ended; memory
// of the host from the call on that enqueues it. A stream that is captured keeps its work for the
// launches of a graph, and refuses what a real one cannot capture; fake_capture.h knows captures
// that others make. Any call can be made to fail, once, so often or always, and the context to end
// in the middle of what is enqueued.

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "cuda/fake_capture.h"
#include "cuda/move_args.h"
#include "kvfolio/memory.h"

namespace kvfolio::cuda {

class FakeDriver {
 public:
  explicit FakeDriver(unsigned seed = 1) : random_(seed) { the() = this; }
  FakeDriver(const FakeDriver&) = delete;
  FakeDriver& operator=(const FakeDriver&) = delete;
  ~FakeDriver() { the() = nullptr; }

  [[nodiscard]] static DriverCalls calls();

  int version = 13000;
  int devices = 2;
  int major = 9;
  int minor = 5;
  int multiprocessors = 132;
  int shared_of_block = 227 << 10;  // at most, if a kernel asks for it
  int shared_of_sm = 228 << 10;
  // Plays a card of this compute capability with its limits: those of the first one that had it.
  void play(int major_in, int minor_in);
  bool touchable = false;
  // What a launch does, or an empty function: that kernel is not known.
  struct Start {
    std::string name;
    unsigned x, y, z, threads, shared_bytes;
    const void* args;  // read before it returns
  };
  std::function<std::function<void()>(const Start&)> kernel;
  // The call of this number, from 1 on, answers fail_with and does nothing; 0: none.
  int fail_at = 0;
  DriverResult fail_with = 2;
  // Calls since the last time this was set to 0, and the last one's symbol.
  int count = 0;
  std::string last;
  std::string failed;  // the symbol of the call that fail_at made fail
  // Calls of these symbols answer that, always.
  std::map<std::string, DriverResult> always;
  std::map<std::string, int> times;  // but only so often, if it is named here
  // After so many steps of streams the context ends: what is enqueued never runs; 0: it does not.
  std::size_t ends_at = 0;
  bool has_ended = false;
  FakeCapture capture;
  std::set<void*> standing;  // streams that move on only if a call waits for them
  int graph_launches = 0;
  int legacy_records = 0;                // of events in the legacy stream
  int waits = 0;                         // calls that wait for the device, or may
  const void* copied_to_host = nullptr;  // by the last copy of that direction
  const void* copied_from_host = nullptr;
  int moves_percent = 25;       // of the looks at a stream at each call: it takes a step
  std::vector<void*> current;   // the stack of contexts
  std::map<int, int> retained;  // by device

  // Kernels of a module that it does not have.
  std::set<std::string> missing;
  struct Launch {
    std::string kernel;
    unsigned x, y, z, threads;
    void* stream;
    std::vector<std::byte> args;  // the first of them
  };
  std::vector<Launch> launches;
  std::size_t args_bytes = 16;              // of a launch that are kept
  std::map<std::string, int> shared_bytes;  // that a kernel was allowed, by name
  std::vector<const void*> images;          // that were loaded
  int overlapping_launches = 0;             // that may begin before the one in front is complete

  // What was taken and not given back.
  [[nodiscard]] std::size_t open() const {
    std::size_t result = modules_ + memory_.size() + pinned_.size() + streams_.size() +
                         events_.size() + graphs_.size();
    for (const auto& [device, times] : retained) result += static_cast<std::size_t>(times);
    return result;
  }
  // Whether it lies in a piece of pinned memory of this size or larger.
  [[nodiscard]] bool is_pinned_within(const void* memory, std::size_t least) const {
    return std::any_of(pinned_.begin(), pinned_.end(), [&](const auto& piece) {
      const auto at =
          reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(piece.first);
      return at < piece.second.second && piece.second.second >= least;
    });
  }
  // From now on.
  void ends_in(std::size_t steps) { ends_at = steps_ + steps; }
  // What the stream that has most of it has.
  [[nodiscard]] std::size_t most_enqueued() const {
    std::size_t most = 0;
    for (const auto& stream : streams_) most = std::max(most, stream->work.size());
    return most;
  }
  [[nodiscard]] std::size_t device_bytes() const {
    std::size_t bytes = 0;
    for (const auto& [address, memory] : memory_) bytes += memory.bytes;
    return bytes;
  }

 private:
  struct Stream;
  struct Event {
    std::shared_ptr<Stream> stream;
    std::size_t behind = 0;
    bool is_captured = false;
    [[nodiscard]] bool has_passed() const { return stream == nullptr || stream->done >= behind; }
  };
  struct Work {
    std::function<void()> run;
    Event after;  // it stands until this has passed
  };
  struct Memory {
    std::unique_ptr<std::byte[]> owner;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    int device = 0;
  };
  struct Stream {
    void* context = nullptr;
    std::deque<Work> work;
    std::size_t done = 0, started = 0;
    bool captures = false, spoiled = false;  // spoiled: by a call that cannot be captured
    std::thread::id by;                      // who captures
    std::vector<std::function<void()>> captured;
    // A question or a wait, which spoils what is captured, whatever the thread.
    bool refuses() {
      spoiled = spoiled || captures;
      return captures;
    }
  };
  struct Graph {
    std::vector<std::function<void()>> work;
  };
  static FakeDriver*& the() {
    static FakeDriver* fake = nullptr;
    return fake;
  }

  // 0, or the error that this call is to give.
  DriverResult enter(const char* symbol) {
    last = symbol;
    if (++count == fail_at) {
      failed = symbol;
      return fail_with;
    }
    if (has_ended) return kIllegalAddress;
    if (const auto found = always.find(symbol); found != always.end()) {
      const auto left = times.find(symbol);
      if (left == times.end() || left->second-- > 0) return found->second;
    }
    if (const DriverResult error = capture.enter(symbol); error != 0) return error;
    for (auto& stream : streams_) {
      if (standing.count(stream.get()) > 0) continue;
      while (static_cast<int>(random_() % 100) < moves_percent && step(*stream)) {
      }
    }
    return has_ended ? kIllegalAddress : 0;
  }
  bool step(Stream& stream) {
    if (stream.work.empty() || has_ended || !stream.work.front().after.has_passed()) return false;
    if (++steps_ == ends_at) {
      has_ended = true;
      return false;
    }
    stream.work.front().run();
    stream.work.pop_front();
    ++stream.done;
    return true;
  }
  // Until so much of it is done, with what it waits for; not if the context ends.
  void finish(Stream& stream, std::size_t until) {
    while (stream.done < until && !has_ended) {
      const Event after = stream.work.front().after;
      if (!after.has_passed()) finish(*after.stream, after.behind);
      step(stream);
    }
  }
  std::byte* bytes_at(DeviceAddress address, std::size_t bytes) {
    auto next = memory_.upper_bound(address);
    KVFOLIO_CHECK(next != memory_.begin());
    auto& [base, memory] = *--next;
    KVFOLIO_CHECK(address - base + bytes <= memory.bytes);
    return memory.data + (address - base);
  }
  // The memory that has an address; null: memory of the host.
  const Memory* find(DeviceAddress address) const {
    auto next = memory_.upper_bound(address);
    if (next == memory_.begin()) return nullptr;
    const auto& [base, memory] = *--next;
    return address - base < memory.bytes ? &memory : nullptr;
  }
  [[nodiscard]] bool is_pinned(DeviceAddress address) const {
    for (const auto& [begin, memory] : pinned_) {
      if (address - reinterpret_cast<std::uintptr_t>(begin) < memory.second) return true;
    }
    return false;
  }
  DriverResult start(void* stream, std::function<void()> run) {
    return start_behind(Event(), stream, std::move(run));
  }
  DriverResult start_behind(Event after, void* stream, std::function<void()> run) {
    if (stream == nullptr) {  // the legacy stream comes behind all others
      for (auto& other : streams_) finish(*other, other->started);
      if (!has_ended) run();
      return 0;
    }
    auto* const s = static_cast<Stream*>(stream);
    if (s->captures) {
      s->captured.push_back(std::move(run));
      return 0;
    }
    s->work.push_back({std::move(run), std::move(after)});
    ++s->started;
    return 0;
  }
  DriverResult start_copy(void* stream, std::byte* to, const std::byte* from, std::size_t bytes) {
    static_cast<void>(start(stream, [=] { std::memset(to, kGarbage, bytes); }));
    return start(stream, [=] { std::memcpy(to, from, bytes); });
  }

  // A call that a thread which captures may not make: it spoils what that captures.
  DriverResult refuse_in_capture() {
    if (FakeCapture::mode() == kRelaxed) return 0;
    bool captures = false;
    for (auto& stream : streams_) {
      if (!stream->captures || stream->by != std::this_thread::get_id()) continue;
      captures = stream->spoiled = true;
    }
    return captures ? kNotCapturable : 0;
  }

  static constexpr DriverResult kIllegalAddress = 700;
  static constexpr DriverResult kNotCapturable = 900;
  static constexpr int kGarbage = 0xee;

  template <typename Container, typename T>
  static void erase(Container& owners, T* which) {
    for (auto it = owners.begin(); it != owners.end(); ++it) {
      if (it->get() != which) continue;
      owners.erase(it);
      return;
    }
    KVFOLIO_CHECK(false);
  }

  friend struct FakeCalls;
  // From the push of a context to its pop. Tests look at what is public while no thread calls.
  std::recursive_mutex mutex_;
  std::mt19937 random_;
  std::map<DeviceAddress, Memory> memory_;
  std::map<void*, std::pair<std::unique_ptr<std::byte[]>, std::size_t>> pinned_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<Event>> events_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  DeviceAddress next_ = 0x100000000000;
  std::set<std::string> functions_;
  std::size_t modules_ = 0;
  std::size_t steps_ = 0;
};

inline void FakeDriver::play(int major_in, int minor_in) {
  struct Card {
    int major, minor, multiprocessors, of_block, of_sm;
  };
  // A100, A10, L4, H100, B200, RTX 5090: NVIDIA's tables of compute capabilities, KiB.
  constexpr Card kCards[] = {{8, 0, 108, 163, 164}, {8, 6, 72, 99, 100},    {8, 9, 58, 99, 100},
                             {9, 0, 132, 227, 228}, {10, 0, 148, 227, 228}, {12, 0, 170, 99, 100}};
  for (const Card& card : kCards) {
    if (card.major != major_in || card.minor != minor_in) continue;
    major = card.major;
    minor = card.minor;
    multiprocessors = card.multiprocessors;
    shared_of_block = card.of_block << 10;
    shared_of_sm = card.of_sm << 10;
    return;
  }
  KVFOLIO_CHECK(false);
}

}  // namespace kvfolio::cuda

#include "cuda/fake_calls.h"  // what fills its table
