// SPDX-License-Identifier: Apache-2.0

#include "open_options.h"

namespace kvfolio::python {
namespace {

constexpr Word<Publish> kPublish[] = {
    {"all", Publish::kAll}, {"full_blocks", Publish::kFullBlocks}, {"nothing", Publish::kNothing}};

}  // namespace

Publish parse_publish(const char* word) { return parse_word("publish", word, kPublish); }

std::optional<std::uint64_t> caller_id_of(nb::handle object) {
  if (object.is_none()) return std::nullopt;
  Id id;
  const nb::object number = nb::borrow(object);
  if (!nb::try_cast(number, id)) raise_type("caller_id is no int");
  if (!nb::cast(id).equal(number)) raise_invalid("caller_id is not within 0 to 2^64 - 1");
  return id.value;
}

HeldOptions::HeldOptions(nb::handle root, nb::handle media, bool prefix_cache, bool look_up,
                         Int max_tokens)
    : root_(root), media_(media_of(media)) {
  options.root = root_.key;
  options.media = media_;
  options.prefix_cache = prefix_cache;
  options.look_up = look_up;
  options.max_tokens = i32(max_tokens, "max_tokens");
}

void HeldOptions::set_sequence(const char* publish, nb::handle caller_id, Int priority,
                               bool late_names, bool announce) {
  options.publish = parse_publish(publish);
  options.caller_id = caller_id_of(caller_id);
  options.priority = i32(priority, "priority");
  options.late_names = late_names;
  options.announce = announce;
}

}  // namespace kvfolio::python
