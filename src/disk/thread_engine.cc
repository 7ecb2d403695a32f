// SPDX-License-Identifier: Apache-2.0
//
// The engine of a system without io_uring: threads that take jobs from one list and do their calls
// one after the other (engine.h). The owner gives jobs and collects those that have ended; event_fd
// says that there are some.

#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/masked_thread.h"
#include "base/text.h"
#include "disk/engine.h"
#include "tiers/process.h"

namespace kvfolio::disk {
namespace {

class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(DiskCalls& calls, int event_fd)
      : calls_(calls), event_fd_(event_fd), shared_(std::make_unique<Shared>()) {}
  ~ThreadEngine() override {
    // In a child the lock may be held, and the condition waited for, by threads that are not there:
    // destroying them would wait for these.
    if (!process_.is_this()) {
      static_cast<void>(shared_.release());
      return;
    }
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->closing = true;
    }
    shared_->wake.notify_all();
    for (const pthread_t thread : threads_) pthread_join(thread, nullptr);
  }

  Status start(int num_threads) {
    threads_.reserve(static_cast<std::size_t>(num_threads));
    for (int i = 0; i < num_threads; ++i) {
      pthread_t thread{};
      const int error = create_masked_thread(thread, &ThreadEngine::main, this);
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
      const std::lock_guard lock(shared_->mutex);
      shared_->waiting.push(job);
    }
    shared_->wake.notify_one();
  }
  std::size_t reap(std::span<IoJob*> done) noexcept override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->done.pop(done);
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    JobQueue waiting, done;  // under mutex, as closing
    bool closing = false;
  };

  static void* main(void* engine) noexcept {
    static_cast<ThreadEngine*>(engine)->work();
    return nullptr;
  }
  void work() noexcept {
    while (IoJob* job = wait_for_job()) {
      run_job(*job, calls_);
      {
        const std::lock_guard lock(shared_->mutex);
        shared_->done.push(job);
      }
      const std::uint64_t one = 1;
      static_cast<void>(!::write(event_fd_, &one, sizeof one));  // full: it is readable already
    }
  }
  IoJob* wait_for_job() noexcept {
    std::unique_lock lock(shared_->mutex);
    shared_->wake.wait(lock, [&] { return shared_->closing || !shared_->waiting.empty(); });
    return shared_->waiting.pop();
  }

  DiskCalls& calls_;
  const int event_fd_;
  const Process process_;
  std::vector<pthread_t> threads_;
  std::unique_ptr<Shared> shared_;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> create_thread_engine(DiskCalls& calls, int num_threads,
                                                       int event_fd) {
  auto engine = std::make_unique<ThreadEngine>(calls, event_fd);
  KVFOLIO_RETURN_IF_ERROR(engine->start(num_threads));
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace kvfolio::disk
