// SPDX-License-Identifier: Apache-2.0
#include "context.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace kvfolio::bench {
namespace {

std::int64_t l3_of_this_core() {
  // A virtual machine's CPUID may count the caches of all sockets; the kernel knows this core's.
  std::int64_t kib = 0;
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
  if (!(file >> kib) || kib <= 0) kib = std::int64_t{32} << 10;
  return std::min(kib, std::int64_t{512} << 10) << 10;
}

CoreId this_core() {
  std::ifstream file("/proc/cpuinfo");
  return read_core_id(file);
}

std::vector<Arithmetic> arithmetic_of_this_core() {
  std::vector<Arithmetic> all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    all.push_back({"f32 256 bit", fma_f32_256});
  }
  if (__builtin_cpu_supports("avx512f")) all.push_back({"f32 512 bit", fma_f32_512});
  if (__builtin_cpu_supports("avx512bf16")) all.push_back({"bf16", dot_bf16_512});
  if (__builtin_cpu_supports("avx512vnni")) all.push_back({"int8", dot_int8_512});
#endif
  if (all.empty()) all.push_back({"f32 128 bit", fma_f32_plain});
  return all;
}

double best_rate(ArithmeticLoop loop) {
  double best = 0;
  for (int i = 0; i < 7; ++i) {
    std::int64_t operations = 0;
    const double taken = seconds_of([&] { operations = loop(100'000); });
    best = std::max(best, static_cast<double>(operations) / taken * 1e-9);
  }
  return best;
}

}  // namespace

ReadTile widest_read_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return read_tile_avx512;
  if (__builtin_cpu_supports("avx2")) return read_tile_avx2;
#endif
  return read_tile_plain;
}

std::vector<std::string> attention_targets() {
  std::vector<std::string> names;
  for (const KernelTarget target : kernel_targets()) names.emplace_back(to_string(target));
  return names;
}

Context::Context(const AttentionOptions& options, const Session& session_in)
    : session(session_in),
      l3_bytes(l3_of_this_core()),
      core(this_core()),
      arithmetic_(arithmetic_of_this_core()),
      read_tile_(widest_read_tile()) {
  target_ = options.target == "auto" ? kernel_targets().back()
                                     : take(parse_kernel_target(options.target), "--target");
  if (options.dtype) dtypes_ = {*options.dtype};
  if (options.format) formats_ = {*options.format};
  thread_counts = {1};
  if (options.threads > 1) thread_counts.push_back(options.threads);
  for (const std::int32_t threads : thread_counts) {
    pools_.push_back(take(ThreadPool::create(threads), "--threads"));
    executors_.push_back(pools_.back()->executor());
  }
  for (const Arithmetic& kind : arithmetic_) {
    if (kind.kind.rfind("f32", 0) == 0) f32_peak = std::max(f32_peak, best_rate(kind.loop));
  }
}

const Executor& Context::executor(std::int32_t threads) const {
  for (std::size_t i = 0; i < thread_counts.size(); ++i) {
    if (thread_counts[i] == threads) return executors_[i];
  }
  throw WrongResult("no pool of " + std::to_string(threads) + " threads");
}

bool Context::is_avx512() const {
  return target_ == KernelTarget::kAvx512 || target_ == KernelTarget::kAvx512Bf16;
}

std::size_t Context::peak_of(DType dtype) const {
  std::string wanted = "f32 256 bit";
  if (is_avx512()) wanted = "f32 512 bit";
  if (has_dot_products() && dtype == DType::kBF16) wanted = "bf16";
  if (has_dot_products() && dtype == DType::kInt8) wanted = "int8";
  for (std::size_t i = 0; i < arithmetic_.size(); ++i) {
    if (arithmetic_[i].kind == wanted) return i;
  }
  return 0;
}

std::optional<Promise> Context::promise(const PromiseByClass& promise) const {
  switch (promised_core(core_class(core), f32_peak)) {
    case PromisedCore::kZen5:
      return promise.zen5;
    case PromisedCore::kZen4:
      return promise.zen4;
    case PromisedCore::kNone:
      return std::nullopt;
  }
  return std::nullopt;
}

void Context::judge(Figure& figure, std::int32_t threads, double scaling) {
  if (!figure.promise || counts(threads, scaling)) return;
  figure.promise.reset();
  figure.note += "; not judged: " + std::to_string(threads) + " threads got " +
                 two_digits(scaling) + " x of what one gets";
}

std::string two_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

}  // namespace kvfolio::bench
