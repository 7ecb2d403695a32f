// SPDX-License-Identifier: Apache-2.0
#include "tensor_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>
#include <string>
#include <vector>

#include "test_checkpoint.h"

namespace kvfolio::llama {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string open_error(const TempFolder& folder) {
  Result<TensorFiles> files = TensorFiles::open(folder.path());
  return files ? "no error" : files.error().message();
}

// All values of tensor "a", or the error.
Result<std::vector<float>> read_a(const TempFolder& folder, std::vector<std::int64_t> shape) {
  Result<TensorFiles> files = TensorFiles::open(folder.path());
  if (!files) return std::move(files).error();
  std::vector<float> values;
  Status status = files->read("a", shape, [&](std::int32_t, const float* row) {
    values.insert(values.end(), row, row + shape.back());
  });
  if (!status.ok()) return status;
  return values;
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::size_t begin, std::size_t end) {
  return "\"" + std::string(name) + R"(":{"dtype":")" + std::string(dtype) + R"(","shape":)" +
         std::string(shape) + R"(,"data_offsets":[)" + std::to_string(begin) + "," +
         std::to_string(end) + "]}";
}

TEST(TensorFiles, ReadsF32F16AndBf16Exactly) {
  const TempFolder folder;
  folder.write(kFile, safetensors_file("{" + entry("a", "F32", "[1,2]", 0, 8) + "}",
                                       bytes_of(std::vector<float>{1.5f, -2.0f})));
  EXPECT_THAT(*read_a(folder, {1, 2}), ElementsAre(1.5f, -2.0f));
  folder.write(kFile, safetensors_file("{" + entry("a", "F16", "[2]", 0, 4) + "}",
                                       std::string_view("\x00\x3e\x01\x00", 4)));
  EXPECT_THAT(*read_a(folder, {2}), ElementsAre(1.5f, 0x1p-24f));
  folder.write(kFile, safetensors_file("{" + entry("a", "BF16", "[2]", 0, 4) + "}",
                                       std::string_view("\xc0\x3f\x00\xc0", 4)));
  EXPECT_THAT(*read_a(folder, {2}), ElementsAre(1.5f, -2.0f));
}

TEST(TensorFiles, ReadsRowsLargerThanAPieceAndManyRows) {
  const TempFolder folder;
  std::vector<float> values(600'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto header = [](std::string_view shape) {
    return "{" + entry("a", "F32", shape, 0, 2'400'000) + "}";
  };
  folder.write(kFile, safetensors_file(header("[1,600000]"), bytes_of(values)));
  EXPECT_EQ(*read_a(folder, {1, 600'000}), values);
  folder.write(kFile, safetensors_file(header("[200000,3]"), bytes_of(values)));
  EXPECT_EQ(*read_a(folder, {200'000, 3}), values);
}

TEST(TensorFiles, MissingTensorWrongShapeAndWrongTypeAreRefusedByName) {
  const TempFolder folder;
  folder.write(kFile, safetensors_file("{" + entry("a", "I32", "[2]", 0, 8) + "}", "12345678"));
  EXPECT_THAT(read_a(folder, {3}).error().message(),
              HasSubstr("tensor \"a\" has shape [2], the config asks for [3]"));
  EXPECT_THAT(read_a(folder, {2}).error().message(), HasSubstr("has dtype I32"));
  folder.write(kFile, safetensors_file("{}", ""));
  EXPECT_THAT(read_a(folder, {2}).error().message(), HasSubstr("tensor \"a\" is missing"));
}

TEST(TensorFiles, ValuesThatAreNotFiniteAreRefusedByTensorAndRow) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const TempFolder folder;
    folder.write(kFile, safetensors_file("{" + entry("a", "F32", "[2,2]", 0, 16) + "}",
                                         bytes_of(std::vector<float>{1, 2, 3, bad})));
    EXPECT_THAT(read_a(folder, {2, 2}).error().message(),
                HasSubstr("tensor \"a\" has a value that is not finite in row 1"));
  }
}

TEST(TensorFiles, HeaderLengthBeyondTheFileIsRefused) {
  const TempFolder folder;
  for (const std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{100'000'001}, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    folder.write(kFile, safetensors_file("{}", "", length));
    EXPECT_THAT(open_error(folder), HasSubstr("header length is " + std::to_string(length)));
  }
}

TEST(TensorFiles, EveryTruncationOfAFileIsAnError) {
  const TempFolder folder;
  const std::string whole = safetensors_file("{" + entry("a", "F32", "[2]", 0, 8) + "}",
                                             bytes_of(std::vector<float>{1, 2}));
  folder.write(kFile, whole);
  ASSERT_EQ(open_error(folder), "no error");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    folder.write(kFile, whole.substr(0, size));
    EXPECT_THAT(open_error(folder), HasSubstr(kFile)) << size;
  }
}

TEST(TensorFiles, AFileThatShrinksAfterItWasOpenedIsAnError) {
  const TempFolder folder;
  const std::string whole = safetensors_file("{" + entry("a", "F32", "[2]", 0, 8) + "}",
                                             bytes_of(std::vector<float>{1, 2}));
  folder.write(kFile, whole);
  Result<TensorFiles> files = TensorFiles::open(folder.path());
  ASSERT_TRUE(files);
  folder.write(kFile, whole.substr(0, whole.size() - 1));
  const std::int64_t shape[] = {2};
  EXPECT_THAT(files->read("a", shape, [](std::int32_t, const float*) {}).message(),
              HasSubstr("too early"));
}

TEST(TensorFiles, PipesFoldersAndEmptyFoldersAreRefused) {
  const TempFolder folder;
  EXPECT_THAT(open_error(folder), HasSubstr("has neither model.safetensors nor"));
  const std::string path = folder.path() + "/" + kFile;
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(open_error(folder), HasSubstr("is not a regular file"));
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_THAT(open_error(folder), HasSubstr("is not a regular file"));
}

std::string index_of(std::string_view weight_map) {
  return R"({"metadata":{},"weight_map":)" + std::string(weight_map) + "}";
}

TEST(TensorFiles, ShardsAreReadThroughTheIndex) {
  const TempFolder folder;
  folder.write("s1", safetensors_file("{" + entry("b", "F32", "[1]", 0, 4) + "}", "1234"));
  folder.write("s2", safetensors_file("{" + entry("a", "F32", "[1]", 0, 4) + "}",
                                      bytes_of(std::vector<float>{7})));
  folder.write(kIndex, index_of(R"({"a":"s2","b":"s1"})"));
  EXPECT_THAT(*read_a(folder, {1}), ElementsAre(7.0f));
}

TEST(TensorFiles, IndexAndShardsMustAgree) {
  const TempFolder folder;
  const std::string a = safetensors_file("{" + entry("a", "U8", "[1]", 0, 1) + "}", "1");
  folder.write("s1", a);
  folder.write("s2", a);
  folder.write(kIndex, index_of(R"({"a":"s1","b":"s2"})"));
  EXPECT_THAT(open_error(folder), HasSubstr("tensor \"a\" is also in"));
  folder.write(kIndex, index_of(R"({"b":"s1"})"));
  EXPECT_THAT(open_error(folder), HasSubstr("tensor \"b\" is in"));
  folder.write("s3", safetensors_file("{" + entry("c", "U8", "[1]", 0, 1) + "," +
                                          entry("d", "U8", "[1]", 1, 2) + "}",
                                      "12"));
  folder.write(kIndex, index_of(R"({"c":"s3"})"));
  EXPECT_THAT(open_error(folder), HasSubstr("tensor \"d\" is not in the weight_map"));
  folder.write(kIndex, index_of(R"({"c":"s4"})"));
  EXPECT_THAT(open_error(folder), HasSubstr("s4: cannot open"));
}

TEST(TensorFiles, IndexNamesFilesOfItsFolderOnly) {
  const TempFolder folder;
  for (const std::string_view name :
       {"../s1", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "s1\\u0000"}) {
    folder.write(kIndex, index_of("{\"a\":\"" + std::string(name) + "\"}"));
    EXPECT_THAT(open_error(folder), HasSubstr("must be the name of a file in the same folder"))
        << name;
  }
  for (const std::string_view map : {"[]", "null", "1", "\"s1\""}) {
    folder.write(kIndex, index_of(map));
    EXPECT_THAT(open_error(folder), HasSubstr("weight_map must be an object")) << map;
  }
  folder.write(kIndex, index_of(R"({"a":1})"));
  EXPECT_THAT(open_error(folder), HasSubstr("weight_map \"a\" is 1"));
  folder.write(kIndex, "{}");
  EXPECT_THAT(open_error(folder), HasSubstr("weight_map must be an object"));
  folder.write(kIndex, "{");
  EXPECT_THAT(open_error(folder), HasSubstr("line 1, column 2"));
}

}  // namespace
}  // namespace kvfolio::llama
