// SPDX-License-Identifier: Apache-2.0
#include "state_reader.h"

#include <algorithm>
#include <array>

#include "manager/impl.h"
#include "prefix/tree.h"

namespace kvfolio {

namespace {

constexpr std::int32_t kMost = 64;  // blocks, runs and rows of the managers that are read

class Names {
 public:
  Names() { names_.fill(-1); }
  // Of something that is none: -1.
  std::int32_t of(std::int32_t id) {
    if (id < 0) return -1;
    std::int32_t& name = names_.at(static_cast<std::size_t>(id));
    if (name < 0) name = next_++;
    return name;
  }
  [[nodiscard]] bool has(std::int32_t id) const {
    return names_.at(static_cast<std::size_t>(id)) >= 0;
  }

 private:
  std::array<std::int32_t, kMost> names_{};
  std::int32_t next_ = 0;
};

// Of runs that hang below `r`, in the order of their tokens.
template <typename Runs, typename Visit>
void in_order(const Runs& runs, std::int32_t r, const Visit& visit) {
  if (r < 0) return;
  in_order(runs, runs.run(r).left, visit);
  visit(r);
  in_order(runs, runs.run(r).right, visit);
}

}  // namespace

std::vector<SequenceId> StateReader::open_order(const KVCacheManager& manager, bool swap) {
  const KVCacheManager::Impl& impl = *manager.impl_;
  std::vector<SequenceId> ids;
  for (std::int32_t row = 0; row < impl.num_rows(); ++row) {
    const auto& s = impl.rows_[row];
    if (s.life == Sequence::Life::kOpen) ids.push_back(impl.id_of(s));
  }
  if (swap) std::reverse(ids.begin(), ids.end());
  return ids;
}

BlockState StateReader::block_state(const KVCacheManager& manager, BlockId block) {
  return manager.impl_->pool(0).state(block);
}

bool StateReader::replays(const KVCacheManager& manager, SequenceId sequence) {
  return manager.impl_->rows_[PackedId::row_of(sequence.value())].replay;
}

bool StateReader::publishes(const KVCacheManager& manager, SequenceId sequence) {
  return manager.impl_->rows_[PackedId::row_of(sequence.value())].publishes;
}

std::vector<std::int32_t> StateReader::ready(const KVCacheManager& manager, SequenceId sequence) {
  std::vector<std::int32_t> blocks;
  const std::int32_t row = PackedId::row_of(sequence.value());
  if (manager.impl_->rows_[row].has_promise) {
    manager.impl_->reservations_.for_each_ready(
        row, 0, [&](BlockId block) { blocks.push_back(block.value()); });
  }
  return blocks;
}

bool StateReader::has_pin(const KVCacheManager& manager) {
  return manager.impl_->pins_.pins_[0].open;
}

std::vector<FoundBlock> StateReader::findable(const KVCacheManager& manager) {
  const PrefixTree::Impl& tree = *manager.impl_->tree_->impl_;
  std::vector<FoundBlock> found;
  const auto& where = tree.groups_[0].where;
  for (std::size_t block = 0; block < where.size(); ++block) {
    if (where[block].run == 0) continue;
    FoundBlock entry{
        static_cast<std::int32_t>(block), static_cast<std::int32_t>(where[block].end), {}};
    std::vector<std::int32_t> path;
    for (std::int32_t r = where[block].run - 1; r >= 0 && tree.run(r).parent >= 0;
         r = tree.run(r).parent) {
      path.push_back(r);
    }
    std::reverse(path.begin(), path.end());
    for (const std::int32_t r : path) {
      const std::int32_t* tokens = tree.runs_.tokens(r);
      entry.tokens.insert(entry.tokens.end(), tokens, tokens + tree.run(r).length);
    }
    found.push_back(std::move(entry));
  }
  return found;
}

void StateReader::write(const KVCacheManager& manager, bool swap, std::vector<std::int32_t>& out) {
  using Impl = KVCacheManager::Impl;
  const Impl& impl = *manager.impl_;
  const PrefixTree::Impl& tree = *impl.tree_->impl_;
  const BlockPool& pool = impl.pool(0);
  const LruOrder& order = impl.room_.order_;
  Names blocks;
  Names runs;
  Names rows;
  out.clear();
  const auto put = [&](auto value) { out.push_back(static_cast<std::int32_t>(value)); };

  // Tickets decide by which steps in flight, and which open one, they name or come after.
  std::vector<std::uint64_t> tickets;
  tickets.reserve(static_cast<std::size_t>(impl.steps_.num_in_flight()) + 1);
  for (std::int32_t i = 0; i < impl.steps_.num_in_flight(); ++i) {
    tickets.push_back(impl.steps_.in_flight(i).ticket);
  }
  if (impl.steps_.is_open()) tickets.push_back(impl.steps_.open().ticket);
  const auto rank = [&](std::uint64_t ticket) -> std::int32_t {
    std::int32_t rank = 1;
    for (const std::uint64_t each : tickets) {
      if (each <= ticket) rank += each == ticket ? 1 : 2;
    }
    return rank;
  };
  const auto widen = [&](std::uint32_t low) {  // the newest ticket with these low bits
    const std::uint64_t t = (impl.steps_.last_ticket() & ~std::uint64_t{0xffffffff}) | low;
    return t > impl.steps_.last_ticket() ? std::uint64_t{0} : t;
  };

  // The tree, in the order of its tokens.
  const auto walk = [&](const auto& self, std::int32_t r) -> void {
    const auto& run = tree.run(r);
    runs.of(r);
    put(run.start);
    put(run.length);
    put(run.places);
    if (run.parent >= 0) {
      const std::int32_t* tokens = tree.runs_.tokens(r);
      out.insert(out.end(), tokens, tokens + run.length);
    }
    const auto& entries = tree.entries(r, 0);
    put(entries.first);
    put(entries.count);
    const std::int32_t* hung = tree.blocks(r, 0);
    for (std::int32_t i = 0; i < entries.count; ++i) {
      put(blocks.of(hung[i]));
      if (hung[i] >= 0) put(tree.groups_[0].where[hung[i]].end);
      if (hung[i] >= 0) put(tree.groups_[0].where[hung[i]].idle);
    }
    put(run.num_children);
    in_order(tree.runs_, run.children, [&](std::int32_t child) { self(self, child); });
  };
  for (std::int32_t r = 0; r < tree.runs_.num_touched(); ++r) {
    if (tree.run(r).alive && tree.run(r).parent < 0) walk(walk, r);
  }
  put(-7);

  // Sequences: the open ones, then those that wait to be closed, in order.
  std::vector<std::int32_t> live;
  for (std::int32_t row = 0; row < impl.num_rows(); ++row) {
    if (impl.rows_[row].life == Impl::Life::kOpen) {
      live.push_back(row);
    }
  }
  if (swap) std::reverse(live.begin(), live.end());
  for (const std::int32_t row : impl.rows_.closing()) live.push_back(row);
  for (const std::int32_t row : live) rows.of(row);
  const auto row_name = [&](std::int32_t row) -> std::int32_t {
    if (row < 0) return -1;
    return rows.has(row) ? rows.of(row) : -2;
  };
  for (const std::int32_t row : live) {
    const auto& s = impl.rows_[row];
    const auto& d = impl.details(row);
    put(s.life);
    put(s.publishes);
    put(s.used);
    put(s.replay ? d.replay_token : -1);
    put(s.length);
    put(s.accepted);
    put(impl.options_.order == Order::kUnordered ? d.settled : 0);
    put(s.draft());
    put(s.exact_until);
    put(s.unnamed_from);
    put(d.trim_sinks);
    put(d.trim_first_kept);
    put(s.step_entry);
    put(s.late_names);
    put(s.has_promise ? impl.reservations_.tokens(row) : -1);
    if (s.has_promise) {
      put(impl.reservations_.most_per_step(row));
      put(impl.reservations_.rows_[row].spent);
      put(impl.reservations_.num_taken(row, 0));
      // Which of them is taken first is a matter of names.
      put(impl.reservations_.num_ready(row, 0));
    }
    put(impl.unnamed_.counts_[row].stretches);
    for (std::int32_t i = 0; i < impl.unnamed_.counts_[row].stretches; ++i) {
      put(impl.unnamed_.of(row)[i].begin);
      put(impl.unnamed_.of(row)[i].end);
    }
    put(rank(s.last_ticket));
    put(rank(s.wrote_last()));
    put(impl.options_.order == Order::kUnordered ? rank(s.row_ticket()) : 0);
    put(impl.promised_reuse(s, 0));
    if (s.publishes) {
      put(d.own_from);
      put(d.own_to);
      put(d.entries_seen != impl.entry_changes_);
      put(d.losses_seen != impl.losses_);
      put(s.place.valid() ? runs.of(s.place.run) : -1);
      put(s.place.position);
      const std::int32_t* pending = impl.arena().at(s.pending);
      const std::int32_t count = s.pending_end() - s.place.position;
      for (std::int32_t i = 0; i < count; ++i) put(pending[i]);
    }
    const auto table = impl.table(row, 0).blocks(impl.arena());
    put(table.size());
    for (const std::int32_t block : table) put(blocks.of(block));
    put(impl.tables_.window_begin(row, 0));
  }
  // Rows without a sequence that a step uses: which of them matters to nobody.
  put(-13);
  std::vector<std::int32_t> resting;
  for (const std::int32_t row : impl.rows_.resting()) {
    resting.push_back(rank(impl.rows_[row].row_ticket()));
  }
  std::sort(resting.begin(), resting.end());
  out.insert(out.end(), resting.begin(), resting.end());
  put(-8);
  for (std::size_t p = 0; p < impl.pins_.pins_.size(); ++p) {
    const auto& pin = impl.pins_.pins_[p];
    put(pin.open);
    if (!pin.open) continue;
    const Place& place = pin.place;
    put(place.valid() ? runs.of(place.run) : -1);
    put(place.position);
    const auto table = impl.pins_.table(static_cast<std::int32_t>(p), 0).blocks(impl.arena());
    put(table.size());
    for (const std::int32_t block : table) put(blocks.of(block));
  }

  // Steps, the oldest first.
  put(static_cast<std::size_t>(impl.steps_.num_in_flight()));
  std::vector<const Step*> steps;
  steps.reserve(static_cast<std::size_t>(impl.steps_.num_in_flight()) + 1);
  for (std::int32_t i = 0; i < impl.steps_.num_in_flight(); ++i) {
    steps.push_back(&impl.steps_.in_flight(i));
  }
  put(impl.steps_.is_open());
  if (impl.steps_.is_open()) steps.push_back(&impl.steps_.open());
  for (const Step* each : steps) {
    const Step& step = *each;
    put(-9);
    put(rank(step.ticket));
    put(step.num_entries);
    put(step.has_unnamed);
    for (std::int32_t e = 0; e < step.num_entries; ++e) {
      const auto& entry = step.entries[e];
      const auto& change = step.change(e, 0);
      const auto& s = impl.rows_[entry.row];
      const bool same = s.birth == entry.birth && s.life != Impl::Life::kUnused;
      put(same ? row_name(entry.row) : -3);
      put(entry.begin);
      put(entry.end);
      put(entry.write_begin);
      put(entry.draft);
      put(entry.unnamed);
      put(entry.used_before);
      put(entry.replay_before);
      put(blocks.of(change.source));
      put(blocks.of(change.copy_to));
      put(change.valid_before);
      put(row_name(change.writer_before));
      put(rank(widen(change.written_before)));
    }
  }

  // Blocks: those that retire and the ranks of the others, then the rest of what the pool knows.
  put(-10);
  for (std::int32_t b = pool.retiring_head_; b >= 0; b = pool.next_of(b)) {
    put(blocks.of(b));
    put(rank(widen(pool.at(BlockId(b)).stamp)));
  }
  std::vector<std::int32_t> ranked;
  for (std::int32_t b = 0; b < pool.num_blocks(); ++b) {
    if (order.has_rank(GroupId(0), BlockId(b))) ranked.push_back(b);
  }
  std::sort(ranked.begin(), ranked.end(), [&](std::int32_t a, std::int32_t b) {
    return order.colder({GroupId(0), BlockId(a)}, {GroupId(0), BlockId(b)});
  });
  put(-11);
  for (const std::int32_t b : ranked) {
    put(blocks.of(b));
    put(static_cast<int>(order.turn(GroupId(0), BlockId(b))));
  }
  put(-12);
  // Free blocks are all alike: which is taken first is a matter of names.
  std::vector<std::array<std::int32_t, 11>> rest;
  for (std::int32_t b = 0; b < pool.num_blocks(); ++b) {
    const auto& block = pool.at(BlockId(b));
    if (block.state == BlockState::kFree) continue;
    const bool asks_release = impl.options_.order == Order::kUnordered;
    rest.push_back({blocks.of(b), static_cast<std::int32_t>(block.state), pool.refs(BlockId(b)),
                    row_name(pool.writer(BlockId(b))), rank(widen(block.written)), block.valid,
                    static_cast<std::int32_t>(block.touched),
                    static_cast<std::int32_t>(block.wanted), static_cast<std::int32_t>(block.steps),
                    asks_release ? rank(widen(block.stamp)) : 0,
                    row_name(impl.reservations_.owner(0, BlockId(b)))});
  }
  std::sort(rest.begin(), rest.end());
  for (const auto& block : rest) out.insert(out.end(), block.begin(), block.end());
}

}  // namespace kvfolio
