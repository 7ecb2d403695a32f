// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests of DevicePlan: a manager, and a device that is none (fake_driver.h), whose stream is
// late. A reader stands behind each upload, as a step's kernels would: when its turn in the stream
// comes, it compares what is on the device with what the manager said when the plan was uploaded.

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cuda/fake_driver.h"
#include "cuda/library/host_kernels.h"
#include "cuda/library/loaded.h"
#include "kvfolio/cuda_plan.h"
#include "kvfolio/manager.h"

namespace kvfolio::cuda {

inline constexpr int kNoImage = 0;
inline constexpr KernelImage kPlanImages[] = {{"moves", &kNoImage, 4}};

inline GroupSpec full_group(std::int32_t block_size, std::int32_t num_blocks) {
  GroupSpec group;
  group.head_dim_k = group.head_dim_v = 8;
  group.block_size = block_size;
  group.num_blocks = num_blocks;
  return group;
}
inline GroupSpec window_group(std::int32_t block_size, std::int32_t num_blocks, std::int32_t window,
                              std::int32_t sinks) {
  GroupSpec group = full_group(block_size, num_blocks);
  group.kind = AttentionKind::kSlidingWindow;
  group.window = window;
  group.num_sinks = sinks;
  return group;
}

template <typename T>
T must(Result<T> result) {
  if (!result.has_value()) std::fprintf(stderr, "%s\n", result.error().message().c_str());
  KVFOLIO_CHECK(result.has_value());
  return *std::move(result);
}
inline void must(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  KVFOLIO_CHECK(status.ok());
}

struct RigOptions {
  std::vector<GroupSpec> groups = {full_group(4, 64)};
  ManagerOptions manager = {.max_sequences = 4, .max_steps_in_flight = 4};
  std::int32_t columns = 16;
  std::int32_t max_tokens = 64;
  DevicePlanOptions plan = {};  // but for sizes and groups
  unsigned seed = 1;
};

class PlanRig {
 public:
  explicit PlanRig(const RigOptions& options = {}, const DriverCalls& calls = FakeDriver::calls())
      : fake(with_kernels(fake_, *this)),
        manager(must(KVCacheManager::create(CacheSpec{options.groups}, options.manager))),
        device(must(Device::open(calls, 0))),
        kernels(*load_kernels(device, {}, kPlanImages)),
        stream(*Stream::create(device)),
        options_(options) {
    renew();
  }

  // The groups stand as long as the rig does.
  [[nodiscard]] DevicePlanOptions plan_options() {
    groups_.clear();
    for (const GroupSpec& group : options_.groups) {
      groups_.push_back({.block_size = group.block_size, .table_stride = options_.columns});
    }
    DevicePlanOptions result = options_.plan;
    result.max_sequences = options_.manager.max_sequences;
    result.max_tokens = options_.max_tokens;
    result.num_rows = manager.num_rows();
    result.groups = groups_;
    return result;
  }
  // Another DevicePlan, as an engine that begins beside a running manager.
  void renew() {
    plan = nullptr;
    plan = must(DevicePlan::create(kernels, plan_options()));
  }

  SequenceId open(const std::vector<std::int32_t>& tokens = {}) {
    return must(manager.open(tokens)).sequence;
  }
  void append(SequenceId sequence, std::int32_t first, std::int32_t count) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), first);
    must(manager.append(sequence, tokens));
  }
  const StepPlan& planned(kvfolio::PlanOptions with = {.block_tables = false,
                                                       .changed_entries = true}) {
    with.pad = options_.plan.pad;
    with.flashinfer = options_.plan.flashinfer;
    with.positions = options_.plan.positions;
    with.int64_slots = options_.plan.int64_slots;
    return *must(manager.plan(with));
  }
  static constexpr kvfolio::PlanOptions kWithTables = {.block_tables = true,
                                                       .changed_entries = true};

  // Uploads, and puts a reader behind it.
  Status upload(const StepPlan& step) {
    Status sent = plan->upload(step, stream.handle());
    if (sent.ok()) read(step);
    return sent;
  }
  // A whole step of one sequence, uploaded or not; it stays in flight.
  Ticket launch(SequenceId sequence, std::int32_t count, bool uploads = true) {
    const Ticket ticket = must(manager.begin_step());
    append(sequence, 1000, count);
    const StepPlan& step = planned(kWithTables);
    if (uploads) must(upload(step));
    must(manager.commit(ticket));
    return ticket;
  }
  // Starts a reader.
  void read(const StepPlan& step) {
    waiting_ = [this, expected = expected_of(step)] { check(expected); };
    static std::string name = "reader";
    must(device->run("to read", [&](const DriverCalls& calls) {
      void* parameters[] = {nothing_};
      return calls.launch(&name, 1, 1, 1, 1, 1, 1, 0, stream.handle(), parameters, nullptr);
    }));
    ++started;
  }
  // All that was started has run. What readers found, or nothing.
  std::string finish() {
    must(stream.synchronize());
    KVFOLIO_CHECK(read_ == started);
    return wrong;
  }

  std::int32_t block(SequenceId sequence, std::int32_t column, std::int32_t group = 0) const {
    return must(manager.block_table(sequence, GroupId(group)))[static_cast<std::size_t>(column)];
  }

 private:
  FakeDriver fake_;

 public:
  FakeDriver& fake;
  KVCacheManager manager;
  std::shared_ptr<Device> device;
  std::shared_ptr<Kernels> kernels;
  Stream stream;
  std::unique_ptr<DevicePlan> plan;
  std::string wrong;  // the first thing that a reader found
  std::uint64_t started = 0;

 private:
  // What the manager says, one value behind the other with its name: made of block_table(), not of
  // what the plan says of tables.
  struct Value {
    const void* at;
    std::int64_t wanted;
    bool wide;
    std::string name;
  };
  using Expected = std::vector<Value>;

  static FakeDriver& with_kernels(FakeDriver& fake, PlanRig& rig) {
    fake.touchable = true;
    fake.args_bytes = sizeof(PlanArgs);
    fake.kernel = [&rig, moves = moves_on_host()](const FakeDriver::Start& start) {
      if (start.name != "reader") return moves(start);
      return std::function<void()>([&rig, work = std::exchange(rig.waiting_, {})] {
        work();
        ++rig.read_;
      });
    };
    return fake;
  }

  Expected expected_of(const StepPlan& step) {
    Expected values;
    const DevicePlanArrays& at = plan->arrays();
    const auto want = [&](const std::int32_t* to, std::int64_t wanted, std::string name) {
      values.push_back({to, wanted, false, std::move(name)});
    };
    const auto n = static_cast<std::int32_t>(step.sequences.size());
    want(at.counts, n, "num_sequences");
    want(at.counts + 1, step.num_tokens, "num_tokens");
    want(at.query_start, 0, "query_start");
    for (std::int32_t i = 0; i < options_.manager.max_sequences; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const bool real = i < n;
      const std::string name = "[" + std::to_string(i) + "]";
      want(at.query_start + i + 1, real ? step.query_start[index + 1] : step.num_tokens,
           "query_start" + name);
      want(at.rows + i, real ? step.rows[index] : -1, "rows" + name);
      want(at.kv_lens + i, real ? must(manager.info(step.sequences[index])).length : 0,
           "kv_lens" + name);
      want(at.trim_sinks + i, real ? must(manager.info(step.sequences[index])).trim_sinks : 0,
           "trim_sinks" + name);
      want(at.trim_first_kept + i,
           real ? must(manager.info(step.sequences[index])).trim_first_kept : 0,
           "trim_first_kept" + name);
    }
    for (std::int32_t t = 0; t < options_.max_tokens && at.positions != nullptr; ++t) {
      const auto index = static_cast<std::size_t>(t);
      want(at.positions + t, t < step.num_tokens ? step.positions[index] : 0, "positions");
    }
    for (std::int32_t g = 0; g < plan->num_groups(); ++g) expect_group(step, g, values);
    return values;
  }
  void expect_group(const StepPlan& step, std::int32_t g, Expected& values) {
    const DeviceGroupPlan& at = plan->group(GroupId(g));
    const GroupPlan& host = step.groups[static_cast<std::size_t>(g)];
    const std::string group = "group " + std::to_string(g) + " ";
    for (std::int32_t t = 0; t < options_.max_tokens; ++t) {
      const auto index = static_cast<std::size_t>(t);
      const bool real = t < step.num_tokens;
      if (at.slot_mapping_64 != nullptr) {
        values.push_back({at.slot_mapping_64 + t, real ? host.slot_mapping_64[index] : -1, true,
                          group + "slot_mapping_64"});
      } else {
        values.push_back(
            {at.slot_mapping + t, real ? host.slot_mapping[index] : -1, false, group + "slots"});
      }
    }
    std::int32_t page = 0;
    const auto want = [&](const std::int32_t* to, std::int64_t wanted, const std::string& name) {
      values.push_back({to, wanted, false, group + name});
    };
    for (std::int32_t i = 0; i < options_.manager.max_sequences; ++i) {
      const auto index = static_cast<std::size_t>(i);
      const std::string name = "of sequence " + std::to_string(i);
      std::span<const std::int32_t> table;
      if (index < step.sequences.size()) {
        table = must(manager.block_table(step.sequences[index], GroupId(g)));
      }
      if (at.kv_indptr != nullptr) want(at.kv_indptr + i, page, "kv_indptr " + name);
      for (std::int32_t c = 0; c < options_.columns; ++c) {
        const auto column = static_cast<std::size_t>(c);
        const std::string entry = "column " + std::to_string(c) + " " + name;
        const std::int32_t* const batch =
            at.batch_table == nullptr ? nullptr : at.batch_table + i * options_.columns + c;
        if (column >= table.size()) {
          if (batch != nullptr) want(batch, options_.plan.pad, "padding of " + entry);
          continue;
        }
        if (table[column] < 0) continue;
        want(at.table + step.rows[index] * options_.columns + c, table[column], "table " + entry);
        if (batch != nullptr) want(batch, table[column], "batch table " + entry);
        if (at.kv_indices != nullptr) want(at.kv_indices + page++, table[column], "page " + entry);
      }
      if (at.kv_indptr == nullptr) continue;
      const std::int32_t length =
          step.kv_lens.empty() || index >= step.sequences.size() ? 0 : step.kv_lens[index];
      const std::int32_t size = options_.groups[static_cast<std::size_t>(g)].block_size;
      want(at.kv_last_page_len + i, length == 0 ? 1 : (length - 1) % size + 1, "last page " + name);
    }
    if (at.kv_indptr != nullptr) {
      want(at.kv_indptr + options_.manager.max_sequences, page, "kv_indptr.back()");
    }
  }
  void check(const Expected& values) {
    for (const Value& value : values) {
      std::int64_t found = 0;
      if (value.wide) {
        std::memcpy(&found, value.at, sizeof found);
      } else {
        found = *static_cast<const std::int32_t*>(value.at);
      }
      if (found == value.wanted || !wrong.empty()) continue;
      wrong = "reader " + std::to_string(read_) + ": " + value.name + " is " +
              std::to_string(found) + ", the manager says " + std::to_string(value.wanted);
    }
  }

  RigOptions options_;
  std::vector<DevicePlanGroup> groups_;
  std::function<void()> waiting_;
  std::uint64_t read_ = 0;
  std::byte nothing_[sizeof(PlanArgs)] = {};
};

}  // namespace kvfolio::cuda
