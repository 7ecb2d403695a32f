// SPDX-License-Identifier: Apache-2.0
//
// What two runs do to each other's parts. The rest of WholeFile is seen from outside
// (test_hostile.py).

#include "whole_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

namespace {
std::function<void()> before_next_lock;    // NOLINT(cert-err58-cpp)
std::function<void()> before_next_rename;  // NOLINT(cert-err58-cpp)
}  // namespace

extern "C" int flock(int file, int operation) noexcept {
  if (before_next_lock) std::exchange(before_next_lock, nullptr)();
  return static_cast<int>(::syscall(SYS_flock, file, operation));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (before_next_rename) std::exchange(before_next_rename, nullptr)();
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}

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
  ~WholeFileTest() override {
    before_next_lock = nullptr;
    before_next_rename = nullptr;
    fs::remove_all(folder_);
  }

  // The only file in the folder.
  [[nodiscard]] std::string part() const {
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
    return fs::directory_iterator(folder_)->path();
  }
  void write_and_expect_it_alone(WholeFile file) const {
    file.write("whole");
    ASSERT_TRUE(file.finish().ok());
    std::ifstream in(part());
    EXPECT_EQ(fs::path(part()).filename(), "f");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "whole");
  }

  std::string folder_;
};

// M7. Between the call that makes it and the one that locks it.
TEST_F(WholeFileTest, APartThatIsTakenForDeadBeforeItIsLockedIsMadeAgain) {
  std::string taken;
  before_next_lock = [&] {
    taken = part();
    EXPECT_TRUE(WholeFile::create(folder_ + "/other"));  // which removes it, and leaves nothing
    EXPECT_FALSE(fs::exists(taken));
  };
  auto file = WholeFile::create(folder_ + "/f");
  ASSERT_TRUE(file) << file.error();
  EXPECT_NE(taken, "");
  EXPECT_NE(part(), taken);
  write_and_expect_it_alone(*std::move(file));
}

// M7. The other run has the lock already, and has not removed it yet.
TEST_F(WholeFileTest, APartThatIsBeingRemovedBeforeItIsLockedIsMadeAgain) {
  int other = -1;
  std::string taken;
  before_next_lock = [&] {
    taken = part();
    other = ::open(taken.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  };
  auto file = WholeFile::create(folder_ + "/f");
  ASSERT_TRUE(file) << file.error();
  ::unlink(taken.c_str());
  ::close(other);
  write_and_expect_it_alone(*std::move(file));
}

// M7. Its bytes are written, and it has not got its name yet.
TEST_F(WholeFileTest, APartThatIsAboutToGetItsNameIsNotTakenForDead) {
  auto file = WholeFile::create(folder_ + "/f");
  ASSERT_TRUE(file) << file.error();
  bool renamed = false;
  before_next_rename = [&] {
    renamed = true;
    EXPECT_TRUE(WholeFile::create(folder_ + "/other"));
  };
  write_and_expect_it_alone(*std::move(file));
  EXPECT_TRUE(renamed);
}

}  // namespace
}  // namespace kvfolio::tools
