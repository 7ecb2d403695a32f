// SPDX-License-Identifier: Apache-2.0
#pragma once

// FakeDevice stands where an engine has its GPU: it executes the plans of a manager late, on a
// thread of its own, and looks at every byte that attention would look at.
//
// What it simulates. Memory is one digest per token and group: of the root key, the media and every
// token before it, so that two tokens have the same bytes iff they have the same past. A step runs
// in four phases, and other steps, frees and calls of the manager may come between any two:
//   uploaded  the plan's arrays are on the device (Upload says how they got there)
//   copied    block copies have run: block contents are read now, not when the plan was made
//   written   what the step's queries read of earlier tokens was read; then the new tokens stand at
//             their slots; a token with slot -1 had to be there already
//   done      everything that the step's queries read was read once more, with the new tokens
// kInOrder is one stream: a step copies when the one before it is done; uploads may overtake.
// kUnordered interleaves the phases of all steps in flight as the caller likes.
// A block is poisoned when its owner says that it became free.
//
// What it catches: a block that is reused, or freed, while a step may touch it; a write to a shared
// block; a copy that is missing, late, or of a source that changed; a table or slot that points to
// something else; a hit on what is not there yet, or of another prompt, tenant or image; a window
// that moved too early; plan arrays that change, or die, before their step is complete; ids outside
// of the memory. It knows neither manager nor tree, and trusts the caller for two things: what each
// sequence says, and which blocks are free.
//
// The thread does what it was told in the order it was told: results depend on the calls, never on
// the scheduler. After the first violation it touches nothing any more, so the first stays the
// first. Between start() and wait() it runs beside the caller, reads the manager's plan arrays and
// touches its memory: a manager that wrote to either would be a race for the thread sanitizer.
//
//   FakeDevice device(spec.groups, Order::kInOrder);
//   device.submit(**manager.plan(), rows, Upload::kLate);   // as an engine launches its kernels
//   manager.commit(t);
//   device.advance(t, Phase::kCopied);
//   device.start();                                         // runs beside what follows
//   ... plan the next step ...
//   device.advance(t, Phase::kDone);
//   device.wait();                                          // the sequence point
//   ASSERT_EQ(device.violation(), "");
//   manager.complete(t);
//   device.forget(t);
//
// Thread safety: one caller. at() and violation() are of the last wait().

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kvfolio/group_rule.h"
#include "kvfolio/ids.h"
#include "kvfolio/manager_types.h"
#include "kvfolio/spec.h"
#include "kvfolio/step_plan.h"

namespace kvfolio::fake_device {

// Stands for the bytes of a token in all layers of a group.
using Digest = std::uint64_t;

// The digest of memory that was not written since it became free. No other has this value.
inline constexpr Digest kPoison = 0x7ff8deadfee1deadull;

// Does the query at position `query` of this group read position p <= query?
inline bool attends(const GroupSpec& group, std::int32_t query, std::int32_t p) {
  return GroupRule(group).reads(query, p, p + 1);
}

enum class Phase : std::int32_t { kSubmitted = 0, kUploaded, kCopied, kWritten, kDone };
inline constexpr std::int32_t kNumPhases = 4;  // that the thread executes

// The arrays of a plan are its step's until the step is complete.
enum class Upload : std::int32_t {
  kAtSubmit = 0,  // copied by the caller before commit
  kLate,          // copied by the device in its first phase
  kInPlace,       // never copied: every phase reads them where they are
};

// One sequence of a plan, in its order.
struct Row {
  std::int32_t name = 0;        // for messages
  std::vector<Digest> digests;  // [kv_len]: what its tokens are, those of this step included
};

class FakeDevice {
 public:
  FakeDevice(std::span<const GroupSpec> groups, Order order);
  // The plans need not be alive any more, but for those that start() was called for.
  ~FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // Takes a step over. The plan has block tables; its arrays stay where they are until forget().
  // Tickets ascend.
  void submit(const StepPlan& plan, std::vector<Row> rows, Upload upload);
  // Lets the step run through `phase`; no effect where it is that far. kInOrder, beyond kUploaded:
  // the steps before it are done.
  void advance(Ticket ticket, Phase phase);
  [[nodiscard]] bool has(Ticket ticket) const;
  // How far the step has been told to go. Requires (these three): has(ticket).
  [[nodiscard]] Phase phase(Ticket ticket) const;
  // The host has run the copies of an uploaded step in this memory: kCopied without a copy.
  void skip_copies(Ticket ticket);
  // The step is complete, or has failed; it may have stopped anywhere.
  void forget(Ticket ticket);

  // The block is free: what it holds is lost.
  void poison(std::int32_t group, std::int32_t block);
  // So is one token of a failed step.
  void poison_slot(std::int32_t group, std::int32_t slot);

  // Hands what was told so far to the thread and returns.
  void start();
  // start(), and returns when all of it is done.
  void wait();

  // Requires (both): wait() since the last call above. The memory is for a host that computes too.
  [[nodiscard]] std::span<Digest> memory(std::int32_t group) {
    return groups_[static_cast<std::size_t>(group)].memory;
  }
  [[nodiscard]] Digest at(std::int32_t group, std::int32_t slot) const;
  // Empty, or the first violation as a sentence.
  [[nodiscard]] const std::string& violation() const { return violation_; }
  // Tokens compared so far.
  [[nodiscard]] std::uint64_t num_reads() const { return num_reads_; }

 private:
  struct Step;
  struct Command {
    Step* step = nullptr;  // null: poison slots [begin, end) of `group`
    Phase phase = Phase::kSubmitted;
    std::int32_t group = 0;
    std::int32_t begin = 0;
    std::int32_t end = 0;
  };
  struct Group {
    GroupSpec spec;
    std::vector<Digest> memory;  // [num_blocks * block_size]
  };

  // On the thread.
  void serve();
  void execute(const Command& command);
  void upload(Step& step);
  void copy(Step& step);
  void write(Step& step);
  void read(Step& step, bool with_new_tokens);
  void check_plan_unchanged(Step& step);
  void check_token(const Step& step, std::size_t row, std::size_t group, std::int32_t position,
                   const char* why);
  [[nodiscard]] bool check_id(const Step& step, std::size_t group, const char* array,
                              std::int64_t id, std::int64_t end);
  void fail(const Step& step, const std::string& what);
  static std::string row_name(const Step& step, std::size_t row, std::size_t group);

  [[nodiscard]] Step& find(Ticket ticket) const;

  const Order order_;
  // The thread's while it runs, the caller's after wait().
  std::vector<Group> groups_;
  std::string violation_;
  std::uint64_t num_reads_ = 0;

  // The caller's.
  std::vector<std::unique_ptr<Step>> steps_;  // in ticket order
  std::vector<Command> told_;                 // not handed over yet

  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::vector<Command> queue_;  // guarded by mutex_
  bool busy_ = false;           // guarded by mutex_
  bool closing_ = false;        // guarded by mutex_
  std::thread thread_;          // last: it uses all of the above
};

}  // namespace kvfolio::fake_device
