// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which file a name of the command line means, and which two mean one: options of which one writes
// what the other reads or writes are refused before anything is done.

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::tools {

// The path behind the symbolic links of its last part, also where it leads to no file yet.
[[nodiscard]] std::string behind_links(const std::string& path);
// What stands in front of the last slash, or ".".
[[nodiscard]] std::filesystem::path folder_of(const std::string& path);

class FileNames {
 public:
  // What `option` writes or reads.
  void add(const std::string& option, const std::string& path, bool writes);
  // A folder of `option`, into which no other writes.
  void keep_out(const std::string& option, const std::string& folder);

  // These two may be one file: what `reads` does with it is over before `writes` replaces it.
  void may_be_one(const std::string& reads, const std::string& writes);

  // kInvalidArgument: two are one file, by whatever name, and one of them writes; or one is in a
  // folder that is another's. Standard input, output and error count too. A device (/dev/null, a
  // terminal) may be shared.
  [[nodiscard]] Status check() const;

 private:
  struct Name {
    std::string option;
    std::string path = {};
    bool writes = false;
    // The file's identity; or where there is none yet, its folder's, and its name there.
    std::optional<std::pair<dev_t, ino_t>> place = std::nullopt;
    std::string rest = {};
  };

  void add_descriptor(const std::string& name, int file, bool writes);

  std::vector<Name> names_;
  std::vector<Name> folders_;
  std::vector<std::pair<std::string, std::string>> pairs_;
};

}  // namespace kvfolio::tools
