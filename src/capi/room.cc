// SPDX-License-Identifier: Apache-2.0
//
// Room: what fits, what is kept, what is forgotten and who has to go.

#include <algorithm>

#include "capi/capi.h"

namespace kvfolio::capi {
namespace {

Status read_policy(std::string_view call, std::int32_t policy, std::optional<VictimPolicy>& out) {
  if (policy == KVFOLIO_POLICY_OF_OPTIONS) return {};
  VictimPolicy named{};
  KVFOLIO_RETURN_IF_ERROR(read_enum(call, "policy", policy, KVFOLIO_LOWEST_PRIORITY, named));
  out = named;
  return {};
}

// Room for a number of each group, or of the first ones.
Status check_blocks(std::string_view call, const kvfolio_manager& manager,
                    const std::int32_t* blocks, std::int32_t num_groups) {
  KVFOLIO_RETURN_IF_ERROR(check_array(call, "blocks", blocks, num_groups));
  const auto most = static_cast<std::int32_t>(manager.manager.spec().groups.size());
  if (num_groups <= most) return {};
  return {ErrorCode::kInvalidArgument,
          concat(call, ": num_groups is ", num_groups, ", allowed: 0 to ", most)};
}

void give_blocks(const Admission& admission, std::int32_t* blocks,
                 std::int32_t num_groups) noexcept {
  std::copy_n(admission.blocks.begin(), num_groups, blocks);
}

std::int32_t give_forgotten(const Forgotten& forgotten, std::int64_t* blocks,
                            std::int32_t* pins) noexcept {
  if (blocks != nullptr) *blocks = forgotten.blocks;
  if (pins != nullptr) *pins = forgotten.pins;
  return KVFOLIO_OK;
}

}  // namespace
}  // namespace kvfolio::capi

using namespace kvfolio;
using namespace kvfolio::capi;

extern "C" {

int32_t kvfolio_admit(kvfolio_manager* manager, const kvfolio_sequence* sequences,
                      const int64_t* num_tokens, int64_t num_sequences, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "sequences", sequences, num_sequences));
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "num_tokens", num_tokens, num_sequences));
  const auto most = static_cast<std::int64_t>(manager->demands.size());
  if (num_sequences > most) {
    return answer(error, {ErrorCode::kInvalidArgument,
                          concat(__func__, ": ", num_sequences, " sequences, allowed: 0 to ", most,
                                 ", each once")});
  }
  for (std::int64_t i = 0; i < num_sequences; ++i) {
    manager->demands[i] = {SequenceId(sequences[i]), num_tokens[i]};
  }
  return answer(error, manager->manager.admit(
                           span_of(std::as_const(manager->demands).data(), num_sequences)));
}

int32_t kvfolio_admit_prompt(const kvfolio_manager* manager, const kvfolio_root* root,
                             const int32_t* tokens, int64_t num_tokens,
                             const kvfolio_media_span* media, int64_t num_media,
                             const kvfolio_open_options* options, int64_t num_more,
                             int64_t most_per_step, kvfolio_found* found, int32_t* blocks,
                             int32_t num_groups, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_found(__func__, found));
  KVFOLIO_C_RETURN_IF_ERROR(check_blocks(__func__, *manager, blocks, num_groups));
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, options, prompt));
  const Result<Admission> admission = manager->manager.admit(
      prompt.tokens, prompt.options, num_more, {.most_per_step = most_per_step});
  if (!admission) return answer(error, admission.error());
  give_found(admission->cached_tokens, admission->soon, found);
  give_blocks(*admission, blocks, num_groups);
  return KVFOLIO_OK;
}

int32_t kvfolio_admit_sequence(const kvfolio_manager* manager, kvfolio_sequence sequence,
                               int64_t num_tokens, int64_t most_per_step, int32_t* blocks,
                               int32_t num_groups, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_blocks(__func__, *manager, blocks, num_groups));
  const Result<Admission> admission =
      manager->manager.admit(SequenceId(sequence), num_tokens, {.most_per_step = most_per_step});
  if (!admission) return answer(error, admission.error());
  give_blocks(*admission, blocks, num_groups);
  return KVFOLIO_OK;
}

int32_t kvfolio_reserve(kvfolio_manager* manager, kvfolio_sequence sequence, int64_t num_tokens,
                        int64_t most_per_step, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.reserve(SequenceId(sequence), num_tokens,
                                                {.most_per_step = most_per_step}));
}

int32_t kvfolio_evict(kvfolio_manager* manager, int32_t group, int32_t num_blocks, int32_t* evicted,
                      int64_t capacity, int32_t* num_evicted, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_RETURN_IF_ERROR(check_array(__func__, "evicted", evicted, capacity));
  const Result<std::int32_t> count =
      manager->manager.evict(GroupId(group), num_blocks, span_of(evicted, capacity));
  if (!count) return answer(error, count.error());
  if (num_evicted != nullptr) *num_evicted = *count;
  return KVFOLIO_OK;
}

int32_t kvfolio_reset(kvfolio_manager* manager, int64_t* blocks, int32_t* pins,
                      kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return give_forgotten(manager->manager.reset(), blocks, pins);
}

int32_t kvfolio_forget_root(kvfolio_manager* manager, const kvfolio_root* root, int64_t* blocks,
                            int32_t* pins, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  const RootKey key = root != nullptr ? root->key : RootKey{};
  return give_forgotten(manager->manager.forget(key), blocks, pins);
}

int32_t kvfolio_forget(kvfolio_manager* manager, const kvfolio_root* root, const int32_t* tokens,
                       int64_t num_tokens, const kvfolio_media_span* media, int64_t num_media,
                       int64_t* blocks, int32_t* pins, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, nullptr, prompt));
  const Result<Forgotten> forgotten = manager->manager.forget(prompt.tokens, prompt.options);
  if (!forgotten) return answer(error, forgotten.error());
  return give_forgotten(*forgotten, blocks, pins);
}

int32_t kvfolio_pin(kvfolio_manager* manager, const kvfolio_root* root, const int32_t* tokens,
                    int64_t num_tokens, const kvfolio_media_span* media, int64_t num_media,
                    const kvfolio_open_options* options, kvfolio_pin_id* out,
                    int32_t* pinned_tokens, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  KVFOLIO_C_NEEDS(out);
  Prompt prompt;
  KVFOLIO_C_RETURN_IF_ERROR(
      read_prompt(__func__, root, tokens, num_tokens, media, num_media, options, prompt));
  const Result<Pinned> pinned = manager->manager.pin(prompt.tokens, prompt.options);
  if (!pinned) return answer(error, pinned.error());
  *out = pinned->pin.value();
  if (pinned_tokens != nullptr) *pinned_tokens = pinned->pinned_tokens;
  return KVFOLIO_OK;
}

int32_t kvfolio_unpin(kvfolio_manager* manager, kvfolio_pin_id pin, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  return answer(error, manager->manager.unpin(PinId(pin)));
}

double kvfolio_utilization(const kvfolio_manager* manager) {
  return manager == nullptr ? 0.0 : manager->manager.utilization();
}

int32_t kvfolio_needs_eviction(const kvfolio_manager* manager) {
  return manager != nullptr && manager->manager.needs_eviction() ? 1 : 0;
}

kvfolio_sequence kvfolio_select_victim(kvfolio_manager* manager, int32_t policy) {
  std::optional<VictimPolicy> named;
  if (manager == nullptr || !read_policy(__func__, policy, named).ok()) return 0;
  const std::optional<SequenceId> victim = manager->manager.select_victim(named);
  return victim ? victim->value() : 0;
}

int32_t kvfolio_preempt_to(kvfolio_manager* manager, double target, int32_t policy,
                           const kvfolio_ended** ended, int64_t* num_ended, kvfolio_error* error) {
  KVFOLIO_C_NEEDS(manager);
  std::optional<VictimPolicy> named;
  KVFOLIO_C_RETURN_IF_ERROR(read_policy(__func__, policy, named));
  const Result<std::span<const EndedSequence>> preempted =
      manager->manager.preempt_to(target, named);
  if (!preempted) return answer(error, preempted.error());
  return give_ended(*manager, *preempted, ended, num_ended);
}

}  // extern "C"
