// SPDX-License-Identifier: Apache-2.0

// A scheduler in little: requests wait for admit(), two steps are in flight, so the host plans a
// step before it knows its tokens, and the pool is too small, so some are preempted and go on
// later. The engine lends a tensor for each layer. A token is a hash of all bits of its attention,
// so the texts are those of a run of one request at a time only if these bits are, too.

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include "kvfolio/kvfolio.hpp"

using namespace kvfolio;
using Tokens = std::vector<std::int32_t>;
using Floats = std::vector<float>;

namespace {

constexpr std::int32_t kHeads = 2, kDim = 8, kWidth = kHeads * kDim, kBlockSize = 4;
constexpr std::int32_t kFed = 36;  // tokens of each text that are fed; in the end it has one more

void check(const Status& status) {  // the * of a Result does the same
  if (status) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// Lends tensors [K or V, block, token, head, dim], one for each layer. Each layer is a group.
KVCacheManager create(std::vector<Floats>& tensors, bool prefix_cache) {
  GroupSpec full{.num_kv_heads = kHeads, .head_dim_k = kDim, .head_dim_v = kDim};
  full.block_size = kBlockSize;
  full.num_blocks = static_cast<std::int32_t>(tensors[0].size()) / (2 * kBlockSize * kWidth);
  GroupSpec windowed = full;
  windowed.kind = AttentionKind::kSlidingWindow;
  windowed.window = 6;
  BorrowedLayer layers[2];
  BorrowedGroup lent[2];
  for (std::size_t l = 0; l < 2; ++l) {
    lent[l].k_bytes = lent[l].v_bytes = std::ssize(tensors[l]) / 2 * 4;
    lent[l].k_strides = lent[l].v_strides = {0, 4 * kBlockSize * kWidth, 4 * kDim, 4 * kWidth};
    layers[l].k = reinterpret_cast<std::byte*>(tensors[l].data());
    layers[l].v = layers[l].k + lent[l].k_bytes;
    lent[l].layers = {&layers[l], 1};
  }
  auto storage = KVStorage::borrow({{full, windowed}}, lent);
  return *KVCacheManager::create(*std::move(storage),
                                 {.prefix_cache = prefix_cache, .copies_by_host = true});
}

// Completes the texts, which are prompts, and returns what was counted.
Counters run(std::vector<Tokens>& texts, std::size_t at_once, std::size_t max_steps, int blocks) {
  std::vector<Floats> tensors(2, Floats(at(2 * blocks * kBlockSize * kWidth)));
  KVCacheManager cache = create(tensors, /*prefix_cache=*/at_once > 1);
  std::deque<std::size_t> waiting;
  for (std::size_t i = 0; i < texts.size(); ++i) waiting.push_back(i);
  std::vector<SequenceId> running;
  // Committed steps and their inputs; -1, in the first rows, is what the step before samples.
  std::deque<std::pair<const StepPlan*, Tokens>> steps;
  const auto text_of = [&](SequenceId id) -> Tokens& { return texts[*cache.info(id)->caller_id]; };

  // Ends the oldest step. The device is lazy here: it computes a step when the host waits for it.
  const auto retire = [&] {
    auto [plan, tokens] = std::move(steps.front());
    steps.pop_front();
    const std::int32_t num_tokens = plan->num_tokens;
    std::size_t unnamed = 0;  // sequences
    for (; unnamed < plan->rows.size() && tokens[unnamed] < 0; ++unnamed) {
      tokens[unnamed] = text_of(plan->sequences[unnamed]).back();
    }
    Floats x(tokens.size() * kWidth), q(x), k(x), v(x);
    const auto rows = [=](auto& f) { return contiguous_rows(f.data(), num_tokens, kHeads, kDim); };
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(tokens[i / kWidth] % 997);
    for (const std::int32_t g : {1, 0}) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        v[i] = std::sin(x[i] + static_cast<float>(i % kWidth)), q[i] = 3 * v[i], k[i] = v[i] * v[i];
      }
      const GroupPlan& group = plan->groups[at(g)];
      const KVView view = *cache.storage()->view(GroupId(g), 0);
      check(copy_blocks(view, group.copy_src, group.copy_dst));  // before anything is written
      check(append(view, 0, rows(k), rows(v), group.slot_mapping));
      std::vector<std::byte> workspace(at(*attention_workspace_bytes(view, kHeads, kFed)));
      AttentionArgs args{.cache = view, .batch = attention_batch(*plan, GroupId(g)), .q = rows(q)};
      args.params = attention_params(cache.spec().groups[at(g)], 1);
      args.out = rows(x), args.workspace = workspace;
      check(attend(args));
    }
    check(cache.complete(plan->ticket));  // the arrays stay until the next plan()
    for (std::size_t i = 0; i < plan->sequences.size(); ++i) {
      const SequenceId id = plan->sequences[i];
      Tokens& text = text_of(id);
      if (i < unnamed) check(cache.set_tokens(id, {&text.back(), 1}));
      std::uint32_t hash = 0;
      const std::span<float> row(&x[at(plan->query_start[i + 1] - 1) * kWidth], kWidth);
      for (const float f : row) hash = hash * 0x01000193 + std::bit_cast<std::uint32_t>(f);
      text.push_back(static_cast<std::int32_t>(hash >> 1));
      if (text.size() > kFed) check(cache.close(id)), std::erase(running, id);
    }
  };

  while (!waiting.empty() || !running.empty()) {
    if (steps.size() == max_steps) retire();
    const Ticket ticket = *cache.begin_step();
    Tokens inputs;
    std::vector<SequenceId> ids = running;  // each feeds a token that the host does not know yet
    std::erase_if(ids, [&](SequenceId id) { return cache.info(id)->length == kFed; });
    bool room = true;
    while (!ids.empty()) {
      std::int32_t n = 0;
      const Status status = cache.append_unnamed_each(ids, &n);
      inputs.insert(inputs.end(), at(n), -1);
      ids.erase(ids.begin(), ids.begin() + n);
      if (status) break;
      if (status.shortage() == nullptr) check(status);
      room = false;  // no request starts in this step
      if (steps.empty()) {
        if (cache.counters().sequences_preempted == 0) std::puts(status.message().c_str());
        const SequenceId victim = *cache.select_victim(VictimPolicy::kLowestPriority);
        waiting.push_front(*cache.info(victim)->caller_id);
        check(cache.preempt(victim));
        std::erase(running, victim), std::erase(ids, victim);
      }
      while (!steps.empty()) retire();  // gives room, and the whole text of what must stop
    }
    while (room && !waiting.empty() && running.size() < at_once) {
      const Tokens& text = texts[waiting.front()];
      OpenOptions options{.caller_id = waiting.front(), .late_names = true};
      options.priority = -static_cast<std::int32_t>(waiting.front());
      const Result<Admission> admission = cache.admit(text, options, 2);
      if (!admission && running.empty()) check(admission.error());  // it will never have room
      if (!admission) break;
      const auto [id, cached, soon] = *cache.open(text, options);
      if (options.priority == 0) check(cache.reserve(id, kFed - cached));  // is never short
      check(cache.append(id, std::span(text).subspan(at(cached))));
      inputs.insert(inputs.end(), text.begin() + cached, text.end());
      running.push_back(id);
      waiting.pop_front();
    }
    if (!inputs.empty()) {
      steps.emplace_back(*cache.plan(), inputs);
      check(cache.commit(ticket));
    } else {
      check(cache.drop(ticket));
      if (!steps.empty()) retire();
    }
  }
  return cache.counters();
}

}  // namespace

int main() {
  std::vector<Tokens> alone(6, Tokens(10, 7));  // the same beginning, then tokens of their own
  for (std::size_t i = 0; i < 6; ++i) alone[i].resize(13 + i, static_cast<std::int32_t>(100 + i));
  std::vector<Tokens> batch = alone;
  run(alone, /*at_once=*/1, /*max_steps=*/1, /*blocks=*/64);
  const Counters c = run(batch, /*at_once=*/4, /*max_steps=*/2, /*blocks=*/16);
  const auto preempted = static_cast<int>(c.sequences_preempted);
  const auto found = static_cast<int>(c.tokens_reused), copied = static_cast<int>(c.block_copies);
  std::printf("%d preempted, %d tokens found, %d blocks copied\n", preempted, found, copied);
  std::printf("the texts of one at a time: %s\n", batch == alone ? "yes" : "no");
  return batch == alone && preempted > 0 && found > 0 && copied > 0 ? 0 : 1;
}
