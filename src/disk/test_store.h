// SPDX-License-Identifier: Apache-2.0
#pragma once

// What tests of the store share: records whose bytes follow from their number, so that any answer
// can be checked against the right bytes; an engine that runs steps in a random order in the
// owner's thread; and a store over a SimDisk. Thread safety: none.

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "disk/open.h"
#include "disk/sim_disk.h"

namespace kvfolio::disk {

inline TierKey key_of(std::uint64_t number) {
  TierKey key;
  std::mt19937_64 random(number + 1);
  for (std::size_t i = 0; i + 8 <= key.bytes.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(key.bytes.data() + i, &word, 8);
  }
  return key;
}

// Sizes of all kinds: less than a piece, whole pieces, a tail that fits into the header and one
// that does not, nothing.
inline std::int64_t size_of(std::uint64_t number) {
  constexpr std::int64_t kSizes[] = {
      kPiece + 192,      3 * kPiece + 192, 2 * kPiece,      100, 0, kPiece - 1,
      2 * kPiece + 4000, kPiece,           5 * kPiece + 192};
  return kSizes[number % std::size(kSizes)];
}

inline std::vector<std::byte> bytes_of(std::uint64_t number) {
  std::vector<std::byte> bytes(std::size_t(size_of(number)));
  std::mt19937_64 random(number + 77);
  for (std::byte& byte : bytes) byte = std::byte(random());
  return bytes;
}

// Memory of an item, aligned or not.
class ItemMemory {
 public:
  ItemMemory(std::int64_t bytes, bool aligned)
      : buffer_(round_up_to_piece(bytes) + 2 * kPiece), bytes_(bytes), shift_(aligned ? 0 : 64) {
    std::memset(buffer_.data(), 0xee, std::size_t(round_up_to_piece(bytes) + 2 * kPiece));
  }
  [[nodiscard]] std::byte* data() const { return buffer_.data() + shift_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data(), std::size_t(bytes_)}; }
  // Whether what lies behind it is as it was.
  [[nodiscard]] bool is_whole() const {
    for (std::int64_t i = 0; i < kPiece; ++i) {
      if (data()[bytes_ + i] != std::byte{0xee}) return false;
    }
    return true;
  }

 private:
  AlignedBuffer buffer_;
  std::int64_t bytes_;
  std::int64_t shift_;
};

// A deep copy of what the disk has now: what a process finds that begins after this one was killed.
inline std::unique_ptr<SimDisk> copy_of(const SimDisk& disk) {
  auto copy = std::make_unique<SimDisk>();
  for (const auto& [path, file] : disk.files) {
    copy->files[path] = std::make_shared<SimDisk::File>(*file);
  }
  return copy;
}

class SteppedEngine final : public IoEngine {
 public:
  SteppedEngine(DiskCalls& calls, std::uint64_t seed, int event_fd)
      : calls_(calls), random_(seed), event_fd_(event_fd) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "stepped"; }
  [[nodiscard]] int depth() const noexcept override { return 4; }
  void submit(IoJob* job) noexcept override {
    (begin_step(*job, 0) ? jobs_ : done_).push_back(job);
    wake();
  }
  bool hangs = false;  // no call of the system comes back
  std::size_t reap(std::span<IoJob*> done) noexcept override {
    for (auto steps = 1 + random_() % 4; steps > 0 && !jobs_.empty() && !hangs; --steps) {
      const auto at = jobs_.begin() + std::ptrdiff_t(random_() % jobs_.size());
      IoJob* job = *at;
      if (continue_job(*job, call_once(job->run.rest(), calls_), calls_)) continue;
      jobs_.erase(at);
      done_.push_back(job);
    }
    const std::size_t n = std::min(done.size(), done_.size());
    std::copy_n(done_.begin(), n, done.begin());
    done_.erase(done_.begin(), done_.begin() + std::ptrdiff_t(n));
    if (!jobs_.empty() || !done_.empty()) wake();
    return n;
  }

 private:
  void wake() const {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(event_fd_, &one, sizeof one));
  }
  DiskCalls& calls_;
  std::mt19937_64 random_;
  int event_fd_;
  std::vector<IoJob*> jobs_, done_;
};

inline constexpr std::uint64_t kLater = ~std::uint64_t{0} / 2;

// Any tier, or a store, with calls that wait. Time goes on by 1 us with each poll.
template <typename Store>
class Waiter {
 public:
  explicit Waiter(Store& store) : store_(store) {}
  std::uint64_t now_us = 1;

  // The result of one operation; nullopt: not accepted.
  std::optional<TierResult> operator()(TierOp op, const TierKey& key, std::span<std::byte> data,
                                       Deadline deadline = {kLater}) {
    const TierItem item{key, data.data(), std::int64_t(data.size()), ++tag_};
    if (store_.submit(op, std::span(&item, 1), deadline) == 0) return {};
    for (;;) {
      for (const TierDone& done : poll()) {
        if (done.tag == tag_) return done.result;
      }
    }
  }
  std::optional<TierResult> store(std::uint64_t number, bool aligned = true) {
    const ItemMemory memory(size_of(number), aligned);
    const std::vector<std::byte> bytes = bytes_of(number);
    std::copy(bytes.begin(), bytes.end(), memory.data());
    return (*this)(TierOp::kStore, key_of(number), memory.span());
  }
  // kOk only with the right bytes; wrong ones are counted and fail the test.
  std::optional<TierResult> load(std::uint64_t number, bool aligned = true) {
    const ItemMemory memory(size_of(number), aligned);
    const auto result = (*this)(TierOp::kLoad, key_of(number), memory.span());
    EXPECT_TRUE(memory.is_whole());
    if (result == TierResult::kOk) {
      const std::vector<std::byte> bytes = bytes_of(number);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.data())) << "record " << number;
    }
    return result;
  }
  bool exists(std::uint64_t number) {
    return (*this)(TierOp::kExists, key_of(number), {}) == TierResult::kOk;
  }
  std::vector<TierDone> poll() {
    std::vector<TierDone> done(16);
    done.resize(store_.poll(++now_us, done));
    if (!done.empty() || store_.idle()) return done;
    pollfd event{.fd = store_.event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&event, 1, 1);
    return done;
  }
  void settle() {
    while (!store_.idle()) poll();
  }

 private:
  Store& store_;
  std::uint64_t tag_ = 0;
};

// A store over a SimDisk with small segments.
struct SimStore {
  std::unique_ptr<SimDisk> disk = std::make_unique<SimDisk>();
  DiskTierOptions options{.directory = "/d", .bytes = 640 << 10, .segment_bytes = 128 << 10};
  std::uint64_t seed = 1;
  SteppedEngine* engine = nullptr;
  std::unique_ptr<SegmentStore> store;

  Status open() {
    const MakeEngine make = [&](int event_fd) -> Result<std::unique_ptr<IoEngine>> {
      auto made = std::make_unique<SteppedEngine>(*disk, ++seed, event_fd);
      engine = made.get();
      return std::unique_ptr<IoEngine>(std::move(made));
    };
    Result<std::unique_ptr<SegmentStore>> opened = open_store(*disk, options, std::span(&make, 1));
    if (!opened) return opened.error();
    store = *std::move(opened);
    return {};
  }
  void close() { store.reset(); }
};

// With a store that is open, or was closed by the test, and leaves no file open.
class SimStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = sim.open();
    ASSERT_TRUE(status.ok()) << status;
    waiter.emplace(*sim.store);
  }
  void TearDown() override {
    if (sim.store == nullptr) return;
    sim.disk->on_call = nullptr;
    const Status status = sim.store->check_invariants();
    EXPECT_TRUE(status.ok()) << status;
    sim.close();
    EXPECT_EQ(sim.disk->open_files(), 0u);
  }
  void store_all(std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t i = begin; i < end; ++i) EXPECT_EQ(waiter->store(i), TierResult::kOk) << i;
  }

  SimStore sim;
  std::optional<Waiter<SegmentStore>> waiter;
};

}  // namespace kvfolio::disk
