// SPDX-License-Identifier: Apache-2.0
#pragma once

// Requests: what a client asks of the engine, and the reader of request files (one JSON object a
// line). The reader is strict: a field that it does not know, a wrong type, a value out of range,
// an id that occurs twice end it with a sentence that names the line, the field, the value and what
// is allowed. Its memory is bounded whatever the file holds.
//
//   {"id":"r0","prompt":"text" | "prompt_ids":[...],"max_new_tokens":48,"samples":1,"beams":1,
//    "temperature":0,"top_p":1,"seed":0,"stop_ids":[]}
//
// Thread safety: values.

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "kvfolio/status.h"

namespace kvfolio::llama {

struct Request {
  std::string id;
  std::vector<std::int32_t> prompt;  // at least one token
  std::int32_t max_new_tokens = 48;
  std::int32_t samples = 1;
  std::int32_t beams = 1;    // more than 1: beam search
  double temperature = 0.0;  // 0 is greedy
  double top_p = 1.0;        // of the probability mass, in (0, 1]
  std::int64_t seed = 0;     // sample i draws with seed + i
  std::vector<std::int32_t> stop_ids;
};

// What a prompt is made of. A model with 256 tokens reads bytes; others take ids only.
struct Vocabulary {
  std::int32_t size = 256;

  [[nodiscard]] bool is_bytes() const noexcept { return size == 256; }
};

inline constexpr std::int32_t kMaxSamples = 1024;
inline constexpr std::int32_t kMaxBeams = 256;
inline constexpr std::int32_t kMaxNewTokens = 1 << 24;
inline constexpr std::size_t kMaxIdBytes = 256;
inline constexpr std::size_t kMaxLineBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxRequests = 1'000'000;
inline constexpr std::size_t kMaxPromptTokensTotal = std::size_t{32} << 20;

// The tokens of a text: its bytes. kInvalidArgument when the vocabulary is not bytes.
Result<std::vector<std::int32_t>> encode(std::string_view text, const Vocabulary& vocabulary);
// The bytes of tokens, or nothing when the vocabulary is not bytes.
[[nodiscard]] std::string decode(const std::vector<std::int32_t>& tokens,
                                 const Vocabulary& vocabulary);

// One line. Fields that it lacks are those of `defaults`; its prompt is always its own.
Result<Request> parse_request(std::string_view line, const Request& defaults,
                              const Vocabulary& vocabulary);
// All lines, blank ones skipped. `name` is what messages call the file. A request without an id is
// r0, r1, ... by its place in the file, with a _ behind it if another has given itself that id.
Result<std::vector<Request>> read_requests(std::istream& input, const std::string& name,
                                           const Request& defaults, const Vocabulary& vocabulary);

// Checks what no single field can say. Used for the command line's request too.
Status validate(const Request& request, const Vocabulary& vocabulary);

}  // namespace kvfolio::llama
