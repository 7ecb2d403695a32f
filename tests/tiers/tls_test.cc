// SPDX-License-Identifier: Apache-2.0
//
// RedisTier over TLS: certificates made here by the command openssl.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "kvfolio/redis_tier.h"
#include "tiers/now.h"
#include "tiers/servers.h"
#include "tiers/trouble.h"

namespace kvfolio {
namespace {

using test::now_us;
using ::testing::HasSubstr;

class Certificates {
 public:
  Certificates() {
    for (const char* ca : {"ca", "other"}) {
      openssl({"req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
               "-keyout", file(ca, ".key"), "-out", file(ca, ".crt"), "-days", "2", "-subj",
               std::string("/CN=") + ca});
    }
    make("right", "IP:127.0.0.1", "2");
    make("expired", "IP:127.0.0.1", "-1");
    make("elsewhere", "DNS:elsewhere.example", "2");
  }
  [[nodiscard]] std::string file(const std::string& name, const std::string& end) const {
    return folder_.path() / (name + end);
  }
  // What makes redis-server use this one.
  [[nodiscard]] std::vector<std::string> options(const std::string& name, int port,
                                                 const std::string& asks = "no") const {
    return {"--tls-port",         std::to_string(port),
            "--tls-cert-file",    file(name, ".crt"),
            "--tls-key-file",     file(name, ".key"),
            "--tls-ca-cert-file", file("ca", ".crt"),
            "--tls-auth-clients", asks};
  }

 private:
  void make(const std::string& name, const std::string& alternative, const std::string& days) {
    openssl({"req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
             file(name, ".key"), "-out", file(name, ".csr"), "-subj", "/CN=" + name});
    std::ofstream(file(name, ".ext")) << "subjectAltName=" << alternative << "\n";
    openssl({"x509", "-req", "-in", file(name, ".csr"), "-CA", file("ca", ".crt"), "-CAkey",
             file("ca", ".key"), "-CAcreateserial", "-days", days, "-extfile", file(name, ".ext"),
             "-out", file(name, ".crt")});
  }
  static void openssl(std::vector<std::string> words) {
    words.insert(words.begin(), test::redis_program("openssl").value());
    test::run(words);
  }
  test::Folder folder_;
};

class RedisOverTls : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test::redis_program("redis-server")) GTEST_SKIP() << "no redis-server: scripts/redis-here";
    if (!test::redis_program("openssl")) GTEST_SKIP() << "no openssl";
  }
};

std::string trouble_with(int port, const RedisTls& tls, std::string_view expected) {
  const std::string address = "127.0.0.1:" + std::to_string(port);
  auto tier = RedisTier::create({.servers = address, .tls = tls});
  return tier ? test::trouble(**tier, expected) : std::string(tier.error().message());
}
void expect_ready(int port, const RedisTls& tls) { EXPECT_EQ(trouble_with(port, tls, ""), ""); }
void expect_trouble(int port, const RedisTls& tls, const std::string& said) {
  EXPECT_THAT(trouble_with(port, tls, said), HasSubstr(said));
}

TEST_F(RedisOverTls, AServerIsTrustedByItsCertificate) {
  const Certificates certificates;
  const int port = test::free_port();
  const test::Server server(port, certificates.options("right", port), port);
  const std::string ca = certificates.file("ca", ".crt");
  const std::string other = certificates.file("other", ".crt");
  expect_ready(port, {.enabled = true, .ca_file = ca});
  expect_trouble(port, {.enabled = true, .ca_file = other}, "certificate of the server is refused");
  expect_trouble(port, {.enabled = true, .ca_file = ca, .server_name = "elsewhere.example"},
                 "ostname mismatch");
  // Without TLS the server hangs up, or says nothing that we know.
  expect_trouble(port, {}, "127.0.0.1");
}

TEST_F(RedisOverTls, AnExpiredCertificateIsRefused) {
  const Certificates certificates;
  const int port = test::free_port();
  const test::Server server(port, certificates.options("expired", port), port);
  const std::string ca = certificates.file("ca", ".crt");
  expect_trouble(port, {.enabled = true, .ca_file = ca}, "has expired");
}

TEST_F(RedisOverTls, ACertificateOfAnotherNameIsRefusedUnlessItIsAskedFor) {
  const Certificates certificates;
  const int port = test::free_port();
  const test::Server server(port, certificates.options("elsewhere", port), port);
  const std::string ca = certificates.file("ca", ".crt");
  expect_trouble(port, {.enabled = true, .ca_file = ca}, "IP address mismatch");
  expect_ready(port, {.enabled = true, .ca_file = ca, .server_name = "elsewhere.example"});
}

TEST_F(RedisOverTls, AServerThatAsksForOurCertificateGetsIt) {
  const Certificates certificates;
  const int port = test::free_port();
  const test::Server server(port, certificates.options("right", port, "yes"), port);
  const std::string ca = certificates.file("ca", ".crt");
  expect_trouble(port, {.enabled = true, .ca_file = ca}, "127.0.0.1");
  const std::string cert = certificates.file("right", ".crt");
  const std::string key = certificates.file("right", ".key");
  expect_ready(port, {.enabled = true, .ca_file = ca, .cert_file = cert, .key_file = key});
}

TEST_F(RedisOverTls, LargeRecordsComeBackOverTls) {
  const Certificates certificates;
  const int port = test::free_port();
  const test::Server server(port, certificates.options("right", port), port);
  const std::string ca = certificates.file("ca", ".crt");
  const std::string address = "127.0.0.1:" + std::to_string(port);
  auto tier = RedisTier::create({.servers = address, .tls = {.enabled = true, .ca_file = ca}});
  ASSERT_TRUE((*tier)->wait_until_ready(now_us(), 2'000'000).ok());
  std::vector<std::byte> bytes(3'000'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 >> 3);
  std::vector<std::byte> back(bytes.size());
  const TierItem store{.data = bytes.data(), .bytes = 3'000'000, .tag = 1};
  const TierItem load{.data = back.data(), .bytes = 3'000'000, .tag = 2};
  for (const auto& [op, item] : {std::pair{TierOp::kStore, store}, {TierOp::kLoad, load}}) {
    ASSERT_EQ((*tier)->submit(op, std::span(&item, 1), {now_us() + 5'000'000}), 1u);
    std::array<TierDone, 1> done;
    while ((*tier)->poll(now_us(), done) == 0) {
    }
    ASSERT_EQ(done[0].result, TierResult::kOk);
  }
  EXPECT_EQ(bytes, back);
}

// A server of TLS 1.2 that answers the first PING and then asks for another handshake.
class Renegotiator {
 public:
  explicit Renegotiator(const Certificates& certificates) {
    SSL_CTX_set_max_proto_version(context_, TLS1_2_VERSION);
    SSL_CTX_use_certificate_chain_file(context_, certificates.file("right", ".crt").c_str());
    SSL_CTX_use_PrivateKey_file(context_, certificates.file("right", ".key").c_str(),
                                SSL_FILETYPE_PEM);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(listener_, 4), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve_one(); });
  }
  ~Renegotiator() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    SSL_CTX_free(context_);
  }
  Renegotiator(const Renegotiator&) = delete;
  Renegotiator& operator=(const Renegotiator&) = delete;
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] bool asked() const { return asked_; }
  [[nodiscard]] bool done() const { return done_; }
  [[nodiscard]] int handshakes() const { return handshakes_; }

 private:
  void serve_one() {
    const int fd = ::accept(listener_, nullptr, nullptr);
    if (fd < 0) return;
    const timeval most{.tv_sec = 0, .tv_usec = 200'000};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    SSL* ssl = SSL_new(context_);
    SSL_set_fd(ssl, fd);
    std::array<char, 256> in{};
    if (SSL_accept(ssl) == 1 && SSL_read(ssl, in.data(), in.size()) > 0) {
      SSL_write(ssl, "+PONG\r\n", 7);
      asked_ = SSL_renegotiate(ssl) == 1;
      SSL_do_handshake(ssl);  // asks
      for (int i = 0; i < 4; ++i) SSL_read(ssl, in.data(), in.size());
      handshakes_ = static_cast<int>(SSL_CTX_sess_accept_good(context_));
      done_ = true;
    }
    SSL_free(ssl);
    ::close(fd);
  }

  SSL_CTX* context_ = SSL_CTX_new(TLS_server_method());
  int listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port_ = 0;
  std::atomic<bool> asked_ = false, done_ = false;
  std::atomic<int> handshakes_ = 0;
  std::thread thread_;
};

TEST(RedisTls, AServerThatAsksForAnotherHandshakeGetsNone) {
  if (!test::redis_program("openssl")) GTEST_SKIP() << "no openssl";
  const Certificates certificates;
  Renegotiator server(certificates);
  auto tier =
      RedisTier::create({.servers = "127.0.0.1:" + std::to_string(server.port()),
                         .tls = {.enabled = true, .ca_file = certificates.file("ca", ".crt")}});
  ASSERT_TRUE(tier);
  const std::uint64_t end = now_us() + 5'000'000;
  while (!server.done() && now_us() < end) (*tier)->poll(now_us(), {});
  ASSERT_TRUE(server.done() && server.asked());
  EXPECT_EQ(server.handshakes(), 1);
  tier->reset();
}

}  // namespace
}  // namespace kvfolio
