// SPDX-License-Identifier: Apache-2.0
#include "tier_redis.h"

#include <hiredis/hiredis.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <set>
#include <span>

#include "kvfolio/record.h"
#include "tier_option.h"

namespace kvfolio::tools {
namespace {

constexpr std::string_view kPrefix = "kvfolio:";
constexpr long long kLargest = 512ll << 20;  // of a value of Redis
constexpr std::size_t kFaultsShown = 100;

using Reply = std::unique_ptr<redisReply, decltype(&freeReplyObject)>;

Status unavailable(std::string sentence) { return {ErrorCode::kUnavailable, std::move(sentence)}; }

// "[::1]:7001" has the host "::1".
std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return has_brackets ? host.substr(1, host.size() - 2) : host;
}

// ---- TLS ----

std::string tls_error() {
  std::array<char, 256> words{};
  const unsigned long code = ERR_get_error();
  if (code == 0) return "the connection ended";
  ERR_error_string_n(code, words.data(), words.size());
  return words.data();
}

// What all connections have in common; null: they are in clear.
using TlsContext = std::shared_ptr<SSL_CTX>;

Result<TlsContext> make_tls(const std::string& ca_file) {
  if (ca_file.empty()) return TlsContext();
  ERR_clear_error();
  TlsContext tls(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (tls == nullptr) return unavailable("TLS: " + tls_error());
  SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_min_proto_version(tls.get(), TLS1_2_VERSION);
  if (SSL_CTX_load_verify_locations(tls.get(), ca_file.c_str(), nullptr) != 1) {
    return Status(ErrorCode::kInvalidArgument,
                  "KVFOLIO_REDIS_CA: " + ca_file + " cannot be used: " + tls_error());
  }
  return tls;
}

// The certificate must be of this name or address.
bool expect_name(SSL* ssl, const std::string& name) {
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name.c_str()) == 1) return true;
  return SSL_set1_host(ssl, name.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, name.c_str()) == 1;
}

// ---- a server ----

class Server {
 public:
  static Result<Server> connect(const std::string& address, const TlsContext& tls) {
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
    errno = 0;
    server.context_.reset(
        redisConnectWithTimeout(host_of(address).c_str(), port, {kConnectSeconds, 0}));
    if (server.context_ == nullptr) return unavailable("no memory");
    if (server.context_->err != 0) {
      if (errno != ETIMEDOUT) return unavailable(server.context_->errstr);
      return unavailable("no connection within " + std::to_string(kConnectSeconds) + " s");
    }
    redisSetTimeout(server.context_.get(), {kAnswerSeconds, 0});
    if (Status status = server.begin_tls(tls); !status.ok()) return status;
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
    errno = 0;
    const int count = static_cast<int>(words.size());
    void* answer = nullptr;
    if (tls_ == nullptr) {
      answer = redisCommandArgv(context_.get(), count, texts.data(), sizes.data());
    } else {
      answer = ask_over_tls(count, texts.data(), sizes.data());
    }
    Reply reply(static_cast<redisReply*>(answer), freeReplyObject);
    if (reply == nullptr) return unavailable(why_no_answer(words[0]));
    if (reply->type == REDIS_REPLY_ERROR) {
      return unavailable(words[0] + ": " + std::string(reply->str, reply->len));
    }
    return reply;
  }
  [[nodiscard]] std::string host() const { return host_of(address_); }

 private:
  static constexpr int kConnectSeconds = 2;
  static constexpr int kAnswerSeconds = 10;

  Status begin_tls(const TlsContext& tls) {
    if (tls == nullptr) return {};
    ERR_clear_error();
    tls_.reset(SSL_new(tls.get()));
    if (tls_ == nullptr || !expect_name(tls_.get(), host()) ||
        SSL_set_fd(tls_.get(), context_->fd) != 1) {
      return unavailable("TLS: no memory");
    }
    errno = 0;
    const int result = SSL_connect(tls_.get());
    if (result == 1) return {};
    if (const long verdict = SSL_get_verify_result(tls_.get()); verdict != X509_V_OK) {
      return unavailable(std::string("TLS: the certificate of the server is refused: ") +
                         X509_verify_cert_error_string(verdict));
    }
    if (SSL_get_error(tls_.get(), result) == SSL_ERROR_WANT_READ) {
      return unavailable("TLS: no greeting within " + std::to_string(kAnswerSeconds) +
                         " s: is it a port for TLS?");
    }
    return unavailable("TLS: " + tls_error() + ": is it a port for TLS?");
  }

  // hiredis writes the command and reads the reply; the bytes between go through TLS.
  void* ask_over_tls(int count, const char** texts, const std::size_t* sizes) {
    char* command = nullptr;
    const auto bytes = redisFormatCommandArgv(&command, count, texts, sizes);
    if (bytes < 0) return nullptr;
    const int written = SSL_write(tls_.get(), command, static_cast<int>(bytes));
    redisFreeCommand(command);
    if (written != static_cast<int>(bytes)) return nullptr;
    void* reply = nullptr;
    std::array<char, 16384> piece;
    while (redisReaderGetReply(context_->reader, &reply) == REDIS_OK && reply == nullptr) {
      const int n = SSL_read(tls_.get(), piece.data(), static_cast<int>(piece.size()));
      if (n <= 0) return nullptr;
      redisReaderFeed(context_->reader, piece.data(), static_cast<std::size_t>(n));
    }
    return reply;
  }

  [[nodiscard]] std::string why_no_answer(const std::string& command) const {
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return "no answer to " + command + " within " + std::to_string(kAnswerSeconds) + " s";
    }
    if (tls_ != nullptr) return command + ": the connection ended";
    return command + ": " + context_->errstr;
  }

  Status log_in() {
    const std::string user = environment("KVFOLIO_REDIS_USER");
    const std::string password = environment("KVFOLIO_REDIS_PASSWORD");
    if (password.empty()) return {};
    std::vector<std::string> words{"AUTH"};
    if (!user.empty()) words.push_back(user);
    words.push_back(password);
    const Result<Reply> reply = ask(words);
    if (reply) return {};
    // A server that does not know AUTH repeats the words behind it, and messages go to logs.
    std::string why = reply.error().message();
    why.resize(std::min({why.size(), why.find(", with args"), why.find(password)}));
    return unavailable(std::move(why));
  }
  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
    void operator()(SSL* tls) const { SSL_free(tls); }
  };
  std::string address_;
  std::unique_ptr<redisContext, Free> context_;
  std::unique_ptr<SSL, Free> tls_;  // ends first; null: in clear
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

std::string lines_of(const std::vector<RedisUnread>& nodes) {
  std::string lines;
  for (const RedisUnread& node : nodes) lines += "\n  " + node.address + ": " + node.what;
  return lines;
}

// As the first server that answers says it.
Result<std::set<std::string>> find_primaries(const std::string& servers, const TlsContext& tls) {
  std::vector<RedisUnread> silent;
  for (std::size_t begin = 0; begin < servers.size();) {
    const std::size_t end = std::min(servers.find(',', begin), servers.size());
    const std::string address = servers.substr(begin, end - begin);
    begin = end + 1;
    Result<Server> server = Server::connect(address, tls);
    if (!server && server.error().code() == ErrorCode::kInvalidArgument) return server.error();
    Result<std::set<std::string>> found =
        server ? primaries(*server, address) : Result<std::set<std::string>>(server.error());
    if (found && !found->empty()) return found;
    silent.push_back({address, found ? "it knows no node of its cluster"
                                     : std::string(found.error().message())});
  }
  return unavailable("no server says which nodes there are:" + lines_of(silent));
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
  Check(RecordKeys keys, bool erase, const std::function<void(std::int64_t)>& progress)
      : keys_(std::move(keys)), erase_(erase), progress_(progress) {}

  Status read(Server& server) {
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
    if (fault->empty()) return {};  // right, gone, or counted
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
    const RecordInfo expected{
        .key = key, .payload_bytes = static_cast<std::int64_t>(record.size()) - kRecordHeaderBytes};
    const RecordFault fault = check_record(record, expected, keys_);
    if (fault == RecordFault::kSealer) {
      ++result.of_another_key;
      return std::string();
    }
    if (fault != RecordFault::kNone) return std::string("wrong ") + to_string(fault);
    ++result.records;
    result.bytes += static_cast<std::int64_t>(record.size());
    return std::string();
  }

  RecordKeys keys_;
  bool erase_;
  const std::function<void(std::int64_t)>& progress_;
  std::int64_t seen_ = 0;
};

}  // namespace

Result<RedisCheck> check_redis(const std::string& servers, bool erase,
                               const std::function<void(std::int64_t)>& progress) {
  const Result<RecordSecrets> secrets = RecordSecrets::from_environment();
  if (!secrets) return secrets.error();
  const Result<RecordKeys> keys = RecordKeys::create(secrets->options());
  if (!keys) return keys.error();
  const Result<TlsContext> tls = make_tls(environment("KVFOLIO_REDIS_CA"));
  if (!tls) return tls.error();
  const Result<std::set<std::string>> nodes = find_primaries(servers, *tls);
  if (!nodes) return nodes.error();
  Check check(*keys, erase, progress);
  check.result.nodes = static_cast<std::int32_t>(nodes->size());
  for (const std::string& address : *nodes) {
    Result<Server> node = Server::connect(address, *tls);
    const Status status = node ? check.read(*node) : node.error();
    if (!status.ok()) check.result.unread.push_back({address, std::string(status.message())});
  }
  if (check.result.unread.size() < nodes->size()) return std::move(check.result);
  return unavailable("no node could be read:" + lines_of(check.result.unread));
}

}  // namespace kvfolio::tools
