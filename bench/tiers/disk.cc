// SPDX-License-Identifier: Apache-2.0
//
// The disk tier on the disk that $TMPDIR (/tmp) is on: records of 256 KiB and 1 MiB with their
// headers, stored one behind the other and loaded in random order, checksums on. The other side
// writes and reads payloads of the same size with O_DIRECT and the same engine. Wall time, since a
// disk works on its own.

#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "families.h"
#include "kvfolio/disk_tier.h"
#include "kvfolio/record.h"
#include "raw_disk.h"

namespace kvfolio::bench {
namespace {

constexpr std::int64_t kAll = std::int64_t{256} << 20;

class Folder {
 public:
  Folder() {
    const char* parent = std::getenv("TMPDIR");
    path_ = std::string(parent != nullptr ? parent : "/tmp") + "/kvfolio-bench.XXXXXX";
    require(::mkdtemp(path_.data()) != nullptr, "a folder " + path_);
  }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Case {
  DiskEngine engine;
  std::int64_t payload;
  std::int32_t count;
};

// Records in memory as an arena has them: each begins at a page.
class Disk {
 public:
  Disk(const Case& of, const Folder& folder)
      : case_(of),
        directory_(folder.path() + "/tier"),
        stride_((kRecordHeaderBytes + of.payload + 4095) / 4096 * 4096),
        memory_(stride_ * of.count),
        tier_(take(
            DiskTier::open(
                {.directory = directory_, .bytes = std::int64_t{2} << 30, .engine = of.engine}),
            "the disk tier")) {
    for (std::size_t i = 0; i < memory_.size(); i += 8) {
      const std::uint64_t word = i * 0x9e3779b97f4a7c15u;
      std::memcpy(memory_.data() + i, &word, 8);
    }
  }

  // All records, under names that were not used before.
  double store() {
    first_ += case_.count;
    return run(TierOp::kStore, shuffled_or_not(false));
  }
  double load() { return run(TierOp::kLoad, shuffled_or_not(true)); }

 private:
  [[nodiscard]] std::vector<std::int32_t> shuffled_or_not(bool shuffles) const {
    if (shuffles) return shuffled(case_.count, 7);
    std::vector<std::int32_t> order(static_cast<std::size_t>(case_.count));
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    return order;
  }
  [[nodiscard]] std::uint64_t now_us() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(now).count());
  }
  double run(TierOp op, const std::vector<std::int32_t>& order) {
    std::vector<TierItem> items;
    for (const std::int32_t i : order) {
      TierItem item{.data = memory_.data() + i * stride_,
                    .bytes = kRecordHeaderBytes + case_.payload,
                    .tag = static_cast<std::uint64_t>(i)};
      const std::int64_t name = first_ + i;
      std::memcpy(item.key.bytes.data() + 24, &name, sizeof name);
      items.push_back(item);
    }
    const auto start = std::chrono::steady_clock::now();
    std::size_t begun = 0, ended = 0, right = 0;
    std::array<TierDone, 64> done;
    while (ended < items.size()) {
      const auto rest = std::span(items).subspan(begun);
      if (!rest.empty()) begun += tier_->submit(op, rest, {now_us() + 60'000'000});
      const std::size_t n = tier_->poll(now_us(), done);
      for (std::size_t i = 0; i < n; ++i) right += done[i].result == TierResult::kOk ? 1 : 0;
      ended += n;
      if (n > 0) continue;
      pollfd event{.fd = tier_->event_fd(), .events = POLLIN, .revents = 0};
      ::poll(&event, 1, 1);
    }
    const auto time = std::chrono::steady_clock::now() - start;
    require(right == items.size(), "every record of the disk");
    return std::chrono::duration<double, std::nano>(time).count();
  }

  Case case_;
  std::string directory_;
  std::int64_t stride_;
  Buffer memory_;
  std::unique_ptr<DiskTier> tier_;
  std::int64_t first_ = 0;
};

const char* name_of(DiskEngine engine, bool stores) {
  if (engine == DiskEngine::kThreads) {
    return stores ? "tiers.disk.store.threads" : "tiers.disk.load.threads";
  }
  return stores ? "tiers.disk.store.ring" : "tiers.disk.load.ring";
}

void measure_case(Session& session, const Case& of, bool stores) {
  const Folder folder;
  Disk disk(of, folder);
  const std::int64_t bytes = of.payload * of.count;
  const Buffer memory(bytes);
  std::memset(memory.data(), 1, memory.size());
  std::vector<std::int32_t> order = shuffled(of.count, 7);
  if (stores) std::sort(order.begin(), order.end());
  const auto gigabytes = [&](double ns) { return static_cast<double>(bytes) / ns; };
  const auto transfer = [&](const RawFile& file, bool writes) {
    return of.engine == DiskEngine::kThreads
               ? file.by_threads(writes, memory.data(), of.payload, order)
               : file.by_ring(writes, memory.data(), of.payload, order);
  };
  std::optional<RawFile> kept;
  if (!stores) {
    disk.store();
    kept.emplace(folder.path(), bytes);
    transfer(*kept, true);
  }
  const auto ours = [&] { return gigabytes(stores ? disk.store() : disk.load()); };
  const auto raw = [&] {
    if (!stores) return gigabytes(transfer(*kept, false));
    const RawFile file(folder.path(), bytes);
    return gigabytes(transfer(file, true));
  };
  Figure figure{.name = name_of(of.engine, stores)};
  figure.facts = {{"record_kib", of.payload >> 10}, {"records", std::int64_t{of.count}}};
  figure.unit = "GB/s";
  figure.lower_is_better = false;
  figure.promise = stores ? Promise{0.80, 0.90} : Promise{0.90, 0.95};
  figure.promise_is_ratio = true;
  figure.note = stores ? "checksum, header, write; ceiling: bare O_DIRECT writes of that engine"
                       : "read, header and checksum checked; ceiling: bare O_DIRECT reads";
  session.measure(figure, ours, raw);
}

}  // namespace

void measure_disk(Session& session) {
  for (const DiskEngine engine : {DiskEngine::kThreads, DiskEngine::kIoUring}) {
    for (const bool stores : {true, false}) {
      const char* name = name_of(engine, stores);
      if (!session.wants(name)) continue;
      if (engine == DiskEngine::kIoUring && !has_raw_ring()) {
        session.leave_out(name, "there is no io_uring for us here");
        continue;
      }
      for (const std::int64_t payload : {std::int64_t{256} << 10, std::int64_t{1} << 20}) {
        const auto full = static_cast<std::int32_t>(kAll / payload);
        measure_case(session, {engine, payload, session.size(full, 8)}, stores);
      }
    }
  }
}

}  // namespace kvfolio::bench
