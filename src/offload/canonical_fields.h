// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fields in the form in which they are hashed: type, name and value, each value with its length. So
// no value can pose as part of another. Thread safety: values.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/little_endian.h"
#include "base/text.h"
#include "kvfolio/identity.h"

namespace kvfolio {

class CanonicalFields {
 public:
  void text(std::string_view name, std::string_view value) {
    begin('s', name);
    append_number(value.size(), 4);
    bytes_ += value;
    list_.push_back({std::string(name), std::string(value)});
  }
  void number(std::string_view name, std::int64_t value) {
    begin('i', name);
    append_number(static_cast<std::uint64_t>(value), 8);
    list_.push_back({std::string(name), kvfolio::text::concat(value)});
  }
  [[nodiscard]] std::string_view bytes() const noexcept { return bytes_; }
  [[nodiscard]] const std::vector<IdentityField>& list() const noexcept { return list_; }

 private:
  void append_number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void begin(char type, std::string_view name) {
    bytes_ += type;
    append_number(name.size(), 2);
    bytes_ += name;
  }
  std::string bytes_;
  std::vector<IdentityField> list_;
};

// The key of a block (tier.h): format 1, group, shards, the beginning of the layout's namespace,
// the hash.
inline TierKey tier_key_of(GroupId group, std::uint16_t shard, std::uint16_t num_shards,
                           const Digest& layout, const Digest& hash) noexcept {
  TierKey key;
  LittleEndianWriter to(key.bytes);
  to.put(std::uint16_t{1});
  to.put(static_cast<std::uint16_t>(group.value()));
  to.put(shard);
  to.put(num_shards);
  to.put(std::span<const std::byte>(layout).first(16));
  to.put(std::span<const std::byte>(hash));
  return key;
}

}  // namespace kvfolio
