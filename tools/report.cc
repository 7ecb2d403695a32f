// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <cmath>
#include <cstdio>

#include "json_writer.h"

namespace kvfolio::tools {
namespace {

double tokens_per_s(const llama::RunStats& stats) {
  if (stats.seconds <= 0.0) return 0.0;
  return static_cast<double>(stats.scheduler.generated_tokens) / stats.seconds;
}

// Rounded: more digits would say more than was measured.
double rounded(double value, double per_unit) { return std::round(value * per_unit) / per_unit; }

const char* format_name(const Summary& summary) {
  if (summary.options->contiguous) return "contiguous";
  return to_string(summary.spec->groups.front().format);
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

std::string plural(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string cache_report(const Summary& summary) {
  const llama::RunStats& stats = summary.stats;
  const llama::SchedulerStats& work = stats.scheduler;
  const std::int64_t reused = work.prompt_tokens - work.prefill_tokens_computed;
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

std::string summary_json(const Summary& summary, const llama::BlockMap* block_map) {
  const llama::RunStats& stats = summary.stats;
  const llama::SchedulerStats& work = stats.scheduler;
  JsonWriter json;
  json.field("requests", work.requests)
      .field("rejected", work.rejected)
      .field("samples", work.samples)
      .field("generated_tokens", work.generated_tokens)
      .field("tokens_per_s", rounded(tokens_per_s(stats), 10))
      .field("seconds", rounded(stats.seconds, 1e4))
      .field("steps", work.steps)
      .field("kernel", to_string(summary.options->kernel))
      .field("matmul", to_string(summary.model->target()))
      .field("format", format_name(summary))
      .field("cache_dtype", to_string(summary.options->dtype))
      .field("block_size", summary.options->block_size)
      .field("blocks_total", stats.blocks_total)
      .field("blocks_peak", stats.blocks_peak)
      .field("sequences_peak", work.sequences_peak)
      .field("prompt_tokens", work.prompt_tokens)
      .field("prefill_tokens_computed", work.prefill_tokens_computed)
      .field("tokens_reused", work.prompt_tokens - work.prefill_tokens_computed)
      .field("tokens_recomputed", work.tokens_recomputed)
      .field("block_copies", stats.cache.block_copies)
      .field("evictions", stats.cache.blocks_evicted)
      .field("preemptions", work.preemptions)
      .field("contiguous_bytes", work.contiguous_bytes_peak)
      .field("paged_bytes_peak", summary.options->contiguous ? 0 : stats.bytes_peak);
  if (summary.perplexity) {
    json.field("scored_tokens", summary.perplexity->scored_tokens)
        .field("bits_per_token", summary.perplexity->bits_per_token)
        .field("perplexity", summary.perplexity->perplexity);
  }
  if (summary.comparison) {
    const Comparison& comparison = *summary.comparison;
    JsonWriter verify;
    verify.field("identical", comparison.difference.empty())
        .field("tokens", comparison.tokens)
        .field("logit_rows", comparison.logit_rows)
        .field("twin_seconds", rounded(summary.twin_stats.seconds, 1e4))
        .field("twin_bytes_peak", summary.twin_stats.bytes_peak);
    if (!comparison.difference.empty()) verify.field("difference", comparison.difference);
    json.raw("verify", verify.text());
  }
  if (block_map != nullptr) json.field("report", summary_text(summary, block_map));
  return JsonWriter().raw("summary", json.text()).text();
}

std::string summary_text(const Summary& summary, const llama::BlockMap* block_map) {
  const llama::RunStats& stats = summary.stats;
  std::string out;
  if (stats.scheduler.requests > 0) {
    out += "\n" + plural(stats.scheduler.samples, "sample") + " of " +
           plural(stats.scheduler.requests, "request") + ": " +
           plural(stats.scheduler.generated_tokens, "token") + " in " + fixed(stats.seconds, 2) +
           " s, " + fixed(tokens_per_s(stats), 0) + " tokens/s (kernel " +
           to_string(summary.options->kernel) + ", format " + format_name(summary) + ")\n";
  }
  if (stats.scheduler.rejected > 0) {
    out += plural(stats.scheduler.rejected, "request") + " did not fit\n";
  }
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
             " of logits are equal, bit for bit, to one contiguous\n  cache per sequence, which "
             "took " +
             mebibytes(summary.twin_stats.bytes_peak) + " and " +
             fixed(summary.twin_stats.seconds, 2) + " s\n";
    } else {
      out += "\nDIFFERENT: " + comparison.difference + "\n";
    }
  }
  return out;
}

}  // namespace kvfolio::tools
