// SPDX-License-Identifier: Apache-2.0
//
// Reading a log, and its calls in words.

#include "oplog/op_reader.h"

#include <algorithm>
#include <cmath>

#include "kvfolio/version.h"
#include "manager/op_piece.h"

namespace kvfolio {

using text::concat;

// ---- printing ----

void OpPrinter::item(std::string_view name, const std::string& value) {
  if (!bare_) text_ += ", ";
  bare_ = false;
  if (!name.empty()) text_ += concat(name, " ");
  text_ += value;
}

// Without a name it says whether there is a value, which is printed then.
void OpPrinter::flag(std::string_view name, bool value) {
  if (!name.empty()) item(name, value ? "yes" : "no");
}

void OpPrinter::bytes(std::string_view name, std::string_view value) {
  if (value.empty()) return;
  constexpr std::size_t kMost = 48;
  std::string shown = "\"";
  for (const char c : value.substr(0, kMost)) {
    const bool plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    shown +=
        plain ? std::string(1, c) : concat("\\", static_cast<int>(static_cast<unsigned char>(c)));
  }
  item(name, shown + (value.size() > kMost ? "...\"" : "\""));
}

void OpPrinter::content(std::string_view name, const std::array<std::byte, 32>& value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  for (const std::byte each : std::span(value).first<8>()) {
    shown += kDigits[std::to_integer<std::size_t>(each >> 4)];
    shown += kDigits[std::to_integer<std::size_t>(each & std::byte{15})];
  }
  item(name, shown + "...");
}

std::string OpPrinter::print(Op op, const Answer& answer, bool with_hash) {
  const auto code = static_cast<ErrorCode>(answer.code);
  std::string text = to_string(code);
  if (code == ErrorCode::kNoBlocks) text += concat(", needs ", answer.first);
  if (code == ErrorCode::kOk) {
    switch (name_of(op).first) {
      case First::kNothing:
        break;
      case First::kCount:
        text += concat(", ", static_cast<std::int64_t>(answer.first));
        break;
      case First::kSequence:
        text += ", " + to_string(SequenceId(answer.first));
        break;
      case First::kTicket:
        text += ", " + to_string(Ticket(answer.first));
        break;
      case First::kPin:
        text += ", " + to_string(PinId(answer.first));
        break;
      case First::kLoad:
        text += ", " + to_string(LoadId(answer.first));
        break;
      case First::kHold:
        text += ", " + to_string(HoldId(answer.first));
        break;
    }
  }
  if (!with_hash) return text;
  return text + concat(" (first number ", answer.first, ", hash of all ", answer.hash, ")");
}

// ---- bytes ----

bool OpDecoder::fill() {
  if (stopped()) return false;
  if (position_ == size_) {
    cut_ = true;
    return false;
  }
  if (in_pieces_) return fill_piece();
  constexpr std::int64_t kMost = 65536;
  return take(std::min(size_ - position_, kMost));
}

bool OpDecoder::take(std::int64_t bytes) {
  KVFOLIO_CHECK(at_ == filled_ && bytes > 0 && bytes <= size_ - position_);
  filled_ = static_cast<std::size_t>(bytes);
  at_ = 0;
  buffer_.resize(filled_);
  status_ = source_.read_at(position_, buffer_);
  position_ += bytes;
  if (status_.ok()) return true;
  at_ = filled_ = 0;
  return false;
}

bool OpDecoder::fill_piece() {
  KVFOLIO_DCHECK(at_ == filled_ && !stopped());
  const std::int64_t begin = position_;
  const auto all_there = [&](std::int64_t bytes) {
    if (bytes <= size_ - position_) return true;
    cut_ = true;
    end_.bytes_cut = size_ - begin;
    return false;
  };
  if (!all_there(op_piece::kHeaderBytes) || !take(op_piece::kHeaderBytes)) return false;
  const op_piece::Header header =
      op_piece::read(std::span(buffer_).first<op_piece::kHeaderBytes>());
  at_ = filled_ = 0;
  const std::uint32_t check =
      op_piece::check_of(header.bytes, header.hash, static_cast<std::uint64_t>(begin));
  if (header.check != check || header.bytes == 0 || header.bytes > op_piece::kMostBytes) {
    corrupt_piece(begin, "its header is damaged, or it belongs elsewhere");
    return false;
  }
  if (!all_there(header.bytes) || !take(header.bytes)) return false;
  const std::uint32_t hash = op_piece::hash_of(buffer_);
  if (hash == header.hash) return true;
  at_ = filled_ = 0;
  corrupt_piece(begin, concat("its ", header.bytes, " bytes have the checksum ", hash,
                              ", its header says ", header.hash));
  return false;
}

std::uint64_t OpDecoder::word(std::size_t size) {
  KVFOLIO_DCHECK(size > 0 && size <= sizeof(std::uint64_t));
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::uint64_t{byte()} << (8 * i);
  return value;
}

std::uint64_t OpDecoder::number() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint64_t seven = byte();
    if (shift == 63 && seven > 1) break;
    value |= (seven & 0x7f) << shift;
    if (seven < 0x80) return value;
  }
  corrupt("a number has more than 64 bits");
  return 0;
}

std::size_t OpDecoder::count() {
  const std::uint64_t size = number();
  if (size <= static_cast<std::uint64_t>(left())) return static_cast<std::size_t>(size);
  // A log that was cut inside a long list looks alike: the call is not there.
  cut_ = true;
  return 0;
}

void OpDecoder::corrupt_at(std::int64_t place, std::string_view what) {
  if (stopped()) return;
  status_ = {ErrorCode::kCorrupt, concat("operation log, behind call ", end_.num_calls,
                                         ", at byte ", place, ": ", what)};
}

void OpDecoder::corrupt_piece(std::int64_t place, std::string_view what) {
  corrupt_at(place, concat("the piece that begins there is damaged: ", what));
}

void OpDecoder::bytes(std::string_view, std::string_view& value) {
  const std::size_t size = count();
  std::string& text = texts_.emplace_back();
  for (std::size_t i = 0; i < size && !stopped(); ++i) text += static_cast<char>(byte());
  value = text;
}

void OpDecoder::list(std::string_view, std::span<const std::span<const std::int32_t>>& values) {
  const std::size_t size = count();
  if (size > kMostTables) corrupt("a call has more tables than any manager has groups");
  tables_.clear();
  table_spans_.clear();
  for (std::size_t i = 0; i < size && !stopped(); ++i) {
    std::span<const std::int32_t> table;
    read_list(tables_.emplace_back(), table);
    table_spans_.push_back(table);  // moving a vector leaves its elements where they are
  }
  values = table_spans_;
}

// ---- the header ----

Status OpDecoder::read_header(OpLogHeader& header) {
  std::string magic;
  for (std::size_t i = 0; i < kOpLogMagic.size(); ++i) magic += static_cast<char>(byte());
  if (magic != kOpLogMagic) {
    return status_.ok() ? Status(ErrorCode::kCorrupt, "not an operation log") : status_;
  }
  header.format = static_cast<std::uint32_t>(word(4));
  if (header.format < kOpLogFormatBare || header.format > kOpLogFormat) {
    return {ErrorCode::kUnsupported,
            concat("operation log of format ", header.format, ", this library reads formats ",
                   kOpLogFormatBare, " to ", kOpLogFormat)};
  }
  format_ = header.format;
  const bool is_bare = format_ == kOpLogFormatBare;
  if (is_bare) header.options.copies_by_host = true;
  const auto size = static_cast<std::int64_t>(word(4));
  Status damaged(ErrorCode::kCorrupt, "operation log: its header is damaged");
  if (size > kMostHeaderBytes || size + 4 > left()) return damaged;
  // The whole header is in the first buffer.
  KVFOLIO_CHECK(at_ + static_cast<std::size_t>(size) <= filled_);
  const std::size_t hashed_from = is_bare ? at_ : 0;
  const std::uint32_t hash = op_piece::hash_of(
      std::span(buffer_).subspan(hashed_from, at_ + static_cast<std::size_t>(size) - hashed_from));
  const std::int64_t behind = left() - size;
  std::string_view library;
  bytes({}, library);
  header.library = library;
  visit({}, header.has_storage);
  const std::size_t num_groups = count();
  header.spec.groups.clear();
  for (std::size_t g = 0; g < num_groups && !stopped(); ++g) {
    visit({}, header.spec.groups.emplace_back());
  }
  visit({}, header.options);
  if (left() != behind || word(4) != hash || stopped()) return damaged;
  texts_.clear();
  end_.hash_is_ours = format_ == kOpLogFormat && header.library == version();
  if (is_bare) return {};
  // From here on each buffer is one piece.
  in_pieces_ = true;
  position_ = size_ - left();
  at_ = filled_ = 0;
  return {};
}

// ---- calls ----

bool OpDecoder::begin_call(Op& op) {
  if (end_.ended || stopped()) return false;
  KVFOLIO_DCHECK(position_ <= size_);
  texts_.clear();
  count_ = 0;
  const std::uint8_t code = byte();
  if (stopped()) return false;  // between two calls: the program went on, or died
  op = static_cast<Op>(code);
  if (op == Op::kEnd) {
    read_end();
    return false;
  }
  if (code >= kNumOps) {
    corrupt(concat("there is no operation ", int{code}));
    return false;
  }
  const auto low = byte();
  const std::uint64_t number = end_.num_calls + 1;
  const auto missing = static_cast<std::uint8_t>(low - number);
  if (missing == 0 || stopped()) return !stopped();
  if (missing == 1) {
    corrupt(concat("call ", number, " is missing: call ", number + 1, ", ", name_of(op).name,
                   ", stands in its place"));
  } else {
    corrupt(concat("calls ", number, " to ", number + missing - 1u,
                   " are missing, or the number of ", name_of(op).name, " is wrong"));
  }
  return false;
}

void OpDecoder::read_end() {
  const std::uint64_t calls = number();
  const bool has_hash = byte() != 0;
  const std::uint64_t hash = word(8);
  if (stopped()) return;
  if (calls != end_.num_calls) {
    corrupt(concat("it ends after ", end_.num_calls, " calls and says ", calls));
    return;
  }
  if (left() != 0) {
    corrupt(concat(left(), " bytes stand behind its end"));
    return;
  }
  end_.ended = true;
  if (has_hash) end_.state_hash = hash;
}

// ---- OpLogReader ----

class OpLogReader::Impl {
 public:
  explicit Impl(ByteSource& source) : decoder(source) {}
  OpLogHeader header;
  OpDecoder decoder;
};

OpLogReader::OpLogReader(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
OpLogReader::OpLogReader(OpLogReader&&) noexcept = default;
OpLogReader::~OpLogReader() = default;

Result<OpLogReader> OpLogReader::open(ByteSource& source) {
  auto impl = std::make_unique<Impl>(source);
  KVFOLIO_RETURN_IF_ERROR(impl->decoder.read_header(impl->header));
  return OpLogReader(std::move(impl));
}

const OpLogHeader& OpLogReader::header() const noexcept { return impl_->header; }
const OpLogEnd& OpLogReader::end() const noexcept { return impl_->decoder.end(); }

Result<std::optional<LoggedCall>> OpLogReader::next() {
  OpDecoder& decoder = impl_->decoder;
  LoggedCall call;
  const bool is_there =
      decoder.next([&](Op op, const auto&, const auto& arguments, const Answer* answer) {
        call.number = decoder.end().num_calls + (answer == nullptr ? 1 : 0);
        call.name = name_of(op).name;
        call.arguments = OpPrinter::print(arguments);
        if (answer != nullptr) call.answer = OpPrinter::print(op, *answer, false);
      });
  if (is_there) return std::optional<LoggedCall>(std::move(call));
  KVFOLIO_RETURN_IF_ERROR(decoder.status());
  return std::optional<LoggedCall>();
}

}  // namespace kvfolio
