// SPDX-License-Identifier: Apache-2.0
//
// Saving: first the nodes of all paths, each once, then the records of the blocks that end at them.
// Blocks of the prefix cache are met by number; BlockNames leads from each to the nodes that are
// known already.

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/media.h"
#include "base/text.h"
#include "kvfolio/record.h"
#include "kvfolio/snapshot.h"
#include "offload/block_image.h"
#include "offload/block_names.h"
#include "offload/checksum_thread.h"
#include "offload/digest_hash.h"
#include "offload/snapshot_format.h"
#include "offload/snapshot_output.h"

namespace kvfolio {
namespace {

using snapshot::kHeaderBytes;
using snapshot::kNoNode;
using snapshot::Type;
using text::concat;

constexpr std::size_t kRecordAt = kHeaderBytes + kRecordHeaderBytes;  // the payload, in its section

std::size_t padding_of(const RecordInfo& info) {
  const auto bytes = static_cast<std::int64_t>(kRecordAt) + info.payload_bytes;
  return static_cast<std::size_t>(snapshot::aligned(bytes) - bytes);
}

// The body of a section, of any length.
class Body {
 public:
  template <typename Integer>
  Body& put(Integer value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    LittleEndianWriter(std::span(bytes_).subspan(at)).put(value);
    return *this;
  }
  Body& put(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Body& text(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    return put(std::as_bytes(std::span(text)));
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class Saver {
 public:
  Saver(KVCacheManager& manager, const Identity& identity, ByteSink& sink, RecordKeys keys)
      : manager_(manager),
        storage_(*manager.storage()),
        identity_(identity),
        record_keys_(std::move(keys)),
        images_(storage_),
        output_(sink),
        names_(manager, identity, [&](const RootKey& root) { return identity.root(root, 0); }),
        checked_names_(manager, identity,
                       [&](const RootKey& root) { return identity.root(root, 0); }) {}

  Result<SaveStats> run(const SaveOptions& options);

 private:
  // A block to write: its last token is the last of a node.
  struct Item {
    GroupId group;
    BlockId block;
    std::uint32_t node;
    Digest tokens;
    std::int32_t end;
  };
  // Nodes that follow each other, not written yet.
  struct Run {
    std::uint32_t root = 0, first = 0, before = kNoNode;
    std::int32_t begin = 0;
    std::uint32_t nodes = 0;
    Digest last{};
    std::vector<std::int32_t> tokens;
    std::vector<MediaSpan> media;
  };

  Status write_identity();
  Status find_cached();
  Status find_sequence(const SnapshotSequence& saved);
  Result<std::int32_t> check_sequence(const SnapshotSequence& saved,
                                      const SequenceInfo& info) const;
  // How many of the tokens others can find.
  Result<std::int32_t> check_tokens(const SnapshotSequence& saved, std::int32_t length) const;
  Status check_name(const SnapshotSequence& saved, GroupId group, BlockId block,
                    std::span<const Digest> hashes);
  void add_node(const BlockNames::Step& step);
  void add_item(GroupId group, BlockId block, const Digest& tokens, std::int32_t end);
  std::uint32_t root_number(const RootKey& root);
  void flush_run();
  [[nodiscard]] const GroupSpec& group_of(const Item& item) const {
    return manager_.spec().groups[static_cast<std::size_t>(item.group.value())];
  }
  [[nodiscard]] RecordInfo info_of(const Item& item) const;
  Status write_records();
  Status write_record(const Item& item);
  Status add_checksums();
  [[nodiscard]] static Status no_mac();
  [[nodiscard]] bool is_full(const Item& item) const {
    return item.end % group_of(item).block_size == 0;
  }
  Status write_copy(const Item& item, RecordInfo info);
  Status write_pieces(const Item& item, RecordInfo info,
                      std::span<const BlockImages::Piece> pieces);
  static void write_headers(const Item& item, const RecordInfo& info, std::int64_t place,
                            std::span<std::byte, kRecordAt> out);
  Status write_section(Type type, std::uint32_t a, std::uint32_t b,
                       std::span<const std::byte> body);
  void note(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  KVCacheManager& manager_;
  KVStorage& storage_;
  const Identity& identity_;
  const RecordKeys record_keys_;
  BlockImages images_;
  SnapshotOutput output_;
  BlockNames names_;
  BlockNames checked_names_;  // apart: what it has seen leads to no nodes
  std::unordered_map<Digest, std::uint32_t, DigestHash> nodes_;
  std::unordered_map<Digest, std::uint32_t, DigestHash> roots_;
  std::unordered_set<TierKey, TierKeyHash> keys_;
  std::vector<Item> items_;
  ChecksumThread checksums_;      // of blocks whose pieces are written from where they lie
  std::size_t next_added_ = 0;    // in items_: the first whose checksum was not asked for
  std::int64_t bytes_added_ = 0;  // of blocks that checksums_ has
  Run run_;
  std::uint64_t num_sections_ = 0;
  SaveStats stats_;
  Status status_;  // the first error of a visit
};

Status Saver::write_section(Type type, std::uint32_t a, std::uint32_t b,
                            std::span<const std::byte> body) {
  const std::int64_t place = output_.place();
  const auto section = output_.next(static_cast<std::size_t>(
      snapshot::aligned(static_cast<std::int64_t>(kHeaderBytes + body.size()))));
  if (!section) return section.error();
  snapshot::write_header({.type = type,
                          .place = place,
                          .body_bytes = static_cast<std::int64_t>(body.size()),
                          .checksum = checksum(body, static_cast<std::uint64_t>(place)),
                          .a = a,
                          .b = b},
                         section->first<kHeaderBytes>());
  const std::span<std::byte> rest = section->subspan(kHeaderBytes);
  if (!body.empty()) std::memcpy(rest.data(), body.data(), body.size());
  std::fill(rest.begin() + static_cast<std::ptrdiff_t>(body.size()), rest.end(), std::byte{0});
  ++num_sections_;
  return {};
}

Status Saver::write_identity() {
  Body body;
  for (const IdentityField& field : identity_.fields()) body.text(field.name).text(field.value);
  return write_section(Type::kIdentity, static_cast<std::uint32_t>(identity_.num_groups()),
                       static_cast<std::uint32_t>(identity_.unit()), body.bytes());
}

std::uint32_t Saver::root_number(const RootKey& root) {
  const auto number = static_cast<std::uint32_t>(roots_.size());
  const auto [place, is_new] = roots_.try_emplace(identity_.root(root, 0), number);
  if (!is_new) return place->second;
  flush_run();
  Body body;
  body.text(root.model).text(root.adapter).text(root.adapter_version).text(root.tenant_salt);
  body.put(root.epoch);
  note(write_section(Type::kRoot, number, 0, body.bytes()));
  return number;
}

// ---- nodes ----

void Saver::add_node(const BlockNames::Step& step) {
  KVFOLIO_DCHECK(!step.tokens.empty() && std::ssize(step.tokens) <= identity_.unit());
  const auto number = static_cast<std::uint32_t>(nodes_.size());
  if (!nodes_.try_emplace(step.after, number).second) return;
  const bool goes_on = run_.nodes > 0 && run_.last == step.before &&
                       run_.nodes < snapshot::kNodesMax &&
                       run_.tokens.size() < snapshot::kTokensMax;
  if (!goes_on) {
    flush_run();
    run_.root = root_number(step.root);
    run_.first = number;
    const auto before = nodes_.find(step.before);
    run_.before = before == nodes_.end() ? kNoNode : before->second;
    run_.begin = step.begin;
  }
  ++run_.nodes;
  run_.last = step.after;
  run_.tokens.insert(run_.tokens.end(), step.tokens.begin(), step.tokens.end());
  const std::int32_t end = step.begin + static_cast<std::int32_t>(step.tokens.size());
  for (const MediaSpan& span : spans_within(step.media, step.begin, end)) {
    if (!run_.media.empty() && run_.media.back().begin >= span.begin) continue;
    run_.media.push_back(span);
  }
  stats_.tokens += static_cast<std::int64_t>(step.tokens.size());
}

void Saver::flush_run() {
  if (run_.nodes == 0) return;
  KVFOLIO_CHECK(run_.nodes <= snapshot::kNodesMax && run_.tokens.size() >= run_.nodes);
  Body body;
  body.put(run_.root).put(run_.begin);
  body.put(static_cast<std::uint32_t>(run_.tokens.size()));
  body.put(static_cast<std::uint32_t>(run_.media.size()));
  for (const std::int32_t token : run_.tokens) body.put(token);
  for (const MediaSpan& span : run_.media) {
    body.put(span.begin).put(span.end).put(std::span<const std::byte>(span.content_id));
    body.put(static_cast<std::uint8_t>(span.attends_to_itself ? 1 : 0));
  }
  KVFOLIO_CHECK(std::ssize(body.bytes()) <= snapshot::kBodyMax);  // more is read by none
  note(write_section(Type::kTokens, run_.first, run_.before, body.bytes()));
  run_ = {};
}

void Saver::add_item(GroupId group, BlockId block, const Digest& tokens, std::int32_t end) {
  if (!keys_.insert(identity_.key(group, tokens)).second) return;
  items_.push_back({group, block, nodes_.at(tokens), tokens, end});
}

Status Saver::find_cached() {
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const GroupId group(g);
    const std::int32_t num_blocks = manager_.spec().groups[static_cast<std::size_t>(g)].num_blocks;
    for (std::int32_t b = 0; b < num_blocks; ++b) {
      const auto findable = manager_.is_findable(group, BlockId(b));
      if (!findable || !*findable) continue;
      const auto name =
          names_.name(group, BlockId(b), [this](const BlockNames::Step& step) { add_node(step); });
      if (!name) return name.error();
      add_item(group, BlockId(b), name->tokens, name->end);
      KVFOLIO_RETURN_IF_ERROR(status_);
    }
  }
  return {};
}

// ---- sequences ----

Result<std::int32_t> Saver::check_sequence(const SnapshotSequence& saved,
                                           const SequenceInfo& info) const {
  const char* what = nullptr;
  if (info.accepted_length != info.length) what = "has draft tokens";
  if (info.num_unnamed > 0) what = "has unnamed tokens";
  if (info.trim_first_kept > 0) what = "has a trim";
  if (info.load.valid()) what = "has an open load";
  if (saved.publish == Publish::kNothing) what = "is private: it publishes nothing";
  if (what != nullptr) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("save: ", to_string(saved.sequence), " ", what));
  }
  if (saved.tokens.size() != static_cast<std::size_t>(info.length)) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("save: ", to_string(saved.sequence), " has ", info.length,
                         " tokens, given: ", saved.tokens.size()));
  }
  return info.length == 0 ? Result(0) : check_tokens(saved, info.length);
}

// That the sequence has these tokens, as far as the manager knows them, and has them exactly; and
// that what a restore makes findable can be found today: not the text of a private or forgotten
// one.
Result<std::int32_t> Saver::check_tokens(const SnapshotSequence& saved, std::int32_t length) const {
  std::vector<std::vector<std::uint8_t>> has;
  for (const GroupSpec& group : manager_.spec().groups) {
    has.emplace_back(static_cast<std::size_t>((length - 1) / group.block_size) + 1);
  }
  std::vector<std::span<std::uint8_t>> views(has.begin(), has.end());
  const auto same = manager_.loadable(saved.sequence, saved.tokens, length, views);
  if (!same) return same.error();
  // The manager refuses other tokens, unless it keeps none: then what it has cannot be
  // found.
  std::vector<std::int32_t> prompt(saved.tokens.begin(), saved.tokens.end());
  prompt.back() = prompt.back() == 0 ? 1 : prompt.back() - 1;
  if (manager_.loadable(saved.sequence, prompt, length, views)) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("save: ", to_string(saved.sequence),
                         " publishes nothing: it is private, forgotten or trimmed"));
  }
  prompt.back() = saved.tokens.back();
  OpenOptions options{.root = saved.root, .media = saved.media};
  // A hit never has the last token of a prompt, so one more asks for all of these.
  if (length < kMaxSequenceTokens) prompt.push_back(0);
  return manager_.probe(prompt, options);
}

// The manager knows the root and the media of what others can find.
Status Saver::check_name(const SnapshotSequence& saved, GroupId group, BlockId block,
                         std::span<const Digest> hashes) {
  const auto findable = manager_.is_findable(group, block);
  if (!findable || !*findable) return {};
  const auto name = checked_names_.name(group, block);
  if (!name) return name.error();
  const auto units = static_cast<std::size_t>(name->end / identity_.unit());
  const bool is_known = name->end % identity_.unit() == 0 &&
                        static_cast<std::size_t>(name->end) <= saved.tokens.size();
  if (!is_known || name->tokens == hashes[units - 1]) return {};
  return {ErrorCode::kFailedPrecondition, concat("save: ", to_string(saved.sequence),
                                                 " has another root or other media than given")};
}

Status Saver::find_sequence(const SnapshotSequence& saved) {
  const auto info = manager_.info(saved.sequence);
  if (!info) return info.error();
  const auto findable = check_sequence(saved, *info);
  if (!findable) return findable.error();
  const std::int32_t unit = identity_.unit();
  std::vector<Digest> hashes;  // at the end of each unit, and of the tokens
  Digest before = identity_.root(saved.root, 0);
  for (std::int32_t begin = 0; begin < info->length; begin += unit) {
    const std::int32_t size = std::min(unit, info->length - begin);
    const auto tokens =
        saved.tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    hashes.push_back(identity_.next(before, begin, tokens, saved.media));
    add_node({before, hashes.back(), saved.root, begin, tokens, saved.media});
    before = hashes.back();
  }
  flush_run();
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const auto table = manager_.block_table(saved.sequence, GroupId(g));
    if (!table) return table.error();
    const std::int32_t block_size = manager_.spec().groups[static_cast<std::size_t>(g)].block_size;
    for (std::int32_t i = 0; i * std::int64_t{block_size} < info->length; ++i) {
      const std::int32_t block = (*table)[static_cast<std::size_t>(i)];
      const auto end = static_cast<std::int32_t>(
          std::min(std::int64_t{i + 1} * block_size, std::int64_t{info->length}));
      if (block < 0) continue;
      KVFOLIO_RETURN_IF_ERROR(check_name(saved, GroupId(g), BlockId(block), hashes));
      add_item(GroupId(g), BlockId(block), hashes[static_cast<std::size_t>((end - 1) / unit)], end);
    }
  }
  Body body;
  const bool full_blocks_only = saved.publish == Publish::kFullBlocks;
  body.put(static_cast<std::uint32_t>((info->caller_id ? 1 : 0) + (full_blocks_only ? 2 : 0)));
  body.put(info->max_tokens).put(info->caller_id.value_or(0)).put(*findable);
  body.put(std::span<const std::byte>(hashes.empty() ? Digest{} : hashes.back()));
  ++stats_.sequences;
  return write_section(Type::kSequence, info->length > 0 ? nodes_.at(hashes.back()) : kNoNode,
                       static_cast<std::uint32_t>(info->priority), body.bytes());
}

// ---- records ----

RecordInfo Saver::info_of(const Item& item) const {
  const std::int32_t block_size = group_of(item).block_size;
  return {.key = identity_.key(item.group, item.tokens),
          .layout = identity_.layout_namespace(item.group),
          .payload_bytes = storage_.block_image_bytes(item.group),
          .begin = (item.end - 1) / block_size * block_size,
          .end = item.end};
}

// So many that the other thread has work while a piece of the file is written, and no more.
Status Saver::add_checksums() {
  constexpr std::int64_t kAhead = 8 << 20;  // bytes
  if (bytes_added_ > kAhead / 2) return {};
  for (; next_added_ < items_.size() && bytes_added_ < kAhead; ++next_added_) {
    const Item& item = items_[next_added_];
    if (!is_full(item) || images_.pieces(item.group, item.block).empty()) continue;
    if (record_keys_.has_key()) {
      RecordMac mac;
      if (!mac.begin(record_keys_, record_keys_.id(), info_of(item))) return no_mac();
      checksums_.add(images_.reads(), std::move(mac));
    } else {
      checksums_.add(images_.reads(), payload_seed(identity_.key(item.group, item.tokens)));
    }
    bytes_added_ += storage_.block_image_bytes(item.group);
  }
  return {};
}

Status Saver::write_records() {
  for (const Item& item : items_) {
    KVFOLIO_RETURN_IF_ERROR(add_checksums());
    KVFOLIO_RETURN_IF_ERROR(write_record(item));
  }
  return {};
}

// The pieces of a full block go to the sink from where they lie. Another one is written as a copy,
// without what lies behind its tokens.
Status Saver::write_record(const Item& item) {
  ++num_sections_;
  ++stats_.records;
  const RecordInfo info = info_of(item);
  if (is_full(item)) {
    const auto pieces = images_.pieces(item.group, item.block);
    if (!pieces.empty()) return write_pieces(item, info, pieces);
  }
  return write_copy(item, info);
}

Status Saver::write_copy(const Item& item, RecordInfo info) {
  const std::int64_t place = output_.place();
  const auto image = static_cast<std::size_t>(info.payload_bytes);
  const auto section = output_.next(kRecordAt + image + padding_of(info));
  if (!section) return section.error();
  const auto copy = section->subspan(kRecordAt, image);
  const std::int32_t block = item.block.value();
  KVFOLIO_RETURN_IF_ERROR(storage_.read_blocks(item.group, std::span(&block, 1), copy));
  const std::int32_t tokens = info.end - info.begin;
  if (tokens < group_of(item).block_size) zero_behind(group_of(item), tokens, copy);
  const auto padding = section->subspan(kRecordAt + image);
  std::fill(padding.begin(), padding.end(), std::byte{0});
  const auto headers = section->first<kRecordAt>();
  write_headers(item, info, place, headers);
  if (!seal_record(info, copy, record_keys_, headers.subspan<kHeaderBytes>())) return no_mac();
  return {};
}

// The memory of a MAC could not be had.
Status Saver::no_mac() { return {ErrorCode::kOutOfMemory, "save: no memory for a MAC"}; }

Status Saver::write_pieces(const Item& item, RecordInfo info,
                           std::span<const BlockImages::Piece> pieces) {
  const std::int64_t place = output_.place();
  const auto headers = output_.next(kRecordAt);
  if (!headers) return headers.error();
  const ChecksumThread::Seal seal = checksums_.take();
  if (!seal.made) return no_mac();
  info.checksum = seal.checksum;
  info.key_id = record_keys_.id();
  info.mac = seal.mac;
  bytes_added_ -= info.payload_bytes;
  KVFOLIO_CHECK(bytes_added_ >= 0);
  write_headers(item, info, place, headers->first<kRecordAt>());
  for (const BlockImages::Piece piece : pieces) output_.add(piece);
  const auto padding = output_.next(padding_of(info));
  if (!padding) return padding.error();
  std::fill(padding->begin(), padding->end(), std::byte{0});
  return {};
}

void Saver::write_headers(const Item& item, const RecordInfo& info, std::int64_t place,
                          std::span<std::byte, kRecordAt> out) {
  snapshot::write_header({.type = Type::kRecord,
                          .place = place,
                          .body_bytes = kRecordHeaderBytes + info.payload_bytes,
                          .a = item.node,
                          .b = static_cast<std::uint32_t>(item.group.value())},
                         out.first<kHeaderBytes>());
  write_record_header(info, out.subspan<kHeaderBytes>());
}

Result<SaveStats> Saver::run(const SaveOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(write_identity());
  for (const SnapshotSequence& sequence : options.sequences) {
    KVFOLIO_RETURN_IF_ERROR(find_sequence(sequence));
    KVFOLIO_RETURN_IF_ERROR(status_);
  }
  if (options.prefix_cache) KVFOLIO_RETURN_IF_ERROR(find_cached());
  flush_run();
  KVFOLIO_RETURN_IF_ERROR(status_);
  KVFOLIO_RETURN_IF_ERROR(write_records());
  Body body;
  body.put(num_sections_);
  KVFOLIO_RETURN_IF_ERROR(write_section(Type::kEnd, 0, 0, body.bytes()));
  KVFOLIO_RETURN_IF_ERROR(output_.flush());
  stats_.bytes = output_.place();
  return stats_;
}

}  // namespace

Result<SaveStats> save(KVCacheManager& manager, const Identity& identity, ByteSink& sink,
                       const SaveOptions& options) {
  // Also if it was moved from.
  if (const auto usage = manager.usage(GroupId(0)); !usage) return usage.error();
  if (manager.storage() == nullptr) {
    return Status(ErrorCode::kUnsupported, "save: the manager has no storage");
  }
  if (manager.num_steps() > 0) {
    return Status(
        ErrorCode::kFailedPrecondition,
        concat("save: ", manager.num_steps(), " steps are open or in flight; finish them first"));
  }
  std::int64_t loading = 0;
  std::int64_t on_hold = 0;
  for (std::size_t g = 0; g < manager.spec().groups.size(); ++g) {
    const auto usage = manager.usage(GroupId(static_cast<std::int32_t>(g)));
    if (!usage) return usage.error();
    loading += usage->loading;
    on_hold += usage->on_hold;
  }
  if (loading + on_hold > 0) {
    return Status(ErrorCode::kFailedPrecondition,
                  concat("save: open loads wait for ", loading, " blocks, and holds keep ", on_hold,
                         "; finish and release them first"));
  }
  KVFOLIO_RETURN_IF_ERROR(identity.check_spec(manager.spec()));
  const Result<RecordKeys> keys = RecordKeys::create(options.keys);
  if (!keys) return keys.error();
  return Saver(manager, identity, sink, *keys).run(options);
}

}  // namespace kvfolio
