// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the scheduler remembers of the work in hand: plain data, no rules.

#include <cstdint>
#include <memory>
#include <vector>

#include "beam.h"
#include "kvfolio/ids.h"
#include "request.h"

namespace kvfolio::llama {

enum class LogitRows {
  kNone,    // not kept
  kChosen,  // those that chose a token
  kAll,     // also those of the prompt, which is looked for nowhere: what is found has no logits
};

// The logits behind the generated tokens of a hypothesis, newest first; beams share their past.
struct LogitHistory {
  std::vector<float> row;
  std::shared_ptr<const LogitHistory> before;
};

// Rows of logits by prompt position; empty where the cache served it.
using PromptLogits = std::vector<std::vector<float>>;

// A request on its way, shared by its jobs and gone with the last of them.
struct Progress {
  const Request* request = nullptr;
  std::int32_t cached_tokens = -1;  // of the first admission; -1: there was none
  std::vector<bool> computed;       // by prompt position: did any job of the request compute it?
  std::vector<bool> found;          // by prompt position: did the cache serve it to one of them?
  std::shared_ptr<PromptLogits> prompt_logits;  // where kept; samples that ended hold it too
};

// A sequence of tokens that grows: a sample, or a hypothesis of a beam search.
struct Stream {
  std::vector<std::int32_t> tokens;  // the prompt, then what was generated
  SequenceId id;                     // none while it holds no blocks
  std::int32_t computed = 0;         // tokens whose K and V are in the cache
  std::int32_t high_water = 0;       // the most that ever were: up to here it would be once more
  bool stopped = false;              // its last token is an end-of-sequence or stop id
  double score = 0.0;
  std::vector<Candidate> candidates;  // beams: the best next tokens, once the logits are there
  std::shared_ptr<const LogitHistory> logits;

  [[nodiscard]] std::int32_t length() const { return static_cast<std::int32_t>(tokens.size()); }
};

// What is admitted, preempted and resumed as a whole: one sample, or a beam search.
struct Job {
  std::shared_ptr<Progress> progress;
  std::int32_t order = 0;   // of arrival, among all jobs
  std::int32_t sample = 0;  // of the request
  bool running = false;
  bool loading = false;    // it waits, and so does its sequence: for what tiers have of its tokens
  bool held_back = false;  // it has waited for what an older one computed
  std::int32_t preemptions = 0;
  std::vector<Stream> streams;  // empty before the first admission; more than one for beams only
  // A beam search that comes back: streams[0] computes the tokens that all have in common, this
  // many, before the others fork from it. 0: none waits.
  std::int32_t trunk = 0;
  std::vector<Stream> ended;  // hypotheses that ended, best first

  [[nodiscard]] const Request& request() const { return *progress->request; }
  [[nodiscard]] std::int32_t prompt_length() const {
    return static_cast<std::int32_t>(request().prompt.size());
  }
  // It has not entered, but its sequence is open: its load goes on, or has just ended.
  [[nodiscard]] bool waits_with_sequence() const {
    return !running && !streams.empty() && streams[0].id.valid();
  }
  // Sequences that it may come to hold.
  [[nodiscard]] std::int32_t width() const { return request().beams; }
  // How far `stream` may compute now.
  [[nodiscard]] std::int32_t target(const Stream& stream) const {
    if (trunk == 0) return stream.length();
    return &stream == streams.data() ? trunk : 0;
  }
};

// Tokens of a stream in the open step: positions [first, first + count).
struct Entry {
  Job* job = nullptr;
  std::size_t stream = 0;  // index in job->streams
  std::int32_t first = 0;
  std::int32_t count = 0;
  bool reaches_end = false;  // of its tokens: the last row of logits says what comes next
  std::int32_t first_logit_row = 0;
  std::int32_t num_logit_rows = 0;
};

}  // namespace kvfolio::llama
