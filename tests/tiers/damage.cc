// SPDX-License-Identifier: Apache-2.0
#include "tiers/damage.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>

#include "disk/recover.h"

namespace kvfolio::test {

namespace fs = std::filesystem;
using disk::kPiece;

std::vector<Damage::File> Damage::list() const {
  std::vector<File> files;
  const auto directory =
      disk::Directory::open(disk::system_calls(), directory_, disk::Directory::Use::kCheck);
  if (!directory) return files;  // killed before it was made
  const auto take = [&](disk::FoundSegment& found) {
    files.push_back({.name = disk::segment_name(found.name),
                     .epoch = found.epoch,
                     .sealed = found.sealed,
                     .bytes = found.bytes,
                     .used = found.used,
                     .entries = found.entries});
    return Status();
  };
  const Status status = disk::find_segments(disk::system_calls(), *directory, {.writes = false},
                                            take, [](std::string_view, std::string_view) {});
  EXPECT_TRUE(status.ok()) << status;
  return files;
}

void Damage::tell(const File& file, const std::string& what) {
  tell(file.name + (file.sealed ? ", sealed, " : ", not sealed, ") + std::to_string(file.bytes) +
       " bytes, " + std::to_string(file.entries.size()) + " records up to " +
       std::to_string(file.used) + ", epoch " + std::to_string(file.epoch) + ": " + what);
}

std::string Damage::any_name() { return disk::segment_name(random_() >> 2); }

void Damage::do_some(Said& said) {
  ++done_;
  std::vector<File> files = list();
  const auto kind = random_() % 16;
  if (kind < 2 || files.empty()) return add_foreign();
  const File& file = files[random_() % files.size()];
  const auto any_entry = [&]() -> const disk::FooterEntry& {
    return file.entries[random_() % file.entries.size()];
  };
  std::error_code ignored;
  switch (kind) {
    case 2:
    case 3:
    case 4: {  // a bit of a record
      if (file.entries.empty()) return;
      const disk::FooterEntry& entry = any_entry();
      const std::int64_t size = disk::record_bytes(entry.data_bytes);
      const auto at = entry.offset + std::int64_t(random_() % std::uint64_t(size));
      return hit(said, file, at, at + 1, false);
    }
    case 5: {  // what is in the header of a record
      if (file.entries.empty()) return;
      const std::int64_t at = any_entry().offset + std::int64_t(random_() % 192);
      return hit(said, file, at, at + 1, false);
    }
    case 6:
      if (!file.sealed || file.bytes <= file.used) return;
      {
        const auto at = file.used + std::int64_t(random_() % std::uint64_t(file.bytes - file.used));
        return hit(said, file, at, at + 1, false);
      }
    case 7: {  // the header of the segment
      const auto at = std::int64_t(random_() % 64);
      return hit(said, file, at, at + 1, false);
    }
    case 8: {  // a write that went astray
      if (file.bytes < 4 * kPiece) return;
      const auto at = kPiece + std::int64_t(random_() % std::uint64_t(file.bytes - 2 * kPiece));
      return hit(said, file, at, at + kPiece, true);
    }
    case 9:
    case 10:
      return cut(said, file);
    case 11:
    case 12: {
      const std::string name = any_name();
      tell(file, "named " + name);
      fs::rename(path(file.name), path(name), ignored);
      return;
    }
    case 13: {
      const std::string name = any_name();
      tell(file, "copied to " + name);
      fs::copy_file(path(file.name), path(name), ignored);
      return;
    }
    case 14:
      tell(file, "removed");
      for (const disk::FooterEntry& entry : file.entries) excuse(said, entry);
      fs::remove(path(file.name), ignored);
      return;
    default: {
      if (random_() % 2 == 0 || is_refused_) return;
      fs::rename(path("manifest"), directory_ + ".manifest", ignored);
      tell("manifest damaged");
      std::ofstream(path("manifest")) << "kvfolio disk tier\nversion no number\n";
      is_refused_ = true;
    }
  }
}

void Damage::mend_manifest() {
  if (has_foreign_) {
    fs::rename(directory_ + ".manifest", path("manifest"));
  } else {
    fs::remove(path("manifest"));
  }
  is_refused_ = false;
}

// One record is lost for a hit in it, and none for one in the header or the footer of the segment.
void Damage::hit(Said& said, const File& file, std::int64_t begin, std::int64_t end, bool zeros) {
  tell(file, "hit from " + std::to_string(begin) + " to " + std::to_string(end));
  History& history = histories_[file.epoch];
  history.first_bad_header = std::min(history.first_bad_header, first_hole(file));
  for (const disk::FooterEntry& entry : file.entries) {
    const std::int64_t entry_end = entry.offset + disk::record_bytes(entry.data_bytes);
    if (end <= entry.offset || begin >= entry_end) continue;
    excuse(said, entry);
    if (begin < entry.offset + kPiece) {
      history.first_bad_header = std::min(history.first_bad_header, entry.offset);
    }
  }
  history.has_no_footer = history.has_no_footer || !file.sealed || end > file.used;
  excuse_behind(said, file);
  const int fd = ::open(path(file.name).c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  for (std::int64_t at = begin; at < std::min(end, file.bytes); ++at) {
    unsigned char byte = 0;
    EXPECT_EQ(::pread(fd, &byte, 1, at), 1);
    byte = static_cast<unsigned char>(zeros ? 0u : byte ^ (1u << random_() % 8));
    EXPECT_EQ(::pwrite(fd, &byte, 1, at), 1);
  }
  ::close(fd);
}

void Damage::cut(Said& said, const File& file) {
  const auto to = std::int64_t(random_() % std::uint64_t(file.bytes + 1));
  tell(file, "cut to " + std::to_string(to));
  History& history = histories_[file.epoch];
  history.first_bad_header = std::min(history.first_bad_header, first_hole(file));
  history.has_no_footer = true;
  for (const disk::FooterEntry& entry : file.entries) {
    if (entry.offset + disk::record_bytes(entry.data_bytes) > to) excuse(said, entry);
  }
  excuse_behind(said, file);
  std::error_code ignored;
  fs::resize_file(path(file.name), std::uintmax_t(to), ignored);
}

// Where the headers end that stand one behind the other: a record whose write failed left nothing,
// and only the footer knows what lies behind it.
std::int64_t Damage::first_hole(const File& file) const {
  const int fd = ::open(path(file.name).c_str(), O_RDONLY | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  std::vector<std::byte> piece(static_cast<std::size_t>(kPiece));
  std::int64_t at = kPiece;
  while (at < file.used) {
    const auto entry = std::find_if(file.entries.begin(), file.entries.end(),
                                    [at](const auto& one) { return one.offset == at; });
    disk::RecordHeader header;  // of one that was erased, or that ended late
    if (entry != file.entries.end()) {
      header.data_bytes = entry->data_bytes;
    } else if (::pread(fd, piece.data(), piece.size(), at) != kPiece ||
               decode(piece, header) != disk::FormatFault::kNone || header.epoch != file.epoch) {
      break;
    }
    at += disk::record_bytes(header.data_bytes);
  }
  ::close(fd);
  return at;
}

void Damage::excuse(Said& said, const disk::FooterEntry& entry) {
  const std::uint32_t known = said.num_records;
  for (std::uint32_t i = 0; i < known; ++i) {
    if (said.records[i].key == entry.key) said.records[i].damaged = true;
  }
}

void Damage::excuse_behind(Said& said, const File& file) {
  const History& history = histories_[file.epoch];
  if (!history.has_no_footer) return;
  for (const disk::FooterEntry& entry : file.entries) {
    if (entry.offset >= history.first_bad_header) excuse(said, entry);
  }
}

// Files of others, also under names of ours, and what a process left that did not finish.
void Damage::add_foreign() {
  std::error_code ignored;
  const char* const names[] = {"segment-ffffffffffffffff", "segment-zz", "README",
                               ".kvfolio-0123456789abcdef"};
  const std::string name = random_() % 2 == 0 ? any_name() : names[random_() % std::size(names)];
  if (!fs::exists(directory_, ignored) || fs::exists(path(name), ignored)) return;
  tell("a file of others: " + name);
  has_foreign_ = true;
  switch (random_() % 4) {
    case 0:
      fs::create_symlink("/dev/null", path(name), ignored);
      return;
    case 1:
      fs::create_directory(path(name), ignored);
      return;
    case 2:
      static_cast<void>(::mkfifo(path(name).c_str(), 0600));
      return;
    default:
      std::ofstream(path(name)) << std::string(random_() % 20'000, 'x');
  }
}

}  // namespace kvfolio::test
