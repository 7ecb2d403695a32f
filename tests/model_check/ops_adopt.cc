// SPDX-License-Identifier: Apache-2.0
// Adoption: a sequence takes blocks that others hold, mostly with what these said, sometimes in a
// mixture of none, sometimes such as must be refused. What it reads from then on is what
// the model's memory says of these blocks.

#include <algorithm>
#include <limits>

#include "model_check/ops.h"

namespace kvfolio::model_check {

// Blocks for `num_tokens` tokens: the source's own, but for pieces of others in their place and for
// entries that are simply wrong. A piece has one length in tokens whatever the group, so that all
// groups hold the same tokens at a position.
Tables Harness::tables_to_adopt(const Seq& source, int num_tokens, Rng& rng) const {
  const int piece = common_multiple();
  const int num_pieces = (std::max(num_tokens, 0) + piece - 1) / piece;
  std::vector<std::pair<const Seq*, int>> pieces;  // whose, and which of its pieces
  pieces.reserve(static_cast<std::size_t>(num_pieces));
  for (int i = 0; i < num_pieces; ++i) pieces.emplace_back(&source, i);
  if (num_pieces > 0 && rng.chance(30)) {
    for (int i = rng.between(1, 3); i > 0; --i) {
      const Seq& other = *rng.pick(seqs_);
      const int k = rng.below(num_pieces);
      pieces[static_cast<std::size_t>(k)] = {&other, rng.chance(50) ? k : rng.below(num_pieces)};
    }
  }
  Tables tables;
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    std::vector<std::int32_t>& table = tables.emplace_back();
    for (int j = 0; j * size < num_tokens; ++j) {
      const auto& [whose, which] = pieces[static_cast<std::size_t>(j * size / piece)];
      const std::vector<std::int32_t>& from = whose->tables[static_cast<std::size_t>(g)];
      const int at = which * piece / size + j % (piece / size);
      table.push_back(at < isize(from) ? from[static_cast<std::size_t>(at)] : -1);
    }
  }
  if (rng.chance(85)) return tables;
  const int g = rng.below(num_groups());
  std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(g)];
  const int damage = rng.below(6);
  if (damage == 0) tables.emplace_back();
  if (damage == 1) tables.pop_back();
  if (damage == 2) table.push_back(rng.below(group(g).num_blocks));
  if (damage == 3 && !table.empty()) table.pop_back();
  if (damage >= 4 && !table.empty()) {
    const std::vector<std::int32_t> wrong = {-1, -7, group(g).num_blocks,
                                             std::numeric_limits<std::int32_t>::max(),
                                             rng.below(group(g).num_blocks)};
    table[rng.next() % table.size()] = damage == 4 ? wrong.back() : rng.pick(wrong);
  }
  return tables;
}

Harness::Codes Harness::adopt_errors(const Seq& seq, const Tables& tables, int num_tokens) const {
  Codes errors;
  if (open_step_ || seq.length() > 0 || seq.promised > 0 || waits_for_load(seq)) {
    errors.insert(kMoment);
  }
  if (seq.is_full_for(num_tokens)) errors.insert(kExhausted);
  if (num_tokens < 0 || isize(tables) != num_groups()) {
    errors.insert(kInvalid);
    return errors;
  }
  for (int g = 0; g < num_groups(); ++g) {
    const int size = group(g).block_size;
    const std::vector<std::int32_t>& table = tables[static_cast<std::size_t>(g)];
    const int blocks = num_tokens / size + (num_tokens % size != 0 ? 1 : 0);  // of any number
    if (isize(table) != blocks) errors.insert(kInvalid);
    for (int j = 0; j < isize(table); ++j) {
      const std::int32_t b = table[static_cast<std::size_t>(j)];
      if (b != -1 && std::count(table.begin(), table.end(), b) > 1) errors.insert(kInvalid);
      if (b == -1) {
        for (int p = j * size; p < (j + 1) * size; ++p) {
          if (p >= num_tokens || reads(group(g), num_tokens, p)) errors.insert(kInvalid);
        }
      } else if (b < 0 || b >= group(g).num_blocks) {
        errors.insert(kInvalid);
      } else {
        const auto at = static_cast<std::size_t>(b);
        const bool held = before_.groups[static_cast<std::size_t>(g)].refs[at] > 0;
        const int wanted = std::min(size, num_tokens - j * size);
        if (!held || block(g, b).valid < wanted) errors.insert(kInvalid);
        for (const StepWork& step : flight_) {
          const bool written = step.groups[static_cast<std::size_t>(g)].touched[at] == 2;
          if (!in_order() && written) errors.insert(kMoment);
        }
      }
    }
  }
  return errors;
}

// What stands at each position; nullopt where the groups do not hold the same.
std::optional<std::vector<int>> Harness::nodes_in(const Tables& tables, int root, int num_tokens) {
  std::vector<int> nodes;
  for (int p = 0; p < num_tokens; ++p) {
    int node = kPoison;
    for (int g = 0; g < num_groups(); ++g) {
      const int size = group(g).block_size;
      const std::int32_t b =
          tables[static_cast<std::size_t>(g)][static_cast<std::size_t>(p / size)];
      if (b < 0) continue;
      const int held = cell(logical_, g, b * size + p % size).node;
      KVFOLIO_REQUIRE(held != kPoison, "harness: a token that a block holds was written");
      if (node != kPoison && node != held) return std::nullopt;
      node = held;
    }
    // What no group has is never read.
    nodes.push_back(node != kPoison ? node : trie_.root(root));
  }
  return nodes;
}

void Harness::adopt(Rng& rng) {
  SeqPtr seq = any_seq(rng);
  for (int i = 0; seq && i < 8 && seq->length() > 0; ++i) seq = any_seq(rng);
  SeqPtr source = any_seq(rng);
  for (int i = 0; source && i < 4 && source->length() == 0; ++i) source = any_seq(rng);
  if (!seq) return;
  if (seq->length() > 0 && seq != source && !seq->in_step && rng.chance(80)) {
    cut(seq, 0, true);
    verify();
    changed_ = false;
    note("; ");
  }
  int count = rng.chance(50) ? source->length() : rng.between(0, source->length());
  if (rng.chance(8)) count += rng.between(1, 3);
  const Tables tables = tables_to_adopt(*source, count, rng);
  if (rng.chance(2)) count = rng.chance(50) ? -1 : std::numeric_limits<std::int32_t>::max();
  note("adopt " + name_of(*seq) + " " + std::to_string(count) + " tokens like " + name_of(*source));
  std::vector<std::span<const std::int32_t>> spans;
  for (const std::vector<std::int32_t>& table : tables) {
    note(" " + text_of(table));
    spans.emplace_back(table);
  }

  const Codes errors = adopt_errors(*seq, tables, count);
  std::vector<int> nodes;
  if (errors.empty()) {
    const auto found = nodes_in(tables, seq->prompt.root, count);
    if (!found) {
      note(" (two contents)");
      return;
    }
    nodes = *found;
  }
  Codes tolerated = config_.tight_tables ? Codes{kExhausted} : Codes{};
  // What it costs others' promises, and blocks that lie ready: these hold no tokens any more.
  if (has_promises()) tolerated.insert({kNoBlocks, kInvalid});
  if (!expect(manager_->adopt(seq->id, spans, count), errors, tolerated)) {
    ++coverage_.adoptions_refused;
    return;
  }
  if (count == 0) return;
  ++coverage_.adoptions;
  changed_ = true;
  seq->fresh = seq->maybe_whole = false;
  seq->adopted = seq->used = true;
  seq->announced.clear();
  seq->certain = false;
  for (int p = 0; p < count; ++p) {
    const auto at = static_cast<std::size_t>(p);
    seq->tokens.push_back(p < source->length() ? source->tokens[at] : 0);
    seq->named.push_back(1);
    seq->nodes.push_back(nodes[at]);
    seq->tickets.push_back(0);
  }
  seq->committed = seq->accepted = seq->rewind_base = count;
}

}  // namespace kvfolio::model_check
