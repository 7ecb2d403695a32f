// SPDX-License-Identifier: Apache-2.0
#include "prove.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compute_choice.h"
#include "console.h"
#include "engine.h"
#include "exit_code.h"
#include "generate_input.h"
#include "pool_size.h"
#include "prove_conditions.h"
#include "prove_prompts.h"
#include "prove_report.h"
#include "results.h"
#include "sha256.h"
#include "tier_summary.h"

namespace kvfolio::tools {
namespace {

using llama::Request;

// A step takes every prompt whole, unless the condition says otherwise.
constexpr std::int32_t kStepTokens = 1 << 20;

// What one run over the scored requests gave.
struct Outcome {
  std::vector<SampleResult> samples;  // prompt by prompt, sample by sample
  std::string difference;             // the first from the twin's; empty: none, or it is the twin
  Happened happened;
};

std::int64_t blocks(std::int64_t tokens, std::int64_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

std::optional<Known> known(const Condition& condition) {
  switch (condition.prefix_or_cold()) {
    case Prefix::kHit:
      return Known::kWhole;
    case Prefix::kInside:
      return Known::kInsideABlock;
    case Prefix::kAtABorder:
      return Known::kAtABorder;
    case Prefix::kCold:
    case Prefix::kEachOthers:
      break;
  }
  return std::nullopt;
}

std::string hash(std::span<const SampleResult> samples) {
  Sha256 sha;
  for (const SampleResult& sample : samples) {
    for (const auto& step : sample.logits) sha.update(std::as_bytes(std::span(step->row)));
  }
  return sha.hex();
}

// What an engine computes with.
struct Machine {
  std::unique_ptr<ThreadPool> pool;
  std::shared_ptr<llama::CacheCompute> compute;  // on the pool
};

// A file in memory.
class MemoryFile final : public ByteSink, public ByteSource {
 public:
  Status write(std::span<const std::byte> more) override {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return {};
  }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes_.size());
  }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    std::copy_n(bytes_.begin() + offset, out.size(), out.begin());
    return {};
  }

 private:
  std::vector<std::byte> bytes_;
};

// Bytes of the host tier: what all rows need together is far less.
constexpr std::int64_t kHostTierBytes = std::int64_t{256} << 20;

// No file of this run is read by another.
constexpr ModelIdentity kIdentity = {.model = "the model of this run",
                                     .weights = "its weights",
                                     .tokenizer = "ids",
                                     .model_dtype = "f32",
                                     .positions = "its positions",
                                     .engine = "this process"};

// One call of the verb.
class Prover {
 public:
  Prover(const ProveOptions& options, const llama::Model& model, const ComputeChoice& compute,
         PromptSet set)
      : options_(options),
        model_(model),
        compute_(compute),
        with_long_(std::move(set)),
        set_(with_long_) {
    set_.prompts.pop_back();
  }

  Result<int> run() {
    const auto start = std::chrono::steady_clock::now();
    Proof proof{.options = &options_, .compute = &compute_, .model = &model_};
    Result<OpenTiers> tiers = open_tiers(options_.tiers);
    if (!tiers) return prefixed("--tier", tiers.error());
    for (const std::string& line : tiers->describe()) report("kvfolio prove: " + line);
    const std::vector<Condition> all = conditions(tiers->disk != nullptr, tiers->redis != nullptr);
    *tiers = {};  // each row opens the one that it needs
    for (std::size_t i = 0; i < all.size(); ++i) {
      show_progress(std::to_string(i + 1) + " of " + std::to_string(all.size()) + ": " +
                    all[i].name());
      Result<ProvedRow> row = prove_row(all[i]);
      if (!row) return prefixed("the contiguous twin", row.error());
      proof.rows.push_back(*std::move(row));
      add(proof.tiers, tiers_seen_);
      watch_.look(proof.tiers, tier_);
      tiers_seen_.clear();
      if (!proof.good()) note_failure();
      // JSON is one object, in one piece: half of it would be of no use to anybody.
      if (!options_.json)
        print((i == 0 ? table_head() : "") + table_row(proof.rows.back(), compute_.name()));
    }
    for (const SampleResult& sample : std::span(twin_).first(kNumSamples)) {
      proof.logit_rows += static_cast<std::int64_t>(sample.logits.size());
    }
    proof.long_prompt = with_long_.longest();
    proof.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    print(options_.json ? proof_json(proof) + "\n" : proof_text(proof));
    return proof.good() ? 0 : 1;
  }

 private:
  // An error is the twin's: without a reference there is nothing to show. That of another row is
  // its failure.
  Result<ProvedRow> prove_row(const Condition& condition) {
    ProvedRow row;
    row.condition = condition;
    Result<Outcome> outcome = run_condition(condition);
    if (!outcome) {
      if (condition.contiguous) return outcome.error();
      row.failure = outcome.error().message();
      return row;
    }
    row.happened = outcome->happened;
    const std::span<const SampleResult> samples(outcome->samples);
    row.sha256 = hash(samples.first(kNumSamples));
    if (condition.with_long) row.long_sha256 = hash(samples.subspan(kNumSamples));
    row.failure = what_is_missing(condition, row.happened);
    row.difference = std::move(outcome->difference);
    if (condition.contiguous) twin_ = std::move(outcome->samples);
    return row;
  }

  // No other run makes good what failed, or what gave other bits than the twin.
  [[nodiscard]] static bool is_last_word(const Result<Outcome>& outcome) {
    return !outcome || !outcome->difference.empty();
  }

  // The smallest pool that runs may preempt no request, or leave nothing to be found; then a larger
  // one, which lets more in at once. If none will do, the first that preempted says what is
  // missing.
  Result<Outcome> run_condition(const Condition& condition) {
    if (!condition.preempting) return run_shared(condition, roomy_pool(condition));
    const std::int64_t least = least_pool(condition);
    std::int64_t last = 0;
    std::optional<Outcome> preempted;
    for (const std::int64_t percent : {100, 115, 130, 150, 175, 200, 250, 300, 400, 600, 800}) {
      const std::int64_t pool = (least * percent + 99) / 100;
      if (pool == last) continue;
      last = pool;
      Result<Outcome> outcome = run_shared(condition, pool);
      if (is_last_word(outcome) || what_is_missing(condition, outcome->happened).empty()) {
        return outcome;
      }
      if (!preempted && outcome->happened.stats.scheduler.preemptions > 0) {
        preempted = *std::move(outcome);
      }
    }
    if (preempted) return *std::move(preempted);
    return Status(ErrorCode::kFailedPrecondition, "no sequence was preempted in pools of " +
                                                      std::to_string(least) + " to " +
                                                      std::to_string(last) + " blocks");
  }

  // Where others take the cores, the calling thread may be done before a second one gets any: then
  // a few times more, and where that took no time, for a second.
  Result<Outcome> run_shared(const Condition& condition, std::int64_t num_blocks) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    for (int run = 0;; ++run) {
      Result<Outcome> outcome = run_engine(condition, num_blocks);
      if (is_last_word(outcome) || condition.threads.value_or(1) == 1) return outcome;
      if (outcome->happened.threads_that_worked > 1) return outcome;
      if (run >= 4 && Clock::now() - begin > std::chrono::seconds(1)) return outcome;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  // As another process would find it.
  Status reopen_tier(Restored from) {
    below_.clear();
    tier_ = {};
    TierChoice choice;
    if (from == Restored::kFromDisk) choice.disk = options_.tiers.disk;
    if (from == Restored::kFromRedis) choice.redis = options_.tiers.redis;
    Result<OpenTiers> tier = open_tiers(choice);
    if (!tier) return std::move(tier).error();
    tier_ = *std::move(tier);
    below_ = tier_.below();
    return {};
  }

  Result<std::unique_ptr<llama::Engine>> make_engine(const Condition& condition,
                                                     std::int64_t num_blocks,
                                                     const Machine& machine) {
    CacheSpec spec = llama::cache_spec(model_.config(), shape(condition));
    for (GroupSpec& group : spec.groups) group.num_blocks = static_cast<std::int32_t>(num_blocks);
    const bool from_tier = is_from_a_tier(condition);
    const bool from_memory = condition.restored == Restored::kFromMemory || from_tier;
    ModelIdentity identity = kIdentity;
    identity.weights = weights_;
    return llama::Engine::create(
        model_, spec,
        {.max_batch_tokens = kStepTokens,
         .max_chunk_tokens = condition.chunk_or_all(),
         .max_seqs = condition.sequences(),
         .max_tokens = set(condition).longest() + kNewTokens,
         .admission_margin = condition.preempting ? 0 : -1,
         .hold_back = condition.twins,
         .stop_at_eos = false,
         .prefix_cache = condition.prefix_or_cold() != Prefix::kCold,
         .contiguous = condition.contiguous,
         .order = condition.unordered ? Order::kUnordered : Order::kInOrder,
         .steps_in_flight = condition.overlapping ? 2 : 1,
         .keep_logits = llama::LogitRows::kChosen,
         .identity = identity,
         .host_tier_bytes = from_memory ? kHostTierBytes : 0,
         .tiers =
             from_tier ? std::span<const OffloadTier>(below_) : std::span<const OffloadTier>()},
        *machine.compute, *machine.pool);
  }

  // The engine that answers after `warmed` has computed what it is to find.
  Result<std::unique_ptr<llama::Engine>> restore(const Condition& condition,
                                                 std::int64_t num_blocks, const Machine& machine,
                                                 std::unique_ptr<llama::Engine> warmed,
                                                 std::int64_t& loads) {
    if (!condition.restored) return warmed;
    if (condition.restored == Restored::kFromMemory) {
      if (Status status = warmed->evict_cached(); !status.ok()) return status;
      return warmed;
    }
    if (is_from_a_tier(condition)) {
      if (Status status = warmed->evict_cached(); !status.ok()) return status;
      note_tiers(*warmed);
      warmed.reset();
      if (Status status = reopen_tier(*condition.restored); !status.ok()) return status;
      return make_engine(condition, num_blocks, machine);
    }
    MemoryFile file;
    const Result<SaveStats> saved = warmed->save(file);
    if (!saved) return saved.error();
    Result<std::unique_ptr<llama::Engine>> other =
        make_engine(condition, 2 * num_blocks + 3, machine);
    if (!other) return other;
    const Result<RestoreStats> restored = (*other)->restore(file);
    if (!restored) return restored.error();
    loads = restored->records_loaded;
    return other;
  }

  // An engine counts from its start: once for each, before it ends.
  void note_tiers(const llama::Engine& engine) {
    llama::RunStats stats;
    engine.look_at_tiers(stats);
    add(tiers_seen_, summaries(stats));
  }

  Result<Outcome> run_engine(const Condition& condition, std::int64_t num_blocks) {
    const Result<const Machine*> found = machine_of(condition);
    if (!found) return found.error();
    const Machine& machine = **found;
    ThreadPool& pool = *machine.pool;
    pool.forget_work();
    machine.compute->take_kernels();  // of the run before
    // A run finds in the tier what it stored itself, and nothing of another run.
    if (is_from_a_tier(condition)) {
      weights_ = "its weights, run " + std::to_string(++tier_runs_) + " of " + run_name_;
      if (Status status = reopen_tier(*condition.restored); !status.ok()) return status;
    }
    Result<std::unique_ptr<llama::Engine>> engine = make_engine(condition, num_blocks, machine);
    if (!engine) return std::move(engine).error();

    Outcome outcome;
    Happened& happened = outcome.happened;
    std::vector<Request> warming;
    Counters before;
    if (const std::optional<Known> known_part = known(condition)) {
      warming = warming_requests(set(condition), *known_part, condition.block());
      const Result<llama::RunStats> warmed = run_requests(**engine, warming, nullptr);
      if (!warmed) return warmed.error();
      before = warmed->cache;
      happened.chunk_tokens = warmed->scheduler.chunk_tokens_peak;
    }
    engine = restore(condition, num_blocks, machine, *std::move(engine), happened.loads);
    if (!engine) return std::move(engine).error();
    if (condition.restored && condition.restored != Restored::kFromMemory) before = {};
    const std::vector<Request> requests = scored_requests(set(condition), condition.forked);
    outcome.samples.resize(static_cast<std::size_t>(condition.num_samples()));
    Result<llama::RunStats> stats = run_requests(**engine, requests, &outcome.samples);
    if (!stats) return std::move(stats).error();
    for (const SampleResult& sample : outcome.samples) {
      if (sample.token_ids.size() != kNewTokens) {
        return Status(ErrorCode::kFailedPrecondition,
                      "a sample has " + std::to_string(sample.token_ids.size()) +
                          " tokens, expected " + std::to_string(kNewTokens));
      }
    }
    if (is_from_a_tier(condition)) note_tiers(**engine);
    if (!condition.contiguous) outcome.difference = first_difference(outcome.samples);
    happened.stats = *std::move(stats);
    const OffloadCounters& tiers = happened.stats.tiers;
    happened.loads +=
        static_cast<std::int64_t>(is_from_a_tier(condition) ? tiers.tier_loads : tiers.loads);
    happened.kernels = machine.compute->take_kernels();
    happened.threads = pool.num_threads();
    happened.threads_that_worked = pool.num_threads_that_worked();
    happened.chunk_tokens =
        std::max(happened.chunk_tokens, happened.stats.scheduler.chunk_tokens_peak);
    happened.longest_prompt = set(condition).longest();
    happened.block_copies =
        static_cast<std::int64_t>(happened.stats.cache.block_copies - before.block_copies);
    happened.forks = static_cast<std::int64_t>(happened.stats.cache.forks - before.forks);
    happened.forks_parted = forks_parted(condition, outcome.samples);
    for (const Request& request : requests) {
      happened.tokens_asked += static_cast<std::int64_t>(request.prompt.size());
    }
    expect_counts(condition, requests, warming, happened);
    return outcome;
  }

  // Runs one engine; a request that it rejects is an error. `samples`: where results go, or null.
  Result<llama::RunStats> run_requests(llama::Engine& engine, std::span<const Request> requests,
                                       std::vector<SampleResult>* samples) {
    std::string rejected;
    Results results(requests);
    llama::Listener listener;
    listener.on_finished = [&](llama::FinishedSample&& finished) { results.keep(finished); };
    listener.on_rejected = [&](const Request& request, const std::string& error) {
      if (rejected.empty()) rejected = request.id + " was rejected: " + error;
    };
    Result<llama::RunStats> stats = engine.run(requests, std::move(listener));
    if (!stats) return stats;
    if (!rejected.empty()) return Status(ErrorCode::kFailedPrecondition, rejected);
    if (samples == nullptr) return stats;
    std::size_t next = 0;
    for (const RequestResult& request : results.all()) {
      for (const SampleResult& sample : request.samples) samples->at(next++) = sample;
    }
    return stats;
  }

  // What can be said beforehand. Nothing where blocks come and go.
  void expect_counts(const Condition& condition, std::span<const Request> requests,
                     std::span<const Request> warming, Happened& happened) const {
    if (condition.preempting || condition.contiguous || condition.restored) return;
    const Prefix prefix = condition.prefix_or_cold();
    if (prefix == Prefix::kCold) {
      happened.tokens_reused_expected = 0;
    } else if (prefix == Prefix::kHit || (known(condition) && !condition.at_once)) {
      // All open in the first step, so they find what was there before it; a whole hit is the most
      // that there is to find at any time.
      happened.tokens_reused_expected = 0;
      for (const Request& request : requests) {
        happened.tokens_reused_expected += expected_hit(request.prompt, warming);
      }
    }
    if (condition.twins) {
      // Each waits for an older one that shares a block or more with it, and finds the blocks.
      // Inside the next one another prompt may share more, which is not there yet.
      happened.tokens_reused_least = 0;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        const std::int32_t soon =
            expected_soon(requests[i].prompt, requests.first(i), condition.block());
        if (soon < condition.block()) continue;
        ++happened.held_back_expected;
        happened.tokens_reused_least += soon / condition.block() * condition.block();
      }
    }
    if (condition.forked && prefix == Prefix::kCold) {
      // The owner of a shared tail goes on in place; each of the others copies it.
      happened.block_copies_expected = 0;
      for (std::size_t p = 0; p < set(condition).prompts.size(); ++p) {
        const auto length = static_cast<std::int32_t>(set(condition).prompts[p].size());
        const bool tail = length % condition.block() != 0;
        happened.block_copies_expected += tail ? samples_of(p) - 1 : 0;
      }
    }
    const bool together = prefix == Prefix::kCold && !condition.forked && !condition.at_once &&
                          condition.chunk_or_all() == 0;
    if (together && model_.config().sliding_window == 0) {
      happened.blocks_final = 0;
      for (const Request& request : requests) {
        // The last generated token is never an input.
        happened.blocks_final += blocks(
            static_cast<std::int64_t>(request.prompt.size()) + kNewTokens - 1, condition.block());
      }
    }
  }

  // Did two samples of a prompt write different tokens into what was one block?
  bool forks_parted(const Condition& condition, const std::vector<SampleResult>& samples) const {
    for (std::size_t p = 0; p < set_.prompts.size(); ++p) {
      const auto length = static_cast<std::int32_t>(set_.prompts[p].size());
      const std::int32_t room =
          (condition.block() - length % condition.block()) % condition.block();
      const auto& one = samples[p * kSamplesPerPrompt].token_ids;
      const auto& other = samples[p * kSamplesPerPrompt + 1].token_ids;
      const auto written = std::min(room, kNewTokens - 1);
      if (!std::equal(one.begin(), one.begin() + written, other.begin())) return true;
    }
    return false;
  }

  std::string first_difference(const std::vector<SampleResult>& samples) const {
    Comparison counts;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const std::string found = difference(samples[i], twin_[i], counts);
      if (found.empty()) continue;
      const std::size_t prompt = i / kSamplesPerPrompt;
      return "prompt " + std::to_string(prompt) + " of " +
             std::to_string(with_long_.prompts[prompt].size()) + " tokens, sample " +
             std::to_string(i % kSamplesPerPrompt) + ", " + found;
    }
    return {};
  }

  // Enough that nothing is ever short: no block that is looked for later is evicted.
  [[nodiscard]] std::int64_t roomy_pool(const Condition& condition) const {
    std::int64_t all = 0;
    for (const Tokens& prompt : set(condition).prompts) {
      const auto length = static_cast<std::int64_t>(prompt.size());
      // Each sample, one that warms, and a copy of a block for each.
      all += (kSamplesPerPrompt + 1) * (blocks(length + kNewTokens, condition.block()) + 2);
    }
    return all;
  }

  // Room for the longest request alone.
  [[nodiscard]] std::int64_t least_pool(const Condition& condition) const {
    const CacheSpec spec = llama::cache_spec(model_.config(), shape(condition));
    const std::int32_t tokens = set(condition).longest() + kNewTokens - 1;
    std::int64_t least = 1;
    for (const GroupSpec& group : spec.groups) {
      least = std::max(least, llama::blocks_needed(group, {.num_tokens = tokens}));
    }
    return least;
  }

  // In the format that the engine would choose, so that rows of different block sizes compare
  // formats too.
  [[nodiscard]] llama::CacheShape shape(const Condition& condition) const {
    return {.block_size = condition.block(),
            .dtype = options_.dtype,
            .format = compute_.auto_format(options_.dtype, condition.block())};
  }

  [[nodiscard]] const PromptSet& set(const Condition& condition) const {
    return condition.with_long ? with_long_ : set_;
  }

  Result<const Machine*> machine_of(const Condition& condition) {
    const auto all =
        std::clamp(static_cast<std::int32_t>(std::thread::hardware_concurrency()), 1, 256);
    const std::int32_t wanted = condition.threads.value_or(all);
    Machine& machine = machines_[wanted];
    if (machine.pool == nullptr) {
      Result<std::unique_ptr<ThreadPool>> created = ThreadPool::create(wanted);
      if (!created) return std::move(created).error();
      machine.pool = *std::move(created);
      machine.compute = compute_.over(*machine.pool);
    }
    return &machine;
  }

  OpenTiers tier_;                       // of the row; outlives the engines
  std::vector<TierSummary> tiers_seen_;  // of the row
  TierWatch watch_{"prove"};
  std::vector<OffloadTier> below_;
  std::string weights_ = "its weights";
  const std::string run_name_ = std::to_string(std::random_device()());
  int tier_runs_ = 0;
  const ProveOptions& options_;
  const llama::Model& model_;
  const ComputeChoice& compute_;
  PromptSet with_long_;
  PromptSet set_;  // without the last
  std::vector<SampleResult> twin_;
  std::map<std::int32_t, Machine> machines_;  // by threads
};

Result<int> prove_or_error(const ProveOptions& options) {
  if (options.tiers.host_bytes > 0) {
    return Status(ErrorCode::kInvalidArgument,
                  "--tier host:SIZE, allowed: disk:DIR,SIZE and redis:HOST:PORT[,HOST:PORT]; host "
                  "memory has its rows without being asked for");
  }
  const Result<llama::LoadOptions> load = load_options();
  if (!load) return load.error();
  const Result<llama::Model> model = llama::Model::load(options.model, *load);
  if (!model) return prefixed("--model " + options.model, model.error());
  const Result<ComputeChoice> compute =
      ComputeChoice::resolve(model->config(), options.dtype, options.compute);
  if (!compute) return exit_without_device("prove", compute.error());
  Result<PromptSet> set = make_prompt_set(model->config());
  if (!set) return prefixed("--model " + options.model, set.error());
  return Prover(options, *model, *compute, *std::move(set)).run();
}

}  // namespace

int prove(const ProveOptions& options) { return exit_code("prove", prove_or_error(options)); }

}  // namespace kvfolio::tools
