// SPDX-License-Identifier: Apache-2.0
// An operation log that may come from anywhere: it is listed and replayed, as it is and again with
// its checksums made right, so that what stands behind them is reached. Input: the log. What was
// made of it obeys the rules of a manager.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "api/op_log_pieces.h"
#include "kvfolio/op_replay.h"

namespace {

using namespace kvfolio;  // NOLINT(google-build-using-namespace)

class Input final : public ByteSource {
 public:
  explicit Input(std::span<const std::byte> bytes) : bytes_(bytes) {}
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes_.size());
  }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

void list_and_replay(std::span<const std::byte> log) {
  Input input(log);
  if (Result<OpLogReader> reader = OpLogReader::open(input)) {
    for (Result<std::optional<LoggedCall>> call = reader->next(); call && *call;) {
      call = reader->next();
    }
  }
  if (Result<Replay> replay = replay_log(input, {.max_memory_bytes = 64 << 20})) {
    KVFOLIO_CHECK(replay->manager.check_invariants().ok());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span log(reinterpret_cast<const std::byte*>(data), size);
  list_and_replay(log);
  std::vector<std::byte> right(log.begin(), log.end());
  op_log_pieces::make_right(right);
  list_and_replay(right);
  return 0;
}
