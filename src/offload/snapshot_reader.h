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
#include <unordered_set>
#include <vector>

#include "kvfolio/byte_stream.h"
#include "kvfolio/identity.h"
#include "kvfolio/record.h"
#include "kvfolio/storage.h"
#include "offload/digest_hash.h"
#include "offload/snapshot_format.h"

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
    bool full_blocks_only = false;
  };
  // All that stands before the end of a node.
  struct Path {
    const Root* root = nullptr;
    std::vector<std::int32_t> tokens;
    std::vector<MediaSpan> media;
    std::vector<Digest> hashes;  // at the end of each unit, and of the tokens
  };

  // Where the payload of a record lies, and what its checksum is if no key sealed it.
  struct Payload {
    std::int64_t place = 0;
    std::uint64_t checksum = 0;
  };

  SnapshotReader(const Identity& identity, const KVStorage& storage, ByteSource& source,
                 snapshot::Limits limits = {}, RecordKeys keys = {})
      : identity_(identity),
        storage_(storage),
        source_(source),
        limits_(limits),
        keys_(std::move(keys)) {}

  // kCorrupt, kUnsupported or kInvalidArgument: as restore().
  Status read();
  // The last nodes of paths that have a record and could be found. No path goes on from them to
  // another such node.
  [[nodiscard]] std::vector<std::uint32_t> leaves() const;
  [[nodiscard]] Path path_to(std::uint32_t node) const;
  [[nodiscard]] const std::vector<Sequence>& sequences() const { return sequences_; }
  // The record of a key, whose header is that of a block of its group with its tokens; null: there
  // is none. Valid until forget(), which is for a record whose payload is damaged.
  [[nodiscard]] const Payload* find(const TierKey& key) const;
  void forget(const TierKey& key) { records_.erase(key); }
  [[nodiscard]] std::int64_t num_records() const {
    return static_cast<std::int64_t>(records_.size());
  }
  [[nodiscard]] std::int64_t num_damaged() const { return damaged_; }
  // Records that were sealed with a key that is not ours, or without one though we have one.
  [[nodiscard]] std::int64_t num_refused() const { return refused_; }
  // The MAC of a record that find() gave, begun, and what it must be. False: the header says
  // something else by now, or there is no memory.
  [[nodiscard]] bool begin_mac(const Payload& payload, const TierKey& key, RecordMac& mac,
                               Digest& expected);
  // That nothing but zeros fills up the section behind a payload of this size.
  [[nodiscard]] bool ends_well(const Payload& payload, std::int64_t bytes);

 private:
  struct Node {
    Digest hash{};
    std::uint32_t before = snapshot::kNoNode;
    std::uint32_t run = 0;
    std::int32_t begin = 0;
    std::int32_t count = 0;       // tokens
    std::size_t first_token = 0;  // in tokens_
    bool has_record = false;
    bool hidden = false;  // the tail of a sequence, which could not be found
    bool known = false;   // false: its section was damaged
  };
  struct Run {
    std::uint32_t root = 0;
    std::vector<MediaSpan> media{};
  };

  Status read_identity();
  Status compare_identity(std::span<const std::byte> body) const;
  // The bytes [place, place + size), as many as there are; valid until the next call.
  std::span<const std::byte> peek(std::int64_t place, std::size_t size);
  bool header_at(std::int64_t place, snapshot::SectionHeader& header);
  // Takes the sections one behind the other.
  void read_sections();
  bool take_section(const snapshot::SectionHeader& header);
  bool take_record(const snapshot::SectionHeader& header);
  bool take_root(const snapshot::SectionHeader& header, LittleEndianReader body);
  bool take_tokens(const snapshot::SectionHeader& header, LittleEndianReader body);
  bool take_spans(LittleEndianReader& body, std::uint32_t count, std::int32_t begin,
                  std::int64_t end, std::vector<MediaSpan>& spans);
  [[nodiscard]] bool may_add_nodes(const snapshot::SectionHeader& header, std::uint32_t root,
                                   std::int32_t begin, std::span<const std::int32_t> tokens) const;
  bool add_nodes(const snapshot::SectionHeader& header, std::uint32_t root, std::int32_t begin,
                 std::span<const std::int32_t> tokens);
  bool take_sequence(const snapshot::SectionHeader& header, LittleEndianReader body);
  void hide_tail(std::uint32_t node, std::int32_t findable);
  bool take_end(LittleEndianReader body);
  // The body with its padding, if it is what was written.
  std::optional<std::span<const std::byte>> body_of(const snapshot::SectionHeader& header);
  // Counts memory that is about to be taken; false: that would be too much.
  bool take_memory(std::size_t bytes);

  const Identity& identity_;
  const KVStorage& storage_;
  ByteSource& source_;
  const snapshot::Limits limits_;
  const RecordKeys keys_;
  std::unordered_map<std::uint32_t, Root> roots_;
  std::vector<Node> nodes_;
  std::vector<Run> runs_;
  std::vector<std::int32_t> tokens_;
  std::vector<Sequence> sequences_;
  std::unordered_set<std::uint64_t> caller_ids_;  // of sequences_
  std::unordered_map<TierKey, Payload, TierKeyHash> records_;
  std::int64_t damaged_ = 0, refused_ = 0;
  std::int64_t num_sections_ = 0;          // whose headers were found
  std::int64_t lost_sections_ = -1;        // what the last section says of the others; -1: nothing
  std::int64_t memory_ = 0, in_vain_ = 0;  // bytes
  std::vector<std::byte> window_, body_;
  std::int64_t window_place_ = 0;
};

}  // namespace kvfolio
