// SPDX-License-Identifier: Apache-2.0
//
// Decode steps of a small model (8 layers, 16 heads over 4 of K and V, no weights) over 16
// sequences of 1,024 tokens, while other prompts are stored to host memory: each step is followed
// by a poll that stores half of bytes_per_poll. The other side takes the same steps without a poll.
// One thread.

#include <cmath>
#include <numeric>
#include <string>

#include "families.h"
#include "kvfolio/kernels.h"
#include "kvfolio/manager.h"
#include "kvfolio/offload.h"
#include "kvfolio/plan_attention.h"
#include "kvfolio/storage.h"

namespace kvfolio::bench {
namespace {

constexpr std::int32_t kLayers = 8, kHeads = 16, kKvHeads = 4, kDim = 128;
constexpr std::int64_t kRecordBytes = 192 + (256 << 10);

// The engine: `batch` sequences that decode.
class Engine {
 public:
  Engine(std::int32_t batch, std::int32_t length, std::int32_t num_stored)
      : length_(length), num_stored_(num_stored), manager_(make(batch, length, num_stored)) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < batch; ++i) {
      std::iota(tokens.begin(), tokens.end(), 100'000 * (i + 1));
      sequences_.push_back(start(tokens));
    }
    const auto rows = static_cast<std::size_t>(batch);
    q_.resize(rows * kHeads * kDim, 0.5F);
    kv_.resize(rows * kKvHeads * kDim, 0.25F);
    out_.resize(q_.size());
    view_ = take(manager_.storage()->view(GroupId(0)), "view");
    workspace_.resize(static_cast<std::size_t>(
        take(attention_workspace_bytes(view_, kHeads, 2 * length), "workspace")));
  }

  KVCacheManager& manager() { return manager_; }

  // Blocks that wait to be stored: prompts that ended.
  void leave_prompts() {
    std::vector<std::int32_t> tokens(512);
    for (std::int32_t left = num_stored_; left > 0; left -= 32) {
      std::iota(tokens.begin(), tokens.end(), next_prompt_ += 1000);
      require(manager_.close(start(tokens)), "close");
    }
  }

  void step() {
    const Ticket ticket = take(manager_.begin_step(), "begin_step");
    const std::vector<std::int32_t> tokens(sequences_.size(), 7);
    require(manager_.append_each(sequences_, tokens, nullptr), "append_each");
    const StepPlan& plan = *take(manager_.plan(), "plan");
    require(manager_.run_copies(), "run_copies");
    const auto rows = static_cast<std::int32_t>(sequences_.size());
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const RowsView kv = contiguous_rows(kv_.data(), rows, kKvHeads, kDim);
      require(append(view_, layer, kv, kv, plan.groups[0].slot_mapping), "append");
      AttentionArgs args{.cache = view_, .layer = layer};
      args.batch = attention_batch(plan, GroupId(0));
      args.params = attention_params(manager_.spec().groups[0], 1 / std::sqrt(kDim));
      args.q = contiguous_rows(q_.data(), rows, kHeads, kDim);
      args.out = contiguous_rows(out_.data(), rows, kHeads, kDim);
      args.workspace = workspace_;
      require(attend(args), "attend");
    }
    require(manager_.finish(ticket), "finish");
    keep(out_.data());
  }

  // Every round takes the same steps.
  void rewind() {
    for (const SequenceId sequence : sequences_) {
      require(manager_.truncate(sequence, length_), "truncate");
    }
  }

 private:
  static KVCacheManager make(std::int32_t batch, std::int32_t length, std::int32_t num_stored) {
    const CacheSpec spec{.groups = {{.num_layers = kLayers,
                                     .num_kv_heads = kKvHeads,
                                     .head_dim_k = kDim,
                                     .head_dim_v = kDim,
                                     .dtype = DType::kBF16,
                                     .num_blocks = batch * (length / 16 + 4) + 2 * num_stored}}};
    KVCacheManager manager =
        take(KVCacheManager::create(take(KVStorage::create(spec), "storage"),
                                    {.max_sequences = batch + 1, .list_findable = true}),
             "manager");
    require(manager.storage()->fill(std::byte{0x3c}), "fill");
    return manager;
  }
  // The bytes are those that lie there: what the model says does not matter.
  SequenceId start(std::span<const std::int32_t> tokens) {
    const auto opened = take(manager_.open(tokens, {.publish = Publish::kFullBlocks}), "open");
    const Ticket ticket = take(manager_.begin_step(), "begin_step");
    require(manager_.append(opened.sequence,
                            tokens.subspan(static_cast<std::size_t>(opened.cached_tokens))),
            "append");
    require(manager_.run_copies(), "run_copies");
    require(manager_.finish(ticket), "finish");
    return opened.sequence;
  }

  std::int32_t length_, num_stored_, next_prompt_ = 10'000'000;
  KVCacheManager manager_;
  KVView view_;
  std::vector<SequenceId> sequences_;
  std::vector<float> q_, kv_, out_;
  std::vector<std::byte> workspace_;
};

}  // namespace

void measure_beside(Session& session) {
  const std::int32_t steps = session.size(8, 2);
  const OffloadOptions defaults;
  const auto per_poll = static_cast<std::int32_t>(defaults.bytes_per_poll / 2 / kRecordBytes + 1);
  const std::int32_t stored = (steps * per_poll + 31) / 32 * 32;
  Engine engine(session.size(16, 2), session.size(1024, 64), stored);
  OffloadOptions options{.arena_bytes = session.size(1024, 256) * kRecordBytes};
  options.model = {"bench", "1", "1", "bf16", "1", "1"};
  const auto offload = take(Offload::create(engine.manager(), options), "offload");
  std::uint64_t now_us = 0;
  const auto run = [&](bool stores) {
    engine.leave_prompts();
    engine.rewind();
    const std::uint64_t before = offload->counters().stores;
    const double ns = nanoseconds_of([&] {
      for (std::int32_t i = 0; i < steps; ++i) {
        engine.step();
        if (stores) offload->poll(++now_us);
      }
    });
    const auto bytes =
        static_cast<std::int64_t>(offload->counters().stores - before) * kRecordBytes;
    require(!stores || session.quick() || bytes >= steps * (defaults.bytes_per_poll / 2),
            "every step has a full poll beside it, but " + std::to_string(bytes) +
                " bytes were stored");
    while (!offload->idle()) offload->poll(++now_us);
    return ns / steps / 1e6;
  };
  run(true);
  Figure figure{.name = "tiers.decode_beside_stores"};
  figure.facts = {{"sequences", std::int64_t{session.size(16, 2)}},
                  {"tokens", std::int64_t{session.size(1024, 64)}},
                  {"mib_per_poll", defaults.bytes_per_poll >> 21}};
  figure.unit = "ms";
  figure.promise = Promise{1 / 1.10, 1 / 1.05};
  figure.promise_is_ratio = true;
  figure.note = "a step and a poll that stores; ceiling: the step alone; at most 10 % slower";
  session.measure(
      figure, [&] { return run(true); }, [&] { return run(false); });
}

}  // namespace kvfolio::bench
