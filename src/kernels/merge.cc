// SPDX-License-Identifier: Apache-2.0

// merge_states(): attention over two disjoint sets of tokens becomes attention over both. Each row
// is weighted by exp(lse - the larger lse), so nothing overflows. Computed in f64, a piece of a row
// at a time on the stack. kernels.h gives the formula and the cases (empty, NaN, in place).

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/invalid.h"
#include "base/text.h"
#include "kernels/check.h"
#include "kernels/convert.h"
#include "kvfolio/kernels.h"

namespace kvfolio {
namespace {

using kernels::ConvertFn;
using kernels::RowsShape;
using text::concat;

constexpr double kEmpty = -std::numeric_limits<double>::infinity();
// Elements that are widened at a time: three arrays of it stay in the L1 cache.
constexpr std::int64_t kChunk = 256;

Status check_lse_type(std::string_view name, DType dtype) {
  if (dtype == DType::kF32 || dtype == DType::kF64) return {};
  return invalid(
      concat(name, ".dtype is ", std::string_view(to_string(dtype)), ", allowed: f32, f64"));
}

struct StateNames {
  std::string_view out;
  std::string_view lse;
};

Status check_state(const StateNames& names, const AttentionState& state, const RowsShape& shape) {
  KVFOLIO_RETURN_IF_ERROR(kernels::check_rows(names.out, state.out, shape));
  KVFOLIO_RETURN_IF_ERROR(check_lse_type(names.lse, state.lse.dtype));
  return kernels::check_rows(names.lse, state.lse, {shape.num_tokens, shape.num_heads, 1});
}

class Merge {
 public:
  Merge(const AttentionState& a, const AttentionState& b, const RowsView& out, const RowsView& lse)
      : a_(a),
        b_(b),
        out_(out),
        lse_(lse),
        load_a_(kernels::convert_fn(a.out.dtype, DType::kF64)),
        load_b_(kernels::convert_fn(b.out.dtype, DType::kF64)),
        store_(kernels::convert_fn(DType::kF64, out.dtype)) {}

  void run() const {
    for (std::int32_t t = 0; t < out_.num_tokens; ++t) {
      for (std::int32_t h = 0; h < out_.num_heads; ++h) merge_row(t, h);
    }
  }

 private:
  void merge_row(std::int32_t t, std::int32_t h) const {
    const double a = read_lse(a_.lse, t, h);
    const double b = read_lse(b_.lse, t, h);
    std::byte* const out = out_.at(t, h);
    if (a == kEmpty && b == kEmpty) {
      fill_zeros(out);
      write_lse(t, h, kEmpty);
    } else if (b == kEmpty) {
      copy_row(a_.out, t, h, out);
      write_lse(t, h, a);
    } else if (a == kEmpty) {
      copy_row(b_.out, t, h, out);
      write_lse(t, h, b);
    } else {
      const double most = a > b ? a : b;
      const double weight_a = std::exp(a - most);
      const double weight_b = std::exp(b - most);
      const double total = weight_a + weight_b;
      add_rows(a_.out.at(t, h), weight_a / total, b_.out.at(t, h), weight_b / total, out);
      write_lse(t, h, most + std::log(total));
    }
  }

  void add_rows(const std::byte* a, double weight_a, const std::byte* b, double weight_b,
                std::byte* out) const {
    double from_a[kChunk];
    double from_b[kChunk];
    for (std::int64_t d = 0; d < out_.head_dim; d += kChunk) {
      const std::int64_t n = std::min<std::int64_t>(kChunk, out_.head_dim - d);
      load_a_(a + d * dtype_bytes(a_.out.dtype), bytes(from_a), n);
      load_b_(b + d * dtype_bytes(b_.out.dtype), bytes(from_b), n);
      for (std::int64_t i = 0; i < n; ++i) from_a[i] = weight_a * from_a[i] + weight_b * from_b[i];
      store_(bytes(from_a), out + d * dtype_bytes(out_.dtype), n);
    }
  }

  void copy_row(const ConstRowsView& from, std::int32_t t, std::int32_t h, std::byte* out) const {
    const std::byte* row = from.at(t, h);
    if (row != out) kernels::convert_fn(from.dtype, out_.dtype)(row, out, out_.head_dim);
  }

  // All bytes zero is 0 in every element type of rows.
  void fill_zeros(std::byte* out) const {
    std::fill_n(out, std::int64_t{out_.head_dim} * dtype_bytes(out_.dtype), std::byte{0});
  }

  static double read_lse(const ConstRowsView& lse, std::int32_t t, std::int32_t h) {
    double value = 0;
    kernels::convert_fn(lse.dtype, DType::kF64)(lse.at(t, h), bytes(&value), 1);
    return value;
  }

  void write_lse(std::int32_t t, std::int32_t h, double value) const {
    if (lse_.data == nullptr) return;
    kernels::convert_fn(DType::kF64, lse_.dtype)(bytes(&value), lse_.at(t, h), 1);
  }

  static std::byte* bytes(double* values) { return reinterpret_cast<std::byte*>(values); }

  const AttentionState& a_;
  const AttentionState& b_;
  const RowsView& out_;
  const RowsView& lse_;
  ConvertFn load_a_;
  ConvertFn load_b_;
  ConvertFn store_;
};

}  // namespace

Status merge_states(const AttentionState& a, const AttentionState& b, const RowsView& out,
                    const RowsView& lse) {
  if (out.num_tokens < 0 || out.num_heads < 1 || out.head_dim < 1) {
    return invalid(concat("out is [", out.num_tokens, " tokens, ", out.num_heads,
                          " heads, head_dim ", out.head_dim,
                          "], allowed: at least 0, 1 and 1 of each"));
  }
  const RowsShape shape{out.num_tokens, out.num_heads, out.head_dim};
  KVFOLIO_RETURN_IF_ERROR(check_state({"a.out", "a.lse"}, a, shape));
  KVFOLIO_RETURN_IF_ERROR(check_state({"b.out", "b.lse"}, b, shape));
  KVFOLIO_RETURN_IF_ERROR(kernels::check_written_rows("out", out, shape));
  if (lse.data != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(check_lse_type("lse", lse.dtype));
    KVFOLIO_RETURN_IF_ERROR(
        kernels::check_written_rows("lse", lse, {shape.num_tokens, shape.num_heads, 1}));
  }
  Merge(a, b, out, lse).run();
  return {};
}

}  // namespace kvfolio
