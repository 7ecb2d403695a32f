// SPDX-License-Identifier: Apache-2.0
//
// RedisTier over servers that no Redis is. Needs no redis-server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "kvfolio/checked_copy.h"
#include "kvfolio/record.h"
#include "kvfolio/redis_tier.h"
#include "tiers/now.h"
#include "tiers/scripted_server.h"
#include "tiers/trouble.h"

namespace kvfolio {
namespace {

using test::now_us;
using test::ScriptedServer;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

std::unique_ptr<RedisTier> tier_of(const std::string& servers, RedisOptions options = {}) {
  options.servers = servers;
  auto tier = RedisTier::create(options);
  EXPECT_TRUE(tier) << tier.error().message();
  return std::move(*tier);
}

// What a server alone says to all but GET.
std::string alone(const Words& words) {
  if (words[0] == "PING") return "+PONG\r\n";
  if (words[0] == "CLUSTER") return "-ERR This instance has cluster support disabled\r\n";
  return "+OK\r\n";
}

// Polls until the tier says that it is not usable. False: that took longer.
bool is_left_alone(RedisTier& tier, std::uint64_t within_us) {
  const std::uint64_t end = now_us() + within_us;
  while (now_us() < end) {
    tier.poll(now_us(), {});
    if (!tier.health().usable) return true;
    pollfd descriptor{.fd = tier.event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&descriptor, 1, 50);
  }
  return false;
}

TierResult load(RedisTier& tier, std::span<std::byte> data, std::uint64_t timeout_us) {
  const TierItem item{.data = data.data(), .bytes = static_cast<std::int64_t>(data.size())};
  if (tier.submit(TierOp::kLoad, std::span(&item, 1), {now_us() + timeout_us}) == 0) {
    return TierResult::kUnavailable;
  }
  std::array<TierDone, 1> done;
  while (tier.poll(now_us(), done) == 0) {
    pollfd descriptor{.fd = tier.event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&descriptor, 1, 50);
  }
  return done[0].result;
}

// As servers do that do not know AUTH under this name.
TEST(HostileRedis, APasswordThatTheServerRepeatsIsInNoMessage) {
  ScriptedServer server([](const Words& words) -> std::string {
    if (words[0] != "AUTH") return alone(words);
    std::string text = "-ERR unknown command 'AUTH', with args beginning with: ";
    for (std::size_t i = 1; i < words.size(); ++i) text += "'" + words[i].substr(0, 20) + "' ";
    return text + "\r\n";
  });
  for (const std::string& password : {std::string("hunter2"), std::string(40, 'p')}) {
    const auto tier = tier_of(server.address(), {.password = password});
    const std::string trouble = test::trouble(*tier, "ERR unknown command");
    EXPECT_THAT(trouble, HasSubstr("ERR unknown command"));
    EXPECT_THAT(trouble, Not(HasSubstr(password.substr(0, 7))));
    EXPECT_THAT(tier->describe(), Not(HasSubstr(password.substr(0, 7))));
  }
}

// 169.254.169.254 is where clouds have the credentials of a machine.
TEST(HostileRedis, AServerLeadsNobodyToAddressesOfTheLinkOrOfThisMachine) {
  ScriptedServer server([](const Words& words) {
    return words[0] == "GET" ? "-MOVED 0 169.254.169.254:6379\r\n" : alone(words);
  });
  const auto tier = tier_of(server.address(), {.password = "hunter2"});
  ASSERT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
  std::vector<std::byte> data(1000);
  EXPECT_NE(load(*tier, data, 500'000), TierResult::kOk);
  EXPECT_THAT(tier->describe(), HasSubstr("an address of this machine or link"));
}

TEST(HostileRedis, AnEndlessGreetingIsAFailure) {
  ScriptedServer server([](const Words&) { return "$100000000\r\n" + std::string(2 << 20, 'x'); });
  const auto tier = tier_of(server.address());
  EXPECT_TRUE(is_left_alone(*tier, 3'000'000)) << tier->describe();
}

TEST(HostileRedis, AMapThatIsTooLongIsAFailure) {
  ScriptedServer server([](const Words& words) {
    return words[0] == "PING" ? "+PONG\r\n" : "$100000000\r\n" + std::string(2 << 20, 'x');
  });
  const auto tier = tier_of(server.address());
  EXPECT_TRUE(is_left_alone(*tier, 3'000'000)) << tier->describe();
}

TEST(HostileRedis, AServerThatGreetsByteByByteIsLeftAlone) {
  ScriptedServer server([](const Words&) { return "+" + std::string(1 << 20, 'x'); });
  server.drip(500);
  const auto tier = tier_of(server.address(), {.connect_timeout_us = 100'000});
  EXPECT_TRUE(is_left_alone(*tier, 3'000'000)) << tier->describe();
}

TEST(HostileRedis, AServerWhoseRepliesTrickleInAfterTheirDeadlineIsGivenUp) {
  ScriptedServer server([](const Words& words) {
    return words[0] == "GET" ? "$100000\r\n" + std::string(100'000, 'x') : alone(words);
  });
  const auto tier = tier_of(server.address(), {.stall_timeout_us = 100'000});
  ASSERT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
  server.drip(500);
  std::vector<std::byte> data(100'000);
  EXPECT_EQ(load(*tier, data, 50'000), TierResult::kTimeout);
  const std::uint64_t end = now_us() + 2'000'000;
  while (tier->counters().connections_lost == 0 && now_us() < end) {
    tier->poll(now_us(), {});
    pollfd descriptor{.fd = tier->event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&descriptor, 1, 50);
  }
  EXPECT_GT(tier->counters().connections_lost, 0u);
}

TEST(HostileRedis, RedirectionsThatGoRoundEnd) {
  int port = 0;
  for (const std::string kind : {"MOVED", "ASK"}) {
    ScriptedServer server([&](const Words& words) {
      return words[0] == "GET" ? "-" + kind + " 1 127.0.0.1:" + std::to_string(port) + "\r\n"
                               : alone(words);
    });
    port = server.port();
    const auto tier = tier_of(server.address());
    ASSERT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
    std::vector<std::byte> data(1000);
    EXPECT_EQ(load(*tier, data, 2'000'000), TierResult::kUnavailable);
    EXPECT_LE(tier->counters().redirects, 5u);
  }
}

// O6. The bound does not depend on how many they are.
TEST(HostileRedis, ManyItemsWhoseTimeIsOverEndInPollsOfBoundedWork) {
  constexpr std::size_t kItems = 30'000, kOfOnePoll = 4096;
  ScriptedServer server([](const Words&) { return std::string(); });  // never says what it has
  const auto tier = tier_of(server.address(), {.items_max = kItems + 1});
  std::vector<TierItem> items(kItems + 1);
  for (std::size_t i = 0; i < items.size(); ++i) items[i].tag = i;
  const std::uint64_t begin = now_us();
  ASSERT_EQ(tier->submit(TierOp::kExists, std::span(items).first(kItems / 2), {begin + 1}),
            kItems / 2);
  ASSERT_EQ(tier->submit(TierOp::kExists, std::span(items).last(1), {begin + 3}), 1u);
  ASSERT_EQ(
      tier->submit(TierOp::kExists, std::span(items).subspan(kItems / 2, kItems / 2), {begin + 2}),
      kItems / 2);
  std::vector<TierDone> done(items.size());
  std::size_t ended = 0;
  for (std::size_t polls = 0; ended < kItems; ++polls) {
    ASSERT_LE(polls, kItems / kOfOnePoll);
    const std::size_t n = tier->poll(begin + 2, done);
    EXPECT_LE(n, kOfOnePoll);
    for (const TierDone& one : std::span(done).first(n)) {
      EXPECT_EQ(one.result, TierResult::kTimeout);
      EXPECT_LT(one.tag, kItems);
    }
    ended += n;
    const Status status = tier->check_invariants();
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_EQ(tier->poll(begin + 3, done), 1u);
  EXPECT_EQ(done[0].tag, kItems);
}

// O5. Each redirection names another address of the 2^24 that a machine has for itself.
TEST(HostileRedis, AStormOfRedirectionsTakesBoundedMemory) {
  std::mt19937 random(1);
  ScriptedServer server([&](const Words& words) -> std::string {
    if (words[0] != "GET") return alone(words);
    const auto any = [&] { return std::to_string(1 + random() % 250); };
    return "-MOVED " + std::to_string(random() % 16384) + " 127." + any() + "." + any() + "." +
           any() + ":1\r\n";
  });
  const auto tier = tier_of(server.address());
  ASSERT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
  constexpr std::size_t kItems = 1000;
  std::vector<std::byte> data(kItems);
  std::vector<TierItem> items(kItems);
  std::array<TierDone, 64> done;
  const auto bytes = [] { return static_cast<std::int64_t>(mallinfo2().uordblks); };
  const std::int64_t before = bytes();
  std::int64_t most = 0;
  std::size_t nodes = 0;
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < kItems; ++i) {
      items[i] = {.data = &data[i], .bytes = 1, .tag = i};
      for (std::byte& byte : items[i].key.bytes) byte = static_cast<std::byte>(random());
    }
    std::size_t left = tier->submit(TierOp::kLoad, items, {now_us() + 300'000});
    const std::uint64_t end = now_us() + 5'000'000;
    while (left > 0 && now_us() < end) {
      left -= tier->poll(now_us(), done);
      most = std::max(most, bytes() - before);
      nodes = std::max(nodes, tier->nodes().size());
    }
    EXPECT_EQ(left, 0u);
  }
  EXPECT_GT(nodes, 100u) << "no storm";
  EXPECT_LE(nodes, 256u);
  EXPECT_LT(most, std::int64_t{6} << 20);
}

// ---- values ----

// Keeps what is stored, and answers GET with what `lie` makes of it.
class LyingServer {
 public:
  using Lie = std::function<std::string(const std::string& key)>;

  LyingServer() : server_([this](const Words& words) { return answer(words); }) {}

  [[nodiscard]] std::string address() const { return server_.address(); }
  void lie(Lie lie) {
    const std::lock_guard lock(mutex_);
    lie_ = std::move(lie);
  }
  // Requires: the lock, or that nothing is asked now.
  std::map<std::string, std::string> values;

 private:
  std::string answer(const Words& words) {
    const std::lock_guard lock(mutex_);
    if (words[0] == "SET") values.try_emplace(words[1], words[2]);
    if (words[0] != "GET") return alone(words);
    if (!values.contains(words[1])) return "$-1\r\n";
    const std::string value = lie_ ? lie_(words[1]) : values[words[1]];
    return "$" + std::to_string(value.size()) + "\r\n" + value + "\r\n";
  }

  std::mutex mutex_;
  Lie lie_;
  ScriptedServer server_;
};

TierItem item_of(int number, std::span<std::byte> data) {
  TierItem item{.data = data.data(), .bytes = static_cast<std::int64_t>(data.size())};
  item.key.bytes[24] = static_cast<std::byte>(number);
  return item;
}

TierResult ask(RedisTier& tier, TierOp op, const TierItem& item) {
  if (tier.submit(op, std::span(&item, 1), {now_us() + 60'000'000}) == 0) {
    return TierResult::kUnavailable;
  }
  std::array<TierDone, 1> done;
  while (tier.poll(now_us(), done) == 0) {
    pollfd descriptor{.fd = tier.event_fd(), .events = POLLIN, .revents = 0};
    ::poll(&descriptor, 1, 50);
  }
  return done[0].result;
}

std::vector<std::byte> data_of(int number, std::size_t size) {
  std::mt19937 random(static_cast<std::uint32_t>(number));
  std::vector<std::byte> data(size);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  return data;
}

// R1. Without an Offload above it: 62 wrong answers once.
TEST(HostileRedis, AServerThatLiesAboutValuesGetsNoWrongByteThroughTheTierAlone) {
  constexpr int kRecords = 8;
  for (const std::size_t size : {1u, 300u, 40'000u}) {
    LyingServer server;
    const auto tier = tier_of(server.address());
    ASSERT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
    for (int i = 0; i < kRecords; ++i) {
      std::vector<std::byte> data = data_of(i, size);
      ASSERT_EQ(ask(*tier, TierOp::kStore, item_of(i, data)), TierResult::kOk);
    }
    std::mt19937 random(7);
    const auto other = [&](const std::string& key) {
      auto place = server.values.find(key);
      if (++place == server.values.end()) place = server.values.begin();
      return place->second;
    };
    const LyingServer::Lie lies[] = {
        [&](const std::string& key) { return other(key); },
        [&](const std::string& key) {  // the header of the one, the data of another
          return server.values[key].substr(0, 192) + other(key).substr(192);
        },
        [&](const std::string& key) {
          std::string value = server.values[key];
          value[random() % value.size()] ^= static_cast<char>(1 << random() % 8);
          return value;
        },
        [&](const std::string& key) { return server.values[key].substr(0, 192 + size / 2); },
        [&](const std::string& key) { return server.values[key] + "x"; },
        [&](const std::string& key) { return server.values[key].substr(192); },
        [&](const std::string&) { return std::string(192 + size, '\0'); },
        [&](const std::string& key) {
          return std::string(192, '\0') + server.values[key].substr(192);
        },
        [&](const std::string&) { return std::string(); },
    };
    int lied = 0;
    for (const auto& lie : lies) {
      server.lie(lie);
      for (int i = 0; i < kRecords; ++i) {
        std::vector<std::byte> data(size);
        EXPECT_EQ(ask(*tier, TierOp::kLoad, item_of(i, data)), TierResult::kCorrupt)
            << "lie " << lied / kRecords << ", " << size << " bytes";
        ++lied;
      }
    }
    EXPECT_EQ(lied, 72);
    server.lie({});
    for (int i = 0; i < kRecords; ++i) {
      std::vector<std::byte> data(size);
      EXPECT_EQ(ask(*tier, TierOp::kLoad, item_of(i, data)), TierResult::kOk);
      EXPECT_EQ(data, data_of(i, size));
    }
  }
}

// A value is sent from where it lies, in many polls. When its item ends first, the memory is its
// owner's again, and what arrives is what was stored still.
TEST(HostileRedis, AStoreThatEndsWhileItIsSentReadsItsMemoryNoMore) {
  constexpr std::size_t kSize = std::size_t{4} << 20;
  LyingServer server;
  const auto tier = tier_of(server.address(), {.bytes_per_poll = 64 << 10});
  ASSERT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
  const std::uint64_t start = now_us();
  std::array<TierDone, 1> done;
  auto data = std::make_unique<std::vector<std::byte>>(data_of(1, kSize));
  const TierItem item = item_of(1, *data);
  ASSERT_EQ(tier->submit(TierOp::kStore, std::span(&item, 1), {start + 10}), 1u);
  // The store has a connection of its own, which is made first.
  while (tier->counters().bytes_sent < 100'000) EXPECT_EQ(tier->poll(start, done), 0u);
  ASSERT_EQ(tier->poll(start + 11, done), 1u);
  EXPECT_EQ(done[0].result, TierResult::kTimeout);
  std::fill(data->begin(), data->end(), std::byte{0xee});
  data.reset();
  std::vector<std::byte> loaded(kSize);
  const std::uint64_t end = now_us() + 10'000'000;
  while (tier->counters().bytes_sent < kSize + 192 && now_us() < end) tier->poll(start + 12, {});
  EXPECT_GT(tier->counters().bytes_sent, kSize);
  TierResult result = TierResult::kMiss;  // until the server has taken it in
  while (result == TierResult::kMiss && now_us() < end) {
    result = ask(*tier, TierOp::kLoad, item_of(1, loaded));
  }
  EXPECT_EQ(result, TierResult::kOk);
  EXPECT_EQ(loaded, data_of(1, kSize));
}

// A server that answers before it was asked, several times over.
TEST(HostileRedis, StoresThatAreAnsweredBeforeTheyAreSentReadTheirMemoryNoMore) {
  constexpr std::size_t kSize = std::size_t{16} << 20;
  std::map<std::string, std::string> values;  // of the server's thread
  const ScriptedServer server([&](const Words& words) -> std::string {
    if (words[0] == "SET") {
      values.try_emplace(words[1], words[2]);
      return values.size() == 1 ? "+OK\r\n+OK\r\n+OK\r\n" : "";
    }
    if (words[0] != "GET") return alone(words);
    const auto found = values.find(words[1]);
    if (found == values.end()) return "$-1\r\n";
    return "$" + std::to_string(found->second.size()) + "\r\n" + found->second + "\r\n";
  });
  const auto tier = tier_of(server.address(), {.record_bytes_max = std::int64_t{kSize},
                                               .bytes_in_flight_max = 64 << 20,
                                               .bytes_per_poll = 64 << 20});
  ASSERT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
  std::vector<std::vector<std::byte>> data{data_of(0, 100), data_of(1, kSize), data_of(2, kSize)};
  const std::array<TierItem, 3> items{item_of(0, data[0]), item_of(1, data[1]),
                                      item_of(2, data[2])};
  const std::uint64_t end = now_us() + 60'000'000;
  ASSERT_EQ(tier->submit(TierOp::kStore, items, {end}), 3u);
  std::array<TierDone, 3> done;
  std::size_t ended = 0;
  while (ended < 3 && now_us() < end) ended += tier->poll(now_us(), done);
  ASSERT_EQ(ended, 3u);
  ASSERT_LT(tier->counters().bytes_sent, 2 * kSize) << "they were sent before they were answered";
  for (std::vector<std::byte>& one : data) {
    std::fill(one.begin(), one.end(), std::byte{0xee});
    one = {};
  }
  while (tier->counters().bytes_sent < 2 * kSize && now_us() < end) tier->poll(now_us(), {});
  for (int i = 1; i < 3; ++i) {
    std::vector<std::byte> loaded(kSize);
    TierResult result = TierResult::kMiss;  // until the server has taken it in
    while (result == TierResult::kMiss && now_us() < end) {
      result = ask(*tier, TierOp::kLoad, item_of(i, loaded));
    }
    EXPECT_EQ(result, TierResult::kOk) << i;
    EXPECT_EQ(loaded, data_of(i, kSize)) << i;
  }
}

// ---- keys ----

std::vector<std::byte> secret(int number) {
  return std::vector<std::byte>(kRecordKeyBytes, std::byte(number));
}

std::unique_ptr<RedisTier> keyed_tier(const LyingServer& server, const RecordKeyOptions& keys) {
  auto tier = tier_of(server.address(), {.keys = keys});
  EXPECT_TRUE(tier->wait_until_ready(now_us(), 2'000'000).ok());
  return tier;
}

std::string text_of(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  std::memcpy(text.data(), bytes.data(), bytes.size());
  return text;
}

// A value as the tier makes it, with the keys of who makes it.
std::string value_of(const TierItem& item, const RecordKeyOptions& keys, std::uint64_t epoch = 0) {
  std::array<std::byte, kRecordHeaderBytes> header{};
  const RecordInfo info{.key = item.key, .payload_bytes = item.bytes, .epoch = epoch};
  const std::span<const std::byte> data(item.data, static_cast<std::size_t>(item.bytes));
  EXPECT_TRUE(seal_record(info, data, *RecordKeys::create(keys), header));
  return text_of(header) + text_of(data);
}

TEST(HostileRedis, WithAKeyWhoWritesToTheServerGetsNoByteOfHisOwnThrough) {
  const std::vector<std::byte> ours = secret(1), theirs = secret(2);
  LyingServer server;
  const auto tier = keyed_tier(server, {.key = ours});
  std::vector<std::byte> data = data_of(1, 30'000), other = data_of(2, 30'000);
  ASSERT_EQ(ask(*tier, TierOp::kStore, item_of(1, data)), TierResult::kOk);
  ASSERT_EQ(ask(*tier, TierOp::kStore, item_of(2, other)), TierResult::kOk);
  ASSERT_EQ(server.values.size(), 2u);
  const std::string key_of_1 = server.values.begin()->first;
  const std::string right = server.values.begin()->second;
  const std::string moved = std::next(server.values.begin())->second;
  std::string renamed = moved;  // with the name that is asked for, and all checksums right
  renamed.replace(8, 72, right.substr(8, 72));
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(renamed)).first(188));
  std::memcpy(renamed.data() + 188, &crc, 4);
  const TierItem forged = item_of(1, other);
  // What says that another key sealed it, or none, is taken for that: a miss, and it stays.
  for (const std::string& value : {value_of(forged, {}), value_of(forged, {.key = theirs})}) {
    server.lie([&](const std::string&) { return value; });
    std::vector<std::byte> loaded(data.size());
    EXPECT_EQ(ask(*tier, TierOp::kLoad, item_of(1, loaded)), TierResult::kMiss);
  }
  EXPECT_EQ(tier->counters().of_another_key, 2u);
  const std::string values[] = {
      value_of(forged, {.key = ours}, 1),  // replayed: sealed for another epoch
      moved,                               // another record
      renamed,                             // the same under our name
      right.substr(0, 192) + value_of(forged, {.key = theirs}).substr(192),
  };
  for (const std::string& value : values) {
    ASSERT_EQ(value.size(), right.size());
    server.lie([&](const std::string&) { return value; });
    std::vector<std::byte> loaded(data.size());
    EXPECT_EQ(ask(*tier, TierOp::kLoad, item_of(1, loaded)), TierResult::kCorrupt)
        << "value " << &value - values;
  }
  server.lie({});
  std::vector<std::byte> loaded(data.size());
  EXPECT_EQ(ask(*tier, TierOp::kLoad, item_of(1, loaded)), TierResult::kOk);
  EXPECT_EQ(loaded, data);
  // A reader without the key believes nothing of it, and one that is changing keys does.
  const auto none = keyed_tier(server, {});
  EXPECT_EQ(ask(*none, TierOp::kLoad, item_of(1, loaded)), TierResult::kMiss);
  const auto next = keyed_tier(server, {.key = theirs, .accepted_key = ours});
  EXPECT_EQ(ask(*next, TierOp::kLoad, item_of(1, loaded)), TierResult::kOk);
}

// O12.
TEST(HostileRedis, ARecordOfAnotherKeyOrOfNoneIsAMissAndStaysForItsOwner) {
  const std::vector<std::byte> one = secret(1), two = secret(2);
  const RecordKeyOptions none{}, first{.key = one}, second{.key = two};
  for (const auto& [writer, reader] :
       {std::pair(second, first), std::pair(none, first), std::pair(first, none)}) {
    LyingServer server;
    const auto owner = keyed_tier(server, writer), other = keyed_tier(server, reader);
    std::vector<std::byte> data = data_of(1, 30'000), loaded(data.size());
    ASSERT_EQ(ask(*owner, TierOp::kStore, item_of(1, data)), TierResult::kOk);
    EXPECT_EQ(ask(*other, TierOp::kLoad, item_of(1, loaded)), TierResult::kMiss);
    EXPECT_EQ(ask(*other, TierOp::kStore, item_of(1, loaded)), TierResult::kOk);  // SET has NX
    EXPECT_EQ(ask(*other, TierOp::kLoad, item_of(1, loaded)), TierResult::kMiss);
    EXPECT_EQ(other->counters().of_another_key, 2u);
    EXPECT_EQ(other->health().of_another_key, 2u);
    EXPECT_EQ(other->health().failures, 0u);
    EXPECT_THAT(other->describe(), HasSubstr("2 loads met a record of another key\n"));
    EXPECT_EQ(ask(*owner, TierOp::kLoad, item_of(1, loaded)), TierResult::kOk);
    EXPECT_EQ(loaded, data);
    EXPECT_EQ(owner->counters().of_another_key, 0u);
  }
}

TEST(HostileRedis, AKeyIsInNoMessage) {
  std::vector<std::byte> key = secret('k');
  LyingServer server;
  const auto tier = keyed_tier(server, {.key = key});
  EXPECT_THAT(tier->describe(), Not(HasSubstr("kkkk")));
  key.pop_back();
  const auto refused = RedisTier::create({.servers = "127.0.0.1:1", .keys = {.key = key}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "record keys: key has 31 bytes, allowed: 32");
}

}  // namespace
}  // namespace kvfolio
