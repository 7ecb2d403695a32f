// SPDX-License-Identifier: Apache-2.0
#pragma once

// Random operations of the model check as an operation log in memory.

#include <cstdint>
#include <cstring>
#include <vector>

#include "kvfolio/byte_sink.h"
#include "kvfolio/op_log.h"
#include "model_check/runs.h"

namespace kvfolio::model_check {

class LogBytes final : public ByteSink, public ByteSource {
 public:
  Status write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes.size());
  }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return {};
  }
  std::vector<std::byte> bytes;
};

// A run, recorded, in which no copy takes the place of the manager. Returns the hash of the state
// it ends in.
inline std::uint64_t record(Config config, std::uint64_t seed, int operations, LogBytes& to) {
  config.copies = false;
  RandomRun harness(config);
  OpLog log(to);
  harness.record(&log);
  for (int op = 0; op < operations; ++op) {
    harness.run(Rng(seed * 1000003 + static_cast<std::uint64_t>(op)).next());
  }
  // A load that is open has no hash; drain() ends them, and calls of every kind go on until then.
  Result<std::uint64_t> hash = harness.state_hash();
  if (!hash) {
    harness.drain();
    hash = harness.state_hash();
  }
  KVFOLIO_REQUIRE(hash.has_value(), hash ? "" : hash.error().message());
  harness.record(nullptr);
  KVFOLIO_REQUIRE(log.status().ok(), log.status().message());
  return *hash;
}

}  // namespace kvfolio::model_check
