// SPDX-License-Identifier: Apache-2.0

// BlockStore: blocks and their bytes without a manager.

#include "kvfolio/block_store.h"

#include "arrays.h"
#include "cache_view.h"
#include "storage.h"

namespace kvfolio::python {
namespace {

BlockStore make_blocks(nb::handle group) {
  const CacheSpec spec = spec_of(nb::make_tuple(nb::borrow(group)), "group");
  return take(BlockStore::create(spec.groups[0]));
}

nb::object allocate_blocks(BlockStore& store, Int num_blocks) {
  const std::int32_t most = i32(num_blocks, "num_blocks");
  if (most < 0) raise_invalid("num_blocks is " + std::to_string(most) + ", allowed: 0 and above");
  // One more than there are says as much as any number.
  const std::int32_t count = std::min(most, store.num_blocks() + 1);
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(count));
  check(store.allocate(blocks));
  return numpy_copy(std::span<const std::int32_t>(blocks));
}

nb::object read_blocks(const BlockStore& store, nb::handle blocks) {
  const Input<std::int32_t> ids(blocks, "blocks");
  const auto bytes = static_cast<std::size_t>(store.block_image_bytes());
  auto* const images = new std::vector<std::uint8_t>(ids.span().size() * bytes);
  const nb::capsule owner(
      images, [](void* p) noexcept { delete static_cast<std::vector<std::uint8_t>*>(p); });
  check(store.read(ids.span(), std::as_writable_bytes(std::span(*images))));
  return numpy_array(images->data(), {ids.span().size(), bytes}, owner);
}

void write_blocks(BlockStore& store, nb::handle blocks, nb::handle images) {
  const Input<std::int32_t> ids(blocks, "blocks");
  const Array bytes = array_of(images, "images", Access::kRead);
  const bool fits = bytes.array.ndim() == 2 && bytes.item_bytes() == 1 &&
                    bytes.size(0) == static_cast<std::int64_t>(ids.size()) &&
                    bytes.size(1) == store.block_image_bytes();
  const auto gaps = [&] {
    return (bytes.size(1) > 1 && bytes.stride(1) != 1) ||
           (bytes.size(0) > 1 && bytes.stride(0) != bytes.size(1));
  };
  if (!fits || gaps()) {
    raise_invalid("images: " + describe(bytes.array) + ", wanted: contiguous bytes of shape (" +
                  std::to_string(ids.size()) + ", " + std::to_string(store.block_image_bytes()) +
                  ")");
  }
  const std::size_t total = ids.span().size() * static_cast<std::size_t>(bytes.size(1));
  check(store.write(ids.span(), std::span<const std::byte>(bytes.data, total)));
}

void add_blocks_in_use(nb::class_<BlockStore>& c) {
  c.def("allocate", &allocate_blocks, "num_blocks"_a,
        nb::sig("def allocate(self, num_blocks: int) -> kvfolio._types.Int32Array"),
        "Takes free blocks, all or none; each has one reference then. ResourceExhausted: fewer are "
        "free.")
      .def(
          "hold",
          [](BlockStore& store, nb::handle blocks) {
            const Input<std::int32_t> ids(blocks, "blocks");
            check(store.hold(ids.span()));
          },
          "blocks"_a, nb::sig("def hold(self, blocks: kvfolio._types.Int32Input) -> None"),
          "Adds a reference to each block, all or none. FailedPrecondition: a block is free.")
      .def(
          "release",
          [](BlockStore& store, nb::handle blocks) {
            const Input<std::int32_t> ids(blocks, "blocks");
            check(store.release(ids.span()));
          },
          "blocks"_a, nb::sig("def release(self, blocks: kvfolio._types.Int32Input) -> None"),
          "Takes a reference from each, all or none. A block without any is free.")
      .def(
          "make_writable",
          [](BlockStore& store, Int block) {
            return take(store.make_writable(BlockId(i32(block, "block")))).value();
          },
          "block"_a, nb::sig("def make_writable(self, block: int) -> int"),
          "The block to write in place of this one: itself, or if others hold it too a copy, to "
          "which the caller's reference moves.")
      .def(
          "ref_count",
          [](const BlockStore& store, Int block) {
            return take(store.ref_count(BlockId(i32(block, "block"))));
          },
          "block"_a, nb::sig("def ref_count(self, block: int) -> int"), "0: the block is free.");
}

}  // namespace

void add_block_store(nb::module_& m) {
  nb::class_<BlockStore> c(m, "BlockStore",
                           "The blocks of one group, who uses them, and their bytes: no sequences, "
                           "no steps, nothing is found again.");
  c.def(
      "__init__",
      [](BlockStore* self, nb::handle group) { new (self) BlockStore(make_blocks(group)); },
      "group"_a, nb::sig("def __init__(self, group: kvfolio._types.GroupSpec) -> None"));
  add_blocks_in_use(c);
  c.def("read", &read_blocks, "blocks"_a,
        nb::sig("def read(self, blocks: kvfolio._types.Int32Input) -> "
                "numpy.typing.NDArray[numpy.uint8]"),
        "A copy of all bytes of each block, [blocks, block_image_bytes].")
      .def("write", &write_blocks, "blocks"_a, "images"_a,
           nb::sig("def write(self, blocks: kvfolio._types.Int32Input, images: "
                   "kvfolio._types.Array) -> None"),
           "Copies what read() gave to blocks. FailedPrecondition: a block has several references.")
      .def("__repr__", [](const BlockStore& store) { return "<" + to_string(store) + ">"; })
      .def(
          "view",
          [](nb::handle_t<BlockStore> self) {
            return View{object_of<BlockStore>(self, "self", "a BlockStore").view(),
                        nb::borrow(self)};
          },
          nb::sig("def view(self) -> View"),
          "For the kernels, all layers. They write to any block: make_writable() comes before.")
      .def_prop_ro("num_blocks", &BlockStore::num_blocks)
      .def_prop_ro("num_free", &BlockStore::num_free)
      .def_prop_ro("block_image_bytes", &BlockStore::block_image_bytes)
      .def_prop_ro("memory_bytes", &BlockStore::memory_bytes);
}

}  // namespace kvfolio::python
