// SPDX-License-Identifier: Apache-2.0
#include "report.h"
#include "pool_size.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "printable_text.h"

namespace kvfolio::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string line_of(const Json& json) { return json_text(json); }

double tokens_per_s(const llama::RunStats& stats) {
  if (stats.seconds <= 0.0) return 0.0;
  return static_cast<double>(stats.scheduler.generated_tokens) / stats.seconds;
}

// Rounded: more digits would say more than was measured.
double rounded(double value, double per_unit) { return std::round(value * per_unit) / per_unit; }

const char* format_name(const Summary& summary) {
  if (summary.options->contiguous) return "contiguous";
  return to_string(llama::shape_of(*summary.spec).format);
}

std::string mebibytes(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string percent(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return "0 %";
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%",
                100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

// "  name ........ value\n"
std::string row(std::string name, const std::string& value) {
  name += ' ';
  while (name.size() < 34) name += '.';
  return "  " + name + " " + value + "\n";
}

const TierSummary& tier_of(const Summary& summary, std::string_view name) {
  static const TierSummary none;
  const auto found = std::find_if(summary.tiers.begin(), summary.tiers.end(),
                                  [&](const TierSummary& tier) { return tier.name == name; });
  return found == summary.tiers.end() ? none : *found;
}

// All tiers together. Host memory is one of those that store if it was asked for; what it drops no
// other one gets.
void add_tiers(Json& json, const Summary& summary) {
  TierSummary all;
  for (const TierSummary& tier : summary.tiers) {
    if (tier.name != "host" || summary.options->tiers.host_bytes > 0) all.stores += tier.stores;
    all.stores_dropped += tier.stores_dropped + tier.stores_failed;
    all.corrupt += tier.corrupt;
    for (std::size_t i = 0; i < all.misses.size(); ++i) all.misses[i] += tier.misses[i];
  }
  json["tier_hits_tokens"] = summary.stats.tiers.tokens_loaded;
  json["tier_stores"] = all.stores;
  json["tier_stores_dropped"] = all.stores_dropped;
  json["tier_loads"] = summary.stats.tiers.loads;
  json["tier_misses"] = tier_json(all)["misses"];
  json["tier_corrupt"] = all.corrupt;
  json["host"] = tier_json(tier_of(summary, "host"));
  json["host"]["bytes"] = summary.stats.host_memory.bytes_published;
  json["host"]["records"] = summary.stats.host_memory.records;
}

Json disk_json(const Summary& summary) {
  Json json = tier_json(tier_of(summary, "disk"));
  json["is"] = printable_text(summary.disk->description);
  json["bytes"] = summary.disk->stats.bytes;
  json["records"] = summary.disk->stats.records;
  json["evicted"] = summary.disk->stats.evicted;
  json["io_errors"] = summary.disk->stats.io_errors;
  return json;
}

Json redis_json(const Summary& summary) {
  const RedisCounters& redis = *summary.redis;
  Json json = tier_json(tier_of(summary, "redis"));
  json["stores_refused"] = redis.stores_refused;
  json["connections"] = redis.connections;
  json["connections_lost"] = redis.connections_lost;
  json["redirects"] = redis.redirects;
  json["retries"] = redis.retries;
  json["bytes_sent"] = redis.bytes_sent;
  json["bytes_received"] = redis.bytes_received;
  return json;
}

std::string cache_report(const Summary& summary) {
  const llama::RunStats& stats = summary.stats;
  const llama::SchedulerStats& work = stats.scheduler;
  const std::int64_t reused = work.tokens_reused;
  std::string out;
  out += row("sequences at once, at the peak", std::to_string(work.sequences_peak));
  out += row("contiguous caches would reserve", mebibytes(work.contiguous_bytes_peak));
  out +=
      row("blocks held at the peak", mebibytes(stats.bytes_peak) + " (" +
                                         percent(stats.bytes_peak, work.contiguous_bytes_peak) +
                                         " of it): " + std::to_string(stats.blocks_peak) + " of " +
                                         std::to_string(stats.blocks_total) + " blocks");
  out += row("prompt tokens reused",
             std::to_string(reused) + " of " + std::to_string(work.prompt_tokens) + " (" +
                 percent(reused, work.prompt_tokens) + " were never computed)");
  out += row("blocks copied on write", std::to_string(stats.cache.block_copies));
  out += row("cached blocks evicted", std::to_string(stats.cache.blocks_evicted));
  out += row("sequences preempted, resumed", std::to_string(work.preemptions) + " (" +
                                                 plural(work.tokens_recomputed, "token") +
                                                 " computed again)");
  return out;
}

}  // namespace

std::string sample_json(const llama::FinishedSample& finished,
                        const llama::Vocabulary& vocabulary) {
  Json json = {
      {"id", finished.request.id},
      {"sample", finished.sample},
      {"token_ids", finished.token_ids},
      {"text", nullptr},
      {"finish_reason", finished.stopped ? "stop" : "length"},
      {"prompt_tokens", finished.request.prompt.size()},
      {"cached_tokens", finished.cached_tokens},
      {"preemptions", finished.preemptions},
  };
  if (vocabulary.is_bytes()) json["text"] = llama::decode(finished.token_ids, vocabulary);
  if (finished.request.beams > 1) json["score"] = finished.score;
  return line_of(json);
}

std::string rejected_json(const llama::Request& request, const std::string& error) {
  return line_of({{"id", request.id}, {"error", error}});
}

std::string summary_json(const Summary& summary, const llama::BlockMap* block_map) {
  const llama::RunStats& stats = summary.stats;
  const llama::SchedulerStats& work = stats.scheduler;
  Json json = {
      {"requests", work.requests},
      {"rejected", work.rejected},
      {"samples", work.samples},
      {"generated_tokens", work.generated_tokens},
      {"tokens_per_s", rounded(tokens_per_s(stats), 10)},
      {"seconds", rounded(stats.seconds, 1e4)},
      {"steps", work.steps},
      {"kernel", summary.compute->name()},
      {"matmul", to_string(summary.model->target())},
      {"format", format_name(summary)},
      {"cache_dtype", to_string(summary.options->dtype)},
      {"block_size", summary.options->block_size},
      {"blocks_total", stats.blocks_total},
      {"blocks_peak", stats.blocks_peak},
      {"sequences_peak", work.sequences_peak},
      {"prompt_tokens", work.prompt_tokens},
      {"prefill_tokens_computed", work.prefill_tokens_computed},
      {"tokens_reused", work.tokens_reused},
      {"tokens_recomputed", work.tokens_recomputed},
      {"block_copies", stats.cache.block_copies},
      {"evictions", stats.cache.blocks_evicted},
      {"preemptions", work.preemptions},
      {"contiguous_bytes", work.contiguous_bytes_peak},
      {"paged_bytes_peak", summary.options->contiguous ? 0 : stats.bytes_peak},
  };
  if (summary.options->tiers.any()) add_tiers(json, summary);
  if (summary.disk) json["disk"] = disk_json(summary);
  if (summary.redis) json["redis"] = redis_json(summary);
  if (summary.restored) {
    json["restored"] = {{"records", summary.restored->records},
                        {"records_loaded", summary.restored->records_loaded},
                        {"records_refused", summary.restored->records_refused},
                        {"sections_damaged", summary.restored->sections_damaged},
                        {"paths_no_room", summary.restored->paths_no_room},
                        {"tokens", summary.restored->tokens}};
  }
  if (summary.saved) {
    json["saved"] = {{"records", summary.saved->records},
                     {"tokens", summary.saved->tokens},
                     {"bytes", summary.saved->bytes}};
  }
  if (summary.perplexity) {
    json["scored_tokens"] = summary.perplexity->scored_tokens;
    json["bits_per_token"] = summary.perplexity->bits_per_token;
    json["perplexity"] = summary.perplexity->perplexity;
  }
  if (summary.comparison) {
    const Comparison& comparison = *summary.comparison;
    Json verify = {
        {"identical", comparison.difference.empty()},
        {"tokens", comparison.tokens},
        {"logit_rows", comparison.logit_rows},
    };
    if (summary.twin_stats.scheduler.requests > 0) {  // what scoring a text took is not counted
      verify["twin_seconds"] = rounded(summary.twin_stats.seconds, 1e4);
      verify["twin_bytes_peak"] = summary.twin_stats.bytes_peak;
    }
    if (!comparison.difference.empty()) verify["difference"] = comparison.difference;
    json["verify"] = std::move(verify);
  }
  if (block_map != nullptr) json["report"] = summary_text(summary, block_map);
  return line_of({{"summary", std::move(json)}});
}

std::string summary_text(const Summary& summary, const llama::BlockMap* block_map) {
  const llama::RunStats& stats = summary.stats;
  std::string out;
  if (stats.scheduler.requests > 0) {
    out += "\n" + plural(stats.scheduler.samples, "sample") + " of " +
           plural(stats.scheduler.requests, "request") + ": " +
           plural(stats.scheduler.generated_tokens, "token") + " in " + fixed(stats.seconds, 2) +
           " s, " + fixed(tokens_per_s(stats), 0) + " tokens/s (kernel " + summary.compute->name() +
           ", format " + format_name(summary) + ")\n";
  }
  if (stats.scheduler.rejected > 0) {
    out += plural(stats.scheduler.rejected, "request") + " did not fit\n";
  }
  for (const TierSummary& tier : summary.tiers) out += tier_text(tier);
  if (block_map != nullptr && !summary.options->contiguous) {
    out += cache_report(summary) + "\n" + block_map->text();
  }
  if (summary.perplexity) {
    out += "perplexity " + fixed(summary.perplexity->perplexity, 4) + ", " +
           fixed(summary.perplexity->bits_per_token, 4) + " bits per token over " +
           plural(summary.perplexity->scored_tokens, "token") + "\n";
  }
  if (summary.comparison) {
    const Comparison& comparison = *summary.comparison;
    if (comparison.difference.empty()) {
      out += "\nverified: " + plural(comparison.tokens, "token") + " and " +
             plural(comparison.logit_rows, "row") +
             " of logits are equal, bit for bit, to one contiguous\n  cache per sequence";
      if (summary.twin_stats.scheduler.requests > 0) {
        out += ", which took " + mebibytes(summary.twin_stats.bytes_peak) + " and " +
               fixed(summary.twin_stats.seconds, 2) + " s" +
               (summary.perplexity ? " for the requests" : "");
      }
      out += "\n";
    } else {
      out += "\nDIFFERENT: " + comparison.difference + "\n";
    }
  }
  return out;
}

}  // namespace kvfolio::tools
