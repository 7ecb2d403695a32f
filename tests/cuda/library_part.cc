// SPDX-License-Identifier: Apache-2.0

// The functions of cuda_kernels.h and the memory of cuda_memory.h on a device, against the CPU's
// over the same bytes: append, gather and copies byte for byte, attention near the reference and
// with the same bits alone and in a batch; and what is refused.

#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "device_part.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda::parts {
namespace {

constexpr std::int32_t kHeads = 2, kQueryHeads = 16, kLayers = 2, kBlocks = 100, kBlockSize = 16;
// Three sequences: one decodes, one has a few queries, one is prefilled.
const std::vector<std::int32_t> kQueryStart = {0, 1, 6, 106};
const std::vector<std::int32_t> kLens = {1100, 37, 200};
constexpr std::int32_t kColumns = 75;

std::size_t elements(std::int32_t rows, std::int32_t heads, std::int32_t dim) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads) *
         static_cast<std::size_t>(dim);
}

class Twins {
 public:
  Twins(Report& report, Card& card, DType dtype, std::int32_t dim, DType rows)
      : name_(std::string(to_string(dtype)) + " x " + std::to_string(dim) + ", rows of " +
              to_string(rows)),
        report_(report),
        card_(card),
        dim_(dim),
        rows_(rows) {
    const CacheSpec spec{{{.num_layers = kLayers,
                           .num_kv_heads = kHeads,
                           .head_dim_k = dim,
                           .head_dim_v = dim,
                           .block_size = kBlockSize,
                           .dtype = dtype,
                           .num_blocks = kBlocks}}};
    host_.emplace(must(KVStorage::create(spec), "a storage"));
    there_.emplace(must(KVStorage::create(spec, card.memory.get()), "a storage on the device"));
    must(host_->fill(std::byte{0}), "fill");
    must(fill(*card.kernels, there_view(), std::byte{0}, card.stream.handle()), "fill");
    table_.assign(3 * kColumns, -1);
    std::int32_t block = kBlocks;
    for (std::size_t i = 0; i < kLens.size(); ++i) {
      for (std::int32_t c = 0; c * kBlockSize < kLens[i]; ++c)
        table_[i * kColumns + static_cast<std::size_t>(c)] = --block;
    }
    report_.expect(block >= 0, "the test has too few blocks");
  }

  // Every token of every sequence; some tokens are skipped.
  void appends() {
    std::vector<std::int32_t> slots;
    for (std::size_t i = 0; i < kLens.size(); ++i) {
      for (std::int32_t p = 0; p < kLens[i]; ++p)
        slots.push_back(table_[i * kColumns + static_cast<std::size_t>(p / kBlockSize)] *
                            kBlockSize +
                        p % kBlockSize);
    }
    slots.push_back(-1);
    const auto tokens = static_cast<std::int32_t>(slots.size());
    const std::vector<unsigned long long> none = {kNoEntry};
    unsigned long long* const fault = card_.copied(none);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<std::byte> k = random_rows(tokens, kHeads), v = random_rows(tokens, kHeads);
      must(kvfolio::append(host_view(), layer, of(k.data(), tokens, kHeads),
                           of(v.data(), tokens, kHeads), slots),
           "append");
      must(cuda::append(*card_.kernels, there_view(), layer, of(there(k), tokens, kHeads),
                        of(there(v), tokens, kHeads), {card_.copied(slots), slots.size()},
                        card_.stream.handle(), fault),
           "append on the device");
    }
    compare("append");
    const auto said = card_.back(reinterpret_cast<const std::byte*>(fault), 8);
    unsigned long long entry = 0;
    std::memcpy(&entry, said.data(), 8);
    report_.expect(slot_fault(there_view(), entry).ok(), name_ + ": append reports a slot");
  }

  void gathers() {
    for (std::size_t i = 0; i < kLens.size(); ++i) {
      const std::int32_t first = kLens[i] / 3, count = kLens[i] - first;
      const std::size_t bytes = static_cast<std::size_t>(count) * kHeads * row_bytes();
      std::vector<std::byte> k(bytes), v(bytes);
      std::byte* const rows =
          must(card_.memory->allocate(static_cast<std::int64_t>(2 * bytes)), "memory");
      kvfolio::GatherArgs args{.cache = host_view(), .length = kLens[i]};
      args.block_table = std::span(table_).subspan(i * kColumns, kColumns);
      args.first = first;
      args.count = count;
      args.first_layer = 1;
      args.k = of(k.data(), count, kHeads);
      args.v = of(v.data(), count, kHeads);
      must(kvfolio::gather(args), "gather");
      args.cache = there_view();
      args.block_table = {card_.copied(table_) + i * kColumns, kColumns};
      args.k = of(rows, count, kHeads);
      args.v = of(rows + bytes, count, kHeads);
      must(cuda::gather(*card_.kernels, args, card_.stream.handle()), "gather on the device");
      must(card_.stream.synchronize(), "gather on the device");
      const std::vector<std::byte> got = card_.back(rows, 2 * bytes);
      const bool same = std::memcmp(got.data(), k.data(), bytes) == 0 &&
                        std::memcmp(got.data() + bytes, v.data(), bytes) == 0;
      report_.expect(same, name_ + ": gather differs from the CPU's");
      card_.memory->deallocate(rows, static_cast<std::int64_t>(2 * bytes));
    }
  }

  void copies() {
    const std::vector<std::int32_t> src = {99, 98, 97, 50}, dst = {3, 2, 1, 0};
    must(kvfolio::copy_blocks(host_view(), src, dst), "copy_blocks");
    must(cuda::copy_blocks(*card_.kernels, there_view(), src, dst, card_.stream.handle()),
         "copy_blocks on the device");
    compare("copy_blocks");
  }

  // Rows near the reference; each sequence alone has the bits that it has in the batch.
  void attends(bool may_lack) {
    const std::int32_t rows = kQueryStart.back();
    const std::vector<std::byte> q = random_rows(rows, kQueryHeads);
    AttentionArgs args;
    args.cache = host_view();
    args.layer = 1;
    args.batch = {.query_start = kQueryStart,
                  .kv_lens = kLens,
                  .block_table = table_,
                  .block_table_stride = kColumns};
    args.params = {.scale = 1 / std::sqrt(static_cast<double>(dim_))};
    args.q = of(q.data(), rows, kQueryHeads);
    std::vector<float> want(elements(rows, kQueryHeads, dim_));
    args.out = contiguous_rows(reinterpret_cast<std::byte*>(want.data()), rows, kQueryHeads, dim_,
                               DType::kF32);
    args.target = KernelTarget::kReference;
    std::vector<std::byte> workspace(static_cast<std::size_t>(
        must(attention_workspace_bytes(args.cache, kQueryHeads, kLens[0], args.target), "bytes")));
    args.workspace = workspace;
    must(kvfolio::attend(args), "attend");
    std::string target;
    const std::vector<float> got = on_device(q, 0, kLens.size(), may_lack, target);
    if (got.empty()) return;
    double num = 0, den = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      num += std::pow(static_cast<double>(got[i]) - static_cast<double>(want[i]), 2);
      den += std::pow(static_cast<double>(want[i]), 2);
    }
    const double error = std::sqrt(num / den);
    const double most = target.ends_with("tiles") ? 4e-3 : 1e-5;
    report_.row("{\"shape\": \"%s\", \"target\": \"%s\", \"error\": %.2e, \"most_error\": %.0e}",
                name_.c_str(), target.c_str(), error, most);
    report_.expect(error < most, name_ + ": attention is not near the reference");
    for (std::size_t i = 0; i < kLens.size(); ++i) {
      const std::vector<float> alone = on_device(q, i, 1, may_lack, target);
      const std::size_t at = elements(kQueryStart[i], kQueryHeads, dim_);
      report_.expect(std::memcmp(alone.data(), got.data() + at, alone.size() * 4) == 0,
                     name_ + ": sequence " + std::to_string(i) + " has other bits alone");
    }
  }

  [[nodiscard]] KVView there_view() const { return must(there_->view(GroupId(0)), "view"); }

 private:
  [[nodiscard]] KVView host_view() const { return must(host_->view(GroupId(0)), "view"); }
  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(dim_) * static_cast<std::size_t>(dtype_bytes(rows_));
  }
  const std::byte* there(const std::vector<std::byte>& bytes) {
    return card_.copied(std::span<const std::byte>(bytes));
  }
  [[nodiscard]] RowsView of(std::byte* data, std::int32_t tokens, std::int32_t heads) const {
    return contiguous_rows(data, tokens, heads, dim_, rows_);
  }
  [[nodiscard]] ConstRowsView of(const std::byte* data, std::int32_t tokens,
                                 std::int32_t heads) const {
    return contiguous_rows(data, tokens, heads, dim_, rows_);
  }

  std::vector<std::byte> random_rows(std::int32_t tokens, std::int32_t heads) {
    const std::size_t n = elements(tokens, heads, dim_);
    std::vector<float> values(n);
    std::normal_distribution<float> normal;
    for (float& x : values) x = normal(random_);
    std::vector<std::byte> result(n * static_cast<std::size_t>(dtype_bytes(rows_)));
    must(convert(contiguous_rows(reinterpret_cast<const std::byte*>(values.data()), tokens, heads,
                                 dim_, DType::kF32),
                 of(result.data(), tokens, heads)),
         "convert");
    return result;
  }

  void compare(const char* what) {
    must(card_.stream.synchronize(), what);
    std::vector<std::int32_t> blocks(kBlocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    const auto bytes = static_cast<std::size_t>(host_->block_image_bytes(GroupId(0)) * kBlocks);
    std::vector<std::byte> want(bytes), got(bytes);
    must(host_->read_blocks(GroupId(0), blocks, want), "read_blocks");
    must(there_->read_blocks(GroupId(0), blocks, got), "read_blocks on the device");
    report_.expect(want == got, name_ + ": the cache differs from the CPU's after " + what);
  }

  // Rows of sequences [first, first + count); empty if this build has no kernels for them.
  std::vector<float> on_device(const std::vector<std::byte>& q, std::size_t first,
                               std::size_t count, bool may_lack, std::string& target) {
    std::vector<std::int32_t> start,
        lens(kLens.begin() + static_cast<std::ptrdiff_t>(first),
             kLens.begin() + static_cast<std::ptrdiff_t>(first + count));
    for (std::size_t i = first; i <= first + count; ++i)
      start.push_back(kQueryStart[i] - kQueryStart[first]);
    const std::int32_t rows = start.back();
    const std::size_t q_row = kQueryHeads * row_bytes();
    const auto bytes = elements(rows, kQueryHeads, dim_) * 4;
    DeviceAttention call;
    call.cache = there_view();
    call.layer = 1;
    call.batch = {.query_start = start, .kv_lens = lens, .block_table_stride = kColumns};
    call.batch.block_table = {card_.copied(table_) + first * kColumns, count * kColumns};
    call.query_start = card_.copied(start);
    call.kv_lens = card_.copied(lens);
    call.params = {.scale = 1 / std::sqrt(static_cast<double>(dim_))};
    const std::span<const std::byte> some =
        std::span(q).subspan(static_cast<std::size_t>(kQueryStart[first]) * q_row,
                             static_cast<std::size_t>(rows) * q_row);
    call.q = of(static_cast<const std::byte*>(card_.copied(some)), rows, kQueryHeads);
    std::byte* const out = must(card_.memory->allocate(static_cast<std::int64_t>(bytes)), "memory");
    call.out = contiguous_rows(out, rows, kQueryHeads, dim_, DType::kF32);
    Result<AttendPlan> plan = plan_attend(*card_.kernels, call);
    if (!plan && may_lack && plan.error().code() == ErrorCode::kUnsupported) return {};
    if (!plan) throw Stop{name_ + ": " + plan.error().message()};
    target = plan->target();
    const auto image_bytes = static_cast<std::int64_t>(plan->image().size());
    const PinnedMemory pinned = must(PinnedMemory::allocate(card_.device, image_bytes), "pinned");
    std::byte* const image = must(card_.memory->allocate(image_bytes), "memory");
    std::byte* const space = must(card_.memory->allocate(plan->workspace_bytes() + 16), "memory");
    must(upload(*card_.kernels, *plan, {pinned.data(), plan->image().size()}, image, space,
                card_.stream.handle()),
         "upload");
    must(attend(*card_.kernels, call, *plan, image, space, card_.stream.handle()),
         "attend on the device");
    must(card_.stream.synchronize(), "attend on the device");
    const std::vector<std::byte> got = card_.back(out, bytes);
    std::vector<float> result(bytes / 4);
    std::memcpy(result.data(), got.data(), bytes);
    return result;
  }

  std::string name_;
  Report& report_;
  Card& card_;
  std::int32_t dim_;
  DType rows_;
  std::optional<KVStorage> host_, there_;
  std::vector<std::int32_t> table_;
  std::mt19937 random_{11};
};

void expect_refused(Report& report, const Status& status, ErrorCode code, const char* what) {
  report.row("{\"refused\": \"%s\", \"right\": %s}", what,
             status.code() == code ? "true" : "false");
  report.expect(status.code() == code, std::string(what) + " was not refused: " + status.message());
}

// Host memory where the device's is due, and the reverse; devices that are not there or others.
void refusals(Report& report, Card& card, const Options& options) {
  Twins twins(report, card, DType::kBF16, 64, DType::kBF16);
  const KVView cache = twins.there_view();
  std::vector<std::byte> host(kHeads * 64 * 2);
  const std::vector<std::int32_t> slot = {0};
  std::byte* const there = card.copied(std::span<const std::byte>(host));
  const std::int32_t* const slot_there = card.copied(slot);
  void* const stream = card.stream.handle();
  const auto rows = [](const std::byte* data) {
    return contiguous_rows(data, 1, kHeads, 64, DType::kBF16);
  };
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  expect_refused(
      report,
      append(*card.kernels, cache, 0, rows(host.data()), rows(there), {slot_there, 1}, stream),
      kInvalid, "rows of the host");
  expect_refused(report, append(*card.kernels, cache, 0, rows(there), rows(there), slot, stream),
                 kInvalid, "slots of the host");
  expect_refused(report, kvfolio::append(cache, 0, rows(host.data()), rows(host.data()), slot),
                 ErrorCode::kUnsupported, "a cache of the device in a function of the CPU");
  must(append(*card.kernels, cache, 0, rows(there), rows(there), {slot_there, 1}, stream),
       "append behind what was refused");
  const std::int32_t devices = must(num_devices(), "num_devices");
  Result<std::shared_ptr<Device>> none = Device::open(devices);
  expect_refused(report, none ? Status() : none.error(), kInvalid, "a device that is not there");
  if (!options.small) {
    const Result<std::byte*> much = card.memory->allocate(std::int64_t{1} << 50);
    expect_refused(report, much ? Status() : much.error(), ErrorCode::kOutOfMemory, "2^50 bytes");
    static_cast<void>(card.memory->take_error());
  }
  if (devices < 2) {
    std::printf("one device: no other one's memory to be refused\n");
  } else {
    const auto other = must(Device::open(1), "device 1");
    const auto memory = must(DeviceMemory::create(other), "memory of device 1");
    std::byte* const far = must(memory->allocate(256), "memory of device 1");
    expect_refused(report,
                   append(*card.kernels, cache, 0, rows(far), rows(there), {slot_there, 1}, stream),
                   kInvalid, "rows of another device");
    memory->deallocate(far, 256);
  }
  must(card.stream.synchronize(), "what was refused");
}

// Promised, and against CUDA's guide: a wait for the device beside a capture of another thread.
void waits_beside_a_capture(Report& report, Card& card) {
  const Stream stream = must(Stream::create(card.device), "a stream");
  Status waited;
  const auto record = [&]() -> Status {
    std::thread([&] { waited = card.device->synchronize(); }).join();
    return {};
  };
  const Result<Graph> graph = Graph::capture(card.device, stream.handle(), record);
  report.row("{\"beside a capture\": \"%s\", \"captured\": \"%s\"}", waited.message().c_str(),
             graph ? "ok" : graph.error().message().c_str());
  report.expect(waited.ok(), "a wait beside a capture is refused: " + waited.message());
  report.expect(graph.has_value(), "a wait beside a capture breaks it");
  // Whatever came of it, device and stream go on.
  Graph next = must(Graph::capture(card.device, stream.handle(), [] { return Status(); }),
                    "the next capture");
  must(next.launch(stream.handle()), "its launch");
  must(card.device->synchronize(), "a wait behind the capture");
}

}  // namespace

void run_library(Report& report, const Options& options) {
  Card card;
  std::printf("%s, %s\n", card.device->name().c_str(), card.device->target().c_str());
  const std::vector<DType> all = {DType::kF32, DType::kBF16, DType::kF16, DType::kInt8,
                                  DType::kE4M3};
  for (const DType dtype : all) {
    for (const std::int32_t dim : {128, 64, 80}) {
      if ((options.quick && dim == 80) || (options.small && dim != 64)) continue;
      const DType rows = dtype == DType::kF32   ? DType::kF32
                         : dtype == DType::kF16 ? DType::kF16
                                                : DType::kBF16;
      Twins twins(report, card, dtype, dim, rows);
      twins.appends();
      twins.gathers();
      twins.copies();
      twins.attends(options.small);
    }
  }
  refusals(report, card, options);
  waits_beside_a_capture(report, card);
  const Status memory = card.memory->take_error();
  report.expect(memory.ok(), memory.message());
}

// A kernel writes where no memory is: the next call says so, and each one after it the same.
int run_death() {
  Card card;
  const auto careless =
      must(Kernels::load(card.device, {.check_pointers = false}), "kernels that ask nothing");
  const CacheSpec spec{{{.num_layers = 1,
                         .num_kv_heads = 1,
                         .head_dim_k = 64,
                         .head_dim_v = 64,
                         .dtype = DType::kBF16,
                         .num_blocks = 4}}};
  const KVStorage storage = must(KVStorage::create(spec, card.memory.get()), "a storage");
  KVView nowhere = must(storage.view(GroupId(0)), "view");
  nowhere.k = nowhere.v = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 46);
  const Status started = fill(*careless, nowhere, std::byte{1}, card.stream.handle());
  const Status ended = card.stream.synchronize();
  const Status later = card.device->synchronize();
  const Result<std::byte*> memory = card.memory->allocate(4096);
  const bool right = started.ok() && ended.code() == ErrorCode::kUnavailable &&
                     later.message() == ended.message() && !memory &&
                     memory.error().code() == ErrorCode::kUnavailable &&
                     !card.device->status().ok();
  std::printf("J|{\"death\": \"%s\", \"right\": %s}\n", right ? "said by every call" : "not said",
              right ? "true" : "false");
  std::printf("death: %s; %s; %s\n", ended.message().c_str(), later.message().c_str(),
              memory ? "ok" : memory.error().message().c_str());
  std::fflush(stdout);
  return right ? 0 : 1;
}

}  // namespace kvfolio::cuda::parts
