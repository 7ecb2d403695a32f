// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sha256 hashes bytes as they come, with OpenSSL's libcrypto. The command alone has it: the library
// needs no cryptography.
//
// Thread safety: none.

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kvfolio::tools {

class Sha256 {
 public:
  // Throws std::runtime_error when libcrypto refuses (it may be configured to).
  Sha256();

  void update(std::span<const std::byte> bytes);
  // 64 hexadecimal digits. Once, after the last update.
  [[nodiscard]] std::string hex();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;
};

}  // namespace kvfolio::tools
