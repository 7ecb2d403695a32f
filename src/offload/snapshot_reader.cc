// SPDX-License-Identifier: Apache-2.0

#include "offload/snapshot_reader.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace kvfolio {
namespace {

using snapshot::kHeaderBytes;
using snapshot::kNoNode;
using snapshot::SectionHeader;
using snapshot::Type;
using text::concat;

constexpr std::size_t kWindow = 4096;

Status corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

std::string take_text(LittleEndianReader& from) {
  const auto bytes = from.take(from.get<std::uint32_t>());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::span<const std::byte> SnapshotReader::peek(std::int64_t place, std::size_t size) {
  const std::int64_t end = std::min(place + static_cast<std::int64_t>(size), source_.size());
  const auto window_end = window_place_ + static_cast<std::int64_t>(window_.size());
  if (place < window_place_ || end > window_end) {
    window_.resize(static_cast<std::size_t>(
        std::min(std::int64_t{kWindow}, std::max<std::int64_t>(source_.size() - place, 0))));
    window_place_ = place;
    if (!source_.read_at(place, window_).ok()) window_.clear();
  }
  const auto first = static_cast<std::size_t>(place - window_place_);
  if (first >= window_.size()) return {};
  return std::span(window_).subspan(first, std::min(size, window_.size() - first));
}

std::optional<std::span<const std::byte>> SnapshotReader::body_of(const SectionHeader& header) {
  if (header.body_bytes > snapshot::kBodyMax) return std::nullopt;
  body_.resize(static_cast<std::size_t>(header.body_bytes));
  const auto place = header.place + static_cast<std::int64_t>(kHeaderBytes);
  if (!source_.read_at(place, body_).ok()) return std::nullopt;
  if (checksum(body_, static_cast<std::uint64_t>(header.place)) != header.checksum) {
    return std::nullopt;
  }
  return body_;
}

// ---- identity ----

Status SnapshotReader::read_identity() {
  SectionHeader header;
  const auto bytes = peek(0, kHeaderBytes);
  if (bytes.size() < kHeaderBytes ||
      !snapshot::read_header(bytes.first<kHeaderBytes>(), 0, header) ||
      header.type != Type::kIdentity) {
    return corrupt("snapshot: this is no snapshot, or its first section is damaged");
  }
  if (header.version != snapshot::kVersion) {
    return {ErrorCode::kUnsupported, concat("snapshot: version is ", header.version,
                                            ", this library reads ", snapshot::kVersion)};
  }
  if (header.body_bytes > source_.size() - static_cast<std::int64_t>(kHeaderBytes)) {
    return corrupt("snapshot: the file is cut off in its first section");
  }
  const auto body = body_of(header);
  if (!body) return corrupt("snapshot: its first section is damaged");
  return compare_identity(*body);
}

Status SnapshotReader::compare_identity(std::span<const std::byte> body) const {
  std::unordered_map<std::string, std::string> there;
  LittleEndianReader from(body);
  while (from.ok() && from.left() > 0) {
    std::string name = take_text(from);
    there[std::move(name)] = take_text(from);
  }
  if (!from.ok()) return corrupt("snapshot: its first section is damaged");
  for (const IdentityField& field : identity_.fields()) {
    const auto found = there.find(field.name);
    const std::string value = found == there.end() ? "absent" : concat("\"", found->second, "\"");
    if (found != there.end() && found->second == field.value) continue;
    return {ErrorCode::kInvalidArgument, concat("snapshot: ", field.name, " is ", value,
                                                " in the file and \"", field.value, "\" here")};
  }
  if (there.size() == identity_.fields().size()) return {};
  return {ErrorCode::kInvalidArgument,
          concat("snapshot: the file has ", there.size(),
                 " fields of identity, expected: ", identity_.fields().size())};
}

// ---- sections ----

Status SnapshotReader::read() {
  KVFOLIO_RETURN_IF_ERROR(read_identity());
  bool whole = false;
  bool lost = false;  // looking for the next header
  for (std::int64_t place = 0; place + static_cast<std::int64_t>(kHeaderBytes) <= source_.size();) {
    SectionHeader header;
    const auto bytes = peek(place, kHeaderBytes);
    const bool found =
        bytes.size() == kHeaderBytes &&
        snapshot::read_header(bytes.first<kHeaderBytes>(), place, header) &&
        header.body_bytes <= source_.size() - place - static_cast<std::int64_t>(kHeaderBytes);
    if (!found) {
      if (!std::exchange(lost, true)) ++damaged_;
      place += snapshot::kAlignment;
      continue;
    }
    lost = false;
    whole = header.type == Type::kEnd;
    if (!take_section(header)) ++damaged_;
    place += snapshot::aligned(static_cast<std::int64_t>(kHeaderBytes) + header.body_bytes);
  }
  if (!whole) ++damaged_;
  return {};
}

bool SnapshotReader::take_section(const SectionHeader& header) {
  if (header.version != snapshot::kVersion) return false;
  if (header.type == Type::kRecord) return take_record(header);
  const auto body = body_of(header);
  if (!body) return false;
  switch (header.type) {
    case Type::kRoot:
      return take_root(header, LittleEndianReader(*body));
    case Type::kTokens:
      return take_tokens(header, LittleEndianReader(*body));
    case Type::kSequence:
      return take_sequence(header, LittleEndianReader(*body));
    default:
      return true;
  }
}

// Only its header is read now; load() checks it as a whole.
bool SnapshotReader::take_record(const SectionHeader& header) {
  const auto place = header.place + static_cast<std::int64_t>(kHeaderBytes);
  const auto bytes = peek(place, static_cast<std::size_t>(kRecordHeaderBytes));
  RecordInfo info;
  if (read_record_header(bytes, info) != RecordFault::kNone) return false;
  if (info.payload_bytes + kRecordHeaderBytes != header.body_bytes) return false;
  records_[info.key] = place;
  return true;
}

bool SnapshotReader::take_root(const SectionHeader& header, LittleEndianReader body) {
  Root root{.model = take_text(body),
            .adapter = take_text(body),
            .adapter_version = take_text(body),
            .salt = take_text(body)};
  root.epoch = body.get<std::uint64_t>();
  if (!body.ok()) return false;
  root.hash = identity_.root(root.key(), 0);
  return roots_.try_emplace(header.a, std::move(root)).second;
}

bool SnapshotReader::take_tokens(const SectionHeader& header, LittleEndianReader body) {
  const auto root = body.get<std::uint32_t>();
  const auto begin = body.get<std::int32_t>();
  const auto num_tokens = body.get<std::uint32_t>();
  const auto num_spans = body.get<std::uint32_t>();
  if (!body.ok() || num_tokens > body.left() / 4 ||
      num_spans > body.left() / snapshot::kSpanBytes) {
    return false;
  }
  std::vector<std::int32_t> tokens(num_tokens);
  for (std::int32_t& token : tokens) token = body.get<std::int32_t>();
  Run run{.root = root};
  std::int32_t before = 0;
  for (std::uint32_t i = 0; i < num_spans; ++i) {
    MediaSpan span{.begin = body.get<std::int32_t>(), .end = body.get<std::int32_t>()};
    body.get(std::span(span.content_id));
    span.attends_to_itself = body.get<std::uint8_t>() != 0;
    if (span.begin < before || span.end <= span.begin) return false;
    before = span.end;
    run.media.push_back(span);
  }
  if (!body.ok() || roots_.count(root) == 0 || tokens.empty()) return false;
  runs_.push_back(std::move(run));
  return add_nodes(header, root, begin, tokens);
}

// A node that stands behind a damaged one is not known either.
bool SnapshotReader::add_nodes(const SectionHeader& header, std::uint32_t root, std::int32_t begin,
                               std::span<const std::int32_t> tokens) {
  const auto unit = static_cast<std::size_t>(identity_.unit());
  const std::size_t num_nodes = (tokens.size() + unit - 1) / unit;
  const bool is_first = header.b == kNoNode;
  const auto before_it = [&] { return nodes_[header.b]; };
  // A node took at least so many bytes of the file before this section: no number makes memory.
  const std::int64_t least =
      std::min<std::int64_t>(snapshot::kHeaderBytes, std::int64_t{4} * identity_.unit());
  if (header.a < nodes_.size() || std::int64_t{header.a} > header.place / least) return false;
  if (begin < 0 || begin % identity_.unit() != 0 || begin > kMaxSequenceTokens) return false;
  if (tokens.size() > static_cast<std::size_t>(kMaxSequenceTokens - begin)) return false;
  if (std::any_of(tokens.begin(), tokens.end(), [](std::int32_t token) { return token < 0; })) {
    return false;
  }
  if (is_first ? begin != 0
               : header.b >= nodes_.size() || !before_it().known ||
                     before_it().begin + before_it().count != begin ||
                     runs_[before_it().run].root != root) {
    return false;
  }
  nodes_.resize(header.a);  // of sections that were lost
  Digest hash = is_first ? roots_.at(root).hash : nodes_[header.b].hash;
  std::uint32_t before = header.b;
  for (std::size_t i = 0; i < num_nodes; ++i) {
    const auto part = tokens.subspan(i * unit, std::min(unit, tokens.size() - i * unit));
    const auto at = begin + static_cast<std::int32_t>(i * unit);
    hash = identity_.next(hash, at, part, runs_.back().media);
    if (before != kNoNode) nodes_[before].has_next = true;
    before = static_cast<std::uint32_t>(nodes_.size());
    nodes_.push_back({.hash = hash,
                      .before = i == 0 ? header.b : before - 1,
                      .run = static_cast<std::uint32_t>(runs_.size() - 1),
                      .begin = at,
                      .count = static_cast<std::int32_t>(part.size()),
                      .first_token = tokens_.size(),
                      .known = true});
    tokens_.insert(tokens_.end(), part.begin(), part.end());
  }
  return true;
}

bool SnapshotReader::take_sequence(const SectionHeader& header, LittleEndianReader body) {
  const auto flags = body.get<std::uint32_t>();
  Sequence sequence{.node = header.a,
                    .priority = static_cast<std::int32_t>(header.b),
                    .max_tokens = body.get<std::int32_t>()};
  const auto caller_id = body.get<std::uint64_t>();
  if ((flags & 1) != 0) sequence.caller_id = caller_id;
  const bool known = header.a == kNoNode || (header.a < nodes_.size() && nodes_[header.a].known);
  if (!body.ok() || !known || sequence.max_tokens < 0) return false;
  sequences_.push_back(sequence);
  return true;
}

// ---- what was read ----

std::vector<std::uint32_t> SnapshotReader::leaves() const {
  std::vector<std::uint32_t> leaves;
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].known && !nodes_[node].has_next) leaves.push_back(node);
  }
  return leaves;
}

SnapshotReader::Path SnapshotReader::path_to(std::uint32_t node) const {
  std::vector<std::uint32_t> way;
  for (; node != kNoNode; node = nodes_[node].before) way.push_back(node);
  std::reverse(way.begin(), way.end());
  Path path;
  for (const std::uint32_t at : way) {
    const Node& part = nodes_[at];
    const Run& run = runs_[part.run];
    path.root = &roots_.at(run.root);
    path.hashes.push_back(part.hash);
    const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(part.first_token);
    path.tokens.insert(path.tokens.end(), first, first + part.count);
    for (const MediaSpan& span : run.media) {
      if (span.begin >= part.begin + part.count || span.end <= part.begin) continue;
      if (path.media.empty() || path.media.back().end <= span.begin) path.media.push_back(span);
    }
  }
  return path;
}

bool SnapshotReader::load(const TierKey& key, const RecordInfo& expected,
                          std::vector<std::byte>& record) {
  const auto found = records_.find(key);
  if (found == records_.end()) return false;
  record.resize(static_cast<std::size_t>(kRecordHeaderBytes + expected.payload_bytes));
  const bool fits = static_cast<std::int64_t>(record.size()) <= source_.size() - found->second;
  if (fits && source_.read_at(found->second, record).ok() &&
      check_record(record, expected) == RecordFault::kNone) {
    return true;
  }
  records_.erase(found);
  return false;
}

}  // namespace kvfolio
