// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/byte_stream.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

// Calls of the system that a test changes: of a file system without unnamed files, and just before
// a file is locked or gets its name. All others go through.
namespace {
bool has_unnamed_files = true;
int unnamed_files_refused = 0;
std::function<void()> before_next_lock;    // NOLINT(cert-err58-cpp)
std::function<void()> before_next_rename;  // NOLINT(cert-err58-cpp)
}  // namespace

extern "C" int openat(int folder, const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  if (!has_unnamed_files && (flags & O_TMPFILE) == O_TMPFILE) {
    ++unnamed_files_refused;
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, folder, path, flags, mode));
}

extern "C" int flock(int file, int operation) noexcept {
  if (before_next_lock) std::exchange(before_next_lock, nullptr)();
  return static_cast<int>(::syscall(SYS_flock, file, operation));
}

extern "C" int renameat(int from, const char* old_name, int to, const char* name) noexcept {
  if (before_next_rename) std::exchange(before_next_rename, nullptr)();
  return static_cast<int>(::syscall(SYS_renameat2, from, old_name, to, name, 0));
}

namespace kvfolio {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string made = testing::TempDir() + "/byte_stream.XXXXXX";
    EXPECT_NE(::mkdtemp(made.data()), nullptr);
    folder_ = made;
  }
  ~FileTest() override {
    has_unnamed_files = true;
    before_next_lock = nullptr;
    before_next_rename = nullptr;
    fs::remove_all(folder_);
  }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  [[nodiscard]] std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  // The only hidden file in the folder.
  [[nodiscard]] std::string hidden() const {
    std::string found;
    for (const auto& each : fs::directory_iterator(folder_)) {
      if (!each.path().filename().string().starts_with(".kvfolio.")) continue;
      EXPECT_EQ(found, "");
      found = each.path();
    }
    return found;
  }
  // The digits that name this boot, as hidden files do.
  static std::string boot() {
    std::string id;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
    return id.substr(0, 8);
  }
  static void make_older(const std::string& path, std::chrono::hours by) {
    fs::last_write_time(path, fs::last_write_time(path) - by);
  }
  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static Status write_text(FileSink& sink, std::string_view text) {
    return sink.write(std::as_bytes(std::span(text)));
  }
  static std::string refusal(const std::string& path) {
    const auto sink = FileSink::create(path);
    return sink ? "created" : to_string(sink.error());
  }
  static std::string refusal_to_open(const std::string& path) {
    const auto source = FileSource::open(path);
    return source ? "opened" : to_string(source.error());
  }

  std::string folder_;
};

TEST_F(FileTest, NothingIsSeenBeforeTheCommitAndEverythingAfterIt) {
  auto sink = FileSink::create(path("f"));
  ASSERT_TRUE(sink) << sink.error();
  ASSERT_TRUE(write_text(*sink, "hello").ok());
  EXPECT_FALSE(fs::exists(path("f")));
  ASSERT_TRUE(sink->commit().ok());
  EXPECT_EQ(content(path("f")), "hello");
  EXPECT_EQ(num_files(), 1u);
  EXPECT_EQ(sink->commit().code(), ErrorCode::kFailedPrecondition);
}

TEST_F(FileTest, WhatIsGivenUpLeavesTheOldFileAndNothingElse) {
  std::ofstream(path("f")) << "old";
  {
    auto sink = FileSink::create(path("f"));
    ASSERT_TRUE(sink);
    ASSERT_TRUE(write_text(*sink, "new").ok());
    FileSink moved = *std::move(sink);
    ASSERT_TRUE(write_text(moved, "er").ok());
  }
  EXPECT_EQ(content(path("f")), "old");
  EXPECT_EQ(num_files(), 1u);
}

// No other user may read it, not even while it is written; and a process that has the old file
// open keeps that one.
TEST_F(FileTest, AFileThatOthersMayReadIsReplacedByOneThatTheyMayNot) {
  std::ofstream(path("f")) << "old";
  ASSERT_EQ(::chmod(path("f").c_str(), 0666), 0);
  std::ifstream open_before(path("f"));
  const mode_t before = ::umask(0);
  auto sink = FileSink::create(path("f"));
  ::umask(before);
  ASSERT_TRUE(sink);
  ASSERT_TRUE(write_text(*sink, "secret").ok());
  ASSERT_TRUE(sink->commit().ok());
  struct stat there {};
  ASSERT_EQ(::stat(path("f").c_str(), &there), 0);
  EXPECT_EQ(there.st_mode & 07777, 0600u);
  EXPECT_EQ(content(path("f")), "secret");
  std::string seen;
  open_before >> seen;
  EXPECT_EQ(seen, "old");
}

TEST_F(FileTest, AModeIsThatOfTheFileWithoutWhatTheProcessMasks) {
  for (const bool unnamed : {true, false}) {
    has_unnamed_files = unnamed;
    const mode_t before = ::umask(027);
    auto sink = FileSink::create(path("f"), 0666);
    ::umask(before);
    ASSERT_TRUE(sink && sink->commit().ok());
    struct stat there {};
    ASSERT_EQ(::stat(path("f").c_str(), &there), 0);
    EXPECT_EQ(there.st_mode & 07777, 0640u);
  }
}

TEST_F(FileTest, TheFolderIsThatOfTheBeginningWhereverTheProcessGoes) {
  const fs::path home = fs::current_path();
  fs::current_path(folder_);
  auto sink = FileSink::create("f");
  fs::current_path(home);
  ASSERT_TRUE(sink) << sink.error();
  ASSERT_TRUE(write_text(*sink, "x").ok());
  ASSERT_TRUE(sink->commit().ok());
  EXPECT_EQ(content(path("f")), "x");
}

TEST_F(FileTest, ThingsThatAreNoFilesAreRefusedByWhatTheyAreAndNotWaitedFor) {
  std::ofstream(path("file")) << "old";
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::mkdir(path("folder").c_str(), 0700), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(path("socket").size(), sizeof address.sun_path);
  path("socket").copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(socket);
  for (const auto& [name, what] : {std::pair{path("pipe"), "a pipe"},
                                   {path("folder"), "a directory"},
                                   {path("socket"), "a socket"},
                                   {std::string("/dev/full"), "a device"},
                                   {std::string("/dev/zero"), "a device"}}) {
    EXPECT_THAT(refusal(name), HasSubstr(std::string("not a regular file, but ") + what));
    EXPECT_THAT(refusal_to_open(name), HasSubstr(std::string("not a regular file, but ") + what));
  }
  EXPECT_THAT(refusal(path("folder") + "/"), HasSubstr("a directory"));
  EXPECT_THAT(refusal(path("file") + "/f"), HasSubstr("Not a directory"));
  EXPECT_THAT(refusal(path("none/f")), HasSubstr("No such file or directory"));
  EXPECT_THAT(refusal_to_open(path("none")), HasSubstr("No such file or directory"));
  EXPECT_THAT(refusal(std::string(300, 'n')), HasSubstr("File name too long"));
  EXPECT_THAT(refusal(""), HasSubstr("a directory"));
}

TEST_F(FileTest, ALinkIsFollowedToReadAndRefusedToWrite) {
  std::ofstream(path("file")) << "old";
  fs::create_symlink("file", path("link"));
  fs::create_symlink("nowhere", path("dangling"));
  fs::create_symlink("loop", path("loop"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("pipe", path("to-pipe"));
  EXPECT_EQ(refusal_to_open(path("link")), "opened");
  EXPECT_THAT(refusal_to_open(path("to-pipe")), HasSubstr("a pipe"));
  EXPECT_THAT(refusal_to_open(path("loop")), HasSubstr("symbolic links"));
  for (const char* name : {"link", "dangling", "loop", "to-pipe"}) {
    EXPECT_THAT(refusal(path(name)), HasSubstr("a symbolic link; give the path of the file"));
  }
  EXPECT_EQ(content(path("file")), "old");
}

TEST_F(FileTest, AFolderThatMayNotBeWrittenToIsSaidToBe) {
  std::ofstream(path("f")) << "old";
  ASSERT_EQ(::chmod(folder_.c_str(), 0500), 0);
  if (::geteuid() == 0) {  // whom no mode keeps out
    EXPECT_THAT(refusal("/proc/f"), HasSubstr("/proc/f: cannot"));
  } else {
    EXPECT_THAT(refusal(path("f")), HasSubstr("Permission denied"));
  }
  EXPECT_EQ(content(path("f")), "old");
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
}

// A process of its own, in which files end at 4 KiB: what a medium without space does, anywhere.
TEST_F(FileTest, AfterAWriteThatFailedTheOldFileStaysWhole) {
  std::ofstream(path("f")) << "old";
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    auto sink = FileSink::create(path("f"));
    const std::vector<std::byte> bytes(10'000);
    if (!sink) ::_exit(1);
    const Status written = sink->write(bytes);
    if (written.code() != ErrorCode::kUnavailable) ::_exit(2);
    if (written.message().find("cannot write: File too large") == std::string::npos) ::_exit(3);
    ::_exit(sink->commit().code() == ErrorCode::kFailedPrecondition ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(content(path("f")), "old");
  EXPECT_EQ(num_files(), 1u);
}

class FullDiskTest : public FileTest {
 protected:
  void fill_the_disk() {
    std::ofstream(path("disk/f")) << "old";
    {
      auto sink = FileSink::create(path("disk/f"));
      ASSERT_TRUE(sink) << sink.error();
      const std::vector<std::byte> bytes(100'000);
      EXPECT_THAT(to_string(sink->write(bytes)), HasSubstr("No space left on device"));
      EXPECT_EQ(sink->commit().code(), ErrorCode::kFailedPrecondition);
    }
    EXPECT_EQ(content(path("disk/f")), "old");
    EXPECT_EQ(std::distance(fs::directory_iterator(path("disk")), fs::directory_iterator()), 1);
    // Its memory is free again.
    auto sink = FileSink::create(path("disk/f"));
    ASSERT_TRUE(sink) << sink.error();
    EXPECT_TRUE(write_text(*sink, std::string(40'000, 'x')).ok());
    EXPECT_TRUE(sink->commit().ok());
  }
};

TEST_F(FullDiskTest, AMediumWithoutSpaceKeepsTheOldFileWhole) {
  ASSERT_EQ(::mkdir(path("disk").c_str(), 0700), 0);
  if (::mount("none", path("disk").c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here";
  }
  fill_the_disk();
  ::umount2(path("disk").c_str(), MNT_DETACH);
}

// Killed: not even a destructor runs.
TEST_F(FileTest, AKilledProcessLeavesTheOldFileAlone) {
  std::ofstream(path("f")) << "old";
  const pid_t child = ::fork();
  if (child == 0) {
    auto sink = FileSink::create(path("f"));
    if (sink) static_cast<void>(write_text(*sink, "half"));
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(content(path("f")), "old");
  const int unnamed = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (unnamed < 0) GTEST_SKIP() << "this file system has no files without a name";
  ::close(unnamed);
  EXPECT_EQ(num_files(), 1u);
}

TEST_F(FileTest, WhatAKillLeftIsRemovedByTheNextSaveAndWhatLivesStays) {
  if (boot().size() != 8) GTEST_SKIP() << "the kernel does not say which boot this is";
  const std::string dead = path(".kvfolio." + boot() + "89abcdef");
  const std::string alive = path(".kvfolio." + boot() + "76543210");
  const std::string notes = path(".kvfolio.notes");
  for (const std::string& name : {dead, alive, notes}) std::ofstream(name) << "half";
  const int held = ::open(alive.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  fs::create_symlink("nowhere", path(".kvfolio.00000000000000ff"));
  auto sink = FileSink::create(path("file"));
  ASSERT_TRUE(sink);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(notes));
  EXPECT_TRUE(fs::is_symlink(path(".kvfolio.00000000000000ff")));
  ASSERT_TRUE(write_text(*sink, "whole").ok());
  ASSERT_TRUE(sink->commit().ok());
  EXPECT_EQ(content(path("file")), "whole");
  ::close(held);
  EXPECT_TRUE(FileSink::create(path("file")));
  EXPECT_FALSE(fs::exists(alive));
}

// A process that was killed in a file system without unnamed files.
TEST_F(FileTest, AFileWithAHiddenNameIsLeftByAKillAndRemovedByTheNextSave) {
  if (boot().size() != 8) GTEST_SKIP() << "the kernel does not say which boot this is";
  has_unnamed_files = false;
  const pid_t child = ::fork();
  if (child == 0) {
    auto sink = FileSink::create(path("f"));
    if (sink) static_cast<void>(write_text(*sink, "half"));
    ::raise(SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(content(hidden()), "half");
  {
    auto sink = FileSink::create(path("f"));
    ASSERT_TRUE(sink && write_text(*sink, "whole").ok());
    EXPECT_EQ(content(hidden()), "whole");
    ASSERT_TRUE(sink->commit().ok());
  }
  EXPECT_GT(unnamed_files_refused, 0);
  EXPECT_EQ(content(path("f")), "whole");
  EXPECT_EQ(num_files(), 1u);
}

// M7. Its host may write it, and hold a lock that is seen on that host alone.
TEST_F(FileTest, WhatMayBeOfAnotherHostIsRemovedWhenItIsADayOld) {
  std::string other = boot();
  for (char& digit : other) digit = digit == '0' ? '1' : '0';
  const std::string theirs = path(".kvfolio." + other + "89abcdef");
  const std::string locked = path(".kvfolio." + other + "76543210");
  for (const std::string& name : {theirs, locked}) std::ofstream(name) << "half";
  const int held = ::open(locked.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  for (const std::string& name : {theirs, locked}) make_older(name, std::chrono::hours(23));
  EXPECT_TRUE(FileSink::create(path("f")));
  EXPECT_TRUE(fs::exists(theirs));
  for (const std::string& name : {theirs, locked}) make_older(name, std::chrono::hours(2));
  EXPECT_TRUE(FileSink::create(path("f")));
  EXPECT_FALSE(fs::exists(theirs));
  EXPECT_TRUE(fs::exists(locked));
  ::close(held);
  EXPECT_TRUE(FileSink::create(path("f")));
  EXPECT_FALSE(fs::exists(locked));
}

// M7. Between the call that makes the file and the one that locks it.
TEST_F(FileTest, AFileThatIsTakenForDeadBeforeItIsLockedIsMadeAgain) {
  has_unnamed_files = false;
  std::string taken;
  before_next_lock = [&] {
    taken = hidden();
    EXPECT_TRUE(FileSink::create(path("other")));  // which removes it, and leaves nothing
    EXPECT_FALSE(fs::exists(taken));
  };
  auto sink = FileSink::create(path("f"));
  ASSERT_TRUE(sink) << sink.error();
  EXPECT_NE(taken, "");
  EXPECT_NE(hidden(), taken);
  ASSERT_TRUE(write_text(*sink, "whole").ok());
  ASSERT_TRUE(sink->commit().ok());
  EXPECT_EQ(content(path("f")), "whole");
  EXPECT_EQ(num_files(), 1u);
}

// M7. The other process has the lock already, and has not removed it yet.
TEST_F(FileTest, AFileThatIsBeingRemovedBeforeItIsLockedIsMadeAgain) {
  has_unnamed_files = false;
  int other = -1;
  std::string taken;
  before_next_lock = [&] {
    taken = hidden();
    other = ::open(taken.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::flock(other, LOCK_EX | LOCK_NB), 0);
  };
  auto sink = FileSink::create(path("f"));
  ASSERT_TRUE(sink) << sink.error();
  ::unlink(taken.c_str());
  ::close(other);
  ASSERT_TRUE(write_text(*sink, "whole").ok());
  ASSERT_TRUE(sink->commit().ok());
  EXPECT_EQ(content(path("f")), "whole");
  EXPECT_EQ(num_files(), 1u);
}

// M7. Its bytes are written, and it has a hidden name.
TEST_F(FileTest, AFileThatIsAboutToGetItsNameIsNotTakenForDead) {
  for (const bool unnamed : {true, false}) {
    has_unnamed_files = unnamed;
    auto sink = FileSink::create(path("f"));
    ASSERT_TRUE(sink) << sink.error();
    ASSERT_TRUE(write_text(*sink, "whole").ok());
    std::string seen;
    before_next_rename = [&] {
      seen = hidden();
      EXPECT_TRUE(FileSink::create(path("other")));
    };
    EXPECT_TRUE(sink->commit().ok());
    EXPECT_NE(seen, "");
    EXPECT_EQ(content(path("f")), "whole");
    EXPECT_EQ(num_files(), 1u);
  }
}

TEST_F(FileTest, PiecesAreWrittenAndReadInOrderHoweverMany) {
  std::vector<std::byte> bytes(10'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  std::vector<std::span<const std::byte>> out;
  for (std::size_t at = 0; at < bytes.size(); at += 50) out.emplace_back(&bytes[at], 50);
  out.insert(out.begin() + 3, std::span<const std::byte>());
  auto sink = FileSink::create(path("f"));
  ASSERT_TRUE(sink && sink->write({}).ok() && sink->write_pieces(out).ok());
  ASSERT_TRUE(sink->write({}).ok() && sink->write_pieces({}).ok());
  ASSERT_TRUE(sink->commit().ok());
  auto source = FileSource::open(path("f"));
  ASSERT_TRUE(source);
  ASSERT_EQ(source->size(), 10'000);
  std::vector<std::byte> back(9'000);
  std::vector<std::span<std::byte>> in;
  for (std::size_t at = 0; at < back.size(); at += 90) in.emplace_back(&back[at], 90);
  ASSERT_TRUE(source->read_pieces_at(1'000, in).ok() && source->read_at(1'000, {}).ok());
  EXPECT_TRUE(std::equal(back.begin(), back.end(), bytes.begin() + 1'000));
}

TEST_F(FileTest, AFileThatBecomesShorterIsAnErrorAndNoEndlessLoop) {
  std::ofstream(path("f")) << std::string(1000, 'x');
  auto source = FileSource::open(path("f"));
  ASSERT_TRUE(source);
  fs::resize_file(path("f"), 10);
  std::vector<std::byte> out(1000);
  EXPECT_THAT(to_string(source->read_at(0, out)), HasSubstr("it became shorter"));
}

}  // namespace
}  // namespace kvfolio
