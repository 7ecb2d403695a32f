// SPDX-License-Identifier: Apache-2.0

// HostMemory: anonymous memory of the process. What matters is where it begins and ends: the kernel
// gives huge pages only to a range that covers them whole, so from 2 MiB on it is aligned to that
// and rounded up. A request beyond memory and swap is refused here, because an overcommitting
// kernel would grant it and stop the process later.

#include "kvfolio/memory.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/checked.h"
#include "base/text.h"

namespace kvfolio {
namespace {

using text::concat;

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

std::int64_t page_bytes() { return static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE)); }

// From one huge page on, whole huge pages: the kernel gives none for a range that it does not
// cover. Requires: bytes is at most the machine's memory, so nothing overflows.
std::int64_t mapped_bytes(std::int64_t bytes) {
  const std::int64_t unit = bytes >= kHugePage ? kHugePage : page_bytes();
  KVFOLIO_DCHECK((Checked(bytes) + unit).ok());
  return (bytes + unit - 1) / unit * unit;
}

// Memory and swap of the machine; 0 when the system does not say.
std::int64_t machine_bytes() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) return 0;
  const Checked total = Checked(static_cast<std::int64_t>(info.totalram)) +  // in mem_unit
                        static_cast<std::int64_t>(info.totalswap);
  const Checked bytes = total * static_cast<std::int64_t>(info.mem_unit);
  return bytes.ok() ? bytes.value() : 0;
}

}  // namespace

MemoryKind HostMemory::kind() const noexcept { return MemoryKind::kHost; }

Result<std::byte*> HostMemory::allocate(std::int64_t bytes) {
  if (bytes < 1) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("host memory: ", bytes, " bytes asked, allowed: at least 1"));
  }
  const std::int64_t limit = machine_bytes();
  if (limit > 0 && bytes > limit) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("host memory: ", bytes, " bytes asked, the machine has ", limit,
                         " bytes of memory and swap"));
  }
  const std::int64_t length = mapped_bytes(bytes);
  // Room to align: what is too much is given back at once.
  const std::int64_t slack = length >= kHugePage ? kHugePage - page_bytes() : 0;
  void* mapped = ::mmap(nullptr, static_cast<std::size_t>(length + slack), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Status(ErrorCode::kOutOfMemory,
                  concat("host memory: the system refused ", bytes, " bytes (errno ", errno, ")"));
  }
  auto* memory = static_cast<std::byte*>(mapped);
  if (slack > 0) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const auto huge = static_cast<std::uintptr_t>(kHugePage);
    const auto head = static_cast<std::int64_t>((huge - address % huge) % huge);
    if (head > 0) ::munmap(memory, static_cast<std::size_t>(head));
    memory += head;
    if (slack > head) ::munmap(memory + length, static_cast<std::size_t>(slack - head));
    // A kernel without huge pages answers EINVAL and plain pages do.
    static_cast<void>(::madvise(memory, static_cast<std::size_t>(length), MADV_HUGEPAGE));
  }
  return memory;
}

void HostMemory::deallocate(std::byte* memory, std::int64_t bytes) noexcept {
  if (memory != nullptr) ::munmap(memory, static_cast<std::size_t>(mapped_bytes(bytes)));
}

Status HostMemory::copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept {
  std::memcpy(dst, src, static_cast<std::size_t>(bytes));
  return {};
}

}  // namespace kvfolio
