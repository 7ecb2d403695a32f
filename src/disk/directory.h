// SPDX-License-Identifier: Apache-2.0
#pragma once

// The directory of a disk tier:
//
//   lock               locked by the one process that uses the directory; holds its number
//   manifest           "kvfolio disk tier", "version 2": what else is here, for people and for us
//   segment-<number>   16 hexadecimal digits; see format.h
//   .kvfolio-<number>  the same, at random: what is not finished; goes when the directory is opened
//
// It is opened once, and locked itself too. So a process whose directory is deleted, and one whose
// files are, never write beside the process that comes after them.
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
// A name that no file has.
[[nodiscard]] std::string temporary_name();

class Directory {
 public:
  enum class Use : std::uint8_t {
    kServe,  // makes what is missing
    kCheck,  // makes nothing and writes nothing
    kMend,   // makes nothing; segments are written
  };
  // Looks at what is there, and changes nothing before it is known to be a directory that is empty,
  // or ours, and locked. Errors: see DiskTier::open().
  static Result<Directory> open(DiskCalls& calls, const std::string& path, Use use);
  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&&) = delete;
  ~Directory();

  [[nodiscard]] int file() const noexcept { return file_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::string path_of(std::string_view name) const;  // for people
  // Ascending.
  Result<std::vector<std::uint64_t>> segments() const;
  // Names of what is not the tier's, ascending.
  Result<std::vector<std::string>> others() const;
  // What the last process did not finish.
  void remove_temporaries() const noexcept;

 private:
  Directory(DiskCalls& calls, std::string path) : calls_(calls), path_(std::move(path)) {}
  Status open_or_make(Use use);
  Status check_user();
  Status check_others(bool is_empty);
  Status lock_directory();
  Status lock_file(bool is_there, Use use);
  Status check_manifest(const std::vector<std::string>& names, Use use, bool& is_new);
  Status check_without_manifest(const std::vector<std::string>& names, Use use);
  Status write_manifest();
  [[nodiscard]] bool is_lock_of_ours() const;
  // kNothing: it is empty or begins with zeros, as one does whose header was never written.
  enum class Beginning : std::uint8_t { kOurs, kNothing, kOther };
  [[nodiscard]] Beginning beginning_of(const std::string& segment) const;
  [[nodiscard]] Status in_use() const;
  [[nodiscard]] Status not_ours(std::string_view name, std::string_view what) const;
  [[nodiscard]] Status refused(const char* what, std::string_view name, std::int64_t result) const;
  // Opens a small file, and reads it. What is no file is said.
  Result<int> open_text(const std::string& name, int flags, std::string& text) const;

  DiskCalls& calls_;
  std::string path_;
  int file_ = -1;
  int lock_ = -1;
};

}  // namespace kvfolio::disk
