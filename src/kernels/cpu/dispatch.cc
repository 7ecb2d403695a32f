// SPDX-License-Identifier: Apache-2.0

// Which kernel targets this build has, which of them this CPU runs, and which one a call gets. The
// targets of an architecture are a list, slowest first, each with all that those before it need, so
// the fastest is the last that the CPU runs. KVFOLIO_KERNEL is read at each call, for tests and for
// people who look for a fault. driver.cc runs what is chosen here.

#include "kernels/cpu/dispatch.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "base/invalid.h"
#include "base/text.h"
#include "kernels/check.h"

namespace kvfolio {
namespace kernels {
namespace {

using text::concat;

Status unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }

// What a machine of this architecture may run, slowest first; each has what the ones before it
// have.
#if defined(__x86_64__)
constexpr KernelTarget kTargets[] = {KernelTarget::kReference, KernelTarget::kPortable,
                                     KernelTarget::kAvx2, KernelTarget::kAvx512,
                                     KernelTarget::kAvx512Bf16};
#elif defined(__aarch64__)
constexpr KernelTarget kTargets[] = {KernelTarget::kReference, KernelTarget::kNeon};
#else
constexpr KernelTarget kTargets[] = {KernelTarget::kReference, KernelTarget::kPortable};
#endif

// The compiler's check also asks whether the system keeps the registers, and remembers. Every CPU
// with AVX2 has F16C.
bool cpu_runs(KernelTarget target) noexcept {
  switch (target) {
#if defined(__x86_64__)
    case KernelTarget::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case KernelTarget::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case KernelTarget::kAvx512Bf16:
      return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
#endif
    default:
      return true;
  }
}

// What KVFOLIO_KERNEL says; empty when it is not set.
std::string_view environment() noexcept {
  const char* name = std::getenv("KVFOLIO_KERNEL");
  return name == nullptr ? std::string_view() : std::string_view(name);
}

std::string names(std::span<const KernelTarget> targets) {
  std::string all;
  for (const KernelTarget target : targets) {
    all += all.empty() ? "" : ", ";
    all += to_string(target);
  }
  return all;
}

bool runs_here(KernelTarget target) noexcept {
  const std::span<const KernelTarget> here = kernel_targets();
  return std::find(here.begin(), here.end(), target) != here.end();
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
                            ", allowed: f32, f16, bf16, int8, e4m3 and multiples of 8 to ",
                            kMaxHeadDim, "; the reference takes any"));
}

// Requires: the target takes the cache.
bool computes(const KVView& cache, const AttentionParams& params, KernelTarget target) noexcept {
  if (target == KernelTarget::kReference || !bends_scores(params)) return true;
  return attend_of(kernels_of(target), params, cache.dtype) != nullptr;
}

Status not_computed(const KVView& cache, const AttentionParams& params, KernelTarget target) {
  std::string able;
  for (const KernelTarget other : kernel_targets()) {
    if (!computes(cache, params, other)) continue;
    able += able.empty() ? "" : ", ";
    able += to_string(other);
  }
  return unsupported(
      concat("kernel target ", std::string_view(to_string(target)), " does not compute ",
             params.soft_cap > 0.0 ? "a soft cap (soft_cap)" : "ALiBi (alibi_slopes)",
             ", allowed on this machine: ", able));
}

// The target that was named, or why it cannot be.
Result<KernelTarget> allowed(const KVView& cache, const AttentionParams& params,
                             KernelTarget wanted) {
  if (!runs_here(wanted)) {
    const std::string_view name = to_string(wanted);
    return Status{name == "invalid" ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported,
                  concat("target is ", static_cast<std::int32_t>(wanted), " (", name,
                         "), allowed on this machine: ", names(kernel_targets()))};
  }
  if (wanted != KernelTarget::kReference && !takes(cache)) return not_taken(cache, wanted);
  if (!computes(cache, params, wanted)) return not_computed(cache, params, wanted);
  return wanted;
}

// The fastest that computes the call.
KernelTarget fastest(const KVView& cache, const AttentionParams& params) noexcept {
  std::span<const KernelTarget> targets = kernel_targets();
  if (!takes(cache)) return KernelTarget::kReference;
  while (!computes(cache, params, targets.back())) targets = targets.first(targets.size() - 1);
  return targets.back();
}

}  // namespace

TargetKernels kernels_of(KernelTarget target) noexcept {
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
  switch (target) {
    case KernelTarget::kAuto:
      return "auto";
    case KernelTarget::kReference:
      return "reference";
    case KernelTarget::kPortable:
      return "portable";
    case KernelTarget::kAvx2:
      return "avx2";
    case KernelTarget::kAvx512:
      return "avx512";
    case KernelTarget::kAvx512Bf16:
      return "avx512-bf16";
    case KernelTarget::kNeon:
      return "neon";
  }
  return "invalid";
}

Result<KernelTarget> parse_kernel_target(std::string_view name) {
  constexpr std::array kAll = {KernelTarget::kAuto,     KernelTarget::kReference,
                               KernelTarget::kPortable, KernelTarget::kAvx2,
                               KernelTarget::kAvx512,   KernelTarget::kAvx512Bf16,
                               KernelTarget::kNeon};
  for (const KernelTarget target : kAll) {
    if (name == to_string(target)) return target;
  }
  return invalid(text::concat("kernel target \"", name, "\", allowed: ", kernels::names(kAll)));
}

std::span<const KernelTarget> kernel_targets() noexcept {
  std::size_t count = 0;
  while (count < std::size(kernels::kTargets) && kernels::cpu_runs(kernels::kTargets[count]))
    ++count;
  return std::span(kernels::kTargets).first(count);
}

Result<KernelTarget> choose_kernel_target(const KVView& cache, KernelTarget wanted) {
  return choose_kernel_target(cache, AttentionParams{}, wanted);
}

Result<KernelTarget> choose_kernel_target(const KVView& cache, const AttentionParams& params,
                                          KernelTarget wanted) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_memory(cache));
  if (cache.dtype == DType::kOpaque) {
    return kernels::unsupported(
        "the cache is opaque, whose bytes no kernel target knows; allowed: f64, f32, f16, bf16, "
        "int8, e4m3");
  }
  if (wanted != KernelTarget::kAuto) return kernels::allowed(cache, params, wanted);
  const std::string_view name = kernels::environment();
  if (!name.empty()) {
    Result<KernelTarget> named = parse_kernel_target(name);
    if (named && *named != KernelTarget::kAuto) {
      named = kernels::allowed(cache, params, *named);
    }
    if (!named) {
      return Status(named.error().code(),
                    text::concat("KVFOLIO_KERNEL: ", named.error().message()));
    }
    if (*named != KernelTarget::kAuto) return *named;
  }
  return kernels::fastest(cache, params);
}

}  // namespace kvfolio
