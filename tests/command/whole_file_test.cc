// SPDX-License-Identifier: Apache-2.0
//
// In a file system without unnamed files, which this machine may not have. The rest of WholeFile is
// seen from outside (test_hostile.py).

#include "whole_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "console.h"

extern "C" int openat(int folder, const char* path, int flags, ...) {
  if ((flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

namespace kvfolio::tools {
namespace {

namespace fs = std::filesystem;

TEST(WholeFile, ASignalLeavesNoFileWithAHiddenName) {
  std::string folder = testing::TempDir() + "/whole_file.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const ::pid_t child = ::fork();
  if (child == 0) {
    handle_signals();
    auto file = WholeFile::create(folder + "/f");
    if (!file || fs::is_empty(folder)) ::_exit(1);
    file->write("half");
    ::raise(SIGTERM);
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace kvfolio::tools
