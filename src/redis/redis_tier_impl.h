// SPDX-License-Identifier: Apache-2.0
#pragma once

// The inside of RedisTier. redis_tier.cc takes items in and hands results out; lanes.cc keeps
// connections; replies.cc says what a reply means for an item. Which servers there are, and whose
// the slots are, is in nodes.h.
//
// The life of an item: it waits for the map, or in the queue of its node; it is in flight on a
// connection; a redirection or a lost connection brings it back to a queue, kSendsMax times at
// most. It ends from any of these by its deadline. Its memory is touched by our own calls only,
// inside poll(), so an item that has ended is not touched any more: what is still to be sent of it
// is copied when it ends. Thread safety: as RedisTier.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvfolio/record.h"
#include "kvfolio/redis_tier.h"
#include "redis/items.h"
#include "redis/nodes.h"
#include "tiers/process.h"

namespace kvfolio {

namespace redis {
struct Seed {
  std::string host;
  std::uint16_t port = 0;
  std::vector<Address> addresses;
};
}  // namespace redis

class RedisTier::Impl {
 public:
  // The texts of RedisOptions, kept.
  struct Settings {
    RedisOptions options;  // its views are not used
    std::string user, password, key_prefix;
    std::unique_ptr<redis::TlsContext> tls;
    RecordKeys keys;
  };

  // Descriptors of epoll and eventfd become the Impl's.
  Impl(Settings settings, const std::vector<redis::Seed>& seeds, int epoll_fd, int wake_fd);
  ~Impl();

  std::size_t submit(TierOp op, std::span<const TierItem> items, std::uint64_t deadline_us);
  std::size_t poll(std::uint64_t now_us, std::span<TierDone> done);
  [[nodiscard]] bool ready() const noexcept;
  void close(std::uint64_t deadline_us);
  [[nodiscard]] int epoll_fd() const noexcept { return epoll_fd_; }
  // False in a child of fork(), where sockets and epoll are the parent's.
  [[nodiscard]] bool is_ours() const noexcept { return process_.is_this(); }
  [[nodiscard]] TierHealth health() const noexcept;
  [[nodiscard]] const RedisCounters& counters() const noexcept { return counters_; }
  [[nodiscard]] const RedisOptions& options() const noexcept { return settings_.options; }
  [[nodiscard]] std::vector<RedisNode> nodes() const;
  [[nodiscard]] std::string describe() const;
  [[nodiscard]] Status check_invariants() const;

 private:
  using Items = redis::Items;
  using Item = redis::Items::Item;
  using Id = redis::Items::Id;
  using Lane = redis::Lane;
  using Node = redis::Node;
  static constexpr int kSendsMax = 5;
  // Items whose time is over or whose node is left alone, in one poll; the rest follows in the
  // next.
  static constexpr int kEndsPerPoll = 4096;
  // What is read at once. Small, since hiredis moves what lies behind a reply.
  static constexpr std::size_t kReadBytes = std::size_t{128} << 10;

  // ---- redis_tier.cc ----
  void finish(Id id, TierResult result);
  void expire();
  void route(Id id);
  void retry(Id id);
  void retry_later(Id id, std::uint64_t delay_us);
  void end_all(TierResult result);
  void end_connections();
  void leave_to_parent();
  [[nodiscard]] bool usable() const noexcept;
  std::size_t hand_over(std::span<TierDone> done);
  void wake();
  [[nodiscard]] std::string key_of(const TierKey& key) const;

  // ---- lanes.cc ----
  void listen();
  void visit(Lane& lane);
  void tend();
  void tend(Node& node);
  void connect(Lane& lane);
  void greet(Lane& lane);
  void lose(Lane& lane, std::string why);
  bool take_replies(Lane& lane);
  void refuse_long_value(Lane& lane);
  void drop(Lane& lane, std::string why);
  [[nodiscard]] GrowingPause::Limits pauses() const noexcept {
    return {settings_.options.breaker_us_min, settings_.options.breaker_us_max};
  }
  void note_success(Lane& lane);
  void forget_descriptor(Lane& lane);
  [[nodiscard]] bool is_wanted(const Lane& lane) const;
  void give_up_queue(Lane& lane);
  void send_queue(Lane& lane);
  bool ask_some(Lane& lane);
  void send_item(Lane& lane, Id id, Item& item);
  [[nodiscard]] std::optional<redis::Command> command_of(const Item& item) const;
  [[nodiscard]] static RecordInfo info_of(const Item& item);
  void set_interest(Lane& lane);
  void ask_for_map();
  void on_map(Lane& asked, const redis::Reply& reply);
  void route_again();

  // ---- replies.cc ----
  // False: the reply does not fit the question.
  bool on_reply(Lane& lane, const redis::Question& question, const redis::Reply& reply);
  bool on_ping(Lane& lane, const redis::Reply& reply);
  void refuse(Lane& lane, std::string why);
  bool on_item(Lane& lane, Id id, const redis::Reply& reply);
  TierResult verify(const Item& item, const redis::Reply& reply);
  bool on_error(Lane& lane, Id id, std::string_view text);
  bool on_redirect(Lane& lane, Id id, std::string_view text);

  Process process_;
  Settings settings_;
  int epoll_fd_ = -1, wake_fd_ = -1;
  bool awake_ = false;  // wake_fd_ is readable
  redis::Nodes nodes_;
  Items items_;
  Items::Queue unrouted_;  // they wait for the first map
  std::multimap<std::uint64_t, Id> later_;

  std::uint64_t now_us_ = 0;
  redis::Budget budget_;
  std::vector<char> buffer_ = std::vector<char>(kReadBytes);
  bool closing_ = false, closed_ = false;
  std::uint64_t close_us_ = 0;
  TierHealth health_;
  RedisCounters counters_;
};

}  // namespace kvfolio
