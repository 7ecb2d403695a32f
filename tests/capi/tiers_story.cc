// SPDX-License-Identifier: Apache-2.0
//
// What every_function.c tells in C: a prompt comes back from host memory, from a tier, and from a
// snapshot in another pool.

#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "kvfolio/storage.h"
#include "kvfolio/tiers.hpp"
#include "kvfolio/view.h"

namespace {

using namespace kvfolio;

constexpr std::int32_t kTokens = 10;
constexpr int kDim = 8, kBlock = 4;
const ModelIdentity kToy = {.model = "toy",
                            .weights = "1",
                            .tokenizer = "ids",
                            .model_dtype = "f32",
                            .positions = "none",
                            .engine = "test"};
std::vector<std::int32_t> prompt(kTokens);

class ToyTier final : public Tier {
 public:
  std::map<std::vector<std::byte>, std::vector<std::byte>> records;

  [[nodiscard]] std::string_view name() const noexcept override { return "toy"; }
  [[nodiscard]] TierLimits limits() const noexcept override { return {1 << 20, 64}; }
  std::size_t submit(TierOp op, std::span<const TierItem> items,
                     Deadline /*deadline*/) noexcept override {
    for (const TierItem& item : items) waiting_.emplace_back(op, item);
    return items.size();
  }
  std::size_t poll(std::uint64_t /*now_us*/, std::span<TierDone> done) noexcept override {
    std::size_t n = 0;
    for (; n < done.size() && !waiting_.empty(); ++n) {
      const auto [op, item] = waiting_.back();
      waiting_.pop_back();
      done[n] = {item.tag, perform(op, item)};
    }
    return n;
  }
  [[nodiscard]] int event_fd() const noexcept override { return -1; }
  [[nodiscard]] TierHealth health() const noexcept override { return {}; }
  Status close(Deadline /*deadline*/) noexcept override { return {}; }

 private:
  TierResult perform(TierOp op, const TierItem& item) {
    const std::vector<std::byte> key(item.key.bytes.begin(), item.key.bytes.end());
    if (op == TierOp::kStore) records.try_emplace(key, item.data, item.data + item.bytes);
    if (op == TierOp::kStore) return TierResult::kOk;
    const auto found = records.find(key);
    if (found == records.end()) return TierResult::kMiss;
    if (op == TierOp::kLoad) std::memcpy(item.data, found->second.data(), found->second.size());
    return TierResult::kOk;
  }
  std::vector<std::pair<TierOp, TierItem>> waiting_;
};

KVCacheManager manager_of(std::int32_t num_blocks) {
  const CacheSpec spec{.groups = {{.head_dim_k = kDim,
                                   .head_dim_v = kDim,
                                   .block_size = kBlock,
                                   .num_blocks = num_blocks}}};
  KVStorage storage = *KVStorage::create(spec);
  if (!storage.fill(std::byte{0xff}).ok()) std::abort();
  return *KVCacheManager::create(std::move(storage), {.max_sequences = 8, .list_findable = true});
}

template <typename Visit>
void for_each_row(KVCacheManager& manager, SequenceId id, std::int32_t from, std::int32_t end,
                  Visit&& visit) {
  const KVView view = *manager.storage()->view(GroupId(0));
  const auto table = *manager.block_table(id, GroupId(0));
  for (std::int32_t p = from; p < end; ++p) {
    const std::int32_t block = table[static_cast<std::size_t>(p / kBlock)];
    visit(reinterpret_cast<float*>(view.k_at(0, block, 0, p % kBlock)), p);
    visit(reinterpret_cast<float*>(view.v_at(0, block, 0, p % kBlock)), p);
  }
}

std::uint64_t hash_bytes(std::uint64_t before, const void* data, std::size_t bytes) {
  const auto* const at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) before = (before ^ at[i]) * 0x100000001b3u;
  return before;
}

std::uint64_t hash_of(KVCacheManager& manager, SequenceId id, std::int32_t num_tokens) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for_each_row(manager, id, 0, num_tokens, [&](const float* row, std::int32_t) {
    hash = hash_bytes(hash, row, kDim * sizeof *row);
  });
  return hash;
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

void compute(KVCacheManager& manager, SequenceId id, std::int32_t from) {
  const Ticket step = *manager.begin_step();
  must(manager.append(id, std::span(prompt).subspan(static_cast<std::size_t>(from))));
  if (!manager.plan()) std::exit(1);
  must(manager.run_copies());
  for_each_row(manager, id, from, kTokens, [](float* row, std::int32_t p) {
    for (int i = 0; i < kDim; ++i) {
      row[i] = static_cast<float>(prompt[static_cast<std::size_t>(p)] * 8 + i);
    }
  });
  must(manager.finish(step));
}

SequenceReady open(Offload& offload) {
  const OffloadOpened opened = *offload.open(prompt);
  SequenceReady ready{.sequence = opened.sequence, .cached_tokens = opened.cached_tokens};
  std::uint64_t now_us = 20000;
  for (bool pending = opened.pending; pending;) {
    for (const SequenceReady& one : offload.poll(now_us += 10)) {
      ready = one;
      pending = false;
    }
  }
  return ready;
}

void come_back(KVCacheManager& manager, Offload& offload, const char* from) {
  const SequenceReady ready = open(offload);
  std::printf(
      "%s: %d of %d tokens, %s, %016llx\n", from, ready.cached_tokens, kTokens,
      to_string(ready.why),
      static_cast<unsigned long long>(hash_of(manager, ready.sequence, ready.cached_tokens)));
  compute(manager, ready.sequence, ready.cached_tokens);
  must(manager.close(ready.sequence));
}

void offload() {
  ToyTier tier;
  const OffloadTier tiers[] = {{.tier = &tier}};
  const OffloadOptions options{.model = kToy, .arena_bytes = 1 << 16, .tiers = tiers};
  {
    KVCacheManager manager = manager_of(16);
    const std::unique_ptr<Offload> offload = *Offload::create(manager, options);
    const SequenceId said = manager.open(prompt)->sequence;
    compute(manager, said, 0);
    must(manager.close(said));
    for (std::uint64_t now_us = 1000; !offload->idle(); now_us += 10) offload->poll(now_us);
    std::printf("stored %d in the arena, %d in the tier of %d\n",
                static_cast<int>(offload->counters().stores),
                static_cast<int>(offload->counters().tier_stores),
                static_cast<int>(tier.records.size()));
    std::printf("%d blocks evicted\n", *manager.evict(GroupId(0), 100));
    come_back(manager, *offload, "from the arena");
    const Forgotten forgotten = offload->forget(RootKey());
    const SequenceReady none = open(*offload);
    std::printf("forgotten: %d blocks, %d tokens, epoch %d\n", static_cast<int>(forgotten.blocks),
                none.cached_tokens, static_cast<int>(offload->epoch()));
  }
  KVCacheManager manager = manager_of(9);
  const std::unique_ptr<Offload> offload = *Offload::create(manager, options);
  come_back(manager, *offload, "from the tier");
}

class MemoryFile final : public ByteSink, public ByteSource {
 public:
  std::vector<std::byte> bytes;
  Status write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    return {};
  }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(bytes.size());
  }
  Status read_at(std::int64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), bytes.data() + offset, out.size());
    return {};
  }
};

void save_and_restore() {
  MemoryFile file;
  KVCacheManager manager = manager_of(16);
  const Identity identity = *Identity::create(kToy, manager.spec());
  const SequenceId named = manager.open(prompt, {.caller_id = 7})->sequence;
  compute(manager, named, 0);
  const SnapshotSequence sequences[] = {{.sequence = named, .tokens = prompt}};
  const SaveStats saved = *save(manager, identity, file, {.sequences = sequences});
  std::printf("saved %d records, %d tokens, %d sequences: %016llx\n",
              static_cast<int>(saved.records), static_cast<int>(saved.tokens),
              static_cast<int>(saved.sequences),
              static_cast<unsigned long long>(hash_bytes(1, file.bytes.data(), file.bytes.size())));
  KVCacheManager other = manager_of(5);
  const RestoreStats stats = *restore(other, identity, file);
  const RestoredSequence& back = stats.sequences.front();
  std::printf("restored %d of %d records: sequence %d with %d tokens, %016llx\n",
              static_cast<int>(stats.records_loaded), static_cast<int>(stats.records),
              static_cast<int>(*back.caller_id), back.length,
              static_cast<unsigned long long>(hash_of(other, back.sequence, back.length)));
}

}  // namespace

int main() {
  std::iota(prompt.begin(), prompt.end(), 100);
  offload();
  save_and_restore();
  return 0;
}
