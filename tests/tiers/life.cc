// SPDX-License-Identifier: Apache-2.0
#include "tiers/life.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>

#include "kvfolio/redis_tier.h"
#include "offload/slow_tier.h"
#include "tiers/watched_disk.h"

namespace kvfolio::test {
namespace {

// A request waits for its tiers (kTimeoutUs, and once more for those that it turns to), then for
// its turn to be copied: each of the ten that are open before it may take copy_timeout_us for that.
constexpr std::uint64_t kTimeoutUs = 50'000, kCopyTimeoutUs = 200'000, kOpenMax = 10;
constexpr std::uint64_t kPollUs = 1000;
constexpr int kPollsUntilReady =
    int((kOpenMax + 1) * (2 * kTimeoutUs + kCopyTimeoutUs) / kPollUs) + 100;
// A store that waits has six tries, before the last of which it waits 0.6 s; a tier that is passed
// over is tried every 30 s, and then all of its stores go.
constexpr std::uint64_t kDrainUs = 10'000;
constexpr int kPollsToDrain = int(6 * 31'000'000 / kDrainUs);
constexpr int kPollsToEnd = 20'000;  // of tiers that were closed: threads and processes that work
// One poll looks at Impl::kStepsPerPoll blocks, questions and answers, and ends what it is at: here
// a prompt of 90 tokens in 12 blocks at most, thrice.
constexpr std::uint64_t kStepsOfPoll = (1 << 15) + 3 * 12;

// What no test sees in its own process is seen by who started it.
class TellsFailure final : public testing::EmptyTestEventListener {
 public:
  explicit TellsFailure(Said& said) : said_(said) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) said_.failed = true;
    std::fflush(stdout);
  }

 private:
  Said& said_;
};

class Life : Traffic {
 public:
  Life(const LifePlan& plan, Said& said)
      : Traffic(plan.seed, plan.spec, said.kept[said.current].versions),
        plan_(plan),
        said_(said),
        faults_(plan.seed) {
    jumps_percent_ = 1;
    told_percent_ = 10;
    open_disk();
    disk_->look_at_all();
    open_others();
    create();
    if (chance(70)) set_faults();
    // What earlier lives have left is asked for first.
    for (int i = between(0, 6); i > 0; --i) open();
    wait_until_ready();
  }
  ~Life() { offload_.reset(); }  // before its tiers

  void step() {
    if (chance(2)) check_all();
    switch (random_() % 400) {
      case 0:
        forget_and_keep();
        break;
      case 2:
        if (plan_.forks) fork_process();
        break;
      case 3:
      case 4:
        set_slow_tier();
        break;
      case 5:
        set_faults();
        break;
      case 6:
      case 7:
        faults_.hangs = plan_.engine == DiskEngine::kThreads && !faults_.hangs;
        said_.counters.hangs += faults_.hangs ? 1 : 0;
        break;
      case 8:
      case 9:
      case 10:
      case 11:
        disk_->erase_any(random_());
        break;
      default:
        if (chance(3)) wait_until_ready();
        if (chance(5)) wait_for_tiers();
        any_operation();
    }
    tell();
  }

  // Whatever tiers do: what is pending becomes ready, all that tiers take is stored, and then
  // nothing is pinned, loading or held.
  void end() {
    end_step();
    check_all();
    wait_until_ready();
    close_all();
    said_.wants_peace = true;
    faults_.hangs = false;
    faults_.reads_fail = faults_.writes_fail = 0;
    slow_.wake();
    slow_.stores_are_busy = false;
    slow_.record_us = 0;
    int polls = 0;
    OffloadLeft left = offload_->drain(now_us_);
    for (; polls < kPollsToDrain && left.any(); ++polls) {
      wait_for_tiers();
      left = offload_->drain(now_us_ += kDrainUs);
    }
    EXPECT_FALSE(left.any()) << "stuck: " << left.blocks << " blocks, " << left.stores
                             << " stores, " << left.loads << " loads, " << left.questions
                             << " questions";
    for (Tier* tier : tiers_) static_cast<void>(tier->close({now_us_ + 1'000'000}));
    for (polls = 0; polls < kPollsToEnd && !offload_->idle(); ++polls) {
      wait_for_tiers();
      poll_at(now_us_ += kPollUs);
    }
    check_nothing_is_left();
    tell();
    offload_.reset();
    disk_->close_store();
    disk_.reset();
  }

 private:
  void open_disk() {
    scrubs_ = chance(30);
    const DiskTierOptions options{
        .directory = plan_.directory,
        .bytes = plan_.claims ? std::int64_t{1} << 30 : std::int64_t{600} << 10,
        .segment_bytes = std::int64_t{64} << 10,
        .engine = plan_.engine,
        .num_threads = between(1, 4),
        .queue_depth = 8,
        .scrub_bytes_per_s = scrubs_ ? 1 << 20 : 0,
        .items_max = chance(30) ? 16 : 4096,
        .open_files_max = chance(30) ? 8 : 0,
        .keys = {.key = plan_.key}};
    // The last life may hold its lock until the system has taken it down.
    Result<std::unique_ptr<disk::SegmentStore>> store =
        disk::open_store(faults_, options, &faults_);
    for (int i = 0; i < 1000 && !store && is_locked(store.error()); ++i) {
      ::usleep(10'000);
      store = disk::open_store(faults_, options, &faults_);
    }
    if (!store) {
      const bool is_unsupported = store.error().code() == ErrorCode::kUnsupported;
      const std::string message(store.error().message());
      message.copy(said_.refused.data(), said_.refused.size() - 1);
      ::_exit(is_unsupported ? kEngineUnsupported : kDirectoryRefused);
    }
    const Status status = (*store)->check_invariants();
    EXPECT_TRUE(status.ok()) << status;
    disk_ = std::make_unique<WatchedDisk>(*std::move(store), faults_, said_, plan_.claims);
  }
  static bool is_locked(const Status& status) {
    return status.message().find("another process") != std::string_view::npos;
  }
  void open_others() {
    slow_.record_us = random_() % 300;
    tiers_ = {disk_.get(), &slow_};
    auto redis = RedisTier::create(
        {.servers = plan_.server, .items_max = chance(30) ? 16 : 4096, .keys = {.key = plan_.key}});
    if (redis) {
      redis_ = *std::move(redis);
      tiers_.push_back(redis_.get());
    } else {  // the library was built without hiredis
      EXPECT_EQ(redis.error().code(), ErrorCode::kUnsupported) << redis.error();
    }
    std::shuffle(tiers_.begin(), tiers_.end(), random_);
  }
  void create() {
    const Kept& kept = said_.kept[said_.current];
    std::vector<OffloadTier> tiers;
    for (Tier* tier : tiers_) {
      OffloadTier& one = tiers.emplace_back();
      one.tier = tier;
      one.policy = chance(80) ? WritePolicy::kWriteThrough : WritePolicy::kSecondUse;
      if (chance(20)) one.store_bytes_max = 2000;
      if (chance(20)) one.load_bytes_max = 3000;
    }
    const OffloadOptions options{
        .model = toy_of(spec_),
        .arena_bytes = 4096 * between(12, 40),
        .tiers = tiers,
        .bytes_per_poll = std::array<std::int64_t, 3>{1, 5000, 1 << 20}[random_() % 3],
        .timeout_us = kTimeoutUs,
        .copy_timeout_us = kCopyTimeoutUs,
        .epoch = kept.epoch,
        .root_epochs = std::span(kept.roots).first(kept.num_roots)};
    auto made = Offload::create(manager_, options);
    ASSERT_TRUE(made) << made.error();
    offload_ = *std::move(made);
  }

  // ---- what goes wrong ----

  void set_faults() {
    // The scrubber answers no one: which record it could not read is not said.
    faults_.reads_fail = !scrubs_ && chance(30) ? 30 : 0;
    faults_.writes_fail = chance(15) ? 10 : 0;
    faults_.less = chance(50) ? 50 : 0;
  }
  void set_slow_tier() {
    slow_.stores_are_busy = chance(20);
    slow_.record_us = chance(50) ? random_() % 300 : 20'000;
    if (chance(50)) return slow_.wake();
    slow_.loads_hang = chance(50);
    slow_.stores_hang = chance(50);
    said_.counters.hangs += slow_.loads_hang || slow_.stores_hang ? 1 : 0;
  }
  // What a host does: what was forgotten is written down before anything else happens. The two are
  // told together, so that a life which is killed in between begins with the older of both.
  void forget_and_keep() {
    if (offload_->epochs().roots.size() + 1 >= Kept::kRootsMax) {
      offload_->reset();
      for (std::uint32_t& version : versions_.roots) ++version;
    } else {
      forget();
    }
    static_cast<void>(offload_->cancel(SequenceId{}));  // notices what the manager was told
    const NameEpochs epochs = offload_->epochs();
    const std::uint32_t next = 1 - said_.current;
    Kept& kept = said_.kept[next];
    kept.versions = versions_;
    kept.epoch = epochs.epoch;
    kept.num_roots = epochs.roots.size();
    std::copy(epochs.roots.begin(), epochs.roots.end(), kept.roots.begin());
    said_.current = next;
  }
  // The child ends its copy of everything, in the middle of whatever threads and sockets are at.
  void fork_process() {
    std::fflush(stdout);
    const ::pid_t parent = ::getpid();
    const ::pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::alarm(15);  // for what takes milliseconds
      for (auto more = random_() % 20; more > 0; --more) any_operation();
      check_all();
      offload_.reset();
      redis_.reset();
      disk_.reset();
      ::_exit(testing::Test::HasFailure() ? kLifeFailed : kLifeEnded);
    }
    ASSERT_GT(child, 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kLifeEnded)
        << "a child of fork() ended with " << status;
    ++said_.counters.forks;
  }

  // ---- the clock ----

  // Real threads and a real process get time to work; no answer depends on how long.
  void wait_for_tiers() {
    std::array<pollfd, 2> events{
        {{.fd = disk_->event_fd(), .events = POLLIN, .revents = 0},
         {.fd = redis_ ? redis_->event_fd() : -1, .events = POLLIN, .revents = 0}}};
    ::poll(events.data(), events.size(), 1);
  }
  void wait_until_ready() {
    end_step();
    int polls = 0;
    for (; polls < kPollsUntilReady && num_pending() > 0; ++polls) {
      wait_for_tiers();
      poll_at(now_us_ += kPollUs);
    }
    EXPECT_EQ(num_pending(), 0) << "stuck: not ready after " << polls << " polls";
    said_.counters.polls_max = std::max(said_.counters.polls_max, std::uint64_t(polls));
  }

  void tell() {
    const OffloadCounters& counters = offload_->counters();
    LifeCounters& told = said_.counters;
    told.requests = counters.requests;
    told.ready = ready_;
    told.timed_out = counters.requests_timed_out;
    told.forgets = forgotten_;
    told.blocks_loaded = counters.loads;
    told.io_errors = faults_.read_errors + faults_.write_errors;
    told.offload_steps_max = counters.steps_max;
    for (std::size_t t = 0; t < tiers_.size(); ++t) {
      const OffloadTierCounters& tier = offload_->tier_counters(t);
      if (tiers_[t] == redis_.get()) told.redis_loads = tier.loads;
      if (tiers_[t] == &slow_) told.slow_loads = tier.loads;
      EXPECT_EQ(tier.loads_corrupt, 0u) << "by " << tiers_[t]->name();
    }
    EXPECT_LE(counters.steps_max, kStepsOfPoll);
    // Host memory is not damaged here, and no tier makes answers up.
    EXPECT_EQ(counters.arena_corrupt, 0u);
    EXPECT_EQ(counters.unknown_completions, 0u);
  }

  const LifePlan& plan_;
  Said& said_;
  DiskFaults faults_;
  std::unique_ptr<WatchedDisk> disk_;
  std::unique_ptr<RedisTier> redis_;
  SlowTier slow_;
  bool scrubs_ = false;       // the disk
  std::vector<Tier*> tiers_;  // in the order of the Offload
};

}  // namespace

void live(const LifePlan& plan, Said& said) {
  testing::UnitTest::GetInstance()->listeners().Append(new TellsFailure(said));
  {
    Life life(plan, said);
    while (!said.failed && said.operations < plan.operations) {
      life.step();
      ++said.operations;
    }
    if (!said.failed) life.end();
    std::fflush(stdout);
    if (said.failed) ::_exit(kLifeFailed);
  }
  ::_exit(kLifeEnded);
}

}  // namespace kvfolio::test
