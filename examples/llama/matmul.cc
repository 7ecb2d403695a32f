// SPDX-License-Identifier: Apache-2.0
#include "matmul.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "kvfolio/status.h"
#include "matmul_target.h"

namespace kvfolio::llama {
namespace {

constexpr std::size_t kAlignment = 64;
// Multiply-adds worth another thread: some ten microseconds of work, against some microseconds to
// wake it.
constexpr std::int64_t kPartWork = 1 << 18;

const MatmulTargetCode& code_of(MatmulTarget target) {
#ifdef KVFOLIO_LLAMA_X86
  if (target == MatmulTarget::kAvx512) return kMatmulAvx512;
  if (target == MatmulTarget::kAvx2) return kMatmulAvx2;
#endif
  KVFOLIO_CHECK(target == MatmulTarget::kBaseline);
  return kMatmulBaseline;
}

}  // namespace

const char* to_string(MatmulTarget target) noexcept {
  switch (target) {
    case MatmulTarget::kAuto:
      return "auto";
    case MatmulTarget::kBaseline:
      return "baseline";
    case MatmulTarget::kAvx2:
      return "avx2";
    case MatmulTarget::kAvx512:
      return "avx512";
  }
  return "invalid";
}

std::optional<MatmulTarget> parse_matmul_target(std::string_view name) noexcept {
  for (const MatmulTarget target :
       {MatmulTarget::kAuto, MatmulTarget::kBaseline, MatmulTarget::kAvx2, MatmulTarget::kAvx512}) {
    if (name == to_string(target)) return target;
  }
  return std::nullopt;
}

bool is_available(MatmulTarget target) noexcept {
  switch (target) {
    case MatmulTarget::kAuto:
    case MatmulTarget::kBaseline:
      return true;
#ifdef KVFOLIO_LLAMA_X86
    // These ask the operating system too, whether it saves the wide registers.
    case MatmulTarget::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case MatmulTarget::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0;
#else
    case MatmulTarget::kAvx2:
    case MatmulTarget::kAvx512:
      return false;
#endif
  }
  return false;
}

MatmulTarget resolve(MatmulTarget target) noexcept {
  if (target != MatmulTarget::kAuto) return target;
  if (is_available(MatmulTarget::kAvx512)) return MatmulTarget::kAvx512;
  if (is_available(MatmulTarget::kAvx2)) return MatmulTarget::kAvx2;
  return MatmulTarget::kBaseline;
}

void PackedMatrix::Free::operator()(float* memory) const noexcept { std::free(memory); }

PackedMatrix::PackedMatrix(std::int32_t num_out, std::int32_t num_in, MatmulTarget target)
    : num_out_(num_out), num_in_(num_in), target_(resolve(target)) {
  KVFOLIO_CHECK(num_out >= 1 && num_in >= 1 && is_available(target_));
  panel_width_ = code_of(target_).panel_width;
  const std::int64_t num_panels = (std::int64_t{num_out} + panel_width_ - 1) / panel_width_;
  const auto count = static_cast<std::size_t>(num_panels * panel_width_ * num_in);
  const std::size_t bytes = (count * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
  panels_.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
  if (panels_ == nullptr) throw std::bad_alloc();
  std::fill_n(panels_.get(), count, 0.0f);
}

void PackedMatrix::set_row(std::int32_t out, const float* values) noexcept {
  KVFOLIO_DCHECK(out >= 0 && out < num_out_);
  const std::int64_t panel = out / panel_width_;
  float* to = panels_.get() + panel * panel_width_ * num_in_ + out % panel_width_;
  for (std::int32_t k = 0; k < num_in_; ++k) to[std::int64_t{k} * panel_width_] = values[k];
}

void PackedMatrix::multiply(const float* rows, std::int64_t row_stride, std::int32_t num_rows,
                            float* out, std::int64_t out_stride, ThreadPool& pool) const {
  const MatmulTargetCode& code = code_of(target_);
  const std::int32_t num_panels = (num_out_ + panel_width_ - 1) / panel_width_;
  const MatmulPart whole{.panels = panels_.get(),
                         .first_panel = 0,
                         .last_panel = num_panels,
                         .num_in = num_in_,
                         .num_out = num_out_,
                         .rows = rows,
                         .row_stride = row_stride,
                         .num_rows = num_rows,
                         .out = out,
                         .out_stride = out_stride};
  const std::int64_t work = std::int64_t{num_rows} * num_out_ * num_in_;
  if (pool.num_threads() == 1 || work < 2 * kPartWork) return code.multiply(whole);

  // Parts are ranges of rows (whole tiles) by ranges of panels: a part reads its panels once and
  // keeps its rows in the first-level cache. Where the borders lie changes no bits.
  const std::int32_t part_rows = std::min(num_rows, 16 * code.tile_rows);
  const std::int32_t num_row_parts = (num_rows + part_rows - 1) / part_rows;
  const std::int64_t panel_work = std::int64_t{part_rows} * panel_width_ * num_in_;
  const auto part_panels =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(kPartWork / panel_work, 1, num_panels));
  const std::int32_t num_panel_parts = (num_panels + part_panels - 1) / part_panels;
  pool.parallel_for(num_row_parts * num_panel_parts, [&](std::int32_t index) {
    const std::int32_t first_row = index % num_row_parts * part_rows;
    MatmulPart part = whole;
    part.first_panel = index / num_row_parts * part_panels;
    part.last_panel = std::min(num_panels, part.first_panel + part_panels);
    part.rows = rows + first_row * row_stride;
    part.num_rows = std::min(part_rows, num_rows - first_row);
    part.out = out + first_row * out_stride;
    code.multiply(part);
  });
}

}  // namespace kvfolio::llama
