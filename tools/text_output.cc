// SPDX-License-Identifier: Apache-2.0
#include "text_output.h"

#include <algorithm>
#include <utility>

#include "console.h"
#include "printable_text.h"

namespace kvfolio::tools {
namespace {

std::int32_t num_samples(const llama::Request& request) {
  return std::max(request.samples, request.beams);
}

}  // namespace

TextOutput::TextOutput(std::span<const llama::Request> requests, llama::Vocabulary vocabulary)
    : requests_(requests), vocabulary_(vocabulary), first_piece_{0} {
  for (const llama::Request& request : requests) {
    first_piece_.push_back(first_piece_.back() + static_cast<std::size_t>(num_samples(request)));
  }
  pieces_.resize(first_piece_.back());
}

std::string TextOutput::words(const std::vector<std::int32_t>& tokens) const {
  if (vocabulary_.is_bytes()) return llama::decode(tokens, vocabulary_);
  std::string ids;
  for (const std::int32_t token : tokens) ids += std::to_string(token) + " ";
  return ids;
}

TextOutput::Piece& TextOutput::piece(const llama::Request& request, std::int32_t sample) {
  const auto index = static_cast<std::size_t>(&request - requests_.data());
  return pieces_[first_piece_[index] + static_cast<std::size_t>(sample)];
}

void TextOutput::token(const llama::Request& request, std::int32_t sample, std::int32_t token) {
  Piece& mine = piece(request, sample);
  mine.begun += words({token});
  mine.text += take_printable(mine.begun);  // a character may come in several pieces
  print_ready();
}

void TextOutput::finished(const llama::FinishedSample& finished) {
  Piece& mine = piece(finished.request, finished.sample);
  const auto prompt = finished.request.prompt.size();
  mine.text += printable_text(std::exchange(mine.begun, {}));
  if (finished.request.beams > 1) {
    mine.text += printable_text(words(finished.token_ids));
    mine.text += "\n[score " + std::to_string(finished.score) + ", ";
  } else {
    mine.text += "\n[";
  }
  mine.text += std::to_string(finished.token_ids.size()) + " tokens, " +
               (finished.stopped ? "stop" : "length") + "; prompt " + std::to_string(prompt) +
               ", of it " + std::to_string(finished.cached_tokens) + " cached";
  if (finished.preemptions > 0) {
    mine.text += "; preempted " + std::to_string(finished.preemptions) + "x";
  }
  mine.text += "]\n";
  mine.done = true;
  print_ready();
}

void TextOutput::rejected(const llama::Request& request, const std::string& error) {
  for (std::int32_t sample = 0; sample < num_samples(request); ++sample) {
    piece(request, sample).done = true;
  }
  piece(request, 0).text = "error: " + error + "\n";
  print_ready();
}

void TextOutput::print_ready() {
  std::string ready;
  for (; next_piece_ < pieces_.size(); ++next_piece_) {
    while (next_piece_ >= first_piece_[next_request_ + 1]) ++next_request_;
    Piece& mine = pieces_[next_piece_];
    if (mine.text.empty() && !mine.done) break;
    if (!mine.started && !mine.text.empty()) {
      const llama::Request& request = requests_[next_request_];
      const std::size_t sample = next_piece_ - first_piece_[next_request_];
      ready += "== " + printable_text(request.id);
      if (num_samples(request) > 1) {
        ready += (request.beams > 1 ? " beam " : " sample ") + std::to_string(sample);
      }
      ready += "\n";
      mine.started = true;
    }
    ready += std::exchange(mine.text, {});
    if (!mine.done) break;
  }
  print(ready);
}

}  // namespace kvfolio::tools
