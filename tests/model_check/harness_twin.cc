// SPDX-License-Identifier: Apache-2.0
// Caching never takes room: after each open() two copies of the manager are asked. The cold one,
// made before the call, computes the whole prompt in one append without the cache; where that is
// not short of blocks, neither is the append of the rest in the hot one, made behind the call.

#include <algorithm>

#include "model_check/ops.h"

namespace kvfolio::model_check {
namespace {

// Appends in the open step, or in one that begins now.
Status append_now(KVCacheManager& manager, SequenceId sequence,
                  std::span<const std::int32_t> tokens) {
  const Result<Ticket> begun = manager.begin_step();
  if (!begun && manager.append(sequence, {}).code() != ErrorCode::kOk) return begun.error();
  return manager.append(sequence, tokens);
}

}  // namespace

void Harness::make_twins() {
  // Copies of a manager with storage want quiet moments; there are enough families without.
  if (config_.host_copies || config_.options.prefix_cache == false) return;
  for (std::optional<KVCacheManager>* twin : {&cold_, &hot_}) {
    Result<KVCacheManager> made = KVCacheManager::create(config_.spec, config_.options);
    KVFOLIO_REQUIRE(made.has_value(), "create a twin");
    twin->emplace(std::move(*made));
  }
}

void Harness::keep_cold_twin() {
  if (cold_) KVFOLIO_REQUIRE(manager_->copy_to(*cold_).ok(), "copy_to a cold twin");
}

// Admission by chunks says in numbers what open() and then reserve() do; and then no chunk is
// short.
void Harness::check_chunks(const Prompt& prompt, const OpenOptions& options) {
  if (!cold_ || skip_questions_) return;
  Rng rng(static_cast<std::uint64_t>(next_number_) * 64 + prompt.tokens.size());
  const int more = rng.below(8);
  const int most = rng.between(1, 6);
  const ReserveOptions chunks{.most_per_step = most};
  const Result<Admission> said = manager_->admit(prompt.tokens, options, more, chunks);
  const Result<Opened> opened = cold_->open(prompt.tokens, options);
  if (!opened.has_value()) {
    KVFOLIO_REQUIRE(status_of(said).code() == opened.error().code(),
                    "admit() by chunks says that open() fails: " + status_of(said).message());
    return keep_cold_twin();
  }
  const int rest = isize(prompt.tokens) - opened->cached_tokens + more;
  const auto reserved = [&](int g) { return (*cold_->usage(GroupId(g))).reserved; };
  std::vector<int> before;
  before.reserve(static_cast<std::size_t>(num_groups()));
  for (int g = 0; g < num_groups(); ++g) before.push_back(reserved(g));
  const Result<Admission> again = cold_->admit(opened->sequence, rest, chunks);
  const Status kept = cold_->reserve(opened->sequence, rest, chunks);
  const Status answer = status_of(said);
  KVFOLIO_REQUIRE(answer.code() == kept.code() && status_of(again).code() == kept.code(),
                  "admit() by chunks says what reserve() answers: " + answer.message() + " / " +
                      status_of(again).message() + " / " + kept.message());
  ++coverage_.chunks_admitted;
  if (kept.shortage() != nullptr) {
    Shortage open = *answer.shortage();
    ++open.sequences;
    KVFOLIO_REQUIRE(!open.never() || kept.shortage()->never(),
                    "what admit() says never fits does not: " + answer.message());
    open.kept = kept.shortage()->kept;
    open.spared = kept.shortage()->spared;
    KVFOLIO_REQUIRE(open == *kept.shortage(), "admit() by chunks counts as reserve() does: " +
                                                  answer.message() + " / " + kept.message());
  }
  for (int g = 0; g < num_groups() && kept.ok(); ++g) {
    const auto at = static_cast<std::size_t>(g);
    KVFOLIO_REQUIRE(said->cached_tokens == opened->cached_tokens &&
                        said->blocks[at] == reserved(g) - before[at] &&
                        said->blocks[at] == again->blocks[at],
                    "admit() by chunks counts the blocks that reserve() keeps");
  }
  std::vector<std::int32_t> rest_tokens(prompt.tokens.begin() + opened->cached_tokens,
                                        prompt.tokens.end());
  rest_tokens.resize(static_cast<std::size_t>(rest), 0);
  std::span<const std::int32_t> behind(rest_tokens);
  while (kept.ok() && !behind.empty()) {
    const auto chunk =
        behind.first(std::min(behind.size(), static_cast<std::size_t>(rng.between(1, most))));
    const Result<Ticket> ticket = cold_->begin_step();
    if (!ticket.has_value()) break;  // one is open, or too many are in flight
    const Status appended = cold_->append(opened->sequence, chunk);
    KVFOLIO_REQUIRE(appended.code() != kNoBlocks,
                    "no chunk of what was admitted is short: " + appended.message());
    if (!appended.ok() || !cold_->finish(*ticket).ok()) break;
    behind = behind.subspan(chunk.size());
  }
  const Status invariants = cold_->check_invariants();
  KVFOLIO_REQUIRE(invariants.ok(), "check_invariants of the cold twin: " + invariants.message());
  keep_cold_twin();
}

void Harness::ask_twins(const Prompt& prompt, const Seq& seq) {
  if (!cold_ || prompt.tokens.empty()) return;
  OpenOptions alone = prompt.options();
  alone.prefix_cache = false;
  const Result<Opened> cold = cold_->open(prompt.tokens, alone);
  KVFOLIO_REQUIRE(cold.has_value(), "the cold twin opens what this manager opened");
  const bool has_room = append_now(*cold_, cold->sequence, prompt.tokens).ok();
  KVFOLIO_REQUIRE(manager_->copy_to(*hot_).ok(), "copy_to a hot twin");
  const std::span<const std::int32_t> rest =
      std::span(prompt.tokens).subspan(static_cast<std::size_t>(seq.cached));
  const std::uint64_t unhung = hot_->counters().blocks_unhung;
  const AppendDemand demand{seq.id, isize(rest)};
  const Status admitted = hot_->admit({&demand, 1});
  const Status status = append_now(*hot_, seq.id, rest);
  ++coverage_.twins_asked;
  if (prospect_ && status.code() != kMoment) {
    const Status said = status_of(*prospect_);
    KVFOLIO_REQUIRE(said.code() == status.code(), "admit() of a prompt said " + said.message() +
                                                      ", append() answers " + status.message());
    KVFOLIO_REQUIRE(!status.ok() || (*prospect_)->cached_tokens == seq.cached,
                    "admit() of a prompt says what open() finds");
    if (status.shortage() != nullptr) {
      Shortage open = *said.shortage();  // of as many sequences as are open: it was not, then
      ++open.sequences;
      // A prompt may find more another time, a sequence that is open may not.
      KVFOLIO_REQUIRE(!open.never() || status.shortage()->never(),
                      "what admit() says never fits does not: " + said.message());
      open.kept = status.shortage()->kept;
      open.spared = status.shortage()->spared;
      KVFOLIO_REQUIRE(open == *status.shortage(), "admit() of a prompt counts as append() does: " +
                                                      said.message() + " / " + status.message());
    }
    ++coverage_.prompts_admitted;
  }
  coverage_.twins_without_room += has_room ? 0 : 1;
  coverage_.twins_that_reuse += hot_->counters().blocks_unhung != unhung ? 1 : 0;
  KVFOLIO_REQUIRE(!has_room || status.code() != kNoBlocks,
                  "caching takes no room: without it the prompt fits, with a hit of " +
                      std::to_string(seq.cached) + " the rest does not: " + status.message());
  KVFOLIO_REQUIRE(status.code() == kMoment || admitted.code() == status.code(),
                  "admit() says what append() answers: " + admitted.message());
  const Status invariants = hot_->check_invariants();
  KVFOLIO_REQUIRE(invariants.ok(), "check_invariants of the hot twin: " + invariants.message());
}

// If two blocks have equal tokens, one that is held has the entry: a sequence that has just
// published finds in its place its own blocks, or such as others hold too.
void Harness::check_held_entries(const Snapshot& now) const {
  if (now.counters.publications_skipped != before_.counters.publications_skipped) return;
  for (const auto& [seq, state] : now.seqs) {
    const bool is_new = std::none_of(before_.seqs.begin(), before_.seqs.end(),
                                     [&own = seq](const auto& each) { return each.first == own; });
    if (is_new || state.info.published_length <= published_before(*seq)) continue;
    for (int g = 0; g < num_groups(); ++g) {
      if (group(g).kind != AttentionKind::kFull) continue;  // windows let blocks go meanwhile
      const GroupState& blocks = now.groups[static_cast<std::size_t>(g)];
      const int size = group(g).block_size;
      for (int j = 0; (j + 1) * size <= state.info.published_length; ++j) {
        const std::int32_t own =
            state.tables[static_cast<std::size_t>(g)][static_cast<std::size_t>(j)];
        if (own < 0 || blocks.findable[static_cast<std::size_t>(own)] != 0) continue;
        bool is_held = false;
        for (int b = 0; b < group(g).num_blocks && !is_held; ++b) {
          const auto at = static_cast<std::size_t>(b);
          const std::vector<int>& published = block(g, b).published;
          is_held = blocks.findable[at] != 0 && blocks.refs[at] > 0 && isize(published) == size &&
                    std::equal(published.begin(), published.end(), seq->nodes.begin() + j * size);
        }
        KVFOLIO_REQUIRE(is_held, "group " + std::to_string(g) + " block " + std::to_string(own) +
                                     ", which s" + std::to_string(seq->number) +
                                     " holds, has the entry, or another that is held");
      }
    }
  }
}

}  // namespace kvfolio::model_check
