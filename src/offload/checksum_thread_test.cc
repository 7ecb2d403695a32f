// SPDX-License-Identifier: Apache-2.0
#include "offload/checksum_thread.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kvfolio/checked_copy.h"

namespace kvfolio {
namespace {

TEST(ChecksumThread, AnswersInTheOrderOfWhatWasAdded) {
  std::vector<std::byte> memory(1 << 20);
  std::mt19937 random(5);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  ChecksumThread thread;
  std::deque<std::uint64_t> expected;
  for (int i = 0; i < 5000; ++i) {
    if (random() % 2 == 0) {
      const std::size_t at = random() % 4096, size = 1 + random() % 40'000, cut = random() % size;
      const auto piece = std::span(memory).subspan(at, size);
      const std::vector<CopyRun> reads = {
          {nullptr, piece.data(), static_cast<std::int64_t>(cut)},
          {nullptr, piece.data() + cut, static_cast<std::int64_t>(size - cut)}};
      thread.add(reads, static_cast<std::uint64_t>(i));
      expected.push_back(checksum(piece, static_cast<std::uint64_t>(i)));
    } else if (!expected.empty()) {
      ASSERT_EQ(thread.take().checksum, expected.front());
      expected.pop_front();
    }
    ASSERT_EQ(thread.pending(), expected.size());
  }
}

// The host's handlers belong to the host's threads.
TEST(ChecksumThread, TakesNoSignals) {
  const auto threads = [] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      found.insert(entry.path().string());
    }
    return found;
  };
  // The thread sanitizer starts a thread of its own beside the first one of a process.
  std::thread([] {}).join();
  const std::set<std::string> before = threads();
  const ChecksumThread thread;
  int seen = 0;
  for (const std::string& path : threads()) {
    if (before.contains(path)) continue;
    ++seen;
    // Where a thread begins, libc has all signals blocked for a moment: it is looked at once it
    // waits for work.
    std::string state;
    unsigned long long blocked = 0;
    while (state != "S") {
      std::ifstream status(path + "/status");
      for (std::string word; status >> word;) {
        if (word == "State:") status >> state;
        if (word == "SigBlk:") status >> std::hex >> blocked;
      }
      ASSERT_FALSE(state.empty());
    }
    for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGPIPE, SIGXFSZ, SIGCHLD}) {
      EXPECT_TRUE(blocked >> (signal - 1) & 1) << signal;
    }
  }
  EXPECT_EQ(seen, 1);
}

TEST(ChecksumThread, MayEndBeforeAllIsTaken) {
  std::vector<std::byte> memory(1 << 20);
  const CopyRun whole{nullptr, memory.data(), std::int64_t{1} << 20};
  for (int i = 0; i < 50; ++i) {
    ChecksumThread thread;
    for (int added = 0; added < i; ++added) thread.add(std::span(&whole, 1), 0);
    if (i > 0) static_cast<void>(thread.take().checksum);
  }
}

TEST(ChecksumThread, MakesMacsAndChecksumsInTurn) {
  std::vector<std::byte> memory(1 << 20, std::byte{5});
  const std::vector<std::byte> secret(kRecordKeyBytes, std::byte{1});
  const Result<RecordKeys> keys = RecordKeys::create({.key = secret});
  ASSERT_TRUE(keys);
  const std::int64_t bytes = std::ssize(memory);
  const CopyRun reads[] = {{.src = memory.data(), .bytes = 1000},
                           {.src = memory.data() + 1000, .bytes = bytes - 1000}};
  std::array<std::byte, kRecordHeaderBytes> header{};
  const RecordInfo info{.payload_bytes = bytes};
  ASSERT_TRUE(seal_record(info, memory, *keys, header));
  RecordInfo sealed;
  ASSERT_EQ(read_record_header(header, sealed), RecordFault::kNone);
  ChecksumThread thread;
  for (int i = 0; i < 50; ++i) {
    RecordMac mac;
    ASSERT_TRUE(mac.begin(*keys, keys->id(), info));
    thread.add(reads, std::move(mac));
    thread.add(reads, 7);
  }
  for (int i = 0; i < 50; ++i) {
    const ChecksumThread::Seal seal = thread.take();
    EXPECT_TRUE(seal.made);
    EXPECT_TRUE(same_mac(seal.mac, sealed.mac));
    EXPECT_EQ(thread.take().checksum, checksum(memory, 7));
  }
}

}  // namespace
}  // namespace kvfolio
