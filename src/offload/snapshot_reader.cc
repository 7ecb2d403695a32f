// SPDX-License-Identifier: Apache-2.0

#include "offload/snapshot_reader.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/media.h"
#include "base/text.h"

namespace kvfolio {
namespace {

using snapshot::kHeaderBytes;
using snapshot::kNoNode;
using snapshot::SectionHeader;
using snapshot::Type;
using text::concat;

constexpr std::size_t kWindow = 4096;       // where a header is expected
constexpr std::size_t kSearched = 1 << 16;  // where one is looked for

Status corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

std::int64_t section_bytes(const SectionHeader& header) {
  return snapshot::aligned(static_cast<std::int64_t>(kHeaderBytes) + header.body_bytes);
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](std::byte byte) { return byte == std::byte{}; });
}

std::string take_text(LittleEndianReader& from) {
  const auto bytes = from.take(from.get<std::uint32_t>());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::span<const std::byte> SnapshotReader::peek(std::int64_t place, std::size_t size) {
  KVFOLIO_DCHECK(place >= 0 && size <= kWindow);
  const std::int64_t end = std::min(place + static_cast<std::int64_t>(size), source_.size());
  const auto window_end = window_place_ + static_cast<std::int64_t>(window_.size());
  if (place < window_place_ || end > window_end) {
    const std::size_t ahead = place == window_end && place > 0 ? kSearched : kWindow;
    window_.resize(static_cast<std::size_t>(
        std::clamp<std::int64_t>(source_.size() - place, 0, static_cast<std::int64_t>(ahead))));
    window_place_ = place;
    if (!source_.read_at(place, window_).ok()) window_.clear();
  }
  const auto first = static_cast<std::size_t>(place - window_place_);
  if (first >= window_.size()) return {};
  return std::span(window_).subspan(first, std::min(size, window_.size() - first));
}

bool SnapshotReader::header_at(std::int64_t place, SectionHeader& header) {
  const auto bytes = peek(place, kHeaderBytes);
  if (bytes.size() < kHeaderBytes ||
      !snapshot::read_header(bytes.first<kHeaderBytes>(), place, header)) {
    return false;
  }
  const std::int64_t behind = source_.size() - place - static_cast<std::int64_t>(kHeaderBytes);
  return header.body_bytes <= behind && section_bytes(header) <= source_.size() - place;
}

std::optional<std::span<const std::byte>> SnapshotReader::body_of(const SectionHeader& header) {
  if (header.body_bytes > snapshot::kBodyMax) return std::nullopt;
  body_.resize(static_cast<std::size_t>(section_bytes(header)) - kHeaderBytes);
  const auto place = header.place + static_cast<std::int64_t>(kHeaderBytes);
  if (!source_.read_at(place, body_).ok()) return std::nullopt;
  const auto body =
      std::span<const std::byte>(body_).first(static_cast<std::size_t>(header.body_bytes));
  const bool whole = checksum(body, static_cast<std::uint64_t>(header.place)) == header.checksum &&
                     all_zero(std::span(body_).subspan(body.size()));
  if (!whole) return std::nullopt;
  return body;
}

bool SnapshotReader::take_memory(std::size_t bytes) {
  if (static_cast<std::int64_t>(bytes) > limits_.memory_bytes - memory_) return false;
  memory_ += static_cast<std::int64_t>(bytes);
  return true;
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
  if (header.body_bytes > source_.size() || section_bytes(header) > source_.size()) {
    return corrupt("snapshot: the file is cut off in its first section");
  }
  const auto body = body_of(header);
  if (!body) return corrupt("snapshot: its first section is damaged");
  return compare_identity(*body);
}

namespace {

// A text of the file in a message: the file may be anyone's, and messages go to terminals and logs.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 64;
  std::string out = "\"";
  for (const char c : text.substr(0, kMost)) {
    const auto code = static_cast<unsigned char>(c);
    out += code < 0x20 || code == 0x7f ? '?' : c;
  }
  out += '"';
  return text.size() <= kMost ? out : concat(out, " and ", text.size() - kMost, " bytes more");
}

// What the caller's struct names a field of the identity. A unit of tokens is the smallest block,
// and that is what the spec has a field for; some fields of a group are those of ModelIdentity.
std::string name_for_callers(const std::string& name) {
  if (name == "unit") return "the smallest block_size";
  constexpr std::string_view kOfModel[] = {"engine",
                                           "layers",
                                           "scales",
                                           "shard",
                                           "num_shards",
                                           "pipeline_rank",
                                           "num_pipeline_ranks",
                                           "context_rank",
                                           "num_context_ranks"};
  const std::string last = name.substr(name.rfind(' ') + 1);
  return std::find(std::begin(kOfModel), std::end(kOfModel), last) != std::end(kOfModel) ? last
                                                                                         : name;
}

}  // namespace

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
    const std::string value = found == there.end() ? "absent" : shown(found->second);
    if (found != there.end() && found->second == field.value) continue;
    return {ErrorCode::kInvalidArgument,
            concat("snapshot: ", name_for_callers(field.name), " is ", value, " in the file and \"",
                   field.value, "\" here")};
  }
  if (there.size() == identity_.fields().size()) return {};
  return {ErrorCode::kInvalidArgument,
          concat("snapshot: the file has ", there.size(),
                 " fields of identity, expected: ", identity_.fields().size())};
}

// ---- sections ----

Status SnapshotReader::read() {
  KVFOLIO_RETURN_IF_ERROR(read_identity());
  read_sections();
  return {};
}

// A section whose header is damaged is lost, with those that cannot be told from it. The last
// section says how many there were.
void SnapshotReader::read_sections() {
  std::int64_t gaps = 0;
  bool lost = false;
  for (std::int64_t place = 0; place + static_cast<std::int64_t>(kHeaderBytes) <= source_.size();) {
    SectionHeader header;
    if (!header_at(place, header)) {
      if (!std::exchange(lost, true)) ++gaps;
      place += snapshot::kAlignment;
      in_vain_ += snapshot::kAlignment;
    } else {
      lost = false;
      lost_sections_ = -1;  // the end is the last one
      if (!take_section(header)) {
        ++damaged_;
        if (header.type != Type::kRecord) in_vain_ += header.body_bytes;
      }
      ++num_sections_;
      place += section_bytes(header);
    }
    if (in_vain_ > limits_.bytes_in_vain) break;
  }
  damaged_ += lost_sections_ < 0 ? gaps + 1 : std::max(gaps, lost_sections_);
}

bool SnapshotReader::take_section(const SectionHeader& header) {
  if (header.version != snapshot::kVersion) return false;
  if (header.type == Type::kRecord) return take_record(header);
  const auto body = body_of(header);
  if (!body) return false;
  switch (header.type) {
    case Type::kIdentity:
      return header.place == 0;  // read before
    case Type::kRoot:
      return take_root(header, LittleEndianReader(*body));
    case Type::kTokens:
      return take_tokens(header, LittleEndianReader(*body));
    case Type::kSequence:
      return take_sequence(header, LittleEndianReader(*body));
    case Type::kEnd:
      return take_end(LittleEndianReader(*body));
    default:
      return false;
  }
}

bool SnapshotReader::take_end(LittleEndianReader body) {
  const auto count = body.get<std::uint64_t>();
  if (!body.ok() || body.left() > 0 || count < static_cast<std::uint64_t>(num_sections_)) {
    return false;
  }
  lost_sections_ = static_cast<std::int64_t>(
      std::min(count - static_cast<std::uint64_t>(num_sections_), std::uint64_t{1} << 62));
  return true;
}

// Only its header is read now. A record of a node that was lost leads nowhere, and is no damage of
// its own.
bool SnapshotReader::take_record(const SectionHeader& header) {
  const auto place = header.place + static_cast<std::int64_t>(kHeaderBytes);
  const auto bytes = peek(place, static_cast<std::size_t>(kRecordHeaderBytes));
  RecordInfo info;
  if (read_record_header(bytes, info) != RecordFault::kNone) return false;
  if (header.b >= static_cast<std::uint32_t>(identity_.num_groups())) return false;
  const GroupId group(static_cast<std::int32_t>(header.b));
  const std::int64_t image = storage_.block_image_bytes(group);
  if (info.payload_bytes != image || header.body_bytes != kRecordHeaderBytes + image) return false;
  if (header.a >= nodes_.size() || !nodes_[header.a].known) return true;
  Node& node = nodes_[header.a];
  const std::int32_t end = node.begin + node.count;
  const std::int32_t block_size =
      storage_.spec().groups[static_cast<std::size_t>(group.value())].block_size;
  const RecordInfo expected{.key = identity_.key(group, node.hash),
                            .layout = identity_.layout_namespace(group),
                            .payload_bytes = image,
                            .begin = (end - 1) / block_size * block_size,
                            .end = end,
                            .writer = info.writer,
                            .checksum = info.checksum,
                            .owner = info.owner,
                            .key_id = info.key_id,
                            .mac = info.mac};
  if (info != expected) return false;
  if (!keys_.accepts(info.key_id)) {
    ++refused_;
    return true;
  }
  node.has_record = true;
  records_.try_emplace(info.key, Payload{place + kRecordHeaderBytes, info.checksum});
  return true;
}

// The header is read again: MACs of all records would take as much memory as their names.
bool SnapshotReader::begin_mac(const Payload& payload, const TierKey& key, RecordMac& mac,
                               Digest& expected) {
  std::array<std::byte, kRecordHeaderBytes> header{};
  RecordInfo info;
  if (!source_.read_at(payload.place - kRecordHeaderBytes, header).ok() ||
      read_record_header(header, info) != RecordFault::kNone || info.key != key) {
    return false;
  }
  expected = info.mac;
  return mac.begin(keys_, info.key_id, info);
}

bool SnapshotReader::take_root(const SectionHeader& header, LittleEndianReader body) {
  constexpr std::size_t kMost = 64 << 10;  // of the four texts together (RootKey)
  if (body.left() > kMost + 4 * 4 + 8 || !take_memory(sizeof(Root) + body.left())) return false;
  Root root{.model = take_text(body),
            .adapter = take_text(body),
            .adapter_version = take_text(body),
            .salt = take_text(body)};
  root.epoch = body.get<std::uint64_t>();
  if (!body.ok() || body.left() > 0) return false;
  root.hash = identity_.root(root.key(), 0);
  return roots_.try_emplace(header.a, std::move(root)).second;
}

bool SnapshotReader::take_tokens(const SectionHeader& header, LittleEndianReader body) {
  const auto root = body.get<std::uint32_t>();
  const auto begin = body.get<std::int32_t>();
  const auto num_tokens = body.get<std::uint32_t>();
  const auto num_spans = body.get<std::uint32_t>();
  if (!body.ok() || body.left() != std::uint64_t{num_tokens} * 4 +
                                       std::uint64_t{num_spans} * snapshot::kSpanBytes) {
    return false;
  }
  if (!take_memory(body.left() + sizeof(Run) +
                   (num_tokens / static_cast<std::size_t>(identity_.unit()) + 1) * sizeof(Node))) {
    return false;
  }
  std::vector<std::int32_t> tokens(num_tokens);
  for (std::int32_t& token : tokens) token = body.get<std::int32_t>();
  if (!may_add_nodes(header, root, begin, tokens)) return false;
  Run run{.root = root};
  if (!take_spans(body, num_spans, begin, std::int64_t{begin} + num_tokens, run.media)) {
    return false;
  }
  runs_.push_back(std::move(run));
  return add_nodes(header, root, begin, tokens);
}

// Spans that have one of the tokens [begin, end), in order.
bool SnapshotReader::take_spans(LittleEndianReader& body, std::uint32_t count, std::int32_t begin,
                                std::int64_t end, std::vector<MediaSpan>& spans) {
  std::int32_t before = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    MediaSpan span{.begin = body.get<std::int32_t>(), .end = body.get<std::int32_t>()};
    body.get(std::span(span.content_id));
    span.attends_to_itself = body.get<std::uint8_t>() != 0;
    if (span.begin < before || span.end <= span.begin || span.end <= begin || span.begin >= end ||
        span.end > kMaxSequenceTokens || !names_content(span)) {
      return false;
    }
    before = span.end;
    spans.push_back(span);
  }
  return body.ok();
}

// A node that stands behind a damaged one is not known either.
bool SnapshotReader::may_add_nodes(const SectionHeader& header, std::uint32_t root,
                                   std::int32_t begin, std::span<const std::int32_t> tokens) const {
  // A node took at least so many bytes of the file before this section: no number makes memory.
  const std::int64_t least =
      std::min<std::int64_t>(snapshot::kHeaderBytes, std::int64_t{4} * identity_.unit());
  if (roots_.count(root) == 0 || tokens.empty()) return false;
  if (header.a < nodes_.size() || std::int64_t{header.a} > header.place / least) return false;
  if (begin < 0 || begin % identity_.unit() != 0 || begin > kMaxSequenceTokens) return false;
  if (tokens.size() > static_cast<std::size_t>(kMaxSequenceTokens - begin)) return false;
  if (std::any_of(tokens.begin(), tokens.end(), [](std::int32_t token) { return token < 0; })) {
    return false;
  }
  if (header.b == kNoNode) return begin == 0;
  if (header.b >= nodes_.size()) return false;
  const Node& before = nodes_[header.b];
  return before.known && before.begin + before.count == begin && runs_[before.run].root == root;
}

bool SnapshotReader::add_nodes(const SectionHeader& header, std::uint32_t root, std::int32_t begin,
                               std::span<const std::int32_t> tokens) {
  const auto unit = static_cast<std::size_t>(identity_.unit());
  if (header.a - nodes_.size() > 0 && !take_memory((header.a - nodes_.size()) * sizeof(Node))) {
    return false;
  }
  nodes_.resize(header.a);  // of sections that were lost
  const std::vector<MediaSpan>& media = runs_.back().media;
  Digest hash = header.b == kNoNode ? roots_.at(root).hash : nodes_[header.b].hash;
  std::uint32_t before = header.b;
  for (std::size_t at = 0; at < tokens.size(); at += unit) {
    const auto part = tokens.subspan(at, std::min(unit, tokens.size() - at));
    const auto first = begin + static_cast<std::int32_t>(at);
    const auto end = first + static_cast<std::int32_t>(part.size());
    hash = identity_.next(hash, first, part, media);
    nodes_.push_back({.hash = hash,
                      .before = before,
                      .run = static_cast<std::uint32_t>(runs_.size() - 1),
                      .begin = first,
                      .count = end - first,
                      .first_token = tokens_.size(),
                      .known = true});
    before = static_cast<std::uint32_t>(nodes_.size() - 1);
    tokens_.insert(tokens_.end(), part.begin(), part.end());
  }
  return true;
}

// The hash shows a node of other tokens, as in a file that was put together from two.
bool SnapshotReader::take_sequence(const SectionHeader& header, LittleEndianReader body) {
  const auto flags = body.get<std::uint32_t>();
  Sequence sequence{.node = header.a,
                    .priority = static_cast<std::int32_t>(header.b),
                    .max_tokens = body.get<std::int32_t>()};
  const auto caller_id = body.get<std::uint64_t>();
  if ((flags & 1) != 0) sequence.caller_id = caller_id;
  sequence.full_blocks_only = (flags & 2) != 0;
  const auto findable = body.get<std::int32_t>();
  Digest tokens{};
  body.get(std::span(tokens));
  if (!body.ok() || body.left() > 0 || flags > 3 || sequence.max_tokens < 0 ||
      sequence.max_tokens > kMaxSequenceTokens) {
    return false;
  }
  const bool is_empty = header.a == kNoNode;
  if (!is_empty && (header.a >= nodes_.size() || !nodes_[header.a].known)) return false;
  if (tokens != (is_empty ? Digest{} : nodes_[header.a].hash)) return false;
  const std::int32_t length = is_empty ? 0 : nodes_[header.a].begin + nodes_[header.a].count;
  if (sequence.max_tokens != 0 && sequence.max_tokens < length) return false;
  // The set has an entry for each; and restore() gives each sequence its tokens, however many share
  // a path.
  constexpr std::size_t kCallerId = 32;
  const std::size_t given = static_cast<std::size_t>(length) * sizeof(std::int32_t);
  if (!take_memory(sizeof(Sequence) + kCallerId + given)) return false;
  if (sequence.caller_id && !caller_ids_.insert(caller_id).second) return false;
  sequences_.push_back(sequence);
  hide_tail(sequence.node, findable);
  return true;
}

void SnapshotReader::hide_tail(std::uint32_t node, std::int32_t findable) {
  for (; node != kNoNode && !nodes_[node].hidden; node = nodes_[node].before) {
    if (nodes_[node].begin + nodes_[node].count <= findable) return;
    nodes_[node].hidden = true;
  }
}

// ---- what was read ----

// A node comes before those that go on from it.
std::vector<std::uint32_t> SnapshotReader::leaves() const {
  std::vector<bool> leads_on(nodes_.size());
  std::vector<std::uint32_t> leaves;
  for (auto node = static_cast<std::uint32_t>(nodes_.size()); node-- > 0;) {
    if (!leads_on[node] && (!nodes_[node].has_record || nodes_[node].hidden)) continue;
    if (!leads_on[node]) leaves.push_back(node);
    if (nodes_[node].before != kNoNode) leads_on[nodes_[node].before] = true;
  }
  std::reverse(leaves.begin(), leaves.end());
  return leaves;
}

SnapshotReader::Path SnapshotReader::path_to(std::uint32_t node) const {
  std::vector<std::uint32_t> way;
  for (; node != kNoNode; node = nodes_[node].before) {
    KVFOLIO_CHECK(node < nodes_.size() && nodes_[node].known);
    way.push_back(node);
  }
  std::reverse(way.begin(), way.end());
  Path path;
  for (const std::uint32_t at : way) {
    const Node& part = nodes_[at];
    const Run& run = runs_[part.run];
    path.root = &roots_.at(run.root);
    path.hashes.push_back(part.hash);
    const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(part.first_token);
    path.tokens.insert(path.tokens.end(), first, first + part.count);
    for (const MediaSpan& span : spans_within(run.media, part.begin, part.begin + part.count)) {
      if (path.media.empty() || path.media.back().end <= span.begin) path.media.push_back(span);
    }
  }
  return path;
}

const SnapshotReader::Payload* SnapshotReader::find(const TierKey& key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

bool SnapshotReader::ends_well(const Payload& payload, std::int64_t bytes) {
  const std::int64_t begin = payload.place - kRecordHeaderBytes;
  const std::int64_t end = payload.place + bytes;
  const std::int64_t padding = snapshot::aligned(end - begin) - (end - begin);
  if (padding == 0) return true;
  body_.resize(static_cast<std::size_t>(padding));
  return source_.read_at(end, body_).ok() && all_zero(body_);
}

}  // namespace kvfolio
