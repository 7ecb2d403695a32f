// SPDX-License-Identifier: Apache-2.0
//
// Chaos over all tiers: a process serves traffic from a cache over a real disk tier, a Redis and a
// slow tier. It is killed at any moment (kill -9), again and again over the same directory; between
// two lives its files are damaged; the server lies, hangs, hangs up and forgets; I/O hangs, fails
// and does less than it was asked; it forks, and the child ends its copy; prompts, tenants and all
// are forgotten; records are erased; the clock jumps.
//
// What holds, always:
//  - 0 wrong bytes: each row of each hit is that of its tokens (tiers/traffic.h), and each record
//    that the disk brings is what was stored (chaos/watched_disk.h).
//  - 0 losses: what the disk said it has is there in each life that follows, unless docs/tiers.md
//    says that it may be lost: it was damaged (chaos/damage.h), or behind a write that was under
//    way at the kill or had failed. What was erased or forgotten does not come back.
//  - 0 stuck: requests are ready and stores are through after a bounded number of polls, whatever
//    tiers do; a life that is not killed ends with nothing pinned, loading, held or waiting.
//  - Bounded calls: no poll of the Offload and no call of the disk takes more steps than its bound
//    (chaos/life.cc, WatchedDisk::kStepsOfCall).
//
// KVFOLIO_SEED: the first one (default 1). KVFOLIO_SECONDS: it goes on that long; 0 (the default):
// kLivesAtLeast lives. Time decides nothing else. A failure names the seed of its era, which says
// what is done, though not when: threads, the disk and the kill have a time of their own.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <new>
#include <random>
#include <string>

#include "tiers/damage.h"
#include "tiers/life.h"
#include "tiers/now.h"
#include "tiers/scripted_server.h"

namespace kvfolio::test {
namespace {

constexpr std::uint64_t kLivesAtLeast = 20;
constexpr std::uint64_t kLivesToSeeAll = 100;
constexpr int kLivesOfEra = 12;  // over one directory
#ifdef __SANITIZE_THREAD__
constexpr bool kForks = false;  // it knows nothing of what threads of the parent were at
#else
constexpr bool kForks = true;
#endif

// A folder that is removed also if this process is killed: by a process of its own, which nothing
// that ends a tree of processes takes for ours.
class Folder {
 public:
  Folder() {
    std::string pattern = testing::TempDir() + "/kvfolio-chaos-XXXXXX";
    path_ = ::mkdtemp(pattern.data());
    if (::pipe2(pipe_, O_CLOEXEC) != 0) return;
    std::fflush(stdout);
    const ::pid_t between = ::fork();
    if (between == 0) {
      if (::fork() == 0) wait_and_remove();
      ::_exit(0);
    }
    ::close(pipe_[0]);
    ::waitpid(between, nullptr, 0);
  }
  ~Folder() {
    remove();
    ::close(pipe_[1]);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  // For who has no part in it: while one holds the pipe, the folder stays.
  void leave() const { ::close(pipe_[1]); }

 private:
  void remove() const {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[noreturn]] void wait_and_remove() {
    ::setsid();
    ::close(pipe_[1]);
    for (const int file : {0, 1, 2}) ::close(file);
    char byte = 0;
    while (::read(pipe_[0], &byte, 1) < 0) {
    }
    // Lives end when this process does, and may write until then.
    for (int i = 0; i < 100 && std::filesystem::exists(path_); ++i) {
      remove();
      ::usleep(20'000);
    }
    ::_exit(0);
  }

  std::string path_;
  int pipe_[2] = {-1, -1};
};

// A Redis as the world has them. It keeps what it has from life to life.
class Server {
 public:
  using Words = std::vector<std::string>;
  explicit Server(std::uint64_t seed)
      : random_(seed),
        server_([this](const Words& words) { return answer(words); },
                ScriptedServer::Runs::kByCaller) {}

  [[nodiscard]] std::string address() const { return server_.address(); }
  [[nodiscard]] std::uint64_t lies() const { return lies_; }
  // Works for a moment. `peace`: as a good server does.
  void step(bool peace) {
    if (peace) {
      mode_ = Mode::kGood;
    } else if (random_() % 100 == 0) {
      change();
    }
    if (mode_ == Mode::kHangs) {
      ::usleep(1000);
    } else {
      server_.step(1);
    }
  }
  void change() {
    const auto drawn = random_() % 10;
    mode_ = drawn < 4    ? Mode::kGood
            : drawn < 6  ? Mode::kLies
            : drawn == 6 ? Mode::kHangs
            : drawn == 7 ? Mode::kFull
            : drawn == 8 ? Mode::kLoading
                         : Mode::kGarbage;
    if (random_() % 4 == 0) server_.hang_up();
    if (random_() % 8 == 0) values_.clear();  // it was restarted
  }

 private:
  enum class Mode : std::uint8_t { kGood, kLies, kHangs, kFull, kLoading, kGarbage };

  std::string answer(const Words& words) {
    if (mode_ == Mode::kGarbage && random_() % 8 == 0) return garbage();
    if (words[0] == "PING") return "+PONG\r\n";
    if (words[0] == "CLUSTER") return "-ERR This instance has cluster support disabled\r\n";
    if (mode_ == Mode::kLoading) return "-LOADING Redis is loading the dataset in memory\r\n";
    if (words.size() < 2) return "+OK\r\n";
    const std::string& key = words[1];
    const bool is_there = values_.count(key) > 0;
    const bool lies = mode_ == Mode::kLies && random_() % 2 == 0;
    lies_ += lies ? 1 : 0;
    if (words[0] == "SET") {
      if (mode_ == Mode::kFull)
        return "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
      if (!lies) values_.try_emplace(key, words[2]);
      return is_there ? "$-1\r\n" : "+OK\r\n";
    }
    if (words[0] == "EXISTS") return is_there != lies ? ":1\r\n" : ":0\r\n";
    if (words[0] == "UNLINK") {
      if (!lies) values_.erase(key);
      return is_there ? ":1\r\n" : ":0\r\n";
    }
    if (words[0] != "GET") return "+OK\r\n";
    if (!is_there && !(lies && !values_.empty())) return "$-1\r\n";
    const std::string value =
        lies ? lie(is_there ? values_[key] : values_.begin()->second) : values_[key];
    return "$" + std::to_string(value.size()) + "\r\n" + value + "\r\n";
  }
  std::string lie(std::string value) {
    auto other = values_.begin();
    std::advance(other, std::ptrdiff_t(random_() % values_.size()));
    const std::size_t at = random_() % value.size();
    switch (random_() % 7) {
      case 0:
        return other->second;
      case 1:  // the header of the one, the data of another
        return value.substr(0, 192) + other->second.substr(192);
      case 2:
        value[at] = static_cast<char>(value[at] ^ (1 << random_() % 8));
        return value;
      case 3:
        return value.substr(0, at);
      case 4:
        return value + "x";
      case 5:
        return std::string(value.size(), '\0');
      default:  // its bytes, and others behind a place of them
        return value.substr(0, at) + other->second.substr(std::min(at, other->second.size()));
    }
  }
  std::string garbage() {
    static const char* const all[] = {"",
                                      ":7\r\n",
                                      "$-1\r\n",
                                      "*2\r\n:1\r\n:2\r\n",
                                      "-ERR no\r\n",
                                      "%x\r\n",
                                      "$3\r\nabc\r\n",
                                      "-MOVED 1 127.0.0.1:1\r\n"};
    return all[random_() % std::size(all)];
  }

  std::mt19937_64 random_;
  Mode mode_ = Mode::kGood;
  std::map<std::string, std::string> values_;
  std::uint64_t lies_ = 0;
  ScriptedServer server_;  // last: it calls the others
};

struct Totals {
  LifeCounters counters{};
  std::uint64_t lives = 0, kills = 0, operations = 0, damages = 0, excused = 0, lies = 0;

  void add(const LifeCounters& more) {
    LifeCounters& c = counters;
    std::uint64_t LifeCounters::*const sums[] = {
        &LifeCounters::requests,    &LifeCounters::ready,       &LifeCounters::timed_out,
        &LifeCounters::forgets,     &LifeCounters::forks,       &LifeCounters::blocks_loaded,
        &LifeCounters::disk_loads,  &LifeCounters::redis_loads, &LifeCounters::slow_loads,
        &LifeCounters::disk_stores, &LifeCounters::corrupt,     &LifeCounters::erases,
        &LifeCounters::io_errors,   &LifeCounters::hangs,       &LifeCounters::kept_found,
        &LifeCounters::erased_gone,
    };
    for (const auto sum : sums) c.*sum += more.*sum;
    std::uint64_t LifeCounters::*const mosts[] = {
        &LifeCounters::offload_steps_max, &LifeCounters::disk_steps_max, &LifeCounters::polls_max};
    for (const auto most : mosts) c.*most = std::max(c.*most, more.*most);
  }
};

// Lives over one directory.
class Era {
 public:
  Era(const Folder& folder, Said& said, Totals& totals, std::uint64_t seed, bool has_rings)
      : folder_(folder),
        said_(said),
        totals_(totals),
        random_(seed),
        has_rings_(has_rings),
        server_(random_()),
        damage_(folder.path() + "/tier", random_()) {
    new (&said_) Said;
    const CacheSpec specs[] = {full(24), window(40), mixed(14, 40)};
    plan_.spec = specs[random_() % 3];
    plan_.directory = folder.path() + "/tier";
    plan_.server = server_.address();
    plan_.claims = random_() % 4 != 0;
    plan_.forks = kForks;
    if (random_() % 3 == 0) plan_.key.assign(kRecordKeyBytes, std::byte(random_()));
  }
  ~Era() {
    std::error_code ignored;
    std::filesystem::remove_all(plan_.directory, ignored);
    totals_.lies += server_.lies();
    totals_.damages += damage_.done();
  }
  Era(const Era&) = delete;
  Era& operator=(const Era&) = delete;

  [[nodiscard]] bool has_rings() const { return has_rings_; }

  void live_once() {
    for (auto more = random_() % 4; more > 0; --more) damage_.do_some(said_);
    server_.change();
    plan_.seed = std::uint32_t(random_());
    plan_.engine = has_rings_ && random_() % 2 == 0 ? DiskEngine::kIoUring : DiskEngine::kThreads;
    // Two engines that differ in nothing but the type of their elements share the tiers.
    const DType dtype = random_() % 3 == 0 ? DType::kBF16 : DType::kF16;
    for (GroupSpec& group : plan_.spec.groups) group.dtype = dtype;
    plan_.operations = 200 + random_() % 1500;
    const bool is_killed = random_() % 5 != 0;
    const std::uint64_t kill_at = is_killed ? random_() % plan_.operations : ~std::uint64_t{0};
    damage_.tell("life " + std::to_string(++lives_) +
                 (plan_.engine == DiskEngine::kIoUring ? ", io_uring" : ", threads") +
                 (is_killed ? ", killed" : ""));
    int end = run(kill_at);
    if (end == kEngineUnsupported) {
      has_rings_ = false;
      return;
    }
    if (end == kDirectoryRefused && damage_.is_refused()) {
      damage_.mend_manifest();
      end = run(kill_at);
    }
    EXPECT_TRUE(end == kLifeEnded || (end == -SIGKILL && is_killed))
        << "a life ended with " << end << " " << said_.refused.data() << "; what was done before:\n"
        << damage_.story();
    EXPECT_FALSE(said_.failed) << "see above; what was done in between:\n" << damage_.story();
    excuse_what_may_be_lost();
    ++totals_.lives;
    totals_.kills += end == -SIGKILL ? 1 : 0;
    totals_.operations += said_.operations;
    totals_.add(said_.counters);
  }

 private:
  static constexpr std::uint64_t kStuckUs = 240'000'000;  // without an operation, on any machine

  // Its exit code, or the signal that ended it, negative.
  int run(std::uint64_t kill_at) {
    said_.operations = 0;
    said_.wants_peace = false;
    said_.counters = {};
    said_.refused = {};
    std::fflush(stdout);
    const ::pid_t parent = ::getpid();
    const ::pid_t life = ::fork();
    if (life == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      ::setpgid(0, 0);  // with its children
      folder_.leave();
      live(plan_, said_);
    }
    ::setpgid(life, life);
    int status = 0;
    std::uint64_t seen = 0, since_us = now_us();
    while (::waitpid(life, &status, WNOHANG) == 0) {
      server_.step(said_.wants_peace);
      if (said_.operations != seen) {
        seen = said_.operations;
        since_us = now_us();
      }
      const bool is_stuck = now_us() - since_us > kStuckUs;
      EXPECT_FALSE(is_stuck) << "stuck in operation " << seen;
      if (said_.operations >= kill_at || is_stuck) ::kill(-life, SIGKILL);
    }
    while (::waitpid(-1, nullptr, 0) > 0) {  // its children, which are ours now
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  // Records are read one behind the other in a segment that was not ended: what lies behind a write
  // that was under way, or failed, may be lost.
  void excuse_what_may_be_lost() {
    const std::uint32_t known = said_.num_records;
    std::uint64_t first = ~std::uint64_t{0};
    for (std::uint32_t i = 0; i < known; ++i) {
      const NamedRecord& record = said_.records[i];
      if (record.storing || record.failed) first = std::min(first, record.order.load());
    }
    for (std::uint32_t i = 0; i < known; ++i) {
      NamedRecord& record = said_.records[i];
      if (record.order <= first) continue;
      record.excused = true;
      totals_.excused += record.state == NamedRecord::State::kKept ? 1 : 0;
    }
  }

  const Folder& folder_;
  Said& said_;
  Totals& totals_;
  std::mt19937_64 random_;
  bool has_rings_;
  Server server_;
  Damage damage_;
  LifePlan plan_;
  int lives_ = 0;
};

TEST(TiersChaos, NoWrongByteNoLossAndNothingStuckWhateverHappens) {
  const std::uint64_t first_seed = from_environment("KVFOLIO_SEED", 1);
  const std::uint64_t until_us = now_us() + 1'000'000 * from_environment("KVFOLIO_SECONDS", 0);
  void* const memory =
      ::mmap(nullptr, sizeof(Said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Said& said = *new (memory) Said;
  Totals totals;
  std::uint64_t seed = first_seed;
  {
    const Folder folder;
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    bool has_rings = true;
    for (; totals.lives < kLivesAtLeast || now_us() < until_us; ++seed) {
      SCOPED_TRACE(testing::Message() << "KVFOLIO_SEED=" << seed);
      Era era(folder, said, totals, seed, has_rings);
      for (int i = 0; i < kLivesOfEra; ++i) {
        era.live_once();
        if (!HasFailure() && (now_us() < until_us || totals.lives < kLivesAtLeast)) continue;
        break;
      }
      if (HasFailure()) break;
      has_rings = era.has_rings();
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
  ::munmap(memory, sizeof(Said));
  const LifeCounters& c = totals.counters;
  const auto n = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "[chaos] seeds %llu to %llu: %llu lives, %llu killed, %llu operations, %llu requests, %llu "
      "ready, %llu late, %llu blocks loaded, of the disk %llu, of Redis %llu, of the slow tier "
      "%llu; %llu stored on disk, %llu found again, %llu erased and gone, %llu excused; %llu "
      "damages, %llu corrupt, %llu I/O errors, %llu hangs, %llu lies, %llu forks, %llu forgets, "
      "%llu erases; at most %llu and %llu steps, %llu polls\n",
      n(first_seed), n(seed), n(totals.lives), n(totals.kills), n(totals.operations), n(c.requests),
      n(c.ready), n(c.timed_out), n(c.blocks_loaded), n(c.disk_loads), n(c.redis_loads),
      n(c.slow_loads), n(c.disk_stores), n(c.kept_found), n(c.erased_gone), n(totals.excused),
      n(totals.damages), n(c.corrupt), n(c.io_errors), n(c.hangs), n(totals.lies), n(c.forks),
      n(c.forgets), n(c.erases), n(c.offload_steps_max), n(c.disk_steps_max), n(c.polls_max));
  if (totals.lives < kLivesToSeeAll || HasFailure()) return;
  for (const std::uint64_t seen : {c.disk_loads, c.kept_found, c.erased_gone, c.corrupt, c.erases,
                                   c.hangs, c.forgets, totals.kills, totals.damages}) {
    EXPECT_GT(seen, 0u) << "something was never tried, see above";
  }
  EXPECT_EQ(c.forks > 0, kForks);
}

// By whatever ends it: a limit of time, a user, the system.
TEST(TiersChaos, LeavesNoFileBehindWhenItIsKilled) {
  std::string pattern = testing::TempDir() + "/kvfolio-killed-chaos-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  std::fflush(stdout);
  const ::pid_t chaos = ::fork();
  if (chaos == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setenv("TEST_TMPDIR", folder.c_str(), 1);
    ::setenv("KVFOLIO_SECONDS", "1000", 1);
    static_cast<void>(!std::freopen("/dev/null", "w", stdout));
    static_cast<void>(!std::freopen("/dev/null", "w", stderr));
    ::execl("/proc/self/exe", "chaos_test", "--gtest_filter=TiersChaos.NoWrong*", nullptr);
    ::_exit(1);
  }
  const auto has_segments = [&] {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, ignored)) {
      if (entry.path().filename().string().rfind("segment-", 0) == 0) return true;
    }
    return false;
  };
  constexpr int kWaits = 6000;  // of 10 ms, for what takes one
  for (int i = 0; i < kWaits && !has_segments(); ++i) ::usleep(10'000);
  EXPECT_TRUE(has_segments());
  ::kill(chaos, SIGKILL);
  ::waitpid(chaos, nullptr, 0);
  for (int i = 0; i < kWaits && !std::filesystem::is_empty(folder); ++i) ::usleep(10'000);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace kvfolio::test
