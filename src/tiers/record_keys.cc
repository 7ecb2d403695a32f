// SPDX-License-Identifier: Apache-2.0
//
// The keys of records and the MACs that they make: HMAC-SHA-256 of libcrypto. A key is given to
// libcrypto once; each MAC is a copy of that state, so it costs no hash of the key.

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/invalid.h"
#include "base/little_endian.h"
#include "base/text.h"
#include "kvfolio/record.h"

namespace kvfolio {
namespace {

using MacContext = std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)>;

// What the MAC covers of a header: all before the seal, and the owner behind it.
constexpr std::size_t kSealAt = 148, kOwnerAt = 180, kOwnerBytes = 8;
static_assert(kOwnerAt - kSealAt == sizeof(Digest) &&
              kOwnerAt + kOwnerBytes + sizeof(std::uint32_t) == kRecordHeaderBytes);

const unsigned char* chars(std::span<const std::byte> bytes) noexcept {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the bytes that libcrypto takes
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

MacContext mac_with(std::span<const std::byte> key) {
  const std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)> hmac(
      EVP_MAC_fetch(nullptr, "HMAC", nullptr), EVP_MAC_free);
  MacContext context(hmac == nullptr ? nullptr : EVP_MAC_CTX_new(hmac.get()), EVP_MAC_CTX_free);
  std::string digest = "SHA256";
  const std::array<OSSL_PARAM, 2> params{
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), 0),
      OSSL_PARAM_construct_end()};
  if (context == nullptr ||
      EVP_MAC_init(context.get(), chars(key), key.size(), params.data()) != 1) {
    context.reset();
  }
  return context;
}

// Says which key it is, and nothing of it. 0: libcrypto failed.
std::uint32_t id_of(std::span<const std::byte> key) {
  constexpr std::string_view kTag = "kvfolio/key/1";
  std::array<char, kTag.size() + kRecordKeyBytes> text{};
  std::memcpy(text.data(), kTag.data(), kTag.size());
  std::memcpy(text.data() + kTag.size(), key.data(), key.size());
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  const int done =
      EVP_Digest(text.data(), text.size(), hash.data(), nullptr, EVP_sha256(), nullptr);
  OPENSSL_cleanse(text.data(), text.size());
  if (done != 1) return 0;
  const auto id = LittleEndianReader(std::as_bytes(std::span(hash))).get<std::uint32_t>();
  return std::max(id, 1u);
}

}  // namespace

struct RecordKeys::Keys {
  struct Key {
    std::uint32_t id = 0;
    MacContext mac{nullptr, EVP_MAC_CTX_free};  // has taken the key; wiped by libcrypto
  };
  std::array<Key, 2> keys;  // the first one seals
};

Result<RecordKeys> RecordKeys::create(const RecordKeyOptions& options) {
  RecordKeys made;
  const std::array<std::span<const std::byte>, 2> keys{options.key, options.accepted_key};
  constexpr std::array<const char*, 2> kNames{"key", "accepted_key"};
  if (options.key.empty() && !options.accepted_key.empty()) {
    return invalid("record keys: accepted_key without key");
  }
  auto kept = std::make_shared<Keys>();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].empty()) continue;
    if (keys[i].size() != kRecordKeyBytes) {
      return invalid(text::concat("record keys: ", kNames[i], " has ", keys[i].size(),
                                  " bytes, allowed: ", kRecordKeyBytes));
    }
    kept->keys[i] = {id_of(keys[i]), mac_with(keys[i])};
    if (kept->keys[i].id == 0 || kept->keys[i].mac == nullptr) {
      return Status(ErrorCode::kUnavailable, "record keys: libcrypto has no HMAC-SHA-256");
    }
  }
  if (options.key.empty()) return made;
  if (kept->keys[0].id == kept->keys[1].id) {
    return invalid("record keys: key and accepted_key are the same, or have the same number");
  }
  made.keys_ = std::move(kept);
  return made;
}

bool RecordKeys::accepts(std::uint32_t key_id) const noexcept {
  if (keys_ == nullptr) return key_id == 0;
  return std::any_of(keys_->keys.begin(), keys_->keys.end(),
                     [&](const auto& key) { return key_id != 0 && key.id == key_id; });
}

std::uint32_t RecordKeys::id() const noexcept { return keys_ == nullptr ? 0 : keys_->keys[0].id; }

RecordMac::RecordMac() noexcept = default;
RecordMac::RecordMac(RecordMac&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)), good_(other.good_) {}
RecordMac& RecordMac::operator=(RecordMac&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(good_, other.good_);
  return *this;
}
RecordMac::~RecordMac() { EVP_MAC_CTX_free(static_cast<EVP_MAC_CTX*>(context_)); }

bool RecordMac::begin(const RecordKeys& keys, std::uint32_t key_id,
                      const RecordInfo& info) noexcept {
  EVP_MAC_CTX_free(static_cast<EVP_MAC_CTX*>(std::exchange(context_, nullptr)));
  if (keys.keys_ == nullptr || key_id == 0) return false;
  for (const RecordKeys::Keys::Key& key : keys.keys_->keys) {
    if (key.id == key_id) context_ = EVP_MAC_CTX_dup(key.mac.get());
  }
  if (context_ == nullptr) return false;
  RecordInfo unsealed = info;
  unsealed.key_id = key_id;
  unsealed.mac = {};
  std::array<std::byte, kRecordHeaderBytes> header{};
  write_record_header(unsealed, header);
  good_ = true;
  add(std::span(header).first(kSealAt));
  add(std::span(header).subspan(kOwnerAt, kOwnerBytes));
  return good_;
}

void RecordMac::add(std::span<const std::byte> payload) noexcept {
  good_ = good_ &&
          EVP_MAC_update(static_cast<EVP_MAC_CTX*>(context_), chars(payload), payload.size()) == 1;
}

bool RecordMac::end(Digest& out) noexcept {
  std::size_t bytes = 0;
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the bytes that libcrypto fills
  auto* const to = reinterpret_cast<unsigned char*>(out.data());
  good_ = good_ && EVP_MAC_final(static_cast<EVP_MAC_CTX*>(context_), to, &bytes, out.size()) == 1;
  EVP_MAC_CTX_free(static_cast<EVP_MAC_CTX*>(std::exchange(context_, nullptr)));
  return std::exchange(good_, false) && bytes == out.size();
}

bool same_mac(const Digest& a, const Digest& b) noexcept {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace kvfolio
