// SPDX-License-Identifier: Apache-2.0
#pragma once

// SHA-256 of libcrypto, piece by piece. Thread safety: none.

#include <openssl/evp.h>

#include <cstddef>
#include <string_view>

#include "kvfolio/status.h"
#include "kvfolio/tier.h"

namespace kvfolio {

// One context, made once: a digest then costs no heap and no search for the algorithm.
class Sha256 {
 public:
  Sha256() = default;
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256() {
    EVP_MD_CTX_free(context_);
    EVP_MD_free(digest_);
  }
  // False: libcrypto has no SHA-256, or there is no memory. Required before all else.
  [[nodiscard]] bool create() {
    digest_ = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    context_ = EVP_MD_CTX_new();
    return digest_ != nullptr && context_ != nullptr &&
           EVP_DigestInit_ex2(context_, digest_, nullptr) == 1;
  }
  // A digest that fails stops the program: to go on would be to serve bytes under a wrong name.
  Sha256& begin() noexcept {
    KVFOLIO_CHECK(EVP_DigestInit_ex2(context_, nullptr, nullptr) == 1);
    return *this;
  }
  Sha256& add(const void* data, std::size_t size) noexcept {
    KVFOLIO_CHECK(EVP_DigestUpdate(context_, data, size) == 1);
    return *this;
  }
  Sha256& add(std::string_view text) noexcept { return add(text.data(), text.size()); }
  Sha256& add(const Digest& digest) noexcept { return add(digest.data(), digest.size()); }
  Digest end() noexcept {
    Digest digest;
    unsigned int size = 0;
    KVFOLIO_CHECK(
        EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(digest.data()), &size) == 1 &&
        size == digest.size());
    return digest;
  }

 private:
  EVP_MD* digest_ = nullptr;
  EVP_MD_CTX* context_ = nullptr;
};

}  // namespace kvfolio
