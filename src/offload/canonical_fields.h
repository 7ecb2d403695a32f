// SPDX-License-Identifier: Apache-2.0
#pragma once

// Fields in the form in which they are hashed: type, name and value, each value with its length. So
// no value can pose as part of another. Thread safety: values.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

}  // namespace kvfolio
