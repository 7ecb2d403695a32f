// SPDX-License-Identifier: Apache-2.0
#pragma once

// What Manager, Step and Plan share, and the families of calls of a manager.
//
// Thread safety: the GIL serialises the calls of one manager. Calls that take long give up the GIL
// and keep the manager's mutex; every other call of that manager waits for it (ManagerState::call).

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings.h"
#include "id_tags.h"
#include "kvfolio/manager.h"
#include "op_log.h"

namespace kvfolio::python {

struct ManagerState {
  ManagerState(KVCacheManager manager_in, IdTag tag_in,
               std::shared_ptr<PyObject> device_storage_in = nullptr)
      : tag(std::move(tag_in)),
        device_storage(std::move(device_storage_in)),
        manager(std::move(manager_in)) {}

  // Runs f(manager) while no other call of this manager runs. Requires: f calls no Python.
  template <typename F>
  auto call(F&& f) {
    const Turn turn(mutex);
    return f(manager);
  }
  // The same without the GIL, for what takes long.
  template <typename F>
  auto call_without_gil(F&& f) {
    const ReleasedGil release;
    const std::lock_guard lock(mutex);
    return f(manager);
  }

  // For plans of the steps first .. last, inside of call(). kFailedPrecondition: a kernel reads
  // one.
  [[nodiscard]] Status refuse_if_read(Ticket first, Ticket last) const;
  void end_plans(Ticket first, Ticket last);

  const IdTag tag;
  // A kvfolio.cuda.Storage whose memory the storage of the manager lies in; it ends after that.
  const std::shared_ptr<PyObject> device_storage;
  std::unique_ptr<OpLogFile> log;  // that the manager records into; changes inside of call() only
  KVCacheManager manager;
  Ticket open{};                          // the open step; changes inside of call() only
  bool has_offload = false;               // one of kvfolio_tiers stands over it; under the GIL
  std::vector<nb::ndarray<nb::ro>> lent;  // arrays that the storage lies in
  std::vector<std::pair<Ticket, std::shared_ptr<Lease>>> leases;

 private:
  // Holds the mutex. Waits without the GIL, since its owner may need that to end.
  class Turn {
   public:
    explicit Turn(std::mutex& mutex) : mutex_(mutex) {
      if (mutex_.try_lock()) return;
      const ReleasedGil release(&mutex_);
      mutex_.lock();
    }
    ~Turn() { mutex_.unlock(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    std::mutex& mutex_;
  };

  std::mutex mutex;
};

class Manager {
 public:
  explicit Manager(std::shared_ptr<ManagerState> state) : state_(std::move(state)) {}

  [[nodiscard]] const std::shared_ptr<ManagerState>& state() const { return state_; }
  template <typename F>
  auto call(F&& f) const {
    return state_->call(std::forward<F>(f));
  }

 private:
  std::shared_ptr<ManagerState> state_;
};

void add_sequences(nb::class_<Manager>& c);
void add_room(nb::class_<Manager>& c);
void add_questions(nb::class_<Manager>& c);
void add_op_log(nb::class_<Manager>& c);
void add_steps_of_manager(nb::class_<Manager>& c);

}  // namespace kvfolio::python
