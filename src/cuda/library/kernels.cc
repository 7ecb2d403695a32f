// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <string>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "cuda/library/loaded.h"
#include "cuda/move.h"
#include "cuda/pointers.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

// No default: a new type has to be thought of here. f64 is refused by the checks of a call.
DeviceCache cache_of(const KVView& view) { return {.view = view}; }

}  // namespace

static_assert(kNoEntry == kNoFault);

Kernels::Kernels(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Kernels::~Kernels() = default;
Device& Kernels::device() const noexcept { return *impl_->device; }

Result<std::shared_ptr<Kernels>> load_kernels(const std::shared_ptr<Device>& device,
                                              const KernelOptions& options,
                                              std::span<const KernelImage> images) {
  KVFOLIO_RETURN_IF_ERROR(check_device(device));
  const auto moves = std::find_if(images.begin(), images.end(),
                                  [](const KernelImage& image) { return image.name == "moves"; });
  if (moves == images.end()) {
    return Status(ErrorCode::kUnavailable,
                  "libkvfolio_cuda was built without nvcc and has no kernels");
  }
  Result<std::shared_ptr<MoveModule>> module = MoveModule::load(device, moves->data);
  if (!module) return module.error();
  auto impl = std::make_unique<Kernels::Impl>(device, options, images);
  impl->moves = *std::move(module);
  return std::make_shared<Kernels>(std::move(impl));
}

Result<std::shared_ptr<Kernels>> Kernels::load(const std::shared_ptr<Device>& device,
                                               const KernelOptions& options) {
  return load_kernels(device, options, kernel_images());
}

// ---- whose memory ----

PointerCheck::PointerCheck(Kernels& kernels, void* stream)
    : wanted_(kernels.impl().options.check_pointers), device_(kernels.device()) {
  if (wanted_) status_ = check_stream(device_, stream);
}

PointerCheck& PointerCheck::device(std::string_view name, const void* pointer) {
  if (wanted_ && status_.ok()) status_ = check_device_pointer(device_, name, pointer);
  return *this;
}

PointerCheck& PointerCheck::host(std::string_view name, const void* pointer) {
  if (wanted_ && status_.ok()) status_ = check_host_pointer(device_, name, pointer);
  return *this;
}

PointerCheck& PointerCheck::cache(std::string_view name, const KVView& view) {
  if (!wanted_) return *this;
  return device(concat(name, ".k"), view.k)
      .device(concat(name, ".v"), view.v)
      .device(concat(name, ".k_scale"), view.k_scale)
      .device(concat(name, ".v_scale"), view.v_scale);
}

// ---- moves ----

namespace {

// Lists of blocks that the host reads.
Status check_lists(std::span<const std::int32_t> src, std::span<const std::int32_t> dst) {
  for (const auto& [name, list] : {std::pair{"src", src}, std::pair{"dst", dst}}) {
    if (list.data() == nullptr && !list.empty()) return invalid(concat(name, " is null"));
  }
  return {};
}

}  // namespace

Status append(Kernels& kernels, const KVView& cache, std::int32_t layer, const ConstRowsView& k,
              const ConstRowsView& v, std::span<const std::int32_t> slots, void* stream,
              Fault fault) {
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, stream)
                              .cache("cache", cache)
                              .device("k", k.data)
                              .device("v", v.data)
                              .device("slots", slots.data())
                              .device("fault", fault)
                              .status());
  DriverQueue queue(kernels.impl().moves, stream);
  return append(cache_of(cache), layer, k, v, slots.data(), slots.size(), queue, fault);
}

Status gather(Kernels& kernels, const kvfolio::GatherArgs& args, void* stream, Fault fault) {
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, stream)
                              .cache("cache", args.cache)
                              .device("k", args.k.data)
                              .device("v", args.v.data)
                              .device("block_table", args.block_table.data())
                              .device("fault", fault)
                              .status());
  DriverQueue queue(kernels.impl().moves, stream);
  return gather(cache_of(args.cache), args, queue, fault);
}

Status copy_blocks(Kernels& kernels, const KVView& cache, std::span<const std::int32_t> src,
                   std::span<const std::int32_t> dst, void* stream) {
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, stream)
                              .cache("cache", cache)
                              .host("src", src.data())
                              .host("dst", dst.data())
                              .status());
  KVFOLIO_RETURN_IF_ERROR(check_lists(src, dst));
  DriverQueue queue(kernels.impl().moves, stream);
  return copy_blocks(cache_of(cache), src, dst, queue);
}

Status convert_blocks(Kernels& kernels, const KVView& from, const KVView& to,
                      std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                      void* stream) {
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, stream)
                              .cache("from", from)
                              .cache("to", to)
                              .host("src", src.data())
                              .host("dst", dst.data())
                              .status());
  KVFOLIO_RETURN_IF_ERROR(check_lists(src, dst));
  DriverQueue queue(kernels.impl().moves, stream);
  return convert_blocks(cache_of(from), cache_of(to), src, dst, queue);
}

Status fill(Kernels& kernels, const KVView& cache, std::byte value, void* stream) {
  KVFOLIO_RETURN_IF_ERROR(PointerCheck(kernels, stream).cache("cache", cache).status());
  DriverQueue queue(kernels.impl().moves, stream);
  return fill(cache_of(cache), value, queue);
}

}  // namespace kvfolio::cuda
