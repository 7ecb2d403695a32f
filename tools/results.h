// SPDX-License-Identifier: Apache-2.0
#pragma once

// Results keeps what a run produced, by request (in file order) and sample, so that it can be
// written in order and compared with another run.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "npy.h"
#include "request.h"
#include "scheduler.h"

namespace kvfolio::tools {

struct SampleResult {
  std::vector<std::int32_t> token_ids;
  double score = 0.0;
  std::vector<std::shared_ptr<const llama::LogitHistory>> logits;  // by generated token
  std::shared_ptr<const llama::PromptLogits> prompt_logits;        // see FinishedSample
};

struct RequestResult {
  std::optional<std::string> error;   // it was rejected
  std::vector<SampleResult> samples;  // beams: by rank
};

class Results {
 public:
  explicit Results(std::span<const llama::Request> requests);

  void keep(const llama::FinishedSample& finished);
  void reject(const llama::Request& request, const std::string& error);

  [[nodiscard]] std::span<const llama::Request> requests() const { return requests_; }
  [[nodiscard]] const std::vector<RequestResult>& all() const { return results_; }

  // Rows as the option --logits says.
  Status write_logits(NpyWriter& file) const;

 private:
  RequestResult& of(const llama::Request& request);

  std::span<const llama::Request> requests_;
  std::vector<RequestResult> results_;  // by request
};

struct Comparison {
  std::int64_t tokens = 0;  // that were compared
  std::int64_t logit_rows = 0;
  std::string difference;  // the first one, in words; empty: none
};

// The first logit of a row of which a bit differs, in words, or nothing. The twin's row is as long.
[[nodiscard]] std::string row_difference(std::span<const float> row, std::span<const float> twin);

// The first difference of two samples in words, or nothing; adds what is equal to `counts`.
[[nodiscard]] std::string difference(const SampleResult& paged, const SampleResult& twin,
                                     Comparison& counts);
// Every token, every score and every bit of the logits, in order of requests, samples, positions.
[[nodiscard]] Comparison compare(const Results& paged, const Results& twin);

}  // namespace kvfolio::tools
