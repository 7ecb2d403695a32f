// SPDX-License-Identifier: Apache-2.0
//
// One thread owns the ring. Its loop: take the jobs that came in, give the ring as many transfers
// as it may have, sleep in the kernel until something completes. Then the ring gets new transfers
// first, and only then is what completed checked: a medium that answers many requests at once would
// stand still meanwhile. The owner wakes the thread through an eventfd, which the ring itself
// reads, so there is one place to sleep. Calls that a ring does badly go to a helper thread, a step
// at a time.
//
// A host may refuse the ring later, by seccomp, or close all descriptors of its process. Then the
// thread makes plain calls instead. What the kernel has already it goes on with, and its answers
// come through memory, so they are awaited; what it has not taken is made again.

#include "disk/engine.h"

#ifdef KVFOLIO_HAS_URING

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/masked_thread.h"
#include "base/text.h"
#include "tiers/process.h"

namespace kvfolio::disk {
namespace {

// Makes the calls of one step of each job, and wakes the thread of the ring.
class StepThread {
 public:
  StepThread(DiskCalls& calls, int wake_fd)
      : calls_(calls), wake_fd_(wake_fd), shared_(std::make_unique<Shared>()) {}
  ~StepThread() {
    if (!process_.is_this()) static_cast<void>(shared_.release());  // see ThreadEngine
    if (!started_ || !process_.is_this()) return;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->closing = true;
    }
    shared_->wake.notify_all();
    pthread_join(thread_, nullptr);
  }
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  // 0 or an error number.
  int start() noexcept {
    const int error = create_masked_thread(thread_, &StepThread::main, this);
    started_ = error == 0;
    return error;
  }
  void submit(IoJob* job) noexcept {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->waiting.push(job);
    }
    shared_->wake.notify_one();
  }
  // nullptr: none has ended.
  IoJob* reap() noexcept {
    const std::lock_guard lock(shared_->mutex);
    return shared_->done.pop();
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    JobQueue waiting, done;  // under mutex, as closing
    bool closing = false;
  };

  static void* main(void* helper) noexcept {
    static_cast<StepThread*>(helper)->work();
    return nullptr;
  }
  void work() noexcept {
    for (;;) {
      std::unique_lock lock(shared_->mutex);
      shared_->wake.wait(lock, [&] { return shared_->closing || !shared_->waiting.empty(); });
      IoJob* const job = shared_->waiting.pop();
      lock.unlock();
      if (job == nullptr) return;
      job->answer = call_once(job->run.rest(), calls_);
      lock.lock();
      shared_->done.push(job);
      lock.unlock();
      const std::uint64_t one = 1;
      static_cast<void>(!::write(wake_fd_, &one, sizeof one));
    }
  }

  DiskCalls& calls_;
  const int wake_fd_;
  const Process process_;
  bool started_ = false;
  pthread_t thread_{};
  std::unique_ptr<Shared> shared_;
};

class RingEngine final : public IoEngine {
 public:
  RingEngine(DiskCalls& calls, int depth, int event_fd, RingFaults* faults)
      : calls_(calls),
        depth_(depth),
        event_fd_(event_fd),
        faults_(faults),
        shared_(std::make_unique<Shared>()) {}
  ~RingEngine() override {
    const bool is_this = process_.is_this();
    if (started_ && is_this) {
      {
        const std::lock_guard lock(shared_->mutex);
        shared_->closing = true;
      }
      wake();
      pthread_join(thread_, nullptr);
    }
    helper_.reset();
    if (has_ring_)
      io_uring_queue_exit(&ring_);  // in a child: of its copy, and nothing is submitted
    if (wake_fd_ >= 0) ::close(wake_fd_);
    if (!is_this) static_cast<void>(shared_.release());  // a thread of the parent may hold the lock
  }

  Status start() {
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC);
    if (wake_fd_ < 0) return unsupported("eventfd", -errno);
    // As many as begin at once, and as many again that go on with their next step; and the wake-up.
    const unsigned entries = 2 * static_cast<unsigned>(depth_) + 2;
    const int made = io_uring_queue_init(entries, &ring_, 0);
    if (made < 0) return unsupported("io_uring_setup", made);
    has_ring_ = true;
    completions_.reserve(std::size_t{2} * ring_.cq.ring_entries);
    helper_ = std::make_unique<StepThread>(calls_, wake_fd_);
    int error = helper_->start();
    if (error == 0) error = create_masked_thread(thread_, &RingEngine::main, this);
    if (error != 0) {
      return Status(ErrorCode::kResourceExhausted,
                    text::concat("threads for the disk tier: ", error_text(-error)));
    }
    started_ = true;
    return {};
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "io_uring"; }
  [[nodiscard]] int depth() const noexcept override { return depth_; }
  [[nodiscard]] std::int64_t refused() const noexcept override { return refused_; }
  void submit(IoJob* job) noexcept override {
    bool first = false;
    {
      const std::lock_guard lock(shared_->mutex);
      first = shared_->inbox.empty();
      shared_->inbox.push(job);
    }
    if (first) wake();  // else a wake-up for the others is on its way
  }
  std::size_t reap(std::span<IoJob*> done) noexcept override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->done.pop(done);
  }

 private:
  struct Completion {
    IoJob* job;
    std::int64_t answer;
  };
  struct Shared {
    std::mutex mutex;
    JobQueue inbox, done;  // under mutex, as closing
    bool closing = false;
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
    while (take_inbox()) {
      if (!awaits_wake_) await_wake();
      start_fresh();
      // Not for ever: nothing wakes it where the host has closed wake_fd_.
      __kernel_timespec second{.tv_sec = 1, .tv_nsec = 0};
      io_uring_cqe* first = nullptr;
      const int result = io_uring_submit_and_wait_timeout(&ring_, &first, 1, &second, nullptr);
      if (!is_fine(result) && result != -ETIME) refused_ = result;
      if (refused_ < 0) return work_without_ring();
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
  static bool is_fine(int result) noexcept {
    return result >= 0 || result == -EINTR || result == -EAGAIN || result == -EBUSY;
  }
  // False: the engine closes. All jobs are done by then.
  bool take_inbox() noexcept {
    const std::lock_guard lock(shared_->mutex);
    while (IoJob* job = shared_->inbox.pop()) fresh_.push(job);
    return !shared_->closing;
  }
  // A store computes its checksum here, so the ring is told of each few.
  void start_fresh() noexcept {
    constexpr int kToldAtOnce = 4;
    int untold = 0;
    for (IoJob* job = unsent_.pop(); job != nullptr && refused_ == 0; job = unsent_.pop()) {
      if (!queue(job)) break;
      ++untold;
    }
    while (!fresh_.empty() && in_flight_ < depth_ && refused_ == 0) {
      IoJob* const job = fresh_.pop();
      go_on(job, begin_step(*job, 0));
      if (++untold % kToldAtOnce == 0) tell();
    }
    if (untold % kToldAtOnce != 0) tell();
  }
  void tell() noexcept {
    const int result = io_uring_submit(&ring_);
    if (!is_fine(result)) refused_ = result;
  }
  void take_completions() noexcept {
    io_uring_cqe* cqe = nullptr;
    // Not more than there is room for: the others are there the next time.
    while (completions_.size() < completions_.capacity() && io_uring_peek_cqe(&ring_, &cqe) == 0) {
      auto* job = static_cast<IoJob*>(io_uring_cqe_get_data(cqe));
      std::int64_t answer = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (job == nullptr) {
        awaits_wake_ = false;
        if (refused_ < 0) continue;
        // A kernel that refuses to wait for us is asked again, and not all the time.
        if (answer < 0 && answer != -EINTR && answer != -EAGAIN) ::usleep(1000);
        continue;
      }
      --in_flight_;
      KVFOLIO_DCHECK(in_flight_ >= 0);
      if (faults_ != nullptr) answer = faults_->answer(job->run.rest(), answer);
      completions_.push_back({job, answer});
    }
  }
  void take_errands() noexcept {
    while (IoJob* job = helper_->reap()) go_on(job, continue_job(*job, job->answer, calls_));
  }

  void go_on(IoJob* job, bool more) noexcept {
    if (!more) {
      finish(job);
    } else if (refused_ < 0) {
      unsent_.push(job);
    } else if (job->run.rest().is_transfer() || job->run.rest().kind == IoStep::Kind::kSync) {
      static_cast<void>(queue(job));
    } else {
      helper_->submit(job);
    }
  }

  // ---- without the ring ----

  void work_without_ring() noexcept {
    take_back();
    const int flags = ::fcntl(wake_fd_, F_GETFL);
    ::fcntl(wake_fd_, F_SETFL, flags | O_NONBLOCK);
    for (bool open = true; open;) {
      take_completions();
      for (const Completion& completion : completions_) {
        go_on(completion.job, continue_job(*completion.job, completion.answer, calls_));
      }
      completions_.clear();
      take_errands();
      while (IoJob* job = unsent_.pop()) run_plainly(job, true);
      while (IoJob* job = fresh_.pop()) run_plainly(job, begin_step(*job, 0));
      open = take_inbox();
      if (open && fresh_.empty()) sleep_without_ring();
    }
  }
  void run_plainly(IoJob* job, bool more) noexcept {
    while (more) more = continue_job(*job, call_once(job->run.rest(), calls_), calls_);
    finish(job);
  }
  // What the kernel has not taken from the ring.
  void take_back() noexcept {
    const unsigned mask = *ring_.sq.kring_mask;
    for (unsigned at = *ring_.sq.khead; at != ring_.sq.sqe_tail; ++at) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): io_uring_sqe_set_data() wrote it
      auto* job = reinterpret_cast<IoJob*>(ring_.sq.sqes[at & mask].user_data);
      if (job == nullptr) {
        awaits_wake_ = false;
        continue;
      }
      --in_flight_;
      KVFOLIO_DCHECK(in_flight_ >= 0);
      unsent_.push(job);
    }
  }
  // Also where every descriptor was closed: then it looks a hundred times a second.
  void sleep_without_ring() noexcept {
    constexpr int kLookMs = 10;
    const bool kernel_has_some = in_flight_ > 0 || awaits_wake_;
    pollfd event{.fd = wake_fd_, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&event, 1, kernel_has_some ? kLookMs : 1000);
    if (ready < 0 || (event.revents & (POLLNVAL | POLLERR)) != 0) ::usleep(kLookMs * 1000);
    std::uint64_t count = 0;
    static_cast<void>(!::read(wake_fd_, &count, sizeof count));
  }

  // ---- the ring ----

  // False: it has no room now, or is refused; the job waits in unsent_.
  [[nodiscard]] bool queue(IoJob* job) noexcept {
    io_uring_sqe* sqe = next_entry();
    if (sqe == nullptr) {
      unsent_.push(job);
      return false;
    }
    const IoStep& step = job->run.rest();
    KVFOLIO_DCHECK(step.is_transfer() ? step.num_parts > 0 : step.kind == IoStep::Kind::kSync);
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
    return true;
  }
  [[nodiscard]] std::int64_t bytes_asked(const IoStep& step) const noexcept {
    if (faults_ == nullptr) return 0;
    const auto first = static_cast<std::int64_t>(step.parts[0].iov_len);
    const std::int64_t asked = faults_->bytes_asked(step, first);
    return asked < first ? asked : 0;
  }
  io_uring_sqe* next_entry() noexcept {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (sqe != nullptr) return sqe;  // else more jobs than depth() were submitted
    tell();
    return io_uring_get_sqe(&ring_);
  }
  void await_wake() noexcept {
    io_uring_sqe* sqe = next_entry();
    if (sqe == nullptr) return;  // refused, or completions that come first wake it as well
    // Not prep_read, which kernels before 5.6 do not know.
    wake_part_ = {.iov_base = &wakes_, .iov_len = sizeof wakes_};
    io_uring_prep_readv(sqe, wake_fd_, &wake_part_, 1, 0);
    io_uring_sqe_set_data(sqe, nullptr);
    awaits_wake_ = true;
  }
  void finish(IoJob* job) noexcept {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->done.push(job);
    }
    const std::uint64_t one = 1;
    static_cast<void>(!::write(event_fd_, &one, sizeof one));
  }

  DiskCalls& calls_;
  const int depth_;
  const int event_fd_;
  RingFaults* const faults_;
  const Process process_;
  int wake_fd_ = -1;
  io_uring ring_{};
  bool has_ring_ = false, started_ = false;
  pthread_t thread_{};
  std::unique_ptr<StepThread> helper_;
  std::atomic<std::int64_t> refused_ = 0;  // -errno
  // of the thread
  std::uint64_t wakes_ = 0;
  iovec wake_part_{};
  bool awaits_wake_ = false;  // the ring has the read of wake_fd_
  JobQueue fresh_;            // not begun
  JobQueue unsent_;           // begun, and the ring had no room
  std::vector<Completion> completions_;
  int in_flight_ = 0;  // transfers that the ring has
  std::unique_ptr<Shared> shared_;
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
