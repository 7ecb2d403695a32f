// SPDX-License-Identifier: Apache-2.0
#pragma once

// A connection to a node: what is to be sent, what was asked, and what came back. It knows the
// order of questions and replies, and none of their meaning.
//
// Its life: kClosed -> kConnecting -> kGreeting -> kReady -> kClosed. It is greeted by the replies
// to the first questions (AUTH, PING); before that nothing else is sent. Invariants: the commands
// that are not sent yet are of the last questions, or of some that were answered before; a closed
// one has no question. Thread safety: none.

#include <cstdint>
#include <deque>
#include <span>
#include <string>

#include "redis/reply.h"
#include "redis/socket.h"

namespace kvfolio::redis {

// What was asked, in order.
struct Question {
  enum class Kind : std::uint8_t { kAuth, kPing, kSlots, kAsking, kItem };
  Kind kind = Kind::kPing;
  std::uint64_t item = 0;         // kItem; 0: the reply is not waited for any more
  std::span<std::byte> target{};  // what stands behind the header of a value goes there
  std::size_t header_bytes = 0;   // of the value
  std::int64_t budget = 0;        // bytes that it counts for on this connection
  std::uint64_t deadline_us = 0;  // the connection is given up if the reply comes later still
};

// Bytes that a poll may still move.
struct Budget {
  std::int64_t bytes = 0;
  std::span<char> buffer{};  // what is read passes through it: one for all connections
  std::uint64_t sent = 0, received = 0;
};

class Connection {
 public:
  enum class State : std::uint8_t { kClosed, kConnecting, kGreeting, kReady };

  [[nodiscard]] State state() const noexcept { return state_; }
  [[nodiscard]] int fd() const noexcept { return socket_.fd(); }
  [[nodiscard]] bool wants_write() const noexcept { return socket_.wants_write() || !out_.empty(); }
  [[nodiscard]] const std::string& error() const noexcept { return error_; }
  [[nodiscard]] std::int64_t bytes_in_flight() const noexcept { return bytes_in_flight_; }
  [[nodiscard]] std::int64_t unsent_bytes() const noexcept { return unsent_bytes_; }
  // The oldest question is the first; numbers of questions go on for the life of the connection.
  [[nodiscard]] const std::deque<Question>& questions() const noexcept { return questions_; }

  // False: error() says why, and it is closed.
  bool open(const Address& address, const TlsContext* tls, const std::string& host,
            std::uint64_t stall_us, std::uint64_t now_us);
  void close(std::string why);
  // Returns the number of the question. The memory of a value in `command` is read until the reply
  // came or abandon().
  std::uint64_t ask(const Question& question, Command command, std::uint64_t now_us);
  // The reply is not waited for any more: its target is not written to, and no memory of a value
  // is read.
  void abandon(std::uint64_t number);
  void set_ready() noexcept {
    KVFOLIO_CHECK(state_ == State::kGreeting);
    state_ = State::kReady;
  }

  // Connects, sends what it can and receives a piece. False: it failed, and is not closed yet.
  bool move(Budget& budget, std::uint64_t now_us);
  // There is more to receive than move() took; the descriptor may not say so.
  [[nodiscard]] bool has_more() const noexcept { return has_more_; }
  // The next whole reply, whose question is removed. The reply is valid until the next call.
  // kBroken: what came is no reply. kTooLong: it goes on beyond what was asked for, and the rest of
  // it was not taken in. The question stays the first.
  ReplyReader::Next next(Question& question, const Reply*& reply);
  // It waits too long: to be greeted, for any byte to move, or for the reply to its first question,
  // where bytes that trickle in are no excuse. Called once in a poll: an owner who polls seldom
  // must not see what he did not look at as late.
  [[nodiscard]] bool is_late(std::uint64_t now_us, std::uint64_t connect_us,
                             std::uint64_t stall_us) noexcept;
  // Recounts its bytes.
  [[nodiscard]] bool check() const noexcept;

 private:
  bool send(Budget& budget, std::uint64_t now_us);
  bool receive(Budget& budget, std::uint64_t now_us);
  void note_progress(std::uint64_t now_us) noexcept;
  bool fail(std::string why);

  Socket socket_;
  State state_ = State::kClosed;
  ReplyReader reader_;
  std::deque<Question> questions_;
  std::uint64_t first_number_ = 0;  // of questions_.front()
  std::deque<Command> out_;
  std::size_t sent_ = 0;  // of out_.front()
  std::int64_t unsent_bytes_ = 0;
  std::int64_t bytes_in_flight_ = 0;
  bool has_more_ = false;
  std::uint64_t opened_us_ = 0;
  std::uint64_t moved_us_ = 0;  // when a byte moved, or the first question was asked
  int quiet_polls_ = 0;         // since then
  bool first_is_new_ = false;   // since the last poll
  std::uint64_t first_us_ = 0;  // when the first question was seen to be that
  int overdue_polls_ = 0;       // in a row
  std::string error_;
};

}  // namespace kvfolio::redis
