// SPDX-License-Identifier: Apache-2.0
#include "generate.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "compute_choice.h"
#include "console.h"
#include "engine.h"
#include "exit_code.h"
#include "file_name.h"
#include "files.h"
#include "generate_input.h"
#include "kvfolio/byte_stream.h"
#include "kvfolio/op_log.h"
#include "kvfolio/op_log_file.h"
#include "model_identity.h"
#include "npy.h"
#include "pool_size.h"
#include "progress_sink.h"
#include "report.h"
#include "results.h"
#include "text_output.h"
#include "tier_summary.h"
#include "whole_file.h"

namespace kvfolio::tools {
namespace {

using llama::Request;
using llama::Vocabulary;

// Bytes of a file to score: 64 MiB of text are hours of work.
constexpr std::int64_t kMaxScoredBytes = std::int64_t{64} << 20;

// One call of the verb.
class Generate {
 public:
  Generate(const GenerateOptions& options, const llama::Model& model,
           std::span<const Request> requests, const CacheSpec& spec, CheckpointIdentity identity,
           const ComputeChoice& compute, ThreadPool& pool)
      : options_(options),
        model_(model),
        vocabulary_{model.config().vocab},
        requests_(requests),
        spec_(spec),
        identity_(std::move(identity)),
        choice_(compute),
        pool_(pool),
        compute_(choice_.over(pool)),
        results_(requests),
        text_(requests, vocabulary_) {}

  Result<int> run() {
    if (Status status = open_files(); !status.ok()) return status;
    Result<OpenTiers> tiers = open_tiers(options_.tiers);
    if (!tiers) return prefixed("--tier", tiers.error());
    tiers_ = *std::move(tiers);
    for (const std::string& line : tiers_.describe()) report("kvfolio generate: " + line);
    if (Status status = open_log(); !status.ok()) return status;
    Summary summary;
    summary.model = &model_;
    summary.spec = &spec_;
    summary.options = &options_;
    summary.compute = &choice_;
    Comparison scored_rows;
    if (options_.perplexity_path) {
      Result<llama::Perplexity> scored = score(scored_rows);
      if (!scored) return prefixed("--perplexity", scored.error());
      summary.perplexity = *scored;
    }
    Result<llama::RunStats> stats = run_engine(options_.contiguous, results_, true);
    if (!stats) return std::move(stats).error();
    summary.stats = *std::move(stats);
    summary.saved = saved_;
    summary.restored = restored_;
    summary.tiers = summaries(summary.stats);
    summary.disk = disk_seen_;
    summary.redis = redis_seen_;
    if (logits_) {
      if (Status status = results_.write_logits(*logits_); !status.ok()) {
        return prefixed("--logits", status);
      }
    }
    if (options_.verify) {
      Results twin(requests_);
      show_progress("running the contiguous twin ...");
      const Result<llama::RunStats> other = run_engine(true, twin, false);
      show_progress("");
      if (!other) return prefixed("the contiguous twin", other.error());
      summary.comparison = compare(results_, twin);
      summary.comparison->logit_rows += scored_rows.logit_rows;
      if (!scored_rows.difference.empty()) summary.comparison->difference = scored_rows.difference;
      summary.twin_stats = *other;
    }
    const llama::BlockMap* const block_map = options_.report ? &block_map_ : nullptr;
    const std::int64_t rejected = summary.stats.scheduler.rejected;
    const std::uint64_t lost = options_.tier_strict ? stores_lost(summary.tiers) : 0;
    const bool failed =
        rejected > 0 || lost > 0 || (summary.comparison && !summary.comparison->difference.empty());
    if (failed) note_failure();
    print(options_.json ? summary_json(summary, block_map) + "\n"
                        : summary_text(summary, block_map));
    if (rejected > 0) {
      report("kvfolio generate: " + std::to_string(rejected) + " of " +
             std::to_string(requests_.size()) +
             " requests did not fit; their errors are among the results");
    }
    if (lost > 0) {
      report("kvfolio generate: --tier-strict: " + std::to_string(lost) +
             " stores failed or were dropped; the summary says of which tier");
    }
    return failed ? 1 : 0;
  }

 private:
  // Before the work: what cannot be read, or written to, is known now. Nothing that is there
  // changes yet.
  Status open_files() {
    if (options_.save_path || options_.metrics_path || options_.logits_path ||
        options_.oplog_path) {
      outlive_the_reader();
    }
    if (options_.load_path) {
      Result<FileSource> opened = FileSource::open(*options_.load_path);
      if (!opened) return prefixed("--load", opened.error());
      load_.emplace(*std::move(opened));
    }
    if (const Result<RecordSecrets> secrets = RecordSecrets::from_environment(); !secrets) {
      return secrets.error();  // before the work
    }
    if (options_.save_path) {
      const SignalsWait until_it_is_remembered;
      Result<FileSink> created = FileSink::create(*options_.save_path);
      if (!created) return prefixed("--save", created.error());
      save_.emplace(*std::move(created));
      unsaved_.emplace(save_->hidden_path());
    }
    if (options_.metrics_path) {
      Result<WholeFile> created = WholeFile::create(*options_.metrics_path);
      if (!created) return prefixed("--metrics", created.error());
      metrics_.emplace(*std::move(created));
    }
    if (options_.logits_path) {
      Result<NpyWriter> created = NpyWriter::create(*options_.logits_path, vocabulary_.size);
      if (!created) return prefixed("--logits", created.error());
      logits_.emplace(*std::move(created));
    }
    return {};
  }

  // The last one that can fail: it takes the place of an earlier log at once.
  Status open_log() {
    if (!options_.oplog_path) return {};
    Result<FileLog> created = FileLog::create(*options_.oplog_path);
    if (!created) return prefixed("--oplog", created.error());
    log_file_.emplace(*std::move(created));
    return {};
  }

  [[nodiscard]] llama::LogitRows logits_to_keep() const {
    if (options_.logits_path && requests_.size() == 1 && requests_[0].samples == 1) {
      return llama::LogitRows::kAll;
    }
    return options_.logits_path || options_.verify ? llama::LogitRows::kChosen
                                                   : llama::LogitRows::kNone;
  }

  // What the longest sequence is admitted to: its own tokens, and up to a block for each that runs
  // beside it (Scheduler::admissible()).
  [[nodiscard]] std::int32_t most_tokens() const {
    std::int64_t most = 1;
    for (const Request& request : requests_) {
      most =
          std::max(most, static_cast<std::int64_t>(request.prompt.size()) + request.max_new_tokens);
    }
    most += std::int64_t{options_.max_seqs} * std::min<std::int64_t>(options_.block_size, most);
    return static_cast<std::int32_t>(std::min<std::int64_t>(most, model_.config().max_positions));
  }

  [[nodiscard]] llama::EngineOptions engine_options(bool contiguous, std::int32_t max_tokens) {
    return {.max_batch_tokens = options_.max_batch_tokens,
            .max_seqs = options_.max_seqs,
            .max_tokens = max_tokens,
            .prefix_cache = options_.prefix_cache,
            .contiguous = contiguous,
            .keep_logits = logits_to_keep(),
            .identity = identity_.fields(),
            .host_tier_bytes = contiguous ? 0 : options_.tiers.arena_bytes(),
            .block_map = options_.report ? &block_map_ : nullptr};
  }

  Result<llama::RunStats> run_engine(bool contiguous, Results& results, bool shown) {
    llama::EngineOptions options = engine_options(contiguous, most_tokens());
    // These outlive the engine. The tiers are written to by this run alone.
    const OpenTiers tiers = contiguous ? OpenTiers{} : std::exchange(tiers_, {});
    const std::vector<OffloadTier> below = tiers.below();
    options.tiers = below;
    std::optional<OpLog> log;
    if (log_file_ && !contiguous && shown) options.log = &log.emplace(*log_file_);
    Result<llama::RunStats> stats = run_with(options, tiers, results, shown);
    if (log && stats && !log->status().ok()) return prefixed("--oplog", log->status());
    return stats;
  }

  Result<llama::RunStats> run_with(const llama::EngineOptions& options, const OpenTiers& tiers,
                                   Results& results, bool shown) {
    const bool contiguous = options.contiguous;
    Result<std::unique_ptr<llama::Engine>> engine =
        llama::Engine::create(model_, spec_, options, *compute_, pool_);
    if (!engine) return std::move(engine).error();
    llama::Listener listener;
    if (shown && !options_.json) {
      listener.on_token = [this](const Request& request, std::int32_t sample, std::int32_t token) {
        text_.token(request, sample, token);
      };
    }
    const auto watch = [&, shown] {
      if (!shown || contiguous || !options_.tiers.any()) return;
      llama::RunStats now;
      (*engine)->look_at_tiers(now);
      watch_.look(summaries(now), tiers);
    };
    listener.on_finished = [&, this, shown](llama::FinishedSample&& finished) {
      watch();
      results.keep(finished);
      if (shown && options_.json) print(sample_json(finished, vocabulary_) + "\n");
      if (shown && !options_.json) text_.finished(finished);
    };
    listener.on_rejected = [this, &results, shown](const Request& request,
                                                   const std::string& error) {
      results.reject(request, error);
      note_failure();
      if (shown && options_.json) print(rejected_json(request, error) + "\n");
      if (shown && !options_.json) text_.rejected(request, error);
    };
    if (contiguous || !shown) return (*engine)->run(requests_, std::move(listener));
    // After the run the tiers have what they are to have.
    const auto note_tiers = [&](const Result<llama::RunStats>& stats) {
      if (stats && tiers.disk) disk_seen_ = {tiers.disk->describe(), tiers.disk->stats()};
      if (stats && tiers.redis) redis_seen_ = tiers.redis->counters();
    };
    if (Status status = load(**engine); !status.ok()) return status;
    Result<llama::RunStats> stats = (*engine)->run(requests_, std::move(listener));
    note_tiers(stats);
    watch();
    if (stats && metrics_) {
      const MetricLabel label{.name = "model_name", .value = options_.model};
      metrics_->write((*engine)->metrics({&label, 1}));
      if (Status status = metrics_->finish(); !status.ok()) return prefixed("--metrics", status);
    }
    if (stats && save_) {
      if (Status status = save(**engine, *save_); !status.ok()) return status;
    }
    (*engine)->end_log();
    return stats;
  }

  Status load(llama::Engine& engine) {
    if (!load_) return {};
    const Result<RecordSecrets> secrets = RecordSecrets::from_environment();
    if (!secrets) return secrets.error();
    const Result<RestoreStats> loaded = engine.restore(*load_, secrets->options());
    if (!loaded) return prefixed("--load " + *options_.load_path, loaded.error());
    restored_ = *loaded;
    if (loaded->sections_damaged == 0 && loaded->records_refused == 0) return {};
    const std::string damage = std::to_string(loaded->sections_damaged) + " sections and " +
                               std::to_string(loaded->records_refused) +
                               " records are damaged or sealed with another key";
    if (saves_what_it_loads()) {
      return {ErrorCode::kInvalidArgument, "--load " + *options_.load_path + ": " + damage +
                                               ", and --save " + *options_.save_path +
                                               " would replace the file; save to another one"};
    }
    report("kvfolio generate: --load " + *options_.load_path + ": " + damage +
           "; their prompts are computed again");
    return {};
  }

  [[nodiscard]] bool saves_what_it_loads() const {
    std::error_code error;
    return options_.load_path && options_.save_path &&
           std::filesystem::equivalent(*options_.load_path, *options_.save_path, error);
  }

  Status save(llama::Engine& engine, FileSink& sink) {
    ProgressSink shown(sink, "saving the prefix cache");
    const Result<RecordSecrets> secrets = RecordSecrets::from_environment();
    if (!secrets) return secrets.error();
    const Result<SaveStats> saved = engine.save(shown, secrets->options());
    if (!saved) return prefixed("--save", saved.error());
    const SignalsWait no_hidden_file_is_left;
    if (Status status = sink.commit(); !status.ok()) return prefixed("--save", status);
    saved_ = *saved;
    return {};
  }

  // With --verify the twin takes the same steps; what was compared goes to `compared`.
  Result<llama::Perplexity> score(Comparison& compared) {
    Result<std::string> text = llama::read_text_file(*options_.perplexity_path, kMaxScoredBytes);
    if (!text) return std::move(text).error();
    Result<std::vector<std::int32_t>> tokens =
        vocabulary_.is_bytes() ? llama::encode(*text, vocabulary_) : parse_ids(*text, vocabulary_);
    if (!tokens) return prefixed(*options_.perplexity_path, tokens.error());
    const auto window = static_cast<std::int32_t>(std::clamp<std::size_t>(
        tokens->size(), 1, static_cast<std::size_t>(model_.config().max_positions)));
    // A pool of its own for one window, unless the options say what there is.
    CacheSpec spec = spec_;
    for (GroupSpec& group : spec.groups) {
      if (options_.num_blocks || options_.memory_bytes) break;
      group.num_blocks = static_cast<std::int32_t>(llama::blocks_needed(
          group, {.num_tokens = window, .step_tokens = options_.max_batch_tokens}));
    }
    const auto make_engine = [&](bool contiguous) {
      llama::EngineOptions options = engine_options(contiguous, window);
      options.block_map = nullptr;
      return llama::Engine::create(model_, spec, options, *compute_, pool_);
    };
    Result<std::unique_ptr<llama::Engine>> engine = make_engine(options_.contiguous);
    if (!engine) return std::move(engine).error();
    if (!options_.verify) return (*engine)->perplexity(*tokens);
    Result<std::unique_ptr<llama::Engine>> twin = make_engine(true);
    if (!twin) return prefixed("the contiguous twin", twin.error());
    const auto vocab = static_cast<std::size_t>(vocabulary_.size);
    return (*engine)->perplexity(
        *tokens, **twin,
        [&](std::size_t first, std::span<const float> rows, std::span<const float> twin_rows) {
          for (std::size_t at = 0; at < rows.size() && compared.difference.empty(); at += vocab) {
            const std::string found =
                row_difference(rows.subspan(at, vocab), twin_rows.subspan(at, vocab));
            if (found.empty()) {
              ++compared.logit_rows;
            } else {
              compared.difference = *options_.perplexity_path + " token " +
                                    std::to_string(first + at / vocab) + ": " + found;
            }
          }
        });
  }

  const GenerateOptions& options_;
  const llama::Model& model_;
  const Vocabulary vocabulary_;
  const std::span<const Request> requests_;
  const CacheSpec& spec_;
  const CheckpointIdentity identity_;
  const ComputeChoice& choice_;
  ThreadPool& pool_;
  std::shared_ptr<llama::CacheCompute> compute_;
  std::optional<FileSource> load_;
  std::optional<Unfinished> unsaved_;
  std::optional<FileSink> save_;
  std::optional<WholeFile> metrics_;
  std::optional<NpyWriter> logits_;
  std::optional<FileLog> log_file_;
  OpenTiers tiers_;  // until the run that uses them
  TierWatch watch_{"generate"};
  std::optional<DiskSummary> disk_seen_;
  std::optional<RedisCounters> redis_seen_;
  std::optional<SaveStats> saved_;
  std::optional<RestoreStats> restored_;
  llama::BlockMap block_map_;
  Results results_;
  TextOutput text_;
};

// What the options read and write is a file for each; only a prefix cache may be carried on in one.
Status check_files(const GenerateOptions& options) {
  FileNames names;
  const auto add = [&](const char* option, const std::optional<std::string>& path, bool writes) {
    if (path) names.add(option, *path, writes);
  };
  if (options.requests != "-") add("--requests", options.requests, false);
  add("--load", options.load_path, false);
  add("--perplexity", options.perplexity_path, false);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(options.model, error)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() != ".safetensors" && path.extension() != ".json") continue;
    if (path.extension() == ".json" && path.filename() != "config.json" &&
        path.filename() != "model.safetensors.index.json") {
      continue;
    }
    names.add("--model", path.string(), false);
  }
  add("--save", options.save_path, true);
  add("--metrics", options.metrics_path, true);
  add("--logits", options.logits_path, true);
  add("--oplog", options.oplog_path, true);
  names.may_be_one("--load", "--save");
  if (options.tiers.disk) names.keep_out("--tier disk:", options.tiers.disk->directory);
  return names.check();
}

Result<int> generate_or_error(GenerateOptions options) {
  if (Status status = check_files(options); !status.ok()) return status;
  const Result<llama::LoadOptions> load = load_options();
  if (!load) return load.error();
  const Result<llama::Model> model = llama::Model::load(options.model, *load);
  if (!model) return prefixed("--model " + options.model, model.error());
  const Result<ComputeChoice> compute =
      ComputeChoice::resolve(model->config(), options.dtype, options.compute);
  if (!compute) return exit_without_device("generate", compute.error());
  if (!options.format) options.format = compute->auto_format(options.dtype, options.block_size);
  const Result<std::vector<Request>> requests =
      collect_requests(options, {.size = model->config().vocab});
  if (!requests) return requests.error();
  const bool any_beams = std::any_of(requests->begin(), requests->end(),
                                     [](const Request& request) { return request.beams > 1; });
  if (options.logits_path && any_beams) {
    return Status(ErrorCode::kInvalidArgument,
                  "--logits with a beam search, allowed: requests with \"beams\" 1");
  }
  const Result<CacheSpec> spec = plan_pools(options, model->config(), *requests);
  if (!spec) return spec.error();
  const Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(options.num_threads);
  if (!pool) return prefixed("--threads", pool.error());
  CheckpointIdentity identity;
  if (options.tiers.any() || options.save_path || options.load_path) {
    Result<CheckpointIdentity> named =
        checkpoint_identity(options.model, compute->name(), to_string(model->target()));
    if (!named) return prefixed("--model " + options.model, named.error());
    identity = *std::move(named);
  }
  return Generate(options, *model, *requests, *spec, std::move(identity), *compute, **pool).run();
}

}  // namespace

int generate(const GenerateOptions& options) {
  return exit_code("generate", generate_or_error(options));
}

}  // namespace kvfolio::tools
