// SPDX-License-Identifier: Apache-2.0
#include "tier_option.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "choice_option.h"

namespace kvfolio::tools {
namespace {

constexpr const char* kAllowed =
    "host:SIZE, disk:DIR,SIZE, redis:HOST:PORT[,HOST:PORT], such as host:1GiB, disk:cache,4GiB; "
    "several tiers are several --tier";
constexpr const char* kWhoAsks =
    "KVFOLIO_REDIS_PASSWORD is the password, KVFOLIO_REDIS_USER the user of an ACL; docs/tiers.md "
    "has the rights that it needs";
constexpr std::uint64_t kReadyUs = 2'000'000;  // until one server answers
constexpr std::uint64_t kGreetUs = 500'000;    // and then, until each was tried
constexpr std::int64_t kArenaBytes = std::int64_t{256} << 20;
constexpr std::int64_t kBytesInFlight = std::int64_t{4} << 30;
// All that a value of Redis may be, without the header of a record.
constexpr std::int64_t kRecordBytesMax = (std::int64_t{512} << 20) - kRecordHeaderBytes;

std::uint64_t steady_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

[[noreturn]] void refuse_second(const std::string& text, const std::string& kind) {
  refuse("--tier", text, "one " + kind + ": there is one in this command already");
}

// A list of tiers in one --tier: "disk:a,1GiB,disk:b,1GiB" would be a directory of a strange name.
bool is_list(const std::string& text) {
  const auto has = [&](const char* kind) { return text.find(kind) != std::string::npos; };
  return has(",host:") || has(",disk:") || has(",redis:");
}

void take_choice(const std::string& text, TierChoice& choice) {
  if (is_list(text)) refuse("--tier", without_secrets(text), kAllowed);
  if (text.starts_with("host:")) {
    if (choice.host_bytes > 0) refuse_second(text, "host:SIZE");
    if (choice.disk || !choice.redis.empty()) {
      refuse("--tier", text, "host:SIZE before the others: the cheapest first");
    }
    choice.host_bytes = parse_size("--tier host:", text.substr(5));
  } else if (text.starts_with("disk:")) {
    if (choice.disk) refuse_second(text, "disk:DIR,SIZE");
    if (!choice.redis.empty()) refuse("--tier", text, "disk:DIR,SIZE before redis:HOST:PORT");
    choice.disk = parse_disk("--tier", text, true);
  } else if (text.starts_with("redis:")) {
    if (!choice.redis.empty()) {
      refuse_second(without_secrets(text), "redis:HOST:PORT[,HOST:PORT]");
    }
    choice.redis = parse_redis("--tier", text);
  } else {
    refuse("--tier", without_secrets(text), kAllowed);
  }
}

// Empty text: not a key.
std::vector<std::byte> bytes_of_hex(std::string_view text) {
  std::vector<std::byte> bytes;
  if (text.size() != 2 * kRecordKeyBytes) return bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (error != std::errc() || end != text.data() + i + 2) return {};
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

// Says which variable is wrong, and nothing of what it has.
Result<std::vector<std::byte>> read_secret(const std::string& name) {
  const auto bad = [](const std::string& what) {
    return Status(ErrorCode::kInvalidArgument,
                  what + ", allowed: " + std::to_string(2 * kRecordKeyBytes) +
                      " hexadecimal digits, such as `openssl rand -hex 32` writes");
  };
  const std::string file_name = name + "_FILE";
  const std::string text = environment(name.c_str());
  const std::string path = environment(file_name.c_str());
  // What a script got from a file that is not there must not turn the key off.
  for (const std::string& variable : {name, file_name}) {
    const char* const value = std::getenv(variable.c_str());
    if (value != nullptr && *value == '\0') return bad(variable + " is empty: unset it, or set it");
  }
  if (text.empty() && path.empty()) return std::vector<std::byte>();
  if (!text.empty() && !path.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  name + " and " + name + "_FILE are both set: set one");
  }
  std::string from_file;
  if (!path.empty()) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      return Status(ErrorCode::kUnavailable, name + "_FILE: " + path + ": " + std::strerror(errno));
    }
    from_file.resize(4 * kRecordKeyBytes);
    file.read(from_file.data(), std::ssize(from_file));
    from_file.resize(static_cast<std::size_t>(file.gcount()));
    from_file.erase(from_file.find_last_not_of(" \r\n") + 1);
  }
  std::vector<std::byte> bytes = bytes_of_hex(path.empty() ? text : from_file);
  if (!bytes.empty()) return bytes;
  return bad(path.empty() ? name + " is no key" : name + "_FILE: " + path + " has no key");
}

}  // namespace

Result<RecordSecrets> RecordSecrets::from_environment() {
  RecordSecrets secrets;
  Result<std::vector<std::byte>> key = read_secret("KVFOLIO_RECORD_KEY");
  if (!key) return key.error();
  Result<std::vector<std::byte>> accepted = read_secret("KVFOLIO_ACCEPTED_RECORD_KEY");
  if (!accepted) return accepted.error();
  secrets.key_ = *std::move(key);
  secrets.accepted_ = *std::move(accepted);
  if (secrets.key_.empty() && !secrets.accepted_.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  "KVFOLIO_ACCEPTED_RECORD_KEY is set and KVFOLIO_RECORD_KEY is not: set both, or "
                  "the second alone");
  }
  // What is wrong with them together is said before anything is opened.
  if (const Result<RecordKeys> keys = RecordKeys::create(secrets.options()); !keys) {
    return keys.error();
  }
  return secrets;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::int64_t TierChoice::arena_bytes() const {
  return host_bytes > 0 ? host_bytes : (any() ? kArenaBytes : 0);
}

std::int64_t parse_size(const std::string& option, const std::string& text) {
  static const std::vector<std::pair<std::string, int>> kUnits = {
      {"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  const char* const allowed = "a size such as 24GiB, 512MiB or 64KiB, below 8388608TiB";
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
    choice.bytes = parse_size(option + " disk", choice.directory.substr(comma + 1));
    choice.directory.resize(comma);
  }
  if (choice.directory.empty()) refuse(option, text, allowed);
  return choice;
}

std::string without_secrets(const std::string& text) {
  const std::size_t at = text.rfind('@');
  if (at == std::string::npos || text.find(':') > at) return text;
  const std::string kind = text.starts_with("redis:") ? "redis:" : "";
  return kind + "..." + text.substr(at);
}

std::string parse_redis(const std::string& option, const std::string& text) {
  constexpr std::string_view kRedis = "redis:";
  const std::string allowed = "redis:HOST:PORT[,HOST:PORT]";
  const std::string shown = without_secrets(text);
  if (shown != text || text.starts_with("redis://")) {
    refuse(option, shown, allowed + " without a name or a password: " + kWhoAsks);
  }
  std::string servers = text.substr(kRedis.size());
  std::set<std::string> seen;
  for (std::size_t begin = 0; begin <= servers.size();) {
    const std::size_t end = std::min(servers.find(',', begin), servers.size());
    const std::string one = servers.substr(begin, end - begin);
    if (one.empty()) refuse(option, text, allowed);
    if (!seen.insert(one).second) refuse(option, text, "each server once: " + one + " is twice");
    begin = end + 1;
  }
  return servers;
}

void add_tier_option(CLI::App& app, TierChoice& choice, const std::string& help) {
  app.add_option_function<std::vector<std::string>>(
         "--tier",
         [&choice](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) take_choice(text, choice);
         },
         help)
      ->type_name("TIER")
      ->allow_extra_args(false);
}

// A command that waits for its disk drops nothing.
Result<std::unique_ptr<DiskTier>> open_disk(const DiskChoice& choice) {
  const Result<RecordSecrets> secrets = RecordSecrets::from_environment();
  if (!secrets) return secrets.error();
  return DiskTier::open({.directory = choice.directory,
                         .bytes = choice.bytes,
                         .queued_bytes_max = 4ll << 30,
                         .keys = secrets->options()});
}

Result<std::unique_ptr<RedisTier>> open_redis(const std::string& servers) {
  const std::string user = environment("KVFOLIO_REDIS_USER");
  const std::string password = environment("KVFOLIO_REDIS_PASSWORD");
  const std::string ca = environment("KVFOLIO_REDIS_CA");
  const Result<RecordSecrets> secrets = RecordSecrets::from_environment();
  if (!secrets) return secrets.error();
  Result<std::unique_ptr<RedisTier>> redis =
      RedisTier::create({.servers = servers,
                         .user = user,
                         .password = password,
                         .tls = {.enabled = !ca.empty(), .ca_file = ca},
                         .record_bytes_max = kRecordBytesMax,
                         .items_max = 1 << 20,
                         .keys = secrets->options()});
  if (!redis) return redis;
  if (Status status = (*redis)->wait_until_ready(steady_us(), kReadyUs); !status.ok()) {
    return with_advice(status);
  }
  // A server that does not answer is named at once, not when a prompt needs what it has.
  const auto is_tried = [](const RedisNode& node) { return node.connected || !node.error.empty(); };
  for (const std::uint64_t end_us = steady_us() + kGreetUs; steady_us() < end_us;) {
    const std::vector<RedisNode> nodes = (*redis)->nodes();
    if (std::all_of(nodes.begin(), nodes.end(), is_tried)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    static_cast<void>((*redis)->poll(steady_us(), {}));
  }
  return redis;
}

Status with_advice(const Status& error) {
  const std::string text(error.message());
  for (const char* const word : {"NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "invalid password"}) {
    if (text.find(word) == std::string::npos) continue;
    return {error.code(), text + (text.find('\n') == std::string::npos ? "; " : "\n") + kWhoAsks};
  }
  return error;
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
    const std::vector<RedisNode> nodes = redis->nodes();
    const auto ready = std::count_if(nodes.begin(), nodes.end(),
                                     [](const RedisNode& node) { return node.connected; });
    const auto count = std::ssize(nodes);
    const std::string why = trouble("redis");
    lines.push_back("redis: ready, " + (ready < count ? std::to_string(ready) + " of " : "") +
                    std::to_string(count) + (count == 1 ? " node" : " nodes") +
                    (why.empty() ? "" : "; " + why));
  }
  return lines;
}

std::string OpenTiers::trouble(std::string_view name) const {
  std::string text;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (name == "disk" && disk != nullptr) {
    const DiskTierStats stats = disk->stats();
    if (!disk->health().usable) add("off after errors");
    if (stats.io_errors > 0) add("errors of the medium: " + std::to_string(stats.io_errors));
    if (stats.no_space > 0) add("no space left: " + std::to_string(stats.no_space) + " times");
  }
  if (name == "redis" && redis != nullptr) {
    for (const RedisNode& node : redis->nodes()) {
      if (!node.error.empty()) add(node.address + ": " + node.error);
    }
  }
  return text;
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
