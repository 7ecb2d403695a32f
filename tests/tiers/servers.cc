// SPDX-License-Identifier: Apache-2.0
#include "tiers/servers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

namespace kvfolio::test {

namespace {

constexpr std::chrono::seconds kPatience{30};

void wait_for(const std::string& what, const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited for " + what);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

std::vector<char*> arguments(const std::vector<std::string>& command) {
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  return words;
}

bool can_listen(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return free;
}

}  // namespace

Folder::Folder() {
  std::string name = std::filesystem::temp_directory_path() / "kvfolio-redis-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp: " + name);
  path_ = name;
}
Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::optional<std::string> redis_program(const std::string& name) {
  std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  path += ":" KVFOLIO_REDIS_HERE "/bin";
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const std::string file = path.substr(begin, end - begin) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return std::nullopt;
}

int free_port() {
  // Below the ports that the kernel hands out; runs beside each other begin at different ones.
  static int next = 12000 + static_cast<int>(getpid() * 37 % 9000);
  for (int tries = 0; tries < 10000; ++tries) {
    if (++next >= 22000) next = 12000;
    if (can_listen(next) && can_listen(next + 10000)) return next;
  }
  throw std::runtime_error("no free port");
}

std::string run(const std::vector<std::string>& command) {
  std::array<int, 2> pipe_fds{};
  if (pipe2(pipe_fds.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  std::vector<char*> words = arguments(command);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(pipe_fds[1], 1);
    dup2(pipe_fds[1], 2);
    execv(words[0], words.data());
    _exit(127);
  }
  close(pipe_fds[1]);
  std::string output;
  std::array<char, 4096> piece{};
  for (ssize_t n = 0; (n = read(pipe_fds[0], piece.data(), piece.size())) > 0;) {
    output.append(piece.data(), static_cast<std::size_t>(n));
  }
  close(pipe_fds[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (status != 0) throw std::runtime_error(command[0] + " failed: " + output);
  return output;
}

// ---- one server ----

Server::Server(int port, const std::vector<std::string>& more, int tls_port) : port_(port) {
  command_ = {redis_program("redis-server").value(),
              "--port",
              std::to_string(tls_port == 0 ? port : 0),
              "--bind",
              "127.0.0.1",
              "--save",
              "",
              "--appendonly",
              "no",
              "--daemonize",
              "no",
              "--logfile",
              folder_.path() / "log",
              "--dir",
              folder_.path()};
  command_.insert(command_.end(), more.begin(), more.end());
  start();
}

Server::~Server() { kill(); }

void Server::start() {
  std::vector<char*> words = arguments(command_);
  pid_ = fork();
  if (pid_ == 0) {
    execv(words[0], words.data());
    _exit(127);
  }
  wait_for("the server at " + address(), [this] {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = -1;
      std::ifstream log(folder_.path() / "log");
      throw std::runtime_error("redis-server ended: " +
                               std::string(std::istreambuf_iterator<char>(log), {}));
    }
    return !can_listen(port_);
  });
}

void Server::signal(int number) const { ::kill(pid_, number); }

void Server::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string Server::ask(const std::vector<std::string>& words) const {
  std::vector<std::string> command{redis_program("redis-cli").value(), "-p", std::to_string(port_)};
  command.insert(command.end(), words.begin(), words.end());
  return run(command);
}

// ---- six of them ----

void Server::wait_for_replica() const {
  const auto number = [this](const std::string& name) -> long long {
    const std::string text = ask({"info", "replication"});
    const std::size_t found = text.find(name);
    return found == std::string::npos ? -1 : std::atoll(text.c_str() + found + name.size());
  };
  const long long written = number("master_repl_offset:");
  wait_for("the replica of " + address(), [&] { return number(",offset=") >= written; });
}

Cluster::Cluster(const std::vector<std::string>& more) {
  std::vector<std::string> create{redis_program("redis-cli").value(), "--cluster", "create"};
  for (int i = 0; i < 6; ++i) {
    std::vector<std::string> options{"--cluster-enabled",
                                     "yes",
                                     "--cluster-config-file",
                                     "nodes.conf",
                                     "--cluster-node-timeout",
                                     "2000",
                                     "--cluster-require-full-coverage",
                                     "no",
                                     "--maxmemory",
                                     "256mb",
                                     "--maxmemory-policy",
                                     "allkeys-lru",
                                     "--repl-diskless-sync-delay",
                                     "0"};
    options.insert(options.end(), more.begin(), more.end());
    nodes_.push_back(std::make_unique<Server>(free_port(), options));
    create.push_back(nodes_.back()->address());
  }
  create.insert(create.end(), {"--cluster-replicas", "1", "--cluster-yes"});
  run(create);
  wait_for("a cluster that is whole", [this] {
    for (const auto& node : nodes_) {
      if (node->ask({"cluster", "info"}).find("cluster_state:ok") == std::string::npos) {
        return false;
      }
      const std::string role = node->ask({"info", "replication"});
      if (role.find("role:slave") != std::string::npos &&
          role.find("master_link_status:up") == std::string::npos) {
        return false;
      }
    }
    return true;
  });
}

std::string Cluster::addresses() const {
  std::string list;
  for (const auto& node : nodes_) list += (list.empty() ? "" : ",") + node->address();
  return list;
}

Server& Cluster::primary_of(int slot) {
  // Lines of "id ip:port@bus flags master ... [first-last] ...".
  for (const auto& node : nodes_) {
    if (node->pid() <= 0) continue;
    const std::string own = node->ask({"cluster", "nodes"});
    const std::size_t line = own.rfind('\n', own.find("myself"));
    const std::size_t begin = line == std::string::npos ? 0 : line + 1;
    const std::string text = own.substr(begin, own.find('\n', begin) - begin);
    if (text.find("myself,master") == std::string::npos) continue;
    for (std::size_t at = text.rfind(" connected"); at != std::string::npos;) {
      at = text.find(' ', at + 1);
      if (at == std::string::npos) break;
      int first = 0;
      int last = 0;
      const int n = std::sscanf(text.c_str() + at + 1, "%d-%d", &first, &last);
      if (n == 1) last = first;
      if (n >= 1 && first <= slot && slot <= last) return *node;
    }
  }
  throw std::runtime_error("nobody has slot " + std::to_string(slot));
}

}  // namespace kvfolio::test
