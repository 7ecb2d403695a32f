// SPDX-License-Identifier: Apache-2.0

// DevicePlan on a device: an upload of 1,024 sequences at 8,192 tokens with its time, and a graph
// of apply() that is captured once and played behind each of 1,000 steps of a manager, with a
// verify() after each.

#include <numeric>
#include <random>

#include "device_part.h"
#include "kvfolio/manager.h"

namespace kvfolio::cuda::parts {
namespace {

// What a decode step of many sequences sends, in blocks of 16: one in 16 sequences begins a block.
class DecodeSteps {
 public:
  static constexpr std::int32_t kBlockSize = 16;

  DecodeSteps(std::int32_t sequences, std::int32_t tokens)
      : columns_(tokens / kBlockSize + 8), sequences_count_(sequences) {
    for (std::int32_t i = 0; i < sequences; ++i) {
      const std::int32_t last = tokens / kBlockSize;
      start_.push_back(i);
      rows_.push_back(i);
      lens_.push_back(tokens + i % kBlockSize + 1);
      slots_.push_back((i * columns_ + last) * kBlockSize + i % kBlockSize);
      sequences_.emplace_back(static_cast<std::uint64_t>(i) + 1);
      for (std::int32_t c = 0; c < columns_; ++c)
        table_.push_back(c <= last ? i * columns_ + c : -1);
      if (i % kBlockSize != 0) continue;
      changed_rows_.push_back(i);
      changed_columns_.push_back(last);
      changed_blocks_.push_back(i * columns_ + last);
    }
    start_.push_back(sequences);
    zeros_.assign(static_cast<std::size_t>(sequences), 0);
  }
  [[nodiscard]] std::int32_t columns() const { return columns_; }
  StepPlan next(bool with_tables) {
    group_ = {.slot_mapping = slots_,
              .changed_rows = changed_rows_,
              .changed_columns = changed_columns_,
              .changed_blocks = changed_blocks_};
    if (with_tables) {
      group_.block_table = table_;
      group_.block_table_stride = columns_;
    }
    ++number_;
    return {.num_tokens = sequences_count_,
            .sequences = sequences_,
            .rows = rows_,
            .query_start = start_,
            .kv_lens = lens_,
            .trim_sinks = zeros_,
            .trim_first_kept = zeros_,
            .groups = {&group_, 1},
            .number = number_,
            .follows = number_ - 1};
  }

 private:
  std::int32_t columns_, sequences_count_;
  std::vector<std::int32_t> start_, rows_, lens_, slots_, zeros_, table_;
  std::vector<std::int32_t> changed_rows_, changed_columns_, changed_blocks_;
  std::vector<SequenceId> sequences_;
  GroupPlan group_;
  std::uint64_t number_ = 1;  // a plan came before the first one here, so that is sent whole
};

// The first upload sends all rows whole; the others what changed. Behind a long memset, so that the
// stream does not wait for the host.
void time_uploads(Report& report, Card& card, Driver& driver, const Options& options) {
  const std::int32_t sequences = options.small ? 32 : 1024, tokens = options.small ? 64 : 8192;
  constexpr std::size_t kScratch = 256'000'000;
  std::byte* const scratch =
      driver.is_there() ? must(card.memory->allocate(kScratch), "memory") : nullptr;
  for (const bool batch : {false, true}) {
    DecodeSteps steps(sequences, tokens);
    const DevicePlanGroup group{.block_size = DecodeSteps::kBlockSize,
                                .table_stride = steps.columns()};
    const auto plan = must(DevicePlan::create(card.kernels, {.max_sequences = sequences,
                                                             .max_tokens = sequences,
                                                             .num_rows = sequences,
                                                             .groups = {&group, 1},
                                                             .batch_tables = batch}),
                           "a plan");
    const StepPlan whole = steps.next(true);
    must(plan->upload(whole, card.stream.handle()), "the first upload");
    must(plan->verify(whole, card.stream.handle()), "the first upload");
    report.expect(
        plan->last_upload().whole_rows == sequences,
        "the first upload sent " + std::to_string(plan->last_upload().whole_rows) + " rows whole");
    std::vector<double> us, host_us;
    void* const before = driver.is_there() ? driver.event() : nullptr;
    void* const after = driver.is_there() ? driver.event() : nullptr;
    const int rounds = options.quick || options.small ? 30 : 150;
    for (int round = -3; round < rounds; ++round) {
      const StepPlan step = steps.next(false);
      if (driver.is_there()) {
        driver.set(scratch, 0, kScratch, card.stream.handle());
        driver.record(before, card.stream.handle());
      }
      const auto start = Clock::now();
      must(plan->upload(step, card.stream.handle()), "upload");
      const double host = us_since(start);
      if (driver.is_there()) {
        driver.record(after, card.stream.handle());
        const double on_stream = driver.us_between(before, after);
        if (round >= 0) us.push_back(on_stream);
      }
      if (round >= 0) host_us.push_back(host);
      must(plan->wait(), "wait");
    }
    const StepPlan last = steps.next(true);
    must(plan->upload(last, card.stream.handle()), "the last upload");
    must(plan->verify(last, card.stream.handle()), "the last upload");
    const std::string shape = std::to_string(sequences) + " sequences at " +
                              std::to_string(tokens) + " tokens, " +
                              (batch ? "with batch tables" : "resident tables alone");
    report.row(
        "{\"upload\": \"%s\", \"bytes\": %lld, \"changed_entries\": %lld, \"host_us\": %.2f}",
        shape.c_str(), static_cast<long long>(plan->last_upload().bytes),
        static_cast<long long>(plan->last_upload().changed_entries), median_of(host_us));
    if (driver.is_there()) report.time("upload of " + shape, median_of(us), 15);
  }
}

// Steps of a manager: sequences come, fork, grow and end.
class RandomSteps {
 public:
  explicit RandomSteps(const Options& options)
      : most_(options.small ? 6 : 64),
        manager(must(KVCacheManager::create(CacheSpec{{group(4 * most_ * kColumns)}},
                                            {.max_sequences = most_, .max_steps_in_flight = 2}),
                     "a manager")) {}

  static constexpr std::int32_t kBlockSize = 4, kColumns = 24;

  // Another step, planned; commit it.
  const StepPlan& plan() {
    change();
    ticket_ = must(manager.begin_step(), "begin_step");
    for (const SequenceId sequence : open_) {
      if (between(1, 100) > 80) continue;
      const std::int32_t length = must(manager.info(sequence), "info").length;
      std::vector<std::int32_t> tokens;
      for (int n = between(1, 10) == 1 ? between(2, 9) : 1; n > 0; --n)
        tokens.push_back(between(0, 999));
      if (length + 9 < kBlockSize * kColumns) must(manager.append(sequence, tokens), "append");
    }
    return *must(manager.plan({.block_tables = true, .changed_entries = true, .flashinfer = true}),
                 "plan");
  }
  void complete() {
    must(manager.commit(ticket_), "commit");
    must(manager.complete(ticket_), "complete");
  }
  [[nodiscard]] DevicePlanOptions options(const DevicePlanGroup& group) const {
    return {.max_sequences = most_,
            .max_tokens = most_ * 9,
            .num_rows = manager.num_rows(),
            .groups = {&group, 1},
            .flashinfer = true};
  }

 private:
  static GroupSpec group(std::int32_t blocks) {
    GroupSpec spec;
    spec.head_dim_k = spec.head_dim_v = 64;
    spec.block_size = kBlockSize;
    spec.num_blocks = blocks;
    return spec;
  }
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  void change() {
    for (int n = between(0, 3); n > 0; --n) {
      const auto some = static_cast<std::size_t>(between(0, 1 << 20));
      if (open_.size() + 1 < static_cast<std::size_t>(most_)) {
        std::vector<std::int32_t> prompt;
        const int text = between(1, 3), count = between(0, 40);
        prompt.resize(static_cast<std::size_t>(count));
        std::iota(prompt.begin(), prompt.end(), 100 * text);
        const bool forks = !open_.empty() && between(1, 4) == 1;
        open_.push_back(forks ? must(manager.fork(open_[some % open_.size()]), "fork")
                              : must(manager.open(prompt), "open").sequence);
      }
      if (!open_.empty() && between(1, 3) == 1) {
        const SequenceId sequence = open_[some % open_.size()];
        must(manager.close(sequence), "close");
        std::erase(open_, sequence);
      }
    }
    // Those that are full make room.
    std::erase_if(open_, [&](const SequenceId sequence) {
      const bool full = must(manager.info(sequence), "info").length + 9 >= kBlockSize * kColumns;
      if (full) must(manager.close(sequence), "close");
      return full;
    });
  }

  std::int32_t most_;
  std::mt19937 random_{7};
  std::vector<SequenceId> open_;
  Ticket ticket_;

 public:
  KVCacheManager manager;
};

void replay_graph(Report& report, Card& card, Driver& driver, const Options& options) {
  RandomSteps steps(options);
  const DevicePlanGroup group{.block_size = RandomSteps::kBlockSize,
                              .table_stride = RandomSteps::kColumns};
  const auto plan = must(DevicePlan::create(card.kernels, steps.options(group)), "a plan");
  void* const stream = card.stream.handle();
  void* graph = nullptr;
  const int count = options.small ? 100 : options.quick ? 300 : 1000;
  int wrong = 0;
  std::int64_t changed = 0, whole = 0;
  for (int n = 0; n < count && wrong < 3; ++n) {
    const StepPlan& step = steps.plan();
    must(plan->send(step, stream), "send");
    if (graph == nullptr && driver.is_there()) {
      driver.begin_capture(stream);
      must(plan->apply(stream), "apply, captured");
      graph = driver.end_capture(stream);
    }
    if (graph != nullptr) {
      driver.launch(graph, stream);
      plan->applied();
    } else {
      must(plan->apply(stream), "apply");
    }
    if (const Status same = plan->verify(step, stream); !same.ok()) {
      ++wrong;
      report.fail("step " + std::to_string(n) + ": " + same.message());
    }
    changed += plan->last_upload().changed_entries;
    whole += plan->last_upload().whole_rows;
    steps.complete();
  }
  report.row(
      "{\"graph_replays\": %d, \"captured\": %s, \"changed\": %d, \"entries\": %lld, "
      "\"whole_rows\": %lld}",
      count, graph != nullptr ? "true" : "false", wrong, static_cast<long long>(changed),
      static_cast<long long>(whole));
}

}  // namespace

void run_plan(Report& report, const Options& options) {
  Card card;
  Driver driver(*card.device);
  replay_graph(report, card, driver, options);
  time_uploads(report, card, driver, options);
}

}  // namespace kvfolio::cuda::parts
