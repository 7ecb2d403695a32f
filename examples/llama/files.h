// SPDX-License-Identifier: Apache-2.0
#pragma once

// InputFile: a regular file that may be hostile, truncated or growing. Errors say the path, what
// was tried and what the system answered.

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvfolio/status.h"

namespace kvfolio::llama {

class InputFile {
 public:
  // Refuses what is not a regular file: a pipe would wait for ever, a device may never end.
  static Result<InputFile> open(const std::string& path);

  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }
  // Fills [out, out + bytes) from `offset`; an error when the file ends before.
  Status read(std::int64_t offset, void* out, std::size_t bytes) const;
  // Up to its end, also where the system says 0 bytes and has some (/proc).
  [[nodiscard]] Result<std::string> read_all(std::int64_t max_bytes) const;

 private:
  InputFile(std::string path, int descriptor, std::int64_t bytes)
      : path_(std::move(path)), descriptor_(descriptor), bytes_(bytes) {}

  std::string path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
};

// The whole file, at most `max_bytes`.
Result<std::string> read_text_file(const std::string& path, std::int64_t max_bytes);
[[nodiscard]] bool file_exists(const std::string& path);

}  // namespace kvfolio::llama
