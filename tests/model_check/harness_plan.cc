// SPDX-License-Identifier: Apache-2.0
// What a plan must say, and what the model keeps of it until its step is complete.

#include <algorithm>
#include <set>

#include "model_check/harness.h"

namespace kvfolio::model_check {

bool Harness::trim_cuts_a_block() const {
  for (const Member& member : members_) {
    if (member.seq->hole() == 0) continue;
    for (const GroupSpec& g : config_.spec.groups) {
      if (member.seq->sinks % g.block_size != 0 || member.seq->first_kept % g.block_size != 0) {
        return true;
      }
    }
  }
  return false;
}

// Takes the plan of the open step down, after checking it.
const StepPlan* Harness::capture(PlanOptions options) {
  if (options.flashinfer && trim_cuts_a_block()) {
    // FlashInfer's arrays cannot say that half of a block is dropped.
    const Result<const StepPlan*> refused = manager_->plan(options);
    KVFOLIO_REQUIRE(!refused.has_value() && refused.error().code() == ErrorCode::kUnsupported,
                    "FlashInfer arrays of a trim that cuts a block are refused");
    options.flashinfer = false;
  }
  if (config_.shapes && shape_rng_.chance(30)) compare_shapes(options);
  const Result<const StepPlan*> plan = manager_->plan(options);
  KVFOLIO_REQUIRE(plan.has_value(), "the open step has a plan");
  StepWork& step = *open_step_;
  step.rows.clear();
  step.groups.assign(static_cast<std::size_t>(num_groups()), {});
  for (const Member& member : members_) {
    const SeqPtr& seq = member.seq;
    step.rows.push_back({seq, seq->committed, seq->length(), seq->nodes, state_of(*seq).tables,
                         member.displaced, (*plan)->rows[step.rows.size()]});
  }
  check_plan(**plan, options);
  for (int g = 0; g < num_groups(); ++g) {
    const GroupPlan& from = (*plan)->groups[static_cast<std::size_t>(g)];
    StepWork::Group& to = step.groups[static_cast<std::size_t>(g)];
    to.slots.assign(from.slot_mapping.begin(), from.slot_mapping.end());
    to.copy_src.assign(from.copy_src.begin(), from.copy_src.end());
    to.copy_dst.assign(from.copy_dst.begin(), from.copy_dst.end());
    to.touched.assign(static_cast<std::size_t>(group(g).num_blocks), 0);
    for (StepWork::Row& row : step.rows) {
      // What is copied is a source, and was not displaced.
      const auto& table = row.tables[static_cast<std::size_t>(g)];
      const auto j = static_cast<std::size_t>(row.begin / group(g).block_size);
      std::int32_t& displaced = row.displaced[static_cast<std::size_t>(g)];
      for (std::size_t i = 0; i < to.copy_src.size(); ++i) {
        if (to.copy_src[i] == displaced && to.copy_dst[i] == table[j]) displaced = -1;
      }
      for (const std::int32_t b : table) {
        if (b >= 0) to.touched[static_cast<std::size_t>(b)] = 1;
      }
    }
    for (const std::int32_t src : to.copy_src) to.touched[static_cast<std::size_t>(src)] = 1;
    for (const std::int32_t dst : to.copy_dst) to.touched[static_cast<std::size_t>(dst)] = 2;
    for (const std::int32_t slot : to.slots) {
      if (slot >= 0) to.touched[static_cast<std::size_t>(slot / group(g).block_size)] = 2;
    }
  }
  return *plan;
}

void Harness::check_plan(const StepPlan& plan, const PlanOptions& options) {
  const std::int32_t pad = config_.options.null_block ? 0 : options.pad;
  const std::size_t rows = members_.size();
  KVFOLIO_REQUIRE(plan.ticket.value() == open_step_->ticket, "the plan carries its ticket");
  KVFOLIO_REQUIRE(plan.sequences.size() == rows && plan.query_start.size() == rows + 1 &&
                      plan.kv_lens.size() == rows && plan.trim_sinks.size() == rows &&
                      plan.trim_first_kept.size() == rows,
                  "the plan has a row for each sequence of the step");
  KVFOLIO_REQUIRE(isize(plan.groups) == num_groups(), "the plan has every group");
  std::int32_t tokens = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    const Seq& seq = *members_[i].seq;
    KVFOLIO_REQUIRE(plan.sequences[i] == seq.id, "rows come in append order");
    KVFOLIO_REQUIRE(plan.query_start[i] == tokens, "query_start counts the tokens before");
    KVFOLIO_REQUIRE(plan.kv_lens[i] == seq.length(), "kv_lens are lengths with the step's tokens");
    KVFOLIO_REQUIRE(plan.trim_sinks[i] == seq.sinks && plan.trim_first_kept[i] == seq.first_kept,
                    "the plan carries the trims");
    for (const StepWork& flying : flight_) {
      const bool used = std::any_of(flying.rows.begin(), flying.rows.end(), [&](const auto& row) {
        return row.row == plan.rows[i] && row.seq != members_[i].seq;
      });
      KVFOLIO_REQUIRE(in_order() || !used, "a row of step t" + std::to_string(flying.ticket) +
                                               " is not given away before it is complete");
    }
    tokens += seq.length() - seq.committed;
  }
  KVFOLIO_REQUIRE(plan.query_start[rows] == tokens && plan.num_tokens == tokens,
                  "num_tokens adds up");

  for (const auto values : {plan.rows, plan.query_start, plan.kv_lens}) digest(values);
  for (int g = 0; g < num_groups(); ++g) {
    const GroupPlan& got = plan.groups[static_cast<std::size_t>(g)];
    const int size = group(g).block_size;
    std::vector<std::int32_t> slots;
    std::vector<std::int32_t> indptr = {0};
    std::vector<std::int32_t> indices;
    std::vector<std::int32_t> last;
    std::set<std::int32_t> written;
    std::size_t token = 0;
    KVFOLIO_REQUIRE(isize(got.slot_mapping) == tokens, "a slot for each token");
    for (std::size_t i = 0; i < rows; ++i) {
      const Seq& seq = *members_[i].seq;
      const std::vector<std::int32_t>& table =
          open_step_->rows[i].tables[static_cast<std::size_t>(g)];
      KVFOLIO_REQUIRE(isize(table) == (seq.length() + size - 1) / size,
                      "a table covers the length");
      for (int p = seq.committed; p < seq.length(); ++p, ++token) {
        const std::int32_t b = table[static_cast<std::size_t>(p / size)];
        KVFOLIO_REQUIRE(b >= 0, "every token of a step has a block");
        const std::int32_t slot = got.slot_mapping[token];
        if (slot == -1) {
          KVFOLIO_REQUIRE(seq.fresh && p == seq.cached,
                          "slot -1 only for the last token of a full hit");
          continue;
        }
        KVFOLIO_REQUIRE(slot == b * size + p % size, "slot = block * block_size + offset");
        KVFOLIO_REQUIRE(written.insert(slot).second, "no slot is written twice in a step");
      }
      for (const std::int32_t b : table) {
        if (b >= 0) indices.push_back(b);
      }
      indptr.push_back(isize(indices));
      last.push_back((seq.length() - 1) % size + 1);
      if (options.block_tables) {
        KVFOLIO_REQUIRE(got.block_table_stride >= isize(table), "the padded table has room");
        for (int j = 0; j < got.block_table_stride; ++j) {
          const std::int32_t want = j < isize(table) && table[static_cast<std::size_t>(j)] >= 0
                                        ? table[static_cast<std::size_t>(j)]
                                        : pad;
          KVFOLIO_REQUIRE(got.block_table[i * static_cast<std::size_t>(got.block_table_stride) +
                                          static_cast<std::size_t>(j)] == want,
                          "the padded table is the table, padded");
        }
      }
    }
    KVFOLIO_REQUIRE(
        options.block_tables
            ? got.block_table.size() == rows * static_cast<std::size_t>(got.block_table_stride)
            : got.block_table.empty(),
        "the padded table is there iff asked for");
    const auto same = [](std::span<const std::int32_t> a, const std::vector<std::int32_t>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    if (options.flashinfer) {
      KVFOLIO_REQUIRE(same(got.kv_indptr, indptr), "kv_indptr counts live blocks");
      KVFOLIO_REQUIRE(same(got.kv_indices, indices), "kv_indices are the live blocks in order");
      KVFOLIO_REQUIRE(same(got.kv_last_page_len, last), "kv_last_page_len is 1 .. block_size");
    } else {
      KVFOLIO_REQUIRE(
          got.kv_indptr.empty() && got.kv_indices.empty() && got.kv_last_page_len.empty(),
          "FlashInfer arrays only if asked for");
    }
    KVFOLIO_REQUIRE(got.copy_src.size() == got.copy_dst.size(), "copies are pairs");
    const std::set<std::int32_t> sources(got.copy_src.begin(), got.copy_src.end());
    std::set<std::int32_t> destinations;
    for (const std::int32_t dst : got.copy_dst) {
      KVFOLIO_REQUIRE(dst >= first_block() && dst < group(g).num_blocks && !sources.contains(dst),
                      "copy sources and destinations are disjoint");
      KVFOLIO_REQUIRE(destinations.insert(dst).second, "a block is the destination of one copy");
    }
    for (const std::int32_t src : got.copy_src) {
      KVFOLIO_REQUIRE(src >= 0 && src < group(g).num_blocks, "a copy source is a block");
    }
    if (!options.shared_prefixes) {
      KVFOLIO_REQUIRE(got.shared_prefixes.empty(), "shared prefixes only if asked for");
    }
    int next_row = 0;
    for (const SharedPrefix& shared : got.shared_prefixes) {
      KVFOLIO_REQUIRE(shared.first_sequence >= next_row && shared.num_sequences >= 2 &&
                          shared.num_blocks >= 1 &&
                          shared.first_sequence + shared.num_sequences <= isize(members_),
                      "shared prefixes are runs of two or more sequences, in order");
      next_row = shared.first_sequence + shared.num_sequences;
      const auto table_of = [&](int row) -> const std::vector<std::int32_t>& {
        return open_step_->rows[static_cast<std::size_t>(row)].tables[static_cast<std::size_t>(g)];
      };
      const std::vector<std::int32_t>& first = table_of(shared.first_sequence);
      for (int row = shared.first_sequence; row < next_row; ++row) {
        const std::vector<std::int32_t>& table = table_of(row);
        KVFOLIO_REQUIRE(
            isize(table) >= shared.num_blocks &&
                std::equal(table.begin(), table.begin() + shared.num_blocks, first.begin()),
            "a shared prefix is the same blocks");
        KVFOLIO_REQUIRE(std::int64_t{shared.num_blocks} * group(g).block_size <=
                            members_[static_cast<std::size_t>(row)].seq->committed,
                        "a shared prefix lies below all that the step computes");
      }
    }
    std::string text = " g" + std::to_string(g);
    for (const auto values : {got.kv_indptr, got.kv_last_page_len, got.changed_rows,
                              got.changed_columns, got.changed_blocks}) {
      digest(values);
    }
    for (const SharedPrefix& shared : got.shared_prefixes) {
      const std::int32_t run[] = {shared.first_sequence, shared.num_sequences, shared.num_blocks};
      digest(run);
    }
    const auto list = [&](const char* name, std::span<const std::int32_t> values) {
      text += std::string(" ") + name;
      for (const std::int32_t value : values) text += " " + std::to_string(value);
    };
    list("slots", got.slot_mapping);
    list("table", got.block_table);
    list("indices", got.kv_indices);
    list("src", got.copy_src);
    list("dst", got.copy_dst);
    note(text);
  }
}

// An engine that keeps its tables sets what changed, in the plans that it launches, and then reads
// what an engine reads that gets them whole.
void Harness::keep_tables(const StepPlan& plan) {
  kept_tables_.resize(static_cast<std::size_t>(num_groups()));
  for (int g = 0; g < num_groups(); ++g) {
    const GroupPlan& got = plan.groups[static_cast<std::size_t>(g)];
    auto& kept = kept_tables_[static_cast<std::size_t>(g)];
    KVFOLIO_REQUIRE(got.changed_rows.size() == got.changed_columns.size() &&
                        got.changed_rows.size() == got.changed_blocks.size(),
                    "a changed entry is a row, a column and a block");
    for (std::size_t i = 0; i < got.changed_rows.size(); ++i) {
      KVFOLIO_REQUIRE(got.changed_rows[i] >= 0 && got.changed_rows[i] < manager_->num_rows(),
                      "a changed entry lies in a row");
      kept[{got.changed_rows[i], got.changed_columns[i]}] = got.changed_blocks[i];
    }
    for (std::size_t i = 0; i < plan.rows.size(); ++i) {
      const auto& table = open_step_->rows[i].tables[static_cast<std::size_t>(g)];
      for (int j = 0; j < isize(table); ++j) {
        const std::int32_t want = table[static_cast<std::size_t>(j)];
        if (want < 0) continue;  // it is never read
        const auto found = kept.find({plan.rows[i], j});
        KVFOLIO_REQUIRE(found != kept.end() && found->second == want,
                        "group " + std::to_string(g) + " row " + std::to_string(plan.rows[i]) +
                            ": a table kept by changes has block " + std::to_string(want) + " at " +
                            std::to_string(j));
      }
    }
  }
}

}  // namespace kvfolio::model_check
