// SPDX-License-Identifier: Apache-2.0
#pragma once

// The data plane of a device: the functions of kernels.h over a cache in its memory, on a stream.
// What they write has the bits that the CPU's functions write, NaN too, but for attend(), whose
// target is named after the card's architecture (docs/cuda-attention.md). The CPU's functions go on
// refusing views of device memory.
//
//   Result<std::shared_ptr<cuda::Kernels>> kernels = cuda::Kernels::load(device);
//   cuda::append(**kernels, view, layer, k, v, slots, stream);
//
// Rules that hold for all of them:
// - What only uses kernels takes `Kernels&`. What keeps them, since it starts some later
//   (DeviceMemory, DevicePlan, BatchAttention), takes the shared_ptr. An AttendPlan keeps none.
// - A stream is one of the device (cuda_device.h). Calls start kernels and return: they wait for
//   nothing and allocate nothing, except for the text of an error.
// - Views, rows, slots and block tables are of device memory; KVView::memory_kind says kDevice.
//   Lists of blocks that are copied are of host memory, read before the call returns.
// - Arguments are checked on the host, in the sentences of the CPU. Slots and entries of block
//   tables cannot be: a kernel leaves alone what an entry out of range names, and reports the first
//   one (Fault). attend() trusts its block table.
// - With KernelOptions::check_pointers the driver is asked whose memory each pointer is, and of
//   which device the stream: a pointer of the host where one of the device is due, or the reverse,
//   or another device, is kInvalidArgument by name.
// - Rows are f32, f16 or bf16; caches those, int8 or e4m3, in any strides of rows; head dims are
//   multiples of 8 up to 1,024 (attend(): 576). kUnsupported names what is not.
// Thread safety: Kernels may be used by several threads at once. A stream belongs to one at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "kvfolio/cuda_capacity.h"
#include "kvfolio/cuda_device.h"
#include "kvfolio/export.h"
#include "kvfolio/kernels.h"
#include "kvfolio/spec.h"
#include "kvfolio/status.h"
#include "kvfolio/view.h"

namespace kvfolio::cuda {

// Another one where a kernel may write other bits than before: part of the name of what is computed
// with them (ModelIdentity::engine). 2: head_dim 256 went from cuda-general to cuda-node on cards
// of compute capability 9.0, under the same engine; the two have other bits.
inline constexpr std::int32_t kKernelRevision = 2;

struct KernelOptions {
  // Some hundred nanoseconds for each pointer of a call. Off: a wrong one ends the context.
  bool check_pointers = true;
};

// The kernels of one device, loaded.
class KVFOLIO_API Kernels {
 public:
  // kUnavailable: this library was built without nvcc and has no kernels, or the driver refuses
  // them. kOutOfMemory. kInvalidArgument: a null device.
  static Result<std::shared_ptr<Kernels>> load(const std::shared_ptr<Device>& device,
                                               const KernelOptions& options = {});
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  [[nodiscard]] Device& device() const noexcept;
  // For the sources of this library.
  struct Impl;
  explicit Kernels(std::unique_ptr<Impl> impl) noexcept;
  [[nodiscard]] Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// ---- moves -------------------------------------------------------------------------------------

// In device memory, kNoEntry before the call: the first entry that named no place. Null: nothing is
// reported.
using Fault = unsigned long long*;
inline constexpr unsigned long long kNoEntry = ~0ull;
// What the word behind a Fault says, once it is on the host: of append(), and of gather(). Ok for
// kNoEntry.
KVFOLIO_API Status slot_fault(const KVView& cache, unsigned long long fault);
KVFOLIO_API Status table_fault(const KVView& cache, unsigned long long fault);

// As kernels.h. Slots differ, but for -1: of equal ones it is not said which token stays.
KVFOLIO_API Status append(Kernels& kernels, const KVView& cache, std::int32_t layer,
                          const ConstRowsView& k, const ConstRowsView& v,
                          std::span<const std::int32_t> slots, void* stream, Fault fault = nullptr);
// As kernels.h; args.block_table is of device memory.
KVFOLIO_API Status gather(Kernels& kernels, const kvfolio::GatherArgs& args, void* stream,
                          Fault fault = nullptr);
// As kernels.h. Pairs that depend on each other go in kernels that follow each other.
KVFOLIO_API Status copy_blocks(Kernels& kernels, const KVView& cache,
                               std::span<const std::int32_t> src, std::span<const std::int32_t> dst,
                               void* stream);
KVFOLIO_API Status convert_blocks(Kernels& kernels, const KVView& from, const KVView& to,
                                  std::span<const std::int32_t> src,
                                  std::span<const std::int32_t> dst, void* stream);
// Sets every byte of every row and scale.
KVFOLIO_API Status fill(Kernels& kernels, const KVView& cache, std::byte value, void* stream);

// ---- attention ---------------------------------------------------------------------------------

// One layer of a batch. Lengths are told twice: on the host, where the work is cut, and the same
// numbers in device memory, for the kernels.
struct DeviceAttention {
  KVView cache = {};  // head_dim_v > 0
  std::int32_t layer = 0;
  // Host memory, but for its block table: [n, block_table_stride] in device memory, of which
  // entries that no row sees may be anything.
  AttentionBatch batch = {};
  const std::int32_t* query_start = nullptr;      // device memory, [n + 1]
  const std::int32_t* kv_lens = nullptr;          // device memory, [n]
  const std::int32_t* trim_sinks = nullptr;       // device memory, [n]; null if the batch has none
  const std::int32_t* trim_first_kept = nullptr;  // the same
  AttentionParams params = {};                    // its slopes and sinks are of device memory
  ConstRowsView q = {};  // [query_start[n], q_heads, head_dim_k], aligned to 16 bytes
  RowsView out = {};     // [query_start[n], q_heads, head_dim_v], aligned to 16 bytes
  float* lse = nullptr;  // [query_start[n], q_heads], natural logarithm; null: not wanted
};

// How the work of a batch is cut. Good for every layer of the same shapes and strides.
class KVFOLIO_API AttendPlan {
 public:
  AttendPlan(AttendPlan&&) noexcept;
  AttendPlan& operator=(AttendPlan&&) noexcept;
  ~AttendPlan();

  // What the kernels read of the plan: to be copied to device memory, aligned to 16 bytes, before
  // attend() runs (upload() does it).
  [[nodiscard]] std::span<const std::byte> image() const noexcept;
  // Device memory that attend() writes, aligned to 16 bytes; null if these are 0. Both grow with
  // the lengths (cuda_wrapper.h has a bound). Its first zeroed_bytes() are zero before the first
  // call, and each call leaves them so.
  [[nodiscard]] std::int64_t workspace_bytes() const noexcept;
  [[nodiscard]] std::int64_t zeroed_bytes() const noexcept;
  // "cuda-sm90-general" or "cuda-sm90-tiles", by the card's architecture: rows of one name have one
  // set of bits.
  [[nodiscard]] std::string_view target() const noexcept;
  // "cuda-sm86-tiles: cuda-narrow, cuda-node; left out: cuda-prefill of bf16, head_dim 128, takes
  // 207360 bytes of shared memory for a block, device 0 (...) has 101376": the target, the kernels
  // that attend() starts, and those that the card has no room for, whose calls others take.
  [[nodiscard]] std::string explain() const;
  // Changes with the lengths of a batch, where more or less work is started for them; that of a
  // padded plan follows from the capacity, with max_sequences and max_sequences x max_queries.
  [[nodiscard]] AttendShape shape() const noexcept;
  // All 0, but for max_queries, where the plan is not padded.
  [[nodiscard]] AttendCapacity capacity() const noexcept;
  // Whether a graph that captured attend() with this padded plan serves the batch, for a replay
  // whose plan is made on the device: only lengths are looked at, in the block table of the stride
  // that was planned with. kInvalidArgument: more than the capacity, with both numbers.
  // kFailedPrecondition: the plan is not padded.
  [[nodiscard]] Status check(const AttentionBatch& batch) const;

  // For the sources of this library.
  struct Impl;
  explicit AttendPlan(std::unique_ptr<Impl> impl) noexcept;
  [[nodiscard]] const Impl& impl() const noexcept { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Checks a call and cuts its work; nothing on the device. The first plan of an element type and
// head dim loads its kernels, so make one before graphs are captured. kInvalidArgument: what
// kernels.h says of attend(), rows that are not aligned to 16 bytes (8-byte rows: to 8), a layer
// above 64 GiB. kUnsupported: head dims that are no multiple of 8 or above 576, blocks of more than
// 256 tokens, rows of f64, opaque bytes, a card or an element type that this build has no kernels
// for.
KVFOLIO_API Result<AttendPlan> plan_attend(Kernels& kernels, const DeviceAttention& call);
// The same, padded: shape(), image().size() and workspace_bytes() follow from the capacity and the
// call's shapes, strides and parameters, so one captured attend() serves every batch within the
// capacity whose plan was uploaded to the same place. Rows have the bits of the other plan. Arrays
// of lengths in device memory, the block table, q and out have room for the capacity; where the
// batch has no rows, the first two entries of query_start are 0. A batch of no sequences has trims
// if both arrays of them are given. kInvalidArgument, with both numbers: the batch is larger than
// the capacity, a row of the block table holds less than max_sequence_tokens, the image would have
// more than 4 GiB.
KVFOLIO_API Result<AttendPlan> plan_attend(Kernels& kernels, const DeviceAttention& call,
                                           const AttendCapacity& capacity);
// Makes the image of a padded plan on the device by one kernel, from the lengths that lie there
// (query_start, kv_lens and trims of the call): the bytes that plan_attend() makes of the same
// lengths, and zeroes zeroed_bytes() of `workspace`. May be captured in front of attend(): a replay
// needs no plan of the host. `call` is checked as attend() checks it; of its batch only the number
// of sequences and rows is looked at. num_sequences: in device memory, how many sequences there are
// (DevicePlanArrays::counts); null: the arrays have max_sequences, the last ones without rows.
// What no host has checked: a batch over the capacity makes an empty plan, whose rows are not
// written, and is reported (Fault: the first such sequence; max_sequences: all of them together).
// attend() behind an empty plan reads the lengths of one sequence within the capacity, and a row of
// q that it names. If no sequence of the batch is within it, those of sequence 0 are read as they
// are, and may name any place: then read the fault before attend() is started.
// kFailedPrecondition: the plan is not padded.
KVFOLIO_API Status plan_on_device(Kernels& kernels, const DeviceAttention& call,
                                  const AttendPlan& plan, std::byte* image, std::byte* workspace,
                                  void* stream, const std::int32_t* num_sequences = nullptr,
                                  Fault fault = nullptr);
// What the word behind its Fault says, once it is on the host. Ok for kNoEntry.
KVFOLIO_API Status plan_fault(const AttendPlan& plan, unsigned long long fault);
// Through `pinned`, pinned memory of at least image().size() bytes that is not written again before
// the stream has passed, to `image`; and zeroes zeroed_bytes() of `workspace`.
// kFailedPrecondition: the stream is being captured: plans are uploaded in front of a graph.
KVFOLIO_API Status upload(Kernels& kernels, const AttendPlan& plan, std::span<std::byte> pinned,
                          std::byte* image, std::byte* workspace, void* stream);
// Copies what lies in pinned memory to device memory, in the order of the stream: the lengths of a
// batch, beside its plan. kInvalidArgument: null, memory of the other kind.
KVFOLIO_API Status upload(Kernels& kernels, std::span<const std::byte> pinned, std::byte* to,
                          void* stream);
// softmax(scale * q k^T + mask) v of every row. kInvalidArgument, with what differs: a call of
// other shapes, strides or parameters than the plan's: scale, soft_cap, causal, rule, and whether
// there are slopes, sink logits and trims. Each layer may have slopes and logits of its own.
// Lengths are those of the plan: only their number is looked at, which for a padded plan is at most
// that of its capacity; q and out of such a plan are checked where the batch has no rows, too, and
// a batch of no sequences may come without trims, but where it is captured.
KVFOLIO_API Status attend(Kernels& kernels, const DeviceAttention& call, const AttendPlan& plan,
                          const std::byte* image, std::byte* workspace, void* stream);

}  // namespace kvfolio::cuda
