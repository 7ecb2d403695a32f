// SPDX-License-Identifier: Apache-2.0
//
// What a run of the command with small models does not come to. The rest of WholeFile is seen from
// outside (test_hostile.py).

#include "whole_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kvfolio::tools {
namespace {

namespace fs = std::filesystem;

class WholeFileTest : public testing::Test {
 protected:
  WholeFileTest() {
    std::string made = testing::TempDir() + "/whole_file.XXXXXX";
    EXPECT_NE(::mkdtemp(made.data()), nullptr);
    folder_ = made;
  }
  ~WholeFileTest() override { fs::remove_all(folder_); }

  std::string folder_;
};

// A row of logits of a large vocabulary is longer than the buffer.
TEST_F(WholeFileTest, HasPiecesOfAnyLengthInTheirOrder) {
  const std::string longer(70'000, 'x');
  for (const std::vector<std::string>& pieces : std::vector<std::vector<std::string>>{
           {}, {""}, {longer}, {longer, longer}, {"a", longer, "", "b", longer}, {longer, "c"}}) {
    auto file = WholeFile::create(folder_ + "/f");
    ASSERT_TRUE(file) << file.error();
    std::string all;
    for (const std::string& piece : pieces) {
      file->write(piece);
      all += piece;
    }
    const Status finished = file->finish();
    ASSERT_TRUE(finished.ok()) << finished;
    std::ifstream in(folder_ + "/f");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), all);
  }
}

TEST_F(WholeFileTest, AMessageNamesTheFileAsTheCallerDid) {
  fs::create_symlink(folder_ + "/none/x", folder_ + "/link");
  const auto file = WholeFile::create(folder_ + "/link");
  ASSERT_FALSE(file);
  EXPECT_TRUE(file.error().message().starts_with(folder_ + "/link: ")) << file.error();
}

}  // namespace
}  // namespace kvfolio::tools
