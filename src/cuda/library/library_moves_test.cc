// SPDX-License-Identifier: Apache-2.0

// The public calls that move rows and blocks, over a driver that is none: its kernels are the text
// of the real ones, run on the CPU, late. What they write has the bytes of the CPU's functions, and
// what they refuse is named.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/host_machine.h"
#include "cuda/library/host_kernels.h"
#include "cuda/library/loaded.h"
#include "cuda/move_cases.h"
#include "kvfolio/cuda.hpp"

namespace kvfolio::cuda {
namespace {

using cases::CacheTwin;
using cases::draw;
using cases::RowsTwin;
using testing::HasSubstr;

constexpr int kImage = 0;
constexpr KernelImage kImages[] = {{"moves", &kImage, 4}};

FakeDriver& with_kernels(FakeDriver& fake) {
  fake.touchable = true;
  fake.kernel = moves_on_host();
  return fake;
}

// A device of the fake driver as the machine of the cases: all through public headers.
class PublicMachine final : public cases::Machine {
 public:
  explicit PublicMachine(const DeviceMemoryOptions& options = {})
      : device(open_device()),
        kernels(*load_kernels(device, {}, kImages)),
        stream(*Stream::create(device)),
        memory_(*cuda::DeviceMemory::create(device, options)),
        queue_(kernels->impl().moves, stream.handle()) {}
  ~PublicMachine() override { give_back(); }

  Queue& queue() override { return queue_; }
  std::byte* allocate(std::int64_t bytes) override {
    pieces_.emplace_back(*memory_->allocate(std::max<std::int64_t>(bytes, 1)), bytes);
    return pieces_.back().first;
  }
  std::string reset() override {
    give_back();
    return {};
  }
  void upload(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    const CopyRun run{to, from, bytes};
    KVFOLIO_CHECK(memory_->copy_in({&run, 1}));
  }
  void download(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    KVFOLIO_CHECK(stream.synchronize().ok());
    const CopyRun run{to, from, bytes};
    KVFOLIO_CHECK(memory_->copy_out({&run, 1}));
  }

  std::shared_ptr<Device> device;
  std::shared_ptr<Kernels> kernels;
  Stream stream;

 private:
  void give_back() {
    for (const auto& [piece, bytes] : pieces_) memory_->deallocate(piece, bytes);
    pieces_.clear();
  }
  std::unique_ptr<cuda::DeviceMemory> memory_;
  DriverQueue queue_;
  std::vector<std::pair<std::byte*, std::int64_t>> pieces_;
};

constexpr std::array kPublicElements{Element::kF32, Element::kF16, Element::kBF16, Element::kInt8};

TEST(CudaKernels, AppendWritesTheBytesOfTheCpu) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  for (unsigned seed = 0; seed < 80; ++seed) {
    cases::Random random(seed);
    CacheTwin cache(machine, draw_shape(random, kPublicElements[seed % 4]), random);
    const cases::CacheShape& shape = cache.shape();
    const bool own_v = shape.dim_v > 0 && !shape.prefix;
    const std::int32_t slots = shape.blocks * shape.block_size;
    const std::int32_t tokens = std::min(slots, draw(random, 1, 40));
    const DType from = cases::dtype_of(pick(random, cases::kRowElements));
    RowsTwin k(machine, tokens, shape.heads, shape.dim_k, from, 1, random);
    RowsTwin v(machine, tokens, shape.heads, own_v ? shape.dim_v : 8, from, 1, random);
    const cases::Ints places(machine, cases::draw_slots(random, tokens, slots));
    const std::int32_t layer = draw(random, 0, shape.layers - 1);
    cache.upload();
    k.upload();
    v.upload();
    const ConstRowsView none;
    ASSERT_TRUE(
        kvfolio::append(cache.host, layer, k.host, own_v ? v.host : none, places.host).ok());
    const Status status =
        append(*machine.kernels, cache.device.view, layer, k.device, own_v ? v.device : none,
               {places.device, places.host.size()}, machine.stream.handle());
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cache.differs(), "") << seed;
    machine.reset();
  }
}

TEST(CudaKernels, GatherWritesTheBytesOfTheCpu) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  for (unsigned seed = 0; seed < 60; ++seed) {
    cases::Random random(seed);
    CacheTwin cache(machine, draw_shape(random, kPublicElements[seed % 4]), random);
    const cases::CacheShape& shape = cache.shape();
    const std::int32_t length = draw(random, 1, 60);
    kvfolio::GatherArgs args{.cache = cache.host, .length = length, .count = length};
    std::vector<std::int32_t> table(
        static_cast<std::size_t>((length + shape.block_size - 1) / shape.block_size));
    for (std::int32_t& entry : table) entry = draw(random, 0, shape.blocks - 1);
    const cases::Ints places(machine, table);
    args.num_layers = shape.layers;
    const DType to = cases::dtype_of(pick(random, cases::kRowElements));
    RowsTwin k(machine, length, shape.heads, shape.dim_k, to, shape.layers, random);
    cache.upload();
    k.upload();
    args.k_layer_stride = k.copy_stride;
    args.block_table = places.host;
    args.k = k.host;
    ASSERT_TRUE(kvfolio::gather(args).ok());
    args.cache = cache.device.view;
    args.block_table = {places.device, places.host.size()};
    args.k = k.device;
    const Status status = gather(*machine.kernels, args, machine.stream.handle());
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(k.differs("k"), "") << seed;
    machine.reset();
  }
}

TEST(CudaKernels, CopiesAndConversionsWriteTheBytesOfTheCpu) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  for (unsigned seed = 0; seed < 60; ++seed) {
    cases::Random random(seed);
    cases::CacheShape shape = draw_shape(random, kPublicElements[seed % 4]);
    shape.prefix = shape.joined = false;
    shape.pad = shape.skew = 0;  // they are multiples of the first element only
    CacheTwin cache(machine, shape, random);
    shape.element = kPublicElements[seed / 4 % 4];
    CacheTwin other(machine, shape, random);
    cache.upload();
    other.upload();
    std::vector<std::int32_t> src, dst;
    for (int i = draw(random, 1, 6); i > 0; --i) {
      src.push_back(draw(random, 0, shape.blocks - 1));
      dst.push_back(draw(random, 0, shape.blocks - 1));
    }
    ASSERT_TRUE(kvfolio::copy_blocks(cache.host, src, dst).ok());
    ASSERT_EQ(kvfolio::convert_blocks(cache.host, other.host, src, dst).message(), "ok");
    void* const stream = machine.stream.handle();
    const KVView &from = cache.device.view, &to = other.device.view;
    ASSERT_EQ(copy_blocks(*machine.kernels, from, src, dst, stream).message(), "ok");
    ASSERT_EQ(convert_blocks(*machine.kernels, from, to, src, dst, stream).message(), "ok");
    ASSERT_EQ(cache.differs(), "") << seed;
    ASSERT_EQ(other.differs(), "") << seed;
    machine.reset();
  }
}

// A storage on the device, of each source, with kernels: images in, blocks copied, images out.
TEST(CudaKernels, AStorageWithKernelsHasTheImagesOfOneOnTheHost) {
  GroupSpec group;
  group.num_layers = 2;
  group.num_kv_heads = 2;
  group.head_dim_k = group.head_dim_v = 16;
  group.num_blocks = 6;
  group.dtype = DType::kBF16;
  for (const DeviceSource source :
       {DeviceSource::kPlain, DeviceSource::kPool, DeviceSource::kLent}) {
    FakeDriver fake;
    with_kernels(fake);
    auto device = open_device();
    auto owner = *cuda::DeviceMemory::create(device);
    std::byte* const lent = *owner->allocate(1 << 20);
    auto memory =
        *cuda::DeviceMemory::create(device, {.staging_bytes = 4096,
                                             .kernels = *load_kernels(device, {}, kImages),
                                             .source = source,
                                             .lent = lent,
                                             .lent_bytes = 1 << 20});
    {
      auto storage = *KVStorage::create({.groups = {group}}, memory.get());
      const std::vector<std::int32_t> blocks{4, 1, 2};
      std::vector<std::byte> images(
          static_cast<std::size_t>(storage.block_image_bytes(GroupId(0)) * 3));
      for (std::size_t i = 0; i < images.size(); ++i) images[i] = static_cast<std::byte>(i * 37);
      ASSERT_TRUE(storage.write_blocks(GroupId(0), blocks, images).ok());
      std::vector<std::byte> back(images.size());
      ASSERT_TRUE(storage.read_blocks(GroupId(0), blocks, back).ok());
      EXPECT_EQ(back, images);
      const std::byte* const k = storage.view(GroupId(0))->k;
      EXPECT_EQ(k >= lent && k < lent + (1 << 20), source == DeviceSource::kLent);
    }
    EXPECT_TRUE(memory->take_error().ok());
    if (source == DeviceSource::kLent) {
      EXPECT_TRUE(memory->allocate(1 << 20).has_value()) << "all was given back";
      EXPECT_EQ(memory->allocate(64).error().message(),
                "of 1048576 lent bytes 0 are left, needed: 64");
    }
    owner->deallocate(lent, 1 << 20);
    owner.reset();
    memory.reset();
    device.reset();
    EXPECT_EQ(fake.open(), 0u);
  }
}

// One token to append, and what may be wrong with it.
struct OneToken {
  explicit OneToken(PublicMachine& machine)
      : random(1),
        cache(machine, {.blocks = 4, .dim_k = 16, .dim_v = 0}, random),
        k(machine, 1, 1, 16, DType::kF32, 1, random),
        slots(machine, {0}) {
    cache.upload();
    k.upload();
  }
  Status append_to(PublicMachine& machine, const KVView& view, const ConstRowsView& rows,
                   const std::int32_t* slot, void* stream) const {
    return append(*machine.kernels, view, 0, rows, {}, {slot, 1}, stream);
  }
  cases::Random random;
  CacheTwin cache;
  RowsTwin k;
  cases::Ints slots;
};

TEST(CudaKernels, MemoryOfTheWrongSideIsRefusedByName) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  OneToken one(machine);
  void* const stream = machine.stream.handle();
  const KVView& view = one.cache.device.view;
  const Status rows = one.append_to(machine, view, one.k.host, one.slots.device, stream);
  EXPECT_EQ(rows.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(rows.message(), "k is memory of the host, needed: memory of device 0 (Fake 0)");
  EXPECT_THAT(one.append_to(machine, view, one.k.device, one.slots.host.data(), stream).message(),
              HasSubstr("slots is memory of the host"));
  KVView on_host = one.cache.host;
  on_host.memory_kind = MemoryKind::kDevice;
  EXPECT_THAT(one.append_to(machine, on_host, one.k.device, one.slots.device, stream).message(),
              HasSubstr("cache.k is memory of the host"));
  // A view that says host memory is the CPU's, and the other way round.
  KVView says_host = view;
  says_host.memory_kind = MemoryKind::kHost;
  EXPECT_EQ(one.append_to(machine, says_host, one.k.device, one.slots.device, stream).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(kvfolio::append(view, 0, one.k.host, {}, one.slots.host).code(),
            ErrorCode::kUnsupported);
  const std::span<const std::int32_t> blocks(one.slots.device, 1);
  EXPECT_EQ(copy_blocks(*machine.kernels, view, blocks, blocks, stream).message(),
            "src is memory of device 0, needed: memory of the host");
  // Null, by name.
  const std::int32_t block = 0;
  const std::span<const std::int32_t> null(static_cast<const std::int32_t*>(nullptr), 1);
  EXPECT_EQ(copy_blocks(*machine.kernels, view, null, {&block, 1}, stream).message(),
            "src is null");
  EXPECT_EQ(convert_blocks(*machine.kernels, view, view, {&block, 1}, null, stream).message(),
            "dst is null");
  EXPECT_EQ(one.append_to(machine, view, one.k.device, nullptr, stream).message(), "slots is null");
  EXPECT_EQ(gather(*machine.kernels,
                   {.cache = view, .block_table = null, .length = 1, .count = 1, .k = one.k.device},
                   stream)
                .message(),
            "block_table is null");
  EXPECT_EQ(Kernels::load(nullptr).error().message(), "device is null");
  EXPECT_EQ(DeviceMemory::create(nullptr).error().message(), "device is null");
  EXPECT_TRUE(fake.launches.empty());
}

TEST(CudaKernels, MemoryAndStreamsOfAnotherDeviceAreRefused) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  OneToken one(machine);
  const auto second = open_device(1);
  auto memory = *cuda::DeviceMemory::create(second);
  std::byte* const there = *memory->allocate(64);
  auto stream = *Stream::create(second);
  const KVView& view = one.cache.device.view;
  ConstRowsView rows = one.k.device;
  rows.data = there;
  EXPECT_EQ(one.append_to(machine, view, rows, one.slots.device, nullptr).message(),
            "k is memory of device 1, needed: memory of device 0 (Fake 0)");
  EXPECT_EQ(one.append_to(machine, view, one.k.device, one.slots.device, stream.handle()).message(),
            "the stream is of another device, needed: one of device 0 (Fake 0)");
  const auto mixed = cuda::DeviceMemory::create(second, {.kernels = machine.kernels});
  ASSERT_FALSE(mixed);
  EXPECT_THAT(mixed.error().message(), HasSubstr("kernels are those of device 0"));
  memory->deallocate(there, 64);
}

TEST(CudaKernels, ShapesAreRefusedInTheSentencesOfTheCpu) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  OneToken one(machine);
  void* const stream = machine.stream.handle();
  const auto both = [&](auto&& change) {
    KVView host = one.cache.host, device = one.cache.device.view;
    change(host);
    change(device);
    const Status cpu = kvfolio::append(host, 0, one.k.host, {}, one.slots.host);
    const Status said = one.append_to(machine, device, one.k.device, one.slots.device, stream);
    EXPECT_FALSE(cpu.ok());
    EXPECT_EQ(said.message(), cpu.message());
    EXPECT_EQ(said.code(), cpu.code());
  };
  both([](KVView& view) { view.k += 1; });
  both([](KVView& view) { view.k_strides.block += 1; });
  both([](KVView& view) { view.num_blocks = 1 << 30, view.block_size = 1024; });
  both([](KVView& view) { view.num_kv_heads = 2; });
  both([](KVView& view) { view.head_dim_k = 8; });
  EXPECT_TRUE(fake.launches.empty());
}

TEST(CudaKernels, ASlotOutOfRangeIsReportedByItsFault) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  OneToken one(machine);
  unsigned long long word = kNoEntry;
  auto* const fault = reinterpret_cast<Fault>(machine.allocate(8));
  machine.upload(reinterpret_cast<std::byte*>(fault), reinterpret_cast<const std::byte*>(&word), 8);
  const cases::Ints bad(machine, {4 * one.cache.host.block_size});
  ASSERT_TRUE(append(*machine.kernels, one.cache.device.view, 0, one.k.device, {}, {bad.device, 1},
                     machine.stream.handle(), fault)
                  .ok());
  machine.download(reinterpret_cast<std::byte*>(&word), reinterpret_cast<std::byte*>(fault), 8);
  const Status cpu = kvfolio::append(one.cache.host, 0, one.k.host, {}, bad.host);
  EXPECT_EQ(slot_fault(one.cache.device.view, word).message(), cpu.message());
  EXPECT_EQ(one.cache.differs(), "");
}

// Each call of the driver in load() and in a call fails once: it is said, and nothing stays open.
TEST(CudaKernels, EveryCallOfTheDriverMayFail) {
  FakeDriver fake;
  with_kernels(fake);
  const auto device = open_device();
  const std::size_t before = fake.open();
  for (int at = 1;; at += 40) {  // 129 kernels are found alike
    fake.count = 0;
    fake.fail_at = at;
    fake.fail_with = 2;
    const auto kernels = load_kernels(device, {}, kImages);
    fake.fail_at = 0;
    if (kernels) break;
    EXPECT_EQ(kernels.error().code(), ErrorCode::kOutOfMemory) << at;
    EXPECT_EQ(fake.open(), before) << at;
  }
  PublicMachine machine;
  OneToken one(machine);
  const auto call = [&] {
    return one.append_to(machine, one.cache.device.view, one.k.device, one.slots.device,
                         machine.stream.handle());
  };
  int failed = 0;
  for (int at = 1;; ++at) {
    fake.count = 0;
    fake.fail_at = at;
    fake.fail_with = 999;
    const Status status = call();
    fake.fail_at = 0;
    if (status.ok()) break;
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable) << at;
    ++failed;
  }
  EXPECT_GE(failed, 6);
  EXPECT_TRUE(fake.current.empty());
  // A context that dies: every later call has the same sentence, and the driver is left alone.
  fake.count = 0;
  fake.fail_at = 2;
  fake.fail_with = 700;
  const Status died = call();
  fake.fail_at = 0;
  fake.count = 0;
  EXPECT_EQ(died.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(call().message(), died.message());
  EXPECT_EQ(machine.stream.synchronize().message(), died.message());
  EXPECT_EQ(fake.count, 0);
}

TEST(CudaKernels, ALibraryWithoutKernelsSaysSo) {
  FakeDriver fake;
  const auto kernels = load_kernels(open_device(), {}, {});
  ASSERT_FALSE(kernels);
  EXPECT_EQ(kernels.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(kernels.error().message(), "libkvfolio_cuda was built without nvcc and has no kernels");
}

TEST(CudaDeviceBuffer, BytesComeAndGoAndItsMemoryIsGivenBack) {
  FakeDriver fake;
  with_kernels(fake);
  PublicMachine machine;
  auto memory = *DeviceMemory::create(machine.device, {.later_bytes = 0});
  const std::size_t open = fake.open();
  {
    DeviceBuffer buffer = *DeviceBuffer::allocate(*memory, 40);
    EXPECT_EQ(fake.open(), open + 1);
    EXPECT_EQ(buffer.bytes(), 40);
    EXPECT_EQ(buffer.span().size(), 40u);
    EXPECT_EQ(buffer.span<std::int64_t>().size(), 5u);
    EXPECT_EQ(static_cast<void*>(buffer.span<float>().data()), buffer.data());
    const std::int32_t in[] = {1, 2, 3};
    std::int32_t out[3] = {};
    ASSERT_TRUE(buffer.copy_in(std::span<const std::int32_t>(in), 28).ok());
    ASSERT_TRUE(buffer.copy_out(std::span<std::int32_t>(out), 28).ok());
    EXPECT_TRUE(std::equal(in, in + 3, out));
    ASSERT_TRUE(buffer.copy_out(std::span<std::byte>(), 40).ok());
    for (const std::int64_t at : {std::int64_t{29}, std::int64_t{41}, std::int64_t{-1}}) {
      const Status refused = buffer.copy_in(std::span<const std::int32_t>(in), at);
      EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
      EXPECT_EQ(refused.message(),
                "12 bytes from byte " + std::to_string(at) + " on, of a buffer of 40");
      EXPECT_EQ(buffer.copy_out(std::span<std::int32_t>(out), at).message(), refused.message());
    }
    DeviceBuffer moved = std::move(buffer);
    // NOLINTNEXTLINE(bugprone-use-after-move): it has nothing
    EXPECT_EQ(buffer.data(), nullptr);
    EXPECT_EQ(fake.open(), open + 1);
    moved = *DeviceBuffer::allocate(*memory, 8);
    EXPECT_EQ(fake.open(), open + 1);
    fake.always["cuMemcpyHtoDAsync"] = 999;
    EXPECT_EQ(moved.copy_in(std::span<const std::int32_t>(in, 2)).code(), ErrorCode::kUnavailable);
    fake.always.clear();
  }
  EXPECT_EQ(fake.open(), open);
  EXPECT_EQ(DeviceBuffer::allocate(*memory, 0).error().code(), ErrorCode::kInvalidArgument);
  DeviceBuffer none;
  EXPECT_EQ(none.copy_in(std::span<const std::int32_t>()).code(), ErrorCode::kOk);
  EXPECT_TRUE(none.span().empty());
}

// An event orders two streams, whatever is late.
TEST(CudaDeviceBuffer, IsNotTakenWithinACaptureOfItsThread) {
  FakeDriver fake;
  const auto device = open_device();
  const auto memory = *DeviceMemory::create(device);
  const Stream stream = *Stream::create(device);
  const std::size_t open = fake.open();
  const auto allocates = [&]() -> Status {
    const Result<DeviceBuffer> taken = DeviceBuffer::allocate(*memory, 4096);
    return taken ? Status() : taken.error();
  };
  const Result<Graph> refused = Graph::capture(device, stream.handle(), allocates);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("error 900"));
  EXPECT_EQ(fake.open(), open);
  EXPECT_TRUE(Graph::capture(device, stream.handle(), [] { return Status(); }));
  EXPECT_TRUE(allocates().ok()) << "no capture is open";
}

TEST(CudaKernels, WorkBehindAnEventComesAfterIt) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    FakeDriver fake(seed);
    with_kernels(fake);
    PublicMachine machine;
    OneToken one(machine);
    auto other = *Stream::create(machine.device);
    auto event = *Event::create(machine.device);
    EXPECT_TRUE(*event.passed());
    ASSERT_TRUE(fill(*machine.kernels, one.cache.device.view, std::byte{1}, other.handle()).ok());
    ASSERT_TRUE(event.record(other.handle()).ok());
    ASSERT_TRUE(event.hold_back(machine.stream.handle()).ok());
    ASSERT_TRUE(
        fill(*machine.kernels, one.cache.device.view, std::byte{2}, machine.stream.handle()).ok());
    ASSERT_TRUE(machine.stream.synchronize().ok());
    EXPECT_TRUE(*event.passed());
    EXPECT_TRUE(*other.done());
    std::byte got{};
    machine.download(&got, one.cache.device.view.k, 1);
    EXPECT_EQ(got, std::byte{2});
  }
}

}  // namespace
}  // namespace kvfolio::cuda
