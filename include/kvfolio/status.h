// SPDX-License-Identifier: Apache-2.0
#pragma once

// Status and Result<T>: what every fallible call of kvfolio returns. No exception crosses the
// library's boundary.
//
// Expected answers ("the pool is full") use no heap: a Status holds a Shortage inline and makes its
// text on request. Failures of the environment and mistakes of the caller carry a sentence that
// names what was wrong, the value seen and what is allowed.
//
// A Status has no field for what the call worked on; its sentence says that. Most sentences of the
// manager also name the call (not for unknown ids, options and shortages) and, if it is about one,
// the sequence. Invariants: a Status is ok, or has a sentence, or a Shortage, never two of them; a
// Result has a value or an error that is not ok. Thread safety: values; distinct objects may be
// used from distinct threads.

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kvfolio/export.h"

// Called when the library breaks an invariant of its own: stopping is better than serving one
// user's tokens to another. The default writes one line to standard error and aborts. It is a weak
// symbol: a host may define its own, which must not return. Also called, with `file` null and a
// sentence as `expression`, for the value of an error and for a manager that was moved from.
extern "C" [[noreturn]] KVFOLIO_API void kvfolio_check_failed(const char* file, int line,
                                                              const char* expression);

// Always on; O(1) conditions only. KVFOLIO_DCHECK is for per-token paths and debug builds.
#define KVFOLIO_CHECK(condition)                              \
  do {                                                        \
    if (!(condition)) [[unlikely]] {                          \
      ::kvfolio_check_failed(__FILE__, __LINE__, #condition); \
    }                                                         \
  } while (false)

#ifdef NDEBUG
#define KVFOLIO_DCHECK(condition) static_cast<void>(0)
#else
#define KVFOLIO_DCHECK(condition) KVFOLIO_CHECK(condition)
#endif

namespace kvfolio {

enum class ErrorCode : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,     // the caller's argument is wrong in every state
  kNotFound = 2,            // the id is unknown, closed (stale) or of another manager
  kFailedPrecondition = 3,  // the call is not allowed in this state
  kNoBlocks = 4,            // a group lacks blocks: see Status::shortage()
  kResourceExhausted = 5,   // a fixed table (sequences, pins, table entries) is full
  kAborted = 6,             // fail(t) closed this sequence
  kOutOfMemory = 7,         // the host or device refused memory at creation
  kUnsupported = 8,         // valid, but this build or this configuration cannot do it
  // What tiers, files and logs answer.
  kUnavailable = 9,  // a file, device or server cannot be used now
  kTimedOut = 10,    // the deadline passed first
  kCorrupt = 11,     // the bytes are not what was written
};

// Why a group does not have the blocks that a call needs. Plain integers, in blocks.
// needed > free + evictable always holds.
struct Shortage {
  std::int32_t group = 0;
  std::int32_t needed = 0;
  std::int32_t free = 0;
  std::int32_t evictable = 0;  // the cached blocks: every one of them can be evicted
  std::int32_t pinned = 0;     // held by sequences, pins, loads and holds
  // Only steps hold or touch them; come back when these are complete. If it is not 0, complete()
  // the steps in flight and call again, before you preempt a sequence.
  std::int32_t retiring = 0;
  std::int32_t sequences = 0;     // open sequences of the manager
  std::int32_t pins = 0;          // pins of the manager
  std::int32_t reserved = 0;      // of the pinned ones: kept by reserve(), in no table yet
  std::int32_t loads = 0;         // open loads of the manager, and
  std::int32_t holds = 0;         // open holds
  std::int64_t budget_bytes = 0;  // not used yet: free bytes of a budget that groups share
  std::int32_t num_blocks = 0;    // of the group
  // Blocks that the sequences of the call hold already, those that lie ready for them included, or
  // that the hit of a prompt would hold. The call needs the others beside them.
  std::int32_t kept = 0;
  // Needed blocks that the same call may do without another time: a copy of a tail that others hold
  // now; in a window group what a longer hit would save.
  std::int32_t spared = 0;

  // The same call cannot succeed, whatever the others let go of: do not wait for room. true is
  // certain; false says only that it may succeed.
  [[nodiscard]] bool never() const noexcept {
    return std::int64_t{needed} + kept - spared > num_blocks;
  }

  friend bool operator==(const Shortage&, const Shortage&) = default;
};

// "group 0: need 37 blocks, 12 free, 0 evictable (25 pinned, 0 retiring; open: 3 sequences)". What
// is open may hold no block of the group. With pins, loads and holds: "open: 3 sequences, 1 pin,
// 1 load and 2 holds"; those of which there are none are left out. With reservations: "25 pinned, 4
// of them reserved". If never(), it ends with "; never: the group has 12 blocks", and if some are
// kept, " and 3 are kept".
[[nodiscard]] KVFOLIO_API std::string to_string(const Shortage& shortage);
[[nodiscard]] KVFOLIO_API const char* to_string(ErrorCode code) noexcept;

class [[nodiscard]] Status {
 public:
  // An ok answer writes two words of eleven: the shortage is written where the code is kNoBlocks.
  Status() noexcept {}
  Status(ErrorCode code, std::string message)
      : code_(code), shortage_{}, message_(std::make_unique<std::string>(std::move(message))) {}
  // Not explicit, so that `return Shortage{...};` reports a full pool.
  Status(const Shortage& shortage) noexcept : code_(ErrorCode::kNoBlocks), shortage_(shortage) {}

  Status(Status&& other) noexcept : code_(other.code_), message_(std::move(other.message_)) {
    copy_shortage(other);
  }
  Status& operator=(Status&& other) noexcept {
    code_ = other.code_;
    copy_shortage(other);
    message_ = std::move(other.message_);
    return *this;
  }
  Status(const Status& other) { *this = other; }
  Status& operator=(const Status& other) {
    if (this == &other) return *this;
    code_ = other.code_;
    copy_shortage(other);
    message_ = other.message_ ? std::make_unique<std::string>(*other.message_) : nullptr;
    return *this;
  }
  ~Status() = default;

  [[nodiscard]] bool ok() const noexcept { return code_ == ErrorCode::kOk; }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  // The numbers of a kNoBlocks answer of the library, else null. Valid as long as this object.
  [[nodiscard]] const Shortage* shortage() const noexcept {
    return code_ == ErrorCode::kNoBlocks && !message_ ? &shortage_ : nullptr;
  }
  // A sentence for people. "ok" when ok().
  [[nodiscard]] KVFOLIO_API std::string message() const;
  // The whole numbers that the sentence names, in its order: "truncate to 9, allowed: 0 to the
  // length, 4" has 9, 0 and 4. For tests and hosts that must not read English.
  [[nodiscard]] KVFOLIO_API std::vector<std::int64_t> numbers() const;

 private:
  void copy_shortage(const Status& other) noexcept {
    if (code_ != ErrorCode::kNoBlocks || this == &other) return;
    // An assignment does not begin the life of a member whose default constructor is not trivial.
    ::new (static_cast<void*>(&shortage_)) Shortage(other.shortage_);
  }

  ErrorCode code_ = ErrorCode::kOk;
  union {
    Shortage shortage_;  // written if code_ is kNoBlocks
  };
  std::unique_ptr<std::string> message_;
};

// "ok", or the code and the message: "not found: sequence 7.3 is closed or was never given out".
[[nodiscard]] KVFOLIO_API std::string to_string(const Status& status);

// What to_string() gives. Templates, so that <iosfwd> is enough here; their caller includes
// <ostream>.
template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             ErrorCode code) {
  return out << to_string(code);
}
template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const Shortage& shortage) {
  return out << to_string(shortage);
}
template <typename Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const Status& status) {
  return out << to_string(status);
}

namespace detail {
// Stops the program with `error`, whose Result was asked for a value.
[[noreturn]] KVFOLIO_API void no_value(const Status& error) noexcept;
// The same for a Result that has a value and was asked for its error.
[[noreturn]] KVFOLIO_API void no_error() noexcept;
}  // namespace detail

// A T, or the Status that says why there is none. The interface is a subset of std::expected.
template <typename T>
class [[nodiscard]] Result {
  static_assert(!std::is_reference_v<T> && !std::is_same_v<std::remove_cv_t<T>, Status>);

 public:
  using value_type = T;

  Result(T value) noexcept(std::is_nothrow_move_constructible_v<T>) : has_(true) {
    ::new (static_cast<void*>(&storage_.value)) T(std::move(value));
  }
  // Requires: !error.ok().
  Result(Status error) noexcept : has_(false) {
    ::new (static_cast<void*>(&storage_.error)) Status(std::move(error));
  }
  Result(const Shortage& shortage) noexcept : Result(Status(shortage)) {}

  Result(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) : has_(other.has_) {
    construct(std::move(other));
  }
  Result& operator=(Result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) {
    if (this == &other) return *this;
    destroy();
    has_ = other.has_;
    construct(std::move(other));
    return *this;
  }
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;
  ~Result() { destroy(); }

  [[nodiscard]] bool has_value() const noexcept { return has_; }
  explicit operator bool() const noexcept { return has_; }

  // Requires: has_value(). Taking the value of an error stops the program.
  T& operator*() & noexcept { return value(); }
  const T& operator*() const& noexcept { return value(); }
  // By value, so that in `for (x : *call())` the value lives as long as the loop.
  T operator*() && noexcept(std::is_nothrow_move_constructible_v<T>) { return std::move(value()); }
  T* operator->() noexcept { return &value(); }
  const T* operator->() const noexcept { return &value(); }
  template <typename U>
  T value_or(U&& fallback) && {
    return has_ ? std::move(storage_.value) : static_cast<T>(std::forward<U>(fallback));
  }
  // Requires: !has_value().
  const Status& error() const& noexcept {
    if (has_) detail::no_error();
    return storage_.error;
  }
  Status&& error() && noexcept {
    if (has_) detail::no_error();
    return std::move(storage_.error);
  }

 private:
  T& value() noexcept {
    if (!has_) detail::no_value(storage_.error);
    return storage_.value;
  }
  const T& value() const noexcept {
    if (!has_) detail::no_value(storage_.error);
    return storage_.value;
  }
  void construct(Result&& other) {
    if (has_) {
      ::new (static_cast<void*>(&storage_.value)) T(std::move(other.storage_.value));
    } else {
      ::new (static_cast<void*>(&storage_.error)) Status(std::move(other.storage_.error));
    }
  }
  void destroy() noexcept {
    if (has_) {
      storage_.value.~T();
    } else {
      storage_.error.~Status();
    }
  }

  bool has_;
  union Storage {
    Storage() noexcept {}
    ~Storage() {}
    T value;
    Status error;
  } storage_;
};

// Returns the error of `expression` from the calling function, if there is one.
#define KVFOLIO_RETURN_IF_ERROR(expression)                                        \
  do {                                                                             \
    if (::kvfolio::Status kvfolio_status_ = (expression); !kvfolio_status_.ok()) { \
      return kvfolio_status_;                                                      \
    }                                                                              \
  } while (false)

}  // namespace kvfolio
