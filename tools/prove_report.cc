// SPDX-License-Identifier: Apache-2.0
#include "prove_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "pool_size.h"
#include "printable_text.h"

namespace kvfolio::tools {
namespace {

using Json = nlohmann::ordered_json;

Json or_null(std::int64_t value) { return value < 0 ? Json(nullptr) : Json(value); }
Json or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// A row without the long prompt cannot differ in it. No logits follow the last token of a sample:
// only the comparison sees whether it is the twin's.
bool is_equal(const ProvedRow& row, const ProvedRow& twin) {
  return !row.sha256.empty() && row.sha256 == twin.sha256 && row.difference.empty() &&
         (!row.condition.with_long || row.long_sha256 == twin.long_sha256);
}

Json row_json(const ProvedRow& row, const ProvedRow& twin) {
  const Happened& happened = row.happened;
  const llama::SchedulerStats& work = happened.stats.scheduler;
  const std::int32_t chunk = row.condition.chunk_or_all();
  return {
      {"name", row.condition.name()},
      {"sha256", or_null(row.sha256)},
      {"long_sha256", or_null(row.long_sha256)},
      {"equal", is_equal(row, twin)},
      {"difference", or_null(row.difference)},
      {"failure", or_null(row.failure)},
      {"contiguous", row.condition.contiguous},
      {"block_size", row.condition.contiguous ? Json(nullptr) : Json(row.condition.block())},
      {"chunk", chunk == 0 ? Json(nullptr) : Json(chunk)},
      {"kernels", happened.kernels},
      {"threads", happened.threads},
      {"threads_that_worked", happened.threads_that_worked},
      {"steps_overlapped", happened.stats.steps_overlapped},
      {"prompt_tokens", work.prompt_tokens},
      {"prefill_tokens_computed", work.prefill_tokens_computed},
      {"tokens_reused", work.tokens_reused},
      {"tokens_reused_expected", or_null(happened.tokens_reused_expected)},
      {"tokens_recomputed", work.tokens_recomputed},
      {"loads", happened.loads},
      {"forks", happened.forks},
      {"block_copies", happened.block_copies},
      {"block_copies_expected", or_null(happened.block_copies_expected)},
      {"preemptions", work.preemptions},
      {"held_back", work.held_back},
      {"steps", work.steps},
      {"step_sequences_peak", work.step_sequences_peak},
      {"chunk_tokens_peak", happened.chunk_tokens},
      {"blocks_total", happened.stats.blocks_total},
      {"blocks_peak", happened.stats.blocks_peak},
      {"seconds", std::round(happened.stats.seconds * 1e4) / 1e4},
  };
}

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

constexpr std::size_t kNameWidth = 43;
constexpr std::size_t kDigits = 12;  // of a hash, in a row of the table

struct Cells {
  std::string name, batch, chunk, blocks, reused, copies, preempted, hash;
};

std::string line(const Cells& cells) {
  return "  " + padded(cells.name, kNameWidth) + right(cells.batch, 6) + right(cells.chunk, 6) +
         right(cells.blocks, 7) + right(cells.reused, 7) + right(cells.copies, 7) +
         right(cells.preempted, 8) + "  " + cells.hash + "\n";
}

// Over all rows.
std::vector<std::string> kernels_of(const Proof& proof) {
  std::set<std::string> all;
  for (const ProvedRow& row : proof.rows) {
    all.insert(row.happened.kernels.begin(), row.happened.kernels.end());
  }
  return {all.begin(), all.end()};
}

// Which rows have which hash, in full: the twin's first.
std::string hashes_text(const Proof& proof, std::string ProvedRow::*hash) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  std::size_t rows = 0;
  for (const ProvedRow& row : proof.rows) {
    rows += hash == &ProvedRow::sha256 || row.condition.with_long ? 1 : 0;
    if ((row.*hash).empty()) continue;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& other) { return other.first == row.*hash; });
    if (group == groups.end()) group = groups.insert(groups.end(), {row.*hash, {}});
    group->second.push_back(row.condition.name());
  }
  std::string out;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    out += "  " + groups[i].first + "  " + std::to_string(groups[i].second.size()) + " of " +
           std::to_string(rows) + " rows\n";
    if (i == 0) continue;
    for (const std::string& name : groups[i].second) out += "    " + name + "\n";
  }
  return out;
}

}  // namespace

bool Proof::equal() const {
  return !rows.empty() && std::all_of(rows.begin(), rows.end(),
                                      [&](const ProvedRow& row) { return is_equal(row, rows[0]); });
}

bool Proof::good() const {
  return equal() && std::all_of(rows.begin(), rows.end(),
                                [](const ProvedRow& row) { return row.failure.empty(); });
}

std::string proof_json(const Proof& proof) {
  const ProvedRow& twin = proof.rows[0];
  Json rows = Json::array();
  Json different = Json::array();
  Json failed = Json::array();
  for (const ProvedRow& row : proof.rows) {
    rows.push_back(row_json(row, twin));
    if (!row.sha256.empty() && !is_equal(row, twin)) different.push_back(row.condition.name());
    if (!row.failure.empty()) failed.push_back(row.condition.name());
  }
  Json tiers = Json::object();
  for (const TierSummary& tier : proof.tiers) tiers[tier.name] = tier_json(tier);
  const Json json = {
      {"rows", std::move(rows)},
      {"equal", proof.equal()},
      {"different", std::move(different)},  // from the contiguous twin
      {"failed", std::move(failed)},        // were not what they say, or did not end
      {"sha256", proof.equal() ? Json(twin.sha256) : Json(nullptr)},
      {"long_sha256", proof.equal() ? Json(twin.long_sha256) : Json(nullptr)},
      {"model", proof.options->model},
      {"cache_dtype", to_string(proof.options->dtype)},
      {"kernel", proof.compute->name()},
      {"kernels", kernels_of(proof)},
      {"matmul", to_string(proof.model->target())},
      {"format", "auto"},
      {"samples", kNumSamples},
      {"logit_rows", proof.logit_rows},
      {"long_prompt", proof.long_prompt},
      {"tiers", std::move(tiers)},
      {"vocab", proof.model->config().vocab},
      {"seconds", std::round(proof.seconds * 1e3) / 1e3},
  };
  return json_text(json);
}

std::string table_head() {
  return line({"row", "batch", "chunk", "blocks", "reused", "copies", "preempt", "sha256"});
}

std::string table_row(const ProvedRow& row, const std::string& target) {
  const llama::SchedulerStats& work = row.happened.stats.scheduler;
  std::string note = row.sha256.empty() ? "did not end" : row.sha256.substr(0, kDigits);
  if (!row.difference.empty()) note += " DIFFERENT";
  if (!row.failure.empty()) note += " FAILED";
  std::string kernels;
  for (const std::string& kernel : row.happened.kernels) {
    if (kernel != target) kernels += (kernels.empty() ? "    by " : ", ") + kernel;
  }
  if (!kernels.empty()) kernels += "\n";
  return line({row.condition.name(), std::to_string(work.step_sequences_peak),
               std::to_string(row.happened.chunk_tokens),
               std::to_string(row.happened.stats.blocks_peak), std::to_string(work.tokens_reused),
               std::to_string(row.happened.block_copies), std::to_string(work.preemptions), note}) +
         kernels;
}

std::string proof_text(const Proof& proof) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", proof.seconds);
  std::string out = "\nSHA-256 of " + std::to_string(proof.logit_rows) + " rows of " +
                    std::to_string(proof.model->config().vocab) + " logits (cache " +
                    to_string(proof.options->dtype) + ", kernel " + proof.compute->name() +
                    ", format auto, " + seconds + " s):\n" +
                    hashes_text(proof, &ProvedRow::sha256) + "and of the prompt of " +
                    std::to_string(proof.long_prompt) + " tokens, in the rows that have it:\n" +
                    hashes_text(proof, &ProvedRow::long_sha256);
  std::size_t different = 0;
  for (const ProvedRow& row : proof.rows) different += row.difference.empty() ? 0 : 1;
  if (different > 0) {
    out += "\nDIFFERENT from the contiguous twin:\n";
    for (const ProvedRow& row : proof.rows) {
      if (row.difference.empty()) continue;
      out += "  " + row.condition.name() + ": " + row.difference + "\n";
    }
    if (different + 1 == proof.rows.size()) {
      out += "Every other row differs from it: the twin may be the one that is wrong.\n";
    }
  }
  for (const ProvedRow& row : proof.rows) {
    if (row.failure.empty()) continue;
    out += "FAILED: " + row.condition.name() + ": " + row.failure + "\n";
  }
  for (const TierSummary& tier : proof.tiers) out += tier_text(tier);
  if (proof.good()) out += "all rows are equal, bit for bit\n";
  return printable_text(std::move(out));
}

}  // namespace kvfolio::tools
