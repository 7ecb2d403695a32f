// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "base/text.h"
#include "disk/engine.h"

namespace kvfolio::disk {
namespace {

class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(DiskCalls& calls, int event_fd) noexcept : calls_(calls), event_fd_(event_fd) {}
  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
  }

  Status start(int num_threads) {
    for (int i = 0; i < num_threads; ++i) {
      pthread_t thread{};
      const int error = pthread_create(&thread, nullptr, &ThreadEngine::main, this);
      if (error != 0) {
        return Status(ErrorCode::kResourceExhausted,
                      text::concat("thread ", i + 1, " of ", num_threads,
                                   " for the disk tier: ", error_text(-error)));
      }
      threads_.push_back(thread);
    }
    return {};
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "threads"; }
  [[nodiscard]] int depth() const noexcept override { return static_cast<int>(threads_.size()); }

  void submit(IoJob* job) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(job);
    }
    wake_.notify_one();
  }
  std::size_t reap(std::span<IoJob*> done) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::size_t n = std::min(done.size(), done_.size());
    std::copy_n(done_.begin(), n, done.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }

 private:
  static void* main(void* engine) noexcept {
    static_cast<ThreadEngine*>(engine)->work();
    return nullptr;
  }
  void work() noexcept {
    while (IoJob* job = wait_for_job()) {
      run_job(*job, calls_);
      {
        const std::lock_guard lock(mutex_);
        done_.push_back(job);
      }
      const std::uint64_t one = 1;
      static_cast<void>(!::write(event_fd_, &one, sizeof one));  // full: it is readable already
    }
  }
  IoJob* wait_for_job() noexcept {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty()) return nullptr;
    IoJob* job = waiting_.front();
    waiting_.pop_front();
    return job;
  }

  DiskCalls& calls_;
  const int event_fd_;
  std::vector<pthread_t> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<IoJob*> waiting_, done_;  // under mutex_, as closing_
  bool closing_ = false;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> create_thread_engine(DiskCalls& calls, int num_threads,
                                                       int event_fd) {
  auto engine = std::make_unique<ThreadEngine>(calls, event_fd);
  KVFOLIO_RETURN_IF_ERROR(engine->start(num_threads));
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace kvfolio::disk
