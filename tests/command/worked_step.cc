// SPDX-License-Identifier: Apache-2.0
// The worked example of docs/design.md: three sequences in one step. What this prints is the block
// there; test_docs.py compares the two.

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>
#include <vector>

#include "kvfolio/manager.h"

namespace {

using namespace kvfolio;

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (!result) must(result.error());
  return std::move(*result);
}

void print(const char* name, std::span<const std::int32_t> values) {
  std::printf("%-13s", name);
  for (const std::int32_t value : values) std::printf(" %2d", value);
  std::printf("\n");
}

void print_references(const KVCacheManager& manager, const char* name) {
  std::vector<std::int32_t> references;
  std::vector<std::int32_t> findable;
  for (std::int32_t block = 0; block < 6; ++block) {
    references.push_back(must(manager.ref_count(GroupId(0), BlockId(block))));
    if (must(manager.is_findable(GroupId(0), BlockId(block)))) findable.push_back(block);
  }
  print(name, references);
  print("  findable", findable);
}

}  // namespace

int main() {
  const CacheSpec spec{{{.head_dim_k = 8, .head_dim_v = 8, .block_size = 4, .num_blocks = 16}}};
  KVCacheManager manager = must(KVCacheManager::create(spec));

  std::vector<std::int32_t> prompt(10);
  std::iota(prompt.begin(), prompt.end(), 100);
  const SequenceId a = must(manager.open(prompt)).sequence;
  const Ticket first = must(manager.begin_step());
  must(manager.append(a, prompt));
  must(manager.finish(first));
  const SequenceId b = must(manager.fork(a));
  std::vector<std::int32_t> other(prompt.begin(), prompt.begin() + 6);
  other.insert(other.end(), {206, 207, 208, 209, 210});
  const Opened c = must(manager.open(other));
  std::printf("C finds %d of %zu tokens\n", c.cached_tokens, other.size());

  const Ticket step = must(manager.begin_step());
  must(manager.append(a, std::vector<std::int32_t>{300}));
  must(manager.append(b, std::vector<std::int32_t>{301}));
  must(manager.append(c.sequence, std::span(other.begin() + c.cached_tokens, other.end())));
  const StepPlan& plan = *must(manager.plan({.flashinfer = true, .shared_prefixes = true}));
  const GroupPlan& group = plan.groups[0];
  print("query_start", plan.query_start);
  print("kv_lens", plan.kv_lens);
  print("slot_mapping", group.slot_mapping);
  print("block_table", group.block_table);
  print("copy_src", group.copy_src);
  print("copy_dst", group.copy_dst);
  print("kv_indptr", group.kv_indptr);
  print("kv_indices", group.kv_indices);
  print("kv_last_page", group.kv_last_page_len);
  for (const SharedPrefix& shared : group.shared_prefixes) {
    std::printf("sequences %d to %d begin with the same %d block(s)\n", shared.first_sequence,
                shared.first_sequence + shared.num_sequences - 1, shared.num_blocks);
  }
  print_references(manager, "open");
  must(manager.commit(step));
  print_references(manager, "committed");
  must(manager.complete(step));
  print_references(manager, "complete");
  must(manager.check_invariants());
}
