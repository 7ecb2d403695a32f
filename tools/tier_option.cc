// SPDX-License-Identifier: Apache-2.0
#include "tier_option.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "choice_option.h"

namespace kvfolio::tools {
namespace {

constexpr const char* kAllowed = "host:SIZE, disk:DIR,SIZE, such as host:1GiB, disk:cache,4GiB";
constexpr std::int64_t kArenaBytes = std::int64_t{256} << 20;

void take(const std::string& text, TierChoice& choice) {
  if (text.starts_with("host:")) {
    if (choice.host_bytes > 0) refuse("--tier", text, "one host:SIZE");
    if (choice.disk) refuse("--tier", text, "host:SIZE before disk:DIR,SIZE: the cheapest first");
    choice.host_bytes = parse_size("--tier host:", text.substr(5));
  } else if (text.starts_with("disk:")) {
    if (choice.disk) refuse("--tier", text, "one disk:DIR,SIZE");
    choice.disk = parse_disk("--tier", text, true);
  } else {
    refuse("--tier", text, kAllowed);
  }
}

}  // namespace

std::int64_t TierChoice::arena_bytes() const {
  return host_bytes > 0 ? host_bytes : (disk ? kArenaBytes : 0);
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

}  // namespace kvfolio::tools
