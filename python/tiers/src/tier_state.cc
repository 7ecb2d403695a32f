// SPDX-License-Identifier: Apache-2.0

#include "tier_state.h"

#include <array>
#include <cstring>

#include "arrays.h"

namespace kvfolio::python {
namespace {

constexpr Word<TierOp> kOps[] = {{"exists", TierOp::kExists},
                                 {"load", TierOp::kLoad},
                                 {"store", TierOp::kStore},
                                 {"erase", TierOp::kErase}};
// How long an item whose time is over is not looked at.
constexpr std::uint64_t kLookUs = 10'000;
// What a tier gets beyond the deadline of close() to give memory back.
constexpr std::uint64_t kGraceUs = 1'000'000;

std::string item_text(const char* name, std::size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

TierKey key_of(nb::handle object, std::size_t index) {
  const std::string name = item_text("keys", index);
  if (!PyBytes_Check(object.ptr())) raise_wanted(object, name, "bytes");
  const auto& bytes = nb::borrow<nb::bytes>(object);
  TierKey key;
  if (bytes.size() != key.bytes.size()) {
    raise_invalid(name + " has " + std::to_string(bytes.size()) + " bytes, wanted: 72");
  }
  std::memcpy(key.bytes.data(), bytes.data(), bytes.size());
  return key;
}

// The bytes of an array, which lie one behind the other.
std::int64_t bytes_in_a_row(const Array& array, const std::string& name) {
  std::int64_t bytes = array.item_bytes();
  for (std::size_t axis = array.array.ndim(); axis-- > 0;) {
    if (array.size(axis) > 1 && array.stride(axis) != bytes && !array.empty()) {
      raise_invalid(name + ": " + describe(array.array) + " with gaps, wanted: a contiguous one");
    }
    bytes *= array.size(axis);
  }
  return bytes;
}

}  // namespace

TierState::TierState(std::unique_ptr<Tier> tier, std::string name)
    : name_(std::move(name)), limits_(tier->limits()), tier_(std::move(tier)) {}

TierState::~TierState() { end(); }

void TierState::raise_closed() const {
  raise(Status(ErrorCode::kFailedPrecondition, name_ + " is closed"));
}

void TierState::check_own() const {
  if (use_ == Use::kOwn) return;
  raise(Status(ErrorCode::kFailedPrecondition,
               name_ + (use_ == Use::kLent
                            ? ": an Offload uses it, which alone may submit to it and poll it"
                            : ": an Offload that ended has left it with work that is not answered; "
                              "close it")));
}

std::vector<TierItem> TierState::items_from(TierOp op, nb::handle keys, nb::handle buffers,
                                            std::vector<nb::ndarray<nb::ro>>& arrays) const {
  const bool moves = op == TierOp::kLoad || op == TierOp::kStore;
  const std::vector<nb::object> names = items_of(keys, "keys", "a list of keys");
  std::vector<nb::object> memory;
  if (moves) {
    memory = items_of(buffers, "buffers", "a list of arrays, one for each key");
    if (memory.size() != names.size()) {
      raise_invalid(std::to_string(memory.size()) + " buffers for " + std::to_string(names.size()) +
                    " keys");
    }
  } else if (!buffers.is_none()) {
    raise_invalid("buffers are for 'load' and 'store'");
  }
  std::vector<TierItem> items;
  arrays.resize(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    TierItem item{.key = key_of(names[i], i)};
    if (moves) {
      const std::string name = item_text("buffers", i);
      Array array =
          array_of(memory[i], name.c_str(), op == TierOp::kLoad ? Access::kWrite : Access::kRead);
      item.data = array.data;
      item.bytes = bytes_in_a_row(array, name);
      if (item.bytes == 0) raise_invalid(name + " is empty");
      if (limits_.record_bytes_max > 0 && item.bytes > limits_.record_bytes_max) {
        raise_invalid(name + " has " + std::to_string(item.bytes) + " bytes, " + name_ +
                      " takes at most " + std::to_string(limits_.record_bytes_max));
      }
      arrays[i] = std::move(array.array);
    }
    items.push_back(item);
  }
  return items;
}

std::pair<std::uint64_t, std::size_t> TierState::submit(TierOp op, nb::handle keys,
                                                        nb::handle buffers,
                                                        std::uint64_t timeout_us) {
  std::vector<nb::ndarray<nb::ro>> arrays;
  std::vector<TierItem> items = items_from(op, keys, buffers, arrays);
  // Arrays may have submitted, closed or lent the tier themselves. From here to the tier no code of
  // Python runs, and what is in flight keeps an Offload from taking it.
  check_own();
  if (closing_) raise_closed();
  const std::uint64_t first = next_;
  for (std::size_t i = 0; i < items.size(); ++i) {
    items[i].tag = next_++;
    in_flight_.emplace(items[i].tag, std::move(arrays[i]));
  }
  std::size_t taken = 0;
  {
    const ReleasedGil release;
    const std::lock_guard lock(mutex_);
    if (tier_ != nullptr) {
      taken = tier_->submit(op, items, {.at_us = now_us() + timeout_us});
      tier_->poll(now_us(), {});  // begins: from now on event_fd() says when to go on
    }
  }
  for (std::size_t i = taken; i < items.size(); ++i) {
    static_cast<void>(in_flight_.extract(first + i));
  }
  return {first, taken};
}

void TierState::take_done() {
  std::vector<TierDone> all;
  {
    const ReleasedGil release;
    const std::lock_guard lock(mutex_);
    std::array<TierDone, 256> some;
    std::size_t count = some.size();
    while (tier_ != nullptr && use_ != Use::kLent && count == some.size()) {
      count = tier_->poll(now_us(), some);
      all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
    }
  }
  for (const TierDone& done : all) {
    // The end of an array may run code of Python, which finds both as they are to be.
    const auto ended = in_flight_.extract(done.tag);
    if (!ended.empty()) done_.push_back(done);  // else none asked
  }
}

nb::list TierState::hand_over() {
  const std::vector<TierDone> all = std::exchange(done_, {});
  nb::list list;
  try {
    for (const TierDone& done : all) {
      list.append(make_tier_record("Done", nb::make_tuple(done.tag, to_string(done.result))));
    }
  } catch (...) {  // such as Ctrl-C in the class of the record: the next poll() says all of it
    done_.insert(done_.begin(), all.begin(), all.end());
    throw;
  }
  return list;
}

int TierState::event_fd() {
  const ReleasedGil release;
  const std::lock_guard lock(mutex_);
  return tier_ == nullptr ? -1 : tier_->event_fd();
}

nb::list TierState::poll() {
  check_own();
  take_done();
  return hand_over();
}

nb::list TierState::wait(const Until& until, bool all) {
  for (;;) {
    check_own();
    take_done();
    const bool enough = !all && !done_.empty();
    if (enough || in_flight_.empty() || until.is_over()) return hand_over();
    const int descriptor = event_fd();
    until.sleep_on(descriptor, descriptor < 0 ? kNapUs : kLookUs);
  }
}

void TierState::close(const Until& until) {
  const std::uint64_t at_us = until.at_us();
  closing_ = true;
  const Status closed = [&] {
    const ReleasedGil release;
    const std::lock_guard lock(mutex_);
    return tier_ == nullptr ? Status() : tier_->close({.at_us = at_us});
  }();
  if (use_ == Use::kLent) {
    check(closed);
    return;
  }
  for (;;) {
    take_done();
    if (in_flight_.empty()) break;
    const std::uint64_t now = now_us();
    if (now > at_us && now - at_us > kGraceUs) {
      raise(Status(ErrorCode::kTimedOut, name_ + " has not given back the memory of " +
                                             std::to_string(in_flight_.size()) + " items"));
    }
    Until(nb::none(), "").sleep_on(-1, kNapUs);
  }
  end();
  check(closed);
}

void TierState::end() {
  {
    const ReleasedGil release;
    const std::lock_guard lock(mutex_);
    tier_.reset();
  }
  in_flight_.clear();  // nothing touches them any more
}

void TierState::lend() {
  check_own();
  if (closing_) raise_closed();
  if (!in_flight_.empty()) {
    raise(Status(ErrorCode::kFailedPrecondition,
                 name_ + " has " + std::to_string(in_flight_.size()) +
                     " items in flight: an Offload takes it when poll() has said how they end"));
  }
  use_ = Use::kLent;
}

bool TierState::give_back(bool owes) {
  use_ = owes ? Use::kOwes : Use::kOwn;
  return closing_;
}

namespace {

nb::object submit(const TierObject& tier, const char* op, nb::handle keys, nb::handle buffers,
                  double timeout) {
  const auto [first, taken] =
      tier.state()->submit(parse_word("op", op, kOps), keys, buffers, us_of(timeout, "timeout"));
  return nb::module_::import_("builtins").attr("range")(first, first + taken);
}

nb::object health(const TierObject& tier) {
  const TierHealth health = tier.state()->call([](Tier& t) { return t.health(); });
  return make_tier_record(
      "TierHealth", nb::make_tuple(health.usable, health.stores_ok, health.loads_ok,
                                   health.failures, health.corrupt_unasked, health.of_another_key));
}

void add_work(nb::class_<TierObject>& c) {
  c.def("submit", &submit, "op"_a, "keys"_a, "buffers"_a = nb::none(), nb::kw_only(),
        "timeout"_a = 1.0,
        nb::sig("def submit(self, op: kvfolio_tiers._types.Op, keys: "
                "collections.abc.Sequence[bytes], buffers: "
                "collections.abc.Iterable[kvfolio_tiers._types.Buffer] | None = None, *, "
                "timeout: float = 1.0) -> range"),
        "Begins 'exists', 'load', 'store' or 'erase' for each key of 72 bytes, and never waits. "
        "Returns a ticket for each that was taken: the first ones, all or, if the queue is full, "
        "fewer; try the others later. A load fills its buffer, a store reads it; both are the "
        "tier's, and kept alive, until poll() has said how the ticket ended: contiguous memory on "
        "the CPU, at a multiple of 4,096 to go to a disk without a copy. What has not ended "
        "after `timeout` seconds is 'timeout'.")
      .def(
          "poll", [](const TierObject& tier) { return tier.state()->poll(); },
          nb::sig("def poll(self) -> list[kvfolio_tiers._types.Done]"),
          "What has ended since. Moves what there is to move (all of Redis), and never waits. A "
          "load is 'ok' only if its buffer has the bytes that were stored under its key; any other "
          "result may leave other bytes in it.")
      .def(
          "wait",
          [](const TierObject& tier, nb::handle timeout, bool all) {
            return tier.state()->wait(Until(timeout, "timeout"), all);
          },
          "timeout"_a = nb::none(), nb::kw_only(), "all"_a = false,
          nb::sig("def wait(self, timeout: float | None = None, *, all: bool = False) -> "
                  "list[kvfolio_tiers._types.Done]"),
          "poll() as soon as something has ended (`all`: everything), or nothing is in flight, or "
          "after `timeout` seconds.")
      .def(
          "event_fd", [](const TierObject& tier) { return tier.state()->event_fd(); },
          nb::sig("def event_fd(self) -> int"),
          "Readable when poll() has something to do: for asyncio's add_reader(). Times that are "
          "over do not make it readable, so poll() now and then, too. -1 once it is closed.");
}

}  // namespace

void add_tier(nb::module_& m) {
  nb::class_<TierObject> c(m, "Tier",
                           "A medium that keeps bytes under keys of 72 bytes, seals what it is "
                           "given, and gives back the same bytes or a miss. Any thread may call "
                           "it; calls take turns, and none holds the GIL while the tier works.");
  add_work(c);
  c.def("health", &health, nb::sig("def health(self) -> kvfolio_tiers._types.TierHealth"),
        "Whether it takes work now, and what it has done.")
      .def(
          "close",
          [](const TierObject& tier, double timeout) {
            const Until until(nb::float_(timeout), "timeout");
            tier.state()->close(until);
          },
          "timeout"_a = 5.0, nb::sig("def close(self, timeout: float = 5.0) -> None"),
          "Takes nothing from now on, and ends when what is in flight has ended: poll() says how, "
          "after this, too. What has not ended in time is 'closed'. TimedOut: the medium still "
          "touches buffers; call it again. While an Offload uses the tier, it ends with that.")
      .def_prop_ro(
          "closed", [](const TierObject& tier) { return tier.state()->is_closed(); },
          "close() was called.")
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__",
          [](const TierObject& tier, const nb::args&) {
            const Until until(nb::float_(5.0), "timeout");
            tier.state()->close(until);
          },
          nb::sig("def __exit__(self, *exc: object) -> None"));
}

}  // namespace kvfolio::python
