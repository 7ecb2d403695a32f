// SPDX-License-Identifier: Apache-2.0
#include "state_reader.h"

#include <algorithm>

#include "base/state_writer.h"
#include "manager/impl.h"

namespace kvfolio::explore {

namespace {

const auto& impl(const KVCacheManager& manager) { return ManagerInside::of(manager); }

template <typename Impl>
std::vector<std::int32_t> open_rows(const Impl& impl, bool swap) {
  std::vector<std::int32_t> rows;
  for (std::int32_t row = 0; row < impl.rows_.size(); ++row) {
    if (impl.rows_[row].life == Sequence::Life::kOpen) rows.push_back(row);
  }
  if (swap) std::reverse(rows.begin(), rows.end());
  return rows;
}

}  // namespace

void StateReader::write(const KVCacheManager& manager, bool swap, std::vector<std::int32_t>& out) {
  out.clear();
  StateWords words(&out);
  StateWriter writer(words, StateWriter::Extent::kWithoutUses);
  KVFOLIO_CHECK(impl(manager).put_state(open_rows(impl(manager), swap), writer).ok());
}

std::vector<SequenceId> StateReader::open_order(const KVCacheManager& manager, bool swap) {
  std::vector<SequenceId> ids;
  for (const std::int32_t row : open_rows(impl(manager), swap)) {
    ids.push_back(impl(manager).rows_.id_of(impl(manager).rows_[row]));
  }
  return ids;
}

BlockState StateReader::block_state(const KVCacheManager& manager, BlockId block) {
  return impl(manager).blocks_.pool(0).state(block);
}

bool StateReader::replays(const KVCacheManager& manager, SequenceId sequence) {
  return impl(manager).rows_[PackedId::row_of(sequence.value())].replay;
}

bool StateReader::publishes(const KVCacheManager& manager, SequenceId sequence) {
  return impl(manager).rows_[PackedId::row_of(sequence.value())].publishes;
}

std::vector<std::int32_t> StateReader::ready(const KVCacheManager& manager, SequenceId sequence) {
  std::vector<std::int32_t> blocks;
  const std::int32_t row = PackedId::row_of(sequence.value());
  if (impl(manager).promises_.has(row)) {
    impl(manager).promises_.reservations().for_each_ready(
        row, 0, [&](BlockId block) { blocks.push_back(block.value()); });
  }
  return blocks;
}

bool StateReader::has_pin(const KVCacheManager& manager) {
  return impl(manager).pins_.num_open() > 0;
}

std::vector<FoundBlock> StateReader::findable(const KVCacheManager& manager) {
  std::vector<FoundBlock> found;
  const std::int32_t num_blocks = manager.spec().groups[0].num_blocks;
  for (std::int32_t block = 0; block < num_blocks; ++block) {
    const std::int32_t end = *manager.findable_end(GroupId(0), BlockId(block));
    if (end == 0) continue;
    FoundBlock entry{block, end, std::vector<std::int32_t>(static_cast<std::size_t>(end))};
    KVFOLIO_CHECK(manager.prefix_of(GroupId(0), BlockId(block), 0, entry.tokens).has_value());
    found.push_back(std::move(entry));
  }
  return found;
}

}  // namespace kvfolio::explore
