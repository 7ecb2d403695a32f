// SPDX-License-Identifier: Apache-2.0

// An engine whose cache is in a card's memory: the manager and its plans (DevicePlan), host memory
// below the cache whose copies the device makes beside the steps (Offload over DeviceMemory and
// pinned memory), and decode steps that are captured into a CUDA graph once and replayed. The model
// is a toy, computed on the host; the same engine runs on the CPU, and the tokens are compared.
//
// What a graph keeps: the plan's second half, the kernel that makes the plan of attention from the
// lengths there, and append() and attend() of every layer. In front of each replay go the step's
// arrays (send), to the addresses that they always had; the host plans nothing. Plans are padded to
// the longest sequence and to 1, 2 or 4 sequences, so there is one graph for each of these batch
// sizes, whatever the lengths, and a batch that is larger is refused. What a smaller one leaves out
// is padding: slots of -1, and empty items.
//
// Exits 3 where there is no device, or the library was built without kernels.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kvfolio/cuda.hpp"
#include "kvfolio/kvfolio.hpp"
#include "kvfolio/offload.h"

using namespace kvfolio;
using Tokens = std::vector<std::int32_t>;
using Rows = std::vector<float>;

namespace {

constexpr std::int32_t kLayers = 2, kHeads = 2, kDim = 8, kWidth = kHeads * kDim;
constexpr std::int32_t kBlockSize = 16, kBlocks = 160, kMaxLength = 1200, kSequences = 4;
constexpr std::int32_t kChunk = 128;  // tokens of a step, at most
constexpr std::size_t kAnswer = 40;   // tokens that each request says
const double kScale = 1 / std::sqrt(kDim);

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

// ---- the toy: rows of a layer from tokens alone, the next token from the sum of all layers ----

enum What : std::int32_t { kQ, kK, kV };
void project(const Tokens& tokens, std::int32_t layer, What what, float* rows) {
  for (const std::int32_t t : tokens) {
    for (int i = 0; i < kWidth; ++i) {
      *rows++ = 2 * std::sin(static_cast<float>((t + 3) * (i + 7 * (3 * layer + what) + 1)));
    }
  }
}
std::int32_t next_token(const float* row) {
  std::int32_t best = 0;
  float most = -1e30F;
  for (std::int32_t token = 0; token < 97; ++token) {
    float logit = 0;
    for (int i = 0; i < kWidth; ++i) {
      logit += row[i] * std::sin(static_cast<float>((token + 1) * (i + 2)));
    }
    if (logit > most) std::tie(most, best) = std::pair(logit, token);
  }
  return best;
}
std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// ---- who computes ----

class Compute {
 public:
  virtual ~Compute() = default;
  virtual MemoryResource* memory() = 0;  // where the cache lies
  virtual MemoryResource* arena() = 0;   // of the host, below it
  virtual void* stream() = 0;
  virtual void begin(KVCacheManager& cache) = 0;
  // The open step: rows [tokens, kWidth] of the sum of all layers.
  virtual Rows step(KVCacheManager& cache, const Tokens& tokens) = 0;
};

class OnCpu final : public Compute {
 public:
  MemoryResource* memory() override { return nullptr; }
  MemoryResource* arena() override { return nullptr; }
  void* stream() override { return nullptr; }
  void begin(KVCacheManager&) override {}
  Rows step(KVCacheManager& cache, const Tokens& tokens) override {
    const StepPlan& plan = *check(cache.plan());
    const GroupPlan& g = plan.groups[0];
    check(cache.storage()->copy_blocks(GroupId(0), g.copy_src, g.copy_dst));
    const KVView view = check(cache.storage()->view(GroupId(0)));
    std::vector<std::byte> workspace(
        static_cast<std::size_t>(check(attention_workspace_bytes(view, kHeads, kMaxLength))));
    const std::size_t size = tokens.size() * kWidth;
    Rows q(size), k(size), v(size), out(size), sum(size);
    const auto rows_of = [&](Rows& rows) {
      return contiguous_rows(rows.data(), plan.num_tokens, kHeads, kDim);
    };
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      project(tokens, layer, kQ, q.data());
      project(tokens, layer, kK, k.data());
      project(tokens, layer, kV, v.data());
      check(append(view, layer, rows_of(k), rows_of(v), g.slot_mapping));
      AttentionArgs args{.cache = view, .layer = layer};
      args.batch = attention_batch(plan, GroupId(0));
      args.params = attention_params(cache.spec().groups[0], kScale);
      args.q = rows_of(q);
      args.out = rows_of(out);
      args.workspace = workspace;
      check(attend(args));
      for (std::size_t i = 0; i < size; ++i) sum[i] += out[i];
    }
    return sum;
  }
};

class OnDevice final : public Compute {
 public:
  OnDevice(std::shared_ptr<cuda::Device> device, std::shared_ptr<cuda::Kernels> kernels)
      : device_(std::move(device)),
        kernels_(std::move(kernels)),
        memory_(check(cuda::DeviceMemory::create(device_, {.kernels = kernels_}))),
        pinned_(check(cuda::PinnedHostMemory::create(device_))),
        stream_(check(cuda::Stream::create(device_))),
        image_of_host_(check(cuda::PinnedMemory::allocate(device_, kImageBytes))),
        // Q, K, V and the result of each layer, the plan of attention, and its workspace.
        arrays_(check(cuda::DeviceBuffer::allocate(*memory_, kArrayBytes))) {}

  MemoryResource* memory() override { return memory_.get(); }
  MemoryResource* arena() override { return pinned_.get(); }
  void* stream() override { return stream_.handle(); }
  void begin(KVCacheManager& cache) override {
    const cuda::DevicePlanGroup group{.block_size = kBlockSize,
                                      .table_stride = kMaxLength / kBlockSize};
    plan_ = check(cuda::DevicePlan::create(kernels_, {.max_sequences = kSequences,
                                                      .max_tokens = kChunk,
                                                      .num_rows = cache.num_rows(),
                                                      .groups = {&group, 1}}));
  }

  Rows step(KVCacheManager& cache, const Tokens& tokens) override {
    kvfolio::PlanOptions changes{.block_tables = false, .changed_entries = true};
    const StepPlan* plan = check(cache.plan(changes));
    changes.block_tables = plan_->needs_block_tables(*plan);
    if (changes.block_tables) plan = check(cache.plan(changes));
    const KVView view = check(cache.storage()->view(GroupId(0)));
    const GroupPlan& g = plan->groups[0];
    check(cuda::copy_blocks(*kernels_, view, g.copy_src, g.copy_dst, stream()));
    check(plan_->send(*plan, stream()));
    put_rows(tokens);

    const cuda::DeviceAttention call = attention(view, *plan, cache.spec().groups[0]);
    const bool decodes = tokens.size() == plan->sequences.size();
    if (decodes) {
      decode(call);
    } else {
      const cuda::AttendPlan cut = check(cuda::plan_attend(*kernels_, call));  // for all layers
      if (cut.workspace_bytes() > kWorkspaceBytes) std::exit(1);
      check(cuda::upload(*kernels_, cut, {image_of_host_.data(), kImageBytes},
                         arrays_.data() + kImageAt, arrays_.data() + kWorkspaceAt, stream()));
      check(layers(call, cut, call.q.num_tokens));
    }
    check(stream_.synchronize());
    return rows(tokens.size());
  }

  [[nodiscard]] std::size_t num_graphs() const { return graphs_.size(); }
  int num_replays = 0;

 private:
  static constexpr std::int64_t kRowsBytes = std::int64_t{4} * kChunk * kWidth;
  static constexpr std::int64_t kImageAt = 4 * kLayers * kRowsBytes;
  static constexpr std::int64_t kImageBytes = 1 << 16;
  static constexpr std::int64_t kWorkspaceAt = kImageAt + kImageBytes;
  static constexpr std::int64_t kWorkspaceBytes = 1 << 20;
  static constexpr std::int64_t kArrayBytes = kWorkspaceAt + kWorkspaceBytes;

  // [kChunk, kWidth] of a layer, what: 3 is the result.
  [[nodiscard]] std::byte* rows_at(std::int32_t layer, std::int32_t what) const {
    return arrays_.data() + (4 * layer + what) * kRowsBytes;
  }
  [[nodiscard]] RowsView view_of(std::int32_t layer, std::int32_t what, std::int32_t tokens) const {
    return contiguous_rows(rows_at(layer, what), tokens, kHeads, kDim, DType::kF32);
  }
  // What a model would have computed there.
  void put_rows(const Tokens& tokens) {
    Rows rows(3 * kLayers * tokens.size() * kWidth);
    std::vector<CopyRun> runs;
    float* to = rows.data();
    const std::size_t size = tokens.size() * kWidth;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (const What what : {kQ, kK, kV}) {
        project(tokens, layer, what, to);
        runs.push_back({rows_at(layer, what), reinterpret_cast<const std::byte*>(to),
                        static_cast<std::int64_t>(4 * size)});
        to += size;
      }
    }
    check(memory_->copy_in(runs) ? Status() : memory_->take_error());
  }
  [[nodiscard]] Rows rows(std::size_t tokens) {
    const std::size_t size = tokens * kWidth;
    Rows layers(kLayers * size), sum(size);
    std::vector<CopyRun> runs;
    runs.reserve(kLayers);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      runs.push_back({reinterpret_cast<std::byte*>(layers.data() + at(layer) * size),
                      rows_at(layer, 3), static_cast<std::int64_t>(4 * size)});
    }
    check(memory_->copy_out(runs) ? Status() : memory_->take_error());
    for (std::size_t i = 0; i < layers.size(); ++i) sum[i % size] += layers[i];
    return sum;
  }

  // One layer of the step: lengths of the host's plan, arrays that lie on the device.
  [[nodiscard]] cuda::DeviceAttention attention(const KVView& view, const StepPlan& plan,
                                                const GroupSpec& group) const {
    cuda::DeviceAttention call = plan_->attention(plan, GroupId(0));
    call.cache = view;
    call.params = attention_params(group, kScale);
    call.q = view_of(0, kQ, plan.num_tokens);
    call.out = view_of(0, 3, plan.num_tokens);
    return call;
  }
  // One graph for each batch size of 1, 2, 4, captured when it first comes.
  struct Captured {
    std::optional<cuda::AttendPlan> plan;
    cuda::Graph graph;
  };
  void decode(const cuda::DeviceAttention& call) {
    std::int32_t size = 1;
    while (size < call.q.num_tokens) size *= 2;
    Captured& captured = graphs_[size];
    if (!captured.plan) {
      captured.plan = check(cuda::plan_attend(
          *kernels_, call, {.max_sequences = size, .max_sequence_tokens = kMaxLength}));
      if (captured.plan->workspace_bytes() > kWorkspaceBytes ||
          captured.plan->image().size() > kImageBytes) {
        std::exit(1);
      }
      captured.graph =
          check(cuda::Graph::capture(device_, stream(), captured.plan->shape(), [&]() -> Status {
            KVFOLIO_RETURN_IF_ERROR(cuda::plan_on_device(
                *kernels_, call, *captured.plan, arrays_.data() + kImageAt,
                arrays_.data() + kWorkspaceAt, stream(), plan_->arrays().counts));
            return layers(call, *captured.plan, size);
          }));
    } else {
      ++num_replays;
    }
    check(captured.plan->check(call.batch));  // else the kernel finds out, and nothing is computed
    check(captured.graph.launch(stream(), captured.plan->shape()));
    plan_->applied();  // in the graph
  }
  // What is captured, or runs as it is; the batch has `rows` rows, padding among them.
  Status layers(cuda::DeviceAttention call, const cuda::AttendPlan& cut, std::int32_t rows) {
    KVFOLIO_RETURN_IF_ERROR(plan_->apply(stream()));
    const std::int32_t n = call.q.num_tokens;
    const std::span<const std::int32_t> slots{plan_->group(GroupId(0)).slot_mapping, at(rows)};
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      KVFOLIO_RETURN_IF_ERROR(cuda::append(*kernels_, call.cache, layer, view_of(layer, kK, rows),
                                           view_of(layer, kV, rows), slots, stream()));
      call.layer = layer;
      call.q = view_of(layer, kQ, n);
      call.out = view_of(layer, 3, n);
      KVFOLIO_RETURN_IF_ERROR(cuda::attend(*kernels_, call, cut, arrays_.data() + kImageAt,
                                           arrays_.data() + kWorkspaceAt, stream()));
    }
    return {};
  }

  std::shared_ptr<cuda::Device> device_;
  std::shared_ptr<cuda::Kernels> kernels_;
  std::unique_ptr<cuda::DeviceMemory> memory_;
  std::unique_ptr<cuda::PinnedHostMemory> pinned_;
  cuda::Stream stream_;
  cuda::PinnedMemory image_of_host_;
  cuda::DeviceBuffer arrays_;
  std::unique_ptr<cuda::DevicePlan> plan_;
  std::map<std::int32_t, Captured> graphs_;  // batch size
};

// ---- the engine ----

struct Request {
  SequenceId sequence;
  Tokens text;  // the prompt, and behind it what was said
  std::size_t prompt = text.size();
  bool pending = false;  // more of its prompt is on its way from host memory

  [[nodiscard]] Tokens said() const {
    return {text.begin() + static_cast<std::ptrdiff_t>(prompt), text.end()};
  }
};

class Engine {
 public:
  explicit Engine(Compute& compute) : compute_(compute), cache_(make_cache(compute)) {
    compute.begin(cache_);
    OffloadOptions options{.arena_bytes = 4 << 20};
    options.model = {"toy", "1", "ids", "f32", "none", "cuda example"};
    options.copy_timeout_us = 60'000'000;
    options.resource = compute.arena();
    options.stream = compute.stream();
    offload_ = check(Offload::create(cache_, options));
  }

  Request open(const Tokens& prompt) {
    const OffloadOpened opened = check(offload_->open(prompt));
    return {.sequence = opened.sequence, .text = prompt, .pending = opened.pending};
  }
  // Until each has said all that it says.
  void run(const std::vector<Request*>& requests) {
    const auto is_done = [](const Request* r) { return r->said().size() >= kAnswer; };
    for (;;) {
      poll(requests);
      std::vector<Request*> ready;
      bool all_done = true;
      for (Request* r : requests) {
        if (!is_done(r)) all_done = false;
        if (!is_done(r) && !r->pending) ready.push_back(r);
      }
      if (all_done) break;
      if (!ready.empty()) step(ready);
    }
    for (const Request* r : requests) check(cache_.close(r->sequence));
  }
  // Host memory gets what the cache has, and the cache forgets it.
  void empty_cache() {
    while (!offload_->idle()) poll({});
    check(cache_.evict(GroupId(0), kBlocks));
  }
  [[nodiscard]] std::uint64_t num_loads() const { return offload_->counters().loads; }

 private:
  static KVCacheManager make_cache(Compute& compute) {
    GroupSpec layers{.num_layers = kLayers, .num_kv_heads = kHeads};
    layers.head_dim_k = layers.head_dim_v = kDim;
    layers.block_size = kBlockSize;
    layers.num_blocks = kBlocks;
    ManagerOptions options{.max_sequences = kSequences, .list_findable = true};
    options.copies_by_host = true;  // by the step, in its stream
    return check(KVCacheManager::create(
        check(KVStorage::create(CacheSpec{{layers}}, compute.memory())), options));
  }
  void poll(const std::vector<Request*>& requests) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
    for (const SequenceReady& ready : offload_->poll(static_cast<std::uint64_t>(us))) {
      for (Request* r : requests) {
        if (r->sequence == ready.sequence) r->pending = false;
      }
    }
  }
  // A chunk of each prompt, or the token that was said last.
  void step(const std::vector<Request*>& requests) {
    const Ticket ticket = check(cache_.begin_step());
    const auto share = kChunk / static_cast<std::int32_t>(requests.size());
    Tokens tokens;
    std::vector<bool> speaks;
    std::vector<std::size_t> last;
    for (const Request* r : requests) {
      const std::int32_t begin = check(cache_.info(r->sequence)).length;
      const std::int32_t n = check(cache_.append_prompt(r->sequence, r->text, share));
      tokens.insert(tokens.end(), r->text.begin() + begin, r->text.begin() + begin + n);
      speaks.push_back(at(begin + n) == r->text.size());
      last.push_back(tokens.size() - 1);
    }
    const Rows rows = compute_.step(cache_, tokens);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (speaks[i]) requests[i]->text.push_back(next_token(&rows[last[i] * kWidth]));
    }
    check(cache_.finish(ticket));
  }

  Compute& compute_;
  KVCacheManager cache_;
  std::unique_ptr<Offload> offload_;
};

// A long prompt beside a short one; then the long one again, from host memory.
std::vector<Tokens> answers(Engine& engine) {
  Tokens prompt;
  for (std::int32_t i = 0; i < 1000; ++i) prompt.push_back((i * i + 7 * i) % 89);
  Request first = engine.open(prompt), other = engine.open({5, 8, 13, 21, 34, 55});
  engine.run({&first, &other});
  engine.empty_cache();
  Request again = engine.open(prompt);
  engine.run({&again});
  return {first.said(), other.said(), again.said()};
}

}  // namespace

int main() {
  auto device = cuda::Device::open(0);
  if (!device) return std::printf("%s\n", device.error().message().c_str()), 3;
  auto kernels = cuda::Kernels::load(*device);
  if (!kernels) return std::printf("%s\n", kernels.error().message().c_str()), 3;

  OnCpu cpu;
  Engine on_cpu(cpu);
  OnDevice card(*device, *kernels);
  Engine on_device(card);
  const std::vector<Tokens> want = answers(on_cpu), got = answers(on_device);

  std::printf("tokens of the CPU: %s, and again from host memory: %s\n", got == want ? "yes" : "no",
              got[0] == got[2] ? "yes" : "no");
  std::printf("%zu graphs, %d replays, %llu blocks from host memory\n", card.num_graphs(),
              card.num_replays, static_cast<unsigned long long>(on_device.num_loads()));
  const bool used = card.num_graphs() == 2 && card.num_replays > 50 && on_device.num_loads() > 0;
  return got == want && got[0] == got[2] && used ? 0 : 1;
}
