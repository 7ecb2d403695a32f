// SPDX-License-Identifier: Apache-2.0
#pragma once

// What makes two equal token strings different prompts: the model they were computed with, the
// adapter, the tenant, the epoch of the weights, and media that stand behind placeholder tokens.
// Everything here is compared whole; no hash decides equality. Nothing here knows a model or looks
// into media: the caller's bytes are taken as they are.
// Thread safety: values.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvfolio {

// Fields are typed and length-framed: {.adapter = "ab"} never equals {.adapter = "a",
// .adapter_version = "b"}; an absent field is an empty one.
// Bytes, not text: any content, at most 64 KiB together. The views are read during the call only.
struct RootKey {
  std::string_view model{};
  std::string_view adapter{};          // LoRA or the like; empty: the base model
  std::string_view adapter_version{};  // same name, new weights: another version
  std::string_view tenant_salt{};      // set by the server, never by the client
  std::uint64_t epoch = 0;             // bump it when weights change in place
};

// Media (an image, a sound) behind the placeholder tokens [begin, end) of a sequence.
struct MediaSpan {
  std::int32_t begin = 0;                  // position of its first token
  std::int32_t end = 0;                    // one past its last
  std::array<std::byte, 32> content_id{};  // a digest of the content
  // Tokens of the span read later tokens of the span. So no prefix hit ends inside it; nothing from
  // its begin on is findable unless one step computed all of it, and a truncate() to its inside
  // ends that; and content_id stands for its tokens too: equal ids, equal tokens.
  bool attends_to_itself = false;
};

}  // namespace kvfolio
