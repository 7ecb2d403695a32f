// SPDX-License-Identifier: Apache-2.0
#include "kvfolio/redis_tier.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "base/text.h"
#include "redis/redis_tier_impl.h"

namespace kvfolio {

namespace {

constexpr std::size_t kSeedsMax = 64;

Status bad(std::string sentence) { return {ErrorCode::kInvalidArgument, std::move(sentence)}; }

Status check_numbers(const RedisOptions& options) {
  // A value of Redis has so many, with the header of the record.
  constexpr std::int64_t kMost = (std::int64_t{512} << 20) - kRecordHeaderBytes;
  if (options.record_bytes_max < 1 || options.record_bytes_max > kMost) {
    return bad(
        text::concat("record_bytes_max: ", options.record_bytes_max, " is not in 1 to ", kMost));
  }
  if (options.items_max < 1 || options.items_max > 1 << 20) {
    return bad(text::concat("items_max: ", options.items_max, " is not in 1 to 1048576"));
  }
  if (options.bytes_in_flight_max < 1 || options.bytes_per_poll < 1) {
    return bad(text::concat("bytes_in_flight_max: ", options.bytes_in_flight_max,
                            ", bytes_per_poll: ", options.bytes_per_poll, "; both are above 0"));
  }
  constexpr std::uint64_t kHourUs = 3'600'000'000;
  for (const std::uint64_t us : {options.connect_timeout_us, options.stall_timeout_us,
                                 options.breaker_us_min, options.breaker_us_max}) {
    if (us < 1 || us > kHourUs) {
      return bad(text::concat("a timeout of ", us, " us is not in 1 us to an hour"));
    }
  }
  if (options.breaker_us_max < options.breaker_us_min) {
    return bad(text::concat("breaker_us_max: ", options.breaker_us_max,
                            " is below breaker_us_min, ", options.breaker_us_min));
  }
  return {};
}

Status check_texts(const RedisOptions& options) {
  if (options.key_prefix.size() > 64 ||
      options.key_prefix.find_first_of("{}") != std::string_view::npos) {
    return bad(text::concat("key_prefix: '", options.key_prefix,
                            "' is longer than 64 characters or has a brace, which would put all "
                            "records on one node"));
  }
  const RedisTls& tls = options.tls;
  if (!tls.enabled && !(tls.ca_file.empty() && tls.cert_file.empty() && tls.key_file.empty())) {
    return bad("tls: certificates, and not enabled: the password would go in clear");
  }
  if (!options.user.empty() && options.password.empty()) {
    return bad(text::concat("user: ", options.user, " without a password"));
  }
  return {};
}

Result<std::vector<redis::Seed>> find_seeds(std::string_view servers) {
  std::vector<redis::Seed> seeds;
  while (!servers.empty()) {
    const std::string_view one = servers.substr(0, servers.find(','));
    servers.remove_prefix(std::min(one.size() + 1, servers.size()));
    redis::Seed seed;
    // What stands in front may be a password, and messages go to logs.
    if (const std::size_t at = one.rfind('@'); at != std::string_view::npos) {
      return bad(text::concat("servers: '...", one.substr(at),
                              "' has a name or a password in front: give HOST:PORT here, and these "
                              "as user and password"));
    }
    if (!redis::split_address(one, seed.host, seed.port) || seed.host.empty()) {
      return bad(text::concat("servers: '", one, "' is not HOST:PORT"));
    }
    seed.addresses = redis::resolve(seed.host, seed.port, false);
    if (seed.addresses.empty()) {
      return bad(text::concat("servers: '", one, "' has no address"));
    }
    seeds.push_back(std::move(seed));
    if (seeds.size() > kSeedsMax) return bad("servers: more than 64");
  }
  if (seeds.empty()) return bad("servers: none; give HOST:PORT, or several with commas");
  return seeds;
}

// What servers say goes to terminals and logs.
std::string printable(std::string text) {
  for (char& c : text) c = c < ' ' || c > '~' ? '?' : c;
  return text;
}

// A server may repeat what it was told, or the beginning of it.
std::string_view without(std::string_view secret, std::string_view text) {
  if (secret.empty()) return text;
  text = text.substr(0, text.find(secret));
  return text.substr(0, text.find(", with args beginning with"));
}

std::uint64_t steady_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

// ---- the public calls ----

Result<std::unique_ptr<RedisTier>> RedisTier::create(const RedisOptions& options) {
  if (Status status = check_numbers(options); !status.ok()) return status;
  if (Status status = check_texts(options); !status.ok()) return status;
  Result<RecordKeys> keys = RecordKeys::create(options.keys);
  if (!keys) return keys.error();
  Result<std::vector<redis::Seed>> seeds = find_seeds(options.servers);
  if (!seeds) return seeds.error();
  Impl::Settings settings{.options = options,
                          .user = std::string(options.user),
                          .password = std::string(options.password),
                          .key_prefix = std::string(options.key_prefix),
                          .tls = nullptr,
                          .keys = *std::move(keys)};
  settings.options.keys = {};  // secrets of the caller's memory
  if (options.tls.enabled) {
    Result<std::unique_ptr<redis::TlsContext>> tls = redis::TlsContext::create(options.tls);
    if (!tls) return tls.error();
    settings.tls = std::move(*tls);
  }
  const int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (epoll_fd < 0 || wake_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &event) != 0) {
    if (epoll_fd >= 0) ::close(epoll_fd);
    if (wake_fd >= 0) ::close(wake_fd);
    return Status(ErrorCode::kOutOfMemory, "no more descriptors: epoll and eventfd need two");
  }
  return std::unique_ptr<RedisTier>(
      new RedisTier(std::make_unique<Impl>(std::move(settings), *seeds, epoll_fd, wake_fd)));
}

RedisTier::RedisTier(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
RedisTier::~RedisTier() = default;

Status RedisTier::wait_until_ready(std::uint64_t now_us, std::uint64_t timeout_us) {
  if (!impl_->is_ours()) {
    return {ErrorCode::kFailedPrecondition,
            "Redis: the tier belongs to the parent of this process"};
  }
  const std::uint64_t start = steady_us();
  for (;;) {
    const std::uint64_t waited = steady_us() - start;
    impl_->poll(now_us + waited, {});
    if (impl_->ready()) return {};
    if (waited >= timeout_us) return {ErrorCode::kTimedOut, why_not_ready(timeout_us)};
    epoll_event event{};
    // A deadline of a connection may pass without an event.
    static_cast<void>(epoll_wait(impl_->epoll_fd(), &event, 1, 5));
  }
}

// A line for each node, without an end.
std::string RedisTier::why_not_ready(std::uint64_t timeout_us) const {
  std::string lines;
  bool refuses = false;
  for (const RedisNode& node : impl_->nodes()) {
    refuses = refuses || node.refuses;
    lines +=
        text::concat("\n  ", node.address, ": ", node.error.empty() ? "no answer yet" : node.error);
  }
  if (refuses) return "Redis refuses the user, the password or a command:" + lines;
  return text::concat("Redis did not answer within ", timeout_us / 1000, " ms:", lines);
}

std::string_view RedisTier::name() const noexcept { return "redis"; }
TierLimits RedisTier::limits() const noexcept {
  return {
      .record_bytes_max = impl_->options().record_bytes_max, .data_alignment = 1, .verifies = true};
}
std::size_t RedisTier::submit(TierOp op, std::span<const TierItem> items,
                              Deadline deadline) noexcept {
  return impl_->submit(op, items, deadline.at_us);
}
std::size_t RedisTier::poll(std::uint64_t now_us, std::span<TierDone> done) noexcept {
  return impl_->poll(now_us, done);
}
int RedisTier::event_fd() const noexcept { return impl_->is_ours() ? impl_->epoll_fd() : -1; }
TierHealth RedisTier::health() const noexcept { return impl_->health(); }
Status RedisTier::close(Deadline deadline) noexcept {
  impl_->close(deadline.at_us);
  return {};
}
const RedisCounters& RedisTier::counters() const noexcept { return impl_->counters(); }
std::vector<RedisNode> RedisTier::nodes() const { return impl_->nodes(); }
std::string RedisTier::describe() const { return impl_->describe(); }
Status RedisTier::check_invariants() const { return impl_->check_invariants(); }

// ---- items ----

RedisTier::Impl::Impl(Settings settings, const std::vector<redis::Seed>& seeds, int epoll_fd,
                      int wake_fd)
    : settings_(std::move(settings)), epoll_fd_(epoll_fd), wake_fd_(wake_fd) {
  for (const redis::Seed& seed : seeds) nodes_.add_seed(seed.host, seed.port, seed.addresses);
}

// In a child of fork(), too, this closes descriptors and frees memory, and says nothing to anyone.
RedisTier::Impl::~Impl() {
  nodes_.clear();
  ::close(wake_fd_);
  ::close(epoll_fd_);
}

std::size_t RedisTier::Impl::submit(TierOp op, std::span<const TierItem> items,
                                    std::uint64_t deadline_us) {
  if (!usable() || !is_ours()) return 0;
  const std::size_t most = static_cast<std::size_t>(settings_.options.items_max);
  std::size_t n = 0;
  // What is done counts until it is handed over, so a caller that does not poll ends this.
  for (; n < items.size() && items_.num_accepted() < most; ++n) {
    const TierItem& item = items[n];
    const Id id = items_.add({.op = op,
                              .item = item,
                              .slot = redis::slot_of(key_of(item.key)),
                              .deadline_us = deadline_us});
    const bool has_data = op == TierOp::kLoad || op == TierOp::kStore;
    if (has_data && (item.bytes < 1 || item.bytes > settings_.options.record_bytes_max)) {
      finish(id, op == TierOp::kLoad ? TierResult::kMiss : TierResult::kIoError);
    } else {
      route(id);
    }
  }
  return n;
}

std::size_t RedisTier::Impl::poll(std::uint64_t now_us, std::span<TierDone> done) {
  now_us_ = std::max(now_us_, now_us);
  if (!closed_ && !is_ours()) leave_to_parent();
  if (closed_) return hand_over(done);
  budget_ = {.bytes = settings_.options.bytes_per_poll, .buffer = buffer_};
  listen();
  expire();
  tend();
  counters_.bytes_sent += budget_.sent;
  counters_.bytes_received += budget_.received;
  if (closing_ && (items_.empty() || now_us_ >= close_us_)) {
    end_connections();
  }
  return hand_over(done);
}

void RedisTier::Impl::end_connections() {
  end_all(TierResult::kClosed);
  KVFOLIO_CHECK(unrouted_.empty());
  nodes_.clear();
  closing_ = closed_ = true;
}

// Closing a descriptor here leaves the parent's connection as it is; a byte that is read or written
// would be missing there. epoll is shared, too, so nothing is taken out of it.
void RedisTier::Impl::leave_to_parent() { end_connections(); }

void RedisTier::Impl::close(std::uint64_t deadline_us) {
  closing_ = true;
  close_us_ = deadline_us;
}

void RedisTier::Impl::finish(Id id, TierResult result) {
  const Item& item = items_.at(id);
  // Its memory is not ours any more, so a reply on its way goes nowhere.
  if (item.lane != nullptr) item.lane->connection.abandon(item.question);
  if (result == TierResult::kOk && item.op == TierOp::kStore) ++health_.stores_ok;
  if (result == TierResult::kOk && item.op == TierOp::kLoad) ++health_.loads_ok;
  if (result != TierResult::kOk && result != TierResult::kMiss) ++health_.failures;
  items_.finish(id, result);
}

void RedisTier::Impl::expire() {
  for (int left = kEndsPerPoll; left > 0; --left) {
    const std::optional<Id> id = items_.overdue(now_us_);
    if (!id) return;
    finish(*id, TierResult::kTimeout);
  }
}

void RedisTier::Impl::end_all(TierResult result) {
  while (!items_.empty()) finish(items_.any(), result);
}

// Requires: the item is not in flight and waits in no queue.
void RedisTier::Impl::route(Id id) {
  Item& item = items_.at(id);
  KVFOLIO_CHECK(item.lane == nullptr && item.waits_in == nullptr);
  Node* node = item.ask != nullptr ? item.ask : nodes_.owner(item.slot);
  if (node == nullptr && !nodes_.has_map()) {
    items_.enqueue(unrouted_, id);
    return;
  }
  Lane* lane = node == nullptr
                   ? nullptr
                   : &node->lanes[item.op == TierOp::kStore ? redis::kStores : redis::kLoads];
  if (lane == nullptr || lane->is_open()) {
    nodes_.want_map();
    finish(id, TierResult::kUnavailable);
    return;
  }
  items_.enqueue(lane->queue, id);
}

void RedisTier::Impl::retry(Id id) {
  if (items_.at(id).sends >= kSendsMax) {
    finish(id, TierResult::kUnavailable);
    return;
  }
  ++counters_.retries;
  route(id);
}

void RedisTier::Impl::retry_later(Id id, std::uint64_t delay_us) {
  later_.emplace(now_us_ + delay_us, id);
}

std::size_t RedisTier::Impl::hand_over(std::span<TierDone> done) {
  const std::size_t n = items_.hand_over(done);
  wake();
  return n;
}

// Tells who waits for event_fd() whether to call again at once.
void RedisTier::Impl::wake() {
  if (!is_ours()) return;
  const bool wanted =
      items_.has_done() || std::any_of(nodes_.all().begin(), nodes_.all().end(), [](auto& node) {
        return node->lanes[0].connection.has_more() || node->lanes[1].connection.has_more();
      });
  if (wanted == awake_) return;
  std::uint64_t count = 1;
  const ssize_t n =
      wanted ? write(wake_fd_, &count, sizeof count) : read(wake_fd_, &count, sizeof count);
  if (n == static_cast<ssize_t>(sizeof count)) awake_ = wanted;
}

bool RedisTier::Impl::ready() const noexcept {
  return nodes_.has_map() && std::any_of(nodes_.all().begin(), nodes_.all().end(), [](auto& node) {
           return node->lanes[redis::kLoads].is_ready();
         });
}

TierHealth RedisTier::Impl::health() const noexcept {
  TierHealth health = health_;
  health.usable = usable();
  health.of_another_key = counters_.of_another_key;
  return health;
}

bool RedisTier::Impl::usable() const noexcept {
  return !closing_ && is_ours() &&
         std::any_of(nodes_.all().begin(), nodes_.all().end(),
                     [](auto& node) { return !node->lanes[redis::kLoads].is_open(); });
}

std::string RedisTier::Impl::key_of(const TierKey& key) const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = settings_.key_prefix;
  for (const std::byte byte : key.bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

std::vector<RedisNode> RedisTier::Impl::nodes() const {
  std::vector<RedisNode> nodes;
  for (const auto& node : nodes_.all()) {
    const Lane& loads = node->lanes[redis::kLoads];
    nodes.push_back({.address = text::concat(printable(node->host), ":", node->port),
                     .slots = nodes_.num_slots(*node),
                     .connected = loads.is_ready() && !loads.is_open(),
                     .left_alone = loads.is_open(),
                     .stores_alone = node->lanes[redis::kStores].is_open(),
                     .refuses = node->refuses,
                     .error = printable(std::string(without(settings_.password, node->trouble)))});
  }
  return nodes;
}

// An item waits in a queue, is in flight or was put off, and the node that it is for is there.
Status RedisTier::Impl::check_invariants() const {
  const auto broken = [](const char* rule) {
    return Status(ErrorCode::kAborted, text::concat("redis tier: ", rule));
  };
  std::vector<const Items::Queue*> queues = {&unrouted_};
  if (const char* rule = nodes_.broken_rule(pauses()); rule != nullptr) return broken(rule);
  std::set<const Node*> nodes = {nullptr};
  std::size_t in_flight = 0;
  for (const auto& node : nodes_.all()) {
    nodes.insert(node.get());
    for (const Lane& lane : node->lanes) {
      queues.push_back(&lane.queue);
      for (const redis::Question& question : lane.connection.questions()) {
        if (question.item == 0) continue;
        const auto item = items_.all().find(question.item);
        if (item == items_.all().end()) return broken("an item that has ended is in flight");
        if (item->second.lane != &lane) return broken("an item is in flight elsewhere");
        ++in_flight;
      }
    }
  }
  std::set<Id> put_off;
  for (const auto& [due_us, id] : later_) put_off.insert(id);
  for (const auto& [id, item] : items_.all()) {
    in_flight -= item.lane != nullptr ? 1 : 0;
    const bool is_idle = item.lane == nullptr && item.waits_in == nullptr;
    if (is_idle != put_off.contains(id)) return broken("an item waits for nothing, or twice");
    if (!nodes.contains(item.ask)) return broken("an item is for a node that is gone");
  }
  if (in_flight != 0) return broken("an item is in flight without its question");
  return items_.check(queues);
}

std::string RedisTier::Impl::describe() const {
  std::string lines;
  for (const RedisNode& node : nodes()) {
    lines += text::concat(node.address, ": ", node.slots, " slots, ",
                          node.left_alone  ? "left alone for now"
                          : node.connected ? "connected"
                                           : "not connected");
    if (node.stores_alone) lines += ", stores fail";
    if (!node.error.empty()) lines += "; last error: " + node.error;
    lines += '\n';
  }
  if (counters_.of_another_key > 0) {
    lines += text::concat(counters_.of_another_key, " loads met a record of another key\n");
  }
  return lines;
}

}  // namespace kvfolio
