// SPDX-License-Identifier: Apache-2.0
// A consumer of the installed package, under strict warnings, without exceptions and RTTI: lends
// memory of its own, opens a prompt twice and expects to find it the second time.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

#include "kvfolio/kvfolio.hpp"

namespace {

// Derived here without RTTI, in the library's own tests with it.
class Counted final : public kvfolio::MemoryResource {
 public:
  [[nodiscard]] kvfolio::MemoryKind kind() const noexcept override { return host_.kind(); }
  kvfolio::Result<std::byte*> allocate(std::int64_t bytes) override {
    lent += bytes;
    return host_.allocate(bytes);
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    lent -= bytes;
    host_.deallocate(memory, bytes);
  }
  kvfolio::Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return host_.copy(dst, src, bytes);
  }
  std::int64_t lent = 0;

 private:
  kvfolio::HostMemory host_;
};

// Opens a prompt of 40 tokens twice: how many were found the second time, or -1.
int run(kvfolio::MemoryResource& memory) {
  using namespace kvfolio;
  const CacheSpec spec{.groups = {{.num_layers = 4,
                                   .num_kv_heads = 2,
                                   .head_dim_k = 64,
                                   .head_dim_v = 64,
                                   .block_size = 16,
                                   .num_blocks = 128}}};
  Result<KVStorage> storage = KVStorage::create(spec, &memory);
  if (!storage) {
    std::fprintf(stderr, "%s\n", storage.error().message().c_str());
    return -1;
  }
  Result<KVCacheManager> created =
      KVCacheManager::create(std::move(*storage), {.max_sequences = 4});
  if (!created) {
    std::fprintf(stderr, "%s\n", created.error().message().c_str());
    return -1;
  }
  KVCacheManager& manager = *created;
  const std::vector<std::int32_t> prompt(40, 7);
  std::int32_t cached = -1;
  for (int round = 0; round < 2; ++round) {
    const Result<Opened> opened = manager.open(prompt);
    const Result<Ticket> ticket = manager.begin_step();
    if (!opened || !ticket) return -1;
    cached = opened->cached_tokens;
    const auto rest = std::span(prompt).subspan(static_cast<std::size_t>(cached));
    const Status appended = manager.append(opened->sequence, rest);
    const Result<const StepPlan*> plan = manager.plan();
    if (!appended || !plan || (*plan)->groups[0].slot_mapping.size() != rest.size()) return -1;
    if (!manager.finish(*ticket) || !manager.close(opened->sequence)) return -1;
  }
  return cached;
}

// "1.2.3" as KVFOLIO_VERSION counts it.
int number_of(const char* version) {
  int number = 0;
  int part = 0;
  for (; *version != '\0'; ++version) {
    if (*version == '.') {
      number = (number + part) * 1000;
      part = 0;
    } else {
      part = part * 10 + (*version - '0');
    }
  }
  return number + part;
}

}  // namespace

int main() {
  Counted memory;
  const int found = run(memory);
  std::printf("version %s: %d of 40 tokens found\n", kvfolio::version(), found);
  return found == 39 && memory.lent == 0 && KVFOLIO_VERSION == number_of(kvfolio::version()) ? 0
                                                                                             : 1;
}
