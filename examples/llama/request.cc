// SPDX-License-Identifier: Apache-2.0
#include "request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_set>
#include <utility>

#include "invalid.h"
#include "json.h"

namespace kvfolio::llama {
namespace {

Status wrong(std::string_view field, const Json& value, const std::string& allowed) {
  return invalid("field \"" + std::string(field) + "\" is " + value.describe() +
                 ", allowed: " + allowed);
}

Status take_integer(std::string_view field, const Json& value, std::int64_t low, std::int64_t high,
                    std::int64_t& out) {
  const std::int64_t* number = value.as_integer();
  if (number == nullptr || *number < low || *number > high) {
    return wrong(field, value,
                 "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  out = *number;
  return {};
}

Status take_count(std::string_view field, const Json& value, std::int32_t high, std::int32_t& out) {
  std::int64_t number = 0;
  KVFOLIO_RETURN_IF_ERROR(take_integer(field, value, 1, high, number));
  out = static_cast<std::int32_t>(number);
  return {};
}

Status take_ids(std::string_view field, const Json& value, const Vocabulary& vocabulary,
                std::vector<std::int32_t>& out) {
  const Json::Array* ids = value.as_array();
  if (ids == nullptr) return wrong(field, value, "an array of token ids");
  out.clear();
  out.reserve(ids->size());
  for (std::size_t i = 0; i < ids->size(); ++i) {
    std::int64_t id = 0;
    KVFOLIO_RETURN_IF_ERROR(take_integer(std::string(field) + "[" + std::to_string(i) + "]",
                                         (*ids)[i], 0, vocabulary.size - 1, id));
    out.push_back(static_cast<std::int32_t>(id));
  }
  return {};
}

Status take_id(const Json& value, std::string& out) {
  const std::string* id = value.as_string();
  if (id == nullptr || id->empty() || id->size() > kMaxIdBytes) {
    return wrong("id", value, "a string of 1 to " + std::to_string(kMaxIdBytes) + " bytes");
  }
  out = *id;
  return {};
}

Status take_prompt(const Json& value, const Vocabulary& vocabulary, Request& request) {
  const std::string* text = value.as_string();
  if (text == nullptr) return wrong("prompt", value, "a string");
  Result<std::vector<std::int32_t>> tokens = encode(*text, vocabulary);
  if (!tokens) return invalid("field \"prompt\": " + tokens.error().message());
  request.prompt = *std::move(tokens);
  return {};
}

Status take_temperature(const Json& value, double& out) {
  const Json::Number* number = value.as_number();
  // A comparison that is false for NaN; the reader has no infinities.
  if (number == nullptr || !(number->value >= 0.0 && number->value <= 1e6)) {
    return wrong("temperature", value, "a number from 0 to 1e6");
  }
  out = number->value;
  return {};
}

Status take_top_p(const Json& value, double& out) {
  const Json::Number* number = value.as_number();
  if (number == nullptr || !(number->value > 0.0 && number->value <= 1.0)) {
    return wrong("top_p", value, "a number above 0, at most 1");
  }
  out = number->value;
  return {};
}

Status take_field(std::string_view key, const Json& value, const Vocabulary& vocabulary,
                  Request& request) {
  if (key == "id") return take_id(value, request.id);
  if (key == "prompt") return take_prompt(value, vocabulary, request);
  if (key == "prompt_ids") return take_ids(key, value, vocabulary, request.prompt);
  if (key == "max_new_tokens") return take_count(key, value, kMaxNewTokens, request.max_new_tokens);
  if (key == "samples") return take_count(key, value, kMaxSamples, request.samples);
  if (key == "beams") return take_count(key, value, kMaxBeams, request.beams);
  if (key == "temperature") return take_temperature(value, request.temperature);
  if (key == "top_p") return take_top_p(value, request.top_p);
  if (key == "seed") {
    return take_integer(key, value, 0, std::numeric_limits<std::int64_t>::max(), request.seed);
  }
  if (key == "stop_ids") return take_ids(key, value, vocabulary, request.stop_ids);
  return invalid("unknown field " + in_quotes(key) +
                 ", allowed: id, prompt, prompt_ids, max_new_tokens, samples, beams, temperature, "
                 "top_p, seed, stop_ids");
}

enum class Line { kRead, kEnd, kTooLong };

// A line of at most kMaxLineBytes, so that a file without line ends takes no more memory than that.
Line read_line(std::istream& input, std::string& line) {
  line.clear();
  std::streambuf* buffer = input.rdbuf();
  for (;;) {
    const int c = buffer->sbumpc();
    if (c == std::char_traits<char>::eof()) return line.empty() ? Line::kEnd : Line::kRead;
    if (c == '\n') return Line::kRead;
    if (line.size() == kMaxLineBytes) return Line::kTooLong;
    line.push_back(static_cast<char>(c));
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

Result<std::vector<std::int32_t>> encode(std::string_view text, const Vocabulary& vocabulary) {
  if (!vocabulary.is_bytes()) {
    return invalid("this model has " + std::to_string(vocabulary.size) +
                   " tokens and no tokenizer that this program can read; allowed: token ids "
                   "(text needs a vocabulary of 256, one token for each byte)");
  }
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string decode(const std::vector<std::int32_t>& tokens, const Vocabulary& vocabulary) {
  std::string text;
  if (!vocabulary.is_bytes()) return text;
  text.reserve(tokens.size());
  for (const std::int32_t token : tokens) text.push_back(static_cast<char>(token));
  return text;
}

Status validate(const Request& request, const Vocabulary& vocabulary) {
  if (request.prompt.empty()) return invalid("the prompt is empty, allowed: at least one token");
  if (request.beams > vocabulary.size) {
    return invalid("field \"beams\" is " + std::to_string(request.beams) +
                   ", allowed: at most the model's " + std::to_string(vocabulary.size) + " tokens");
  }
  if (request.beams > 1 && request.samples > 1) {
    return invalid("field \"beams\" is " + std::to_string(request.beams) +
                   " and field \"samples\" is " + std::to_string(request.samples) +
                   ", allowed: one of them above 1");
  }
  if (request.beams > 1 && request.temperature > 0.0) {
    return invalid("field \"temperature\" is above 0 with \"beams\" " +
                   std::to_string(request.beams) + ", allowed: 0, since beam search draws nothing");
  }
  return {};
}

Result<Request> parse_request(std::string_view line, const Request& defaults,
                              const Vocabulary& vocabulary) {
  Result<Json> json = parse_json(line, {.max_depth = 4, .max_values = 2'000'000});
  if (!json) return std::move(json).error();
  const Json::Object* object = json->as_object();
  if (object == nullptr) return invalid("the line is " + json->describe() + ", allowed: an object");
  if (json->find("prompt") != nullptr && json->find("prompt_ids") != nullptr) {
    return invalid("fields \"prompt\" and \"prompt_ids\" are both there, allowed: one of them");
  }
  if (json->find("prompt") == nullptr && json->find("prompt_ids") == nullptr) {
    return invalid("there is no prompt, allowed: a field \"prompt\" or \"prompt_ids\"");
  }
  Request request = defaults;
  request.prompt.clear();
  for (const auto& [key, value] : *object) {
    KVFOLIO_RETURN_IF_ERROR(take_field(key, value, vocabulary, request));
  }
  KVFOLIO_RETURN_IF_ERROR(validate(request, vocabulary));
  return request;
}

Result<std::vector<Request>> read_requests(std::istream& input, const std::string& name,
                                           const Request& defaults, const Vocabulary& vocabulary) {
  std::vector<Request> requests;
  std::unordered_set<std::string> ids;
  std::size_t total_tokens = 0;
  std::size_t total_samples = 0;
  std::string line;
  for (std::size_t number = 1;; ++number) {
    const auto at_line = [&](const std::string& message) {
      return invalid(name + " line " + std::to_string(number) + ": " + message);
    };
    const Line outcome = read_line(input, line);
    if (outcome == Line::kEnd) break;
    if (outcome == Line::kTooLong) {
      return at_line("longer than " + std::to_string(kMaxLineBytes) + " bytes");
    }
    if (is_blank(line)) continue;
    if (requests.size() == kMaxRequests) {
      return at_line("more than " + std::to_string(kMaxRequests) + " requests");
    }
    Result<Request> request = parse_request(line, defaults, vocabulary);
    if (!request) return at_line(request.error().message());
    if (!request->id.empty() && !ids.insert(request->id).second) {
      return at_line("field \"id\" is " + in_quotes(request->id) +
                     ", which an earlier request has; allowed: an id of its own");
    }
    total_samples += static_cast<std::size_t>(std::max(request->samples, request->beams));
    if (total_samples > kMaxRequests) {
      return at_line("more than " + std::to_string(kMaxRequests) + " samples in one file");
    }
    total_tokens += request->prompt.size();
    if (total_tokens > kMaxPromptTokensTotal) {
      return at_line("more than " + std::to_string(kMaxPromptTokensTotal) +
                     " prompt tokens in one file");
    }
    requests.push_back(*std::move(request));
  }
  if (requests.empty()) return invalid(name + ": there is no request, allowed: one a line");
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::string& id = requests[i].id;
    if (!id.empty()) continue;
    id = "r" + std::to_string(i);
    while (!ids.insert(id).second) id += '_';  // a request may have given itself that one
  }
  return requests;
}

}  // namespace kvfolio::llama
