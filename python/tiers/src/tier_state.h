// SPDX-License-Identifier: Apache-2.0
#pragma once

// A tier of the library as Python has it. A tier has one owner who serialises its calls: here that
// is a mutex. No thread waits for it with the GIL, and no call of a tier has the GIL. Memory of an
// item is an array of Python that is kept until the tier says that it is done with it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bindings.h"
#include "kvfolio/tier.h"
#include "seconds.h"

namespace kvfolio::python {

class TierState {
 public:
  // NAME is for messages.
  TierState(std::unique_ptr<Tier> tier, std::string name);
  TierState(const TierState&) = delete;
  TierState& operator=(const TierState&) = delete;
  ~TierState();  // under the GIL; waits without it for what is in flight

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_closed() const { return closing_; }

  // f(tier) without the GIL; it returns something. FailedPrecondition: the tier is closed.
  template <typename F>
  auto call(F&& f) {
    auto result = call_if_open(std::forward<F>(f));
    if (!result) raise_closed();
    return *std::move(result);
  }
  // The same; null: the tier is closed.
  template <typename F>
  auto call_if_open(F&& f) {
    std::optional<decltype(f(*tier_))> result;
    const ReleasedGil release;
    const std::lock_guard lock(mutex_);
    if (tier_ != nullptr) result.emplace(f(*tier_));
    return result;
  }

  // The items of `keys` (and their arrays, for a load or a store) under tickets that go up. Returns
  // the first ticket, and how many the tier has taken.
  std::pair<std::uint64_t, std::size_t> submit(TierOp op, nb::handle keys, nb::handle buffers,
                                               std::uint64_t timeout_us);
  [[nodiscard]] int event_fd();  // -1: there is none, or the tier is closed
  nb::list poll();
  nb::list wait(const Until& until, bool all);
  // The tier takes nothing from now on. Waits for what is in flight; what it says of that is for
  // the next poll(). TimedOut: it has not said all; nothing of it is let go of then. If an Offload
  // uses the tier, it ends with that.
  void close(const Until& until);

  // ---- for an Offload ----

  // From now on only the Offload calls it. FailedPrecondition: another one does, or it owes
  // answers, or is closed.
  void lend();
  // owes: the Offload ended before the tier had given all of its memory back. Returns whether
  // close() was called meanwhile: then end() is due.
  [[nodiscard]] bool give_back(bool owes);
  void end();  // gives up the GIL for a while
  [[nodiscard]] std::mutex& mutex() { return mutex_; }
  [[nodiscard]] Tier* tier() { return tier_.get(); }  // not null as long as it is lent

 private:
  enum class Use { kOwn, kLent, kOwes };

  [[noreturn]] void raise_closed() const;
  void check_own() const;
  // The items of the arguments of submit(), without tags. Runs code of Python: that of arrays.
  std::vector<TierItem> items_from(TierOp op, nb::handle keys, nb::handle buffers,
                                   std::vector<nb::ndarray<nb::ro>>& arrays) const;
  void take_done();
  nb::list hand_over();

  std::string name_;
  TierLimits limits_;
  std::mutex mutex_{};
  std::unique_ptr<Tier> tier_;  // null: closed. Changes under the mutex

  // Changes under the GIL. An Offload calls the tier only after it became kLent, so a call that has
  // the mutex and sees another value meets no answer of an Offload's.
  std::atomic<Use> use_ = Use::kOwn;

  // Under the GIL.
  bool closing_ = false;
  std::uint64_t next_ = 1;
  std::unordered_map<std::uint64_t, nb::ndarray<nb::ro>> in_flight_{};
  std::vector<TierDone> done_{};  // that the tier has said and poll() has not
};

// The classes of Python share it with the Offloads that use it.
class TierObject {
 public:
  explicit TierObject(std::shared_ptr<TierState> state) : state_(std::move(state)) {}
  [[nodiscard]] const std::shared_ptr<TierState>& state() const { return state_; }
  // For repr(): NAME, and the first line of describe(tier), or that the tier is closed.
  template <typename F>
  [[nodiscard]] nb::str in_words(const char* name, F&& describe) const {
    const std::optional<std::string> text = state_->call_if_open(std::forward<F>(describe));
    const std::string all = std::string("<kvfolio.tiers.") + name +
                            (text ? ": " + text->substr(0, text->find('\n')) : ", closed") + ">";
    // A name of a directory may be no UTF-8.
    return nb::steal<nb::str>(
        PyUnicode_DecodeUTF8(all.data(), static_cast<Py_ssize_t>(all.size()), "backslashreplace"));
  }

 private:
  std::shared_ptr<TierState> state_;
};

void add_tier(nb::module_& m);
void add_disk(nb::module_& m);
void add_redis(nb::module_& m);
void add_identity(nb::module_& m);
void add_offload(nb::module_& m);
void add_snapshot(nb::module_& m);

}  // namespace kvfolio::python
