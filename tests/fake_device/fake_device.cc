// SPDX-License-Identifier: Apache-2.0
#include "fake_device/fake_device.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace kvfolio::fake_device {
namespace {

// Every int32 array of a plan, in a fixed order: all arrays but sequences and shared_prefixes.
template <typename Plan, typename Visit>
void for_each_array(Plan& plan, std::span<GroupPlan> groups, const Visit& visit) {
  visit("rows", plan.rows);
  visit("query_start", plan.query_start);
  visit("kv_lens", plan.kv_lens);
  visit("trim_sinks", plan.trim_sinks);
  visit("trim_first_kept", plan.trim_first_kept);
  for (GroupPlan& group : groups) {
    visit("slot_mapping", group.slot_mapping);
    visit("block_table", group.block_table);
    visit("kv_indptr", group.kv_indptr);
    visit("kv_indices", group.kv_indices);
    visit("kv_last_page_len", group.kv_last_page_len);
    visit("copy_src", group.copy_src);
    visit("copy_dst", group.copy_dst);
    visit("changed_rows", group.changed_rows);
    visit("changed_columns", group.changed_columns);
    visit("changed_blocks", group.changed_blocks);
  }
}

// A plan whose arrays are its own.
class PlanCopy {
 public:
  void assign(const StepPlan& from) {
    plan_ = from;
    groups_.assign(from.groups.begin(), from.groups.end());
    plan_.groups = groups_;
    sequences_.assign(from.sequences.begin(), from.sequences.end());
    plan_.sequences = sequences_;
    shared_.clear();
    for (GroupPlan& group : groups_) {
      shared_.emplace_back(group.shared_prefixes.begin(), group.shared_prefixes.end());
      group.shared_prefixes = shared_.back();
    }
    std::size_t size = 0;
    for_each_array(plan_, groups_, [&](const char*, auto& array) { size += array.size(); });
    words_.clear();
    words_.reserve(size);
    for_each_array(plan_, groups_, [&](const char*, std::span<const std::int32_t>& array) {
      const std::size_t begin = words_.size();
      words_.insert(words_.end(), array.begin(), array.end());
      array = {words_.data() + begin, array.size()};
    });
  }
  [[nodiscard]] const StepPlan& plan() const { return plan_; }

  // Null, or the name of an array of `now` that does not say the same. `now` has the same shape.
  [[nodiscard]] const char* difference(const StepPlan& now) {
    std::vector<GroupPlan> groups(now.groups.begin(), now.groups.end());
    std::vector<std::span<const std::int32_t>> arrays;
    for_each_array(now, groups, [&](const char*, auto& array) { arrays.push_back(array); });
    const char* name = nullptr;
    std::size_t i = 0;
    for_each_array(plan_, groups_, [&](const char* each, auto& array) {
      if (i < arrays.size() && name == nullptr &&
          !std::equal(array.begin(), array.end(), arrays[i].begin(), arrays[i].end())) {
        name = each;
      }
      ++i;
    });
    if (i != arrays.size()) return "groups";
    if (!std::ranges::equal(plan_.sequences, now.sequences)) return "sequences";
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (!std::ranges::equal(groups_[g].shared_prefixes, groups[g].shared_prefixes)) {
        return "shared_prefixes";
      }
    }
    return name;
  }

 private:
  StepPlan plan_;
  std::vector<GroupPlan> groups_;
  std::vector<SequenceId> sequences_;
  std::vector<std::vector<SharedPrefix>> shared_;  // by group
  std::vector<std::int32_t> words_;
};

}  // namespace

struct FakeDevice::Step {
  Ticket ticket;
  Upload how = Upload::kAtSubmit;
  Phase told = Phase::kSubmitted;  // of the caller
  std::vector<Row> rows;
  StepPlan in_place;   // its arrays are the manager's
  PlanCopy submitted;  // as they were then
  PlanCopy uploaded;   // as the device found them in its first phase

  [[nodiscard]] const StepPlan& plan() const {
    switch (how) {
      case Upload::kAtSubmit:
        return submitted.plan();
      case Upload::kLate:
        return uploaded.plan();
      case Upload::kInPlace:
        break;
    }
    return in_place;
  }
};

FakeDevice::FakeDevice(std::span<const GroupSpec> groups, Order order) : order_(order) {
  for (const GroupSpec& spec : groups) {
    const auto slots =
        static_cast<std::size_t>(spec.num_blocks) * static_cast<std::size_t>(spec.block_size);
    groups_.push_back({spec, std::vector<Digest>(slots, kPoison)});
  }
  thread_ = std::thread([this] { serve(); });
}

FakeDevice::~FakeDevice() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_.notify_one();
  thread_.join();
}

// ---- the caller's side ----

FakeDevice::Step& FakeDevice::find(Ticket ticket) const {
  for (const std::unique_ptr<Step>& step : steps_) {
    if (step->ticket == ticket) return *step;
  }
  throw std::logic_error("the device does not have step t" + std::to_string(ticket.value()));
}

bool FakeDevice::has(Ticket ticket) const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [&](const std::unique_ptr<Step>& step) { return step->ticket == ticket; });
}

void FakeDevice::submit(const StepPlan& plan, std::vector<Row> rows, Upload upload) {
  if (!steps_.empty() && plan.ticket <= steps_.back()->ticket) {
    throw std::logic_error("tickets ascend");
  }
  auto step = std::make_unique<Step>();
  step->ticket = plan.ticket;
  step->how = upload;
  step->rows = std::move(rows);
  step->in_place = plan;
  step->submitted.assign(plan);
  steps_.push_back(std::move(step));
}

void FakeDevice::advance(Ticket ticket, Phase phase) {
  Step& step = find(ticket);
  if (order_ == Order::kInOrder && phase > Phase::kUploaded) {
    for (const std::unique_ptr<Step>& earlier : steps_) {
      if (earlier->ticket < ticket && earlier->told != Phase::kDone) {
        throw std::logic_error("one stream: step t" + std::to_string(earlier->ticket.value()) +
                               " is not done");
      }
    }
  }
  while (step.told < phase) {
    step.told = static_cast<Phase>(static_cast<std::int32_t>(step.told) + 1);
    told_.push_back({&step, step.told, 0, 0, 0});
  }
}

void FakeDevice::skip_copies(Ticket ticket) {
  Step& step = find(ticket);
  if (step.told != Phase::kUploaded) throw std::logic_error("copies run behind the upload");
  step.told = Phase::kCopied;
}

Phase FakeDevice::phase(Ticket ticket) const { return find(ticket).told; }

void FakeDevice::forget(Ticket ticket) {
  wait();
  std::erase_if(steps_, [&](const std::unique_ptr<Step>& step) { return step->ticket == ticket; });
}

void FakeDevice::poison(std::int32_t group, std::int32_t block) {
  const std::int32_t size = groups_[static_cast<std::size_t>(group)].spec.block_size;
  told_.push_back({nullptr, Phase::kSubmitted, group, block * size, (block + 1) * size});
}

void FakeDevice::poison_slot(std::int32_t group, std::int32_t slot) {
  told_.push_back({nullptr, Phase::kSubmitted, group, slot, slot + 1});
}

void FakeDevice::start() {
  if (told_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    queue_.insert(queue_.end(), told_.begin(), told_.end());
  }
  told_.clear();
  work_.notify_one();
}

void FakeDevice::wait() {
  start();
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

Digest FakeDevice::at(std::int32_t group, std::int32_t slot) const {
  return groups_[static_cast<std::size_t>(group)].memory[static_cast<std::size_t>(slot)];
}

// ---- the thread ----

void FakeDevice::serve() {
  std::vector<Command> commands;
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (closing_) return;
    commands.swap(queue_);
    busy_ = true;
    lock.unlock();
    for (const Command& command : commands) execute(command);
    commands.clear();
    lock.lock();
    busy_ = false;
    if (queue_.empty()) idle_.notify_one();
  }
}

void FakeDevice::execute(const Command& command) {
  if (!violation_.empty()) return;
  if (command.step == nullptr) {
    std::vector<Digest>& memory = groups_[static_cast<std::size_t>(command.group)].memory;
    std::fill(memory.begin() + command.begin, memory.begin() + command.end, kPoison);
    return;
  }
  Step& step = *command.step;
  switch (command.phase) {
    case Phase::kSubmitted:
      break;
    case Phase::kUploaded:
      upload(step);
      break;
    case Phase::kCopied:
      copy(step);
      break;
    case Phase::kWritten:
      read(step, false);
      write(step);
      break;
    case Phase::kDone:
      read(step, true);
      check_plan_unchanged(step);
      break;
  }
}

void FakeDevice::fail(const Step& step, const std::string& what) {
  if (violation_.empty()) violation_ = "step t" + std::to_string(step.ticket.value()) + " " + what;
}

std::string FakeDevice::row_name(const Step& step, std::size_t row, std::size_t group) {
  return "row " + std::to_string(row) + " (s" + std::to_string(step.rows[row].name) + ") group " +
         std::to_string(group);
}

bool FakeDevice::check_id(const Step& step, std::size_t group, const char* array, std::int64_t id,
                          std::int64_t end) {
  if (id >= 0 && id < end) return true;
  fail(step, std::string("is told ") + array + " " + std::to_string(id) + " of group " +
                 std::to_string(group) + ", which has " + std::to_string(end));
  return false;
}

void FakeDevice::check_plan_unchanged(Step& step) {
  if (const char* array = step.submitted.difference(step.in_place); array != nullptr) {
    fail(step, std::string("is not complete, and its plan's ") + array + " changed");
  }
}

void FakeDevice::upload(Step& step) {
  check_plan_unchanged(step);
  if (step.how == Upload::kLate) step.uploaded.assign(step.in_place);
  const StepPlan& plan = step.plan();
  if (plan.query_start.size() != step.rows.size() + 1 || plan.kv_lens.size() != step.rows.size() ||
      plan.groups.size() != groups_.size()) {
    fail(step, "has a plan for other rows or groups than its sequences and memory");
  }
}

void FakeDevice::copy(Step& step) {
  const StepPlan& plan = step.plan();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupPlan& from = plan.groups[g];
    const auto size = static_cast<std::size_t>(groups_[g].spec.block_size);
    std::vector<Digest>& memory = groups_[g].memory;
    for (std::size_t i = 0; i < from.copy_src.size(); ++i) {
      const std::int32_t blocks = groups_[g].spec.num_blocks;
      if (!check_id(step, g, "copy source", from.copy_src[i], blocks)) return;
      if (!check_id(step, g, "copy destination", from.copy_dst[i], blocks)) return;
      std::copy_n(memory.begin() + static_cast<std::ptrdiff_t>(
                                       static_cast<std::size_t>(from.copy_src[i]) * size),
                  size,
                  memory.begin() + static_cast<std::ptrdiff_t>(
                                       static_cast<std::size_t>(from.copy_dst[i]) * size));
    }
  }
}

// Compares the token at a position of a row with what its sequence said there.
void FakeDevice::check_token(const Step& step, std::size_t row, std::size_t group,
                             std::int32_t position, const char* why) {
  const GroupPlan& plan = step.plan().groups[group];
  const Group& at = groups_[group];
  const std::int32_t logical = position / at.spec.block_size;
  if (logical >= plan.block_table_stride) {
    fail(step, std::string(why) + " position " + std::to_string(position) + " of " +
                   row_name(step, row, group) + ", which has no block for it");
    return;
  }
  const std::int32_t block =
      plan.block_table[row * static_cast<std::size_t>(plan.block_table_stride) +
                       static_cast<std::size_t>(logical)];
  ++num_reads_;
  if (block < 0 || block >= at.spec.num_blocks) {
    fail(step, std::string(why) + " position " + std::to_string(position) + " of " +
                   row_name(step, row, group) + " in block " + std::to_string(block) +
                   ", which is none");
    return;
  }
  const std::int32_t offset = position % at.spec.block_size;
  const std::int32_t slot = block * at.spec.block_size + offset;
  const Digest found = at.memory[static_cast<std::size_t>(slot)];
  if (found == step.rows[row].digests[static_cast<std::size_t>(position)]) return;
  fail(step, std::string(why) + " position " + std::to_string(position) + " of " +
                 row_name(step, row, group) + " at block " + std::to_string(block) + " offset " +
                 std::to_string(offset) +
                 (found == kPoison ? ", which was freed or never written"
                                   : ", which holds something else than the sequence said"));
}

// A query q reads what attends() says, but what a trim dropped. The queries [begin, end) of a row
// read one state of the memory, so each position is looked at once, for the first query that may
// read it: of the earlier ones that is the one that reads furthest back.
void FakeDevice::read(Step& step, bool with_new_tokens) {
  const StepPlan& plan = step.plan();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupSpec& spec = groups_[g].spec;
    for (std::size_t row = 0; row < step.rows.size(); ++row) {
      const std::int32_t end = plan.kv_lens[row];
      const std::int32_t begin = end - (plan.query_start[row + 1] - plan.query_start[row]);
      if (begin < 0 || static_cast<std::size_t>(end) != step.rows[row].digests.size()) {
        fail(step, "computes up to position " + std::to_string(end) + " of " +
                       row_name(step, row, g) + ", whose sequence has " +
                       std::to_string(step.rows[row].digests.size()));
        return;
      }
      for (std::int32_t p = 0; p < (with_new_tokens ? end : begin); ++p) {
        if (p >= plan.trim_sinks[row] && p < plan.trim_first_kept[row]) continue;
        if (!attends(spec, std::max(p, begin), p)) continue;
        check_token(step, row, g, p, "reads");
        if (!violation_.empty()) return;
      }
    }
  }
}

void FakeDevice::write(Step& step) {
  const StepPlan& plan = step.plan();
  for (std::size_t g = 0; g < groups_.size() && violation_.empty(); ++g) {
    const std::span<const std::int32_t> slots = plan.groups[g].slot_mapping;
    std::size_t token = 0;
    for (std::size_t row = 0; row < step.rows.size(); ++row) {
      const std::int32_t end = plan.kv_lens[row];
      const std::int32_t count = plan.query_start[row + 1] - plan.query_start[row];
      for (std::int32_t p = end - count; p < end; ++p, ++token) {
        if (token >= slots.size()) {
          fail(step, "has " + std::to_string(slots.size()) + " slots in group " +
                         std::to_string(g) + ", fewer than tokens");
          return;
        }
        if (slots[token] == -1) {
          check_token(step, row, g, p, "need not write (slot -1)");
          continue;
        }
        if (!check_id(step, g, "slot", slots[token],
                      static_cast<std::int64_t>(groups_[g].memory.size()))) {
          return;
        }
        groups_[g].memory[static_cast<std::size_t>(slots[token])] =
            step.rows[row].digests[static_cast<std::size_t>(p)];
      }
    }
  }
}

}  // namespace kvfolio::fake_device
