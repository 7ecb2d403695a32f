// SPDX-License-Identifier: Apache-2.0
#pragma once

// What all benchmarks of `kvfolio bench attention` share: the machine, the threads, the target, and
// what is promised of which core.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic.h"
#include "bench_attention.h"
#include "core_class.h"
#include "harness.h"
#include "kvfolio/executor.h"
#include "kvfolio/kernel_target.h"
#include "panel.h"
#include "read_tile.h"

namespace kvfolio::bench {

// A kind of arithmetic that this CPU has.
struct Arithmetic {
  std::string kind;
  ArithmeticLoop loop = nullptr;
};

// A floor and a goal for the two kinds of core that decode was tuned on; see docs/measuring.md.
struct PromiseByClass {
  Promise zen5;
  Promise zen4;
};

class Context {
 public:
  Context(const AttentionOptions& options, const Session& session);

  const Session& session;
  // 1 and what --threads says, unless that is 1 too.
  std::vector<std::int32_t> thread_counts;
  // By number of threads.
  [[nodiscard]] const Executor& executor(std::int32_t threads) const;

  [[nodiscard]] KernelTarget target() const { return target_; }
  [[nodiscard]] std::string target_name() const { return to_string(target_); }
  [[nodiscard]] bool is_avx512() const;
  [[nodiscard]] bool has_dot_products() const { return target_ == KernelTarget::kAvx512Bf16; }
  // What is asked for: all of f32, f16, bf16, int8 and granule, HND, NHD unless the options name
  // one.
  [[nodiscard]] const std::vector<DType>& dtypes() const { return dtypes_; }
  [[nodiscard]] const std::vector<Format>& formats() const { return formats_; }
  // Rows of format granule alone.
  [[nodiscard]] bool has_granule() const { return formats_[0] == Format::kGranule; }

  [[nodiscard]] const std::vector<Arithmetic>& arithmetic() const { return arithmetic_; }
  // The peak that attention over such a cache is measured by: an index of arithmetic().
  [[nodiscard]] std::size_t peak_of(DType dtype) const;
  [[nodiscard]] ReadTile read_tile() const { return read_tile_; }

  // Bytes of the third-level cache as the kernel says, 32 MiB where it does not.
  std::int64_t l3_bytes = 0;
  // Layers of so many bytes that together are four times the third-level cache.
  [[nodiscard]] std::int32_t layers_beyond_cache(std::int64_t layer_bytes) const noexcept {
    return static_cast<std::int32_t>((4 * l3_bytes + layer_bytes - 1) / layer_bytes);
  }
  CoreId core;
  // The peak of f32 on one core, giga-operations per second.
  double f32_peak = 0;
  // Nothing for a core of another class.
  [[nodiscard]] std::optional<Promise> promise(const PromiseByClass& promise) const;

  // Several threads are judged only where the machine gave them their memory: `scaling` is how much
  // faster they read (or computed) the same than one did.
  [[nodiscard]] static bool counts(std::int32_t threads, double scaling) {
    return threads == 1 || scaling >= 0.9 * threads;
  }
  // Leaves the promise out where the run does not count, and says so.
  static void judge(Figure& figure, std::int32_t threads, double scaling);

 private:
  KernelTarget target_ = KernelTarget::kReference;
  std::vector<DType> dtypes_ = {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8};
  std::vector<Format> formats_ = {Format::kGranule, Format::kHnd, Format::kNhd};
  std::vector<std::unique_ptr<ThreadPool>> pools_;  // as thread_counts
  std::vector<Executor> executors_;
  std::vector<Arithmetic> arithmetic_;
  ReadTile read_tile_ = nullptr;
};

// One file of benchmarks: the names of its rows, and what gives them.
struct AttentionFamily {
  std::vector<std::string> names;
  void (*run)(const Context&);
};
AttentionFamily cores_family();
AttentionFamily decode_family();
AttentionFamily contiguous_family();
AttentionFamily prefill_family();
AttentionFamily lengths_family();
AttentionFamily instruction_counts_family();
AttentionFamily append_family();
AttentionFamily losers_family();

[[nodiscard]] std::string two_digits(double value);

}  // namespace kvfolio::bench
