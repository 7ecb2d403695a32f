// SPDX-License-Identifier: Apache-2.0
// What a sequence is opened with besides its prompt: the caller's own id, a limit, a priority; and
// its uses.

#include <algorithm>
#include <limits>

#include "model_check/ops.h"

namespace kvfolio::model_check {

std::string text_of(const OpenOptions& options) {
  std::string text;
  if (options.caller_id) text += " as " + std::to_string(*options.caller_id);
  if (options.max_tokens > 0) text += " max " + std::to_string(options.max_tokens);
  if (options.announce) text += " announces";
  if (options.priority != 0) text += " priority " + std::to_string(options.priority);
  return text;
}

std::optional<std::uint64_t> any_caller_id(Rng& rng) {
  if (rng.chance(60)) return std::nullopt;
  return kCallerIds[rng.next() % kCallerIds.size()];
}

std::int32_t any_priority(Rng& rng) {
  if (rng.chance(5)) return std::numeric_limits<std::int32_t>::min();
  if (rng.chance(5)) return std::numeric_limits<std::int32_t>::max();
  return rng.between(-2, 2);
}

OpenOptions Harness::open_options(const Prompt& prompt, Rng& rng) const {
  OpenOptions options = prompt.options();
  options.caller_id = any_caller_id(rng);
  if (rng.chance(12)) options.max_tokens = rng.between(1, 30);
  if (rng.chance(50)) options.priority = any_priority(rng);
  options.announce = config_.announces && rng.chance(70);
  return options;
}

bool Harness::is_taken(const std::optional<std::uint64_t>& caller_id) const {
  return caller_id && std::any_of(seqs_.begin(), seqs_.end(),
                                  [&](const SeqPtr& seq) { return seq->caller_id == caller_id; });
}

void Harness::check_refused_by_name(const Status& status, std::uint64_t caller_id) {
  ++coverage_.duplicates_refused;
  KVFOLIO_REQUIRE(
      status.message().find("caller_id " + std::to_string(caller_id)) != std::string::npos,
      "the error names the caller_id");
}

// Why there may be no place for another sequence. A row that a step uses has no owner before that
// is complete; who closes with tokens in a step keeps its own, unless it was cut back or has
// nothing to publish.
void Harness::add_slot_errors(Codes& errors, Codes& tolerated) {
  if (isize(seqs_) >= config_.options.max_sequences) errors.insert(kExhausted);
  std::erase_if(gone_, [&](const SeqPtr& seq) {
    return !incomplete(seq->row_ticket) && !incomplete(seq->last_step);
  });
  if (in_order()) return;
  const auto resting = std::count_if(
      gone_.begin(), gone_.end(), [&](const SeqPtr& seq) { return incomplete(seq->row_ticket); });
  if (isize(seqs_) + resting >= manager_->num_rows()) errors.insert(kExhausted);
  if (isize(seqs_) + isize(gone_) >= manager_->num_rows()) tolerated.insert(kExhausted);
}

void Harness::use(Seq& seq) {
  seq.last_use = ++num_uses_;
  ++seq.use_count;
}

void Harness::set_priority(Rng& rng) {
  const SeqPtr seq = any_seq(rng);
  if (!seq) return;
  const std::int32_t priority = any_priority(rng);
  note("set_priority " + name_of(*seq) + " " + std::to_string(priority));
  if (!expect(manager_->set_priority(seq->id, priority), {})) return;
  changed_ = true;
  seq->priority = priority;
}

// The open sequences are listed, and found under the ids of their callers; no other is.
void Harness::check_names() const {
  std::vector<SequenceId> listed(seqs_.size() + 1);
  const std::int32_t count = manager_->sequences(listed);
  KVFOLIO_REQUIRE(count == isize(seqs_), "sequences() lists the open ones");
  listed.pop_back();
  for (const SeqPtr& seq : seqs_) {
    KVFOLIO_REQUIRE(std::find(listed.begin(), listed.end(), seq->id) != listed.end(),
                    "sequences() lists " + name_of(*seq));
  }
  for (const std::uint64_t caller_id : kCallerIds) {
    const auto seq = std::find_if(seqs_.begin(), seqs_.end(),
                                  [&](const SeqPtr& s) { return s->caller_id == caller_id; });
    const Result<SequenceId> found = manager_->find(caller_id);
    if (seq == seqs_.end()) {
      KVFOLIO_REQUIRE(!found.has_value() && found.error().code() == kNotFound,
                      "nobody has caller_id " + std::to_string(caller_id));
    } else {
      KVFOLIO_REQUIRE(found.has_value() && *found == (*seq)->id,
                      name_of(**seq) + " is found by caller_id " + std::to_string(caller_id));
    }
  }
}

}  // namespace kvfolio::model_check
