// SPDX-License-Identifier: Apache-2.0
#pragma once

// The machine of the cases on a device: memory from one arena, with bytes between allocations that
// are compared when a case ends.

#include <stdexcept>

#include "cuda/move_twins.h"
#include "device_queue.h"

namespace kvfolio::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
inline void check(const Status& status, const char* what) {
  if (!status.ok()) throw std::runtime_error(std::string(what) + ": " + status.message());
}

class DeviceMachine final : public cases::Machine {
 public:
  explicit DeviceMachine(Queue& queue) : queue_(queue) {
    check(cudaMalloc(&arena_, kBytes), "cudaMalloc");
    check(cudaMemset(arena_, kRed, kBytes), "cudaMemset");
    shadow_.resize(kBytes);
  }
  DeviceMachine(const DeviceMachine&) = delete;
  DeviceMachine& operator=(const DeviceMachine&) = delete;
  ~DeviceMachine() override { cudaFree(arena_); }

  Queue& queue() override { return queue_; }
  std::byte* allocate(std::int64_t bytes) override {
    const std::int64_t at = used_ + kGap;
    pieces_.push_back({at, bytes});
    used_ = (at + bytes + 255) / 256 * 256;
    if (used_ + kGap > static_cast<std::int64_t>(kBytes))
      throw std::runtime_error("the arena is full");
    return static_cast<std::byte*>(arena_) + at;
  }
  std::string reset() override {
    const std::int64_t end = used_ + kGap;
    check(cudaMemcpy(shadow_.data(), arena_, static_cast<std::size_t>(end), cudaMemcpyDeviceToHost),
          "reset");
    std::string text;
    std::int64_t at = 0;
    pieces_.push_back({end, 0});
    for (const Piece& piece : pieces_) {
      for (; at < piece.at && text.empty(); ++at) {
        if (shadow_[static_cast<std::size_t>(at)] != std::byte{kRed}) {
          text = cases::concat("byte ", at, " of the arena was written, outside of all memory");
        }
      }
      at = piece.at + piece.bytes;
    }
    check(cudaMemset(arena_, kRed, static_cast<std::size_t>(end)), "reset");
    pieces_.clear();
    used_ = 0;
    return text;
  }
  void upload(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice), "upload");
  }
  void download(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    check(cudaMemcpy(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost),
          "download");
  }

 private:
  struct Piece {
    std::int64_t at, bytes;
  };
  static constexpr std::size_t kBytes = std::size_t{256} << 20;
  static constexpr std::int64_t kGap = 256;
  static constexpr unsigned char kRed = 0xa5;
  Queue& queue_;
  void* arena_ = nullptr;
  std::int64_t used_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::byte> shadow_;
};

}  // namespace kvfolio::cuda
