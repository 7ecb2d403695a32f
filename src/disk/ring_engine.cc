// SPDX-License-Identifier: Apache-2.0
//
// One thread owns the ring. Its loop: take the jobs that came in, give the ring as many transfers
// as it may have, sleep in the kernel until something completes. Then the ring gets new transfers
// first, and only then is what completed checked: a medium that answers many requests at once would
// stand still meanwhile. The owner wakes the thread through an eventfd, which the ring itself
// reads, so there is one place to sleep.

#include "disk/engine.h"

#ifdef KVFOLIO_HAS_URING

#include <liburing.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <vector>

#include "base/text.h"

namespace kvfolio::disk {
namespace {

// One step of a job, run by the helper. The helper sees it as a job of one step.
class Errand final : public IoJob {
 public:
  explicit Errand(IoJob* job) noexcept : job_(job) {}
  IoStep next(std::int64_t result) noexcept override {
    result_ = result;
    const IoStep step = started_ ? IoStep{} : job_->run.rest();
    started_ = true;
    return step;
  }
  [[nodiscard]] IoJob* job() const noexcept { return job_; }
  [[nodiscard]] std::int64_t result() const noexcept { return result_; }

 private:
  IoJob* job_;
  std::int64_t result_ = 0;
  bool started_ = false;
};

class RingEngine final : public IoEngine {
 public:
  RingEngine(DiskCalls& calls, int depth, int event_fd, RingFaults* faults) noexcept
      : calls_(calls), depth_(depth), event_fd_(event_fd), faults_(faults) {}
  ~RingEngine() override {
    if (started_) {
      {
        const std::lock_guard lock(mutex_);
        closing_ = true;
      }
      wake();
      pthread_join(thread_, nullptr);
    }
    helper_.reset();
    if (has_ring_) io_uring_queue_exit(&ring_);
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }

  Status start() {
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_fd_ < 0) return unsupported("eventfd", -errno);
    // As many as begin at once, and as many again that go on with their next step; and the wake-up.
    const int made = io_uring_queue_init(2 * static_cast<unsigned>(depth_) + 2, &ring_, 0);
    if (made < 0) return unsupported("io_uring_setup", made);
    has_ring_ = true;
    Result<std::unique_ptr<IoEngine>> helper = create_thread_engine(calls_, 1, wake_fd_);
    if (!helper) return std::move(helper).error();
    helper_ = *std::move(helper);
    const int error = pthread_create(&thread_, nullptr, &RingEngine::main, this);
    if (error != 0) return unsupported("its thread", -error);
    started_ = true;
    return {};
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }
  [[nodiscard]] int depth() const noexcept override { return depth_; }
  void submit(IoJob* job) noexcept override {
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      first = inbox_.empty();
      inbox_.push_back(job);
    }
    if (first) wake();  // else a wake-up for the others is on its way
  }
  std::size_t reap(std::span<IoJob*> done) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::size_t n = std::min(done.size(), done_.size());
    std::copy_n(done_.begin(), n, done.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(n));
    return n;
  }

 private:
  struct Completion {
    IoJob* job;
    std::int64_t answer;
  };

  static Status unsupported(const char* what, int result) {
    return Status(ErrorCode::kUnsupported,
                  text::concat("io_uring: ", what, ": ", error_text(result)));
  }
  static void* main(void* engine) noexcept {
    static_cast<RingEngine*>(engine)->work();
    return nullptr;
  }
  void wake() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(wake_fd_, &one, sizeof one));
  }

  void work() noexcept {
    await_wake();
    while (take_inbox()) {
      start_fresh();
      const int result = io_uring_submit_and_wait(&ring_, 1);
      KVFOLIO_CHECK(result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY);
      take_completions();
      start_fresh();
      for (const Completion& completion : completions_) {
        IoJob* const job = completion.job;
        go_on(job, continue_job(*job, completion.answer, calls_));
        start_fresh();
      }
      completions_.clear();
      take_errands();
    }
  }
  // False: the engine closes. All jobs are done by then.
  bool take_inbox() noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return false;
      std::swap(inbox_, taken_);
    }
    fresh_.insert(fresh_.end(), taken_.begin(), taken_.end());
    taken_.clear();
    return true;
  }
  // A store computes its checksum here, so the ring is told of each few.
  void start_fresh() noexcept {
    constexpr int kToldAtOnce = 4;
    int untold = 0;
    while (!fresh_.empty() && in_flight_ < depth_) {
      IoJob* const job = fresh_.front();
      fresh_.pop_front();
      go_on(job, begin_step(*job, 0));
      if (++untold % kToldAtOnce == 0) io_uring_submit(&ring_);
    }
    if (untold % kToldAtOnce != 0) io_uring_submit(&ring_);
  }
  void take_completions() noexcept {
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      auto* job = static_cast<IoJob*>(io_uring_cqe_get_data(cqe));
      std::int64_t answer = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (job == nullptr) {
        // A kernel that refuses to wait for us is asked again, and not all the time.
        if (answer < 0 && answer != -EINTR && answer != -EAGAIN) ::usleep(1000);
        await_wake();
        continue;
      }
      --in_flight_;
      if (faults_ != nullptr) answer = faults_->answer(job->run.rest(), answer);
      completions_.push_back({job, answer});
    }
  }
  void take_errands() noexcept {
    IoJob* done = nullptr;
    while (helper_->reap(std::span(&done, 1)) == 1) {
      auto* errand = static_cast<Errand*>(done);
      IoJob* job = errand->job();
      const std::int64_t result = errand->result();
      errands_.erase(std::find_if(errands_.begin(), errands_.end(),
                                  [&](const auto& one) { return one.get() == errand; }));
      go_on(job, continue_job(*job, result, calls_));
    }
  }

  void go_on(IoJob* job, bool more) noexcept {
    if (!more) {
      finish(job);
    } else if (job->run.rest().is_transfer() || job->run.rest().kind == IoStep::Kind::kSync) {
      queue(job);
    } else {
      errands_.push_back(std::make_unique<Errand>(job));
      helper_->submit(errands_.back().get());
    }
  }
  void queue(IoJob* job) noexcept {
    io_uring_sqe* sqe = next_entry();
    const IoStep& step = job->run.rest();
    const auto parts = static_cast<unsigned>(step.num_parts);
    const auto offset = static_cast<std::uint64_t>(step.offset);
    if (step.kind == IoStep::Kind::kSync) {
      io_uring_prep_fsync(sqe, step.file, IORING_FSYNC_DATASYNC);
    } else if (const std::int64_t less = bytes_asked(step); less > 0) {
      // A test asks for the beginning only.
      const auto bytes = static_cast<unsigned>(less);
      step.kind == IoStep::Kind::kRead
          ? io_uring_prep_read(sqe, step.file, step.parts[0].iov_base, bytes, offset)
          : io_uring_prep_write(sqe, step.file, step.parts[0].iov_base, bytes, offset);
    } else if (step.kind == IoStep::Kind::kRead) {
      io_uring_prep_readv(sqe, step.file, step.parts.data(), parts, offset);
    } else {
      io_uring_prep_writev(sqe, step.file, step.parts.data(), parts, offset);
    }
    io_uring_sqe_set_data(sqe, job);
    ++in_flight_;
  }
  [[nodiscard]] std::int64_t bytes_asked(const IoStep& step) const noexcept {
    if (faults_ == nullptr) return 0;
    const auto first = static_cast<std::int64_t>(step.parts[0].iov_len);
    const std::int64_t asked = faults_->bytes_asked(step, first);
    return asked < first ? asked : 0;
  }
  io_uring_sqe* next_entry() noexcept {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    while (sqe == nullptr) {  // more jobs than depth() were submitted
      io_uring_submit(&ring_);
      sqe = io_uring_get_sqe(&ring_);
    }
    return sqe;
  }
  void await_wake() noexcept {
    io_uring_sqe* sqe = next_entry();
    // Not prep_read, which kernels before 5.6 do not know.
    wake_part_ = {.iov_base = &wakes_, .iov_len = sizeof wakes_};
    io_uring_prep_readv(sqe, wake_fd_, &wake_part_, 1, 0);
    io_uring_sqe_set_data(sqe, nullptr);
  }
  void finish(IoJob* job) noexcept {
    {
      const std::lock_guard lock(mutex_);
      done_.push_back(job);
    }
    const std::uint64_t one = 1;
    static_cast<void>(!::write(event_fd_, &one, sizeof one));
  }

  DiskCalls& calls_;
  const int depth_;
  const int event_fd_;
  RingFaults* const faults_;
  int wake_fd_ = -1;
  io_uring ring_{};
  bool has_ring_ = false, started_ = false;
  pthread_t thread_{};
  std::unique_ptr<IoEngine> helper_;
  // of the thread
  std::uint64_t wakes_ = 0;
  iovec wake_part_{};
  std::vector<std::unique_ptr<Errand>> errands_;
  std::vector<IoJob*> taken_;
  std::deque<IoJob*> fresh_;  // not begun
  std::vector<Completion> completions_;
  int in_flight_ = 0;  // transfers that the ring has
  std::mutex mutex_;
  std::vector<IoJob*> inbox_;  // under mutex_, as what follows
  std::deque<IoJob*> done_;
  bool closing_ = false;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> create_ring_engine(DiskCalls& calls, int depth, int event_fd,
                                                     RingFaults* faults) {
  auto engine = std::make_unique<RingEngine>(calls, depth, event_fd, faults);
  KVFOLIO_RETURN_IF_ERROR(engine->start());
  return std::unique_ptr<IoEngine>(std::move(engine));
}

}  // namespace kvfolio::disk

#else

namespace kvfolio::disk {

Result<std::unique_ptr<IoEngine>> create_ring_engine(DiskCalls& /*calls*/, int /*depth*/,
                                                     int /*event_fd*/, RingFaults* /*faults*/) {
  return Status(ErrorCode::kUnsupported, "io_uring: this build has no liburing");
}

}  // namespace kvfolio::disk

#endif
