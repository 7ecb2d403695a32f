// SPDX-License-Identifier: Apache-2.0
#pragma once

// Dense products whose rows do not know each other: out = rows * weight^T.
//
// Each output is one sum over k = 0, 1, 2, ..., one multiply-add after the other, in one f32
// accumulator, whatever the number of rows, the tile it falls into or the thread that computes it.
// So a token's bits never depend on its batch. Common BLAS libraries choose another split of k or
// another kernel when the number of rows changes, and with it other bits.
//
// Targets differ in bits (AVX2 and AVX-512 fuse the multiply-add, baseline rounds twice); within
// one target all calls agree.
//
// Thread safety: a PackedMatrix is immutable after pack().

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "kvfolio/executor.h"

namespace kvfolio::llama {

enum class MatmulTarget : std::int32_t { kAuto = 0, kBaseline = 1, kAvx2 = 2, kAvx512 = 3 };

[[nodiscard]] const char* to_string(MatmulTarget target) noexcept;
// "auto", "baseline", "avx2", "avx512".
[[nodiscard]] std::optional<MatmulTarget> parse_matmul_target(std::string_view name) noexcept;
// Whether this build has the target and this processor can run it. kAuto: true.
[[nodiscard]] bool is_available(MatmulTarget target) noexcept;
// kAuto becomes the widest available target; others stay.
[[nodiscard]] MatmulTarget resolve(MatmulTarget target) noexcept;

// A weight matrix [num_out, num_in], repacked once at load. Panel p holds the columns of the
// product that the kernel keeps in registers at once, as [num_in][panel_width]: the inner loop
// then reads one stream of whole cache lines, and the values that one step of k needs are
// neighbours. The last panel is filled up with zeros. f32 whatever the checkpoint has: converting
// in the inner loop would cost more than the memory it saves at the sizes this engine is for.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Room for [num_out, num_in], zeroed. Requires: both >= 1, is_available(target).
  PackedMatrix(std::int32_t num_out, std::int32_t num_in, MatmulTarget target);

  // Writes row `out` of the weight matrix: num_in values. Each row once, before the first multiply.
  void set_row(std::int32_t out, const float* values) noexcept;

  [[nodiscard]] std::int32_t num_out() const noexcept { return num_out_; }
  [[nodiscard]] std::int32_t num_in() const noexcept { return num_in_; }

  // out[r][o] = sum over k of rows[r][k] * weight[o][k].
  //   rows: [num_rows, num_in], row_stride floats apart; out: [num_rows, num_out], out_stride apart
  void multiply(const float* rows, std::int64_t row_stride, std::int32_t num_rows, float* out,
                std::int64_t out_stride, ThreadPool& pool) const;

 private:
  struct Free {
    void operator()(float* memory) const noexcept;
  };
  std::unique_ptr<float[], Free> panels_;  // [num_panels, num_in, panel_width], 64-byte aligned
  std::int32_t num_out_ = 0;
  std::int32_t num_in_ = 0;
  std::int32_t panel_width_ = 0;
  MatmulTarget target_ = MatmulTarget::kBaseline;
};

}  // namespace kvfolio::llama
