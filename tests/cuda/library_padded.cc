// SPDX-License-Identifier: Apache-2.0

// Padded plans on a device: of random batches within a capacity, rows by a plan of their own, by a
// padded plan of the host and by one captured graph in which a kernel plans, with equal bits, and
// the kernel's image byte for byte; then what each of the three costs, beside each other.

#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "device_part.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda::parts {
namespace {

struct Shape {
  const char* name;
  DType dtype;  // of the cache; rows are bf16 but for f32
  std::int32_t dim, heads, group;
  std::int32_t sequences, tokens;  // the capacity
};

class Padded {
 public:
  static constexpr std::int32_t kBlockSize = 16;

  Padded(Card& card, const Shape& shape)
      : card_(card),
        shape_(shape),
        columns_((shape.tokens + kBlockSize - 1) / kBlockSize),
        rows_(shape.dtype == DType::kF32 ? DType::kF32 : DType::kBF16) {
    const std::int32_t blocks = columns_ * shape.sequences;
    storage_.emplace(must(KVStorage::create(CacheSpec{{{.num_kv_heads = shape.heads,
                                                        .head_dim_k = shape.dim,
                                                        .head_dim_v = shape.dim,
                                                        .block_size = kBlockSize,
                                                        .dtype = shape.dtype,
                                                        .num_blocks = blocks}}},
                                            card.memory.get()),
                          "a storage on the device"));
    // Any bytes that are numbers: 0x3c3c is 0.01 as bf16, 1.06 as f16, 60 as int8.
    must(fill(*card.kernels, view(), std::byte{0x3c}, card.stream.handle()), "fill");
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), random_);
    table_ = card.copied(table);
    table_entries_ = table.size();
    append_something();
    const std::int64_t row = std::int64_t{shape.heads} * shape.group * shape.dim;
    q_ = card.copied(drawn(static_cast<std::size_t>(row * shape.sequences)));
    out_bytes_ = 4 * row * shape.sequences;
    out_ = must(card.memory->allocate(out_bytes_), "memory");
    lens_ = card.copied(std::vector<std::int32_t>(static_cast<std::size_t>(shape.sequences)));
    start_ = card.copied(std::vector<std::int32_t>(static_cast<std::size_t>(shape.sequences + 1)));
    count_ = card.copied(std::vector<std::int32_t>(4));
    fault_ = card.copied(std::vector<unsigned long long>{kNoEntry});
  }

  [[nodiscard]] AttendCapacity capacity() const {
    return {.max_sequences = shape_.sequences, .max_sequence_tokens = shape_.tokens};
  }

  // A batch, whose lengths go to the device.
  void draw(bool full) {
    const auto n = full ? shape_.sequences : between(1, shape_.sequences);
    lens.clear();
    start.assign(1, 0);
    for (std::int32_t i = 0; i < n; ++i) {
      lens.push_back(full ? shape_.tokens : between(1, between(1, shape_.tokens)));
      start.push_back(i + 1);
    }
    put(lens_, lens);
    put(start_, start);
    put(count_, {n});
  }
  [[nodiscard]] DeviceAttention call() const {
    DeviceAttention made;
    made.cache = view();
    made.batch = {.query_start = start,
                  .kv_lens = lens,
                  .block_table = {table_, table_entries_},
                  .block_table_stride = columns_};
    made.query_start = start_;
    made.kv_lens = lens_;
    made.params = {.scale = 1 / std::sqrt(static_cast<double>(shape_.dim))};
    const std::int32_t heads = shape_.heads * shape_.group;
    made.q =
        contiguous_rows(static_cast<const std::byte*>(q_), start.back(), heads, shape_.dim, rows_);
    made.out = contiguous_rows(out_, start.back(), heads, shape_.dim, DType::kF32);
    return made;
  }
  // Memory for a plan's image and workspace, of the largest so far.
  void room(const AttendPlan& plan) {
    const auto image_bytes = static_cast<std::int64_t>(plan.image().size());
    if (image_bytes > image_bytes_) {
      image_bytes_ = image_bytes;
      image = must(card_.memory->allocate(image_bytes), "memory");
      pinned = must(PinnedMemory::allocate(card_.device, image_bytes), "pinned memory");
    }
    if (plan.workspace_bytes() + 16 > workspace_bytes_) {
      workspace_bytes_ = plan.workspace_bytes() + 16;
      workspace = must(card_.memory->allocate(workspace_bytes_), "memory");
    }
  }
  void send(const AttendPlan& plan) {
    must(upload(*card_.kernels, plan, {pinned.data(), plan.image().size()}, image, workspace,
                stream()),
         "upload");
  }
  void run(const AttendPlan& plan) {
    must(attend(*card_.kernels, call(), plan, image, workspace, stream()), "attend");
  }
  void plan_there(const AttendPlan& plan) {
    must(plan_on_device(*card_.kernels, call(), plan, image, workspace, stream(), count_, fault_),
         "plan_on_device");
  }
  // The rows of the batch; they are anything else before the next run.
  std::vector<std::byte> result() {
    must(card_.stream.synchronize(), "attend on the device");
    const auto bytes = static_cast<std::size_t>(out_bytes_ / shape_.sequences * start.back());
    std::vector<std::byte> rows = card_.back(out_, bytes);
    const std::vector<std::byte> other(static_cast<std::size_t>(out_bytes_), std::byte{0xee});
    const CopyRun run{out_, other.data(), out_bytes_};
    must(card_.memory->copy_in({&run, 1}), "to the device");
    return rows;
  }
  [[nodiscard]] Status fault(const AttendPlan& plan) {
    unsigned long long word = 0;
    const auto bytes = card_.back(reinterpret_cast<const std::byte*>(fault_), sizeof word);
    std::memcpy(&word, bytes.data(), sizeof word);
    return plan_fault(plan, word);
  }
  [[nodiscard]] void* stream() const { return card_.stream.handle(); }

  std::vector<std::int32_t> start, lens;
  std::byte *image = nullptr, *workspace = nullptr;
  PinnedMemory pinned;

 private:
  [[nodiscard]] KVView view() const { return must(storage_->view(GroupId(0)), "view"); }
  std::int32_t between(std::int32_t least, std::int32_t most) {
    return std::uniform_int_distribution<std::int32_t>(least, most)(random_);
  }
  void put(const std::int32_t* to, const std::vector<std::int32_t>& values) {
    const CopyRun run{reinterpret_cast<std::byte*>(const_cast<std::int32_t*>(to)),
                      reinterpret_cast<const std::byte*>(values.data()),
                      static_cast<std::int64_t>(4 * values.size())};
    must(card_.memory->copy_in({&run, 1}), "to the device");
  }
  std::vector<std::byte> drawn(std::size_t count) {
    std::vector<float> values(count);
    std::normal_distribution<float> normal;
    for (float& x : values) x = normal(random_);
    std::vector<std::byte> result(count * static_cast<std::size_t>(dtype_bytes(rows_)));
    const auto n = static_cast<std::int32_t>(count / static_cast<std::size_t>(shape_.dim));
    must(convert(contiguous_rows(reinterpret_cast<const std::byte*>(values.data()), n, 1,
                                 shape_.dim, DType::kF32),
                 contiguous_rows(result.data(), n, 1, shape_.dim, rows_)),
         "convert");
    return result;
  }
  // Rows in every eighth slot.
  void append_something() {
    std::vector<std::int32_t> slots;
    for (std::int32_t s = 0; s < columns_ * shape_.sequences * kBlockSize; s += 8)
      slots.push_back(s);
    constexpr std::size_t kMost = 4096;
    for (std::size_t at = 0; at < slots.size(); at += kMost) {
      const std::size_t n = std::min(kMost, slots.size() - at);
      const std::byte* const rows = card_.copied(
          drawn(n * static_cast<std::size_t>(shape_.heads) * static_cast<std::size_t>(shape_.dim)));
      const std::vector<std::int32_t> some(slots.begin() + static_cast<std::ptrdiff_t>(at),
                                           slots.begin() + static_cast<std::ptrdiff_t>(at + n));
      const ConstRowsView of =
          contiguous_rows(rows, static_cast<std::int32_t>(n), shape_.heads, shape_.dim, rows_);
      must(append(*card_.kernels, view(), 0, of, of, {card_.copied(some), n}, stream()), "append");
      must(card_.stream.synchronize(), "append");
    }
  }

  Card& card_;
  Shape shape_;
  std::int32_t columns_;
  DType rows_;
  std::mt19937 random_{5};
  std::optional<KVStorage> storage_;
  const std::int32_t* table_ = nullptr;
  std::size_t table_entries_ = 0;
  const std::byte* q_ = nullptr;
  std::byte* out_ = nullptr;
  std::int64_t out_bytes_ = 0, image_bytes_ = 0, workspace_bytes_ = 0;
  std::int32_t *lens_ = nullptr, *start_ = nullptr, *count_ = nullptr;
  Fault fault_ = nullptr;
};

Graph captured(Card& card, const AttendShape& shape, const std::function<void()>& record) {
  return must(Graph::capture(card.device, card.stream.handle(), shape,
                             [&] {
                               record();
                               return Status();
                             }),
              "a graph");
}

void compare(Report& report, Card& card, Padded& padded, const AttendPlan& plan, const Shape& shape,
             const Options& options) {
  Graph with_plan = captured(card, plan.shape(), [&] {
    padded.plan_there(plan);
    padded.run(plan);
  });
  Graph alone = captured(card, plan.shape(), [&] { padded.run(plan); });
  const int count = options.small ? 12 : options.quick ? 60 : 300;
  std::int64_t rows = 0;
  int different = 0;
  for (int n = 0; n < count && different < 3; ++n) {
    padded.draw(n % 8 == 0);
    const AttendPlan own = must(plan_attend(*card.kernels, padded.call()), "a plan");
    const AttendPlan host =
        must(plan_attend(*card.kernels, padded.call(), padded.capacity()), "a padded plan");
    padded.send(own);
    padded.run(own);
    const std::vector<std::byte> want = padded.result();
    padded.send(host);
    must(alone.launch(padded.stream(), host.shape()), "a graph");
    const bool host_same = padded.result() == want;
    must(with_plan.launch(padded.stream(), host.shape()), "a graph");
    const bool device_same = padded.result() == want;
    const std::vector<std::byte> image = card.back(padded.image, host.image().size());
    const bool same_image = std::memcmp(image.data(), host.image().data(), image.size()) == 0;
    must(padded.fault(plan), "the kernel that plans");
    rows += padded.start.back();
    if (host_same && device_same && same_image) continue;
    ++different;
    report.fail(std::string(shape.name) + ", batch " + std::to_string(n) + " of " +
                std::to_string(padded.lens.size()) +
                " sequences: " + (host_same ? "" : "other bits by the padded plan; ") +
                (device_same ? "" : "other bits by the plan of the device; ") +
                (same_image ? "" : "another image"));
  }
  report.row(
      "{\"padded\": \"%s\", \"batches\": %d, \"rows\": %lld, \"different\": %d, "
      "\"image_bytes\": %lld, \"workspace_bytes\": %lld, \"stream\": %s}",
      shape.name, count, static_cast<long long>(rows), different,
      static_cast<long long>(plan.image().size()), static_cast<long long>(plan.workspace_bytes()),
      plan.shape().segments > 0 ? "true" : "false");
}

// What a step costs on the stream: behind a long memset, so that it does not wait for the host.
double us_of(Card& card, Driver& driver, std::byte* scratch, const std::function<void()>& step) {
  constexpr int kSteps = 20;
  void *const before = driver.event(), *const after = driver.event();
  std::vector<double> us;
  for (int round = -1; round < 9; ++round) {
    driver.set(scratch, 0, 256'000'000, card.stream.handle());
    driver.record(before, card.stream.handle());
    for (int i = 0; i < kSteps; ++i) step();
    driver.record(after, card.stream.handle());
    const double all = driver.us_between(before, after);
    if (round >= 0) us.push_back(all / kSteps);
  }
  return median_of(us);
}

void time_plans(Report& report, Card& card, Driver& driver, Padded& padded, const AttendPlan& plan,
                const Shape& shape) {
  std::byte* const scratch = must(card.memory->allocate(256'000'000), "memory");
  for (const bool full : {true, false}) {
    padded.draw(full);
    const AttendPlan own = must(plan_attend(*card.kernels, padded.call()), "a plan");
    std::vector<double> host_us;
    for (int i = 0; i < 30; ++i) {
      const auto begin = Clock::now();
      must(plan_attend(*card.kernels, padded.call(), padded.capacity()), "a padded plan");
      host_us.push_back(us_since(begin));
    }
    Graph attend_own = captured(card, own.shape(), [&] { padded.run(own); });
    Graph attend_padded = captured(card, plan.shape(), [&] { padded.run(plan); });
    Graph plans = captured(card, plan.shape(), [&] { padded.plan_there(plan); });
    Graph both = captured(card, plan.shape(), [&] {
      padded.plan_there(plan);
      padded.run(plan);
    });
    const auto time = [&](Graph& graph) {
      return us_of(card, driver, scratch, [&] { must(graph.launch(padded.stream()), "a graph"); });
    };
    padded.send(own);
    const double own_us = time(attend_own);
    const double kernel_us = time(plans), padded_us = time(attend_padded), both_us = time(both);
    const double upload_us = us_of(card, driver, scratch, [&] { padded.send(plan); });
    report.row(
        "{\"plans_of\": \"%s, %zu sequences\", \"own_attend_us\": %.2f, "
        "\"padded_attend_us\": %.2f, \"plan_kernel_us\": %.2f, \"plan_and_attend_us\": %.2f, "
        "\"host_plan_us\": %.2f, \"upload_us\": %.2f}",
        shape.name, padded.lens.size(), own_us, padded_us, kernel_us, both_us, median_of(host_us),
        upload_us);
  }
  card.memory->deallocate(scratch, 256'000'000);
}

}  // namespace

void run_padded(Report& report, const Options& options) {
  Card card;
  Driver driver(*card.device);
  // A stream, nodes of bf16 and of 8 bits, and the general kernel.
  const Shape large[] = {{"bf16, 8 x 1,024, G 8", DType::kBF16, 128, 8, 8, 8, 1024},
                         {"bf16, 32 x 4,096, G 8", DType::kBF16, 128, 8, 8, 32, 4096},
                         {"bf16, 64 x 8,192, G 8", DType::kBF16, 128, 8, 8, 64, 8192},
                         {"int8, 32 x 4,096, G 8", DType::kInt8, 128, 8, 8, 32, 4096},
                         {"f32, 8 x 2,048, head_dim 96", DType::kF32, 96, 2, 4, 8, 2048}};
  const Shape small[] = {{"f32, 3 x 1,100, head_dim 24", DType::kF32, 24, 2, 4, 3, 1100}};
  for (const Shape& shape : options.small ? std::span<const Shape>(small) : large) {
    Padded padded(card, shape);
    padded.draw(true);
    const AttendPlan plan =
        must(plan_attend(*card.kernels, padded.call(), padded.capacity()), shape.name);
    padded.room(plan);
    padded.room(must(plan_attend(*card.kernels, padded.call()), shape.name));
    compare(report, card, padded, plan, shape, options);
    if (driver.is_there()) time_plans(report, card, driver, padded, plan, shape);
  }
}

}  // namespace kvfolio::cuda::parts
