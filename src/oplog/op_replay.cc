// SPDX-License-Identifier: Apache-2.0
//
// The calls of a log again, on a manager made as its header says.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/text.h"
#include "kvfolio/op_replay.h"
#include "oplog/op_reader.h"

namespace kvfolio {

using text::concat;

namespace {

// What a manager with these options can come to take, about: all that it reserves, as if it were
// used. As a double, since hostile numbers overflow.
double most_memory(const CacheSpec& spec, const ManagerOptions& o) {
  double blocks = 0;
  double unit = 1024;  // of the prefix tree: the smallest block size
  for (const GroupSpec& group : spec.groups) {
    blocks += group.num_blocks;
    unit = std::min<double>(unit, group.block_size);
  }
  const auto groups = static_cast<double>(spec.groups.size());
  const double rows = o.max_sequences * (o.order == Order::kUnordered ? 2.0 : 1.0);
  const double steps = o.max_steps_in_flight + 1.0;
  return blocks * 128 + (4 + 32 / unit) * static_cast<double>(o.max_announced_tokens) +
         rows * (1024 + 96 * groups + steps * (96 + 24 * groups)) +
         o.max_pins * (40 + 16 * groups) + 2.0 * o.max_transfers * (80 + 20 * groups) +
         o.max_runs * (96 + 48 * groups) +
         4.0 * (1 + groups) * static_cast<double>(o.max_index_tokens) +
         static_cast<double>(o.max_root_key_bytes) + 64.0 * o.max_media_extents +
         4.0 * (1 + steps) * static_cast<double>(o.max_table_entries);
}

// The arrays of the next plan: tables of all sequences, as wide as that of the longest; or as much
// as the options make of them, which come from the log. What is beyond the limits of options counts
// as the limit: plan() refuses it.
double plan_memory(const KVCacheManager& manager, const PlanOptions& options) {
  std::vector<SequenceId> ids(static_cast<std::size_t>(manager.num_sequences()));
  manager.sequences(ids);
  double in_step = 0;
  double longest = 0;
  double tokens = std::clamp(options.padded_tokens, 0, kMaxSequenceTokens);
  for (const SequenceId id : ids) {
    const Result<SequenceInfo> info = manager.info(id);
    if (!info || !info->in_open_step) continue;
    in_step += 1;
    longest = std::max(longest, static_cast<double>(info->length));
    tokens += info->length - info->accepted_length;  // those of the step, and drafts before them
  }
  const ManagerOptions& limits = manager.options();
  const double rows =
      std::max<double>(in_step, std::clamp(options.padded_sequences, 0, limits.max_sequences)) + 8;
  double stride = 0;
  std::int32_t group_of_stride = 0;
  for (const std::int32_t given : options.table_stride) {
    const Result<std::int32_t> widest = manager.widest(GroupId(group_of_stride++));
    const std::int64_t most =
        std::max<std::int64_t>(limits.max_table_entries, widest ? *widest : 0);
    stride = std::max(stride, std::min<double>(given, static_cast<double>(most)));
  }
  double words = 8 * rows + tokens + 64;
  for (const GroupSpec& group : manager.spec().groups) {
    const double blocks = longest / group.block_size + 2;
    // Entries of tables stand there five times at most: tables, FlashInfer, three of changes.
    words += 5 * rows * std::max(blocks, stride) + 8 * rows + 2 * (tokens + 8) + 64;
  }
  return 4 * words;
}

Status refused(double bytes, const ReplayOptions& options) {
  return {ErrorCode::kResourceExhausted,
          concat("operation log: a replay may need ", static_cast<std::int64_t>(bytes / 1048576.0),
                 " MiB, allowed: max_memory_bytes, ", options.max_memory_bytes / 1048576, " MiB")};
}

class Replayer {
 public:
  // `bytes`: what the manager may come to take without plans.
  Replayer(OpDecoder& decoder, const OpLogHeader& header, const ReplayOptions& options,
           double bytes, Replay& replay)
      : decoder_(decoder),
        header_(header),
        options_(options),
        replay_(replay),
        bytes_(bytes),
        reserved_(replay.manager.metadata().reserved) {}

  void run() {
    while (!stop_ &&
           decoder_.next([this](Op op, auto function, auto& arguments, const Answer* recorded) {
             make(op, function, arguments, recorded);
           })) {
    }
    replay_.log = decoder_.end();
    if (replay_.broken.ok()) replay_.broken = decoder_.status();
  }

 private:
  template <typename Function, typename... Arguments>
  void make(Op op, Function function, std::tuple<Arguments...>& arguments, const Answer* recorded) {
    if constexpr (std::is_same_v<std::tuple<Arguments...>, std::tuple<PlanOptions>>) {
      if (stops_plan(std::get<0>(arguments))) return;
    }
    // What the storage could not do then, or failed to do, is not asked of one that is imagined.
    const auto is = [&](ErrorCode code) {
      return recorded->code == static_cast<std::uint32_t>(code);
    };
    if (op == Op::kRunCopies && header_.has_storage && recorded != nullptr &&
        (is(ErrorCode::kUnsupported) || is(ErrorCode::kUnavailable))) {
      return;
    }
    AnswerNote note;
    note.note(
        std::apply([&](auto&... each) { return function(replay_.manager, each...); }, arguments));
    std::apply([&](const auto&... each) { (note.out(each), ...); }, arguments);
    const Answer answer = note.answer();
    const std::string name(name_of(op).name);
    if (recorded == nullptr) {
      replay_.unanswered =
          LoggedCall{decoder_.end().num_calls + 1, name, OpPrinter::print(arguments),
                     OpPrinter::print(op, answer, false)};
      return;
    }
    if (answer == *recorded) return;
    KVFOLIO_DCHECK(!replay_.difference && replay_.broken.ok());
    stop_ = true;
    // What looks alike in words differs in the rest.
    const bool alike =
        OpPrinter::print(op, answer, false) == OpPrinter::print(op, *recorded, false);
    replay_.difference = ReplayDifference{
        decoder_.end().num_calls, name, OpPrinter::print(arguments),
        OpPrinter::print(op, *recorded, alike), OpPrinter::print(op, answer, alike)};
  }
  // All steps keep the buffers of their largest plans, so what counts is the sum: of the manager as
  // it was made, what its buffers have grown by, and what this plan may add.
  bool stops_plan(PlanOptions& plan) {
    const double of_plan = plan_memory(replay_.manager, plan);
    const double lent = std::min(static_cast<double>(plan.memory.size()), of_plan);
    // A buffer grows by half of what is needed; the old one is there until then.
    const double more = plan.memory.empty() ? 1.5 * of_plan : lent;
    const double grown = static_cast<double>(replay_.manager.metadata().reserved - reserved_) +
                         8.0 * static_cast<double>(memory_.capacity());
    const double total = bytes_ + grown + more;
    if (total <= static_cast<double>(options_.max_memory_bytes)) {
      give_memory(plan.memory, static_cast<std::size_t>(lent));
      return false;
    }
    replay_.broken = refused(total, options_);
    return stop_ = true;
  }
  // As the caller gave it, but no more than the plan can need.
  void give_memory(std::span<std::byte>& memory, std::size_t size) {
    if (memory.empty()) return;
    const std::size_t behind = reinterpret_cast<std::uintptr_t>(memory.data()) % 8;
    const std::size_t words = size / 8 + 2;
    if (memory_.size() < words) {
      // The old one goes first, and the new one has no more than is needed: resize() would take
      // twice the old one while that is still there. What it said is not read any more.
      memory_ = std::vector<std::uint64_t>();
      memory_ = std::vector<std::uint64_t>(words);
    }
    memory = {reinterpret_cast<std::byte*>(memory_.data()) + behind, size};
  }

  OpDecoder& decoder_;
  const OpLogHeader& header_;
  const ReplayOptions& options_;
  Replay& replay_;
  const double bytes_;
  const std::int64_t reserved_;        // by the manager as it was made
  std::vector<std::uint64_t> memory_;  // of the plan at hand
  bool stop_ = false;
};

}  // namespace

Result<Replay> replay_log(ByteSource& source, const ReplayOptions& options) {
  OpDecoder decoder(source);
  OpLogHeader header;
  KVFOLIO_RETURN_IF_ERROR(decoder.read_header(header));
  const Result<ManagerOptions> derived = detail::options_for_replay(header.spec, header.options);
  if (!derived) return derived.error();
  const double bytes = most_memory(header.spec, *derived);
  if (bytes > static_cast<double>(options.max_memory_bytes)) return refused(bytes, options);
  Result<KVCacheManager> manager = KVCacheManager::create(header.spec, header.options);
  if (!manager) return std::move(manager).error();
  if (header.has_storage) detail::imagine_storage(*manager);
  detail::answer_as_in(*manager, header.format);
  std::int64_t num_blocks = 0;
  for (const GroupSpec& group : header.spec.groups) num_blocks += group.num_blocks;
  decoder.set_most_blocks(num_blocks);
  Replay replay{.manager = std::move(*manager)};
  Replayer(decoder, header, options, bytes, replay).run();
  return replay;
}

}  // namespace kvfolio
