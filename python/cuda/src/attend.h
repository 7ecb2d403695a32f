// SPDX-License-Identifier: Apache-2.0
#pragma once

// Attention over tensors of a device: a batch, its plan, and the memory that plans lie in, which
// one plan passes on to the next.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "call.h"
#include "kvfolio/cuda_kernels.h"
#include "kvfolio/kernels.h"

namespace kvfolio::python {

// Lengths on the host, and the table on the device.
struct CudaBatch {
  std::vector<std::int32_t> query_start, kv_lens, trim_sinks, trim_first_kept;
  nb::object block_table;
  bool has_trims = false;  // even if it has no sequences
};
AttentionBatch host_batch(const CudaBatch& batch);

// What plans have on the device: lengths, images, workspace. A piece grows, and then the plan gets
// another one once the kernels of plans before it have ended; so does all of it at its end.
class PlanMemory {
 public:
  struct Piece {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  // Pinned memory of one upload, and where that has passed.
  struct Sent {
    cuda::PinnedMemory pinned;
    LastWork last;
  };

  explicit PlanMemory(std::shared_ptr<DeviceState> device) : device_(std::move(device)) {}
  PlanMemory(const PlanMemory&) = delete;
  PlanMemory& operator=(const PlanMemory&) = delete;
  ~PlanMemory();

  // Requires, of all three: no GIL.
  Status reserve_lengths(std::int64_t bytes) { return reserve(lengths_, bytes); }
  Status reserve_work(std::int64_t bytes) { return reserve(work_, bytes); }
  // The piece that was written longest ago, once its upload has passed.
  Result<Sent*> next_sent(std::int64_t bytes);

  [[nodiscard]] std::byte* lengths() const { return lengths_.data; }
  [[nodiscard]] std::byte* work() const { return work_.data; }
  [[nodiscard]] const std::shared_ptr<DeviceState>& device() const { return device_; }
  LastWork last;  // guarded by the device's mutex

 private:
  Status reserve(Piece& piece, std::int64_t bytes);
  void give_back() noexcept;

  std::shared_ptr<DeviceState> device_;
  Piece lengths_, work_;
  std::array<Sent, 2> sent_;
  std::size_t turn_ = 0;
};

// A batch whose work is cut.
struct PlanState {
  std::unique_ptr<PlanMemory> memory;  // null: another plan has it
  CudaBatch batch;
  AttentionParams params;                        // without slopes and logits
  nb::object alibi_slopes, sink_logits;          // of layers that give none
  std::optional<cuda::AttendPlan> plan;          // set once it is cut
  std::int64_t image_bytes = 0;                  // of work(), before the workspace
  std::optional<cuda::AttendCapacity> capacity;  // of a padded plan
  // Only with it: the call that the plan was cut for, over its own memory in place of tensors.
  cuda::DeviceAttention looks;
  // Lengths that plan_on_device() read, tensors of the device; none: those in the plan's memory.
  std::vector<nb::object> there;
};

struct CudaAttendPlan {
  std::shared_ptr<PlanState> state;
};

// Entries of query_start, kv_lens and trims in the plan's memory, one behind the other: those of
// the batch; of a padded plan, of its capacity, so that addresses stay. 0: no trims.
std::array<std::int64_t, 4> length_entries(const PlanState& state);
std::int64_t length_bytes(const PlanState& state);
// The word that a kernel which plans reports to, behind them.
inline cuda::Fault fault_of(const PlanState& state) {
  return reinterpret_cast<cuda::Fault>(state.memory->lengths() + (length_bytes(state) - 8));
}
// The address of one of `there`: `which` of query_start, kv_lens and trims. Raises with its name
// for another type or shape, or less room than the capacity has.
const std::int32_t* length_there(const Lent& tensor, std::size_t which,
                                 const cuda::AttendCapacity& capacity);
inline constexpr std::array<const char*, 4> kLengthNames = {"query_start", "kv_lens", "trim_sinks",
                                                            "trim_first_kept"};
// Raises FailedPrecondition if another plan has the memory.
void check_has_memory(const PlanState& state);
nb::tuple shape_tuple(const cuda::AttendShape& shape);

void add_attend(nb::module_& m);
void add_padded(nb::module_& m, nb::class_<CudaAttendPlan>& plan);
void add_batch_attention(nb::module_& m);

}  // namespace kvfolio::python
