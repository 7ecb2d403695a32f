// SPDX-License-Identifier: Apache-2.0
//
// Runs come, grow, are cut and go: see run_store.h.

#include "prefix/run_store.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "kvfolio/prefetch.h"

namespace kvfolio {

using text::concat;

Status RunStore::allocate(const PrefixTreeOptions& options) {
  num_groups_ = static_cast<std::int32_t>(options.groups.size());
  max_runs_ = options.max_runs;
  // Each run may waste most of a granule and up to half of its span in each arena.
  const std::int64_t granules = std::int64_t{max_runs_} * SpanArena::kGranule;
  std::int64_t block_cells = 0;
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const std::int32_t size = options.groups[g].block_size;
    sizes_[g] = BlockSize(size);
    block_cells += 2 * (options.max_index_tokens / size + 1) + granules;
  }
  if (!runs_.allocate_zeroed(max_runs_) ||
      !entries_.allocate_zeroed(std::int64_t{max_runs_} * num_groups_)) {
    return {ErrorCode::kOutOfMemory,
            concat("no memory for a prefix tree of max_runs ", max_runs_, "; lower it")};
  }
  const auto make_arena = [](std::unique_ptr<SpanArena>& arena, std::int64_t words) -> Status {
    Result<SpanArena> made = SpanArena::create(std::min(words, SpanArena::kMaxWords));
    if (!made) return std::move(made).error();
    arena = std::make_unique<SpanArena>(std::move(*made));
    return {};
  };
  KVFOLIO_RETURN_IF_ERROR(make_arena(tokens_, options.max_index_tokens));
  return make_arena(blocks_, block_cells);
}

// ---- runs come and go ----

std::int32_t RunStore::add() noexcept {
  std::int32_t r = free_;
  std::uint32_t generation = 1;
  if (r != kNone) {
    free_ = run(r).parent;
    generation = run(r).generation;
  } else if (num_touched_ < max_runs_) {
    r = num_touched_++;
  } else {
    return kNone;
  }
  Run& fresh = run(r);
  fresh = {};
  fresh.parent = fresh.children = fresh.up = fresh.left = fresh.right = fresh.extents = kNone;
  fresh.generation = generation & ((1u << Run::kGenerationBits) - 1);
  fresh.alive = true;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunEntries& of = entries(r, g);
    of = {};
    of.last_live = of.last_idle = kNone;
  }
  ++num_runs_;
  return r;
}

void RunStore::remove(std::int32_t r) noexcept {
  Run& old = run(r);
  KVFOLIO_DCHECK(old.alive && old.num_children == 0 && old.places == 0 && old.extents == kNone);
  if (is_root(r)) {
    KVFOLIO_DCHECK(old.tokens.order < 0);
  } else {
    num_tokens_ -= old.length;
    tokens_->release(old.tokens);
  }
  for (std::int32_t g = 0; g < num_groups_; ++g) blocks_->release(entries(r, g).blocks);
  old.alive = false;
  ++old.generation;
  old.parent = free_;
  free_ = r;
  --num_runs_;
}

// ---- runs grow and are cut ----

bool RunStore::reserve(std::int32_t r, std::int32_t length) noexcept {
  Run& at = run(r);
  if (!tokens_->reserve(at.tokens, length, at.length)) return false;
  const std::int32_t end = at.start + length;
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunEntries& of = entries(r, g);
    const BlockSize size = sizes_[static_cast<std::size_t>(g)];
    const std::int32_t count = size.block_of(end - 1) - size.block_of(at.start) + 1;
    if (!blocks_->reserve(of.blocks, count, of.count)) return false;
  }
  return true;
}

void RunStore::add_entries(std::int32_t r) noexcept {
  const Run& at = run(r);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunEntries& of = entries(r, g);
    of.first = sizes_[static_cast<std::size_t>(g)].block_of(at.start);
    const std::int32_t count = index_of(r, g, at.end()) + 1;
    std::int32_t* block = blocks(r, g);
    for (; of.count < count; ++of.count) block[of.count] = kNone;
  }
}

void RunStore::append(std::int32_t r, std::span<const std::int32_t> tokens) noexcept {
  Run& at = run(r);
  const auto n = static_cast<std::int32_t>(tokens.size());
  KVFOLIO_DCHECK(at.num_children == 0 && SpanArena::capacity(at.tokens) >= at.length + n);
  std::memcpy(tokens_->at(at.tokens) + at.length, tokens.data(), tokens.size_bytes());
  at.length += n;
  num_tokens_ += n;
  add_entries(r);
}

void RunStore::shorten(std::int32_t r, std::int32_t length) noexcept {
  Run& at = run(r);
  KVFOLIO_DCHECK(at.num_children == 0 && length >= 1 && length <= at.length);
  num_tokens_ -= at.length - length;
  at.length = length;
  tokens_->shrink(at.tokens, length);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    RunEntries& of = entries(r, g);
    of.count = index_of(r, g, at.end()) + 1;
    KVFOLIO_DCHECK(of.last_live < of.count);
    blocks_->shrink(of.blocks, of.count);
  }
}

void RunStore::split_tokens(std::int32_t lower_run, std::int32_t upper_run,
                            std::int32_t cut) noexcept {
  Run& lower = run(lower_run);
  Run& upper = run(upper_run);
  KVFOLIO_CHECK(cut > lower.start && cut < lower.end());
  const std::int32_t n = cut - lower.start;
  KVFOLIO_DCHECK(upper.start == lower.start && SpanArena::capacity(upper.tokens) >= n);
  std::int32_t* own = tokens_->at(lower.tokens);
  std::memcpy(tokens_->at(upper.tokens), own, static_cast<std::size_t>(n) * 4);
  upper.length = n;
  add_entries(upper_run);
  lower.length -= n;
  std::memmove(own, own + n, static_cast<std::size_t>(lower.length) * 4);
  tokens_->shrink(lower.tokens, lower.length);
  lower.start = cut;
}

void RunStore::drop_front(std::int32_t r, std::int32_t g) noexcept {
  RunEntries& of = entries(r, g);
  std::int32_t* block = blocks(r, g);
  const std::int32_t n = sizes_[static_cast<std::size_t>(g)].block_of(run(r).start) - of.first;
  of.first += n;
  of.count -= n;
  std::memmove(block, block + n, static_cast<std::size_t>(of.count) * 4);
  blocks_->shrink(of.blocks, of.count);
}

// ---- questions ----

void RunStore::copy_tokens(std::int32_t r, std::int32_t begin,
                           std::span<std::int32_t> out) const noexcept {
  std::int32_t end = begin + static_cast<std::int32_t>(out.size());
  KVFOLIO_DCHECK(begin >= 0 && end <= run(r).end());
  for (; end > begin; r = run(r).parent) {
    const Run& at = run(r);
    if (end <= at.start) continue;
    const std::int32_t from = std::max(begin, at.start);
    std::memcpy(out.data() + (from - begin), tokens(r) + (from - at.start),
                static_cast<std::size_t>(end - from) * 4);
    end = from;
  }
}

void RunStore::prefetch(std::int32_t r) const noexcept {
  prefetch_to_read(&run(r));
  for (std::int32_t g = 0; g < num_groups_; ++g) {  // these may lie on two lines
    prefetch_to_read(&entries(r, g));
    prefetch_to_read(&entries(r, g).idle_kids);
  }
}

void RunStore::prefetch_ends(std::int32_t r) const noexcept {
  prefetch_to_write(tokens(r) + run(r).length);
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    prefetch_to_write(blocks(r, g) + entries(r, g).count);
  }
}

void RunStore::prefetch_spans(std::int32_t r, std::int32_t g) const noexcept {
  tokens_->prefetch(run(r).tokens);
  blocks_->prefetch(entries(r, g).blocks);
}

// ---- copy and check ----

MemoryUse RunStore::memory() const noexcept {
  const std::int64_t run =
      std::int64_t{sizeof(Run)} + num_groups_ * std::int64_t{sizeof(RunEntries)};
  MemoryUse sum{run * max_runs_, run * num_runs_};
  sum += tokens_->memory();
  sum += blocks_->memory();
  return sum;
}

// A member that is not named here does not compile.
void RunStore::copy_from(const RunStore& other) noexcept {
  const auto& [runs, entries, tokens, blocks, sizes, num_groups, max_runs, num_touched, free,
               num_runs, num_tokens] = other;
  KVFOLIO_CHECK(num_groups_ == num_groups && max_runs_ == max_runs);
  runs_.copy_from(runs, num_touched);
  entries_.copy_from(entries, std::int64_t{num_touched} * num_groups);
  tokens_->copy_from(*tokens);
  blocks_->copy_from(*blocks);
  num_touched_ = num_touched;
  free_ = free;
  num_runs_ = num_runs;
  num_tokens_ = num_tokens;
}

Status RunStore::broken(std::int32_t r, const std::string& what) {
  return {ErrorCode::kFailedPrecondition, concat("prefix tree, run ", r, ": ", what)};
}

Status RunStore::check_run(std::int32_t r) const {
  const Run& at = run(r);
  if (is_root(r)) return at.start == 0 && at.length == 0 ? Status() : broken(r, "a root is long");
  if (!run(at.parent).alive || run(at.parent).end() != at.start) {
    return broken(r, "does not begin where its parent ends");
  }
  if (at.length < 1) return broken(r, "is empty");
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    const RunEntries& of = entries(r, g);
    const BlockSize size = sizes_[static_cast<std::size_t>(g)];
    const std::int32_t first = size.block_of(at.start);
    if (of.first != first || of.count != size.block_of(at.end() - 1) - first + 1) {
      return broken(r, concat("group ", g, " has entries ", of.first, " + ", of.count));
    }
  }
  return {};
}

Status RunStore::check() const {
  std::int32_t alive = 0;
  std::int64_t tokens = 0;
  for (std::int32_t r = 0; r < num_touched_; ++r) {
    if (!run(r).alive) continue;
    ++alive;
    KVFOLIO_RETURN_IF_ERROR(check_run(r));
    tokens += run(r).length;
  }
  std::int32_t free = 0;
  for (std::int32_t r = free_; r != kNone && free <= num_touched_; r = run(r).parent) ++free;
  if (alive != num_runs_ || tokens != num_tokens_ || alive + free != num_touched_) {
    return broken(kNone,
                  concat("counted ", alive, " runs, ", free, " free ones and ", tokens,
                         " tokens, kept ", num_runs_, " of ", num_touched_, " and ", num_tokens_));
  }
  return {};
}

}  // namespace kvfolio
