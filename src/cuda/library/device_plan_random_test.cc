// SPDX-License-Identifier: Apache-2.0

// Random steps of a manager whose plans go to a DevicePlan, or not: sequences come, fork, are cut
// back and end; steps are dropped, undone, planned twice, and fail, in order and without. A reader
// behind each upload compares all arrays with what the manager said (plan_rig.h), and what is
// started on the device has the same arguments all the time.
//
// KVFOLIO_SEED: of the first run (default 1). KVFOLIO_OPS: steps of all runs (default 12,000).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "cuda/library/plan_rig.h"

namespace kvfolio::cuda {
namespace {

std::int64_t number_of(const char* name, std::int64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoll(value);
}

struct Totals {
  std::int64_t steps = 0, uploads = 0, left_out = 0, whole = 0, changed = 0, refused = 0,
               dropped = 0, failed = 0, planned_twice = 0, replayed = 0, verified = 0, waited = 0,
               late_fronts = 0;
};

class RandomRun {
 public:
  RandomRun(unsigned seed, Totals& totals)
      : random_(seed), totals_(totals), rig_(options(seed)), ordered_(seed % 2 == 0) {
    rig_.fake.moves_percent = seed % 3 == 0 ? 25 : 4;
  }

  void run(int steps) {
    for (int i = 0; i < steps && rig_.wrong.empty() && !testing::Test::HasFailure(); ++i) step();
    EXPECT_EQ(rig_.finish(), "");
  }

 private:
  struct InFlight {
    Ticket ticket;
    bool done = false;
  };

  bool chance(int percent) { return between(1, 100) <= percent; }
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }

  static RigOptions options(unsigned seed) {
    RigOptions options;
    options.seed = seed;
    const std::int32_t window = seed % 4 < 3 ? 16 : 5;  // a wide one has the sinks of trims in it
    options.groups = {full_group(4, 60), window_group(2, 100, window, seed % 3 == 0 ? 2 : 0)};
    options.manager = {.max_sequences = 6, .max_steps_in_flight = 4};
    options.manager.order = seed % 2 == 0 ? Order::kInOrder : Order::kUnordered;
    options.manager.null_block = seed % 5 == 0;
    options.columns = 40;
    options.max_tokens = 40;
    options.plan = {.pad = seed % 5 == 0 || seed % 7 == 0 ? 0 : -1,
                    .positions = seed % 3 == 1,
                    .int64_slots = seed % 4 == 1,
                    .batch_tables = seed % 4 != 3,
                    .flashinfer = seed % 3 != 2};
    return options;
  }

  std::vector<std::int32_t> words(int count) {  // of few texts, so that prompts are found
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 100 * between(1, 3));
    return tokens;
  }
  SequenceId any() {
    return open_[static_cast<std::size_t>(between(0, static_cast<int>(open_.size()) - 1))];
  }
  SequenceId longest() const {
    return *std::max_element(open_.begin(), open_.end(), [&](SequenceId a, SequenceId b) {
      return must(rig_.manager.info(a)).length < must(rig_.manager.info(b)).length;
    });
  }
  void leave(SequenceId sequence) { std::erase(open_, sequence); }

  // What may happen between two appends, or two steps; many of these calls are refused.
  void disturb() {
    const int what = between(1, 100);
    if (what <= 35 || open_.empty()) {
      if (auto opened = rig_.manager.open(words(between(0, 20)))) {
        open_.push_back(opened->sequence);
        prompts_.push_back(*opened);
      }
    } else if (what <= 45) {
      if (auto fork = rig_.manager.fork(any())) open_.push_back(*fork);
    } else if (what <= 60) {
      const SequenceId s = any();
      if (rig_.manager.close(s).ok()) leave(s);
    } else if (what <= 70) {
      const SequenceId s = any();
      if (rig_.manager.preempt(s).ok()) leave(s);
    } else if (what <= 80) {
      const SequenceId s = any();
      const std::int32_t length = must(rig_.manager.info(s)).length;
      static_cast<void>(rig_.manager.truncate(s, between(0, length)));
    } else if (what <= 83) {
      static_cast<void>(rig_.manager.clear(any()));
    } else if (what <= 95) {
      trim(chance(30) ? any() : longest());
    } else {
      static_cast<void>(rig_.manager.evict(GroupId(between(0, 1)), between(1, 8)));
    }
  }
  [[nodiscard]] bool has_pages() const { return rig_.plan->group(GroupId(0)).kv_indptr != nullptr; }

  void trim(SequenceId s) {
    if (!has_pages()) {  // a trim inside of a block has no FlashInfer arrays
      static_cast<void>(rig_.manager.trim(s, {.num_sinks = between(0, 3), .window = 4}));
      return;
    }
    const std::int32_t length = must(rig_.manager.info(s)).length;
    const int first_kept = 4 * std::max(0, length / 4 - between(0, 2));
    const int gap = 4 * between(1, chance(70) ? 2 : 8);
    static_cast<void>(rig_.manager.trim(
        s, {.num_sinks = std::max(0, first_kept - gap), .window = length - first_kept}));
  }
  // The pages in front of some gap are not the first columns of a table.
  [[nodiscard]] bool has_a_late_front(const StepPlan& step) const {
    return std::any_of(step.sequences.begin(), step.sequences.end(), [&](SequenceId s) {
      const auto table = must(rig_.manager.block_table(s, GroupId(1)));
      const auto is_dropped = [](std::int32_t block) { return block < 0; };
      const auto run = std::find_if(table.rbegin(), table.rend(), is_dropped).base();
      const auto front = (run - table.begin()) - std::count_if(table.begin(), run, is_dropped);
      return std::any_of(table.begin(), table.begin() + front, is_dropped);
    });
  }

  void append_some() {
    int room = 36;
    for (const SequenceId s : open_) {
      const SequenceInfo info = must(rig_.manager.info(s));
      if (info.in_open_step) room -= 0;
      if (!chance(70) || info.length > 50) continue;
      const int count = chance(75) ? 1 : between(1, 6);
      if (used_ + count > room) continue;
      std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
      for (std::int32_t& token : tokens) token = between(0, 999);
      if (rig_.manager.append(s, tokens).ok()) used_ += count;
    }
  }

  // Plans with what the device needs, and uploads.
  void plan_and_upload(bool uploads) {
    kvfolio::PlanOptions with{.block_tables = chance(40), .changed_entries = chance(90)};
    if (!with.changed_entries) with.block_tables = true;
    const StepPlan* step = &rig_.planned(with);
    if (!uploads) {
      ++totals_.left_out;
      return;
    }
    if (rig_.plan->needs_block_tables(*step)) {
      EXPECT_EQ(rig_.upload(*step).code(), ErrorCode::kFailedPrecondition);
      ++totals_.refused;
      with.block_tables = true;
      step = &rig_.planned(with);
    }
    Status sent = rig_.upload(*step);
    if (sent.code() == ErrorCode::kResourceExhausted) {
      ++totals_.waited;
      must(rig_.plan->wait());
      sent = rig_.upload(*step);
    }
    ASSERT_EQ(sent.message(), "ok");
    compare_launches();
    ++totals_.uploads;
    totals_.late_fronts += has_pages() && has_a_late_front(*step) ? 1 : 0;
    totals_.whole += rig_.plan->last_upload().whole_rows;
    totals_.changed += rig_.plan->last_upload().changed_entries;
    if (chance(10)) {
      must(rig_.plan->apply(rig_.stream.handle()));
      rig_.read(*step);
      ++totals_.replayed;
    }
    if (with.block_tables && chance(25)) {
      ++totals_.verified;
      ASSERT_EQ(rig_.plan->verify(*step, rig_.stream.handle()).message(), "ok");
    }
  }

  // Addresses and grids are those of the first step.
  void compare_launches() {
    std::vector<FakeDriver::Launch> now;
    for (FakeDriver::Launch& launch : rig_.fake.launches) {
      if (launch.kernel != "reader") now.push_back(std::move(launch));
    }
    rig_.fake.launches.clear();
    if (launches_.empty()) launches_.assign(now.begin(), now.begin() + (has_second() ? 2 : 1));
    ASSERT_EQ(now.size() % launches_.size(), 0u);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const FakeDriver::Launch& first = launches_[i % launches_.size()];
      ASSERT_EQ(now[i].kernel, first.kernel);
      ASSERT_EQ(now[i].args, first.args);
      ASSERT_TRUE(now[i].x == first.x && now[i].y == first.y && now[i].z == first.z);
    }
  }
  [[nodiscard]] bool has_second() const {
    return has_pages() || rig_.plan->group(GroupId(0)).batch_table != nullptr;
  }

  void step() {
    ++totals_.steps;
    for (int i = between(0, 2); i > 0; --i) disturb();
    if (has_pages() && !open_.empty() && chance(10)) trim(longest());
    while (in_flight_.size() >= 3) complete_one();
    const Ticket ticket = must(rig_.manager.begin_step());
    used_ = 0;
    append_some();
    const bool uploads = chance(93);
    if (chance(25)) {
      plan_and_upload(uploads && chance(70));
      if (chance(50)) {
        for (const SequenceId s : std::vector<SequenceId>(open_)) {
          if (chance(30)) static_cast<void>(rig_.manager.undo(s));
        }
      }
      if (chance(50)) disturb();
      used_ = 0;
      for (const SequenceId s : open_) {
        if (must(rig_.manager.info(s)).in_open_step) used_ += 6;
      }
      append_some();
      ++totals_.planned_twice;
    }
    plan_and_upload(uploads);
    if (testing::Test::HasFailure()) return;
    if (chance(12)) {
      must(rig_.manager.drop(ticket));
      ++totals_.dropped;
      return;
    }
    must(rig_.manager.commit(ticket));
    in_flight_.push_back(ticket);
    if (chance(40)) complete_one();
    if (chance(3)) fail_one();
  }
  void complete_one() {
    if (in_flight_.empty()) return;
    must(rig_.stream.synchronize());
    const auto at = ordered_ ? 0 : between(0, static_cast<int>(in_flight_.size()) - 1);
    must(rig_.manager.complete(in_flight_[static_cast<std::size_t>(at)]));
    in_flight_.erase(in_flight_.begin() + at);
  }
  void fail_one() {
    if (in_flight_.empty()) return;
    must(rig_.stream.synchronize());  // the device is idle
    const auto at = static_cast<std::size_t>(between(0, static_cast<int>(in_flight_.size()) - 1));
    for (const EndedSequence& ended : must(rig_.manager.fail(in_flight_[at]))) {
      leave(ended.sequence);
    }
    in_flight_.resize(at);
    ++totals_.failed;
  }

  std::mt19937 random_;
  Totals& totals_;
  PlanRig rig_;
  bool ordered_;
  std::vector<SequenceId> open_;
  std::vector<Opened> prompts_;
  std::vector<Ticket> in_flight_;
  std::vector<FakeDriver::Launch> launches_;
  int used_ = 0;
};

TEST(DevicePlan, TenThousandRandomStepsAreOnTheDeviceAsTheManagerSaysThem) {
  const auto first = static_cast<unsigned>(number_of("KVFOLIO_SEED", 1));
  const std::int64_t steps = number_of("KVFOLIO_OPS", 12000);
  constexpr int kStepsOfRun = 300;
  Totals totals;
  for (unsigned seed = first; totals.steps < steps; ++seed) {
    RandomRun(seed, totals).run(kStepsOfRun);
    ASSERT_FALSE(HasFailure()) << "KVFOLIO_SEED=" << seed;
  }
  std::printf(
      "%lld steps: %lld uploads (%lld plans not uploaded), %lld entries changed, %lld rows whole, "
      "%lld refused for want of tables, %lld waited, %lld dropped, %lld failed, %lld planned "
      "twice, %lld replayed, %lld verified, %lld with pages of a trim's sinks that a window has "
      "gone into\n",
      static_cast<long long>(totals.steps), static_cast<long long>(totals.uploads),
      static_cast<long long>(totals.left_out), static_cast<long long>(totals.changed),
      static_cast<long long>(totals.whole), static_cast<long long>(totals.refused),
      static_cast<long long>(totals.waited), static_cast<long long>(totals.dropped),
      static_cast<long long>(totals.failed), static_cast<long long>(totals.planned_twice),
      static_cast<long long>(totals.replayed), static_cast<long long>(totals.verified),
      static_cast<long long>(totals.late_fronts));
  if (steps < 10000) return;
  for (const std::int64_t seen :
       {totals.uploads, totals.left_out, totals.changed, totals.whole, totals.refused,
        totals.waited, totals.dropped, totals.failed, totals.planned_twice, totals.replayed,
        totals.verified, totals.late_fronts}) {
    EXPECT_GT(seen, 100);
  }
}

}  // namespace
}  // namespace kvfolio::cuda
