// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every call that starts kernels on a view does.

#include <memory>
#include <utility>
#include <vector>

#include "cuda_storage.h"

namespace kvfolio::python {

// One call on a view: its stream, its tensors, what it leaves behind.
class Call {
 public:
  Call(const CudaView& cache, nb::handle stream, bool keep)
      : state_(cache.state), stream_(stream_of(stream)) {
    if (keep) lasts_.push_back(&state_->last);
  }

  [[nodiscard]] cuda::Kernels& kernels() const { return state_->device->kernels(); }
  [[nodiscard]] void* stream() const { return stream_; }
  [[nodiscard]] Consumer consumer() const { return state_->device->consumer(stream_); }
  // Other memory that the call uses.
  void uses(LastWork& last) {
    if (!lasts_.empty() && &last != lasts_.front()) lasts_.push_back(&last);
  }
  [[nodiscard]] Lent lent(nb::handle object, const char* name, Use use) const {
    return lent_of(object, name, consumer(), use);
  }
  [[nodiscard]] bool keeps() const { return !lasts_.empty(); }
  void keep(Lent& tensor) { owners_.push_back(std::move(tensor.owner)); }
  // f() starts kernels.
  template <typename F>
  void run(F&& f) {
    state_->device->enqueue(lasts_, std::move(owners_), stream_, std::forward<F>(f));
  }

 private:
  std::shared_ptr<StorageState> state_;
  void* stream_;
  std::vector<LastWork*> lasts_;
  Owners owners_;
};

// Null data stands for no rows at all, and a tensor without elements has no address: some of the
// device, then.
inline RowsView rows_at(const Lent& lent, const char* name, const CudaView& cache) {
  RowsView rows = rows_of(lent, name);
  if (rows.data == nullptr || lent.empty()) rows.data = cache.view.k;
  return rows;
}

}  // namespace kvfolio::python
