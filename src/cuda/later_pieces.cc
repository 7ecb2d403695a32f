// SPDX-License-Identifier: Apache-2.0

// How a piece of a submitted copy is begun.

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/mutants.h"
#include "base/text.h"
#include "cuda/later_copies.h"

namespace kvfolio::cuda::staged {
namespace {

// Copies of the driver in a piece; as many places without a kernel.
constexpr std::size_t kMostCopies = 32;
// A stream with this many operations takes no other piece. A driver has room for about a thousand
// of all streams together, and makes its caller wait for more.
constexpr int kMostOperations = 96;
constexpr std::size_t kFewPlaces = 4;  // as kFewRuns of device_memory.cc

// The units in which a kernel moves such a run: its place is a multiple of them.
std::int64_t unit_of(const std::byte* device, std::int64_t bytes) {
  const auto odd = static_cast<std::int64_t>(address_of(device) & 15u) | bytes | 16;
  return odd & -odd;
}

}  // namespace

LaterCopies::Track* LaterCopies::free_track(Lane& lane, const Ticket& ticket, Slot*& slot) {
  for (std::size_t i = 0; i < kTracks; ++i) {
    Track& track = lane.tracks[(lane.turn + i) % kTracks];
    if (track.operations >= kMostOperations) continue;
    if (ticket.way == Way::kPinned) {
      const auto free = std::find_if(track.slots.begin(), track.slots.end(), [](const Slot& one) {
        return !one.is_taken || mutant(Mutant::kLaterStagingReusedEarly);
      });
      if (free == track.slots.end()) continue;
      slot = &*free;
    }
    lane.turn = (lane.turn + i + 1) % kTracks;
    return &track;
  }
  return nullptr;
}

void LaterCopies::begin_piece(Lane& lane, Track& track, Ticket& ticket, Slot* slot) {
  if (const Status gated = wait_for_gate(lane, track, ticket); !gated.ok()) {
    return ticket.fail(gated);  // nothing of the piece was begun
  }
  Piece piece{.ticket = &ticket, .slot = slot, .operations = ticket.gate != nullptr ? 1 : 0};
  if (slot != nullptr) slot->is_taken = true;
  const Status begun = ticket.way == Way::kRuns     ? copy_runs(track, ticket, piece)
                       : ticket.way == Way::kKernel ? copy_by_kernel(track, ticket, piece)
                                                    : copy_pinned(track, ticket, piece);
  if (!begun.ok()) ticket.fail(begun);
  // Also behind a call that failed, which may have begun something.
  Result<void*> event = take_event();
  Status recorded = event ? Status() : event.error();
  if (event) {
    recorded = device_->run(
        "to record an event behind later copies",
        [&](const DriverCalls& calls) { return calls.event_record(*event, track.stream); });
    if (!recorded.ok()) drop_event(*event);
  }
  if (recorded.ok()) {
    piece.event = *event;
  } else {
    ticket.fail(recorded);
  }
  ++piece.operations;
  ++ticket.in_flight;
  track.operations += piece.operations;
  track.pieces.push_back(std::move(piece));
}

Status LaterCopies::wait_for_gate(Lane& lane, Track& track, Ticket& ticket) {
  bool& is_behind = ticket.is_behind_gate[static_cast<std::size_t>(&track - lane.tracks.data())];
  if (ticket.gate == nullptr || is_behind) return {};
  KVFOLIO_RETURN_IF_ERROR(
      device_->run("to let later copies wait for an event", [&](const DriverCalls& calls) {
        return calls.stream_wait_event(track.stream, ticket.gate, 0);
      }));
  is_behind = true;
  return {};
}

Status LaterCopies::copy_one(Track& track, Piece& piece, std::byte* dst, const std::byte* src,
                             std::int64_t bytes) {
  ++piece.operations;
  return device_->run([&] { return text::concat("to begin a copy of ", bytes, " bytes"); },
                      [&](const DriverCalls& calls) {
                        const auto size = static_cast<std::size_t>(bytes);
                        switch (piece.ticket->direction) {
                          case CopyDirection::kIn:
                            return calls.copy_in(address_of(dst), src, size, track.stream);
                          case CopyDirection::kOut:
                            return calls.copy_out(dst, address_of(src), size, track.stream);
                          case CopyDirection::kWithin:
                            break;
                        }
                        return calls.copy_within(address_of(dst), address_of(src), size,
                                                 track.stream);
                      });
}

Status LaterCopies::copy_runs(Track& track, Ticket& ticket, Piece& piece) {
  for (std::size_t i = 0; i < kMostCopies && !ticket.is_begun(); ++i) {
    const CopyRun& run = ticket.runs[ticket.next++];
    KVFOLIO_RETURN_IF_ERROR(copy_one(track, piece, run.dst, run.src, run.bytes));
  }
  return {};
}

// What comes next of the ticket, as much as fits. `dense`: places follow each other where a kernel
// allows it, so that memory of the host which does is one copy. Returns where the last place ends.
std::int64_t LaterCopies::take_places(Ticket& ticket, std::int64_t room, std::size_t most,
                                      bool dense, std::vector<Place>& places) const {
  std::int64_t used = 0;
  std::size_t ranges = 0;
  while (!ticket.is_begun() && places.size() < most) {
    const CopyRun& run = ticket.runs[ticket.next];
    const bool in = ticket.direction == CopyDirection::kIn;
    Place place{.host = (in ? const_cast<std::byte*>(run.src) : run.dst) + ticket.done,
                .device = (in ? run.dst : const_cast<std::byte*>(run.src)) + ticket.done,
                .bytes = run.bytes - ticket.done};
    const auto place_at = [&] {
      const bool follows = dense && !places.empty() &&
                           places.back().host + places.back().bytes == place.host &&
                           used % unit_of(place.device, place.bytes) == 0;
      place.at = follows ? used : (used + 15) / 16 * 16;
      return follows;
    };
    bool follows = place_at();
    if (place.bytes > room - place.at) {
      place.bytes = (room - place.at) / 16 * 16;  // the rest stays as aligned as it was
      if (place.bytes <= 0) break;
      const std::int64_t before = place.at;
      follows = place_at();
      if (place.at != before) break;
    }
    if (!follows && dense && ++ranges > kMostCopies) break;
    used = place.at + place.bytes;
    ticket.done += place.bytes;
    if (ticket.done == run.bytes) {
      ++ticket.next;
      ticket.done = 0;
    }
    places.push_back(place);
  }
  return used;
}

Status LaterCopies::launch(Track& track, Piece& piece) {
  RunsArgs args;
  args.stage = track.stage;
  for (std::size_t i = 0; i < piece.places.size(); ++i) {
    const Place& place = piece.places[i];
    args.runs[i] = {address_of(place.device), static_cast<std::uint32_t>(place.at),
                    static_cast<std::uint32_t>(place.bytes)};
  }
  ++piece.operations;
  DriverQueue queue(kernels_, track.stream);
  return launch_runs(queue, piece.ticket->direction == CopyDirection::kIn, args,
                     piece.places.size());
}

Status LaterCopies::copy_by_kernel(Track& track, Ticket& ticket, Piece& piece) {
  const bool in = ticket.direction == CopyDirection::kIn;
  const auto room = 2 * slot_bytes_;
  static_cast<void>(take_places(ticket, room, kMaxRuns, true, piece.places));
  std::byte* const stage = pointer_to(track.stage);
  if (!in) KVFOLIO_RETURN_IF_ERROR(launch(track, piece));
  for (auto first = piece.places.begin(); first != piece.places.end();) {
    auto last = first;
    for (auto next = first + 1; next != piece.places.end(); last = next++) {
      if (next->host != last->host + last->bytes || next->at != last->at + last->bytes) break;
    }
    const std::int64_t bytes = last->at + last->bytes - first->at;
    std::byte* const there = stage + first->at;
    KVFOLIO_RETURN_IF_ERROR(
        copy_one(track, piece, in ? there : first->host, in ? first->host : there, bytes));
    first = last + 1;
  }
  return in ? launch(track, piece) : Status();
}

Status LaterCopies::copy_pinned(Track& track, Ticket& ticket, Piece& piece) {
  const bool in = ticket.direction == CopyDirection::kIn;
  std::byte* const pinned = piece.slot->data;
  const std::int64_t used = take_places(
      ticket, slot_bytes_, kernels_ != nullptr ? kMaxRuns : kMostCopies, false, piece.places);
  if (in) {
    for (const Place& place : piece.places) {
      std::memcpy(pinned + place.at, place.host, static_cast<std::size_t>(place.bytes));
    }
  }
  if (kernels_ != nullptr && piece.places.size() >= kFewPlaces) {
    std::byte* const stage = pointer_to(track.stage);
    if (!in) KVFOLIO_RETURN_IF_ERROR(launch(track, piece));
    KVFOLIO_RETURN_IF_ERROR(copy_one(track, piece, in ? stage : pinned, in ? pinned : stage, used));
    return in ? launch(track, piece) : Status();
  }
  for (const Place& place : piece.places) {
    std::byte* const there = pinned + place.at;
    KVFOLIO_RETURN_IF_ERROR(
        copy_one(track, piece, in ? place.device : there, in ? there : place.device, place.bytes));
  }
  return {};
}

}  // namespace kvfolio::cuda::staged
