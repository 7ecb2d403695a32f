// SPDX-License-Identifier: Apache-2.0

// Tickets: how they come, what is asked of their streams, and how they end. Their pieces begin in
// later_pieces.cc.

#include "cuda/later_copies.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "base/invalid.h"
#include "base/mutants.h"
#include "base/text.h"

namespace kvfolio::cuda::staged {
namespace {

using text::concat;

// Two tracks of two directions, two slots each.
constexpr std::int64_t kSlots = 8;

bool overlap(const std::byte* a, std::int64_t a_bytes, const std::byte* b, std::int64_t b_bytes) {
  return std::less<>{}(a, b + b_bytes) && std::less<>{}(b, a + a_bytes);
}

// Pieces that follow each other on both sides are one.
std::vector<CopyRun> joined(std::span<const CopyRun> runs) {
  std::vector<CopyRun> result;
  result.reserve(runs.size());
  for (const CopyRun& run : runs) {
    if (run.bytes == 0) continue;
    if (!result.empty() && result.back().dst + result.back().bytes == run.dst &&
        result.back().src + result.back().bytes == run.src) {
      result.back().bytes += run.bytes;
    } else {
      result.push_back(run);
    }
  }
  return result;
}

}  // namespace

bool LaterCopies::Ticket::touches(const std::byte* memory, std::int64_t bytes) const {
  return std::any_of(runs.begin(), runs.end(), [&](const CopyRun& run) {
    return overlap(run.dst, run.bytes, memory, bytes) || overlap(run.src, run.bytes, memory, bytes);
  });
}

// ---- the beginning and the end ----

Result<std::unique_ptr<LaterCopies>> LaterCopies::create(std::shared_ptr<Device> device,
                                                         std::shared_ptr<MoveModule> kernels,
                                                         std::int64_t staging_bytes,
                                                         std::int32_t max_tickets) {
  std::unique_ptr<LaterCopies> copies(new LaterCopies(std::move(device)));
  copies->kernels_ = std::move(kernels);
  copies->slot_bytes_ = staging_bytes / (kSlots * 64) * 64;
  copies->max_tickets_ = max_tickets;
  Result<PinnedMemory> staging = PinnedMemory::allocate(copies->device_, staging_bytes);
  if (!staging) return staging.error();
  copies->staging_ = *std::move(staging);
  if (copies->kernels_ != nullptr) {
    KVFOLIO_RETURN_IF_ERROR(
        copies->device_->run("to allocate staging for later copies", [&](const DriverCalls& calls) {
          return calls.memory_allocate(&copies->device_staging_,
                                       static_cast<std::size_t>(staging_bytes));
        }));
  }
  for (const CopyDirection direction :
       {CopyDirection::kWithin, CopyDirection::kIn, CopyDirection::kOut}) {
    KVFOLIO_RETURN_IF_ERROR(copies->make_lane(copies->lane_of(direction), direction));
  }
  if (copies->kernels_ != nullptr) KVFOLIO_RETURN_IF_ERROR(copies->start_kernels_once());
  return copies;
}

// A driver may load a kernel when it is first started, and wait for the device to do so: now, not
// in a submit(). They copy a few bytes of the staging to others.
Status LaterCopies::start_kernels_once() {
  for (const bool in : {true, false}) {
    Track& track = lane_of(in ? CopyDirection::kIn : CopyDirection::kOut).tracks[0];
    RunsArgs args;
    args.stage = track.stage;
    args.runs[0] = {track.stage + 64, 0, 16};
    DriverQueue queue(kernels_, track.stream);
    KVFOLIO_RETURN_IF_ERROR(launch_runs(queue, in, args, 1));
    KVFOLIO_RETURN_IF_ERROR(device_->run(
        "to wait for its first kernels",
        [&](const DriverCalls& calls) { return calls.stream_synchronize(track.stream); }));
  }
  return {};
}

Status LaterCopies::make_lane(Lane& lane, CopyDirection direction) {
  lane.direction = direction;
  std::int64_t at = direction == CopyDirection::kOut ? kSlots / 2 * slot_bytes_ : 0;
  for (Track& track : lane.tracks) {
    KVFOLIO_RETURN_IF_ERROR(
        device_->run("to make a stream for later copies", [&](const DriverCalls& calls) {
          return calls.stream_create(&track.stream, kNonBlocking);
        }));
    if (direction == CopyDirection::kWithin) continue;
    track.stage = device_staging_ + static_cast<DeviceAddress>(at);
    for (Slot& slot : track.slots) {
      slot.data = staging_.data() + at;
      at += slot_bytes_;
    }
  }
  return {};
}

LaterCopies::~LaterCopies() {
  // Memory of the host that they were to write may be gone.
  for (auto& [number, ticket] : tickets_) ticket.fail({ErrorCode::kAborted, "its memory ended"});
  for (Lane& lane : lanes_) static_cast<void>(wait_for_lane(lane));
  static_cast<void>(device_->run("to end its later copies", [&](const DriverCalls& calls) {
    if (device_staging_ != 0) static_cast<void>(calls.memory_free(device_staging_));
    for (const Lane& lane : lanes_) {
      for (const Track& track : lane.tracks) {
        for (const Piece& piece : track.pieces) {
          if (piece.event != nullptr) static_cast<void>(calls.event_destroy(piece.event));
        }
        if (track.stream != nullptr) static_cast<void>(calls.stream_destroy(track.stream));
      }
    }
    for (const auto& [number, ticket] : tickets_) {
      if (ticket.gate != nullptr) static_cast<void>(calls.event_destroy(ticket.gate));
    }
    for (void* event : events_) static_cast<void>(calls.event_destroy(event));
    return 0;
  }));
}

// ---- events, used again and again ----

Result<void*> LaterCopies::take_event() {
  void* event = nullptr;
  if (!events_.empty()) {
    event = events_.back();
    events_.pop_back();
    return event;
  }
  KVFOLIO_RETURN_IF_ERROR(device_->run("to make an event", [&](const DriverCalls& calls) {
    return calls.event_create(&event, kDisableTiming);
  }));
  return event;
}

void LaterCopies::give_event(void*& event) {
  if (event != nullptr) events_.push_back(std::exchange(event, nullptr));
}

// One that answered with an error.
void LaterCopies::drop_event(void*& event) {
  if (event == nullptr) return;
  static_cast<void>(device_->run(
      "to end an event", [&](const DriverCalls& calls) { return calls.event_destroy(event); }));
  event = nullptr;
}

// ---- tickets ----

Result<CopyTicket> LaterCopies::submit(std::span<const CopyRun> runs, CopyDirection direction,
                                       void* stream) {
  const std::lock_guard lock(mutex_);
  Lane& lane = lane_of(direction);
  KVFOLIO_RETURN_IF_ERROR(device_->status());
  if (!lane.refused.ok()) {
    go_on(lane);
    if (!lane.refused.ok()) return lane.refused;
  }
  if (static_cast<std::int32_t>(tickets_.size()) == max_tickets_) drop_left();
  if (static_cast<std::int32_t>(tickets_.size()) == max_tickets_) {
    return Status(ErrorCode::kResourceExhausted,
                  concat("of max_tickets = ", max_tickets_, " tickets ", tickets_.size(),
                         " are not over: nothing was begun"));
  }
  Ticket ticket;
  ticket.direction = direction;
  ticket.runs = joined(runs);
  const Result<Way> way = way_of(ticket);
  if (!way) return way.error();
  ticket.way = *way;
  if (!ticket.runs.empty() && !mutant(Mutant::kLaterCopyIgnoresStream)) {
    // An event that is recorded there would draw a stream of these copies into the capture, and
    // what is captured runs again with each launch of the graph.
    KVFOLIO_RETURN_IF_ERROR(check_not_captured(*device_, stream, "copies cannot come behind it"));
    const Result<void*> gate = take_event();
    if (!gate) return gate.error();
    ticket.gate = *gate;
    bool is_refused = false;
    const Status recorded =
        device_->run("to record an event in the caller's stream", [&](const DriverCalls& calls) {
          const DriverResult error = calls.event_record(ticket.gate, stream);
          is_refused = is_of_capture(error);
          return is_refused ? 0 : error;
        });
    if (!recorded.ok() || is_refused) drop_event(ticket.gate);
    KVFOLIO_RETURN_IF_ERROR(recorded);
    if (is_refused) {
      return Status(ErrorCode::kFailedPrecondition,
                    "a capture of the stream began: copies cannot come behind it; nothing was "
                    "begun");
    }
  }
  ticket.number = ++last_number_;
  Ticket& stays = tickets_.emplace(ticket.number, std::move(ticket)).first->second;
  if (!stays.is_begun()) lane.waiting.push_back(&stays);
  go_on(lane);
  return CopyTicket{stays.number};
}

Result<bool> LaterCopies::poll(CopyTicket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = tickets_.find(ticket.number);
  if (found == tickets_.end()) {
    const auto gone = std::find_if(gone_.begin(), gone_.end(),
                                   [&](const Gone& one) { return one.number == ticket.number; });
    if (gone != gone_.end()) {
      const Status error = std::move(gone->error);
      gone_.erase(gone);
      if (!error.ok()) return error;
      return true;
    }
    return invalid(concat("ticket ", ticket.number, " was not given, or is over"));
  }
  Ticket& asked = found->second;
  if (!asked.is_over()) go_on(lane_of(asked.direction));
  if (!asked.is_over()) return false;
  const Status error = asked.error;
  tickets_.erase(found);
  if (!error.ok()) return error;
  return true;
}

void LaterCopies::leave(CopyTicket ticket) {
  const std::lock_guard lock(mutex_);
  const auto found = tickets_.find(ticket.number);
  if (found == tickets_.end()) {
    std::erase_if(gone_, [&](const Gone& one) { return one.number == ticket.number; });
    return;
  }
  found->second.is_left = true;
  if (found->second.is_over()) erase(found);
}

// A ticket that is in line still, and over, is one without runs or one that failed.
LaterCopies::Tickets::iterator LaterCopies::erase(Tickets::iterator it) {
  Ticket& ticket = it->second;
  std::deque<Ticket*>& waiting = lane_of(ticket.direction).waiting;
  waiting.erase(std::remove(waiting.begin(), waiting.end(), &ticket), waiting.end());
  give_event(ticket.gate);
  return tickets_.erase(it);
}

// Their directions may not be polled any more, so they are looked at here.
void LaterCopies::drop_left() {
  if (std::none_of(tickets_.begin(), tickets_.end(),
                   [](const auto& each) { return each.second.is_left; })) {
    return;
  }
  for (Lane& lane : lanes_) go_on(lane);
  for (auto it = tickets_.begin(); it != tickets_.end();) {
    it = it->second.is_left && it->second.is_over() ? erase(it) : std::next(it);
  }
}

Status LaterCopies::let_go(const std::byte* memory, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Status first;
  for (auto it = tickets_.begin(); it != tickets_.end();) {
    Ticket& ticket = it->second;
    if (!ticket.touches(memory, bytes)) {
      ++it;
      continue;
    }
    Lane& lane = lane_of(ticket.direction);
    go_on(lane);
    // Each round ends what is in flight and begins more.
    while (!ticket.is_over()) {
      const Status waited = wait_for_lane(lane);
      if (!waited.ok() && first.ok()) first = waited;
      go_on(lane);
    }
    if (!ticket.is_left) {
      if (gone_.size() == kMostGone) gone_.pop_front();
      gone_.push_back({ticket.number, ticket.error});
    }
    it = erase(it);
  }
  return first;
}

Result<LaterCopies::Way> LaterCopies::way_of(const Ticket& ticket) {
  // Fewer runs than this, or larger ones, cost as much as a kernel and its staging.
  constexpr std::size_t kFew = 4;
  constexpr std::int64_t kLarge = std::int64_t{4} << 20;
  // More ranges of host memory than this are not asked about, but staged.
  constexpr std::size_t kMostRanges = 8;
  if (ticket.direction == CopyDirection::kWithin || ticket.runs.empty()) return Way::kRuns;
  std::int64_t bytes = 0;
  std::vector<std::span<const std::byte>> ranges;
  for (const CopyRun& run : ticket.runs) {
    bytes += run.bytes;
    const std::byte* const host = ticket.direction == CopyDirection::kIn ? run.src : run.dst;
    if (!ranges.empty() && ranges.back().data() + ranges.back().size() == host) {
      ranges.back() = {ranges.back().data(),
                       ranges.back().size() + static_cast<std::size_t>(run.bytes)};
    } else {
      if (ranges.size() == kMostRanges) return Way::kPinned;
      ranges.push_back({host, static_cast<std::size_t>(run.bytes)});
    }
  }
  const Result<bool> pinned = are_pinned(ranges);
  if (!pinned) return pinned.error();
  if (!*pinned) return Way::kPinned;
  const auto count = static_cast<std::int64_t>(ticket.runs.size());
  if (kernels_ == nullptr || ticket.runs.size() < kFew || bytes / count >= kLarge) {
    return Way::kRuns;
  }
  return ranges.size() * kFew <= ticket.runs.size() ? Way::kKernel : Way::kPinned;
}

// By their first and last bytes. Memory that a driver does not know is an error there, and pageable
// here; managed memory counts as pageable.
Result<bool> LaterCopies::are_pinned(std::span<const std::span<const std::byte>> ranges) {
  constexpr int kMemoryType = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
  constexpr unsigned kOfHost = 1;
  bool pinned = true;
  KVFOLIO_RETURN_IF_ERROR(
      device_->run("to ask whether host memory is pinned", [&](const DriverCalls& calls) {
        for (const std::span<const std::byte> range : ranges) {
          for (const std::byte& byte : {std::cref(range.front()), std::cref(range.back())}) {
            unsigned type = 0;
            const DriverResult error =
                calls.pointer_attribute(&type, kMemoryType, address_of(&byte));
            if (error != 0 && error != kInvalidValue) return error;
            pinned = pinned && error == 0 && type == kOfHost;
          }
        }
        return 0;
      }));
  return pinned;
}

// ---- what has passed ----

// Looks at what is in flight, and begins what is in line. Asks only.
void LaterCopies::go_on(Lane& lane) {
  if (const Status dead = device_->status(); !dead.ok()) {
    for (Lane& each : lanes_) give_up(each, dead);
    return;
  }
  for (Track& track : lane.tracks) collect(lane, track);
  if (!lane.refused.ok() && device_->status().ok() &&
      std::all_of(lane.tracks.begin(), lane.tracks.end(),
                  [](const Track& track) { return track.failures < kFailuresToRefuse; })) {
    lane.refused = Status();
  }
  while (!lane.waiting.empty()) {
    Ticket& ticket = *lane.waiting.front();
    if (ticket.is_begun()) {
      give_event(ticket.gate);  // who waits for it has been told
      lane.waiting.pop_front();
      continue;
    }
    Slot* slot = nullptr;
    Track* const track = free_track(lane, ticket, slot);
    if (track == nullptr) return;
    begin_piece(lane, *track, ticket, slot);
  }
}

void LaterCopies::collect(Lane& lane, Track& track) {
  while (!track.pieces.empty()) {
    // The first event of the stream says so of all in front of it, too.
    const auto first = std::find_if(track.pieces.begin(), track.pieces.end(),
                                    [](const Piece& piece) { return piece.event != nullptr; });
    bool ready = false;
    const Status asked =
        device_->run("to ask whether later copies are done", [&](const DriverCalls& calls) {
          const DriverResult error = first != track.pieces.end() ? calls.event_query(first->event)
                                                                 : calls.stream_query(track.stream);
          ready = error == 0;
          // The question was refused for a capture: that is no answer.
          return error == kNotReady || is_of_capture(error) ? 0 : error;
        });
    if (asked.ok()) {
      track.failures = 0;
      if (!ready) return;
      pass(track, first != track.pieces.end()
                      ? static_cast<std::size_t>(first - track.pieces.begin()) + 1
                      : track.pieces.size());
      continue;
    }
    if (!device_->status().ok()) {
      for (Lane& each : lanes_) give_up(each, asked);
      return;
    }
    // An error of anything that came before. Whether the copies go on, it does not say: they stay
    // in flight until the stream has passed.
    for (Piece& piece : track.pieces) piece.ticket->fail(asked);
    if (first != track.pieces.end()) drop_event(first->event);
    if (++track.failures >= kFailuresToRefuse) refuse(lane, asked);
    return;
  }
}

void LaterCopies::pass(Track& track, std::size_t count) {
  for (; count > 0; --count) {
    Piece& piece = track.pieces.front();
    if (piece.slot != nullptr) {
      if (piece.ticket->direction == CopyDirection::kOut && piece.ticket->error.ok()) {
        for (const Place& place : piece.places) {
          std::memcpy(place.host, piece.slot->data + place.at,
                      static_cast<std::size_t>(place.bytes));
        }
      }
      piece.slot->is_taken = false;
    }
    --piece.ticket->in_flight;
    track.operations -= piece.operations;
    give_event(piece.event);
    track.pieces.pop_front();
  }
}

// What is in line has begun nowhere, and ends; what is in flight stays.
void LaterCopies::refuse(Lane& lane, const Status& why) {
  lane.refused = why;
  for (Ticket* ticket : lane.waiting) {
    ticket->fail(why);
    drop_event(ticket->gate);
  }
  lane.waiting.clear();
}

// The context is dead: nothing of its streams runs any more.
void LaterCopies::give_up(Lane& lane, const Status& why) {
  for (Track& track : lane.tracks) {
    for (Piece& piece : track.pieces) {
      piece.ticket->fail(why);
      --piece.ticket->in_flight;
      drop_event(piece.event);
    }
    track.pieces.clear();
  }
  refuse(lane, why);
}

// For deallocate() and the end: the only waits. A wait that fails says nothing of the copies, so it
// is tried again, and the stream is asked, until it has passed or the context is dead: who called
// gives the memory to others. Returns the first failure.
Status LaterCopies::wait_for_lane(Lane& lane) {
  constexpr auto kPause = std::chrono::microseconds(200);
  Status first;
  for (Track& track : lane.tracks) {
    while (!track.pieces.empty()) {
      bool is_refused = false;
      const Status waited = device_->run("to wait for later copies", [&](const DriverCalls& calls) {
        const DriverResult error = calls.stream_synchronize(track.stream);
        is_refused = is_of_capture(error);
        return is_refused ? 0 : error;
      });
      if (waited.ok() && !is_refused) {
        pass(track, track.pieces.size());
        continue;
      }
      if (!waited.ok()) {
        if (first.ok()) first = waited;
        for (Piece& piece : track.pieces) piece.ticket->fail(waited);
      }
      collect(lane, track);
      if (!track.pieces.empty()) std::this_thread::sleep_for(kPause);
    }
    track.failures = 0;
  }
  return first;
}

}  // namespace kvfolio::cuda::staged
