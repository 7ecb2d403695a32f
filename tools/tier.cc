// SPDX-License-Identifier: Apache-2.0
#include "tier.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "console.h"
#include "exit_code.h"
#include "printable_text.h"

namespace kvfolio::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string plural(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string as_json(const TierOptions& options, const DiskCheck& check) {
  Json faults = Json::array();
  for (const DiskFault& fault : check.faults) {
    faults.push_back({{"file", fault.file}, {"offset", fault.offset}, {"what", fault.what}});
  }
  const Json json = {{"directory", printable_text(options.disk.directory)},
                     {"segments", check.segments},
                     {"segments_unsealed", check.unsealed},
                     {"records", check.records},
                     {"record_bytes", check.record_bytes},
                     {"damaged", check.damaged},
                     {"erased", check.erased},
                     {"faults", std::move(faults)}};
  return json.dump() + "\n";
}

std::string as_text(const TierOptions& options, const DiskCheck& check) {
  std::string text = printable_text(options.disk.directory) + ": " +
                     plural(check.segments, "segment") + ", " + plural(check.records, "record") +
                     " of " + std::to_string(check.record_bytes) + " bytes right, " +
                     std::to_string(check.damaged) + " damaged\n";
  if (check.unsealed > 0) {
    text += "  " + plural(check.unsealed, "segment") +
            " without a footer: the writer was killed; the next one closes them\n";
  }
  for (const DiskFault& fault : check.faults) {
    text += "  " + fault.file + " at " + std::to_string(fault.offset) + ": " + fault.what + "\n";
  }
  if (check.damaged > static_cast<std::int64_t>(check.faults.size())) text += "  ...\n";
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
  const Result<DiskCheck> check = check_disk_directory(
      {.directory = options.disk.directory, .erase = options.erase, .progress = progress});
  show_progress("");
  if (!check) return check.error();
  if (check->damaged > 0) note_failure();
  print(options.json ? as_json(options, *check) : as_text(options, *check));
  return check->damaged > 0 ? 1 : 0;
}

}  // namespace

void add_tier_verb(CLI::App& app, TierOptions& options) {
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  kvfolio tier check disk:cache\n"
      "  kvfolio tier check disk:cache --erase --json\n\n"
      "Exit codes: 0 every record is right; 1 one is damaged; 2 bad usage, another process uses\n"
      "the directory, or it is of a newer version.");
  CLI::App* check =
      app.add_subcommand("check", "Read every record and compare it with its checksum");
  check->footer(
      "Examples:\n"
      "  kvfolio tier check disk:cache\n"
      "  kvfolio tier check disk:cache --erase --json");
  check
      ->add_option_function<std::string>(
          "tier",
          [&options](const std::string& text) { options.disk = parse_disk("tier", text, false); },
          "Which: disk:DIR")
      ->required()
      ->type_name("disk:DIR");
  check->add_flag("--erase", options.erase, "Damaged records are not found any more");
  check->add_flag("--json", options.json, "One JSON object");
}

int tier(const TierOptions& options) { return exit_code("tier check", check_or_error(options)); }

}  // namespace kvfolio::tools
