// SPDX-License-Identifier: Apache-2.0

// kvfolio's disk tier for bench/peers: many records are stored or loaded in one call, which returns
// when the last one is answered. A narrow C interface for Python's ctypes. A call that fails
// answers -1 (open: null) and kvfolio_peer_disk_error() says why.

#include <poll.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "guarded.h"
#include "harness.h"
#include "kvfolio/disk_tier.h"
#include "kvfolio/export.h"

namespace kvfolio::bench {
namespace {

struct PeerDisk {
  std::unique_ptr<DiskTier> tier;
  std::string description;
};

std::uint64_t now_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

std::vector<TierItem> items_of(const std::int64_t* names, const std::int32_t* places,
                               std::int32_t count, std::byte* memory, std::int64_t memory_bytes,
                               std::int64_t stride, std::int64_t bytes) {
  require(names != nullptr && places != nullptr && memory != nullptr, "an array is null");
  require(bytes >= 0 && stride >= bytes && stride % 4096 == 0,
          "records of " + std::to_string(bytes) + " bytes each " + std::to_string(stride) +
              " bytes; wanted: a multiple of 4096 that holds one");
  std::vector<TierItem> items;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int64_t place = places[i];
    require(place >= 0 && (place + 1) * stride <= memory_bytes,
            "place " + std::to_string(place) + " is not in the memory");
    TierItem item{
        .data = memory + place * stride, .bytes = bytes, .tag = static_cast<std::uint64_t>(i)};
    std::memcpy(item.key.bytes.data() + 24, &names[i], sizeof names[i]);
    items.push_back(item);
  }
  return items;
}

void run(DiskTier& tier, TierOp op, const std::vector<TierItem>& items, std::int32_t* results) {
  const std::uint64_t by_us = now_us() + 120'000'000;
  std::array<TierDone, 64> done;
  std::size_t begun = 0, ended = 0;
  while (ended < items.size()) {
    const auto rest = std::span(items).subspan(begun);
    if (!rest.empty()) begun += tier.submit(op, rest, {by_us});
    require(begun > ended || tier.health().usable, "the tier turned off");
    const std::size_t n = tier.poll(now_us(), done);
    for (std::size_t i = 0; i < n; ++i) {
      results[done[i].tag] = static_cast<std::int32_t>(done[i].result);
    }
    ended += n;
    if (n > 0) continue;
    pollfd event{.fd = tier.event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&event, 1, 1);
  }
}

}  // namespace
}  // namespace kvfolio::bench

using kvfolio::bench::guarded;
using kvfolio::bench::PeerDisk;
using kvfolio::bench::require;

extern "C" {

// What the last call that failed said; of the last call, "" if it did not.
KVFOLIO_API const char* kvfolio_peer_disk_error() { return kvfolio::bench::last_error; }

KVFOLIO_API PeerDisk* kvfolio_peer_disk_open(const char* directory, std::int64_t bytes) {
  PeerDisk* opened = nullptr;
  guarded([&] {
    require(directory != nullptr, "directory is null");
    auto disk = std::make_unique<PeerDisk>();
    disk->tier = kvfolio::bench::take(
        kvfolio::DiskTier::open({.directory = directory, .bytes = bytes}), "the disk tier");
    disk->description = disk->tier->describe();
    opened = disk.release();
  });
  return opened;
}

// Seals what was stored.
KVFOLIO_API void kvfolio_peer_disk_close(PeerDisk* disk) { delete disk; }

KVFOLIO_API const char* kvfolio_peer_disk_describe(const PeerDisk* disk) {
  return disk->description.c_str();
}

// Stores (or loads) `count` records: that of names[i] lies at memory + places[i] * stride, which is
// a multiple of 4096. results[i] is its TierResult.
KVFOLIO_API std::int32_t kvfolio_peer_disk_run(PeerDisk* disk, std::int32_t stores,
                                               const std::int64_t* names,
                                               const std::int32_t* places, std::int32_t count,
                                               std::byte* memory, std::int64_t memory_bytes,
                                               std::int64_t stride, std::int64_t bytes,
                                               std::int32_t* results) {
  return guarded([&] {
    require(disk != nullptr && results != nullptr, "disk or results is null");
    const auto items =
        kvfolio::bench::items_of(names, places, count, memory, memory_bytes, stride, bytes);
    kvfolio::bench::run(*disk->tier, stores != 0 ? kvfolio::TierOp::kStore : kvfolio::TierOp::kLoad,
                        items, results);
  });
}

KVFOLIO_API const char* kvfolio_peer_disk_result(std::int32_t result) {
  return kvfolio::to_string(static_cast<kvfolio::TierResult>(result));
}

}  // extern "C"
