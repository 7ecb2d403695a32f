// SPDX-License-Identifier: Apache-2.0
// put_state: what of a tree decides its future. Roots come in the order of their keys, children of
// a run in that of their tokens.

#include <algorithm>
#include <string_view>
#include <tuple>

#include "base/state_writer.h"
#include "prefix/tree.h"

namespace kvfolio {

namespace {

void put_key(StateWriter& out, const RootKey& key) {
  for (const std::string_view field :
       {key.model, key.adapter, key.adapter_version, key.tenant_salt}) {
    out.put(field.size());
    for (const char byte : field) out.put(static_cast<unsigned char>(byte));
  }
  out.put(key.epoch);
}

// A run comes before what hangs below it. Without recursion: a tree may be deep.
std::int32_t next_run(const RunStore& runs, const Children& children, std::int32_t r,
                      std::int32_t root) noexcept {
  const std::int32_t child = children.first(r);
  if (child >= 0) return child;
  for (; r != root; r = runs.run(r).parent) {
    const std::int32_t sibling = children.next(r);
    if (sibling >= 0) return sibling;
  }
  return -1;
}

}  // namespace

bool PrefixTree::put_state(StateWriter& out) const { return impl_->put_state(out); }

bool PrefixTree::Impl::put_state(StateWriter& out) const {
  FixedArray<std::int32_t> roots;
  if (!out.runs_.allocate(runs_.num_touched()) || !roots.allocate_zeroed(keys_.num_keys())) {
    return false;
  }
  std::int32_t num_roots = 0;
  for (std::int32_t r = 0; r < runs_.num_touched(); ++r) {
    if (run(r).alive != 0 && runs_.is_root(r)) roots[num_roots++] = r;
  }
  const auto fields_of = [this](std::int32_t r) {
    const RootKey key = keys_.key_of(run(r).tokens);
    return std::tuple(key.model, key.adapter, key.adapter_version, key.tenant_salt, key.epoch);
  };
  std::sort(roots.data(), roots.data() + num_roots,
            [&](std::int32_t a, std::int32_t b) { return fields_of(a) < fields_of(b); });
  for (std::int32_t i = 0; i < num_roots; ++i) {
    if (out.all_) put_key(out, keys_.key_of(run(roots[i]).tokens));
    for (std::int32_t r = roots[i]; r >= 0; r = next_run(runs_, children_, r, roots[i])) {
      put_run(out, r);
    }
  }
  return true;
}

void PrefixTree::Impl::put_run(StateWriter& out, std::int32_t r) const {
  const Run& run = this->run(r);
  out.runs_.of(r);
  out.put(run.start);
  out.put(run.length);
  out.put(run.places);
  if (!runs_.is_root(r)) {
    const std::int32_t* const tokens = runs_.tokens(r);
    for (std::int32_t i = 0; i < run.length; ++i) out.put(tokens[i]);
    if (out.all_) put_media(out, run);
  }
  for (std::int32_t g = 0; g < num_groups_; ++g) {
    out.put(entries(r, g).first);
    out.put(entries(r, g).count);
    for (std::int32_t i = 0; i < entries(r, g).count; ++i) {
      const std::int32_t block = blocks(r, g)[i];
      out.put(out.name_of(g, block));
      if (block < 0) continue;
      out.put(where(GroupId(g), BlockId(block)).end());
      out.put(where(GroupId(g), BlockId(block)).idle());
      const Group& group = groups_[static_cast<std::size_t>(g)];
      if (!group.rule.keeps_all()) out.put(group.is_read(block));
    }
  }
  out.put(run.num_children);
}

void PrefixTree::Impl::put_media(StateWriter& out, const Run& run) const {
  media_.visit(run.extents, run.start, run.length, [&out](const MediaExtents::Part& part) {
    out.put(part.begin);
    out.put(part.end);
    out.put(part.offset);
    out.put(part.span_length);
    out.put(part.attends_to_itself);
    for (const std::byte byte : part.content_id) out.put(byte);
  });
  out.put(-1);
}

}  // namespace kvfolio
