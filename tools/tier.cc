// SPDX-License-Identifier: Apache-2.0
#include "tier.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "choice_option.h"
#include "console.h"
#include "exit_code.h"
#include "printable_text.h"
#if KVFOLIO_WITH_REDIS
#include "tier_redis.h"
#endif

namespace kvfolio::tools {
namespace {

using Json = nlohmann::ordered_json;

// A line, or nothing.
std::string line_of_another_key(std::int64_t count) {
  if (count == 0) return {};
  return "  " + plural(count, "record") +
         " NOT VERIFIED: sealed with a key that is not given, or with none: misses here; left "
         "alone; see KVFOLIO_RECORD_KEY\n";
}

std::string as_json(const TierOptions& options, const DiskCheck& check) {
  Json faults = Json::array();
  for (const DiskFault& fault : check.faults) {
    faults.push_back(
        {{"file", printable_text(fault.file)}, {"offset", fault.offset}, {"what", fault.what}});
  }
  const Json json = {{"directory", printable_text(options.disk.directory)},
                     {"segments", check.segments},
                     {"segments_unsealed", check.unsealed},
                     {"records", check.records},
                     {"record_bytes", check.record_bytes},
                     {"damaged", check.damaged},
                     {"of_another_key", check.of_another_key},
                     {"erased", check.erased},
                     {"unused", check.unused},
                     {"faults", std::move(faults)}};
  return json_text(json) + "\n";
}

std::string as_text(const TierOptions& options, const DiskCheck& check) {
  std::string text = printable_text(options.disk.directory) + ": " +
                     plural(check.segments, "segment") + ", " + plural(check.records, "record") +
                     " of " + std::to_string(check.record_bytes) + " bytes right, " +
                     std::to_string(check.damaged) + " damaged\n";
  if (check.unsealed > 0) {
    text += "  " + plural(check.unsealed, "segment") +
            " without a footer: the writer was killed, or their ends are missing\n";
  }
  text += line_of_another_key(check.of_another_key);
  if (check.unused > 0) {
    text += "  " + plural(check.unused, "file") +
            " that a tier would not use: not its own, and left alone\n";
  }
  for (const DiskFault& fault : check.faults) {
    text += "  " + printable_text(fault.file) + " at " + std::to_string(fault.offset) + ": " +
            fault.what + "\n";
  }
  if (check.damaged + check.unused > static_cast<std::int64_t>(check.faults.size()))
    text += "  ...\n";
  if (check.erased > 0) {
    text += "  " + plural(check.erased, "record") + " will not be found any more\n";
  } else if (check.damaged > 0) {
    text += "  a load of them is a miss; --erase leaves them out\n";
  }
  return text;
}

Result<int> check_or_error(const TierOptions& options) {
  std::int64_t shown = -1;
  const auto progress = [&shown](std::int64_t bytes_read, std::int64_t bytes) {
    const std::int64_t percent = bytes > 0 ? 100 * bytes_read / bytes : 100;
    if (percent != shown) show_progress("reading: " + std::to_string(percent) + " %");
    shown = percent;
    return true;
  };
  const Result<RecordSecrets> secrets = RecordSecrets::from_environment();
  if (!secrets) return secrets.error();
  const Result<DiskCheck> check = check_disk_directory({.directory = options.disk.directory,
                                                        .keys = secrets->options(),
                                                        .erase = options.erase,
                                                        .progress = progress});
  show_progress("");
  if (!check) return check.error();
  const bool failed = check->damaged > 0 || check->of_another_key > 0;
  if (failed) note_failure();
  print(options.json ? as_json(options, *check) : as_text(options, *check));
  return failed ? 1 : 0;
}

#if KVFOLIO_WITH_REDIS
std::string as_json(const TierOptions& options, const RedisCheck& check) {
  Json faults = Json::array();
  for (const RedisFault& fault : check.faults) {
    faults.push_back({{"key", printable_text(fault.key)}, {"what", fault.what}});
  }
  Json unread = Json::array();
  for (const RedisUnread& node : check.unread) {
    unread.push_back({{"node", printable_text(node.address)}, {"what", printable_text(node.what)}});
  }
  const Json json = {{"redis", printable_text(options.redis)},
                     {"nodes", check.nodes},
                     {"unread", std::move(unread)},
                     {"records", check.records},
                     {"record_bytes", check.bytes},
                     {"damaged", check.damaged},
                     {"of_another_key", check.of_another_key},
                     {"others", check.others},
                     {"erased", check.erased},
                     {"faults", std::move(faults)}};
  return json_text(json) + "\n";
}

std::string as_text(const TierOptions& options, const RedisCheck& check) {
  const auto unread = static_cast<std::int32_t>(check.unread.size());
  std::string text = printable_text(options.redis) + ": " +
                     (unread > 0 ? std::to_string(check.nodes - unread) + " of " : "") +
                     plural(check.nodes, "node") + ", " + plural(check.records, "record") + " of " +
                     std::to_string(check.bytes) + " bytes right, " +
                     std::to_string(check.damaged) + " damaged\n";
  for (const RedisUnread& node : check.unread) {
    text += "  NOT READ: " + printable_text(node.address) + ": " + printable_text(node.what) + "\n";
  }
  text += line_of_another_key(check.of_another_key);
  if (check.others > 0) {
    text += "  " + plural(check.others, "key") + " of another form: left alone\n";
  }
  for (const RedisFault& fault : check.faults) {
    text += "  " + printable_text(fault.key) + ": " + fault.what + "\n";
  }
  if (check.damaged > static_cast<std::int64_t>(check.faults.size())) text += "  ...\n";
  if (check.erased > 0) {
    text += "  " + plural(check.erased, "record") + " removed\n";
  } else if (check.damaged > 0) {
    text += "  a load of them is a miss and removes them; so does --erase\n";
  }
  return text;
}

Result<int> check_redis_or_error(const TierOptions& options) {
  const Result<RedisCheck> check = check_redis(
      options.redis, options.erase,
      [](std::int64_t records) { show_progress("reading: " + plural(records, "record")); });
  show_progress("");
  if (!check) return with_advice(check.error());
  const bool failed = check->damaged > 0 || check->of_another_key > 0 || !check->unread.empty();
  if (failed) note_failure();
  print(options.json ? as_json(options, *check) : as_text(options, *check));
  return failed ? 1 : 0;
}
#else
Result<int> check_redis_or_error(const TierOptions& /*options*/) {
  return Status(ErrorCode::kUnsupported, "this kvfolio was built without hiredis");
}
#endif

void take_option(const std::string& text, TierOptions& options) {
  if (text.starts_with("redis:")) {
    options.redis = parse_redis("tier", text);
  } else if (text.starts_with("disk:")) {
    options.disk = parse_disk("tier", text, false);
  } else {
    refuse("tier", without_secrets(text), "disk:DIR, redis:HOST:PORT[,HOST:PORT]");
  }
}

}  // namespace

void add_tier_verb(CLI::App& app, TierOptions& options) {
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  kvfolio tier check disk:cache\n"
      "  kvfolio tier check redis:127.0.0.1:7400 --erase --json\n\n"
      "Exit codes: 0 every record is right; 1 one is damaged or not verified, or a node of the "
      "cluster could not be\n"
      "read, and which; 2 bad usage, another process uses the directory, it is of a newer version, "
      "or\n"
      "no server answers.");
  CLI::App* check =
      app.add_subcommand("check", "Read every record and compare it with its checksum");
  check->footer(
      "Examples:\n"
      "  kvfolio tier check disk:cache\n"
      "  kvfolio tier check disk:cache --erase --json\n"
      "  kvfolio tier check redis:10.0.0.1:7001,10.0.0.2:7001\n\n"
      "With Redis, KVFOLIO_REDIS_USER and KVFOLIO_REDIS_PASSWORD say who asks, and "
      "KVFOLIO_REDIS_CA\n"
      "names a file of certificates: then all is said over TLS.\n"
      "KVFOLIO_RECORD_KEY, or a file named by KVFOLIO_RECORD_KEY_FILE, has the key that seals "
      "records.");
  check
      ->add_option_function<std::string>(
          "tier", [&options](const std::string& text) { take_option(text, options); },
          "Which: disk:DIR, or redis:HOST:PORT[,HOST:PORT], nodes of a cluster or one server")
      ->required()
      ->type_name("TIER");
  check->add_flag("--erase", options.erase, "Damaged records are not found any more");
  check->add_flag("--json", options.json, "One JSON object");
}

int tier(const TierOptions& options) {
  return exit_code("tier check",
                   options.redis.empty() ? check_or_error(options) : check_redis_or_error(options));
}

}  // namespace kvfolio::tools
