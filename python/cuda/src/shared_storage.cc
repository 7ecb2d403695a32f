// SPDX-License-Identifier: Apache-2.0

// The storage of a manager in the memory of a kvfolio.cuda.Storage: two objects of C++ over the
// same bytes, so that each may end first. The manager keeps the other one alive.

#include "bridge.h"
#include "cuda_storage.h"
#include "kvfolio/memory.h"

namespace kvfolio::python {
namespace {

// DeviceMemory's copies wait for nothing that was enqueued on streams. Those of a manager
// (run_copies(), images of blocks) come behind it: an append of the step before may still write
// the block that is copied.
class OrderedMemory final : public MemoryResource {
 public:
  explicit OrderedMemory(const StorageState& state) : state_(state) {}

  [[nodiscard]] MemoryKind kind() const noexcept override { return memory().kind(); }
  Result<std::byte*> allocate(std::int64_t bytes) override { return memory().allocate(bytes); }
  void deallocate(std::byte* data, std::int64_t bytes) noexcept override {
    memory().deallocate(data, bytes);
  }
  Status copy(std::byte* dst, const std::byte* src, std::int64_t bytes) noexcept override {
    return behind([&](auto& memory) { return memory.copy(dst, src, bytes); });
  }
  Status copy_batch(std::span<const CopyRun> runs) noexcept override {
    return behind([&](auto& memory) { return memory.copy_batch(runs); });
  }
  Status copy_in(std::span<const CopyRun> runs) noexcept override {
    return behind([&](auto& memory) { return memory.copy_in(runs); });
  }
  Status copy_out(std::span<const CopyRun> runs) noexcept override {
    return behind([&](auto& memory) { return memory.copy_out(runs); });
  }
  // Not behind it: an Offload names blocks that no step in flight writes or reads (complete()).
  [[nodiscard]] bool copies_later() const noexcept override { return memory().copies_later(); }
  Result<CopyTicket> submit(std::span<const CopyRun> runs, CopyDirection direction,
                            void* stream) noexcept override {
    return memory().submit(runs, direction, stream);
  }
  Result<bool> poll(CopyTicket ticket) noexcept override { return memory().poll(ticket); }
  void leave(CopyTicket ticket) noexcept override { memory().leave(ticket); }

 private:
  [[nodiscard]] cuda::DeviceMemory& memory() const { return state_.device->memory(); }
  template <typename Copy>
  Status behind(Copy&& copy) const noexcept {
    Status status = state_.device->wait(state_.last);
    return status.ok() ? copy(memory()) : status;
  }
  const StorageState& state_;
};

// Bytes that a plane of a view reaches from its first row on.
std::int64_t bytes_of(const KVView& view, const KVStrides& strides, std::int64_t row_bytes) {
  const auto along = [](std::int64_t count, std::int64_t stride) {
    return count > 1 ? (count - 1) * stride : 0;
  };
  return along(view.num_layers, strides.layer) + along(view.num_blocks, strides.block) +
         along(view.num_kv_heads, strides.head) + along(view.block_size, strides.token) + row_bytes;
}

BorrowedGroup group_of(const KVView& view, const GroupSpec& spec) {
  const bool has_v = spec.head_dim_v > 0 && !spec.v_is_prefix_of_k;
  const std::int64_t item = dtype_bytes(spec.dtype);
  BorrowedGroup group;
  group.k = view.k;
  group.k_strides = view.k_strides;
  group.k_bytes = bytes_of(view, view.k_strides, item * spec.head_dim_k);
  if (has_v) {
    group.v = view.v;
    group.v_strides = view.v_strides;
    group.v_bytes = bytes_of(view, view.v_strides, item * spec.head_dim_v);
  }
  if (!has_scales(spec.dtype)) return group;
  constexpr std::int64_t kScale = sizeof(float);
  group.k_scale = view.k_scale;
  group.k_scale_strides = view.k_scale_strides;
  group.k_scale_bytes = bytes_of(view, view.k_scale_strides, kScale);
  if (has_v) {
    group.v_scale = view.v_scale;
    group.v_scale_strides = view.v_scale_strides;
    group.v_scale_bytes = bytes_of(view, view.v_scale_strides, kScale);
  }
  return group;
}

// A storage over the same bytes.
KVStorage second_of(StorageState& state) {
  const KVStorage& first = *state.storage;
  std::vector<BorrowedGroup> groups;
  std::vector<std::vector<BorrowedLayer>> bases(first.spec().groups.size());
  for (std::size_t i = 0; i < bases.size(); ++i) {
    const GroupSpec& spec = first.spec().groups[i];
    const GroupId id(static_cast<std::int32_t>(i));
    if (const Result<KVView> all = first.view(id)) {
      groups.push_back(group_of(*all, spec));
      continue;
    }
    for (std::int32_t layer = 0; layer < spec.num_layers; ++layer) {
      const BorrowedGroup one = group_of(take(first.view(id, layer)), spec);
      bases[i].push_back({one.k, one.v, one.k_scale, one.v_scale});
      if (layer == 0) groups.push_back(one);
    }
    BorrowedGroup& group = groups.back();
    group.k = group.v = group.k_scale = group.v_scale = nullptr;
    group.layers = bases[i];
  }
  if (state.ordered == nullptr) state.ordered = std::make_unique<OrderedMemory>(state);
  return take(KVStorage::borrow(first.spec(), groups, state.ordered.get()));
}

}  // namespace

nb::capsule bridge_of(const CudaStorage& storage) {
  StorageState& state = *storage.state();
  return make_storage_bridge(second_of(state), state.taken);
}

}  // namespace kvfolio::python
