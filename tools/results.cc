// SPDX-License-Identifier: Apache-2.0
#include "results.h"

#include <algorithm>
#include <bit>

namespace kvfolio::tools {
namespace {

std::string float_hex(float value) {
  constexpr char kDigits[] = "0123456789abcdef";
  const auto bits = std::bit_cast<std::uint32_t>(value);
  std::string text = std::to_string(value) + " (0x";
  for (int shift = 28; shift >= 0; shift -= 4) text += kDigits[(bits >> shift) & 15u];
  return text + ")";
}

// For all positions but the last, whose row chose the first token. A row is empty where the cache
// served its position.
std::string difference(const llama::PromptLogits& paged, const llama::PromptLogits& twin,
                       Comparison& counts) {
  for (std::size_t i = 0; i + 1 < paged.size(); ++i) {
    if (paged[i].empty() || twin[i].empty()) continue;
    const std::string found = row_difference(paged[i], twin[i]);
    if (!found.empty()) return "prompt position " + std::to_string(i) + ": " + found;
    ++counts.logit_rows;
  }
  return {};
}

}  // namespace

Results::Results(std::span<const llama::Request> requests)
    : requests_(requests), results_(requests.size()) {}

RequestResult& Results::of(const llama::Request& request) {
  return results_[static_cast<std::size_t>(&request - requests_.data())];
}

void Results::keep(const llama::FinishedSample& finished) {
  RequestResult& result = of(finished.request);
  const auto sample = static_cast<std::size_t>(finished.sample);
  if (result.samples.size() <= sample) result.samples.resize(sample + 1);
  SampleResult& mine = result.samples[sample];
  mine.token_ids = finished.token_ids;
  mine.score = finished.score;
  for (auto step = finished.logits; step != nullptr; step = step->before) {
    mine.logits.push_back(step);
  }
  std::reverse(mine.logits.begin(), mine.logits.end());
  mine.prompt_logits = finished.prompt_logits;
}

void Results::reject(const llama::Request& request, const std::string& error) {
  of(request).error = error;
}

Status Results::write_logits(NpyWriter& file) const {
  const auto each_row = [this](auto&& take) {
    for (const RequestResult& result : results_) {
      for (const SampleResult& sample : result.samples) {
        // The row of the last prompt position chose the first token, so it is not among these.
        if (sample.prompt_logits != nullptr) {
          const llama::PromptLogits& rows = *sample.prompt_logits;
          for (std::size_t i = 0; i + 1 < rows.size(); ++i) take(rows[i]);
        }
        for (const auto& step : sample.logits) take(step->row);
      }
    }
  };
  std::int64_t num_rows = 0;
  each_row([&](std::span<const float> /*row*/) { ++num_rows; });
  file.begin(num_rows);
  each_row([&](std::span<const float> row) { file.row(row); });
  return file.finish();
}

std::string row_difference(std::span<const float> row, std::span<const float> twin) {
  for (std::size_t id = 0; id < row.size(); ++id) {
    if (std::bit_cast<std::uint32_t>(row[id]) == std::bit_cast<std::uint32_t>(twin[id])) continue;
    return "the logit of id " + std::to_string(id) + " is " + float_hex(row[id]) +
           " over blocks, " + float_hex(twin[id]) + " over the contiguous twin";
  }
  return {};
}

std::string difference(const SampleResult& paged, const SampleResult& twin, Comparison& counts) {
  if (paged.prompt_logits != nullptr && twin.prompt_logits != nullptr) {
    std::string found = difference(*paged.prompt_logits, *twin.prompt_logits, counts);
    if (!found.empty()) return found;
  }
  const std::size_t shorter = std::min(paged.token_ids.size(), twin.token_ids.size());
  for (std::size_t i = 0; i < shorter; ++i) {
    const std::string where = "generated token " + std::to_string(i);
    const std::string found = row_difference(paged.logits[i]->row, twin.logits[i]->row);
    if (!found.empty()) return where + ": " + found;
    ++counts.logit_rows;
    if (paged.token_ids[i] != twin.token_ids[i]) {
      return where + " is " + std::to_string(paged.token_ids[i]) + " over blocks, " +
             std::to_string(twin.token_ids[i]) + " over the contiguous twin";
    }
    ++counts.tokens;
  }
  if (paged.token_ids.size() != twin.token_ids.size()) {
    return std::to_string(paged.token_ids.size()) + " tokens over blocks, " +
           std::to_string(twin.token_ids.size()) + " over the contiguous twin";
  }
  if (std::bit_cast<std::uint64_t>(paged.score) != std::bit_cast<std::uint64_t>(twin.score)) {
    return "the score is " + std::to_string(paged.score) + " over blocks, " +
           std::to_string(twin.score) + " over the contiguous twin";
  }
  return {};
}

Comparison compare(const Results& paged, const Results& twin) {
  Comparison comparison;
  for (std::size_t r = 0; r < paged.all().size(); ++r) {
    const RequestResult& mine = paged.all()[r];
    const RequestResult& other = twin.all()[r];
    // The twin has no pool, so it runs what the pool is too small for. Nothing to compare.
    if (mine.error) continue;
    if (mine.samples.size() != other.samples.size()) {
      comparison.difference = "request \"" + paged.requests()[r].id +
                              "\": " + std::to_string(mine.samples.size()) +
                              " samples over blocks, " + std::to_string(other.samples.size()) +
                              " over the contiguous twin";
      return comparison;
    }
    for (std::size_t s = 0; s < mine.samples.size(); ++s) {
      const std::string found = difference(mine.samples[s], other.samples[s], comparison);
      if (found.empty()) continue;
      comparison.difference =
          "request \"" + paged.requests()[r].id + "\" sample " + std::to_string(s) + ": " + found;
      return comparison;
    }
  }
  return comparison;
}

}  // namespace kvfolio::tools
