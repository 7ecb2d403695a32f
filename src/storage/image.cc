// SPDX-License-Identifier: Apache-2.0

// Images of blocks: all bytes of a block in one piece, in the order of the group's format and
// without padding (storage.h says which). One function walks over the pieces of a block in that
// order and joins those that follow each other in memory; all else copies or lists them. In the
// library's own layouts a layer of a block is one piece, unless scales are padded.

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/row_nest.h"
#include "base/text.h"
#include "kvfolio/storage.h"
#include "kvfolio/view.h"
#include "storage/borrow.h"
#include "storage/said.h"

namespace kvfolio {
namespace {

using storage::layer_of;
using text::concat;

// Pieces in the order of the image; those that touch are one.
template <typename Visit>
class Joined {
 public:
  explicit Joined(Visit visit) noexcept : visit_(std::move(visit)) {}
  void add(std::byte* memory, std::int64_t bytes) noexcept {
    if (bytes == 0) return;
    if (memory == memory_ + bytes_) {
      bytes_ += bytes;
      return;
    }
    end();
    memory_ = memory;
    bytes_ = bytes;
  }
  void end() noexcept {
    if (bytes_ > 0) visit_(offset_, memory_, bytes_);
    offset_ += bytes_;
    bytes_ = 0;
  }

 private:
  Visit visit_;
  std::int64_t offset_ = 0;
  std::byte* memory_ = nullptr;
  std::int64_t bytes_ = 0;
};

// `outer` times `inner` rows at these strides, as few pieces as they are.
template <typename Pieces>
void add_rows(Pieces& pieces, std::byte* base, std::int64_t row_bytes, const Axis& outer,
              const Axis& inner) noexcept {
  const bool is_run = inner.extent == 1 || inner.stride == row_bytes;
  const std::int64_t run = row_bytes * inner.extent;
  for (std::int64_t i = 0; i < outer.extent; ++i) {
    std::byte* at = base + i * outer.stride;
    if (is_run) {
      pieces.add(at, run);
      continue;
    }
    for (std::int64_t j = 0; j < inner.extent; ++j) pieces.add(at + j * inner.stride, row_bytes);
  }
}

// A block of one layer, which is layer 0 of its view.
template <typename Pieces>
void add_layer(Pieces& pieces, const KVView& view, Format format, std::int32_t block) noexcept {
  const ViewParts parts = parts_of(view);
  if (format == Format::kNhd) {
    for (const ViewPart& part : parts.all()) {
      add_rows(pieces, part.at(0, block, 0, 0), part.row_bytes, {part.num_rows, part.strides.token},
               {view.num_kv_heads, part.strides.head});
    }
    return;
  }
  for (std::int32_t head = 0; head < view.num_kv_heads; ++head) {
    for (const ViewPart& part : parts.all()) {
      add_rows(pieces, part.at(0, block, head, 0), part.row_bytes, {1, 0},
               {part.num_rows, part.strides.token});
    }
  }
}

// visit(offset in the image, memory, bytes) for each piece of a block.
template <typename Visit>
void for_each_piece(const storage::GroupViews& views, const GroupSpec& spec, std::int32_t block,
                    Visit&& visit) noexcept {
  Joined pieces(std::forward<Visit>(visit));
  for (std::int32_t layer = 0; layer < spec.num_layers; ++layer) {
    add_layer(pieces, layer_of(views, layer), spec.format, block);
  }
  pieces.end();
}

// Copies that the resource gets together, by `copy`. None behind one that failed. A resource that
// has no such copies says so even where there is nothing to copy.
template <typename Copy>
class Batch {
 public:
  Batch(std::string_view what, Copy copy) noexcept : what_(what), copy_(std::move(copy)) {}
  void add(const CopyRun& run) {
    if (size_ == runs_.size()) flush();
    runs_[size_++] = run;
  }
  [[nodiscard]] Status end() {
    flush();
    return storage::said(what_, status_);
  }

 private:
  void flush() {
    const auto runs = std::span(runs_).first(std::exchange(size_, 0));
    if (status_.ok()) status_ = copy_(runs);
  }

  std::string_view what_;
  Copy copy_;
  Status status_;
  std::array<CopyRun, 64> runs_;
  std::size_t size_ = 0;
};

}  // namespace

std::int64_t KVStorage::block_image_bytes(GroupId group) const noexcept {
  const std::int32_t g = group.value();
  if (g < 0 || g >= num_groups()) return 0;
  const KVView& view = views_of(group).front();
  std::int64_t bytes = 0;
  const ViewParts parts = parts_of(view);
  for (const ViewPart& part : parts.all()) bytes += part.row_bytes * part.num_rows;
  return bytes * view.num_kv_heads * spec_.groups[static_cast<std::size_t>(g)].num_layers;
}

Status KVStorage::check_images(std::string_view what, GroupId group,
                               std::span<const std::int32_t> blocks,
                               std::size_t image_bytes) const {
  KVFOLIO_RETURN_IF_ERROR(check_group(group));
  const std::int32_t num_blocks = views_of(group).front().num_blocks;
  for (const std::int32_t block : blocks) {
    if (block >= 0 && block < num_blocks) continue;
    return {ErrorCode::kInvalidArgument,
            concat(what, " of block ", block, ": group ", group.value(), " has blocks 0 to ",
                   num_blocks - 1)};
  }
  const auto of_one = static_cast<std::size_t>(block_image_bytes(group));
  if (image_bytes / of_one == blocks.size() && image_bytes % of_one == 0) return {};
  return {ErrorCode::kInvalidArgument,
          concat(what, ": ", image_bytes, " bytes for the images of ", blocks.size(),
                 " blocks of group ", group.value(), ", which take ", of_one, " each")};
}

Status KVStorage::read_blocks(GroupId group, std::span<const std::int32_t> blocks,
                              std::span<std::byte> images) const {
  KVFOLIO_RETURN_IF_ERROR(check_images("read_blocks", group, blocks, images.size()));
  Batch batch("read_blocks",
              [&](std::span<const CopyRun> runs) { return resource_->copy_out(runs); });
  std::byte* image = images.data();
  for (const std::int32_t block : blocks) {
    for_each_piece(views_of(group), spec_.groups[static_cast<std::size_t>(group.value())], block,
                   [&](std::int64_t offset, const std::byte* memory, std::int64_t bytes) {
                     batch.add({image + offset, memory, bytes});
                   });
    image += block_image_bytes(group);
  }
  return batch.end();
}

Status KVStorage::write_blocks(GroupId group, std::span<const std::int32_t> blocks,
                               std::span<const std::byte> images) {
  KVFOLIO_RETURN_IF_ERROR(check_images("write_blocks", group, blocks, images.size()));
  Batch batch("write_blocks",
              [&](std::span<const CopyRun> runs) { return resource_->copy_in(runs); });
  const std::byte* image = images.data();
  for (const std::int32_t block : blocks) {
    for_each_piece(views_of(group), spec_.groups[static_cast<std::size_t>(group.value())], block,
                   [&](std::int64_t offset, std::byte* memory, std::int64_t bytes) {
                     batch.add({memory, image + offset, bytes});
                   });
    image += block_image_bytes(group);
  }
  return batch.end();
}

bool KVStorage::copies_later() const noexcept {
  return resource_ != nullptr && resource_->copies_later();
}

Result<CopyTicket> KVStorage::submit_read(GroupId group, std::int32_t block,
                                          std::span<std::byte> image, void* stream) const {
  KVFOLIO_RETURN_IF_ERROR(check_images("submit_read", group, {&block, 1}, image.size()));
  std::vector<CopyRun> runs;
  for_each_piece(views_of(group), spec_.groups[static_cast<std::size_t>(group.value())], block,
                 [&](std::int64_t offset, const std::byte* memory, std::int64_t bytes) {
                   runs.push_back({image.data() + offset, memory, bytes});
                 });
  Result<CopyTicket> ticket = resource_->submit(runs, CopyDirection::kOut, stream);
  if (!ticket) return storage::not_begun("submit_read", ticket.error());
  return ticket;
}

Result<CopyTicket> KVStorage::submit_write(GroupId group, std::int32_t block,
                                           std::span<const std::byte> image, void* stream) {
  KVFOLIO_RETURN_IF_ERROR(check_images("submit_write", group, {&block, 1}, image.size()));
  std::vector<CopyRun> runs;
  for_each_piece(views_of(group), spec_.groups[static_cast<std::size_t>(group.value())], block,
                 [&](std::int64_t offset, std::byte* memory, std::int64_t bytes) {
                   runs.push_back({memory, image.data() + offset, bytes});
                 });
  Result<CopyTicket> ticket = resource_->submit(runs, CopyDirection::kIn, stream);
  if (!ticket) return storage::not_begun("submit_write", ticket.error());
  return ticket;
}

Result<bool> KVStorage::poll_copy(CopyTicket ticket) const {
  Result<bool> over = resource_->poll(ticket);
  if (!over) return storage::failed("poll_copy", over.error());
  return over;
}

void KVStorage::leave_copy(CopyTicket ticket) const noexcept { resource_->leave(ticket); }

Result<std::int64_t> KVStorage::image_runs(GroupId group, std::int32_t block, std::int64_t first,
                                           std::span<ImageRun> out) const {
  KVFOLIO_RETURN_IF_ERROR(check_group(group));
  KVFOLIO_RETURN_IF_ERROR(check_images("image_runs", group, {&block, 1},
                                       static_cast<std::size_t>(block_image_bytes(group))));
  if (first < 0) {
    return Status(ErrorCode::kInvalidArgument,
                  concat("image_runs from number ", first, ", allowed: 0 and above"));
  }
  if (memory_kind() != MemoryKind::kHost) {
    return Status(ErrorCode::kUnsupported,
                  concat("image_runs of ", std::string_view(to_string(memory_kind())), " memory"));
  }
  std::int64_t count = 0;
  for_each_piece(views_of(group), spec_.groups[static_cast<std::size_t>(group.value())], block,
                 [&](std::int64_t offset, std::byte* memory, std::int64_t bytes) {
                   const std::int64_t at = count++ - first;
                   if (at < 0 || at >= static_cast<std::int64_t>(out.size())) return;
                   out[static_cast<std::size_t>(at)] = {offset, memory, bytes};
                 });
  return count;
}

}  // namespace kvfolio
