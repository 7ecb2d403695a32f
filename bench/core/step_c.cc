// SPDX-License-Identifier: Apache-2.0

// A decode step through the C interface, beside the same one in C++.

#include <algorithm>
#include <memory>

#include "cache.h"
#include "capi/capi.h"
#include "family.h"
#include "kvfolio/kvfolio.h"

namespace kvfolio::bench {
namespace {

struct Shape {
  std::int32_t sequences;
  std::int32_t tokens;
  std::int32_t steps;  // of all rounds

  [[nodiscard]] std::int32_t num_blocks() const {
    return sequences * ((tokens + steps) / kBlockSize + 2);
  }
  // The length of sequence i: lengths differ so that a sixteenth of them fills a block in each
  // step.
  [[nodiscard]] std::vector<std::int32_t> prompt(std::int32_t i) const {
    std::vector<std::int32_t> all(static_cast<std::size_t>(tokens));
    for (std::int32_t at = 0; at + kBlockSize <= tokens; at += kBlockSize) {
      write_block(i, at / kBlockSize, all.data() + at);
    }
    all.resize(static_cast<std::size_t>(tokens - i % kBlockSize));
    return all;
  }
};

class InC {
 public:
  explicit InC(const Shape& shape) : tokens_(static_cast<std::size_t>(shape.sequences), 7) {
    kvfolio_group_spec group{};
    group.struct_size = sizeof(group);
    group.head_dim_k = 1;
    group.block_size = kBlockSize;
    group.num_blocks = shape.num_blocks();
    kvfolio_manager_options options{};
    options.struct_size = sizeof(options);
    options.max_sequences = shape.sequences;
    options.max_pins = -1;
    options.max_sequence_tokens = shape.num_blocks() * kBlockSize;
    kvfolio_manager* manager = nullptr;
    must(kvfolio_manager_create(&group, 1, &options, &manager, &error_));
    manager_.reset(manager);
    shuffle_free_blocks(shape);
    for (std::int32_t i = 0; i < shape.sequences; ++i) {
      const std::vector<std::int32_t> prompt = shape.prompt(i);
      sequences_.push_back(open(nullptr));
      const kvfolio_ticket ticket = begin();
      must(kvfolio_append(get(), sequences_.back(), prompt.data(),
                          static_cast<std::int64_t>(prompt.size()), 0, &error_));
      must(kvfolio_finish(get(), ticket, &error_));
    }
  }
  // The manager behind the handle.
  [[nodiscard]] KVCacheManager& manager() const { return get()->manager; }
  [[nodiscard]] const std::vector<kvfolio_sequence>& sequences() const { return sequences_; }

  // Returns the sum of the step's slots.
  std::int64_t step() {
    const kvfolio_ticket ticket = begin();
    const auto count = static_cast<std::int64_t>(sequences_.size());
    must(kvfolio_append_each(get(), sequences_.data(), tokens_.data(), count, nullptr, &error_));
    kvfolio_plan_options options{};
    options.struct_size = sizeof(options);
    options.no_block_tables = 1;
    options.changed_entries = 1;
    kvfolio_step_plan plan{};
    plan.struct_size = sizeof(plan);
    kvfolio_group_plan group{};
    group.struct_size = sizeof(group);
    must(kvfolio_plan(get(), &options, &plan, &group, 1, &error_));
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < group.slot_mapping.size; ++i) sum += group.slot_mapping.data[i];
    must(kvfolio_finish(get(), ticket, &error_));
    return sum;
  }

 private:
  struct Destroy {
    void operator()(kvfolio_manager* manager) const { kvfolio_manager_destroy(manager); }
  };

  void must(std::int32_t code) const { require(code == KVFOLIO_OK, error_.message); }
  [[nodiscard]] kvfolio_manager* get() const { return manager_.get(); }
  kvfolio_ticket begin() {
    kvfolio_ticket ticket = 0;
    must(kvfolio_begin_step(get(), 0, &ticket, &error_));
    return ticket;
  }
  kvfolio_sequence open(const kvfolio_open_options* options) {
    kvfolio_sequence sequence = 0;
    must(
        kvfolio_open(get(), nullptr, nullptr, 0, nullptr, 0, options, &sequence, nullptr, &error_));
    return sequence;
  }
  // As Cache::shuffle_free_blocks().
  void shuffle_free_blocks(const Shape& shape) {
    kvfolio_open_options unseen{};
    unseen.struct_size = sizeof(unseen);
    unseen.no_prefix_cache = 1;
    const std::int32_t at_once = std::min(shape.sequences, 1024);
    std::vector<kvfolio_sequence> sequences;
    sequences.reserve(static_cast<std::size_t>(at_once));
    for (std::int32_t i = 0; i < at_once; ++i) sequences.push_back(open(&unseen));
    for (std::int32_t i = 0; i < shape.num_blocks() / at_once; ++i) {
      const kvfolio_ticket ticket = begin();
      for (const kvfolio_sequence sequence : sequences) {
        must(kvfolio_append_unnamed(get(), sequence, kBlockSize, 0, &error_));
      }
      must(kvfolio_finish(get(), ticket, &error_));
    }
    for (const std::int32_t i : shuffled(at_once, 11)) {
      must(kvfolio_close(get(), sequences[static_cast<std::size_t>(i)], &error_));
    }
  }

  kvfolio_error error_ = KVFOLIO_ERROR_INIT;
  std::unique_ptr<kvfolio_manager, Destroy> manager_;
  std::vector<kvfolio_sequence> sequences_;
  std::vector<std::int32_t> tokens_;
};

// The same steps of the same manager in C++: two managers would lie at different places of the
// caches, which costs more than the translation.
class InCpp {
 public:
  explicit InCpp(const InC& in_c) : cache_(in_c.manager()), tokens_(in_c.sequences().size(), 7) {
    for (const kvfolio_sequence id : in_c.sequences()) sequences_.emplace_back(id);
  }
  std::int64_t step() {
    const Ticket ticket = take(cache_.begin_step(), "begin_step");
    std::int32_t done = 0;
    require(cache_.append_each(sequences_, tokens_, &done), "append_each");
    const StepPlan& plan =
        *take(cache_.plan({.block_tables = false, .changed_entries = true}), "plan");
    std::int64_t sum = 0;
    for (const std::int32_t slot : plan.groups[0].slot_mapping) sum += slot;
    require(cache_.finish(ticket), "finish");
    return sum;
  }

 private:
  KVCacheManager& cache_;
  std::vector<SequenceId> sequences_;
  std::vector<std::int32_t> tokens_;
};

// One step, whose slots are compared with the tables of the sequences.
template <typename Engine>
void check_step(Engine& engine, const InC& in_c) {
  const std::int64_t sum = engine.step();
  std::int64_t expected = 0;
  for (const kvfolio_sequence id : in_c.sequences()) {
    const SequenceInfo info = take(in_c.manager().info(SequenceId(id)), "info");
    const auto table = take(in_c.manager().block_table(SequenceId(id), GroupId(0)), "block_table");
    const std::int32_t last = info.length - 1;
    expected += table[static_cast<std::size_t>(last / kBlockSize)] * kBlockSize + last % kBlockSize;
  }
  require(sum == expected, "the slots of the last tokens");
}

}  // namespace

void measure_step_through_c(Session& session) {
  if (!session.wants("step.decode.c")) return;
  const std::int32_t steps = session.size(64, 1);
  const Shape shape{session.size(1024, 32), session.size(2048, 64),
                    2 * steps * (session.rounds() + 2) + 18};
  InC in_c(shape);
  InCpp in_cpp(in_c);
  std::int64_t sum = 0;
  const auto round = [&](auto& engine) {
    return nanoseconds_of([&] {
             for (std::int32_t i = 0; i < steps; ++i) sum += engine.step();
           }) /
           (static_cast<double>(shape.sequences) * steps);
  };
  check_step(in_c, in_c);
  check_step(in_cpp, in_c);
  session.measure(
      {.name = "step.decode.c",
       .facts = {{"sequences", std::int64_t{shape.sequences}},
                 {"tokens", std::int64_t{shape.tokens}}},
       .promise = Promise{0.95, 1},
       .promise_is_ratio = true,
       .note = "per sequence, as step.decode, through the C interface; ceiling: the "
               "same steps of the same manager in C++"},
      [&] { return round(in_c); }, [&] { return round(in_cpp); });
  keep(static_cast<std::uint64_t>(sum));
  check_step(in_c, in_c);
}

}  // namespace kvfolio::bench
