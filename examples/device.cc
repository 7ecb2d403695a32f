// SPDX-License-Identifier: Apache-2.0

// An engine with a GPU, in little. A thread stands for the GPU and its one stream. The engine holds
// a tensor of K and one of V for each layer and lends them to the library. Two steps are in flight,
// so the host plans a step before it knows the tokens that the step feeds: the device keeps them
// (append_unnamed_each), and the host names them one step later (set_tokens_each). Once the device
// fails, and everything goes on from what is still cached.

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "kvfolio/kvfolio.hpp"

using namespace kvfolio;
using Tokens = std::vector<std::int32_t>;

namespace {

constexpr std::int32_t kLayers = 3, kBlocks = 32, kBlockSize = 4, kPages = 16, kNew = 20;

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

// The toy model: K and V of a token, and the next token from the sum of K * V over all layers.
float k_of(std::int32_t token, std::int32_t layer) {
  return static_cast<float>(token % 13 + layer);
}
float v_of(std::int32_t position) { return static_cast<float>(position * position % 31 + 1); }
std::int32_t next_token(double sum) { return static_cast<std::int32_t>(sum) % 997; }

// What the model says without any cache.
Tokens expected(Tokens tokens) {
  for (std::int32_t n = 0; n < kNew; ++n) {
    double sum = 0;
    for (std::int32_t p = 0; p < static_cast<std::int32_t>(tokens.size()); ++p) {
      for (std::int32_t l = 0; l < kLayers; ++l) {
        sum += static_cast<double>(k_of(tokens[static_cast<std::size_t>(p)], l) * v_of(p));
      }
    }
    tokens.push_back(next_token(sum));
  }
  return tokens;
}

// The arrays of a committed step stay in place until it is complete, so spans are enough here; a
// GPU would copy them with the launch. inputs[t] is a token, or -1: the row's last sampled token.
struct Job {
  StepPlan plan;
  GroupPlan group;
  Tokens inputs;
  bool fails = false;
};

// The GPU. Memory of this kind is its own: no kernel of the CPU touches it.
class Device final : public MemoryResource {
 public:
  [[nodiscard]] MemoryKind kind() const noexcept override { return MemoryKind::kDevice; }
  Result<std::byte*> allocate(std::int64_t) override { return Status(ErrorCode::kUnsupported, ""); }
  void deallocate(std::byte*, std::int64_t) noexcept override {}
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    std::memcpy(dst, src, static_cast<std::size_t>(bytes));  // on the stream: run() calls it
    return {};
  }

  // Jobs run one after the other behind the caller's back. The future has the sampled tokens, or
  // nothing if the device has failed.
  std::future<std::optional<Tokens>> launch(Job job) {
    std::packaged_task<std::optional<Tokens>()> task(
        [this, job = std::move(job)] { return run(job); });
    std::future<std::optional<Tokens>> done = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      stream_.push_back(std::move(task));
    }
    wake_.notify_one();
    return done;
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  KVStorage* storage = nullptr;  // set before the first launch, as all that follows
  std::vector<std::int32_t> table = std::vector<std::int32_t>(64 * kPages, -1);  // [row, page]
  std::vector<std::int32_t> sampled = std::vector<std::int32_t>(64, -1);         // by row
  bool failed = false;  // of the host while no job is in the stream
  int mismatches = 0;   // the same

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || !stream_.empty(); });
      if (stream_.empty()) return;
      std::packaged_task<std::optional<Tokens>()> task = std::move(stream_.front());
      stream_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::optional<Tokens> run(const Job& job) {
    if (failed || job.fails) {
      failed = true;
      return std::nullopt;
    }
    const GroupPlan& g = job.group;
    check(storage->copy_blocks(GroupId(0), g.copy_src, g.copy_dst));  // before anything is written
    for (std::size_t i = 0; i < g.changed_rows.size(); ++i) {
      table[at(g.changed_rows[i] * kPages + g.changed_columns[i])] = g.changed_blocks[i];
    }
    Tokens said;
    for (std::size_t i = 0; i < job.plan.sequences.size(); ++i) said.push_back(run_row(job, i));
    for (std::size_t i = 0; i < said.size(); ++i) sampled[at(job.plan.rows[i])] = said[i];
    return said;
  }

  // Writes K and V of one sequence's new tokens and attends over its pages.
  std::int32_t run_row(const Job& job, std::size_t i) {
    const std::int32_t row = job.plan.rows[i];
    const std::int32_t end = job.plan.query_start[i + 1];
    for (std::int32_t t = job.plan.query_start[i]; t < end; ++t) {
      const std::int32_t slot = job.group.slot_mapping[at(t)];
      if (slot < 0) continue;  // its K and V are there
      const std::int32_t token = job.inputs[at(t)] < 0 ? sampled[at(row)] : job.inputs[at(t)];
      for (std::int32_t l = 0; l < kLayers; ++l) {
        element(l, slot, false) = k_of(token, l);
        element(l, slot, true) = v_of(job.plan.kv_lens[i] - end + t);
      }
    }
    double sum = 0;
    const std::int32_t first = job.group.kv_indptr[i], last = job.group.kv_indptr[i + 1] - 1;
    for (std::int32_t page = first; page <= last; ++page) {
      const std::int32_t block = job.group.kv_indices[at(page)];
      mismatches += table[at(row * kPages + page - first)] != block;  // two ways to say one thing
      const std::int32_t tokens = page < last ? kBlockSize : job.group.kv_last_page_len[i];
      for (std::int32_t slot = block * kBlockSize; slot < block * kBlockSize + tokens; ++slot) {
        for (std::int32_t l = 0; l < kLayers; ++l) {
          sum += static_cast<double>(element(l, slot, false) * element(l, slot, true));
        }
      }
    }
    return next_token(sum);
  }

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] float& element(std::int32_t layer, std::int32_t slot, bool v) const {
    const KVView view = *storage->view(GroupId(0), layer);
    const std::int32_t block = slot / kBlockSize, offset = slot % kBlockSize;
    return *reinterpret_cast<float*>(v ? view.v_at(0, block, 0, offset)
                                       : view.k_at(0, block, 0, offset));
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<std::optional<Tokens>()>> stream_;  // guarded by mutex_
  bool stop_ = false;                                               // guarded by mutex_
  std::thread thread_{[this] { serve(); }};
};

// The host.
class Engine {
 public:
  Engine(KVCacheManager& cache, Device& device) : cache_(cache), device_(device) {}

  // Answers the prompts; fail_at: the job that fails, counted from 1.
  std::vector<Tokens> run(const std::vector<Tokens>& prompts, int fail_at) {
    texts_ = prompts;
    start();
    while (!in_flight_.empty()) {
      const std::size_t ends = texts_[0].size() + in_flight_.size();
      if (in_flight_.size() < 2 && ends < prompts[0].size() + kNew) {
        launch(Tokens(ids_.size(), -1), ++num_jobs_ == fail_at);
      } else if (!retire()) {
        recover();
      }
    }
    for (const SequenceId id : ids_) check(cache_.close(id));
    return texts_;
  }
  int num_found = 0;  // tokens of all opens

 private:
  // Opens every text that is known so far and computes what the cache does not have of it.
  void start() {
    ids_.clear();
    Tokens inputs;
    const Ticket step = check(cache_.begin_step());
    for (const Tokens& text : texts_) {
      const Opened opened = check(cache_.open(text));
      num_found += opened.cached_tokens;
      const Tokens rest(text.begin() + opened.cached_tokens, text.end());
      check(cache_.append(opened.sequence, rest));
      ids_.push_back(opened.sequence);
      inputs.insert(inputs.end(), rest.begin(), rest.end());
    }
    ++num_jobs_;
    submit(step, std::move(inputs), false);
  }
  // A decode step. Its inputs are what the step before it samples, which the host does not know
  // yet.
  void launch(Tokens inputs, bool fails) {
    const Ticket step = check(cache_.begin_step());
    check(cache_.append_unnamed_each(ids_, nullptr));
    submit(step, std::move(inputs), fails);
  }
  void submit(Ticket step, Tokens inputs, bool fails) {
    const StepPlan& plan =
        *check(cache_.plan({.block_tables = false, .changed_entries = true, .flashinfer = true}));
    in_flight_.push_back({step, device_.launch({plan, plan.groups[0], std::move(inputs), fails})});
    check(cache_.commit(step));
  }
  // Waits for the oldest step. What it sampled names the inputs of the next one.
  bool retire() {
    const std::optional<Tokens> said = in_flight_.front().done.get();
    if (!said) return false;
    if (in_flight_.size() > 1) check(cache_.set_tokens_each(ids_, *said, nullptr));
    check(cache_.complete(in_flight_.front().step));
    in_flight_.pop_front();
    for (std::size_t i = 0; i < ids_.size(); ++i) texts_[i].push_back((*said)[i]);
    return true;
  }
  // The device has failed: its steps end, their sequences are closed, what was complete stays.
  void recover() {
    const Ticket first = in_flight_.front().step;
    for (std::size_t i = 1; i < in_flight_.size(); ++i) in_flight_[i].done.wait();  // it is idle
    check(cache_.fail(first));
    in_flight_.clear();
    device_.failed = false;
    std::printf("step %llu failed with %zu tokens known\n",
                static_cast<unsigned long long>(first.value()), texts_[0].size());
    start();
  }

  struct InFlight {
    Ticket step;
    std::future<std::optional<Tokens>> done;
  };
  KVCacheManager& cache_;
  Device& device_;
  std::vector<Tokens> texts_;  // prompts and what was said
  std::vector<SequenceId> ids_;
  std::deque<InFlight> in_flight_;
  int num_jobs_ = 0;
};

}  // namespace

int main() {
  Device device;
  const GroupSpec group{.num_layers = kLayers,
                        .head_dim_k = 1,
                        .head_dim_v = 1,
                        .block_size = kBlockSize,
                        .num_blocks = kBlocks};
  std::vector<std::vector<float>> tensors(2 * kLayers, std::vector<float>(kBlocks * kBlockSize));
  std::vector<BorrowedLayer> layers;
  for (std::size_t l = 0; l < kLayers; ++l) {
    layers.push_back({.k = reinterpret_cast<std::byte*>(tensors[2 * l].data()),
                      .v = reinterpret_cast<std::byte*>(tensors[2 * l + 1].data())});
  }
  BorrowedGroup lent{.k_bytes = kBlocks * kBlockSize * 4, .v_bytes = kBlocks * kBlockSize * 4};
  lent.k_strides = lent.v_strides = {.block = kBlockSize * 4, .token = 4};
  lent.layers = layers;
  KVCacheManager cache = check(KVCacheManager::create(
      check(KVStorage::borrow(CacheSpec{{group}}, {{lent}}, &device)),
      {.max_sequences = 32, .copies_by_host = true}));  // by the device, in its stream
  device.storage = cache.storage();

  const std::vector<Tokens> prompts = {{5, 8, 13, 21, 34, 55}, {5, 8, 13, 21, 1, 2}};
  Engine engine(cache, device);
  const std::vector<Tokens> texts = engine.run(prompts, /*fail_at=*/9);
  bool good = true;
  for (std::size_t i = 0; i < prompts.size(); ++i) good = good && texts[i] == expected(prompts[i]);
  std::printf("texts as without a cache: %s; %d tokens found after the failure\n",
              good ? "yes" : "no", engine.num_found);

  // The tokens that were named late are findable.
  const std::int32_t again = check(cache.probe(texts[0]));
  const int mismatches = device.mismatches;
  device.stop();
  std::printf("%d of %zu tokens found again; %d table entries differ from the pages\n", again,
              texts[0].size(), mismatches);
  const Status cpu = append(check(cache.storage()->view(GroupId(0), 0)), 0, {}, {}, {});
  std::printf("a kernel of the CPU says: %s\n", cpu.message().c_str());
  return good && engine.num_found > 20 && again > 20 && mismatches == 0 && !cpu ? 0 : 1;
}
