// SPDX-License-Identifier: Apache-2.0

// The steps of an engine: what a step costs per sequence, and building whole arrays from scratch.

#include <algorithm>
#include <cstring>

#include "cache.h"
#include "family.h"
#include "plain.h"

namespace kvfolio::bench {
namespace {

// Sequences of one length, but that a sixteenth of them fills a block in each step.
class Decoding {
 public:
  Decoding(std::int32_t count, std::int32_t length, std::int32_t spare_tokens)
      : cache_(count * ((length + spare_tokens) / kBlockSize + 2), count),
        widest_(static_cast<std::size_t>((length + spare_tokens) / kBlockSize + 2)) {
    kept_.resize(static_cast<std::size_t>(cache_->num_rows()) * widest_, -1);
    tokens_.assign(static_cast<std::size_t>(count), 7);
    cache_.shuffle_free_blocks();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < count; ++i) {
      for (std::int32_t at = 0; at + kBlockSize <= length; at += kBlockSize) {
        write_block(i, at / kBlockSize, tokens.data() + at);
      }
      sequences_.push_back(cache_.open({}));
      cache_.append(sequences_.back(),
                    std::span(tokens).first(static_cast<std::size_t>(length - i % kBlockSize)));
    }
  }

  Cache& cache() { return cache_; }
  [[nodiscard]] const std::vector<SequenceId>& sequences() const { return sequences_; }

  // One token for each; the plan is handed to `use` before the commit.
  template <typename Use>
  void step(const PlanOptions& options, Use&& use) {
    const Result<Ticket> ticket = cache_->begin_step();
    std::int32_t done = 0;
    if (!cache_->append_each(sequences_, tokens_, &done).ok()) require(false, "append_each");
    const Result<const StepPlan*> plan = cache_->plan(options);
    if (!plan) require(false, "plan");
    use(**plan);
    require(cache_->commit(*ticket), "commit");
    require(cache_->complete(*ticket), "complete");
  }

  // What an engine that keeps a table itself does with a plan.
  void apply(const GroupPlan& group) {
    for (std::size_t i = 0; i < group.changed_rows.size(); ++i) {
      kept_[static_cast<std::size_t>(group.changed_rows[i]) * widest_ +
            static_cast<std::size_t>(group.changed_columns[i])] = group.changed_blocks[i];
    }
  }

  // The plan against tables and positions asked for one by one.
  void check(const PlanOptions& options) {
    step(options, [&](const StepPlan& plan) {
      const GroupPlan& group = plan.groups[0];
      require(group.slot_mapping.size() == sequences_.size(), "a slot for each sequence");
      std::size_t at = 0;
      if (options.changed_entries) apply(group);
      for (std::size_t i = 0; i < sequences_.size(); ++i) {
        const SequenceInfo info = take(cache_->info(sequences_[i]), "info");
        const auto table = take(cache_->block_table(sequences_[i], GroupId(0)), "block_table");
        const std::int32_t last = info.length - 1;
        require(
            group.slot_mapping[i] ==
                table[static_cast<std::size_t>(last / kBlockSize)] * kBlockSize + last % kBlockSize,
            "the slot of the last token");
        if (options.changed_entries) {
          const auto* row = kept_.data() + static_cast<std::size_t>(plan.rows[i]) * widest_;
          require(std::equal(table.begin(), table.end(), row), "the table kept by its changes");
        }
        if (options.block_tables) {
          const auto row =
              group.block_table.subspan(i * static_cast<std::size_t>(group.block_table_stride),
                                        static_cast<std::size_t>(group.block_table_stride));
          for (std::size_t b = 0; b < row.size(); ++b) {
            require(row[b] == (b < table.size() ? table[b] : -1), "the padded table");
          }
        }
        if (!options.flashinfer) continue;
        require(group.kv_indptr[i] == static_cast<std::int32_t>(at), "kv_indptr");
        for (const std::int32_t block : table) {
          require(group.kv_indices[at++] == block, "kv_indices");
        }
        require(group.kv_last_page_len[i] == last % kBlockSize + 1, "kv_last_page_len");
      }
    });
  }

 private:
  Cache cache_;
  std::vector<SequenceId> sequences_;
  std::vector<std::int32_t> tokens_;  // of one step
  std::size_t widest_;
  std::vector<std::int32_t> kept_;  // [row][logical block]
};

void steady_decode(Session& session) {
  if (!session.wants("step.decode")) return;
  const std::int32_t count = session.size(1024, 32);
  const std::int32_t length = session.size(2048, 64);
  const std::int32_t steps = session.size(64, 1);
  Decoding decoding(count, length, steps * (session.rounds() + 1) + 18);
  const PlanOptions options{.block_tables = false, .changed_entries = true};
  decoding.check(options);
  PlainDecode plain(count, length);
  std::int64_t sum = 0;
  const auto round = [&] {
    return nanoseconds_of([&] {
             for (std::int32_t i = 0; i < steps; ++i) {
               decoding.step(options, [&](const StepPlan& plan) {
                 sum += plan.groups[0].slot_mapping[0];
                 decoding.apply(plan.groups[0]);
               });
             }
           }) /
           (static_cast<double>(count) * steps);
  };
  session.measure(
      {.name = "step.decode",
       .facts = {{"sequences", std::int64_t{count}}, {"tokens", std::int64_t{length}}},
       .promise = Promise{0.03, 0.1},
       .promise_is_ratio = true,
       .note =
           "per sequence: begin, append_each, plan with changed table entries, apply these, "
           "commit, complete; a sixteenth of the sequences fills a block in each step. Ceiling: "
           "the token, its slot and the entry of a new block in plain arrays, which no step "
           "could take back"},
      round, [&] { return plain.step(steps) / (static_cast<double>(count) * steps); });
  keep(static_cast<std::uint64_t>(sum));
  decoding.check(options);
  decoding.cache().check();
}

void arrays(Session& session) {
  if (!session.wants("step.arrays")) return;
  const std::int32_t count = session.size(1024, 32);
  const std::int32_t length = session.size(2048, 64);
  Decoding decoding(count, length, 16);
  const PlanOptions options{.flashinfer = true};
  decoding.check(options);
  // A step is open; plan() may be asked for again and again.
  Cache& cache = decoding.cache();
  const Ticket ticket = *cache->begin_step();
  const std::int32_t token = 7;
  for (const SequenceId sequence : decoding.sequences()) {
    require(cache->append(sequence, {&token, 1}), "append");
  }
  const StepPlan& plan = *take(cache->plan(options), "plan");
  const GroupPlan& group = plan.groups[0];
  const std::size_t words = group.slot_mapping.size() + group.block_table.size() +
                            group.kv_indptr.size() + group.kv_indices.size() +
                            group.kv_last_page_len.size() + plan.query_start.size() +
                            plan.kv_lens.size() + 2 * plan.trim_sinks.size();
  const Buffer from(static_cast<std::int64_t>(words) * 4);
  const Buffer to(static_cast<std::int64_t>(words) * 4);
  std::memset(from.data(), 1, from.size());
  std::memset(to.data(), 1, to.size());
  const int repeats = session.quick() ? 1 : 50;
  const auto rate = [&](auto&& call) {
    return static_cast<double>(words) * 4 * repeats / nanoseconds_of([&] {
             for (int i = 0; i < repeats; ++i) call();
           });
  };
  session.measure(
      {.name = "step.arrays",
       .facts = {{"sequences", std::int64_t{count}},
                 {"tokens", std::int64_t{length}},
                 {"bytes", static_cast<std::int64_t>(words) * 4}},
       .unit = "GB/s",
       .lower_is_better = false,
       .promise = Promise{0.5, 0.8},
       .promise_is_ratio = true,
       .note = "plan() with FlashInfer arrays and the padded table; ceiling: memcpy of as many "
               "bytes"},
      [&] { return rate([&] { keep(*cache->plan(options)); }); },
      [&] {
        return rate([&] {
          std::memcpy(to.data(), from.data(), from.size());
          keep(to.data());
        });
      });
  require(cache->finish(ticket), "finish");
}

void measure_step(Session& session) {
  steady_decode(session);
  measure_step_through_c(session);
  arrays(session);
}

}  // namespace

Family step_family() { return {{"step.decode", "step.decode.c", "step.arrays"}, measure_step}; }

}  // namespace kvfolio::bench
