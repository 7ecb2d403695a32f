// SPDX-License-Identifier: Apache-2.0
#pragma once

// The option --tier of several verbs: where blocks are kept beside the cache, cheapest first.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/disk_tier.h"
#include "kvfolio/offload.h"
#include "kvfolio/record.h"
#include "kvfolio/redis_tier.h"

namespace CLI {
class App;
}

namespace kvfolio::tools {

struct DiskChoice {
  std::string directory;
  std::int64_t bytes = 0;  // 0: not said
};

struct TierChoice {
  std::int64_t host_bytes = 0;  // 0: not said
  std::optional<DiskChoice> disk;
  std::string redis;  // "HOST:PORT,HOST:PORT"; empty: not said

  [[nodiscard]] bool any() const { return host_bytes > 0 || disk.has_value() || !redis.empty(); }
  // Bytes of the arena, through which all tiers go: also where only another one was asked for.
  [[nodiscard]] std::int64_t arena_bytes() const;
};

// The variable of the environment; empty if it is not set.
[[nodiscard]] std::string environment(const char* name);
// The secrets that seal records, of the environment; both may be missing. They are in no message.
class RecordSecrets {
 public:
  // KVFOLIO_RECORD_KEY is 64 hexadecimal digits, or KVFOLIO_RECORD_KEY_FILE a file that has them;
  // KVFOLIO_ACCEPTED_RECORD_KEY and its _FILE name the key that is accepted beside it.
  // kInvalidArgument: anything else, by the name of the variable.
  static Result<RecordSecrets> from_environment();
  // Views of this object.
  [[nodiscard]] RecordKeyOptions options() const {
    return {.key = key_, .accepted_key = accepted_};
  }

 private:
  std::vector<std::byte> key_, accepted_;
};
// "24GiB", "512MiB", "4096"; anything else is refused by the name of the option.
[[nodiscard]] std::int64_t parse_size(const std::string& option, const std::string& text);
// "disk:DIR,SIZE", or "disk:DIR" where no size is needed.
[[nodiscard]] DiskChoice parse_disk(const std::string& option, const std::string& text,
                                    bool with_size);
// "redis:HOST:PORT,HOST:PORT": the servers. A name or a password in front is refused, and not
// shown.
[[nodiscard]] std::string parse_redis(const std::string& option, const std::string& text);
// What a message may show of a word that may be "redis:user:password@HOST:PORT":
// "redis:...@HOST:PORT".
[[nodiscard]] std::string without_secrets(const std::string& text);
// Where a server refuses who asks: also what to set.
[[nodiscard]] Status with_advice(const Status& error);
// Parsing fills `choice`, which outlives `app`.
void add_tier_option(CLI::App& app, TierChoice& choice, const std::string& help);

[[nodiscard]] Result<std::unique_ptr<DiskTier>> open_disk(const DiskChoice& choice);
// Waits two seconds at most until a server answers. Passwords do not stand in a command line:
// KVFOLIO_REDIS_USER, KVFOLIO_REDIS_PASSWORD and, for TLS, KVFOLIO_REDIS_CA, a file.
[[nodiscard]] Result<std::unique_ptr<RedisTier>> open_redis(const std::string& servers);

// What was chosen below the host's memory, open.
struct OpenTiers {
  std::unique_ptr<DiskTier> disk;
  std::unique_ptr<RedisTier> redis;

  // Cheapest first. A command waits for its tiers, so what may be in flight drops nothing.
  [[nodiscard]] std::vector<OffloadTier> below() const;
  // A line for each.
  [[nodiscard]] std::vector<std::string> describe() const;
  // What the tier of this name says is wrong with it, in one line; or nothing.
  [[nodiscard]] std::string trouble(std::string_view name) const;
};
[[nodiscard]] Result<OpenTiers> open_tiers(const TierChoice& choice);

}  // namespace kvfolio::tools
