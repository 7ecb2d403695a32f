// SPDX-License-Identifier: Apache-2.0
#include "safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvfolio::llama {
namespace {

using ::testing::HasSubstr;

// Parses a header whose file has `data_bytes` behind it.
auto parse(std::string_view header, std::int64_t data_bytes) {
  return parse_safetensors_header(header, 8 + std::ssize(header) + data_bytes);
}

std::string header_error(std::string_view header, std::int64_t data_bytes) {
  auto tensors = parse(header, data_bytes);
  return tensors ? "no error" : tensors.error().message();
}

// {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return std::string(R"({"a":{"dtype":)")
      .append(dtype)
      .append(R"(,"shape":)")
      .append(shape)
      .append(R"(,"data_offsets":)")
      .append(offsets)
      .append("}}");
}

TEST(Safetensors, OffsetsCountFromTheStartOfTheFile) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},
          "b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},
          "empty":{"dtype":"F32","shape":[0,7],"data_offsets":[12,12]},
          "scalar":{"dtype":"F32","shape":[],"data_offsets":[20,24]},
          "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}   )";
  auto tensors = parse(header, 24);
  ASSERT_TRUE(tensors) << tensors.error().message();
  ASSERT_EQ(tensors->size(), 4u);
  EXPECT_EQ((*tensors)[0].first, "a");
  EXPECT_EQ((*tensors)[0].second.dtype, "BF16");
  EXPECT_EQ((*tensors)[0].second.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ((*tensors)[0].second.begin, 8 + std::ssize(header));
  EXPECT_EQ((*tensors)[0].second.bytes, 12);
  EXPECT_EQ((*tensors)[1].first, "empty");
  EXPECT_EQ((*tensors)[2].second.begin, 8 + std::ssize(header) + 12);
  EXPECT_EQ((*tensors)[3].second.bytes, 4);
}

TEST(Safetensors, WrongOffsetsAreRefusedByTensor) {
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[8,0]"), 8), HasSubstr("[8, 0] are reversed"));
  EXPECT_THAT(
      header_error(one("\"F32\"", "[2]", "[0,4]"), 8),
      HasSubstr("tensor \"a\": data_offsets [0, 4] span 4 bytes, shape [2] of F32 takes 8"));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[0,8]"), 7), HasSubstr("the file has 7 bytes"));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[0,8]"), 9), HasSubstr("its tensors end at 8"));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[4,12]"), 12),
              HasSubstr("behind the tensor before"));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[-8,0]"), 8), HasSubstr("whole numbers >= 0"));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[0,1e1]"), 8), HasSubstr("whole numbers >= 0"));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[0,9223372036854775808]"), 8),
              HasSubstr("whole numbers >= 0"));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "[0]"), 8), HasSubstr("array of two offsets"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                           "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                           6),
              HasSubstr("tensor \"b\": data_offsets begin at 2, inside the tensor before"));
  EXPECT_THAT(header_error("{}", 1), HasSubstr("1 bytes of data, its tensors end at 0"));
}

TEST(Safetensors, ShapesThatOverflowAreRefused) {
  EXPECT_THAT(header_error(one("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 0),
              HasSubstr("overflows 63 bits"));
  EXPECT_THAT(header_error(one("\"F32\"", "[9223372036854775807]", "[0,8]"), 8),
              HasSubstr("overflows 63 bits"));
  // 2^61 * 8 bits is 2^64: a 64-bit product would be 0.
  EXPECT_THAT(header_error(one("\"U8\"", "[2305843009213693952]", "[0,0]"), 0),
              HasSubstr("overflows 63 bits"));
  EXPECT_THAT(header_error(one("\"F32\"", "[-1]", "[0,4]"), 4), HasSubstr("the size -1"));
  EXPECT_THAT(header_error(one("\"F32\"", "[1.5]", "[0,4]"), 4), HasSubstr("the size 1.5"));
  EXPECT_THAT(header_error(one("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4),
              HasSubstr("9 dimensions"));
  EXPECT_THAT(header_error(one("\"F4\"", "[3]", "[0,1]"), 1), HasSubstr("whole byte"));
}

TEST(Safetensors, WrongKindsOfValuesAreRefused) {
  EXPECT_THAT(header_error("[]", 0), HasSubstr("must be an object"));
  EXPECT_THAT(header_error("", 0), HasSubstr("unexpected end of input"));
  EXPECT_THAT(header_error(R"({"a":1})", 0), HasSubstr("tensor \"a\": is 1, must be an object"));
  EXPECT_THAT(header_error(one("7", "[2]", "[0,8]"), 8), HasSubstr("dtype must be a string"));
  EXPECT_THAT(header_error(one("\"F33\"", "[2]", "[0,8]"), 8), HasSubstr("dtype is \"F33\""));
  EXPECT_THAT(header_error(one("\"F32\"", "2", "[0,8]"), 8), HasSubstr("shape must be an array"));
  EXPECT_THAT(header_error(one("\"F32\"", "[\"2\"]", "[0,8]"), 8), HasSubstr("the size \"2\""));
  EXPECT_THAT(header_error(one("\"F32\"", "[2]", "{}"), 8), HasSubstr("array of two offsets"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[0]}})", 0), HasSubstr("data_offsets"));
  EXPECT_THAT(header_error(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0),
              HasSubstr("unknown field \"x\""));
  EXPECT_THAT(header_error(R"({"__metadata__":[]})", 0), HasSubstr("__metadata__ must be"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__ \"a\" is 1"));
  EXPECT_THAT(header_error(R"({"a":{},"a":{}})", 0), HasSubstr("has key \"a\" twice"));
}

TEST(Safetensors, EveryTruncationOfAHeaderIsAnError) {
  const std::string header = one("\"F32\"", "[2]", "[0,8]");
  ASSERT_TRUE(parse(header, 8));
  for (std::size_t size = 0; size < header.size(); ++size) {
    EXPECT_FALSE(parse(header.substr(0, size), 8)) << size;
  }
}

}  // namespace
}  // namespace kvfolio::llama
