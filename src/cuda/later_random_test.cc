// SPDX-License-Identifier: Apache-2.0

// Random submits, polls, copies within the call and deallocations against a naive model: what each
// byte has to be. KVFOLIO_SEED: the first seed (default 1). A failure names its seed.

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "cuda/later_world.h"

namespace kvfolio::cuda {
namespace {

using later::Bytes;
using later::drawn_bytes;
using later::World;

// Memory of three kinds in cells of odd sizes; no two open tickets, nor a copy within the call
// beside one, touch the same cell: who calls sees to that.
class Storm {
 public:
  enum Where : std::size_t { kDevice, kPageable, kPinned };
  static constexpr std::int64_t kCell = 200, kCells = World::kBytes / kCell;

  explicit Storm(unsigned seed) : w_(seed), random_(seed), engine_(*Stream::create(w_.device)) {
    w_.fake.moves_percent = 3 + static_cast<int>(seed % 50);
    pageable_.resize(World::kBytes);
    fails_ = seed % 3 == 0;
    for (const Where where : {kDevice, kPageable, kPinned}) {
      want_[where] = drawn_bytes(w_.random, World::kBytes);
      taken_[where].assign(kCells, false);
    }
    std::memcpy(at(kPageable, 0), want_[kPageable].data(), World::kBytes);
    std::memcpy(at(kPinned, 0), want_[kPinned].data(), World::kBytes);
    w_.write(want_[kDevice]);
  }

  void step() {
    w_.fake.fail_at = 0;
    if (fails_ && random_() % 20 == 0) {
      w_.fake.count = 0;
      w_.fake.fail_at = 1 + static_cast<int>(random_() % 12);
      w_.fake.fail_with = random_() % 2 == 0 ? 2 : 999;
    }
    switch (random_() % 10) {
      case 0:
        return copy_now();
      case 1:
        return other_memory();
      case 2:
      case 3:
      case 4:
        return submit();
      default:
        return poll();
    }
  }
  void end() {
    w_.fake.fail_at = 0;
    fails_ = false;
    for (int i = 0; i < 100'000 && !open_.empty(); ++i) poll();
    EXPECT_TRUE(open_.empty()) << "never over";
    EXPECT_EQ(w_.read(), want_[kDevice]);
    EXPECT_EQ(Bytes(at(kPinned, 0), at(kPinned, World::kBytes)), want_[kPinned]);
    EXPECT_EQ(pageable_, want_[kPageable]);
  }

  int over = 0, failed = 0;

 private:
  struct Part {
    std::int64_t from = 0, to = 0, bytes = 0;
  };
  struct Copy {
    CopyTicket ticket{};
    Where from{}, to{};
    std::vector<Part> parts{};
    std::vector<std::pair<Where, std::int64_t>> cells{};
  };
  std::byte* at(Where where, std::int64_t byte) {
    return (where == kDevice   ? w_.there
            : where == kPinned ? w_.pinned.data()
                               : pageable_.data()) +
           byte;
  }
  std::int64_t draw(std::int64_t below) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below));
  }
  // A free cell, taken; -1: none was met.
  std::int64_t take(Where where) {
    for (int i = 0; i < 4; ++i) {
      const auto cell = static_cast<std::size_t>(random_() % kCells);
      if (taken_[where][cell]) continue;
      taken_[where][cell] = true;
      return static_cast<std::int64_t>(cell);
    }
    return -1;
  }
  static CopyDirection direction_of(const Copy& copy) {
    return copy.from != kDevice ? CopyDirection::kIn
           : copy.to != kDevice ? CopyDirection::kOut
                                : CopyDirection::kWithin;
  }
  Copy draw_copy() {
    Copy copy;
    const Where host = random_() % 2 == 0 ? kPinned : kPageable;
    const auto kind = random_() % 5;
    copy.from = kind < 2 ? host : kDevice;
    copy.to = kind <= 2 ? kDevice : host;
    if (kind != 2 && random_() % 2 == 0) {
      draw_dense(copy, host);
    } else {
      for (std::size_t n = 1 + random_() % 9; n > 0; --n) draw_part(copy);
    }
    return copy;
  }
  // A part of a cell, to a part of another.
  void draw_part(Copy& copy) {
    const std::int64_t from = take(copy.from), to = take(copy.to);
    if (from >= 0) copy.cells.emplace_back(copy.from, from);
    if (to >= 0) copy.cells.emplace_back(copy.to, to);
    if (from < 0 || to < 0) return;
    const std::int64_t first = draw(3) == 0 ? draw(40) : 0;
    copy.parts.push_back({from * kCell + first, to * kCell + first, kCell - first});
  }
  // On the host they follow each other without gaps, as in a record; their sizes are odd.
  void draw_dense(Copy& copy, Where host) {
    const auto first = draw(kCells - 2);
    for (std::int64_t cell = first; cell < first + 3; ++cell) {
      if (taken_[host][static_cast<std::size_t>(cell)]) return;
    }
    for (std::int64_t cell = first; cell < first + 3; ++cell) {
      taken_[host][static_cast<std::size_t>(cell)] = true;
      copy.cells.emplace_back(host, cell);
    }
    for (std::int64_t at = 0; at < 3 * kCell - 70;) {
      const std::int64_t cell = take(kDevice);
      if (cell < 0) return;
      copy.cells.emplace_back(kDevice, cell);
      const std::int64_t bytes = draw(3) == 0 ? 1 + draw(70) : 16 * (1 + draw(4));
      const std::int64_t here = first * kCell + at;
      const std::int64_t there = cell * kCell + (draw(2) == 0 ? 8 : draw(60));
      copy.parts.push_back(host == copy.from ? Part{here, there, bytes} : Part{there, here, bytes});
      at += bytes;
    }
  }
  // Each in one to three runs.
  std::vector<CopyRun> runs_of(const Copy& copy) {
    std::vector<CopyRun> runs;
    for (const Part& part : copy.parts) {
      std::int64_t cuts[] = {0, draw(part.bytes), draw(part.bytes), part.bytes};
      std::sort(std::begin(cuts), std::end(cuts));
      for (int i = 0; i < 3; ++i) {
        runs.push_back({at(copy.to, part.to + cuts[i]), at(copy.from, part.from + cuts[i]),
                        cuts[i + 1] - cuts[i]});
      }
    }
    return runs;
  }
  void settle(const Copy& copy, bool arrived) {
    for (const auto& [from, to, bytes] : copy.parts) {
      std::byte* const model = &want_[copy.to][static_cast<std::size_t>(to)];
      const auto size = static_cast<std::size_t>(bytes);
      if (arrived) {
        std::memcpy(model, &want_[copy.from][static_cast<std::size_t>(from)], size);
        continue;
      }
      // Any bytes: those of the model, again.
      w_.fake.fail_at = 0;
      const CopyRun again{at(copy.to, to), model, bytes};
      if (copy.to != kDevice) std::memcpy(again.dst, model, size);
      ASSERT_TRUE(copy.to != kDevice || w_.memory->copy_in({&again, 1}).ok());
    }
    for (const auto& [where, cell] : copy.cells) {
      taken_[where][static_cast<std::size_t>(cell)] = false;
    }
    over += arrived ? 1 : 0;
    failed += arrived ? 0 : 1;
  }
  // The engine writes the sources on its stream; the copy comes behind that.
  bool engine_writes(const Copy& copy) {
    for (const Part& part : copy.parts) {
      const auto value = static_cast<unsigned char>(random_() % 100);
      std::byte* const memory = at(kDevice, part.from);
      const int fail_at = std::exchange(w_.fake.fail_at, 0);
      const auto bytes = static_cast<std::size_t>(part.bytes);
      const Status set = w_.device->run("to set", [&](const DriverCalls& calls) {
        return calls.memory_set(address_of(memory), value, bytes, engine_.handle());
      });
      w_.fake.fail_at = fail_at;
      EXPECT_TRUE(set.ok());
      std::memset(&want_[kDevice][static_cast<std::size_t>(part.from)], value, bytes);
    }
    return true;
  }
  void submit() {
    Copy copy = draw_copy();
    const bool behind = copy.from == kDevice && random_() % 2 == 0 && engine_writes(copy);
    const auto ticket =
        w_.submit(runs_of(copy), direction_of(copy), behind ? engine_.handle() : nullptr);
    if (!ticket && behind) {
      w_.fake.fail_at = 0;
      ASSERT_TRUE(engine_.synchronize().ok());  // the cells are used again
    }
    if (!ticket) return settle(copy, false);
    copy.ticket = *ticket;
    open_.push_back(std::move(copy));
  }
  void poll() {
    if (open_.empty()) return;
    const std::size_t i = random_() % open_.size();
    const Result<bool> over_now = w_.poll(open_[i].ticket);
    if (over_now && !*over_now) return;
    const Copy copy = std::move(open_[i]);
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
    settle(copy, over_now.has_value());
  }
  void copy_now() {
    const Copy copy = draw_copy();
    const std::vector<CopyRun> runs = runs_of(copy);
    switch (direction_of(copy)) {
      case CopyDirection::kIn:
        return settle(copy, w_.memory->copy_in(runs).ok());
      case CopyDirection::kOut:
        return settle(copy, w_.memory->copy_out(runs).ok());
      case CopyDirection::kWithin:
        return settle(copy, w_.memory->copy_batch(runs).ok());
    }
  }
  // Memory that is given back with tickets: what came from it has arrived then.
  void other_memory() {
    w_.fake.fail_at = 0;
    std::byte* const other = *w_.memory->allocate(kCell);
    const Bytes bytes = drawn_bytes(w_.random, kCell);
    Bytes back(kCell);
    const CopyRun in{other, bytes.data(), kCell}, out{back.data(), other, kCell};
    ASSERT_TRUE(w_.memory->copy_in({&in, 1}).ok());
    const CopyTicket ticket = *w_.submit({&out, 1}, CopyDirection::kOut);
    w_.memory->deallocate(other, kCell);
    ASSERT_EQ(back, bytes);
    ASSERT_TRUE(random_() % 2 == 0 || *w_.poll(ticket));
  }

  World w_;
  std::mt19937 random_;
  Stream engine_;
  Bytes pageable_;
  std::array<Bytes, 3> want_;
  std::array<std::vector<bool>, 3> taken_;
  std::vector<Copy> open_;
  bool fails_ = false;
};

TEST(CudaLaterRandom, EveryByteIsThatOfTheModelWhenItsTicketSaysSo) {
  const char* const wanted = std::getenv("KVFOLIO_SEED");
  const unsigned first = wanted != nullptr ? static_cast<unsigned>(std::atoi(wanted)) : 1;
  int over = 0, failed = 0;
  for (unsigned seed = first; seed < first + 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "KVFOLIO_SEED=" << seed);
    Storm storm(seed);
    for (int i = 0; i < 1500 && !testing::Test::HasFailure(); ++i) storm.step();
    if (testing::Test::HasFailure()) return;
    storm.end();
    if (testing::Test::HasFailure()) return;
    over += storm.over;
    failed += storm.failed;
  }
  std::printf("[later] seeds %u to %u: %d copies arrived, %d failed\n", first, first + 59, over,
              failed);
  EXPECT_GT(over, 5000);
  EXPECT_GT(failed, 50);
}

// Each has a part of the memory; one of them takes and gives back memory meanwhile.
TEST(CudaLaterRandom, ThreadsThatCopyAtTheSameTimeHaveTheirBytes) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    World w(seed);
    constexpr int kThreads = 4;
    constexpr std::int64_t kPart = World::kBytes / kThreads;
    std::array<int, kThreads> wrong{};
    const auto work = [&](int thread) {
      std::mt19937 random(seed * 10 + static_cast<unsigned>(thread));
      std::byte* const there = w.there + thread * kPart;
      Bytes back(kPart);
      std::byte* const to = thread % 2 == 0 ? back.data() : w.pinned.data() + thread * kPart;
      const auto now = [&](CopyDirection direction, const CopyRun& run) {
        if (random() % 3 == 0) {
          return direction == CopyDirection::kIn ? w.memory->copy_in({&run, 1}).ok()
                                                 : w.memory->copy_out({&run, 1}).ok();
        }
        const auto ticket = w.memory->submit({&run, 1}, direction, nullptr);
        Result<bool> over = false;
        while (ticket && over && !*over) over = w.memory->poll(*ticket);
        return ticket && over;
      };
      for (int i = 0; i < 200; ++i) {
        const Bytes bytes = drawn_bytes(random, kPart);
        const bool arrived = now(CopyDirection::kIn, {there, bytes.data(), kPart}) &&
                             now(CopyDirection::kOut, {to, there, kPart});
        wrong[static_cast<std::size_t>(thread)] +=
            arrived && std::memcmp(to, bytes.data(), kPart) == 0 ? 0 : 1;
        if (thread != 0) continue;
        std::byte* const other = *w.memory->allocate(100);
        const CopyRun run{back.data(), other, 100};
        wrong[0] += w.memory->submit({&run, 1}, CopyDirection::kOut, nullptr) ? 0 : 1;
        w.memory->deallocate(other, 100);
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, (std::array<int, kThreads>{})) << seed;
    EXPECT_TRUE(w.memory->take_error().ok());
  }
}

}  // namespace
}  // namespace kvfolio::cuda
