// SPDX-License-Identifier: Apache-2.0
#include "raw_disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#ifdef KVFOLIO_HAS_URING
#include <liburing.h>
#endif

namespace kvfolio::bench {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

}  // namespace

RawFile::RawFile(const std::string& folder, std::int64_t bytes) {
  const std::string path = folder + "/raw";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
  require(file_ >= 0, "a file with O_DIRECT in " + folder);
  ::unlink(path.c_str());
  require(::fallocate(file_, 0, 0, bytes) == 0, "room for a file in " + folder);
}
RawFile::~RawFile() { ::close(file_); }

double RawFile::by_threads(bool writes, std::byte* memory, std::int64_t piece,
                           std::span<const std::int32_t> order) const {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (std::size_t i = next++; i < order.size(); i = next++) {
      const std::int64_t at = order[i] * piece;
      const auto bytes = static_cast<std::size_t>(piece);
      const ssize_t n =
          writes ? ::pwrite(file_, memory + at, bytes, at) : ::pread(file_, memory + at, bytes, at);
      if (n != piece) failed = true;
    }
  };
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (int i = 0; i < kRawThreads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  const double ns = since(start);
  require(!failed, "a bare read or write");
  return ns;
}

#ifdef KVFOLIO_HAS_URING

bool has_raw_ring() {
  io_uring ring;
  if (io_uring_queue_init(1, &ring, 0) < 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

double RawFile::by_ring(bool writes, std::byte* memory, std::int64_t piece,
                        std::span<const std::int32_t> order) const {
  io_uring ring;
  require(io_uring_queue_init(kRawQueueDepth, &ring, 0) == 0, "a ring");
  const auto start = Clock::now();
  std::size_t begun = 0;
  bool right = true;
  for (std::size_t done = 0; done < order.size();) {
    for (; begun < order.size() && begun - done < kRawQueueDepth; ++begun) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring);
      if (sqe == nullptr) break;
      const std::int64_t at = order[begun] * piece;
      const auto bytes = static_cast<unsigned>(piece);
      const auto place = static_cast<std::uint64_t>(at);
      writes ? io_uring_prep_write(sqe, file_, memory + at, bytes, place)
             : io_uring_prep_read(sqe, file_, memory + at, bytes, place);
    }
    io_uring_submit_and_wait(&ring, 1);
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring, &cqe) == 0) {
      right &= cqe->res == piece;
      io_uring_cqe_seen(&ring, cqe);
      ++done;
    }
  }
  const double ns = since(start);
  io_uring_queue_exit(&ring);
  require(right, "a bare read or write of a ring");
  return ns;
}

#else

bool has_raw_ring() { return false; }
double RawFile::by_ring(bool /*writes*/, std::byte* /*memory*/, std::int64_t /*piece*/,
                        std::span<const std::int32_t> /*order*/) const {
  require(false, "io_uring");
  return 0;
}

#endif

}  // namespace kvfolio::bench
