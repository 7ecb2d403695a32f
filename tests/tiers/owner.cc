// SPDX-License-Identifier: Apache-2.0
#include "tiers/owner.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <mutex>

namespace {

thread_local int owners = 0;
std::atomic<std::uint64_t> calls = 0;
std::mutex mutex;
std::string first;

void look(const char* name, bool may_wait) {
  if (owners == 0) return;
  ++calls;
  if (!may_wait) return;
  const std::lock_guard lock(mutex);
  if (first.empty()) first = name;
}

bool blocks(int fd) { return (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0; }

template <typename Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int epoll_wait(int fd, epoll_event* events, int count, int timeout) {
  look("epoll_wait", timeout != 0);
  return real<decltype(epoll_wait)>("epoll_wait")(fd, events, count, timeout);
}
int connect(int fd, const sockaddr* address, socklen_t bytes) {
  look("connect", blocks(fd));
  return real<decltype(connect)>("connect")(fd, address, bytes);
}
ssize_t recv(int fd, void* to, size_t bytes, int flags) {
  look("recv", blocks(fd));
  return real<decltype(recv)>("recv")(fd, to, bytes, flags);
}
ssize_t send(int fd, const void* from, size_t bytes, int flags) {
  look("send", blocks(fd));
  return real<decltype(send)>("send")(fd, from, bytes, flags);
}
ssize_t read(int fd, void* to, size_t bytes) {
  look("read", blocks(fd));
  return real<decltype(read)>("read")(fd, to, bytes);
}
ssize_t write(int fd, const void* from, size_t bytes) {
  look("write", blocks(fd));
  return real<decltype(write)>("write")(fd, from, bytes);
}
int poll(pollfd* fds, nfds_t count, int timeout) {
  look("poll", timeout != 0);
  return real<decltype(poll)>("poll")(fds, count, timeout);
}
int nanosleep(const timespec* wanted, timespec* left) {
  look("nanosleep", true);
  return real<decltype(nanosleep)>("nanosleep")(wanted, left);
}
int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** list) {
  look("getaddrinfo", hints == nullptr || (hints->ai_flags & AI_NUMERICHOST) == 0);
  return real<decltype(getaddrinfo)>("getaddrinfo")(host, service, hints, list);
}

}  // extern "C"

namespace kvfolio::test {

OwnerCalls::OwnerCalls() { ++owners; }
OwnerCalls::~OwnerCalls() { --owners; }

std::string OwnerCalls::first_that_may_wait() {
  const std::lock_guard lock(mutex);
  return first;
}
std::uint64_t OwnerCalls::seen() { return calls; }

}  // namespace kvfolio::test
