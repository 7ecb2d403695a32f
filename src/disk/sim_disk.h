// SPDX-License-Identifier: Apache-2.0
#pragma once

// SimDisk: a disk in memory that can fail in every way a disk does. For tests.
//
// It knows what was written and not synced: crash() keeps any part of that, in pieces of 4 KiB, in
// any order, as a loss of power does. Files that were opened with O_DIRECT refuse what a disk would
// refuse. Each call can be made to fail, to do less, or to reach another place (on_call).
// Thread safety: all calls; on_call runs under the lock.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "disk/calls.h"
#include "disk/format.h"

namespace kvfolio::disk {

class SimDisk final : public DiskCalls {
 public:
  struct Call {
    const char* name;  // that of the member function
    std::string path;
    std::int64_t offset = 0, bytes = 0;
  };
  struct Fault {
    std::int64_t error = 0;     // < 0: nothing is done, and this is the answer
    std::int64_t at_most = -1;  // >= 0: transfers fewer bytes
    std::int64_t shift = 0;     // reaches a place that many bytes away, and says nothing
    bool lie = false;           // does nothing, and says that it did
  };
  std::function<Fault(const Call&)> on_call;
  bool refuses_direct_open = false, refuses_direct_transfer = false;
  bool cannot_allocate = false, cannot_punch = false;
  std::int64_t capacity = std::int64_t{1} << 40;  // of all files together
  std::size_t descriptors_max = ~std::size_t{0};  // of the process
  std::size_t descriptors_most = 0;               // that were open at a time
  std::map<std::string, int> calls_made;
  std::uint32_t directory_user = ::geteuid(), directory_mode = 0700;

  struct File {
    std::vector<std::byte> data, durable;
    struct Piece {
      std::size_t offset;
      std::vector<std::byte> bytes;
    };
    std::vector<Piece> unsynced;
    bool name_is_durable = false;
  };
  std::map<std::string, std::shared_ptr<File>> files;

  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& [path, file] : files) sum += static_cast<std::int64_t>(file->data.size());
    return sum;
  }

  // Power is lost. `keeps` says which of the unsynced pieces reached the medium, and which files
  // whose names were not synced did (an index of -1).
  void crash(const std::function<bool(const std::string& path, std::int64_t index)>& keeps) {
    for (auto at = files.begin(); at != files.end();) {
      File& file = *at->second;
      if (!file.name_is_durable && !keeps(at->first, -1)) {
        at = files.erase(at);
        continue;
      }
      file.durable.resize(file.data.size());
      for (std::size_t i = 0; i < file.unsynced.size(); ++i) {
        const File::Piece& piece = file.unsynced[i];
        if (!keeps(at->first, static_cast<std::int64_t>(i))) continue;
        const std::size_t end = std::min(piece.offset + piece.bytes.size(), file.durable.size());
        if (piece.offset >= end) continue;
        std::memcpy(file.durable.data() + piece.offset, piece.bytes.data(), end - piece.offset);
      }
      file.unsynced.clear();
      file.data = file.durable;
      file.name_is_durable = true;
      ++at;
    }
    close_all();
  }
  // The process dies: what the system has stays.
  void kill() { close_all(); }
  [[nodiscard]] std::size_t open_files() const { return open_.size() + open_directories_.size(); }

  int make_directory(const std::string& path) noexcept override {
    const std::lock_guard lock(mutex_);
    if (const Fault fault = ask("make_directory", path, 0, 0); fault.error < 0) {
      return int(fault.error);
    }
    return directories_.insert(path).second ? 0 : -EEXIST;
  }
  int open_directory(const std::string& path) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto has_file = [&](const auto& one) { return one.first.starts_with(path + "/"); };
    if (directories_.count(path) == 0 && std::none_of(files.begin(), files.end(), has_file)) {
      return files.count(path) > 0 ? -ENOTDIR : -ENOENT;
    }
    open_directories_[++last_file_] = path;
    return last_file_;
  }
  int open(int directory, const std::string& name, int flags) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::string path = path_of(directory, name);
    if (const Fault fault = ask("open", path, 0, 0); fault.error < 0) return int(fault.error);
    if ((flags & O_DIRECT) != 0 && refuses_direct_open) return -EINVAL;
    auto found = files.find(path);
    if (found != files.end() && (flags & O_EXCL) != 0) return -EEXIST;
    if (open_files() >= descriptors_max) return -EMFILE;
    if (found == files.end()) {
      if ((flags & O_CREAT) == 0) return -ENOENT;
      found = files.emplace(path, std::make_shared<File>()).first;
    }
    if ((flags & O_TRUNC) != 0) found->second->data.clear();
    descriptors_most = std::max(descriptors_most, open_files() + 1);
    open_[++last_file_] = {path, found->second, (flags & O_DIRECT) != 0};
    return last_file_;
  }
  int close(int file) noexcept override {
    const std::lock_guard lock(mutex_);
    if (const auto directory = open_directories_.find(file); directory != open_directories_.end()) {
      std::erase_if(locked_directories_, [&](const auto& one) { return one.second == file; });
      open_directories_.erase(directory);
      return 0;
    }
    const auto found = open_.find(file);
    if (found == open_.end()) return -EBADF;
    std::erase_if(locked_, [&](const auto& one) { return one.second == file; });
    open_.erase(found);
    return 0;
  }
  std::int64_t readv(int file, const iovec* parts, int count,
                     std::int64_t offset) noexcept override {
    const std::lock_guard lock(mutex_);
    return transfer("readv", file, parts, count, offset);
  }
  std::int64_t writev(int file, const iovec* parts, int count,
                      std::int64_t offset) noexcept override {
    const std::lock_guard lock(mutex_);
    return transfer("writev", file, parts, count, offset);
  }
  int sync(int file) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(file);
    if (found == open_.end()) return -EBADF;
    const Fault fault = ask("sync", found->second.path, 0, 0);
    if (fault.error < 0) return int(fault.error);
    if (fault.lie) return 0;
    found->second.file->durable = found->second.file->data;
    found->second.file->unsynced.clear();
    return 0;
  }
  int sync_directory(int directory) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::string prefix = path_of(directory, "");
    if (const Fault fault = ask("sync_directory", prefix, 0, 0); fault.error < 0) {
      return int(fault.error);
    }
    for (auto& [name, file] : files) file->name_is_durable |= name.starts_with(prefix);
    return 0;
  }
  int allocate(int file, std::int64_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(file);
    if (found == open_.end()) return -EBADF;
    if (const Fault fault = ask("allocate", found->second.path, 0, bytes); fault.error < 0) {
      return int(fault.error);
    }
    if (cannot_allocate) return -EOPNOTSUPP;
    File& to = *found->second.file;
    if (this->bytes() - std::int64_t(to.data.size()) + bytes > capacity) return -ENOSPC;
    to.data.resize(std::max(to.data.size(), std::size_t(bytes)));
    return 0;
  }
  int punch_hole(int file, std::int64_t offset, std::int64_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(file);
    if (found == open_.end()) return -EBADF;
    if (const Fault fault = ask("punch_hole", found->second.path, offset, bytes); fault.error < 0) {
      return int(fault.error);
    }
    if (cannot_punch) return -EOPNOTSUPP;
    const std::vector<std::byte> zeros(static_cast<std::size_t>(bytes));
    const iovec part{const_cast<std::byte*>(zeros.data()), zeros.size()};
    write(*found->second.file, &part, 1, offset, bytes);
    return 0;
  }
  int truncate(int file, std::int64_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(file);
    if (found == open_.end()) return -EBADF;
    if (const Fault fault = ask("truncate", found->second.path, 0, bytes); fault.error < 0) {
      return int(fault.error);
    }
    found->second.file->data.resize(std::size_t(bytes));
    return 0;
  }
  std::int64_t size(int file) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(file);
    return found == open_.end() ? -EBADF : std::int64_t(found->second.file->data.size());
  }
  int unlink(int directory, const std::string& name) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::string path = path_of(directory, name);
    if (const Fault fault = ask("unlink", path, 0, 0); fault.error < 0) return int(fault.error);
    return files.erase(path) > 0 ? 0 : -ENOENT;
  }
  int rename(int directory, const std::string& from, const std::string& to) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::string path = path_of(directory, from);
    if (const Fault fault = ask("rename", path, 0, 0); fault.error < 0) return int(fault.error);
    const auto found = files.find(path);
    if (found == files.end()) return -ENOENT;
    if (!files.emplace(path_of(directory, to), found->second).second) return -EEXIST;
    files.erase(path);
    return 0;
  }
  int owner(int /*directory*/, std::uint32_t& user, std::uint32_t& mode) noexcept override {
    user = directory_user;
    mode = directory_mode;
    return 0;
  }
  int list(int directory, std::vector<std::string>& names) noexcept override {
    const std::lock_guard lock(mutex_);
    const std::string prefix = path_of(directory, "");
    for (const auto& [name, file] : files) {
      if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
    }
    return 0;
  }
  int lock(int file) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto directory = open_directories_.find(file);
    if (directory != open_directories_.end()) {
      return locked_directories_.emplace(directory->second, file).second ? 0 : -EWOULDBLOCK;
    }
    const auto found = open_.find(file);
    if (found == open_.end()) return -EBADF;
    return locked_.emplace(found->second.file.get(), file).second ? 0 : -EWOULDBLOCK;
  }
  int make_buffered(int file) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = open_.find(file);
    if (found == open_.end()) return -EBADF;
    found->second.direct = false;
    return 0;
  }
  int drop_cached(int /*file*/, std::int64_t /*offset*/, std::int64_t /*bytes*/) noexcept override {
    return 0;
  }

 private:
  void close_all() {
    open_.clear();
    open_directories_.clear();
    locked_.clear();
    locked_directories_.clear();
  }
  std::string path_of(int directory, const std::string& name) {
    return open_directories_[directory] + "/" + name;
  }
  struct Open {
    std::string path;
    std::shared_ptr<File> file;
    bool direct = false;
  };

  Fault ask(const char* name, const std::string& path, std::int64_t offset, std::int64_t bytes) {
    ++calls_made[name];
    return on_call ? on_call({name, path, offset, bytes}) : Fault{};
  }

  std::int64_t transfer(const char* name, int number, const iovec* parts, int count,
                        std::int64_t offset) {
    const auto found = open_.find(number);
    if (found == open_.end()) return -EBADF;
    Open& open = found->second;
    std::int64_t bytes = 0;
    bool aligned = offset % kPiece == 0;
    for (int i = 0; i < count; ++i) {
      bytes += std::int64_t(parts[i].iov_len);
      aligned &= parts[i].iov_len % kPiece == 0 &&
                 reinterpret_cast<std::uintptr_t>(parts[i].iov_base) % kPiece == 0;
    }
    const Fault fault = ask(name, open.path, offset, bytes);
    if (fault.error < 0) return fault.error;
    if (open.direct && (!aligned || refuses_direct_transfer)) return -EINVAL;
    const std::int64_t todo = fault.at_most >= 0 ? std::min(fault.at_most, bytes) : bytes;
    if (fault.lie) return todo;
    const bool writes = std::strcmp(name, "writev") == 0;
    return writes ? write(*open.file, parts, count, offset + fault.shift, todo)
                  : read(*open.file, parts, count, offset + fault.shift, todo);
  }
  static std::int64_t read(const File& file, const iovec* parts, int count, std::int64_t offset,
                           std::int64_t todo) {
    std::int64_t done = 0;
    for (int i = 0; i < count && done < todo; ++i) {
      const std::int64_t there = std::max<std::int64_t>(std::int64_t(file.data.size()) - offset, 0);
      const std::int64_t n = std::min({std::int64_t(parts[i].iov_len), todo - done, there});
      if (n > 0) std::memcpy(parts[i].iov_base, file.data.data() + offset, std::size_t(n));
      offset += n;
      done += n;
    }
    return done;
  }
  std::int64_t write(File& file, const iovec* parts, int count, std::int64_t offset,
                     std::int64_t todo) {
    std::vector<std::byte> all;
    for (int i = 0; i < count; ++i) {
      const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      all.insert(all.end(), from, from + parts[i].iov_len);
    }
    all.resize(std::size_t(todo));
    const std::size_t end = std::size_t(offset) + all.size();
    if (end > file.data.size()) {
      if (bytes() + std::int64_t(end - file.data.size()) > capacity) return -ENOSPC;
      file.data.resize(end);
    }
    std::copy(all.begin(), all.end(), file.data.begin() + offset);
    for (std::size_t at = 0; at < all.size(); at += kPiece) {
      const std::size_t n = std::min(std::size_t{kPiece}, all.size() - at);
      const auto from = all.begin() + std::ptrdiff_t(at);
      file.unsynced.push_back({std::size_t(offset) + at, {from, from + std::ptrdiff_t(n)}});
    }
    return todo;
  }

  std::mutex mutex_;
  std::map<int, Open> open_;
  std::map<int, std::string> open_directories_;  // path
  // By whom: who was refused a lock does not give it up.
  std::map<const File*, int> locked_;
  std::map<std::string, int> locked_directories_;
  std::set<std::string> directories_;
  int last_file_ = 100;
};

}  // namespace kvfolio::disk
