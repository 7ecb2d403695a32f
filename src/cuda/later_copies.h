// SPDX-License-Identifier: Apache-2.0
#pragma once

// LaterCopies are the copies of a DeviceMemory that were submitted: submit(), poll() and the wait
// of deallocate(), as memory.h says them. It has streams and staging of its own, so copies within a
// call and submitted ones wait for each other nowhere.
//
// A ticket goes in pieces. Each has a stream, on which pieces end in their order, and an event
// behind it; which have passed is asked for, never waited for. A direction has two streams, so that
// the kernel of one piece runs beside the memcpy of another. A piece goes one of three ways:
//  - kRuns: each run is a copy of the driver. Within the device; and between it and pinned memory
//    where there are no kernels, or few or large runs.
//  - kKernel: one kernel between the runs and staging on the device, one copy between that and
//    pinned memory. The order of the stream keeps the staging apart.
//  - kPinned: any other memory of the host. The CPU copies to pinned staging before the piece
//    begins, or from it when it has passed: in submit() and poll(). Until then the staging is the
//    piece's.
// What finds no staging, or would fill a stream (a driver makes its caller wait there), stays in
// line and is begun by a later poll(). The order against the caller's stream is an event that
// submit() records there: a stream waits for it before the first piece of its ticket.
//
// A call that failed may have begun something: its ticket fails, and ends when its stream has
// passed all the same. Where the event was lost, a later event of the stream or the stream itself
// says so. While a driver answers kFailuresToRefuse questions in turn with errors, what is in line
// in that direction ends with that error, and submit() is refused; what is in flight stays so,
// since an error to a question does not end a copy. A question that is refused because a thread
// captures was not asked. A context that dies ends all tickets, and nothing else does before its
// time. Thread safety: calls from several threads wait for each other.

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/driver.h"
#include "cuda/move_args.h"
#include "cuda/move_module.h"
#include "kvfolio/cuda_memory.h"
#include "kvfolio/memory.h"

namespace kvfolio::cuda::staged {

class LaterCopies {
 public:
  static constexpr int kFailuresToRefuse = 16;
  static constexpr std::size_t kMostGone = 8192;
  static constexpr std::int64_t kLeastBytes = 1024;
  static constexpr std::int64_t kMostBytes = std::int64_t{1} << 32;
  static constexpr std::int32_t kMostTickets = 1 << 20;

  // `staging_bytes` pinned, and as much of the device with kernels. kOutOfMemory, kUnavailable: as
  // Device::run(). Requires: both numbers within the limits above, 1 ticket or more.
  static Result<std::unique_ptr<LaterCopies>> create(std::shared_ptr<Device> device,
                                                     std::shared_ptr<MoveModule> kernels,
                                                     std::int64_t staging_bytes,
                                                     std::int32_t max_tickets);
  LaterCopies(const LaterCopies&) = delete;
  LaterCopies& operator=(const LaterCopies&) = delete;
  ~LaterCopies();  // waits for what is on its way

  // kResourceExhausted: as many tickets as there may be are not over. kFailedPrecondition: the
  // stream is being captured.
  Result<CopyTicket> submit(std::span<const CopyRun> runs, CopyDirection direction, void* stream);
  // kInvalidArgument: there is no such ticket, or since its memory went kMostGone others did so.
  Result<bool> poll(CopyTicket ticket);
  // No poll asks for it any more. It goes on, and counts among max_tickets until it is over.
  void leave(CopyTicket ticket);
  // Waits until no ticket touches the memory, or the context is dead, whatever the driver answers.
  // The first error of a wait.
  Status let_go(const std::byte* memory, std::int64_t bytes);

 private:
  static constexpr std::size_t kTracks = 2;  // of a direction
  enum class Way : std::uint8_t { kRuns, kKernel, kPinned };

  struct Ticket {
    std::uint64_t number = 0;
    CopyDirection direction = CopyDirection::kWithin;
    Way way = Way::kRuns;
    std::vector<CopyRun> runs{};
    // What is not begun: from this byte of this run on.
    std::size_t next = 0;
    std::int64_t done = 0;
    void* gate = nullptr;  // an event of the caller's stream
    std::array<bool, kTracks> is_behind_gate{};
    int in_flight = 0;
    bool is_left = false;  // no poll asks for it any more
    Status error{};

    [[nodiscard]] bool is_begun() const { return next == runs.size() || !error.ok(); }
    [[nodiscard]] bool is_over() const { return is_begun() && in_flight == 0; }
    [[nodiscard]] bool touches(const std::byte* memory, std::int64_t bytes) const;
    void fail(const Status& why) {
      if (error.ok()) error = why;
    }
  };
  // How a ticket ended whose memory deallocate() took: a poll may never come.
  struct Gone {
    std::uint64_t number = 0;
    Status error{};
  };
  // Bytes of a run and their place in staging.
  struct Place {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    std::int64_t at = 0;
    std::int64_t bytes = 0;
  };
  struct Slot {
    std::byte* data = nullptr;  // pinned
    bool is_taken = false;
  };
  struct Piece {
    Ticket* ticket = nullptr;
    void* event = nullptr;  // null: it was lost
    Slot* slot = nullptr;
    int operations = 0;
    std::vector<Place> places{};
  };
  struct Track {
    void* stream = nullptr;
    DeviceAddress stage = 0;
    std::array<Slot, 2> slots{};
    std::deque<Piece> pieces{};  // in flight, in the order of the stream
    int operations = 0;
    int failures = 0;  // questions in turn that were answered with errors
  };
  struct Lane {
    CopyDirection direction = CopyDirection::kWithin;
    std::array<Track, kTracks> tracks{};
    std::size_t turn = 0;
    std::deque<Ticket*> waiting{};  // not begun, or not as a whole
    Status refused{};               // why submit() is, after questions without answers
  };

  explicit LaterCopies(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Status make_lane(Lane& lane, CopyDirection direction);
  Status start_kernels_once();
  Lane& lane_of(CopyDirection direction) { return lanes_[static_cast<std::size_t>(direction)]; }
  Result<Way> way_of(const Ticket& ticket);
  Result<bool> are_pinned(std::span<const std::span<const std::byte>> ranges);

  using Tickets = std::map<std::uint64_t, Ticket>;
  Tickets::iterator erase(Tickets::iterator it);
  void drop_left();
  void go_on(Lane& lane);
  Track* free_track(Lane& lane, const Ticket& ticket, Slot*& slot);
  void begin_piece(Lane& lane, Track& track, Ticket& ticket, Slot* slot);
  Status wait_for_gate(Lane& lane, Track& track, Ticket& ticket);
  Status copy_runs(Track& track, Ticket& ticket, Piece& piece);
  Status copy_by_kernel(Track& track, Ticket& ticket, Piece& piece);
  Status copy_pinned(Track& track, Ticket& ticket, Piece& piece);
  Status copy_one(Track& track, Piece& piece, std::byte* dst, const std::byte* src,
                  std::int64_t bytes);
  Status launch(Track& track, Piece& piece);
  std::int64_t take_places(Ticket& ticket, std::int64_t room, std::size_t most, bool dense,
                           std::vector<Place>& places) const;

  void collect(Lane& lane, Track& track);
  void pass(Track& track, std::size_t count);
  void refuse(Lane& lane, const Status& why);
  void give_up(Lane& lane, const Status& why);
  Status wait_for_lane(Lane& lane);

  Result<void*> take_event();
  void give_event(void*& event);
  void drop_event(void*& event);

  std::shared_ptr<Device> device_;
  std::shared_ptr<MoveModule> kernels_;
  PinnedMemory staging_;
  DeviceAddress device_staging_ = 0;
  std::int64_t slot_bytes_ = 0;
  std::int32_t max_tickets_ = 0;
  std::array<Lane, 3> lanes_;  // by direction
  std::vector<void*> events_;  // spare
  Tickets tickets_;
  std::uint64_t last_number_ = 0;
  std::deque<Gone> gone_;  // the last kMostGone
  std::mutex mutex_;
};

}  // namespace kvfolio::cuda::staged
