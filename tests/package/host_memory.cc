// SPDX-License-Identifier: Apache-2.0
// Calls HostMemory by its own type and by its base, derives from that, and asks which type it is:
// what the compiler asks of the library with RTTI and with -fsanitize=undefined.
#include <cstring>
#include <iostream>
#include <typeinfo>

#include "kvfolio/memory.h"

namespace {

// A resource of the host program that passes everything on.
class Counting : public kvfolio::MemoryResource {
 public:
  explicit Counting(kvfolio::MemoryResource& from) : from_(from) {}
  [[nodiscard]] kvfolio::MemoryKind kind() const noexcept override { return from_.kind(); }
  kvfolio::Result<std::byte*> allocate(std::int64_t bytes) override {
    ++calls;
    return from_.allocate(bytes);
  }
  void deallocate(std::byte* memory, std::int64_t bytes) noexcept override {
    from_.deallocate(memory, bytes);
  }
  kvfolio::Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return from_.copy(dst, src, bytes);
  }
  int calls = 0;

 private:
  kvfolio::MemoryResource& from_;
};

bool use(kvfolio::MemoryResource& memory) {
  const kvfolio::Result<std::byte*> got = memory.allocate(4096);
  if (!got.has_value()) return false;
  std::memset(*got, 7, 2048);
  const bool same =
      memory.copy(*got + 2048, *got, 2048).ok() && std::memcmp(*got, *got + 2048, 2048) == 0;
  memory.deallocate(*got, 4096);
  return same && memory.kind() == kvfolio::MemoryKind::kHost;
}

}  // namespace

int main() {
  auto* host = new kvfolio::HostMemory;
  kvfolio::MemoryResource* base = host;
  Counting counting(*host);
  kvfolio::MemoryResource& other = counting;
  const bool good = host->kind() == kvfolio::MemoryKind::kHost && use(*host) && use(*base) &&
                    use(counting) && counting.calls == 1 &&
                    typeid(*base) == typeid(kvfolio::HostMemory) &&
                    dynamic_cast<kvfolio::HostMemory*>(base) == host &&
                    dynamic_cast<kvfolio::HostMemory*>(&other) == nullptr;
  delete base;
  std::cout << (good ? "ok\n" : "HostMemory is not what it says\n");
  return good ? 0 : 1;
}
