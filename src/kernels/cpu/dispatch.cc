// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/dispatch.h"

#include <array>
#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

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

#if defined(__x86_64__)
// A bit of what cpuid says; false where the CPU does not know the leaf.
bool cpu_bit(unsigned leaf, unsigned subleaf, int index, int bit) noexcept {
  std::array<unsigned, 4> out{};  // eax, ebx, ecx, edx
  if (__get_cpuid_count(leaf, subleaf, &out[0], &out[1], &out[2], &out[3]) == 0) return false;
  return (out[static_cast<std::size_t>(index)] >> bit & 1u) != 0;
}
#endif

bool cpu_runs(KernelTarget target) noexcept {
  switch (target) {
    case KernelTarget::kReference:
      return true;
#if defined(__x86_64__)
    case KernelTarget::kPortable:
      return true;
    // The compiler's check also asks whether the system keeps the registers; it does not know every
    // name with every compiler.
    case KernelTarget::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             cpu_bit(1, 0, 2, 29);  // F16C
    case KernelTarget::kAvx512:
      return cpu_runs(KernelTarget::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case KernelTarget::kAvx512Bf16:
      return cpu_runs(KernelTarget::kAvx512) && cpu_bit(7, 1, 0, 5) &&  // BF16
             cpu_bit(7, 0, 2, 11);                                      // VNNI
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

// Whether the fast targets take the cache.
bool takes(const KVView& cache) noexcept {
  const auto fits = [](std::int32_t dim) { return dim >= 8 && dim <= kMaxHeadDim && dim % 8 == 0; };
  return cache.dtype != DType::kF64 && fits(cache.head_dim_k) && fits(cache.head_dim_v);
}

Status not_taken(const KVView& cache, KernelTarget target) {
  return unsupported(concat("kernel target ", std::string_view(to_string(target)),
                            " does not take a cache of ", std::string_view(to_string(cache.dtype)),
                            " with head_dim_k ", cache.head_dim_k, " and head_dim_v ",
                            cache.head_dim_v,
                            ", allowed: f32, f16, bf16, int8 and multiples of 8 to ", kMaxHeadDim,
                            "; the reference takes any"));
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
  const bool taken = kernels::takes(cache);
  if (wanted == KernelTarget::kAuto && here.wanted != nullptr) {
    const Result<KernelTarget> named = parse_kernel_target(here.wanted);
    if (!named) {
      return kernels::invalid(text::concat("KVFOLIO_KERNEL: ", named.error().message()));
    }
    wanted = *named;
  }
  if (wanted == KernelTarget::kAuto) {
    return taken ? here.targets[here.count - 1] : KernelTarget::kReference;
  }
  if (!kernels::cpu_runs(wanted)) {
    const std::string_view name = to_string(wanted);
    return Status{name == "invalid" ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported,
                  text::concat("target is ", static_cast<std::int32_t>(wanted), " (", name,
                               "), allowed on this machine: ", kernels::names_here())};
  }
  if (wanted == KernelTarget::kReference || taken) return wanted;
  return kernels::not_taken(cache, wanted);
}

}  // namespace kvfolio
