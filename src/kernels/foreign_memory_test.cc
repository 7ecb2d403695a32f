// SPDX-License-Identifier: Apache-2.0

// Kernels of the CPU and a cache that is not in host memory: each refuses it and touches none of
// it. The memory is mapped without any right, so a kernel that touches it ends the test program.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <vector>

#include "kernels/test_cache.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using ::testing::HasSubstr;
using testing_cache::TestCache;
using testing_cache::TestRows;

constexpr GroupSpec kSpec{.num_layers = 2,
                          .num_kv_heads = 2,
                          .head_dim_k = 8,
                          .head_dim_v = 8,
                          .block_size = 16,
                          .num_blocks = 3};

// Address space that nothing may read or write.
class NoMemory {
 public:
  explicit NoMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    memory_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~NoMemory() { ::munmap(memory_, bytes_); }
  NoMemory(const NoMemory&) = delete;
  NoMemory& operator=(const NoMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_;
};

struct Call {
  const char* name;
  std::function<Status(const KVView&)> run;
};

// Every call that takes a cache, with arguments that are right for a cache of kSpec.
std::vector<Call> calls(const TestCache& other, const TestRows& rows, const TestRows& one,
                        std::vector<std::byte>& workspace) {
  static constexpr std::int32_t kSlots[] = {0, 1, 2, 3}, kTable[] = {0}, kStart[] = {0, 4};
  static constexpr std::int32_t kLens[] = {4}, kFrom[] = {0}, kTo[] = {1};
  std::vector<Call> result = {
      {"append", [&rows](const KVView& v) { return append(v, 1, rows.rows, rows.rows, kSlots); }},
      {"gather",
       [&rows](const KVView& v) {
         return gather(
             {.cache = v, .block_table = kTable, .length = 4, .count = 4, .k = rows.rows});
       }},
      {"write_token",
       [&one](const KVView& v) { return write_token(v, {.slot = 3}, one.rows, one.rows); }},
      {"read_token",
       [&one](const KVView& v) { return read_token(v, {.slot = 3}, one.rows, one.rows); }},
      {"copy_blocks", [](const KVView& v) { return copy_blocks(v, kFrom, kTo); }},
      {"convert_blocks from it",
       [&other](const KVView& v) { return convert_blocks(v, other.view, kFrom, kTo); }},
      {"convert_blocks to it",
       [&other](const KVView& v) { return convert_blocks(other.view, v, kFrom, kTo); }},
      {"attention_workspace_bytes",
       [](const KVView& v) {
         const Result<std::int64_t> bytes = attention_workspace_bytes(v, 2, 4);
         return bytes ? Status() : bytes.error();
       }},
  };
  for (const KernelTarget target : kernel_targets()) {
    result.push_back({to_string(target), [&rows, &workspace, target](const KVView& v) {
                        return attend({.cache = v,
                                       .batch = {kStart, kLens, kTable, 1},
                                       .params = {.scale = 1.0},
                                       .q = rows.rows,
                                       .out = rows.rows,
                                       .workspace = workspace,
                                       .target = target});
                      }});
    result.push_back({"choose_kernel_target", [target](const KVView& v) {
                        const Result<KernelTarget> chosen = choose_kernel_target(v, target);
                        return chosen ? Status() : chosen.error();
                      }});
  }
  return result;
}

TEST(DeviceMemory, EveryKernelRefusesItWithoutTouchingIt) {
  TestCache host(kSpec), other(kSpec);
  TestRows rows(4, 2, 8, DType::kF32), one(1, 1, 8, DType::kF32);
  std::vector<std::byte> workspace(1 << 20);
  const GroupLayout layout = plan_layouts({.groups = {kSpec}})->at(0);
  const NoMemory nothing(layout.total_bytes);
  KVView device = make_view(kSpec, layout, nothing.data());
  const std::vector<std::byte> before = rows.memory;
  for (const std::int32_t kind : {1, 2, -1}) {
    device.memory_kind = static_cast<MemoryKind>(kind);
    for (const Call& call : calls(other, rows, one, workspace)) {
      const Status status = call.run(device);
      EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << call.name << ": " << status.message();
      EXPECT_THAT(status.message(), HasSubstr(kind == 1 ? "device memory" : "invalid memory"));
    }
  }
  EXPECT_EQ(rows.memory, before);
  // The same calls over host memory succeed: only the kind was wrong.
  for (const Call& call : calls(other, rows, one, workspace)) {
    EXPECT_TRUE(call.run(host.view).ok()) << call.name << ": " << call.run(host.view).message();
  }
}

TEST(DeviceMemory, AViewIsOfHostMemoryUnlessItSaysOtherwise) {
  EXPECT_EQ(KVView().memory_kind, MemoryKind::kHost);
  EXPECT_STREQ(to_string(MemoryKind::kHost), "host");
  EXPECT_STREQ(to_string(MemoryKind::kDevice), "device");
}

}  // namespace
}  // namespace kvfolio
