// SPDX-License-Identifier: Apache-2.0

#include "offload_options.h"

#include <cstring>

#include "fields.h"

namespace kvfolio::python {
namespace {

constexpr Word<WritePolicy> kWritePolicies[] = {{"off", WritePolicy::kOff},
                                                {"write_through", WritePolicy::kWriteThrough},
                                                {"second_use", WritePolicy::kSecondUse}};

RootEpoch root_epoch_of(nb::handle item, std::size_t index) {
  const std::string name = item_name("epochs.roots", index);
  RootEpoch root;
  nb::bytes digest;
  Id epoch;
  if (!nb::isinstance<nb::tuple>(item) || nb::len(item) != 2 || !nb::try_cast(item[0], digest) ||
      !nb::try_cast(item[1], epoch)) {
    raise_wanted(item, name, "a pair of bytes and an int");
  }
  if (digest.size() != root.root.size()) {
    raise_invalid(name + " has " + std::to_string(digest.size()) + " bytes, wanted: 32");
  }
  std::memcpy(root.root.data(), digest.data(), digest.size());
  root.epoch = epoch.value;
  return root;
}

nb::dict by_result(const std::array<std::uint64_t, kNumTierResults>& counts) {
  nb::dict all;
  for (int i = 0; i < kNumTierResults; ++i) {
    all[to_string(static_cast<TierResult>(i))] = counts[static_cast<std::size_t>(i)];
  }
  return all;
}

nb::tuple tuple_of(const OffloadTierCounters::Latencies& counts) {
  nb::list list;
  for (const std::uint64_t count : counts) list.append(count);
  return nb::tuple(list);
}

}  // namespace

void LentTiers::lend(std::shared_ptr<TierState> tier) {
  tier->lend();
  tiers_.push_back(std::move(tier));
}

void LentTiers::give_back(bool owe) {
  std::vector<std::shared_ptr<TierState>> closed;
  for (const auto& tier : std::exchange(tiers_, {})) {
    if (tier->give_back(owe)) closed.push_back(tier);
  }
  for (const auto& tier : closed) tier->end();  // without the GIL: all are given back before
}

HeldOffload::HeldOffload(nb::handle model, nb::handle tiers, nb::handle epochs, LentTiers& lent)
    : model_(model) {
  options.model = model_.identity;
  for (const nb::object& item : items_of(tiers, "tiers", "a list of tiers")) {
    const std::string name = item_name("tiers", tiers_.size());
    OffloadTier tier;
    nb::object object = item;
    if (!nb::isinstance<TierObject>(item)) {
      const Fields fields(item, name, "a Tier or an OffloadTier");
      object = fields.get("tier");
      tier.policy = parse_word("policy", fields.text("policy").c_str(), kWritePolicies);
      tier.store_bytes_max = fields.number64("store_bytes_max");
      tier.load_bytes_max = fields.number64("load_bytes_max");
    }
    const auto& state =
        object_of<TierObject>(object, name.c_str(), "a Tier or an OffloadTier").state();
    lent.lend(state);
    tier.tier = state->tier();
    tiers_.push_back(tier);
  }
  options.tiers = tiers_;
  if (epochs.is_none()) return;
  const Fields fields(epochs, "epochs", "a NameEpochs or None");
  Id epoch;
  if (!nb::try_cast(fields.get("epoch"), epoch)) raise_type("epochs.epoch is no int");
  options.epoch = epoch.value;
  const nb::object roots = fields.get("roots");
  for (const nb::object& item : items_of(roots, "epochs.roots", "a list of pairs")) {
    roots_.push_back(root_epoch_of(item, roots_.size()));
  }
  options.root_epochs = roots_;
}

nb::object epochs_record(const NameEpochs& epochs) {
  nb::list roots;
  for (const RootEpoch& root : epochs.roots) {
    roots.append(nb::make_tuple(bytes_of(root.root), root.epoch));
  }
  return make_tier_record("NameEpochs", nb::make_tuple(epochs.epoch, nb::tuple(roots)));
}

nb::object counters_record(const OffloadCounters& c) {
  return make_tier_record(
      "OffloadCounters",
      nb::make_tuple(c.stores, c.stores_dropped, c.loads, c.tokens_loaded, c.arena_corrupt,
                     c.tier_stores, c.tier_stores_dropped, c.tier_loads, by_result(c.tier_misses),
                     c.tier_corrupt, c.requests, c.requests_canceled, c.requests_timed_out,
                     c.unknown_completions, c.manager_forgets, c.steps_max, c.copies_failed));
}

nb::object tier_counters_record(const OffloadTierCounters& c) {
  return make_tier_record(
      "OffloadTierCounters",
      nb::make_tuple(c.stores, c.stores_failed, c.loads, c.loads_corrupt, by_result(c.loads_failed),
                     c.bytes_stored, c.bytes_loaded, tuple_of(c.store_latency),
                     tuple_of(c.load_latency), c.store_us, c.load_us, c.stores_failed_in_a_row,
                     c.stores_dropped, c.stores_again, c.pauses, c.bytes_held, c.passed_over));
}

}  // namespace kvfolio::python
