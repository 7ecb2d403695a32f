// SPDX-License-Identifier: Apache-2.0
//
// The tier in Redis, and what it has that other tiers have not: a wait at start, and much to
// describe.

#include <algorithm>

#include "tiers_capi/tiers_capi.h"

namespace kvfolio::capi {
namespace {

void take_text(const char* theirs, std::string_view& ours) {
  if (theirs != nullptr) ours = theirs;
}

template <typename T>
void read_number(T theirs, T& ours) noexcept {
  if (theirs != 0) ours = theirs;
}

Status read_redis_options(std::string_view call, const kvfolio_redis_tier_options* theirs,
                          RedisOptions& out) {
  kvfolio_redis_tier_options options;
  KVFOLIO_RETURN_IF_ERROR(read_struct(call, "options", theirs, options));
  take_text(options.servers, out.servers);
  take_text(options.user, out.user);
  take_text(options.password, out.password);
  take_text(options.key_prefix, out.key_prefix);
  out.tls.enabled = options.tls != 0;
  take_text(options.tls_ca_file, out.tls.ca_file);
  take_text(options.tls_cert_file, out.tls.cert_file);
  take_text(options.tls_key_file, out.tls.key_file);
  take_text(options.tls_server_name, out.tls.server_name);
  out.ttl_ms = options.ttl_ms;
  read_number(options.record_bytes_max, out.record_bytes_max);
  read_number(options.items_max, out.items_max);
  read_number(options.bytes_in_flight_max, out.bytes_in_flight_max);
  read_number(options.bytes_per_poll, out.bytes_per_poll);
  read_number(options.connect_timeout_us, out.connect_timeout_us);
  read_number(options.stall_timeout_us, out.stall_timeout_us);
  read_number(options.breaker_us_min, out.breaker_us_min);
  read_number(options.breaker_us_max, out.breaker_us_max);
  out.keys = {.key = secret_of(options.record_key),
              .accepted_key = secret_of(options.accepted_record_key)};
  return {};
}

std::string describe(const kvfolio_tier& tier) {
  if (tier.disk != nullptr) return tier.disk->describe();
  if (tier.redis != nullptr) return tier.redis->describe();
  return tier.name;
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_tier_create_redis(const kvfolio_redis_tier_options* options, kvfolio_tier** out,
                                  kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(out);
  RedisOptions ours;
  KVFOLIO_C_RETURN_IF_ERROR(read_redis_options(__func__, options, ours));
  std::unique_ptr<kvfolio_tier> handle(new (std::nothrow) kvfolio_tier);
  if (!handle) return answer(error, no_memory(__func__));
  Result<std::unique_ptr<RedisTier>> redis = RedisTier::create(ours);
  if (!redis) return answer(error, redis.error());
  handle->redis = redis->get();
  handle->tier = *std::move(redis);
  handle->name = handle->tier->name();
  *out = handle.release();
  return KVFOLIO_OK;
}

int32_t kvfolio_tier_redis_counters(const kvfolio_tier* tier, kvfolio_redis_tier_counters* out,
                                    kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tier);
  KVFOLIO_C_RETURN_IF_ERROR(check_out(__func__, "out", out));
  if (tier->redis == nullptr) {
    return answer(error, {ErrorCode::kUnsupported,
                          concat(__func__, ": the tier ", tier->name, " is not in Redis")});
  }
  const RedisCounters& counters = tier->redis->counters();
  write_struct(out, {.struct_size = 0,
                     .reserved = 0,
                     .stores_refused = counters.stores_refused,
                     .redirects = counters.redirects,
                     .retries = counters.retries,
                     .connections = counters.connections,
                     .connections_lost = counters.connections_lost,
                     .replies_refused = counters.replies_refused,
                     .bytes_sent = counters.bytes_sent,
                     .bytes_received = counters.bytes_received,
                     .of_another_key = counters.of_another_key});
  return KVFOLIO_OK;
}

int32_t kvfolio_tier_wait_until_ready(kvfolio_tier* tier, uint64_t now_us, uint64_t timeout_us,
                                      kvfolio_error* error) {
  const NothingThrown nothing;
  KVFOLIO_C_NEEDS(tier);
  if (tier->redis == nullptr) return KVFOLIO_OK;
  return answer(error, tier->redis->wait_until_ready(now_us, timeout_us));
}

int64_t kvfolio_tier_describe(const kvfolio_tier* tier, char* out, int64_t capacity) {
  const NothingThrown nothing;
  if (tier == nullptr) return 0;
  const std::string text = describe(*tier);
  if (out != nullptr && capacity > 0) {
    const std::size_t length = std::min(text.size(), static_cast<std::size_t>(capacity - 1));
    std::memcpy(out, text.data(), length);
    out[length] = '\0';
  }
  return static_cast<std::int64_t>(text.size());
}

}  // extern "C"
