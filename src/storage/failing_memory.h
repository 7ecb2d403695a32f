// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory whose copies fail when a test says so. For tests.

#include <cstdint>
#include <cstring>
#include <span>

#include "kvfolio/memory.h"

namespace kvfolio::test {

// Says that it is a device's, so everything goes through its copies; a test may touch it all the
// same. The run number `fail_at` (the first is 1; 0: none) fails: its destination and those behind
// it in the same call get garbage. Fresh memory is full of 0xff.
class FailingMemory final : public MemoryResource {
 public:
  std::int64_t num_runs = 0;  // that were asked for
  std::int64_t fail_at = 0;

  // Counts anew from here.
  void fail_run(std::int64_t number) {
    num_runs = 0;
    fail_at = number;
  }

  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kDevice; }
  Result<std::byte*> allocate(std::int64_t bytes) override {
    auto memory = host_.allocate(bytes);
    if (memory) std::memset(*memory, 0xff, static_cast<std::size_t>(bytes));
    return memory;
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    host_.deallocate(memory, bytes);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    const CopyRun run{dst, src, bytes};
    return copy_batch({&run, 1});
  }
  Status copy_batch(std::span<const CopyRun> runs) noexcept override {
    bool fails = false;
    for (const CopyRun& run : runs) {
      fails |= ++num_runs == fail_at;
      const auto bytes = static_cast<std::size_t>(run.bytes);
      if (fails) {
        std::memset(run.dst, 0xee, bytes);
      } else {
        std::memcpy(run.dst, run.src, bytes);
      }
    }
    if (fails) return {ErrorCode::kTimedOut, "the cable was cut"};
    return {};
  }
  Status copy_in(std::span<const CopyRun> runs) noexcept override { return copy_batch(runs); }
  Status copy_out(std::span<const CopyRun> runs) noexcept override { return copy_batch(runs); }

 private:
  HostMemory host_;
};

}  // namespace kvfolio::test
