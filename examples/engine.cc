// SPDX-License-Identifier: Apache-2.0

// A whole engine in little: the manager, memory for the bytes, and each step's arrays through
// append and attend, chunks of prompts and decode in one batch; and host memory below the cache,
// which brings a prompt back while others are computed. The model is a toy; what surrounds it is
// not. What it does between a scheduler and the cache is of docs/recipes.md: admission by chunks,
// append_prompt() for prompts and decodes alike, cancel().

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kvfolio/kernels.h"
#include "kvfolio/manager.h"
#include "kvfolio/offload.h"
#include "kvfolio/plan_attention.h"
#include "kvfolio/storage.h"

using namespace kvfolio;

namespace {

constexpr std::int32_t kLayers = 2, kHeads = 2, kDim = 8, kWidth = kHeads * kDim, kMaxLength = 64;
constexpr std::int32_t kChunk = 4;  // tokens of a request in a step, at most
constexpr std::size_t kAnswer = 8;  // tokens that each says

// An engine would answer its client; an example says what was wrong and stops.
void check(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <typename T>
T check(Result<T> result) {
  if (!result) check(result.error());
  return *std::move(result);
}
RowsView rows_of(std::vector<float>& data) {
  const auto tokens = static_cast<std::int32_t>(data.size() / kWidth);
  return contiguous_rows(data.data(), tokens, kHeads, kDim);
}
// The toy's projections: a row for each token, from the token and `what` (Q, K or V of a layer).
std::vector<float> project(const std::vector<std::int32_t>& tokens, std::int32_t what) {
  std::vector<float> rows;
  for (const std::int32_t t : tokens) {
    for (int i = 0; i < kWidth; ++i) {
      rows.push_back(std::sin(static_cast<float>((t + 3) * (i + 7 * what + 1))));
    }
  }
  return rows;
}

struct Request {
  SequenceId sequence;
  std::vector<std::int32_t> text;  // the prompt, and behind it what was said
  std::size_t prompt = text.size();
  bool pending = false;  // more of its prompt is on its way from host memory

  [[nodiscard]] std::vector<std::int32_t> said() const {
    return {text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end()};
  }
};

// Asks first: nothing is kept by the question, so an engine asks each round for all that wait.
Request open(KVCacheManager& cache, Offload& offload, const std::vector<std::int32_t>& prompt) {
  const Result<Admission> room = cache.admit(prompt, {}, kAnswer, {.most_per_step = kChunk});
  check(room ? Status() : room.error());  // short of blocks: wait, unless it is never()
  const OffloadOpened opened = check(offload.open(prompt));
  std::printf("%d of %zu tokens found%s\n", opened.cached_tokens, prompt.size(),
              opened.pending ? ", host memory has more" : "");
  return {.sequence = opened.sequence, .text = prompt, .pending = opened.pending};
}

// Once for each step: whose load has ended, and how far it came. It moves a bounded number of
// bytes, so a step beside it is not much longer.
void poll(Offload& offload, const std::vector<Request*>& requests) {
  static std::uint64_t now_us = 0;  // an engine asks its clock
  for (const SequenceReady& ready : offload.poll(now_us += 1000)) {
    for (Request* r : requests) {
      if (r->sequence == ready.sequence) r->pending = false;
    }
  }
}

// One step for all requests that wait for nothing: a chunk of the prompt, or the token that was
// said last. append_prompt() knows what the sequence has: found, loaded or computed.
void step(KVCacheManager& cache, std::vector<Request*> requests) {
  std::erase_if(requests, [](const Request* r) { return r->pending; });
  if (requests.empty()) return;
  const Ticket ticket = check(cache.begin_step());
  std::vector<std::int32_t> tokens;
  for (const Request* r : requests) {
    const auto begin = r->text.begin() + check(cache.info(r->sequence)).length;
    const std::int32_t n = check(cache.append_prompt(r->sequence, r->text, kChunk));
    tokens.insert(tokens.end(), begin, begin + n);
  }
  const StepPlan& plan = *check(cache.plan());
  check(cache.run_copies());  // before anything of this step is written

  const KVView view = check(cache.storage()->view(GroupId(0)));
  std::vector<std::byte> workspace(
      static_cast<std::size_t>(check(attention_workspace_bytes(view, kHeads, kMaxLength))));
  std::vector<float> out(tokens.size() * kWidth);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<float> k = project(tokens, 3 * layer), v = project(tokens, 3 * layer + 1);
    std::vector<float> q = project(tokens, 3 * layer + 2);
    check(append(view, layer, rows_of(k), rows_of(v), plan.groups[0].slot_mapping));
    AttentionArgs args{.cache = view, .layer = layer};
    args.batch = attention_batch(plan, GroupId(0));
    args.params = attention_params(cache.spec().groups[0], 1 / std::sqrt(kDim));
    args.q = rows_of(q);
    args.out = rows_of(out);
    args.workspace = workspace;
    check(attend(args));
  }

  for (std::size_t i = 0; i < requests.size(); ++i) {  // the last row of each says the next token
    if (static_cast<std::size_t>(plan.kv_lens[i]) < requests[i]->text.size()) continue;
    const std::size_t row = static_cast<std::size_t>(plan.query_start[i + 1] - 1);
    const float sum = out[row * kWidth] + out[row * kWidth + 1];
    requests[i]->text.push_back(static_cast<std::int32_t>(std::fabs(sum) * 1e6F) % 97);
  }
  check(cache.finish(ticket));  // commit and complete; a later step reuses the plan's arrays
}

}  // namespace

int main() {
  GroupSpec layers{.num_layers = kLayers, .num_kv_heads = kHeads};
  layers.head_dim_k = layers.head_dim_v = kDim;
  layers.block_size = 4;
  layers.num_blocks = 64;
  KVCacheManager cache = check(KVCacheManager::create(check(KVStorage::create(CacheSpec{{layers}})),
                                                      {.list_findable = true}));
  OffloadOptions options{.arena_bytes = 1 << 20, .bytes_per_poll = 1};  // a block in each poll
  options.model = {"toy", "1", "ids", "f32", "none", "example"};        // what decides the bytes
  const auto offload = check(Offload::create(cache, options));

  const std::vector<std::int32_t> prompt = {5, 8, 13, 21, 34, 55, 2, 3, 7};
  Request first = open(cache, *offload, prompt);
  step(cache, {&first});  // the first chunk
  Request other = open(cache, *offload, {5, 8, 13, 21, 34, 1, 1});
  while (first.said().size() < kAnswer) {
    poll(*offload, {&first, &other});
    step(cache, {&first, &other});  // decode, beside a prefill
  }
  check(cache.close(first.sequence));
  check(cache.cancel(other.sequence));  // its client has gone: out of the open step, too

  Request again = open(cache, *offload, prompt);  // found whole: its last token is computed
  while (again.said().size() < kAnswer) step(cache, {&again});
  check(cache.close(again.sequence));

  while (!offload->idle()) poll(*offload, {});  // host memory has what the cache has
  check(cache.evict(GroupId(0), layers.num_blocks));
  Request cold = open(cache, *offload, prompt);  // its blocks come back, two polls long
  Request fresh = open(cache, *offload, {40, 41, 42});
  while (cold.said().size() < kAnswer) {
    poll(*offload, {&cold, &fresh});
    step(cache, {&cold, &fresh});  // those that do not wait go on
  }
  const std::size_t ahead = fresh.said().size() - cold.said().size();
  std::printf("tokens that the fresh prompt was ahead: %zu\n", ahead);

  const bool same = first.said() == again.said() && first.said() == cold.said();
  std::printf("the same tokens: %s\n", same ? "yes" : "no");
  const bool waited = ahead > 0 && offload->counters().loads > 0;
  return same && waited ? 0 : 1;
}
