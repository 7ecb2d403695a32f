// SPDX-License-Identifier: Apache-2.0
#include "inspect.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>

#include "choice_option.h"
#include "console.h"
#include "exit_code.h"
#include "generate_input.h"
#include "kvfolio/byte_stream.h"
#include "kvfolio/op_replay.h"
#include "kvfolio/snapshot_list.h"
#include "printable_text.h"
#include "tier_option.h"

namespace kvfolio::tools {
namespace {

std::string hex(std::uint64_t number) {
  std::array<char, 20> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte each : bytes) {
    std::array<char, 4> two{};
    std::snprintf(two.data(), two.size(), "%02x", std::to_integer<unsigned>(each));
    text += two.data();
  }
  return text;
}

// The program may have died, which is no fault of the log.
std::string how_it_ends(const OpLogEnd& end) {
  std::string text = std::to_string(end.num_calls) + " calls";
  if (!end.ended) {
    text += "; the log was not ended: the program went on, or died";
    if (end.bytes_cut == 0) return text;
    return text + "; its last " + std::to_string(end.bytes_cut) + " bytes are half a piece";
  }
  if (end.state_hash) {
    text += ", state hash " + hex(*end.state_hash);
    if (!end.hash_is_ours) text += " of another version";
  }
  return text + "\n";
}

// ---- operation logs ----

class Log {
 public:
  Log(const InspectOptions& options, ByteSource& source) : options_(options), source_(source) {}

  Result<int> run() {
    if (options_.replay || options_.state_hash) return replay();
    return list();
  }

 private:
  Result<int> list() {
    Result<OpLogReader> reader = OpLogReader::open(source_);
    if (!reader) return prefixed(options_.path, reader.error());
    const OpLogHeader& header = reader->header();
    print("operation log, format " + std::to_string(header.format) + ", of kvfolio " +
          printable_text(header.library) + "\n" + std::to_string(header.spec.groups.size()) +
          (header.spec.groups.size() == 1 ? " group" : " groups") +
          (header.has_storage ? ", with storage\n" : ", ids only\n"));
    std::map<std::string, std::int64_t> counts;
    Result<std::optional<LoggedCall>> call = reader->next();
    for (; call && *call; call = reader->next()) {
      const LoggedCall& at = **call;
      ++counts[at.name];
      if (!options_.dump) continue;
      print(std::to_string(at.number) + " " + at.name + "(" + at.arguments +
            ") = " + (at.answer.empty() ? "the log ends here" : at.answer) + "\n");
    }
    if (options_.index) {
      for (const auto& [name, count] : counts) print(name + " " + std::to_string(count) + "\n");
    }
    if (call) {
      print(with_newline(how_it_ends(reader->end())));
      return 0;
    }
    print(std::to_string(reader->end().num_calls) + " calls before the damage\n");
    report("kvfolio inspect: " + options_.path + ": " + call.error().message());
    return 1;
  }

  Result<int> replay() {
    Result<Replay> replayed = replay_log(source_);
    if (!replayed) return prefixed(options_.path, replayed.error());
    const Replay& replay = *replayed;
    if (replay.difference) return tell(*replay.difference);
    if (!replay.broken.ok()) {
      report("kvfolio inspect: " + options_.path + ": " + replay.broken.message());
      return 1;
    }
    if (replay.unanswered) {
      print("call " + std::to_string(replay.unanswered->number) + ", " + replay.unanswered->name +
            "(" + replay.unanswered->arguments +
            "), has no answer in the log; now: " + replay.unanswered->answer + "\n");
    }
    const Result<std::uint64_t> hash = replay.manager.state_hash();
    if (options_.replay) {
      print("replayed: all answers alike, " + with_newline(how_it_ends(replay.log)));
    }
    if (hash && replay.log.hash_is_ours && replay.log.state_hash &&
        *hash != *replay.log.state_hash) {
      report("kvfolio inspect: " + options_.path +
             ": every answer is alike, but the state at the "
             "end has hash " +
             hex(*hash) + ", recorded " + hex(*replay.log.state_hash));
      return 1;
    }
    if (!options_.state_hash) return 0;
    if (!hash) return prefixed(options_.path, hash.error());
    print(hex(*hash) + "\n");
    return 0;
  }

  int tell(const ReplayDifference& difference) {
    print("call " + std::to_string(difference.call) + ", " + difference.name + "(" +
          difference.arguments + "), answers otherwise\n  recorded: " + difference.recorded +
          "\n  now:      " + difference.replayed + "\n");
    return 1;
  }

  static std::string with_newline(std::string text) {
    if (text.empty() || text.back() != '\n') text += '\n';
    return text;
  }

  const InspectOptions& options_;
  ByteSource& source_;
};

// ---- snapshots ----

Result<int> inspect_snapshot(const InspectOptions& options, ByteSource& source) {
  if (options.replay) {
    return Status(ErrorCode::kInvalidArgument,
                  options.path +
                      " is a snapshot, allowed: --index, --dump and --state-hash; --replay is for "
                      "operation logs");
  }
  std::map<std::string, std::int64_t> counts;
  const Result<RecordSecrets> secrets = RecordSecrets::from_environment();
  if (!secrets) return secrets.error();
  const auto visit = [&](const SnapshotSection& section) {
    ++counts[section.type];
    const bool is_record = section.type == "record";
    if (!options.dump && !(options.index && is_record)) return;
    std::string line = std::to_string(section.place) + " " + section.type + " " +
                       std::to_string(section.bytes) + " bytes";
    if (is_record) {
      line += ", group " + std::to_string(section.group) + ", tokens " +
              std::to_string(section.begin) + " to " + std::to_string(section.end) + ", key " +
              hex(section.key.bytes);
    }
    print(line + (section.damaged      ? ", damaged\n"
                  : section.unverified ? ", not verified\n"
                                       : "\n"));
  };
  const Result<SnapshotList> list = list_snapshot(source, visit, secrets->options());
  if (!list) return prefixed(options.path, list.error());
  std::string summary = "snapshot:";
  for (const auto& [type, count] : counts) {
    summary += " " + type + " " + std::to_string(count) + ",";
  }
  summary += " damaged " + std::to_string(list->damaged);
  if (list->unverified > 0) summary += ", not verified " + std::to_string(list->unverified);
  const bool is_right = list->damaged == 0 && list->whole;
  print((options.state_hash && is_right ? hex(list->state_hash) : summary) + "\n");
  if (list->unverified > 0) {
    report("kvfolio inspect: " + options.path +
           ": not verified: sealed with a key that is not given, or with none; see "
           "KVFOLIO_RECORD_KEY");
  }
  if (is_right) return list->unverified > 0 ? 1 : 0;
  report("kvfolio inspect: " + options.path +
         (list->whole ? ": some of it is damaged" : ": its end is missing"));
  return 1;
}

Result<int> inspect_or_error(const InspectOptions& options) {
  Result<FileSource> source = FileSource::open(options.path);
  if (!source) return source.error();
  constexpr std::string_view kLogMagic = "KVFOPLOG";
  constexpr std::string_view kSnapshotMagic = "KVFS";
  std::string begin(std::min(kLogMagic.size(), static_cast<std::size_t>(source->size())), '\0');
  if (!begin.empty())
    KVFOLIO_RETURN_IF_ERROR(source->read_at(0, std::as_writable_bytes(std::span(begin))));
  if (begin == kLogMagic) return Log(options, *source).run();
  if (begin.starts_with(kSnapshotMagic)) return inspect_snapshot(options, *source);
  return Status(ErrorCode::kInvalidArgument,
                options.path + ": has " + std::to_string(source->size()) +
                    " bytes and begins neither as a snapshot nor as an operation log");
}

}  // namespace

void add_inspect_options(CLI::App& app, InspectOptions& options) {
  app.footer(
      "Examples:\n"
      "  kvfolio inspect calls.oplog --replay\n"
      "  kvfolio inspect cache.snapshot --index\n\n"
      "Exit codes: 0 done; 1 a call answers otherwise, or the file is damaged or not verified; 2 "
      "bad usage or input.\n"
      "KVFOLIO_RECORD_KEY, or a file named by KVFOLIO_RECORD_KEY_FILE, has the key that seals a "
      "snapshot's records.");
  add_file(app, "file", options.path, "A snapshot (--save) or an operation log (--oplog)")
      ->required();
  CLI::Option* replay =
      app.add_flag("--replay", options.replay,
                   "Make the calls of a log again and name the first that answers otherwise");
  CLI::Option* hash =
      app.add_flag("--state-hash", options.state_hash,
                   "The hash of the state: at the end of a log, whose calls are made "
                   "again, or in a snapshot");
  CLI::Option* index = app.add_flag("--index", options.index,
                                    "Calls of a log by name; the keys of a snapshot's blocks");
  CLI::Option* dump =
      app.add_flag("--dump", options.dump, "Each call with its answer; each section of a snapshot");
  replay->excludes(index)->excludes(dump);
  hash->excludes(index)->excludes(dump);
  index->excludes(dump);
}

int inspect(const InspectOptions& options) {
  return exit_code("inspect", inspect_or_error(options));
}

}  // namespace kvfolio::tools
