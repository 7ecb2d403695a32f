// SPDX-License-Identifier: Apache-2.0

// RedisTier.

#include <algorithm>

#include "fields.h"
#include "kvfolio/redis_tier.h"
#include "tier_state.h"

namespace kvfolio::python {
namespace {

class RedisObject : public TierObject {
 public:
  explicit RedisObject(std::unique_ptr<RedisTier> tier)
      : TierObject(std::make_shared<TierState>(std::move(tier), "the Redis tier")),
        tier_(static_cast<RedisTier*>(state()->tier())) {}

  // f(RedisTier) without the GIL.
  template <typename F>
  auto ask(F&& f) const {
    return state()->call([&](Tier&) { return f(*tier_); });
  }

 private:
  RedisTier* tier_;  // of the state, valid inside of its call()
};

// RedisTls with the memory that it points into.
struct HeldTls {
  std::string ca_file, cert_file, key_file, server_name;
  RedisTls tls{};

  explicit HeldTls(nb::handle object) {
    if (object.is_none()) return;
    const Fields fields(object, "tls", "a RedisTls or None");
    ca_file = fields.text("ca_file");
    cert_file = fields.text("cert_file");
    key_file = fields.text("key_file");
    server_name = fields.text("server_name");
    tls = {.enabled = true,
           .ca_file = ca_file,
           .cert_file = cert_file,
           .key_file = key_file,
           .server_name = server_name};
  }
  HeldTls(const HeldTls&) = delete;
  HeldTls& operator=(const HeldTls&) = delete;
};

void create(RedisObject* self, const std::string& servers, const std::string& user,
            const std::string& password, nb::handle tls, const std::string& key_prefix, double ttl,
            Int record_bytes_max, Int items_max, Int bytes_in_flight_max, Int bytes_per_poll,
            double connect_timeout, double stall_timeout, double pause_min, double pause_max,
            nb::handle key, nb::handle accepted_key) {
  const HeldTls held(tls);
  const HeldKeys keys(key, accepted_key);
  const RedisOptions options{
      .servers = servers,
      .user = user,
      .password = password,
      .tls = held.tls,
      .key_prefix = key_prefix,
      .ttl_ms = us_of(ttl, "ttl") / 1000,
      .record_bytes_max = record_bytes_max.value,
      .items_max = i32(items_max, "items_max"),
      .bytes_in_flight_max = bytes_in_flight_max.value,
      .bytes_per_poll = bytes_per_poll.value,
      .connect_timeout_us = us_of(connect_timeout, "connect_timeout"),
      .stall_timeout_us = us_of(stall_timeout, "stall_timeout"),
      .breaker_us_min = us_of(pause_min, "pause_min"),
      .breaker_us_max = us_of(pause_max, "pause_max"),
      .keys = keys.options,
  };
  Result<std::unique_ptr<RedisTier>> tier = [&] {
    const ReleasedGil release;
    return RedisTier::create(options);
  }();
  new (self) RedisObject(take(std::move(tier)));
}

nb::list nodes(const RedisObject& redis) {
  nb::list list;
  for (const RedisNode& node : redis.ask([](RedisTier& tier) { return tier.nodes(); })) {
    list.append(make_tier_record(
        "RedisNode", nb::make_tuple(node.address, node.slots, node.connected, node.left_alone,
                                    node.stores_alone, node.refuses, node.error)));
  }
  return list;
}

nb::object counters(const RedisObject& redis) {
  const RedisCounters c = redis.ask([](RedisTier& tier) { return tier.counters(); });
  return make_tier_record(
      "RedisCounters",
      nb::make_tuple(c.stores_refused, c.redirects, c.retries, c.connections, c.connections_lost,
                     c.replies_refused, c.bytes_sent, c.bytes_received, c.of_another_key));
}

// In turns, so that Ctrl-C ends it.
void wait_until_ready(const RedisObject& redis, double timeout) {
  constexpr std::uint64_t kTurnUs = 50'000;
  const std::uint64_t end = now_us() + us_of(timeout, "timeout");
  for (;;) {
    const std::uint64_t now = now_us();
    const std::uint64_t turn = std::min(kTurnUs, end > now ? end - now : 0);
    const Status ready =
        redis.ask([&](RedisTier& tier) { return tier.wait_until_ready(now, turn); });
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (ready) return;
    if (ready.code() != ErrorCode::kTimedOut || now + turn >= end) raise(ready);
  }
}

void add_servers(nb::class_<RedisObject, TierObject>& c) {
  c.def("wait_until_ready", &wait_until_ready, "timeout"_a = 1.0,
        nb::sig("def wait_until_ready(self, timeout: float = 1.0) -> None"),
        "At start: waits until the servers have answered. TimedOut says what each said or did not "
        "say; the tier goes on trying either way.")
      .def("nodes", &nodes, nb::sig("def nodes(self) -> list[kvfolio_tiers._types.RedisNode]"),
           "The servers, in no order.")
      .def("counters", &counters,
           nb::sig("def counters(self) -> kvfolio_tiers._types.RedisCounters"))
      .def(
          "describe",
          [](const RedisObject& redis) {
            return redis.ask([](RedisTier& tier) { return tier.describe(); });
          },
          "The servers in words, a line for each.");
}

}  // namespace

void add_redis(nb::module_& m) {
  nb::class_<RedisObject, TierObject> c(
      m, "RedisTier",
      "Records in a Redis Cluster or a single server, which engines share. A server that is gone, "
      "slow or full costs misses and dropped stores, never a wait. All of it happens in poll() and "
      "wait().");
  c.def("__init__", &create, "servers"_a, nb::kw_only(), "user"_a = "", "password"_a = "",
        "tls"_a = nb::none(), "key_prefix"_a = "kvfolio:", "ttl"_a = 0.0,
        "record_bytes_max"_a = Int{std::int64_t{64} << 20}, "items_max"_a = Int{4096},
        "bytes_in_flight_max"_a = Int{std::int64_t{8} << 20},
        "bytes_per_poll"_a = Int{std::int64_t{512} << 10}, "connect_timeout"_a = 0.2,
        "stall_timeout"_a = 0.5, "pause_min"_a = 0.5, "pause_max"_a = 5.0, "key"_a = nb::none(),
        "accepted_key"_a = nb::none(),
        nb::sig("def __init__(self, servers: str, *, user: str = '', password: str = '', "
                "tls: kvfolio_tiers._types.RedisTls | None = None, key_prefix: str = 'kvfolio:', "
                "ttl: float = 0.0, record_bytes_max: int = 67108864, items_max: int = 4096, "
                "bytes_in_flight_max: int = 8388608, bytes_per_poll: int = 524288, "
                "connect_timeout: float = 0.2, stall_timeout: float = 0.5, "
                "pause_min: float = 0.5, pause_max: float = 5.0, "
                "key: bytes | None = None, accepted_key: bytes | None = None) -> None"),
        "servers: \"HOST:PORT,HOST:PORT\". Resolves the names, and connects later. ttl: seconds "
        "that a record lives; 0: the server's policy decides. A server that fails is left alone "
        "for pause_min seconds, then longer, up to pause_max. `key`: 32 secret bytes that seal "
        "records; all engines of one key_prefix have the same.");
  add_servers(c);
}

}  // namespace kvfolio::python
