// SPDX-License-Identifier: Apache-2.0
// What follows from the logits of a step: counts, next tokens, forks, beams, ends.
#include <algorithm>
#include <utility>

#include "scheduler.h"

namespace kvfolio::llama {

Status Scheduler::advance(std::span<const float> logits, std::size_t vocab) {
  for (const Entry& entry : entries_) {
    count_computed(entry);
    if (keep_ == LogitRows::kAll) keep_prompt_logits(entry, logits, vocab);
  }
  for (const Entry& entry : entries_) {
    if (!entry.reaches_end) continue;
    const auto row = static_cast<std::size_t>(entry.first_logit_row + entry.num_logit_rows - 1);
    KVFOLIO_RETURN_IF_ERROR(take_logits(*entry.job, entry.job->streams[entry.stream],
                                        logits.subspan(row * vocab, vocab)));
  }
  const std::deque<Job*> running = running_;  // beams that end leave the list
  for (Job* job : running) {
    if (job->width() == 1) continue;
    KVFOLIO_RETURN_IF_ERROR(fork_trunk(*job));
    KVFOLIO_RETURN_IF_ERROR(advance_beams(*job));
  }
  entries_.clear();
  return {};
}

// Counted apart from what is computed, so that both adding up to the prompt says something.
void Scheduler::count_found(Progress& progress, std::int32_t cached_tokens) {
  const std::size_t end = std::min(static_cast<std::size_t>(cached_tokens), progress.found.size());
  for (std::size_t position = 0; position < end; ++position) {
    if (progress.found[position] || progress.computed[position]) continue;
    progress.found[position] = true;
    ++stats_.tokens_reused;
  }
}

void Scheduler::count_computed(const Entry& entry) {
  Stream& stream = entry.job->streams[entry.stream];
  std::vector<bool>& prompt = entry.job->progress->computed;
  std::vector<bool>& found = entry.job->progress->found;
  for (std::int32_t i = entry.first; i < entry.first + entry.count; ++i) {
    const auto position = static_cast<std::size_t>(i);
    const bool again = position < prompt.size() ? prompt[position] : i < stream.high_water;
    if (again) {
      ++stats_.tokens_recomputed;
    } else if (position < prompt.size()) {
      prompt[position] = true;
      ++stats_.prefill_tokens_computed;
      if (found[position]) --stats_.tokens_reused;  // lost in a preemption, then computed
    }
  }
  stream.computed += entry.count;
  stream.high_water = std::max(stream.high_water, stream.computed);
}

void Scheduler::keep_prompt_logits(const Entry& entry, std::span<const float> logits,
                                   std::size_t vocab) {
  Progress& progress = *entry.job->progress;
  if (progress.prompt_logits == nullptr) {
    progress.prompt_logits = std::make_shared<PromptLogits>(progress.request->prompt.size());
  }
  PromptLogits& kept = *progress.prompt_logits;
  const auto first = static_cast<std::size_t>(entry.first);
  const auto first_row = static_cast<std::size_t>(entry.first_logit_row);
  const auto count = static_cast<std::size_t>(entry.num_logit_rows);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t position = first + i;
    if (position >= kept.size()) return;
    const auto row = logits.subspan((first_row + i) * vocab, vocab);
    kept[position].assign(row.begin(), row.end());
  }
}

// The logits behind the last token of a stream.
Status Scheduler::take_logits(Job& job, Stream& stream, std::span<const float> row) {
  if (!is_distribution(row)) {
    return Status(ErrorCode::kInvalidArgument,
                  "request \"" + job.request().id + "\": the model's logits at position " +
                      std::to_string(stream.length() - 1) +
                      " are not numbers (NaN or infinite); allowed: finite ones");
  }
  if (!stream.candidates.empty()) return {};  // computed again after a preemption
  if (keep_ != LogitRows::kNone) {
    stream.logits = std::make_shared<const LogitHistory>(
        LogitHistory{.row = {row.begin(), row.end()}, .before = std::move(stream.logits)});
  }
  if (job.width() > 1) {
    best_candidates(row, job.width(), stream.candidates);
    return {};
  }
  // Siblings fork before this sample goes on, and draw from the same logits.
  std::vector<Job*> forked;
  if (stream.length() == job.prompt_length()) KVFOLIO_RETURN_IF_ERROR(fork_siblings(job, forked));
  KVFOLIO_RETURN_IF_ERROR(take_token(job, row));
  for (Job* sibling : forked) KVFOLIO_RETURN_IF_ERROR(take_token(*sibling, row));
  return {};
}

Status Scheduler::fork_siblings(Job& job, std::vector<Job*>& forked) {
  if (job.request().samples == 1) return {};
  const Stream& source = job.streams[0];
  // The samples of a request arrive one behind the other.
  const std::int32_t first_order = job.order - job.sample;
  auto at = std::partition_point(waiting_.begin(), waiting_.end(),
                                 [&](const Job* other) { return other->order < first_order; });
  std::vector<Job*> siblings;
  const auto most = static_cast<std::size_t>(limits_.max_seqs);
  for (; at != waiting_.end() && (*at)->progress == job.progress && siblings.size() < most; ++at) {
    siblings.push_back(*at);
  }
  for (Job* other : siblings) {
    if (open_sequences() >= limits_.max_seqs) break;
    // One that has tokens of its own comes back by itself.
    if (!other->streams.empty() && other->streams[0].length() > job.prompt_length()) continue;
    if (other->waits_with_sequence()) KVFOLIO_RETURN_IF_ERROR(give_up(*other));
    const Result<SequenceId> fork = backend_.fork(source.id);
    if (!fork) return fork.error();
    other->streams.assign(1, source);
    other->streams[0].id = *fork;
    move_job(*other, waiting_, running_);
    forked.push_back(other);
  }
  return {};
}

Status Scheduler::take_token(Job& job, std::span<const float> row) {
  const Request& request = job.request();
  Stream& stream = job.streams[0];
  const SamplingParams params{
      .temperature = request.temperature,
      .top_p = request.top_p,
      .seed = static_cast<std::uint64_t>(request.seed) + static_cast<std::uint64_t>(job.sample)};
  const std::int32_t token = sampler_.sample(row, params, stream.tokens.size());
  stream.tokens.push_back(token);
  stream.stopped = is_stop(request, token);
  if (listener_.on_token) listener_.on_token(request, job.sample, token);
  const bool full = stream.length() == job.prompt_length() + request.max_new_tokens;
  if (!stream.stopped && !full) return {};
  job.ended.push_back(std::move(stream));
  job.streams.clear();
  KVFOLIO_RETURN_IF_ERROR(backend_.close(job.ended[0].id));
  return finish(job);
}

// The hypotheses that wait for their common tokens, once streams[0] has computed them.
Status Scheduler::fork_trunk(Job& job) {
  if (job.trunk == 0 || job.streams[0].computed < job.trunk) return {};
  for (std::size_t i = 1; i < job.streams.size(); ++i) {
    const Result<SequenceId> fork = backend_.fork(job.streams[0].id);
    if (!fork) return fork.error();
    job.streams[i].id = *fork;
    job.streams[i].computed = job.trunk;
  }
  job.trunk = 0;
  return {};
}

// One step of beam search, when all hypotheses have their logits. The block tables follow: the
// first child of a hypothesis goes on with its sequence, the others fork from it, one without
// children is closed. No K or V moves but the shared last block of the forks, when they write.
Status Scheduler::advance_beams(Job& job) {
  std::vector<Extendable> live;
  for (const Stream& stream : job.streams) {
    if (stream.candidates.empty()) return {};
    live.push_back({.score = stream.score, .candidates = stream.candidates});
  }
  std::vector<double> ended_scores;
  for (const Stream& stream : job.ended) ended_scores.push_back(stream.score);
  const std::vector<BeamChoice> choices = choose_beams(live, ended_scores, job.width());

  const Request& request = job.request();
  std::vector<Stream> next;
  std::vector<Stream> ended;
  std::vector<std::size_t> parents;  // of next
  for (const BeamChoice& choice : choices) {
    const auto parent = static_cast<std::size_t>(choice.parent);
    if (choice.token < 0) {
      ended.push_back(job.ended[parent]);
      continue;
    }
    Stream child = job.streams[parent];
    child.id = SequenceId();
    child.candidates.clear();
    child.tokens.push_back(choice.token);
    child.score = choice.score;
    child.stopped = is_stop(request, choice.token);
    if (child.stopped || child.length() == job.prompt_length() + request.max_new_tokens) {
      ended.push_back(std::move(child));
    } else {
      next.push_back(std::move(child));
      parents.push_back(parent);
    }
  }
  for (std::size_t i = 0; i < job.streams.size(); ++i) {
    if (std::find(parents.begin(), parents.end(), i) == parents.end()) {
      KVFOLIO_RETURN_IF_ERROR(backend_.close(job.streams[i].id));
    }
  }
  for (std::size_t i = 0; i < next.size(); ++i) {
    const bool first_child =
        std::find(parents.begin(), parents.begin() + static_cast<std::ptrdiff_t>(i), parents[i]) ==
        parents.begin() + static_cast<std::ptrdiff_t>(i);
    next[i].id = job.streams[parents[i]].id;
    if (first_child) continue;
    const Result<SequenceId> fork = backend_.fork(next[i].id);
    if (!fork) return fork.error();
    next[i].id = *fork;
  }
  job.streams = std::move(next);
  job.ended = std::move(ended);
  return job.streams.empty() ? finish(job) : Status();
}

// Nothing of the job can go on: job.ended is its result. The job is gone after this.
Status Scheduler::finish(Job& job) {
  running_.erase(std::find(running_.begin(), running_.end(), &job));
  for (std::size_t rank = 0; rank < job.ended.size(); ++rank) {
    emit(job, job.ended[rank], job.sample + static_cast<std::int32_t>(rank));
  }
  jobs_.erase(job.order);
  return {};
}

void Scheduler::emit(const Job& job, const Stream& stream, std::int32_t sample) {
  FinishedSample finished{
      .request = job.request(),
      .sample = sample,
      .token_ids = {stream.tokens.begin() + job.prompt_length(), stream.tokens.end()},
      .stopped = stream.stopped,
      .score = stream.score,
      .cached_tokens = job.progress->cached_tokens,
      .preemptions = job.preemptions,
      .logits = stream.logits,
      .prompt_logits = job.progress->prompt_logits};
  ++stats_.samples;
  stats_.generated_tokens += static_cast<std::int64_t>(finished.token_ids.size());
  if (listener_.on_finished) listener_.on_finished(std::move(finished));
}

bool Scheduler::is_stop(const Request& request, std::int32_t token) const {
  const auto contains = [token](const std::vector<std::int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return contains(limits_.eos_ids) || contains(request.stop_ids);
}

}  // namespace kvfolio::llama
