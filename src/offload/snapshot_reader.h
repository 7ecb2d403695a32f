// SPDX-License-Identifier: Apache-2.0
#pragma once

// SnapshotReader reads what leads to the records of a snapshot: everything but the payloads. What
// it takes from the file is checked first; what is damaged is left out and counted. Thread safety:
// none.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "kvfolio/byte_stream.h"
#include "kvfolio/identity.h"
#include "kvfolio/record.h"
#include "offload/snapshot_format.h"
#include "offload/tier_key_hash.h"

namespace kvfolio {

class SnapshotReader {
 public:
  struct Root {
    std::string model, adapter, adapter_version, salt;
    std::uint64_t epoch = 0;
    Digest hash{};

    [[nodiscard]] RootKey key() const { return {model, adapter, adapter_version, salt, epoch}; }
  };
  struct Sequence {
    std::uint32_t node = snapshot::kNoNode;
    std::int32_t priority = 0;
    std::int32_t max_tokens = 0;
    std::optional<std::uint64_t> caller_id{};
  };
  // All that stands before the end of a node.
  struct Path {
    const Root* root = nullptr;
    std::vector<std::int32_t> tokens;
    std::vector<MediaSpan> media;
    std::vector<Digest> hashes;  // at the end of each unit, and of the tokens
  };

  SnapshotReader(const Identity& identity, ByteSource& source)
      : identity_(identity), source_(source) {}

  // kCorrupt, kUnsupported or kInvalidArgument: as restore().
  Status read();
  // Ends of paths that no other path goes on from.
  [[nodiscard]] std::vector<std::uint32_t> leaves() const;
  [[nodiscard]] Path path_to(std::uint32_t node) const;
  [[nodiscard]] const std::vector<Sequence>& sequences() const { return sequences_; }
  [[nodiscard]] bool has(const TierKey& key) const { return records_.count(key) > 0; }
  [[nodiscard]] std::int64_t num_records() const {
    return static_cast<std::int64_t>(records_.size());
  }
  [[nodiscard]] std::int64_t num_damaged() const { return damaged_; }
  // Reads the record of a key and checks it; a record that fails is forgotten.
  bool load(const TierKey& key, const RecordInfo& expected, std::vector<std::byte>& record);

 private:
  struct Node {
    Digest hash{};
    std::uint32_t before = snapshot::kNoNode;
    std::uint32_t run = 0;
    std::int32_t begin = 0;
    std::int32_t count = 0;       // tokens
    std::size_t first_token = 0;  // in tokens_
    bool has_next = false;
    bool known = false;  // false: its section was damaged
  };
  struct Run {
    std::uint32_t root = 0;
    std::vector<MediaSpan> media{};
  };

  Status read_identity();
  Status compare_identity(std::span<const std::byte> body) const;
  // The bytes [place, place + size), as many as there are; valid until the next call.
  std::span<const std::byte> peek(std::int64_t place, std::size_t size);
  bool take_section(const snapshot::SectionHeader& header);
  bool take_record(const snapshot::SectionHeader& header);
  bool take_root(const snapshot::SectionHeader& header, LittleEndianReader body);
  bool take_tokens(const snapshot::SectionHeader& header, LittleEndianReader body);
  bool add_nodes(const snapshot::SectionHeader& header, std::uint32_t root, std::int32_t begin,
                 std::span<const std::int32_t> tokens);
  bool take_sequence(const snapshot::SectionHeader& header, LittleEndianReader body);
  std::optional<std::span<const std::byte>> body_of(const snapshot::SectionHeader& header);

  const Identity& identity_;
  ByteSource& source_;
  std::unordered_map<std::uint32_t, Root> roots_;
  std::vector<Node> nodes_;
  std::vector<Run> runs_;
  std::vector<std::int32_t> tokens_;
  std::vector<Sequence> sequences_;
  std::unordered_map<TierKey, std::int64_t, TierKeyHash> records_;  // places of the records
  std::int64_t damaged_ = 0;
  std::vector<std::byte> window_, body_;
  std::int64_t window_place_ = 0;
};

}  // namespace kvfolio
