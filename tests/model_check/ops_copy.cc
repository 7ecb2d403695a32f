// SPDX-License-Identifier: Apache-2.0
// Copies of the manager: the copy answers as the original does, the run goes on with one of them,
// and the other one stays as it was.

#include <algorithm>
#include <bit>

#include "kvfolio/storage.h"
#include "model_check/ops.h"

namespace kvfolio::model_check {

using fake_device::FakeDevice;

Harness::Aside Harness::make_target() {
  std::unique_ptr<FakeDevice> device;
  if (config_.host_copies) {
    device = std::make_unique<FakeDevice>(config_.spec.groups, config_.options.order);
  }
  Result<KVCacheManager> manager =
      device ? KVCacheManager::create(lent_storage(*device), config_.options)
             : KVCacheManager::create(config_.spec, config_.options);
  KVFOLIO_REQUIRE(manager.has_value(), "create a target of copy_to");
  return {std::move(*manager), std::move(device), true, {}, {}, {}};
}

// So that there is something to get rid of.
void Harness::use_target(Rng& rng, Aside& target) {
  const Prompt prompt = any_prompt(rng);
  const Result<Opened> opened = target.manager.open(prompt.tokens, open_options(prompt, rng));
  if (!opened.has_value()) return;
  const Result<Ticket> ticket = target.manager.begin_step();
  if (!ticket.has_value()) return;
  target.quiet = false;
  const std::vector<std::int32_t> tokens = {0, 1, 0};
  const bool appended = target.manager.append(opened->sequence, tokens).ok();
  if (appended && rng.chance(60)) {
    const ErrorCode code = target.manager.commit(*ticket).code();
    const bool may_wait_for_copies = config_.host_copies && !config_.options.copies_by_host;
    KVFOLIO_REQUIRE(code == ErrorCode::kOk || (may_wait_for_copies && code == kMoment),
                    "commit of a target of copy_to");
  }
}

// Whatever a caller can ask, and with a device the bytes of all blocks that are not free.
std::vector<std::uint64_t> Harness::facts_of(KVCacheManager& manager, const FakeDevice* device,
                                             const std::vector<Prompt>& prompts) const {
  std::vector<std::uint64_t> facts;
  const auto put = [&](auto value) { facts.push_back(static_cast<std::uint64_t>(value)); };
  const auto put_all = [&](std::span<const std::int32_t> values) {
    put(values.size());
    for (const std::int32_t value : values) put(value);
  };
  std::vector<SequenceId> ids(static_cast<std::size_t>(config_.options.max_sequences));
  ids.resize(static_cast<std::size_t>(manager.sequences(ids)));
  put(ids.size());
  for (const SequenceId id : ids) {
    const SequenceInfo info = *manager.info(id);
    put(id.value());
    put_all({{info.length, info.accepted_length, info.published_length, info.trim_sinks,
              info.trim_first_kept, info.in_open_step ? 1 : 0, info.max_tokens, info.priority,
              info.num_unnamed, static_cast<std::int32_t>(info.reserved_tokens)}});
    put(info.caller_id.has_value());
    put(info.caller_id.value_or(0));
    put(info.last_use);
    put(info.use_count);
    for (int g = 0; g < num_groups(); ++g) put_all(*manager.block_table(id, GroupId(g)));
  }
  for (int g = 0; g < num_groups(); ++g) {
    const GroupUsage usage = *manager.usage(GroupId(g));
    put_all({{usage.free, usage.held, usage.cached, usage.retiring, usage.evictable}});
    for (int b = 0; b < group(g).num_blocks; ++b) {
      const std::int32_t refs = *manager.ref_count(GroupId(g), BlockId(b));
      const bool findable = *manager.is_findable(GroupId(g), BlockId(b));
      put(refs);
      put(findable);
      if (device == nullptr || b < first_block() || (refs == 0 && !findable)) continue;
      const int size = group(g).block_size;
      for (int slot = b * size; slot < (b + 1) * size; ++slot) put(device->at(g, slot));
    }
  }
  static_assert(sizeof(Counters) % sizeof(std::uint64_t) == 0);
  for (const std::uint64_t count :
       std::bit_cast<std::array<std::uint64_t, sizeof(Counters) / sizeof(std::uint64_t)>>(
           manager.counters())) {
    put(count);
  }
  for (int policy = 0; policy < 4; ++policy) {
    const auto victim = manager.select_victim(static_cast<VictimPolicy>(policy));
    put(victim ? victim->value() : 0);
  }
  for (const std::uint64_t caller_id : kCallerIds) {
    const Result<SequenceId> found = manager.find(caller_id);
    put(found.has_value() ? found->value() : 0);
  }
  for (const Prompt& prompt : prompts) {
    put(*manager.probe(prompt.tokens, prompt.options()));
  }
  put(std::hash<std::string>{}(manager.describe()));
  const Result<const StepPlan*> plan = manager.plan({.shared_prefixes = true});
  put(plan.has_value());
  if (!plan.has_value()) return facts;
  put((*plan)->ticket.value());
  put_all((*plan)->rows);
  put_all((*plan)->query_start);
  put_all((*plan)->kv_lens);
  for (const GroupPlan& each : (*plan)->groups) {
    for (const auto& values : {each.slot_mapping, each.block_table, each.copy_src, each.copy_dst}) {
      put_all(values);
    }
    put(each.shared_prefixes.size());
  }
  return facts;
}

void Harness::check_aside() {
  if (!aside_) return;
  const Status invariants = aside_->manager.check_invariants();
  KVFOLIO_REQUIRE(invariants.ok(), "check_invariants beside: " + invariants.message());
  KVFOLIO_REQUIRE(facts_of(aside_->manager, aside_->device.get(), aside_->prompts) == aside_->facts,
                  "what happens to one side of a copy does not change the other one");
}

void Harness::copy(Rng& rng) {
  read_only_ = true;
  if (!config_.copies) return;
  check_aside();
  // Steps in flight still read plans of the manager that has been left.
  if (aside_ && std::any_of(aside_->plans.begin(), aside_->plans.end(),
                            [&](Ticket ticket) { return device_->has(ticket); })) {
    return;
  }
  if (!aside_ || !aside_->quiet || rng.chance(40)) aside_.emplace(make_target());
  if (rng.chance(50)) use_target(rng, *aside_);
  const bool has_storage = config_.host_copies;
  if (has_storage) {
    meet_device();
    for (int g = 0; g < num_groups(); ++g) {
      std::ranges::fill(aside_->device->memory(g), fake_device::kPoison);
    }
  }
  note("copy_to");
  const bool quiet = !open_step_ && flight_.empty() && aside_->quiet;
  if (!expect(manager_->copy_to(aside_->manager),
              has_storage && !quiet ? Codes{kMoment} : Codes{})) {
    aside_.reset();
    return;
  }
  ++coverage_.manager_copies;
  aside_->quiet = true;
  aside_->plans.clear();
  aside_->prompts.assign(said_.begin(), said_.begin() + std::min(isize(said_), 4));
  aside_->facts = facts_of(*manager_, has_storage ? device_.get() : nullptr, aside_->prompts);
  check_aside();
  if (rng.chance(60)) {
    note(", goes on with the copy");
    std::swap(*manager_, aside_->manager);
    if (has_storage) {
      reads_elsewhere_ += device_->num_reads();
      std::swap(device_, aside_->device);
      reads_elsewhere_ -= device_->num_reads();
    }
    for (const StepWork& step : flight_) aside_->plans.emplace_back(step.ticket);
    if (aside_->plans.empty() && rng.chance(40)) {
      note(" alone");
      aside_.reset();
    }
  }
  if (open_step_) capture({});
}

}  // namespace kvfolio::model_check
