// SPDX-License-Identifier: Apache-2.0
//
// RedisTier over real servers.

#include "kvfolio/redis_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "redis/servers.h"

namespace kvfolio {
namespace {

using test::Cluster;
using test::Server;

std::uint64_t now_us() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

TierKey key_of(std::uint32_t number) {
  TierKey key;
  std::memcpy(key.bytes.data() + 24, &number, sizeof number);
  return key;
}

// The bytes that belong to a key: whoever reads others sees it.
std::vector<std::byte> bytes_of(std::uint32_t number, std::size_t size) {
  std::mt19937 random(number);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Asks and waits. Sees that each item ends once.
class User {
 public:
  explicit User(RedisTier& tier) : tier_(tier) {}

  std::uint64_t submit(TierOp op, std::uint32_t number, std::span<std::byte> data,
                       std::uint64_t timeout_us = 3'000'000) {
    const TierItem item{.key = key_of(number),
                        .data = data.data(),
                        .bytes = static_cast<std::int64_t>(data.size()),
                        .tag = ++last_tag_};
    EXPECT_EQ(tier_.submit(op, std::span(&item, 1), {now_us() + timeout_us}), 1u);
    waiting_.insert(last_tag_);
    return last_tag_;
  }
  void poll() {
    std::array<TierDone, 16> done;
    const std::size_t n = tier_.poll(now_us(), done);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(waiting_.erase(done[i].tag), 1u) << "ended twice, or never begun";
      results_[done[i].tag] = done[i].result;
    }
  }
  TierResult wait(std::uint64_t tag) {
    while (!results_.contains(tag)) {
      poll();
      pollfd descriptor{.fd = tier_.event_fd(), .events = POLLIN, .revents = 0};
      ::poll(&descriptor, 1, 5);
    }
    return results_[tag];
  }
  TierResult store(std::uint32_t number, std::size_t size = 1000) {
    std::vector<std::byte> bytes = bytes_of(number, size);
    return wait(submit(TierOp::kStore, number, bytes));
  }
  TierResult load(std::uint32_t number, std::size_t size = 1000) {
    std::vector<std::byte> bytes(size);
    const TierResult result = wait(submit(TierOp::kLoad, number, bytes));
    if (result == TierResult::kOk) {
      EXPECT_EQ(bytes, bytes_of(number, size));
    }
    return result;
  }
  TierResult exists(std::uint32_t number) { return wait(submit(TierOp::kExists, number, {})); }
  TierResult erase(std::uint32_t number) { return wait(submit(TierOp::kErase, number, {})); }

 private:
  RedisTier& tier_;
  std::uint64_t last_tag_ = 0;
  std::set<std::uint64_t> waiting_;
  std::map<std::uint64_t, TierResult> results_;
};

std::unique_ptr<RedisTier> connect(const std::string& servers, RedisOptions options = {}) {
  options.servers = servers;
  auto tier = RedisTier::create(options);
  EXPECT_TRUE(tier) << tier.error().message();
  const Status ready = (*tier)->wait_until_ready(now_us(), 5'000'000);
  EXPECT_TRUE(ready.ok()) << ready.message();
  return std::move(*tier);
}

class Redis : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::redis_program("redis-server")) GTEST_SKIP() << "no redis-server: scripts/redis-here";
  }
};

TEST_F(Redis, ASingleServerKeepsRecords) {
  Server server(test::free_port());
  auto tier = connect(server.address());
  User user(*tier);
  EXPECT_EQ(user.load(1), TierResult::kMiss);
  EXPECT_EQ(user.exists(1), TierResult::kMiss);
  EXPECT_EQ(user.store(1), TierResult::kOk);
  EXPECT_EQ(user.exists(1), TierResult::kOk);
  EXPECT_EQ(user.load(1), TierResult::kOk);
  EXPECT_EQ(user.store(1), TierResult::kOk);
  EXPECT_EQ(user.load(1, 999), TierResult::kCorrupt);
  EXPECT_EQ(user.erase(1), TierResult::kOk);
  EXPECT_EQ(user.load(1), TierResult::kMiss);
  EXPECT_EQ(user.store(2, 4 << 20), TierResult::kOk);
  EXPECT_EQ(user.load(2, 4 << 20), TierResult::kOk);
}

TEST_F(Redis, AClusterKeepsRecordsAtTheNodesOfTheirSlots) {
  Cluster cluster;
  // One address is enough: the others are learnt.
  auto tier = connect(cluster.nodes()[0]->address());
  User user(*tier);
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(user.store(i, 5000), TierResult::kOk);
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(user.load(i, 5000), TierResult::kOk);
  EXPECT_EQ(user.load(100), TierResult::kMiss);
  EXPECT_EQ(tier->counters().redirects, 0u);
  EXPECT_EQ(tier->health().failures, 0u);
}

}  // namespace
}  // namespace kvfolio
