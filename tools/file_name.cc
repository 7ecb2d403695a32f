// SPDX-License-Identifier: Apache-2.0
#include "file_name.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <utility>

namespace kvfolio::tools {
namespace {

namespace fs = std::filesystem;

constexpr int kMostLinks = 40;  // as the system follows

std::optional<std::pair<dev_t, ino_t>> place_of(const struct stat& there) {
  return std::pair(there.st_dev, there.st_ino);
}

// A file with a content of its own, or a pipe: what two cannot write.
bool is_one_for_all(const struct stat& there) { return !S_ISCHR(there.st_mode); }

}  // namespace

std::string behind_links(const std::string& path) {
  fs::path at = path;
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const fs::path next = fs::read_symlink(at, error);
    if (error) break;  // no link
    // What /proc says of a descriptor may be no path, such as pipe:[7].
    if (!fs::exists(fs::symlink_status(at.parent_path() / next, error)) && fs::exists(at, error)) {
      break;
    }
    at = at.parent_path() / next;
  }
  return at.string();
}

fs::path folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

void FileNames::add(const std::string& option, const std::string& path, bool writes) {
  Name name{.option = option, .path = path, .writes = writes};
  const std::string target = behind_links(path);
  struct stat there {};
  if (::stat(target.c_str(), &there) == 0) {
    if (!is_one_for_all(there)) return;
    name.place = place_of(there);
  } else if (const fs::path last = fs::path(target).filename();
             ::stat(folder_of(target).c_str(), &there) == 0) {
    name.place = place_of(there);
    name.rest = last.string();
  }
  names_.push_back(std::move(name));
}

void FileNames::add_descriptor(const std::string& name, int file, bool writes) {
  struct stat there {};
  if (::fstat(file, &there) != 0 || !is_one_for_all(there)) return;
  names_.push_back({.option = name, .writes = writes, .place = place_of(there)});
}

void FileNames::keep_out(const std::string& option, const std::string& folder) {
  Name name{.option = option, .path = folder};
  struct stat there {};
  if (::stat(folder.c_str(), &there) == 0) name.place = place_of(there);
  folders_.push_back(std::move(name));
}

void FileNames::may_be_one(const std::string& reads, const std::string& writes) {
  pairs_.emplace_back(reads, writes);
}

Status FileNames::check() const {
  FileNames all = *this;
  all.add_descriptor("standard input", STDIN_FILENO, false);
  all.add_descriptor("standard output", STDOUT_FILENO, true);
  all.add_descriptor("standard error", STDERR_FILENO, true);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const Name& mine = names_[i];
    for (std::size_t j = i + 1; j < all.names_.size(); ++j) {
      const Name& other = all.names_[j];
      if (!mine.place || mine.place != other.place || mine.rest != other.rest) continue;
      if (!mine.writes && !other.writes) continue;
      const Name& reads = mine.writes ? other : mine;
      const Name& writes = mine.writes ? mine : other;
      if (std::find(pairs_.begin(), pairs_.end(), std::pair(reads.option, writes.option)) !=
          pairs_.end()) {
        continue;
      }
      return {ErrorCode::kInvalidArgument,
              mine.option + " " + mine.path + " and " + other.option +
                  (other.path.empty() ? "" : " " + other.path) +
                  " are one file, allowed: a file of its own for each"};
    }
    if (!mine.writes) continue;
    struct stat there {};
    if (::stat(folder_of(behind_links(mine.path)).c_str(), &there) != 0) continue;
    for (const Name& folder : folders_) {
      if (folder.place != place_of(there)) continue;
      return {ErrorCode::kInvalidArgument, mine.option + " " + mine.path + " is in the folder of " +
                                               folder.option + " " + folder.path +
                                               ", allowed: a file that is not there"};
    }
  }
  return {};
}

}  // namespace kvfolio::tools
