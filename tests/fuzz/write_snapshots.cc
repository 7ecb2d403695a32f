// SPDX-License-Identifier: Apache-2.0
// Compares the seeds in corpus/snapshot, which real calls of save() gave, with what it gives now:
// files that users have are still what this library writes and reads. `--renew` writes them anew,
// which a change of the format needs, with a new number of its version.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "snapshot_seeds.h"

int main(int argc, char** argv) {
  using kvfolio::fuzz::Kind;
  if (argc < 2) return std::fprintf(stderr, "usage: write_snapshots FOLDER [--renew]\n"), 2;
  const bool renew = argc > 2 && std::strcmp(argv[2], "--renew") == 0;
  int different = 0;
  for (const auto& [name, kind] : {std::pair{"empty", Kind::kEmpty},
                                   {"prefix", Kind::kPrefix},
                                   {"tenants", Kind::kTenants},
                                   {"media", Kind::kMedia},
                                   {"sequences", Kind::kSequences},
                                   {"mixed", Kind::kMixed}}) {
    std::string now = "\x04";  // the input itself is the file
    for (const std::byte byte : kvfolio::fuzz::snapshot_of(kind)) now += static_cast<char>(byte);
    const std::string path = std::string(argv[1]) + "/" + name;
    if (renew) std::ofstream(path, std::ios::binary) << now;
    std::ifstream in(path, std::ios::binary);
    const std::string before{std::istreambuf_iterator<char>(in), {}};
    if (before == now) continue;
    std::fprintf(stderr, "%s: save() writes another file now\n", path.c_str());
    ++different;
  }
  std::printf("%d of 6 files differ\n", different);
  return different == 0 ? 0 : 1;
}
