// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace kvfolio::llama {
namespace {

constexpr std::int32_t kBlockSize = 4;
constexpr std::size_t kVocab = 16;

// A pool that counts, without sharing: a sequence of n tokens takes ceil(n / 4) blocks, or with a
// `window` those that reach into its last tokens.
class CountingBackend final : public Backend {
 public:
  explicit CountingBackend(std::int32_t num_blocks) : num_blocks_(num_blocks) {}

  // A prompt that begins with token 9 is in a tier: it comes after `load_polls` steps, all of it
  // but the last token.
  int load_polls = 0;

  Result<OffloadOpened> open(std::span<const std::int32_t> tokens, const OpenLimits&) override {
    const SequenceId id = start(0);
    const bool pending = load_polls > 0 && tokens[0] == 9;
    if (pending) loading_.push_back({id, static_cast<std::int32_t>(tokens.size()) - 1, load_polls});
    prompts_[id] = {tokens.begin(), tokens.end()};
    return OffloadOpened{.sequence = id, .pending = pending};
  }
  std::int32_t window = 0;  // 0: all tokens are kept
  // `twins_wait`: a prompt waits for the first one of the same tokens that is not computed whole.
  bool twins_wait = false;
  Result<SequenceId> worth_waiting_for(std::span<const std::int32_t> tokens,
                                       const OpenLimits&) override {
    for (const auto& [id, prompt] : prompts_) {
      const auto computed = computed_.find(id);
      const std::int32_t length = computed == computed_.end() ? 0 : computed->second;
      if (twins_wait && lengths_.count(id) != 0 &&
          length < static_cast<std::int32_t>(prompt.size()) &&
          std::equal(prompt.begin(), prompt.end(), tokens.begin(), tokens.end())) {
        return id;
      }
    }
    return SequenceId();
  }
  std::span<const SequenceReady> poll() override {
    ready_.clear();
    std::erase_if(loading_, [this](Loading& one) {
      if (--one.polls > 0) return false;
      const std::int64_t free = num_blocks_ - used();
      const std::int32_t tokens = blocks(one.tokens) <= free ? one.tokens : 0;
      lengths_.at(one.id) = tokens;
      ready_.push_back({one.id, tokens, LoadEnd::kLoaded});
      return true;
    });
    return ready_;
  }
  Result<SequenceId> fork(SequenceId parent) override { return start(lengths_.at(parent)); }
  Status close(SequenceId sequence) override {
    std::erase_if(loading_, [&](const Loading& one) { return one.id == sequence; });
    EXPECT_EQ(lengths_.erase(sequence), 1u);
    return {};
  }
  Status preempt(SequenceId sequence) override { return close(sequence); }

  Status begin_step() override {
    step_tokens_ = 0;
    step_.clear();
    computed_ = lengths_;
    return {};
  }
  Status append(SequenceId sequence, std::span<const std::int32_t> tokens) override {
    const std::int32_t length = lengths_.at(sequence);
    const auto end = length + static_cast<std::int64_t>(tokens.size());
    KVFOLIO_RETURN_IF_ERROR(need(blocks(end) - blocks(length)));
    EXPECT_TRUE(step_.insert(sequence).second) << "twice in one step";
    lengths_.at(sequence) += static_cast<std::int32_t>(tokens.size());
    step_tokens_ += static_cast<std::int32_t>(tokens.size());
    return {};
  }
  Status prepare() override { return {}; }
  Status finish_step() override { return {}; }
  Status drop_step() override { return {}; }
  Status admit(SequenceId sequence, std::int64_t num_tokens, std::int64_t most_per_step) override {
    ++num_admits_;
    std::int64_t most = blocks(lengths_.at(sequence) + num_tokens);
    if (window > 0) most = std::min(most, blocks(window - 2 + most_per_step) + 1);
    return need(most - held(sequence));
  }
  [[nodiscard]] std::int64_t tokens_too_many(const Shortage& shortage) const override {
    return window == 0 ? 0 : std::int64_t{shortage.needed - shortage.free} * kBlockSize;
  }
  Status can_ever_hold(std::int32_t, std::int32_t num_tokens,
                       std::int32_t num_branches) const override {
    if (window > 0 && blocks(window) + 1 <= num_blocks_) return {};
    if (blocks(num_tokens) * num_branches <= num_blocks_) return {};
    return Status(ErrorCode::kInvalidArgument, "too long");
  }
  Status layer(std::int32_t, const ConstRowsView&, const ConstRowsView&, const ConstRowsView&,
               const RowsView&) override {
    return {};
  }
  [[nodiscard]] CacheUsage usage() const override { return {.blocks = used()}; }
  [[nodiscard]] const Counters& counters() const override { return counters_; }

  [[nodiscard]] std::size_t num_sequences() const { return lengths_.size(); }
  [[nodiscard]] std::int32_t step_tokens() const { return step_tokens_; }
  [[nodiscard]] int num_admits() const { return num_admits_; }

 private:
  static std::int64_t blocks(std::int64_t tokens) { return (tokens + kBlockSize - 1) / kBlockSize; }
  [[nodiscard]] std::int64_t used() const {
    std::int64_t sum = 0;
    for (const auto& [id, length] : lengths_) sum += held(id);
    return sum;
  }
  // What the open step wrote, and what it reads.
  [[nodiscard]] std::int64_t held(SequenceId id) const {
    const std::int32_t length = lengths_.at(id);
    const auto computed = computed_.find(id);
    const std::int32_t begin = computed == computed_.end() ? length : computed->second;
    if (window == 0) return blocks(length);
    return blocks(length) - std::max(begin - window + 1, 0) / kBlockSize;
  }
  [[nodiscard]] Status need(std::int64_t needed) const {
    const std::int64_t free = num_blocks_ - used();
    if (needed <= free) return {};
    return Shortage{.needed = static_cast<std::int32_t>(needed),
                    .free = static_cast<std::int32_t>(free)};
  }
  SequenceId start(std::int32_t length) {
    const SequenceId id(next_id_++);
    lengths_[id] = length;
    return id;
  }

  struct Loading {
    SequenceId id;
    std::int32_t tokens;
    int polls;
  };
  std::int32_t num_blocks_;
  std::vector<Loading> loading_;
  std::vector<SequenceReady> ready_;
  std::uint64_t next_id_ = 1;
  std::map<SequenceId, std::int32_t> lengths_;
  std::map<SequenceId, std::int32_t> computed_;  // before the open step
  std::map<SequenceId, std::vector<std::int32_t>> prompts_;
  std::set<SequenceId> step_;
  std::int32_t step_tokens_ = 0;
  int num_admits_ = 0;
  Counters counters_;
};

// The logits that a token at a position leads to: made up, but always the same.
std::vector<float> logits_after(std::int32_t token, std::int32_t position) {
  std::vector<float> row(kVocab);
  for (std::size_t id = 0; id < kVocab; ++id) {
    const double u = uniform(static_cast<std::uint64_t>(token) * 1000 + id,
                             static_cast<std::uint64_t>(position));
    row[id] = static_cast<float>(4.0 * u);
  }
  return row;
}

struct Outcome {
  std::map<std::string, std::vector<std::int32_t>> tokens;  // by "id/sample"
  std::map<std::string, std::string> errors;
  std::vector<std::string> order;  // of completion
  SchedulerStats stats;
  std::int32_t sequences_peak = 0;
  int steps_while_loading = 0;  // that computed nothing
  int num_admits = 0;           // questions for room
};

Outcome run(const std::vector<Request>& requests, std::int32_t num_blocks, SchedulerLimits limits,
            int load_polls = 0, bool twins_wait = false, std::int32_t window = 0) {
  limits.max_positions = 200;
  limits.admission_margin = kBlockSize;
  CountingBackend backend(num_blocks);
  backend.load_polls = load_polls;
  backend.twins_wait = twins_wait;
  backend.window = window;
  Outcome result;
  Listener listener;
  listener.on_finished = [&](FinishedSample&& finished) {
    const std::string key = finished.request.id + "/" + std::to_string(finished.sample);
    result.tokens[key] = finished.token_ids;
    result.order.push_back(key);
  };
  listener.on_rejected = [&](const Request& request, const std::string& error) {
    result.errors[request.id] = error;
  };
  Scheduler scheduler(backend, limits, LogitRows::kNone, listener);
  for (const Request& request : requests) scheduler.add(request);
  StepBatch batch;
  for (int steps = 0; !scheduler.done(); ++steps) {
    EXPECT_LT(steps, 20'000) << "no end";
    if (steps >= 20'000) break;
    const Status scheduled = scheduler.schedule(batch);
    EXPECT_TRUE(scheduled.ok()) << scheduled.message();
    if (!scheduled.ok()) break;
    EXPECT_EQ(static_cast<std::int32_t>(batch.tokens.size()), backend.step_tokens());
    EXPECT_LE(static_cast<std::int32_t>(batch.tokens.size()), limits.max_batch_tokens);
    result.sequences_peak =
        std::max(result.sequences_peak, static_cast<std::int32_t>(backend.num_sequences()));
    if (batch.tokens.empty()) {
      result.steps_while_loading += scheduler.is_loading() ? 1 : 0;
      continue;
    }
    std::vector<float> logits;
    for (const std::int32_t row : batch.logit_rows) {
      const auto r = static_cast<std::size_t>(row);
      const std::vector<float> values = logits_after(batch.tokens[r], batch.positions[r]);
      logits.insert(logits.end(), values.begin(), values.end());
    }
    const Status advanced = scheduler.advance(logits, kVocab);
    EXPECT_TRUE(advanced.ok()) << advanced.message();
  }
  EXPECT_EQ(backend.num_sequences(), 0u) << "sequences left open";
  result.stats = scheduler.stats();
  result.num_admits = backend.num_admits();
  return result;
}

Request make_request(const std::string& id, std::int32_t prompt, std::int32_t new_tokens) {
  Request request;
  request.id = id;
  request.prompt.resize(static_cast<std::size_t>(prompt));
  std::iota(request.prompt.begin(), request.prompt.end(), 1);
  for (std::int32_t& token : request.prompt) token %= static_cast<std::int32_t>(kVocab);
  request.max_new_tokens = new_tokens;
  return request;
}

std::vector<Request> mixed_load() {
  std::vector<Request> requests;
  for (std::int32_t i = 0; i < 12; ++i) {
    requests.push_back(make_request("r" + std::to_string(i), 3 + 5 * i % 31, 4 + 7 * i % 19));
    requests.back().temperature = i % 3 == 0 ? 0.0 : 0.9;
    requests.back().seed = i;
    if (i % 4 == 1) requests.back().samples = 3;
    if (i % 6 == 3) {
      requests.back().beams = 3;
      requests.back().temperature = 0.0;
    }
  }
  return requests;
}

TEST(Scheduler, ResultsDependOnNoLimit) {
  const std::vector<Request> requests = mixed_load();
  const Outcome expected = run(requests, 10'000, {.max_batch_tokens = 10'000, .max_seqs = 100});
  EXPECT_EQ(expected.stats.preemptions, 0);
  std::int64_t preemptions = 0;
  for (const std::int32_t blocks : {40, 45, 60, 100}) {
    for (const std::int32_t batch : {1, 2, 7, 64}) {
      for (const std::int32_t seqs : {3, 4, 16}) {
        const Outcome actual = run(requests, blocks, {.max_batch_tokens = batch, .max_seqs = seqs});
        EXPECT_EQ(actual.tokens, expected.tokens) << blocks << " " << batch << " " << seqs;
        EXPECT_LE(actual.sequences_peak, seqs);
        EXPECT_EQ(actual.stats.prompt_tokens, expected.stats.prompt_tokens);
        preemptions += actual.stats.preemptions;
      }
    }
  }
  EXPECT_GT(preemptions, 0);
}

// A pool of 12 blocks of 4 tokens, and a window of 8.
TEST(Scheduler, APromptLongerThanThePoolComesInChunksThatItsWindowHasRoomFor) {
  const std::vector<Request> requests = {make_request("a", 180, 9), make_request("b", 170, 5)};
  // Far more than a prompt has: what a shortage leaves of it is found in a few questions.
  const SchedulerLimits limits{.max_batch_tokens = 1 << 20, .max_seqs = 8};
  const Outcome wide = run(requests, 10'000, limits);
  EXPECT_EQ(wide.stats.chunk_tokens_peak, 180);
  const Outcome actual = run(requests, 12, limits, 0, false, 8);
  EXPECT_EQ(actual.errors, wide.errors);
  EXPECT_EQ(actual.tokens, wide.tokens);
  EXPECT_EQ(actual.stats.preemptions, 0);
  // Alone it takes what the pool has beside the window, not one token or a half of a step.
  EXPECT_GT(actual.stats.chunk_tokens_peak, 32);
  EXPECT_LT(actual.stats.steps, 30);
  EXPECT_LE(actual.num_admits, 3 * actual.stats.steps);
}

TEST(Scheduler, ATwinWaitsUntilTheOldestHasComputedItsPromptAndOthersOvertake) {
  const std::vector<Request> requests = {make_request("a", 40, 9), make_request("b", 40, 5),
                                         make_request("c", 8, 5), make_request("d", 40, 5)};
  const SchedulerLimits limits{.max_batch_tokens = 64, .max_seqs = 8};
  const Outcome together = run(requests, 10'000, limits);
  EXPECT_EQ(together.stats.held_back, 0);
  EXPECT_EQ(together.stats.step_sequences_peak, 4);
  const Outcome actual = run(requests, 10'000, limits, 0, true);
  EXPECT_EQ(actual.stats.held_back, 2);
  EXPECT_EQ(actual.tokens, together.tokens);
  // In the first step a and c, in the second b, and behind its prompt d.
  EXPECT_EQ(actual.order, (std::vector<std::string>{"c/0", "b/0", "d/0", "a/0"}));
  SchedulerLimits at_once = limits;
  at_once.hold_back = false;
  EXPECT_EQ(run(requests, 10'000, at_once, 0, true).stats.held_back, 0);
}

// The oldest waits for none, so every job ends, whatever is preempted meanwhile.
TEST(Scheduler, WaitsForOlderOnesEndInEveryPool) {
  std::vector<Request> requests = mixed_load();
  for (const Request& request : mixed_load()) {
    requests.push_back(request);
    requests.back().id += " again";
  }
  const Outcome expected = run(requests, 10'000, {.max_batch_tokens = 10'000, .max_seqs = 100});
  std::int64_t held_back = 0;
  std::int64_t preemptions = 0;
  for (const std::int32_t blocks : {40, 60, 100}) {
    for (const std::int32_t batch : {1, 7, 64}) {
      for (const std::int32_t seqs : {3, 16}) {
        const Outcome actual =
            run(requests, blocks, {.max_batch_tokens = batch, .max_seqs = seqs}, 0, true);
        EXPECT_EQ(actual.tokens, expected.tokens) << blocks << " " << batch << " " << seqs;
        held_back += actual.stats.held_back;
        preemptions += actual.stats.preemptions;
      }
    }
  }
  EXPECT_GT(held_back, 0);
  EXPECT_GT(preemptions, 0);
}

TEST(Scheduler, WithoutAPrefixCacheEveryPromptTokenIsComputed) {
  const Outcome actual = run(mixed_load(), 45, {.max_batch_tokens = 16, .max_seqs = 8});
  EXPECT_EQ(actual.stats.prefill_tokens_computed, actual.stats.prompt_tokens);
}

TEST(Scheduler, SamplesComputeTheirPromptOnce) {
  Request request = make_request("r0", 40, 5);
  request.samples = 4;
  request.temperature = 1.0;
  const Outcome actual = run({request}, 10'000, {.max_batch_tokens = 16, .max_seqs = 8});
  EXPECT_EQ(actual.stats.prefill_tokens_computed, 40);
  EXPECT_EQ(actual.stats.tokens_recomputed, 0);
  EXPECT_EQ(actual.tokens.size(), 4u);
}

TEST(Scheduler, SampleIEqualsARequestWithSeedPlusI) {
  Request request = make_request("r0", 20, 12);
  request.samples = 4;
  request.temperature = 1.0;
  request.seed = 5;
  const Outcome together = run({request}, 10'000, {.max_batch_tokens = 64, .max_seqs = 8});
  std::vector<Request> single;
  for (std::int32_t i = 0; i < 4; ++i) {
    single.push_back(make_request("s" + std::to_string(i), 20, 12));
    single.back().temperature = 1.0;
    single.back().seed = 5 + i;
  }
  const Outcome apart = run(single, 10'000, {.max_batch_tokens = 64, .max_seqs = 8});
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(together.tokens.at("r0/" + std::to_string(i)),
              apart.tokens.at("s" + std::to_string(i) + "/0"));
  }
}

TEST(Scheduler, MoreSamplesThanSequencesTakeTurns) {
  Request request = make_request("r0", 9, 5);
  request.samples = 7;
  request.temperature = 1.0;
  const Outcome actual = run({request}, 10'000, {.max_batch_tokens = 64, .max_seqs = 2});
  EXPECT_EQ(actual.tokens.size(), 7u);
  EXPECT_EQ(actual.sequences_peak, 2);
}

TEST(Scheduler, RejectsAtOnceWhatCanNeverRunAndGoesOn) {
  std::vector<Request> requests{make_request("long", 190, 11), make_request("fat", 60, 30),
                                make_request("fits", 10, 5)};
  requests.push_back(make_request("wide", 5, 5));
  requests.back().beams = 5;
  const Outcome actual = run(requests, 20, {.max_batch_tokens = 64, .max_seqs = 4});
  EXPECT_EQ(actual.errors.size(), 3u);
  EXPECT_NE(actual.errors.at("long").find("max_position_embeddings 200"), std::string::npos);
  EXPECT_NE(actual.errors.at("wide").find("--max-seqs 4"), std::string::npos);
  EXPECT_EQ(actual.tokens.size(), 1u);
  EXPECT_EQ(actual.stats.rejected, 3);
  EXPECT_EQ(actual.stats.prompt_tokens, 10);
}

TEST(Scheduler, ThePoolOfOneRequestRunsThemAll) {
  // 30 + 10 - 1 tokens are 10 blocks: the last token generated is no input.
  std::vector<Request> requests;
  requests.reserve(5);
  for (int i = 0; i < 5; ++i) requests.push_back(make_request("r" + std::to_string(i), 30, 10));
  const Outcome actual = run(requests, 10, {.max_batch_tokens = 64, .max_seqs = 4});
  EXPECT_EQ(actual.tokens.size(), 5u);
  EXPECT_TRUE(actual.errors.empty());
}

TEST(Scheduler, OlderRequestsFinishFirstWhenAllAreEqual) {
  std::vector<Request> requests;
  requests.reserve(5);
  for (int i = 0; i < 5; ++i) requests.push_back(make_request("r" + std::to_string(i), 10, 10));
  const Outcome actual = run(requests, 11, {.max_batch_tokens = 8, .max_seqs = 4});
  EXPECT_TRUE(std::is_sorted(actual.order.begin(), actual.order.end()));
}

// Requests whose prompt begins with token 9 are in a tier.
std::vector<Request> in_a_tier(std::vector<Request> requests, bool all) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (all || i % 2 == 0) requests[i].prompt[0] = 9;
    if (requests[i].beams > 1) requests[i].samples = 1;  // a rank would be named like a sample
  }
  return requests;
}

TEST(Scheduler, ARequestThatWaitsForItsLoadDoesNotStopTheOthers) {
  const std::vector<Request> requests =
      in_a_tier({make_request("slow", 40, 3), make_request("quick", 10, 5)}, false);
  const Outcome actual = run(requests, 100, {.max_batch_tokens = 64, .max_seqs = 4}, 20);
  EXPECT_EQ(actual.order, (std::vector<std::string>{"quick/0", "slow/0"}));
  EXPECT_EQ(actual.stats.prefill_tokens_computed, 10 + 1);
  EXPECT_EQ(actual.stats.tokens_reused, 39);
  EXPECT_EQ(actual.steps_while_loading, 20 - 5);  // the others had ended by then
}

TEST(Scheduler, LoadsDecideNoResultAndEndWhateverTheLimits) {
  for (const bool all : {false, true}) {
    const std::vector<Request> requests = in_a_tier(mixed_load(), all);
    const Outcome expected = run(requests, 10'000, {.max_batch_tokens = 10'000, .max_seqs = 100});
    for (const std::int32_t blocks : {40, 45, 100}) {
      for (const std::int32_t seqs : {3, 4, 16}) {
        for (const int polls : {1, 2, 7}) {
          const Outcome actual =
              run(requests, blocks, {.max_batch_tokens = 16, .max_seqs = seqs}, polls);
          EXPECT_EQ(actual.tokens, expected.tokens) << blocks << " " << seqs << " " << polls;
          EXPECT_LE(actual.sequences_peak, seqs);
          EXPECT_LT(actual.stats.prefill_tokens_computed, actual.stats.prompt_tokens);
        }
      }
    }
  }
}

TEST(Scheduler, AStopIdEndsASampleAndIsItsLastToken) {
  Request request = make_request("r0", 10, 30);
  const Outcome all = run({request}, 100, {.max_batch_tokens = 64, .max_seqs = 4});
  const std::vector<std::int32_t>& tokens = all.tokens.at("r0/0");
  ASSERT_EQ(tokens.size(), 30u);
  request.stop_ids = {tokens[6]};
  const auto first = std::find(tokens.begin(), tokens.end(), tokens[6]);
  const Outcome stopped = run({request}, 100, {.max_batch_tokens = 64, .max_seqs = 4});
  EXPECT_EQ(stopped.tokens.at("r0/0"), std::vector<std::int32_t>(tokens.begin(), first + 1));
}

TEST(Scheduler, LogitsThatAreNotNumbersAreAnError) {
  CountingBackend backend(100);
  Scheduler scheduler(backend, {.max_batch_tokens = 8, .max_seqs = 2, .max_positions = 100},
                      LogitRows::kNone, {});
  const Request request = make_request("r0", 5, 5);
  scheduler.add(request);
  StepBatch batch;
  ASSERT_TRUE(scheduler.schedule(batch).ok());
  const std::vector<float> logits(kVocab, std::numeric_limits<float>::quiet_NaN());
  const Status status = scheduler.advance(logits, kVocab);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("r0"), std::string::npos);
}

}  // namespace
}  // namespace kvfolio::llama
