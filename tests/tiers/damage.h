// SPDX-License-Identifier: Apache-2.0
#pragma once

// Damage to the directory of a disk tier between two processes that use it: flipped bits, files
// that are cut, removed, renamed or copied, files of others. It says which records docs/tiers.md
// allows to be lost for that, and no other may be. Thread safety: none.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "disk/format.h"
#include "tiers/said.h"

namespace kvfolio::test {

class Damage {
 public:
  Damage(std::string directory, std::uint64_t seed)
      : directory_(std::move(directory)), random_(seed) {}

  // Requires: no process uses the directory.
  void do_some(Said& said);
  // open() is to refuse the directory: its manifest is damaged. It says to remove that file, which
  // is written again, if there is nothing but segments; with files of others beside them it is put
  // back.
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  void mend_manifest();
  [[nodiscard]] std::uint64_t done() const { return done_; }
  // All of it, for people.
  [[nodiscard]] const std::string& story() const { return story_; }
  void tell(const std::string& what) { story_ += what + "\n"; }

 private:
  struct File {
    std::string name;
    std::uint64_t epoch = 0;
    bool sealed = false;
    std::int64_t bytes = 0, used = 0;
    std::vector<disk::FooterEntry> entries{};
  };
  // What was done to the files of this epoch: without its footer a segment is found up to the
  // first header that is not whole.
  struct History {
    std::int64_t first_bad_header = std::int64_t{1} << 62;
    bool has_no_footer = false;
  };

  [[nodiscard]] std::vector<File> list() const;
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }
  [[nodiscard]] std::string any_name();
  void hit(Said& said, const File& file, std::int64_t begin, std::int64_t end, bool zeros);
  void cut(Said& said, const File& file);
  [[nodiscard]] std::int64_t first_hole(const File& file) const;
  void excuse(Said& said, const disk::FooterEntry& entry);
  void excuse_behind(Said& said, const File& file);
  void add_foreign();
  void tell(const File& file, const std::string& what);

  std::string directory_;
  std::mt19937_64 random_;
  std::map<std::uint64_t, History> histories_;  // by epoch
  bool is_refused_ = false, has_foreign_ = false;
  std::uint64_t done_ = 0;
  std::string story_;
};

}  // namespace kvfolio::test
