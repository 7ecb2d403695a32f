// SPDX-License-Identifier: Apache-2.0
#include "tier_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "choice_option.h"

namespace kvfolio::tools {
namespace {

constexpr const char* kAllowed =
    "host:SIZE, disk:DIR,SIZE, redis:HOST:PORT[,HOST:PORT], such as host:1GiB, disk:cache,4GiB";
constexpr std::int64_t kArenaBytes = std::int64_t{256} << 20;
constexpr std::int64_t kBytesInFlight = std::int64_t{4} << 30;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void take(const std::string& text, TierChoice& choice) {
  if (text.starts_with("host:")) {
    if (choice.host_bytes > 0) refuse("--tier", text, "one host:SIZE");
    if (choice.disk || !choice.redis.empty()) {
      refuse("--tier", text, "host:SIZE before the others: the cheapest first");
    }
    choice.host_bytes = parse_size("--tier host:", text.substr(5));
  } else if (text.starts_with("disk:")) {
    if (choice.disk) refuse("--tier", text, "one disk:DIR,SIZE");
    if (!choice.redis.empty()) refuse("--tier", text, "disk:DIR,SIZE before redis:HOST:PORT");
    choice.disk = parse_disk("--tier", text, true);
  } else if (text.starts_with("redis:")) {
    if (!choice.redis.empty()) refuse("--tier", text, "one redis:HOST:PORT[,HOST:PORT]");
    choice.redis = text.substr(6);
    if (choice.redis.empty()) refuse("--tier", text, "redis:HOST:PORT[,HOST:PORT]");
  } else {
    refuse("--tier", text, kAllowed);
  }
}

}  // namespace

std::int64_t TierChoice::arena_bytes() const {
  return host_bytes > 0 ? host_bytes : (any() ? kArenaBytes : 0);
}

std::int64_t parse_size(const std::string& option, const std::string& text) {
  static const std::vector<std::pair<std::string, int>> kUnits = {
      {"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  const char* const allowed = "a size such as 24GiB, 512MiB, 64KiB or 4096, below 8192PiB";
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || number <= 0) refuse(option, text, allowed);
  const std::string unit(stop, end);
  for (const auto& [name, shift] : kUnits) {
    if (name != unit) continue;
    if (number > (std::numeric_limits<std::int64_t>::max() >> shift)) break;
    return number << shift;
  }
  refuse(option, text, allowed);
}

// The size is behind the last comma, so a directory may have commas in its name.
DiskChoice parse_disk(const std::string& option, const std::string& text, bool with_size) {
  constexpr std::string_view kDisk = "disk:";
  const char* const allowed = with_size ? "disk:DIR,SIZE, such as disk:cache,4GiB" : "disk:DIR";
  if (!text.starts_with(kDisk)) refuse(option, text, allowed);
  DiskChoice choice{.directory = text.substr(kDisk.size())};
  if (with_size) {
    const std::size_t comma = choice.directory.rfind(',');
    if (comma == std::string::npos) refuse(option, text, allowed);
    choice.bytes = parse_size(option + " disk:", choice.directory.substr(comma + 1));
    choice.directory.resize(comma);
  }
  if (choice.directory.empty()) refuse(option, text, allowed);
  return choice;
}

void add_tier_option(CLI::App& app, TierChoice& choice, const std::string& help) {
  app.add_option_function<std::vector<std::string>>(
         "--tier",
         [&choice](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) take(text, choice);
         },
         help)
      ->type_name("TIER")
      ->allow_extra_args(false);
}

// A command that waits for its disk drops nothing.
Result<std::unique_ptr<DiskTier>> open_disk(const DiskChoice& choice) {
  return DiskTier::open(
      {.directory = choice.directory, .bytes = choice.bytes, .queued_bytes_max = 4ll << 30});
}

Result<std::unique_ptr<RedisTier>> open_redis(const std::string& servers) {
  const std::string user = environment("KVFOLIO_REDIS_USER");
  const std::string password = environment("KVFOLIO_REDIS_PASSWORD");
  const std::string ca = environment("KVFOLIO_REDIS_CA");
  Result<std::unique_ptr<RedisTier>> redis =
      RedisTier::create({.servers = servers,
                         .user = user,
                         .password = password,
                         .tls = {.enabled = !ca.empty(), .ca_file = ca},
                         .items_max = 1 << 20});
  if (!redis) return redis;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const auto now_us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  if (Status status = (*redis)->wait_until_ready(static_cast<std::uint64_t>(now_us), 2'000'000);
      !status.ok()) {
    return status;
  }
  return redis;
}

std::vector<OffloadTier> OpenTiers::below() const {
  std::vector<OffloadTier> tiers;
  for (Tier* tier : {static_cast<Tier*>(disk.get()), static_cast<Tier*>(redis.get())}) {
    if (tier == nullptr) continue;
    tiers.push_back(
        {.tier = tier, .store_bytes_max = kBytesInFlight, .load_bytes_max = kBytesInFlight});
  }
  return tiers;
}

std::vector<std::string> OpenTiers::describe() const {
  std::vector<std::string> lines;
  if (disk != nullptr) lines.push_back(disk->describe());
  if (redis != nullptr) {
    const std::string nodes = redis->describe();
    const auto count = std::count(nodes.begin(), nodes.end(), '\n');
    lines.push_back("redis: ready, " + std::to_string(count) + (count == 1 ? " node" : " nodes"));
  }
  return lines;
}

Result<OpenTiers> open_tiers(const TierChoice& choice) {
  OpenTiers tiers;
  if (choice.disk) {
    Result<std::unique_ptr<DiskTier>> disk = open_disk(*choice.disk);
    if (!disk) return std::move(disk).error();
    tiers.disk = *std::move(disk);
  }
  if (!choice.redis.empty()) {
    Result<std::unique_ptr<RedisTier>> redis = open_redis(choice.redis);
    if (!redis) return std::move(redis).error();
    tiers.redis = *std::move(redis);
  }
  return tiers;
}

}  // namespace kvfolio::tools
