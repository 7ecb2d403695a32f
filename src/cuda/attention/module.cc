// SPDX-License-Identifier: Apache-2.0

// The numbers below are those of kernels.cuh, which a host compiler cannot read without a model of
// a GPU: attend_twin_test.cc compares them with it, scripts/cuda-images the names with what nvcc
// made.

#include "cuda/attention/module.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace kvfolio::cuda {
namespace {

using text::concat;

constexpr std::int32_t kSharedOfAnyKernel = 48 << 10;

// Stages, blocks of an SM and shared memory of node_kernel, and what the others have.
struct TileNumbers {
  std::int32_t few_stages, few_blocks, few_bytes;
  std::int32_t many_stages, many_blocks, many_bytes;
};
struct SameNumbers {  // in both sets
  std::int32_t prefill_bytes;
  std::int32_t stream_bytes;
  std::int32_t narrow_bytes;
  std::int32_t wgmma_tiles_bytes;
};
struct Numbers {
  TileNumbers tiles[2];  // by KernelSet
  SameNumbers same;
};
constexpr Numbers kHalf64{{{6, 2, 106496, 3, 4, 57344}, {4, 2, 73728, 2, 3, 40960}},
                          {109056, 75536, 35328, 117760}};
constexpr Numbers kHalf128{{{3, 2, 106496, 2, 3, 73728}, {2, 2, 73728, 2, 2, 73728}},
                           {207360, 76304, 68096, 0}};
constexpr Numbers kByte64{{{12, 2, 114688, 5, 4, 57344}, {8, 2, 81920, 4, 3, 49152}},
                          {96768, 0, 23040, 147456}};
constexpr Numbers kByte128{{{6, 2, 114688, 3, 3, 65536}, {4, 2, 81920, 2, 3, 49152}},
                           {178688, 0, 39424, 221184}};
// In the set for sm_90a alone.
constexpr Numbers kHalf256{{{3, 1, 204800, 3, 1, 204800}, {}}, {}};
constexpr Numbers kByte256{{{6, 1, 212992, 6, 1, 212992}, {}}, {}};

const Numbers& numbers_of(Element element, std::int32_t head_dim) {
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

AttendKernel node_kernel_of(const KernelLaunch& launch, KernelSet set) {
  if (launch.head_dim == 256 && launch.group_rows != 8) return {};
  const TileNumbers& numbers =
      numbers_of(launch.element, launch.head_dim).tiles[static_cast<std::size_t>(set)];
  const bool many = launch.many_nodes && launch.group_rows == 8;
  const std::int32_t stages = many ? numbers.many_stages : numbers.few_stages;
  const std::int32_t blocks = many ? numbers.many_blocks : numbers.few_blocks;
  return {mangled("node_kernel",
                  concat(mangled(launch.element, launch.head_dim), mangled(launch.group_rows / 8),
                         mangled(stages), mangled(blocks))),
          128, many ? numbers.many_bytes : numbers.few_bytes};
}

bool has_tiles(const KernelLaunch& launch, KernelSet set) {
  return launch.element != Element::kF32 && (launch.head_dim == 64 || launch.head_dim == 128 ||
                                             (launch.head_dim == 256 && set == KernelSet::kSm90a));
}

}  // namespace

KernelSet set_of(std::int32_t major, std::int32_t minor) noexcept {
  return major == 9 && minor == 0 ? KernelSet::kSm90a : KernelSet::kSm80;
}

AttendKernel kernel_of(const KernelLaunch& launch, KernelSet set) {
  if (launch.kernel == KernelName::kGeneral) {
    return {mangled("general_kernel", mangled(128)), 128, 21480};
  }
  if (launch.kernel == KernelName::kMerge) {
    return {mangled("merge_kernel", mangled(launch.group_rows)), 32, 0};
  }
  if (!has_tiles(launch, set)) return {};
  if (launch.kernel != KernelName::kNode && launch.head_dim == 256) return {};
  const SameNumbers& numbers = numbers_of(launch.element, launch.head_dim).same;
  const std::string tile = mangled(launch.element, launch.head_dim);
  switch (launch.kernel) {
    case KernelName::kNode:
      return node_kernel_of(launch, set);
    case KernelName::kPrefill:
      return {mangled("prefill_kernel", tile), 256, numbers.prefill_bytes};
    case KernelName::kStream:
      if (has_scales(launch.element)) return {};
      return {mangled("stream_kernel", tile), 128, numbers.stream_bytes};
    case KernelName::kWgmma:
      if (set != KernelSet::kSm90a || has_scales(launch.element) || launch.head_dim != 128) {
        return {};
      }
      return {mangled("wgmma_kernel", launch.element == Element::kF16 ? "Lb1E" : "Lb0E"), 384,
              232448};
    case KernelName::kNarrow:
      if (set != KernelSet::kSm80) return {};
      return {mangled("narrow_kernel", tile), 256, numbers.narrow_bytes};
    case KernelName::kWgmmaTiles:
      if (set != KernelSet::kSm90a || (!has_scales(launch.element) && launch.head_dim != 64)) {
        return {};
      }
      return {mangled("wgmma_tiles_kernel", tile), 384, numbers.wgmma_tiles_bytes};
    default:
      return {};
  }
}

AttendKernel plan_kernel_of() {
  return {"_ZN7kvfolio4cuda11plan_kernelILi256EEEvNS0_10PaddedArgsE", 256, 33296};
}

std::string image_of(const KernelLaunch& launch, KernelSet set) {
  const std::string_view of_set = set == KernelSet::kSm80 ? "attend_sm80" : "attend";
  if (launch.kernel == KernelName::kGeneral || launch.kernel == KernelName::kMerge) {
    return std::string(of_set);
  }
  return concat(of_set, "_", to_string(launch.element), "_", launch.head_dim);
}

std::vector<KernelLaunch> launches_of_tiles(Element element, std::int32_t head_dim, KernelSet set) {
  std::vector<KernelLaunch> launches;
  for (const KernelName kernel :
       {KernelName::kNode, KernelName::kPrefill, KernelName::kWgmma, KernelName::kStream,
        KernelName::kNarrow, KernelName::kWgmmaTiles}) {
    for (const std::int32_t group_rows : {8, 16}) {
      for (const bool many : {false, true}) {
        KernelLaunch launch;
        launch.kernel = kernel;
        launch.element = element;
        launch.head_dim = head_dim;
        launch.group_rows = group_rows;
        launch.many_nodes = many;
        if (!kernel_of(launch, set).symbol.empty()) launches.push_back(launch);
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

// ---- what a card has room for ----

namespace {

std::string without_room(const KernelLaunch& launch, KernelSet set, const SharedMemory& shared,
                         std::string_view card) {
  return concat(to_string(launch.kernel), " of ", to_string(launch.element), ", head_dim ",
                launch.head_dim, ", takes ", kernel_of(launch, set).shared_bytes,
                " bytes of shared memory for a block, ", card, " has ", shared.of_block);
}

// Whether cuda-node takes the call on a card that has it for head_dim 256.
bool takes_wide_tiles(const AttentionCall& call) {
  const CacheArgs& cache = call.cache;
  if (cache.dim_k != 256 || cache.dim_v != 256 || cache.element == Element::kF32) return false;
  return has_scales(cache.element) ? call.q_element != Element::kF32
                                   : call.q_element == cache.element;
}

}  // namespace

CardChoice choose_kernels(const AttentionCall& call, KernelSet set, const SharedMemory& shared,
                          std::int32_t num_sms, std::string_view card) {
  CardChoice result;
  KernelChoice& choice = result.choice;
  choice.num_sms = num_sms;
  KernelLaunch launch;
  launch.element = call.cache.element;
  launch.head_dim = call.cache.dim_k;
  choice.wide_tiles = set == KernelSet::kSm90a;
  if (!has_tiles(launch, set)) {  // those that take any shape fit every card
    if (takes_wide_tiles(call)) {
      result.left_out.push_back(concat("cuda-node of ", to_string(launch.element), ", head_dim ",
                                       launch.head_dim,
                                       ", is compiled for compute capability 9.0 alone"));
    }
    return result;
  }
  const auto blocks = [&](KernelName name) {
    launch.kernel = name;
    const AttendKernel kernel = kernel_of(launch, set);
    if (kernel.symbol.empty()) return 0;
    const std::int32_t beside_each_other = shared.blocks(kernel.shared_bytes);
    if (beside_each_other == 0) {
      result.left_out.push_back(without_room(launch, set, shared, card));
    }
    return beside_each_other;
  };
  const bool by_default = blocks(KernelName::kWgmma) > 0;
  launch.kernel = KernelName::kWgmmaTiles;  // no default, so no sentence says that it is left out
  const AttendKernel asked_for = kernel_of(launch, set);
  choice.wgmma =
      by_default || (!asked_for.symbol.empty() && shared.blocks(asked_for.shared_bytes) > 0);
  if (!by_default && blocks(KernelName::kPrefill) == 0) {
    choice.narrow = choice.prefill = blocks(KernelName::kNarrow) > 0;
  }
  choice.stream_blocks_of_sm = std::min(3, blocks(KernelName::kStream));
  choice.stream = choice.stream_blocks_of_sm > 0;
  return result;
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
    const AttendKernel kernel = kernel_of(launch, set());
    if (shared_.blocks(kernel.shared_bytes) == 0) continue;  // choose() left it out
    Result<Function> function = find(module, kernel);
    if (!function) return function.error();
    functions_[index_of(launch)] = *function;
  }
  if (name == image_of(other_launches()[0], set())) {
    Result<Function> function = find(module, plan_kernel_of());
    if (!function) return function.error();
    plan_ = *function;
  }
  loaded_.push_back(name);
  return {};
}

bool AttendModules::has_image(const std::string& name) const noexcept {
  return std::any_of(images_.begin(), images_.end(),
                     [&](const KernelImage& image) { return image.name == name; });
}

Status AttendModules::ask_shared_memory() {
  const std::lock_guard lock(mutex_);
  if (shared_.of_block > 0) return {};
  SharedMemory shared;
  KVFOLIO_RETURN_IF_ERROR(
      device_->run("to say how much shared memory it has", [&](const DriverCalls& calls) {
        int device = 0;
        DriverResult error = calls.device_get(&device, device_->ordinal());
        for (const auto& [value, attribute] : {std::pair{&shared.of_block, kSharedBytesOfBlock},
                                               {&shared.of_sm, kSharedBytesOfSm},
                                               {&shared.kept_of_block, kSharedBytesKept}}) {
          if (error == 0) error = calls.device_attribute(value, attribute, device);
        }
        return error;
      }));
  shared_ = shared;
  return {};
}

std::int32_t AttendModules::blocks_of(const KernelLaunch& launch) const noexcept {
  const AttendKernel kernel = kernel_of(launch, set());
  return kernel.symbol.empty() ? 0 : shared_.blocks(kernel.shared_bytes);
}

std::string AttendModules::no_room(const KernelLaunch& launch) const {
  return without_room(launch, set(), shared_,
                      concat("device ", device_->ordinal(), " (", device_->name(), ")"));
}

Result<CardChoice> AttendModules::choose(const AttentionCall& call) {
  KVFOLIO_RETURN_IF_ERROR(ask_shared_memory());
  return choose_kernels(call, set(), shared_, device_->num_multiprocessors(),
                        concat("device ", device_->ordinal(), " (", device_->name(), ")"));
}

Result<AttendModules::Function> AttendModules::find(void* module,
                                                    const AttendKernel& kernel) const {
  Function function{nullptr, kernel.threads, kernel.shared_bytes};
  KVFOLIO_RETURN_IF_ERROR(device_->run(
      [&] { return concat("to find its kernel ", kernel.symbol); },
      [&](const DriverCalls& calls) {
        const DriverResult error =
            calls.module_function(&function.handle, module, kernel.symbol.c_str());
        if (error != 0 || kernel.shared_bytes <= kSharedOfAnyKernel) return error;
        return calls.function_attribute(function.handle, kDynamicSharedBytes, kernel.shared_bytes);
      }));
  return function;
}

Status AttendModules::prepare(const AttentionCall& call, const AttentionPlan& plan) {
  const std::lock_guard lock(mutex_);
  const auto have = [&](const std::string& name) {
    return std::find(loaded_.begin(), loaded_.end(), name) != loaded_.end();
  };
  KernelLaunch launch;
  const std::string others = image_of(launch, set());
  const KernelSet other = set() == KernelSet::kSm80 ? KernelSet::kSm90a : KernelSet::kSm80;
  if (!has_image(others) && has_image(image_of(launch, other))) {
    return {ErrorCode::kUnsupported,
            concat("attention is compiled for compute capability ",
                   set() == KernelSet::kSm80 ? "9.0" : "8.0 and later but for 9.0", ", device ",
                   device_->ordinal(), " (", device_->name(), ") has ", device_->capability_major(),
                   ".", device_->capability_minor())};
  }
  launch.element = call.cache.element;
  launch.head_dim = call.cache.dim_k;
  launch.group_rows = plan.group_rows;
  launch.many_nodes = plan.many_nodes;
  for (const KernelName kernel : kernels_of(plan)) {
    launch.kernel = kernel;
    if (blocks_of(launch) == 0) return {ErrorCode::kUnsupported, no_room(launch)};
  }
  if (!have(others)) KVFOLIO_RETURN_IF_ERROR(load(others, other_launches()));
  if (plan.family == Family::kGeneral) return {};
  launch.kernel = KernelName::kNode;
  const std::string tiles = image_of(launch, set());
  if (have(tiles)) return {};
  return load(tiles, launches_of_tiles(launch.element, launch.head_dim, set()));
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
  // Cards before 9.0 have no such launch, and the text of this set does not wait by itself.
  const bool overlaps = launch.overlaps_previous && set() == KernelSet::kSm90a;
  config.attributes = overlaps ? &overlap : nullptr;
  config.num_attributes = overlaps ? 1 : 0;
  void* parameters[] = {const_cast<AttendArgs*>(&launch.args)};
  return device_->run([&] { return concat("to start ", to_string(launch.kernel)); },
                      [&](const DriverCalls& calls) {
                        return calls.launch_with(&config, function.handle, parameters, nullptr);
                      });
}

Status AttendModules::launch_plan(const PaddedArgs& args, void* stream) {
  if (plan_.handle == nullptr) {
    return {ErrorCode::kUnsupported,
            concat("no kernel cuda-plan is loaded on device ", device_->ordinal(), " (",
                   device_->name(), "): make a plan with these kernels first")};
  }
  LaunchConfig config;
  config.grid_x = 1;
  config.block_x = static_cast<unsigned>(plan_.threads);
  config.shared_bytes = static_cast<unsigned>(plan_.shared_bytes);
  config.stream = stream;
  void* parameters[] = {const_cast<PaddedArgs*>(&args)};
  return device_->run("to start cuda-plan", [&](const DriverCalls& calls) {
    return calls.launch_with(&config, plan_.handle, parameters, nullptr);
  });
}

}  // namespace kvfolio::cuda
