// SPDX-License-Identifier: Apache-2.0
// The calls that name many sequences. They do what as many single calls would, in order, up to the
// first that fails: what stands before it is in, and nothing else has changed.

#include <algorithm>
#include <map>

#include "model_check/ops.h"

namespace kvfolio::model_check {

// An id that names no open sequence.
Harness::OneOf Harness::nobody(Rng& rng) const {
  OneOf one;
  one.id_errors = {kNotFound};
  switch (rng.below(3)) {
    case 0:
      if (!stale_.empty()) one.id = rng.pick(stale_);
      break;
    case 1:
      if (!aborted_.empty()) one.id = rng.pick(aborted_);
      one.id_errors.insert(kAborted);
      break;
    default:
      one.id = foreign_sequence_;
      break;
  }
  return one;
}

// `repeats`: a sequence may stand in it several times.
std::vector<Harness::OneOf> Harness::any_batch(Rng& rng, bool repeats) {
  std::vector<OneOf> batch;
  for (int i = rng.between(2, 6); i > 0; --i) {
    const SeqPtr seq = any_seq(rng);
    if (!seq) break;
    const bool is_there =
        std::any_of(batch.begin(), batch.end(), [&](const OneOf& one) { return one.seq == seq; });
    if (is_there && !repeats && !rng.chance(10)) continue;
    batch.push_back({seq, seq->id, {}, 0});
  }
  if (rng.chance(8)) {
    const int at = rng.below(isize(batch) + 1);
    batch.insert(batch.begin() + at, nobody(rng));
  }
  return batch;
}

// The call failed at this place of the batch, or at none.
void Harness::check_batch_end(const Status& status, const std::vector<OneOf>& batch,
                              std::size_t at) {
  ++coverage_.batches;
  if (at == batch.size()) return;
  if (at > 0) ++coverage_.batches_cut;
  const Seq* seq = batch[at].seq.get();
  if (const Shortage* shortage = status.shortage(); shortage != nullptr) {
    ++coverage_.shortages;
    KVFOLIO_REQUIRE(shortage->group >= 0 && shortage->group < num_groups(),
                    "the shortage names a group");
    // A call that fails changes nothing, so it counted what is there now.
    check_shortage(*shortage, *seq, 1, *manager_->usage(GroupId(shortage->group)));
  }
  if (status.code() == kExhausted && seq->is_full_for(1)) check_full(status, *seq);
}

void Harness::append_each(Rng& rng, bool named) {
  std::vector<OneOf> batch = any_batch(rng, false);
  if (isize(batch) < 2) return append(rng, named);
  std::vector<SequenceId> ids;
  std::vector<std::int32_t> tokens;
  std::string text;
  for (OneOf& one : batch) {
    const Seq* seq = one.seq.get();
    const bool goes_on = seq != nullptr && seq->length() < isize(seq->prompt.tokens);
    one.token = goes_on && !rng.chance(3)
                    ? seq->prompt.tokens[static_cast<std::size_t>(seq->length())]
                    : rng.below(config_.alphabet);
    if (named && rng.chance(1)) one.token = -1;
    ids.push_back(one.id);
    tokens.push_back(one.token);
    text += " " + (seq == nullptr ? "id " + std::to_string(one.id.value()) : name_of(*seq)) + ":" +
            std::to_string(one.token);
  }
  note((named ? "append_each" : "append_unnamed_each") + text);
  std::int32_t joined = -1;
  const Status status = named ? manager_->append_each(ids, tokens, &joined)
                              : manager_->append_unnamed_each(ids, &joined);
  KVFOLIO_REQUIRE(joined >= 0 && joined <= isize(batch) && (joined == isize(batch)) == status.ok(),
                  "the batch ends at the first that fails: " + std::to_string(joined));
  note(" joined " + std::to_string(joined));
  std::map<SeqPtr, std::size_t> places;  // of those that joined
  for (std::size_t i = 0; i < batch.size() && i <= static_cast<std::size_t>(joined); ++i) {
    const auto& [seq, id, id_errors, token] = batch[i];
    const bool ends_here = i == static_cast<std::size_t>(joined);
    Codes tolerated;
    Codes errors = seq ? append_errors(*seq, 1, named, tolerated) : id_errors;
    if (!open_step_) errors.insert(kMoment);
    if (token < 0) errors.insert(kInvalid);
    const auto before = places.find(seq);
    const bool is_twice = seq && before != places.end();
    if (is_twice) errors.insert(kMoment);
    if (!ends_here) {
      const bool good = errors.empty() && token >= 0;
      KVFOLIO_REQUIRE(good, "place " + std::to_string(i) + " of the batch should be refused");
      places.emplace(seq, i);
      continue;
    }
    if (errors.empty()) tolerated.insert(kNoBlocks);
    const bool is_promised = seq && seq->certain && seq->promised >= 1 &&
                             seq->most_per_step >= 1 + seq->undecided() && errors.empty();
    KVFOLIO_REQUIRE(!is_promised || status.code() != kNoBlocks,
                    "within a promise no append is short: " + status.message());
    KVFOLIO_REQUIRE(!errors.empty() || tolerated.contains(status.code()),
                    "place " + std::to_string(i) + " of the batch is good: " + status.message());
    expect(status, errors, tolerated);
    if (is_twice && status.code() == kMoment) {
      const std::string twice =
          "twice, at " + std::to_string(before->second) + " and at " + std::to_string(i);
      KVFOLIO_REQUIRE(status.message().find(twice) != std::string::npos, "the error says " + twice);
    }
  }
  if (status.ok()) expect(status, {});
  check_batch_end(status, batch, static_cast<std::size_t>(joined));
  for (std::size_t i = 0; i < static_cast<std::size_t>(joined); ++i) {
    const auto saved = std::find_if(before_.seqs.begin(), before_.seqs.end(),
                                    [&](const auto& entry) { return entry.first == batch[i].seq; });
    KVFOLIO_REQUIRE(saved != before_.seqs.end(), "harness: the sequence was known");
    join_step(batch[i].seq, saved->second, {batch[i].token}, named);
  }
  if (joined > 0) capture({});
}

void Harness::set_tokens_each(Rng& rng) {
  std::vector<OneOf> batch = any_batch(rng, true);
  // Mostly those that wait for names.
  std::erase_if(batch, [&](const OneOf& one) {
    return one.seq && one.seq->unnamed() == 0 && rng.chance(90);
  });
  if (isize(batch) < 2) return set_tokens(rng);
  std::vector<SequenceId> ids;
  std::vector<std::int32_t> tokens;
  std::map<SeqPtr, int> counts;
  std::string text;
  for (OneOf& one : batch) {
    ids.push_back(one.id);
    if (one.seq) {
      // The next one that has no name yet.
      int p = -1;
      for (int skip = counts[one.seq]++; skip >= 0 && p < one.seq->length(); --skip) {
        ++p;
        while (p < one.seq->length() && one.seq->named[static_cast<std::size_t>(p)] != 0) ++p;
      }
      if (p < one.seq->length()) one.token = one.seq->tokens[static_cast<std::size_t>(p)];
    }
    tokens.push_back(one.token);
    text += " " + (one.seq ? name_of(*one.seq) : "id " + std::to_string(one.id.value())) + ":" +
            std::to_string(one.token);
  }
  note("set_tokens_each" + text);
  std::int32_t done = -1;
  const Status status = manager_->set_tokens_each(ids, tokens, &done);
  KVFOLIO_REQUIRE(done >= 0 && done <= isize(batch) && (done == isize(batch)) == status.ok(),
                  "the batch ends at the first that fails: " + std::to_string(done));
  note(" named " + std::to_string(done));
  for (std::size_t i = 0; i < batch.size() && i <= static_cast<std::size_t>(done); ++i) {
    const auto& [seq, id, id_errors, token] = batch[i];
    Codes errors = id_errors;
    if (seq && seq->unnamed() == 0) errors = {kInvalid, kMoment};
    if (i == static_cast<std::size_t>(done)) {
      KVFOLIO_REQUIRE(!errors.empty(),
                      "place " + std::to_string(i) + " of the batch is good: " + status.message());
      expect(status, errors);
      break;
    }
    KVFOLIO_REQUIRE(errors.empty(), "place " + std::to_string(i) + " of the batch names nothing");
    give_names(seq, 1);
  }
  if (status.ok()) expect(status, {});
  check_batch_end(status, batch, static_cast<std::size_t>(done));
}

}  // namespace kvfolio::model_check
