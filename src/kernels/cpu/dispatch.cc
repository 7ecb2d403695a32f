// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dispatch.h"

#include <array>
#include <cstdlib>
#include <string>

#include "base/text.h"

namespace kvfolio {
namespace kernels {
namespace {

using text::concat;

Status invalid(std::string message) { return {ErrorCode::kInvalidArgument, std::move(message)}; }
Status unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }

struct Name {
  KernelTarget target;
  const char* name;
};

// Of all machines, slowest first.
constexpr std::array<Name, 6> kNames = {{{KernelTarget::kReference, "reference"},
                                         {KernelTarget::kPortable, "portable"},
                                         {KernelTarget::kNeon, "neon"},
                                         {KernelTarget::kAvx2, "avx2"},
                                         {KernelTarget::kAvx512, "avx512"},
                                         {KernelTarget::kAvx512Bf16, "avx512-bf16"}}};

bool cpu_runs(KernelTarget target) noexcept {
  switch (target) {
    case KernelTarget::kReference:
      return true;
#if defined(__x86_64__)
    // The compiler's own check asks the CPU, and whether the system keeps the registers.
    case KernelTarget::kPortable:
      return true;
    case KernelTarget::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case KernelTarget::kAvx512:
      return cpu_runs(KernelTarget::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case KernelTarget::kAvx512Bf16:
      return cpu_runs(KernelTarget::kAvx512) && __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__)
    case KernelTarget::kNeon:
      return true;
#else
    case KernelTarget::kPortable:
      return true;
#endif
    default:
      return false;
  }
}

struct Machine {
  std::array<KernelTarget, kNames.size()> targets{};
  std::size_t count = 0;
  const char* wanted = nullptr;  // KVFOLIO_KERNEL, null or empty: none

  Machine() noexcept {
    for (const Name& name : kNames) {
      if (cpu_runs(name.target)) targets[count++] = name.target;
    }
    wanted = std::getenv("KVFOLIO_KERNEL");
    if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
  }
};

const Machine& machine() noexcept {
  static const Machine kMachine;
  return kMachine;
}

std::string names_here() {
  std::string names;
  for (const KernelTarget target : kernel_targets()) {
    names += names.empty() ? "" : ", ";
    names += to_string(target);
  }
  return names;
}

// Why a fast target does not take the cache; empty when it does.
std::string refusal(const KVView& cache) {
  if (cache.dtype == DType::kF64) return "a cache of f64";
  for (const std::int32_t dim : {cache.head_dim_k, cache.head_dim_v}) {
    if (dim < 8 || dim > kMaxHeadDim || dim % 8 != 0) {
      return concat("head_dim_k ", cache.head_dim_k, " and head_dim_v ", cache.head_dim_v,
                    ": they take multiples of 8 to ", kMaxHeadDim);
    }
  }
  return {};
}

}  // namespace

const TargetKernels& kernels_of(KernelTarget target) noexcept {
  switch (target) {
#if defined(__x86_64__)
    case KernelTarget::kAvx2:
      return avx2_kernels();
    case KernelTarget::kAvx512:
      return avx512_kernels();
    case KernelTarget::kAvx512Bf16:
      return avx512_bf16_kernels();
#endif
    default:
#if defined(__aarch64__)
      return neon_kernels();
#else
      return portable_kernels();
#endif
  }
}

}  // namespace kernels

const char* to_string(KernelTarget target) noexcept {
  if (target == KernelTarget::kAuto) return "auto";
  for (const kernels::Name& name : kernels::kNames) {
    if (name.target == target) return name.name;
  }
  return "invalid";
}

Result<KernelTarget> parse_kernel_target(std::string_view name) {
  if (name == "auto") return KernelTarget::kAuto;
  std::string all = "auto";
  for (const kernels::Name& known : kernels::kNames) {
    if (name == known.name) return known.target;
    all += std::string(", ") + known.name;
  }
  return kernels::invalid(text::concat("kernel target \"", name, "\", allowed: ", all));
}

std::span<const KernelTarget> kernel_targets() noexcept {
  const kernels::Machine& here = kernels::machine();
  return {here.targets.data(), here.count};
}

Result<KernelTarget> choose_kernel_target(const KVView& cache, KernelTarget wanted) {
  const kernels::Machine& here = kernels::machine();
  const std::string why_not = kernels::refusal(cache);
  if (wanted == KernelTarget::kAuto) {
    if (here.wanted == nullptr) {
      return why_not.empty() ? here.targets[here.count - 1] : KernelTarget::kReference;
    }
    const Result<KernelTarget> named = parse_kernel_target(here.wanted);
    if (!named) return kernels::invalid(text::concat("KVFOLIO_KERNEL: ", named.error().message()));
    if (*named == KernelTarget::kAuto) {
      return why_not.empty() ? here.targets[here.count - 1] : KernelTarget::kReference;
    }
    wanted = *named;
  }
  if (!kernels::cpu_runs(wanted)) {
    return kernels::unsupported(
        text::concat("kernel target ", std::string_view(to_string(wanted)),
                     " does not run here, allowed: ", kernels::names_here()));
  }
  if (wanted == KernelTarget::kReference || why_not.empty()) return wanted;
  return kernels::unsupported(text::concat("kernel target ", std::string_view(to_string(wanted)),
                                           " does not take ", why_not,
                                           "; the reference takes any"));
}

}  // namespace kvfolio
