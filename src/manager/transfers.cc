// SPDX-License-Identifier: Apache-2.0
//
// Transfers: ids and tables of loads and holds (transfers.h). loads.cc and holds.cc decide what
// they have.

#include "manager/transfers.h"

#include <string>

#include "base/text.h"

namespace kvfolio {

using text::concat;

namespace {

Status transfers_broken(const std::string& what) {
  return {ErrorCode::kFailedPrecondition, "transfers: " + what};
}

}  // namespace

// A load stands for a writer of blocks and a hold for a reader, who know them by their ids here.
Status Transfers::check_none_open(std::string_view what, std::string_view whose) const {
  if (none_open()) return {};
  const std::int32_t loads = num_loads();
  const std::int32_t holds = num_holds();
  return {
      ErrorCode::kFailedPrecondition,
      concat(what, ": ", loads, loads == 1 ? " load and " : " loads and ", holds,
             holds == 1 ? " hold of " : " holds of ", whose, " are open; finish and release them")};
}

// ---- slots ----

template <typename Item>
bool Transfers::Slots<Item>::allocate(std::int32_t most) noexcept {
  if (!slots_.allocate_zeroed(most)) return false;
  first_free_ = kNone;
  num_open_ = touched_ = 0;
  for (std::int32_t i = most - 1; i >= 0; --i) {  // number 0 is taken first
    slots_[i].generation = 1;
    slots_[i].next_free = first_free_;
    first_free_ = i;
  }
  return true;
}

template <typename Item>
std::uint64_t Transfers::Slots<Item>::take(std::uint16_t tag) noexcept {
  KVFOLIO_CHECK(first_free_ != kNone);
  const std::int32_t i = first_free_;
  first_free_ = slots_[i].next_free;
  slots_[i].open = true;
  ++num_open_;
  touched_ = std::max(touched_, i + 1);
  return id_of(i, tag);
}

template <typename Item>
void Transfers::Slots<Item>::give_back(std::int32_t i) noexcept {
  KVFOLIO_CHECK(slots_[i].open);
  slots_[i].open = false;
  slots_[i].generation = next_generation(slots_[i].generation);
  slots_[i].item = Item();
  slots_[i].next_free = first_free_;
  first_free_ = i;
  --num_open_;
}

template <typename Item>
void Transfers::Slots<Item>::copy_from(const Slots& other) noexcept {
  const auto& [slots, first_free, num_open, touched] = other;
  slots_.copy_from(slots);
  first_free_ = first_free;
  num_open_ = num_open;
  touched_ = touched;
}

template <typename Item>
Status Transfers::Slots<Item>::check(std::string_view name) const {
  std::int32_t open = 0;
  for (std::int32_t i = 0; i < size(); ++i) {
    open += slots_[i].open ? 1 : 0;
    if (slots_[i].open && i >= touched_) {
      return transfers_broken(concat(name, " ", i, " is open, and ", touched_, " was never taken"));
    }
  }
  std::int32_t free = 0;
  for (std::int32_t i = first_free_; i != kNone && free <= size(); ++free) {
    if (slots_[i].open)
      return transfers_broken(concat(name, " ", i, " is open and in the list of the free"));
    i = slots_[i].next_free;
  }
  if (open == num_open_ && open + free == size()) return {};
  return transfers_broken(concat(open, " ", name, "s are open, counted ", num_open_, ", and ", free,
                                 " are free of ", size()));
}

// ---- transfers ----

bool Transfers::allocate(std::int32_t most, std::int32_t num_groups, std::uint16_t tag) noexcept {
  const std::int64_t tables = std::int64_t{most} * num_groups;
  if (!loads_.allocate(most) || !holds_.allocate(most) || !load_tables_.allocate_zeroed(tables) ||
      !waiting_.allocate_zeroed(tables) || !hold_tables_.allocate_zeroed(most)) {
    return false;
  }
  for (std::int64_t i = 0; i < tables; ++i) load_tables_[i] = BlockTable();
  for (std::int32_t i = 0; i < most; ++i) hold_tables_[i] = BlockTable();
  for (std::int32_t i = 0; i < most; ++i) loads_[i] = Load();
  totals_.assign(static_cast<std::size_t>(num_groups), Totals());
  num_groups_ = num_groups;
  tag_ = tag;
  return true;
}

void Transfers::set_waiting(std::int32_t load, std::int32_t g, std::int32_t count) noexcept {
  std::int32_t& now = waiting_[std::int64_t{load} * num_groups_ + g];
  totals_[static_cast<std::size_t>(g)].waiting += count - now;
  now = count;
}

void Transfers::release_spans(std::int32_t load, SpanArena& arena) noexcept {
  for (std::int32_t g = 0; g < num_groups_; ++g) table(load, g).release(arena);
  arena.release(loads_[load].tokens);
}

void Transfers::give_back_load(std::int32_t load) noexcept {
  for (std::int32_t g = 0; g < num_groups_; ++g) KVFOLIO_CHECK(num_waiting(load, g) == 0);
  loads_.give_back(load);
}

LoadId Transfers::take_load() noexcept { return LoadId(loads_.take(tag_)); }

HoldId Transfers::take_hold(std::int32_t g) noexcept {
  const std::int32_t hold = next_hold();
  const HoldId id(holds_.take(tag_));
  holds_[hold].group = g;
  totals_[static_cast<std::size_t>(g)].held += held(hold).size();
  return id;
}

void Transfers::give_back_hold(std::int32_t hold, SpanArena& arena) noexcept {
  totals_[static_cast<std::size_t>(group_of(hold))].held -= held(hold).size();
  held(hold).release(arena);
  holds_.give_back(hold);
}

// A member that is not named here does not compile.
void Transfers::copy_from(const Transfers& other) noexcept {
  const auto& [loads, holds, load_tables, waiting, hold_tables, totals, num_groups, tag] = other;
  KVFOLIO_CHECK(num_groups == num_groups_ && tag == tag_);
  KVFOLIO_CHECK(none_open() && other.none_open());
  loads_.copy_from(loads);
  holds_.copy_from(holds);
}

std::int64_t Transfers::words() const noexcept {
  std::int64_t words = 0;
  for_each_load([&](std::int32_t i) {
    words += SpanArena::capacity(load(i).tokens);
    for (std::int32_t g = 0; g < num_groups_; ++g) words += table(i, g).capacity();
  });
  for_each_hold([&](std::int32_t i) { words += held(i).capacity(); });
  return words;
}

Status Transfers::check() const {
  KVFOLIO_RETURN_IF_ERROR(loads_.check("load"));
  KVFOLIO_RETURN_IF_ERROR(holds_.check("hold"));
  std::int64_t loose = 0;  // words of those that are not open
  for (std::int32_t i = 0; i < loads_.size(); ++i) {
    if (loads_.is_open(i)) continue;
    loose += SpanArena::capacity(load(i).tokens);
    for (std::int32_t g = 0; g < num_groups_; ++g) {
      loose += table(i, g).capacity() + num_waiting(i, g);
    }
  }
  for (std::int32_t i = 0; i < holds_.size(); ++i) {
    loose += holds_.is_open(i) ? 0 : held(i).capacity();
  }
  if (loose != 0) return transfers_broken("one that is not open has a table, tokens or blocks");
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    std::int32_t waiting = 0;
    std::int32_t held_blocks = 0;
    for_each_load([&](std::int32_t i) { waiting += num_waiting(i, g); });
    for_each_hold([&](std::int32_t i) { held_blocks += group_of(i) == g ? held(i).size() : 0; });
    if (waiting == num_waiting(g) && held_blocks == num_held(g)) continue;
    return transfers_broken(concat("group ", g, ": loads wait for ", waiting,
                                   " blocks and holds have ", held_blocks, ", counted ",
                                   num_waiting(g), " and ", num_held(g)));
  }
  return {};
}

}  // namespace kvfolio
