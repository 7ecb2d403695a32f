// SPDX-License-Identifier: Apache-2.0

// Offload: a manager, its tiers, and what moves between them.

#include "kvfolio/offload.h"

#include <sys/epoll.h>
#include <unistd.h>

#include "arrays.h"
#include "bridge.h"
#include "kvfolio/tier_metrics.h"
#include "manager_state.h"
#include "offload_options.h"
#include "open_options.h"

namespace kvfolio::python {
namespace {

nb::object ready_record(const SequenceReady& ready) {
  return make_tier_record(
      "SequenceReady",
      nb::make_tuple(ready.sequence.value(), ready.cached_tokens,
                     ready.why == LoadEnd::kNoBlocks ? "no_blocks" : to_string(ready.why)));
}

nb::object left_record(const OffloadLeft& left) {
  return make_tier_record("OffloadLeft",
                          nb::make_tuple(left.blocks, left.stores, left.loads, left.questions));
}

// Readable when one of the tiers is. It holds descriptors of the system, no memory.
class Descriptors {
 public:
  Descriptors() noexcept : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    if (epoll_ >= 0) ::close(epoll_);
  }

  void add(int descriptor) noexcept {
    if (descriptor < 0) return;
    epoll_event event{.events = EPOLLIN, .data = {}};
    ::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &event);
  }
  [[nodiscard]] int get() const noexcept { return epoll_; }

 private:
  int epoll_;
};

// The one Offload of a manager. Made and destroyed under the GIL.
class Claim {
 public:
  explicit Claim(std::shared_ptr<ManagerState> manager) : manager_(std::move(manager)) {
    if (manager_->has_offload) {
      raise(Status(ErrorCode::kFailedPrecondition, "another Offload stands over this manager"));
    }
    manager_->has_offload = true;
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { manager_->has_offload = false; }

 private:
  std::shared_ptr<ManagerState> manager_;
};

class OffloadObject {
 public:
  // `fill` says the options beside model, tiers and epochs.
  template <typename Fill>
  OffloadObject(nb::handle manager, nb::handle model, nb::handle tiers, nb::handle epochs,
                Fill&& fill)
      : manager_(manager_of(manager)), claim_(std::in_place, manager_) {
    HeldOffload held(model, tiers, epochs, lent_);
    fill(held.options);
    Result<std::unique_ptr<Offload>> made = manager_->call_without_gil(
        [&](KVCacheManager& m) { return Offload::create(m, held.options); });
    offload_ = take(std::move(made));
    for (const auto& tier : lent_.all()) descriptors_.add(tier->event_fd());
  }
  OffloadObject(const OffloadObject&) = delete;
  OffloadObject& operator=(const OffloadObject&) = delete;
  ~OffloadObject() {
    if (offload_ != nullptr) end();
  }

  // f(offload) without the GIL, alone with the manager and the tiers; it returns something.
  template <typename F>
  auto call(F&& f) {
    auto result = call_if_open(std::forward<F>(f));
    if (!result) raise(Status(ErrorCode::kFailedPrecondition, "this Offload is closed"));
    return *std::move(result);
  }
  // The same; null: it is closed.
  template <typename F>
  auto call_if_open(F&& f) {
    std::optional<decltype(f(*offload_))> result;
    manager_->call_without_gil([&](KVCacheManager&) {
      if (offload_ == nullptr) return;
      std::vector<std::unique_lock<std::mutex>> turns;
      turns.reserve(lent_.all().size());
      for (const auto& tier : lent_.all()) turns.emplace_back(tier->mutex());
      result.emplace(f(*offload_));
    });
    if (!result) let_go();
    return result;
  }

  nb::list poll() {
    move();
    return hand_over();
  }
  nb::list wait(const Until& until) {
    for (;;) {
      const bool more = move();
      if (!said_.empty() || !more || until.is_over()) return hand_over();
      until.sleep_on(descriptors_.get(), kNapUs);
    }
  }
  std::int32_t cancel(SequenceId sequence) {
    const std::int32_t length = take(call([&](Offload& o) { return o.cancel(sequence); }));
    std::erase_if(said_, [&](const SequenceReady& one) { return one.sequence == sequence; });
    return length;
  }
  // Its request ends with the next poll().
  void close_sequence(SequenceId sequence) {
    manager_->call_without_gil([&](KVCacheManager& m) { static_cast<void>(m.close(sequence)); });
  }
  OffloadLeft drain(const Until& until) {
    for (;;) {
      said_.clear();  // as the Offload forgets what is ready and not yet said
      const OffloadLeft left = call([](Offload& o) { return o.drain(now_us()); });
      if (!left.any() || until.is_over()) return left;
      until.sleep_on(descriptors_.get(), kNapUs);
    }
  }
  OffloadLeft close(const Until& until) {
    for (;;) {
      const auto left = call_if_open([](Offload& o) { return o.drain(now_us()); });
      if (!left) return {};  // another thread may have closed it meanwhile
      if (!left->any() || until.is_over()) {
        end();
        return *left;
      }
      until.sleep_on(descriptors_.get(), kNapUs);
    }
  }

  [[nodiscard]] bool is_closed() const { return !claim_; }
  [[nodiscard]] std::int64_t num_tiers() const {
    return static_cast<std::int64_t>(lent_.all().size());
  }
  [[nodiscard]] int event_fd() const { return descriptors_.get(); }

 private:
  // Whether sequences are pending beside those that are ready now.
  bool move() {
    struct Polled {
      std::vector<SequenceReady> ready{};
      bool more = false;
    };
    const Polled polled = call([](Offload& o) {
      const auto all = o.poll(now_us());
      return Polled{.ready = {all.begin(), all.end()}, .more = o.num_pending() > 0};
    });
    drop_stale();
    said_.insert(said_.end(), polled.ready.begin(), polled.ready.end());
    return polled.more;
  }
  // What an interrupted poll() has kept, less the sequences that have gone on since, which the
  // Offload would not say either.
  void drop_stale() {
    if (said_.empty()) return;
    manager_->call([&](KVCacheManager& m) {
      std::erase_if(said_, [&](const SequenceReady& one) {
        const auto info = m.info(one.sequence);
        return !info || info->in_open_step || info->length != one.cached_tokens;
      });
    });
  }
  nb::list hand_over() {
    const std::vector<SequenceReady> all = std::exchange(said_, {});
    nb::list list;
    try {
      for (const SequenceReady& ready : all) list.append(ready_record(ready));
    } catch (...) {  // such as Ctrl-C in the class of the record: the next poll() says all of it
      said_.insert(said_.begin(), all.begin(), all.end());
      throw;
    }
    return list;
  }
  // Under the GIL. Without a drain() before it, tiers may have work whose end no one will hear of.
  void end() {
    manager_->call_without_gil([&](KVCacheManager&) {
      if (offload_ == nullptr) return;
      std::vector<std::unique_lock<std::mutex>> turns;
      for (const auto& tier : lent_.all()) turns.emplace_back(tier->mutex());
      const OffloadLeft left = offload_->drain(now_us());
      owes_ = left.stores + left.loads + left.questions > 0;
      offload_.reset();
    });
    let_go();
  }
  // The first thread that knows that it has ended and has the GIL frees manager and tiers, so that
  // no close() returns before they are free.
  void let_go() {
    if (!claim_) return;
    claim_.reset();
    lent_.give_back(owes_);
  }

  std::shared_ptr<ManagerState> manager_;
  std::optional<Claim> claim_;
  LentTiers lent_{};
  std::unique_ptr<Offload> offload_{};  // null: closed. Changes inside of the manager's call()
  bool owes_ = false;                   // whether tiers had work as it was closed; as offload_
  Descriptors descriptors_{};
  std::vector<SequenceReady>
      said_{};  // that the Offload has said and poll() has not; under the GIL
};

nb::object open_prompt(OffloadObject& offload, nb::handle tokens, nb::handle root, nb::handle media,
                       bool prefix_cache, bool look_up, const char* publish, nb::handle caller_id,
                       Int max_tokens, Int priority, bool late_names, bool announce) {
  const Input<std::int32_t> numbers(tokens, "tokens");
  HeldOptions held(root, media, prefix_cache, look_up, max_tokens);
  held.set_sequence(publish, caller_id, priority, late_names, announce);
  const OffloadOpened opened =
      take(offload.call([&](Offload& o) { return o.open(numbers.span(), held.options); }));
  try {
    return make_tier_record("OffloadOpened", nb::make_tuple(opened.sequence.value(),
                                                            opened.cached_tokens, opened.pending));
  } catch (...) {  // such as Ctrl-C in the class of the record: no name of the sequence is left
    offload.close_sequence(opened.sequence);
    throw;
  }
}

nb::object forgotten(const Forgotten& record) {
  return new_record("kvfolio._types", "Forgotten", nb::make_tuple(record.blocks, record.pins));
}

nb::object forget(OffloadObject& offload, nb::handle tokens, nb::handle root, nb::handle media) {
  const HeldOptions held(root, media, true, true, Int{0});
  if (tokens.is_none()) {
    return forgotten(offload.call([&](Offload& o) { return o.forget(held.options.root); }));
  }
  const Input<std::int32_t> numbers(tokens, "tokens");
  return forgotten(
      take(offload.call([&](Offload& o) { return o.forget(numbers.span(), held.options); })));
}

std::string metrics(OffloadObject& offload, const nb::dict& labels) {
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [name, value] : labels) {
    auto& [name_text, value_text] = texts.emplace_back();
    if (!nb::try_cast(name, name_text) || !nb::try_cast(value, value_text)) {
      raise_type("labels: names and values are str");
    }
  }
  std::vector<MetricLabel> views;
  views.reserve(texts.size());
  for (const auto& [name, value] : texts) views.push_back({name, value});
  return offload.call([&](Offload& o) {
    std::string text;
    write_metrics(text, o, views);
    return text;
  });
}

void add_life(nb::class_<OffloadObject>& c) {
  c.def(
       "__init__",
       [](OffloadObject* self, nb::handle manager, nb::handle model, nb::handle arena_bytes,
          nb::handle tiers, nb::handle bytes_per_poll, double timeout, double copy_timeout,
          double load_bytes_per_s, double prefill_tokens_per_s, nb::handle epochs,
          bool hold_stores) {
         new (self) OffloadObject(manager, model, tiers, epochs, [&](OffloadOptions& options) {
           options.arena_bytes = parse_bytes(arena_bytes, "arena_bytes");
           options.bytes_per_poll = parse_bytes(bytes_per_poll, "bytes_per_poll");
           options.timeout_us = us_of(timeout, "timeout");
           options.copy_timeout_us = us_of(copy_timeout, "copy_timeout");
           options.load_bytes_per_s = load_bytes_per_s;
           options.prefill_tokens_per_s = prefill_tokens_per_s;
           options.hold_stores = hold_stores;
         });
       },
       "manager"_a, "model"_a, nb::kw_only(), "arena_bytes"_a, "tiers"_a = nb::make_tuple(),
       "bytes_per_poll"_a = 16 << 20, "timeout"_a = 0.05, "copy_timeout"_a = 2.0,
       "load_bytes_per_s"_a = 0.0, "prefill_tokens_per_s"_a = 0.0, "epochs"_a = nb::none(),
       "hold_stores"_a = false,
       nb::sig("def __init__(self, manager: kvfolio.Manager, model: "
               "kvfolio_tiers._types.ModelIdentity, *, arena_bytes: int | str, "
               "tiers: collections.abc.Sequence[Tier | kvfolio_tiers._types.OffloadTier] = (), "
               "bytes_per_poll: int | str = 16777216, timeout: float = 0.05, "
               "copy_timeout: float = 2.0, load_bytes_per_s: float = 0.0, "
               "prefill_tokens_per_s: float = 0.0, "
               "epochs: kvfolio_tiers._types.NameEpochs | None = None, "
               "hold_stores: bool = False) -> None"),
       "The manager has a Storage and list_findable=True. tiers: the cheapest first, at most 8; "
       "from now on only the Offload submits to them. timeout: seconds that a prompt waits for "
       "them, beside the time that bytes take at half of load_bytes_per_s, or at 500 MB/s if that "
       "is 0: up to 2 s at once, the rest as bytes come. "
       "load_bytes_per_s and prefill_tokens_per_s: a prompt is loaded only if that is "
       "faster than computing it; 0: always. epochs: what epochs() of the last process gave. "
       "hold_stores: nothing is stored before release_stores().")
      .def(
          "close",
          [](OffloadObject& offload, double timeout) {
            return left_record(offload.close(Until(nb::float_(timeout), "timeout")));
          },
          "timeout"_a = 5.0,
          nb::sig("def close(self, timeout: float = 5.0) -> kvfolio_tiers._types.OffloadLeft"),
          "drain(), and ends. Its tiers are free again, or, if they still owe answers, can only be "
          "closed. The manager goes on.")
      .def_prop_ro("closed", &OffloadObject::is_closed, "close() was called.")
      .def("__repr__",
           [](const OffloadObject& offload) {
             return "<kvfolio.tiers.Offload" +
                    (offload.is_closed() ? ", closed"
                                         : " over " + counted(offload.num_tiers(), "tier")) +
                    ">";
           })
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> typing_extensions.Self"))
      .def(
          "__exit__",
          [](OffloadObject& offload, const nb::args&) {
            offload.close(Until(nb::float_(5.0), "timeout"));
          },
          nb::sig("def __exit__(self, *exc: object) -> None"));
}

void add_loads(nb::class_<OffloadObject>& c) {
  c.def(
       "open", &open_prompt, "tokens"_a, nb::kw_only(), "root"_a = nb::none(),
       "media"_a = nb::make_tuple(), "prefix_cache"_a = true, "look_up"_a = true,
       "publish"_a = "all", "caller_id"_a = nb::none(), "max_tokens"_a = Int{0},
       "priority"_a = Int{0}, "late_names"_a = false, "announce"_a = false,
       nb::sig("def open(self, tokens: kvfolio._types.Int32Input, *, "
               "root: kvfolio._types.RootKey | None = None, "
               "media: collections.abc.Sequence[kvfolio._types.MediaSpan] = (), "
               "prefix_cache: bool = True, look_up: bool = True, "
               "publish: kvfolio._types.Publish = 'all', caller_id: int | None = None, "
               "max_tokens: int = 0, priority: int = 0, late_names: bool = False, "
               "announce: bool = False) -> kvfolio_tiers._types.OffloadOpened"),
       "Manager.open(), and a request for what it did not find. pending: poll() or wait() will say "
       "how that ends; or append now, or cancel().")
      .def("poll", &OffloadObject::poll,
           nb::sig("def poll(self) -> list[kvfolio_tiers._types.SequenceReady]"),
           "Moves what is to be moved, at most bytes_per_poll, and never waits: once for each step "
           "of the engine, say. Returns the sequences that were pending and are ready: append what "
           "lies behind cached_tokens.")
      .def(
          "wait",
          [](OffloadObject& offload, nb::handle timeout) {
            return offload.wait(Until(timeout, "timeout"));
          },
          "timeout"_a = nb::none(),
          nb::sig("def wait(self, timeout: float | None = None) -> "
                  "list[kvfolio_tiers._types.SequenceReady]"),
          "poll() until a sequence is ready, none is pending, or `timeout` seconds are over.")
      .def(
          "cancel", [](OffloadObject& offload, Id sequence) { return offload.cancel(sequence); },
          "sequence"_a, nb::sig("def cancel(self, sequence: int) -> int"),
          "The sequence goes on now. Returns its length, which may have grown.")
      .def("event_fd", &OffloadObject::event_fd,
           "Readable when a tier has something for poll(): for asyncio's add_reader(). What lies "
           "in host memory, and times that are over, do not make it readable: while something is "
           "pending, poll() each few milliseconds, too.")
      .def_prop_ro(
          "idle",
          [](OffloadObject& offload) { return offload.call([](Offload& o) { return o.idle(); }); },
          "Nothing is pending, nothing waits to be stored, and no tier works for it.")
      .def(
          "drain",
          [](OffloadObject& offload, double timeout) {
            return left_record(offload.drain(Until(nb::float_(timeout), "timeout")));
          },
          "timeout"_a = 0.0,
          nb::sig("def drain(self, timeout: float = 0.0) -> kvfolio_tiers._types.OffloadLeft"),
          "Before an end: cancels what is pending and stores all that is to be stored, for at most "
          "`timeout` seconds. Says what is left; `blocks` stays true while a step is in flight.")
      .def(
          "release_stores",
          [](OffloadObject& offload) {
            offload.call([](Offload& o) {
              o.release_stores();
              return true;
            });
          },
          nb::sig("def release_stores(self) -> None"),
          "With hold_stores=True: what can be found now may be stored; what can be from here on "
          "waits for the next call, and is not stored if it is evicted before.");
}

void add_names(nb::class_<OffloadObject>& c) {
  c.def("forget", &forget, "tokens"_a = nb::none(), nb::kw_only(), "root"_a = nb::none(),
        "media"_a = nb::make_tuple(),
        nb::sig("def forget(self, tokens: kvfolio._types.Int32Input | None = None, *, "
                "root: kvfolio._types.RootKey | None = None, media: "
                "collections.abc.Sequence[kvfolio._types.MediaSpan] = ()) -> "
                "kvfolio._types.Forgotten"),
        "Manager.forget(), and no tier answers with it any more. The next process would: keep "
        "epochs() for it.")
      .def(
          "reset",
          [](OffloadObject& offload) {
            return forgotten(offload.call([](Offload& o) { return o.reset(); }));
          },
          nb::sig("def reset(self) -> kvfolio._types.Forgotten"), "The same for everything.")
      .def(
          "epochs",
          [](OffloadObject& offload) {
            return epochs_record(offload.call([](Offload& o) { return o.epochs(); }));
          },
          nb::sig("def epochs(self) -> kvfolio_tiers._types.NameEpochs"),
          "What was forgotten, without any text: for Offload(epochs=...) of the next process.")
      .def(
          "identity_fields",
          [](OffloadObject& offload) {
            return fields_of(offload.call([](Offload& o) {
              const auto fields = o.identity().fields();
              return std::vector<IdentityField>(fields.begin(), fields.end());
            }));
          },
          nb::sig("def identity_fields(self) -> list[tuple[str, str]]"),
          "All that went into the names of blocks.");
}

void add_numbers(nb::class_<OffloadObject>& c) {
  c.def(
       "counters",
       [](OffloadObject& offload) {
         return counters_record(
             offload.call([](Offload& o) -> OffloadCounters { return o.counters(); }));
       },
       nb::sig("def counters(self) -> kvfolio_tiers._types.OffloadCounters"))
      .def(
          "tier_counters",
          [](OffloadObject& offload, Int tier) {
            const auto counters = offload.call([&](Offload& o) {
              const bool there =
                  tier.value >= 0 && static_cast<std::size_t>(tier.value) < o.num_tiers();
              return there ? std::optional(o.tier_counters(static_cast<std::size_t>(tier.value)))
                           : std::nullopt;
            });
            if (!counters) raise_invalid("there is no tier " + std::to_string(tier.value));
            return tier_counters_record(*counters);
          },
          "tier"_a,
          nb::sig("def tier_counters(self, tier: int) -> "
                  "kvfolio_tiers._types.OffloadTierCounters"),
          "What one tier did, by its place in `tiers`.")
      .def(
          "arena",
          [](OffloadObject& offload) {
            const ArenaStats a = offload.call([](Offload& o) { return o.arena(); });
            return make_tier_record(
                "ArenaStats", nb::make_tuple(a.bytes, a.bytes_published, a.records, a.pins,
                                             a.writing, a.quarantined, a.evictions, a.refusals));
          },
          nb::sig("def arena(self) -> kvfolio_tiers._types.ArenaStats"), "The host memory.")
      .def("metrics", &metrics, "labels"_a = nb::dict(),
           nb::sig("def metrics(self, labels: dict[str, str] = {}) -> str"),
           "All of it as a text for Prometheus.")
      .def(
          "check_invariants",
          [](OffloadObject& offload) {
            check(offload.call([](Offload& o) { return o.check_invariants(); }));
          },
          nb::sig("def check_invariants(self) -> None"));
}

}  // namespace

void add_offload(nb::module_& m) {
  nb::class_<OffloadObject> c(
      m, "Offload",
      "Keeps blocks of a manager in host memory and tiers, and brings them back when a prompt asks "
      "for them. All moves in poll(), and so on the thread that calls it, without the GIL and "
      "with the manager's turn. What comes back is verified before it is found; what does not "
      "verify is a miss.");
  add_life(c);
  add_loads(c);
  add_names(c);
  add_numbers(c);
}

}  // namespace kvfolio::python
