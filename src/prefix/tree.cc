// SPDX-License-Identifier: Apache-2.0
//
// PrefixTree from outside: how it is made, its roots, the places of its users, and the public face.
// Start with match.cc for looking up and publish.cc for what changes; tree.h names the rest.

#include "prefix/tree.h"

#include <algorithm>
#include <memory>

#include "base/hash.h"
#include "base/text.h"
#include "kvfolio/prefetch.h"

namespace kvfolio {

using text::concat;

// ---- creation ----

namespace {

Status bad(const char* field, std::int64_t value, const char* allowed) {
  return {ErrorCode::kInvalidArgument,
          concat(std::string_view(field), " is ", value, ", allowed: ", std::string_view(allowed))};
}

std::int32_t unit_of(const PrefixTreeOptions& options) noexcept {
  std::int32_t unit = options.groups.front().block_size;
  for (const TreeGroup& spec : options.groups) unit = std::min(unit, spec.block_size);
  return unit;
}

Status check_groups(std::span<const TreeGroup> groups, std::int32_t unit) {
  constexpr const char* kAllowedSizes = "1 to 1024, a multiple of the smallest";
  if (unit < 1) return bad("block_size", unit, kAllowedSizes);
  for (const TreeGroup& spec : groups) {
    if (spec.block_size > kMaxBlockSize || spec.block_size % unit != 0) {
      return bad("block_size", spec.block_size, kAllowedSizes);
    }
    if (spec.num_blocks < 1 || spec.num_blocks > (1 << 29)) {
      return bad("num_blocks", spec.num_blocks, "1 to 2^29");
    }
    const GroupRule rule(spec.kind, spec.window, spec.num_sinks);
    if (!rule.keeps_all() && spec.window < 1) {
      return bad("window", spec.window, "at least 1");
    }
  }
  return {};
}

Status check_options(const PrefixTreeOptions& options) {
  if (options.groups.empty() || options.groups.size() > static_cast<std::size_t>(kMaxGroups)) {
    return bad("the number of groups", static_cast<std::int64_t>(options.groups.size()), "1 to 16");
  }
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 32;
  if (options.max_index_tokens < 1 || options.max_index_tokens > kMaxTokens) {
    return bad("max_index_tokens", options.max_index_tokens, "1 to 2^32");
  }
  if (options.max_runs < 2 || options.max_runs > (1 << 29)) {
    return bad("max_runs", options.max_runs, "2 to 2^29");
  }
  if (options.max_root_keys < 1 || options.max_root_keys > options.max_runs - 1) {
    return bad("max_root_keys", options.max_root_keys, "1 to max_runs - 1");
  }
  if (options.max_root_key_bytes < 0 || options.max_root_key_bytes > (std::int64_t{1} << 34)) {
    return bad("max_root_key_bytes", options.max_root_key_bytes, "0 to 2^34");
  }
  if (options.max_media_extents < 0 || options.max_media_extents > (1 << 28)) {
    return bad("max_media_extents", options.max_media_extents, "0 to 2^28");
  }
  return check_groups(options.groups, unit_of(options));
}

}  // namespace

Result<std::unique_ptr<PrefixTree::Impl>> PrefixTree::Impl::create(
    const PrefixTreeOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_options(options));
  std::unique_ptr<Impl> tree(new Impl);
  KVFOLIO_RETURN_IF_ERROR(tree->allocate(options));
  return tree;
}

Status PrefixTree::Impl::allocate(const PrefixTreeOptions& options) {
  unit_ = unit_of(options);
  units_ = BlockSize(unit_);
  num_groups_ = static_cast<std::int32_t>(options.groups.size());
  hash_seed_ = options.hash_seed;
  bool ok = media_.allocate(options.max_media_extents) &&
            children_.allocate(options.max_runs, unit_, hash_seed_) &&
            log_.allocate(options.groups);
  for (const TreeGroup& spec : options.groups) {
    Group group;
    group.spec = spec;
    group.rule = GroupRule(spec.kind, spec.window, spec.num_sinks);
    group.size = BlockSize(spec.block_size);
    ok = ok && group.where.allocate_zeroed(spec.num_blocks);
    if (!group.full()) {
      has_windows_ = true;
      ok = ok && group.read.allocate_zeroed(spec.num_blocks);
    }
    groups_.push_back(std::move(group));
  }
  if (!ok) {
    return {ErrorCode::kOutOfMemory,
            concat("no memory for a prefix tree of max_runs ", options.max_runs,
                   " and max_index_tokens ", options.max_index_tokens, "; lower them")};
  }
  KVFOLIO_RETURN_IF_ERROR(runs_.allocate(options));
  return keys_.allocate(options.max_root_keys, options.max_root_key_bytes);
}

// ---- roots ----

std::int32_t PrefixTree::Impl::lookup_root(const RootKey& key, std::int64_t bytes,
                                           std::uint32_t hash) const noexcept {
  return children_.find_by_hash(hash, [&](std::int32_t r) {
    const Run& root = run(r);
    return runs_.is_root(r) && root.key_bytes == bytes && keys_.is(root.tokens, key);
  });
}

std::int32_t PrefixTree::Impl::find_root(const RootKey& key) const noexcept {
  const std::int64_t bytes = keys_.bytes_of(key);
  return bytes == 0 ? kNone : lookup_root(key, bytes, RootKeys::hash_of(key, hash_seed_));
}

std::int32_t PrefixTree::Impl::make_root(const RootKey& key) noexcept {
  const std::int64_t bytes = keys_.bytes_of(key);
  if (bytes == 0) return kNone;
  const std::uint32_t hash = RootKeys::hash_of(key, hash_seed_);
  if (const std::int32_t found = lookup_root(key, bytes, hash); found != kNone) return found;
  if (!keys_.has_room(bytes)) return kNone;
  const std::int32_t r = runs_.add();
  if (r == kNone) return kNone;
  Run& root = run(r);
  if (!keys_.keep(key, bytes, root.tokens)) {
    runs_.remove(r);
    return kNone;
  }
  root.key_bytes = static_cast<std::int32_t>(bytes);
  root.hash = hash;
  root.chain = static_cast<std::uint32_t>(mix_bits(hash_seed_ ^ static_cast<std::uint32_t>(r)));
  children_.index(r);
  return r;
}

bool PrefixTree::Impl::has_room_for_root(const RootKey& key) const noexcept {
  const std::int64_t bytes = keys_.bytes_of(key);
  return bytes != 0 && runs_.has_room() && keys_.can_keep(bytes);
}

// ---- places ----

Place PrefixTree::Impl::enter(std::int32_t r, std::int32_t position) noexcept {
  KVFOLIO_DCHECK(run(r).alive && position >= 0 && position <= run(r).end());
  ++run(r).places;
  Place place{r, run(r).generation, position};
  settle(place);
  return place;
}

void PrefixTree::Impl::leave(Place& place) noexcept {
  if (!place.valid()) return;
  Run& at = run(place.run);
  KVFOLIO_CHECK(at.alive && at.generation == place.generation && at.places > 0);
  --at.places;
  cut(place.run);
  place = {};
}

// A split keeps the name on the lower part: the place may lie above its run by now.
void PrefixTree::Impl::settle(Place& place) noexcept {
  std::int32_t r = place.run;
  KVFOLIO_CHECK(run(r).alive && run(r).generation == place.generation);
  while (run(r).parent != kNone && place.position <= run(r).start) r = run(r).parent;
  if (r == place.run) return;
  const std::int32_t left = place.run;
  ++run(r).places;
  --run(left).places;
  place.run = r;
  place.generation = run(r).generation;
  cut(left);
}

void PrefixTree::Impl::prefetch_eviction(std::int32_t g, std::int32_t block,
                                         int step) const noexcept {
  const Where& where = group(g).where[block];
  if (step == 0) {
    prefetch_to_write(&where);
    return;
  }
  const std::int32_t r = where.run - 1;
  if (r < 0) return;
  const Run& at = run(r);
  if (step == 1) {
    runs_.prefetch(r);
    return;
  }
  const RunEntries& of = entries(r, g);
  prefetch_to_write(blocks(r, g) + runs_.index_of(r, g, where.end()));
  if (of.num_live > 1) return;
  // The run may vanish, out of the table, from between its siblings, and with its memory.
  if (at.hashed != 0) children_.prefetch(at.hash);
  for (const std::int32_t beside : {at.parent, at.up, at.left, at.right}) {
    if (beside != kNone) prefetch_to_write(&run(beside));
  }
  runs_.prefetch_spans(r, g);
}

void PrefixTree::Impl::climb(Place& place, std::int32_t position) noexcept {
  KVFOLIO_CHECK(position <= place.position);
  place.position = position;
  settle(place);
}

// ---- the public face ----

PrefixTree::PrefixTree(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
PrefixTree::PrefixTree(PrefixTree&&) noexcept = default;
PrefixTree& PrefixTree::operator=(PrefixTree&&) noexcept = default;
PrefixTree::~PrefixTree() = default;

Result<PrefixTree> PrefixTree::create(const PrefixTreeOptions& options) {
  Result<std::unique_ptr<Impl>> impl = Impl::create(options);
  if (!impl) return std::move(impl).error();
  return PrefixTree(std::move(*impl));
}

std::int32_t PrefixTree::find_root(const RootKey& key) const noexcept {
  return impl_->find_root(key);
}
std::int32_t PrefixTree::make_root(const RootKey& key) noexcept { return impl_->make_root(key); }
bool PrefixTree::has_room_for_root(const RootKey& key) const noexcept {
  return impl_->has_room_for_root(key);
}

PrefixMatch PrefixTree::match(std::int32_t root, std::span<const std::int32_t> tokens,
                              std::span<const MediaSpan> media, std::int32_t max_tokens,
                              bool allow_whole) const noexcept {
  if (root < 0) return {};
  return impl_->match(root, tokens, media, max_tokens, allow_whole);
}
void PrefixTree::fill_table(const PrefixMatch& match, GroupId group, std::span<std::int32_t> out,
                            bool one_more, std::int32_t first) const noexcept {
  impl_->fill_table(match, group, out, one_more, first);
}
void PrefixTree::whole_blocks(std::int32_t root, std::span<const std::int32_t> tokens,
                              std::span<const MediaSpan> media, GroupId group, std::int32_t first,
                              std::span<std::int32_t> out) const noexcept {
  impl_->whole_blocks(root, tokens, media, group.value(), first, out);
}

Place PrefixTree::enter(std::int32_t run, std::int32_t position) noexcept {
  return impl_->enter(run, position);
}
void PrefixTree::leave(Place& place) noexcept { impl_->leave(place); }
void PrefixTree::climb(Place& place, std::int32_t position) noexcept {
  impl_->climb(place, position);
}
void PrefixTree::copy_tokens(const Place& place, std::int32_t begin,
                             std::span<std::int32_t> out) const noexcept {
  KVFOLIO_CHECK(begin + static_cast<std::int32_t>(out.size()) <= place.position);
  impl_->runs_.copy_tokens(place.run, begin, out);
}

void PrefixTree::prefetch(const Place& place) const noexcept { impl_->runs_.prefetch(place.run); }
void PrefixTree::prefetch_ends(const Place& place) const noexcept {
  impl_->runs_.prefetch_ends(place.run);
}
void PrefixTree::prefetch(GroupId group, std::span<const std::int32_t> blocks) const noexcept {
  const Impl::Group& of = impl_->groups_[static_cast<std::size_t>(group.value())];
  for (const std::int32_t block : blocks) {
    if (block < 0) continue;
    prefetch_to_write(&of.where[block]);
  }
}

void PrefixTree::prefetch_eviction(GroupId group, BlockId block, int step) const noexcept {
  impl_->prefetch_eviction(group.value(), block.value(), step);
}

bool PrefixTree::extend(Place& place, std::span<const std::int32_t> tokens,
                        std::span<const MediaSpan> media, const PublishOffer& offer,
                        Published& published) noexcept {
  return impl_->extend(place, tokens, media, offer, published);
}
BlockId PrefixTree::entry_at(const Place& place, GroupId group,
                             std::int32_t logical) const noexcept {
  return BlockId(impl_->entry_at(place, group.value(), logical));
}

std::int32_t PrefixTree::findable_end(GroupId group, BlockId block) const noexcept {
  const Impl::Where& where = impl_->where(group, block);
  return where.run == 0 ? 0 : where.end();
}
void PrefixTree::findable_ends(GroupId group, std::span<const std::int32_t> blocks,
                               std::span<std::int32_t> ends) const noexcept {
  const auto& where = impl_->groups_[static_cast<std::size_t>(group.value())].where;
  KVFOLIO_DCHECK(ends.size() == blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    // An entry that is none has no end either.
    ends[i] = blocks[i] < 0 ? 0 : where[blocks[i]].end();
  }
}
void PrefixTree::set_idle(GroupId group, std::span<const std::int32_t> blocks) noexcept {
  impl_->mark(group.value(), blocks, true);
}
void PrefixTree::set_busy(GroupId group, std::span<const std::int32_t> blocks) noexcept {
  impl_->mark(group.value(), blocks, false);
}
void PrefixTree::replace(GroupId group, BlockId block, BlockId by) noexcept {
  impl_->replace(group.value(), block.value(), by.value());
}
void PrefixTree::unhang(GroupId group, BlockId block) noexcept {
  impl_->unhang(group.value(), block.value());
}
void PrefixTree::forget(std::int32_t root, std::span<const std::int32_t> tokens,
                        std::span<const MediaSpan> media) noexcept {
  impl_->forget(root, tokens, media);
}
bool PrefixTree::begins_with(const Place& place, std::int32_t root,
                             std::span<const std::int32_t> tokens,
                             std::span<const MediaSpan> media) const noexcept {
  KVFOLIO_DCHECK(tokens.size() <= static_cast<std::size_t>(place.position));
  return impl_->begins_with(place.run, root, tokens, media);
}
bool PrefixTree::begins_with(GroupId group, BlockId block, std::int32_t root,
                             std::span<const std::int32_t> tokens,
                             std::span<const MediaSpan> media) const noexcept {
  const Impl::Where& where = impl_->where(group, block);
  return tokens.size() <= static_cast<std::size_t>(where.end()) && where.run != 0 &&
         impl_->begins_with(where.run - 1, root, tokens, media);
}
std::int32_t PrefixTree::next_root(std::int32_t after) const noexcept {
  return impl_->next_root(after);
}
std::int32_t PrefixTree::num_idle(GroupId group) const noexcept {
  return impl_->groups_[static_cast<std::size_t>(group.value())].num_idle;
}
void PrefixTree::note_end(const Place& place, std::int32_t position) noexcept {
  impl_->note_end(place, position);
}
void PrefixTree::note_read(GroupId group, std::span<const std::int32_t> blocks) noexcept {
  impl_->note_read(group.value(), blocks);
}
bool PrefixTree::is_read(GroupId group, BlockId block) const noexcept {
  return impl_->groups_[static_cast<std::size_t>(group.value())].is_read(block.value());
}
bool PrefixTree::has_changes() const noexcept { return !impl_->log_.empty(); }
TreeChange PrefixTree::take_change() noexcept { return impl_->take_change(); }
MemoryUse PrefixTree::memory() const noexcept {
  MemoryUse sum = impl_->log_.memory();
  for (const Impl::Group& group : impl_->groups_) {
    sum += MemoryUse::whole(group.where.bytes());
    sum += MemoryUse::whole(group.read.bytes());
  }
  sum += impl_->runs_.memory();
  sum += impl_->children_.memory();
  sum += impl_->media_.memory();
  sum += impl_->keys_.memory();
  return sum;
}
void PrefixTree::clear_changes() noexcept { impl_->log_.clear(); }
void PrefixTree::copy_from(const PrefixTree& other) noexcept { impl_->copy_from(*other.impl_); }
std::int32_t PrefixTree::unit() const noexcept { return impl_->unit_; }
std::int32_t PrefixTree::num_runs() const noexcept { return impl_->runs_.num_runs(); }
std::int64_t PrefixTree::num_tokens() const noexcept { return impl_->runs_.num_tokens(); }
Status PrefixTree::check_invariants() const { return impl_->check_invariants(); }

}  // namespace kvfolio
