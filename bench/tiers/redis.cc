// SPDX-License-Identifier: Apache-2.0
//
// Records to and from a Redis server on loopback, which is started here. The other side is a loop
// of hiredis, one command at a time, over the same keys. Wall time, since the server works beside.

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "bench_tiers.h"
#include "families.h"
#include "kvfolio/redis_tier.h"

namespace kvfolio::bench {
namespace {

using Clock = std::chrono::steady_clock;

std::uint64_t now_us() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
          .count());
}

// Where scripts/redis-here puts it, if it is not on the path.
std::string find_program() {
  std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  path += ":build/redis/bin";
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    std::string file = path.substr(begin, end - begin) + "/redis-server";
    if (access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return {};
}

// A server of our own, on a socket of loopback; ended with the object.
class Server {
 public:
  explicit Server(const std::string& program)
      : folder_(std::filesystem::temp_directory_path() /
                ("kvfolio-bench-" + std::to_string(getpid()))),
        port_(20000 + static_cast<int>(getpid()) % 10000) {
    std::filesystem::create_directories(folder_);
    const std::string port = std::to_string(port_);
    const std::string folder = folder_.string();
    pid_ = fork();
    if (pid_ == 0) {
      execl(program.c_str(), program.c_str(), "--port", port.c_str(), "--bind", "127.0.0.1",
            "--save", "", "--appendonly", "no", "--dir", folder.c_str(), "--logfile", "log",
            "--loglevel", "warning", static_cast<char*>(nullptr));
      _exit(127);
    }
    // A call that comes too early is refused, and made again.
    for (int tries = 0; tries < 200 && !answers(); ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    require(answers(), "redis-server answers on a port of loopback");
  }
  ~Server() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void signal(int number) const { kill(pid_, number); }

 private:
  [[nodiscard]] bool answers() const {
    redisContext* context = redisConnect("127.0.0.1", port_);
    const bool fine = context != nullptr && context->err == 0;
    redisFree(context);
    return fine;
  }
  std::filesystem::path folder_;
  int port_;
  pid_t pid_ = -1;
};

// The records of a measurement, and both ways to bring them to the server and back.
class Records {
 public:
  Records(Server& server, std::int64_t bytes, std::int64_t total)
      : bytes_(bytes),
        count_(total / bytes),
        data_(total),
        tier_(take(RedisTier::create({.servers = address_ = server.address()}), "redis")),
        context_(redisConnect("127.0.0.1", server.port()), redisFree) {
    require(tier_->wait_until_ready(now_us(), 2'000'000), "redis");
    require(context_ != nullptr && context_->err == 0, "hiredis connects");
  }

  // Seconds; all records, under keys that begin with `name`.
  double ours(TierOp op, unsigned name, bool may_fail = false) {
    failed_ = 0;
    const auto start = Clock::now();
    std::int64_t sent = 0;
    std::int64_t done = 0;
    while (done < count_) {
      for (; sent < count_ && sent < done + 256; ++sent) {
        const TierItem item{.key = key(name, sent), .data = at(sent), .bytes = bytes_, .tag = 1};
        if (tier_->submit(op, std::span(&item, 1), {now_us() + 60'000'000}) == 0) break;
      }
      done += poll_once();
      pollfd descriptor{.fd = tier_->event_fd(), .events = POLLIN, .revents = 0};
      if (done < count_) ::poll(&descriptor, 1, 100);
    }
    require(may_fail || failed_ == 0, "a record that is there");
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  double bare(bool set, unsigned name) {
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::string text = "bench:" + std::to_string(name) + ":" + std::to_string(i);
      void* reply =
          set ? redisCommand(context_.get(), "SET %s %b", text.c_str(), at(i), std::size_t(bytes_))
              : redisCommand(context_.get(), "GET %s", text.c_str());
      const auto* seen = static_cast<redisReply*>(reply);
      require(seen != nullptr && seen->type != REDIS_REPLY_ERROR, "hiredis asks and is answered");
      if (!set) {
        require(seen->len == static_cast<std::size_t>(bytes_), "hiredis gets what it set");
        std::memcpy(at(i), seen->str, seen->len);
      }
      freeReplyObject(reply);
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  void fill(int value) { std::memset(data_.data(), value, data_.size()); }
  [[nodiscard]] bool is_all(int value) const {
    return std::all_of(data_.data(), data_.data() + data_.size(),
                       [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
  }
  [[nodiscard]] double gigabytes() const {
    return static_cast<double>(bytes_) * static_cast<double>(count_) / 1e9;
  }
  [[nodiscard]] std::vector<double>& calls() { return calls_; }
  [[nodiscard]] std::int64_t failed() const { return failed_; }
  [[nodiscard]] RedisTier& tier() { return *tier_; }
  void forget() { freeReplyObject(redisCommand(context_.get(), "FLUSHALL")); }

 private:
  std::int64_t poll_once() {
    std::array<TierDone, 64> done;
    std::size_t n = 0;
    calls_.push_back(nanoseconds_of([&] { n = tier_->poll(now_us(), done); }) / 1000);
    for (std::size_t i = 0; i < n; ++i) {
      failed_ += done[i].result == TierResult::kOk ? 0 : 1;
    }
    return static_cast<std::int64_t>(n);
  }
  [[nodiscard]] static TierKey key(unsigned name, std::int64_t i) {
    TierKey key;
    std::memcpy(key.bytes.data() + 24, &name, sizeof name);
    std::memcpy(key.bytes.data() + 32, &i, sizeof i);
    return key;
  }
  [[nodiscard]] std::byte* at(std::int64_t i) const { return data_.data() + i * bytes_; }

  std::int64_t bytes_, count_;
  Buffer data_;
  std::string address_;
  std::unique_ptr<RedisTier> tier_;
  std::unique_ptr<redisContext, decltype(&redisFree)> context_;
  std::int64_t failed_ = 0;
  std::vector<double> calls_;  // microseconds of processor time, of each poll()
};

void measure_pair(Session& session, Records& records, const std::string& size) {
  const auto row = [&](const std::string& name, auto ours, auto bare) {
    Figure figure{.name = name};
    figure.unit = "GB/s";
    figure.lower_is_better = false;
    figure.promise = Promise{0.9, 1.5};
    figure.promise_is_ratio = true;
    figure.note = "one node on loopback, wall time; the other side: a loop of hiredis";
    session.measure(figure, ours, bare);
  };
  unsigned name = 1;
  records.fill(3);
  const auto fresh = [&] {
    records.forget();
    return ++name;
  };
  row(
      "tiers.redis.set." + size,
      [&] { return records.gigabytes() / records.ours(TierOp::kStore, fresh()); },
      [&] { return records.gigabytes() / records.bare(true, fresh()); });
  records.forget();
  records.ours(TierOp::kStore, 1);
  records.bare(true, 1);
  records.fill(0);
  records.ours(TierOp::kLoad, 1);
  require(records.is_all(3), "what was stored comes back");
  row(
      "tiers.redis.get." + size,
      [&] { return records.gigabytes() / records.ours(TierOp::kLoad, 1); },
      [&] { return records.gigabytes() / records.bare(false, 1); });
}

void report_calls(Session& session, std::vector<double> calls) {
  Figure figure{.name = "tiers.redis.call"};
  figure.unit = "us";
  figure.promise = Promise{1000, 500};
  figure.note = "processor time of poll(), 99.9 of 100, of all loads and stores above";
  session.report(figure, {.ours = {percentile(std::move(calls), 0.999)}, .other = {}});
}

// A frozen server goes on: how long until a pass over all records takes what it took before.
void measure_recovery(Session& session, Server& server, Records& records) {
  records.forget();
  records.ours(TierOp::kStore, 1);
  const double before = records.ours(TierOp::kLoad, 1);
  Figure figure{.name = "tiers.redis.recovery"};
  figure.unit = "s";
  figure.promise = Promise{10, 6};
  figure.note = "from SIGCONT after 3 s of SIGSTOP to loads at no less than half the speed";
  session.measure(figure, [&] {
    server.signal(SIGSTOP);
    const auto frozen_until = Clock::now() + std::chrono::seconds(3);
    std::array<TierDone, 8> done;
    std::vector<std::byte> memory(1000);
    while (Clock::now() < frozen_until) {
      const TierItem item{.data = memory.data(), .bytes = 1000, .tag = 1};
      records.tier().submit(TierOp::kLoad, std::span(&item, 1), {now_us() + 20'000});
      records.tier().poll(now_us(), done);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    server.signal(SIGCONT);
    const auto start = Clock::now();
    require(records.tier().wait_until_ready(now_us(), 20'000'000), "the server is back");
    while (records.tier().poll(now_us(), done) > 0) {
    }
    // A pass that ends soon because its records are refused is none.
    while (records.ours(TierOp::kLoad, 1, true) > 2 * before || records.failed() > 0) {
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  });
}

}  // namespace

void measure_redis(Session& session) {
  const std::vector<std::string> names = tiers_row_names();
  const bool wanted = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with("tiers.redis") && session.wants(name);
  });
  if (!wanted) return;
  const std::string program = find_program();
  if (program.empty()) {
    session.leave_out("tiers.redis", "no redis-server here; scripts/redis-here unpacks one");
    return;
  }
  Server server(program);
  const std::int64_t total = std::int64_t{session.size(256, 64)} << 20;
  std::vector<double> calls;
  for (const auto& [size, bytes] :
       {std::pair<std::string, std::int64_t>{"256k", 256 << 10}, {"1m", 1 << 20}}) {
    Records records(server, bytes, total);
    measure_pair(session, records, size);
    calls.insert(calls.end(), records.calls().begin(), records.calls().end());
  }
  report_calls(session, std::move(calls));
  if (session.wants("tiers.redis.recovery")) {
    Records records(server, 256 << 10, total);
    measure_recovery(session, server, records);
  }
}

}  // namespace kvfolio::bench
