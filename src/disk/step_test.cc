// SPDX-License-Identifier: Apache-2.0
#include "disk/step.h"

#include <gtest/gtest.h>

#include <random>

#include "disk/index.h"
#include "disk/sim_disk.h"
#include "disk/test_store.h"

namespace kvfolio::disk {
namespace {

std::byte memory[3 * kPiece];

IoStep read_of(int file, std::int64_t first, std::int64_t second) {
  IoStep step;
  step.kind = IoStep::Kind::kRead;
  step.file = file;
  step.add_part(memory, first);
  step.add_part(memory + first, second);
  return step;
}

TEST(StepRun, AsksForTheRestFromAWholePiece) {
  SimDisk disk;
  StepRun run(read_of(1, 2 * kPiece, kPiece));
  EXPECT_FALSE(run.take(kPiece + 100, disk));  // a piece counts, what is behind it does not
  EXPECT_EQ(run.rest().offset, kPiece);
  EXPECT_EQ(run.rest().num_parts, 2);
  EXPECT_EQ(run.rest().parts[0].iov_len, std::size_t{kPiece});
  EXPECT_FALSE(run.take(kPiece, disk));
  EXPECT_EQ(run.rest().num_parts, 1);
  EXPECT_TRUE(run.take(kPiece, disk));
  EXPECT_EQ(run.result(), 3 * kPiece);
}

TEST(StepRun, NothingAtAllIsAnError) {
  SimDisk disk;
  StepRun run(read_of(1, kPiece, 0));
  EXPECT_TRUE(run.take(0, disk));
  EXPECT_EQ(run.result(), -EIO);
}

TEST(StepRun, InterruptionsAreBounded) {
  SimDisk disk;
  for (const std::int64_t answer : {std::int64_t{-EINTR}, std::int64_t{-EAGAIN}, std::int64_t{7}}) {
    StepRun run(read_of(1, kPiece, 0));
    int times = 1;
    while (!run.take(answer, disk)) ++times;
    EXPECT_GT(times, 10);
    EXPECT_LT(times, 1000);
    EXPECT_LT(run.result(), 0);
  }
}

TEST(StepRun, GivesUpDirectIoOnce) {
  SimDisk disk;
  ASSERT_EQ(disk.make_directory("/d"), 0);
  const int file = disk.open(disk.open_directory("/d"), "f", O_RDWR | O_CREAT | O_DIRECT);
  StepRun run(read_of(file, kPiece, 0));
  EXPECT_FALSE(run.take(-EINVAL, disk));
  EXPECT_TRUE(run.fell_back());
  EXPECT_TRUE(run.take(-EINVAL, disk));
  EXPECT_EQ(run.result(), -EINVAL);
}

}  // namespace
}  // namespace kvfolio::disk
