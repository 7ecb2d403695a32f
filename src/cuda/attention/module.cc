// SPDX-License-Identifier: Apache-2.0

// The numbers below are those of kernels.cuh, which a host compiler cannot read without a model of
// a GPU: attend_twin_test.cc compares them with it, scripts/cuda-images the names with what nvcc
// made.

#include "cuda/attention/module.h"

#include <algorithm>

#include "base/text.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

constexpr int kDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr std::int32_t kSharedOfAnyKernel = 48 << 10;

// Stages, blocks of an SM and shared memory of node_kernel, and what the others have.
struct TileNumbers {
  std::int32_t few_stages, few_blocks, few_bytes;
  std::int32_t many_stages, many_blocks, many_bytes;
  std::int32_t prefill_bytes;
  std::int32_t stream_bytes;
  std::int32_t wgmma_tiles_bytes;
};
constexpr TileNumbers kHalf64{6, 2, 106496, 3, 4, 57344, 109056, 75536, 117760};
constexpr TileNumbers kHalf128{3, 2, 106496, 2, 3, 73728, 207360, 76304, 0};
constexpr TileNumbers kByte64{12, 2, 114688, 5, 4, 57344, 96768, 0, 147456};
constexpr TileNumbers kByte128{6, 2, 114688, 3, 3, 65536, 178688, 0, 221184};
constexpr TileNumbers kHalf256{3, 1, 204800, 3, 1, 204800, 0, 0, 0};
constexpr TileNumbers kByte256{6, 1, 212992, 6, 1, 212992, 0, 0, 0};

const TileNumbers& numbers_of(Element element, std::int32_t head_dim) {
  const bool bytes = has_scales(element);
  if (head_dim == 64) return bytes ? kByte64 : kHalf64;
  if (head_dim == 128) return bytes ? kByte128 : kHalf128;
  return bytes ? kByte256 : kHalf256;
}

// _ZN7kvfolio4cuda<name>I<arguments>EEvNS0_10AttendArgsE
std::string mangled(std::string_view name, std::string_view arguments) {
  return concat("_ZN7kvfolio4cuda", name.size(), name, "I", arguments, "EEvNS0_10AttendArgsE");
}
std::string mangled(std::int32_t number) { return concat("Li", number, "E"); }
std::string mangled(Element element, std::int32_t head_dim) {
  return concat("LNS0_7ElementE", static_cast<std::int32_t>(element), "E", mangled(head_dim));
}

AttendKernel node_kernel_of(const KernelLaunch& launch) {
  if (launch.head_dim == 256 && launch.group_rows != 8) return {};
  const TileNumbers& numbers = numbers_of(launch.element, launch.head_dim);
  const bool many = launch.many_nodes && launch.group_rows == 8;
  const std::int32_t stages = many ? numbers.many_stages : numbers.few_stages;
  const std::int32_t blocks = many ? numbers.many_blocks : numbers.few_blocks;
  return {mangled("node_kernel",
                  concat(mangled(launch.element, launch.head_dim), mangled(launch.group_rows / 8),
                         mangled(stages), mangled(blocks))),
          128, many ? numbers.many_bytes : numbers.few_bytes};
}

bool has_tiles(const KernelLaunch& launch) {
  return launch.element != Element::kF32 &&
         (launch.head_dim == 64 || launch.head_dim == 128 || launch.head_dim == 256);
}

}  // namespace

AttendKernel kernel_of(const KernelLaunch& launch) {
  if (launch.kernel == KernelName::kGeneral) {
    return {mangled("general_kernel", mangled(128)), 128, 21480};
  }
  if (launch.kernel == KernelName::kMerge) {
    return {mangled("merge_kernel", mangled(launch.group_rows)), 32, 0};
  }
  if (!has_tiles(launch)) return {};
  if (launch.kernel != KernelName::kNode && launch.head_dim == 256) return {};
  const TileNumbers& numbers = numbers_of(launch.element, launch.head_dim);
  const std::string tile = mangled(launch.element, launch.head_dim);
  switch (launch.kernel) {
    case KernelName::kNode:
      return node_kernel_of(launch);
    case KernelName::kPrefill:
      return {mangled("prefill_kernel", tile), 256, numbers.prefill_bytes};
    case KernelName::kStream:
      if (has_scales(launch.element)) return {};
      return {mangled("stream_kernel", tile), 128, numbers.stream_bytes};
    case KernelName::kWgmma:
      if (has_scales(launch.element) || launch.head_dim != 128) return {};
      return {mangled("wgmma_kernel", launch.element == Element::kF16 ? "Lb1E" : "Lb0E"), 384,
              232448};
    case KernelName::kWgmmaTiles:
      if (!has_scales(launch.element) && launch.head_dim != 64) return {};
      return {mangled("wgmma_tiles_kernel", tile), 384, numbers.wgmma_tiles_bytes};
    default:
      return {};
  }
}

std::string image_of(const KernelLaunch& launch) {
  if (launch.kernel == KernelName::kGeneral || launch.kernel == KernelName::kMerge) return "attend";
  return concat("attend_", to_string(launch.element), "_", launch.head_dim);
}

std::vector<KernelLaunch> launches_of_tiles(Element element, std::int32_t head_dim) {
  std::vector<KernelLaunch> launches;
  for (const KernelName kernel : {KernelName::kNode, KernelName::kPrefill, KernelName::kWgmma,
                                  KernelName::kStream, KernelName::kWgmmaTiles}) {
    for (const std::int32_t group_rows : {8, 16}) {
      for (const bool many : {false, true}) {
        KernelLaunch launch;
        launch.kernel = kernel;
        launch.element = element;
        launch.head_dim = head_dim;
        launch.group_rows = group_rows;
        launch.many_nodes = many;
        if (!kernel_of(launch).symbol.empty()) launches.push_back(launch);
      }
    }
  }
  return launches;
}

std::vector<KernelLaunch> other_launches() {
  KernelLaunch general, merge8, merge16;
  general.kernel = KernelName::kGeneral;
  merge8.kernel = merge16.kernel = KernelName::kMerge;
  merge16.group_rows = 16;
  return {general, merge8, merge16};
}

// ---- modules ----

std::size_t AttendModules::index_of(const KernelLaunch& launch) noexcept {
  const bool other = launch.kernel == KernelName::kGeneral || launch.kernel == KernelName::kMerge;
  std::size_t index = static_cast<std::size_t>(launch.kernel);
  index = index * 5 + (other ? 0 : static_cast<std::size_t>(launch.element));
  index = index * 3 + (other ? 0 : static_cast<std::size_t>(launch.head_dim) / 128);
  index = index * 2 + (launch.group_rows == 16 ? 1 : 0);
  return index * 2 + (!other && launch.many_nodes ? 1 : 0);
}

AttendModules::~AttendModules() {
  for (void* const module : modules_) {
    static_cast<void>(device_->run("to unload its kernels", [&](const DriverCalls& calls) {
      return calls.module_unload(module);
    }));
  }
}

Status AttendModules::load(const std::string& name, std::span<const KernelLaunch> launches) {
  const auto image = std::find_if(images_.begin(), images_.end(),
                                  [&](const KernelImage& other) { return other.name == name; });
  if (image == images_.end()) {
    return {ErrorCode::kUnsupported, concat("this build has no kernels ", name)};
  }
  void* module = nullptr;
  KVFOLIO_RETURN_IF_ERROR(device_->run(
      [&] { return concat("to load its kernels ", name); },
      [&](const DriverCalls& calls) { return calls.module_load(&module, image->data); }));
  modules_.push_back(module);
  for (const KernelLaunch& launch : launches) {
    const AttendKernel kernel = kernel_of(launch);
    Function function{nullptr, kernel.threads, kernel.shared_bytes};
    KVFOLIO_RETURN_IF_ERROR(
        device_->run([&] { return concat("to find its kernel ", kernel.symbol); },
                     [&](const DriverCalls& calls) {
                       const DriverResult error =
                           calls.module_function(&function.handle, module, kernel.symbol.c_str());
                       if (error != 0 || kernel.shared_bytes <= kSharedOfAnyKernel) return error;
                       return calls.function_attribute(function.handle, kDynamicSharedBytes,
                                                       kernel.shared_bytes);
                     }));
    functions_[index_of(launch)] = function;
  }
  loaded_.push_back(name);
  return {};
}

Status AttendModules::prepare(const AttentionCall& call, const AttentionPlan& plan) {
  if (device_->capability_major() != 9 || device_->capability_minor() != 0) {
    return {ErrorCode::kUnsupported,
            concat("attention is compiled for compute capability 9.0, device ", device_->ordinal(),
                   " (", device_->name(), ") has ", device_->capability_major(), ".",
                   device_->capability_minor())};
  }
  const std::lock_guard lock(mutex_);
  const auto have = [&](const std::string& name) {
    return std::find(loaded_.begin(), loaded_.end(), name) != loaded_.end();
  };
  if (!have("attend")) KVFOLIO_RETURN_IF_ERROR(load("attend", other_launches()));
  if (plan.family == Family::kGeneral) return {};
  KernelLaunch tile;
  tile.kernel = KernelName::kNode;
  tile.element = call.cache.element;
  tile.head_dim = call.cache.dim_k;
  if (have(image_of(tile))) return {};
  return load(image_of(tile), launches_of_tiles(tile.element, tile.head_dim));
}

Status AttendModules::launch(const KernelLaunch& launch, void* stream) {
  const Function& function = functions_[index_of(launch)];
  if (function.handle == nullptr) {
    return {ErrorCode::kUnsupported,
            concat("no kernel ", to_string(launch.kernel), " for ", to_string(launch.element),
                   ", head_dim ", launch.head_dim, " is loaded")};
  }
  LaunchAttribute overlap;
  overlap.id = kProgrammaticSerialization;
  overlap.value.number = 1;
  LaunchConfig config;
  config.grid_x = static_cast<unsigned>(launch.grid);
  config.block_x = static_cast<unsigned>(function.threads);
  config.shared_bytes = static_cast<unsigned>(function.shared_bytes);
  config.stream = stream;
  config.attributes = launch.overlaps_previous ? &overlap : nullptr;
  config.num_attributes = launch.overlaps_previous ? 1 : 0;
  void* parameters[] = {const_cast<AttendArgs*>(&launch.args)};
  return device_->run([&] { return concat("to start ", to_string(launch.kernel)); },
                      [&](const DriverCalls& calls) {
                        return calls.launch_with(&config, function.handle, parameters, nullptr);
                      });
}

}  // namespace kvfolio::cuda
