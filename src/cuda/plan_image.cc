// SPDX-License-Identifier: Apache-2.0
//
// Arrays are written front to back, each with its padding up to its capacity: some kilobytes for
// the rows of a thousand sequences, and no array is left over from a longer step.

#include "cuda/plan_image.h"

#include <algorithm>
#include <cstring>

#include "base/invalid.h"
#include "base/mutants.h"
#include "base/text.h"

namespace kvfolio::cuda {

using text::concat;

// ---- rows ----

bool ResidentRows::follows_known(const StepPlan& plan) const noexcept {
  if (plan.follows == StepPlan::kNoChanges) return false;
  if (mutant(Mutant::kDevicePlanTrustsAnyList)) return true;
  return plan.follows == base_ || plan.follows == last_;
}

void ResidentRows::note(const StepPlan& plan) noexcept {
  newest_ = plan.number;
  if (plan.follows != StepPlan::kNoChanges) {
    if (plan.follows != 0 && !follows_known(plan)) ++age_;
    base_ = plan.follows;
    last_ = plan.number;
  }
  for (const std::int32_t row : plan.rows) {
    if (row >= 0) known_[static_cast<std::size_t>(row)] = age_;
  }
}

// ---- options and places ----

namespace {

Status check_range(std::string_view name, std::int64_t value, std::int64_t least,
                   std::int64_t most) {
  if (value >= least && value <= most) return {};
  return invalid(concat(name, " is ", value, ", allowed: ", least, " to ", most));
}

constexpr std::int64_t kMostEntries = std::int64_t{1} << 30;
constexpr std::int64_t kPagesOfEntry = sizeof(ChangedEntry) / sizeof(std::int32_t);

// Entries of tables, and as many pages, in the room of entries.
std::int64_t room_of(std::int64_t entries, std::int64_t pages) {
  return entries + (pages + kPagesOfEntry - 1) / kPagesOfEntry;
}

}  // namespace

Result<PlanImage> PlanImage::create(const DevicePlanOptions& options) {
  KVFOLIO_RETURN_IF_ERROR(check_range("max_sequences", options.max_sequences, 1, 1 << 20));
  KVFOLIO_RETURN_IF_ERROR(check_range("max_tokens", options.max_tokens, 1, 1 << 30));
  KVFOLIO_RETURN_IF_ERROR(check_range("num_rows", options.num_rows, 1, 1 << 24));
  KVFOLIO_RETURN_IF_ERROR(check_range("steps_in_flight", options.steps_in_flight, 1, 64));
  if (options.pad != -1 && options.pad != 0) {
    return invalid(concat("pad is ", options.pad, ", allowed: -1 and 0"));
  }
  KVFOLIO_RETURN_IF_ERROR(
      check_range("groups", static_cast<std::int64_t>(options.groups.size()), 1, kMaxGroups));
  PlanImage image(options);
  std::int64_t columns = 0;  // of one row in each group
  for (std::int32_t g = 0; g < image.num_groups(); ++g) {
    KVFOLIO_RETURN_IF_ERROR(
        check_range(concat("groups[", g, "].block_size"), image.group(g).block_size, 1, 1 << 30));
    const std::int64_t most =
        kMostEntries / std::max(options.num_rows, options.max_sequences);  // of a whole table
    KVFOLIO_RETURN_IF_ERROR(
        check_range(concat("groups[", g, "].table_stride"), image.group(g).table_stride, 1, most));
    columns += image.group(g).table_stride;
  }
  const std::int64_t all = columns * options.max_sequences;
  image.max_entries_ = room_of(all, options.flashinfer ? all : 0);
  // So many, that 32 bits count four pages for each.
  const std::int64_t most = options.flashinfer ? kMostEntries / kPagesOfEntry : kMostEntries;
  KVFOLIO_RETURN_IF_ERROR(check_range("max_changed_entries", options.max_changed_entries, 0, most));
  if (options.max_changed_entries > 0) {
    // Else a sequence could come whose row never fits, and no step with it would ever go up.
    const std::int64_t least = room_of(columns, options.flashinfer ? columns : 0);
    KVFOLIO_RETURN_IF_ERROR(
        check_range("max_changed_entries", options.max_changed_entries, least, most));
    image.max_entries_ = options.max_changed_entries;
  }
  KVFOLIO_RETURN_IF_ERROR(
      check_range("changed entries of max_sequences rows", image.max_entries_, 1, most));
  image.place();
  return image;
}

void PlanImage::place() {
  std::int64_t at = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t begin = at;
    at += (bytes + 15) / 16 * 16;
    return begin;
  };
  const std::int64_t rows = 4 * std::int64_t{options_.max_sequences};
  const std::int64_t tokens = 4 * std::int64_t{options_.max_tokens};
  places_.counts = take(16);
  places_.query_start = take(rows + 4);
  places_.rows = take(rows);
  places_.kv_lens = take(rows);
  places_.trim_sinks = take(rows);
  places_.trim_first_kept = take(rows);
  if (options_.positions) places_.positions = take(tokens);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    Group& group = places_.groups[static_cast<std::size_t>(g)];
    group.slots = take(options_.int64_slots ? 2 * tokens : tokens);
    if (!options_.flashinfer) continue;
    group.indptr = take(rows + 4);
    group.last_page_len = take(rows);
    group.first_live = take(rows);
    group.front_at = take(rows);
  }
  places_.entries = at;
}

// ---- checks ----

namespace {

Status check_size(std::string_view name, std::span<const std::int32_t> array, std::size_t size) {
  if (array.size() != size) {
    return invalid(concat("the plan has ", array.size(), " ", name, ", needed: ", size));
  }
  if (array.data() == nullptr && size > 0) return invalid(concat(name, " is null"));
  return {};
}

}  // namespace

Status PlanImage::check_rows(const StepPlan& plan) const {
  const std::size_t n = plan.rows.size();
  if (n > static_cast<std::size_t>(options_.max_sequences)) {
    return invalid(concat("the plan has ", n, " sequences, room is for ", options_.max_sequences));
  }
  KVFOLIO_RETURN_IF_ERROR(check_size("rows", plan.rows, n));
  KVFOLIO_RETURN_IF_ERROR(check_size("query_start", plan.query_start, n + 1));
  KVFOLIO_RETURN_IF_ERROR(check_size("kv_lens", plan.kv_lens, n));
  KVFOLIO_RETURN_IF_ERROR(check_size("trim_sinks", plan.trim_sinks, n));
  KVFOLIO_RETURN_IF_ERROR(check_size("trim_first_kept", plan.trim_first_kept, n));
  if (plan.sequences.size() > n || plan.num_tokens != plan.query_start.back()) {
    return invalid(concat("the plan has ", plan.sequences.size(), " sequences in ", n,
                          " rows, and ", plan.num_tokens, " tokens, of which query_start says ",
                          plan.query_start.back()));
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (plan.rows[i] < -1 || plan.rows[i] >= options_.num_rows) {
      return invalid(concat("rows[", i, "] is ", plan.rows[i], ", the tables have rows 0 to ",
                            options_.num_rows - 1));
    }
    if (plan.kv_lens[i] < 0) return invalid(concat("kv_lens[", i, "] is ", plan.kv_lens[i]));
  }
  return {};
}

Status PlanImage::check_group(const StepPlan& plan, std::int32_t g) const {
  const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
  const std::size_t slots =
      options_.int64_slots ? from.slot_mapping_64.size() : from.slot_mapping.size();
  const void* const data = options_.int64_slots
                               ? static_cast<const void*>(from.slot_mapping_64.data())
                               : static_cast<const void*>(from.slot_mapping.data());
  const auto least = static_cast<std::size_t>(plan.num_tokens);
  if (slots < least || slots > static_cast<std::size_t>(options_.max_tokens) ||
      (data == nullptr && slots > 0)) {
    return invalid(concat("group ", g, " has ", slots, " slots",
                          options_.int64_slots ? " of 64 bits" : "", ", the step ", least,
                          " tokens, room is for ", options_.max_tokens));
  }
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    const std::int32_t needed = columns(g, plan.kv_lens[i]);
    if (needed <= group(g).table_stride) continue;
    return invalid(concat("group ", g, ", sequence ", i, ": ", plan.kv_lens[i], " tokens have ",
                          needed, " blocks, a row of the table has room for ",
                          group(g).table_stride));
  }
  KVFOLIO_RETURN_IF_ERROR(check_changes(plan, g));
  return options_.flashinfer ? check_pages(plan, g) : Status();
}

Status PlanImage::check_pages(const StepPlan& plan, std::int32_t g) const {
  const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
  const std::size_t n = plan.rows.size();
  KVFOLIO_RETURN_IF_ERROR(check_size("kv_indptr", from.kv_indptr, n + 1));
  KVFOLIO_RETURN_IF_ERROR(check_size("kv_last_page_len", from.kv_last_page_len, n));
  KVFOLIO_RETURN_IF_ERROR(check_size("kv_first_live", from.kv_first_live, n));
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t pages = from.kv_indptr[i + 1] - from.kv_indptr[i];
    const std::int32_t all = columns(g, plan.kv_lens[i]);
    const std::int32_t first = from.kv_first_live[i] / group(g).block_size;
    const bool some = from.kv_first_live[i] >= 0 && first <= all && all - first <= pages;
    if (pages >= 0 && pages <= all && (some || pages == 0)) continue;
    return invalid(concat("group ", g, ", sequence ", i, ": ", pages, " pages and kv_first_live ",
                          from.kv_first_live[i], " of ", all, " blocks"));
  }
  if (from.kv_indptr[0] != 0) return invalid(concat("kv_indptr[0] is ", from.kv_indptr[0]));
  return check_size("kv_indices", from.kv_indices, static_cast<std::size_t>(from.kv_indptr[n]));
}

std::int32_t PlanImage::front_pages(const StepPlan& plan, std::int32_t g,
                                    std::size_t i) const noexcept {
  const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
  const std::int32_t pages = from.kv_indptr[i + 1] - from.kv_indptr[i];
  const std::int32_t first = from.kv_first_live[i] / group(g).block_size;
  return pages == 0 ? 0 : pages - (columns(g, plan.kv_lens[i]) - first);
}

Status PlanImage::check_changes(const StepPlan& plan, std::int32_t g) const {
  const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
  const std::size_t count = from.changed_rows.size();
  KVFOLIO_RETURN_IF_ERROR(check_size("changed_rows", from.changed_rows, count));
  KVFOLIO_RETURN_IF_ERROR(check_size("changed_columns", from.changed_columns, count));
  KVFOLIO_RETURN_IF_ERROR(check_size("changed_blocks", from.changed_blocks, count));
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t row = from.changed_rows[i], column = from.changed_columns[i];
    if (row >= 0 && row < options_.num_rows && column >= 0 && column < group(g).table_stride) {
      continue;
    }
    return invalid(concat("group ", g, ", changed entry ", i, " is in row ", row, ", column ",
                          column, "; the table has rows 0 to ", options_.num_rows - 1,
                          ", columns 0 to ", group(g).table_stride - 1));
  }
  return {};
}

std::int64_t PlanImage::num_untrusted(const StepPlan& plan, const ResidentRows& rows) const {
  return std::count_if(plan.rows.begin(), plan.rows.end(), [&](std::int32_t row) {
    return row >= 0 && row < options_.num_rows && !rows.trusts(plan, row);
  });
}

Status PlanImage::check_arrays(const StepPlan& plan) const {
  if (plan.number == 0) return invalid("the plan has number 0: no manager made it");
  if (plan.groups.size() != groups_.size()) {
    return invalid(
        concat("the plan has ", plan.groups.size(), " groups, the tables ", groups_.size()));
  }
  KVFOLIO_RETURN_IF_ERROR(check_rows(plan));
  if (options_.positions) {
    const std::size_t n = plan.positions.size();
    if (n < static_cast<std::size_t>(plan.num_tokens) ||
        n > static_cast<std::size_t>(options_.max_tokens)) {
      return invalid(concat("the plan has ", n, " positions of ", plan.num_tokens,
                            " tokens, room is for ", options_.max_tokens));
    }
  }
  for (std::int32_t g = 0; g < num_groups(); ++g) KVFOLIO_RETURN_IF_ERROR(check_group(plan, g));
  return {};
}

bool PlanImage::has_table(const StepPlan& plan, std::int32_t g) noexcept {
  const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
  return plan.rows.empty() ||
         (from.block_table_stride > 0 &&
          from.block_table.size() ==
              plan.rows.size() * static_cast<std::size_t>(from.block_table_stride));
}

Status PlanImage::check_table(const StepPlan& plan, std::int32_t g) const {
  const std::int32_t stride = plan.groups[static_cast<std::size_t>(g)].block_table_stride;
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    if (columns(g, plan.kv_lens[i]) <= stride) continue;
    return invalid(concat("group ", g, ", sequence ", i, ": ", plan.kv_lens[i],
                          " tokens in a block table of ", stride, " columns"));
  }
  return {};
}

Status PlanImage::check(const StepPlan& plan, const ResidentRows& rows, UploadInfo& info) const {
  info = {};
  KVFOLIO_RETURN_IF_ERROR(check_arrays(plan));
  if (rows.is_old(plan)) {
    return {ErrorCode::kFailedPrecondition, concat("plan ", plan.number, " is older than plan ",
                                                   rows.newest(), ", which was uploaded")};
  }
  const std::int64_t whole = num_untrusted(plan, rows);
  std::int64_t pages = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    if (whole > 0 && !has_table(plan, g)) {
      return {
          ErrorCode::kFailedPrecondition,
          concat(whole, whole == 1 ? " row has" : " rows have",
                 " to be sent whole and the plan has no block tables; plan() with block_tables")};
    }
    if (whole > 0) KVFOLIO_RETURN_IF_ERROR(check_table(plan, g));
    for_each_entry(plan, rows, g, info, [](std::int32_t, std::int32_t, std::int32_t) {});
    for (std::size_t i = 0; i < plan.rows.size() && options_.flashinfer; ++i) {
      pages += front_pages(plan, g, i);
    }
  }
  const std::int64_t entries = info.changed_entries + info.whole_entries;
  if (room_of(entries, pages) > max_entries_) {
    const std::string fronts = concat(" and ", pages, " pages in front of gaps, 4 as an entry");
    return invalid(concat("the plan sets ", entries, " entries of tables",
                          pages == 0 ? std::string() : fronts, ", room is for ", max_entries_,
                          " (max_changed_entries)"));
  }
  info.bytes = bytes_of(entries, pages);
  return {};
}

// ---- writing ----

template <typename Set>
void PlanImage::for_each_entry(const StepPlan& plan, const ResidentRows& rows, std::int32_t g,
                               UploadInfo& info, const Set& set) const {
  const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
  for (std::size_t i = 0; i < from.changed_rows.size(); ++i) {
    const std::int32_t row = from.changed_rows[i];
    if (!rows.trusts(plan, row)) continue;
    set(row, from.changed_columns[i], from.changed_blocks[i]);
    ++info.changed_entries;
  }
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    const std::int32_t row = plan.rows[i];
    if (row < 0 || rows.trusts(plan, row)) continue;
    ++info.whole_rows;
    const auto entries =
        from.block_table.subspan(i * static_cast<std::size_t>(from.block_table_stride),
                                 static_cast<std::size_t>(columns(g, plan.kv_lens[i])));
    for (std::size_t column = 0; column < entries.size(); ++column) {
      if (entries[column] < 0) continue;  // a dropped block
      set(row, static_cast<std::int32_t>(column), entries[column]);
      ++info.whole_entries;
    }
  }
}

std::int64_t PlanImage::write(const StepPlan& plan, const ResidentRows& rows,
                              std::byte* image) const {
  write_arrays(plan, image);
  auto* const entries = reinterpret_cast<ChangedEntry*>(image + places_.entries);
  UploadInfo info;
  std::int64_t count = 0;
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    for_each_entry(plan, rows, g, info,
                   [&](std::int32_t row, std::int32_t column, std::int32_t block) {
                     entries[count++] = {g, row, column, block};
                   });
  }
  if (mutant(Mutant::kDevicePlanLeavesAnEntryOut) && count > 0) --count;
  reinterpret_cast<std::int32_t*>(image + places_.counts)[kChangedCount] =
      static_cast<std::int32_t>(count);
  auto* const fronts = reinterpret_cast<std::int32_t*>(entries + count);
  std::int64_t pages = 0;
  for (std::int32_t g = 0; g < num_groups() && options_.flashinfer; ++g) {
    const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
      const std::int32_t front = front_pages(plan, g, i);
      std::copy_n(from.kv_indices.begin() + from.kv_indptr[i], front, fronts + pages);
      pages += front;
    }
  }
  return bytes_of(count, pages);
}

void PlanImage::write_arrays(const StepPlan& plan, std::byte* image) const {
  const std::int32_t counts[4] = {static_cast<std::int32_t>(plan.sequences.size()), plan.num_tokens,
                                  0, 0};
  std::memcpy(image + places_.counts, counts, sizeof counts);
  const auto put = [image]<typename T>(std::int64_t at, std::span<const T> array,
                                       std::int64_t capacity, T pad) {
    T* const to = reinterpret_cast<T*>(image + at);
    std::fill(std::copy(array.begin(), array.end(), to), to + capacity, pad);
  };
  const std::int64_t rows = options_.max_sequences, tokens = options_.max_tokens;
  put(places_.query_start, plan.query_start, rows + 1, plan.num_tokens);
  put(places_.rows, plan.rows, rows, -1);
  put(places_.kv_lens, plan.kv_lens, rows, 0);
  put(places_.trim_sinks, plan.trim_sinks, rows, 0);
  put(places_.trim_first_kept, plan.trim_first_kept, rows, 0);
  if (options_.positions) put(places_.positions, plan.positions, tokens, 0);
  std::int32_t pages = 0;  // in front of gaps
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const GroupPlan& from = plan.groups[static_cast<std::size_t>(g)];
    const Group& at = places_.groups[static_cast<std::size_t>(g)];
    if (options_.int64_slots) {
      put(at.slots, from.slot_mapping_64, tokens, std::int64_t{-1});
    } else {
      put(at.slots, from.slot_mapping, tokens, -1);
    }
    if (!options_.flashinfer) continue;
    put(at.indptr, from.kv_indptr, rows + 1, from.kv_indptr.back());
    put(at.last_page_len, from.kv_last_page_len, rows, 1);
    put(at.first_live, from.kv_first_live, rows, 0);
    auto* const front_at = reinterpret_cast<std::int32_t*>(image + at.front_at);
    std::fill(front_at, front_at + rows, 0);
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
      front_at[i] = pages;
      pages += front_pages(plan, g, i);
    }
  }
}

std::string PlanImage::difference(const StepPlan& plan, const std::byte* image) const {
  std::vector<std::int32_t> wanted(static_cast<std::size_t>(places_.entries / 4));
  std::vector<std::int32_t> found(wanted.size());
  // What lies between two arrays means nothing.
  std::memcpy(wanted.data(), image, 4 * wanted.size());
  std::memcpy(found.data(), image, 4 * found.size());
  write_arrays(plan, reinterpret_cast<std::byte*>(wanted.data()));
  wanted[kChangedCount] = found[kChangedCount];
  const auto at = std::mismatch(found.begin(), found.end(), wanted.begin());
  if (at.first == found.end()) return {};
  const std::int64_t byte = 4 * (at.first - found.begin());
  std::pair<std::int64_t, std::string> name{places_.counts, "counts"};
  const auto candidate = [&](std::int64_t begin, std::string_view array, std::int32_t g) {
    if (begin < name.first || begin > byte) return;
    name = {begin, g < 0 ? std::string(array) : concat("group ", g, ", ", array)};
  };
  candidate(places_.query_start, "query_start", -1);
  candidate(places_.rows, "rows", -1);
  candidate(places_.kv_lens, "kv_lens", -1);
  candidate(places_.trim_sinks, "trim_sinks", -1);
  candidate(places_.trim_first_kept, "trim_first_kept", -1);
  candidate(places_.positions, "positions", -1);
  for (std::int32_t g = 0; g < num_groups(); ++g) {
    const Group& group = places_.groups[static_cast<std::size_t>(g)];
    candidate(group.slots, "slots", g);
    candidate(group.indptr, "kv_indptr", g);
    candidate(group.last_page_len, "kv_last_page_len", g);
    candidate(group.first_live, "kv_first_live", g);
    candidate(group.front_at, "where the pages in front of gaps begin", g);
  }
  return concat(name.second, ", word ", (byte - name.first) / 4, ": the device has ", *at.first,
                ", the plan ", *at.second);
}

}  // namespace kvfolio::cuda
