// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/checked.h"
#include "kvfolio/view.h"

namespace kvfolio {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();

GroupSpec a_group() {
  return {.num_layers = 2,
          .num_kv_heads = 3,
          .head_dim_k = 8,
          .head_dim_v = 8,
          .block_size = 4,
          .num_blocks = 5};
}

// The refusal of a spec whose second group is changed.
template <typename Change>
std::string refusal(Change change) {
  CacheSpec spec{.groups = {a_group(), a_group()}};
  change(spec.groups[1]);
  const Status status = validate(spec);
  EXPECT_EQ(plan_layouts(spec).has_value(), status.ok());
  if (status.ok()) return "accepted";
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  return status.message();
}

struct Field {
  const char* name;
  std::int32_t GroupSpec::*member;
  std::int32_t low;
  std::int32_t high;
};

TEST(Spec, AFieldOutOfRangeIsRefusedWithGroupFieldValueAndWhatIsAllowed) {
  const Field fields[] = {{"num_layers", &GroupSpec::num_layers, 1, 1 << 16},
                          {"num_kv_heads", &GroupSpec::num_kv_heads, 1, 1 << 20},
                          {"head_dim_k", &GroupSpec::head_dim_k, 1, 1 << 20},
                          {"head_dim_v", &GroupSpec::head_dim_v, 0, 1 << 20},
                          {"block_size", &GroupSpec::block_size, 1, 1024},
                          {"num_blocks", &GroupSpec::num_blocks, 1, kMax}};
  for (const Field& field : fields) {
    for (const std::int64_t wide :
         {std::int64_t{kMin}, std::int64_t{-1}, std::int64_t{field.low} - 1,
          std::int64_t{field.high} + 1, std::int64_t{kMax}}) {
      if ((wide >= field.low && wide <= field.high) || wide > kMax) continue;
      const auto value = static_cast<std::int32_t>(wide);
      EXPECT_THAT(refusal([&](GroupSpec& g) { g.*field.member = value; }),
                  AllOf(HasSubstr("group 1: " + std::string(field.name)),
                        HasSubstr("is " + std::to_string(value)),
                        HasSubstr(std::to_string(field.low) + " to " + std::to_string(field.high))))
          << field.name;
    }
    // The ends are allowed.
    EXPECT_EQ(refusal([&](GroupSpec& g) {
                g.*field.member = field.low;
                if (field.member == &GroupSpec::block_size) g.block_size = 4;
              }),
              "accepted");
  }
}

TEST(Spec, ValuesThatAreNoEnumeratorsAreRefused) {
  EXPECT_THAT(refusal([](GroupSpec& g) { g.dtype = static_cast<DType>(9); }),
              AllOf(HasSubstr("group 1: dtype is 9"),
                    HasSubstr("f64, f32, f16, bf16, int8, e4m3, opaque")));
  EXPECT_THAT(refusal([](GroupSpec& g) { g.format = static_cast<Format>(-1); }),
              AllOf(HasSubstr("group 1: format is -1"), HasSubstr("HND, NHD, granule")));
  EXPECT_THAT(refusal([](GroupSpec& g) { g.kind = static_cast<AttentionKind>(3); }),
              AllOf(HasSubstr("group 1: kind is 3"), HasSubstr("full, sliding window")));
}

TEST(Spec, GranuleTakesWholeTilesOfWholeGranules) {
  const auto granule = [](const std::function<void(GroupSpec&)>& spoil) {
    return refusal([&](GroupSpec& g) {
      g.format = Format::kGranule;
      g.head_dim_k = 16;
      g.head_dim_v = 8;
      g.block_size = 32;
      spoil(g);
    });
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    EXPECT_EQ(granule([&](GroupSpec& g) { g.dtype = dtype; }), "accepted");
  }
  EXPECT_EQ(granule([](GroupSpec& g) { g.head_dim_v = 0; }), "accepted");
  EXPECT_THAT(granule([](GroupSpec& g) { g.dtype = DType::kF64; }),
              HasSubstr("dtype is f64, allowed in format granule: f32, f16, bf16, int8"));
  EXPECT_THAT(granule([](GroupSpec& g) { g.dtype = DType::kOpaque; }),
              HasSubstr("dtype is opaque, allowed in format granule"));
  EXPECT_THAT(granule([](GroupSpec& g) { g.dtype = DType::kE4M3; }),
              HasSubstr("dtype is e4m3, allowed in format granule: f32, f16, bf16, int8"));
  EXPECT_THAT(granule([](GroupSpec& g) { g.block_size = 24; }),
              HasSubstr("block_size is 24, allowed: multiples of 16 in format granule"));
  EXPECT_THAT(granule([](GroupSpec& g) { g.block_size = 8; }), HasSubstr("block_size is 8"));
  EXPECT_THAT(granule([](GroupSpec& g) { g.head_dim_k = 20; }),
              HasSubstr("head_dim_k is 20, allowed: multiples of 8 in format granule"));
  EXPECT_THAT(granule([](GroupSpec& g) { g.head_dim_v = 4; }), HasSubstr("head_dim_v is 4"));
  EXPECT_THAT(granule([](GroupSpec& g) { g.v_is_prefix_of_k = true; }),
              HasSubstr("V is a prefix of K, which format granule does not have"));
}

TEST(Spec, WindowAndSinksBelongToWindowGroupsOnly) {
  EXPECT_THAT(refusal([](GroupSpec& g) { g.window = 4; }), HasSubstr("group 1: window is 4"));
  EXPECT_THAT(refusal([](GroupSpec& g) { g.num_sinks = 1; }), HasSubstr("group 1: num_sinks is 1"));
  const auto window = [](std::int32_t w, std::int32_t sinks) {
    return refusal([=](GroupSpec& g) {
      g.kind = AttentionKind::kSlidingWindow;
      g.window = w;
      g.num_sinks = sinks;
    });
  };
  EXPECT_THAT(window(0, 0), HasSubstr("group 1: window is 0, allowed: 1 to 1073741824"));
  EXPECT_THAT(window(-1, 0), HasSubstr("window is -1"));
  EXPECT_THAT(window(kMaxSequenceTokens + 1, 0), HasSubstr("window is 1073741825"));
  EXPECT_THAT(window(1, -1), HasSubstr("group 1: num_sinks is -1"));
  EXPECT_THAT(window(1, kMaxSequenceTokens + 1), HasSubstr("num_sinks is 1073741825"));
  EXPECT_EQ(window(1, 0), "accepted");
  EXPECT_EQ(window(kMaxSequenceTokens, kMaxSequenceTokens), "accepted");
}

TEST(Spec, VMayBeAPrefixOfKUpToItsLength) {
  const auto prefix = [](std::int32_t v) {
    return refusal([=](GroupSpec& g) {
      g.v_is_prefix_of_k = true;
      g.head_dim_v = v;
    });
  };
  EXPECT_EQ(prefix(1), "accepted");
  EXPECT_EQ(prefix(8), "accepted");
  EXPECT_THAT(prefix(0), AllOf(HasSubstr("head_dim_v"), HasSubstr("is 0, allowed: 1 to 8")));
  EXPECT_THAT(prefix(9), AllOf(HasSubstr("head_dim_v"), HasSubstr("is 9, allowed: 1 to 8")));
}

TEST(Spec, GroupsAreOneToSixteen) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{17}}) {
    const CacheSpec spec{.groups = std::vector<GroupSpec>(n, a_group())};
    EXPECT_THAT(validate(spec).message(),
                AllOf(HasSubstr(std::to_string(n) + " groups"), HasSubstr("1 to 16")));
  }
  EXPECT_TRUE(validate({.groups = std::vector<GroupSpec>(16, a_group())}).ok());
}

TEST(Spec, EveryBlockSizeIsAMultipleOfTheSmallest) {
  EXPECT_THAT(refusal([](GroupSpec& g) { g.block_size = 6; }),
              AllOf(HasSubstr("group 1: block_size is 6"), HasSubstr("multiples"), HasSubstr("4")));
  CacheSpec spec{.groups = {a_group(), a_group(), a_group()}};
  spec.groups[0].block_size = 12;
  spec.groups[1].block_size = 2;
  spec.groups[2].block_size = 6;
  EXPECT_TRUE(validate(spec).ok());
  EXPECT_EQ(unit_of(spec), 2);
}

TEST(Spec, SlotsFitInt32) {
  EXPECT_EQ(refusal([](GroupSpec& g) { g.num_blocks = kMax / 4; }), "accepted");
  EXPECT_THAT(refusal([](GroupSpec& g) { g.num_blocks = kMax / 4 + 1; }),
              AllOf(HasSubstr("group 1: num_blocks 536870912 x block_size 4 = 2147483648 slots"),
                    HasSubstr("at most 2147483647")));
}

TEST(Spec, BytesBeyond63BitsAreRefusedWithTheFactors) {
  GroupSpec huge = a_group();
  huge.num_layers = 1 << 16;
  huge.num_kv_heads = 1 << 20;
  huge.head_dim_k = huge.head_dim_v = 1 << 20;
  huge.num_blocks = 1 << 20;
  EXPECT_TRUE(validate({.groups = {huge}}).ok());
  const auto layouts = plan_layouts({.groups = {a_group(), huge}});
  ASSERT_FALSE(layouts);
  EXPECT_EQ(layouts.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(layouts.error().message(), AllOf(HasSubstr("group 1"), HasSubstr("65536 layers"),
                                               HasSubstr("1048576 heads"), HasSubstr("63 bits")));
  // Each fits, their sum does not: 2^62 bytes twice.
  GroupSpec half = huge;
  half.num_layers = 1 << 8;
  half.block_size = 1;
  half.head_dim_v = 0;
  half.num_kv_heads = 1 << 16;
  half.num_blocks = 1 << 16;
  const auto one = plan_layouts({.groups = {half}});
  ASSERT_TRUE(one);
  ASSERT_EQ((*one)[0].total_bytes, std::int64_t{1} << 62);
  const auto sum = plan_layouts({.groups = {half, half}});
  ASSERT_FALSE(sum);
  EXPECT_THAT(sum.error().message(), HasSubstr("together overflow 63 bits"));
}

TEST(Spec, AGroupOfChunksIsRefusedByNameUntilTheManagerKeepsThem) {
  CacheSpec spec{.groups = {{.head_dim_k = 8, .head_dim_v = 8, .num_blocks = 4}}};
  spec.groups[0].kind = AttentionKind::kChunked;
  spec.groups[0].window = 64;
  const auto layouts = plan_layouts(spec);
  ASSERT_FALSE(layouts);
  EXPECT_EQ(layouts.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(layouts.error().message(), HasSubstr("group 0: kind is chunked, which only "));
}

TEST(Spec, NamesForPeople) {
  EXPECT_STREQ(to_string(AttentionKind::kFull), "full");
  EXPECT_STREQ(to_string(AttentionKind::kSlidingWindow), "sliding window");
  EXPECT_STREQ(to_string(AttentionKind::kChunked), "chunked");
  EXPECT_STREQ(to_string(static_cast<AttentionKind>(7)), "invalid");
  EXPECT_STREQ(to_string(Format::kHnd), "hnd");
  EXPECT_STREQ(to_string(Format::kNhd), "nhd");
  EXPECT_STREQ(to_string(static_cast<Format>(7)), "invalid");
}

// ---- layouts ----

// Byte of the first element of a row, from the words of spec.h: blocks of a layer are contiguous,
// each rounded up to 64 bytes; inside, K then V.
std::int64_t expected_at(const GroupSpec& g, bool v, std::int32_t layer, std::int32_t block,
                         std::int32_t head, std::int32_t token) {
  const std::int64_t bytes = dtype_bytes(g.dtype);
  const std::int64_t k_row = g.head_dim_k * bytes;
  const std::int64_t v_row = g.v_is_prefix_of_k ? 0 : g.head_dim_v * bytes;
  const std::int64_t block_bytes = ((k_row + v_row) * g.num_kv_heads * g.block_size + 63) / 64 * 64;
  std::int64_t at = (std::int64_t{layer} * g.num_blocks + block) * block_bytes;
  const bool in_v = v && !g.v_is_prefix_of_k;
  const std::int64_t row = in_v ? v_row : k_row;
  if (g.format == Format::kHnd) {
    at += head * (k_row + v_row) * g.block_size;
    if (in_v) at += k_row * g.block_size;
    return at + token * row;
  }
  if (in_v) at += k_row * g.num_kv_heads * g.block_size;
  return at + (std::int64_t{token} * g.num_kv_heads + head) * row;
}

TEST(Layout, RowsLieWhereTheFormatSaysWithinTheBytesAndNeverOverlap) {
  int layouts = 0;
  for (const Format format : {Format::kHnd, Format::kNhd}) {
    for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      for (const std::int32_t v : {0, 3, 5, -3}) {  // -3: a prefix of K
        for (const std::int32_t block_size : {1, 4, 7}) {
          GroupSpec g = a_group();
          g.head_dim_k = 5;
          g.head_dim_v = v < 0 ? -v : v;
          g.v_is_prefix_of_k = v < 0;
          g.format = format;
          g.dtype = dtype;
          g.block_size = block_size;
          const auto planned = plan_layouts({.groups = {g}});
          ASSERT_TRUE(planned);
          const GroupLayout layout = (*planned)[0];
          std::vector<std::byte> memory(static_cast<std::size_t>(layout.total_bytes));
          std::vector<char> owned(memory.size());
          const KVView view = make_view(g, layout, memory.data());
          EXPECT_EQ(view.v == nullptr, g.head_dim_v == 0);
          std::int64_t payload = 0;
          const auto own = [&](const std::byte* row, std::int64_t bytes, bool shared) {
            const std::int64_t at = row - memory.data();
            ASSERT_GE(at, 0);
            ASSERT_LE(at + bytes, layout.total_bytes);
            for (std::int64_t b = at; b < at + bytes; ++b) {
              ASSERT_EQ(owned[static_cast<std::size_t>(b)], shared ? 1 : 0);
              owned[static_cast<std::size_t>(b)] = 1;
            }
            if (!shared) payload += bytes;
          };
          for (std::int32_t l = 0; l < g.num_layers; ++l) {
            for (std::int32_t b = 0; b < g.num_blocks; ++b) {
              for (std::int32_t h = 0; h < g.num_kv_heads; ++h) {
                for (std::int32_t t = 0; t < g.block_size; ++t) {
                  const std::byte* k = view.k_at(l, b, h, t);
                  ASSERT_EQ(k - memory.data(), expected_at(g, false, l, b, h, t));
                  own(k, g.head_dim_k * dtype_bytes(dtype), false);
                  if (g.head_dim_v == 0) continue;
                  const std::byte* at_v = view.v_at(l, b, h, t);
                  ASSERT_EQ(at_v - memory.data(), expected_at(g, true, l, b, h, t));
                  own(at_v, g.head_dim_v * dtype_bytes(dtype), g.v_is_prefix_of_k);
                }
              }
            }
          }
          ASSERT_FALSE(HasFatalFailure());
          EXPECT_EQ(layout.payload_bytes_per_token * g.block_size * g.num_blocks, payload);
          EXPECT_EQ(layout.bytes_per_block * g.num_blocks, layout.total_bytes);
          EXPECT_EQ(layout.block_stride % 64, 0);
          EXPECT_EQ(layout.layer_stride, layout.block_stride * g.num_blocks);
          EXPECT_LT(layout.bytes_per_block - layout.payload_bytes_per_token * g.block_size,
                    64 * g.num_layers);
          ++layouts;
        }
      }
    }
  }
  EXPECT_EQ(layouts, 96);
}

TEST(Layout, TilesAndScalesLieBehindEachOtherOnLinesAndNeverOverlap) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const std::int32_t v : {0, 8, 24}) {
      for (const std::int32_t block_size : {16, 48, 1024}) {
        GroupSpec g = a_group();
        g.head_dim_k = 40;
        g.head_dim_v = v;
        g.format = Format::kGranule;
        g.dtype = dtype;
        g.block_size = block_size;
        const GroupLayout layout = plan_layouts({.groups = {g}})->at(0);
        std::vector<std::byte> memory(static_cast<std::size_t>(layout.total_bytes));
        const KVView view = make_view(g, layout, memory.data());
        EXPECT_TRUE(view.granule);
        const std::int64_t element = dtype_bytes(dtype);
        const bool scaled = dtype == DType::kInt8;
        // A head is [K tiles | V tiles | scales of K | scales of V], all contiguous.
        std::int64_t at = 0;
        for (std::int32_t l = 0; l < g.num_layers; ++l) {
          for (std::int32_t b = 0; b < g.num_blocks; ++b) {
            for (std::int32_t h = 0; h < g.num_kv_heads; ++h) {
              for (std::int32_t t = 0; t < block_size; ++t) {
                ASSERT_EQ(view.k_at(l, b, h, t) - memory.data(), at + t / 16 * 16 * 40 * element);
              }
              ASSERT_EQ(at % 64, 0);
              at += block_size * 40 * element;
              for (std::int32_t t = 0; t < block_size && v > 0; ++t) {
                ASSERT_EQ(view.v_at(l, b, h, t) - memory.data(), at + t / 16 * 16 * v * element);
              }
              at += block_size * v * element;
              for (std::int32_t t = 0; t < block_size && scaled; ++t) {
                ASSERT_EQ(view.k_scale_at(l, b, h, t) - memory.data(), at + t * 4);
              }
              at += scaled ? block_size * 4 : 0;
              for (std::int32_t t = 0; t < block_size && scaled && v > 0; ++t) {
                ASSERT_EQ(view.v_scale_at(l, b, h, t) - memory.data(), at + t * 4);
              }
              at += scaled && v > 0 ? block_size * 4 : 0;
            }
          }
        }
        EXPECT_EQ(at, layout.total_bytes);
        EXPECT_EQ(layout.payload_bytes_per_token * block_size, layout.bytes_per_block);
        EXPECT_EQ(
            layout.payload_bytes_per_token,
            g.num_layers * g.num_kv_heads * ((40 + v) * element + (scaled ? (v > 0 ? 8 : 4) : 0)));
        EXPECT_EQ(view.k_scale != nullptr, scaled);
        EXPECT_EQ(view.v_scale != nullptr, scaled && v > 0);
      }
    }
  }
}

TEST(Layout, ScalesOfPlainRowsFollowThemOnFourBytes) {
  for (const Format format : {Format::kHnd, Format::kNhd}) {
    for (const std::int32_t v : {0, 3, 5, -3}) {  // -3: a prefix of K
      for (const std::int32_t block_size : {1, 3, 16}) {
        GroupSpec g = a_group();
        g.head_dim_k = 5;
        g.head_dim_v = v < 0 ? -v : v;
        g.v_is_prefix_of_k = v < 0;
        g.format = format;
        g.dtype = block_size == 3 ? DType::kE4M3 : DType::kInt8;  // both lie alike
        g.block_size = block_size;
        const GroupLayout layout = plan_layouts({.groups = {g}})->at(0);
        std::vector<std::byte> memory(static_cast<std::size_t>(layout.total_bytes) + 4);
        std::byte* const base =
            memory.data() + (4 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4) % 4;
        const KVView view = make_view(g, layout, base);
        const std::int64_t heads = g.num_kv_heads;
        const std::int64_t together = format == Format::kHnd ? block_size : block_size * heads;
        const std::int64_t rows = (together * (5 + (v > 0 ? v : 0)) + 3) / 4 * 4;
        for (std::int32_t h = 0; h < heads; ++h) {
          for (std::int32_t t = 0; t < block_size; ++t) {
            const std::int64_t head = rows + together * (v > 0 ? 8 : 4);
            const std::int64_t want =
                layout.layer_stride + 2 * layout.block_stride + rows +
                (format == Format::kHnd ? h * head + t * 4 : (t * heads + h) * 4);
            ASSERT_EQ(view.k_scale_at(1, 2, h, t) - base, want);
            if (v > 0) {
              ASSERT_EQ(view.v_scale_at(1, 2, h, t) - base, want + together * 4);
            }
            if (v < 0) {
              ASSERT_EQ(view.v_scale_at(1, 2, h, t), view.k_scale_at(1, 2, h, t));
            }
            ASSERT_LE(want + together * (v > 0 ? 4 : 0) + 4, layout.total_bytes);
          }
        }
        EXPECT_EQ(view.v_scale == nullptr, v == 0);
        EXPECT_EQ(layout.payload_bytes_per_token,
                  g.num_layers * heads * (5 + (v > 0 ? v : 0) + (v > 0 ? 8 : 4)));
      }
    }
  }
}

TEST(Layout, ComesInTheOrderOfTheGroups) {
  GroupSpec wide = a_group();
  wide.head_dim_k = 64;
  const auto layouts = plan_layouts({.groups = {a_group(), wide}});
  ASSERT_TRUE(layouts);
  ASSERT_EQ(layouts->size(), 2u);
  EXPECT_EQ((*layouts)[0], (*plan_layouts({.groups = {a_group()}}))[0]);
  EXPECT_EQ((*layouts)[1], (*plan_layouts({.groups = {wide}}))[0]);
}

// ---- checked arithmetic ----

TEST(Checked, StaysPoisonedAfterItsFirstOverflow) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE((Checked(kMost) + 0).ok());
  EXPECT_FALSE((Checked(kMost) + 1).ok());
  EXPECT_FALSE((Checked(kMost) * 2 * 0).ok());
  EXPECT_FALSE((Checked(1) * (Checked(kMost) + 1)).ok());
  EXPECT_FALSE((Checked(1) + (Checked(kMost) * 2)).ok());
  EXPECT_FALSE(Checked(kMost).round_up(64).ok());
  EXPECT_EQ(Checked(65).round_up(64).value(), 128);
  EXPECT_EQ((Checked(6) * 7 + Checked(2) * 3).value(), 48);
}

}  // namespace
}  // namespace kvfolio
