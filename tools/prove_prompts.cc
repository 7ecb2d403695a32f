// SPDX-License-Identifier: Apache-2.0
#include "prove_prompts.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "sampler.h"

namespace kvfolio::tools {
namespace {

using llama::Request;

// A prompt is the first `shared` tokens of the common source, then tokens of its own.
struct Shape {
  std::int32_t shared = 0;
  std::int32_t own = 0;
};

// Shared beginnings end at 32 and 64, borders of every block size here, and at 77, inside all but
// those of one token. Lengths stand at, just behind and far from borders.
constexpr std::array<Shape, kNumPrompts + 1> kShapes = {
    {{.own = 3},
     {.own = 16},
     {.shared = 32},
     {.shared = 32, .own = 1},
     {.shared = 150},
     {.shared = 64, .own = 36},
     {.shared = 77, .own = 52},
     {.shared = 200},
     {.shared = 200, .own = kLongPrompt - 200}}};

// At least as long as the longest shared beginning. The two texts differ in every place where a
// prompt leaves the first for the second.
constexpr std::string_view kSharedText =
    "In the hall of the archive stood a long row of shelves, and on every shelf there was room for "
    "sixteen leaves and no more. Who came to read was given the number of a shelf, and the keeper "
    "wrote down what he took and when he brought it back.";
constexpr std::string_view kOwnText =
    "Yet one morning a stranger asked for two leaves at once, and neither of them had been copied "
    "before; the keeper looked at his list, shook his head, and went to fetch the ladder.";

// Offset in the own source, so that prompts do not begin alike by accident.
constexpr std::size_t kOwnStride = 13;

class Source {
 public:
  explicit Source(const llama::Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  [[nodiscard]] std::int32_t shared(std::size_t i) const { return token(kSharedText, 1, i); }
  [[nodiscard]] std::int32_t own(std::size_t prompt, std::size_t i) const {
    return token(kOwnText, 2, prompt * kOwnStride + i);
  }
  // Another token than this one.
  [[nodiscard]] std::int32_t other(std::int32_t token) const {
    return (token + 1) % vocabulary_.size;
  }

 private:
  [[nodiscard]] std::int32_t token(std::string_view text, std::uint64_t seed, std::size_t i) const {
    if (vocabulary_.is_bytes()) return static_cast<unsigned char>(text[i % text.size()]);
    const double drawn = llama::uniform(seed, i) * vocabulary_.size;
    return std::min(static_cast<std::int32_t>(drawn), vocabulary_.size - 1);
  }

  llama::Vocabulary vocabulary_;
};

Request make_request(std::string id, Tokens prompt) {
  Request request;
  request.id = std::move(id);
  request.prompt = std::move(prompt);
  request.max_new_tokens = kNewTokens;
  // High, so that the two samples of a prompt part soon, whatever the model is sure of.
  request.temperature = 1.5;
  return request;
}

}  // namespace

std::int32_t PromptSet::longest() const {
  std::size_t most = 0;
  for (const Tokens& prompt : prompts) most = std::max(most, prompt.size());
  return static_cast<std::int32_t>(most);
}

Result<PromptSet> make_prompt_set(const llama::ModelConfig& config) {
  if (config.max_positions < kFewestPositions) {
    return Status(ErrorCode::kInvalidArgument,
                  "config.json: max_position_embeddings " + std::to_string(config.max_positions) +
                      ", allowed: at least " + std::to_string(kFewestPositions) +
                      ", since prompts must be longer than a chunk of 64 tokens");
  }
  if (config.vocab < 2) {
    return Status(ErrorCode::kInvalidArgument,
                  "config.json: vocab_size " + std::to_string(config.vocab) +
                      ", allowed: at least 2, since samples must be able to differ");
  }
  const Source source({.size = config.vocab});
  const auto longest = static_cast<std::size_t>(config.max_positions - kNewTokens);
  PromptSet set;
  for (std::size_t p = 0; p < kShapes.size(); ++p) {
    Tokens prompt;
    for (std::int32_t i = 0; i < kShapes[p].shared; ++i) {
      prompt.push_back(source.shared(static_cast<std::size_t>(i)));
    }
    for (std::int32_t i = 0; i < kShapes[p].own; ++i) {
      std::int32_t token = source.own(p, static_cast<std::size_t>(i));
      // The first token of its own parts from the common source.
      if (i == 0 && token == source.shared(prompt.size())) token = source.other(token);
      prompt.push_back(token);
    }
    if (prompt.size() > longest) prompt.resize(longest);
    set.prompts.push_back(std::move(prompt));
  }
  return set;
}

std::vector<Request> scored_requests(const PromptSet& set, bool forked) {
  std::vector<Request> requests;
  for (std::size_t p = 0; p < set.prompts.size(); ++p) {
    const auto seed = static_cast<std::int64_t>(100 * p);
    const std::string id = "prompt " + std::to_string(p);
    if (forked) {
      requests.push_back(make_request(id, set.prompts[p]));
      requests.back().samples = samples_of(p);
      requests.back().seed = seed;
      continue;
    }
    for (std::int32_t sample = 0; sample < samples_of(p); ++sample) {
      requests.push_back(make_request(id + "/" + std::to_string(sample), set.prompts[p]));
      requests.back().seed = seed + sample;  // what sample `sample` of the forked one draws with
    }
  }
  return requests;
}

std::vector<Request> warming_requests(const PromptSet& set, Known known, std::int32_t block_size) {
  constexpr std::int32_t kTail = 5;  // tokens after the part that is known: another prompt's end
  std::vector<Request> requests;
  for (std::size_t p = 0; p < set.prompts.size(); ++p) {
    Tokens prompt = set.prompts[p];
    const auto length = static_cast<std::int32_t>(prompt.size());
    if (known != Known::kWhole) {
      std::int32_t part = length * 3 / 5;
      if (known == Known::kAtABorder) part -= part % block_size;
      if (known == Known::kInsideABlock && part % 2 == 0) --part;  // odd: a border of no block here
      if (part < 1) continue;
      // At least one token behind the part is the prompt's own: the part is no whole prompt.
      const std::int32_t parted = prompt[static_cast<std::size_t>(part)];
      prompt.resize(static_cast<std::size_t>(part));
      const std::int32_t other = parted == 0 ? 1 : parted - 1;
      prompt.insert(prompt.end(), kTail, other);
    }
    requests.push_back(make_request("warming " + std::to_string(p), std::move(prompt)));
    requests.back().max_new_tokens = 1;
  }
  return requests;
}

std::int32_t expected_hit(const Tokens& prompt, std::span<const Request> warming) {
  std::int32_t most = 0;
  for (const Request& request : warming) {
    const auto [mine, its] =
        std::mismatch(prompt.begin(), prompt.end(), request.prompt.begin(), request.prompt.end());
    most = std::max(most, static_cast<std::int32_t>(mine - prompt.begin()));
  }
  return std::min(most, static_cast<std::int32_t>(prompt.size()) - 1);
}

std::int32_t expected_soon(const Tokens& prompt, std::span<const Request> older,
                           std::int32_t block_size) {
  std::int32_t most = 0;
  for (const Request& request : older) {
    const auto [mine, its] =
        std::mismatch(prompt.begin(), prompt.end(), request.prompt.begin(), request.prompt.end());
    const auto size = static_cast<std::int32_t>(request.prompt.size());
    const std::int32_t common =
        std::min(static_cast<std::int32_t>(mine - prompt.begin()), size / block_size * block_size);
    // The first of those with the most whole blocks is waited for.
    if (common / block_size > most / block_size) most = common;
  }
  return std::min(most, static_cast<std::int32_t>(prompt.size()) - 1);
}

}  // namespace kvfolio::tools
