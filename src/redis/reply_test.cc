// SPDX-License-Identifier: Apache-2.0
#include "redis/reply.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "redis/slot_map.h"
#include "redis/socket.h"

namespace kvfolio::redis {
namespace {

using Next = ReplyReader::Next;

std::span<const char> text(std::string_view words) { return {words.data(), words.size()}; }

TEST(RedisReply, AValueOfTheSizeAskedForGoesStraightToItsTarget) {
  ReplyReader reader;
  std::array<std::byte, 5> target{};
  const Reply* reply = nullptr;
  ASSERT_TRUE(reader.feed(text("$5\r\nhel")));
  EXPECT_EQ(reader.next(target, reply), Next::kMore);
  EXPECT_EQ(target[0], std::byte{0}) << "nothing is written before all of it is there";
  ASSERT_TRUE(reader.feed(text("lo\r\n$4\r\nhell\r\n$6\r\nhello!\r\n$-1\r\n")));
  ASSERT_EQ(reader.next(target, reply), Next::kReply);
  EXPECT_TRUE(reply->delivered);
  EXPECT_EQ(target[4], std::byte{'o'});
  target.fill(std::byte{1});
  for (int other = 0; other < 2; ++other) {
    ASSERT_EQ(reader.next(target, reply), Next::kReply);
    EXPECT_FALSE(reply->delivered);
    EXPECT_EQ(target[0], std::byte{1});
  }
  ASSERT_EQ(reader.next(target, reply), Next::kReply);
  EXPECT_EQ(reply->kind, Reply::Kind::kNil);
}

TEST(RedisReply, AValueIsDeliveredInTwoPartsOrNotAtAll) {
  ReplyReader reader;
  std::array<std::byte, 3> target{};
  const Reply* reply = nullptr;
  ASSERT_TRUE(reader.feed(text("$5\r\nhello\r\n$3\r\nhel\r\n$6\r\nhello!\r\n")));
  ASSERT_EQ(reader.next(target, reply, 1, 2), Next::kReply);
  EXPECT_TRUE(reply->delivered);
  EXPECT_EQ(reply->text, "he");
  EXPECT_EQ(target[0], std::byte{'l'});
  EXPECT_EQ(target[2], std::byte{'o'});
  for (int other = 0; other < 2; ++other) {
    ASSERT_EQ(reader.next(target, reply, 1, 2), Next::kReply);
    EXPECT_FALSE(reply->delivered);
  }
}

std::string wire_of(const Command& command) {
  std::string all;
  while (all.size() < command.size()) {
    const std::span<const char> rest = command.rest(all.size());
    all.append(rest.data(), rest.size());
  }
  return all;
}

TEST(RedisCommand, WordsAndValuesHaveTheirLengthsInFront) {
  const std::array<std::string_view, 2> words{"GET", "a b"};
  EXPECT_EQ(wire_of(Command(words)), "*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
  const std::array<std::byte, 2> header{std::byte{'h'}, std::byte{'i'}};
  const std::array<std::string_view, 1> more{"NX"};
  for (const std::size_t size : {0u, 1u, 16'384u, 16'385u, 100'000u}) {
    std::vector<std::byte> data(size, std::byte{'x'});
    Command command = Command::set("k", header, data, more);
    const std::string expected = "*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$" + std::to_string(size + 2) +
                                 "\r\nhi" + std::string(size, 'x') + "\r\n$2\r\nNX\r\n";
    EXPECT_EQ(wire_of(command), expected) << size;
    command.keep();
    std::fill(data.begin(), data.end(), std::byte{'y'});
    EXPECT_EQ(wire_of(command), expected) << size;
    const Command moved = std::move(command);
    EXPECT_EQ(wire_of(moved), expected) << size;
  }
}

TEST(RedisReply, WhatIsNoReplyBreaksTheStream) {
  for (const char* garbage : {"HTTP/1.1 200 OK\r\n", "$abc\r\n", "*1\r\n$-7\r\n", ":12x\r\n",
                              "*99999999999999999999\r\n"}) {
    ReplyReader reader;
    const Reply* reply = nullptr;
    static_cast<void>(reader.feed(text(garbage)));
    EXPECT_EQ(reader.next({}, reply), Next::kBroken) << garbage;
  }
}

TEST(RedisReply, AnEndlessListIsCutOff) {
  ReplyReader reader;
  const Reply* reply = nullptr;
  ASSERT_TRUE(reader.feed(text("*1000000000\r\n")));
  std::string numbers;
  for (int i = 0; i < 1000; ++i) numbers += ":1\r\n";
  Next next = Next::kMore;
  for (int i = 0; i < 1000 && next == Next::kMore; ++i) {
    if (!reader.feed(text(numbers))) break;
    next = reader.next({}, reply, Reply::kNodesMax);
  }
  EXPECT_EQ(next, Next::kBroken);
}

TEST(RedisReply, OnlyAMapHasSeveralParts) {
  for (const std::size_t nodes_max : {std::size_t{1}, Reply::kNodesMax}) {
    ReplyReader reader;
    const Reply* reply = nullptr;
    std::array<std::byte, 2> target{};
    ASSERT_TRUE(reader.feed(text("*2\r\n$2\r\nab\r\n:1\r\n")));
    const Next next = reader.next(target, reply, nodes_max);
    EXPECT_EQ(next, nodes_max == 1 ? Next::kBroken : Next::kReply);
    EXPECT_EQ(target[0], std::byte{0});
  }
  ReplyReader reader;
  const Reply* reply = nullptr;
  ASSERT_TRUE(reader.feed(text("*0\r\n*-1\r\n")));
  EXPECT_EQ(reader.next({}, reply), Next::kReply);
  EXPECT_EQ(reader.next({}, reply), Next::kReply);
}

TEST(RedisReply, AnEndlessLineIsCutOff) {
  for (const std::string begin :
       {"+", "-ERR ", ":1", "$1", "*1\r\n+", "*3\r\n:1\r\n$4\r\nabcd\r\n-"}) {
    ReplyReader reader;
    const Reply* reply = nullptr;
    std::array<std::byte, 1000> target{};
    ASSERT_TRUE(reader.feed(text(begin)));
    const std::string more(10'000, '1');
    Next next = Next::kMore;
    for (int i = 0; i < 10 && next == Next::kMore; ++i) {
      if (!reader.feed(text(more))) break;
      next = reader.next(target, reply, Reply::kNodesMax);
    }
    EXPECT_EQ(next, Next::kBroken) << begin;
  }
  // One whose end is there is none.
  ReplyReader reader;
  const Reply* reply = nullptr;
  ASSERT_TRUE(reader.feed(text("*2\r\n:1\r\n$10000000\r\n" + std::string(1 << 20, 'x'))));
  EXPECT_EQ(reader.next({}, reply, Reply::kNodesMax), Next::kMore);
}

TEST(RedisReply, TextsAreKeptInPart) {
  ReplyReader reader;
  const Reply* reply = nullptr;
  ASSERT_TRUE(reader.feed(text("-ERR " + std::string(10'000, 'x') + "\r\n")));
  ASSERT_EQ(reader.next({}, reply), Next::kReply);
  EXPECT_EQ(reply->kind, Reply::Kind::kError);
  EXPECT_EQ(reply->text.size(), Reply::kTextMax);
}

TEST(RedisSlots, KeysHashAsTheClusterSpecificationSays) {
  EXPECT_EQ(crc16("123456789"), 0x31C3);
  EXPECT_EQ(slot_of("123456789"), 0x31C3 % kNumSlots);
}

TEST(RedisSlots, AddressesAreRead) {
  std::string host;
  std::uint16_t port = 0;
  ASSERT_TRUE(split_address("10.0.0.1:7001", host, port));
  EXPECT_EQ(host, "10.0.0.1");
  EXPECT_EQ(port, 7001);
  ASSERT_TRUE(split_address("[::1]:7001", host, port));
  EXPECT_EQ(host, "::1");
  ASSERT_TRUE(split_address("fe80::1:7001", host, port)) << "as CLUSTER SLOTS writes it";
  EXPECT_EQ(host, "fe80::1");
  ASSERT_TRUE(split_address(":7001", host, port));
  EXPECT_EQ(host, "");
  for (const char* wrong :
       {"", "host", "host:", "host:0", "host:65536", "host:-1", "host:70x", "[::1:7001"}) {
    EXPECT_FALSE(split_address(wrong, host, port)) << wrong;
  }
}

std::vector<SlotRange> slots_of(std::string_view wire) {
  ReplyReader reader;
  const Reply* reply = nullptr;
  if (!reader.feed(text(wire)) || reader.next({}, reply, Reply::kNodesMax) != Next::kReply) {
    return {};
  }
  return read_slots(*reply);
}

TEST(RedisSlots, RangesAreRead) {
  const auto ranges = slots_of(
      "*2\r\n*3\r\n:0\r\n:99\r\n*4\r\n$9\r\n127.0.0.1\r\n:7001\r\n$1\r\nx\r\n*0\r\n"
      "*4\r\n:100\r\n:16383\r\n*2\r\n$0\r\n\r\n:7002\r\n*2\r\n$1\r\nr\r\n:7003\r\n");
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].last, 99);
  EXPECT_EQ(ranges[0].host, "127.0.0.1");
  EXPECT_EQ(ranges[1].first, 100);
  EXPECT_EQ(ranges[1].host, "") << "of the node that was asked";
  EXPECT_EQ(ranges[1].port, 7002);
}

TEST(RedisSlots, RangesThatMakeNoSenseAreLeftOut) {
  const auto one = [](const std::string& first, const std::string& last, const std::string& node) {
    return slots_of("*1\r\n*3\r\n" + first + last + node).size();
  };
  const std::string node = "*2\r\n$1\r\nh\r\n:1\r\n";
  EXPECT_EQ(one(":0\r\n", ":1\r\n", node), 1u);
  EXPECT_EQ(one(":0\r\n", ":16384\r\n", node), 0u);
  EXPECT_EQ(one(":-1\r\n", ":5\r\n", node), 0u);
  EXPECT_EQ(one(":6\r\n", ":5\r\n", node), 0u);
  EXPECT_EQ(one("$1\r\n0\r\n", ":5\r\n", node), 0u);
  EXPECT_EQ(one(":0\r\n", ":1\r\n", ":7\r\n"), 0u);
  EXPECT_EQ(one(":0\r\n", ":1\r\n", "*2\r\n$1\r\n?\r\n:1\r\n"), 0u);
  EXPECT_EQ(one(":0\r\n", ":1\r\n", "*2\r\n$1\r\nh\r\n:70000\r\n"), 0u);
  EXPECT_EQ(slots_of(":7\r\n").size(), 0u);
}

TEST(RedisAddress, WhoMayHaveItIsKnown) {
  const auto scope = [](const char* host) { return scope_of(resolve(host, 1, true).at(0)); };
  for (const char* host : {"127.0.0.1", "127.1", "127.255.0.9", "0", "0.0.0.0", "::1",
                           "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0"}) {
    EXPECT_EQ(scope(host), Scope::kMachine) << host;
  }
  for (const char* host : {"169.254.169.254", "::ffff:169.254.0.1", "fe80::1"}) {
    EXPECT_EQ(scope(host), Scope::kLink) << host;
  }
  for (const char* host : {"10.0.0.1", "192.168.1.1", "1.2.3.4", "126.255.255.255", "128.0.0.1",
                           "169.253.0.1", "2001:db8::1", "fd00::1", "::ffff:10.0.0.1"}) {
    EXPECT_EQ(scope(host), Scope::kAny) << host;
  }
}

}  // namespace
}  // namespace kvfolio::redis
