// SPDX-License-Identifier: Apache-2.0
//
// RedisTier over real servers.

#include "kvfolio/redis_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <map>
#include <random>
#include <thread>

#include "kvfolio/record.h"
#include "tiers/now.h"
#include "tiers/owner.h"
#include "tiers/proxy.h"
#include "tiers/servers.h"
#include "tiers/trouble.h"

namespace kvfolio {
namespace {

using test::Cluster;
using test::now_us;
using test::Server;

TierKey key_of(std::uint32_t number) {
  TierKey key;
  std::memcpy(key.bytes.data() + 24, &number, sizeof number);
  return key;
}

RecordInfo info_of(std::uint32_t number, std::size_t size) {
  return {.key = key_of(number),
          .payload_bytes = static_cast<std::int64_t>(size) - kRecordHeaderBytes,
          .end = 16};
}

// The record that belongs to a key.
std::vector<std::byte> bytes_of(std::uint32_t number, std::size_t size) {
  std::mt19937 random(number);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  seal_record(info_of(number, size), bytes);
  return bytes;
}

bool verifies(std::uint32_t number, std::span<const std::byte> bytes) {
  return check_record(bytes, info_of(number, bytes.size())) == RecordFault::kNone;
}

std::string hex_of(std::uint32_t number) {
  std::string text;
  for (const std::byte byte : key_of(number).bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", std::to_integer<unsigned>(byte));
    text += digits.data();
  }
  return text;
}

// As redis-cli says, not as we compute.
int redis_slot_by(const Server& server, std::uint32_t number) {
  return std::stoi(server.ask({"cluster", "keyslot", "kvfolio:" + hex_of(number)}));
}

// Asks and waits. Sees that each item ends once.
class User {
 public:
  explicit User(RedisTier& tier) : tier_(tier) {}

  // A tier that is not usable accepts nothing: that ends at once, as kUnavailable.
  std::uint64_t submit(TierOp op, std::uint32_t number, std::span<std::byte> data,
                       std::uint64_t timeout_us = 3'000'000) {
    const TierItem item{.key = key_of(number),
                        .data = data.data(),
                        .bytes = static_cast<std::int64_t>(data.size()),
                        .tag = ++last_tag_};
    const test::OwnerCalls looked_at;
    const bool usable = tier_.health().usable;
    const std::size_t accepted = tier_.submit(op, std::span(&item, 1), {now_us() + timeout_us});
    EXPECT_EQ(accepted, usable ? 1u : 0u);
    if (accepted == 0) {
      results_[last_tag_] = TierResult::kUnavailable;
      poll();
    } else {
      waiting_.insert(last_tag_);
    }
    return last_tag_;
  }
  void poll() {
    std::array<TierDone, 16> done;
    const test::OwnerCalls looked_at;
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
  // Whatever the test did: no call of the owner may have waited.
  void TearDown() override { EXPECT_EQ(test::OwnerCalls::first_that_may_wait(), ""); }

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

// Random questions for a while; what comes back and verifies is right, whatever happens beside it.
// Says how many loads brought it. It goes on until at_least did, ten seconds at most.
struct Storm {
  std::uint32_t seed = 1;
  std::uint32_t keys = 200;
  std::size_t size = 3000;
  std::uint64_t timeout_us = 500'000;

  int run(User& user, std::chrono::milliseconds time, int at_least = 0) {
    std::mt19937 random(seed++);
    const auto begin = std::chrono::steady_clock::now();
    int loaded = 0;
    for (;;) {
      const auto past = std::chrono::steady_clock::now() - begin;
      if (past >= time && (loaded >= at_least || past >= std::chrono::seconds(10))) break;
      std::vector<std::pair<std::uint64_t, std::uint32_t>> loads;
      std::vector<std::vector<std::byte>> buffers;
      std::vector<std::uint64_t> others;
      for (int i = 0; i < 20; ++i) {
        const auto number = static_cast<std::uint32_t>(random()) % keys;
        const auto kind = static_cast<unsigned>(random()) % 10;
        buffers.push_back(kind < 4 ? bytes_of(number, size) : std::vector<std::byte>(size));
        if (kind < 4) {
          others.push_back(user.submit(TierOp::kStore, number, buffers.back(), timeout_us));
        } else if (kind < 9) {
          loads.emplace_back(user.submit(TierOp::kLoad, number, buffers.back(), timeout_us), i);
          numbers[loads.back().first] = number;
        } else {
          others.push_back(user.submit(TierOp::kExists, number, {}, timeout_us));
        }
      }
      for (const std::uint64_t tag : others) user.wait(tag);
      for (const auto& [tag, place] : loads) {
        if (user.wait(tag) != TierResult::kOk) continue;
        if (!verifies(numbers[tag], buffers[place])) {
          ++damaged;
          continue;
        }
        EXPECT_EQ(buffers[place], bytes_of(numbers[tag], size)) << "seed " << seed - 1;
        ++loaded;
      }
    }
    return loaded;
  }
  int damaged = 0;
  std::map<std::uint64_t, std::uint32_t> numbers{};
};

using std::chrono::milliseconds;
constexpr std::uint32_t kQuiet = 1000;  // a key that no storm uses

TEST_F(Redis, AKilledPrimaryCostsMissesAndItsReplicaTakesOver) {
  Cluster cluster;
  auto tier = connect(cluster.addresses());
  User user(*tier);
  ASSERT_EQ(user.store(kQuiet), TierResult::kOk);
  Storm storm;
  EXPECT_GT(storm.run(user, milliseconds(300), 1), 0);
  Server& primary = cluster.primary_of(redis_slot_by(*cluster.nodes()[0], kQuiet));
  primary.wait_for_replica();
  primary.kill();
  storm.run(user, milliseconds(500));
  // What the primary had acknowledged and passed on is there when the replica is a primary.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (user.load(kQuiet) != TierResult::kOk && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(user.load(kQuiet), TierResult::kOk);
  EXPECT_GT(storm.run(user, milliseconds(300), 1), 0);
  EXPECT_GT(tier->counters().connections_lost, 0u);
}

TEST_F(Redis, AFrozenServerIsLeftAloneAndComesBack) {
  Server server(test::free_port());
  auto tier = connect(server.address(), {.breaker_us_min = 100'000, .breaker_us_max = 400'000});
  User user(*tier);
  ASSERT_EQ(user.store(kQuiet), TierResult::kOk);
  server.signal(SIGSTOP);
  Storm storm{.timeout_us = 100'000};
  EXPECT_EQ(storm.run(user, milliseconds(3000)), 0);
  EXPECT_FALSE(tier->health().usable);
  // At once, not by its deadline.
  EXPECT_EQ(user.load(kQuiet), TierResult::kUnavailable);
  server.signal(SIGCONT);
  const Status ready = tier->wait_until_ready(now_us(), 60'000'000);
  EXPECT_TRUE(ready.ok()) << ready.message();
  EXPECT_EQ(user.load(kQuiet), TierResult::kOk);
}

TEST_F(Redis, ALoadThatIsLateDoesNotTouchItsMemoryAnyMore) {
  Server server(test::free_port());
  auto tier = connect(server.address(), {.stall_timeout_us = 5'000'000});
  User user(*tier);
  ASSERT_EQ(user.store(1), TierResult::kOk);
  server.signal(SIGSTOP);
  std::vector<std::byte> memory(1000, std::byte{7});
  const auto tag = user.submit(TierOp::kLoad, 1, memory, 50'000);
  EXPECT_EQ(user.wait(tag), TierResult::kTimeout);
  server.signal(SIGCONT);
  EXPECT_EQ(user.load(1), TierResult::kOk);
  EXPECT_EQ(memory, std::vector<std::byte>(1000, std::byte{7}));
}

TEST_F(Redis, SlotsMoveUnderLoad) {
  // No node fails here, and one that gets no processor for a while is not to be replaced.
  Cluster cluster({"--cluster-node-timeout", "30000"});
  auto tier = connect(cluster.addresses());
  User user(*tier);
  Storm storm;
  EXPECT_GT(storm.run(user, milliseconds(200), 1), 0);
  // Two thousand slots, from the first primary to the others; the tool needs some seconds.
  std::string trouble;
  std::thread moving([&] {
    try {
      test::run({test::redis_program("redis-cli").value(), "--cluster", "rebalance",
                 cluster.nodes()[0]->address(), "--cluster-weight",
                 cluster.primary_of(0).ask({"cluster", "myid"}).substr(0, 40) + "=0.7"});
    } catch (const std::exception& error) {
      trouble = error.what();
    }
  });
  int loaded = 0;
  for (int i = 0; i < 10; ++i) loaded += storm.run(user, milliseconds(300));
  moving.join();
  EXPECT_EQ(trouble, "");
  EXPECT_GT(loaded, 100);
  EXPECT_GT(storm.run(user, milliseconds(300), 1), 0);
  EXPECT_GT(tier->counters().redirects, 0u);
  EXPECT_EQ(user.store(kQuiet), TierResult::kOk);
}

TEST_F(Redis, ARestartWithEmptyDataIsMisses) {
  Server server(test::free_port());
  auto tier = connect(server.address());
  User user(*tier);
  ASSERT_EQ(user.store(1), TierResult::kOk);
  server.kill();
  EXPECT_NE(user.load(1), TierResult::kOk);
  server.start();
  ASSERT_TRUE(tier->wait_until_ready(now_us(), 60'000'000).ok());
  EXPECT_EQ(user.load(1), TierResult::kMiss);
  EXPECT_EQ(user.store(1), TierResult::kOk);
  server.ask({"flushall"});
  EXPECT_EQ(user.load(1), TierResult::kMiss);
}

TEST_F(Redis, AFullServerRefusesStoresAndGoesOnLoading) {
  Server server(test::free_port(), {"--maxmemory", "6mb", "--maxmemory-policy", "noeviction"});
  auto tier = connect(server.address());
  User user(*tier);
  ASSERT_EQ(user.store(0, 100'000), TierResult::kOk);
  TierResult result = TierResult::kOk;
  for (std::uint32_t i = 1; i < 100 && result == TierResult::kOk; ++i) {
    result = user.store(i, 100'000);
  }
  EXPECT_EQ(result, TierResult::kBusy);
  EXPECT_GT(tier->counters().stores_refused, 0u);
  EXPECT_EQ(user.load(0, 100'000), TierResult::kOk);
}

TEST_F(Redis, AServerThatEvictsIsMisses) {
  Server server(test::free_port(), {"--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru"});
  auto tier = connect(server.address());
  User user(*tier);
  int loaded = 0;
  for (std::uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(user.store(i, 100'000), TierResult::kOk);
  }
  for (std::uint32_t i = 0; i < 100; ++i) {
    const TierResult result = user.load(i, 100'000);
    EXPECT_TRUE(result == TierResult::kOk || result == TierResult::kMiss);
    loaded += result == TierResult::kOk ? 1 : 0;
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 100);
}

TEST_F(Redis, AWrongPasswordIsSaidAndARightOneWorks) {
  Server server(test::free_port(), {"--requirepass", "sesame"});
  auto wrong = RedisTier::create({.servers = server.address(), .password = "open"});
  ASSERT_TRUE(wrong);
  EXPECT_THAT(test::trouble(**wrong, "WRONGPASS"), ::testing::HasSubstr("WRONGPASS"));
  EXPECT_EQ((*wrong)->wait_until_ready(now_us(), 1000).code(), ErrorCode::kTimedOut);
  const std::string address = server.address();
  auto none = RedisTier::create({.servers = address});
  EXPECT_THAT(test::trouble(**none, "NOAUTH"), ::testing::HasSubstr("NOAUTH"));
  auto tier = connect(address, {.password = "sesame"});
  User user(*tier);
  EXPECT_EQ(user.store(1), TierResult::kOk);
}

TEST_F(Redis, AServerThatRefusesIsNotSaidToBeSilent) {
  Server server(test::free_port(), {"--requirepass", "sesame"});
  const std::string address = server.address();
  auto tier = RedisTier::create({.servers = address});
  EXPECT_EQ(test::trouble(**tier, "NOAUTH"),
            "Redis refuses the user, the password or a command:\n  " + address +
                ": NOAUTH Authentication required.");
  const std::vector<RedisNode> nodes = (*tier)->nodes();
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_TRUE(nodes[0].refuses);
  EXPECT_FALSE(nodes[0].connected);
}

TEST_F(Redis, AServerThatDoesNotAnswerIsNamedBesideThoseThatDo) {
  Server server(test::free_port());
  const std::string dead = "127.0.0.1:" + std::to_string(test::free_port());
  const std::string address = server.address();
  auto tier = connect(dead + "," + address);
  for (const RedisNode& node : tier->nodes()) {
    EXPECT_EQ(node.connected, node.address == address) << node.address;
    EXPECT_EQ(node.slots, node.connected ? 16384 : 0);
    if (node.connected) continue;
    EXPECT_EQ(node.address, dead);
    EXPECT_THAT(node.error, ::testing::HasSubstr("Connection refused"));
  }
}

TEST(RedisTier, APasswordAmongTheServersIsNotRepeated) {
  for (const char* const servers : {"alice:sesame@127.0.0.1:1", ":sesame@h:1",
                                    "redis://a:sesame@h:1", "127.0.0.1:1,a:se@sesame@h"}) {
    const auto tier = RedisTier::create({.servers = servers});
    ASSERT_FALSE(tier);
    EXPECT_EQ(tier.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(tier.error().message().find("sesame"), std::string_view::npos)
        << tier.error().message();
    EXPECT_THAT(tier.error().message(), ::testing::HasSubstr("as user and password"));
  }
}

// The server would let the default user in.
TEST_F(Redis, AWrongPasswordIsNoOtherUser) {
  Server server(test::free_port(), {"--user", "writer", "on", ">right", "~*", "+@all"});
  const std::string address = server.address();
  auto tier = RedisTier::create({.servers = address, .user = "writer", .password = "wrong"});
  EXPECT_THAT(test::trouble(**tier, "WRONGPASS"), ::testing::HasSubstr("WRONGPASS"));
}

TEST_F(Redis, AUserWithoutSetLoadsAndItsStoresAreCounted) {
  Server server(test::free_port(), {"--user", "reader", "on", ">secret", "~kvfolio:*", "+get",
                                    "+exists", "+ping", "+cluster|slots"});
  auto writer = connect(server.address());
  User(*writer).store(1);
  auto tier = connect(server.address(), {.user = "reader", .password = "secret"});
  User user(*tier);
  EXPECT_EQ(user.load(1), TierResult::kOk);
  EXPECT_EQ(user.store(2), TierResult::kUnavailable);
  EXPECT_EQ(tier->counters().stores_refused, 1u);
  EXPECT_EQ(user.load(1), TierResult::kOk);
  EXPECT_TRUE(tier->health().usable);
}

TEST_F(Redis, ValuesThatOthersChangedAreNotOk) {
  Server server(test::free_port());
  auto tier = connect(server.address());
  User user(*tier);
  ASSERT_EQ(user.store(1), TierResult::kOk);
  const std::string key = "kvfolio:" + hex_of(1);
  server.ask({"setrange", key, "1000", "too long"});
  EXPECT_EQ(user.load(1), TierResult::kCorrupt);
  server.ask({"set", key, ""});
  EXPECT_EQ(user.load(1), TierResult::kCorrupt);
  server.ask({"del", key});
  server.ask({"rpush", key, "a list"});
  EXPECT_EQ(user.load(1), TierResult::kCorrupt);
  EXPECT_EQ(user.erase(1), TierResult::kOk);
  EXPECT_EQ(user.store(1), TierResult::kOk);
  // Far beyond what was asked for: cut off, and not kept in memory.
  server.ask({"setrange", key, "60000000", "x"});
  EXPECT_NE(user.load(1), TierResult::kOk);
  EXPECT_EQ(user.erase(1), TierResult::kOk);
  EXPECT_EQ(user.store(1), TierResult::kOk);
  EXPECT_EQ(user.load(1), TierResult::kOk);
}

TEST_F(Redis, CloseEndsEverythingThatWasAccepted) {
  Server server(test::free_port());
  auto tier = connect(server.address());
  User user(*tier);
  server.signal(SIGSTOP);
  std::vector<std::byte> memory(1000);
  std::vector<std::uint64_t> tags;
  for (std::uint32_t i = 0; i < 100; ++i) {
    tags.push_back(user.submit(TierOp::kLoad, i, memory, 60'000'000));
  }
  ASSERT_TRUE(tier->close({now_us() + 20'000}).ok());
  const TierItem late{.key = key_of(1), .data = memory.data(), .bytes = 1000, .tag = 99};
  EXPECT_EQ(tier->submit(TierOp::kLoad, std::span(&late, 1), {now_us() + 1000}), 0u);
  for (const std::uint64_t tag : tags) EXPECT_EQ(user.wait(tag), TierResult::kClosed);
  server.signal(SIGCONT);
}

TEST_F(Redis, AnOwnerWhoPollsSeldomIsGreetedAllTheSame) {
  Server server(test::free_port());
  auto tier = RedisTier::create({.servers = server.address()});
  ASSERT_TRUE(tier);
  std::vector<std::byte> memory = bytes_of(1, 1000);
  const TierItem item{.key = key_of(1), .data = memory.data(), .bytes = 1000, .tag = 1};
  ASSERT_EQ((*tier)->submit(TierOp::kStore, std::span(&item, 1), {now_us() + 20'000'000}), 1u);
  std::array<TierDone, 1> done;
  std::size_t n = 0;
  for (int polls = 0; n == 0 && polls < 10; ++polls) {
    n = (*tier)->poll(now_us(), done);
    std::this_thread::sleep_for(milliseconds(300));
  }
  ASSERT_EQ(n, 1u);
  EXPECT_EQ(done[0].result, TierResult::kOk);
}

TEST_F(Redis, TwoProcessesShareAPrefix) {
  Server server(test::free_port());
  const auto run = [&](const char* what) {
    return test::run({KVFOLIO_EXAMPLES "/example_shared_prefix", server.address(), what});
  };
  EXPECT_THAT(run("fill"), ::testing::HasSubstr("0 of 1025 tokens came from Redis, 1025 were"));
  EXPECT_THAT(run("hit"), ::testing::HasSubstr("1024 of 1025 tokens came from Redis, 1 were"));
}

// Only misses, and each item ends once (User sees to both); afterwards all is well again.
class RedisBehindProxy : public Redis, public ::testing::WithParamInterface<int> {};

TEST_P(RedisBehindProxy, AFaultyNetworkCostsMissesOnly) {
  Server server(test::free_port());
  test::Proxy proxy(server.port(), static_cast<std::uint32_t>(GetParam()));
  auto tier = connect("127.0.0.1:" + std::to_string(proxy.port()),
                      {.breaker_us_min = 50'000, .breaker_us_max = 100'000});
  User user(*tier);
  Storm storm{.keys = 50};
  EXPECT_GT(storm.run(user, milliseconds(100), 1), 0);
  proxy.set(static_cast<test::ProxyFault>(GetParam()));
  storm.timeout_us = 100'000;
  storm.run(user, milliseconds(1000));
  proxy.set(test::ProxyFault::kNone);
  if (static_cast<test::ProxyFault>(GetParam()) != test::ProxyFault::kGarbage) {
    EXPECT_EQ(storm.damaged, 0);
  }
  storm.timeout_us = 500'000;
  // Garbage may have become a value under a key; a reader that verifies records erases it.
  server.ask({"flushall"});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  const auto all_is_well = [&] {  // stores and loads have a connection each
    return user.store(kQuiet) == TierResult::kOk && user.load(kQuiet) == TierResult::kOk;
  };
  bool well = all_is_well();
  while (!well && std::chrono::steady_clock::now() < end) well = all_is_well();
  EXPECT_TRUE(well) << tier->describe();
  EXPECT_GT(storm.run(user, milliseconds(200), 1), 0) << tier->describe();
}
INSTANTIATE_TEST_SUITE_P(Faults, RedisBehindProxy, ::testing::Range(0, test::kNumProxyFaults));

// One breaker for both connections of a node shut out loads as well, in one case for ever.
TEST_F(Redis, StoresThatFailCostNoLoadsAndComeBack) {
  Server server(test::free_port());
  test::Proxy proxy(server.port());
  auto tier = connect("127.0.0.1:" + std::to_string(proxy.port()),
                      {.breaker_us_min = 50'000, .breaker_us_max = 50'000});
  User user(*tier);
  ASSERT_EQ(user.store(1), TierResult::kOk);
  proxy.set(test::ProxyFault::kNoStores);
  int open = 0;
  for (int i = 0; i < 20; ++i) {
    EXPECT_NE(user.store(2), TierResult::kOk);
    EXPECT_EQ(user.load(1), TierResult::kOk);
    open += tier->describe().find("stores fail") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(open, 0);
  proxy.set(test::ProxyFault::kNone);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (user.store(3) != TierResult::kOk && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(user.store(4), TierResult::kOk) << tier->describe();
}

TEST_F(Redis, CallsOfTheOwnerAreLookedAt) {
  Server server(test::free_port());
  auto tier = connect(server.address());
  User user(*tier);
  const std::uint64_t before = test::OwnerCalls::seen();
  EXPECT_EQ(user.store(1), TierResult::kOk);
  EXPECT_GT(test::OwnerCalls::seen(), before + 3);
}

// A child of fork() keeps the descriptors; epoll went on to name connections that were gone.
TEST_F(Redis, AChildThatKeepsTheSocketsDisturbsNothing) {
  auto server = std::make_unique<Server>(test::free_port());
  auto tier = connect(server->address());
  User user(*tier);
  ASSERT_EQ(user.store(1), TierResult::kOk);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  server->kill();
  EXPECT_NE(user.load(1), TierResult::kOk);
  for (int i = 0; i < 50; ++i) user.poll();
  pollfd descriptor{.fd = tier->event_fd(), .events = POLLIN, .revents = 0};
  int wakes = 0;
  for (int i = 0; i < 20; ++i) {
    wakes += ::poll(&descriptor, 1, 10) > 0 ? 1 : 0;
    user.poll();
  }
  EXPECT_LT(wakes, 15) << "it must not be readable all the time";
  server->start();
  ASSERT_TRUE(tier->wait_until_ready(now_us(), 5'000'000).ok());
  EXPECT_EQ(user.store(1), TierResult::kOk);
  ::kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(RedisOptions, WhatIsWrongIsSaid) {
  const auto message = [](RedisOptions options) {
    const auto tier = RedisTier::create(options);
    return tier ? std::string() : std::string(tier.error().message());
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message({}), HasSubstr("servers: none"));
  EXPECT_THAT(message({.servers = "localhost"}), HasSubstr("'localhost' is not HOST:PORT"));
  EXPECT_THAT(message({.servers = "a:0"}), HasSubstr("'a:0' is not HOST:PORT"));
  EXPECT_THAT(message({.servers = "127.0.0.1:1,"
                                  ":7"}),
              HasSubstr("':7' is not HOST:PORT"));
  EXPECT_THAT(message({.servers = "no.such.host.invalid:7000"}), HasSubstr("has no address"));
  EXPECT_THAT(message({.servers = "127.0.0.1:1", .user = "me"}), HasSubstr("without a password"));
  EXPECT_THAT(message({.servers = "127.0.0.1:1", .key_prefix = "{x}"}), HasSubstr("brace"));
  EXPECT_THAT(message({.servers = "127.0.0.1:1", .record_bytes_max = 0}),
              HasSubstr("record_bytes_max: 0"));
  EXPECT_THAT(message({.servers = "127.0.0.1:1", .tls = {.ca_file = "/none"}}),
              HasSubstr("not enabled"));
  EXPECT_THAT(message({.servers = "127.0.0.1:1", .tls = {.enabled = true, .ca_file = "/none"}}),
              HasSubstr("tls.ca_file: /none"));
}

}  // namespace
}  // namespace kvfolio
