// SPDX-License-Identifier: Apache-2.0
#pragma once

// The data plane of a device: the functions of kernels.h over a cache in device memory. Each checks
// its arguments on the host, in the CPU's sentences, and hands kernels to a Queue, which stands for
// a stream: what starts them is no business of this file. They wait for nothing and allocate
// nothing, except for the text of an error.
//
// What they write has the bits that the CPU's functions write, NaN too. Rules that differ from
// kernels.h:
// - Slots and block tables lie in device memory, where the host cannot check them. A kernel leaves
//   alone what an entry out of range names, and reports the first one (Fault).
// - Slots of one append differ, but for -1: of equal ones it is not said which token stays.
// - Rows are f32, f16 or bf16. Caches are those, int8 or e4m3, in HND, NHD or any strides of rows;
// head
//   dims are multiples of 8 up to 1,024. kUnsupported names what is not.
// Thread safety: no state; a Queue belongs to one thread at a time.

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/move_args.h"
#include "cuda/queue.h"
#include "kvfolio/kernels.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda {

struct DeviceCache {
  KVView view = {};  // memory_kind is kDevice
};

// What a fault of append() says, and of gather(). Ok for kNoFault.
Status slot_fault(const KVView& cache, unsigned long long fault);
Status table_fault(const KVView& cache, unsigned long long fault);

// As kernels.h; `slots` is [num_slots] in device memory.
Status append(const DeviceCache& cache, std::int32_t layer, const ConstRowsView& k,
              const ConstRowsView& v, const std::int32_t* slots, std::size_t num_slots,
              Queue& queue, Fault fault = nullptr);

// As kernels.h, where args.block_table points to device memory. args.cache is not used.
Status gather(const DeviceCache& cache, const kvfolio::GatherArgs& args, Queue& queue,
              Fault fault = nullptr);

// As kernels.h. `src` and `dst` are host memory, read before the call returns. Pairs that depend on
// each other go in kernels that follow each other.
Status copy_blocks(const DeviceCache& cache, std::span<const std::int32_t> src,
                   std::span<const std::int32_t> dst, Queue& queue);
Status convert_blocks(const DeviceCache& from, const DeviceCache& to,
                      std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                      Queue& queue);

// Sets every byte of every row and scale, as KVStorage::fill().
Status fill(const DeviceCache& cache, std::byte value, Queue& queue);

// The image of block blocks[i], as KVStorage::read_blocks() makes it in `format`, from or to bytes
// [i * image_bytes, (i + 1) * image_bytes) of device memory that a stream then copies in one piece.
// Images begin at multiples of 16 bytes of device memory if the number of bytes of an image is one.
// A block is named once by unpack_blocks().
[[nodiscard]] std::int64_t image_bytes(const DeviceCache& cache) noexcept;
Status pack_blocks(const DeviceCache& cache, Format format, std::span<const std::int32_t> blocks,
                   std::byte* images, Queue& queue);
Status unpack_blocks(const DeviceCache& cache, Format format, std::span<const std::int32_t> blocks,
                     const std::byte* images, Queue& queue);

}  // namespace kvfolio::cuda
