// SPDX-License-Identifier: Apache-2.0

#include "cuda/move_module.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

constexpr unsigned kModuleThreads = 256;
constexpr std::array kRows{Element::kF32, Element::kF16, Element::kBF16};
constexpr std::array kScaled{Element::kInt8, Element::kE4M3};
constexpr std::array kAll{Element::kF32, Element::kF16, Element::kBF16, Element::kInt8,
                          Element::kE4M3};

std::string_view name_of(Element element) {
  constexpr std::array<std::string_view, 5> kNames{"f32", "f16", "bf16", "int8", "e4m3"};
  return kNames[static_cast<std::size_t>(element)];
}

std::string_view name_of(MoveFamily family) {
  switch (family) {
    case MoveFamily::kAppendPlain:
    case MoveFamily::kAppendQuantized:
      return "append";
    case MoveFamily::kGather:
      return "gather";
    case MoveFamily::kConvert:
      return "convert";
    case MoveFamily::kCopyBlocks:
      return "copy";
    case MoveFamily::kFillBlocks:
      return "fill";
    case MoveFamily::kPackBlocks:
      return "pack";
    case MoveFamily::kUnpackBlocks:
      return "unpack";
    case MoveFamily::kScatter:
      return "scatter";
    case MoveFamily::kRunsIn:
      return "runs_in";
    case MoveFamily::kRunsOut:
      return "runs_out";
    case MoveFamily::kPlanEntries:
      return "plan_entries";
    case MoveFamily::kPlanRows:
      return "plan_rows";
  }
  return "";
}

std::size_t index_of(const MoveKernel& kernel) {
  std::size_t index = static_cast<std::size_t>(kernel.family);
  index = index * 5 + static_cast<std::size_t>(kernel.from);
  index = index * 5 + static_cast<std::size_t>(kernel.to);
  return (index * 2 + (kernel.wide ? 1 : 0)) * 2 + (kernel.long_rows ? 1 : 0);
}

}  // namespace

std::string symbol_of(const MoveKernel& kernel) {
  const std::string_view family = name_of(kernel.family);
  const std::string_view wide = kernel.wide ? "wide" : "narrow";
  if (kernel.family >= MoveFamily::kScatter) return concat("kvfolio_", family);
  if (kernel.family >= MoveFamily::kCopyBlocks) return concat("kvfolio_", family, "_", wide);
  std::string name =
      concat("kvfolio_", family, "_", name_of(kernel.from), "_", name_of(kernel.to), "_", wide);
  if (kernel.family != MoveFamily::kAppendQuantized) return name;
  return concat(name, kernel.long_rows ? "_long" : "_short");
}

std::vector<MoveKernel> all_move_kernels() {
  std::vector<MoveKernel> all;
  for (const bool wide : {true, false}) {
    for (const Element from : kRows) {
      for (const Element to : kRows) {
        all.push_back({MoveFamily::kAppendPlain, from, to, wide, false});
      }
      for (const Element to : kScaled) {
        if (wide) all.push_back({MoveFamily::kAppendQuantized, from, to, true, false});
        all.push_back({MoveFamily::kAppendQuantized, from, to, wide, true});
      }
    }
    for (const Element from : kAll) {
      for (const Element to : kRows) all.push_back({MoveFamily::kGather, from, to, wide, false});
      for (const Element to : kAll) all.push_back({MoveFamily::kConvert, from, to, wide, false});
    }
    for (const MoveFamily family : {MoveFamily::kCopyBlocks, MoveFamily::kFillBlocks,
                                    MoveFamily::kPackBlocks, MoveFamily::kUnpackBlocks}) {
      all.push_back({family, Element::kF32, Element::kF32, wide, false});
    }
  }
  for (const MoveFamily family : {MoveFamily::kScatter, MoveFamily::kRunsIn, MoveFamily::kRunsOut,
                                  MoveFamily::kPlanEntries, MoveFamily::kPlanRows}) {
    all.push_back({.family = family});
  }
  return all;
}

Result<std::shared_ptr<MoveModule>> MoveModule::load(const std::shared_ptr<Device>& device,
                                                     const void* image) {
  std::shared_ptr<MoveModule> result(new MoveModule(device));
  KVFOLIO_RETURN_IF_ERROR(device->run("to load its kernels", [&](const DriverCalls& calls) {
    return calls.module_load(&result->module_, image);
  }));
  for (const MoveKernel& kernel : all_move_kernels()) {
    const std::string symbol = symbol_of(kernel);
    void*& function = result->functions_[index_of(kernel)];
    KVFOLIO_RETURN_IF_ERROR(device->run([&] { return concat("to find its kernel ", symbol); },
                                        [&](const DriverCalls& calls) {
                                          return calls.module_function(&function, result->module_,
                                                                       symbol.c_str());
                                        }));
  }
  return result;
}

MoveModule::~MoveModule() {
  if (module_ == nullptr) return;
  static_cast<void>(device_->run("to unload its kernels", [&](const DriverCalls& calls) {
    return calls.module_unload(module_);
  }));
}

void* MoveModule::function(const MoveKernel& kernel) const noexcept {
  const std::size_t index = index_of(kernel);
  return index < functions_.size() ? functions_[index] : nullptr;
}

Status launch_runs(Queue& queue, bool in, const RunsArgs& args, std::size_t count) {
  constexpr std::int64_t kBytesOfBlock = 256 * 4 * 16;  // of threads, see move_runs
  std::int64_t most = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max<std::int64_t>(most, args.runs[i].bytes);
  const Grid grid{static_cast<std::uint32_t>(
                      std::clamp<std::int64_t>((most + kBytesOfBlock - 1) / kBytesOfBlock, 1, 64)),
                  static_cast<std::uint32_t>(count), 1};
  return queue.launch({.family = in ? MoveFamily::kRunsIn : MoveFamily::kRunsOut}, grid, &args,
                      sizeof args);
}

Status DriverQueue::launch(const MoveKernel& kernel, const Grid& grid, const void* args,
                           std::size_t) {
  void* const function = module_->function(kernel);
  if (function == nullptr) {
    return {ErrorCode::kUnsupported, concat("there is no kernel ", symbol_of(kernel))};
  }
  void* parameters[] = {const_cast<void*>(args)};
  return module_->device().run([&] { return concat("to start ", symbol_of(kernel)); },
                               [&](const DriverCalls& calls) {
                                 return calls.launch(function, grid.x, grid.y, grid.z,
                                                     kModuleThreads, 1, 1, 0, stream_, parameters,
                                                     nullptr);
                               });
}

}  // namespace kvfolio::cuda
