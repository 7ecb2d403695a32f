// SPDX-License-Identifier: Apache-2.0
#pragma once

// Real Redis servers for tests: processes of our own on loopback, on free ports, ended by their
// process ids. They come from the path, or from build/redis, where scripts/redis-here unpacks
// Debian's packages without starting a service.

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvfolio::test {

// A folder that is removed with everything in it.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The program, or nothing: then tests with servers are skipped.
std::optional<std::string> redis_program(const std::string& name);

// A port that no server listens on; for a node of a cluster, port + 10000 neither.
int free_port();

class Server {
 public:
  // Starts it and waits until it answers PING. `more` is added to the command line.
  Server(int port, const std::vector<std::string>& more = {}, int tls_port = 0);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  [[nodiscard]] pid_t pid() const { return pid_; }
  void signal(int number) const;
  // SIGKILL, and waits for its end.
  void kill();
  // After kill(): the same command again; its data are gone.
  void start();
  // redis-cli with these words; what it prints.
  std::string ask(const std::vector<std::string>& words) const;
  // What it has acknowledged by now is on its replica. (WAIT knows the writes of its own
  // connection.)
  void wait_for_replica() const;

 private:
  int port_;
  std::vector<std::string> command_;
  Folder folder_;
  pid_t pid_ = -1;
};

// Six nodes: three primaries and their replicas. Ready when made.
class Cluster {
 public:
  explicit Cluster(const std::vector<std::string>& more = {});
  [[nodiscard]] std::vector<std::unique_ptr<Server>>& nodes() { return nodes_; }
  [[nodiscard]] std::string addresses() const;
  // The node that has this slot.
  [[nodiscard]] Server& primary_of(int slot);

 private:
  std::vector<std::unique_ptr<Server>> nodes_;
};

// Runs a program to its end and returns what it prints; throws if it fails.
std::string run(const std::vector<std::string>& command);

}  // namespace kvfolio::test
