// SPDX-License-Identifier: Apache-2.0
#include "redis/connection.h"

#include <algorithm>
#include <utility>

namespace kvfolio::redis {

namespace {
// What a reply may have beside the value that was asked for.
constexpr std::size_t kReplyBytesMax = std::size_t{1} << 20;
}  // namespace

bool Connection::open(const Address& address, const TlsContext* tls, const std::string& host,
                      std::uint64_t stall_us, std::uint64_t now_us) {
  KVFOLIO_CHECK(state_ == State::kClosed && questions_.empty() && out_.empty());
  reader_.reset();
  error_.clear();
  opened_us_ = now_us;
  overdue_polls_ = 0;
  note_progress(now_us);
  if (!socket_.open(address, tls, host, stall_us)) {
    close(socket_.error());
    return false;
  }
  state_ = State::kConnecting;
  return true;
}

void Connection::close(std::string why) {
  socket_.close();
  reader_.reset();
  state_ = State::kClosed;
  first_number_ += questions_.size();
  questions_.clear();
  out_.clear();
  sent_ = 0;
  unsent_bytes_ = 0;
  has_more_ = false;
  bytes_in_flight_ = 0;
  error_ = std::move(why);
}

std::uint64_t Connection::ask(const Question& question, Command command, std::uint64_t now_us) {
  const bool greets =
      question.kind == Question::Kind::kAuth || question.kind == Question::Kind::kPing;
  KVFOLIO_CHECK(state_ == (greets ? State::kGreeting : State::kReady));
  KVFOLIO_DCHECK(command.size() > 0 && question.budget >= 0);
  if (questions_.empty()) note_progress(now_us);
  first_is_new_ |= questions_.empty();
  questions_.push_back(question);
  bytes_in_flight_ += question.budget;
  unsent_bytes_ += static_cast<std::int64_t>(command.size());
  out_.push_back(std::move(command));
  return first_number_ + questions_.size() - 1;
}

void Connection::abandon(std::uint64_t number) {
  if (number < first_number_ || number - first_number_ >= questions_.size()) return;
  Question& question = questions_[number - first_number_];
  KVFOLIO_DCHECK(question.kind == Question::Kind::kItem);
  question.item = 0;
  question.target = {};
  // Commands that are not sent yet belong to the last questions.
  const std::size_t behind = questions_.size() - (number - first_number_);
  if (behind <= out_.size()) out_[out_.size() - behind].keep();
}

void Connection::note_progress(std::uint64_t now_us) noexcept {
  moved_us_ = now_us;
  quiet_polls_ = 0;
}

bool Connection::fail(std::string why) {
  error_ = std::move(why);
  return false;
}

bool Connection::move(Budget& budget, std::uint64_t now_us) {
  if (state_ == State::kConnecting) {
    const Socket::Io io = socket_.go_on();
    if (io == Socket::Io::kFailed) return fail(socket_.error());
    if (io == Socket::Io::kAgain) return true;
    state_ = State::kGreeting;
    note_progress(now_us);
  }
  return send(budget, now_us) && receive(budget, now_us);
}

bool Connection::send(Budget& budget, std::uint64_t now_us) {
  while (!out_.empty() && budget.bytes > 0) {
    const auto rest = out_.front().rest(sent_);
    // TLS wants a blocked attempt made again with no less.
    const std::size_t most =
        std::max(static_cast<std::size_t>(budget.bytes), socket_.blocked_bytes());
    const auto part = rest.first(std::min(rest.size(), most));
    std::size_t n = 0;
    const Socket::Io io = socket_.write(part, n);
    if (io == Socket::Io::kFailed) return fail(socket_.error());
    if (io == Socket::Io::kAgain) return true;
    budget.bytes -= static_cast<std::int64_t>(n);
    budget.sent += n;
    KVFOLIO_DCHECK(n <= part.size());
    unsent_bytes_ -= static_cast<std::int64_t>(n);
    note_progress(now_us);
    sent_ += n;
    KVFOLIO_DCHECK(sent_ <= out_.front().size() && unsent_bytes_ >= 0);
    if (sent_ < out_.front().size()) continue;
    out_.pop_front();
    sent_ = 0;
  }
  return true;
}

bool Connection::receive(Budget& budget, std::uint64_t now_us) {
  if (budget.bytes <= 0) {
    has_more_ = true;
    return true;
  }
  KVFOLIO_DCHECK(!budget.buffer.empty());  // else no byte looks like the end of what came
  std::size_t n = 0;
  const Socket::Io io = socket_.read(budget.buffer, n);
  has_more_ = io == Socket::Io::kDone;
  if (io == Socket::Io::kFailed) return fail(socket_.error());
  if (io == Socket::Io::kAgain) return true;
  budget.bytes -= static_cast<std::int64_t>(n);
  budget.received += n;
  note_progress(now_us);
  if (questions_.empty()) return fail("the server said something that was not asked for");
  return reader_.feed(budget.buffer.first(n)) || fail("no memory for a reply");
}

ReplyReader::Next Connection::next(Question& question, const Reply*& reply) {
  if (questions_.empty()) {
    return reader_.waiting() == 0 ? ReplyReader::Next::kMore : ReplyReader::Next::kBroken;
  }
  const Question& first = questions_.front();
  const bool is_map = first.kind == Question::Kind::kSlots;
  const ReplyReader::Next what =
      reader_.next(first.target, reply, is_map ? Reply::kNodesMax : 1, first.header_bytes);
  if (what == ReplyReader::Next::kMore) {
    const std::size_t most = static_cast<std::size_t>(first.budget) + kReplyBytesMax;
    return reader_.waiting() > most ? ReplyReader::Next::kTooLong : what;
  }
  if (what == ReplyReader::Next::kBroken) return what;
  question = first;
  questions_.pop_front();
  // Answered before it was sent whole: from now on the value's memory is its owner's. Those before
  // it that are not sent either were answered, too, and are in front of it.
  if (out_.size() > questions_.size()) out_[out_.size() - questions_.size() - 1].keep();
  first_is_new_ = true;
  ++first_number_;
  bytes_in_flight_ -= question.budget;
  KVFOLIO_DCHECK(questions_.empty() ? bytes_in_flight_ == 0 : bytes_in_flight_ >= 0);
  return what;
}

bool Connection::is_late(std::uint64_t now_us, std::uint64_t connect_us,
                         std::uint64_t stall_us) noexcept {
  constexpr int kPolls = 3;
  if (state_ == State::kClosed || has_more_) return false;
  if (std::exchange(first_is_new_, false)) first_us_ = now_us;
  const std::uint64_t due = questions_.empty() ? 0 : questions_.front().deadline_us;
  const std::uint64_t from = std::max(due, first_us_);
  const bool overdue = state_ != State::kReady
                           ? now_us - opened_us_ > connect_us
                           : due != 0 && now_us > from && now_us - from > stall_us;
  overdue_polls_ = overdue ? overdue_polls_ + 1 : 0;
  const bool quiet = ++quiet_polls_ >= kPolls && state_ == State::kReady && !questions_.empty() &&
                     now_us - moved_us_ > stall_us;
  return quiet || overdue_polls_ >= kPolls;
}

bool Connection::check() const noexcept {
  std::int64_t in_flight = 0, unsent = -static_cast<std::int64_t>(sent_);
  for (const Question& question : questions_) in_flight += question.budget;
  for (const Command& command : out_) unsent += static_cast<std::int64_t>(command.size());
  if (in_flight != bytes_in_flight_ || unsent != unsent_bytes_) return false;
  return state_ != State::kClosed || (questions_.empty() && out_.empty());
}

}  // namespace kvfolio::redis
