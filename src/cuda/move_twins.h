// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the cases of move_cases.h are made of: memory that exists twice, on the host and on the
// machine where kernels run; caches of any strides and rows in it; e4m3 by its definition.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "cuda/move.h"
#include "kvfolio/kernels.h"
#include "kvfolio/storage.h"

namespace kvfolio::cuda::cases {

using text::concat;

class Machine {
 public:
  virtual ~Machine() = default;
  virtual Queue& queue() = 0;
  // Aligned to 16. Given back by reset(), which answers what was written outside, or "".
  virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual std::string reset() = 0;
  virtual void upload(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void download(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
};

// 32 bits at a time, as a type of 32 bits.
struct Random {
  using result_type = std::uint32_t;
  explicit Random(unsigned seed) : engine(seed) {}
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return 0xffffffffu; }
  result_type operator()() { return static_cast<result_type>(engine()); }
  std::mt19937 engine;
};
inline std::int32_t draw(Random& random, std::int32_t low, std::int32_t high) {
  return low + static_cast<std::int32_t>(random() % static_cast<unsigned>(high - low + 1));
}
template <typename T, std::size_t kCount>
T pick(Random& random, const std::array<T, kCount>& of) {
  return of[random() % kCount];
}

// The same bytes on the host and on the machine.
class Twin {
 public:
  Twin() = default;
  Twin(Machine& machine, std::int64_t bytes, Random& random)
      : machine_(&machine), host_(static_cast<std::size_t>(bytes) + 16) {
    for (std::size_t i = 0; i + 4 <= host_.size(); i += 4) {
      const std::uint32_t word = random();
      std::memcpy(host_.data() + i, &word, 4);
    }
    bytes_ = bytes;
    skew_ = (16 - reinterpret_cast<std::uintptr_t>(host_.data()) % 16) % 16;
    device_ = machine.allocate(bytes);
  }
  [[nodiscard]] std::byte* host() { return host_.data() + skew_; }
  [[nodiscard]] std::byte* device() const { return device_; }
  void upload() { machine_->upload(device_, host(), bytes_); }
  [[nodiscard]] std::string differs(std::string_view name) {
    if (bytes_ == 0) return {};
    std::vector<std::byte> got(static_cast<std::size_t>(bytes_));
    machine_->download(got.data(), device_, bytes_);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == host()[i]) continue;
      return concat(name, ": byte ", i, " of ", bytes_, " is ", std::to_integer<int>(got[i]),
                    ", the CPU has ", std::to_integer<int>(host()[i]));
    }
    return {};
  }

 private:
  Machine* machine_ = nullptr;
  std::vector<std::byte> host_;
  std::int64_t bytes_ = 0;
  std::size_t skew_ = 0;
  std::byte* device_ = nullptr;
};

inline DType dtype_of(Element element) {
  constexpr std::array kTypes{DType::kF32, DType::kF16, DType::kBF16, DType::kInt8, DType::kE4M3};
  return kTypes[static_cast<std::size_t>(element)];
}

// ---- caches of any strides ----

struct CacheShape {
  std::int32_t layers = 1, blocks = 1, heads = 1, block_size = 1, dim_k = 8, dim_v = 8;
  bool prefix = false;
  Element element = Element::kF32;
  std::int32_t order = 0;  // of the axes
  std::int32_t pad = 0;    // bytes behind each row
  std::int32_t skew = 0;   // bytes before the first one
  bool joined = false;     // K and V of a block side by side

  [[nodiscard]] std::string text() const {
    return concat("cache of element ", static_cast<int>(element), ", ", layers, " layers, ", blocks,
                  " blocks of ", block_size, ", ", heads, " heads, dims ", dim_k, " and ", dim_v,
                  prefix ? " (prefix)" : "", ", order ", order, ", pad ", pad, ", skew ", skew,
                  joined ? ", joined" : "");
  }
};

inline CacheShape draw_shape(Random& random, Element element) {
  struct Dims {
    std::int32_t k, v;
    bool prefix;
  };
  constexpr std::array kDims{Dims{128, 128, false}, Dims{64, 64, false},   Dims{72, 40, false},
                             Dims{576, 512, true},  Dims{192, 128, false}, Dims{8, 8, false},
                             Dims{80, 0, false},    Dims{576, 576, false}, Dims{40, 128, false},
                             Dims{96, 96, false},   Dims{256, 256, false}, Dims{520, 8, false}};
  constexpr std::array<std::int32_t, 7> kBlockSizes{1, 2, 16, 24, 64, 7, 256};
  CacheShape shape;
  const Dims dims = pick(random, kDims);
  shape.dim_k = dims.k;
  shape.dim_v = dims.v;
  shape.prefix = dims.prefix;
  shape.element = element;
  shape.block_size = pick(random, kBlockSizes);
  shape.heads = draw(random, 1, 3);
  shape.layers = draw(random, 1, 3);
  if (shape.block_size >= 64) shape.heads = 1;
  const std::int32_t most = std::max(2, 20000 / (shape.block_size * shape.heads * shape.dim_k));
  shape.blocks = std::min(draw(random, 1, 12), most);
  shape.order = draw(random, 0, 4);
  const std::int32_t bytes = element_bytes(element);
  shape.pad = pick(random, std::array<std::int32_t, 4>{0, 0, 16, bytes});
  shape.skew = pick(random, std::array<std::int32_t, 4>{0, 0, 16, bytes});
  shape.joined = shape.order == 0 && draw(random, 0, 2) == 0 && dims.v > 0 && !dims.prefix;
  return shape;
}

// Strides of rows whose axes nest in one of five orders; answers the bytes that they span.
inline std::int64_t strides_of(const CacheShape& shape, std::int64_t row_bytes, std::int32_t order,
                               KVStrides& strides) {
  enum Axis { kLayer, kBlock, kHead, kToken };
  constexpr std::array<std::array<Axis, 4>, 5> kOrders{{
      {kToken, kHead, kBlock, kLayer},  // HND
      {kHead, kToken, kBlock, kLayer},  // NHD
      {kHead, kLayer, kToken, kBlock},
      {kToken, kBlock, kHead, kLayer},
      {kLayer, kToken, kHead, kBlock},
  }};
  std::int64_t within = row_bytes;
  for (const Axis axis : kOrders[static_cast<std::size_t>(order)]) {
    const std::array<std::int64_t*, 4> places{&strides.layer, &strides.block, &strides.head,
                                              &strides.token};
    const std::array<std::int32_t, 4> extents{shape.layers, shape.blocks, shape.heads,
                                              shape.block_size};
    *places[axis] = within;
    within *= extents[axis];
  }
  return within;
}

class CacheTwin {
 public:
  CacheTwin(Machine& machine, const CacheShape& shape, Random& random) : shape_(shape) {
    const std::int64_t bytes = element_bytes(shape.element);
    const bool own_v = shape.dim_v > 0 && !shape.prefix;
    KVView view{.num_layers = shape.layers,
                .num_blocks = shape.blocks,
                .block_size = shape.block_size,
                .num_kv_heads = shape.heads,
                .head_dim_k = shape.dim_k,
                .head_dim_v = shape.dim_v,
                .dtype = dtype_of(shape.element),
                .v_is_prefix_of_k = shape.prefix};
    std::int64_t k_bytes =
        strides_of(shape, shape.dim_k * bytes + shape.pad, shape.order, view.k_strides);
    std::int64_t v_bytes = 0, v_at = 0;
    if (own_v) {
      v_bytes = strides_of(shape, shape.dim_v * bytes + shape.pad, shape.order, view.v_strides);
    }
    if (shape.joined) {
      v_at = view.k_strides.block = view.k_strides.head * shape.heads;
      view.k_strides.block += view.v_strides.head * shape.heads;
      view.k_strides.layer = view.k_strides.block * shape.blocks;
      view.v_strides.block = view.k_strides.block;
      view.v_strides.layer = view.k_strides.layer;
      k_bytes = view.k_strides.layer * shape.layers;
      v_bytes = 0;
    }
    k_ = Twin(machine, shape.skew + k_bytes, random);
    if (v_bytes > 0) v_ = Twin(machine, shape.skew + v_bytes, random);
    if (has_scales(shape.element)) {
      const std::int64_t scales =
          strides_of(shape, 4 + (shape.pad > 0 ? 4 : 0), shape.order, view.k_scale_strides);
      view.v_scale_strides = view.k_scale_strides;
      k_scale_ = Twin(machine, scales, random);
      if (own_v) v_scale_ = Twin(machine, scales, random);
      set_scales(k_scale_, scales, random);
      if (own_v) set_scales(v_scale_, scales, random);
    }
    host = view;
    device.view = view;
    device.view.memory_kind = MemoryKind::kDevice;
    place(host, v_at, [](Twin& twin) { return twin.host(); });
    place(device.view, v_at, [](Twin& twin) { return twin.device(); });
  }

  void upload() {
    for (Twin* twin : all()) {
      if (twin->device() != nullptr) twin->upload();
    }
  }
  [[nodiscard]] std::string differs() {
    for (Twin* twin : all()) {
      if (twin->device() == nullptr) continue;
      const std::string text = twin->differs(twin == &k_         ? "k"
                                             : twin == &v_       ? "v"
                                             : twin == &k_scale_ ? "k_scale"
                                                                 : "v_scale");
      if (!text.empty()) return concat(text, " (", shape_.text(), ")");
    }
    return {};
  }
  [[nodiscard]] const CacheShape& shape() const { return shape_; }
  // What KVStorage::borrow() wants of the host's side.
  [[nodiscard]] BorrowedGroup borrowed() const {
    constexpr std::int64_t kAll = std::int64_t{1} << 50;
    BorrowedGroup group{.k = host.k,
                        .k_bytes = kAll,
                        .k_strides = host.k_strides,
                        .v = host.v_is_prefix_of_k ? nullptr : host.v,
                        .v_bytes = kAll,
                        .v_strides = host.v_strides};
    group.k_scale = host.k_scale;
    group.k_scale_bytes = kAll;
    group.k_scale_strides = host.k_scale_strides;
    group.v_scale = host.v_is_prefix_of_k ? nullptr : host.v_scale;
    group.v_scale_bytes = kAll;
    group.v_scale_strides = host.v_scale_strides;
    return group;
  }

  KVView host;
  DeviceCache device;

 private:
  std::array<Twin*, 4> all() { return {&k_, &v_, &k_scale_, &v_scale_}; }
  static void set_scales(Twin& twin, std::int64_t bytes, Random& random) {
    for (std::int64_t i = 0; i + 4 <= bytes; i += 4) {
      const float scale = draw(random, 0, 20) == 0
                              ? std::numeric_limits<float>::quiet_NaN()
                              : static_cast<float>(draw(random, 0, 1 << 20)) * 0x1p-24f;
      std::memcpy(twin.host() + i, &scale, 4);
    }
  }
  template <typename Of>
  void place(KVView& view, std::int64_t v_at, Of&& of) {
    view.k = of(k_) + shape_.skew;
    if (k_scale_.device() != nullptr) view.k_scale = of(k_scale_);
    if (shape_.prefix) {
      view.v = view.k;
      view.v_strides = view.k_strides;
      view.v_scale = view.k_scale;
      view.v_scale_strides = view.k_scale_strides;
    } else if (shape_.dim_v > 0) {
      view.v = shape_.joined ? view.k + v_at : of(v_) + shape_.skew;
      if (v_scale_.device() != nullptr) view.v_scale = of(v_scale_);
    }
  }

  CacheShape shape_;
  Twin k_, v_, k_scale_, v_scale_;
};

// ---- rows ----

inline void store_value(std::byte* at, DType dtype, std::uint32_t bits) {
  const float value = std::bit_cast<float>(bits);
  const std::uint16_t half = dtype == DType::kF16 ? f16_from_f32(value) : bf16_from_f32(value);
  std::memcpy(at, dtype == DType::kF32 ? static_cast<const void*>(&bits) : &half,
              static_cast<std::size_t>(dtype_bytes(dtype)));
}

// Most rows are of ordinary numbers; some are zeros or tiny, some hold a NaN, an infinity or any
// bits.
inline std::uint32_t draw_value(Random& random, std::uint32_t kind) {
  const float plain = static_cast<float>(draw(random, -(1 << 20), 1 << 20)) * 0x1p-17f;
  switch (kind) {
    case 0:
      return random();
    case 1:
      return random() & 0x80000000u;
    case 2:
      return std::bit_cast<std::uint32_t>(plain * 1e-33f);
    case 3:
      return std::bit_cast<std::uint32_t>(plain * 1e4f);
    default:
      return std::bit_cast<std::uint32_t>(plain);
  }
}

class RowsTwin {
 public:
  RowsTwin(Machine& machine, std::int32_t tokens, std::int32_t heads, std::int32_t dim, DType dtype,
           std::int32_t copies, Random& random) {
    const std::int64_t bytes = dtype_bytes(dtype);
    const std::int64_t pad = pick(random, std::array<std::int64_t, 3>{0, 16, bytes});
    const std::int64_t skew = pick(random, std::array<std::int64_t, 4>{0, 0, 16, bytes});
    const std::int64_t row = dim * bytes + pad;
    const bool heads_outside = draw(random, 0, 3) == 0;
    std::int64_t head_stride = heads_outside ? row * tokens : row;
    std::int64_t token_stride = heads_outside ? row : row * heads;
    copy_stride = row * heads * tokens;
    twin_ = Twin(machine, skew + copy_stride * copies, random);
    std::int64_t begin = skew;
    if (draw(random, 0, 4) == 0 && tokens > 0) {  // the last token first
      begin += token_stride * (tokens - 1);
      token_stride = -token_stride;
    }
    host = {twin_.host() + begin, token_stride, head_stride, tokens, heads, dim, dtype};
    device = host;
    device.data = twin_.device() + begin;
    for (std::int32_t t = 0; t < tokens; ++t) {
      for (std::int32_t h = 0; h < heads; ++h) {
        const std::uint32_t kind = random() % 12;
        const bool spoilt = random() % 16 == 0;
        for (std::int32_t d = 0; d < dim; ++d) {
          store_value(host.at(t, h) + d * bytes, dtype, draw_value(random, kind));
        }
        constexpr std::array<std::uint32_t, 4> kBad{0x7f800000u, 0xff800000u, 0x7fc01234u,
                                                    0xff812345u};
        if (spoilt) {
          store_value(host.at(t, h) + draw(random, 0, dim - 1) * bytes, dtype, pick(random, kBad));
        }
      }
    }
  }
  void upload() { twin_.upload(); }
  [[nodiscard]] std::string differs(std::string_view name) {
    const std::string text = twin_.differs(name);
    if (text.empty()) return {};
    return concat(text, " (rows of ", std::string_view(to_string(host.dtype)), ", ",
                  host.num_tokens, " tokens, ", host.num_heads, " heads, dim ", host.head_dim,
                  ", strides ", host.token_stride, " and ", host.head_stride, ")");
  }

  RowsView host;
  RowsView device;
  std::int64_t copy_stride = 0;

 private:
  Twin twin_;
};

// int32 in the memory of the machine.
class Ints {
 public:
  Ints(Machine& machine, std::vector<std::int32_t> values) : host(std::move(values)) {
    const auto bytes = static_cast<std::int64_t>(host.size() * 4);
    auto* const memory = machine.allocate(bytes);
    machine.upload(memory, reinterpret_cast<const std::byte*>(host.data()), bytes);
    device = reinterpret_cast<std::int32_t*>(memory);
  }
  std::vector<std::int32_t> host;
  std::int32_t* device = nullptr;
};

// ---- e4m3 by its definition ----

inline float e4m3_number(int byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if ((byte & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(1.0f + static_cast<float>(mantissa) / 8, exponent - 7);
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}
inline std::uint8_t e4m3_byte(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  int best = 126;
  for (int byte = 125; byte >= 0; --byte) {
    const double here = std::fabs(magnitude - static_cast<double>(e4m3_number(byte)));
    const double there = std::fabs(magnitude - static_cast<double>(e4m3_number(best)));
    if (here < there || (here == there && byte % 2 == 0)) best = byte;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}
// Elements of e4m3 that are no number come from nowhere: a cache of random bytes loses them.
inline void clean_e4m3(const KVView& cache) {
  for (std::int32_t l = 0; l < cache.num_layers; ++l) {
    for (std::int32_t b = 0; b < cache.num_blocks; ++b) {
      for (std::int32_t h = 0; h < cache.num_kv_heads; ++h) {
        for (std::int32_t t = 0; t < cache.block_size; ++t) {
          std::byte* const rows[] = {cache.k_at(l, b, h, t),
                                     cache.head_dim_v > 0 ? cache.v_at(l, b, h, t) : nullptr};
          const std::int32_t dims[] = {cache.head_dim_k, cache.head_dim_v};
          for (int p = 0; p < 2; ++p) {
            for (std::int32_t d = 0; d < dims[p]; ++d) {
              if ((rows[p][d] & std::byte{0x7f}) == std::byte{0x7f}) rows[p][d] = std::byte{0x7e};
            }
          }
        }
      }
    }
  }
}

inline std::string both_ok(const Status& cpu, const Status& device) {
  if (cpu.ok() && device.ok()) return {};
  return concat("the CPU says \"", cpu.message(), "\", the device \"", device.message(), "\"");
}

inline constexpr std::array kRowElements{Element::kF32, Element::kF16, Element::kBF16};
inline constexpr std::array kElements{Element::kF32, Element::kF16, Element::kBF16, Element::kInt8,
                                      Element::kE4M3};

}  // namespace kvfolio::cuda::cases
