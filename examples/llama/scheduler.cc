// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include <algorithm>
#include <utility>

namespace kvfolio::llama {
namespace {

// Tokens that all streams begin with.
std::int32_t common_prefix(const std::vector<Stream>& streams) {
  std::int32_t common = streams[0].length();
  for (const Stream& stream : streams) {
    const auto [mine, its] =
        std::mismatch(streams[0].tokens.begin(), streams[0].tokens.begin() + common,
                      stream.tokens.begin(), stream.tokens.end());
    common = static_cast<std::int32_t>(mine - streams[0].tokens.begin());
  }
  return common;
}

bool by_arrival(const Job* a, const Job* b) { return a->order < b->order; }

}  // namespace

Scheduler::Scheduler(Backend& backend, SchedulerLimits limits, LogitRows keep, Listener listener)
    : backend_(backend), limits_(std::move(limits)), keep_(keep), listener_(std::move(listener)) {}

void Scheduler::add(const Request& request) {
  const auto prompt = static_cast<std::int32_t>(request.prompt.size());
  const std::int32_t total = prompt + request.max_new_tokens;
  std::string error;
  if (total > limits_.max_positions) {
    error = "prompt of " + std::to_string(prompt) + " and max_new_tokens " +
            std::to_string(request.max_new_tokens) + " make " + std::to_string(total) +
            " tokens, the model has max_position_embeddings " +
            std::to_string(limits_.max_positions);
  } else if (request.beams > limits_.max_seqs) {
    error = "beams " + std::to_string(request.beams) + " exceed --max-seqs " +
            std::to_string(limits_.max_seqs);
  } else {
    // The last generated token is never an input, so it takes no slot.
    const Status fits =
        backend_.can_ever_hold(prompt, total - 1, request.max_new_tokens > 1 ? request.beams : 1);
    if (!fits.ok()) error = fits.message();
  }
  if (!error.empty()) {
    ++stats_.rejected;
    if (listener_.on_rejected) listener_.on_rejected(request, error);
    return;
  }
  ++stats_.requests;
  stats_.prompt_tokens += prompt;
  const auto progress = std::make_shared<Progress>();
  progress->request = &request;
  progress->computed.resize(request.prompt.size());
  progress->found.resize(request.prompt.size());
  for (std::int32_t sample = 0; sample < request.samples; ++sample) {
    Job& job = jobs_[next_order_];
    job.progress = progress;
    job.order = next_order_++;
    job.sample = sample;
    waiting_.push_back(&job);
  }
}

Status Scheduler::schedule(StepBatch& batch) {
  take_ready();
  KVFOLIO_RETURN_IF_ERROR(backend_.begin_step());
  entries_.clear();
  budget_ = limits_.max_batch_tokens;
  preempted_ = false;
  // Oldest first. The list only loses jobs at its end meanwhile.
  for (std::size_t i = 0; i < running_.size(); ++i) {
    KVFOLIO_RETURN_IF_ERROR(continue_job(*running_[i]));
  }
  // A request that was just preempted would come straight back.
  if (!preempted_) KVFOLIO_RETURN_IF_ERROR(admit_waiting());
  build(batch);
  note_peaks();
  return {};
}

// Loads that ended since the last step: those jobs may enter now.
void Scheduler::take_ready() {
  for (const SequenceReady& ready : backend_.poll()) {
    const auto job = std::find_if(waiting_.begin(), waiting_.end(), [&](const Job* one) {
      return one->loading && one->streams[0].id == ready.sequence;
    });
    if (job == waiting_.end()) continue;
    (*job)->loading = false;
    (*job)->streams[0].computed = ready.cached_tokens;
  }
}

bool Scheduler::is_loading() const {
  return std::any_of(waiting_.begin(), waiting_.end(), [](const Job* job) { return job->loading; });
}

Status Scheduler::continue_job(Job& job) {
  for (std::size_t i = 0; i < job.streams.size() && job.running; ++i) {
    Stream& stream = job.streams[i];
    const std::int32_t wanted = std::min(job.target(stream) - stream.computed, step_room());
    if (wanted <= 0) continue;
    KVFOLIO_RETURN_IF_ERROR(append_or_make_room(job, stream, wanted));
  }
  return {};
}

// Appends up to num_tokens of the stream's next tokens. When blocks are short, a window needs fewer
// for a smaller step; else the youngest job goes, first one that waits for a load. The youngest
// itself takes what there is, and waits when there is nothing: older jobs will end.
Status Scheduler::append_or_make_room(Job& job, Stream& stream, std::int32_t num_tokens) {
  for (;;) {
    const std::span<const std::int32_t> tokens(stream.tokens);
    Status appended =
        backend_.append(stream.id, tokens.subspan(static_cast<std::size_t>(stream.computed),
                                                  static_cast<std::size_t>(num_tokens)));
    if (appended.ok()) {
      entries_.push_back({.job = &job,
                          .stream = static_cast<std::size_t>(&stream - job.streams.data()),
                          .first = stream.computed,
                          .count = num_tokens});
      budget_ -= num_tokens;
      return {};
    }
    const Shortage* shortage = appended.shortage();
    if (shortage == nullptr) return appended;
    const std::int64_t too_many = backend_.tokens_too_many(*shortage);
    if (too_many > 0 && num_tokens > 1) {
      num_tokens = static_cast<std::int32_t>(std::max<std::int64_t>(num_tokens - too_many, 1));
    } else if (Job* waiting = youngest_waiting(&job)) {
      KVFOLIO_RETURN_IF_ERROR(give_up(*waiting));
    } else if (running_.back() != &job) {
      KVFOLIO_RETURN_IF_ERROR(preempt(*running_.back()));
    } else if (num_tokens > 1) {
      num_tokens /= 2;
    } else if (!entries_.empty() || shortage->retiring > 0) {
      return {};  // steps in flight give blocks back
    } else {
      return appended;
    }
  }
}

Status Scheduler::admit_waiting() {
  for (std::size_t i = 0; i < waiting_.size() && budget_ > 0;) {
    Job& job = *waiting_[i];
    const Result<bool> waits = waits_for_older(job);
    if (!waits) return waits.error();
    if (*waits || waits_for_sibling(job)) {
      ++i;
      continue;
    }
    KVFOLIO_RETURN_IF_ERROR(make_place(job));
    if (!job.waits_with_sequence() && open_sequences() + job.width() > limits_.max_seqs) break;
    const Result<Entered> entered = try_admit(job);
    if (!entered) return entered.error();
    if (*entered == Entered::kNo) break;
    if (*entered == Entered::kLoading) ++i;  // others need not wait for its load
  }
  return {};
}

// Younger jobs that wait for their loads hold no place that an older one lacks.
Status Scheduler::make_place(const Job& job) {
  while (!job.waits_with_sequence() && open_sequences() + job.width() > limits_.max_seqs) {
    Job* waiting = youngest_waiting(&job);
    if (waiting == nullptr || waiting->order < job.order) break;
    KVFOLIO_RETURN_IF_ERROR(give_up(*waiting));
  }
  return {};
}

// What the job's first stream has to compute, before the others fork from it.
void Scheduler::prepare(Job& job) {
  if (job.streams.empty()) job.streams.emplace_back().tokens = job.request().prompt;
  job.trunk = job.streams.size() > 1 ? common_prefix(job.streams) : 0;
}

OpenLimits Scheduler::limits_of(const Job& job) const {
  return {.max_tokens = job.prompt_length() + job.request().max_new_tokens,
          .look_up = keep_ != LogitRows::kAll};
}

// An older job that runs or loads computes a block or more that this one would compute as well.
Result<bool> Scheduler::waits_for_older(Job& job) {
  if (!limits_.hold_back || job.waits_with_sequence()) return false;
  prepare(job);
  const Stream& stream = job.streams[0];
  const auto size = static_cast<std::size_t>(job.target(stream));
  const Result<SequenceId> by =
      backend_.worth_waiting_for(std::span(stream.tokens).first(size), limits_of(job));
  if (!by) return by.error();
  if (!by->valid()) return false;
  const auto brings = [&](const Job* other) {
    return other->order < job.order && (other->running || other->loading) &&
           std::any_of(other->streams.begin(), other->streams.end(),
                       [&](const Stream& each) { return each.id == *by; });
  };
  if (std::none_of(running_.begin(), running_.end(), brings) &&
      std::none_of(waiting_.begin(), waiting_.end(), brings)) {
    return false;
  }
  if (!job.held_back) ++stats_.held_back;
  job.held_back = true;
  return true;
}

// Opens a sequence with what the job has, waits for its load, and keeps it when the rest fits.
Result<Scheduler::Entered> Scheduler::try_admit(Job& job) {
  if (job.loading) return Entered::kLoading;
  prepare(job);
  Stream& stream = job.streams[0];
  const std::int32_t target = job.target(stream);
  if (!stream.id.valid()) {
    const Result<OffloadOpened> opened = backend_.open(
        std::span(stream.tokens).first(static_cast<std::size_t>(target)), limits_of(job));
    if (!opened) return opened.error();
    stream.id = opened->sequence;
    stream.computed = opened->cached_tokens;
    job.loading = opened->pending;
    if (job.loading) return Entered::kLoading;
  }
  const Result<std::int32_t> fits = admissible(job, target - stream.computed);
  if (!fits) return fits.error();
  if (*fits == 0) {  // what it held stands as before
    KVFOLIO_RETURN_IF_ERROR(give_up(job));
    return Entered::kNo;
  }
  if (job.progress->cached_tokens < 0) job.progress->cached_tokens = stream.computed;
  count_found(*job.progress, stream.computed);
  move_job(job, waiting_, running_);
  KVFOLIO_RETURN_IF_ERROR(append_or_make_room(job, stream, std::min(*fits, step_room())));
  return Entered::kYes;
}

// Closes the sequence of a job that waits. What is loaded of it stays in the cache for now.
Status Scheduler::give_up(Job& job) {
  Stream& stream = job.streams[0];
  KVFOLIO_RETURN_IF_ERROR(backend_.close(stream.id));
  stream.id = SequenceId();
  stream.computed = 0;
  job.loading = false;
  return {};
}

// The youngest of the other jobs that hold a sequence and wait.
Job* Scheduler::youngest_waiting(const Job* but) {
  const auto holds = [but](const Job* job) { return job != but && job->waits_with_sequence(); };
  const auto found = std::find_if(waiting_.rbegin(), waiting_.rend(), holds);
  return found == waiting_.rend() ? nullptr : *found;
}

// How many of `wanted` tokens the sequence may append now; 0: none, it has to wait. All must fit,
// since half a prompt is of no use, and beside others some more: a request that enters a pool that
// is full to the brim is thrown out a step later. They may come in steps of what a step takes, and
// in a window in smaller ones, by as many tokens as blocks are short.
Result<std::int32_t> Scheduler::admissible(const Job& job, std::int32_t wanted) {
  const bool alone = running_.empty();
  std::int64_t tokens = wanted;
  for (const Job* other : running_) {
    const std::int32_t end = other->prompt_length() + other->request().max_new_tokens - 1;
    for (const Stream& stream : other->streams) {
      tokens += std::min(limits_.admission_margin, end - stream.computed);
    }
  }
  std::int64_t step = std::min<std::int64_t>(step_room(), tokens);
  for (;;) {
    const Status status = backend_.admit(job.streams[0].id, tokens, step);
    if (status.ok()) return static_cast<std::int32_t>(std::min<std::int64_t>(step, wanted));
    const Shortage* shortage = status.shortage();
    if (shortage == nullptr) {
      // No room for table entries, which those that run give back when they end.
      if (!alone && status.code() == ErrorCode::kResourceExhausted) return 0;
      return status;
    }
    const std::int64_t too_many = backend_.tokens_too_many(*shortage);
    if (too_many > 0 && step > 1) {
      step = std::max<std::int64_t>(step - too_many, 1);
      continue;
    }
    Job* waiting = alone ? youngest_waiting(&job) : nullptr;
    if (waiting == nullptr) {
      // Alone it fits, as add() has checked, once the steps in flight have given back what they
      // hold.
      if (alone && shortage->retiring == 0) return status;
      return 0;
    }
    KVFOLIO_RETURN_IF_ERROR(give_up(*waiting));
  }
}

Status Scheduler::preempt(Job& job) {
  std::size_t kept = 0;
  for (const Entry& entry : entries_) {
    if (entry.job == &job) {
      budget_ += entry.count;
    } else {
      entries_[kept++] = entry;
    }
  }
  entries_.resize(kept);
  for (Stream& stream : job.streams) {
    if (!stream.id.valid()) continue;
    KVFOLIO_RETURN_IF_ERROR(backend_.preempt(stream.id));
    stream.id = SequenceId();
    stream.computed = 0;
  }
  move_job(job, running_, waiting_);
  ++job.preemptions;
  ++stats_.preemptions;
  preempted_ = true;
  return {};
}

void Scheduler::build(StepBatch& batch) {
  batch.tokens.clear();
  batch.positions.clear();
  batch.logit_rows.clear();
  for (Entry& entry : entries_) {
    const Stream& stream = entry.job->streams[entry.stream];
    entry.first_logit_row = static_cast<std::int32_t>(batch.logit_rows.size());
    const std::int32_t end = entry.first + entry.count;
    entry.reaches_end = end == stream.length();
    for (std::int32_t position = entry.first; position < end; ++position) {
      const bool last = position + 1 == end;
      if (keep_ == LogitRows::kAll || (last && entry.reaches_end)) {
        batch.logit_rows.push_back(static_cast<std::int32_t>(batch.tokens.size()));
      }
      batch.tokens.push_back(stream.tokens[static_cast<std::size_t>(position)]);
      batch.positions.push_back(position);
    }
    entry.num_logit_rows =
        static_cast<std::int32_t>(batch.logit_rows.size()) - entry.first_logit_row;
  }
}

void Scheduler::note_peaks() {
  std::int64_t tokens = 0;
  std::int32_t sequences = 0;
  for (const Job* job : running_) {
    for (const Stream& stream : job->streams) {
      if (!stream.id.valid()) continue;
      tokens += job->prompt_length() + job->request().max_new_tokens;
      ++sequences;
    }
  }
  stats_.contiguous_bytes_peak =
      std::max(stats_.contiguous_bytes_peak, tokens * limits_.bytes_per_token);
  stats_.sequences_peak = std::max(stats_.sequences_peak, sequences);
  for (const Entry& entry : entries_) {
    stats_.chunk_tokens_peak = std::max(stats_.chunk_tokens_peak, entry.count);
  }
  stats_.step_tokens_peak = std::max(stats_.step_tokens_peak, limits_.max_batch_tokens - budget_);
  stats_.step_sequences_peak =
      std::max(stats_.step_sequences_peak, static_cast<std::int32_t>(entries_.size()));
  ++stats_.steps;
}

// The first sample computes the prompt for all: the others fork from it then.
bool Scheduler::waits_for_sibling(const Job& job) const {
  const auto computes = [&](const Job* other) {
    return other->progress == job.progress && other->streams[0].length() == job.prompt_length();
  };
  const auto loads = [&](const Job* other) {
    return other != &job && other->loading && computes(other);
  };
  return std::any_of(running_.begin(), running_.end(), computes) ||
         std::any_of(waiting_.begin(), waiting_.end(), loads);
}

std::int32_t Scheduler::open_sequences() const {
  std::int32_t sequences = 0;
  for (const Job* job : running_) sequences += job->width();
  for (const Job* job : waiting_) sequences += job->waits_with_sequence() ? job->width() : 0;
  return sequences;
}

std::int32_t Scheduler::step_room() const {
  if (limits_.max_chunk_tokens == 0) return budget_;
  return std::min(budget_, limits_.max_chunk_tokens);
}

void Scheduler::move_job(Job& job, std::deque<Job*>& from, std::deque<Job*>& to) {
  from.erase(std::find(from.begin(), from.end(), &job));
  to.insert(std::upper_bound(to.begin(), to.end(), &job, by_arrival), &job);
  job.running = &to == &running_;
}

void Scheduler::for_each_sequence(
    const std::function<void(const Request&, SequenceId)>& visit) const {
  for (const Job* job : running_) {
    for (const Stream& stream : job->streams) {
      if (stream.id.valid()) visit(job->request(), stream.id);
    }
  }
}

}  // namespace kvfolio::llama
