// SPDX-License-Identifier: Apache-2.0
//
// A walk over the sections of a snapshot.

#include "kvfolio/snapshot_list.h"

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "base/little_endian.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/record.h"
#include "offload/snapshot_format.h"

namespace kvfolio {
namespace {

using snapshot::kHeaderBytes;
using snapshot::SectionHeader;
using snapshot::Type;

// No section that a library writes is larger: a block has at most some MiB.
constexpr std::int64_t kMostBody = std::int64_t{256} << 20;

const char* name_of(Type type) {
  switch (type) {
    case Type::kIdentity:
      return "identity";
    case Type::kRoot:
      return "root";
    case Type::kTokens:
      return "tokens";
    case Type::kRecord:
      return "record";
    case Type::kSequence:
      return "sequence";
    case Type::kEnd:
      return "end";
  }
  return "unknown";
}

SnapshotSection section_of(const SectionHeader& header, std::span<const std::byte> body,
                           const RecordKeys& keys) {
  SnapshotSection section{
      .place = header.place, .bytes = header.body_bytes, .type = name_of(header.type)};
  if (header.type != Type::kRecord) {
    section.damaged = checksum(body, static_cast<std::uint64_t>(header.place)) != header.checksum;
    return section;
  }
  RecordInfo info;
  section.group = static_cast<std::int32_t>(header.b);
  RecordFault fault = read_record_header(body, info);
  if (fault == RecordFault::kNone) fault = check_record(body, info, keys);
  const bool is_unknown = fault == RecordFault::kSealer;
  section.damaged = fault != RecordFault::kNone && !is_unknown;
  section.unverified = is_unknown;
  section.key_id = info.key_id;
  section.key = info.key;
  section.begin = info.begin;
  section.end = info.end;
  return section;
}

// A hash of `before` and of what the section says, without its place and what sealed it.
std::uint64_t hash_of(std::uint64_t before, const SectionHeader& header,
                      const SnapshotSection& section, std::span<const std::byte> body) {
  std::array<std::byte, 8 + 2 + 4 + 4> head{};
  LittleEndianWriter to(head);
  to.put(before);
  to.put(static_cast<std::uint16_t>(header.type));
  to.put(header.a);
  to.put(header.b);
  std::uint64_t hash = checksum(head, 0);
  if (header.type != Type::kRecord) return checksum(body, hash);
  std::array<std::byte, 4 + 4> tokens{};
  LittleEndianWriter range(tokens);
  range.put(static_cast<std::uint32_t>(section.begin));
  range.put(static_cast<std::uint32_t>(section.end));
  hash = checksum(section.key.bytes, checksum(tokens, hash));
  return checksum(body.subspan(static_cast<std::size_t>(kRecordHeaderBytes)), hash);
}

}  // namespace

Result<SnapshotList> list_snapshot(ByteSource& source,
                                   const std::function<void(const SnapshotSection&)>& visit,
                                   const RecordKeyOptions& key_options) {
  const Result<RecordKeys> keys = RecordKeys::create(key_options);
  if (!keys) return keys.error();
  SnapshotList list;
  std::vector<std::byte> body;
  bool lost = false;  // looking for the next header
  const auto header_bytes = static_cast<std::int64_t>(kHeaderBytes);
  for (std::int64_t place = 0; place + header_bytes <= source.size();) {
    std::array<std::byte, kHeaderBytes> bytes{};
    KVFOLIO_RETURN_IF_ERROR(source.read_at(place, bytes));
    SectionHeader header;
    const bool found = snapshot::read_header(bytes, place, header) &&
                       header.body_bytes <= source.size() - place - header_bytes &&
                       header.body_bytes <= kMostBody;
    if (place == 0 && (!found || header.type != Type::kIdentity)) {
      return Status(ErrorCode::kCorrupt, "not a snapshot, or its first section is damaged");
    }
    if (!found) {
      if (!std::exchange(lost, true)) ++list.damaged;
      place += snapshot::kAlignment;
      continue;
    }
    lost = false;
    body.resize(static_cast<std::size_t>(header.body_bytes));
    KVFOLIO_RETURN_IF_ERROR(source.read_at(place + header_bytes, body));
    const SnapshotSection section = section_of(header, body, *keys);
    ++list.sections;
    if (section.damaged) ++list.damaged;
    if (section.unverified) ++list.unverified;
    if (!section.damaged) list.state_hash = hash_of(list.state_hash, header, section, body);
    list.whole = header.type == Type::kEnd && !section.damaged;
    visit(section);
    place += snapshot::aligned(header_bytes + header.body_bytes);
  }
  if (list.sections == 0) return Status(ErrorCode::kCorrupt, "not a snapshot: it is too short");
  return list;
}

}  // namespace kvfolio
