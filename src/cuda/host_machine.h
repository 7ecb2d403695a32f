// SPDX-License-Identifier: Apache-2.0
#pragma once

// The machine of the cases on a CPU: kernels run by on_host.h in an order that a seed draws, memory
// between guard pages.

#include <cstring>
#include <deque>

#include "cuda/guarded_memory.h"
#include "cuda/host_queue.h"
#include "cuda/move_twins.h"

namespace kvfolio::cuda {

class HostMachine final : public cases::Machine {
 public:
  HostQueue& queue() override { return queue_; }
  std::byte* allocate(std::int64_t bytes) override {
    return memory_.emplace_back(bytes, ++allocations_ % 2 == 0).data();
  }
  std::string reset() override {
    memory_.clear();
    return {};
  }
  void upload(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void download(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    upload(to, from, bytes);
  }

 private:
  HostQueue queue_;
  std::deque<GuardedMemory> memory_;
  int allocations_ = 0;
};

}  // namespace kvfolio::cuda
