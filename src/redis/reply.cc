// SPDX-License-Identifier: Apache-2.0
#include "redis/reply.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvfolio/status.h"

namespace kvfolio::redis {

namespace {

// hiredis builds a reply depth first, so a parent's list does not grow while a child is built.
Reply* make(const redisReadTask* task) {
  auto* reader = static_cast<ReplyReader*>(task->privdata);
  return reader->make(task->parent == nullptr ? nullptr : static_cast<Reply*>(task->parent->obj));
}

void* make_string(const redisReadTask* task, char* text, std::size_t size) {
  Reply* reply = make(task);
  if (reply == nullptr) return nullptr;
  reply->kind = task->type == REDIS_REPLY_ERROR    ? Reply::Kind::kError
                : task->type == REDIS_REPLY_STATUS ? Reply::Kind::kStatus
                                                   : Reply::Kind::kString;
  reply->bytes = size;
  const auto target = static_cast<ReplyReader*>(task->privdata)->target();
  if (task->parent == nullptr && reply->kind == Reply::Kind::kString && !target.empty()) {
    const std::size_t header = static_cast<ReplyReader*>(task->privdata)->header_bytes();
    if (size != header + target.size()) return reply;
    reply->text.assign(text, header);
    std::memcpy(target.data(), text + header, target.size());
    reply->delivered = true;
    return reply;
  }
  reply->text.assign(text, std::min(size, Reply::kTextMax));
  return reply;
}

void* make_array(const redisReadTask* task, decltype(redisReadTask::elements) /*elements*/) {
  Reply* reply = make(task);
  if (reply != nullptr) reply->kind = Reply::Kind::kArray;
  return reply;
}

void* make_integer(const redisReadTask* task, long long value) {
  Reply* reply = make(task);
  if (reply == nullptr) return nullptr;
  reply->kind = Reply::Kind::kInteger;
  reply->integer = value;
  return reply;
}

void* make_nil(const redisReadTask* task) { return make(task); }

// The tree belongs to the reader.
void free_nothing(void* /*reply*/) {}

redisReplyObjectFunctions make_functions() {
  redisReplyObjectFunctions functions{};
#if HIREDIS_MAJOR >= 1
  // A double is of a protocol that was not asked for: such a reply breaks the stream. Without
  // functions hiredis would make up an address for it.
  functions.createDouble = [](const redisReadTask*, double, char*, std::size_t) -> void* {
    return nullptr;
  };
  functions.createBool = [](const redisReadTask*, int) -> void* { return nullptr; };
#endif
  functions.createString = make_string;
  functions.createArray = make_array;
  functions.createInteger = make_integer;
  functions.createNil = make_nil;
  functions.freeObject = free_nothing;
  return functions;
}

redisReplyObjectFunctions* functions() {
  static redisReplyObjectFunctions all = make_functions();
  return &all;
}

}  // namespace

void ReplyReader::Deleter::operator()(redisReader* reader) const noexcept {
  redisReaderFree(reader);
}

ReplyReader::ReplyReader() { reset(); }
ReplyReader::~ReplyReader() = default;

void ReplyReader::reset() {
  reader_.reset(redisReaderCreateWithFunctions(functions()));
  root_ = {};
  is_whole_ = false;
  if (reader_ == nullptr) return;
  reader_->privdata = this;
  reader_->maxbuf = 0;  // the buffer is kept: the next value has the size of the last one
}

bool ReplyReader::feed(std::span<const char> bytes) {
  return reader_ != nullptr &&
         redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) == REDIS_OK;
}

std::size_t ReplyReader::waiting() const noexcept {
  return reader_ == nullptr ? 0 : reader_->len - reader_->pos;
}

// A line ends soon, that of a value's length too. hiredis looks for the end of one from its
// beginning each time: many megabytes, for a server that never ends it.
bool ReplyReader::waits_for_a_line() const noexcept {
  constexpr std::size_t kLineMax = std::size_t{64} << 10;
  constexpr std::size_t kNumberMax = 64;
  if (waiting() <= kLineMax) return false;
  static_assert(kNumberMax < kLineMax);
  const std::string_view begin(reader_->buf + reader_->pos, kNumberMax);
  return begin.find("\r\n") == std::string_view::npos;
}

ReplyReader::Next ReplyReader::next(std::span<std::byte> target, const Reply*& reply,
                                    std::size_t nodes_max, std::size_t header_bytes) {
  if (reader_ == nullptr) return Next::kBroken;
  if (std::exchange(is_whole_, false)) root_ = {};
  KVFOLIO_CHECK(header_bytes <= Reply::kTextMax);
  target_ = target;
  header_bytes_ = header_bytes;
  nodes_max_ = nodes_max;
  void* found = nullptr;
  if (redisReaderGetReply(reader_.get(), &found) != REDIS_OK) return Next::kBroken;
  if (found == nullptr) return waits_for_a_line() ? Next::kBroken : Next::kMore;
  reply = static_cast<const Reply*>(found);
  is_whole_ = true;
  return Next::kReply;
}

Reply* ReplyReader::make(Reply* parent) {
  if (parent == nullptr) {
    root_ = {};
    num_nodes_ = 1;
    return &root_;
  }
  KVFOLIO_DCHECK(num_nodes_ >= 1 && num_nodes_ <= nodes_max_ + 1);
  if (++num_nodes_ > nodes_max_) return nullptr;
  return &parent->elements.emplace_back();
}

namespace {

// From here on a value is sent from where it lies: a shorter one costs less copied than as a write
// of its own.
constexpr std::size_t kCopiedMost = std::size_t{16} << 10;

void add_count(std::string& to, char kind, std::size_t count) {
  to += kind;
  to += std::to_string(count);
  to += "\r\n";
}

void add_word(std::string& to, std::string_view word) {
  add_count(to, '$', word.size());
  to += word;
  to += "\r\n";
}

std::span<const char> chars(std::span<const std::byte> bytes) noexcept {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): bytes as the text of a command
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Command::Command(std::span<const std::string_view> words) {
  add_count(head_, '*', words.size());
  for (const std::string_view word : words) add_word(head_, word);
}

Command Command::set(std::string_view key, std::span<const std::byte> header,
                     std::span<const std::byte> data, std::span<const std::string_view> more) {
  Command command;
  const bool copied = data.size() <= kCopiedMost;
  command.head_.reserve(256 + key.size() + header.size() + (copied ? data.size() : 0));
  add_count(command.head_, '*', 3 + more.size());
  add_word(command.head_, "SET");
  add_word(command.head_, key);
  add_count(command.head_, '$', header.size() + data.size());
  const std::span<const char> header_text = chars(header);
  command.head_.append(header_text.data(), header_text.size());
  const std::span<const char> data_text = chars(data);
  std::string& behind = copied ? command.head_ : command.tail_;
  if (copied) {
    command.head_.append(data_text.data(), data_text.size());
  } else {
    command.data_ = data_text;
  }
  behind += "\r\n";
  for (const std::string_view word : more) add_word(behind, word);
  return command;
}

std::span<const char> Command::rest(std::size_t sent) const noexcept {
  KVFOLIO_CHECK(sent < size());
  if (sent < head_.size()) return std::span(head_).subspan(sent);
  sent -= head_.size();
  if (sent < data_.size()) return data_.subspan(sent);
  return std::span(tail_).subspan(sent - data_.size());
}

void Command::keep() {
  if (data_.empty() || !kept_.empty()) return;
  KVFOLIO_DCHECK(data_.size() > kCopiedMost);
  kept_.assign(data_.data(), data_.size());
  data_ = kept_;
}

}  // namespace kvfolio::redis
