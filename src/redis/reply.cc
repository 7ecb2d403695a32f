// SPDX-License-Identifier: Apache-2.0
#include "redis/reply.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstring>
#include <utility>

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
    if (size != target.size()) return reply;
    std::memcpy(target.data(), text, size);
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
  // Of a protocol that was not asked for: such a reply breaks the stream. Without functions hiredis
  // would make up an address for it.
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
  const std::string_view begin(reader_->buf + reader_->pos, kNumberMax);
  return begin.find("\r\n") == std::string_view::npos;
}

ReplyReader::Next ReplyReader::next(std::span<std::byte> target, const Reply*& reply,
                                    std::size_t nodes_max) {
  if (reader_ == nullptr) return Next::kBroken;
  if (std::exchange(is_whole_, false)) root_ = {};
  target_ = target;
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
  if (++num_nodes_ > nodes_max_) return nullptr;
  return &parent->elements.emplace_back();
}

Command::Command(std::span<const std::string_view> words) {
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const std::string_view word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  sds text = nullptr;
  const auto size =
      redisFormatSdsCommandArgv(&text, static_cast<int>(words.size()), texts.data(), sizes.data());
  if (size <= 0) return;
  text_ = text;
  size_ = static_cast<std::size_t>(size);
}

Command::~Command() {
  if (text_ != nullptr) redisFreeSdsCommand(text_);
}

Command::Command(Command&& other) noexcept
    : text_(std::exchange(other.text_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Command& Command::operator=(Command&& other) noexcept {
  std::swap(text_, other.text_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace kvfolio::redis
