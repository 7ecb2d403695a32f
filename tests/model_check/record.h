// SPDX-License-Identifier: Apache-2.0
#pragma once

// Writes what a caller asked and what it was told, one call a line, for another language to repeat:
//
//   append 17 3 5 6 7 0 = 0 ;                    the sequence, 3 tokens, no draft: ok
//   trim 17 -1 4 = 1 ; trim: num_sinks is -1 ... an error: its code and its message
//
// Arguments and results are integers; an array is its size and its elements.

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/root_key.h"
#include "kvfolio/status.h"

namespace kvfolio::model_check {

class Numbers {
 public:
  template <typename... Parts>
  explicit Numbers(const Parts&... parts) {
    (add(parts), ...);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  template <typename T>
  void add(const T& part) {
    if constexpr (requires { part.value(); }) {
      add(part.value());  // an id
    } else if constexpr (std::is_same_v<T, double>) {
      std::int64_t bits = 0;
      std::memcpy(&bits, &part, sizeof(bits));
      add(bits);
    } else {
      text_ += ' ';
      text_ += std::to_string(static_cast<std::int64_t>(part));
    }
  }
  template <typename T>
  void add(const std::span<const T>& array) {
    add(array.size());
    for (const T& element : array) add(element);
  }
  void add(std::string_view bytes) {
    add(bytes.size());
    for (const char byte : bytes) add(static_cast<unsigned char>(byte));
  }
  void add(const std::optional<std::uint64_t>& id) {
    add(id.has_value());
    add(id.value_or(0));
  }
  void add(const EndedSequence& ended) {
    add(ended.sequence);
    add(ended.caller_id);
  }
  void add(const Numbers& numbers) { text_ += numbers.text_; }
  void add(const OpenOptions& options) {
    add(std::string_view(options.root.model));
    add(std::string_view(options.root.adapter));
    add(std::string_view(options.root.adapter_version));
    add(std::string_view(options.root.tenant_salt));
    add(options.root.epoch);
    add(options.media.size());
    for (const MediaSpan& span : options.media) {
      *this = Numbers(*this, span.begin, span.end, span.attends_to_itself);
      for (const auto byte : span.content_id) add(static_cast<std::int32_t>(byte));
    }
    *this = Numbers(*this, !options.prefix_cache, !options.look_up, options.publish,
                    options.caller_id, options.max_tokens, options.priority, options.late_names);
  }

  std::string text_;
};

class Record {
 public:
  // Null: nothing is written.
  explicit Record(std::string* to) : to_(to) {}
  [[nodiscard]] bool is_on() const { return to_ != nullptr; }
  // A harness asks far more questions than it makes calls: one in so many is written.
  [[nodiscard]] bool takes_question() { return is_on() && ++questions_ % 16 == 0; }

  void operator()(std::string_view name, const Status& status, const Numbers& arguments,
                  const Numbers& results = Numbers()) const {
    if (!is_on()) return;
    *to_ += name;
    *to_ += arguments.text() + " =" + Numbers(status.code()).text();
    if (status.ok()) *to_ += results.text() + " ; \n";
    if (!status.ok()) *to_ += " ; " + status.message() + "\n";
  }

 private:
  std::string* to_;
  std::uint64_t questions_ = 0;
};

}  // namespace kvfolio::model_check
