// SPDX-License-Identifier: Apache-2.0
#include "tier_redis.h"

#include <hiredis/hiredis.h>

#include <charconv>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>

#include "kvfolio/record.h"

namespace kvfolio::tools {
namespace {

constexpr std::string_view kPrefix = "kvfolio:";
constexpr long long kLargest = 512ll << 20;  // of a value of Redis
constexpr std::size_t kFaultsShown = 100;

using Reply = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Status unavailable(std::string sentence) { return {ErrorCode::kUnavailable, std::move(sentence)}; }

// "[::1]:7001" has the host "::1".
std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

class Server {
 public:
  static Result<Server> connect(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    int port = 0;
    const char* const end = address.data() + address.size();
    if (colon == std::string::npos || colon == 0 ||
        std::from_chars(address.data() + colon + 1, end, port).ptr != end || port < 1 ||
        port > 65535) {
      return Status(ErrorCode::kInvalidArgument, "'" + address + "' is not HOST:PORT");
    }
    Server server;
    server.address_ = address;
    server.context_.reset(redisConnectWithTimeout(host_of(address).c_str(), port, {2, 0}));
    if (server.context_ == nullptr || server.context_->err != 0) {
      return unavailable(address + ": " +
                         (server.context_ == nullptr ? "no memory" : server.context_->errstr));
    }
    redisSetTimeout(server.context_.get(), {10, 0});
    if (Status status = server.log_in(); !status.ok()) return status;
    return server;
  }

  // Never null. An error of the server is an error.
  Result<Reply> ask(const std::vector<std::string>& words) {
    std::vector<const char*> texts;
    std::vector<std::size_t> sizes;
    for (const std::string& word : words) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    Reply reply(static_cast<redisReply*>(redisCommandArgv(
                    context_.get(), static_cast<int>(words.size()), texts.data(), sizes.data())),
                freeReplyObject);
    if (reply == nullptr) return unavailable(address_ + ": " + context_->errstr);
    if (reply->type == REDIS_REPLY_ERROR) {
      return unavailable(address_ + ": " + std::string(reply->str, reply->len));
    }
    return reply;
  }
  [[nodiscard]] std::string host() const { return host_of(address_); }

 private:
  Status log_in() {
    const std::string user = environment("KVFOLIO_REDIS_USER");
    const std::string password = environment("KVFOLIO_REDIS_PASSWORD");
    if (password.empty()) return {};
    std::vector<std::string> words{"AUTH"};
    if (!user.empty()) words.push_back(user);
    words.push_back(password);
    const Result<Reply> reply = ask(words);
    return reply ? Status() : reply.error();
  }
  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  std::string address_;
  std::unique_ptr<redisContext, Free> context_;
};

// The slot is on its way to another node: the key is not of this one any more.
bool has_moved(const Status& error) {
  const std::string text = error.message();
  return text.find(": MOVED ") != std::string::npos || text.find(": ASK ") != std::string::npos;
}

bool is_array(const redisReply* reply, std::size_t elements) {
  return reply->type == REDIS_REPLY_ARRAY && reply->elements >= elements;
}

// The addresses of all primaries; of a server alone, its own.
Result<std::set<std::string>> primaries(Server& server, const std::string& address) {
  const Result<Reply> slots = server.ask({"CLUSTER", "SLOTS"});
  std::set<std::string> found;
  if (!slots) {
    if (slots.error().message().find("cluster support disabled") == std::string_view::npos) {
      return slots.error();
    }
    found.insert(address);
    return found;
  }
  for (std::size_t i = 0; i < (*slots)->elements; ++i) {
    const redisReply* range = (*slots)->element[i];
    if (!is_array(range, 3) || !is_array(range->element[2], 2)) continue;
    const redisReply* host = range->element[2]->element[0];
    const std::string name =
        host->type == REDIS_REPLY_STRING && host->len > 0 ? host->str : server.host();
    found.insert(name + ":" + std::to_string(range->element[2]->element[1]->integer));
  }
  return found;
}

bool read_key(std::string_view text, TierKey& key) {
  if (text.size() != kPrefix.size() + 2 * TierKey::kBytes) return false;
  for (std::size_t i = 0; i < TierKey::kBytes; ++i) {
    unsigned value = 0;
    const char* const digits = text.data() + kPrefix.size() + 2 * i;
    if (std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) return false;
    key.bytes[i] = static_cast<std::byte>(value);
  }
  return true;
}

class Check {
 public:
  Check(bool erase, const std::function<void(std::int64_t)>& progress)
      : erase_(erase), progress_(progress) {}

  Status read(Server& server) {
    ++result.nodes;
    std::string cursor = "0";
    const Result<Reply> keys_there = server.ask({"DBSIZE"});
    if (!keys_there) return keys_there.error();
    // A server that never comes to an end is none.
    std::int64_t pages = 1000 + (*keys_there)->integer;
    do {
      if (--pages < 0) return unavailable("SCAN does not end");
      const Result<Reply> page =
          server.ask({"SCAN", cursor, "MATCH", std::string(kPrefix) + "*", "COUNT", "500"});
      if (!page) return page.error();
      if (!is_array(page->get(), 2) || (*page)->element[0]->type != REDIS_REPLY_STRING) {
        return unavailable("SCAN was answered by something else");
      }
      cursor.assign((*page)->element[0]->str, (*page)->element[0]->len);
      const redisReply* keys = (*page)->element[1];
      for (std::size_t i = 0; i < keys->elements; ++i) {
        if (keys->element[i]->type != REDIS_REPLY_STRING) continue;
        const std::string key(keys->element[i]->str, keys->element[i]->len);
        if (Status status = read(server, key); !status.ok()) return status;
      }
    } while (cursor != "0");
    return {};
  }

  RedisCheck result;

 private:
  Status read(Server& server, const std::string& key) {
    if (++seen_ % 100 == 0) progress_(seen_);
    TierKey name;
    if (!read_key(key, name)) {
      ++result.others;
      return {};
    }
    const Result<std::string> fault = fault_of(server, key, name);
    if (!fault) return fault.error();
    if (fault->empty()) return {};
    ++result.damaged;
    if (result.faults.size() < kFaultsShown) result.faults.push_back({key, *fault});
    if (!erase_) return {};
    const Result<Reply> gone = server.ask({"UNLINK", key});
    if (!gone) return gone.error();
    result.erased += (*gone)->integer;
    return {};
  }

  // Nothing: the record is right, or is gone by now.
  Result<std::string> fault_of(Server& server, const std::string& text, const TierKey& key) {
    const Result<Reply> type = server.ask({"TYPE", text});
    if (!type) return has_moved(type.error()) ? Result<std::string>(std::string()) : type.error();
    if ((*type)->type != REDIS_REPLY_STATUS) {
      return unavailable("TYPE was answered by something else");
    }
    if (std::string_view((*type)->str) == "none") return std::string();
    if (std::string_view((*type)->str) != "string") return std::string("the value is no string");
    const Result<Reply> size = server.ask({"STRLEN", text});
    if (!size) return size.error();
    if ((*size)->integer > kLargest) return std::string("the value is too long");
    const Result<Reply> value = server.ask({"GET", text});
    if (!value)
      return has_moved(value.error()) ? Result<std::string>(std::string()) : value.error();
    if ((*value)->type != REDIS_REPLY_STRING) return std::string();
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the bytes of a value
    const std::span record(reinterpret_cast<const std::byte*>((*value)->str), (*value)->len);
    RecordInfo info;
    RecordFault fault = read_record_header(record, info);
    info.key = key;
    if (fault == RecordFault::kNone) fault = check_record(record, info);
    if (fault != RecordFault::kNone) return std::string("wrong ") + to_string(fault);
    ++result.records;
    result.bytes += static_cast<std::int64_t>(record.size());
    return std::string();
  }

  bool erase_;
  const std::function<void(std::int64_t)>& progress_;
  std::int64_t seen_ = 0;
};

}  // namespace

Result<RedisCheck> check_redis(const std::string& servers, bool erase,
                               const std::function<void(std::int64_t)>& progress) {
  if (!environment("KVFOLIO_REDIS_CA").empty()) {
    return Status(ErrorCode::kUnsupported, "tier check does not speak TLS: unset KVFOLIO_REDIS_CA");
  }
  const std::string first = servers.substr(0, servers.find(','));
  Result<Server> server = Server::connect(first);
  if (!server) return server.error();
  const Result<std::set<std::string>> nodes = primaries(*server, first);
  if (!nodes) return nodes.error();
  Check check(erase, progress);
  for (const std::string& address : *nodes) {
    Result<Server> node = Server::connect(address);
    if (!node) return node.error();
    if (Status status = check.read(*node); !status.ok()) return status;
  }
  return std::move(check.result);
}

}  // namespace kvfolio::tools
