// SPDX-License-Identifier: Apache-2.0
#pragma once

// The directory of a disk tier:
//
//   lock               locked by the one process that uses the directory; holds its number
//   manifest           "kvfolio disk tier", "version 1": what else is here, for people and for us
//   segment-<number>   16 hexadecimal digits; see format.h
//
// A manifest that is missing is written again, since every segment says its version too.
// Thread safety: none.

#include <optional>
#include <string>
#include <string_view>

#include "disk/calls.h"
#include "kvfolio/status.h"

namespace kvfolio::disk {

// What the lock and the manifest take at most, beside the segments.
inline constexpr std::int64_t kOtherBytes = 16 << 10;

[[nodiscard]] std::string segment_name(std::uint64_t number);
[[nodiscard]] std::optional<std::uint64_t> segment_number(std::string_view name);

class Directory {
 public:
  // Makes the directory (where `create` says so), locks it, and reads or writes its manifest.
  // Nothing is changed before the lock is held. Errors: see DiskTier::open().
  static Result<Directory> open(DiskCalls& calls, const std::string& path, bool create);
  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&&) = delete;
  ~Directory();

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::string_view name) const;
  // Ascending.
  Result<std::vector<std::uint64_t>> segments() const;

 private:
  Directory(DiskCalls& calls, std::string path) : calls_(calls), path_(std::move(path)) {}
  Status check_owner(bool create);
  Status lock(bool create);
  Status check_manifest(bool create);
  Status write_manifest();
  [[nodiscard]] std::string holder();
  [[nodiscard]] Status refused(const char* what, std::string_view name, std::int64_t result) const;

  DiskCalls& calls_;
  std::string path_;
  int lock_ = -1;
};

}  // namespace kvfolio::disk
