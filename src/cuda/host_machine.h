// SPDX-License-Identifier: Apache-2.0
#pragma once

// The machine of the cases on a CPU: kernels run by on_host.h in an order that a seed draws, memory
// between guard pages.

#include <cstring>
#include <deque>

#include "cuda/guarded_memory.h"
#include "cuda/move_kernels.cuh"
#include "cuda/move_twins.h"
#include "cuda/on_host.h"

namespace kvfolio::cuda {

class HostQueue final : public Queue {
 public:
  Status launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                std::size_t args_bytes) override {
    ++launches;
    bool fits = false;
    const bool found = with_kernel(kernel, args, [&](auto type, const auto& typed) {
      fits = sizeof typed == args_bytes;
      on_host::launch({grid.x, grid.y, grid.z}, kThreads, type.kMeets, seed++,
                      [&] { type.run(typed); });
      return true;
    });
    if (found && fits) return {};
    return {ErrorCode::kUnsupported, "no such kernel, or other arguments"};
  }
  [[nodiscard]] std::int64_t most_items() const override { return items; }

  unsigned seed = 1;
  std::int64_t items = std::int64_t{1} << 30;
  int launches = 0;
};

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
