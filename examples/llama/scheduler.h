// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scheduler decides which tokens the next step computes: continuous batching with chunked prefill
// under a token budget and a limit of sequences, admission, preemption when the pool is full, and
// what follows from the logits: next tokens, forks, beams, ends. It knows tokens and sequences; the
// cache is behind Backend and the arithmetic in the engine.
//
// The unit that is admitted, preempted and resumed is a *job*: one sample of a request, or all
// hypotheses of a beam search. Jobs are ordered by arrival (request, then sample), and the order
// decides everything: older jobs take tokens and blocks first, the youngest running job gives its
// blocks up when one lacks some, waiting jobs enter oldest first and none overtakes one that does
// not fit. So the oldest job always goes on, and every job ends.
//
// A job whose tokens lie in a tier below the cache opens its sequence and waits until they are
// loaded, for some steps: meanwhile others run, and younger ones may enter. If blocks are short,
// the youngest such job gives up what it holds before a running one does, and asks again later.
//
// A request that begins as an older one does, which is computed now, waits until those tokens are
// in the cache, unless it has a sequence already: so prompts that arrive together share what they
// have in common. Others may enter meanwhile. The oldest waits for none, so there is no circle.
//
// The samples of one request share the computation of the prompt: while the first computes it the
// others wait, then they fork from it. A preempted job keeps its tokens only; it comes back by
// opening a sequence with them, which costs nothing for what is still in the prefix cache.
//
// Nothing here decides a result: tokens depend on the job's own logits and draws alone.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend.h"
#include "job.h"
#include "request.h"
#include "sampler.h"

namespace kvfolio::llama {

struct SchedulerLimits {
  std::int32_t max_batch_tokens = 512;  // tokens of one step
  std::int32_t max_chunk_tokens = 0;    // tokens of one sequence in a step; 0: no limit of its own
  std::int32_t max_seqs = 16;           // sequences at once
  std::int32_t max_positions = 0;       // of the model
  std::int64_t bytes_per_token = 0;     // of a cache without padding: for contiguous_bytes
  std::int32_t admission_margin = 16;   // tokens to spare for each running sequence on admission
  bool hold_back = true;                // requests wait for what an older one computes
  std::vector<std::int32_t> eos_ids = {};
};

struct FinishedSample {
  const Request& request;
  std::int32_t sample = 0;  // or the rank of a beam
  std::vector<std::int32_t> token_ids;
  bool stopped = false;  // by an end-of-sequence or stop id, which is the last token then
  double score = 0.0;    // beams
  std::int32_t cached_tokens = 0;
  std::int32_t preemptions = 0;
  std::shared_ptr<const LogitHistory> logits;         // kChosen, kAll
  std::shared_ptr<const PromptLogits> prompt_logits;  // kAll
};

// What happens on the way. Empty functions are not called.
struct Listener {
  // A token of a sample; beams say nothing before they end.
  std::function<void(const Request&, std::int32_t sample, std::int32_t token)> on_token;
  std::function<void(FinishedSample&&)> on_finished;
  // A request that can never run.
  std::function<void(const Request&, const std::string& error)> on_rejected;
};

// Since the start. Requests that were rejected count nowhere but in `rejected`.
struct SchedulerStats {
  std::int64_t requests = 0;
  std::int64_t rejected = 0;
  std::int64_t samples = 0;
  std::int64_t generated_tokens = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t prefill_tokens_computed = 0;  // prompt positions that their request computed
  std::int64_t tokens_reused =
      0;  // prompt positions that the cache served, which were not computed
  std::int64_t tokens_recomputed = 0;  // any position, once more
  std::int64_t preemptions = 0;
  std::int64_t held_back = 0;  // jobs that waited for what an older one computed
  std::int64_t steps = 0;
  std::int64_t contiguous_bytes_peak = 0;
  std::int32_t sequences_peak = 0;  // running
  // The most of one step: its tokens, its sequences, and the tokens of one of them.
  std::int32_t step_tokens_peak = 0;
  std::int32_t step_sequences_peak = 0;
  std::int32_t chunk_tokens_peak = 0;
};

// The rows of one step for Model::forward.
struct StepBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> logit_rows;
};

class Scheduler {
 public:
  // `backend` outlives the scheduler.
  Scheduler(Backend& backend, SchedulerLimits limits, LogitRows keep, Listener listener);

  // Queues a request, or rejects it when it can never run. It outlives the scheduler.
  void add(const Request& request);
  [[nodiscard]] bool done() const { return waiting_.empty() && running_.empty(); }

  // Opens a step and fills it. An empty batch: there was nothing to do (the step is open still).
  Status schedule(StepBatch& batch);
  // After the step is finished. logits: [batch.logit_rows.size(), vocab].
  Status advance(std::span<const float> logits, std::size_t vocab);

  [[nodiscard]] const SchedulerStats& stats() const { return stats_; }
  // Some job waits for a load, so a step without tokens is not the end.
  [[nodiscard]] bool is_loading() const;
  // Requests with a running sequence, and its id; for pictures.
  void for_each_sequence(const std::function<void(const Request&, SequenceId)>& visit) const;

 private:
  enum class Entered : std::uint8_t { kYes, kLoading, kNo };
  void take_ready();
  Status continue_job(Job& job);
  Status append_or_make_room(Job& job, Stream& stream, std::int32_t num_tokens);
  Status admit_waiting();
  Result<Entered> try_admit(Job& job);
  static void prepare(Job& job);
  [[nodiscard]] OpenLimits limits_of(const Job& job) const;
  Result<bool> waits_for_older(Job& job);
  Result<std::int32_t> admissible(const Job& job, std::int32_t wanted);
  Status make_place(const Job& job);
  Status give_up(Job& job);
  [[nodiscard]] Job* youngest_waiting(const Job* but);
  Status preempt(Job& job);
  void build(StepBatch& batch);
  void note_peaks();

  void count_found(Progress& progress, std::int32_t cached_tokens);
  void count_computed(const Entry& entry);
  void keep_prompt_logits(const Entry& entry, std::span<const float> logits, std::size_t vocab);
  Status take_logits(Job& job, Stream& stream, std::span<const float> row);
  Status fork_siblings(Job& job, std::vector<Job*>& forked);
  Status take_token(Job& job, std::span<const float> row);
  Status fork_trunk(Job& job);
  Status advance_beams(Job& job);
  Status finish(Job& job);
  void emit(const Job& job, const Stream& stream, std::int32_t sample);

  [[nodiscard]] bool is_stop(const Request& request, std::int32_t token) const;
  [[nodiscard]] bool waits_for_sibling(const Job& job) const;
  [[nodiscard]] std::int32_t open_sequences() const;
  // What the open step still takes of one sequence.
  [[nodiscard]] std::int32_t step_room() const;
  void move_job(Job& job, std::deque<Job*>& from, std::deque<Job*>& to);

  Backend& backend_;
  SchedulerLimits limits_;
  LogitRows keep_;
  Listener listener_;
  Sampler sampler_;
  SchedulerStats stats_;

  std::map<std::int32_t, Job> jobs_;  // by order of arrival; gone when they end
  std::int32_t next_order_ = 1;
  std::deque<Job*> waiting_;    // by arrival; jobs leave near the front
  std::deque<Job*> running_;    // by arrival; jobs leave near the end
  std::vector<Entry> entries_;  // of the open step, in append order
  std::int32_t budget_ = 0;     // tokens left in the open step
  bool preempted_ = false;      // a sequence, in the open step
};

}  // namespace kvfolio::llama
