// SPDX-License-Identifier: Apache-2.0
#pragma once

// TextOutput prints samples for people to standard output, in the order of the requests: the text
// of the first sample that is not finished streams as it comes, later ones wait their turn.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "request.h"
#include "scheduler.h"

namespace kvfolio::tools {

class TextOutput {
 public:
  TextOutput(std::span<const llama::Request> requests, llama::Vocabulary vocabulary);

  void token(const llama::Request& request, std::int32_t sample, std::int32_t token);
  void finished(const llama::FinishedSample& finished);
  void rejected(const llama::Request& request, const std::string& error);

 private:
  struct Piece {
    std::string text;   // not printed yet
    std::string begun;  // of a character
    bool started = false;
    bool done = false;
  };

  std::string words(const std::vector<std::int32_t>& tokens) const;
  Piece& piece(const llama::Request& request, std::int32_t sample);
  void print_ready();

  std::span<const llama::Request> requests_;
  llama::Vocabulary vocabulary_;
  std::vector<std::size_t> first_piece_;  // by request, and one more
  std::vector<Piece> pieces_;             // by request and sample
  std::size_t next_request_ = 0;          // of the piece being printed
  std::size_t next_piece_ = 0;
};

}  // namespace kvfolio::tools
