// SPDX-License-Identifier: Apache-2.0
#pragma once

// Says on the terminal how much of a file has been written. Thread safety: none.

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "console.h"
#include "kvfolio/byte_stream.h"

namespace kvfolio::tools {

class ProgressSink final : public ByteSink {
 public:
  ProgressSink(ByteSink& sink, std::string what) : sink_(sink), what_(std::move(what)) { show(); }
  ~ProgressSink() override { show_progress(""); }
  ProgressSink(const ProgressSink&) = delete;
  ProgressSink& operator=(const ProgressSink&) = delete;

  Status write(std::span<const std::byte> bytes) override { return write_pieces({&bytes, 1}); }
  Status write_pieces(std::span<const std::span<const std::byte>> pieces) override {
    for (const std::span<const std::byte> piece : pieces) {
      bytes_ += static_cast<std::int64_t>(piece.size());
    }
    if (bytes_ >= shown_ + kEach) show();
    return sink_.write_pieces(pieces);
  }

 private:
  static constexpr std::int64_t kEach = 64 << 20;

  void show() {
    shown_ = bytes_;
    show_progress(what_ + ": " + std::to_string(bytes_ >> 20) + " MiB");
  }

  ByteSink& sink_;
  std::string what_;
  std::int64_t bytes_ = 0, shown_ = 0;
};

}  // namespace kvfolio::tools
