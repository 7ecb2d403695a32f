// SPDX-License-Identifier: Apache-2.0
#pragma once

// RedisTier keeps records in a Redis Cluster, or in a single server. Engines that share a cluster
// share their prefixes. It seals what it is given (record.h) and verifies what comes back: a load
// has the bytes that were stored under the key, or fails.
//
//   auto redis = RedisTier::create({.servers = "10.0.0.1:7001,10.0.0.2:7001"});
//   (*redis)->wait_until_ready(now_us, 1'000'000);   // at start only; the one call that waits
//   OffloadTier{.tier = redis->get(), .policy = WritePolicy::kSecondUse}
//
//  - A record is one value, a header of 192 bytes and the data:
//      SET prefix+hex(key) value NX PX ttl,  GET,  EXISTS,  UNLINK
//    So a value never changes: a stale replica answers with the right value or with a miss.
//    Data are sent from where they lie.
//  - Sockets never block, and there are no threads: all happens in poll(), which moves at most
//    bytes_per_poll. Two connections for each node, one for loads and one for stores.
//  - A node that is gone, frozen, full, loading or moving costs misses and dropped stores, never a
//    wait: every item ends by its deadline. After three failures in a row a node is left alone for
//    breaker_us_min, then asked by one connection; the pause doubles up to breaker_us_max. The map
//    of slots is asked for again after MOVED, after lost connections and when nodes do not answer.
//  - Servers are not trusted: a reply is bounded by what was asked for, a record of another length
//    or one that does not verify is kCorrupt (of another key: kMiss), and a reply that does not fit
//    the question ends the connection. But without a key, anyone who can write to a server can
//    forge records; and the tier tells its password to every node that a node names.
//
//  - In a child of fork() the tier is closed: sockets are the parent's. It accepts nothing, all
//    items that it had are kClosed, and destroying it closes descriptors and says nothing to the
//    servers.
//
// Names are resolved in create() only. Nodes that the cluster announces under names, not addresses,
// must be among `servers`. Thread safety: as Tier. Needs libhiredis when the library is built.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/export.h"
#include "kvfolio/record.h"
#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

struct RedisTls {
  bool enabled = false;
  std::string_view ca_file{};      // PEM; empty: the system's
  std::string_view cert_file{};    // PEM, of this client; empty: none
  std::string_view key_file{};     // the same
  std::string_view server_name{};  // that every certificate must have; empty: the host of the node
};

// Everything is copied by create().
struct RedisOptions {
  std::string_view servers{};  // "HOST:PORT,HOST:PORT": nodes of one cluster, or one server
  std::string_view user{};     // of an ACL; empty: the default user
  std::string_view password{};
  RedisTls tls{};
  std::string_view key_prefix = "kvfolio:";  // at most 64 characters, without braces
  std::uint64_t ttl_ms = 0;                  // of a record; 0: the server's policy decides
  std::int64_t record_bytes_max = std::int64_t{64} << 20;  // of data; at most 512 MiB - 192
  std::int32_t items_max = 4096;                           // accepted and not done
  // On a connection, beyond which items wait here. One item is always sent.
  std::int64_t bytes_in_flight_max = std::int64_t{8} << 20;
  std::int64_t bytes_per_poll = std::int64_t{512} << 10;
  std::uint64_t connect_timeout_us = 200'000;  // until a connection is greeted
  std::uint64_t stall_timeout_us = 500'000;    // without a byte, while a reply is due
  std::uint64_t breaker_us_min = 500'000;
  std::uint64_t breaker_us_max = 5'000'000;
  // With a key a record is believed only if it was sealed with it. All engines that share a
  // key_prefix need the same keys: to an engine with another key the records are misses
  // (RedisCounters::of_another_key). They stay, and keep their names: what that engine stores under
  // them is not kept, since SET has NX. kErase takes them.
  RecordKeyOptions keys{};
};

struct RedisCounters {
  std::uint64_t stores_refused = 0;  // by the server: full, read only, or not allowed
  std::uint64_t redirects = 0;       // MOVED and ASK
  std::uint64_t retries = 0;         // items that were sent again
  std::uint64_t connections = 0;     // that were greeted
  std::uint64_t connections_lost = 0;
  std::uint64_t replies_refused = 0;  // that did not fit the question
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t of_another_key = 0;  // loads that met a record of another key, or of none: misses
};

// A server that the tier knows: it was named to it, or the cluster says that it has slots.
struct RedisNode {
  std::string address{};      // "10.0.0.1:7001"
  std::int32_t slots = 0;     // that it has
  bool connected = false;     // it has answered, and is asked
  bool left_alone = false;    // it failed too often, and is tried again later
  bool stores_alone = false;  // the same, for stores
  bool refuses = false;       // it answers that we may not ask: `error` has its words
  std::string error{};        // the last one; empty: none since it answered
};

class RedisTier final : public Tier {
 public:
  // Resolves the names, which may wait for a name server; connects later. kInvalidArgument: no
  // server, one that is no HOST:PORT or has no address (names it), a prefix, numbers out of range,
  // certificates that cannot be read. kUnsupported: the library was built without hiredis.
  KVFOLIO_API static Result<std::unique_ptr<RedisTier>> create(const RedisOptions& options);
  // Ends all connections. Nothing touches the memory of any item afterwards.
  KVFOLIO_API ~RedisTier() override;
  RedisTier(const RedisTier&) = delete;
  RedisTier& operator=(const RedisTier&) = delete;

  // Waits until the slots are known and a node has answered. kTimedOut says what each server said
  // or did not say: that it refuses the password or the user, that it cannot be reached. The tier
  // goes on trying either way.
  KVFOLIO_API Status wait_until_ready(std::uint64_t now_us, std::uint64_t timeout_us);

  KVFOLIO_API std::string_view name() const noexcept override;
  KVFOLIO_API TierLimits limits() const noexcept override;
  KVFOLIO_API std::size_t submit(TierOp op, std::span<const TierItem> items,
                                 Deadline deadline) noexcept override;
  KVFOLIO_API std::size_t poll(std::uint64_t now_us, std::span<TierDone> done) noexcept override;
  // Also readable while connections have something to do.
  KVFOLIO_API int event_fd() const noexcept override;
  KVFOLIO_API TierHealth health() const noexcept override;
  KVFOLIO_API Status close(Deadline deadline) noexcept override;

  [[nodiscard]] KVFOLIO_API const RedisCounters& counters() const noexcept;
  // The servers, in no order. The tier connects to each once, so that its state is known before it
  // is needed.
  [[nodiscard]] KVFOLIO_API std::vector<RedisNode> nodes() const;
  // The same in words, a line for each: its address, its share of the slots, its state, its last
  // error. Behind them, if there were any, how many loads met a record of another key.
  [[nodiscard]] KVFOLIO_API std::string describe() const;
  // Recounts what waits, in O(items). Returns ok, or says which rule is broken.
  [[nodiscard]] KVFOLIO_API Status check_invariants() const;

 private:
  class Impl;
  explicit RedisTier(std::unique_ptr<Impl> impl) noexcept;
  [[nodiscard]] std::string why_not_ready(std::uint64_t timeout_us) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvfolio
