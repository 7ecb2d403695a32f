// SPDX-License-Identifier: Apache-2.0
//
// Restoring: each path is opened and loaded as far as the file has its records and the pool has
// free blocks.

#include <algorithm>

#include "base/text.h"
#include "kvfolio/checked_copy.h"
#include "kvfolio/group_rule.h"
#include "kvfolio/manager.h"
#include "kvfolio/snapshot.h"
#include "offload/block_image.h"
#include "offload/checksum_thread.h"
#include "offload/snapshot_reader.h"

namespace kvfolio {
namespace {

using text::concat;

// Tokens of all paths together: no file keeps us longer. A pool that is full ends it much earlier.
constexpr std::int64_t kTokensMost = std::int64_t{1} << 32;
// How many may bring nothing: a few seconds.
constexpr std::int64_t kTokensInVain = std::int64_t{1} << 27;

class Restorer {
 public:
  Restorer(KVCacheManager& manager, const Identity& identity, SnapshotReader& reader,
           ByteSource& source, bool keyed)
      : manager_(manager),
        storage_(*manager.storage()),
        identity_(identity),
        reader_(reader),
        source_(source),
        keyed_(keyed),
        images_(storage_),
        has_(static_cast<std::size_t>(identity.num_groups())) {}

  Result<RestoreStats> run();

 private:
  using Path = SnapshotReader::Path;

  [[nodiscard]] const RestoredSequence* twin_of(const SnapshotReader::Sequence& saved) const;
  Status restore_fork(const SnapshotReader::Sequence& saved, const RestoredSequence& parent);
  Status restore_sequence(const SnapshotReader::Sequence& saved);
  Status restore_sequences();
  void restore_paths();
  void close_all();
  // The first `length` tokens of a path, as a prompt that is not kept.
  Status restore_prefix(const Path& path, std::int32_t length);
  [[nodiscard]] std::vector<std::int32_t> inner_ends(const Path& path) const;
  [[nodiscard]] bool has_windows() const {
    const std::vector<GroupSpec>& groups = manager_.spec().groups;
    return std::any_of(groups.begin(), groups.end(),
                       [](const GroupSpec& group) { return !GroupRule(group).keeps_all(); });
  }
  [[nodiscard]] bool may_go_on() const;
  // Loads what it can of the first `length` tokens; returns the length of the sequence then.
  Result<std::int32_t> load(SequenceId sequence, std::int32_t cached, const Path& path,
                            std::int32_t length);
  [[nodiscard]] std::int32_t room_until(std::int32_t cached, std::int32_t end) const;
  Result<std::int32_t> write(const Load& load, GroupId group, const Path& path,
                             std::int32_t length);
  [[nodiscard]] std::int32_t block_size(GroupId group) const {
    return manager_.spec().groups[static_cast<std::size_t>(group.value())].block_size;
  }
  [[nodiscard]] TierKey key_of(GroupId group, std::int32_t logical, const Path& path,
                               std::int32_t length) const;
  bool read_block(const TierKey& key, GroupId group, BlockId block);

  KVCacheManager& manager_;
  KVStorage& storage_;
  const Identity& identity_;
  SnapshotReader& reader_;
  ByteSource& source_;
  const bool keyed_;
  BlockImages images_;
  RestoreStats stats_;
  std::int64_t tokens_ = 0;          // of all prompts that were opened
  std::int64_t tokens_in_vain_ = 0;  // of those that brought nothing
  std::vector<std::vector<std::uint8_t>> has_;
  std::vector<LoadBlock> blocks_;
  std::vector<std::byte> image_;
  Status memory_;                               // of the cache: its first failure
  ChecksumThread checksums_;                    // of blocks that were read
  std::vector<ChecksumThread::Seal> expected_;  // of blocks of one write()
};

// The record that ends where the block does, or the tokens. If there is none, one that goes on from
// there has the same first tokens. If there is none either, a key that nothing has.
TierKey Restorer::key_of(GroupId group, std::int32_t logical, const Path& path,
                         std::int32_t length) const {
  const std::int32_t unit = identity_.unit();
  const std::int64_t block_end = (logical + std::int64_t{1}) * block_size(group);
  const std::int64_t last = std::min(block_end, static_cast<std::int64_t>(path.tokens.size()));
  TierKey key{};
  for (std::int64_t end = std::min(block_end, std::int64_t{length}); end <= last;) {
    key = identity_.key(group, path.hashes[static_cast<std::size_t>((end - 1) / unit)]);
    if (reader_.find(key) != nullptr || end == last) return key;
    end = std::min((end / unit + 1) * unit, last);
  }
  return key;
}

// How far a load may go without evicting. A window group needs its window, whatever the end is.
std::int32_t Restorer::room_until(std::int32_t cached, std::int32_t end) const {
  std::int64_t limit = end;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const GroupSpec& group = manager_.spec().groups[static_cast<std::size_t>(g)];
    const auto usage = manager_.usage(GroupId(g));
    const std::int64_t free = usage ? usage->free : 0;
    const std::int64_t reach = (cached / group.block_size + free) * group.block_size;
    if (reach >= limit) continue;
    const std::int64_t window = GroupRule(group).most_read(end) + GroupRule(group).num_sinks();
    if (GroupRule(group).keeps_all() || free < window / group.block_size + 3) limit = reach;
  }
  // A load may end inside a unit only where the path does.
  return static_cast<std::int32_t>(limit >= end ? end
                                                : limit / identity_.unit() * identity_.unit());
}

Result<std::int32_t> Restorer::load(SequenceId sequence, std::int32_t cached, const Path& path,
                                    std::int32_t length) {
  const std::int32_t limit = room_until(cached, length);
  if (limit < length) ++stats_.paths_no_room;
  if (limit <= cached) return cached;
  std::vector<std::span<std::uint8_t>> has;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    std::vector<std::uint8_t>& of_group = has_[static_cast<std::size_t>(g)];
    const std::int32_t blocks = (limit - 1) / block_size(GroupId(g)) + 1;
    of_group.assign(static_cast<std::size_t>(blocks), 0);
    for (std::size_t i = 0; i < of_group.size(); ++i) {
      const TierKey key = key_of(GroupId(g), static_cast<std::int32_t>(i), path, length);
      of_group[i] = reader_.find(key) != nullptr ? 1 : 0;
    }
    has.emplace_back(of_group);
  }
  const auto tokens = std::span(path.tokens).first(static_cast<std::size_t>(length));
  const auto reach = manager_.loadable(sequence, tokens, limit, has);
  if (!reach) return reach.error();
  if (reach->end <= reach->begin) return std::max(cached, reach->begin);
  const auto load = manager_.begin_load(sequence, tokens, reach->end);
  if (!load) return load.error().code() == ErrorCode::kNoBlocks ? Result(cached) : load.error();
  if (!load->id.valid()) return load->end;
  KVFOLIO_CHECK(load->end <= limit && checksums_.pending() == 0);
  std::int32_t good = load->end;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const auto end = write(*load, GroupId(g), path, length);
    if (!end) {
      static_cast<void>(manager_.finish_load(load->id, 0));
      return end.error();
    }
    good = std::min(good, *end);
  }
  if (good < load->end) good = good / identity_.unit() * identity_.unit();
  const auto stood = manager_.finish_load(load->id, std::max(good - load->begin, 0));
  if (!stood) return stood.error();
  stats_.tokens += *stood;
  return load->begin + *stood;
}

// Fills the blocks of a group; returns how far they are good. What was read is checked while the
// next blocks are read.
Result<std::int32_t> Restorer::write(const Load& load, GroupId group, const Path& path,
                                     std::int32_t length) {
  constexpr std::size_t kUncheckedMost = 32;
  blocks_.resize(static_cast<std::size_t>(length) / static_cast<std::size_t>(block_size(group)) +
                 2);
  const auto count = manager_.blocks_to_load(load.id, group, blocks_);
  if (!count) return count.error();
  KVFOLIO_CHECK(static_cast<std::size_t>(*count) <= blocks_.size());
  expected_.clear();
  std::size_t checked = 0;
  auto good = static_cast<std::size_t>(*count);  // no block from here on is
  const auto check = [&] {
    KVFOLIO_CHECK(checked < expected_.size());
    const ChecksumThread::Seal seen = checksums_.take();
    const ChecksumThread::Seal& right = expected_[checked];
    if (!seen.made || seen.checksum != right.checksum || !same_mac(seen.mac, right.mac)) {
      good = std::min(good, checked);
    }
    ++checked;
  };
  for (std::size_t i = 0; i < good && memory_.ok(); ++i) {
    const auto& [logical, block] = blocks_[i];
    if (!read_block(key_of(group, logical, path, length), group, block)) good = std::min(good, i);
    if (checksums_.pending() > kUncheckedMost) check();
  }
  while (checksums_.pending() > 0) check();
  KVFOLIO_RETURN_IF_ERROR(memory_);
  stats_.records_loaded += static_cast<std::int64_t>(good);
  if (good == static_cast<std::size_t>(*count)) return load.end;
  ++stats_.records_refused;
  reader_.forget(key_of(group, blocks_[good].logical, path, length));
  return blocks_[good].logical * block_size(group);
}

// Straight into the block where it has long pieces: nothing reads it before the load is finished,
// and what does not verify is not part of that. Then its checksum is still to be compared. False:
// there is nothing to compare, the record is not good.
bool Restorer::read_block(const TierKey& key, GroupId group, BlockId block) {
  const SnapshotReader::Payload* const payload = reader_.find(key);
  if (payload == nullptr || !reader_.ends_well(*payload, storage_.block_image_bytes(group))) {
    return false;
  }
  RecordMac mac;
  ChecksumThread::Seal expected{.checksum = payload->checksum};
  if (keyed_ && !reader_.begin_mac(*payload, key, mac, expected.mac)) return false;
  const std::uint64_t seed = payload_seed(key);
  const auto pieces = images_.pieces(group, block);
  if (pieces.empty()) {
    image_.resize(static_cast<std::size_t>(storage_.block_image_bytes(group)));
    const std::int32_t number = block.value();
    if (!source_.read_at(payload->place, image_).ok()) return false;
    bool right = false;
    if (keyed_) {
      Digest seen{};
      mac.add(image_);
      right = mac.end(seen) && same_mac(seen, expected.mac);
    } else {
      right = checksum(image_, seed) == payload->checksum;
    }
    if (right) memory_ = storage_.write_blocks(group, std::span(&number, 1), image_);
    return right && memory_.ok();
  }
  if (!source_.read_pieces_at(payload->place, pieces).ok()) return false;
  if (keyed_) {
    checksums_.add(images_.reads(), std::move(mac));
  } else {
    checksums_.add(images_.reads(), seed);
  }
  expected_.push_back(expected);
  return true;
}

// A fork that has computed nothing of its own is one again, so that both have the same blocks.
const RestoredSequence* Restorer::twin_of(const SnapshotReader::Sequence& saved) const {
  for (std::size_t i = 0; i < stats_.sequences.size(); ++i) {
    const SnapshotReader::Sequence& other = reader_.sequences()[i];
    const bool same = saved.node != snapshot::kNoNode && saved.node == other.node &&
                      saved.max_tokens == other.max_tokens &&
                      saved.full_blocks_only == other.full_blocks_only;
    if (same) return &stats_.sequences[i];
  }
  return nullptr;
}

Status Restorer::restore_fork(const SnapshotReader::Sequence& saved,
                              const RestoredSequence& parent) {
  const auto child =
      manager_.fork(parent.sequence, {.caller_id = saved.caller_id, .priority = saved.priority});
  if (!child) return child.error();
  RestoredSequence restored = parent;
  restored.sequence = *child;
  restored.caller_id = saved.caller_id;
  stats_.sequences.push_back(std::move(restored));
  return {};
}

Status Restorer::restore_sequence(const SnapshotReader::Sequence& saved) {
  if (const RestoredSequence* twin = twin_of(saved)) return restore_fork(saved, *twin);
  Path path = reader_.path_to(saved.node);
  OpenOptions options{.publish = saved.full_blocks_only ? Publish::kFullBlocks : Publish::kAll,
                      .caller_id = saved.caller_id,
                      .max_tokens = saved.max_tokens,
                      .priority = saved.priority};
  if (path.root != nullptr) options.root = path.root->key();
  options.media = path.media;
  const auto opened = manager_.open(path.tokens, options);
  if (!opened) return opened.error();
  RestoredSequence restored{
      .sequence = opened->sequence, .caller_id = saved.caller_id, .length = opened->cached_tokens};
  if (!path.tokens.empty()) {
    const auto length = load(opened->sequence, opened->cached_tokens, path,
                             static_cast<std::int32_t>(path.tokens.size()));
    if (!length) {
      static_cast<void>(manager_.close(opened->sequence));
      return length.error();
    }
    restored.length = *length;
  }
  restored.tokens = std::move(path.tokens);
  stats_.sequences.push_back(std::move(restored));
  return {};
}

Status Restorer::restore_prefix(const Path& path, std::int32_t length) {
  tokens_ += length;
  const auto tokens = std::span(path.tokens).first(static_cast<std::size_t>(length));
  const auto opened = manager_.open(tokens, {.root = path.root->key(), .media = path.media});
  if (!opened) return opened.error();
  const auto reached = load(opened->sequence, opened->cached_tokens, path, length);
  KVFOLIO_RETURN_IF_ERROR(manager_.close(opened->sequence));
  if (!reached || *reached <= opened->cached_tokens) tokens_in_vain_ += length;
  return reached ? Status() : reached.error();
}

// A load brings the blocks that the position behind it reads. Those before them, in window groups,
// are for prompts that part earlier. These ends bring all of each run of blocks that the file has:
// they lie a window apart, and the first is the smallest whose window is within the run.
std::vector<std::int32_t> Restorer::inner_ends(const Path& path) const {
  const auto length = static_cast<std::int32_t>(path.tokens.size());
  const std::int64_t unit = identity_.unit();
  std::vector<std::int32_t> ends;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const GroupSpec& group = manager_.spec().groups[static_cast<std::size_t>(g)];
    if (GroupRule(group).keeps_all()) continue;
    const std::int64_t step = std::max((group.window - 1) / unit * unit, unit);
    const std::int32_t num_blocks = (length - 1) / group.block_size + 1;
    const auto has = [&](std::int32_t i) {
      return reader_.find(key_of(GroupId(g), i, path, length)) != nullptr;
    };
    for (std::int32_t first = 0, last = 0; last < num_blocks; first = ++last) {
      while (last < num_blocks && has(last)) ++last;
      const std::int64_t within = std::int64_t{first} * group.block_size + group.window - 1;
      const std::int64_t least = first == 0 ? unit : (within + unit - 1) / unit * unit;
      std::int64_t end = std::min(std::int64_t{last} * group.block_size, length / unit * unit);
      if (first == last || end < least) continue;
      for (; end > least; end -= step) ends.push_back(static_cast<std::int32_t>(end));
      ends.push_back(static_cast<std::int32_t>(least));
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

bool Restorer::may_go_on() const {
  if (tokens_ > kTokensMost || tokens_in_vain_ > kTokensInVain) return false;
  for (std::int32_t g = 0; g < identity_.num_groups(); ++g) {
    const auto usage = manager_.usage(GroupId(g));
    if (usage && usage->free > 0) return true;
  }
  return false;
}

// A path that cannot be opened (too many root keys, say) takes nothing else with it.
void Restorer::restore_paths() {
  const std::vector<std::uint32_t> leaves = reader_.leaves();
  stats_.paths = static_cast<std::int64_t>(leaves.size());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!may_go_on()) {
      stats_.paths_no_room += static_cast<std::int64_t>(leaves.size() - i);
      return;
    }
    const Path path = reader_.path_to(leaves[i]);
    const Status status = restore_prefix(path, static_cast<std::int32_t>(path.tokens.size()));
    if (!memory_.ok()) return;
    if (!status.ok()) ++stats_.paths_no_room;
  }
  if (!has_windows()) return;
  tokens_in_vain_ = 0;
  for (const std::uint32_t leaf : leaves) {
    const Path path = reader_.path_to(leaf);
    for (const std::int32_t end : inner_ends(path)) {
      if (!may_go_on() || !memory_.ok()) return;
      static_cast<void>(restore_prefix(path, end));
    }
  }
}

// One that finds no place, in rows or table entries, is left out with those behind it. Paths take
// such a place while they are loaded: so the last one that found one gives it back.
Status Restorer::restore_sequences() {
  for (const SnapshotReader::Sequence& saved : reader_.sequences()) {
    Status status = restore_sequence(saved);
    if (status.ok()) continue;
    if (status.code() != ErrorCode::kResourceExhausted) return status;
    if (!stats_.sequences.empty()) {
      static_cast<void>(manager_.close(stats_.sequences.back().sequence));
      stats_.sequences.pop_back();
    }
    stats_.paths_no_room += std::ssize(reader_.sequences()) - std::ssize(stats_.sequences);
    break;
  }
  return {};
}

void Restorer::close_all() {
  for (const RestoredSequence& restored : stats_.sequences) {
    static_cast<void>(manager_.close(restored.sequence));
  }
}

Result<RestoreStats> Restorer::run() {
  for (const SnapshotReader::Sequence& saved : reader_.sequences()) {
    if (!saved.caller_id || !manager_.find(*saved.caller_id)) continue;
    return Status(ErrorCode::kInvalidArgument,
                  concat("restore: a sequence with caller id ", *saved.caller_id, " is open"));
  }
  stats_.records = reader_.num_records() + reader_.num_refused();
  stats_.sections_damaged = reader_.num_damaged();
  stats_.records_refused = reader_.num_refused();
  Status status = restore_sequences();
  if (status.ok()) {
    restore_paths();
    status = memory_;
  }
  if (status.ok()) return std::move(stats_);
  close_all();
  return status;
}

}  // namespace

Result<RestoreStats> restore(KVCacheManager& manager, const Identity& identity, ByteSource& source,
                             const RestoreOptions& options) {
  // Also if it was moved from.
  if (const auto usage = manager.usage(GroupId(0)); !usage) return usage.error();
  if (manager.storage() == nullptr) {
    return Status(ErrorCode::kUnsupported, "restore: the manager has no storage");
  }
  KVFOLIO_RETURN_IF_ERROR(identity.check_spec(manager.spec()));
  const Result<RecordKeys> keys = RecordKeys::create(options.keys);
  if (!keys) return keys.error();
  SnapshotReader reader(identity, *manager.storage(), source, {}, *keys);
  KVFOLIO_RETURN_IF_ERROR(reader.read());
  return Restorer(manager, identity, reader, source, keys->has_key()).run();
}

}  // namespace kvfolio
